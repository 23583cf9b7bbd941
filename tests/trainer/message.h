/** @file message.h
 * Device buffers of the trainer: messages (header, payload, filler) that are received, sent or handed over,
 * and scratch that a free list recycles as a caching allocator does.
 */
#ifndef RP_TRAINER_MESSAGE_H
#define RP_TRAINER_MESSAGE_H

#include <stddef.h>
#include <stdint.h>

#include "kernel_types.h"

/** Where a buffer goes when its last user is done. */
enum rp_buffer_home {
  RP_HOME_SCRATCH,      /**< back to the free list of its size */
  RP_HOME_PREALLOCATED, /**< stays with its (stage, direction, microbatch) */
  RP_HOME_JUST_IN_TIME, /**< freed */
};

struct rp_buffer {
  unsigned char *memory;
  size_t bytes;
  enum rp_buffer_home home;
  int users;
  struct rp_pattern_mark mark; /**< whose message it holds */
  int lifetime;                /**< index of the receive's record, -1 if it was not received */
  struct rp_buffer *next;      /**< in the free list, or in the list of all */
};

struct rp_buffers; /**< all scratch of a rank */

struct rp_buffers *rp_buffers_create(void);
/** Frees the free lists; every scratch buffer has to be back. */
void rp_buffers_destroy(struct rp_buffers *buffers);

/** A scratch buffer with one user: a recycled one of that size, else a new allocation. */
struct rp_buffer *rp_buffer_get_scratch(struct rp_buffers *buffers, size_t bytes);
/** A new allocation for receives, without users if it is preallocated, else with one. */
struct rp_buffer *rp_buffer_new_receive(size_t bytes, enum rp_buffer_home home);
/** One more user. */
void rp_buffer_hold(struct rp_buffer *buffer);
/** One user less; NULL is allowed. All work of the user has been enqueued on the compute stream; freeing
 * waits for it. */
void rp_buffer_release(struct rp_buffers *buffers, struct rp_buffer *buffer, void *stream);
/** Frees a preallocated buffer; NULL is allowed. */
void rp_buffer_destroy(struct rp_buffer *buffer);

/** The arithmetic in a message. */
static inline float *rp_buffer_payload(const struct rp_buffer *buffer) {
  return (float *)(buffer->memory + RP_MESSAGE_HEADER_BYTES);
}

#endif
