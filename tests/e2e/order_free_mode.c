/* order_program free: threads call as they like. Before a launch a thread asks which of the latest accesses
 * are promised to have completed, notes them down with the launch, and the kernel looks. Streams, events and
 * graphs have locks against use while they are destroyed or captured, as correct programs do; nothing else is
 * coordinated. Calls may fail (RPSIM_FAIL): then nothing has happened. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "tests/e2e/order_program.h"

#define THREADS 4
#define STREAMS 7 /* two default ones first */
#define EVENTS 6
#define EXECS 2
#define NOTES 4096 /* launches of one round */
#define RECENT 48

struct access {
  _Atomic uint64_t token; /* 0: not published yet */
  struct note *note;
  uint32_t done;
};

static struct note *notes; /* NOTES of them, and one for each executable */
static _Atomic uint32_t notes_used;
static struct access accesses[NOTES * 2];
static _Atomic uint32_t accesses_used;

static pthread_rwlock_t stream_locks[STREAMS], event_locks[EVENTS];
static pthread_mutex_t exec_locks[EXECS];
static void *streams[STREAMS], *events[EVENTS], *execs[EXECS];
static bool captured_before[EVENTS]; /* event lock: last recorded in a capture, so not to be waited for */
static struct note *exec_notes[EXECS];
static uint32_t exec_launches[EXECS]; /* exec lock */
static _Atomic long promises;
static _Atomic int capturing;

/* ---- asking and publishing ---- */

struct recent {
  rp_order_token tokens[RECENT];
  const struct access *accesses[RECENT];
  size_t count;
};

static void look_back(struct recent *recent) {
  uint32_t end = atomic_load(&accesses_used), begin = end > RECENT ? end - RECENT : 0;
  recent->count = 0;
  for (uint32_t i = begin; i < end; i++) {
    const uint64_t token = atomic_load(&accesses[i].token);
    if (!token) continue;
    recent->tokens[recent->count] = token;
    recent->accesses[recent->count++] = &accesses[i];
  }
}

static void note_promises(struct note_launch *launch, void *stream, bool programmatic) {
  struct recent recent;
  bool answers[RECENT];
  look_back(&recent);
  probe->before(recent.tokens, recent.count, order_stream(stream), programmatic, answers);
  launch->count = 0;
  for (size_t i = 0; i < recent.count; i++) {
    if (!answers[i]) continue;
    launch->must[launch->count].note = recent.accesses[i]->note;
    launch->must[launch->count++].done = recent.accesses[i]->done;
  }
  atomic_fetch_add(&promises, launch->count);
}

static void check_known(void) {
  struct recent recent;
  bool answers[RECENT];
  look_back(&recent);
  probe->known(recent.tokens, recent.count, answers);
  for (size_t i = 0; i < recent.count; i++) {
    if (!answers[i]) continue;
    atomic_fetch_add(&promises, 1);
    if (atomic_load(&recent.accesses[i]->note->done) < recent.accesses[i]->done)
      atomic_fetch_add(&broken_promises, 1);
  }
}

static void publish(rp_order_token token, struct note *note, uint32_t done) {
  const uint32_t i = atomic_fetch_add(&accesses_used, 1);
  if (i >= NOTES * 2) return;
  accesses[i].note = note;
  accesses[i].done = done;
  atomic_store(&accesses[i].token, token);
}

/* ---- calls ---- */

struct thread {
  uint64_t random_state;
  int number;
};

static int pick(struct thread *thread, int bound) {
  return (int)draw(&thread->random_state, (uint64_t)bound);
}

/* `alone`: without events, whose locks the caller may hold. */
static void launch(struct thread *thread, int s, bool alone) {
  const uint32_t number = atomic_fetch_add(&notes_used, 1);
  if (number >= NOTES) return;
  struct note *note = &notes[number];
  const int event = pick(thread, EVENTS), with = pick(thread, 12);
  const bool records = with < 2 && !alone;
  if (records) pthread_rwlock_rdlock(&event_locks[event]);
  const struct order_launch launched = {.stream = streams[s],
                                        .buffer = watched,
                                        .note = note,
                                        .programmatic = pick(thread, 8) == 0,
                                        .start_event = records && with == 0 ? events[event] : NULL,
                                        .completion_event = records && with == 1 ? events[event] : NULL};
  note_promises(&note->launches[0], streams[s], launched.programmatic);
  (void)probe->take();
  const int result = calls->launch(&launched);
  const rp_order_token token = probe->take();
  if (result == 0 && token) publish(token, note, 1);
  if (records) pthread_rwlock_unlock(&event_locks[event]);
}

static void plain_launch(int s) {
  const struct order_launch launched = {.stream = streams[s], .buffer = plain};
  (void)calls->launch(&launched);
}

static void record(struct thread *thread, int s, int e) {
  pthread_rwlock_rdlock(&event_locks[e]);
  (void)calls->record(events[e], streams[s], pick(thread, 2));
  pthread_rwlock_unlock(&event_locks[e]);
}

static void wait_event(int s, int e) {
  pthread_rwlock_rdlock(&event_locks[e]);
  if (!captured_before[e]) (void)calls->wait(streams[s], events[e]);
  pthread_rwlock_unlock(&event_locks[e]);
}

static void event_is_done(struct thread *thread, int e) {
  pthread_rwlock_rdlock(&event_locks[e]);
  if (!captured_before[e]) (void)(pick(thread, 3) ? calls->event_query : calls->event_sync)(events[e]);
  pthread_rwlock_unlock(&event_locks[e]);
  check_known();
}

static void stream_is_done(struct thread *thread, int s) {
  (void)(pick(thread, 3) ? calls->stream_query : calls->stream_sync)(streams[s]);
  check_known();
}

static void copy(struct thread *thread) {
  char bytes[64] = {0}, *own = (char *)watched + 4096 * thread->number;
  (void)(pick(thread, 2) ? calls->copy_to_host(bytes, own, sizeof bytes)
                         : calls->copy_to_device(own, bytes, sizeof bytes));
  (void)probe->take(); /* nobody would see when it is done */
  check_known();
}

static void launch_graph(int s, int g) {
  pthread_mutex_lock(&exec_locks[g]);
  const uint32_t number = exec_launches[g];
  note_promises(&exec_notes[g]->launches[number % NOTE_LAUNCHES], streams[s], false);
  (void)probe->take();
  const int result = execs[g] ? calls->graph_launch(execs[g], streams[s]) : 1;
  const rp_order_token token = probe->take();
  if (result == 0) exec_launches[g]++;
  if (result == 0 && token) publish(token, exec_notes[g], number + 1);
  pthread_mutex_unlock(&exec_locks[g]);
}

static void nothing(void *unused) {
  (void)unused;
}

static void renew_stream(struct thread *thread, int s) {
  pthread_rwlock_wrlock(&stream_locks[s]);
  if (s > 1 && calls->stream_destroy(streams[s]) == 0)
    while (calls->stream_create(&streams[s], s % 2, pick(thread, 3)) != 0) {
    }
  pthread_rwlock_unlock(&stream_locks[s]);
}

static void renew_event(int e) {
  pthread_rwlock_wrlock(&event_locks[e]);
  if (calls->event_destroy(events[e]) == 0) {
    while (calls->event_create(&events[e]) != 0) {
    }
    captured_before[e] = false;
  }
  pthread_rwlock_unlock(&event_locks[e]);
}

/* A capture of two streams, while the other threads go on; its graph is never launched. */
static void capture(struct thread *thread, int s, int t, int e) {
  void *graph = NULL;
  const int first = s < t ? s : t, second = s < t ? t : s;
  int busy = 0;
  if (s == t || first < 2 || !atomic_compare_exchange_strong(&capturing, &busy, 1)) return;
  pthread_rwlock_wrlock(&stream_locks[first]);
  pthread_rwlock_wrlock(&stream_locks[second]);
  pthread_rwlock_wrlock(&event_locks[e]);
  if (calls->capture_begin(streams[s]) == 0) {
    launch(thread, s, true);
    (void)calls->record(events[e], streams[s], false);
    captured_before[e] = true;
    (void)calls->wait(streams[t], events[e]);
    launch(thread, t, true);
    (void)calls->record(events[e], streams[t], false);
    (void)calls->wait(streams[s], events[e]);
    if (calls->capture_end(streams[s], &graph) == 0 && graph) (void)calls->graph_destroy(graph);
  }
  pthread_rwlock_unlock(&event_locks[e]);
  pthread_rwlock_unlock(&stream_locks[second]);
  pthread_rwlock_unlock(&stream_locks[first]);
  atomic_store(&capturing, 0);
}

static void on_stream(struct thread *thread, int s) {
  const int what = pick(thread, 100), e = pick(thread, EVENTS);
  if (what < 34)
    launch(thread, s, false);
  else if (what < 54)
    record(thread, s, e);
  else if (what < 76)
    wait_event(s, e);
  else if (what < 82)
    plain_launch(s);
  else if (what < 88)
    launch_graph(s, pick(thread, EXECS));
  else if (what < 91)
    (void)calls->host_function(streams[s], nothing, NULL);
  else
    stream_is_done(thread, s);
}

static void step(struct thread *thread) {
  const int s = pick(thread, STREAMS), what = pick(thread, 100);
  if (what < 84) {
    pthread_rwlock_rdlock(&stream_locks[s]);
    on_stream(thread, s);
    pthread_rwlock_unlock(&stream_locks[s]);
  } else if (what < 92) {
    event_is_done(thread, pick(thread, EVENTS));
  } else if (what < 93) {
    if (calls->context_sync() == 0) check_known();
  } else if (what < 95) {
    copy(thread);
  } else if (what < 96) {
    renew_stream(thread, s);
  } else if (what < 98) {
    renew_event(pick(thread, EVENTS));
  } else {
    capture(thread, s, pick(thread, STREAMS), pick(thread, EVENTS));
  }
}

static void *run(void *argument) {
  struct thread *thread = argument;
  check(calls->set_up(), "set up");
  for (int i = 0; i < 250; i++)
    step(thread);
  return NULL;
}

/* ---- the world ---- */

static void make_exec(int g) {
  void *stream, *graph;
  struct order_launch inside = {.buffer = watched, .note = exec_notes[g]};
  check(calls->stream_create(&stream, false, 1), "create stream");
  inside.stream = stream;
  if (calls->capture_begin(stream) != 0) return;
  check(calls->launch(&inside), "captured launch");
  if (probe->take()) atomic_fetch_add(&broken_promises, 1);
  check(calls->capture_end(stream, &graph), "end capture");
  check(calls->instantiate(&execs[g], graph), "instantiate");
  check(calls->graph_destroy(graph), "destroy graph");
  check(calls->stream_destroy(stream), "destroy stream");
}

static void begin_round(void) {
  memset(notes, 0, (NOTES + EXECS) * sizeof *notes);
  atomic_store(&notes_used, 0);
  for (uint32_t i = 0; i < NOTES * 2; i++)
    atomic_store(&accesses[i].token, 0);
  atomic_store(&accesses_used, 0);
  for (int g = 0; g < EXECS; g++) {
    exec_notes[g] = &notes[NOTES + g];
    exec_launches[g] = 0;
    make_exec(g);
  }
}

static void end_round(void) {
  check(calls->context_sync(), "synchronise");
  for (int g = 0; g < EXECS; g++) {
    if (execs[g]) check(calls->exec_destroy(execs[g]), "destroy graph");
    execs[g] = NULL;
  }
}

static void create_world(void) {
  notes = calloc(NOTES + EXECS, sizeof *notes);
  if (!notes) check(1, "memory");
  streams[0] = calls->legacy;
  streams[1] = calls->per_thread;
  for (int i = 0; i < STREAMS; i++) {
    pthread_rwlock_init(&stream_locks[i], NULL);
    if (i > 1) check(calls->stream_create(&streams[i], i % 2, i), "create stream");
  }
  for (int i = 0; i < EVENTS; i++) {
    pthread_rwlock_init(&event_locks[i], NULL);
    check(calls->event_create(&events[i]), "create event");
  }
  for (int i = 0; i < EXECS; i++)
    pthread_mutex_init(&exec_locks[i], NULL);
}

long free_mode(uint64_t seed, int rounds) {
  create_world();
  for (int round = 0; round < rounds && broken_promises == 0; round++) {
    pthread_t threads[THREADS];
    struct thread state[THREADS];
    begin_round();
    for (int i = 0; i < THREADS; i++) {
      state[i].number = i;
      state[i].random_state =
          (seed * 1000 + (uint64_t)round * 10 + (uint64_t)i) * UINT64_C(0x9E3779B97F4A7C15) + 1;
      check(pthread_create(&threads[i], NULL, run, &state[i]), "pthread_create");
    }
    for (int i = 0; i < THREADS; i++)
      pthread_join(threads[i], NULL);
    end_round();
  }
  return atomic_load(&promises);
}
