/* Owns stream capture: which calls end one in error. */
#include "engine_internal.h"
#include <stdlib.h>

CUresult sim_capture_work_locked(struct sim_stream *stream, struct sim_work *work) {
  (void)stream;
  sim_work_unref(work);
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult sim_capture_forbid_locked(struct sim_stream *stream) {
  return stream->capture ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

CUresult sim_capture_record_locked(struct sim_event *event, struct sim_stream *stream) {
  (void)event;
  return sim_capture_forbid_locked(stream);
}

CUresult sim_capture_wait_locked(struct sim_event *event, struct sim_stream *stream) {
  (void)event;
  return sim_capture_forbid_locked(stream);
}

void sim_capture_forget_event_locked(struct sim_event *event) {
  event->capture = NULL;
}

CUresult sim_capture_forbid_event_locked(struct sim_event *event) {
  return event->capture ? CUDA_ERROR_CAPTURED_EVENT : CUDA_SUCCESS;
}

CUresult sim_capture_forbid_unsafe(void) {
  return CUDA_SUCCESS;
}

CUresult sim_capture_forbid_context(struct sim_context *context) {
  (void)context;
  return CUDA_SUCCESS;
}
