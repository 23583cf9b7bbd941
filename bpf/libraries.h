/** @file libraries.h
 * Every file that an observed process runs code from: read once, probed if it defines functions of the table,
 * and remembered either way. One file is probed once, however many processes map it and by whatever path. A
 * file that no observed process has mapped for a while is given up, its probes and then its place.
 */
#ifndef RP_BPF_LIBRARIES_H
#define RP_BPF_LIBRARIES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#include "bpf/detacher.h"
#include "bpf/links.h"
#include "bpf/mappings.h"
#include "bpf/process.h"
#include "bpf/rights.h"
#include "bpf/sites.h"

/** Files with probes at once; those that nobody has mapped make room, and what is more is refused with that
 * reason, until there is room. */
#define RP_LIBRARIES_PROBED 1024
/** So long a file keeps its probes when nobody has it mapped any more: whoever starts next has them from its
 * first call on. */
#define RP_LIBRARIES_KEEP_NS 30000000000u

enum rp_library_state {
  RP_LIBRARY_PLAIN = 0, /**< defines none of the functions */
  RP_LIBRARY_PROBED = 1,
  RP_LIBRARY_ALIAS = 2,   /**< the same file as another one, by another path */
  RP_LIBRARY_REFUSED = 3, /**< see reason */
  RP_LIBRARY_RELEASED = 4 /**< was probed; nobody has it mapped any more */
};

/** One file. */
struct rp_library {
  uint64_t device, inode; /**< as the process's maps show it */
  uint64_t size_bytes;
  char *path; /**< as the first process that had it sees it */
  enum rp_library_state state;
  char reason[256]; /**< why it was refused, or what is left out; "" if nothing is */
  struct rp_sites sites;
  struct rp_links links;
  uint64_t probed_ns;      /**< CLOCK_MONOTONIC: since then its probes are in place */
  unsigned layers;         /**< bits of enum rp_probe_layer that it belongs to */
  unsigned tries;          /**< how often it was looked at */
  int watch;               /**< tells when the file is written to; -1: nothing does */
  uint64_t looked_ns;      /**< when it was last made sure that this is still the file; CLOCK_MONOTONIC */
  struct timespec changed; /**< of the file, as it was then */
  uint64_t used_ns;        /**< when it was last seen to be mapped; CLOCK_MONOTONIC */
  size_t alias_of;         /**< of an alias: the other one */
  bool kept;               /**< is not given up */
  bool detaching;          /**< its probes are being taken out: it is left alone until they are */
  bool no_room;            /**< refused for that reason only */
  bool referenced;         /**< set by the owner before rp_libraries_tidy: somebody has its index */
  bool vacant;             /**< place for another file; all else is empty */
  uint32_t next;           /**< in its bucket, plus one */
};

struct rp_libraries {
  struct rp_library *files;
  size_t count, capacity, probed;
  int watches; /**< inotify descriptor plus one; 0: there is none */
  uint32_t *buckets;
  struct rp_link_request request; /**< kind, programs and launches are used */
  const struct rp_rights *rights;
  size_t probed_most; /**< RP_LIBRARIES_PROBED */
  uint64_t keep_ns;   /**< RP_LIBRARIES_KEEP_NS */
  uint64_t seen_ns;   /**< of the last rp_libraries_tidy */
  uint64_t released;  /**< how often one was given up */
  size_t vacant;
  bool deferred;                    /**< a scan left out a file whose probes are being taken out */
  struct rp_detacher *detacher;     /**< NULL until one is given up */
  bool avoid_returns_under_seccomp; /**< this kernel kills filtered processes at a probed return */
  uint64_t attach_failures;
};

/** Prepares an empty set. RP_ERROR_NO_MEMORY. */
rp_status rp_libraries_init(struct rp_libraries *set, const struct rp_link_request *request,
                            const struct rp_rights *rights);
/** Detaches everything and frees it. A zeroed one is allowed. */
void rp_libraries_fini(struct rp_libraries *set);
/** The code of a file of one name, beside what a scan is for. */
struct rp_scan_range {
  const char *name;    /**< without folder */
  uint64_t begin, end; /**< 0 if the process has not mapped it */
};

/** Looks at what the process has mapped now and probes what is new. `taken` (may be NULL) is told the index
 * of every file with functions of the table; `range` (may be NULL) is filled in. RP_ERROR_NOT_FOUND: the
 * process is gone; RP_ERROR_UNAVAILABLE: no right to look at it. */
rp_status rp_libraries_scan(struct rp_libraries *set, const struct rp_process *process,
                            void (*taken)(void *context, size_t index), void *context,
                            struct rp_scan_range *range);
/** Gives up what nobody has mapped any more. Every observed process has been looked at since `seen_ns`
 * (CLOCK_MONOTONIC; 0: that is not known, and nothing is given up); `now_ns` is the time. A place is only
 * left to another file where `referenced` is not set. Takes no time for the probes: they go meanwhile. */
void rp_libraries_tidy(struct rp_libraries *set, uint64_t now_ns, uint64_t seen_ns);
/** Waits until all probes that were given up are out. */
void rp_libraries_settle(struct rp_libraries *set);
/** Takes the probes out of files that were written to: what is at their places now is other code, in every
 * process that maps it from now on. The next scan looks at them anew. */
void rp_libraries_take_changes(struct rp_libraries *set);
/** Two numbers turned out to be one file: detaches `second`, if the files agree. */
void rp_libraries_join(struct rp_libraries *set, size_t first, size_t second);

#endif
