/* Overlap depth of closed intervals, by a sweep over their sorted ends. */
#include "pool/interval.h"

#include <stdlib.h>

static int compare_u64(const void *left, const void *right) {
  uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
  return (a > b) - (a < b);
}

rp_status rp_interval_depth(const struct rp_interval *intervals, size_t count, uint32_t *depth) {
  if (count == 0) {
    *depth = 0;
    return RP_OK;
  }
  uint64_t *points = malloc(2 * count * sizeof *points);
  if (!points) return RP_ERROR_NO_MEMORY;
  uint64_t *begins = points, *ends = points + count;
  for (size_t i = 0; i < count; i++) {
    if (intervals[i].end < intervals[i].begin) {
      free(points);
      return RP_ERROR_INVALID;
    }
    begins[i] = intervals[i].begin;
    ends[i] = intervals[i].end;
  }
  qsort(begins, count, sizeof *begins, compare_u64);
  qsort(ends, count, sizeof *ends, compare_u64);
  size_t closed = 0, deepest = 0;
  for (size_t opened = 1; opened <= count; opened++) {
    /* An interval that ends where another begins still overlaps it: both ends are included. */
    while (ends[closed] < begins[opened - 1])
      closed++;
    if (opened - closed > deepest) deepest = opened - closed;
  }
  free(points);
  *depth = (uint32_t)deepest;
  return RP_OK;
}
