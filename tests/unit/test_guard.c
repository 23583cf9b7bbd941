/* The guard by hand: auto mode from the first step to sharing, when it does not, boundaries, memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "guard_program.h"

static const struct rp_guard_options trained = {.sends_told = true};

/* Each buffer is allocated for one message and freed after it: there are no steps to be seen, and no more are
 * worth waiting for. A job that ends after its first step is not one of those. */
static void just_in_time_is_told(void **state) {
  (void)state;
  for (int just_in_time = 0; just_in_time < 2; just_in_time++) {
    struct guard_fixture f = guard_start(&trained, NULL);
    if (!just_in_time) guard_alloc(&f, 0, 8);
    for (size_t i = 0; i < 8; i++) {
      if (just_in_time) guard_alloc(&f, i, 1);
      guard_receive(&f, i, UPSTREAM, true);
      guard_read(&f, i, 1);
      if (just_in_time) assert_int_equal(rp_guard_free(f.guard, f.address[i]), RP_OK);
    }
    for (size_t i = 0; !just_in_time && i < 8; i++)
      assert_int_equal(rp_guard_free(f.guard, f.address[i]), RP_OK);
    guard_expect_idle(&f, just_in_time ? "just_in_time" : "too_few_steps");
    guard_end(&f);
  }
}

static void auto_shares_from_the_third_step_on(void **state) {
  (void)state;
  struct guard_program program = guard_program_1f1b(8, 2);
  struct guard_fixture f = guard_start(&(struct rp_guard_options){.slack = 1, .sends_told = true}, NULL);
  guard_program_alloc(&f, &program);
  guard_program_label(&f, &program);
  guard_expect_idle(&f, "too_few_steps");
  guard_program_steps(&f, &program, 2);
  assert_int_equal(f.device->physical_bytes, 16 * MAPPED);
  guard_program_steps(&f, &program, 4);
  struct rp_guard_report report = guard_look(&f);
  assert_true(report.active);
  assert_string_equal(report.idle_reason, "");
  assert_int_equal(f.device->physical_bytes, (3 + 2) * MAPPED);
  assert_int_equal(report.activated_step, 2);
  assert_int_equal(report.activation_duration_ns, 17);
  assert_int_equal(report.activations, 1);
  assert_int_equal(report.steps, 5);
  assert_int_equal(report.class_count, 2);
  for (size_t c = 0; c < 2; c++) {
    assert_int_equal(report.classes[c].depth, c ? 1 : 2);
    assert_int_equal(report.classes[c].slack, 1);
    assert_int_equal(report.classes[c].stage, 3);
    assert_int_equal(report.classes[c].direction, 1 + c);
    assert_int_equal(report.classes[c].peer, c ? DOWNSTREAM : UPSTREAM);
    assert_int_equal(report.classes[c].info.spec.buffers, 8);
  }
  assert_int_equal(report.conflict_count, 0);
  assert_int_equal(report.pool.grown, 0);
  assert_true(report.guard_bytes > 0);
  assert_int_equal(f.boundaries, 1);
  assert_int_equal(f.watched, 16);
  rp_guard_report_fini(&report);
  guard_end(&f);
}

/* Activations of GPipe are all needed at once; its gradients are not. */
static void gpipe_keeps_its_activations(void **state) {
  (void)state;
  struct guard_program program = guard_program_1f1b(6, 6);
  struct guard_fixture f = guard_start(&trained, NULL);
  guard_program_alloc(&f, &program);
  guard_program_label(&f, &program);
  guard_program_steps(&f, &program, 5);
  assert_int_equal(f.device->physical_bytes, (6 + 1) * MAPPED);
  assert_int_equal(f.boundaries, 1);
  guard_end(&f);
}

static void nothing_to_share(void **state) {
  (void)state;
  static const struct {
    const char *reason;
    uint32_t slack;
    bool labelled, sends;
  } cases[] = {
      {"within_slack", 7, true, true}, {"no_channels", 0, false, true}, {"forward_only", 0, true, false}};
  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    struct guard_program program = guard_program_1f1b(8, 2);
    struct guard_fixture f =
        guard_start(&(struct rp_guard_options){.slack = cases[c].slack, .sends_told = true}, NULL);
    guard_program_alloc(&f, &program);
    if (cases[c].labelled) guard_program_label(&f, &program);
    for (size_t i = 0; i < 5 * program.count; i++) {
      const struct guard_op *op = &program.ops[i % program.count];
      size_t buffer = guard_program_buffer(op->class, op->microbatch);
      if (op->receive) guard_receive(&f, buffer, op->class ? DOWNSTREAM : UPSTREAM, true);
      if (op->receive && cases[c].sends) rp_guard_sent(f.guard, 50, op->class ? UPSTREAM : DOWNSTREAM, BYTES);
      if (!op->receive) guard_read(&f, buffer, op->function);
    }
    guard_expect_idle(&f, cases[c].reason);
    assert_int_equal(f.device->physical_bytes, 16 * MAPPED);
    guard_end(&f);
  }
}

static void a_single_buffer(void **state) {
  (void)state;
  struct guard_fixture f = guard_start(&(struct rp_guard_options){0}, NULL);
  guard_alloc(&f, 0, 1);
  guard_channel(&f, 0, 1, 1, 0);
  for (size_t n = 0; n < 5; n++) {
    guard_receive(&f, 0, UPSTREAM, true);
    guard_read(&f, 0, 1);
  }
  guard_expect_idle(&f, "unbounded_depth");
  assert_int_equal(f.boundaries, 0);
  guard_end(&f);
}

static void nobody_reads(void **state) {
  (void)state;
  struct guard_fixture f = guard_start(&trained, NULL);
  guard_alloc(&f, 0, 4);
  for (size_t i = 0; i < 4; i++)
    guard_channel(&f, i, 1, 1, (uint32_t)i);
  for (size_t n = 0; n < 20; n++)
    guard_receive(&f, n % 4, UPSTREAM, true);
  assert_int_equal(f.device->physical_bytes, 4 * MAPPED);
  assert_int_equal(f.boundaries, 0);
  guard_expect_idle(&f, "no_access_evidence");
  guard_end(&f);
}

/* Training, evaluation, training ... on the same buffers: no two steps are alike. */
static void alternating_steps(void **state) {
  (void)state;
  struct guard_program train = guard_program_1f1b(8, 3), evaluate = guard_program_evaluation(8);
  struct guard_fixture f = guard_start(&trained, NULL);
  guard_program_alloc(&f, &train);
  guard_program_label(&f, &train);
  for (int step = 0; step < 8; step++)
    guard_program_run(&f, step % 2 ? &evaluate : &train);
  guard_expect_idle(&f, "unstable_pattern");
  guard_end(&f);
}

/* Evaluation after the pool is on: memory grows where it has to, nothing is overwritten, not even by the
 * training after many evaluations. */
static void evaluation_after_activation(void **state) {
  (void)state;
  for (uint32_t microbatches = 2; microbatches <= 8; microbatches++) {
    struct guard_program train = guard_program_1f1b(8, 3), evaluate = guard_program_evaluation(microbatches);
    struct guard_fixture f = guard_start(&trained, NULL);
    guard_program_alloc(&f, &train);
    guard_program_label(&f, &train);
    guard_program_steps(&f, &train, 4);
    guard_program_steps(&f, &evaluate, 5);
    guard_program_steps(&f, &train, 3);
    struct rp_guard_report report = guard_look(&f);
    assert_true(report.active);
    assert_int_equal(rp_guard_violations(f.guard), 0);
    rp_guard_report_fini(&report);
    guard_end(&f);
  }
}

/* What evaluations taught is not believed: a schedule that reads late comes after them. */
static void evaluations_teach_nothing(void **state) {
  (void)state;
  struct guard_program train = guard_program_1f1b(8, 3), gpipe = guard_program_1f1b(8, 8);
  struct guard_program evaluate = guard_program_evaluation(3);
  struct guard_fixture f = guard_start(&trained, NULL);
  guard_program_alloc(&f, &train);
  guard_program_label(&f, &train);
  guard_program_steps(&f, &train, 4);
  guard_program_steps(&f, &evaluate, 5);
  guard_program_run(&f, &gpipe);
  assert_int_equal(rp_guard_violations(f.guard), 0);
  guard_end(&f);
}

/* The same receives and as many reads, but sometimes more at once, or others at once. */
static void overlaps_that_change(void **state) {
  (void)state;
  /* Receives are upper case, reads lower case. */
  static const char *const steps[][2] = {{"AaBbCc", "ABabCc"}, {"ABbCac", "ABabCc"}};
  for (size_t c = 0; c < 2; c++) {
    struct guard_fixture f = guard_start(&(struct rp_guard_options){0}, NULL);
    guard_alloc(&f, 0, 3);
    for (size_t i = 0; i < 3; i++)
      guard_channel(&f, i, 1, 1, (uint32_t)i);
    for (int step = 0; step < 7; step++)
      for (const char *at = steps[c][step % 2]; *at; at++) {
        if (*at < 'a') guard_receive(&f, (size_t)(*at - 'A'), UPSTREAM, true);
        if (*at >= 'a') guard_read(&f, (size_t)(*at - 'a'), 1);
      }
    guard_expect_idle(&f, "unstable_pattern");
    assert_int_equal(f.boundaries, 1);
    guard_end(&f);
  }
}

static void schedule_changes_in_the_middle(void **state) {
  (void)state;
  struct guard_program train = guard_program_1f1b(8, 3), gpipe = guard_program_1f1b(8, 8);
  struct guard_program shorter = guard_program_1f1b(5, 3);
  struct guard_fixture f = guard_start(&trained, NULL);
  guard_program_alloc(&f, &train);
  guard_program_label(&f, &train);
  const struct guard_program *order[] = {&train, &train,   &train,   &shorter, &train,
                                         &gpipe, &shorter, &shorter, &train,   &train};
  for (size_t step = 0; step < sizeof order / sizeof *order; step++)
    guard_program_run(&f, order[step]);
  struct rp_guard_report report = guard_look(&f);
  assert_int_equal(report.pool.prevented[RP_POOL_EARLY_REUSE], 5); /* the activations of GPipe beyond K */
  assert_int_equal(report.conflict_count, 5);
  assert_int_equal(rp_guard_violations(f.guard), 0);
  rp_guard_report_fini(&report);
  guard_end(&f);
}

/* A stage that is freed and built again shares again, and leaves nothing behind. */
static void rebuilt_stages(void **state) {
  (void)state;
  struct guard_program train = guard_program_1f1b(8, 3);
  struct guard_fixture f = guard_start(&trained, NULL);
  for (int round = 0; round < 5; round++) {
    guard_program_alloc(&f, &train);
    guard_program_label(&f, &train);
    guard_program_steps(&f, &train, 4);
    assert_int_equal(f.device->physical_bytes, 4 * MAPPED);
    struct rp_guard_report report = guard_look(&f);
    assert_int_equal(report.activations, round + 1);
    assert_int_equal(report.class_count, 2);
    assert_int_equal(report.conflict_count, 0);
    rp_guard_report_fini(&report);
    for (size_t i = 0; i < 16; i++) {
      bool idle = false;
      uint64_t address = f.address[guard_program_buffer(i / 8, i % 8)];
      assert_int_equal(rp_guard_free_prepare(f.guard, address, NULL, &idle), RP_OK);
      assert_true(idle);
      assert_int_equal(rp_guard_free(f.guard, address), RP_OK);
      guard_verify(&f);
    }
    assert_int_equal(f.device->physical_bytes, 0);
    assert_int_equal(f.watched, 0);
  }
  guard_end(&f);
}

static void boundaries_can_wait(void **state) {
  (void)state;
  struct guard_program train = guard_program_1f1b(8, 3);
  struct guard_fixture f = guard_start(&trained, NULL);
  guard_program_alloc(&f, &train);
  guard_program_label(&f, &train);
  f.busy = true;
  guard_program_steps(&f, &train, 20);
  assert_int_equal(f.boundaries, 5); /* less and less often: steps 2, 3, 5, 9, 17 */
  assert_int_equal(f.device->physical_bytes, 16 * MAPPED);
  f.busy = false;
  guard_program_steps(&f, &train, 20);
  assert_int_equal(f.device->physical_bytes, 4 * MAPPED);
  struct rp_guard_report report = guard_look(&f);
  assert_int_equal(report.activations_postponed, 5);
  rp_guard_report_fini(&report);
  guard_end(&f);
}

/* The device is asked for what touched the buffers, and nothing else. */
static void boundaries_name_the_streams(void **state) {
  (void)state;
  struct guard_program train = guard_program_1f1b(4, 1);
  struct guard_fixture f = guard_start(&trained, NULL);
  guard_program_alloc(&f, &train);
  guard_program_label(&f, &train);
  guard_program_steps(&f, &train, 2);
  const struct rp_order_site other = {CONTEXT, OTHER, THREAD, 0};
  (void)rp_order_access(f.order, &other);
  struct rp_guard_receive receive = {.address = f.address[0], .bytes = BYTES, .comm = 50, .site = other};
  struct rp_guard_action action;
  assert_int_equal(rp_guard_receive_prepare(f.guard, &receive, &action), RP_OK);
  assert_true(action.boundary);
  assert_int_equal(action.idle_count, 2);
  for (size_t i = 0; i < 2; i++) {
    assert_int_equal(action.idle[i].fix, RP_ORDER_FIX_WAIT);
    assert_true(action.idle[i].stream == COMM || action.idle[i].stream == COMPUTE);
  }
  rp_order_sync_context(f.order, THREAD, CONTEXT);
  assert_int_equal(rp_guard_receive_prepare(f.guard, &receive, &action), RP_OK);
  assert_true(action.boundary);
  assert_int_equal(action.idle_count, 0);
  guard_end(&f);
}

/* What became unknown after the device was asked for is not known to be done. */
static void unknown_work_needs_the_context(void **state) {
  (void)state;
  struct guard_program train = guard_program_1f1b(4, 1);
  struct guard_fixture f = guard_start(&trained, NULL);
  struct rp_guard_access unknown = {.function = 22, .site = {.thread = THREAD}};
  struct rp_guard_action action, later;
  guard_program_alloc(&f, &train);
  guard_program_label(&f, &train);
  guard_program_steps(&f, &train, 2);
  unknown.address = f.address[2];
  struct rp_guard_receive receive = {
      .address = f.address[0], .bytes = BYTES, .comm = 50, .site = {CONTEXT, COMM, THREAD, 0}};
  rp_order_sync_context(f.order, THREAD, CONTEXT);
  assert_int_equal(rp_guard_receive_prepare(f.guard, &receive, &action), RP_OK);
  rp_guard_access_seen(f.guard, &unknown, RP_ORDER_TOKEN_UNKNOWN, NULL);
  assert_int_equal(rp_guard_receive_prepare(f.guard, &receive, &action), RP_OK);
  assert_true(action.boundary);
  assert_int_equal(action.idle_count, 1);
  assert_int_equal(action.idle[0].fix, RP_ORDER_FIX_CONTEXT);
  assert_int_equal(action.idle[0].context, CONTEXT);
  unknown.address = f.address[3];
  rp_guard_access_seen(f.guard, &unknown, RP_ORDER_TOKEN_UNKNOWN, NULL);
  rp_guard_idle_reached(f.guard, &action);
  assert_int_equal(rp_guard_receive_prepare(f.guard, &receive, &later), RP_OK);
  assert_int_equal(later.idle_count, 1);
  rp_guard_idle_reached(f.guard, &later);
  assert_int_equal(rp_guard_receive_prepare(f.guard, &receive, &later), RP_OK);
  assert_true(later.boundary);
  assert_int_equal(later.idle_count, 0);
  guard_end(&f);
}

/* In a process with several contexts nothing is known of work that has none: not now, then. */
static void unknown_work_in_several_contexts(void **state) {
  (void)state;
  struct guard_program train = guard_program_1f1b(4, 1);
  struct guard_fixture f = guard_start(&trained, NULL);
  guard_program_alloc(&f, &train);
  guard_program_label(&f, &train);
  struct rp_guard_access unknown = {.address = f.address[2], .site = {CONTEXT + 1, 0, THREAD, 0}};
  for (int step = 0; step < 5; step++) {
    guard_program_run(&f, &train);
    rp_guard_access_seen(f.guard, &unknown, RP_ORDER_TOKEN_UNKNOWN, NULL);
  }
  assert_int_equal(f.boundaries, 0);
  assert_int_equal(f.device->physical_bytes, 8 * MAPPED);
  guard_end(&f);
}

static void slack_is_found(void **state) {
  (void)state;
  for (int ordered = 0; ordered < 2; ordered++) {
    struct guard_fixture f =
        guard_start(&(struct rp_guard_options){.slack_auto = true, .sends_told = true}, NULL);
    guard_alloc(&f, 0, 8);
    for (size_t i = 0; i < 8; i++)
      guard_channel(&f, i, 1, 1, (uint32_t)i);
    /* Each message is read at once, but the stream of the receives learns of it three receives later. */
    for (size_t n = 0; n < 5 * 8; n++) {
      struct rp_order_site record = {CONTEXT, COMPUTE, THREAD, 0}, wait = {CONTEXT, COMM, THREAD, 0};
      if (ordered) guard_order(&f, COMPUTE, COMM);
      if (!ordered && n >= 3) rp_order_event_wait(f.order, &wait, 100 + n - 3);
      guard_receive(&f, n % 8, UPSTREAM, false);
      guard_read(&f, n % 8, 1);
      rp_order_event_record(f.order, &record, 100 + n, RP_ORDER_RECORD_STREAM);
      rp_guard_sent(f.guard, 50, UPSTREAM, BYTES);
    }
    struct rp_guard_report report = guard_look(&f);
    assert_true(report.active);
    assert_int_equal(report.slack, ordered ? 0 : 2);
    assert_int_equal(f.device->physical_bytes, (ordered ? 1 : 3) * MAPPED);
    if (ordered) assert_int_equal(report.receives_waited, 0);
    rp_guard_report_fini(&report);
    guard_end(&f);
  }
}

/* Two sizes in one channel: slots of each. */
static void sizes_within_a_label(void **state) {
  (void)state;
  struct guard_fixture f = guard_start(&(struct rp_guard_options){0}, NULL);
  guard_alloc(&f, 0, 6);
  for (size_t i = 0; i < 6; i++)
    guard_channel(&f, i, 1, 1, (uint32_t)i);
  for (size_t n = 0; n < 6 * 5; n++) {
    struct rp_guard_receive receive = {.peer = UPSTREAM, .bytes = n % 2 ? BYTES : BYTES - 8};
    guard_order(&f, COMPUTE, COMM);
    assert_int_equal(guard_try_receive(&f, n % 6, receive), RP_OK);
    guard_read(&f, n % 6, 1);
  }
  struct rp_guard_report report = guard_look(&f);
  assert_int_equal(report.class_count, 2);
  assert_int_equal(report.conflict_count, 0);
  assert_int_equal(f.device->physical_bytes, 2 * MAPPED);
  rp_guard_report_fini(&report);
  guard_end(&f);
}

/* Allocations that are padded are still those of one message each; much larger ones hold something else, too.
 */
static void padded_allocations(void **state) {
  (void)state;
  for (uint64_t padding = 0; padding <= 2 * HOST_GRANULARITY; padding += HOST_GRANULARITY) {
    struct guard_fixture f = guard_start(&(struct rp_guard_options){0}, NULL);
    for (size_t i = 0; i < 4; i++) {
      assert_int_equal(rp_guard_allocate(f.guard, BYTES + padding, &f.address[i]), RP_OK);
      guard_channel(&f, i, 1, 1, (uint32_t)i);
    }
    for (size_t n = 0; n < 4 * 5; n++) {
      guard_receive(&f, n % 4, UPSTREAM, true);
      guard_read(&f, n % 4, 1);
    }
    bool shares = padding <= HOST_GRANULARITY;
    assert_int_equal(f.device->physical_bytes, (shares ? 1 : 4) * (MAPPED + padding));
    if (!shares) guard_expect_idle(&f, "shared_allocation");
    struct rp_guard_receive longer = {.peer = UPSTREAM, .bytes = BYTES + padding};
    guard_order(&f, COMPUTE, COMM);
    assert_int_equal(guard_try_receive(&f, 0, longer), RP_OK);
    struct rp_guard_report report = guard_look(&f);
    assert_int_equal(report.pool.prevented[RP_POOL_SIZE_MISMATCH], padding == HOST_GRANULARITY);
    rp_guard_report_fini(&report);
    guard_end(&f);
  }
}

/* A segment of a caching allocator, with receives in parts of it: left alone, and no sign of a step. */
static void parts_of_an_allocation(void **state) {
  (void)state;
  for (int alone = 0; alone < 2; alone++) {
    struct guard_program train = guard_program_1f1b(6, 2);
    struct guard_fixture f = guard_start(&trained, NULL);
    uint64_t segment;
    assert_int_equal(rp_guard_allocate(f.guard, 5 * MAPPED, &segment), RP_OK);
    if (!alone) guard_program_alloc(&f, &train);
    if (!alone) guard_program_label(&f, &train);
    for (int step = 0; step < 5; step++) {
      for (uint64_t part = 0; part < 5; part++) {
        struct rp_guard_receive receive = {.peer = UPSTREAM, .address = segment + part % 3 * MAPPED};
        assert_int_equal(guard_try_receive(&f, MOST - 1, receive), RP_OK);
        rp_guard_sent(f.guard, 50, UPSTREAM, BYTES);
      }
      if (!alone) guard_program_run(&f, &train);
    }
    if (alone)
      guard_expect_idle(&f, "shared_allocation");
    else
      assert_int_equal(f.device->physical_bytes, (5 + 2 + 1) * MAPPED);
    assert_int_equal(f.boundaries, !alone);
    guard_end(&f);
  }
}

/* The next step's first receive is posted before the last message of the step is done with. */
static void steps_that_overlap(void **state) {
  (void)state;
  enum { COUNT = 8, STEPS = 6 };
  struct guard_fixture f = guard_start(&(struct rp_guard_options){.slack = 1, .sends_told = true}, NULL);
  guard_alloc(&f, 0, COUNT);
  for (size_t i = 0; i < COUNT; i++)
    guard_channel(&f, i, 1, 1, (uint32_t)i);
  for (size_t n = 0; n < STEPS * COUNT; n++) {
    guard_receive(&f, n % COUNT, UPSTREAM, true);
    guard_read(&f, n % COUNT, 1);
    if (n == 0) continue;
    guard_read(&f, (n - 1) % COUNT, 2);
    rp_guard_sent(f.guard, 50, UPSTREAM, BYTES);
  }
  struct rp_guard_report report = guard_look(&f);
  assert_true(report.active);
  assert_int_equal(report.activations, 1);
  assert_true(f.device->physical_bytes <= 4 * MAPPED); /* D, slack, and one more where steps meet */
  assert_int_equal(rp_guard_violations(f.guard), 0);
  rp_guard_report_fini(&report);
  guard_end(&f);
}

/* Evaluations first. There and back again: as many messages go to each peer as come from it, and one is read
 * once; then training reads each twice, with others in between, and has gradients as well. */
static void evaluations_come_first(void **state) {
  (void)state;
  enum { COUNT = 6, GRADIENTS = MOST / 2 };
  for (int late = 0; late < 2; late++) { /* the buffers for gradients are allocated before the training */
    struct guard_fixture f = guard_start(&(struct rp_guard_options){.sends_told = true}, NULL);
    guard_alloc(&f, 0, COUNT);
    if (!late) guard_alloc(&f, GRADIENTS, COUNT);
    for (size_t i = 0; i < COUNT; i++)
      guard_channel(&f, i, 1, 1, (uint32_t)i);
    for (size_t n = 0; n < 5 * COUNT; n++) {
      guard_receive(&f, n % COUNT, UPSTREAM, true);
      guard_read(&f, n % COUNT, 1);
      rp_guard_sent(f.guard, 50, UPSTREAM, BYTES);
    }
    struct rp_guard_report report = guard_look(&f);
    assert_int_equal(report.active, late);
    if (!late) assert_string_equal(report.idle_reason, "buffers_unused");
    rp_guard_report_fini(&report);
    if (late) guard_alloc(&f, GRADIENTS, COUNT);
    for (size_t i = 0; i < COUNT; i++)
      guard_channel(&f, GRADIENTS + i, 2, 2, (uint32_t)i);
    for (int step = 0; step < 6; step++)
      for (size_t n = 0; n < COUNT + 2; n++) {
        if (n < COUNT) {
          guard_receive(&f, n, UPSTREAM, true);
          guard_read(&f, n, 1);
          rp_guard_sent(f.guard, 50, UPSTREAM, BYTES);
        }
        if (n < 2) continue;
        guard_receive(&f, GRADIENTS + n - 2, UPSTREAM, true);
        guard_read(&f, GRADIENTS + n - 2, 2);
        guard_read(&f, n - 2, 2);
        rp_guard_sent(f.guard, 50, UPSTREAM, BYTES);
      }
    report = guard_look(&f);
    assert_int_equal(rp_guard_violations(f.guard), 0);
    assert_true(report.active);
    rp_guard_report_fini(&report);
    guard_end(&f);
  }
}

/* More goes to the peer than comes from it, as where stages go round in a loop: no training either. */
static void evaluations_in_a_loop(void **state) {
  (void)state;
  struct guard_fixture f = guard_start(&(struct rp_guard_options){.sends_told = true}, NULL);
  guard_alloc(&f, 0, 6);
  for (size_t i = 0; i < 6; i++)
    guard_channel(&f, i, 1, 1, (uint32_t)i);
  for (size_t n = 0; n < 5 * 6; n++) {
    guard_receive(&f, n % 6, UPSTREAM, true);
    guard_read(&f, n % 6, 1);
    rp_guard_sent(f.guard, 50, UPSTREAM, BYTES);
    rp_guard_sent(f.guard, 50, UPSTREAM, BYTES);
  }
  guard_expect_idle(&f, "forward_only");
  assert_int_equal(f.device->physical_bytes, 6 * MAPPED);
  guard_end(&f);
}

/* What shared was freed, and other memory of the size is still there: not that there were too few steps. */
static void freed_beside_other_memory(void **state) {
  (void)state;
  struct guard_program program = guard_program_1f1b(6, 1);
  struct guard_fixture f = guard_start(&trained, NULL);
  guard_program_alloc(&f, &program);
  guard_program_label(&f, &program);
  guard_alloc(&f, MOST - 1, 1);
  guard_kernel(&f, MOST - 1, 90);
  guard_program_steps(&f, &program, 4);
  for (size_t i = 0; i < 12; i++)
    assert_int_equal(rp_guard_free(f.guard, f.address[guard_program_buffer(i / 6, i % 6)]), RP_OK);
  struct rp_guard_report report = guard_look(&f);
  assert_int_equal(report.activations, 1);
  assert_false(report.active);
  assert_string_equal(report.idle_reason, "freed");
  rp_guard_report_fini(&report);
  guard_end(&f);
}

static void addresses_are_looked_up(void **state) {
  (void)state;
  struct rp_guard_planned_class class = {.label = 1, .receive_bytes = BYTES, .slots = 1, .stage = -1};
  struct rp_guard_planned_receive item = {.accesses = 1};
  struct rp_guard_plan plan = {&class, 1, &item, 1};
  struct guard_fixture f = guard_start(NULL, &plan);
  uint64_t begin = 0, bytes = 0;
  bool backed = false;
  assert_int_equal(rp_guard_backed_example(f.guard), 0);
  guard_alloc(&f, 0, 2);
  assert_int_equal(rp_guard_backed_example(f.guard), f.address[0]);
  assert_true(rp_guard_owns(f.guard, f.address[0] + 5, &begin, &bytes, &backed));
  assert_true(begin == f.address[0] && bytes == BYTES && backed);
  assert_true(rp_guard_owns(f.guard, f.address[1], NULL, NULL, &backed));
  assert_false(backed);
  assert_false(rp_guard_owns(f.guard, 5, &begin, &bytes, &backed));
  guard_end(&f);
}

static void context_destruction(void **state) {
  (void)state;
  struct guard_program program = guard_program_1f1b(8, 2);
  struct guard_fixture f = guard_start(&trained, NULL);
  guard_program_alloc(&f, &program);
  guard_program_label(&f, &program);
  guard_program_steps(&f, &program, 4);
  rp_guard_release_all(f.guard);
  guard_verify(&f);
  assert_int_equal(f.device->physical_bytes, 0);
  assert_int_equal(f.watched, 0);
  guard_expect_idle(&f, "freed");
  bool idle;
  assert_int_equal(rp_guard_free_prepare(f.guard, f.address[0], NULL, &idle), RP_ERROR_NOT_FOUND);
  guard_end(&f);
}

static void created_with_care(void **state) {
  (void)state;
  struct rp_guard *guard = NULL;
  struct rp_order *order;
  assert_int_equal(rp_order_create(NULL, &order), RP_OK);
  assert_int_equal(rp_guard_create(NULL, NULL, order, NULL, &guard), RP_ERROR_INVALID);
  assert_null(guard);
  assert_int_equal(rp_guard_destroy(NULL, NULL), RP_OK);
  rp_order_destroy(order);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(just_in_time_is_told),
      cmocka_unit_test(auto_shares_from_the_third_step_on),
      cmocka_unit_test(gpipe_keeps_its_activations),
      cmocka_unit_test(nothing_to_share),
      cmocka_unit_test(a_single_buffer),
      cmocka_unit_test(nobody_reads),
      cmocka_unit_test(alternating_steps),
      cmocka_unit_test(evaluation_after_activation),
      cmocka_unit_test(evaluations_teach_nothing),
      cmocka_unit_test(overlaps_that_change),
      cmocka_unit_test(schedule_changes_in_the_middle),
      cmocka_unit_test(rebuilt_stages),
      cmocka_unit_test(boundaries_can_wait),
      cmocka_unit_test(boundaries_name_the_streams),
      cmocka_unit_test(unknown_work_needs_the_context),
      cmocka_unit_test(unknown_work_in_several_contexts),
      cmocka_unit_test(slack_is_found),
      cmocka_unit_test(sizes_within_a_label),
      cmocka_unit_test(padded_allocations),
      cmocka_unit_test(parts_of_an_allocation),
      cmocka_unit_test(steps_that_overlap),
      cmocka_unit_test(evaluations_come_first),
      cmocka_unit_test(evaluations_in_a_loop),
      cmocka_unit_test(freed_beside_other_memory),
      cmocka_unit_test(addresses_are_looked_up),
      cmocka_unit_test(context_destruction),
      cmocka_unit_test(created_with_care),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
