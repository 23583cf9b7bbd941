/* Owns copies and memsets of the simulated runtime: the runtime's kinds become the driver's typed calls. */
#include "runtime.h"

static CUdeviceptr address_of(const void *pointer) {
  return (CUdeviceptr)(uintptr_t)pointer;
}

cudaError_t impl_cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
  if (kind > cudaMemcpyDefault) return cudaErrorInvalidMemcpyDirection;
  if (!bytes) return cudaSuccess;
  if (!to || !from) return cudaErrorInvalidValue;
  switch (kind) {
  case cudaMemcpyHostToDevice:
    return RT(cuMemcpyHtoD, address_of(to), from, bytes);
  case cudaMemcpyDeviceToHost:
    return RT(cuMemcpyDtoH, to, address_of(from), bytes);
  case cudaMemcpyDeviceToDevice:
    return RT(cuMemcpyDtoD, address_of(to), address_of(from), bytes);
  default:
    return RT(cuMemcpy, address_of(to), address_of(from), bytes);
  }
}

cudaError_t impl_cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                                 cudaStream_t stream) {
  if (kind > cudaMemcpyDefault) return cudaErrorInvalidMemcpyDirection;
  if (!bytes) return cudaSuccess;
  if (!to || !from) return cudaErrorInvalidValue;
  switch (kind) {
  case cudaMemcpyHostToDevice:
    return RT(cuMemcpyHtoDAsync, address_of(to), from, bytes, stream);
  case cudaMemcpyDeviceToHost:
    return RT(cuMemcpyDtoHAsync, to, address_of(from), bytes, stream);
  case cudaMemcpyDeviceToDevice:
    return RT(cuMemcpyDtoDAsync, address_of(to), address_of(from), bytes, stream);
  default:
    return RT(cuMemcpyAsync, address_of(to), address_of(from), bytes, stream);
  }
}

static CUmemorytype side_type(enum cudaMemcpyKind kind, bool destination) {
  if (kind == cudaMemcpyDefault) return CU_MEMORYTYPE_UNIFIED;
  bool device = destination ? kind == cudaMemcpyHostToDevice : kind == cudaMemcpyDeviceToHost;
  return device || kind == cudaMemcpyDeviceToDevice ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
}

/* A pitched copy as the driver describes it. */
static cudaError_t copy_2d(CUDA_MEMCPY2D *copy, void *to, size_t to_pitch, const void *from,
                           size_t from_pitch, size_t width, size_t height, enum cudaMemcpyKind kind) {
  if (kind > cudaMemcpyDefault) return cudaErrorInvalidMemcpyDirection;
  if (width > to_pitch || width > from_pitch) return cudaErrorInvalidPitchValue;
  *copy = (CUDA_MEMCPY2D){.srcMemoryType = side_type(kind, false),
                          .srcHost = from,
                          .srcDevice = address_of(from),
                          .srcPitch = from_pitch,
                          .dstMemoryType = side_type(kind, true),
                          .dstHost = to,
                          .dstDevice = address_of(to),
                          .dstPitch = to_pitch,
                          .WidthInBytes = width,
                          .Height = height};
  return cudaSuccess;
}

cudaError_t impl_cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, enum cudaMemcpyKind kind) {
  CUDA_MEMCPY2D copy;
  cudaError_t error = copy_2d(&copy, to, to_pitch, from, from_pitch, width, height, kind);
  if (error || !width || !height) return error;
  return RT(cuMemcpy2DUnaligned, &copy);
}

cudaError_t impl_cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                                   size_t width, size_t height, enum cudaMemcpyKind kind,
                                   cudaStream_t stream) {
  CUDA_MEMCPY2D copy;
  cudaError_t error = copy_2d(&copy, to, to_pitch, from, from_pitch, width, height, kind);
  if (error || !width || !height) return error;
  return RT(cuMemcpy2DAsync, &copy, stream);
}

/* Arrays are not simulated; each side is pitched memory. */
static cudaError_t copy_3d(CUDA_MEMCPY3D *copy, const struct cudaMemcpy3DParms *params) {
  if (!params || params->srcArray || params->dstArray) return cudaErrorInvalidValue;
  if (params->kind > cudaMemcpyDefault) return cudaErrorInvalidMemcpyDirection;
  if (params->extent.width > params->srcPtr.pitch || params->extent.width > params->dstPtr.pitch)
    return cudaErrorInvalidPitchValue;
  *copy = (CUDA_MEMCPY3D){.srcXInBytes = params->srcPos.x,
                          .srcY = params->srcPos.y,
                          .srcZ = params->srcPos.z,
                          .srcMemoryType = side_type(params->kind, false),
                          .srcHost = params->srcPtr.ptr,
                          .srcDevice = address_of(params->srcPtr.ptr),
                          .srcPitch = params->srcPtr.pitch,
                          .srcHeight = params->srcPtr.ysize,
                          .dstXInBytes = params->dstPos.x,
                          .dstY = params->dstPos.y,
                          .dstZ = params->dstPos.z,
                          .dstMemoryType = side_type(params->kind, true),
                          .dstHost = params->dstPtr.ptr,
                          .dstDevice = address_of(params->dstPtr.ptr),
                          .dstPitch = params->dstPtr.pitch,
                          .dstHeight = params->dstPtr.ysize,
                          .WidthInBytes = params->extent.width,
                          .Height = params->extent.height,
                          .Depth = params->extent.depth};
  return cudaSuccess;
}

static bool copy_3d_empty(const CUDA_MEMCPY3D *copy) {
  return !copy->WidthInBytes || !copy->Height || !copy->Depth;
}

cudaError_t impl_cudaMemcpy3D(const struct cudaMemcpy3DParms *params) {
  CUDA_MEMCPY3D copy;
  cudaError_t error = copy_3d(&copy, params);
  if (error || copy_3d_empty(&copy)) return error;
  return RT(cuMemcpy3D, &copy);
}

cudaError_t impl_cudaMemcpy3DAsync(const struct cudaMemcpy3DParms *params, cudaStream_t stream) {
  CUDA_MEMCPY3D copy;
  cudaError_t error = copy_3d(&copy, params);
  if (error || copy_3d_empty(&copy)) return error;
  return RT(cuMemcpy3DAsync, &copy, stream);
}

static cudaError_t copy_3d_peer(CUDA_MEMCPY3D_PEER *copy, const struct cudaMemcpy3DPeerParms *params) {
  CUcontext to_context, from_context;
  if (!params || params->srcArray || params->dstArray) return cudaErrorInvalidValue;
  if (params->extent.width > params->srcPtr.pitch || params->extent.width > params->dstPtr.pitch)
    return cudaErrorInvalidPitchValue;
  cudaError_t error = rt_primary_context(params->dstDevice, &to_context);
  if (!error) error = rt_primary_context(params->srcDevice, &from_context);
  if (error) return error;
  *copy = (CUDA_MEMCPY3D_PEER){.srcXInBytes = params->srcPos.x,
                               .srcY = params->srcPos.y,
                               .srcZ = params->srcPos.z,
                               .srcMemoryType = CU_MEMORYTYPE_UNIFIED,
                               .srcDevice = address_of(params->srcPtr.ptr),
                               .srcContext = from_context,
                               .srcPitch = params->srcPtr.pitch,
                               .srcHeight = params->srcPtr.ysize,
                               .dstXInBytes = params->dstPos.x,
                               .dstY = params->dstPos.y,
                               .dstZ = params->dstPos.z,
                               .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
                               .dstDevice = address_of(params->dstPtr.ptr),
                               .dstContext = to_context,
                               .dstPitch = params->dstPtr.pitch,
                               .dstHeight = params->dstPtr.ysize,
                               .WidthInBytes = params->extent.width,
                               .Height = params->extent.height,
                               .Depth = params->extent.depth};
  return cudaSuccess;
}

cudaError_t impl_cudaMemcpy3DPeer(const struct cudaMemcpy3DPeerParms *params) {
  CUDA_MEMCPY3D_PEER copy;
  cudaError_t error = copy_3d_peer(&copy, params);
  if (error || !copy.WidthInBytes || !copy.Height || !copy.Depth) return error;
  return RT(cuMemcpy3DPeer, &copy);
}

cudaError_t impl_cudaMemcpy3DPeerAsync(const struct cudaMemcpy3DPeerParms *params, cudaStream_t stream) {
  CUDA_MEMCPY3D_PEER copy;
  cudaError_t error = copy_3d_peer(&copy, params);
  if (error || !copy.WidthInBytes || !copy.Height || !copy.Depth) return error;
  return RT(cuMemcpy3DPeerAsync, &copy, stream);
}

cudaError_t impl_cudaMemcpyPeer(void *to, int to_device, const void *from, int from_device, size_t bytes) {
  CUcontext to_context, from_context;
  cudaError_t error = rt_primary_context(to_device, &to_context);
  if (!error) error = rt_primary_context(from_device, &from_context);
  if (error || !bytes) return error;
  return RT(cuMemcpyPeer, address_of(to), to_context, address_of(from), from_context, bytes);
}

cudaError_t impl_cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t bytes,
                                     cudaStream_t stream) {
  CUcontext to_context, from_context;
  cudaError_t error = rt_primary_context(to_device, &to_context);
  if (!error) error = rt_primary_context(from_device, &from_context);
  if (error || !bytes) return error;
  return RT(cuMemcpyPeerAsync, address_of(to), to_context, address_of(from), from_context, bytes, stream);
}

cudaError_t impl_cudaMemset(void *pointer, int value, size_t bytes) {
  if (!bytes) return cudaSuccess;
  return RT(cuMemsetD8, address_of(pointer), (unsigned char)value, bytes);
}

cudaError_t impl_cudaMemsetAsync(void *pointer, int value, size_t bytes, cudaStream_t stream) {
  if (!bytes) return cudaSuccess;
  return RT(cuMemsetD8Async, address_of(pointer), (unsigned char)value, bytes, stream);
}

cudaError_t impl_cudaMemset2D(void *pointer, size_t pitch, int value, size_t width, size_t height) {
  if (!width || !height) return cudaSuccess;
  return RT(cuMemsetD2D8, address_of(pointer), pitch, (unsigned char)value, width, height);
}

cudaError_t impl_cudaMemset2DAsync(void *pointer, size_t pitch, int value, size_t width, size_t height,
                                   cudaStream_t stream) {
  if (!width || !height) return cudaSuccess;
  return RT(cuMemsetD2D8Async, address_of(pointer), pitch, (unsigned char)value, width, height, stream);
}

/* Part of a device variable: where it starts, if `bytes` at `offset` lie inside it. */
static cudaError_t symbol_part(const void *symbol, size_t bytes, size_t offset, void **address) {
  CUdeviceptr start;
  size_t size;
  cudaError_t error = rt_variable_find(symbol, &start, &size);
  if (error) return error;
  if (offset > size || bytes > size - offset) return cudaErrorInvalidValue;
  *address = (void *)(uintptr_t)(start + offset);
  return cudaSuccess;
}

static bool kind_goes(enum cudaMemcpyKind kind, enum cudaMemcpyKind from_host_or_to_host) {
  return kind == from_host_or_to_host || kind == cudaMemcpyDeviceToDevice || kind == cudaMemcpyDefault;
}

cudaError_t impl_cudaMemcpyToSymbol(const void *symbol, const void *from, size_t bytes, size_t offset,
                                    enum cudaMemcpyKind kind) {
  void *to;
  if (!kind_goes(kind, cudaMemcpyHostToDevice)) return cudaErrorInvalidMemcpyDirection;
  cudaError_t error = symbol_part(symbol, bytes, offset, &to);
  return error ? error : impl_cudaMemcpy(to, from, bytes, kind);
}

cudaError_t impl_cudaMemcpyToSymbolAsync(const void *symbol, const void *from, size_t bytes, size_t offset,
                                         enum cudaMemcpyKind kind, cudaStream_t stream) {
  void *to;
  if (!kind_goes(kind, cudaMemcpyHostToDevice)) return cudaErrorInvalidMemcpyDirection;
  cudaError_t error = symbol_part(symbol, bytes, offset, &to);
  return error ? error : impl_cudaMemcpyAsync(to, from, bytes, kind, stream);
}

cudaError_t impl_cudaMemcpyFromSymbol(void *to, const void *symbol, size_t bytes, size_t offset,
                                      enum cudaMemcpyKind kind) {
  void *from;
  if (!kind_goes(kind, cudaMemcpyDeviceToHost)) return cudaErrorInvalidMemcpyDirection;
  cudaError_t error = symbol_part(symbol, bytes, offset, &from);
  return error ? error : impl_cudaMemcpy(to, from, bytes, kind);
}

cudaError_t impl_cudaMemcpyFromSymbolAsync(void *to, const void *symbol, size_t bytes, size_t offset,
                                           enum cudaMemcpyKind kind, cudaStream_t stream) {
  void *from;
  if (!kind_goes(kind, cudaMemcpyDeviceToHost)) return cudaErrorInvalidMemcpyDirection;
  cudaError_t error = symbol_part(symbol, bytes, offset, &from);
  return error ? error : impl_cudaMemcpyAsync(to, from, bytes, kind, stream);
}

cudaError_t impl_cudaGetSymbolAddress(void **pointer, const void *symbol) {
  CUdeviceptr address;
  size_t size;
  if (!pointer) return cudaErrorInvalidValue;
  cudaError_t error = rt_variable_find(symbol, &address, &size);
  if (!error) *pointer = (void *)(uintptr_t)address;
  return error;
}

cudaError_t impl_cudaGetSymbolSize(size_t *size, const void *symbol) {
  CUdeviceptr address;
  return size ? rt_variable_find(symbol, &address, size) : cudaErrorInvalidValue;
}
