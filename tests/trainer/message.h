/** @file message.h
 * Device buffers of the trainer: messages (header, payload, filler) that are received, sent or handed over,
 * and scratch that a free list recycles as a caching allocator does.
 */
#ifndef RP_TRAINER_MESSAGE_H
#define RP_TRAINER_MESSAGE_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#include "kernel_types.h"

/** Where a buffer goes when its last user is done. */
enum rp_buffer_home {
  RP_HOME_SCRATCH,      /**< back to the free list of its size */
  RP_HOME_PREALLOCATED, /**< stays with its (stage, direction, microbatch) */
  RP_HOME_JUST_IN_TIME, /**< freed */
  RP_HOME_SHARED        /**< stays, and its memory belongs to an unguarded pool */
};

struct rp_buffer {
  unsigned char *memory;
  size_t bytes;    /**< of the message */
  size_t capacity; /**< of the memory */
  enum rp_buffer_home home;
  int users;
  int lifetime;               /**< index of the receive's record, -1 if it was not received */
  cudaEvent_t ready;          /**< recorded when a message to be sent is complete; NULL: not wanted */
  struct rp_segment *segment; /**< allocation it is a part of, NULL: it has one of its own */
  struct rp_buffer *next;     /**< in the free list */
};

struct rp_buffers; /**< all scratch of a rank */

/** `segment_blocks`: so many buffers of one size come out of one allocation. */
struct rp_buffers *rp_buffers_create(size_t segment_blocks);
/** Frees what the free list holds; every scratch buffer has to be back. */
void rp_buffers_trim(struct rp_buffers *buffers);
/** And the list itself. */
void rp_buffers_destroy(struct rp_buffers *buffers);

/** A scratch buffer with one user: a recycled one of that size, else a new allocation. */
struct rp_buffer *rp_buffer_get_scratch(struct rp_buffers *buffers, size_t capacity);
/** A new allocation for receives, without users if it stays, else with one. `memory`: that of a shared one,
 * else NULL. */
struct rp_buffer *rp_buffer_new_receive(size_t bytes, size_t capacity, enum rp_buffer_home home,
                                        void *memory);
/** One more user. */
void rp_buffer_hold(struct rp_buffer *buffer);
/** One user less; NULL is allowed. All work of the user has been enqueued on the compute stream; freeing
 * waits for it. */
void rp_buffer_release(struct rp_buffers *buffers, struct rp_buffer *buffer, cudaStream_t stream);
/** Frees a buffer that stays; NULL is allowed. */
void rp_buffer_destroy(struct rp_buffer *buffer);

/** The arithmetic in a message. */
static inline float *rp_buffer_payload(const struct rp_buffer *buffer) {
  return (float *)(buffer->memory + RP_MESSAGE_HEADER_BYTES);
}

#endif
