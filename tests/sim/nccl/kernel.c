/* Owns the device side: the registry of live communicators by the device address that kernels are given, the
 * plans waiting to run, and the kernel body, which runs on the thread of its stream. */
#include "nccl_internal.h"

#include <stdlib.h>
#include <string.h>

#define CHUNK_BYTES ((size_t)256 << 10) /* of a reduction: one such buffer per peer */

static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER;
static ncclComm_t registry;

/* ---- registry ---- */

void sim_registry_add(ncclComm_t comm) {
  pthread_mutex_lock(&registry_lock);
  comm->references = 1;
  comm->registered = true;
  comm->next = registry;
  registry = comm;
  pthread_mutex_unlock(&registry_lock);
}

static void comm_free(ncclComm_t comm) {
  for (struct sim_plan *plan = comm->plans, *next; plan; plan = next) {
    next = plan->next;
    sim_plan_destroy(plan);
  }
  sim_memory_forget(comm);
  sim_comm_close(comm);
  comm->magic = 0;
  pthread_mutex_destroy(&comm->run_lock);
  pthread_mutex_destroy(&comm->lock);
  free(comm);
}

static void comm_put(ncclComm_t comm) {
  pthread_mutex_lock(&registry_lock);
  bool last = --comm->references == 0;
  pthread_mutex_unlock(&registry_lock);
  if (last) comm_free(comm);
}

void sim_registry_remove(ncclComm_t comm) {
  pthread_mutex_lock(&registry_lock);
  for (ncclComm_t *at = &registry; *at; at = &(*at)->next) {
    if (*at != comm) continue;
    *at = comm->next;
    break;
  }
  comm->registered = false;
  pthread_mutex_unlock(&registry_lock);
  comm_put(comm);
}

/* With a reference; NULL once the communicator is destroyed, as a graph may outlive it. */
static ncclComm_t comm_get(CUdeviceptr address) {
  pthread_mutex_lock(&registry_lock);
  ncclComm_t comm = registry;
  while (comm && comm->device_comm != address)
    comm = comm->next;
  if (comm) comm->references++;
  pthread_mutex_unlock(&registry_lock);
  return comm;
}

void sim_registry_each(void (*visit)(ncclComm_t)) {
  pthread_mutex_lock(&registry_lock);
  for (ncclComm_t comm = registry; comm; comm = comm->next)
    visit(comm);
  pthread_mutex_unlock(&registry_lock);
}

/* ---- plans ---- */

void sim_plan_destroy(struct sim_plan *plan) {
  if (!plan) return;
  sim_snapshot_free(plan->remembered);
  free(plan->tasks);
  free(plan);
}

uint32_t sim_plan_submit(ncclComm_t comm, struct sim_plan *plan) {
  pthread_mutex_lock(&comm->lock);
  uint32_t number = comm->next_plan++;
  plan->number = number;
  plan->next = comm->plans;
  comm->plans = plan;
  pthread_mutex_unlock(&comm->lock);
  return number;
}

static struct sim_plan *plan_find(ncclComm_t comm, uint32_t number, bool take) {
  pthread_mutex_lock(&comm->lock);
  struct sim_plan **at = &comm->plans;
  while (*at && (*at)->number != number)
    at = &(*at)->next;
  struct sim_plan *plan = *at;
  if (plan && take) *at = plan->next;
  pthread_mutex_unlock(&comm->lock);
  return plan;
}

void sim_plan_withdraw(ncclComm_t comm, uint32_t number) {
  sim_plan_destroy(plan_find(comm, number, true));
}

/* A graph may outlive the communicator, so what its host function is given is found by number and never
 * freed. */
struct note {
  CUdeviceptr comm;
  uint32_t number;
  struct note *next;
};

void *sim_plan_note(const struct sim_plan *plan) {
  static struct note *notes;
  struct note *note = malloc(sizeof *note);
  if (!note) return NULL;
  pthread_mutex_lock(&registry_lock);
  *note = (struct note){plan->comm->device_comm, plan->number, notes};
  notes = note;
  pthread_mutex_unlock(&registry_lock);
  return note;
}

void sim_plan_noted(void *argument) {
  const struct note *note = argument;
  ncclComm_t comm = comm_get(note->comm);
  if (!comm) return;
  struct sim_plan *plan = plan_find(comm, note->number, false);
  if (plan) sim_profiler_plan(plan);
  comm_put(comm);
}

/* ---- operations ---- */

static ncclResult_t exchange_all(ncclComm_t comm, const uint8_t *send, size_t send_stride, uint8_t *receive,
                                 size_t receive_stride, size_t bytes) {
  struct sim_transfer transfers[2 * SIM_MAX_RANKS] = {0};
  size_t n = 0;
  for (int peer = 0; peer < comm->nranks; peer++) {
    if (peer == comm->rank) continue;
    size_t p = (size_t)peer;
    if (send)
      transfers[n++] = (struct sim_transfer){.send = true,
                                             .peer = peer,
                                             .data = (uint8_t *)(uintptr_t)send + p * send_stride,
                                             .bytes = bytes,
                                             .kind = SIM_FRAME_COLLECTIVE};
    if (receive)
      transfers[n++] = (struct sim_transfer){
          .peer = peer, .data = receive + p * receive_stride, .bytes = bytes, .kind = SIM_FRAME_COLLECTIVE};
  }
  return sim_exchange(comm, transfers, n);
}

static void copy(void *to, const void *from, size_t bytes) {
  if (to != from && bytes > 0) memmove(to, from, bytes);
}

static ncclResult_t all_gather(const struct sim_task *task) {
  size_t bytes = task->count * sim_type_bytes(task->type);
  uint8_t *receive = task->receive;
  copy(receive + (size_t)task->comm->rank * bytes, task->send, bytes);
  return exchange_all(task->comm, task->send, 0, receive, bytes, bytes);
}

static ncclResult_t broadcast(const struct sim_task *task) {
  size_t bytes = task->count * sim_type_bytes(task->type);
  if (task->comm->rank == task->root) {
    copy(task->receive, task->send, bytes);
    return exchange_all(task->comm, task->send, 0, NULL, 0, bytes);
  }
  struct sim_transfer receive = {
      .peer = task->root, .data = task->receive, .bytes = bytes, .kind = SIM_FRAME_COLLECTIVE};
  return sim_exchange(task->comm, &receive, 1);
}

/* Combines the chunks of all ranks, in rank order, into the result. chunks[rank of this process] is not used.
 */
static void combine(const struct sim_task *task, uint8_t *result, const uint8_t *own, uint8_t *chunks,
                    size_t count) {
  ncclComm_t comm = task->comm;
  size_t bytes = count * sim_type_bytes(task->type);
  copy(chunks + (size_t)comm->rank * CHUNK_BYTES, own, bytes);
  for (int rank = 1; rank < comm->nranks; rank++)
    sim_reduce(chunks, chunks + (size_t)rank * CHUNK_BYTES, count, task->type, task->op);
  sim_reduce_finish(chunks, count, task->type, task->op, comm->nranks);
  copy(result, chunks, bytes);
}

/* One chunk of a reduction: `offset` elements into the data. */
static ncclResult_t reduce_chunk(const struct sim_task *task, uint8_t *chunks, size_t offset, size_t count) {
  ncclComm_t comm = task->comm;
  size_t element = sim_type_bytes(task->type), bytes = count * element;
  bool scatter = task->function == SIM_REDUCE_SCATTER;
  bool gets = task->function != SIM_REDUCE || comm->rank == task->root;
  const uint8_t *send = (const uint8_t *)task->send + offset * element;
  size_t stride = scatter ? task->count * element : 0;
  ncclResult_t result;
  if (task->function == SIM_REDUCE && !gets) {
    struct sim_transfer to_root = {.send = true,
                                   .peer = task->root,
                                   .data = (uint8_t *)(uintptr_t)send,
                                   .bytes = bytes,
                                   .kind = SIM_FRAME_COLLECTIVE};
    return sim_exchange(comm, &to_root, 1);
  }
  result = exchange_all(comm, task->function == SIM_REDUCE ? NULL : send, stride, chunks, CHUNK_BYTES, bytes);
  if (result == ncclSuccess)
    combine(task, (uint8_t *)task->receive + offset * element, send + (size_t)comm->rank * stride, chunks,
            count);
  return result;
}

static ncclResult_t reduction(const struct sim_task *task) {
  size_t step = CHUNK_BYTES / sim_type_bytes(task->type);
  uint8_t *chunks = malloc((size_t)task->comm->nranks * CHUNK_BYTES);
  ncclResult_t result = chunks ? ncclSuccess : ncclSystemError;
  for (size_t offset = 0; offset < task->count && result == ncclSuccess; offset += step) {
    size_t count = task->count - offset < step ? task->count - offset : step;
    result = reduce_chunk(task, chunks, offset, count);
  }
  free(chunks);
  return result;
}

/* Sends to the own rank are copies, matched in order with the receives; the launch has checked that they pair
 * up. */
static void copy_to_self(const struct sim_plan *plan) {
  size_t receive = 0;
  for (size_t i = 0; i < plan->task_count; i++) {
    const struct sim_task *send = &plan->tasks[i];
    if (send->function != SIM_SEND || send->root != plan->comm->rank) continue;
    while (plan->tasks[receive].function != SIM_RECV || plan->tasks[receive].root != plan->comm->rank)
      receive++;
    copy(plan->tasks[receive++].receive, send->send, send->count * sim_type_bytes(send->type));
  }
}

static ncclResult_t point_to_point(const struct sim_plan *plan) {
  struct sim_transfer *transfers = calloc(plan->task_count + 1, sizeof *transfers);
  size_t n = 0;
  if (!transfers) return ncclSystemError;
  for (size_t i = 0; i < plan->task_count; i++) {
    const struct sim_task *task = &plan->tasks[i];
    bool send = task->function == SIM_SEND;
    if ((!send && task->function != SIM_RECV) || task->root == plan->comm->rank) continue;
    transfers[n++] = (struct sim_transfer){.send = send,
                                           .peer = task->root,
                                           .data = send ? (uint8_t *)(uintptr_t)task->send : task->receive,
                                           .bytes = task->count * sim_type_bytes(task->type),
                                           .kind = SIM_FRAME_P2P};
  }
  ncclResult_t result = n > 0 ? sim_exchange(plan->comm, transfers, n) : ncclSuccess;
  free(transfers);
  return result;
}

static ncclResult_t collective(const struct sim_task *task) {
  switch (task->function) {
  case SIM_ALL_GATHER:
    return all_gather(task);
  case SIM_BROADCAST:
    return broadcast(task);
  case SIM_ALL_REDUCE:
  case SIM_REDUCE:
  case SIM_REDUCE_SCATTER:
    return reduction(task);
  default:
    return ncclSuccess; /* point to point */
  }
}

static void log_plan(const struct sim_plan *plan) {
  for (size_t i = 0; i < plan->task_count; i++) {
    const struct sim_task *task = &plan->tasks[i];
    size_t bytes = task->count * sim_type_bytes(task->type);
    bool receives = task->function == SIM_RECV;
    sim_driver()->log_transfer(receives ? task->receive : task->send, bytes, receives);
  }
}

/* Collectives in the order of issue, then sends and receives together. */
static void plan_run(const struct sim_plan *plan) {
  if (atomic_load(&plan->comm->aborted) || atomic_load(&plan->comm->async_error) != ncclSuccess) return;
  ncclResult_t result = ncclSuccess;
  for (size_t i = 0; i < plan->task_count && result == ncclSuccess; i++)
    result = collective(&plan->tasks[i]);
  if (result == ncclSuccess) {
    copy_to_self(plan);
    result = point_to_point(plan);
  }
  if (result != ncclSuccess) sim_comm_fail(plan->comm, result);
}

/* ---- the kernel ---- */

/* Touches every page, so that an access to memory that is not there faults here, where nothing is held, and
 * the device answers as for any other kernel. */
static void touch(const void *data, size_t bytes, bool write) {
  if (!data) return;
  for (uintptr_t at = (uintptr_t)data, end = at + bytes; at < end; at = (at | 4095) + 1) {
    if (write)
      __atomic_fetch_or((uint8_t *)at, 0, __ATOMIC_RELAXED);
    else
      (void)__atomic_load_n((const uint8_t *)at, __ATOMIC_RELAXED);
  }
}

static void touch_range(const void *data, size_t bytes, bool write, void *argument) {
  (void)argument;
  touch(data, bytes, write);
}

void sim_plan_each_range(const struct sim_plan *plan,
                         void (*visit)(const void *data, size_t bytes, bool write, void *argument),
                         void *argument) {
  for (size_t i = 0; i < plan->task_count; i++) {
    const struct sim_task *task = &plan->tasks[i];
    size_t bytes = task->count * sim_type_bytes(task->type), all = bytes * (size_t)plan->comm->nranks;
    bool root = plan->comm->rank == task->root;
    bool sends = task->function != SIM_RECV && (task->function != SIM_BROADCAST || root);
    bool receives = task->function != SIM_SEND && (task->function != SIM_REDUCE || root);
    if (sends) visit(task->send, task->function == SIM_REDUCE_SCATTER ? all : bytes, false, argument);
    if (receives) visit(task->receive, task->function == SIM_ALL_GATHER ? all : bytes, true, argument);
  }
}

/* What a transfer could not access. */
struct fault {
  const void *data;
  size_t bytes;
  bool write;
};

static struct fault run_locked(ncclComm_t comm, const struct sim_plan *plan) {
  pthread_mutex_lock(&comm->run_lock);
  comm->fault_data = NULL;
  sim_memory_check(plan);
  plan_run(plan);
  struct fault fault = {comm->fault_data, comm->fault_bytes, comm->fault_write};
  pthread_mutex_unlock(&comm->run_lock);
  return fault;
}

static void kernel_body(void *const *params, const struct rpsim_dims *dims) {
  (void)dims;
  struct sim_kernel_args args;
  memcpy(&args, params[0], sizeof args);
  ncclComm_t comm = comm_get(args.comm);
  if (!comm) return;
  struct sim_plan *plan = plan_find(comm, args.batch.offset_base, false);
  bool skip = !plan || atomic_load(&comm->aborted);
  comm_put(comm); /* a fault leaves this function: hold nothing. Destroying waits for the kernel's stream. */
  if (skip) return;
  sim_plan_each_range(plan, touch_range, NULL);
  log_plan(plan);

  comm = comm_get(args.comm);
  if (!comm) return;
  struct fault fault = run_locked(comm, plan);
  if (!plan->persistent) sim_plan_destroy(plan_find(comm, args.batch.offset_base, true));
  comm_put(comm);
  touch(fault.data, fault.bytes, fault.write);
}

#define KERNEL(name) name "24ncclDevKernelArgsStorageILm4096EE"
static const struct rpsim_param kernel_params[] = {{0, SIM_KERNEL_ARGS_BYTES}};
const struct rpsim_kernel sim_kernels[SIM_KERNEL_COUNT] = {
    {KERNEL("_Z22ncclDevKernel_SendRecv"), kernel_body, 1, kernel_params},
    {KERNEL("_Z39ncclDevKernel_AllReduce_Sum_f32_RING_LL"), kernel_body, 1, kernel_params},
    {KERNEL("_Z21ncclDevKernel_Generic"), kernel_body, 1, kernel_params},
};

static size_t kernel_index(const struct sim_plan *plan) {
  bool p2p = true, sums = true;
  for (size_t i = 0; i < plan->task_count; i++) {
    const struct sim_task *task = &plan->tasks[i];
    p2p &= task->function == SIM_SEND || task->function == SIM_RECV;
    sums &= task->function == SIM_ALL_REDUCE && task->type == ncclFloat32 && task->op == ncclSum;
  }
  return p2p ? 0 : sums ? 1 : 2;
}

static CUresult load_library(CUlibrary *out) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  static CUlibrary library;
  static const uint32_t image[16] = {0xba55ed50}; /* the magic number of a fat binary */
  pthread_mutex_lock(&lock);
  CUresult result =
      library ? CUDA_SUCCESS : sim_driver()->library_load(&library, image, NULL, NULL, 0, NULL, NULL, 0);
  *out = library;
  pthread_mutex_unlock(&lock);
  return result;
}

CUfunction sim_kernel_function(const struct sim_plan *plan) {
  size_t index = kernel_index(plan);
  CUfunction *function = &plan->comm->functions[index];
  CUlibrary library = NULL;
  CUkernel kernel = NULL;
  if (*function) return *function;
  CUresult result = load_library(&library);
  if (result == CUDA_SUCCESS)
    result = sim_driver()->library_get_kernel(&kernel, library, sim_kernels[index].name);
  if (result == CUDA_SUCCESS) result = sim_driver()->kernel_get_function(function, kernel);
  (void)sim_cuda_result(result, sim_kernels[index].name);
  return *function;
}
