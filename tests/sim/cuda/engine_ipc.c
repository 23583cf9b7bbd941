/* Owns memory that is shared between processes by handles of cuMemAlloc memory. A handle names a part of the
 * exporting process's file; the importer maps it. */
#include "engine_internal.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WIRE_MAGIC UINT64_C(0x72707369706d656d)

/* What a handle says, in the 64 bytes that it has. */
struct wire {
  uint64_t magic, process, file, offset_bytes, mapped_bytes, size_bytes, buffer_id, device;
};
_Static_assert(sizeof(struct wire) == sizeof(CUipcMemHandle), "a handle holds it");

/* Only cuMemAlloc memory has one; VMM memory is exported by its own handles. */
CUresult impl_cuIpcGetMemHandle(CUipcMemHandle *pHandle, CUdeviceptr dptr) {
  struct sim_context *context;
  CUresult result = sim_engine_enter(&context);
  if (result != CUDA_SUCCESS) return result;
  if (!pHandle) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&sim_memory_lock);
  const struct sim_range *range = sim_range_find_locked(dptr);
  bool good = range && range->kind == SIM_RANGE_ALLOCATION;
  struct wire wire = {.magic = WIRE_MAGIC, .process = (uint64_t)getpid()};
  if (good) {
    wire.file = (uint64_t)range->physical->file;
    wire.offset_bytes = range->physical->offset_bytes;
    wire.mapped_bytes = range->mapped_bytes;
    wire.size_bytes = range->span.size_bytes;
    wire.buffer_id = range->buffer_id;
    wire.device = (uint64_t)range->device;
  }
  pthread_mutex_unlock(&sim_memory_lock);
  if (!good) return CUDA_ERROR_INVALID_VALUE;
  memcpy(pHandle, &wire, sizeof(wire));
  return CUDA_SUCCESS;
}

CUresult impl_cuIpcOpenMemHandle_v2(CUdeviceptr *pdptr, CUipcMemHandle handle, unsigned int Flags) {
  struct sim_context *context;
  struct wire wire;
  CUresult result = sim_engine_enter(&context);
  if (result == CUDA_SUCCESS) result = sim_capture_forbid_unsafe();
  if (result != CUDA_SUCCESS) return result;
  memcpy(&wire, &handle, sizeof(wire));
  if (!pdptr || (Flags & ~(unsigned)CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) || wire.magic != WIRE_MAGIC)
    return CUDA_ERROR_INVALID_VALUE;
  if (wire.process == (uint64_t)getpid()) return CUDA_ERROR_INVALID_CONTEXT; /* its own: not for that */
  if ((int)wire.device != context->device) return CUDA_ERROR_INVALID_DEVICE;
  struct sim_physical *physical = sim_physical_open(context->device, (pid_t)wire.process, (int)wire.file,
                                                    wire.offset_bytes, wire.mapped_bytes);
  if (!physical) return CUDA_ERROR_MAP_FAILED;
  return sim_memory_place_at(context, SIM_RANGE_IPC, wire.size_bytes, physical, NULL, pdptr);
}

CUresult impl_cuIpcCloseMemHandle(CUdeviceptr dptr) {
  struct sim_context *context;
  CUresult result = sim_engine_enter(&context);
  if (result == CUDA_SUCCESS) result = sim_capture_forbid_unsafe();
  if (result != CUDA_SUCCESS) return result;
  pthread_mutex_lock(&sim_memory_lock);
  struct sim_range *range = sim_range_find_locked(dptr);
  bool good = range && range->span.base == dptr && range->kind == SIM_RANGE_IPC && !range->freeing;
  struct sim_context *owner = good ? range->context : NULL;
  if (good) range->freeing = true;
  pthread_mutex_unlock(&sim_memory_lock);
  if (!good) return CUDA_ERROR_INVALID_VALUE;
  sim_memory_wait_for_context(owner);
  pthread_mutex_lock(&sim_memory_lock);
  sim_memory_free_locked(range);
  pthread_mutex_unlock(&sim_memory_lock);
  return CUDA_SUCCESS;
}
