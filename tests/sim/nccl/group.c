/* Owns group semantics: per thread, the operations and init jobs between the first ncclGroupStart and its
 * end. */
#include "nccl_internal.h"

#include <stdlib.h>
#include <string.h>

struct group {
  int depth, user_depth;
  ncclResult_t error;
  struct sim_task *tasks;
  size_t task_count, task_capacity;
  struct sim_init_job *jobs;
  size_t job_count, job_capacity;
  void *api_event; /* profiler: GroupApi */
  ncclComm_t api_comm;
};

static _Thread_local struct group group;

static bool reserve(void **array, size_t *capacity, size_t count, size_t bytes) {
  if (count < *capacity) return true;
  size_t wanted = *capacity ? *capacity * 2 : 16;
  void *grown = realloc(*array, wanted * bytes);
  if (!grown) return false;
  *array = grown;
  *capacity = wanted;
  return true;
}

int sim_group_depth(void) {
  return group.user_depth;
}

ncclResult_t sim_group_error(ncclResult_t result) {
  if (result != ncclSuccess && result != ncclInProgress && group.depth > 0 && group.error == ncclSuccess)
    group.error = result;
  return result;
}

ncclResult_t sim_group_start(void) {
  group.depth++;
  return ncclSuccess;
}

/* ---- init jobs: they wait for other ranks, which may be in the same group, so each has its thread ---- */

struct worker {
  pthread_t thread;
  struct sim_init_job *jobs;
  size_t count, first;
};

static void job_run(struct sim_init_job *job) {
  const ncclConfig_t *config = job->has_config ? &job->config : NULL;
  job->result = sim_cuda_result(sim_driver()->context_set_current(job->context), "context");
  if (job->result != ncclSuccess) return;
  if (job->parent)
    job->result = sim_comm_split(job->parent, job->nranks, job->rank, job->out, config);
  else
    job->result = sim_comm_create(job->out, job->nranks, &job->id, job->rank, config);
}

/* Runs its job and, in order, the later splits of the same parent. */
static void *worker_main(void *argument) {
  struct worker *worker = argument;
  ncclComm_t parent = worker->jobs[worker->first].parent;
  job_run(&worker->jobs[worker->first]);
  for (size_t i = worker->first + 1; parent && i < worker->count; i++)
    if (worker->jobs[i].parent == parent) job_run(&worker->jobs[i]);
  return NULL;
}

static ncclResult_t jobs_run(struct sim_init_job *jobs, size_t count) {
  struct worker *workers = calloc(count, sizeof *workers);
  size_t started = 0;
  ncclResult_t result = workers ? ncclSuccess : ncclSystemError;
  for (size_t i = 0; i < count && result == ncclSuccess; i++) {
    bool follows = false;
    for (size_t j = 0; j < i && jobs[i].parent; j++)
      follows |= jobs[j].parent == jobs[i].parent;
    if (follows) continue;
    workers[started] = (struct worker){.jobs = jobs, .count = count, .first = i};
    if (pthread_create(&workers[started].thread, NULL, worker_main, &workers[started]) == 0)
      started++;
    else
      result = ncclSystemError;
  }
  for (size_t i = 0; i < started; i++)
    pthread_join(workers[i].thread, NULL);
  for (size_t i = 0; i < count && result == ncclSuccess; i++)
    result = jobs[i].result;
  free(workers);
  return result;
}

ncclResult_t sim_group_job(const struct sim_init_job *job) {
  if (group.depth == 0) {
    struct sim_init_job own = *job;
    job_run(&own);
    return own.result;
  }
  if (!reserve((void **)&group.jobs, &group.job_capacity, group.job_count, sizeof *job))
    return ncclSystemError;
  group.jobs[group.job_count++] = *job;
  return ncclSuccess;
}

/* ---- operations ---- */

static ncclResult_t task_add(const struct sim_task *task, const char *name) {
  ncclResult_t result = sim_comm_check(task->comm, name);
  if (result != ncclSuccess) return result;
  result = (ncclResult_t)atomic_load(&task->comm->async_error);
  if (result == ncclSuccess && task->comm->finalized) result = ncclInvalidUsage;
  if (result != ncclSuccess) {
    sim_set_error("%s: the communicator has failed or is finalised", name);
    return result;
  }
  if (!reserve((void **)&group.tasks, &group.task_capacity, group.task_count, sizeof *task))
    return ncclSystemError;
  struct sim_task *added = &group.tasks[group.task_count++];
  *added = *task;
  if (task->function == SIM_RECV)
    sim_driver()->log_receive(task->receive, task->count * sim_type_bytes(task->type));
  bool captured = sim_stream_captured(task->stream);
  if (!group.api_comm) {
    group.api_comm = task->comm;
    group.api_event = sim_profiler_group_api_start(task->comm, captured, group.user_depth);
  }
  sim_profiler_task_api(added, group.api_event, captured);
  return ncclSuccess;
}

ncclResult_t sim_enqueue(const struct sim_task *task, const char *name) {
  (void)sim_group_start();
  ncclResult_t result = sim_group_error(task_add(task, name));
  ncclResult_t end = sim_group_end();
  return result != ncclSuccess ? result : end;
}

/* Launches the tasks of the communicator of tasks[0], and takes them out of the list. */
static ncclResult_t launch_first(struct sim_task *tasks, size_t *count, void *api_event) {
  ncclComm_t comm = tasks[0].comm;
  struct sim_task *own = calloc(*count, sizeof *own);
  size_t n = 0, rest = 0;
  if (!own) return ncclSystemError;
  for (size_t i = 0; i < *count; i++) {
    if (tasks[i].comm == comm)
      own[n++] = tasks[i];
    else
      tasks[rest++] = tasks[i];
  }
  *count = rest;
  ncclResult_t result = sim_launch(comm, own, n, api_event);
  free(own);
  return result;
}

static ncclResult_t close_outermost(struct group *g) {
  ncclResult_t result = g->error;
  if (g->api_comm) sim_profiler_group_api_end(g->api_comm, g->api_event);
  if (result == ncclSuccess && g->job_count > 0) result = jobs_run(g->jobs, g->job_count);
  while (result == ncclSuccess && g->task_count > 0)
    result = launch_first(g->tasks, &g->task_count, g->api_event);
  if (g->api_comm) sim_profiler_group_api_stop(g->api_comm, g->api_event);
  free(g->tasks);
  free(g->jobs);
  return result;
}

ncclResult_t sim_group_end(void) {
  if (group.depth == 0) {
    sim_set_error("ncclGroupEnd: not in a group");
    return ncclInvalidUsage;
  }
  if (--group.depth > 0) return ncclSuccess;
  /* What runs now may call back into this library (profiler plugins): it finds no group. */
  struct group closing = group;
  memset(&group, 0, sizeof group);
  return close_outermost(&closing);
}

ncclResult_t pncclGroupStart(void) {
  group.user_depth++;
  return sim_group_start();
}
SIM_PUBLIC(ncclGroupStart);

ncclResult_t pncclGroupEnd(void) {
  if (group.user_depth > 0) group.user_depth--;
  return sim_group_end();
}
SIM_PUBLIC(ncclGroupEnd);

ncclResult_t pncclGroupSimulateEnd(ncclSimInfo_t *simInfo) {
  if (!simInfo) return ncclInvalidArgument;
  if (group.depth == 0) return ncclInvalidUsage;
  /* Nothing is launched. */
  (void)sim_group_error(ncclSuccess);
  group.task_count = 0;
  simInfo->estimatedTime = 0;
  return pncclGroupEnd();
}
SIM_PUBLIC(ncclGroupSimulateEnd);
