/* Quiescent points: everything back to private memory, pinned buffers out of their slots, and what the driver
 * would not take back before. The device is done with all buffers. */
#include "pool/pool_internal.h"

#include <stdlib.h>

void rp_pool_request_fallback(struct rp_pool *pool, enum rp_pool_reason reason) {
  pool->generation++;
  if (!pool->info.fallback_pending) rp__pool_reason(pool, reason);
  pool->info.fallback_pending = true;
}

/* Each slot's memory stays with one buffer: the tenant, unless its data is dead and the address of another
 * has left our sight and must not change what is behind it. */
static void choose_keepers(struct rp_pool *pool) {
  for (uint32_t b = 0; b < pool->buffer_count; b++) {
    const struct rp__pool_buffer *buffer = rp__pool_get(pool, b);
    if (!buffer || buffer->binding != RP_POOL_BOUND) continue;
    struct rp__pool_slot *slot = rp__pool_slot_of(pool, buffer);
    const struct rp__pool_buffer *tenant = slot->tenant == RP_POOL_NONE ? NULL : &pool->buffers[slot->tenant];
    bool weak = !tenant || (tenant->life == RP_POOL_DEAD && !tenant->pinned && !tenant->flags);
    if (!tenant || (weak && buffer->flags)) slot->tenant = b;
  }
}

static bool needs_memory(const struct rp_pool *pool, uint32_t id, const struct rp__pool_buffer *buffer) {
  if (buffer->binding == RP_POOL_UNBOUND) return true;
  if (buffer->binding != RP_POOL_BOUND || buffer->flags) return false;
  return rp__pool_slot_of(pool, buffer)->tenant != id;
}

/* Fresh memory for all that share or have none; as many as there is memory for, and none after one for which
 * the driver has left nothing. */
static rp_status separate(struct rp_pool *pool) {
  rp_status first = RP_OK;
  for (uint32_t b = 0; b < pool->buffer_count && !pool->lost_count; b++) {
    const struct rp__pool_buffer *buffer = rp__pool_get(pool, b);
    if (!buffer || !needs_memory(pool, b, buffer)) continue;
    rp_status status = rp__pool_make_private(pool, b);
    if (!first) first = status;
  }
  return first;
}

/* The slot's memory is its last buffer's own. */
static void keep_slot_memory(struct rp_pool *pool, uint32_t id) {
  struct rp__pool_buffer *buffer = &pool->buffers[id];
  rp__memory_assign(pool, buffer->memory, buffer->class_id, RP_POOL_NONE);
  rp__pool_leave_slot(pool, id, RP_POOL_PRIVATE);
}

/* Bound buffers that are alone in their slot own it. The number that still share is returned. */
static uint32_t settle_keepers(struct rp_pool *pool) {
  uint32_t sharing = 0;
  for (uint32_t b = 0; b < pool->buffer_count; b++) {
    const struct rp__pool_buffer *buffer = rp__pool_get(pool, b);
    if (!buffer || buffer->binding != RP_POOL_BOUND) continue;
    if (pool->memories[buffer->memory].references == 1)
      keep_slot_memory(pool, b);
    else
      sharing++;
  }
  return sharing;
}

static void stop_sharing(struct rp_pool *pool) {
  for (uint32_t c = 0; c < pool->class_count; c++)
    pool->classes[c].sharing = false;
  for (uint32_t f = 0; f < pool->family_count; f++)
    pool->families[f].sharing = false;
}

/* What a broken step had received is abandoned. */
static void unfreeze(struct rp_pool *pool) {
  if (!pool->info.frozen) return;
  for (uint32_t b = 0; b < pool->buffer_count; b++)
    pool->buffers[b].life = RP_POOL_DEAD;
  pool->info.frozen = false;
}

/* Buffers of their own are used without asking. One that stays concealed is tried again when it is used. */
static void reveal_all(struct rp_pool *pool) {
  for (uint32_t b = 0; b < pool->buffer_count; b++)
    if (rp__pool_get(pool, b)) (void)rp_pool_reveal(pool, b);
}

rp_status rp_pool_fallback(struct rp_pool *pool, bool capturing) {
  if (capturing) return RP_ERROR_BUSY;
  pool->generation++;
  rp_status first = rp__pool_cleanup(pool);
  stop_sharing(pool);
  unfreeze(pool);
  reveal_all(pool);
  choose_keepers(pool);
  rp_status status = separate(pool);
  if (!status && pool->lost_count) status = RP_ERROR_UNAVAILABLE;
  if (status) {
    rp__pool_reason(pool, status == RP_ERROR_NO_MEMORY ? RP_POOL_OUT_OF_MEMORY : RP_POOL_BACKEND_FAILED);
    first = status;
  }
  uint32_t sharing = settle_keepers(pool);
  rp__headroom_trim(pool);
  if (!first && sharing) first = RP_ERROR_STATE;
  pool->info.fallback_pending = first != RP_OK;
  pool->info.fallbacks++;
  return first;
}

/* Pinned buffers. */

/* Others bound to the slot of `id`, or RP_POOL_NONE if one of them must not be remapped. */
static uint32_t others_in_slot(const struct rp_pool *pool, uint32_t id) {
  const struct rp__pool_buffer *pinned = &pool->buffers[id];
  uint32_t others = 0;
  for (uint32_t b = 0; b < pool->buffer_count; b++) {
    const struct rp__pool_buffer *buffer = rp__pool_get(pool, b);
    if (!buffer || b == id || buffer->binding != RP_POOL_BOUND) continue;
    if (buffer->class_id != pinned->class_id || buffer->slot != pinned->slot) continue;
    if (buffer->flags) return RP_POOL_NONE;
    others++;
  }
  return others;
}

/* Moves all others of the slot to `memory`; all or none. */
static rp_status move_others(struct rp_pool *pool, uint32_t id, uint32_t memory,
                             struct rp__pool_moves *moves) {
  const struct rp__pool_buffer *pinned = &pool->buffers[id];
  for (uint32_t b = 0; b < pool->buffer_count; b++) {
    const struct rp__pool_buffer *buffer = rp__pool_get(pool, b);
    if (!buffer || b == id || buffer->binding != RP_POOL_BOUND) continue;
    if (buffer->class_id != pinned->class_id || buffer->slot != pinned->slot) continue;
    rp_status status = rp__pool_move(pool, moves, b, memory);
    if (!status) continue;
    rp__pool_moves_undo(pool, moves);
    return status;
  }
  return RP_OK;
}

/* The pinned buffer keeps the memory and its contents; the slot gets fresh memory for the others. */
static rp_status unpin(struct rp_pool *pool, uint32_t id) {
  struct rp__pool_buffer *pinned = &pool->buffers[id];
  uint32_t class_id = pinned->class_id, slot = pinned->slot, memory;
  uint32_t others = others_in_slot(pool, id);
  if (others == RP_POOL_NONE) return RP_ERROR_STATE;
  if (!others) {
    keep_slot_memory(pool, id);
    return RP_OK;
  }
  struct rp__pool_moves moves = {.list = calloc(others, sizeof *moves.list)};
  if (!moves.list) return RP_ERROR_NO_MEMORY;
  rp_status status = rp__memory_create(pool, class_id, pinned->mapped_bytes, &memory);
  if (!status) {
    status = move_others(pool, id, memory, &moves);
    if (!status) {
      keep_slot_memory(pool, id);
      rp__memory_assign(pool, memory, class_id, slot);
      rp__pool_moves_settle(pool, &moves);
    }
    rp__memory_drop(pool, memory);
  }
  free(moves.list);
  return status;
}

static rp_status unpin_all(struct rp_pool *pool) {
  rp_status first = RP_OK;
  for (uint32_t b = 0; b < pool->buffer_count; b++) {
    const struct rp__pool_buffer *buffer = rp__pool_get(pool, b);
    if (!buffer || !buffer->pinned) continue;
    rp_status status = unpin(pool, b);
    if (!first) first = status;
  }
  return first;
}

rp_status rp_pool_quiescent(struct rp_pool *pool, bool capturing) {
  if (capturing) return RP_ERROR_BUSY;
  if (pool->info.fallback_pending) return rp_pool_fallback(pool, false);
  pool->generation++;
  rp_status first = rp__pool_cleanup(pool);
  rp_status status = unpin_all(pool);
  return first ? first : status;
}
