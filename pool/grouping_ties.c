/* Groups of a step that belong to one stage: forward and backward of a stage name its weights, and no other
 * stage does. */
#include "pool/grouping_internal.h"

#include <stdlib.h>
#include <string.h>

/** A weight that all lives of a group name. */
struct group_weight {
  uint64_t key;
  size_t group;
};

static int compare_group_weights(const void *left, const void *right) {
  const struct group_weight *a = left, *b = right;
  if (a->key != b->key) return a->key < b->key ? -1 : 1;
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
    for (end = begin; end < work->use_count && work->uses[end].key == work->uses[begin].key; end++)
      weights[at + end - begin] =
          (struct group_weight){work->uses[end].key, work->label[work->uses[end].life]};
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

static int compare_groups(const void *left, const void *right) {
  const struct rp_tie *a = left, *b = right;
  if (a->left != b->left) return a->left < b->left ? -1 : 1;
  if (a->right != b->right) return a->right < b->right ? -1 : 1;
  return (a->oldest > b->oldest) - (a->oldest < b->oldest);
}

static int compare_strength(const void *left, const void *right) {
  const struct rp_tie *a = left, *b = right;
  if (a->weights != b->weights) return a->weights > b->weights ? -1 : 1;
  if (a->usual != b->usual) return a->usual ? -1 : 1;
  if (a->oldest != b->oldest) return a->oldest < b->oldest ? -1 : 1;
  return compare_groups(left, right);
}

/* One tie for each weight that just two groups name. Number of ties. */
static size_t tie_by_weight(const struct group_weight *weights, size_t count, struct rp_tie *ties) {
  size_t tied = 0;
  for (size_t i = 0, run; i < count; i += run) {
    for (run = 1; i + run < count && weights[i + run].key == weights[i].key; run++)
      ;
    if (run == 2)
      ties[tied++] = (struct rp_tie){
          .left = weights[i].group, .right = weights[i + 1].group, .weights = 1, .oldest = weights[i].key};
  }
  return tied;
}

/* Makes one of all ties between the same two groups. Number of those. */
static size_t unite(struct rp_tie *ties, size_t count) {
  size_t kept = 0;
  qsort(ties, count, sizeof *ties, compare_groups);
  for (size_t i = 0; i < count; i++) {
    if (kept && ties[kept - 1].left == ties[i].left && ties[kept - 1].right == ties[i].right)
      ties[kept - 1].weights++;
    else
      ties[kept++] = ties[i];
  }
  return kept;
}

rp_status rp__ties_find(const struct rp_grouping_work *work, const struct rp_grouping *grouping,
                        struct rp_ties *out) {
  memset(out, 0, sizeof *out);
  struct group_weight *weights = malloc((work->use_count + 1) * sizeof *weights);
  struct rp_tie *ties = malloc((work->use_count + 1) * sizeof *ties);
  if (!weights || !ties) {
    free(weights);
    free(ties);
    return RP_ERROR_NO_MEMORY;
  }
  size_t count = tie_by_weight(weights, collect_group_weights(work, grouping, weights), ties);
  free(weights);
  *out = (struct rp_ties){ties, unite(ties, count)};
  qsort(out->ties, out->count, sizeof *out->ties, compare_strength);
  return RP_OK;
}

void rp__ties_fini(struct rp_ties *ties) {
  free(ties->ties);
  memset(ties, 0, sizeof *ties);
}

void rp__ties_best(const struct rp_ties *ties, size_t groups, size_t *best) {
  for (size_t g = 0; g < groups; g++)
    best[g] = SIZE_MAX;
  for (size_t i = 0; i < ties->count; i++) {
    const struct rp_tie *tie = &ties->ties[i];
    if (best[tie->left] == SIZE_MAX) best[tie->left] = tie->right;
    if (best[tie->right] == SIZE_MAX) best[tie->right] = tie->left;
  }
}

void rp__ties_partners(struct rp_ties *ties, const struct rp_grouping *grouping, size_t *partner) {
  size_t kept = 0;
  for (size_t i = 0; i < ties->count; i++) {
    struct rp_tie tie = ties->ties[i];
    if (grouping->groups[tie.left].direction == grouping->groups[tie.right].direction) continue;
    tie.usual = partner[tie.left] == tie.right;
    ties->ties[kept++] = tie;
  }
  ties->count = kept;
  if (!kept) return;
  qsort(ties->ties, kept, sizeof *ties->ties, compare_strength);
  for (size_t g = 0; g < grouping->group_count; g++)
    partner[g] = SIZE_MAX;
  for (size_t i = 0; i < kept; i++) {
    const struct rp_tie *tie = &ties->ties[i];
    if (partner[tie->left] != SIZE_MAX || partner[tie->right] != SIZE_MAX) continue;
    partner[tie->left] = tie->right;
    partner[tie->right] = tie->left;
  }
}
