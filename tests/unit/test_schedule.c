/* Named schedules and lowering against the sequences that torch produces, and the checks that refuse a
 * schedule. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "pool/schedule.h"
#include "pool/schedule_internal.h"

/* Short text of a row: "1RF0 1F0 [1SF2+1RB0] (2F2;1B0)"; actions without microbatch are left out. */
static void row_text(const struct rp_schedule *s, int32_t rank, char *out, size_t size) {
  static const char *const names[] = {
      [RP_ACTION_FORWARD] = "F",         [RP_ACTION_BACKWARD] = "B", [RP_ACTION_BACKWARD_INPUT] = "I",
      [RP_ACTION_BACKWARD_WEIGHT] = "W", [RP_ACTION_SEND_F] = "SF",  [RP_ACTION_RECV_F] = "RF",
      [RP_ACTION_SEND_B] = "SB",         [RP_ACTION_RECV_B] = "RB",
  };
  size_t used = 0;
  out[0] = 0;
  const struct rp_rank_schedule *row = &s->rank[rank];
  for (size_t i = 0, length; i < row->count; i += length) {
    length = rp__unit_length(row, i);
    if (row->actions[i].microbatch < 0) continue;
    bool transfers = rp__kind_is_transfer(row->actions[i].kind);
    if (used) used += (size_t)snprintf(out + used, size - used, " ");
    if (length > 1) used += (size_t)snprintf(out + used, size - used, transfers ? "[" : "(");
    for (size_t j = i; j < i + length; j++)
      used +=
          (size_t)snprintf(out + used, size - used, "%s%d%s%d",
                           j == i      ? ""
                           : transfers ? "+"
                                       : ";",
                           row->actions[j].stage, names[row->actions[j].kind], row->actions[j].microbatch);
    if (length > 1) used += (size_t)snprintf(out + used, size - used, transfers ? "]" : ")");
    assert_true(used < size);
  }
}

static void assert_row(const struct rp_schedule *s, int32_t rank, const char *expected) {
  static char text[65536];
  row_text(s, rank, text, sizeof(text));
  assert_string_equal(text, expected);
}

static struct rp_schedule generate(const char *name, int32_t ranks, int32_t chunks, int32_t microbatches) {
  struct rp_schedule s;
  struct rp_schedule_error error = {0};
  rp_status status = rp_schedule_generate(name, ranks, chunks, microbatches, &s, &error);
  if (status)
    print_error("%s %d %d %d: %s %s\n", name, ranks, chunks, microbatches, error.token, error.message);
  assert_int_equal(status, RP_OK);
  assert_true(s.lowered);
  status = rp_schedule_check(&s, &error);
  if (status)
    print_error("%s %d %d %d: %s %s\n", name, ranks, chunks, microbatches, error.token, error.message);
  assert_int_equal(status, RP_OK);
  return s;
}

static void test_gpipe(void **state) {
  (void)state;
  struct rp_schedule s = generate("gpipe", 4, 1, 8);
  assert_row(
      &s, 1,
      "1RF0 1F0 1SF0 1RF1 1F1 1SF1 1RF2 1F2 1SF2 1RF3 1F3 1SF3 1RF4 1F4 1SF4 1RF5 1F5 1SF5 1RF6 1F6 1SF6 "
      "1RF7 "
      "1F7 1SF7 1RB0 1B0 1SB0 1RB1 1B1 1SB1 1RB2 1B2 1SB2 1RB3 1B3 1SB3 1RB4 1B4 1SB4 1RB5 1B5 1SB5 1RB6 1B6 "
      "1SB6 1RB7 1B7 1SB7");
  rp_schedule_fini(&s);
}

static void test_1f1b(void **state) {
  (void)state;
  struct rp_schedule s = generate("1f1b", 4, 1, 8);
  assert_row(&s, 0,
             "0F0 0SF0 0F1 0SF1 0F2 0SF2 0F3 [0SF3+0RB0] 0B0 0F4 [0SF4+0RB1] 0B1 0F5 [0SF5+0RB2] 0B2 0F6 "
             "[0SF6+0RB3] "
             "0B3 0F7 [0SF7+0RB4] 0B4 0RB5 0B5 0RB6 0B6 0RB7 0B7");
  assert_row(
      &s, 1,
      "1RF0 1F0 1SF0 1RF1 1F1 1SF1 1RF2 1F2 [1SF2+1RB0] 1B0 [1SB0+1RF3] 1F3 [1SF3+1RB1] 1B1 [1SB1+1RF4] 1F4 "
      "[1SF4+1RB2] 1B2 [1SB2+1RF5] 1F5 [1SF5+1RB3] 1B3 [1SB3+1RF6] 1F6 [1SF6+1RB4] 1B4 [1SB4+1RF7] 1F7 "
      "[1SF7+1RB5] 1B5 1SB5 1RB6 1B6 1SB6 1RB7 1B7 1SB7");
  assert_row(&s, 3,
             "3RF0 3F0 3B0 [3SB0+3RF1] 3F1 3B1 [3SB1+3RF2] 3F2 3B2 [3SB2+3RF3] 3F3 3B3 [3SB3+3RF4] 3F4 3B4 "
             "[3SB4+3RF5] 3F5 3B5 [3SB5+3RF6] 3F6 3B6 [3SB6+3RF7] 3F7 3B7 3SB7");
  rp_schedule_fini(&s);
  s = generate("1f1b", 4, 1, 2); /* fewer microbatches than warm-up */
  assert_row(&s, 0, "0F0 0SF0 0F1 [0SF1+0RB0] 0B0 0RB1 0B1");
  rp_schedule_fini(&s);
  s = generate("1f1b", 1, 1, 2);
  assert_row(&s, 0, "0F0 0B0 0F1 0B1");
  rp_schedule_fini(&s);
}

static void test_1f1b_lowered(void **state) {
  (void)state;
  struct rp_schedule s;
  assert_int_equal(rp__schedule_compute_order("1f1b", 4, 1, 8, &s, NULL), RP_OK);
  assert_false(s.lowered);
  assert_int_equal(rp_schedule_check(&s, NULL), RP_OK);
  assert_int_equal(rp_schedule_lower(&s, NULL), RP_OK);
  assert_int_equal(rp_schedule_check(&s, NULL), RP_OK);
  assert_row(
      &s, 1,
      "1RF0 1F0 1SF0 1RF1 1F1 1SF1 1RF2 1F2 1SF2 1RB0 1RF3 1B0 1SB0 1F3 1SF3 1RB1 1RF4 1B1 1SB1 1F4 1SF4 "
      "1RB2 "
      "1RF5 1B2 1SB2 1F5 1SF5 1RB3 1RF6 1B3 1SB3 1F6 1SF6 1RB4 1RF7 1B4 1SB4 1F7 1SF7 1RB5 1B5 1SB5 1RB6 1B6 "
      "1SB6 1RB7 1B7 1SB7");
  rp_schedule_fini(&s);
}

static void test_interleaved_two_ranks(void **state) {
  (void)state;
  struct rp_schedule s = generate("interleaved_1f1b", 2, 2, 4);
  assert_row(
      &s, 0,
      "0F0 0SF0 2RF0 0F1 0SF1 2RF1 2F0 2SF0 2F1 2SF1 2RB0 0F2 0SF2 2B0 2SB0 2RB1 0F3 0SF3 2RF2 2B1 2SB1 "
      "0RB0 2F2 2SF2 2RF3 0B0 0RB1 2F3 2SF3 0B1 2RB2 2B2 2SB2 2RB3 2B3 2SB3 0RB2 0B2 0RB3 0B3");
  rp_schedule_fini(&s);
}

static void test_interleaved_four_ranks(void **state) {
  (void)state;
  struct rp_schedule s = generate("interleaved_1f1b", 4, 2, 8);
  assert_row(
      &s, 1,
      "1RF0 1F0 1SF0 1RF1 1F1 1SF1 1RF2 1F2 1SF2 1RF3 1F3 1SF3 5RF0 5F0 5SF0 5RF1 5F1 5SF1 5RF2 5F2 5SF2 "
      "5RF3 "
      "5F3 5SF3 5RB0 1RF4 1F4 1SF4 1RF5 5B0 5SB0 5RB1 1RF6 "
      "1F5 1SF5 5B1 5SB1 5RB2 1RF7 1F6 1SF6 5B2 5SB2 5RB3 5RF4 1F7 1SF7 5B3 5SB3 1RB0 5RF5 5F4 5SF4 1B0 1SB0 "
      "1RB1 5RF6 5F5 5SF5 1B1 1SB1 1RB2 5RF7 "
      "5F6 5SF6 1B2 1SB2 1RB3 5F7 5SF7 1B3 1SB3 5RB4 5B4 5SB4 5RB5 5B5 5SB5 5RB6 5B6 5SB6 5RB7 5B7 5SB7 1RB4 "
      "1B4 1SB4 1RB5 1B5 1SB5 1RB6 1B6 1SB6 1RB7 1B7 1SB7");
  rp_schedule_fini(&s);
}

/* More ranks than one word of the sweep's bit set. */
static void test_many_ranks(void **state) {
  (void)state;
  struct rp_schedule s = generate("interleaved_1f1b", 150, 2, 150);
  assert_int_equal(s.stages, 300);
  rp_schedule_fini(&s);
  s = generate("looped_bfs", 129, 1, 3);
  rp_schedule_fini(&s);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_gpipe),
      cmocka_unit_test(test_1f1b),
      cmocka_unit_test(test_1f1b_lowered),
      cmocka_unit_test(test_interleaved_two_ranks),
      cmocka_unit_test(test_interleaved_four_ranks),
      cmocka_unit_test(test_many_ranks),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
