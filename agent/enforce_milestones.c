/* Milestones: events of ours right behind the uses of buffers that share memory, so that who has to wait for
 * a use need not wait for what the program put on the stream behind it. Owns their marks: a bounded number,
 * of which the one placed longest ago makes room. A use without one is waited for as part of all that its
 * stream was given. */
#include <pthread.h>

#include "agent/agent.h"
#include "agent/enforce_internal.h"
#include "agent/ordering.h"

#define MILESTONES RP_ORDER_MILESTONES

/* Core lock. While `pins` is not 0 the mark belongs to who pinned it. */
static struct milestone {
  uint64_t mark;
  uint32_t pins;
} milestones[MILESTONES];
static uint32_t next_place;
static uint32_t in_use; /* with a mark */

/* ---- placing ---- */

/* Inside the gate, so that nobody is about to use what is taken. 0: all are in use by others. */
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
  placing.site.flags &= ~(RP_ORDER_PROGRAMMATIC | RP_ORDER_OUTSIDE);
  if (site->stream == RP_ORDER_STREAM_UNKNOWN || rp_order_capturing(rp__enforce.order, site)) return placing;
  placing.context = rp_order_context_at(rp__enforce.order, site);
  placing.number = take();
  if (placing.number)
    placing.call = rp_order_begin(rp__enforce.order, RP_ORDER_MILESTONE, &placing.site, placing.number);
  return placing;
}

void rp__milestone_place(const struct rp__placing *placing) {
  if (!placing->number) return;
  struct milestone *milestone = &milestones[placing->number - 1];
  uint64_t mark = 0;
  int cancel_state;
  (void)pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
  rp_device_mark_drop(milestone->mark);
  rp_status status = rp_device_mark(placing->context, placing->site.stream, &mark);
  (void)pthread_setcancelstate(cancel_state, &cancel_state);
  if (!rp_agent_lock()) return; /* it stays pinned: nobody uses it any more */
  if (status == RP_OK)
    rp_order_end(rp__enforce.order, placing->call);
  else
    rp_order_cancel(rp__enforce.order, placing->call);
  in_use += (mark != 0) - (milestone->mark != 0);
  milestone->mark = mark;
  milestone->pins = 0;
  rp_agent_unlock();
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
