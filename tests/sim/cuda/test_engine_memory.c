/* Device and host memory: contents, capacity, reuse of addresses, what is refused, stream-ordered allocation.
 */
#include "test_engine_host.h"
#include <stdlib.h>
#include <string.h>

#define MIB (1u << 20)

static void fresh_memory_is_poisoned_even_when_an_address_is_reused(void **state) {
  (void)state;
  uint32_t words[1024];
  CUdeviceptr first, second;
  assert_cuda(impl_cuMemAlloc_v2(&first, sizeof(words)));
  assert_cuda(impl_cuMemsetD32_v2(first, 7, 1024));
  assert_cuda(impl_cuMemFree_v2(first));
  assert_cuda(impl_cuMemAlloc_v2(&second, sizeof(words)));
  assert_true(first == second); /* as the driver does for the same size */
  assert_cuda(impl_cuMemcpyDtoH_v2(words, second, sizeof(words)));
  for (int i = 0; i < 1024; i++)
    assert_int_equal(words[i], RPSIM_POISON_WORD);
  assert_cuda(impl_cuMemFree_v2(second));
}

static void capacity_runs_out_and_comes_back(void **state) {
  (void)state;
  CUdeviceptr half[2], more;
  size_t free_bytes, total_bytes;
  uint64_t before = rpsim_physical_bytes(0);
  assert_int_equal(before, 0);
  assert_cuda(impl_cuMemAlloc_v2(&half[0], HOST_DEVICE_BYTES / 2));
  assert_cuda(impl_cuMemAlloc_v2(&half[1], HOST_DEVICE_BYTES / 2));
  assert_int_equal(impl_cuMemAlloc_v2(&more, 1), CUDA_ERROR_OUT_OF_MEMORY);
  assert_int_equal(rpsim_physical_bytes(0), HOST_DEVICE_BYTES);
  assert_cuda(impl_cuMemFree_v2(half[0]));
  assert_cuda(impl_cuMemGetInfo_v2(&free_bytes, &total_bytes));
  assert_int_equal(free_bytes, HOST_DEVICE_BYTES / 2);
  assert_int_equal(total_bytes, HOST_DEVICE_BYTES);
  assert_cuda(impl_cuMemGetInfo_v2(NULL, &total_bytes));
  assert_cuda(impl_cuMemAlloc_v2(&more, 1));
  assert_int_equal(rpsim_physical_peak_bytes(0), HOST_DEVICE_BYTES);
  assert_int_equal(impl_cuMemAlloc_v2(&half[0], SIZE_MAX), CUDA_ERROR_OUT_OF_MEMORY);
  assert_cuda(impl_cuMemFree_v2(half[1]));
  assert_cuda(impl_cuMemFree_v2(more));
  assert_int_equal(rpsim_physical_bytes(0), 0);
}

static void wrong_arguments_are_refused(void **state) {
  (void)state;
  CUdeviceptr address;
  size_t pitch;
  void *host;
  assert_int_equal(impl_cuMemAlloc_v2(NULL, 16), CUDA_ERROR_INVALID_VALUE);
  assert_int_equal(impl_cuMemAlloc_v2(&address, 0), CUDA_ERROR_INVALID_VALUE);
  assert_int_equal(impl_cuMemAllocPitch_v2(&address, &pitch, 100, 4, 3), CUDA_ERROR_INVALID_VALUE);
  assert_int_equal(impl_cuMemAllocManaged(&address, 16, 0), CUDA_ERROR_INVALID_VALUE);
  assert_int_equal(impl_cuMemHostAlloc(&host, 0, 0), CUDA_ERROR_INVALID_VALUE);
  assert_cuda(impl_cuMemAlloc_v2(&address, 4096));
  assert_int_equal(impl_cuMemFree_v2(address + 16), CUDA_ERROR_INVALID_VALUE);
  assert_int_equal(impl_cuMemFreeAsync(address, NULL), CUDA_ERROR_INVALID_VALUE);
  assert_int_equal(impl_cuMemFreeHost((void *)address), CUDA_ERROR_INVALID_VALUE);
  assert_int_equal(impl_cuMemsetD8_v2(address, 0, 4097), CUDA_ERROR_INVALID_VALUE);
  assert_cuda(impl_cuMemFree_v2(address));
  assert_int_equal(impl_cuMemFree_v2(address), CUDA_ERROR_INVALID_VALUE);
  sim_context_set_current(NULL);
  assert_int_equal(impl_cuMemAlloc_v2(&address, 16), CUDA_ERROR_INVALID_CONTEXT);
  sim_context_set_current(host_context());
}

static void addresses_know_their_allocation(void **state) {
  (void)state;
  CUdeviceptr address, base;
  size_t size_bytes, pitch;
  CUcontext context;
  unsigned ipc;
  CUmemorytype type;
  assert_cuda(impl_cuMemAllocPitch_v2(&address, &pitch, 600, 3, 4));
  assert_int_equal(pitch, 1024);
  assert_cuda(impl_cuMemGetAddressRange_v2(&base, &size_bytes, address + 2000));
  assert_true(base == address);
  assert_int_equal(size_bytes, 3 * 1024);
  CUpointer_attribute wanted[] = {CU_POINTER_ATTRIBUTE_CONTEXT, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                  CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE};
  assert_cuda(impl_cuPointerGetAttributes(3, wanted, (void *[]){&context, &type, &ipc}, address + 1));
  assert_ptr_equal(context, host_context());
  assert_int_equal(type, CU_MEMORYTYPE_DEVICE);
  assert_int_equal(ipc, 1);
  CUipcMemHandle handle;
  assert_cuda(impl_cuIpcGetMemHandle(&handle, address));
  assert_cuda(impl_cuMemFree_v2(address));
  assert_int_equal(impl_cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address),
                   CUDA_ERROR_INVALID_VALUE);
  assert_cuda(impl_cuPointerGetAttributes(3, wanted, (void *[]){&context, &type, &ipc}, address));
  assert_null(context);
}

static void host_memory_is_known(void **state) {
  (void)state;
  void *pinned, *own = malloc(4096);
  CUdeviceptr address;
  unsigned flags;
  CUmemorytype type;
  assert_cuda(impl_cuMemHostAlloc(&pinned, 4096, CU_MEMHOSTALLOC_PORTABLE));
  assert_cuda(impl_cuMemHostGetFlags(&flags, pinned));
  assert_int_equal(flags, CU_MEMHOSTALLOC_PORTABLE);
  assert_cuda(impl_cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)pinned));
  assert_int_equal(type, CU_MEMORYTYPE_HOST);
  assert_int_equal(impl_cuMemHostGetDevicePointer_v2(&address, own, 0), CUDA_ERROR_INVALID_VALUE);
  assert_cuda(impl_cuMemHostRegister_v2(own, 4096, 0));
  assert_int_equal(impl_cuMemHostRegister_v2(own, 4096, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  assert_cuda(impl_cuMemHostGetDevicePointer_v2(&address, own, 0));
  assert_ptr_equal((void *)address, own);
  assert_cuda(impl_cuMemHostUnregister(own));
  assert_int_equal(impl_cuMemHostUnregister(own), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  assert_cuda(impl_cuMemFreeHost(pinned));
  assert_int_equal(impl_cuMemFreeHost(pinned), CUDA_ERROR_INVALID_VALUE);
  free(own);
}

static void stream_ordered_memory_is_freed_in_stream_order(void **state) {
  (void)state;
  struct host_gate *gate = host_gate_new();
  CUstream stream;
  CUdeviceptr address;
  CUmemoryPool pool;
  cuuint64_t used;
  assert_cuda(impl_cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  assert_cuda(impl_cuDeviceGetDefaultMemPool(&pool, 0));
  assert_cuda(impl_cuMemAllocAsync(&address, MIB, stream));
  assert_cuda(impl_cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
  assert_int_equal(used, MIB);
  assert_cuda(host_block(stream, gate));
  assert_cuda(host_write(stream, address, 5));
  assert_cuda(impl_cuMemFreeAsync(address, stream));
  assert_int_equal(impl_cuMemFreeAsync(address, stream), CUDA_ERROR_INVALID_VALUE);
  assert_int_equal(rpsim_physical_bytes(0), MIB);
  host_gate_open(gate);
  assert_cuda(impl_cuStreamSynchronize(stream));
  assert_int_equal(rpsim_physical_bytes(0), 0);
  assert_cuda(impl_cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
  assert_int_equal(used, 0);
  assert_cuda(impl_cuStreamDestroy_v2(stream));
}

static void freeing_waits_for_work(void **state) {
  (void)state;
  CUstream stream;
  CUdeviceptr address, other;
  uint32_t addend = 1, sleep_us = 20000;
  assert_cuda(impl_cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  assert_cuda(impl_cuMemAlloc_v2(&address, 64));
  assert_cuda(impl_cuMemAlloc_v2(&other, 64));
  assert_cuda(host_launch(&host_slow_add, stream, (void *[]){&address, &addend, &sleep_us}));
  assert_cuda(impl_cuMemFree_v2(address)); /* would be an illegal access if it did not wait */
  assert_cuda(sim_engine_context_synchronize(host_context()));
  assert_cuda(impl_cuMemFree_v2(other));
  assert_cuda(impl_cuStreamDestroy_v2(stream));
}

static void thousands_of_allocations_live_side_by_side(void **state) {
  (void)state;
  enum { COUNT = 4000 };
  static CUdeviceptr addresses[COUNT];
  for (size_t i = 0; i < COUNT; i++)
    assert_cuda(impl_cuMemAlloc_v2(&addresses[i], 256 + i % 7 * 512));
  for (size_t i = 1; i < COUNT; i++)
    assert_true(addresses[i] != addresses[i - 1]);
  for (size_t i = 0; i < COUNT; i++)
    assert_cuda(impl_cuMemFree_v2(addresses[(i * 1237) % COUNT]));
  assert_int_equal(rpsim_physical_bytes(0), 0);
}

static void a_context_takes_its_memory_along(void **state) {
  CUdeviceptr address;
  assert_cuda(impl_cuMemAlloc_v2(&address, MIB));
  host_teardown(state);
  assert_int_equal(rpsim_physical_bytes(0), 0);
  assert_int_equal(host_setup(state), 0);
  assert_int_equal(impl_cuMemFree_v2(address), CUDA_ERROR_INVALID_VALUE);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(fresh_memory_is_poisoned_even_when_an_address_is_reused, host_setup,
                                      host_teardown),
      cmocka_unit_test_setup_teardown(capacity_runs_out_and_comes_back, host_setup, host_teardown),
      cmocka_unit_test_setup_teardown(wrong_arguments_are_refused, host_setup, host_teardown),
      cmocka_unit_test_setup_teardown(addresses_know_their_allocation, host_setup, host_teardown),
      cmocka_unit_test_setup_teardown(host_memory_is_known, host_setup, host_teardown),
      cmocka_unit_test_setup_teardown(stream_ordered_memory_is_freed_in_stream_order, host_setup,
                                      host_teardown),
      cmocka_unit_test_setup_teardown(freeing_waits_for_work, host_setup, host_teardown),
      cmocka_unit_test_setup_teardown(thousands_of_allocations_live_side_by_side, host_setup, host_teardown),
      cmocka_unit_test_setup_teardown(a_context_takes_its_memory_along, host_setup, host_teardown),
  };
  return cmocka_run_group_tests_name("simulated memory", tests, NULL, NULL);
}
