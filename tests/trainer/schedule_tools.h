/** @file schedule_tools.h
 * Changing lowered schedules without breaking them. Pure.
 */
#ifndef RP_TRAINER_SCHEDULE_TOOLS_H
#define RP_TRAINER_SCHEDULE_TOOLS_H

#include "pool/schedule.h"

/** Whether a lowered schedule comes to its end where every rank runs its groups of transfers one after the
 * other, a group ends only when all its transfers have met their other ends, and comes after what the rank
 * has been told to compute before. Then no choice of buffers, streams and timing can stop it. */
bool rp_schedule_ends(const struct rp_schedule *schedule);

/** A deep copy; false without memory. */
bool rp_schedule_copy(const struct rp_schedule *from, struct rp_schedule *to);
/** A deep copy of the forwards and their transfers. */
bool rp_schedule_forwards(const struct rp_schedule *from, struct rp_schedule *to);
/** Moves the receive at `index` of a rank's list before the nearest computation in front of it, out of its
 * group. False if there is none. */
bool rp_schedule_hoist(struct rp_rank_schedule *list, size_t index);
/** Hoists every receive of activations. False if there is none that could be, or if the result would not end.
 */
bool rp_schedule_post_early(struct rp_schedule *schedule);

/** A random, correct, lowered schedule whose transfers can share a communicator. Numbers that are 0 are drawn
 * as well. False without memory. */
bool rp_schedule_random(uint64_t seed, int32_t ranks, int32_t chunks, int32_t microbatches,
                        struct rp_schedule *out);

/** The next number of a sequence, and one below `limit`. */
uint64_t rp_random_next(uint64_t *state);
uint32_t rp_random_below(uint64_t *state, uint32_t limit);

#endif
