/* Capture and graphs: fork and join, replay, what a capture refuses, callbacks about nodes. */
#include "test_engine_host.h"
#include <time.h>

static CUstream streams[2];
static CUdeviceptr words;

static int graph_setup(void **state) {
  if (host_setup(state) != 0) return -1;
  for (int i = 0; i < 2; i++)
    if (impl_cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS) return -1;
  if (impl_cuMemAlloc_v2(&words, 64) != CUDA_SUCCESS) return -1;
  return impl_cuMemsetD32_v2(words, 0, 16) == CUDA_SUCCESS ? 0 : -1;
}

static CUdeviceptr word(unsigned index) {
  return words + index * 4;
}

static CUevent new_event(void) {
  CUevent event;
  assert_cuda(impl_cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  return event;
}

/* word 0 = `value`, then in parallel word 1 = word 0 and word 2 = word 0, then word 3 = word 2. Without
 * `join` the second branch stays open. */
static void capture_fork(uint32_t value, bool join) {
  CUevent fork = new_event(), end = new_event();
  assert_cuda(host_write(streams[0], word(0), value));
  assert_cuda(impl_cuEventRecord(fork, streams[0]));
  assert_cuda(impl_cuStreamWaitEvent(streams[1], fork, 0));
  assert_cuda(host_copy(streams[0], word(0), word(1)));
  assert_cuda(host_copy(streams[1], word(0), word(2)));
  if (join) {
    assert_cuda(impl_cuEventRecord(end, streams[1]));
    assert_cuda(impl_cuStreamWaitEvent(streams[0], end, 0));
    assert_cuda(host_copy(streams[0], word(2), word(3)));
  }
  assert_cuda(impl_cuEventDestroy_v2(fork));
  assert_cuda(impl_cuEventDestroy_v2(end));
}

static void begin(CUstreamCaptureMode mode) {
  assert_cuda(impl_cuStreamBeginCapture_v2(streams[0], mode));
}

static CUgraph end(void) {
  CUgraph graph;
  assert_cuda(impl_cuStreamEndCapture(streams[0], &graph));
  assert_non_null(graph);
  return graph;
}

static void fork_and_join_become_a_graph(void **state) {
  (void)state;
  unsigned nodes_before = host_resource_count(CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED);
  unsigned edges_before = host_resource_count(CUPTI_CBID_RESOURCE_GRAPHNODE_DEPENDENCY_CREATED);
  begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
  capture_fork(5, true);
  CUgraph graph = end();
  CUgraphNode nodes[8], from[8], to[8];
  size_t count = 0;
  assert_cuda(impl_cuGraphGetNodes(graph, NULL, &count));
  assert_int_equal(count, 4);
  assert_cuda(impl_cuGraphGetNodes(graph, nodes, &count));
  assert_int_equal(host_resource_count(CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED), nodes_before + 4);
  assert_int_equal(host_resource_count(CUPTI_CBID_RESOURCE_GRAPHNODE_DEPENDENCY_CREATED), edges_before + 4);
  CUpti_GraphData last = host_last_graph_data(CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED);
  assert_ptr_equal(last.graph, graph);
  assert_ptr_equal(last.node, nodes[3]);
  assert_int_equal(last.nodeType, CU_GRAPH_NODE_TYPE_KERNEL);
  count = 8;
  assert_cuda(impl_cuGraphGetEdges_v2(graph, from, to, NULL, &count));
  assert_int_equal(count, 4);
  const unsigned expected[4][2] = {{0, 1}, {0, 2}, {1, 3}, {2, 3}};
  for (int i = 0; i < 4; i++) {
    assert_ptr_equal(from[i], nodes[expected[i][0]]);
    assert_ptr_equal(to[i], nodes[expected[i][1]]);
  }
  count = 8;
  assert_cuda(impl_cuGraphGetRootNodes(graph, from, &count));
  assert_int_equal(count, 1);
  assert_ptr_equal(from[0], nodes[0]);
  CUDA_KERNEL_NODE_PARAMS params;
  assert_cuda(impl_cuGraphKernelNodeGetParams_v2(nodes[0], &params));
  assert_ptr_equal(params.func, HOST_FUNCTION(host_write_word));
  assert_int_equal(*(uint32_t *)params.kernelParams[1], 5);
  assert_int_equal(params.blockDimX, 32);
  assert_int_equal(host_word(word(3)), 0); /* nothing ran */
  assert_cuda(impl_cuGraphDestroy(graph));
  assert_int_equal(impl_cuGraphDestroy(graph), CUDA_ERROR_INVALID_VALUE);
}

static void a_graph_runs_in_the_order_of_its_edges_for_every_seed(void **state) {
  (void)state;
  for (uint64_t seed = 1; seed <= 40; seed++) {
    sim_engine_set_seed(seed);
    CUgraphExec exec;
    CUstream launching;
    assert_cuda(impl_cuStreamCreate(&launching, CU_STREAM_NON_BLOCKING));
    begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
    capture_fork((uint32_t)seed, true);
    CUgraph graph = end();
    assert_cuda(impl_cuGraphInstantiateWithFlags(&exec, graph, 0));
    assert_cuda(impl_cuGraphDestroy(graph)); /* the exec is a copy */
    assert_cuda(impl_cuMemsetD32Async(words, 0, 16, launching));
    assert_cuda(impl_cuGraphLaunch(exec, launching));
    assert_cuda(host_copy(launching, word(3), word(4)));
    assert_cuda(impl_cuGraphExecDestroy(exec)); /* under way: legal */
    assert_int_equal(host_word(word(4)), seed);
    assert_int_equal(host_word(word(1)), seed);
    assert_cuda(impl_cuStreamDestroy_v2(launching));
  }
  sim_engine_set_seed(0);
}

static void a_launch_ends_when_every_branch_has(void **state) {
  (void)state;
  struct host_gate *gate = host_gate_new();
  CUevent fork = new_event(), join = new_event();
  CUgraphExec exec;
  begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
  assert_cuda(host_write(streams[0], word(0), 4));
  assert_cuda(impl_cuEventRecord(fork, streams[0]));
  assert_cuda(impl_cuStreamWaitEvent(streams[1], fork, 0));
  assert_cuda(host_write(streams[0], word(1), 4));
  assert_cuda(host_block(streams[1], gate));
  assert_cuda(impl_cuEventRecord(join, streams[1]));
  assert_cuda(impl_cuStreamWaitEvent(streams[0], join, 0)); /* nothing comes after it */
  CUgraph graph = end();
  assert_cuda(impl_cuGraphInstantiateWithFlags(&exec, graph, 0));
  assert_cuda(impl_cuGraphLaunch(exec, streams[0]));
  host_gate_await(gate);
  assert_cuda(host_write(streams[0], word(2), 6));
  assert_cuda(impl_cuStreamSynchronize(streams[1])); /* not the stream the branch runs on */
  assert_int_equal(impl_cuStreamQuery(streams[0]), CUDA_ERROR_NOT_READY);
  host_gate_open(gate);
  assert_int_equal(host_word(word(2)), 6);
  assert_cuda(impl_cuEventDestroy_v2(fork));
  assert_cuda(impl_cuEventDestroy_v2(join));
  assert_cuda(impl_cuGraphExecDestroy(exec));
  assert_cuda(impl_cuGraphDestroy(graph));
}

static void launches_of_one_exec_do_not_overlap(void **state) {
  (void)state;
  CUgraphExec exec;
  CUdeviceptr sum = word(5);
  uint32_t addend = 1, sleep_us = 100;
  begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
  assert_cuda(host_launch(&host_slow_add, streams[0], (void *[]){&sum, &addend, &sleep_us}));
  CUgraph graph = end();
  CUDA_GRAPH_INSTANTIATE_PARAMS params = {0};
  assert_cuda(impl_cuGraphInstantiateWithParams(&exec, graph, &params));
  assert_int_equal(params.result_out, CUDA_GRAPH_INSTANTIATE_SUCCESS);
  assert_cuda(impl_cuGraphUpload(exec, streams[0]));
  for (int i = 0; i < 20; i++)
    assert_cuda(impl_cuGraphLaunch(exec, streams[i % 2]));
  assert_int_equal(host_word(sum), 20);
  assert_cuda(impl_cuGraphExecDestroy(exec));
  assert_int_equal(impl_cuGraphExecDestroy(exec), CUDA_ERROR_INVALID_VALUE);
  assert_int_equal(impl_cuGraphLaunch(exec, streams[0]), CUDA_ERROR_INVALID_HANDLE);
  assert_cuda(impl_cuGraphDestroy(graph));
}

static void count_call(void *argument) {
  atomic_fetch_add((atomic_int *)argument, 1);
}

static void copies_memsets_and_host_functions_are_captured(void **state) {
  (void)state;
  CUgraphExec exec;
  CUgraphNode nodes[4];
  CUgraphNodeType type;
  size_t count = 4;
  atomic_int calls = 0;
  uint32_t source = 1;
  const CUgraphNodeType expected[4] = {CU_GRAPH_NODE_TYPE_MEMSET, CU_GRAPH_NODE_TYPE_MEMCPY,
                                       CU_GRAPH_NODE_TYPE_MEMCPY, CU_GRAPH_NODE_TYPE_HOST};
  begin(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  assert_cuda(impl_cuMemsetD32Async(word(0), 9, 1, streams[0]));
  assert_cuda(impl_cuMemcpyDtoDAsync_v2(word(1), word(0), 4, streams[0]));
  assert_cuda(impl_cuMemcpyHtoDAsync_v2(word(2), &source, 4, streams[0]));
  assert_cuda(impl_cuLaunchHostFunc(streams[0], count_call, &calls));
  CUgraph graph = end();
  source = 2; /* read when the graph runs */
  assert_cuda(impl_cuGraphGetNodes(graph, nodes, &count));
  assert_int_equal(count, 4);
  for (int i = 0; i < 4; i++) {
    assert_cuda(impl_cuGraphNodeGetType(nodes[i], &type));
    assert_int_equal(type, expected[i]);
  }
  CUDA_KERNEL_NODE_PARAMS params;
  assert_int_equal(impl_cuGraphKernelNodeGetParams_v2(nodes[0], &params), CUDA_ERROR_INVALID_VALUE);
  assert_int_equal(calls, 0);
  assert_cuda(impl_cuGraphInstantiateWithFlags(&exec, graph, 0));
  assert_cuda(impl_cuGraphLaunch(exec, CU_STREAM_LEGACY));
  assert_int_equal(host_word(word(1)), 9);
  assert_int_equal(host_word(word(2)), 2);
  assert_int_equal(calls, 1);
  assert_cuda(impl_cuGraphExecDestroy(exec));
  assert_cuda(impl_cuGraphDestroy(graph));
}

static void external_events_are_recorded_at_each_launch(void **state) {
  (void)state;
  struct host_gate *gate = host_gate_new();
  CUgraphExec exec;
  CUevent event = new_event();
  begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
  assert_cuda(host_block(streams[0], gate));
  assert_cuda(impl_cuEventRecordWithFlags(event, streams[0], CU_EVENT_RECORD_EXTERNAL));
  CUgraph graph = end();
  assert_cuda(impl_cuEventQuery(event));
  assert_cuda(impl_cuGraphInstantiateWithFlags(&exec, graph, 0));
  assert_cuda(impl_cuGraphLaunch(exec, streams[0]));
  assert_int_equal(impl_cuEventQuery(event), CUDA_ERROR_NOT_READY);
  host_gate_open(gate);
  assert_cuda(impl_cuEventSynchronize(event));
  assert_int_equal(impl_cuEventRecordWithFlags(event, streams[0], CU_EVENT_RECORD_EXTERNAL),
                   CUDA_ERROR_INVALID_VALUE);
  assert_cuda(impl_cuEventDestroy_v2(event));
  assert_cuda(impl_cuGraphExecDestroy(exec));
  assert_cuda(impl_cuGraphDestroy(graph));
}

/* Each of these, while streams[0] captures, fails so and invalidates the capture. */
static CUresult synchronize_stream(void) {
  return impl_cuStreamSynchronize(streams[0]);
}
static CUresult query_stream(void) {
  return impl_cuStreamQuery(streams[0]);
}
static CUresult synchronize_context(void) {
  return sim_engine_context_synchronize(host_context());
}
static CUresult allocate(void) {
  CUdeviceptr address;
  return impl_cuMemAlloc_v2(&address, 64);
}
static CUresult wait_for_outside_event(void) {
  CUevent event = new_event();
  assert_cuda(impl_cuEventRecord(event, streams[1]));
  CUresult result = impl_cuStreamWaitEvent(streams[0], event, 0);
  assert_cuda(impl_cuEventDestroy_v2(event));
  return result;
}
static CUresult query_captured_event(void) {
  CUevent event = new_event();
  assert_cuda(impl_cuEventRecord(event, streams[0]));
  CUresult result = impl_cuEventQuery(event);
  assert_cuda(impl_cuEventDestroy_v2(event));
  return result;
}

/* ---- graphs inside graphs ---- */

static CUgraph captured_copy(unsigned from, unsigned to) {
  begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
  assert_cuda(host_copy(streams[0], word(from), word(to)));
  return end();
}

/* A fork, a copy behind it, and inside another child a copy behind that: each reads what the one before
 * wrote. */
static void children_run_in_their_place(void **state) {
  (void)state;
  CUgraphNode fork, behind, last, nodes[8];
  CUgraph outer, inner, child;
  CUgraphExec exec;
  CUgraphNodeType type;
  size_t count = 0;
  assert_cuda(impl_cuGraphCreate(&outer, 0));
  assert_cuda(impl_cuGraphCreate(&inner, 0));
  begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
  capture_fork(8, true);
  CUgraph forked = end(), copies[2] = {captured_copy(3, 4), captured_copy(4, 5)};
  assert_cuda(impl_cuGraphAddChildGraphNode(&fork, outer, NULL, 0, forked));
  assert_cuda(impl_cuGraphAddChildGraphNode(&behind, outer, &fork, 1, copies[0]));
  assert_cuda(impl_cuGraphAddChildGraphNode(&last, inner, NULL, 0, copies[1]));
  assert_cuda(impl_cuGraphAddChildGraphNode(&last, outer, (CUgraphNode[]){fork, behind}, 2, inner));
  assert_cuda(impl_cuGraphNodeGetType(behind, &type));
  assert_int_equal(type, CU_GRAPH_NODE_TYPE_GRAPH);
  assert_cuda(impl_cuGraphChildGraphNodeGetGraph(fork, &child));
  assert_true(child != forked); /* a copy: the original may go */
  assert_cuda(impl_cuGraphGetNodes(child, NULL, &count));
  assert_int_equal(count, 4);
  assert_int_equal(impl_cuGraphGetNodes(forked, nodes, &count), CUDA_SUCCESS);
  assert_int_equal(impl_cuGraphChildGraphNodeGetGraph(nodes[0], &child), CUDA_ERROR_INVALID_VALUE);
  assert_int_equal(impl_cuGraphAddChildGraphNode(&last, outer, nodes, 1, forked), CUDA_ERROR_INVALID_VALUE);
  assert_int_equal(impl_cuGraphAddChildGraphNode(&last, outer, NULL, 0, outer), CUDA_ERROR_INVALID_VALUE);
  assert_cuda(impl_cuGraphDestroy(forked));
  assert_cuda(impl_cuGraphDestroy(inner));
  assert_cuda(impl_cuGraphDestroy(copies[0]));
  assert_cuda(impl_cuGraphDestroy(copies[1]));
  assert_cuda(impl_cuGraphInstantiateWithFlags(&exec, outer, 0));
  assert_cuda(impl_cuGraphDestroy(outer));
  for (int round = 0; round < 3; round++) {
    assert_cuda(impl_cuMemsetD32_v2(words, 0, 16));
    assert_cuda(impl_cuGraphLaunch(exec, streams[0]));
    for (unsigned i = 0; i < 6; i++)
      assert_int_equal(host_word(word(i)), 8);
  }
  assert_cuda(impl_cuGraphExecDestroy(exec));
}

static void children_without_an_edge_run_at_once(void **state) {
  (void)state;
  struct host_gate *gates[3] = {host_gate_new(), host_gate_new(), host_gate_new()};
  CUgraphNode nodes[3];
  CUgraph outer;
  CUgraphExec exec;
  assert_cuda(impl_cuGraphCreate(&outer, 0));
  for (int i = 0; i < 3; i++) {
    begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
    assert_cuda(host_block(streams[0], gates[i]));
    CUgraph graph = end();
    assert_cuda(impl_cuGraphAddChildGraphNode(&nodes[i], outer, nodes, i == 2 ? 2 : 0, graph));
    assert_cuda(impl_cuGraphDestroy(graph));
  }
  assert_cuda(impl_cuGraphInstantiateWithFlags(&exec, outer, 0));
  assert_cuda(impl_cuGraphLaunch(exec, streams[0]));
  host_gate_await(gates[0]);
  host_gate_await(gates[1]); /* both stand there */
  host_gate_open(gates[0]);
  nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
  pthread_mutex_lock(&gates[2]->lock);
  assert_false(gates[2]->entered); /* it waits for both */
  pthread_mutex_unlock(&gates[2]->lock);
  host_gate_open(gates[1]);
  host_gate_await(gates[2]);
  host_gate_open(gates[2]);
  assert_cuda(impl_cuStreamSynchronize(streams[0]));
  assert_cuda(impl_cuGraphExecDestroy(exec));
  assert_cuda(impl_cuGraphDestroy(outer));
}

static CUresult query_other_event(void) {
  CUevent event = new_event();
  CUresult result = impl_cuEventQuery(event);
  assert_cuda(impl_cuEventDestroy_v2(event));
  return result;
}

static void illegal_calls_invalidate_the_capture(void **state) {
  (void)state;
  const struct {
    CUresult (*call)(void);
    CUresult result;
  } cases[] = {
      {synchronize_stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED},
      {query_stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED},
      {synchronize_context, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED},
      {allocate, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED},
      {wait_for_outside_event, CUDA_ERROR_STREAM_CAPTURE_ISOLATION},
      {query_captured_event, CUDA_ERROR_CAPTURED_EVENT},
      {query_other_event, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED},
  };
  for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
    CUstreamCaptureStatus status;
    CUgraph graph = (CUgraph)1;
    begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
    assert_int_equal(cases[i].call(), cases[i].result);
    assert_cuda(impl_cuStreamIsCapturing(streams[0], &status));
    assert_int_equal(status, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    assert_int_equal(host_write(streams[0], word(0), 1), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    assert_int_equal(impl_cuStreamEndCapture(streams[0], &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    assert_null(graph);
    assert_cuda(host_write(streams[0], word(0), 1)); /* an ordinary stream again */
    assert_cuda(impl_cuStreamSynchronize(streams[0]));
  }
}

static void relaxed_captures_allow_unsafe_calls(void **state) {
  (void)state;
  CUdeviceptr address;
  begin(CU_STREAM_CAPTURE_MODE_RELAXED);
  assert_cuda(impl_cuMemAlloc_v2(&address, 64));
  assert_cuda(impl_cuGraphDestroy(end()));
  begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  assert_cuda(impl_cuThreadExchangeStreamCaptureMode(&mode));
  assert_int_equal(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
  assert_cuda(impl_cuMemFree_v2(address));
  assert_cuda(query_other_event());
  assert_cuda(impl_cuThreadExchangeStreamCaptureMode(&mode));
  assert_int_equal(mode, CU_STREAM_CAPTURE_MODE_RELAXED);
  assert_cuda(impl_cuGraphDestroy(end()));
}

static void the_legacy_stream_may_not_slip_into_a_capture(void **state) {
  (void)state;
  CUstream blocking;
  CUgraph graph;
  assert_cuda(impl_cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
  assert_int_equal(impl_cuStreamBeginCapture_v2(CU_STREAM_LEGACY, CU_STREAM_CAPTURE_MODE_GLOBAL),
                   CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CUstreamCaptureStatus capture;
  assert_cuda(impl_cuStreamBeginCapture_v2(blocking, CU_STREAM_CAPTURE_MODE_GLOBAL));
  assert_int_equal(impl_cuStreamIsCapturing(CU_STREAM_LEGACY, &capture), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  assert_cuda(impl_cuStreamIsCapturing(blocking, &capture));
  assert_int_equal(capture, CU_STREAM_CAPTURE_STATUS_ACTIVE); /* asking did no harm */
  assert_int_equal(host_write(CU_STREAM_LEGACY, word(0), 1), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  assert_int_equal(impl_cuStreamEndCapture(blocking, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  begin(CU_STREAM_CAPTURE_MODE_GLOBAL); /* a non-blocking stream is no matter */
  assert_cuda(host_write(CU_STREAM_LEGACY, word(0), 1));
  assert_cuda(impl_cuGraphDestroy(end()));
  assert_cuda(impl_cuStreamDestroy_v2(blocking));
}

static void captures_end_where_they_began_and_joined(void **state) {
  (void)state;
  CUgraph graph;
  CUstreamCaptureStatus status;
  cuuint64_t id = 0;
  const CUgraphNode *dependencies;
  size_t count;
  assert_int_equal(impl_cuStreamEndCapture(streams[0], &graph), CUDA_ERROR_ILLEGAL_STATE);
  begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
  assert_int_equal(impl_cuStreamBeginCapture_v2(streams[0], CU_STREAM_CAPTURE_MODE_GLOBAL),
                   CUDA_ERROR_ILLEGAL_STATE);
  capture_fork(1, false);
  assert_cuda(impl_cuStreamGetCaptureInfo_v2(streams[1], &status, &id, &graph, &dependencies, &count));
  assert_int_equal(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  assert_int_equal(count, 1);
  assert_true(id != 0);
  assert_int_equal(impl_cuStreamEndCapture(streams[1], &graph), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
  assert_int_equal(impl_cuStreamEndCapture(streams[0], &graph), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
  assert_cuda(impl_cuStreamIsCapturing(streams[1], &status));
  assert_int_equal(status, CU_STREAM_CAPTURE_STATUS_NONE);
}

static void a_context_may_go_away_during_a_capture(void **state) {
  begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
  capture_fork(1, false);
  host_teardown(state);
  assert_int_equal(graph_setup(state), 0); /* allocates: no capture is left */
}

#define IN_CONTEXT(test) cmocka_unit_test_setup_teardown(test, graph_setup, host_teardown)

int main(void) {
  const struct CMUnitTest tests[] = {
      IN_CONTEXT(fork_and_join_become_a_graph),
      IN_CONTEXT(a_graph_runs_in_the_order_of_its_edges_for_every_seed),
      IN_CONTEXT(a_launch_ends_when_every_branch_has),
      IN_CONTEXT(launches_of_one_exec_do_not_overlap),
      IN_CONTEXT(copies_memsets_and_host_functions_are_captured),
      IN_CONTEXT(external_events_are_recorded_at_each_launch),
      IN_CONTEXT(children_run_in_their_place),
      IN_CONTEXT(children_without_an_edge_run_at_once),
      IN_CONTEXT(illegal_calls_invalidate_the_capture),
      IN_CONTEXT(relaxed_captures_allow_unsafe_calls),
      IN_CONTEXT(the_legacy_stream_may_not_slip_into_a_capture),
      IN_CONTEXT(captures_end_where_they_began_and_joined),
      IN_CONTEXT(a_context_may_go_away_during_a_capture),
  };
  return cmocka_run_group_tests_name("simulated graphs", tests, NULL, NULL);
}
