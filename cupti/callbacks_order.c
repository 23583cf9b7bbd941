/* CUPTI callbacks of the calls that order work: what each of them records, waits for, synchronises, makes or
 * ends. Owns their part of the table of callback ids. */
#include "cupti/callbacks_internal.h"

#define HANDLE(object) ((uint64_t)(uintptr_t)(object))

static bool on_record(const struct rp_taken *call, struct rp_cuda_order *out) {
  const cuEventRecord_params *p = call->params;
  out->kind = RP_CUDA_RECORD;
  out->stream = rp_normal_stream(p->hStream, call->per_thread);
  out->object = HANDLE(p->hEvent);
  return true;
}

static bool on_record_flags(const struct rp_taken *call, struct rp_cuda_order *out) {
  const cuEventRecordWithFlags_params *p = call->params;
  out->kind = p->flags & CU_EVENT_RECORD_EXTERNAL ? RP_CUDA_EVENT_FOREIGN : RP_CUDA_RECORD;
  out->stream = rp_normal_stream(p->hStream, call->per_thread);
  out->object = HANDLE(p->hEvent);
  return true;
}

static bool on_record_context(const struct rp_taken *call, struct rp_cuda_order *out) {
  const cuCtxRecordEvent_params *p = call->params; /* cuGreenCtxRecordEvent has the same members */
  out->kind = RP_CUDA_RECORD_CONTEXT;
  out->object = HANDLE(p->hEvent);
  return true;
}

static bool on_wait(const struct rp_taken *call, struct rp_cuda_order *out) {
  const cuStreamWaitEvent_params *p = call->params;
  out->kind = RP_CUDA_WAIT;
  out->stream = rp_normal_stream(p->hStream, call->per_thread);
  out->object = HANDLE(p->hEvent);
  return !(p->Flags & CU_EVENT_WAIT_EXTERNAL); /* part of a graph, and nothing now */
}

/* ---- the host waits, or asks ---- */

static bool on_context_sync(const struct rp_taken *call, struct rp_cuda_order *out) {
  (void)call;
  out->kind = RP_CUDA_SYNC_CONTEXT;
  return true;
}

static bool on_context_sync_v2(const struct rp_taken *call, struct rp_cuda_order *out) {
  const cuCtxSynchronize_v2_params *p = call->params;
  out->kind = RP_CUDA_SYNC_CONTEXT;
  if (p->ctx) out->context = HANDLE(p->ctx);
  return true;
}

static bool on_stream_sync(const struct rp_taken *call, struct rp_cuda_order *out) {
  const cuStreamSynchronize_params *p = call->params; /* cuStreamQuery has the same member */
  out->kind = RP_CUDA_SYNC_STREAM;
  out->stream = rp_normal_stream(p->hStream, call->per_thread);
  return true;
}

static bool on_stream_query(const struct rp_taken *call, struct rp_cuda_order *out) {
  out->flags = RP_CUDA_ORDER_QUERY;
  return on_stream_sync(call, out);
}

static bool on_event_sync(const struct rp_taken *call, struct rp_cuda_order *out) {
  const cuEventSynchronize_params *p = call->params; /* cuEventQuery has the same member */
  out->kind = RP_CUDA_SYNC_EVENT;
  out->object = HANDLE(p->hEvent);
  return true;
}

static bool on_event_query(const struct rp_taken *call, struct rp_cuda_order *out) {
  out->flags = RP_CUDA_ORDER_QUERY;
  return on_event_sync(call, out);
}

/* ---- captures ---- */

static bool on_capture_begin(const struct rp_taken *call, struct rp_cuda_order *out) {
  const cuStreamBeginCapture_v2_params *p = call->params; /* the other variants begin with the same member */
  out->kind = RP_CUDA_CAPTURE_BEGIN;
  out->stream = rp_normal_stream(p->hStream, call->per_thread);
  return true;
}

static bool on_capture_end(const struct rp_taken *call, struct rp_cuda_order *out) {
  const cuStreamEndCapture_params *p = call->params;
  out->kind = RP_CUDA_CAPTURE_END;
  out->stream = rp_normal_stream(p->hStream, call->per_thread);
  return true;
}

/* ---- streams, events, graphs come and go ---- */

static bool created(const struct rp_taken *call, CUstream *stream, unsigned flags,
                    struct rp_cuda_order *out) {
  out->kind = RP_CUDA_STREAM_CREATE;
  out->flags = flags & CU_STREAM_NON_BLOCKING ? 0 : RP_CUDA_ORDER_BLOCKING;
  if (call->phase != RP_BEGINS && stream) out->object = HANDLE(*stream);
  return true;
}

static bool on_stream_create(const struct rp_taken *call, struct rp_cuda_order *out) {
  const cuStreamCreate_params *p = call->params;
  return created(call, p->phStream, p->Flags, out);
}

static bool on_stream_create_priority(const struct rp_taken *call, struct rp_cuda_order *out) {
  const cuStreamCreateWithPriority_params *p = call->params;
  return created(call, p->phStream, p->flags, out);
}

static bool on_stream_create_green(const struct rp_taken *call, struct rp_cuda_order *out) {
  const cuGreenCtxStreamCreate_params *p = call->params;
  (void)created(call, p->phStream, CU_STREAM_NON_BLOCKING, out);
  out->flags = RP_CUDA_ORDER_ELSEWHERE;
  return true;
}

static bool on_stream_destroy(const struct rp_taken *call, struct rp_cuda_order *out) {
  const cuStreamDestroy_v2_params *p = call->params;
  out->kind = RP_CUDA_STREAM_DESTROY;
  out->stream = HANDLE(p->hStream);
  return true;
}

static bool on_event_create(const struct rp_taken *call, struct rp_cuda_order *out) {
  const cuEventCreate_params *p = call->params;
  out->kind = RP_CUDA_EVENT_CREATE;
  if (call->phase != RP_BEGINS && p->phEvent) out->object = HANDLE(*p->phEvent);
  return true;
}

static bool on_event_destroy(const struct rp_taken *call, struct rp_cuda_order *out) {
  const cuEventDestroy_v2_params *p = call->params;
  out->kind = RP_CUDA_EVENT_DESTROY;
  out->object = HANDLE(p->hEvent);
  return true;
}

static bool on_graph_destroy(const struct rp_taken *call, struct rp_cuda_order *out) {
  const cuGraphExecDestroy_params *p = call->params;
  out->kind = RP_CUDA_GRAPH_DESTROY;
  out->object = HANDLE(p->hGraphExec);
  return true;
}

/* ---- events that others may record: other processes, graphs ---- */

static bool foreign(uint64_t event, struct rp_cuda_order *out) {
  out->kind = RP_CUDA_EVENT_FOREIGN;
  out->object = event;
  return event != 0;
}

static bool on_ipc_open(const struct rp_taken *call, struct rp_cuda_order *out) {
  const cuIpcOpenEventHandle_params *p = call->params;
  out->kind = RP_CUDA_EVENT_FOREIGN;
  if (call->phase != RP_BEGINS && p->phEvent) out->object = HANDLE(*p->phEvent);
  return true;
}

static bool on_ipc_get(const struct rp_taken *call, struct rp_cuda_order *out) {
  const cuIpcGetEventHandle_params *p = call->params;
  return foreign(HANDLE(p->event), out);
}

static bool on_add_record_node(const struct rp_taken *call, struct rp_cuda_order *out) {
  const cuGraphAddEventRecordNode_params *p = call->params;
  return foreign(HANDLE(p->event), out);
}

static bool on_record_node_set(const struct rp_taken *call, struct rp_cuda_order *out) {
  const cuGraphEventRecordNodeSetEvent_params *p = call->params;
  return foreign(HANDLE(p->event), out);
}

static bool on_exec_record_node_set(const struct rp_taken *call, struct rp_cuda_order *out) {
  const cuGraphExecEventRecordNodeSetEvent_params *p = call->params;
  return foreign(HANDLE(p->event), out);
}

static bool on_add_node(const struct rp_taken *call, struct rp_cuda_order *out) {
  const cuGraphAddNode_params *p = call->params;
  return foreign(rp_driver_node_event(p->nodeParams), out);
}

static bool on_add_node_v2(const struct rp_taken *call, struct rp_cuda_order *out) {
  const cuGraphAddNode_v2_params *p = call->params;
  return foreign(rp_driver_node_event(p->nodeParams), out);
}

static bool on_node_set(const struct rp_taken *call, struct rp_cuda_order *out) {
  const cuGraphNodeSetParams_params *p = call->params;
  return foreign(rp_driver_node_event(p->nodeParams), out);
}

static bool on_exec_node_set(const struct rp_taken *call, struct rp_cuda_order *out) {
  const cuGraphExecNodeSetParams_params *p = call->params;
  return foreign(rp_driver_node_event(p->nodeParams), out);
}

/* ---- the table ---- */

#define PLAIN(name, order)                                                                                   \
  { CUPTI_DRIVER_TRACE_CBID_##name, RP_ORDER, false, NULL, order }
#define TWINS(name, order)                                                                                   \
  {CUPTI_DRIVER_TRACE_CBID_##name, RP_ORDER, false, NULL, order}, {                                          \
    CUPTI_DRIVER_TRACE_CBID_##name##_ptsz, RP_ORDER, true, NULL, order                                       \
  }

const struct rp_wanted rp_wanted_order[] = {
    TWINS(cuEventRecord, on_record),
    TWINS(cuEventRecordWithFlags, on_record_flags),
    PLAIN(cuCtxRecordEvent, on_record_context),
    PLAIN(cuGreenCtxRecordEvent, on_record_context),
    TWINS(cuStreamWaitEvent, on_wait),
    PLAIN(cuCtxSynchronize, on_context_sync),
    PLAIN(cuCtxSynchronize_v2, on_context_sync_v2),
    TWINS(cuStreamSynchronize, on_stream_sync),
    TWINS(cuStreamQuery, on_stream_query),
    PLAIN(cuEventSynchronize, on_event_sync),
    PLAIN(cuEventQuery, on_event_query),
    TWINS(cuStreamBeginCapture, on_capture_begin),
    TWINS(cuStreamBeginCapture_v2, on_capture_begin),
    TWINS(cuStreamBeginCaptureToGraph, on_capture_begin),
    TWINS(cuStreamEndCapture, on_capture_end),
    PLAIN(cuStreamCreate, on_stream_create),
    PLAIN(cuStreamCreateWithPriority, on_stream_create_priority),
    PLAIN(cuGreenCtxStreamCreate, on_stream_create_green),
    PLAIN(cuStreamDestroy, on_stream_destroy),
    PLAIN(cuStreamDestroy_v2, on_stream_destroy),
    PLAIN(cuEventCreate, on_event_create),
    PLAIN(cuEventDestroy, on_event_destroy),
    PLAIN(cuEventDestroy_v2, on_event_destroy),
    PLAIN(cuGraphExecDestroy, on_graph_destroy),
    PLAIN(cuIpcOpenEventHandle, on_ipc_open),
    PLAIN(cuIpcGetEventHandle, on_ipc_get),
    PLAIN(cuGraphAddEventRecordNode, on_add_record_node),
    PLAIN(cuGraphEventRecordNodeSetEvent, on_record_node_set),
    PLAIN(cuGraphExecEventRecordNodeSetEvent, on_exec_record_node_set),
    PLAIN(cuGraphAddNode, on_add_node),
    PLAIN(cuGraphAddNode_v2, on_add_node_v2),
    PLAIN(cuGraphNodeSetParams, on_node_set),
    PLAIN(cuGraphExecNodeSetParams, on_exec_node_set),
};
const size_t rp_wanted_order_count = sizeof rp_wanted_order / sizeof rp_wanted_order[0];
