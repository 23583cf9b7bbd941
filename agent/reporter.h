/** @file reporter.h
 * The one thread of the injected library: writes the report and looks for newly loaded modules.
 */
#ifndef RP_AGENT_REPORTER_H
#define RP_AGENT_REPORTER_H

#include "agent/config.h"
#include "recvpool/status.h"

/** Starts the thread (named, all signals blocked). RP_ERROR_UNAVAILABLE if it cannot be made: then only the
 * final report is written. */
rp_status rp_reporter_start(const struct rp_config *config);
/** Stops the thread within a bounded time and writes the final report. In the process that started it only.
 */
void rp_reporter_finish(void);

#endif
