/* The rules of pool/order: what each call does to clocks. What a call comes after is computed when it begins,
 * into a clock of its own; what it did is told to the stream, event or thread when it ends. */
#include "pool/order_internal.h"

/* ---- what a stream learns ---- */

/* The clock of the latest operation's start parts from `full` before `full` learns something new. */
static void split_start(struct rp_order *order, struct rp_order_stream *stream) {
  if (stream->split) return;
  rp_order_clock_copy(order, stream->start, stream->full);
  stream->split = true;
}

static void blocking_changed(struct rp_order *order, struct rp_order_context *context) {
  context->blocking_version = ++order->tick;
  context->blocking_told = true;
}

/* The stream's clock changed: its context knows at once, so that waiting for all streams need not visit them.
 */
static void publish(struct rp_order *order, struct rp_order_stream *stream) {
  stream->version = ++order->tick;
  struct rp_order_context *context = rp_order_context_of(order, stream);
  if (!context) return;
  rp_order_clock_join(order, context->all, stream->full);
  if (!stream->blocking) return;
  if (rp_order_clock_join(order, context->blocking, stream->full)) blocking_changed(order, context);
}

/* Something that is no operation: the start of the latest operation stays where it was. */
void rp_order_stream_join(struct rp_order *order, struct rp_order_stream *stream, const uint64_t *clock) {
  if (rp_order_clock_covers(order, stream->full, clock)) return;
  split_start(order, stream);
  rp_order_clock_join(order, stream->full, clock);
  publish(order, stream);
}

/* `clock` is in the stream's own now: what was joined into it need not be again. */
static void note_seen(struct rp_order_stream *stream, const struct rp_order_pending *call) {
  if (call->seen_thread) stream->seen_thread = call->seen_thread;
  if (call->seen_legacy) stream->seen_legacy = call->seen_legacy;
  if (call->seen_blocking) stream->seen_blocking = call->seen_blocking;
}

/* ---- what a call comes after ---- */

static void remember_stream(const struct rp_order *order, struct rp_order_pending *call,
                            const struct rp_order_stream *stream) {
  if (!stream) return;
  call->stream = (uint32_t)(stream - order->stream);
  call->component = stream->component;
  if (stream->component != RP_ORDER_NO_SLOT) call->position = order->component[stream->component].position;
}

/* What the calling thread knows has happened before the call, and so before what the call begins. */
static void after_thread(const struct rp_order *order, struct rp_order_pending *call,
                         const struct rp_order_stream *stream) {
  const struct rp_order_thread *caller = rp_order_find_thread(order, call->site.thread);
  if (!caller || (stream && stream->seen_thread == caller->version)) return;
  rp_order_clock_join(order, call->clock, caller->clock);
  call->seen_thread = caller->version;
}

/* The implicit waits of the legacy stream for the blocking ones, and of those for it. */
static void after_default_streams(const struct rp_order *order, struct rp_order_pending *call,
                                  const struct rp_order_stream *stream) {
  const struct rp_order_context *context = stream ? rp_order_context_of(order, stream) : NULL;
  if (!context) return;
  if (stream->legacy && stream->seen_blocking != context->blocking_version) {
    call->seen_blocking = context->blocking_version;
    rp_order_clock_join(order, call->clock, context->blocking);
  } else if (stream->blocking && context->legacy != RP_ORDER_NO_SLOT) {
    const struct rp_order_stream *legacy = &order->stream[context->legacy];
    if (stream->seen_legacy == legacy->version) return;
    call->seen_legacy = legacy->version;
    rp_order_clock_join(order, call->clock, legacy->full);
  }
}

/* Everything an ordinary call on the stream comes after. */
static void after_stream(const struct rp_order *order, struct rp_order_pending *call,
                         const struct rp_order_stream *stream) {
  if (stream)
    rp_order_clock_copy(order, call->clock, stream->full);
  else
    rp_order_clock_clear(order, call->clock);
  after_thread(order, call, stream);
  after_default_streams(order, call, stream);
}

void rp_order_copy_start(const struct rp_order *order, uint64_t *clock,
                         const struct rp_order_stream *stream) {
  rp_order_clock_copy(order, clock, stream->split ? stream->start : stream->full);
  if (stream->component != RP_ORDER_NO_SLOT) clock[stream->component] = stream->start_own;
}

/* A programmatic launch begins after the start of the operation before it and after the call, no more. */
static void after_start(const struct rp_order *order, struct rp_order_pending *call,
                        const struct rp_order_stream *stream) {
  const struct rp_order_thread *caller = rp_order_find_thread(order, call->site.thread);
  if (stream)
    rp_order_copy_start(order, call->clock, stream);
  else
    rp_order_clock_clear(order, call->clock);
  if (caller) rp_order_clock_join(order, call->clock, caller->clock);
}

static void start_of_work(const struct rp_order *order, struct rp_order_pending *call,
                          const struct rp_order_stream *stream) {
  if (call->site.flags & RP_ORDER_PROGRAMMATIC)
    after_start(order, call, stream);
  else
    after_stream(order, call, stream);
}

/* ---- capture ---- */

static bool is_captured(const struct rp_order_pending *call, const struct rp_order_stream *stream) {
  return call->captured || (call->site.flags & RP_ORDER_CAPTURED) || (stream && stream->capture);
}

static bool count_captured(struct rp_order *order, const struct rp_order_pending *call,
                           const struct rp_order_stream *stream) {
  const bool captured = is_captured(call, stream);
  order->counts.captured += captured;
  return captured;
}

/* ---- work ---- */

/* The stream if it carries order already or has something to learn: only then is it worth a place. */
static struct rp_order_stream *stream_that_matters(struct rp_order *order, struct rp_order_pending *call) {
  const struct rp_order_site *site = &call->site;
  struct rp_order_stream *stream = rp_order_find_stream(order, site);
  if (stream) return stream;
  if (!rp_order_find_thread(order, site->thread) && !rp_order_find_context(order, site->context)) return NULL;
  stream = rp_order_get_stream(order, site);
  call->no_room = !stream;
  return stream;
}

/* The stream of a call that has ended: the one it had when it began. */
static struct rp_order_stream *stream_now(struct rp_order *order, struct rp_order_pending *call,
                                          bool needed) {
  if (call->gone || call->no_room) return NULL;
  if (call->stream != RP_ORDER_NO_SLOT) return &order->stream[call->stream];
  return needed ? rp_order_get_stream(order, &call->site) : stream_that_matters(order, call);
}

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

/* The clock of the stream's start is now all that came before the operation that is told. */
static void start_with(struct rp_order *order, struct rp_order_stream *stream, const uint64_t *clock) {
  stream->split = !rp_order_clock_covers(order, clock, stream->full);
  if (stream->split) rp_order_clock_copy(order, stream->start, clock);
  stream->start_own = stream->component == RP_ORDER_NO_SLOT ? 0 : clock[stream->component];
}

static void begun(struct rp_order *order, struct rp_order_stream *stream,
                  const struct rp_order_pending *call) {
  const bool programmatic = call->kind == RP_ORDER_WORK && (call->site.flags & RP_ORDER_PROGRAMMATIC) != 0;
  const struct rp_order_thread *caller = rp_order_find_thread(order, call->site.thread);
  const uint64_t *learnt = programmatic ? (caller ? caller->clock : NULL) : call->clock;
  if (learnt && rp_order_clock_join(order, stream->full, learnt)) publish(order, stream);
  if (!programmatic) note_seen(stream, call);
  start_with(order, stream, call->clock);
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
  blocking_changed(order, context);
  return token;
}

/* The work just told waits for something outside; unknown: nobody will be able to say whether it still does.
 */
static void note_outside(struct rp_order *order, rp_order_token token) {
  if (token == RP_ORDER_TOKEN_UNKNOWN) {
    order->outside_lost = true;
    return;
  }
  struct rp_order_component *component = &order->component[rp_order_token_component(token)];
  const uint64_t position = rp_order_token_position(token);
  const uint64_t last = component->outside_last;
  bool over = last <= component->base;
  for (uint32_t i = 0; !over && i < order->limits.threads; i++)
    over = order->thread[i].clock[rp_order_token_component(token)] >= last;
  if (over) component->outside_first = position;
  component->outside_last = position;
}

static rp_order_token end_work(struct rp_order *order, struct rp_order_pending *call, bool access) {
  order->counts.operations++;
  const bool outside = (call->site.flags & RP_ORDER_OUTSIDE) != 0, placed = access || outside;
  struct rp_order_stream *stream = stream_now(order, call, placed);
  const bool captured = count_captured(order, call, stream);
  order->outside_captured |= captured && outside;
  if (captured) return RP_ORDER_TOKEN_UNKNOWN;
  const bool known = stream && placed && need_component(order, stream, &call->site);
  if (stream) begun(order, stream, call);
  rp_order_token token = known ? step(order, stream) : RP_ORDER_TOKEN_UNKNOWN;
  if (outside) note_outside(order, token);
  return token;
}

/* Was the access the next one of its stream after the call began? If others came between, of other threads,
 * knowing that it is complete would say the same of them. */
static bool was_next(const struct rp_order *order, const struct rp_order_pending *call,
                     rp_order_token token) {
  if (token == RP_ORDER_TOKEN_UNKNOWN) return false;
  const uint32_t own = rp_order_token_component(token);
  const uint64_t before = call->component == own ? call->position : order->component[own].base;
  return rp_order_token_position(token) == before + 1;
}

static void begin_graph(struct rp_order *order, struct rp_order_pending *call) {
  order->outside_begun += order->outside_captured;
  const struct rp_order_stream *stream = rp_order_get_stream(order, &call->site);
  call->no_room = !stream;
  const struct rp_order_graph *before = rp_order_find_graph(order, call->object);
  remember_stream(order, call, stream);
  call->captured = is_captured(call, stream);
  after_stream(order, call, stream);
  if (before) rp_order_clock_join(order, call->clock, before->clock);
}

/* Launches of one executable come one after the other, so that it knows what any of them came after. */
static void remember_graph(struct rp_order *order, struct rp_order_pending *call, rp_order_token token) {
  struct rp_order_graph *graph = rp_order_find_graph(order, call->object);
  if (was_next(order, call, token))
    call->clock[rp_order_token_component(token)] = rp_order_token_position(token);
  if (graph)
    rp_order_clock_join(order, graph->clock, call->clock);
  else
    rp_order_clock_copy(order, rp_order_get_graph(order, call->object)->clock, call->clock);
}

static rp_order_token end_graph(struct rp_order *order, struct rp_order_pending *call, bool access) {
  order->counts.operations++;
  struct rp_order_stream *stream = stream_now(order, call, true);
  if (count_captured(order, call, stream) || !stream) return RP_ORDER_TOKEN_UNKNOWN;
  const bool known = access && need_component(order, stream, &call->site);
  begun(order, stream, call);
  rp_order_token token = known ? step(order, stream) : RP_ORDER_TOKEN_UNKNOWN;
  if (order->outside_captured) note_outside(order, token);
  if (!call->spoiled) remember_graph(order, call, token);
  return token;
}

/* ---- the host waits ---- */

void rp_order_thread_learns(struct rp_order *order, uint64_t thread, const uint64_t *clock) {
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

static void begin_sync_stream(struct rp_order *order, struct rp_order_pending *call) {
  const struct rp_order_stream *stream = rp_order_find_stream(order, &call->site);
  const struct rp_order_context *context =
      call->site.stream == RP_ORDER_STREAM_LEGACY ? rp_order_find_context(order, call->site.context) : NULL;
  call->captured = is_captured(call, stream);
  call->empty = !stream && !context;
  if (stream)
    rp_order_clock_copy(order, call->clock, stream->full);
  else
    rp_order_clock_clear(order, call->clock);
  if (context) rp_order_clock_join(order, call->clock, context->blocking);
}

static void begin_sync_event(struct rp_order *order, struct rp_order_pending *call) {
  const struct rp_order_event *event = rp_order_find_event(order, call->object);
  call->spoiled = rp_order_recording(order, call->object);
  call->empty = !event || event->state != RP_ORDER_EVENT_RECORDED;
  if (!call->empty) rp_order_clock_copy(order, call->clock, event->clock);
}

static void begin_sync_context(const struct rp_order *order, struct rp_order_pending *call) {
  const struct rp_order_context *context = rp_order_find_context(order, call->site.context);
  call->empty = !context;
  if (context) rp_order_clock_copy(order, call->clock, context->all);
}

static void end_sync(struct rp_order *order, const struct rp_order_pending *call) {
  const bool distrusted = call->kind == RP_ORDER_SYNC_EVENT && order->foreign_lost;
  if (call->kind == RP_ORDER_SYNC_STREAM && call->captured) order->counts.captured++;
  if (!call->captured && !call->empty && !call->spoiled && !distrusted)
    rp_order_thread_learns(order, call->site.thread, call->clock);
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

rp_order_token rp_order_copy_end(struct rp_order *order, struct rp_order_pending *call,
                                 enum rp_order_copy kind, bool access) {
  const struct rp_order_stream *stream = stream_now(order, call, access);
  const bool waited = stream && !is_captured(call, stream) && host_waits(kind);
  rp_order_token token = end_work(order, call, access);
  if (!waited) return token;
  if (was_next(order, call, token))
    call->clock[rp_order_token_component(token)] = rp_order_token_position(token);
  rp_order_thread_learns(order, call->site.thread, call->clock);
  return token;
}

/* ---- events ---- */

void rp_order_event_unknown(struct rp_order *order, uint64_t event) {
  const struct rp_order_event *found = rp_order_find_event(order, event);
  rp_order_spoil_event(order, event, 0);
  if (found && found->state != RP_ORDER_EVENT_FOREIGN) rp_order_drop_event(order, event);
}

void rp_order_event_destroy(struct rp_order *order, uint64_t event) {
  rp_order_spoil_event(order, event, 0);
  rp_order_drop_event(order, event);
}

void rp_order_event_foreign(struct rp_order *order, uint64_t event) {
  struct rp_order_event *found = rp_order_get_event(order, event);
  rp_order_spoil_event(order, event, 0);
  if (found)
    found->state = RP_ORDER_EVENT_FOREIGN;
  else
    order->foreign_lost = true;
}

void rp_order_event_store(struct rp_order *order, uint64_t event, const uint64_t *clock) {
  struct rp_order_event *found = rp_order_get_event(order, event);
  if (!found) return;
  found->capture = 0;
  if (found->state == RP_ORDER_EVENT_FOREIGN) return;
  found->state = RP_ORDER_EVENT_RECORDED;
  rp_order_clock_copy(order, found->clock, clock);
}

static void begin_record(struct rp_order *order, struct rp_order_pending *call) {
  const struct rp_order_stream *stream =
      call->kind == RP_ORDER_UNFOLLOWED_RECORD ? NULL : stream_that_matters(order, call);
  remember_stream(order, call, stream);
  call->captured = is_captured(call, stream);
  call->spoiled = rp_order_recording(order, call->object);
  call->empty =
      !stream || call->kind == RP_ORDER_COMPLETION_RECORD || call->kind == RP_ORDER_UNFOLLOWED_RECORD;
  rp_order_spoil_event(order, call->object, stream ? stream->capture : 0);
  if (call->kind == RP_ORDER_RECORD)
    after_stream(order, call, stream);
  else if (call->kind == RP_ORDER_START_RECORD)
    start_of_work(order, call, stream);
}

/* Two records at once: either may be the latest. One that was captured keeps drawing streams in. */
static void forget_spoiled(struct rp_order *order, uint64_t event) {
  const struct rp_order_event *found = rp_order_find_event(order, event);
  if (!found || !found->capture) rp_order_event_unknown(order, event);
}

static void end_record(struct rp_order *order, struct rp_order_pending *call) {
  struct rp_order_stream *stream = call->stream == RP_ORDER_NO_SLOT ? NULL : stream_now(order, call, false);
  if (count_captured(order, call, stream)) {
    rp_order_record_captured(order, stream, call->object);
    return;
  }
  if (stream && call->kind == RP_ORDER_RECORD) {
    rp_order_stream_join(order, stream, call->clock);
    note_seen(stream, call);
  }
  if (call->spoiled)
    forget_spoiled(order, call->object);
  else if (call->empty || !stream)
    rp_order_event_unknown(order, call->object); /* what was recorded before does not count any more */
  else
    rp_order_event_store(order, call->object, call->clock);
}

static void begin_wait(struct rp_order *order, struct rp_order_pending *call) {
  const struct rp_order_event *event = rp_order_find_event(order, call->object);
  struct rp_order_stream *stream = rp_order_find_stream(order, &call->site);
  call->captured = is_captured(call, stream);
  call->empty = true;
  if (call->captured) return;
  call->spoiled = rp_order_recording(order, call->object);
  rp_order_capture_draw(order, call, event);
  if (!event || event->capture || event->state != RP_ORDER_EVENT_RECORDED || order->foreign_lost) return;
  stream = rp_order_get_stream(order, &call->site);
  if (!stream) return;
  call->empty = false;
  remember_stream(order, call, stream);
  after_stream(order, call, stream);
  rp_order_clock_join(order, call->clock, event->clock);
}

static void end_wait(struct rp_order *order, struct rp_order_pending *call) {
  if (call->captured) order->counts.captured++;
  if (call->captured || call->empty || call->spoiled || call->gone || order->foreign_lost) return;
  struct rp_order_stream *stream = &order->stream[call->stream];
  if (stream->capture) return;
  rp_order_stream_join(order, stream, call->clock);
  note_seen(stream, call);
}

/* ---- milestones ---- */

static void begin_milestone(struct rp_order *order, struct rp_order_pending *call) {
  const struct rp_order_stream *stream = rp_order_find_stream(order, &call->site);
  remember_stream(order, call, stream);
  call->captured = is_captured(call, stream);
  call->spoiled = rp_order_outside_goes_on(order);
  call->outside = order->outside_begun;
  after_stream(order, call, stream);
}

static void end_milestone(struct rp_order *order, const struct rp_order_pending *call) {
  if (call->stream == RP_ORDER_NO_SLOT || call->component == RP_ORDER_NO_SLOT || call->gone) return;
  struct rp_order_stream *stream = &order->stream[call->stream];
  if (call->object - 1 >= order->limits.milestones || is_captured(call, stream)) return;
  struct rp_order_milestone *milestone = &order->milestone[call->object - 1];
  rp_order_clock_copy(order, milestone->clock, call->clock);
  if (call->object > order->milestone_width) order->milestone_width = (uint32_t)call->object;
  milestone->component = call->component;
  milestone->position = call->clock[call->component];
  milestone->unsure = call->spoiled || call->outside != order->outside_begun;
  rp_order_stream_join(order, stream, call->clock);
  note_seen(stream, call);
}

/* ---- all of them ---- */

void rp_order_call_begin(struct rp_order *order, struct rp_order_pending *call) {
  switch (call->kind) {
  case RP_ORDER_WORK: {
    order->outside_begun += (call->site.flags & RP_ORDER_OUTSIDE) != 0;
    const struct rp_order_stream *stream = stream_that_matters(order, call);
    remember_stream(order, call, stream);
    call->captured = is_captured(call, stream);
    start_of_work(order, call, stream);
    break;
  }
  case RP_ORDER_GRAPH_LAUNCH:
    begin_graph(order, call);
    break;
  case RP_ORDER_RECORD:
  case RP_ORDER_START_RECORD:
  case RP_ORDER_COMPLETION_RECORD:
  case RP_ORDER_UNFOLLOWED_RECORD:
    begin_record(order, call);
    break;
  case RP_ORDER_WAIT:
    begin_wait(order, call);
    break;
  case RP_ORDER_SYNC_STREAM:
    begin_sync_stream(order, call);
    break;
  case RP_ORDER_SYNC_EVENT:
    begin_sync_event(order, call);
    break;
  case RP_ORDER_SYNC_CONTEXT:
    begin_sync_context(order, call);
    break;
  case RP_ORDER_CAPTURE_BEGIN:
  case RP_ORDER_CAPTURE_END:
    rp_order_capture_call_begin(order, call);
    break;
  case RP_ORDER_MILESTONE:
    begin_milestone(order, call);
    break;
  }
}

rp_order_token rp_order_call_end(struct rp_order *order, struct rp_order_pending *call, bool access) {
  switch (call->kind) {
  case RP_ORDER_WORK:
    return end_work(order, call, access);
  case RP_ORDER_GRAPH_LAUNCH:
    return end_graph(order, call, access);
  case RP_ORDER_RECORD:
  case RP_ORDER_START_RECORD:
  case RP_ORDER_COMPLETION_RECORD:
  case RP_ORDER_UNFOLLOWED_RECORD:
    end_record(order, call);
    break;
  case RP_ORDER_WAIT:
    end_wait(order, call);
    break;
  case RP_ORDER_SYNC_STREAM:
  case RP_ORDER_SYNC_EVENT:
  case RP_ORDER_SYNC_CONTEXT:
    end_sync(order, call);
    break;
  case RP_ORDER_CAPTURE_BEGIN:
  case RP_ORDER_CAPTURE_END:
    rp_order_capture_call_end(order, call);
    break;
  case RP_ORDER_MILESTONE:
    end_milestone(order, call);
    break;
  }
  return RP_ORDER_TOKEN_UNKNOWN;
}
