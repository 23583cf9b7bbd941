/* Headroom: physical memory kept back for buffers that share, so that one of them can be given memory of its
 * own when the device has none left. Owns the handles kept, by size. It is made of what sharing sets free, is
 * counted as held, and never more than the buffers would hold without sharing. */
#include "pool/pool_internal.h"

#include <stdlib.h>

static struct rp__headroom *headroom_find(const struct rp_pool *pool, uint64_t bytes) {
  for (uint32_t h = 0; h < pool->headroom_count; h++)
    if (pool->headroom[h].bytes == bytes) return &pool->headroom[h];
  return NULL;
}

/* Entry for a size; NULL without host memory. */
static struct rp__headroom *headroom_of(struct rp_pool *pool, uint64_t bytes) {
  struct rp__headroom *found = headroom_find(pool, bytes);
  if (found) return found;
  struct rp__headroom *grown =
      realloc(pool->headroom, (pool->headroom_count + (size_t)1) * sizeof *pool->headroom);
  if (!grown) return NULL;
  pool->headroom = grown;
  grown[pool->headroom_count] = (struct rp__headroom){.bytes = bytes};
  return &grown[pool->headroom_count++];
}

/* Whole buffers, so that each of them is enough for one. */
static uint64_t wanted(const struct rp_pool *pool, uint64_t bytes) {
  uint64_t most = pool->options.headroom_bytes / bytes + (pool->options.headroom_bytes % bytes != 0);
  return most < pool->options.max_buffers ? most : pool->options.max_buffers;
}

static bool size_shares(const struct rp_pool *pool, uint64_t bytes) {
  for (uint32_t b = 0; b < pool->buffer_count; b++) {
    const struct rp__pool_buffer *buffer = rp__pool_get(pool, b);
    if (!buffer || buffer->mapped_bytes != bytes) continue;
    if (buffer->binding == RP_POOL_BOUND || buffer->binding == RP_POOL_UNBOUND) return true;
  }
  return false;
}

static bool headroom_add(struct rp_pool *pool, struct rp__headroom *room, uint32_t memory) {
  if (room->count == room->capacity) {
    uint32_t capacity = room->capacity ? 2 * room->capacity : 4;
    uint32_t *grown = realloc(room->memory, capacity * sizeof *grown);
    if (!grown) return false;
    room->memory = grown;
    room->capacity = capacity;
  }
  room->memory[room->count++] = memory;
  pool->info.headroom_bytes += room->bytes;
  if (pool->info.headroom_bytes > pool->info.headroom_peak_bytes)
    pool->info.headroom_peak_bytes = pool->info.headroom_bytes;
  return true;
}

static uint32_t headroom_take(struct rp_pool *pool, struct rp__headroom *room) {
  pool->info.headroom_bytes -= room->bytes;
  return room->memory[--room->count];
}

bool rp__headroom_keep(struct rp_pool *pool, uint32_t memory) {
  const struct rp__memory *entry = &pool->memories[memory];
  if (!pool->options.headroom_bytes || pool->headroom_closed) return false;
  if (pool->info.account.physical_bytes > pool->info.account.one_to_one_bytes) return false;
  if (!size_shares(pool, entry->bytes)) return false;
  struct rp__headroom *room = headroom_of(pool, entry->bytes);
  return room && room->count < wanted(pool, entry->bytes) && headroom_add(pool, room, memory);
}

void rp__headroom_fill(struct rp_pool *pool, uint64_t bytes) {
  const struct rp_pool_account *account = &pool->info.account;
  uint32_t memory;
  if (!pool->options.headroom_bytes || pool->headroom_closed) return;
  struct rp__headroom *room = headroom_of(pool, bytes);
  if (!room || room->count >= wanted(pool, bytes)) return;
  if (account->physical_bytes + bytes > account->one_to_one_bytes) return;
  if (rp__memory_try(pool, RP_POOL_NONE, bytes, &memory)) return; /* and without headroom, then */
  if (!headroom_add(pool, room, memory)) rp__memory_drop(pool, memory);
}

uint32_t rp__headroom_use(struct rp_pool *pool, uint64_t bytes) {
  struct rp__headroom *room = headroom_find(pool, bytes);
  if (!room || !room->count) return RP_POOL_NONE;
  pool->info.headroom_used++;
  return headroom_take(pool, room);
}

/* More than is of use: nothing of the size shares any more, or few enough buffers are left. */
static bool excess(const struct rp_pool *pool, const struct rp__headroom *room) {
  const struct rp_pool_account *account = &pool->info.account;
  if (!room->count) return false;
  return account->physical_bytes > account->one_to_one_bytes || !size_shares(pool, room->bytes);
}

void rp__headroom_trim(struct rp_pool *pool) {
  if (!pool->info.headroom_bytes) return;
  bool closed = pool->headroom_closed;
  pool->headroom_closed = true; /* what is given back is not kept again */
  for (uint32_t h = 0; h < pool->headroom_count; h++)
    while (excess(pool, &pool->headroom[h]))
      rp__memory_drop(pool, headroom_take(pool, &pool->headroom[h]));
  pool->headroom_closed = closed;
}

void rp__headroom_fini(struct rp_pool *pool) {
  for (uint32_t h = 0; h < pool->headroom_count; h++)
    free(pool->headroom[h].memory);
  free(pool->headroom);
}
