/** @file shared_pool.h
 * What a pool without a guard would be: the receive buffers of a rank over as few pieces of memory as the
 * planner says for its schedule, bound for good. A run that keeps to its schedule comes to the same result;
 * one that makes a mistake does not. Simulated device only.
 */
#ifndef RP_TRAINER_SHARED_POOL_H
#define RP_TRAINER_SHARED_POOL_H

#include "options.h"
#include "pool/schedule.h"

struct rp_shared_pool;

/** Plans and maps the buffers of one rank. Ends the process on failure. */
struct rp_shared_pool *rp_shared_pool_create(const struct rp_trainer_options *options,
                                             const struct rp_schedule *schedule, int rank);
/** NULL is allowed; the device must be done. */
void rp_shared_pool_destroy(struct rp_shared_pool *pool);
/** Memory of one receive buffer; NULL if the pool is. */
void *rp_shared_pool_memory(const struct rp_shared_pool *pool, int32_t stage, int direction,
                            int32_t microbatch);

#endif
