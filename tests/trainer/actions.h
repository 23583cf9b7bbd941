/** @file actions.h
 * The actions of a schedule, carried out.
 */
#ifndef RP_TRAINER_ACTIONS_H
#define RP_TRAINER_ACTIONS_H

#include "pass.h"

/** Runs the first `count` actions of a rank's list; a group that begins among them is run whole. */
void rp_actions_run(struct rp_rank *rank, const struct rp_phase *phase, const struct rp_rank_schedule *list,
                    size_t count);

#endif
