// Seeded mistakes. Owns the side stream that unordered reads are on, and the record of what they find.
#include "mistakes.h"

#include <stdlib.h>

struct rp_mistakes {
  cudaStream_t side;
  cudaEvent_t ready;              /**< orders the side stream after the compute stream, never the other way */
  struct rp_pattern_error *error; /**< device, for the side stream */
};

struct rp_mistakes *rp_mistakes_create(const struct rp_worker *worker) {
  struct rp_pattern_error clean = {0};
  if (worker->options->mistake == RP_MISTAKE_NONE) return NULL;
  struct rp_mistakes *mistakes = calloc(1, sizeof *mistakes);
  if (mistakes == NULL) rp_die("no memory");
  RP_CUDA(cudaStreamCreateWithFlags(&mistakes->side, cudaStreamNonBlocking));
  RP_CUDA(cudaEventCreateWithFlags(&mistakes->ready, cudaEventDisableTiming));
  mistakes->error = rp_device_alloc(sizeof clean);
  rp_device_upload(mistakes->error, &clean, sizeof clean, mistakes->side);
  RP_CUDA(cudaStreamSynchronize(mistakes->side));
  return mistakes;
}

void rp_mistakes_destroy(struct rp_mistakes *mistakes) {
  if (mistakes == NULL) return;
  rp_device_free(mistakes->error);
  RP_CUDA(cudaEventDestroy(mistakes->ready));
  RP_CUDA(cudaStreamDestroy(mistakes->side));
  free(mistakes);
}

bool rp_mistake_now(const struct rp_worker *worker, enum rp_mistake kind) {
  return worker->options->mistake == kind && worker->step >= worker->options->mistake_step;
}

void rp_mistake_before_backward(struct rp_worker *worker, struct rp_stage *stage, int32_t microbatch) {
  struct rp_buffer **buffers = stage->receive[RP_ACTIVATION];
  int32_t count = worker->options->microbatches;
  if (!rp_mistake_now(worker, RP_MISTAKE_FOREIGN_ACCESS) || microbatch != count - 1 || buffers == NULL)
    return;
  for (int32_t i = 0; i < count; i++)
    if (buffers[i]->users == 0)
      RP_CUDA(cudaMemsetAsync(buffers[i]->memory, 0xee, buffers[i]->bytes, worker->compute));
}

void rp_mistake_after_backward(struct rp_worker *worker, struct rp_stage *stage, int32_t microbatch) {
  const struct rp_buffer *buffer = stage->microbatches[microbatch].in[RP_ACTIVATION];
  if (!rp_mistake_now(worker, RP_MISTAKE_UNORDERED_REUSE) || buffer->home != RP_HOME_PREALLOCATED) return;
  struct rp_mistakes *mistakes = worker->mistakes;
  RP_CUDA(cudaEventRecord(mistakes->ready, worker->compute));
  RP_CUDA(cudaStreamWaitEvent(mistakes->side, mistakes->ready, 0));
  rp_stage_check(worker, stage, buffer, microbatch, RP_ACTIVATION, mistakes->side, mistakes->error);
}

void rp_mistake_end_actions(struct rp_worker *worker, struct rp_stage *stage) {
  struct rp_buffer **buffers = stage->receive[RP_ACTIVATION];
  if (!rp_mistake_now(worker, RP_MISTAKE_STALE_ACCESS) || buffers == NULL || buffers[0]->lifetime < 0) return;
  rp_stage_check(worker, stage, buffers[0], 0, RP_ACTIVATION, worker->compute, worker->pattern_error);
}

void rp_mistake_result(struct rp_worker *worker, struct rp_pattern_error *error) {
  struct rp_mistakes *mistakes = worker->mistakes;
  *error = (struct rp_pattern_error){0};
  if (mistakes == NULL) return;
  rp_device_download(error, mistakes->error, sizeof *error, mistakes->side);
  RP_CUDA(cudaStreamSynchronize(mistakes->side));
}
