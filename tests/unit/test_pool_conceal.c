/* Mappings taken away for a while, and classes that are used again when nothing belongs to them any more. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "pool_fixture.h"

/* Four buffers on two slots; 0 and 1 were the last tenants. */
static struct fixture shared(void) {
  struct fixture f = start(NULL);
  plan(&f, 2, 4);
  allocate(&f, 0, 4);
  for (size_t i = 0; i < 6; i++)
    cycle(&f, i % 4, i);
  return f;
}

static void concealed_memory_comes_back(void **state) {
  (void)state;
  struct fixture f = shared();
  uint64_t seen = 0, physical = f.device->physical_bytes;
  for (size_t i = 0; i < 4; i++) {
    assert_int_equal(rp_pool_conceal(f.pool, f.id[i]), RP_OK);
    assert_int_equal(rp_pool_conceal(f.pool, f.id[i]), RP_OK);
    assert_false(host_device_accessible(f.device, f.address[i]));
    assert_true(look(&f, i).concealed);
    check(&f);
  }
  assert_int_equal(f.device->physical_bytes, physical);
  assert_int_equal(counters(&f).concealed, 4);
  for (size_t i = 0; i < 4; i++)
    assert_int_equal(rp_pool_reveal(f.pool, f.id[i]), RP_OK);
  assert_int_equal(counters(&f).concealed, 0);
  assert_true(host_device_load(f.device, f.address[1], &seen));
  assert_int_equal(seen, 5);
  check(&f);
  end(&f);
}

static void what_is_in_use_is_not_concealed(void **state) {
  (void)state;
  struct fixture f = shared();
  const struct rp_pool_site site = {0};
  assert_int_equal(rp_pool_conceal(f.pool, 77), RP_ERROR_NOT_FOUND);
  assert_int_equal(rp_pool_reveal(f.pool, 77), RP_ERROR_NOT_FOUND);
  receive(&f, 0, 9);
  assert_int_equal(rp_pool_conceal(f.pool, f.id[0]), RP_ERROR_STATE);
  read_back(&f, 0, 9);
  assert_int_equal(rp_pool_conceal(f.pool, f.id[0]), RP_ERROR_STATE);
  assert_int_equal(rp_pool_flag_decide(f.pool, f.id[1], RP_POOL_FLAG_ESCAPED, true, &site, &f.decision),
                   RP_OK);
  assert_int_equal(rp_pool_flag_commit(f.pool, RP_POOL_FLAG_ESCAPED, &site, &f.decision), RP_OK);
  assert_int_equal(rp_pool_conceal(f.pool, f.id[1]), RP_ERROR_STATE);
  allocate(&f, 4, 1);
  assert_int_equal(rp_pool_conceal(f.pool, f.id[4]), RP_ERROR_STATE); /* of its own */
  end(&f);
}

/* Everything that can happen to a buffer can happen to a concealed one. */
static void concealed_buffers_go_everywhere(void **state) {
  (void)state;
  for (int what = 0; what < 5; what++) {
    struct fixture f = shared();
    for (size_t i = 0; i < 4; i++)
      assert_int_equal(rp_pool_conceal(f.pool, f.id[i]), RP_OK);
    if (what == 0) assert_int_equal(rp_pool_free(f.pool, f.address[1]), RP_OK);
    if (what == 1) {
      rp_pool_request_fallback(f.pool, RP_POOL_SWITCHED_OFF);
      assert_int_equal(rp_pool_quiescent(f.pool, false), RP_OK);
      for (size_t i = 0; i < 4; i++)
        assert_true(host_device_accessible(f.device, f.address[i]));
    }
    if (what == 2) { /* grows */
      for (size_t i = 0; i < 2; i++) {
        assert_int_equal(rp_pool_reveal(f.pool, f.id[i]), RP_OK);
        receive(&f, i, 20 + i);
      }
      receive(&f, 2, 30);
      assert_int_equal(look(&f, 2).binding, RP_POOL_PRIVATE);
      assert_false(look(&f, 2).concealed);
      for (size_t i = 0; i < 2; i++)
        read_back(&f, i, 20 + i);
    }
    if (what == 3) { /* the driver refuses to map it again: as it was */
      f.device->fail_at = f.device->calls + 1;
      assert_int_not_equal(rp_pool_reveal(f.pool, f.id[2]), RP_OK);
      assert_true(look(&f, 2).concealed);
      assert_int_equal(rp_pool_reveal(f.pool, f.id[2]), RP_OK);
    }
    if (what == 4) { /* access is refused, and taking the mapping away again too: lost until it is */
      f.device->fail_at = f.device->calls + 2;
      f.device->fail_count = 100;
      assert_int_not_equal(rp_pool_reveal(f.pool, f.id[2]), RP_OK);
      assert_true(look(&f, 2).lost);
      assert_int_equal(counters(&f).lost, 1);
      check(&f);
      f.device->fail_at = 0;
      assert_int_equal(rp_pool_quiescent(f.pool, false), RP_OK);
      assert_false(look(&f, 2).lost);
      assert_int_equal(look(&f, 2).binding, RP_POOL_BOUND);
      assert_true(host_device_accessible(f.device, f.address[2]));
    }
    check(&f);
    end(&f);
  }
}

static void spent_classes_are_used_again(void **state) {
  (void)state;
  struct fixture f = start(NULL);
  struct rp_pool_class_spec spec = {.label = 1, .receive_bytes = BYTES, .slots = 1};
  uint32_t slots[2] = {0, 0}, made = 9;
  for (int round = 0; round < 4; round++) {
    allocate(&f, 0, 2);
    assert_int_equal(rp_pool_activate(f.pool, &spec, f.id, slots, 2, false, &made), RP_OK);
    assert_int_equal(made, 0);
    check(&f);
    for (size_t i = 0; i < 2; i++)
      assert_int_equal(rp_pool_free(f.pool, f.address[i]), RP_OK);
    check(&f);
  }
  assert_int_equal(counters(&f).classes, 1);
  allocate(&f, 0, 4);
  assert_int_equal(rp_pool_activate(f.pool, &spec, f.id, slots, 2, false, &made), RP_OK);
  assert_int_equal(rp_pool_activate(f.pool, &spec, &f.id[2], slots, 2, false, &made), RP_OK);
  assert_int_equal(made, 1);
  end(&f);
}

/* Memory that the driver did not take back is still on the class's account. */
static void classes_with_debts_are_not_spent(void **state) {
  (void)state;
  struct fixture f = start(NULL);
  struct rp_pool_class_spec spec = {.label = 1, .receive_bytes = BYTES, .slots = 1};
  uint32_t slots[2] = {0, 0}, made = 9;
  allocate(&f, 0, 2);
  assert_int_equal(rp_pool_activate(f.pool, &spec, f.id, slots, 2, false, &made), RP_OK);
  assert_int_equal(rp_pool_free(f.pool, f.address[0]), RP_OK);
  f.device->fail_at = f.device->calls + 2; /* unmap, then release */
  assert_int_not_equal(rp_pool_free(f.pool, f.address[1]), RP_OK);
  check(&f);
  allocate(&f, 0, 2);
  assert_int_equal(rp_pool_activate(f.pool, &spec, f.id, slots, 2, false, &made), RP_OK);
  assert_int_equal(made, 1);
  check(&f);
  assert_int_equal(rp_pool_quiescent(f.pool, false), RP_OK);
  check(&f);
  end(&f);
}

/* An activation that fails gives the class back, wherever it is in the table. */
static void failed_activations_leave_no_class(void **state) {
  (void)state;
  struct fixture f = start(NULL);
  struct rp_pool_class_spec spec = {.label = 1, .receive_bytes = BYTES, .slots = 1};
  uint32_t slots[2] = {0, 0}, first, second;
  allocate(&f, 0, 4);
  assert_int_equal(rp_pool_activate(f.pool, &spec, f.id, slots, 2, false, &first), RP_OK);
  assert_int_equal(rp_pool_activate(f.pool, &spec, &f.id[2], slots, 2, false, &second), RP_OK);
  for (size_t i = 0; i < 2; i++)
    assert_int_equal(rp_pool_free(f.pool, f.address[i]), RP_OK);
  allocate(&f, 0, 2);
  f.device->fail_at = f.device->calls + 1;
  assert_int_not_equal(rp_pool_activate(f.pool, &spec, f.id, slots, 2, false, &first), RP_OK);
  check(&f);
  struct rp_pool_class_info info;
  assert_int_equal(rp_pool_class(f.pool, 0, &info), RP_OK);
  assert_int_equal(info.spec.slots, 0);
  assert_int_equal(rp_pool_activate(f.pool, &spec, f.id, slots, 2, false, &first), RP_OK);
  assert_int_equal(first, 0);
  end(&f);
}

static void small_questions(void **state) {
  (void)state;
  struct fixture f = shared();
  uint32_t id = 99;
  uint64_t low = f.address[0];
  const struct rp_pool_conflict conflict = {.kind = RP_POOL_DOUBLE_FREE, .prevented = true};
  assert_int_equal(rp_pool_granularity(f.pool), HOST_GRANULARITY);
  assert_true(rp_pool_bytes(f.pool) > 1000);
  assert_int_equal(rp_pool_find_range(f.pool, 5, 6, &id), RP_ERROR_NOT_FOUND);
  assert_int_equal(rp_pool_find_range(f.pool, low + 1, low + 2, &id), RP_OK);
  assert_int_equal(id, f.id[0]);
  rp_pool_note_conflict(f.pool, &conflict);
  assert_int_equal(counters(&f).prevented[RP_POOL_DOUBLE_FREE], 1);
  assert_string_equal(rp_pool_conflict_name(RP_POOL_DOUBLE_FREE), "double_free");
  assert_int_equal(rp_pool_violations(f.pool), 0);
  assert_false(rp_pool_frozen(f.pool));
  assert_false(rp_pool_fallback_pending(f.pool));
  end(&f);
}

/* Buffers that are larger than what they receive, and specifications that make no sense. */
static void classes_of_padded_buffers(void **state) {
  (void)state;
  struct fixture f = start(NULL);
  uint32_t slots[2] = {0, 0}, made;
  static const uint64_t wrong[] = {HOST_GRANULARITY, MAPPED + 1, MAPPED};
  allocate(&f, 0, 2);
  for (size_t i = 0; i < 3; i++) {
    uint64_t receive = wrong[i] == MAPPED ? 100 : BYTES;
    struct rp_pool_class_spec spec = {.receive_bytes = receive, .mapped_bytes = wrong[i], .slots = 1};
    bool fits = wrong[i] == MAPPED;
    if (fits) assert_int_equal(rp_pool_plan_class(f.pool, &spec, &made), RP_ERROR_INVALID);
    rp_status status = rp_pool_activate(f.pool, &spec, f.id, slots, 2, false, &made);
    assert_int_equal(status, fits ? RP_OK : RP_ERROR_INVALID);
    check(&f);
  }
  end(&f);
}

/* Ranges of the program's own allocations end where those end: their neighbours are found. */
static void exact_ranges(void **state) {
  (void)state;
  struct fixture f = start(&(struct rp_pool_options){.exact_ranges = true});
  uint32_t id;
  allocate(&f, 0, 1);
  assert_int_equal(rp_pool_find(f.pool, f.address[0] + BYTES - 1, &id), RP_OK);
  assert_int_equal(rp_pool_find(f.pool, f.address[0] + BYTES, &id), RP_ERROR_NOT_FOUND);
  end(&f);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(concealed_memory_comes_back),
      cmocka_unit_test(what_is_in_use_is_not_concealed),
      cmocka_unit_test(concealed_buffers_go_everywhere),
      cmocka_unit_test(spent_classes_are_used_again),
      cmocka_unit_test(classes_with_debts_are_not_spent),
      cmocka_unit_test(failed_activations_leave_no_class),
      cmocka_unit_test(small_questions),
      cmocka_unit_test(classes_of_padded_buffers),
      cmocka_unit_test(exact_ranges),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
