/** @file tracker.h
 * The tracker: events in, channels, lifetimes and depths out.
 *
 *   event -> allocation map -> receive buffers -> lifetimes -> steps -> channels -> snapshot
 *
 * It is pure: no CUDA, no file, no thread, no clock. Its owner serialises calls; every function says nothing
 * about threads because none of them may be called for one tracker from two threads at once.
 */
#ifndef RP_POOL_TRACKER_H
#define RP_POOL_TRACKER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "recvpool/event.h"
#include "recvpool/status.h"

/** Which way the data of a channel flows through the pipeline. */
enum rp_direction {
  RP_DIRECTION_UNKNOWN = 0,
  RP_DIRECTION_ACTIVATION = 1, /**< from the stage before: forward */
  RP_DIRECTION_GRADIENT = 2    /**< from the stage after: backward */
};

/** How the framework obtains its receive buffers. */
enum rp_allocation_style {
  RP_STYLE_UNKNOWN = 0,      /**< fewer than two steps seen */
  RP_STYLE_PREALLOCATED = 1, /**< the same addresses in every step */
  RP_STYLE_JUST_IN_TIME = 2  /**< allocated for the receive and freed after its last use */
};

/** What shows that a lifetime is over (design: evidence of release, strongest first). */
enum rp_release_evidence {
  RP_RELEASE_NONE = 0,             /**< still open */
  RP_RELEASE_LEARNED_ACCESSES = 1, /**< every access learned in earlier steps has been launched */
  RP_RELEASE_FREED = 2,            /**< the allocation was freed */
  RP_RELEASE_ANSWERING_SEND = 3,   /**< the send that answers the receive was posted */
  RP_RELEASE_RECEIVED_AGAIN = 4,   /**< the next receive into the buffer was posted */
  RP_RELEASE_STEP_END = 5          /**< the process ended or the pattern broke */
};

/** What the last access was. */
enum rp_access_kind {
  RP_ACCESS_NONE = 0,
  RP_ACCESS_KERNEL = 1,
  RP_ACCESS_COPY = 2,
  RP_ACCESS_SEND = 3,
  RP_ACCESS_GRAPH = 4
};

/** Why a pool class is or is not poolable. One sentence each: rp_reason_text. */
enum rp_reason {
  RP_REASON_POOLABLE = 0,
  RP_REASON_TOO_FEW_STEPS,      /**< fewer than two complete steps with the same pattern */
  RP_REASON_JUST_IN_TIME,       /**< nothing is held that is not in use */
  RP_REASON_UNBOUNDED_DEPTH,    /**< D = N */
  RP_REASON_WITHIN_SLACK,       /**< D < N, but D + slack >= N */
  RP_REASON_UNSTABLE_PATTERN,   /**< N, D or the accesses differ between steps */
  RP_REASON_SHARED_ALLOCATION,  /**< the buffers share allocations with others */
  RP_REASON_NO_ACCESS_EVIDENCE, /**< no access of a received buffer was seen */
  RP_REASON_GRAPH_CAPTURED,     /**< receives or accesses were captured into graphs */
  RP_REASON_COUNT
};

/** One lifetime. Times are CLOCK_MONOTONIC nanoseconds, seq is the host order of events; 0 where not seen. */
struct rp_lifetime {
  uint64_t step;       /**< 0-based */
  uint32_t microbatch; /**< 0-based within its channel and step */
  uint32_t accesses;   /**< launches, copies and sends that named the buffer */
  uint64_t address;
  uint64_t posted_ns, first_access_ns, last_access_ns, released_ns;
  uint64_t posted_seq, first_access_seq, last_access_seq, released_seq;
  uint64_t post_stream;
  uint64_t last_access_stream;
  uint64_t last_access_function; /**< function id of the last access; 0 if it was no kernel */
  uint64_t
      label; /**< id of the innermost annotated range (NVTX) around the post; 0 if none: never evidence */
  enum rp_access_kind last_access_kind;
  enum rp_release_evidence release_evidence;
};

/** What the tracker knows of one channel. */
struct rp_channel {
  uint64_t comm;
  int32_t peer;
  int32_t device;
  enum rp_direction direction;
  uint32_t stage_ordinal;        /**< which of the stages of this process, in the order found; 0-based */
  uint64_t buffer_bytes;         /**< bytes of one receive */
  uint32_t buffers;              /**< N: receives of the channel in one step */
  uint32_t depth;                /**< D of the last complete step; 0 before there is one */
  uint32_t depth_min, depth_max; /**< over all complete steps */
  uint32_t accesses_most;        /**< of one message, over all complete steps but the first */
  uint32_t slots;                /**< K = min(N, D + slack) */
  uint64_t transfers;            /**< receives of its complete steps */
  uint64_t bytes_transferred;
  uint64_t steps_complete;
  enum rp_allocation_style style;
  enum rp_reason reason;         /**< the decision */
  uint64_t held_bytes;           /**< allocated for its receive buffers (just in time: peak at once) */
  uint64_t needed_bytes;         /**< D buffers */
  uint64_t would_save_bytes;     /**< N - K buffers where poolable, else 0 */
  uint64_t unreachable_bytes;    /**< bytes in allocations shared with others */
  bool estimate;                 /**< release known from answers only: the numbers are an estimate */
  struct rp_lifetime *lifetimes; /**< of the last complete step, by microbatch; owned by the snapshot */
  size_t lifetime_count;
};

/** All a report needs from the tracker, copied: stays valid whatever the tracker does next. */
struct rp_snapshot {
  struct rp_channel *channels;
  size_t channel_count;
  uint64_t steps_complete;
  uint64_t events[RP_EVENT_KIND_COUNT];       /**< seen, by kind */
  uint64_t events_by_source[RP_SOURCE_COUNT]; /**< seen, by source */
  uint64_t events_ignored;                    /**< below the size threshold, or of no receive buffer */
  uint64_t lifetimes_dropped;                 /**< history that did not fit the stated bounds */
  uint64_t allocations_dropped;
  uint64_t companions_dropped;
  uint64_t labels_dropped;
  uint64_t tracker_bytes;                              /**< host memory the tracker holds */
  uint64_t held_bytes, needed_bytes, would_save_bytes; /**< sums over the channels */
};

/** Told when an address range becomes, or stops being, a receive buffer; the agent filters launches by it. */
struct rp_tracker_sink {
  void *context;
  void (*range_added)(void *context, uint64_t begin, uint64_t end);
  void (*range_removed)(void *context, uint64_t begin, uint64_t end);
};

/** Options; zero fields take the default in brackets. */
struct rp_tracker_options {
  uint64_t min_bytes;   /**< smaller receives are ignored [65536; 1 = none is] */
  uint32_t slack;       /**< slots beyond D, used as given (0 is a value) */
  uint32_t max_buffers; /**< receive buffers tracked at once [65536] */
  uint32_t max_history; /**< receives kept while no step is known yet [16384] */
  int32_t world_size;   /**< ranks of the job; 0 = not known */
};

struct rp_tracker;

/** New tracker, or NULL without memory. `options` and `sink` may be NULL and are copied. */
struct rp_tracker *rp_tracker_create(const struct rp_tracker_options *options,
                                     const struct rp_tracker_sink *sink);
/** Frees it; NULL is allowed. The sink is not called. */
void rp_tracker_destroy(struct rp_tracker *tracker);

/** Takes one event, in `seq` order. RP_ERROR_LIMIT or RP_ERROR_NO_MEMORY: the event was counted and dropped
 * and the tracker stays usable. RP_ERROR_VERSION: not an event record this build knows. */
rp_status rp_tracker_event(struct rp_tracker *tracker, const struct rp_event *event);

/** Forgets everything but allocations, labels and what was counted, as if the next event were the first: for
 * an observer that joined in the middle of a step and has found the beginning of one. */
void rp_tracker_restart(struct rp_tracker *tracker);

/** For an observer that joined in the middle of a step, where what is exchanged first with a peer does not
 * tell its side: `rank` is the process's own, and activations are assumed to come from the rank below it,
 * gradients from the rank above. Peers that are no neighbours are told by the first exchange as ever. */
void rp_tracker_assume_rank(struct rp_tracker *tracker, int32_t rank);

/** The process ends at `time_ns`: what is open is closed, so that the last step counts as complete if it is.
 * Events after it are ignored. */
void rp_tracker_finish(struct rp_tracker *tracker, uint64_t time_ns);

/** Device allocation that contains `address`: begin and bytes (may be NULL), or RP_ERROR_NOT_FOUND. */
rp_status rp_tracker_allocation_at(const struct rp_tracker *tracker, uint64_t address, uint64_t *begin,
                                   uint64_t *bytes);

/** Copies out what is known now. Release with rp_snapshot_fini. RP_ERROR_NO_MEMORY leaves `out` zeroed. */
rp_status rp_tracker_snapshot(const struct rp_tracker *tracker, struct rp_snapshot *out);
/** Frees what the snapshot owns and zeroes it; a zeroed one is allowed. */
void rp_snapshot_fini(struct rp_snapshot *snapshot);

/** Fixed lower-case word for JSON ("activation", "preallocated", "unbounded_depth" …), never NULL. */
const char *rp_direction_name(enum rp_direction direction);
const char *rp_style_name(enum rp_allocation_style style);
const char *rp_release_evidence_name(enum rp_release_evidence evidence);
const char *rp_access_kind_name(enum rp_access_kind kind);
const char *rp_reason_name(enum rp_reason reason);
/** One sentence a user can act on, never NULL. */
const char *rp_reason_text(enum rp_reason reason);
/** Words for the counters of rp_snapshot. */
const char *rp_event_kind_name(enum rp_event_kind kind);
const char *rp_event_source_name(enum rp_event_source source);

#endif
