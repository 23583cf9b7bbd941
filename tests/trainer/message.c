// Device buffers of the trainer and the free list of its scratch.
#include "message.h"

#include <stdlib.h>

#include "device.h"

/** One allocation that several blocks of one size are cut from. */
struct rp_segment {
  unsigned char *memory;
  struct rp_segment *next;
};

struct rp_buffers {
  size_t segment_blocks;
  struct rp_segment *segments;
  struct rp_buffer *free; /**< scratch without users, most recently released first */
};

struct rp_buffers *rp_buffers_create(size_t segment_blocks) {
  struct rp_buffers *buffers = calloc(1, sizeof *buffers);
  if (buffers == NULL) rp_die("no memory");
  buffers->segment_blocks = segment_blocks;
  return buffers;
}

/** A buffer over `memory`, or over memory of its own where that is NULL. */
static struct rp_buffer *buffer_create(size_t capacity, enum rp_buffer_home home, int users,
                                       unsigned char *memory) {
  struct rp_buffer *buffer = calloc(1, sizeof *buffer);
  if (buffer == NULL) rp_die("no memory");
  buffer->memory = memory != NULL ? memory : rp_device_alloc(capacity);
  buffer->bytes = buffer->capacity = capacity;
  buffer->home = home;
  buffer->users = users;
  buffer->lifetime = -1;
  return buffer;
}

void rp_buffer_destroy(struct rp_buffer *buffer) {
  if (buffer == NULL) return;
  if (buffer->segment == NULL && buffer->home != RP_HOME_SHARED) rp_device_free(buffer->memory);
  if (buffer->ready != NULL) RP_CUDA(cudaEventDestroy(buffer->ready));
  free(buffer);
}

void rp_buffers_trim(struct rp_buffers *buffers) {
  while (buffers->free != NULL) {
    struct rp_buffer *next = buffers->free->next;
    rp_buffer_destroy(buffers->free);
    buffers->free = next;
  }
  while (buffers->segments != NULL) {
    struct rp_segment *next = buffers->segments->next;
    rp_device_free(buffers->segments->memory);
    free(buffers->segments);
    buffers->segments = next;
  }
}

void rp_buffers_destroy(struct rp_buffers *buffers) {
  rp_buffers_trim(buffers);
  free(buffers);
}

/** Puts the blocks of a new segment on the free list. */
static void add_segment(struct rp_buffers *buffers, size_t capacity) {
  size_t stride = (capacity + 511) / 512 * 512; // as caching allocators align their blocks
  struct rp_segment *segment = calloc(1, sizeof *segment);
  if (segment == NULL) rp_die("no memory");
  segment->memory = rp_device_alloc(buffers->segment_blocks * stride);
  segment->next = buffers->segments;
  buffers->segments = segment;
  for (size_t i = buffers->segment_blocks; i-- > 0;) {
    struct rp_buffer *buffer = buffer_create(capacity, RP_HOME_SCRATCH, 0, segment->memory + i * stride);
    buffer->segment = segment;
    buffer->next = buffers->free;
    buffers->free = buffer;
  }
}

/** Takes a buffer of that size off the free list; NULL if there is none. */
static struct rp_buffer *take_free(struct rp_buffers *buffers, size_t capacity) {
  for (struct rp_buffer **link = &buffers->free; *link != NULL; link = &(*link)->next)
    if ((*link)->capacity == capacity) {
      struct rp_buffer *buffer = *link;
      *link = buffer->next;
      buffer->users = 1;
      buffer->lifetime = -1;
      return buffer;
    }
  return NULL;
}

struct rp_buffer *rp_buffer_get_scratch(struct rp_buffers *buffers, size_t capacity) {
  struct rp_buffer *buffer = take_free(buffers, capacity);
  if (buffer != NULL) return buffer;
  if (buffers->segment_blocks <= 1) return buffer_create(capacity, RP_HOME_SCRATCH, 1, NULL);
  add_segment(buffers, capacity);
  return take_free(buffers, capacity);
}

struct rp_buffer *rp_buffer_new_receive(size_t bytes, size_t capacity, enum rp_buffer_home home,
                                        void *memory) {
  struct rp_buffer *buffer = buffer_create(capacity, home, home == RP_HOME_JUST_IN_TIME ? 1 : 0, memory);
  buffer->bytes = bytes;
  return buffer;
}

void rp_buffer_hold(struct rp_buffer *buffer) {
  buffer->users++;
}

void rp_buffer_release(struct rp_buffers *buffers, struct rp_buffer *buffer, cudaStream_t stream) {
  if (buffer == NULL || --buffer->users > 0) return;
  if (buffer->home == RP_HOME_SCRATCH) {
    buffer->next = buffers->free;
    buffers->free = buffer;
  } else if (buffer->home == RP_HOME_JUST_IN_TIME) {
    rp_device_synchronize(stream);
    rp_buffer_destroy(buffer);
  }
}
