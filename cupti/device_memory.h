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
/** NULL is allowed. */
void rp_device_memory_close(struct rp_device_memory *memory);
/** Table for rp_pool; its context is `memory`. */
void rp_device_memory_backend(struct rp_device_memory *memory, struct rp_backend *out);
void rp_device_memory_info(const struct rp_device_memory *memory, struct rp_device_memory_info *out);
/** Gives a peer device access to everything mapped from now on (and says so for what is mapped already). */
rp_status rp_device_memory_add_peer(struct rp_device_memory *memory, int peer);
/** Text of the last driver error of this thread, for one line. */
const char *rp_device_memory_error(void);

/* ---- streams ---- */

/** Context current on the calling thread, 0 if none; and the ordinal of its device, -1 if none. */
uint64_t rp_device_current_context(void);
/** Makes `stream` wait for the work that `before` has been given so far: records an event of ours and waits.
 * `event` gets the handle that the order is told (valid until the next 4096 such waits; the caller tells the
 * order of record and wait). Handles are those of rp_cuda_op.stream. With `timed` also timing events around
 * the wait, see rp_device_waited. RP_ERROR_UNAVAILABLE: the driver refused. */
rp_status rp_device_stream_wait(uint64_t context, uint64_t before, uint64_t stream, bool timed,
                                uint64_t *event);
/** Device time spent in timed waits that have completed since the last call, and how many. */
uint64_t rp_device_waited_ns(uint64_t *waits);
/** A mark behind the work a stream has been given so far. RP_ERROR_UNAVAILABLE; RP_ERROR_BUSY: captured. */
rp_status rp_device_mark(uint64_t context, uint64_t stream, uint64_t *mark);
/** Whether the work before the mark is complete: RP_OK, RP_ERROR_BUSY (not yet), RP_ERROR_UNAVAILABLE. */
rp_status rp_device_mark_query(uint64_t mark);
/** Gives the mark back. */
void rp_device_mark_drop(uint64_t mark);
/** Waits for a whole context (as cudaFree does). */
rp_status rp_device_synchronize(uint64_t context);

#endif
