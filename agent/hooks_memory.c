/* Allocations and frees, of the runtime and of the driver. An allocation is told after the call and only if
 * it succeeded, a free before it. While one of these is in the call stack, CUPTI's view of it is left aside.
 * Where buffers share memory, candidates come from the pools and the driver is not asked. */
#include <stdatomic.h>
#include <stddef.h>

#include "agent/abi.h"
#include "agent/agent.h"
#include "agent/enforce.h"
#include "agent/hooks.h"
#include "agent/requests.h"
#include "agent/state.h"

static void tell(enum rp_event_kind kind, uint64_t address, uint64_t bytes, uint64_t stream,
                 enum rp_alloc_api api) {
  uint64_t started = rp_cost_begin();
  const struct rp_cuda_op op = {
      .kind = kind, .address = address, .bytes = bytes, .stream = stream, .aux = api};
  if (address) rp_agent_op(&op, RP_SOURCE_INTERPOSER);
  rp_cost_end(started);
}

static _Atomic uint64_t refused_count, refused_bytes;

void rp_hooks_refused(uint64_t *count, uint64_t *last_bytes) {
  *count = atomic_load_explicit(&refused_count, memory_order_relaxed);
  *last_bytes = atomic_load_explicit(&refused_bytes, memory_order_relaxed);
}

/* What the program is told, in the end. */
static void note_refusal(int result, uint64_t bytes) {
  if (result != RP_ABI_OUT_OF_MEMORY) return;
  atomic_fetch_add_explicit(&refused_count, 1, memory_order_relaxed);
  atomic_store_explicit(&refused_bytes, bytes, memory_order_relaxed);
}

/* The driver has no memory for the call: is it worth making again? */
static bool found_more(int result) {
  return result == RP_ABI_OUT_OF_MEMORY && rp_enforce_on() && rp_call_is_programs(RP_CALL_ALLOC) &&
         rp_enforce_memory_short();
}

/* Made again, a call of the runtime leaves no error behind. */
static int again(int result, const char *name, void *function) {
  if (result == RP_ABI_SUCCESS) rp_hook_forget_error(name, function);
  return result;
}

/* An allocation whose address the call writes to *out. */
#define ALLOCATION(name, parameters, arguments, out, size, api)                                              \
  RP_HOOK(int, name, parameters) {                                                                           \
    bool ours = rp_call_begin(RP_CALL_ALLOC);                                                                \
    if (ours) rp_hook_look_for_modules();                                                                    \
    int result = real_##name arguments;                                                                      \
    if (found_more(result)) result = again(real_##name arguments, #name, (void *)real_##name);               \
    if (ours) note_refusal(result, (size));                                                                  \
    if (ours && result == RP_ABI_SUCCESS && (out))                                                           \
      tell(RP_EVENT_ALLOC, (uint64_t)(uintptr_t) * (void **)(out), (size), 0, (api));                        \
    rp_call_end(RP_CALL_ALLOC);                                                                              \
    return result;                                                                                           \
  }

static bool asks(void) {
  return rp_enforce_on() && rp_call_is_programs(RP_CALL_ALLOC);
}

/* ---- pools: whose calls they are ---- */

static int (*_Atomic real_cudaMalloc)(void **, size_t);
static int (*_Atomic real_cudaFree)(void *);
static int (*_Atomic real_cuMemAlloc_v2)(uint64_t *, size_t);
static int (*_Atomic real_cuMemFree_v2)(uint64_t);

static bool usurped(void *function, const char *name, const char *library) {
  const char *by = rp_hook_usurper(function, name, library);
  if (by) rp_enforce_stand_aside(name, by);
  return by != NULL;
}

/* Somebody may stand between the program and the library, and count what is allocated: then he must see all
 * of it, and nothing is pooled. Looked at again whenever modules were loaded. */
static bool between(bool runtime) {
  static _Atomic uint64_t looked[2]; /* one more than the number of changes */
  static _Atomic bool found[2];
  uint64_t now = rp_interpose_module_changes() + 1;
  if (atomic_load_explicit(&looked[runtime], memory_order_acquire) == now)
    return atomic_load_explicit(&found[runtime], memory_order_relaxed);
  bool usurper = runtime ? usurped((void *)real_cudaMalloc, "cudaMalloc", "libcudart.so") ||
                               usurped((void *)real_cudaFree, "cudaFree", "libcudart.so")
                         : usurped((void *)real_cuMemAlloc_v2, "cuMemAlloc_v2", "libcuda.so") ||
                               usurped((void *)real_cuMemFree_v2, "cuMemFree_v2", "libcuda.so");
  atomic_store_explicit(&found[runtime], usurper, memory_order_relaxed);
  atomic_store_explicit(&looked[runtime], now, memory_order_release);
  return usurper;
}

/* ---- pools: allocating ---- */

/* True: *out is memory of a pool. `runtime` is cudaMalloc itself, NULL for the driver's call. */
static bool from_pool(uint64_t *out, size_t bytes, bool tells, void *runtime) {
  uint64_t started = rp_cost_begin();
  bool taken = false;
  if (asks() && out && rp_enforce_may_want(bytes)) {
    if (tells) rp_hook_look_for_modules();
    rp_enforce_free_late();
    if (runtime) rp_hook_make_context(runtime);
    taken = !between(runtime != NULL) && rp_enforce_allocate(bytes, out);
    if (taken && tells) rp_request_driver_initialised(); /* without CUPTI nobody else says so */
  }
  rp_cost_end(started);
  return taken;
}

#define POOLED(name, type, runtime)                                                                          \
  RP_HOOK(int, name, (type * out, size_t bytes)) {                                                           \
    bool ours = rp_call_begin(RP_CALL_ALLOC);                                                                \
    int result = RP_ABI_SUCCESS;                                                                             \
    uint64_t address = 0;                                                                                    \
    if (from_pool(out ? &address : NULL, bytes, ours, (runtime) ? (void *)real_##name : NULL)) {             \
      *out = (type)(uintptr_t)address;                                                                       \
    } else {                                                                                                 \
      if (ours) rp_hook_look_for_modules();                                                                  \
      result = real_##name(out, bytes);                                                                      \
      if (found_more(result)) result = again(real_##name(out, bytes), #name, (void *)real_##name);           \
      if (ours) note_refusal(result, bytes);                                                                 \
      if (ours && result == RP_ABI_SUCCESS && out)                                                           \
        tell(RP_EVENT_ALLOC, (uint64_t)(uintptr_t)*out, bytes, 0, RP_ALLOC_MALLOC);                          \
    }                                                                                                        \
    rp_call_end(RP_CALL_ALLOC);                                                                              \
    return result;                                                                                           \
  }

/* ---- pools: freeing ---- */

/* What is to be done about a free. Of what was a pool's and is freed twice the driver knows nothing: it
 * answers, and the runtime keeps the error, as without us. */
static enum rp_enforce_freed to_pool(uint64_t address, uint64_t stream) {
  if (!address || !asks()) return RP_ENFORCE_NOT_OURS;
  uint64_t started = rp_cost_begin();
  rp_enforce_free_late();
  enum rp_enforce_freed freed = rp_enforce_free(address, stream);
  rp_cost_end(started);
  return freed;
}

#define RELEASE(name, parameters, arguments, address, stream, api)                                           \
  RP_HOOK(int, name, parameters) {                                                                           \
    bool ours = rp_call_begin(RP_CALL_ALLOC);                                                                \
    enum rp_enforce_freed freed = to_pool((uint64_t)(uintptr_t)(address), (stream));                         \
    if (ours && freed == RP_ENFORCE_NOT_OURS)                                                                \
      tell(RP_EVENT_FREE, (uint64_t)(uintptr_t)(address), 0, (stream), (api));                               \
    int result = freed == RP_ENFORCE_FREED ? RP_ABI_SUCCESS : real_##name arguments;                         \
    rp_call_end(RP_CALL_ALLOC);                                                                              \
    return result;                                                                                           \
  }

typedef void *runtime_pointer;
typedef uint64_t driver_pointer;
POOLED(cudaMalloc, runtime_pointer, true)
POOLED(cuMemAlloc_v2, driver_pointer, false)
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
