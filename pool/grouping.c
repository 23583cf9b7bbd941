/* From the receives of one step to its channels (see grouping.h for the evidence). */
#include "pool/grouping.h"

#include <stdlib.h>
#include <string.h>

/** Allowed part of disagreement between the readers of two buffers of one direction. */
#define SIMILAR_NUMERATOR 1
#define SIMILAR_DENOMINATOR 2

struct work {
  const struct rp_life *lives;
  size_t count;
  const struct rp_group_hints *hints;
  uint32_t *family;  /**< [count] peer and size */
  uint32_t *reader;  /**< [count] class of readers */
  uint32_t *order;   /**< [count] indices in allocation order */
  uint32_t *label;   /**< [count] group under construction */
  uint32_t *scratch; /**< [count] */
  bool order_known;
};

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

/* Numbers lives by the first one that is the same by `same`. */
static void classify(const struct work *work, bool (*same)(const struct rp_life *, const struct rp_life *),
                     uint32_t *class_of) {
  uint32_t *leader = work->scratch, leaders = 0;
  for (size_t i = 0; i < work->count; i++) {
    uint32_t class = 0;
    while (class < leaders && !same(&work->lives[leader[class]], &work->lives[i]))
      class ++;
    if (class == leaders) leader[leaders++] = (uint32_t)i;
    class_of[i] = class;
  }
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

static rp_status sort_by_allocation(struct work *work) {
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
static uint32_t label_runs(struct work *work, bool readers) {
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

/* ---- weights named beside the buffer ---- */

static bool names_companion(const struct rp_life *life, uint64_t serial) {
  for (uint16_t i = 0; i < life->companions.count; i++)
    if (life->companions.key[i] == serial) return true;
  return false;
}

static bool is_old(const struct work *work, uint64_t serial) {
  return serial <= work->hints->old_allocation_serial;
}

static uint32_t uses_of(const struct work *work, uint64_t serial) {
  uint32_t uses = 0;
  for (size_t i = 0; i < work->count; i++)
    uses += names_companion(&work->lives[i], serial);
  return uses;
}

/* Whether no life that names `serial` has a part yet. */
static bool is_free(const struct work *work, uint64_t serial) {
  for (size_t i = 0; i < work->count; i++)
    if (work->scratch[i] != UINT32_MAX && names_companion(&work->lives[i], serial)) return false;
  return true;
}

/* The old companion of `life` that most lives name, all of them without a part yet; 0 if there is none. */
static uint64_t best_weight(const struct work *work, const struct rp_life *life) {
  uint64_t best = 0;
  uint32_t best_uses = 1;
  for (uint16_t k = 0; k < life->companions.count; k++) {
    uint64_t serial = life->companions.key[k];
    uint32_t uses = is_old(work, serial) && is_free(work, serial) ? uses_of(work, serial) : 0;
    if (uses > best_uses) {
      best = serial;
      best_uses = uses;
    }
  }
  return best;
}

/* Parts all lives (scratch = part) so that each part has a weight which all its lives name and no other life
 * does, beginning with weight `serial`. Number of parts, 0 if it does not come out. */
static uint32_t part_by_weights(struct work *work, uint64_t serial) {
  uint32_t parts = 0;
  for (size_t i = 0; i < work->count; i++)
    work->scratch[i] = UINT32_MAX;
  for (size_t i = 0; i < work->count; i++) {
    if (work->scratch[i] != UINT32_MAX) continue;
    serial = parts ? best_weight(work, &work->lives[i]) : serial;
    if (!serial) return 0;
    for (size_t j = i; j < work->count; j++)
      if (names_companion(&work->lives[j], serial)) work->scratch[j] = parts;
    parts++;
  }
  return parts;
}

/* Whether parts follow each other in blocks of receives; scratch memory that is reused in turn alternates. */
static bool parts_come_in_blocks(const struct work *work) {
  uint32_t blocks = 0;
  for (size_t i = 0; i < work->count; i++) {
    size_t before = i;
    while (before-- > 0)
      if (work->family[before] == work->family[i] && work->reader[before] == work->reader[i]) break;
    blocks += before == SIZE_MAX || work->scratch[before] != work->scratch[i];
  }
  return 2 * work->count >= 3 * blocks;
}

/* ---- attempts ---- */

/* Groups of lives that agree in family and, if asked, in readers and in part (scratch). */
static uint32_t label_by_class(struct work *work, bool readers, bool parts) {
  uint32_t groups = 0;
  for (size_t i = 0; i < work->count; i++) {
    size_t j = 0;
    while (j < i &&
           !(work->family[j] == work->family[i] && (!readers || work->reader[j] == work->reader[i]) &&
             (!parts || work->scratch[j] == work->scratch[i])))
      j++;
    work->label[i] = j < i ? work->label[j] : groups++;
  }
  return groups;
}

static uint32_t group_size(const struct work *work, uint32_t label) {
  uint32_t size = 0;
  for (size_t i = 0; i < work->count; i++)
    size += work->label[i] == label;
  return size;
}

static bool is_even(const struct work *work, uint32_t groups) {
  uint32_t first = group_size(work, 0);
  for (uint32_t label = 1; label < groups; label++)
    if (group_size(work, label) != first) return false;
  return true;
}

/* Stages by their weights, if every receive of the step has one of at least two; 0 groups otherwise. */
static uint32_t label_by_weights(struct work *work) {
  const struct rp_key_set *set = &work->lives[0].companions;
  for (uint16_t k = 0; k < set->count; k++) {
    if (!is_old(work, set->key[k]) || uses_of(work, set->key[k]) < 2) continue;
    uint32_t parts = part_by_weights(work, set->key[k]);
    if (parts < 2 || !parts_come_in_blocks(work)) continue;
    uint32_t groups = label_by_class(work, true, true);
    if (is_even(work, groups)) return groups;
  }
  return 0;
}

/* The finest even partition by the strongest evidence; without any, peer and size alone. */
static uint32_t label_groups(struct work *work) {
  uint32_t groups;
  for (int readers = 1; work->order_known && readers >= 0; readers--)
    if (is_even(work, groups = label_runs(work, readers))) return groups;
  if ((groups = label_by_weights(work))) return groups;
  if (is_even(work, groups = label_by_class(work, true, false))) return groups;
  if (is_even(work, groups = label_by_class(work, false, false))) return groups;
  /* Uneven, e.g. one direction broke off: directions are still worth telling apart. */
  return label_by_class(work, true, false);
}

/* ---- directions ---- */

static bool family_is_mixed(const struct work *work, uint32_t family) {
  uint32_t seen = UINT32_MAX;
  for (size_t i = 0; i < work->count; i++) {
    if (work->family[i] != family) continue;
    if (seen != UINT32_MAX && work->reader[i] != seen) return true;
    seen = work->reader[i];
  }
  return false;
}

/* The side of the pipeline a peer is on, by what was exchanged with it first: activations travel before
 * gradients. */
static enum rp_direction direction_of_peer(const struct work *work, const struct rp_life *life) {
  for (size_t i = 0; i < work->hints->peer_count; i++) {
    const struct rp_peer_order *peer = &work->hints->peers[i];
    if (peer->comm == life->comm && peer->peer == life->peer && peer->bytes == life->bytes)
      return peer->receive_first ? RP_DIRECTION_ACTIVATION : RP_DIRECTION_GRADIENT;
  }
  return RP_DIRECTION_UNKNOWN;
}

/* Index of the first receive of a family: with both directions from one peer, an activation comes first. */
static size_t first_of_family(const struct work *work, uint32_t family) {
  size_t i = 0;
  while (work->family[i] != family)
    i++;
  return i;
}

static void set_directions(const struct work *work, struct rp_grouping *out, const size_t *first) {
  for (size_t g = 0; g < out->group_count; g++) {
    uint32_t family = work->family[first[g]];
    if (!family_is_mixed(work, family)) {
      out->groups[g].direction = direction_of_peer(work, &work->lives[first[g]]);
      continue;
    }
    size_t leader = first_of_family(work, family);
    out->groups[g].direction =
        work->reader[first[g]] == work->reader[leader] ? RP_DIRECTION_ACTIVATION : RP_DIRECTION_GRADIENT;
  }
}

/* ---- stages ---- */

/* Whether every life of group `g` names allocation `serial`. */
static bool group_names(const struct work *work, uint32_t g, uint64_t serial) {
  for (size_t i = 0; i < work->count; i++)
    if (work->label[i] == g && !names_companion(&work->lives[i], serial)) return false;
  return true;
}

/* A weight that all lives of both groups name, and of no third group (that would be a common workspace): the
 * groups belong to one stage. */
static bool share_weights(const struct work *work, const size_t *first, size_t groups, size_t a, size_t b) {
  const struct rp_key_set *set = &work->lives[first[a]].companions;
  for (uint16_t k = 0; k < set->count; k++) {
    uint64_t serial = set->key[k];
    if (!is_old(work, serial) || !names_companion(&work->lives[first[b]], serial) ||
        !group_names(work, (uint32_t)a, serial) || !group_names(work, (uint32_t)b, serial))
      continue;
    size_t naming = 0;
    for (size_t g = 0; g < groups; g++)
      naming += group_names(work, (uint32_t)g, serial);
    if (naming == 2) return true;
  }
  return false;
}

/* Order of groups along the pipeline, as far as one process can tell: activations reach earlier stages first,
 * gradients later ones. */
struct stage_order {
  size_t *activation, *gradient; /**< group indices, earlier stage first */
  size_t activations, gradients;
};

static void sort_stages(const struct rp_grouping *grouping, const size_t *first, struct stage_order *order) {
  for (size_t g = 0; g < grouping->group_count; g++) {
    bool gradient = grouping->groups[g].direction == RP_DIRECTION_GRADIENT;
    size_t *list = gradient ? order->gradient : order->activation;
    size_t count = gradient ? order->gradients++ : order->activations++;
    size_t at = count;
    while (at > 0 && (gradient ? first[list[at - 1]] < first[g] : first[list[at - 1]] > first[g])) {
      list[at] = list[at - 1];
      at--;
    }
    list[at] = g;
  }
}

/* Gradient group that belongs to activation group a of the order, SIZE_MAX if none is known to. */
static size_t partner_by_weights(const struct work *work, const struct stage_order *order,
                                 const size_t *first, size_t a) {
  for (size_t g = 0; g < order->gradients; g++)
    if (share_weights(work, first, order->activations + order->gradients, order->activation[a],
                      order->gradient[g]))
      return g;
  return SIZE_MAX;
}

static void number_stages(const struct work *work, struct rp_grouping *grouping, const size_t *first,
                          const struct stage_order *order) {
  bool by_weights = false;
  for (size_t a = 0; a < order->activations; a++)
    by_weights |= partner_by_weights(work, order, first, a) != SIZE_MAX;
  /* Without weights to go by: the first stage of the pipeline receives no activation, the last no gradient,
   * so the longer list starts earlier (gradients) or ends later (activations). */
  size_t lone = 0;
  for (size_t g = 0; g < order->gradients; g++) {
    bool partnered = false;
    for (size_t a = 0; a < order->activations && by_weights; a++)
      partnered |= partner_by_weights(work, order, first, a) == g;
    if (by_weights ? !partnered : g + order->activations < order->gradients)
      grouping->groups[order->gradient[g]].stage_ordinal = (uint32_t)lone++;
  }
  for (size_t a = 0; a < order->activations; a++) {
    uint32_t ordinal = (uint32_t)(lone + a);
    grouping->groups[order->activation[a]].stage_ordinal = ordinal;
    size_t partner = by_weights ? partner_by_weights(work, order, first, a) : lone + a;
    if (partner < order->gradients) grouping->groups[order->gradient[partner]].stage_ordinal = ordinal;
  }
}

/* ---- putting it together ---- */

static void describe_groups(const struct work *work, struct rp_grouping *out, size_t *first) {
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

/* Preallocated buffers are made in microbatch order, whatever order they are received in. */
static void number_by_allocation(const struct work *work, struct rp_grouping *out) {
  memset(work->scratch, 0, work->count * sizeof *work->scratch);
  for (size_t i = 0; i < work->count; i++) {
    uint32_t life = work->order[i];
    out->microbatch[life] = work->scratch[work->label[life]]++;
  }
}

static rp_status finish_grouping(struct work *work, struct rp_grouping *out) {
  size_t *indices = malloc(3 * out->group_count * sizeof *indices);
  if (!indices) return RP_ERROR_NO_MEMORY;
  size_t *first = indices;
  struct stage_order order = {.activation = indices + out->group_count,
                              .gradient = indices + 2 * out->group_count};
  describe_groups(work, out, first);
  if (work->order_known) number_by_allocation(work, out);
  set_directions(work, out, first);
  sort_stages(out, first, &order);
  number_stages(work, out, first, &order);
  free(indices);
  return RP_OK;
}

rp_status rp_group_lives(const struct rp_life *lives, size_t count, const struct rp_group_hints *hints,
                         struct rp_grouping *out) {
  *out = (struct rp_grouping){0};
  if (!count) return RP_OK;
  uint32_t *memory = malloc(5 * count * sizeof *memory);
  out->group_of = malloc(count * sizeof *out->group_of);
  out->microbatch = malloc(count * sizeof *out->microbatch);
  out->groups = malloc(count * sizeof *out->groups);
  rp_status status = RP_ERROR_NO_MEMORY;
  if (memory && out->group_of && out->microbatch && out->groups) {
    struct work work = {.lives = lives,
                        .count = count,
                        .hints = hints,
                        .family = memory,
                        .reader = memory + count,
                        .order = memory + 2 * count,
                        .label = memory + 3 * count,
                        .scratch = memory + 4 * count};
    classify(&work, same_family, work.family);
    classify(&work, same_readers, work.reader);
    status = sort_by_allocation(&work);
    if (status == RP_OK) {
      out->group_count = label_groups(&work);
      status = finish_grouping(&work, out);
    }
  }
  free(memory);
  if (status) rp_grouping_fini(out);
  return status;
}

void rp_grouping_fini(struct rp_grouping *grouping) {
  free(grouping->group_of);
  free(grouping->microbatch);
  free(grouping->groups);
  *grouping = (struct rp_grouping){0};
}
