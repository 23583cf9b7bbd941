/* Milestones: events of ours right behind the uses of buffers that share memory, so that who has to wait for
 * a use need not wait for what the program put on the stream behind it. Owns their marks: a bounded number,
 * of which the one placed longest ago makes room. A use without one is waited for as part of all that its
 * stream was given. */
#include <pthread.h>

#include "agent/agent.h"
#include "agent/enforce_internal.h"
#include "agent/ordering.h"
#include "agent/state.h"

#define MILESTONES RP_ORDER_MILESTONES

/* Core lock. While `pins` is not 0 the mark belongs to who pinned it. */
static struct milestone {
  uint64_t mark;
  uint32_t pins;
} milestones[MILESTONES];
struct rp_milestone_counts rp__milestone_counts;
static uint32_t next_place;
static uint32_t in_use; /* with a mark */

/* ---- placing ---- */

/* Inside the gate (shadows: under the lock), so that nobody is about to use what is taken. 0: all are in use
 * by others. */
static uint64_t take(void) {
  for (uint32_t i = 0; i < MILESTONES; i++) {
    uint32_t at = next_place;
    next_place = (next_place + 1) % MILESTONES;
    if (milestones[at].pins) continue;
    milestones[at].pins = 1;
    rp_order_milestone_drop(rp__enforce.order, at + 1);
    return at + 1;
  }
  return 0;
}

struct rp__placing rp__milestone_begin(const struct rp_order_site *site) {
  struct rp__placing placing = {.site = *site};
  struct rp_order *order = rp__enforce.order;
  placing.site.flags &= ~(RP_ORDER_PROGRAMMATIC | RP_ORDER_OUTSIDE);
  if (site->stream == RP_ORDER_STREAM_UNKNOWN || rp_order_capturing(order, site)) return placing;
  placing.context = rp_order_context_at(order, site);
  placing.number = take();
  if (placing.number) placing.call = rp_order_begin(order, RP_ORDER_MILESTONE, &placing.site, placing.number);
  if (!placing.number) rp__milestone_counts.failed++;
  if (!placing.number || !rp__enforce.shadow) return placing;
  rp__milestone_counts.placed++;
  rp_order_end(order, placing.call); /* a shadow waits for nothing that would have to be there */
  milestones[placing.number - 1].pins = 0;
  placing.number = 0;
  return placing;
}

/* Without the lock. The mark, 0: none could be made. */
static uint64_t record(const struct rp__placing *placing) {
  uint64_t mark = 0;
  rp_device_mark_drop(milestones[placing->number - 1].mark);
  return rp_device_mark(placing->context, placing->site.stream, &mark) == RP_OK ? mark : 0;
}

/* Under the lock. */
static void finish(const struct rp__placing *placing, uint64_t mark) {
  struct milestone *milestone = &milestones[placing->number - 1];
  if (mark)
    rp_order_end(rp__enforce.order, placing->call);
  else
    rp_order_cancel(rp__enforce.order, placing->call);
  *(mark ? &rp__milestone_counts.placed : &rp__milestone_counts.failed) += 1;
  in_use += (mark != 0) - (milestone->mark != 0);
  milestone->mark = mark;
  milestone->pins = 0;
}

void rp__milestone_place(const struct rp__placing *placing) {
  int cancel_state;
  if (!placing->number) return;
  (void)pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
  uint64_t mark = record(placing);
  if (rp_agent_lock()) {
    finish(placing, mark);
    rp_agent_unlock();
  } /* else it stays pinned: nobody uses it any more */
  (void)pthread_setcancelstate(cancel_state, &cancel_state);
}

/* ---- behind what only a callback saw, which may not record ---- */

void rp__milestone_owe(const struct rp_order_site *site, rp_order_token token) {
  rp_thread.owed_token = token;
  rp_thread.owed_stream = site->stream;
  rp_thread.owed_context = site->context;
}

/* Does the stream still exist, and is none behind it yet? */
static bool is_owed(rp_order_token token) {
  const struct rp_order_gap gap = rp_order_owner(rp__enforce.order, token);
  bool own = gap.stream == RP_ORDER_STREAM_PER_THREAD && gap.fix == RP_ORDER_FIX_CONTEXT;
  return !gap.milestone && (own || gap.fix == RP_ORDER_FIX_WAIT);
}

/* Acts, so that nobody destroys the stream meanwhile. */
void rp__enforce_settle(void) {
  rp_order_token token = rp_thread.owed_token;
  const struct rp_order_site site = {
      .context = rp_thread.owed_context, .stream = rp_thread.owed_stream, .thread = rp_ordering_thread()};
  rp_thread.owed_token = 0;
  if (!rp_enforce_on() || !rp__gate_enter()) return;
  struct rp__placing placing = {.number = 0};
  if (is_owed(token)) placing = rp__milestone_begin(&site);
  if (placing.number) {
    rp__gate_act();
    rp_agent_unlock();
    uint64_t mark = record(&placing);
    (void)rp_agent_lock();
    finish(&placing, mark);
    rp__gate_acted();
  }
  rp__gate_leave();
}

/* ---- using them ---- */

uint64_t rp__milestone_pin(uint64_t number) {
  milestones[number - 1].pins++;
  return milestones[number - 1].mark;
}

void rp__milestone_unpin(uint64_t number) {
  milestones[number - 1].pins--;
}

void rp__milestones_release(void) {
  for (int i = 0; i < RP_ENFORCE_DEVICES; i++)
    if (rp__enforce.devices[i].guard && rp_guard_sharing(rp__enforce.devices[i].guard)) return;
  for (uint32_t i = 0; in_use && i < MILESTONES; i++) {
    if (milestones[i].pins || !milestones[i].mark) continue;
    rp_order_milestone_drop(rp__enforce.order, i + 1);
    rp_device_mark_drop(milestones[i].mark);
    milestones[i].mark = 0;
    in_use--;
  }
}
