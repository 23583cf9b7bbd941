// CUDA calls of the trainer. Owns the choice between runtime and driver API, and the peak of device memory.
#include "device.h"

#include <cuda.h>
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/** The driver's calls that --driver-api uses, with the names the library has them under. */
#define DRIVER_CALLS(X)                                                                                      \
  X(cuMemAlloc, "cuMemAlloc_v2")                                                                             \
  X(cuMemFree, "cuMemFree_v2")                                                                               \
  X(cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2")                                                               \
  X(cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2")                                                               \
  X(cuMemsetD8Async, "cuMemsetD8Async")                                                                      \
  X(cuLaunchKernel, "cuLaunchKernel")                                                                        \
  X(cuEventRecord, "cuEventRecord")                                                                          \
  X(cuStreamWaitEvent, "cuStreamWaitEvent")                                                                  \
  X(cuStreamSynchronize, "cuStreamSynchronize")                                                              \
  X(cuIpcGetMemHandle, "cuIpcGetMemHandle")

#define MEMBER(call, name) __typeof__(&call) p##call;
static struct { DRIVER_CALLS(MEMBER) } driver;
static bool use_driver;

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
#define LINK(call, name) driver.p##call = call;
  DRIVER_CALLS(LINK)
#else
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) rp_die("--driver-api needs the driver: %s", dlerror());
#define LOOK_UP(call, name)                                                                                  \
  *(void **)&driver.p##call = dlsym(library, name);                                                          \
  if (driver.p##call == NULL) rp_die("--driver-api: the driver lacks %s", name);
  DRIVER_CALLS(LOOK_UP)
#endif
  use_driver = true;
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
  if (result == CUDA_ERROR_OUT_OF_MEMORY) rp_die("%s: out of memory (CUDA_ERROR_OUT_OF_MEMORY)", call);
  if (result != CUDA_SUCCESS) rp_die("%s: driver error %d", call, (int)result);
}
#define DRIVER(call, ...) check_driver(driver.p##call(__VA_ARGS__), #call)

static CUdeviceptr address_of(const void *memory) {
  return (CUdeviceptr)(uintptr_t)memory;
}

// ---- memory

void *rp_device_alloc(size_t bytes) {
  void *memory = NULL;
  if (use_driver) {
    CUdeviceptr address = 0;
    DRIVER(cuMemAlloc, &address, bytes);
    return (void *)(uintptr_t)address;
  }
  RP_CUDA(cudaMalloc(&memory, bytes));
  return memory;
}

void rp_device_free(void *memory) {
  if (memory == NULL) return;
  if (use_driver)
    DRIVER(cuMemFree, address_of(memory));
  else
    RP_CUDA(cudaFree(memory));
}

int rp_device_try_free(void *memory) {
  if (use_driver) return (int)driver.pcuMemFree(address_of(memory));
  cudaError_t result = cudaFree(memory);
  if (result != cudaSuccess) (void)cudaGetLastError();
  return (int)result;
}

int rp_device_export(void *memory) {
  CUipcMemHandle driver_handle;
  cudaIpcMemHandle_t handle;
  if (use_driver) return (int)driver.pcuIpcGetMemHandle(&driver_handle, address_of(memory));
  cudaError_t result = cudaIpcGetMemHandle(&handle, memory);
  if (result != cudaSuccess) (void)cudaGetLastError();
  return (int)result;
}

void rp_device_upload(void *device, const void *host, size_t bytes, cudaStream_t stream) {
  if (use_driver)
    DRIVER(cuMemcpyHtoDAsync, address_of(device), host, bytes, stream);
  else
    RP_CUDA(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream));
}

void rp_device_download(void *host, const void *device, size_t bytes, cudaStream_t stream) {
  if (use_driver)
    DRIVER(cuMemcpyDtoHAsync, host, address_of(device), bytes, stream);
  else
    RP_CUDA(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream));
}

void rp_device_set(void *device, unsigned char value, size_t bytes, cudaStream_t stream) {
  if (use_driver)
    DRIVER(cuMemsetD8Async, address_of(device), value, bytes, stream);
  else
    RP_CUDA(cudaMemsetAsync(device, value, bytes, stream));
}

// ---- launches

void rp_device_grid(size_t elements, dim3 *grid, dim3 *block) {
  enum { THREADS = 128, MOST_BLOCKS = 1024 };
  size_t blocks = (elements + THREADS - 1) / THREADS;
  *grid = (dim3){(unsigned)(blocks > MOST_BLOCKS ? MOST_BLOCKS : blocks), 1, 1};
  *block = (dim3){THREADS, 1, 1};
}

cudaFunction_t rp_device_function(enum rp_kernel kernel) {
  cudaFunction_t function = NULL;
  RP_CUDA(cudaGetFuncBySymbol(&function, rp_kernel_function(kernel)));
  return function;
}

#if CUDART_VERSION >= 13000
// What nvcc makes of <<<...>>> since CUDA 13; the toolkit declares them for C++ only.
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host_function);
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments,
                               size_t shared_bytes, cudaStream_t stream);

static cudaError_t launch_as_compiled(const void *function, dim3 grid, dim3 block, void **arguments,
                                      cudaStream_t stream) {
  cudaKernel_t handle;
  cudaError_t result = __cudaGetKernel(&handle, function);
  return result != cudaSuccess ? result : __cudaLaunchKernel(handle, grid, block, arguments, 0, stream);
}
#else
#define launch_as_compiled(function, grid, block, arguments, stream)                                         \
  cudaLaunchKernel(function, grid, block, arguments, 0, stream)
#endif

// Every second kernel is launched as a compiled <<<...>>> is, the others as by hand.
static cudaError_t launch_by_runtime(enum rp_kernel kernel, dim3 grid, dim3 block, void **arguments,
                                     cudaStream_t stream) {
  const void *function = rp_kernel_function(kernel);
  if (kernel % 2 == 1) return launch_as_compiled(function, grid, block, arguments, stream);
  return cudaLaunchKernel(function, grid, block, arguments, 0, stream);
}

void rp_device_launch(enum rp_kernel kernel, size_t elements, void **arguments, cudaStream_t stream) {
  dim3 grid, block;
  rp_device_grid(elements, &grid, &block);
  if (use_driver) {
    DRIVER(cuLaunchKernel, rp_device_function(kernel), grid.x, 1, 1, block.x, 1, 1, 0, stream, arguments,
           NULL);
    return;
  }
  cudaError_t result = launch_by_runtime(kernel, grid, block, arguments, stream);
  if (result != cudaSuccess) rp_die("launch of %s: %s", rp_kernel_name(kernel), cudaGetErrorString(result));
}

void rp_device_delay(uint32_t microseconds, cudaStream_t stream) {
  void *arguments[] = {&microseconds};
  rp_device_launch(RP_KERNEL_DELAY, 1, arguments, stream);
}

// ---- order

cudaEvent_t rp_device_event(void) {
  cudaEvent_t event;
  RP_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  return event;
}

void rp_device_record(cudaEvent_t event, cudaStream_t stream) {
  if (use_driver)
    DRIVER(cuEventRecord, event, stream);
  else
    RP_CUDA(cudaEventRecord(event, stream));
}

void rp_device_wait(cudaStream_t stream, cudaEvent_t event) {
  if (use_driver)
    DRIVER(cuStreamWaitEvent, stream, event, 0);
  else
    RP_CUDA(cudaStreamWaitEvent(stream, event, 0));
}

void rp_device_synchronize(cudaStream_t stream) {
  if (use_driver)
    DRIVER(cuStreamSynchronize, stream);
  else
    RP_CUDA(cudaStreamSynchronize(stream));
}

// ---- how much memory

void rp_device_sample_memory(void) {
  size_t free_bytes = 0, total_bytes = 0;
  RP_CUDA(cudaMemGetInfo(&free_bytes, &total_bytes));
  if (lowest_free_bytes == SIZE_MAX) first_free_bytes = free_bytes;
  if (free_bytes < lowest_free_bytes) lowest_free_bytes = free_bytes;
}

uint64_t rp_device_held_bytes(void) {
  uint64_t (*held)(int);
  size_t free_bytes = 0, total_bytes = 0;
  *(void **)&held = dlsym(RTLD_DEFAULT, "rpsim_physical_bytes");
  if (held != NULL) return held(device_ordinal);
  RP_CUDA(cudaMemGetInfo(&free_bytes, &total_bytes));
  return total_bytes - free_bytes;
}

uint64_t rp_device_peak_bytes(void) {
  uint64_t (*peak)(int);
  *(void **)&peak = dlsym(RTLD_DEFAULT, "rpsim_physical_peak_bytes");
  if (peak != NULL) return peak(device_ordinal);
  return first_free_bytes - lowest_free_bytes;
}
