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
  assert_cuda(cudaGraphDestroy(graph));
  assert_cuda(cudaStreamDestroy(stream));
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
      cmocka_unit_test(test_capture_refuses_sync),
  };
  support_register();
  return driver_has_graphs() ? cmocka_run_group_tests(tests, NULL, NULL) : EXIT_SKIPPED;
}
