/** @file runtime.h
 * Inside the simulated CUDA runtime. An exported cudaX (entry.c, made from entry.def) brings up what it
 * needs, raises CUPTI's runtime-domain callbacks and keeps the thread's last error; its body is impl_cudaX in
 * the file of its topic. Bodies reach the driver only through RT(), so this library has no link-time
 * dependency on it.
 */
#ifndef RPSIM_CUDART_RUNTIME_H
#define RPSIM_CUDART_RUNTIME_H

#include "../cuda/tools.h"

#include <cuda.h>
#include <cudaProfiler.h>
/* The driver's names are wanted as a program sees them, the runtime's in both spellings of the default
 * stream. */
#ifndef __CUDA_API_VERSION_INTERNAL
#define __CUDA_API_VERSION_INTERNAL 1
#define RT_DEFINED_INTERNAL
#endif
#include <cuda_runtime_api.h>
#include <cuda_profiler_api.h>
#ifdef RT_DEFINED_INTERNAL
#undef __CUDA_API_VERSION_INTERNAL
#endif
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef RPSIM_CUDART_STATIC
#define RT_EXPORT /* part of the program: nothing leaves it */
#else
#define RT_EXPORT __attribute__((visibility("default")))
#endif

/** Entry points of the driver, NULL where it lacks one. */
struct rt_driver {
#define RT_DRIVER(function, version) __typeof__(&function) function;
#include "driver.def"
#undef RT_DRIVER
};

/** Table for the call in progress on this thread: the legacy or the per-thread default stream's. */
extern _Thread_local const struct rt_driver *rt_driver;

/** Result of a driver call as the runtime reports it. */
cudaError_t rt_error(CUresult result);

/** RT(cuX, arguments...): calls the driver, gives a cudaError_t. */
#define RT(function, ...)                                                                                    \
  (rt_driver->function ? rt_error(rt_driver->function(__VA_ARGS__)) : cudaErrorCallRequiresNewerDriver)

/** Loads the driver and initialises it: cudaErrorInsufficientDriver without one, cudaErrorNoDevice, or
 * cuInit's error, which is tried again at the next call. `per_thread` picks the table that goes to *driver.
 * Thread-safe. */
cudaError_t rt_driver_get(bool per_thread, const struct rt_driver **driver);
/** The legacy table without cuInit, or NULL if there is no driver. */
const struct rt_driver *rt_driver_loaded(void);

/** Makes a context current on this thread if none is: the primary context of the thread's device. */
cudaError_t rt_context_ensure(void);
/** Primary context of a device, retained if it was not yet. */
cudaError_t rt_primary_context(int device, CUcontext *context);
/** Device of the calling thread. */
cudaError_t rt_context_device(int *device);

/** The calling thread's last error; set by entry.c. */
extern _Thread_local cudaError_t rt_last_error;

/** Kernel behind a host symbol or a handle that this runtime has given out, else
 * cudaErrorInvalidDeviceFunction. */
cudaError_t rt_kernel_find(const void *symbol, CUkernel *kernel);
/** Lets rt_kernel_find accept the handle itself; `symbol` is the host symbol it came from, or NULL. */
cudaError_t rt_kernel_remember(const void *handle, const void *symbol);
/** Name of a kernel registered with this runtime, without a driver call; NULL if it is not one. */
const char *rt_kernel_name(const void *symbol);
/** Address and bytes of the device variable behind a host symbol, else cudaErrorInvalidSymbol. */
cudaError_t rt_variable_find(const void *symbol, CUdeviceptr *address, size_t *bytes);

/** A place of memory as the driver describes it. */
CUmemLocation rt_location(const struct cudaMemLocation *location);

enum rt_needs { RT_NEEDS_NONE, RT_NEEDS_DRIVER, RT_NEEDS_CONTEXT, RT_NEEDS_ERROR };

/** One runtime call on its way through entry.c. */
struct rt_call {
  enum rt_needs needs;
  struct rpsim_tools_call traced;
  const struct rt_driver *driver; /**< table of the call around this one */
};

/** ENTER and EXIT callbacks of the runtime domain, if the driver is loaded and a tool listens. */
void rt_callback_enter(struct rt_call *call);
void rt_callback_exit(struct rt_call *call, cudaError_t result);
/** The simulated driver's interface for tools, or NULL. */
const struct rpsim_tools *rt_tools(void);
/** Where the driver keeps its tools' entry points, NULL without a driver or if it is the real one. */
void *rt_driver_symbol(const char *name);

#define RT_CALL(needs, name, traced, parameters, arguments) cudaError_t impl_##name parameters;
#define RT_TWIN(needs, name, suffix, traced, traced_twin, parameters, arguments)                             \
  cudaError_t impl_##name parameters;
#define RT_VOID(needs, name, traced) cudaError_t impl_##name(void);
#include "entry.def"
#undef RT_CALL
#undef RT_TWIN
#undef RT_VOID

#endif
