/* Directions and stages of the groups of a step. */
#include "pool/grouping_internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- families ---- */

/** What is known of a peer-and-size family. */
struct family {
  uint32_t reader; /**< of its first group */
  bool seen,
      mixed; /**< mixed: its groups have different readers, so that both directions may come from this peer */
  bool one_way; /**< mixed, but only one direction comes from it */
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

/* ---- directions ---- */

static enum rp_direction direction_of_peer(const struct rp_grouping_work *work, const struct rp_life *life) {
  return rp__peers_side(work->hints->peers, life->comm, life->peer, life->bytes);
}

static enum rp_direction opposite(enum rp_direction direction) {
  return direction == RP_DIRECTION_ACTIVATION ? RP_DIRECTION_GRADIENT
         : direction == RP_DIRECTION_GRADIENT ? RP_DIRECTION_ACTIVATION
                                              : RP_DIRECTION_UNKNOWN;
}

/** Directions in the making. */
struct directions {
  const struct rp_grouping_work *work;
  struct rp_grouping *out;
  const size_t *first;    /**< first receive of each group */
  const uint32_t *reader; /**< of each group */
  struct family *families;
  const size_t *tie; /**< the group that each shares most weights with, SIZE_MAX if there is none */
};

static struct family *family_of(const struct directions *d, size_t group) {
  return &d->families[d->work->family[d->first[group]]];
}

/* Peers that one direction comes from, and the other halves of the stages that receive from those. */
static void set_sure_directions(const struct directions *d) {
  struct rp_group *groups = d->out->groups;
  for (size_t g = 0; g < d->out->group_count; g++)
    groups[g].direction = family_of(d, g)->mixed ? RP_DIRECTION_UNKNOWN
                                                 : direction_of_peer(d->work, &d->work->lives[d->first[g]]);
  for (size_t g = 0; g < d->out->group_count; g++) {
    if (!family_of(d, g)->mixed || d->tie[g] == SIZE_MAX || family_of(d, d->tie[g])->mixed) continue;
    groups[g].direction = opposite(groups[d->tie[g]].direction);
    if (groups[g].direction) family_of(d, g)->one_way = true;
  }
}

/* Whether one direction comes from this peer only after all: the pipeline is no V then, and its other
 * neighbour another peer. The first stage reads its gradients in other ways than the later ones. */
static void set_other_directions(const struct directions *d) {
  for (size_t g = 0; g < d->out->group_count; g++) {
    const struct family *family = family_of(d, g);
    if (!family->mixed || d->out->groups[g].direction) continue;
    /* With both directions from one peer, an activation comes first. */
    d->out->groups[g].direction = family->one_way ? direction_of_peer(d->work, &d->work->lives[d->first[g]])
                                  : d->reader[g] == family->reader ? RP_DIRECTION_ACTIVATION
                                                                   : RP_DIRECTION_GRADIENT;
  }
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

/** Scratch memory of rp__stages_number, one element per group (families: per life). */
struct stage_memory {
  struct family *families;
  struct first_receive *receives;
  size_t *tie, *partner, *activation, *gradient;
  uint32_t *reader;
};

static rp_status number_stages(const struct rp_grouping_work *work, struct rp_grouping *out,
                               const size_t *first, const struct stage_memory *memory) {
  struct directions directions = {work, out, first, memory->reader, memory->families, memory->tie};
  struct stage_order order = {.activation = memory->activation, .gradient = memory->gradient};
  find_readers(work, out, memory->reader);
  describe_families(work, out, memory->reader, first, memory->families);
  struct rp_ties ties = {0};
  rp_status status = rp__ties_find(work, out, &ties);
  if (status) return status;
  rp__ties_best(&ties, out->group_count, memory->tie);
  set_sure_directions(&directions);
  set_other_directions(&directions);
  for (size_t g = 0; g < out->group_count; g++)
    memory->receives[g] = (struct first_receive){first[g], g};
  order_groups(out, memory->receives, &order);
  for (size_t g = 0; g < out->group_count; g++)
    memory->partner[g] = SIZE_MAX;
  tie_by_order(&order, memory->partner);
  rp__ties_partners(&ties, out, memory->partner);
  number(out, &order, memory->partner);
  rp__ties_fini(&ties);
  return RP_OK;
}

rp_status rp__stages_number(const struct rp_grouping_work *work, struct rp_grouping *out,
                            const size_t *first) {
  size_t groups = out->group_count;
  size_t *indices = calloc(4 * groups, sizeof *indices);
  struct stage_memory memory = {.families = calloc(work->count, sizeof *memory.families),
                                .receives = calloc(groups, sizeof *memory.receives),
                                .reader = calloc(groups, sizeof *memory.reader),
                                .tie = indices,
                                .partner = indices + groups,
                                .activation = indices + 2 * groups,
                                .gradient = indices + 3 * groups};
  rp_status status = RP_ERROR_NO_MEMORY;
  if (indices && memory.families && memory.receives && memory.reader)
    status = number_stages(work, out, first, &memory);
  free(memory.families);
  free(memory.receives);
  free(memory.reader);
  free(indices);
  return status;
}
