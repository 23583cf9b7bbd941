/* Why the guard shares nothing, where that is hard to tell. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "guard_fixture.h"

static const struct rp_guard_options trained = {.sends_told = true};

/* The last stage: activations over one communicator, gradients back over another one, after all reads.
 * Another one with others as members may lead anywhere, and an evaluation sends nothing back. */
static void answers_over_another_communicator(void **state) {
  (void)state;
  static const struct {
    bool told;          /* both have the same members */
    int32_t to;         /* who gets what this stage sends */
    uint32_t extra;     /* messages that go to others over the second one */
    const char *reason; /* of nothing being shared; NULL: it is */
  } cases[] = {{true, UPSTREAM, 0, NULL},
               {false, UPSTREAM, 0, "answers_unknown"},
               {true, DOWNSTREAM, 0, "forward_only"},
               {true, UPSTREAM, 1, "forward_only"}};
  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    struct guard_fixture f = guard_start(&trained, NULL);
    f.members_told = cases[c].told;
    guard_alloc(&f, 0, 6);
    for (size_t i = 0; i < 6; i++)
      guard_channel(&f, i, 1, 1, (uint32_t)i);
    for (size_t n = 0; n < 5 * 6; n++) {
      guard_receive(&f, n % 6, UPSTREAM, true);
      guard_read(&f, n % 6, 1);
      guard_read(&f, n % 6, 2);
      rp_guard_sent(f.guard, 51, cases[c].to, BYTES);
      if (cases[c].extra) rp_guard_sent(f.guard, 51, 9, BYTES);
    }
    struct rp_guard_report report = guard_look(&f);
    assert_string_equal(report.idle_reason, cases[c].reason ? cases[c].reason : "");
    assert_int_equal(f.device->physical_bytes, (cases[c].reason ? 6 : 1) * MAPPED);
    rp_guard_report_fini(&report);
    guard_end(&f);
  }
}

static void halves_share_an_allocation(void **state) {
  (void)state;
  struct guard_fixture f = guard_start(&trained, NULL);
  guard_alloc(&f, 0, 4);
  for (size_t i = 0; i < 4; i++)
    guard_channel(&f, i, 1, 1, (uint32_t)i);
  for (size_t n = 0; n < 5 * 8; n++) {
    struct rp_guard_receive half = {
        .address = f.address[n / 2 % 4] + n % 2 * BYTES / 2, .bytes = BYTES / 2, .peer = UPSTREAM};
    assert_int_equal(guard_try_receive(&f, n / 2 % 4, half), RP_OK);
    guard_kernel(&f, n / 2 % 4, 1);
    rp_guard_sent(f.guard, 50, UPSTREAM, BYTES / 2);
  }
  guard_expect_idle(&f, "shared_allocation");
  guard_end(&f);
}

/* A cache: messages beside each other, and one of a few bytes that begins a segment. */
static void a_small_message_begins_a_segment(void **state) {
  (void)state;
  struct guard_fixture f = guard_start(&trained, NULL);
  guard_alloc(&f, 0, 2);
  assert_int_equal(rp_guard_allocate(f.guard, HOST_GRANULARITY, &f.address[2]), RP_OK);
  for (size_t n = 0; n < 20; n++) {
    size_t i = n % 5 < 4 ? n % 5 / 2 : 2;
    struct rp_guard_receive piece = {.address = f.address[i], .bytes = BYTES / 4, .peer = UPSTREAM};
    piece.address += n % 5 % 2 * BYTES / 2;
    if (i == 2) piece.bytes = 8;
    assert_int_equal(guard_try_receive(&f, i, piece), RP_OK);
    guard_kernel(&f, i, 1);
    rp_guard_sent(f.guard, 50, UPSTREAM, piece.bytes);
  }
  guard_expect_idle(&f, "shared_allocation");
  guard_end(&f);
}

/* Pieces of a larger allocation, or another kind of memory: to make the plan again would not help. */
static void messages_of_the_planned_size_elsewhere(void **state) {
  (void)state;
  static const struct rp_guard_planned_class class = {.receive_bytes = BYTES, .buffers = 4, .slots = 1};
  static const struct rp_guard_planned_receive receive = {.end = 1, .accesses = 1};
  for (unsigned c = 0; c < 4; c++) {
    bool sizes_only = c / 2, planned_size = c % 2;
    const struct rp_guard_plan plan = {&class, 1, sizes_only ? NULL : &receive, sizes_only ? 0 : 1};
    struct guard_fixture f = guard_start(&trained, &plan);
    struct rp_guard_receive posted = {
        .address = 1 << 20, .bytes = planned_size ? BYTES : 64 * BYTES, .peer = UPSTREAM};
    struct rp_guard_action action;
    assert_int_equal(rp_guard_receive_prepare(f.guard, &posted, &action), RP_ERROR_NOT_FOUND);
    struct rp_guard_report report = guard_look(&f);
    assert_string_equal(report.idle_reason, "size_never_seen");
    assert_int_equal(strstr(report.idle_text, "share larger ones") != NULL, planned_size);
    rp_guard_report_fini(&report);
    guard_end(&f);
  }
}

/* NCCL may launch later than the call, and nobody tells when it has. */
static void launches_that_nobody_tells_of(void **state) {
  (void)state;
  struct guard_fixture f = guard_start(&trained, NULL);
  guard_alloc(&f, 0, 4);
  for (size_t i = 0; i < 4; i++)
    guard_channel(&f, i, 1, 1, (uint32_t)i);
  for (size_t n = 0; n < 5 * 4; n++) {
    struct rp_guard_receive receive = {.peer = UPSTREAM, .group = n + 1};
    assert_int_equal(guard_try_receive(&f, n % 4, receive), RP_OK);
    guard_kernel(&f, n % 4, 1);
    rp_guard_sent(f.guard, 50, UPSTREAM, BYTES);
  }
  guard_expect_idle(&f, "not_launched");
  guard_end(&f);
}

/* Without a plan: what the allocation says that a message lies in, where that is not the guard's. */
static void messages_in_memory_of_the_driver(void **state) {
  (void)state;
  enum { TWO = 2 * HOST_GRANULARITY };
  static const struct {
    uint64_t bytes, begin, allocation_bytes; /* begin: before the message */
    const char *reason, *words;
  } cases[] = {
      {TWO, 0, TWO + 256, "rounding", "a multiple of 4 KiB, "},
      {TWO, 0, TWO + 256, "rounding", "--buffer-bytes 8448 all of that size."},
      {TWO + 1024, 0, TWO + 1024, "rounding", "--buffer-bytes 9KiB all of that size."},
      {TWO + 1024, 0, 0, "rounding", "--buffer-bytes 9KiB all of that size."}, /* not known */
      {TWO, 0, TWO, "too_few_steps", "let the job run on"},
      {TWO, 256, TWO + 256, "shared_allocation", "hold other data too"},
      {TWO + 256, 0, 4 * TWO, "shared_allocation", "hold other data too"},
  };
  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    struct guard_fixture f = guard_start(&trained, NULL);
    struct rp_guard_action action;
    struct rp_guard_receive posted = {.address = 1 << 20,
                                      .bytes = cases[c].bytes,
                                      .peer = UPSTREAM,
                                      .allocation_address = (1 << 20) - cases[c].begin,
                                      .allocation_bytes = cases[c].allocation_bytes};
    for (int n = 0; n < 4; n++)
      assert_int_equal(rp_guard_receive_prepare(f.guard, &posted, &action), RP_ERROR_NOT_FOUND);
    struct rp_guard_report report = guard_look(&f);
    assert_string_equal(report.idle_reason, cases[c].reason);
    if (!strstr(report.idle_text, cases[c].words)) fail_msg("case %zu: %s", c, report.idle_text);
    rp_guard_report_fini(&report);
    guard_end(&f);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(answers_over_another_communicator),
      cmocka_unit_test(halves_share_an_allocation),
      cmocka_unit_test(a_small_message_begins_a_segment),
      cmocka_unit_test(messages_of_the_planned_size_elsewhere),
      cmocka_unit_test(launches_that_nobody_tells_of),
      cmocka_unit_test(messages_in_memory_of_the_driver),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
