/* Which allocations the guard takes: what rounding to the device's pieces costs against what sharing gains.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "guard_program.h"

static void which_allocations_are_wanted(void **state) {
  (void)state;
  static const struct {
    struct rp_guard_options options;
    uint64_t bytes;
    bool wanted;
  } cases[] = {{{0}, 0, false},
               {{0}, HOST_GRANULARITY, true},
               {{0}, HOST_GRANULARITY / 2, false}, /* rounding doubles it */
               {{0}, HOST_GRANULARITY - HOST_GRANULARITY / 65, true},
               {{0}, HOST_GRANULARITY - HOST_GRANULARITY / 65 - 1, false},
               {{0}, 2 * HOST_GRANULARITY + 1, false},
               {{0}, 64 * HOST_GRANULARITY + 1, true},
               {{0}, 8 * HOST_GRANULARITY - 1, true},
               {{.rounding_divisor = 1}, HOST_GRANULARITY / 2, true},
               {{.shadow = true}, HOST_GRANULARITY / 2, true},
               {{.only_bytes = HOST_GRANULARITY / 2}, HOST_GRANULARITY / 2, true},
               {{.rounding_divisor = 1}, HOST_GRANULARITY / 2 - 1, false},
               {{.least_bytes = 9000, .rounding_divisor = 1}, 8999, false},
               {{.least_bytes = 9000, .rounding_divisor = 1}, 9000, true},
               {{.only_bytes = BYTES}, MAPPED, true},
               {{.only_bytes = BYTES}, BYTES - 1, false},
               {{.only_bytes = BYTES}, MAPPED + 1, false},
               {{.only_bytes = BYTES}, HOST_GRANULARITY, false}};
  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    struct guard_fixture f = guard_start(&cases[c].options, NULL);
    assert_int_equal(rp_guard_wants(f.guard, cases[c].bytes), cases[c].wanted);
    guard_end(&f);
  }
}

/* Allocations of another size may round to the same; what is received into them tells. */
static void only_receives_of_the_named_size_share(void **state) {
  (void)state;
  for (uint64_t less = 0; less < 2; less++) {
    struct guard_program program = guard_program_1f1b(8, 2);
    struct guard_fixture f = guard_start(&(struct rp_guard_options){.only_bytes = BYTES - less}, NULL);
    guard_program_alloc(&f, &program);
    guard_program_label(&f, &program);
    guard_program_steps(&f, &program, 4);
    struct rp_guard_report report = guard_look(&f);
    assert_int_equal(report.active, !less);
    assert_string_equal(report.idle_reason, less ? "size_never_seen" : "");
    rp_guard_report_fini(&report);
    guard_end(&f);
  }
}

static void only_planned_sizes_are_wanted(void **state) {
  (void)state;
  struct rp_guard_planned_class class = {.label = 1, .receive_bytes = BYTES, .slots = 2, .stage = -1};
  struct rp_guard_plan plan = {.classes = &class, .class_count = 1};
  struct guard_fixture f = guard_start(NULL, &plan);
  static const struct {
    uint64_t bytes;
    bool wanted;
  } cases[] = {{0, false},     {BYTES - 1, false},  {BYTES, true},
               {MAPPED, true}, {MAPPED + 1, false}, {UINT64_MAX, false}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    assert_int_equal(rp_guard_wants(f.guard, cases[i].bytes), cases[i].wanted);
  guard_end(&f);
}

#define ODD_BYTES 9000u /* three pieces hold them */

/* Buffers of odd sizes, by what all of a size would hold by themselves and shared. */
static void sizes_that_gain_nothing_are_declined(void **state) {
  (void)state;
  static const struct {
    struct {
      uint64_t bytes;
      uint32_t buffers, slots;
    } classes[2];
    bool wanted;
  } cases[] = {
      {{{HOST_GRANULARITY / 2, 16, 7}}, true},
      {{{HOST_GRANULARITY / 2, 16, 8}}, false},
      {{{HOST_GRANULARITY / 2, 16, 9}}, false},
      {{{HOST_GRANULARITY / 2, 16, 20}}, false},
      {{{HOST_GRANULARITY / 2, 0, 9}}, true}, /* nobody knows how many */
      {{{HOST_GRANULARITY, 16, 16}}, true},   /* nothing to gain in this run, nothing to lose */
      {{{ODD_BYTES, 4, 2}}, true},
      {{{ODD_BYTES, 4, 3}}, false},
      {{{HOST_GRANULARITY / 2, 16, 3}, {HOST_GRANULARITY / 2, 16, 16}}, false},
      {{{HOST_GRANULARITY / 2, 16, 3}, {HOST_GRANULARITY / 2, 16, 12}}, true},
      {{{HOST_GRANULARITY / 2, 16, 3}, {HOST_GRANULARITY - 1, 16, 16}}, true}, /* one size in pieces */
      {{{HOST_GRANULARITY / 2, 16, 9}, {HOST_GRANULARITY - 1, 16, 15}}, false},
      {{{HOST_GRANULARITY / 2, 16, 9}, {ODD_BYTES, 16, 1}}, false}, /* another size helps nothing */
      {{{HOST_GRANULARITY / 2, 1000, 1000}}, false},
  };
  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    struct rp_guard_planned_class classes[2] = {{0}};
    struct rp_guard_planned_receive item = {.accesses = 1};
    uint32_t count = cases[c].classes[1].bytes ? 2 : 1;
    for (uint32_t k = 0; k < count; k++)
      classes[k] = (struct rp_guard_planned_class){.label = k + 1,
                                                   .receive_bytes = cases[c].classes[k].bytes,
                                                   .buffers = cases[c].classes[k].buffers,
                                                   .slots = cases[c].classes[k].slots,
                                                   .stage = -1};
    struct guard_fixture f = guard_start(NULL, &(struct rp_guard_plan){classes, count, &item, 1});
    if (rp_guard_wants(f.guard, classes[0].receive_bytes) != cases[c].wanted) fail_msg("case %zu", c);
    if (count == 1 && !cases[c].wanted) guard_expect_idle(&f, "rounding");
    guard_end(&f);
  }
}

/* Whatever else has the size of receive buffers: the device never holds more than the program asked for. */
static void others_do_not_use_up_the_gain(void **state) {
  (void)state;
  for (uint32_t slots = 1; slots <= 8; slots++)
    for (uint32_t buffers = slots; buffers <= 16; buffers++) {
      struct rp_guard_planned_class class = {.label = 1,
                                             .receive_bytes = HOST_GRANULARITY / 4 * 3,
                                             .slots = slots,
                                             .buffers = buffers,
                                             .stage = -1};
      struct rp_guard_planned_receive item = {.accesses = 1};
      struct guard_fixture f = guard_start(&(struct rp_guard_options){.every_touch_seen = true},
                                           &(struct rp_guard_plan){&class, 1, &item, 1});
      uint64_t others = 0, asked = (uint64_t)buffers * class.receive_bytes, address = 0;
      uint64_t held = (uint64_t)slots * HOST_GRANULARITY;
      for (uint32_t i = 0; i < 200 && rp_guard_wants(f.guard, class.receive_bytes); i++) {
        assert_int_equal(rp_guard_allocate(f.guard, class.receive_bytes, &address), RP_OK);
        if (i >= buffers) others++;
      }
      assert_true(others < 200 - buffers);
      if (asked > held) assert_true(held + others * HOST_GRANULARITY <= asked + others * class.receive_bytes);
      if (asked <= held) assert_false(rp_guard_owns(f.guard, address, NULL, NULL, NULL));
      if (others) { /* who frees one may have another one */
        assert_int_equal(rp_guard_free(f.guard, address), RP_OK);
        assert_true(rp_guard_wants(f.guard, class.receive_bytes));
      }
      guard_end(&f);
    }
}

/* Their receives are in the list, and those of the others still come in its order. */
static void what_is_declined_does_not_disturb_the_rest(void **state) {
  (void)state;
  struct guard_program program = guard_program_1f1b(12, 3);
  struct guard_plan plan;
  static struct rp_guard_planned_receive receives[PROGRAM_MOST];
  struct rp_guard_planned_class classes[3];
  guard_program_plan(&program, 0, &plan);
  memcpy(classes, plan.classes, sizeof plan.classes);
  classes[2] = classes[0];
  classes[2].receive_bytes = ODD_BYTES;
  classes[2].buffers = classes[2].slots = 6;
  size_t count = 0;
  for (size_t i = 0; i < plan.plan.receive_count; i++) {
    receives[count++] = plan.receives[i];
    if (i % 4) continue;
    receives[count] = plan.receives[i];
    receives[count].class_index = 2;
    receives[count++].slot = (uint32_t)(i / 4 % 6);
  }
  struct guard_fixture f = guard_start(&(struct rp_guard_options){.every_touch_seen = true},
                                       &(struct rp_guard_plan){classes, 3, receives, count});
  assert_false(rp_guard_wants(f.guard, ODD_BYTES));
  guard_program_alloc(&f, &program);
  guard_program_steps(&f, &program, 4);
  struct rp_guard_report report = guard_look(&f);
  assert_true(report.active);
  assert_int_equal(report.conflict_count, 0);
  assert_int_equal(report.pool.grown, 0);
  assert_int_equal(f.device->physical_peak_bytes, (classes[0].slots + classes[1].slots) * MAPPED);
  assert_false(report.plan_departed);
  rp_guard_report_fini(&report);
  guard_end(&f);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(which_allocations_are_wanted),
      cmocka_unit_test(only_receives_of_the_named_size_share),
      cmocka_unit_test(only_planned_sizes_are_wanted),
      cmocka_unit_test(sizes_that_gain_nothing_are_declined),
      cmocka_unit_test(others_do_not_use_up_the_gain),
      cmocka_unit_test(what_is_declined_does_not_disturb_the_rest),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
