/* Graphs that are built by hand. Their launches name no addresses: what a node names is known when it is
 * added or changed, and from then on the buffers keep memory of their own, as with a graph that was captured.
 * Looked at where buffers share memory only. */
#include <stddef.h>
#include <stdint.h>

#include "agent/abi.h"
#include "agent/agent.h"
#include "agent/enforce.h"
#include "agent/hooks.h"
#include "agent/hooks_graphs.h"
#include "agent/state.h"

/* ---- what a node names ---- */

/* Every buffer of ours is looked for, also one that nothing was received into yet. */
static bool owned(uint64_t begin, uint64_t end) {
  struct rp_enforce_buffer buffer;
  (void)end;
  return rp_enforce_find(begin, &buffer);
}

static bool hold(uint64_t address, uint64_t bytes) {
  return !address || !bytes || rp_enforce_flag(address, bytes, RP_POOL_FLAG_GRAPH, RP_EVENT_GRAPH_LAUNCH);
}

static bool hold_op(const struct rp_cuda_op *op) {
  return hold(op->address, op->bytes) && hold(op->source, op->source_bytes);
}

/* What cannot be read of a kernel's parameters is reported as for a launch. */
static bool hold_launch(const struct rp_cuda_launch *launch) {
  static const _Atomic uint64_t low = 0, high = UINT64_MAX;
  static const struct rp_scan_filter filter = {.low = &low, .high = &high, .overlaps = owned};
  struct rp_launch_words words;
  bool allowed = true;
  rp_launch_learn(launch->function);
  if (!rp_launch_scan(launch, &filter, &words)) return true;
  for (size_t i = 0; allowed && i < words.count; i++)
    if (words.words[i].hit) allowed = hold(words.words[i].value, 1);
  return allowed;
}

static bool hold_words(const struct rp_node_use *use) {
  struct rp_cuda_op op;
  bool allowed = true;
  for (size_t i = 0; allowed && i < use->word_count; i++)
    if (rp_shape_memory_op(use->words, i, &op)) allowed = hold_op(&op);
  return allowed;
}

/* `runtime`: a function of the runtime that knows the host symbol. */
static bool hold_use(struct rp_node_use *use, void *runtime) {
  if (use->by_symbol) {
    void *function = NULL;
    int (*get)(void **, const void *) =
        (int (*)(void **, const void *))rp_hook_sibling(runtime, "cudaGetFuncBySymbol");
    if (!get || get(&function, (const void *)(uintptr_t)use->launch.function) != RP_ABI_SUCCESS)
      function = NULL;
    use->launch.function = (uint64_t)(uintptr_t)function;
  }
  if (use->launch.function && !hold_launch(&use->launch)) return false;
  return hold_op(&use->op) && hold_words(use);
}

static bool asks(void) {
  return rp_enforce_on() && !rp_thread.busy && rp_thread.depth[RP_CALL_NCCL] == 0;
}

void rp__hold_driver_node(const void *params) {
  struct rp_node_use use;
  if (asks() && rp_node_driver(params, &use)) (void)hold_use(&use, NULL);
}

void rp__hold_runtime_node(const void *params, void *function) {
  struct rp_node_use use;
  if (asks() && rp_node_runtime(params, &use)) (void)hold_use(&use, function);
}

/* ---- the calls ---- */

typedef bool node_reader(const void *params, struct rp_node_use *out);

static bool hold_node(node_reader *read, const void *params, void *function) {
  struct rp_node_use use;
  return !asks() || !read(params, &use) || hold_use(&use, function);
}

static bool first_kernel(const void *params, struct rp_node_use *out) {
  return rp_node_driver_kernel(params, false, out);
}

static bool second_kernel(const void *params, struct rp_node_use *out) {
  return rp_node_driver_kernel(params, true, out);
}

static bool hold_copy(const void *to, const void *from, uint64_t bytes) {
  return !asks() || (hold((uint64_t)(uintptr_t)to, bytes) && hold((uint64_t)(uintptr_t)from, bytes));
}

#define HELD(name, parameters, arguments, holds)                                                             \
  RP_HOOK(int, name, parameters) {                                                                           \
    return (holds) ? real_##name arguments : rp_hook_fail(#name, (void *)real_##name, RP_ABI_OUT_OF_MEMORY); \
  }
#define ADD(name, reader)                                                                                    \
  HELD(name, (void **node, void *graph, const void *nodes, size_t count, const void *params),                \
       (node, graph, nodes, count, params), hold_node(reader, params, (void *)real_##name))
#define ADD_IN_CONTEXT(name, reader)                                                                         \
  HELD(name, (void **node, void *graph, const void *nodes, size_t count, const void *params, void *context), \
       (node, graph, nodes, count, params, context), hold_node(reader, params, NULL))
#define SET(name, reader)                                                                                    \
  HELD(name, (void *node, const void *params), (node, params), hold_node(reader, params, (void *)real_##name))
#define SET_EXEC(name, reader)                                                                               \
  HELD(name, (void *graph, void *node, const void *params), (graph, node, params),                           \
       hold_node(reader, params, (void *)real_##name))
#define SET_EXEC_IN_CONTEXT(name, reader)                                                                    \
  HELD(name, (void *graph, void *node, const void *params, void *context), (graph, node, params, context),   \
       hold_node(reader, params, NULL))

ADD(cudaGraphAddKernelNode, rp_node_runtime_kernel)
ADD(cudaGraphAddMemsetNode, rp_node_runtime_memset)
ADD(cudaGraphAddMemcpyNode, rp_node_runtime_copy)
SET(cudaGraphKernelNodeSetParams, rp_node_runtime_kernel)
SET(cudaGraphMemsetNodeSetParams, rp_node_runtime_memset)
SET(cudaGraphMemcpyNodeSetParams, rp_node_runtime_copy)
SET_EXEC(cudaGraphExecKernelNodeSetParams, rp_node_runtime_kernel)
SET_EXEC(cudaGraphExecMemsetNodeSetParams, rp_node_runtime_memset)
SET_EXEC(cudaGraphExecMemcpyNodeSetParams, rp_node_runtime_copy)
ADD(cuGraphAddKernelNode, first_kernel)
ADD(cuGraphAddKernelNode_v2, second_kernel)
ADD_IN_CONTEXT(cuGraphAddMemsetNode, rp_node_driver_memset)
ADD_IN_CONTEXT(cuGraphAddMemcpyNode, rp_node_driver_copy)
ADD(cuGraphAddBatchMemOpNode, rp_node_driver_words)
SET(cuGraphKernelNodeSetParams, first_kernel)
SET(cuGraphKernelNodeSetParams_v2, second_kernel)
SET(cuGraphMemsetNodeSetParams, rp_node_driver_memset)
SET(cuGraphMemcpyNodeSetParams, rp_node_driver_copy)
SET(cuGraphBatchMemOpNodeSetParams, rp_node_driver_words)
SET_EXEC(cuGraphExecKernelNodeSetParams, first_kernel)
SET_EXEC(cuGraphExecKernelNodeSetParams_v2, second_kernel)
SET_EXEC_IN_CONTEXT(cuGraphExecMemsetNodeSetParams, rp_node_driver_memset)
SET_EXEC_IN_CONTEXT(cuGraphExecMemcpyNodeSetParams, rp_node_driver_copy)
SET_EXEC(cuGraphExecBatchMemOpNodeSetParams, rp_node_driver_words)

HELD(cudaGraphAddMemcpyNode1D,
     (void **node, void *graph, const void *nodes, size_t count, void *to, const void *from, size_t bytes,
      int kind),
     (node, graph, nodes, count, to, from, bytes, kind), hold_copy(to, from, bytes))
HELD(cudaGraphMemcpyNodeSetParams1D, (void *node, void *to, const void *from, size_t bytes, int kind),
     (node, to, from, bytes, kind), hold_copy(to, from, bytes))
HELD(cudaGraphExecMemcpyNodeSetParams1D,
     (void *graph, void *node, void *to, const void *from, size_t bytes, int kind),
     (graph, node, to, from, bytes, kind), hold_copy(to, from, bytes))
HELD(cudaGraphAddMemcpyNodeToSymbol,
     (void **node, void *graph, const void *nodes, size_t count, const void *symbol, const void *from,
      size_t bytes, size_t offset, int kind),
     (node, graph, nodes, count, symbol, from, bytes, offset, kind), hold_copy(NULL, from, bytes))
HELD(cudaGraphAddMemcpyNodeFromSymbol,
     (void **node, void *graph, const void *nodes, size_t count, void *to, const void *symbol, size_t bytes,
      size_t offset, int kind),
     (node, graph, nodes, count, to, symbol, bytes, offset, kind), hold_copy(to, NULL, bytes))
HELD(cudaGraphMemcpyNodeSetParamsToSymbol,
     (void *node, const void *symbol, const void *from, size_t bytes, size_t offset, int kind),
     (node, symbol, from, bytes, offset, kind), hold_copy(NULL, from, bytes))
HELD(cudaGraphMemcpyNodeSetParamsFromSymbol,
     (void *node, void *to, const void *symbol, size_t bytes, size_t offset, int kind),
     (node, to, symbol, bytes, offset, kind), hold_copy(to, NULL, bytes))
HELD(cudaGraphExecMemcpyNodeSetParamsToSymbol,
     (void *graph, void *node, const void *symbol, const void *from, size_t bytes, size_t offset, int kind),
     (graph, node, symbol, from, bytes, offset, kind), hold_copy(NULL, from, bytes))
HELD(cudaGraphExecMemcpyNodeSetParamsFromSymbol,
     (void *graph, void *node, void *to, const void *symbol, size_t bytes, size_t offset, int kind),
     (graph, node, to, symbol, bytes, offset, kind), hold_copy(to, NULL, bytes))

const struct rp_hook rp_hooks_graphs[] = {
    RP_HOOK_ENTRY(cudaGraphAddKernelNode),
    RP_HOOK_ENTRY(cudaGraphAddMemsetNode),
    RP_HOOK_ENTRY(cudaGraphAddMemcpyNode),
    RP_HOOK_ENTRY(cudaGraphKernelNodeSetParams),
    RP_HOOK_ENTRY(cudaGraphMemsetNodeSetParams),
    RP_HOOK_ENTRY(cudaGraphMemcpyNodeSetParams),
    RP_HOOK_ENTRY(cudaGraphExecKernelNodeSetParams),
    RP_HOOK_ENTRY(cudaGraphExecMemsetNodeSetParams),
    RP_HOOK_ENTRY(cudaGraphExecMemcpyNodeSetParams),
    RP_HOOK_ENTRY(cuGraphAddKernelNode),
    RP_HOOK_ENTRY(cuGraphAddKernelNode_v2),
    RP_HOOK_ENTRY(cuGraphAddMemsetNode),
    RP_HOOK_ENTRY(cuGraphAddMemcpyNode),
    RP_HOOK_ENTRY(cuGraphAddBatchMemOpNode),
    RP_HOOK_ENTRY(cuGraphKernelNodeSetParams),
    RP_HOOK_ENTRY(cuGraphKernelNodeSetParams_v2),
    RP_HOOK_ENTRY(cuGraphMemsetNodeSetParams),
    RP_HOOK_ENTRY(cuGraphMemcpyNodeSetParams),
    RP_HOOK_ENTRY(cuGraphBatchMemOpNodeSetParams),
    RP_HOOK_ENTRY(cuGraphExecKernelNodeSetParams),
    RP_HOOK_ENTRY(cuGraphExecKernelNodeSetParams_v2),
    RP_HOOK_ENTRY(cuGraphExecMemsetNodeSetParams),
    RP_HOOK_ENTRY(cuGraphExecMemcpyNodeSetParams),
    RP_HOOK_ENTRY(cuGraphExecBatchMemOpNodeSetParams),
    RP_HOOK_ENTRY(cudaGraphAddMemcpyNode1D),
    RP_HOOK_ENTRY(cudaGraphMemcpyNodeSetParams1D),
    RP_HOOK_ENTRY(cudaGraphExecMemcpyNodeSetParams1D),
    RP_HOOK_ENTRY(cudaGraphAddMemcpyNodeToSymbol),
    RP_HOOK_ENTRY(cudaGraphAddMemcpyNodeFromSymbol),
    RP_HOOK_ENTRY(cudaGraphMemcpyNodeSetParamsToSymbol),
    RP_HOOK_ENTRY(cudaGraphMemcpyNodeSetParamsFromSymbol),
    RP_HOOK_ENTRY(cudaGraphExecMemcpyNodeSetParamsToSymbol),
    RP_HOOK_ENTRY(cudaGraphExecMemcpyNodeSetParamsFromSymbol),
};
const size_t rp_hooks_graphs_count = sizeof rp_hooks_graphs / sizeof rp_hooks_graphs[0];
