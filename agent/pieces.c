/* What sharing saves where the device gives memory in pieces. */
#include "agent/pieces.h"

#include <stdlib.h>

static int by_size(const void *left, const void *right) {
  const struct rp_pieces_class *a = left, *b = right;
  return (a->buffer_bytes > b->buffer_bytes) - (a->buffer_bytes < b->buffer_bytes);
}

static uint64_t pieces_of(const struct rp_pieces_class *class, uint64_t piece_bytes) {
  return class->buffer_bytes / piece_bytes + (class->buffer_bytes % piece_bytes != 0);
}

/* The numbers may be a report's, which may hold anything: a double does not overflow. */
uint64_t rp_pieces_saving(struct rp_pieces_class *classes, size_t count, uint64_t piece_bytes) {
  double sum = 0;
  if (count) qsort(classes, count, sizeof *classes, by_size);
  for (size_t i = 0; i < count;) {
    uint64_t pieces = pieces_of(&classes[i], piece_bytes);
    double gain = 0;
    for (; i < count && pieces_of(&classes[i], piece_bytes) == pieces; i++)
      gain += (double)classes[i].held_bytes - (double)classes[i].left * (double)pieces * (double)piece_bytes;
    if (gain > 0) sum += gain;
  }
  return sum < (double)INT64_MAX ? (uint64_t)sum : INT64_MAX;
}
