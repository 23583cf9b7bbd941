/** @file device_memory.h
 * CUDA's virtual memory management and the few stream calls that acting takes, for the pool's owner. Plain
 * integers in and out. Every function here calls the driver and may change its state: never from a callback,
 * never under a lock of the library. The driver is told that the calling thread's captures are none of our
 * business (relaxed capture mode) around each.
 */
#ifndef RP_CUPTI_DEVICE_MEMORY_H
#define RP_CUPTI_DEVICE_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pool/backend.h"

/** One device's memory. The owner serialises all calls on one of these, except for rp_device_memory_info; the
 * stream functions below may be called by any thread at any time.
 *
 * Words (write_word, read_word) are copied in the calling thread's context if it is of this device, else in
 * the primary context if the program has made it; no context is ever made. RP_ERROR_UNAVAILABLE without one.
 */
struct rp_device_memory;

/** What a device's memory was found to be. */
struct rp_device_memory_info {
  int device;
  uint64_t granularity_bytes;
  bool rdma, posix_fd, fabric;          /**< properties that the handles carry */
  unsigned peers;                       /**< devices that were given access too */
  uint64_t calls, failures;             /**< driver calls made */
  uint64_t create_ns, map_ns, unmap_ns; /**< time spent in them */
};

/** Opens the device with this ordinal: looks its properties up, finds the driver's entry points (each checked
 * alone). RP_ERROR_UNAVAILABLE: no virtual memory management here; `reason` says why. */
rp_status rp_device_memory_open(int device, struct rp_device_memory **out, char *reason, size_t reason_size);
/** What it mapped stays as it is. NULL is allowed. */
void rp_device_memory_close(struct rp_device_memory *memory);
/** Table for rp_pool; its context is `memory`. */
void rp_device_memory_backend(struct rp_device_memory *memory, struct rp_backend *out);
void rp_device_memory_info(const struct rp_device_memory *memory, struct rp_device_memory_info *out);
/** Gives a peer device access to what is mapped and to everything mapped from now on: for a device that
 * peer access to this one was enabled for. RP_ERROR_UNAVAILABLE: it cannot reach this device, or the driver
 * refused; then nothing is promised about it. */
rp_status rp_device_memory_add_peer(struct rp_device_memory *memory, int peer);
/** Text of the last driver error of this thread, for one line. */
const char *rp_device_memory_error(void);

/* ---- other processes ---- */

/** A descriptor, the caller's, of the memory that is mapped at `address`. RP_ERROR_UNAVAILABLE: it is not
 * mapped, or the driver gives none. */
rp_status rp_device_memory_export(uint64_t address, int *fd);
/** Maps another process's memory, for the current device, whole; `fetch(from)` gets its descriptor, or -1.
 * What was imported under that name already is given again. RP_ERROR_UNAVAILABLE, RP_ERROR_NO_MEMORY.
 * Thread-safe. */
rp_status rp_device_memory_import(const uint64_t name[2], int (*fetch)(const void *from), const void *from,
                                  uint64_t bytes, uint64_t *address);
/** Once for each import. The last one waits for the current context, and takes the mapping away.
 * RP_ERROR_NOT_FOUND: nothing was imported there. */
rp_status rp_device_memory_import_end(uint64_t address);

/* ---- streams ---- */

/** Context current on the calling thread, 0 if none. Its device: rp_driver_current_device. */
uint64_t rp_device_current_context(void);
/** Ordinal of a context's device, -1 where it cannot be told. */
int rp_device_of_context(uint64_t context);
/** Whether the device's primary context is in use; a query. True where it cannot be told. */
bool rp_device_primary_alive(int device);
/** Whether `context` is the primary context of that device. False where it cannot be told. */
bool rp_device_is_primary(int device, uint64_t context);
/** Makes `stream` (of the current context, or any other by its own handle) wait for the work that `before` of
 * `context` has been given so far: records an event of ours and waits. `context` 0 is the current one; it is
 * made current for the record, and a default stream means that context's. `event` gets the handle that the
 * order is told (valid until the next 4096 such waits in that context; the caller tells the order of record
 * and wait). Handles are those of rp_cuda_op.stream; 0 is RP_ERROR_INVALID. With `timed` also timing events
 * around the wait, see rp_device_waited_ns. RP_ERROR_BUSY: a stream is captured, or cannot be used because
 * another one is; nothing has been done. RP_ERROR_UNAVAILABLE: the driver refused. RP_ERROR_LIMIT: more than
 * 16 contexts. */
rp_status rp_device_stream_wait(uint64_t context, uint64_t before, uint64_t stream, bool timed,
                                uint64_t *event);
/** Device time spent in timed waits that have completed since the last call, and how many. At most 1024 of a
 * context are under way at a time; those beyond are made but not timed, and so not among `waits`. */
uint64_t rp_device_waited_ns(uint64_t *waits);
/** A mark behind the work that a stream of `context` (0: the current one) has been given so far. As
 * rp_device_stream_wait otherwise; also RP_ERROR_NO_MEMORY. Any number at a time. */
rp_status rp_device_mark(uint64_t context, uint64_t stream, uint64_t *mark);
/** Whether the work before the mark is complete: RP_OK, RP_ERROR_BUSY (not yet), RP_ERROR_UNAVAILABLE (its
 * context failed, or is gone). From any thread, with or without a context. */
rp_status rp_device_mark_query(uint64_t mark);
/** Makes `stream` wait for the work before the mark, of whatever context that is. As rp_device_stream_wait
 * otherwise; RP_ERROR_UNAVAILABLE also where the mark's context is gone. */
rp_status rp_device_mark_wait(uint64_t mark, uint64_t stream, bool timed);
/** Gives the mark back, once. 0 is allowed. */
void rp_device_mark_drop(uint64_t mark);
/** Waits for a whole context (as cudaFree does), 0: the current one. Not while a stream of it is captured,
 * the capture would be lost; RP_ERROR_BUSY says that it was. */
rp_status rp_device_synchronize(uint64_t context);
/** The context is about to be destroyed or reset: gives back what is ours in it. With `alive` false it is
 * gone already (or this is a callback): then without a call of the driver. Marks in it become
 * RP_ERROR_UNAVAILABLE, and still have to be dropped. Waits for calls of other threads that use it. */
void rp_device_context_forget(uint64_t context, bool alive);

#endif
