/* Steps, and what is done between two of them. A step ends when a buffer is received into again. */
#include "pool/guard_internal.h"

/* What fails again and again is tried less and less often, but never given up. */
#define RETRY_DISTANCE_MOST 64

static uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0xff51afd7ed558ccdu; /* step of MurmurHash3's finaliser (public domain) */
  return hash ^ hash >> 29;
}

/* What the step received, in order, and how often each message was used. 0: not known. */
static uint64_t step_pattern(const struct rp_guard *guard) {
  const struct rp__guard_list *list = &guard->received;
  uint64_t hash = mix(1, list->count);
  if (list->lost) return 0;
  for (size_t i = 0; i < list->count; i++) {
    const struct rp__guard_buffer *buffer = rp__guard_entry(guard, &list->at[i]);
    if (!buffer) return 0;
    hash = mix(mix(mix(hash, buffer->birth), buffer->receive_bytes), buffer->comm);
    hash = mix(mix(hash, (uint64_t)(int64_t)buffer->peer), buffer->now.total);
  }
  return hash ? hash : 1;
}

static uint32_t what_is_due(struct rp_guard *guard) {
  struct rp_pool_info info;
  uint32_t due = 0;
  if (guard->step < guard->retry_step) return 0;
  rp_pool_info(guard->pool, &info);
  if (info.fallback_pending || info.pins_pending || info.cleanup_pending) due |= RP__GUARD_DUE_QUIESCENT;
  bool steady = guard->stable >= guard->options.watch_steps && guard->pattern != guard->decided;
  /* With a plan: those that it has no place for. candidates() says why there are none. */
  bool may = !guard->off && !guard->options.blind && (!guard->plan.given || guard->plan.usable);
  if (may && steady && rp__guard_joinable(guard)) due |= RP__GUARD_DUE_JOIN;
  if (may && steady && rp__guard_candidates(guard)) due |= RP__GUARD_DUE_ACTIVATE;
  return due;
}

/* What the step teaches: evidence of training, or none. */
static void judge_step(struct rp_guard *guard) {
  for (size_t i = 0; i < guard->received.count; i++) {
    struct rp__guard_buffer *buffer = rp__guard_entry(guard, &guard->received.at[i]);
    if (buffer && buffer->step == guard->step)
      buffer->trained = rp__guard_peer_answered(guard, buffer->comm, buffer->peer);
  }
}

void rp__guard_step_end(struct rp_guard *guard) {
  uint64_t pattern = step_pattern(guard);
  rp__guard_note_rounding(guard);
  judge_step(guard);
  guard->stable = pattern && pattern == guard->pattern ? guard->stable + 1 : 1;
  guard->pattern = pattern;
  struct rp__guard_list before = guard->received_before;
  guard->received_before = guard->received;
  guard->received = before;
  guard->received.count = 0;
  guard->received.lost = false;
  rp_pool_step_end(guard->pool);
  guard->step++;
  guard->read_again_before = guard->read_again;
  guard->read_again = false;
  rp__guard_doubt(guard);
  rp__guard_plan_step(guard);
  guard->due = what_is_due(guard);
}

void rp__guard_retry_later(struct rp_guard *guard) {
  guard->retry_step = guard->step + guard->retry_distance;
  if (guard->retry_distance < RETRY_DISTANCE_MOST) guard->retry_distance *= 2;
}

void rp__guard_boundary_action(struct rp_guard *guard, uint64_t context, struct rp_guard_action *action) {
  action->next = RP_GUARD_ACT;
  action->boundary = true;
  action->serial = guard->serial;
  for (uint32_t id = 0; !guard->options.shadow && id < guard->buffer_count; id++)
    if (guard->buffers[id].in_use) rp__guard_idle(guard, &guard->buffers[id], context, action);
}

rp_status rp_guard_boundary(struct rp_guard *guard, const struct rp_guard_channel *channels, size_t count,
                            uint64_t begun_ns) {
  rp_status status = RP_OK;
  bool begun = false;
  uint32_t due = guard->due;
  guard->due = 0;
  rp__guard_places(guard, channels, count);
  if (due & RP__GUARD_DUE_QUIESCENT) status = rp_pool_quiescent(guard->pool, false);
  if (status) guard->boundary_failures++;
  if (!status && (due & RP__GUARD_DUE_JOIN) && !guard->off) status = rp__guard_join(guard);
  if (!status && (due & RP__GUARD_DUE_JOIN) && !(due & RP__GUARD_DUE_ACTIVATE))
    guard->decided = guard->pattern;
  if (!status && (due & RP__GUARD_DUE_ACTIVATE) && !guard->off) status = rp__guard_activate(guard, &begun);
  if (status)
    rp__guard_retry_later(guard);
  else
    guard->retry_distance = 1;
  if (!begun) return status;
  rp__guard_why_idle(guard, NULL, NULL);
  if (!guard->activations++) {
    guard->activated_step = guard->step - 1;
    guard->activated_ns = begun_ns;
  }
  return RP_OK;
}

void rp_guard_boundary_postpone(struct rp_guard *guard) {
  if (guard->due & RP__GUARD_DUE_ACTIVATE) guard->postponements++;
  guard->postponed = rp_pool_frozen(guard->pool);
  guard->due = 0;
  rp__guard_retry_later(guard);
}
