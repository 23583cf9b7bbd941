/* Asking a guard what a call needs, doing it, and asking again until nothing is left to do. */
#include "agent/enforce_internal.h"

#include <stdlib.h>
#include <string.h>

#include "agent/agent.h"
#include "agent/log.h"
#include "agent/state.h"

/* Activation and the like are optional: a step boundary waits no longer than this for the work before it. A
 * host may be whole steps ahead of its device, and steps may be long: each time in vain the next boundary
 * waits twice as long. The device works meanwhile. */
#define BOUNDARY_WAIT_NS UINT64_C(2000000000)
#define LONGEST_BOUNDARY_WAIT_NS (30 * BOUNDARY_WAIT_NS)
/* A call that cannot go on unless a buffer's work is complete waits as cudaFree would; a device that takes
 * longer than this hangs, and the call fails. */
#define CALL_WAIT_NS UINT64_C(600000000000)
/* A call between its question and its launch is over in microseconds. */
#define CALLS_PAUSE_NS UINT64_C(50000)
/* What the driver refuses now it may grant a moment later, when others have given memory back; without it the
 * call fails, and the training with it. */
#define REFUSALS_TAKEN 16
#define FIRST_REFUSAL_PAUSE_NS UINT64_C(1000000)
#define REFUSAL_PAUSE_NS UINT64_C(32000000)
/* The same where something has been taken away already; so often for all of the device's life. */
#define RESTORE_PAUSES 50
/* How long inserted waits took is asked for when the last time was so long ago, or so many are to be told. */
#define WAITS_LOOK_NS UINT64_C(100000000)
#define WAITS_MANY 16
/* Other threads can undo what was found out while the gate was open, but not for ever. */
#define TRIES 1000

static uint64_t activity;        /* core lock */
static unsigned calls_in_flight; /* core lock: asked about, not launched */

void rp__note_activity(void) {
  activity++;
}

uint64_t rp__activity(void) {
  return activity;
}

void rp__flight_begin(void) {
  calls_in_flight++;
  rp_thread.in_flight++;
}

void rp__flight_end(void) {
  if (rp_thread.in_flight == 0) return;
  calls_in_flight--;
  rp_thread.in_flight--;
}

bool rp__others_in_flight(void) {
  return calls_in_flight > rp_thread.in_flight;
}

/* ---- what the driver will not map again ---- */

static const char lost_text[] = "the driver will not map the memory of a buffer again that was to be shared";

/* Inside the gate, which opens meanwhile. A call that nobody can stop would end the program at an address
 * without memory, so this thread goes on when there is none, or when waiting is of no more use: then those
 * calls that can be stopped try it again. False: the gate could not be entered again. */
static bool restore(struct rp__device *device) {
  while (rp_guard_lost(device->guard)) {
    rp__gate_act();
    (void)rp_guard_restore(device->guard);
    rp__gate_acted();
    if (!rp_guard_lost(device->guard) || device->restore_pauses++ >= RESTORE_PAUSES) break;
    rp__gate_leave();
    rp__pause(REFUSAL_PAUSE_NS);
    if (!rp__gate_enter()) return false;
  }
  if (rp_guard_lost(device->guard)) rp_warn("enforce: %s: %s", lost_text, rp_device_memory_error());
  return true;
}

/* ---- boundaries ---- */

void rp__note_waited(struct rp__device *device) {
  uint64_t waits = 0;
  if (device->waits_made == device->waits_timed) return;
  rp_agent_unlock();
  uint64_t waited_ns = rp_device_waited_ns(&waits);
  (void)rp_agent_lock();
  device->waits_timed += waits;
  device->waits_looked_ns = rp_now_ns();
  if (waits) rp_guard_waited(device->guard, waits, waited_ns);
}

/* Inside the gate. What fails stays pending in the guard, which asks again at a later boundary. */
static void pass_boundary(struct rp__device *device) {
  struct rp_guard_channel *channels;
  size_t count;
  uint64_t begun = rp_now_ns();
  if (rp_agent_channels(&channels, &count) != RP_OK) channels = NULL, count = 0;
  if (!rp__enforce.shadow) rp__gate_act();
  if (!rp__enforce.shadow) rp__note_waited(device);
  rp_status status = rp_guard_boundary(device->guard, channels, count, begun);
  rp_guard_boundary_took(device->guard, rp_now_ns() - begun);
  if (!rp__enforce.shadow) rp__milestones_release();
  if (!rp__enforce.shadow) rp__gate_acted();
  if (status != RP_OK) rp_verbose("step boundary: %s", rp_status_text(status));
  free(channels);
}

/* ---- asking ---- */

static rp_status refuse(const char *why, rp_status status) {
  rp_warn_urgent("a call was refused to keep its data: %s", why);
  return status;
}

/* Opens the gate until what the action needs is idle. RP_ERROR_BUSY: look again. */
static rp_status open_until_idle(struct rp__device *device, struct rp__idle *idle,
                                 const struct rp_guard_action *action, const struct rp_order_gap *gaps,
                                 size_t count, uint64_t deadline_ns) {
  rp_status status = RP_ERROR_UNAVAILABLE;
  uint64_t now_ns = rp_now_ns(), wait_ns = device->boundary_wait_ns;
  if (wait_ns < BOUNDARY_WAIT_NS) wait_ns = BOUNDARY_WAIT_NS;
  uint64_t until_ns = action->boundary ? now_ns + wait_ns : deadline_ns;
  if (now_ns < until_ns) status = rp__idle_wait(idle, gaps, count, until_ns);
  if (status == RP_ERROR_STATE) return status; /* not inside the gate any more */
  if (status == RP_OK && action->boundary) device->boundary_wait_ns = 0;
  if (status == RP_OK) rp_guard_idle_reached(device->guard, action);
  if (status == RP_OK && gaps != action->idle) rp_guard_waited(device->guard, 1, rp_now_ns() - now_ns);
  if (status == RP_OK) return RP_ERROR_BUSY;
  if (!action->boundary) return refuse("the work that uses its buffer does not end", status);
  rp_verbose("step boundary postponed: %s", rp_status_text(status));
  if (status == RP_ERROR_BUSY && wait_ns < LONGEST_BOUNDARY_WAIT_NS) device->boundary_wait_ns = 2 * wait_ns;
  rp_guard_boundary_postpone(device->guard);
  return RP_ERROR_BUSY;
}

/* A boundary moves memory: calls of other threads that were asked about must be made and told of. This
 * thread's own, in an open group, are still to be made, and find the new memory. */
static rp_status wait_for_calls(struct rp__device *device) {
  uint64_t until_ns = rp_now_ns() + BOUNDARY_WAIT_NS;
  while (rp__others_in_flight() && !rp__transfers_go_on() && rp_now_ns() < until_ns) {
    rp__gate_leave();
    rp__pause(CALLS_PAUSE_NS);
    if (!rp__gate_enter()) return RP_ERROR_STATE;
  }
  if (rp__others_in_flight() || rp__transfers_go_on()) {
    rp_verbose("step boundary postponed: calls are being made");
    rp_guard_boundary_postpone(device->guard);
  }
  return RP_ERROR_BUSY;
}

/* The waits that only a wait of the host can stand in for: all, where the driver refused one of ours. */
static size_t host_waits(const struct rp__idle *idle, const struct rp_guard_action *action,
                         struct rp_order_gap *out) {
  size_t count = 0;
  for (size_t i = 0; i < action->wait_count; i++)
    if (idle->host_only || rp__waits_for_host(&action->waits[i])) out[count++] = action->waits[i];
  return count;
}

static bool waits_due(const struct rp__device *device) {
  return device->waits_made - device->waits_timed >= WAITS_MANY ||
         rp_now_ns() - device->waits_looked_ns > WAITS_LOOK_NS;
}

/* Ever longer. */
static uint64_t refusal_pause_ns(unsigned refusals) {
  uint64_t pause_ns = FIRST_REFUSAL_PAUSE_NS << refusals;
  return pause_ns < REFUSAL_PAUSE_NS ? pause_ns : REFUSAL_PAUSE_NS;
}

/* A wait that cannot be inserted makes the host wait, next time round. */
static rp_status act(struct rp__device *device, const struct rp__question *question, struct rp__idle *idle,
                     const struct rp_guard_action *action) {
  if (rp__enforce.shadow) return question->commit(device->guard, question->what, action);
  rp__gate_act();
  rp_status status = RP_OK;
  if (!idle->host_only) status = rp__insert_waits(&question->site, action->waits, action->wait_count);
  if (status != RP_OK) {
    idle->host_only = true;
    status = RP_ERROR_STATE;
  }
  if (status == RP_OK) status = question->commit(device->guard, question->what, action);
  if (status == RP_OK && !idle->host_only) device->waits_made += action->wait_count;
  if (action->wait_count && waits_due(device)) rp__note_waited(device);
  rp__gate_acted();
  return status;
}

/* Inside the gate, shut: RP_OK when all that the action needs is idle, RP_ERROR_BUSY when to look again. */
static rp_status settle(struct rp__device *device, struct rp__idle *idle,
                        const struct rp_guard_action *action, uint64_t deadline_ns) {
  struct rp_order_gap gaps[RP_GUARD_ACTION_WAITS];
  if (rp__enforce.shadow) return RP_OK;
  if (action->boundary && (rp__others_in_flight() || rp__transfers_go_on())) return wait_for_calls(device);
  if (!rp__idle_known(idle, action->idle, action->idle_count))
    return open_until_idle(device, idle, action, action->idle, action->idle_count, deadline_ns);
  size_t count = host_waits(idle, action, gaps);
  if (!rp__idle_known(idle, gaps, count))
    return open_until_idle(device, idle, action, gaps, count, deadline_ns);
  return RP_OK;
}

static rp_status carry_out(struct rp__device *device, const struct rp__question *question,
                           struct rp__idle *idle, const struct rp_guard_action *action) {
  if (action->boundary) {
    pass_boundary(device);
    return restore(device) ? RP_ERROR_BUSY : RP_ERROR_STATE;
  }
  rp_status status = act(device, question, idle, action);
  if (status != RP_OK && !restore(device)) return RP_ERROR_STATE;
  if (status == RP_OK || status == RP_ERROR_NOT_FOUND) return RP_OK;
  if (status == RP_ERROR_STATE) return RP_ERROR_BUSY; /* out of date: ask again */
  if (idle->refusals < REFUSALS_TAKEN) {
    rp__gate_leave();
    rp__pause(refusal_pause_ns(idle->refusals++));
    return rp__gate_enter() ? RP_ERROR_BUSY : RP_ERROR_STATE;
  }
  bool no_memory = status == RP_ERROR_NO_MEMORY && action->why; /* else the driver says what is wrong */
  return refuse(no_memory ? action->why : rp_device_memory_error(), status);
}

/* One look at the guard. RP_OK: the call may go on; RP_ERROR_BUSY: look again. */
static rp_status look(struct rp__device *device, const struct rp__question *question, struct rp__idle *idle,
                      uint64_t deadline_ns) {
  struct rp_guard_action action;
  memset(&action, 0, sizeof action);
  rp_status status = question->prepare(device->guard, question->what, &action);
  if (status == RP_ERROR_NOT_FOUND) return RP_OK;
  if (status != RP_OK) return refuse(rp_status_text(status), status);
  if (action.abort) rp__gate_want_abort();
  if (action.next == RP_GUARD_GO) return RP_OK;
  if (action.next == RP_GUARD_REFUSE)
    return refuse(action.why ? action.why : "it would overwrite what is still needed", RP_ERROR_UNAVAILABLE);
  status = settle(device, idle, &action, deadline_ns);
  return status == RP_OK ? carry_out(device, question, idle, &action) : status;
}

bool rp__ask(struct rp__device *device, const struct rp__question *question) {
  struct rp__idle idle = {0};
  uint64_t deadline_ns = rp_now_ns() + CALL_WAIT_NS;
  for (int i = 0; i < TRIES; i++) {
    rp_status status = look(device, question, &idle, deadline_ns);
    if (status != RP_ERROR_BUSY) return status == RP_OK;
  }
  return refuse("several threads use the buffer at once", RP_ERROR_BUSY) == RP_OK;
}

/* ---- strict mode ---- */

static void strict_one(struct rp__device *device, const struct rp_order_site *site) {
  struct rp_guard_action action;
  struct rp__idle idle = {0};
  memset(&action, 0, sizeof action);
  rp_guard_strict_prepare(device->guard, site, &action);
  if (action.next == RP_GUARD_GO) return;
  if (!rp__idle_known(&idle, action.idle, action.idle_count)) {
    rp_status status = rp__idle_wait(&idle, action.idle, action.idle_count, rp_now_ns() + BOUNDARY_WAIT_NS);
    if (status == RP_ERROR_STATE) return;
    if (status == RP_OK) rp_guard_idle_reached(device->guard, &action);
  }
  rp__gate_act();
  (void)rp_guard_strict_commit(device->guard);
  rp__gate_acted();
}

void rp__strict(const struct rp_order_site *site) {
  if (!rp__enforce.config.strict || rp__enforce.shadow || (site->flags & RP_ORDER_CAPTURED)) return;
  for (int i = 0; i < RP_ENFORCE_DEVICES; i++) {
    struct rp__device *device = &rp__enforce.devices[i];
    if (device->guard && rp_guard_strict_pending(device->guard) && !rp__others_in_flight())
      strict_one(device, site);
  }
}
