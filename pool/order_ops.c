/* The rules of pool/order: what each call does to clocks. */
#include "pool/order_internal.h"

/* ---- what a stream learns ---- */

/* The clock of the latest operation's start parts from `full` before `full` learns something new. */
static void split_start(struct rp_order *order, struct rp_order_stream *stream) {
  if (stream->split) return;
  rp_order_clock_copy(order, stream->start, stream->full);
  stream->split = true;
}

/* The stream's clock changed: its context knows at once, so that waiting for all streams need not visit them.
 */
static void publish(struct rp_order *order, struct rp_order_stream *stream) {
  stream->version = ++order->tick;
  struct rp_order_context *context = rp_order_context_of(order, stream);
  if (!context) return;
  rp_order_clock_join(order, context->all, stream->full);
  if (!stream->blocking) return;
  if (rp_order_clock_join(order, context->blocking, stream->full)) context->blocking_version = ++order->tick;
}

static void join_stream(struct rp_order *order, struct rp_order_stream *stream, const uint64_t *clock) {
  split_start(order, stream);
  if (rp_order_clock_join(order, stream->full, clock)) publish(order, stream);
}

/* What the calling thread knows has happened before the call, and so before what the call begins. */
static void join_thread(struct rp_order *order, struct rp_order_stream *stream, uint64_t thread) {
  const struct rp_order_thread *caller = rp_order_find_thread(order, thread);
  if (!caller || stream->seen_thread == caller->version) return;
  join_stream(order, stream, caller->clock);
  stream->seen_thread = caller->version;
}

/* The implicit waits of the legacy stream for the blocking ones, and of those for it. */
static void join_default_streams(struct rp_order *order, struct rp_order_stream *stream) {
  const struct rp_order_context *context = rp_order_context_of(order, stream);
  if (!context) return;
  if (stream->legacy && stream->seen_blocking != context->blocking_version) {
    stream->seen_blocking = context->blocking_version;
    join_stream(order, stream, context->blocking);
  } else if (stream->blocking && context->legacy != RP_ORDER_NO_SLOT) {
    const struct rp_order_stream *legacy = &order->stream[context->legacy];
    if (stream->seen_legacy == legacy->version) return;
    stream->seen_legacy = legacy->version;
    join_stream(order, stream, legacy->full);
  }
}

/* Everything an ordinary call on the stream comes after, besides the stream itself. */
static void join_before(struct rp_order *order, struct rp_order_stream *stream, uint64_t thread) {
  join_thread(order, stream, thread);
  join_default_streams(order, stream);
}

/* A programmatic launch begins after the start of the operation before it and after the call, no more. */
static void begin_programmatic(struct rp_order *order, struct rp_order_stream *stream, uint64_t thread) {
  const struct rp_order_thread *caller = rp_order_find_thread(order, thread);
  if (!caller) return;
  split_start(order, stream);
  rp_order_clock_join(order, stream->start, caller->clock);
  if (stream->component != RP_ORDER_NO_SLOT && stream->start_own < caller->clock[stream->component])
    stream->start_own = caller->clock[stream->component];
  if (rp_order_clock_join(order, stream->full, caller->clock)) publish(order, stream);
}

/* The clock of the stream's start is now all that came before the operation that is told. */
static void begin_ordinary(struct rp_order *order, struct rp_order_stream *stream, uint64_t thread) {
  join_before(order, stream, thread);
  stream->split = false;
  stream->start_own =
      stream->component == RP_ORDER_NO_SLOT ? 0 : order->component[stream->component].position;
}

static void begin(struct rp_order *order, struct rp_order_stream *stream, const struct rp_order_site *site) {
  if (site->flags & RP_ORDER_PROGRAMMATIC)
    begin_programmatic(order, stream, site->thread);
  else
    begin_ordinary(order, stream, site->thread);
}

/* ---- capture ---- */

static bool is_captured(struct rp_order *order, const struct rp_order_site *site,
                        const struct rp_order_stream *stream) {
  if (!(site->flags & RP_ORDER_CAPTURED) && !(stream && stream->capture)) return false;
  order->counts.captured++;
  return true;
}

void rp_order_capture_begin(struct rp_order *order, const struct rp_order_site *site) {
  struct rp_order_stream *stream = rp_order_get_stream(order, site);
  order->captures_active++;
  if (stream)
    stream->capture = ++order->tick;
  else
    order->capture_lost = true; /* events recorded in this capture will not be known as captured */
}

#define ALL_CAPTURES 0

/* Frees the streams and forgets the events of one capture, or of all. */
static void forget_capture(struct rp_order *order, uint64_t capture) {
  for (uint32_t i = 0; i < order->limits.streams; i++)
    if (capture == ALL_CAPTURES || order->stream[i].capture == capture) order->stream[i].capture = 0;
  for (uint32_t i = 0; i < order->limits.events; i++) {
    struct rp_order_event *event = &order->event[i];
    if (event->state == RP_ORDER_EVENT_FREE || !event->capture) continue;
    if (capture != ALL_CAPTURES && event->capture != capture) continue;
    event->capture = 0;
    if (event->state == RP_ORDER_EVENT_CAPTURED) rp_order_drop_event(order, order->events.keys[i].handle);
  }
}

void rp_order_capture_end(struct rp_order *order, const struct rp_order_site *site) {
  struct rp_order_stream *stream = rp_order_find_stream(order, site);
  if (order->captures_active) order->captures_active--;
  if (stream && stream->capture && stream->capture != RP_ORDER_CAPTURE_LOST)
    forget_capture(order, stream->capture);
  if (order->captures_active) return;
  order->capture_lost = false;
  forget_capture(order, ALL_CAPTURES); /* also those whose first stream was destroyed meanwhile */
}

/* ---- work ---- */

/* A component for the stream's accesses. The start of what came before lies before all of them: start_own
 * stays. */
static bool need_component(struct rp_order *order, struct rp_order_stream *stream,
                           const struct rp_order_site *site) {
  if (stream->component != RP_ORDER_NO_SLOT) return true;
  const struct rp_order_context *context = rp_order_context_of(order, stream);
  const uint64_t thread = site->stream == RP_ORDER_STREAM_PER_THREAD ? site->thread : 0;
  stream->component = rp_order_component_take(order, context ? context->id : 0, site->stream, thread);
  return stream->component != RP_ORDER_NO_SLOT;
}

/* The operation that just began is an access: the stream's clock says so to all that come after it. */
static rp_order_token step(struct rp_order *order, struct rp_order_stream *stream) {
  rp_order_token token = rp_order_component_step(order, stream->component);
  if (token == RP_ORDER_TOKEN_UNKNOWN) return token;
  const uint64_t position = rp_order_token_position(token);
  const uint32_t own = stream->component;
  stream->full[own] = position;
  stream->version = ++order->tick;
  struct rp_order_context *context = rp_order_context_of(order, stream);
  if (!context) return token;
  context->all[own] = position;
  if (!stream->blocking) return token;
  context->blocking[own] = position;
  context->blocking_version = ++order->tick;
  return token;
}

rp_order_token rp_order_access(struct rp_order *order, const struct rp_order_site *site) {
  order->counts.operations++;
  struct rp_order_stream *stream = rp_order_get_stream(order, site);
  if (is_captured(order, site, stream) || !stream) return RP_ORDER_TOKEN_UNKNOWN;
  const bool known = need_component(order, stream, site);
  begin(order, stream, site);
  return known ? step(order, stream) : RP_ORDER_TOKEN_UNKNOWN;
}

/* Does the stream carry order already, or has it something to learn? Only then is it worth a place. */
static struct rp_order_stream *stream_that_matters(struct rp_order *order, const struct rp_order_site *site) {
  struct rp_order_stream *stream = rp_order_find_stream(order, site);
  const bool learns =
      rp_order_find_thread(order, site->thread) || rp_order_find_context(order, site->context);
  return stream || !learns ? stream : rp_order_get_stream(order, site);
}

void rp_order_work(struct rp_order *order, const struct rp_order_site *site) {
  order->counts.operations++;
  struct rp_order_stream *stream = stream_that_matters(order, site);
  if (!is_captured(order, site, stream) && stream) begin(order, stream, site);
}

rp_order_token rp_order_graph_launch(struct rp_order *order, const struct rp_order_site *site,
                                     uint64_t exec) {
  order->counts.operations++;
  struct rp_order_stream *stream = rp_order_get_stream(order, site);
  if (is_captured(order, site, stream) || !stream) return RP_ORDER_TOKEN_UNKNOWN;
  const bool known = need_component(order, stream, site);
  const struct rp_order_graph *before = rp_order_find_graph(order, exec);
  if (before) join_stream(order, stream, before->clock);
  begin_ordinary(order, stream, site->thread);
  rp_order_token token = known ? step(order, stream) : RP_ORDER_TOKEN_UNKNOWN;
  rp_order_clock_copy(order, rp_order_get_graph(order, exec)->clock, stream->full);
  return token;
}

/* ---- the host waits ---- */

static void thread_learns(struct rp_order *order, uint64_t thread, const uint64_t *clock) {
  struct rp_order_thread *knows = rp_order_get_thread(order, thread);
  if (knows && rp_order_clock_join(order, knows->clock, clock)) knows->version = ++order->tick;
}

rp_order_token rp_order_host_access(struct rp_order *order, uint64_t thread) {
  order->counts.operations++;
  struct rp_order_thread *host = rp_order_get_thread(order, thread);
  if (!host) return RP_ORDER_TOKEN_UNKNOWN;
  if (host->component == RP_ORDER_NO_SLOT) host->component = rp_order_component_take(order, 0, 0, thread);
  if (host->component == RP_ORDER_NO_SLOT) return RP_ORDER_TOKEN_UNKNOWN;
  rp_order_token token = rp_order_component_step(order, host->component);
  if (token != RP_ORDER_TOKEN_UNKNOWN) host->clock[host->component] = rp_order_token_position(token);
  host->version = ++order->tick;
  return token;
}

void rp_order_sync_stream(struct rp_order *order, const struct rp_order_site *site) {
  const struct rp_order_stream *stream = rp_order_find_stream(order, site);
  if (is_captured(order, site, stream)) return;
  if (stream) thread_learns(order, site->thread, stream->full);
  if (site->stream != RP_ORDER_STREAM_LEGACY) return;
  const struct rp_order_context *context = rp_order_find_context(order, site->context);
  if (context) thread_learns(order, site->thread, context->blocking);
}

void rp_order_sync_event(struct rp_order *order, uint64_t thread, uint64_t event) {
  const struct rp_order_event *found = rp_order_find_event(order, event);
  if (found && found->state == RP_ORDER_EVENT_RECORDED && !order->foreign_lost)
    thread_learns(order, thread, found->clock);
}

void rp_order_sync_context(struct rp_order *order, uint64_t thread, uint64_t context) {
  const struct rp_order_context *found = rp_order_find_context(order, context);
  if (found) thread_learns(order, thread, found->all);
}

static bool host_waits(enum rp_order_copy kind) {
  switch (kind) {
  case RP_ORDER_COPY_PINNED_TO_DEVICE:
  case RP_ORDER_COPY_DEVICE_TO_HOST:
  case RP_ORDER_COPY_HOST_TO_HOST:
    return true;
  case RP_ORDER_COPY_UNKNOWN:
  case RP_ORDER_COPY_PAGEABLE_TO_DEVICE:
  case RP_ORDER_COPY_DEVICE_TO_DEVICE:
    break;
  }
  return false;
}

rp_order_token rp_order_copy_sync(struct rp_order *order, const struct rp_order_site *site,
                                  enum rp_order_copy kind) {
  struct rp_order_site ordinary = *site;
  ordinary.flags &= ~RP_ORDER_PROGRAMMATIC;
  rp_order_token token = rp_order_access(order, &ordinary);
  const struct rp_order_stream *stream = rp_order_find_stream(order, site);
  const bool captured = (site->flags & RP_ORDER_CAPTURED) || (stream && stream->capture);
  if (stream && !captured && host_waits(kind)) thread_learns(order, site->thread, stream->full);
  return token;
}

/* ---- events ---- */

void rp_order_event_unknown(struct rp_order *order, uint64_t event) {
  const struct rp_order_event *found = rp_order_find_event(order, event);
  if (found && found->state != RP_ORDER_EVENT_FOREIGN) rp_order_drop_event(order, event);
}

void rp_order_event_destroy(struct rp_order *order, uint64_t event) {
  rp_order_drop_event(order, event);
}

void rp_order_event_foreign(struct rp_order *order, uint64_t event) {
  struct rp_order_event *found = rp_order_get_event(order, event);
  if (found)
    found->state = RP_ORDER_EVENT_FOREIGN;
  else
    order->foreign_lost = true;
}

/* A record that becomes part of a graph: waits for it draw streams into the capture. */
static void record_captured(struct rp_order *order, const struct rp_order_stream *stream, uint64_t event) {
  rp_order_event_unknown(order, event);
  if (!stream || !stream->capture) return;
  struct rp_order_event *found = rp_order_get_event(order, event);
  if (!found) {
    order->capture_lost = true;
    return;
  }
  found->capture = stream->capture;
  if (found->state != RP_ORDER_EVENT_FOREIGN) found->state = RP_ORDER_EVENT_CAPTURED;
}

static void copy_start(const struct rp_order *order, uint64_t *clock, const struct rp_order_stream *stream) {
  rp_order_clock_copy(order, clock, stream->split ? stream->start : stream->full);
  if (stream->component != RP_ORDER_NO_SLOT) clock[stream->component] = stream->start_own;
}

void rp_order_event_record(struct rp_order *order, const struct rp_order_site *site, uint64_t event,
                           enum rp_order_record kind) {
  struct rp_order_stream *stream = stream_that_matters(order, site);
  if (is_captured(order, site, stream)) {
    record_captured(order, stream, event);
    return;
  }
  if (!stream || kind == RP_ORDER_RECORD_LAUNCHED) {
    rp_order_event_unknown(order, event); /* what was recorded before does not count any more */
    return;
  }
  if (kind == RP_ORDER_RECORD_STREAM) join_before(order, stream, site->thread);
  struct rp_order_event *found = rp_order_get_event(order, event);
  if (!found) return;
  found->capture = 0;
  if (found->state == RP_ORDER_EVENT_FOREIGN) return;
  found->state = RP_ORDER_EVENT_RECORDED;
  if (kind == RP_ORDER_RECORD_STREAM)
    rp_order_clock_copy(order, found->clock, stream->full);
  else
    copy_start(order, found->clock, stream);
}

/* The stream waits for something captured: it now belongs to that capture. */
static void draw_into_capture(struct rp_order *order, const struct rp_order_site *site, uint64_t capture) {
  struct rp_order_stream *stream = rp_order_get_stream(order, site);
  order->counts.captured++;
  if (stream)
    stream->capture = capture;
  else
    order->capture_lost = true;
}

void rp_order_event_wait(struct rp_order *order, const struct rp_order_site *site, uint64_t event) {
  if (is_captured(order, site, rp_order_find_stream(order, site))) return;
  const struct rp_order_event *found = rp_order_find_event(order, event);
  if (!found) {
    if (order->capture_lost && order->captures_active) draw_into_capture(order, site, RP_ORDER_CAPTURE_LOST);
  } else if (found->capture) {
    draw_into_capture(order, site, found->capture);
  } else if (found->state == RP_ORDER_EVENT_RECORDED && !order->foreign_lost) {
    struct rp_order_stream *stream = rp_order_get_stream(order, site);
    if (!stream) return;
    join_before(order, stream, site->thread);
    join_stream(order, stream, found->clock);
  }
}
