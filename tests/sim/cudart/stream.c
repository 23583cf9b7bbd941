/* Owns streams, events and stream capture of the simulated runtime. Handles are the driver's own, and the
 * special ones (legacy, per thread) have the same values in both. */
#include "runtime.h"

#include <stdlib.h>

cudaError_t impl_cudaStreamCreate(cudaStream_t *stream) {
  return RT(cuStreamCreate, stream, CU_STREAM_DEFAULT);
}

cudaError_t impl_cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags) {
  return RT(cuStreamCreate, stream, flags);
}

cudaError_t impl_cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned int flags, int priority) {
  return RT(cuStreamCreateWithPriority, stream, flags, priority);
}

/* The three built-in handles cannot be destroyed. */
cudaError_t impl_cudaStreamDestroy(cudaStream_t stream) {
  if (!stream || stream == cudaStreamLegacy || stream == cudaStreamPerThread)
    return cudaErrorInvalidResourceHandle;
  return RT(cuStreamDestroy, stream);
}

cudaError_t impl_cudaStreamSynchronize(cudaStream_t stream) {
  return RT(cuStreamSynchronize, stream);
}

cudaError_t impl_cudaStreamQuery(cudaStream_t stream) {
  return RT(cuStreamQuery, stream);
}

cudaError_t impl_cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags) {
  return RT(cuStreamWaitEvent, stream, event, flags);
}

cudaError_t impl_cudaStreamGetFlags(cudaStream_t stream, unsigned int *flags) {
  return RT(cuStreamGetFlags, stream, flags);
}

cudaError_t impl_cudaStreamGetPriority(cudaStream_t stream, int *priority) {
  return RT(cuStreamGetPriority, stream, priority);
}

cudaError_t impl_cudaStreamGetId(cudaStream_t stream, unsigned long long *id) {
  return RT(cuStreamGetId, stream, id);
}

cudaError_t impl_cudaStreamGetDevice(cudaStream_t stream, int *device) {
  return RT(cuStreamGetDevice, stream, device);
}

/* The driver calls back with its own error type; this carries the runtime's callback to where the call is
 * made. */
struct stream_callback {
  cudaStreamCallback_t callback;
  void *data;
};

static void CUDA_CB stream_callback_run(CUstream stream, CUresult result, void *data) {
  struct stream_callback call = *(struct stream_callback *)data;
  free(data);
  call.callback(stream, rt_error(result), call.data);
}

cudaError_t impl_cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void *data,
                                       unsigned int flags) {
  if (!callback) return cudaErrorInvalidValue;
  struct stream_callback *call = malloc(sizeof *call);
  if (!call) return cudaErrorMemoryAllocation;
  *call = (struct stream_callback){callback, data};
  cudaError_t error = RT(cuStreamAddCallback, stream, stream_callback_run, call, flags);
  if (error) free(call);
  return error;
}

cudaError_t impl_cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
  CUstreamCaptureStatus found = CU_STREAM_CAPTURE_STATUS_NONE;
  if (!status) return cudaErrorInvalidValue;
  cudaError_t error = RT(cuStreamIsCapturing, stream, &found);
  *status = (enum cudaStreamCaptureStatus)found;
  return error;
}

cudaError_t impl_cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
  return RT(cuStreamBeginCapture, stream, (CUstreamCaptureMode)mode);
}

cudaError_t impl_cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
  return RT(cuStreamEndCapture, stream, graph);
}

_Static_assert(sizeof(cudaGraphEdgeData) == sizeof(CUgraphEdgeData), "edges are handed through");

cudaError_t impl_cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                                          unsigned long long *id, cudaGraph_t *graph,
                                          const cudaGraphNode_t **dependencies,
                                          const cudaGraphEdgeData **edges, size_t *dependency_count) {
  CUstreamCaptureStatus found = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t found_id = 0;
  if (!status) return cudaErrorInvalidValue;
  cudaError_t error = RT(cuStreamGetCaptureInfo, stream, &found, &found_id, graph, dependencies,
                         (const CUgraphEdgeData **)edges, dependency_count);
  *status = (enum cudaStreamCaptureStatus)found;
  if (id) *id = found_id;
  return error;
}

cudaError_t impl_cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
  if (!mode) return cudaErrorInvalidValue;
  CUstreamCaptureMode exchanged = (CUstreamCaptureMode)*mode;
  cudaError_t error = RT(cuThreadExchangeStreamCaptureMode, &exchanged);
  if (!error) *mode = (enum cudaStreamCaptureMode)exchanged;
  return error;
}

cudaError_t impl_cudaEventCreate(cudaEvent_t *event) {
  return RT(cuEventCreate, event, CU_EVENT_DEFAULT);
}

cudaError_t impl_cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags) {
  return RT(cuEventCreate, event, flags);
}

cudaError_t impl_cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return RT(cuEventRecord, event, stream);
}

cudaError_t impl_cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned int flags) {
  return RT(cuEventRecordWithFlags, event, stream, flags);
}

cudaError_t impl_cudaEventQuery(cudaEvent_t event) {
  return RT(cuEventQuery, event);
}

cudaError_t impl_cudaEventSynchronize(cudaEvent_t event) {
  return RT(cuEventSynchronize, event);
}

cudaError_t impl_cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end) {
  return RT(cuEventElapsedTime, milliseconds, start, end);
}

cudaError_t impl_cudaEventDestroy(cudaEvent_t event) {
  return RT(cuEventDestroy, event);
}
