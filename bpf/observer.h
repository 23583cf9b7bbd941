/** @file observer.h
 * Observing processes from outside by uprobes:
 *
 *   probe in a library -> ring buffer -> record -> target (one per process) -> tracker
 *
 * One thread opens, polls and closes an observer; none of this is thread-safe.
 */
#ifndef RP_BPF_OBSERVER_H
#define RP_BPF_OBSERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "bpf/libraries.h"
#include "bpf/links.h"
#include "bpf/rights.h"
#include "bpf/target.h"

/** Finished processes that are kept for the report; older ones make room and are counted. */
#define RP_OBSERVER_FINISHED 1024

struct rp_observer;

/** Which processes, and how. */
struct rp_observer_options {
  const pid_t *pids; /**< these and their descendants … */
  size_t pid_count;
  const char *name;   /**< … or those whose main thread has this name, and what they fork … */
  const char *cgroup; /**< … or those in this folder of the cgroup2 hierarchy or below … */
  bool all;           /**< … or every one */
  uint64_t min_bytes;
  uint32_t slack;
  uint64_t ring_bytes;     /**< rounded up to a power of two of at least one page; 0: 16 MiB */
  uint64_t keep_ns;        /**< how long files that nobody has mapped keep their probes; 0: 30 s */
  enum rp_link_kind links; /**< RP_LINK_AUTO: what the kernel has */
  bool launches;           /**< follow what kernel launches and copies name */
  bool calls;              /**< `call` is told of every call that returned */
  /** A process is observed from now on; its `user` may be set. May be NULL. */
  void (*started)(void *context, struct rp_target *target);
  /** A target is about to be freed. May be NULL. */
  void (*freed)(void *context, struct rp_target *target);
  /** A call returned: record->status, its arguments in record->event.companion. */
  void (*call)(void *context, const struct rp_probe_record *record);
  void *context;
};

/** What was counted for one function, over all CPUs. */
struct rp_observer_count {
  uint64_t calls, returns, failed, dropped;
  int64_t last_failure;
};

/** Loads the programs and attaches to everything that the chosen processes have mapped. RP_ERROR_UNAVAILABLE:
 * a right, or something of the kernel, is missing; RP_ERROR_NOT_FOUND: a process or cgroup that was named is
 * not there; RP_ERROR_INVALID; RP_ERROR_NO_MEMORY. `message` says in one sentence what and why, and `log`
 * (may be NULL) gets the kernel's own words where it refused a program: allocated, to be freed by the caller.
 */
rp_status rp_observer_open(const struct rp_observer_options *options, struct rp_observer **out, char *message,
                           size_t message_size, char **log);
/** Takes what has been recorded, waiting up to `timeout_ms` for something to happen, and looks after
 * processes and libraries that came or went. Returns false once no process is left to observe and none can
 * come (only where processes were named by id). */
bool rp_observer_poll(struct rp_observer *observer, int timeout_ms);
/** Detaches everything and takes what is left in the buffer. Targets whose process goes on stay unfinished:
 * what is open there is not over. Idempotent. */
void rp_observer_stop(struct rp_observer *observer);
/** Stops and frees; NULL is allowed. */
void rp_observer_close(struct rp_observer *observer);

/** Targets, in the order in which they were met; NULL past the end. */
struct rp_target *rp_observer_target(const struct rp_observer *observer, size_t index);
/** Processes that were ever observed. */
uint64_t rp_observer_met(const struct rp_observer *observer);
/** Finished targets that had to make room. */
uint64_t rp_observer_forgotten(const struct rp_observer *observer);
/** Files that were looked at. */
const struct rp_libraries *rp_observer_libraries(const struct rp_observer *observer);
/** Link kind in use. */
enum rp_link_kind rp_observer_links(const struct rp_observer *observer);
/** Number of probes in place. */
size_t rp_observer_probes(const struct rp_observer *observer);
/** Counts of a function (a row of the table, or RP_PROBE_FUNCTION_PROCESS for records about processes). */
void rp_observer_counts(const struct rp_observer *observer, size_t function, struct rp_observer_count *out);
/** Records that found no room in the buffer, by the CPU that made them; 0 past the last CPU. `cpus` is their
 * number. */
uint64_t rp_observer_dropped_on(const struct rp_observer *observer, size_t cpu, size_t *cpus);
/** Of one target: events that were lost on the way to its tracker. */
uint64_t rp_observer_lost(const struct rp_observer *observer, const struct rp_target *target);
/** Records taken from the buffer so far, and its size. */
uint64_t rp_observer_records(const struct rp_observer *observer);
uint64_t rp_observer_ring_bytes(const struct rp_observer *observer);

#endif
