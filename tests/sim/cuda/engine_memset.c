/* Owns the memsets: one- and two-dimensional, of 1, 2 and 4 bytes. */
#include "engine_internal.h"
#include "engine_launch.h"
#include "engine_log.h"
#include <string.h>

struct memset_work {
  struct sim_work work;
  CUdeviceptr address;
  size_t pitch_bytes, width, height; /* width in elements */
  unsigned element_bytes;
  uint32_t value;
};

static void fill_row(unsigned char *row, const struct memset_work *memset_work) {
  if (memset_work->element_bytes == 1) {
    memset(row, (int)memset_work->value, memset_work->width);
    return;
  }
  if (memset_work->element_bytes == 2) {
    uint16_t *words = (uint16_t *)row;
    for (size_t i = 0; i < memset_work->width; i++)
      words[i] = (uint16_t)memset_work->value;
    return;
  }
  uint32_t *words = (uint32_t *)row;
  for (size_t i = 0; i < memset_work->width; i++)
    words[i] = memset_work->value;
}

static void log_memset(const struct memset_work *memset_work) {
  size_t row_bytes = memset_work->width * memset_work->element_bytes;
  struct sim_span span = {memset_work->address,
                          (memset_work->height - 1) * memset_work->pitch_bytes + row_bytes};
  sim_log_spans("memset", &span, 1);
}

static void run_memset(struct sim_work *work) {
  const struct memset_work *memset_work = (const struct memset_work *)work;
  if (sim_log_wanted()) log_memset(memset_work);
  for (size_t y = 0; y < memset_work->height; y++)
    fill_row((unsigned char *)memset_work->address + y * memset_work->pitch_bytes, memset_work);
}

static CUresult check_memset(const struct memset_work *request) {
  size_t row_bytes = request->width * request->element_bytes;
  if (request->address % request->element_bytes || request->width > SIZE_MAX / 4)
    return CUDA_ERROR_INVALID_VALUE;
  if (request->height > 1 &&
      (request->pitch_bytes < row_bytes || request->pitch_bytes % request->element_bytes))
    return CUDA_ERROR_INVALID_VALUE;
  return sim_memory_check(request->address, (request->height - 1) * request->pitch_bytes + row_bytes);
}

static CUresult new_memset(struct memset_work request, struct sim_work **made) {
  CUresult result = check_memset(&request);
  if (result != CUDA_SUCCESS) return result;
  struct memset_work *work = sim_work_new(sizeof(*work), SIM_WORK_MEMSET, run_memset);
  if (!work) return CUDA_ERROR_OUT_OF_MEMORY;
  work->address = request.address;
  work->pitch_bytes = request.pitch_bytes;
  work->width = request.width;
  work->height = request.height;
  work->element_bytes = request.element_bytes;
  work->value = request.value;
  *made = &work->work;
  return CUDA_SUCCESS;
}

CUresult sim_memset_node_work(const CUDA_MEMSET_NODE_PARAMS *params, struct sim_work **made) {
  if (!params || (params->elementSize != 1 && params->elementSize != 2 && params->elementSize != 4) ||
      params->width == 0 || params->height == 0)
    return CUDA_ERROR_INVALID_VALUE;
  return new_memset((struct memset_work){.address = params->dst,
                                         .pitch_bytes = params->pitch,
                                         .width = params->width,
                                         .height = params->height,
                                         .element_bytes = params->elementSize,
                                         .value = params->value},
                    made);
}

static CUresult submit_memset(struct memset_work request, CUstream stream, enum sim_wait wait) {
  struct sim_context *context;
  struct sim_work *work = NULL;
  CUresult result = sim_engine_enter(&context);
  if (result != CUDA_SUCCESS || request.width == 0 || request.height == 0) return result;
  result = new_memset(request, &work);
  return result == CUDA_SUCCESS ? sim_submit(stream, work, wait) : result;
}

static CUresult memset_1d(CUdeviceptr address, unsigned element_bytes, uint32_t value, size_t count,
                          CUstream stream, enum sim_wait wait) {
  return submit_memset(
      (struct memset_work){
          .address = address, .width = count, .height = 1, .element_bytes = element_bytes, .value = value},
      stream, wait);
}

static CUresult memset_2d(CUdeviceptr address, size_t pitch_bytes, unsigned element_bytes, uint32_t value,
                          size_t width, size_t height, CUstream stream, enum sim_wait wait) {
  return submit_memset((struct memset_work){.address = address,
                                            .pitch_bytes = pitch_bytes,
                                            .width = width,
                                            .height = height,
                                            .element_bytes = element_bytes,
                                            .value = value},
                       stream, wait);
}

CUresult impl_cuMemsetD8_v2(CUdeviceptr dstDevice, unsigned char uc, size_t N) {
  return memset_1d(dstDevice, 1, uc, N, NULL, SIM_WAIT);
}

CUresult impl_cuMemsetD16_v2(CUdeviceptr dstDevice, unsigned short us, size_t N) {
  return memset_1d(dstDevice, 2, us, N, NULL, SIM_WAIT);
}

CUresult impl_cuMemsetD32_v2(CUdeviceptr dstDevice, unsigned int ui, size_t N) {
  return memset_1d(dstDevice, 4, ui, N, NULL, SIM_WAIT);
}

CUresult impl_cuMemsetD8Async(CUdeviceptr dstDevice, unsigned char uc, size_t N, CUstream hStream) {
  return memset_1d(dstDevice, 1, uc, N, hStream, SIM_RETURN_AT_ONCE);
}

CUresult impl_cuMemsetD16Async(CUdeviceptr dstDevice, unsigned short us, size_t N, CUstream hStream) {
  return memset_1d(dstDevice, 2, us, N, hStream, SIM_RETURN_AT_ONCE);
}

CUresult impl_cuMemsetD32Async(CUdeviceptr dstDevice, unsigned int ui, size_t N, CUstream hStream) {
  return memset_1d(dstDevice, 4, ui, N, hStream, SIM_RETURN_AT_ONCE);
}

CUresult impl_cuMemsetD2D8_v2(CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc, size_t Width,
                              size_t Height) {
  return memset_2d(dstDevice, dstPitch, 1, uc, Width, Height, NULL, SIM_WAIT);
}

CUresult impl_cuMemsetD2D16_v2(CUdeviceptr dstDevice, size_t dstPitch, unsigned short us, size_t Width,
                               size_t Height) {
  return memset_2d(dstDevice, dstPitch, 2, us, Width, Height, NULL, SIM_WAIT);
}

CUresult impl_cuMemsetD2D32_v2(CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui, size_t Width,
                               size_t Height) {
  return memset_2d(dstDevice, dstPitch, 4, ui, Width, Height, NULL, SIM_WAIT);
}

CUresult impl_cuMemsetD2D8Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc, size_t Width,
                                size_t Height, CUstream hStream) {
  return memset_2d(dstDevice, dstPitch, 1, uc, Width, Height, hStream, SIM_RETURN_AT_ONCE);
}

CUresult impl_cuMemsetD2D16Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned short us, size_t Width,
                                 size_t Height, CUstream hStream) {
  return memset_2d(dstDevice, dstPitch, 2, us, Width, Height, hStream, SIM_RETURN_AT_ONCE);
}

CUresult impl_cuMemsetD2D32Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui, size_t Width,
                                 size_t Height, CUstream hStream) {
  return memset_2d(dstDevice, dstPitch, 4, ui, Width, Height, hStream, SIM_RETURN_AT_ONCE);
}
