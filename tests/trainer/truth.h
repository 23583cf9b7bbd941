/** @file truth.h
 * What really happened to every receive buffer, as the trainer itself knows it: the record that the agent's
 * report is compared with. Host order only; used by the main thread and the backward thread one at a time.
 */
#ifndef RP_TRAINER_TRUTH_H
#define RP_TRAINER_TRUTH_H

#include <stdint.h>

#include "options.h"

struct rp_truth;

/** One receive to come: whose it is and where it lands. */
struct rp_truth_receive {
  int32_t stage, stage_ordinal, microbatch, direction, peer;
  uint64_t address, bytes;
};

/** One side of what a mistake did, or of what it was about. */
struct rp_truth_mistake {
  enum rp_mistake kind;
  bool earlier; /**< it is the access that a later receive would overwrite; else what comes too soon,
                   too late or from outside */
  int32_t pass; /**< as in rp_truth_end_step */
  int32_t stage, direction, microbatch;
  uint64_t address, bytes; /**< of the receive buffer */
  const void *stream;      /**< of the call; NULL: the default stream, or none */
  const char *call;        /**< kernel or function */
  int result;              /**< of a call that may be refused; 0 = it was not */
};

/** Opens DIR/rank-R.jsonl; a NULL directory gives a record that counts and writes nothing. Ends the process
 * on failure. */
struct rp_truth *rp_truth_create(const struct rp_trainer_options *options, int32_t microbatches, int rank);
/** Notes a receive posted between two instants; returns its number for rp_truth_access. */
int rp_truth_post(struct rp_truth *truth, const struct rp_truth_receive *receive, uint64_t before_ns,
                  uint64_t after_ns);
/** Notes a launch that reads what receive `lifetime` brought. `kernel` has to live for ever. */
void rp_truth_access(struct rp_truth *truth, int lifetime, const char *kernel, uint64_t before_ns,
                     uint64_t after_ns);
/** Writes a line about a mistake. */
void rp_truth_mistake(struct rp_truth *truth, const struct rp_truth_mistake *mistake);
/** Writes the lifetimes of a pass over the buffers (a step or an evaluation, numbered in one row) and forgets
 * them. */
void rp_truth_end_step(struct rp_truth *truth, int32_t pass, bool evaluation);
/** Forgets the lifetimes of a step that does not count: captured, or broken off. */
void rp_truth_drop_step(struct rp_truth *truth);
/** Bytes held on the device: after training with everything still there, and after everything was freed. */
struct rp_truth_bytes {
  uint64_t held, left;
};
/** Writes channels and summary, closes and frees. */
void rp_truth_destroy(struct rp_truth *truth, const void *communicator, struct rp_truth_bytes bytes);

#endif
