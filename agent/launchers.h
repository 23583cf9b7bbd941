/** @file launchers.h
 * How the launchers of distributed jobs tell a process its rank: by variables of its environment.
 */
#ifndef RP_AGENT_LAUNCHERS_H
#define RP_AGENT_LAUNCHERS_H

#include "agent/report.h"

/** Value of a variable, or NULL. */
typedef const char *rp_variable(void *context, const char *name);

/** Fills in rank, world size, local rank and who told: torchrun, Slurm, MPI, in this order; -1 where not
 * known. */
void rp_launcher_rank(rp_variable *variable, void *context, struct rp_process_info *out);

#endif
