/** @file period.h
 * Finds the step in a sequence of receives that carries no step numbers (just-in-time buffers have no stable
 * address).
 */
#ifndef RP_POOL_PERIOD_H
#define RP_POOL_PERIOD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** How strict rp_period_find is. */
struct rp_period_rule {
  size_t repeats;       /**< how many whole periods there must be, at least 2 */
  bool skip_first;      /**< the first period may differ from the others (warm-up) */
  bool reject_constant; /**< a period in which all symbols are equal is no step */
};

/** Smallest p such that symbols[i] == symbols[i + p] throughout, symbols[0] excepted: what came before the
 * first receive says nothing. 0 if there is none. O(count * number of divisors tried), no allocation. */
size_t rp_period_find(const uint64_t *symbols, size_t count, const struct rp_period_rule *rule);

#endif
