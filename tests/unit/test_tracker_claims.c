/* What the tracker must not claim: programs whose use of their buffers changes, is captured into graphs, or
 * is seen through odd addresses. Every wrong answer here would be a saving that is not there. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "pool/tracker_internal.h"

struct feed {
  struct rp_tracker *tracker;
  uint64_t seq, operations;
};

enum { SIZE = 1 << 20, GAP = 1 << 23, BUFFERS = 8, PLACE = 0x10000000, HEADER = 256 };

static uint64_t buffer(int i) {
  return PLACE + (uint64_t)i * GAP;
}

static void emit(struct feed *feed, struct rp_event event) {
  event.version = RP_EVENT_VERSION;
  event.seq = ++feed->seq;
  event.time_ns = event.seq * 10;
  event.operations = feed->operations;
  assert_int_equal(rp_tracker_event(feed->tracker, &event), RP_OK);
}

static struct feed start(void) {
  struct rp_tracker_options options = {.min_bytes = 100, .slack = 1};
  struct feed feed = {.tracker = rp_tracker_create(&options, NULL)};
  assert_non_null(feed.tracker);
  return feed;
}

static void alloc(struct feed *feed, uint64_t address, uint64_t bytes) {
  emit(feed, (struct rp_event){.kind = RP_EVENT_ALLOC, .address = address, .bytes = bytes});
}

static void alloc_all(struct feed *feed) {
  for (int i = 0; i < BUFFERS; i++)
    alloc(feed, buffer(i), SIZE);
}

static void free_all(struct feed *feed) {
  for (int i = 0; i < BUFFERS; i++)
    emit(feed, (struct rp_event){.kind = RP_EVENT_FREE, .address = buffer(i)});
}

static void receive(struct feed *feed, uint64_t address, uint64_t bytes, uint16_t flags) {
  emit(feed,
       (struct rp_event){
           .kind = RP_EVENT_RECV, .address = address, .bytes = bytes, .peer = 1, .comm = 5, .flags = flags});
}

static void access_kind(struct feed *feed, enum rp_event_kind kind, uint64_t address, uint64_t bytes) {
  feed->operations++;
  emit(feed, (struct rp_event){.kind = (uint16_t)kind, .address = address, .bytes = bytes, .function = 3});
}

static void use(struct feed *feed, uint64_t address) {
  access_kind(feed, RP_EVENT_KERNEL, address, 0);
}

/* One run over all buffers, `depth` of them in use at once. */
static void step_of(struct feed *feed, int depth, uint64_t bytes, uint16_t flags) {
  for (int i = 0; i < BUFFERS + depth - 1; i++) {
    if (i < BUFFERS) receive(feed, buffer(i), bytes, flags);
    if (i >= depth - 1) use(feed, buffer(i - depth + 1));
  }
}

static void steps(struct feed *feed, int count, int depth) {
  for (int i = 0; i < count; i++)
    step_of(feed, depth, SIZE, 0);
}

static struct rp_snapshot look(struct feed *feed) {
  struct rp_snapshot snapshot;
  assert_int_equal(rp_tracker_snapshot(feed->tracker, &snapshot), RP_OK);
  return snapshot;
}

static struct rp_snapshot finish(struct feed *feed) {
  rp_tracker_finish(feed->tracker, ++feed->seq * 10);
  struct rp_snapshot snapshot = look(feed);
  rp_tracker_destroy(feed->tracker);
  return snapshot;
}

static void assert_graph_captured(struct rp_snapshot snapshot) {
  assert_int_equal(snapshot.channel_count, 1);
  assert_string_equal(rp_reason_name(snapshot.channels[0].reason), "graph_captured");
  assert_int_equal(snapshot.would_save_bytes, 0);
  rp_snapshot_fini(&snapshot);
}

/* Eager warm-up, capture, replays (of which only the launch is seen), and later an eager step or two: the
 * graphs hold the addresses from the capture on. */
static void captured_buffers_stay_captured(void **state) {
  (void)state;
  struct feed feed = start();
  alloc_all(&feed);
  steps(&feed, 4, 2);
  struct rp_snapshot before = look(&feed);
  assert_true(before.would_save_bytes > 0);
  rp_snapshot_fini(&before);
  step_of(&feed, 2, SIZE, RP_EVENT_FLAG_CAPTURED);
  for (int i = 0; i < 10; i++) {
    emit(&feed, (struct rp_event){.kind = RP_EVENT_GRAPH_LAUNCH, .aux = 77});
    for (int b = 0; b < BUFFERS;
         b++) /* NCCL's profiler hears of the replayed transfers, under its own handle */
      emit(&feed, (struct rp_event){.kind = RP_EVENT_RECV,
                                    .source = RP_SOURCE_NCCL_PROFILER,
                                    .address = buffer(b),
                                    .bytes = SIZE,
                                    .peer = 1,
                                    .comm = 99});
  }
  assert_graph_captured(look(&feed)); /* what SIGKILL would leave */
  steps(&feed, 4, 2);
  assert_graph_captured(finish(&feed));
}

/* Only the kernels are captured, as by make_graphed_callables; receives stay eager. */
static void captured_uses_count_at_once(void **state) {
  (void)state;
  struct feed feed = start();
  alloc_all(&feed);
  steps(&feed, 4, 2);
  receive(&feed, buffer(0), SIZE, 0);
  emit(&feed,
       (struct rp_event){
           .kind = RP_EVENT_KERNEL, .address = buffer(0), .function = 3, .flags = RP_EVENT_FLAG_CAPTURED});
  assert_graph_captured(look(&feed));
  rp_tracker_destroy(feed.tracker);
}

/* All buffers are read at the end of the step by something that begins `HEADER` bytes before each. */
static uint32_t depth_with_wide_reads(enum rp_event_kind kind, uint64_t begin, uint64_t bytes, int reads) {
  struct feed feed = start();
  for (int i = 0; i < BUFFERS; i++)
    alloc(&feed, buffer(i), GAP / 8 + 4 * HEADER);
  for (int step = 0; step < 4; step++) {
    for (int i = 0; i < BUFFERS; i++) {
      receive(&feed, buffer(i) + HEADER, SIZE, 0);
      use(&feed, buffer(i) + HEADER);
    }
    for (int i = 0; i < reads; i++)
      access_kind(&feed, kind, begin + (uint64_t)i * GAP, bytes);
  }
  struct rp_snapshot snapshot = finish(&feed);
  assert_int_equal(snapshot.channel_count, 1);
  uint32_t depth = snapshot.channels[0].depth;
  rp_snapshot_fini(&snapshot);
  return depth;
}

static void reads_that_begin_before_a_buffer_are_reads_of_it(void **state) {
  (void)state;
  assert_int_equal(depth_with_wide_reads(RP_EVENT_COPY_READ, PLACE, SIZE + HEADER, BUFFERS), BUFFERS);
  assert_int_equal(depth_with_wide_reads(RP_EVENT_SEND, PLACE, SIZE + HEADER, BUFFERS), BUFFERS);
}

static void one_copy_reads_all_it_covers(void **state) {
  (void)state;
  assert_int_equal(depth_with_wide_reads(RP_EVENT_COPY_READ, PLACE, (uint64_t)BUFFERS * GAP, 1), BUFFERS);
}

/* Training needs four buffers at once; the evaluation that follows needs one. */
static void evaluation_does_not_make_training_shallow(void **state) {
  (void)state;
  struct feed feed = start();
  alloc_all(&feed);
  steps(&feed, 4, 4);
  steps(&feed, 4, 1);
  struct rp_snapshot snapshot = finish(&feed);
  assert_int_equal(snapshot.channels[0].depth, 1);
  assert_int_equal(snapshot.channels[0].depth_max, 4);
  assert_int_equal(snapshot.channels[0].slots, 5);
  assert_int_equal(snapshot.needed_bytes, 4 * SIZE);
  assert_int_equal(snapshot.would_save_bytes, (BUFFERS - 5) * SIZE);
  rp_snapshot_fini(&snapshot);
}

/* The stage is rebuilt with messages of another size: the old buffers are gone, and so is what they held. */
static void rebuilt_stages_are_not_counted_twice(void **state) {
  (void)state;
  struct feed feed = start();
  alloc_all(&feed);
  steps(&feed, 4, 2);
  free_all(&feed);
  for (int i = 0; i < BUFFERS; i++)
    alloc(&feed, buffer(i), SIZE / 2);
  for (int i = 0; i < 4; i++)
    step_of(&feed, 2, SIZE / 2, 0);
  struct rp_snapshot snapshot = finish(&feed);
  assert_int_equal(snapshot.held_bytes, BUFFERS * SIZE / 2);
  assert_int_equal(snapshot.would_save_bytes, (BUFFERS - 3) * SIZE / 2);
  rp_snapshot_fini(&snapshot);
}

/* A program that frees everything before it ends has still held it. */
static void freeing_at_the_end_takes_nothing_back(void **state) {
  (void)state;
  struct feed feed = start();
  alloc_all(&feed);
  steps(&feed, 4, 2);
  free_all(&feed);
  struct rp_snapshot snapshot = finish(&feed);
  assert_int_equal(snapshot.held_bytes, BUFFERS * SIZE);
  assert_int_equal(snapshot.would_save_bytes, (BUFFERS - 3) * SIZE);
  rp_snapshot_fini(&snapshot);
}

/* The device was reset, or memory freed where nothing is seen, and the addresses come back as other memory.
 */
static void new_memory_at_an_old_address_is_no_buffer(void **state) {
  (void)state;
  struct feed feed = start();
  alloc_all(&feed);
  steps(&feed, 4, 2);
  alloc(&feed, buffer(0) - HEADER, SIZE / 4);
  struct rp_snapshot before = look(&feed);
  uint64_t ignored = before.events_ignored;
  rp_snapshot_fini(&before);
  use(&feed, buffer(0) + 16);
  struct rp_snapshot snapshot = look(&feed);
  assert_int_equal(snapshot.events_ignored, ignored + 1);
  rp_snapshot_fini(&snapshot);
  rp_tracker_destroy(feed.tracker);
}

/* Expandable segments: memory mapped in pieces, a buffer over several of them, in which other data lies too.
 */
static void buffers_over_several_mappings_share_them(void **state) {
  (void)state;
  struct feed feed = start();
  for (int piece = 0; piece < 4 * BUFFERS; piece++)
    alloc(&feed, PLACE + (uint64_t)piece * GAP / 4, GAP / 4);
  for (int step = 0; step < 4; step++)
    for (int i = 0; i < BUFFERS; i++) {
      receive(&feed, buffer(i) + HEADER, GAP / 2, 0);
      use(&feed, buffer(i) + HEADER);
    }
  struct rp_snapshot snapshot = finish(&feed);
  assert_string_equal(rp_reason_name(snapshot.channels[0].reason), "shared_allocation");
  assert_int_equal(snapshot.held_bytes, (uint64_t)BUFFERS * GAP / 2);
  assert_int_equal(snapshot.channels[0].unreachable_bytes, (uint64_t)BUFFERS * GAP / 2);
  rp_snapshot_fini(&snapshot);
}

/* A communicator's handle is used again by another one, in which the same peer number is another process. */
static void handles_of_communicators_are_used_again(void **state) {
  (void)state;
  struct feed feed = start();
  emit(&feed,
       (struct rp_event){.kind = RP_EVENT_SEND, .address = 0x100, .bytes = SIZE, .peer = 1, .comm = 5});
  emit(&feed, (struct rp_event){.kind = RP_EVENT_COMM_DESTROY, .comm = 5});
  alloc_all(&feed);
  steps(&feed, 4, 2);
  struct rp_snapshot snapshot = finish(&feed);
  assert_int_equal(snapshot.channels[0].direction, RP_DIRECTION_ACTIVATION);
  rp_snapshot_fini(&snapshot);
}

/* The second buffer is needed beside the first now and then, with several runs in between that do without it.
 */
static void rare_microbatches_count(void **state) {
  (void)state;
  struct feed feed = start();
  alloc_all(&feed);
  for (int step = 0; step < 20; step++) {
    bool both = step % 8 == 7, present = step < 2; /* seen before, though never in use with both others */
    receive(&feed, buffer(0), SIZE, 0);
    if (both) receive(&feed, buffer(1), SIZE, 0);
    receive(&feed, buffer(2), SIZE, 0);
    use(&feed, buffer(0));
    if (both) use(&feed, buffer(1));
    use(&feed, buffer(2));
    if (present) receive(&feed, buffer(1), SIZE, 0);
    if (present) use(&feed, buffer(1));
    receive(&feed, buffer(3), SIZE, 0);
    use(&feed, buffer(3));
  }
  struct rp_snapshot snapshot = finish(&feed);
  assert_int_equal(snapshot.channels[0].depth_max, 3);
  rp_snapshot_fini(&snapshot);
}

/* An elastic job makes its communicators anew for ever. */
static void communicators_without_end_stay_within_bounds(void **state) {
  (void)state;
  struct feed feed = start();
  alloc_all(&feed);
  uint64_t bytes_used = 0;
  for (uint64_t comm = 1; comm <= 2000; comm++) {
    for (int step = 0; step < 3; step++)
      for (int i = 0; i < BUFFERS; i++) {
        emit(&feed, (struct rp_event){
                        .kind = RP_EVENT_RECV, .address = buffer(i), .bytes = SIZE, .peer = 1, .comm = comm});
        use(&feed, buffer(i));
      }
    emit(&feed, (struct rp_event){.kind = RP_EVENT_COMM_DESTROY, .comm = comm});
    struct rp_snapshot snapshot = look(&feed);
    assert_true(snapshot.held_bytes <= BUFFERS * SIZE);
    assert_true(snapshot.channel_count <= RP_CHANNELS_KEPT + 1);
    if (comm == 500) bytes_used = snapshot.tracker_bytes;
    if (comm > 500) assert_int_equal(snapshot.tracker_bytes, bytes_used);
    rp_snapshot_fini(&snapshot);
  }
  struct rp_snapshot snapshot = finish(&feed);
  assert_int_equal(snapshot.would_save_bytes, (BUFFERS - 2) * SIZE);
  rp_snapshot_fini(&snapshot);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(captured_buffers_stay_captured),
      cmocka_unit_test(captured_uses_count_at_once),
      cmocka_unit_test(reads_that_begin_before_a_buffer_are_reads_of_it),
      cmocka_unit_test(one_copy_reads_all_it_covers),
      cmocka_unit_test(evaluation_does_not_make_training_shallow),
      cmocka_unit_test(rebuilt_stages_are_not_counted_twice),
      cmocka_unit_test(freeing_at_the_end_takes_nothing_back),
      cmocka_unit_test(new_memory_at_an_old_address_is_no_buffer),
      cmocka_unit_test(buffers_over_several_mappings_share_them),
      cmocka_unit_test(handles_of_communicators_are_used_again),
      cmocka_unit_test(rare_microbatches_count),
      cmocka_unit_test(communicators_without_end_stay_within_bounds),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
