/* Owns streams: their threads, their queues of operations, the implicit waits of the legacy stream, and the
 * jitter that makes a missing wait show. */
#define _GNU_SOURCE
#include "engine_internal.h"
#include "engine_log.h"
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

#define JITTER_LIMIT_NS 200000u

static uint64_t streams_made, seed;
static bool seed_known;

/* ---- jitter ---- */

static uint64_t mix(uint64_t value) {
  value += 0x9e3779b97f4a7c15u;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

void sim_engine_set_seed(uint64_t value) {
  pthread_mutex_lock(&sim_engine_lock);
  seed = value;
  seed_known = true;
  pthread_mutex_unlock(&sim_engine_lock);
}

uint64_t sim_jitter_start(uint64_t seed_value, uint64_t order) {
  return seed_value ? mix(mix(seed_value) ^ order) | 1 : 0;
}

uint32_t sim_jitter_next_ns(uint64_t *generator) {
  if (!*generator) return 0;
  *generator = mix(*generator) | 1;
  return (*generator >> 8) & 1 ? 0 : (uint32_t)((*generator >> 16) % JITTER_LIMIT_NS);
}

static uint64_t initial_jitter_locked(uint64_t order) {
  if (!seed_known) {
    const char *text = getenv("RPSIM_SEED");
    seed = text ? strtoull(text, NULL, 0) : 0;
    seed_known = true;
  }
  return sim_jitter_start(seed, order);
}

static void jitter(struct sim_stream *stream) {
  uint32_t delay_ns = sim_jitter_next_ns(&stream->jitter);
  if (!delay_ns) return;
  struct timespec pause = {.tv_nsec = delay_ns};
  nanosleep(&pause, NULL);
}

/* ---- life ---- */

void sim_stream_ref_locked(struct sim_stream *stream) {
  stream->refs++;
}

void sim_stream_unref_locked(struct sim_stream *stream) {
  if (--stream->refs > 0) return;
  pthread_cond_destroy(&stream->work_ready);
  pthread_cond_destroy(&stream->progress);
  sim_capture_forget_stream_locked(stream);
  free(stream);
}

struct sim_stream *sim_stream_new_locked(struct sim_engine_context *context, unsigned flags, int priority) {
  struct sim_stream *stream = calloc(1, sizeof(*stream));
  if (!stream || !sim_handle_add(&stream->handle, SIM_HANDLE_STREAM)) {
    free(stream);
    return NULL;
  }
  stream->refs = 1; /* the context's list */
  stream->context = context;
  stream->flags = flags;
  stream->priority = priority;
  stream->id = ++streams_made;
  stream->blocking = !(flags & CU_STREAM_NON_BLOCKING);
  stream->tail = &stream->head;
  stream->jitter = initial_jitter_locked(stream->id);
  pthread_cond_init(&stream->work_ready, NULL);
  pthread_cond_init(&stream->progress, NULL);
  stream->next = context->streams;
  if (stream->next) stream->next->previous = stream;
  context->streams = stream;
  return stream;
}

/* Takes a finished stream out of its context. */
static void unlink_locked(struct sim_stream *stream) {
  if (stream->previous)
    stream->previous->next = stream->next;
  else
    stream->context->streams = stream->next;
  if (stream->next) stream->next->previous = stream->previous;
  stream->context = NULL;
  sim_stream_unref_locked(stream);
}

static void forget_recent_waits_locked(struct sim_stream *stream) {
  for (size_t i = 0; i < stream->recent_wait_count && i < SIM_RECENT_WAITS; i++)
    sim_stream_unref_locked(stream->recent_waits[i].stream);
  stream->recent_wait_count = 0;
}

static void close_sides_locked(struct sim_stream *stream) {
  for (size_t i = 0; i < SIM_SIDES; i++) {
    struct sim_stream *side = stream->sides[i];
    stream->sides[i] = NULL;
    if (!side) continue;
    if (side->context) sim_stream_close_locked(side);
    sim_stream_unref_locked(side);
  }
  stream->last_work = (struct sim_point){0};
}

void sim_stream_close_locked(struct sim_stream *stream) {
  if (stream->closing) return;
  stream->closing = true;
  close_sides_locked(stream);
  forget_recent_waits_locked(stream);
  sim_handle_remove(&stream->handle);
  if (stream->thread_started)
    pthread_cond_signal(&stream->work_ready);
  else
    unlink_locked(stream);
}

/* ---- the stream's thread ---- */

static void drop_operation_locked(struct sim_operation *operation) {
  for (size_t i = 0; i < operation->point_count; i++)
    sim_stream_unref_locked(operation->points[i].stream);
  free(operation);
}

static struct sim_operation *next_operation_locked(struct sim_stream *stream) {
  while (!stream->head && !stream->closing)
    pthread_cond_wait(&stream->work_ready, &sim_engine_lock);
  struct sim_operation *operation = stream->head;
  if (!operation) return NULL;
  stream->head = operation->next;
  if (!stream->head) stream->tail = &stream->head;
  return operation;
}

static void perform(struct sim_stream *stream, struct sim_operation *operation) {
  if (!operation->fixed) jitter(stream);
  if (operation->fixed || atomic_load(&stream->context->sticky) == CUDA_SUCCESS)
    sim_work_execute(operation->work, stream->context);
  sim_work_unref(operation->work);
}

static void *stream_main(void *argument) {
  struct sim_stream *stream = argument;
  sim_context_set_current(stream->context->owner);
  sim_log_stream(stream->id);
  pthread_mutex_lock(&sim_engine_lock);
  struct sim_operation *operation;
  while ((operation = next_operation_locked(stream))) {
    for (size_t i = 0; i < operation->point_count; i++)
      sim_point_wait_locked(&operation->points[i]);
    stream->begun++;
    pthread_cond_broadcast(&stream->progress);
    if (operation->work) {
      pthread_mutex_unlock(&sim_engine_lock);
      perform(stream, operation);
      pthread_mutex_lock(&sim_engine_lock);
    }
    stream->completed++;
    pthread_cond_broadcast(&stream->progress);
    drop_operation_locked(operation);
  }
  struct sim_engine_context *context = stream->context;
  unlink_locked(stream);
  context->thread_count--;
  pthread_cond_broadcast(&context->thread_gone);
  pthread_mutex_unlock(&sim_engine_lock);
  return NULL;
}

/* The thread takes no signals: they belong to the program. SIGSEGV and SIGBUS of its own still arrive. */
static bool start_thread_locked(struct sim_stream *stream) {
  if (stream->thread_started) return true;
  sigset_t all, before;
  sigfillset(&all);
  sigdelset(&all, SIGSEGV);
  sigdelset(&all, SIGBUS);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_t thread;
  int failed = pthread_create(&thread, &attributes, stream_main, stream);
  pthread_attr_destroy(&attributes);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (failed) return false;
  pthread_setname_np(thread, "rpsim-stream");
  stream->thread_started = true;
  stream->context->thread_count++;
  return true;
}

/* ---- points ---- */

bool sim_point_reached_locked(const struct sim_point *point) {
  return (point->begin ? point->stream->begun : point->stream->completed) >= point->sequence;
}

void sim_point_wait_locked(const struct sim_point *point) {
  while (!sim_point_reached_locked(point))
    pthread_cond_wait(&point->stream->progress, &sim_engine_lock);
}

bool sim_stream_idle_locked(struct sim_stream *stream) {
  if (stream->completed < stream->enqueued) return false;
  if (!stream->legacy) return true;
  for (struct sim_stream *other = stream->context->streams; other; other = other->next)
    if (other->blocking && other->completed < other->enqueued) return false;
  return true;
}

/* Waits for what was enqueued by now; the stream may be destroyed meanwhile. */
static void wait_for_enqueued_locked(struct sim_stream *stream) {
  struct sim_point point = {.stream = stream, .sequence = stream->enqueued};
  sim_stream_ref_locked(stream);
  sim_point_wait_locked(&point);
  sim_stream_unref_locked(stream);
}

/* Points of all streams of the context with work left (of the blocking ones only, if so asked); *points is to
 * be freed. Without memory the answer is SIZE_MAX. */
static size_t pending_points_locked(struct sim_engine_context *context, bool only_blocking,
                                    const struct sim_stream *except, struct sim_point **points) {
  size_t count = 0;
  *points = NULL;
  for (struct sim_stream *stream = context->streams; stream; stream = stream->next)
    count += stream->completed < stream->enqueued;
  if (count == 0) return 0;
  *points = calloc(count, sizeof(**points));
  if (!*points) return SIZE_MAX;
  count = 0;
  for (struct sim_stream *stream = context->streams; stream; stream = stream->next)
    if (stream->completed < stream->enqueued && stream != except && (stream->blocking || !only_blocking))
      (*points)[count++] = (struct sim_point){.stream = stream, .sequence = stream->enqueued};
  return count;
}

static void wait_for_all_locked(struct sim_engine_context *context, bool only_blocking) {
  struct sim_point *points;
  size_t count = pending_points_locked(context, only_blocking, NULL, &points);
  if (count == SIZE_MAX) return;
  for (size_t i = 0; i < count; i++)
    sim_stream_ref_locked(points[i].stream);
  for (size_t i = 0; i < count; i++)
    sim_point_wait_locked(&points[i]);
  for (size_t i = 0; i < count; i++)
    sim_stream_unref_locked(points[i].stream);
  free(points);
}

void sim_stream_wait_locked(struct sim_stream *stream) {
  if (stream->legacy)
    wait_for_all_locked(stream->context, true);
  else
    wait_for_enqueued_locked(stream);
}

void sim_context_wait_locked(struct sim_engine_context *context) {
  wait_for_all_locked(context, false);
}

/* ---- enqueueing ---- */

/* A programmatic launch does not wait for the work before it, but for what that stream waits for since. */
static void remember_waits_locked(struct sim_stream *stream, const struct sim_point *points, size_t count) {
  for (size_t i = 0; i < count; i++) {
    if (stream->recent_wait_count >= SIM_RECENT_WAITS) {
      stream->recent_wait_count = SIM_RECENT_WAITS + 1;
      return;
    }
    sim_stream_ref_locked(points[i].stream);
    stream->recent_waits[stream->recent_wait_count++] = points[i];
  }
}

static struct sim_operation *new_operation_locked(struct sim_work *work, const struct sim_point *points,
                                                  size_t point_count, const struct sim_point *implicit,
                                                  size_t implicit_count) {
  size_t total = point_count + implicit_count;
  struct sim_operation *operation = calloc(1, sizeof(*operation) + total * sizeof(operation->points[0]));
  if (!operation) return NULL;
  operation->work = work;
  for (size_t i = 0; i < total; i++) {
    const struct sim_point *point = i < point_count ? &points[i] : &implicit[i - point_count];
    if (sim_point_reached_locked(point)) continue;
    operation->points[operation->point_count++] = *point;
    sim_stream_ref_locked(point->stream);
  }
  return operation;
}

CUresult sim_stream_append_locked(struct sim_stream *stream, struct sim_work *work,
                                  const struct sim_point *points, size_t point_count, bool fixed) {
  struct sim_point *pending = NULL;
  struct sim_point legacy = {.stream = stream->context->legacy,
                             .sequence = stream->context->legacy->enqueued};
  size_t implicit_count = 0;
  const struct sim_point *implicit = &legacy;
  if (stream->legacy) {
    implicit_count = pending_points_locked(stream->context, true, stream, &pending);
    implicit = pending;
  } else if (stream->blocking) {
    implicit_count = 1;
  }
  struct sim_operation *operation = NULL;
  if (implicit_count != SIZE_MAX && start_thread_locked(stream))
    operation = new_operation_locked(work, points, point_count, implicit, implicit_count);
  free(pending);
  if (!operation) {
    sim_work_unref(work);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  operation->fixed = fixed;
  *stream->tail = operation;
  stream->tail = &operation->next;
  stream->enqueued++;
  pthread_cond_signal(&stream->work_ready);
  if (!work) {
    remember_waits_locked(stream, points, point_count);
  } else if (!fixed) {
    forget_recent_waits_locked(stream);
    stream->last_work = (struct sim_point){.stream = stream, .sequence = stream->enqueued};
  }
  return CUDA_SUCCESS;
}

/* ---- programmatic launches ----
 *
 *   stream: ... A ---------- wait for the side --- later work
 *                \ A has begun             /
 *   side:         B -----------------------
 */

static struct sim_stream *next_side_locked(struct sim_stream *stream) {
  struct sim_stream **side = &stream->sides[stream->next_side++ % SIM_SIDES];
  if (*side) return *side;
  *side = sim_stream_new_locked(stream->context, CU_STREAM_NON_BLOCKING, stream->priority);
  if (*side) sim_stream_ref_locked(*side);
  return *side;
}

CUresult sim_stream_append_programmatic_locked(struct sim_stream *stream, struct sim_work *work) {
  bool alone = stream->legacy || !stream->last_work.stream || stream->recent_wait_count > SIM_RECENT_WAITS;
  struct sim_stream *side = alone ? NULL : next_side_locked(stream);
  if (!side) return sim_stream_append_locked(stream, work, NULL, 0, false);
  struct sim_point points[SIM_RECENT_WAITS + 2] = {stream->last_work};
  size_t count = 1;
  points[0].begin = true;
  for (size_t i = 0; i < stream->recent_wait_count; i++)
    points[count++] = stream->recent_waits[i];
  if (stream->blocking)
    points[count++] =
        (struct sim_point){.stream = stream->context->legacy, .sequence = stream->context->legacy->enqueued};
  CUresult result = sim_stream_append_locked(side, work, points, count, false);
  if (result != CUDA_SUCCESS) return result;
  const struct sim_point end = {.stream = side, .sequence = side->enqueued};
  result = sim_stream_append_locked(stream, NULL, &end, 1, true);
  forget_recent_waits_locked(stream);
  stream->last_work = end;
  return result;
}

bool sim_stream_is_capturing(CUstream handle) {
  struct sim_context *context;
  if (sim_engine_enter(&context) != CUDA_SUCCESS) return false;
  pthread_mutex_lock(&sim_engine_lock);
  struct sim_stream *stream = NULL;
  bool capturing = sim_stream_resolve_locked(context, handle, &stream) == CUDA_SUCCESS && stream->capture;
  pthread_mutex_unlock(&sim_engine_lock);
  return capturing;
}

CUresult sim_submit(CUstream handle, struct sim_work *work, enum sim_wait wait) {
  struct sim_context *context;
  CUresult result = sim_engine_enter(&context);
  if (result != CUDA_SUCCESS) {
    sim_work_unref(work);
    return result;
  }
  pthread_mutex_lock(&sim_engine_lock);
  struct sim_stream *stream = NULL;
  result = sim_stream_resolve_locked(context, handle, &stream);
  if (result == CUDA_SUCCESS)
    result =
        wait == SIM_WAIT ? sim_capture_forbid_locked(stream) : sim_capture_forbid_implicit_locked(stream);
  if (result != CUDA_SUCCESS)
    sim_work_unref(work);
  else if (stream->capture)
    result = sim_capture_work_locked(stream, work);
  else
    result = sim_stream_append_locked(stream, work, NULL, 0, false);
  if (result == CUDA_SUCCESS && wait != SIM_RETURN_AT_ONCE && !stream->capture) {
    wait_for_enqueued_locked(stream);
    result = sim_engine_sticky_error(context);
  }
  pthread_mutex_unlock(&sim_engine_lock);
  sim_graph_notify(context);
  return result;
}
