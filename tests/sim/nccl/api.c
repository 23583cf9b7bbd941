/* Owns the entry points that are neither operations nor the life of a communicator: version, ids, texts,
 * memory, and those that this library refuses. */
#include "nccl_internal.h"

#include <stdlib.h>

ncclResult_t pncclGetVersion(int *version) {
  if (!version) return ncclInvalidArgument;
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
SIM_PUBLIC(ncclGetVersion);

ncclResult_t pncclGetUniqueId(ncclUniqueId *uniqueId) {
  return uniqueId ? sim_rendezvous_create(uniqueId) : ncclInvalidArgument;
}
SIM_PUBLIC(ncclGetUniqueId);

const char *pncclGetErrorString(ncclResult_t result) {
  switch (result) {
  case ncclSuccess:
    return "no error";
  case ncclUnhandledCudaError:
    return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
  case ncclSystemError:
    return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
  case ncclInternalError:
    return "internal error - please report this issue to the NCCL developers";
  case ncclInvalidArgument:
    return "invalid argument (run with NCCL_DEBUG=WARN for details)";
  case ncclInvalidUsage:
    return "invalid usage (run with NCCL_DEBUG=WARN for details)";
  case ncclRemoteError:
    return "remote process exited or there was a network error";
  case ncclInProgress:
    return "NCCL operation in progress";
  default:
    return "unknown result code";
  }
}
SIM_PUBLIC(ncclGetErrorString);

const char *pncclGetLastError(ncclComm_t comm) {
  (void)comm;
  return sim_last_error();
}
SIM_PUBLIC(ncclGetLastError);

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#pragma GCC diagnostic ignored "-Wstrict-prototypes"
void pncclResetDebugInit() {}
SIM_PUBLIC(ncclResetDebugInit);
#pragma GCC diagnostic pop

/* ---- memory: physical memory mapped at a reserved address; an ordinary allocation if the driver cannot ----
 */

struct block {
  CUdeviceptr address;
  size_t bytes;
  CUmemGenericAllocationHandle handle; /* 0: an ordinary allocation */
  struct block *next;
};
static pthread_mutex_t block_lock = PTHREAD_MUTEX_INITIALIZER;
static struct block *blocks;

static CUresult block_map(struct block *block, size_t size) {
  const struct sim_driver *driver = sim_driver();
  CUdevice device = 0;
  size_t granularity = 0;
  if (!driver->create) return driver->mem_alloc(&block->address, size);
  CUresult result = driver->context_get_device(&device);
  CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                    .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                    .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
  CUmemAccessDesc access = {.location = properties.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  if (result == CUDA_SUCCESS)
    result = driver->granularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
  if (result != CUDA_SUCCESS) return result;
  block->bytes = (size + granularity - 1) / granularity * granularity;
  result = driver->create(&block->handle, block->bytes, &properties, 0);
  if (result != CUDA_SUCCESS) return result;
  result = driver->address_reserve(&block->address, block->bytes, granularity, 0, 0);
  if (result == CUDA_SUCCESS) result = driver->map(block->address, block->bytes, 0, block->handle, 0);
  if (result == CUDA_SUCCESS) result = driver->set_access(block->address, block->bytes, &access, 1);
  return result;
}

ncclResult_t pncclMemAlloc(void **ptr, size_t size) {
  CUcontext context = NULL;
  if (!ptr || size == 0) return ncclInvalidArgument;
  ncclResult_t result = sim_context_ensure(&context);
  if (result != ncclSuccess) return result;
  struct block *block = calloc(1, sizeof *block);
  if (!block) return ncclSystemError;
  result = sim_cuda_result(block_map(block, size), "ncclMemAlloc");
  if (result != ncclSuccess) {
    free(block);
    return result;
  }
  pthread_mutex_lock(&block_lock);
  block->next = blocks;
  blocks = block;
  pthread_mutex_unlock(&block_lock);
  *ptr = (void *)(uintptr_t)block->address;
  return ncclSuccess;
}
SIM_PUBLIC(ncclMemAlloc);

ncclResult_t pncclMemFree(void *ptr) {
  if (!ptr) return ncclSuccess;
  const struct sim_driver *driver = sim_driver();
  pthread_mutex_lock(&block_lock);
  struct block **at = &blocks;
  while (*at && (*at)->address != (CUdeviceptr)(uintptr_t)ptr)
    at = &(*at)->next;
  struct block *block = *at;
  if (block) *at = block->next;
  pthread_mutex_unlock(&block_lock);
  if (!block) return ncclInvalidArgument;
  CUresult result =
      block->handle ? driver->unmap(block->address, block->bytes) : driver->mem_free(block->address);
  if (block->handle && result == CUDA_SUCCESS) result = driver->release(block->handle);
  if (block->handle && result == CUDA_SUCCESS) result = driver->address_free(block->address, block->bytes);
  free(block);
  return sim_cuda_result(result, "ncclMemFree");
}
SIM_PUBLIC(ncclMemFree);

/* ---- refused ---- */

static ncclResult_t refuse(const char *name) {
  sim_set_error("%s is not available in the simulated library", name);
  return ncclInvalidUsage;
}

ncclResult_t pncclCommRevoke(ncclComm_t comm, int revokeFlags) {
  (void)comm, (void)revokeFlags;
  return refuse("ncclCommRevoke");
}
SIM_PUBLIC(ncclCommRevoke);

ncclResult_t pncclCommShrink(ncclComm_t comm, int *excludeRanksList, int excludeRanksCount,
                             ncclComm_t *newcomm, ncclConfig_t *config, int shrinkFlags) {
  (void)comm, (void)excludeRanksList, (void)excludeRanksCount, (void)newcomm, (void)config, (void)shrinkFlags;
  return refuse("ncclCommShrink");
}
SIM_PUBLIC(ncclCommShrink);

ncclResult_t pncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t datatype,
                                       ncclScalarResidence_t residence, ncclComm_t comm) {
  (void)op, (void)scalar, (void)datatype, (void)residence, (void)comm;
  return refuse("ncclRedOpCreatePreMulSum");
}
SIM_PUBLIC(ncclRedOpCreatePreMulSum);

ncclResult_t pncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) {
  (void)op, (void)comm;
  return refuse("ncclRedOpDestroy");
}
SIM_PUBLIC(ncclRedOpDestroy);
