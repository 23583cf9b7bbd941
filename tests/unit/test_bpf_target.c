/* Records become events of the tracker: transfers, launches with their words, communicators, physical memory,
 * and where steps begin for somebody who joined late. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "bpf/target.h"

#define MS 1000000u
#define BASE 0x7f0000000000u

static struct rp_target *make(bool launches) {
  const struct rp_tracker_options options = {.min_bytes = 1, .slack = 1};
  const struct rp_process process = {.pid = 42};
  struct rp_target *target = rp_target_create(&process, 1, 1000 * MS, &options, launches);
  assert_non_null(target);
  return target;
}

/* In memory of just the size that the ring has for it. */
static void take(struct rp_target *target, const struct rp_probe_record *record, size_t size) {
  void *copy = malloc(size);
  memcpy(copy, record, size);
  rp_target_take(target, copy);
  free(copy);
}

static uint64_t clock_ns = 2000 * MS;

static struct rp_probe_record event(enum rp_event_kind kind) {
  clock_ns += MS;
  return (struct rp_probe_record){.event = {.version = RP_EVENT_VERSION,
                                            .kind = (uint16_t)kind,
                                            .source = RP_SOURCE_UPROBE,
                                            .tid = 42,
                                            .time_ns = clock_ns,
                                            .peer = -1,
                                            .device = -1}};
}

static void transfer(struct rp_target *target, enum rp_event_kind kind, int32_t peer, uint64_t address) {
  struct rp_probe_record record = event(kind);
  record.event.comm = 0xc0;
  record.event.peer = peer;
  record.event.address = address;
  record.event.bytes = 4096;
  take(target, &record, RP_PROBE_SHORT_RECORD);
}

static void plain(struct rp_target *target, enum rp_event_kind kind) {
  const struct rp_probe_record record = event(kind);
  take(target, &record, RP_PROBE_SHORT_RECORD);
}

static void allocation(struct rp_target *target, uint64_t address) {
  struct rp_probe_record record = event(RP_EVENT_ALLOC);
  record.event.address = address;
  record.event.bytes = 4096;
  take(target, &record, RP_PROBE_SHORT_RECORD);
}

static void in_group(struct rp_target *target, uint32_t tid, enum rp_event_kind kind, uint64_t address,
                     int32_t status) {
  struct rp_probe_record record = event(kind);
  record.status = status;
  record.event.tid = tid;
  record.event.peer = 1;
  record.event.address = address;
  record.event.bytes = address ? 4096 : 0;
  take(target, &record, RP_PROBE_SHORT_RECORD);
}

static void launch(struct rp_target *target, uint64_t function, size_t count, const uint64_t *words) {
  struct rp_probe_launch record = {.head = event(RP_EVENT_KERNEL), .count = (uint32_t)count};
  record.head.what = RP_PROBE_WHAT_LAUNCH;
  record.head.event.function = function;
  for (size_t i = 0; i < count; i++) {
    record.word[i] = words[i];
    record.place[i] = (uint16_t)(16 * i);
  }
  take(target, &record.head, sizeof record);
}

static struct rp_snapshot snapshot(struct rp_target *target) {
  struct rp_snapshot out;
  assert_int_equal(rp_tracker_snapshot(target->tracker, &out), RP_OK);
  return out;
}

static void counts_transfers(void **state) {
  (void)state;
  struct rp_target *target = make(false);
  for (int step = 0; step < 3; step++)
    for (uint64_t i = 0; i < 4; i++)
      transfer(target, RP_EVENT_RECV, 1, BASE + i * 4096);
  transfer(target, RP_EVENT_SEND, 2, BASE);
  assert_int_equal(target->receives, 12);
  assert_int_equal(target->received_bytes, 12 * 4096);
  assert_int_equal(target->sends, 1);
  assert_int_equal(target->comm_count, 1); /* met by its first transfer */
  assert_int_equal(target->comms[0].rank, -1);
  struct rp_snapshot now = snapshot(target);
  assert_int_equal(now.channel_count, 1);
  assert_int_equal(now.channels[0].buffers, 4);
  rp_snapshot_fini(&now);
  rp_target_destroy(target);
}

static void launches_name_buffers_and_weights(void **state) {
  (void)state;
  struct rp_target *target = make(true);
  uint64_t weight = BASE + 0x1000000, stranger = BASE + 0x9000000, first = BASE, second = BASE + 4096;
  allocation(target, weight);
  transfer(target, RP_EVENT_RECV, 1, first);
  transfer(target, RP_EVENT_RECV, 1, second);
  const uint64_t words[] = {stranger, first + 64, weight + 8, first + 64, second};
  launch(target, 7, 5, words);
  assert_int_equal(target->launches_seen, 1);
  const uint64_t none[] = {stranger, weight};
  launch(target, 7, 2, none);
  assert_int_equal(target->launches_seen, 1);
  struct rp_snapshot now = snapshot(target);
  assert_int_equal(now.events[RP_EVENT_KERNEL], 2); /* one for each buffer; the same word twice is one */
  rp_snapshot_fini(&now);
  transfer(target, RP_EVENT_RECV, 1, first);
  transfer(target, RP_EVENT_RECV, 1, second);
  rp_target_finish(target, clock_ns + MS);
  now = snapshot(target);
  assert_int_equal(now.channels[0].lifetime_count, 2);
  rp_snapshot_fini(&now);
  rp_target_destroy(target);
}

static void impossible_launch_records(void **state) {
  (void)state;
  struct rp_target *target = make(true);
  struct rp_probe_launch record = {.head = event(RP_EVENT_KERNEL), .count = UINT32_MAX};
  record.head.what = RP_PROBE_WHAT_LAUNCH;
  take(target, &record.head, sizeof record);
  record.count = RP_PROBE_WORDS + 1;
  take(target, &record.head, sizeof record);
  assert_int_equal(target->launches_seen, 0);
  rp_target_destroy(target);
}

static void copies_count_where_they_touch(void **state) {
  (void)state;
  struct rp_target *target = make(true);
  transfer(target, RP_EVENT_RECV, 1, BASE);
  static const uint64_t addresses[] = {BASE + 4000, BASE + 4096, BASE - 100};
  for (size_t i = 0; i < 3; i++) {
    struct rp_probe_record record = event(RP_EVENT_COPY_READ);
    record.event.address = addresses[i];
    record.event.bytes = 100;
    take(target, &record, RP_PROBE_SHORT_RECORD);
  }
  struct rp_snapshot now = snapshot(target);
  assert_int_equal(now.events[RP_EVENT_COPY_READ], 1);
  rp_snapshot_fini(&now);
  rp_target_destroy(target);
}

static uint64_t split(struct rp_target *target, uint64_t parent, int32_t colour, uint64_t comm) {
  struct rp_probe_record record = event(RP_EVENT_COMM_INIT);
  record.what = RP_PROBE_WHAT_SPLIT;
  record.event.comm = comm;
  record.event.function = parent;
  record.event.aux = (uint32_t)colour;
  take(target, &record, RP_PROBE_SHORT_RECORD);
  for (size_t i = 0; i < target->comm_count; i++)
    if (target->comms[i].comm == comm) return target->comms[i].id_hash;
  return 0;
}

static void communicators(void **state) {
  (void)state;
  struct rp_target *target = make(false), *other = make(false);
  struct rp_probe_record record = event(RP_EVENT_COMM_INIT);
  record.event.comm = 0xa;
  record.event.peer = 3;
  record.event.bytes = 8;
  record.event.aux = 0x1234;
  take(target, &record, RP_PROBE_SHORT_RECORD);
  record.event.comm = 0xb; /* the same one, with another handle, on another rank */
  take(other, &record, RP_PROBE_SHORT_RECORD);
  assert_int_equal(target->comms[0].ranks, 8);
  uint64_t first = split(target, 0xa, 1, 0x10), second = split(target, 0xa, 1, 0x11),
           third = split(target, 0xa, 2, 0x12);
  assert_true(first != second && second != third && first != third);
  assert_int_equal(split(other, 0xb, 1, 0x20), first);
  assert_int_equal(split(other, 0xb, 1, 0x21), second);
  record = event(RP_EVENT_COMM_DESTROY);
  record.event.comm = 0xa;
  take(target, &record, RP_PROBE_SHORT_RECORD);
  assert_true(target->comms[0].ended);
  rp_target_destroy(target);
  rp_target_destroy(other);
}

static void many_communicators(void **state) {
  (void)state;
  struct rp_target *target = make(false);
  for (uint64_t i = 1; i < 10000; i++) {
    struct rp_probe_record record = event(RP_EVENT_COMM_INIT);
    record.event.comm = i;
    take(target, &record, RP_PROBE_SHORT_RECORD);
    record = event(RP_EVENT_COMM_DESTROY);
    record.event.comm = i;
    take(target, &record, RP_PROBE_SHORT_RECORD);
  }
  assert_true(target->comm_count <= 4096);
  assert_false(target->out_of_memory);
  rp_target_destroy(target);
}

static void physical(struct rp_target *target, enum rp_probe_what what, uint64_t handle, uint64_t bytes) {
  struct rp_probe_record record = event(RP_EVENT_NONE);
  record.what = (uint16_t)what;
  record.event.aux = handle;
  record.event.bytes = bytes;
  take(target, &record, RP_PROBE_SHORT_RECORD);
}

static void physical_memory(void **state) {
  (void)state;
  struct rp_target *target = make(false);
  physical(target, RP_PROBE_WHAT_CREATE, 5, 100);
  physical(target, RP_PROBE_WHAT_CREATE, 6, 200);
  physical(target, RP_PROBE_WHAT_RELEASE, 5, 0);
  physical(target, RP_PROBE_WHAT_RELEASE, 99, 0);
  physical(target, RP_PROBE_WHAT_CREATE, 6, 50); /* its release was not seen */
  assert_int_equal(target->physical.created_bytes, 350);
  assert_int_equal(target->physical.released_bytes, 300);
  assert_int_equal(target->physical.live_bytes, 50);
  assert_int_equal(target->physical.peak_bytes, 300);
  assert_int_equal(target->physical.unknown_releases, 1);
  rp_target_destroy(target);
}

/* ---- late ---- */

enum { CALLS = 16, NOWHERE = CALLS };
static unsigned stall_at = NOWHERE;

/* One step of a stage in the middle under 1F1B with 4 microbatches: what comes from peer 0 goes back to it.
 */
static void step(struct rp_target *target, unsigned from, unsigned *position, unsigned longest) {
  static const struct {
    enum rp_event_kind kind;
    int32_t peer;
    uint64_t buffer;
  } calls[] = {
      {RP_EVENT_RECV, 0, 0},  {RP_EVENT_SEND, 2, 100}, {RP_EVENT_RECV, 0, 1},  {RP_EVENT_SEND, 2, 101},
      {RP_EVENT_RECV, 2, 10}, {RP_EVENT_SEND, 0, 110}, {RP_EVENT_RECV, 0, 2},  {RP_EVENT_SEND, 2, 102},
      {RP_EVENT_RECV, 2, 11}, {RP_EVENT_SEND, 0, 111}, {RP_EVENT_RECV, 0, 3},  {RP_EVENT_SEND, 2, 103},
      {RP_EVENT_RECV, 2, 12}, {RP_EVENT_SEND, 0, 112}, {RP_EVENT_RECV, 2, 13}, {RP_EVENT_SEND, 0, 113}};
  _Static_assert(sizeof calls / sizeof calls[0] == CALLS, "every call may be the first");
  for (; from < CALLS; from++, (*position)++) {
    transfer(target, calls[from].kind, calls[from].peer, BASE + calls[from].buffer * 4096);
    clock_ns += (*position * 7919u % 5) * MS; /* pauses are never quite the same */
    if (from == longest) clock_ns += 60 * MS;
    if (from == stall_at) clock_ns += 900 * MS;
  }
  clock_ns += 40 * MS;
}

static void check_channels(struct rp_target *target) {
  struct rp_snapshot now = snapshot(target);
  assert_int_equal(now.channel_count, 2);
  for (size_t i = 0; i < 2; i++) {
    const struct rp_channel *channel = &now.channels[i];
    assert_int_equal(channel->buffers, 4);
    assert_int_equal(channel->direction,
                     channel->peer == 0 ? RP_DIRECTION_ACTIVATION : RP_DIRECTION_GRADIENT);
    assert_int_equal(channel->depth, channel->peer == 0 ? 2 : 1);
    assert_int_equal(channel->depth_max, channel->depth);
    assert_true(channel->estimate);
    assert_true(channel->steps_complete >= 4);
  }
  rp_snapshot_fini(&now);
}

/* The longest pause lies between two steps, or after call `longest`, where the rank has to tell. */
static void check_late(unsigned from, unsigned longest) {
  struct rp_target *target = make(false);
  unsigned position = 0;
  target->joined_late = true;
  if (longest != NOWHERE) rp_tracker_assume_rank(target->tracker, 1);
  clock_ns = 2000 * MS;
  step(target, from, &position, longest);
  for (int i = 0; i < 8; i++)
    step(target, 0, &position, longest);
  check_channels(target);
  rp_target_destroy(target);
}

static void finds_the_beginning_of_a_step(void **state) {
  (void)state;
  for (unsigned from = 0; from < CALLS; from++)
    check_late(from, NOWHERE);
}

static void rank_tells_sides_where_pauses_mislead(void **state) {
  (void)state;
  for (unsigned from = 0; from < CALLS; from++)
    for (unsigned longest = 0; longest + 1 < CALLS; longest++)
      check_late(from, longest);
}

/* The process is stopped for a while after one call of its first or second whole step. */
static void a_stall_is_not_taken_for_the_end_of_a_step(void **state) {
  (void)state;
  for (unsigned from = 0; from < CALLS; from++)
    for (unsigned at = 0; at < 2 * CALLS; at++) {
      struct rp_target *target = make(false);
      unsigned position = 0;
      target->joined_late = true;
      clock_ns = 2000 * MS;
      step(target, from, &position, NOWHERE);
      for (unsigned i = 0; i < 14; i++) {
        stall_at = at / CALLS == i ? at % CALLS : NOWHERE;
        step(target, 0, &position, NOWHERE);
      }
      stall_at = NOWHERE;
      check_channels(target);
      rp_target_destroy(target);
    }
}

static void groups_do_not_disturb(void **state) {
  (void)state;
  struct rp_target *target = make(false);
  target->joined_late = true;
  for (int i = 0; i < 6; i++) {
    clock_ns += 50 * MS;
    plain(target, RP_EVENT_GROUP_START);
    transfer(target, RP_EVENT_RECV, 0, BASE);
    transfer(target, RP_EVENT_SEND, 2, BASE + 0x100000);
    plain(target, RP_EVENT_GROUP_END);
    plain(target, RP_EVENT_GROUP_START);
    transfer(target, RP_EVENT_SEND, 0, BASE + 0x200000);
    transfer(target, RP_EVENT_RECV, 2, BASE + 0x300000);
    plain(target, RP_EVENT_GROUP_END);
  }
  struct rp_snapshot now = snapshot(target);
  assert_int_equal(now.channel_count, 2);
  for (size_t i = 0; i < 2; i++)
    assert_int_equal(now.channels[i].direction,
                     now.channels[i].peer == 0 ? RP_DIRECTION_ACTIVATION : RP_DIRECTION_GRADIENT);
  rp_snapshot_fini(&now);
  rp_target_destroy(target);
}

/* What is in a group happens when it ends, or not; each thread has its own. */
static void transfers_of_a_group_wait_for_its_end(void **state) {
  (void)state;
  struct rp_target *target = make(true);
  in_group(target, 1, RP_EVENT_GROUP_START, 0, 0);
  in_group(target, 2, RP_EVENT_GROUP_START, 0, 0);
  in_group(target, 1, RP_EVENT_RECV, BASE, 1);
  in_group(target, 2, RP_EVENT_RECV, BASE + 4096, 1);
  in_group(target, 2, RP_EVENT_SEND, BASE + 8192, 1);
  in_group(target, 3, RP_EVENT_SEND, BASE + 8192, 0); /* outside of any */
  assert_int_equal(target->receives + 10 * target->sends, 10);
  in_group(target, 2, RP_EVENT_GROUP_END, 0, 0);
  assert_int_equal(target->receives + 10 * target->sends, 21);
  in_group(target, 1, RP_EVENT_GROUP_END, 0, 5);
  assert_int_equal(target->receives + 10 * target->sends, 21);
  assert_int_equal(target->failed_receives + 10 * target->failed_sends, 1);
  in_group(target, 1, RP_EVENT_GROUP_START, 0, 0);
  in_group(target, 1, RP_EVENT_SEND, BASE, 1);
  rp_target_finish(target, clock_ns);
  assert_int_equal(target->receives + 10 * target->sends, 21);
  assert_int_equal(target->open_receives + 10 * target->open_sends, 10);
  rp_target_destroy(target);
}

/* Its end found no room in the buffer: the thread's next one tells that there was one. */
static void an_end_that_was_lost(void **state) {
  (void)state;
  struct rp_target *target = make(true);
  in_group(target, 1, RP_EVENT_GROUP_START, 0, 0);
  in_group(target, 1, RP_EVENT_RECV, BASE, 1);
  in_group(target, 1, RP_EVENT_GROUP_START, 0, 0);
  assert_int_equal(target->receives, 1);
  rp_target_destroy(target);
}

/* What has no room to be held is taken to happen. */
static void a_group_without_end(void **state) {
  (void)state;
  struct rp_target *target = make(true);
  for (uint32_t i = 0; i < RP_TARGET_HELD + 5u; i++)
    in_group(target, 1, RP_EVENT_SEND, BASE, 1);
  assert_int_equal(target->sends, 5);
  rp_target_finish(target, clock_ns);
  assert_int_equal(target->sends + target->open_sends, RP_TARGET_HELD + 5u);
  rp_target_destroy(target);
}

static void failed_calls_are_counted_apart(void **state) {
  (void)state;
  struct rp_target *target = make(true);
  struct rp_probe_record record = event(RP_EVENT_RECV);
  record.what = RP_PROBE_WHAT_FAILED;
  take(target, &record, RP_PROBE_SHORT_RECORD);
  assert_int_equal(target->receives, 0);
  assert_int_equal(target->failed_receives, 1);
  struct rp_snapshot seen = snapshot(target);
  assert_int_equal(seen.events[RP_EVENT_RECV], 0);
  rp_snapshot_fini(&seen);
  rp_target_destroy(target);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(transfers_of_a_group_wait_for_its_end),
      cmocka_unit_test(an_end_that_was_lost),
      cmocka_unit_test(a_group_without_end),
      cmocka_unit_test(failed_calls_are_counted_apart),
      cmocka_unit_test(counts_transfers),
      cmocka_unit_test(launches_name_buffers_and_weights),
      cmocka_unit_test(impossible_launch_records),
      cmocka_unit_test(copies_count_where_they_touch),
      cmocka_unit_test(communicators),
      cmocka_unit_test(many_communicators),
      cmocka_unit_test(physical_memory),
      cmocka_unit_test(finds_the_beginning_of_a_step),
      cmocka_unit_test(rank_tells_sides_where_pauses_mislead),
      cmocka_unit_test(a_stall_is_not_taken_for_the_end_of_a_step),
      cmocka_unit_test(groups_do_not_disturb),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
