/* Random schedules: any order that respects the dependencies, any placement of stages, backward split or not.
 * Each is lowered, checked and planned, and the plan is executed slot by slot by a simulation that shares no
 * code with the planner. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "pool/plan.h"
#include "pool/schedule_internal.h"

#define CASES 10000
#define MOST_STAGES 8
#define MOST_MICROBATCHES 6

static uint64_t random_state;

static int32_t random_below(int32_t limit) { /* xorshift64* */
  random_state ^= random_state >> 12;
  random_state ^= random_state << 25;
  random_state ^= random_state >> 27;
  return (int32_t)(((random_state * 2685821657736338717u) >> 33) % (uint64_t)limit);
}

/* --- a random order --- */

struct draw {
  int32_t stages, microbatches, ranks;
  int32_t home[MOST_STAGES];
  bool split[MOST_STAGES][MOST_MICROBATCHES];
  bool done[MOST_STAGES][MOST_MICROBATCHES][3]; /* F, B or I, W */
};

static bool can_do(const struct draw *d, int32_t s, int32_t k, int what) {
  if (d->done[s][k][what]) return false;
  if (what == 0) return s == 0 || d->done[s - 1][k][0];
  if (what == 1) return d->done[s][k][0] && (s == d->stages - 1 || d->done[s + 1][k][1]);
  return d->split[s][k] && d->done[s][k][1];
}

/* Makes compute-only text by doing random possible things until everything is done. */
static struct rp_schedule draw_schedule(void) {
  struct draw d = {.stages = random_below(MOST_STAGES) + 1,
                   .microbatches = random_below(MOST_MICROBATCHES) + 1};
  d.ranks = random_below(d.stages) + 1;
  int placement = random_below(3); /* loop, V, anything */
  for (int32_t s = 0; s < d.stages; s++) {
    int32_t round = s / d.ranks, at = s % d.ranks;
    d.home[s] = placement == 0   ? at
                : placement == 1 ? (round % 2 ? d.ranks - 1 - at : at)
                                 : random_below(d.ranks);
    for (int32_t k = 0; k < d.microbatches; k++)
      d.split[s][k] = random_below(3) == 0;
  }
  struct rp_schedule schedule;
  assert_int_equal(rp__schedule_init(&schedule, d.ranks, d.stages, d.microbatches), RP_OK);
  struct rp__row *rows = calloc((size_t)d.ranks, sizeof(*rows));
  assert_non_null(rows);
  int32_t eager = random_below(4); /* how much the draw prefers backwards */
  for (bool any = true; any;) {
    struct rp_action possible[3 * MOST_STAGES * MOST_MICROBATCHES];
    int32_t count = 0;
    for (int32_t s = 0; s < d.stages; s++)
      for (int32_t k = 0; k < d.microbatches; k++)
        for (int what = 0; what < 3; what++)
          if (can_do(&d, s, k, what))
            possible[count++] = (struct rp_action){(enum rp_action_kind)what, s, k, 0};
    any = count > 0;
    if (!any) break;
    struct rp_action a = possible[random_below(count)];
    for (int32_t again = 0; again < eager && (int)a.kind == 0; again++)
      a = possible[random_below(count)];
    int what = (int)a.kind;
    d.done[a.stage][a.microbatch][what] = true;
    enum rp_action_kind backward =
        d.split[a.stage][a.microbatch] ? RP_ACTION_BACKWARD_INPUT : RP_ACTION_BACKWARD;
    rp__row_push(&rows[d.home[a.stage]],
                 what == 0   ? RP_ACTION_FORWARD
                 : what == 1 ? backward
                             : RP_ACTION_BACKWARD_WEIGHT,
                 a.stage, a.microbatch, 0);
  }
  for (int32_t s = 0; s < d.stages; s++)
    schedule.stage_rank[s] = d.home[s];
  assert_int_equal(rp__schedule_take_rows(&schedule, rows), RP_OK);
  return schedule;
}

/* --- the witness --- */

struct tenant {
  bool live;
  int32_t stage, microbatch;
  bool gradient;
};

/* Walks one rank's list, keeping what is live, and returns the most at once among those that `wanted` picks.
 */
static uint32_t most_live(const struct rp_schedule *s, int32_t rank, int32_t stage, int gradient) {
  struct tenant live[2 * MOST_STAGES * MOST_MICROBATCHES];
  size_t used = 0;
  uint32_t now = 0, most = 0;
  for (size_t i = 0; i < s->rank[rank].count; i++) {
    const struct rp_action *a = &s->rank[rank].actions[i];
    bool receives = a->kind == RP_ACTION_RECV_F || a->kind == RP_ACTION_RECV_B;
    bool is_gradient = a->kind == RP_ACTION_RECV_B;
    if (receives && (stage < 0 || stage == a->stage) && (gradient < 0 || gradient == (int)is_gradient)) {
      live[used++] = (struct tenant){true, a->stage, a->microbatch, is_gradient};
      if (++now > most) most = now;
    }
    if (a->kind != RP_ACTION_BACKWARD && a->kind != RP_ACTION_BACKWARD_WEIGHT) continue;
    for (size_t j = 0; j < used; j++)
      if (live[j].live && live[j].stage == a->stage && live[j].microbatch == a->microbatch) {
        live[j].live = false;
        now--;
      }
  }
  return most;
}

/* Runs the assignment: a receive must find its slot empty. Slots of different classes are told apart by
 * `class_of`. */
static void run_slots(const struct rp_schedule *s, const struct rp_plan *plan, int32_t rank,
                      int granularity) {
  static int32_t owner[2 * MOST_STAGES + 2]
                      [2 * MOST_STAGES * MOST_MICROBATCHES]; /* stage * microbatches + mb + 1 */
  memset(owner, 0, sizeof(owner));
  for (size_t i = 0; i < s->rank[rank].count; i++) {
    const struct rp_action *a = &s->rank[rank].actions[i];
    for (int g = 0; g < 2; g++) {
      bool receives = a->kind == (g ? RP_ACTION_RECV_B : RP_ACTION_RECV_F);
      bool ends = a->kind == RP_ACTION_BACKWARD || a->kind == RP_ACTION_BACKWARD_WEIGHT;
      int32_t pool = granularity == RP_PLAN_STAGE       ? 2 * a->stage + g
                     : granularity == RP_PLAN_DIRECTION ? g
                                                        : 0;
      uint32_t slot;
      if (!receives && !ends) continue;
      rp_status found =
          rp_plan_slot(plan, a->stage, g ? RP_PLAN_GRADIENT : RP_PLAN_ACTIVATION, a->microbatch, &slot);
      int32_t me = (a->stage * s->microbatches + a->microbatch) * 2 + g + 1;
      if (receives) {
        assert_int_equal(found, RP_OK);
        assert_int_equal(owner[pool][slot], 0);
        owner[pool][slot] = me;
      } else if (!found) {
        assert_int_equal(owner[pool][slot], me);
        owner[pool][slot] = 0;
      }
    }
  }
}

static void judge_rank(const struct rp_schedule *s, const struct rp_plan *plan, int32_t rank) {
  struct rp_plan_rank numbers;
  uint32_t by_stage = 0;
  assert_int_equal(rp_plan_rank_get(plan, (size_t)rank, &numbers), RP_OK);
  for (int32_t stage = 0; stage < s->stages; stage++)
    for (int g = 0; g < 2; g++)
      if (s->stage_rank[stage] == rank) by_stage += most_live(s, rank, stage, g);
  assert_int_equal(numbers.slots[RP_PLAN_STAGE], by_stage);
  assert_int_equal(numbers.slots[RP_PLAN_DIRECTION], most_live(s, rank, -1, 0) + most_live(s, rank, -1, 1));
  assert_int_equal(numbers.slots[RP_PLAN_RANK], most_live(s, rank, -1, -1));
  run_slots(s, plan, rank, plan->options.granularity);
}

static void judge_plan(const struct rp_schedule *s, int granularity, uint32_t slack) {
  struct rp_plan_options options = RP_PLAN_OPTIONS_INIT;
  options.granularity = granularity;
  options.slack = slack;
  struct rp_plan *plan;
  assert_int_equal(rp__plan_from_schedule(s, &options, &plan), RP_OK);
  for (int32_t r = 0; r < s->ranks; r++)
    judge_rank(s, plan, r);
  for (size_t i = 0; i < plan->class_count; i++) {
    const struct rp_plan_class *c = &plan->classes[i];
    assert_int_equal(c->slots, c->depth + slack < c->buffers ? c->depth + slack : c->buffers);
  }
  for (size_t i = 0; i < plan->pool_count; i++) {
    const struct rp_plan_pool *p = &plan->pools[i];
    assert_int_equal(p->buffers, s->microbatches);
    assert_int_equal(p->depth, most_live(s, p->rank, p->stage, p->direction == RP_PLAN_GRADIENT));
  }
  rp_plan_destroy(plan);
}

static void test_random_schedules(void **state) {
  (void)state;
  random_state = 7;
  for (int n = 0; n < CASES; n++) {
    struct rp_schedule s = draw_schedule();
    struct rp_schedule_error error = {0};
    rp_status status = rp_schedule_check(&s, &error);
    if (!status) status = rp_schedule_lower_as(&s, (enum rp_lowering)(n % 3), &error);
    if (!status) status = rp_schedule_check(&s, &error);
    if (status) print_error("case %d: %s: %s\n", n, error.token, error.message);
    assert_int_equal(status, RP_OK);
    judge_plan(&s, n % 3, (uint32_t)random_below(3));
    judge_plan(&s, (n + 1) % 3, 0);
    rp_schedule_fini(&s);
  }
}

/* A schedule with one action too few or twice is refused, whichever action that is. */
static void test_damaged_schedules(void **state) {
  (void)state;
  random_state = 99;
  int damaged = 0;
  for (int n = 0; n < CASES / 10; n++) {
    struct rp_schedule s = draw_schedule();
    assert_int_equal(rp_schedule_lower(&s, NULL), RP_OK);
    int32_t r = random_below(s.ranks);
    struct rp_rank_schedule *row = &s.rank[r];
    if (row->count > 0) {
      size_t i = (size_t)random_below((int32_t)row->count);
      struct rp_action kept = row->actions[i];
      bool only_one =
          s.stages * s.microbatches == 1; /* without its backward it would be a forward-only schedule */
      if (kept.microbatch >= 0 && !only_one) {
        memmove(&row->actions[i], &row->actions[i + 1], (row->count - i - 1) * sizeof(kept));
        row->count--;
        struct rp_schedule_error error = {0};
        assert_int_equal(rp_schedule_check(&s, &error), RP_ERROR_SCHEDULE);
        assert_true(error.message[0]);
        memmove(&row->actions[i + 1], &row->actions[i], (row->count - i) * sizeof(kept));
        row->count++;
        row->actions[i] = kept;
        assert_int_equal(rp_schedule_check(&s, &error), RP_OK);
        size_t j = (size_t)random_below((int32_t)row->count);
        if (j != i && row->actions[j].microbatch >= 0) {
          row->actions[j] = kept;
          assert_int_equal(rp_schedule_check(&s, &error), RP_ERROR_SCHEDULE);
        }
        damaged++;
      }
    }
    rp_schedule_fini(&s);
  }
  assert_true(damaged > CASES / 20);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_random_schedules),
      cmocka_unit_test(test_damaged_schedules),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
