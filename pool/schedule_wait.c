/* The waits for sends that torch states since 2.15: that of an activation behind the backward of the same
 * microbatch, which proves that the peer has it; all others at the end, in the order of the sends. */
#include "pool/schedule_internal.h"

enum { PENDING_F = 1, PENDING_B = 2 };

static void note_send(const struct rp_schedule *s, const struct rp_action *a, uint8_t *pending) {
  if (a->kind == RP_ACTION_SEND_F) pending[rp__pair(s, a->stage, a->microbatch)] |= PENDING_F;
  if (a->kind == RP_ACTION_SEND_B) pending[rp__pair(s, a->stage, a->microbatch)] |= PENDING_B;
}

static void wait_behind(const struct rp_schedule *s, const struct rp_action *a, uint8_t *pending,
                        struct rp__row *to) {
  if (a->kind != RP_ACTION_BACKWARD && a->kind != RP_ACTION_BACKWARD_INPUT) return;
  uint8_t *bits = &pending[rp__pair(s, a->stage, a->microbatch)];
  if (!(*bits & PENDING_F)) return;
  *bits &= (uint8_t)~PENDING_F;
  rp__row_push(to, RP_ACTION_WAIT_SEND_F, a->stage, a->microbatch, 0);
}

static void wait_at_end(const struct rp_schedule *s, const struct rp_action *a, const uint8_t *pending,
                        struct rp__row *to) {
  if (a->kind != RP_ACTION_SEND_F && a->kind != RP_ACTION_SEND_B) return;
  bool forward = a->kind == RP_ACTION_SEND_F;
  if (pending[rp__pair(s, a->stage, a->microbatch)] & (forward ? PENDING_F : PENDING_B))
    rp__row_push(to, forward ? RP_ACTION_WAIT_SEND_F : RP_ACTION_WAIT_SEND_B, a->stage, a->microbatch, 0);
}

void rp__add_wait_send(const struct rp_schedule *schedule, const struct rp_rank_schedule *row,
                       uint8_t *pending, struct rp__row *to) {
  for (size_t i = 0, length; i < row->count; i += length) {
    length = rp__unit_length(row, i);
    rp__row_append(to, row->actions + i, length);
    for (size_t j = i; j < i + length; j++)
      note_send(schedule, &row->actions[j], pending);
    for (size_t j = i; j < i + length; j++)
      wait_behind(schedule, &row->actions[j], pending, to);
  }
  for (size_t i = 0; i < row->count; i++)
    wait_at_end(schedule, &row->actions[i], pending, to);
}
