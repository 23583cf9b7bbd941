/* How many received tensors are live at once, for every named schedule, against the published numbers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "pool/lifetime.h"
#include "pool/schedule_internal.h"
#include "pool/slots.h"

static int32_t min32(int32_t a, int32_t b) {
  return a < b ? a : b;
}

static struct rp_slots slots_of(const struct rp_schedule *s, const struct rp_lifetime_options *options,
                                int32_t stage, enum rp_direction direction, size_t *count_out) {
  struct rp_received_set set;
  assert_int_equal(rp_schedule_lifetimes(s, options, &set), RP_OK);
  struct rp_interval *v = malloc((set.rank_begin[s->ranks] + 1) * sizeof(*v));
  assert_non_null(v);
  size_t count = 0;
  for (size_t i = 0; i < set.rank_begin[s->ranks]; i++)
    if (set.items[i].stage == stage && set.items[i].direction == direction)
      v[count++] = set.items[i].interval;
  struct rp_slots slots;
  assert_int_equal(rp_slots_assign(v, count, 0, NULL, &slots), RP_OK);
  free(v);
  rp_received_set_fini(&set);
  if (count_out) *count_out = count;
  return slots;
}

static uint32_t depth(const struct rp_schedule *s, int32_t stage, enum rp_direction direction) {
  return slots_of(s, NULL, stage, direction, NULL).depth;
}

static uint32_t depth_late(const struct rp_schedule *s, int32_t stage, enum rp_direction direction) {
  const struct rp_lifetime_options late = {.post_at_use = true};
  return slots_of(s, &late, stage, direction, NULL).depth;
}

static void test_gpipe(void **state) {
  (void)state;
  for (int32_t S = 1; S <= 8; S++)
    for (int32_t N = 1; N <= 9; N++) {
      struct rp_schedule s;
      assert_int_equal(rp_schedule_generate("gpipe", S, 1, N, &s, NULL), RP_OK);
      for (int32_t stage = 0; stage < S; stage++) {
        assert_int_equal(depth(&s, stage, RP_DIRECTION_ACTIVATION), stage ? N : 0);
        assert_int_equal(depth(&s, stage, RP_DIRECTION_GRADIENT), stage < S - 1);
      }
      rp_schedule_fini(&s);
    }
}

static void test_1f1b(void **state) {
  (void)state;
  for (int32_t S = 1; S <= 8; S++)
    for (int32_t N = 1; N <= 17; N++) {
      struct rp_schedule s, l;
      assert_int_equal(rp_schedule_generate("1f1b", S, 1, N, &s, NULL), RP_OK);
      assert_int_equal(rp__schedule_compute_order("1f1b", S, 1, N, &l, NULL), RP_OK);
      assert_int_equal(rp_schedule_lower(&l, NULL), RP_OK);
      for (int32_t stage = 0; stage < S; stage++) {
        size_t buffers;
        struct rp_slots a = slots_of(&s, NULL, stage, RP_DIRECTION_ACTIVATION, &buffers);
        assert_int_equal(buffers, stage ? N : 0);
        assert_int_equal(a.depth, stage ? min32(N, S - stage) : 0);
        assert_true(a.ring);
        assert_int_equal(depth(&s, stage, RP_DIRECTION_GRADIENT), stage < S - 1);
        assert_int_equal(depth(&l, stage, RP_DIRECTION_ACTIVATION), stage ? min32(N, S - stage + 1) : 0);
        assert_int_equal(depth_late(&l, stage, RP_DIRECTION_ACTIVATION), stage ? min32(N, S - stage) : 0);
        assert_int_equal(depth(&l, stage, RP_DIRECTION_GRADIENT), stage < S - 1);
      }
      rp_schedule_fini(&s);
      rp_schedule_fini(&l);
    }
}

/* Receiving one ahead needs one more, until there is nothing more to receive. */
static void test_receive_ahead(void **state) {
  (void)state;
  struct rp_schedule s;
  assert_int_equal(rp_schedule_generate("1f1b", 4, 1, 8, &s, NULL), RP_OK);
  for (uint32_t ahead = 0; ahead <= 9; ahead++) {
    const struct rp_lifetime_options options = {.receive_ahead = ahead};
    assert_int_equal(slots_of(&s, &options, 1, RP_DIRECTION_ACTIVATION, NULL).depth,
                     min32(8, 3 + (int32_t)ahead));
    assert_int_equal(slots_of(&s, &options, 1, RP_DIRECTION_GRADIENT, NULL).depth,
                     min32(8, 1 + (int32_t)ahead));
  }
  rp_schedule_fini(&s);
}

static void test_forward_only(void **state) {
  (void)state;
  static const char text[] = "0F0,0SEND_F0,0F1,0SEND_F1,0F2,0SEND_F2\n1RECV_F0,1F0,1RECV_F1,1F1,1RECV_F2,1F2";
  struct rp_schedule s;
  size_t buffers;
  assert_int_equal(rp_schedule_parse(text, sizeof(text) - 1, &s, NULL), RP_OK);
  assert_int_equal(slots_of(&s, NULL, 1, RP_DIRECTION_ACTIVATION, &buffers).depth, 1);
  assert_int_equal(buffers, 3);
  rp_schedule_fini(&s);
  /* Evaluating with a training schedule: no gradients, and the forward is the last reader. */
  assert_int_equal(rp_schedule_generate("gpipe", 3, 1, 5, &s, NULL), RP_OK);
  const struct rp_lifetime_options options = {.forward_only = true};
  assert_int_equal(slots_of(&s, &options, 1, RP_DIRECTION_ACTIVATION, NULL).depth, 1);
  slots_of(&s, &options, 1, RP_DIRECTION_GRADIENT, &buffers);
  assert_int_equal(buffers, 0);
  rp_schedule_fini(&s);
}

/* Where backward is split, both directions stay live to the weight part. */
static void test_split_backward(void **state) {
  (void)state;
  static const char text[] = "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0I0,0RECV_B1,0I1,0W0,0W1\n"
                             "1RECV_F0,1F0,1I0,1SEND_B0,1RECV_F1,1F1,1I1,1SEND_B1,1W0,1W1";
  struct rp_schedule s;
  assert_int_equal(rp_schedule_parse(text, sizeof(text) - 1, &s, NULL), RP_OK);
  assert_int_equal(rp_schedule_check(&s, NULL), RP_OK);
  assert_int_equal(depth(&s, 1, RP_DIRECTION_ACTIVATION), 2);
  assert_int_equal(depth(&s, 0, RP_DIRECTION_GRADIENT), 2);
  rp_schedule_fini(&s);
}

/* How many actions read what stage 1 received as activation, and as gradient. */
static void readers_of_stage_1(const struct rp_schedule *s, bool forward_only, uint32_t out[2]) {
  const struct rp_lifetime_options options = {.forward_only = forward_only};
  struct rp_received_set set;
  assert_int_equal(rp_schedule_lifetimes(s, &options, &set), RP_OK);
  out[0] = out[1] = 0;
  for (size_t i = 0; i < set.rank_begin[s->ranks]; i++) {
    if (set.items[i].stage != 1) continue;
    uint32_t *readers = &out[set.items[i].direction == RP_DIRECTION_GRADIENT];
    assert_true(*readers == 0 || *readers == set.items[i].readers);
    *readers = set.items[i].readers;
  }
  rp_received_set_fini(&set);
}

static void test_readers(void **state) {
  (void)state;
  static const char split[] = "0F0,0SEND_F0,0RECV_B0,0I0,0W0\n"
                              "1RECV_F0,1F0,1SEND_F0,1RECV_B0,1I0,1SEND_B0,1W0\n"
                              "2RECV_F0,2F0,2I0,2SEND_B0,2W0";
  struct rp_schedule s;
  uint32_t readers[2];
  assert_int_equal(rp_schedule_generate("1f1b", 3, 1, 5, &s, NULL), RP_OK);
  readers_of_stage_1(&s, false, readers);
  assert_true(readers[0] == 2 && readers[1] == 1);
  readers_of_stage_1(&s, true, readers);
  assert_true(readers[0] == 1 && readers[1] == 0);
  rp_schedule_fini(&s);
  assert_int_equal(rp_schedule_parse(split, sizeof(split) - 1, &s, NULL), RP_OK);
  readers_of_stage_1(&s, false, readers);
  assert_true(readers[0] == 3 && readers[1] == 2);
  rp_schedule_fini(&s);
}

/* Interleaved: the closed form for posts directly before use. */
static void test_interleaved_late(void **state) {
  (void)state;
  for (int32_t P = 2; P <= 8; P += 2)
    for (int32_t V = 1; V <= 4; V++)
      for (int32_t N = P; N <= 4 * P; N += P) {
        struct rp_schedule s;
        assert_int_equal(rp_schedule_generate("interleaved_1f1b", P, V, N, &s, NULL), RP_OK);
        int32_t m = N / (N / P);
        for (int32_t stage = 0; stage < P * V; stage++) {
          int32_t r = stage % P, v = stage / P, D = 2 * (V - 1 - v) * m + 2 * (P - 1 - r);
          int32_t whole = D / (V * m) * m, rest = D % (V * m) + 1;
          int32_t expected = min32(N, whole + min32(m, rest));
          assert_int_equal(depth_late(&s, stage, RP_DIRECTION_ACTIVATION), stage ? expected : 0);
          assert_int_equal(depth_late(&s, stage, RP_DIRECTION_GRADIENT), stage < P * V - 1);
          assert_true(depth(&s, stage, RP_DIRECTION_GRADIENT) <= (uint32_t)P);
          assert_true(slots_of(&s, NULL, stage, RP_DIRECTION_ACTIVATION, NULL).ring);
        }
        rp_schedule_fini(&s);
      }
}

static void test_looped_bfs(void **state) {
  (void)state;
  struct rp_schedule s;
  assert_int_equal(rp_schedule_generate("looped_bfs", 4, 2, 8, &s, NULL), RP_OK);
  for (int32_t stage = 0; stage < 8; stage++) {
    assert_int_equal(depth(&s, stage, RP_DIRECTION_ACTIVATION), stage ? 8 : 0);
    assert_int_equal(depth_late(&s, stage, RP_DIRECTION_GRADIENT), stage < 7);
    assert_int_equal(depth(&s, stage, RP_DIRECTION_GRADIENT), stage == 7 ? 0 : stage == 3 ? 8 : 1);
  }
  rp_schedule_fini(&s);
}

/* Slots are handed out in the order of posting, so moved posts must come out in their new order. */
static void test_order_of_posting(void **state) {
  (void)state;
  struct rp_schedule s;
  assert_int_equal(rp_schedule_generate("interleaved_1f1b", 4, 3, 12, &s, NULL), RP_OK);
  const struct rp_lifetime_options options[] = {
      {0}, {.post_at_use = true}, {.receive_ahead = 3}, {.post_at_use = true, .receive_ahead = 1}};
  for (size_t o = 0; o < sizeof(options) / sizeof(options[0]); o++) {
    struct rp_received_set set;
    assert_int_equal(rp_schedule_lifetimes(&s, &options[o], &set), RP_OK);
    for (int32_t r = 0; r < s.ranks; r++)
      for (size_t i = set.rank_begin[r] + 1; i < set.rank_begin[r + 1]; i++)
        assert_true(set.items[i - 1].interval.begin <= set.items[i].interval.begin);
    rp_received_set_fini(&set);
  }
  rp_schedule_fini(&s);
}

static void test_needs_lowering(void **state) {
  (void)state;
  struct rp_schedule s;
  struct rp_received_set set;
  assert_int_equal(rp__schedule_compute_order("1f1b", 2, 1, 2, &s, NULL), RP_OK);
  assert_int_equal(rp_schedule_lifetimes(&s, NULL, &set), RP_ERROR_STATE);
  rp_schedule_fini(&s);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_gpipe),
      cmocka_unit_test(test_1f1b),
      cmocka_unit_test(test_receive_ahead),
      cmocka_unit_test(test_forward_only),
      cmocka_unit_test(test_split_backward),
      cmocka_unit_test(test_readers),
      cmocka_unit_test(test_interleaved_late),
      cmocka_unit_test(test_looped_bfs),
      cmocka_unit_test(test_needs_lowering),
      cmocka_unit_test(test_order_of_posting),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
