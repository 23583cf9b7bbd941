/* Owns the entry points of streams: creation and end, the default streams, queries, callbacks, waits for and
 * writes of a value. */
#include "engine_internal.h"
#include <errno.h>
#include <stdlib.h>
#include <time.h>

#define GREATEST_PRIORITY (-5)
#define VALUE_POLL_NS 1000000

/* ---- default streams ---- */

/* The per-thread default streams of one host thread, one per context it used. */
struct thread_streams {
  size_t count;
  struct sim_stream **streams;
};

static pthread_key_t thread_streams_key;
static pthread_once_t thread_streams_once = PTHREAD_ONCE_INIT;

static void end_thread_streams(void *argument) {
  struct thread_streams *mine = argument;
  if (sim_engine_enter_process() != CUDA_SUCCESS) return;
  pthread_mutex_lock(&sim_engine_lock);
  for (size_t i = 0; i < mine->count; i++) {
    if (mine->streams[i]->context) sim_stream_close_locked(mine->streams[i]);
    sim_stream_unref_locked(mine->streams[i]);
  }
  pthread_mutex_unlock(&sim_engine_lock);
  free(mine->streams);
  free(mine);
}

static void make_thread_streams_key(void) {
  pthread_key_create(&thread_streams_key, end_thread_streams);
}

static struct thread_streams *my_streams(void) {
  pthread_once(&thread_streams_once, make_thread_streams_key);
  struct thread_streams *mine = pthread_getspecific(thread_streams_key);
  if (!mine) {
    mine = calloc(1, sizeof(*mine));
    if (mine && pthread_setspecific(thread_streams_key, mine) != 0) {
      free(mine);
      mine = NULL;
    }
  }
  return mine;
}

static CUresult per_thread_stream_locked(struct sim_engine_context *context, struct sim_stream **stream) {
  struct thread_streams *mine = my_streams();
  if (!mine) return CUDA_ERROR_OUT_OF_MEMORY;
  for (size_t i = 0; i < mine->count; i++) {
    if (mine->streams[i]->context == context && !mine->streams[i]->closing) {
      *stream = mine->streams[i];
      return CUDA_SUCCESS;
    }
  }
  struct sim_stream **grown = realloc(mine->streams, (mine->count + 1) * sizeof(*grown));
  if (!grown) return CUDA_ERROR_OUT_OF_MEMORY;
  mine->streams = grown;
  *stream = sim_stream_new_locked(context, CU_STREAM_DEFAULT, 0);
  if (!*stream) return CUDA_ERROR_OUT_OF_MEMORY;
  sim_stream_ref_locked(*stream);
  mine->streams[mine->count++] = *stream;
  return CUDA_SUCCESS;
}

CUresult sim_stream_resolve_locked(struct sim_context *context, CUstream handle, struct sim_stream **stream) {
  if (!handle) handle = sim_default_stream;
  if (handle == CU_STREAM_PER_THREAD) return per_thread_stream_locked(context->engine, stream);
  if (!handle || handle == CU_STREAM_LEGACY)
    *stream = context->engine->legacy;
  else
    *stream = sim_handle_find(handle, SIM_HANDLE_STREAM);
  return *stream ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

/* Enters, takes the lock and resolves; on success the lock is held. */
static CUresult enter_stream(CUstream handle, struct sim_context **context, struct sim_stream **stream) {
  CUresult result = sim_engine_enter(context);
  if (result != CUDA_SUCCESS) return result;
  pthread_mutex_lock(&sim_engine_lock);
  result = sim_stream_resolve_locked(*context, handle, stream);
  if (result != CUDA_SUCCESS) pthread_mutex_unlock(&sim_engine_lock);
  return result;
}

/* ---- life ---- */

CUresult impl_cuStreamCreateWithPriority(CUstream *phStream, unsigned int flags, int priority) {
  struct sim_context *context;
  CUresult result = sim_engine_enter(&context);
  if (result != CUDA_SUCCESS) return result;
  if (!phStream || (flags & ~(unsigned)CU_STREAM_NON_BLOCKING)) return CUDA_ERROR_INVALID_VALUE;
  if (priority > 0) priority = 0;
  if (priority < GREATEST_PRIORITY) priority = GREATEST_PRIORITY;
  pthread_mutex_lock(&sim_engine_lock);
  struct sim_stream *stream = sim_stream_new_locked(context->engine, flags, priority);
  pthread_mutex_unlock(&sim_engine_lock);
  if (!stream) return CUDA_ERROR_OUT_OF_MEMORY;
  *phStream = (CUstream)stream;
  sim_resource_callback(CUPTI_CBID_RESOURCE_STREAM_CREATED, context, *phStream, NULL);
  return CUDA_SUCCESS;
}

CUresult impl_cuStreamCreate(CUstream *phStream, unsigned int Flags) {
  return impl_cuStreamCreateWithPriority(phStream, Flags, 0);
}

CUresult impl_cuStreamDestroy_v2(CUstream hStream) {
  CUresult result = sim_engine_enter_process();
  if (result != CUDA_SUCCESS) return result;
  pthread_mutex_lock(&sim_engine_lock);
  struct sim_stream *stream = sim_handle_find(hStream, SIM_HANDLE_STREAM);
  struct sim_context *context = stream ? stream->context->owner : NULL;
  pthread_mutex_unlock(&sim_engine_lock);
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  sim_resource_callback(CUPTI_CBID_RESOURCE_STREAM_DESTROY_STARTING, context, hStream, NULL);
  pthread_mutex_lock(&sim_engine_lock);
  stream = sim_handle_find(hStream, SIM_HANDLE_STREAM);
  if (stream) {
    if (stream->capture) sim_capture_forbid_locked(stream);
    sim_stream_close_locked(stream);
  }
  pthread_mutex_unlock(&sim_engine_lock);
  return stream ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

/* ---- questions ---- */

CUresult impl_cuStreamQuery(CUstream hStream) {
  struct sim_context *context;
  struct sim_stream *stream;
  CUresult result = enter_stream(hStream, &context, &stream);
  if (result != CUDA_SUCCESS) return result;
  result = sim_capture_forbid_locked(stream);
  if (result == CUDA_SUCCESS && !sim_stream_idle_locked(stream)) result = CUDA_ERROR_NOT_READY;
  pthread_mutex_unlock(&sim_engine_lock);
  return result == CUDA_SUCCESS ? sim_engine_sticky_error(context) : result;
}

CUresult impl_cuStreamSynchronize(CUstream hStream) {
  struct sim_context *context;
  struct sim_stream *stream;
  CUresult result = enter_stream(hStream, &context, &stream);
  if (result != CUDA_SUCCESS) return result;
  result = sim_capture_forbid_locked(stream);
  if (result == CUDA_SUCCESS) sim_stream_wait_locked(stream);
  pthread_mutex_unlock(&sim_engine_lock);
  if (result != CUDA_SUCCESS) return result;
  sim_synchronize_callback(CUPTI_CBID_SYNCHRONIZE_STREAM_SYNCHRONIZED, context, hStream);
  return sim_engine_sticky_error(context);
}

CUresult impl_cuStreamGetFlags(CUstream hStream, unsigned int *flags) {
  struct sim_context *context;
  struct sim_stream *stream;
  if (!flags) return CUDA_ERROR_INVALID_VALUE;
  CUresult result = enter_stream(hStream, &context, &stream);
  if (result != CUDA_SUCCESS) return result;
  *flags = stream->flags;
  pthread_mutex_unlock(&sim_engine_lock);
  return CUDA_SUCCESS;
}

CUresult impl_cuStreamGetPriority(CUstream hStream, int *priority) {
  struct sim_context *context;
  struct sim_stream *stream;
  if (!priority) return CUDA_ERROR_INVALID_VALUE;
  CUresult result = enter_stream(hStream, &context, &stream);
  if (result != CUDA_SUCCESS) return result;
  *priority = stream->priority;
  pthread_mutex_unlock(&sim_engine_lock);
  return CUDA_SUCCESS;
}

CUresult impl_cuStreamGetId(CUstream hStream, unsigned long long *streamId) {
  struct sim_context *context;
  struct sim_stream *stream;
  if (!streamId) return CUDA_ERROR_INVALID_VALUE;
  CUresult result = enter_stream(hStream, &context, &stream);
  if (result != CUDA_SUCCESS) return result;
  *streamId = stream->id;
  pthread_mutex_unlock(&sim_engine_lock);
  return CUDA_SUCCESS;
}

CUresult impl_cuStreamGetCtx(CUstream hStream, CUcontext *pctx) {
  struct sim_context *context;
  struct sim_stream *stream;
  if (!pctx) return CUDA_ERROR_INVALID_VALUE;
  CUresult result = enter_stream(hStream, &context, &stream);
  if (result != CUDA_SUCCESS) return result;
  *pctx = (CUcontext)stream->context->owner;
  pthread_mutex_unlock(&sim_engine_lock);
  return CUDA_SUCCESS;
}

CUresult impl_cuStreamGetDevice(CUstream hStream, CUdevice *device) {
  struct sim_context *context;
  struct sim_stream *stream;
  if (!device) return CUDA_ERROR_INVALID_VALUE;
  CUresult result = enter_stream(hStream, &context, &stream);
  if (result != CUDA_SUCCESS) return result;
  *device = stream->context->owner->device;
  pthread_mutex_unlock(&sim_engine_lock);
  return CUDA_SUCCESS;
}

/* ---- host callback of a stream ---- */

struct callback_work {
  struct sim_work work;
  CUstream stream;
  CUstreamCallback callback;
  void *argument;
};

static void run_callback(struct sim_work *work) {
  struct callback_work *callback = (struct callback_work *)work;
  sim_engine_set_in_host_function(true);
  callback->callback(callback->stream, CUDA_SUCCESS, callback->argument);
  sim_engine_set_in_host_function(false);
}

CUresult impl_cuStreamAddCallback(CUstream hStream, CUstreamCallback callback, void *userData,
                                  unsigned int flags) {
  if (!callback || flags) return CUDA_ERROR_INVALID_VALUE;
  struct callback_work *work = sim_work_new(sizeof(*work), SIM_WORK_HOST, run_callback);
  if (!work) return CUDA_ERROR_OUT_OF_MEMORY;
  work->stream = hStream;
  work->callback = callback;
  work->argument = userData;
  return sim_submit(hStream, &work->work, SIM_RETURN_AT_ONCE);
}

/* ---- waiting for a value in memory ---- */

struct value_work {
  struct sim_work work;
  CUdeviceptr address;
  uint64_t value;
  unsigned flags;
  bool wide;
};

static pthread_mutex_t value_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t value_written = PTHREAD_COND_INITIALIZER;

static bool value_reached(const struct value_work *wait) {
  uint64_t now = wait->wide ? __atomic_load_n((uint64_t *)wait->address, __ATOMIC_ACQUIRE)
                            : __atomic_load_n((uint32_t *)wait->address, __ATOMIC_ACQUIRE);
  switch (wait->flags & 3) {
  case CU_STREAM_WAIT_VALUE_GEQ:
    return wait->wide ? (int64_t)(now - wait->value) >= 0 : (int32_t)(uint32_t)(now - wait->value) >= 0;
  case CU_STREAM_WAIT_VALUE_EQ:
    return now == wait->value;
  case CU_STREAM_WAIT_VALUE_AND:
    return (now & wait->value) != 0;
  default: {
    uint64_t mask = wait->wide ? UINT64_MAX : UINT32_MAX;
    return (~(now | wait->value) & mask) != 0;
  }
  }
}

/* A write by a stream wakes this at once; one by the host is seen within VALUE_POLL_NS. */
static void run_wait_value(struct sim_work *work) {
  struct value_work *wait = (struct value_work *)work;
  while (!value_reached(wait)) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += VALUE_POLL_NS;
    if (until.tv_nsec >= 1000000000) {
      until.tv_sec++;
      until.tv_nsec -= 1000000000;
    }
    pthread_mutex_lock(&value_lock);
    pthread_cond_timedwait(&value_written, &value_lock, &until);
    pthread_mutex_unlock(&value_lock);
  }
}

static void run_write_value(struct sim_work *work) {
  struct value_work *write = (struct value_work *)work;
  if (write->wide)
    __atomic_store_n((uint64_t *)write->address, write->value, __ATOMIC_RELEASE);
  else
    __atomic_store_n((uint32_t *)write->address, (uint32_t)write->value, __ATOMIC_RELEASE);
  pthread_mutex_lock(&value_lock);
  pthread_cond_broadcast(&value_written);
  pthread_mutex_unlock(&value_lock);
}

static CUresult submit_value(CUstream stream, void (*run)(struct sim_work *), CUdeviceptr address,
                             uint64_t value, unsigned flags, bool wide) {
  if (!address || address % (wide ? 8 : 4)) return CUDA_ERROR_INVALID_VALUE;
  struct value_work *work = sim_work_new(sizeof(*work), SIM_WORK_VALUE, run);
  if (!work) return CUDA_ERROR_OUT_OF_MEMORY;
  work->address = address;
  work->value = value;
  work->flags = flags;
  work->wide = wide;
  return sim_submit(stream, &work->work, SIM_RETURN_AT_ONCE);
}

CUresult impl_cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr addr, cuuint32_t value,
                                     unsigned int flags) {
  return submit_value(stream, run_wait_value, addr, value, flags, false);
}

CUresult impl_cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr addr, cuuint64_t value,
                                     unsigned int flags) {
  return submit_value(stream, run_wait_value, addr, value, flags, true);
}

CUresult impl_cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr addr, cuuint32_t value,
                                      unsigned int flags) {
  return submit_value(stream, run_write_value, addr, value, flags, false);
}

CUresult impl_cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr addr, cuuint64_t value,
                                      unsigned int flags) {
  return submit_value(stream, run_write_value, addr, value, flags, true);
}
