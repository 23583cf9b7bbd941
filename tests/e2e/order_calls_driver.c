/* order_program's calls by the driver. */
#include <cuda.h>
#include <stdint.h>

#include "tests/e2e/order_calls.h"

static CUfunction function;

static int set_up(void) {
  static CUcontext context;
  CUmodule module;
  CUdevice device;
  if (context) return cuCtxSetCurrent(context);
  int result = cuInit(0);
  if (!result) result = cuDeviceGet(&device, 0);
  if (!result) result = cuDevicePrimaryCtxRetain(&context, device);
  if (!result) result = cuCtxSetCurrent(context);
  if (!result) result = cuModuleLoadData(&module, "image");
  if (!result) result = cuModuleGetFunction(&function, module, ORDER_KERNEL);
  return result;
}
static int allocate(void **out, size_t bytes) {
  return cuMemAlloc((CUdeviceptr *)out, bytes);
}
static int stream_create(void **out, bool blocking, int variant) {
  const unsigned flags = blocking ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING;
  return variant % 2 ? cuStreamCreate((CUstream *)out, flags)
                     : cuStreamCreateWithPriority((CUstream *)out, flags, -1);
}
static int stream_destroy(void *stream) {
  return cuStreamDestroy(stream);
}
static int event_create(void **out) {
  return cuEventCreate((CUevent *)out, CU_EVENT_DISABLE_TIMING);
}
static int event_destroy(void *event) {
  return cuEventDestroy(event);
}
static int record(void *event, void *stream, bool with_flags) {
  return with_flags ? cuEventRecordWithFlags(event, stream, CU_EVENT_RECORD_DEFAULT)
                    : cuEventRecord(event, stream);
}
static int wait(void *stream, void *event) {
  return cuStreamWaitEvent(stream, event, 0);
}
static int stream_sync(void *stream) {
  return cuStreamSynchronize(stream);
}
static int stream_query(void *stream) {
  return cuStreamQuery(stream);
}
static int event_sync(void *event) {
  return cuEventSynchronize(event);
}
static int event_query(void *event) {
  return cuEventQuery(event);
}
static int context_sync(void) {
  return cuCtxSynchronize();
}
static int launch(const struct order_launch *l) {
  void *params[] = {(void *)(uintptr_t)&l->buffer, (void *)(uintptr_t)&l->note};
  if (!l->programmatic && !l->start_event && !l->completion_event)
    return cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, l->stream, params, NULL);
  CUlaunchAttribute attributes[3];
  unsigned count = 0;
  if (l->programmatic)
    attributes[count++] = (CUlaunchAttribute){.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                                              .value.programmaticStreamSerializationAllowed = 1};
  if (l->start_event)
    attributes[count++] =
        (CUlaunchAttribute){.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT,
                            .value.programmaticEvent = {.event = l->start_event, .triggerAtBlockStart = 1}};
  if (l->completion_event)
    attributes[count++] = (CUlaunchAttribute){.id = CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT,
                                              .value.launchCompletionEvent = {.event = l->completion_event}};
  const CUlaunchConfig config = {.gridDimX = 1,
                                 .gridDimY = 1,
                                 .gridDimZ = 1,
                                 .blockDimX = 1,
                                 .blockDimY = 1,
                                 .blockDimZ = 1,
                                 .hStream = l->stream,
                                 .attrs = attributes,
                                 .numAttrs = count};
  return cuLaunchKernelEx(&config, function, params, NULL);
}
static int copy_to_host(void *to, void *from, size_t bytes) {
  return cuMemcpyDtoH(to, (CUdeviceptr)from, bytes);
}
static int copy_to_device(void *to, void *from, size_t bytes) {
  return cuMemcpyHtoD((CUdeviceptr)to, from, bytes);
}
static int host_function(void *stream, void (*body)(void *), void *argument) {
  return cuLaunchHostFunc(stream, body, argument);
}
static int capture_begin(void *stream) {
  return cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
}
static int capture_end(void *stream, void **graph) {
  return cuStreamEndCapture(stream, (CUgraph *)graph);
}
static int instantiate(void **exec, void *graph) {
  return cuGraphInstantiateWithFlags((CUgraphExec *)exec, graph, 0);
}
static int graph_launch(void *exec, void *stream) {
  return cuGraphLaunch(exec, stream);
}
static int exec_destroy(void *exec) {
  return cuGraphExecDestroy(exec);
}
static int graph_destroy(void *graph) {
  return cuGraphDestroy(graph);
}

#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
#define DEFAULT_IS_LEGACY false
#define LEGACY ((void *)CU_STREAM_LEGACY)
#define PER_THREAD NULL
#else
#define DEFAULT_IS_LEGACY true
#define LEGACY NULL
#define PER_THREAD ((void *)CU_STREAM_PER_THREAD)
#endif

const struct order_calls order_calls_driver = {
    "driver",      LEGACY,         PER_THREAD,    DEFAULT_IS_LEGACY, set_up,       allocate,
    stream_create, stream_destroy, event_create,  event_destroy,     record,       wait,
    stream_sync,   stream_query,   event_sync,    event_query,       context_sync, launch,
    copy_to_host,  copy_to_device, host_function, capture_begin,     capture_end,  instantiate,
    graph_launch,  exec_destroy,   graph_destroy};
