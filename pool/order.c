/* Owns the tables of pool/order: contexts, streams, threads, events, graphs and the components of clocks. All
 * memory is had at create. */
#include "pool/order.h"

#include <stdlib.h>
#include <string.h>

#include "pool/order_internal.h"

#define COMPONENTS_MAX 65535u
#define CALLS_MAX (1u << 20)
#define POSITION_MAX ((UINT64_C(1) << 48) - 1)

/* ---- clocks ---- */

bool rp_order_clock_join(const struct rp_order *order, uint64_t *into, const uint64_t *from) {
  uint64_t changed = 0;
  for (uint32_t i = 0; i < order->width; i++) {
    uint64_t larger = into[i] > from[i] ? into[i] : from[i];
    changed |= larger ^ into[i];
    into[i] = larger;
  }
  return changed != 0;
}

bool rp_order_clock_covers(const struct rp_order *order, const uint64_t *clock, const uint64_t *part) {
  for (uint32_t i = 0; i < order->width; i++)
    if (clock[i] < part[i]) return false;
  return true;
}

void rp_order_clock_copy(const struct rp_order *order, uint64_t *into, const uint64_t *from) {
  memcpy(into, from,
         order->width * sizeof *into); /* what lies beyond is zero in every clock: width never shrinks */
}

void rp_order_clock_clear(const struct rp_order *order, uint64_t *clock) {
  memset(clock, 0, order->width * sizeof *clock);
}

/* ---- create and destroy ---- */

static void take_defaults(struct rp_order_limits *limits) {
  if (!limits->contexts) limits->contexts = 16;
  if (!limits->streams) limits->streams = 512;
  if (!limits->threads) limits->threads = 256;
  if (!limits->components) limits->components = 64;
  if (!limits->events) limits->events = 4096;
  if (!limits->graphs) limits->graphs = 256;
  if (!limits->calls) limits->calls = 256;
  if (!limits->milestones) limits->milestones = RP_ORDER_MILESTONES;
}

static rp_status init_indexes(struct rp_order *order) {
  const struct rp_order_limits *limits = &order->limits;
  rp_status status = rp_order_index_init(&order->contexts, limits->contexts);
  if (!status) status = rp_order_index_init(&order->streams, limits->streams);
  if (!status) status = rp_order_index_init(&order->threads, limits->threads);
  if (!status) status = rp_order_index_init(&order->events, limits->events);
  if (!status) status = rp_order_index_init(&order->graphs, limits->graphs);
  if (!status) status = rp_order_calls_init(order);
  return status;
}

static rp_status init_tables(struct rp_order *order) {
  const struct rp_order_limits *limits = &order->limits;
  order->context = calloc(limits->contexts, sizeof *order->context);
  order->stream = calloc(limits->streams, sizeof *order->stream);
  order->thread = calloc(limits->threads, sizeof *order->thread);
  order->event = calloc(limits->events, sizeof *order->event);
  order->graph = calloc(limits->graphs, sizeof *order->graph);
  order->milestone = calloc(limits->milestones, sizeof *order->milestone);
  order->component = calloc(limits->components, sizeof *order->component);
  size_t clocks = (size_t)2 * limits->contexts + (size_t)2 * limits->streams + limits->threads +
                  limits->events + limits->graphs + limits->milestones + limits->calls + 1;
  order->clocks = calloc(clocks * limits->components, sizeof *order->clocks);
  if (!order->context || !order->stream || !order->thread || !order->event || !order->graph ||
      !order->milestone || !order->component || !order->clocks)
    return RP_ERROR_NO_MEMORY;
  order->bytes = clocks * limits->components * sizeof *order->clocks;
  return RP_OK;
}

/* Gives every slot its clocks, once and for all. */
static void deal_clocks(struct rp_order *order) {
  const struct rp_order_limits *limits = &order->limits;
  uint64_t *next = order->clocks;
  const size_t width = limits->components;
  for (uint32_t i = 0; i < limits->contexts; i++, next += 2 * width) {
    order->context[i].all = next;
    order->context[i].blocking = next + width;
  }
  for (uint32_t i = 0; i < limits->streams; i++, next += 2 * width) {
    order->stream[i].full = next;
    order->stream[i].start = next + width;
  }
  for (uint32_t i = 0; i < limits->threads; i++, next += width)
    order->thread[i].clock = next;
  for (uint32_t i = 0; i < limits->events; i++, next += width)
    order->event[i].clock = next;
  for (uint32_t i = 0; i < limits->graphs; i++, next += width)
    order->graph[i].clock = next;
  for (uint32_t i = 0; i < limits->milestones; i++, next += width) {
    order->milestone[i].clock = next;
    order->milestone[i].component = RP_ORDER_NO_SLOT;
  }
  for (uint32_t i = 0; i <= limits->calls; i++, next += width)
    order->call[i].clock = next;
}

static size_t index_bytes(const struct rp_order_index *index) {
  return index->capacity * (sizeof *index->keys + sizeof *index->unused) +
         ((size_t)index->mask + 1) * sizeof *index->buckets;
}

static void count_bytes(struct rp_order *order) {
  const struct rp_order_limits *limits = &order->limits;
  order->bytes += sizeof *order + index_bytes(&order->contexts) + index_bytes(&order->streams) +
                  index_bytes(&order->threads) + index_bytes(&order->events) + index_bytes(&order->graphs);
  order->bytes += limits->contexts * sizeof *order->context + limits->streams * sizeof *order->stream +
                  limits->threads * sizeof *order->thread + limits->events * sizeof *order->event +
                  limits->graphs * sizeof *order->graph + limits->components * sizeof *order->component +
                  limits->milestones * sizeof *order->milestone;
  order->bytes += ((size_t)limits->calls + 1) * sizeof *order->call +
                  limits->calls * (sizeof *order->call_active + sizeof *order->call_unused);
}

rp_status rp_order_create(const struct rp_order_limits *limits, struct rp_order **out) {
  struct rp_order *order = calloc(1, sizeof *order);
  if (!order) return RP_ERROR_NO_MEMORY;
  if (limits) order->limits = *limits;
  take_defaults(&order->limits);
  order->retired_first = order->retired_last = RP_ORDER_NO_SLOT;
  rp_status status = RP_ERROR_INVALID;
  if (order->limits.components <= COMPONENTS_MAX && order->limits.calls <= CALLS_MAX)
    status = init_indexes(order);
  if (!status) status = init_tables(order);
  if (status) {
    rp_order_destroy(order);
    return status;
  }
  deal_clocks(order);
  count_bytes(order);
  *out = order;
  return RP_OK;
}

void rp_order_destroy(struct rp_order *order) {
  if (!order) return;
  rp_order_index_fini(&order->contexts);
  rp_order_index_fini(&order->streams);
  rp_order_index_fini(&order->threads);
  rp_order_index_fini(&order->events);
  rp_order_index_fini(&order->graphs);
  rp_order_calls_fini(order);
  free(order->context);
  free(order->stream);
  free(order->thread);
  free(order->event);
  free(order->graph);
  free(order->milestone);
  free(order->component);
  free(order->clocks);
  free(order);
}

struct rp_order_counts rp_order_counts(const struct rp_order *order) {
  return order->counts;
}

size_t rp_order_bytes(const struct rp_order *order) {
  return order->bytes;
}

/* ---- components ---- */

uint32_t rp_order_component_take(struct rp_order *order, uint64_t context, uint64_t stream, uint64_t thread) {
  uint32_t taken = order->retired_first;
  if (order->width < order->limits.components) {
    taken = order->width++;
  } else if (taken != RP_ORDER_NO_SLOT) { /* the one that was retired first */
    order->retired_first = order->component[taken].next_retired;
    if (order->retired_first == RP_ORDER_NO_SLOT) order->retired_last = RP_ORDER_NO_SLOT;
    order->counts.components_recycled++;
  } else {
    order->counts.components_dropped++;
    return RP_ORDER_NO_SLOT;
  }
  struct rp_order_component *component = &order->component[taken];
  component->base = component->position;
  component->context = context;
  component->stream = stream;
  component->thread = thread;
  component->alive = true;
  return taken;
}

static void component_retire(struct rp_order *order, uint32_t retired) {
  if (retired == RP_ORDER_NO_SLOT) return;
  order->component[retired].alive = false;
  order->component[retired].next_retired = RP_ORDER_NO_SLOT;
  if (order->retired_last == RP_ORDER_NO_SLOT)
    order->retired_first = retired;
  else
    order->component[order->retired_last].next_retired = retired;
  order->retired_last = retired;
}

rp_order_token rp_order_component_step(struct rp_order *order, uint32_t component) {
  uint64_t position = order->component[component].position;
  if (position == POSITION_MAX)
    return RP_ORDER_TOKEN_UNKNOWN; /* centuries away, but a promise is a promise */
  order->component[component].position = position + 1;
  return ((uint64_t)component + 1) << 48 | (position + 1);
}

/* ---- contexts ---- */

struct rp_order_context *rp_order_find_context(const struct rp_order *order, uint64_t context) {
  const struct rp_order_key key = {.handle = context};
  uint32_t slot = context ? rp_order_index_find(&order->contexts, &key) : RP_ORDER_NO_SLOT;
  return slot == RP_ORDER_NO_SLOT ? NULL : &order->context[slot];
}

struct rp_order_context *rp_order_get_context(struct rp_order *order, uint64_t context) {
  struct rp_order_context *found = rp_order_find_context(order, context);
  if (found || !context) return found;
  const struct rp_order_key key = {.handle = context};
  uint32_t slot = rp_order_index_add(&order->contexts, &key);
  if (slot == RP_ORDER_NO_SLOT) {
    order->counts.contexts_dropped++;
    return NULL;
  }
  found = &order->context[slot];
  rp_order_clock_clear(order, found->all);
  rp_order_clock_clear(order, found->blocking);
  found->blocking_version = ++order->tick;
  found->blocking_told = false;
  found->id = context;
  found->legacy = RP_ORDER_NO_SLOT;
  return found;
}

bool rp_order_has_accesses(const struct rp_order *order) {
  return order->width != 0;
}

bool rp_order_legacy_learns(const struct rp_order *order) {
  for (uint32_t i = 0; i < order->limits.contexts; i++) {
    const struct rp_order_context *context = &order->context[i];
    if (!context->id || !context->blocking_told) continue;
    if (context->legacy == RP_ORDER_NO_SLOT) return true;
    if (order->stream[context->legacy].seen_blocking != context->blocking_version) return true;
  }
  return false;
}

struct rp_order_context *rp_order_context_of(const struct rp_order *order,
                                             const struct rp_order_stream *stream) {
  return stream->context == RP_ORDER_NO_SLOT ? NULL : &order->context[stream->context];
}

/* ---- threads ---- */

struct rp_order_thread *rp_order_find_thread(const struct rp_order *order, uint64_t thread) {
  const struct rp_order_key key = {.handle = thread};
  uint32_t slot = thread ? rp_order_index_find(&order->threads, &key) : RP_ORDER_NO_SLOT;
  return slot == RP_ORDER_NO_SLOT ? NULL : &order->thread[slot];
}

struct rp_order_thread *rp_order_get_thread(struct rp_order *order, uint64_t thread) {
  struct rp_order_thread *found = rp_order_find_thread(order, thread);
  if (found || !thread) return found;
  const struct rp_order_key key = {.handle = thread};
  uint32_t slot = rp_order_index_add(&order->threads, &key);
  if (slot == RP_ORDER_NO_SLOT) {
    order->counts.threads_dropped++;
    return NULL;
  }
  found = &order->thread[slot];
  rp_order_clock_clear(order, found->clock);
  found->version = ++order->tick;
  found->component = RP_ORDER_NO_SLOT;
  return found;
}

/* ---- streams ---- */

/* What tells the site's stream from others; false for a stream that cannot be told. */
static bool stream_key(const struct rp_order_site *site, struct rp_order_key *key) {
  *key = (struct rp_order_key){.handle = site->stream};
  if (site->stream == RP_ORDER_STREAM_UNKNOWN) return false;
  if (site->stream > RP_ORDER_STREAM_PER_THREAD) return true;
  key->context = site->context;
  if (site->stream == RP_ORDER_STREAM_LEGACY) return site->context != 0;
  key->thread = site->thread;
  return site->context != 0 && site->thread != 0;
}

struct rp_order_stream *rp_order_find_stream(const struct rp_order *order, const struct rp_order_site *site) {
  struct rp_order_key key;
  uint32_t slot = stream_key(site, &key) ? rp_order_index_find(&order->streams, &key) : RP_ORDER_NO_SLOT;
  return slot == RP_ORDER_NO_SLOT ? NULL : &order->stream[slot];
}

static struct rp_order_stream *stream_add(struct rp_order *order, const struct rp_order_key *key,
                                          uint64_t context, bool blocking) {
  uint32_t slot = rp_order_index_add(&order->streams, key);
  if (slot == RP_ORDER_NO_SLOT) {
    order->counts.streams_dropped++;
    return NULL;
  }
  struct rp_order_stream *stream = &order->stream[slot];
  uint64_t *full = stream->full, *start = stream->start;
  *stream = (struct rp_order_stream){.full = full, .start = start, .component = RP_ORDER_NO_SLOT};
  rp_order_clock_clear(order, full);
  stream->version = ++order->tick;
  struct rp_order_context *owner = rp_order_get_context(order, context);
  stream->context = owner ? (uint32_t)(owner - order->context) : RP_ORDER_NO_SLOT;
  stream->blocking = owner && blocking;
  stream->legacy = owner && key->handle == RP_ORDER_STREAM_LEGACY;
  if (stream->legacy) owner->legacy = slot;
  return stream;
}

struct rp_order_stream *rp_order_get_stream(struct rp_order *order, const struct rp_order_site *site) {
  struct rp_order_stream *found = rp_order_find_stream(order, site);
  struct rp_order_key key;
  if (found || !stream_key(site, &key)) return found;
  return stream_add(order, &key, key.context, site->stream == RP_ORDER_STREAM_PER_THREAD);
}

/* Is the slot taken? Its own key finds it then, and only then. */
static bool stream_exists(const struct rp_order *order, uint32_t slot) {
  return rp_order_index_find(&order->streams, &order->streams.keys[slot]) == slot;
}

/* Nobody promises that the legacy stream waits for what a destroyed stream still has to do. */
static void forget_blocking(struct rp_order *order, uint32_t slot) {
  struct rp_order_context *context = &order->context[slot];
  rp_order_clock_clear(order, context->blocking);
  for (uint32_t i = 0; i < order->limits.streams; i++)
    if (order->stream[i].blocking && order->stream[i].context == slot && stream_exists(order, i))
      rp_order_clock_join(order, context->blocking, order->stream[i].full);
}

/* A legacy stream goes with its context only. */
static void stream_remove(struct rp_order *order, uint32_t slot) {
  struct rp_order_stream *stream = &order->stream[slot];
  rp_order_index_remove(&order->streams, slot);
  rp_order_mark_gone_slot(order, slot);
  if (stream->blocking) forget_blocking(order, stream->context);
  component_retire(order, stream->component);
  stream->component = RP_ORDER_NO_SLOT;
  stream->capture = 0;
}

void rp_order_stream_create(struct rp_order *order, uint64_t context, uint64_t stream, bool blocking) {
  if (stream <= RP_ORDER_STREAM_PER_THREAD) return;
  rp_order_stream_destroy(order, stream); /* in case its end was not told */
  const struct rp_order_key key = {.handle = stream};
  stream_add(order, &key, context, blocking);
}

void rp_order_stream_destroy(struct rp_order *order, uint64_t stream) {
  const struct rp_order_key key = {.handle = stream};
  uint32_t slot =
      stream > RP_ORDER_STREAM_PER_THREAD ? rp_order_index_find(&order->streams, &key) : RP_ORDER_NO_SLOT;
  if (slot != RP_ORDER_NO_SLOT) stream_remove(order, slot);
  if (stream > RP_ORDER_STREAM_PER_THREAD) rp_order_mark_gone(order, stream);
}

void rp_order_thread_exit(struct rp_order *order, uint64_t thread) {
  if (!thread) return;
  rp_order_abandon(order, thread);
  for (uint32_t i = 0; i < order->limits.streams; i++)
    if (order->streams.keys[i].thread == thread && stream_exists(order, i)) stream_remove(order, i);
  struct rp_order_thread *found = rp_order_find_thread(order, thread);
  if (!found) return;
  component_retire(order, found->component);
  rp_order_index_remove(&order->threads, (uint32_t)(found - order->thread));
}

void rp_order_context_destroy(struct rp_order *order, uint64_t context) {
  rp_order_mark_gone_context(order, context);
  struct rp_order_context *found = rp_order_find_context(order, context);
  if (!found) return;
  const uint32_t slot = (uint32_t)(found - order->context);
  for (uint32_t i = 0; i < order->limits.streams; i++)
    if (order->stream[i].context == slot && stream_exists(order, i)) stream_remove(order, i);
  for (uint32_t i = 0; i < order->milestone_width; i++) {
    struct rp_order_milestone *milestone = &order->milestone[i];
    if (milestone->component != RP_ORDER_NO_SLOT && order->component[milestone->component].context == context)
      milestone->component = RP_ORDER_NO_SLOT; /* its event went too */
  }
  rp_order_index_remove(&order->contexts, slot);
  found->id = 0;
}

/* ---- events and graphs ---- */

struct rp_order_event *rp_order_find_event(const struct rp_order *order, uint64_t event) {
  const struct rp_order_key key = {.handle = event};
  uint32_t slot = rp_order_index_find(&order->events, &key);
  return slot == RP_ORDER_NO_SLOT ? NULL : &order->event[slot];
}

void rp_order_drop_event(struct rp_order *order, uint64_t event) {
  struct rp_order_event *found = rp_order_find_event(order, event);
  if (!found) return;
  found->state = RP_ORDER_EVENT_FREE;
  rp_order_index_remove(&order->events, (uint32_t)(found - order->event));
}

/* Forgets the record the hand meets next. Captured and foreign events stay: what they say must not get lost.
 */
static bool evict_event(struct rp_order *order) {
  for (uint32_t tried = 0; tried < order->limits.events; tried++) {
    uint32_t slot = order->event_hand;
    order->event_hand = (slot + 1) % order->limits.events;
    if (order->event[slot].state != RP_ORDER_EVENT_RECORDED) continue;
    rp_order_drop_event(order, order->events.keys[slot].handle);
    order->counts.events_evicted++;
    return true;
  }
  order->counts.events_dropped++;
  return false;
}

struct rp_order_event *rp_order_get_event(struct rp_order *order, uint64_t event) {
  struct rp_order_event *found = rp_order_find_event(order, event);
  if (found) return found;
  if (!order->events.unused_count && !evict_event(order)) return NULL;
  const struct rp_order_key key = {.handle = event};
  found = &order->event[rp_order_index_add(&order->events, &key)];
  found->state = RP_ORDER_EVENT_FREE;
  found->capture = 0;
  return found;
}

struct rp_order_graph *rp_order_find_graph(const struct rp_order *order, uint64_t exec) {
  const struct rp_order_key key = {.handle = exec};
  uint32_t slot = rp_order_index_find(&order->graphs, &key);
  return slot == RP_ORDER_NO_SLOT ? NULL : &order->graph[slot];
}

struct rp_order_graph *rp_order_get_graph(struct rp_order *order, uint64_t exec) {
  struct rp_order_graph *found = rp_order_find_graph(order, exec);
  if (found) return found;
  if (!order->graphs.unused_count) { /* then every slot is taken, also the hand's */
    rp_order_index_remove(&order->graphs, order->graph_hand);
    order->graph_hand = (order->graph_hand + 1) % order->limits.graphs;
    order->counts.graphs_evicted++;
  }
  const struct rp_order_key key = {.handle = exec};
  return &order->graph[rp_order_index_add(&order->graphs, &key)];
}

void rp_order_graph_destroy(struct rp_order *order, uint64_t exec) {
  struct rp_order_graph *found = rp_order_find_graph(order, exec);
  rp_order_spoil_graph(order, exec);
  if (found) rp_order_index_remove(&order->graphs, (uint32_t)(found - order->graph));
}
