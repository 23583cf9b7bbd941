/** @file attach.h
 * What the files of `recvpool attach` share. Nothing here is thread-safe.
 *
 *   cmd_attach.c           options and the loop
 *   cmd_attach_identity.c  who a process is, and which libraries it has
 *   cmd_attach_agent.c     the report of an agent in the process, and whether it shares memory
 *   cmd_attach_check.c     what an agent in the process says, against what the probes saw
 *   cmd_attach_report.c    a target -> its report
 *   cmd_attach_live.c      what is shown meanwhile
 */
#ifndef RP_AGENT_ATTACH_H
#define RP_AGENT_ATTACH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "agent/command.h"
#include "agent/report.h"
#include "bpf/observer.h"

/** Processes that can be named. */
#define RP_ATTACH_PIDS 256

struct rp_attach_arguments {
  struct rp_observer_options observer;
  pid_t pids[RP_ATTACH_PIDS];
  bool json;
  double duration_seconds; /**< 0: until the processes end, or Ctrl-C */
  double interval_seconds; /**< of what is shown; 0: by what stdout is */
  char report_dir[4096];   /**< "": no files are written */
  const char *trace;       /**< file for trace events; NULL: none */
};

/** What is kept beside a target: read while the process lives. */
struct rp_attach_process {
  struct rp_process_info info;
  int root;             /**< its root folder, -1 where it cannot be opened */
  char agent_dir[4096]; /**< where an agent in it writes its report */
  uint64_t compared, differences,
      compared_ns;  /**< cross-checks made, those that failed, report of the last */
  json_t *claim;    /**< the agent's report, while it is being checked; or NULL */
  uint64_t read_ns; /**< when that was read */
  bool checked_after_end, transfers_compared;
  bool doubtful;        /**< the last comparison of memory failed */
  char difference[256]; /**< the last of them in words */
  json_t *inside;       /**< what the agent's last report says of enforcing; NULL: none is known */
  struct stat inside_info;
};

/** CLOCK_MONOTONIC, which the probes tell the time by. */
uint64_t rp__attach_now_ns(void);
/** Reads who the target's process is. Belongs to the target from now on (rp_attach_forget). NULL without
 * memory. */
struct rp_attach_process *rp_attach_identify(const struct rp_target *target);
/** Frees it; NULL is allowed. */
void rp_attach_forget(struct rp_attach_process *process);
/** Reads what agents in the observed processes say of sharing memory, where that has changed. */
void rp_attach_look_inside(const struct rp_observer *observer);
/** Whether an agent shares memory in the target's process, or was asked to and is about to: by its report, or
 * else by what it made for what it reserved. Then: the memory that it holds, and what its buffers would hold
 * each for itself. */
bool rp_attach_shares(const struct rp_target *target, uint64_t *physical_bytes, uint64_t *buffer_bytes);
/** Adds to our report of the target what there is to say of an agent in it. */
void rp_attach_add_inside(const struct rp_target *target, json_t *report);
/** The agent's report of the program that the target is, begun since it is observed; NULL if there is none.
 * Owned by the caller. */
json_t *rp__attach_read_claim(const struct rp_target *target);
/** Reads the reports of agents in the observed processes, takes what the probes have seen until then, and
 * holds the two against each other. Of a stopped observer (`stopped`) only processes that have ended can be
 * checked: of others it has not seen all. */
void rp_attach_check(struct rp_observer *observer, bool stopped);
/** Fills in paths and, where file names tell them, versions of what the target has mapped. */
void rp_attach_versions(const struct rp_libraries *libraries, const struct rp_target *target,
                        struct rp_versions *out);

/** Report of one target as JSON, NULL without memory. `state` is "running" or "finished". Owned by the
 * caller. */
json_t *rp_attach_report(const struct rp_observer *observer, const struct rp_target *target,
                         const struct rp_attach_arguments *arguments);
/** The reports of all targets that have anything to say, as a set (release with rp_read_fini). */
rp_status rp_attach_collect(const struct rp_observer *observer, const struct rp_attach_arguments *arguments,
                            struct rp_read_set *set);
/** Processes that rp_attach_write writes a report of. */
size_t rp_attach_worth_writing(const struct rp_observer *observer);
/** Writes a report for each of them into the folder of --report-dir, atomically. RP_ERROR_IO with errno set.
 */
rp_status rp_attach_write(const struct rp_observer *observer, const struct rp_attach_arguments *arguments);
/** What the observer did, for the JSON document; NULL without memory. */
json_t *rp_attach_observer_json(const struct rp_observer *observer);

/** Shows how things stand: on a terminal the table of all processes in place of the one before, else one line
 * for each process. */
void rp_attach_show(const struct rp_observer *observer, const struct rp_attach_arguments *arguments,
                    bool terminal, double seconds);
/** One line for a call that returned. */
void rp_attach_show_call(const struct rp_probe_record *record);

#endif
