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

/** Opens DIR/rank-R.jsonl; a NULL directory gives a record that counts and writes nothing. Ends the process
 * on failure. */
struct rp_truth *rp_truth_create(const struct rp_trainer_options *options, int rank);
/** Notes a receive posted between two instants; returns its number for rp_truth_access. */
int rp_truth_post(struct rp_truth *truth, const struct rp_truth_receive *receive, uint64_t before_ns,
                  uint64_t after_ns);
/** Notes a launch that reads what receive `lifetime` brought. `kernel` has to live for ever. */
void rp_truth_access(struct rp_truth *truth, int lifetime, const char *kernel, uint64_t before_ns,
                     uint64_t after_ns);
/** Writes the step's lifetimes and forgets them. */
void rp_truth_end_step(struct rp_truth *truth, int32_t step);
/** Writes channels and summary, closes and frees. */
void rp_truth_destroy(struct rp_truth *truth, const void *communicator);

#endif
