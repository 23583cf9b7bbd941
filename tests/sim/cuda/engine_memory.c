/* Owns the address maps (search trees of ranges that never overlap) and device allocations: cuMemAlloc and
 * its kin, the stream-ordered ones included. Freed addresses stay reserved and inaccessible; an allocation of
 * the same size may get them again, as with the driver. */
#define _GNU_SOURCE
#include "engine_internal.h"
#include <search.h>
#include <stdlib.h>

#define PITCH_ALIGNMENT_BYTES 512u

/* Freed addresses of one size, last in first out. */
struct free_addresses {
  uint64_t mapped_bytes;
  size_t count, capacity;
  uintptr_t *addresses;
};

static void *ranges, *mappings, *free_lists;
static uint64_t last_buffer_id;

static int compare_spans(const void *left, const void *right) {
  const struct sim_span *a = left, *b = right;
  if (a->base + a->size_bytes <= b->base) return -1;
  return b->base + b->size_bytes <= a->base ? 1 : 0;
}

static int compare_sizes(const void *left, const void *right) {
  const struct free_addresses *a = left, *b = right;
  return (a->mapped_bytes > b->mapped_bytes) - (a->mapped_bytes < b->mapped_bytes);
}

static void *find_span(void *const *tree, uintptr_t address, uint64_t size_bytes) {
  struct sim_span key = {address, size_bytes};
  void *node = tfind(&key, tree, compare_spans);
  return node ? *(void **)node : NULL;
}

struct sim_range *sim_range_find_locked(uintptr_t address) {
  return find_span(&ranges, address, 1);
}

bool sim_range_overlaps_locked(uintptr_t address, uint64_t size_bytes) {
  return find_span(&ranges, address, size_bytes) != NULL;
}

bool sim_range_insert_locked(struct sim_range *range) {
  return tsearch(range, &ranges, compare_spans) != NULL;
}

void sim_range_remove_locked(struct sim_range *range) {
  tdelete(range, &ranges, compare_spans);
}

struct sim_mapping *sim_mapping_find_locked(uintptr_t address) {
  return find_span(&mappings, address, 1);
}

bool sim_mapping_overlaps_locked(uintptr_t address, uint64_t size_bytes) {
  return find_span(&mappings, address, size_bytes) != NULL;
}

bool sim_mapping_insert_locked(struct sim_mapping *mapping) {
  return tsearch(mapping, &mappings, compare_spans) != NULL;
}

void sim_mapping_remove_locked(struct sim_mapping *mapping) {
  tdelete(mapping, &mappings, compare_spans);
}

uint64_t sim_next_buffer_id(void) {
  return __atomic_add_fetch(&last_buffer_id, 1, __ATOMIC_RELAXED);
}

/* ---- addresses ---- */

/* An address for `mapped_bytes` and an inaccessible page behind them. */
static uintptr_t take_address_locked(uint64_t mapped_bytes) {
  struct free_addresses key = {.mapped_bytes = mapped_bytes};
  void *node = tfind(&key, &free_lists, compare_sizes);
  struct free_addresses *list = node ? *(struct free_addresses **)node : NULL;
  if (list && list->count) return list->addresses[--list->count];
  return sim_address_space_take(mapped_bytes + SIM_PAGE_BYTES, 0, 0);
}

/* Keeps a closed address for the next allocation of its size; without memory for that it is never used again.
 */
static void keep_address_locked(uintptr_t address, uint64_t mapped_bytes) {
  struct free_addresses key = {.mapped_bytes = mapped_bytes};
  void *node = tfind(&key, &free_lists, compare_sizes);
  struct free_addresses *list = node ? *(struct free_addresses **)node : NULL;
  if (!list) {
    list = calloc(1, sizeof(*list));
    if (!list) return;
    list->mapped_bytes = mapped_bytes;
    if (!tsearch(list, &free_lists, compare_sizes)) {
      free(list);
      return;
    }
  }
  if (list->count == list->capacity) {
    size_t capacity = list->capacity ? list->capacity * 2 : 8;
    uintptr_t *grown = realloc(list->addresses, capacity * sizeof(*grown));
    if (!grown) return;
    list->addresses = grown;
    list->capacity = capacity;
  }
  list->addresses[list->count++] = address;
}

/* ---- device allocations ---- */

static uint64_t round_up(uint64_t bytes, uint64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

CUresult sim_memory_place_at(struct sim_context *context, enum sim_range_kind kind, uint64_t size_bytes,
                             struct sim_physical *physical, CUmemoryPool pool, CUdeviceptr *address) {
  struct sim_range *range = calloc(1, sizeof(*range));
  pthread_mutex_lock(&sim_memory_lock);
  uintptr_t base = range && physical ? take_address_locked(physical->size_bytes) : 0;
  bool good = base && sim_physical_map(physical, base, physical->size_bytes, true) == 0;
  if (good) {
    *range = (struct sim_range){.span = {base, size_bytes},
                                .kind = kind,
                                .mapped_bytes = physical->size_bytes,
                                .physical = physical,
                                .context = context,
                                .device = context->device,
                                .buffer_id = sim_next_buffer_id(),
                                .pool = pool};
    good = sim_range_insert_locked(range);
  }
  if (!good && physical) sim_physical_unref_locked(physical);
  pthread_mutex_unlock(&sim_memory_lock);
  if (!good) {
    free(range);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *address = base;
  return CUDA_SUCCESS;
}

CUresult sim_memory_allocate(struct sim_context *context, enum sim_range_kind kind, uint64_t size_bytes,
                             CUmemoryPool pool, CUdeviceptr *address) {
  if (!address || size_bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (size_bytes > sim_device_capacity_bytes(context->device)) return CUDA_ERROR_OUT_OF_MEMORY;
  struct sim_physical *physical = sim_physical_new(context->device, round_up(size_bytes, SIM_PAGE_BYTES),
                                                   round_up(size_bytes, SIM_ALLOCATION_UNIT_BYTES), false);
  return sim_memory_place_at(context, kind, size_bytes, physical, pool, address);
}

void sim_memory_free_locked(struct sim_range *range) {
  sim_address_space_close(range->span.base, range->mapped_bytes);
  sim_range_remove_locked(range);
  keep_address_locked(range->span.base, range->mapped_bytes);
  sim_physical_unref_locked(range->physical);
  free(range);
}

static bool is_device_allocation(const struct sim_range *range) {
  return range->kind == SIM_RANGE_ALLOCATION || range->kind == SIM_RANGE_MANAGED ||
         range->kind == SIM_RANGE_ASYNC;
}

CUresult impl_cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize) {
  struct sim_context *context;
  CUresult result = sim_engine_enter(&context);
  if (result == CUDA_SUCCESS) result = sim_capture_forbid_unsafe();
  if (result != CUDA_SUCCESS) return result;
  return sim_memory_allocate(context, SIM_RANGE_ALLOCATION, bytesize, NULL, dptr);
}

CUresult impl_cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pPitch, size_t WidthInBytes, size_t Height,
                                 unsigned int ElementSizeBytes) {
  bool element_good = ElementSizeBytes == 4 || ElementSizeBytes == 8 || ElementSizeBytes == 16;
  if (!pPitch || !element_good || WidthInBytes == 0 || Height == 0 || WidthInBytes > (size_t)1 << 46)
    return CUDA_ERROR_INVALID_VALUE;
  size_t pitch = round_up(WidthInBytes, PITCH_ALIGNMENT_BYTES);
  if (Height > SIZE_MAX / pitch) return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult result = impl_cuMemAlloc_v2(dptr, pitch * Height);
  if (result == CUDA_SUCCESS) *pPitch = pitch;
  return result;
}

CUresult impl_cuMemAllocManaged(CUdeviceptr *dptr, size_t bytesize, unsigned int flags) {
  struct sim_context *context;
  CUresult result = sim_engine_enter(&context);
  if (result == CUDA_SUCCESS) result = sim_capture_forbid_unsafe();
  if (result != CUDA_SUCCESS) return result;
  if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST) return CUDA_ERROR_INVALID_VALUE;
  return sim_memory_allocate(context, SIM_RANGE_MANAGED, bytesize, NULL, dptr);
}

void sim_memory_wait_for_context(struct sim_context *context) {
  pthread_mutex_lock(&sim_engine_lock);
  sim_context_wait_locked(context->engine);
  pthread_mutex_unlock(&sim_engine_lock);
}

/* The allocation that starts exactly there and is not being freed yet. */
static struct sim_range *allocation_at_locked(CUdeviceptr address) {
  struct sim_range *range = sim_range_find_locked(address);
  bool good = range && range->span.base == address && is_device_allocation(range) && !range->freeing;
  return good ? range : NULL;
}

CUresult impl_cuMemFree_v2(CUdeviceptr dptr) {
  struct sim_context *context;
  CUresult result = sim_engine_enter(&context);
  if (result == CUDA_SUCCESS) result = sim_capture_forbid_unsafe();
  if (result != CUDA_SUCCESS) return result;
  pthread_mutex_lock(&sim_memory_lock);
  struct sim_range *range = allocation_at_locked(dptr);
  struct sim_context *owner = range ? range->context : NULL;
  if (range) range->freeing = true; /* a second free of it fails while this one waits */
  pthread_mutex_unlock(&sim_memory_lock);
  if (!range) return CUDA_ERROR_INVALID_VALUE;
  sim_memory_wait_for_context(owner);
  CUmemoryPool pool = range->pool;
  uint64_t bytes = range->span.size_bytes;
  pthread_mutex_lock(&sim_memory_lock);
  sim_memory_free_locked(range);
  pthread_mutex_unlock(&sim_memory_lock);
  sim_pool_account(pool, bytes, true);
  return CUDA_SUCCESS;
}

CUresult impl_cuMemGetInfo_v2(size_t *free, size_t *total) {
  struct sim_context *context;
  CUresult result = sim_engine_enter(&context);
  if (result != CUDA_SUCCESS) return result;
  uint64_t free_bytes, total_bytes;
  sim_engine_memory_info(context->device, &free_bytes, &total_bytes);
  if (free) *free = free_bytes;
  if (total) *total = total_bytes;
  return CUDA_SUCCESS;
}

/* ---- stream-ordered allocations ---- */

struct free_work {
  struct sim_work work;
  uintptr_t address;
};

static void run_free(struct sim_work *work) {
  uintptr_t address = ((struct free_work *)work)->address;
  pthread_mutex_lock(&sim_memory_lock);
  struct sim_range *range = sim_range_find_locked(address);
  CUmemoryPool pool = range ? range->pool : NULL;
  uint64_t bytes = range ? range->span.size_bytes : 0;
  if (range) sim_memory_free_locked(range);
  pthread_mutex_unlock(&sim_memory_lock);
  sim_pool_account(pool, bytes, true);
}

CUresult impl_cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool,
                                      CUstream hStream) {
  struct sim_context *context;
  CUresult result = sim_engine_enter(&context);
  if (result != CUDA_SUCCESS) return result;
  pthread_mutex_lock(&sim_engine_lock);
  struct sim_stream *stream;
  result = sim_stream_resolve_locked(context, hStream, &stream);
  if (result == CUDA_SUCCESS) result = sim_capture_forbid_locked(stream);
  pthread_mutex_unlock(&sim_engine_lock);
  int device;
  if (result == CUDA_SUCCESS && !sim_pool_device(pool, &device)) result = CUDA_ERROR_INVALID_VALUE;
  if (result == CUDA_SUCCESS) result = sim_memory_allocate(context, SIM_RANGE_ASYNC, bytesize, pool, dptr);
  if (result == CUDA_SUCCESS) sim_pool_account(pool, bytesize, false);
  return result;
}

CUresult impl_cuMemAllocAsync(CUdeviceptr *dptr, size_t bytesize, CUstream hStream) {
  struct sim_context *context = NULL;
  CUmemoryPool pool = NULL;
  CUresult result = sim_engine_enter(&context);
  if (result == CUDA_SUCCESS) result = impl_cuDeviceGetMemPool(&pool, context->device);
  return result == CUDA_SUCCESS ? impl_cuMemAllocFromPoolAsync(dptr, bytesize, pool, hStream) : result;
}

CUresult impl_cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream) {
  struct sim_context *context;
  CUresult result = sim_engine_enter(&context);
  if (result != CUDA_SUCCESS) return result;
  struct free_work *free_work = sim_work_new(sizeof(*free_work), SIM_WORK_FREE, run_free);
  if (!free_work) return CUDA_ERROR_OUT_OF_MEMORY;
  free_work->address = dptr;
  pthread_mutex_lock(&sim_memory_lock);
  struct sim_range *range = allocation_at_locked(dptr);
  bool good = range && range->kind == SIM_RANGE_ASYNC;
  if (good) range->freeing = true;
  pthread_mutex_unlock(&sim_memory_lock);
  if (!good) {
    sim_work_unref(&free_work->work);
    return CUDA_ERROR_INVALID_VALUE;
  }
  result = sim_submit(hStream, &free_work->work, SIM_RETURN_AT_ONCE);
  if (result != CUDA_SUCCESS) {
    pthread_mutex_lock(&sim_memory_lock);
    range->freeing = false;
    pthread_mutex_unlock(&sim_memory_lock);
  }
  return result;
}

/* ---- end of a context, checks ---- */

/* What one walk over the ranges collects. */
struct owned_ranges {
  const struct sim_context *context;
  struct sim_range *first;
};

static void collect_owned(const void *node, VISIT visit, void *argument) {
  struct owned_ranges *owned = argument;
  struct sim_range *range = *(struct sim_range *const *)node;
  if ((visit != postorder && visit != leaf) || range->context != owned->context ||
      !(is_device_allocation(range) || range->kind == SIM_RANGE_IPC))
    return;
  range->next_owned = owned->first;
  owned->first = range;
}

void sim_memory_forget_context(struct sim_context *context) {
  struct owned_ranges owned = {.context = context};
  pthread_mutex_lock(&sim_memory_lock);
  twalk_r(ranges, collect_owned, &owned);
  while (owned.first) {
    struct sim_range *range = owned.first;
    owned.first = range->next_owned;
    sim_memory_free_locked(range);
  }
  pthread_mutex_unlock(&sim_memory_lock);
}

CUresult sim_memory_check(CUdeviceptr address, uint64_t bytes) {
  pthread_mutex_lock(&sim_memory_lock);
  const struct sim_range *range = sim_range_find_locked(address);
  bool over = range && range->kind != SIM_RANGE_RESERVATION && range->kind != SIM_RANGE_HOST_REGISTERED &&
              bytes > range->span.base + range->span.size_bytes - address;
  pthread_mutex_unlock(&sim_memory_lock);
  return over ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

enum sim_place sim_memory_place(CUdeviceptr address) {
  pthread_mutex_lock(&sim_memory_lock);
  const struct sim_range *range = sim_range_find_locked(address);
  enum sim_place place = SIM_PLACE_PAGEABLE;
  if (range)
    place = range->kind == SIM_RANGE_HOST || range->kind == SIM_RANGE_HOST_REGISTERED ? SIM_PLACE_PINNED
                                                                                      : SIM_PLACE_DEVICE;
  pthread_mutex_unlock(&sim_memory_lock);
  return place;
}
