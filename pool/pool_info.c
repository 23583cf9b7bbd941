/* Copying a pool's state out. */
#include "pool/pool_internal.h"

static void count_binding(struct rp_pool_info *info, const struct rp__pool_buffer *buffer) {
  info->buffers++;
  info->unbound += buffer->binding == RP_POOL_UNBOUND;
  info->bound += buffer->binding == RP_POOL_BOUND;
  info->private_buffers += buffer->binding == RP_POOL_PRIVATE;
  info->lost += buffer->lost;
  info->concealed += buffer->concealed;
  info->pins_pending |= buffer->pinned;
}

void rp_pool_info(const struct rp_pool *pool, struct rp_pool_info *out) {
  *out = pool->info;
  out->classes = pool->class_count;
  out->last_bindings_dropped = pool->last.dropped;
  for (uint32_t b = 0; b < pool->buffer_count; b++) {
    const struct rp__pool_buffer *buffer = &pool->buffers[b];
    if (!buffer->in_use) continue;
    if (!buffer->freed) count_binding(out, buffer);
    out->cleanup_pending |= buffer->freed || buffer->lost;
  }
  for (uint32_t m = 0; m < pool->memory_count; m++)
    out->cleanup_pending |= pool->memories[m].in_use && pool->memories[m].doomed;
}

rp_status rp_pool_buffer(const struct rp_pool *pool, uint32_t id, struct rp_pool_buffer_info *out) {
  const struct rp__pool_buffer *buffer = rp__pool_get(pool, id);
  if (!buffer) return RP_ERROR_NOT_FOUND;
  *out = (struct rp_pool_buffer_info){.address = buffer->address,
                                      .bytes = buffer->bytes,
                                      .mapped_bytes = buffer->mapped_bytes,
                                      .binding = buffer->binding,
                                      .life = buffer->life,
                                      .class_id = buffer->class_id,
                                      .slot = buffer->slot,
                                      .touched = buffer->touched,
                                      .pinned = buffer->pinned,
                                      .convertible = rp__pool_convertible(pool, buffer),
                                      .concealed = buffer->concealed,
                                      .lost = buffer->lost,
                                      .flags = buffer->flags};
  return RP_OK;
}

rp_status rp_pool_class(const struct rp_pool *pool, uint32_t class_id, struct rp_pool_class_info *out) {
  if (class_id >= pool->class_count) return RP_ERROR_NOT_FOUND;
  const struct rp__pool_class *class = &pool->classes[class_id];
  *out = (struct rp_pool_class_info){.spec = class->spec,
                                     .sharing = class->sharing,
                                     .mapped_bytes = class->mapped_bytes,
                                     .grown = class->grown,
                                     .account = class->account};
  for (uint32_t s = 0; s < class->spec.slots; s++)
    out->slots_backed += class->slots[s].memory != RP_POOL_NONE;
  for (uint32_t b = 0; b < pool->buffer_count; b++) {
    const struct rp__pool_buffer *buffer = rp__pool_get(pool, b);
    if (!buffer || buffer->class_id != class_id) continue;
    out->buffers++;
    out->bound += buffer->binding == RP_POOL_BOUND;
    out->private_buffers += buffer->binding == RP_POOL_PRIVATE;
  }
  return RP_OK;
}

rp_status rp_pool_slot(const struct rp_pool *pool, uint32_t class_id, uint32_t slot, uint32_t *tenant,
                       bool *backed) {
  if (class_id >= pool->class_count || slot >= pool->classes[class_id].spec.slots) return RP_ERROR_NOT_FOUND;
  const struct rp__pool_slot *found = &pool->classes[class_id].slots[slot];
  if (tenant) *tenant = found->tenant;
  if (backed) *backed = found->memory != RP_POOL_NONE;
  return RP_OK;
}

const struct rp_pool_conflict *rp_pool_conflicts(const struct rp_pool *pool, size_t *count) {
  *count = pool->conflict_count;
  return pool->conflicts;
}

rp_status rp_pool_find(const struct rp_pool *pool, uint64_t address, uint32_t *buffer) {
  const struct rp_range *found = rp_address_map_find(&pool->addresses, address);
  if (!found) return RP_ERROR_NOT_FOUND;
  *buffer = (uint32_t)found->value;
  return RP_OK;
}

rp_status rp_pool_find_range(const struct rp_pool *pool, uint64_t begin, uint64_t end, uint32_t *buffer) {
  const struct rp_range *found = rp_address_map_overlap(&pool->addresses, begin, end);
  if (!found) return RP_ERROR_NOT_FOUND;
  *buffer = (uint32_t)found->value;
  return RP_OK;
}

void rp_pool_note_conflict(struct rp_pool *pool, const struct rp_pool_conflict *conflict) {
  rp__pool_conflict(pool, conflict);
}

uint64_t rp_pool_bytes(const struct rp_pool *pool) {
  uint64_t bytes = sizeof *pool + pool->buffer_capacity * sizeof *pool->buffers +
                   pool->memory_capacity * sizeof *pool->memories +
                   pool->class_count * sizeof *pool->classes + pool->family_count * sizeof *pool->families +
                   pool->addresses.capacity * sizeof *pool->addresses.ranges;
  for (uint32_t c = 0; c < pool->class_count; c++)
    bytes += pool->classes[c].spec.slots * sizeof *pool->classes[c].slots;
  bytes += rp__pool_last_bytes(pool);
  return bytes + (pool->conflicts ? pool->options.max_conflicts * sizeof *pool->conflicts : 0);
}

uint64_t rp_pool_granularity(const struct rp_pool *pool) {
  return pool->granularity;
}

bool rp_pool_lost(const struct rp_pool *pool) {
  return pool->lost_count > 0;
}

bool rp_pool_frozen(const struct rp_pool *pool) {
  return pool->info.frozen;
}

bool rp_pool_fallback_pending(const struct rp_pool *pool) {
  return pool->info.fallback_pending;
}

uint64_t rp_pool_violations(const struct rp_pool *pool) {
  uint64_t sum = 0;
  for (int kind = 0; kind < RP_POOL_CONFLICT_COUNT; kind++)
    sum += pool->info.violated[kind];
  return sum;
}
