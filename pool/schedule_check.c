/* What a schedule must satisfy to be run: every microbatch once, each action behind what it needs, transfers
 * in pairs and in the same order on both sides, and no cycle between ranks. */
#include "pool/schedule_internal.h"

#include <stdlib.h>
#include <string.h>

/* Actions seen or done per (stage, microbatch), one bit per kind. */
#define BIT(kind) ((uint16_t)(1u << (kind)))
#define BACKWARDS (BIT(RP_ACTION_BACKWARD) | BIT(RP_ACTION_BACKWARD_INPUT))

struct checker {
  const struct rp_schedule *schedule;
  struct rp_schedule_error *error;
  uint16_t *seen; /* [stages * microbatches] */
};

#define REFUSE(c, row, column, action, ...)                                                                  \
  rp__schedule_fail((c)->error, RP_ERROR_SCHEDULE, (size_t)(row), (size_t)(column), (action), __VA_ARGS__)

static uint16_t *bits_of(const struct checker *c, int32_t stage, int32_t microbatch) {
  return &c->seen[rp__pair(c->schedule, stage, microbatch)];
}

/* --- numbers --- */

static rp_status check_dimensions(const struct checker *c) {
  const struct rp_schedule *s = c->schedule;
  size_t actions = 0;
  if (s->ranks < 1 || s->stages < 1 || s->microbatches < 1)
    return REFUSE(c, SIZE_MAX, SIZE_MAX, NULL, "the schedule has no actions");
  for (int32_t r = 0; r < s->ranks; r++)
    actions += s->rank[r].count;
  /* Every microbatch needs a forward on every stage; also what bounds the tables made from a hostile file. */
  if ((uint64_t)s->stages * (uint64_t)s->microbatches > actions)
    return REFUSE(c, SIZE_MAX, SIZE_MAX, NULL,
                  "%d stages and %d microbatches appear, but there are only %zu actions: some forwards are "
                  "missing, or a "
                  "number is mistyped",
                  s->stages, s->microbatches, actions);
  if (s->stages > RP__MAX_STAGES || (uint64_t)s->stages * (uint64_t)s->microbatches > RP__MAX_PAIRS)
    return REFUSE(c, SIZE_MAX, SIZE_MAX, NULL, "%d stages x %d microbatches is more than this program takes",
                  s->stages, s->microbatches);
  return RP_OK;
}

static rp_status check_action(const struct checker *c, int32_t row, size_t column,
                              const struct rp_action *a) {
  const struct rp_schedule *s = c->schedule;
  bool microbatch = rp__kind_has_microbatch(a->kind);
  if (a->stage < 0 || a->stage >= s->stages)
    return REFUSE(c, row, column, a, "stage %d does not exist; there are %d", a->stage, s->stages);
  if (microbatch && (a->microbatch < 0 || a->microbatch >= s->microbatches))
    return REFUSE(c, row, column, a, "microbatch %d does not exist; there are %d", a->microbatch,
                  s->microbatches);
  if (s->stage_rank[a->stage] != row)
    return REFUSE(c, row, column, a, "stage %d belongs to rank %d; a stage lives on one rank", a->stage,
                  s->stage_rank[a->stage]);
  if (!microbatch) return RP_OK;
  uint16_t *bits = bits_of(c, a->stage, a->microbatch);
  if (*bits & BIT(a->kind)) return REFUSE(c, row, column, a, "this action is there twice; remove one");
  *bits |= BIT(a->kind);
  return RP_OK;
}

/* --- order within one rank --- */

/* What must already be in the same list, given the bits of the pair; 0 = satisfied. */
static const char *missing_before(const struct rp_action *a, uint16_t bits) {
  bool forward = bits & BIT(RP_ACTION_FORWARD), input = bits & BACKWARDS;
  switch (a->kind) {
  case RP_ACTION_BACKWARD:
    if (bits & (BIT(RP_ACTION_BACKWARD_INPUT) | BIT(RP_ACTION_BACKWARD_WEIGHT)))
      return "a whole backward B and a split one (I, W) of the same microbatch; keep one of them";
    return forward ? NULL : "the backward comes without its forward F; put F before it";
  case RP_ACTION_BACKWARD_INPUT:
    if (bits & BIT(RP_ACTION_BACKWARD))
      return "a whole backward B and a split one (I, W) of the same microbatch; keep one of them";
    return forward ? NULL : "the backward comes without its forward F; put F before it";
  case RP_ACTION_BACKWARD_WEIGHT:
    return bits & BIT(RP_ACTION_BACKWARD_INPUT)
               ? NULL
               : "the weight part W comes without its input part I before it";
  case RP_ACTION_SEND_F:
    return forward ? NULL : "the activation is sent before its forward F has made it";
  case RP_ACTION_SEND_B:
    return input ? NULL : "the gradient is sent before its backward B or I has made it";
  case RP_ACTION_RECV_F:
    return forward ? "the activation is received after its forward F has read it" : NULL;
  case RP_ACTION_RECV_B:
    return input ? "the gradient is received after its backward has read it" : NULL;
  case RP_ACTION_WAIT_SEND_F:
    return bits & BIT(RP_ACTION_SEND_F) ? NULL : "this waits for a SEND_F that is not before it";
  case RP_ACTION_WAIT_SEND_B:
    return bits & BIT(RP_ACTION_SEND_B) ? NULL : "this waits for a SEND_B that is not before it";
  default:
    return NULL;
  }
}

static rp_status check_row(const struct checker *c, int32_t row, bool compute_only) {
  const struct rp_rank_schedule *rank = &c->schedule->rank[row];
  for (size_t i = 0; i < rank->count; i++) {
    const struct rp_action *a = &rank->actions[i];
    if (compute_only && !rp__kind_is_compute(a->kind))
      return REFUSE(c, row, i, a, "a schedule without transfers can hold only F, B, I, W and OVERLAP_F_B");
    if (rp__kind_has_microbatch(a->kind) && a->stage >= 0 && a->stage < c->schedule->stages &&
        a->microbatch >= 0 && a->microbatch < c->schedule->microbatches) {
      const char *missing = missing_before(a, *bits_of(c, a->stage, a->microbatch));
      if (missing) return REFUSE(c, row, i, a, "%s", missing);
    }
    rp_status status = check_action(c, row, i, a);
    if (status) return status;
  }
  return RP_OK;
}

/* --- completeness --- */

static rp_status check_complete(const struct checker *c) {
  const struct rp_schedule *s = c->schedule;
  bool trains = false;
  for (size_t p = 0; p < (size_t)s->stages * (size_t)s->microbatches && !trains; p++)
    trains = c->seen[p] & BACKWARDS;
  for (int32_t stage = 0; stage < s->stages; stage++) {
    for (int32_t k = 0; k < s->microbatches; k++) {
      uint16_t bits = *bits_of(c, stage, k);
      struct rp_action a = {RP_ACTION_FORWARD, stage, k, 0};
      if (!(bits & BIT(RP_ACTION_FORWARD)))
        return REFUSE(c, s->stage_rank[stage], SIZE_MAX, &a, "this forward is missing");
      a.kind = RP_ACTION_BACKWARD;
      if (trains && !(bits & BACKWARDS))
        return REFUSE(c, s->stage_rank[stage], SIZE_MAX, &a, "this backward is missing (B, or I and W)");
      a.kind = RP_ACTION_BACKWARD_WEIGHT;
      if ((bits & BIT(RP_ACTION_BACKWARD_INPUT)) && !(bits & BIT(RP_ACTION_BACKWARD_WEIGHT)))
        return REFUSE(c, s->stage_rank[stage], SIZE_MAX, &a,
                      "the weight part of this split backward is missing");
    }
  }
  return RP_OK;
}

/* The transfer `kind` of `stage` must exist exactly if `wanted`. */
static rp_status check_transfer(const struct checker *c, int32_t stage, int32_t k, enum rp_action_kind kind,
                                bool wanted, const char *unwanted_reason) {
  struct rp_action a = {kind, stage, k, 0};
  bool there = *bits_of(c, stage, k) & BIT(kind);
  if (there == wanted) return RP_OK;
  if (there) return REFUSE(c, c->schedule->stage_rank[stage], SIZE_MAX, &a, "%s", unwanted_reason);
  bool receive = kind == RP_ACTION_RECV_F || kind == RP_ACTION_RECV_B;
  return REFUSE(c, c->schedule->stage_rank[stage], SIZE_MAX, &a,
                receive ? "this receive is missing; what the other rank sends has nowhere to go"
                        : "this send is missing; the other rank waits for it for ever");
}

static rp_status check_boundary(const struct checker *c, int32_t stage, int32_t k) {
  const struct rp_schedule *s = c->schedule;
  bool last = stage == s->stages - 1;
  bool remote = !last && s->stage_rank[stage] != s->stage_rank[stage + 1];
  const char *why = last ? "the last stage has no stage after it to exchange with"
                         : "both stages are on this rank and hand over locally; remove the transfer";
  rp_status status = check_transfer(c, stage, k, RP_ACTION_SEND_F, remote, why);
  bool back = remote && (*bits_of(c, stage + 1, k) & BACKWARDS);
  if (!status) status = check_transfer(c, stage, k, RP_ACTION_RECV_B, back, why);
  if (last || status) return status;
  status = check_transfer(c, stage + 1, k, RP_ACTION_RECV_F, remote, why);
  return status ? status : check_transfer(c, stage + 1, k, RP_ACTION_SEND_B, back, why);
}

static rp_status check_transfers(const struct checker *c) {
  const struct rp_schedule *s = c->schedule;
  for (int32_t k = 0; k < s->microbatches; k++) {
    for (int32_t stage = 0; stage < s->stages; stage++) {
      rp_status status = check_boundary(c, stage, k);
      if (status) return status;
    }
    const uint16_t before = BIT(RP_ACTION_RECV_F) | BIT(RP_ACTION_SEND_B);
    if (*bits_of(c, 0, k) & before) {
      struct rp_action a = {*bits_of(c, 0, k) & BIT(RP_ACTION_RECV_F) ? RP_ACTION_RECV_F : RP_ACTION_SEND_B,
                            0, k, 0};
      return REFUSE(c, s->stage_rank[0], SIZE_MAX, &a,
                    "the first stage has no stage before it to exchange with");
    }
  }
  return RP_OK;
}

/* --- entry points --- */

static rp_status check_rows(const struct checker *c, bool compute_only) {
  rp_status status = RP_OK;
  for (int32_t r = 0; !status && r < c->schedule->ranks; r++)
    status = check_row(c, r, compute_only);
  return status ? status : check_complete(c);
}

static rp_status checker_init(struct checker *c, const struct rp_schedule *schedule,
                              struct rp_schedule_error *error) {
  *c = (struct checker){schedule, error, NULL};
  rp_status status = check_dimensions(c);
  if (status) return status;
  c->seen = calloc((size_t)schedule->stages * (size_t)schedule->microbatches, sizeof(*c->seen));
  if (c->seen) return RP_OK;
  return rp__schedule_fail(error, RP_ERROR_NO_MEMORY, SIZE_MAX, SIZE_MAX, NULL, "not enough memory to check");
}

rp_status rp__schedule_check_compute(const struct rp_schedule *schedule, struct rp_schedule_error *error) {
  struct checker c;
  rp_status status = checker_init(&c, schedule, error);
  if (!status) status = check_rows(&c, true);
  free(c.seen);
  return status;
}

rp_status rp_schedule_check(const struct rp_schedule *schedule, struct rp_schedule_error *error) {
  struct checker c;
  rp_status status = checker_init(&c, schedule, error);
  if (!status) status = check_rows(&c, !schedule->lowered);
  if (!status && schedule->lowered) status = check_transfers(&c);
  free(c.seen);
  if (!status && schedule->lowered) status = rp__schedule_simulate(schedule, error);
  return status;
}
