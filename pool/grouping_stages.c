/* Directions and stages of the groups of a step. */
#include "pool/grouping_internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- directions ---- */

/** What is known of a peer-and-size family. */
struct family {
  uint32_t reader;  /**< of its first group */
  bool seen, mixed; /**< mixed: its groups have different readers, so both directions come from this peer */
};

/* The readers of each group: of its middle receive, for the first and the last microbatch may be treated
 * apart (where gradients are accumulated, the first one is copied). */
static void find_readers(const struct rp_grouping_work *work, const struct rp_grouping *grouping,
                         uint32_t *reader) {
  uint32_t *seen = work->scratch;
  memset(seen, 0, work->count * sizeof *seen);
  for (size_t i = 0; i < work->count; i++) {
    uint32_t g = grouping->group_of[i];
    if (seen[g]++ == grouping->groups[g].size / 2) reader[g] = work->reader[i];
  }
}

/* `first` is the first receive of each group: families are described by the group that starts first. */
static void describe_families(const struct rp_grouping_work *work, const struct rp_grouping *grouping,
                              const uint32_t *reader, const size_t *first, struct family *families) {
  for (size_t i = 0; i < work->count; i++) {
    uint32_t g = grouping->group_of[i];
    struct family *family = &families[work->family[i]];
    if (first[g] != i) continue;
    if (!family->seen)
      *family = (struct family){.reader = reader[g], .seen = true};
    else if (reader[g] != family->reader)
      family->mixed = true;
  }
}

/* The side of the pipeline a peer is on, by what was exchanged with it first: activations travel before
 * gradients. */
static enum rp_direction direction_of_peer(const struct rp_grouping_work *work, const struct rp_life *life) {
  for (size_t i = 0; i < work->hints->peer_count; i++) {
    const struct rp_peer_order *peer = &work->hints->peers[i];
    if (peer->comm == life->comm && peer->peer == life->peer && peer->bytes == life->bytes)
      return peer->receive_first ? RP_DIRECTION_ACTIVATION : RP_DIRECTION_GRADIENT;
  }
  return RP_DIRECTION_UNKNOWN;
}

static void set_directions(const struct rp_grouping_work *work, const uint32_t *reader,
                           const struct family *families, struct rp_grouping *out, const size_t *first) {
  for (size_t g = 0; g < out->group_count; g++) {
    const struct family *family = &families[work->family[first[g]]];
    /* With both directions from one peer, an activation comes first. */
    bool like_first = reader[g] == family->reader;
    out->groups[g].direction = !family->mixed ? direction_of_peer(work, &work->lives[first[g]])
                               : like_first   ? RP_DIRECTION_ACTIVATION
                                              : RP_DIRECTION_GRADIENT;
  }
}

/* ---- weights of groups ---- */

/** A weight that all lives of a group name. */
struct group_weight {
  uint64_t serial;
  size_t group;
};

static int compare_group_weights(const void *left, const void *right) {
  const struct group_weight *a = left, *b = right;
  if (a->serial != b->serial) return a->serial < b->serial ? -1 : 1;
  return (a->group > b->group) - (a->group < b->group);
}

static int compare_by_label(const void *left, const void *right) {
  const struct group_weight *a = left, *b = right;
  return (a->group > b->group) - (a->group < b->group);
}

/* All (weight, group) pairs of weights that every life of the group names, sorted by weight. The uses are
 * sorted by weight already, so each weight's uses are counted per group. */
static size_t collect_group_weights(const struct rp_grouping_work *work, const struct rp_grouping *grouping,
                                    struct group_weight *weights) {
  size_t kept = 0;
  for (size_t begin = 0, end; begin < work->use_count; begin = end) {
    size_t at = kept;
    for (end = begin; end < work->use_count && work->uses[end].serial == work->uses[begin].serial; end++)
      weights[at + end - begin] =
          (struct group_weight){work->uses[end].serial, work->label[work->uses[end].life]};
    qsort(weights + at, end - begin, sizeof *weights, compare_by_label);
    for (size_t i = at, run; i < at + end - begin; i += run) {
      for (run = 1; i + run < at + end - begin && weights[i + run].group == weights[i].group; run++)
        ;
      if (run == grouping->groups[weights[i].group].size) weights[kept++] = weights[i];
    }
  }
  qsort(weights, kept, sizeof *weights, compare_group_weights);
  return kept;
}

/* Ties groups that share a weight no third group names: the two directions of one stage. */
static bool tie_by_weights(const struct group_weight *weights, size_t count,
                           const struct rp_grouping *grouping, size_t *partner) {
  bool any = false;
  for (size_t i = 0, run; i < count; i += run) {
    for (run = 1; i + run < count && weights[i + run].serial == weights[i].serial; run++)
      ;
    if (run != 2) continue;
    size_t a = weights[i].group, b = weights[i + 1].group;
    if (grouping->groups[a].direction == grouping->groups[b].direction) continue;
    partner[a] = b;
    partner[b] = a;
    any = true;
  }
  return any;
}

static rp_status find_partners(const struct rp_grouping_work *work, const struct rp_grouping *grouping,
                               size_t *partner, bool *any) {
  struct group_weight *weights = malloc((work->use_count + 1) * sizeof *weights);
  if (!weights) return RP_ERROR_NO_MEMORY;
  for (size_t g = 0; g < grouping->group_count; g++)
    partner[g] = SIZE_MAX;
  size_t count = collect_group_weights(work, grouping, weights);
  *any = tie_by_weights(weights, count, grouping, partner);
  free(weights);
  return RP_OK;
}

/* ---- stages ---- */

/** Groups along the pipeline as far as one process can tell: activations reach earlier stages first,
 * gradients later ones. */
struct stage_order {
  size_t *activation, *gradient; /**< group indices, earlier stage first */
  size_t activations, gradients;
};

/** A group and its first receive. */
struct first_receive {
  size_t first, group;
};

static int compare_first_receives(const void *left, const void *right) {
  const struct first_receive *a = left, *b = right;
  return (a->first > b->first) - (a->first < b->first);
}

static void order_groups(const struct rp_grouping *grouping, struct first_receive *receives,
                         struct stage_order *order) {
  qsort(receives, grouping->group_count, sizeof *receives, compare_first_receives);
  for (size_t i = 0; i < grouping->group_count; i++)
    if (grouping->groups[receives[i].group].direction != RP_DIRECTION_GRADIENT)
      order->activation[order->activations++] = receives[i].group;
  for (size_t i = grouping->group_count; i-- > 0;)
    if (grouping->groups[receives[i].group].direction == RP_DIRECTION_GRADIENT)
      order->gradient[order->gradients++] = receives[i].group;
}

/* Without weights to go by: the first stage of the pipeline receives no activation, the last no gradient, so
 * the longer list starts earlier (gradients) or ends later (activations). */
static void tie_by_order(const struct stage_order *order, size_t *partner) {
  size_t lone = order->gradients > order->activations ? order->gradients - order->activations : 0;
  for (size_t a = 0; a < order->activations && lone + a < order->gradients; a++) {
    partner[order->activation[a]] = order->gradient[lone + a];
    partner[order->gradient[lone + a]] = order->activation[a];
  }
}

static void number(struct rp_grouping *grouping, const struct stage_order *order, const size_t *partner) {
  uint32_t ordinal = 0;
  for (size_t g = 0; g < order->gradients; g++)
    if (partner[order->gradient[g]] == SIZE_MAX)
      grouping->groups[order->gradient[g]].stage_ordinal = ordinal++;
  for (size_t a = 0; a < order->activations; a++, ordinal++) {
    size_t mate = partner[order->activation[a]];
    grouping->groups[order->activation[a]].stage_ordinal = ordinal;
    if (mate != SIZE_MAX) grouping->groups[mate].stage_ordinal = ordinal;
  }
}

rp_status rp__stages_number(const struct rp_grouping_work *work, struct rp_grouping *out,
                            const size_t *first) {
  size_t groups = out->group_count;
  struct family *families = calloc(work->count, sizeof *families);
  struct first_receive *receives = calloc(groups, sizeof *receives);
  size_t *indices = calloc(3 * groups, sizeof *indices);
  uint32_t *reader = calloc(groups, sizeof *reader);
  rp_status status = RP_ERROR_NO_MEMORY;
  if (families && receives && indices && reader) {
    size_t *partner = indices;
    struct stage_order order = {.activation = indices + groups, .gradient = indices + 2 * groups};
    bool by_weights = false;
    find_readers(work, out, reader);
    describe_families(work, out, reader, first, families);
    set_directions(work, reader, families, out, first);
    for (size_t g = 0; g < groups; g++)
      receives[g] = (struct first_receive){first[g], g};
    order_groups(out, receives, &order);
    status = find_partners(work, out, partner, &by_weights);
    if (!status && !by_weights) tie_by_order(&order, partner);
    if (!status) number(out, &order, partner);
  }
  free(families);
  free(reader);
  free(receives);
  free(indices);
  return status;
}
