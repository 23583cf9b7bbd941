/** @file interval.h
 * Closed intervals on one axis and how many of them overlap. Shared by the planner (positions in a schedule)
 * and the tracker (sequence numbers of calls).
 */
#ifndef RP_POOL_INTERVAL_H
#define RP_POOL_INTERVAL_H

#include <stddef.h>
#include <stdint.h>

#include "recvpool/status.h"

/** [begin, end], both ends included; begin <= end. */
struct rp_interval {
  uint64_t begin;
  uint64_t end;
};

/** Largest number of intervals that contain one point: the clique number of their overlap graph. `depth` is
 * set to 0 for no intervals. RP_ERROR_INVALID if an interval ends before it begins, RP_ERROR_NO_MEMORY. O(n
 * log n). */
rp_status rp_interval_depth(const struct rp_interval *intervals, size_t count, uint32_t *depth);

#endif
