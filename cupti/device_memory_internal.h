/** @file device_memory_internal.h
 * Shared by the device_memory files only: the driver's entry points that act, the brackets around them, and
 * what is kept per context.
 */
#ifndef RP_CUPTI_DEVICE_MEMORY_INTERNAL_H
#define RP_CUPTI_DEVICE_MEMORY_INTERNAL_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

#include "cupti/device_memory.h"

/** Every entry point that is used: member, name in the headers, name in the library, and an older name with
 * the same arguments (or the same again). */
#define RP__DEVICE_ENTRIES(X)                                                                                \
  X(mem_address_reserve, cuMemAddressReserve, "cuMemAddressReserve", "cuMemAddressReserve")                  \
  X(mem_address_free, cuMemAddressFree, "cuMemAddressFree", "cuMemAddressFree")                              \
  X(mem_create, cuMemCreate, "cuMemCreate", "cuMemCreate")                                                   \
  X(mem_release, cuMemRelease, "cuMemRelease", "cuMemRelease")                                               \
  X(mem_map, cuMemMap, "cuMemMap", "cuMemMap")                                                               \
  X(mem_unmap, cuMemUnmap, "cuMemUnmap", "cuMemUnmap")                                                       \
  X(mem_set_access, cuMemSetAccess, "cuMemSetAccess", "cuMemSetAccess")                                      \
  X(mem_retain, cuMemRetainAllocationHandle, "cuMemRetainAllocationHandle", "cuMemRetainAllocationHandle")   \
  X(mem_export, cuMemExportToShareableHandle, "cuMemExportToShareableHandle",                                \
    "cuMemExportToShareableHandle")                                                                          \
  X(mem_import, cuMemImportFromShareableHandle, "cuMemImportFromShareableHandle",                            \
    "cuMemImportFromShareableHandle")                                                                        \
  X(mem_granularity, cuMemGetAllocationGranularity, "cuMemGetAllocationGranularity",                         \
    "cuMemGetAllocationGranularity")                                                                         \
  X(device_get, cuDeviceGet, "cuDeviceGet", "cuDeviceGet")                                                   \
  X(device_count, cuDeviceGetCount, "cuDeviceGetCount", "cuDeviceGetCount")                                  \
  X(device_attribute, cuDeviceGetAttribute, "cuDeviceGetAttribute", "cuDeviceGetAttribute")                  \
  X(device_can_access_peer, cuDeviceCanAccessPeer, "cuDeviceCanAccessPeer", "cuDeviceCanAccessPeer")         \
  X(primary_state, cuDevicePrimaryCtxGetState, "cuDevicePrimaryCtxGetState", "cuDevicePrimaryCtxGetState")   \
  X(primary_retain, cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRetain")        \
  X(primary_release, cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", "cuDevicePrimaryCtxRelease") \
  X(context_current, cuCtxGetCurrent, "cuCtxGetCurrent", "cuCtxGetCurrent")                                  \
  X(context_device, cuCtxGetDevice, "cuCtxGetDevice", "cuCtxGetDevice")                                      \
  X(context_id, cuCtxGetId, "cuCtxGetId", "cuCtxGetId")                                                      \
  X(context_push, cuCtxPushCurrent, "cuCtxPushCurrent_v2", "cuCtxPushCurrent_v2")                            \
  X(context_pop, cuCtxPopCurrent, "cuCtxPopCurrent_v2", "cuCtxPopCurrent_v2")                                \
  X(context_synchronize, cuCtxSynchronize, "cuCtxSynchronize", "cuCtxSynchronize")                           \
  X(stream_create, cuStreamCreate, "cuStreamCreate", "cuStreamCreate")                                       \
  X(stream_destroy, cuStreamDestroy, "cuStreamDestroy_v2", "cuStreamDestroy_v2")                             \
  X(stream_context, cuStreamGetCtx, "cuStreamGetCtx", "cuStreamGetCtx")                                      \
  X(stream_is_capturing, cuStreamIsCapturing, "cuStreamIsCapturing", "cuStreamIsCapturing")                  \
  X(stream_synchronize, cuStreamSynchronize, "cuStreamSynchronize", "cuStreamSynchronize")                   \
  X(stream_wait_event, cuStreamWaitEvent, "cuStreamWaitEvent", "cuStreamWaitEvent")                          \
  X(copy_to_device, cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2", "cuMemcpyHtoDAsync_v2")                       \
  X(copy_to_host, cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2", "cuMemcpyDtoHAsync_v2")                         \
  X(event_create, cuEventCreate, "cuEventCreate", "cuEventCreate")                                           \
  X(event_destroy, cuEventDestroy, "cuEventDestroy_v2", "cuEventDestroy_v2")                                 \
  X(event_record, cuEventRecord, "cuEventRecord", "cuEventRecord")                                           \
  X(event_query, cuEventQuery, "cuEventQuery", "cuEventQuery")                                               \
  X(event_elapsed, cuEventElapsedTime, "cuEventElapsedTime_v2", "cuEventElapsedTime")                        \
  X(exchange_capture_mode, cuThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode",           \
    "cuThreadExchangeStreamCaptureMode")                                                                     \
  X(error_name, cuGetErrorName, "cuGetErrorName", "cuGetErrorName")

/** Entry points of the mapped driver; each may be NULL. */
struct rp__device_driver {
#define RP__DEVICE_MEMBER(member, function, name, older) __typeof__(function) *member;
  RP__DEVICE_ENTRIES(RP__DEVICE_MEMBER)
#undef RP__DEVICE_MEMBER
};

/** The mapped driver, or NULL when there is none yet. Thread-safe. */
const struct rp__device_driver *rp__device_driver(void);

/** Remembers what the driver said for rp_device_memory_error, and translates it. `call` is a literal. */
rp_status rp__device_result(const char *call, CUresult result);
/** The same for an entry point that this driver lacks. */
rp_status rp__device_missing(const char *call);

/** Calls `member` if the driver has it; a rp_status. */
#define RP__DEVICE_CALL(driver, member, ...)                                                                 \
  ((driver)->member ? rp__device_result(rp__device_names.member, (driver)->member(__VA_ARGS__))              \
                    : rp__device_missing(rp__device_names.member))

/** Names of the entry points, for messages. */
struct rp__device_names {
#define RP__DEVICE_NAME(member, function, name, older) const char *member;
  RP__DEVICE_ENTRIES(RP__DEVICE_NAME)
#undef RP__DEVICE_NAME
};
extern const struct rp__device_names rp__device_names;

/** Around our own calls: callbacks they raise are ours, the thread's captures do not forbid them. */
struct rp__device_scope {
  CUstreamCaptureMode mode;
  bool relaxed;
};
void rp__device_enter(const struct rp__device_driver *driver, struct rp__device_scope *scope);
void rp__device_leave(const struct rp__device_driver *driver, const struct rp__device_scope *scope);

/** Context current on the calling thread, NULL if none. */
CUcontext rp__device_current(const struct rp__device_driver *driver);
/** Makes `context` current until rp__device_unswitch, unless it is (or is NULL: the current one is meant,
 * which must exist). */
rp_status rp__device_switch(const struct rp__device_driver *driver, CUcontext context, bool *switched);
void rp__device_unswitch(const struct rp__device_driver *driver, bool switched);

/* ---- per context ---- */

#define RP__DEVICE_CONTEXTS 16  /**< that are used at a time */
#define RP__DEVICE_EVENTS 4096  /**< of the ring of a context */
#define RP__DEVICE_TIMINGS 1024 /**< timed waits of a context under way at a time */

/** A mark, or one end of a timed wait: an event of ours. Never freed, so that a stale one can be told. */
struct rp__device_mark {
  struct rp__device_mark *next;      /**< free list; lock */
  struct rp__device_mark *next_made; /**< all of its context; lock */
  struct rp__device_context *home;   /**< lock; NULL: its context is gone */
  CUevent event;
};

/** Timing events around one wait. */
struct rp__device_timing {
  struct rp__device_timing *next;
  CUevent begin, end;
};

/** What is ours in one context. Everything under the lock of device_memory_contexts.c, but for the ring: an
 * entry of it belongs to whoever drew its number. */
struct rp__device_context {
  CUcontext context; /**< NULL: free */
  unsigned long long id;
  bool closing;
  uint32_t users; /**< calls under way that use what is here */
  uint64_t drawn;
  CUevent ring[RP__DEVICE_EVENTS];
  struct rp__device_mark *free_marks, *made_marks;
  struct rp__device_timing *free_timings, *pending_timings;
  uint32_t timings;
  CUstream words;
  bool words_busy;
};

/** What is ours in `context`, which is current; answered by rp__device_context_put. RP_ERROR_LIMIT: more than
 * RP__DEVICE_CONTEXTS are in use; RP_ERROR_UNAVAILABLE: it is being destroyed. */
rp_status rp__device_context_get(const struct rp__device_driver *driver, CUcontext context,
                                 struct rp__device_context **out);
void rp__device_context_put(struct rp__device_context *context);
/** Next event of the ring, made where it is missing. The context is current. */
rp_status rp__device_context_event(const struct rp__device_driver *driver, struct rp__device_context *context,
                                   CUevent *event);
void rp__device_lock(void);
void rp__device_unlock(void);
/** Calls `visit` for every context in use, got as above but not current. */
void rp__device_contexts_visit(void (*visit)(struct rp__device_context *context, void *argument),
                               void *argument);

/** The stream for words of a context that is current: ours, or (while another thread uses it) one more, to be
 * destroyed by `put`. */
rp_status rp__device_words_get(const struct rp__device_driver *driver, struct rp__device_context *context,
                               CUstream *stream);
void rp__device_words_put(const struct rp__device_driver *driver, struct rp__device_context *context,
                          CUstream stream);

/** A mark of `home`, which the caller has got; its event may be missing yet. NULL: no host memory. */
struct rp__device_mark *rp__device_mark_take(struct rp__device_context *home);
/** The context of a mark, got; NULL when it is gone. */
struct rp__device_context *rp__device_mark_use(struct rp__device_mark *mark);
void rp__device_mark_put(struct rp__device_mark *mark);

#endif
