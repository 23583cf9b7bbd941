/** @file plan.h
 * The inside of a plan, for the parts of recvpool that write, read and show it. The public face is
 * recvpool/plan.h.
 *
 *   schedule or report -> items (what is received, when it is live) -> classes (who shares) -> slots -> sums
 */
#ifndef RP_POOL_PLAN_H
#define RP_POOL_PLAN_H

#include <stdbool.h>

#include "pool/interval.h"
#include "pool/schedule.h"
#include "pool/tracker.h"
#include "recvpool/plan.h"

/** One received buffer of one step. */
struct rp_plan_item {
  struct rp_interval interval; /**< comparable within a rank only */
  uint64_t bytes;              /**< all tensors of the microbatch; 0 = unknown */
  int32_t rank, stage, microbatch;
  enum rp_direction direction;
  uint32_t source;   /**< who sends it: equal numbers within a rank, equal senders */
  uint32_t accesses; /**< how many read it, where a run counted them; else 0 */
  uint32_t readers;  /**< actions of the schedule that read it; 0 = not of a schedule */
};

/** Buffers that share slots. */
struct rp_plan_class {
  int32_t rank;
  int32_t stage;               /**< -1: several */
  enum rp_direction direction; /**< RP_DIRECTION_UNKNOWN: both */
  uint64_t buffer_bytes;       /**< of the largest */
  uint32_t buffers, depth, slots;
  bool ring;
  size_t first;         /**< of its `buffers` entries in members and slots of the plan */
  uint64_t *slot_bytes; /**< [slots] where sizes are mixed, else NULL: all have buffer_bytes */
  uint64_t bytes_stock, bytes_pooled;
};

struct rp_plan {
  int32_t ranks, stages, microbatches;
  struct rp_plan_options options; /**< tensor_bytes points to the plan's own copy */
  char *source;                   /**< where it comes from: name of the schedule, file, report; may be NULL */
  struct rp_plan_item *items;
  size_t item_count;
  uint32_t *members; /**< item indices, class after class, in order of posting */
  uint32_t *slots;   /**< slot of each entry of members */
  struct rp_plan_class *classes;
  size_t class_count;
  struct rp_plan_pool *pools;
  size_t pool_count;
  struct rp_plan_rank *rank; /**< [ranks] */
  uint32_t *lookup;          /**< [2 * stages * microbatches] slot + 1; activation, gradient */
};

/** Builds a plan from items, which it takes over whatever it returns. Stages must each belong to one rank and
 * every number lie within the bounds given. RP_ERROR_LIMIT: bytes overflow. */
rp_status rp__plan_build(struct rp_plan_item *items, size_t count, int32_t ranks, int32_t stages,
                         int32_t microbatches, const struct rp_plan_options *options, struct rp_plan **out);

/** Builds a plan from a lowered and checked schedule. */
rp_status rp__plan_from_schedule(const struct rp_schedule *schedule, const struct rp_plan_options *options,
                                 struct rp_plan **out);

/** Checks options and returns the bytes of one microbatch. RP_ERROR_INVALID, RP_ERROR_LIMIT. */
rp_status rp__plan_options_check(const struct rp_plan_options *options, uint64_t *buffer_bytes);

/** Words for JSON and messages, never NULL. */
const char *rp_plan_granularity_name(int granularity);
/** Granularity by its word, or -1. */
int rp_plan_granularity_of(const char *name);

#endif
