/** @file sim_internal.h
 * The seam inside the simulated libcuda.so.1 between its two halves:
 *
 *   api (api.def + api*.c)   exported entry points with the real prototypes, ENTER/EXIT callbacks, cuInit and
 * injection, cuGetProcAddress, devices, contexts, modules, libraries, functions, failures on demand engine
 * (engine*.c)       memory, VMM, streams, events, copies, launches, host functions, graphs and capture
 *
 * An entry point cuX is `CUresult impl_cuX(same arguments)` in one of the halves, without callbacks; the
 * exported wrapper is made from its line in api.def. `_ptds` and `_ptsz` wrappers call the same impl with
 * sim_default_stream set to CU_STREAM_PER_THREAD.
 */
#ifndef RPSIM_INTERNAL_H
#define RPSIM_INTERNAL_H

#ifndef __CUDA_API_VERSION_INTERNAL
#define __CUDA_API_VERSION_INTERNAL 1
#endif
#include <cuda.h>
#include <cupti_callbacks.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../rpsim.h"

/* ---- api half, used by the engine ---- */

/** What stream handle 0 means for the current call: CU_STREAM_LEGACY, or CU_STREAM_PER_THREAD under
 * _ptds/_ptsz. */
extern _Thread_local CUstream sim_default_stream;

struct sim_engine_context; /**< the engine's part of a context */

/** A context. Created and destroyed by the api half; `engine` belongs to the engine. */
struct sim_context {
  int device;
  uint32_t id;
  bool primary;
  struct sim_engine_context *engine;
};

/** Current context of the calling thread, or NULL. (CUcontext handles are struct sim_context pointers.) */
struct sim_context *sim_context_current(void);
/** Makes `context` current on this thread without callbacks (stream threads do it before host functions). */
void sim_context_set_current(struct sim_context *context);
/** Number of devices, and a device's capacity in bytes. */
int sim_device_count(void);
uint64_t sim_device_capacity_bytes(int device);
/** Value of a device attribute, RPSIM_ATTRIBUTES considered. */
int sim_device_attribute(CUdevice_attribute attribute);

/** Kernel behind a CUfunction or a CUkernel cast to it; NULL if it is neither. */
const struct rpsim_kernel *sim_kernel_of(CUfunction function);

/** Raises a callback of CUPTI's resource domain if somebody enabled it. `stream` may be NULL; `descriptor` is
 * what the CUPTI header says for the id (e.g. a CUpti_GraphData). */
void sim_resource_callback(CUpti_CallbackIdResource id, struct sim_context *context, CUstream stream,
                           void *descriptor);
/** Raises a callback of the synchronize domain. */
void sim_synchronize_callback(CUpti_CallbackIdSync id, struct sim_context *context, CUstream stream);

/* ---- engine half, used by the api ---- */

/** Makes the engine's part of a new context (legacy stream and so on) and its release, which waits for all
 * work. */
CUresult sim_engine_context_create(struct sim_context *context);
void sim_engine_context_destroy(struct sim_context *context);
/** Waits for all work of the context; its sticky error, if it has one. */
CUresult sim_engine_context_synchronize(struct sim_context *context);
/** Sticky error of the context (illegal address …) or CUDA_SUCCESS. Entry points that the real driver fails
 * after a sticky error are failed by the wrapper through this. */
CUresult sim_engine_sticky_error(struct sim_context *context);
/** Free and total bytes of a device. */
void sim_engine_memory_info(int device, uint64_t *free_bytes, uint64_t *total_bytes);
/** In a fork's child: there are no stream threads; every later call fails with CUDA_ERROR_NOT_INITIALIZED. */
void sim_engine_after_fork_child(void);

#endif
