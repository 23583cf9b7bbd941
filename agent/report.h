/** @file report.h
 * The report: what one process tells about itself, as JSON (dashboards/schema/report.schema.json). The writer
 * turns the structures below into one file, atomically; the structures are filled by the injected library.
 */
#ifndef RP_AGENT_REPORT_H
#define RP_AGENT_REPORT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "agent/config.h"
#include "agent/incarnation.h"
#include "cupti/device_memory.h"
#include "pool/guard.h"
#include "pool/tracker.h"
#include "recvpool/status.h"

#define RP_REPORT_SCHEMA "recvpool.report"
#define RP_REPORT_SCHEMA_VERSION "1.3"
#define RP_EVIDENCE_SOURCES 5
#define RP_ENFORCE_DEVICES 16

struct rp_process_info {
  char host[256];
  pid_t pid;
  char command[4096]; /**< arguments joined by blanks, cut to size; bytes that are not UTF-8 are escaped by
                         the writer */
  int rank, world_size, local_rank; /**< -1 where not known */
  char rank_source[32];             /**< "torchrun", "slurm", "mpi" or "" */
  double start_time_unix_seconds;   /**< wall clock at attach */
  uint64_t start_monotonic_ns;
  struct rp_incarnation incarnation; /**< what tells whether it is still there */
};

struct rp_versions {
  int cuda_driver, cuda_runtime, cupti, nccl; /**< as the libraries number themselves; 0 where not found */
  char cuda_driver_path[512], cuda_runtime_path[512], cupti_path[512],
      nccl_path[512]; /**< "" where not found */
};

/** One source of evidence (design.md §5). */
struct rp_evidence {
  const char *name; /**< "interposer", "cupti", "nccl_profiler", "nvtx", "uprobes" */
  bool active;
  char reason[256]; /**< why it is missing, or what limits it; "" if nothing does */
};

struct rp_device_info {
  int ordinal;
  char name[256];
  uint64_t total_bytes; /**< 0 where not known */
};

struct rp_comm_info {
  uint64_t comm;    /**< handle in the process, as in rp_channel */
  uint64_t id_hash; /**< same on every rank of the communicator; 0 where not known */
  int rank, ranks;  /**< -1 where not known */
};

struct rp_agent_cost {
  uint64_t agent_bytes;      /**< host memory the agent holds, tracker included */
  uint64_t callbacks;        /**< CUPTI callbacks and interposed calls taken */
  uint64_t callback_hits;    /**< of these, launches that named a receive buffer */
  uint64_t callback_time_ns; /**< spent in them; extrapolated from the sampled ones */
  uint64_t callbacks_timed;  /**< how many were timed */
  uint64_t events_lost;      /**< events the agent could not hand to the tracker */
};

/** One device's guard, its pool and the memory below it. */
struct rp_enforce_device {
  int ordinal;
  struct rp_guard_report guard;        /**< zeroed where there is no guard; owns its arrays */
  struct rp_device_memory_info memory; /**< zeroed where no memory was managed (shadow, refused) */
  /** Why this device's memory is left to the driver, as "word: sentence" (the word of [a-z_]); "" = it is
   * not. */
  char refused[512];
};

/** What is waited for before memory is used again: events recorded right behind its uses, or all that a
 * stream has been given. */
struct rp_milestone_counts {
  uint64_t placed;        /**< events recorded (in observe mode: that would have been) */
  uint64_t failed;        /**< the driver would not, or too many were being recorded at once */
  uint64_t waits;         /**< of streams and of the host, for such an event */
  uint64_t waits_for_all; /**< for all of a stream or context, as there was no event */
};

/** What enforcing does, or in observe mode would do. A device is listed once something was asked of it. */
struct rp_enforce_report {
  bool shadow;       /**< nothing is really shared: what enforcing would have done */
  char refused[512]; /**< why the whole process enforces nothing though asked to; as above */
  struct rp_milestone_counts milestones;
  struct rp_enforce_device devices[RP_ENFORCE_DEVICES];
  size_t device_count;
};

/** The user's wish, while the job ran, to go back to one allocation per buffer. CLOCK_MONOTONIC, 0 = not
 * (yet).
 */
struct rp_switched_off {
  uint64_t seen_ns;   /**< the file was found */
  uint64_t effect_ns; /**< no buffer shares memory any more */
  char file[512];     /**< name of the file in the report folder */
};

struct rp_report {
  const char *mode;           /**< "observe", "enforce", "off" */
  const char *state;          /**< "running" or "finished" */
  const char *passive_reason; /**< why the agent went passive, "" if it has not */
  struct rp_process_info process;
  struct rp_versions versions;
  struct rp_evidence evidence[RP_EVIDENCE_SOURCES];
  size_t evidence_count;
  const struct rp_device_info *devices;
  size_t device_count;
  const struct rp_comm_info *comms;
  size_t comm_count;
  struct rp_snapshot snapshot;
  const struct rp_config *config;          /**< the values in force; NULL: the defaults */
  const struct rp_enforce_report *enforce; /**< NULL: not known */
  struct rp_switched_off switched_off;
  struct rp_agent_cost cost;
  bool refusals_seen;            /**< the next two are known */
  uint64_t allocations_refused;  /**< that the device had no memory for */
  uint64_t refused_bytes;        /**< the last of them */
  uint64_t written_monotonic_ns; /**< what it tells was read after that */
  double written_unix_seconds;
  const char *const *warnings; /**< everything worth telling a reader, each one line */
  size_t warning_count;
  /** Name of a function id of the tracker ("" if unknown); may be NULL. */
  const char *(*function_name)(void *context, uint64_t function);
  void *function_name_context;
};

/** The whole report as JSON; NULL without memory. Owned by the caller. Thread-safe for distinct reports. */
json_t *rp_report_to_json(const struct rp_report *report);

/** File name of a process's report: HOST-PID-STARTNS.json with anything but [A-Za-z0-9._-] in HOST replaced.
 */
void rp_report_file_name(const struct rp_process_info *process, char *out, size_t out_size);

/** Writes `report` to DIR/NAME: a temporary file in DIR (created if missing, mode 0755), every byte checked,
 * then rename. RP_ERROR_IO with errno set and the old file untouched when anything fails; the temporary file
 * is removed. */
rp_status rp_report_write(const struct rp_report *report, const char *dir, const char *name);
/** The same for a report that is JSON already. */
rp_status rp_report_write_document(const json_t *report, const char *dir, const char *name);

#endif
