// CUDA calls of the trainer. Owns the choice between runtime and driver API, and the peak of device memory.
#include "device.h"

#include <cuda.h>
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/** The driver's calls that --driver-api uses; empty without it. */
static struct {
  CUresult (*alloc)(CUdeviceptr *, size_t);
  CUresult (*release)(CUdeviceptr);
  CUresult (*upload)(CUdeviceptr, const void *, size_t, CUstream);
  CUresult (*download)(void *, CUdeviceptr, size_t, CUstream);
} driver;

static int device_ordinal;
static size_t lowest_free_bytes = SIZE_MAX, first_free_bytes;

void rp_die(const char *format, ...) {
  const char *rank = getenv("RANK");
  va_list args;
  char text[512];
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  fprintf(stderr, "trainer: rank %s: %s\n", rank != NULL ? rank : "-", text);
  exit(1);
}

uint64_t rp_now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void driver_init(void) {
#ifdef RP_TRAINER_LINKS_DRIVER
  driver.alloc = cuMemAlloc;
  driver.release = cuMemFree;
  driver.upload = cuMemcpyHtoDAsync;
  driver.download = cuMemcpyDtoHAsync;
#else
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) rp_die("--driver-api needs the driver: %s", dlerror());
  *(void **)&driver.alloc = dlsym(library, "cuMemAlloc_v2");
  *(void **)&driver.release = dlsym(library, "cuMemFree_v2");
  *(void **)&driver.upload = dlsym(library, "cuMemcpyHtoDAsync_v2");
  *(void **)&driver.download = dlsym(library, "cuMemcpyDtoHAsync_v2");
  if (!driver.alloc || !driver.release || !driver.upload || !driver.download)
    rp_die("--driver-api: the driver lacks a memory call");
#endif
}

void rp_device_init(int local_rank, bool driver_api) {
  int count = 0;
  RP_CUDA(cudaGetDeviceCount(&count));
  if (count == 0) rp_die("no device");
  device_ordinal = local_rank % count;
  rp_device_attach_thread();
  if (driver_api) driver_init();
  rp_device_sample_memory();
}

void rp_device_attach_thread(void) {
  RP_CUDA(cudaSetDevice(device_ordinal));
}

/** Ends the process if a driver call did not succeed. */
static void check_driver(CUresult result, const char *call) {
  if (result != CUDA_SUCCESS) rp_die("%s: driver error %d", call, (int)result);
}

void *rp_device_alloc(size_t bytes) {
  void *memory = NULL;
  if (driver.alloc != NULL) {
    CUdeviceptr address = 0;
    check_driver(driver.alloc(&address, bytes), "cuMemAlloc");
    return (void *)(uintptr_t)address;
  }
  RP_CUDA(cudaMalloc(&memory, bytes));
  return memory;
}

void rp_device_free(void *memory) {
  if (memory == NULL) return;
  if (driver.release != NULL)
    check_driver(driver.release((CUdeviceptr)(uintptr_t)memory), "cuMemFree");
  else
    RP_CUDA(cudaFree(memory));
}

void rp_device_upload(void *device, const void *host, size_t bytes, cudaStream_t stream) {
  if (driver.upload != NULL)
    check_driver(driver.upload((CUdeviceptr)(uintptr_t)device, host, bytes, stream), "cuMemcpyHtoDAsync");
  else
    RP_CUDA(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream));
}

void rp_device_download(void *host, const void *device, size_t bytes, cudaStream_t stream) {
  if (driver.download != NULL)
    check_driver(driver.download(host, (CUdeviceptr)(uintptr_t)device, bytes, stream), "cuMemcpyDtoHAsync");
  else
    RP_CUDA(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream));
}

void rp_device_launch(enum rp_kernel kernel, size_t elements, void **arguments, cudaStream_t stream) {
  enum { THREADS = 128, MOST_BLOCKS = 1024 };
  size_t blocks = (elements + THREADS - 1) / THREADS;
  dim3 grid = {(unsigned)(blocks > MOST_BLOCKS ? MOST_BLOCKS : blocks), 1, 1}, block = {THREADS, 1, 1};
  cudaError_t result = cudaLaunchKernel(rp_kernel_function(kernel), grid, block, arguments, 0, stream);
  if (result != cudaSuccess) rp_die("launch of %s: %s", rp_kernel_name(kernel), cudaGetErrorString(result));
}

void rp_device_sample_memory(void) {
  size_t free_bytes = 0, total_bytes = 0;
  RP_CUDA(cudaMemGetInfo(&free_bytes, &total_bytes));
  if (lowest_free_bytes == SIZE_MAX) first_free_bytes = free_bytes;
  if (free_bytes < lowest_free_bytes) lowest_free_bytes = free_bytes;
}

uint64_t rp_device_peak_bytes(void) {
  uint64_t (*peak)(int);
  *(void **)&peak = dlsym(RTLD_DEFAULT, "rpsim_physical_peak_bytes");
  if (peak != NULL) return peak(device_ordinal);
  return first_free_bytes - lowest_free_bytes;
}
