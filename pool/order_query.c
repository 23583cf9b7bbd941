/* The questions of pool/order. They look up single entries of clocks and change nothing. */
#include "pool/order_internal.h"

bool rp_order_stale(const struct rp_order *order, rp_order_token token) {
  const uint32_t component = rp_order_token_component(token);
  return component >= order->width || rp_order_token_position(token) <= order->component[component].base;
}

bool rp_order_before_host(const struct rp_order *order, rp_order_token token, uint64_t thread) {
  if (order->counts.lost || rp_order_stale(order, token)) return false;
  const struct rp_order_thread *host = rp_order_find_thread(order, thread);
  return host && host->clock[rp_order_token_component(token)] >= rp_order_token_position(token);
}

/* Through the implicit waits between the legacy stream and blocking streams; the stream may not exist yet. */
static bool before_default(const struct rp_order *order, rp_order_token token,
                           const struct rp_order_site *site, const struct rp_order_stream *stream) {
  const uint32_t component = rp_order_token_component(token);
  const uint64_t position = rp_order_token_position(token);
  const struct rp_order_context *context =
      stream ? rp_order_context_of(order, stream) : rp_order_find_context(order, site->context);
  if (!context) return false;
  if (site->stream == RP_ORDER_STREAM_LEGACY) return context->blocking[component] >= position;
  const bool blocking = stream ? stream->blocking : site->stream == RP_ORDER_STREAM_PER_THREAD;
  return blocking && context->legacy != RP_ORDER_NO_SLOT &&
         order->stream[context->legacy].full[component] >= position;
}

bool rp_order_before(const struct rp_order *order, rp_order_token token, const struct rp_order_site *site) {
  if (order->counts.lost || rp_order_stale(order, token)) return false;
  const uint32_t component = rp_order_token_component(token);
  const uint64_t position = rp_order_token_position(token);
  const struct rp_order_stream *stream = rp_order_find_stream(order, site);
  if ((site->flags & RP_ORDER_CAPTURED) || (stream && stream->capture)) return false;
  if (rp_order_before_host(order, token, site->thread)) return true;
  if (site->flags & RP_ORDER_PROGRAMMATIC) return stream && rp_order_start_at(stream, component) >= position;
  if (stream && stream->full[component] >= position) return true;
  return before_default(order, token, site, stream);
}

bool rp_order_complete(const struct rp_order *order, rp_order_token token) {
  if (order->counts.lost || rp_order_stale(order, token)) return false;
  const uint32_t component = rp_order_token_component(token);
  if (order->component[component].stream == RP_ORDER_STREAM_UNKNOWN) return true; /* a thread's own */
  /* Clocks of threads that are gone count too: what they knew stays true while the component has its owner.
   */
  for (uint32_t i = 0; i < order->limits.threads; i++)
    if (order->thread[i].clock[component] >= rp_order_token_position(token)) return true;
  return false;
}

/* ---- frontier ---- */

void rp_order_frontier_add(const struct rp_order *order, struct rp_order_frontier *frontier,
                           rp_order_token token) {
  if (rp_order_stale(order, token)) {
    frontier->unknown = true;
    return;
  }
  for (uint8_t i = 0; i < frontier->count; i++) {
    if (rp_order_token_component(frontier->latest[i]) != rp_order_token_component(token)) continue;
    if (rp_order_stale(order, frontier->latest[i]))
      frontier->unknown = true; /* a former owner's: not covered */
    if (frontier->latest[i] < token) frontier->latest[i] = token;
    return;
  }
  if (frontier->count < RP_ORDER_FRONTIER)
    frontier->latest[frontier->count++] = token;
  else
    frontier->unknown = true;
}

bool rp_order_frontier_before(const struct rp_order *order, const struct rp_order_frontier *frontier,
                              const struct rp_order_site *site) {
  if (frontier->unknown) return false;
  for (uint8_t i = 0; i < frontier->count; i++)
    if (!rp_order_before(order, frontier->latest[i], site)) return false;
  return true;
}

/* ---- milestones ---- */

const struct rp_order_milestone *rp_order_find_milestone(const struct rp_order *order, uint64_t number) {
  if (number - 1 >= order->limits.milestones) return NULL; /* 0 too */
  const struct rp_order_milestone *found = &order->milestone[number - 1];
  return found->component == RP_ORDER_NO_SLOT ? NULL : found;
}

/* Number of the first one that its own stream has behind the access, 0 = none. The access is not stale. */
static uint64_t milestone_behind(const struct rp_order *order, rp_order_token token) {
  const uint32_t component = rp_order_token_component(token);
  const uint64_t position = rp_order_token_position(token);
  uint64_t found = 0, at = UINT64_MAX;
  for (uint32_t i = 0; i < order->milestone_width; i++) {
    const struct rp_order_milestone *milestone = &order->milestone[i];
    if (milestone->component != component || milestone->position < position || milestone->position >= at)
      continue;
    at = milestone->position;
    found = (uint64_t)i + 1;
  }
  return found;
}

bool rp_order_gap_covers(const struct rp_order *order, const struct rp_order_gap *gap, rp_order_token token) {
  const struct rp_order_milestone *milestone = rp_order_find_milestone(order, gap->milestone);
  return milestone && !rp_order_stale(order, token) &&
         milestone->clock[rp_order_token_component(token)] >= rp_order_token_position(token);
}

/* ---- gaps ---- */

uint64_t rp_order_context_at(const struct rp_order *order, const struct rp_order_site *site) {
  const struct rp_order_stream *stream = rp_order_find_stream(order, site);
  const struct rp_order_context *context = stream ? rp_order_context_of(order, stream) : NULL;
  return context ? context->id : site->context;
}

bool rp_order_capturing(const struct rp_order *order, const struct rp_order_site *site) {
  const struct rp_order_stream *stream = rp_order_find_stream(order, site);
  return (site->flags & RP_ORDER_CAPTURED) || (stream && stream->capture);
}

/* Would synchronising the context order the access? Not one of a stream whose context is not known. */
static bool context_covers(const struct rp_order *order, rp_order_token token, uint64_t context) {
  const struct rp_order_context *found = rp_order_find_context(order, context);
  return found && found->all[rp_order_token_component(token)] >= rp_order_token_position(token);
}

static struct rp_order_gap describe(const struct rp_order *order, rp_order_token token,
                                    const struct rp_order_site *site) {
  struct rp_order_gap gap = {.fix = RP_ORDER_FIX_NONE, .token = token};
  if (order->counts.lost || rp_order_stale(order, token)) return gap;
  const struct rp_order_component *component = &order->component[rp_order_token_component(token)];
  gap.context = component->context;
  gap.stream = component->stream;
  gap.thread = component->thread;
  if (gap.stream == RP_ORDER_STREAM_UNKNOWN || rp_order_capturing(order, site))
    return gap; /* the host's, or no help */
  gap.milestone = milestone_behind(order, token);
  if (gap.milestone) {
    gap.fix = RP_ORDER_FIX_WAIT;
    return gap;
  }
  const struct rp_order_site from = {.context = gap.context, .stream = gap.stream, .thread = gap.thread};
  const bool reachable =
      component->alive && (gap.stream != RP_ORDER_STREAM_PER_THREAD || gap.thread == site->thread);
  if (reachable)
    gap.fix = rp_order_capturing(order, &from) ? RP_ORDER_FIX_NONE : RP_ORDER_FIX_WAIT;
  else if (context_covers(order, token, gap.context))
    gap.fix = RP_ORDER_FIX_CONTEXT;
  return gap;
}

/* Bits of the gaps that closing `gaps[which]` closes. */
static unsigned closed_by(const struct rp_order *order, const struct rp_order_gap *gaps, size_t count,
                          size_t which, uint64_t thread) {
  const struct rp_order_gap *gap = &gaps[which];
  unsigned closed = 1u << which;
  if (gap->fix == RP_ORDER_FIX_NONE) return closed;
  const struct rp_order_site from = {.context = gap->context, .stream = gap->stream, .thread = thread};
  for (size_t i = 0; i < count; i++) {
    bool closes = gap->milestone                  ? rp_order_gap_covers(order, gap, gaps[i].token)
                  : gap->fix == RP_ORDER_FIX_WAIT ? rp_order_before(order, gaps[i].token, &from)
                                                  : context_covers(order, gaps[i].token, gap->context);
    if (closes) closed |= 1u << i;
  }
  return closed;
}

/* Smallest set of gaps whose closing closes all `count`: at most 2^RP_ORDER_FRONTIER sets to look at. */
static unsigned fewest(const unsigned *closed, size_t count) {
  const unsigned all = (1u << count) - 1;
  unsigned best = all;
  for (unsigned set = 0; set <= all; set++) {
    if (__builtin_popcount(set) >= __builtin_popcount(best)) continue;
    unsigned reached = 0;
    for (size_t i = 0; i < count; i++)
      if (set >> i & 1) reached |= closed[i];
    if (reached == all) best = set;
  }
  return best;
}

size_t rp_order_gaps(const struct rp_order *order, const struct rp_order_frontier *frontier,
                     const struct rp_order_site *site, struct rp_order_gap gaps[RP_ORDER_FRONTIER + 1]) {
  struct rp_order_gap open[RP_ORDER_FRONTIER];
  unsigned closed[RP_ORDER_FRONTIER];
  size_t count = 0, written = 0;
  for (uint8_t i = 0; i < frontier->count; i++)
    if (!rp_order_before(order, frontier->latest[i], site))
      open[count++] = describe(order, frontier->latest[i], site);
  for (size_t i = 0; i < count; i++)
    closed[i] = closed_by(order, open, count, i, site->thread);
  const unsigned chosen = count ? fewest(closed, count) : 0;
  for (size_t i = 0; i < count; i++)
    if (chosen >> i & 1) gaps[written++] = open[i];
  if (frontier->unknown) gaps[written++] = (struct rp_order_gap){.fix = RP_ORDER_FIX_NONE};
  return written;
}

/* ---- waits that may never end ---- */

bool rp_order_outside_goes_on(const struct rp_order *order) {
  for (uint32_t i = 0; i < order->call_active_count; i++) {
    const struct rp_order_pending *call = &order->call[order->call_active[i]];
    const bool graph = order->outside_captured && call->kind == RP_ORDER_GRAPH_LAUNCH;
    if (graph || (call->site.flags & RP_ORDER_OUTSIDE)) return true;
  }
  return false;
}

static uint64_t complete_up_to(const struct rp_order *order, uint32_t component) {
  uint64_t position = order->component[component].base;
  for (uint32_t i = 0; i < order->limits.threads; i++)
    if (order->thread[i].clock[component] > position) position = order->thread[i].clock[component];
  return position;
}

/* Entry of the clock of what the stream's next operation comes after. */
static uint64_t tail_at(const struct rp_order *order, const struct rp_order_stream *stream,
                        const struct rp_order_context *context, uint32_t component) {
  uint64_t position = stream->full[component], other = 0;
  if (context && stream->legacy)
    other = context->blocking[component];
  else if (context && stream->blocking && context->legacy != RP_ORDER_NO_SLOT)
    other = order->stream[context->legacy].full[component];
  return other > position ? other : position;
}

/* Work of the component that waits for something outside: is some of it up to `position`, and neither
 * complete nor before what follows on `to`? */
static bool stalls_at(const struct rp_order *order, const struct rp_order_stream *to, uint32_t c,
                      uint64_t position) {
  const struct rp_order_component *component = &order->component[c];
  uint64_t after = complete_up_to(order, c);
  if (to && to->full[c] > after) after = to->full[c];
  if (component->outside_first > after) after = component->outside_first - 1;
  return component->outside_last > after && position > after;
}

static bool milestone_stalls(const struct rp_order *order, uint64_t number,
                             const struct rp_order_stream *to) {
  const struct rp_order_milestone *milestone = rp_order_find_milestone(order, number);
  if (!milestone || milestone->unsure) return true;
  for (uint32_t c = 0; c < order->width; c++)
    if (stalls_at(order, to, c, milestone->clock[c])) return true;
  return false;
}

bool rp_order_may_stall(const struct rp_order *order, const struct rp_order_gap *gap,
                        const struct rp_order_site *site) {
  if (order->counts.lost || order->outside_lost) return true;
  const struct rp_order_stream *to = rp_order_find_stream(order, site);
  if (gap->milestone) return milestone_stalls(order, gap->milestone, to);
  if (rp_order_outside_goes_on(order)) return true;
  const struct rp_order_site tail = {.context = gap->context, .stream = gap->stream, .thread = gap->thread};
  const struct rp_order_stream *from = rp_order_find_stream(order, &tail);
  const struct rp_order_context *context = from ? rp_order_context_of(order, from) : NULL;
  for (uint32_t c = 0; from && c < order->width; c++)
    if (stalls_at(order, to, c, tail_at(order, from, context, c))) return true;
  return false;
}

struct rp_order_gap rp_order_owner(const struct rp_order *order, rp_order_token token) {
  struct rp_order_gap gap = {.fix = RP_ORDER_FIX_NONE, .token = token};
  if (order->counts.lost || rp_order_stale(order, token)) return gap;
  const struct rp_order_component *component = &order->component[rp_order_token_component(token)];
  gap.context = component->context;
  gap.stream = component->stream;
  gap.thread = component->thread;
  if (gap.stream != RP_ORDER_STREAM_UNKNOWN) gap.milestone = milestone_behind(order, token);
  if (gap.milestone ||
      (component->alive && gap.stream != RP_ORDER_STREAM_UNKNOWN && gap.stream != RP_ORDER_STREAM_PER_THREAD))
    gap.fix = RP_ORDER_FIX_WAIT;
  else if (context_covers(order, token, gap.context))
    gap.fix = RP_ORDER_FIX_CONTEXT;
  return gap;
}
