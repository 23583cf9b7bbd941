/* The pool by hand: allocation by the untouched-burst rule, binding, lending, fallback and the account. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "pool_fixture.h"

static void planned_takes_k_allocations(void **state) {
  (void)state;
  struct fixture f = start(NULL);
  plan(&f, 2, 8);
  allocate(&f, 0, 8);
  for (size_t i = 0; i < 8; i++)
    assert_int_equal(look(&f, i).binding, i < 2 ? RP_POOL_PRIVATE : RP_POOL_UNBOUND);
  assert_int_equal(f.device->physical_bytes, 2 * MAPPED);
  for (size_t step = 0; step < 3; step++) {
    for (size_t i = 0; i < 8; i++)
      cycle(&f, i, 1000 * step + i);
    rp_pool_step_end(f.pool);
  }
  assert_int_equal(f.device->physical_peak_bytes, 2 * MAPPED);
  struct rp_pool_info info = counters(&f);
  assert_int_equal(info.account.saved_bytes, 8 * BYTES - 2 * MAPPED);
  assert_int_equal(info.account.requested_bytes, 8 * BYTES);
  assert_int_equal(info.account.one_to_one_bytes, 8 * MAPPED);
  assert_int_equal(info.account.physical_peak_bytes, 2 * MAPPED);
  assert_int_equal(info.grown, 0);
  assert_int_equal(info.bound, 8);
  assert_int_equal(rp_pool_check(f.pool, NULL), RP_OK);
  for (size_t i = 0; i < 8; i++)
    assert_int_equal(look(&f, i).slot, i % 2);
  end(&f);
}

/* Receives in another order than the allocations: still K in the end. */
static void planned_in_any_order(void **state) {
  (void)state;
  struct fixture f = start(NULL);
  plan(&f, 2, 6);
  allocate(&f, 0, 6);
  for (size_t i = 6; i-- > 0;)
    cycle(&f, i, i);
  assert_int_equal(f.device->physical_bytes, 2 * MAPPED);
  end(&f);
}

/* Activations and gradients of one size: two classes that allocation cannot tell apart. 1F1B order: three
 * activations in flight, then a gradient and an activation by turns. */
static void two_classes(struct fixture *f) {
  plan(f, 3, 6);
  plan(f, 1, 6);
  allocate(f, 0, 12);
  for (size_t i = 0; i < 12; i++)
    assert_int_equal(look(f, i).binding, i < 4 ? RP_POOL_PRIVATE : RP_POOL_UNBOUND);
  for (size_t i = 0; i < 9; i++) {
    struct rp_pool_post of = {.order = RP_POOL_ORDER_YES};
    if (i < 6) assert_int_equal(post_of(f, i, 0, of), RP_OK);
    if (i < 6) assert_true(host_device_store(f->device, f->address[i], i));
    if (i < 2) continue;
    size_t gradient = 6 + i - 2;
    if (gradient >= 12) break;
    assert_int_equal(post_of(f, gradient, 1, of), RP_OK);
    read_back(f, i - 2, i - 2);
    release(f, i - 2);
    release(f, gradient);
  }
  for (size_t i = 0; i < 12; i++)
    assert_int_equal(look(f, i).class_id, i / 6);
  assert_int_equal(f->device->physical_bytes, 4 * MAPPED);
}

static void classes_of_one_size_share_nothing(void **state) {
  (void)state;
  struct fixture f = start(NULL);
  two_classes(&f);
  assert_int_equal(counters(&f).grown, 0);
  assert_int_equal(f.device->physical_peak_bytes, 5 * MAPPED); /* the fourth waited for its first receive */
  end(&f);
}

static void lending_keeps_the_peak_at_k(void **state) {
  (void)state;
  struct rp_pool_options options = {.lend = RP_POOL_LEND_FIRST};
  struct fixture f = start(&options);
  two_classes(&f);
  assert_int_equal(f.device->physical_peak_bytes, 4 * MAPPED);
  assert_int_equal(counters(&f).lent, 1);
  end(&f);
}

/* A device with room for K and no more. */
static void short_memory_lends_too(void **state) {
  (void)state;
  struct rp_pool_options options = {.lend = RP_POOL_LEND_WHEN_SHORT};
  struct fixture f = start(&options);
  f.device->capacity_bytes = 4 * MAPPED;
  two_classes(&f);
  assert_int_equal(counters(&f).lent, 1);
  assert_int_equal(counters(&f).reasons[RP_POOL_OUT_OF_MEMORY], 0);
  end(&f);
}

/* Without lending, a receive that would need more than there is must not go on, and nothing has changed. */
static void short_memory_refuses(void **state) {
  (void)state;
  struct fixture f = start(NULL);
  plan(&f, 2, 4);
  allocate(&f, 0, 4);
  f.device->capacity_bytes = 2 * MAPPED;
  assert_int_equal(post(&f, 2, (struct rp_pool_post){0}), RP_ERROR_NO_MEMORY);
  assert_int_equal(look(&f, 2).binding, RP_POOL_UNBOUND);
  assert_int_equal(look(&f, 2).life, RP_POOL_DEAD);
  assert_int_equal(counters(&f).receives, 0);
  receive(&f, 0, 1);
  receive(&f, 1, 2);
  assert_int_equal(post(&f, 3, (struct rp_pool_post){0}), RP_ERROR_NO_MEMORY);
  assert_int_equal(counters(&f).prevented[RP_POOL_EARLY_REUSE], 0);
  read_back(&f, 0, 1);
  read_back(&f, 1, 2);
  release(&f, 0);
  receive(&f, 2, 3);
  end(&f);
}

/* Lending is among buffers of one size. */
static void other_sizes_do_not_lend(void **state) {
  (void)state;
  struct rp_pool_options options = {.lend = RP_POOL_LEND_FIRST};
  struct fixture f = start(&options);
  struct rp_pool_class_spec other = {.receive_bytes = 2 * MAPPED, .slots = 1, .buffers = 2};
  uint32_t class_id;
  plan(&f, 1, 2);
  assert_int_equal(rp_pool_plan_class(f.pool, &other, &class_id), RP_OK);
  allocate(&f, 0, 2);
  assert_int_equal(rp_pool_allocate(f.pool, 2 * MAPPED, &f.id[2], &f.address[2]), RP_OK);
  receive(&f, 1, 5);
  assert_int_equal(look(&f, 0).binding, RP_POOL_UNBOUND);
  assert_int_equal(look(&f, 2).binding, RP_POOL_PRIVATE);
  assert_int_equal(counters(&f).lent, 1);
  end(&f);
}

static void receives_of_no_class_are_private(void **state) {
  (void)state;
  struct fixture f = start(NULL);
  plan(&f, 1, 4);
  plan(&f, 1, 4);
  allocate(&f, 0, 6);
  struct rp_pool_post ordered = {.order = RP_POOL_ORDER_YES};
  assert_int_equal(post_of(&f, 4, RP_POOL_NONE, ordered), RP_OK); /* either */
  assert_int_equal(look(&f, 4).binding, RP_POOL_PRIVATE);
  assert_int_equal(post_of(&f, 5, 9, ordered), RP_OK); /* neither */
  assert_int_equal(look(&f, 5).binding, RP_POOL_PRIVATE);
  assert_int_equal(counters(&f).reasons[RP_POOL_OTHER_CLASS], 2);
  assert_int_equal(post_of(&f, 3, 1, ordered), RP_OK);
  assert_int_equal(look(&f, 3).class_id, 1);
  end(&f);
}

static void nothing_shares_after_fallback(void **state) {
  (void)state;
  struct fixture f = start(NULL);
  plan(&f, 1, 8);
  allocate(&f, 0, 3);
  rp_pool_request_fallback(f.pool, RP_POOL_SWITCHED_OFF);
  allocate(&f, 3, 1); /* already while it is pending */
  assert_int_equal(look(&f, 2).binding, RP_POOL_UNBOUND);
  assert_int_equal(look(&f, 3).binding, RP_POOL_PRIVATE);
  assert_int_equal(rp_pool_quiescent(f.pool, false), RP_OK);
  allocate(&f, 4, 3);
  for (size_t i = 0; i < 7; i++) {
    receive(&f, i, i);
    assert_int_equal(look(&f, i).binding, RP_POOL_PRIVATE);
  }
  assert_int_equal(counters(&f).reasons[RP_POOL_SWITCHED_OFF], 1);
  assert_int_equal(counters(&f).account.saved_bytes, 7 * ((int64_t)BYTES - MAPPED)); /* rounding */
  end(&f);
}

static void weights_and_activations_of_the_same_size(void **state) {
  (void)state;
  struct fixture f = start(NULL);
  struct rp_pool_access touch = {.mode = RP_POOL_WRITE};
  plan(&f, 2, 0);
  allocate(&f, 0, 2); /* weights, filled by a library that is seen in callbacks only */
  assert_int_equal(use(&f, 0, touch), RP_OK);
  assert_int_equal(use(&f, 1, touch), RP_OK);
  allocate(&f, 2, 4); /* receive buffers: two backed again, then address space only */
  assert_int_equal(look(&f, 2).binding, RP_POOL_PRIVATE);
  assert_int_equal(look(&f, 3).binding, RP_POOL_PRIVATE);
  assert_int_equal(look(&f, 4).binding, RP_POOL_UNBOUND);
  assert_int_equal(look(&f, 5).binding, RP_POOL_UNBOUND);
  cycle(&f, 2, 1);
  for (size_t i = 6; i < 12; i++) { /* a forward pass: each activation is written before the next */
    allocate(&f, i, 1);
    assert_int_equal(look(&f, i).binding, RP_POOL_PRIVATE);
    assert_int_equal(use(&f, i, touch), RP_OK);
  }
  for (size_t i = 0; i < 12; i++)
    assert_int_equal(counters(&f).violated[RP_POOL_FOREIGN_ACCESS], 0);
  end(&f);
}

/* Weights and activations that nobody tells us of at all, not even in a callback: with the plan's counts they
 * have memory all the time, and keep their contents whatever is received. */
static void unseen_touches_are_harmless(void **state) {
  (void)state;
  struct fixture f = start(NULL);
  plan(&f, 2, 6);
  allocate(&f, 0, 2);
  assert_true(host_device_store(f.device, f.address[0], 70));
  assert_true(host_device_store(f.device, f.address[1], 71));
  allocate(&f, 2, 6);
  for (size_t i = 2; i < 8; i++) {
    size_t activation = i + 6;
    cycle(&f, i, i);
    allocate(&f, activation, 1);
    assert_true(host_device_store(f.device, f.address[activation], 100 + i));
  }
  for (size_t i = 0; i < 14; i++) {
    uint64_t seen = 0;
    if (i >= 2 && i < 8) continue;
    assert_true(host_device_load(f.device, f.address[i], &seen));
    assert_int_equal(seen, i < 2 ? 70 + i : 94 + i);
  }
  end(&f);
}

static void plan_counts_bound_the_burst(void **state) {
  (void)state;
  struct fixture f = start(NULL);
  plan(&f, 2, 4);
  allocate(&f, 0, 6);
  for (size_t i = 0; i < 6; i++)
    assert_int_equal(look(&f, i).binding, i == 2 || i == 3 ? RP_POOL_UNBOUND : RP_POOL_PRIVATE);
  assert_int_equal(counters(&f).reasons[RP_POOL_MORE_BUFFERS], 2);
  end(&f);
}

static void first_touch_binds_private_memory(void **state) {
  (void)state;
  struct fixture f = start(NULL);
  plan(&f, 1, 4);
  allocate(&f, 0, 4);
  assert_int_equal(use(&f, 2, (struct rp_pool_access){.mode = RP_POOL_WRITE, .interposed = true}), RP_OK);
  assert_int_equal(look(&f, 2).binding, RP_POOL_PRIVATE);
  assert_true(host_device_accessible(f.device, f.address[2]));
  assert_int_equal(counters(&f).reasons[RP_POOL_FIRST_TOUCH], 1);
  assert_int_equal(counters(&f).prevented[RP_POOL_FOREIGN_ACCESS], 0);
  assert_int_equal(use(&f, 3, (struct rp_pool_access){.mode = RP_POOL_WRITE}), RP_OK);
  expect_conflict(&f, RP_POOL_FOREIGN_ACCESS, false, 3, 3);
  assert_true(counters(&f).fallback_pending);
  end(&f);
}

/* A library whose calls can be seen only, and so not stopped: whatever it uses first has memory. */
static void unstoppable_calls_find_memory(void **state) {
  (void)state;
  struct rp_pool_options options = {.lend = RP_POOL_LEND_FIRST};
  struct rp_pool_access touch = {.mode = RP_POOL_WRITE};
  struct fixture f = start(&options);
  plan(&f, 2, 0);
  assert_int_equal(rp_pool_unstoppable(f.pool), RP_OK);
  allocate(&f, 0, 10); /* receive buffers, then weights in one burst with them */
  for (size_t i = 0; i < 10; i++)
    assert_int_equal(look(&f, i).binding, RP_POOL_PRIVATE);
  for (size_t i = 8; i < 10; i++) {
    assert_true(host_device_store(f.device, f.address[i], 70 + i));
    assert_int_equal(use(&f, i, touch), RP_OK);
  }
  for (size_t i = 0; i < 8; i++) {
    cycle(&f, i, i);
    assert_int_equal(f.device->physical_bytes, (i < 2 ? 10 : 10 - (i - 1)) * MAPPED);
  }
  assert_int_equal(f.device->physical_bytes, (2 + 2) * MAPPED);
  assert_int_equal(counters(&f).lent, 0);
  assert_int_equal(counters(&f).reasons[RP_POOL_CALLS_UNSTOPPABLE], 1);
  assert_int_equal(counters(&f).reasons[RP_POOL_MEMORY_SHORT], 0);
  for (size_t i = 8; i < 10; i++)
    read_back(&f, i, 70 + i);
  end(&f);
}

static void unstoppable_calls_become_known_late(void **state) {
  (void)state;
  struct fixture f = start(NULL);
  plan(&f, 2, 8);
  allocate(&f, 0, 8);
  cycle(&f, 0, 1);
  assert_int_equal(rp_pool_unstoppable(f.pool), RP_OK);
  for (size_t i = 0; i < 8; i++)
    assert_true(host_device_accessible(f.device, f.address[i]));
  assert_int_equal(rp_pool_unstoppable(f.pool), RP_OK);
  assert_int_equal(counters(&f).reasons[RP_POOL_CALLS_UNSTOPPABLE], 1);
  for (size_t i = 1; i < 8; i++)
    cycle(&f, i, i);
  assert_int_equal(f.device->physical_bytes, 2 * MAPPED);
  end(&f);
}

/* The program would have run out of memory without the pool: now it is worth leaving some out. */
static void short_memory_is_given_up(void **state) {
  (void)state;
  struct fixture f = start(NULL);
  plan(&f, 2, 0);
  assert_int_equal(rp_pool_unstoppable(f.pool), RP_OK);
  f.device->capacity_bytes = 5 * MAPPED;
  allocate(&f, 0, 5);
  for (size_t i = 0; i < 5; i++)
    assert_int_equal(look(&f, i).binding, RP_POOL_PRIVATE);
  allocate(&f, 5, 3);
  for (size_t i = 0; i < 8; i++)
    assert_int_equal(look(&f, i).binding, i < 2 || i == 7 ? RP_POOL_PRIVATE : RP_POOL_UNBOUND);
  assert_int_equal(counters(&f).reasons[RP_POOL_MEMORY_SHORT], 1);
  assert_int_equal(f.device->physical_bytes, 3 * MAPPED);
  assert_int_equal(rp_pool_memory_short(f.pool), MAPPED); /* the newest, when there is nothing else */
  assert_int_equal(rp_pool_memory_short(f.pool), 0);
  for (size_t i = 0; i < 8; i++)
    cycle(&f, i, i);
  assert_int_equal(f.device->physical_bytes, 2 * MAPPED);
  assert_int_equal(counters(&f).reasons[RP_POOL_MEMORY_SHORT], 1);
  end(&f);
}

/* One refusal, or a time without memory, is no reason to leave buffers without for good; nor is each free one
 * to try. */
static void memory_that_comes_back_is_used(void **state) {
  (void)state;
  struct fixture f = start(NULL);
  plan(&f, 2, 0);
  assert_int_equal(rp_pool_unstoppable(f.pool), RP_OK);
  f.device->capacity_bytes = 5 * MAPPED;
  allocate(&f, 0, 8);
  assert_true(counters(&f).memory_short);
  assert_false(rp_pool_memory_due(f.pool));
  assert_int_equal(rp_pool_unstoppable(f.pool), RP_OK); /* no news: nothing is tried */
  assert_int_equal(look(&f, 3).binding, RP_POOL_UNBOUND);
  for (uint32_t wanted = 1; wanted <= 256; wanted *= 2) {
    for (uint32_t news = 0; news < wanted && news < 64; news++) {
      assert_false(rp_pool_memory_due(f.pool));
      rp_pool_memory_news(f.pool);
    }
    assert_true(rp_pool_memory_due(f.pool));
    assert_int_equal(rp_pool_unstoppable(f.pool), RP_ERROR_NO_MEMORY);
    assert_true(counters(&f).memory_short);
    assert_true(f.device->physical_bytes <= 5 * MAPPED);
  }
  f.device->capacity_bytes = 8 * MAPPED;
  for (int news = 0; !rp_pool_memory_due(f.pool); news++) {
    assert_true(news < 64);
    rp_pool_step_end(f.pool);
  }
  assert_int_equal(rp_pool_unstoppable(f.pool), RP_OK);
  assert_false(counters(&f).memory_short);
  for (size_t i = 0; i < 8; i++)
    assert_true(host_device_accessible(f.device, f.address[i]));
  assert_int_equal(rp_pool_memory_short(f.pool), 5 * MAPPED); /* and given up again where it is wanted */
  assert_int_equal(rp_pool_free(f.pool, f.address[7]), RP_OK);
  assert_true(rp_pool_memory_due(f.pool)); /* patience begins anew */
  end(&f);
}

/* What a library writes as soon as it is allocated, behind the receive buffers, has memory even then. */
static void the_newest_has_memory(void **state) {
  (void)state;
  struct fixture f = start(NULL);
  plan(&f, 2, 0);
  assert_int_equal(rp_pool_unstoppable(f.pool), RP_OK);
  f.device->capacity_bytes = 4 * MAPPED;
  allocate(&f, 0, 8);
  allocate(&f, 8, 1); /* an activation */
  assert_int_equal(look(&f, 7).binding, RP_POOL_UNBOUND);
  assert_true(host_device_store(f.device, f.address[8], 9));
  assert_int_equal(use(&f, 8, (struct rp_pool_access){.mode = RP_POOL_WRITE}), RP_OK);
  allocate(&f, 9, 1);
  assert_true(host_device_accessible(f.device, f.address[9]));
  assert_int_equal(rp_pool_memory_short(f.pool), 0); /* it was not of the burst */
  for (size_t i = 0; i < 8; i++)
    cycle(&f, i, i);
  read_back(&f, 8, 9);
  assert_int_equal(f.device->physical_bytes, 4 * MAPPED);
  end(&f);
}

/* Where all calls can be stopped nothing was held that could be given up. */
static void nothing_to_give_up(void **state) {
  (void)state;
  struct fixture f = start(NULL);
  plan(&f, 2, 8);
  allocate(&f, 0, 8);
  assert_int_equal(rp_pool_memory_short(f.pool), 0);
  assert_int_equal(counters(&f).reasons[RP_POOL_MEMORY_SHORT], 0);
  assert_true(host_device_accessible(f.device, f.address[1]));
  end(&f);
}

static void lives_change_in_order_only(void **state) {
  (void)state;
  struct fixture f = start(NULL);
  plan(&f, 1, 2);
  allocate(&f, 0, 2);
  assert_int_equal(rp_pool_release(f.pool, f.id[0]), RP_ERROR_STATE);
  receive(&f, 0, 1);
  assert_int_equal(look(&f, 0).life, RP_POOL_POSTED);
  read_back(&f, 0, 1);
  assert_int_equal(look(&f, 0).life, RP_POOL_LIVE);
  release(&f, 0);
  assert_int_equal(rp_pool_release(f.pool, f.id[0]), RP_ERROR_STATE);
  rp_pool_step_end(f.pool);
  assert_int_equal(look(&f, 0).life, RP_POOL_DEAD);
  assert_int_equal(rp_pool_release(f.pool, 77), RP_ERROR_NOT_FOUND);
  assert_int_equal(rp_pool_free(f.pool, f.address[0] + 8), RP_ERROR_NOT_FOUND);
  assert_int_equal(rp_pool_free(f.pool, f.address[0]), RP_OK);
  assert_int_equal(rp_pool_free(f.pool, f.address[0]), RP_ERROR_NOT_FOUND);
  assert_int_equal(rp_pool_release(f.pool, f.id[0]), RP_ERROR_NOT_FOUND);
  end(&f);
}

/* The class that a receive names is not the only one of its size. */
static void a_named_class_must_exist(void **state) {
  (void)state;
  struct fixture f = start(NULL);
  plan(&f, 1, 4);
  allocate(&f, 0, 3);
  assert_int_equal(post_of(&f, 2, 9, (struct rp_pool_post){0}), RP_OK);
  assert_int_equal(look(&f, 2).binding, RP_POOL_PRIVATE);
  end(&f);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(planned_takes_k_allocations),
      cmocka_unit_test(planned_in_any_order),
      cmocka_unit_test(classes_of_one_size_share_nothing),
      cmocka_unit_test(lending_keeps_the_peak_at_k),
      cmocka_unit_test(short_memory_lends_too),
      cmocka_unit_test(short_memory_refuses),
      cmocka_unit_test(other_sizes_do_not_lend),
      cmocka_unit_test(receives_of_no_class_are_private),
      cmocka_unit_test(nothing_shares_after_fallback),
      cmocka_unit_test(weights_and_activations_of_the_same_size),
      cmocka_unit_test(unseen_touches_are_harmless),
      cmocka_unit_test(plan_counts_bound_the_burst),
      cmocka_unit_test(first_touch_binds_private_memory),
      cmocka_unit_test(unstoppable_calls_find_memory),
      cmocka_unit_test(unstoppable_calls_become_known_late),
      cmocka_unit_test(memory_that_comes_back_is_used),
      cmocka_unit_test(short_memory_is_given_up),
      cmocka_unit_test(the_newest_has_memory),
      cmocka_unit_test(nothing_to_give_up),
      cmocka_unit_test(lives_change_in_order_only),
      cmocka_unit_test(a_named_class_must_exist),
  };
  return cmocka_run_group_tests_name("pool", tests, NULL, NULL);
}
