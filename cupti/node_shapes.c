/* Nodes of graphs that are built by hand: what of memory their parameters name. Owns nothing; calls nothing.
 */
#include <cuda.h>
#include <cuda_runtime_api.h>

#include "cupti/cuda_side.h"

static struct rp_node_use launch(const void *function, void **params, void **extra) {
  return (struct rp_node_use){
      .launch = {.function = (uint64_t)(uintptr_t)function, .params = params, .extra = extra}};
}

/* From the first to behind the last byte of `height` rows. */
static struct rp_node_use memset_of(uint64_t address, uint64_t pitch, uint64_t row_bytes, uint64_t height) {
  uint64_t bytes = height && row_bytes ? (height - 1) * pitch + row_bytes : 0;
  return (struct rp_node_use){.op = {.kind = RP_EVENT_MEMSET, .address = address, .bytes = bytes}};
}

/* ---- the driver's ---- */

bool rp_node_driver_kernel(const void *params, bool has_kernel, struct rp_node_use *out) {
  const CUDA_KERNEL_NODE_PARAMS *p = params;
  if (!p) return false;
  *out = launch(p->func || !has_kernel ? (const void *)p->func : (const void *)p->kern, p->kernelParams,
                p->extra);
  return true;
}

bool rp_node_driver_memset(const void *params, struct rp_node_use *out) {
  const CUDA_MEMSET_NODE_PARAMS *p = params;
  if (!p) return false;
  *out = memset_of(p->dst, p->pitch, p->width * p->elementSize, p->height);
  return true;
}

bool rp_node_driver_copy(const void *params, struct rp_node_use *out) {
  *out = (struct rp_node_use){0};
  return rp_shape_copy_3d(params, &out->op);
}

bool rp_node_driver_words(const void *params, struct rp_node_use *out) {
  const CUDA_BATCH_MEM_OP_NODE_PARAMS *p = params;
  if (!p) return false;
  *out = (struct rp_node_use){.words = p->paramArray, .word_count = p->count};
  return true;
}

bool rp_node_driver(const void *params, struct rp_node_use *out) {
  const CUgraphNodeParams *p = params;
  if (!p) return false;
  switch ((int)p->type) {
  case CU_GRAPH_NODE_TYPE_KERNEL: /* the members in front are the same in every version */
    return rp_node_driver_kernel(&p->kernel, true, out);
  case CU_GRAPH_NODE_TYPE_MEMCPY:
    return rp_node_driver_copy(&p->memcpy.copyParams, out);
  case CU_GRAPH_NODE_TYPE_MEMSET:
    return rp_node_driver_memset(&p->memset, out);
  case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
    return rp_node_driver_words(&p->memOp, out);
  default:
    return false;
  }
}

/* ---- the runtime's ---- */

bool rp_node_runtime_kernel(const void *params, struct rp_node_use *out) {
  const struct cudaKernelNodeParams *p = params;
  if (!p) return false;
  *out = launch(p->func, p->kernelParams, p->extra);
  out->by_symbol = true;
  return true;
}

bool rp_node_runtime_memset(const void *params, struct rp_node_use *out) {
  const struct cudaMemsetParams *p = params;
  if (!p) return false;
  *out = memset_of((uint64_t)(uintptr_t)p->dst, p->pitch, p->width * p->elementSize, p->height);
  return true;
}

bool rp_node_runtime_copy(const void *params, struct rp_node_use *out) {
  *out = (struct rp_node_use){0};
  return rp_shape_runtime_copy_3d(params, &out->op);
}

_Static_assert(offsetof(struct cudaKernelNodeParamsV2, extra) ==
                       offsetof(struct cudaKernelNodeParams, extra) &&
                   offsetof(struct cudaMemsetParamsV2, height) == offsetof(struct cudaMemsetParams, height) &&
                   offsetof(CUDA_KERNEL_NODE_PARAMS_v3, ctx) == offsetof(CUDA_KERNEL_NODE_PARAMS, ctx) &&
                   offsetof(CUDA_MEMSET_NODE_PARAMS_v2, height) == offsetof(CUDA_MEMSET_NODE_PARAMS, height),
               "newer parameters begin like the older ones");

bool rp_node_runtime(const void *params, struct rp_node_use *out) {
  const struct cudaGraphNodeParams *p = params;
  if (!p) return false;
  switch ((int)p->type) {
  case cudaGraphNodeTypeKernel:
    return rp_node_runtime_kernel(&p->kernel, out);
  case cudaGraphNodeTypeMemcpy:
    return rp_node_runtime_copy(&p->memcpy.copyParams, out);
  case cudaGraphNodeTypeMemset:
    return rp_node_runtime_memset(&p->memset, out);
  default:
    return false;
  }
}
