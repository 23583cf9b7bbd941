/* Every guard decision by hand: what is prevented how, what is a violation, and both sides of it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "pool_fixture.h"

static void early_reuse_grows(void **state) {
  (void)state;
  struct fixture f = start(NULL);
  plan(&f, 2, 4);
  allocate(&f, 0, 4);
  receive(&f, 0, 10);
  receive(&f, 1, 11);
  receive(&f, 2, 12); /* more in flight than planned */
  assert_int_equal(f.decision.memory, RP_POOL_MEMORY_GROW);
  expect_conflict(&f, RP_POOL_EARLY_REUSE, true, 0, 2);
  assert_int_equal(counters(&f).grown, 1);
  assert_int_equal(f.device->physical_bytes, 3 * MAPPED);
  for (size_t i = 0; i < 3; i++)
    read_back(&f, i, 10 + i);
  end(&f);
}

static void bound_buffer_grows_too(void **state) {
  (void)state;
  struct fixture f = start(NULL);
  plan(&f, 1, 2);
  allocate(&f, 0, 2);
  cycle(&f, 0, 1);
  cycle(&f, 1, 2);
  receive(&f, 0, 3);
  receive(&f, 1, 4);
  assert_true(f.decision.remaps);
  assert_int_equal(look(&f, 1).binding, RP_POOL_PRIVATE);
  expect_conflict(&f, RP_POOL_EARLY_REUSE, true, 0, 1);
  read_back(&f, 0, 3);
  read_back(&f, 1, 4);
  end(&f);
}

static void unordered_reuse_waits_or_grows(void **state) {
  (void)state;
  struct fixture f = start(NULL);
  plan(&f, 1, 3);
  allocate(&f, 0, 3);
  cycle(&f, 0, 1);
  struct rp_pool_post ask = {
      .buffer = f.id[1], .class_id = 0, .slot_hint = 0, .address = f.address[1], .bytes = BYTES};
  uint32_t tenant = RP_POOL_NONE;
  assert_int_equal(rp_pool_receive_displaces(f.pool, &ask, &tenant), RP_OK);
  assert_int_equal(tenant, f.id[0]);
  assert_int_equal(post(&f, 1, (struct rp_pool_post){.order = RP_POOL_ORDER_NO}), RP_OK);
  assert_true(f.decision.insert_wait);
  assert_int_equal(f.decision.tenant, f.id[0]);
  expect_conflict(&f, RP_POOL_UNORDERED_REUSE, true, 0, 1);
  release(&f, 1);
  assert_int_equal(post(&f, 2, (struct rp_pool_post){.order = RP_POOL_ORDER_NEVER}), RP_OK);
  assert_false(f.decision.insert_wait);
  assert_int_equal(look(&f, 2).binding, RP_POOL_PRIVATE);
  assert_int_equal(counters(&f).grown, 1);
  assert_int_equal(counters(&f).waits_inserted, 1);
  end(&f);
}

static void late_access_of_the_tenant_reopens(void **state) {
  (void)state;
  struct fixture f = start(NULL);
  plan(&f, 1, 2);
  allocate(&f, 0, 2);
  cycle(&f, 0, 1);
  read_back(&f, 0, 1); /* after the release, before anybody else */
  assert_int_equal(counters(&f).reopened, 1);
  receive(&f, 1, 2);
  expect_conflict(&f, RP_POOL_EARLY_REUSE, true, 0, 1);
  read_back(&f, 0, 1);
  read_back(&f, 1, 2);
  end(&f);
}

static void foreign_write_goes_private(void **state) {
  (void)state;
  struct fixture f = start(NULL);
  struct rp_pool_access write = {.mode = RP_POOL_WRITE, .interposed = true};
  plan(&f, 1, 3);
  allocate(&f, 0, 3);
  cycle(&f, 0, 1);
  receive(&f, 1, 2);
  rp_pool_step_end(f.pool);
  assert_int_equal(use(&f, 0, write), RP_OK); /* an allocator recycles the block */
  assert_true(host_device_store(f.device, f.address[0], 99));
  assert_int_equal(look(&f, 0).binding, RP_POOL_PRIVATE);
  expect_conflict(&f, RP_POOL_FOREIGN_ACCESS, true, 1, 0);
  read_back(&f, 1, 2);
  end(&f);
}

static void foreign_access_of_a_dead_tenant_pins(void **state) {
  (void)state;
  struct fixture f = start(NULL);
  plan(&f, 1, 3);
  allocate(&f, 0, 3);
  cycle(&f, 1, 1);
  cycle(&f, 0, 5);
  rp_pool_step_end(f.pool);
  read_back(&f, 0, 5);
  expect_conflict(&f, RP_POOL_FOREIGN_ACCESS, true, 0, 0);
  assert_true(look(&f, 0).pinned);
  receive(&f, 1, 6); /* the slot is not to be had */
  assert_int_equal(look(&f, 1).binding, RP_POOL_PRIVATE);
  read_back(&f, 0, 5);
  cycle(&f, 2, 7);
  assert_int_equal(rp_pool_quiescent(f.pool, true), RP_ERROR_BUSY);
  assert_int_equal(rp_pool_quiescent(f.pool, false), RP_OK);
  check(&f);
  assert_int_equal(look(&f, 0).binding, RP_POOL_PRIVATE);
  read_back(&f, 0, 5);
  end(&f);
}

static void pinned_buffer_leaves_the_slot_to_the_others(void **state) {
  (void)state;
  struct fixture f = start(NULL);
  plan(&f, 1, 3);
  allocate(&f, 0, 3);
  cycle(&f, 0, 1);
  cycle(&f, 1, 2);
  cycle(&f, 2, 3);
  rp_pool_step_end(f.pool);
  read_back(&f, 2, 3);
  assert_int_equal(rp_pool_quiescent(f.pool, false), RP_OK);
  check(&f);
  assert_int_equal(f.device->physical_bytes, 2 * MAPPED);
  cycle(&f, 0, 4);
  cycle(&f, 1, 5);
  read_back(&f, 2, 3);
  assert_int_equal(counters(&f).grown, 0);
  end(&f);
}

/* Too late to give it memory of its own. */
static void unseen_write_follows_the_policy(void **state) {
  (void)state;
  for (int policy = RP_POOL_ON_STALE_FALLBACK; policy <= RP_POOL_ON_STALE_ABORT; policy++) {
    struct rp_pool_options options = {.on_stale = (enum rp_pool_policy)policy};
    struct fixture f = start(&options);
    plan(&f, 1, 2);
    allocate(&f, 0, 2);
    cycle(&f, 0, 1);
    receive(&f, 1, 2);
    assert_int_equal(use(&f, 0, (struct rp_pool_access){.mode = RP_POOL_WRITE}), RP_OK);
    expect_conflict(&f, RP_POOL_FOREIGN_ACCESS, false, 1, 0);
    assert_int_equal(f.decision.abort, policy == RP_POOL_ON_STALE_ABORT);
    assert_int_equal(counters(&f).fallback_pending, policy == RP_POOL_ON_STALE_FALLBACK);
    end(&f);
  }
}

static void stale_read_follows_the_policy(void **state) {
  (void)state;
  for (int policy = RP_POOL_ON_STALE_FALLBACK; policy <= RP_POOL_ON_STALE_ABORT; policy++) {
    struct rp_pool_options options = {.on_stale = (enum rp_pool_policy)policy};
    struct fixture f = start(&options);
    plan(&f, 1, 2);
    allocate(&f, 0, 2);
    cycle(&f, 0, 1);
    receive(&f, 1, 2);
    assert_int_equal(use(&f, 0, (struct rp_pool_access){.interposed = true, .reads = true}), RP_OK);
    expect_conflict(&f, RP_POOL_STALE_ACCESS, false, 1, 0);
    assert_int_equal(f.decision.abort, policy == RP_POOL_ON_STALE_ABORT);
    assert_int_equal(counters(&f).fallback_pending, policy == RP_POOL_ON_STALE_FALLBACK);
    read_back(&f, 1, 2);
    assert_int_equal(rp_pool_quiescent(f.pool, false), RP_OK);
    if (policy == RP_POOL_ON_STALE_FALLBACK) assert_int_equal(counters(&f).bound, 0);
    end(&f);
  }
}

/* In a callback nothing can be changed: a violation, and fallback at the next chance. */
static void callbacks_only_report(void **state) {
  (void)state;
  struct fixture f = start(NULL);
  plan(&f, 1, 3);
  allocate(&f, 0, 3);
  cycle(&f, 0, 1);
  receive(&f, 1, 2);
  rp_pool_step_end(f.pool);
  uint64_t calls = f.device->calls;
  assert_int_equal(use(&f, 0, (struct rp_pool_access){.mode = RP_POOL_WRITE}), RP_OK);
  expect_conflict(&f, RP_POOL_FOREIGN_ACCESS, false, 1, 0);
  assert_int_equal(f.device->calls, calls);
  assert_true(counters(&f).fallback_pending);
  end(&f);
}

/* What only a callback saw writes: the slot may hold it from then on, until the next receive. */
static void a_read_after_an_unseen_write_is_unclear(void **state) {
  (void)state;
  for (int known = 0; known < 2; known++) {
    struct fixture f = start(NULL);
    struct rp_pool_access write = {.mode = known ? RP_POOL_WRITE : RP_POOL_UNKNOWN_MODE};
    plan(&f, 1, 3);
    allocate(&f, 0, 3);
    cycle(&f, 0, 1);
    receive(&f, 1, 2);
    assert_int_equal(use(&f, 0, write), RP_OK);
    expect_conflict(&f, known ? RP_POOL_FOREIGN_ACCESS : RP_POOL_UNCLEAR_ACCESS, false, 1, 0);
    assert_true(counters(&f).fallback_pending);
    assert_int_equal(use(&f, 0, (struct rp_pool_access){.mode = RP_POOL_READ}), RP_OK);
    expect_conflict(&f, RP_POOL_UNCLEAR_ACCESS, false, 1, 0);
    assert_int_equal(rp_pool_release(f.pool, f.id[1]), RP_OK);
    receive(&f, 2, 3);
    assert_int_equal(use(&f, 0, (struct rp_pool_access){.mode = RP_POOL_READ}), RP_OK);
    expect_conflict(&f, RP_POOL_STALE_ACCESS, false, 2, 0);
    end(&f);
  }
}

/* A launch that gets the address of a displaced buffer may write it, which is an allocator's good right, or
 * read it, or do nothing. It gets memory of its own and no alarm; where it was one of those that used the
 * message before, sharing ends. */
static void launches_that_may_write_are_unclear(void **state) {
  (void)state;
  for (int learned = 0; learned < 2; learned++)
    for (int dead = 0; dead < 2; dead++) {
      struct fixture f = start(NULL);
      plan(&f, 1, 3);
      allocate(&f, 0, 3);
      cycle(&f, 0, 1);
      if (dead) rp_pool_step_end(f.pool);
      receive(&f, 1, 2);
      assert_int_equal(use(&f, 0, (struct rp_pool_access){.interposed = true, .learned = learned}), RP_OK);
      expect_conflict(&f, RP_POOL_UNCLEAR_ACCESS, true, 1, 0);
      assert_int_equal(rp_pool_violations(f.pool), 0);
      assert_int_equal(counters(&f).unclear, 1);
      assert_int_equal(counters(&f).unclear_late, 0);
      assert_int_equal(look(&f, 0).binding, RP_POOL_PRIVATE);
      assert_true(host_device_store(f.device, f.address[0], 99));
      assert_int_equal(counters(&f).fallback_pending, learned);
      read_back(&f, 1, 2);
      end(&f);
    }
}

static void unclear_accesses_do_not_push_out_the_others(void **state) {
  (void)state;
  struct fixture f = start(&(struct rp_pool_options){.max_conflicts = RP_POOL_UNCLEAR_KEPT + 1});
  size_t count = 0;
  plan(&f, 1, 3);
  allocate(&f, 0, 3);
  cycle(&f, 0, 1);
  receive(&f, 1, 2);
  for (int i = 0; i < 2 * RP_POOL_UNCLEAR_KEPT; i++)
    assert_int_equal(use(&f, 0, (struct rp_pool_access){0}), RP_OK);
  assert_int_equal(counters(&f).unclear, 2 * RP_POOL_UNCLEAR_KEPT);
  assert_int_equal(counters(&f).unclear_late, 2 * RP_POOL_UNCLEAR_KEPT);
  assert_int_equal(use(&f, 0, (struct rp_pool_access){.mode = RP_POOL_WRITE}), RP_OK);
  expect_conflict(&f, RP_POOL_FOREIGN_ACCESS, false, 1, 0);
  (void)rp_pool_conflicts(f.pool, &count);
  assert_int_equal(count, RP_POOL_UNCLEAR_KEPT + 1);
  end(&f);
}

static void wrong_sizes_go_private(void **state) {
  (void)state;
  struct fixture f = start(NULL);
  plan(&f, 1, 3);
  allocate(&f, 0, 3);
  cycle(&f, 0, 1);
  cycle(&f, 1, 2);
  assert_int_equal(post(&f, 0, (struct rp_pool_post){.bytes = MAPPED, .order = RP_POOL_ORDER_YES}), RP_OK);
  expect_conflict(&f, RP_POOL_SIZE_MISMATCH, true, 0, 0);
  assert_int_equal(look(&f, 0).binding, RP_POOL_PRIVATE);
  assert_int_equal(post(&f, 2, (struct rp_pool_post){.bytes = MAPPED + 1}), RP_OK);
  assert_int_equal(counters(&f).violated[RP_POOL_SIZE_MISMATCH], 1);
  end(&f);
}

static void escaped_pointers_do_not_share(void **state) {
  (void)state;
  struct fixture f = start(NULL);
  struct rp_pool_site site = {.stream = 3};
  struct rp_pool_decision d;
  plan(&f, 1, 4);
  allocate(&f, 0, 4);
  cycle(&f, 0, 1);
  cycle(&f, 1, 2);
  assert_int_equal(rp_pool_flag_decide(f.pool, f.id[0], RP_POOL_FLAG_REGISTERED, true, &site, &d), RP_OK);
  assert_int_equal(rp_pool_flag_commit(f.pool, RP_POOL_FLAG_REGISTERED, &site, &d), RP_OK);
  check(&f);
  expect_conflict(&f, RP_POOL_ESCAPED_POINTER, true, 0, 0);
  assert_int_equal(look(&f, 0).binding, RP_POOL_PRIVATE);
  assert_int_equal(rp_pool_flag_decide(f.pool, f.id[2], RP_POOL_FLAG_ESCAPED, true, &site, &d), RP_OK);
  assert_int_equal(rp_pool_flag_commit(f.pool, RP_POOL_FLAG_ESCAPED, &site, &d), RP_OK);
  assert_int_equal(look(&f, 2).binding, RP_POOL_PRIVATE);
  assert_int_equal(rp_pool_flag_commit(f.pool, RP_POOL_FLAG_ESCAPED, &site, &d), RP_ERROR_STATE);
  end(&f);
}

static void flag_in_callback(struct fixture *f, size_t i) {
  struct rp_pool_site site = {.stream = 3};
  struct rp_pool_decision d;
  assert_int_equal(rp_pool_flag_decide(f->pool, f->id[i], RP_POOL_FLAG_REGISTERED, false, &site, &d), RP_OK);
  assert_int_equal(d.memory, RP_POOL_MEMORY_NONE);
  assert_int_equal(rp_pool_flag_commit(f->pool, RP_POOL_FLAG_REGISTERED, &site, &d), RP_OK);
  check(f);
}

/* Registered behind our back while it shared: its memory must not change any more, so the others leave, but
 * not a tenant in use. */
static void registered_in_a_callback_keeps_the_slot(void **state) {
  (void)state;
  struct fixture f = start(NULL);
  plan(&f, 1, 4);
  allocate(&f, 0, 4);
  cycle(&f, 0, 1);
  cycle(&f, 1, 2);
  receive(&f, 2, 3);
  flag_in_callback(&f, 0);
  expect_conflict(&f, RP_POOL_ESCAPED_POINTER, false, 0, 0);
  int memory = host_device_memory_at(f.device, f.address[0]);
  assert_int_equal(rp_pool_quiescent(f.pool, false), RP_ERROR_STATE);
  check(&f);
  read_back(&f, 2, 3);
  assert_int_equal(host_device_memory_at(f.device, f.address[0]), memory);
  assert_int_equal(look(&f, 1).binding, RP_POOL_PRIVATE);
  release(&f, 2);
  rp_pool_step_end(f.pool);
  assert_int_equal(rp_pool_quiescent(f.pool, false), RP_OK);
  check(&f);
  assert_int_equal(host_device_memory_at(f.device, f.address[0]), memory);
  assert_int_equal(look(&f, 0).binding, RP_POOL_PRIVATE);
  assert_int_equal(look(&f, 2).binding, RP_POOL_PRIVATE);
  end(&f);
}

/* A pinned buffer cannot leave the slot to one whose memory must not change. */
static void pin_beside_a_registered_one_stays(void **state) {
  (void)state;
  struct rp_pool_options options = {.on_stale = RP_POOL_ON_STALE_REPORT};
  struct fixture f = start(&options);
  plan(&f, 1, 3);
  allocate(&f, 0, 3);
  cycle(&f, 0, 1);
  cycle(&f, 1, 2);
  rp_pool_step_end(f.pool);
  read_back(&f, 1, 2);
  struct rp_pool_access captured = {.mode = RP_POOL_READ, .capturing = true, .learned = true};
  assert_int_equal(use(&f, 0, captured), RP_OK); /* a stale read, captured where nothing can be changed */
  assert_int_equal(look(&f, 0).flags, RP_POOL_FLAG_GRAPH);
  int memory = host_device_memory_at(f.device, f.address[0]);
  rp_pool_quiescent(f.pool, false);
  check(&f);
  assert_int_equal(host_device_memory_at(f.device, f.address[0]), memory);
  read_back(&f, 1, 2);
  end(&f);
}

static void captured_receives_keep_their_memory(void **state) {
  (void)state;
  struct fixture f = start(NULL);
  plan(&f, 1, 4);
  allocate(&f, 0, 4);
  cycle(&f, 0, 1);
  cycle(&f, 1, 2);
  struct rp_pool_post captured = {.capturing = true, .order = RP_POOL_ORDER_YES};
  assert_int_equal(post(&f, 2, captured), RP_OK); /* first receive of its life */
  assert_int_equal(look(&f, 2).binding, RP_POOL_PRIVATE);
  assert_int_equal(post(&f, 0, captured), RP_OK);
  assert_true(look(&f, 0).pinned);
  release(&f, 0);
  assert_int_equal(post(&f, 1, (struct rp_pool_post){.order = RP_POOL_ORDER_YES}), RP_OK);
  assert_int_equal(look(&f, 1).binding, RP_POOL_PRIVATE);
  end(&f);
}

static void interrupted_step_freezes(void **state) {
  (void)state;
  struct fixture f = start(NULL);
  plan(&f, 1, 3);
  allocate(&f, 0, 3);
  cycle(&f, 0, 1);
  receive(&f, 1, 2);
  rp_pool_interrupt(f.pool, &(struct rp_pool_site){.step = 1});
  check(&f);
  expect_conflict(&f, RP_POOL_INTERRUPTED, true, 1, 1);
  assert_int_equal(post(&f, 0, (struct rp_pool_post){.order = RP_POOL_ORDER_YES}), RP_ERROR_BUSY);
  assert_true(f.decision.fallback_first);
  assert_int_equal(rp_pool_fallback(f.pool, true), RP_ERROR_BUSY);
  assert_int_equal(rp_pool_fallback(f.pool, false), RP_OK);
  check(&f);
  struct rp_pool_info info = counters(&f);
  assert_int_equal(info.private_buffers, 3);
  assert_int_equal(info.account.saved_bytes, 3 * ((int64_t)BYTES - MAPPED)); /* rounding */
  for (size_t i = 0; i < 3; i++)
    receive(&f, i, i + 5);
  for (size_t i = 0; i < 3; i++)
    read_back(&f, i, i + 5);
  end(&f);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(early_reuse_grows),
      cmocka_unit_test(bound_buffer_grows_too),
      cmocka_unit_test(unordered_reuse_waits_or_grows),
      cmocka_unit_test(late_access_of_the_tenant_reopens),
      cmocka_unit_test(foreign_write_goes_private),
      cmocka_unit_test(foreign_access_of_a_dead_tenant_pins),
      cmocka_unit_test(pinned_buffer_leaves_the_slot_to_the_others),
      cmocka_unit_test(unseen_write_follows_the_policy),
      cmocka_unit_test(stale_read_follows_the_policy),
      cmocka_unit_test(callbacks_only_report),
      cmocka_unit_test(a_read_after_an_unseen_write_is_unclear),
      cmocka_unit_test(launches_that_may_write_are_unclear),
      cmocka_unit_test(unclear_accesses_do_not_push_out_the_others),
      cmocka_unit_test(wrong_sizes_go_private),
      cmocka_unit_test(escaped_pointers_do_not_share),
      cmocka_unit_test(registered_in_a_callback_keeps_the_slot),
      cmocka_unit_test(pin_beside_a_registered_one_stays),
      cmocka_unit_test(captured_receives_keep_their_memory),
      cmocka_unit_test(interrupted_step_freezes),
  };
  return cmocka_run_group_tests_name("pool guard", tests, NULL, NULL);
}
