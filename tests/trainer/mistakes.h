/** @file mistakes.h
 * The mistakes of enum rp_mistake, done on purpose. Every function does nothing without one.
 */
#ifndef RP_TRAINER_MISTAKES_H
#define RP_TRAINER_MISTAKES_H

#include "stage.h"

/** Makes what the mistake needs; NULL without one. */
struct rp_mistakes *rp_mistakes_create(const struct rp_worker *worker);
void rp_mistakes_destroy(struct rp_mistakes *mistakes);

/** Whether `kind` is due in this step. */
bool rp_mistake_now(const struct rp_worker *worker, enum rp_mistake kind);

/** Foreign access: overwrites this stage's dead activation buffers when the step's last microbatch goes
 * backward. */
void rp_mistake_before_backward(struct rp_worker *worker, struct rp_stage *stage, int32_t microbatch);
/** Unordered reuse: reads the activation once more, on a stream of its own. */
void rp_mistake_after_backward(struct rp_worker *worker, struct rp_stage *stage, int32_t microbatch);
/** Stale access: reads microbatch 0's activation again. */
void rp_mistake_end_actions(struct rp_worker *worker, struct rp_stage *stage);
/** Waits for the stream of its own and gives what its reads found. */
void rp_mistake_result(struct rp_worker *worker, struct rp_pattern_error *error);

#endif
