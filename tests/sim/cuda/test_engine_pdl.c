/* Launches with programmatic stream serialization: they may begin once the work before them has begun, keep
 * to everything else the stream waits for, and what follows comes after them. Order is shown with gates. */
#include "test_engine_host.h"
#include <time.h>

static CUstream new_stream(unsigned flags) {
  CUstream stream;
  assert_cuda(impl_cuStreamCreate(&stream, flags));
  return stream;
}

static CUdeviceptr new_word(uint32_t value) {
  CUdeviceptr address;
  assert_cuda(impl_cuMemAlloc_v2(&address, 4));
  assert_cuda(impl_cuMemsetD32_v2(address, value, 1));
  assert_cuda(sim_engine_context_synchronize(host_context()));
  return address;
}

static void launch(const struct rpsim_kernel *kernel, CUstream stream, int allowed, void **params) {
  CUlaunchAttribute attribute = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION};
  attribute.value.programmaticStreamSerializationAllowed = allowed;
  CUlaunchConfig config = {.gridDimX = 1,
                           .gridDimY = 1,
                           .gridDimZ = 1,
                           .blockDimX = 1,
                           .blockDimY = 1,
                           .blockDimZ = 1,
                           .hStream = stream,
                           .attrs = &attribute,
                           .numAttrs = 1};
  assert_cuda(impl_cuLaunchKernelEx(&config, HOST_FUNCTION(*kernel), params, NULL));
}

static void launch_block(CUstream stream, int allowed, struct host_gate *gate) {
  launch(&host_wait_gate, stream, allowed, (void *[]){&gate});
}

static bool entered(struct host_gate *gate) {
  pthread_mutex_lock(&gate->lock);
  bool inside = gate->entered;
  pthread_mutex_unlock(&gate->lock);
  return inside;
}

/* Long enough for a kernel that could begin to have done so. */
static bool stays_out(struct host_gate *gate) {
  nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
  return !entered(gate);
}

static void it_begins_while_the_one_before_runs(void **state) {
  (void)state;
  struct host_gate *before = host_gate_new(), *programmatic = host_gate_new();
  CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
  CUdeviceptr word = new_word(1);
  assert_cuda(host_block(stream, before));
  launch_block(stream, 1, programmatic);
  assert_cuda(host_write(stream, word, 2));
  host_gate_await(programmatic); /* `before` is closed */
  assert_int_equal(impl_cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
  host_gate_open(before);
  assert_int_equal(impl_cuStreamQuery(stream), CUDA_ERROR_NOT_READY); /* what follows waits for both */
  assert_int_equal(*(uint32_t *)word, 1);
  host_gate_open(programmatic);
  assert_cuda(impl_cuStreamSynchronize(stream));
  assert_int_equal(host_word(word), 2);
  assert_cuda(impl_cuMemFree_v2(word));
  assert_cuda(impl_cuStreamDestroy_v2(stream));
}

/* Three in a row: the last begins while the first still runs, for the second has begun. */
static void they_chain(void **state) {
  (void)state;
  struct host_gate *gates[] = {host_gate_new(), host_gate_new(), host_gate_new()};
  CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
  for (int i = 0; i < 3; i++)
    launch_block(stream, 1, gates[i]);
  for (int i = 0; i < 3; i++)
    host_gate_await(gates[i]);
  host_gate_open(gates[2]);
  host_gate_open(gates[1]);
  assert_int_equal(impl_cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
  host_gate_open(gates[0]);
  assert_cuda(impl_cuStreamSynchronize(stream));
  assert_cuda(impl_cuStreamDestroy_v2(stream));
}

/* The third does not begin before the second has. */
static void they_begin_in_order(void **state) {
  (void)state;
  struct host_gate *other = host_gate_new();
  struct host_gate *gates[] = {host_gate_new(), host_gate_new(), host_gate_new()};
  CUstream stream = new_stream(CU_STREAM_NON_BLOCKING), elsewhere = new_stream(CU_STREAM_NON_BLOCKING);
  CUevent event;
  assert_cuda(impl_cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  assert_cuda(host_block(elsewhere, other));
  assert_cuda(impl_cuEventRecord(event, elsewhere));
  assert_cuda(host_block(stream, gates[0]));
  assert_cuda(impl_cuStreamWaitEvent(stream, event, 0));
  launch_block(stream, 1, gates[1]);
  launch_block(stream, 1, gates[2]);
  host_gate_await(gates[0]);
  assert_true(stays_out(gates[2]) && !entered(gates[1]));
  host_gate_open(other);
  for (int i = 1; i < 3; i++)
    host_gate_await(gates[i]);
  for (int i = 0; i < 3; i++)
    host_gate_open(gates[i]);
  assert_cuda(impl_cuStreamSynchronize(stream));
  assert_cuda(impl_cuEventDestroy_v2(event));
  assert_cuda(impl_cuStreamDestroy_v2(stream));
  assert_cuda(impl_cuStreamDestroy_v2(elsewhere));
}

/* Of these none overlaps: not allowed, on the legacy stream. */
static void ordinary_launches_do_not(void **state) {
  (void)state;
  struct host_gate *before = host_gate_new(), *after = host_gate_new();
  CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
  assert_cuda(host_block(stream, before));
  launch_block(stream, 0, after);
  assert_true(stays_out(after));
  host_gate_open(before);
  host_gate_await(after);
  host_gate_open(after);
  assert_cuda(impl_cuStreamSynchronize(stream));
  before = host_gate_new();
  after = host_gate_new();
  assert_cuda(host_block(CU_STREAM_LEGACY, before));
  launch_block(CU_STREAM_LEGACY, 1, after);
  assert_true(stays_out(after));
  host_gate_open(before);
  host_gate_await(after);
  host_gate_open(after);
  assert_cuda(impl_cuStreamSynchronize(CU_STREAM_LEGACY));
  assert_cuda(impl_cuStreamDestroy_v2(stream));
}

static void it_keeps_to_waits_and_to_the_legacy_stream(void **state) {
  (void)state;
  struct host_gate *other = host_gate_new(), *before = host_gate_new(), *after = host_gate_new();
  struct host_gate *legacy = host_gate_new(), *last = host_gate_new();
  CUstream stream = new_stream(CU_STREAM_DEFAULT), elsewhere = new_stream(CU_STREAM_NON_BLOCKING);
  CUevent event;
  assert_cuda(impl_cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  assert_cuda(host_block(stream, before));
  host_gate_await(before);
  assert_cuda(host_block(elsewhere, other));
  assert_cuda(impl_cuEventRecord(event, elsewhere));
  assert_cuda(impl_cuStreamWaitEvent(stream, event, 0));
  launch_block(stream, 1, after);
  assert_true(stays_out(after));
  host_gate_open(other);
  host_gate_await(after); /* `before` is still closed */
  host_gate_open(before);
  host_gate_open(after);
  assert_cuda(impl_cuStreamSynchronize(stream));
  assert_cuda(host_block(CU_STREAM_LEGACY, legacy));
  launch_block(stream, 1, last);
  assert_true(stays_out(last));
  host_gate_open(legacy);
  host_gate_await(last);
  host_gate_open(last);
  assert_cuda(impl_cuEventDestroy_v2(event));
  assert_cuda(impl_cuStreamDestroy_v2(stream)); /* with work left */
  assert_cuda(impl_cuStreamDestroy_v2(elsewhere));
}

/* More waits than are kept make it an ordinary launch. */
static void many_waits_in_between(void **state) {
  (void)state;
  struct host_gate *before = host_gate_new(), *after = host_gate_new();
  CUstream stream = new_stream(CU_STREAM_NON_BLOCKING), elsewhere = new_stream(CU_STREAM_NON_BLOCKING);
  CUevent event;
  assert_cuda(impl_cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  assert_cuda(host_block(stream, before));
  for (int i = 0; i < 20; i++) {
    assert_cuda(impl_cuEventRecord(event, elsewhere));
    assert_cuda(impl_cuStreamWaitEvent(stream, event, 0));
  }
  launch_block(stream, 1, after);
  assert_true(stays_out(after));
  host_gate_open(before);
  host_gate_await(after);
  host_gate_open(after);
  assert_cuda(impl_cuStreamSynchronize(stream));
  assert_cuda(impl_cuEventDestroy_v2(event));
  assert_cuda(impl_cuStreamDestroy_v2(stream));
  assert_cuda(impl_cuStreamDestroy_v2(elsewhere));
}

static void in_a_graph_the_edge_is_whole(void **state) {
  (void)state;
  struct host_gate *before = host_gate_new(), *after = host_gate_new();
  CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
  CUgraph graph;
  CUgraphExec exec;
  assert_cuda(impl_cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  assert_cuda(host_block(stream, before));
  launch_block(stream, 1, after);
  assert_cuda(impl_cuStreamEndCapture(stream, &graph));
  assert_cuda(impl_cuGraphInstantiateWithFlags(&exec, graph, 0));
  assert_cuda(impl_cuGraphLaunch(exec, stream));
  assert_true(stays_out(after));
  host_gate_open(before);
  host_gate_await(after);
  host_gate_open(after);
  assert_cuda(impl_cuStreamSynchronize(stream));
  assert_cuda(impl_cuGraphExecDestroy(exec));
  assert_cuda(impl_cuGraphDestroy(graph));
  assert_cuda(impl_cuStreamDestroy_v2(stream));
}

/* A reader that relies on stream order where it gave that up reads what was there before. */
static unsigned wrong_reads(int allowed) {
  unsigned wrong = 0;
  uint32_t addend = 1, sleep_us = 300;
  CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
  CUdeviceptr word = new_word(0), out = new_word(0);
  for (uint32_t round = 1; round <= 20; round++) {
    assert_cuda(host_launch(&host_slow_add, stream, (void *[]){&word, &addend, &sleep_us}));
    launch(&host_copy_word, stream, allowed, (void *[]){&word, &out});
    wrong += host_word(out) != round;
  }
  assert_cuda(impl_cuMemFree_v2(word));
  assert_cuda(impl_cuMemFree_v2(out));
  assert_cuda(impl_cuStreamDestroy_v2(stream));
  return wrong;
}

static void a_reader_behind_it_may_read_too_early(void **state) {
  (void)state;
  sim_engine_set_seed(3);
  assert_int_equal(wrong_reads(0), 0);
#ifndef __SANITIZE_THREAD__ /* a data race, on purpose */
  assert_true(wrong_reads(1) > 0);
#endif
  sim_engine_set_seed(0);
}

#define IN_CONTEXT(test) cmocka_unit_test_setup_teardown(test, host_setup, host_teardown)

int main(void) {
  const struct CMUnitTest tests[] = {
      IN_CONTEXT(it_begins_while_the_one_before_runs),
      IN_CONTEXT(they_chain),
      IN_CONTEXT(they_begin_in_order),
      IN_CONTEXT(ordinary_launches_do_not),
      IN_CONTEXT(it_keeps_to_waits_and_to_the_legacy_stream),
      IN_CONTEXT(many_waits_in_between),
      IN_CONTEXT(in_a_graph_the_edge_is_whole),
      IN_CONTEXT(a_reader_behind_it_may_read_too_early),
  };
  return cmocka_run_group_tests_name("simulated programmatic launches", tests, NULL, NULL);
}
