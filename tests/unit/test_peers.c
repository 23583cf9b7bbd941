/* Which direction a channel is of, with communicators of all kinds: against what the schedule says. What
 * cannot be told is said to be unknown, never the other direction. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdbool.h>
#include <stdlib.h>

#include "pool/tracker.h"

#define BASE 0x7f0000000000u
#define BYTES 65536u
#define WEIGHTS (BASE - 0x1000000u)
#define MOST 6
#define STEPS 4

enum layout {
  ONE,      /* communicator for all */
  TWO,      /* one for activations, one for gradients, both of all ranks */
  PAIRS,    /* one for each pair of neighbours */
  TWO_PAIRS /* two for each pair */
};

/* One rank of a pipeline. */
struct stage {
  struct rp_tracker *tracker;
  uint64_t seq;
  enum layout layout;
  int rank, ranks;
  bool gradients; /* no evaluation */
};

static void tell(struct stage *s, enum rp_event_kind kind, uint64_t comm, int peer, uint64_t address,
                 uint64_t bytes) {
  struct rp_event event = {.version = RP_EVENT_VERSION,
                           .kind = (uint16_t)kind,
                           .source = RP_SOURCE_INTERPOSER,
                           .seq = ++s->seq,
                           .time_ns = 1000 + s->seq,
                           .comm = comm,
                           .peer = peer,
                           .address = address,
                           .bytes = bytes,
                           .device = 0};
  if (kind == RP_EVENT_KERNEL) {
    event.function = (uint64_t)peer;
    event.operations = s->seq;
    event.peer = -1;
    event.companion[0] = WEIGHTS;
    event.companion_count = 1;
  }
  assert_int_equal(rp_tracker_event(s->tracker, &event), RP_OK);
}

/* Communicator between this rank and its neighbour, and the neighbour's number there. */
static uint64_t comm_of(const struct stage *s, int neighbour, bool gradient, int *peer) {
  bool two = s->layout == TWO || s->layout == TWO_PAIRS;
  if (s->layout == ONE || s->layout == TWO) {
    *peer = neighbour;
    return two && gradient ? 0xc1 : 0xc0;
  }
  int below = neighbour < s->rank ? neighbour : s->rank;
  *peer = neighbour < s->rank ? 0 : 1;
  return 0xd0 + 2 * (uint64_t)below + (two && gradient);
}

static void introduce(struct stage *s) {
  int peer;
  for (int gradient = 0; gradient < 2; gradient++)
    for (int side = -1; side <= 1; side += 2) {
      int neighbour = s->rank + side;
      if (neighbour < 0 || neighbour >= s->ranks) continue;
      uint64_t comm = comm_of(s, neighbour, gradient, &peer);
      bool pair = s->layout == PAIRS || s->layout == TWO_PAIRS;
      tell(s, RP_EVENT_COMM_INIT, comm, pair ? 1 - peer : s->rank, 0, pair ? 2 : (uint64_t)s->ranks);
    }
}

static uint64_t address_of(int microbatch, bool gradient) {
  return BASE + ((uint64_t)microbatch * 2 + gradient) * 2 * BYTES;
}

static void receive(struct stage *s, int from, int microbatch, bool gradient) {
  int peer;
  uint64_t comm = comm_of(s, from, gradient, &peer);
  tell(s, RP_EVENT_RECV, comm, peer, address_of(microbatch, gradient), BYTES);
  tell(s, RP_EVENT_KERNEL, 0, gradient ? 8 : 7, address_of(microbatch, gradient), 0);
}

static void send(struct stage *s, int to, bool gradient) {
  int peer;
  uint64_t comm = comm_of(s, to, gradient, &peer);
  tell(s, RP_EVENT_SEND, comm, peer, BASE - BYTES, BYTES);
}

static void forward(struct stage *s, int microbatch) {
  if (s->rank > 0) receive(s, s->rank - 1, microbatch, false);
  if (s->rank + 1 < s->ranks) send(s, s->rank + 1, false);
}

static void backward(struct stage *s, int microbatch) {
  if (!s->gradients) return;
  if (s->rank + 1 < s->ranks) receive(s, s->rank + 1, microbatch, true);
  if (s->rank > 0) send(s, s->rank - 1, true);
}

/* 1F1B, or all forward first. */
static void step(struct stage *s, int microbatches, bool gpipe) {
  int ahead = gpipe ? microbatches : s->ranks - s->rank, done = 0;
  for (int i = 0; i < microbatches; i++) {
    forward(s, i);
    if (i + 1 >= ahead) backward(s, done++);
  }
  while (done < microbatches)
    backward(s, done++);
}

/* Runs it, and gives the direction that is told of what the neighbour sends. */
static void run(struct stage *s, int32_t world_size, int microbatches, bool gpipe, enum rp_direction *before,
                enum rp_direction *after) {
  const struct rp_tracker_options options = {.min_bytes = 1, .slack = 1, .world_size = world_size};
  struct rp_snapshot snapshot;
  int peer_before, peer_after;
  s->tracker = rp_tracker_create(&options, NULL);
  assert_non_null(s->tracker);
  s->seq = 0;
  tell(s, RP_EVENT_ALLOC, 0, -1, WEIGHTS, 4096);
  for (int i = 0; i < microbatches; i++)
    for (int gradient = 0; gradient < 2; gradient++)
      tell(s, RP_EVENT_ALLOC, 0, -1, address_of(i, gradient), BYTES);
  introduce(s);
  for (int i = 0; i < STEPS; i++)
    step(s, microbatches, gpipe);
  rp_tracker_finish(s->tracker, 1u << 30);
  assert_int_equal(rp_tracker_snapshot(s->tracker, &snapshot), RP_OK);
  uint64_t comm_before = comm_of(s, s->rank - 1, false, &peer_before);
  uint64_t comm_after = comm_of(s, s->rank + 1, true, &peer_after);
  *before = *after = (enum rp_direction)9;
  for (size_t c = 0; c < snapshot.channel_count; c++) {
    const struct rp_channel *channel = &snapshot.channels[c];
    if (channel->comm == comm_before && channel->peer == peer_before) *before = channel->direction;
    if (channel->comm == comm_after && channel->peer == peer_after) *after = channel->direction;
  }
  rp_snapshot_fini(&snapshot);
  rp_tracker_destroy(s->tracker);
}

/* Can it be told? Everything with one way there and back; and with two that are surely of the same ranks. */
static bool must_be_known(const struct stage *s, int32_t world_size, bool gradient) {
  if (s->layout == ONE || s->layout == PAIRS || !gradient) return true;
  if (s->ranks == 2) return world_size == 2;
  return s->layout == TWO;
}

static void directions_are_right_or_unknown(void **state) {
  (void)state;
  size_t unknown = 0, right = 0;
  for (int layout = ONE; layout <= TWO_PAIRS; layout++)
    for (int ranks = 2; ranks <= 4; ranks++)
      for (int rank = 0; rank < ranks; rank++)
        for (int variant = 0; variant < 8; variant++) {
          struct stage s = {
              .layout = (enum layout)layout, .rank = rank, .ranks = ranks, .gradients = variant & 1};
          int32_t world_size = variant & 4 ? ranks : 0;
          enum rp_direction before, after;
          run(&s, world_size, MOST, variant & 2, &before, &after);
          if (rank > 0) assert_int_equal(before, RP_DIRECTION_ACTIVATION);
          if (rank + 1 == ranks || !s.gradients) continue;
          bool known = must_be_known(&s, world_size, true);
          assert_int_equal(after, known ? RP_DIRECTION_GRADIENT : RP_DIRECTION_UNKNOWN);
          unknown += !known;
          right += known;
        }
  assert_true(unknown > 0 && right > unknown);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(directions_are_right_or_unknown)};
  return cmocka_run_group_tests_name("peers", tests, NULL, NULL);
}
