/** @file slots.h
 * Which slot each interval uses. Intervals that touch one position never share a slot, and the number of
 * slots is the clique number of the intervals plus the slack asked for, never more: interval graphs are
 * perfect.
 */
#ifndef RP_POOL_SLOTS_H
#define RP_POOL_SLOTS_H

#include <stdbool.h>

#include "pool/interval.h"

/** How slots were given out. */
struct rp_slots {
  uint32_t depth; /**< D: most intervals at one position; the clique number */
  uint32_t count; /**< K = min(intervals, D + slack) */
  /** The n-th interval in order of begin has slot n mod K: slots are a ring. */
  bool ring;
};

/** Gives each interval a slot below `out->count`. Takes a ring where one is safe, otherwise the free slot
 * that has been free for longest, so that slack always lengthens the time between two tenants. `slot` has
 * `count` entries and may be NULL when only the numbers are wanted. Equal begins count in the order given.
 * RP_ERROR_INVALID if an interval ends before it begins. O(n log n), O(n) if sorted. */
rp_status rp_slots_assign(const struct rp_interval *intervals, size_t count, uint32_t slack, uint32_t *slot,
                          struct rp_slots *out);

/** Tenants of several sizes: like rp_slots_assign without slack, but chooses slots so as to grow few of them,
 * and writes the bytes that each slot must have to `slot_bytes` (`count` entries are enough). The number of
 * slots is still the clique number; the sum of bytes is small but not proven least (that is NP-hard). */
rp_status rp_slots_assign_sizes(const struct rp_interval *intervals, const uint64_t *bytes, size_t count,
                                uint32_t *slot, uint64_t *slot_bytes, struct rp_slots *out);

#endif
