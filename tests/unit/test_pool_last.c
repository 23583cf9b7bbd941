/* Slots of buffers that have left them: kept until the next receive there, as many as there is room for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "pool/pool_internal.h"
#include "pool_fixture.h"

static struct rp_pool_last_binding kept[RP_POOL_LAST_BINDINGS];

/* Index in `kept`, or SIZE_MAX. */
static size_t find(const struct rp_pool *pool, uint64_t address) {
  size_t count = rp_pool_last_bindings(pool, kept), found = SIZE_MAX;
  assert_int_equal(count, rp_pool_last_bindings(pool, NULL));
  for (size_t i = 0; i < count; i++) {
    if (kept[i].address != address) continue;
    assert_true(found == SIZE_MAX); /* once */
    found = i;
  }
  return found;
}

static void free_buffer(struct fixture *f, size_t i) {
  assert_int_equal(rp_pool_free(f->pool, f->address[i]), RP_OK);
  check(f);
}

static void freed_buffers_keep_their_slot(void **state) {
  (void)state;
  struct fixture f = start(NULL);
  plan(&f, 2, 4);
  allocate(&f, 0, 4);
  for (size_t i = 0; i < 4; i++)
    cycle(&f, i, i);
  assert_int_equal(rp_pool_last_bindings(f.pool, NULL), 0); /* they are bound */
  for (size_t i = 0; i < 4; i++)
    free_buffer(&f, i);
  for (size_t i = 0; i < 4; i++) {
    size_t at = find(f.pool, f.address[i]);
    assert_true(at != SIZE_MAX);
    assert_int_equal(kept[at].slot, i % 2);
    assert_int_equal(kept[at].class_id, f.class_id);
  }
  assert_int_equal(counters(&f).last_bindings_dropped, 0);
  end(&f);
}

static void what_was_never_bound_has_none(void **state) {
  (void)state;
  struct fixture f = start(NULL);
  plan(&f, 2, 4);
  allocate(&f, 0, 4);
  free_buffer(&f, 3);
  assert_int_equal(rp_pool_last_bindings(f.pool, NULL), 0);
  end(&f);
}

/* The buffer is private after a fallback: until it is received into, the last receive was in its slot. */
static void the_next_receive_counts(void **state) {
  (void)state;
  struct fixture f = start(NULL);
  plan(&f, 2, 4);
  allocate(&f, 0, 4);
  for (size_t i = 0; i < 4; i++)
    cycle(&f, i, i);
  rp_pool_step_end(f.pool);
  rp_pool_request_fallback(f.pool, RP_POOL_SWITCHED_OFF);
  assert_int_equal(rp_pool_fallback(f.pool, false), RP_OK);
  assert_int_equal(rp_pool_last_bindings(f.pool, NULL), 4);
  cycle(&f, 1, 11);
  assert_true(find(f.pool, f.address[1]) == SIZE_MAX);
  assert_int_equal(rp_pool_last_bindings(f.pool, NULL), 3);
  end(&f);
}

/* ---- the table alone ---- */

static void note(struct rp_pool *pool, uint64_t address, uint32_t class_id, uint32_t slot) {
  const struct rp__pool_buffer buffer = {.address = address, .class_id = class_id, .slot = slot};
  rp__pool_last_note(pool, &buffer);
}

static void the_oldest_go_first(void **state) {
  (void)state;
  struct rp_pool *pool = calloc(1, sizeof *pool);
  assert_non_null(pool);
  for (uint32_t i = 0; i < RP_POOL_LAST_BINDINGS + 10; i++)
    note(pool, 4096u * (i + 1u), 0, i);
  assert_int_equal(rp_pool_last_bindings(pool, NULL), RP_POOL_LAST_BINDINGS);
  assert_int_equal(pool->last.dropped, 10);
  assert_true(find(pool, 10 * 4096) == SIZE_MAX);
  assert_true(find(pool, 11 * 4096) != SIZE_MAX);
  assert_true(rp__pool_last_bytes(pool) < RP_POOL_LAST_BINDINGS * 80u);
  rp__pool_last_fini(pool);
  free(pool);
}

static void another_class_of_the_number(void **state) {
  (void)state;
  struct rp_pool *pool = calloc(1, sizeof *pool);
  assert_non_null(pool);
  for (uint32_t i = 0; i < 100; i++)
    note(pool, 64 + i, i % 3, i);
  rp__pool_last_forget_class(pool, 1);
  assert_int_equal(rp_pool_last_bindings(pool, kept), 67);
  for (size_t i = 0; i < 67; i++)
    assert_int_not_equal(kept[i].class_id, 1);
  rp__pool_last_fini(pool);
  free(pool);
}

/* Against a plain table, as long as there is room. */
static void random_notes(void **state) {
  (void)state;
  enum { ADDRESSES = 3000 };
  static uint32_t slot[ADDRESSES]; /* + 1; 0: not known */
  struct rp_pool *pool = calloc(1, sizeof *pool);
  assert_non_null(pool);
  unsigned seed = 5;
  for (int i = 0; i < 60000; i++) {
    uint32_t at = (uint32_t)rand_r(&seed) % ADDRESSES;
    if (rand_r(&seed) % 3) {
      slot[at] = (uint32_t)i + 1;
      note(pool, 16 + at, 0, (uint32_t)i);
    } else {
      slot[at] = 0;
      rp__pool_last_forget(pool, 16 + at);
    }
  }
  size_t count = rp_pool_last_bindings(pool, kept), expected = 0;
  for (size_t i = 0; i < count; i++)
    assert_int_equal(kept[i].slot + 1, slot[kept[i].address - 16]);
  for (size_t i = 0; i < ADDRESSES; i++)
    expected += slot[i] != 0;
  assert_int_equal(count + pool->last.dropped >= expected, 1);
  assert_true(pool->last.dropped == 0 || pool->last.capacity == RP_POOL_LAST_BINDINGS);
  rp__pool_last_fini(pool);
  free(pool);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(freed_buffers_keep_their_slot), cmocka_unit_test(what_was_never_bound_has_none),
      cmocka_unit_test(the_next_receive_counts),       cmocka_unit_test(the_oldest_go_first),
      cmocka_unit_test(another_class_of_the_number),   cmocka_unit_test(random_notes),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
