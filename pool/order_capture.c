/* Captures in pool/order: which streams and events belong to one, from begin to end. What is captured makes
 * no order. */
#include "pool/order_internal.h"

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

static void one_capture_less(struct rp_order *order) {
  if (order->captures_active) order->captures_active--;
  if (order->captures_active) return;
  order->capture_lost = false;
  forget_capture(order, ALL_CAPTURES); /* also those whose first stream was destroyed meanwhile */
}

static struct rp_order_stream *stream_at_begin(struct rp_order *order, struct rp_order_pending *call,
                                               struct rp_order_stream *stream) {
  if (stream) call->stream = (uint32_t)(stream - order->stream);
  return stream;
}

/* Counts as begun before it has: what other threads do on the stream meanwhile may be captured. */
static void begin(struct rp_order *order, struct rp_order_pending *call) {
  struct rp_order_stream *stream = stream_at_begin(order, call, rp_order_get_stream(order, &call->site));
  order->captures_active++;
  if (!stream) {
    order->capture_lost = true; /* events recorded in this capture will not be known as captured */
    return;
  }
  call->capture_before = stream->capture;
  call->capture = stream->capture = ++order->tick;
  rp_order_mark_captured(order, &call->site);
}

void rp_order_capture_call_begin(struct rp_order *order, struct rp_order_pending *call) {
  if (call->kind == RP_ORDER_CAPTURE_BEGIN) {
    begin(order, call);
    return;
  }
  const struct rp_order_stream *stream =
      stream_at_begin(order, call, rp_order_find_stream(order, &call->site));
  call->capture = stream ? stream->capture : 0;
}

void rp_order_capture_call_end(struct rp_order *order, struct rp_order_pending *call) {
  if (call->kind == RP_ORDER_CAPTURE_BEGIN) return;
  if (call->capture && call->capture != RP_ORDER_CAPTURE_LOST) forget_capture(order, call->capture);
  one_capture_less(order);
}

void rp_order_capture_undo(struct rp_order *order, const struct rp_order_pending *call) {
  for (uint32_t i = 0; call->capture && i < order->limits.streams; i++)
    if (order->stream[i].capture == call->capture) order->stream[i].capture = call->capture_before;
  if (call->capture && !call->capture_before) forget_capture(order, call->capture);
  for (uint32_t i = 0; call->capture_before && i < order->limits.events; i++)
    if (order->event[i].capture == call->capture) order->event[i].capture = call->capture_before;
  one_capture_less(order);
}

static void draw(struct rp_order *order, const struct rp_order_site *site, uint64_t capture) {
  struct rp_order_stream *stream = rp_order_get_stream(order, site);
  order->counts.captured++;
  if (stream)
    stream->capture = capture;
  else
    order->capture_lost = true;
  rp_order_mark_captured(order, site);
}

void rp_order_capture_draw(struct rp_order *order, const struct rp_order_pending *call,
                           const struct rp_order_event *event) {
  if (event && event->capture)
    draw(order, &call->site, event->capture);
  else if (order->captures_active &&
           ((!event && order->capture_lost) || rp_order_recording(order, call->object)))
    draw(order, &call->site, RP_ORDER_CAPTURE_LOST);
}

void rp_order_record_captured(struct rp_order *order, const struct rp_order_stream *stream, uint64_t event) {
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

bool rp_order_captures(const struct rp_order *order) {
  return order->captures_active != 0;
}

void rp_order_capture_unsure(struct rp_order *order) {
  if (order->captures_active) order->capture_lost = true;
}
