/** @file engine_launch.h
 * The work of a kernel launch, for the graph half of the engine. */
#ifndef RPSIM_ENGINE_LAUNCH_H
#define RPSIM_ENGINE_LAUNCH_H

#include "engine_internal.h"

struct sim_kernel_work {
  struct sim_work work;
  const struct rpsim_kernel *kernel;
  CUfunction function; /**< as the caller named it */
  struct rpsim_dims dims;
  unsigned char *packed; /**< parameters at their offsets */
  void **params;         /**< params[i] points into packed */
};

/** The work of a node that is added by hand; parameters are copied. */
CUresult sim_kernel_node_work(const CUDA_KERNEL_NODE_PARAMS *params, struct sim_work **made);
CUresult sim_memset_node_work(const CUDA_MEMSET_NODE_PARAMS *params, struct sim_work **made);
CUresult sim_copy_node_work(const CUDA_MEMCPY3D *params, struct sim_work **made);

#endif
