/* Launches, copies and memsets. Where buffers share memory these wrappers ask the guards before the call, and
 * CUPTI's view of it is left aside. Otherwise they are CUPTI's to report; the wrappers report only while
 * there is no CUPTI, and look the layout of a kernel up ahead of its first launch, where asking the driver is
 * free of risk. */
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "agent/abi.h"
#include "agent/agent.h"
#include "agent/enforce.h"
#include "agent/hooks.h"
#include "agent/ordering.h"
#include "agent/state.h"

typedef int get_function(void **function, const void *symbol);

/* Host symbols of kernels and the driver's handles for them; direct-mapped, a lost entry is asked for
 * again. */
#define HOST_SYMBOLS 1024 /* power of two */
struct host_symbol {
  _Atomic uint64_t symbol;
  _Atomic uint64_t function;
};
static struct host_symbol host_symbols[HOST_SYMBOLS];

static struct host_symbol *host_symbol_slot(const void *symbol) {
  return &host_symbols[((uint64_t)(uintptr_t)symbol * 0x9e3779b97f4a7c15u >> 40) & (HOST_SYMBOLS - 1)];
}

/* cudaGetFuncBySymbol of the runtime that this launch goes to; looked up once, NULL if it has none. */
static get_function *resolver(void *launch_function) {
  static _Atomic(void *) found;
  static _Atomic bool looked;
  if (atomic_load_explicit(&looked, memory_order_acquire))
    return (get_function *)atomic_load_explicit(&found, memory_order_relaxed);
  Dl_info info;
  void *handle = dladdr(launch_function, &info) && info.dli_fname
                     ? dlopen(info.dli_fname, RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD)
                     : NULL;
  void *function = handle ? dlsym(handle, "cudaGetFuncBySymbol") : NULL;
  if (handle) (void)dlclose(handle);
  atomic_store_explicit(&found, function, memory_order_relaxed);
  atomic_store_explicit(&looked, true, memory_order_release);
  return (get_function *)function;
}

static bool known_host_symbol(struct host_symbol *entry, uint64_t key, uint64_t *function) {
  if (atomic_load_explicit(&entry->symbol, memory_order_acquire) != key) return false;
  *function = atomic_load_explicit(&entry->function, memory_order_acquire);
  return atomic_load_explicit(&entry->symbol, memory_order_acquire) == key;
}

static void remember_host_symbol(struct host_symbol *entry, uint64_t key, uint64_t function) {
  atomic_store_explicit(&entry->symbol, 0, memory_order_release);
  atomic_store_explicit(&entry->function, function, memory_order_release);
  atomic_store_explicit(&entry->symbol, key, memory_order_release);
}

/* Handle behind a host symbol, 0 if it cannot be told. The first time its layout is looked up too. With CUPTI
 * the answer is not needed, so a stream that is being captured is left in peace. */
static uint64_t function_of(const void *symbol, void *launch_function, uint64_t stream) {
  uint64_t key = (uint64_t)(uintptr_t)symbol, function = 0;
  struct host_symbol *entry = host_symbol_slot(symbol);
  if (known_host_symbol(entry, key, &function)) return function;
  if (rp_cupti_active() && rp_driver_stream_capturing(stream)) return 0;
  get_function *get = resolver(launch_function);
  void *handle = NULL;
  if (get && get(&handle, symbol) == RP_ABI_SUCCESS && handle) {
    function = (uint64_t)(uintptr_t)handle;
    rp_launch_learn(function);
  }
  remember_host_symbol(entry, key, function);
  return function;
}

/* ---- one call ---- */

/* One interposed call, on its stack. Most calls name no receive buffer and use none of it but the flags. */
struct call {
  bool asks;    /* enforce: the guards are asked here, and CUPTI's view of the call is left aside */
  bool hit;     /* it names a receive buffer */
  bool refused; /* it must not be made */
  bool told;    /* the order of streams is told here, not by CUPTI */
  uint64_t begun;
  struct rp_work work;
  struct rp_launch_words words;
};

/* Whether anything has to be done about the call. */
static inline bool begin_call(struct call *call) {
  bool tells = rp_call_begin(RP_CALL_WORK);
  call->asks = rp_enforce_on() && rp_call_is_programs(RP_CALL_WORK);
  call->hit = call->refused = false;
  return tells || call->asks;
}

static void ask(struct call *call) {
  rp_thread.handled = 1;
  call->refused = call->hit && !rp_enforce_work_before(&call->work);
}

/* Whether the order of streams has to be told here: calls that NCCL makes too, and after the library has gone
 * passive. */
static inline bool orders(const struct call *call) {
  if (rp_thread.depth[RP_CALL_WORK] != 1 || rp_thread.busy) return false;
  return (call->asks || !rp_cupti_active()) && rp_ordering_on();
}

static inline void end_call(struct call *call, const struct rp_cuda_work *work, int result) {
  const bool succeeded = result == RP_ABI_SUCCESS;
  if (call->asks) rp_thread.handled = 0;
  if (call->asks && call->hit && !call->refused) rp_enforce_work_after(&call->work, succeeded);
  if (!call->asks && call->hit && succeeded) rp_agent_seen(&call->work);
  if (call->told) rp_ordering_work_end(work, call->begun, succeeded);
  rp_call_end(RP_CALL_WORK);
}

static void take_launch(struct call *call, const struct rp_cuda_launch *launch) {
  if (!call->asks && rp_cupti_active()) return;
  uint64_t started = rp_cost_begin();
  call->hit = rp_agent_launch(launch, &call->words, &call->work);
  if (call->asks) ask(call);
  rp_cost_end(started);
}

static void take_runtime_launch(struct call *call, const void *symbol, void *launch_function, void **params,
                                uint64_t stream, uint32_t flags) {
  if (rp_thread.depth[RP_CALL_NCCL]) return;
  uint64_t function = function_of(symbol, launch_function, stream);
  const struct rp_cuda_launch launch = {
      .function = function, .stream = stream, .event_flags = flags, .params = params};
  if (function) take_launch(call, &launch);
}

static void take_driver_launch(struct call *call, void *function, void **params, void **extra,
                               uint64_t stream, uint32_t flags) {
  const struct rp_cuda_launch launch = {.function = (uint64_t)(uintptr_t)function,
                                        .stream = stream,
                                        .event_flags = flags,
                                        .params = params,
                                        .extra = extra};
  take_launch(call, &launch);
}

static void take_op(struct call *call, enum rp_event_kind kind, const void *to, uint64_t to_bytes,
                    const void *from, uint64_t from_bytes, uint64_t stream) {
  if (!call->asks && rp_cupti_active()) return;
  uint64_t started = rp_cost_begin();
  const struct rp_cuda_op op = {.kind = kind,
                                .address = (uint64_t)(uintptr_t)to,
                                .bytes = to_bytes,
                                .source = (uint64_t)(uintptr_t)from,
                                .source_bytes = from_bytes,
                                .stream = stream};
  call->hit = rp_agent_copy(&op, &call->work);
  if (call->asks) ask(call);
  rp_cost_end(started);
}

/* ---- the same for the order of streams ---- */

static struct rp_cuda_work on_stream(uint64_t stream) {
  return (struct rp_cuda_work){.stream = stream};
}

static struct rp_cuda_work sync_copy(const void *to, const void *from, uint64_t stream) {
  return (struct rp_cuda_work){.kind = RP_CUDA_COPY_SYNC,
                               .stream = stream,
                               .to = (uint64_t)(uintptr_t)to,
                               .from = (uint64_t)(uintptr_t)from};
}

static struct rp_cuda_work graph_launch(const void *graph, uint64_t stream) {
  return (struct rp_cuda_work){
      .kind = RP_CUDA_GRAPH_LAUNCH, .stream = stream, .graph = (uint64_t)(uintptr_t)graph};
}

static struct rp_cuda_work runtime_config(const void *config, int per_thread) {
  struct rp_cuda_work work = {.runtime_config = config};
  uint64_t stream = rp_runtime_config_stream(config, &work.event_flags);
  work.stream = rp_hook_stream((void *)(uintptr_t)stream, per_thread);
  return work;
}

static struct rp_cuda_work driver_config(const void *config, int per_thread) {
  struct rp_cuda_work work = {.driver_config = config};
  uint64_t stream = rp_driver_config_stream(config, &work.event_flags);
  work.stream = rp_hook_stream((void *)(uintptr_t)stream, per_thread);
  return work;
}

static uint64_t span(uint64_t pitch, uint64_t width, uint64_t height) {
  return width && height ? (height - 1) * pitch + width : 0;
}

#define WORK(name, parameters, arguments, take, described)                                                   \
  RP_HOOK(int, name, parameters) {                                                                           \
    struct call call;                                                                                        \
    struct rp_cuda_work work;                                                                                \
    if (begin_call(&call)) take;                                                                             \
    call.told = !call.refused && orders(&call);                                                              \
    if (call.told) {                                                                                         \
      work = (described);                                                                                    \
      call.begun = rp_ordering_work_begin(&work);                                                            \
    }                                                                                                        \
    int result = call.refused ? RP_ABI_OUT_OF_MEMORY : real_##name arguments;                                \
    end_call(&call, &work, result);                                                                          \
    return result;                                                                                           \
  }

/* ---- launches ---- */

#define RUNTIME_LAUNCH(name, per_thread)                                                                     \
  WORK(name,                                                                                                 \
       (const void *symbol, struct rp_abi_dim3 grid, struct rp_abi_dim3 block, void **params, size_t shared, \
        void *stream),                                                                                       \
       (symbol, grid, block, params, shared, stream),                                                        \
       take_runtime_launch(&call, symbol, (void *)real_##name, params, rp_hook_stream(stream, per_thread),   \
                           0),                                                                               \
       on_stream(rp_hook_stream(stream, per_thread)))
#define RUNTIME_LAUNCH_EX(name, per_thread)                                                                  \
  WORK(                                                                                                      \
      name, (const void *config, const void *symbol, void **params), (config, symbol, params),               \
      {                                                                                                      \
        uint32_t flags = 0;                                                                                  \
        uint64_t stream = rp_runtime_config_stream(config, &flags);                                          \
        take_runtime_launch(&call, symbol, (void *)real_##name, params,                                      \
                            rp_hook_stream((void *)(uintptr_t)stream, per_thread), flags);                   \
      },                                                                                                     \
      runtime_config(config, per_thread))
#define DRIVER_LAUNCH(name, per_thread)                                                                      \
  WORK(name,                                                                                                 \
       (void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,        \
        unsigned shared, void *stream, void **params, void **extra),                                         \
       (function, gx, gy, gz, bx, by, bz, shared, stream, params, extra),                                    \
       take_driver_launch(&call, function, params, extra, rp_hook_stream(stream, per_thread), 0),            \
       on_stream(rp_hook_stream(stream, per_thread)))
#define DRIVER_LAUNCH_EX(name, per_thread)                                                                   \
  WORK(                                                                                                      \
      name, (const void *config, void *function, void **params, void **extra),                               \
      (config, function, params, extra),                                                                     \
      {                                                                                                      \
        uint32_t flags = 0;                                                                                  \
        uint64_t stream = rp_driver_config_stream(config, &flags);                                           \
        take_driver_launch(&call, function, params, extra,                                                   \
                           rp_hook_stream((void *)(uintptr_t)stream, per_thread), flags);                    \
      },                                                                                                     \
      driver_config(config, per_thread))

RUNTIME_LAUNCH(cudaLaunchKernel, 0)
RUNTIME_LAUNCH(cudaLaunchKernel_ptsz, 1)
RUNTIME_LAUNCH(cudaLaunchCooperativeKernel, 0)
RUNTIME_LAUNCH(cudaLaunchCooperativeKernel_ptsz, 1)
RUNTIME_LAUNCH_EX(cudaLaunchKernelExC, 0)
RUNTIME_LAUNCH_EX(cudaLaunchKernelExC_ptsz, 1)
DRIVER_LAUNCH(cuLaunchKernel, 0)
DRIVER_LAUNCH(cuLaunchKernel_ptsz, 1)
DRIVER_LAUNCH_EX(cuLaunchKernelEx, 0)
DRIVER_LAUNCH_EX(cuLaunchKernelEx_ptsz, 1)

/* ---- copies ---- */

#define COPY(name, per_thread)                                                                               \
  WORK(name, (void *to, const void *from, size_t bytes, int kind), (to, from, bytes, kind),                  \
       take_op(&call, RP_EVENT_COPY_READ, to, bytes, from, bytes, rp_hook_stream(NULL, per_thread)),         \
       sync_copy(to, from, rp_hook_stream(NULL, per_thread)))
#define COPY_ASYNC(name, per_thread)                                                                         \
  WORK(name, (void *to, const void *from, size_t bytes, int kind, void *stream),                             \
       (to, from, bytes, kind, stream),                                                                      \
       take_op(&call, RP_EVENT_COPY_READ, to, bytes, from, bytes, rp_hook_stream(stream, per_thread)),       \
       on_stream(rp_hook_stream(stream, per_thread)))
#define COPY_2D_ASYNC(name, per_thread)                                                                      \
  WORK(name,                                                                                                 \
       (void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,         \
        int kind, void *stream),                                                                             \
       (to, to_pitch, from, from_pitch, width, height, kind, stream),                                        \
       take_op(&call, RP_EVENT_COPY_READ, to, span(to_pitch, width, height), from,                           \
               span(from_pitch, width, height), rp_hook_stream(stream, per_thread)),                         \
       on_stream(rp_hook_stream(stream, per_thread)))
#define COPY_PEER_ASYNC(name, per_thread)                                                                    \
  WORK(name, (void *to, int to_device, const void *from, int from_device, size_t bytes, void *stream),       \
       (to, to_device, from, from_device, bytes, stream),                                                    \
       take_op(&call, RP_EVENT_COPY_READ, to, bytes, from, bytes, rp_hook_stream(stream, per_thread)),       \
       on_stream(rp_hook_stream(stream, per_thread)))
#define DRIVER_COPY(name, per_thread)                                                                        \
  WORK(name, (uint64_t to, uint64_t from, size_t bytes), (to, from, bytes),                                  \
       take_op(&call, RP_EVENT_COPY_READ, (void *)(uintptr_t)to, bytes, (void *)(uintptr_t)from, bytes,      \
               rp_hook_stream(NULL, per_thread)),                                                            \
       sync_copy((void *)(uintptr_t)to, (void *)(uintptr_t)from, rp_hook_stream(NULL, per_thread)))
#define DRIVER_COPY_ASYNC(name, per_thread)                                                                  \
  WORK(name, (uint64_t to, uint64_t from, size_t bytes, void *stream), (to, from, bytes, stream),            \
       take_op(&call, RP_EVENT_COPY_READ, (void *)(uintptr_t)to, bytes, (void *)(uintptr_t)from, bytes,      \
               rp_hook_stream(stream, per_thread)),                                                          \
       on_stream(rp_hook_stream(stream, per_thread)))

COPY(cudaMemcpy, 0)
COPY(cudaMemcpy_ptds, 1)
COPY_ASYNC(cudaMemcpyAsync, 0)
COPY_ASYNC(cudaMemcpyAsync_ptsz, 1)
COPY_2D_ASYNC(cudaMemcpy2DAsync, 0)
COPY_2D_ASYNC(cudaMemcpy2DAsync_ptsz, 1)
COPY_PEER_ASYNC(cudaMemcpyPeerAsync, 0)
DRIVER_COPY(cuMemcpy, 0)
DRIVER_COPY(cuMemcpyHtoD_v2, 0)
DRIVER_COPY(cuMemcpyDtoH_v2, 0)
DRIVER_COPY(cuMemcpyDtoD_v2, 0)
DRIVER_COPY(cuMemcpy_ptds, 1)
DRIVER_COPY(cuMemcpyHtoD_v2_ptds, 1)
DRIVER_COPY(cuMemcpyDtoH_v2_ptds, 1)
DRIVER_COPY(cuMemcpyDtoD_v2_ptds, 1)
DRIVER_COPY_ASYNC(cuMemcpyAsync, 0)
DRIVER_COPY_ASYNC(cuMemcpyAsync_ptsz, 1)
DRIVER_COPY_ASYNC(cuMemcpyHtoDAsync_v2, 0)
DRIVER_COPY_ASYNC(cuMemcpyHtoDAsync_v2_ptsz, 1)
DRIVER_COPY_ASYNC(cuMemcpyDtoHAsync_v2, 0)
DRIVER_COPY_ASYNC(cuMemcpyDtoHAsync_v2_ptsz, 1)
DRIVER_COPY_ASYNC(cuMemcpyDtoDAsync_v2, 0)
DRIVER_COPY_ASYNC(cuMemcpyDtoDAsync_v2_ptsz, 1)

/* ---- memsets ---- */

#define SET(name, per_thread)                                                                                \
  WORK(name, (void *to, int value, size_t bytes), (to, value, bytes),                                        \
       take_op(&call, RP_EVENT_MEMSET, to, bytes, NULL, 0, rp_hook_stream(NULL, per_thread)),                \
       on_stream(rp_hook_stream(NULL, per_thread)))
#define SET_ASYNC(name, per_thread)                                                                          \
  WORK(name, (void *to, int value, size_t bytes, void *stream), (to, value, bytes, stream),                  \
       take_op(&call, RP_EVENT_MEMSET, to, bytes, NULL, 0, rp_hook_stream(stream, per_thread)),              \
       on_stream(rp_hook_stream(stream, per_thread)))
#define DRIVER_SET_ASYNC(name, type, per_thread)                                                             \
  WORK(name, (uint64_t to, type value, size_t elements, void *stream), (to, value, elements, stream),        \
       take_op(&call, RP_EVENT_MEMSET, (void *)(uintptr_t)to, elements * sizeof value, NULL, 0,              \
               rp_hook_stream(stream, per_thread)),                                                          \
       on_stream(rp_hook_stream(stream, per_thread)))

SET(cudaMemset, 0)
SET(cudaMemset_ptds, 1)
SET_ASYNC(cudaMemsetAsync, 0)
SET_ASYNC(cudaMemsetAsync_ptsz, 1)
DRIVER_SET_ASYNC(cuMemsetD8Async, unsigned char, 0)
DRIVER_SET_ASYNC(cuMemsetD16Async, unsigned short, 0)
DRIVER_SET_ASYNC(cuMemsetD32Async, unsigned, 0)

/* ---- graphs and host functions ---- */

/* The guards cannot be asked about what a graph does: they are told, as of any call that nobody asked about.
 */
static void take_graph(struct call *call, const void *graph, uint64_t stream) {
  call->asks = false;
  if (rp_cupti_active() || !rp_state_is_on()) return;
  const struct rp_cuda_op op = {
      .kind = RP_EVENT_GRAPH_LAUNCH, .stream = stream, .aux = (uint64_t)(uintptr_t)graph};
  call->hit = rp_agent_graph(&op, &call->work);
}

#define GRAPH_LAUNCH(name, per_thread)                                                                       \
  WORK(name, (void *graph, void *stream), (graph, stream),                                                   \
       take_graph(&call, graph, rp_hook_stream(stream, per_thread)),                                         \
       graph_launch(graph, rp_hook_stream(stream, per_thread)))
#define HOST_FUNCTION(name, per_thread)                                                                      \
  WORK(name, (void *stream, void *function, void *argument), (stream, function, argument), (void)0,          \
       on_stream(rp_hook_stream(stream, per_thread)))
#define STREAM_CALLBACK(name, per_thread)                                                                    \
  WORK(name, (void *stream, void *function, void *argument, unsigned flags),                                 \
       (stream, function, argument, flags), (void)0, on_stream(rp_hook_stream(stream, per_thread)))

GRAPH_LAUNCH(cudaGraphLaunch, 0)
GRAPH_LAUNCH(cudaGraphLaunch_ptsz, 1)
GRAPH_LAUNCH(cuGraphLaunch, 0)
GRAPH_LAUNCH(cuGraphLaunch_ptsz, 1)
HOST_FUNCTION(cudaLaunchHostFunc, 0)
HOST_FUNCTION(cudaLaunchHostFunc_ptsz, 1)
HOST_FUNCTION(cuLaunchHostFunc, 0)
HOST_FUNCTION(cuLaunchHostFunc_ptsz, 1)
STREAM_CALLBACK(cudaStreamAddCallback, 0)
STREAM_CALLBACK(cudaStreamAddCallback_ptsz, 1)
STREAM_CALLBACK(cuStreamAddCallback, 0)
STREAM_CALLBACK(cuStreamAddCallback_ptsz, 1)

const struct rp_hook rp_hooks_work[] = {
    RP_HOOK_ENTRY(cudaGraphLaunch),
    RP_HOOK_ENTRY(cudaGraphLaunch_ptsz),
    RP_HOOK_ENTRY(cuGraphLaunch),
    RP_HOOK_ENTRY(cuGraphLaunch_ptsz),
    RP_HOOK_ENTRY(cudaLaunchHostFunc),
    RP_HOOK_ENTRY(cudaLaunchHostFunc_ptsz),
    RP_HOOK_ENTRY(cuLaunchHostFunc),
    RP_HOOK_ENTRY(cuLaunchHostFunc_ptsz),
    RP_HOOK_ENTRY(cudaStreamAddCallback),
    RP_HOOK_ENTRY(cudaStreamAddCallback_ptsz),
    RP_HOOK_ENTRY(cuStreamAddCallback),
    RP_HOOK_ENTRY(cuStreamAddCallback_ptsz),
    RP_HOOK_ENTRY(cudaLaunchKernel),
    RP_HOOK_ENTRY(cudaLaunchKernel_ptsz),
    RP_HOOK_ENTRY(cudaLaunchCooperativeKernel),
    RP_HOOK_ENTRY(cudaLaunchCooperativeKernel_ptsz),
    RP_HOOK_ENTRY(cudaLaunchKernelExC),
    RP_HOOK_ENTRY(cudaLaunchKernelExC_ptsz),
    RP_HOOK_ENTRY(cuLaunchKernel),
    RP_HOOK_ENTRY(cuLaunchKernel_ptsz),
    RP_HOOK_ENTRY(cuLaunchKernelEx),
    RP_HOOK_ENTRY(cuLaunchKernelEx_ptsz),
    RP_HOOK_ENTRY(cudaMemcpy),
    RP_HOOK_ENTRY(cudaMemcpy_ptds),
    RP_HOOK_ENTRY(cudaMemcpyAsync),
    RP_HOOK_ENTRY(cudaMemcpyAsync_ptsz),
    RP_HOOK_ENTRY(cudaMemcpy2DAsync),
    RP_HOOK_ENTRY(cudaMemcpy2DAsync_ptsz),
    RP_HOOK_ENTRY(cudaMemcpyPeerAsync),
    RP_HOOK_ENTRY(cuMemcpy),
    RP_HOOK_ENTRY(cuMemcpyHtoD_v2),
    RP_HOOK_ENTRY(cuMemcpyDtoH_v2),
    RP_HOOK_ENTRY(cuMemcpyDtoD_v2),
    RP_HOOK_ENTRY(cuMemcpy_ptds),
    RP_HOOK_ENTRY(cuMemcpyHtoD_v2_ptds),
    RP_HOOK_ENTRY(cuMemcpyDtoH_v2_ptds),
    RP_HOOK_ENTRY(cuMemcpyDtoD_v2_ptds),
    RP_HOOK_ENTRY(cuMemcpyAsync),
    RP_HOOK_ENTRY(cuMemcpyAsync_ptsz),
    RP_HOOK_ENTRY(cuMemcpyHtoDAsync_v2),
    RP_HOOK_ENTRY(cuMemcpyHtoDAsync_v2_ptsz),
    RP_HOOK_ENTRY(cuMemcpyDtoHAsync_v2),
    RP_HOOK_ENTRY(cuMemcpyDtoHAsync_v2_ptsz),
    RP_HOOK_ENTRY(cuMemcpyDtoDAsync_v2),
    RP_HOOK_ENTRY(cuMemcpyDtoDAsync_v2_ptsz),
    RP_HOOK_ENTRY(cudaMemset),
    RP_HOOK_ENTRY(cudaMemset_ptds),
    RP_HOOK_ENTRY(cudaMemsetAsync),
    RP_HOOK_ENTRY(cudaMemsetAsync_ptsz),
    RP_HOOK_ENTRY(cuMemsetD8Async),
    RP_HOOK_ENTRY(cuMemsetD16Async),
    RP_HOOK_ENTRY(cuMemsetD32Async),
};
const size_t rp_hooks_work_count = sizeof rp_hooks_work / sizeof rp_hooks_work[0];
