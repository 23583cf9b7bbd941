/* Accesses: before they are made, after they were, and when they could only be watched; graph launches, the
 * queue for the time while somebody acts, registered and exported addresses, and the strict mode. */
#include "pool/guard_internal.h"

static const char stale_text[] = "The buffer's memory was reused by a later receive; see the report.";
static const char no_idle_text[] =
    "Memory has to be moved, and whether the device is done with it cannot be found out.";

rp_status rp__guard_reveal(struct rp_guard *guard, uint32_t id) {
  return rp_pool_reveal(guard->pool, id);
}

static struct rp_pool_access pool_access(const struct rp_guard *guard, uint32_t id,
                                         const struct rp_guard_access *access, bool interposed) {
  const struct rp__guard_buffer *buffer = &guard->buffers[id];
  return (struct rp_pool_access){.buffer = id,
                                 .mode = access->mode,
                                 .interposed = interposed,
                                 .learned = rp__guard_is_learned(buffer, rp__guard_key(access)),
                                 .reads = rp__guard_is_reader(buffer, access),
                                 .capturing = rp_order_capturing(guard->order, &access->site),
                                 .site = rp__guard_site(guard, rp__guard_microbatch(buffer), access->kind,
                                                        access->seq, access->site.stream, access->function)};
}

/* Memory that an unbound buffer needs is given all the same: without, nothing would run at all. */
void rp__guard_unguard(struct rp_guard *guard, struct rp_pool_decision *decision) {
  if (!guard->options.unguarded || decision->conflict.kind == RP_POOL_NO_CONFLICT) return;
  decision->conflict.prevented = false;
  decision->want_fallback = decision->abort = false;
  if (rp__guard_info(guard, decision->buffer).binding == RP_POOL_UNBOUND) return;
  decision->memory = RP_POOL_MEMORY_NONE;
  decision->remaps = false;
}

static bool maps(const struct rp_pool_decision *decision) {
  return decision->memory != RP_POOL_MEMORY_NONE && decision->memory != RP_POOL_MEMORY_PIN;
}

/* Untouched memory that may be lent is watched; once it was touched it is the program's. */
static void touched(struct rp_guard *guard, uint32_t id) {
  struct rp__guard_buffer *buffer = &guard->buffers[id];
  if (!buffer->watched || buffer->receives) return;
  if (rp__guard_info(guard, id).binding != RP_POOL_UNBOUND) rp__guard_unwatch(guard, id);
}

static rp_status do_commit(struct rp_guard *guard, uint32_t id, const struct rp_guard_access *access,
                           const struct rp_pool_decision *decision, bool interposed) {
  struct rp_pool_access wanted = pool_access(guard, id, access, interposed);
  rp_status status = interposed ? rp__guard_reveal(guard, id) : RP_OK;
  if (!status) status = rp_pool_access_commit(guard->pool, &wanted, decision);
  if (status) return status;
  if (decision->want_fallback) {
    guard->off = true;
    rp__guard_why_idle(guard, rp_pool_reason_name(RP_POOL_CONFLICT), rp_pool_reason_text(RP_POOL_CONFLICT));
  }
  if (wanted.capturing) guard->graph_buffers++;
  if (access->group) guard->buffers[id].waiting++;
  touched(guard, id);
  return RP_OK;
}

static void set_next(struct rp_guard *guard, uint64_t *next, const struct rp_guard_access *access,
                     uint32_t id) {
  uint64_t end = access->address + access->bytes, from = rp__guard_end(guard, id);
  uint32_t more;
  if (!next) return;
  *next = 0;
  if (access->bytes && from < end && rp__guard_find(guard, from, end - from, &more) == RP_OK)
    *next = guard->buffers[more].address;
}

/* What the decision takes, as for receives. */
static rp_status settle(struct rp_guard *guard, const struct rp_guard_access *access, uint32_t id,
                        struct rp_guard_action *action) {
  const struct rp_pool_decision *decision = &action->decision;
  bool acts = maps(decision) || rp__guard_info(guard, id).concealed;
  if (guard->options.shadow || !acts || decision->abort) {
    struct rp_pool_decision counted = *decision;
    if (decision->abort && maps(decision)) counted.memory = RP_POOL_MEMORY_NONE; /* it will not be made */
    rp_status status = do_commit(guard, id, access, &counted, true);
    action->abort = decision->abort;
    if (action->abort) action->next = RP_GUARD_REFUSE, action->why = stale_text;
    return status;
  }
  action->next = RP_GUARD_ACT;
  if (decision->remaps) rp__guard_idle(guard, &guard->buffers[id], access->site.context, action);
  if (rp__guard_idle_impossible(action)) action->next = RP_GUARD_REFUSE, action->why = no_idle_text;
  return RP_OK;
}

rp_status rp_guard_access_prepare(struct rp_guard *guard, const struct rp_guard_access *access,
                                  struct rp_guard_action *action, uint64_t *next) {
  uint32_t id;
  *action = (struct rp_guard_action){.next = RP_GUARD_GO};
  if (next) *next = 0;
  rp_status status = rp__guard_find(guard, access->address, access->bytes, &id);
  if (status) return status;
  rp__guard_context(guard, access->site.context);
  set_next(guard, next, access, id);
  struct rp_pool_access wanted = pool_access(guard, id, access, true);
  status = rp_pool_access_decide(guard->pool, &wanted, &action->decision);
  if (status) return status;
  rp__guard_unguard(guard, &action->decision);
  return settle(guard, access, id, action);
}

rp_status rp_guard_access_commit(struct rp_guard *guard, const struct rp_guard_access *access,
                                 const struct rp_guard_action *action) {
  uint32_t id;
  rp_status status = rp__guard_find(guard, access->address, access->bytes, &id);
  if (status) return status;
  if (action->next != RP_GUARD_ACT) return RP_ERROR_STATE;
  return do_commit(guard, id, access, &action->decision, true);
}

/* Calls `each` for every buffer in the range. Does one of them share memory? */
static bool for_each(struct rp_guard *guard, const struct rp_guard_access *access, rp_order_token token,
                     void (*each)(struct rp_guard *, uint32_t, const struct rp_guard_access *,
                                  rp_order_token)) {
  uint64_t at = access->address, next = 0;
  bool shared = false;
  uint64_t end = access->bytes > UINT64_MAX - at ? UINT64_MAX : at + access->bytes;
  uint32_t id;
  while (!rp__guard_find(guard, at, access->bytes ? end - at : 0, &id)) {
    each(guard, id, access, token);
    shared |= rp__guard_info(guard, id).binding == RP_POOL_BOUND;
    next = rp__guard_end(guard, id);
    if (!access->bytes || next >= end || next <= at) break;
    at = next;
  }
  return shared;
}

bool rp_guard_access_launched(struct rp_guard *guard, const struct rp_guard_access *access,
                              rp_order_token token) {
  return for_each(guard, access, token, rp__guard_touch);
}

/* Too late to do anything: what the pool can do without the driver, and the truth. A shadow tells what would
 * have been done in time. */
static void seen(struct rp_guard *guard, uint32_t id, const struct rp_guard_access *access,
                 rp_order_token token) {
  struct rp_pool_decision decision;
  bool in_time = guard->options.shadow && access->stoppable;
  struct rp_pool_access wanted = pool_access(guard, id, access, in_time);
  if (rp_pool_access_decide(guard->pool, &wanted, &decision) == RP_OK) {
    rp__guard_unguard(guard, &decision);
    guard->abort_pending |= decision.abort;
    (void)do_commit(guard, id, access, &decision, in_time);
  }
  rp__guard_touch(guard, id, access, token);
}

bool rp_guard_access_seen(struct rp_guard *guard, const struct rp_guard_access *access, rp_order_token token,
                          bool *abort) {
  struct rp_guard_access single = *access;
  single.group = 0; /* it is launched already */
  rp__guard_context(guard, access->site.context);
  bool shared = for_each(guard, &single, token, access->asked ? rp__guard_touch : seen);
  if (!abort) return shared;
  *abort = guard->abort_pending;
  guard->abort_pending = false;
  return shared;
}

void rp_guard_graph_launched(struct rp_guard *guard, const struct rp_guard_access *access,
                             rp_order_token token) {
  if (!guard->graph_buffers) return;
  struct rp_guard_access inside = *access;
  inside.mode = RP_POOL_UNKNOWN_MODE;
  inside.group = 0;
  for (uint32_t id = 0; id < guard->buffer_count; id++) {
    if (!guard->buffers[id].in_use || !(rp__guard_info(guard, id).flags & RP_POOL_FLAG_GRAPH)) continue;
    inside.address = guard->buffers[id].address;
    seen(guard, id, &inside, token);
  }
}

/* ---- while somebody acts ---- */

void rp_guard_pending_add(struct rp_guard *guard, const struct rp_guard_access *access,
                          rp_order_token token) {
  if (guard->pending_count == RP__GUARD_PENDING) {
    guard->pending_dropped++;
    guard->pending_overflow = true;
    return;
  }
  guard->pending[guard->pending_count++] = (struct rp__guard_pending){*access, token};
}

void rp_guard_pending_drain(struct rp_guard *guard) {
  for (size_t i = 0; i < guard->pending_count; i++) {
    const struct rp__guard_pending *late = &guard->pending[i];
    bool abort = false;
    if (late->access.kind == RP_EVENT_GRAPH_LAUNCH)
      rp_guard_graph_launched(guard, &late->access, late->token);
    else
      rp_guard_access_seen(guard, &late->access, late->token, &abort);
    guard->abort_pending |= abort;
  }
  guard->pending_count = 0;
  if (!guard->pending_overflow) return;
  guard->pending_overflow = false;
  for (uint32_t id = 0; id < guard->buffer_count; id++)
    if (guard->buffers[id].in_use && guard->buffers[id].receives)
      rp__guard_frontier_unknown(guard, &guard->buffers[id]);
}

/* ---- addresses that get out of our sight ---- */

rp_status rp_guard_flag_prepare(struct rp_guard *guard, uint64_t address, uint32_t flag,
                                const struct rp_pool_site *site, struct rp_guard_action *action) {
  uint32_t id;
  *action = (struct rp_guard_action){.next = RP_GUARD_GO};
  rp_status status = rp_pool_find(guard->pool, address, &id);
  if (status) return status;
  status = rp_pool_flag_decide(guard->pool, id, flag, true, site, &action->decision);
  if (status) return status;
  action->next = RP_GUARD_ACT;
  bool acts = maps(&action->decision) || rp__guard_info(guard, id).concealed;
  if (guard->options.shadow || !acts) {
    status = rp_guard_flag_commit(guard, address, flag, site, action);
    action->next = RP_GUARD_GO;
    return status;
  }
  if (action->decision.remaps) rp__guard_idle(guard, &guard->buffers[id], guard->context, action);
  if (rp__guard_idle_impossible(action)) action->next = RP_GUARD_REFUSE, action->why = no_idle_text;
  return RP_OK;
}

rp_status rp_guard_flag_commit(struct rp_guard *guard, uint64_t address, uint32_t flag,
                               const struct rp_pool_site *site, const struct rp_guard_action *action) {
  uint32_t id;
  struct rp_pool_site at = *site;
  rp_status status = rp_pool_find(guard->pool, address, &id);
  if (status) return status;
  if (action->next != RP_GUARD_ACT) return RP_ERROR_STATE;
  at.step = guard->step - 1;
  at.microbatch = rp__guard_microbatch(&guard->buffers[id]);
  status = rp__guard_reveal(guard, id);
  if (!status) status = rp_pool_flag_commit(guard->pool, flag, &at, &action->decision);
  if (status) return status;
  if (flag == RP_POOL_FLAG_GRAPH) guard->graph_buffers++;
  touched(guard, id);
  return RP_OK;
}

/* ---- strict mode ---- */

/* Released, still mapped, and not to be. */
static bool to_conceal(const struct rp_guard *guard, uint32_t id) {
  if (!guard->buffers[id].in_use || !guard->buffers[id].receives) return false;
  struct rp_pool_buffer_info info = rp__guard_info(guard, id);
  return info.binding == RP_POOL_BOUND && !info.concealed && !info.pinned && !info.flags &&
         (info.life == RP_POOL_RELEASED || info.life == RP_POOL_DEAD);
}

static bool known_complete(const struct rp_guard *guard, const struct rp__guard_buffer *buffer) {
  if (buffer->frontier.unknown || buffer->waiting) return false;
  for (uint8_t i = 0; i < buffer->frontier.count; i++)
    if (!rp_order_complete(guard->order, buffer->frontier.latest[i])) return false;
  return true;
}

bool rp_guard_strict_pending(const struct rp_guard *guard) {
  return guard->strict_pending;
}

void rp_guard_strict_prepare(struct rp_guard *guard, const struct rp_order_site *site,
                             struct rp_guard_action *action) {
  *action = (struct rp_guard_action){.next = RP_GUARD_GO};
  if (!guard->strict_pending) return;
  for (uint32_t id = 0; id < guard->buffer_count; id++) {
    if (!to_conceal(guard, id)) continue;
    action->next = RP_GUARD_ACT;
    rp__guard_idle(guard, &guard->buffers[id], site->context, action);
  }
  if (action->next == RP_GUARD_GO) guard->strict_pending = false;
}

rp_status rp_guard_strict_commit(struct rp_guard *guard) {
  rp_status first = RP_OK;
  bool left = false;
  for (uint32_t id = 0; guard->options.strict && id < guard->buffer_count; id++) {
    if (!to_conceal(guard, id)) continue;
    rp_status status = RP_OK;
    if (known_complete(guard, &guard->buffers[id]))
      status = rp_pool_conceal(guard->pool, id);
    else
      left = true;
    guard->concealed += rp__guard_info(guard, id).concealed;
    if (!first) first = status;
  }
  guard->strict_pending = left;
  return first;
}

void rp_guard_captures(struct rp_guard *guard, uint64_t begun) {
  const struct rp_pool_site nowhere = {.microbatch = RP_POOL_NONE};
  if (guard->captures == begun) return;
  guard->captures = begun;
  for (uint32_t id = 0; id < guard->buffer_count; id++) {
    struct rp_pool_decision decision;
    const struct rp__guard_buffer *buffer = &guard->buffers[id];
    struct rp_pool_buffer_info info = rp__guard_info(guard, id);
    bool waits = info.binding == RP_POOL_UNBOUND || info.convertible;
    if (!buffer->in_use || buffer->receives || waits) continue;
    if (rp_pool_flag_decide(guard->pool, id, RP_POOL_FLAG_GRAPH, true, &nowhere, &decision)) continue;
    if (decision.memory == RP_POOL_MEMORY_NONE)
      (void)rp_pool_flag_commit(guard->pool, RP_POOL_FLAG_GRAPH, &nowhere, &decision);
  }
}
