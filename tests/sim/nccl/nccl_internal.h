/** @file nccl_internal.h
 * Shared by the files of the simulated libnccl.so.2:
 *
 * - driver.c: finds the CUDA driver at run time (no undefined cuda symbol, as a statically linked runtime)
 * - bootstrap.c: unique ids, rendezvous of the ranks, the sockets between them
 * - transport.c: moves bytes between ranks: concurrent sends and receives, FIFO per pair, sizes checked
 * - reduce.c: arithmetic of the reductions
 * - kernel.c: the device kernel: runs a plan on the thread of its stream
 * - memory.c: what backs registered and captured buffers, which may not change
 * - comm.c: communicators: life, queries, split
 * - group.c: group semantics and init jobs
 * - launch.c: plans and their launch
 * - collectives.c: the public operations
 * - profiler.c: profiler plugins v1 to v6
 * - api.c: the remaining entry points
 *
 * Lock order: registry, communicator run lock, communicator lock, registrations.
 */
#ifndef RPSIM_NCCL_INTERNAL_H
#define RPSIM_NCCL_INTERNAL_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#pragma GCC visibility push(default)
#include <nccl.h>
/* The header declares these two without parameters, which is no prototype in C. */
ncclResult_t pncclGroupStart(void);
ncclResult_t pncclGroupEnd(void);
#pragma GCC visibility pop
#include <cuda.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "../rpsim.h"

#define SIM_MAX_RANKS 64
#define SIM_KERNEL_COUNT 3 /* SendRecv, AllReduce, Generic */

/** Gives pncclX its public name: weak, at the same address, as NVIDIA's library does. */
#define SIM_PUBLIC(name)                                                                                     \
  extern __typeof__(p##name) name __attribute__((weak, alias("p" #name), visibility("default")))

/* ---- driver.c ---- */

/** Driver entry points in use, resolved through cuGetProcAddress. */
struct sim_driver {
  CUresult (*init)(unsigned);
  CUresult (*device_get_count)(int *);
  CUresult (*primary_retain)(CUcontext *, CUdevice);
  CUresult (*context_get_current)(CUcontext *);
  CUresult (*context_set_current)(CUcontext);
  CUresult (*context_get_device)(CUdevice *);
  CUresult (*mem_alloc)(CUdeviceptr *, size_t);
  CUresult (*mem_free)(CUdeviceptr);
  CUresult (*copy_to_device)(CUdeviceptr, const void *, size_t);
  CUresult (*stream_create)(CUstream *, unsigned);
  CUresult (*stream_destroy)(CUstream);
  CUresult (*stream_synchronize)(CUstream);
  CUresult (*stream_wait_event)(CUstream, CUevent, unsigned);
  CUresult (*stream_capture_status)(CUstream, CUstreamCaptureStatus *);
  CUresult (*event_create)(CUevent *, unsigned);
  CUresult (*event_destroy)(CUevent);
  CUresult (*event_record)(CUevent, CUstream);
  CUresult (*launch_host_func)(CUstream, CUhostFn, void *);
  CUresult (*library_load)(CUlibrary *, const void *, CUjit_option *, void **, unsigned, CUlibraryOption *,
                           void **, unsigned);
  CUresult (*library_get_kernel)(CUkernel *, CUlibrary, const char *);
  CUresult (*kernel_get_function)(CUfunction *, CUkernel);
  CUresult (*launch_kernel)(const CUlaunchConfig *, CUfunction, void **, void **);
  CUresult (*granularity)(size_t *, const CUmemAllocationProp *, CUmemAllocationGranularity_flags);
  CUresult (*address_reserve)(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
  CUresult (*address_free)(CUdeviceptr, size_t);
  CUresult (*create)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long);
  CUresult (*release)(CUmemGenericAllocationHandle);
  CUresult (*map)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long);
  CUresult (*unmap)(CUdeviceptr, size_t);
  CUresult (*set_access)(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t);
  int (*register_kernels)(const struct rpsim_kernel *, size_t);
  void (*log_receive)(const void *, size_t);
  void (*log_transfer)(const void *, size_t, int);
  int (*backing_of)(uint64_t, struct rpsim_backing *);
};

/** The driver, initialised (cuInit done, kernels registered) on first use; NULL without one. Thread-safe. */
const struct sim_driver *sim_driver(void);
/** ncclUnhandledCudaError for any CUDA error, with the text of sim_set_error. */
ncclResult_t sim_cuda_result(CUresult result, const char *what);

/** Whether work given to the stream becomes part of a graph. */
bool sim_stream_captured(CUstream stream);

/* ---- bootstrap.c ---- */

/** Seconds that ranks wait for one another: RPSIM_NCCL_TIMEOUT_SECONDS, default 60. As an absolute monotonic
 * time. */
int64_t sim_deadline_ns(void);
/** Starts a rendezvous in this process and writes its address and hash into *id. */
ncclResult_t sim_rendezvous_create(ncclUniqueId *id);
/** Joins the rendezvous: on success comm->peers have their sockets and comm->hash is set. comm->nranks and
 * rank are given. ncclSystemError when the other ranks do not come in time. */
ncclResult_t sim_rendezvous_join(ncclComm_t comm, const ncclUniqueId *id);
/** Sends or receives exactly `bytes` on a control socket before the deadline. */
ncclResult_t sim_send_all(int fd, const void *data, size_t bytes, int64_t deadline_ns);
ncclResult_t sim_receive_all(int fd, void *data, size_t bytes, int64_t deadline_ns);

/** What ranks say to one another on the control sockets. */
enum sim_control_kind { SIM_CONTROL_SPLIT = 1, SIM_CONTROL_ID, SIM_CONTROL_BYE };
struct sim_control {
  uint32_t kind, rank;
  int32_t color, key;
  ncclUniqueId id;
};

/* ---- transport.c ---- */

enum sim_frame_kind { SIM_FRAME_P2P = 0x50325031, SIM_FRAME_COLLECTIVE };
struct sim_frame {
  uint32_t kind, reserved;
  uint64_t sequence, bytes;
};

/** One message to or from a peer. The first five members are the caller's, the rest belongs to sim_exchange.
 */
struct sim_transfer {
  bool send;
  int peer;
  uint8_t *data;
  size_t bytes;
  uint32_t kind;
  struct sim_transfer *next;
  struct sim_frame frame;
  size_t frame_done, done;
};

/** Performs all transfers, which proceed together; those of one peer and direction in order. Blocks. Needs
 * the run lock. On failure (peer gone, sizes differ, aborted) the rest ends without data and the communicator
 * has its async error. */
ncclResult_t sim_exchange(ncclComm_t comm, struct sim_transfer *transfers, size_t count);
/** Looks, without waiting, for peers that died; sets the async error. For use between operations. */
void sim_check_peers(ncclComm_t comm);

/* ---- reduce.c ---- */

/** Bytes of one element; 0 for no type. */
size_t sim_type_bytes(ncclDataType_t type);
/** accumulator[i] = accumulator[i] op operand[i]; average is a sum that sim_reduce_finish divides. */
void sim_reduce(void *accumulator, const void *operand, size_t count, ncclDataType_t type, ncclRedOp_t op);
void sim_reduce_finish(void *accumulator, size_t count, ncclDataType_t type, ncclRedOp_t op, int nranks);

/* ---- tasks and plans ---- */

enum sim_function { /* numbered as ncclFunc_t, which profiler plugins of version 1 are given */
                    SIM_BROADCAST,
                    SIM_REDUCE,
                    SIM_ALL_GATHER,
                    SIM_REDUCE_SCATTER,
                    SIM_ALL_REDUCE,
                    SIM_SEND_RECV,
                    SIM_SEND,
                    SIM_RECV,
};

/** One public operation as given by the user. */
struct sim_task {
  enum sim_function function;
  ncclComm_t comm;
  CUstream stream;
  const void *send;
  void *receive;
  size_t count; /**< elements, as given */
  ncclDataType_t type;
  ncclRedOp_t op;
  int root;                /**< root or peer */
  void *api_event, *event; /**< profiler handles */
};

/** The work of one kernel. A persistent plan (captured in a graph) runs at every launch of the graph. */
struct sim_plan {
  uint32_t number;
  bool persistent;
  ncclComm_t comm;
  struct sim_task *tasks;
  size_t task_count;
  void *group_api_event, *group_event, *launch_event;
  struct sim_snapshot *remembered; /**< of a persistent plan */
  struct sim_plan *next;
};

/** Frees a plan. NULL is allowed. */
void sim_plan_destroy(struct sim_plan *plan);

/** Calls `visit` for every range of memory that the operations of a plan read or write. */
void sim_plan_each_range(const struct sim_plan *plan,
                         void (*visit)(const void *data, size_t bytes, bool write, void *argument),
                         void *argument);

/* ---- memory.c ---- */

/** Physical memory behind a range, as it was when it was looked up. */
struct sim_snapshot;

/** Looks up what backs the range; NULL if part of it has nothing behind it, or without memory. */
struct sim_snapshot *sim_snapshot_take(const void *data, size_t bytes);
/** NULL is allowed; frees the whole list. */
void sim_snapshot_free(struct sim_snapshot *snapshot);
/** Remembers the ranges of a plan that a graph will run again: they count as registered. */
void sim_memory_remember(struct sim_plan *plan);
/** Ends the process if the plan uses memory that was registered and has another backing now, or writes
 * through one address what it uses through another. What NVIDIA's library would do is not defined. */
void sim_memory_check(const struct sim_plan *plan);
/** The communicator ends: drops its registrations. */
void sim_memory_forget(ncclComm_t comm);

/* ---- communicators ---- */

struct sim_peer {
  int data_fd, control_fd;
  uint64_t send_sequence, receive_sequence;
  bool departed; /**< left in good order */
};

#define SIM_COMM_MAGIC 0x52504e43434c2842ULL

struct ncclComm {
  uint64_t magic;
  int nranks, rank, device;
  pid_t pid;
  uint64_t hash;
  char name[64];
  CUcontext context;
  ncclConfig_t config;

  struct sim_peer peers[SIM_MAX_RANKS];
  int wake_fd; /**< eventfd, readable for ever once aborted; -1 before */
  _Atomic bool aborted;
  _Atomic int async_error; /**< ncclResult_t; the first one stays */
  unsigned launching;      /**< groups that a thread is launching for it; lock of group.c */
  bool finalized;

  CUdeviceptr device_comm, work_fifo, channel_buffer; /**< buffers of the library's own */
  CUstream device_stream; /**< orders the kernels of this communicator among user streams */
  CUevent scratch_event, finished_event;
  CUfunction functions[SIM_KERNEL_COUNT]; /**< of this context, looked up at first use */

  const uint8_t *fault_data; /**< run lock: what a transfer could not access, or NULL */
  size_t fault_bytes;
  bool fault_write;

  pthread_mutex_t run_lock; /**< held by the running kernel */
  pthread_mutex_t lock;     /**< plans */
  struct sim_plan *plans;
  uint32_t next_plan;

  void *profiler_context;
  bool profiled;

  unsigned references; /**< registry lock: the user's and one per running kernel */
  bool registered;
  struct ncclComm *next;
};

/** The communicator behind a user's handle, or ncclInvalidArgument with its text. */
ncclResult_t sim_comm_check(ncclComm_t comm, const char *function);
/** Records the first asynchronous error and wakes nobody: the running kernel ends by itself. */
void sim_comm_fail(ncclComm_t comm, ncclResult_t error);
/** Text for ncclGetLastError of this thread's process. */
void sim_set_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
const char *sim_last_error(void);

/** Creates a communicator: everything ncclCommInitRank does, on the calling thread, in the current context.
 */
ncclResult_t sim_comm_create(ncclComm_t *out, int nranks, const ncclUniqueId *id, int rank,
                             const ncclConfig_t *config);
/** Everything ncclCommSplit does, on the calling thread. */
ncclResult_t sim_comm_split(ncclComm_t parent, int color, int key, ncclComm_t *out,
                            const ncclConfig_t *config);

/** Closes the sockets, when the last reference is gone. */
void sim_comm_close(ncclComm_t comm);
/** The thread's current context; the primary one of device 0 if there is none, as the runtime does. */
ncclResult_t sim_context_ensure(CUcontext *context);

/* kernel.c: registry of live communicators, by the device address their kernels are given */

void sim_registry_add(ncclComm_t comm);
/** Removes it; it is freed when the last running kernel has ended. */
void sim_registry_remove(ncclComm_t comm);
/** Calls visit for every live communicator, under the registry lock. */
void sim_registry_each(void (*visit)(ncclComm_t));
/** Hands `plan` over to the communicator. Returns its number. */
uint32_t sim_plan_submit(ncclComm_t comm, struct sim_plan *plan);
/** Drops a plan whose launch failed. */
void sim_plan_withdraw(ncclComm_t comm, uint32_t number);
/** What a captured host function is given to find a persistent plan again, and that host function. NULL: no
 * memory. */
void *sim_plan_note(const struct sim_plan *plan);
void sim_plan_noted(void *note);
/** The kernels of this library. */
extern const struct rpsim_kernel sim_kernels[SIM_KERNEL_COUNT];
/** Function handle to launch for a plan: SendRecv, AllReduce or Generic. NULL if the driver does not know it.
 */
CUfunction sim_kernel_function(const struct sim_plan *plan);

/** What a kernel is given, after NVIDIA's ncclDevKernelArgs and its first work batch. */
struct sim_work_batch {
  uint32_t flags;
  uint32_t offset_base; /**< number of the plan */
  uint64_t offset_bits;
};
struct sim_kernel_args {
  CUdeviceptr comm;
  uint64_t channel_mask;
  uint32_t work_storage_type; /**< 1 = FIFO: the work is not in the arguments */
  uint32_t work_mask;
  CUdeviceptr work_buffer;
  struct sim_work_batch batch;
};
#define SIM_KERNEL_ARGS_BYTES 4096

/* ---- group.c, launch.c ---- */

/** Adds an operation to the thread's group, or performs it at once outside of one. */
ncclResult_t sim_enqueue(const struct sim_task *task, const char *name);
ncclResult_t sim_group_start(void);
ncclResult_t sim_group_end(void);
/** Notes an error inside a group, for its end. */
ncclResult_t sim_group_error(ncclResult_t result);
/** Depth of the thread's group, without implicit ones. */
int sim_group_depth(void);
/** Whether a group of a non-blocking communicator is still being launched; and waits until none is. */
bool sim_group_in_progress(ncclComm_t comm);
void sim_group_settle(ncclComm_t comm);

/** A communicator to be made at the end of the group (or at once). */
struct sim_init_job {
  ncclComm_t *out;
  ncclComm_t parent; /**< split, else init */
  int nranks, rank;  /**< or color and key */
  ncclUniqueId id;
  bool has_config;
  ncclConfig_t config;
  CUcontext context;
  bool taken;
  ncclResult_t result;
};
ncclResult_t sim_group_job(const struct sim_init_job *job);

/** Launches the tasks of one communicator as one kernel. */
ncclResult_t sim_launch(ncclComm_t comm, const struct sim_task *tasks, size_t count, void *group_api_event);

/* ---- profiler.c ---- */

void sim_profiler_comm_init(ncclComm_t comm);
void sim_profiler_comm_fini(ncclComm_t comm);
/** Starts a group's API event; state 23 is recorded with it. NULL when off. */
void *sim_profiler_group_api_start(ncclComm_t comm, bool captured, int depth);
void sim_profiler_group_api_end(ncclComm_t comm, void *event);
void sim_profiler_group_api_stop(ncclComm_t comm, void *event);
/** Start and stop of the API event of one operation. */
void sim_profiler_task_api(struct sim_task *task, void *group_api_event, bool captured);
void sim_profiler_launch_start(struct sim_plan *plan, CUstream stream);
void sim_profiler_launch_stop(struct sim_plan *plan);
/** Start and stop of the group event and the events of its operations, after the launch. */
void sim_profiler_plan(struct sim_plan *plan);

#endif
