/* From compute actions to a complete schedule, pass by pass as torch does it, because the place of a receive
 * in its list decides how many buffers are live: gradient reduction after the last backward of a stage, then
 * sends and receives. The first pass, gathering parameters, is in schedule_shard.c. */
#include "pool/schedule_internal.h"

#include <stdlib.h>
#include <string.h>

/* --- REDUCE_GRAD --- */

static void append_reductions(struct rp__row *to, const struct rp_action *unit, size_t length,
                              int32_t *backwards, int32_t microbatches, bool waits) {
  for (size_t i = 0; i < length; i++) {
    bool ends = unit[i].kind == RP_ACTION_BACKWARD || unit[i].kind == RP_ACTION_BACKWARD_WEIGHT;
    if (!ends || ++backwards[unit[i].stage] != microbatches) continue;
    rp__row_push(to, RP_ACTION_REDUCE_GRAD, unit[i].stage, -1, 0);
    if (waits) rp__row_push(to, RP_ACTION_WAIT_REDUCE_GRAD, unit[i].stage, -1, 0);
  }
}

static void add_reduce_grad(const struct rp__row *from, struct rp__row *to, int32_t *backwards,
                            int32_t microbatches, bool waits) {
  struct rp_rank_schedule row = {from->actions, from->count};
  for (size_t i = 0, length; i < row.count; i += length) {
    length = rp__unit_length(&row, i);
    rp__row_append(to, row.actions + i, length);
    append_reductions(to, row.actions + i, length, backwards, microbatches, waits);
  }
  to->failed |= from->failed;
}

/* --- SEND and RECV --- */

/* torch sweeps the ranks 0..P-1 again and again and gives each one unit per sweep. A rank that waits for a
 * receive is taken out of the sweep until its sender puts that receive into its list; the order stays the
 * same. */
struct sweep {
  const struct rp_schedule *schedule;
  const struct rp__row *from;
  struct rp__row *to;
  size_t *next;    /* [ranks] first unit not yet placed */
  uint64_t *awake; /* bit set: rank may have something to place */
  uint8_t *placed; /* [stages * microbatches] bits PLACED_* */
};

enum { PLACED_F = 1, PLACED_B = 2, PLACED_RECV_F = 4, PLACED_RECV_B = 8 };

static bool same_rank(const struct rp_schedule *s, int32_t a, int32_t b) {
  return s->stage_rank[a] == s->stage_rank[b];
}

static bool is_input_backward(enum rp_action_kind kind) {
  return kind == RP_ACTION_BACKWARD || kind == RP_ACTION_BACKWARD_INPUT;
}

static bool ready(const struct sweep *w, const struct rp_action *a) {
  const struct rp_schedule *s = w->schedule;
  int32_t from, done, received;
  if (a->kind == RP_ACTION_FORWARD && a->stage > 0) {
    from = a->stage - 1;
    done = PLACED_F;
    received = PLACED_RECV_F;
  } else if (is_input_backward(a->kind) && a->stage < s->stages - 1) {
    from = a->stage + 1;
    done = PLACED_B;
    received = PLACED_RECV_B;
  } else {
    return true;
  }
  if (same_rank(s, from, a->stage)) return w->placed[rp__pair(s, from, a->microbatch)] & done;
  return w->placed[rp__pair(s, a->stage, a->microbatch)] & received;
}

static void place_transfer(struct sweep *w, int32_t rank, const struct rp_action *a) {
  const struct rp_schedule *s = w->schedule;
  bool forward = a->kind == RP_ACTION_FORWARD;
  int32_t to = forward ? a->stage + 1 : a->stage - 1;
  if ((!forward && !is_input_backward(a->kind)) || to < 0 || to >= s->stages || same_rank(s, to, a->stage))
    return;
  int32_t peer = s->stage_rank[to];
  rp__row_push(&w->to[rank], forward ? RP_ACTION_SEND_F : RP_ACTION_SEND_B, a->stage, a->microbatch, 0);
  rp__row_push(&w->to[peer], forward ? RP_ACTION_RECV_F : RP_ACTION_RECV_B, to, a->microbatch, 0);
  w->placed[rp__pair(s, to, a->microbatch)] |= forward ? PLACED_RECV_F : PLACED_RECV_B;
  w->awake[peer / 64] |= (uint64_t)1 << peer % 64;
}

/* Places the next unit of `rank`; false if it waits or is through. */
static bool place_unit(struct sweep *w, int32_t rank) {
  const struct rp_rank_schedule row = {w->from[rank].actions, w->from[rank].count};
  size_t i = w->next[rank];
  if (i == row.count) return false;
  size_t length = rp__unit_length(&row, i);
  for (size_t j = i; j < i + length; j++)
    if (!ready(w, &row.actions[j])) return false;
  rp__row_append(&w->to[rank], row.actions + i, length);
  for (size_t j = i; j < i + length; j++) {
    const struct rp_action *a = &row.actions[j];
    if (a->kind == RP_ACTION_FORWARD)
      w->placed[rp__pair(w->schedule, a->stage, a->microbatch)] |= PLACED_F;
    else if (is_input_backward(a->kind))
      w->placed[rp__pair(w->schedule, a->stage, a->microbatch)] |= PLACED_B;
  }
  for (size_t j = i; j < i + length; j++)
    place_transfer(w, rank, &row.actions[j]);
  w->next[rank] = i + length;
  return true;
}

static int32_t next_awake(const struct sweep *w, int32_t from) {
  int32_t words = (w->schedule->ranks + 63) / 64;
  for (int32_t word = from / 64; word < words; word++) {
    uint64_t bits = w->awake[word];
    if (word == from / 64) bits &= ~(uint64_t)0 << from % 64;
    if (bits) return word * 64 + __builtin_ctzll(bits);
  }
  return -1;
}

static rp_status run_sweeps(struct sweep *w, struct rp_schedule_error *error) {
  for (int32_t r = 0; r < w->schedule->ranks; r++)
    w->awake[r / 64] |= (uint64_t)1 << r % 64;
  while (next_awake(w, 0) >= 0)
    for (int32_t r = next_awake(w, 0); r >= 0; r = r + 1 < w->schedule->ranks ? next_awake(w, r + 1) : -1)
      if (!place_unit(w, r)) w->awake[r / 64] &= ~((uint64_t)1 << r % 64);
  for (int32_t r = 0; r < w->schedule->ranks; r++) {
    if (w->next[r] < w->from[r].count)
      return rp__schedule_fail(
          error, RP_ERROR_SCHEDULE, (size_t)r, SIZE_MAX, &w->from[r].actions[w->next[r]],
          "this action waits for a neighbour that in turn waits for it: the order of the compute "
          "actions is cyclic; move it behind what it needs");
  }
  return RP_OK;
}

static rp_status add_transfers(struct rp_schedule *schedule, const struct rp__row *from,
                               struct rp_schedule_error *error) {
  size_t ranks = (size_t)schedule->ranks;
  struct sweep w = {.schedule = schedule, .from = from};
  w.to = calloc(ranks, sizeof(*w.to));
  w.next = calloc(ranks, sizeof(*w.next));
  w.awake = calloc((ranks + 63) / 64, sizeof(*w.awake));
  w.placed = calloc((size_t)schedule->stages * (size_t)schedule->microbatches, 1);
  rp_status status = w.to && w.next && w.awake && w.placed ? RP_OK : RP_ERROR_NO_MEMORY;
  if (!status) status = run_sweeps(&w, error);
  if (status)
    rp__rows_free(w.to, w.to ? schedule->ranks : 0);
  else
    status = rp__schedule_take_rows(schedule, w.to);
  free(w.next);
  free(w.awake);
  free(w.placed);
  return status;
}

/* --- all passes --- */

/* Rows with everything but the transfers, or NULL without memory. */
static struct rp__row *local_passes(const struct rp_schedule *schedule, enum rp_lowering lowering) {
  struct rp__row *rows = calloc((size_t)schedule->ranks, sizeof(*rows));
  int32_t *backwards = calloc((size_t)schedule->stages, sizeof(*backwards));
  bool failed = !rows || !backwards;
  for (int32_t r = 0; !failed && r < schedule->ranks; r++) {
    struct rp__row sharded = {0};
    rp__add_unshard_reshard(schedule, r, &sharded);
    if (lowering >= RP_LOWERING_TORCH_2_10) {
      add_reduce_grad(&sharded, &rows[r], backwards, schedule->microbatches,
                      lowering >= RP_LOWERING_TORCH_2_15);
      free(sharded.actions);
    } else {
      rows[r] = sharded;
    }
    failed = rows[r].failed;
  }
  free(backwards);
  if (!failed) return rows;
  rp__rows_free(rows, schedule->ranks);
  return NULL;
}

/* torch 2.15 states for each send where it is waited for. */
static rp_status add_waits(struct rp_schedule *schedule) {
  struct rp__row *rows = calloc((size_t)schedule->ranks, sizeof(*rows));
  uint8_t *pending = calloc((size_t)schedule->stages * (size_t)schedule->microbatches, 1);
  if (!rows || !pending) {
    free(rows);
    free(pending);
    return RP_ERROR_NO_MEMORY;
  }
  for (int32_t r = 0; r < schedule->ranks; r++)
    rp__add_wait_send(schedule, &schedule->rank[r], pending, &rows[r]);
  free(pending);
  return rp__schedule_take_rows(schedule, rows);
}

rp_status rp_schedule_lower_as(struct rp_schedule *schedule, enum rp_lowering lowering,
                               struct rp_schedule_error *error) {
  if (schedule->lowered) return RP_OK;
  rp_status status = rp__schedule_check_compute(schedule, error);
  if (status) return status;
  struct rp__row *rows = local_passes(schedule, lowering);
  status = rows ? add_transfers(schedule, rows, error) : RP_ERROR_NO_MEMORY;
  rp__rows_free(rows, rows ? schedule->ranks : 0);
  if (!status && lowering >= RP_LOWERING_TORCH_2_15) status = add_waits(schedule);
  if (!status) schedule->lowered = true;
  if (status == RP_ERROR_NO_MEMORY)
    rp__schedule_fail(error, status, SIZE_MAX, SIZE_MAX, NULL, "not enough memory to lower");
  return status;
}

rp_status rp_schedule_lower(struct rp_schedule *schedule, struct rp_schedule_error *error) {
  return rp_schedule_lower_as(schedule, RP_LOWERING_TORCH_2_10, error);
}
