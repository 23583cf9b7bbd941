/* Owns the host side of a kernel: one plan, one launch, and the events that order it among the user's streams
 * and the other kernels of its communicator. */
#include "nccl_internal.h"

#include <stdlib.h>
#include <string.h>

struct streams {
  CUstream *list; /* distinct, in order of first use; the kernel runs on the first */
  size_t count;
  bool captured;
};

static ncclResult_t streams_collect(const struct sim_plan *plan, struct streams *streams) {
  streams->list = calloc(plan->task_count, sizeof *streams->list);
  if (!streams->list) return ncclSystemError;
  for (size_t i = 0; i < plan->task_count; i++) {
    size_t at = 0;
    while (at < streams->count && streams->list[at] != plan->tasks[i].stream)
      at++;
    if (at == streams->count) streams->list[streams->count++] = plan->tasks[i].stream;
  }
  streams->captured = sim_stream_captured(streams->list[0]);
  return ncclSuccess;
}

/* Sends to oneself need a receive of the same size in the same group. */
static ncclResult_t check_self(const struct sim_plan *plan) {
  size_t receive = 0, n = plan->task_count;
  const struct sim_task *tasks = plan->tasks;
  int self = plan->comm->rank;
  bool ok = true;
  for (size_t send = 0; send < n && ok; send++) {
    if (tasks[send].function != SIM_SEND || tasks[send].root != self) continue;
    while (receive < n && (tasks[receive].function != SIM_RECV || tasks[receive].root != self))
      receive++;
    ok = receive < n && tasks[receive].count * sim_type_bytes(tasks[receive].type) ==
                            tasks[send].count * sim_type_bytes(tasks[send].type);
    receive++;
  }
  for (; receive < n && ok; receive++)
    ok = tasks[receive].function != SIM_RECV || tasks[receive].root != self;
  if (ok) return ncclSuccess;
  sim_set_error("a send to the own rank has no matching receive in its group");
  return ncclInvalidUsage;
}

/* Before the kernel: its stream waits for the other user streams and for the communicator's earlier kernels.
 */
static CUresult order_before(ncclComm_t comm, const struct streams *streams) {
  const struct sim_driver *driver = sim_driver();
  CUresult result = CUDA_SUCCESS;
  for (size_t i = 1; i < streams->count && result == CUDA_SUCCESS; i++) {
    result = driver->event_record(comm->scratch_event, streams->list[i]);
    if (result == CUDA_SUCCESS) result = driver->stream_wait_event(streams->list[0], comm->scratch_event, 0);
  }
  if (streams->captured || result != CUDA_SUCCESS) return result; /* a graph orders its own kernels */
  result = driver->event_record(comm->scratch_event, comm->device_stream);
  return result == CUDA_SUCCESS ? driver->stream_wait_event(streams->list[0], comm->scratch_event, 0)
                                : result;
}

static CUresult order_after(ncclComm_t comm, const struct streams *streams) {
  const struct sim_driver *driver = sim_driver();
  CUresult result = driver->event_record(comm->finished_event, streams->list[0]);
  if (result == CUDA_SUCCESS && !streams->captured)
    result = driver->stream_wait_event(comm->device_stream, comm->finished_event, 0);
  for (size_t i = 1; i < streams->count && result == CUDA_SUCCESS; i++)
    result = driver->stream_wait_event(streams->list[i], comm->finished_event, 0);
  return result;
}

/* The arguments hold addresses of the library only: the work itself is in the FIFO, here a plan found by its
 * number. */
static CUresult launch_kernel(const struct sim_plan *plan, CUfunction function, CUstream stream) {
  ncclComm_t comm = plan->comm;
  char buffer[SIM_KERNEL_ARGS_BYTES] __attribute__((aligned(16))) = {0};
  struct sim_kernel_args args = {.comm = comm->device_comm,
                                 .channel_mask = 1,
                                 .work_storage_type = 1,
                                 .work_mask = (1u << 20) - 1,
                                 .work_buffer = comm->work_fifo,
                                 .batch = {.offset_base = plan->number, .offset_bits = 1}};
  memcpy(buffer, &args, sizeof args);
  size_t bytes = sizeof buffer;
  void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, buffer, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                   CU_LAUNCH_PARAM_END};
  CUlaunchConfig config = {.gridDimX = 1,
                           .gridDimY = 1,
                           .gridDimZ = 1,
                           .blockDimX = 512,
                           .blockDimY = 1,
                           .blockDimZ = 1,
                           .hStream = stream};
  return sim_driver()->launch_kernel(&config, function, NULL, extra);
}

static struct sim_plan *plan_new(ncclComm_t comm, const struct sim_task *tasks, size_t count) {
  struct sim_plan *plan = calloc(1, sizeof *plan);
  if (plan) plan->tasks = calloc(count, sizeof *tasks);
  if (!plan || !plan->tasks) {
    sim_plan_destroy(plan);
    return NULL;
  }
  memcpy(plan->tasks, tasks, count * sizeof *tasks);
  plan->task_count = count;
  plan->comm = comm;
  return plan;
}

/* The profiler hears of the operations after the launch; at every launch of the graph if the plan is
 * captured. */
static CUresult tell_profiler(struct sim_plan *plan, CUstream stream) {
  if (!plan->persistent) {
    sim_profiler_plan(plan);
    return CUDA_SUCCESS;
  }
  if (!plan->comm->profiled) return CUDA_SUCCESS;
  void *note = sim_plan_note(plan);
  return note ? sim_driver()->launch_host_func(stream, sim_plan_noted, note) : CUDA_ERROR_OUT_OF_MEMORY;
}

/* `plan` stays the caller's; the kernel has its own copy, which it frees. */
static ncclResult_t launch_plan(struct sim_plan *plan, const struct streams *streams) {
  ncclComm_t comm = plan->comm;
  CUfunction function = sim_kernel_function(plan);
  if (!function) return ncclUnhandledCudaError;
  struct sim_plan *submitted = plan_new(comm, plan->tasks, plan->task_count);
  if (!submitted) return ncclSystemError;
  submitted->persistent = plan->persistent;
  if (submitted->persistent) sim_memory_remember(submitted);
  plan->number = sim_plan_submit(comm, submitted);
  CUresult result = order_before(comm, streams);
  sim_profiler_launch_start(plan, streams->list[0]);
  if (result == CUDA_SUCCESS) result = launch_kernel(plan, function, streams->list[0]);
  sim_profiler_launch_stop(plan);
  if (result != CUDA_SUCCESS) {
    sim_plan_withdraw(comm, plan->number);
    return sim_cuda_result(result, "launch");
  }
  result = tell_profiler(plan, streams->list[0]);
  CUresult ordered = order_after(comm, streams);
  return sim_cuda_result(result != CUDA_SUCCESS ? result : ordered, "launch");
}

ncclResult_t sim_launch(ncclComm_t comm, const struct sim_task *tasks, size_t count, void *group_api_event) {
  const struct sim_driver *driver = sim_driver();
  struct streams streams = {0};
  CUcontext before = NULL;
  struct sim_plan *plan = plan_new(comm, tasks, count);
  if (!plan) return ncclSystemError;
  plan->group_api_event = group_api_event;
  (void)driver->context_get_current(&before);
  if (before != comm->context) (void)driver->context_set_current(comm->context);
  ncclResult_t result = check_self(plan);
  if (result == ncclSuccess) result = streams_collect(plan, &streams);
  if (result == ncclSuccess) {
    plan->persistent = streams.captured;
    result = launch_plan(plan, &streams);
  }
  sim_plan_destroy(plan);
  if (before != comm->context) (void)driver->context_set_current(before);
  free(streams.list);
  return result;
}
