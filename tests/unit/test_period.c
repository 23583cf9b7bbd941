/* rp_period_find against a brute force that compares whole periods, and the sequences that pipelines make. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "pool/period.h"

static size_t find(const char *text, size_t repeats, bool skip_first, bool reject_constant) {
  uint64_t symbols[256];
  size_t count = strlen(text);
  for (size_t i = 0; i < count; i++)
    symbols[i] = (uint64_t)text[i];
  struct rp_period_rule rule = {repeats, skip_first, reject_constant};
  return rp_period_find(symbols, count, &rule);
}

static void pipelines_have_their_step_as_period(void **state) {
  (void)state;
  /* Last stage of 1F1B, 4 microbatches: forwards only; the gap before the first of a step differs
   * (optimizer). */
  assert_int_equal(find("?cccOcccOccc", 3, false, true), 4);
  assert_int_equal(find("?cccOccc", 2, false, true), 4);
  /* Middle stage: warm-up, steady, cool-down; the steady part alone is no step. */
  assert_int_equal(find("?FFBFBFBFBBB"
                        "FFFBFBFBFBBB",
                        2, false, true),
                   12);
  assert_int_equal(find("?FFBFBFBFBFB", 2, false, true), 0);
  /* Nothing tells steps apart. */
  assert_int_equal(find("?ccccccc", 2, false, true), 0);
  assert_int_equal(find("?ccccccc", 2, false, false), 1);
  /* The first step does more (lazy initialisation). */
  assert_int_equal(find("?IccOcccOcccOccc", 3, false, true), 0);
  assert_int_equal(find("?IccOcccOcccOccc", 3, true, true), 4);
  assert_int_equal(find("", 2, false, true), 0);
  assert_int_equal(find("?", 2, true, true), 0);
}

static void smallest_period_equals_brute_force(void **state) {
  (void)state;
  srand(3);
  for (int round = 0; round < 20000; round++) {
    char text[40];
    size_t period = 1 + (size_t)(rand() % 8), count = (size_t)(rand() % 36);
    for (size_t i = 0; i < count; i++)
      text[i] = (char)(i < period || rand() % 60 == 0 ? 'a' + rand() % 2 : text[i - period]);
    text[count] = 0;
    size_t expected = 0;
    for (size_t p = 1; p * 2 <= count && !expected; p++) {
      int bad = 0;
      for (size_t i = 1; i < count; i++)
        for (size_t j = i; j < count; j += p)
          bad |= text[i] != text[j];
      expected = bad ? 0 : p;
    }
    assert_int_equal(find(text, 2, false, false), expected);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(pipelines_have_their_step_as_period),
                                     cmocka_unit_test(smallest_period_equals_brute_force)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
