/** @file requests.h
 * What the rest of the library asks of its one thread (agent/reporter.h), and waits for. Knows nothing of
 * what the thread does, so that everything may include it.
 */
#ifndef RP_AGENT_REQUESTS_H
#define RP_AGENT_REQUESTS_H

#include <stdbool.h>
#include <stdint.h>

/* ---- asking ---- */

/** The driver is ready to be asked. Callable from callbacks. */
void rp_request_driver_initialised(void);
/** Wakes the thread if modules were loaded since the last scan. Cheap; callable from callbacks. */
void rp_request_scan(void);
/** The same from an interposed call, and waits a bounded time, once per change, until they are patched. */
void rp_request_scan_and_wait(void);
/** Modules as of now are patched already. Before the thread starts. */
void rp_request_modules_scanned(uint64_t changes);
/** Asks the thread to end, and waits a bounded time until it has. False: this thread is inside a lock that
 * the other needs, or was interrupted there. `had_thread`: there was one. */
bool rp_request_stop(bool *had_thread);

/* ---- the thread's side ---- */

/** Before the thread is made. */
void rp_request_thread_begins(void);
/** It has ended, or could not be made. */
void rp_request_thread_ended(void);
/** Sleeps until somebody asks for something, for no longer than that. False: the thread shall end. */
bool rp_request_sleep(uint64_t nanoseconds);
/** Whether the driver may be asked. */
bool rp_request_driver_ready(void);
/** A scan is due: its number, 0 if it is not. Always answered by rp_request_scan_done. */
uint64_t rp_request_scan_due(void);
/** Scan `number` is complete; `changes` is the state of the module list that it started from. */
void rp_request_scan_done(uint64_t number, uint64_t changes);

#endif
