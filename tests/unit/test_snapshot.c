/* Snapshots are copies, say what is known before the first step ends, and have a word for every value. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <string.h>

#include "pool/tracker.h"

static void receive(struct rp_tracker *tracker, uint64_t seq, uint64_t address, int32_t peer) {
  struct rp_event event = {.version = RP_EVENT_VERSION,
                           .kind = RP_EVENT_RECV,
                           .source = RP_SOURCE_TRACE,
                           .seq = seq,
                           .time_ns = seq,
                           .address = address,
                           .bytes = 4096,
                           .peer = peer};
  assert_int_equal(rp_tracker_event(tracker, &event), RP_OK);
}

static void before_a_step_ends_buffers_are_counted_by_peer(void **state) {
  (void)state;
  struct rp_tracker_options options = {.min_bytes = 1};
  struct rp_tracker *tracker = rp_tracker_create(&options, NULL);
  for (uint64_t i = 0; i < 6; i++)
    receive(tracker, i + 1, 0x10000 * (i + 1), i < 4 ? 0 : 2);
  struct rp_snapshot snapshot;
  assert_int_equal(rp_tracker_snapshot(tracker, &snapshot), RP_OK);
  assert_int_equal(snapshot.channel_count, 2);
  assert_int_equal(snapshot.channels[0].buffers, 4);
  assert_int_equal(snapshot.channels[1].buffers, 2);
  assert_int_equal(snapshot.channels[0].depth, 0);
  assert_int_equal(snapshot.channels[0].steps_complete, 0);
  assert_int_equal(snapshot.channels[0].reason, RP_REASON_TOO_FEW_STEPS);
  assert_int_equal(snapshot.held_bytes, 6 * 4096);
  assert_int_equal(snapshot.would_save_bytes, 0);
  assert_int_equal(snapshot.events[RP_EVENT_RECV], 6);
  assert_int_equal(snapshot.events_by_source[RP_SOURCE_TRACE], 6);
  rp_snapshot_fini(&snapshot);
  assert_null(snapshot.channels);
  rp_snapshot_fini(&snapshot);
  rp_tracker_destroy(tracker);
}

/* Bytes held for receive buffers in allocations of `allocation` bytes, `each` in every one, before a step
 * ends. */
static uint64_t held_before_a_step_ends(uint64_t allocation, uint64_t each, uint64_t count) {
  struct rp_tracker_options options = {.min_bytes = 1};
  struct rp_tracker *tracker = rp_tracker_create(&options, NULL);
  struct rp_event event = {.version = RP_EVENT_VERSION, .kind = RP_EVENT_ALLOC, .source = RP_SOURCE_TRACE};
  for (uint64_t i = 0; i < count / each; i++) {
    event.address = (i + 1) << 32;
    event.bytes = allocation;
    event.seq = event.time_ns = i + 1;
    assert_int_equal(rp_tracker_event(tracker, &event), RP_OK);
  }
  for (uint64_t i = 0; i < count; i++)
    receive(tracker, 100 + i, ((i / each + 1) << 32) + i % each * 4096, 0);
  struct rp_snapshot snapshot;
  assert_int_equal(rp_tracker_snapshot(tracker, &snapshot), RP_OK);
  assert_int_equal(snapshot.channel_count, 1);
  assert_int_equal(snapshot.channels[0].buffers, count);
  uint64_t held_bytes = snapshot.held_bytes;
  rp_snapshot_fini(&snapshot);
  rp_tracker_destroy(tracker);
  return held_bytes;
}

/* As after it: of an allocation that holds several buffers, or much else, only the buffers count. */
static void before_a_step_ends_no_byte_counts_twice(void **state) {
  (void)state;
  const uint64_t own = 1 << 20, segment = 20 << 20;
  assert_int_equal(held_before_a_step_ends(own, 1, 6), 6 * own);
  assert_int_equal(held_before_a_step_ends(own, 2, 6), 6 * 4096);
  assert_int_equal(held_before_a_step_ends(own, 3, 6), 6 * 4096);
  assert_int_equal(held_before_a_step_ends(segment, 1, 6), 6 * 4096);
  assert_int_equal(held_before_a_step_ends(segment, 4, 8), 8 * 4096);
}

static void a_snapshot_outlives_its_tracker(void **state) {
  (void)state;
  struct rp_tracker_options options = {.min_bytes = 1, .slack = 0};
  struct rp_tracker *tracker = rp_tracker_create(&options, NULL);
  for (uint64_t i = 0; i < 9; i++)
    receive(tracker, i + 1, 0x10000 * (i % 3 + 1), 1);
  struct rp_snapshot snapshot;
  assert_int_equal(rp_tracker_snapshot(tracker, &snapshot), RP_OK);
  receive(tracker, 10, 0x10000, 1);
  rp_tracker_finish(tracker, 11);
  receive(tracker, 12, 0x20000, 1); /* after the end: ignored */
  rp_tracker_destroy(tracker);
  assert_int_equal(snapshot.steps_complete, 2);
  assert_int_equal(snapshot.channels[0].lifetime_count, 3);
  for (uint32_t mb = 0; mb < 3; mb++) {
    assert_int_equal(snapshot.channels[0].lifetimes[mb].microbatch, mb);
    assert_int_equal(snapshot.channels[0].lifetimes[mb].address, 0x10000 * (mb + 1));
    assert_int_equal(snapshot.channels[0].lifetimes[mb].step, 1);
  }
  rp_snapshot_fini(&snapshot);
}

#define ALL_DIFFERENT(function, count)                                                                       \
  do {                                                                                                       \
    for (int a = 0; a < (count); a++) {                                                                      \
      assert_non_null(function(a));                                                                          \
      for (int b = 0; b < a; b++)                                                                            \
        assert_string_not_equal(function(a), function(b));                                                   \
    }                                                                                                        \
    assert_string_equal(function(count), "unknown");                                                         \
  } while (0)

static void every_value_has_a_word(void **state) {
  (void)state;
  ALL_DIFFERENT(rp_direction_name, RP_DIRECTION_GRADIENT + 1);
  ALL_DIFFERENT(rp_style_name, RP_STYLE_JUST_IN_TIME + 1);
  ALL_DIFFERENT(rp_release_evidence_name, RP_RELEASE_STEP_END + 1);
  ALL_DIFFERENT(rp_access_kind_name, RP_ACCESS_GRAPH + 1);
  ALL_DIFFERENT(rp_event_kind_name, RP_EVENT_KIND_COUNT);
  ALL_DIFFERENT(rp_event_source_name, RP_SOURCE_COUNT);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(before_a_step_ends_buffers_are_counted_by_peer),
                                     cmocka_unit_test(before_a_step_ends_no_byte_counts_twice),
                                     cmocka_unit_test(a_snapshot_outlives_its_tracker),
                                     cmocka_unit_test(every_value_has_a_word)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
