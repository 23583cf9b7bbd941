/* Event records, stream waits and host synchronisation: what orders work. Records and waits are told before
 * the call, synchronisation after it returned. */
#include <stddef.h>

#include "agent/abi.h"
#include "agent/agent.h"
#include "agent/hooks.h"
#include "agent/state.h"

static void tell(enum rp_event_kind kind, uint64_t address, uint64_t stream, uint64_t aux) {
  uint64_t started = rp_cost_begin();
  const struct rp_cuda_op op = {.kind = kind, .address = address, .stream = stream, .aux = aux};
  rp_agent_op(&op, RP_SOURCE_INTERPOSER);
  rp_cost_end(started);
}

#define HANDLE(pointer) ((uint64_t)(uintptr_t)(pointer))

#define BEFORE(name, parameters, arguments, kind, stream, aux)                                               \
  RP_HOOK(int, name, parameters) {                                                                           \
    if (rp_call_begin(RP_CALL_ORDER)) tell((kind), 0, (stream), (aux));                                      \
    int result = real_##name arguments;                                                                      \
    rp_call_end(RP_CALL_ORDER);                                                                              \
    return result;                                                                                           \
  }

#define AFTER_SYNC(name, parameters, arguments, address, stream, aux)                                        \
  RP_HOOK(int, name, parameters) {                                                                           \
    bool ours = rp_call_begin(RP_CALL_ORDER);                                                                \
    int result = real_##name arguments;                                                                      \
    if (ours && result == RP_ABI_SUCCESS) tell(RP_EVENT_HOST_SYNC, (address), (stream), (aux));              \
    rp_call_end(RP_CALL_ORDER);                                                                              \
    return result;                                                                                           \
  }

#define RECORD(name, per_thread)                                                                             \
  BEFORE(name, (void *event, void *stream), (event, stream), RP_EVENT_EVENT_RECORD,                          \
         rp_hook_stream(stream, per_thread), HANDLE(event))
#define RECORD_FLAGS(name, per_thread)                                                                       \
  BEFORE(name, (void *event, void *stream, unsigned flags), (event, stream, flags), RP_EVENT_EVENT_RECORD,   \
         rp_hook_stream(stream, per_thread), HANDLE(event))
#define WAIT(name, per_thread)                                                                               \
  BEFORE(name, (void *stream, void *event, unsigned flags), (stream, event, flags), RP_EVENT_STREAM_WAIT,    \
         rp_hook_stream(stream, per_thread), HANDLE(event))
#define STREAM_SYNC(name, per_thread)                                                                        \
  AFTER_SYNC(name, (void *stream), (stream), 0, rp_hook_stream(stream, per_thread), 1)

RECORD(cudaEventRecord, 0)
RECORD(cudaEventRecord_ptsz, 1)
RECORD(cuEventRecord, 0)
RECORD(cuEventRecord_ptsz, 1)
RECORD_FLAGS(cudaEventRecordWithFlags, 0)
RECORD_FLAGS(cudaEventRecordWithFlags_ptsz, 1)
WAIT(cudaStreamWaitEvent, 0)
WAIT(cudaStreamWaitEvent_ptsz, 1)
WAIT(cuStreamWaitEvent, 0)
WAIT(cuStreamWaitEvent_ptsz, 1)
STREAM_SYNC(cudaStreamSynchronize, 0)
STREAM_SYNC(cudaStreamSynchronize_ptsz, 1)
STREAM_SYNC(cuStreamSynchronize, 0)
STREAM_SYNC(cuStreamSynchronize_ptsz, 1)
AFTER_SYNC(cudaDeviceSynchronize, (void), (), 0, 0, 0)
AFTER_SYNC(cuCtxSynchronize, (void), (), 0, 0, 0)
AFTER_SYNC(cudaEventSynchronize, (void *event), (event), HANDLE(event), 0, 2)
AFTER_SYNC(cuEventSynchronize, (void *event), (event), HANDLE(event), 0, 2)

const struct rp_hook rp_hooks_order[] = {
    RP_HOOK_ENTRY(cudaEventRecord),
    RP_HOOK_ENTRY(cudaEventRecord_ptsz),
    RP_HOOK_ENTRY(cuEventRecord),
    RP_HOOK_ENTRY(cuEventRecord_ptsz),
    RP_HOOK_ENTRY(cudaEventRecordWithFlags),
    RP_HOOK_ENTRY(cudaEventRecordWithFlags_ptsz),
    RP_HOOK_ENTRY(cudaStreamWaitEvent),
    RP_HOOK_ENTRY(cudaStreamWaitEvent_ptsz),
    RP_HOOK_ENTRY(cuStreamWaitEvent),
    RP_HOOK_ENTRY(cuStreamWaitEvent_ptsz),
    RP_HOOK_ENTRY(cudaStreamSynchronize),
    RP_HOOK_ENTRY(cudaStreamSynchronize_ptsz),
    RP_HOOK_ENTRY(cuStreamSynchronize),
    RP_HOOK_ENTRY(cuStreamSynchronize_ptsz),
    RP_HOOK_ENTRY(cudaDeviceSynchronize),
    RP_HOOK_ENTRY(cuCtxSynchronize),
    RP_HOOK_ENTRY(cudaEventSynchronize),
    RP_HOOK_ENTRY(cuEventSynchronize),
};
const size_t rp_hooks_order_count = sizeof rp_hooks_order / sizeof rp_hooks_order[0];
