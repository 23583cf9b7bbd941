/* Owns group semantics: per thread, the operations and init jobs between the first ncclGroupStart and its
 * end. */
#include "nccl_internal.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LATE_NS 300000 /* longest that a launching thread is held up, with RPSIM_SEED */

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
  if (sim_group_in_progress(task->comm)) {
    sim_set_error("%s: the communicator's last group has not settled yet", name);
    return ncclInvalidArgument;
  }
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

/* ---- non-blocking communicators: a thread launches, and the call returns before ---- */

static pthread_mutex_t launching_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t launched = PTHREAD_COND_INITIALIZER;

bool sim_group_in_progress(ncclComm_t comm) {
  pthread_mutex_lock(&launching_lock);
  bool launching = comm->launching > 0;
  pthread_mutex_unlock(&launching_lock);
  return launching;
}

void sim_group_settle(ncclComm_t comm) {
  pthread_mutex_lock(&launching_lock);
  while (comm->launching > 0)
    pthread_cond_wait(&launched, &launching_lock);
  pthread_mutex_unlock(&launching_lock);
}

/* Counts each communicator of the tasks up or down, once per task. */
static void count_launching(const struct sim_task *tasks, size_t count, bool up) {
  pthread_mutex_lock(&launching_lock);
  for (size_t i = 0; i < count; i++)
    tasks[i].comm->launching += up ? 1u : -1u;
  pthread_cond_broadcast(&launched);
  pthread_mutex_unlock(&launching_lock);
}

/* Somewhere between at once and LATE_NS: what relies on the launch having been made shows. */
static void be_late(void) {
  static _Atomic uint64_t state;
  const char *seed = getenv("RPSIM_SEED");
  if (!seed || strtoull(seed, NULL, 0) == 0) return;
  uint64_t step = atomic_fetch_add(&state, 0x9e3779b97f4a7c15u) + strtoull(seed, NULL, 0);
  step = (step ^ (step >> 31)) * 0xbf58476d1ce4e5b9u;
  nanosleep(&(struct timespec){.tv_nsec = (long)((step >> 24) % LATE_NS)}, NULL);
}

static ncclResult_t launch_all(struct group *g) {
  ncclResult_t result = ncclSuccess;
  while (result == ncclSuccess && g->task_count > 0)
    result = launch_first(g->tasks, &g->task_count, g->api_event);
  if (g->api_comm) sim_profiler_group_api_stop(g->api_comm, g->api_event);
  return result;
}

struct launcher {
  struct group group;
  struct sim_task *all; /* launching takes them out of the group's list */
  size_t count;
};

static void *launcher_main(void *argument) {
  struct launcher *launcher = argument;
  be_late();
  ncclResult_t result = launch_all(&launcher->group);
  for (size_t i = 0; result != ncclSuccess && i < launcher->count; i++)
    sim_comm_fail(launcher->all[i].comm, result);
  count_launching(launcher->all, launcher->count, false);
  free(launcher->group.tasks);
  free(launcher->all);
  free(launcher);
  return NULL;
}

/* Takes over the tasks of the group, if it succeeds. */
static ncclResult_t launch_later(struct group *g) {
  struct launcher *launcher = calloc(1, sizeof *launcher);
  struct sim_task *all = calloc(g->task_count, sizeof *all);
  if (!launcher || !all) {
    free(launcher);
    free(all);
    return ncclSystemError;
  }
  memcpy(all, g->tasks, g->task_count * sizeof *all);
  *launcher = (struct launcher){*g, all, g->task_count};
  count_launching(all, launcher->count, true);
  pthread_t thread;
  if (pthread_create(&thread, NULL, launcher_main, launcher) != 0) {
    count_launching(all, launcher->count, false);
    free(all);
    free(launcher);
    return ncclSystemError;
  }
  pthread_detach(thread);
  g->tasks = NULL;
  g->task_count = 0;
  return ncclInProgress;
}

/* Whether all communicators of the group are non-blocking. What is captured is launched by the caller. */
static ncclResult_t group_blocking(const struct group *g, bool *blocking) {
  size_t free_ones = 0;
  bool captured = false;
  for (size_t i = 0; i < g->task_count; i++) {
    free_ones += g->tasks[i].comm->config.blocking == 0;
    captured = captured || sim_stream_captured(g->tasks[i].stream);
  }
  *blocking = captured || free_ones == 0;
  if (free_ones == 0 || free_ones == g->task_count) return ncclSuccess;
  sim_set_error("blocking and non-blocking communicators in one group");
  return ncclInvalidArgument;
}

static ncclResult_t close_outermost(struct group *g) {
  ncclResult_t result = g->error;
  bool blocking = true;
  if (g->api_comm) sim_profiler_group_api_end(g->api_comm, g->api_event);
  if (result == ncclSuccess && g->job_count > 0) result = jobs_run(g->jobs, g->job_count);
  if (result == ncclSuccess) result = group_blocking(g, &blocking);
  if (result == ncclSuccess && !blocking) result = launch_later(g);
  if (result == ncclInProgress) {
    free(g->jobs);
    return result;
  }
  if (result != ncclSuccess) g->task_count = 0;
  ncclResult_t launched_all = launch_all(g);
  free(g->tasks);
  free(g->jobs);
  return result == ncclSuccess ? launched_all : result;
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
  if (group.user_depth > 0) group.user_depth--;
  return sim_group_end(); /* within the library, as there: no exported function is called */
}
SIM_PUBLIC(ncclGroupSimulateEnd);
