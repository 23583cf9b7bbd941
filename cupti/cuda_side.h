/** @file cuda_side.h
 * All that the rest of recvpool sees of CUDA and CUPTI: plain integers in, plain integers out. Nothing here
 * includes a CUDA header.
 *
 *   CUPTI callback, or a hook of the interposer  ->  rp_cuda_op / rp_cuda_launch  ->  sink (agent)
 *
 * The rule of the house: no call that changes CUDA state is made from a callback. What is asked of the driver
 * here is queries only, guarded against re-entry.
 */
#ifndef RP_CUPTI_CUDA_SIDE_H
#define RP_CUPTI_CUDA_SIDE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "recvpool/event.h"
#include "recvpool/status.h"

/** Stream handles of the default streams, as events carry them. */
#define RP_STREAM_LEGACY 1u
#define RP_STREAM_PER_THREAD 2u

/** How many 8-byte words of one launch are looked at for companions. */
#define RP_LAUNCH_WORDS 256

/** One call at the driver boundary that is no launch. */
struct rp_cuda_op {
  enum rp_event_kind kind;
  uint64_t address; /**< destination of a copy; object of the others */
  uint64_t bytes;
  uint64_t source; /**< copies: where it reads from */
  uint64_t source_bytes;
  uint64_t stream;
  uint64_t aux; /**< as in struct rp_event */
};

/** Calls that order work, or end what others are named by. */
enum rp_cuda_order_kind {
  RP_CUDA_ORDER_NOTHING = 0,
  RP_CUDA_RECORD = 1,      /**< stream, object: event */
  RP_CUDA_RECORD_CONTEXT,  /**< object: event; all work of a context */
  RP_CUDA_WAIT,            /**< stream, object: event */
  RP_CUDA_SYNC_STREAM,     /**< stream */
  RP_CUDA_SYNC_EVENT,      /**< object: event */
  RP_CUDA_SYNC_CONTEXT,    /**< context, 0: the current one */
  RP_CUDA_CAPTURE_BEGIN,   /**< stream */
  RP_CUDA_CAPTURE_END,     /**< stream */
  RP_CUDA_STREAM_CREATE,   /**< object: stream, known when the call has returned; context */
  RP_CUDA_STREAM_DESTROY,  /**< stream */
  RP_CUDA_EVENT_CREATE,    /**< object: event, known when the call has returned */
  RP_CUDA_EVENT_DESTROY,   /**< object: event */
  RP_CUDA_EVENT_FOREIGN,   /**< object: event that others may record, known before the call or after it */
  RP_CUDA_GRAPH_DESTROY,   /**< object: executable graph */
  RP_CUDA_CONTEXT_DESTROY, /**< context */
};

#define RP_CUDA_ORDER_QUERY 1u     /**< a question that counts if it is answered "done" */
#define RP_CUDA_ORDER_BLOCKING 2u  /**< stream creation: waits for the legacy stream */
#define RP_CUDA_ORDER_ELSEWHERE 4u /**< stream creation: not in the current context */

struct rp_cuda_order {
  enum rp_cuda_order_kind kind;
  uint32_t flags;   /**< RP_CUDA_ORDER_* */
  uint64_t context; /**< current one, or the one meant; 0 = not known */
  uint64_t stream;
  uint64_t object;
};

/** Kinds of work that the order of streams tells apart. */
enum rp_cuda_work_kind {
  RP_CUDA_LAUNCH = 0, /**< also asynchronous copies, memsets, host functions */
  RP_CUDA_GRAPH_LAUNCH,
  RP_CUDA_COPY_SYNC /**< of the synchronous family */
};

/** Where a synchronous copy goes from and to, as far as that tells whether the host waits for it. */
enum rp_cuda_copy {
  RP_CUDA_COPY_UNKNOWN = 0,
  RP_CUDA_COPY_TO_HOST,          /**< from device memory to plain or pinned memory of the host */
  RP_CUDA_COPY_PINNED_TO_DEVICE, /**< from pinned memory */
};

/** In what work_begin answers: a token will be asked for. */
#define RP_CUDA_WORK_WANTED (UINT64_C(1) << 31)
/** In rp_cuda_launch.event_flags, beyond those of events: the launch records events by its attributes. */
#define RP_LAUNCH_RECORDS 0x10000u

/** Work that a call puts on a stream. */
struct rp_cuda_work {
  enum rp_cuda_work_kind kind;
  uint32_t event_flags;       /**< RP_EVENT_FLAG_PDL, RP_EVENT_FLAG_CAPTURED */
  uint64_t context;           /**< current one, 0 = not known */
  uint64_t stream;            /**< already normalised */
  uint64_t graph;             /**< executable */
  const void *driver_config;  /**< CUlaunchConfig whose attributes are to be read, or NULL */
  const void *runtime_config; /**< cudaLaunchConfig_t, the same */
  uint64_t to, from;          /**< synchronous copies: addresses, of the host too */
  bool outside;               /**< it may wait for something outside of all streams: host functions */
};

/** One word of a launch's parameters. */
struct rp_launch_word {
  uint64_t value;
  uint32_t offset; /**< bytes from the start of the parameters */
  bool hit;        /**< lies in a receive buffer */
};

/** The words of a launch that named a receive buffer. */
struct rp_launch_words {
  size_t count;
  size_t dropped; /**< words that did not fit */
  struct rp_launch_word words[RP_LAUNCH_WORDS];
};

/** One kernel launch, as the driver is given it. */
struct rp_cuda_launch {
  uint64_t function;    /**< CUfunction, or CUkernel cast to it */
  uint64_t stream;      /**< already normalised, see RP_STREAM_* */
  uint32_t event_flags; /**< RP_EVENT_FLAG_PDL */
  const char *symbol;   /**< mangled name where the caller knows it, else NULL; valid during the call only */
  void **params;        /**< kernelParams */
  void **extra;         /**< packed buffer */
  uint32_t grid[3];     /**< blocks, x first; 0 = not known */
};

/** Which ranges count as receive buffers. `low` and `high` bound all of them and are read relaxed on every
 * word. */
struct rp_scan_filter {
  const _Atomic uint64_t *low, *high;
  /** Whether a receive buffer overlaps [begin, end). No lock, no allocation. */
  bool (*overlaps)(uint64_t begin, uint64_t end);
};

/** Told of what happens; every function is called on the thread that made the call, possibly inside a CUPTI
 * callback, so none may call CUDA. */
struct rp_cuda_sink {
  struct rp_scan_filter filter;
  /** A callback begins; false: ignore it (off, or the agent's own call). Each true is answered by one
   * `leave`. */
  bool (*enter)(void);
  void (*leave)(void);
  /** A launch begins; false: it is NCCL's own and names nothing of interest. */
  bool (*launch_begun)(void);
  /** The launch named a receive buffer. */
  void (*launch_hit)(const struct rp_cuda_launch *launch, const struct rp_launch_words *words);
  void (*op)(const struct rp_cuda_op *op);
  /** Work is about to be put on a stream; after launch_hit and op. What it answers, not 0, is given to
   * work_end on the same thread; 0: nobody wants to know. Launches on other streams than the legacy one, that
   * name no receive buffer and record no event, need not be told. */
  uint64_t (*work_begin)(const struct rp_cuda_work *work);
  /** Where the call succeeded and `begun` has RP_CUDA_WORK_WANTED: work_resume, what launch_hit (op) was told
   * again to launch_done (op_done), and work_end. */
  void (*work_resume)(const struct rp_cuda_work *work, uint64_t begun);
  void (*launch_done)(const struct rp_cuda_launch *launch, const struct rp_launch_words *words);
  void (*op_done)(const struct rp_cuda_op *op);
  void (*work_end)(const struct rp_cuda_work *work, uint64_t begun, bool succeeded);
  /** A call that orders work begins and ends. What order_begin answers, not 0, is given to order_end on the
   * same thread; `call` may say more by then. */
  uint64_t (*order_begin)(const struct rp_cuda_order *call);
  void (*order_end)(const struct rp_cuda_order *call, uint64_t begun, bool succeeded);
  /** The driver has finished initialising, or a context exists. */
  void (*initialised)(void);
  /** Code was loaded: there may be new modules in the process too. */
  void (*code_loaded)(void);
  /** NVTX range: text of a push, NULL for a pop. */
  void (*label)(const char *text);
};

/* ---- driver ---- */

/** Finds the driver: the copy of libcuda.so.1 that is mapped already, never another one. Makes no CUDA call.
 *  RP_ERROR_UNAVAILABLE when none is mapped. Idempotent, thread-safe. */
rp_status rp_driver_open(void);
/** Path of the mapped libcuda, "" if there is none. Static storage. */
const char *rp_driver_path(void);
/** Version the driver reports (12040, 13000 …), 0 if unknown. A query; not for callbacks. */
int rp_driver_version(void);
/** Largest major CUDA version that the mapped driver can serve, judged by its file name; 0 if it does not
 * tell. */
int rp_driver_major_from_path(const char *path);
/** Ordinal of the calling thread's current device, -1 if there is none. Query; safe in callbacks. */
int rp_driver_current_device(void);
/** Context current on the calling thread, 0 if there is none. Query; safe in callbacks. */
uint64_t rp_driver_current_context(void);
/** What kind of memory a synchronous copy goes between; RP_CUDA_COPY_UNKNOWN also where the driver does not
 * tell, and for managed memory. Query; safe in callbacks. */
enum rp_cuda_copy rp_driver_copy_kind(uint64_t to, uint64_t from);
/** Whether `stream` is being captured. Query; safe in callbacks; false where it cannot be told. */
bool rp_driver_stream_capturing(uint64_t stream);
/** Number of devices, and name and memory of one. Queries; not for callbacks. */
int rp_driver_device_count(void);
rp_status rp_driver_device_info(int ordinal, char *name, size_t name_size, uint64_t *total_bytes);
/** Name of a kernel by its handle into `out`; false if the driver does not tell. Query; safe in callbacks. */
bool rp_driver_function_name(uint64_t function, char *out, size_t out_size);
/** True while this thread is inside one of the queries above: callbacks they raise are the agent's own. */
bool rp_driver_in_query(void);

/* ---- launches ---- */

/** Where one parameter lies; parameter `index` is at kernelParams[index]. */
struct rp_param_layout {
  uint32_t offset, size;
};

/** The pure half: collects the aligned 8-byte words of a launch, marks those that lie in receive buffers.
 * `layout` may be NULL (then only `extra` can be read). `launch` (may be NULL) tells which kernel it is, so
 * that of a table only the filled part counts. True if at least one word lies in a receive buffer; `out` is
 * of no use otherwise. */
bool rp_launch_collect(const struct rp_param_layout *layout, size_t layout_count, void *const *params,
                       void *const *extra, const struct rp_scan_filter *filter,
                       const struct rp_cuda_launch *launch, struct rp_launch_words *out);
/** The same for a launch of the live process: looks the layout up in the cache, asking the driver the first
 * time. */
bool rp_launch_scan(const struct rp_cuda_launch *launch, const struct rp_scan_filter *filter,
                    struct rp_launch_words *out);
/** Whether the packed buffer of `extra` is complete; its bytes and start. Tolerates odd and missing pairs. */
bool rp_launch_extra(void *const *extra, const unsigned char **buffer, size_t *bytes);
/** Looks the layout up ahead of a launch, outside callbacks. */
void rp_launch_learn(uint64_t function);
/** Kernels that NCCL launches for its own work, by name. */
bool rp_launch_is_nccl(const char *symbol);
/** Module or library unloaded: handles may be used again for other kernels. */
void rp_launch_invalidate(void);
/** Changes with every rp_launch_invalidate. */
uint32_t rp_launch_generation(void);
/** Launches whose parameters could not be read since their layout is unknown. */
uint64_t rp_launch_unreadable(void);
/** Host memory that the cache holds. */
uint64_t rp_launch_cache_bytes(void);

/* ---- the runtime's structs, for the interposer ---- */

/** Stream of a cudaLaunchConfig_t, and RP_EVENT_FLAG_PDL if it launches with programmatic serialisation. */
uint64_t rp_runtime_config_stream(const void *config, uint32_t *event_flags);
/** Stream of a CUlaunchConfig, the same. */
uint64_t rp_driver_config_stream(const void *config, uint32_t *event_flags);
/** Blocks of the launch with that configuration, x first. */
void rp_runtime_config_grid(const void *config, uint32_t grid[3]);
void rp_driver_config_grid(const void *config, uint32_t grid[3]);
/** The next event that the launch records by its attributes, from position *at (begin with 0); false: there
 * are no more. `started`: it says that the launch has begun (programmatic event), else nothing certain. */
bool rp_driver_config_event(const void *config, unsigned *at, uint64_t *event, bool *started);
bool rp_runtime_config_event(const void *config, unsigned *at, uint64_t *event, bool *started);
/** The event that a graph node with these CUgraphNodeParams (cudaGraphNodeParams) records; 0: it records
 * none. */
uint64_t rp_driver_node_event(const void *params);
uint64_t rp_runtime_node_event(const void *params);

/* ---- copies that a struct describes ---- */

/** What the copy uses, on the host too, bytes 0 for arrays; `kind` RP_EVENT_COPY_READ, the stream is left 0.
 * False: there is none. CUDA_MEMCPY2D, CUDA_MEMCPY3D, CUDA_MEMCPY3D_PEER; cudaMemcpy3DParms,
 * cudaMemcpy3DPeerParms. */
bool rp_shape_copy_2d(const void *copy, struct rp_cuda_op *out);
bool rp_shape_copy_3d(const void *copy, struct rp_cuda_op *out);
bool rp_shape_copy_3d_peer(const void *copy, struct rp_cuda_op *out);
bool rp_shape_runtime_copy_3d(const void *copy, struct rp_cuda_op *out);
bool rp_shape_runtime_copy_3d_peer(const void *copy, struct rp_cuda_op *out);
/** The same of one of a list: CUDA_MEMCPY3D_BATCH_OP (also the runtime's). */
bool rp_shape_copy_3d_batch(const void *list, size_t index, struct rp_cuda_op *out);
/** What an operation of cuStreamBatchMemOp writes (RP_EVENT_MEMSET) or reads; false: neither. */
bool rp_shape_memory_op(const void *list, size_t index, struct rp_cuda_op *out);

/* ---- nodes of graphs ---- */

/** What the parameters of a node name: a kernel, a copy or a memset, or words. */
struct rp_node_use {
  struct rp_cuda_launch launch; /**< function 0: no kernel */
  bool by_symbol;               /**< the function is a host symbol of the runtime */
  struct rp_cuda_op op;
  const void *words; /**< for rp_shape_memory_op */
  size_t word_count;
};

/** CUgraphNodeParams; CUDA_KERNEL_NODE_PARAMS (`has_kernel`: not of its first version), MEMSET, MEMCPY3D,
 * BATCH_MEM_OP. False: there is nothing. */
bool rp_node_driver(const void *params, struct rp_node_use *out);
bool rp_node_driver_kernel(const void *params, bool has_kernel, struct rp_node_use *out);
bool rp_node_driver_memset(const void *params, struct rp_node_use *out);
bool rp_node_driver_copy(const void *params, struct rp_node_use *out);
bool rp_node_driver_words(const void *params, struct rp_node_use *out);
/** cudaGraphNodeParams; cudaKernelNodeParams, cudaMemsetParams, cudaMemcpy3DParms. */
bool rp_node_runtime(const void *params, struct rp_node_use *out);
bool rp_node_runtime_kernel(const void *params, struct rp_node_use *out);
bool rp_node_runtime_memset(const void *params, struct rp_node_use *out);
bool rp_node_runtime_copy(const void *params, struct rp_node_use *out);

/* ---- CUPTI ---- */

/** Finds libcupti, subscribes and enables the callbacks that recvpool needs. `runtime_path` is the mapped
 * libcudart or
 *  "". On failure `reason` says why in words for the report: RP_ERROR_UNAVAILABLE (not found or unusable),
 *  RP_ERROR_BUSY (another tool holds the subscription, named). Makes no CUDA call. Call it once. */
rp_status rp_cupti_start(const struct rp_cuda_sink *sink, const char *runtime_path, char *reason,
                         size_t reason_size);
/** Gives the subscription back. Not from a callback. */
void rp_cupti_stop(void);
/** Whether this process's launches come through CUPTI. Cheap. */
bool rp_cupti_active(void);
/** CUPTI's own version number and its path; 0 and "" where not found. */
int rp_cupti_version(void);
const char *rp_cupti_path(void);
/** Whether NVTX callbacks are taken; else why not. */
bool rp_cupti_nvtx(char *reason, size_t reason_size);

#endif
