/* Receives, sends, launches, copies and memsets: asked about before they are made, told of after. In observe
 * mode the same, with shadows, which change nothing and so need no gate. */
#include "agent/enforce.h"

#include <stdlib.h>
#include <string.h>

#include "agent/agent.h"
#include "agent/enforce_internal.h"
#include "agent/ordering.h"
#include "agent/state.h"
#include "agent/unstoppable.h"

/* ---- questions ---- */

struct asked_access {
  struct rp_guard_access access;
  bool found;    /* by the last prepare */
  uint64_t next; /* where the range goes on behind that buffer */
};

static rp_status prepare_access(struct rp_guard *guard, void *what, struct rp_guard_action *action) {
  struct asked_access *asked = what;
  asked->next = 0;
  rp_status status = rp_guard_access_prepare(guard, &asked->access, action, &asked->next);
  asked->found = status != RP_ERROR_NOT_FOUND;
  return status;
}

static rp_status commit_access(struct rp_guard *guard, void *what, const struct rp_guard_action *action) {
  return rp_guard_access_commit(guard, &((struct asked_access *)what)->access, action);
}

/* Inside the gate. Asks for every buffer in the range. `hit` is set if there is one. */
static bool ask_access(struct rp__device *device, const struct rp_guard_access *access, bool *hit) {
  struct asked_access asked = {.access = *access};
  const struct rp__question question = {
      .prepare = prepare_access, .commit = commit_access, .what = &asked, .site = access->site};
  uint64_t end = access->address + access->bytes;
  for (;;) {
    if (!rp__ask(device, &question)) return false;
    *hit |= asked.found;
    if (!asked.found || asked.next <= asked.access.address || asked.next >= end) return true;
    asked.access.address = asked.next;
    asked.access.bytes = end - asked.next;
  }
}

bool rp__ask_access(const struct rp_guard_access *access, bool *hit) {
  bool allowed = true;
  for (int i = 0; i < RP_ENFORCE_DEVICES && allowed; i++)
    if (rp__enforce.devices[i].guard) allowed = ask_access(&rp__enforce.devices[i], access, hit);
  return allowed;
}

/* ---- work ---- */

static struct rp_guard_access access_of(const struct rp_work *work, const struct rp_use *use) {
  return (struct rp_guard_access){.address = use->address,
                                  .bytes = use->bytes,
                                  .mode = use->mode,
                                  .kind = use->kind,
                                  .place = use->place,
                                  .asked = rp_thread.asked,
                                  .stoppable = rp_call_is_stoppable(),
                                  .function = work->function,
                                  .site = work->site,
                                  .seq = work->seq,
                                  .time_ns = work->time_ns};
}

bool rp_enforce_work_before(struct rp_work *work) {
  struct rp_use use;
  bool allowed = true;
  work->hit = false;
  if (!rp__gate_enter()) return true;
  if (!(work->site.flags & RP_ORDER_CAPTURED)) rp__keep_backed();
  for (size_t position = 0; allowed && rp_work_next(work, &position, &use);) {
    const struct rp_guard_access access = access_of(work, &use);
    allowed = rp__ask_access(&access, &work->hit);
  }
  if (work->hit && allowed) rp__flight_begin();
  rp__gate_leave();
  return allowed;
}

/* Inside the gate. A thread's first call makes a context current. */
static struct rp_order_site site_after(const struct rp_work *work) {
  struct rp_order_site site = work->site;
  if (!site.context) site.context = rp_driver_current_context();
  return site;
}

/* Inside the gate. True: a milestone behind it is of use. */
static bool tell_launched(const struct rp_work *work, const struct rp_order_site *at) {
  const struct rp_order_site site = *at;
  rp_order_token token = rp_ordering_access(&site);
  struct rp_use use;
  bool shared = false;
  rp__note_activity();
  for (size_t position = 0; rp_work_next(work, &position, &use);) {
    struct rp_guard_access access = access_of(work, &use);
    access.site = site;
    for (int d = 0; d < RP_ENFORCE_DEVICES; d++)
      if (rp__enforce.devices[d].guard)
        shared |= rp_guard_access_launched(rp__enforce.devices[d].guard, &access, token);
  }
  return shared && token != RP_ORDER_TOKEN_UNKNOWN;
}

void rp_enforce_work_after(const struct rp_work *work, bool succeeded) {
  if (!work->hit || !rp__gate_enter()) return;
  struct rp__placing milestone = {.number = 0};
  rp__flight_end();
  const struct rp_order_site site = succeeded ? site_after(work) : work->site;
  if (succeeded && tell_launched(work, &site)) milestone = rp__milestone_begin(&site);
  rp__gate_leave();
  rp__milestone_place(&milestone);
  if (!rp__enforce.config.strict || !rp__gate_enter()) return;
  rp__strict(&work->site);
  rp__gate_leave();
}

/* ---- what only a callback saw, and observe mode: under the lock ---- */

/* True: a milestone behind it is of use, or may be. */
static bool tell_seen(const struct rp_guard_access *access, bool graph, rp_order_token token) {
  bool pending = rp__gate_acting(), end = false, shared = pending;
  for (int d = 0; d < RP_ENFORCE_DEVICES; d++) {
    struct rp_guard *guard = rp__enforce.devices[d].guard;
    if (!guard) continue;
    if (pending)
      rp_guard_pending_add(guard, access, token);
    else if (graph)
      rp_guard_graph_launched(guard, access, token);
    else
      shared |= rp_guard_access_seen(guard, access, token, &end);
  }
  if (end && !rp__enforce.shadow) rp__gate_want_abort();
  return shared;
}

void rp__seen(const struct rp_work *work) {
  rp_order_token token = rp_ordering_access(&work->site);
  struct rp_use use;
  bool shared = false;
  rp__note_activity();
  if (work->graph) {
    const struct rp_guard_access access = {
        .kind = RP_EVENT_GRAPH_LAUNCH, .site = work->site, .seq = work->seq, .time_ns = work->time_ns};
    (void)tell_seen(&access, true, token);
  }
  for (size_t position = 0; rp_work_next(work, &position, &use);) {
    const struct rp_guard_access access = access_of(work, &use);
    shared |= tell_seen(&access, false, token);
    rp_unstoppable_seen();
  }
  if (!shared || token == RP_ORDER_TOKEN_UNKNOWN) return;
  if (rp__enforce.shadow)
    (void)rp__milestone_begin(&work->site);
  else
    rp__milestone_owe(&work->site, token);
}

/* Memory that is not ours came or goes. */
void rp__other_memory(uint64_t address, uint64_t bytes, int device) {
  if (bytes) rp__note_planned_size(bytes);
  for (int d = 0; bytes && !rp__enforce.shadow && !rp__gate_acting() && d < RP_ENFORCE_DEVICES; d++)
    if (rp__enforce.devices[d].guard) rp_guard_address_reused(rp__enforce.devices[d].guard, address, bytes);
  if (bytes == 0 && !rp__enforce.shadow) rp__freed_elsewhere(address);
  if (!rp__enforce.shadow) return;
  for (int d = 0; bytes == 0 && d < RP_ENFORCE_DEVICES; d++)
    if (rp__enforce.devices[d].guard) rp_guard_shadow_free(rp__enforce.devices[d].guard, address);
  struct rp__device *of = bytes ? rp__device_get(device) : NULL;
  if (of) rp_guard_shadow_alloc(of->guard, address, bytes);
}
