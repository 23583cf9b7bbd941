/* Owns communicators: creation, split, end, queries, errors. */
#include "nccl_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define CONFIG_MAGIC 0xcafebeefu

/* ---- errors ---- */

static pthread_mutex_t error_lock = PTHREAD_MUTEX_INITIALIZER;
static char error_text[256];

void sim_set_error(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  pthread_mutex_lock(&error_lock);
  vsnprintf(error_text, sizeof error_text, format, arguments);
  const char *level = getenv("NCCL_DEBUG");
  if (level && (strcmp(level, "WARN") == 0 || strcmp(level, "INFO") == 0))
    fprintf(stderr, "NCCL WARN %s\n", error_text);
  pthread_mutex_unlock(&error_lock);
  va_end(arguments);
}

const char *sim_last_error(void) {
  static _Thread_local char copy[sizeof error_text];
  pthread_mutex_lock(&error_lock);
  memcpy(copy, error_text, sizeof copy);
  pthread_mutex_unlock(&error_lock);
  return copy;
}

void sim_comm_fail(ncclComm_t comm, ncclResult_t error) {
  int none = ncclSuccess;
  atomic_compare_exchange_strong(&comm->async_error, &none, (int)error);
}

ncclResult_t sim_comm_check(ncclComm_t comm, const char *function) {
  if (comm && comm->magic == SIM_COMM_MAGIC) return ncclSuccess;
  sim_set_error("%s: no communicator", function);
  return ncclInvalidArgument;
}

/* ---- creation ---- */

static ncclResult_t device_setup(ncclComm_t comm) {
  const struct sim_driver *driver = sim_driver();
  CUdevice device = 0;
  CUresult result = driver->context_get_device(&device);
  comm->device = device;
  if (result == CUDA_SUCCESS) result = driver->mem_alloc(&comm->device_comm, (size_t)64 << 10);
  if (result == CUDA_SUCCESS) result = driver->mem_alloc(&comm->work_fifo, (size_t)1 << 20);
  if (result == CUDA_SUCCESS) result = driver->mem_alloc(&comm->channel_buffer, (size_t)2 << 20);
  if (result == CUDA_SUCCESS)
    result = driver->copy_to_device(comm->device_comm, &(uint64_t[]){comm->hash, (uint64_t)comm->rank}, 16);
  if (result == CUDA_SUCCESS) result = driver->stream_create(&comm->device_stream, CU_STREAM_NON_BLOCKING);
  if (result == CUDA_SUCCESS) result = driver->event_create(&comm->scratch_event, CU_EVENT_DISABLE_TIMING);
  if (result == CUDA_SUCCESS) result = driver->event_create(&comm->finished_event, CU_EVENT_DISABLE_TIMING);
  return sim_cuda_result(result, "device buffers");
}

static void device_release(ncclComm_t comm) {
  const struct sim_driver *driver = sim_driver();
  if (comm->scratch_event) driver->event_destroy(comm->scratch_event);
  if (comm->finished_event) driver->event_destroy(comm->finished_event);
  if (comm->device_stream) driver->stream_destroy(comm->device_stream);
  if (comm->channel_buffer) driver->mem_free(comm->channel_buffer);
  if (comm->work_fifo) driver->mem_free(comm->work_fifo);
  if (comm->device_comm) driver->mem_free(comm->device_comm);
}

void sim_comm_close(ncclComm_t comm) {
  for (int peer = 0; peer < comm->nranks; peer++) {
    if (comm->peers[peer].data_fd >= 0) close(comm->peers[peer].data_fd);
    if (comm->peers[peer].control_fd >= 0) close(comm->peers[peer].control_fd);
  }
  if (comm->wake_fd >= 0) close(comm->wake_fd);
}

static ncclComm_t comm_new(int nranks, int rank, const ncclConfig_t *config) {
  ncclComm_t comm = calloc(1, sizeof *comm);
  if (!comm) return NULL;
  comm->magic = SIM_COMM_MAGIC;
  comm->nranks = nranks;
  comm->rank = rank;
  comm->pid = getpid();
  comm->config = config ? *config : (ncclConfig_t)NCCL_CONFIG_INITIALIZER;
  if (comm->config.commName) snprintf(comm->name, sizeof comm->name, "%s", comm->config.commName);
  comm->config.commName = comm->name;
  for (int peer = 0; peer < SIM_MAX_RANKS; peer++)
    comm->peers[peer].data_fd = comm->peers[peer].control_fd = -1;
  comm->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  pthread_mutex_init(&comm->run_lock, NULL);
  pthread_mutex_init(&comm->lock, NULL);
  return comm;
}

/* Programs may be built for another version of NCCL, whose struct ends earlier or later: they share a
 * beginning. */
static ncclResult_t config_take(const ncclConfig_t *given, struct sim_init_job *job) {
  if (!given) return ncclSuccess;
  size_t bytes = given->size < sizeof *given ? given->size : sizeof *given;
  bool valid = given->magic == CONFIG_MAGIC && bytes >= offsetof(ncclConfig_t, cgaClusterSize) &&
               (given->blocking == 0 || given->blocking == 1 || given->blocking == NCCL_CONFIG_UNDEF_INT);
  if (!valid) {
    sim_set_error("configuration is not initialised with NCCL_CONFIG_INITIALIZER, or has an invalid value");
    return ncclInvalidArgument;
  }
  job->has_config = true;
  job->config = (ncclConfig_t)NCCL_CONFIG_INITIALIZER;
  memcpy(&job->config, given, bytes);
  job->config.size = sizeof job->config;
  return ncclSuccess;
}

ncclResult_t sim_context_ensure(CUcontext *context) {
  const struct sim_driver *driver = sim_driver();
  if (!driver) return ncclUnhandledCudaError;
  CUresult result = driver->context_get_current(context);
  if (result == CUDA_SUCCESS && !*context) {
    result = driver->primary_retain(context, 0);
    if (result == CUDA_SUCCESS) result = driver->context_set_current(*context);
  }
  return sim_cuda_result(result, "current context");
}

ncclResult_t sim_comm_create(ncclComm_t *out, int nranks, const ncclUniqueId *id, int rank,
                             const ncclConfig_t *config) {
  ncclComm_t comm = comm_new(nranks, rank, config);
  if (!comm) return ncclSystemError;
  ncclResult_t result = sim_context_ensure(&comm->context);
  bool device = result == ncclSuccess;
  if (result == ncclSuccess) result = sim_rendezvous_join(comm, id);
  if (result == ncclSuccess) result = device_setup(comm);
  sim_registry_add(comm);
  if (result == ncclSuccess) {
    sim_profiler_comm_init(comm);
    *out = comm;
    return ncclSuccess;
  }
  if (device) device_release(comm);
  sim_registry_remove(comm);
  return result;
}

static ncclResult_t init_rank(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t *config) {
  if (!comm || nranks < 1 || nranks > SIM_MAX_RANKS || rank < 0 || rank >= nranks) {
    sim_set_error("ncclCommInitRank: rank %d of %d is not valid", rank, nranks);
    return ncclInvalidArgument;
  }
  struct sim_init_job job = {.out = comm, .nranks = nranks, .rank = rank, .id = id};
  ncclResult_t result = config_take(config, &job);
  if (result != ncclSuccess) return result;
  *comm = NULL;
  result = sim_context_ensure(&job.context);
  return result == ncclSuccess ? sim_group_job(&job) : result;
}

ncclResult_t pncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank) {
  return sim_group_error(init_rank(comm, nranks, commId, rank, NULL));
}
SIM_PUBLIC(ncclCommInitRank);

ncclResult_t pncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank,
                                     ncclConfig_t *config) {
  return sim_group_error(init_rank(comm, nranks, commId, rank, config));
}
SIM_PUBLIC(ncclCommInitRankConfig);

ncclResult_t pncclCommInitRankScalable(ncclComm_t *newcomm, int nranks, int myrank, int nId,
                                       ncclUniqueId *commIds, ncclConfig_t *config) {
  if (!commIds || nId < 1 || nId > nranks) return sim_group_error(ncclInvalidArgument);
  return sim_group_error(init_rank(newcomm, nranks, commIds[0], myrank, config));
}
SIM_PUBLIC(ncclCommInitRankScalable);

static ncclResult_t device_list_check(int ndev, const int *devlist) {
  int count = 0;
  const struct sim_driver *driver = sim_driver();
  if (!driver) return ncclUnhandledCudaError;
  ncclResult_t result = sim_cuda_result(driver->device_get_count(&count), "device count");
  for (int i = 0; i < ndev && result == ncclSuccess; i++) {
    int device = devlist ? devlist[i] : i;
    if (device < 0 || device >= count) result = ncclInvalidArgument;
    for (int j = 0; devlist && j < i && result == ncclSuccess; j++)
      if (devlist[j] == device) result = ncclInvalidUsage;
  }
  return result;
}

ncclResult_t pncclCommInitAll(ncclComm_t *comm, int ndev, const int *devlist) {
  if (!comm || ndev < 1 || ndev > SIM_MAX_RANKS) return ncclInvalidArgument;
  ncclUniqueId id;
  CUcontext before = NULL;
  ncclResult_t result = device_list_check(ndev, devlist);
  if (result == ncclSuccess) result = sim_rendezvous_create(&id);
  if (result != ncclSuccess) return result;
  const struct sim_driver *driver = sim_driver();
  (void)driver->context_get_current(&before);
  (void)sim_group_start();
  for (int i = 0; i < ndev && result == ncclSuccess; i++) {
    CUcontext context = NULL;
    result = sim_cuda_result(driver->primary_retain(&context, devlist ? devlist[i] : i), "primary context");
    if (result == ncclSuccess)
      result = sim_cuda_result(driver->context_set_current(context), "primary context");
    if (result == ncclSuccess) result = init_rank(&comm[i], ndev, id, i, NULL);
  }
  (void)driver->context_set_current(before);
  (void)sim_group_error(result);
  ncclResult_t end = sim_group_end();
  return result != ncclSuccess ? result : end;
}
SIM_PUBLIC(ncclCommInitAll);

/* ---- split ---- */

/* Exchanges one control message with each peer that has `wanted`; replies land in all[]. */
static ncclResult_t control_exchange(ncclComm_t comm, const struct sim_control *own,
                                     struct sim_control *all) {
  int64_t deadline_ns = sim_deadline_ns();
  ncclResult_t result = ncclSuccess;
  all[comm->rank] = *own;
  for (int peer = 0; peer < comm->nranks && result == ncclSuccess; peer++)
    if (peer != comm->rank)
      result = sim_send_all(comm->peers[peer].control_fd, own, sizeof *own, deadline_ns);
  for (int peer = 0; peer < comm->nranks && result == ncclSuccess; peer++) {
    if (peer == comm->rank) continue;
    result = sim_receive_all(comm->peers[peer].control_fd, &all[peer], sizeof all[peer], deadline_ns);
    if (result == ncclSuccess && all[peer].kind != own->kind) result = ncclRemoteError;
  }
  return result;
}

/* Ranks of one color in the order of key, then parent rank. Returns how many. */
static int order_color(const struct sim_control *all, int nranks, int color, int *order) {
  int n = 0;
  for (int rank = 0; rank < nranks; rank++) {
    if (all[rank].color != color) continue;
    int at = n++;
    for (; at > 0 && all[order[at - 1]].key > all[rank].key; at--)
      order[at] = order[at - 1];
    order[at] = rank;
  }
  return n;
}

ncclResult_t sim_comm_split(ncclComm_t parent, int color, int key, ncclComm_t *out,
                            const ncclConfig_t *config) {
  struct sim_control *all = calloc(SIM_MAX_RANKS, sizeof *all);
  int order[SIM_MAX_RANKS] = {0}, rank = 0;
  if (!all) return ncclSystemError;
  struct sim_control own = {
      .kind = SIM_CONTROL_SPLIT, .rank = (uint32_t)parent->rank, .color = color, .key = key};
  /* Every rank offers a rendezvous; that of the first rank of a color is used. */
  ncclResult_t result = color == NCCL_SPLIT_NOCOLOR ? ncclSuccess : sim_rendezvous_create(&own.id);
  if (result == ncclSuccess) result = control_exchange(parent, &own, all);
  if (result == ncclSuccess && color != NCCL_SPLIT_NOCOLOR) {
    int n = order_color(all, parent->nranks, color, order);
    while (order[rank] != parent->rank)
      rank++;
    result = sim_comm_create(out, n, &all[order[0]].id, rank, config ? config : &parent->config);
  }
  free(all);
  return result;
}

ncclResult_t pncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config) {
  ncclResult_t result = sim_comm_check(comm, "ncclCommSplit");
  if (result == ncclSuccess && (!newcomm || color < NCCL_SPLIT_NOCOLOR)) result = ncclInvalidArgument;
  if (result == ncclSuccess) result = (ncclResult_t)atomic_load(&comm->async_error);
  struct sim_init_job job = {.out = newcomm, .parent = comm, .nranks = color, .rank = key};
  if (result == ncclSuccess) result = config_take(config, &job);
  if (result != ncclSuccess) return sim_group_error(result);
  *newcomm = NULL;
  job.context = comm->context;
  return sim_group_error(sim_group_job(&job));
}
SIM_PUBLIC(ncclCommSplit);

/* ---- end ---- */

static void say_good_bye(ncclComm_t comm) {
  struct sim_control bye = {.kind = SIM_CONTROL_BYE, .rank = (uint32_t)comm->rank};
  if (comm->pid != getpid() || atomic_load(&comm->aborted)) return;
  for (int peer = 0; peer < comm->nranks; peer++)
    if (comm->peers[peer].control_fd >= 0)
      (void)send(comm->peers[peer].control_fd, &bye, sizeof bye, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* A process that ends without destroying its communicators has still not failed. */
__attribute__((destructor)) static void process_ends(void) {
  sim_registry_each(say_good_bye);
}

static ncclResult_t quiesce(ncclComm_t comm) {
  const struct sim_driver *driver = sim_driver();
  CUcontext before = NULL;
  (void)driver->context_get_current(&before);
  if (before != comm->context) (void)driver->context_set_current(comm->context);
  sim_group_settle(comm);
  ncclResult_t result = sim_cuda_result(driver->stream_synchronize(comm->device_stream), "ncclCommDestroy");
  if (before != comm->context) (void)driver->context_set_current(before);
  return result;
}

static ncclResult_t comm_end(ncclComm_t comm) {
  const struct sim_driver *driver = sim_driver();
  CUcontext before = NULL;
  ncclResult_t result = quiesce(comm);
  (void)driver->context_get_current(&before);
  if (before != comm->context) (void)driver->context_set_current(comm->context);
  sim_profiler_comm_fini(comm);
  device_release(comm);
  if (before != comm->context) (void)driver->context_set_current(before);
  say_good_bye(comm);
  sim_registry_remove(comm);
  return result;
}

ncclResult_t pncclCommFinalize(ncclComm_t comm) {
  ncclResult_t result = sim_comm_check(comm, "ncclCommFinalize");
  if (result != ncclSuccess) return result;
  if (comm->finalized) return ncclInvalidArgument;
  comm->finalized = true;
  return quiesce(comm);
}
SIM_PUBLIC(ncclCommFinalize);

ncclResult_t pncclCommDestroy(ncclComm_t comm) {
  if (!comm) return ncclSuccess;
  ncclResult_t result = sim_comm_check(comm, "ncclCommDestroy");
  return result == ncclSuccess ? comm_end(comm) : result;
}
SIM_PUBLIC(ncclCommDestroy);

static void wake_for_ever(ncclComm_t comm) {
  uint64_t one = 1;
  atomic_store(&comm->aborted, true);
  if (write(comm->wake_fd, &one, sizeof one) != (ssize_t)sizeof one) sim_set_error("cannot wake the kernel");
}

ncclResult_t pncclCommAbort(ncclComm_t comm) {
  if (!comm) return ncclSuccess;
  ncclResult_t result = sim_comm_check(comm, "ncclCommAbort");
  if (result != ncclSuccess) return result;
  wake_for_ever(comm);
  (void)comm_end(comm);
  return ncclSuccess;
}
SIM_PUBLIC(ncclCommAbort);

/* ---- queries ---- */

ncclResult_t pncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *asyncError) {
  ncclResult_t result = sim_comm_check(comm, "ncclCommGetAsyncError");
  if (result != ncclSuccess || !asyncError) return ncclInvalidArgument;
  sim_check_peers(comm);
  *asyncError = (ncclResult_t)atomic_load(&comm->async_error);
  if (*asyncError == ncclSuccess && sim_group_in_progress(comm)) *asyncError = ncclInProgress;
  return ncclSuccess;
}
SIM_PUBLIC(ncclCommGetAsyncError);

#define QUERY(name, member)                                                                                  \
  ncclResult_t p##name(const ncclComm_t comm, int *value) {                                                  \
    ncclResult_t result = sim_comm_check(comm, #name);                                                       \
    if (result != ncclSuccess || !value) return ncclInvalidArgument;                                         \
    *value = comm->member;                                                                                   \
    return ncclSuccess;                                                                                      \
  }                                                                                                          \
  SIM_PUBLIC(name)

QUERY(ncclCommCount, nranks);
QUERY(ncclCommCuDevice, device);
QUERY(ncclCommUserRank, rank);
