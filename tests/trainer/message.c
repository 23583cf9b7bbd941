// Device buffers of the trainer and the free list of its scratch.
#include "message.h"

#include <stdlib.h>

#include "device.h"

struct rp_buffers {
  struct rp_buffer *free; /**< scratch without users, most recently released first */
};

struct rp_buffers *rp_buffers_create(void) {
  struct rp_buffers *buffers = calloc(1, sizeof *buffers);
  if (buffers == NULL) rp_die("no memory");
  return buffers;
}

static struct rp_buffer *buffer_create(size_t bytes, enum rp_buffer_home home, int users) {
  struct rp_buffer *buffer = calloc(1, sizeof *buffer);
  if (buffer == NULL) rp_die("no memory");
  buffer->memory = rp_device_alloc(bytes);
  buffer->bytes = bytes;
  buffer->home = home;
  buffer->users = users;
  buffer->lifetime = -1;
  return buffer;
}

void rp_buffer_destroy(struct rp_buffer *buffer) {
  if (buffer == NULL) return;
  rp_device_free(buffer->memory);
  free(buffer);
}

void rp_buffers_destroy(struct rp_buffers *buffers) {
  while (buffers->free != NULL) {
    struct rp_buffer *next = buffers->free->next;
    rp_buffer_destroy(buffers->free);
    buffers->free = next;
  }
  free(buffers);
}

struct rp_buffer *rp_buffer_get_scratch(struct rp_buffers *buffers, size_t bytes) {
  for (struct rp_buffer **link = &buffers->free; *link != NULL; link = &(*link)->next)
    if ((*link)->bytes == bytes) {
      struct rp_buffer *buffer = *link;
      *link = buffer->next;
      buffer->users = 1;
      return buffer;
    }
  return buffer_create(bytes, RP_HOME_SCRATCH, 1);
}

struct rp_buffer *rp_buffer_new_receive(size_t bytes, enum rp_buffer_home home) {
  return buffer_create(bytes, home, home == RP_HOME_PREALLOCATED ? 0 : 1);
}

void rp_buffer_hold(struct rp_buffer *buffer) {
  buffer->users++;
}

void rp_buffer_release(struct rp_buffers *buffers, struct rp_buffer *buffer, void *stream) {
  if (buffer == NULL || --buffer->users > 0) return;
  if (buffer->home == RP_HOME_SCRATCH) {
    buffer->next = buffers->free;
    buffers->free = buffer;
  } else if (buffer->home == RP_HOME_JUST_IN_TIME) {
    RP_CUDA(cudaStreamSynchronize(stream));
    rp_buffer_destroy(buffer);
  }
}
