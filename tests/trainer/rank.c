// One rank: sets up device, communicator and stages, trains step by step, hands its results over.
#include "rank.h"

#include <stdlib.h>
#include <string.h>

#include "lookalike.h"
#include "mistakes.h"
#include "pass.h"
#include "rendezvous.h"
#include "schedule_tools.h"
#include "shared_pool.h"

// ---- stages

/** Builds this rank's stages; `parameters` (one array per stage) or NULL for the initial ones. */
static void build_stages(struct rp_rank *rank, float *const *parameters) {
  const struct rp_program *program = rank->program;
  for (int32_t s = 0, ordinal = 0; s < program->stages; s++) {
    if (program->stage_rank[s] != rank->index) continue;
    struct rp_stage *stage = &rank->stages[ordinal];
    rp_stage_init(&rank->worker, stage, s, ordinal, program->stages,
                  parameters != NULL ? parameters[ordinal] : NULL);
    ordinal++;
    if (ordinal >= 2 && stage[-1].index == s - 1) {
      stage->previous = stage - 1;
      stage[-1].next = stage;
    }
  }
}

static void create_stages(struct rp_rank *rank) {
  const struct rp_program *program = rank->program;
  for (int32_t s = 0; s < program->stages; s++)
    rank->stage_count += program->stage_rank[s] == rank->index;
  rank->stages = calloc((size_t)rank->stage_count + 1, sizeof *rank->stages);
  if (rank->stages == NULL) rp_die("no memory");
  build_stages(rank, NULL);
}

/** Frees all stages with their buffers, and builds them again with the same parameters. */
static void rebuild_stages(struct rp_rank *rank) {
  struct rp_worker *w = &rank->worker;
  float **parameters = calloc((size_t)rank->stage_count + 1, sizeof(float *));
  if (parameters == NULL) rp_die("no memory");
  for (int32_t i = 0; i < rank->stage_count; i++) {
    parameters[i] = calloc(rp_stage_parameter_count(w->options), sizeof(float));
    if (parameters[i] == NULL) rp_die("no memory");
    rp_stage_parameters(w, &rank->stages[i], parameters[i]);
    rp_stage_fini(w, &rank->stages[i]);
  }
  rp_buffers_trim(w->buffers);
  build_stages(rank, parameters);
  for (int32_t i = 0; i < rank->stage_count; i++)
    free(parameters[i]);
  free(parameters);
}

// ---- streams

/** A random run changes between streams, whose number it draws. */
static void create_streams(struct rp_rank *rank) {
  const struct rp_trainer_options *o = rank->worker.options;
  rank->stream_count = rank->comm_streams = 1;
  if (o->own_stream) RP_CUDA(cudaStreamCreateWithFlags(&rank->streams[0], cudaStreamNonBlocking));
  if (o->random) {
    rank->random = o->random_seed * 1000003u + (uint64_t)rank->index;
    rank->stream_count = 1 + rp_random_below(&rank->random, RP_COMPUTE_STREAMS);
    rank->comm_streams = 1 + rp_random_below(&rank->random, 2);
  }
  for (uint32_t i = 1; i < rank->stream_count; i++)
    RP_CUDA(cudaStreamCreateWithFlags(&rank->streams[i], cudaStreamNonBlocking));
  rank->worker.compute = rank->streams[0];
  rank->handover = rp_device_event();
}

static void destroy_streams(struct rp_rank *rank) {
  for (uint32_t i = 0; i < rank->stream_count; i++)
    if (rank->streams[i] != NULL) RP_CUDA(cudaStreamDestroy(rank->streams[i]));
  RP_CUDA(cudaEventDestroy(rank->handover));
}

// ---- life of a rank

static void connect_ranks(struct rp_rank *rank) {
  struct rp_worker *w = &rank->worker;
  int ranks = rank->program->ranks;
  ncclUniqueId ids[2] = {0};
  rp_exchange_ids(w->options, rank->index, ranks, ids, w->options->mistake == RP_MISTAKE_ABORT ? 2 : 1);
  rank->second_id = ids[1];
  w->transfers = rp_transfers_create(&ids[0], ranks, rank->index, w->options->two_communicators, &w->compute,
                                     w->buffers, w->truth);
  if (w->options->probe) rp_transfers_probe(w->transfers, ranks, rank->index);
}

static void set_up(struct rp_rank *rank, const struct rp_trainer_options *options, int local_rank) {
  struct rp_worker *w = &rank->worker;
  const struct rp_program *program = rank->program;
  struct rp_pattern_error clean = {0};
  size_t losses = (size_t)program->most_microbatches;
  w->options = options;
  w->most_microbatches = program->most_microbatches;
  rp_device_init(local_rank, options->driver_api);
  create_streams(rank);
  w->truth = rp_truth_create(options, program->phases[0].schedule.microbatches, rank->index);
  w->buffers = rp_buffers_create((size_t)options->segment_blocks);
  connect_ranks(rank);
  rank->losses = calloc(losses, sizeof *rank->losses);
  if (rank->losses == NULL) rp_die("no memory");
  w->losses = rp_device_alloc(losses * sizeof(float));
  w->pass_word = rp_device_alloc(sizeof *w->pass_word);
  w->pattern_error = rp_device_alloc(sizeof clean);
  rp_device_upload(w->pattern_error, &clean, sizeof clean, w->compute);
  rp_device_synchronize(w->compute);
  w->shared = rp_shared_pool_create(options, &program->phases[0].schedule, rank->index);
  w->lookalikes = rp_lookalikes_create(w);
  create_stages(rank);
  w->mistakes = rp_mistakes_create(w);
  if (options->backward_thread) rp_backward_start(rank);
}

static void tear_down(struct rp_rank *rank) {
  struct rp_worker *w = &rank->worker;
  uint64_t held_bytes = rp_device_held_bytes();
  if (w->options->backward_thread) rp_backward_stop(rank);
  if (rank->graph != NULL) RP_CUDA(cudaGraphExecDestroy(rank->graph));
  rp_mistakes_destroy(w, w->mistakes);
  for (int32_t i = 0; i < rank->stage_count; i++)
    rp_stage_fini(w, &rank->stages[i]);
  rp_lookalikes_destroy(w->lookalikes);
  rp_shared_pool_destroy(w->shared);
  rp_device_free(w->losses);
  rp_device_free(w->pass_word);
  rp_device_free(w->pattern_error);
  ncclComm_t communicator = rp_transfers_communicator(w->transfers);
  rp_transfers_destroy(w->transfers);
  rp_buffers_destroy(w->buffers);
  rp_truth_destroy(w->truth, communicator,
                   (struct rp_truth_bytes){.held = held_bytes, .left = rp_device_held_bytes()});
  destroy_streams(rank);
  free(rank->stages);
  free(rank->posted);
  free(rank->losses);
}

/** After the step; -1: before the first. */
static bool evaluate(struct rp_rank *rank, int32_t step) {
  int32_t passes = rp_program_evaluations(rank->worker.options, step), of = step < 0 ? 0 : step;
  bool whole = true;
  while (whole && passes-- > 0)
    whole = rp_pass_run(rank, rp_program_phase(rank->program, of), of, true);
  return whole;
}

static bool train(struct rp_rank *rank) {
  const struct rp_trainer_options *o = rank->worker.options;
  bool whole = evaluate(rank, -1);
  for (int32_t step = 0; whole && step < o->steps; step++) {
    const struct rp_phase *phase = rp_program_phase(rank->program, step);
    if (step == o->rebuild_at) rebuild_stages(rank);
    whole = rp_pass_run(rank, phase, step, false);
    whole = whole && evaluate(rank, step);
  }
  return whole;
}

/** Checksums of the final parameters, to the launcher if there is one, else to standard output. */
static void report(struct rp_rank *rank) {
  struct rp_worker *w = &rank->worker;
  size_t count = rp_stage_parameter_count(w->options);
  float *host = calloc(count, sizeof *host);
  struct rp_stage_result *stages = calloc((size_t)rank->stage_count + 1, sizeof *stages);
  if (host == NULL || stages == NULL) rp_die("no memory");
  for (int32_t i = 0; i < rank->stage_count; i++) {
    rp_stage_parameters(w, &rank->stages[i], host);
    stages[i] = (struct rp_stage_result){rank->stages[i].index, rp_checksum(host, count * sizeof *host)};
  }
  struct rp_rank_result result = {rp_device_peak_bytes(), (uint64_t)rank->stage_count};
  const char *fd = getenv(RP_TRAINER_RESULT_FD);
  if (fd != NULL) {
    rp_write_whole(atoi(fd), &result, sizeof result);
    rp_write_whole(atoi(fd), stages, (size_t)rank->stage_count * sizeof *stages);
  } else {
    rp_rank_print(rank->index, &result, stages);
  }
  free(stages);
  free(host);
}

int rp_rank_run(const struct rp_trainer_options *options, const struct rp_program *program, int rank_index,
                int local_rank) {
  struct rp_rank rank = {.program = program, .index = rank_index};
  set_up(&rank, options, local_rank);
  bool whole = train(&rank);
  if (!whole) exit(RP_TRAINER_BROKEN_PATTERN); // the others cannot go on: no orderly end to wait for
  report(&rank);
  tear_down(&rank);
  return 0;
}
