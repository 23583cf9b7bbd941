/* Receives: whose data would one overwrite, is that data done with and in order, and what has to happen
 * first. */
#include "pool/guard_internal.h"

static const char no_memory_text[] =
    "The slot of this receive is in use and the device has no memory for another one; plan more slots, "
    "or keep some back with --headroom.";
static const char broken_text[] =
    "A step was broken off and the device could not be made idle, so buffers still share memory.";
static const char abort_text[] = "A buffer was used after its memory had been reused; see the report.";
static const char no_idle_text[] =
    "Memory has to be moved, and whether the device is done with it cannot be found out.";

/* The whole of the buffer, but for what allocators round up and pad. Where as much again has room, other
 * things may be: messages of a few bytes begin a segment of a cache, too. */
static bool is_whole(const struct rp_guard *guard, uint64_t address, uint64_t bytes,
                     const struct rp_guard_receive *receive) {
  return receive->address == address && receive->bytes && receive->bytes <= bytes &&
         receive->bytes >= bytes - receive->bytes &&
         bytes - receive->bytes <= rp_pool_granularity(guard->pool);
}

/* Why the memory is not the guard's: as far as its size tells. */
static void note_unowned(struct rp_guard *guard, const struct rp_guard_receive *receive) {
  uint64_t bytes = receive->allocation_bytes;
  guard->unowned_receives++;
  if (bytes && !is_whole(guard, receive->allocation_address, bytes, receive)) {
    guard->mixed_receives++;
    guard->elsewhere_receives += rp_guard_wants(guard, receive->bytes);
    return;
  }
  if (!bytes) bytes = receive->bytes;
  guard->elsewhere_receives += rp_guard_wants(guard, bytes);
  if (rp__guard_rounds_much(guard, bytes) && !guard->rounding_receives++)
    rp__guard_tell_rounding(guard, bytes);
}

static bool receive_captured(const struct rp_guard *guard, const struct rp_guard_receive *receive) {
  return rp_order_capturing(guard->order, &receive->site);
}

/* Receives of this step that number the microbatches. One of another size than the buffer's others still is
 * one of them. */
static uint32_t *received_so_far(struct rp_guard *guard, const struct rp__guard_buffer *buffer,
                                 const struct rp_guard_receive *receive) {
  struct rp_guard_receive usual = *receive;
  if (buffer->receives) usual.bytes = buffer->usual_bytes;
  return &rp__guard_source_of(guard, &usual)->received;
}

static struct rp_pool_site site_of(struct rp_guard *guard, const struct rp__guard_buffer *buffer,
                                   const struct rp_guard_receive *receive) {
  uint32_t microbatch =
      buffer->place.known ? buffer->place.microbatch : *received_so_far(guard, buffer, receive);
  return rp__guard_site(guard, microbatch, RP_EVENT_RECV, receive->seq, receive->site.stream, 0);
}

static struct rp_pool_post post_of(struct rp_guard *guard, uint32_t id,
                                   const struct rp_guard_receive *receive,
                                   const struct rp__guard_target *target) {
  bool placed = target->class_index != RP_POOL_NONE;
  return (struct rp_pool_post){.buffer = id,
                               .class_id = placed ? guard->classes[target->class_index].pool_class
                                           : guard->plan.unproven ? RP_POOL_NO_CLASS
                                                                  : RP_POOL_NONE,
                               .slot_hint = target->slot,
                               .capturing = receive_captured(guard, receive),
                               .order = RP_POOL_ORDER_YES,
                               .address = receive->address,
                               .bytes = receive->bytes,
                               .site = site_of(guard, &guard->buffers[id], receive)};
}

/* Is the tenant's last access before the receive? If not, could waits make it so? */
static enum rp_pool_order judge(const struct rp_guard *guard, const struct rp_guard_receive *receive,
                                uint32_t tenant_id, struct rp_guard_action *action) {
  const struct rp__guard_buffer *tenant = &guard->buffers[tenant_id];
  if (tenant->waiting) return RP_POOL_ORDER_NEVER; /* of an open group, ours perhaps */
  size_t gaps = rp_order_gaps(guard->order, &tenant->frontier, &receive->site, action->waits);
  if (!gaps) return RP_POOL_ORDER_YES;
  /* Not of a launch that does not mind waits, and not on a stream that nobody can name. */
  bool can =
      !(receive->site.flags & RP_ORDER_PROGRAMMATIC) && receive->site.stream != RP_ORDER_STREAM_UNKNOWN;
  for (size_t i = 0; i < gaps; i++)
    can &= action->waits[i].fix == RP_ORDER_FIX_WAIT &&
           !rp_order_may_stall(guard->order, &action->waits[i], &receive->site);
  if (can) action->wait_count = gaps;
  return can ? RP_POOL_ORDER_NO : RP_POOL_ORDER_NEVER;
}

static rp_status decide(struct rp_guard *guard, const struct rp_guard_receive *receive,
                        struct rp_pool_post *post, struct rp_guard_action *action) {
  uint32_t tenant = RP_POOL_NONE;
  action->wait_count = 0;
  rp_status status = rp_pool_receive_displaces(guard->pool, post, &tenant);
  if (status) return status;
  if (tenant != RP_POOL_NONE) post->order = judge(guard, receive, tenant, action);
  status = rp_pool_receive_decide(guard->pool, post, &action->decision);
  if (!action->decision.insert_wait) action->wait_count = 0;
  return status;
}

/* Tests: the receive takes the slot whatever is in it, and what that was is counted as it happened. A slot of
 * the wrong size is still that of the buffer. */
static rp_status decide_unguarded(struct rp_guard *guard, const struct rp_guard_receive *receive,
                                  struct rp_pool_post *post, struct rp_guard_action *action) {
  rp_status status = decide(guard, receive, post, action);
  struct rp_pool_conflict conflict = action->decision.conflict;
  struct rp_pool_post fitting = *post;
  uint32_t tenant = conflict.earlier_buffer;
  if (status || conflict.kind == RP_POOL_NO_CONFLICT) return status;
  if (conflict.kind == RP_POOL_SIZE_MISMATCH) {
    struct rp_pool_buffer_info info = rp__guard_info(guard, post->buffer);
    if (info.binding != RP_POOL_BOUND) return RP_OK;
    (void)rp_pool_slot(guard->pool, info.class_id, info.slot, &tenant, NULL);
    fitting.address = info.address;
    fitting.bytes = guard->buffers[post->buffer].receive_bytes;
  }
  (void)rp_pool_release(guard->pool, tenant);
  fitting.order = RP_POOL_ORDER_YES;
  status = rp_pool_receive_decide(guard->pool, &fitting, &action->decision);
  action->wait_count = 0;
  conflict.prevented = false;
  action->decision.conflict = conflict;
  return status;
}

static rp_status do_commit(struct rp_guard *guard, const struct rp_guard_receive *receive, uint32_t id,
                           const struct rp__guard_target *target, const struct rp_guard_action *action);

/* What the decision takes: nothing that is not done here and now, or an action for the caller. */
static rp_status settle(struct rp_guard *guard, const struct rp_guard_receive *receive, uint32_t id,
                        const struct rp__guard_target *target, struct rp_guard_action *action) {
  const struct rp_pool_decision *decision = &action->decision;
  bool maps = decision->memory != RP_POOL_MEMORY_NONE && decision->memory != RP_POOL_MEMORY_PIN;
  if (guard->options.shadow || (!maps && !decision->insert_wait && !rp__guard_info(guard, id).concealed)) {
    rp_status status = do_commit(guard, receive, id, target, action);
    action->wait_count = 0;
    return status;
  }
  action->next = RP_GUARD_ACT;
  action->why = no_memory_text;
  if (decision->remaps) rp__guard_idle(guard, &guard->buffers[id], receive->site.context, action);
  if (!rp__guard_idle_impossible(action)) return RP_OK;
  action->next = RP_GUARD_REFUSE;
  action->why = no_idle_text;
  return RP_OK;
}

static void refuse(struct rp_guard_action *action, const char *why) {
  action->next = RP_GUARD_REFUSE;
  action->why = why;
}

/* Something that comes before any receive. */
static bool comes_first(struct rp_guard *guard, const struct rp_guard_receive *receive,
                        struct rp_guard_action *action) {
  bool frozen = rp_pool_frozen(guard->pool);
  if (guard->abort_pending) {
    action->abort = true;
    refuse(action, abort_text);
    return true;
  }
  if (frozen) guard->due |= RP__GUARD_DUE_QUIESCENT;
  if (frozen && guard->postponed) {
    guard->postponed = false;
    refuse(action, broken_text);
    return true;
  }
  if (!guard->due) return false;
  rp__guard_boundary_action(guard, receive->site.context, action);
  if (!rp__guard_idle_impossible(action)) return true;
  rp_guard_boundary_postpone(guard);
  *action = (struct rp_guard_action){.next = RP_GUARD_GO};
  return frozen ? comes_first(guard, receive, action) : false;
}

rp_status rp_guard_receive_prepare(struct rp_guard *guard, const struct rp_guard_receive *receive,
                                   struct rp_guard_action *action) {
  uint32_t id;
  *action = (struct rp_guard_action){.next = RP_GUARD_GO};
  rp_status status = rp_pool_find(guard->pool, receive->address, &id);
  if (status) {
    note_unowned(guard, receive);
    rp__guard_peer_received(guard, receive->comm, receive->peer, receive->bytes);
    return status;
  }
  struct rp__guard_buffer *buffer = &guard->buffers[id];
  rp__guard_context(guard, receive->site.context);
  if (buffer->receives && !buffer->partial && buffer->step == guard->step &&
      receive->address == buffer->address)
    rp__guard_step_end(guard);
  if (comes_first(guard, receive, action)) return RP_OK;
  struct rp__guard_target target = rp__guard_plan_target(guard, receive);
  rp__guard_plan_release(guard, id, &target);
  struct rp_pool_post post = post_of(guard, id, receive, &target);
  status = guard->options.unguarded ? decide_unguarded(guard, receive, &post, action)
                                    : decide(guard, receive, &post, action);
  return status ? status : settle(guard, receive, id, &target, action);
}

/* A new lifetime begins. */
static void begin(struct rp_guard *guard, uint32_t id, const struct rp_guard_receive *receive,
                  const struct rp_pool_site *site) {
  struct rp__guard_buffer *buffer = &guard->buffers[id];
  rp__guard_lifetime_end(guard, id);
  bool whole = is_whole(guard, buffer->address, buffer->bytes, receive);
  if (!buffer->partial && (receive->address != buffer->address || (!whole && !buffer->receives))) {
    buffer->partial = true; /* and so was what came to its begin before */
    guard->partial_receives += buffer->receives;
  }
  buffer->microbatch = (*received_so_far(guard, buffer, receive))++;
  if (!buffer->receives) buffer->usual_bytes = receive->bytes;
  bool behind_a_free = guard->births_at_free && buffer->birth > guard->births_at_free;
  guard->just_in_time_receives += !buffer->receives && behind_a_free;
  buffer->receives++;
  buffer->step = buffer->touched_step = guard->step;
  buffer->first = 0;
  buffer->comm = receive->comm;
  buffer->peer = receive->peer;
  buffer->receive_bytes = receive->bytes;
  buffer->waiting = 1;
  buffer->frontier = (struct rp_order_frontier){0};
  buffer->serial = ++guard->serial;
  buffer->post = buffer->last = buffer->ready = ++guard->clock;
  buffer->received = *site;
  rp__guard_peer_received(guard, receive->comm, receive->peer, receive->bytes);
  rp__guard_watch(guard, id);
  if (buffer->partial) {
    guard->partial_receives++;
    return;
  }
  rp__guard_list_add(guard, &guard->received, id);
  if (guard->options.slack_auto) rp__guard_note_ready(guard, &receive->site);
}

static rp_status do_commit(struct rp_guard *guard, const struct rp_guard_receive *receive, uint32_t id,
                           const struct rp__guard_target *target, const struct rp_guard_action *action) {
  struct rp_pool_post post = post_of(guard, id, receive, target);
  rp_status status = rp__guard_reveal(guard, id);
  if (!status) status = rp_pool_receive_commit(guard->pool, &post, &action->decision);
  if (status) return status;
  guard->receives_waited += action->decision.insert_wait;
  if (post.capturing) guard->graph_buffers++;
  begin(guard, id, receive, &post.site);
  rp__guard_plan_received(guard, id, receive, target);
  return RP_OK;
}

rp_status rp_guard_receive_commit(struct rp_guard *guard, const struct rp_guard_receive *receive,
                                  const struct rp_guard_action *action) {
  uint32_t id;
  rp_status status = rp_pool_find(guard->pool, receive->address, &id);
  if (status) return status;
  if (action->boundary || action->next != RP_GUARD_ACT) return RP_ERROR_STATE;
  struct rp__guard_target target = rp__guard_plan_target(guard, receive);
  return do_commit(guard, receive, id, &target, action);
}

bool rp_guard_receive_launched(struct rp_guard *guard, const struct rp_guard_receive *receive) {
  uint32_t id;
  if (rp_pool_find(guard->pool, receive->address, &id)) return false;
  rp_guard_receive_ordered(guard, receive, rp_order_access(guard->order, &receive->site));
  return rp__guard_info(guard, id).binding == RP_POOL_BOUND;
}

void rp_guard_receive_ordered(struct rp_guard *guard, const struct rp_guard_receive *receive,
                              rp_order_token token) {
  uint32_t id;
  if (rp_pool_find(guard->pool, receive->address, &id)) return;
  struct rp__guard_buffer *buffer = &guard->buffers[id];
  if (!buffer->receives) return;
  if (buffer->waiting) buffer->waiting--;
  rp_order_frontier_add(guard->order, &buffer->frontier, token);
  buffer->serial = ++guard->serial;
}
