/* Waits that are inserted, marks that are asked, and how long inserted waits took on the device. Owns no
 * memory of its own: events come from device_memory_contexts.c. */
#include <stdlib.h>

#include "cupti/device_memory.h"
#include "cupti/device_memory_internal.h"

static CUstream as_stream(uint64_t stream) {
  return (CUstream)(uintptr_t)stream; /* RP_STREAM_LEGACY and RP_STREAM_PER_THREAD have CUDA's own values */
}

/* RP_ERROR_BUSY where the stream is captured, or cannot be used since another one is. */
static rp_status check_not_captured(const struct rp__device_driver *driver, uint64_t stream) {
  CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
  if (!driver->stream_is_capturing) return RP_OK; /* older than stream capture */
  rp_status status = RP__DEVICE_CALL(driver, stream_is_capturing, as_stream(stream), &capture);
  if (status) return status;
  return capture == CU_STREAM_CAPTURE_STATUS_NONE ? RP_OK : RP_ERROR_BUSY;
}

/* ---- timed waits ---- */

static uint64_t waited_ns, waited_count; /* lock; taken by rp_device_waited_ns */

/* Timing events for one wait, NULL where there is no room for more: that wait is not timed. */
static struct rp__device_timing *take_timing(const struct rp__device_driver *driver,
                                             struct rp__device_context *context) {
  rp__device_lock();
  struct rp__device_timing *timing = context->free_timings;
  bool more = !timing && context->timings < RP__DEVICE_TIMINGS;
  if (timing) context->free_timings = timing->next;
  if (more) context->timings++;
  rp__device_unlock();
  if (more) timing = calloc(1, sizeof *timing);
  if (!timing) return NULL;
  if (!timing->begin) RP__DEVICE_CALL(driver, event_create, &timing->begin, CU_EVENT_DEFAULT);
  if (!timing->end) RP__DEVICE_CALL(driver, event_create, &timing->end, CU_EVENT_DEFAULT);
  return timing;
}

static void keep_timing(struct rp__device_context *context, struct rp__device_timing *timing, bool pending) {
  rp__device_lock();
  struct rp__device_timing **list = pending ? &context->pending_timings : &context->free_timings;
  timing->next = *list;
  *list = timing;
  rp__device_unlock();
}

/* Whether the wait is over (or will never be known); its time is added. */
static bool finish_timing(const struct rp__device_driver *driver, const struct rp__device_timing *timing) {
  float milliseconds = 0;
  if (driver->event_query(timing->end) == CUDA_ERROR_NOT_READY) return false;
  if (driver->event_elapsed(&milliseconds, timing->begin, timing->end) != CUDA_SUCCESS) return true;
  rp__device_lock();
  waited_ns += milliseconds > 0 ? (uint64_t)((double)milliseconds * 1e6) : 0;
  waited_count++;
  rp__device_unlock();
  return true;
}

/* Looks at every wait of a context that is under way. The context is current. */
static void harvest(const struct rp__device_driver *driver, struct rp__device_context *context) {
  rp__device_lock();
  struct rp__device_timing *timing = context->pending_timings;
  context->pending_timings = NULL;
  rp__device_unlock();
  while (timing) {
    struct rp__device_timing *next = timing->next;
    keep_timing(context, timing, !finish_timing(driver, timing));
    timing = next;
  }
}

static void harvest_visited(struct rp__device_context *context, void *argument) {
  const struct rp__device_driver *driver = argument;
  bool switched;
  if (rp__device_switch(driver, context->context, &switched)) return;
  harvest(driver, context);
  rp__device_unswitch(driver, switched);
}

static bool can_time(const struct rp__device_driver *driver) {
  return driver->event_query && driver->event_elapsed && driver->event_create && driver->event_record;
}

uint64_t rp_device_waited_ns(uint64_t *waits) {
  const struct rp__device_driver *driver = rp__device_driver();
  struct rp__device_scope scope;
  *waits = 0;
  if (!driver || !can_time(driver)) return 0;
  rp__device_enter(driver, &scope);
  rp__device_contexts_visit(harvest_visited, (void *)driver);
  rp__device_leave(driver, &scope);
  rp__device_lock();
  uint64_t total = waited_ns;
  *waits = waited_count;
  waited_ns = waited_count = 0;
  rp__device_unlock();
  return total;
}

/* ---- waits ---- */

static rp_status wait_plain(const struct rp__device_driver *driver, uint64_t stream, CUevent event) {
  return RP__DEVICE_CALL(driver, stream_wait_event, as_stream(stream), event, 0);
}

/* The wait between two timing events on its own stream, in the context of that stream. */
static rp_status wait_timed(const struct rp__device_driver *driver, uint64_t stream, CUevent event) {
  CUcontext context = NULL;
  struct rp__device_context *mine = NULL;
  bool switched = false;
  if (!can_time(driver) || RP__DEVICE_CALL(driver, stream_context, as_stream(stream), &context) ||
      rp__device_switch(driver, context, &switched))
    return wait_plain(driver, stream, event);
  struct rp__device_timing *timing = NULL;
  if (rp__device_context_get(driver, context, &mine) == RP_OK) timing = take_timing(driver, mine);
  if (!timing && mine) harvest(driver, mine); /* room for the next */
  bool begun = timing && timing->begin && timing->end &&
               RP__DEVICE_CALL(driver, event_record, timing->begin, as_stream(stream)) == RP_OK;
  rp_status status = wait_plain(driver, stream, event);
  bool ended = begun && RP__DEVICE_CALL(driver, event_record, timing->end, as_stream(stream)) == RP_OK;
  if (timing) keep_timing(mine, timing, ended && status == RP_OK);
  if (mine) rp__device_context_put(mine);
  rp__device_unswitch(driver, switched);
  return status;
}

/* Records an event of ours behind the work of `before`, in its context. */
static rp_status record(const struct rp__device_driver *driver, uint64_t context, uint64_t before,
                        CUevent *event) {
  struct rp__device_context *mine;
  bool switched;
  rp_status status = rp__device_switch(driver, (CUcontext)(uintptr_t)context, &switched);
  if (status) return status;
  status = check_not_captured(driver, before);
  if (status == RP_OK) status = rp__device_context_get(driver, rp__device_current(driver), &mine);
  if (status == RP_OK) {
    status = rp__device_context_event(driver, mine, event);
    if (status == RP_OK) status = RP__DEVICE_CALL(driver, event_record, *event, as_stream(before));
    rp__device_context_put(mine);
  }
  rp__device_unswitch(driver, switched);
  return status;
}

rp_status rp_device_stream_wait(uint64_t context, uint64_t before, uint64_t stream, bool timed,
                                uint64_t *event) {
  const struct rp__device_driver *driver = rp__device_driver();
  struct rp__device_scope scope;
  CUevent made = NULL;
  if (!before || !stream) return RP_ERROR_INVALID;
  if (!driver) return RP_ERROR_UNAVAILABLE;
  rp__device_enter(driver, &scope);
  rp_status status = check_not_captured(driver, stream);
  if (status == RP_OK) status = record(driver, context, before, &made);
  if (status == RP_OK) status = timed ? wait_timed(driver, stream, made) : wait_plain(driver, stream, made);
  rp__device_leave(driver, &scope);
  if (status == RP_OK) *event = (uint64_t)(uintptr_t)made;
  return status;
}

/* ---- marks ---- */

static rp_status place_mark(const struct rp__device_driver *driver, uint64_t stream, uint64_t *mark) {
  struct rp__device_context *mine;
  rp_status status = check_not_captured(driver, stream);
  if (status == RP_OK) status = rp__device_context_get(driver, rp__device_current(driver), &mine);
  if (status) return status;
  struct rp__device_mark *made = rp__device_mark_take(mine);
  if (!made) status = RP_ERROR_NO_MEMORY;
  if (status == RP_OK && !made->event)
    status = RP__DEVICE_CALL(driver, event_create, &made->event, CU_EVENT_DISABLE_TIMING);
  if (status == RP_OK) status = RP__DEVICE_CALL(driver, event_record, made->event, as_stream(stream));
  if (status && made) rp__device_mark_put(made);
  rp__device_context_put(mine);
  if (status == RP_OK) *mark = (uint64_t)(uintptr_t)made;
  return status;
}

rp_status rp_device_mark(uint64_t context, uint64_t stream, uint64_t *mark) {
  const struct rp__device_driver *driver = rp__device_driver();
  struct rp__device_scope scope;
  bool switched;
  if (!stream) return RP_ERROR_INVALID;
  if (!driver) return RP_ERROR_UNAVAILABLE;
  rp__device_enter(driver, &scope);
  rp_status status = rp__device_switch(driver, (CUcontext)(uintptr_t)context, &switched);
  if (status == RP_OK) {
    status = place_mark(driver, stream, mark);
    rp__device_unswitch(driver, switched);
  }
  rp__device_leave(driver, &scope);
  return status;
}

rp_status rp_device_mark_query(uint64_t mark) {
  const struct rp__device_driver *driver = rp__device_driver();
  struct rp__device_mark *asked = (struct rp__device_mark *)(uintptr_t)mark;
  struct rp__device_context *home = driver && mark ? rp__device_mark_use(asked) : NULL;
  struct rp__device_scope scope;
  bool switched;
  if (!home) return RP_ERROR_UNAVAILABLE;
  rp__device_enter(driver, &scope);
  rp_status status = rp__device_switch(driver, home->context, &switched);
  if (status == RP_OK) {
    status = RP__DEVICE_CALL(driver, event_query, asked->event);
    rp__device_unswitch(driver, switched);
  }
  rp__device_leave(driver, &scope);
  rp__device_context_put(home);
  return status;
}

rp_status rp_device_mark_wait(uint64_t mark, uint64_t stream, bool timed) {
  const struct rp__device_driver *driver = rp__device_driver();
  struct rp__device_mark *awaited = (struct rp__device_mark *)(uintptr_t)mark;
  struct rp__device_scope scope;
  if (!mark || !stream) return RP_ERROR_INVALID;
  struct rp__device_context *home = driver ? rp__device_mark_use(awaited) : NULL;
  if (!home) return RP_ERROR_UNAVAILABLE;
  rp__device_enter(driver, &scope);
  rp_status status = check_not_captured(driver, stream);
  if (status == RP_OK)
    status = timed ? wait_timed(driver, stream, awaited->event) : wait_plain(driver, stream, awaited->event);
  rp__device_leave(driver, &scope);
  rp__device_context_put(home);
  return status;
}

void rp_device_mark_drop(uint64_t mark) {
  if (mark) rp__device_mark_put((struct rp__device_mark *)(uintptr_t)mark);
}

rp_status rp_device_synchronize(uint64_t context) {
  const struct rp__device_driver *driver = rp__device_driver();
  struct rp__device_scope scope;
  bool switched;
  if (!driver || !driver->context_synchronize) return RP_ERROR_UNAVAILABLE;
  rp__device_enter(driver, &scope);
  rp_status status = rp__device_switch(driver, (CUcontext)(uintptr_t)context, &switched);
  if (status == RP_OK) {
    status = rp__device_result(rp__device_names.context_synchronize, driver->context_synchronize());
    rp__device_unswitch(driver, switched);
  }
  rp__device_leave(driver, &scope);
  return status;
}
