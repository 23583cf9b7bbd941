/* Planned mode: pooled from the first step on, and correct where the plan does not fit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "guard_program.h"

static const struct rp_guard_options seeing = {.every_touch_seen = true};

static void quiet(struct guard_fixture *f, uint64_t slots) {
  struct rp_guard_report report = guard_look(f);
  assert_true(report.active);
  assert_int_equal(report.conflict_count, 0);
  assert_int_equal(report.pool.grown, 0);
  assert_int_equal(f->device->physical_peak_bytes, slots * MAPPED);
  rp_guard_report_fini(&report);
}

/* The same program as the plan's: no more than K slots of each class, from the first step on. */
static void a_plan_that_fits(void **state) {
  (void)state;
  for (uint32_t depth = 1; depth <= 4; depth++)
    for (uint32_t slack = 0; slack < 3; slack++) {
      struct guard_program program = guard_program_1f1b(12, depth);
      struct guard_plan plan;
      guard_program_plan(&program, slack, &plan);
      struct guard_fixture f = guard_start(&seeing, &plan.plan);
      uint64_t before = f.device->physical_peak_bytes;
      assert_true(before <= 2 * HOST_GRANULARITY); /* the alias check's */
      guard_program_alloc(&f, &program);
      guard_program_steps(&f, &program, 4);
      quiet(&f, plan.classes[0].slots + plan.classes[1].slots);
      assert_int_equal(f.waits, 0);
      guard_end(&f);
    }
}

/* A pipeline that runs forward only, which nothing but a plan of an earlier run can say. */
static void a_plan_of_inference(void **state) {
  (void)state;
  struct guard_program program = guard_program_evaluation(8);
  struct guard_plan plan;
  guard_program_plan(&program, 0, &plan);
  plan.plan.class_count = 1;
  struct guard_fixture f =
      guard_start(&(struct rp_guard_options){.every_touch_seen = true, .sends_told = true}, &plan.plan);
  guard_alloc(&f, 0, 8);
  guard_program_steps(&f, &program, 4);
  quiet(&f, plan.classes[0].slots);
  guard_end(&f);
}

/* K does not depend on N. */
static void a_plan_of_fewer_microbatches(void **state) {
  (void)state;
  struct guard_program small = guard_program_1f1b(7, 3), large = guard_program_1f1b(12, 3);
  struct guard_plan plan;
  struct guard_fixture f;
  guard_program_start(&f, &small, 1, &large, &plan);
  guard_program_steps(&f, &large, 4);
  quiet(&f, plan.classes[0].slots + plan.classes[1].slots);
  guard_end(&f);
}

/* With half of the buffers, or with more than there are, the plan may be of another schedule: nothing shares
 * before two equal steps were seen. */
static void a_plan_of_other_buffers(void **state) {
  (void)state;
  const uint32_t counts[] = {5, 6, 13};
  for (size_t i = 0; i < 3; i++) {
    struct guard_program other = guard_program_1f1b(counts[i], 3), program = guard_program_1f1b(12, 3);
    struct guard_plan plan;
    struct guard_fixture f;
    guard_program_start(&f, &other, 1, &program, &plan);
    guard_program_label(&f, &program);
    guard_program_steps(&f, &program, 2);
    assert_int_equal(f.device->physical_bytes, 24 * MAPPED);
    guard_expect_idle(&f, "plan_unproven");
    guard_program_steps(&f, &program, 3);
    struct rp_guard_report report = guard_look(&f);
    assert_int_equal(report.pool.grown, 0);
    assert_int_equal(rp_guard_violations(f.guard), 0);
    assert_true(report.active);
    rp_guard_report_fini(&report);
    guard_end(&f);
  }
}

/* Four steps of a program of 16 buffers, of which the plan lets none share in the first two. */
static struct guard_fixture learning(const struct guard_program *program, const struct guard_plan *plan) {
  struct guard_fixture f = guard_start(&seeing, &plan->plan);
  guard_program_alloc(&f, program);
  guard_program_label(&f, program);
  guard_program_steps(&f, program, 2);
  assert_int_equal(f.device->physical_bytes, 16 * MAPPED);
  guard_program_steps(&f, program, 2);
  return f;
}

/* Where a peer sends both ways, no list tells which message comes: it shares as without one. */
static void a_peer_that_sends_both_ways(void **state) {
  (void)state;
  struct guard_program program = guard_program_1f1b(8, 2);
  struct guard_plan plan;
  guard_program_plan(&program, 1, &plan);
  for (size_t i = 0; i < plan.plan.receive_count; i++)
    plan.receives[i].direction = 1 + plan.receives[i].class_index, plan.receives[i].source = 0;
  struct guard_fixture f = learning(&program, &plan);
  struct rp_guard_report report = guard_look(&f);
  assert_true(report.active);
  assert_int_equal(report.activations, 1);
  rp_guard_report_fini(&report);
  guard_end(&f);
}

/* Depth 2 planned, 3 in flight: the messages survive, and the report says why memory grew. */
static void more_in_flight_than_planned(void **state) {
  (void)state;
  struct guard_program small = guard_program_1f1b(12, 2), large = guard_program_1f1b(12, 4);
  struct guard_plan plan;
  struct guard_fixture f;
  guard_program_start(&f, &small, 0, &large, &plan);
  guard_program_steps(&f, &large, 3);
  struct rp_guard_report report = guard_look(&f);
  assert_true(report.pool.grown > 0);
  assert_int_equal(rp_guard_violations(f.guard), 0);
  assert_true(report.pool.prevented[RP_POOL_EARLY_REUSE] > 0);
  rp_guard_report_fini(&report);
  guard_end(&f);
}

/* Sizes and slots are no evidence of when a message is done with: two steps as they are, then at least so
 * many slots, and never fewer than are in flight. */
static void sizes_only(void **state) {
  (void)state;
  for (uint32_t depth = 1; depth <= 5; depth++)
    for (uint32_t slots = 1; slots <= 4; slots++) {
      struct guard_program program = guard_program_1f1b(10, depth);
      struct rp_guard_planned_class class = {.label = 1, .receive_bytes = BYTES, .slots = slots, .stage = -1};
      struct rp_guard_plan plan = {.classes = &class, .class_count = 1};
      struct guard_fixture f = guard_start(&seeing, &plan);
      guard_program_alloc(&f, &program);
      guard_program_label(&f, &program);
      for (int step = 0; step < 5; step++) {
        guard_program_run(&f, &program);
        if (step < 2) assert_int_equal(f.device->physical_bytes, 20 * MAPPED);
      }
      struct rp_guard_report report = guard_look(&f);
      uint64_t wanted = (depth > slots ? depth : slots) + slots;
      assert_true(report.active);
      assert_false(report.planned);
      assert_int_equal(report.conflict_count, 0);
      assert_int_equal(report.pool.grown, 0);
      assert_int_equal(f.device->physical_bytes, wanted * MAPPED);
      rp_guard_report_fini(&report);
      guard_end(&f);
    }
}

/* The same of a list that does not say how often anything is read. */
static void a_list_without_evidence(void **state) {
  (void)state;
  struct guard_program program = guard_program_1f1b(8, 2);
  struct guard_plan plan;
  guard_program_plan(&program, 0, &plan);
  for (size_t i = 0; i < plan.plan.receive_count; i++)
    plan.receives[i].accesses = 0;
  struct guard_fixture f = learning(&program, &plan);
  assert_true(f.device->physical_bytes < 8 * MAPPED);
  assert_int_equal(rp_guard_violations(f.guard), 0);
  guard_end(&f);
}

/* Two parts of the schedule read each activation, and the second does so after another message has come: not
 * one read, however many slots are short of. */
static void read_twice_by_the_schedule(void **state) {
  (void)state;
  for (uint32_t depth = 1; depth <= 4; depth++)
    for (uint32_t extra = 0; extra < 2; extra++) { /* more in flight than the plan has */
      struct guard_program planned = guard_program_1f1b(8, depth);
      struct guard_program program = guard_program_1f1b(8, depth + extra);
      struct guard_plan plan;
      guard_program_plan(&planned, 0, &plan);
      for (size_t i = 0; i < plan.plan.receive_count; i++) {
        plan.receives[i].readers = plan.receives[i].class_index ? 2 : 3;
        plan.receives[i].accesses = 0;
      }
      struct guard_fixture f = guard_start(&seeing, &plan.plan);
      guard_program_alloc(&f, &program);
      guard_program_steps(&f, &program, 4);
      struct rp_guard_report report = guard_look(&f);
      assert_int_equal(rp_guard_violations(f.guard), 0);
      assert_int_equal(report.pool.grown > 0, extra > 0);
      rp_guard_report_fini(&report);
      guard_end(&f);
    }
}

/* One class for all that a rank receives: activations are read three times, gradients twice, and how often
 * each is read nobody counted. */
static void classes_whose_messages_are_read_differently(void **state) {
  (void)state;
  for (uint32_t depth = 1; depth <= 4; depth++)
    for (int sends_told = 0; sends_told < 2; sends_told++) {
      struct guard_program program = guard_program_1f1b(8, depth);
      struct guard_plan plan;
      guard_program_plan(&program, 0, &plan);
      uint32_t activations = plan.classes[0].slots, slots = activations + plan.classes[1].slots;
      for (size_t i = 0; i < plan.plan.receive_count; i++) {
        struct rp_guard_planned_receive *item = &plan.receives[i];
        if (item->class_index) item->slot += activations;
        item->direction = 1 + item->class_index;
        item->readers = item->class_index ? 1 : 2;
        item->class_index = item->accesses = 0;
      }
      plan.plan.class_count = 1;
      plan.classes[0].slots = slots;
      plan.classes[0].buffers = 16;
      struct guard_fixture f = guard_start(
          &(struct rp_guard_options){.every_touch_seen = true, .sends_told = sends_told}, &plan.plan);
      guard_program_alloc(&f, &program);
      guard_program_steps(&f, &program, 3);
      quiet(&f, slots);
      guard_end(&f);
    }
}

/* A stage built again starts anew: its buffers taught nothing yet. */
static void sizes_of_rebuilt_stages(void **state) {
  (void)state;
  struct guard_program program = guard_program_1f1b(10, 2);
  struct rp_guard_planned_class class = {.label = 1, .receive_bytes = BYTES, .slots = 2, .stage = -1};
  struct rp_guard_plan plan = {.classes = &class, .class_count = 1};
  struct guard_fixture f = guard_start(&seeing, &plan);
  for (int round = 0; round < 3; round++) {
    guard_program_alloc(&f, &program);
    guard_program_label(&f, &program);
    guard_program_steps(&f, &program, 2);
    assert_int_equal(f.device->physical_bytes, 20 * MAPPED);
    guard_program_steps(&f, &program, 2);
    assert_int_equal(f.device->physical_bytes, 4 * MAPPED);
    for (size_t i = 0; i < 20; i++)
      assert_int_equal(rp_guard_free(f.guard, f.address[guard_program_buffer(i / 10, i % 10)]), RP_OK);
  }
  guard_end(&f);
}

/* A message that a group still has to send on is not done with. */
static void planned_tenant_in_an_open_group(void **state) {
  (void)state;
  struct rp_guard_planned_class class = {.label = 1, .receive_bytes = BYTES, .slots = 1, .stage = -1};
  const struct rp_guard_planned_receive list[] = {{.accesses = 1}, {.begin = 1, .end = 1, .accesses = 1}};
  struct rp_guard_plan plan = {&class, 1, list, 2};
  struct guard_fixture f = guard_start(&seeing, &plan);
  struct rp_guard_action action;
  guard_alloc(&f, 0, 3);
  guard_receive(&f, 0, UPSTREAM, true);
  guard_read(&f, 0, 1);
  rp_guard_sent(f.guard, 50, UPSTREAM, BYTES);
  struct rp_guard_access send = {.kind = RP_EVENT_SEND,
                                 .address = f.address[0],
                                 .bytes = BYTES,
                                 .mode = RP_POOL_READ,
                                 .group = 5,
                                 .site = {CONTEXT, COMM, THREAD, 0}};
  assert_int_equal(rp_guard_access_prepare(f.guard, &send, &action, NULL), RP_OK);
  guard_receive(&f, 1, UPSTREAM, true);
  struct rp_guard_report report = guard_look(&f);
  assert_int_equal(report.pool.prevented[RP_POOL_EARLY_REUSE], 1);
  rp_guard_report_fini(&report);
  guard_end(&f);
}

/* A plan on paper, which counts no accesses and gives messages that overlap one slot. */
static void a_plan_that_contradicts_itself(void **state) {
  (void)state;
  struct guard_program program = guard_program_1f1b(8, 3);
  struct guard_plan plan;
  guard_program_plan(&program, 0, &plan);
  for (size_t i = 0; i < plan.plan.receive_count; i++) {
    plan.receives[i].accesses = 0;
    plan.receives[i].readers = 2;
    plan.receives[i].slot = 0;
  }
  struct guard_fixture f = guard_start(&seeing, &plan.plan);
  guard_program_alloc(&f, &program);
  guard_program_steps(&f, &program, 3);
  struct rp_guard_report report = guard_look(&f);
  assert_int_equal(rp_guard_violations(f.guard), 0);
  assert_true(report.pool.grown > 0);
  rp_guard_report_fini(&report);
  guard_end(&f);
}

/* A library that nobody can stop touches an allocation of the size first: reported, and watched on. */
static void touched_first_by_a_callback(void **state) {
  (void)state;
  struct rp_guard_planned_class class = {.label = 1, .receive_bytes = BYTES, .slots = 1, .stage = -1};
  const struct rp_guard_planned_receive item = {.accesses = 1};
  struct rp_guard_plan plan = {&class, 1, &item, 1};
  struct guard_fixture f = guard_start(&seeing, &plan);
  guard_alloc(&f, 0, 3);
  for (size_t i = 0; i < 2; i++) {
    struct rp_guard_access access = {.address = f.address[i], .kind = RP_EVENT_KERNEL};
    rp_guard_access_seen(f.guard, &access, RP_ORDER_TOKEN_UNKNOWN, NULL);
    guard_verify(&f);
    assert_int_equal(rp_guard_violations(f.guard), i); /* the first has memory */
  }
  assert_int_equal(f.watched, 2);
  guard_end(&f);
}

/* What the buffers did in earlier steps is believed before the plan. */
static void plans_that_do_not_fit_later(void **state) {
  (void)state;
  struct guard_program program = guard_program_1f1b(10, 3), gpipe = guard_program_1f1b(10, 10);
  struct guard_plan plan;
  guard_program_plan(&program, 0, &plan);
  for (size_t i = 0; i < plan.plan.receive_count; i++) {
    plan.receives[i].accesses = 0;
    plan.receives[i].readers = 1;
  }
  struct guard_fixture f = guard_start(&seeing, &plan.plan);
  f.sizes_untold = true;
  guard_program_alloc(&f, &gpipe);
  guard_program_run(&f, &program);
  guard_program_steps(&f, &gpipe, 3);
  struct rp_guard_report report = guard_look(&f);
  assert_int_equal(report.pool.prevented[RP_POOL_EARLY_REUSE], 7);
  assert_int_equal(rp_guard_violations(f.guard), 0);
  rp_guard_report_fini(&report);
  guard_end(&f);
}

static void another_schedule_than_planned(void **state) {
  (void)state;
  struct guard_program planned = guard_program_1f1b(8, 2), gpipe = guard_program_1f1b(8, 8);
  struct guard_plan plan;
  struct guard_fixture f;
  guard_program_start(&f, &planned, 1, &gpipe, &plan);
  guard_program_steps(&f, &gpipe, 3);
  guard_program_steps(&f, &planned, 3);
  assert_int_equal(rp_guard_violations(f.guard), 0);
  guard_end(&f);
}

/* The last stage of a schedule that sends nothing back before it has received everything: its first receives
 * are just those of the plan, and nobody said how often a message is read. */
static void answers_are_missing(void **state) {
  (void)state;
  struct guard_program planned = guard_program_1f1b(6, 1);
  struct guard_plan plan;
  guard_program_plan(&planned, 0, &plan);
  plan.classes[0].slots = 1;
  size_t receives = 0;
  for (size_t i = 0; i < plan.plan.receive_count; i++) {
    if (plan.receives[i].class_index != 0) continue;
    plan.receives[receives] = plan.receives[i];
    plan.receives[receives].readers = 1;
    plan.receives[receives++].accesses = 0;
  }
  plan.plan.receive_count = receives;
  plan.plan.class_count = 1;
  struct guard_fixture f =
      guard_start(&(struct rp_guard_options){.every_touch_seen = true, .sends_told = true}, &plan.plan);
  guard_alloc(&f, 0, 6);
  for (int step = 0; step < 3; step++) {
    for (size_t m = 0; m < 6; m++) {
      guard_receive(&f, m, UPSTREAM, true);
      guard_read(&f, m, 11);
    }
    for (size_t m = 0; m < 6; m++) {
      guard_read(&f, m, 22);
      rp_guard_sent(f.guard, 50, UPSTREAM, BYTES);
    }
  }
  struct rp_guard_report report = guard_look(&f);
  assert_int_equal(rp_guard_violations(f.guard), 0);
  assert_int_equal(report.pool.grown, 5);
  rp_guard_report_fini(&report);
  guard_end(&f);
}

/* The plan's peers are the run's in the same order, or it is another program. */
static void peers_are_told_apart(void **state) {
  (void)state;
  struct guard_program planned = guard_program_1f1b(8, 3), other = guard_program_1f1b(8, 1);
  struct guard_plan plan;
  struct guard_fixture f;
  guard_program_start(&f, &planned, 0, &other, &plan);
  guard_program_steps(&f, &other, 3);
  struct rp_guard_report report = guard_look(&f);
  assert_true(report.plan_departed);
  assert_int_equal(report.classes[0].peer, UPSTREAM);
  assert_int_equal(report.classes[1].info.bound, 0);
  rp_guard_report_fini(&report);
  guard_end(&f);
}

/* Two classes of one peer, told apart by the list alone: what departs from it has no class. */
static void departing_without_rings(void **state) {
  (void)state;
  struct guard_program planned = guard_program_1f1b(8, 2), longer = guard_program_1f1b(12, 2);
  struct guard_plan plan;
  guard_program_plan(&planned, 1, &plan);
  for (size_t i = 0; i < plan.plan.receive_count; i++)
    plan.receives[i].source = 0;
  struct guard_fixture f = guard_start(&seeing, &plan.plan);
  guard_program_alloc(&f, &longer);
  guard_program_steps(&f, &longer, 3);
  struct rp_guard_report report = guard_look(&f);
  assert_true(report.plan_departed);
  assert_int_equal(rp_guard_violations(f.guard), 0);
  rp_guard_report_fini(&report);
  guard_end(&f);
}

/* What the plan has no place for is watched, and shares from the third step on. */
static void what_the_plan_leaves_out_shares_later(void **state) {
  (void)state;
  struct guard_program planned = guard_program_1f1b(8, 2), longer = guard_program_1f1b(16, 2);
  struct guard_plan plan;
  guard_program_plan(&planned, 0, &plan);
  for (size_t i = 0; i < plan.plan.receive_count; i++)
    plan.receives[i].source = 0; /* two classes of one peer: no rings */
  struct guard_fixture f = guard_start(&seeing, &plan.plan);
  guard_program_alloc(&f, &longer);
  guard_program_label(&f, &longer);
  guard_program_run(&f, &longer);
  uint64_t first = f.device->physical_bytes;
  guard_program_steps(&f, &longer, 4);
  struct rp_guard_report report = guard_look(&f);
  assert_true(f.device->physical_bytes < first / 2);
  assert_int_equal(report.activations, 1);
  assert_int_equal(rp_guard_violations(f.guard), 0);
  rp_guard_report_fini(&report);
  guard_end(&f);
}

static void evaluation_in_between(void **state) {
  (void)state;
  struct guard_program train = guard_program_1f1b(10, 3), evaluate = guard_program_evaluation(10);
  struct guard_plan plan;
  guard_program_plan(&train, 0, &plan);
  for (int first = 0; first < 2; first++) { /* before any training, too */
    struct guard_fixture f = guard_start(&seeing, &plan.plan);
    guard_program_alloc(&f, &train);
    for (int step = 0; step < 9; step++)
      guard_program_run(&f, step / 3 % 2 == first ? &train : &evaluate);
    assert_int_equal(rp_guard_violations(f.guard), 0);
    guard_end(&f);
  }
}

/* A schedule's plan, and an evaluation that reads as often as the schedule has parts: it teaches nothing. */
static void evaluation_before_a_schedule(void **state) {
  (void)state;
  struct guard_program train = guard_program_1f1b(8, 3), evaluate = guard_program_evaluation(8);
  struct guard_plan plan;
  guard_program_plan(&train, 0, &plan);
  for (size_t i = 0; i < plan.plan.receive_count; i++) {
    plan.receives[i].readers = plan.receives[i].class_index ? 1 : 2;
    plan.receives[i].accesses = 0;
    if (plan.receives[i].class_index == 0) plan.receives[i].slot = plan.receives[i].microbatch % 2;
  }
  plan.classes[0].slots = 2; /* one too few: what is let go too early is overwritten */
  struct guard_fixture f =
      guard_start(&(struct rp_guard_options){.every_touch_seen = true, .sends_told = true}, &plan.plan);
  guard_program_alloc(&f, &train);
  rp_guard_sent(f.guard, 50, UPSTREAM, BYTES); /* before anything came: it wants no answers */
  for (int step = 0; step < 8; step++)
    guard_program_run(&f, step < 2 || step == 5 ? &evaluate : &train);
  assert_int_equal(rp_guard_violations(f.guard), 0);
  guard_end(&f);
}

static void plans_are_checked(void **state) {
  (void)state;
  struct rp_guard_planned_class class = {.label = 1, .receive_bytes = BYTES, .slots = 2, .stage = -1};
  struct rp_guard_planned_receive item = {.end = 1};
  for (int wrong = 0; wrong < 6; wrong++) {
    struct rp_guard_planned_class one = class;
    struct rp_guard_planned_receive receive = item;
    struct rp_guard_plan plan = {&one, 1, &receive, 1};
    if (wrong == 0) plan.class_count = 0;
    if (wrong == 1) one.slots = 0;
    if (wrong == 2) one.receive_bytes = 0;
    if (wrong == 3) receive.class_index = 1;
    if (wrong == 4) receive.slot = 2;
    if (wrong == 5) receive.begin = 2;
    struct guard_fixture f = guard_start(NULL, &plan);
    struct rp_guard_report report = guard_look(&f);
    assert_string_equal(report.idle_reason, "plan_not_usable");
    assert_true(report.planned);
    assert_false(rp_guard_wants(f.guard, BYTES));
    rp_guard_report_fini(&report);
    guard_end(&f);
  }
}

static void device_without_aliases(void **state) {
  (void)state;
  struct rp_guard_planned_class class = {.label = 1, .receive_bytes = BYTES, .slots = 2, .stage = -1};
  const struct rp_guard_planned_receive item = {.accesses = 1};
  struct rp_guard_plan plan = {&class, 1, &item, 1};
  struct host_device *device = host_device_create(1u << 20);
  struct rp_order *order;
  struct rp_guard *guard;
  struct rp_guard_report report;
  device->words_lie = true;
  assert_int_equal(rp_order_create(NULL, &order), RP_OK);
  assert_int_equal(rp_guard_create(NULL, &device->backend, order, &plan, &guard), RP_OK);
  assert_int_equal(rp_guard_report(guard, &report), RP_OK);
  assert_string_equal(report.idle_reason, "plan_not_usable");
  assert_false(rp_guard_wants(guard, BYTES));
  rp_guard_report_fini(&report);
  assert_int_equal(rp_guard_destroy(guard, NULL), RP_OK);
  rp_order_destroy(order);
  host_device_destroy(device);
}

/* As an allocator does that hands out blocks it had used for something else before. */
static void use_some_first(struct guard_fixture *f, uint32_t count) {
  for (uint32_t i = 0; i < count; i++) {
    guard_kernel(f, guard_program_buffer(0, 5 * i % 12), 77);
    guard_kernel(f, guard_program_buffer(1, 7 * i % 12), 78);
  }
}

/* Receive buffers that something else had used first have memory of their own, but not for ever. */
static void used_before_and_joined(void **state) {
  (void)state;
  for (uint32_t depth = 1; depth <= 4; depth++)
    for (uint32_t used = 1; used <= 12; used += used < 3 ? 1 : 9) {
      struct guard_program program = guard_program_1f1b(12, depth);
      struct guard_plan plan;
      guard_program_plan(&program, 1, &plan);
      uint64_t slots = plan.classes[0].slots + plan.classes[1].slots;
      struct guard_fixture f = guard_start(&seeing, &plan.plan);
      guard_program_alloc(&f, &program);
      use_some_first(&f, used);
      guard_program_steps(&f, &program, 2);
      assert_true(f.device->physical_bytes >= 2 * used * MAPPED);
      for (int step = 0; step < 6; step++) {
        guard_program_run(&f, &program);
        assert_int_equal(f.device->physical_bytes, slots * MAPPED);
      }
      struct rp_guard_report report = guard_look(&f);
      assert_int_equal(report.conflict_count, 0);
      assert_int_equal(report.pool.bound, 24);
      assert_int_equal(report.activations, 0); /* it is the plan's classes that they are in */
      assert_int_equal(report.class_count, 2);
      assert_int_equal(f.boundaries, 1);
      rp_guard_report_fini(&report);
      guard_end(&f);
    }
}

/* Nothing joins while the device is not idle, and what the driver refuses is tried again. */
static void joining_may_fail(void **state) {
  (void)state;
  for (uint64_t position = 1; position < 40; position++) {
    struct guard_program program = guard_program_1f1b(12, 2);
    struct guard_plan plan;
    struct guard_fixture f;
    guard_program_start(&f, &program, 0, &program, &plan);
    use_some_first(&f, 3);
    guard_program_steps(&f, &program, 2);
    uint64_t before = f.device->physical_bytes;
    f.busy = true;
    guard_program_run(&f, &program);
    assert_int_equal(f.device->physical_bytes, before);
    f.busy = false;
    f.device->fail_at = f.device->calls + position;
    guard_program_steps(&f, &program, 6);
    assert_int_equal(rp_guard_violations(f.guard), 0);
    assert_int_equal(f.device->physical_bytes, (plan.classes[0].slots + plan.classes[1].slots) * MAPPED);
    guard_end(&f);
  }
}

/* A caching allocator hands a few blocks out again and again: what they hold at once is no less than they
 * are, and nothing may join. */
static void recycled_blocks_do_not_join(void **state) {
  (void)state;
  struct guard_program program = guard_program_1f1b(12, 3), few = guard_program_1f1b(3, 2);
  struct guard_plan plan;
  struct guard_fixture f;
  guard_program_start(&f, &program, 0, &few, &plan);
  for (uint32_t m = 0; m < 3; m++) {
    guard_kernel(&f, guard_program_buffer(0, m), 77);
    guard_kernel(&f, guard_program_buffer(1, m), 78);
  }
  guard_program_steps(&f, &few, 6);
  struct rp_guard_report report = guard_look(&f);
  assert_int_equal(report.pool.bound, 0);
  assert_int_equal(f.device->physical_bytes, 6 * MAPPED);
  assert_int_equal(report.pool.grown, 0);
  rp_guard_report_fini(&report);
  guard_end(&f);
}

/* More are in flight than the plan has slots for: those that would meet in one slot do not. */
static void what_would_collide_does_not_join(void **state) {
  (void)state;
  struct guard_program small = guard_program_1f1b(12, 2), large = guard_program_1f1b(12, 4);
  struct guard_plan plan;
  struct guard_fixture f;
  guard_program_start(&f, &small, 0, &large, &plan);
  guard_program_label(&f, &large);
  use_some_first(&f, 12);
  guard_program_steps(&f, &large, 8);
  assert_int_equal(f.boundaries, 1); /* not again for what will not */
  struct rp_guard_report report = guard_look(&f);
  assert_int_equal(report.pool.grown, 0);
  assert_int_equal(rp_guard_violations(f.guard), 0);
  rp_guard_report_fini(&report);
  guard_end(&f);
}

/* What left our sight keeps its memory, and so does what the plan has no place for. */
static void some_never_join(void **state) {
  (void)state;
  const struct rp_pool_site site = {0};
  struct guard_program program = guard_program_1f1b(12, 2);
  struct guard_plan plan;
  struct guard_fixture f;
  guard_program_start(&f, &program, 0, &program, &plan);
  use_some_first(&f, 2);
  struct rp_guard_action action;
  memset(&action, 0, sizeof action);
  size_t registered = guard_program_buffer(0, 5);
  assert_int_equal(
      rp_guard_flag_prepare(f.guard, f.address[registered], RP_POOL_FLAG_REGISTERED, &site, &action), RP_OK);
  assert_int_equal(action.next, RP_GUARD_GO);
  int memory = host_device_memory_at(f.device, f.address[registered]);
  guard_program_steps(&f, &program, 6);
  assert_int_equal(host_device_memory_at(f.device, f.address[registered]), memory);
  assert_int_equal(f.device->physical_bytes, (plan.classes[0].slots + plan.classes[1].slots + 1) * MAPPED);
  assert_int_equal(rp_guard_violations(f.guard), 0);
  guard_end(&f);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_plan_that_fits),
      cmocka_unit_test(a_plan_of_inference),
      cmocka_unit_test(a_plan_of_fewer_microbatches),
      cmocka_unit_test(a_plan_of_other_buffers),
      cmocka_unit_test(a_peer_that_sends_both_ways),
      cmocka_unit_test(more_in_flight_than_planned),
      cmocka_unit_test(sizes_only),
      cmocka_unit_test(a_list_without_evidence),
      cmocka_unit_test(read_twice_by_the_schedule),
      cmocka_unit_test(classes_whose_messages_are_read_differently),
      cmocka_unit_test(sizes_of_rebuilt_stages),
      cmocka_unit_test(planned_tenant_in_an_open_group),
      cmocka_unit_test(a_plan_that_contradicts_itself),
      cmocka_unit_test(touched_first_by_a_callback),
      cmocka_unit_test(plans_that_do_not_fit_later),
      cmocka_unit_test(another_schedule_than_planned),
      cmocka_unit_test(answers_are_missing),
      cmocka_unit_test(peers_are_told_apart),
      cmocka_unit_test(departing_without_rings),
      cmocka_unit_test(what_the_plan_leaves_out_shares_later),
      cmocka_unit_test(evaluation_in_between),
      cmocka_unit_test(evaluation_before_a_schedule),
      cmocka_unit_test(used_before_and_joined),
      cmocka_unit_test(joining_may_fail),
      cmocka_unit_test(recycled_blocks_do_not_join),
      cmocka_unit_test(what_would_collide_does_not_join),
      cmocka_unit_test(some_never_join),
      cmocka_unit_test(plans_are_checked),
      cmocka_unit_test(device_without_aliases),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
