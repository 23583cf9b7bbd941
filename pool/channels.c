/* Channels over steps: takes one complete step after the other, groups its lifetimes and keeps N, D and the
 * lifetimes of the last step for each channel. */
#include "pool/grouping.h"
#include "pool/interval.h"

#include <stdlib.h>
#include <string.h>

/** An allocation may be this much larger than its buffer and still be its own: allocators round up. */
#define OWN_ALLOCATION_ROUNDING_BYTES (2u << 20)

static struct rp_channel_state *find_channel(struct rp_tracker *tracker, const struct rp_group *group) {
  for (size_t i = 0; i < tracker->channel_count; i++) {
    const struct rp_channel *channel = &tracker->channels[i].public;
    if (channel->comm == group->comm && channel->peer == group->peer &&
        channel->buffer_bytes == group->bytes && channel->direction == group->direction &&
        channel->stage_ordinal == group->stage_ordinal)
      return &tracker->channels[i];
  }
  return NULL;
}

bool rp__channel_gone(const struct rp_tracker *tracker, size_t index) {
  const struct rp_channel_state *state = &tracker->channels[index];
  if (state->seen_in_last_step) return false;
  for (size_t i = 0; i < state->public.lifetime_count; i++) {
    const struct rp_range *range = rp_address_map_find(&tracker->ranges, state->public.lifetimes[i].address);
    if (!range || tracker->buffers[range->value].channel != index + 1) return true;
  }
  return false;
}

/* A place for a new channel; NULL without memory. */
static struct rp_channel_state *take_channel_slot(struct rp_tracker *tracker) {
  for (size_t i = 0; tracker->channel_count >= RP_CHANNELS_KEPT && i < tracker->channel_count; i++) {
    if (!rp__channel_gone(tracker, i)) continue;
    free(tracker->channels[i].public.lifetimes);
    return &tracker->channels[i];
  }
  if (tracker->channel_count == tracker->channel_capacity) {
    size_t capacity = tracker->channel_capacity ? 2 * tracker->channel_capacity : 8;
    struct rp_channel_state *grown = realloc(tracker->channels, capacity * sizeof *grown);
    if (!grown) return NULL;
    tracker->channels = grown;
    tracker->channel_capacity = capacity;
  }
  return &tracker->channels[tracker->channel_count++];
}

static struct rp_channel_state *add_channel(struct rp_tracker *tracker, const struct rp_group *group) {
  struct rp_channel_state *channel = take_channel_slot(tracker);
  if (!channel) return NULL;
  *channel = (struct rp_channel_state){.public = {.comm = group->comm,
                                                  .peer = group->peer,
                                                  .device = group->device,
                                                  .direction = group->direction,
                                                  .stage_ordinal = group->stage_ordinal,
                                                  .buffer_bytes = group->bytes,
                                                  .depth_min = UINT32_MAX}};
  return channel;
}

static struct rp_interval interval_of(const struct rp_lifetime *lifetime, bool until_released) {
  uint64_t begin = lifetime->posted_seq;
  bool answered = lifetime->release_evidence == RP_RELEASE_ANSWERING_SEND;
  uint64_t end = until_released || answered ? lifetime->released_seq : lifetime->last_access_seq;
  return (struct rp_interval){begin, end > begin ? end : begin};
}

/* Overlap of the step's lifetimes in host order (with until_released, of the time their memory is held), and
 * of those of the step before that reach into it: a receive posted across the step's border must not make the
 * depth look smaller. */
static rp_status depth_of(const struct rp_lifetime *lifetimes, size_t count, const struct rp_channel *before,
                          bool until_released, uint32_t *depth) {
  struct rp_interval *intervals = malloc((count + before->lifetime_count + 1) * sizeof *intervals);
  if (!intervals) return RP_ERROR_NO_MEMORY;
  size_t used = 0;
  uint64_t begin = UINT64_MAX;
  for (size_t i = 0; i < count; i++) {
    intervals[used++] = interval_of(&lifetimes[i], until_released);
    begin = lifetimes[i].posted_seq < begin ? lifetimes[i].posted_seq : begin;
  }
  for (size_t i = 0; i < before->lifetime_count; i++) {
    struct rp_interval interval = interval_of(&before->lifetimes[i], until_released);
    if (interval.end >= begin) intervals[used++] = interval;
  }
  rp_status status = rp_interval_depth(intervals, used, depth);
  free(intervals);
  return status;
}

bool rp__shares_allocation(uint64_t serial, uint64_t allocation_bytes, uint64_t bytes, bool has_neighbour) {
  return serial && (has_neighbour || allocation_bytes < bytes ||
                    allocation_bytes > bytes + OWN_ALLOCATION_ROUNDING_BYTES);
}

/* What a stage does with a buffer it does in every step and with all buffers of the channel: it passes them
 * on or not. And a buffer is of one channel. Blocks of a cache hold other tensors between two receives, some
 * of which are sent. */
static void note_cache(struct rp_channel_state *state, uint32_t buffers) {
  bool all = state->sent_buffers == buffers;
  bool differs = state->public.steps_complete > 1 && all != state->all_sent;
  bool some = state->sent_buffers && !all;
  state->cache_steps += some || differs || state->moved_buffers;
  state->all_sent = all;
}

static void update_numbers(struct rp_channel_state *state, uint32_t buffers, uint32_t depth) {
  struct rp_channel *channel = &state->public;
  bool same = channel->steps_complete && channel->buffers == buffers && channel->depth == depth;
  state->stable_steps = same ? state->stable_steps + 1 : 1;
  channel->buffers = buffers;
  channel->depth = depth;
  channel->depth_min = depth < channel->depth_min ? depth : channel->depth_min;
  channel->depth_max = depth > channel->depth_max ? depth : channel->depth_max;
  channel->steps_complete++;
  channel->transfers += buffers;
  channel->bytes_transferred += (uint64_t)buffers * channel->buffer_bytes;
  state->seen_in_last_step = true;
}

void rp__channels_end(struct rp_tracker *tracker) {
  for (size_t i = 0; i < tracker->channel_count; i++)
    tracker->channels[i].ended |= tracker->channels[i].seen_in_last_step;
}

/* Another communicator has the handle: what was received before is counted, and tells nothing of what is in
 * use now. */
static void begin_anew(struct rp_channel_state *state) {
  state->ended = false;
  state->stable_steps = 0;
  state->cache_steps = 0;
  state->public.accesses_most = 0;
  state->public.depth_min = UINT32_MAX;
  state->public.depth_max = 0;
}

/* A buffer belongs to the channel it served last; what an earlier grouping made of it is history. */
static void claim_buffer(struct rp_tracker *tracker, const struct rp_channel_state *state,
                         const struct rp_life *life) {
  const struct rp_range *range = rp_address_map_find(&tracker->ranges, life->public.address);
  if (range && tracker->buffers[range->value].serial == life->buffer_serial)
    tracker->buffers[range->value].channel = (size_t)(state - tracker->channels) + 1;
}

/* Adds up what one lifetime says of its channel. The first step may try things out. */
static void add_life(struct rp_channel_state *state, const struct rp_life *life, bool shared) {
  struct rp_channel *channel = &state->public;
  if (channel->steps_complete && life->public.accesses > channel->accesses_most)
    channel->accesses_most = life->public.accesses;
  state->captured |= life->captured;
  state->sent_buffers += life->sent;
  state->moved_buffers += life->moved;
  state->any_access |= life->public.accesses != 0;
  state->answered &= life->public.release_evidence == RP_RELEASE_ANSWERING_SEND;
  state->shared |= shared;
  state->public.held_bytes += shared || !life->allocation_bytes ? life->bytes : life->allocation_bytes;
  state->public.unreachable_bytes += shared ? life->bytes : 0;
}

static rp_status take_group(struct rp_tracker *tracker, uint64_t number, const struct rp_life *lives,
                            size_t count, const struct rp_grouping *grouping, uint32_t g, bool just_in_time) {
  const struct rp_group *group = &grouping->groups[g];
  struct rp_lifetime *lifetimes = calloc(group->size, sizeof *lifetimes);
  struct rp_channel_state *state = find_channel(tracker, group);
  if (!state) state = add_channel(tracker, group);
  if (!lifetimes || !state) {
    free(lifetimes);
    return RP_ERROR_NO_MEMORY;
  }
  if (state->ended) begin_anew(state);
  state->public.held_bytes = state->public.unreachable_bytes = 0;
  state->captured = state->any_access = state->shared = false;
  state->answered = true;
  state->sent_buffers = state->moved_buffers = 0;
  for (size_t i = 0; i < count; i++) {
    if (grouping->group_of[i] != g) continue;
    struct rp_lifetime *lifetime = &lifetimes[grouping->microbatch[i]];
    *lifetime = lives[i].public;
    lifetime->step = number;
    lifetime->microbatch = grouping->microbatch[i];
    claim_buffer(tracker, state, &lives[i]);
    add_life(state, &lives[i],
             rp__shares_allocation(lives[i].allocation_serial, lives[i].allocation_bytes, lives[i].bytes,
                                   grouping->has_neighbour[i]));
  }
  uint32_t depth = 0, held_at_once = 0;
  if (depth_of(lifetimes, group->size, &state->public, false, &depth) ||
      depth_of(lifetimes, group->size, &state->public, true, &held_at_once)) {
    free(lifetimes);
    return RP_ERROR_NO_MEMORY;
  }
  if (state->shared) /* one that has no neighbour now is in such an allocation, too */
    state->public.held_bytes = state->public.unreachable_bytes =
        (uint64_t)group->size * state->public.buffer_bytes;
  if (just_in_time) state->public.held_bytes = state->public.held_bytes / group->size * held_at_once;
  state->public.style = just_in_time                  ? RP_STYLE_JUST_IN_TIME
                        : tracker->any_received_again ? RP_STYLE_PREALLOCATED
                                                      : RP_STYLE_UNKNOWN;
  note_cache(state, group->size);
  update_numbers(state, group->size, depth);
  free(state->public.lifetimes);
  state->public.lifetimes = lifetimes;
  state->public.lifetime_count = group->size;
  return RP_OK;
}

/* ---- grouping, remembered while steps look the same ---- */

static uint64_t step_key(const struct rp_life *lives, size_t count, bool just_in_time) {
  uint64_t key = rp__mix(just_in_time, count);
  for (size_t i = 0; i < count; i++) {
    const struct rp_life *life = &lives[i];
    key = rp__mix(rp__mix(rp__mix(key, life->comm), (uint64_t)(int64_t)life->peer), life->bytes);
    key = rp__mix(rp__mix(key, just_in_time ? 0 : life->buffer_serial), life->public.accesses);
    for (uint16_t k = 0; k < life->signature_count; k++)
      key = rp__mix(key, life->signature[k]);
  }
  return key;
}

static void forget_grouping(struct rp_grouping_cache *cache) {
  if (cache->grouping) rp_grouping_fini(cache->grouping);
  free(cache->grouping);
  *cache = (struct rp_grouping_cache){0};
}

/* Grouping of the step: the remembered one if the last two steps looked like it. */
static const struct rp_grouping *group_step(struct rp_tracker *tracker, const struct rp_life *lives,
                                            size_t count, bool just_in_time) {
  struct rp_grouping_cache *cache = &tracker->cache;
  uint64_t key = rp__mix(step_key(lives, count, just_in_time), tracker->peers.cleared);
  uint32_t repeats = cache->grouping && cache->key == key ? cache->repeats + 1 : 0;
  if (repeats >= 2) {
    cache->repeats = repeats;
    return cache->grouping;
  }
  forget_grouping(cache);
  struct rp_grouping *grouping = malloc(sizeof *grouping);
  const struct rp_group_hints hints = {&tracker->peers, tracker->first_receive_allocation_serial,
                                       just_in_time};
  if (!grouping || rp_group_lives(lives, count, &hints, grouping)) {
    free(grouping);
    return NULL;
  }
  *cache = (struct rp_grouping_cache){key, repeats, grouping};
  return grouping;
}

rp_status rp__channels_take_step(struct rp_tracker *tracker, uint64_t number, struct rp_life *lives,
                                 size_t count, bool just_in_time) {
  const struct rp_grouping *grouping = group_step(tracker, lives, count, just_in_time);
  if (!grouping) return RP_ERROR_NO_MEMORY;
  for (size_t i = 0; i < tracker->channel_count; i++)
    tracker->channels[i].seen_in_last_step = false;
  for (uint32_t g = 0; g < grouping->group_count; g++) {
    rp_status status = take_group(tracker, number, lives, count, grouping, g, just_in_time);
    if (status) return status;
  }
  return RP_OK;
}

void rp__channels_fini(struct rp_tracker *tracker) {
  for (size_t i = 0; i < tracker->channel_count; i++)
    free(tracker->channels[i].public.lifetimes);
  free(tracker->channels);
  tracker->channels = NULL;
  tracker->channel_count = tracker->channel_capacity = 0;
  forget_grouping(&tracker->cache);
}
