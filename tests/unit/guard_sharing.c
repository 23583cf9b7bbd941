/* Helpers of the tests of what happens while buffers share. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "guard_sharing.h"

struct guard_fixture guard_sharing(struct rp_guard_options options) {
  struct guard_program program = guard_program_1f1b(EIGHT, 2);
  options.sends_told = true;
  struct guard_fixture f = guard_start(&options, NULL);
  guard_program_alloc(&f, &program);
  guard_program_label(&f, &program);
  for (int step = 0; step < 3; step++)
    guard_program_run(&f, &program);
  if (!options.shadow) assert_int_equal(f.device->physical_bytes, 3 * MAPPED);
  return f;
}

struct rp_pool_conflict guard_last_conflict(struct guard_fixture *f) {
  struct rp_guard_report report = guard_look(f);
  assert_true(report.conflict_count > 0);
  struct rp_pool_conflict conflict = report.conflicts[report.conflict_count - 1];
  rp_guard_report_fini(&report);
  return conflict;
}

void guard_expect(struct guard_fixture *f, enum rp_pool_conflict_kind kind, bool prevented, size_t earlier,
                  size_t later) {
  struct rp_pool_conflict conflict = guard_last_conflict(f);
  assert_int_equal(conflict.kind, kind);
  assert_int_equal(conflict.prevented, prevented);
  assert_int_equal(conflict.earlier_address, f->address[earlier]);
  assert_int_equal(conflict.later_address, f->address[later]);
}

void guard_expect_none(struct guard_fixture *f) {
  struct rp_guard_report report = guard_look(f);
  assert_int_equal(report.conflict_count, 0);
  rp_guard_report_fini(&report);
}

void guard_cycle(struct guard_fixture *f, size_t i) {
  guard_receive(f, i, UPSTREAM, true);
  guard_read(f, i, 11);
  guard_read(f, i, 12);
  guard_read(f, i, 22);
}

void guard_overlapping(struct guard_fixture *f) {
  guard_receive(f, 0, UPSTREAM, true);
  guard_receive(f, 1, UPSTREAM, true);
  for (size_t i = 0; i < 2; i++) {
    guard_read(f, i, 11);
    guard_read(f, i, 12);
    guard_read(f, i, 22);
  }
}
