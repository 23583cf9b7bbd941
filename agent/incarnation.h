/** @file incarnation.h
 * Which process a process id meant: ids are used again, and mean something only in their namespace and until
 * the machine starts anew.
 */
#ifndef RP_AGENT_INCARNATION_H
#define RP_AGENT_INCARNATION_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct rp_incarnation {
  char boot_id[40];       /**< of the kernel; "" where not known */
  uint64_t pid_namespace; /**< inode of the namespace that the id is of; 0 where not known */
  uint64_t start_ticks;   /**< start in clock ticks since boot; 0 where not known */
};

/** Of the calling process; what cannot be read stays empty. Thread-safe. */
void rp_incarnation_own(struct rp_incarnation *out);

/** Whether the process that `of` tells of has certainly ended: its id is of this namespace and this boot, and
 * nobody has it, somebody else has it, or it only waits to be buried. False where that cannot be told.
 * Thread-safe. */
bool rp_incarnation_is_gone(pid_t pid, const struct rp_incarnation *of);

#endif
