// Buffers that look like receive buffers and are none.
#include "lookalike.h"

#include <stdlib.h>

#include "hidden_library.h"
#include "kernel_bodies.h"

#define MARK_STAGE 0x10000u /* no stage has that number */

struct rp_lookalike_buffer {
  unsigned char *memory;
  uint32_t number;
  bool touched;
  struct rp_lookalike_buffer *next;
};

struct rp_lookalikes {
  struct rp_lookalike_buffer *weights; /**< all that stay, latest first */
  uint32_t made;
  uint32_t *zero; /**< device: their pass, which is no pass */
};

struct rp_lookalikes *rp_lookalikes_create(struct rp_worker *worker) {
  if (worker->options->lookalikes == 0) return NULL;
  struct rp_lookalikes *l = calloc(1, sizeof *l);
  uint32_t zero = 0;
  if (l == NULL) rp_die("no memory");
  if (rp_hidden_library_open() != 0) rp_die("--lookalike: the library finds no driver");
  l->zero = rp_device_alloc(sizeof zero);
  rp_device_upload(l->zero, &zero, sizeof zero, worker->compute);
  rp_device_synchronize(worker->compute);
  return l;
}

void rp_lookalikes_destroy(struct rp_lookalikes *l) {
  if (l == NULL) return;
  while (l->weights != NULL) {
    struct rp_lookalike_buffer *next = l->weights->next;
    rp_device_free(l->weights->memory);
    free(l->weights);
    l->weights = next;
  }
  rp_device_free(l->zero);
  free(l);
}

static void launch(struct rp_worker *worker, enum rp_kernel kernel, size_t elements, void **arguments) {
  dim3 grid, block;
  rp_device_grid(elements, &grid, &block);
  int result =
      rp_hidden_library_launch(rp_device_function(kernel), grid.x, block.x, arguments, worker->compute);
  if (result != 0) rp_die("hidden launch of %s: driver error %d", rp_kernel_name(kernel), result);
}

static void fill(struct rp_worker *worker, struct rp_lookalike_buffer *b) {
  uint64_t bytes = rp_trainer_buffer_bytes(worker->options), payload_bytes = 0;
  struct rp_pattern_mark mark = {0, b->number, 0, MARK_STAGE};
  void *arguments[] = {&b->memory, &worker->lookalikes->zero, &bytes, &payload_bytes, &mark};
  launch(worker, RP_KERNEL_FILL_PATTERN, rp_pattern_word_count(bytes, payload_bytes), arguments);
  b->touched = true;
}

static void check(struct rp_worker *worker, struct rp_lookalike_buffer *b) {
  uint64_t bytes = rp_trainer_buffer_bytes(worker->options), payload_bytes = 0;
  struct rp_pattern_mark mark = {0, b->number, 0, MARK_STAGE};
  void *arguments[] = {&b->memory, &worker->lookalikes->zero, &bytes, &payload_bytes,
                       &mark,      &worker->pattern_error};
  launch(worker, RP_KERNEL_CHECK_PATTERN, rp_pattern_word_count(bytes, payload_bytes), arguments);
}

static struct rp_lookalike_buffer *create(struct rp_worker *worker) {
  struct rp_lookalike_buffer *b = calloc(1, sizeof *b);
  if (b == NULL) rp_die("no memory");
  b->memory = rp_device_alloc(rp_trainer_buffer_bytes(worker->options));
  b->number = worker->lookalikes->made++;
  return b;
}

void rp_lookalikes_add(struct rp_worker *worker, enum rp_lookalike where) {
  if (!(worker->options->lookalikes & where)) return;
  for (int32_t i = 0; i < worker->options->lookalike_count; i++) {
    struct rp_lookalike_buffer *b = create(worker);
    b->next = worker->lookalikes->weights;
    worker->lookalikes->weights = b;
    if (!worker->options->lookalikes_late) fill(worker, b);
  }
}

void rp_lookalikes_touch(struct rp_worker *worker) {
  if (worker->lookalikes == NULL) return;
  for (struct rp_lookalike_buffer *b = worker->lookalikes->weights; b != NULL; b = b->next)
    if (!b->touched) fill(worker, b);
}

void rp_lookalikes_check_all(struct rp_worker *worker) {
  if (worker->lookalikes == NULL) return;
  for (struct rp_lookalike_buffer *b = worker->lookalikes->weights; b != NULL; b = b->next)
    check(worker, b);
}

struct rp_lookalike_buffer *rp_lookalikes_activation(struct rp_worker *worker) {
  if (!(worker->options->lookalikes & RP_LOOKALIKE_ACTIVATIONS)) return NULL;
  struct rp_lookalike_buffer *b = create(worker);
  fill(worker, b);
  return b;
}

void rp_lookalikes_check(struct rp_worker *worker, struct rp_lookalike_buffer **activation) {
  struct rp_lookalike_buffer *b = *activation;
  if (b == NULL) return;
  check(worker, b);
  rp_device_synchronize(worker->compute);
  rp_device_free(b->memory);
  free(b);
  *activation = NULL;
}
