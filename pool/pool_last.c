/* What slot an address last had: receives are looked at when the buffers they went to are long freed. Owns a
 * ring of addresses whose buffers have left their slot since the last receive there, the oldest overwritten
 * first. */
#include "pool/pool_internal.h"

#include <stdlib.h>

/* Room for one more, so that the ring grows only as far as it is needed. */
static bool make_room(struct rp__pool_last *last) {
  if (last->next < last->capacity || last->capacity == RP_POOL_LAST_BINDINGS) return last->capacity > 0;
  uint32_t capacity = last->capacity ? 2 * last->capacity : 64;
  if (capacity > RP_POOL_LAST_BINDINGS) capacity = RP_POOL_LAST_BINDINGS;
  struct rp_pool_last_binding *grown = realloc(last->ring, capacity * sizeof *grown);
  if (!grown) return last->capacity > 0;
  last->ring = grown;
  for (uint32_t i = last->capacity; i < capacity; i++)
    grown[i].class_id = RP_POOL_NONE;
  last->capacity = capacity;
  return true;
}

static void forget_at(struct rp__pool_last *last, uint32_t index) {
  (void)rp_address_map_remove(&last->by_address, last->ring[index].address, NULL);
  last->ring[index].class_id = RP_POOL_NONE;
}

/* Where to put a new one: a place nothing is in, or that of the oldest. UINT32_MAX without memory. */
static uint32_t take_place(struct rp__pool_last *last) {
  if (!make_room(last)) return UINT32_MAX;
  if (last->next >= last->capacity) last->next = 0;
  uint32_t index = last->next++;
  if (last->ring[index].class_id == RP_POOL_NONE) return index;
  forget_at(last, index);
  last->dropped++;
  return index;
}

void rp__pool_last_note(struct rp_pool *pool, const struct rp__pool_buffer *buffer) {
  struct rp__pool_last *last = &pool->last;
  const struct rp_range *known = rp_address_map_find(&last->by_address, buffer->address);
  uint32_t index = known ? (uint32_t)known->value : take_place(last);
  bool added = known || (index != UINT32_MAX && rp_address_map_add(&last->by_address, buffer->address,
                                                                   buffer->address + 1, index) == RP_OK);
  if (added)
    last->ring[index] = (struct rp_pool_last_binding){buffer->address, buffer->class_id, buffer->slot};
  else
    last->dropped++;
}

void rp__pool_last_forget(struct rp_pool *pool, uint64_t address) {
  const struct rp_range *known = rp_address_map_find(&pool->last.by_address, address);
  if (known) forget_at(&pool->last, (uint32_t)known->value);
}

void rp__pool_last_forget_class(struct rp_pool *pool, uint32_t class_id) {
  for (uint32_t i = 0; i < pool->last.capacity; i++)
    if (pool->last.ring[i].class_id == class_id) forget_at(&pool->last, i);
}

size_t rp_pool_last_bindings(const struct rp_pool *pool, struct rp_pool_last_binding *out) {
  size_t count = 0;
  for (uint32_t i = 0; i < pool->last.capacity; i++) {
    if (pool->last.ring[i].class_id == RP_POOL_NONE) continue;
    if (out) out[count] = pool->last.ring[i];
    count++;
  }
  return count;
}

uint64_t rp__pool_last_bytes(const struct rp_pool *pool) {
  return pool->last.capacity * sizeof *pool->last.ring +
         pool->last.by_address.capacity * sizeof *pool->last.by_address.ranges;
}

void rp__pool_last_fini(struct rp_pool *pool) {
  rp_address_map_fini(&pool->last.by_address);
  free(pool->last.ring);
}
