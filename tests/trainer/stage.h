/** @file stage.h
 * One stage of the model on this rank: y = W2 relu(W1 x + b1) + b2 + x, its weights, and the forward and
 * backward of one microbatch as launches on the compute stream.
 */
#ifndef RP_TRAINER_STAGE_H
#define RP_TRAINER_STAGE_H

#include "device.h"
#include "message.h"
#include "options.h"
#include "transfers.h"
#include "truth.h"

enum { RP_ACTIVATION, RP_GRADIENT, RP_DIRECTIONS };

/** What a stage keeps for one microbatch within a step. */
struct rp_microbatch {
  struct rp_buffer *in[RP_DIRECTIONS];  /**< received or handed over */
  struct rp_buffer *out[RP_DIRECTIONS]; /**< computed, not yet sent */
  struct rp_work *received[RP_DIRECTIONS], *sent[RP_DIRECTIONS];
  struct rp_buffer *output;          /**< last stage: y */
  struct rp_buffer *hidden;          /**< saved activation */
  struct rp_buffer *hidden_gradient; /**< from I to W */
  struct rp_buffer *output_gradient; /**< last stage: gradient of the loss */
};

struct rp_stage {
  int32_t index, ordinal; /**< in the model, among this rank's */
  bool first, last;
  float *parameters, *gradients; /**< W1, b1, W2, b2 in one allocation each */
  struct rp_microbatch *microbatches;
  struct rp_buffer **receive[RP_DIRECTIONS]; /**< preallocated ones per microbatch, else NULL */
  struct rp_stage *previous, *next;          /**< neighbours on the same rank, else NULL */
};

/** What all stages of a rank share. */
struct rp_worker {
  const struct rp_trainer_options *options;
  int32_t step;
  cudaStream_t compute;
  struct rp_buffers *buffers;
  struct rp_transfers *transfers;
  struct rp_truth *truth;
  float *losses;                          /**< device, per microbatch */
  struct rp_pattern_error *pattern_error; /**< device, for the compute stream */
  struct rp_mistakes *mistakes;           /**< NULL: none */
};

/** Number of parameters of a stage. */
size_t rp_stage_parameter_count(const struct rp_trainer_options *options);
/** The initial parameters of stage `index`, in host memory. */
void rp_stage_initial_parameters(const struct rp_trainer_options *options, int32_t index, float *parameters);
/** Key of the input (kind 0) or target (kind 1) of a microbatch, for rp_body_generate. */
uint64_t rp_data_key(const struct rp_trainer_options *options, int32_t step, int32_t microbatch, int kind);
/** FNV-1a of a stage's parameters. */
uint64_t rp_checksum(const void *data, size_t bytes);
/** Checksum of checksums, in order. */
uint64_t rp_checksum_add(uint64_t sum, uint64_t value);

/** Launches a check of `buffer`, which should hold what `stage` received for the microbatch in this step. */
void rp_stage_check(struct rp_worker *worker, const struct rp_stage *stage, const struct rp_buffer *buffer,
                    int32_t microbatch, int direction, cudaStream_t stream, struct rp_pattern_error *error);

void rp_stage_init(struct rp_worker *worker, struct rp_stage *stage, int32_t index, int32_t ordinal,
                   int32_t stages);
void rp_stage_fini(struct rp_worker *worker, struct rp_stage *stage);
/** As torch does at the first step: one receive buffer per microbatch for activations, then for gradients. */
void rp_stage_preallocate(struct rp_worker *worker, struct rp_stage *stage);

void rp_stage_forward(struct rp_worker *worker, struct rp_stage *stage, int32_t microbatch);
/** The input's gradient, the weights' gradient, or both at once. */
void rp_stage_backward(struct rp_worker *worker, struct rp_stage *stage, int32_t microbatch, bool input,
                       bool weight);
/** One SGD step with the accumulated gradients. */
void rp_stage_update(struct rp_worker *worker, struct rp_stage *stage);

/** Step size of SGD, and what the gradient of the loss is multiplied with. */
#define RP_LEARNING_RATE 0.05f
float rp_loss_scale(const struct rp_trainer_options *options);

#endif
