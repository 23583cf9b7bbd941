/* Memory kept back: what a buffer that shares needs of its own is there when the device has none left. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "pool_fixture.h"

#define N 6
#define K 2

static const struct rp_pool_class_spec spec = {.receive_bytes = BYTES, .slots = K, .buffers = N};

/* N buffers on K slots, in auto mode; and the program takes all that this set free. */
static struct fixture shared(uint64_t headroom_bytes) {
  struct rp_pool_options options = {.headroom_bytes = headroom_bytes};
  uint32_t slot[N];
  struct fixture f = start(&options);
  allocate(&f, 0, N);
  for (uint32_t i = 0; i < N; i++)
    slot[i] = i % K;
  assert_int_equal(counters(&f).headroom_bytes, 0);
  assert_int_equal(rp_pool_activate(f.pool, &spec, f.id, slot, N, false, &f.class_id), RP_OK);
  check(&f);
  f.device->capacity_bytes = f.device->physical_bytes;
  return f;
}

static rp_status write_to(struct fixture *f, size_t i) {
  return use(f, i, (struct rp_pool_access){.mode = RP_POOL_WRITE, .interposed = true});
}

static void without_it_there_is_none(void **state) {
  (void)state;
  struct fixture f = shared(0);
  assert_int_equal(f.device->physical_bytes, K * MAPPED);
  assert_int_equal(write_to(&f, 4), RP_ERROR_NO_MEMORY);
  end(&f);
}

static void it_is_made_of_what_sharing_sets_free(void **state) {
  (void)state;
  struct fixture f = shared(1); /* whole buffers */
  assert_int_equal(f.device->physical_bytes, (K + 1) * MAPPED);
  assert_int_equal(f.device->physical_peak_bytes, N * MAPPED);
  assert_int_equal(counters(&f).headroom_bytes, MAPPED);
  assert_int_equal(counters(&f).account.physical_bytes, (K + 1) * MAPPED);
  assert_int_equal(write_to(&f, 4), RP_OK);
  assert_int_equal(look(&f, 4).binding, RP_POOL_PRIVATE);
  assert_true(host_device_accessible(f.device, f.address[4]));
  assert_int_equal(counters(&f).headroom_bytes, 0);
  assert_int_equal(counters(&f).headroom_used, 1);
  assert_int_equal(write_to(&f, 5), RP_ERROR_NO_MEMORY);
  assert_int_equal(rp_pool_free(f.pool, f.address[4]), RP_OK); /* kept back again */
  assert_int_equal(counters(&f).headroom_bytes, MAPPED);
  assert_int_equal(write_to(&f, 5), RP_OK);
  end(&f);
}

/* The program is to take all that sharing set free, but not what is kept back. */
static void it_is_not_for_new_buffers(void **state) {
  (void)state;
  struct fixture f = shared(MAPPED);
  uint64_t address;
  assert_int_equal(rp_pool_allocate(f.pool, BYTES, &f.id[N], &address), RP_ERROR_NO_MEMORY);
  assert_int_equal(counters(&f).headroom_bytes, MAPPED);
  end(&f);
}

static void growth_finds_it(void **state) {
  (void)state;
  struct fixture f = shared(2 * MAPPED);
  assert_int_equal(counters(&f).headroom_bytes, 2 * MAPPED);
  receive(&f, 0, 1);
  receive(&f, 2, 2); /* its slot is in use */
  assert_int_equal(counters(&f).grown, 1);
  receive(&f, 4, 3);
  read_back(&f, 0, 1);
  read_back(&f, 2, 2);
  read_back(&f, 4, 3);
  end(&f);
}

/* While the driver has some, that is taken, and the headroom stays. */
static void the_driver_is_asked_first(void **state) {
  (void)state;
  struct fixture f = shared(MAPPED);
  f.device->capacity_bytes += MAPPED;
  assert_int_equal(write_to(&f, 4), RP_OK);
  assert_int_equal(counters(&f).headroom_bytes, MAPPED);
  assert_int_equal(write_to(&f, 5), RP_OK);
  assert_int_equal(counters(&f).headroom_bytes, 0);
  end(&f);
}

/* However much is asked for: no more than the buffers hold without sharing, and nothing for nobody. */
static void it_is_no_more_than_is_of_use(void **state) {
  (void)state;
  struct fixture f = shared(UINT64_MAX);
  assert_int_equal(f.device->physical_bytes, N * MAPPED);
  for (size_t i = 0; i < N; i++) {
    assert_int_equal(rp_pool_free(f.pool, f.address[i]), RP_OK);
    check(&f);
    assert_true(f.device->physical_bytes <= (N - i - 1) * MAPPED);
  }
  assert_int_equal(counters(&f).headroom_bytes, 0);
  end(&f);
  f = shared(2 * MAPPED);
  assert_int_equal(rp_pool_fallback(f.pool, false), RP_ERROR_NO_MEMORY);
  assert_int_equal(counters(&f).headroom_bytes, 0); /* two more have theirs */
  f.device->capacity_bytes = N * MAPPED;
  assert_int_equal(rp_pool_fallback(f.pool, false), RP_OK);
  assert_int_equal(f.device->physical_bytes, N * MAPPED);
  assert_int_equal(counters(&f).headroom_bytes, 0);
  end(&f);
}

static void a_plan_makes_it_beforehand(void **state) {
  (void)state;
  struct rp_pool_options options = {.headroom_bytes = MAPPED};
  struct fixture f = start(&options);
  plan(&f, K, N);
  allocate(&f, 0, N);
  assert_int_equal(f.device->physical_bytes, (K + 1) * MAPPED);
  assert_int_equal(counters(&f).headroom_bytes, MAPPED);
  f.device->capacity_bytes = f.device->physical_bytes;
  for (size_t i = 0; i < N - 1; i++)
    cycle(&f, i, i);
  assert_int_equal(write_to(&f, N - 1), RP_OK); /* it was none of them after all */
  assert_int_equal(counters(&f).headroom_used, 1);
  end(&f);
}

/* No failure on the way loses any of it. */
static bool failing_at(uint64_t position) {
  struct rp_pool_options options = {.headroom_bytes = MAPPED};
  uint32_t slot[N];
  struct fixture f = start(&options);
  allocate(&f, 0, N);
  for (uint32_t i = 0; i < N; i++)
    slot[i] = i % K;
  uint64_t failures = f.device->failures;
  f.device->fail_at = f.device->calls + position;
  (void)rp_pool_activate(f.pool, &spec, f.id, slot, N, false, &f.class_id);
  check(&f);
  (void)write_to(&f, 4);
  for (size_t i = 0; i < N; i++) {
    (void)rp_pool_free(f.pool, f.address[i]);
    check(&f);
  }
  f.device->fail_at = 0;
  bool fired = f.device->failures > failures;
  end(&f);
  return fired;
}

static void every_call_may_fail(void **state) {
  (void)state;
  uint64_t position = 1;
  while (failing_at(position))
    position++;
  assert_true(position > 4 * (N - K));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(without_it_there_is_none),   cmocka_unit_test(it_is_made_of_what_sharing_sets_free),
      cmocka_unit_test(it_is_not_for_new_buffers),  cmocka_unit_test(growth_finds_it),
      cmocka_unit_test(the_driver_is_asked_first),  cmocka_unit_test(it_is_no_more_than_is_of_use),
      cmocka_unit_test(a_plan_makes_it_beforehand), cmocka_unit_test(every_call_may_fail),
  };
  return cmocka_run_group_tests_name("pool headroom", tests, NULL, NULL);
}
