// One step or evaluation of a rank: walks its list of actions, or replays them, and reports.
#include "pass.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "actions.h"
#include "kernel_types.h"
#include "lookalike.h"
#include "mistakes.h"
#include "rank.h"

/** Forgets what the stages had for their microbatches. */
static void forget_microbatches(struct rp_rank *rank) {
  size_t bytes = (size_t)rank->worker.most_microbatches * sizeof(struct rp_microbatch);
  for (int32_t i = 0; i < rank->stage_count; i++)
    memset(rank->stages[i].microbatches, 0, bytes);
  rank->last_send = NULL;
  rank->forwards_done = false;
}

static void preallocate(struct rp_rank *rank) {
  struct rp_worker *w = &rank->worker;
  bool first = w->pass == 0;
  if (first) rp_lookalikes_add(w, RP_LOOKALIKE_BEFORE);
  for (int32_t i = 0; i < rank->stage_count && w->options->allocation == RP_ALLOCATION_PREALLOCATED; i++)
    rp_stage_preallocate(w, &rank->stages[i]);
  if (first) rp_lookalikes_add(w, RP_LOOKALIKE_AFTER);
  rp_lookalikes_touch(w);
}

static void begin(struct rp_rank *rank, const struct rp_phase *phase, int32_t step, bool evaluation) {
  struct rp_worker *w = &rank->worker;
  w->step = step;
  w->evaluation = evaluation;
  w->microbatches = phase->schedule.microbatches;
  forget_microbatches(rank);
  rank->pass_word = (uint32_t)step | (evaluation ? RP_PASS_EVALUATION : 0);
  rp_device_upload(w->pass_word, &rank->pass_word, sizeof rank->pass_word, w->compute);
  preallocate(rank);
  rp_transfers_be_lax(w->transfers, rp_mistake_now(w, RP_MISTAKE_MISSING_WAIT));
  if (!evaluation) rp_mistake_begin_step(w, rank->stages, rank->stage_count);
}

/** Everything that a step puts on the streams. */
static void run_once(struct rp_rank *rank, const struct rp_phase *phase, const struct rp_schedule *schedule) {
  struct rp_worker *w = &rank->worker;
  rp_actions_run(rank, phase, &schedule->rank[rank->index], schedule->rank[rank->index].count);
  rp_mistake_end_actions(w, rank->stages, rank->stage_count, rank->program->stage_rank);
  rp_transfers_wait_all(w->transfers);
  for (int32_t i = 0; i < rank->stage_count && !w->evaluation; i++)
    rp_stage_update(w, &rank->stages[i]);
}

/** The first half of the step, the end of the communicator in the middle of it, and a new one. */
static void run_half_and_abort(struct rp_rank *rank, const struct rp_phase *phase) {
  struct rp_worker *w = &rank->worker;
  const struct rp_rank_schedule *list = &phase->schedule.rank[rank->index];
  struct rp_pattern_error clean = {0};
  rp_transfers_doom(w->transfers);
  rp_actions_run(rank, phase, list, list->count / 2);
  rp_transfers_reconnect(w->transfers, &rank->second_id, rank->program->ranks, rank->index);
  for (int32_t i = 0; i < rank->stage_count; i++)
    rp_stage_forget(w, &rank->stages[i]);
  rp_device_upload(w->pattern_error, &clean, sizeof clean, w->compute);
  rp_device_synchronize(w->compute);
  forget_microbatches(rank);
  rp_truth_mistake(w->truth, &(struct rp_truth_mistake){.kind = RP_MISTAKE_ABORT,
                                                        .pass = w->pass,
                                                        .stage = rank->stages[0].index,
                                                        .stream = rp_transfers_stream(w->transfers),
                                                        .call = "ncclCommAbort"});
  rp_truth_drop_step(w->truth);
}

/** Captures the step if that was not done yet, and launches the graph. */
static void replay(struct rp_rank *rank, const struct rp_phase *phase) {
  cudaStream_t compute = rank->worker.compute;
  if (rank->graph == NULL) {
    cudaGraph_t graph = NULL;
    RP_CUDA(cudaStreamBeginCapture(compute, cudaStreamCaptureModeThreadLocal));
    run_once(rank, phase, &phase->schedule);
    RP_CUDA(cudaStreamEndCapture(compute, &graph));
    RP_CUDA(cudaGraphInstantiate(&rank->graph, graph, 0));
    RP_CUDA(cudaGraphDestroy(graph));
    rp_truth_drop_step(rank->worker.truth);
  }
  RP_CUDA(cudaGraphLaunch(rank->graph, compute));
}

/** Reports a broken pattern; returns whether there was one. */
static bool pattern_broken(const struct rp_pattern_error *e, int rank) {
  if (e->broken_words == 0) return false;
  fprintf(
      stderr,
      "trainer: rank %d: broken pattern: %llu words of the %s of microbatch %u at stage %u in %s %u, first "
      "at byte %llu: found %016llx instead of %016llx\n",
      rank, (unsigned long long)e->broken_words, e->mark.direction == 0 ? "activation" : "gradient",
      e->mark.microbatch, e->mark.stage,
      e->mark.pass & RP_PASS_EVALUATION ? "the evaluation after step" : "step",
      e->mark.pass & ~RP_PASS_EVALUATION, (unsigned long long)e->first_offset_bytes,
      (unsigned long long)e->found, (unsigned long long)e->expected);
  return true;
}

static bool has_loss(const struct rp_rank *rank) {
  for (int32_t i = 0; i < rank->stage_count; i++)
    if (rank->stages[i].last) return true;
  return false;
}

/** Waits for the pass, prints its loss where that is known, and returns whether every pattern was whole. */
static bool finish(struct rp_rank *rank) {
  struct rp_worker *w = &rank->worker;
  struct rp_pattern_error error, side_error;
  bool loss = has_loss(rank);
  rp_lookalikes_check_all(w);
  if (loss) rp_device_download(rank->losses, w->losses, (size_t)w->microbatches * sizeof(float), w->compute);
  rp_device_download(&error, w->pattern_error, sizeof error, w->compute);
  rp_device_synchronize(w->compute);
  rp_mistake_result(w, &side_error);
  rp_transfers_end_step(w->transfers);
  if (!w->evaluation) rp_mistake_end_step(w, rank->stages, rank->stage_count);
  rp_device_sample_memory();
  rp_truth_end_step(w->truth, w->pass, w->evaluation);
  if (loss) {
    float sum = 0.0f;
    for (int32_t i = 0; i < w->microbatches; i++)
      sum += rank->losses[i];
    rp_loss_print(w->step, w->evaluation, sum / (float)w->microbatches);
  }
  bool broken = pattern_broken(&error, rank->index);
  return !pattern_broken(&side_error, rank->index) && !broken;
}

bool rp_pass_run(struct rp_rank *rank, const struct rp_phase *phase, int32_t step, bool evaluation) {
  struct rp_worker *w = &rank->worker;
  int32_t capture_at = w->options->capture_at;
  begin(rank, phase, step, evaluation);
  if (!evaluation && rp_mistake_first(w, RP_MISTAKE_ABORT)) run_half_and_abort(rank, phase);
  if (!evaluation && capture_at >= 0 && step >= capture_at)
    replay(rank, phase);
  else
    run_once(rank, phase, evaluation ? &phase->evaluation : &phase->schedule);
  bool whole = finish(rank);
  w->pass++;
  return whole;
}
