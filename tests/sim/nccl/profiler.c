/* Owns profiler plugins: looked up at the first communicator, newest known version first, closed at the last
 * one. */
#include "nccl_internal.h"
#include "profiler_abi.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define NEWEST_VERSION 6
#define DEFAULT_NEWEST 5 /* of NCCL 2.28 */

static struct {
  pthread_mutex_t lock;
  bool failed; /* for the rest of the process */
  unsigned communicators;
  void *library;
} plugin = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Set while a communicator holds the plugin, hence constant where they are used. */
static struct sim_profiler_table *table;
static int version;
/* The plugin may write it at any time. */
static int event_mask;

union descriptor {
  struct sim_descriptor_v1 v1;
  struct sim_descriptor_v2 v2;
  struct sim_descriptor_v3 v3;
  struct sim_descriptor_v4 v4;
  struct sim_descriptor_v5 v5;
};

static bool wanted(int bits) {
  return (__atomic_load_n(&event_mask, __ATOMIC_RELAXED) & bits) != 0;
}

/* ---- loading ---- */

static bool is_library_name(const char *name) {
  size_t length = strlen(name);
  return strncmp(name, "lib", 3) == 0 && length > 6 && strcmp(name + length - 3, ".so") == 0;
}

static void *open_library(void) {
  const char *name = getenv("NCCL_PROFILER_PLUGIN");
  char file[256], wrapped[300];
  if (!name) return dlopen("libnccl-profiler.so", RTLD_NOW | RTLD_LOCAL);
  if (strcmp(name, "none") == 0) return NULL;
  if (*name && strncasecmp(name, "STATIC_PLUGIN", strlen(name)) == 0)
    return dlopen(NULL, RTLD_NOW | RTLD_LOCAL);
  snprintf(file, sizeof file, "%s", name);
  void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (library || strchr(file, '/') || is_library_name(file)) return library;
  snprintf(wrapped, sizeof wrapped, "libnccl-profiler-%s.so", file);
  return dlopen(wrapped, RTLD_NOW | RTLD_LOCAL);
}

static int newest_version(void) {
  const char *text = getenv("RPSIM_NCCL_PROFILER_MAX");
  long value = text ? strtol(text, NULL, 10) : DEFAULT_NEWEST;
  return value >= 0 && value <= NEWEST_VERSION ? (int)value : DEFAULT_NEWEST;
}

static bool load_locked(void) {
  plugin.library = open_library();
  table = NULL;
  for (version = newest_version(); plugin.library && version > 0; version--) {
    char symbol[32];
    snprintf(symbol, sizeof symbol, "ncclProfiler_v%d", version);
    table = dlsym(plugin.library, symbol);
    if (table) return true;
  }
  if (plugin.library) dlclose(plugin.library);
  plugin.library = NULL;
  plugin.failed = true;
  return false;
}

static void log_line(int level, unsigned long flags, const char *file, int line, const char *format, ...) {
  (void)level, (void)flags, (void)file, (void)line, (void)format;
}

static ncclResult_t call_init(ncclComm_t comm) {
  void **context = &comm->profiler_context;
  if (version <= 3) return (ncclResult_t)((sim_profiler_init_v1)table->init)(context, &event_mask);
  if (version == 4)
    return (ncclResult_t)((sim_profiler_init_v4)table->init)(context, &event_mask, comm->name, comm->hash, 1,
                                                             comm->nranks, comm->rank, log_line);
  return (ncclResult_t)((sim_profiler_init_v5)table->init)(context, comm->hash, &event_mask, comm->name, 1,
                                                           comm->nranks, comm->rank, log_line);
}

static void release_locked(void) {
  if (--plugin.communicators > 0) return;
  dlclose(plugin.library);
  plugin.library = NULL;
  table = NULL;
  __atomic_store_n(&event_mask, 0, __ATOMIC_RELAXED);
}

void sim_profiler_comm_init(ncclComm_t comm) {
  pthread_mutex_lock(&plugin.lock);
  if (!plugin.failed && (plugin.library || load_locked())) {
    plugin.communicators++;
    comm->profiled = call_init(comm) == ncclSuccess;
    if (!comm->profiled) release_locked();
  }
  pthread_mutex_unlock(&plugin.lock);
}

void sim_profiler_comm_fini(ncclComm_t comm) {
  if (!comm->profiled) return;
  pthread_mutex_lock(&plugin.lock);
  comm->profiled = false;
  (void)table->finalize(comm->profiler_context);
  release_locked();
  pthread_mutex_unlock(&plugin.lock);
}

/* ---- events ---- */

static void *start(ncclComm_t comm, union descriptor *descriptor) {
  void *event = NULL;
  return table->start(comm->profiler_context, &event, descriptor) == ncclSuccess ? event : NULL;
}

static void stop(void *event) {
  if (event) (void)table->stop(event);
}

static const char *function_name(enum sim_function function) {
  static const char *const names[] = {"Broadcast", "Reduce",   "AllGather", "ReduceScatter",
                                      "AllReduce", "SendRecv", "Send",      "Recv"};
  return names[function];
}

static const char *type_name(ncclDataType_t type) {
  static const char *const names[ncclNumTypes] = {
      "ncclInt8",    "ncclUint8",   "ncclInt32",   "ncclUint32",   "ncclInt64",      "ncclUint64",
      "ncclFloat16", "ncclFloat32", "ncclFloat64", "ncclBfloat16", "ncclFloat8e4m3", "ncclFloat8e5m2"};
  return names[type];
}

static bool is_p2p(const struct sim_task *task) {
  return task->function == SIM_SEND || task->function == SIM_RECV;
}

void *sim_profiler_group_api_start(ncclComm_t comm, bool captured, int depth) {
  const int bits = SIM_EVENT_GROUP_API | SIM_EVENT_P2P_API | SIM_EVENT_COLL_API | SIM_EVENT_KERNEL_LAUNCH |
                   SIM_EVENT_P2P | SIM_EVENT_COLL | SIM_EVENT_GROUP | SIM_EVENT_BELOW;
  if (!comm->profiled || version < 5 || !wanted(bits)) return NULL;
  union descriptor d = {
      .v5 = {.type = SIM_EVENT_GROUP_API, .parent = comm->profiler_context, .rank = comm->rank}};
  d.v5.group_api.captured = captured;
  d.v5.group_api.depth = depth > 0 ? depth : 1;
  void *event = start(comm, &d);
  if (event) (void)table->record(event, SIM_STATE_GROUP_START_API_STOP, NULL);
  return event;
}

void sim_profiler_group_api_end(ncclComm_t comm, void *event) {
  if (comm->profiled && event) (void)table->record(event, SIM_STATE_GROUP_END_API_START, NULL);
}

void sim_profiler_group_api_stop(ncclComm_t comm, void *event) {
  if (comm->profiled) stop(event);
}

void sim_profiler_task_api(struct sim_task *task, void *group_api_event, bool captured) {
  ncclComm_t comm = task->comm;
  bool p2p = is_p2p(task);
  int bits =
      (p2p ? SIM_EVENT_P2P_API | SIM_EVENT_P2P : SIM_EVENT_COLL_API | SIM_EVENT_COLL) | SIM_EVENT_BELOW;
  task->api_event = NULL;
  if (!comm->profiled || version < 5 || !wanted(bits)) return;
  union descriptor d = {.v5 = {.type = p2p ? SIM_EVENT_P2P_API : SIM_EVENT_COLL_API,
                               .parent = group_api_event,
                               .rank = comm->rank}};
  if (p2p) {
    d.v5.p2p_api.function = function_name(task->function);
    d.v5.p2p_api.count = task->count;
    d.v5.p2p_api.type = type_name(task->type);
    d.v5.p2p_api.stream = task->stream;
    d.v5.p2p_api.captured = captured;
  } else {
    d.v5.coll_api.function = function_name(task->function);
    d.v5.coll_api.count = task->count;
    d.v5.coll_api.type = type_name(task->type);
    d.v5.coll_api.root = task->root;
    d.v5.coll_api.stream = task->stream;
    d.v5.coll_api.captured = captured;
  }
  task->api_event = start(comm, &d);
  stop(task->api_event);
}

void sim_profiler_launch_start(struct sim_plan *plan, CUstream stream) {
  ncclComm_t comm = plan->comm;
  plan->launch_event = NULL;
  if (!comm->profiled || version < 5 || !wanted(SIM_EVENT_KERNEL_LAUNCH)) return;
  union descriptor d = {
      .v5 = {.type = SIM_EVENT_KERNEL_LAUNCH, .parent = plan->group_api_event, .rank = comm->rank}};
  d.v5.kernel_launch.stream = stream;
  plan->launch_event = start(comm, &d);
}

void sim_profiler_launch_stop(struct sim_plan *plan) {
  if (plan->comm->profiled) stop(plan->launch_event);
}

/* ---- the group event and its operations, one filler per version ---- */

static void *buffer_of(const struct sim_task *task) {
  return task->function == SIM_SEND ? (void *)(uintptr_t)task->send : task->receive;
}

static void fill_v1(struct sim_descriptor_v1 *d, const struct sim_plan *plan, const struct sim_task *task) {
  ncclComm_t comm = plan->comm;
  d->parent = plan->group_event;
  d->rank = comm->rank;
  if (is_p2p(task)) {
    d->type = SIM_EVENT_P2P;
    d->p2p.name = comm->name;
    d->p2p.hash = comm->hash;
    d->p2p.function = (uint8_t)task->function;
    d->p2p.buffer = buffer_of(task);
    d->p2p.type = (uint8_t)task->type;
    d->p2p.count = task->count;
    d->p2p.peer = task->root;
    return;
  }
  d->type = SIM_EVENT_COLL;
  d->coll.name = comm->name;
  d->coll.hash = comm->hash;
  d->coll.function = (uint8_t)task->function;
  d->coll.send = task->send;
  d->coll.receive = task->receive;
  d->coll.count = task->count;
  d->coll.root = task->root;
  d->coll.type = (uint8_t)task->type;
  d->coll.op = (uint32_t)task->op;
}

/* Members that the later versions share, whatever their offsets. */
#define FILL_P2P(d, task)                                                                                    \
  do {                                                                                                       \
    (d)->type = SIM_EVENT_P2P;                                                                               \
    (d)->p2p.function = function_name((task)->function);                                                     \
    (d)->p2p.buffer = buffer_of(task);                                                                       \
    (d)->p2p.type = type_name((task)->type);                                                                 \
    (d)->p2p.count = (task)->count;                                                                          \
    (d)->p2p.peer = (task)->root;                                                                            \
  } while (0)
#define FILL_COLL(d, task)                                                                                   \
  do {                                                                                                       \
    (d)->type = SIM_EVENT_COLL;                                                                              \
    (d)->coll.function = function_name((task)->function);                                                    \
    (d)->coll.send = (task)->send;                                                                           \
    (d)->coll.receive = (task)->receive;                                                                     \
    (d)->coll.count = (task)->count;                                                                         \
    (d)->coll.root = (task)->root;                                                                           \
    (d)->coll.type = type_name((task)->type);                                                                \
    (d)->coll.algorithm = "RING";                                                                            \
    (d)->coll.protocol = "LL";                                                                               \
  } while (0)
#define FILL_NAMED(d, plan, task)                                                                            \
  do {                                                                                                       \
    (d)->parent = (plan)->group_event;                                                                       \
    (d)->rank = (plan)->comm->rank;                                                                          \
    if (is_p2p(task)) {                                                                                      \
      FILL_P2P(d, task);                                                                                     \
      (d)->p2p.name = (plan)->comm->name;                                                                    \
      (d)->p2p.hash = (plan)->comm->hash;                                                                    \
    } else {                                                                                                 \
      FILL_COLL(d, task);                                                                                    \
      (d)->coll.name = (plan)->comm->name;                                                                   \
      (d)->coll.hash = (plan)->comm->hash;                                                                   \
    }                                                                                                        \
  } while (0)

static void fill_v4(struct sim_descriptor_v4 *d, const struct sim_plan *plan, const struct sim_task *task) {
  d->parent = plan->group_event;
  d->rank = plan->comm->rank;
  if (is_p2p(task)) {
    FILL_P2P(d, task);
    d->p2p.channels = 1;
  } else {
    FILL_COLL(d, task);
    d->coll.channels = 1;
  }
}

static void fill_v5(struct sim_descriptor_v5 *d, const struct sim_plan *plan, const struct sim_task *task) {
  d->parent = task->api_event;
  d->rank = plan->comm->rank;
  if (is_p2p(task)) {
    FILL_P2P(d, task);
    d->p2p.channels = 1;
    d->p2p.parent_group = plan->group_event;
  } else {
    FILL_COLL(d, task);
    d->coll.channels = 1;
    d->coll.parent_group = plan->group_event;
  }
}

static void *task_start(const struct sim_plan *plan, const struct sim_task *task) {
  union descriptor d;
  memset(&d, 0, sizeof d);
  switch (version) {
  case 1:
    fill_v1(&d.v1, plan, task);
    break;
  case 2:
    FILL_NAMED(&d.v2, plan, task);
    break;
  case 3:
    FILL_NAMED(&d.v3, plan, task);
    break;
  case 4:
    fill_v4(&d.v4, plan, task);
    break;
  default:
    fill_v5(&d.v5, plan, task);
  }
  return start(plan->comm, &d);
}

static void *group_start(const struct sim_plan *plan) {
  union descriptor d;
  memset(&d, 0, sizeof d);
  if (version >= 5)
    d.v5.type = SIM_EVENT_GROUP;
  else
    d.v1.type = SIM_EVENT_GROUP;
  d.v1.parent = plan->comm->profiler_context; /* parent and rank lie at the same place in all versions */
  d.v1.rank = plan->comm->rank;
  return start(plan->comm, &d);
}

void sim_profiler_plan(struct sim_plan *plan) {
  if (!plan->comm->profiled) return;
  const int p2p = SIM_EVENT_P2P | SIM_EVENT_BELOW, coll = SIM_EVENT_COLL | SIM_EVENT_BELOW;
  plan->group_event = wanted(SIM_EVENT_GROUP | p2p | coll) ? group_start(plan) : NULL;
  for (size_t i = 0; i < plan->task_count; i++) {
    struct sim_task *task = &plan->tasks[i];
    task->event = wanted(is_p2p(task) ? p2p : coll) ? task_start(plan, task) : NULL;
  }
  for (size_t i = 0; i < plan->task_count; i++)
    stop(plan->tasks[i].event);
  stop(plan->group_event);
}
