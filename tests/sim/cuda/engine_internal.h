/** @file engine_internal.h
 * What the files of the engine share. Two locks, never held together:
 *
 *   engine_lock   streams, operations, events, captures, graphs and every reference count of theirs
 *   memory_lock   address map, physical memory and its accounting
 *
 *   host thread --submit--> operation queue of a stream --stream thread--> work->run()
 *                                  |  waits for its points (stream, sequence number) first
 */
#ifndef RPSIM_ENGINE_INTERNAL_H
#define RPSIM_ENGINE_INTERNAL_H

#include "engine.h"
#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

/* ---- handles ---- */

enum sim_handle_kind {
  SIM_HANDLE_STREAM = 1,
  SIM_HANDLE_EVENT,
  SIM_HANDLE_GRAPH,
  SIM_HANDLE_NODE,
  SIM_HANDLE_EXEC,
};

/** First member of everything behind a handle; the registry is what makes a stale handle an error instead of
 * a crash. */
struct sim_handle {
  enum sim_handle_kind kind;
};

/** Registry of live handles; all three under engine_lock. `find` answers NULL for an unknown handle or
 * another kind. */
bool sim_handle_add(struct sim_handle *handle, enum sim_handle_kind kind);
void *sim_handle_find(const void *handle, enum sim_handle_kind kind);
/** Under engine_lock: calls `visit` for each live handle of a kind; it adds and removes none. */
void sim_handle_each(enum sim_handle_kind kind, void (*visit)(void *handle, void *argument), void *argument);
void sim_handle_remove(struct sim_handle *handle);

/* ---- work: what an operation does ---- */

enum sim_work_kind {
  SIM_WORK_KERNEL,
  SIM_WORK_COPY,
  SIM_WORK_MEMSET,
  SIM_WORK_HOST,
  SIM_WORK_VALUE, /**< wait for or write a value */
  SIM_WORK_FREE,  /**< cuMemFreeAsync */
  SIM_WORK_STAMP  /**< takes an event's time */
};

/** Something a stream thread runs: immutable once submitted, so that a graph can replay it. */
struct sim_work {
  atomic_int refs;
  enum sim_work_kind kind;
  void (*run)(struct sim_work *work);
  void (*dispose)(struct sim_work *work); /**< frees what the work owns, not the work itself; may be NULL */
};

/** Allocates `bytes` (a struct that starts with a sim_work), zeroed, with one reference; NULL without memory.
 */
void *sim_work_new(size_t bytes, enum sim_work_kind kind, void (*run)(struct sim_work *));
void sim_work_unref(struct sim_work *work);

/* ---- streams ---- */

struct sim_stream;

/** A place in a stream: reached once the operation with this sequence number has completed. */
struct sim_point {
  struct sim_stream *stream;
  uint64_t sequence;
  bool begin; /**< reached already when the operation has begun */
};

struct sim_operation {
  struct sim_operation *next;
  struct sim_work *work; /**< NULL for a pure wait */
  bool fixed;            /**< part of the machinery: no jitter, runs even after a sticky error */
  size_t point_count;
  struct sim_point points[]; /**< each holds a reference to its stream */
};

#define SIM_SIDES 2        /* companion streams of programmatic launches */
#define SIM_RECENT_WAITS 8 /* kept for them; more, and a launch is an ordinary one */

struct sim_stream {
  struct sim_handle handle;
  int refs;
  struct sim_engine_context *context; /**< NULL once its context is gone */
  struct sim_stream *previous, *next; /**< list of the context's streams */
  unsigned flags;
  int priority;
  uint64_t id;
  bool legacy, blocking, closing, thread_started;
  struct sim_operation *head, **tail;
  uint64_t enqueued, begun, completed;             /**< sequence numbers of the last operation that was */
  struct sim_point last_work;                      /**< latest kernel, copy, …; here or on a side */
  struct sim_point recent_waits[SIM_RECENT_WAITS]; /**< made since; each holds a reference */
  size_t recent_wait_count;                        /**< SIM_RECENT_WAITS + 1: too many */
  struct sim_stream *sides[SIM_SIDES];             /**< NULL, or with a reference */
  unsigned next_side;
  pthread_cond_t work_ready, progress;
  uint64_t jitter; /**< generator state; 0 = no jitter. Only the stream's thread touches it after creation. */
  struct sim_capture *capture;
  struct sim_node **capture_tail; /**< nodes that the next captured node depends on */
  size_t capture_tail_count;
};

struct sim_engine_context {
  struct sim_context *owner;
  struct sim_stream *streams; /**< every stream with a handle or with work left */
  struct sim_stream *legacy;
  size_t thread_count;
  pthread_cond_t thread_gone;
  atomic_int sticky; /**< CUresult */
};

extern pthread_mutex_t sim_engine_lock;

/** CUDA_ERROR_NOT_INITIALIZED in a fork's child, CUDA_ERROR_INVALID_CONTEXT without a current context, else
 * *context. */
CUresult sim_engine_enter(struct sim_context **context);
/** Like sim_engine_enter, for calls that need no context. */
CUresult sim_engine_enter_process(void);
/** True on a stream thread inside a host function, where CUDA calls are not permitted. */
bool sim_engine_in_host_function(void);
void sim_engine_set_in_host_function(bool inside);
/** Seed of the jitter for streams made from now on; RPSIM_SEED until it is called. */
void sim_engine_set_seed(uint64_t seed);
/** Generator of a stream's delays: its start (0 = none) from the seed and the order in which the stream was
 * made, and the next delay; about every second one is 0. */
uint64_t sim_jitter_start(uint64_t seed, uint64_t order);
uint32_t sim_jitter_next_ns(uint64_t *generator);

/** Under engine_lock: the stream behind a handle (0 and the special ones included) of the current context. */
CUresult sim_stream_resolve_locked(struct sim_context *context, CUstream handle, struct sim_stream **stream);
/** Under engine_lock: makes a stream; `flags` as for cuStreamCreate. NULL without memory. */
struct sim_stream *sim_stream_new_locked(struct sim_engine_context *context, unsigned flags, int priority);
/** Under engine_lock: no handle any more; its work still completes. */
void sim_stream_close_locked(struct sim_stream *stream);
void sim_stream_ref_locked(struct sim_stream *stream);
void sim_stream_unref_locked(struct sim_stream *stream);
bool sim_point_reached_locked(const struct sim_point *point);
void sim_point_wait_locked(const struct sim_point *point);
/** Under engine_lock: appends an operation with the implicit waits of the legacy stream; takes over the
 * reference to `work` (also on failure) and copies the points. */
CUresult sim_stream_append_locked(struct sim_stream *stream, struct sim_work *work,
                                  const struct sim_point *points, size_t point_count, bool fixed);
/** Under engine_lock: the same for a kernel with programmatic stream serialization: it may begin as soon as
 * the work before it has begun. What follows waits for both. */
CUresult sim_stream_append_programmatic_locked(struct sim_stream *stream, struct sim_work *work);
/** Under engine_lock: waits for what a synchronize of this stream waits for. */
void sim_stream_wait_locked(struct sim_stream *stream);
bool sim_stream_idle_locked(struct sim_stream *stream);
/** Under engine_lock: waits for all streams of a context. */
void sim_context_wait_locked(struct sim_engine_context *context);

enum sim_wait {
  SIM_RETURN_AT_ONCE,
  SIM_WAIT,              /**< a synchronous call: not allowed in a capture */
  SIM_WAIT_IF_NO_CAPTURE /**< an asynchronous call that waits because of what it was given */
};

/** Gives `work` to the stream (or to the capture it is in); takes over the reference. */
CUresult sim_submit(CUstream handle, struct sim_work *work, enum sim_wait wait);
/** True if the stream (as the calling thread names it) is in a capture. */
bool sim_stream_is_capturing(CUstream handle);
/** Runs a work unless the context has a sticky error; an illegal access becomes one. */
void sim_work_execute(struct sim_work *work, struct sim_engine_context *context);

/* ---- capture (engine_capture.c) ---- */

struct sim_event;

/** Under engine_lock: adds `work` as a node behind the stream's tail; takes over the reference. */
CUresult sim_capture_work_locked(struct sim_stream *stream, struct sim_work *work);
/** Under engine_lock: a call that must not touch a capturing stream, or uses the legacy stream while one that
 * waits for it captures, invalidates the capture and fails. */
CUresult sim_capture_forbid_locked(struct sim_stream *stream);
/** Under engine_lock: the second half of that, for calls that are legal in a capture. */
CUresult sim_capture_forbid_implicit_locked(struct sim_stream *stream);
/** Under engine_lock: event record and wait where the stream, or the event's latest record, belongs to a
 * capture. */
CUresult sim_capture_record_locked(struct sim_event *event, struct sim_stream *stream);
CUresult sim_capture_wait_locked(struct sim_event *event, struct sim_stream *stream);
/** Under engine_lock: a node that records or waits for an event each time the graph runs. */
CUresult sim_capture_external_locked(struct sim_event *event, struct sim_stream *stream,
                                     CUgraphNodeType type);
/** Under engine_lock: the event's latest record is no longer one of a capture; the stream goes away. */
void sim_capture_forget_event_locked(struct sim_event *event);
void sim_capture_forget_stream_locked(struct sim_stream *stream);
/** Under engine_lock: query or synchronize of an event recorded in a capture: invalidates and fails. */
CUresult sim_capture_forbid_event_locked(struct sim_event *event);
/** A call that is unsafe while this thread (or any thread, in global mode) captures: invalidates and fails.
 */
CUresult sim_capture_forbid_unsafe(void);
/** Under engine_lock: ends what is still being captured in a context that goes away. */
void sim_capture_end_context_locked(struct sim_engine_context *context);
/** A call that waits for a whole context, while one of its streams captures: invalidates and fails. */
CUresult sim_capture_forbid_context(struct sim_context *context);

/* ---- graphs (engine_graph.c) ---- */

struct sim_graph;

struct sim_node {
  struct sim_handle handle;
  struct sim_graph *graph;
  CUgraphNodeType type;
  struct sim_work *work;   /**< NULL for an event node */
  CUevent event;           /**< event nodes: looked up when the graph runs */
  struct sim_graph *child; /**< child graph nodes: a copy of their own */
  size_t index;            /**< in its graph; those of its dependencies are lower */
  struct sim_node **dependencies;
  size_t dependency_count;
};

struct sim_graph {
  struct sim_handle handle;
  struct sim_node **nodes;
  size_t node_count, node_capacity;
};

/** Under engine_lock: an empty graph; its end; a node behind others (takes over the reference to `work`).
 * NULL: no memory. Callbacks are kept for sim_graph_notify. */
struct sim_graph *sim_graph_new_locked(void);
void sim_graph_free_locked(struct sim_graph *graph);
struct sim_node *sim_graph_add_locked(struct sim_graph *graph, CUgraphNodeType type, struct sim_work *work,
                                      struct sim_node *const *dependencies, size_t dependency_count);
/** Raises the callbacks kept on this thread; without a lock. */
void sim_graph_notify(struct sim_context *context);

/* ---- events ---- */

/** One recording of an event. */
struct sim_record {
  int refs; /**< the event and the operation that takes the time */
  struct sim_point point;
  int64_t timestamp_ns; /**< under engine_lock */
};

struct sim_event {
  struct sim_handle handle;
  struct sim_context *context;
  struct sim_event *next_owned; /**< while a context's events are collected */
  unsigned flags;
  struct sim_record *record;   /**< latest; NULL = never recorded */
  struct sim_capture *capture; /**< capture the latest record belongs to, or NULL */
  struct sim_node **capture_nodes;
  size_t capture_node_count;
};

/** Under engine_lock: appends a recording of the event to the stream. */
CUresult sim_event_record_locked(struct sim_event *event, struct sim_stream *stream);
/** Under engine_lock: makes the stream wait for the event's latest recording. */
CUresult sim_event_wait_locked(struct sim_event *event, struct sim_stream *stream);
/** Under engine_lock: the event is no more; and the same for each of a context. */
void sim_event_end_locked(struct sim_event *event);
void sim_event_end_context_locked(const struct sim_context *context);

/* ---- faults (engine_fault.c) ---- */

/** Runs fn(argument) on this thread; false if it touched memory that is not there. May be nested. */
bool sim_fault_guard(void (*fn)(void *), void *argument);

/* ---- memory ---- */

#define SIM_PAGE_BYTES 4096u
#define SIM_ALLOCATION_UNIT_BYTES 512u /* what the accounting rounds a cuMemAlloc to */
#define SIM_GRANULE_BYTES (2u << 20)   /* VMM granularity */
#define SIM_MAX_DEVICES 64

extern pthread_mutex_t sim_memory_lock;

/** Physical memory of a device. References are counted under memory_lock. */
struct sim_physical {
  int refs;        /**< mappings + the owning allocation + 1 while handle_refs > 0 */
  int handle_refs; /**< cuMemCreate, cuMemRetainAllocationHandle, less cuMemRelease */
  int device;
  int file; /**< memfd: the device's own, or this allocation's if it is exportable */
  bool own_file;
  uint64_t offset_bytes, size_bytes, accounted_bytes;
  uint64_t id;
  CUmemAllocationProp properties;
};

/** Takes `size_bytes` from the device, filled with poison. An exportable one has a file of its own. NULL: no
 * room. */
struct sim_physical *sim_physical_new(int device, uint64_t size_bytes, uint64_t accounted_bytes,
                                      bool exportable);
void sim_physical_ref_locked(struct sim_physical *physical);
void sim_physical_unref_locked(struct sim_physical *physical);
/** Takes over an imported file; NULL if it is no allocation. */
struct sim_physical *sim_physical_import(int device, int file);
/** Part of a file of another process, by its descriptor there; NULL if that cannot be opened. */
struct sim_physical *sim_physical_open(int device, pid_t process, int file, uint64_t offset_bytes,
                                       uint64_t size_bytes);
int sim_physical_map(const struct sim_physical *physical, uintptr_t address, uint64_t size_bytes,
                     bool access);
/** Fresh inaccessible address space, or 0; and making a range inaccessible again. */
uintptr_t sim_address_space_take(uint64_t size_bytes, uint64_t alignment, uintptr_t hint);
void sim_address_space_close(uintptr_t address, uint64_t size_bytes);
void sim_address_space_return(uintptr_t address, uint64_t size_bytes);

enum sim_range_kind {
  SIM_RANGE_ALLOCATION, /**< cuMemAlloc and its kin */
  SIM_RANGE_MANAGED,
  SIM_RANGE_ASYNC,
  SIM_RANGE_IPC, /**< another process's, opened by cuIpcOpenMemHandle */
  SIM_RANGE_HOST,
  SIM_RANGE_HOST_REGISTERED,
  SIM_RANGE_RESERVATION,
};

/** Key of the address maps: ranges never overlap. */
struct sim_span {
  uintptr_t base;
  uint64_t size_bytes;
};

struct sim_range {
  struct sim_span span; /**< first: the key */
  enum sim_range_kind kind;
  uint64_t mapped_bytes; /**< whole pages behind the span */
  struct sim_physical *physical;
  struct sim_context *context;
  int device;
  uint64_t buffer_id;
  CUmemoryPool pool;
  unsigned host_flags;
  bool freeing;                 /**< a free is under way */
  struct sim_range *next_owned; /**< while a context's ranges are collected */
};

struct sim_mapping {
  struct sim_span span; /**< first: the key */
  struct sim_physical *physical;
  uint8_t access[SIM_MAX_DEVICES]; /**< CUmemAccess_flags, by device */
};

/** Address maps, under memory_lock. */
struct sim_range *sim_range_find_locked(uintptr_t address);
bool sim_range_overlaps_locked(uintptr_t address, uint64_t size_bytes);
bool sim_range_insert_locked(struct sim_range *range);
void sim_range_remove_locked(struct sim_range *range);
struct sim_mapping *sim_mapping_find_locked(uintptr_t address);
bool sim_mapping_overlaps_locked(uintptr_t address, uint64_t size_bytes);
bool sim_mapping_insert_locked(struct sim_mapping *mapping);
void sim_mapping_remove_locked(struct sim_mapping *mapping);
uint64_t sim_next_buffer_id(void);

/** Allocates device memory of one of the first three kinds. */
CUresult sim_memory_allocate(struct sim_context *context, enum sim_range_kind kind, uint64_t size_bytes,
                             CUmemoryPool pool, CUdeviceptr *address);
/** Makes memory known at a fresh address; takes over `physical`, also on failure (and NULL as no memory). */
CUresult sim_memory_place_at(struct sim_context *context, enum sim_range_kind kind, uint64_t size_bytes,
                             struct sim_physical *physical, CUmemoryPool pool, CUdeviceptr *address);
/** Waits for all work of a context, as freeing does with the driver. */
void sim_memory_wait_for_context(struct sim_context *context);
/** Under memory_lock: takes a range of device memory out of the map and gives its memory back. */
void sim_memory_free_locked(struct sim_range *range);
/** Frees what a context still owns. */
void sim_memory_forget_context(struct sim_context *context);
/** CUDA_ERROR_INVALID_VALUE if [address, +bytes) starts in an allocation and runs over its end. */
CUresult sim_memory_check(CUdeviceptr address, uint64_t bytes);
/** Books an allocation or a free on a pool; the device of a pool, false if it is none. */
void sim_pool_account(CUmemoryPool pool, uint64_t bytes, bool freed);
bool sim_pool_device(CUmemoryPool pool, int *device);
enum sim_place { SIM_PLACE_DEVICE, SIM_PLACE_PINNED, SIM_PLACE_PAGEABLE };
enum sim_place sim_memory_place(CUdeviceptr address);

#endif
