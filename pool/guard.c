/* Life of a guard, its buffers, looking addresses up, the watch sink, and what was freed lately. */
#include "pool/guard_internal.h"

#include <stdlib.h>
#include <string.h>

/* Of a device whose granularity nobody can tell: that of all of them so far. */
#define SHADOW_GRANULARITY_BYTES (UINT64_C(2) << 20)
/* What the driver would not take back is offered again so often with each free. */
#define GIVE_BACK_ATTEMPTS 3
/* The first step has nothing to be compared with. */
#define LEAST_WATCH_STEPS 2
#define ROUNDING_DIVISOR 64

/* ---- create and destroy ---- */

static rp_status pool_create(struct rp_guard *guard, const struct rp_backend *backend) {
  const struct rp_pool_options options = {.on_stale = guard->options.on_violation,
                                          .lend = guard->options.every_touch_seen ? RP_POOL_LEND_FIRST
                                                                                  : RP_POOL_LEND_NEVER,
                                          .max_conflicts = guard->options.max_conflicts,
                                          .headroom_bytes = guard->options.headroom_bytes,
                                          .exact_ranges = guard->options.shadow};
  if (!guard->options.shadow)
    return backend ? rp_pool_create(backend, &options, &guard->pool) : RP_ERROR_INVALID;
  guard->shadow_granularity = SHADOW_GRANULARITY_BYTES;
  rp_status status = backend ? backend->granularity(backend->context, &guard->shadow_granularity) : RP_OK;
  if (status) return status;
  rp__guard_null_backend(guard);
  return rp_pool_create(&guard->null_backend, &options, &guard->pool);
}

static void take_defaults(struct rp_guard *guard) {
  struct rp_guard_options *options = &guard->options;
  if (!options->least_bytes) options->least_bytes = rp_pool_granularity(guard->pool) / 2;
  if (!options->rounding_divisor) options->rounding_divisor = ROUNDING_DIVISOR;
  if (options->watch_steps < LEAST_WATCH_STEPS) options->watch_steps = LEAST_WATCH_STEPS;
  if (options->shadow) options->strict = false; /* there is no mapping to take away */
  guard->retry_distance = 1;
  guard->step = 1; /* 0: no step */
}

rp_status rp_guard_create(const struct rp_guard_options *options, const struct rp_backend *backend,
                          struct rp_order *order, const struct rp_guard_plan *plan, struct rp_guard **out) {
  if (!order || !out) return RP_ERROR_INVALID;
  struct rp_guard *guard = calloc(1, sizeof *guard);
  if (!guard) return RP_ERROR_NO_MEMORY;
  if (options) guard->options = *options;
  guard->order = order;
  rp_status status = pool_create(guard, backend);
  if (!status) {
    take_defaults(guard);
    guard->pending = calloc(RP__GUARD_PENDING, sizeof *guard->pending);
    if (!guard->pending) status = RP_ERROR_NO_MEMORY;
  }
  if (!status && plan) status = rp__guard_plan_take(guard, plan);
  if (status) {
    (void)rp_guard_destroy(guard, NULL);
    return status;
  }
  *out = guard;
  return RP_OK;
}

rp_status rp_guard_destroy(struct rp_guard *guard, uint64_t *left_bytes) {
  if (left_bytes) *left_bytes = 0;
  if (!guard) return RP_OK;
  for (uint32_t id = 0; id < guard->buffer_count; id++)
    if (guard->buffers[id].in_use) rp__guard_unwatch(guard, id);
  rp_status status = rp_pool_destroy(guard->pool, left_bytes);
  rp__guard_plan_fini(guard);
  free(guard->buffers);
  free(guard->classes);
  free(guard->received.at);
  free(guard->received_before.at);
  free(guard->unready.at);
  free(guard->pending);
  free(guard);
  return status;
}

/* ---- the sink ---- */

void rp_guard_set_sink(struct rp_guard *guard, const struct rp_guard_sink *sink) {
  guard->sink = sink ? *sink : (struct rp_guard_sink){0};
}

void rp__guard_watch(struct rp_guard *guard, uint32_t id) {
  struct rp__guard_buffer *buffer = &guard->buffers[id];
  if (buffer->watched) return;
  buffer->watched = true;
  if (guard->sink.watch)
    guard->sink.watch(guard->sink.context, buffer->address, buffer->address + buffer->bytes);
}

void rp__guard_unwatch(struct rp_guard *guard, uint32_t id) {
  struct rp__guard_buffer *buffer = &guard->buffers[id];
  if (!buffer->watched) return;
  buffer->watched = false;
  if (guard->sink.unwatch)
    guard->sink.unwatch(guard->sink.context, buffer->address, buffer->address + buffer->bytes);
}

/* ---- looking up ---- */

struct rp_pool_buffer_info rp__guard_info(const struct rp_guard *guard, uint32_t id) {
  struct rp_pool_buffer_info info = {.class_id = RP_POOL_NONE, .slot = RP_POOL_NONE};
  (void)rp_pool_buffer(guard->pool, id, &info);
  return info;
}

rp_status rp__guard_find(const struct rp_guard *guard, uint64_t address, uint64_t bytes, uint32_t *id) {
  if (!bytes) return rp_pool_find(guard->pool, address, id);
  uint64_t end = bytes > UINT64_MAX - address ? UINT64_MAX : address + bytes;
  return rp_pool_find_range(guard->pool, address, end, id);
}

uint64_t rp__guard_end(const struct rp_guard *guard, uint32_t id) {
  const struct rp__guard_buffer *buffer = &guard->buffers[id];
  return buffer->address + (guard->options.shadow ? buffer->bytes : rp__guard_info(guard, id).mapped_bytes);
}

struct rp__guard_buffer *rp__guard_entry(const struct rp_guard *guard, const struct rp__guard_entry *entry) {
  struct rp__guard_buffer *buffer = &guard->buffers[entry->id];
  return buffer->in_use && buffer->birth == entry->birth ? buffer : NULL;
}

void rp__guard_list_add(const struct rp_guard *guard, struct rp__guard_list *list, uint32_t id) {
  if (list->count == list->capacity) {
    size_t capacity = list->capacity ? 2 * list->capacity : 64;
    struct rp__guard_entry *grown = realloc(list->at, capacity * sizeof *grown);
    if (!grown) {
      list->lost = true;
      return;
    }
    list->at = grown;
    list->capacity = capacity;
  }
  list->at[list->count++] = (struct rp__guard_entry){id, guard->buffers[id].birth};
}

bool rp_guard_owns(const struct rp_guard *guard, uint64_t address, uint64_t *begin, uint64_t *bytes,
                   bool *backed) {
  uint32_t id;
  if (rp_pool_find(guard->pool, address, &id)) return false;
  struct rp_pool_buffer_info info = rp__guard_info(guard, id);
  if (begin) *begin = info.address;
  if (bytes) *bytes = info.bytes;
  if (backed) *backed = !info.concealed && (info.binding == RP_POOL_BOUND || info.binding == RP_POOL_PRIVATE);
  return true;
}

uint32_t rp_guard_flags(const struct rp_guard *guard, uint64_t address) {
  uint32_t id;
  return rp_pool_find(guard->pool, address, &id) ? 0 : rp__guard_info(guard, id).flags;
}

bool rp_guard_sharing(const struct rp_guard *guard) {
  for (uint32_t id = 0; id < guard->buffer_count; id++)
    if (guard->buffers[id].in_use && rp__guard_info(guard, id).binding == RP_POOL_BOUND) return true;
  return false;
}

uint64_t rp_guard_backed_example(const struct rp_guard *guard) {
  for (uint32_t id = 0; id < guard->buffer_count; id++) {
    bool backed = false;
    uint64_t address = guard->buffers[id].address;
    if (guard->buffers[id].in_use && rp_guard_owns(guard, address, NULL, NULL, &backed) && backed)
      return address;
  }
  return 0;
}

uint32_t rp__guard_microbatch(const struct rp__guard_buffer *buffer) {
  return buffer->place.known ? buffer->place.microbatch : buffer->microbatch;
}

struct rp_pool_site rp__guard_site(const struct rp_guard *guard, uint32_t microbatch, uint32_t kind,
                                   uint64_t seq, uint64_t stream, uint64_t function) {
  return (struct rp_pool_site){.microbatch = microbatch,
                               .kind = kind,
                               .step = guard->step - 1,
                               .seq = seq,
                               .stream = stream,
                               .function = function};
}

/* ---- what has to be idle ---- */

void rp__guard_context(struct rp_guard *guard, uint64_t context) {
  if (!context || context == guard->context) return;
  if (guard->context) guard->contexts = true;
  guard->context = context;
}

static bool same_gap(const struct rp_order_gap *one, const struct rp_order_gap *other) {
  return one->fix == other->fix && one->context == other->context &&
         (one->fix == RP_ORDER_FIX_CONTEXT || one->stream == other->stream);
}

/* Does closing the one close the other? All that is on a stream comes before a wait for its tail. */
static bool stands_for(const struct rp_guard *guard, const struct rp_order_gap *one,
                       const struct rp_order_gap *other) {
  return one->milestone ? rp_order_gap_covers(guard->order, one, other->token) : same_gap(one, other);
}

static void idle_add(const struct rp_guard *guard, struct rp_guard_action *action, struct rp_order_gap gap) {
  for (size_t i = 0; i < action->idle_count; i++)
    if (stands_for(guard, &action->idle[i], &gap)) return;
  for (size_t i = 0; i < action->idle_count; i++) {
    if (!stands_for(guard, &gap, &action->idle[i])) continue;
    action->idle[i] = gap;
    return;
  }
  if (action->idle_count < RP_GUARD_ACTION_WAITS) {
    action->idle[action->idle_count++] = gap;
    return;
  }
  /* Too many to name: all of the context, and nobody else's if there are others. */
  for (size_t i = 0; i < action->idle_count; i++)
    if (action->idle[i].context != gap.context) gap.context = 0;
  gap.fix = gap.context ? RP_ORDER_FIX_CONTEXT : RP_ORDER_FIX_NONE;
  action->idle[0] = gap;
  action->idle_count = 1;
}

/* With one context in the process, all that cannot be named is in that one. */
static struct rp_order_gap anything(const struct rp_guard *guard, uint64_t context) {
  return (struct rp_order_gap){.fix = guard->contexts ? RP_ORDER_FIX_NONE : RP_ORDER_FIX_CONTEXT,
                               .context = context ? context : guard->context};
}

/* Without looking its own milestone up, for there may be many accesses. */
static bool covered(const struct rp_guard *guard, const struct rp_guard_action *action,
                    rp_order_token token) {
  for (size_t i = 0; i < action->idle_count; i++)
    if (rp_order_gap_covers(guard->order, &action->idle[i], token)) return true;
  return false;
}

void rp__guard_idle(const struct rp_guard *guard, const struct rp__guard_buffer *buffer, uint64_t context,
                    struct rp_guard_action *action) {
  const struct rp_order_frontier *frontier = &buffer->frontier;
  for (uint8_t i = 0; i < frontier->count; i++) {
    if (rp_order_complete(guard->order, frontier->latest[i])) continue;
    if (covered(guard, action, frontier->latest[i])) continue;
    struct rp_order_gap gap = rp_order_owner(guard->order, frontier->latest[i]);
    idle_add(guard, action, gap.fix == RP_ORDER_FIX_NONE ? anything(guard, context) : gap);
  }
  if (frontier->unknown) idle_add(guard, action, anything(guard, context));
  action->serial = guard->serial;
}

bool rp__guard_idle_impossible(const struct rp_guard_action *action) {
  for (size_t i = 0; i < action->idle_count; i++)
    if (action->idle[i].fix == RP_ORDER_FIX_NONE) return true;
  return false;
}

void rp_guard_idle_reached(struct rp_guard *guard, const struct rp_guard_action *action) {
  bool all = false;
  for (size_t i = 0; i < action->idle_count; i++)
    all |= action->idle[i].fix == RP_ORDER_FIX_CONTEXT;
  if (!all || guard->contexts) return;
  for (uint32_t id = 0; id < guard->buffer_count; id++) {
    struct rp__guard_buffer *buffer = &guard->buffers[id];
    if (buffer->in_use && buffer->serial <= action->serial) buffer->frontier = (struct rp_order_frontier){0};
  }
}

/* ---- memory ---- */

static rp_status buffers_room(struct rp_guard *guard) {
  if (guard->buffer_count < guard->buffer_capacity) return RP_OK;
  uint32_t capacity = guard->buffer_capacity ? 2 * guard->buffer_capacity : 64;
  struct rp__guard_buffer *grown = realloc(guard->buffers, capacity * sizeof *grown);
  if (!grown) return RP_ERROR_NO_MEMORY;
  memset(grown + guard->buffer_capacity, 0, (capacity - guard->buffer_capacity) * sizeof *grown);
  guard->buffers = grown;
  guard->buffer_capacity = capacity;
  return RP_OK;
}

rp_status rp_guard_allocate(struct rp_guard *guard, uint64_t bytes, uint64_t *address) {
  uint32_t id;
  uint64_t begin;
  rp_status status = buffers_room(guard);
  if (!status) status = rp_pool_allocate(guard->pool, bytes, &id, &begin);
  if (status) return status;
  if (id >= guard->buffer_count) guard->buffer_count = id + 1;
  guard->buffers[id] = (struct rp__guard_buffer){.address = begin,
                                                 .bytes = bytes,
                                                 .birth = ++guard->births,
                                                 .in_use = true,
                                                 .peer = -1,
                                                 .class_index = RP_POOL_NONE,
                                                 .plan_slot = RP_POOL_NONE,
                                                 .item = RP_POOL_NONE};
  rp__guard_size_used(guard, bytes, 1);
  rp_guard_address_reused(guard, begin, bytes);
  rp__guard_watch(guard, id); /* until something else than a receive touches it */
  *address = begin;
  return RP_OK;
}

rp_status rp_guard_unstoppable(struct rp_guard *guard) {
  return guard->plan.usable ? rp_pool_unstoppable(guard->pool) : RP_OK;
}

uint64_t rp_guard_memory_short(struct rp_guard *guard) {
  return guard->plan.usable ? rp_pool_memory_short(guard->pool) : 0;
}

void rp_guard_memory_news(struct rp_guard *guard) {
  rp_pool_memory_news(guard->pool);
}

bool rp_guard_memory_due(const struct rp_guard *guard) {
  return guard->plan.usable && rp_pool_memory_due(guard->pool);
}

rp_status rp_guard_restore(struct rp_guard *guard) {
  return rp_pool_restore(guard->pool);
}

bool rp_guard_lost(const struct rp_guard *guard) {
  return rp_pool_lost(guard->pool);
}

static void remember_freed(struct rp_guard *guard, uint32_t id) {
  struct rp__guard_freed *entry = &guard->freed[guard->freed_count++ % RP__GUARD_FREED];
  if (entry->address) guard->freed_forgotten++;
  *entry = (struct rp__guard_freed){guard->buffers[id].address, id, guard->buffers[id].received};
}

void rp_guard_address_reused(struct rp_guard *guard, uint64_t address, uint64_t bytes) {
  size_t count = guard->freed_count < RP__GUARD_FREED ? guard->freed_count : RP__GUARD_FREED;
  for (size_t i = 0; i < count; i++)
    if (guard->freed[i].address >= address && guard->freed[i].address - address < bytes)
      guard->freed[i].address = 0;
}

static rp_status free_again(struct rp_guard *guard, uint64_t address, const struct rp_pool_site *site) {
  size_t count = guard->freed_count < RP__GUARD_FREED ? guard->freed_count : RP__GUARD_FREED;
  for (size_t i = 0; i < count; i++) {
    const struct rp__guard_freed *freed = &guard->freed[i];
    if (!address || freed->address != address) continue;
    struct rp_pool_conflict conflict = {.kind = RP_POOL_DOUBLE_FREE,
                                        .prevented = true,
                                        .class_id = RP_POOL_NONE,
                                        .slot = RP_POOL_NONE,
                                        .earlier_buffer = freed->buffer,
                                        .later_buffer = freed->buffer,
                                        .earlier_address = address,
                                        .later_address = address,
                                        .earlier = freed->received};
    if (site) conflict.later = *site;
    conflict.later.step = guard->step - 1;
    rp_pool_note_conflict(guard->pool, &conflict);
    guard->double_frees++;
    return RP_ERROR_STATE;
  }
  return RP_ERROR_NOT_FOUND;
}

rp_status rp_guard_free_prepare(struct rp_guard *guard, uint64_t address, const struct rp_pool_site *site,
                                bool *needs_idle) {
  uint32_t id;
  rp_status status = rp_pool_find(guard->pool, address, &id);
  if (status) return free_again(guard, address, site);
  struct rp_pool_buffer_info info = rp__guard_info(guard, id);
  if (info.address != address) return RP_ERROR_NOT_FOUND;
  /* Only what was never mapped cannot be in use: not every access is seen. */
  if (needs_idle) *needs_idle = info.binding != RP_POOL_UNBOUND;
  return RP_OK;
}

static rp_status free_buffer(struct rp_guard *guard, uint32_t id, bool remember) {
  struct rp__guard_buffer *buffer = &guard->buffers[id];
  if (remember) remember_freed(guard, id);
  if (buffer->receives && !guard->births_at_free) guard->births_at_free = guard->births;
  rp__guard_unwatch(guard, id);
  rp__guard_size_used(guard, buffer->bytes, -1);
  rp_status status = rp_pool_free(guard->pool, buffer->address);
  for (int i = 0; i < GIVE_BACK_ATTEMPTS; i++) /* at once: this may be the last call before the end */
    if (!rp_pool_give_back(guard->pool)) break;
  *buffer = (struct rp__guard_buffer){0};
  return status;
}

rp_status rp_guard_free(struct rp_guard *guard, uint64_t address) {
  uint32_t id;
  rp_status status = rp_pool_find(guard->pool, address, &id);
  if (status) return status;
  if (guard->buffers[id].address != address) return RP_ERROR_NOT_FOUND;
  return free_buffer(guard, id, !guard->options.shadow);
}

void rp_guard_release_all(struct rp_guard *guard) {
  for (uint32_t id = 0; id < guard->buffer_count; id++)
    if (guard->buffers[id].in_use) (void)free_buffer(guard, id, false);
}

/* ---- shadow ---- */

void rp_guard_shadow_alloc(struct rp_guard *guard, uint64_t address, uint64_t bytes) {
  uint64_t begin;
  if (!guard->options.shadow || !rp_guard_wants(guard, bytes)) return;
  for (uint32_t id; !rp__guard_find(guard, address, bytes, &id);)
    (void)free_buffer(guard, id, false); /* its end was not told */
  guard->shadow_address = address;
  (void)rp_guard_allocate(guard, bytes, &begin); /* without memory it just is not watched */
}

void rp_guard_shadow_free(struct rp_guard *guard, uint64_t address) {
  if (guard->options.shadow) (void)rp_guard_free(guard, address);
}

/* ---- small things ---- */

const struct rp__guard_peer *rp__guard_peer_of(const struct rp_guard *guard, uint64_t comm, int32_t peer) {
  for (uint32_t i = 0; i < guard->peer_count; i++)
    if (guard->peers[i].comm == comm && guard->peers[i].peer == peer) return &guard->peers[i];
  return NULL;
}

static struct rp__guard_peer *peer_add(struct rp_guard *guard, uint64_t comm, int32_t peer) {
  struct rp__guard_peer *entry = &guard->peers[0];
  for (uint32_t i = 1; i < guard->peer_count; i++)
    if (guard->peers[i].step < entry->step) entry = &guard->peers[i];
  if (guard->peer_count < RP__GUARD_PEERS) entry = &guard->peers[guard->peer_count++];
  *entry = (struct rp__guard_peer){.comm = comm, .peer = peer};
  return entry;
}

/* With the counts of this step. */
static struct rp__guard_peer *peer_in_step(struct rp_guard *guard, uint64_t comm, int32_t peer) {
  struct rp__guard_peer *entry = (struct rp__guard_peer *)rp__guard_peer_of(guard, comm, peer);
  if (!entry) entry = peer_add(guard, comm, peer);
  if (entry->step != guard->step) {
    entry->step = guard->step;
    entry->sent_before = entry->sent;
    entry->sends = entry->sent = entry->received = 0;
  }
  return entry;
}

/* Others are metadata. */
static bool counts(const struct rp_guard *guard, uint64_t bytes) {
  if (rp__guard_is_message_size(guard, bytes)) return true;
  for (uint32_t i = 0; i < guard->source_count; i++)
    if (guard->sources[i].bytes == bytes) return true;
  return false;
}

void rp__guard_peer_received(struct rp_guard *guard, uint64_t comm, int32_t peer, uint64_t bytes) {
  peer_in_step(guard, comm, peer)->received += counts(guard, bytes);
}

static bool same_members(const struct rp_guard *guard, uint64_t comm, uint64_t other) {
  return comm == other ||
         (guard->sink.same_members && guard->sink.same_members(guard->sink.context, comm, other));
}

uint32_t rp__guard_peer_sent(const struct rp_guard *guard, uint64_t comm, int32_t peer) {
  uint32_t sent = 0;
  for (uint32_t i = 0; i < guard->peer_count; i++) {
    const struct rp__guard_peer *with = &guard->peers[i];
    if (with->peer == peer && with->step == guard->step && with->sent &&
        same_members(guard, comm, with->comm))
      sent += with->sent;
  }
  return sent;
}

static uint32_t received_over(const struct rp_guard *guard, uint64_t comm, int32_t peer) {
  const struct rp__guard_peer *with = rp__guard_peer_of(guard, comm, peer);
  return with && with->step == guard->step ? with->received : 0;
}

/* One communicator takes messages there and another one their answers back: over it goes in each direction
 * what comes over the first one in the other. */
static bool is_way_back(const struct rp_guard *guard, uint64_t comm, uint64_t back) {
  uint32_t there = 0, answers = 0;
  for (uint32_t i = 0; i < guard->peer_count; i++) {
    const struct rp__guard_peer *with = &guard->peers[i];
    if (with->step != guard->step || (with->comm != comm && with->comm != back)) continue;
    if (with->sent != received_over(guard, with->comm == comm ? back : comm, with->peer)) return false;
    if (with->comm == comm) there += with->received;
    if (with->comm == back) answers += with->sent;
  }
  return there > 0 && there == answers;
}

bool rp__guard_peer_answered(const struct rp_guard *guard, uint64_t comm, int32_t peer) {
  const struct rp__guard_peer *with = rp__guard_peer_of(guard, comm, peer);
  if (!guard->options.sends_told) return true;
  if (!with || with->step != guard->step) return false;
  if (guard->sizes_untold) return with->sends > 0;
  if (with->sent || !with->received) return with->sent == with->received;
  for (uint32_t i = 0; i < guard->peer_count; i++) {
    const struct rp__guard_peer *other = &guard->peers[i];
    if (other->peer == peer && other->comm != comm && other->step == guard->step && other->sent &&
        same_members(guard, comm, other->comm) && is_way_back(guard, comm, other->comm))
      return true;
  }
  return false;
}

bool rp__guard_sent_elsewhere(const struct rp_guard *guard, uint64_t comm) {
  for (uint32_t i = 0; i < guard->peer_count; i++) {
    const struct rp__guard_peer *with = &guard->peers[i];
    bool sent = with->step == guard->step ? with->sent_before : with->step + 1 == guard->step && with->sent;
    if (sent && !same_members(guard, comm, with->comm)) return true;
  }
  return false;
}

void rp_guard_sent(struct rp_guard *guard, uint64_t comm, int32_t peer, uint64_t bytes) {
  struct rp__guard_peer *to = peer_in_step(guard, comm, peer);
  guard->sent = ++guard->clock;
  to->sends++;
  to->sent += counts(guard, bytes);
  guard->sizes_told |= bytes != 0;
  guard->sizes_untold |= bytes == 0;
}

void rp_guard_send(struct rp_guard *guard, uint64_t comm, int32_t peer) {
  rp_guard_sent(guard, comm, peer, 0);
}

void rp__guard_why_idle(struct rp_guard *guard, const char *word, const char *text) {
  guard->idle_word = word;
  guard->idle_text = text;
}

void rp_guard_interrupt(struct rp_guard *guard, const struct rp_pool_site *site) {
  struct rp_pool_site at = site ? *site : (struct rp_pool_site){0};
  struct rp_pool_info info;
  at.step = guard->step - 1;
  rp_pool_info(guard->pool, &info);
  if (!info.bound && !info.unbound) return; /* nothing is shared */
  rp_pool_interrupt(guard->pool, &at);
  rp__guard_why_idle(guard, rp_pool_reason_name(RP_POOL_STEP_INTERRUPTED),
                     rp_pool_reason_text(RP_POOL_STEP_INTERRUPTED));
}

void rp_guard_request_fallback(struct rp_guard *guard, enum rp_pool_reason reason) {
  guard->off = true;
  rp__guard_why_idle(guard, rp_pool_reason_name(reason), rp_pool_reason_text(reason));
  rp_pool_request_fallback(guard->pool, reason);
  struct rp_pool_info info;
  rp_pool_info(guard->pool, &info);
  if (!info.buffers) (void)rp_pool_quiescent(guard->pool, false); /* nothing to wait for, no step needed */
}

void rp_guard_boundary_took(struct rp_guard *guard, uint64_t duration_ns) {
  if (guard->activations == 1 && !guard->activation_duration_ns) guard->activation_duration_ns = duration_ns;
}

void rp_guard_waited(struct rp_guard *guard, uint64_t waits, uint64_t nanoseconds) {
  guard->waits_timed += waits;
  guard->wait_ns += nanoseconds;
}

uint64_t rp_guard_violations(const struct rp_guard *guard) {
  return rp_pool_violations(guard->pool);
}
