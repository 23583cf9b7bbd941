/** @file program.h
 * What a run does, step by step: which schedule with how many microbatches, and what follows a step. The same
 * for trainer and reference.
 */
#ifndef RP_TRAINER_PROGRAM_H
#define RP_TRAINER_PROGRAM_H

#include "options.h"
#include "pool/schedule.h"

/** What the steps from one on run, until the next phase. */
struct rp_phase {
  int32_t first_step;
  const char *name;              /**< of the schedule */
  struct rp_schedule schedule;   /**< lowered and checked */
  struct rp_schedule evaluation; /**< the forwards of it and their transfers; ranks 0 = not needed */
};

struct rp_program {
  struct rp_phase *phases; /**< in order of steps, the first from step 0; all place the stages alike */
  size_t count;
  int32_t ranks, stages;
  const int32_t *stage_rank;
  int32_t most_microbatches; /**< of all phases */
};

/** Makes what the options ask for, and completes them: ranks, chunks, and for a random run everything that is
 * drawn. Returns 0, or -1 after one line on stderr. Free with rp_program_fini. */
int rp_program_create(struct rp_trainer_options *options, struct rp_program *program);
void rp_program_fini(struct rp_program *program);

const struct rp_phase *rp_program_phase(const struct rp_program *program, int32_t step);
/** How many evaluations follow that step; -1: come before the first. */
int32_t rp_program_evaluations(const struct rp_trainer_options *options, int32_t step);

/** Whether the phase runs one of torch's hand-written schedules, with their own waiting rules. */
bool rp_phase_is_gpipe(const struct rp_phase *phase);
bool rp_phase_is_1f1b(const struct rp_phase *phase);

#endif
