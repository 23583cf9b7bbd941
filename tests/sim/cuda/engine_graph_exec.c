/* Owns executable graphs. Instantiation lays the nodes out on lanes; a launch replays them, lane 0 on the
 * launching stream and each other lane on a stream of the exec's own, ordered by the graph's edges and
 * nothing else:
 *
 *   launching stream: ... fork ---- lane 0 ------- join ...
 *   exec's streams:         \------ lane 1 --------/
 */
#include "engine_internal.h"
#include <stdlib.h>
#include <string.h>

#define NO_LANE SIZE_MAX
#define NO_NODE SIZE_MAX

struct exec_node {
  CUgraphNodeType type;
  struct sim_work *work;
  CUevent event;
  size_t lane;
  size_t dependency_count;
  size_t *dependencies;  /* indexes */
  struct sim_point done; /* of the launch that is being enqueued; holds no reference */
};

struct sim_exec {
  struct sim_handle handle;
  struct exec_node *nodes;
  size_t node_count, lane_count;
  struct sim_stream **lanes;  /* [0] unused; made at the first launch, each holding a reference */
  struct sim_point last_join; /* of the previous launch; holds a reference to its stream, or has none */
};

/* ---- instantiation ---- */

static void free_exec_locked(struct sim_exec *exec) {
  for (size_t i = 0; i < exec->node_count; i++) {
    sim_work_unref(exec->nodes[i].work);
    free(exec->nodes[i].dependencies);
  }
  for (size_t i = 1; exec->lanes && i < exec->lane_count; i++) {
    if (!exec->lanes[i]) continue;
    if (exec->lanes[i]->context) sim_stream_close_locked(exec->lanes[i]);
    sim_stream_unref_locked(exec->lanes[i]);
  }
  if (exec->last_join.stream) sim_stream_unref_locked(exec->last_join.stream);
  free(exec->lanes);
  free(exec->nodes);
  free(exec);
}

/* Nodes that an executable graph has for a graph: a child stands between two that do nothing. */
static size_t flat_count(const struct sim_graph *graph) {
  size_t count = graph->node_count;
  for (size_t i = 0; i < graph->node_count; i++)
    if (graph->nodes[i]->child) count += 1 + flat_count(graph->nodes[i]->child);
  return count;
}

/* Adds a node with room for so many dependencies; NULL without memory. */
static struct exec_node *add_exec_node(struct sim_exec *exec, CUgraphNodeType type, size_t dependencies) {
  struct exec_node *added = &exec->nodes[exec->node_count];
  *added = (struct exec_node){.type = type, .dependencies = calloc(dependencies + 1, sizeof(size_t))};
  if (!added->dependencies) return NULL;
  exec->node_count++;
  return added;
}

/* The copy of one node: behind its dependencies, by their places, or behind `before` if it has none. */
static bool copy_node(struct sim_exec *exec, const struct sim_node *node, const size_t *places,
                      size_t before) {
  struct exec_node *copy =
      add_exec_node(exec, node->child ? CU_GRAPH_NODE_TYPE_EMPTY : node->type, node->dependency_count + 1);
  if (!copy) return false;
  copy->event = node->event;
  copy->work = node->work;
  if (copy->work) atomic_fetch_add(&copy->work->refs, 1);
  for (size_t i = 0; i < node->dependency_count; i++)
    copy->dependencies[copy->dependency_count++] = places[node->dependencies[i]->index];
  if (copy->dependency_count == 0 && before != NO_NODE) copy->dependencies[copy->dependency_count++] = before;
  return true;
}

static bool copy_graph(struct sim_exec *exec, const struct sim_graph *graph, size_t before);

/* Behind all of a child, which began behind `before`. */
static bool copy_child(struct sim_exec *exec, const struct sim_graph *child) {
  size_t before = exec->node_count - 1;
  if (!copy_graph(exec, child, before)) return false;
  size_t inside = exec->node_count - before;
  struct exec_node *end = add_exec_node(exec, CU_GRAPH_NODE_TYPE_EMPTY, inside);
  for (size_t i = 0; end && i < inside; i++)
    end->dependencies[end->dependency_count++] = before + i;
  return end != NULL;
}

static bool copy_graph(struct sim_exec *exec, const struct sim_graph *graph, size_t before) {
  size_t *places = calloc(graph->node_count + 1, sizeof(*places));
  bool good = places != NULL;
  for (size_t i = 0; good && i < graph->node_count; i++) {
    const struct sim_node *node = graph->nodes[i];
    good = copy_node(exec, node, places, before) && (!node->child || copy_child(exec, node->child));
    places[i] = exec->node_count - 1;
  }
  free(places);
  return good;
}

/* A node continues the lane of a dependency that is last in its lane, or opens one. lane_ends has room for
 * all. */
static void assign_lanes(struct sim_exec *exec, size_t *lane_ends) {
  for (size_t i = 0; i < exec->node_count; i++) {
    struct exec_node *node = &exec->nodes[i];
    node->lane = NO_LANE;
    for (size_t j = 0; j < node->dependency_count && node->lane == NO_LANE; j++) {
      size_t lane = exec->nodes[node->dependencies[j]].lane;
      if (lane_ends[lane] == node->dependencies[j]) node->lane = lane;
    }
    if (node->lane == NO_LANE) node->lane = exec->lane_count++;
    lane_ends[node->lane] = i;
  }
}

static struct sim_exec *new_exec_locked(const struct sim_graph *graph) {
  struct sim_exec *exec = calloc(1, sizeof(*exec));
  size_t count = flat_count(graph) + 1;
  size_t *lane_ends = calloc(count, sizeof(*lane_ends));
  bool good = exec && lane_ends;
  if (good) exec->nodes = calloc(count, sizeof(*exec->nodes));
  good = good && exec->nodes && copy_graph(exec, graph, NO_NODE);
  if (good) {
    assign_lanes(exec, lane_ends);
    exec->lanes = calloc(exec->lane_count + 1, sizeof(struct sim_stream *));
    good = exec->lanes && sim_handle_add(&exec->handle, SIM_HANDLE_EXEC);
  }
  free(lane_ends);
  if (!good && exec) {
    free_exec_locked(exec);
    exec = NULL;
  }
  return exec;
}

CUresult impl_cuGraphInstantiateWithFlags(CUgraphExec *phGraphExec, CUgraph hGraph,
                                          unsigned long long flags) {
  CUresult result = sim_engine_enter_process();
  if (result != CUDA_SUCCESS) return result;
  const unsigned long long known =
      CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD |
      CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
  if (!phGraphExec || (flags & ~known)) return CUDA_ERROR_INVALID_VALUE;
  struct sim_context *context = sim_context_current();
  CUpti_GraphData data = {.graph = hGraph};
  sim_resource_callback(CUPTI_CBID_RESOURCE_GRAPHEXEC_CREATE_STARTING, context, NULL, &data);
  pthread_mutex_lock(&sim_engine_lock);
  const struct sim_graph *graph = sim_handle_find(hGraph, SIM_HANDLE_GRAPH);
  struct sim_exec *exec = graph ? new_exec_locked(graph) : NULL;
  pthread_mutex_unlock(&sim_engine_lock);
  if (!exec) return graph ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
  data.graphExec = *phGraphExec = (CUgraphExec)exec;
  sim_resource_callback(CUPTI_CBID_RESOURCE_GRAPHEXEC_CREATED, context, NULL, &data);
  return CUDA_SUCCESS;
}

CUresult impl_cuGraphInstantiateWithParams(CUgraphExec *phGraphExec, CUgraph hGraph,
                                           CUDA_GRAPH_INSTANTIATE_PARAMS *instantiateParams) {
  if (!instantiateParams) return CUDA_ERROR_INVALID_VALUE;
  CUresult result = impl_cuGraphInstantiateWithFlags(phGraphExec, hGraph, instantiateParams->flags);
  instantiateParams->hErrNode_out = NULL;
  instantiateParams->result_out =
      result == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
  return result;
}

CUresult impl_cuGraphExecDestroy(CUgraphExec hGraphExec) {
  CUresult result = sim_engine_enter_process();
  if (result != CUDA_SUCCESS) return result;
  pthread_mutex_lock(&sim_engine_lock);
  bool found = sim_handle_find(hGraphExec, SIM_HANDLE_EXEC) != NULL;
  pthread_mutex_unlock(&sim_engine_lock);
  if (!found) return CUDA_ERROR_INVALID_VALUE;
  CUpti_GraphData data = {.graphExec = hGraphExec};
  sim_resource_callback(CUPTI_CBID_RESOURCE_GRAPHEXEC_DESTROY_STARTING, sim_context_current(), NULL, &data);
  pthread_mutex_lock(&sim_engine_lock);
  struct sim_exec *exec = sim_handle_find(hGraphExec, SIM_HANDLE_EXEC);
  if (exec) {
    sim_handle_remove(&exec->handle);
    free_exec_locked(exec); /* what is under way holds its own references */
  }
  pthread_mutex_unlock(&sim_engine_lock);
  return exec ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- launch ---- */

/* Makes the exec's streams in this context, in place of those of a context that is gone or another. */
static bool prepare_lanes_locked(struct sim_exec *exec, struct sim_engine_context *context) {
  for (size_t i = 1; i < exec->lane_count; i++) {
    struct sim_stream *lane = exec->lanes[i];
    if (lane && lane->context == context && !lane->closing) continue;
    if (lane) {
      if (lane->context) sim_stream_close_locked(lane);
      sim_stream_unref_locked(lane);
    }
    exec->lanes[i] = sim_stream_new_locked(context, CU_STREAM_NON_BLOCKING, 0);
    if (!exec->lanes[i]) return false;
    sim_stream_ref_locked(exec->lanes[i]);
  }
  return true;
}

static CUresult enqueue_body_locked(struct exec_node *node, struct sim_stream *lane) {
  struct sim_event *event = node->work ? NULL : sim_handle_find(node->event, SIM_HANDLE_EVENT);
  if (event)
    return node->type == CU_GRAPH_NODE_TYPE_EVENT_RECORD ? sim_event_record_locked(event, lane)
                                                         : sim_event_wait_locked(event, lane);
  if (node->work) atomic_fetch_add(&node->work->refs, 1);
  return sim_stream_append_locked(lane, node->work, NULL, 0, node->work == NULL);
}

/* Enqueues one node behind its dependencies; roots come behind the fork. `points` has room for all
 * dependencies. */
static CUresult enqueue_node_locked(struct sim_exec *exec, struct exec_node *node, struct sim_stream *lane,
                                    struct sim_point fork, struct sim_point *points) {
  size_t count = 0;
  if (node->dependency_count == 0) points[count++] = fork;
  for (size_t i = 0; i < node->dependency_count; i++)
    points[count++] = exec->nodes[node->dependencies[i]].done;
  CUresult result = sim_stream_append_locked(lane, NULL, points, count, true);
  if (result == CUDA_SUCCESS) result = enqueue_body_locked(node, lane);
  node->done = (struct sim_point){.stream = lane, .sequence = lane->enqueued};
  return result;
}

/* Makes the launching stream wait for the ends of the other lanes. */
static CUresult join_locked(struct sim_exec *exec, struct sim_stream *stream, struct sim_point *points) {
  size_t count = 0;
  for (size_t i = 1; i < exec->lane_count; i++)
    points[count++] = (struct sim_point){.stream = exec->lanes[i], .sequence = exec->lanes[i]->enqueued};
  CUresult result = sim_stream_append_locked(stream, NULL, points, count, true);
  if (exec->last_join.stream) sim_stream_unref_locked(exec->last_join.stream);
  exec->last_join = (struct sim_point){.stream = stream, .sequence = stream->enqueued};
  sim_stream_ref_locked(stream);
  return result;
}

static CUresult launch_locked(struct sim_exec *exec, struct sim_stream *stream) {
  struct sim_point *points = calloc(exec->node_count + exec->lane_count + 1, sizeof(*points));
  if (!points || !prepare_lanes_locked(exec, stream->context)) {
    free(points);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  CUresult result =
      sim_stream_append_locked(stream, NULL, &exec->last_join, exec->last_join.stream != NULL, true);
  struct sim_point fork = {.stream = stream, .sequence = stream->enqueued};
  for (size_t i = 0; i < exec->node_count && result == CUDA_SUCCESS; i++) {
    struct exec_node *node = &exec->nodes[i];
    result = enqueue_node_locked(exec, node, node->lane ? exec->lanes[node->lane] : stream, fork, points);
  }
  CUresult joined = join_locked(exec, stream, points);
  free(points);
  return result == CUDA_SUCCESS ? joined : result;
}

CUresult impl_cuGraphLaunch(CUgraphExec hGraphExec, CUstream hStream) {
  struct sim_context *context;
  CUresult result = sim_engine_enter(&context);
  if (result != CUDA_SUCCESS) return result;
  pthread_mutex_lock(&sim_engine_lock);
  struct sim_exec *exec = sim_handle_find(hGraphExec, SIM_HANDLE_EXEC);
  struct sim_stream *stream;
  result = exec ? sim_stream_resolve_locked(context, hStream, &stream) : CUDA_ERROR_INVALID_HANDLE;
  if (result == CUDA_SUCCESS) result = sim_capture_forbid_locked(stream);
  if (result == CUDA_SUCCESS) result = launch_locked(exec, stream);
  pthread_mutex_unlock(&sim_engine_lock);
  return result;
}

CUresult impl_cuGraphUpload(CUgraphExec hGraphExec, CUstream hStream) {
  struct sim_context *context;
  CUresult result = sim_engine_enter(&context);
  if (result != CUDA_SUCCESS) return result;
  pthread_mutex_lock(&sim_engine_lock);
  struct sim_stream *stream;
  result = sim_handle_find(hGraphExec, SIM_HANDLE_EXEC) ? sim_stream_resolve_locked(context, hStream, &stream)
                                                        : CUDA_ERROR_INVALID_HANDLE;
  pthread_mutex_unlock(&sim_engine_lock);
  return result;
}
