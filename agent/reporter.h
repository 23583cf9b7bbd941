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

/** The driver is ready to be asked. Callable from callbacks. */
void rp_reporter_driver_initialised(void);
/** Wakes the thread if modules were loaded since the last scan. Cheap; callable from callbacks. */
void rp_reporter_look_for_modules(void);
/** The same from an interposed call, and waits a bounded time, once per change, until they are patched. */
void rp_reporter_wait_for_modules(void);
/** Modules as of now are patched already. Before the thread starts. */
void rp_reporter_modules_scanned(uint64_t changes);

#endif
