/* Owns what surrounds the engine: its lock, the registry of handles, the engine's part of a context, the
 * sticky error, works, and the answer in a fork's child. */
#define _GNU_SOURCE
#include "engine_internal.h"
#include <search.h>
#include <stdlib.h>

pthread_mutex_t sim_engine_lock = PTHREAD_MUTEX_INITIALIZER;
static void *handles;
static atomic_bool in_child;
static _Thread_local bool in_host_function;

static int compare_addresses(const void *left, const void *right) {
  return ((uintptr_t)left > (uintptr_t)right) - ((uintptr_t)left < (uintptr_t)right);
}

bool sim_handle_add(struct sim_handle *handle, enum sim_handle_kind kind) {
  handle->kind = kind;
  return tsearch(handle, &handles, compare_addresses) != NULL;
}

void *sim_handle_find(const void *handle, enum sim_handle_kind kind) {
  void *node = handle ? tfind(handle, &handles, compare_addresses) : NULL;
  struct sim_handle *found = node ? *(struct sim_handle **)node : NULL;
  return found && found->kind == kind ? found : NULL;
}

void sim_handle_remove(struct sim_handle *handle) {
  tdelete(handle, &handles, compare_addresses);
}

struct handle_walk {
  enum sim_handle_kind kind;
  void (*visit)(void *handle, void *argument);
  void *argument;
};

static void visit_handle(const void *node, VISIT visit, void *argument) {
  const struct handle_walk *walk = argument;
  struct sim_handle *handle = *(struct sim_handle *const *)node;
  if ((visit == postorder || visit == leaf) && handle->kind == walk->kind)
    walk->visit(handle, walk->argument);
}

void sim_handle_each(enum sim_handle_kind kind, void (*visit)(void *handle, void *argument), void *argument) {
  struct handle_walk walk = {kind, visit, argument};
  twalk_r(handles, visit_handle, &walk);
}

/* ---- entry ---- */

void sim_engine_after_fork_child(void) {
  atomic_store(&in_child, true);
}

CUresult sim_engine_enter_process(void) {
  return atomic_load(&in_child) ? CUDA_ERROR_NOT_INITIALIZED : CUDA_SUCCESS;
}

CUresult sim_engine_enter(struct sim_context **context) {
  CUresult result = sim_engine_enter_process();
  if (result != CUDA_SUCCESS) return result;
  if (in_host_function) return CUDA_ERROR_NOT_PERMITTED;
  *context = sim_context_current();
  return *context && (*context)->engine ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

bool sim_engine_in_host_function(void) {
  return in_host_function;
}

void sim_engine_set_in_host_function(bool inside) {
  in_host_function = inside;
}

/* ---- contexts ---- */

CUresult sim_engine_context_create(struct sim_context *context) {
  struct sim_engine_context *engine = calloc(1, sizeof(*engine));
  if (!engine) return CUDA_ERROR_OUT_OF_MEMORY;
  engine->owner = context;
  pthread_cond_init(&engine->thread_gone, NULL);
  pthread_mutex_lock(&sim_engine_lock);
  engine->legacy = sim_stream_new_locked(engine, CU_STREAM_DEFAULT, 0);
  if (engine->legacy) engine->legacy->legacy = true;
  pthread_mutex_unlock(&sim_engine_lock);
  if (!engine->legacy) {
    free(engine);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  context->engine = engine;
  return CUDA_SUCCESS;
}

void sim_engine_context_destroy(struct sim_context *context) {
  struct sim_engine_context *engine = context->engine;
  if (!engine || sim_engine_enter_process() != CUDA_SUCCESS) return;
  pthread_mutex_lock(&sim_engine_lock);
  sim_capture_end_context_locked(engine);
  sim_context_wait_locked(engine);
  sim_event_end_context_locked(context);
  for (struct sim_stream *stream = engine->streams; stream;) {
    bool open = !stream->closing;
    if (open) sim_stream_close_locked(stream); /* and others with it: from the start again */
    stream = open ? engine->streams : stream->next;
  }
  while (engine->thread_count)
    pthread_cond_wait(&engine->thread_gone, &sim_engine_lock);
  context->engine = NULL;
  pthread_mutex_unlock(&sim_engine_lock);
  sim_memory_forget_context(context);
  pthread_cond_destroy(&engine->thread_gone);
  free(engine);
}

CUresult sim_engine_context_synchronize(struct sim_context *context) {
  CUresult result = sim_engine_enter_process();
  if (result == CUDA_SUCCESS && in_host_function) result = CUDA_ERROR_NOT_PERMITTED;
  if (result == CUDA_SUCCESS && !context->engine) result = CUDA_ERROR_INVALID_CONTEXT;
  if (result == CUDA_SUCCESS) result = sim_capture_forbid_context(context);
  if (result != CUDA_SUCCESS) return result;
  pthread_mutex_lock(&sim_engine_lock);
  sim_context_wait_locked(context->engine);
  pthread_mutex_unlock(&sim_engine_lock);
  return sim_engine_sticky_error(context);
}

CUresult sim_engine_sticky_error(struct sim_context *context) {
  return context && context->engine ? (CUresult)atomic_load(&context->engine->sticky) : CUDA_SUCCESS;
}

/* ---- works ---- */

void *sim_work_new(size_t bytes, enum sim_work_kind kind, void (*run)(struct sim_work *)) {
  struct sim_work *work = calloc(1, bytes);
  if (!work) return NULL;
  atomic_init(&work->refs, 1);
  work->kind = kind;
  work->run = run;
  return work;
}

void sim_work_unref(struct sim_work *work) {
  if (!work || atomic_fetch_sub(&work->refs, 1) > 1) return;
  if (work->dispose) work->dispose(work);
  free(work);
}

static void run_guarded(void *argument) {
  struct sim_work *work = argument;
  work->run(work);
}

void sim_work_execute(struct sim_work *work, struct sim_engine_context *context) {
  if (sim_fault_guard(run_guarded, work)) return;
  int none = CUDA_SUCCESS;
  atomic_compare_exchange_strong(&context->sticky, &none, CUDA_ERROR_ILLEGAL_ADDRESS);
}
