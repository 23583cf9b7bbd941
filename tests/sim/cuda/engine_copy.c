/* Owns the copies. Every form becomes a box of rows; a pageable source of an asynchronous copy is staged when
 * the call is made, and one into pageable memory returns when it is done. */
#include "engine_internal.h"
#include "engine_launch.h"
#include "engine_log.h"
#include <stdlib.h>
#include <string.h>

struct copy_box {
  const unsigned char *source;
  unsigned char *destination;
  size_t width, height, depth; /* width in bytes */
  size_t source_pitch, source_slice, destination_pitch, destination_slice;
};

struct copy_work {
  struct sim_work work;
  struct copy_box box;
  unsigned char *staged; /* owned copy of the source, or NULL */
};

/* What the call says a side is; the address decides where it does not. */
enum side { SIDE_HOST, SIDE_DEVICE, SIDE_UNIFIED };

struct copy_request {
  struct copy_box box;
  enum side source_side, destination_side;
};

/* Bytes from the first to the last of a side. */
static size_t extent(const struct copy_box *box, size_t pitch, size_t slice) {
  return (box->depth - 1) * slice + (box->height - 1) * pitch + box->width;
}

static void log_copy(const struct copy_box *box) {
  struct sim_span spans[] = {
      {(uintptr_t)box->source, extent(box, box->source_pitch, box->source_slice)},
      {(uintptr_t)box->destination, extent(box, box->destination_pitch, box->destination_slice)}};
  sim_log_spans("copy", spans, 2);
}

static void run_copy(struct sim_work *work) {
  const struct copy_box *box = &((const struct copy_work *)work)->box;
  if (sim_log_wanted()) log_copy(box);
  for (size_t z = 0; z < box->depth; z++)
    for (size_t y = 0; y < box->height; y++)
      memmove(box->destination + z * box->destination_slice + y * box->destination_pitch,
              box->source + z * box->source_slice + y * box->source_pitch, box->width);
}

static void dispose_copy(struct sim_work *work) {
  free(((struct copy_work *)work)->staged);
}

static bool is_pageable(enum side side, const void *address) {
  return side != SIDE_DEVICE && sim_memory_place((CUdeviceptr)address) == SIM_PLACE_PAGEABLE;
}

static void stage_copy(void *argument) {
  struct copy_work *copy = argument;
  memcpy(copy->staged, copy->box.source, extent(&copy->box, copy->box.source_pitch, copy->box.source_slice));
}

/* Stages the source. If it cannot be read, the copy goes on unstaged and fails on the stream like any other.
 */
static CUresult stage(struct copy_work *copy) {
  size_t bytes = extent(&copy->box, copy->box.source_pitch, copy->box.source_slice);
  copy->staged = malloc(bytes);
  if (!copy->staged) return CUDA_ERROR_OUT_OF_MEMORY;
  if (sim_fault_guard(stage_copy, copy)) copy->box.source = copy->staged;
  return CUDA_SUCCESS;
}

static CUresult check_copy(const struct copy_request *request) {
  const struct copy_box *box = &request->box;
  if (!box->source || !box->destination) return CUDA_ERROR_INVALID_VALUE;
  CUresult result =
      sim_memory_check((CUdeviceptr)box->source, extent(box, box->source_pitch, box->source_slice));
  if (result == CUDA_SUCCESS)
    result = sim_memory_check((CUdeviceptr)box->destination,
                              extent(box, box->destination_pitch, box->destination_slice));
  return result;
}

static CUresult submit_copy(const struct copy_request *request, CUstream stream, enum sim_wait wait) {
  struct sim_context *context;
  CUresult result = sim_engine_enter(&context);
  const struct copy_box *box = &request->box;
  if (result != CUDA_SUCCESS || box->width == 0 || box->height == 0 || box->depth == 0) return result;
  result = check_copy(request);
  if (result != CUDA_SUCCESS) return result;
  struct copy_work *copy = sim_work_new(sizeof(*copy), SIM_WORK_COPY, run_copy);
  if (!copy) return CUDA_ERROR_OUT_OF_MEMORY;
  copy->work.dispose = dispose_copy;
  copy->box = *box;
  if (wait == SIM_RETURN_AT_ONCE && is_pageable(request->destination_side, box->destination))
    wait = SIM_WAIT_IF_NO_CAPTURE;
  if (wait == SIM_RETURN_AT_ONCE && is_pageable(request->source_side, box->source) &&
      !sim_stream_is_capturing(stream))
    result = stage(copy);
  if (result != CUDA_SUCCESS) {
    sim_work_unref(&copy->work);
    return result;
  }
  return sim_submit(stream, &copy->work, wait);
}

static CUresult copy_1d(const void *destination, enum side destination_side, const void *source,
                        enum side source_side, size_t bytes, CUstream stream, enum sim_wait wait) {
  struct copy_request request = {.box = {.source = source,
                                         .destination = (unsigned char *)destination,
                                         .width = bytes,
                                         .height = 1,
                                         .depth = 1},
                                 .source_side = source_side,
                                 .destination_side = destination_side};
  return submit_copy(&request, stream, wait);
}

static const void *pointer(CUdeviceptr address) {
  return (const void *)(uintptr_t)address;
}

CUresult impl_cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount) {
  return copy_1d(pointer(dst), SIDE_UNIFIED, pointer(src), SIDE_UNIFIED, ByteCount, NULL, SIM_WAIT);
}

CUresult impl_cuMemcpyHtoD_v2(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount) {
  return copy_1d(pointer(dstDevice), SIDE_DEVICE, srcHost, SIDE_HOST, ByteCount, NULL, SIM_WAIT);
}

CUresult impl_cuMemcpyDtoH_v2(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount) {
  return copy_1d(dstHost, SIDE_HOST, pointer(srcDevice), SIDE_DEVICE, ByteCount, NULL, SIM_WAIT);
}

CUresult impl_cuMemcpyDtoD_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount) {
  return copy_1d(pointer(dstDevice), SIDE_DEVICE, pointer(srcDevice), SIDE_DEVICE, ByteCount, NULL, SIM_WAIT);
}

CUresult impl_cuMemcpyPeer(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
                           CUcontext srcContext, size_t ByteCount) {
  if (!dstContext || !srcContext) return CUDA_ERROR_INVALID_CONTEXT;
  return impl_cuMemcpyDtoD_v2(dstDevice, srcDevice, ByteCount);
}

CUresult impl_cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream) {
  return copy_1d(pointer(dst), SIDE_UNIFIED, pointer(src), SIDE_UNIFIED, ByteCount, hStream,
                 SIM_RETURN_AT_ONCE);
}

CUresult impl_cuMemcpyHtoDAsync_v2(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount,
                                   CUstream hStream) {
  return copy_1d(pointer(dstDevice), SIDE_DEVICE, srcHost, SIDE_HOST, ByteCount, hStream, SIM_RETURN_AT_ONCE);
}

CUresult impl_cuMemcpyDtoHAsync_v2(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream) {
  return copy_1d(dstHost, SIDE_HOST, pointer(srcDevice), SIDE_DEVICE, ByteCount, hStream, SIM_RETURN_AT_ONCE);
}

CUresult impl_cuMemcpyDtoDAsync_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount,
                                   CUstream hStream) {
  return copy_1d(pointer(dstDevice), SIDE_DEVICE, pointer(srcDevice), SIDE_DEVICE, ByteCount, hStream,
                 SIM_RETURN_AT_ONCE);
}

CUresult impl_cuMemcpyPeerAsync(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
                                CUcontext srcContext, size_t ByteCount, CUstream hStream) {
  if (!dstContext || !srcContext) return CUDA_ERROR_INVALID_CONTEXT;
  return impl_cuMemcpyDtoDAsync_v2(dstDevice, srcDevice, ByteCount, hStream);
}

/* ---- two and three dimensions ---- */

/* Base address of one side by its memory type. */
static bool resolve_side(CUmemorytype type, const void *host, CUdeviceptr device, enum side *side,
                         const unsigned char **base) {
  switch (type) {
  case CU_MEMORYTYPE_HOST:
    *side = SIDE_HOST;
    *base = host;
    return true;
  case CU_MEMORYTYPE_DEVICE:
  case CU_MEMORYTYPE_UNIFIED:
    *side = type == CU_MEMORYTYPE_DEVICE ? SIDE_DEVICE : SIDE_UNIFIED;
    *base = pointer(device);
    return true;
  default:
    return false;
  }
}

static CUresult read_3d(const CUDA_MEMCPY3D *copy, struct copy_request *out) {
  struct copy_request request = {
      .box = {.width = copy->WidthInBytes,
              .height = copy->Height,
              .depth = copy->Depth,
              .source_pitch = copy->srcPitch ? copy->srcPitch : copy->WidthInBytes,
              .destination_pitch = copy->dstPitch ? copy->dstPitch : copy->WidthInBytes}};
  struct copy_box *box = &request.box;
  const unsigned char *source, *destination;
  if (!resolve_side(copy->srcMemoryType, copy->srcHost, copy->srcDevice, &request.source_side, &source) ||
      !resolve_side(copy->dstMemoryType, copy->dstHost, copy->dstDevice, &request.destination_side,
                    &destination))
    return CUDA_ERROR_INVALID_VALUE;
  if (!source || !destination || box->source_pitch < copy->srcXInBytes + box->width ||
      box->destination_pitch < copy->dstXInBytes + box->width)
    return CUDA_ERROR_INVALID_VALUE;
  box->source_slice = box->source_pitch * (copy->srcHeight ? copy->srcHeight : copy->Height);
  box->destination_slice = box->destination_pitch * (copy->dstHeight ? copy->dstHeight : copy->Height);
  box->source = source + copy->srcZ * box->source_slice + copy->srcY * box->source_pitch + copy->srcXInBytes;
  box->destination = (unsigned char *)destination + copy->dstZ * box->destination_slice +
                     copy->dstY * box->destination_pitch + copy->dstXInBytes;
  *out = request;
  return CUDA_SUCCESS;
}

static CUresult copy_3d(const CUDA_MEMCPY3D *copy, CUstream stream, enum sim_wait wait) {
  struct copy_request request;
  CUresult result = read_3d(copy, &request);
  return result == CUDA_SUCCESS ? submit_copy(&request, stream, wait) : result;
}

CUresult sim_copy_node_work(const CUDA_MEMCPY3D *params, struct sim_work **made) {
  struct copy_request request;
  CUresult result = params ? read_3d(params, &request) : CUDA_ERROR_INVALID_VALUE;
  if (result == CUDA_SUCCESS) result = check_copy(&request);
  if (result != CUDA_SUCCESS) return result;
  struct copy_work *copy = sim_work_new(sizeof(*copy), SIM_WORK_COPY, run_copy);
  if (!copy) return CUDA_ERROR_OUT_OF_MEMORY;
  copy->work.dispose = dispose_copy;
  copy->box = request.box;
  *made = &copy->work;
  return CUDA_SUCCESS;
}

static CUresult copy_2d(const CUDA_MEMCPY2D *copy, CUstream stream, enum sim_wait wait) {
  if (!copy) return CUDA_ERROR_INVALID_VALUE;
  CUDA_MEMCPY3D as_3d = {.srcXInBytes = copy->srcXInBytes,
                         .srcY = copy->srcY,
                         .srcMemoryType = copy->srcMemoryType,
                         .srcHost = copy->srcHost,
                         .srcDevice = copy->srcDevice,
                         .srcPitch = copy->srcPitch,
                         .dstXInBytes = copy->dstXInBytes,
                         .dstY = copy->dstY,
                         .dstMemoryType = copy->dstMemoryType,
                         .dstHost = copy->dstHost,
                         .dstDevice = copy->dstDevice,
                         .dstPitch = copy->dstPitch,
                         .WidthInBytes = copy->WidthInBytes,
                         .Height = copy->Height,
                         .Depth = 1};
  return copy_3d(&as_3d, stream, wait);
}

CUresult impl_cuMemcpy2D_v2(const CUDA_MEMCPY2D *pCopy) {
  return copy_2d(pCopy, NULL, SIM_WAIT);
}

CUresult impl_cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *pCopy) {
  return copy_2d(pCopy, NULL, SIM_WAIT);
}

CUresult impl_cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *pCopy, CUstream hStream) {
  return copy_2d(pCopy, hStream, SIM_RETURN_AT_ONCE);
}

CUresult impl_cuMemcpy3D_v2(const CUDA_MEMCPY3D *pCopy) {
  return pCopy ? copy_3d(pCopy, NULL, SIM_WAIT) : CUDA_ERROR_INVALID_VALUE;
}

CUresult impl_cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *pCopy, CUstream hStream) {
  return pCopy ? copy_3d(pCopy, hStream, SIM_RETURN_AT_ONCE) : CUDA_ERROR_INVALID_VALUE;
}

/* The contexts say no more than the addresses do. */
static CUresult copy_3d_peer(const CUDA_MEMCPY3D_PEER *copy, CUstream stream, enum sim_wait wait) {
  if (!copy) return CUDA_ERROR_INVALID_VALUE;
  if (!copy->srcContext || !copy->dstContext) return CUDA_ERROR_INVALID_CONTEXT;
  const CUDA_MEMCPY3D as_3d = {.srcXInBytes = copy->srcXInBytes,
                               .srcY = copy->srcY,
                               .srcZ = copy->srcZ,
                               .srcMemoryType = copy->srcMemoryType,
                               .srcHost = copy->srcHost,
                               .srcDevice = copy->srcDevice,
                               .srcPitch = copy->srcPitch,
                               .srcHeight = copy->srcHeight,
                               .dstXInBytes = copy->dstXInBytes,
                               .dstY = copy->dstY,
                               .dstZ = copy->dstZ,
                               .dstMemoryType = copy->dstMemoryType,
                               .dstHost = copy->dstHost,
                               .dstDevice = copy->dstDevice,
                               .dstPitch = copy->dstPitch,
                               .dstHeight = copy->dstHeight,
                               .WidthInBytes = copy->WidthInBytes,
                               .Height = copy->Height,
                               .Depth = copy->Depth};
  return copy_3d(&as_3d, stream, wait);
}

CUresult impl_cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER *pCopy) {
  return copy_3d_peer(pCopy, NULL, SIM_WAIT);
}

CUresult impl_cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER *pCopy, CUstream hStream) {
  return copy_3d_peer(pCopy, hStream, SIM_RETURN_AT_ONCE);
}

/* ---- many at once: in no order among themselves, so any will do ---- */

CUresult impl_cuMemcpyBatchAsync(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
                                 CUmemcpyAttributes *attrs, size_t *attrsIdxs, size_t numAttrs,
                                 size_t *failIdx, CUstream hStream) {
  if (!dsts || !srcs || !sizes || count == 0 || !attrs || !attrsIdxs || numAttrs == 0 || numAttrs > count ||
      !hStream || hStream == CU_STREAM_LEGACY)
    return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = count; i-- > 0;) {
    CUresult result = impl_cuMemcpyAsync(dsts[i], srcs[i], sizes[i], hStream);
    if (result == CUDA_SUCCESS) continue;
    if (failIdx) *failIdx = i;
    return result;
  }
  return CUDA_SUCCESS;
}

CUresult impl_cuMemcpyBatchAsync_v2(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
                                    CUmemcpyAttributes *attrs, size_t *attrsIdxs, size_t numAttrs,
                                    CUstream hStream) {
  return impl_cuMemcpyBatchAsync(dsts, srcs, sizes, count, attrs, attrsIdxs, numAttrs, NULL, hStream);
}
