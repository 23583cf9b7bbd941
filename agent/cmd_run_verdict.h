/** @file cmd_run_verdict.h
 * Private to `recvpool run`: what the reports of the job that has ended say.
 */
#ifndef RP_AGENT_CMD_RUN_VERDICT_H
#define RP_AGENT_CMD_RUN_VERDICT_H

#include <stddef.h>
#include <stdint.h>

/** Reports named; more are only counted. */
#define RP_VERDICT_NAMED 8

/** What the reports of one run say together. */
struct rp__verdict {
  size_t processes;              /**< of the run, that have a report */
  size_t violating;              /**< of these, with violations */
  uint64_t violations;           /**< of all of them */
  char *named[RP_VERDICT_NAMED]; /**< files of the first ones with violations, by name */
  size_t named_count;
  size_t unfinished;                  /**< processes without a final report */
  uint64_t steps_least, steps_most;   /**< complete in those, at their last one */
  double first_seconds, last_seconds; /**< when those were written */
};

/** Reads the reports in `dir` that belong to `run` and whose processes attached at or after `since_ns`
 * (CLOCK_MONOTONIC). Whatever else lies there is left alone. Freed with rp__run_verdict_fini. */
void rp__run_verdict(const char *dir, const char *run, uint64_t since_ns, struct rp__verdict *out);
void rp__run_verdict_fini(struct rp__verdict *verdict);

#endif
