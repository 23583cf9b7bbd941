/* cuGetProcAddress: base name, CUDA version and default-stream flags to the address of an exported entry
 * point. */
#include "api.h"

#include <string.h>

/* The newest symbol of that base name that both `version` and this driver know; NULL if none. `*known` tells
 * whether the name exists at all. */
static const struct sim_entry *lookup(const char *base, int version, bool *known) {
  const struct sim_entry *found = NULL;
  *known = false;
  for (size_t i = 0; i < sim_entry_count; i++) {
    const struct sim_entry *entry = &sim_entries[i];
    if (strcmp(entry->base, base) != 0 || entry->since > sim_driver_version()) continue;
    *known = true;
    if (entry->since <= version && (!found || entry->since > found->since)) found = entry;
  }
  return found;
}

static CUresult search(const char *symbol, void **pfn, int version, cuuint64_t flags,
                       CUdriverProcAddressQueryResult *status) {
  const cuuint64_t streams =
      CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  if (!symbol || !*symbol || !pfn || (flags & ~streams) != 0 || (flags & streams) == streams ||
      version > sim_driver_version())
    return CUDA_ERROR_INVALID_VALUE;
  bool known;
  const struct sim_entry *entry = lookup(symbol, version, &known);
  *pfn = NULL;
  if (entry)
    *pfn = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM && entry->per_thread ? entry->per_thread
                                                                                      : entry->function;
  *status = entry   ? CU_GET_PROC_ADDRESS_SUCCESS
            : known ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                    : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return CUDA_SUCCESS;
}

CUresult impl_cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags) {
  CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
  CUresult result = search(symbol, pfn, cudaVersion, flags, &status);
  if (result == CUDA_SUCCESS && status != CU_GET_PROC_ADDRESS_SUCCESS) result = CUDA_ERROR_NOT_FOUND;
  return result;
}

/* As cuda.h says of this version, an unknown name is a success with a null address; the status has the
 * reason. */
CUresult impl_cuGetProcAddress_v2(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags,
                                  CUdriverProcAddressQueryResult *symbolStatus) {
  CUdriverProcAddressQueryResult status;
  return search(symbol, pfn, cudaVersion, flags, symbolStatus ? symbolStatus : &status);
}
