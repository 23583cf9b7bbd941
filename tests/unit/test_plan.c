/* Plans: numbers of pools, ranks and totals, slots that never clash at any granularity, and refusals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "pool/plan.h"

static struct rp_plan *plan_named(const char *name, int32_t ranks, int32_t chunks, int32_t microbatches,
                                  const struct rp_plan_options *options) {
  struct rp_plan *plan;
  char message[256] = "";
  rp_status status =
      rp_plan_create_named(name, ranks, chunks, microbatches, options, &plan, message, sizeof(message));
  if (status) print_error("%s\n", message);
  assert_int_equal(status, RP_OK);
  return plan;
}

/* The job of the brief: 1F1B, 8 stages, 64 microbatches, 436 MiB each, slack 2. */
static void test_1f1b(void **state) {
  (void)state;
  const uint64_t bytes = 436u << 20;
  struct rp_plan_options options = RP_PLAN_OPTIONS_INIT;
  options.tensor_bytes = &bytes;
  options.tensor_count = 1;
  options.slack = 2;
  struct rp_plan *plan = plan_named("1f1b", 8, 1, 64, &options);
  assert_int_equal(rp_plan_rank_count(plan), 8);
  assert_int_equal(rp_plan_pool_count(plan), 14);
  struct rp_plan_pool pool;
  assert_int_equal(rp_plan_pool_get(plan, 5, &pool),
                   RP_OK); /* rank 0: gradient; 1, 2: both; 3: activation first */
  assert_int_equal(pool.stage, 3);
  assert_int_equal(pool.direction, RP_PLAN_ACTIVATION);
  assert_int_equal(pool.buffers, 64);
  assert_int_equal(pool.depth, 5);
  assert_int_equal(pool.slots, 7);
  assert_int_equal(pool.existing_slots, 7);
  assert_true(pool.ring);
  assert_int_equal(pool.bytes_stock, 64 * bytes);
  assert_int_equal(pool.bytes_pooled, 7 * bytes);
  assert_int_equal(rp_plan_pool_get(plan, 6, &pool), RP_OK);
  assert_int_equal(pool.direction, RP_PLAN_GRADIENT);
  assert_int_equal(pool.depth, 1);
  assert_int_equal(pool.slots, 3);
  assert_int_equal(pool.existing_slots, 7); /* existing practice keeps one ring size for both directions */
  assert_int_equal(rp_plan_pool_get(plan, 14, &pool), RP_ERROR_NOT_FOUND);
  struct rp_plan_rank rank;
  assert_int_equal(rp_plan_rank_get(plan, 3, &rank), RP_OK);
  assert_int_equal(rank.slots[RP_PLAN_STAGE], 6);
  assert_int_equal(rank.bytes_stock, 128 * bytes);
  assert_int_equal(rank.bytes_pooled, 10 * bytes);
  struct rp_plan_totals totals;
  rp_plan_totals_get(plan, &totals);
  assert_int_equal(totals.buffers, 14 * 64);
  assert_int_equal(totals.slots, (7 + 6 + 5 + 4 + 3 + 2 + 1) + 7 * 1 + 14 * 2);
  uint32_t slot;
  for (int32_t k = 0; k < 64; k++) {
    assert_int_equal(rp_plan_slot(plan, 3, RP_PLAN_ACTIVATION, k, &slot), RP_OK);
    assert_int_equal(slot, k % 7);
  }
  assert_int_equal(rp_plan_slot(plan, 0, RP_PLAN_ACTIVATION, 0, &slot), RP_ERROR_NOT_FOUND);
  assert_int_equal(rp_plan_slot(plan, 3, RP_PLAN_ACTIVATION, 64, &slot), RP_ERROR_NOT_FOUND);
  assert_int_equal(rp_plan_slot(plan, -1, RP_PLAN_GRADIENT, 0, &slot), RP_ERROR_NOT_FOUND);
  rp_plan_destroy(plan);
}

/* Whatever the granularity and the slack: tenants of one slot of one class never overlap, and no class has
 * more slots than its depth plus slack. */
static void assert_sound(const struct rp_plan *plan) {
  size_t members = 0;
  for (size_t n = 0; n < plan->class_count; n++) {
    const struct rp_plan_class *c = &plan->classes[n];
    members += c->buffers;
    assert_true(c->slots <= c->depth + plan->options.slack);
    for (size_t i = c->first; i < c->first + c->buffers; i++) {
      const struct rp_plan_item *a = &plan->items[plan->members[i]];
      assert_true(plan->slots[i] < c->slots);
      assert_int_equal(a->rank, c->rank);
      if (c->slot_bytes) assert_true(a->bytes <= c->slot_bytes[plan->slots[i]]);
      if (!c->slot_bytes) assert_int_equal(a->bytes, c->buffer_bytes);
      if (c->ring) assert_int_equal(plan->slots[i], (i - c->first) % c->slots);
      uint32_t slot;
      enum rp_plan_direction d =
          a->direction == RP_DIRECTION_GRADIENT ? RP_PLAN_GRADIENT : RP_PLAN_ACTIVATION;
      assert_int_equal(rp_plan_slot(plan, a->stage, d, a->microbatch, &slot), RP_OK);
      assert_int_equal(slot, plan->slots[i]);
      for (size_t j = i + 1; j < c->first + c->buffers; j++) {
        const struct rp_plan_item *b = &plan->items[plan->members[j]];
        bool overlap = a->interval.begin <= b->interval.end && b->interval.begin <= a->interval.end;
        assert_false(overlap && plan->slots[i] == plan->slots[j]);
      }
    }
  }
  assert_int_equal(members, plan->item_count);
}

static void test_every_granularity(void **state) {
  (void)state;
  static const char *const names[] = {"gpipe", "1f1b", "interleaved_1f1b", "looped_bfs"};
  const uint64_t bytes[] = {100, 20};
  for (size_t n = 0; n < 4; n++)
    for (int32_t chunks = 1; chunks <= (n < 2 ? 1 : 4); chunks *= 2)
      for (int g = 0; g < RP_PLAN_GRANULARITY_COUNT; g++)
        for (uint32_t slack = 0; slack <= 3; slack += 3)
          for (uint32_t ahead = 0; ahead <= 2; ahead += 2) {
            struct rp_plan_options options = RP_PLAN_OPTIONS_INIT;
            options.tensor_bytes = bytes;
            options.tensor_count = 2;
            options.granularity = g;
            options.slack = slack;
            options.receive_ahead = ahead;
            struct rp_plan *plan = plan_named(names[n], 4, chunks, 8, &options);
            assert_sound(plan);
            for (size_t r = 0; r < rp_plan_rank_count(plan); r++) {
              struct rp_plan_rank rank;
              assert_int_equal(rp_plan_rank_get(plan, r, &rank), RP_OK);
              assert_true(rank.slots[RP_PLAN_RANK] <= rank.slots[RP_PLAN_DIRECTION]);
              assert_true(rank.slots[RP_PLAN_DIRECTION] <= rank.slots[RP_PLAN_STAGE]);
            }
            rp_plan_destroy(plan);
          }
}

/* Sharing between stages pays for interleaved schedules. */
static void test_sharing_saves(void **state) {
  (void)state;
  struct rp_plan_options options = RP_PLAN_OPTIONS_INIT;
  struct rp_plan *plan = plan_named("interleaved_1f1b", 4, 2, 16, &options);
  struct rp_plan_rank rank;
  assert_int_equal(rp_plan_rank_get(plan, 0, &rank), RP_OK);
  assert_true(rank.slots[RP_PLAN_RANK] < rank.slots[RP_PLAN_STAGE]);
  rp_plan_destroy(plan);
}

/* Random items of several sizes: mixing is sound, and never takes more bytes than not mixing. */
static void test_mixed_sizes(void **state) {
  (void)state;
  srand(5);
  uint32_t better = 0;
  for (int n = 0; n < 500; n++) {
    size_t count = (size_t)(rand() % 40 + 1);
    struct rp_plan *plans[2];
    struct rp_plan_item drawn[40];
    int32_t next_mb[6] = {0};
    for (size_t i = 0; i < count; i++) {
      int32_t stage = rand() % 3;
      enum rp_direction d = rand() % 2 ? RP_DIRECTION_GRADIENT : RP_DIRECTION_ACTIVATION;
      uint64_t begin = i * 2 + (uint64_t)(rand() % 5);
      drawn[i] = (struct rp_plan_item){.interval = {begin, begin + (uint64_t)(rand() % 12)},
                                       .bytes = (uint64_t)(stage + 1) * 64,
                                       .rank = 0,
                                       .stage = stage,
                                       .microbatch = next_mb[2 * stage + (d == RP_DIRECTION_GRADIENT)]++,
                                       .direction = d};
    }
    for (int mixed = 0; mixed < 2; mixed++) {
      struct rp_plan_options options = RP_PLAN_OPTIONS_INIT;
      options.granularity = RP_PLAN_RANK;
      options.mixed_sizes = mixed;
      options.slack = (uint32_t)(n % 2);
      struct rp_plan_item *items = malloc(count * sizeof(*items));
      assert_non_null(items);
      memcpy(items, drawn, count * sizeof(*items));
      assert_int_equal(rp__plan_build(items, count, 1, 3, 40, &options, &plans[mixed]), RP_OK);
      assert_sound(plans[mixed]);
    }
    struct rp_plan_totals separate, together;
    rp_plan_totals_get(plans[0], &separate);
    rp_plan_totals_get(plans[1], &together);
    assert_true(together.bytes_pooled <= separate.bytes_pooled);
    assert_int_equal(together.bytes_stock, separate.bytes_stock);
    better += together.bytes_pooled < separate.bytes_pooled;
    rp_plan_destroy(plans[0]);
    rp_plan_destroy(plans[1]);
  }
  assert_true(better > 50);
}

static void test_refusals(void **state) {
  (void)state;
  struct rp_plan *plan = NULL;
  char message[256];
  struct rp_plan_options options = RP_PLAN_OPTIONS_INIT;
  assert_int_equal(rp_plan_create_named("2f2b", 4, 1, 8, &options, &plan, message, sizeof(message)),
                   RP_ERROR_NOT_FOUND);
  assert_non_null(strstr(message, "2f2b"));
  assert_int_equal(rp_plan_create_named("1f1b", 4, 1, 0, &options, &plan, message, sizeof(message)),
                   RP_ERROR_SCHEDULE);
  assert_int_equal(rp_plan_create_named("1f1b", 4, 2, 8, &options, &plan, message, sizeof(message)),
                   RP_ERROR_SCHEDULE);
  assert_int_equal(
      rp_plan_create_named("1f1b", INT32_MAX, 2, INT32_MAX, &options, &plan, message, sizeof(message)),
      RP_ERROR_SCHEDULE);
  assert_int_equal(
      rp_plan_create_named("interleaved_1f1b", 4, 2, 9, &options, &plan, message, sizeof(message)),
      RP_ERROR_SCHEDULE);
  assert_non_null(strstr(message, "divide"));
  assert_int_equal(rp_plan_create_csv("0F0,0B0,x", 9, &options, &plan, message, sizeof(message)),
                   RP_ERROR_SYNTAX);
  assert_non_null(strstr(message, "row 1, column 3: x: "));
  assert_int_equal(rp_plan_create_csv("0F0,0B0,x", 9, &options, &plan, NULL, 0), RP_ERROR_SYNTAX);
  options.granularity = 3;
  assert_int_equal(rp_plan_create_named("1f1b", 4, 1, 8, &options, &plan, message, sizeof(message)),
                   RP_ERROR_INVALID);
  options.granularity = 0;
  options.size = 8;
  assert_int_equal(rp_plan_create_named("1f1b", 4, 1, 8, &options, &plan, message, sizeof(message)),
                   RP_ERROR_INVALID);
  options.size = sizeof(options);
  const uint64_t huge[] = {UINT64_MAX / 2, UINT64_MAX / 2, 2};
  options.tensor_bytes = huge;
  options.tensor_count = 3;
  assert_int_equal(rp_plan_create_named("1f1b", 4, 1, 8, &options, &plan, message, sizeof(message)),
                   RP_ERROR_LIMIT);
  options.tensor_count = 1;
  assert_int_equal(rp_plan_create_named("1f1b", 4, 1, 8, &options, &plan, message, sizeof(message)),
                   RP_ERROR_LIMIT);
  assert_null(plan);
  rp_plan_destroy(NULL);
}

static void test_supports(void **state) {
  (void)state;
  const char *reason = NULL;
  assert_int_equal(rp_schedule_supports_pool("gpipe", &reason), RP_POOL_GRADIENTS);
  assert_non_null(strstr(reason, "all of them are live"));
  assert_int_equal(rp_schedule_supports_pool("1f1b", NULL), RP_POOL_ACTIVATIONS | RP_POOL_GRADIENTS);
  assert_int_equal(rp_schedule_supports_pool("ScheduleInterleaved1F1B", NULL),
                   RP_POOL_ACTIVATIONS | RP_POOL_GRADIENTS);
  assert_int_equal(rp_schedule_supports_pool("looped_bfs", NULL), RP_POOL_GRADIENTS);
  assert_int_equal(rp_schedule_supports_pool("LoopedBFS", NULL), RP_POOL_GRADIENTS);
  assert_int_equal(rp_schedule_supports_pool("mine", &reason), RP_ERROR_NOT_FOUND);
  assert_int_equal(rp_schedule_supports_pool(NULL, &reason), RP_ERROR_NOT_FOUND);
}

/* Wrong options are said in words before anything is done; none at all are the defaults. */
static void test_options(void **state) {
  (void)state;
  const struct rp_plan_options good = RP_PLAN_OPTIONS_INIT;
  const struct {
    struct rp_plan_options options;
    const char *words;
  } cases[] = {
      {{0}, "RP_PLAN_OPTIONS_INIT"},
      {{.size = sizeof(good), .granularity = RP_PLAN_GRANULARITY_COUNT}, "granularity"},
      {{.size = sizeof(good), .granularity = -1}, "granularity"},
      {{.size = sizeof(good), .tensor_count = 1}, "tensor_bytes"},
      {{.size = sizeof(good), .torch_version = 205}, "torch_version"},
  };
  struct rp_plan *const untouched = (struct rp_plan *)&good, *plan = untouched;
  for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
    char named[128] = "", csv[128] = "";
    assert_int_equal(rp_plan_create_named("1f1b", 65536, 1, 1024, &cases[i].options, &plan, named, 128),
                     RP_ERROR_INVALID);
    assert_int_equal(rp_plan_create_csv("?", 1, &cases[i].options, &plan, csv, 128), RP_ERROR_INVALID);
    assert_non_null(strstr(named, cases[i].words));
    assert_string_equal(named, csv);
    assert_ptr_equal(plan, untouched);
  }
  assert_int_equal(rp_plan_create_named("1f1b", 2, 1, 4, NULL, &plan, NULL, 0), RP_OK);
  assert_int_equal(rp_plan_pool_count(plan), 2);
  rp_plan_destroy(plan);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_options),           cmocka_unit_test(test_1f1b),
      cmocka_unit_test(test_every_granularity), cmocka_unit_test(test_sharing_saves),
      cmocka_unit_test(test_mixed_sizes),       cmocka_unit_test(test_refusals),
      cmocka_unit_test(test_supports),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
