/* Owns events. A recording is a place in a stream plus the time it was reached; an event points at its latest
 * recording, waits take the one that is latest when they are called. */
#include "engine_internal.h"
#include <stdlib.h>
#include <time.h>

struct stamp_work {
  struct sim_work work;
  struct sim_record *record;
};

static void unref_record_locked(struct sim_record *record) {
  if (!record || --record->refs > 0) return;
  sim_stream_unref_locked(record->point.stream);
  free(record);
}

static void run_stamp(struct sim_work *work) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  pthread_mutex_lock(&sim_engine_lock);
  ((struct stamp_work *)work)->record->timestamp_ns = now.tv_sec * 1000000000ll + now.tv_nsec;
  pthread_mutex_unlock(&sim_engine_lock);
}

/* Runs on the stream's thread, without the lock; only after a failed append with it, where `record` is NULL.
 */
static void dispose_stamp(struct sim_work *work) {
  struct sim_record *record = ((struct stamp_work *)work)->record;
  if (!record) return;
  pthread_mutex_lock(&sim_engine_lock);
  unref_record_locked(record);
  pthread_mutex_unlock(&sim_engine_lock);
}

CUresult sim_event_record_locked(struct sim_event *event, struct sim_stream *stream) {
  if (stream->capture) return sim_capture_record_locked(event, stream);
  struct sim_record *record = calloc(1, sizeof(*record));
  struct stamp_work *stamp = sim_work_new(sizeof(*stamp), SIM_WORK_STAMP, run_stamp);
  if (!record || !stamp) {
    free(record);
    free(stamp);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  stamp->work.dispose = dispose_stamp;
  CUresult result = sim_stream_append_locked(stream, &stamp->work, NULL, 0, true);
  if (result != CUDA_SUCCESS) {
    free(record);
    return result;
  }
  /* The operation cannot have begun: its thread needs the lock. */
  *record = (struct sim_record){.refs = 2, .point = {.stream = stream, .sequence = stream->enqueued}};
  stamp->record = record;
  sim_stream_ref_locked(stream);
  sim_capture_forget_event_locked(event);
  unref_record_locked(event->record);
  event->record = record;
  return CUDA_SUCCESS;
}

CUresult sim_event_wait_locked(struct sim_event *event, struct sim_stream *stream) {
  if (stream->capture || event->capture) return sim_capture_wait_locked(event, stream);
  if (!event->record) return CUDA_SUCCESS;
  return sim_stream_append_locked(stream, NULL, &event->record->point, 1, true);
}

/* ---- entry points ---- */

CUresult impl_cuEventCreate(CUevent *phEvent, unsigned int Flags) {
  struct sim_context *context;
  CUresult result = sim_engine_enter(&context);
  if (result != CUDA_SUCCESS) return result;
  const unsigned known = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
  bool interprocess_timed = (Flags & CU_EVENT_INTERPROCESS) && !(Flags & CU_EVENT_DISABLE_TIMING);
  if (!phEvent || (Flags & ~known) || interprocess_timed) return CUDA_ERROR_INVALID_VALUE;
  struct sim_event *event = calloc(1, sizeof(*event));
  if (!event) return CUDA_ERROR_OUT_OF_MEMORY;
  event->flags = Flags;
  event->context = context;
  pthread_mutex_lock(&sim_engine_lock);
  bool added = sim_handle_add(&event->handle, SIM_HANDLE_EVENT);
  pthread_mutex_unlock(&sim_engine_lock);
  if (!added) {
    free(event);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *phEvent = (CUevent)event;
  return CUDA_SUCCESS;
}

void sim_event_end_locked(struct sim_event *event) {
  sim_handle_remove(&event->handle);
  sim_capture_forget_event_locked(event);
  unref_record_locked(event->record);
  free(event);
}

struct owned_events {
  const struct sim_context *context;
  struct sim_event *first;
};

static void collect_owned(void *handle, void *argument) {
  struct sim_event *event = handle;
  struct owned_events *owned = argument;
  if (event->context != owned->context) return;
  event->next_owned = owned->first;
  owned->first = event;
}

void sim_event_end_context_locked(const struct sim_context *context) {
  struct owned_events owned = {.context = context};
  sim_handle_each(SIM_HANDLE_EVENT, collect_owned, &owned);
  while (owned.first) {
    struct sim_event *event = owned.first;
    owned.first = event->next_owned;
    sim_event_end_locked(event);
  }
}

CUresult impl_cuEventDestroy_v2(CUevent hEvent) {
  CUresult result = sim_engine_enter_process();
  if (result != CUDA_SUCCESS) return result;
  pthread_mutex_lock(&sim_engine_lock);
  struct sim_event *event = sim_handle_find(hEvent, SIM_HANDLE_EVENT);
  if (event) sim_event_end_locked(event);
  pthread_mutex_unlock(&sim_engine_lock);
  return event ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

/* Both handles of a record or wait. */
static CUresult find_pair_locked(struct sim_context *context, CUevent event_handle, CUstream stream_handle,
                                 struct sim_event **event, struct sim_stream **stream) {
  *event = sim_handle_find(event_handle, SIM_HANDLE_EVENT);
  if (!*event) return CUDA_ERROR_INVALID_HANDLE;
  CUresult result = sim_stream_resolve_locked(context, stream_handle, stream);
  return result == CUDA_SUCCESS ? sim_capture_forbid_implicit_locked(*stream) : result;
}

CUresult impl_cuEventRecordWithFlags(CUevent hEvent, CUstream hStream, unsigned int flags) {
  struct sim_context *context;
  CUresult result = sim_engine_enter(&context);
  if (result != CUDA_SUCCESS) return result;
  if (flags & ~(unsigned)CU_EVENT_RECORD_EXTERNAL) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&sim_engine_lock);
  struct sim_event *event;
  struct sim_stream *stream;
  result = find_pair_locked(context, hEvent, hStream, &event, &stream);
  if (result == CUDA_SUCCESS && event->context->engine != stream->context) result = CUDA_ERROR_INVALID_HANDLE;
  if (result == CUDA_SUCCESS)
    result = flags & CU_EVENT_RECORD_EXTERNAL
                 ? sim_capture_external_locked(event, stream, CU_GRAPH_NODE_TYPE_EVENT_RECORD)
                 : sim_event_record_locked(event, stream);
  pthread_mutex_unlock(&sim_engine_lock);
  sim_graph_notify(context);
  return result;
}

CUresult impl_cuEventRecord(CUevent hEvent, CUstream hStream) {
  return impl_cuEventRecordWithFlags(hEvent, hStream, CU_EVENT_RECORD_DEFAULT);
}

CUresult impl_cuStreamWaitEvent(CUstream hStream, CUevent hEvent, unsigned int Flags) {
  struct sim_context *context;
  CUresult result = sim_engine_enter(&context);
  if (result != CUDA_SUCCESS) return result;
  if (Flags & ~(unsigned)CU_EVENT_WAIT_EXTERNAL) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&sim_engine_lock);
  struct sim_event *event;
  struct sim_stream *stream;
  result = find_pair_locked(context, hEvent, hStream, &event, &stream);
  if (result == CUDA_SUCCESS)
    result = Flags & CU_EVENT_WAIT_EXTERNAL
                 ? sim_capture_external_locked(event, stream, CU_GRAPH_NODE_TYPE_WAIT_EVENT)
                 : sim_event_wait_locked(event, stream);
  pthread_mutex_unlock(&sim_engine_lock);
  sim_graph_notify(context);
  return result;
}

/* Waits for a recording. The event may be destroyed or recorded again meanwhile, so it holds the recording.
 */
static void wait_for_record_locked(struct sim_record *record) {
  record->refs++;
  sim_point_wait_locked(&record->point);
  unref_record_locked(record);
}

/* Query or synchronize; the sticky error of the stream's context comes with it. */
static CUresult look_at_event(CUevent handle, bool wait) {
  pthread_mutex_lock(&sim_engine_lock);
  struct sim_event *event = sim_handle_find(handle, SIM_HANDLE_EVENT);
  CUresult result = CUDA_SUCCESS;
  if (!event)
    result = CUDA_ERROR_INVALID_HANDLE;
  else if (event->capture)
    result = sim_capture_forbid_event_locked(event);
  struct sim_record *record = result == CUDA_SUCCESS ? event->record : NULL;
  struct sim_context *context = record ? event->context : NULL;
  if (record && wait)
    wait_for_record_locked(record);
  else if (record && !sim_point_reached_locked(&record->point))
    result = CUDA_ERROR_NOT_READY;
  pthread_mutex_unlock(&sim_engine_lock);
  return result == CUDA_SUCCESS ? sim_engine_sticky_error(context) : result;
}

/* Asking is unsafe while something is captured, whatever event is asked about. */
CUresult impl_cuEventQuery(CUevent hEvent) {
  struct sim_context *context;
  CUresult result = sim_engine_enter(&context);
  if (result == CUDA_SUCCESS) result = look_at_event(hEvent, false);
  if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY) return result;
  CUresult unsafe = sim_capture_forbid_unsafe();
  return unsafe == CUDA_SUCCESS ? result : unsafe;
}

CUresult impl_cuEventSynchronize(CUevent hEvent) {
  struct sim_context *context;
  CUresult result = sim_engine_enter(&context);
  return result == CUDA_SUCCESS ? look_at_event(hEvent, true) : result;
}

static CUresult elapsed_locked(const struct sim_event *start, const struct sim_event *end,
                               float *milliseconds) {
  if (!start || !end || !start->record || !end->record) return CUDA_ERROR_INVALID_HANDLE;
  if ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING) return CUDA_ERROR_INVALID_HANDLE;
  if (!sim_point_reached_locked(&start->record->point) || !sim_point_reached_locked(&end->record->point))
    return CUDA_ERROR_NOT_READY;
  *milliseconds = (float)(end->record->timestamp_ns - start->record->timestamp_ns) / 1e6f;
  return CUDA_SUCCESS;
}

CUresult impl_cuEventElapsedTime_v2(float *pMilliseconds, CUevent hStart, CUevent hEnd) {
  CUresult result = sim_engine_enter_process();
  if (result != CUDA_SUCCESS) return result;
  if (!pMilliseconds) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&sim_engine_lock);
  result = elapsed_locked(sim_handle_find(hStart, SIM_HANDLE_EVENT), sim_handle_find(hEnd, SIM_HANDLE_EVENT),
                          pMilliseconds);
  pthread_mutex_unlock(&sim_engine_lock);
  return result;
}
