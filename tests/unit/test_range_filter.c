/* The range filter against a plain list, and under concurrent readers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "agent/range_filter.h"

static struct rp_range_filter filter;

struct range {
  uint64_t begin, end;
};

static uint32_t random_state;

static uint32_t next_random(uint32_t below) {
  random_state = random_state * 1664525u + 1013904223u;
  return (uint32_t)(((uint64_t)(random_state >> 4) * below) >> 28);
}

static int reset(void **state) {
  (void)state;
  memset(&filter, 0, sizeof filter);
  return 0;
}

static bool listed(const struct range *ranges, size_t count, uint64_t begin, uint64_t end) {
  for (size_t i = 0; i < count; i++)
    if (ranges[i].begin < end && begin < ranges[i].end) return true;
  return false;
}

static void check_all(const struct range *ranges, size_t count, uint64_t space) {
  for (uint64_t begin = 0; begin < space; begin++) {
    assert_int_equal(rp_filter_overlaps(&filter, begin, begin + 1), listed(ranges, count, begin, begin + 1));
    uint64_t end = begin + 1 + next_random(40);
    assert_int_equal(rp_filter_overlaps(&filter, begin, end), listed(ranges, count, begin, end));
  }
}

/* Overlapping, nested, equal and adjacent ranges come and go; every address is asked for after every change.
 */
static void agrees_with_a_plain_list(void **state) {
  (void)state;
  enum { SPACE = 300, MAX = 24, CHANGES = 1500 };
  struct range ranges[MAX];
  size_t count = 0;
  random_state = 7;
  for (int change = 0; change < CHANGES; change++) {
    if (count < MAX && (count == 0 || next_random(2))) {
      uint64_t begin = 1 + next_random(SPACE - 60);
      ranges[count] = (struct range){begin, begin + 1 + next_random(50)};
      rp_filter_add(&filter, ranges[count].begin, ranges[count].end);
      count++;
    } else {
      size_t victim = next_random((uint32_t)count);
      rp_filter_remove(&filter, ranges[victim].begin, ranges[victim].end);
      ranges[victim] = ranges[--count];
    }
    assert_int_equal(rp_filter_is_empty(&filter), count == 0);
    check_all(ranges, count, SPACE);
  }
}

static void ignores_what_makes_no_sense(void **state) {
  (void)state;
  rp_filter_add(&filter, 50, 50);
  rp_filter_add(&filter, 60, 50);
  assert_true(rp_filter_is_empty(&filter));
  rp_filter_remove(&filter, 1, 2);
  rp_filter_add(&filter, 100, 200);
  rp_filter_remove(&filter, 100, 150);
  rp_filter_remove(&filter, 90, 200);
  assert_true(rp_filter_overlaps(&filter, 199, 200));
  assert_false(rp_filter_overlaps(&filter, 200, 201));
  assert_false(rp_filter_overlaps(&filter, 150, 150));
  assert_false(rp_filter_overlaps(&filter, 160, 150));
}

/* What does not fit must not be missed: everything within the bounds counts as a hit then. */
static void overflow_errs_on_the_safe_side(void **state) {
  (void)state;
  for (uint64_t i = 0; i < RP_FILTER_RANGES; i++)
    rp_filter_add(&filter, 1000 + 10 * i, 1005 + 10 * i);
  assert_false(rp_filter_overlaps(&filter, 1006, 1009));
  uint64_t beyond = 1000 + 10 * (uint64_t)RP_FILTER_RANGES;
  rp_filter_add(&filter, beyond, beyond + 5);
  assert_true(rp_filter_overlaps(&filter, beyond + 2, beyond + 3));
  rp_filter_remove(&filter, beyond, beyond + 5);
  assert_false(rp_filter_overlaps(&filter, 1006, 1009));
}

/* ---- readers beside a writer ---- */

static _Atomic bool done;
static _Atomic uint64_t missed, asked;

/* The first range never goes away, so it must be found at every moment; below and above all ranges there is
 * nothing. */
static void *read_always(void *unused) {
  while (!atomic_load(&done)) {
    for (int i = 0; i < 64; i++) {
      if (!rp_filter_overlaps(&filter, 5000, 5001)) atomic_fetch_add(&missed, 1);
      if (rp_filter_overlaps(&filter, 10, 20)) atomic_fetch_add(&missed, 1);
    }
    atomic_fetch_add(&asked, 128);
  }
  return unused;
}

static void readers_never_miss_a_standing_range(void **state) {
  (void)state;
  pthread_t readers[2];
  atomic_store(&done, false);
  rp_filter_add(&filter, 5000, 5010);
  for (int i = 0; i < 2; i++)
    assert_int_equal(pthread_create(&readers[i], NULL, read_always, NULL), 0);
  random_state = 3;
  for (int change = 0; change < 20000 || atomic_load(&asked) < 10000; change++) {
    uint64_t begin = 1000 + 10 * (uint64_t)next_random(900);
    rp_filter_add(&filter, begin, begin + 10);
    rp_filter_remove(&filter, begin, begin + 10);
  }
  atomic_store(&done, true);
  for (int i = 0; i < 2; i++)
    pthread_join(readers[i], NULL);
  assert_int_equal(atomic_load(&missed), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup(agrees_with_a_plain_list, reset),
      cmocka_unit_test_setup(ignores_what_makes_no_sense, reset),
      cmocka_unit_test_setup(overflow_errs_on_the_safe_side, reset),
      cmocka_unit_test_setup(readers_never_miss_a_standing_range, reset),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
