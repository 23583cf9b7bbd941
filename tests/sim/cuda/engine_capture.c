/* Owns stream capture: calls on a capturing stream become nodes of a graph. A stream's tail is the nodes that
 * its next node depends on; an event recorded in a capture holds a copy of the tail, and a wait joins it to
 * another stream's. */
#include "engine_internal.h"
#include <stdlib.h>
#include <string.h>

struct sim_capture {
  int refs; /* streams in it, events recorded in it, and the list while it lasts */
  struct sim_capture *next;
  struct sim_engine_context *context;
  struct sim_stream *origin;
  struct sim_graph *graph; /* NULL once it has ended */
  CUstreamCaptureMode mode;
  pthread_t thread;
  uint64_t id;
  bool invalid;
};

static struct sim_capture *captures;
static atomic_uint capture_count;
static uint64_t last_capture_id;
static _Thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

static void unref_capture_locked(struct sim_capture *capture) {
  if (capture && --capture->refs == 0) free(capture);
}

/* ---- tails ---- */

static bool contains(struct sim_node *const *nodes, size_t count, const struct sim_node *node) {
  for (size_t i = 0; i < count; i++)
    if (nodes[i] == node) return true;
  return false;
}

/* Adds nodes to a tail, each once. */
static bool join(struct sim_node ***tail, size_t *count, struct sim_node *const *more, size_t more_count) {
  struct sim_node **grown = realloc(*tail, (*count + more_count + 1) * sizeof(struct sim_node *));
  if (!grown) return false;
  *tail = grown;
  for (size_t i = 0; i < more_count; i++)
    if (!contains(grown, *count, more[i])) grown[(*count)++] = more[i];
  return true;
}

static void leave_locked(struct sim_stream *stream) {
  unref_capture_locked(stream->capture);
  stream->capture = NULL;
  free(stream->capture_tail);
  stream->capture_tail = NULL;
  stream->capture_tail_count = 0;
}

void sim_capture_forget_stream_locked(struct sim_stream *stream) {
  leave_locked(stream);
}

void sim_capture_forget_event_locked(struct sim_event *event) {
  unref_capture_locked(event->capture);
  event->capture = NULL;
  free(event->capture_nodes);
  event->capture_nodes = NULL;
  event->capture_node_count = 0;
}

/* ---- nodes ---- */

static CUresult add_node_locked(struct sim_stream *stream, CUgraphNodeType type, struct sim_work *work,
                                struct sim_node **added) {
  struct sim_capture *capture = stream->capture;
  if (capture->invalid) {
    sim_work_unref(work);
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  }
  struct sim_node *node =
      sim_graph_add_locked(capture->graph, type, work, stream->capture_tail, stream->capture_tail_count);
  stream->capture_tail_count = 0;
  if (!node || !join(&stream->capture_tail, &stream->capture_tail_count, &node, 1)) {
    capture->invalid = true;
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (added) *added = node;
  return CUDA_SUCCESS;
}

CUresult sim_capture_work_locked(struct sim_stream *stream, struct sim_work *work) {
  static const CUgraphNodeType types[] = {
      [SIM_WORK_KERNEL] = CU_GRAPH_NODE_TYPE_KERNEL,      [SIM_WORK_COPY] = CU_GRAPH_NODE_TYPE_MEMCPY,
      [SIM_WORK_MEMSET] = CU_GRAPH_NODE_TYPE_MEMSET,      [SIM_WORK_HOST] = CU_GRAPH_NODE_TYPE_HOST,
      [SIM_WORK_VALUE] = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
  };
  if (work->kind < sizeof(types) / sizeof(types[0]))
    return add_node_locked(stream, types[work->kind], work, NULL);
  sim_work_unref(work);
  return sim_capture_forbid_locked(stream);
}

CUresult sim_capture_external_locked(struct sim_event *event, struct sim_stream *stream,
                                     CUgraphNodeType type) {
  struct sim_node *node;
  if (!stream->capture) return CUDA_ERROR_INVALID_VALUE;
  CUresult result = add_node_locked(stream, type, NULL, &node);
  if (result == CUDA_SUCCESS) node->event = (CUevent)event;
  return result;
}

CUresult sim_capture_record_locked(struct sim_event *event, struct sim_stream *stream) {
  struct sim_capture *capture = stream->capture;
  if (capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  sim_capture_forget_event_locked(event);
  if (!join(&event->capture_nodes, &event->capture_node_count, stream->capture_tail,
            stream->capture_tail_count))
    return CUDA_ERROR_OUT_OF_MEMORY;
  event->capture = capture;
  capture->refs++;
  return CUDA_SUCCESS;
}

CUresult sim_capture_wait_locked(struct sim_event *event, struct sim_stream *stream) {
  struct sim_capture *capture = stream->capture;
  if (capture && capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (!event->capture && !event->record) return CUDA_SUCCESS;
  if (event->capture && !event->capture->graph) return CUDA_ERROR_CAPTURED_EVENT;
  if (event->capture && event->capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (!event->capture || (capture && capture != event->capture)) {
    capture->invalid = true; /* it would depend on work outside, or on another graph */
    return event->capture ? CUDA_ERROR_STREAM_CAPTURE_MERGE : CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  }
  if (stream->legacy) {
    event->capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  if (!join(&stream->capture_tail, &stream->capture_tail_count, event->capture_nodes,
            event->capture_node_count))
    return CUDA_ERROR_OUT_OF_MEMORY;
  if (!capture) {
    stream->capture = event->capture;
    stream->capture->refs++;
  }
  return CUDA_SUCCESS;
}

/* ---- calls that end a capture in error ---- */

static CUresult invalidate_locked(struct sim_capture *capture, CUresult result) {
  if (capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  capture->invalid = true;
  return result;
}

/* The capture that makes the legacy stream unusable, if `stream` is that, or NULL. */
static struct sim_capture *implicit_capture_locked(const struct sim_stream *stream) {
  if (!stream->legacy || atomic_load(&capture_count) == 0) return NULL;
  for (struct sim_stream *other = stream->context->streams; other; other = other->next)
    if (other->capture && other->blocking) return other->capture;
  return NULL;
}

CUresult sim_capture_forbid_implicit_locked(struct sim_stream *stream) {
  struct sim_capture *capture = implicit_capture_locked(stream);
  return capture ? invalidate_locked(capture, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) : CUDA_SUCCESS;
}

CUresult sim_capture_forbid_locked(struct sim_stream *stream) {
  if (stream->capture) return invalidate_locked(stream->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  return sim_capture_forbid_implicit_locked(stream);
}

CUresult sim_capture_forbid_event_locked(struct sim_event *event) {
  event->capture->invalid = true;
  return CUDA_ERROR_CAPTURED_EVENT;
}

CUresult sim_capture_forbid_unsafe(void) {
  if (atomic_load(&capture_count) == 0 || thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  CUresult result = CUDA_SUCCESS;
  pthread_mutex_lock(&sim_engine_lock);
  for (struct sim_capture *capture = captures; capture; capture = capture->next) {
    bool mine = pthread_equal(capture->thread, pthread_self());
    bool others =
        capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL && thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && (mine || others))
      result = invalidate_locked(capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  }
  pthread_mutex_unlock(&sim_engine_lock);
  return result;
}

CUresult sim_capture_forbid_context(struct sim_context *context) {
  if (atomic_load(&capture_count) == 0) return CUDA_SUCCESS;
  CUresult result = CUDA_SUCCESS;
  pthread_mutex_lock(&sim_engine_lock);
  for (struct sim_capture *capture = captures; capture; capture = capture->next)
    if (capture->context == context->engine)
      result = invalidate_locked(capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  pthread_mutex_unlock(&sim_engine_lock);
  return result;
}

/* ---- begin and end ---- */

static CUresult begin_locked(struct sim_stream *stream, CUstreamCaptureMode mode) {
  if (stream->legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (stream->capture) return CUDA_ERROR_ILLEGAL_STATE;
  struct sim_capture *capture = calloc(1, sizeof(*capture));
  struct sim_graph *graph = capture ? sim_graph_new_locked() : NULL;
  if (!graph) {
    free(capture);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *capture = (struct sim_capture){.refs = 2,
                                  .next = captures,
                                  .context = stream->context,
                                  .origin = stream,
                                  .graph = graph,
                                  .mode = mode,
                                  .thread = pthread_self(),
                                  .id = ++last_capture_id};
  captures = capture;
  stream->capture = capture;
  atomic_fetch_add(&capture_count, 1);
  return CUDA_SUCCESS;
}

CUresult impl_cuStreamBeginCapture_v2(CUstream hStream, CUstreamCaptureMode mode) {
  struct sim_context *context;
  CUresult result = sim_engine_enter(&context);
  if (result != CUDA_SUCCESS) return result;
  if (mode != CU_STREAM_CAPTURE_MODE_GLOBAL && mode != CU_STREAM_CAPTURE_MODE_THREAD_LOCAL &&
      mode != CU_STREAM_CAPTURE_MODE_RELAXED)
    return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&sim_engine_lock);
  struct sim_stream *stream;
  result = sim_stream_resolve_locked(context, hStream, &stream);
  if (result == CUDA_SUCCESS) result = begin_locked(stream, mode);
  pthread_mutex_unlock(&sim_engine_lock);
  sim_graph_notify(context);
  return result;
}

static void mark(const struct sim_node *node, bool *reached) {
  if (reached[node->index]) return;
  reached[node->index] = true;
  for (size_t i = 0; i < node->dependency_count; i++)
    mark(node->dependencies[i], reached);
}

/* True if the origin depends on the end of every stream that joined. */
static bool all_joined_locked(const struct sim_capture *capture) {
  bool *reached = calloc(capture->graph->node_count + 1, sizeof(*reached));
  if (!reached) return false;
  for (size_t i = 0; i < capture->origin->capture_tail_count; i++)
    mark(capture->origin->capture_tail[i], reached);
  bool joined = true;
  for (const struct sim_stream *stream = capture->context->streams; stream; stream = stream->next)
    for (size_t i = 0; stream->capture == capture && i < stream->capture_tail_count; i++)
      joined = joined && reached[stream->capture_tail[i]->index];
  free(reached);
  return joined;
}

/* Ends the capture for all its streams; the caller owns the graph. */
static struct sim_graph *finish_locked(struct sim_capture *capture) {
  struct sim_capture **link = &captures;
  while (*link != capture)
    link = &(*link)->next;
  *link = capture->next;
  atomic_fetch_sub(&capture_count, 1);
  struct sim_graph *graph = capture->graph;
  capture->graph = NULL;
  for (struct sim_stream *stream = capture->context->streams; stream; stream = stream->next)
    if (stream->capture == capture) leave_locked(stream);
  unref_capture_locked(capture);
  return graph;
}

static CUresult end_locked(struct sim_stream *stream, struct sim_graph **graph) {
  struct sim_capture *capture = stream->capture;
  if (!capture) return CUDA_ERROR_ILLEGAL_STATE;
  if (capture->origin != stream) return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && !pthread_equal(capture->thread, pthread_self()))
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  CUresult result = CUDA_SUCCESS;
  if (capture->invalid)
    result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  else if (!all_joined_locked(capture))
    result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
  *graph = finish_locked(capture);
  if (result != CUDA_SUCCESS) {
    sim_graph_free_locked(*graph);
    *graph = NULL;
  }
  return result;
}

CUresult impl_cuStreamEndCapture(CUstream hStream, CUgraph *phGraph) {
  struct sim_context *context;
  CUresult result = sim_engine_enter(&context);
  if (result != CUDA_SUCCESS) return result;
  if (!phGraph) return CUDA_ERROR_INVALID_VALUE;
  struct sim_graph *graph = NULL;
  pthread_mutex_lock(&sim_engine_lock);
  struct sim_stream *stream;
  result = sim_stream_resolve_locked(context, hStream, &stream);
  if (result == CUDA_SUCCESS) result = end_locked(stream, &graph);
  pthread_mutex_unlock(&sim_engine_lock);
  sim_graph_notify(context);
  *phGraph = (CUgraph)graph;
  return result;
}

void sim_capture_end_context_locked(struct sim_engine_context *context) {
  for (struct sim_capture *capture = captures, *next; capture; capture = next) {
    next = capture->next;
    if (capture->context == context) sim_graph_free_locked(finish_locked(capture));
  }
}

/* ---- questions ---- */

struct capture_info {
  CUstreamCaptureStatus status;
  cuuint64_t id;
  CUgraph graph;
  const CUgraphNode *dependencies;
  size_t dependency_count;
};

static CUresult get_info(CUstream handle, struct capture_info *info) {
  struct sim_context *context;
  CUresult result = sim_engine_enter(&context);
  if (result != CUDA_SUCCESS) return result;
  memset(info, 0, sizeof(*info));
  pthread_mutex_lock(&sim_engine_lock);
  struct sim_stream *stream;
  result = sim_stream_resolve_locked(context, handle, &stream);
  if (result == CUDA_SUCCESS && implicit_capture_locked(stream))
    result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT; /* a question: the capture goes on */
  const struct sim_capture *capture = result == CUDA_SUCCESS ? stream->capture : NULL;
  if (capture && capture->invalid) {
    info->status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
  } else if (capture) {
    *info = (struct capture_info){CU_STREAM_CAPTURE_STATUS_ACTIVE, capture->id, (CUgraph)capture->graph,
                                  (const CUgraphNode *)stream->capture_tail, stream->capture_tail_count};
  }
  pthread_mutex_unlock(&sim_engine_lock);
  return result;
}

CUresult impl_cuStreamIsCapturing(CUstream hStream, CUstreamCaptureStatus *captureStatus) {
  struct capture_info info;
  if (!captureStatus) return CUDA_ERROR_INVALID_VALUE;
  CUresult result = get_info(hStream, &info);
  if (result == CUDA_SUCCESS) *captureStatus = info.status;
  return result;
}

CUresult impl_cuStreamGetCaptureInfo_v2(CUstream hStream, CUstreamCaptureStatus *captureStatus_out,
                                        cuuint64_t *id_out, CUgraph *graph_out,
                                        const CUgraphNode **dependencies_out, size_t *numDependencies_out) {
  struct capture_info info;
  if (!captureStatus_out) return CUDA_ERROR_INVALID_VALUE;
  CUresult result = get_info(hStream, &info);
  if (result != CUDA_SUCCESS) return result;
  *captureStatus_out = info.status;
  if (info.status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return CUDA_SUCCESS;
  if (id_out) *id_out = info.id;
  if (graph_out) *graph_out = info.graph;
  if (dependencies_out) *dependencies_out = info.dependencies;
  if (numDependencies_out) *numDependencies_out = info.dependency_count;
  return CUDA_SUCCESS;
}

CUresult impl_cuStreamGetCaptureInfo_v3(CUstream hStream, CUstreamCaptureStatus *captureStatus_out,
                                        cuuint64_t *id_out, CUgraph *graph_out,
                                        const CUgraphNode **dependencies_out,
                                        const CUgraphEdgeData **edgeData_out, size_t *numDependencies_out) {
  CUresult result = impl_cuStreamGetCaptureInfo_v2(hStream, captureStatus_out, id_out, graph_out,
                                                   dependencies_out, numDependencies_out);
  if (result == CUDA_SUCCESS && edgeData_out) *edgeData_out = NULL; /* plain dependencies only */
  return result;
}

CUresult impl_cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
  CUresult result = sim_engine_enter_process();
  if (result != CUDA_SUCCESS) return result;
  if (!mode || (*mode != CU_STREAM_CAPTURE_MODE_GLOBAL && *mode != CU_STREAM_CAPTURE_MODE_THREAD_LOCAL &&
                *mode != CU_STREAM_CAPTURE_MODE_RELAXED))
    return CUDA_ERROR_INVALID_VALUE;
  CUstreamCaptureMode before = thread_mode;
  thread_mode = *mode;
  *mode = before;
  return CUDA_SUCCESS;
}
