/* The api half of the simulated driver: entry points by name and version, contexts, kernels, devices,
 * failures on demand, the injected library. */
#include "../sim_test.h"

#define __CUDA_API_VERSION_INTERNAL 1
#include <cuda.h>
#include <dlfcn.h>
#include <pthread.h>

#include "../rpsim.h"

#define CUDA_NOW 13000

/* ---- a kernel ---- */

static void store_body(void *const *params, const struct rpsim_dims *dims) {
  (void)dims;
  int *to = *(int *const *)params[0];
  *to = *(const int *)params[1];
}

static const struct rpsim_param store_params[] = {{0, sizeof(void *)}, {sizeof(void *), sizeof(int)}};
static const struct rpsim_kernel kernels[] = {{"_Z5storePii", store_body, 2, store_params}};

static CUcontext primary;

static int start(void **state) {
  (void)state;
  if (rpsim_register_kernels(kernels, 1) != 0 || cuInit(0) != CUDA_SUCCESS) return -1;
  if (cuDevicePrimaryCtxRetain(&primary, 0) != CUDA_SUCCESS) return -1;
  return cuCtxSetCurrent(primary) == CUDA_SUCCESS ? 0 : -1;
}

static int stop(void **state) {
  (void)state;
  return cuDevicePrimaryCtxRelease_v2(0) == CUDA_SUCCESS ? 0 : -1;
}

/* ---- cuGetProcAddress ---- */

static void *address(const char *name, int version, cuuint64_t flags) {
  void *found = &found;
  CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  assert_cuda(cuGetProcAddress_v2(name, &found, version, flags, &status));
  assert_int_equal(status, CU_GET_PROC_ADDRESS_SUCCESS);
  return found;
}

static void test_address_by_version(void **state) {
  (void)state;
  assert_ptr_equal(address("cuMemAlloc", CUDA_NOW, 0), cuMemAlloc_v2);
  assert_ptr_equal(address("cuMemAlloc", 3020, 0), cuMemAlloc_v2);
  assert_ptr_equal(address("cuCtxCreate", 3020, 0), cuCtxCreate_v2);
  assert_ptr_equal(address("cuCtxCreate", 12040, 0), cuCtxCreate_v3);
  assert_ptr_equal(address("cuCtxCreate", 12050, 0), cuCtxCreate_v4);
  assert_ptr_equal(address("cuCtxSynchronize", 12080, 0), cuCtxSynchronize);
  assert_ptr_equal(address("cuGetProcAddress", 11030, 0), cuGetProcAddress);
  assert_ptr_equal(address("cuGetProcAddress", 12000, 0), cuGetProcAddress_v2);
  assert_ptr_equal(address("cuGraphInstantiate", 12000, 0), cuGraphInstantiateWithFlags);
  assert_ptr_equal(address("cuGraphInstantiate", 11000, 0), cuGraphInstantiate_v2);
}

static void test_address_by_default_stream(void **state) {
  (void)state;
  const cuuint64_t per_thread = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  assert_ptr_equal(address("cuMemcpyAsync", CUDA_NOW, 0), cuMemcpyAsync);
  assert_ptr_equal(address("cuMemcpyAsync", CUDA_NOW, CU_GET_PROC_ADDRESS_LEGACY_STREAM), cuMemcpyAsync);
  assert_ptr_equal(address("cuMemcpyAsync", CUDA_NOW, per_thread), cuMemcpyAsync_ptsz);
  assert_ptr_equal(address("cuMemcpyHtoD", CUDA_NOW, per_thread), cuMemcpyHtoD_v2_ptds);
  assert_ptr_equal(address("cuLaunchKernelEx", CUDA_NOW, per_thread), cuLaunchKernelEx_ptsz);
  assert_ptr_equal(address("cuMemAlloc", CUDA_NOW, per_thread), cuMemAlloc_v2); /* has no twin */
}

static void test_address_unknown(void **state) {
  (void)state;
  CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
  void *found = &found;
  assert_cuda(cuGetProcAddress_v2("cuNoSuchCall", &found, CUDA_NOW, 0, &status));
  assert_null(found);
  assert_int_equal(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  found = &found;
  assert_cuda(cuGetProcAddress_v2("cuMemcpyAsyn", &found, CUDA_NOW, 0, NULL)); /* no prefix matches */
  assert_null(found);

  found = &found;
  assert_int_equal(cuGetProcAddress("cuNoSuchCall", &found, CUDA_NOW, 0), CUDA_ERROR_NOT_FOUND);
  assert_null(found);

  assert_cuda(cuGetProcAddress_v2("cuLaunchKernelEx", &found, 11000, 0, &status));
  assert_null(found);
  assert_int_equal(status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
}

static void test_address_mistakes(void **state) {
  (void)state;
  void *found;
  CUdriverProcAddressQueryResult status;
  assert_int_equal(cuGetProcAddress_v2("cuInit", &found, CUDA_NOW + 10, 0, &status),
                   CUDA_ERROR_INVALID_VALUE);
  assert_int_equal(cuGetProcAddress_v2("cuInit", &found, CUDA_NOW, 1u << 20, &status),
                   CUDA_ERROR_INVALID_VALUE);
  assert_int_equal(cuGetProcAddress_v2("cuInit", &found, CUDA_NOW, 3, &status), CUDA_ERROR_INVALID_VALUE);
  assert_int_equal(cuGetProcAddress_v2(NULL, &found, CUDA_NOW, 0, &status), CUDA_ERROR_INVALID_VALUE);
  assert_int_equal(cuGetProcAddress_v2("cuInit", NULL, CUDA_NOW, 0, &status), CUDA_ERROR_INVALID_VALUE);
}

/* ---- devices and errors ---- */

static void test_devices(void **state) {
  (void)state;
  int count, value;
  CUdevice device;
  char name[64], bus[16];
  assert_cuda(cuDeviceGetCount(&count));
  assert_int_equal(count, 1);
  assert_int_equal(cuDeviceGet(&device, 1), CUDA_ERROR_INVALID_DEVICE);
  assert_cuda(cuDeviceGet(&device, 0));
  assert_cuda(cuDeviceGetName(name, sizeof name, device));
  assert_string_equal(name, "Simulated GPU 0");
  assert_cuda(cuDeviceGetPCIBusId(bus, sizeof bus, device));
  CUdevice back = 7;
  assert_cuda(cuDeviceGetByPCIBusId(&back, bus));
  assert_int_equal(back, device);
  assert_cuda(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device));
  assert_int_equal(value, 1);
  assert_cuda(
      cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, device));
  assert_int_equal(value, 0);
  assert_cuda(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, device));
  assert_int_equal(value, 0);
  assert_int_equal(cuDeviceGetAttribute(&value, (CUdevice_attribute)100000, device),
                   CUDA_ERROR_INVALID_VALUE);
  size_t bytes;
  assert_cuda(cuDeviceTotalMem_v2(&bytes, device));
  assert_int_equal(bytes, UINT64_C(8) << 30);
}

static void test_errors(void **state) {
  (void)state;
  const char *text = "";
  assert_cuda(cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &text));
  assert_string_equal(text, "CUDA_ERROR_OUT_OF_MEMORY");
  assert_cuda(cuGetErrorString(CUDA_ERROR_ILLEGAL_ADDRESS, &text));
  assert_string_equal(text, "an illegal memory access was encountered");
  assert_int_equal(cuGetErrorName((CUresult)12345, &text), CUDA_ERROR_INVALID_VALUE);
  assert_null(text);
  const void *table = &table;
  CUuuid id = {{0}};
  assert_int_equal(cuGetExportTable(&table, &id), CUDA_ERROR_NOT_SUPPORTED);
  assert_null(table);
}

/* ---- contexts ---- */

static void *see_no_context(void *argument) {
  (void)argument;
  CUcontext current = primary;
  if (cuCtxGetCurrent(&current) != CUDA_SUCCESS || current != NULL)
    return "a new thread has a current context";
  if (cuCtxSynchronize() != CUDA_ERROR_INVALID_CONTEXT) return "synchronizing no context";
  return cuCtxSetCurrent(primary) == CUDA_SUCCESS ? NULL : "cuCtxSetCurrent";
}

static void test_current_context_is_the_threads(void **state) {
  (void)state;
  pthread_t thread;
  void *complaint = NULL;
  assert_int_equal(pthread_create(&thread, NULL, see_no_context, NULL), 0);
  assert_int_equal(pthread_join(thread, &complaint), 0);
  if (complaint) fail_msg("%s", (const char *)complaint);
  CUcontext current;
  assert_cuda(cuCtxGetCurrent(&current));
  assert_ptr_equal(current, primary);
}

static void test_created_context(void **state) {
  (void)state;
  CUcontext made, current, popped;
  unsigned long long first_id, made_id;
  unsigned flags;
  assert_cuda(cuCtxGetId(NULL, &first_id));
  assert_cuda(cuCtxCreate_v2(&made, CU_CTX_SCHED_YIELD, 0));
  assert_cuda(cuCtxGetCurrent(&current));
  assert_ptr_equal(current, made);
  assert_cuda(cuCtxGetFlags(&flags));
  assert_int_equal(flags, CU_CTX_SCHED_YIELD);
  assert_cuda(cuCtxGetId(made, &made_id));
  assert_true(made_id != first_id);

  assert_cuda(cuCtxPushCurrent_v2(primary));
  assert_cuda(cuCtxPopCurrent_v2(&popped));
  assert_ptr_equal(popped, primary);
  assert_cuda(cuCtxDestroy_v2(made));
  assert_cuda(cuCtxGetCurrent(&current));
  assert_ptr_equal(current, primary);
  assert_int_equal(cuCtxDestroy_v2(made), CUDA_ERROR_INVALID_CONTEXT);
  assert_int_equal(cuCtxSetCurrent(made), CUDA_ERROR_INVALID_CONTEXT);
  assert_int_equal(cuCtxDestroy_v2(primary), CUDA_ERROR_INVALID_CONTEXT);
  assert_int_equal(cuCtxGetId(made, &made_id), CUDA_ERROR_CONTEXT_IS_DESTROYED);
}

static void test_primary_context_is_counted(void **state) {
  (void)state;
  CUcontext again;
  unsigned flags;
  int active;
  assert_cuda(cuDevicePrimaryCtxRetain(&again, 0));
  assert_ptr_equal(again, primary);
  assert_cuda(cuDevicePrimaryCtxRelease_v2(0));
  assert_cuda(cuDevicePrimaryCtxGetState(0, &flags, &active));
  assert_int_equal(active, 1);
  assert_cuda(cuDevicePrimaryCtxRelease_v2(0));
  assert_cuda(cuDevicePrimaryCtxGetState(0, &flags, &active));
  assert_int_equal(active, 0);
  assert_int_equal(cuCtxSynchronize(), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  assert_int_equal(cuDevicePrimaryCtxRelease_v2(0), CUDA_ERROR_INVALID_CONTEXT);
  assert_cuda(cuDevicePrimaryCtxRetain(&primary, 0));
  assert_ptr_equal(again, primary);
  assert_cuda(cuCtxSynchronize());
}

/* ---- kernels ---- */

static int launched_value(CUfunction function, int value) {
  CUdeviceptr where;
  int back = 0;
  assert_cuda(cuMemAlloc_v2(&where, sizeof back));
  void *params[] = {&where, &value};
  assert_cuda(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
  assert_cuda(cuMemcpyDtoH_v2(&back, where, sizeof back));
  assert_cuda(cuMemFree_v2(where));
  return back;
}

static void check_params(CUfunction function) {
  size_t offset, size;
  assert_cuda(cuFuncGetParamInfo(function, 0, &offset, &size));
  assert_int_equal(offset, 0);
  assert_int_equal(size, sizeof(void *));
  assert_cuda(cuFuncGetParamInfo(function, 1, &offset, &size));
  assert_int_equal(offset, sizeof(void *));
  assert_int_equal(size, sizeof(int));
  assert_int_equal(cuFuncGetParamInfo(function, 2, &offset, &size), CUDA_ERROR_INVALID_VALUE);
}

static void test_function_of_module(void **state) {
  (void)state;
  CUmodule module, of_function;
  CUfunction function, again;
  const char *name;
  assert_cuda(cuModuleLoadData(&module, "image"));
  assert_int_equal(cuModuleGetFunction(&function, module, "nobody"), CUDA_ERROR_NOT_FOUND);
  assert_cuda(cuModuleGetFunction(&function, module, "_Z5storePii"));
  assert_cuda(cuModuleGetFunction(&again, module, "_Z5storePii"));
  assert_ptr_equal(function, again);
  assert_cuda(cuFuncGetName(&name, function));
  assert_string_equal(name, "_Z5storePii");
  assert_cuda(cuFuncGetModule(&of_function, function));
  assert_ptr_equal(of_function, module);
  check_params(function);
  assert_int_equal(launched_value(function, 42), 42);

  size_t offset, size;
  assert_int_equal(cuKernelGetParamInfo((CUkernel)function, 0, &offset, &size), CUDA_ERROR_INVALID_HANDLE);
  assert_cuda(cuModuleUnload(module));
  assert_int_equal(cuFuncGetName(&name, function), CUDA_ERROR_INVALID_HANDLE);
  assert_int_equal(cuModuleUnload(module), CUDA_ERROR_INVALID_HANDLE);
}

static void test_kernel_of_library(void **state) {
  (void)state;
  CUlibrary library;
  CUkernel kernel;
  CUfunction function;
  size_t offset, size;
  const char *name;
  assert_cuda(cuLibraryLoadData(&library, "image", NULL, NULL, 0, NULL, NULL, 0));
  assert_int_equal(cuLibraryGetKernel(&kernel, library, "nobody"), CUDA_ERROR_NOT_FOUND);
  assert_cuda(cuLibraryGetKernel(&kernel, library, "_Z5storePii"));
  assert_cuda(cuKernelGetName(&name, kernel));
  assert_string_equal(name, "_Z5storePii");
  assert_cuda(cuKernelGetParamInfo(kernel, 1, &offset, &size));
  assert_int_equal(offset, sizeof(void *));
  assert_int_equal(cuKernelGetParamInfo(kernel, 2, &offset, &size), CUDA_ERROR_INVALID_VALUE);
  assert_int_equal(cuFuncGetParamInfo((CUfunction)kernel, 0, &offset, &size), CUDA_ERROR_INVALID_HANDLE);
  assert_int_equal(launched_value((CUfunction)kernel, 43), 43);

  assert_cuda(cuKernelGetFunction(&function, kernel));
  assert_true((void *)function != (void *)kernel);
  check_params(function);
  assert_int_equal(launched_value(function, 44), 44);
  assert_cuda(cuLibraryUnload(library));
  assert_int_equal(cuKernelGetName(&name, kernel), CUDA_ERROR_INVALID_HANDLE);
  assert_int_equal(cuFuncGetParamInfo(function, 0, &offset, &size), CUDA_ERROR_INVALID_HANDLE);
}

static void test_call_count(void **state) {
  (void)state;
  int version;
  uint64_t before = rpsim_call_count("cuDriverGetVersion");
  assert_cuda(cuDriverGetVersion(&version));
  assert_cuda(cuDriverGetVersion(&version));
  assert_int_equal(rpsim_call_count("cuDriverGetVersion"), before + 2);
  assert_int_equal(version, RPSIM_DRIVER_VERSION);
  assert_int_equal(rpsim_call_count("nobody"), 0);
}

/* ---- in a process of its own ---- */

static int mode_fail(void) {
  CUdeviceptr where;
  if (start(NULL) != 0) return 1;
  for (int i = 0; i < 4; i++)
    printf("%d ", (int)cuMemAlloc_v2(&where, 256));
  printf("\n");
  return 0;
}

static int mode_init(void) {
  int value;
  printf("before %d ", (int)cuDeviceGetCount(&value));
  printf("init %d ", (int)cuInit(0));
  printf("again %d ", (int)cuInit(0));
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    printf("child %d %d\n", (int)cuDeviceGetCount(&value), (int)cuInit(0));
    fflush(stdout);
    _exit(0);
  }
  return waitpid(child, NULL, 0) == child ? 0 : 1;
}

static void *initialise(void *argument) {
  *(CUresult *)argument = cuInit(0);
  return NULL;
}

/* The first cuInit, from several threads at once. */
static int mode_threads(void) {
  pthread_t threads[4];
  CUresult results[4];
  for (int i = 0; i < 4; i++)
    if (pthread_create(&threads[i], NULL, initialise, &results[i]) != 0) return 1;
  for (int i = 0; i < 4; i++) {
    pthread_join(threads[i], NULL);
    printf("%d ", (int)results[i]);
  }
  printf("\n");
  return 0;
}

static int mode_version(void) {
  int version;
  void *found = NULL;
  CUdriverProcAddressQueryResult status;
  cuDriverGetVersion(&version);
  CUresult newest = cuGetProcAddress_v2("cuCtxSynchronize", &found, 13000, 0, &status);
  CUresult older = cuGetProcAddress_v2("cuMemcpyBatchAsync_x", &found, 12080, 0, &status);
  printf("%d %d %d\n", version, (int)newest, (int)older);
  return 0;
}

static void expect(const char *mode, const char *variable, const char *value, const char *wanted) {
  char output[512];
  int status = sim_test_run(mode, variable, value, output, sizeof output);
  assert_true(WIFEXITED(status));
  assert_int_equal(WEXITSTATUS(status), 0);
  assert_string_equal(output, wanted);
}

/* ---- memory of another process ---- */

static void text_of(const CUipcMemHandle *handle, char *text) {
  for (size_t i = 0; i < sizeof *handle; i++)
    sprintf(text + 2 * i, "%02x", (unsigned char)handle->reserved[i]);
}

/* The importer: reads what the exporter wrote, and writes back. */
static int mode_ipc(void) {
  CUipcMemHandle handle;
  CUdeviceptr address = 0;
  uint32_t word = 0;
  const char *text = getenv("TEST_HANDLE");
  for (size_t i = 0; i < sizeof handle; i++)
    if (sscanf(text + 2 * i, "%2hhx", (unsigned char *)&handle.reserved[i]) != 1) return 1;
  if (cuInit(0) || cuDevicePrimaryCtxRetain(&primary, 0) || cuCtxSetCurrent(primary)) return 2;
  CUresult opened = cuIpcOpenMemHandle_v2(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  if (opened == CUDA_SUCCESS && cuMemcpyDtoH_v2(&word, address, sizeof word)) return 3;
  if (opened == CUDA_SUCCESS && cuMemsetD32_v2(address, word + 1, 1)) return 4;
  if (cuMemFree_v2(address) != CUDA_ERROR_INVALID_VALUE) return 5; /* it is not ours to free */
  if (rpsim_physical_bytes(0) != 0) return 6;                      /* nor to count */
  CUresult closed = cuIpcCloseMemHandle(address);
  if (opened == CUDA_SUCCESS && cuIpcCloseMemHandle(address) == CUDA_SUCCESS) return 7;
  printf("%d %u %d\n", (int)opened, word, (int)closed);
  return 0;
}

static void test_memory_of_another_process(void **state) {
  (void)state;
  CUdeviceptr address, other;
  CUipcMemHandle handle;
  char text[2 * sizeof handle + 1];
  uint32_t word = 0;
  assert_cuda(cuMemAlloc_v2(&other, 100));
  assert_cuda(cuMemAlloc_v2(&address, 10000));
  assert_cuda(cuMemsetD32_v2(address, 41, 1));
  assert_cuda(cuIpcGetMemHandle(&handle, address));
  assert_int_equal(cuIpcOpenMemHandle_v2(&other, handle, 0), CUDA_ERROR_INVALID_CONTEXT);
  assert_int_equal(cuIpcCloseMemHandle(address), CUDA_ERROR_INVALID_VALUE);
  text_of(&handle, text);
  expect("ipc", "TEST_HANDLE", text, "0 41 0\n");
  assert_cuda(cuMemcpyDtoH_v2(&word, address, sizeof word));
  assert_int_equal(word, 42);
  memset(text, '0', 16); /* no handle at all */
  expect("ipc", "TEST_HANDLE", text, "1 0 1\n");
  assert_cuda(cuMemFree_v2(address));
  assert_cuda(cuMemFree_v2(other));
}

static void test_copies_at_once(void **state) {
  (void)state;
  CUdeviceptr from[3], to[3];
  size_t sizes[] = {4, 4, 4}, first = 0, failed = 9;
  CUmemcpyAttributes attributes = {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
  CUstream stream;
  uint32_t word;
  assert_cuda(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  for (unsigned i = 0; i < 3; i++) {
    assert_cuda(cuMemAlloc_v2(&from[i], 4));
    assert_cuda(cuMemAlloc_v2(&to[i], 4));
    assert_cuda(cuMemsetD32_v2(from[i], 100 + i, 1));
  }
  assert_cuda(cuMemcpyBatchAsync_v2(to, from, sizes, 3, &attributes, &first, 1, stream));
  assert_cuda(cuStreamSynchronize(stream));
  for (unsigned i = 0; i < 3; i++) {
    assert_cuda(cuMemcpyDtoH_v2(&word, to[i], 4));
    assert_int_equal(word, 100 + i);
  }
  sizes[1] = 5;
  assert_int_equal(cuMemcpyBatchAsync(to, from, sizes, 3, &attributes, &first, 1, &failed, stream),
                   CUDA_ERROR_INVALID_VALUE);
  assert_int_equal(failed, 1);
  for (unsigned i = 0; i < 3; i++) {
    assert_cuda(cuMemFree_v2(from[i]));
    assert_cuda(cuMemFree_v2(to[i]));
  }
  assert_cuda(cuStreamDestroy_v2(stream));
}

static void test_attributes_on_demand(void **state) {
  (void)state;
  expect("attributes", "RPSIM_ATTRIBUTES", NULL, "0 1 0 0\n");
  expect("attributes", "RPSIM_ATTRIBUTES", "102:0,110:1", "0 0 0 1\n");
  expect("attributes", "RPSIM_ATTRIBUTES", "102:unknown", "1 -1 0 0\n");
  char output[512];
  static const char *const wrong[] = {"102", "102:", "x:1", "0:1", "102:1x", "9999:1"};
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    int status = sim_test_run("attributes", "RPSIM_ATTRIBUTES", wrong[i], output, sizeof output);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 2);
    assert_non_null(strstr(output, wrong[i]));
  }
}

/* Virtual memory management, and whether handles may be capable of RDMA. */
static int mode_attributes(void) {
  int vmm = -1, rdma = -1;
  if (cuInit(0)) return 1;
  CUresult first = cuDeviceGetAttribute(&vmm, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0);
  CUresult second =
      cuDeviceGetAttribute(&rdma, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, 0);
  CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                    .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0},
                                    .allocFlags = {.gpuDirectRDMACapable = 1}};
  CUmemGenericAllocationHandle handle;
  CUresult made = cuMemCreate(&handle, (size_t)2 << 20, &properties, 0);
  if ((made == CUDA_SUCCESS) != (rdma == 1)) return 2;
  printf("%d %d %d %d\n", (int)first, vmm, (int)second, rdma);
  return 0;
}

static void test_failures_on_demand(void **state) {
  (void)state;
  expect("fail", "RPSIM_FAIL", NULL, "0 0 0 0 \n");
  expect("fail", "RPSIM_FAIL", "cuMemAlloc_v2:2", "0 2 0 0 \n");
  expect("fail", "RPSIM_FAIL", "cuMemAlloc_v2:3+:700", "0 0 700 700 \n");
  expect("fail", "RPSIM_FAIL", "cuMemAlloc_v2:1:1,cuMemAlloc_v2:4", "1 0 0 2 \n");
}

static void test_failures_misspelt(void **state) {
  (void)state;
  static const char *const wrong[] = {
      "cuMemAlloc_v2",   "cuMemAlloc_v2:",   "cuMemAlloc_v2:0",  "cuMemAlloc:1",
      "cuMemAlloc_v2:x", "cuMemAlloc_v2:1:", "cuMemAlloc_v2:1x", ":1"};
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    char output[512];
    int status = sim_test_run("fail", "RPSIM_FAIL", wrong[i], output, sizeof output);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 2);
    assert_non_null(strstr(output, "rpsim: RPSIM_FAIL: '"));
    assert_non_null(strstr(output, wrong[i]));
  }
}

static void test_init(void **state) {
  (void)state;
  expect("init", "CUDA_INJECTION64_PATH", NULL, "before 3 init 0 again 0 child 3 3\n");
  expect("init", "RPSIM_DEVICES", "0", "before 3 init 100 again 100 child 3 100\n");
}

static void test_injection(void **state) {
  (void)state;
  expect("init", "CUDA_INJECTION64_PATH", INJECTION_PATH, "before 3 injected\ninit 0 again 0 child 3 3\n");
  expect("threads", "CUDA_INJECTION64_PATH", INJECTION_PATH, "injected\n0 0 0 0 \n");
  setenv("RPSIM_DEVICES", "0", 1); /* a cuInit that fails injects too, and once */
  expect("init", "CUDA_INJECTION64_PATH", INJECTION_PATH,
         "before 3 injected\ninit 100 again 100 child 3 100\n");
  unsetenv("RPSIM_DEVICES");
  expect("init", "CUDA_INJECTION64_PATH", "", "before 3 init 0 again 0 child 3 3\n");
  expect("init", "CUDA_INJECTION64_PATH", "none", "before 3 init 0 again 0 child 3 3\n");
  expect("init", "CUDA_INJECTION64_PATH", "/nonexistent.so", "before 3 init 0 again 0 child 3 3\n");
}

static void test_driver_version(void **state) {
  (void)state;
  expect("version", "RPSIM_DRIVER_VERSION_OVERRIDE", NULL, "13000 0 0\n");
  expect("version", "RPSIM_DRIVER_VERSION_OVERRIDE", "12080", "12080 1 0\n");
}

int main(int argc, char **argv) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  if (argc > 1 && strcmp(argv[1], "fail") == 0) return mode_fail();
  if (argc > 1 && strcmp(argv[1], "init") == 0) return mode_init();
  if (argc > 1 && strcmp(argv[1], "threads") == 0) return mode_threads();
  if (argc > 1 && strcmp(argv[1], "version") == 0) return mode_version();
  if (argc > 1 && strcmp(argv[1], "ipc") == 0) return mode_ipc();
  if (argc > 1 && strcmp(argv[1], "attributes") == 0) return mode_attributes();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_address_by_version),
      cmocka_unit_test(test_address_by_default_stream),
      cmocka_unit_test(test_address_unknown),
      cmocka_unit_test(test_address_mistakes),
      cmocka_unit_test(test_devices),
      cmocka_unit_test(test_errors),
      cmocka_unit_test(test_current_context_is_the_threads),
      cmocka_unit_test(test_created_context),
      cmocka_unit_test(test_primary_context_is_counted),
      cmocka_unit_test(test_function_of_module),
      cmocka_unit_test(test_kernel_of_library),
      cmocka_unit_test(test_call_count),
      cmocka_unit_test(test_memory_of_another_process),
      cmocka_unit_test(test_copies_at_once),
      cmocka_unit_test(test_attributes_on_demand),
      cmocka_unit_test(test_failures_on_demand),
      cmocka_unit_test(test_failures_misspelt),
      cmocka_unit_test(test_init),
      cmocka_unit_test(test_injection),
      cmocka_unit_test(test_driver_version),
  };
  return cmocka_run_group_tests(tests, start, stop);
}
