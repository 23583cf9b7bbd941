/* The simulated runtime over the simulated driver: streams, default-stream variants, events, host callbacks,
 * threads, and the callbacks that a tool gets. */
#include "../cuda/tools.h"
#include "test_support.h"

#include <cupti_driver_cbid.h>
#include <cupti_runtime_cbid.h>
#include <generated_cuda_runtime_api_meta.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { WORDS = 256 };
static const dim3 one = {1, 1, 1};

/* ---- streams ---- */

static void test_stream_query_and_sync(void **state) {
  (void)state;
  struct gate *gate = gate_new();
  cudaStream_t stream;
  assert_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  assert_cuda(cudaStreamQuery(stream));
  assert_cuda(launch_gate(gate, stream));
  gate_await(gate);
  assert_int_equal(cudaStreamQuery(stream), cudaErrorNotReady);
  gate_open(gate);
  assert_cuda(cudaStreamSynchronize(stream));
  assert_cuda(cudaStreamQuery(stream));
  assert_cuda(cudaStreamDestroy(stream));
  assert_int_equal(cudaStreamDestroy(NULL), cudaErrorInvalidResourceHandle);
  cudaGetLastError();
  gate_free(gate);
}

static void test_stream_properties(void **state) {
  (void)state;
  int least, greatest, priority, device;
  unsigned flags;
  unsigned long long id, other_id;
  cudaStream_t stream, other;
  assert_cuda(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  assert_true(greatest < least);
  assert_cuda(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest));
  assert_cuda(cudaStreamCreate(&other));
  assert_cuda(cudaStreamGetPriority(stream, &priority));
  assert_int_equal(priority, greatest);
  assert_cuda(cudaStreamGetFlags(stream, &flags));
  assert_int_equal(flags, cudaStreamNonBlocking);
  assert_cuda(cudaStreamGetId(stream, &id));
  assert_cuda(cudaStreamGetId(other, &other_id));
  assert_true(id != other_id);
  assert_cuda(cudaStreamGetDevice(stream, &device));
  assert_int_equal(device, 0);
  assert_cuda(cudaStreamDestroy(stream));
  assert_cuda(cudaStreamDestroy(other));
}

/* Stream 0 is the legacy stream in one spelling and the thread's own in the other. */
static void test_default_stream_variants(void **state) {
  (void)state;
  struct gate *gate = gate_new();
  cudaStream_t apart;
  void *args[] = {&gate};
  assert_cuda(cudaStreamCreateWithFlags(&apart, cudaStreamNonBlocking));
  assert_cuda(cudaLaunchKernel_ptsz((const void *)symbol_gate, one, one, args, 0, NULL));
  gate_await(gate);
  assert_int_equal(cudaStreamQuery(cudaStreamPerThread), cudaErrorNotReady);
  assert_int_equal(cudaStreamQuery_ptsz(NULL), cudaErrorNotReady);
  assert_cuda(cudaStreamQuery(apart));
  gate_open(gate);
  assert_cuda(cudaStreamSynchronize_ptsz(NULL));
  gate_free(gate);

  gate = gate_new();
  assert_cuda(launch_gate(gate, NULL));
  gate_await(gate);
  assert_int_equal(cudaStreamQuery(NULL), cudaErrorNotReady);
  assert_int_equal(cudaStreamQuery(cudaStreamLegacy), cudaErrorNotReady);
  assert_cuda(cudaStreamQuery(cudaStreamPerThread)); /* nothing was put there */
  gate_open(gate);
  assert_cuda(cudaDeviceSynchronize());
  gate_free(gate);
  assert_cuda(cudaStreamDestroy(apart));
  cudaGetLastError();
}

static void test_per_thread_copies(void **state) {
  (void)state;
  uint32_t *words = device_words(WORDS), host[WORDS];
  memset(host, 0x3c, sizeof host);
  assert_cuda(cudaMemcpy_ptds(words, host, sizeof host, cudaMemcpyHostToDevice));
  assert_device_words(words, 0x3c3c3c3c, WORDS);
  assert_cuda(cudaMemset_ptds(words, 0x22, sizeof host));
  assert_cuda(cudaMemcpyAsync_ptsz(host, words, sizeof host, cudaMemcpyDeviceToHost, NULL));
  assert_cuda(cudaStreamSynchronize_ptsz(NULL));
  assert_int_equal(host[WORDS - 1], 0x22222222);
  assert_cuda(cudaFree(words));
}

/* ---- events ---- */

static void test_event_orders_streams(void **state) {
  (void)state;
  struct gate *gate = gate_new();
  uint32_t *words = device_words(WORDS);
  cudaStream_t first, second;
  cudaEvent_t done;
  assert_cuda(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking));
  assert_cuda(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
  assert_cuda(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
  assert_cuda(launch_gate(gate, first));
  assert_cuda(launch_fill(words, 5, WORDS, first));
  assert_cuda(cudaEventRecord(done, first));
  assert_cuda(cudaStreamWaitEvent(second, done, 0));
  assert_cuda(launch_add(words, 1, WORDS, second));
  gate_await(gate);
  assert_int_equal(cudaEventQuery(done), cudaErrorNotReady);
  assert_int_equal(cudaStreamQuery(second), cudaErrorNotReady);
  gate_open(gate);
  assert_cuda(cudaEventSynchronize(done));
  assert_cuda(cudaEventQuery(done));
  assert_device_words(words, 6, WORDS);
  assert_cuda(cudaEventDestroy(done));
  assert_cuda(cudaStreamDestroy(first));
  assert_cuda(cudaStreamDestroy(second));
  assert_cuda(cudaFree(words));
  cudaGetLastError();
  gate_free(gate);
}

static void test_event_timing(void **state) {
  (void)state;
  float milliseconds = -1;
  cudaEvent_t start, end, silent;
  assert_cuda(cudaEventCreate(&start));
  assert_cuda(cudaEventCreate(&end));
  assert_cuda(cudaEventCreateWithFlags(&silent, cudaEventDisableTiming));
  assert_cuda(cudaEventQuery(start)); /* never recorded counts as complete */
  assert_cuda(cudaEventRecord(start, NULL));
  assert_cuda(cudaEventRecordWithFlags(end, NULL, cudaEventRecordDefault));
  assert_cuda(cudaEventSynchronize(end));
  assert_cuda(cudaEventElapsedTime(&milliseconds, start, end));
  assert_true(milliseconds >= 0);
  assert_cuda(cudaEventRecord(silent, NULL));
  assert_cuda(cudaDeviceSynchronize());
  assert_int_equal(cudaEventElapsedTime(&milliseconds, start, silent), cudaErrorInvalidResourceHandle);
  cudaGetLastError();
  assert_cuda(cudaEventDestroy(start));
  assert_cuda(cudaEventDestroy(end));
  assert_cuda(cudaEventDestroy(silent));
}

/* ---- host callbacks ---- */

static void CUDART_CB count_up(void *data) {
  ++*(int *)data;
}

static void CUDART_CB keep_status(cudaStream_t stream, cudaError_t status, void *data) {
  (void)stream;
  *(cudaError_t *)data = status;
}

static void test_host_callbacks(void **state) {
  (void)state;
  int calls = 0;
  cudaError_t status = cudaErrorUnknown;
  cudaStream_t stream;
  assert_cuda(cudaStreamCreate(&stream));
  assert_cuda(cudaLaunchHostFunc(stream, count_up, &calls));
  assert_cuda(cudaLaunchHostFunc(stream, count_up, &calls));
  assert_cuda(cudaStreamAddCallback(stream, keep_status, &status, 0));
  assert_cuda(cudaStreamSynchronize(stream));
  assert_int_equal(calls, 2);
  assert_int_equal(status, cudaSuccess);
  assert_int_equal(cudaStreamAddCallback(stream, NULL, NULL, 0), cudaErrorInvalidValue);
  cudaGetLastError();
  assert_cuda(cudaStreamDestroy(stream));
}

/* ---- tools ---- */

enum { SEEN_MAX = 16 };
struct seen {
  CUpti_CallbackDomain domain;
  CUpti_CallbackId id;
  CUpti_ApiCallbackSite site;
  const char *name, *symbol;
  size_t malloc_bytes;
  int result;
};
static struct {
  struct seen calls[SEEN_MAX];
  unsigned count;
} record;

static void CUPTIAPI keep_call(void *data, CUpti_CallbackDomain domain, CUpti_CallbackId id,
                               const void *info) {
  (void)data;
  const CUpti_CallbackData *call = info;
  struct seen *seen = &record.calls[record.count++ % SEEN_MAX];
  *seen = (struct seen){.domain = domain,
                        .id = id,
                        .site = call->callbackSite,
                        .name = call->functionName,
                        .symbol = call->symbolName};
  if (domain != CUPTI_CB_DOMAIN_RUNTIME_API) return;
  if (id == CUPTI_RUNTIME_TRACE_CBID_cudaMalloc_v3020)
    seen->malloc_bytes = ((const cudaMalloc_v3020_params *)call->functionParams)->size;
  if (call->callbackSite == CUPTI_API_EXIT) seen->result = *(cudaError_t *)call->functionReturnValue;
}

static void tools_listen(CUpti_SubscriberHandle *subscriber, CUpti_CallbackId runtime,
                         CUpti_CallbackId driver) {
  const struct rpsim_tools *tools = rpsim_tools_get();
  record.count = 0;
  assert_int_equal(tools->subscribe(subscriber, keep_call, NULL, "test", NULL, 0), CUPTI_SUCCESS);
  assert_int_equal(tools->enable(1, *subscriber, CUPTI_CB_DOMAIN_RUNTIME_API, runtime), CUPTI_SUCCESS);
  assert_int_equal(tools->enable(1, *subscriber, CUPTI_CB_DOMAIN_DRIVER_API, driver), CUPTI_SUCCESS);
}

/* The runtime's callback encloses that of the driver call beneath it. */
static void test_callbacks_nest(void **state) {
  (void)state;
  CUpti_SubscriberHandle subscriber;
  void *words;
  tools_listen(&subscriber, CUPTI_RUNTIME_TRACE_CBID_cudaMalloc_v3020, CUPTI_DRIVER_TRACE_CBID_cuMemAlloc_v2);
  assert_cuda(cudaMalloc(&words, 4096));
  assert_int_equal(cudaMalloc(NULL, 64), cudaErrorInvalidValue);
  assert_int_equal(rpsim_tools_get()->unsubscribe(subscriber), CUPTI_SUCCESS);
  assert_cuda(cudaFree(words));
  cudaGetLastError();
  const struct {
    CUpti_CallbackDomain domain;
    CUpti_ApiCallbackSite site;
    int result;
  } expected[] = {
      {CUPTI_CB_DOMAIN_RUNTIME_API, CUPTI_API_ENTER, 0}, {CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_API_ENTER, 0},
      {CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_API_EXIT, 0},   {CUPTI_CB_DOMAIN_RUNTIME_API, CUPTI_API_EXIT, 0},
      {CUPTI_CB_DOMAIN_RUNTIME_API, CUPTI_API_ENTER, 0}, {CUPTI_CB_DOMAIN_RUNTIME_API, CUPTI_API_EXIT, 1},
  };
  assert_int_equal(record.count, sizeof expected / sizeof *expected);
  for (unsigned i = 0; i < record.count; i++) {
    assert_int_equal(record.calls[i].domain, expected[i].domain);
    assert_int_equal(record.calls[i].site, expected[i].site);
    assert_int_equal(record.calls[i].result, expected[i].result);
  }
  assert_int_equal(record.calls[0].malloc_bytes, 4096);
  assert_string_equal(record.calls[0].name, "cudaMalloc_v3020");
}

static void test_callback_names_kernel(void **state) {
  (void)state;
  CUpti_SubscriberHandle subscriber;
  uint32_t *words = device_words(WORDS);
  tools_listen(&subscriber, CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_v7000,
               CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel);
  assert_cuda(launch_fill(words, 1, WORDS, NULL));
  assert_int_equal(rpsim_tools_get()->unsubscribe(subscriber), CUPTI_SUCCESS);
  assert_int_equal(record.count, 4);
  assert_string_equal(record.calls[0].symbol, "_Z4fillPjjm");
  assert_cuda(cudaFree(words));
}

/* ---- threads ---- */

enum { THREADS = 4 };

static void *fill_and_check(void *argument) {
  uint32_t value = *(uint32_t *)argument, *words = NULL, host[WORDS] = {0};
  cudaStream_t stream;
  void *args[] = {&words, &value, &(uint64_t){WORDS}};
  if (cudaMalloc((void **)&words, sizeof host) || cudaStreamCreate(&stream)) return "set-up";
  if (cudaLaunchKernel((const void *)symbol_fill, one, one, args, 0, stream)) return "launch";
  if (cudaMemcpyAsync(host, words, sizeof host, cudaMemcpyDeviceToHost, stream)) return "copy";
  if (cudaStreamSynchronize(stream)) return "synchronize";
  if (host[0] != value || host[WORDS - 1] != value) return "values";
  return cudaStreamDestroy(stream) || cudaFree(words) ? "clean-up" : NULL;
}

static void test_threads(void **state) {
  (void)state;
  pthread_t threads[THREADS];
  uint32_t values[THREADS];
  for (uint32_t i = 0; i < THREADS; i++) {
    values[i] = i + 100;
    assert_int_equal(pthread_create(&threads[i], NULL, fill_and_check, &values[i]), 0);
  }
  for (uint32_t i = 0; i < THREADS; i++) {
    void *failed;
    pthread_join(threads[i], &failed);
    if (failed) fail_msg("thread %u failed at: %s", i, (const char *)failed);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_threads), /* first, so that the first calls of all are concurrent */
      cmocka_unit_test(test_stream_query_and_sync),
      cmocka_unit_test(test_stream_properties),
      cmocka_unit_test(test_default_stream_variants),
      cmocka_unit_test(test_per_thread_copies),
      cmocka_unit_test(test_event_orders_streams),
      cmocka_unit_test(test_event_timing),
      cmocka_unit_test(test_host_callbacks),
      cmocka_unit_test(test_callbacks_nest),
      cmocka_unit_test(test_callback_names_kernel),
  };
  support_register();
  return cmocka_run_group_tests(tests, NULL, NULL);
}
