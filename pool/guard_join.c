/* Planned mode: receive buffers that something else had used before, or that were allocated where the plan
 * saw no burst, have memory of their own. Once steps repeat themselves they join the class that the plan has
 * for their receives. */
#include "pool/guard_internal.h"

static bool open_life(const struct rp_pool_buffer_info *info) {
  return info->life == RP_POOL_POSTED || info->life == RP_POOL_LIVE;
}

/* Its last receive was the plan's, in a step of training, what it received was read, and is done with. */
static bool may_join(const struct rp_guard *guard, const struct rp__guard_entry *entry) {
  const struct rp__guard_buffer *buffer = rp__guard_entry(guard, entry);
  if (!buffer || buffer->class_index == RP_POOL_NONE || buffer->plan_slot == RP_POOL_NONE) return false;
  struct rp_pool_buffer_info info = rp__guard_info(guard, entry->id);
  if (info.binding != RP_POOL_PRIVATE || info.class_id != RP_POOL_NONE || info.flags) return false;
  if (buffer->partial || !buffer->trained || !buffer->now.total || !buffer->lifetimes) return false;
  return !open_life(&info) && buffer->step + 1 == guard->step;
}

/* Were two messages of the last step, which would have had one slot, in use at once? */
static bool would_collide(const struct rp_guard *guard, const struct rp__guard_entry *entry) {
  const struct rp__guard_buffer *buffer = &guard->buffers[entry->id];
  for (size_t i = 0; i < guard->received_before.count; i++) {
    const struct rp__guard_entry *with = &guard->received_before.at[i];
    const struct rp__guard_buffer *other = rp__guard_entry(guard, with);
    if (!other || with->id == entry->id || other->class_index != buffer->class_index) continue;
    struct rp_pool_buffer_info info = rp__guard_info(guard, with->id);
    uint32_t slot = info.binding == RP_POOL_BOUND ? info.slot : other->plan_slot;
    if (slot == buffer->plan_slot && other->post <= buffer->last && buffer->post <= other->last) return true;
  }
  return false;
}

/* An allocator that hands the same few blocks out again and again within a step makes steps look shorter than
 * the plan's; then what it says of their slots means nothing. */
static bool steps_are_the_plans(const struct rp_guard *guard) {
  return guard->plan.usable && !guard->received_before.lost &&
         guard->received_before.count >= guard->plan.item_count;
}

bool rp__guard_joinable(const struct rp_guard *guard) {
  for (size_t i = 0; steps_are_the_plans(guard) && i < guard->received_before.count; i++)
    if (may_join(guard, &guard->received_before.at[i])) return true;
  return false;
}

rp_status rp__guard_join(struct rp_guard *guard) {
  rp_status first = RP_OK;
  for (size_t i = 0; steps_are_the_plans(guard) && i < guard->received_before.count; i++) {
    const struct rp__guard_entry *entry = &guard->received_before.at[i];
    if (!may_join(guard, entry) || would_collide(guard, entry)) continue;
    const struct rp__guard_buffer *buffer = &guard->buffers[entry->id];
    uint32_t class_id = guard->classes[buffer->class_index].pool_class;
    rp_status status = rp_pool_join(guard->pool, entry->id, class_id, buffer->plan_slot);
    if (status == RP_ERROR_STATE || status == RP_ERROR_INVALID) continue; /* never, with this pattern */
    guard->strict_pending |= !status && guard->options.strict;
    if (!first) first = status;
  }
  return first;
}
