/* Owns which device and context a thread works with: primary contexts retained on first use, one per device.
 */
#include "runtime.h"

#include <pthread.h>

enum { MAX_DEVICES = 64 };

static CUcontext primaries[MAX_DEVICES]; /* under `lock`; NULL = not retained by this runtime */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static _Thread_local int thread_device; /* which cudaSetDevice chose; a current context goes before it */

static cudaError_t device_check(int device) {
  int count = 0;
  cudaError_t error = RT(cuDeviceGetCount, &count);
  if (error) return error;
  return device >= 0 && device < count && device < MAX_DEVICES ? cudaSuccess : cudaErrorInvalidDevice;
}

/* The retain runs outside the lock, since it calls out to an attached tool. */
static cudaError_t primary_get(int device, CUcontext *context) {
  pthread_mutex_lock(&lock);
  *context = primaries[device];
  pthread_mutex_unlock(&lock);
  if (*context) return cudaSuccess;
  cudaError_t error = RT(cuDevicePrimaryCtxRetain, context, device);
  if (error) return error;
  pthread_mutex_lock(&lock);
  bool extra = primaries[device] != NULL;
  if (!extra) primaries[device] = *context;
  pthread_mutex_unlock(&lock);
  return extra ? RT(cuDevicePrimaryCtxRelease, device) : cudaSuccess;
}

static cudaError_t primary_bind(int device) {
  CUcontext context;
  cudaError_t error = primary_get(device, &context);
  return error ? error : RT(cuCtxSetCurrent, context);
}

/* The thread's context, if one is current that still exists, and its device. Asked at every call, so where it
 * can be in a way that no tool sees: the real runtime keeps this to itself as well. */
static cudaError_t current_get(bool *current, int *device) {
  const struct rpsim_tools *tools = rt_tools();
  uint32_t id;
  *current = tools && tools->context_id(NULL, &id, device);
  if (tools) return cudaSuccess;
  CUcontext context = NULL;
  cudaError_t error = RT(cuCtxGetCurrent, &context);
  *current = context != NULL;
  return error || !context ? error : RT(cuCtxGetDevice, device);
}

cudaError_t rt_context_ensure(void) {
  bool current;
  int device;
  cudaError_t error = current_get(&current, &device);
  return error || current ? error : primary_bind(thread_device);
}

cudaError_t rt_context_device(int *device) {
  bool current;
  int found;
  cudaError_t error = current_get(&current, &found);
  if (!error) *device = current ? found : thread_device;
  return error;
}

cudaError_t impl_cudaGetDevice(int *device) {
  return device ? rt_context_device(device) : cudaErrorInvalidValue;
}

cudaError_t impl_cudaSetDevice(int device) {
  cudaError_t error = device_check(device);
  if (error) return error;
  thread_device = device;
  return primary_bind(device);
}

cudaError_t impl_cudaInitDevice(int device, unsigned int device_flags, unsigned int flags) {
  cudaError_t error = device_check(device);
  if (error) return error;
  if (flags & ~(unsigned)cudaInitDeviceFlagsAreValid) return cudaErrorInvalidValue;
  if (flags & cudaInitDeviceFlagsAreValid) error = RT(cuDevicePrimaryCtxSetFlags, device, device_flags);
  if (error) return error;
  CUcontext context;
  return primary_get(device, &context);
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
  bool retained = primaries[device] != NULL;
  primaries[device] = NULL;
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
  cudaError_t error = device_check(peer);
  if (!error) error = primary_get(peer, &context);
  return error ? error : RT(cuCtxEnablePeerAccess, context, flags);
}

cudaError_t impl_cudaDeviceDisablePeerAccess(int peer) {
  CUcontext context;
  cudaError_t error = device_check(peer);
  if (!error) error = primary_get(peer, &context);
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
  cudaError_t error = device_check(device);
  return error ? error : primary_get(device, context);
}
