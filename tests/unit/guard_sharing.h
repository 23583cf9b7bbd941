/** @file guard_sharing.h
 * A guard whose buffers share already, and what became of it.
 */
#ifndef RP_TESTS_UNIT_GUARD_SHARING_H
#define RP_TESTS_UNIT_GUARD_SHARING_H

#include "guard_program.h"

#define EIGHT 8u

/** Eight activations that share two slots, and gradients that share one. */
struct guard_fixture guard_sharing(struct rp_guard_options options);
struct rp_pool_conflict guard_last_conflict(struct guard_fixture *f);
/** The last conflict is this one. */
void guard_expect(struct guard_fixture *f, enum rp_pool_conflict_kind kind, bool prevented, size_t earlier,
                  size_t later);
void guard_expect_none(struct guard_fixture *f);
/** A whole lifetime of one activation. */
void guard_cycle(struct guard_fixture *f, size_t i);
/** Two released activations of which COMM knows nothing. */
void guard_overlapping(struct guard_fixture *f);

#endif
