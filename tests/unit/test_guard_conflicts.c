/* Every surprise by hand: what the guard prevents and how, what it can only report, and both sides of it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "guard_sharing.h"

static void early_reuse_grows(void **state) {
  (void)state;
  struct guard_fixture f = guard_sharing((struct rp_guard_options){0});
  guard_receive(&f, 0, UPSTREAM, true);
  guard_receive(&f, 1, UPSTREAM, true);
  guard_read(&f, 0, 11);
  guard_receive(&f, 2, UPSTREAM, true);
  guard_expect(&f, RP_POOL_EARLY_REUSE, true, 0, 2);
  struct rp_pool_conflict conflict = guard_last_conflict(&f);
  assert_int_equal(conflict.earlier.microbatch, 0);
  assert_int_equal(conflict.earlier.function, 11);
  assert_int_equal(conflict.earlier.stream, COMPUTE);
  assert_int_equal(conflict.earlier.step, 3);
  assert_int_equal(conflict.later.microbatch, 2);
  assert_int_equal(conflict.later.kind, RP_EVENT_RECV);
  assert_int_equal(conflict.later.stream, COMM);
  for (size_t i = 0; i < 3; i++)
    guard_read(&f, i, 12);
  assert_int_equal(f.device->physical_bytes, 4 * MAPPED);
  guard_end(&f);
}

static void unordered_reuse_waits(void **state) {
  (void)state;
  struct guard_fixture f = guard_sharing((struct rp_guard_options){0});
  guard_overlapping(&f);
  guard_receive(&f, 2, UPSTREAM, false);
  guard_expect(&f, RP_POOL_UNORDERED_REUSE, true, 0, 2);
  assert_int_equal(f.waits, 1);
  assert_int_equal(f.action.waits[0].stream, COMPUTE);
  struct rp_guard_report report = guard_look(&f);
  assert_int_equal(report.receives_waited, 1);
  assert_int_equal(report.pool.grown, 0);
  rp_guard_report_fini(&report);
  guard_receive(&f, 3, UPSTREAM, false); /* that wait stood for all that COMPUTE had done */
  assert_int_equal(f.waits, 1);
  guard_end(&f);
}

static void place(struct guard_fixture *f, uint64_t number) {
  const struct rp_order_site site = {.context = CONTEXT, .stream = COMPUTE, .thread = THREAD};
  rp_order_end(f->order, rp_order_begin(f->order, RP_ORDER_MILESTONE, &site, number));
}

/* With milestones a receive waits for the uses of its own slot, and moved memory for those of its own buffer,
 * though COMPUTE has been given something since that may never end. */
static void what_is_queued_behind_is_not_waited_for(void **state) {
  (void)state;
  const struct rp_order_site comm = {CONTEXT, COMM, THREAD, 0};
  const struct rp_order_site outside = {CONTEXT, COMPUTE, THREAD, RP_ORDER_OUTSIDE};
  struct guard_fixture f = guard_sharing((struct rp_guard_options){0});
  struct rp_guard_access write = {.address = f.address[1], .kind = RP_EVENT_MEMSET, .mode = RP_POOL_WRITE};
  struct rp_guard_receive receive = {
      .peer = UPSTREAM, .site = comm, .address = f.address[2], .bytes = BYTES, .comm = 50, .seq = 1};
  guard_receive(&f, 0, UPSTREAM, true);
  guard_receive(&f, 1, UPSTREAM, true);
  for (size_t i = 0; i < 2; i++) {
    guard_read(&f, i, 11);
    guard_read(&f, i, 12);
    guard_read(&f, i, 22);
    place(&f, i + 1);
  }
  rp_order_token behind = rp_order_access(f.order, &outside);
  assert_int_equal(rp_guard_receive_prepare(f.guard, &receive, &f.action), RP_OK);
  assert_int_equal(f.action.next, RP_GUARD_ACT);
  assert_int_equal(f.action.wait_count, 1);
  assert_int_equal(f.action.waits[0].milestone, 1);
  assert_int_equal(f.action.idle_count, 0);
  rp_order_milestone_wait(f.order, &comm, 1);
  assert_int_equal(rp_guard_receive_commit(f.guard, &receive, &f.action), RP_OK);
  assert_true(rp_guard_receive_launched(f.guard, &receive));
  receive.address = f.address[3]; /* into the slot of 1, which then is used for something else */
  assert_int_equal(rp_guard_receive_prepare(f.guard, &receive, &f.action), RP_OK);
  assert_int_equal(f.action.waits[0].milestone, 2);
  rp_order_milestone_wait(f.order, &comm, 2);
  assert_int_equal(rp_guard_receive_commit(f.guard, &receive, &f.action), RP_OK);
  assert_true(rp_guard_receive_launched(f.guard, &receive));
  write.site = outside;
  write.site.flags = 0;
  assert_int_equal(rp_guard_access_prepare(f.guard, &write, &f.action, NULL), RP_OK);
  assert_int_equal(f.action.next, RP_GUARD_ACT);
  assert_int_equal(f.action.idle_count, 1);
  assert_int_equal(f.action.idle[0].milestone, 2);
  rp_order_milestone_sync(f.order, THREAD, 2);
  assert_int_equal(rp_guard_access_prepare(f.guard, &write, &f.action, NULL), RP_OK);
  assert_int_equal(f.action.idle_count, 0);
  assert_int_equal(rp_guard_access_commit(f.guard, &write, &f.action), RP_OK);
  assert_false(
      rp_guard_access_launched(f.guard, &write, rp_order_access(f.order, &write.site))); /* private */
  assert_false(rp_order_before(f.order, behind, &comm));
  assert_false(rp_order_complete(f.order, behind));
  rp_order_sync_context(f.order, THREAD, CONTEXT);
  guard_end(&f);
}

/* A receive without a known stream, a captured one, one that is launched programmatically: no wait would
 * help. */
static void what_no_wait_can_order(void **state) {
  (void)state;
  struct rp_order_site sites[] = {{0, 0, THREAD, 0},
                                  {0, 0, THREAD, 0},
                                  {CONTEXT, COMM, THREAD, RP_ORDER_CAPTURED},
                                  {CONTEXT, COMM, THREAD, RP_ORDER_PROGRAMMATIC}};
  for (size_t s = 0; s < sizeof sites / sizeof *sites; s++) {
    struct guard_fixture f = guard_sharing((struct rp_guard_options){0});
    guard_overlapping(&f);
    struct rp_guard_receive receive = {
        .peer = UPSTREAM, .site = sites[s], .address = f.address[2], .bytes = BYTES, .comm = 50, .seq = 1};
    if (s == 0) rp_order_stream_destroy(f.order, COMPUTE);
    rp_status status;
    status = rp_guard_receive_prepare(f.guard, &receive, &f.action);
    assert_int_equal(status, RP_OK);
    assert_int_equal(f.action.next, RP_GUARD_ACT);
    assert_int_equal(f.action.wait_count, 0);
    assert_int_equal(f.action.decision.memory, RP_POOL_MEMORY_GROW);
    assert_int_equal(rp_guard_receive_commit(f.guard, &receive, &f.action), RP_OK);
    rp_guard_receive_launched(f.guard, &receive);
    guard_expect(&f, RP_POOL_UNORDERED_REUSE, true, 0, 2);
    guard_end(&f);
  }
}

/* The stream of the last reader waits for a host function, and that perhaps for the receive: the receive gets
 * memory of its own rather than a wait that may never end. Not where the function is known to be over, nor
 * where the receive comes after it anyway. */
static void host_functions_are_not_waited_for(void **state) {
  (void)state;
  enum { PENDING, OVER, BEFORE_THE_RECEIVE, ELSEWHERE, THROUGH_ANOTHER, CASES };
  for (int how = 0; how < CASES; how++) {
    struct guard_fixture f = guard_sharing((struct rp_guard_options){0});
    struct rp_order_site site = {CONTEXT, COMPUTE, THREAD, RP_ORDER_OUTSIDE};
    rp_order_sync_context(f.order, THREAD, CONTEXT); /* a step ends */
    if (how == BEFORE_THE_RECEIVE) (void)rp_order_access(f.order, &site);
    guard_overlapping(&f); /* COMM comes after COMPUTE so far */
    if (how >= ELSEWHERE) site.stream = OTHER;
    if (how != BEFORE_THE_RECEIVE) (void)rp_order_access(f.order, &site);
    if (how == OVER) rp_order_sync_context(f.order, THREAD, CONTEXT);
    if (how == THROUGH_ANOTHER) guard_order(&f, OTHER, COMPUTE);
    guard_receive(&f, 2, UPSTREAM, false);
    struct rp_guard_report report = guard_look(&f);
    bool stalls = how == PENDING || how == THROUGH_ANOTHER;
    assert_int_equal(report.pool.grown, stalls);
    assert_int_equal(f.waits, how == ELSEWHERE || how == BEFORE_THE_RECEIVE);
    rp_guard_report_fini(&report);
    guard_end(&f);
  }
}

/* An unknown access matters as long as its message does, and no longer. */
static void unknown_accesses_are_forgotten(void **state) {
  (void)state;
  struct guard_program program = guard_program_1f1b(EIGHT, 2);
  struct guard_fixture f = guard_sharing((struct rp_guard_options){0});
  guard_receive(&f, 0, UPSTREAM, true);
  guard_read(&f, 0, 11);
  guard_read(&f, 0, 12);
  struct rp_guard_access unknown = {.address = f.address[0], .function = 22, .kind = RP_EVENT_KERNEL};
  rp_guard_access_seen(f.guard, &unknown, RP_ORDER_TOKEN_UNKNOWN, NULL);
  guard_expect_none(&f);
  guard_receive(&f, 0, UPSTREAM, true);
  guard_read(&f, 0, 11);
  guard_read(&f, 0, 12);
  guard_read(&f, 0, 22);
  guard_receive(&f, 2, UPSTREAM, true);
  guard_expect_none(&f);
  guard_program_run(&f, &program);
  guard_end(&f);
}

/* Two receives of one group never share a slot; nor does one with a send that is not launched. */
static void open_groups(void **state) {
  (void)state;
  struct guard_fixture f = guard_sharing((struct rp_guard_options){0});
  struct rp_guard_receive grouped = {.peer = UPSTREAM, .group = 9};
  for (size_t i = 0; i < 2; i++)
    assert_int_equal(guard_try_receive(&f, i, grouped), RP_OK);
  assert_int_equal(guard_try_receive(&f, 2, grouped), RP_OK);
  guard_expect(&f, RP_POOL_EARLY_REUSE, true, 0, 2);
  guard_end(&f);
}

/* A message that a later step's group sends on again, before it is launched. */
static void send_in_an_open_group(void **state) {
  (void)state;
  struct guard_fixture f = guard_sharing((struct rp_guard_options){0});
  guard_cycle(&f, 0);
  guard_cycle(&f, 1);
  struct rp_guard_access send = {.kind = RP_EVENT_SEND,
                                 .address = f.address[0],
                                 .bytes = BYTES,
                                 .mode = RP_POOL_READ,
                                 .group = 5,
                                 .site = {CONTEXT, COMM, THREAD, 0}};
  struct rp_guard_action action;
  assert_int_equal(rp_guard_access_prepare(f.guard, &send, &action, NULL), RP_OK);
  assert_int_equal(action.next, RP_GUARD_GO);
  guard_receive(&f, 2, UPSTREAM, true);
  guard_expect(&f, RP_POOL_EARLY_REUSE, true, 0, 2);
  rp_guard_access_launched(f.guard, &send, rp_order_access(f.order, &send.site));
  guard_verify(&f);
  guard_end(&f);
}

static void late_read_of_a_tenant_opens_it_again(void **state) {
  (void)state;
  struct guard_fixture f = guard_sharing((struct rp_guard_options){0});
  guard_cycle(&f, 0);
  guard_read(&f, 0, 22);
  guard_cycle(&f, 1);
  guard_expect_none(&f);
  guard_receive(&f, 2, UPSTREAM, true);
  guard_expect(&f, RP_POOL_EARLY_REUSE, true, 0, 2);
  guard_read(&f, 0, 22);
  guard_end(&f);
}

static void foreign_write_moves_out(void **state) {
  (void)state;
  struct guard_fixture f = guard_sharing((struct rp_guard_options){0});
  guard_receive(&f, 0, UPSTREAM, true); /* the step begins: all others are dead */
  guard_receive(&f, 1, UPSTREAM, true);
  struct rp_guard_access write = {.mode = RP_POOL_WRITE, .function = 77};
  assert_int_equal(guard_try_access(&f, 2, write), RP_OK);
  guard_expect(&f, RP_POOL_FOREIGN_ACCESS, true, 0, 2);
  assert_true(host_device_store(f.device, f.address[2], 1));
  guard_read(&f, 0, 11);
  guard_read(&f, 1, 11);
  guard_end(&f);
}

static void foreign_access_of_a_dead_tenant_keeps_the_slot(void **state) {
  (void)state;
  struct guard_program program = guard_program_1f1b(EIGHT, 2);
  struct guard_fixture f = guard_sharing((struct rp_guard_options){0});
  guard_receive(&f, 0, UPSTREAM, true);
  struct rp_guard_access write = {.mode = RP_POOL_WRITE, .function = 77};
  assert_int_equal(guard_try_access(&f, 7, write), RP_OK); /* the last tenant of the slot beside */
  guard_expect(&f, RP_POOL_FOREIGN_ACCESS, true, 7, 7);
  assert_true(host_device_store(f.device, f.address[7], 4711));
  guard_receive(&f, 1, UPSTREAM, true); /* grows */
  uint64_t seen = 0;
  assert_true(host_device_load(f.device, f.address[7], &seen));
  assert_int_equal(seen, 4711);
  struct rp_guard_report report = guard_look(&f);
  assert_true(report.pool.pins_pending);
  rp_guard_report_fini(&report);
  guard_program_steps(&f, &program, 2);
  report = guard_look(&f);
  assert_false(report.pool.pins_pending);
  assert_int_equal(rp_guard_violations(f.guard), 0);
  rp_guard_report_fini(&report);
  guard_end(&f);
}

static void stale(struct guard_fixture *f) {
  guard_cycle(f, 0);
  guard_cycle(f, 1);
  guard_cycle(f, 2); /* in the slot of 0 */
  struct rp_guard_access late = {.mode = RP_POOL_READ, .function = 22};
  assert_int_equal(guard_try_access(f, 0, late), RP_OK);
  guard_expect(f, RP_POOL_STALE_ACCESS, false, 2, 0);
  assert_int_equal(rp_guard_violations(f->guard), 1);
}

static void stale_access_falls_back(void **state) {
  (void)state;
  struct guard_program program = guard_program_1f1b(EIGHT, 2);
  struct guard_fixture f = guard_sharing((struct rp_guard_options){0});
  stale(&f);
  guard_program_steps(&f, &program, 6);
  assert_int_equal(f.device->physical_bytes, 2 * EIGHT * MAPPED);
  struct rp_guard_report report = guard_look(&f);
  assert_false(report.active);
  assert_string_equal(report.idle_reason, "conflict");
  assert_int_equal(report.pool.fallbacks, 1);
  rp_guard_report_fini(&report);
  guard_end(&f);
}

static void stale_access_is_only_reported(void **state) {
  (void)state;
  struct guard_program program = guard_program_1f1b(EIGHT, 2);
  struct guard_fixture f = guard_sharing((struct rp_guard_options){.on_violation = RP_POOL_ON_STALE_REPORT});
  stale(&f);
  guard_program_steps(&f, &program, 3);
  struct rp_guard_report report = guard_look(&f);
  assert_true(report.active);
  assert_int_equal(report.pool.fallbacks, 0);
  rp_guard_report_fini(&report);
  guard_end(&f);
}

static void stale_access_aborts(void **state) {
  (void)state;
  for (int callback = 0; callback < 4; callback++) {
    struct guard_fixture f = guard_sharing((struct rp_guard_options){.on_violation = RP_POOL_ON_STALE_ABORT});
    for (size_t i = 0; i < 3; i++)
      guard_cycle(&f, i);
    struct rp_guard_access late = {.address = f.address[0],
                                   .mode = RP_POOL_READ,
                                   .function = 22,
                                   .kind = RP_EVENT_KERNEL,
                                   .site = {CONTEXT, COMPUTE, THREAD, 0}};
    bool abort = false;
    uint64_t calls = f.device->calls;
    if (callback == 3) { /* what uses each message first reads it */
      late.mode = RP_POOL_UNKNOWN_MODE;
      late.function = 11;
      late.place = 1;
    }
    if (callback == 0 || callback == 3) {
      assert_int_equal(guard_try_access(&f, 0, late), RP_ERROR_STATE);
      abort = f.action.abort;
      assert_non_null(f.action.why);
      assert_int_equal(f.device->calls, calls);
    } else if (callback == 1) {
      rp_guard_access_seen(f.guard, &late, rp_order_access(f.order, &late.site), &abort);
    } else {
      rp_guard_pending_add(f.guard, &late, rp_order_access(f.order, &late.site));
      rp_guard_pending_drain(f.guard);
      assert_int_equal(guard_try_receive(&f, 3, (struct rp_guard_receive){.peer = UPSTREAM}), RP_ERROR_STATE);
      abort = f.action.abort;
    }
    assert_true(abort);
    guard_expect(&f, RP_POOL_STALE_ACCESS, false, 2, 0);
    guard_end(&f);
  }
}

/* Launches that are given a buffer whose message is gone: those that read each message first do so again, of
 * all others nobody knows. */
static void launches_are_told_apart(void **state) {
  (void)state;
  const struct {
    uint32_t function, place;
    bool stale, falls_back;
  } cases[] = {{11, 1, true, true},   /* first of all that use a message */
               {11, 2, false, true},  /* the same function writes another of its arguments */
               {11, 0, false, true},  /* nobody knows which */
               {22, 1, false, true},  /* one that used it too, but perhaps to write */
               {77, 1, false, false}, /* one that never did: an allocator's next user, most likely */
               {0, 0, false, false}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    struct guard_program program = guard_program_1f1b(EIGHT, 2);
    struct guard_fixture f = guard_sharing((struct rp_guard_options){0});
    for (size_t b = 0; b < 3; b++)
      guard_cycle(&f, b); /* 2 in the slot of 0 */
    struct rp_guard_access late = {.function = cases[i].function, .place = cases[i].place};
    assert_int_equal(guard_try_access(&f, 0, late), RP_OK);
    guard_expect(&f, cases[i].stale ? RP_POOL_STALE_ACCESS : RP_POOL_UNCLEAR_ACCESS, !cases[i].stale, 2, 0);
    assert_int_equal(rp_guard_violations(f.guard), cases[i].stale);
    assert_true(host_device_store(f.device, f.address[0], 1)); /* memory of its own: overwrites nothing */
    uint64_t seen = 0;
    assert_true(host_device_load(f.device, f.address[2], &seen));
    assert_int_equal(seen, f.word[2]);
    guard_program_steps(&f, &program, 3);
    struct rp_guard_report report = guard_look(&f);
    assert_int_equal(report.pool.unclear, !cases[i].stale);
    assert_int_equal(report.active, !cases[i].falls_back);
    rp_guard_report_fini(&report);
    guard_end(&f);
  }
}

/* A call of several operations is asked about as a whole, and its operations are seen once more when made. */
static void what_was_asked_about_is_counted_once(void **state) {
  (void)state;
  struct guard_fixture f = guard_sharing((struct rp_guard_options){0});
  for (size_t i = 0; i < 3; i++)
    guard_cycle(&f, i);
  struct rp_guard_access late = {.address = f.address[0],
                                 .bytes = BYTES,
                                 .mode = RP_POOL_READ,
                                 .kind = RP_EVENT_COPY_READ,
                                 .site = {CONTEXT, COMPUTE, THREAD, 0}};
  assert_int_equal(rp_guard_access_prepare(f.guard, &late, &f.action, NULL), RP_OK);
  assert_int_equal(f.action.next, RP_GUARD_GO);
  late.asked = true;
  rp_guard_access_seen(f.guard, &late, rp_order_access(f.order, &late.site), NULL);
  assert_int_equal(rp_guard_violations(f.guard), 1);
  late.asked = false;
  rp_guard_access_seen(f.guard, &late, rp_order_access(f.order, &late.site), NULL);
  assert_int_equal(rp_guard_violations(f.guard), 2);
  guard_end(&f);
}

static void callbacks_come_too_late(void **state) {
  (void)state;
  struct guard_fixture f = guard_sharing((struct rp_guard_options){0});
  guard_cycle(&f, 0);
  guard_cycle(&f, 1);
  guard_receive(&f, 2, UPSTREAM, true);
  struct rp_guard_access write = {.address = f.address[4],
                                  .mode = RP_POOL_WRITE,
                                  .function = 5,
                                  .kind = RP_EVENT_KERNEL,
                                  .site = {CONTEXT, COMPUTE, THREAD, 0}};
  bool abort = true;
  rp_guard_access_seen(f.guard, &write, rp_order_access(f.order, &write.site), &abort);
  guard_verify(&f);
  assert_false(abort);
  guard_expect(&f, RP_POOL_FOREIGN_ACCESS, false, 2, 4);
  guard_end(&f);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(early_reuse_grows),
      cmocka_unit_test(unordered_reuse_waits),
      cmocka_unit_test(what_is_queued_behind_is_not_waited_for),
      cmocka_unit_test(what_no_wait_can_order),
      cmocka_unit_test(host_functions_are_not_waited_for),
      cmocka_unit_test(unknown_accesses_are_forgotten),
      cmocka_unit_test(open_groups),
      cmocka_unit_test(send_in_an_open_group),
      cmocka_unit_test(late_read_of_a_tenant_opens_it_again),
      cmocka_unit_test(foreign_write_moves_out),
      cmocka_unit_test(foreign_access_of_a_dead_tenant_keeps_the_slot),
      cmocka_unit_test(stale_access_falls_back),
      cmocka_unit_test(stale_access_is_only_reported),
      cmocka_unit_test(stale_access_aborts),
      cmocka_unit_test(launches_are_told_apart),
      cmocka_unit_test(what_was_asked_about_is_counted_once),
      cmocka_unit_test(callbacks_come_too_late),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
