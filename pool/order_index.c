/* The hash index of pool/order: open addressing with linear probing at a load of at most one half, removal by
 * moving back what follows, so that no tombstones gather while handles come and go. */
#include "pool/order_index.h"

#include <stdlib.h>

#define CAPACITY_MAX (1u << 20)

static uint32_t hash(const struct rp_order_key *key) {
  uint64_t mixed = key->handle * UINT64_C(0x9E3779B97F4A7C15);
  mixed = (mixed ^ (mixed >> 32) ^ key->context) * UINT64_C(0xD6E8FEB86659FD93);
  mixed = (mixed ^ (mixed >> 29) ^ key->thread) * UINT64_C(0x9E3779B97F4A7C15);
  return (uint32_t)(mixed >> 32);
}

static bool same(const struct rp_order_key *a, const struct rp_order_key *b) {
  return a->handle == b->handle && a->context == b->context && a->thread == b->thread;
}

rp_status rp_order_index_init(struct rp_order_index *index, uint32_t capacity) {
  *index = (struct rp_order_index){0};
  if (capacity == 0 || capacity > CAPACITY_MAX) return RP_ERROR_INVALID;
  uint32_t size = 4;
  while (size < 2 * capacity)
    size *= 2;
  index->keys = calloc(capacity, sizeof *index->keys);
  index->buckets = calloc(size, sizeof *index->buckets);
  index->unused = calloc(capacity, sizeof *index->unused);
  if (!index->keys || !index->buckets || !index->unused) {
    rp_order_index_fini(index);
    return RP_ERROR_NO_MEMORY;
  }
  index->mask = size - 1;
  index->capacity = capacity;
  while (index->unused_count < capacity) { /* low slots first */
    index->unused[index->unused_count] = capacity - 1 - index->unused_count;
    index->unused_count++;
  }
  return RP_OK;
}

void rp_order_index_fini(struct rp_order_index *index) {
  free(index->keys);
  free(index->buckets);
  free(index->unused);
  *index = (struct rp_order_index){0};
}

/* Bucket that holds `key`, or the empty one where it would go. */
static uint32_t probe(const struct rp_order_index *index, const struct rp_order_key *key) {
  uint32_t at = hash(key) & index->mask;
  while (index->buckets[at] && !same(&index->keys[index->buckets[at] - 1], key))
    at = (at + 1) & index->mask;
  return at;
}

uint32_t rp_order_index_find(const struct rp_order_index *index, const struct rp_order_key *key) {
  uint32_t found = index->buckets[probe(index, key)];
  return found ? found - 1 : RP_ORDER_NO_SLOT;
}

uint32_t rp_order_index_add(struct rp_order_index *index, const struct rp_order_key *key) {
  if (!index->unused_count) return RP_ORDER_NO_SLOT;
  uint32_t slot = index->unused[--index->unused_count];
  index->keys[slot] = *key;
  index->buckets[probe(index, key)] = slot + 1;
  return slot;
}

void rp_order_index_remove(struct rp_order_index *index, uint32_t slot) {
  uint32_t hole = probe(index, &index->keys[slot]);
  index->buckets[hole] = 0;
  for (uint32_t at = (hole + 1) & index->mask; index->buckets[at]; at = (at + 1) & index->mask) {
    uint32_t home = hash(&index->keys[index->buckets[at] - 1]) & index->mask;
    /* Move back unless that would put it before its home. */
    if (((at - home) & index->mask) < ((at - hole) & index->mask)) continue;
    index->buckets[hole] = index->buckets[at];
    index->buckets[at] = 0;
    hole = at;
  }
  index->unused[index->unused_count++] = slot;
}
