/* What comes from outside while buffers share: registration, graphs, aborts, switches, lack of memory, and
 * the modes that change what is done. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "guard_sharing.h"

static void registered_buffers_are_left_alone(void **state) {
  (void)state;
  const struct rp_pool_site site = {.kind = RP_EVENT_RECV};
  struct guard_program program = guard_program_1f1b(EIGHT, 2);
  struct guard_fixture f = guard_start(&(struct rp_guard_options){0}, NULL);
  guard_program_alloc(&f, &program);
  guard_program_label(&f, &program);
  assert_int_equal(rp_guard_flag_prepare(f.guard, f.address[3], RP_POOL_FLAG_REGISTERED, &site, &f.action),
                   RP_OK);
  assert_int_equal(f.action.next, RP_GUARD_GO);
  guard_program_steps(&f, &program, 4);
  assert_int_equal(f.device->physical_bytes, (1 + 2 + 1) * MAPPED);
  guard_expect_none(&f);
  assert_int_equal(rp_guard_flag_prepare(f.guard, 5, RP_POOL_FLAG_ESCAPED, &site, &f.action),
                   RP_ERROR_NOT_FOUND);
  guard_end(&f);
}

static void escaping_after_activation(void **state) {
  (void)state;
  const struct rp_pool_site site = {.kind = RP_EVENT_RECV};
  struct guard_program program = guard_program_1f1b(EIGHT, 2);
  struct guard_fixture f = guard_sharing((struct rp_guard_options){0});
  guard_receive(&f, 0, UPSTREAM, true);
  guard_receive(&f, 1, UPSTREAM, true);
  /* Of a tenant: it keeps the slot. Of another: memory of its own. */
  assert_int_equal(rp_guard_flag_prepare(f.guard, f.address[0], RP_POOL_FLAG_ESCAPED, &site, &f.action),
                   RP_OK);
  assert_int_equal(f.action.next, RP_GUARD_GO);
  assert_int_equal(rp_guard_flag_prepare(f.guard, f.address[5], RP_POOL_FLAG_ESCAPED, &site, &f.action),
                   RP_OK);
  assert_int_equal(f.action.next, RP_GUARD_ACT);
  rp_order_sync_context(f.order, THREAD, CONTEXT);
  assert_int_equal(rp_guard_flag_commit(f.guard, f.address[5], RP_POOL_FLAG_ESCAPED, &site, &f.action),
                   RP_OK);
  guard_expect(&f, RP_POOL_ESCAPED_POINTER, true, 5, 5);
  guard_verify(&f);
  guard_read(&f, 0, 11);
  guard_read(&f, 1, 11);
  guard_program_steps(&f, &program, 3);
  guard_end(&f);
}

static void captured_graphs(void **state) {
  (void)state;
  struct guard_program program = guard_program_1f1b(EIGHT, 2);
  struct guard_fixture f = guard_start(&(struct rp_guard_options){0}, NULL);
  guard_program_alloc(&f, &program);
  guard_program_label(&f, &program);
  guard_program_run(&f, &program);
  struct rp_guard_access captured = {.function = 90, .site = {CONTEXT, COMPUTE, THREAD, RP_ORDER_CAPTURED}};
  for (size_t i = 0; i < EIGHT; i++)
    assert_int_equal(guard_try_access(&f, i, captured), RP_OK);
  for (int step = 0; step < 4; step++) {
    struct rp_guard_access launch = {.kind = RP_EVENT_GRAPH_LAUNCH, .site = {CONTEXT, COMPUTE, THREAD, 0}};
    rp_guard_graph_launched(f.guard, &launch, rp_order_graph_launch(f.order, &launch.site, 3));
    guard_program_run(&f, &program);
  }
  assert_int_equal(f.device->physical_bytes, (EIGHT + 1) * MAPPED); /* gradients only */
  struct rp_guard_report report = guard_look(&f);
  assert_int_equal(report.pool.accesses, EIGHT * (5 * 5 + 1 + 4)); /* runs, captures, launches */
  rp_guard_report_fini(&report);
  guard_expect_none(&f);
  guard_end(&f);
}

/* Captured before anything was received: nobody watched what the graph names. */
static void captured_before_the_first_receive(void **state) {
  (void)state;
  for (int late = 0; late < 2; late++) {
    struct guard_program program = guard_program_1f1b(EIGHT, 2);
    struct guard_fixture f = guard_start(&(struct rp_guard_options){0}, NULL);
    if (late) rp_guard_captures(f.guard, 1); /* of other memory: the buffers come later */
    guard_program_alloc(&f, &program);
    guard_program_label(&f, &program);
    if (!late) rp_guard_captures(f.guard, 1);
    guard_program_steps(&f, &program, 4);
    struct rp_guard_report report = guard_look(&f);
    assert_int_equal(report.active, late);
    if (!late) assert_string_equal(report.idle_reason, "graph_captured");
    rp_guard_report_fini(&report);
    guard_expect_none(&f);
    guard_end(&f);
  }
}

/* Uses could go unseen: nothing is shared, whatever was seen. */
static void blind(void **state) {
  (void)state;
  struct guard_program program = guard_program_1f1b(EIGHT, 2);
  struct guard_fixture f = guard_start(&(struct rp_guard_options){.blind = true}, NULL);
  guard_program_alloc(&f, &program);
  guard_program_label(&f, &program);
  guard_program_steps(&f, &program, 4);
  struct rp_guard_report report = guard_look(&f);
  assert_false(report.active);
  assert_string_equal(report.idle_reason, "no_access_evidence");
  rp_guard_report_fini(&report);
  guard_end(&f);
}

/* A receive that is captured: the graph may write there at any time. */
static void captured_receives(void **state) {
  (void)state;
  struct guard_program program = guard_program_1f1b(EIGHT, 2);
  struct guard_fixture f = guard_sharing((struct rp_guard_options){0});
  guard_receive(&f, 0, UPSTREAM, true);
  struct rp_guard_receive captured = {.site = {CONTEXT, COMM, THREAD, RP_ORDER_CAPTURED}};
  assert_int_equal(guard_try_receive(&f, 1, captured), RP_OK);
  struct rp_guard_access launch = {.kind = RP_EVENT_GRAPH_LAUNCH, .site = {CONTEXT, COMPUTE, THREAD, 0}};
  struct rp_guard_report before = guard_look(&f);
  rp_guard_graph_launched(f.guard, &launch, rp_order_graph_launch(f.order, &launch.site, 3));
  struct rp_guard_report after = guard_look(&f);
  assert_int_equal(after.pool.accesses, before.pool.accesses + 1);
  rp_guard_report_fini(&before);
  rp_guard_report_fini(&after);
  guard_program_steps(&f, &program, 3);
  assert_int_equal(rp_guard_violations(f.guard), 0);
  guard_end(&f);
}

static void oversize_receive(void **state) {
  (void)state;
  struct guard_fixture f = guard_sharing((struct rp_guard_options){0});
  guard_receive(&f, 0, UPSTREAM, true);
  struct rp_guard_receive receive = {.peer = UPSTREAM, .bytes = MAPPED};
  assert_int_equal(guard_try_receive(&f, 1, receive), RP_OK);
  guard_expect(&f, RP_POOL_SIZE_MISMATCH, true, 1, 1);
  guard_order(&f, COMPUTE, COMM);
  receive.bytes = MAPPED + 1;
  assert_int_equal(guard_try_receive(&f, 2, receive), RP_OK);
  guard_expect(&f, RP_POOL_SIZE_MISMATCH, false, 2, 2);
  guard_end(&f);
}

static void interrupted_steps(void **state) {
  (void)state;
  struct guard_program program = guard_program_1f1b(EIGHT, 2);
  struct guard_fixture f = guard_sharing((struct rp_guard_options){0});
  guard_receive(&f, 0, UPSTREAM, true);
  rp_guard_interrupt(f.guard, &(struct rp_pool_site){.kind = RP_EVENT_COMM_DESTROY});
  guard_expect(&f, RP_POOL_INTERRUPTED, true, 0, 0);
  f.busy = true;
  assert_int_equal(guard_try_receive(&f, 1, (struct rp_guard_receive){.peer = UPSTREAM}), RP_ERROR_STATE);
  assert_int_equal(f.action.next, RP_GUARD_REFUSE);
  f.busy = false;
  guard_program_steps(&f, &program, 3);
  assert_int_equal(f.device->physical_bytes, 2 * EIGHT * MAPPED);
  struct rp_guard_report report = guard_look(&f);
  assert_int_equal(report.conflict_count, 1);
  assert_false(report.pool.frozen);
  assert_string_equal(report.idle_reason, "step_interrupted");
  rp_guard_report_fini(&report);
  guard_end(&f);
}

static void interrupted_before_anything_is_shared(void **state) {
  (void)state;
  struct guard_program program = guard_program_1f1b(EIGHT, 2);
  struct guard_fixture f = guard_start(&(struct rp_guard_options){0}, NULL);
  guard_program_alloc(&f, &program);
  guard_program_label(&f, &program);
  guard_program_run(&f, &program);
  guard_receive(&f, 0, UPSTREAM, true);
  guard_receive(&f, 1, UPSTREAM, true);
  rp_guard_interrupt(f.guard, NULL);
  guard_program_steps(&f, &program, 4);
  guard_expect_none(&f);
  assert_int_equal(f.device->physical_bytes, 3 * MAPPED);
  guard_end(&f);
}

static void switched_off(void **state) {
  (void)state;
  struct guard_program program = guard_program_1f1b(EIGHT, 2);
  struct guard_fixture f = guard_sharing((struct rp_guard_options){0});
  guard_receive(&f, 0, UPSTREAM, true);
  rp_guard_request_fallback(f.guard, RP_POOL_SWITCHED_OFF);
  guard_receive(&f, 1, UPSTREAM, true);
  guard_program_steps(&f, &program, 5);
  assert_int_equal(f.device->physical_bytes, 2 * EIGHT * MAPPED);
  struct rp_guard_report report = guard_look(&f);
  assert_string_equal(report.idle_reason, "switched_off");
  assert_int_equal(report.conflict_count, 0);
  rp_guard_report_fini(&report);
  guard_end(&f);
}

/* The host has no memory for everybody: as many as possible, and the rest goes on sharing safely. */
static void switched_off_without_memory(void **state) {
  (void)state;
  struct guard_program program = guard_program_1f1b(EIGHT, 2);
  struct guard_fixture f = guard_sharing((struct rp_guard_options){0});
  f.device->capacity_bytes = 6 * MAPPED;
  rp_guard_request_fallback(f.guard, RP_POOL_SWITCHED_OFF);
  guard_program_steps(&f, &program, 12);
  struct rp_guard_report report = guard_look(&f);
  assert_true(report.boundary_failures > 0);
  assert_true(report.pool.fallback_pending);
  assert_int_equal(rp_guard_violations(f.guard), 0);
  rp_guard_report_fini(&report);
  f.device->capacity_bytes = 1u << 21;
  guard_program_steps(&f, &program, 12);
  report = guard_look(&f);
  assert_false(report.pool.fallback_pending);
  rp_guard_report_fini(&report);
  guard_end(&f);
}

static void no_memory_to_grow(void **state) {
  (void)state;
  struct guard_fixture f = guard_sharing((struct rp_guard_options){0});
  guard_receive(&f, 0, UPSTREAM, true);
  guard_receive(&f, 1, UPSTREAM, true);
  f.device->capacity_bytes = f.device->physical_bytes;
  assert_int_equal(guard_try_receive(&f, 2, (struct rp_guard_receive){.peer = UPSTREAM}), RP_ERROR_NO_MEMORY);
  assert_non_null(f.action.why);
  guard_expect_none(&f);
  guard_read(&f, 0, 11);
  guard_read(&f, 1, 11);
  guard_end(&f);
}

static void double_frees(void **state) {
  (void)state;
  struct guard_fixture f = guard_sharing((struct rp_guard_options){0});
  const struct rp_pool_site site = {.stream = 5, .seq = 9};
  bool idle;
  assert_int_equal(rp_guard_free(f.guard, f.address[3]), RP_OK);
  assert_int_equal(rp_guard_free(f.guard, f.address[3]), RP_ERROR_NOT_FOUND);
  assert_int_equal(rp_guard_free_prepare(f.guard, f.address[3], &site, &idle), RP_ERROR_STATE);
  guard_expect(&f, RP_POOL_DOUBLE_FREE, true, 3, 3);
  struct rp_pool_conflict conflict = guard_last_conflict(&f);
  assert_int_equal(conflict.earlier.kind, RP_EVENT_RECV);
  assert_int_equal(conflict.earlier.microbatch, 3);
  assert_int_equal(conflict.later.seq, 9);
  assert_int_equal(rp_guard_free_prepare(f.guard, f.address[4] + 1, &site, &idle), RP_ERROR_NOT_FOUND);
  rp_guard_address_reused(f.guard, f.address[3] - 5, 6);
  assert_int_equal(rp_guard_free_prepare(f.guard, f.address[3], &site, &idle), RP_ERROR_NOT_FOUND);
  struct rp_guard_report report = guard_look(&f);
  assert_int_equal(report.double_frees, 1);
  rp_guard_report_fini(&report);
  guard_end(&f);
}

static void many_frees_are_forgotten(void **state) {
  (void)state;
  struct guard_fixture f = guard_start(NULL, NULL);
  for (int i = 0; i < 3000; i++) {
    guard_alloc(&f, 0, 2);
    assert_int_equal(rp_guard_free(f.guard, f.address[0]), RP_OK);
    assert_int_equal(rp_guard_free(f.guard, f.address[1]), RP_OK);
  }
  guard_end(&f);
}

static void strict_takes_mappings_away(void **state) {
  (void)state;
  struct guard_program program = guard_program_1f1b(EIGHT, 2);
  struct guard_fixture f = guard_sharing((struct rp_guard_options){.strict = true});
  const struct rp_order_site site = {CONTEXT, COMPUTE, THREAD, 0};
  assert_true(rp_guard_strict_pending(f.guard));
  rp_guard_strict_prepare(f.guard, &site, &f.action);
  assert_int_equal(f.action.next, RP_GUARD_ACT);
  assert_true(f.action.idle_count > 0);
  assert_int_equal(rp_guard_strict_commit(f.guard), RP_OK); /* not known to be done: stays */
  assert_true(rp_guard_strict_pending(f.guard));
  rp_order_sync_context(f.order, THREAD, CONTEXT);
  assert_int_equal(rp_guard_strict_commit(f.guard), RP_OK);
  assert_false(rp_guard_strict_pending(f.guard));
  guard_verify(&f);
  for (size_t i = 0; i < EIGHT; i++) {
    assert_false(host_device_accessible(f.device, f.address[i]));
    bool backed = true;
    assert_true(rp_guard_owns(f.guard, f.address[i], NULL, NULL, &backed));
    assert_false(backed);
  }
  guard_program_steps(&f, &program, 2);
  guard_expect_none(&f);
  assert_true(rp_guard_strict_pending(f.guard));
  rp_order_sync_context(f.order, THREAD, CONTEXT);
  assert_int_equal(rp_guard_strict_commit(f.guard), RP_OK);
  guard_kernel(&f, 7, 22); /* too late, but interposed: the mapping comes back */
  assert_true(host_device_accessible(f.device, f.address[7]));
  struct rp_guard_report report = guard_look(&f);
  assert_int_equal(report.pool.reopened, 1);
  assert_true(report.concealed >= 16);
  rp_guard_report_fini(&report);
  rp_guard_request_fallback(f.guard, RP_POOL_SWITCHED_OFF);
  guard_program_steps(&f, &program, 2);
  assert_int_equal(f.device->physical_bytes, 2 * EIGHT * MAPPED);
  guard_end(&f);
}

/* The test-only switch: the same mistakes really overwrite. */
static void unguarded_overwrites(void **state) {
  (void)state;
  struct guard_fixture f = guard_sharing((struct rp_guard_options){.unguarded = true});
  uint64_t seen = 0;
  guard_receive(&f, 0, UPSTREAM, true);
  guard_receive(&f, 1, UPSTREAM, true);
  guard_receive(&f, 2, UPSTREAM, true);
  guard_expect(&f, RP_POOL_EARLY_REUSE, false, 0, 2);
  assert_true(host_device_load(f.device, f.address[0], &seen));
  assert_int_equal(seen, f.word[2]);
  guard_kernel(&f, 2, 11);
  guard_kernel(&f, 2, 12);
  guard_kernel(&f, 2, 22);
  const uint64_t waits = f.waits;
  guard_receive(&f, 4, UPSTREAM, false);
  guard_expect(&f, RP_POOL_UNORDERED_REUSE, false, 2, 4);
  assert_int_equal(f.waits, waits);
  assert_int_equal(guard_try_access(&f, 6, (struct rp_guard_access){.mode = RP_POOL_WRITE}), RP_OK);
  guard_expect(&f, RP_POOL_FOREIGN_ACCESS, false, 4, 6);
  guard_order(&f, COMPUTE, COMM);
  assert_int_equal(guard_try_receive(&f, 3, (struct rp_guard_receive){.bytes = MAPPED}), RP_OK);
  guard_expect(&f, RP_POOL_SIZE_MISMATCH, false, 3, 3);
  assert_int_equal(f.device->physical_bytes, 3 * MAPPED);
  assert_int_equal(rp_guard_violations(f.guard), 4);
  guard_end(&f);
}

static void overflow_of_the_queue(void **state) {
  (void)state;
  struct guard_fixture f = guard_sharing((struct rp_guard_options){0});
  guard_cycle(&f, 0);
  guard_cycle(&f, 1);
  struct rp_guard_access elsewhere = {.address = 5, .kind = RP_EVENT_KERNEL};
  for (int i = 0; i < 5000; i++)
    rp_guard_pending_add(f.guard, &elsewhere, RP_ORDER_TOKEN_UNKNOWN);
  rp_guard_pending_drain(f.guard);
  struct rp_guard_report report = guard_look(&f);
  assert_int_equal(report.pending_dropped, 5000 - 4096);
  rp_guard_report_fini(&report);
  guard_receive(&f, 2, UPSTREAM, true); /* nobody knows what happened meanwhile */
  guard_expect(&f, RP_POOL_UNORDERED_REUSE, true, 0, 2);
  assert_int_equal(f.device->physical_bytes, 4 * MAPPED);
  guard_end(&f);
}

static void accesses_over_several_buffers(void **state) {
  (void)state;
  struct guard_fixture f = guard_start(&(struct rp_guard_options){0}, NULL);
  guard_alloc(&f, 0, 3);
  uint64_t low = UINT64_MAX, high = 0, next = 0;
  for (size_t i = 0; i < 3; i++) {
    low = f.address[i] < low ? f.address[i] : low;
    high = f.address[i] > high ? f.address[i] : high;
  }
  struct rp_guard_access wide = {.address = low, .bytes = high - low + 1, .kind = RP_EVENT_MEMSET};
  struct rp_guard_action action;
  size_t found = 0;
  do {
    assert_int_equal(rp_guard_access_prepare(f.guard, &wide, &action, &next), RP_OK);
    wide.bytes -= next ? next - wide.address : 0;
    wide.address = next;
    found++;
  } while (next);
  assert_int_equal(found, 3);
  wide = (struct rp_guard_access){.address = low + 8192 * 64, .bytes = 1};
  assert_int_equal(rp_guard_access_prepare(f.guard, &wide, &action, &next), RP_ERROR_NOT_FOUND);
  assert_int_equal(next, 0);
  guard_end(&f);
}

/* The same events over memory that does not exist are counted alike. */
static void shadow_counts_the_same(void **state) {
  (void)state;
  uint64_t prevented[2][RP_POOL_CONFLICT_COUNT], saved[2];
  for (int shadow = 0; shadow < 2; shadow++) {
    struct guard_program program = guard_program_1f1b(EIGHT, 2);
    struct guard_fixture f = guard_start(&(struct rp_guard_options){.shadow = shadow}, NULL);
    f.shadow = shadow;
    guard_program_alloc(&f, &program);
    guard_program_label(&f, &program);
    guard_program_steps(&f, &program, 4);
    guard_overlapping(&f);
    guard_receive(&f, 2, UPSTREAM, false); /* unordered */
    guard_receive(&f, 3, UPSTREAM, true);
    guard_receive(&f, 4, UPSTREAM, true); /* early */
    struct rp_guard_access write = {.mode = RP_POOL_WRITE, .function = 77};
    assert_int_equal(guard_try_access(&f, 5, write), RP_OK);
    struct rp_guard_report report = guard_look(&f);
    assert_true(report.active);
    memcpy(prevented[shadow], report.pool.prevented, sizeof *prevented);
    saved[shadow] = (uint64_t)report.pool.account.saved_peak_bytes;
    assert_int_equal(report.receives_waited, 1);
    rp_guard_report_fini(&report);
    if (shadow) assert_int_equal(f.device->calls, 0);
    for (size_t i = 0; shadow && i < 16; i++)
      rp_guard_shadow_free(f.guard, f.address[guard_program_buffer(i / 8, i % 8)]);
    guard_end(&f);
  }
  assert_memory_equal(prevented[0], prevented[1], sizeof *prevented);
  assert_int_equal(saved[0], saved[1]);
  assert_int_equal(prevented[0][RP_POOL_UNORDERED_REUSE], 1);
  assert_int_equal(prevented[0][RP_POOL_EARLY_REUSE], 1);
  assert_int_equal(prevented[0][RP_POOL_FOREIGN_ACCESS], 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(registered_buffers_are_left_alone),
      cmocka_unit_test(escaping_after_activation),
      cmocka_unit_test(captured_graphs),
      cmocka_unit_test(captured_before_the_first_receive),
      cmocka_unit_test(blind),
      cmocka_unit_test(captured_receives),
      cmocka_unit_test(oversize_receive),
      cmocka_unit_test(interrupted_steps),
      cmocka_unit_test(interrupted_before_anything_is_shared),
      cmocka_unit_test(switched_off),
      cmocka_unit_test(switched_off_without_memory),
      cmocka_unit_test(no_memory_to_grow),
      cmocka_unit_test(double_frees),
      cmocka_unit_test(many_frees_are_forgotten),
      cmocka_unit_test(strict_takes_mappings_away),
      cmocka_unit_test(unguarded_overwrites),
      cmocka_unit_test(overflow_of_the_queue),
      cmocka_unit_test(accesses_over_several_buffers),
      cmocka_unit_test(shadow_counts_the_same),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
