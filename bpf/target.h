/** @file target.h
 * One observed process: its records go in, its tracker and what else a report needs come out. The owner
 * serialises.
 */
#ifndef RP_BPF_TARGET_H
#define RP_BPF_TARGET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bpf/probe.h"
#include "bpf/process.h"
#include "pool/address_map.h"
#include "pool/tracker.h"

/** A communicator of the process. */
struct rp_target_comm {
  uint64_t comm, id_hash;
  int32_t rank, ranks; /**< -1 where not known */
  uint32_t splits;     /**< how often it was split */
  bool ended;
};

/** What happened to physical memory that the process made by handle. */
struct rp_target_physical {
  uint64_t created_bytes, released_bytes, live_bytes, peak_bytes;
  uint64_t unknown_releases; /**< of handles made before observation began */
};

/** Changes of the agent's own memory that are remembered, newest last. */
#define RP_TARGET_MOMENTS 256

/** What the agent inside the process held at one time: physical memory, and address space. */
struct rp_target_moment {
  uint64_t time_ns, physical_bytes, reserved_bytes;
};

/** The agent inside the process, as seen from outside: what it does with device memory is told by the
 * caller's address. */
struct rp_target_agent {
  uint64_t begin, end; /**< its code; 0 where there is none */
  uint64_t physical_bytes, physical_peak_bytes, reserved_bytes, reserved_peak_bytes;
  struct rp_target_moment moments[RP_TARGET_MOMENTS];
  size_t moment_count; /**< all that ever were */
};

/** Transfers of groups that are held until these end; more are taken to happen. */
#define RP_TARGET_HELD 65536

/** Files with probes that one process is remembered to have mapped. */
#define RP_TARGET_LIBRARIES 32

struct rp_target {
  struct rp_process process;
  uint64_t generation;           /**< as records carry it */
  uint64_t started_ns, ended_ns; /**< CLOCK_MONOTONIC; ended 0 while it runs */
  struct rp_tracker *tracker;
  struct rp_address_map ranges;   /**< receive buffers, as the tracker says */
  struct rp_address_map handles;  /**< physical memory: [handle, handle + 1), value = bytes << 1 | agent's */
  struct rp_address_map reserved; /**< address space of the agent: [address, address + bytes) */
  struct rp_target_physical physical;
  struct rp_target_agent agent;
  struct rp_target_comm *comms;
  size_t comm_count, comm_capacity;
  uint64_t sequence, sends, sent_bytes, receives, received_bytes;
  uint64_t failed_sends, failed_receives; /**< calls that failed, themselves or by the end of their group */
  uint64_t open_sends, open_receives;     /**< in a group whose end was not seen */
  bool in_flight;                         /**< it ended in the middle of a transfer's call, or may have */
  struct rp_event *held;                  /**< transfers whose group has not ended, by time of their call */
  size_t held_count, held_capacity;
  uint64_t launches_seen;  /**< launches that named a receive buffer */
  uint64_t events_refused; /**< by the tracker */
  uint64_t words_lost;
  uint32_t library[RP_TARGET_LIBRARIES]; /**< indices, see libraries.h */
  size_t library_count;
  size_t late_library; /**< index plus one of a library that was there before its probes were; 0: none */
  bool launches;       /**< launches are observed */
  bool joined_late;    /**< set by the owner: the process ran before it was observed */
  uint64_t last_call_ns, longest_pause_ns; /**< between NCCL's calls: the longest lies between two steps */
  uint64_t longest_since_ns;               /**< pause since observation began anew after that one */
  unsigned stalls;                         /**< how often that one turned out to be a stall */
  bool out_of_memory;                      /**< something had to be left out */
  bool unreadable; /**< set by the owner: there is no right to look at what it has mapped */
  void *user;      /**< the owner's */
};

/** New target, NULL without memory. `options` are the tracker's. */
struct rp_target *rp_target_create(const struct rp_process *process, uint64_t generation, uint64_t now_ns,
                                   const struct rp_tracker_options *options, bool launches);
/** Frees it; NULL is allowed. */
void rp_target_destroy(struct rp_target *target);
/** Takes a record that carries an event, in the order of the ring. */
void rp_target_take(struct rp_target *target, const struct rp_probe_record *record);
/** The process has mapped a file with functions of the table; false where that was known. */
bool rp_target_map_library(struct rp_target *target, size_t index);
/** Observation ends: transfers whose group has not ended are not counted. */
void rp_target_settle(struct rp_target *target);
/** The process ended, or observation did: what is open is closed. */
void rp_target_finish(struct rp_target *target, uint64_t now_ns);

#endif
