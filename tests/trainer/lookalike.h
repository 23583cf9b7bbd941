/** @file lookalike.h
 * Buffers of exactly a message's size that nobody receives into: weights that stay, and activations that live
 * from a forward to its backward. The library of hidden_calls.h fills them, touching them first, and checks
 * them. Every function does nothing where none are asked for.
 */
#ifndef RP_TRAINER_LOOKALIKE_H
#define RP_TRAINER_LOOKALIKE_H

#include "stage.h"

/** NULL where none are asked for. */
struct rp_lookalikes *rp_lookalikes_create(struct rp_worker *worker);
/** After the device is done. */
void rp_lookalikes_destroy(struct rp_lookalikes *lookalikes);
/** Allocates those of one place, if they are asked for. */
void rp_lookalikes_add(struct rp_worker *worker, enum rp_lookalike where);
/** Fills those that are to be touched late and have not been yet. */
void rp_lookalikes_touch(struct rp_worker *worker);
/** Checks all that stay. */
void rp_lookalikes_check_all(struct rp_worker *worker);

/** A new activation, filled; NULL where none are asked for. */
struct rp_lookalike_buffer *rp_lookalikes_activation(struct rp_worker *worker);
/** Checks and frees it. */
void rp_lookalikes_check(struct rp_worker *worker, struct rp_lookalike_buffer **activation);

#endif
