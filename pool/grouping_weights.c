/* Stages told by their weights: a kernel that reads a received tensor names the weights of its stage beside
 * it, so the lives of a step fall apart into those that name one stage's weights and those that name
 * another's. */
#include "pool/grouping_internal.h"

#include <stdlib.h>

static int compare_uses(const void *left, const void *right) {
  const struct rp_weight_use *a = left, *b = right;
  if (a->key != b->key) return a->key < b->key ? -1 : 1;
  return (a->life > b->life) - (a->life < b->life);
}

static void collect_uses(struct rp_grouping_work *work) {
  work->use_count = 0;
  for (size_t i = 0; i < work->count; i++) {
    const struct rp_key_set *set = &work->lives[i].companions;
    for (uint16_t k = 0; k < set->count; k++)
      if (rp__companion_serial(set->key[k]) <= work->old_serial)
        work->uses[work->use_count++] = (struct rp_weight_use){set->key[k], (uint32_t)i};
  }
}

/* Weights are older than the first receive, and than the receive buffers where these are preallocated; what
 * is older than the receive only may be scratch memory of the stages before. */
rp_status rp__weights_index(struct rp_grouping_work *work) {
  size_t all = 0;
  work->old_serial = work->hints->old_allocation_serial;
  for (size_t i = 0; i < work->count; i++) {
    all += work->lives[i].companions.count;
    if (work->order_known && work->lives[i].allocation_serial < work->old_serial)
      work->old_serial = work->lives[i].allocation_serial;
  }
  work->uses = malloc((all + 1) * sizeof *work->uses);
  if (!work->uses) return RP_ERROR_NO_MEMORY;
  collect_uses(work);
  if (!work->use_count) {
    work->old_serial = work->hints->old_allocation_serial;
    collect_uses(work);
  }
  qsort(work->uses, work->use_count, sizeof *work->uses, compare_uses);
  return RP_OK;
}

/* The uses of companion `key`: how many, and the first of them. */
static size_t uses_of(const struct rp_grouping_work *work, uint64_t key, const struct rp_weight_use **first) {
  size_t low = 0, high = work->use_count;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (work->uses[middle].key < key)
      low = middle + 1;
    else
      high = middle;
  }
  size_t end = low;
  while (end < work->use_count && work->uses[end].key == key)
    end++;
  *first = work->uses + low;
  return end - low;
}

/* Whether no life that names the weight has a part yet. */
static bool is_free(const struct rp_grouping_work *work, const struct rp_weight_use *first, size_t count) {
  for (size_t i = 0; i < count; i++)
    if (work->part[first[i].life] != UINT32_MAX) return false;
  return true;
}

/* The companion of `life` that most lives name, all of them without a part yet; 0 if there is none. */
static uint64_t best_weight(const struct rp_grouping_work *work, const struct rp_life *life) {
  uint64_t best = 0;
  size_t best_uses = 1;
  for (uint16_t k = 0; k < life->companions.count; k++) {
    const struct rp_weight_use *first;
    size_t uses = uses_of(work, life->companions.key[k], &first);
    if (uses > best_uses && is_free(work, first, uses)) {
      best = life->companions.key[k];
      best_uses = uses;
    }
  }
  return best;
}

/* Whether the life names something old that other lives name too; what it alone names is its share of a
 * batch. */
static bool names_weight(const struct rp_grouping_work *work, const struct rp_life *life) {
  const struct rp_weight_use *first;
  for (uint16_t k = 0; k < life->companions.count; k++)
    if (uses_of(work, life->companions.key[k], &first) > 1) return true;
  return false;
}

static uint32_t part_from(struct rp_grouping_work *work, uint64_t key) {
  uint32_t parts = 0, weightless = 0;
  for (size_t i = 0; i < work->count; i++) {
    bool none = !names_weight(work, &work->lives[i]);
    work->part[i] = none ? (uint32_t)work->count : UINT32_MAX; /* a number that no other part gets */
    weightless |= none;
  }
  for (size_t i = 0; i < work->count; i++) {
    if (work->part[i] != UINT32_MAX) continue;
    key = parts ? best_weight(work, &work->lives[i]) : key;
    if (!key) return 0;
    const struct rp_weight_use *first;
    size_t uses = uses_of(work, key, &first);
    for (size_t u = 0; u < uses; u++)
      work->part[first[u].life] = parts;
    parts++;
  }
  return parts + weightless;
}

/* Whether parts follow each other in blocks of the receives of one class; scratch memory that is reused in
 * turn alternates. */
static bool parts_come_in_blocks(const struct rp_grouping_work *work) {
  uint32_t *last = work->scratch;
  size_t blocks = 0;
  for (size_t i = 0; i < work->count; i++)
    last[i] = UINT32_MAX;
  for (size_t i = 0; i < work->count; i++) {
    blocks += last[work->class_of[i]] != work->part[i];
    last[work->class_of[i]] = work->part[i];
  }
  return 2 * work->count >= 3 * blocks;
}

uint32_t rp__weights_part(struct rp_grouping_work *work, uint16_t *from) {
  const struct rp_key_set *set = &work->lives[0].companions;
  while (*from < set->count) {
    uint64_t key = set->key[(*from)++];
    const struct rp_weight_use *first;
    if (uses_of(work, key, &first) < 2) continue;
    uint32_t parts = part_from(work, key);
    if (parts >= 2 && parts_come_in_blocks(work)) return parts;
  }
  return 0;
}
