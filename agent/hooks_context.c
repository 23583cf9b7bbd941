/* Ends of contexts, which take streams and the program's memory with them, and access of devices to each
 * other's memory. Apart from telling the order of streams, nothing happens here unless buffers share memory.
 */
#include <stdint.h>

#include "agent/abi.h"
#include "agent/enforce.h"
#include "agent/hooks.h"
#include "agent/ordering.h"
#include "agent/state.h"
#include "cupti/device_memory.h"

static bool begin(void) {
  (void)rp_call_begin(RP_CALL_ALLOC);
  return rp_enforce_on() && rp_call_is_programs(RP_CALL_ALLOC);
}

/* The ends of primary contexts are left to CUPTI: which context it is cannot be asked for without making it.
 */
static void streams_end(uint64_t context) {
  if (rp_thread.depth[RP_CALL_ALLOC] == 1 && !rp_thread.busy) rp_ordering_context_ends(context);
}

#define CONTEXT(name, parameters, arguments, before, after)                                                  \
  RP_HOOK(int, name, parameters) {                                                                           \
    bool asks = begin();                                                                                     \
    if (asks) before;                                                                                        \
    int result = real_##name arguments;                                                                      \
    if (asks && result == RP_ABI_SUCCESS) after;                                                             \
    rp_call_end(RP_CALL_ALLOC);                                                                              \
    return result;                                                                                           \
  }
#define NOTHING (void)0

#define ENDS(name, parameters, arguments, ending)                                                            \
  RP_HOOK(int, name, parameters) {                                                                           \
    if (begin()) rp_enforce_context_ends(ending);                                                            \
    streams_end(ending);                                                                                     \
    int result = real_##name arguments;                                                                      \
    rp_call_end(RP_CALL_ALLOC);                                                                              \
    return result;                                                                                           \
  }

ENDS(cudaDeviceReset, (void), (), 0)
ENDS(cuCtxDestroy_v2, (void *context), (context), (uint64_t)(uintptr_t)context)
CONTEXT(cuDevicePrimaryCtxReset_v2, (int device), (device), rp_enforce_primary_ends(device, false), NOTHING)
CONTEXT(cuDevicePrimaryCtxRelease_v2, (int device), (device), NOTHING, rp_enforce_primary_ends(device, true))
CONTEXT(cudaDeviceEnablePeerAccess, (int owner, unsigned flags), (owner, flags), NOTHING,
        rp_enforce_peer(owner))
CONTEXT(cuCtxEnablePeerAccess, (void *owner, unsigned flags), (owner, flags), NOTHING,
        rp_enforce_peer(rp_device_of_context((uint64_t)(uintptr_t)owner)))

const struct rp_hook rp_hooks_context[] = {
    RP_HOOK_ENTRY(cudaDeviceReset),
    RP_HOOK_ENTRY(cuCtxDestroy_v2),
    RP_HOOK_ENTRY(cuDevicePrimaryCtxReset_v2),
    RP_HOOK_ENTRY(cuDevicePrimaryCtxRelease_v2),
    RP_HOOK_ENTRY(cudaDeviceEnablePeerAccess),
    RP_HOOK_ENTRY(cuCtxEnablePeerAccess),
};
const size_t rp_hooks_context_count = sizeof rp_hooks_context / sizeof rp_hooks_context[0];
