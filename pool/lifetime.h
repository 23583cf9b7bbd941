/** @file lifetime.h
 * When each received tensor of a schedule is live on its rank: from the post of its receive to its last
 * reader. Time is the position in the rank's list; actions of one group happen at one position.
 *
 *   direction    begins at   ends at
 *   activation   RECV_F      B, or W where backward is split; F when only running forward
 *   gradient     RECV_B      B, or W where backward is split
 *
 * Recomputation reads the activation again inside B or I, so it changes nothing. A tensor handed over between
 * two stages of one rank is never received and has no lifetime here.
 */
#ifndef RP_POOL_LIFETIME_H
#define RP_POOL_LIFETIME_H

#include "pool/interval.h"
#include "pool/schedule.h"
#include "pool/tracker.h"

/** One received tensor. */
struct rp_received {
  struct rp_interval interval; /**< positions in the rank's list, both ends included */
  int32_t stage;
  int32_t microbatch;
  enum rp_direction direction;
  uint32_t readers; /**< actions that read it */
};

/** Everything a schedule receives; freed with rp_received_set_fini. */
struct rp_received_set {
  struct rp_received *items; /**< rank after rank, within a rank in the order of posting */
  size_t *rank_begin;        /**< [ranks + 1] index of each rank's first item */
  int32_t ranks;
};

struct rp_lifetime_options {
  /** Evaluation: backwards do not happen, the forward is the last reader. Implied if the schedule has no
   * backward. */
  bool forward_only;
  /** Posts directly before the first reader, wherever the schedule lists them: the least that any runtime can
   * need. */
  bool post_at_use;
  /** Each receive is posted together with the one this many places before it in its stage and direction. */
  uint32_t receive_ahead;
};

/** Lifetimes of a lowered, checked schedule. `options` may be NULL. RP_ERROR_STATE: not lowered. O(actions).
 */
rp_status rp_schedule_lifetimes(const struct rp_schedule *schedule, const struct rp_lifetime_options *options,
                                struct rp_received_set *out);
/** Frees and zeroes; a zeroed set is allowed. */
void rp_received_set_fini(struct rp_received_set *set);

#endif
