/* Owns virtual memory management, as strict as the driver: reservations, physical handles, mappings of whole
 * granules at offset 0, access. One handle may be mapped at several addresses; they are the same memory. A
 * handle is the address of its sim_physical, kept in a registry so that a stale one is an error. */
#include "engine_internal.h"
#include <fcntl.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Physical allocations with a live handle or mapping, by address; under memory_lock. */
static void *physicals;

static int compare_addresses(const void *left, const void *right) {
  return ((uintptr_t)left > (uintptr_t)right) - ((uintptr_t)left < (uintptr_t)right);
}

static struct sim_physical *find_handle_locked(CUmemGenericAllocationHandle handle) {
  void *node = handle ? tfind((void *)(uintptr_t)handle, &physicals, compare_addresses) : NULL;
  struct sim_physical *physical = node ? *(struct sim_physical **)node : NULL;
  return physical && physical->handle_refs > 0 ? physical : NULL;
}

static void drop_physical_locked(struct sim_physical *physical) {
  if (physical->refs == 1) tdelete(physical, &physicals, compare_addresses);
  sim_physical_unref_locked(physical);
}

/* ---- properties ---- */

static CUresult check_properties(const CUmemAllocationProp *prop) {
  unsigned known_types = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  if (sim_device_attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED))
    known_types |= CU_MEM_HANDLE_TYPE_FABRIC;
  if (!prop || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
      prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
    return CUDA_ERROR_INVALID_VALUE;
  if (prop->location.id < 0 || prop->location.id >= sim_device_count() ||
      prop->location.id >= SIM_MAX_DEVICES)
    return CUDA_ERROR_INVALID_DEVICE;
  if ((unsigned)prop->requestedHandleTypes & ~known_types) return CUDA_ERROR_NOT_SUPPORTED;
  if (prop->allocFlags.gpuDirectRDMACapable &&
      !sim_device_attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED))
    return CUDA_ERROR_NOT_SUPPORTED;
  return CUDA_SUCCESS;
}

CUresult impl_cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
                                            CUmemAllocationGranularity_flags option) {
  CUresult result = sim_engine_enter_process();
  if (result != CUDA_SUCCESS) return result;
  if (!granularity ||
      (option != CU_MEM_ALLOC_GRANULARITY_MINIMUM && option != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED))
    return CUDA_ERROR_INVALID_VALUE;
  result = check_properties(prop);
  if (result == CUDA_SUCCESS) *granularity = SIM_GRANULE_BYTES;
  return result;
}

/* ---- reservations ---- */

CUresult impl_cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr addr,
                                  unsigned long long flags) {
  CUresult result = sim_engine_enter_process();
  if (result != CUDA_SUCCESS) return result;
  if (!ptr || flags || size == 0 || size % SIM_PAGE_BYTES || (alignment & (alignment - 1)) ||
      addr % SIM_PAGE_BYTES)
    return CUDA_ERROR_INVALID_VALUE;
  if (alignment < SIM_GRANULE_BYTES) alignment = SIM_GRANULE_BYTES;
  struct sim_range *range = calloc(1, sizeof(*range));
  uintptr_t base = range ? sim_address_space_take(size, alignment, addr) : 0;
  if (!base) {
    free(range);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *range = (struct sim_range){.span = {base, size}, .kind = SIM_RANGE_RESERVATION, .mapped_bytes = size};
  pthread_mutex_lock(&sim_memory_lock);
  bool inserted = sim_range_insert_locked(range);
  pthread_mutex_unlock(&sim_memory_lock);
  if (!inserted) {
    sim_address_space_return(base, size);
    free(range);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *ptr = base;
  return CUDA_SUCCESS;
}

CUresult impl_cuMemAddressFree(CUdeviceptr ptr, size_t size) {
  CUresult result = sim_engine_enter_process();
  if (result != CUDA_SUCCESS) return result;
  pthread_mutex_lock(&sim_memory_lock);
  struct sim_range *range = sim_range_find_locked(ptr);
  bool good = range && range->kind == SIM_RANGE_RESERVATION && range->span.base == ptr &&
              range->span.size_bytes == size && !sim_mapping_overlaps_locked(ptr, size);
  if (good) sim_range_remove_locked(range);
  pthread_mutex_unlock(&sim_memory_lock);
  if (!good) return CUDA_ERROR_INVALID_VALUE;
  /* The addresses stay inaccessible and unused: a later access through them must not hit something else. */
  free(range);
  return CUDA_SUCCESS;
}

/* ---- handles ---- */

CUresult impl_cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                          unsigned long long flags) {
  CUresult result = sim_engine_enter_process();
  if (result != CUDA_SUCCESS) return result;
  if (!handle || flags || size == 0 || size % SIM_GRANULE_BYTES) return CUDA_ERROR_INVALID_VALUE;
  result = check_properties(prop);
  if (result == CUDA_SUCCESS && size > sim_device_capacity_bytes(prop->location.id))
    result = CUDA_ERROR_OUT_OF_MEMORY;
  if (result != CUDA_SUCCESS) return result;
  struct sim_physical *physical =
      sim_physical_new(prop->location.id, size, size, prop->requestedHandleTypes != 0);
  if (!physical) return CUDA_ERROR_OUT_OF_MEMORY;
  physical->handle_refs = 1;
  physical->properties = *prop;
  pthread_mutex_lock(&sim_memory_lock);
  bool added = tsearch(physical, &physicals, compare_addresses) != NULL;
  if (!added) sim_physical_unref_locked(physical);
  pthread_mutex_unlock(&sim_memory_lock);
  if (!added) return CUDA_ERROR_OUT_OF_MEMORY;
  *handle = (CUmemGenericAllocationHandle)(uintptr_t)physical;
  return CUDA_SUCCESS;
}

CUresult impl_cuMemRelease(CUmemGenericAllocationHandle handle) {
  CUresult result = sim_engine_enter_process();
  if (result != CUDA_SUCCESS) return result;
  pthread_mutex_lock(&sim_memory_lock);
  struct sim_physical *physical = find_handle_locked(handle);
  if (physical && --physical->handle_refs == 0) drop_physical_locked(physical);
  pthread_mutex_unlock(&sim_memory_lock);
  return physical ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult impl_cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr) {
  CUresult result = sim_engine_enter_process();
  if (result != CUDA_SUCCESS) return result;
  if (!handle) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&sim_memory_lock);
  const struct sim_mapping *mapping = sim_mapping_find_locked((uintptr_t)addr);
  if (mapping) {
    if (mapping->physical->handle_refs++ == 0) sim_physical_ref_locked(mapping->physical);
    *handle = (CUmemGenericAllocationHandle)(uintptr_t)mapping->physical;
  }
  pthread_mutex_unlock(&sim_memory_lock);
  return mapping ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult impl_cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop,
                                                     CUmemGenericAllocationHandle handle) {
  CUresult result = sim_engine_enter_process();
  if (result != CUDA_SUCCESS) return result;
  pthread_mutex_lock(&sim_memory_lock);
  const struct sim_physical *physical = prop ? find_handle_locked(handle) : NULL;
  if (physical) *prop = physical->properties;
  pthread_mutex_unlock(&sim_memory_lock);
  return physical ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult impl_cuMemExportToShareableHandle(void *shareableHandle, CUmemGenericAllocationHandle handle,
                                           CUmemAllocationHandleType handleType, unsigned long long flags) {
  CUresult result = sim_engine_enter_process();
  if (result != CUDA_SUCCESS) return result;
  if (!shareableHandle || flags || handleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&sim_memory_lock);
  const struct sim_physical *physical = find_handle_locked(handle);
  bool exportable = physical && physical->own_file;
  int file = exportable ? fcntl(physical->file, F_DUPFD_CLOEXEC, STDERR_FILENO + 1) : -1;
  pthread_mutex_unlock(&sim_memory_lock);
  if (!exportable) return CUDA_ERROR_INVALID_VALUE;
  if (file < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  *(int *)shareableHandle = file;
  return CUDA_SUCCESS;
}

CUresult impl_cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *osHandle,
                                             CUmemAllocationHandleType shHandleType) {
  CUresult result = sim_engine_enter_process();
  if (result != CUDA_SUCCESS) return result;
  if (!handle || shHandleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
  struct sim_context *context = sim_context_current();
  struct sim_physical *physical = sim_physical_import(context ? context->device : 0, (int)(intptr_t)osHandle);
  if (!physical) return CUDA_ERROR_INVALID_VALUE;
  physical->handle_refs = 1;
  physical->properties =
      (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                            .location = {CU_MEM_LOCATION_TYPE_DEVICE, physical->device}};
  pthread_mutex_lock(&sim_memory_lock);
  bool added = tsearch(physical, &physicals, compare_addresses) != NULL;
  if (!added) sim_physical_unref_locked(physical);
  pthread_mutex_unlock(&sim_memory_lock);
  if (!added) return CUDA_ERROR_OUT_OF_MEMORY;
  *handle = (CUmemGenericAllocationHandle)(uintptr_t)physical;
  return CUDA_SUCCESS;
}

/* ---- mappings ---- */

static bool inside_reservation_locked(uintptr_t address, uint64_t size_bytes) {
  const struct sim_range *range = sim_range_find_locked(address);
  return range && range->kind == SIM_RANGE_RESERVATION &&
         size_bytes <= range->span.base + range->span.size_bytes - address;
}

static CUresult map_locked(uintptr_t address, uint64_t size_bytes, CUmemGenericAllocationHandle handle,
                           struct sim_mapping *mapping) {
  struct sim_physical *physical = find_handle_locked(handle);
  if (!physical || size_bytes > physical->size_bytes || !inside_reservation_locked(address, size_bytes) ||
      sim_mapping_overlaps_locked(address, size_bytes))
    return CUDA_ERROR_INVALID_VALUE;
  *mapping = (struct sim_mapping){.span = {address, size_bytes}, .physical = physical};
  if (sim_physical_map(physical, address, size_bytes, false) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
  if (!sim_mapping_insert_locked(mapping)) {
    sim_address_space_close(address, size_bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  sim_physical_ref_locked(physical);
  return CUDA_SUCCESS;
}

CUresult impl_cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                       unsigned long long flags) {
  CUresult result = sim_engine_enter_process();
  if (result != CUDA_SUCCESS) return result;
  if (flags || offset || size == 0 || size % SIM_GRANULE_BYTES || ptr % SIM_GRANULE_BYTES)
    return CUDA_ERROR_INVALID_VALUE;
  struct sim_mapping *mapping = calloc(1, sizeof(*mapping));
  if (!mapping) return CUDA_ERROR_OUT_OF_MEMORY;
  pthread_mutex_lock(&sim_memory_lock);
  result = map_locked(ptr, size, handle, mapping);
  pthread_mutex_unlock(&sim_memory_lock);
  if (result != CUDA_SUCCESS) free(mapping);
  return result;
}

/* True if the range is made of whole mappings without a gap. */
static bool whole_mappings_locked(uintptr_t address, uint64_t size_bytes) {
  for (uint64_t done = 0; done < size_bytes;) {
    const struct sim_mapping *mapping = sim_mapping_find_locked(address + done);
    if (!mapping || mapping->span.base != address + done || mapping->span.size_bytes > size_bytes - done)
      return false;
    done += mapping->span.size_bytes;
  }
  return true;
}

static CUresult check_access(const CUmemAccessDesc *desc, size_t count) {
  if (!desc || count == 0) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; i++) {
    bool flags_good = desc[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE ||
                      desc[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READ ||
                      desc[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    if (desc[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE || !flags_good) return CUDA_ERROR_INVALID_VALUE;
    if (desc[i].location.id < 0 || desc[i].location.id >= sim_device_count() ||
        desc[i].location.id >= SIM_MAX_DEVICES)
      return CUDA_ERROR_INVALID_DEVICE;
  }
  return CUDA_SUCCESS;
}

/* Access of one mapping after the call; the widest of all devices is what the pages get, since the simulated
 * devices share them. */
static int set_access_locked(struct sim_mapping *mapping, const CUmemAccessDesc *desc, size_t count) {
  uint8_t access[SIM_MAX_DEVICES], widest = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  memcpy(access, mapping->access, sizeof(access));
  for (size_t i = 0; i < count; i++)
    access[desc[i].location.id] = (uint8_t)desc[i].flags;
  for (size_t i = 0; i < SIM_MAX_DEVICES; i++)
    if (access[i] > widest) widest = access[i];
  int protection = widest == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? PROT_READ | PROT_WRITE
                   : widest == CU_MEM_ACCESS_FLAGS_PROT_READ    ? PROT_READ
                                                                : PROT_NONE;
  if (mprotect((void *)mapping->span.base, mapping->span.size_bytes, protection) != 0) return -1;
  memcpy(mapping->access, access, sizeof(access));
  return 0;
}

CUresult impl_cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count) {
  CUresult result = sim_engine_enter_process();
  if (result == CUDA_SUCCESS) result = check_access(desc, count);
  if (result != CUDA_SUCCESS) return result;
  pthread_mutex_lock(&sim_memory_lock);
  if (size == 0 || !whole_mappings_locked(ptr, size)) result = CUDA_ERROR_INVALID_VALUE;
  for (uint64_t done = 0; result == CUDA_SUCCESS && done < size;) {
    struct sim_mapping *mapping = sim_mapping_find_locked(ptr + done);
    if (set_access_locked(mapping, desc, count) != 0) result = CUDA_ERROR_OUT_OF_MEMORY;
    done += mapping->span.size_bytes;
  }
  pthread_mutex_unlock(&sim_memory_lock);
  return result;
}

CUresult impl_cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr ptr) {
  CUresult result = sim_engine_enter_process();
  if (result != CUDA_SUCCESS) return result;
  if (!flags || !location || location->type != CU_MEM_LOCATION_TYPE_DEVICE || location->id < 0 ||
      location->id >= sim_device_count())
    return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&sim_memory_lock);
  const struct sim_mapping *mapping = sim_mapping_find_locked(ptr);
  if (mapping) *flags = mapping->access[location->id];
  pthread_mutex_unlock(&sim_memory_lock);
  return mapping ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult impl_cuMemUnmap(CUdeviceptr ptr, size_t size) {
  CUresult result = sim_engine_enter_process();
  if (result != CUDA_SUCCESS) return result;
  pthread_mutex_lock(&sim_memory_lock);
  bool good = size && whole_mappings_locked(ptr, size);
  for (uint64_t done = 0; good && done < size;) {
    struct sim_mapping *mapping = sim_mapping_find_locked(ptr + done);
    done += mapping->span.size_bytes;
    sim_address_space_close(mapping->span.base, mapping->span.size_bytes);
    sim_mapping_remove_locked(mapping);
    drop_physical_locked(mapping->physical);
    free(mapping);
  }
  pthread_mutex_unlock(&sim_memory_lock);
  return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
