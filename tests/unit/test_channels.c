/* Channels over steps: what is held, shared, overlapped, and counted. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "pool/tracker_internal.h"

/* Step of `count` receives, each used until `until[i]` (in host order), posted at 10 * i of the step. */
static void take_step(struct rp_tracker *tracker, uint64_t number, const uint64_t *until, size_t count,
                      uint64_t allocation_bytes, bool one_allocation) {
  struct rp_life *lives = calloc(count, sizeof *lives);
  for (size_t i = 0; i < count; i++)
    lives[i] = (struct rp_life){.comm = 1,
                                .peer = 0,
                                .bytes = 1 << 20,
                                .buffer_serial = i + 1,
                                .allocation_serial = one_allocation ? 7 : 7 + i,
                                .allocation_bytes = allocation_bytes,
                                .closed = true,
                                .public = {.address = (i + 1) << 24,
                                           .posted_seq = number * 1000 + 10 * i + 1,
                                           .accesses = 1,
                                           .last_access_seq = number * 1000 + until[i],
                                           .released_seq = number * 1000 + until[i]}};
  assert_int_equal(rp__channels_take_step(tracker, number, lives, count, false), RP_OK);
  free(lives);
}

static struct rp_channel decided(struct rp_tracker *tracker) {
  assert_int_equal(tracker->channel_count, 1);
  struct rp_channel_state state = tracker->channels[0];
  rp__decide(&state, 1);
  return state.public;
}

static void own_allocations_count_with_their_rounding(void **state) {
  (void)state;
  struct rp_tracker *tracker = rp_tracker_create(NULL, NULL);
  tracker->any_received_again = true;
  static const uint64_t until[] = {5, 15, 25, 35};
  for (uint64_t step = 0; step < 3; step++)
    take_step(tracker, step, until, 4, 2 << 20, false);
  struct rp_channel channel = decided(tracker);
  assert_int_equal(channel.held_bytes, 4 * (2 << 20));
  assert_int_equal(channel.depth, 1);
  assert_int_equal(channel.transfers, 12);
  assert_int_equal(channel.would_save_bytes, 2 * (2 << 20));
  assert_int_equal(channel.unreachable_bytes, 0);
  rp_tracker_destroy(tracker);
}

static void shared_allocations_are_out_of_reach(void **state) {
  (void)state;
  static const uint64_t until[] = {5, 15, 25, 35};
  for (int one = 0; one < 2; one++) {
    struct rp_tracker *tracker = rp_tracker_create(NULL, NULL);
    tracker->any_received_again = true;
    for (uint64_t step = 0; step < 3; step++)
      take_step(tracker, step, until, 4, one ? 3 << 20 : 20 << 20, one);
    struct rp_channel channel = decided(tracker);
    assert_int_equal(channel.reason, RP_REASON_SHARED_ALLOCATION);
    assert_int_equal(channel.held_bytes, 4 << 20);
    assert_int_equal(channel.unreachable_bytes, 4 << 20);
    rp_tracker_destroy(tracker);
  }
}

/* Of four in two segments of a cache, three beside each other; what is in the second with the fourth is not
 * known. */
static void neighbours_of_some_are_neighbours_of_all(void **state) {
  (void)state;
  struct rp_life lives[4];
  struct rp_tracker *tracker = rp_tracker_create(NULL, NULL);
  tracker->any_received_again = true;
  for (uint64_t step = 0; step < 3; step++) {
    for (uint64_t i = 0; i < 4; i++) {
      uint64_t posted = step * 1000 + 10 * i + 1;
      lives[i] = (struct rp_life){.comm = 1,
                                  .bytes = 256 << 10,
                                  .buffer_serial = i + 1,
                                  .allocation_serial = i < 3 ? 7 : 8,
                                  .allocation_bytes = 2 << 20,
                                  .closed = true,
                                  .public = {.address = (i + 1) << 24,
                                             .posted_seq = posted,
                                             .accesses = 1,
                                             .last_access_seq = posted + 4,
                                             .released_seq = posted + 4}};
    }
    assert_int_equal(rp__channels_take_step(tracker, step, lives, 4, false), RP_OK);
  }
  struct rp_channel channel = decided(tracker);
  assert_int_equal(channel.reason, RP_REASON_SHARED_ALLOCATION);
  assert_int_equal(channel.held_bytes, 1 << 20);
  assert_int_equal(channel.unreachable_bytes, 1 << 20);
  rp_tracker_destroy(tracker);
}

/* Lifetimes that reach into the next step count there too. */
static void depth_sees_the_step_before(void **state) {
  (void)state;
  struct rp_tracker *tracker = rp_tracker_create(NULL, NULL);
  tracker->any_received_again = true;
  static const uint64_t into_next[] = {5, 15, 25, 1035}, tidy[] = {5, 15, 25, 35};
  take_step(tracker, 0, into_next, 4, 0, false);
  assert_int_equal(decided(tracker).depth, 1);
  take_step(tracker, 1, tidy, 4, 0, false);
  assert_int_equal(decided(tracker).depth, 2);
  take_step(tracker, 2, tidy, 4, 0, false);
  assert_int_equal(decided(tracker).depth, 1);
  assert_int_equal(decided(tracker).depth_max, 2);
  assert_int_equal(decided(tracker).reason, RP_REASON_UNSTABLE_PATTERN);
  rp_tracker_destroy(tracker);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(own_allocations_count_with_their_rounding),
                                     cmocka_unit_test(shared_allocations_are_out_of_reach),
                                     cmocka_unit_test(neighbours_of_some_are_neighbours_of_all),
                                     cmocka_unit_test(depth_sees_the_step_before)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
