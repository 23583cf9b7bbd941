/** @file work.h
 * One call that uses receive buffers, as the guards are told of it: a launch, a copy, a memset or a graph
 * launch.
 */
#ifndef RP_AGENT_WORK_H
#define RP_AGENT_WORK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cupti/cuda_side.h"
#include "pool/order.h"
#include "pool/pool.h"

/** One range that a call uses; bytes 0: a pointer into a buffer. */
struct rp_use {
  uint64_t address, bytes;
  enum rp_pool_access_mode mode;
  uint32_t kind;  /**< enum rp_event_kind */
  uint32_t place; /**< of a launch: as in struct rp_guard_access */
};

/** The call. Lives on the stack of who makes it. */
struct rp_work {
  struct rp_order_site site;
  uint64_t function, seq, time_ns;     /**< of its first event */
  uint64_t graph;                      /**< a graph launch: the executable graph, else 0 */
  bool hit;                            /**< set when asked about: a guard knows a buffer of it */
  const struct rp_launch_words *words; /**< a launch: its words, else NULL */
  struct rp_use uses[2];               /**< otherwise */
  size_t use_count;
};

/** The next use of `work`, each address of a launch once. Begin with *position 0; false at the end. */
bool rp_work_next(const struct rp_work *work, size_t *position, struct rp_use *out);

#endif
