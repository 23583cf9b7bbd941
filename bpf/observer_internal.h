/** @file observer_internal.h
 * What the files of the observer share:
 *
 *   observer.c          opening, polling, closing
 *   observer_load.c     programs and maps
 *   observer_records.c  records -> targets
 *   observer_choose.c   which processes
 *   observer_counts.c   what was counted
 */
#ifndef RP_BPF_OBSERVER_INTERNAL_H
#define RP_BPF_OBSERVER_INTERNAL_H

#include "bpf/observer.h"

struct recvpool_bpf;
struct ring_buffer;

#define RP_OBSERVER_BUCKETS 1024u /* power of two */

/** A target and when its mappings are to be looked at again. */
struct rp_observed {
  struct rp_target *target;
  uint64_t scan_ns;     /**< CLOCK_MONOTONIC of the next look */
  unsigned scans;       /**< looks since it started or loaded something: the pauses grow */
  uint64_t scanned_ns;  /**< when the last look began; 0: there was none */
  bool loader_probed;   /**< its dynamic loader tells when it maps something */
  bool loader_told;     /**< it has, since the last look */
  uint64_t lost_at_end; /**< lost events, kept when it ended */
  uint32_t next;        /**< in its bucket, plus one */
  bool listed;          /**< is in the table of running ones */
};

struct rp_observer {
  struct rp_observer_options options;
  struct rp_rights rights;
  struct recvpool_bpf *programs;
  struct ring_buffer *ring;
  uint64_t ring_bytes;
  char cgroup_path[4096]; /**< below the root of the hierarchy */
  struct rp_libraries libraries;
  struct rp_observed *observed;
  size_t count, capacity, running;
  uint32_t buckets[RP_OBSERVER_BUCKETS]; /**< running targets by pid: index plus one */
  uint64_t met, forgotten, records;
  uint64_t looked_ns; /**< when the processes were last looked at */
  bool stopped;
};

/** CLOCK_MONOTONIC. */
uint64_t rp__observer_now_ns(void);

/** Loads and attaches the programs that follow processes, makes the ring. */
rp_status rp__observer_load(struct rp_observer *observer, uint64_t cgroup_id, int cgroup_level, char *message,
                            size_t message_size, char **log);
/** Detaches the programs that follow processes. */
void rp__observer_unfollow(struct rp_observer *observer);
/** Frees programs and maps. */
void rp__observer_unload(struct rp_observer *observer);

/** Running target with that id, or NULL. */
struct rp_observed *rp__observer_find(struct rp_observer *observer, uint32_t pid);
/** Begins a target; NULL without memory. `joined_late`: the process has been running for a while. */
struct rp_observed *rp__observer_begin(struct rp_observer *observer, pid_t pid, uint64_t generation,
                                       uint64_t now_ns, bool joined_late);
/** Ends a running target. `last` is the record that told, which knows what was lost; NULL: the kernel is
 * asked.
 */
void rp__observer_end(struct rp_observer *observer, struct rp_observed *observed, uint64_t now_ns,
                      const struct rp_probe_record *last);
/** Callback of the ring. */
int rp__observer_record(void *context, void *data, size_t size);
/** Looks at the mappings of every target that is due; the earliest time at which the next one is. */
uint64_t rp__observer_scan(struct rp_observer *observer, uint64_t now_ns);
/** Looks whether processes have ended or come by that no record told of. */
void rp__observer_look(struct rp_observer *observer, uint64_t now_ns);

/** Adds the processes that the options name, if they are not observed yet. `first`: they must be there. */
rp_status rp__observer_choose(struct rp_observer *observer, bool first, char *message, size_t message_size);
/** Kernel's id and depth of the cgroup that the options name; keeps its path. */
rp_status rp__observer_cgroup(struct rp_observer *observer, uint64_t *id, int *level, char *message,
                              size_t message_size);

#endif
