/* Owns graphs and code libraries of the simulated runtime; handles are the driver's own. */
#include "runtime.h"

cudaError_t impl_cudaGraphCreate(cudaGraph_t *graph, unsigned int flags) {
  return RT(cuGraphCreate, graph, flags);
}

cudaError_t impl_cudaGraphAddChildGraphNode(cudaGraphNode_t *node, cudaGraph_t graph,
                                            const cudaGraphNode_t *dependencies, size_t dependency_count,
                                            cudaGraph_t child) {
  return RT(cuGraphAddChildGraphNode, node, graph, dependencies, dependency_count, child);
}

cudaError_t impl_cudaGraphAddMemsetNode(cudaGraphNode_t *node, cudaGraph_t graph,
                                        const cudaGraphNode_t *dependencies, size_t dependency_count,
                                        const struct cudaMemsetParams *params) {
  CUcontext context = NULL;
  if (!params) return cudaErrorInvalidValue;
  const CUDA_MEMSET_NODE_PARAMS converted = {.dst = (CUdeviceptr)(uintptr_t)params->dst,
                                             .pitch = params->pitch,
                                             .value = params->value,
                                             .elementSize = params->elementSize,
                                             .width = params->width,
                                             .height = params->height};
  cudaError_t error = RT(cuCtxGetCurrent, &context);
  return error ? error
               : RT(cuGraphAddMemsetNode, node, graph, dependencies, dependency_count, &converted, context);
}

cudaError_t impl_cudaGraphChildGraphNodeGetGraph(cudaGraphNode_t node, cudaGraph_t *graph) {
  return RT(cuGraphChildGraphNodeGetGraph, node, graph);
}

cudaError_t impl_cudaGraphDestroy(cudaGraph_t graph) {
  return RT(cuGraphDestroy, graph);
}

cudaError_t impl_cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count) {
  return RT(cuGraphGetNodes, graph, nodes, count);
}

cudaError_t impl_cudaGraphGetRootNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count) {
  return RT(cuGraphGetRootNodes, graph, nodes, count);
}

cudaError_t impl_cudaGraphGetEdges(cudaGraph_t graph, cudaGraphNode_t *from, cudaGraphNode_t *to,
                                   cudaGraphEdgeData *data, size_t *count) {
  return RT(cuGraphGetEdges, graph, from, to, (CUgraphEdgeData *)data, count);
}

_Static_assert((int)cudaGraphNodeTypeKernel == (int)CU_GRAPH_NODE_TYPE_KERNEL &&
                   (int)cudaGraphNodeTypeMemFree == (int)CU_GRAPH_NODE_TYPE_MEM_FREE,
               "node types up to these are numbered alike");

cudaError_t impl_cudaGraphNodeGetType(cudaGraphNode_t node, enum cudaGraphNodeType *type) {
  CUgraphNodeType found = CU_GRAPH_NODE_TYPE_EMPTY;
  if (!type) return cudaErrorInvalidValue;
  cudaError_t error = RT(cuGraphNodeGetType, node, &found);
  if (!error) *type = (enum cudaGraphNodeType)found;
  return error;
}

cudaError_t impl_cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags) {
  return RT(cuGraphInstantiateWithFlags, exec, graph, flags);
}

cudaError_t impl_cudaGraphInstantiateWithFlags(cudaGraphExec_t *exec, cudaGraph_t graph,
                                               unsigned long long flags) {
  return RT(cuGraphInstantiateWithFlags, exec, graph, flags);
}

cudaError_t impl_cudaGraphInstantiateWithParams(cudaGraphExec_t *exec, cudaGraph_t graph,
                                                cudaGraphInstantiateParams *params) {
  if (!params) return cudaErrorInvalidValue;
  CUDA_GRAPH_INSTANTIATE_PARAMS converted = {.flags = params->flags, .hUploadStream = params->uploadStream};
  cudaError_t error = RT(cuGraphInstantiateWithParams, exec, graph, &converted);
  params->errNode_out = converted.hErrNode_out;
  params->result_out = (cudaGraphInstantiateResult)converted.result_out;
  return error;
}

cudaError_t impl_cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream) {
  return RT(cuGraphUpload, exec, stream);
}

cudaError_t impl_cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  return RT(cuGraphLaunch, exec, stream);
}

cudaError_t impl_cudaGraphExecDestroy(cudaGraphExec_t exec) {
  return RT(cuGraphExecDestroy, exec);
}

/* Options of the compiler have no meaning here: kernels are host functions. */
cudaError_t impl_cudaLibraryLoadData(cudaLibrary_t *library, const void *code,
                                     enum cudaJitOption *jit_options, void **jit_values,
                                     unsigned int jit_count, enum cudaLibraryOption *library_options,
                                     void **library_values, unsigned int library_count) {
  (void)jit_options, (void)jit_values, (void)library_options, (void)library_values;
  (void)jit_count, (void)library_count;
  CUlibrary loaded;
  if (!library) return cudaErrorInvalidValue;
  cudaError_t error = RT(cuLibraryLoadData, &loaded, code, NULL, NULL, 0, NULL, NULL, 0);
  if (!error) *library = (cudaLibrary_t)loaded;
  return error;
}

cudaError_t impl_cudaLibraryUnload(cudaLibrary_t library) {
  return RT(cuLibraryUnload, (CUlibrary)library);
}

cudaError_t impl_cudaLibraryGetKernel(cudaKernel_t *kernel, cudaLibrary_t library, const char *name) {
  CUkernel found;
  if (!kernel) return cudaErrorInvalidValue;
  cudaError_t error = RT(cuLibraryGetKernel, &found, (CUlibrary)library, name);
  if (!error) error = rt_kernel_remember(found, NULL);
  if (!error) *kernel = (cudaKernel_t)found;
  return error;
}
