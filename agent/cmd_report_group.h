/** @file cmd_report_group.h
 * Private to `recvpool report`: which reports are of one process, and which processes of one job.
 */
#ifndef RP_AGENT_CMD_REPORT_GROUP_H
#define RP_AGENT_CMD_REPORT_GROUP_H

#include "agent/command.h"

/** Sorts the digested reports of `set`, keeps the latest state of each process and fills the jobs. Takes time
 * in proportion to their number, but for sorting. RP_ERROR_NO_MEMORY. */
rp_status rp__group(struct rp_read_set *set);

#endif
