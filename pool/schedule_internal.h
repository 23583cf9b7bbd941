/** @file schedule_internal.h
 * What the files of the schedule share: building rows, reporting errors, and the compute-only order of named
 * schedules.
 */
#ifndef RP_POOL_SCHEDULE_INTERNAL_H
#define RP_POOL_SCHEDULE_INTERNAL_H

#include "pool/schedule.h"

/** Bounds that keep every product of two counts inside 32 bits and every table affordable. */
#define RP__MAX_STAGES 65536
#define RP__MAX_MICROBATCHES (1 << 24)
#define RP__MAX_COMPOUND 16               /* actions in one compound; torch has 2 */
#define RP__MAX_PAIRS ((uint64_t)1 << 26) /* stages * microbatches */

/** A row under construction; failed is sticky, so that only the end needs a test. */
struct rp__row {
  struct rp_action *actions;
  size_t count, capacity;
  bool failed;
};

void rp__row_push(struct rp__row *row, enum rp_action_kind kind, int32_t stage, int32_t microbatch,
                  uint32_t group);
void rp__row_append(struct rp__row *row, const struct rp_action *actions, size_t count);

/** Fills `error` (NULL allowed) and returns `status`. `action` NULL leaves the token empty. */
__attribute__((format(printf, 6, 7))) rp_status rp__schedule_fail(struct rp_schedule_error *error,
                                                                  rp_status status, size_t row, size_t column,
                                                                  const struct rp_action *action,
                                                                  const char *format, ...);

/** Allocates `out` with empty rows and stage_rank = -1; numbers must be within the bounds above. */
rp_status rp__schedule_init(struct rp_schedule *out, int32_t ranks, int32_t stages, int32_t microbatches);
/** Moves finished rows into the schedule (frees what it had). RP_ERROR_NO_MEMORY if a row failed; frees all
 * rows. */
rp_status rp__schedule_take_rows(struct rp_schedule *schedule, struct rp__row *rows);
void rp__rows_free(struct rp__row *rows, int32_t ranks);

/** Number of actions from `index` on that form one unit: a group, or 1. */
size_t rp__unit_length(const struct rp_rank_schedule *rank, size_t index);

bool rp__kind_has_microbatch(enum rp_action_kind kind);
bool rp__kind_is_compute(enum rp_action_kind kind);
bool rp__kind_is_transfer(enum rp_action_kind kind);

/** Order of F and B of a named schedule without transfers, as torch defines it. Same errors as
 * rp_schedule_generate. */
rp_status rp__schedule_compute_order(const char *name, int32_t ranks, int32_t chunks, int32_t microbatches,
                                     struct rp_schedule *out, struct rp_schedule_error *error);

/** Checks ranges, counts and local order of the compute actions; the part of rp_schedule_check that lowering
 * needs. */
rp_status rp__schedule_check_compute(const struct rp_schedule *schedule, struct rp_schedule_error *error);

/** The part of rp_schedule_check that concerns several ranks; the schedule has passed all others. */
rp_status rp__schedule_simulate(const struct rp_schedule *schedule, struct rp_schedule_error *error);

/** Appends the row of `rank` to `to` with UNSHARD and RESHARD where torch's lowering has them. */
void rp__add_unshard_reshard(const struct rp_schedule *schedule, int32_t rank, struct rp__row *to);

/** Appends one row of a lowered schedule to `to`, with a wait for every send. `pending` is a zeroed
 *  table of stages * microbatches that all rows share. */
void rp__add_wait_send(const struct rp_schedule *schedule, const struct rp_rank_schedule *row,
                       uint8_t *pending, struct rp__row *to);

static inline size_t rp__pair(const struct rp_schedule *schedule, int32_t stage, int32_t microbatch) {
  return (size_t)stage * (size_t)schedule->microbatches + (size_t)microbatch;
}

#endif
