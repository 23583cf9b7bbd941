/* From received buffers to pools: who shares with whom at each granularity, how many slots that needs, and
 * the sums. */
#include "pool/plan.h"

#include <stdlib.h>
#include <string.h>

#include "pool/lifetime.h"
#include "pool/slots.h"

/* --- groups of items --- */

struct grouping {
  uint32_t *order; /* item indices, group after group, in order of posting within each */
  size_t *begin;   /* [groups + 1] */
  size_t groups;
};

static size_t group_of(const struct rp_plan_item *item, int granularity) {
  size_t gradient = item->direction == RP_DIRECTION_GRADIENT;
  switch (granularity) {
  case RP_PLAN_STAGE:
    return 2 * (size_t)item->stage + gradient;
  case RP_PLAN_DIRECTION:
    return 2 * (size_t)item->rank + gradient;
  default:
    return (size_t)item->rank;
  }
}

/* Counting sort, stable. */
static rp_status group_items(const struct rp_plan *plan, int granularity, struct grouping *out) {
  out->groups = granularity == RP_PLAN_STAGE ? 2 * (size_t)plan->stages : 2 * (size_t)plan->ranks;
  out->order = malloc((plan->item_count + 1) * sizeof(*out->order));
  out->begin = calloc(out->groups + 2, sizeof(*out->begin));
  if (!out->order || !out->begin) return RP_ERROR_NO_MEMORY;
  for (size_t i = 0; i < plan->item_count; i++)
    out->begin[group_of(&plan->items[i], granularity) + 2]++;
  for (size_t g = 2; g <= out->groups + 1; g++)
    out->begin[g] += out->begin[g - 1];
  for (size_t i = 0; i < plan->item_count; i++)
    out->order[out->begin[group_of(&plan->items[i], granularity) + 1]++] = (uint32_t)i;
  return RP_OK;
}

/* --- one class --- */

struct builder {
  struct rp_plan *plan;
  size_t class_capacity, pool_capacity;
  size_t cursor;                /* entries of members and slots filled */
  struct rp_interval *interval; /* scratch, [items] each */
  uint64_t *bytes;
  uint64_t *slot_bytes;
  uint64_t *sizes; /* distinct sizes, ascending */
  size_t size_count;
};

static bool grow(void **array, size_t *capacity, size_t count, size_t element) {
  if (count < *capacity) return true;
  size_t wanted = *capacity ? *capacity * 2 : 64;
  void *grown = realloc(*array, wanted * element);
  if (!grown) return false;
  *array = grown;
  *capacity = wanted;
  return true;
}

static bool multiply(uint64_t a, uint64_t b, uint64_t *out) {
  return !__builtin_mul_overflow(a, b, out);
}
static bool add(uint64_t *sum, uint64_t more) {
  return !__builtin_add_overflow(*sum, more, sum);
}

/* Gathers the items of a group that have `size` (all if UINT64_MAX) at the cursor; returns how many. */
static size_t gather(struct builder *b, const uint32_t *order, size_t count, uint64_t size) {
  size_t taken = 0;
  for (size_t i = 0; i < count; i++) {
    const struct rp_plan_item *item = &b->plan->items[order[i]];
    if (size != UINT64_MAX && item->bytes != size) continue;
    b->plan->members[b->cursor + taken] = order[i];
    b->interval[taken] = item->interval;
    b->bytes[taken++] = item->bytes;
  }
  return taken;
}

/* Members in order of begin, so that the n-th member is the n-th receive: true unless receives are reordered.
 */
static struct rp_plan_class new_class(const struct builder *b, int granularity, size_t count) {
  const struct rp_plan_item *first = &b->plan->items[b->plan->members[b->cursor]];
  struct rp_plan_class c = {.rank = first->rank,
                            .stage = granularity == RP_PLAN_STAGE ? first->stage : -1,
                            .direction =
                                granularity == RP_PLAN_RANK ? RP_DIRECTION_UNKNOWN : first->direction,
                            .buffers = (uint32_t)count,
                            .first = b->cursor};
  for (size_t i = 0; i < count; i++)
    if (b->bytes[i] > c.buffer_bytes) c.buffer_bytes = b->bytes[i];
  return c;
}

static rp_status push_class(struct builder *b, const struct rp_plan_class *c) {
  if (!grow((void **)&b->plan->classes, &b->class_capacity, b->plan->class_count, sizeof(*c)))
    return RP_ERROR_NO_MEMORY;
  b->plan->classes[b->plan->class_count++] = *c;
  b->cursor += c->buffers;
  return RP_OK;
}

static rp_status push_pool(struct builder *b, const struct rp_plan_class *c) {
  if (!grow((void **)&b->plan->pools, &b->pool_capacity, b->plan->pool_count, sizeof(struct rp_plan_pool)))
    return RP_ERROR_NO_MEMORY;
  b->plan->pools[b->plan->pool_count++] = (struct rp_plan_pool){.rank = c->rank,
                                                                .stage = c->stage,
                                                                .direction = (int)c->direction,
                                                                .buffers = c->buffers,
                                                                .depth = c->depth,
                                                                .slots = c->slots,
                                                                .ring = c->ring,
                                                                .buffer_bytes = c->buffer_bytes,
                                                                .bytes_stock = c->bytes_stock,
                                                                .bytes_pooled = c->bytes_pooled};
  return RP_OK;
}

/* --- one group --- */

/* Whether the n-th member has slot n mod `slots`: not where items came in another order than that of posting.
 */
static bool is_ring(const uint32_t *slot, size_t count, uint32_t slots) {
  for (size_t i = 0; i < count; i++)
    if (slot[i] != i % slots) return false;
  return true;
}

/* Classes of one size each; `pooled` is what they need together. */
static rp_status build_separate(struct builder *b, int granularity, const uint32_t *order, size_t count,
                                uint64_t *pooled) {
  struct rp_plan *plan = b->plan;
  bool chosen = granularity == plan->options.granularity;
  for (size_t z = 0; z < b->size_count; z++) {
    size_t taken = gather(b, order, count, b->sizes[z]);
    if (!taken) continue;
    struct rp_plan_class c = new_class(b, granularity, taken);
    struct rp_slots slots;
    rp_status status = rp_slots_assign(b->interval, taken, plan->options.slack,
                                       chosen ? plan->slots + b->cursor : NULL, &slots);
    if (status) return status;
    c.depth = slots.depth;
    c.slots = slots.count;
    c.ring = slots.ring && (!chosen || is_ring(plan->slots + b->cursor, taken, slots.count));
    if (!multiply(c.buffer_bytes, c.buffers, &c.bytes_stock)) return RP_ERROR_LIMIT;
    c.bytes_pooled = c.buffer_bytes * c.slots;
    if (!add(pooled, c.bytes_pooled)) return RP_ERROR_LIMIT;
    plan->rank[c.rank].slots[granularity] += slots.depth;
    if (granularity == RP_PLAN_STAGE) status = push_pool(b, &c);
    if (!status && chosen) status = push_class(b, &c);
    if (status) return status;
  }
  return RP_OK;
}

/* One class of all sizes, in place of the separate ones made since `class_mark`, if it needs fewer bytes than
 * they. */
static rp_status try_mixed(struct builder *b, int granularity, const uint32_t *order, size_t count,
                           size_t class_mark, uint64_t separate) {
  struct rp_plan *plan = b->plan;
  size_t end = b->cursor;
  b->cursor -= count;
  size_t taken = gather(b, order, count, UINT64_MAX);
  struct rp_plan_class c = new_class(b, granularity, taken);
  struct rp_slots slots;
  uint32_t *slot = malloc(taken * sizeof(*slot));
  if (!slot) return RP_ERROR_NO_MEMORY;
  rp_status status = rp_slots_assign_sizes(b->interval, b->bytes, taken, slot, b->slot_bytes, &slots);
  for (uint32_t k = 0; !status && k < slots.count; k++)
    c.bytes_pooled += b->slot_bytes[k]; /* never more than the stock bytes, which did not overflow */
  uint64_t spare =
      (uint64_t)slots.count + plan->options.slack > taken ? taken - slots.count : plan->options.slack;
  c.bytes_pooled += spare * c.buffer_bytes;
  if (!status && c.bytes_pooled < separate) {
    c.depth = slots.depth;
    c.slots = slots.count + (uint32_t)spare;
    for (size_t i = 0; i < taken; i++)
      c.bytes_stock += b->bytes[i];
    c.slot_bytes = malloc(c.slots * sizeof(*c.slot_bytes));
    if (!c.slot_bytes) status = RP_ERROR_NO_MEMORY;
    for (uint32_t k = 0; !status && k < c.slots; k++)
      c.slot_bytes[k] = k < slots.count ? b->slot_bytes[k] : c.buffer_bytes;
    memcpy(plan->slots + b->cursor, slot, taken * sizeof(*slot));
    plan->class_count = class_mark;
    if (!status) status = push_class(b, &c);
    if (status) free(c.slot_bytes);
  } else if (!status) {
    b->cursor =
        end - count; /* gather has overwritten the order of the members: make the separate classes again */
    plan->class_count = class_mark;
    uint32_t depth = plan->rank[c.rank].slots[granularity];
    uint64_t pooled = 0;
    status = build_separate(b, granularity, order, count, &pooled);
    plan->rank[c.rank].slots[granularity] = depth;
  }
  free(slot);
  return status;
}

static rp_status build_granularity(struct builder *b, int granularity) {
  struct grouping groups = {0};
  rp_status status = group_items(b->plan, granularity, &groups);
  bool chosen = granularity == b->plan->options.granularity;
  bool mixed = chosen && b->plan->options.mixed_sizes && b->size_count > 1 && granularity != RP_PLAN_STAGE;
  for (size_t g = 0; !status && g < groups.groups; g++) {
    const uint32_t *order = groups.order + groups.begin[g];
    size_t count = groups.begin[g + 1] - groups.begin[g], mark = b->plan->class_count;
    uint64_t separate = 0;
    if (!count) continue;
    status = build_separate(b, granularity, order, count, &separate);
    if (!status && mixed) status = try_mixed(b, granularity, order, count, mark, separate);
  }
  free(groups.order);
  free(groups.begin);
  return status;
}

/* --- the plan --- */

static int compare_u64(const void *left, const void *right) {
  uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
  return (a > b) - (a < b);
}

static void find_sizes(struct builder *b) {
  const struct rp_plan *plan = b->plan;
  bool uniform = true;
  for (size_t i = 0; i < plan->item_count; i++) {
    b->sizes[i] = plan->items[i].bytes;
    uniform &= b->sizes[i] == b->sizes[0];
  }
  if (uniform) {
    b->size_count = plan->item_count ? 1 : 0;
    return;
  }
  qsort(b->sizes, plan->item_count, sizeof(*b->sizes), compare_u64);
  for (size_t i = 0; i < plan->item_count; i++)
    if (i == 0 || b->sizes[i] != b->sizes[b->size_count - 1]) b->sizes[b->size_count++] = b->sizes[i];
}

static int compare_pools(const void *left, const void *right) {
  const struct rp_plan_pool *a = left, *b = right;
  if (a->rank != b->rank) return a->rank < b->rank ? -1 : 1;
  if (a->stage != b->stage) return a->stage < b->stage ? -1 : 1;
  return a->direction - b->direction;
}

static int compare_classes(const void *left, const void *right) {
  const struct rp_plan_class *a = left, *b = right;
  if (a->rank != b->rank) return a->rank < b->rank ? -1 : 1;
  if (a->stage != b->stage) return a->stage < b->stage ? -1 : 1;
  if (a->direction != b->direction) return a->direction < b->direction ? -1 : 1;
  return (a->first > b->first) - (a->first < b->first);
}

static rp_status sum_up(struct rp_plan *plan) {
  uint64_t stock = 0;
  for (size_t i = 0; i < plan->class_count; i++) {
    const struct rp_plan_class *c = &plan->classes[i];
    struct rp_plan_rank *rank = &plan->rank[c->rank];
    if (!add(&rank->bytes_stock, c->bytes_stock) || !add(&rank->bytes_pooled, c->bytes_pooled) ||
        !add(&stock, c->bytes_stock))
      return RP_ERROR_LIMIT;
    for (size_t j = c->first; j < c->first + c->buffers; j++) {
      const struct rp_plan_item *item = &plan->items[plan->members[j]];
      size_t pair = (size_t)item->stage * (size_t)plan->microbatches + (size_t)item->microbatch;
      plan->lookup[2 * pair + (item->direction == RP_DIRECTION_GRADIENT)] = plan->slots[j] + 1;
    }
  }
  return RP_OK;
}

static bool allocate(struct rp_plan *plan, struct builder *b) {
  size_t count = plan->item_count + 1, tensors = plan->options.tensor_count;
  plan->members = malloc(count * sizeof(*plan->members));
  plan->slots = calloc(count, sizeof(*plan->slots));
  plan->rank = calloc((size_t)plan->ranks, sizeof(*plan->rank));
  plan->lookup = calloc(2 * (size_t)plan->stages * (size_t)plan->microbatches + 1, sizeof(*plan->lookup));
  uint64_t *own = malloc((tensors + 1) * sizeof(*own));
  if (own && tensors) memcpy(own, plan->options.tensor_bytes, tensors * sizeof(*own));
  plan->options.tensor_bytes = own;
  b->interval = malloc(count * sizeof(*b->interval));
  b->bytes = malloc(count * sizeof(*b->bytes));
  b->slot_bytes = malloc(count * sizeof(*b->slot_bytes));
  b->sizes = malloc(count * sizeof(*b->sizes));
  return plan->members && plan->slots && plan->rank && plan->lookup && own && b->interval && b->bytes &&
         b->slot_bytes && b->sizes;
}

rp_status rp__plan_build(struct rp_plan_item *items, size_t count, int32_t ranks, int32_t stages,
                         int32_t microbatches, const struct rp_plan_options *options, struct rp_plan **out) {
  struct rp_plan *plan = calloc(1, sizeof(*plan));
  if (!plan) {
    free(items);
    return RP_ERROR_NO_MEMORY;
  }
  *plan =
      (struct rp_plan){.ranks = ranks, .stages = stages, .microbatches = microbatches, .options = *options};
  plan->items = items;
  plan->item_count = count;
  struct builder b = {.plan = plan};
  rp_status status = allocate(plan, &b) ? RP_OK : RP_ERROR_NO_MEMORY;
  if (!status) find_sizes(&b);
  for (int32_t r = 0; !status && r < ranks; r++)
    plan->rank[r].rank = r;
  for (int g = 0; !status && g < RP_PLAN_GRANULARITY_COUNT; g++) {
    if (g != options->granularity)
      b.cursor = 0; /* members are scratch here; the chosen granularity comes last */
    if (g != options->granularity) status = build_granularity(&b, g);
  }
  b.cursor = 0;
  if (!status) status = build_granularity(&b, options->granularity);
  if (!status && plan->pool_count) qsort(plan->pools, plan->pool_count, sizeof(*plan->pools), compare_pools);
  if (!status && plan->class_count)
    qsort(plan->classes, plan->class_count, sizeof(*plan->classes), compare_classes);
  if (!status) status = sum_up(plan);
  free(b.interval);
  free(b.bytes);
  free(b.slot_bytes);
  free(b.sizes);
  if (status)
    rp_plan_destroy(plan);
  else
    *out = plan;
  return status;
}

/* The rank that sends what `received` gets. */
static uint32_t sender_of(const struct rp_schedule *schedule, const struct rp_received *received) {
  int32_t stage = received->stage + (received->direction == RP_DIRECTION_GRADIENT ? 1 : -1);
  return stage >= 0 && stage < schedule->stages ? (uint32_t)schedule->stage_rank[stage] : 0;
}

rp_status rp__plan_from_schedule(const struct rp_schedule *schedule, const struct rp_plan_options *options,
                                 struct rp_plan **out) {
  uint64_t bytes;
  rp_status status = rp__plan_options_check(options, &bytes);
  if (status) return status;
  const struct rp_lifetime_options lifetime = {.forward_only = options->forward_only,
                                               .post_at_use = options->post_at_use,
                                               .receive_ahead = options->receive_ahead};
  struct rp_received_set set;
  status = rp_schedule_lifetimes(schedule, &lifetime, &set);
  if (status) return status;
  size_t count = set.rank_begin[set.ranks];
  struct rp_plan_item *items = malloc((count + 1) * sizeof(*items));
  for (int32_t r = 0; items && r < set.ranks; r++)
    for (size_t i = set.rank_begin[r]; i < set.rank_begin[r + 1]; i++)
      items[i] = (struct rp_plan_item){.interval = set.items[i].interval,
                                       .bytes = bytes,
                                       .rank = r,
                                       .stage = set.items[i].stage,
                                       .microbatch = set.items[i].microbatch,
                                       .direction = set.items[i].direction,
                                       .source = sender_of(schedule, &set.items[i]),
                                       .readers = set.items[i].readers};
  rp_received_set_fini(&set);
  if (!items) return RP_ERROR_NO_MEMORY;
  return rp__plan_build(items, count, schedule->ranks, schedule->stages, schedule->microbatches, options,
                        out);
}
