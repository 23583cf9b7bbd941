/* Eight host threads at once on one context: own streams, shared events, memory of every kind, captures.
 * Results are checked, and the thread sanitizer watches. */
#include "test_engine_host.h"

#define THREADS 8
#define ROUNDS 40
#define GRANULE ((size_t)2 << 20)

/* Assertions of cmocka belong to the main thread: the others count what went wrong. */
static atomic_uint failures;

static void expect(bool good) {
  if (!good) atomic_fetch_add(&failures, 1);
}

static void memory_round(uint32_t value) {
  CUdeviceptr address, async;
  CUstream stream;
  uint32_t read[2] = {0, 0};
  expect(impl_cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  expect(impl_cuMemAlloc_v2(&address, 256) == CUDA_SUCCESS);
  expect(impl_cuMemAllocAsync(&async, 256, stream) == CUDA_SUCCESS);
  expect(host_write(stream, address, value) == CUDA_SUCCESS);
  expect(host_copy(stream, address, async) == CUDA_SUCCESS);
  expect(impl_cuMemcpyDtoHAsync_v2(read, async, 4, stream) == CUDA_SUCCESS);
  expect(impl_cuMemFreeAsync(async, stream) == CUDA_SUCCESS);
  expect(impl_cuMemcpyDtoH_v2(read + 1, address, 4) == CUDA_SUCCESS);
  expect(read[0] == value && read[1] == value);
  expect(impl_cuMemFree_v2(address) == CUDA_SUCCESS);
  expect(impl_cuStreamDestroy_v2(stream) == CUDA_SUCCESS);
}

static void alias_round(uint32_t value) {
  CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                    .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
  CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUmemGenericAllocationHandle handle;
  CUdeviceptr base;
  expect(impl_cuMemCreate(&handle, GRANULE, &properties, 0) == CUDA_SUCCESS);
  expect(impl_cuMemAddressReserve(&base, 2 * GRANULE, 0, 0, 0) == CUDA_SUCCESS);
  expect(impl_cuMemMap(base, GRANULE, 0, handle, 0) == CUDA_SUCCESS);
  expect(impl_cuMemMap(base + GRANULE, GRANULE, 0, handle, 0) == CUDA_SUCCESS);
  expect(impl_cuMemSetAccess(base, 2 * GRANULE, &access, 1) == CUDA_SUCCESS);
  uint32_t read = 0;
  sim_default_stream = CU_STREAM_PER_THREAD;
  expect(host_write(NULL, base, value) == CUDA_SUCCESS);
  expect(impl_cuMemcpyDtoH_v2(&read, base + GRANULE, 4) == CUDA_SUCCESS);
  sim_default_stream = CU_STREAM_LEGACY;
  expect(read == value);
  expect(impl_cuMemUnmap(base, 2 * GRANULE) == CUDA_SUCCESS);
  expect(impl_cuMemRelease(handle) == CUDA_SUCCESS);
  expect(impl_cuMemAddressFree(base, 2 * GRANULE) == CUDA_SUCCESS);
}

static void graph_round(uint32_t value) {
  CUstream stream;
  CUgraph graph = NULL;
  CUgraphExec exec = NULL;
  uint32_t *pinned = NULL;
  expect(impl_cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  expect(impl_cuMemAllocHost_v2((void **)&pinned, 64) == CUDA_SUCCESS);
  expect(impl_cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
  expect(host_write(stream, (CUdeviceptr)pinned, value) == CUDA_SUCCESS);
  expect(host_copy(stream, (CUdeviceptr)pinned, (CUdeviceptr)(pinned + 1)) == CUDA_SUCCESS);
  expect(impl_cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
  expect(impl_cuGraphInstantiateWithFlags(&exec, graph, 0) == CUDA_SUCCESS);
  expect(impl_cuGraphDestroy(graph) == CUDA_SUCCESS);
  expect(impl_cuGraphLaunch(exec, stream) == CUDA_SUCCESS);
  expect(impl_cuStreamSynchronize(stream) == CUDA_SUCCESS);
  expect(pinned[1] == value);
  expect(impl_cuGraphExecDestroy(exec) == CUDA_SUCCESS);
  expect(impl_cuMemFreeHost(pinned) == CUDA_SUCCESS);
  expect(impl_cuStreamDestroy_v2(stream) == CUDA_SUCCESS);
}

static void *work(void *argument) {
  uint32_t index = (uint32_t)(uintptr_t)argument;
  sim_context_set_current(host_context());
  for (uint32_t round = 0; round < ROUNDS; round++) {
    uint32_t value = index * ROUNDS + round + 1;
    if ((index + round) % 3 == 0)
      memory_round(value);
    else if ((index + round) % 3 == 1)
      alias_round(value);
    else
      graph_round(value);
  }
  return NULL;
}

static void eight_threads_do_everything(void **state) {
  (void)state;
  pthread_t threads[THREADS];
  sim_engine_set_seed(7);
  for (uintptr_t i = 0; i < THREADS; i++)
    assert_int_equal(pthread_create(&threads[i], NULL, work, (void *)i), 0);
  for (int i = 0; i < THREADS; i++)
    pthread_join(threads[i], NULL);
  sim_engine_set_seed(0);
  assert_int_equal(failures, 0);
  assert_cuda(sim_engine_context_synchronize(host_context()));
  assert_int_equal(rpsim_physical_bytes(0), 0);
}

/* A chain of streams, each adding to one word after the one before it: any lost wait loses an addition. */
static void a_long_chain_of_events_loses_nothing(void **state) {
  (void)state;
  enum { STREAMS = 6, STEPS = 120 };
  CUstream streams[STREAMS];
  CUevent event;
  CUdeviceptr word;
  uint32_t addend = 1, sleep_us = 0;
  sim_engine_set_seed(11);
  assert_cuda(impl_cuMemAlloc_v2(&word, 4));
  assert_cuda(impl_cuMemsetD32_v2(word, 0, 1));
  assert_cuda(impl_cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  for (int i = 0; i < STREAMS; i++)
    assert_cuda(impl_cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
  for (int i = 0; i < STEPS; i++) { /* one event, recorded again and again */
    CUstream stream = streams[(i * 5) % STREAMS];
    assert_cuda(impl_cuStreamWaitEvent(stream, event, 0));
    assert_cuda(host_launch(&host_slow_add, stream, (void *[]){&word, &addend, &sleep_us}));
    assert_cuda(impl_cuEventRecord(event, stream));
  }
  assert_int_equal(host_word(word), STEPS);
  sim_engine_set_seed(0);
  for (int i = 0; i < STREAMS; i++)
    assert_cuda(impl_cuStreamDestroy_v2(streams[i]));
  assert_cuda(impl_cuEventDestroy_v2(event));
  assert_cuda(impl_cuMemFree_v2(word));
}

/* Ends with streams still alive and one of them waiting for ever: exit must neither hang nor crash. */
static void leave_work_behind(void) {
  struct host_gate *gate = host_gate_new();
  CUstream stream;
  assert_cuda(impl_cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  assert_cuda(host_block(stream, gate));
  host_gate_await(gate);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(eight_threads_do_everything, host_setup, host_teardown),
      cmocka_unit_test_setup_teardown(a_long_chain_of_events_loses_nothing, host_setup, host_teardown),
  };
  int failed = cmocka_run_group_tests_name("simulated device, many threads", tests, NULL, NULL);
  if (host_setup(NULL) != 0) return 1;
  leave_work_behind();
  return failed;
}
