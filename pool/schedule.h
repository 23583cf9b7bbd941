/** @file schedule.h
 * Pipeline schedules as ordered lists of actions, one list per rank. Pure: text and numbers in, actions out.
 *
 * Names and grammar are those of torch.distributed.pipelining's lowered schedules. A "lowered" schedule
 * contains its transfers; a compute-only one has only F, B, I, W and compounds, and rp_schedule_lower adds
 * the rest.
 */
#ifndef RP_POOL_SCHEDULE_H
#define RP_POOL_SCHEDULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "recvpool/status.h"

/** What one action does; the token of each in brackets. */
enum rp_action_kind {
  RP_ACTION_FORWARD = 1,     /**< [F] */
  RP_ACTION_BACKWARD,        /**< [B] whole backward */
  RP_ACTION_BACKWARD_INPUT,  /**< [I] gradient of the input */
  RP_ACTION_BACKWARD_WEIGHT, /**< [W] gradient of the weights */
  RP_ACTION_SEND_F,
  RP_ACTION_RECV_F,
  RP_ACTION_SEND_B,
  RP_ACTION_RECV_B,
  RP_ACTION_UNSHARD,
  RP_ACTION_RESHARD,
  RP_ACTION_REDUCE_GRAD,
  RP_ACTION_WAIT_SEND_F,
  RP_ACTION_WAIT_SEND_B,
  RP_ACTION_WAIT_REDUCE_GRAD,
};

/** One action of one rank. */
struct rp_action {
  enum rp_action_kind kind;
  int32_t stage;
  int32_t microbatch; /**< -1 where the kind has none */
  /** Actions next to each other with the same non-zero group belong together: a compound (OVERLAP_F_B) of
   * compute actions, or transfers that are posted as one NCCL group. 0 = alone. */
  uint32_t group;
};

struct rp_rank_schedule {
  struct rp_action *actions;
  size_t count;
};

/** A schedule; owned by whoever made it, freed with rp_schedule_fini. */
struct rp_schedule {
  int32_t ranks;
  int32_t stages;
  int32_t microbatches;
  bool lowered;                  /**< contains its transfers */
  int32_t *stage_rank;           /**< [stages] rank that holds the stage */
  struct rp_rank_schedule *rank; /**< [ranks] */
};

/** Where and why a text or a schedule was refused. */
struct rp_schedule_error {
  size_t row, column; /**< 0-based rank and position; SIZE_MAX where there is none */
  char token[64];     /**< the offending token or action, cut to size */
  char message[256];  /**< one line: what is wrong and the mend */
};

/** Makes a named schedule, lowered: "gpipe", "1f1b" (both with the groups of torch's hand-written schedules;
 * chunks must be 1), "interleaved_1f1b", "looped_bfs" (through rp_schedule_lower; stage s lives on rank s %
 * ranks). stages = ranks * chunks. RP_ERROR_NOT_FOUND: no such name; RP_ERROR_SCHEDULE: numbers the schedule
 * does not take. `error` may be NULL. `out` is untouched on failure. */
rp_status rp_schedule_generate(const char *name, int32_t ranks, int32_t chunks, int32_t microbatches,
                               struct rp_schedule *out, struct rp_schedule_error *error);

/** Reads torch's CSV (facts: row = rank, column = position, every token form since 2.5). Compute-only text
 * gives a schedule with lowered = false; lower it before use. The number of microbatches and stages is read
 * off the actions. */
rp_status rp_schedule_parse(const char *text, size_t length, struct rp_schedule *out,
                            struct rp_schedule_error *error);

/** Writes a schedule as torch's CSV, CRLF line ends as torch dumps it. NCCL groups of transfers have no text
 * form and come out one by one. `text` is NUL-terminated, to be freed by the caller; `length` without the
 * NUL. */
rp_status rp_schedule_print(const struct rp_schedule *schedule, char **text, size_t *length);

/** How a version of torch completes a compute-only schedule. */
enum rp_lowering {
  RP_LOWERING_TORCH_2_6,  /**< 2.6 to 2.9: parameters gathered and freed, transfers */
  RP_LOWERING_TORCH_2_10, /**< 2.10 to 2.14: and REDUCE_GRAD */
  RP_LOWERING_TORCH_2_15, /**< and WAIT_SEND_F, WAIT_SEND_B, WAIT_REDUCE_GRAD */
};

/** Adds transfers by the rules of torch's lowering, 2.10 to 2.14. No-op on a lowered schedule. */
rp_status rp_schedule_lower(struct rp_schedule *schedule, struct rp_schedule_error *error);
/** The same by the rules of a stated version. */
rp_status rp_schedule_lower_as(struct rp_schedule *schedule, enum rp_lowering lowering,
                               struct rp_schedule_error *error);

/** Refuses what cannot be run: a receive without its send, a backward without its forward, a microbatch
 * twice, a cycle. */
rp_status rp_schedule_check(const struct rp_schedule *schedule, struct rp_schedule_error *error);

/** For a lowered schedule that passed rp_schedule_check: refuses it if transfers of different stages or
 * directions between two ranks are received in another order than sent. That needs a communicator for each of
 * them; over one, wrong data would land (torch's deferred receives on two ranks are such). RP_ERROR_STATE:
 * not lowered. */
rp_status rp_schedule_check_one_channel(const struct rp_schedule *schedule, struct rp_schedule_error *error);

void rp_schedule_fini(struct rp_schedule *schedule);

/** Token of a kind ("F", "RECV_B" …), never NULL. */
const char *rp_action_kind_token(enum rp_action_kind kind);
/** Writes "2RECV_F3" style text for an action; returns its length as snprintf does. */
int rp_action_format(const struct rp_action *action, char *out, size_t out_size);

#endif
