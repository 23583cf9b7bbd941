/** @file address_map.h
 * Ordered map from disjoint address ranges to a value: device allocations, and receive buffers in them.
 */
#ifndef RP_POOL_ADDRESS_MAP_H
#define RP_POOL_ADDRESS_MAP_H

#include <stddef.h>
#include <stdint.h>

#include "recvpool/status.h"

/** One range [begin, end) and what belongs to it. */
struct rp_range {
  uint64_t begin, end;
  uint64_t value;
};

/** Sorted by begin, disjoint. Zero-initialised is empty; free with rp_address_map_fini. */
struct rp_address_map {
  struct rp_range *ranges;
  size_t count, capacity;
};

/** Adds [begin, end). RP_ERROR_INVALID if empty, RP_ERROR_EXISTS if it overlaps a range, RP_ERROR_NO_MEMORY.
 */
rp_status rp_address_map_add(struct rp_address_map *map, uint64_t begin, uint64_t end, uint64_t value);
/** Range that contains `address`, or NULL. Valid until the map changes. O(log n). */
struct rp_range *rp_address_map_find(const struct rp_address_map *map, uint64_t address);
/** First range that overlaps [begin, end), or NULL. */
struct rp_range *rp_address_map_overlap(const struct rp_address_map *map, uint64_t begin, uint64_t end);
/** Takes out the range that begins at `begin`; RP_ERROR_NOT_FOUND if there is none. `out` may be NULL. */
rp_status rp_address_map_remove(struct rp_address_map *map, uint64_t begin, struct rp_range *out);
void rp_address_map_fini(struct rp_address_map *map);

#endif
