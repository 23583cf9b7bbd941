/** @file mistakes.h
 * The mistakes of enum rp_mistake, done on purpose, each with a line in the truth. Every function does
 * nothing without the mistake it is for. Early posts are in the program, the abort is in the rank's step.
 */
#ifndef RP_TRAINER_MISTAKES_H
#define RP_TRAINER_MISTAKES_H

#include "stage.h"

/** Makes what the mistake needs; NULL without one. */
struct rp_mistakes *rp_mistakes_create(const struct rp_worker *worker);
/** The communicator and the buffers still have to be there, the device has to be done. */
void rp_mistakes_destroy(struct rp_worker *worker, struct rp_mistakes *mistakes);

/** Whether `kind` is due in this step. */
bool rp_mistake_now(const struct rp_worker *worker, enum rp_mistake kind);
/** Whether the step is the first with it. */
bool rp_mistake_first(const struct rp_worker *worker, enum rp_mistake kind);

/** Register, export: one buffer, before the first step that has it. Stages are those of the rank. */
void rp_mistake_begin_step(struct rp_worker *worker, struct rp_stage *stages, int32_t count);
/** Missing wait: remembers when a message was complete. */
void rp_mistake_message_complete(struct rp_worker *worker, struct rp_buffer *message);
/** Missing wait: gives a receive that comes too early the time to show. */
void rp_mistake_before_weights(struct rp_worker *worker);
/** Foreign and unseen writes: overwrites this stage's dead activation buffers when the step's last microbatch
 * goes backward. */
void rp_mistake_before_backward(struct rp_worker *worker, struct rp_stage *stage, int32_t microbatch);
/** Wrong stream: reads the activation once more, on a stream of its own, which the compute stream waits for
 * until the step of the mistake. */
void rp_mistake_after_backward(struct rp_worker *worker, struct rp_stage *stage, int32_t microbatch);
/** Oversize: how many bytes a message has. */
size_t rp_mistake_message_bytes(const struct rp_worker *worker, int32_t microbatch, int direction);
/** Tells the truth about a receive that was posted too early, without its wait, or too long. */
void rp_mistake_posted(struct rp_worker *worker, const struct rp_truth_receive *receive);
/** Late read and late send, of microbatch 0's activations. `stage_rank` says where the other stages are. */
void rp_mistake_end_actions(struct rp_worker *worker, struct rp_stage *stages, int32_t count,
                            const int32_t *stage_rank);
/** Double free, after the first step that has it; the device is done. */
void rp_mistake_end_step(struct rp_worker *worker, struct rp_stage *stages, int32_t count);
/** Waits for the stream of its own and gives what its reads found. */
void rp_mistake_result(struct rp_worker *worker, struct rp_pattern_error *error);

#endif
