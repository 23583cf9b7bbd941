/* order_program's calls by the runtime. */
#include <cuda_runtime_api.h>
#include <stdint.h>

#include "tests/e2e/order_calls.h"
#include "tests/sim/cudart/registration.h"

static char symbol; /* stands for the __global__ function */

__attribute__((constructor)) static void register_kernel(void) {
  static struct rt_fat_binary binary = {RT_FAT_BINARY_MAGIC, RT_FAT_BINARY_VERSION,
                                        (const unsigned long long *)&symbol, NULL};
  void **handle = __cudaRegisterFatBinary(&binary);
  __cudaRegisterFunction(handle, &symbol, (char *)ORDER_KERNEL, ORDER_KERNEL, -1, NULL, NULL, NULL, NULL,
                         NULL);
  __cudaRegisterFatBinaryEnd(handle);
}

static int set_up(void) {
  return cudaSetDevice(0);
}
static int allocate(void **out, size_t bytes) {
  return cudaMalloc(out, bytes);
}
static int stream_create(void **out, bool blocking, int variant) {
  const unsigned flags = blocking ? cudaStreamDefault : cudaStreamNonBlocking;
  if (variant % 3 == 0 && blocking) return cudaStreamCreate((cudaStream_t *)out);
  return variant % 3 == 1 ? cudaStreamCreateWithFlags((cudaStream_t *)out, flags)
                          : cudaStreamCreateWithPriority((cudaStream_t *)out, flags, -1);
}
static int stream_destroy(void *stream) {
  return cudaStreamDestroy(stream);
}
static int event_create(void **out) {
  return cudaEventCreateWithFlags((cudaEvent_t *)out, cudaEventDisableTiming);
}
static int event_destroy(void *event) {
  return cudaEventDestroy(event);
}
static int record(void *event, void *stream, bool with_flags) {
  return with_flags ? cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault)
                    : cudaEventRecord(event, stream);
}
static int wait(void *stream, void *event) {
  return cudaStreamWaitEvent(stream, event, 0);
}
static int stream_sync(void *stream) {
  return cudaStreamSynchronize(stream);
}
static int stream_query(void *stream) {
  return cudaStreamQuery(stream);
}
static int event_sync(void *event) {
  return cudaEventSynchronize(event);
}
static int event_query(void *event) {
  return cudaEventQuery(event);
}
static int context_sync(void) {
  return cudaDeviceSynchronize();
}
static int launch(const struct order_launch *l) {
  void *params[] = {(void *)(uintptr_t)&l->buffer, (void *)(uintptr_t)&l->note};
  const dim3 one = {1, 1, 1};
  if (!l->programmatic && !l->start_event && !l->completion_event)
    return cudaLaunchKernel(&symbol, one, one, params, 0, l->stream);
  cudaLaunchAttribute attributes[3];
  unsigned count = 0;
  if (l->programmatic)
    attributes[count++] = (cudaLaunchAttribute){.id = cudaLaunchAttributeProgrammaticStreamSerialization,
                                                .val.programmaticStreamSerializationAllowed = 1};
  if (l->start_event)
    attributes[count++] =
        (cudaLaunchAttribute){.id = cudaLaunchAttributeProgrammaticEvent,
                              .val.programmaticEvent = {.event = l->start_event, .triggerAtBlockStart = 1}};
  if (l->completion_event)
    attributes[count++] = (cudaLaunchAttribute){.id = cudaLaunchAttributeLaunchCompletionEvent,
                                                .val.launchCompletionEvent = {.event = l->completion_event}};
  const cudaLaunchConfig_t config = {
      .gridDim = one, .blockDim = one, .stream = l->stream, .attrs = attributes, .numAttrs = count};
  return cudaLaunchKernelExC(&config, &symbol, params);
}
static int copy_to_host(void *to, void *from, size_t bytes) {
  return cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost);
}
static int copy_to_device(void *to, void *from, size_t bytes) {
  return cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice);
}
static int host_function(void *stream, void (*function)(void *), void *argument) {
  return cudaLaunchHostFunc(stream, function, argument);
}
static int capture_begin(void *stream) {
  return cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed);
}
static int capture_end(void *stream, void **graph) {
  return cudaStreamEndCapture(stream, (cudaGraph_t *)graph);
}
static int instantiate(void **exec, void *graph) {
  return cudaGraphInstantiate((cudaGraphExec_t *)exec, graph, 0);
}
static int graph_launch(void *exec, void *stream) {
  return cudaGraphLaunch(exec, stream);
}
static int exec_destroy(void *exec) {
  return cudaGraphExecDestroy(exec);
}
static int graph_destroy(void *graph) {
  return cudaGraphDestroy(graph);
}

#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
#define DEFAULT_IS_LEGACY false
#define LEGACY ((void *)cudaStreamLegacy)
#define PER_THREAD NULL
#else
#define DEFAULT_IS_LEGACY true
#define LEGACY NULL
#define PER_THREAD ((void *)cudaStreamPerThread)
#endif

const struct order_calls order_calls_runtime = {
    "runtime",     LEGACY,         PER_THREAD,    DEFAULT_IS_LEGACY, set_up,       allocate,
    stream_create, stream_destroy, event_create,  event_destroy,     record,       wait,
    stream_sync,   stream_query,   event_sync,    event_query,       context_sync, launch,
    copy_to_host,  copy_to_device, host_function, capture_begin,     capture_end,  instantiate,
    graph_launch,  exec_destroy,   graph_destroy};
