/* Calls that order work: event records, stream waits, synchronisation and questions that are answered "done",
 * captures, and streams, events and graphs that come and go. What each means is in agent/ordering.h. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "agent/abi.h"
#include "agent/enforce.h"
#include "agent/hooks.h"
#include "agent/hooks_graphs.h"
#include "agent/ordering.h"

#define HANDLE(pointer) ((uint64_t)(uintptr_t)(pointer))

/* `complete` is done after success: what the call made is known then. What it orders follows. */
#define ORDERS(name, parameters, arguments, complete, ...)                                                   \
  RP_HOOK(int, name, parameters) {                                                                           \
    struct rp_ordering_call made = {.call = {__VA_ARGS__}};                                                  \
    rp_enforce_settle();                                                                                     \
    rp_ordering_begin(&made);                                                                                \
    int result = real_##name arguments;                                                                      \
    if (result == RP_ABI_SUCCESS) complete;                                                                  \
    rp_ordering_end(&made, result == RP_ABI_SUCCESS);                                                        \
    return result;                                                                                           \
  }
#define NOTHING (void)0

/* ---- records and waits ---- */

#define RECORD_EXTERNAL 1u /* becomes a node of a graph that records the event at every launch */
#define WAIT_EXTERNAL 1u

#define RECORD(name, per_thread)                                                                             \
  ORDERS(name, (void *event, void *stream), (event, stream), NOTHING, .kind = RP_CUDA_RECORD,                \
         .stream = rp_hook_stream(stream, per_thread), .object = HANDLE(event))
#define RECORD_FLAGS(name, per_thread)                                                                       \
  ORDERS(name, (void *event, void *stream, unsigned flags), (event, stream, flags), NOTHING,                 \
         .kind = flags & RECORD_EXTERNAL ? RP_CUDA_EVENT_FOREIGN : RP_CUDA_RECORD,                           \
         .stream = rp_hook_stream(stream, per_thread), .object = HANDLE(event))
#define WAIT(name, per_thread)                                                                               \
  ORDERS(name, (void *stream, void *event, unsigned flags), (stream, event, flags), NOTHING,                 \
         .kind = flags & WAIT_EXTERNAL ? RP_CUDA_ORDER_NOTHING : RP_CUDA_WAIT,                               \
         .stream = rp_hook_stream(stream, per_thread), .object = HANDLE(event))

RECORD(cudaEventRecord, 0)
RECORD(cudaEventRecord_ptsz, 1)
RECORD(cuEventRecord, 0)
RECORD(cuEventRecord_ptsz, 1)
RECORD_FLAGS(cudaEventRecordWithFlags, 0)
RECORD_FLAGS(cudaEventRecordWithFlags_ptsz, 1)
RECORD_FLAGS(cuEventRecordWithFlags, 0)
RECORD_FLAGS(cuEventRecordWithFlags_ptsz, 1)
ORDERS(cuCtxRecordEvent, (void *context, void *event), (context, event), NOTHING,
       .kind = RP_CUDA_RECORD_CONTEXT, .object = HANDLE(event))
ORDERS(cuGreenCtxRecordEvent, (void *context, void *event), (context, event), NOTHING,
       .kind = RP_CUDA_RECORD_CONTEXT, .object = HANDLE(event))
WAIT(cudaStreamWaitEvent, 0)
WAIT(cudaStreamWaitEvent_ptsz, 1)
WAIT(cuStreamWaitEvent, 0)
WAIT(cuStreamWaitEvent_ptsz, 1)

/* ---- the host waits, or asks ---- */

#define STREAM_SYNC(name, per_thread, asks)                                                                  \
  ORDERS(name, (void *stream), (stream), NOTHING, .kind = RP_CUDA_SYNC_STREAM, .flags = asks,                \
         .stream = rp_hook_stream(stream, per_thread))
#define EVENT_SYNC(name, asks)                                                                               \
  ORDERS(name, (void *event), (event), NOTHING, .kind = RP_CUDA_SYNC_EVENT, .flags = asks,                   \
         .object = HANDLE(event))

STREAM_SYNC(cudaStreamSynchronize, 0, 0)
STREAM_SYNC(cudaStreamSynchronize_ptsz, 1, 0)
STREAM_SYNC(cuStreamSynchronize, 0, 0)
STREAM_SYNC(cuStreamSynchronize_ptsz, 1, 0)
STREAM_SYNC(cudaStreamQuery, 0, RP_CUDA_ORDER_QUERY)
STREAM_SYNC(cudaStreamQuery_ptsz, 1, RP_CUDA_ORDER_QUERY)
STREAM_SYNC(cuStreamQuery, 0, RP_CUDA_ORDER_QUERY)
STREAM_SYNC(cuStreamQuery_ptsz, 1, RP_CUDA_ORDER_QUERY)
EVENT_SYNC(cudaEventSynchronize, 0)
EVENT_SYNC(cuEventSynchronize, 0)
EVENT_SYNC(cudaEventQuery, RP_CUDA_ORDER_QUERY)
EVENT_SYNC(cuEventQuery, RP_CUDA_ORDER_QUERY)
ORDERS(cudaDeviceSynchronize, (void), (), NOTHING, .kind = RP_CUDA_SYNC_CONTEXT)
ORDERS(cuCtxSynchronize, (void), (), NOTHING, .kind = RP_CUDA_SYNC_CONTEXT)
ORDERS(cuCtxSynchronize_v2, (void *context), (context), NOTHING, .kind = RP_CUDA_SYNC_CONTEXT,
       .context = HANDLE(context))

/* ---- captures ---- */

#define CAPTURE_BEGIN(name, per_thread)                                                                      \
  ORDERS(name, (void *stream, int mode), (stream, mode), NOTHING, .kind = RP_CUDA_CAPTURE_BEGIN,             \
         .stream = rp_hook_stream(stream, per_thread))
#define CAPTURE_TO_GRAPH(name, per_thread)                                                                   \
  ORDERS(name, (void *stream, void *graph, const void *nodes, const void *edges, size_t count, int mode),    \
         (stream, graph, nodes, edges, count, mode), NOTHING, .kind = RP_CUDA_CAPTURE_BEGIN,                 \
         .stream = rp_hook_stream(stream, per_thread))
#define CAPTURE_END(name, per_thread)                                                                        \
  ORDERS(name, (void *stream, void *graph), (stream, graph), NOTHING, .kind = RP_CUDA_CAPTURE_END,           \
         .stream = rp_hook_stream(stream, per_thread))

CAPTURE_BEGIN(cudaStreamBeginCapture, 0)
CAPTURE_BEGIN(cudaStreamBeginCapture_ptsz, 1)
CAPTURE_BEGIN(cuStreamBeginCapture_v2, 0)
CAPTURE_BEGIN(cuStreamBeginCapture_v2_ptsz, 1)
CAPTURE_TO_GRAPH(cudaStreamBeginCaptureToGraph, 0)
CAPTURE_TO_GRAPH(cudaStreamBeginCaptureToGraph_ptsz, 1)
CAPTURE_TO_GRAPH(cuStreamBeginCaptureToGraph, 0)
CAPTURE_TO_GRAPH(cuStreamBeginCaptureToGraph_ptsz, 1)
CAPTURE_END(cudaStreamEndCapture, 0)
CAPTURE_END(cudaStreamEndCapture_ptsz, 1)
CAPTURE_END(cuStreamEndCapture, 0)
CAPTURE_END(cuStreamEndCapture_ptsz, 1)

/* ---- streams, events and graphs come and go ---- */

#define NON_BLOCKING 1u
#define MADE(out) made.call.object = (out) ? HANDLE(*(out)) : 0
#define BLOCKING_UNLESS(flags) ((flags)&NON_BLOCKING ? 0 : RP_CUDA_ORDER_BLOCKING)
#define ENDS(name, kind_, member)                                                                            \
  ORDERS(name, (void *object), (object), NOTHING, .kind = kind_, .member = HANDLE(object))

ORDERS(cudaStreamCreate, (void **out), (out), MADE(out), .kind = RP_CUDA_STREAM_CREATE,
       .flags = RP_CUDA_ORDER_BLOCKING)
ORDERS(cudaStreamCreateWithFlags, (void **out, unsigned flags), (out, flags), MADE(out),
       .kind = RP_CUDA_STREAM_CREATE, .flags = BLOCKING_UNLESS(flags))
ORDERS(cudaStreamCreateWithPriority, (void **out, unsigned flags, int priority), (out, flags, priority),
       MADE(out), .kind = RP_CUDA_STREAM_CREATE, .flags = BLOCKING_UNLESS(flags))
ORDERS(cuStreamCreate, (void **out, unsigned flags), (out, flags), MADE(out), .kind = RP_CUDA_STREAM_CREATE,
       .flags = BLOCKING_UNLESS(flags))
ORDERS(cuStreamCreateWithPriority, (void **out, unsigned flags, int priority), (out, flags, priority),
       MADE(out), .kind = RP_CUDA_STREAM_CREATE, .flags = BLOCKING_UNLESS(flags))
ORDERS(cuGreenCtxStreamCreate, (void **out, void *context, unsigned flags, int priority),
       (out, context, flags, priority), MADE(out), .kind = RP_CUDA_STREAM_CREATE,
       .flags = RP_CUDA_ORDER_ELSEWHERE)
ENDS(cudaStreamDestroy, RP_CUDA_STREAM_DESTROY, stream)
ENDS(cuStreamDestroy_v2, RP_CUDA_STREAM_DESTROY, stream)
ORDERS(cudaEventCreate, (void **out), (out), MADE(out), .kind = RP_CUDA_EVENT_CREATE)
ORDERS(cudaEventCreateWithFlags, (void **out, unsigned flags), (out, flags), MADE(out),
       .kind = RP_CUDA_EVENT_CREATE)
ORDERS(cuEventCreate, (void **out, unsigned flags), (out, flags), MADE(out), .kind = RP_CUDA_EVENT_CREATE)
ENDS(cudaEventDestroy, RP_CUDA_EVENT_DESTROY, object)
ENDS(cuEventDestroy_v2, RP_CUDA_EVENT_DESTROY, object)
ENDS(cudaGraphExecDestroy, RP_CUDA_GRAPH_DESTROY, object)
ENDS(cuGraphExecDestroy, RP_CUDA_GRAPH_DESTROY, object)

/* ---- events that others may record: other processes, graphs ---- */

/* By the name of the file that the function lies in; without one it is taken for the newest. */
static int runtime_major(void *function) {
  Dl_info info;
  const char *at = dladdr(function, &info) && info.dli_fname ? strstr(info.dli_fname, ".so.") : NULL;
  return at ? atoi(at + 4) : 13;
}

#define FOREIGN(name, parameters, arguments, event)                                                          \
  ORDERS(name, parameters, arguments, NOTHING, .kind = RP_CUDA_EVENT_FOREIGN, .object = (event))

ORDERS(cudaIpcOpenEventHandle, (void **out, struct rp_abi_ipc_event handle), (out, handle), MADE(out),
       .kind = RP_CUDA_EVENT_FOREIGN)
ORDERS(cuIpcOpenEventHandle, (void **out, struct rp_abi_ipc_event handle), (out, handle), MADE(out),
       .kind = RP_CUDA_EVENT_FOREIGN)
FOREIGN(cudaIpcGetEventHandle, (void *handle, void *event), (handle, event), HANDLE(event))
FOREIGN(cuIpcGetEventHandle, (void *handle, void *event), (handle, event), HANDLE(event))
FOREIGN(cudaGraphAddEventRecordNode, (void **node, void *graph, const void *nodes, size_t count, void *event),
        (node, graph, nodes, count, event), HANDLE(event))
FOREIGN(cuGraphAddEventRecordNode, (void **node, void *graph, const void *nodes, size_t count, void *event),
        (node, graph, nodes, count, event), HANDLE(event))
FOREIGN(cudaGraphEventRecordNodeSetEvent, (void *node, void *event), (node, event), HANDLE(event))
FOREIGN(cuGraphEventRecordNodeSetEvent, (void *node, void *event), (node, event), HANDLE(event))
FOREIGN(cudaGraphExecEventRecordNodeSetEvent, (void *graph, void *node, void *event), (graph, node, event),
        HANDLE(event))
FOREIGN(cuGraphExecEventRecordNodeSetEvent, (void *graph, void *node, void *event), (graph, node, event),
        HANDLE(event))
/* A node of any kind: the event that it records, and what it names is held. */
static uint64_t driver_node(const void *params) {
  rp__hold_driver_node(params);
  return rp_driver_node_event(params);
}

static uint64_t runtime_node(const void *params, void *function) {
  rp__hold_runtime_node(params, function);
  return rp_runtime_node_event(params);
}

FOREIGN(cuGraphAddNode, (void **node, void *graph, const void *nodes, size_t count, void *params),
        (node, graph, nodes, count, params), driver_node(params))
FOREIGN(cuGraphAddNode_v2,
        (void **node, void *graph, const void *nodes, const void *edges, size_t count, void *params),
        (node, graph, nodes, edges, count, params), driver_node(params))
FOREIGN(cuGraphNodeSetParams, (void *node, void *params), (node, params), driver_node(params))
FOREIGN(cuGraphExecNodeSetParams, (void *graph, void *node, void *params), (graph, node, params),
        driver_node(params))
/* CUDA 13 put the edges into a function that had none. */
ORDERS(cudaGraphAddNode,
       (void **node, void *graph, const void *nodes, uintptr_t edges_or_count, uintptr_t count_or_params,
        void *params_or_nothing),
       (node, graph, nodes, edges_or_count, count_or_params, params_or_nothing), NOTHING,
       .kind = RP_CUDA_EVENT_FOREIGN,
       .object = runtime_node(runtime_major((void *)real_cudaGraphAddNode) >= 13 ? params_or_nothing
                                                                                 : (void *)count_or_params,
                              (void *)real_cudaGraphAddNode))
FOREIGN(cudaGraphAddNode_v2,
        (void **node, void *graph, const void *nodes, const void *edges, size_t count, void *params),
        (node, graph, nodes, edges, count, params), runtime_node(params, (void *)real_cudaGraphAddNode_v2))
FOREIGN(cudaGraphNodeSetParams, (void *node, void *params), (node, params),
        runtime_node(params, (void *)real_cudaGraphNodeSetParams))
FOREIGN(cudaGraphExecNodeSetParams, (void *graph, void *node, void *params), (graph, node, params),
        runtime_node(params, (void *)real_cudaGraphExecNodeSetParams))

const struct rp_hook rp_hooks_order[] = {
    RP_HOOK_ENTRY(cudaEventRecord),
    RP_HOOK_ENTRY(cudaEventRecord_ptsz),
    RP_HOOK_ENTRY(cuEventRecord),
    RP_HOOK_ENTRY(cuEventRecord_ptsz),
    RP_HOOK_ENTRY(cudaEventRecordWithFlags),
    RP_HOOK_ENTRY(cudaEventRecordWithFlags_ptsz),
    RP_HOOK_ENTRY(cuEventRecordWithFlags),
    RP_HOOK_ENTRY(cuEventRecordWithFlags_ptsz),
    RP_HOOK_ENTRY(cuCtxRecordEvent),
    RP_HOOK_ENTRY(cuGreenCtxRecordEvent),
    RP_HOOK_ENTRY(cudaStreamWaitEvent),
    RP_HOOK_ENTRY(cudaStreamWaitEvent_ptsz),
    RP_HOOK_ENTRY(cuStreamWaitEvent),
    RP_HOOK_ENTRY(cuStreamWaitEvent_ptsz),
    RP_HOOK_ENTRY(cudaStreamSynchronize),
    RP_HOOK_ENTRY(cudaStreamSynchronize_ptsz),
    RP_HOOK_ENTRY(cuStreamSynchronize),
    RP_HOOK_ENTRY(cuStreamSynchronize_ptsz),
    RP_HOOK_ENTRY(cudaStreamQuery),
    RP_HOOK_ENTRY(cudaStreamQuery_ptsz),
    RP_HOOK_ENTRY(cuStreamQuery),
    RP_HOOK_ENTRY(cuStreamQuery_ptsz),
    RP_HOOK_ENTRY(cudaEventSynchronize),
    RP_HOOK_ENTRY(cuEventSynchronize),
    RP_HOOK_ENTRY(cudaEventQuery),
    RP_HOOK_ENTRY(cuEventQuery),
    RP_HOOK_ENTRY(cudaDeviceSynchronize),
    RP_HOOK_ENTRY(cuCtxSynchronize),
    RP_HOOK_ENTRY(cuCtxSynchronize_v2),
    RP_HOOK_ENTRY(cudaStreamBeginCapture),
    RP_HOOK_ENTRY(cudaStreamBeginCapture_ptsz),
    RP_HOOK_ENTRY(cuStreamBeginCapture_v2),
    RP_HOOK_ENTRY(cuStreamBeginCapture_v2_ptsz),
    RP_HOOK_ENTRY(cudaStreamBeginCaptureToGraph),
    RP_HOOK_ENTRY(cudaStreamBeginCaptureToGraph_ptsz),
    RP_HOOK_ENTRY(cuStreamBeginCaptureToGraph),
    RP_HOOK_ENTRY(cuStreamBeginCaptureToGraph_ptsz),
    RP_HOOK_ENTRY(cudaStreamEndCapture),
    RP_HOOK_ENTRY(cudaStreamEndCapture_ptsz),
    RP_HOOK_ENTRY(cuStreamEndCapture),
    RP_HOOK_ENTRY(cuStreamEndCapture_ptsz),
    RP_HOOK_ENTRY(cudaStreamCreate),
    RP_HOOK_ENTRY(cudaStreamCreateWithFlags),
    RP_HOOK_ENTRY(cudaStreamCreateWithPriority),
    RP_HOOK_ENTRY(cuStreamCreate),
    RP_HOOK_ENTRY(cuStreamCreateWithPriority),
    RP_HOOK_ENTRY(cuGreenCtxStreamCreate),
    RP_HOOK_ENTRY(cudaStreamDestroy),
    RP_HOOK_ENTRY(cuStreamDestroy_v2),
    RP_HOOK_ENTRY(cudaEventCreate),
    RP_HOOK_ENTRY(cudaEventCreateWithFlags),
    RP_HOOK_ENTRY(cuEventCreate),
    RP_HOOK_ENTRY(cudaEventDestroy),
    RP_HOOK_ENTRY(cuEventDestroy_v2),
    RP_HOOK_ENTRY(cudaGraphExecDestroy),
    RP_HOOK_ENTRY(cuGraphExecDestroy),
    RP_HOOK_ENTRY(cudaIpcOpenEventHandle),
    RP_HOOK_ENTRY(cuIpcOpenEventHandle),
    RP_HOOK_ENTRY(cudaIpcGetEventHandle),
    RP_HOOK_ENTRY(cuIpcGetEventHandle),
    RP_HOOK_ENTRY(cudaGraphAddEventRecordNode),
    RP_HOOK_ENTRY(cuGraphAddEventRecordNode),
    RP_HOOK_ENTRY(cudaGraphEventRecordNodeSetEvent),
    RP_HOOK_ENTRY(cuGraphEventRecordNodeSetEvent),
    RP_HOOK_ENTRY(cudaGraphExecEventRecordNodeSetEvent),
    RP_HOOK_ENTRY(cuGraphExecEventRecordNodeSetEvent),
    RP_HOOK_ENTRY(cuGraphAddNode),
    RP_HOOK_ENTRY(cuGraphAddNode_v2),
    RP_HOOK_ENTRY(cuGraphNodeSetParams),
    RP_HOOK_ENTRY(cuGraphExecNodeSetParams),
    RP_HOOK_ENTRY(cudaGraphAddNode),
    RP_HOOK_ENTRY(cudaGraphAddNode_v2),
    RP_HOOK_ENTRY(cudaGraphNodeSetParams),
    RP_HOOK_ENTRY(cudaGraphExecNodeSetParams),
};
const size_t rp_hooks_order_count = sizeof rp_hooks_order / sizeof rp_hooks_order[0];
