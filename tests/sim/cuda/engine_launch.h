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

#endif
