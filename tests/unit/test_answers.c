/* Depths from answering sends alone, against a count of what is outstanding; restarts; what must not become
 * evidence. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "pool/answers.h"
#include "pool/tracker.h"

#define BASE 0x7f0000000000u
#define BYTES 4096u
#define BEFORE 0 /* peers */
#define AFTER 2

struct feed {
  struct rp_tracker *tracker;
  uint64_t seq;
};

static struct feed make(void) {
  const struct rp_tracker_options options = {.min_bytes = 1, .slack = 1};
  struct feed feed = {rp_tracker_create(&options, NULL), 0};
  assert_non_null(feed.tracker);
  return feed;
}

static void tell(struct feed *feed, enum rp_event_kind kind, int32_t peer, uint64_t address, uint32_t tid) {
  struct rp_event event = {.version = RP_EVENT_VERSION,
                           .kind = (uint16_t)kind,
                           .source = RP_SOURCE_UPROBE,
                           .tid = tid,
                           .seq = ++feed->seq,
                           .time_ns = 1000 + feed->seq,
                           .comm = 0xc0,
                           .peer = peer,
                           .address = address,
                           .bytes = BYTES,
                           .device = -1};
  if (kind == RP_EVENT_KERNEL) {
    event.bytes = 0;
    event.function = 7;
    event.operations = feed->seq;
  }
  assert_int_equal(rp_tracker_event(feed->tracker, &event), RP_OK);
}

static const struct rp_channel *channel_of(const struct rp_snapshot *snapshot, int32_t peer) {
  for (size_t i = 0; i < snapshot->channel_count; i++)
    if (snapshot->channels[i].peer == peer) return &snapshot->channels[i];
  return NULL;
}

static struct rp_snapshot end(struct feed *feed) {
  struct rp_snapshot snapshot;
  rp_tracker_finish(feed->tracker, 1u << 30);
  assert_int_equal(rp_tracker_snapshot(feed->tracker, &snapshot), RP_OK);
  return snapshot;
}

/* ---- random schedules of a stage in the middle ---- */

enum what { RECV_ACTIVATION, SEND_ACTIVATION, RECV_GRADIENT, SEND_GRADIENT };

struct operation {
  enum what what;
  unsigned microbatch, group; /* group 0: none */
};

#define MOST 12

/* Any order that the data allows, each kind in the order of microbatches. */
static size_t make_schedule(unsigned microbatches, struct operation *out) {
  unsigned done[4] = {0}, group = 0, left = 0;
  size_t count = 0;
  while (done[SEND_GRADIENT] < microbatches) {
    enum what what = (enum what)(rand() % 4);
    unsigned most = what == RECV_ACTIVATION ? microbatches : done[what - 1];
    if (done[what] >= most) continue;
    if (left == 0 && rand() % 3 == 0) {
      left = 1 + (unsigned)rand() % 3;
      group++;
    }
    out[count++] = (struct operation){what, done[what]++, left ? group : 0};
    if (left) left--;
  }
  return count;
}

/* What is posted together: sends tell of work done before. In a group nothing may depend on what the group
 * itself receives, so a schedule in which it does is not one; then false. */
static bool is_possible(const struct operation *list, size_t count) {
  for (size_t i = 0; i < count; i++)
    for (size_t j = i + 1; list[i].group && j < count && list[j].group == list[i].group; j++)
      if ((list[i].what == RECV_GRADIENT && list[j].what == SEND_GRADIENT &&
           list[j].microbatch == list[i].microbatch) ||
          (list[i].what == RECV_ACTIVATION && list[j].what == SEND_ACTIVATION &&
           list[j].microbatch == list[i].microbatch))
        return false;
  return true;
}

static void count_depths(const struct operation *list, size_t count, unsigned *activations,
                         unsigned *gradients) {
  unsigned live[2] = {0}, most[2] = {0};
  for (size_t i = 0, next; i < count; i = next) {
    for (next = i + 1; list[i].group && next < count && list[next].group == list[i].group; next++)
      ;
    for (size_t j = i; j < next; j++)
      if (list[j].what == SEND_GRADIENT) live[0]--, live[1]--;
    for (size_t j = i; j < next; j++) {
      if (list[j].what != RECV_ACTIVATION && list[j].what != RECV_GRADIENT) continue;
      unsigned *now = &live[list[j].what == RECV_GRADIENT];
      unsigned *top = &most[list[j].what == RECV_GRADIENT];
      if (++*now > *top) *top = *now;
    }
  }
  *activations = most[0];
  *gradients = most[1];
}

static void run_step(struct feed *feed, const struct operation *list, size_t count) {
  static const enum rp_event_kind kinds[] = {RP_EVENT_RECV, RP_EVENT_SEND, RP_EVENT_RECV, RP_EVENT_SEND};
  static const int32_t peers[] = {BEFORE, AFTER, AFTER, BEFORE};
  for (size_t i = 0; i < count; i++) {
    bool begins = list[i].group && (i == 0 || list[i - 1].group != list[i].group);
    bool ends = list[i].group && (i + 1 == count || list[i + 1].group != list[i].group);
    if (begins) tell(feed, RP_EVENT_GROUP_START, -1, 0, 5);
    tell(feed, kinds[list[i].what], peers[list[i].what],
         BASE + ((uint64_t)list[i].what * MOST + list[i].microbatch) * BYTES, 5);
    if (ends) tell(feed, RP_EVENT_GROUP_END, -1, 0, 5);
  }
}

static void check_random(unsigned microbatches) {
  struct operation list[4 * MOST];
  unsigned activations, gradients;
  size_t count;
  do
    count = make_schedule(microbatches, list);
  while (!is_possible(list, count));
  count_depths(list, count, &activations, &gradients);
  struct feed feed = make();
  for (int step = 0; step < 4; step++)
    run_step(&feed, list, count);
  struct rp_snapshot snapshot = end(&feed);
  const struct rp_channel *before = channel_of(&snapshot, BEFORE), *after = channel_of(&snapshot, AFTER);
  assert_non_null(before);
  assert_non_null(after);
  assert_int_equal(before->direction, RP_DIRECTION_ACTIVATION);
  assert_int_equal(after->direction, RP_DIRECTION_GRADIENT);
  assert_int_equal(before->buffers, microbatches);
  assert_int_equal(before->depth_min, activations);
  assert_int_equal(before->depth_max, activations);
  assert_int_equal(after->depth_max, gradients);
  assert_true(before->estimate && after->estimate);
  for (size_t i = 0; i < before->lifetime_count; i++)
    assert_int_equal(before->lifetimes[i].release_evidence, RP_RELEASE_ANSWERING_SEND);
  rp_snapshot_fini(&snapshot);
  rp_tracker_destroy(feed.tracker);
}

static void depths_are_what_is_outstanding(void **state) {
  (void)state;
  srand(3);
  for (int round = 0; round < 3000; round++)
    check_random(2 + (unsigned)rand() % (MOST - 1));
}

/* ---- single cases ---- */

static void an_access_is_better_evidence(void **state) {
  (void)state;
  struct feed feed = make();
  for (int step = 0; step < 3; step++) {
    tell(&feed, RP_EVENT_RECV, BEFORE, BASE, 1);
    tell(&feed, RP_EVENT_SEND, BEFORE, BASE + 0x100000, 1); /* the input's gradient goes back … */
    tell(&feed, RP_EVENT_KERNEL, -1, BASE, 1); /* … before the weights' gradient reads it again */
    tell(&feed, RP_EVENT_SEND, AFTER, BASE + 0x200000, 1);
  }
  struct rp_snapshot snapshot = end(&feed);
  const struct rp_channel *channel = channel_of(&snapshot, BEFORE);
  assert_false(channel->estimate);
  for (size_t i = 0; i < channel->lifetime_count; i++)
    assert_int_not_equal(channel->lifetimes[i].release_evidence, RP_RELEASE_ANSWERING_SEND);
  rp_snapshot_fini(&snapshot);
  rp_tracker_destroy(feed.tracker);
}

/* The first stage sends no answer: nothing tells when its gradients are done with. */
static void no_answer_is_no_evidence(void **state) {
  (void)state;
  struct feed feed = make();
  for (int step = 0; step < 3; step++)
    for (uint64_t i = 0; i < 4; i++) {
      tell(&feed, RP_EVENT_SEND, AFTER, BASE + 0x100000, 1);
      tell(&feed, RP_EVENT_RECV, AFTER, BASE + i * BYTES, 1);
    }
  struct rp_snapshot snapshot = end(&feed);
  const struct rp_channel *channel = channel_of(&snapshot, AFTER);
  assert_int_equal(channel->reason, RP_REASON_NO_ACCESS_EVIDENCE);
  assert_int_equal(channel->would_save_bytes, 0);
  rp_snapshot_fini(&snapshot);
  rp_tracker_destroy(feed.tracker);
}

static void answers_of_another_size_or_peer_are_none(void **state) {
  (void)state;
  struct feed feed = make();
  for (int step = 0; step < 3; step++) {
    tell(&feed, RP_EVENT_RECV, BEFORE, BASE, 1);
    struct rp_event other = {.version = RP_EVENT_VERSION,
                             .kind = RP_EVENT_SEND,
                             .seq = ++feed.seq,
                             .time_ns = 1000 + feed.seq,
                             .comm = 0xc0,
                             .peer = BEFORE,
                             .address = BASE + 0x100000,
                             .bytes = 2 * BYTES};
    assert_int_equal(rp_tracker_event(feed.tracker, &other), RP_OK);
    tell(&feed, RP_EVENT_SEND, AFTER, BASE + 0x200000, 1);
  }
  struct rp_snapshot snapshot = end(&feed);
  assert_int_equal(channel_of(&snapshot, BEFORE)->reason, RP_REASON_NO_ACCESS_EVIDENCE);
  rp_snapshot_fini(&snapshot);
  rp_tracker_destroy(feed.tracker);
}

/* More sends than receives, as when some were not seen, and more threads in groups than are remembered. */
static void imbalance_is_harmless(void **state) {
  (void)state;
  struct feed feed = make();
  for (uint32_t tid = 1; tid < 3 * RP_ANSWER_GROUPS; tid++)
    tell(&feed, RP_EVENT_GROUP_START, -1, 0, tid);
  tell(&feed, RP_EVENT_GROUP_END, -1, 0, 0);
  for (int step = 0; step < 3; step++) {
    tell(&feed, RP_EVENT_RECV, BEFORE, BASE, 1);
    for (int i = 0; i < 5; i++)
      tell(&feed, RP_EVENT_SEND, BEFORE, BASE + 0x100000, 1);
  }
  for (uint64_t i = 0; i < 70000; i++) { /* receives that nobody answers */
    struct rp_event event = {.version = RP_EVENT_VERSION,
                             .kind = RP_EVENT_RECV,
                             .seq = ++feed.seq,
                             .time_ns = feed.seq,
                             .comm = 0xc0,
                             .peer = BEFORE,
                             .address = BASE + (i % 64) * BYTES,
                             .bytes = BYTES};
    (void)rp_tracker_event(feed.tracker, &event);
  }
  struct rp_snapshot snapshot = end(&feed);
  rp_snapshot_fini(&snapshot);
  rp_tracker_destroy(feed.tracker);
}

static void many_communicators_do_not_grow(void **state) {
  (void)state;
  struct feed feed = make();
  for (uint64_t comm = 1; comm < 3000; comm++) {
    struct rp_event event = {.version = RP_EVENT_VERSION,
                             .kind = RP_EVENT_RECV,
                             .seq = ++feed.seq,
                             .time_ns = feed.seq,
                             .comm = comm,
                             .peer = BEFORE,
                             .address = BASE,
                             .bytes = BYTES};
    assert_int_equal(rp_tracker_event(feed.tracker, &event), RP_OK);
    event.kind = RP_EVENT_SEND;
    event.seq = ++feed.seq;
    assert_int_equal(rp_tracker_event(feed.tracker, &event), RP_OK);
    event.kind = RP_EVENT_COMM_DESTROY;
    event.seq = ++feed.seq;
    assert_int_equal(rp_tracker_event(feed.tracker, &event), RP_OK);
  }
  struct rp_snapshot snapshot = end(&feed);
  assert_true(snapshot.tracker_bytes < 1u << 20);
  rp_snapshot_fini(&snapshot);
  rp_tracker_destroy(feed.tracker);
}

/* The first stage's gradients wait for ever, and take no more room for it. */
static void what_is_never_answered_does_not_grow(void **state) {
  (void)state;
  struct feed feed = make();
  struct rp_snapshot snapshot;
  uint64_t after_ten = 0;
  for (int step = 0; step < 2000; step++) {
    for (uint64_t i = 0; i < 8; i++) {
      tell(&feed, RP_EVENT_SEND, AFTER, BASE + 0x100000, 1);
      tell(&feed, RP_EVENT_RECV, AFTER, BASE + i * BYTES, 1);
    }
    if (step != 10 && step != 1999) continue;
    assert_int_equal(rp_tracker_snapshot(feed.tracker, &snapshot), RP_OK);
    if (step == 10)
      after_ten = snapshot.tracker_bytes;
    else
      assert_int_equal(snapshot.tracker_bytes, after_ten);
    rp_snapshot_fini(&snapshot);
  }
  rp_tracker_destroy(feed.tracker);
}

/* ---- restart ---- */

static unsigned added, removed;

static void count_added(void *context, uint64_t begin, uint64_t end_) {
  (void)context, (void)begin, (void)end_;
  added++;
}

static void count_removed(void *context, uint64_t begin, uint64_t end_) {
  (void)context, (void)begin, (void)end_;
  removed++;
}

static void a_restart_forgets_all_but_allocations(void **state) {
  (void)state;
  const struct rp_tracker_options options = {.min_bytes = 1};
  const struct rp_tracker_sink sink = {.range_added = count_added, .range_removed = count_removed};
  struct feed feed = {rp_tracker_create(&options, &sink), 0};
  uint64_t begin, bytes;
  added = removed = 0;
  tell(&feed, RP_EVENT_ALLOC, -1, BASE, 1);
  for (int step = 0; step < 3; step++)
    for (uint64_t i = 0; i < 4; i++) {
      tell(&feed, RP_EVENT_SEND, BEFORE, BASE + 0x100000,
           1); /* the wrong way round: this peer comes before us */
      tell(&feed, RP_EVENT_RECV, BEFORE, BASE + i * BYTES, 1);
    }
  assert_int_equal(added, 4);
  rp_tracker_restart(feed.tracker);
  assert_int_equal(removed, 4);
  struct rp_snapshot snapshot;
  assert_int_equal(rp_tracker_snapshot(feed.tracker, &snapshot), RP_OK);
  assert_int_equal(snapshot.channel_count, 0);
  assert_int_equal(snapshot.steps_complete, 0);
  assert_int_equal(snapshot.events[RP_EVENT_RECV], 12); /* what was counted stays */
  rp_snapshot_fini(&snapshot);
  assert_int_equal(rp_tracker_allocation_at(feed.tracker, BASE + 5, &begin, &bytes), RP_OK);
  for (int step = 0; step < 3; step++)
    for (uint64_t i = 0; i < 4; i++) {
      tell(&feed, RP_EVENT_RECV, BEFORE, BASE + i * BYTES, 1);
      tell(&feed, RP_EVENT_SEND, BEFORE, BASE + 0x100000, 1);
    }
  snapshot = end(&feed);
  assert_int_equal(snapshot.channel_count, 1);
  assert_int_equal(snapshot.channels[0].direction, RP_DIRECTION_ACTIVATION);
  assert_int_equal(snapshot.channels[0].depth_max, 1);
  assert_int_equal(snapshot.channels[0].steps_complete, 3);
  rp_snapshot_fini(&snapshot);
  rp_tracker_restart(feed.tracker);
  rp_tracker_destroy(feed.tracker);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(depths_are_what_is_outstanding),
      cmocka_unit_test(an_access_is_better_evidence),
      cmocka_unit_test(no_answer_is_no_evidence),
      cmocka_unit_test(answers_of_another_size_or_peer_are_none),
      cmocka_unit_test(imbalance_is_harmless),
      cmocka_unit_test(many_communicators_do_not_grow),
      cmocka_unit_test(what_is_never_answered_does_not_grow),
      cmocka_unit_test(a_restart_forgets_all_but_allocations),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
