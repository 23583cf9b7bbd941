/** @file cmd_report_digest.h
 * Private to `recvpool report`: what is kept of a report. Sums and text for the tables, so that merging many
 * reports takes about a kilobyte each, whatever they hold.
 */
#ifndef RP_AGENT_CMD_REPORT_DIGEST_H
#define RP_AGENT_CMD_REPORT_DIGEST_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "agent/command.h"
#include "agent/report_input.h"

/** What channels say together, for the conclusion. */
struct rp__summary {
  size_t channels, just_in_time, unbounded, too_few, other;
  uint64_t held_bytes, saved_bytes, small_receives;
  uint64_t allocations_refused, refused_bytes; /**< the device had no memory; the largest of the last ones */
  uint64_t whole_saved_bytes; /**< with each slot rounded up to what the device gives at a time */
  uint64_t piece_bytes;       /**< which is that, as measured; 0 = as assumed */
  uint64_t unreachable_bytes; /**< of buffers that would be pooled, but lie in allocations with other data */
  uint64_t undecided_bytes;   /**< held of those with too few steps; part of held_bytes */
  size_t unseen;              /**< channels whose buffers nobody was seen to use */
  size_t unsteady;            /**< channels with more in use at once in one step than another had buffers */
  uint32_t reasons;           /**< decisions that occur: bits, by enum rp_reason */
  bool activations_unbounded, gradients_unbounded, estimate;
  bool outside; /**< some of it was seen by attach, which is not enough for a plan */
};

/** What enforcing did. */
struct rp__enforced {
  size_t processes;  /**< that were asked to enforce */
  size_t bystanders; /**< of these, with no receives and no rank, as a launcher */
  size_t sharing;    /**< of these, with memory that is or was shared */
  size_t untold;     /**< of these, of which only attach tells, by sums: the agent's own report is missing */
  size_t switched_off; /**< of these, told to stop sharing, or never to begin */
  size_t not_yet_off;  /**< of these, still sharing, or until their buffers were freed */
  size_t no_room;      /**< of these, for want of memory for their buffers */
  uint64_t physical_peak_bytes, one_to_one_peak_bytes, minimum_bytes;
  uint64_t rounding_peak_bytes; /**< held more than asked for by what is no receive buffer */
  uint64_t headroom_peak_bytes; /**< kept back */
  int64_t saved_peak_bytes;     /**< after both; negative: sharing costs more than it saves */
  uint64_t held_peak_bytes;     /**< most that was held at any time, also before anything was shared */
  int64_t lowered_peak_bytes;   /**< what that is less than it would have been */
  uint64_t prevented, violations, double_frees;
  uint64_t serious; /**< of what was prevented: uses that waiting alone would not have made safe */
  uint64_t
      unclear; /**< launches given a buffer whose data was gone, of which nobody knows whether they read it */
  bool misfits;           /**< a plan was given that has not the sizes or the order of the run */
  uint64_t would_miss;    /**< in observe mode: uses that enforcing would have noticed too late */
  uint64_t would_prevent; /**< in observe mode: uses that waiting alone would not have made safe */
};

struct rp_read_digest {
  char *process; /**< host, pid and start as JSON: equal in two states of one process */
  char *host;
  struct rp_input_identity identity;
  char *command;  /**< its beginning */
  int64_t rank;   /**< INT64_MAX: not known */
  char name[144]; /**< "rank 1 (host:123)", or "host:123" */
  int64_t world_size;
  double start_unix_seconds, written_unix_seconds;
  char run[64];  /**< which recvpool run started it; "" where none did */
  bool finished; /**< this is its last report */
  bool helper;   /**< it has no communicator and no receives, as a launcher: nothing but its rank may tell
                      that it is one of the job's */
  uint64_t steps_complete;
  int64_t start_monotonic_ns, first_post_ns; /**< the first lifetime's; 0: there is none */
  size_t lifetimes;                          /**< that have a time */
  json_t *communicators;                     /**< array of ids */
  json_t *notes;                             /**< array of sentences */
  int64_t plan_rank;                         /**< that it was told to take, and enforces; -1: none */
  json_t *plan_places, *plan_peers; /**< arrays of "communicator/rank": its own, and those it receives from;
                                       NULL without plan_rank */
  uint64_t held_bytes, needed_bytes, would_save_bytes;
  struct rp__summary summary;
  struct rp__enforced enforced;
  char *violation;                /**< the first one in a few words, or NULL */
  char *unshared;                 /**< why nothing was ever shared though it was asked for, or NULL */
  char *rows, *shared, *happened; /**< parts of the tables, of lean sets only; else NULL */
};

/** Digest of `report`; `tables`: with its parts of the tables. NULL without memory. Thread-safe. */
struct rp_read_digest *rp__digest_create(const json_t *report, bool tables);
/** Whether `report` is the same state of the same process. */
bool rp__digest_is_of(const struct rp_read_digest *digest, const json_t *report);
/** Takes everything out that counts or is shown; the identity stays. */
void rp__digest_empty(struct rp_read_digest *digest);
/** NULL is allowed. */
void rp__digest_destroy(struct rp_read_digest *digest);

/** Frees what a report of a set owns. */
void rp__report_fini(struct rp_read_report *report);

/** First and last + 1 of the reports of `job` (SIZE_MAX: all). */
void rp__job_range(const struct rp_read_set *set, size_t job, size_t *first, size_t *end);
/** Sums over reports of `job`. */
void rp__summary_sum(const struct rp_read_set *set, size_t job, struct rp__summary *out);
void rp__enforced_sum(const struct rp_read_set *set, size_t job, struct rp__enforced *out);

/* ---- parts of a digest, from one report ---- */

void rp__summary_of(const json_t *report, struct rp__summary *out);
/** Shadows count only in `would_prevent`. */
void rp__enforced_of(const json_t *report, struct rp__enforced *out);
/** Owned by the caller; NULL where there is none. */
char *rp__violation_of(const json_t *report);
char *rp__unshared_of(const json_t *report);
/** Sentences that the report says. */
json_t *rp__notes_of(const json_t *report);
/** Its rows of the table; its rows of what is shared; lines on what was prevented and what was not. */
void rp__print_rows(const json_t *report, FILE *out);
void rp__print_shared(const json_t *report, FILE *out);
void rp__print_happened(const json_t *report, FILE *out);
/** Whether the process has no communicator and receives nothing, as far as the agent in it sees: a launcher
 * or a helper, unless it has a rank. */
bool rp__is_helper(const json_t *report);
/** How many receives were seen, where all of them are below the threshold; else 0. */
uint64_t rp__small_receives(const json_t *report);

/** "2 of 4 processes, and 2 went on sharing: …", of those that were told to stop sharing. Returns `out`. */
const char *rp__format_off(const struct rp__enforced *sum, char *out, size_t out_size);
/** Sentences of the decisions in the table, each once. */
void rp__decisions_print(const struct rp__summary *summary, FILE *out);
/** Prints what `rp_report_notes` has, and returns how many lines. */
size_t rp__notes_print(const struct rp_read_set *set, size_t job, FILE *out);
/** Object of the plan's stages, by the addresses of the buffers that shared memory by it; NULL where there
 * was no plan. */
json_t *rp__planned_stages(const json_t *report);
/** The plan's number of a channel's stage, else which of its rank's it is: "#0" where there was a plan.
 * Returns `out`. */
const char *rp__format_stage(const json_t *channel, const json_t *stages, char *out, size_t out_size);
/** Prints which job it is, and since when. */
void rp__job_heading_print(const struct rp_read_set *set, size_t job, FILE *out);

/** What is shared, and what happened, of a job. */
void rp__enforced_print(const struct rp_read_set *set, size_t job, FILE *out);

#endif
