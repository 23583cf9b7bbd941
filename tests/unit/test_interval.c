/* rp_interval_depth against a brute-force count at every begin. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdlib.h>

#include "pool/interval.h"

static uint32_t brute_force_depth(const struct rp_interval *intervals, size_t count) {
  uint32_t deepest = 0;
  for (size_t i = 0; i < count; i++) {
    uint32_t here = 0;
    for (size_t j = 0; j < count; j++)
      here += intervals[j].begin <= intervals[i].begin && intervals[i].begin <= intervals[j].end;
    deepest = here > deepest ? here : deepest;
  }
  return deepest;
}

static void depth_equals_brute_force(void **state) {
  (void)state;
  srand(7);
  for (int round = 0; round < 3000; round++) {
    struct rp_interval intervals[24];
    size_t count = (size_t)(rand() % 25);
    for (size_t i = 0; i < count; i++) {
      intervals[i].begin = (uint64_t)(rand() % 30);
      intervals[i].end = intervals[i].begin + (uint64_t)(rand() % 12);
    }
    uint32_t depth = 99;
    assert_int_equal(rp_interval_depth(intervals, count, &depth), RP_OK);
    assert_int_equal(depth, brute_force_depth(intervals, count));
  }
}

static void touching_ends_overlap(void **state) {
  (void)state;
  struct rp_interval touching[] = {{1, 5}, {5, 9}};
  uint32_t depth;
  assert_int_equal(rp_interval_depth(touching, 2, &depth), RP_OK);
  assert_int_equal(depth, 2);
}

static void backward_interval_is_refused(void **state) {
  (void)state;
  struct rp_interval bad = {3, 2};
  uint32_t depth;
  assert_int_equal(rp_interval_depth(&bad, 1, &depth), RP_ERROR_INVALID);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(depth_equals_brute_force),
                                     cmocka_unit_test(touching_ends_overlap),
                                     cmocka_unit_test(backward_interval_is_refused)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
