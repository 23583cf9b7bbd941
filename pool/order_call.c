/* Owns the calls of pool/order between their begin and their end: which go on, and what happened meanwhile
 * that makes it uncertain what they did. Their rules are in order_ops.c. */
#include <stdlib.h>

#include "pool/order_internal.h"

#define SERIAL 0u /* place of a call that is told at once; the others are for rp_order_begin */

/* ---- the table ---- */

rp_status rp_order_calls_init(struct rp_order *order) {
  const uint32_t count = order->limits.calls;
  order->call = calloc((size_t)count + 1, sizeof *order->call);
  order->call_active = calloc(count, sizeof *order->call_active);
  order->call_unused = calloc(count, sizeof *order->call_unused);
  if (!order->call || !order->call_active || !order->call_unused) return RP_ERROR_NO_MEMORY;
  for (uint32_t slot = count; slot > SERIAL; slot--)
    order->call_unused[order->call_unused_count++] = slot;
  return RP_OK;
}

void rp_order_calls_fini(struct rp_order *order) {
  free(order->call);
  free(order->call_active);
  free(order->call_unused);
}

static rp_order_call id_of(const struct rp_order *order, const struct rp_order_pending *call) {
  return (uint64_t)call->turn << 32 | (uint64_t)(call - order->call);
}

static struct rp_order_pending *find(const struct rp_order *order, rp_order_call id) {
  const uint64_t slot = id & UINT32_MAX;
  if (slot == SERIAL || slot > order->limits.calls) return NULL;
  struct rp_order_pending *call = &order->call[slot];
  return call->active && call->turn == id >> 32 ? call : NULL;
}

static void release(struct rp_order *order, struct rp_order_pending *call) {
  const uint32_t slot = (uint32_t)(call - order->call);
  call->active = false;
  for (uint32_t i = 0; i < order->call_active_count; i++) {
    if (order->call_active[i] != slot) continue;
    order->call_active[i] = order->call_active[--order->call_active_count];
    break;
  }
  order->call_unused[order->call_unused_count++] = slot;
}

static struct rp_order_pending *reset(struct rp_order_pending *call, enum rp_order_kind kind,
                                      const struct rp_order_site *site, uint64_t object) {
  *call = (struct rp_order_pending){.clock = call->clock,
                                    .turn = call->turn + 1,
                                    .kind = kind,
                                    .site = *site,
                                    .object = object,
                                    .stream = RP_ORDER_NO_SLOT,
                                    .component = RP_ORDER_NO_SLOT};
  return call;
}

/* ---- what happens while calls go on ---- */

static bool is_record(enum rp_order_kind kind) {
  return kind == RP_ORDER_RECORD || kind == RP_ORDER_START_RECORD || kind == RP_ORDER_COMPLETION_RECORD ||
         kind == RP_ORDER_UNFOLLOWED_RECORD;
}

static bool of_event(const struct rp_order_pending *call, uint64_t event) {
  return call->object == event &&
         (is_record(call->kind) || call->kind == RP_ORDER_WAIT || call->kind == RP_ORDER_SYNC_EVENT);
}

static bool same_stream(const struct rp_order_site *a, const struct rp_order_site *b) {
  if (a->stream != b->stream) return false;
  if (a->stream > RP_ORDER_STREAM_PER_THREAD) return true;
  return a->context == b->context && (a->stream == RP_ORDER_STREAM_LEGACY || a->thread == b->thread);
}

void rp_order_spoil_event(struct rp_order *order, uint64_t event, uint64_t capture) {
  for (uint32_t i = 0; i < order->call_active_count; i++) {
    struct rp_order_pending *call = &order->call[order->call_active[i]];
    if (!of_event(call, event)) continue;
    call->spoiled = true;
    if (!capture || call->kind != RP_ORDER_WAIT || call->gone) continue;
    struct rp_order_stream *stream = rp_order_get_stream(order, &call->site);
    if (!stream)
      order->capture_lost = true;
    else if (!stream->capture)
      stream->capture = capture;
    rp_order_mark_captured(order, &call->site);
  }
}

void rp_order_spoil_graph(struct rp_order *order, uint64_t exec) {
  for (uint32_t i = 0; i < order->call_active_count; i++) {
    struct rp_order_pending *call = &order->call[order->call_active[i]];
    if (call->kind == RP_ORDER_GRAPH_LAUNCH && call->object == exec) call->spoiled = true;
  }
}

bool rp_order_recording(const struct rp_order *order, uint64_t event) {
  for (uint32_t i = 0; i < order->call_active_count; i++) {
    const struct rp_order_pending *call = &order->call[order->call_active[i]];
    if (is_record(call->kind) && call->object == event) return true;
  }
  return false;
}

void rp_order_mark_captured(struct rp_order *order, const struct rp_order_site *site) {
  for (uint32_t i = 0; i < order->call_active_count; i++) {
    struct rp_order_pending *call = &order->call[order->call_active[i]];
    if (same_stream(&call->site, site)) call->captured = true;
  }
}

void rp_order_mark_gone_slot(struct rp_order *order, uint32_t stream) {
  for (uint32_t i = 0; i < order->call_active_count; i++) {
    struct rp_order_pending *call = &order->call[order->call_active[i]];
    if (call->stream == stream) call->gone = true;
  }
}

void rp_order_mark_gone(struct rp_order *order, uint64_t stream) {
  for (uint32_t i = 0; i < order->call_active_count; i++) {
    struct rp_order_pending *call = &order->call[order->call_active[i]];
    if (call->site.stream == stream) call->gone = true;
  }
}

void rp_order_mark_gone_context(struct rp_order *order, uint64_t context) {
  for (uint32_t i = 0; i < order->call_active_count; i++) {
    struct rp_order_pending *call = &order->call[order->call_active[i]];
    if (call->site.stream <= RP_ORDER_STREAM_PER_THREAD && call->site.context == context) call->gone = true;
  }
}

void rp_order_abandon(struct rp_order *order, uint64_t thread) {
  for (uint32_t i = order->call_active_count; i-- > 0;) {
    struct rp_order_pending *call = &order->call[order->call_active[i]];
    if (call->site.thread != thread) continue;
    if (is_record(call->kind)) rp_order_event_unknown(order, call->object);
    release(order, call); /* puts the last one in this place, which has been looked at */
  }
}

void rp_order_lost(struct rp_order *order) {
  order->counts.lost = true;
}

/* ---- begin and end ---- */

/* No place for a call that must not be left out: it errs to the side of no order for ever, or until the
 * captures end. */
static void begin_without_room(struct rp_order *order, enum rp_order_kind kind,
                               const struct rp_order_site *site, uint64_t object) {
  order->counts.calls_dropped++;
  if (is_record(kind)) order->foreign_lost = true;
  if (kind == RP_ORDER_WAIT || kind == RP_ORDER_CAPTURE_BEGIN)
    rp_order_call_begin(order, reset(&order->call[SERIAL], kind, site, object));
}

/* Synchronisations take long and may be left out: they leave room to the others. */
static bool has_room(const struct rp_order *order, enum rp_order_kind kind) {
  const bool waits =
      kind == RP_ORDER_SYNC_STREAM || kind == RP_ORDER_SYNC_EVENT || kind == RP_ORDER_SYNC_CONTEXT;
  return order->call_unused_count > (waits ? order->limits.calls / 2 : 0);
}

rp_order_call rp_order_begin(struct rp_order *order, enum rp_order_kind kind,
                             const struct rp_order_site *site, uint64_t object) {
  if (!has_room(order, kind)) {
    begin_without_room(order, kind, site, object);
    return 0;
  }
  const uint32_t slot = order->call_unused[--order->call_unused_count];
  struct rp_order_pending *call = reset(&order->call[slot], kind, site, object);
  rp_order_call_begin(order, call);
  call->active = true;
  order->call_active[order->call_active_count++] = slot;
  return id_of(order, call);
}

bool rp_order_begin_with(struct rp_order *order, rp_order_call launch, enum rp_order_kind kind,
                         uint64_t event) {
  struct rp_order_pending *first = find(order, launch);
  if (!first || !has_room(order, kind)) return false;
  const rp_order_call id = rp_order_begin(order, kind, &first->site, event);
  find(order, id)->with = first->with;
  first->with = id;
  return true;
}

const struct rp_order_site *rp_order_call_site(const struct rp_order *order, rp_order_call id) {
  const struct rp_order_pending *call = find(order, id);
  return call ? &call->site : NULL;
}

/* What goes on with it ends after it, in the same way. */
static void end_others(struct rp_order *order, rp_order_call id, bool succeeded) {
  for (struct rp_order_pending *call = find(order, id); call; call = find(order, id)) {
    id = call->with;
    if (succeeded) (void)rp_order_call_end(order, call, false);
    release(order, call);
  }
}

void rp_order_end(struct rp_order *order, rp_order_call id) {
  end_others(order, id, true);
}

rp_order_token rp_order_end_access(struct rp_order *order, rp_order_call id) {
  struct rp_order_pending *call = find(order, id);
  if (!call) return RP_ORDER_TOKEN_UNKNOWN;
  const rp_order_call others = call->with;
  rp_order_token token = rp_order_call_end(order, call, true);
  release(order, call);
  end_others(order, others, true);
  return token;
}

rp_order_token rp_order_end_copy(struct rp_order *order, rp_order_call id, enum rp_order_copy kind,
                                 bool access) {
  struct rp_order_pending *call = find(order, id);
  if (!call) return RP_ORDER_TOKEN_UNKNOWN;
  rp_order_token token = rp_order_copy_end(order, call, kind, access);
  release(order, call);
  return token;
}

void rp_order_cancel(struct rp_order *order, rp_order_call id) {
  const struct rp_order_pending *call = find(order, id);
  if (!call) return;
  if (call->kind == RP_ORDER_CAPTURE_BEGIN) rp_order_capture_undo(order, call);
  end_others(order, id, false);
}

/* ---- calls told at once ---- */

static struct rp_order_pending *begin_serial(struct rp_order *order, enum rp_order_kind kind,
                                             const struct rp_order_site *site, uint64_t object) {
  struct rp_order_pending *call = reset(&order->call[SERIAL], kind, site, object);
  rp_order_call_begin(order, call);
  return call;
}

rp_order_token rp_order_access(struct rp_order *order, const struct rp_order_site *site) {
  return rp_order_call_end(order, begin_serial(order, RP_ORDER_WORK, site, 0), true);
}

rp_order_token rp_order_access_past(struct rp_order *order, const struct rp_order_site *site) {
  struct rp_order_site ordinary = *site;
  ordinary.flags &= ~RP_ORDER_PROGRAMMATIC;
  struct rp_order_pending *call = begin_serial(order, RP_ORDER_WORK, &ordinary, 0);
  rp_order_clock_clear(order, call->clock);
  call->seen_thread = call->seen_legacy = call->seen_blocking = 0;
  return rp_order_call_end(order, call, true);
}

void rp_order_event_wait_past(struct rp_order *order, const struct rp_order_site *site, uint64_t event) {
  struct rp_order_pending *call = begin_serial(order, RP_ORDER_WAIT, site, event);
  const struct rp_order_event *found = rp_order_find_event(order, event);
  if (!call->empty && found) {
    rp_order_clock_copy(order, call->clock, found->clock);
    call->seen_thread = call->seen_legacy = call->seen_blocking = 0;
  }
  (void)rp_order_call_end(order, call, false);
}

void rp_order_work(struct rp_order *order, const struct rp_order_site *site) {
  (void)rp_order_call_end(order, begin_serial(order, RP_ORDER_WORK, site, 0), false);
}

rp_order_token rp_order_graph_launch(struct rp_order *order, const struct rp_order_site *site,
                                     uint64_t exec) {
  return rp_order_call_end(order, begin_serial(order, RP_ORDER_GRAPH_LAUNCH, site, exec), true);
}

rp_order_token rp_order_copy_sync(struct rp_order *order, const struct rp_order_site *site,
                                  enum rp_order_copy kind) {
  struct rp_order_site ordinary = *site;
  ordinary.flags &= ~RP_ORDER_PROGRAMMATIC;
  return rp_order_copy_end(order, begin_serial(order, RP_ORDER_WORK, &ordinary, 0), kind, true);
}

void rp_order_event_record(struct rp_order *order, const struct rp_order_site *site, uint64_t event,
                           enum rp_order_record record) {
  static const enum rp_order_kind kinds[] = {[RP_ORDER_RECORD_STREAM] = RP_ORDER_RECORD,
                                             [RP_ORDER_RECORD_PROGRAMMATIC] = RP_ORDER_START_RECORD,
                                             [RP_ORDER_RECORD_LAUNCHED] = RP_ORDER_COMPLETION_RECORD};
  struct rp_order_pending *call = begin_serial(order, kinds[record], site, event);
  /* The launch has been told already: what it started after is the stream's to say. */
  if (record == RP_ORDER_RECORD_PROGRAMMATIC && call->stream != RP_ORDER_NO_SLOT)
    rp_order_copy_start(order, call->clock, &order->stream[call->stream]);
  (void)rp_order_call_end(order, call, false);
}

void rp_order_event_wait(struct rp_order *order, const struct rp_order_site *site, uint64_t event) {
  (void)rp_order_call_end(order, begin_serial(order, RP_ORDER_WAIT, site, event), false);
}

void rp_order_sync_stream(struct rp_order *order, const struct rp_order_site *site) {
  (void)rp_order_call_end(order, begin_serial(order, RP_ORDER_SYNC_STREAM, site, 0), false);
}

void rp_order_sync_event(struct rp_order *order, uint64_t thread, uint64_t event) {
  const struct rp_order_site site = {.thread = thread};
  (void)rp_order_call_end(order, begin_serial(order, RP_ORDER_SYNC_EVENT, &site, event), false);
}

void rp_order_sync_context(struct rp_order *order, uint64_t thread, uint64_t context) {
  const struct rp_order_site site = {.thread = thread, .context = context};
  (void)rp_order_call_end(order, begin_serial(order, RP_ORDER_SYNC_CONTEXT, &site, 0), false);
}

void rp_order_capture_begin(struct rp_order *order, const struct rp_order_site *site) {
  (void)rp_order_call_end(order, begin_serial(order, RP_ORDER_CAPTURE_BEGIN, site, 0), false);
}

void rp_order_capture_end(struct rp_order *order, const struct rp_order_site *site) {
  (void)rp_order_call_end(order, begin_serial(order, RP_ORDER_CAPTURE_END, site, 0), false);
}
