/** @file identity.h
 * Who this process is: host, command, rank.
 */
#ifndef RP_AGENT_IDENTITY_H
#define RP_AGENT_IDENTITY_H

#include "agent/report.h"

/** Fills everything from the system and the environment; unknown ranks are -1. Call it once, at attach. */
void rp_identity_read(struct rp_process_info *out);
/** Rank, world size and local rank from the environment: torchrun, Slurm, MPI, in this order. */
void rp_identity_rank(struct rp_process_info *out);

#endif
