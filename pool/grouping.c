/* From the receives of one step to its channels (see grouping.h for the evidence). */
#include "pool/grouping_internal.h"

#include <stdlib.h>
#include <string.h>

/** Allowed part of disagreement between the readers of two buffers of one direction. */
#define SIMILAR_NUMERATOR 1
#define SIMILAR_DENOMINATOR 2
/** More classes of readers than this say that readers tell nothing here; it also bounds the time to find
 * them. */
#define READER_CLASSES_MAX 64

/* ---- similarity of readers ---- */

static bool has_key(const struct rp_life *life, uint64_t key) {
  for (uint16_t i = 0; i < life->signature_count; i++)
    if (life->signature[i] == key) return true;
  return false;
}

/* Whether at least half of all (function, argument) pairs of both are common (Jaccard index). */
static bool same_readers(const struct rp_life *a, const struct rp_life *b) {
  unsigned common = 0;
  for (uint16_t i = 0; i < a->signature_count; i++)
    common += has_key(b, a->signature[i]);
  unsigned all = a->signature_count + b->signature_count - common;
  return common * SIMILAR_DENOMINATOR >= all * SIMILAR_NUMERATOR;
}

static bool same_family(const struct rp_life *a, const struct rp_life *b) {
  return a->comm == b->comm && a->peer == b->peer && a->bytes == b->bytes;
}

/* Numbers lives by the first one that is the same by `same`; false if there are more than `most` classes. */
static bool classify(const struct rp_grouping_work *work,
                     bool (*same)(const struct rp_life *, const struct rp_life *), uint32_t most,
                     uint32_t *class_of) {
  uint32_t *leader = work->scratch, leaders = 0;
  for (size_t i = 0; i < work->count; i++) {
    uint32_t class = 0;
    while (class < leaders && !same(&work->lives[leader[class]], &work->lives[i]))
      class ++;
    if (class == most) return false;
    if (class == leaders) leader[leaders++] = (uint32_t)i;
    class_of[i] = class;
  }
  return true;
}

/* ---- allocation order ---- */

struct order_entry {
  uint64_t serial, address;
  uint32_t index;
};

static int compare_order(const void *left, const void *right) {
  const struct order_entry *a = left, *b = right;
  if (a->serial != b->serial) return a->serial < b->serial ? -1 : 1;
  return (a->address > b->address) - (a->address < b->address);
}

static rp_status sort_by_allocation(struct rp_grouping_work *work) {
  struct order_entry *entries = malloc((work->count + 1) * sizeof *entries);
  if (!entries) return RP_ERROR_NO_MEMORY;
  work->order_known = !work->hints->just_in_time;
  for (size_t i = 0; i < work->count; i++) {
    const struct rp_life *life = &work->lives[i];
    entries[i] = (struct order_entry){life->allocation_serial, life->public.address, (uint32_t)i};
    work->order_known &= life->allocation_serial != 0;
  }
  qsort(entries, work->count, sizeof *entries, compare_order);
  for (size_t i = 0; i < work->count; i++)
    work->order[i] = entries[i].index;
  free(entries);
  return RP_OK;
}

/* Labels runs of neighbours in allocation order that share family (and readers) and are received in one
 * direction of time: a new stage or direction starts where that breaks. */
static uint32_t label_runs(struct rp_grouping_work *work, bool readers) {
  uint32_t groups = 0;
  int trend = 0; /* of receive order within the run: 0 unknown, +1, -1 */
  for (size_t i = 0; i < work->count; i++) {
    uint32_t here = work->order[i], before = i ? work->order[i - 1] : 0;
    int step = here > before ? 1 : -1;
    bool same = i && work->family[here] == work->family[before] &&
                (!readers || work->reader[here] == work->reader[before]) && (trend == 0 || step == trend);
    trend = same ? step : 0;
    groups += !same;
    work->label[here] = groups - 1;
  }
  return groups;
}

/* ---- attempts ---- */

static bool is_even(const struct rp_grouping_work *work, uint32_t groups) {
  uint32_t *size = work->scratch;
  memset(size, 0, groups * sizeof *size);
  for (size_t i = 0; i < work->count; i++)
    size[work->label[i]]++;
  for (uint32_t g = 1; g < groups; g++)
    if (size[g] != size[0]) return false;
  return true;
}

/* Whether runs of allocation order look like stages: at least two receives each, and no more stages than
 * microbatches. A framework that allocates microbatch by microbatch makes many short runs instead. */
static bool are_stages(const struct rp_grouping_work *work, uint32_t groups) {
  if (!is_even(work, groups)) return false;
  uint32_t size = (uint32_t)(work->count / groups), *runs_of_class = work->scratch, *run_seen = work->part;
  memset(runs_of_class, 0, work->count * sizeof *runs_of_class);
  memset(run_seen, 0, work->count * sizeof *run_seen);
  for (size_t i = 0; i < work->count; i++) {
    if (run_seen[work->label[i]]++) continue;
    if (++runs_of_class[work->class_of[i]] > size) return false;
  }
  return size > 1;
}

/* Stages by their weights; 0 groups if there are not at least two. */
static uint32_t label_by_weights(struct rp_grouping_work *work) {
  uint16_t from = 0;
  while (rp__weights_part(work, &from)) {
    uint32_t groups = rp__label_evenly(work, true);
    if (groups) return groups;
  }
  return 0;
}

/* The finest even partition by the strongest evidence; without any, peer and size alone. */
static uint32_t label_groups(struct rp_grouping_work *work) {
  uint32_t groups;
  for (int readers = 1; work->order_known && readers >= 0; readers--) {
    /* Runs that tell no more than peer, size and readers do are no evidence against weights. */
    uint32_t known = readers ? work->class_count : work->family_count;
    if (are_stages(work, groups = label_runs(work, readers)) && groups > known) return groups;
  }
  if ((groups = label_by_weights(work))) return groups;
  if ((groups = rp__label_evenly(work, false))) return groups;
  /* Uneven, e.g. one direction broke off: directions are still worth telling apart. */
  return rp__label_by_class(work, true, false);
}

/* ---- putting it together ---- */

static void describe_groups(const struct rp_grouping_work *work, struct rp_grouping *out, size_t *first) {
  for (size_t g = 0; g < out->group_count; g++)
    first[g] = SIZE_MAX;
  for (size_t i = 0; i < work->count; i++) {
    uint32_t g = work->label[i];
    const struct rp_life *life = &work->lives[i];
    out->group_of[i] = g;
    if (first[g] == SIZE_MAX) {
      first[g] = i;
      out->groups[g] = (struct rp_group){
          .comm = life->comm, .bytes = life->bytes, .peer = life->peer, .device = life->device};
    }
    out->microbatch[i] = out->groups[g].size++;
  }
}

/* Preallocated buffers are made in microbatch order, so where those made first are received last, the group
 * is received backwards. Only that much is taken from allocation order: a caching allocator serves some
 * buffers from blocks that are older than the rest. */
static rp_status number_by_allocation(const struct rp_grouping_work *work, struct rp_grouping *out) {
  struct tally {
    uint32_t made;     /* lives so far, in allocation order */
    int64_t agreement; /* of that order with the order of receipt, from -1 to 1 times something */
  } *tally = calloc(out->group_count, sizeof *tally);
  if (!tally) return RP_ERROR_NO_MEMORY;
  for (size_t i = 0; i < work->count; i++) {
    uint32_t life = work->order[i], group = work->label[life];
    int64_t last = (int64_t)out->groups[group].size - 1;
    tally[group].agreement +=
        (2 * (int64_t)tally[group].made++ - last) * (2 * (int64_t)out->microbatch[life] - last);
  }
  for (size_t i = 0; i < work->count; i++) {
    uint32_t group = work->label[i];
    if (tally[group].agreement < 0) out->microbatch[i] = out->groups[group].size - 1 - out->microbatch[i];
  }
  free(tally);
  return RP_OK;
}

/* In allocation order, buffers of one allocation are neighbours. */
static void find_neighbours(const struct rp_grouping_work *work, struct rp_grouping *out) {
  for (size_t i = 0; i < work->count; i++)
    out->has_neighbour[i] = false;
  for (size_t i = 1; i < work->count; i++) {
    uint32_t a = work->order[i - 1], b = work->order[i];
    uint64_t serial = work->lives[a].allocation_serial;
    if (serial && serial == work->lives[b].allocation_serial)
      out->has_neighbour[a] = out->has_neighbour[b] = true;
  }
}

static rp_status finish_grouping(struct rp_grouping_work *work, struct rp_grouping *out) {
  size_t *first = malloc(out->group_count * sizeof *first);
  if (!first) return RP_ERROR_NO_MEMORY;
  describe_groups(work, out, first);
  find_neighbours(work, out);
  rp_status status = work->order_known ? number_by_allocation(work, out) : RP_OK;
  if (!status) status = rp__stages_number(work, out, first);
  free(first);
  return status;
}

static rp_status group(struct rp_grouping_work *work, struct rp_grouping *out) {
  classify(work, same_family, UINT32_MAX, work->family);
  if (!classify(work, same_readers, READER_CLASSES_MAX, work->reader))
    memset(work->reader, 0, work->count * sizeof *work->reader);
  work->family_count = rp__label_by_class(work, false, false);
  work->class_count = rp__label_by_class(work, true, false);
  memcpy(work->class_of, work->label, work->count * sizeof *work->label);
  rp_status status = sort_by_allocation(work);
  if (!status) status = rp__weights_index(work);
  if (status) return status;
  out->group_count = label_groups(work);
  return finish_grouping(work, out);
}

rp_status rp_group_lives(const struct rp_life *lives, size_t count, const struct rp_group_hints *hints,
                         struct rp_grouping *out) {
  *out = (struct rp_grouping){0};
  if (!count) return RP_OK;
  uint32_t *memory = malloc(7 * count * sizeof *memory);
  struct rp_grouping_work work = {.lives = lives, .count = count, .hints = hints};
  out->group_of = malloc(count * sizeof *out->group_of);
  out->microbatch = malloc(count * sizeof *out->microbatch);
  out->has_neighbour = malloc(count * sizeof *out->has_neighbour);
  out->groups = malloc(count * sizeof *out->groups);
  rp_status status = RP_ERROR_NO_MEMORY;
  if (memory && out->group_of && out->microbatch && out->has_neighbour && out->groups) {
    uint32_t **arrays[] = {&work.family, &work.reader, &work.class_of, &work.order,
                           &work.label,  &work.part,   &work.scratch};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
      *arrays[i] = memory + i * count;
    status = group(&work, out);
  }
  free(work.uses);
  free(memory);
  if (status) rp_grouping_fini(out);
  return status;
}

void rp_grouping_fini(struct rp_grouping *grouping) {
  free(grouping->group_of);
  free(grouping->microbatch);
  free(grouping->has_neighbour);
  free(grouping->groups);
  *grouping = (struct rp_grouping){0};
}
