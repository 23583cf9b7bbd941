/* The decision as a table: what a channel did, and what may be said about pooling it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <string.h>

#include "pool/tracker_internal.h"

struct row {
  const char *reason;
  uint32_t buffers, depth, slack;
  uint64_t steps;
  uint32_t stable;
  enum rp_allocation_style style;
  bool captured, no_access, shared;
  uint32_t slots;
  uint64_t needed_bytes, saved_bytes; /* in buffers of 1000 bytes held each */
};

static const struct row rows[] = {
    {"poolable", 16, 3, 2, 3, 3, RP_STYLE_PREALLOCATED, false, false, false, 5, 3000, 11000},
    {"poolable", 16, 1, 0, 2, 2, RP_STYLE_PREALLOCATED, false, false, false, 1, 1000, 15000},
    {"unbounded_depth", 16, 16, 2, 3, 3, RP_STYLE_PREALLOCATED, false, false, false, 16, 16000, 0},
    {"within_slack", 4, 2, 2, 3, 3, RP_STYLE_PREALLOCATED, false, false, false, 4, 2000, 0},
    {"within_slack", 2, 1, UINT32_MAX, 3, 3, RP_STYLE_PREALLOCATED, false, false, false, 2, 1000, 0},
    {"too_few_steps", 16, 3, 2, 1, 1, RP_STYLE_UNKNOWN, false, false, false, 5, 3000, 0},
    {"unstable_pattern", 16, 3, 2, 9, 1, RP_STYLE_PREALLOCATED, false, false, false, 5, 3000, 0},
    {"graph_captured", 16, 3, 2, 3, 3, RP_STYLE_PREALLOCATED, true, false, false, 5, 3000, 0},
    {"no_access_evidence", 16, 1, 2, 3, 3, RP_STYLE_PREALLOCATED, false, true, false, 3, 1000, 0},
    {"shared_allocation", 16, 3, 2, 3, 3, RP_STYLE_PREALLOCATED, false, false, true, 5, 3000, 0},
    {"just_in_time", 16, 3, 2, 3, 3, RP_STYLE_JUST_IN_TIME, false, false, false, 5, 2700, 0},
};

static void decisions_follow_the_table(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    const struct row *row = &rows[i];
    struct rp_channel_state channel = {.public = {.buffers = row->buffers,
                                                  .depth = row->depth,
                                                  .steps_complete = row->steps,
                                                  .style = row->style,
                                                  .buffer_bytes = 900,
                                                  .held_bytes = 1000 * row->buffers},
                                       .captured = row->captured,
                                       .any_access = !row->no_access,
                                       .shared = row->shared,
                                       .stable_steps = row->stable};
    rp__decide(&channel, row->slack);
    assert_string_equal(rp_reason_name(channel.public.reason), row->reason);
    assert_int_equal(channel.public.slots, row->slots);
    assert_int_equal(channel.public.needed_bytes, row->needed_bytes);
    assert_int_equal(channel.public.would_save_bytes, row->saved_bytes);
    assert_int_equal(channel.public.estimate, row->no_access);
  }
}

/* A depth is of one step, and never more than its buffers: steps of a cache's blocks are none. */
static void more_in_use_than_buffers_is_no_depth(void **state) {
  (void)state;
  for (uint32_t most = 1; most < 4; most++) {
    struct rp_channel_state channel = {
        .public = {.buffers = 2, .depth = 2, .depth_max = most, .steps_complete = 9, .held_bytes = 2000},
        .any_access = true,
        .stable_steps = 3};
    rp__decide(&channel, 2);
    assert_string_equal(rp_reason_name(channel.public.reason),
                        most > 2 ? "unstable_pattern" : "unbounded_depth");
    assert_int_equal(channel.public.would_save_bytes, 0);
  }
}

static void every_reason_has_its_own_word_and_sentence(void **state) {
  (void)state;
  for (int a = 0; a < RP_REASON_COUNT; a++)
    for (int b = 0; b < a; b++) {
      assert_string_not_equal(rp_reason_name(a), rp_reason_name(b));
      assert_string_not_equal(rp_reason_text(a), rp_reason_text(b));
    }
  assert_string_equal(rp_reason_name(RP_REASON_COUNT), "unknown");
  assert_string_equal(rp_reason_text(RP_REASON_COUNT), "Unknown reason.");
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(decisions_follow_the_table),
                                     cmocka_unit_test(more_in_use_than_buffers_is_no_depth),
                                     cmocka_unit_test(every_reason_has_its_own_word_and_sentence)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
