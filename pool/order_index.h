/** @file order_index.h
 * Fixed-size hash index from a three-word key to a slot number: streams, threads, events and graphs of
 * pool/order.
 */
#ifndef RP_POOL_ORDER_INDEX_H
#define RP_POOL_ORDER_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "recvpool/status.h"

/** What names a thing: a handle, and what else tells it from others with the same handle. */
struct rp_order_key {
  uint64_t handle, context, thread;
};

/** Maps keys to the slots 0 … capacity - 1. Allocates in init only. */
struct rp_order_index {
  struct rp_order_key *keys; /* by slot */
  uint32_t *buckets;         /* open addressing; slot + 1, 0 = empty */
  uint32_t *unused;          /* stack of slots that are not taken */
  uint32_t mask, capacity, unused_count;
};

#define RP_ORDER_NO_SLOT UINT32_MAX

/** RP_ERROR_NO_MEMORY, or RP_ERROR_INVALID when capacity is 0 or above 2^20. Pair with rp_order_index_fini.
 */
rp_status rp_order_index_init(struct rp_order_index *index, uint32_t capacity);
void rp_order_index_fini(struct rp_order_index *index);
/** Slot of `key`, or RP_ORDER_NO_SLOT. Expected O(1). */
uint32_t rp_order_index_find(const struct rp_order_index *index, const struct rp_order_key *key);
/** Takes a slot for `key`, which must be absent; RP_ORDER_NO_SLOT when all are taken. */
uint32_t rp_order_index_add(struct rp_order_index *index, const struct rp_order_key *key);
/** Gives `slot` back. It must be taken. */
void rp_order_index_remove(struct rp_order_index *index, uint32_t slot);

#endif
