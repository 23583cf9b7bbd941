/* Owns which device and context a thread works with: primary contexts retained on first use, one per device.
 */
#include "runtime.h"

#include <pthread.h>

enum { MAX_DEVICES = 64 };

/* generation counts the resets of a device: a context bound before the last one is gone. Both under `lock`.
 */
static struct {
  CUcontext context;
  unsigned generation;
} primaries[MAX_DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static _Thread_local struct {
  int device;
  uint64_t bound; /* context that this runtime made current, and when; 0 = none */
  int bound_device;
  unsigned generation;
} thread;

static cudaError_t device_check(int device) {
  int count = 0;
  cudaError_t error = RT(cuDeviceGetCount, &count);
  if (error) return error;
  return device >= 0 && device < count && device < MAX_DEVICES ? cudaSuccess : cudaErrorInvalidDevice;
}

/* The retain runs outside the lock, since it calls out to an attached tool. */
static cudaError_t primary_get(int device, CUcontext *context, unsigned *generation) {
  pthread_mutex_lock(&lock);
  *context = primaries[device].context;
  *generation = primaries[device].generation;
  pthread_mutex_unlock(&lock);
  if (*context) return cudaSuccess;
  cudaError_t error = RT(cuDevicePrimaryCtxRetain, context, device);
  if (error) return error;
  pthread_mutex_lock(&lock);
  bool extra = primaries[device].context != NULL;
  if (!extra) primaries[device].context = *context;
  *generation = primaries[device].generation;
  pthread_mutex_unlock(&lock);
  return extra ? RT(cuDevicePrimaryCtxRelease, device) : cudaSuccess;
}

struct current {
  uint64_t id; /* of the context, 0 = none */
  int device;
};

/* Asked at every call, so where it can be in a way that no tool sees: the real runtime keeps this to itself
 * as well. */
static cudaError_t current_get(struct current *current) {
  *current = (struct current){0};
  const struct rpsim_tools *tools = rt_tools();
  uint32_t id;
  if (tools) {
    if (tools->context_id(NULL, &id, &current->device)) current->id = (uint64_t)id + 1;
    return cudaSuccess;
  }
  CUcontext context = NULL;
  cudaError_t error = RT(cuCtxGetCurrent, &context);
  if (error || !context) return error;
  current->id = (uintptr_t)context;
  return RT(cuCtxGetDevice, &current->device);
}

static cudaError_t primary_bind(int device) {
  CUcontext context;
  unsigned generation;
  struct current current;
  cudaError_t error = primary_get(device, &context, &generation);
  if (!error) error = RT(cuCtxSetCurrent, context);
  if (!error) error = current_get(&current);
  if (error) return error;
  thread.bound = current.id;
  thread.bound_device = device;
  thread.generation = generation;
  return cudaSuccess;
}

/* Is there a current context, and not one that a reset has taken away? */
static bool current_usable(const struct current *current) {
  if (!current->id || current->id != thread.bound) return current->id != 0;
  pthread_mutex_lock(&lock);
  bool usable = primaries[thread.bound_device].generation == thread.generation;
  pthread_mutex_unlock(&lock);
  return usable;
}

cudaError_t rt_context_ensure(void) {
  struct current current;
  cudaError_t error = current_get(&current);
  if (error || current_usable(&current)) return error;
  return primary_bind(thread.device);
}

cudaError_t rt_context_device(int *device) {
  struct current current;
  cudaError_t error = current_get(&current);
  if (!error) *device = current_usable(&current) ? current.device : thread.device;
  return error;
}

cudaError_t impl_cudaGetDevice(int *device) {
  return device ? rt_context_device(device) : cudaErrorInvalidValue;
}

cudaError_t impl_cudaSetDevice(int device) {
  cudaError_t error = device_check(device);
  if (error) return error;
  thread.device = device;
  return primary_bind(device);
}

cudaError_t impl_cudaInitDevice(int device, unsigned int device_flags, unsigned int flags) {
  cudaError_t error = device_check(device);
  if (error) return error;
  if (flags & ~(unsigned)cudaInitDeviceFlagsAreValid) return cudaErrorInvalidValue;
  if (flags & cudaInitDeviceFlagsAreValid) error = RT(cuDevicePrimaryCtxSetFlags, device, device_flags);
  if (error) return error;
  CUcontext context;
  unsigned generation;
  return primary_get(device, &context, &generation);
}

cudaError_t impl_cudaSetDeviceFlags(unsigned int flags) {
  int device;
  cudaError_t error = rt_context_device(&device);
  return error ? error : RT(cuDevicePrimaryCtxSetFlags, device, flags & cudaDeviceScheduleMask);
}

cudaError_t impl_cudaGetDeviceFlags(unsigned int *flags) {
  int device, active;
  if (!flags) return cudaErrorInvalidValue;
  cudaError_t error = rt_context_device(&device);
  if (!error) error = RT(cuDevicePrimaryCtxGetState, device, flags, &active);
  if (!error) *flags |= cudaDeviceMapHost; /* always so where addresses are unified */
  return error;
}

cudaError_t impl_cudaDeviceReset(void) {
  int device;
  cudaError_t error = rt_context_device(&device);
  if (error) return error;
  pthread_mutex_lock(&lock);
  bool retained = device < MAX_DEVICES && primaries[device].context;
  if (device < MAX_DEVICES) {
    primaries[device].context = NULL;
    primaries[device].generation++;
  }
  pthread_mutex_unlock(&lock);
  error = RT(cuCtxSetCurrent, NULL);
  if (!error && retained) error = RT(cuDevicePrimaryCtxRelease, device);
  if (!error) error = RT(cuDevicePrimaryCtxReset, device);
  return error;
}

cudaError_t impl_cudaDeviceSynchronize(void) {
  return RT(cuCtxSynchronize);
}

cudaError_t impl_cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  return RT(cuCtxGetStreamPriorityRange, least, greatest);
}

cudaError_t impl_cudaDeviceGetLimit(size_t *value, enum cudaLimit limit) {
  return RT(cuCtxGetLimit, value, (CUlimit)limit);
}

cudaError_t impl_cudaDeviceSetLimit(enum cudaLimit limit, size_t value) {
  return RT(cuCtxSetLimit, (CUlimit)limit, value);
}

cudaError_t impl_cudaDeviceGetCacheConfig(enum cudaFuncCache *config) {
  CUfunc_cache found = CU_FUNC_CACHE_PREFER_NONE;
  if (!config) return cudaErrorInvalidValue;
  cudaError_t error = RT(cuCtxGetCacheConfig, &found);
  *config = (enum cudaFuncCache)found;
  return error;
}

cudaError_t impl_cudaDeviceSetCacheConfig(enum cudaFuncCache config) {
  return RT(cuCtxSetCacheConfig, (CUfunc_cache)config);
}

cudaError_t impl_cudaDeviceEnablePeerAccess(int peer, unsigned int flags) {
  CUcontext context;
  unsigned generation;
  cudaError_t error = device_check(peer);
  if (!error) error = primary_get(peer, &context, &generation);
  return error ? error : RT(cuCtxEnablePeerAccess, context, flags);
}

cudaError_t impl_cudaDeviceDisablePeerAccess(int peer) {
  CUcontext context;
  unsigned generation;
  cudaError_t error = device_check(peer);
  if (!error) error = primary_get(peer, &context, &generation);
  return error ? error : RT(cuCtxDisablePeerAccess, context);
}

/* Nothing profiles by these here; a driver without them is fine. */
cudaError_t impl_cudaProfilerStart(void) {
  return rt_driver->cuProfilerStart ? RT(cuProfilerStart) : cudaSuccess;
}

cudaError_t impl_cudaProfilerStop(void) {
  return rt_driver->cuProfilerStop ? RT(cuProfilerStop) : cudaSuccess;
}

cudaError_t rt_primary_context(int device, CUcontext *context) {
  unsigned generation;
  cudaError_t error = device_check(device);
  return error ? error : primary_get(device, context, &generation);
}
