/* Waiting for work of the device without holding anything up, and making streams wait for each other. The
 * order is told with events of its own numbers: told before the mark is made, so that nothing told in between
 * counts as done. */
#include "agent/enforce_internal.h"

#include <stdatomic.h>
#include <time.h>

#include "agent/agent.h"
#include "agent/ordering.h"
#include "agent/state.h"

#define FIRST_PAUSE_NS 50000u
#define LONGEST_PAUSE_NS 1000000u
/* No address of the driver's. */
#define EVENT_NUMBERS UINT64_C(0x7263707600000000)

static _Atomic uint64_t events_made;

static uint64_t new_event(void) {
  return EVENT_NUMBERS + atomic_fetch_add_explicit(&events_made, 1, memory_order_relaxed);
}

/* ---- what is known ---- */

static bool done(const struct rp__idle *idle, rp_order_token token) {
  if (token == RP_ORDER_TOKEN_UNKNOWN) return false;
  for (size_t i = 0; i < idle->count; i++)
    if (idle->done[i] == token) return true;
  return false;
}

bool rp__idle_known(const struct rp__idle *idle, const struct rp_order_gap *gaps, size_t count) {
  if (idle->everything && idle->activity == rp__activity()) return true;
  for (size_t i = 0; i < count; i++)
    if (!done(idle, gaps[i].token)) return false;
  return true;
}

static void note_done(struct rp__idle *idle, rp_order_token token) {
  size_t places = sizeof idle->done / sizeof idle->done[0];
  idle->done[idle->count % places] = token;
  if (idle->count < places) idle->count++;
}

/* ---- marks ---- */

/* The stream whose mark stands for the gap's; 0: none does. The legacy stream is behind all blocking ones of
 * its context, so behind the default streams of other threads. */
static uint64_t stream_of_mark(const struct rp_order_gap *gap) {
  if (gap->milestone) return gap->stream;
  if (gap->fix == RP_ORDER_FIX_WAIT) return gap->stream;
  bool other_thread = gap->fix == RP_ORDER_FIX_CONTEXT && gap->stream == RP_ORDER_STREAM_PER_THREAD;
  return other_thread ? RP_ORDER_STREAM_LEGACY : RP_ORDER_STREAM_UNKNOWN;
}

static struct rp_order_site site_of(const struct rp_order_gap *gap, uint64_t stream) {
  return (struct rp_order_site){.context = gap->context, .stream = stream, .thread = rp_ordering_thread()};
}

struct mark {
  uint64_t mark, event;
  uint64_t milestone; /* whose mark it is, pinned; or 0 */
  rp_order_token token;
};

static void tell_done(const struct mark *mark, bool complete) {
  struct rp_order *order = rp__enforce.order;
  if (!mark->milestone) rp_device_mark_drop(mark->mark);
  if (!rp_agent_lock()) return;
  if (mark->milestone) {
    if (complete) rp_order_milestone_sync(order, rp_ordering_thread(), mark->milestone);
    rp__milestone_unpin(mark->milestone);
  } else {
    if (complete) rp_order_sync_event(order, rp_ordering_thread(), mark->event);
    rp_order_event_destroy(order, mark->event);
  }
  rp_agent_unlock();
}

/* While acting, so that nobody destroys the stream meanwhile; with the lock, which is given up for the
 * driver. */
static rp_status make_mark(const struct rp_order_gap *gap, struct mark *out) {
  struct rp_order *order = rp__enforce.order;
  uint64_t stream = stream_of_mark(gap);
  struct rp_order_site site = site_of(gap, stream);
  *out = (struct mark){.token = gap->token, .milestone = gap->milestone};
  if (gap->milestone) {
    out->mark = rp__milestone_pin(gap->milestone);
    return RP_OK;
  }
  out->event = new_event();
  rp_order_call record = rp_order_begin(order, RP_ORDER_RECORD, &site, out->event);
  rp_agent_unlock();
  rp_status status = rp_device_mark(gap->context, stream, &out->mark);
  (void)rp_agent_lock();
  if (status == RP_OK) {
    rp_order_end(order, record);
  } else {
    rp_order_cancel(order, record);
    rp_order_event_destroy(order, out->event);
  }
  return status;
}

void rp__pause(uint64_t nanoseconds) {
  struct timespec pause = {.tv_sec = 0, .tv_nsec = (long)nanoseconds};
  (void)nanosleep(&pause, NULL);
}

static rp_status wait_for_mark(struct mark *mark, uint64_t until_ns) {
  uint64_t pause_ns = FIRST_PAUSE_NS;
  rp_status status;
  while ((status = rp_device_mark_query(mark->mark)) == RP_ERROR_BUSY && rp_now_ns() < until_ns) {
    rp__pause(pause_ns);
    if (pause_ns < LONGEST_PAUSE_NS) pause_ns *= 2;
  }
  return status;
}

static rp_status wait_for_marks(struct rp__idle *idle, struct mark *marks, size_t count, uint64_t until_ns) {
  rp_status status = RP_OK;
  for (size_t i = 0; i < count; i++) {
    if (status == RP_OK) status = wait_for_mark(&marks[i], until_ns);
    if (status == RP_OK) note_done(idle, marks[i].token);
    tell_done(&marks[i], status == RP_OK);
  }
  return status;
}

/* ---- whole contexts ---- */

/* With the gate open. `before` is what had been launched when the wait was decided on. */
static rp_status wait_for_context(struct rp__idle *idle, uint64_t context, uint64_t before,
                                  uint64_t until_ns) {
  if (context == 0) context = rp_device_current_context();
  const struct rp_order_site site = {.context = context, .thread = rp_ordering_thread()};
  if (!rp_agent_lock()) return RP_ERROR_STATE;
  rp_order_call call = rp_order_begin(rp__enforce.order, RP_ORDER_SYNC_CONTEXT, &site, 0);
  rp_agent_unlock();
  rp_status status = rp__context_wait(context, until_ns);
  if (!rp_agent_lock()) return RP_ERROR_STATE;
  if (status == RP_OK)
    rp_order_end(rp__enforce.order, call);
  else
    rp_order_cancel(rp__enforce.order, call);
  rp_agent_unlock();
  if (status != RP_OK) return status;
  idle->everything = true;
  idle->activity = before;
  return RP_OK;
}

/* ---- both ---- */

/* What tells that the gaps are closed: marks, and contexts where there are none. */
struct closing {
  struct mark marks[RP_GUARD_ACTION_WAITS];
  size_t mark_count;
  uint64_t contexts[RP_GUARD_ACTION_WAITS]; /* 0: the current one */
  size_t context_count;
  uint64_t activity;
};

static void add_context(struct closing *closing, uint64_t context) {
  for (size_t i = 0; i < closing->context_count; i++)
    if (closing->contexts[i] == context) return;
  closing->contexts[closing->context_count++] = context;
}

/* Inside the gate; acts. */
static void begin_closing(const struct rp__idle *idle, const struct rp_order_gap *gaps, size_t count,
                          struct closing *out) {
  out->mark_count = out->context_count = 0;
  out->activity = rp__activity();
  rp__gate_act();
  for (size_t i = 0; i < count; i++) {
    if (done(idle, gaps[i].token)) continue;
    *(gaps[i].milestone ? &rp__milestone_counts.waits : &rp__milestone_counts.waits_for_all) += 1;
    bool by_mark = gaps[i].milestone || (!rp__waits_for_host(&gaps[i]) && !idle->host_only);
    if (by_mark && make_mark(&gaps[i], &out->marks[out->mark_count]) == RP_OK)
      out->mark_count++;
    else
      add_context(out, gaps[i].context);
  }
  rp__gate_acted();
}

/* With the gate open. */
static rp_status wait_for_closing(struct rp__idle *idle, struct closing *closing, uint64_t until_ns) {
  rp_status status = RP_OK;
  uint8_t busy = rp_thread.busy;
  rp_thread.busy = 1;
  for (size_t i = 0; i < closing->context_count && status == RP_OK; i++)
    status = wait_for_context(idle, closing->contexts[i], closing->activity, until_ns);
  if (closing->context_count > 1) idle->everything = false; /* of several, none stands for all */
  rp_status waited =
      wait_for_marks(idle, closing->marks, closing->mark_count, status == RP_OK ? until_ns : 0);
  rp_thread.busy = busy;
  return status == RP_OK ? waited : status;
}

rp_status rp__idle_wait(struct rp__idle *idle, const struct rp_order_gap *gaps, size_t count,
                        uint64_t until_ns) {
  struct closing closing;
  begin_closing(idle, gaps, count, &closing);
  rp__gate_leave();
  rp_status status = wait_for_closing(idle, &closing, until_ns);
  return rp__gate_enter() ? status : RP_ERROR_STATE;
}

bool rp__waits_for_host(const struct rp_order_gap *gap) {
  return stream_of_mark(gap) == RP_ORDER_STREAM_UNKNOWN;
}

/* ---- waits between streams ---- */

/* With the lock, which is given up for the driver. */
static rp_status wait_for_milestone(const struct rp_order_site *site, uint64_t milestone) {
  uint64_t mark = rp__milestone_pin(milestone);
  rp_agent_unlock();
  rp_status status = rp_device_mark_wait(mark, site->stream, true);
  (void)rp_agent_lock();
  if (status == RP_OK) rp_order_milestone_wait(rp__enforce.order, site, milestone);
  rp__milestone_unpin(milestone);
  return status;
}

/* The same for all that the stream has been given. */
static rp_status insert_wait(const struct rp_order_site *site, const struct rp_order_gap *gap) {
  struct rp_order *order = rp__enforce.order;
  uint64_t before = stream_of_mark(gap), event = new_event(), unused;
  struct rp_order_site at = site_of(gap, before);
  rp_order_call record = rp_order_begin(order, RP_ORDER_RECORD, &at, event);
  rp_agent_unlock();
  rp_status status = rp_device_stream_wait(gap->context, before, site->stream, true, &unused);
  (void)rp_agent_lock();
  if (status == RP_OK) {
    rp_order_end(order, record);
    rp_order_event_wait_past(order, site, event);
  } else {
    rp_order_cancel(order, record);
  }
  rp_order_event_destroy(order, event);
  return status;
}

static rp_status insert(const struct rp_order_site *site, const struct rp_order_gap *gap) {
  if (stream_of_mark(gap) == RP_ORDER_STREAM_UNKNOWN) return RP_OK; /* the host has waited */
  *(gap->milestone ? &rp__milestone_counts.waits : &rp__milestone_counts.waits_for_all) += 1;
  return gap->milestone ? wait_for_milestone(site, gap->milestone) : insert_wait(site, gap);
}

rp_status rp__insert_waits(const struct rp_order_site *site, const struct rp_order_gap *gaps, size_t count) {
  rp_status status = RP_OK;
  for (size_t i = 0; i < count && status == RP_OK; i++)
    status = insert(site, &gaps[i]);
  return status;
}
