/* Owns the simulated device that the tests of cupti/device_memory run on. */
#include "device_fixture.h"

/* ---- kernels: one that waits for the test, one that copies a word ---- */

static void gate_body(void *const *params, const struct rpsim_dims *dims) {
  (void)dims;
  _Atomic bool *open = *(_Atomic bool *const *)params[0];
  while (!atomic_load(open))
    nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
}

static void copy_body(void *const *params, const struct rpsim_dims *dims) {
  (void)dims;
  **(uint64_t *const *)params[0] = **(uint64_t *const *)params[1];
}

static const struct rpsim_param one_pointer[] = {{0, 8}}, two_pointers[] = {{0, 8}, {8, 8}};
static const struct rpsim_kernel kernels[] = {{"gate", gate_body, 1, one_pointer},
                                              {"copy_word", copy_body, 2, two_pointers}};

static CUfunction function(const char *name) {
  static const uint32_t image[16] = {0xba55ed50};
  CUmodule module;
  CUfunction found;
  assert_cuda(cuModuleLoadData(&module, image));
  assert_cuda(cuModuleGetFunction(&found, module, name));
  return found;
}

void launch_gate(CUstream stream, _Atomic bool *open) {
  void *params[] = {&open};
  assert_cuda(cuLaunchKernel(function("gate"), 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
}

void launch_copy(CUstream stream, CUdeviceptr to, CUdeviceptr from) {
  void *params[] = {&to, &from};
  assert_cuda(cuLaunchKernel(function("copy_word"), 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
}

/* ---- fixture ---- */

CUcontext context;
struct rp_device_memory *memory;
struct rp_backend backend;

int start(void **state) {
  (void)state;
  if (rpsim_register_kernels(kernels, 2) != 0 || cuInit(0) != CUDA_SUCCESS) return -1;
  if (cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS) return -1;
  if (cuCtxSetCurrent(context) != CUDA_SUCCESS) return -1;
  char reason[128] = "";
  if (rp_device_memory_open(0, &memory, reason, sizeof reason) != RP_OK) {
    fprintf(stderr, "%s\n", reason);
    return -1;
  }
  rp_device_memory_backend(memory, &backend);
  return 0;
}

int stop(void **state) {
  (void)state;
  rp_device_memory_close(memory);
  rp_device_context_forget((uint64_t)(uintptr_t)context, true);
  return cuDevicePrimaryCtxRelease_v2(0) == CUDA_SUCCESS ? 0 : -1;
}

uint64_t id_of(const void *handle) {
  return (uint64_t)(uintptr_t)handle;
}

CUstream new_stream(void) {
  CUstream stream;
  assert_cuda(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  return stream;
}

/* One handle at two addresses, with access. */
void make_alias(uint64_t addresses[2]) {
  uint64_t handle;
  assert_int_equal(backend.create(memory, GRANULE, &handle), RP_OK);
  for (int i = 0; i < 2; i++) {
    assert_int_equal(backend.reserve(memory, GRANULE, &addresses[i]), RP_OK);
    assert_int_equal(backend.map(memory, addresses[i], GRANULE, handle), RP_OK);
    assert_int_equal(backend.set_access(memory, addresses[i], GRANULE), RP_OK);
  }
  assert_int_equal(backend.release(memory, handle), RP_OK);
}

void drop_alias(const uint64_t addresses[2]) {
  for (int i = 0; i < 2; i++) {
    assert_int_equal(backend.unmap(memory, addresses[i], GRANULE), RP_OK);
    assert_int_equal(backend.unreserve(memory, addresses[i], GRANULE), RP_OK);
  }
}
