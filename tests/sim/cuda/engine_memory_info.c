/* Owns the questions about addresses: range, pointer attributes. */
#include "engine_internal.h"
#include <string.h>

/* What is known about one address, taken at once. */
struct pointer_facts {
  struct sim_range range;       /* as mapped: the reservation for VMM memory */
  struct sim_mapping mapping;   /* VMM only */
  struct sim_physical physical; /* backing memory, if it is a device's */
  bool vmm, mapped, host;
};

static bool gather_locked(CUdeviceptr address, struct pointer_facts *facts) {
  const struct sim_range *range = sim_range_find_locked(address);
  if (!range) return false;
  memset(facts, 0, sizeof(*facts));
  facts->range = *range;
  facts->vmm = range->kind == SIM_RANGE_RESERVATION;
  facts->host = range->kind == SIM_RANGE_HOST || range->kind == SIM_RANGE_HOST_REGISTERED;
  facts->mapped = !facts->vmm;
  facts->mapping.span = range->span;
  const struct sim_mapping *mapping = facts->vmm ? sim_mapping_find_locked(address) : NULL;
  if (mapping) {
    facts->mapping = *mapping;
    facts->mapped = true;
  }
  const struct sim_physical *physical = mapping ? mapping->physical : range->physical;
  if (physical) facts->physical = *physical;
  return true;
}

static bool gather(CUdeviceptr address, struct pointer_facts *facts) {
  pthread_mutex_lock(&sim_memory_lock);
  bool found = gather_locked(address, facts);
  pthread_mutex_unlock(&sim_memory_lock);
  return found;
}

int rpsim_backing_of(uint64_t address, struct rpsim_backing *out) {
  struct pointer_facts facts;
  if (!gather(address, &facts) || !facts.mapped || facts.host) return -1;
  *out = (struct rpsim_backing){.block = facts.physical.id,
                                .begin = facts.mapping.span.base,
                                .end = facts.mapping.span.base + facts.mapping.span.size_bytes};
  return 0;
}

CUresult impl_cuMemGetAddressRange_v2(CUdeviceptr *pbase, size_t *psize, CUdeviceptr dptr) {
  struct sim_context *context;
  CUresult result = sim_engine_enter(&context);
  if (result != CUDA_SUCCESS) return result;
  struct pointer_facts facts;
  if (!gather(dptr, &facts) || !facts.mapped) return CUDA_ERROR_NOT_FOUND;
  if (pbase) *pbase = facts.mapping.span.base;
  if (psize) *psize = facts.mapping.span.size_bytes;
  return CUDA_SUCCESS;
}

static CUresult place_attribute(const struct pointer_facts *facts, CUpointer_attribute attribute,
                                CUdeviceptr address, void *data) {
  switch ((int)attribute) {
  case CU_POINTER_ATTRIBUTE_CONTEXT:
    *(CUcontext *)data = facts->vmm ? NULL : (CUcontext)facts->range.context;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    *(CUmemorytype *)data = facts->host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    *(CUdeviceptr *)data = address;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    if (!facts->host && facts->range.kind != SIM_RANGE_MANAGED) return CUDA_ERROR_INVALID_VALUE;
    *(void **)data = (void *)address;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    *(int *)data = facts->vmm && facts->mapped ? facts->physical.device : facts->range.device;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
    *(CUmemoryPool *)data = facts->range.pool;
    return CUDA_SUCCESS;
  default:
    return CUDA_ERROR_NOT_SUPPORTED;
  }
}

static CUresult extent_attribute(const struct pointer_facts *facts, CUpointer_attribute attribute,
                                 void *data) {
  switch ((int)attribute) {
  case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    *(CUdeviceptr *)data = facts->range.span.base;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    *(size_t *)data = facts->range.span.size_bytes;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_MAPPED:
    *(int *)data = facts->mapped;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
  case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
    if (attribute == CU_POINTER_ATTRIBUTE_MAPPING_SIZE)
      *(size_t *)data = facts->mapping.span.size_bytes;
    else
      *(CUdeviceptr *)data = facts->mapping.span.base;
    return CUDA_SUCCESS;
  default:
    return CUDA_ERROR_NOT_SUPPORTED;
  }
}

static CUresult property_attribute(const struct pointer_facts *facts, CUpointer_attribute attribute,
                                   void *data) {
  switch ((int)attribute) {
  case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    *(unsigned long long *)data = facts->vmm ? facts->physical.id | 1ull << 63 : facts->range.buffer_id;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
    *(unsigned long long *)data = facts->host ? facts->range.buffer_id | 1ull << 62 : facts->physical.id;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    *(unsigned *)data = facts->range.kind == SIM_RANGE_MANAGED;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    *(unsigned *)data = facts->range.kind == SIM_RANGE_ALLOCATION;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    *(unsigned *)data = facts->vmm ? facts->physical.properties.allocFlags.gpuDirectRDMACapable
                                   : facts->range.kind == SIM_RANGE_ALLOCATION;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
    *(unsigned long long *)data = facts->vmm ? facts->physical.properties.requestedHandleTypes : 0;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS: {
    const struct sim_context *context = sim_context_current(); /* the answer is for its device */
    int device = context ? context->device : facts->physical.device;
    *(unsigned *)data = facts->vmm ? facts->mapping.access[device] : CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return CUDA_SUCCESS;
  }
  case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    *(unsigned *)data = 0;
    return CUDA_SUCCESS;
  default:
    return CUDA_ERROR_NOT_SUPPORTED;
  }
}

/* What is reserved and not mapped has an extent and nothing else. */
static bool has_answer(const struct pointer_facts *facts, CUpointer_attribute attribute) {
  return facts->mapped || attribute == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR ||
         attribute == CU_POINTER_ATTRIBUTE_RANGE_SIZE || attribute == CU_POINTER_ATTRIBUTE_MAPPED;
}

static CUresult answer(const struct pointer_facts *facts, CUpointer_attribute attribute, CUdeviceptr address,
                       void *data) {
  if (!has_answer(facts, attribute)) return CUDA_ERROR_INVALID_VALUE;
  CUresult result = place_attribute(facts, attribute, address, data);
  if (result == CUDA_ERROR_NOT_SUPPORTED) result = extent_attribute(facts, attribute, data);
  if (result == CUDA_ERROR_NOT_SUPPORTED) result = property_attribute(facts, attribute, data);
  return result;
}

static bool is_attribute(CUpointer_attribute attribute) {
  return attribute >= CU_POINTER_ATTRIBUTE_CONTEXT &&
         attribute <= CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE;
}

CUresult impl_cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr) {
  CUresult result = sim_engine_enter_process();
  if (result != CUDA_SUCCESS) return result;
  struct pointer_facts facts;
  if (!data || !is_attribute(attribute) || !gather(ptr, &facts)) return CUDA_ERROR_INVALID_VALUE;
  return answer(&facts, attribute, ptr, data);
}

/* What the plural call writes where an attribute has no answer; sizes as the header's types. */
static void write_nothing(CUpointer_attribute attribute, void *data) {
  switch ((int)attribute) {
  case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    *(int *)data = -2;
    return;
  case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
  case CU_POINTER_ATTRIBUTE_IS_MANAGED:
  case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
  case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
  case CU_POINTER_ATTRIBUTE_MAPPED:
  case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
  case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
    *(int *)data = 0;
    return;
  case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
    *(bool *)data = false;
    return;
  default:
    *(uint64_t *)data = 0;
  }
}

CUresult impl_cuPointerGetAttributes(unsigned int numAttributes, CUpointer_attribute *attributes, void **data,
                                     CUdeviceptr ptr) {
  CUresult result = sim_engine_enter_process();
  if (result != CUDA_SUCCESS) return result;
  if (!attributes || !data || numAttributes == 0) return CUDA_ERROR_INVALID_VALUE;
  struct pointer_facts facts;
  bool found = gather(ptr, &facts);
  for (unsigned i = 0; i < numAttributes; i++) {
    if (!data[i] || !is_attribute(attributes[i])) return CUDA_ERROR_INVALID_VALUE;
    if (!found || answer(&facts, attributes[i], ptr, data[i]) != CUDA_SUCCESS)
      write_nothing(attributes[i], data[i]);
  }
  return CUDA_SUCCESS;
}

CUresult impl_cuPointerSetAttribute(const void *value, CUpointer_attribute attribute, CUdeviceptr ptr) {
  CUresult result = sim_engine_enter_process();
  if (result != CUDA_SUCCESS) return result;
  struct pointer_facts facts;
  if (!value || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS || !gather(ptr, &facts))
    return CUDA_ERROR_INVALID_VALUE;
  return facts.range.kind == SIM_RANGE_ALLOCATION ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}
