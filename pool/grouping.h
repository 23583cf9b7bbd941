/** @file grouping.h
 * Which receives of one step belong to one channel. NCCL names a peer and a size, but not the stage, the
 * direction or the microbatch; these follow from what the process does with the buffers:
 *
 *   peer and size          always apart
 *   what reads the buffer  forward and backward kernels differ, so their argument positions tell directions
 * apart allocation order       frameworks preallocate stage by stage, forward then backward, microbatch by
 * microbatch weights                a kernel that reads a buffer names its stage's weights beside it
 *
 * A finer partition is believed only if it is even: every channel of a process has the same number of
 * microbatches.
 */
#ifndef RP_POOL_GROUPING_H
#define RP_POOL_GROUPING_H

#include "pool/tracker_internal.h"

/** One channel found in a step. */
struct rp_group {
  uint64_t comm, bytes;
  int32_t peer, device;
  enum rp_direction direction;
  uint32_t stage_ordinal;
  uint32_t size; /**< receives in it */
};

/** What grouping knows besides the lifetimes. */
struct rp_group_hints {
  const struct rp_peers *peers;
  uint64_t old_allocation_serial; /**< allocations up to this one are older than the first receive: weights */
  bool just_in_time;              /**< allocation order says nothing */
};

/** Result of rp_group_lives; freed with rp_grouping_fini. */
struct rp_grouping {
  uint32_t *group_of;   /**< [count] group of each lifetime */
  uint32_t *microbatch; /**< [count] its number in the group */
  bool *has_neighbour;  /**< [count] another buffer of the step lies in the same allocation */
  struct rp_group *groups;
  size_t group_count;
};

/** Groups `lives` (in post order). RP_ERROR_NO_MEMORY leaves `out` zeroed. */
rp_status rp_group_lives(const struct rp_life *lives, size_t count, const struct rp_group_hints *hints,
                         struct rp_grouping *out);
void rp_grouping_fini(struct rp_grouping *grouping);

#endif
