/** @file layout_cache.h
 * Parameter layouts by function handle: a fixed table that is read without a lock.
 */
#ifndef RP_CUPTI_LAYOUT_CACHE_H
#define RP_CUPTI_LAYOUT_CACHE_H

#include <stdatomic.h>

#include "cupti/cuda_side.h"

/** More parameters than this are not looked at; CUDA's own limit is 4 KiB (32 KiB in newer drivers) of
 * parameters. */
#define RP_LAYOUT_PARAMS 512

/** Layout of one kernel's parameters. In the table only its generation changes: when the driver, asked again
 * after an unload, gave the same answer. */
struct rp_layout {
  uint64_t function;
  _Atomic uint32_t generation;
  uint32_t count;
  struct rp_param_layout params[RP_LAYOUT_PARAMS]; /**< in the table only `count` of them exist */
};

/** Layout of `function`: from the table, else asked of the driver and put there. `scratch` is used when the
 * table is full. NULL if the driver does not tell. Thread-safe; safe in callbacks. */
const struct rp_layout *rp_layout_get(uint64_t function, struct rp_layout *scratch);

#endif
