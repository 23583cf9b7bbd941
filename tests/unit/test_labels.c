/* Label stacks against plain stacks without bounds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdlib.h>

#include "pool/labels.h"

enum { THREADS = 8, DEEPEST = 40 };

static void labels_equal_plain_stacks(void **state) {
  (void)state;
  static struct rp_labels labels;
  uint64_t plain[THREADS][DEEPEST], deep = 0;
  uint32_t depth[THREADS] = {0};
  srand(4);
  for (int round = 0; round < 100000; round++) {
    uint32_t t = (uint32_t)rand() % THREADS;
    if (rand() % 2 && depth[t] < DEEPEST) {
      plain[t][depth[t]] = (uint64_t)round + 1;
      deep += depth[t] >= RP_LABEL_DEPTH;
      depth[t]++;
      rp_labels_push(&labels, 100 + t, (uint64_t)round + 1);
    } else {
      depth[t] -= depth[t] > 0;
      rp_labels_pop(&labels, 100 + t);
    }
    uint32_t named = depth[t] < RP_LABEL_DEPTH ? depth[t] : RP_LABEL_DEPTH;
    assert_int_equal(rp_labels_current(&labels, 100 + t), named ? plain[t][named - 1] : 0);
  }
  assert_int_equal(labels.dropped, deep);
  assert_true(deep > 0);
}

static void threads_beyond_the_bound_are_counted(void **state) {
  (void)state;
  static struct rp_labels labels;
  for (uint32_t tid = 1; tid <= RP_LABEL_THREADS + 3; tid++)
    rp_labels_push(&labels, tid, tid);
  assert_int_equal(labels.dropped, 3);
  assert_int_equal(rp_labels_current(&labels, RP_LABEL_THREADS), RP_LABEL_THREADS);
  assert_int_equal(rp_labels_current(&labels, RP_LABEL_THREADS + 1), 0);
  rp_labels_pop(&labels, RP_LABEL_THREADS + 1); /* unknown thread: nothing happens */
  rp_labels_pop(&labels, 1);
  rp_labels_push(&labels, RP_LABEL_THREADS + 1, 7); /* the place is free again */
  assert_int_equal(rp_labels_current(&labels, RP_LABEL_THREADS + 1), 7);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(labels_equal_plain_stacks),
                                     cmocka_unit_test(threads_beyond_the_bound_are_counted)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
