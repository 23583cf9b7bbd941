/* Owns stream-ordered allocation and memory pools of the simulated runtime. */
#include "runtime.h"

#include <string.h>

cudaError_t impl_cudaMallocAsync(void **pointer, size_t bytes, cudaStream_t stream) {
  CUdeviceptr address = 0;
  if (!pointer) return cudaErrorInvalidValue;
  cudaError_t error = bytes ? RT(cuMemAllocAsync, &address, bytes, stream) : cudaSuccess;
  if (!error) *pointer = (void *)(uintptr_t)address;
  return error;
}

cudaError_t impl_cudaMallocFromPoolAsync(void **pointer, size_t bytes, cudaMemPool_t pool,
                                         cudaStream_t stream) {
  CUdeviceptr address = 0;
  if (!pointer) return cudaErrorInvalidValue;
  cudaError_t error = bytes ? RT(cuMemAllocFromPoolAsync, &address, bytes, pool, stream) : cudaSuccess;
  if (!error) *pointer = (void *)(uintptr_t)address;
  return error;
}

cudaError_t impl_cudaFreeAsync(void *pointer, cudaStream_t stream) {
  return pointer ? RT(cuMemFreeAsync, (CUdeviceptr)(uintptr_t)pointer, stream) : cudaSuccess;
}

cudaError_t impl_cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device) {
  return RT(cuDeviceGetDefaultMemPool, pool, device);
}

cudaError_t impl_cudaDeviceGetMemPool(cudaMemPool_t *pool, int device) {
  return RT(cuDeviceGetMemPool, pool, device);
}

cudaError_t impl_cudaDeviceSetMemPool(int device, cudaMemPool_t pool) {
  return RT(cuDeviceSetMemPool, device, pool);
}

CUmemLocation rt_location(const struct cudaMemLocation *location) {
  CUmemLocation converted;
  memset(&converted, 0, sizeof converted);
  converted.type = (CUmemLocationType)location->type;
  converted.id = location->id;
  return converted;
}

cudaError_t impl_cudaMemPoolCreate(cudaMemPool_t *pool, const struct cudaMemPoolProps *props) {
  CUmemPoolProps converted;
  if (!pool || !props) return cudaErrorInvalidValue;
  memset(&converted, 0, sizeof converted);
  converted.allocType = (CUmemAllocationType)props->allocType;
  converted.handleTypes = (CUmemAllocationHandleType)props->handleTypes;
  converted.location = rt_location(&props->location);
  converted.maxSize = props->maxSize;
  converted.usage = props->usage;
  return RT(cuMemPoolCreate, pool, &converted);
}

cudaError_t impl_cudaMemPoolDestroy(cudaMemPool_t pool) {
  return RT(cuMemPoolDestroy, pool);
}

cudaError_t impl_cudaMemPoolTrimTo(cudaMemPool_t pool, size_t keep_bytes) {
  return RT(cuMemPoolTrimTo, pool, keep_bytes);
}

_Static_assert((int)cudaMemPoolAttrReleaseThreshold == (int)CU_MEMPOOL_ATTR_RELEASE_THRESHOLD &&
                   (int)cudaMemPoolAttrUsedMemHigh == (int)CU_MEMPOOL_ATTR_USED_MEM_HIGH,
               "attributes are numbered alike");

cudaError_t impl_cudaMemPoolSetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value) {
  return RT(cuMemPoolSetAttribute, pool, (CUmemPool_attribute)attribute, value);
}

cudaError_t impl_cudaMemPoolGetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value) {
  return RT(cuMemPoolGetAttribute, pool, (CUmemPool_attribute)attribute, value);
}

cudaError_t impl_cudaMemPoolSetAccess(cudaMemPool_t pool, const struct cudaMemAccessDesc *descriptors,
                                      size_t count) {
  if (count && !descriptors) return cudaErrorInvalidValue;
  for (size_t i = 0; i < count; i++) {
    CUmemAccessDesc converted = {.location = rt_location(&descriptors[i].location),
                                 .flags = (CUmemAccess_flags)descriptors[i].flags};
    cudaError_t error = RT(cuMemPoolSetAccess, pool, &converted, 1);
    if (error) return error;
  }
  return cudaSuccess;
}

cudaError_t impl_cudaMemPoolGetAccess(enum cudaMemAccessFlags *flags, cudaMemPool_t pool,
                                      struct cudaMemLocation *location) {
  CUmemAccess_flags found = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  if (!flags || !location) return cudaErrorInvalidValue;
  CUmemLocation converted = rt_location(location);
  cudaError_t error = RT(cuMemPoolGetAccess, &found, pool, &converted);
  if (!error) *flags = (enum cudaMemAccessFlags)found;
  return error;
}
