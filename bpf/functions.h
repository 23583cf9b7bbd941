/** @file functions.h
 * The functions that can be probed, and how each is to be read.
 */
#ifndef RP_BPF_FUNCTIONS_H
#define RP_BPF_FUNCTIONS_H

#include <stdbool.h>
#include <stddef.h>

#include "bpf/probe.h"

/** When a function is worth a probe. */
enum rp_probe_need {
  RP_PROBE_ALWAYS = 0,
  RP_PROBE_WITH_LAUNCHES = 1 /**< only where accesses are followed */
};

struct rp_probe_function {
  const char *name;
  const char *alias; /**< second name of the same function, or NULL */
  struct rp_probe_shape shape;
  enum rp_probe_need need;
  bool returns; /**< its return is probed too */
};

/** Number of rows; at most RP_PROBE_FUNCTION_PROCESS. */
size_t rp_probe_function_count(void);
/** Row `index`, which is also what records carry; NULL past the end. Static storage. */
const struct rp_probe_function *rp_probe_function_at(size_t index);
/** How many arguments of a row are known to be passed in registers, at most RP_PROBE_REGISTERS. */
unsigned rp_probe_function_arguments(size_t index);
/** Row of a symbol by either of its names, -1 if it is none of ours. */
int rp_probe_function_find(const char *symbol);
/** "runtime", "driver", "nccl", "system". */
const char *rp_probe_layer_name(enum rp_probe_layer layer);

#endif
