/* Interval colouring: in order of begin, with a heap of the ends of those that are live. */
#include "pool/slots.h"

#include <stdlib.h>
#include <string.h>

#include "recvpool/plan.h"

struct entry {
  uint64_t key;
  uint32_t index;
};

/* --- live intervals, the one that ends first on top --- */

struct heap {
  struct entry *at;
  size_t count;
};

static void heap_push(struct heap *h, struct entry e) {
  size_t i = h->count++;
  for (; i > 0 && h->at[(i - 1) / 2].key > e.key; i = (i - 1) / 2)
    h->at[i] = h->at[(i - 1) / 2];
  h->at[i] = e;
}

static struct entry heap_pop(struct heap *h) {
  struct entry top = h->at[0], last = h->at[--h->count];
  size_t i = 0;
  for (size_t child = 1; child < h->count; child = 2 * i + 1) {
    if (child + 1 < h->count && h->at[child + 1].key < h->at[child].key) child++;
    if (h->at[child].key >= last.key) break;
    h->at[i] = h->at[child];
    i = child;
  }
  h->at[i] = last;
  return top;
}

/* --- order of begin --- */

static int compare_entries(const void *left, const void *right) {
  const struct entry *a = left, *b = right;
  if (a->key != b->key) return a->key < b->key ? -1 : 1;
  return (a->index > b->index) - (a->index < b->index);
}

/* Indices in order of begin; equal begins keep their order. NULL without memory or for a reversed interval
 * (`status`). */
static struct entry *sorted_by_begin(const struct rp_interval *intervals, size_t count, rp_status *status) {
  struct entry *order = malloc((count + 1) * sizeof(*order));
  *status = order ? RP_OK : RP_ERROR_NO_MEMORY;
  bool sorted = true;
  for (size_t i = 0; order && i < count; i++) {
    if (intervals[i].end < intervals[i].begin) *status = RP_ERROR_INVALID;
    order[i] = (struct entry){intervals[i].begin, (uint32_t)i};
    sorted &= i == 0 || order[i - 1].key <= order[i].key;
  }
  if (*status) {
    free(order);
    return NULL;
  }
  if (!sorted) qsort(order, count, sizeof(*order), compare_entries);
  return order;
}

/* --- colouring --- */

static bool ring_is_safe(const struct rp_interval *intervals, const struct entry *order, size_t count,
                         size_t slots) {
  for (size_t i = 0; i + slots < count; i++)
    if (intervals[order[i].index].end >= order[i + slots].key) return false;
  return true;
}

/* The slot that has been free for longest: `free_slots` is a queue. */
static void colour(const struct rp_interval *intervals, const struct entry *order, size_t count,
                   uint32_t slots, struct heap *live, uint32_t *free_slots, uint32_t *slot) {
  size_t head = 0, free_count = slots;
  for (uint32_t k = 0; k < slots; k++)
    free_slots[k] = k;
  live->count = 0;
  for (size_t i = 0; i < count; i++) {
    while (live->count && live->at[0].key < order[i].key)
      free_slots[(head + free_count++) % slots] = heap_pop(live).index;
    uint32_t chosen = free_slots[head];
    head = (head + 1) % slots;
    free_count--;
    slot[order[i].index] = chosen;
    heap_push(live, (struct entry){intervals[order[i].index].end, chosen});
  }
}

rp_status rp_slots_assign(const struct rp_interval *intervals, size_t count, uint32_t slack, uint32_t *slot,
                          struct rp_slots *out) {
  if (count >= UINT32_MAX) return RP_ERROR_LIMIT;
  rp_status status;
  struct entry *order = sorted_by_begin(intervals, count, &status);
  if (!order) return status;
  struct heap live = {malloc((count + 1) * sizeof(struct entry)), 0};
  struct rp_slots slots = {0};
  uint32_t *free_slots = NULL;
  if (!live.at) status = RP_ERROR_NO_MEMORY;
  if (!status) status = rp_interval_depth(intervals, count, &slots.depth);
  if (!status) {
    slots.count = (uint32_t)((uint64_t)slots.depth + slack < count ? slots.depth + slack : count);
    slots.ring = ring_is_safe(intervals, order, count, slots.count);
    free_slots = malloc((slots.count + 1) * sizeof(*free_slots));
    if (!free_slots) status = RP_ERROR_NO_MEMORY;
  }
  if (!status && slot && !slots.ring)
    colour(intervals, order, count, slots.count, &live, free_slots, slot);
  else if (!status && slot)
    for (size_t i = 0; i < count; i++)
      slot[order[i].index] = (uint32_t)(i % slots.count);
  free(order);
  free(live.at);
  free(free_slots);
  if (!status) *out = slots;
  return status;
}

/* --- tenants of several sizes --- */

/* Free slots by the size they have now: a stack per distinct size, threaded through `below`. Size 0 is not
 * yet used. */
struct shelves {
  uint64_t *size; /* ascending, size[0] = 0 */
  size_t count;
  int64_t *top;   /* [count] slot or -1 */
  int64_t *below; /* [slots] */
};

static int compare_u64(const void *left, const void *right) {
  uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
  return (a > b) - (a < b);
}

static size_t shelf_of(const struct shelves *s, uint64_t size) {
  size_t low = 0, high = s->count;
  while (high - low > 1) {
    size_t middle = low + (high - low) / 2;
    if (s->size[middle] <= size)
      low = middle;
    else
      high = middle;
  }
  return low;
}

static void shelve(struct shelves *s, uint32_t slot, uint64_t size) {
  size_t shelf = shelf_of(s, size);
  s->below[slot] = s->top[shelf];
  s->top[shelf] = slot;
}

/* The smallest free slot that is large enough, else the largest one that is not: growing it costs least. */
static uint32_t take_fitting(struct shelves *s, uint64_t size) {
  size_t first = shelf_of(s, size), chosen = first;
  while (chosen < s->count && s->top[chosen] < 0)
    chosen++;
  if (chosen == s->count)
    for (chosen = first; chosen > 0 && s->top[chosen] < 0;)
      chosen--;
  uint32_t slot = (uint32_t)s->top[chosen];
  s->top[chosen] = s->below[slot];
  return slot;
}

static bool shelves_init(struct shelves *s, const uint64_t *bytes, size_t count) {
  s->size = calloc(count + 1, sizeof(*s->size));
  s->top = malloc((count + 1) * sizeof(*s->top));
  s->below = malloc((count + 1) * sizeof(*s->below));
  if (!s->size || !s->top || !s->below) return false;
  if (count) memcpy(s->size + 1, bytes, count * sizeof(*bytes));
  qsort(s->size, count + 1, sizeof(*s->size), compare_u64);
  for (size_t i = 0; i <= count; i++)
    if (i == 0 || s->size[i] != s->size[s->count - 1]) s->size[s->count++] = s->size[i];
  for (size_t i = 0; i < s->count; i++)
    s->top[i] = -1;
  return true;
}

static void colour_sizes(const struct rp_interval *intervals, const uint64_t *bytes,
                         const struct entry *order, size_t count, uint32_t slots, struct heap *live,
                         struct shelves *shelves, uint32_t *slot, uint64_t *slot_bytes) {
  memset(slot_bytes, 0, slots * sizeof(*slot_bytes));
  for (uint32_t k = slots; k-- > 0;)
    shelve(shelves, k, 0);
  live->count = 0;
  for (size_t i = 0; i < count; i++) {
    while (live->count && live->at[0].key < order[i].key) {
      uint32_t released = heap_pop(live).index;
      shelve(shelves, released, slot_bytes[released]);
    }
    uint32_t item = order[i].index, chosen = take_fitting(shelves, bytes[item]);
    if (slot_bytes[chosen] < bytes[item]) slot_bytes[chosen] = bytes[item];
    slot[item] = chosen;
    heap_push(live, (struct entry){intervals[item].end, chosen});
  }
}

rp_status rp_slots_assign_sizes(const struct rp_interval *intervals, const uint64_t *bytes, size_t count,
                                uint32_t *slot, uint64_t *slot_bytes, struct rp_slots *out) {
  if (count >= UINT32_MAX) return RP_ERROR_LIMIT;
  rp_status status;
  struct entry *order = sorted_by_begin(intervals, count, &status);
  if (!order) return status;
  struct heap live = {malloc((count + 1) * sizeof(struct entry)), 0};
  struct shelves shelves = {0};
  uint32_t depth = 0;
  if (live.at && shelves_init(&shelves, bytes, count) && !rp_interval_depth(intervals, count, &depth)) {
    struct rp_slots slots = {.count = depth, .depth = depth};
    colour_sizes(intervals, bytes, order, count, slots.count, &live, &shelves, slot, slot_bytes);
    *out = slots;
  } else {
    status = RP_ERROR_NO_MEMORY;
  }
  free(order);
  free(live.at);
  free(shelves.size);
  free(shelves.top);
  free(shelves.below);
  return status;
}

rp_status rp_ring_size_1f1b(int32_t stages, int32_t stage, int32_t microbatches, int32_t slack,
                            uint32_t *slots) {
  if (stages < 1 || stage < 0 || stage >= stages || microbatches < 1 || slack < 0) return RP_ERROR_INVALID;
  int64_t size = (int64_t)stages - stage + slack;
  if (size > microbatches) size = microbatches;
  *slots = (uint32_t)(size < 2 ? 2 : size);
  return RP_OK;
}
