/* Functions and kernels: names, parameters, attributes, occupancy. A CUkernel is not a CUfunction here, as on
 * the driver: only launches and occupancy calls take either. */
#include "api.h"

#define BLOCK_THREADS_MAX 1024
#define MULTIPROCESSOR_THREADS 2048
#define MULTIPROCESSOR_BLOCKS 32
#define MULTIPROCESSOR_SHARED_BYTES 233472
#define BLOCK_SHARED_BYTES_MAX 232448
#define MULTIPROCESSORS 132

static struct sim_handle *function_of(CUfunction function) {
  return sim_handle_of(function, SIM_FUNCTION);
}

static struct sim_handle *kernel_of(CUkernel kernel) {
  return sim_handle_of(kernel, SIM_KERNEL);
}

/* ---- names and parameters ---- */

static CUresult get_name(const char **name, const struct sim_handle *handle) {
  if (!handle) return CUDA_ERROR_INVALID_HANDLE;
  if (!name) return CUDA_ERROR_INVALID_VALUE;
  *name = sim_handle_kernel(handle)->name;
  return CUDA_SUCCESS;
}

CUresult impl_cuFuncGetName(const char **name, CUfunction hfunc) {
  return get_name(name, function_of(hfunc));
}

CUresult impl_cuKernelGetName(const char **name, CUkernel hfunc) {
  return get_name(name, kernel_of(hfunc));
}

static CUresult get_param(const struct sim_handle *handle, size_t index, size_t *offset, size_t *size) {
  if (!handle) return CUDA_ERROR_INVALID_HANDLE;
  const struct rpsim_kernel *kernel = sim_handle_kernel(handle);
  if (!offset || index >= kernel->param_count) return CUDA_ERROR_INVALID_VALUE;
  *offset = kernel->params[index].offset;
  if (size) *size = kernel->params[index].size;
  return CUDA_SUCCESS;
}

CUresult impl_cuFuncGetParamInfo(CUfunction func, size_t paramIndex, size_t *paramOffset, size_t *paramSize) {
  return get_param(function_of(func), paramIndex, paramOffset, paramSize);
}

CUresult impl_cuKernelGetParamInfo(CUkernel kernel, size_t paramIndex, size_t *paramOffset,
                                   size_t *paramSize) {
  return get_param(kernel_of(kernel), paramIndex, paramOffset, paramSize);
}

CUresult impl_cuFuncGetModule(CUmodule *hmod, CUfunction hfunc) {
  struct sim_handle *handle = function_of(hfunc);
  if (!handle) return CUDA_ERROR_INVALID_HANDLE;
  if (!hmod) return CUDA_ERROR_INVALID_VALUE;
  *hmod = (CUmodule)handle->owner;
  return CUDA_SUCCESS;
}

CUresult impl_cuFuncIsLoaded(CUfunctionLoadingState *state, CUfunction function) {
  if (!function_of(function)) return CUDA_ERROR_INVALID_HANDLE;
  if (!state) return CUDA_ERROR_INVALID_VALUE;
  *state = CU_FUNCTION_LOADING_STATE_LOADED;
  return CUDA_SUCCESS;
}

CUresult impl_cuFuncLoad(CUfunction function) {
  return function_of(function) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

/* ---- attributes ---- */

static CUresult get_attribute(int *value, CUfunction_attribute attribute, struct sim_handle *handle) {
  if (!handle) return CUDA_ERROR_INVALID_HANDLE;
  if (!value || attribute < 0 || attribute >= CU_FUNC_ATTRIBUTE_MAX) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
  case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
    *value = BLOCK_THREADS_MAX;
    break;
  case CU_FUNC_ATTRIBUTE_NUM_REGS:
    *value = 32;
    break;
  case CU_FUNC_ATTRIBUTE_PTX_VERSION:
  case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
    *value = 90;
    break;
  case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
    *value = atomic_load(&handle->dynamic_shared_bytes);
    break;
  case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
    *value = atomic_load(&handle->carveout_percent);
    break;
  default:
    *value = 0;
  }
  return CUDA_SUCCESS;
}

static CUresult set_attribute(struct sim_handle *handle, CUfunction_attribute attribute, int value) {
  if (!handle) return CUDA_ERROR_INVALID_HANDLE;
  switch (attribute) {
  case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
    if (value < 0 || value > BLOCK_SHARED_BYTES_MAX) return CUDA_ERROR_INVALID_VALUE;
    atomic_store(&handle->dynamic_shared_bytes, value);
    return CUDA_SUCCESS;
  case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
    if (value < -1 || value > 100) return CUDA_ERROR_INVALID_VALUE;
    atomic_store(&handle->carveout_percent, value);
    return CUDA_SUCCESS;
  case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
  case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
    return CUDA_SUCCESS;
  default:
    return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult impl_cuFuncGetAttribute(int *pi, CUfunction_attribute attrib, CUfunction hfunc) {
  return get_attribute(pi, attrib, function_of(hfunc));
}

CUresult impl_cuFuncSetAttribute(CUfunction hfunc, CUfunction_attribute attrib, int value) {
  return set_attribute(function_of(hfunc), attrib, value);
}

CUresult impl_cuKernelGetAttribute(int *pi, CUfunction_attribute attrib, CUkernel kernel, CUdevice dev) {
  return sim_device_valid(dev) ? get_attribute(pi, attrib, kernel_of(kernel)) : CUDA_ERROR_INVALID_DEVICE;
}

CUresult impl_cuKernelSetAttribute(CUfunction_attribute attrib, int val, CUkernel kernel, CUdevice dev) {
  return sim_device_valid(dev) ? set_attribute(kernel_of(kernel), attrib, val) : CUDA_ERROR_INVALID_DEVICE;
}

CUresult impl_cuFuncSetCacheConfig(CUfunction hfunc, CUfunc_cache config) {
  (void)config;
  return function_of(hfunc) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult impl_cuFuncSetSharedMemConfig(CUfunction hfunc, CUsharedconfig config) {
  (void)config;
  return function_of(hfunc) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult impl_cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache config, CUdevice dev) {
  (void)config;
  if (!sim_device_valid(dev)) return CUDA_ERROR_INVALID_DEVICE;
  return kernel_of(kernel) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

/* ---- occupancy ---- */

static int active_blocks(int block_threads, size_t shared_bytes) {
  int warps_threads = (block_threads + 31) / 32 * 32;
  int blocks = MULTIPROCESSOR_THREADS / warps_threads;
  if (blocks > MULTIPROCESSOR_BLOCKS) blocks = MULTIPROCESSOR_BLOCKS;
  if (shared_bytes > BLOCK_SHARED_BYTES_MAX) return 0;
  int fitting = shared_bytes ? (int)(MULTIPROCESSOR_SHARED_BYTES / (shared_bytes + 1024)) : blocks;
  return fitting < blocks ? fitting : blocks;
}

static bool block_size_valid(int block_threads) {
  return block_threads > 0 && block_threads <= BLOCK_THREADS_MAX;
}

CUresult impl_cuOccupancyMaxActiveBlocksPerMultiprocessor(int *numBlocks, CUfunction func, int blockSize,
                                                          size_t dynamicSMemSize) {
  if (!numBlocks || !block_size_valid(blockSize)) return CUDA_ERROR_INVALID_VALUE;
  if (!sim_kernel_of(func)) return CUDA_ERROR_INVALID_HANDLE;
  *numBlocks = active_blocks(blockSize, dynamicSMemSize);
  return CUDA_SUCCESS;
}

CUresult impl_cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *numBlocks, CUfunction func,
                                                                   int blockSize, size_t dynamicSMemSize,
                                                                   unsigned int flags) {
  if (flags & ~(unsigned)CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE) return CUDA_ERROR_INVALID_VALUE;
  return impl_cuOccupancyMaxActiveBlocksPerMultiprocessor(numBlocks, func, blockSize, dynamicSMemSize);
}

CUresult impl_cuOccupancyMaxPotentialBlockSize(int *minGridSize, int *blockSize, CUfunction func,
                                               CUoccupancyB2DSize blockSizeToDynamicSMemSize,
                                               size_t dynamicSMemSize, int blockSizeLimit) {
  if (!minGridSize || !blockSize) return CUDA_ERROR_INVALID_VALUE;
  if (!sim_kernel_of(func)) return CUDA_ERROR_INVALID_HANDLE;
  int limit = block_size_valid(blockSizeLimit) ? blockSizeLimit : BLOCK_THREADS_MAX;
  size_t shared_bytes = blockSizeToDynamicSMemSize ? blockSizeToDynamicSMemSize(limit) : dynamicSMemSize;
  *blockSize = limit;
  *minGridSize = MULTIPROCESSORS * active_blocks(limit, shared_bytes);
  return CUDA_SUCCESS;
}

CUresult impl_cuOccupancyMaxPotentialBlockSizeWithFlags(int *minGridSize, int *blockSize, CUfunction func,
                                                        CUoccupancyB2DSize blockSizeToDynamicSMemSize,
                                                        size_t dynamicSMemSize, int blockSizeLimit,
                                                        unsigned int flags) {
  if (flags & ~(unsigned)CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE) return CUDA_ERROR_INVALID_VALUE;
  return impl_cuOccupancyMaxPotentialBlockSize(minGridSize, blockSize, func, blockSizeToDynamicSMemSize,
                                               dynamicSMemSize, blockSizeLimit);
}

CUresult impl_cuOccupancyAvailableDynamicSMemPerBlock(size_t *dynamicSmemSize, CUfunction func, int numBlocks,
                                                      int blockSize) {
  if (!dynamicSmemSize || numBlocks <= 0 || !block_size_valid(blockSize)) return CUDA_ERROR_INVALID_VALUE;
  if (!sim_kernel_of(func)) return CUDA_ERROR_INVALID_HANDLE;
  size_t bytes = MULTIPROCESSOR_SHARED_BYTES / (size_t)numBlocks - 1024;
  *dynamicSmemSize = bytes < BLOCK_SHARED_BYTES_MAX ? bytes : BLOCK_SHARED_BYTES_MAX;
  return CUDA_SUCCESS;
}
