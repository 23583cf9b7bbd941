/** @file unstoppable.h
 * Libraries that use memory by calls which can be seen but not stopped: those that bring a CUDA runtime of
 * their own, as cuBLAS does, and those that look the driver's launches up by name. Where there is one, memory
 * that nothing has used yet must be there all the same, since nobody is asked before it is used.
 */
#ifndef RP_AGENT_UNSTOPPABLE_H
#define RP_AGENT_UNSTOPPABLE_H

#include <stdbool.h>

/** Whether there is such a library, as far as is known; for good. Takes no lock. */
bool rp_unstoppable_known(void);
/** The same after a look at the modules that were loaded since the last one. Reads their files, so it is
 * called neither from a callback nor under a lock; cheap where nothing was loaded. */
bool rp_unstoppable_look(void);
/** Such a call was seen. Takes no lock. */
void rp_unstoppable_seen(void);
/** Whether the module in this file is one. */
bool rp_unstoppable_file(const char *path);

#endif
