/** @file range_filter.h
 * Which addresses are receive buffers, for code that may neither lock nor allocate. One writer at a time (the
 * owner serialises writers), any number of readers.
 */
#ifndef RP_AGENT_RANGE_FILTER_H
#define RP_AGENT_RANGE_FILTER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** Ranges held at once; what is more makes the filter answer "maybe" for everything within its bounds. */
#define RP_FILTER_RANGES 65536

struct rp_range_filter {
  _Atomic uint64_t low, high; /**< every range lies in [low, high); low = high = 0 when there is none */
  _Atomic uint32_t sequence;  /**< odd while the writer is at work */
  _Atomic uint32_t count;
  _Atomic uint32_t overflowed;              /**< ranges that did not fit and have not been removed */
  _Atomic uint64_t begin[RP_FILTER_RANGES]; /**< sorted */
  _Atomic uint64_t end[RP_FILTER_RANGES];
  _Atomic uint64_t reach[RP_FILTER_RANGES]; /**< largest end up to and with this one: ranges may overlap */
};

/** Adds [begin, end). Empty ranges are ignored; the same range may be added more than once. Writer only. */
void rp_filter_add(struct rp_range_filter *filter, uint64_t begin, uint64_t end);
/** Removes one [begin, end) added before; one that was not is ignored. Writer only. */
void rp_filter_remove(struct rp_range_filter *filter, uint64_t begin, uint64_t end);
/** Whether a range overlaps [begin, end). Never blocks: while the writer keeps changing the table it answers
 * true for what lies within the bounds, so a true must bear a second look under the owner's lock. */
bool rp_filter_overlaps(const struct rp_range_filter *filter, uint64_t begin, uint64_t end);
/** True when there is no range at all. */
static inline bool rp_filter_is_empty(const struct rp_range_filter *filter) {
  return atomic_load_explicit(&filter->high, memory_order_relaxed) == 0;
}

#endif
