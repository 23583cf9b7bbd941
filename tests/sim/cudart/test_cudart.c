/* The simulated runtime over the simulated driver: launches by symbol, memory, copies, errors, devices. Wants
 * RPSIM_DEVICES=2. Parts of their own: "sticky", after which a process is of no more use, and "no-device",
 * which wants RPSIM_DEVICES=0. */
#define _GNU_SOURCE /* dlvsym */
#include "test_support.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { WORDS = 1024, WORD_BYTES = WORDS * 4 };
static const dim3 one = {1, 1, 1};

/* ---- launches ---- */

static void test_launch_by_symbol(void **state) {
  (void)state;
  uint32_t *words = device_words(WORDS);
  assert_cuda(launch_fill(words, 5, WORDS, NULL));
  assert_cuda(launch_add(words, 7, WORDS, NULL));
  assert_device_words(words, 12, WORDS);
  assert_cuda(cudaFree(words));
}

static void test_launch_of_unknown_function(void **state) {
  (void)state;
  assert_int_equal(cudaLaunchKernel((void *)test_launch_by_symbol, one, one, NULL, 0, NULL),
                   cudaErrorInvalidDeviceFunction);
  assert_int_equal(cudaLaunchKernel((void *)symbol_absent, one, one, NULL, 0, NULL),
                   cudaErrorInvalidDeviceFunction);
  assert_int_equal(cudaGetLastError(), cudaErrorInvalidDeviceFunction);
}

/* A module that comes and goes, as by dlopen and dlclose: its symbols go with it. */
static void test_unregistered_binary(void **state) {
  (void)state;
  static const char image[16], symbol;
  uint32_t *words = device_words(WORDS), value = 6;
  uint64_t count = WORDS;
  void *args[] = {&words, &value, &count};
  void **binary = __cudaRegisterFatBinary((void *)image);
  __cudaRegisterFunction(binary, &symbol, NULL, "_Z4fillPjjm", -1, NULL, NULL, NULL, NULL, NULL);
  __cudaRegisterFatBinaryEnd(binary);
  assert_int_equal(__cudaInitModule(binary), 1);
  assert_cuda(cudaLaunchKernel(&symbol, one, one, args, 0, NULL));
  assert_device_words(words, 6, WORDS);
  __cudaUnregisterFatBinary(binary);
  assert_int_equal(rpsim_call_count("cuLibraryUnload"), 1);
  assert_int_equal(cudaLaunchKernel(&symbol, one, one, args, 0, NULL), cudaErrorInvalidDeviceFunction);
  assert_int_equal(cudaGetLastError(), cudaErrorInvalidDeviceFunction);
  assert_cuda(cudaFree(words));
}

static void test_launch_configuration(void **state) {
  (void)state;
  struct gate *gate = NULL;
  void *args[] = {&gate};
  const dim3 none = {0, 1, 1}, large = {1024, 2, 1};
  const void *symbol = (const void *)symbol_gate;
  assert_int_equal(cudaLaunchKernel(symbol, none, one, args, 0, NULL), cudaErrorInvalidConfiguration);
  assert_int_equal(cudaLaunchKernel(symbol, one, none, args, 0, NULL), cudaErrorInvalidConfiguration);
  assert_int_equal(cudaLaunchKernel(symbol, one, large, args, 0, NULL), cudaErrorInvalidConfiguration);
  assert_int_equal(cudaGetLastError(), cudaErrorInvalidConfiguration);
}

/* What <<<>>> compiles to: the configuration is pushed by the caller and popped in the host function. */
static void test_launch_as_compiled(void **state) {
  (void)state;
  uint32_t *words = device_words(WORDS), value = 9;
  uint64_t count = WORDS;
  void *args[] = {&words, &value, &count};
  dim3 grid, block;
  size_t shared_bytes;
  cudaStream_t stream, popped;
  cudaKernel_t kernel;
  assert_cuda(cudaStreamCreate(&stream));
  assert_int_equal(__cudaPushCallConfiguration((dim3){3, 2, 1}, (dim3){32, 1, 1}, 48, stream), 0);
  assert_cuda(__cudaPopCallConfiguration(&grid, &block, &shared_bytes, &popped));
  assert_int_equal(grid.x * 10 + grid.y, 32);
  assert_int_equal(block.x, 32);
  assert_int_equal(shared_bytes, 48);
  assert_ptr_equal(popped, stream);
  assert_int_equal(__cudaPopCallConfiguration(&grid, &block, &shared_bytes, &popped),
                   cudaErrorMissingConfiguration);
  assert_int_equal(cudaGetLastError(), cudaErrorMissingConfiguration);
  assert_cuda(__cudaGetKernel(&kernel, (const void *)symbol_fill));
  assert_cuda(__cudaLaunchKernel(kernel, grid, block, args, shared_bytes, popped));
  assert_device_words(words, 9, WORDS);
  assert_cuda(cudaStreamDestroy(stream));
  assert_cuda(cudaFree(words));
}

static void test_other_launch_calls(void **state) {
  (void)state;
  uint32_t *words = device_words(WORDS), value = 1;
  uint64_t count = WORDS;
  void *args[] = {&words, &value, &count};
  cudaLaunchConfig_t config = {.gridDim = {1, 1, 1}, .blockDim = {32, 1, 1}};
  assert_cuda(launch_fill(words, 0, WORDS, NULL));
  assert_cuda(cudaLaunchKernelExC(&config, (const void *)symbol_add, args));
  assert_cuda(cudaLaunchCooperativeKernel((const void *)symbol_add, one, one, args, 0, NULL));
  assert_device_words(words, 2, WORDS);
  assert_cuda(cudaFree(words));
}

static void test_function_queries(void **state) {
  (void)state;
  size_t offset = 0, size = 0;
  struct cudaFuncAttributes attributes;
  const char *name = NULL;
  int blocks = 0;
  const void *symbol = (const void *)symbol_fill;
  assert_cuda(cudaFuncGetParamInfo(symbol, 1, &offset, &size));
  assert_int_equal(offset, 8);
  assert_int_equal(size, 4);
  assert_int_equal(cudaFuncGetParamInfo(symbol, 3, &offset, &size), cudaErrorInvalidValue);
  assert_cuda(cudaFuncGetAttributes(&attributes, symbol));
  assert_int_equal(attributes.maxThreadsPerBlock, 1024);
  assert_cuda(cudaFuncSetAttribute(symbol, cudaFuncAttributeMaxDynamicSharedMemorySize, 1024));
  assert_cuda(cudaFuncGetName(&name, symbol));
  assert_string_equal(name, "_Z4fillPjjm");
  assert_cuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, symbol, 128, 0));
  assert_true(blocks > 0);
  cudaGetLastError();
}

/* A handle from cudaGetFuncBySymbol is the driver's, and either API launches it. */
static void test_function_handle_in_driver(void **state) {
  (void)state;
  uint32_t *words = device_words(WORDS), value = 21;
  uint64_t count = WORDS;
  void *args[] = {&words, &value, &count};
  cudaFunction_t function;
  assert_cuda(cudaGetFuncBySymbol(&function, (const void *)symbol_fill));
  assert_int_equal(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, args, NULL), CUDA_SUCCESS);
  assert_device_words(words, 21, WORDS);
  value = 22;
  assert_cuda(cudaLaunchKernel(function, one, one, args, 0, NULL));
  assert_device_words(words, 22, WORDS);
  assert_cuda(cudaFree(words));
}

/* ---- memory and copies ---- */

static void test_malloc_and_free(void **state) {
  (void)state;
  size_t free_before, free_between, free_after, total;
  void *pointer = &total;
  assert_cuda(cudaMemGetInfo(&free_before, &total));
  assert_cuda(cudaMalloc(&pointer, 0));
  assert_null(pointer);
  assert_cuda(cudaMalloc(&pointer, 64 << 20));
  assert_cuda(cudaMemGetInfo(&free_between, NULL));
  assert_true(free_before - free_between >= 64 << 20);
  assert_cuda(cudaFree(pointer));
  assert_cuda(cudaMemGetInfo(&free_after, &total));
  assert_int_equal(free_after, free_before);
  assert_cuda(cudaFree(NULL));
  assert_int_equal(cudaFree(&total), cudaErrorInvalidValue);
  cudaGetLastError();
}

static void test_copy_kinds(void **state) {
  (void)state;
  uint32_t from[WORDS], to[WORDS], *a = device_words(WORDS), *b = device_words(WORDS);
  for (unsigned i = 0; i < WORDS; i++)
    from[i] = i * 3 + 1;
  assert_cuda(cudaMemcpy(a, from, WORD_BYTES, cudaMemcpyHostToDevice));
  assert_cuda(cudaMemcpy(b, a, WORD_BYTES, cudaMemcpyDeviceToDevice));
  assert_cuda(cudaMemcpy(to, b, WORD_BYTES, cudaMemcpyDeviceToHost));
  assert_memory_equal(to, from, WORD_BYTES);
  memset(to, 0, sizeof to);
  assert_cuda(cudaMemcpy(to, from, WORD_BYTES, cudaMemcpyHostToHost));
  assert_memory_equal(to, from, WORD_BYTES);
  assert_cuda(cudaMemset(a, 0, WORD_BYTES));
  assert_cuda(cudaMemcpy(a, from, WORD_BYTES, cudaMemcpyDefault));
  memset(to, 0, sizeof to);
  assert_cuda(cudaMemcpy(to, a, WORD_BYTES, cudaMemcpyDefault));
  assert_memory_equal(to, from, WORD_BYTES);
  assert_int_equal(cudaMemcpy(to, a, 4, (enum cudaMemcpyKind)42), cudaErrorInvalidMemcpyDirection);
  assert_int_equal(cudaMemcpy(NULL, a, 4, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
  assert_cuda(cudaMemcpy(NULL, NULL, 0, cudaMemcpyDeviceToHost));
  cudaGetLastError();
  assert_cuda(cudaFree(a));
  assert_cuda(cudaFree(b));
}

static void test_async_copies(void **state) {
  (void)state;
  enum cudaMemcpyKind down[] = {cudaMemcpyDeviceToHost, cudaMemcpyDefault};
  uint32_t *from, *to, *a = device_words(WORDS), *b = device_words(WORDS);
  cudaStream_t stream;
  assert_cuda(cudaMallocHost((void **)&from, WORD_BYTES));
  assert_cuda(cudaHostAlloc((void **)&to, WORD_BYTES, cudaHostAllocDefault));
  assert_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  for (unsigned i = 0; i < WORDS; i++)
    from[i] = i ^ 0x5a5a;
  for (unsigned i = 0; i < 2; i++) {
    memset(to, 0, WORD_BYTES);
    assert_cuda(cudaMemcpyAsync(a, from, WORD_BYTES, cudaMemcpyHostToDevice, stream));
    assert_cuda(cudaMemcpyAsync(b, a, WORD_BYTES, cudaMemcpyDeviceToDevice, stream));
    assert_cuda(cudaMemcpyAsync(to, b, WORD_BYTES, down[i], stream));
    assert_cuda(cudaStreamSynchronize(stream));
    assert_memory_equal(to, from, WORD_BYTES);
  }
  assert_cuda(cudaMemsetAsync(b, 0x11, WORD_BYTES, stream));
  assert_cuda(cudaStreamSynchronize(stream));
  assert_device_words(b, 0x11111111, WORDS);
  assert_cuda(cudaStreamDestroy(stream));
  assert_cuda(cudaFreeHost(from));
  assert_cuda(cudaFreeHost(to));
  assert_cuda(cudaFree(a));
  assert_cuda(cudaFree(b));
}

static void test_pitched_copies(void **state) {
  (void)state;
  enum { WIDTH = 12, HEIGHT = 5, HOST_PITCH = 16 };
  char from[HEIGHT * HOST_PITCH], to[HEIGHT * HOST_PITCH], *rows;
  size_t pitch;
  assert_cuda(cudaMallocPitch((void **)&rows, &pitch, WIDTH, HEIGHT));
  assert_true(pitch >= WIDTH);
  for (size_t i = 0; i < sizeof from; i++)
    from[i] = (char)i;
  memset(to, -1, sizeof to);
  assert_cuda(cudaMemset2D(rows, pitch, 0, WIDTH, HEIGHT));
  assert_cuda(cudaMemcpy2D(rows, pitch, from, HOST_PITCH, WIDTH, HEIGHT, cudaMemcpyHostToDevice));
  assert_cuda(cudaMemcpy2DAsync(to, HOST_PITCH, rows, pitch, WIDTH, HEIGHT, cudaMemcpyDefault, NULL));
  assert_cuda(cudaDeviceSynchronize());
  for (size_t row = 0; row < HEIGHT; row++) {
    assert_memory_equal(to + row * HOST_PITCH, from + row * HOST_PITCH, WIDTH);
    assert_int_equal(to[row * HOST_PITCH + WIDTH], -1); /* what is between the rows is not touched */
  }
  assert_int_equal(cudaMemcpy2D(to, 4, rows, pitch, WIDTH, HEIGHT, cudaMemcpyDeviceToHost),
                   cudaErrorInvalidPitchValue);
  cudaGetLastError();
  assert_cuda(cudaFree(rows));
}

static void test_3d_copies(void **state) {
  (void)state;
  enum { WIDTH = 8, HEIGHT = 4, DEPTH = 3, BYTES = WIDTH * HEIGHT * DEPTH };
  char from[BYTES], to[BYTES], *cube;
  struct cudaMemcpy3DParms copy = {.extent = {WIDTH, HEIGHT, DEPTH - 1}, .kind = cudaMemcpyHostToDevice};
  for (size_t i = 0; i < sizeof from; i++)
    from[i] = (char)i;
  memset(to, -1, sizeof to);
  assert_cuda(cudaMalloc((void **)&cube, BYTES));
  copy.srcPtr = (struct cudaPitchedPtr){from, WIDTH, WIDTH, HEIGHT};
  copy.dstPtr = (struct cudaPitchedPtr){cube, WIDTH, WIDTH, HEIGHT};
  copy.srcPos.z = 1;
  assert_cuda(cudaMemcpy3D(&copy));
  copy.srcPos.z = 0;
  copy.srcPtr.ptr = cube;
  copy.dstPtr.ptr = to;
  copy.kind = cudaMemcpyDeviceToHost;
  assert_cuda(cudaMemcpy3DAsync(&copy, NULL));
  assert_cuda(cudaDeviceSynchronize());
  assert_memory_equal(to, from + WIDTH * HEIGHT, WIDTH * HEIGHT * (DEPTH - 1));
  assert_int_equal(to[WIDTH * HEIGHT * (DEPTH - 1)], -1);
  copy.dstPtr.pitch = WIDTH / 2;
  assert_int_equal(cudaMemcpy3D(&copy), cudaErrorInvalidPitchValue);
  assert_int_equal(cudaGetLastError(), cudaErrorInvalidPitchValue);
  assert_cuda(cudaFree(cube));
}

static void test_unregistered_variable(void **state) {
  (void)state;
  static int variable;
  void *pointer;
  size_t size;
  assert_int_equal(cudaGetSymbolAddress(&pointer, &variable), cudaErrorInvalidSymbol);
  assert_int_equal(cudaGetSymbolSize(&size, &variable), cudaErrorInvalidSymbol);
  assert_int_equal(cudaMemcpyToSymbol(&variable, &size, 4, 0, cudaMemcpyHostToDevice),
                   cudaErrorInvalidSymbol);
  assert_int_equal(cudaMemcpyToSymbol(&variable, &size, 4, 0, cudaMemcpyDeviceToHost),
                   cudaErrorInvalidMemcpyDirection);
  assert_int_equal(cudaGetLastError(), cudaErrorInvalidMemcpyDirection);
}

static void test_host_registration(void **state) {
  (void)state;
  struct cudaPointerAttributes attributes;
  void *memory = aligned_alloc(4096, 4096), *device;
  unsigned flags;
  assert_non_null(memory);
  assert_cuda(cudaHostRegister(memory, 4096, cudaHostRegisterPortable));
  assert_int_equal(cudaHostRegister(memory, 4096, cudaHostRegisterPortable),
                   cudaErrorHostMemoryAlreadyRegistered);
  assert_cuda(cudaPointerGetAttributes(&attributes, memory));
  assert_int_equal(attributes.type, cudaMemoryTypeHost);
  assert_cuda(cudaHostGetDevicePointer(&device, memory, 0));
  assert_cuda(cudaHostGetFlags(&flags, memory));
  assert_true(flags & cudaHostRegisterPortable);
  assert_cuda(cudaHostUnregister(memory));
  assert_int_equal(cudaHostUnregister(memory), cudaErrorHostMemoryNotRegistered);
  cudaGetLastError();
  free(memory);
}

static void test_own_pool(void **state) {
  (void)state;
  struct cudaMemPoolProps props = {.allocType = cudaMemAllocationTypePinned,
                                   .location = {.type = cudaMemLocationTypeDevice, .id = 0}};
  enum cudaMemAccessFlags access = cudaMemAccessFlagsProtNone;
  cudaMemPool_t pool;
  uint32_t *words;
  uint64_t used = 0;
  assert_cuda(cudaMemPoolCreate(&pool, &props));
  assert_cuda(cudaMemPoolGetAccess(&access, pool, &props.location));
  assert_int_equal(access, cudaMemAccessFlagsProtReadWrite);
  assert_cuda(cudaMallocFromPoolAsync((void **)&words, WORD_BYTES, pool, NULL));
  assert_cuda(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used));
  assert_true(used >= WORD_BYTES);
  assert_cuda(cudaFreeAsync(words, NULL));
  assert_cuda(cudaDeviceSynchronize());
  assert_cuda(cudaMemPoolTrimTo(pool, 0));
  assert_cuda(cudaMemPoolDestroy(pool));
}

static void test_peer_copies(void **state) {
  (void)state;
  uint32_t *here = device_words(WORDS), *there;
  assert_cuda(cudaSetDevice(1));
  there = device_words(WORDS);
  assert_cuda(cudaSetDevice(0));
  assert_cuda(launch_fill(here, 77, WORDS, NULL));
  assert_cuda(cudaMemcpyPeer(there, 1, here, 0, WORD_BYTES));
  assert_cuda(launch_fill(here, 0, WORDS, NULL));
  assert_cuda(cudaMemcpyPeerAsync(here, 0, there, 1, WORD_BYTES, NULL));
  assert_device_words(here, 77, WORDS);
  assert_cuda(launch_fill(here, 78, WORDS, NULL));
  struct cudaMemcpy3DPeerParms box = {.srcPtr = {here, WORD_BYTES, WORD_BYTES, 1},
                                      .dstPtr = {there, WORD_BYTES, WORD_BYTES, 1},
                                      .dstDevice = 1,
                                      .extent = {WORD_BYTES, 1, 1}};
  assert_cuda(cudaMemcpy3DPeer(&box));
  assert_cuda(launch_fill(here, 0, WORDS, NULL));
  box = (struct cudaMemcpy3DPeerParms){
      .srcPtr = box.dstPtr, .srcDevice = 1, .dstPtr = box.srcPtr, .extent = {WORD_BYTES, 1, 1}};
  assert_cuda(cudaMemcpy3DPeerAsync(&box, NULL));
  assert_device_words(here, 78, WORDS);
  assert_cuda(cudaFree(there));
  assert_cuda(cudaFree(here));
}

static void test_pointer_attributes(void **state) {
  (void)state;
  struct cudaPointerAttributes attributes;
  void *host, *managed, *device = device_words(WORDS);
  int local;
  assert_cuda(cudaMallocHost(&host, 64));
  assert_cuda(cudaMallocManaged(&managed, 64, cudaMemAttachGlobal));
  assert_cuda(cudaPointerGetAttributes(&attributes, device));
  assert_int_equal(attributes.type, cudaMemoryTypeDevice);
  assert_int_equal(attributes.device, 0);
  assert_ptr_equal(attributes.devicePointer, device);
  assert_cuda(cudaPointerGetAttributes(&attributes, host));
  assert_int_equal(attributes.type, cudaMemoryTypeHost);
  assert_cuda(cudaPointerGetAttributes(&attributes, managed));
  assert_int_equal(attributes.type, cudaMemoryTypeManaged);
  assert_cuda(cudaPointerGetAttributes(&attributes, &local));
  assert_int_equal(attributes.type, cudaMemoryTypeUnregistered);
  assert_cuda(cudaFree(device));
  assert_cuda(cudaFree(managed));
  assert_cuda(cudaFreeHost(host));
}

static void test_async_allocation(void **state) {
  (void)state;
  cudaMemPool_t pool, current;
  cudaStream_t stream;
  uint64_t threshold = 1 << 20, found = 0;
  uint32_t *words;
  assert_cuda(cudaDeviceGetDefaultMemPool(&pool, 0));
  assert_cuda(cudaDeviceGetMemPool(&current, 0));
  assert_ptr_equal(pool, current);
  assert_cuda(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
  assert_cuda(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &found));
  assert_int_equal(found, threshold);
  assert_cuda(cudaStreamCreate(&stream));
  assert_cuda(cudaMallocAsync((void **)&words, WORD_BYTES, stream));
  assert_cuda(launch_fill(words, 31, WORDS, stream));
  assert_device_words(words, 31, WORDS);
  assert_cuda(cudaFreeAsync(words, stream));
  assert_cuda(cudaMallocFromPoolAsync((void **)&words, WORD_BYTES, pool, stream));
  assert_cuda(launch_fill(words, 32, WORDS, stream));
  assert_device_words(words, 32, WORDS);
  assert_cuda(cudaFreeAsync(words, stream));
  assert_cuda(cudaStreamSynchronize(stream));
  assert_cuda(cudaStreamDestroy(stream));
}

/* ---- errors ---- */

static void *last_error_of_thread(void *argument) {
  (void)argument;
  return (void *)(intptr_t)cudaPeekAtLastError();
}

static void test_last_error_per_thread(void **state) {
  (void)state;
  void *pointer = NULL, *others;
  pthread_t thread;
  assert_int_equal(cudaMalloc(&pointer, (size_t)1 << 50), cudaErrorMemoryAllocation);
  assert_null(pointer);
  assert_int_equal(pthread_create(&thread, NULL, last_error_of_thread, NULL), 0);
  pthread_join(thread, &others);
  assert_int_equal((intptr_t)others, cudaSuccess);
  assert_cuda(cudaDeviceSynchronize()); /* a success does not clear it */
  assert_int_equal(cudaPeekAtLastError(), cudaErrorMemoryAllocation);
  assert_int_equal(cudaGetLastError(), cudaErrorMemoryAllocation);
  assert_int_equal(cudaGetLastError(), cudaSuccess);
}

static void test_error_names(void **state) {
  (void)state;
  assert_string_equal(cudaGetErrorName(cudaSuccess), "cudaSuccess");
  assert_string_equal(cudaGetErrorString(cudaSuccess), "no error");
  assert_string_equal(cudaGetErrorName(cudaErrorIllegalAddress), "cudaErrorIllegalAddress");
  assert_string_equal(cudaGetErrorString(cudaErrorInvalidValue), "invalid argument");
  assert_string_equal(cudaGetErrorName((cudaError_t)12345), "unrecognized error code");
}

/* An illegal access is reported by whoever asks next, and by every call after that. */
static void test_sticky_error(void **state) {
  (void)state;
  uint32_t *words = device_words(WORDS);
  void *pointer;
  assert_cuda(cudaFree(words));
  assert_cuda(launch_fill(words, 1, WORDS, NULL)); /* freed: the launch itself cannot know */
  assert_int_equal(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
  assert_int_equal(cudaGetLastError(), cudaErrorIllegalAddress);
  assert_int_equal(cudaMalloc(&pointer, 64), cudaErrorIllegalAddress);
  assert_int_equal(cudaStreamSynchronize(NULL), cudaErrorIllegalAddress);
  assert_int_equal(cudaGetLastError(), cudaErrorIllegalAddress);
}

/* A driver without a device (RPSIM_DEVICES=0). */
static void test_no_device(void **state) {
  (void)state;
  int count = 7;
  void *pointer;
  assert_int_equal(cudaGetDeviceCount(&count), cudaErrorNoDevice);
  assert_int_equal(cudaMalloc(&pointer, 64), cudaErrorNoDevice);
  assert_int_equal(cudaGetLastError(), cudaErrorNoDevice);
  assert_cuda(cudaDriverGetVersion(&count));
  assert_int_equal(count, RPSIM_DRIVER_VERSION);
}

/* ---- devices ---- */

static void test_devices(void **state) {
  (void)state;
  int count, device, value;
  char id[32];
  struct cudaDeviceProp properties;
  assert_cuda(cudaGetDeviceCount(&count));
  assert_int_equal(count, 2);
  assert_int_equal(cudaSetDevice(2), cudaErrorInvalidDevice);
  assert_int_equal(cudaSetDevice(-1), cudaErrorInvalidDevice);
  assert_int_equal(cudaGetLastError(), cudaErrorInvalidDevice);
  assert_cuda(cudaInitDevice(1, 0, 0));
  assert_cuda(cudaGetDevice(&device));
  assert_int_equal(device, 0);
  assert_cuda(cudaSetDevice(1));
  assert_cuda(cudaGetDevice(&device));
  assert_int_equal(device, 1);
  assert_cuda(cudaSetDevice(0));
  assert_cuda(cudaGetDeviceProperties(&properties, 1));
  assert_true(properties.totalGlobalMem > 0 && properties.name[0]);
  assert_cuda(cudaDeviceGetAttribute(&value, cudaDevAttrComputeCapabilityMajor, 1));
  assert_int_equal(value, properties.major);
  assert_int_equal(properties.warpSize, 32);
  assert_cuda(cudaDeviceGetPCIBusId(id, sizeof id, 1));
  assert_cuda(cudaDeviceGetByPCIBusId(&device, id));
  assert_int_equal(device, 1);
  assert_cuda(cudaDeviceCanAccessPeer(&value, 0, 1));
}

static void *device_of_thread(void *argument) {
  (void)argument;
  int device = -1;
  cudaGetDevice(&device);
  return (void *)(intptr_t)device;
}

static void test_device_is_per_thread(void **state) {
  (void)state;
  pthread_t thread;
  void *device;
  assert_cuda(cudaSetDevice(1));
  assert_int_equal(pthread_create(&thread, NULL, device_of_thread, NULL), 0);
  pthread_join(thread, &device);
  assert_int_equal((intptr_t)device, 0);
  assert_cuda(cudaSetDevice(0));
}

/* Reset frees everything on the device, and the next call starts anew. */
static void test_device_reset(void **state) {
  (void)state;
  uint32_t *words;
  assert_cuda(cudaSetDevice(1));
  device_words(WORDS);
  assert_true(rpsim_physical_bytes(1) > 0);
  assert_cuda(cudaDeviceReset());
  assert_int_equal(rpsim_physical_bytes(1), 0);
  words = device_words(WORDS);
  assert_cuda(launch_fill(words, 3, WORDS, NULL));
  assert_device_words(words, 3, WORDS);
  assert_cuda(cudaFree(words));
  assert_cuda(cudaSetDevice(0));
}

static pthread_barrier_t around_reset;

/* Works on device 1 before and after another thread resets it. */
static void *work_across_reset(void *argument) {
  (void)argument;
  void *pointer = NULL;
  if (cudaSetDevice(1) || cudaMalloc(&pointer, WORD_BYTES)) return "before";
  pthread_barrier_wait(&around_reset);
  pthread_barrier_wait(&around_reset);
  if (cudaMalloc(&pointer, WORD_BYTES)) return "allocation after";
  if (launch_fill(pointer, 4, WORDS, NULL) || cudaDeviceSynchronize()) return "launch after";
  return cudaFree(pointer) ? "free after" : NULL;
}

static void test_reset_under_another_thread(void **state) {
  (void)state;
  pthread_t thread;
  void *failed;
  pthread_barrier_init(&around_reset, NULL, 2);
  assert_int_equal(pthread_create(&thread, NULL, work_across_reset, NULL), 0);
  pthread_barrier_wait(&around_reset);
  assert_cuda(cudaSetDevice(1));
  assert_cuda(cudaDeviceReset());
  pthread_barrier_wait(&around_reset);
  pthread_join(thread, &failed);
  if (failed) fail_msg("failed at: %s", (const char *)failed);
  pthread_barrier_destroy(&around_reset);
  assert_cuda(cudaSetDevice(0));
}

static void test_versions(void **state) {
  (void)state;
  int version;
  assert_cuda(cudaRuntimeGetVersion(&version));
  assert_int_equal(version, 13000);
  assert_cuda(cudaDriverGetVersion(&version));
  assert_int_equal(version, RPSIM_DRIVER_VERSION);
}

static void test_driver_entry_points(void **state) {
  (void)state;
  enum cudaDriverEntryPointQueryResult status;
  void *found = NULL, *per_thread = NULL;
  CUresult (*get_count)(int *) = NULL;
  int count = 0;
  assert_cuda(cudaGetDriverEntryPoint("cuDeviceGetCount", &found, cudaEnableDefault, &status));
  assert_int_equal(status, cudaDriverEntryPointSuccess);
  memcpy(&get_count, &found, sizeof get_count);
  assert_int_equal(get_count(&count), CUDA_SUCCESS);
  assert_int_equal(count, 2);
  assert_cuda(cudaGetDriverEntryPointByVersion("cuNothing", &found, 13000, cudaEnableDefault, &status));
  assert_int_equal(status, cudaDriverEntryPointSymbolNotFound);
  assert_null(found);
  assert_cuda(cudaGetDriverEntryPointByVersion("cuLaunchKernel", &found, 13000, cudaEnableDefault, &status));
  assert_cuda(cudaGetDriverEntryPointByVersion_ptsz("cuLaunchKernel", &per_thread, 13000, cudaEnableDefault,
                                                    &status));
  assert_non_null(found);
  assert_ptr_not_equal(found, per_thread);
}

/* Shared: versioned as the real library's. Static: part of the program, so that nothing can be found or
 * replaced. */
static void test_symbols_of_the_library(void **state) {
  (void)state;
#ifdef RPSIM_CUDART_STATIC
  assert_null(dlsym(RTLD_DEFAULT, "cudaMalloc"));
#else
  assert_non_null(dlvsym(RTLD_DEFAULT, "cudaMalloc", "libcudart.so.13"));
  assert_non_null(dlvsym(RTLD_DEFAULT, "__cudaRegisterFatBinary", "libcudart.so.13"));
  assert_null(dlsym(RTLD_DEFAULT, "rt_driver_get"));
#endif
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_launch_by_symbol),
      cmocka_unit_test(test_launch_of_unknown_function),
      cmocka_unit_test(test_unregistered_binary),
      cmocka_unit_test(test_launch_configuration),
      cmocka_unit_test(test_launch_as_compiled),
      cmocka_unit_test(test_other_launch_calls),
      cmocka_unit_test(test_function_queries),
      cmocka_unit_test(test_function_handle_in_driver),
      cmocka_unit_test(test_malloc_and_free),
      cmocka_unit_test(test_copy_kinds),
      cmocka_unit_test(test_async_copies),
      cmocka_unit_test(test_pitched_copies),
      cmocka_unit_test(test_3d_copies),
      cmocka_unit_test(test_unregistered_variable),
      cmocka_unit_test(test_host_registration),
      cmocka_unit_test(test_own_pool),
      cmocka_unit_test(test_peer_copies),
      cmocka_unit_test(test_pointer_attributes),
      cmocka_unit_test(test_async_allocation),
      cmocka_unit_test(test_last_error_per_thread),
      cmocka_unit_test(test_error_names),
      cmocka_unit_test(test_devices),
      cmocka_unit_test(test_device_is_per_thread),
      cmocka_unit_test(test_device_reset),
      cmocka_unit_test(test_reset_under_another_thread),
      cmocka_unit_test(test_versions),
      cmocka_unit_test(test_driver_entry_points),
      cmocka_unit_test(test_symbols_of_the_library),
  };
  const struct CMUnitTest sticky[] = {cmocka_unit_test(test_sticky_error)};
  const struct CMUnitTest none[] = {cmocka_unit_test(test_no_device)};
  const char *part = argc > 1 ? argv[1] : "";
  support_register();
  if (strcmp(part, "sticky") == 0) return cmocka_run_group_tests(sticky, NULL, NULL);
  if (strcmp(part, "no-device") == 0) return cmocka_run_group_tests(none, NULL, NULL);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
