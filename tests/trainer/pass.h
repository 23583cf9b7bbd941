/** @file pass.h
 * One rank of the training job: what it has, and how it runs one step or evaluation.
 */
#ifndef RP_TRAINER_PASS_H
#define RP_TRAINER_PASS_H

#include <pthread.h>

#include "program.h"
#include "stage.h"

/** A host thread for backward actions, as autograd has one. The main thread waits for each action. */
struct rp_backward_thread {
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  const struct rp_action *action; /**< lock: what to do, NULL when done */
  bool stop;                      /**< lock */
  struct rp_rank *rank;
};

#define RP_COMPUTE_STREAMS 3

struct rp_rank {
  struct rp_worker worker;
  const struct rp_program *program;
  int index;
  struct rp_stage *stages;
  int32_t stage_count;
  struct rp_backward_thread backward;
  struct rp_work *last_send;  /**< of hand-written 1F1B: the latest group of sends only */
  bool forwards_done;         /**< of hand-written GPipe: the backward half of the step has begun */
  struct rp_transfer *posted; /**< scratch for one group */
  size_t posted_capacity;
  float *losses;                            /**< host, per microbatch */
  uint32_t pass_word;                       /**< host, what the worker's is filled from */
  cudaGraphExec_t graph;                    /**< of a captured step; NULL until then */
  cudaStream_t streams[RP_COMPUTE_STREAMS]; /**< of which random runs use several */
  uint32_t stream_count, comm_streams;
  cudaEvent_t handover; /**< from one compute stream to the next */
  uint64_t random;
  ncclUniqueId second_id; /**< of the communicator after the aborted one */
};

/** Runs the phase's schedule, or its evaluation, once. False: a pattern was broken, which was said on stderr.
 */
bool rp_pass_run(struct rp_rank *rank, const struct rp_phase *phase, int32_t step, bool evaluation);

void rp_backward_start(struct rp_rank *rank);
void rp_backward_stop(struct rp_rank *rank);

#endif
