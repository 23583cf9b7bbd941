/* Allocations and frees, of the runtime and of the driver. An allocation is told after the call and only if
 * it succeeded, a free before it. While one of these is in the call stack, CUPTI's view of it is left aside.
 */
#include <stddef.h>

#include "agent/abi.h"
#include "agent/agent.h"
#include "agent/hooks.h"
#include "agent/state.h"

static void tell(enum rp_event_kind kind, uint64_t address, uint64_t bytes, uint64_t stream,
                 enum rp_alloc_api api) {
  uint64_t started = rp_cost_begin();
  const struct rp_cuda_op op = {
      .kind = kind, .address = address, .bytes = bytes, .stream = stream, .aux = api};
  if (address) rp_agent_op(&op, RP_SOURCE_INTERPOSER);
  rp_cost_end(started);
}

/* An allocation whose address the call writes to *out. */
#define ALLOCATION(name, parameters, arguments, out, size, api)                                              \
  RP_HOOK(int, name, parameters) {                                                                           \
    bool ours = rp_call_begin(RP_CALL_ALLOC);                                                                \
    if (ours) rp_hook_look_for_modules();                                                                    \
    int result = real_##name arguments;                                                                      \
    if (ours && result == RP_ABI_SUCCESS && (out))                                                           \
      tell(RP_EVENT_ALLOC, (uint64_t)(uintptr_t) * (void **)(out), (size), 0, (api));                        \
    rp_call_end(RP_CALL_ALLOC);                                                                              \
    return result;                                                                                           \
  }

#define RELEASE(name, parameters, arguments, address, stream, api)                                           \
  RP_HOOK(int, name, parameters) {                                                                           \
    if (rp_call_begin(RP_CALL_ALLOC))                                                                        \
      tell(RP_EVENT_FREE, (uint64_t)(uintptr_t)(address), 0, (stream), (api));                               \
    int result = real_##name arguments;                                                                      \
    rp_call_end(RP_CALL_ALLOC);                                                                              \
    return result;                                                                                           \
  }

ALLOCATION(cudaMalloc, (void **out, size_t bytes), (out, bytes), out, bytes, RP_ALLOC_MALLOC)
ALLOCATION(cudaMallocPitch, (void **out, size_t *pitch, size_t width, size_t height),
           (out, pitch, width, height), out, pitch ? *pitch *height : width *height, RP_ALLOC_MALLOC)
ALLOCATION(cudaMallocManaged, (void **out, size_t bytes, unsigned flags), (out, bytes, flags), out, bytes,
           RP_ALLOC_MANAGED)
ALLOCATION(cudaMallocAsync, (void **out, size_t bytes, void *stream), (out, bytes, stream), out, bytes,
           RP_ALLOC_ASYNC)
ALLOCATION(cudaMallocAsync_ptsz, (void **out, size_t bytes, void *stream), (out, bytes, stream), out, bytes,
           RP_ALLOC_ASYNC)
ALLOCATION(cudaMallocFromPoolAsync, (void **out, size_t bytes, void *pool, void *stream),
           (out, bytes, pool, stream), out, bytes, RP_ALLOC_ASYNC)
ALLOCATION(cudaMallocFromPoolAsync_ptsz, (void **out, size_t bytes, void *pool, void *stream),
           (out, bytes, pool, stream), out, bytes, RP_ALLOC_ASYNC)
ALLOCATION(cuMemAlloc_v2, (uint64_t * out, size_t bytes), (out, bytes), out, bytes, RP_ALLOC_MALLOC)
ALLOCATION(cuMemAllocAsync, (uint64_t * out, size_t bytes, void *stream), (out, bytes, stream), out, bytes,
           RP_ALLOC_ASYNC)
ALLOCATION(cuMemAllocAsync_ptsz, (uint64_t * out, size_t bytes, void *stream), (out, bytes, stream), out,
           bytes, RP_ALLOC_ASYNC)

RELEASE(cudaFree, (void *address), (address), address, 0, RP_ALLOC_MALLOC)
RELEASE(cudaFreeAsync, (void *address, void *stream), (address, stream), address, rp_hook_stream(stream, 0),
        RP_ALLOC_ASYNC)
RELEASE(cudaFreeAsync_ptsz, (void *address, void *stream), (address, stream), address,
        rp_hook_stream(stream, 1), RP_ALLOC_ASYNC)
RELEASE(cuMemFree_v2, (uint64_t address), (address), address, 0, RP_ALLOC_MALLOC)
RELEASE(cuMemFreeAsync, (uint64_t address, void *stream), (address, stream), address,
        rp_hook_stream(stream, 0), RP_ALLOC_ASYNC)
RELEASE(cuMemFreeAsync_ptsz, (uint64_t address, void *stream), (address, stream), address,
        rp_hook_stream(stream, 1), RP_ALLOC_ASYNC)

const struct rp_hook rp_hooks_memory[] = {
    RP_HOOK_ENTRY(cudaMalloc),
    RP_HOOK_ENTRY(cudaMallocPitch),
    RP_HOOK_ENTRY(cudaMallocManaged),
    RP_HOOK_ENTRY(cudaMallocAsync),
    RP_HOOK_ENTRY(cudaMallocAsync_ptsz),
    RP_HOOK_ENTRY(cudaMallocFromPoolAsync),
    RP_HOOK_ENTRY(cudaMallocFromPoolAsync_ptsz),
    RP_HOOK_ENTRY(cuMemAlloc_v2),
    RP_HOOK_ENTRY(cuMemAllocAsync),
    RP_HOOK_ENTRY(cuMemAllocAsync_ptsz),
    RP_HOOK_ENTRY(cudaFree),
    RP_HOOK_ENTRY(cudaFreeAsync),
    RP_HOOK_ENTRY(cudaFreeAsync_ptsz),
    RP_HOOK_ENTRY(cuMemFree_v2),
    RP_HOOK_ENTRY(cuMemFreeAsync),
    RP_HOOK_ENTRY(cuMemFreeAsync_ptsz),
};
const size_t rp_hooks_memory_count = sizeof rp_hooks_memory / sizeof rp_hooks_memory[0];
