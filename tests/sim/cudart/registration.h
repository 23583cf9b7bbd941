/** @file registration.h
 * What the compiler's host code calls in the CUDA runtime, for programs in C: the prototypes of
 * crt/host_runtime.h and crt/device_functions.h, which only nvcc's C++ can include (registration_check.cpp
 * holds them against each other).
 */
#ifndef RPSIM_CUDART_REGISTRATION_H
#define RPSIM_CUDART_REGISTRATION_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/** What the compiler's host code registers: __fatBinC_Wrapper_t of fatbinary_section.h, which comes with nvcc
 * only (registration_check.cpp holds them against each other). */
struct rt_fat_binary {
  int magic; /**< RT_FAT_BINARY_MAGIC */
  int version;
  const unsigned long long *data;
  void *filename_or_fatbins;
};
#define RT_FAT_BINARY_MAGIC 0x466243B1
#define RT_FAT_BINARY_VERSION 1

/** Announces a device binary (a struct rt_fat_binary); the handle is for the calls below. Makes no driver
 * call. NULL without memory, and such a handle is ignored everywhere. All of these are thread-safe. */
extern void **CUDARTAPI __cudaRegisterFatBinary(void *fatCubin);
extern void CUDARTAPI __cudaRegisterFatBinaryEnd(void **fatCubinHandle);
/** Forgets the binary, its kernels and variables, and unloads it where it was loaded. */
extern void CUDARTAPI __cudaUnregisterFatBinary(void **fatCubinHandle);
/** Loads the binary now instead of at the first launch. Returns 0 if that failed. */
extern char CUDARTAPI __cudaInitModule(void **fatCubinHandle);

/** Makes hostFun the symbol of kernel deviceName. Names must live as long as the binary is registered. */
extern void CUDARTAPI __cudaRegisterFunction(void **fatCubinHandle, const char *hostFun, char *deviceFun,
                                             const char *deviceName, int thread_limit, uint3 *tid, uint3 *bid,
                                             dim3 *bDim, dim3 *gDim, int *wSize);
/** Makes hostVar the symbol of device variable deviceName. */
extern void CUDARTAPI __cudaRegisterVar(void **fatCubinHandle, char *hostVar, char *deviceAddress,
                                        const char *deviceName, int ext, size_t size, int constant,
                                        int global);

/** Keeps the launch configuration of a <<<>>> call for the kernel's host function, per thread, nested. 0 =
 * kept. */
extern unsigned CUDARTAPI __cudaPushCallConfiguration(dim3 gridDim, dim3 blockDim, size_t sharedMem,
                                                      struct CUstream_st *stream);
extern cudaError_t CUDARTAPI __cudaPopCallConfiguration(dim3 *gridDim, dim3 *blockDim, size_t *sharedMem,
                                                        void *stream);
/** The kernel of a host symbol, and its launch, as <<<>>> compiles to since CUDA 13. */
extern cudaError_t CUDARTAPI __cudaGetKernel(cudaKernel_t *kernel, const void *hostFun);
extern cudaError_t CUDARTAPI __cudaLaunchKernel(cudaKernel_t kernel, dim3 gridDim, dim3 blockDim, void **args,
                                                size_t sharedMem, cudaStream_t stream);
extern cudaError_t CUDARTAPI __cudaLaunchKernel_ptsz(cudaKernel_t kernel, dim3 gridDim, dim3 blockDim,
                                                     void **args, size_t sharedMem, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
