/* The runtime on memory that the driver's virtual memory management mapped, the rules of freeing, and
 * launches with attributes. */
#include "test_support.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>

#define GRANULE ((size_t)2 << 20)
#define WORDS (GRANULE / 4)

static CUmemGenericAllocationHandle create(void) {
  const CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                          .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
  CUmemGenericAllocationHandle handle;
  assert_int_equal(cuMemCreate(&handle, GRANULE, &properties, 0), CUDA_SUCCESS);
  return handle;
}

static void *reserve(void) {
  CUdeviceptr address;
  assert_int_equal(cuMemAddressReserve(&address, GRANULE, 0, 0, 0), CUDA_SUCCESS);
  return (void *)(uintptr_t)address;
}

static void map(void *address, CUmemGenericAllocationHandle handle) {
  const CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  assert_int_equal(cuMemMap((CUdeviceptr)(uintptr_t)address, GRANULE, 0, handle, 0), CUDA_SUCCESS);
  assert_int_equal(cuMemSetAccess((CUdeviceptr)(uintptr_t)address, GRANULE, &access, 1), CUDA_SUCCESS);
}

static void drop(void *address, bool mapped) {
  CUdeviceptr at = (CUdeviceptr)(uintptr_t)address;
  if (mapped) assert_int_equal(cuMemUnmap(at, GRANULE), CUDA_SUCCESS);
  assert_int_equal(cuMemAddressFree(at, GRANULE), CUDA_SUCCESS);
}

static void mapped_memory_is_device_memory(void **state) {
  (void)state;
  struct cudaPointerAttributes attributes;
  cudaIpcMemHandle_t exported;
  size_t before, after, total;
  void *alias[2], *bare = reserve();
  assert_cuda(cudaMemGetInfo(&before, &total));
  CUmemGenericAllocationHandle handle = create();
  for (int i = 0; i < 2; i++)
    map(alias[i] = reserve(), handle);
  assert_int_equal(cuMemRelease(handle), CUDA_SUCCESS);
  assert_cuda(cudaMemGetInfo(&after, &total));
  assert_int_equal(before - after, GRANULE); /* counted once, and the reservation not at all */
  for (int i = 0; i < 2; i++) {
    const char *inside = (char *)alias[i] + 100;
    assert_cuda(cudaPointerGetAttributes(&attributes, inside));
    assert_int_equal(attributes.type, cudaMemoryTypeDevice);
    assert_int_equal(attributes.device, 0);
    assert_ptr_equal(attributes.devicePointer, inside);
    assert_null(attributes.hostPointer);
    assert_int_equal(cudaIpcGetMemHandle(&exported, alias[i]), cudaErrorInvalidValue);
    assert_int_equal(cudaFree(alias[i]), cudaErrorInvalidValue);
  }
  assert_cuda(cudaPointerGetAttributes(&attributes, bare));
  assert_int_equal(attributes.type, cudaMemoryTypeUnregistered); /* there is nothing */
  assert_cuda(launch_fill(alias[0], 21, WORDS, NULL));
  assert_device_words(alias[1], 21, WORDS);
  assert_cuda(cudaMemset(alias[1], 0, GRANULE));
  assert_device_words(alias[0], 0, WORDS);
  (void)cudaGetLastError();
  drop(alias[0], true);
  drop(alias[1], true);
  drop(bare, false);
}

static void freeing_is_strict(void **state) {
  (void)state;
  cudaIpcMemHandle_t exported;
  uint32_t *words = device_words(1000);
  assert_cuda(cudaIpcGetMemHandle(&exported, words));
  assert_int_equal(cudaFree(words + 1), cudaErrorInvalidValue);
  assert_cuda(cudaFree(words));
  assert_int_equal(cudaFree(words), cudaErrorInvalidValue);
  (void)cudaGetLastError();
}

struct free_call {
  void *pointer;
  _Atomic bool begun, done;
  cudaError_t error;
};

static void *free_it(void *argument) {
  struct free_call *call = argument;
  atomic_store(&call->begun, true);
  call->error = cudaFree(call->pointer);
  atomic_store(&call->done, true);
  return NULL;
}

/* Work on any stream of the device, whatever it touches, is waited for. */
static void freeing_waits_for_the_device(void **state) {
  (void)state;
  struct gate *gate = gate_new();
  struct free_call call = {.pointer = device_words(64)};
  cudaStream_t stream;
  pthread_t thread;
  assert_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  assert_cuda(launch_gate(gate, stream));
  gate_await(gate);
  assert_int_equal(pthread_create(&thread, NULL, free_it, &call), 0);
  while (!atomic_load(&call.begun))
    nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
  nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
  assert_false(atomic_load(&call.done));
  gate_open(gate);
  assert_int_equal(pthread_join(thread, NULL), 0);
  assert_cuda(call.error);
  assert_cuda(cudaStreamSynchronize(stream));
  assert_cuda(cudaStreamDestroy(stream));
  gate_free(gate);
}

/* Reset ends what the context owns; mapped memory belongs to the process. */
static void reset_leaves_mapped_memory(void **state) {
  (void)state;
  void *address = reserve();
  CUmemGenericAllocationHandle handle = create();
  map(address, handle);
  assert_int_equal(cuMemRelease(handle), CUDA_SUCCESS);
  uint64_t before = rpsim_physical_bytes(0);
  uint32_t *words = device_words(WORDS);
  cudaEvent_t event;
  assert_cuda(cudaEventCreate(&event));
  assert_cuda(launch_fill(address, 5, WORDS, NULL));
  assert_int_equal(rpsim_physical_bytes(0), before + GRANULE);
  assert_cuda(cudaDeviceReset());
  assert_int_equal(rpsim_physical_bytes(0), before);
  assert_int_equal(cudaFree(words), cudaErrorInvalidValue);
  assert_int_equal(cudaEventQuery(event), cudaErrorInvalidResourceHandle);
  assert_device_words(address, 5, WORDS);
  (void)cudaGetLastError();
  drop(address, true);
}

static cudaError_t launch_gate_with(struct gate *gate, cudaStream_t stream, cudaLaunchAttribute *attribute) {
  cudaLaunchConfig_t config = {
      .gridDim = {1, 1, 1}, .blockDim = {1, 1, 1}, .stream = stream, .attrs = attribute, .numAttrs = 1};
  return cudaLaunchKernelExC(&config, (const void *)symbol_gate, (void *[]){&gate});
}

static void attributes_reach_the_driver(void **state) {
  (void)state;
  struct gate *before = gate_new(), *after = gate_new(), *last = gate_new();
  cudaStream_t stream;
  cudaEvent_t begun;
  cudaLaunchAttribute attribute = {.id = cudaLaunchAttributeProgrammaticStreamSerialization};
  assert_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  assert_cuda(cudaEventCreateWithFlags(&begun, cudaEventDisableTiming));
  attribute.val.programmaticStreamSerializationAllowed = 1;
  assert_cuda(launch_gate(before, stream));
  assert_cuda(launch_gate_with(after, stream, &attribute));
  gate_await(after); /* while `before` runs */
  gate_await(before);
  gate_open(after);
  gate_open(before);
  attribute = (cudaLaunchAttribute){.id = cudaLaunchAttributeLaunchCompletionEvent};
  attribute.val.launchCompletionEvent.event = begun;
  assert_cuda(launch_gate_with(last, stream, &attribute));
  assert_cuda(cudaEventSynchronize(begun));
  assert_int_equal(cudaStreamQuery(stream), cudaErrorNotReady);
  gate_await(last);
  gate_open(last);
  assert_cuda(cudaStreamSynchronize(stream));
  assert_cuda(cudaEventDestroy(begun));
  assert_cuda(cudaStreamDestroy(stream));
  gate_free(before);
  gate_free(after);
  gate_free(last);
}

static int initialise(void **state) {
  (void)state;
  return cudaFree(NULL) == cudaSuccess ? 0 : -1;
}

int main(void) {
  support_register();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(mapped_memory_is_device_memory), cmocka_unit_test(freeing_is_strict),
      cmocka_unit_test(freeing_waits_for_the_device),   cmocka_unit_test(reset_leaves_mapped_memory),
      cmocka_unit_test(attributes_reach_the_driver),
  };
  return cmocka_run_group_tests(tests, initialise, NULL);
}
