/* The tracker's front: takes events and keeps allocations, receive buffers and lifetimes. */
#include "pool/tracker_internal.h"

#include <stdlib.h>
#include <string.h>

#define DEFAULT_MIN_BYTES 65536u
#define DEFAULT_MAX_BUFFERS 65536u
#define DEFAULT_MAX_HISTORY 16384u

struct rp_tracker *rp_tracker_create(const struct rp_tracker_options *options,
                                     const struct rp_tracker_sink *sink) {
  struct rp_tracker *tracker = calloc(1, sizeof *tracker);
  if (!tracker) return NULL;
  if (options) tracker->options = *options;
  if (!tracker->options.min_bytes) tracker->options.min_bytes = DEFAULT_MIN_BYTES;
  if (!tracker->options.max_buffers) tracker->options.max_buffers = DEFAULT_MAX_BUFFERS;
  if (!tracker->options.max_history) tracker->options.max_history = DEFAULT_MAX_HISTORY;
  if (sink) tracker->sink = *sink;
  tracker->peers.world_size = tracker->options.world_size;
  return tracker;
}

void rp_tracker_destroy(struct rp_tracker *tracker) {
  if (!tracker) return;
  rp__steps_fini(tracker);
  rp__channels_fini(tracker);
  rp__answers_fini(tracker);
  rp_address_map_fini(&tracker->allocations);
  rp_address_map_fini(&tracker->ranges);
  free(tracker->buffers);
  rp__peers_fini(&tracker->peers);
  free(tracker);
}

rp_status rp_tracker_allocation_at(const struct rp_tracker *tracker, uint64_t address, uint64_t *begin,
                                   uint64_t *bytes) {
  const struct rp_range *range = rp_address_map_find(&tracker->allocations, address);
  if (!range) return RP_ERROR_NOT_FOUND;
  if (begin) *begin = range->begin;
  if (bytes) *bytes = range->end - range->begin;
  return RP_OK;
}

/* ---- lifetimes ---- */

struct rp_life *rp__open_life(struct rp_tracker *tracker, struct rp_buffer *buffer) {
  struct rp_step *step = buffer->has_open ? rp__step_get(tracker, buffer->open_step) : NULL;
  return step && buffer->open_index < step->list.count ? &step->list.lives[buffer->open_index] : NULL;
}

/* Whether the life did what the buffer's earlier lives did: then it was over with its last access. */
static bool did_what_was_learned(const struct rp_buffer *buffer, const struct rp_life *life) {
  return buffer->learned && buffer->learned_accesses && life->public.accesses == buffer->learned_accesses &&
         life->public.last_access_function == buffer->learned_function;
}

static void close_life(struct rp_tracker *tracker, struct rp_buffer *buffer,
                       enum rp_release_evidence evidence, uint64_t time_ns, uint64_t seq) {
  struct rp_life *life = rp__open_life(tracker, buffer);
  buffer->has_open = false;
  if (!life || life->closed) return;
  struct rp_lifetime *public = &life->public;
  if (did_what_was_learned(buffer, life)) {
    evidence = RP_RELEASE_LEARNED_ACCESSES;
    time_ns = public->last_access_ns;
    seq = public->last_access_seq;
  } else if (!public->accesses && life->answered_seq) {
    evidence = RP_RELEASE_ANSWERING_SEND;
    time_ns = life->answered_ns;
    seq = life->answered_seq;
  }
  public->release_evidence = evidence;
  public->released_ns = time_ns;
  public->released_seq = seq;
  life->closed = true;
  life->freed = evidence == RP_RELEASE_FREED;
  buffer->learned = true;
  buffer->learned_accesses = public->accesses;
  buffer->learned_function = public->last_access_function;
  struct rp_step *step = rp__step_get(tracker, buffer->open_step);
  if (step) step->open--;
}

/* ---- receive buffers ---- */

static struct rp_buffer *buffer_at(struct rp_tracker *tracker, uint64_t address) {
  struct rp_range *range = rp_address_map_find(&tracker->ranges, address);
  return range ? &tracker->buffers[range->value] : NULL;
}

static rp_status take_buffer_slot(struct rp_tracker *tracker, size_t *index) {
  for (; tracker->buffer_free < tracker->buffer_count; tracker->buffer_free++) {
    if (!tracker->buffers[tracker->buffer_free].in_use) {
      *index = tracker->buffer_free;
      return RP_OK;
    }
  }
  if (tracker->buffer_count >= tracker->options.max_buffers) return RP_ERROR_LIMIT;
  if (tracker->buffer_count == tracker->buffer_capacity) {
    size_t capacity = tracker->buffer_capacity ? 2 * tracker->buffer_capacity : 64;
    struct rp_buffer *grown = realloc(tracker->buffers, capacity * sizeof *grown);
    if (!grown) return RP_ERROR_NO_MEMORY;
    tracker->buffers = grown;
    tracker->buffer_capacity = capacity;
  }
  *index = tracker->buffer_count++;
  return RP_OK;
}

static void drop_buffer(struct rp_tracker *tracker, struct rp_buffer *buffer,
                        enum rp_release_evidence evidence, const struct rp_event *event) {
  close_life(tracker, buffer, evidence, event->time_ns, event->seq);
  rp_address_map_remove(&tracker->ranges, buffer->address, NULL);
  if (tracker->sink.range_removed)
    tracker->sink.range_removed(tracker->sink.context, buffer->address, buffer->address + buffer->bytes);
  size_t index = (size_t)(buffer - tracker->buffers);
  *buffer = (struct rp_buffer){0};
  if (index < tracker->buffer_free) tracker->buffer_free = index;
}

static rp_status new_buffer(struct rp_tracker *tracker, const struct rp_event *event,
                            struct rp_buffer **out) {
  size_t index;
  rp_status status = take_buffer_slot(tracker, &index);
  if (status) return status;
  uint64_t end = event->address + event->bytes;
  struct rp_buffer *buffer = &tracker->buffers[index];
  *buffer = (struct rp_buffer){.address = event->address, .bytes = event->bytes};
  status = rp_address_map_add(&tracker->ranges, event->address, end, index);
  if (status) return status;
  buffer->in_use = true;
  buffer->serial = ++tracker->buffer_serial;
  const struct rp_range *allocation = rp_address_map_find(&tracker->allocations, event->address);
  if (allocation) {
    buffer->allocation_begin = allocation->begin;
    buffer->allocation_bytes = allocation->end - allocation->begin;
    buffer->allocation_serial = allocation->value;
  }
  if (tracker->sink.range_added) tracker->sink.range_added(tracker->sink.context, event->address, end);
  *out = buffer;
  return RP_OK;
}

/* ---- receives ---- */

/* Step that a further receive into `buffer` belongs to: one after its last. A buffer that lags by more than
 * the step whose end overlaps the next one's begin was left out of steps (evaluation) and joins the current
 * one. */
static uint64_t next_step_of(const struct rp_tracker *tracker, const struct rp_buffer *buffer) {
  uint64_t step = buffer->last_step + 1, current = tracker->current_step;
  bool overlaps = step + 1 == current && rp__step_get(tracker, step);
  return step >= current || overlaps ? step : current;
}

static rp_status find_or_make_buffer(struct rp_tracker *tracker, const struct rp_event *event,
                                     struct rp_buffer **out) {
  struct rp_buffer *buffer = buffer_at(tracker, event->address);
  if (buffer && buffer->address == event->address && buffer->bytes == event->bytes) {
    *out = buffer;
    return RP_OK;
  }
  struct rp_range *stale;
  while ((stale = rp_address_map_overlap(&tracker->ranges, event->address, event->address + event->bytes)))
    drop_buffer(tracker, &tracker->buffers[stale->value], RP_RELEASE_RECEIVED_AGAIN, event);
  return new_buffer(tracker, event, out);
}

/* NCCL tells its profiler of every replay of a captured receive; nothing tells of the uses in the same graph.
 */
static bool is_replay(struct rp_tracker *tracker, const struct rp_event *event) {
  const struct rp_buffer *buffer = buffer_at(tracker, event->address);
  return buffer && buffer->captured && event->source == RP_SOURCE_NCCL_PROFILER;
}

static rp_status take_receive(struct rp_tracker *tracker, const struct rp_event *event) {
  if (event->bytes < tracker->options.min_bytes || event->address + event->bytes <= event->address) {
    tracker->events_ignored++;
    return RP_OK;
  }
  if (is_replay(tracker, event)) {
    tracker->events_ignored++;
    return RP_OK;
  }
  rp__peers_note(&tracker->peers, event);
  if (!tracker->buffer_serial) tracker->first_receive_allocation_serial = tracker->allocation_serial;
  if (tracker->frees_of_buffers) tracker->any_freed = true;
  struct rp_buffer *buffer;
  rp_status status = find_or_make_buffer(tracker, event, &buffer);
  if (status) {
    tracker->lifetimes_dropped++;
    return status;
  }
  uint64_t step = tracker->current_step;
  if (buffer->receives) {
    close_life(tracker, buffer, RP_RELEASE_RECEIVED_AGAIN, event->time_ns, event->seq);
    step = next_step_of(tracker, buffer);
    tracker->any_received_again = true;
  }
  buffer->captured |= (event->flags & RP_EVENT_FLAG_CAPTURED) != 0;
  struct rp_life life = {.public = {.step = step,
                                    .address = event->address,
                                    .posted_ns = event->time_ns,
                                    .posted_seq = event->seq,
                                    .post_stream = event->stream,
                                    .label = rp_labels_current(&tracker->labels, event->tid)},
                         .comm = event->comm,
                         .peer = event->peer,
                         .device = event->device,
                         .bytes = event->bytes,
                         .buffer_serial = buffer->serial,
                         .allocation_serial = buffer->allocation_serial,
                         .allocation_bytes = buffer->allocation_bytes,
                         .operations = event->operations,
                         .captured = buffer->captured,
                         .moved = buffer->receives &&
                                  (buffer->comm != event->comm || buffer->peer != event->peer)};
  status = rp__step_add(tracker, step, &life, &buffer->open_index);
  if (status) {
    tracker->lifetimes_dropped++;
    return status;
  }
  buffer->has_open = true;
  buffer->open_step = step;
  buffer->last_step = step;
  buffer->receives++;
  buffer->comm = event->comm;
  buffer->peer = event->peer;
  rp__answers_receive(tracker, event, (size_t)(buffer - tracker->buffers));
  rp__steps_advance(tracker);
  return RP_OK;
}

/* ---- accesses ---- */

static uint64_t signature_key(const struct rp_event *event) {
  uint64_t key = event->function * 0x9e3779b97f4a7c15u ^ event->arg_offset * 0xc2b2ae3d27d4eb4fu;
  key ^= (uint64_t)event->kind << 56;
  key = (key ^ key >> 31) * 0xff51afd7ed558ccdu; /* finaliser of MurmurHash3 (public domain) */
  return key ^ key >> 33;
}

static void add_signature(struct rp_life *life, uint64_t key) {
  for (uint16_t i = 0; i < life->signature_count; i++)
    if (life->signature[i] == key) return;
  if (life->signature_count < RP_LIFE_SIGNATURE) life->signature[life->signature_count++] = key;
}

static void add_companion(struct rp_tracker *tracker, struct rp_life *life, uint64_t address) {
  if (rp_address_map_find(&tracker->ranges, address))
    return; /* another receive buffer says nothing about the stage */
  const struct rp_range *allocation = rp_address_map_find(&tracker->allocations, address);
  if (!allocation) return;
  struct rp_key_set *set = &life->companions;
  uint64_t key = rp__companion_key(allocation->value, address - allocation->begin);
  for (uint16_t i = 0; i < set->count; i++)
    if (set->key[i] == key) return;
  if (set->count < RP_LIFE_COMPANIONS)
    set->key[set->count++] = key;
  else
    tracker->companions_dropped++;
}

static void access_buffer(struct rp_tracker *tracker, struct rp_buffer *buffer, const struct rp_event *event,
                          enum rp_access_kind kind) {
  struct rp_life *life = rp__open_life(tracker, buffer);
  buffer->captured |= (event->flags & RP_EVENT_FLAG_CAPTURED) != 0;
  if (!life) {
    tracker->events_ignored++;
    return;
  }
  bool same_launch = (event->flags & RP_EVENT_FLAG_INPLACE) && life->public.accesses &&
                     life->last_operations == event->operations;
  struct rp_lifetime *public = &life->public;
  if (!same_launch) {
    if (!public->accesses) {
      public->first_access_ns = event->time_ns;
      public->first_access_seq = event->seq;
    }
    public->accesses++;
    public->last_access_ns = event->time_ns;
    public->last_access_seq = event->seq;
    public->last_access_stream = event->stream;
    public->last_access_function = kind == RP_ACCESS_KERNEL ? event->function : 0;
    public->last_access_kind = kind;
    life->last_operations = event->operations;
  }
  life->captured |= buffer->captured;
  life->sent |= kind == RP_ACCESS_SEND;
  add_signature(life, signature_key(event));
  uint16_t companions =
      event->companion_count < RP_EVENT_COMPANIONS ? event->companion_count : RP_EVENT_COMPANIONS;
  for (uint16_t i = 0; i < companions; i++)
    add_companion(tracker, life, event->companion[i]);
  tracker->companions_dropped += event->companions_dropped;
}

/* Every buffer that [address, address + bytes) overlaps is accessed; a kernel names one address. */
static void take_access(struct rp_tracker *tracker, const struct rp_event *event, enum rp_access_kind kind) {
  uint64_t at = event->address, end = event->bytes ? event->address + event->bytes : event->address + 1;
  struct rp_range *range;
  bool any = false;
  while (at < end && (range = rp_address_map_overlap(&tracker->ranges, at, end))) {
    access_buffer(tracker, &tracker->buffers[range->value], event, kind);
    at = range->end;
    any = true;
  }
  tracker->events_ignored += !any;
}

/* ---- allocations ---- */

static void drop_buffers_in(struct rp_tracker *tracker, uint64_t begin, uint64_t end,
                            const struct rp_event *event) {
  struct rp_range *range;
  while ((range = rp_address_map_overlap(&tracker->ranges, begin, end))) {
    tracker->frees_of_buffers++;
    drop_buffer(tracker, &tracker->buffers[range->value], RP_RELEASE_FREED, event);
  }
}

static rp_status take_alloc(struct rp_tracker *tracker, const struct rp_event *event) {
  uint64_t end = event->address + event->bytes;
  struct rp_range *stale;
  /* What overlaps was freed without our seeing it. */
  while ((stale = rp_address_map_overlap(&tracker->allocations, event->address, end)))
    rp_address_map_remove(&tracker->allocations, stale->begin, NULL);
  drop_buffers_in(tracker, event->address, end, event);
  rp_status status =
      rp_address_map_add(&tracker->allocations, event->address, end, ++tracker->allocation_serial);
  if (status) tracker->allocations_dropped++;
  return status;
}

static void take_free(struct rp_tracker *tracker, const struct rp_event *event) {
  struct rp_range allocation;
  if (rp_address_map_remove(&tracker->allocations, event->address, &allocation))
    return; /* made before attach, or NULL */
  drop_buffers_in(tracker, allocation.begin, allocation.end, event);
}

static rp_status take_send(struct rp_tracker *tracker, const struct rp_event *event) {
  if (event->bytes >= tracker->options.min_bytes) {
    rp__peers_note(&tracker->peers, event);
    rp__answers_send(tracker, event);
  }
  if (rp_address_map_overlap(&tracker->ranges, event->address, event->address + event->bytes))
    take_access(tracker, event, RP_ACCESS_SEND);
  return RP_OK;
}

void rp_tracker_restart(struct rp_tracker *tracker) {
  for (size_t i = 0; i < tracker->buffer_count; i++) {
    const struct rp_buffer *buffer = &tracker->buffers[i];
    if (buffer->in_use && tracker->sink.range_removed)
      tracker->sink.range_removed(tracker->sink.context, buffer->address, buffer->address + buffer->bytes);
  }
  rp_address_map_fini(&tracker->ranges);
  tracker->buffer_count = tracker->buffer_free = tracker->peers.count = 0;
  tracker->buffer_serial = tracker->first_receive_allocation_serial = tracker->frees_of_buffers = 0;
  tracker->any_received_again = tracker->any_freed = false;
  rp__channels_fini(tracker);
  rp__answers_fini(tracker);
  rp__steps_restart(tracker);
}

void rp_tracker_assume_rank(struct rp_tracker *tracker, int32_t rank) {
  tracker->peers.rank_assumed = true;
  tracker->peers.rank = rank;
}

static void finish_buffer(struct rp_tracker *tracker, struct rp_buffer *buffer, uint64_t time_ns) {
  if (buffer->in_use && buffer->has_open)
    close_life(tracker, buffer, RP_RELEASE_STEP_END, time_ns, tracker->last_seq + 1);
}

void rp_tracker_finish(struct rp_tracker *tracker, uint64_t time_ns) {
  if (tracker->finished) return;
  tracker->finished = true;
  for (size_t i = 0; i < tracker->buffer_count; i++)
    finish_buffer(tracker, &tracker->buffers[i], time_ns);
  rp__steps_finish(tracker);
}

rp_status rp_tracker_event(struct rp_tracker *tracker, const struct rp_event *event) {
  if (event->version != RP_EVENT_VERSION || event->kind >= RP_EVENT_KIND_COUNT) return RP_ERROR_VERSION;
  if (tracker->finished) return RP_OK;
  tracker->events[event->kind]++;
  tracker->last_seq = event->seq;
  tracker->events_by_source[event->source < RP_SOURCE_COUNT ? event->source : RP_SOURCE_NONE]++;
  switch (event->kind) {
  case RP_EVENT_ALLOC:
    return take_alloc(tracker, event);
  case RP_EVENT_FREE:
    take_free(tracker, event);
    return RP_OK;
  case RP_EVENT_RECV:
    return take_receive(tracker, event);
  case RP_EVENT_SEND:
    return take_send(tracker, event);
  case RP_EVENT_KERNEL:
    take_access(tracker, event, RP_ACCESS_KERNEL);
    return RP_OK;
  case RP_EVENT_COPY_READ:
    take_access(tracker, event, RP_ACCESS_COPY);
    return RP_OK;
  case RP_EVENT_COMM_INIT:
    rp__peers_comm(&tracker->peers, event);
    return RP_OK;
  case RP_EVENT_COMM_DESTROY:
    rp__peers_end(&tracker->peers, event->comm);
    rp__steps_comm_end(tracker, event->comm);
    return RP_OK;
  case RP_EVENT_GROUP_START:
  case RP_EVENT_GROUP_END:
    rp__answers_group(tracker, event);
    return RP_OK;
  case RP_EVENT_LABEL:
    if (event->aux)
      rp_labels_push(&tracker->labels, event->tid, event->function);
    else
      rp_labels_pop(&tracker->labels, event->tid);
    return RP_OK;
  default: /* counted; order events are for the guard */
    return RP_OK;
  }
}
