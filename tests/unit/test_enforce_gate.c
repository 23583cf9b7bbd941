/* The gate and what is handed through it: one at a time, others wait, what comes meanwhile is not lost; uses
 * of a launch; the tracker's channels in the guard's words. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "agent/agent.h"
#include "agent/agent_internal.h"
#include "agent/enforce_internal.h"
#include "agent/ordering.h"
#include "agent/work.h"

/* ---- the gate ---- */

static _Atomic int inside, most_inside, entered;

static void *enter_often(void *unused) {
  for (int i = 0; i < 200; i++) {
    if (!rp__gate_enter()) return unused;
    int now = atomic_fetch_add(&inside, 1) + 1;
    if (now > atomic_load(&most_inside)) atomic_store(&most_inside, now);
    atomic_fetch_sub(&inside, 1);
    if (i % 3 == 0) {
      rp__gate_act();
      atomic_fetch_add(&inside, 1);
      rp_agent_unlock(); /* as around a call of the driver */
      rp__pause(10000);
      (void)rp_agent_lock();
      if (atomic_load(&inside) > atomic_load(&most_inside)) atomic_store(&most_inside, atomic_load(&inside));
      atomic_fetch_sub(&inside, 1);
      rp__gate_acted();
    }
    atomic_fetch_add(&entered, 1);
    rp__gate_leave();
  }
  return unused;
}

static void one_at_a_time(void **state) {
  (void)state;
  pthread_t threads[6];
  for (size_t i = 0; i < 6; i++)
    assert_int_equal(pthread_create(&threads[i], NULL, enter_often, NULL), 0);
  for (size_t i = 0; i < 6; i++)
    assert_int_equal(pthread_join(threads[i], NULL), 0);
  assert_int_equal(entered, 6 * 200);
  assert_int_equal(most_inside, 1);
  assert_false(rp__gate_acting());
}

static void *try_briefly(void *result) {
  *(bool *)result = rp__gate_enter_within(2000000);
  if (*(bool *)result) rp__gate_leave();
  return NULL;
}

static void who_cannot_wait_goes_without(void **state) {
  (void)state;
  pthread_t thread;
  bool got = true;
  assert_true(rp__gate_enter());
  rp__gate_act();
  assert_int_equal(rp_thread.busy, 1);
  rp_agent_unlock();
  assert_int_equal(pthread_create(&thread, NULL, try_briefly, &got), 0);
  assert_int_equal(pthread_join(thread, NULL), 0);
  assert_false(got);
  assert_true(rp_agent_lock());
  rp__gate_acted();
  assert_int_equal(rp_thread.busy, 0);
  rp__gate_leave();
  assert_int_equal(pthread_create(&thread, NULL, try_briefly, &got), 0);
  assert_int_equal(pthread_join(thread, NULL), 0);
  assert_true(got);
}

/* From inside the core lock, as a signal handler of the program may come, nobody waits for himself. */
static void inside_the_lock_nothing_is_taken(void **state) {
  (void)state;
  assert_true(rp_agent_lock());
  assert_false(rp__gate_enter());
  rp_agent_unlock();
}

static void calls_of_others_are_told_apart(void **state) {
  (void)state;
  assert_true(rp__gate_enter());
  rp__flight_begin();
  rp__flight_begin();
  assert_false(rp__others_in_flight());
  uint32_t mine = rp_thread.in_flight;
  rp_thread.in_flight = 0; /* as another thread sees it */
  assert_true(rp__others_in_flight());
  rp_thread.in_flight = mine;
  rp__flight_end();
  rp__flight_end();
  rp__flight_end(); /* one too many changes nothing */
  assert_false(rp__others_in_flight());
  assert_int_equal(rp_thread.in_flight, 0);
  rp__gate_leave();
}

/* ---- what is known to be idle ---- */

static void idle_is_what_was_waited_for(void **state) {
  (void)state;
  const struct rp_order_gap gaps[] = {{.token = 5}, {.token = 7}};
  struct rp__idle idle = {.done = {5}, .count = 1};
  assert_true(rp__gate_enter());
  assert_true(rp__idle_known(&idle, gaps, 0));
  assert_true(rp__idle_known(&idle, gaps, 1));
  assert_false(rp__idle_known(&idle, gaps, 2));
  idle.everything = true;
  idle.activity = rp__activity();
  assert_true(rp__idle_known(&idle, gaps, 2));
  rp__note_activity(); /* something was launched since */
  assert_false(rp__idle_known(&idle, gaps, 2));
  const struct rp_order_gap unknown = {.token = RP_ORDER_TOKEN_UNKNOWN};
  idle.done[0] = RP_ORDER_TOKEN_UNKNOWN;
  assert_false(rp__idle_known(&idle, &unknown, 1));
  rp__gate_leave();
}

/* ---- uses ---- */

static void each_address_of_a_launch_once(void **state) {
  (void)state;
  static const struct rp_launch_words words = {.count = 5,
                                               .words = {{.value = 10, .hit = true},
                                                         {.value = 20},
                                                         {.value = 10, .hit = true},
                                                         {.value = 30, .hit = true},
                                                         {.value = 30, .hit = true}}};
  const struct rp_work work = {.words = &words};
  struct rp_use use;
  size_t position = 0;
  assert_true(rp_work_next(&work, &position, &use));
  assert_int_equal(use.address, 10);
  assert_int_equal(use.bytes, 0);
  assert_int_equal(use.mode, RP_POOL_UNKNOWN_MODE);
  assert_true(rp_work_next(&work, &position, &use));
  assert_int_equal(use.address, 30);
  assert_false(rp_work_next(&work, &position, &use));
  assert_false(rp_work_next(&work, &position, &use));
}

static void uses_of_a_copy_in_order(void **state) {
  (void)state;
  const struct rp_work work = {.uses = {{.address = 1, .bytes = 8, .mode = RP_POOL_READ},
                                        {.address = 2, .bytes = 8, .mode = RP_POOL_WRITE}},
                               .use_count = 2};
  struct rp_use use;
  size_t position = 0;
  assert_true(rp_work_next(&work, &position, &use));
  assert_int_equal(use.mode, RP_POOL_READ);
  assert_true(rp_work_next(&work, &position, &use));
  assert_int_equal(use.mode, RP_POOL_WRITE);
  assert_false(rp_work_next(&work, &position, &use));
}

/* ---- channels ---- */

static struct rp_channel channel(int32_t peer, enum rp_direction direction, struct rp_lifetime *lifetimes,
                                 size_t count) {
  return (struct rp_channel){.comm = 9,
                             .peer = peer,
                             .direction = direction,
                             .stage_ordinal = 1,
                             .buffer_bytes = 4096,
                             .lifetimes = lifetimes,
                             .lifetime_count = count};
}

static void buffers_of_a_channel_share_its_label(void **state) {
  (void)state;
  struct rp_lifetime one[] = {{.address = 100, .microbatch = 0}, {.address = 200, .microbatch = 1}};
  struct rp_lifetime two[] = {{.address = 300, .microbatch = 0}};
  struct rp_channel channels[] = {channel(1, RP_DIRECTION_ACTIVATION, one, 2),
                                  channel(1, RP_DIRECTION_GRADIENT, two, 1)};
  const struct rp_snapshot snapshot = {.channels = channels, .channel_count = 2};
  struct rp_guard_channel *out;
  size_t count;
  assert_int_equal(rp__channels_of(&snapshot, &out, &count), RP_OK);
  assert_int_equal(count, 3);
  assert_int_equal(out[0].address, 100);
  assert_int_equal(out[1].microbatch, 1);
  assert_int_equal(out[0].label, out[1].label);
  assert_int_not_equal(out[0].label, out[2].label);
  assert_int_equal(out[2].direction, RP_DIRECTION_GRADIENT);
  assert_int_equal(out[2].stage, 1);
  free(out);
  const struct rp_snapshot nothing = {0};
  assert_int_equal(rp__channels_of(&nothing, &out, &count), RP_OK);
  assert_null(out);
  assert_int_equal(count, 0);
}

static int start(void **state) {
  (void)state;
  return rp_ordering_start() == RP_OK ? 0 : -1;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(one_at_a_time),
      cmocka_unit_test(who_cannot_wait_goes_without),
      cmocka_unit_test(inside_the_lock_nothing_is_taken),
      cmocka_unit_test(calls_of_others_are_told_apart),
      cmocka_unit_test(idle_is_what_was_waited_for),
      cmocka_unit_test(each_address_of_a_launch_once),
      cmocka_unit_test(uses_of_a_copy_in_order),
      cmocka_unit_test(buffers_of_a_channel_share_its_label),
  };
  return cmocka_run_group_tests(tests, start, NULL);
}
