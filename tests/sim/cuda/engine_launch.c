/* Owns launches of kernels and of host functions. Parameters are copied when the call is made, either one by
 * one or from the packed buffer of `extra`; the body runs once, on the stream's thread. */
#include "engine_internal.h"
#include "engine_launch.h"
#include "engine_log.h"
#include <stdlib.h>
#include <string.h>

#define MAX_THREADS_PER_BLOCK 1024u

static size_t packed_bytes(const struct rpsim_kernel *kernel) {
  size_t bytes = 0;
  for (size_t i = 0; i < kernel->param_count; i++)
    if (kernel->params[i].offset + kernel->params[i].size > bytes)
      bytes = kernel->params[i].offset + kernel->params[i].size;
  return bytes;
}

static _Thread_local const struct rpsim_kernel *running;

const struct rpsim_kernel *rpsim_running_kernel(void) {
  return running;
}

static void run_kernel(struct sim_work *work) {
  const struct sim_kernel_work *launch = (const struct sim_kernel_work *)work;
  if (sim_log_wanted()) sim_log_launch(launch->kernel, launch->packed, packed_bytes(launch->kernel));
  running = launch->kernel; /* left set by a kernel that faults: nobody can ask then */
  launch->kernel->body(launch->params, &launch->dims);
  running = NULL;
}

static void dispose_kernel(struct sim_work *work) {
  struct sim_kernel_work *launch = (struct sim_kernel_work *)work;
  free(launch->packed);
  free(launch->params);
}

/* Buffer and size out of the pairs of `extra`. */
static bool parse_extra(void **extra, const void **buffer, size_t *size_bytes) {
  *buffer = NULL;
  *size_bytes = 0;
  for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
    if (extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER)
      *buffer = extra[1];
    else if (extra[0] == CU_LAUNCH_PARAM_BUFFER_SIZE && extra[1])
      *size_bytes = *(size_t *)extra[1];
    else
      return false;
  }
  return true;
}

static CUresult copy_params(struct sim_kernel_work *launch, size_t bytes, void **kernel_params,
                            void **extra) {
  const struct rpsim_kernel *kernel = launch->kernel;
  if (extra) {
    const void *buffer;
    size_t given_bytes;
    if (!parse_extra(extra, &buffer, &given_bytes) || given_bytes < bytes || (bytes && !buffer))
      return CUDA_ERROR_INVALID_VALUE;
    if (bytes) memcpy(launch->packed, buffer, bytes);
    return CUDA_SUCCESS;
  }
  for (size_t i = 0; i < kernel->param_count; i++) {
    if (!kernel_params || !kernel_params[i]) return CUDA_ERROR_INVALID_VALUE;
    memcpy(launch->packed + kernel->params[i].offset, kernel_params[i], kernel->params[i].size);
  }
  return CUDA_SUCCESS;
}

/* Makes the work of a launch, with its own copy of the parameters. */
static CUresult new_launch(const struct rpsim_kernel *kernel, CUfunction function,
                           const struct rpsim_dims *dims, void **kernel_params, void **extra,
                           struct sim_kernel_work **made) {
  struct sim_kernel_work *launch = sim_work_new(sizeof(*launch), SIM_WORK_KERNEL, run_kernel);
  if (!launch) return CUDA_ERROR_OUT_OF_MEMORY;
  launch->work.dispose = dispose_kernel;
  launch->kernel = kernel;
  launch->function = function;
  launch->dims = *dims;
  size_t bytes = packed_bytes(kernel);
  launch->packed = calloc(1, bytes + 1);
  launch->params = calloc(kernel->param_count + 1, sizeof(*launch->params));
  CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
  if (launch->packed && launch->params) result = copy_params(launch, bytes, kernel_params, extra);
  if (result != CUDA_SUCCESS) {
    sim_work_unref(&launch->work);
    return result;
  }
  for (size_t i = 0; i < kernel->param_count; i++)
    launch->params[i] = launch->packed + kernel->params[i].offset;
  *made = launch;
  return CUDA_SUCCESS;
}

static CUresult check_dims(const struct rpsim_dims *dims) {
  uint64_t threads = 1;
  for (int i = 0; i < 3; i++) {
    if (dims->grid[i] == 0 || dims->block[i] == 0 || dims->block[i] > MAX_THREADS_PER_BLOCK)
      return CUDA_ERROR_INVALID_VALUE;
    threads *= dims->block[i];
  }
  return threads > MAX_THREADS_PER_BLOCK ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

/* What attributes of a launch say: events to record as the kernel starts and when it has ended, and whether
 * it may overlap the work before it. */
struct launch_options {
  CUevent at_start[2];
  size_t start_count;
  CUevent at_end;
  bool programmatic;
};

static CUresult parse_attributes(const CUlaunchConfig *config, struct launch_options *options) {
  if (config->numAttrs && !config->attrs) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < config->numAttrs; i++) {
    const CUlaunchAttribute *attribute = &config->attrs[i];
    if (attribute->id == CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT) {
      options->at_start[options->start_count++ % 2] = attribute->value.launchCompletionEvent.event;
    } else if (attribute->id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT) {
      if (attribute->value.programmaticEvent.triggerAtBlockStart)
        options->at_start[options->start_count++ % 2] = attribute->value.programmaticEvent.event;
      else
        options->at_end = attribute->value.programmaticEvent.event;
    } else if (attribute->id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION) {
      options->programmatic = attribute->value.programmaticStreamSerializationAllowed != 0;
    }
  }
  return options->start_count > 2 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static CUresult record_locked(CUevent handle, struct sim_stream *stream) {
  struct sim_event *event = sim_handle_find(handle, SIM_HANDLE_EVENT);
  return event ? sim_event_record_locked(event, stream) : CUDA_ERROR_INVALID_HANDLE;
}

/* Enqueues the launch as its attributes say, between its events; takes over the work. */
static CUresult submit_with_options(struct sim_context *context, CUstream handle, struct sim_work *work,
                                    const struct launch_options *options) {
  pthread_mutex_lock(&sim_engine_lock);
  struct sim_stream *stream = NULL;
  CUresult result = sim_stream_resolve_locked(context, handle, &stream);
  if (result == CUDA_SUCCESS) result = sim_capture_forbid_implicit_locked(stream);
  for (size_t i = 0; i < options->start_count && result == CUDA_SUCCESS; i++)
    result = record_locked(options->at_start[i], stream);
  if (result != CUDA_SUCCESS)
    sim_work_unref(work);
  else if (stream->capture)
    result = sim_capture_work_locked(stream, work);
  else if (options->programmatic)
    result = sim_stream_append_programmatic_locked(stream, work);
  else
    result = sim_stream_append_locked(stream, work, NULL, 0, false);
  if (result == CUDA_SUCCESS && options->at_end) result = record_locked(options->at_end, stream);
  pthread_mutex_unlock(&sim_engine_lock);
  sim_graph_notify(context);
  return result;
}

static CUresult launch_kernel(CUfunction function, const struct rpsim_dims *dims, CUstream stream,
                              void **kernel_params, void **extra, const struct launch_options *options) {
  struct sim_context *context;
  CUresult result = sim_engine_enter(&context);
  if (result != CUDA_SUCCESS) return result;
  const struct rpsim_kernel *kernel = sim_kernel_of(function);
  if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
  if (kernel_params && extra) return CUDA_ERROR_INVALID_VALUE;
  result = check_dims(dims);
  struct sim_kernel_work *launch = NULL;
  if (result == CUDA_SUCCESS) result = new_launch(kernel, function, dims, kernel_params, extra, &launch);
  if (result != CUDA_SUCCESS) return result;
  if (options) return submit_with_options(context, stream, &launch->work, options);
  return sim_submit(stream, &launch->work, SIM_RETURN_AT_ONCE);
}

CUresult sim_kernel_node_work(const CUDA_KERNEL_NODE_PARAMS *params, struct sim_work **made) {
  struct sim_kernel_work *launch = NULL;
  const struct rpsim_kernel *kernel = params ? sim_kernel_of(params->func) : NULL;
  if (!kernel || (params->kernelParams && params->extra)) return CUDA_ERROR_INVALID_VALUE;
  const struct rpsim_dims dims = {{params->gridDimX, params->gridDimY, params->gridDimZ},
                                  {params->blockDimX, params->blockDimY, params->blockDimZ},
                                  params->sharedMemBytes};
  CUresult result = check_dims(&dims);
  if (result == CUDA_SUCCESS)
    result = new_launch(kernel, params->func, &dims, params->kernelParams, params->extra, &launch);
  if (result == CUDA_SUCCESS) *made = &launch->work;
  return result;
}

CUresult impl_cuLaunchKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                             unsigned int gridDimZ, unsigned int blockDimX, unsigned int blockDimY,
                             unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream,
                             void **kernelParams, void **extra) {
  struct rpsim_dims dims = {
      {gridDimX, gridDimY, gridDimZ}, {blockDimX, blockDimY, blockDimZ}, sharedMemBytes};
  return launch_kernel(f, &dims, hStream, kernelParams, extra, NULL);
}

CUresult impl_cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **kernelParams,
                               void **extra) {
  if (!config) return CUDA_ERROR_INVALID_VALUE;
  struct launch_options options = {0};
  CUresult result = parse_attributes(config, &options);
  if (result != CUDA_SUCCESS) return result;
  struct rpsim_dims dims = {{config->gridDimX, config->gridDimY, config->gridDimZ},
                            {config->blockDimX, config->blockDimY, config->blockDimZ},
                            config->sharedMemBytes};
  bool plain = !options.start_count && !options.at_end && !options.programmatic;
  return launch_kernel(f, &dims, config->hStream, kernelParams, extra, plain ? NULL : &options);
}

CUresult impl_cuLaunchCooperativeKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                                        unsigned int gridDimZ, unsigned int blockDimX, unsigned int blockDimY,
                                        unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream,
                                        void **kernelParams) {
  return impl_cuLaunchKernel(f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes,
                             hStream, kernelParams, NULL);
}

/* ---- host functions ---- */

struct host_work {
  struct sim_work work;
  CUhostFn function;
  void *argument;
};

static void run_host_function(struct sim_work *work) {
  const struct host_work *host = (const struct host_work *)work;
  sim_engine_set_in_host_function(true);
  host->function(host->argument);
  sim_engine_set_in_host_function(false);
}

CUresult impl_cuLaunchHostFunc(CUstream hStream, CUhostFn fn, void *userData) {
  if (!fn) return CUDA_ERROR_INVALID_VALUE;
  struct host_work *host = sim_work_new(sizeof(*host), SIM_WORK_HOST, run_host_function);
  if (!host) return CUDA_ERROR_OUT_OF_MEMORY;
  host->function = fn;
  host->argument = userData;
  return sim_submit(hStream, &host->work, SIM_RETURN_AT_ONCE);
}
