/* Ends of contexts, which take the program's memory with them, and access of devices to each other's memory.
 * Only where buffers share memory does anything happen here. */
#include <stdint.h>

#include "agent/abi.h"
#include "agent/enforce.h"
#include "agent/hooks.h"
#include "agent/state.h"
#include "cupti/device_memory.h"

static bool begin(void) {
  (void)rp_call_begin(RP_CALL_ALLOC);
  return rp_enforce_on() && rp_call_is_programs(RP_CALL_ALLOC);
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

CONTEXT(cudaDeviceReset, (void), (), rp_enforce_context_ends(0), NOTHING)
CONTEXT(cuCtxDestroy_v2, (void *context), (context), rp_enforce_context_ends((uint64_t)(uintptr_t)context),
        NOTHING)
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
