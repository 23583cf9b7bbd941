/* Smallest period of a symbol sequence. */
#include "pool/period.h"

static bool has_period(const uint64_t *symbols, size_t count, size_t from, size_t period) {
  for (size_t i = from; i + period < count; i++)
    if (symbols[i] != symbols[i + period]) return false;
  return true;
}

static bool is_constant(const uint64_t *symbols, size_t from, size_t to) {
  for (size_t i = from + 1; i < to; i++)
    if (symbols[i] != symbols[from]) return false;
  return true;
}

size_t rp_period_find(const uint64_t *symbols, size_t count, const struct rp_period_rule *rule) {
  size_t repeats = rule->repeats < 2 ? 2 : rule->repeats;
  for (size_t period = 1; period * repeats <= count; period++) {
    /* With skip_first, at least two later periods must agree, or there would be nothing to compare. */
    if (rule->skip_first && period * 3 > count) return 0;
    /* The gap before the second period still has the first one's end in it. */
    size_t from = rule->skip_first ? period + 1 : 1;
    if (!has_period(symbols, count, from, period)) continue;
    if (!rule->reject_constant || !is_constant(symbols, 1, count)) return period;
  }
  return 0;
}
