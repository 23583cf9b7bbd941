/** @file plan.h
 * How many receive buffers a pipeline schedule really needs, and which microbatch uses which slot: recvpool's
 * planner for programs that want to size or share their receive buffers themselves.
 *
 *   struct rp_plan_options options = RP_PLAN_OPTIONS_INIT;
 *   uint64_t bytes = 436u << 20;
 *   options.tensor_bytes = &bytes;
 *   options.tensor_count = 1;
 *   if (rp_plan_create_named("1f1b", 8, 1, 64, &options, &plan, message, sizeof message) == RP_OK) ...
 *
 * A plan is made once and only read afterwards: any number of threads may read one plan at the same time. No
 * function here does I/O, starts threads or keeps global state. Link with `pkg-config --static --libs
 * recvpool`, or in CMake with find_package(recvpool) and recvpool::core.
 */
#ifndef RECVPOOL_PLAN_H
#define RECVPOOL_PLAN_H

#include <stddef.h>
#include <stdint.h>

#include "recvpool/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Which way a received tensor flows. */
enum rp_plan_direction {
  RP_PLAN_ACTIVATION = 1, /**< from the stage before */
  RP_PLAN_GRADIENT = 2    /**< from the stage after */
};

/** Which buffers may share slots. */
enum rp_plan_granularity {
  RP_PLAN_STAGE = 0,     /**< those of one stage and direction */
  RP_PLAN_DIRECTION = 1, /**< those of one direction on a rank */
  RP_PLAN_RANK = 2,      /**< all of a rank */
  RP_PLAN_GRANULARITY_COUNT = 3
};

/** Options of a plan. Start from RP_PLAN_OPTIONS_INIT, which sets `size`; fields added in later versions are
 * zero then. NULL in place of options means RP_PLAN_OPTIONS_INIT. */
struct rp_plan_options {
  size_t size;                  /**< sizeof(struct rp_plan_options) */
  const uint64_t *tensor_bytes; /**< of each tensor that a microbatch passes on; NULL = unknown */
  size_t tensor_count;
  uint32_t slack;         /**< slots beyond the depth, so that a receive can be posted without waiting */
  uint32_t receive_ahead; /**< each receive is posted together with the one this many places before it */
  int granularity;        /**< enum rp_plan_granularity */
  int forward_only;       /**< non-zero: evaluation, the forward is the last reader */
  int post_at_use;        /**< non-zero: receives are posted directly before their first reader */
  int mixed_sizes;        /**< non-zero: a slot may hold buffers of its size or smaller */
  int torch_version; /**< 100 * major + minor of the torch that adds transfers to a schedule without; 0 = 210
                      */
};

#define RP_PLAN_OPTIONS_INIT                                                                                 \
  { sizeof(struct rp_plan_options), NULL, 0, 0, 0, RP_PLAN_STAGE, 0, 0, 0, 0 }

/** What one stage receives from one direction. */
struct rp_plan_pool {
  int32_t rank, stage;
  int direction;           /**< enum rp_plan_direction */
  uint32_t buffers;        /**< N: received in one step */
  uint32_t depth;          /**< D: most of them live at once */
  uint32_t slots;          /**< K = min(N, D + slack) */
  uint32_t existing_slots; /**< ring of existing practice, rp_ring_size_1f1b; 0 where that does not apply */
  int ring;                /**< non-zero: the n-th receive can use slot n mod K */
  uint64_t buffer_bytes;   /**< bytes of one microbatch, all tensors */
  uint64_t bytes_stock;    /**< one buffer per microbatch */
  uint64_t bytes_pooled;   /**< K buffers */
};

/** What one rank needs. */
struct rp_plan_rank {
  int32_t rank;
  uint32_t slots[RP_PLAN_GRANULARITY_COUNT]; /**< at each granularity, without slack */
  uint64_t bytes_stock;
  uint64_t bytes_pooled; /**< at the granularity of the options, with slack */
};

/** Sums over all ranks. */
struct rp_plan_totals {
  uint64_t buffers, slots; /**< at the granularity of the options, with slack */
  uint64_t bytes_stock, bytes_pooled;
};

struct rp_plan;

/** Plans a named schedule ("gpipe", "1f1b", "interleaved_1f1b", "looped_bfs"): `ranks` ranks with `chunks`
 * stages each. On failure `plan` is untouched and `message` (may be NULL if message_size is 0) holds one line
 * that says what is wrong and what to do. RP_ERROR_NOT_FOUND: no such schedule; RP_ERROR_SCHEDULE: numbers it
 * does not take; RP_ERROR_INVALID: options out of range; RP_ERROR_LIMIT: sizes overflow; RP_ERROR_NO_MEMORY.
 */
rp_status rp_plan_create_named(const char *name, int32_t ranks, int32_t chunks, int32_t microbatches,
                               const struct rp_plan_options *options, struct rp_plan **plan, char *message,
                               size_t message_size);

/** Plans a schedule in the text format of torch.distributed.pipelining, with or without its transfers. As
 * above, and RP_ERROR_SYNTAX: the text cannot be parsed. `text` need not end with a NUL and is not kept. */
rp_status rp_plan_create_csv(const char *text, size_t length, const struct rp_plan_options *options,
                             struct rp_plan **plan, char *message, size_t message_size);

/** Frees a plan; NULL is allowed. */
void rp_plan_destroy(struct rp_plan *plan);

/** Number of ranks and of pools (stage and direction) of a plan. */
size_t rp_plan_rank_count(const struct rp_plan *plan);
size_t rp_plan_pool_count(const struct rp_plan *plan);
/** Copies out one of them, in order of rank, then stage, then direction. RP_ERROR_NOT_FOUND: index out of
 * range. */
rp_status rp_plan_rank_get(const struct rp_plan *plan, size_t index, struct rp_plan_rank *out);
rp_status rp_plan_pool_get(const struct rp_plan *plan, size_t index, struct rp_plan_pool *out);
/** Sums over the plan. */
void rp_plan_totals_get(const struct rp_plan *plan, struct rp_plan_totals *out);

/** Slot of one received microbatch, counted from 0 within its pool at the granularity of the options.
 *  RP_ERROR_NOT_FOUND: the plan has no such receive. O(1). */
rp_status rp_plan_slot(const struct rp_plan *plan, int32_t stage, enum rp_plan_direction direction,
                       int32_t microbatch, uint32_t *slot);

/** Ring size of existing practice for 1F1B, the same in both directions: max(2, min(microbatches, max(1,
 * stages - stage) + slack)). RP_ERROR_INVALID: no such stage, no microbatch, or negative slack. */
rp_status rp_ring_size_1f1b(int32_t stages, int32_t stage, int32_t microbatches, int32_t slack,
                            uint32_t *slots);

#define RP_POOL_ACTIVATIONS 1 /**< fewer slots than microbatches are enough for activations */
#define RP_POOL_GRADIENTS 2   /**< the same for gradients */

/** Whether buffers of a schedule can share slots: a sum of RP_POOL_*, or RP_ERROR_NOT_FOUND for a name that
 * is not known (torch's class names are understood too, in any case and with or without underscores).
 * `reason` (may be NULL) receives one sentence in static storage. */
int rp_schedule_supports_pool(const char *name, const char **reason);

#ifdef __cplusplus
}
#endif
#endif
