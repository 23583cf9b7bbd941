/* Launches, and what the wrappers of all work do. Where buffers share memory they ask the guards before the
 * call, and CUPTI's view of it is left aside. Otherwise they report only while there is no CUPTI, and look
 * the layout of a kernel up ahead of its first launch, where asking the driver is free of risk. */
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "agent/abi.h"
#include "agent/agent.h"
#include "agent/enforce.h"
#include "agent/hooks.h"
#include "agent/hooks_work.h"
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

/* The handle that launches compiled by CUDA 13 name in place of a symbol; the first time its layout is looked
 * up. */
static uint64_t function_of_kernel(const void *kernel, uint64_t stream) {
  uint64_t key = (uint64_t)(uintptr_t)kernel, function = key;
  struct host_symbol *entry = host_symbol_slot(kernel);
  if (known_host_symbol(entry, key, &function)) return function;
  if (rp_cupti_active() && rp_driver_stream_capturing(stream)) return key;
  if (key) rp_launch_learn(key);
  remember_host_symbol(entry, key, key);
  return key;
}

/* ---- one call ---- */

void rp__work_begin(struct rp_hook_work *call, const struct rp_cuda_work *order) {
  call->tells = true;
  rp_thread.handled = 1;
  call->refused = call->asks && call->hit && !rp_enforce_work_before(&call->work);
  call->order = *order;
  call->begun = rp_ordering_work_begin(&call->order);
}

void rp__work_end(struct rp_hook_work *call, bool succeeded) {
  if (call->asks && call->hit && !call->refused) rp_enforce_work_after(&call->work, succeeded);
  if (!call->asks && call->hit && succeeded) rp_agent_seen(&call->work);
  rp_ordering_work_end(&call->order, call->begun, succeeded);
  rp_thread.handled = 0;
}

/* ---- launches ---- */

static void take_launch(struct rp_hook_work *call, const struct rp_cuda_launch *launch,
                        const struct rp_cuda_work *order) {
  if (!rp_hook_work_tells(call)) return;
  uint64_t started = rp_cost_begin();
  call->hit = launch->function && rp_agent_launch(launch, &call->words, &call->work);
  rp__work_begin(call, order);
  rp_cost_end(started);
}

/* NCCL's own: it orders streams as any launch does, and names nothing of interest. */
static bool is_of_nccl(struct rp_hook_work *call, const struct rp_cuda_work *order) {
  if (!rp_thread.depth[RP_CALL_NCCL]) return false;
  if (rp_hook_work_tells(call)) rp__work_begin(call, order);
  return true;
}

static void take_runtime_function(struct rp_hook_work *call, uint64_t function, void **params,
                                  const struct rp_cuda_work *order, const uint32_t grid[3]) {
  const struct rp_cuda_launch launch = {.function = function,
                                        .stream = order->stream,
                                        .event_flags = order->event_flags,
                                        .params = params,
                                        .grid = {grid[0], grid[1], grid[2]}};
  if (function || !rp_cupti_active()) take_launch(call, &launch, order);
}

static void take_runtime_launch(struct rp_hook_work *call, const void *symbol, void *launch_function,
                                void **params, uint64_t stream, const void *config, uint32_t flags,
                                const uint32_t grid[3]) {
  const struct rp_cuda_work order = {.stream = stream, .event_flags = flags, .runtime_config = config};
  if (is_of_nccl(call, &order)) return;
  take_runtime_function(call, function_of(symbol, launch_function, stream), params, &order, grid);
}

static void take_kernel_launch(struct rp_hook_work *call, const void *kernel, void **params, uint64_t stream,
                               const uint32_t grid[3]) {
  const struct rp_cuda_work order = {.stream = stream};
  if (is_of_nccl(call, &order)) return;
  take_runtime_function(call, function_of_kernel(kernel, stream), params, &order, grid);
}

static void take_driver_launch(struct rp_hook_work *call, void *function, void **params, void **extra,
                               uint64_t stream, const void *config, uint32_t flags, const uint32_t grid[3]) {
  const struct rp_cuda_launch launch = {.function = (uint64_t)(uintptr_t)function,
                                        .stream = stream,
                                        .event_flags = flags,
                                        .params = params,
                                        .extra = extra,
                                        .grid = {grid[0], grid[1], grid[2]}};
  const struct rp_cuda_work order = {.stream = stream, .event_flags = flags, .driver_config = config};
  take_launch(call, &launch, &order);
}

#define RUNTIME_LAUNCH(name, per_thread)                                                                     \
  RP_HOOK_WORK(name,                                                                                         \
               (const void *symbol, struct rp_abi_dim3 grid, struct rp_abi_dim3 block, void **params,        \
                size_t shared, void *stream),                                                                \
               (symbol, grid, block, params, shared, stream),                                                \
               take_runtime_launch(&call, symbol, (void *)real_##name, params,                               \
                                   rp_hook_stream(stream, per_thread), NULL, 0,                              \
                                   (const uint32_t[]){grid.x, grid.y, grid.z}))
/* What nvcc makes of <<<...>>> since CUDA 13; before, it was cudaLaunchKernel. */
#define COMPILED_LAUNCH(name, per_thread)                                                                    \
  RP_HOOK_WORK(name,                                                                                         \
               (const void *kernel, struct rp_abi_dim3 grid, struct rp_abi_dim3 block, void **params,        \
                size_t shared, void *stream),                                                                \
               (kernel, grid, block, params, shared, stream),                                                \
               take_kernel_launch(&call, kernel, params, rp_hook_stream(stream, per_thread),                 \
                                  (const uint32_t[]){grid.x, grid.y, grid.z}))
#define RUNTIME_LAUNCH_EX(name, per_thread)                                                                  \
  RP_HOOK_WORK(name, (const void *config, const void *symbol, void **params), (config, symbol, params), {    \
    uint32_t flags = 0;                                                                                      \
    uint32_t grid[3];                                                                                        \
    rp_runtime_config_grid(config, grid);                                                                    \
    uint64_t stream = rp_runtime_config_stream(config, &flags);                                              \
    take_runtime_launch(&call, symbol, (void *)real_##name, params,                                          \
                        rp_hook_stream((void *)(uintptr_t)stream, per_thread), config, flags, grid);         \
  })
#define DRIVER_LAUNCH(name, per_thread)                                                                      \
  RP_HOOK_WORK(name,                                                                                         \
               (void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,             \
                unsigned bz, unsigned shared, void *stream, void **params, void **extra),                    \
               (function, gx, gy, gz, bx, by, bz, shared, stream, params, extra),                            \
               take_driver_launch(&call, function, params, extra, rp_hook_stream(stream, per_thread), NULL,  \
                                  0, (const uint32_t[]){gx, gy, gz}))
#define DRIVER_COOPERATIVE(name, per_thread)                                                                 \
  RP_HOOK_WORK(name,                                                                                         \
               (void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,             \
                unsigned bz, unsigned shared, void *stream, void **params),                                  \
               (function, gx, gy, gz, bx, by, bz, shared, stream, params),                                   \
               take_driver_launch(&call, function, params, NULL, rp_hook_stream(stream, per_thread), NULL,   \
                                  0, (const uint32_t[]){gx, gy, gz}))
#define DRIVER_LAUNCH_EX(name, per_thread)                                                                   \
  RP_HOOK_WORK(name, (const void *config, void *function, void **params, void **extra),                      \
               (config, function, params, extra), {                                                          \
                 uint32_t flags = 0;                                                                         \
                 uint32_t grid[3];                                                                           \
                 rp_driver_config_grid(config, grid);                                                        \
                 uint64_t stream = rp_driver_config_stream(config, &flags);                                  \
                 take_driver_launch(&call, function, params, extra,                                          \
                                    rp_hook_stream((void *)(uintptr_t)stream, per_thread), config, flags,    \
                                    grid);                                                                   \
               })

RUNTIME_LAUNCH(cudaLaunchKernel, 0)
RUNTIME_LAUNCH(cudaLaunchKernel_ptsz, 1)
COMPILED_LAUNCH(__cudaLaunchKernel, 0)
COMPILED_LAUNCH(__cudaLaunchKernel_ptsz, 1)
RUNTIME_LAUNCH(cudaLaunchCooperativeKernel, 0)
RUNTIME_LAUNCH(cudaLaunchCooperativeKernel_ptsz, 1)
RUNTIME_LAUNCH_EX(cudaLaunchKernelExC, 0)
RUNTIME_LAUNCH_EX(cudaLaunchKernelExC_ptsz, 1)
DRIVER_LAUNCH(cuLaunchKernel, 0)
DRIVER_LAUNCH(cuLaunchKernel_ptsz, 1)
DRIVER_COOPERATIVE(cuLaunchCooperativeKernel, 0)
DRIVER_COOPERATIVE(cuLaunchCooperativeKernel_ptsz, 1)
DRIVER_LAUNCH_EX(cuLaunchKernelEx, 0)
DRIVER_LAUNCH_EX(cuLaunchKernelEx_ptsz, 1)

/* ---- graphs and host functions ---- */

/* The guards cannot be asked about what a graph does: they are told, as of any call that nobody asked about.
 */
static void take_graph(struct rp_hook_work *call, const void *graph, uint64_t stream) {
  const struct rp_cuda_op op = {
      .kind = RP_EVENT_GRAPH_LAUNCH, .stream = stream, .aux = (uint64_t)(uintptr_t)graph};
  const struct rp_cuda_work order = {.kind = RP_CUDA_GRAPH_LAUNCH, .stream = stream, .graph = op.aux};
  call->asks = false;
  if (rp_cupti_active()) return;
  call->hit = rp_agent_graph(&op, &call->work);
  rp__work_begin(call, &order);
}

static void take_outside(struct rp_hook_work *call, uint64_t stream) {
  const struct rp_cuda_work order = {.stream = stream, .outside = true};
  if (!rp_cupti_active()) rp__work_begin(call, &order);
}

#define GRAPH_LAUNCH(name, per_thread)                                                                       \
  RP_HOOK_WORK(name, (void *graph, void *stream), (graph, stream),                                           \
               take_graph(&call, graph, rp_hook_stream(stream, per_thread)))
#define HOST_FUNCTION(name, per_thread)                                                                      \
  RP_HOOK_WORK(name, (void *stream, void *function, void *argument), (stream, function, argument),           \
               take_outside(&call, rp_hook_stream(stream, per_thread)))
#define STREAM_CALLBACK(name, per_thread)                                                                    \
  RP_HOOK_WORK(name, (void *stream, void *function, void *argument, unsigned flags),                         \
               (stream, function, argument, flags), take_outside(&call, rp_hook_stream(stream, per_thread)))

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
    RP_HOOK_ENTRY(__cudaLaunchKernel),
    RP_HOOK_ENTRY(__cudaLaunchKernel_ptsz),
    RP_HOOK_ENTRY(cudaLaunchCooperativeKernel),
    RP_HOOK_ENTRY(cudaLaunchCooperativeKernel_ptsz),
    RP_HOOK_ENTRY(cudaLaunchKernelExC),
    RP_HOOK_ENTRY(cudaLaunchKernelExC_ptsz),
    RP_HOOK_ENTRY(cuLaunchKernel),
    RP_HOOK_ENTRY(cuLaunchKernel_ptsz),
    RP_HOOK_ENTRY(cuLaunchCooperativeKernel),
    RP_HOOK_ENTRY(cuLaunchCooperativeKernel_ptsz),
    RP_HOOK_ENTRY(cuLaunchKernelEx),
    RP_HOOK_ENTRY(cuLaunchKernelEx_ptsz),
};
const size_t rp_hooks_work_count = sizeof rp_hooks_work / sizeof rp_hooks_work[0];
