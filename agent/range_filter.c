/* The miss path of every launch: a compare with the bounds, then a binary search in a table that is read
 * under a sequence counter. Every field is an atomic: acquire loads and release stores keep them between the
 * two reads of the counter without a fence (which thread sanitizers do not know). Overlapping ranges are
 * handled by `reach`, the running maximum of the ends. */
#include "agent/range_filter.h"

/* Rereads before a reader gives up and answers "maybe". */
#define READ_TRIES 8

static uint64_t get(const _Atomic uint64_t *word) {
  return atomic_load_explicit(word, memory_order_acquire);
}

static void set(_Atomic uint64_t *word, uint64_t value) {
  atomic_store_explicit(word, value, memory_order_release);
}

/* First position whose begin is >= `address`. */
static uint32_t lower_bound(const struct rp_range_filter *f, uint32_t count, uint64_t address) {
  uint32_t from = 0, to = count;
  while (from < to) {
    uint32_t middle = from + (to - from) / 2;
    if (get(&f->begin[middle]) < address)
      from = middle + 1;
    else
      to = middle;
  }
  return from;
}

static void write_begin(struct rp_range_filter *f) {
  uint32_t sequence = atomic_load_explicit(&f->sequence, memory_order_relaxed);
  atomic_store_explicit(&f->sequence, sequence + 1,
                        memory_order_relaxed); /* before the release stores that follow */
}

static void write_end(struct rp_range_filter *f) {
  uint32_t sequence = atomic_load_explicit(&f->sequence, memory_order_relaxed);
  atomic_store_explicit(&f->sequence, sequence + 1, memory_order_release);
}

static void update_reach(struct rp_range_filter *f, uint32_t from, uint32_t count) {
  uint64_t reach = from ? get(&f->reach[from - 1]) : 0;
  for (uint32_t i = from; i < count; i++) {
    uint64_t end = get(&f->end[i]);
    if (end > reach) reach = end;
    set(&f->reach[i], reach);
  }
}

void rp_filter_add(struct rp_range_filter *f, uint64_t begin, uint64_t end) {
  if (begin >= end) return;
  /* Bounds grow before the range appears, so that no reader sees them too narrow for a range it should find.
   */
  uint64_t low = get(&f->low), high = get(&f->high);
  if (high == 0 || begin < low) set(&f->low, begin);
  if (end > high) set(&f->high, end);
  uint32_t count = atomic_load_explicit(&f->count, memory_order_relaxed);
  if (count == RP_FILTER_RANGES) {
    atomic_fetch_add_explicit(&f->overflowed, 1, memory_order_relaxed);
    return;
  }
  uint32_t at = lower_bound(f, count, begin);
  write_begin(f);
  for (uint32_t i = count; i > at; i--) {
    set(&f->begin[i], get(&f->begin[i - 1]));
    set(&f->end[i], get(&f->end[i - 1]));
  }
  set(&f->begin[at], begin);
  set(&f->end[at], end);
  update_reach(f, at, count + 1);
  atomic_store_explicit(&f->count, count + 1, memory_order_release);
  write_end(f);
}

static void shrink_bounds(struct rp_range_filter *f, uint32_t count) {
  if (atomic_load_explicit(&f->overflowed, memory_order_relaxed))
    return; /* what did not fit may lie anywhere */
  set(&f->high, count ? get(&f->reach[count - 1]) : 0);
  set(&f->low, count ? get(&f->begin[0]) : 0);
}

void rp_filter_remove(struct rp_range_filter *f, uint64_t begin, uint64_t end) {
  uint32_t count = atomic_load_explicit(&f->count, memory_order_relaxed);
  uint32_t at = lower_bound(f, count, begin);
  while (at < count && get(&f->begin[at]) == begin && get(&f->end[at]) != end)
    at++;
  if (at == count || get(&f->begin[at]) != begin) {
    uint32_t overflowed = atomic_load_explicit(&f->overflowed, memory_order_relaxed);
    if (begin < end && overflowed)
      atomic_store_explicit(&f->overflowed, overflowed - 1, memory_order_relaxed);
    return;
  }
  write_begin(f);
  for (uint32_t i = at; i + 1 < count; i++) {
    set(&f->begin[i], get(&f->begin[i + 1]));
    set(&f->end[i], get(&f->end[i + 1]));
  }
  update_reach(f, at, count - 1);
  atomic_store_explicit(&f->count, count - 1, memory_order_release);
  write_end(f);
  shrink_bounds(f, count - 1);
}

static bool search(const struct rp_range_filter *f, uint64_t begin, uint64_t end) {
  uint32_t count = atomic_load_explicit(&f->count, memory_order_acquire);
  uint32_t behind = lower_bound(f, count, end); /* the ranges before it begin before `end` */
  return behind > 0 && get(&f->reach[behind - 1]) > begin;
}

bool rp_filter_overlaps(const struct rp_range_filter *f, uint64_t begin, uint64_t end) {
  uint64_t high = get(&f->high), low = get(&f->low);
  if (begin >= end || begin >= high || end <= low) return false;
  if (atomic_load_explicit(&f->overflowed, memory_order_relaxed)) return true;
  for (int attempt = 0; attempt < READ_TRIES; attempt++) {
    uint32_t before = atomic_load_explicit(&f->sequence, memory_order_acquire);
    if (before & 1u) continue;
    bool found = search(f, begin, end);
    if (atomic_load_explicit(&f->sequence, memory_order_relaxed) == before) return found;
  }
  return true;
}
