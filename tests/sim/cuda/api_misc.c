/* Small calls that need no state: hints that are taken as given, and features that this device answers not to
 * have. */
#include "api.h"

/* ---- hints ---- */

CUresult impl_cuProfilerStart(void) {
  return CUDA_SUCCESS;
}

CUresult impl_cuProfilerStop(void) {
  return CUDA_SUCCESS;
}

/* Managed memory here is host memory: nothing moves. */
CUresult impl_cuMemAdvise_v2(CUdeviceptr devPtr, size_t count, CUmem_advise advice, CUmemLocation location) {
  (void)advice;
  (void)location;
  return devPtr && count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult impl_cuMemAdvise(CUdeviceptr devPtr, size_t count, CUmem_advise advice, CUdevice device) {
  (void)advice;
  (void)device;
  return devPtr && count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult impl_cuMemPrefetchAsync_v2(CUdeviceptr devPtr, size_t count, CUmemLocation location,
                                    unsigned int flags, CUstream hStream) {
  (void)location;
  (void)hStream;
  return devPtr && count && flags == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- features that this device does not have ---- */

CUresult impl_cuDeviceGetLuid(char *luid, unsigned int *deviceNodeMask, CUdevice dev) {
  (void)luid;
  (void)deviceNodeMask;
  return sim_device_valid(dev) ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_DEVICE; /* Windows only */
}

CUresult impl_cuDeviceGetExecAffinitySupport(int *pi, CUexecAffinityType type, CUdevice dev) {
  if (!pi || type != CU_EXEC_AFFINITY_TYPE_SM_COUNT) return CUDA_ERROR_INVALID_VALUE;
  if (!sim_device_valid(dev)) return CUDA_ERROR_INVALID_DEVICE;
  *pi = 0;
  return CUDA_SUCCESS;
}

CUresult impl_cuMemGetHandleForAddressRange(void *handle, CUdeviceptr dptr, size_t size,
                                            CUmemRangeHandleType handleType, unsigned long long flags) {
  (void)dptr;
  (void)size;
  (void)handleType;
  (void)flags;
  return handle ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
}

CUresult impl_cuFlushGPUDirectRDMAWrites(CUflushGPUDirectRDMAWritesTarget target,
                                         CUflushGPUDirectRDMAWritesScope scope) {
  (void)target;
  (void)scope;
  return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult impl_cuIpcGetEventHandle(CUipcEventHandle *pHandle, CUevent event) {
  (void)event;
  return pHandle ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
}

CUresult impl_cuIpcOpenEventHandle(CUevent *phEvent, CUipcEventHandle handle) {
  (void)handle;
  return phEvent ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
}

/* ---- clusters ---- */

CUresult impl_cuOccupancyMaxPotentialClusterSize(int *clusterSize, CUfunction func,
                                                 const CUlaunchConfig *config) {
  if (!clusterSize || !config) return CUDA_ERROR_INVALID_VALUE;
  if (!sim_kernel_of(func)) return CUDA_ERROR_INVALID_HANDLE;
  *clusterSize = 8;
  return CUDA_SUCCESS;
}

CUresult impl_cuOccupancyMaxActiveClusters(int *numClusters, CUfunction func, const CUlaunchConfig *config) {
  if (!numClusters || !config) return CUDA_ERROR_INVALID_VALUE;
  if (!sim_kernel_of(func)) return CUDA_ERROR_INVALID_HANDLE;
  *numClusters = 16;
  return CUDA_SUCCESS;
}
