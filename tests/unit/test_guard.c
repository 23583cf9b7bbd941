/* The guard by hand: auto mode from the first step to sharing, planned mode, shadow, conflicts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "guard_fixture.h"

static void label_all(struct guard_fixture *f, size_t count) {
  for (size_t i = 0; i < count; i++)
    guard_channel(f, i, 11, 1, (uint32_t)i);
}

static void auto_shares_from_the_third_step_on(void **state) {
  (void)state;
  struct guard_fixture f = guard_start(&(struct rp_guard_options){.slack = 1, .sends_told = true}, NULL);
  guard_alloc(&f, 0, 8);
  label_all(&f, 8);
  guard_step(&f, 0, 8, 2);
  guard_step(&f, 0, 8, 2);
  assert_int_equal(f.device->physical_bytes, 8 * MAPPED);
  for (int step = 0; step < 4; step++)
    guard_step(&f, 0, 8, 2);
  struct rp_guard_report report = guard_look(&f);
  assert_true(report.active);
  assert_string_equal(report.idle_reason, "");
  assert_int_equal(f.device->physical_bytes, 3 * MAPPED);
  assert_int_equal(report.activated_step, 2);
  assert_int_equal(report.activation_duration_ns, 17);
  assert_int_equal(report.class_count, 1);
  assert_int_equal(report.classes[0].depth, 2);
  assert_int_equal(report.classes[0].slack, 1);
  assert_int_equal(report.classes[0].stage, 3);
  assert_int_equal(report.classes[0].peer, UPSTREAM);
  assert_int_equal(report.conflict_count, 0);
  assert_int_equal(report.pool.grown, 0);
  assert_int_equal(f.boundaries, 1);
  assert_int_equal(f.watched, 8);
  rp_guard_report_fini(&report);
  guard_end(&f);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(auto_shares_from_the_third_step_on)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
