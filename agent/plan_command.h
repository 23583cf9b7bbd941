/** @file plan_command.h
 * The parts of `recvpool plan`: arguments, plans from any source, the table, and the comparison.
 */
#ifndef RP_AGENT_PLAN_COMMAND_H
#define RP_AGENT_PLAN_COMMAND_H

#include <stdio.h>

#include "agent/command.h"
#include "agent/plan_file.h"

#define RP_PLAN_MAX_TENSORS 64
/** Slots beyond the depth; the agent's own default (RECVPOOL_SLACK). */
#define RP_PLAN_DEFAULT_SLACK 2

/** What the command line asks for. */
struct rp_plan_arguments {
  const char *schedule, *lowered, *from_report; /**< exactly one is set, unless comparing */
  int32_t stages, ranks, microbatches;          /**< 0 = not given */
  uint64_t tensor_bytes[RP_PLAN_MAX_TENSORS];
  struct rp_plan_options options; /**< tensor_bytes is set when the plan is made */
  int32_t stage;                  /**< show only this one; -1 = all */
  int32_t replicas;
  bool json, timeline, compare;
  const char *output;
  const char *compare_with[2];
};

/** Reads the command line. Returns -1 to go on, else the exit status; what is wrong has been said. */
int rp_plan_take_arguments(int argc, char **argv, struct rp_plan_arguments *out);

/** Shows on a terminal (stderr) that a large schedule is being planned, until it is told to stop. Nothing
 * elsewhere, or for a small one. */
void rp_plan_ticker_start(const struct rp_plan_arguments *a);
/** Takes it back; to be called before anything else is printed. Nothing if it does not run. */
void rp_plan_ticker_stop(void);

/** What must be said beside the numbers of an observed run. */
struct rp_plan_observation {
  char note[900];       /**< sentences, or empty */
  int32_t world_size;   /**< of the job, where the ranks are those of its launcher; else 0 */
  bool by_receipt;      /**< microbatches have numbers by receipt only: buffers are allocated just in time */
  uint64_t piece_bytes; /**< what the device gives memory in; 0 = nobody has asked it */
  const char *caution;  /**< why the plan should not be enforced as it is; NULL: it may be */
};

/** Plans from reports of an observed run. Ranks have the numbers of the launcher, unless there are reports of
 * `ranks` processes (0: any, and enough steps to plan by; else it is for a comparison): then these are ranks
 * 0, 1 … of a pipeline. On failure `message` holds one line. */
rp_status rp_plan_from_reports(const char *path, int32_t ranks, const struct rp_plan_options *options,
                               struct rp_plan **out, struct rp_plan_observation *observation, char *message,
                               size_t message_size);
/** The same from reports that were read; `path` names them in messages. */
rp_status rp_plan_from_set(struct rp_read_set *set, const char *path, int32_t ranks,
                           const struct rp_plan_options *options, struct rp_plan **out,
                           struct rp_plan_observation *observation, char *message, size_t message_size);
/** Reads a file; `text` is owned by the caller. On failure `message` holds one line that names it. */
rp_status rp_plan_read_text(const char *path, char **text, size_t *length, char *message,
                            size_t message_size);
/** Whether a file's text is a document, as a saved plan is, and no schedule: its name does not matter. */
bool rp_plan_is_saved(const char *text, size_t length);
/** Plans from the text of a schedule file of torch. On failure `message` holds one line that begins with
 * `path`. */
rp_status rp_plan_from_text(const char *path, const char *text, size_t length,
                            const struct rp_plan_options *options, struct rp_plan **out, char *message,
                            size_t message_size);
/** Plans again what the text of a plan file lists. On failure `message` holds one line that begins with
 * `path`. */
rp_status rp_plan_from_plan(const char *path, const char *text, size_t length,
                            const struct rp_plan_options *options, struct rp_plan **out, char *message,
                            size_t message_size);
/** Options that change a schedule say nothing about a run or a plan that was made already. Returns -1, or
 * says so and returns the exit status. */
int rp_plan_check_settled(const struct rp_plan_options *options);

/** Prints the plan for people. `stage` -1: all of them. `piece_bytes`: what the device gives memory in, 0
 * where nobody has asked it. */
void rp_plan_print(const struct rp_plan *plan, const struct rp_plan_provenance *provenance, int32_t stage,
                   uint64_t piece_bytes, FILE *out);
/** Prints, per rank, which microbatch is in which slot at which position. */
void rp_plan_print_timeline(const struct rp_plan *plan, int32_t stage, FILE *out);
/** Prints where `run` departs from `plan`; returns how many departures there are, SIZE_MAX without memory.
 * `by_receipt`: numbers of microbatches say nothing in the run. */
size_t rp_plan_print_departures(const struct rp_plan *plan, const struct rp_plan *run, bool by_receipt,
                                FILE *out);

#endif
