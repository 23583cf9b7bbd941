/* order_program model: threads that take turns make the calls of small random programs; before each operation
 * the order is asked about all earlier ones, after each call what its thread knows. order_model.c has the
 * answers. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/e2e/order_program.h"
#include "tests/unit/order_model.h"

#define THREADS 3
#define EVENTS 2
#define CONTEXT 0xc0

static struct model_stream world[] = {
    {RP_ORDER_STREAM_LEGACY, CONTEXT, 0, false, true},
    {RP_ORDER_STREAM_PER_THREAD, CONTEXT, 1, true, false},
    {RP_ORDER_STREAM_PER_THREAD, CONTEXT, 2, true, false},
    {0x10, CONTEXT, 0, true, false},
    {0x11, CONTEXT, 0, true, false},
    {0x12, CONTEXT, 0, false, false},
    {0x13, CONTEXT, 0, false, false},
};
#define WORLD ((int)(sizeof world / sizeof *world))

static void *streams[WORLD], *events[EVENTS], *execs[EVENTS];
static uint64_t random_state;

/* ---- threads that take turns ---- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int turn; /* the thread that is to make the next call; 0 = nobody, -1 = all are to end */
static void (*job)(void *argument);
static void *job_argument;

static void *worker(void *number) {
  const int mine = (int)(intptr_t)number;
  check(calls->set_up(), "set up");
  pthread_mutex_lock(&lock);
  for (;;) {
    while (turn != mine && turn != -1)
      pthread_cond_wait(&changed, &lock);
    if (turn == -1) break;
    job(job_argument);
    turn = 0;
    pthread_cond_broadcast(&changed);
  }
  pthread_mutex_unlock(&lock);
  return NULL;
}

/* `what` is done by thread `number` before this returns. */
static void let(uint64_t number, void (*what)(void *), void *argument) {
  pthread_mutex_lock(&lock);
  job = what;
  job_argument = argument;
  turn = (int)number;
  pthread_cond_broadcast(&changed);
  while (turn != 0)
    pthread_cond_wait(&changed, &lock);
  pthread_mutex_unlock(&lock);
}

/* ---- programs ---- */

static int pick(int bound) {
  return (int)draw(&random_state, (uint64_t)bound);
}

static bool is_copy(enum model_kind kind) {
  return kind == MODEL_COPY_WAITS || kind == MODEL_COPY_RETURNS;
}

/* The stream that a synchronous copy of this build uses. */
static bool default_stream(int stream) {
  return calls->default_is_legacy ? world[stream].legacy : world[stream].thread != 0;
}

/* Work that is no access is told on the legacy stream only. */
static bool allowed(enum model_kind kind, int stream) {
  if (is_copy(kind)) return default_stream(stream);
  if (kind == MODEL_WORK) return world[stream].legacy;
  return kind != MODEL_FREE;
}

static void make_program(struct model_program *program) {
  static const enum model_kind often[] = {MODEL_LAUNCH, MODEL_LAUNCH, MODEL_LAUNCH,       MODEL_RECORD,
                                          MODEL_RECORD, MODEL_WAIT,   MODEL_PROGRAMMATIC, MODEL_WAIT,
                                          MODEL_WORK,   MODEL_WORK};
  const int frequent = (int)(sizeof often / sizeof *often);
  int used[4], stream_count = 2 + pick(3), threads = 1 + pick(THREADS);
  for (int i = 0; i < stream_count; i++)
    used[i] = pick(WORLD);
  program->streams = world;
  program->count = 5 + pick(7);
  for (int i = 0; i < program->count; i++) {
    struct model_call *call = &program->calls[i];
    do {
      const int drawn = pick(frequent + MODEL_KINDS);
      call->kind = drawn < frequent ? often[drawn] : (enum model_kind)(drawn - frequent);
      call->stream = used[pick(stream_count)];
    } while (!allowed(call->kind, call->stream));
    call->object = pick(EVENTS);
    call->thread = 1 + (uint64_t)pick(threads);
    call->context = CONTEXT;
    if (world[call->stream].thread) call->thread = world[call->stream].thread;
  }
}

/* ---- making the calls ---- */

static void *handle_of(const struct model_call *call) {
  if (world[call->stream].legacy) return calls->legacy;
  return world[call->stream].thread ? calls->per_thread : streams[call->stream];
}

static void until_done(int (*query)(void *), void *object) {
  int result;
  while ((result = query(object)) == 600) /* not ready */
    wait_a_little(20000);
  check(result, "query");
}

static void synchronise(int (*sync)(void *), int (*query)(void *), void *object) {
  if (pick(2))
    check(sync(object), "synchronise");
  else
    until_done(query, object);
}

static void launch(const struct model_call *call) {
  const struct order_launch launched = {
      .stream = handle_of(call),
      .buffer = call->kind == MODEL_WORK ? plain : watched,
      .programmatic = call->kind == MODEL_PROGRAMMATIC,
      .start_event = call->kind == MODEL_LAUNCH_EVENT ? events[call->object] : NULL,
      .completion_event = call->kind == MODEL_LAUNCH_COMPLETION ? events[call->object] : NULL};
  check(calls->launch(&launched), "launch");
}

static void destroy_stream(const struct model_call *call) {
  const int i = call->stream;
  if (!streams[i]) return; /* a default stream */
  check(calls->stream_destroy(streams[i]), "destroy stream");
  check(calls->stream_create(&streams[i], world[i].blocking, pick(3)), "create stream");
}

static void make(const struct model_call *call) {
  char bytes[64];
  void *stream = handle_of(call), *event = events[call->object];
  switch (call->kind) {
  case MODEL_GRAPH:
    check(calls->graph_launch(execs[call->object], stream), "graph launch");
    break;
  case MODEL_COPY_WAITS:
    check(calls->copy_to_host(bytes, watched, sizeof bytes), "copy");
    break;
  case MODEL_COPY_RETURNS:
    memset(bytes, 1, sizeof bytes);
    check(calls->copy_to_device(watched, bytes, sizeof bytes), "copy");
    break;
  case MODEL_RECORD:
    check(calls->record(event, stream, pick(2)), "record");
    break;
  case MODEL_WAIT:
    check(calls->wait(stream, event), "wait");
    break;
  case MODEL_SYNC_STREAM:
    synchronise(calls->stream_sync, calls->stream_query, stream);
    break;
  case MODEL_SYNC_EVENT:
    synchronise(calls->event_sync, calls->event_query, event);
    break;
  case MODEL_SYNC_CONTEXT:
    check(calls->context_sync(), "synchronise");
    break;
  case MODEL_DESTROY:
    destroy_stream(call);
    break;
  case MODEL_FREE:
  case MODEL_KINDS:
    break;
  default:
    launch(call);
  }
}

struct verdict {
  const struct model_program *program;
  int at;
  rp_order_token tokens[MODEL_CALLS];
  bool ordered[MODEL_CALLS][MODEL_CALLS], known[MODEL_CALLS][MODEL_CALLS]; /* [later][earlier] */
};

/* In the thread whose call it is. */
static void step(void *argument) {
  struct verdict *verdict = argument;
  const int i = verdict->at;
  const struct model_call *call = &verdict->program->calls[i];
  probe->before(verdict->tokens, (size_t)i, order_stream(handle_of(call)), call->kind == MODEL_PROGRAMMATIC,
                verdict->ordered[i]);
  (void)probe->take();
  make(call);
  verdict->tokens[i] = probe->take();
  probe->known(verdict->tokens, (size_t)i, verdict->known[i]);
}

/* ---- comparison ---- */

static void fail(const struct model_program *program, const char *what, int a, int b, bool model) {
  for (int i = 0; i < program->count; i++)
    printf("%2d thread %d stream %d kind %d object %d\n", i, (int)program->calls[i].thread,
           program->calls[i].stream, (int)program->calls[i].kind, program->calls[i].object);
  printf("%s(%d, %d) is %d in the model\n", what, a, b, model);
  broken_promises++;
}

static bool is_access(const struct model_call *call) {
  return model_is_operation(call->kind) && call->kind != MODEL_WORK;
}

/* The question about a graph launch does not say which graph it is of. Work that is no access is not told
 * where nobody learns from it, and a programmatic launch behind it then is promised less than it could be. */
static bool may_be_kept_back(const struct model_program *program, int b) {
  const struct model_call *calls_made = program->calls;
  if (calls_made[b].kind == MODEL_GRAPH) return true;
  for (int i = 0; i < b && calls_made[b].kind == MODEL_PROGRAMMATIC; i++)
    if (calls_made[i].kind == MODEL_WORK && calls_made[i].stream == calls_made[b].stream) return true;
  return false;
}

static long compare(const struct model_program *program, const struct model_answer *answer,
                    const struct verdict *verdict) {
  long promises = 0;
  for (int a = 0; a < program->count; a++) {
    if (!is_access(&program->calls[a])) continue;
    if (!verdict->tokens[a]) fail(program, "has a token", a, a, true);
    for (int b = a + 1; b < program->count; b++) {
      const enum model_kind kind = program->calls[b].kind;
      const bool ordered = verdict->ordered[b][a], known = verdict->known[b][a];
      const bool exact = !may_be_kept_back(program, b);
      promises += (model_is_operation(kind) && ordered) + known;
      if (model_is_operation(kind) &&
          (exact ? ordered != answer->ordered[a][b] : ordered && !answer->ordered[a][b]))
        fail(program, "ordered", a, b, answer->ordered[a][b]);
      if (known != answer->known[a][b]) fail(program, "known", a, b, answer->known[a][b]);
    }
  }
  return promises;
}

/* ---- the world, anew for each program ---- */

static void make_exec(void **exec) {
  void *stream, *graph;
  const struct order_launch inside = {.buffer = watched};
  check(calls->stream_create(&stream, false, 1), "create stream");
  check(calls->capture_begin(stream), "begin capture");
  struct order_launch launched = inside;
  launched.stream = stream;
  check(calls->launch(&launched), "captured launch");
  if (probe->take()) fail(&(struct model_program){.count = 0}, "captured access has a token", 0, 0, false);
  check(calls->capture_end(stream, &graph), "end capture");
  check(calls->instantiate(exec, graph), "instantiate");
  check(calls->graph_destroy(graph), "destroy graph");
  check(calls->stream_destroy(stream), "destroy stream");
}

static void create_world(void) {
  for (int i = 0; i < WORLD; i++)
    if (world[i].handle > RP_ORDER_STREAM_PER_THREAD)
      check(calls->stream_create(&streams[i], world[i].blocking, pick(3)), "create stream");
  for (int i = 0; i < EVENTS; i++) {
    check(calls->event_create(&events[i]), "create event");
    make_exec(&execs[i]);
  }
}

static void destroy_world(void) {
  check(calls->context_sync(), "synchronise");
  for (int i = 0; i < WORLD; i++)
    if (streams[i]) check(calls->stream_destroy(streams[i]), "destroy stream");
  for (int i = 0; i < EVENTS; i++) {
    check(calls->event_destroy(events[i]), "destroy event");
    check(calls->exec_destroy(execs[i]), "destroy graph");
  }
}

static long run_program(void) {
  struct model_program program;
  struct model_answer answer;
  struct verdict verdict = {.program = &program};
  make_program(&program);
  if (!model_solve(&program, &answer)) return 0; /* too large */
  create_world();
  for (verdict.at = 0; verdict.at < program.count; verdict.at++)
    let(program.calls[verdict.at].thread, step, &verdict);
  destroy_world();
  return compare(&program, &answer, &verdict);
}

long model_mode(uint64_t seed, int programs) {
  pthread_t threads[THREADS];
  long promises = 0;
  random_state = seed * UINT64_C(0x9E3779B97F4A7C15) + 1;
  for (int i = 0; i < THREADS; i++)
    check(pthread_create(&threads[i], NULL, worker, (void *)(intptr_t)(i + 1)), "pthread_create");
  for (int i = 0; i < programs && broken_promises < 10; i++)
    promises += run_program();
  pthread_mutex_lock(&lock);
  turn = -1;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
  for (int i = 0; i < THREADS; i++)
    pthread_join(threads[i], NULL);
  return promises;
}
