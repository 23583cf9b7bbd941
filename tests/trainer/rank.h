/** @file rank.h
 * One rank of the training job, and what it hands to the launcher.
 */
#ifndef RP_TRAINER_RANK_H
#define RP_TRAINER_RANK_H

#include <stdint.h>

#include "program.h"

/** Exit status of a rank that found a broken pattern; `recvpool run` has none like it of its own. */
#define RP_TRAINER_BROKEN_PATTERN 5

/** Descriptors a launched rank inherits, named in its environment: the communicator's id comes and goes
 * through the first (a pipe), the results go to the second. */
#define RP_TRAINER_ID_FD "RP_TRAINER_ID_FD"
#define RP_TRAINER_RESULT_FD "RP_TRAINER_RESULT_FD"

/** What a rank writes to its result descriptor, followed by one rp_stage_result per local stage. */
struct rp_rank_result {
  uint64_t peak_device_bytes;
  uint64_t stage_count;
};

struct rp_stage_result {
  int64_t stage;
  uint64_t checksum;
};

/** Trains as rank `rank`; returns the exit status. */
int rp_rank_run(const struct rp_trainer_options *options, const struct rp_program *program, int rank,
                int local_rank);

/** Prints the line of a rank, and returns the checksum of its stages. */
void rp_rank_print(int rank, const struct rp_rank_result *result, const struct rp_stage_result *stages);
/** Prints the loss of a step, or of the evaluation after it. */
void rp_loss_print(int32_t step, bool evaluation, float loss);

/** Starts the ranks as processes of this very program and waits for them; returns the exit status. */
int rp_launcher_run(const struct rp_program *program, char **argv);

#endif
