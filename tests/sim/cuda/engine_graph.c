/* Owns graphs and their nodes: creation, end, questions, and the callbacks of the resource domain about them.
 */
#include "engine_launch.h"
#include <stdlib.h>
#include <string.h>

/* ---- callbacks: kept while the lock is held, raised without it ---- */

struct notice {
  CUpti_CallbackIdResource id;
  CUpti_GraphData data;
};

static _Thread_local struct notice *notices;
static _Thread_local size_t notice_count, notice_capacity;

/* Without memory the callback is left out. */
static void keep_notice(CUpti_CallbackIdResource id, CUpti_GraphData data) {
  if (notice_count == notice_capacity) {
    size_t capacity = notice_capacity ? notice_capacity * 2 : 8;
    struct notice *grown = realloc(notices, capacity * sizeof(*grown));
    if (!grown) return;
    notices = grown;
    notice_capacity = capacity;
  }
  notices[notice_count++] = (struct notice){id, data};
}

void sim_graph_notify(struct sim_context *context) {
  if (!notices) return;
  struct notice *raised = notices;
  size_t count = notice_count;
  notices = NULL;
  notice_count = notice_capacity = 0;
  for (size_t i = 0; i < count; i++)
    sim_resource_callback(raised[i].id, context, NULL, &raised[i].data);
  free(raised);
}

/* ---- graphs and nodes ---- */

struct sim_graph *sim_graph_new_locked(void) {
  struct sim_graph *graph = calloc(1, sizeof(*graph));
  if (!graph || !sim_handle_add(&graph->handle, SIM_HANDLE_GRAPH)) {
    free(graph);
    return NULL;
  }
  keep_notice(CUPTI_CBID_RESOURCE_GRAPH_CREATED, (CUpti_GraphData){.graph = (CUgraph)graph});
  return graph;
}

static void free_node_locked(struct sim_node *node) {
  if (node->child) sim_graph_free_locked(node->child);
  sim_handle_remove(&node->handle);
  sim_work_unref(node->work);
  free(node->dependencies);
  free(node);
}

void sim_graph_free_locked(struct sim_graph *graph) {
  sim_handle_remove(&graph->handle);
  for (size_t i = 0; i < graph->node_count; i++)
    free_node_locked(graph->nodes[i]);
  free(graph->nodes);
  free(graph);
}

static bool append_node(struct sim_graph *graph, struct sim_node *node) {
  if (graph->node_count == graph->node_capacity) {
    size_t capacity = graph->node_capacity ? graph->node_capacity * 2 : 16;
    struct sim_node **grown = realloc(graph->nodes, capacity * sizeof(struct sim_node *));
    if (!grown) return false;
    graph->nodes = grown;
    graph->node_capacity = capacity;
  }
  node->index = graph->node_count;
  graph->nodes[graph->node_count++] = node;
  return true;
}

static void notice_node(const struct sim_node *node) {
  CUpti_GraphData data = {.graph = (CUgraph)node->graph, .node = (CUgraphNode)node, .nodeType = node->type};
  keep_notice(CUPTI_CBID_RESOURCE_GRAPHNODE_CREATE_STARTING, data);
  keep_notice(CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED, data);
  for (size_t i = 0; i < node->dependency_count; i++) {
    data.dependency = (CUgraphNode)node->dependencies[i];
    keep_notice(CUPTI_CBID_RESOURCE_GRAPHNODE_DEPENDENCY_CREATED, data);
  }
}

struct sim_node *sim_graph_add_locked(struct sim_graph *graph, CUgraphNodeType type, struct sim_work *work,
                                      struct sim_node *const *dependencies, size_t dependency_count) {
  struct sim_node *node = calloc(1, sizeof(*node));
  struct sim_node **copy = node ? calloc(dependency_count + 1, sizeof(struct sim_node *)) : NULL;
  if (!copy || !sim_handle_add(&node->handle, SIM_HANDLE_NODE)) {
    sim_work_unref(work);
    free(copy);
    free(node);
    return NULL;
  }
  if (dependency_count) memcpy(copy, dependencies, dependency_count * sizeof(struct sim_node *));
  node->graph = graph;
  node->type = type;
  node->work = work;
  node->dependencies = copy;
  node->dependency_count = dependency_count;
  if (!append_node(graph, node)) {
    free_node_locked(node);
    return NULL;
  }
  notice_node(node);
  return node;
}

/* ---- graphs inside graphs ---- */

/* A copy of a graph, its children too; NULL without memory. */
static struct sim_graph *clone_locked(const struct sim_graph *graph) {
  struct sim_graph *copy = sim_graph_new_locked();
  struct sim_node **dependencies = calloc(graph->node_count + 1, sizeof(struct sim_node *));
  bool good = copy && dependencies;
  for (size_t i = 0; good && i < graph->node_count; i++) {
    const struct sim_node *node = graph->nodes[i];
    for (size_t j = 0; j < node->dependency_count; j++)
      dependencies[j] = copy->nodes[node->dependencies[j]->index];
    if (node->work) atomic_fetch_add(&node->work->refs, 1);
    struct sim_node *added =
        sim_graph_add_locked(copy, node->type, node->work, dependencies, node->dependency_count);
    if (added) added->event = node->event;
    if (added && node->child) added->child = clone_locked(node->child);
    good = added && (!node->child || added->child);
  }
  free(dependencies);
  if (!good && copy) sim_graph_free_locked(copy);
  return good ? copy : NULL;
}

/* Every handle is a node of this graph. */
static bool are_nodes_of_locked(const struct sim_graph *graph, const CUgraphNode *handles, size_t count) {
  for (size_t i = 0; i < count; i++) {
    const struct sim_node *node = handles ? sim_handle_find(handles[i], SIM_HANDLE_NODE) : NULL;
    if (!node || node->graph != graph) return false;
  }
  return true;
}

CUresult impl_cuGraphAddChildGraphNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                                       const CUgraphNode *dependencies, size_t numDependencies,
                                       CUgraph childGraph) {
  CUresult result = sim_engine_enter_process();
  if (result != CUDA_SUCCESS) return result;
  pthread_mutex_lock(&sim_engine_lock);
  struct sim_graph *graph = sim_handle_find(hGraph, SIM_HANDLE_GRAPH);
  const struct sim_graph *child = sim_handle_find(childGraph, SIM_HANDLE_GRAPH);
  struct sim_node *node = NULL;
  if (!phGraphNode || !graph || !child || graph == child ||
      !are_nodes_of_locked(graph, dependencies, numDependencies)) {
    result = CUDA_ERROR_INVALID_VALUE;
  } else {
    struct sim_graph *copy = clone_locked(child);
    if (copy)
      node = sim_graph_add_locked(graph, CU_GRAPH_NODE_TYPE_GRAPH, NULL,
                                  (struct sim_node *const *)dependencies, numDependencies);
    if (copy && !node) sim_graph_free_locked(copy);
    if (node) node->child = copy;
    result = node ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
  }
  pthread_mutex_unlock(&sim_engine_lock);
  sim_graph_notify(sim_context_current());
  if (result == CUDA_SUCCESS) *phGraphNode = (CUgraphNode)node;
  return result;
}

CUresult impl_cuGraphChildGraphNodeGetGraph(CUgraphNode hNode, CUgraph *phGraph) {
  CUresult result = sim_engine_enter_process();
  if (result != CUDA_SUCCESS) return result;
  pthread_mutex_lock(&sim_engine_lock);
  const struct sim_node *node = phGraph ? sim_handle_find(hNode, SIM_HANDLE_NODE) : NULL;
  bool good = node && node->child;
  if (good) *phGraph = (CUgraph)node->child;
  pthread_mutex_unlock(&sim_engine_lock);
  return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- nodes added by hand ---- */

/* Takes over the work. */
static CUresult add_by_hand(CUgraphNode *out, CUgraph handle, CUgraphNodeType type, struct sim_work *work,
                            const CUgraphNode *dependencies, size_t count) {
  struct sim_node *node = NULL;
  pthread_mutex_lock(&sim_engine_lock);
  struct sim_graph *graph = sim_handle_find(handle, SIM_HANDLE_GRAPH);
  bool good = out && graph && are_nodes_of_locked(graph, dependencies, count);
  if (good)
    node = sim_graph_add_locked(graph, type, work, (struct sim_node *const *)dependencies, count);
  else
    sim_work_unref(work);
  pthread_mutex_unlock(&sim_engine_lock);
  sim_graph_notify(sim_context_current());
  if (node) *out = (CUgraphNode)node;
  return node ? CUDA_SUCCESS : good ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
}

CUresult impl_cuGraphAddKernelNode_v2(CUgraphNode *phGraphNode, CUgraph hGraph,
                                      const CUgraphNode *dependencies, size_t numDependencies,
                                      const CUDA_KERNEL_NODE_PARAMS *nodeParams) {
  struct sim_work *work = NULL;
  CUresult result = sim_engine_enter_process();
  if (result == CUDA_SUCCESS) result = sim_kernel_node_work(nodeParams, &work);
  if (result != CUDA_SUCCESS) return result;
  return add_by_hand(phGraphNode, hGraph, CU_GRAPH_NODE_TYPE_KERNEL, work, dependencies, numDependencies);
}

CUresult impl_cuGraphAddMemsetNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                                   size_t numDependencies, const CUDA_MEMSET_NODE_PARAMS *memsetParams,
                                   CUcontext ctx) {
  struct sim_work *work = NULL;
  CUresult result = sim_engine_enter_process();
  if (result == CUDA_SUCCESS && !ctx) result = CUDA_ERROR_INVALID_CONTEXT;
  if (result == CUDA_SUCCESS) result = sim_memset_node_work(memsetParams, &work);
  if (result != CUDA_SUCCESS) return result;
  return add_by_hand(phGraphNode, hGraph, CU_GRAPH_NODE_TYPE_MEMSET, work, dependencies, numDependencies);
}

CUresult impl_cuGraphAddMemcpyNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                                   size_t numDependencies, const CUDA_MEMCPY3D *copyParams, CUcontext ctx) {
  struct sim_work *work = NULL;
  CUresult result = sim_engine_enter_process();
  if (result == CUDA_SUCCESS && !ctx) result = CUDA_ERROR_INVALID_CONTEXT;
  if (result == CUDA_SUCCESS) result = sim_copy_node_work(copyParams, &work);
  if (result != CUDA_SUCCESS) return result;
  return add_by_hand(phGraphNode, hGraph, CU_GRAPH_NODE_TYPE_MEMCPY, work, dependencies, numDependencies);
}

/* ---- entry points ---- */

CUresult impl_cuGraphCreate(CUgraph *phGraph, unsigned int flags) {
  CUresult result = sim_engine_enter_process();
  if (result != CUDA_SUCCESS) return result;
  if (!phGraph || flags) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&sim_engine_lock);
  struct sim_graph *graph = sim_graph_new_locked();
  pthread_mutex_unlock(&sim_engine_lock);
  if (!graph) return CUDA_ERROR_OUT_OF_MEMORY;
  *phGraph = (CUgraph)graph;
  sim_graph_notify(sim_context_current());
  return CUDA_SUCCESS;
}

CUresult impl_cuGraphDestroy(CUgraph hGraph) {
  CUresult result = sim_engine_enter_process();
  if (result != CUDA_SUCCESS) return result;
  CUpti_GraphData data = {.graph = hGraph};
  pthread_mutex_lock(&sim_engine_lock);
  bool found = sim_handle_find(hGraph, SIM_HANDLE_GRAPH) != NULL;
  pthread_mutex_unlock(&sim_engine_lock);
  if (!found) return CUDA_ERROR_INVALID_VALUE;
  sim_resource_callback(CUPTI_CBID_RESOURCE_GRAPH_DESTROY_STARTING, sim_context_current(), NULL, &data);
  pthread_mutex_lock(&sim_engine_lock);
  struct sim_graph *graph = sim_handle_find(hGraph, SIM_HANDLE_GRAPH);
  if (graph) sim_graph_free_locked(graph);
  pthread_mutex_unlock(&sim_engine_lock);
  return graph ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Writes up to *count handles of the nodes wanted, NULL for the rest; with no array, their number. */
static CUresult list_nodes(CUgraph handle, CUgraphNode *nodes, size_t *count, bool only_roots) {
  CUresult result = sim_engine_enter_process();
  if (result != CUDA_SUCCESS) return result;
  pthread_mutex_lock(&sim_engine_lock);
  const struct sim_graph *graph = count ? sim_handle_find(handle, SIM_HANDLE_GRAPH) : NULL;
  size_t found = 0;
  for (size_t i = 0; graph && i < graph->node_count; i++) {
    if (only_roots && graph->nodes[i]->dependency_count) continue;
    if (nodes && found < *count) nodes[found] = (CUgraphNode)graph->nodes[i];
    found++;
  }
  for (size_t i = found; graph && nodes && i < *count; i++)
    nodes[i] = NULL;
  if (graph && (!nodes || found < *count)) *count = found;
  pthread_mutex_unlock(&sim_engine_lock);
  return graph ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult impl_cuGraphGetNodes(CUgraph hGraph, CUgraphNode *nodes, size_t *numNodes) {
  return list_nodes(hGraph, nodes, numNodes, false);
}

CUresult impl_cuGraphGetRootNodes(CUgraph hGraph, CUgraphNode *rootNodes, size_t *numRootNodes) {
  return list_nodes(hGraph, rootNodes, numRootNodes, true);
}

CUresult impl_cuGraphGetEdges_v2(CUgraph hGraph, CUgraphNode *from, CUgraphNode *to,
                                 CUgraphEdgeData *edgeData, size_t *numEdges) {
  CUresult result = sim_engine_enter_process();
  if (result != CUDA_SUCCESS) return result;
  if (!numEdges || !from != !to || (edgeData && !from)) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&sim_engine_lock);
  const struct sim_graph *graph = sim_handle_find(hGraph, SIM_HANDLE_GRAPH);
  size_t found = 0;
  for (size_t i = 0; graph && i < graph->node_count; i++) {
    const struct sim_node *node = graph->nodes[i];
    for (size_t j = 0; j < node->dependency_count; j++, found++) {
      if (!from || found >= *numEdges) continue;
      from[found] = (CUgraphNode)node->dependencies[j];
      to[found] = (CUgraphNode)node;
      if (edgeData) edgeData[found] = (CUgraphEdgeData){0};
    }
  }
  if (graph && (!from || found < *numEdges)) *numEdges = found;
  pthread_mutex_unlock(&sim_engine_lock);
  return graph ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult impl_cuGraphNodeGetType(CUgraphNode hNode, CUgraphNodeType *type) {
  CUresult result = sim_engine_enter_process();
  if (result != CUDA_SUCCESS) return result;
  pthread_mutex_lock(&sim_engine_lock);
  const struct sim_node *node = type ? sim_handle_find(hNode, SIM_HANDLE_NODE) : NULL;
  if (node) *type = node->type;
  pthread_mutex_unlock(&sim_engine_lock);
  return node ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult impl_cuGraphKernelNodeGetParams_v2(CUgraphNode hNode, CUDA_KERNEL_NODE_PARAMS *nodeParams) {
  CUresult result = sim_engine_enter_process();
  if (result != CUDA_SUCCESS) return result;
  pthread_mutex_lock(&sim_engine_lock);
  const struct sim_node *node = nodeParams ? sim_handle_find(hNode, SIM_HANDLE_NODE) : NULL;
  bool good = node && node->type == CU_GRAPH_NODE_TYPE_KERNEL;
  if (good) {
    const struct sim_kernel_work *launch = (const struct sim_kernel_work *)node->work;
    const struct rpsim_dims *dims = &launch->dims;
    *nodeParams = (CUDA_KERNEL_NODE_PARAMS){.func = launch->function,
                                            .gridDimX = dims->grid[0],
                                            .gridDimY = dims->grid[1],
                                            .gridDimZ = dims->grid[2],
                                            .blockDimX = dims->block[0],
                                            .blockDimY = dims->block[1],
                                            .blockDimZ = dims->block[2],
                                            .sharedMemBytes = dims->shared_bytes,
                                            .kernelParams = launch->params};
  }
  pthread_mutex_unlock(&sim_engine_lock);
  return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
