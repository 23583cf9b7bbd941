/* Owns allocation, host memory, pointer attributes, IPC handles and managed-memory hints of the simulated
 * runtime. */
#include "runtime.h"

#include <string.h>

static CUdeviceptr address_of(const void *pointer) {
  return (CUdeviceptr)(uintptr_t)pointer;
}

/* Nothing asked for is nothing given, without a driver call. */
cudaError_t impl_cudaMalloc(void **pointer, size_t bytes) {
  CUdeviceptr address = 0;
  if (!pointer) return cudaErrorInvalidValue;
  cudaError_t error = bytes ? RT(cuMemAlloc, &address, bytes) : cudaSuccess;
  if (!error) *pointer = (void *)(uintptr_t)address;
  return error;
}

cudaError_t impl_cudaMallocPitch(void **pointer, size_t *pitch, size_t width, size_t height) {
  enum { ELEMENT_BYTES = 4 };
  CUdeviceptr address = 0;
  if (!pointer || !pitch) return cudaErrorInvalidValue;
  *pitch = 0;
  cudaError_t error =
      width && height ? RT(cuMemAllocPitch, &address, pitch, width, height, ELEMENT_BYTES) : cudaSuccess;
  if (!error) *pointer = (void *)(uintptr_t)address;
  return error;
}

cudaError_t impl_cudaMallocManaged(void **pointer, size_t bytes, unsigned int flags) {
  CUdeviceptr address = 0;
  if (!pointer) return cudaErrorInvalidValue;
  cudaError_t error = RT(cuMemAllocManaged, &address, bytes, flags);
  if (!error) *pointer = (void *)(uintptr_t)address;
  return error;
}

cudaError_t impl_cudaFree(void *pointer) {
  return pointer ? RT(cuMemFree, address_of(pointer)) : cudaSuccess;
}

cudaError_t impl_cudaMallocHost(void **pointer, size_t bytes) {
  return impl_cudaHostAlloc(pointer, bytes, cudaHostAllocDefault);
}

cudaError_t impl_cudaHostAlloc(void **pointer, size_t bytes, unsigned int flags) {
  if (!pointer) return cudaErrorInvalidValue;
  if (!bytes) {
    *pointer = NULL;
    return cudaSuccess;
  }
  return RT(cuMemHostAlloc, pointer, bytes, flags);
}

cudaError_t impl_cudaFreeHost(void *pointer) {
  return pointer ? RT(cuMemFreeHost, pointer) : cudaSuccess;
}

cudaError_t impl_cudaHostRegister(void *pointer, size_t bytes, unsigned int flags) {
  return RT(cuMemHostRegister, pointer, bytes, flags);
}

cudaError_t impl_cudaHostUnregister(void *pointer) {
  return RT(cuMemHostUnregister, pointer);
}

cudaError_t impl_cudaHostGetDevicePointer(void **device, void *host, unsigned int flags) {
  CUdeviceptr address = 0;
  if (!device) return cudaErrorInvalidValue;
  cudaError_t error = RT(cuMemHostGetDevicePointer, &address, host, flags);
  if (!error) *device = (void *)(uintptr_t)address;
  return error;
}

cudaError_t impl_cudaHostGetFlags(unsigned int *flags, void *host) {
  return RT(cuMemHostGetFlags, flags, host);
}

cudaError_t impl_cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
  size_t free_found, total_found;
  cudaError_t error = RT(cuMemGetInfo, &free_found, &total_found);
  if (error) return error;
  if (free_bytes) *free_bytes = free_found;
  if (total_bytes) *total_bytes = total_found;
  return cudaSuccess;
}

static enum cudaMemoryType memory_type(CUmemorytype type, bool managed) {
  if (managed) return cudaMemoryTypeManaged;
  if (type == CU_MEMORYTYPE_HOST) return cudaMemoryTypeHost;
  return type ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
}

/* Memory that CUDA does not know is no error: the attributes say so. */
cudaError_t impl_cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *pointer) {
  CUmemorytype type = 0;
  int device = -1;
  unsigned managed = 0;
  CUdeviceptr device_pointer = 0;
  void *host_pointer = NULL;
  CUpointer_attribute wanted[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                  CU_POINTER_ATTRIBUTE_IS_MANAGED, CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
                                  CU_POINTER_ATTRIBUTE_HOST_POINTER};
  void *found[] = {&type, &device, &managed, &device_pointer, &host_pointer};
  if (!attributes) return cudaErrorInvalidValue;
  cudaError_t error =
      RT(cuPointerGetAttributes, sizeof wanted / sizeof *wanted, wanted, found, address_of(pointer));
  if (error) return error;
  memset(attributes, 0, sizeof *attributes);
  attributes->type = memory_type(type, managed);
  if (attributes->type == cudaMemoryTypeUnregistered) {
    attributes->device = cudaInvalidDeviceId;
    attributes->hostPointer = (void *)(uintptr_t)pointer;
    return cudaSuccess;
  }
  attributes->device = device;
  attributes->devicePointer = (void *)(uintptr_t)device_pointer;
  attributes->hostPointer = host_pointer;
  return cudaSuccess;
}

_Static_assert(sizeof(cudaIpcMemHandle_t) == sizeof(CUipcMemHandle) &&
                   sizeof(cudaIpcEventHandle_t) == sizeof(CUipcEventHandle),
               "one wire format");

cudaError_t impl_cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *pointer) {
  CUipcMemHandle exported;
  if (!handle) return cudaErrorInvalidValue;
  cudaError_t error = RT(cuIpcGetMemHandle, &exported, address_of(pointer));
  if (!error) memcpy(handle, &exported, sizeof *handle);
  return error;
}

cudaError_t impl_cudaIpcOpenMemHandle(void **pointer, cudaIpcMemHandle_t handle, unsigned int flags) {
  CUipcMemHandle imported;
  CUdeviceptr address = 0;
  if (!pointer) return cudaErrorInvalidValue;
  memcpy(&imported, &handle, sizeof imported);
  cudaError_t error = RT(cuIpcOpenMemHandle, &address, imported, flags);
  if (!error) *pointer = (void *)(uintptr_t)address;
  return error;
}

cudaError_t impl_cudaIpcCloseMemHandle(void *pointer) {
  return RT(cuIpcCloseMemHandle, address_of(pointer));
}

cudaError_t impl_cudaIpcGetEventHandle(cudaIpcEventHandle_t *handle, cudaEvent_t event) {
  CUipcEventHandle exported;
  if (!handle) return cudaErrorInvalidValue;
  cudaError_t error = RT(cuIpcGetEventHandle, &exported, event);
  if (!error) memcpy(handle, &exported, sizeof *handle);
  return error;
}

cudaError_t impl_cudaIpcOpenEventHandle(cudaEvent_t *event, cudaIpcEventHandle_t handle) {
  CUipcEventHandle imported;
  memcpy(&imported, &handle, sizeof imported);
  return RT(cuIpcOpenEventHandle, event, imported);
}

cudaError_t impl_cudaMemAdvise(const void *pointer, size_t bytes, enum cudaMemoryAdvise advice,
                               struct cudaMemLocation location) {
  return RT(cuMemAdvise, address_of(pointer), bytes, (CUmem_advise)advice, rt_location(&location));
}

cudaError_t impl_cudaMemPrefetchAsync(const void *pointer, size_t bytes, struct cudaMemLocation location,
                                      unsigned int flags, cudaStream_t stream) {
  return RT(cuMemPrefetchAsync, address_of(pointer), bytes, rt_location(&location), flags, stream);
}
