/* What ends and what does not where every rank runs its groups of transfers in order, posting early, and
 * random schedules. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "schedule_tools.h"

static struct rp_schedule parse(const char *text) {
  struct rp_schedule schedule;
  assert_int_equal(rp_schedule_parse(text, strlen(text), &schedule, NULL), RP_OK);
  assert_true(schedule.lowered);
  return schedule;
}

/** Joins actions `first` and the one after it of a rank. */
static void join(struct rp_schedule *schedule, int32_t rank, size_t first) {
  schedule->rank[rank].actions[first].group = schedule->rank[rank].actions[first + 1].group = 1;
}

/* Both ranks receive the other's message before they send their own: only one group for both can do that. */
static void crossing_transfers_need_a_group(void **state) {
  (void)state;
  static const char text[] = "0F0,0F1,0SEND_F0,0RECV_B0,0SEND_F1,0B0,0RECV_B1,0B1\n"
                             "1RECV_F0,1F0,1B0,1RECV_F1,1SEND_B0,1F1,1B1,1SEND_B1\n";
  struct rp_schedule schedule = parse(text);
  assert_false(rp_schedule_ends(&schedule)); /* 0 waits for the gradient, 1 for the activation */
  join(&schedule, 1, 3);
  assert_true(rp_schedule_ends(&schedule));
  rp_schedule_fini(&schedule);
  schedule = parse(text);
  join(&schedule, 0, 3);
  assert_true(rp_schedule_ends(&schedule));
  rp_schedule_fini(&schedule);
}

/* A transfer comes after what the rank was told to compute before, also where that is for somebody else. */
static void a_transfer_waits_for_earlier_computations(void **state) {
  (void)state;
  struct rp_schedule schedule = parse("0F0,0SEND_F0,0RECV_B0,0B0\n"
                                      "1RECV_F0,1F0,1B0,1SEND_B0\n");
  assert_true(rp_schedule_ends(&schedule));
  rp_schedule_fini(&schedule);
  schedule = parse("0F0,0F1,0SEND_F0,0RECV_B0,0B0,0SEND_F1,0RECV_B1,0B1\n"
                   "1RECV_F0,1F0,1B0,1RECV_F1,1F1,1SEND_B0,1B1,1SEND_B1\n");
  assert_false(rp_schedule_ends(&schedule)); /* SEND_B0 comes after F1, which needs what 0 sends after B0 */
  rp_schedule_fini(&schedule);
}

static void named_schedules_end(void **state) {
  (void)state;
  static const char *const names[] = {"gpipe", "1f1b", "interleaved_1f1b", "looped_bfs"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
    for (int32_t ranks = 1; ranks <= 4; ranks++) {
      struct rp_schedule schedule, forwards;
      assert_int_equal(rp_schedule_generate(names[i], ranks, i < 2 ? 1 : 2, 12, &schedule, NULL), RP_OK);
      assert_true(rp_schedule_ends(&schedule));
      assert_true(rp_schedule_forwards(&schedule, &forwards));
      assert_true(rp_schedule_ends(&forwards));
      rp_schedule_fini(&forwards);
      rp_schedule_fini(&schedule);
    }
}

static size_t place(const struct rp_rank_schedule *list, enum rp_action_kind kind, int32_t microbatch) {
  for (size_t i = 0; i < list->count; i++)
    if (list->actions[i].kind == kind && list->actions[i].microbatch == microbatch) return i;
  fail();
  return 0;
}

static void early_posts_come_before_the_backward(void **state) {
  (void)state;
  struct rp_schedule before, after;
  assert_int_equal(rp_schedule_generate("1f1b", 3, 1, 6, &before, NULL), RP_OK);
  assert_true(rp_schedule_copy(&before, &after));
  assert_true(rp_schedule_post_early(&after));
  for (int32_t m = 0; m + 2 < 6; m++) { /* stage 1 has two in flight, now three */
    size_t backward = place(&before.rank[1], RP_ACTION_BACKWARD, m);
    assert_true(place(&before.rank[1], RP_ACTION_RECV_F, m + 2) > backward);
    backward = place(&after.rank[1], RP_ACTION_BACKWARD, m);
    assert_true(place(&after.rank[1], RP_ACTION_RECV_F, m + 2) < backward);
  }
  rp_schedule_fini(&before);
  rp_schedule_fini(&after);
}

static void random_schedules_are_correct(void **state) {
  (void)state;
  size_t grouped = 0, split = 0, ahead = 0;
  for (uint64_t seed = 0; seed < 300; seed++) {
    struct rp_schedule schedule;
    struct rp_schedule_error error = {.message = ""};
    assert_true(rp_schedule_random(seed, 0, 0, 0, &schedule));
    if (rp_schedule_check(&schedule, &error) != RP_OK) fail_msg("seed %d: %s", (int)seed, error.message);
    if (rp_schedule_check_one_channel(&schedule, &error) != RP_OK)
      fail_msg("seed %d: %s", (int)seed, error.message);
    assert_true(rp_schedule_ends(&schedule));
    for (int32_t r = 0; r < schedule.ranks; r++)
      for (size_t i = 0; i < schedule.rank[r].count; i++) {
        const struct rp_action *a = &schedule.rank[r].actions[i];
        grouped += a->group != 0;
        split += a->kind == RP_ACTION_BACKWARD_WEIGHT;
        ahead += a->kind == RP_ACTION_RECV_F && i + 1 < schedule.rank[r].count &&
                 (a[1].kind != RP_ACTION_FORWARD || a[1].microbatch != a->microbatch);
      }
    rp_schedule_fini(&schedule);
  }
  assert_true(grouped > 1000);
  assert_true(split > 1000);
  assert_true(ahead > 1000);
}

static void a_seed_is_one_schedule(void **state) {
  (void)state;
  char *text[3];
  for (int i = 0; i < 3; i++) {
    struct rp_schedule schedule;
    size_t length;
    assert_true(rp_schedule_random(i < 2 ? 7 : 8, 3, 2, 5, &schedule));
    assert_int_equal(schedule.ranks, 3);
    assert_int_equal(schedule.stages, 6);
    assert_int_equal(schedule.microbatches, 5);
    assert_int_equal(rp_schedule_print(&schedule, &text[i], &length), RP_OK);
    rp_schedule_fini(&schedule);
  }
  assert_string_equal(text[0], text[1]);
  assert_string_not_equal(text[0], text[2]);
  for (int i = 0; i < 3; i++)
    free(text[i]);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(crossing_transfers_need_a_group),
      cmocka_unit_test(a_transfer_waits_for_earlier_computations),
      cmocka_unit_test(named_schedules_end),
      cmocka_unit_test(early_posts_come_before_the_backward),
      cmocka_unit_test(random_schedules_are_correct),
      cmocka_unit_test(a_seed_is_one_schedule),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
