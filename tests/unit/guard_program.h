/** @file guard_program.h
 * What a pipeline stage does in one step, as a list: receives and the kernels that read them, and the plan
 * that an earlier run of it would have made.
 */
#ifndef RP_TESTS_UNIT_GUARD_PROGRAM_H
#define RP_TESTS_UNIT_GUARD_PROGRAM_H

#include "guard_fixture.h"

#define PROGRAM_MOST 1024

struct guard_op {
  bool receive;
  uint32_t class, microbatch; /* class 0: activations, from UPSTREAM; 1: gradients, from DOWNSTREAM */
  uint64_t function;          /* of an access */
};

struct guard_program {
  struct guard_op ops[PROGRAM_MOST];
  size_t count;
  uint32_t microbatches;
};

/** 1F1B of a middle stage with `depth` activations in flight, or GPipe if depth is microbatches. */
struct guard_program guard_program_1f1b(uint32_t microbatches, uint32_t depth);
/** Forwards only. */
struct guard_program guard_program_evaluation(uint32_t microbatches);
/** Buffers: activation m is i = m, gradient m is i = MOST / 2 + m. */
size_t guard_program_buffer(uint32_t class, uint32_t microbatch);
/** Runs it once; every message must be there when it is read. */
void guard_program_run(struct guard_fixture *f, const struct guard_program *program);
/** So many steps of it. */
void guard_program_steps(struct guard_fixture *f, const struct guard_program *program, int steps);
void guard_program_alloc(struct guard_fixture *f, const struct guard_program *program);
/** Labels of what guard_program_alloc made. */
void guard_program_label(struct guard_fixture *f, const struct guard_program *program);

struct guard_plan {
  struct rp_guard_plan plan;
  struct rp_guard_planned_class classes[2];
  struct rp_guard_planned_receive receives[PROGRAM_MOST];
};
/** As an observed run of `program` would have it; pointers into `out`. */
void guard_program_plan(const struct guard_program *program, uint32_t slack, struct guard_plan *out);
/** A guard that sees every touch and has that plan of `planned`, which stays the caller's; with the buffers
 * of `program`. */
void guard_program_start(struct guard_fixture *f, const struct guard_program *planned, uint32_t slack,
                         const struct guard_program *program, struct guard_plan *plan);

#endif
