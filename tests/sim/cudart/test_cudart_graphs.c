/* The simulated runtime over the simulated driver: stream capture and graphs. Skipped over a driver without
 * graphs. */
#include "test_support.h"

enum { WORDS = 256, EXIT_SKIPPED = 77 };

static void test_graph_by_capture(void **state) {
  (void)state;
  uint32_t *words = device_words(WORDS);
  enum cudaStreamCaptureStatus status;
  unsigned long long id = 0;
  size_t nodes = 0;
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  assert_cuda(cudaStreamCreate(&stream));
  assert_cuda(launch_fill(words, 10, WORDS, stream));
  assert_cuda(cudaStreamSynchronize(stream));
  assert_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  assert_cuda(cudaStreamIsCapturing(stream, &status));
  assert_int_equal(status, cudaStreamCaptureStatusActive);
  assert_cuda(launch_add(words, 1, WORDS, stream));
  assert_cuda(launch_add(words, 2, WORDS, stream));
  assert_cuda(cudaStreamGetCaptureInfo(stream, &status, &id, NULL, NULL, NULL, NULL));
  assert_true(id > 0);
  assert_cuda(cudaStreamEndCapture(stream, &graph));
  assert_cuda(cudaGraphGetNodes(graph, NULL, &nodes));
  assert_int_equal(nodes, 2);
  assert_device_words(words, 10, WORDS); /* captured, not run */
  assert_cuda(cudaGraphInstantiate(&exec, graph, 0));
  assert_cuda(cudaGraphLaunch(exec, stream));
  assert_cuda(cudaGraphLaunch(exec, stream));
  assert_cuda(cudaStreamSynchronize(stream));
  assert_device_words(words, 16, WORDS);
  assert_cuda(cudaGraphExecDestroy(exec));
  cudaGraph_t outer, child;
  cudaGraphNode_t first, second;
  assert_cuda(cudaGraphCreate(&outer, 0));
  assert_cuda(cudaGraphAddChildGraphNode(&first, outer, NULL, 0, graph));
  assert_cuda(cudaGraphAddChildGraphNode(&second, outer, &first, 1, graph));
  assert_cuda(cudaGraphChildGraphNodeGetGraph(second, &child));
  assert_true(child != graph);
  assert_cuda(cudaGraphInstantiate(&exec, outer, 0));
  assert_cuda(cudaGraphLaunch(exec, stream));
  assert_cuda(cudaStreamSynchronize(stream));
  assert_device_words(words, 22, WORDS);
  assert_cuda(cudaGraphExecDestroy(exec));
  assert_cuda(cudaGraphDestroy(outer));
  assert_cuda(cudaGraphDestroy(graph));
  assert_cuda(cudaStreamDestroy(stream));
  assert_cuda(cudaFree(words));
}

/* A fork and its join, captured by events: three nodes, of which the last depends on the first two. */
static void test_graph_structure(void **state) {
  (void)state;
  uint32_t *words = device_words(WORDS);
  cudaStream_t first, second;
  cudaEvent_t fork, join;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  cudaGraphNode_t roots[4], from[4], to[4];
  cudaGraphEdgeData data[4];
  size_t root_count = 4, edge_count = 4;
  enum cudaGraphNodeType type;
  cudaGraphInstantiateParams params = {.flags = 0};
  assert_cuda(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking));
  assert_cuda(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
  assert_cuda(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
  assert_cuda(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
  assert_cuda(cudaStreamBeginCapture(first, cudaStreamCaptureModeRelaxed));
  assert_cuda(cudaEventRecord(fork, first));
  assert_cuda(cudaStreamWaitEvent(second, fork, 0));
  assert_cuda(cudaMemsetAsync(words, 0, 4 * WORDS / 2, first));
  assert_cuda(cudaMemsetAsync(words + WORDS / 2, 0, 4 * WORDS / 2, second));
  assert_cuda(cudaEventRecord(join, second));
  assert_cuda(cudaStreamWaitEvent(first, join, 0));
  assert_cuda(launch_add(words, 8, WORDS, first));
  assert_cuda(cudaStreamEndCapture(first, &graph));
  assert_cuda(cudaGraphGetRootNodes(graph, roots, &root_count));
  assert_int_equal(root_count, 2);
  assert_cuda(cudaGraphNodeGetType(roots[0], &type));
  assert_int_equal(type, cudaGraphNodeTypeMemset);
  assert_cuda(cudaGraphGetEdges(graph, from, to, data, &edge_count));
  assert_int_equal(edge_count, 2);
  assert_ptr_equal(to[0], to[1]);
  assert_cuda(cudaGraphNodeGetType(to[0], &type));
  assert_int_equal(type, cudaGraphNodeTypeKernel);
  assert_cuda(cudaGraphInstantiateWithParams(&exec, graph, &params));
  assert_int_equal(params.result_out, cudaGraphInstantiateSuccess);
  assert_cuda(cudaGraphDestroy(graph)); /* the executable one lives on */
  assert_cuda(cudaGraphUpload(exec, second));
  assert_cuda(cudaGraphLaunch(exec, second));
  assert_device_words(words, 8, WORDS);
  assert_cuda(cudaGraphExecDestroy(exec));
  assert_cuda(cudaEventDestroy(fork));
  assert_cuda(cudaEventDestroy(join));
  assert_cuda(cudaStreamDestroy(first));
  assert_cuda(cudaStreamDestroy(second));
  assert_cuda(cudaFree(words));
}

static void test_capture_refuses_sync(void **state) {
  (void)state;
  cudaStream_t stream;
  cudaGraph_t graph = NULL;
  enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  assert_cuda(cudaStreamCreate(&stream));
  assert_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  assert_int_equal(cudaStreamSynchronize(stream), cudaErrorStreamCaptureUnsupported);
  assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
  cudaGetLastError();
  assert_cuda(cudaThreadExchangeStreamCaptureMode(&mode));
  assert_int_equal(mode, cudaStreamCaptureModeGlobal);
  assert_cuda(cudaThreadExchangeStreamCaptureMode(&mode));
  assert_int_equal(mode, cudaStreamCaptureModeRelaxed);
  assert_cuda(cudaStreamDestroy(stream));
}

static int driver_has_graphs(void) {
  enum cudaDriverEntryPointQueryResult status;
  void *found;
  return cudaGetDriverEntryPointByVersion("cuGraphLaunch", &found, 13000, cudaEnableDefault, &status) ==
             cudaSuccess &&
         status == cudaDriverEntryPointSuccess;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_graph_by_capture),
      cmocka_unit_test(test_graph_structure),
      cmocka_unit_test(test_capture_refuses_sync),
  };
  support_register();
  return driver_has_graphs() ? cmocka_run_group_tests(tests, NULL, NULL) : EXIT_SKIPPED;
}
