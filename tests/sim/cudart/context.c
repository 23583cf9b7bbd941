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
  CUcontext bound; /* what this runtime made current, and when */
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

static cudaError_t primary_bind(int device) {
  CUcontext context;
  unsigned generation;
  cudaError_t error = primary_get(device, &context, &generation);
  if (!error) error = RT(cuCtxSetCurrent, context);
  if (error) return error;
  thread.bound = context;
  thread.bound_device = device;
  thread.generation = generation;
  return cudaSuccess;
}

static bool bound_is_stale(void) {
  pthread_mutex_lock(&lock);
  bool stale = primaries[thread.bound_device].generation != thread.generation;
  pthread_mutex_unlock(&lock);
  return stale;
}

cudaError_t rt_context_ensure(void) {
  CUcontext current = NULL;
  cudaError_t error = RT(cuCtxGetCurrent, &current);
  if (error) return error;
  if (current && (current != thread.bound || !bound_is_stale())) return cudaSuccess;
  return primary_bind(thread.device);
}

cudaError_t rt_context_device(int *device) {
  CUcontext current = NULL;
  CUdevice found;
  cudaError_t error = RT(cuCtxGetCurrent, &current);
  if (error) return error;
  *device = thread.device;
  if (!current || (current == thread.bound && bound_is_stale())) return cudaSuccess;
  error = RT(cuCtxGetDevice, &found);
  if (!error) *device = found;
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

cudaError_t impl_cudaProfilerStart(void) {
  return RT(cuProfilerStart);
}

cudaError_t impl_cudaProfilerStop(void) {
  return RT(cuProfilerStop);
}

cudaError_t rt_primary_context(int device, CUcontext *context) {
  unsigned generation;
  cudaError_t error = device_check(device);
  return error ? error : primary_get(device, context, &generation);
}
