/** @file signals_off.h
 * Writing on the program's own threads without the signals that a failed write sends: to the program they
 * would be deadly, here they have to stay errors of write.
 */
#ifndef RP_AGENT_SIGNALS_OFF_H
#define RP_AGENT_SIGNALS_OFF_H

#include <stdbool.h>
#include <signal.h>

/** The signal mask as it was. */
struct rp_signals_off {
  sigset_t set, before;
  bool pipe_was_pending, size_was_pending;
};

/** Blocks SIGPIPE and SIGXFSZ in the calling thread. Keeps errno. */
void rp_signals_off(struct rp_signals_off *guard);
/** Takes back what the writes in between raised, and unblocks. Keeps errno. */
void rp_signals_back(const struct rp_signals_off *guard);

#endif
