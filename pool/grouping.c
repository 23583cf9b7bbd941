/* From the receives of one step to its channels (see grouping.h for the evidence). */
#include "pool/grouping.h"

#include <stdlib.h>
#include <string.h>

/** Allowed part of disagreement between the readers of two buffers of one direction. */
#define SIMILAR_NUMERATOR 1
#define SIMILAR_DENOMINATOR 2

/** Which evidence one attempt uses. */
struct attempt {
  bool readers;    /**< what reads the buffer */
  bool order;      /**< allocation order */
  bool companions; /**< weights named beside it */
};

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

/* How many lives of group `label` name allocation `serial`. */
static uint32_t companion_uses(const struct work *work, uint32_t label, uint64_t serial) {
  uint32_t uses = 0;
  for (size_t i = 0; i < work->count; i++)
    uses += work->label[i] == label && names_companion(&work->lives[i], serial);
  return uses;
}

static uint32_t group_size(const struct work *work, uint32_t label) {
  uint32_t size = 0;
  for (size_t i = 0; i < work->count; i++)
    size += work->label[i] == label;
  return size;
}

/* Whether splitting group `label` into those that name `serial` and the others follows blocks of neighbours;
 * scratch memory reused in turn would alternate receive by receive. */
static bool splits_in_blocks(const struct work *work, uint32_t label, uint64_t serial, uint32_t size) {
  uint32_t blocks = 0;
  int last = -1;
  for (size_t i = 0; i < work->count; i++) {
    if (work->label[i] != label) continue;
    int names = names_companion(&work->lives[i], serial);
    blocks += names != last;
    last = names;
  }
  return 2 * size >= 3 * blocks;
}

/* Takes the lives that name `serial` out of group `label` into group `fresh`. */
static void split_off(struct work *work, uint32_t label, uint64_t serial, uint32_t fresh) {
  for (size_t i = 0; i < work->count; i++)
    if (work->label[i] == label && names_companion(&work->lives[i], serial)) work->label[i] = fresh;
}

/* Finds a weight that only a part of group `label` names, and splits by it. */
static bool split_by_companion(struct work *work, uint32_t label, uint32_t fresh) {
  uint32_t size = group_size(work, label);
  for (size_t i = 0; i < work->count; i++) {
    if (work->label[i] != label) continue;
    const struct rp_key_set *set = &work->lives[i].companions;
    for (uint16_t k = 0; k < set->count; k++) {
      if (set->key[k] > work->hints->old_allocation_serial) continue;
      uint32_t uses = companion_uses(work, label, set->key[k]);
      if (uses < 2 || uses + 2 > size || size % uses || !splits_in_blocks(work, label, set->key[k], size))
        continue;
      split_off(work, label, set->key[k], fresh);
      return true;
    }
  }
  return false;
}

/* ---- attempts ---- */

static uint32_t label_by_class(struct work *work, bool readers) {
  uint32_t groups = 0;
  for (size_t i = 0; i < work->count; i++) {
    size_t j = 0;
    while (j < i && !(work->family[j] == work->family[i] && (!readers || work->reader[j] == work->reader[i])))
      j++;
    work->label[i] = j < i ? work->label[j] : groups++;
  }
  return groups;
}

static uint32_t label_attempt(struct work *work, const struct attempt *attempt) {
  uint32_t groups =
      attempt->order ? label_runs(work, attempt->readers) : label_by_class(work, attempt->readers);
  for (uint32_t label = 0; attempt->companions && label < groups; label++)
    while (split_by_companion(work, label, groups))
      groups++;
  return groups;
}

static bool is_even(const struct work *work, uint32_t groups) {
  uint32_t first = group_size(work, 0);
  for (uint32_t label = 1; label < groups; label++)
    if (group_size(work, label) != first) return false;
  return true;
}

/* The finest even partition by the strongest evidence; without any, peer and size alone. */
static uint32_t label_groups(struct work *work) {
  static const struct attempt attempts[] = {
      {.readers = true, .order = true},
      {.order = true},
      {.readers = true, .companions = true},
      {.readers = true},
      {.companions = true},
  };
  for (size_t i = 0; i < sizeof attempts / sizeof *attempts; i++) {
    if (attempts[i].order && !work->order_known) continue;
    uint32_t groups = label_attempt(work, &attempts[i]);
    if (is_even(work, groups)) return groups;
  }
  /* Uneven, e.g. one direction broke off: directions are still worth telling apart. */
  return label_by_class(work, true);
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

/* How many groups' first lives name allocation `serial`. */
static size_t groups_naming(const struct work *work, const size_t *first, size_t groups, uint64_t serial) {
  size_t naming = 0;
  for (size_t g = 0; g < groups; g++)
    naming += names_companion(&work->lives[first[g]], serial);
  return naming;
}

/* A weight that both groups name, and no third one (that would be a common workspace): they belong to one
 * stage. */
static bool share_weights(const struct work *work, const size_t *first, size_t groups, size_t a, size_t b) {
  const struct rp_key_set *set = &work->lives[first[a]].companions;
  for (uint16_t k = 0; k < set->count; k++)
    if (set->key[k] <= work->hints->old_allocation_serial &&
        names_companion(&work->lives[first[b]], set->key[k]) &&
        groups_naming(work, first, groups, set->key[k]) == 2)
      return true;
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
