/** @file cmd_run_verdict.h
 * Private to `recvpool run`: what the reports of the job that has ended say.
 */
#ifndef RP_AGENT_CMD_RUN_VERDICT_H
#define RP_AGENT_CMD_RUN_VERDICT_H

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

/** Violations in the reports of one run. */
struct rp__verdict {
  size_t processes;          /**< that have some */
  uint64_t violations;       /**< of all of them */
  char path[PATH_MAX + 256]; /**< report of one of them, "" if there is none */
};

/** Reads the reports in `dir` that belong to `run` and whose processes attached at or after `since_ns`
 * (CLOCK_MONOTONIC). Whatever else lies there is left alone. */
void rp__run_verdict(const char *dir, const char *run, uint64_t since_ns, struct rp__verdict *out);

#endif
