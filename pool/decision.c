/* The decision: from what a channel did over its complete steps to whether pooling it would help, and why
 * not. */
#include "pool/tracker_internal.h"

/* The depth that counts is the largest of all steps: the same buffers serve evaluation, which needs few, and
 * training. */
static uint32_t deepest(const struct rp_channel *channel) {
  uint32_t depth = channel->depth_max > channel->depth ? channel->depth_max : channel->depth;
  return depth < channel->buffers ? depth : channel->buffers;
}

/** Of so many steps one has to look as if buffers came from a cache, before that is believed. */
#define STEPS_PER_SIGN 8u

bool rp__comes_from_a_cache(const struct rp_channel_state *state) {
  return state->cache_steps > 1 && state->cache_steps >= state->public.steps_complete / STEPS_PER_SIGN;
}

static enum rp_reason reason_of(const struct rp_channel_state *state) {
  const struct rp_channel *channel = &state->public;
  if (channel->style == RP_STYLE_JUST_IN_TIME) return RP_REASON_JUST_IN_TIME;
  if (state->gone) return RP_REASON_UNSTABLE_PATTERN;
  if (channel->steps_complete < 2) return RP_REASON_TOO_FEW_STEPS;
  if (state->captured) return RP_REASON_GRAPH_CAPTURED;
  if (!state->any_access && !state->answered) return RP_REASON_NO_ACCESS_EVIDENCE;
  if (state->stable_steps < 2) return RP_REASON_UNSTABLE_PATTERN;
  if (channel->depth_max > channel->buffers)
    return RP_REASON_UNSTABLE_PATTERN; /* steps, or no steps, differ */
  if (deepest(channel) >= channel->buffers) return RP_REASON_UNBOUNDED_DEPTH;
  if (state->shared) return RP_REASON_SHARED_ALLOCATION;
  if (channel->slots >= channel->buffers) return RP_REASON_WITHIN_SLACK;
  return RP_REASON_POOLABLE;
}

void rp__decide(struct rp_channel_state *state, uint32_t slack) {
  struct rp_channel *channel = &state->public;
  uint64_t slots = (uint64_t)deepest(channel) + slack;
  if (state->cached) channel->style = RP_STYLE_JUST_IN_TIME;
  channel->slots = slots < channel->buffers ? (uint32_t)slots : channel->buffers;
  channel->reason = reason_of(state);
  if (state->gone) channel->held_bytes = channel->unreachable_bytes = 0;
  channel->estimate = channel->steps_complete && !state->any_access;
  uint64_t per_buffer = channel->buffers ? channel->held_bytes / channel->buffers : 0;
  if (channel->style == RP_STYLE_JUST_IN_TIME) per_buffer = channel->buffer_bytes;
  channel->needed_bytes = state->gone ? 0 : deepest(channel) * per_buffer;
  channel->would_save_bytes =
      channel->reason == RP_REASON_POOLABLE ? (channel->buffers - channel->slots) * per_buffer : 0;
}
