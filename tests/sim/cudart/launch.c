/* Owns launches and what can be asked about kernels in the simulated runtime. */
#include "runtime.h"
#include "registration.h"

#include <string.h>

enum { MAX_THREADS_PER_BLOCK = 1024 };

static cudaError_t dims_check(dim3 grid, dim3 block) {
  bool empty = !grid.x || !grid.y || !grid.z || !block.x || !block.y || !block.z;
  bool large = (uint64_t)block.x * block.y > MAX_THREADS_PER_BLOCK ||
               (uint64_t)block.x * block.y * block.z > MAX_THREADS_PER_BLOCK;
  return empty || large ? cudaErrorInvalidConfiguration : cudaSuccess;
}

cudaError_t impl_cudaLaunchKernel(const void *symbol, dim3 grid, dim3 block, void **args, size_t shared_bytes,
                                  cudaStream_t stream) {
  CUkernel kernel;
  cudaError_t error = rt_kernel_find(symbol, &kernel);
  if (!error) error = dims_check(grid, block);
  if (error) return error;
  return RT(cuLaunchKernel, (CUfunction)kernel, grid.x, grid.y, grid.z, block.x, block.y, block.z,
            (unsigned)shared_bytes, stream, args, NULL);
}

cudaError_t impl_cudaLaunchCooperativeKernel(const void *symbol, dim3 grid, dim3 block, void **args,
                                             size_t shared_bytes, cudaStream_t stream) {
  CUkernel kernel;
  cudaError_t error = rt_kernel_find(symbol, &kernel);
  if (!error) error = dims_check(grid, block);
  if (error) return error;
  return RT(cuLaunchCooperativeKernel, (CUfunction)kernel, grid.x, grid.y, grid.z, block.x, block.y, block.z,
            (unsigned)shared_bytes, stream, args);
}

_Static_assert(sizeof(cudaLaunchAttribute) == sizeof(CUlaunchAttribute) &&
                   offsetof(cudaLaunchAttribute, val) == offsetof(CUlaunchAttribute, value) &&
                   (int)cudaLaunchAttributeProgrammaticStreamSerialization ==
                       (int)CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
               "launch attributes are handed through");

cudaError_t impl_cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *symbol, void **args) {
  CUkernel kernel;
  if (!config) return cudaErrorInvalidValue;
  cudaError_t error = rt_kernel_find(symbol, &kernel);
  if (!error) error = dims_check(config->gridDim, config->blockDim);
  if (error) return error;
  CUlaunchConfig converted = {.gridDimX = config->gridDim.x,
                              .gridDimY = config->gridDim.y,
                              .gridDimZ = config->gridDim.z,
                              .blockDimX = config->blockDim.x,
                              .blockDimY = config->blockDim.y,
                              .blockDimZ = config->blockDim.z,
                              .sharedMemBytes = (unsigned)config->dynamicSmemBytes,
                              .hStream = config->stream,
                              .attrs = (CUlaunchAttribute *)config->attrs,
                              .numAttrs = config->numAttrs};
  return RT(cuLaunchKernelEx, &converted, (CUfunction)kernel, args, NULL);
}

cudaError_t impl_cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data) {
  return RT(cuLaunchHostFunc, stream, function, data);
}

/* The nested configurations of <<<>>> calls whose host function has not run yet. */
enum { CONFIGURATION_DEPTH = 16 };
static _Thread_local struct {
  dim3 grid, block;
  size_t shared_bytes;
  cudaStream_t stream;
} configurations[CONFIGURATION_DEPTH];
static _Thread_local unsigned configuration_count;

RT_EXPORT unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes,
                                               struct CUstream_st *stream) {
  if (configuration_count == CONFIGURATION_DEPTH) return 1;
  configurations[configuration_count].grid = grid;
  configurations[configuration_count].block = block;
  configurations[configuration_count].shared_bytes = shared_bytes;
  configurations[configuration_count].stream = stream;
  configuration_count++;
  return 0;
}

RT_EXPORT cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared_bytes,
                                                 void *stream) {
  if (!configuration_count) return rt_last_error = cudaErrorMissingConfiguration;
  configuration_count--;
  *grid = configurations[configuration_count].grid;
  *block = configurations[configuration_count].block;
  *shared_bytes = configurations[configuration_count].shared_bytes;
  *(cudaStream_t *)stream = configurations[configuration_count].stream;
  return cudaSuccess;
}

cudaError_t impl_cudaGetKernel(cudaKernel_t *kernel, const void *symbol) {
  CUkernel found;
  if (!kernel) return cudaErrorInvalidValue;
  cudaError_t error = rt_kernel_find(symbol, &found);
  if (!error) error = rt_kernel_remember(found, symbol);
  if (!error) *kernel = (cudaKernel_t)found;
  return error;
}

cudaError_t impl___cudaGetKernel(cudaKernel_t *kernel, const void *symbol) {
  return impl_cudaGetKernel(kernel, symbol);
}

cudaError_t impl___cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **args,
                                    size_t shared_bytes, cudaStream_t stream) {
  return impl_cudaLaunchKernel(kernel, grid, block, args, shared_bytes, stream);
}

static cudaError_t function_find(const void *symbol, CUfunction *function) {
  CUkernel kernel;
  cudaError_t error = rt_kernel_find(symbol, &kernel);
  if (error) return error;
  error = RT(cuKernelGetFunction, function, kernel);
  if (error != cudaErrorInvalidResourceHandle) return error;
  *function = (CUfunction)kernel; /* cudaGetFuncBySymbol had given it out */
  return cudaSuccess;
}

cudaError_t impl_cudaGetFuncBySymbol(cudaFunction_t *function, const void *symbol) {
  CUfunction found;
  if (!function) return cudaErrorInvalidValue;
  cudaError_t error = function_find(symbol, &found);
  if (!error) error = rt_kernel_remember(found, symbol);
  if (!error) *function = found;
  return error;
}

cudaError_t impl_cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *symbol) {
  CUfunction function;
  int shared = 0, constant = 0, local = 0;
  if (!attributes) return cudaErrorInvalidValue;
  cudaError_t error = function_find(symbol, &function);
  if (error) return error;
  memset(attributes, 0, sizeof *attributes);
  const struct {
    CUfunction_attribute attribute;
    int *value;
  } wanted[] = {
      {CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, &shared},
      {CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES, &constant},
      {CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, &local},
      {CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, &attributes->maxThreadsPerBlock},
      {CU_FUNC_ATTRIBUTE_NUM_REGS, &attributes->numRegs},
      {CU_FUNC_ATTRIBUTE_PTX_VERSION, &attributes->ptxVersion},
      {CU_FUNC_ATTRIBUTE_BINARY_VERSION, &attributes->binaryVersion},
      {CU_FUNC_ATTRIBUTE_CACHE_MODE_CA, &attributes->cacheModeCA},
      {CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, &attributes->maxDynamicSharedSizeBytes},
      {CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, &attributes->preferredShmemCarveout},
  };
  for (size_t i = 0; !error && i < sizeof wanted / sizeof *wanted; i++)
    error = RT(cuFuncGetAttribute, wanted[i].value, wanted[i].attribute, function);
  attributes->sharedSizeBytes = (size_t)shared;
  attributes->constSizeBytes = (size_t)constant;
  attributes->localSizeBytes = (size_t)local;
  return error;
}

cudaError_t impl_cudaFuncSetAttribute(const void *symbol, enum cudaFuncAttribute attribute, int value) {
  CUfunction function;
  cudaError_t error = function_find(symbol, &function);
  return error ? error : RT(cuFuncSetAttribute, function, (CUfunction_attribute)attribute, value);
}

cudaError_t impl_cudaFuncSetCacheConfig(const void *symbol, enum cudaFuncCache config) {
  CUfunction function;
  cudaError_t error = function_find(symbol, &function);
  return error ? error : RT(cuFuncSetCacheConfig, function, (CUfunc_cache)config);
}

cudaError_t impl_cudaFuncGetName(const char **name, const void *symbol) {
  CUfunction function;
  if (!name) return cudaErrorInvalidValue;
  cudaError_t error = function_find(symbol, &function);
  return error ? error : RT(cuFuncGetName, name, function);
}

cudaError_t impl_cudaFuncGetParamInfo(const void *symbol, size_t index, size_t *offset, size_t *size) {
  CUfunction function;
  cudaError_t error = function_find(symbol, &function);
  return error ? error : RT(cuFuncGetParamInfo, function, index, offset, size);
}

cudaError_t impl_cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *symbol,
                                                                        int block_size, size_t shared_bytes,
                                                                        unsigned int flags) {
  CUfunction function;
  cudaError_t error = function_find(symbol, &function);
  if (error) return error;
  return RT(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, blocks, function, block_size, shared_bytes,
            flags);
}

cudaError_t impl_cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *symbol,
                                                               int block_size, size_t shared_bytes) {
  return impl_cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, symbol, block_size, shared_bytes,
                                                                     cudaOccupancyDefault);
}

cudaError_t impl_cudaOccupancyAvailableDynamicSMemPerBlock(size_t *shared_bytes, const void *symbol,
                                                           int blocks, int block_size) {
  CUfunction function;
  cudaError_t error = function_find(symbol, &function);
  return error ? error
               : RT(cuOccupancyAvailableDynamicSMemPerBlock, shared_bytes, function, blocks, block_size);
}
