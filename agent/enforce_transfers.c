/* Receives and sends: asked about before the call, told of when NCCL has launched them, which for those of a
 * group is when its outermost end has succeeded. A communicator that does not block may launch later, and
 * says when it has. Owns the lists of the open groups, and of what goes on. */
#include "agent/enforce.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "agent/agent.h"
#include "agent/enforce_internal.h"
#include "agent/ordering.h"
#include "agent/state.h"
#include "agent/unstoppable.h"

#define TRANSFERS_PER_BLOCK 16

/* A block of the transfers of an open group, latest block first. */
struct rp_enforce_group {
  struct rp_enforce_group *before;
  size_t count;
  struct rp_enforce_transfer transfers[TRANSFERS_PER_BLOCK];
};

static _Atomic uint64_t groups_made;

/* What goes on: changed under the core lock, `count` read without. */
static struct {
  struct rp_enforce_transfer *at;
  uint64_t *groups; /* each one's group, or 0 */
  size_t capacity;
  _Atomic size_t count;
} going_on;

bool rp__transfers_go_on(void) {
  return atomic_load_explicit(&going_on.count, memory_order_relaxed) > 0;
}

/* ---- asking ---- */

static struct rp_guard_receive receive_of(const struct rp_enforce_transfer *transfer, uint64_t group) {
  return (struct rp_guard_receive){.address = transfer->address,
                                   .bytes = transfer->bytes,
                                   .comm = transfer->comm,
                                   .peer = transfer->peer,
                                   .site = transfer->site,
                                   .seq = transfer->seq,
                                   .time_ns = transfer->time_ns,
                                   .group = group};
}

static struct rp_guard_access access_of(const struct rp_enforce_transfer *transfer, uint64_t group) {
  return (struct rp_guard_access){.address = transfer->address,
                                  .bytes = transfer->bytes,
                                  .mode = transfer->mode,
                                  .kind = RP_EVENT_SEND,
                                  .site = transfer->site,
                                  .seq = transfer->seq,
                                  .time_ns = transfer->time_ns,
                                  .group = group};
}

struct asked_receive {
  struct rp_guard_receive receive;
  bool found;
};

static rp_status prepare_receive(struct rp_guard *guard, void *what, struct rp_guard_action *action) {
  struct asked_receive *asked = what;
  rp_guard_captures(guard, rp_ordering_captures_begun());
  rp_status status = rp_guard_receive_prepare(guard, &asked->receive, action);
  asked->found = status != RP_ERROR_NOT_FOUND;
  return status;
}

static rp_status commit_receive(struct rp_guard *guard, void *what, const struct rp_guard_action *action) {
  return rp_guard_receive_commit(guard, &((struct asked_receive *)what)->receive, action);
}

static bool ask_receive(struct rp_enforce_transfer *transfer) {
  struct asked_receive asked = {.receive = receive_of(transfer, rp_thread.group)};
  const struct rp__question question = {
      .prepare = prepare_receive, .commit = commit_receive, .what = &asked, .site = transfer->site};
  if (!rp__device_of(transfer->address))
    rp_agent_allocation_of(transfer->address, &asked.receive.allocation_address,
                           &asked.receive.allocation_bytes);
  for (int i = 0; i < RP_ENFORCE_DEVICES && !transfer->hit; i++) {
    if (!rp__enforce.devices[i].guard) continue;
    if (!rp__ask(&rp__enforce.devices[i], &question)) return false;
    transfer->hit = asked.found;
  }
  return true;
}

static void note_send(const struct rp_enforce_transfer *transfer) {
  if (transfer->peer < 0) return;
  for (int i = 0; i < RP_ENFORCE_DEVICES; i++)
    if (rp__enforce.devices[i].guard)
      rp_guard_sent(rp__enforce.devices[i].guard, transfer->comm, transfer->peer, transfer->bytes);
}

bool rp_enforce_transfer_before(struct rp_enforce_transfer *transfer) {
  transfer->hit = false;
  rp_enforce_settle();
  if (rp__enforce.plan && rp_enforce_on()) (void)rp_unstoppable_look();
  if (!rp__gate_enter()) return true;
  if (!(transfer->site.flags & RP_ORDER_CAPTURED)) rp__keep_backed();
  bool allowed;
  if (transfer->receive) {
    allowed = ask_receive(transfer);
  } else {
    note_send(transfer);
    const struct rp_guard_access access = access_of(transfer, rp_thread.group);
    allowed = rp__ask_access(&access, &transfer->hit);
  }
  if (allowed && transfer->hit) rp__flight_begin();
  rp__gate_leave();
  return allowed;
}

/* ---- launched ---- */

/* Inside the gate. True: a milestone behind it is of use. */
static bool tell_launched(const struct rp_enforce_transfer *transfer, uint64_t group) {
  bool shared = false;
  rp__note_activity();
  if (transfer->receive) {
    const struct rp_guard_receive receive = receive_of(transfer, group);
    for (int i = 0; i < RP_ENFORCE_DEVICES; i++)
      if (rp__enforce.devices[i].guard)
        shared |= rp_guard_receive_launched(rp__enforce.devices[i].guard, &receive);
    return shared;
  }
  const struct rp_guard_access access = access_of(transfer, group);
  rp_order_token token = rp_ordering_access(&transfer->site);
  for (int i = 0; i < RP_ENFORCE_DEVICES; i++)
    if (rp__enforce.devices[i].guard)
      shared |= rp_guard_access_launched(rp__enforce.devices[i].guard, &access, token);
  return shared;
}

/* Inside the gate. Without memory for it the buffer stays in use, which is safe. */
static void note_going_on(const struct rp_enforce_transfer *transfer, uint64_t group) {
  size_t count = atomic_load_explicit(&going_on.count, memory_order_relaxed);
  if (count == going_on.capacity) {
    size_t capacity = count ? 2 * count : TRANSFERS_PER_BLOCK;
    struct rp_enforce_transfer *at = realloc(going_on.at, capacity * sizeof *at);
    if (at) going_on.at = at;
    uint64_t *groups = at ? realloc(going_on.groups, capacity * sizeof *groups) : NULL;
    if (!groups) return;
    going_on.groups = groups;
    going_on.capacity = capacity;
  }
  going_on.at[count] = *transfer;
  going_on.groups[count] = group;
  atomic_store_explicit(&going_on.count, count + 1, memory_order_relaxed);
}

/* Inside the gate. True: a milestone behind it is of use. Not while NCCL may still have to put it on its
 * stream. */
static bool tell(const struct rp_enforce_transfer *transfer, uint64_t group,
                 enum rp_enforce_outcome outcome) {
  if (outcome == RP_ENFORCE_CALL_GOES_ON) note_going_on(transfer, group);
  return outcome == RP_ENFORCE_CALL_LAUNCHED && tell_launched(transfer, group);
}

void rp_enforce_comm_settled(uint64_t comm, bool launched) {
  if (!rp__transfers_go_on() || !rp__gate_enter()) return;
  size_t kept = 0, count = atomic_load_explicit(&going_on.count, memory_order_relaxed);
  for (size_t i = 0; i < count; i++) {
    if (going_on.at[i].comm != comm) {
      going_on.at[kept] = going_on.at[i];
      going_on.groups[kept++] = going_on.groups[i];
    } else if (launched) {
      (void)tell_launched(&going_on.at[i], going_on.groups[i]);
    }
  }
  atomic_store_explicit(&going_on.count, kept, memory_order_relaxed);
  rp__gate_leave();
}

/* False: no memory. The buffer's order stays unknown then, which is safe. */
static bool remember(const struct rp_enforce_transfer *transfer) {
  struct rp_enforce_group *block = rp_thread.transfers;
  if (!block || block->count == TRANSFERS_PER_BLOCK) {
    block = malloc(sizeof *block);
    if (!block) return false;
    block->before = rp_thread.transfers;
    block->count = 0;
    rp_thread.transfers = block;
  }
  block->transfers[block->count++] = *transfer;
  return true;
}

void rp_enforce_transfer_after(const struct rp_enforce_transfer *transfer, enum rp_enforce_outcome outcome) {
  if (!transfer->hit) return;
  if (outcome != RP_ENFORCE_CALL_FAILED && rp_thread.group && remember(transfer)) return;
  if (!rp__gate_enter()) return;
  struct rp__placing milestone = {.number = 0};
  rp__flight_end();
  if (!rp_thread.group && tell(transfer, 0, outcome)) milestone = rp__milestone_begin(&transfer->site);
  rp__gate_leave();
  rp__milestone_place(&milestone);
}

/* ---- groups ---- */

void rp_enforce_group_begin(void) {
  rp_thread.group = 1 + atomic_fetch_add_explicit(&groups_made, 1, memory_order_relaxed);
}

/* The blocks in the order in which they were made. */
static struct rp_enforce_group *reversed(struct rp_enforce_group *last) {
  struct rp_enforce_group *first = NULL;
  while (last) {
    struct rp_enforce_group *before = last->before;
    last->before = first;
    first = last;
    last = before;
  }
  return first;
}

/* Inside the gate. Which of them are to be followed by a milestone: their `hit`. */
static void tell_all(struct rp_enforce_group *block, uint64_t group, enum rp_enforce_outcome outcome) {
  for (; block; block = block->before)
    for (size_t i = 0; i < block->count; i++) {
      rp__flight_end();
      block->transfers[i].hit = tell(&block->transfers[i], group, outcome);
    }
}

static void place_behind(const struct rp_order_site *site) {
  if (!rp__gate_enter()) return;
  const struct rp__placing milestone = rp__milestone_begin(site);
  rp__gate_leave();
  rp__milestone_place(&milestone);
}

/* One for each run of transfers on the same stream: all of the group have been launched. */
static void place_milestones(const struct rp_enforce_group *block) {
  const struct rp_enforce_transfer *last = NULL;
  for (; block; block = block->before)
    for (size_t i = 0; i < block->count; i++) {
      const struct rp_enforce_transfer *transfer = &block->transfers[i];
      if (!transfer->hit) continue;
      if (last && last->site.stream != transfer->site.stream) place_behind(&last->site);
      last = transfer;
    }
  if (last) place_behind(&last->site);
}

void rp_enforce_group_end(enum rp_enforce_outcome outcome) {
  struct rp_enforce_group *block = reversed(rp_thread.transfers);
  uint64_t group = rp_thread.group;
  rp_thread.transfers = NULL;
  rp_thread.group = 0;
  if (!block) return;
  if (rp__gate_enter()) {
    tell_all(block, group, outcome);
    rp__gate_leave();
    place_milestones(block);
  }
  while (block) {
    struct rp_enforce_group *next = block->before;
    free(block);
    block = next;
  }
}

/* ---- surprises ---- */

void rp_enforce_interrupt(void) {
  const struct rp_pool_site site = {.kind = RP_EVENT_COMM_DESTROY};
  if (!rp__gate_enter()) return;
  for (int i = 0; i < RP_ENFORCE_DEVICES; i++)
    if (rp__enforce.devices[i].guard) rp_guard_interrupt(rp__enforce.devices[i].guard, &site);
  rp__gate_leave();
}

/* Under the lock. What a graph receives into has memory of its own: replays are not announced. */
void rp__ungated_receive(uint64_t address) {
  if (rp__enforce.shadow || rp__gate_acting()) return; /* then the next one tells */
  struct rp__device *device = rp__device_of(address);
  if (device && !(rp_guard_flags(device->guard, address) & RP_POOL_FLAG_GRAPH))
    rp_guard_request_fallback(device->guard, RP_POOL_RECEIVE_NOT_GATED);
}
