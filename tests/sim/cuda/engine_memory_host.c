/* Owns host memory that the driver knows: allocated page-locked, or the program's own and registered. */
#include "engine_internal.h"
#include <stdlib.h>
#include <sys/mman.h>

static struct sim_range *new_host_range(struct sim_context *context, enum sim_range_kind kind, uintptr_t base,
                                        size_t size_bytes, unsigned flags) {
  struct sim_range *range = calloc(1, sizeof(*range));
  if (!range) return NULL;
  *range =
      (struct sim_range){.span = {base, size_bytes},
                         .kind = kind,
                         .mapped_bytes = (size_bytes + SIM_PAGE_BYTES - 1) / SIM_PAGE_BYTES * SIM_PAGE_BYTES,
                         .context = context,
                         .device = context->device,
                         .buffer_id = sim_next_buffer_id(),
                         .host_flags = flags};
  return range;
}

CUresult impl_cuMemHostAlloc(void **pp, size_t bytesize, unsigned int Flags) {
  struct sim_context *context;
  CUresult result = sim_engine_enter(&context);
  if (result == CUDA_SUCCESS) result = sim_capture_forbid_unsafe();
  if (result != CUDA_SUCCESS) return result;
  const unsigned known = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
  if (!pp || bytesize == 0 || (Flags & ~known)) return CUDA_ERROR_INVALID_VALUE;
  if (bytesize > SIZE_MAX / 2) return CUDA_ERROR_OUT_OF_MEMORY;
  void *memory = mmap(NULL, bytesize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  struct sim_range *range = new_host_range(context, SIM_RANGE_HOST, (uintptr_t)memory, bytesize, Flags);
  pthread_mutex_lock(&sim_memory_lock);
  bool inserted = range && sim_range_insert_locked(range);
  pthread_mutex_unlock(&sim_memory_lock);
  if (!inserted) {
    munmap(memory, bytesize);
    free(range);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *pp = memory;
  return CUDA_SUCCESS;
}

CUresult impl_cuMemAllocHost_v2(void **pp, size_t bytesize) {
  return impl_cuMemHostAlloc(pp, bytesize, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
}

/* Takes out the range of this kind that starts there, after the context's work; NULL if there is none. */
static struct sim_range *take_range(struct sim_context *context, const void *address,
                                    enum sim_range_kind kind) {
  pthread_mutex_lock(&sim_engine_lock);
  sim_context_wait_locked(context->engine);
  pthread_mutex_unlock(&sim_engine_lock);
  pthread_mutex_lock(&sim_memory_lock);
  struct sim_range *range = sim_range_find_locked((uintptr_t)address);
  if (range && (range->span.base != (uintptr_t)address || range->kind != kind)) range = NULL;
  if (range) sim_range_remove_locked(range);
  pthread_mutex_unlock(&sim_memory_lock);
  return range;
}

CUresult impl_cuMemFreeHost(void *p) {
  struct sim_context *context;
  CUresult result = sim_engine_enter(&context);
  if (result == CUDA_SUCCESS) result = sim_capture_forbid_unsafe();
  if (result != CUDA_SUCCESS) return result;
  struct sim_range *range = take_range(context, p, SIM_RANGE_HOST);
  if (!range) return CUDA_ERROR_INVALID_VALUE;
  munmap(p, range->span.size_bytes);
  free(range);
  return CUDA_SUCCESS;
}

CUresult impl_cuMemHostRegister_v2(void *p, size_t bytesize, unsigned int Flags) {
  struct sim_context *context;
  CUresult result = sim_engine_enter(&context);
  if (result == CUDA_SUCCESS) result = sim_capture_forbid_unsafe();
  if (result != CUDA_SUCCESS) return result;
  if (!p || bytesize == 0 || bytesize > UINTPTR_MAX - (uintptr_t)p) return CUDA_ERROR_INVALID_VALUE;
  struct sim_range *range = new_host_range(context, SIM_RANGE_HOST_REGISTERED, (uintptr_t)p, bytesize, Flags);
  if (!range) return CUDA_ERROR_OUT_OF_MEMORY;
  pthread_mutex_lock(&sim_memory_lock);
  if (sim_range_overlaps_locked((uintptr_t)p, bytesize))
    result = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  else if (!sim_range_insert_locked(range))
    result = CUDA_ERROR_OUT_OF_MEMORY;
  pthread_mutex_unlock(&sim_memory_lock);
  if (result != CUDA_SUCCESS) free(range);
  return result;
}

CUresult impl_cuMemHostUnregister(void *p) {
  struct sim_context *context;
  CUresult result = sim_engine_enter(&context);
  if (result == CUDA_SUCCESS) result = sim_capture_forbid_unsafe();
  if (result != CUDA_SUCCESS) return result;
  struct sim_range *range = take_range(context, p, SIM_RANGE_HOST_REGISTERED);
  free(range);
  return range ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}

/* Flags of the page-locked range behind an address. */
static CUresult look_at_host(const void *address, unsigned *flags) {
  struct sim_context *context;
  CUresult result = sim_engine_enter(&context);
  if (result != CUDA_SUCCESS) return result;
  pthread_mutex_lock(&sim_memory_lock);
  const struct sim_range *range = sim_range_find_locked((uintptr_t)address);
  bool good = range && (range->kind == SIM_RANGE_HOST || range->kind == SIM_RANGE_HOST_REGISTERED);
  if (good) *flags = range->host_flags;
  pthread_mutex_unlock(&sim_memory_lock);
  return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult impl_cuMemHostGetDevicePointer_v2(CUdeviceptr *pdptr, void *p, unsigned int Flags) {
  unsigned flags;
  if (!pdptr || Flags) return CUDA_ERROR_INVALID_VALUE;
  CUresult result = look_at_host(p, &flags);
  if (result == CUDA_SUCCESS) *pdptr = (CUdeviceptr)p;
  return result;
}

CUresult impl_cuMemHostGetFlags(unsigned int *pFlags, void *p) {
  unsigned flags;
  if (!pFlags) return CUDA_ERROR_INVALID_VALUE;
  CUresult result = look_at_host(p, &flags);
  if (result == CUDA_SUCCESS) *pFlags = flags;
  return result;
}
