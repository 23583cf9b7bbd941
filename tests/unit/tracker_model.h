/** @file tracker_model.h
 * A model process for tracker tests: runs one rank of a schedule on paper, emits the events that an observer
 * would see, and keeps its own record of every lifetime as the oracle.
 */
#ifndef TRACKER_MODEL_H
#define TRACKER_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "pool/schedule.h"
#include "pool/tracker.h"

/** What the model varies. */
struct model_options {
  bool just_in_time;
  bool recompute;
  bool warm_up; /**< the first step launches more than the others */
  bool probes;  /**< small one-time receives first, as frameworks do */
  uint32_t steps;
  uint64_t bytes;
};

/** Oracle of one lifetime. */
struct model_life {
  uint64_t posted_seq, first_access_seq, last_access_seq, address;
  uint32_t accesses;
};

/** Oracle of one (stage, direction) in the last step. */
struct model_channel {
  int32_t stage;
  uint32_t stage_ordinal;
  enum rp_direction direction;
  int32_t peer;
  struct model_life life[64]; /**< by microbatch */
  uint32_t depth;             /**< by brute force over posted and last access */
};

struct model_result {
  struct model_channel channels[32];
  size_t channel_count;
};

/** Feeds `tracker` with `rank`'s part of `schedule`; the oracle of the last step goes to `result`. Asserts
 * that every event is taken. */
void model_run(struct rp_tracker *tracker, const struct rp_schedule *schedule, int32_t rank,
               const struct model_options *options, struct model_result *result);

#endif
