/** @file grouping_internal.h
 * What the files of grouping share:
 *
 *   grouping.c          readers, allocation order, the choice between partitions
 *   grouping_even.c     partitions by what receives have in common, and the even one among them
 *   grouping_weights.c  partitions by the weights named beside the buffers
 *   grouping_ties.c     which groups belong to one stage, by the weights they share
 *   grouping_stages.c   directions and stages of the groups found
 */
#ifndef RP_POOL_GROUPING_INTERNAL_H
#define RP_POOL_GROUPING_INTERNAL_H

#include "pool/grouping.h"

/** One use of a companion by a life. */
struct rp_weight_use {
  uint64_t key; /**< rp__companion_key */
  uint32_t life;
};

/** Grouping in progress. All arrays have one element per lifetime. */
struct rp_grouping_work {
  const struct rp_life *lives;
  size_t count;
  const struct rp_group_hints *hints;
  uint32_t *family;   /**< class of peer and size */
  uint32_t *reader;   /**< class of readers */
  uint32_t *class_of; /**< class of both */
  uint32_t *order;    /**< indices in allocation order */
  uint32_t *label;    /**< group under construction */
  uint32_t *part;     /**< which weight, while parting by weights */
  uint32_t *scratch;
  uint32_t family_count, class_count; /**< values in family and in class_of */
  bool order_known;
  struct rp_weight_use *uses; /**< companions old enough to be weights, sorted by key, then lifetime */
  size_t use_count;
  uint64_t old_serial; /**< allocations up to this one are that old */
};

/** Labels lives that agree in family and, if asked, in readers and in the part given by weights, in order of
 * their first receive. Number of labels. Uses scratch. */
uint32_t rp__label_by_class(struct rp_grouping_work *work, bool readers, bool parts);

/** Labels lives as rp__label_by_class does with readers, but so that all labels have equally many: the finest
 * such partition. Number of labels, 0 if there is no such partition (or no memory). */
uint32_t rp__label_evenly(struct rp_grouping_work *work, bool parts);

/** Fills uses and old_serial. */
rp_status rp__weights_index(struct rp_grouping_work *work);

/** Parts the lives (work->part) so that each part has a weight which all its lives name and no other life
 * does; those that name no weight at all are a part too (the first stage needs no gradient of its input).
 * `from` is where to go on looking among the companions of the first life, 0 at first. Number of parts, at
 * least 2, or 0 when there is no further such partition. */
uint32_t rp__weights_part(struct rp_grouping_work *work, uint16_t *from);

/** Two groups that share weights which no third group names. */
struct rp_tie {
  size_t left, right; /**< groups, left < right */
  size_t weights;     /**< how many they share */
  uint64_t oldest;    /**< least key of these: the weight that was allocated first */
  bool usual;         /**< while partners are chosen: the order of receives says the same */
};

/** Ties of a step, those by most weights first, among them the oldest. A zeroed one is empty. */
struct rp_ties {
  struct rp_tie *ties;
  size_t count;
};

/** Finds them; needs uses and labels. RP_ERROR_NO_MEMORY leaves `out` empty. */
rp_status rp__ties_find(const struct rp_grouping_work *work, const struct rp_grouping *grouping,
                        struct rp_ties *out);
void rp__ties_fini(struct rp_ties *ties);

/** The group that each of `groups` groups has its first tie with; SIZE_MAX if it has none. */
void rp__ties_best(const struct rp_ties *ties, size_t groups, size_t *best);

/** Where groups of different directions are tied, these are partners and no others. A block of scratch memory
 * that all receives of two groups happen to meet looks like a weight too: of ties that exclude each other,
 * those by more weights count, then those that agree with `partner`, which says on entry what the order of
 * receives suggests (SIZE_MAX: no partner), then the oldest. */
void rp__ties_partners(struct rp_ties *ties, const struct rp_grouping *grouping, size_t *partner);

/** Sets direction and stage ordinal of every group; `first` is the first lifetime of each group. */
rp_status rp__stages_number(const struct rp_grouping_work *work, struct rp_grouping *out,
                            const size_t *first);

#endif
