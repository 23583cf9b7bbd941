/* Runs a lowered schedule on paper: finds transfers that would pair up wrongly, and ranks that would wait for
 * ever. */
#include "pool/schedule_internal.h"

#include <stdlib.h>

#define BIT(kind) ((uint16_t)(1u << (kind)))

struct simulation {
  const struct rp_schedule *schedule;
  uint16_t *done;    /* [stages * microbatches] one bit per kind */
  uint32_t *serial;  /* [2 * stages * microbatches] place of a send in its channel */
  uint32_t *counter; /* [ranks + 2 * stages] scratch */
  bool one_channel;  /* all transfers from one rank to another share a communicator */
  size_t *next;      /* [ranks] */
  int32_t *queue;    /* [ranks] ring of ranks that may go on */
  bool *queued;      /* [ranks] */
  size_t head, length;
};

/* The stage at the other end of a transfer. */
static int32_t other_stage(const struct rp_action *a) {
  return a->kind == RP_ACTION_SEND_F || a->kind == RP_ACTION_RECV_B ? a->stage + 1 : a->stage - 1;
}

static bool is_send(enum rp_action_kind kind) {
  return kind == RP_ACTION_SEND_F || kind == RP_ACTION_SEND_B;
}

/* Serial numbers are kept at the receiving stage, activations and gradients apart. */
static size_t serial_index(const struct rp_schedule *s, const struct rp_action *a) {
  bool gradient = a->kind == RP_ACTION_SEND_B || a->kind == RP_ACTION_RECV_B;
  return 2 * rp__pair(s, is_send(a->kind) ? other_stage(a) : a->stage, a->microbatch) + gradient;
}

/* What keeps its order: everything between two ranks, or only one direction of one stage. */
static uint32_t *counter_of(const struct simulation *m, const struct rp_action *a) {
  const struct rp_schedule *s = m->schedule;
  if (m->one_channel) return &m->counter[s->stage_rank[other_stage(a)]];
  bool gradient = a->kind == RP_ACTION_SEND_B || a->kind == RP_ACTION_RECV_B;
  int32_t receiver = is_send(a->kind) ? other_stage(a) : a->stage;
  return &m->counter[s->ranks + 2 * receiver + gradient];
}

/* Numbers the sends of a row, or compares its receives with those numbers. */
static rp_status number_row(struct simulation *m, int32_t r, bool sends, struct rp_schedule_error *error) {
  const struct rp_schedule *s = m->schedule;
  rp_status status = RP_OK;
  for (size_t i = 0; i < s->rank[r].count && !status; i++) {
    const struct rp_action *a = &s->rank[r].actions[i];
    if (!rp__kind_is_transfer(a->kind) || is_send(a->kind) != sends) continue;
    uint32_t number = (*counter_of(m, a))++;
    uint32_t *serial = &m->serial[serial_index(s, a)];
    if (sends)
      *serial = number;
    else if (*serial != number)
      status =
          rp__schedule_fail(error, RP_ERROR_SCHEDULE, (size_t)r, i, a,
                            "rank %d sends this as number %u but it is received as number %u; NCCL pairs "
                            "transfers in order, so the wrong data would land here",
                            s->stage_rank[other_stage(a)], *serial, number);
  }
  for (size_t i = 0; i < s->rank[r].count; i++) {
    const struct rp_action *a = &s->rank[r].actions[i];
    if (rp__kind_is_transfer(a->kind)) *counter_of(m, a) = 0;
  }
  return status;
}

static rp_status check_pairing(struct simulation *m, struct rp_schedule_error *error) {
  rp_status status = RP_OK;
  for (int32_t r = 0; r < m->schedule->ranks; r++)
    number_row(m, r, true, error);
  for (int32_t r = 0; r < m->schedule->ranks && !status; r++)
    status = number_row(m, r, false, error);
  return status;
}

static bool done(const struct simulation *m, int32_t stage, int32_t microbatch, uint16_t bits) {
  return m->done[rp__pair(m->schedule, stage, microbatch)] & bits;
}

/* NULL if the action can run now, else what it waits for. Posts and sends never wait; computing does. */
static const char *waits_for(const struct simulation *m, const struct rp_action *a) {
  const struct rp_schedule *s = m->schedule;
  const uint16_t backward = BIT(RP_ACTION_BACKWARD) | BIT(RP_ACTION_BACKWARD_INPUT);
  if (a->kind == RP_ACTION_FORWARD && a->stage > 0) {
    bool local = s->stage_rank[a->stage - 1] == s->stage_rank[a->stage];
    if (local)
      return done(m, a->stage - 1, a->microbatch, BIT(RP_ACTION_FORWARD)) ? NULL : "the forward before it";
    if (!done(m, a->stage, a->microbatch, BIT(RP_ACTION_RECV_F))) return "its RECV_F";
    return done(m, a->stage - 1, a->microbatch, BIT(RP_ACTION_SEND_F)) ? NULL
                                                                       : "the SEND_F of the stage before";
  }
  if ((BIT(a->kind) & backward) && a->stage < s->stages - 1) {
    bool local = s->stage_rank[a->stage + 1] == s->stage_rank[a->stage];
    if (local) return done(m, a->stage + 1, a->microbatch, backward) ? NULL : "the backward after it";
    if (!done(m, a->stage, a->microbatch, BIT(RP_ACTION_RECV_B))) return "its RECV_B";
    return done(m, a->stage + 1, a->microbatch, BIT(RP_ACTION_SEND_B)) ? NULL
                                                                       : "the SEND_B of the stage after";
  }
  return NULL;
}

static void wake(struct simulation *m, int32_t rank) {
  if (m->queued[rank]) return;
  m->queued[rank] = true;
  m->queue[(m->head + m->length++) % (size_t)m->schedule->ranks] = rank;
}

static void advance(struct simulation *m, int32_t r) {
  const struct rp_rank_schedule *row = &m->schedule->rank[r];
  for (; m->next[r] < row->count; m->next[r]++) {
    const struct rp_action *a = &row->actions[m->next[r]];
    if (waits_for(m, a)) return;
    if (a->microbatch < 0) continue;
    m->done[rp__pair(m->schedule, a->stage, a->microbatch)] |= BIT(a->kind);
    if (is_send(a->kind)) wake(m, m->schedule->stage_rank[other_stage(a)]);
  }
}

static rp_status run(struct simulation *m, struct rp_schedule_error *error) {
  const struct rp_schedule *s = m->schedule;
  for (int32_t r = 0; r < s->ranks; r++)
    wake(m, r);
  while (m->length) {
    int32_t r = m->queue[m->head];
    m->head = (m->head + 1) % (size_t)s->ranks;
    m->length--;
    m->queued[r] = false;
    advance(m, r);
  }
  for (int32_t r = 0; r < s->ranks; r++) {
    if (m->next[r] == s->rank[r].count) continue;
    const struct rp_action *a = &s->rank[r].actions[m->next[r]];
    return rp__schedule_fail(error, RP_ERROR_SCHEDULE, (size_t)r, m->next[r], a,
                             "this action waits for %s and that never comes: the schedule is cyclic",
                             waits_for(m, a));
  }
  return RP_OK;
}

rp_status rp__schedule_simulate(const struct rp_schedule *schedule, struct rp_schedule_error *error) {
  size_t pairs = (size_t)schedule->stages * (size_t)schedule->microbatches, ranks = (size_t)schedule->ranks;
  struct simulation m = {.schedule = schedule};
  m.done = calloc(pairs, sizeof(*m.done));
  m.serial = calloc(2 * pairs, sizeof(*m.serial));
  m.counter = calloc(ranks + 2 * (size_t)schedule->stages, sizeof(*m.counter));
  m.next = calloc(ranks, sizeof(*m.next));
  m.queue = calloc(ranks, sizeof(*m.queue));
  m.queued = calloc(ranks, sizeof(*m.queued));
  rp_status status;
  if (!m.done || !m.serial || !m.counter || !m.next || !m.queue || !m.queued)
    status =
        rp__schedule_fail(error, RP_ERROR_NO_MEMORY, SIZE_MAX, SIZE_MAX, NULL, "not enough memory to check");
  else
    status = check_pairing(&m, error);
  if (!status) status = run(&m, error);
  free(m.done);
  free(m.serial);
  free(m.counter);
  free(m.next);
  free(m.queue);
  free(m.queued);
  return status;
}

rp_status rp_schedule_check_one_channel(const struct rp_schedule *schedule, struct rp_schedule_error *error) {
  if (!schedule->lowered) return RP_ERROR_STATE;
  size_t pairs = (size_t)schedule->stages * (size_t)schedule->microbatches;
  struct simulation m = {.schedule = schedule, .one_channel = true};
  m.serial = calloc(2 * pairs, sizeof(*m.serial));
  m.counter = calloc((size_t)schedule->ranks, sizeof(*m.counter));
  rp_status status = m.serial && m.counter ? check_pairing(&m, error) : RP_ERROR_NO_MEMORY;
  free(m.serial);
  free(m.counter);
  return status;
}
