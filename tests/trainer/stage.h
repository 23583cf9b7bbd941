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
  struct rp_buffer *output;              /**< last stage: y */
  struct rp_buffer *hidden;              /**< saved activation */
  struct rp_buffer *hidden_gradient;     /**< from I to W */
  struct rp_buffer *output_gradient;     /**< last stage: gradient of the loss */
  struct rp_lookalike_buffer *lookalike; /**< kept from forward to backward by somebody else */
};

struct rp_stage {
  int32_t index, ordinal; /**< in the model, among this rank's */
  bool first, last;
  bool identity;                             /**< passes on what it receives, and computes nothing */
  float *parameters, *gradients;             /**< W1, b1, W2, b2 in one allocation each */
  struct rp_microbatch *microbatches;        /**< as many as any step has */
  struct rp_buffer **receive[RP_DIRECTIONS]; /**< preallocated ones, NULL where there is none; or NULL */
  struct rp_stage *previous, *next;          /**< neighbours on the same rank, else NULL */
};

/** What all stages of a rank share. */
struct rp_worker {
  const struct rp_trainer_options *options;
  int32_t step;         /**< of training */
  int32_t pass;         /**< steps and evaluations in one row */
  bool evaluation;      /**< forwards only, and nothing is kept for a backward */
  int32_t microbatches; /**< of this step */
  int32_t most_microbatches;
  cudaStream_t compute; /**< the one in use: streams change, always in order */
  uint32_t *pass_word;  /**< device: which data and patterns are those of this pass */
  struct rp_buffers *buffers;
  struct rp_transfers *transfers;
  struct rp_truth *truth;
  float *losses;                          /**< device, per microbatch */
  struct rp_pattern_error *pattern_error; /**< device, for the compute stream */
  struct rp_mistakes *mistakes;           /**< NULL: none */
  struct rp_lookalikes *lookalikes;       /**< NULL: none */
  struct rp_shared_pool *shared;          /**< unguarded pool of the receive buffers; NULL: none */
};

/** Number of parameters of a stage. */
size_t rp_stage_parameter_count(const struct rp_trainer_options *options);
/** The initial parameters of stage `index`, in host memory. */
void rp_stage_initial_parameters(const struct rp_trainer_options *options, int32_t index, float *parameters);
/** What the keys of inputs and targets start from, for rp_data_key. */
uint64_t rp_data_base(const struct rp_trainer_options *options);
/** FNV-1a of a stage's parameters. */
uint64_t rp_checksum(const void *data, size_t bytes);
/** Checksum of checksums, in order. */
uint64_t rp_checksum_add(uint64_t sum, uint64_t value);

/** A scratch buffer for a message. */
struct rp_buffer *rp_stage_new_message(struct rp_worker *worker);

/** Launches a check of `buffer`, which should hold what `stage` received for the microbatch in this pass. */
void rp_stage_check(struct rp_worker *worker, const struct rp_stage *stage, const struct rp_buffer *buffer,
                    int32_t microbatch, int direction, cudaStream_t stream, struct rp_pattern_error *error);

/** `parameters`, in host memory, are what it begins with; NULL: the initial ones. */
void rp_stage_init(struct rp_worker *worker, struct rp_stage *stage, int32_t index, int32_t ordinal,
                   int32_t stages, const float *parameters);
void rp_stage_fini(struct rp_worker *worker, struct rp_stage *stage);
/** Copies the parameters to host memory, and waits for them. */
void rp_stage_parameters(struct rp_worker *worker, const struct rp_stage *stage, float *parameters);
/** Frees what a step that was broken off has left of its microbatches, and clears the gradients. */
void rp_stage_forget(struct rp_worker *worker, struct rp_stage *stage);
/** As torch does at the first step: one receive buffer per microbatch for activations, then for gradients.
 * Adds what is missing where there are some already. */
void rp_stage_preallocate(struct rp_worker *worker, struct rp_stage *stage);

void rp_stage_forward(struct rp_worker *worker, struct rp_stage *stage, int32_t microbatch);
/** The input's gradient, the weights' gradient, or both at once. */
void rp_stage_backward(struct rp_worker *worker, struct rp_stage *stage, int32_t microbatch, bool input,
                       bool weight);
/** One SGD step with the accumulated gradients. */
void rp_stage_update(struct rp_worker *worker, struct rp_stage *stage);

/** Step size of SGD, and what the gradient of the loss is multiplied with. */
#define RP_LEARNING_RATE 0.05f
float rp_loss_scale(const struct rp_trainer_options *options, int32_t microbatches);

#endif
