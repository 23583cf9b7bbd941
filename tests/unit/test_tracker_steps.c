/* Steps where they are not tidy: posts ahead of the step's end, one-time receives, left-out buffers, broken
 * patterns, reused addresses, bounded history. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdlib.h>

#include "pool/tracker_internal.h"

struct feed {
  struct rp_tracker *tracker;
  uint64_t seq, operations;
};

static struct feed start(uint32_t max_history) {
  struct rp_tracker_options options = {.min_bytes = 100, .slack = 1, .max_history = max_history};
  struct feed feed = {.tracker = rp_tracker_create(&options, NULL)};
  assert_non_null(feed.tracker);
  return feed;
}

static rp_status emit(struct feed *feed, struct rp_event event) {
  event.version = RP_EVENT_VERSION;
  event.seq = ++feed->seq;
  event.time_ns = event.seq * 10;
  event.operations = feed->operations;
  return rp_tracker_event(feed->tracker, &event);
}

static void alloc(struct feed *feed, uint64_t address, uint64_t bytes) {
  assert_int_equal(emit(feed, (struct rp_event){.kind = RP_EVENT_ALLOC, .address = address, .bytes = bytes}),
                   0);
}
static void release(struct feed *feed, uint64_t address) {
  assert_int_equal(emit(feed, (struct rp_event){.kind = RP_EVENT_FREE, .address = address}), 0);
}
static void receive(struct feed *feed, uint64_t address, uint64_t bytes) {
  struct rp_event event = {.kind = RP_EVENT_RECV, .address = address, .bytes = bytes, .peer = 1, .comm = 5};
  assert_int_equal(emit(feed, event), 0);
}
static void use(struct feed *feed, uint64_t address) {
  feed->operations++;
  assert_int_equal(emit(feed, (struct rp_event){.kind = RP_EVENT_KERNEL, .address = address, .function = 3}),
                   0);
}

static struct rp_snapshot finish(struct feed *feed) {
  struct rp_snapshot snapshot;
  rp_tracker_finish(feed->tracker, ++feed->seq * 10);
  assert_int_equal(rp_tracker_snapshot(feed->tracker, &snapshot), RP_OK);
  rp_tracker_destroy(feed->tracker);
  return snapshot;
}

enum { A = 0x10000, B = 0x20000, C = 0x30000, D = 0x40000, SIZE = 4096 };

/* The next step's first receive is posted before this step's last buffer is received. */
static void receives_ahead_stay_in_their_step(void **state) {
  (void)state;
  struct feed feed = start(0);
  /* C is seen first when A has begun the next step, so it stays one behind; its last receive is of a step
   * that does not end. What matters: all of A, B and C are in use when C is received, and the depth must say
   * so. */
  static const uint64_t order[] = {A, B, /* step 1 begins */ A, C, B, A, C, B, A, C, B, C};
  for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
    receive(&feed, order[i], SIZE);
    use(&feed, order[i]);
    for (uint64_t address = A; order[i] == C && address <= C; address += B - A)
      use(&feed, address);
  }
  struct rp_snapshot snapshot = finish(&feed);
  assert_int_equal(snapshot.steps_complete, 4);
  assert_int_equal(snapshot.channel_count, 1);
  assert_int_equal(snapshot.channels[0].buffers, 3);
  assert_int_equal(snapshot.channels[0].transfers, 11);
  assert_int_equal(snapshot.channels[0].depth, 3);
  rp_snapshot_fini(&snapshot);
}

/* From the third step on, the last buffer is received after the next step has begun: every step still has all
 * three. */
static void late_receives_stay_in_their_step(void **state) {
  (void)state;
  struct feed feed = start(0);
  static const uint64_t order[] = {A, B, C, A, B, C, A, B, A, C, B, A, C, B, A, C, B, C};
  for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
    receive(&feed, order[i], SIZE);
    use(&feed, order[i]);
  }
  struct rp_snapshot snapshot = finish(&feed);
  assert_int_equal(snapshot.steps_complete, 6);
  assert_int_equal(snapshot.channels[0].transfers, 18);
  assert_int_equal(snapshot.channels[0].buffers, 3);
  rp_snapshot_fini(&snapshot);
}

/* A launch that names a buffer twice is one access; another receive buffer beside it is no companion, a
 * weight is. */
static void one_launch_is_one_access(void **state) {
  (void)state;
  struct feed feed = start(0);
  alloc(&feed, A, SIZE);
  alloc(&feed, B, SIZE);
  alloc(&feed, C, SIZE);
  receive(&feed, A, SIZE);
  receive(&feed, B, SIZE);
  feed.operations++;
  struct rp_event event = {.kind = RP_EVENT_KERNEL,
                           .address = A,
                           .function = 3,
                           .companion_count = 2,
                           .companion = {B + 8, C + 8}};
  emit(&feed, event);
  event.flags = RP_EVENT_FLAG_INPLACE;
  event.arg_offset = 8;
  emit(&feed, event);
  const struct rp_life *life = &rp__step_get(feed.tracker, 0)->list.lives[0];
  assert_int_equal(life->public.accesses, 1);
  assert_int_equal(life->signature_count, 2);
  assert_int_equal(life->companions.count, 1);
  feed.operations++;
  emit(&feed, event); /* in place of nothing: the launch before it named another buffer */
  assert_int_equal(life->public.accesses, 2);
  struct rp_snapshot snapshot = finish(&feed);
  rp_snapshot_fini(&snapshot);
}

/* Only a lifetime that did what the one before did is known to be over with its last access. */
static void release_needs_the_learned_accesses(void **state) {
  (void)state;
  struct feed feed = start(0);
  for (int step = 0; step < 4; step++) {
    receive(&feed, A, SIZE);
    receive(&feed, B, SIZE);
    use(&feed, A);
    use(&feed, B);
    if (step != 3) use(&feed, B);
  }
  struct rp_snapshot snapshot = finish(&feed);
  const struct rp_lifetime *lifetimes = snapshot.channels[0].lifetimes;
  assert_int_equal(lifetimes[0].release_evidence, RP_RELEASE_LEARNED_ACCESSES);
  assert_int_equal(lifetimes[0].released_seq, lifetimes[0].last_access_seq);
  assert_int_equal(lifetimes[1].release_evidence, RP_RELEASE_STEP_END);
  rp_snapshot_fini(&snapshot);
}

static void one_time_receives_do_not_count(void **state) {
  (void)state;
  struct feed feed = start(0);
  receive(&feed, D, SIZE); /* metadata as large as a buffer */
  for (int step = 0; step < 4; step++)
    for (uint64_t address = A; address <= C; address += B - A) {
      receive(&feed, address, SIZE);
      use(&feed, address);
    }
  struct rp_snapshot snapshot = finish(&feed);
  assert_int_equal(snapshot.steps_complete, 4);
  assert_int_equal(snapshot.channels[0].buffers, 3);
  assert_int_equal(snapshot.channels[0].depth, 1);
  rp_snapshot_fini(&snapshot);
}

/* An evaluation step uses one buffer only; afterwards training goes on. */
static void left_out_buffers_join_again(void **state) {
  (void)state;
  struct feed feed = start(0);
  for (int step = 0; step < 9; step++)
    for (uint64_t address = A; address <= C; address += B - A)
      if (step < 3 || step > 5 || address == A) {
        receive(&feed, address, SIZE);
        use(&feed, address);
      }
  struct rp_snapshot snapshot = finish(&feed);
  assert_int_equal(snapshot.steps_complete, 9);
  assert_int_equal(snapshot.channels[0].buffers, 3);
  rp_snapshot_fini(&snapshot);
}

static void changing_depth_is_unstable(void **state) {
  (void)state;
  struct feed feed = start(0);
  for (int step = 0; step < 4; step++) {
    for (uint64_t address = A; address <= D; address += B - A) {
      receive(&feed, address, SIZE);
      use(&feed, address);
    }
    if (step == 3) use(&feed, A);
  }
  struct rp_snapshot snapshot = finish(&feed);
  assert_int_equal(snapshot.channels[0].depth_min, 1);
  assert_int_equal(snapshot.channels[0].depth_max, 2);
  assert_int_equal(snapshot.channels[0].reason, RP_REASON_UNSTABLE_PATTERN);
  assert_int_equal(snapshot.channels[0].would_save_bytes, 0);
  rp_snapshot_fini(&snapshot);
}

/* The address comes back with another size, and as a new allocation without a free that we saw. */
static void reused_addresses_are_new_buffers(void **state) {
  (void)state;
  struct feed feed = start(0);
  alloc(&feed, A, SIZE);
  receive(&feed, A, SIZE);
  alloc(&feed, A, 2 * SIZE);
  receive(&feed, A, 2 * SIZE);
  use(&feed, A + SIZE);
  uint64_t bytes = 0;
  assert_int_equal(rp_tracker_allocation_at(feed.tracker, A + SIZE, NULL, &bytes), RP_OK);
  assert_int_equal(bytes, 2 * SIZE);
  release(&feed, A);
  assert_int_equal(rp_tracker_allocation_at(feed.tracker, A, NULL, NULL), RP_ERROR_NOT_FOUND);
  use(&feed, A); /* of nothing we track any more */
  struct rp_snapshot snapshot = finish(&feed);
  assert_int_equal(snapshot.events_ignored, 1);
  rp_snapshot_fini(&snapshot);
}

/* A pattern that never repeats is kept within its bound, and what is dropped is counted. */
static void history_is_bounded(void **state) {
  (void)state;
  struct feed feed = start(64);
  srand(5);
  for (int i = 0; i < 1000; i++) {
    alloc(&feed, A, SIZE);
    receive(&feed, A, SIZE);
    feed.operations += (uint64_t)rand();
    use(&feed, A);
    release(&feed, A);
  }
  struct rp_snapshot snapshot = finish(&feed);
  assert_int_equal(snapshot.steps_complete, 0);
  assert_in_range(snapshot.lifetimes_dropped, 1000 - 64, 1000 - 32);
  rp_snapshot_fini(&snapshot);
}

static void use_once(struct feed *feed) {
  alloc(feed, A, SIZE);
  receive(feed, A, SIZE);
  use(feed, A);
  release(feed, A);
}

/* Three microbatches a step, then five: the report ends up with the five, steps beginning after the
 * optimizer. */
static void a_broken_period_is_learned_anew(void **state) {
  (void)state;
  struct feed feed = start(0);
  for (int step = 0; step < 800; step++) {
    for (int mb = 0; mb < (step < 400 ? 3 : 5); mb++)
      use_once(&feed);
    feed.operations += 7;
  }
  struct rp_snapshot snapshot = finish(&feed);
  assert_int_equal(snapshot.channel_count, 1);
  assert_int_equal(snapshot.channels[0].buffers, 5);
  assert_int_equal(snapshot.channels[0].reason, RP_REASON_JUST_IN_TIME);
  const struct rp_lifetime *lifetimes = snapshot.channels[0].lifetimes;
  assert_true(snapshot.steps_complete > 300);
  for (int mb = 1; mb < 5; mb++) /* one use, then the next receive: no optimizer inside the step */
    assert_int_equal(lifetimes[mb].posted_seq - lifetimes[mb - 1].posted_seq, 4);
  rp_snapshot_fini(&snapshot);
}

/* A step whose steady part repeats more often than a period needs to be believed. */
static void a_long_steady_part_is_no_step(void **state) {
  (void)state;
  struct feed feed = start(0);
  for (int step = 0; step < 12; step++) {
    for (int pair = 0; pair < 40; pair++) {
      use_once(&feed);
      feed.operations += 2;
      use_once(&feed);
    }
    feed.operations += 7;
  }
  struct rp_snapshot snapshot = finish(&feed);
  assert_int_equal(snapshot.channels[0].buffers, 80);
  assert_int_equal(snapshot.steps_complete, 12);
  rp_snapshot_fini(&snapshot);
}

/* Four steps of three buffers, all in use at once, and a send out of buffer i where mask[step % 2] has bit i.
 */
static enum rp_reason reason_where_sends_read(const unsigned mask[2]) {
  struct feed feed = start(0);
  for (int step = 0; step < 4; step++) {
    for (uint64_t i = 0; i < 3; i++)
      receive(&feed, A + i * SIZE, SIZE);
    for (uint64_t i = 0; i < 3; i++) {
      use(&feed, A + i * SIZE);
      if (mask[step % 2] >> i & 1)
        emit(&feed, (struct rp_event){
                        .kind = RP_EVENT_SEND, .address = A + i * SIZE, .bytes = SIZE, .peer = 2, .comm = 5});
    }
  }
  struct rp_snapshot snapshot = finish(&feed);
  assert_int_equal(snapshot.channel_count, 1);
  enum rp_reason reason = snapshot.channels[0].reason;
  assert_int_equal(snapshot.channels[0].style,
                   reason == RP_REASON_JUST_IN_TIME ? RP_STYLE_JUST_IN_TIME : RP_STYLE_PREALLOCATED);
  rp_snapshot_fini(&snapshot);
  return reason;
}

/* Blocks of a cache hold other tensors between two receives, and some of those are sent. A stage that passes
 * on what it received does so with all buffers. */
static void blocks_that_hold_other_tensors_come_from_a_cache(void **state) {
  (void)state;
  static const struct {
    unsigned mask[2];
    enum rp_reason reason;
  } rows[] = {{{0, 0}, RP_REASON_UNBOUNDED_DEPTH},
              {{7, 7}, RP_REASON_UNBOUNDED_DEPTH},
              {{3, 3}, RP_REASON_JUST_IN_TIME},
              {{0, 7}, RP_REASON_JUST_IN_TIME},
              {{1, 6}, RP_REASON_JUST_IN_TIME}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    assert_int_equal(reason_where_sends_read(rows[i].mask), rows[i].reason);
}

/* A buffer is of one peer; a block that serves several comes from a cache, and so do all of that size. */
static void blocks_that_serve_several_peers_come_from_a_cache(void **state) {
  (void)state;
  for (int cached = 0; cached < 2; cached++) {
    struct feed feed = start(0);
    for (int step = 0; step < 6; step++) {
      for (int i = 0; i < 2; i++) {
        struct rp_event event = {.kind = RP_EVENT_RECV,
                                 .address = (cached * step + i) % 2 ? A : B,
                                 .bytes = SIZE,
                                 .peer = 1 + i,
                                 .comm = 5};
        assert_int_equal(emit(&feed, event), 0);
      }
      receive(&feed, C, SIZE);
      for (uint64_t i = 0; i < 3; i++)
        use(&feed, A + i * (B - A));
    }
    struct rp_snapshot snapshot = finish(&feed);
    assert_true(snapshot.channel_count >= 2);
    for (size_t i = 0; i < snapshot.channel_count; i++)
      assert_int_equal(snapshot.channels[i].reason,
                       cached ? RP_REASON_JUST_IN_TIME : RP_REASON_UNBOUNDED_DEPTH);
    rp_snapshot_fini(&snapshot);
  }
}

/* One pipeline after the other: communicator 5 is destroyed and its handle given to the next one, and the
 * allocator gives the first one's buffers to other tensors, which are used all along. */
static void another_communicator_with_the_same_handle_begins_anew(void **state) {
  (void)state;
  struct feed feed = start(0);
  for (uint64_t pipeline = 0; pipeline < 2; pipeline++) {
    emit(&feed, (struct rp_event){.kind = RP_EVENT_COMM_INIT, .comm = 5, .bytes = 2});
    for (int step = 0; step < 3; step++)
      for (uint64_t i = 0; i < 3; i++) {
        receive(&feed, A * (1 + i + 16 * pipeline), SIZE);
        use(&feed, A * (1 + i + 16 * pipeline));
        for (uint64_t k = 0; pipeline && k < 3; k++)
          use(&feed, A * (1 + k));
      }
    emit(&feed, (struct rp_event){.kind = RP_EVENT_COMM_DESTROY, .comm = 5});
  }
  struct rp_snapshot snapshot = finish(&feed);
  assert_int_equal(snapshot.steps_complete, 6);
  assert_int_equal(snapshot.channel_count, 1);
  const struct rp_channel *channel = &snapshot.channels[0];
  assert_int_equal(channel->transfers, 18);
  assert_int_equal(channel->buffers, 3);
  assert_int_equal(channel->depth_max, 1);
  assert_int_equal(channel->accesses_most, 1);
  assert_int_equal(channel->reason, RP_REASON_POOLABLE);
  for (size_t i = 0; i < channel->lifetime_count; i++)
    assert_int_equal(channel->lifetimes[i].step, 5);
  rp_snapshot_fini(&snapshot);
}

/* What was received over others in the same step goes on. */
static void a_communicator_that_ends_within_a_step_ends_no_step(void **state) {
  (void)state;
  struct feed feed = start(0);
  for (int step = 0; step < 4; step++) {
    for (uint64_t i = 0; i < 3; i++) {
      receive(&feed, A * (1 + i), SIZE);
      use(&feed, A * (1 + i));
    }
    struct rp_event other = {.kind = RP_EVENT_RECV, .address = A * 9, .bytes = SIZE, .peer = 1, .comm = 6};
    emit(&feed, other);
    use(&feed, A * 9);
    if (step == 2) emit(&feed, (struct rp_event){.kind = RP_EVENT_COMM_DESTROY, .comm = 6});
  }
  struct rp_snapshot snapshot = finish(&feed);
  assert_int_equal(snapshot.steps_complete, 4);
  assert_int_equal(snapshot.channel_count, 2);
  rp_snapshot_fini(&snapshot);
}

static void foreign_records_are_refused(void **state) {
  (void)state;
  struct feed feed = start(0);
  struct rp_event event = {.version = RP_EVENT_VERSION + 1, .kind = RP_EVENT_RECV};
  assert_int_equal(rp_tracker_event(feed.tracker, &event), RP_ERROR_VERSION);
  event = (struct rp_event){.version = RP_EVENT_VERSION, .kind = RP_EVENT_KIND_COUNT};
  assert_int_equal(rp_tracker_event(feed.tracker, &event), RP_ERROR_VERSION);
  /* Nonsense that must not hurt: wrapping ranges, more companions than fit. */
  event = (struct rp_event){
      .version = RP_EVENT_VERSION, .kind = RP_EVENT_RECV, .address = UINT64_MAX - 10, .bytes = 4096};
  assert_int_equal(rp_tracker_event(feed.tracker, &event), RP_OK);
  event.kind = RP_EVENT_ALLOC;
  assert_int_equal(rp_tracker_event(feed.tracker, &event), RP_ERROR_INVALID);
  receive(&feed, A, SIZE);
  event = (struct rp_event){
      .version = RP_EVENT_VERSION, .kind = RP_EVENT_KERNEL, .address = A, .companion_count = 999};
  assert_int_equal(rp_tracker_event(feed.tracker, &event), RP_OK);
  struct rp_snapshot snapshot = finish(&feed);
  assert_int_equal(snapshot.events_ignored, 1);
  rp_snapshot_fini(&snapshot);
}

static void buffers_are_bounded(void **state) {
  (void)state;
  struct rp_tracker_options options = {.min_bytes = 1, .max_buffers = 4};
  struct feed feed = {.tracker = rp_tracker_create(&options, NULL)};
  for (uint64_t i = 0; i < 4; i++)
    receive(&feed, A + i * SIZE, SIZE);
  struct rp_event event = {.kind = RP_EVENT_RECV, .address = A + 4 * SIZE, .bytes = SIZE, .peer = 1};
  assert_int_equal(emit(&feed, event), RP_ERROR_LIMIT);
  struct rp_snapshot snapshot = finish(&feed);
  assert_int_equal(snapshot.lifetimes_dropped, 1);
  rp_snapshot_fini(&snapshot);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(receives_ahead_stay_in_their_step),
                                     cmocka_unit_test(one_time_receives_do_not_count),
                                     cmocka_unit_test(late_receives_stay_in_their_step),
                                     cmocka_unit_test(one_launch_is_one_access),
                                     cmocka_unit_test(release_needs_the_learned_accesses),
                                     cmocka_unit_test(left_out_buffers_join_again),
                                     cmocka_unit_test(changing_depth_is_unstable),
                                     cmocka_unit_test(reused_addresses_are_new_buffers),
                                     cmocka_unit_test(history_is_bounded),
                                     cmocka_unit_test(a_broken_period_is_learned_anew),
                                     cmocka_unit_test(a_long_steady_part_is_no_step),
                                     cmocka_unit_test(blocks_that_hold_other_tensors_come_from_a_cache),
                                     cmocka_unit_test(blocks_that_serve_several_peers_come_from_a_cache),
                                     cmocka_unit_test(another_communicator_with_the_same_handle_begins_anew),
                                     cmocka_unit_test(a_communicator_that_ends_within_a_step_ends_no_step),
                                     cmocka_unit_test(foreign_records_are_refused),
                                     cmocka_unit_test(buffers_are_bounded)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
