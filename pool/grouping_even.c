/* Partitions by peer, size, readers and weights, and the one among them that is even.
 *
 * Readers alone are not enough: the first gradient of a step is copied where the others are added to it, and
 * the last microbatch may be logged. So receives of one cell (peer, size and weights) whose readers are rare
 * count as one channel, if together they are as many as every channel has. */
#include "pool/grouping_internal.h"

#include <stdlib.h>
#include <string.h>

uint32_t rp__label_by_class(struct rp_grouping_work *work, bool readers, bool parts) {
  uint32_t groups = 0, *leader = work->scratch;
  for (size_t i = 0; i < work->count; i++) {
    uint32_t g = 0;
    while (g < groups && !(work->family[leader[g]] == work->family[i] &&
                           (!readers || work->reader[leader[g]] == work->reader[i]) &&
                           (!parts || work->part[leader[g]] == work->part[i])))
      g++;
    if (g == groups) leader[groups++] = (uint32_t)i;
    work->label[i] = g;
  }
  return groups;
}

/** A class of readers within a cell. */
struct class {
  uint32_t cell, size, label;
};

struct cell {
  uint32_t total, rest; /**< lives; lives in classes of another size than wanted */
  uint32_t label;       /**< of the rest */
};

/* Whether every class has `size` lives, or is part of a rest that has. */
static bool is_even_at(const struct class *classes, uint32_t class_count, struct cell *cells,
                       uint32_t cell_count, uint32_t size) {
  for (uint32_t c = 0; c < cell_count; c++)
    cells[c].rest = 0;
  for (uint32_t c = 0; c < class_count; c++)
    if (classes[c].size != size) cells[classes[c].cell].rest += classes[c].size;
  for (uint32_t c = 0; c < cell_count; c++)
    if (cells[c].rest && cells[c].rest != size) return false;
  return size > 0;
}

/* The smallest size that a class or a cell has and that makes an even partition; 0 if none does. */
static uint32_t even_size(const struct class *classes, uint32_t class_count, struct cell *cells,
                          uint32_t cell_count) {
  uint32_t best = 0;
  for (uint32_t c = 0; c < class_count + cell_count; c++) {
    uint32_t size = c < class_count ? classes[c].size : cells[c - class_count].total;
    if ((!best || size < best) && is_even_at(classes, class_count, cells, cell_count, size)) best = size;
  }
  return best;
}

/* Numbers the groups of an even partition, and returns how many there are. */
static uint32_t number_groups(struct class *classes, uint32_t class_count, struct cell *cells,
                              uint32_t cell_count, uint32_t size) {
  uint32_t groups = 0;
  for (uint32_t c = 0; c < cell_count; c++)
    cells[c].label = UINT32_MAX;
  for (uint32_t c = 0; c < class_count; c++) {
    struct cell *cell = &cells[classes[c].cell];
    if (classes[c].size == size) {
      classes[c].label = groups++;
      continue;
    }
    if (cell->label == UINT32_MAX) cell->label = groups++;
    classes[c].label = cell->label;
  }
  return groups;
}

uint32_t rp__label_evenly(struct rp_grouping_work *work, bool parts) {
  size_t count = work->count;
  struct class *classes = calloc(count, sizeof *classes);
  struct cell *cells = calloc(count, sizeof *cells);
  uint32_t *cell_of = malloc(count * sizeof *cell_of), groups = 0;
  if (classes && cells && cell_of) {
    uint32_t cell_count = rp__label_by_class(work, false, parts);
    memcpy(cell_of, work->label, count * sizeof *cell_of);
    uint32_t class_count = rp__label_by_class(work, true, parts);
    for (size_t i = 0; i < count; i++) {
      classes[work->label[i]].cell = cell_of[i];
      classes[work->label[i]].size++;
      cells[cell_of[i]].total++;
    }
    uint32_t size = even_size(classes, class_count, cells, cell_count);
    if (size) groups = number_groups(classes, class_count, cells, cell_count, size);
    for (size_t i = 0; i < count && groups; i++)
      work->label[i] = classes[work->label[i]].label;
  }
  free(classes);
  free(cells);
  free(cell_of);
  return groups;
}
