/* Copies of the tracker's knowledge, and the words for its enums. */
#include "pool/tracker_internal.h"

#include <stdlib.h>
#include <string.h>

static uint64_t held_by_tracker_bytes(const struct rp_tracker *tracker) {
  uint64_t bytes = sizeof *tracker;
  bytes += tracker->allocations.capacity * sizeof *tracker->allocations.ranges;
  bytes += tracker->ranges.capacity * sizeof *tracker->ranges.ranges;
  bytes += tracker->buffer_capacity * sizeof *tracker->buffers;
  bytes += tracker->peers.capacity * sizeof *tracker->peers.at;
  bytes += tracker->channel_capacity * sizeof *tracker->channels;
  bytes += rp__answers_bytes(&tracker->answers);
  for (size_t i = 0; i < RP_OPEN_STEPS; i++)
    bytes += tracker->steps[i].list.capacity * sizeof(struct rp_life);
  for (size_t i = 0; i < tracker->channel_count; i++)
    bytes += tracker->channels[i].public.lifetime_count * sizeof(struct rp_lifetime);
  return bytes;
}

/* Whether the next receive buffer, downwards or upwards, lies in the same allocation. */
static bool has_neighbour(const struct rp_tracker *tracker, const struct rp_buffer *buffer) {
  const struct rp_range *ranges = tracker->ranges.ranges, *last = ranges + tracker->ranges.count - 1;
  const struct rp_range *own = rp_address_map_find(&tracker->ranges, buffer->address);
  return own &&
         ((own > ranges && tracker->buffers[own[-1].value].allocation_serial == buffer->allocation_serial) ||
          (own < last && tracker->buffers[own[1].value].allocation_serial == buffer->allocation_serial));
}

/* As the analysis of a step counts it: a part of an allocation that holds other things too, else all of it.
 */
static uint64_t held_for(const struct rp_tracker *tracker, const struct rp_buffer *buffer) {
  bool shared = rp__shares_allocation(buffer->allocation_serial, buffer->allocation_bytes, buffer->bytes,
                                      has_neighbour(tracker, buffer));
  return shared || !buffer->allocation_bytes ? buffer->bytes : buffer->allocation_bytes;
}

/* Before a step is complete there are no channels yet; what is known is how many buffers of which peer there
 * are. */
static void add_provisional(const struct rp_tracker *tracker, struct rp_channel *channels, size_t *count,
                            const struct rp_buffer *buffer, const struct rp_life *life) {
  struct rp_channel *channel = NULL;
  for (size_t i = 0; i < *count && !channel; i++)
    if (channels[i].comm == life->comm && channels[i].peer == life->peer &&
        channels[i].buffer_bytes == buffer->bytes)
      channel = &channels[i];
  if (!channel) {
    channel = &channels[(*count)++];
    *channel =
        (struct rp_channel){.comm = life->comm,
                            .peer = life->peer,
                            .device = life->device,
                            .buffer_bytes = buffer->bytes,
                            .style = tracker->any_freed ? RP_STYLE_JUST_IN_TIME : RP_STYLE_UNKNOWN,
                            .reason = tracker->any_freed ? RP_REASON_JUST_IN_TIME : RP_REASON_TOO_FEW_STEPS};
  }
  channel->buffers++;
  channel->transfers += buffer->receives;
  channel->bytes_transferred += buffer->receives * buffer->bytes;
  channel->held_bytes += held_for(tracker, buffer);
}

static rp_status copy_provisional(const struct rp_tracker *tracker, struct rp_snapshot *out) {
  out->channels = calloc(tracker->buffer_count + 1, sizeof *out->channels);
  if (!out->channels) return RP_ERROR_NO_MEMORY;
  for (size_t i = 0; i < tracker->buffer_count; i++) {
    const struct rp_buffer *buffer = &tracker->buffers[i];
    const struct rp_step *step = buffer->in_use ? rp__step_get(tracker, buffer->open_step) : NULL;
    if (step && buffer->open_index < step->list.count)
      add_provisional(tracker, out->channels, &out->channel_count, buffer,
                      &step->list.lives[buffer->open_index]);
  }
  return RP_OK;
}

/* Whether a graph holds an address of the channel since its last complete step. */
static bool captured_since(const struct rp_tracker *tracker, const struct rp_channel *channel) {
  for (size_t i = 0; i < channel->lifetime_count; i++) {
    const struct rp_range *range = rp_address_map_find(&tracker->ranges, channel->lifetimes[i].address);
    if (range && tracker->buffers[range->value].captured) return true;
  }
  return false;
}

/* A cache serves all tensors of a size. */
static bool is_cached(const struct rp_tracker *tracker, uint64_t bytes) {
  for (size_t i = 0; i < tracker->channel_count; i++)
    if (tracker->channels[i].public.buffer_bytes == bytes && rp__comes_from_a_cache(&tracker->channels[i]))
      return true;
  return false;
}

static rp_status copy_channels(const struct rp_tracker *tracker, struct rp_snapshot *out) {
  out->channels = calloc(tracker->channel_count, sizeof *out->channels);
  if (!out->channels) return RP_ERROR_NO_MEMORY;
  for (size_t i = 0; i < tracker->channel_count; i++) {
    struct rp_channel_state state = tracker->channels[i];
    state.gone = rp__channel_gone(tracker, i);
    state.cached = is_cached(tracker, state.public.buffer_bytes);
    state.captured |= captured_since(tracker, &state.public);
    rp__decide(&state, tracker->options.slack);
    size_t bytes = state.public.lifetime_count * sizeof *state.public.lifetimes;
    struct rp_lifetime *lifetimes = malloc(bytes + 1);
    if (!lifetimes) return RP_ERROR_NO_MEMORY;
    if (bytes) memcpy(lifetimes, state.public.lifetimes, bytes);
    state.public.lifetimes = lifetimes;
    out->channels[i] = state.public;
    out->channel_count++;
  }
  return RP_OK;
}

rp_status rp_tracker_snapshot(const struct rp_tracker *tracker, struct rp_snapshot *out) {
  *out = (struct rp_snapshot){0};
  rp_status status = tracker->channel_count ? copy_channels(tracker, out) : copy_provisional(tracker, out);
  if (status) {
    rp_snapshot_fini(out);
    return status;
  }
  out->steps_complete = tracker->steps_complete;
  memcpy(out->events, tracker->events, sizeof out->events);
  memcpy(out->events_by_source, tracker->events_by_source, sizeof out->events_by_source);
  out->events_ignored = tracker->events_ignored;
  out->lifetimes_dropped = tracker->lifetimes_dropped;
  out->allocations_dropped = tracker->allocations_dropped;
  out->companions_dropped = tracker->companions_dropped;
  out->labels_dropped = tracker->labels.dropped;
  out->tracker_bytes = held_by_tracker_bytes(tracker);
  for (size_t i = 0; i < out->channel_count; i++) {
    out->held_bytes += out->channels[i].held_bytes;
    out->needed_bytes += out->channels[i].needed_bytes;
    out->would_save_bytes += out->channels[i].would_save_bytes;
  }
  return RP_OK;
}

void rp_snapshot_fini(struct rp_snapshot *snapshot) {
  for (size_t i = 0; i < snapshot->channel_count; i++)
    free(snapshot->channels[i].lifetimes);
  free(snapshot->channels);
  *snapshot = (struct rp_snapshot){0};
}

/* ---- words ---- */

#define NAME_FROM(table, value)                                                                              \
  ((size_t)(value) < sizeof(table) / sizeof *(table) && (table)[value] ? (table)[value] : "unknown")

const char *rp_direction_name(enum rp_direction direction) {
  static const char *const names[] = {"unknown", "activation", "gradient"};
  return NAME_FROM(names, direction);
}

const char *rp_style_name(enum rp_allocation_style style) {
  static const char *const names[] = {"unknown", "preallocated", "just_in_time"};
  return NAME_FROM(names, style);
}

const char *rp_release_evidence_name(enum rp_release_evidence evidence) {
  static const char *const names[] = {"none",           "learned_accesses", "freed",
                                      "answering_send", "received_again",   "step_end"};
  return NAME_FROM(names, evidence);
}

const char *rp_access_kind_name(enum rp_access_kind kind) {
  static const char *const names[] = {"none", "kernel", "copy", "send", "graph"};
  return NAME_FROM(names, kind);
}

const char *rp_event_source_name(enum rp_event_source source) {
  static const char *const names[RP_SOURCE_COUNT] = {"none",          "interposer", "cupti",
                                                     "nccl_profiler", "uprobe",     "trace"};
  return NAME_FROM(names, source);
}

const char *rp_event_kind_name(enum rp_event_kind kind) {
  static const char *const names[RP_EVENT_KIND_COUNT] = {
      "none",      "alloc",        "free",         "recv",        "send",      "group_start",
      "group_end", "comm_init",    "comm_destroy", "kernel",      "copy_read", "copy_write",
      "memset",    "graph_launch", "event_record", "stream_wait", "host_sync", "label"};
  return NAME_FROM(names, kind);
}

struct reason {
  const char *name, *text;
};

static const struct reason reasons[RP_REASON_COUNT] = {
    [RP_REASON_POOLABLE] = {"poolable",
                            "Fewer buffers are in use at once than are allocated; pooling would free "
                            "the rest."},
    [RP_REASON_TOO_FEW_STEPS] = {"too_few_steps",
                                 "Fewer than two complete steps were seen; let the job run on."},
    [RP_REASON_JUST_IN_TIME] = {"just_in_time",
                                "The framework allocates each buffer just before its receive and "
                                "frees it after use; there is nothing to pool."},
    [RP_REASON_UNBOUNDED_DEPTH] =
        {"unbounded_depth", "Every buffer of the step is in use at once, so nothing can be "
                            "saved; a schedule with fewer microbatches in flight, as 1F1B has, would need "
                            "fewer."},
    [RP_REASON_WITHIN_SLACK] = {"within_slack",
                                "The buffers in use and the slack together are as many as there are; "
                                "more microbatches or less slack would change that."},
    [RP_REASON_UNSTABLE_PATTERN] = {"unstable_pattern",
                                    "The number of buffers or their use differs from step to step; "
                                    "pooling waits until it settles."},
    [RP_REASON_SHARED_ALLOCATION] = {"shared_allocation",
                                     "The buffers lie in allocations that hold other data too; "
                                     "buffers of 10 MiB and more get allocations of their own "
                                     "from PyTorch, unless its segments are expandable."},
    [RP_REASON_NO_ACCESS_EVIDENCE] = {"no_access_evidence",
                                      "No use of a received buffer was seen, so its last use is "
                                      "unknown; see the evidence list for the source that is "
                                      "missing."},
    [RP_REASON_GRAPH_CAPTURED] = {"graph_captured",
                                  "Receives or uses were captured into CUDA graphs, which hold the "
                                  "addresses."},
};

const char *rp_reason_name(enum rp_reason reason) {
  return (unsigned)reason < RP_REASON_COUNT ? reasons[reason].name : "unknown";
}

const char *rp_reason_text(enum rp_reason reason) {
  return (unsigned)reason < RP_REASON_COUNT ? reasons[reason].text : "Unknown reason.";
}
