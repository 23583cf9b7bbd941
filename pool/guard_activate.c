/* Auto mode: from what the last step did to which buffers share which slots. */
#include "pool/guard_internal.h"
#include "pool/slots.h"
#include "pool/tracker.h"

#include <stdlib.h>

/* Beyond so many messages that are not ready for reuse at once there is nothing to find with slack_auto. */
#define UNREADY_MOST 1024
/* Sizes of unused memory told apart; what does not fit counts for every size. */
#define IDLE_SIZES 32

struct candidate {
  uint64_t label, bytes, mapped_bytes; /**< of a receive; of the buffer */
  uint32_t id, order;
};

/* Buffers of one label and size, in the order of their receives. */
struct group {
  const struct candidate *at;
  size_t count;
  uint32_t *ids, *slots;
  struct rp_interval *intervals;
};

static bool open_life(const struct rp_pool_buffer_info *info) {
  return info->life == RP_POOL_POSTED || info->life == RP_POOL_LIVE;
}

/* Has it memory of its own that nobody but the program's receives has a hold on, and never shared? */
static bool eligible(const struct rp_guard *guard, const struct rp__guard_buffer *buffer,
                     const struct rp_pool_buffer_info *info) {
  return buffer && buffer->receives && !buffer->partial && info->binding == RP_POOL_PRIVATE &&
         info->class_id == RP_POOL_NONE && !info->flags && !rp__guard_is_other_size(guard, buffer);
}

static void because(struct rp_guard *guard, enum rp_reason reason) {
  rp__guard_why_idle(guard, rp_reason_name(reason), rp_reason_text(reason));
}

static void because_in_use(struct rp_guard *guard) {
  rp__guard_why_idle(guard, "in_use", "Messages of a step were still in use when the next step began.");
}

static void because_not_launched(struct rp_guard *guard) {
  rp__guard_why_idle(guard, "not_launched",
                     "Whether NCCL had launched the transfers of a step was not known when the next step "
                     "began: a communicator that does not block tells it only where the program asks with "
                     "ncclCommGetAsyncError.");
}

/* What keeps a buffer from sharing before anybody asks about its label. */
static void why_not(struct rp_guard *guard, const struct rp__guard_buffer *buffer,
                    const struct rp_pool_buffer_info *info) {
  if (rp__guard_is_other_size(guard, buffer))
    rp__guard_why_idle(guard, rp_pool_reason_name(RP_POOL_SIZE_NEVER_SEEN), rp__guard_wrong_size);
  else if (info->flags & RP_POOL_FLAG_GRAPH)
    because(guard, RP_REASON_GRAPH_CAPTURED);
  else if (info->flags & RP_POOL_FLAG_ESCAPED)
    rp__guard_why_idle(guard, rp_pool_reason_name(RP_POOL_ESCAPED), rp_pool_reason_text(RP_POOL_ESCAPED));
  else if (info->flags)
    rp__guard_why_idle(guard, rp_pool_reason_name(RP_POOL_REGISTERED),
                       rp_pool_reason_text(RP_POOL_REGISTERED));
  else if (buffer->partial)
    because(guard, RP_REASON_SHARED_ALLOCATION);
  else if (buffer->waiting)
    because_not_launched(guard);
  else if (!buffer->now.total)
    because(guard, RP_REASON_NO_ACCESS_EVIDENCE);
  else if (open_life(info))
    because_in_use(guard);
}

/* ---- memory that nothing uses ---- */

/* A pipeline that goes there and back again answers each message even in an evaluation. What no evaluation
 * does is to read a message again once something was sent. Where the steps so far have not done that either,
 * and as many buffers as share sit unused, those may be for the gradients. */
static bool sure(const struct rp_guard *guard) {
  return !guard->options.sends_told || guard->read_again_before;
}

/* Nothing has used it, or nothing since a step before the last one. What something else than a message has
 * used since, an allocator has given away. */
static bool sits_idle(const struct rp_guard *guard, uint32_t id) {
  const struct rp__guard_buffer *buffer = &guard->buffers[id];
  if (!buffer->receives) return !buffer->touched_step;
  return buffer->step + 1 < guard->step && buffer->touched_step <= buffer->step + 1;
}

/* How many buffers sit idle of each size. */
struct idle_sizes {
  uint64_t mapped_bytes[IDLE_SIZES];
  size_t buffers[IDLE_SIZES], sizes;
  size_t others; /* of sizes for which there is no room */
};

static void idle_sizes_add(struct idle_sizes *idle, uint64_t mapped_bytes) {
  size_t i = 0;
  while (i < idle->sizes && idle->mapped_bytes[i] != mapped_bytes)
    i++;
  if (i == IDLE_SIZES) {
    idle->others++;
    return;
  }
  if (i == idle->sizes) idle->buffers[idle->sizes++] = 0;
  idle->mapped_bytes[i] = mapped_bytes;
  idle->buffers[i]++;
}

/* `fresh`: only those that nothing has ever used. */
static void idle_sizes_find(const struct rp_guard *guard, bool fresh, struct idle_sizes *out) {
  *out = (struct idle_sizes){0};
  for (uint32_t id = 0; id < guard->buffer_count; id++) {
    const struct rp__guard_buffer *buffer = &guard->buffers[id];
    if (!buffer->in_use || !sits_idle(guard, id) || (fresh && buffer->receives)) continue;
    struct rp_pool_buffer_info info = rp__guard_info(guard, id);
    if (info.binding == RP_POOL_PRIVATE && !info.flags) idle_sizes_add(out, info.mapped_bytes);
  }
}

static size_t idle_of(const struct idle_sizes *idle, uint64_t mapped_bytes) {
  for (size_t i = 0; i < idle->sizes; i++)
    if (idle->mapped_bytes[i] == mapped_bytes) return idle->buffers[i] + idle->others;
  return idle->others;
}

static void doubt_class(struct rp_guard *guard, uint32_t pool_class) {
  for (uint32_t id = 0; id < guard->buffer_count; id++) {
    struct rp_pool_buffer_info info = rp__guard_info(guard, id);
    if (info.binding == RP_POOL_BOUND && info.class_id == pool_class)
      guard->buffers[id].doubted_step = guard->step;
  }
}

void rp__guard_doubt(struct rp_guard *guard) {
  struct idle_sizes idle;
  bool found = false;
  for (uint32_t c = 0; c < guard->class_count; c++) {
    const struct rp__guard_class *class = &guard->classes[c];
    struct rp_pool_class_info info;
    if (class->sure || class->buffers == 0 || rp_pool_class(guard->pool, class->pool_class, &info)) continue;
    if (!found) idle_sizes_find(guard, true, &idle);
    found = true;
    if (idle_of(&idle, info.mapped_bytes) >= class->buffers) doubt_class(guard, class->pool_class);
  }
}

static void because_unused(struct rp_guard *guard) {
  rp__guard_why_idle(
      guard, "buffers_unused",
      "The program holds buffers of this size that the last steps have not used, so steps with "
      "more receives may come.");
}

bool rp__guard_candidates(struct rp_guard *guard) {
  size_t found = 0;
  for (size_t i = 0; i < guard->received_before.count && found < 2; i++) {
    const struct rp__guard_buffer *buffer = rp__guard_entry(guard, &guard->received_before.at[i]);
    struct rp_pool_buffer_info info = rp__guard_info(guard, guard->received_before.at[i].id);
    if (!buffer) continue;
    why_not(guard, buffer, &info);
    found += eligible(guard, buffer, &info) && !open_life(&info);
  }
  if (found == 1) because(guard, RP_REASON_UNBOUNDED_DEPTH); /* of one buffer */
  return found >= 2;
}

void rp__guard_places(struct rp_guard *guard, const struct rp_guard_channel *channels, size_t count) {
  for (size_t i = 0; i < count; i++) {
    uint32_t id;
    if (rp_pool_find(guard->pool, channels[i].address, &id)) continue;
    if (guard->buffers[id].address != channels[i].address) continue;
    guard->buffers[id].place = (struct rp__guard_place){.label = channels[i].label,
                                                        .stage = channels[i].stage,
                                                        .direction = channels[i].direction,
                                                        .microbatch = channels[i].microbatch,
                                                        .known = true};
  }
}

static int compare_candidates(const void *one, const void *other) {
  const struct candidate *a = one, *b = other;
  if (a->label != b->label) return a->label < b->label ? -1 : 1;
  if (a->bytes != b->bytes) return a->bytes < b->bytes ? -1 : 1;
  if (a->mapped_bytes != b->mapped_bytes) return a->mapped_bytes < b->mapped_bytes ? -1 : 1;
  return (a->order > b->order) - (a->order < b->order);
}

static size_t collect(const struct rp_guard *guard, struct candidate *out) {
  size_t count = 0;
  for (size_t i = 0; i < guard->received_before.count; i++) {
    uint32_t id = guard->received_before.at[i].id;
    const struct rp__guard_buffer *buffer = rp__guard_entry(guard, &guard->received_before.at[i]);
    struct rp_pool_buffer_info info = rp__guard_info(guard, id);
    if (!eligible(guard, buffer, &info) || !buffer->place.known) continue;
    out[count++] =
        (struct candidate){buffer->place.label, buffer->receive_bytes, info.mapped_bytes, id, (uint32_t)i};
  }
  if (count) qsort(out, count, sizeof *out, compare_candidates);
  return count;
}

/* ---- one group ---- */

/* What an evaluation is done with a training step reads again, and nothing tells the two apart before it is
 * too late. */
static void because_forward_only(struct rp_guard *guard, const struct group *group) {
  if (rp__guard_sent_elsewhere(guard, guard->buffers[group->at[0].id].comm))
    rp__guard_why_idle(
        guard, "answers_unknown",
        "Messages go out over other communicators than these come in by, and whether they go back to where "
        "these came from, as in training, cannot be told; send both ways over one communicator, or over two "
        "that have the same members, all of the job or more than two.");
  else
    rp__guard_why_idle(
        guard, "forward_only",
        "Not every message was answered by one to where it came from: the step was an evaluation, or had one "
        "in it. A training step would read messages again that seem to be done with; let two of them follow "
        "each other, or, where none ever comes, enforce with a plan that was made from an observed run.");
}

/* RP_OK: all were read, and trained on. RP_ERROR_STATE: never, with the reason told; RP_ERROR_BUSY: not now.
 */
static rp_status group_ready(struct rp_guard *guard, const struct group *group) {
  bool evidence = true, training = true;
  struct idle_sizes idle;
  for (size_t i = 0; i < group->count; i++) {
    const struct rp__guard_buffer *buffer = &guard->buffers[group->at[i].id];
    struct rp_pool_buffer_info info = rp__guard_info(guard, group->at[i].id);
    evidence &= buffer->now.total > 0 || (open_life(&info) && buffer->learned.total > 0);
    training &= buffer->trained;
  }
  if (!evidence) {
    because(guard, RP_REASON_NO_ACCESS_EVIDENCE);
    return RP_ERROR_STATE;
  }
  if (!training) {
    because_forward_only(guard, group);
    return RP_ERROR_STATE;
  }
  idle_sizes_find(guard, false, &idle);
  if (!sure(guard) && idle_of(&idle, group->at[0].mapped_bytes) >= group->count) {
    because_unused(guard);
    return RP_ERROR_BUSY;
  }
  return RP_OK;
}

/* Lifetimes of the last step (`before`: of the one before); `until_ready`: until their slot could be taken.
 * One that goes on into the step that begins has not ended yet. */
static rp_status depth_of(const struct rp_guard *guard, struct group *group, bool before, bool until_ready,
                          uint32_t slack, uint32_t *slots, struct rp_slots *out) {
  for (size_t i = 0; i < group->count; i++) {
    const struct rp__guard_buffer *buffer = &guard->buffers[group->at[i].id];
    uint64_t begin = before ? buffer->post_before : buffer->post;
    struct rp_pool_buffer_info info = rp__guard_info(guard, group->at[i].id);
    uint64_t end = before ? buffer->last_before : open_life(&info) ? guard->clock : buffer->last;
    if (until_ready && buffer->ready > end) end = buffer->ready;
    group->intervals[i] = (struct rp_interval){begin, end};
  }
  return rp_slots_assign(group->intervals, group->count, slack, slots, out);
}

struct by_begin {
  uint64_t begin, end;
  uint32_t slot;
};

static int compare_begins(const void *one, const void *other) {
  const struct by_begin *a = one, *b = other;
  if (a->slot != b->slot) return a->slot < b->slot ? -1 : 1;
  return (a->begin > b->begin) - (a->begin < b->begin);
}

/* Would the slots have been right in the step before, too? `intervals` are that step's. */
static rp_status slots_fit(const struct group *group) {
  struct by_begin *sorted = malloc((group->count + 1) * sizeof *sorted);
  rp_status status = RP_OK;
  if (!sorted) return RP_ERROR_NO_MEMORY;
  for (size_t i = 0; i < group->count; i++)
    sorted[i] = (struct by_begin){group->intervals[i].begin, group->intervals[i].end, group->slots[i]};
  qsort(sorted, group->count, sizeof *sorted, compare_begins);
  for (size_t i = 1; i < group->count; i++)
    if (sorted[i].slot == sorted[i - 1].slot && sorted[i].begin <= sorted[i - 1].end) status = RP_ERROR_STATE;
  free(sorted);
  return status;
}

/* Slots by the last step, checked against the one before. `depth` is D without any slack. */
static rp_status choose_slots(struct rp_guard *guard, struct group *group, struct rp_slots *chosen,
                              uint32_t *depth) {
  struct rp_slots now, before;
  uint32_t hint = rp__guard_hinted_slots(guard, group->at[0].bytes), slack = guard->options.slack;
  bool find = guard->options.slack_auto && !hint;
  rp_status status = depth_of(guard, group, false, false, 0, NULL, &now);
  if (hint) slack = hint > now.depth ? hint - now.depth : 0;
  if (!status) status = depth_of(guard, group, false, find, find ? 0 : slack, group->slots, chosen);
  if (!status) status = depth_of(guard, group, true, false, 0, NULL, &before);
  if (status) return status;
  *depth = now.depth;
  if (now.depth >= group->count)
    because(guard, RP_REASON_UNBOUNDED_DEPTH);
  else if (now.depth != before.depth || slots_fit(group))
    because(guard, RP_REASON_UNSTABLE_PATTERN);
  else if (chosen->count >= group->count)
    because(guard, RP_REASON_WITHIN_SLACK);
  else
    return RP_OK;
  return RP_ERROR_STATE;
}

static rp_status note_class(struct rp_guard *guard, const struct group *group, uint32_t pool_class,
                            const struct rp_pool_class_spec *spec, uint32_t depth) {
  const struct rp__guard_buffer *first = &guard->buffers[group->ids[0]];
  struct rp__guard_class made = {.pool_class = pool_class,
                                 .label = spec->label,
                                 .receive_bytes = spec->receive_bytes,
                                 .stage = first->place.stage,
                                 .peer = first->peer,
                                 .direction = first->place.direction,
                                 .slots = spec->slots,
                                 .buffers = spec->buffers,
                                 .depth = depth,
                                 .sure = sure(guard),
                                 .slack = spec->slots - depth};
  for (size_t i = 0; i < group->count; i++)
    if (guard->buffers[group->ids[i]].peer != made.peer) made.peer = -1;
  for (uint32_t c = 0; c < guard->class_count; c++) {
    if (guard->classes[c].pool_class != pool_class) continue;
    guard->classes[c] = made; /* the pool uses a spent class again */
    return RP_OK;
  }
  struct rp__guard_class *grown =
      realloc(guard->classes, (guard->class_count + (size_t)1) * sizeof *guard->classes);
  if (!grown) return RP_ERROR_NO_MEMORY; /* the class has no names in the report then */
  guard->classes = grown;
  guard->classes[guard->class_count++] = made;
  return RP_OK;
}

static rp_status pool_activate(struct rp_guard *guard, const struct group *group,
                               const struct rp_slots *chosen, uint32_t depth) {
  struct rp_pool_class_spec spec = {.label = group->at[0].label,
                                    .granularity = RP_PLAN_STAGE,
                                    .receive_bytes = group->at[0].bytes,
                                    .mapped_bytes = group->at[0].mapped_bytes,
                                    .slots = chosen->count,
                                    .buffers = (uint32_t)group->count};
  uint32_t made;
  for (size_t i = 0; i < group->count; i++)
    group->ids[i] = group->at[i].id;
  rp_status status =
      rp_pool_activate(guard->pool, &spec, group->ids, group->slots, group->count, false, &made);
  if (status) return status;
  (void)note_class(guard, group, made, &spec, depth);
  if (chosen->count - depth > guard->slack_found) guard->slack_found = chosen->count - depth;
  guard->strict_pending |= guard->options.strict;
  return RP_OK;
}

/* A failure that says something about the device and not about this moment. */
static rp_status explain(struct rp_guard *guard, rp_status status) {
  enum rp_pool_reason reason = RP_POOL_BACKEND_FAILED;
  if (status == RP_ERROR_NO_MEMORY) reason = RP_POOL_OUT_OF_MEMORY;
  if (status == RP_ERROR_STATE) reason = RP_POOL_NOTHING_TO_SHARE;
  if (status == RP_ERROR_BUSY) {
    because_in_use(guard);
    return status;
  }
  if (status == RP_ERROR_UNAVAILABLE) {
    struct rp_pool_info info;
    rp_pool_info(guard->pool, &info);
    if (info.reasons[RP_POOL_ALIAS_CHECK_FAILED]) {
      guard->off = true;
      reason = RP_POOL_ALIAS_CHECK_FAILED;
    }
  }
  rp__guard_why_idle(guard, rp_pool_reason_name(reason), rp_pool_reason_text(reason));
  if (status == RP_ERROR_STATE || status == RP_ERROR_INVALID || guard->off) return RP_ERROR_STATE;
  guard->boundary_failures++;
  return RP_ERROR_BUSY;
}

/* RP_OK: the group shares now. RP_ERROR_STATE: it will not with this pattern. RP_ERROR_BUSY: try again. */
static rp_status activate_group(struct rp_guard *guard, struct group *group) {
  struct rp_slots chosen;
  uint32_t depth = 0;
  rp_status status = group_ready(guard, group);
  if (status) return status;
  status = choose_slots(guard, group, &chosen, &depth);
  if (status == RP_ERROR_STATE) return status;
  if (!status) status = pool_activate(guard, group, &chosen, depth);
  return status ? explain(guard, status) : RP_OK;
}

static size_t group_end(const struct candidate *at, size_t from, size_t count) {
  size_t to = from + 1;
  while (to < count && at[to].label == at[from].label && at[to].bytes == at[from].bytes &&
         at[to].mapped_bytes == at[from].mapped_bytes)
    to++;
  return to;
}

static rp_status activate_all(struct rp_guard *guard, const struct candidate *at, size_t count,
                              struct group *room, bool *begun) {
  rp_status result = RP_OK;
  for (size_t from = 0, to; from < count; from = to) {
    to = group_end(at, from, count);
    room->at = at + from;
    room->count = to - from;
    rp_status status = activate_group(guard, room);
    *begun |= status == RP_OK;
    if (status == RP_ERROR_BUSY) result = status;
  }
  return result;
}

rp_status rp__guard_activate(struct rp_guard *guard, bool *begun) {
  size_t most = guard->received_before.count;
  struct candidate *at = calloc(most + 1, sizeof *at);
  struct group room = {.ids = calloc(most + 1, sizeof *room.ids),
                       .slots = calloc(most + 1, sizeof *room.slots),
                       .intervals = calloc(most + 1, sizeof *room.intervals)};
  rp_status status = RP_ERROR_BUSY; /* without memory, and before the tracker knows the channels: later */
  if (at && room.ids && room.slots && room.intervals) {
    size_t count = collect(guard, at);
    if (count)
      status = activate_all(guard, at, count, &room, begun);
    else
      rp__guard_why_idle(guard, "no_channels", "It is not known yet which buffers belong together.");
  }
  if (status == RP_OK) guard->decided = guard->pattern;
  free(at);
  free(room.ids);
  free(room.slots);
  free(room.intervals);
  return status;
}

/* ---- slack_auto ---- */

static bool could_be_taken(const struct rp_guard *guard, uint32_t id, const struct rp_order_site *site) {
  const struct rp__guard_buffer *buffer = &guard->buffers[id];
  struct rp_pool_buffer_info info = rp__guard_info(guard, id);
  return !buffer->waiting && !open_life(&info) &&
         rp_order_frontier_before(guard->order, &buffer->frontier, site);
}

void rp__guard_note_ready(struct rp_guard *guard, const struct rp_order_site *site) {
  struct rp__guard_list *list = &guard->unready;
  const struct rp__guard_entry posted = guard->received.at[guard->received.count - 1];
  size_t kept = 0;
  for (size_t i = 0; i < list->count; i++) {
    struct rp__guard_buffer *buffer = rp__guard_entry(guard, &list->at[i]);
    if (!buffer || list->at[i].id == posted.id || could_be_taken(guard, list->at[i].id, site)) continue;
    buffer->ready = guard->clock;
    list->at[kept++] = list->at[i];
  }
  list->count = kept;
  struct rp__guard_buffer *buffer = &guard->buffers[posted.id];
  if (list->count < UNREADY_MOST && buffer->lifetimes)
    rp__guard_list_add(guard, list, posted.id);
  else
    buffer->ready = UINT64_MAX; /* nobody looks when its slot could be taken */
}
