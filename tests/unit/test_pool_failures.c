/* Activation and fallback as transactions: every backend call is made to fail at every position, one at a
 * time and for good, and then all is as before or correctly degraded, and the account ends at zero. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "host_backend.h"
#include "pool/pool.h"

#define BYTES 8192u
#define N 6
#define K 2

struct fixture {
  struct host_device *device;
  struct rp_pool *pool;
  uint32_t id[N], slot[N];
  uint64_t address[N];
  uint32_t class_id;
};

static const struct rp_pool_class_spec spec = {.receive_bytes = BYTES, .slots = K, .buffers = N};

static void check(struct fixture *f) {
  const char *broken = NULL;
  struct rp_pool_info info;
  if (rp_pool_check(f->pool, &broken)) fail_msg("%s", broken ? broken : "no memory for the check");
  rp_pool_info(f->pool, &info);
  assert_int_equal(info.account.physical_bytes, f->device->physical_bytes);
  assert_int_equal(f->device->misuse, 0);
}

static void start_lending(struct fixture *f, enum rp_pool_lend lend) {
  struct rp_pool_options options = {.lend = lend};
  *f = (struct fixture){.device = host_device_create(1u << 20)};
  assert_non_null(f->device);
  assert_int_equal(rp_pool_create(&f->device->backend, &options, &f->pool), RP_OK);
}

static void start(struct fixture *f) {
  start_lending(f, RP_POOL_LEND_NEVER);
}

static void end(struct fixture *f) {
  uint64_t left = 1;
  f->device->fail_at = 0;
  check(f);
  assert_int_equal(rp_pool_destroy(f->pool, &left), RP_OK);
  assert_int_equal(left, 0);
  assert_int_equal(f->device->misuse, 0);
  assert_int_equal(host_device_ranges(f->device), 0);
  assert_int_equal(host_device_memories(f->device), 0);
  host_device_destroy(f->device);
}

/* Allocates all and leaves a word in each. */
static void fill(struct fixture *f) {
  for (uint32_t i = 0; i < N; i++) {
    assert_int_equal(rp_pool_allocate(f->pool, BYTES, &f->id[i], &f->address[i]), RP_OK);
    f->slot[i] = i % K;
    if (host_device_accessible(f->device, f->address[i]))
      host_device_store(f->device, f->address[i], 100 + i);
  }
}

static rp_status activate(struct fixture *f) {
  rp_status status = rp_pool_activate(f->pool, &spec, f->id, f->slot, N, false, &f->class_id);
  check(f);
  return status;
}

static rp_status receive(struct fixture *f, uint32_t i, uint64_t word) {
  struct rp_pool_post post = {.buffer = f->id[i],
                              .class_id = RP_POOL_NONE,
                              .slot_hint = RP_POOL_NONE,
                              .order = RP_POOL_ORDER_YES,
                              .address = f->address[i],
                              .bytes = BYTES};
  struct rp_pool_decision decision;
  rp_status status = rp_pool_receive_decide(f->pool, &post, &decision);
  if (!status) status = rp_pool_receive_commit(f->pool, &post, &decision);
  check(f);
  if (!status) assert_true(host_device_store(f->device, f->address[i], word));
  return status;
}

static void expect_word(struct fixture *f, uint32_t i, uint64_t word) {
  uint64_t seen = 0;
  assert_true(host_device_load(f->device, f->address[i], &seen));
  assert_int_equal(seen, word);
}

static void expect_bindings(struct fixture *f, enum rp_pool_binding binding) {
  struct rp_pool_buffer_info info;
  for (uint32_t i = 0; i < N; i++) {
    assert_int_equal(rp_pool_buffer(f->pool, f->id[i], &info), RP_OK);
    assert_int_equal(info.binding, binding);
  }
}

static void fail_from(struct fixture *f, uint64_t position, uint64_t more) {
  f->device->fail_at = f->device->calls + position;
  f->device->fail_count = more;
  f->device->failures = 0;
}

static uint64_t fail_none(struct fixture *f) {
  f->device->fail_at = f->device->fail_second = 0;
  return f->device->failures;
}

static void activation_shares_and_releases(void **state) {
  (void)state;
  struct fixture f;
  start(&f);
  fill(&f);
  assert_int_equal(f.device->physical_bytes, N * BYTES);
  assert_int_equal(rp_pool_activate(f.pool, &spec, f.id, f.slot, N, true, &f.class_id), RP_ERROR_BUSY);
  assert_int_equal(activate(&f), RP_OK);
  expect_bindings(&f, RP_POOL_BOUND);
  assert_int_equal(f.device->physical_bytes, K * BYTES);
  assert_int_equal(f.device->physical_peak_bytes, N * BYTES);
  struct rp_pool_class_info info;
  assert_int_equal(rp_pool_class(f.pool, f.class_id, &info), RP_OK);
  assert_int_equal(info.account.saved_bytes, (N - K) * BYTES);
  assert_int_equal(info.slots_backed, K);
  host_device_store(f.device, f.address[0], 7);
  expect_word(&f, K, 7); /* the same slot */
  assert_int_equal(activate(&f), RP_ERROR_STATE);
  end(&f);
}

/* What is in use at the boundary keeps its contents; two in use cannot share. */
static void activation_keeps_live_contents(void **state) {
  (void)state;
  struct fixture f;
  start(&f);
  fill(&f);
  assert_int_equal(receive(&f, 2, 900), RP_OK);
  assert_int_equal(receive(&f, 4, 901), RP_OK);
  assert_int_equal(activate(&f), RP_ERROR_BUSY);
  expect_bindings(&f, RP_POOL_PRIVATE);
  assert_int_equal(rp_pool_release(f.pool, f.id[4]), RP_OK);
  assert_int_equal(activate(&f), RP_OK);
  expect_word(&f, 2, 900);
  end(&f);
}

static void activation_leaves_the_registered_alone(void **state) {
  (void)state;
  struct fixture f;
  struct rp_pool_decision d;
  struct rp_pool_site site = {0};
  struct rp_pool_buffer_info info;
  start(&f);
  fill(&f);
  for (uint32_t i = 0; i < N; i++) {
    if (i == 2) { /* one left out: the rest share */
      assert_int_equal(activate(&f), RP_OK);
      assert_int_equal(rp_pool_buffer(f.pool, f.id[0], &info), RP_OK);
      assert_int_equal(info.binding, RP_POOL_PRIVATE);
      assert_int_equal(f.device->physical_bytes, (2 + K) * BYTES);
      break;
    }
    assert_int_equal(rp_pool_flag_decide(f.pool, f.id[i], RP_POOL_FLAG_GRAPH, true, &site, &d), RP_OK);
    assert_int_equal(rp_pool_flag_commit(f.pool, RP_POOL_FLAG_GRAPH, &site, &d), RP_OK);
  }
  expect_word(&f, 0, 100);
  end(&f);
}

static void activation_refuses_nonsense(void **state) {
  (void)state;
  struct fixture f;
  uint32_t none, twice[2], slots[2] = {0, 0};
  start(&f);
  fill(&f);
  f.slot[3] = K;
  assert_int_equal(activate(&f), RP_ERROR_INVALID);
  f.slot[3] = 0;
  twice[0] = twice[1] = f.id[0];
  assert_int_equal(rp_pool_activate(f.pool, &spec, twice, slots, 2, false, &none), RP_ERROR_INVALID);
  assert_int_equal(rp_pool_activate(f.pool, &spec, f.id, slots, 1, false, &none), RP_ERROR_STATE);
  struct rp_pool_class_spec other = {.receive_bytes = BYTES + 1, .slots = 1};
  assert_int_equal(rp_pool_activate(f.pool, &other, f.id, slots, 2, false, &none), RP_ERROR_INVALID);
  expect_bindings(&f, RP_POOL_PRIVATE);
  end(&f);
}

static void aliases_that_lie_are_found(void **state) {
  (void)state;
  struct fixture f;
  struct rp_pool_info info;
  uint32_t class_id;
  start(&f);
  fill(&f);
  f.device->words_lie = true;
  assert_int_equal(activate(&f), RP_ERROR_UNAVAILABLE);
  expect_bindings(&f, RP_POOL_PRIVATE);
  assert_int_equal(f.device->physical_bytes, N * BYTES);
  assert_int_equal(rp_pool_plan_class(f.pool, &spec, &class_id), RP_ERROR_UNAVAILABLE);
  rp_pool_info(f.pool, &info);
  assert_int_equal(info.reasons[RP_POOL_ALIAS_CHECK_FAILED], 2);
  assert_int_equal(info.classes, 0);
  end(&f);
}

/* One failure at every position: exactly as before. `more` failures after it: nobody's data is lost, nothing
 * is shared, and the pool is whole. Returns false when no failure fired. */
static bool activation_failing_at(uint64_t position, uint64_t more, bool live) {
  struct fixture f;
  start(&f);
  fill(&f);
  if (live) assert_int_equal(receive(&f, 2, 900), RP_OK);
  uint64_t creates = f.device->calls_of[HOST_CREATE];
  fail_from(&f, position, more);
  rp_status status = activate(&f);
  bool fired = fail_none(&f) > 0;
  assert_int_equal(f.device->calls_of[HOST_CREATE], creates);
  if (status && !more) {
    expect_bindings(&f, RP_POOL_PRIVATE);
    assert_int_equal(f.device->physical_bytes, N * BYTES);
    for (uint32_t i = 0; i < N; i++)
      expect_word(&f, i, live && i == 2 ? 900 : 100 + i);
  }
  if (status && live) expect_word(&f, 2, 900);
  if (!fired) assert_int_equal(status, RP_OK);
  if (!status) { /* a release that failed is tried again */
    assert_int_equal(rp_pool_quiescent(f.pool, false), RP_OK);
    assert_int_equal(f.device->physical_bytes, K * BYTES);
  }
  assert_int_equal(rp_pool_quiescent(f.pool, false), RP_OK);
  for (uint32_t i = 0; i < N; i++) { /* and the job goes on */
    assert_int_equal(receive(&f, i, i), RP_OK);
    expect_word(&f, i, i);
    assert_int_equal(rp_pool_release(f.pool, f.id[i]), RP_OK);
  }
  end(&f);
  return fired;
}

static void activation_fails_at_every_call(void **state) {
  (void)state;
  for (uint64_t more = 0; more < 4; more++) {
    uint64_t position = 1;
    while (activation_failing_at(position, more, position % 2))
      position++;
    assert_true(position > 4 * (N - K));
  }
}

static bool fallback_failing_at(uint64_t position, uint64_t more) {
  struct fixture f;
  start(&f);
  fill(&f);
  assert_int_equal(activate(&f), RP_OK);
  assert_int_equal(receive(&f, 4, 900), RP_OK);
  fail_from(&f, position, more);
  rp_pool_request_fallback(f.pool, RP_POOL_SWITCHED_OFF);
  rp_status status = rp_pool_quiescent(f.pool, false);
  check(&f);
  bool fired = fail_none(&f) > 0;
  expect_word(&f, 4, 900);
  if (!fired) assert_int_equal(status, RP_OK);
  if (status) status = rp_pool_quiescent(f.pool, false);
  assert_int_equal(status, RP_OK);
  assert_int_equal(rp_pool_quiescent(f.pool, false), RP_OK);
  expect_bindings(&f, RP_POOL_PRIVATE);
  expect_word(&f, 4, 900);
  assert_int_equal(f.device->physical_bytes, N * BYTES);
  end(&f);
  return fired;
}

static void fallback_fails_at_every_call(void **state) {
  (void)state;
  for (uint64_t more = 0; more < 4; more++) {
    uint64_t position = 1;
    while (fallback_failing_at(position, more))
      position++;
    assert_true(position > 4 * (N - K));
  }
}

static void fallback_short_of_memory_says_so(void **state) {
  (void)state;
  struct fixture f;
  struct rp_pool_info info;
  start(&f);
  fill(&f);
  assert_int_equal(activate(&f), RP_OK);
  f.device->capacity_bytes = (K + 1) * BYTES;
  assert_int_equal(rp_pool_fallback(f.pool, false), RP_ERROR_NO_MEMORY);
  check(&f);
  rp_pool_info(f.pool, &info);
  assert_int_equal(info.account.physical_bytes, (K + 1) * BYTES);
  assert_true(info.fallback_pending);
  assert_true(info.bound > 0 && info.private_buffers > 0);
  assert_int_equal(info.reasons[RP_POOL_OUT_OF_MEMORY], 1);
  f.device->capacity_bytes = N * BYTES;
  assert_int_equal(rp_pool_quiescent(f.pool, false), RP_OK);
  check(&f);
  expect_bindings(&f, RP_POOL_PRIVATE);
  end(&f);
}

/* A planned step with growth, a pin and its end, where one call fails: each receive either has memory of its
 * own contents or was refused. */
static bool planned_failing_at(uint64_t position, uint64_t more, uint64_t capacity_bytes) {
  struct fixture f;
  uint64_t word[N] = {0};
  bool open[N] = {false};
  start_lending(&f, capacity_bytes ? RP_POOL_LEND_WHEN_SHORT : RP_POOL_LEND_FIRST);
  if (capacity_bytes) f.device->capacity_bytes = capacity_bytes;
  fail_from(&f, position, more);
  uint32_t allocated = 0;
  rp_status status = rp_pool_plan_class(f.pool, &spec, &f.class_id);
  check(&f);
  for (; allocated < N; allocated++) {
    if (rp_pool_allocate(f.pool, BYTES, &f.id[allocated], &f.address[allocated])) break;
    check(&f);
  }
  for (uint32_t turn = 0; turn < 2 * N; turn++) {
    uint32_t i = N - 1 - turn % N; /* the unbacked ones first, so that memory is lent */
    if (i >= allocated) continue;
    if (!receive(&f, i, turn)) {
      word[i] = turn;
      open[i] = true;
    }
    for (uint32_t j = 0; j < allocated; j++)
      if (open[j]) expect_word(&f, j, word[j]);
    if (turn % 3 && open[i]) open[i] = rp_pool_release(f.pool, f.id[i]) != RP_OK;
  }
  for (uint32_t i = 0; i < allocated; i += 2) {
    rp_status freed = rp_pool_free(f.pool, f.address[i]);
    assert_true(freed == RP_OK || freed == RP_ERROR_UNAVAILABLE);
    check(&f);
  }
  bool fired = fail_none(&f) > 0;
  if (!fired) assert_int_equal(status, RP_OK);
  assert_int_equal(rp_pool_quiescent(f.pool, false), RP_OK);
  for (uint32_t j = 1; j < allocated; j += 2)
    if (open[j]) expect_word(&f, j, word[j]);
  end(&f);
  return fired;
}

static void planned_fails_at_every_call(void **state) {
  (void)state;
  for (uint64_t more = 0; more < 8; more++) {
    uint64_t position = 1;
    while (planned_failing_at(position, more / 2, more % 2 ? K * BYTES : 0))
      position++;
    assert_true(position > 4 * N);
  }
}

/* One failure while memory is lent: lender and borrower are as before, or the receive went through. */
static bool lending_failing_at(uint64_t position) {
  struct fixture f;
  struct rp_pool_buffer_info lender, borrower;
  start_lending(&f, RP_POOL_LEND_WHEN_SHORT);
  assert_int_equal(rp_pool_plan_class(f.pool, &spec, &f.class_id), RP_OK);
  fill(&f);
  f.device->capacity_bytes = K * BYTES;
  fail_from(&f, position, 0);
  rp_status status = receive(&f, N - 1, 5);
  bool fired = fail_none(&f) > 0;
  assert_int_equal(rp_pool_buffer(f.pool, f.id[K - 1], &lender), RP_OK);
  assert_int_equal(rp_pool_buffer(f.pool, f.id[N - 1], &borrower), RP_OK);
  assert_int_equal(lender.binding, status ? RP_POOL_PRIVATE : RP_POOL_UNBOUND);
  assert_int_equal(borrower.binding, status ? RP_POOL_UNBOUND : RP_POOL_BOUND);
  assert_int_equal(f.device->physical_bytes, K * BYTES);
  if (!fired) assert_int_equal(status, RP_OK);
  end(&f);
  return fired;
}

static void lending_fails_at_every_call(void **state) {
  (void)state;
  uint64_t position = 1;
  while (lending_failing_at(position))
    position++;
  assert_int_equal(position, 5); /* create, unmap, map, access */
}

static bool unpin_failing_at(uint64_t position, uint64_t more) {
  struct fixture f;
  struct rp_pool_decision d;
  start(&f);
  fill(&f);
  assert_int_equal(activate(&f), RP_OK);
  assert_int_equal(receive(&f, 2, 900), RP_OK);
  assert_int_equal(rp_pool_release(f.pool, f.id[2]), RP_OK);
  rp_pool_step_end(f.pool);
  struct rp_pool_access access = {.buffer = f.id[2], .mode = RP_POOL_READ, .interposed = true};
  assert_int_equal(rp_pool_access_decide(f.pool, &access, &d), RP_OK);
  assert_int_equal(rp_pool_access_commit(f.pool, &access, &d), RP_OK);
  assert_int_equal(d.memory, RP_POOL_MEMORY_PIN);
  fail_from(&f, position, more);
  rp_status status = rp_pool_quiescent(f.pool, false);
  check(&f);
  bool fired = fail_none(&f) > 0;
  expect_word(&f, 2, 900);
  if (status && !more) assert_int_equal(f.device->physical_bytes, K * BYTES);
  assert_int_equal(rp_pool_quiescent(f.pool, false), RP_OK);
  check(&f);
  assert_int_equal(receive(&f, 0, 5), RP_OK);
  expect_word(&f, 2, 900);
  expect_word(&f, 0, 5);
  if (!fired) assert_int_equal(f.device->physical_bytes, (K + 1) * BYTES);
  end(&f);
  return fired;
}

static void unpin_fails_at_every_call(void **state) {
  (void)state;
  for (uint64_t more = 0; more < 4; more++) {
    uint64_t position = 1;
    while (unpin_failing_at(position, more))
      position++;
    assert_true(position > 6);
  }
}

/* A buffer whose freeing the driver refuses is gone for the program, and given back when it is asked again.
 */
static bool freeing_failing_at(uint64_t position, bool shared) {
  struct fixture f;
  start(&f);
  fill(&f);
  if (shared) assert_int_equal(activate(&f), RP_OK);
  fail_from(&f, position, 0);
  for (uint32_t i = 0; i < N; i++) {
    (void)rp_pool_free(f.pool, f.address[i]);
    check(&f);
    assert_int_equal(rp_pool_find(f.pool, f.address[i], &f.id[i]), RP_ERROR_NOT_FOUND);
    assert_int_equal(rp_pool_give_back(f.pool), RP_OK);
    check(&f);
  }
  bool fired = fail_none(&f) > 0;
  assert_int_equal(f.device->physical_bytes, 0);
  assert_int_equal(host_device_ranges(f.device), 0);
  end(&f);
  return fired;
}

static void freeing_fails_at_every_call(void **state) {
  (void)state;
  for (int shared = 0; shared < 2; shared++) {
    uint64_t position = 1;
    while (freeing_failing_at(position, shared))
      position++;
    assert_true(position > 2 * N);
  }
}

/* The driver goes on refusing: it is asked once for each free, not once for each buffer. */
static void giving_back_ends_at_a_refusal(void **state) {
  (void)state;
  struct fixture f;
  start(&f);
  fill(&f);
  fail_from(&f, 1, 1000);
  for (uint32_t i = 0; i < N; i++) {
    uint64_t before = f.device->calls;
    assert_int_not_equal(rp_pool_free(f.pool, f.address[i]), RP_OK);
    assert_int_not_equal(rp_pool_give_back(f.pool), RP_OK);
    assert_int_equal(f.device->calls, before + 2);
  }
  fail_none(&f);
  assert_int_equal(rp_pool_give_back(f.pool), RP_OK);
  assert_int_equal(f.device->physical_bytes, 0);
  end(&f);
}

/* The driver takes nothing back at the end: what is left is told. */
static void destroy_tells_what_is_left(void **state) {
  (void)state;
  struct fixture f;
  uint64_t left = 0;
  start(&f);
  fill(&f);
  f.device->fail_one_in = 1;
  assert_int_not_equal(rp_pool_destroy(f.pool, &left), RP_OK);
  assert_int_equal(left, N * BYTES);
  assert_int_equal(f.device->physical_bytes, N * BYTES);
  host_device_destroy(f.device);
}

static void backends_are_checked(void **state) {
  (void)state;
  struct host_device *device = host_device_create(1u << 20);
  struct rp_pool *pool = NULL;
  assert_non_null(device);
  struct rp_backend backend = device->backend;
  backend.version = 99;
  assert_int_equal(rp_pool_create(&backend, NULL, &pool), RP_ERROR_VERSION);
  backend = device->backend;
  backend.unmap = NULL;
  assert_int_equal(rp_pool_create(&backend, NULL, &pool), RP_ERROR_INVALID);
  backend = device->backend;
  backend.read_word = NULL;
  assert_int_equal(rp_pool_create(&backend, NULL, &pool), RP_ERROR_INVALID);
  assert_null(pool);
  host_device_destroy(device);
}

/* Any two calls refused, one after the other or not: no address is without memory afterwards. */

static void fail_two(struct fixture *f, uint64_t first, uint64_t second) {
  fail_from(f, first, 0);
  f->device->fail_second = f->device->calls + second;
}

/* How many of the two were made to fail. */
typedef uint64_t (*two_failing)(uint64_t first, uint64_t second);

/* Until the first is beyond the last call. */
static void every_two(two_failing run) {
  uint64_t tried = 0;
  for (uint64_t first = 1, failed = 1; failed; first++) {
    failed = 0;
    for (uint64_t second = first + 1, now = 2; now == 2; second++, tried++) {
      now = run(first, second);
      if (now > failed) failed = now;
    }
  }
  assert_true(tried > 100);
}

static void expect_words(struct fixture *f) {
  for (uint32_t i = 0; i < N; i++)
    expect_word(f, i, 100 + i);
}

static uint64_t activation_failing_twice(uint64_t first, uint64_t second) {
  struct fixture f;
  start(&f);
  fill(&f);
  fail_two(&f, first, second);
  rp_status status = activate(&f);
  uint64_t fired = fail_none(&f);
  expect_bindings(&f, status ? RP_POOL_PRIVATE : RP_POOL_BOUND);
  for (uint32_t i = 0; i < N; i++)
    assert_true(host_device_accessible(f.device, f.address[i]));
  if (status) expect_words(&f);
  if (!fired) assert_int_equal(status, RP_OK);
  end(&f);
  return fired;
}

static uint64_t fallback_failing_twice(uint64_t first, uint64_t second) {
  struct fixture f;
  start(&f);
  fill(&f);
  assert_int_equal(activate(&f), RP_OK);
  assert_int_equal(receive(&f, 4, 900), RP_OK);
  fail_two(&f, first, second);
  (void)rp_pool_fallback(f.pool, false);
  check(&f);
  uint64_t fired = fail_none(&f);
  for (uint32_t i = 0; i < N; i++)
    assert_true(host_device_accessible(f.device, f.address[i]));
  expect_word(&f, 4, 900);
  end(&f);
  return fired;
}

/* Growth, a strange use, and slots bound in a plan. */
static uint64_t step_failing_twice(uint64_t first, uint64_t second) {
  struct fixture f;
  bool had[N];
  start_lending(&f, RP_POOL_LEND_NEVER);
  assert_int_equal(rp_pool_plan_class(f.pool, &spec, &f.class_id), RP_OK);
  fill(&f);
  fail_two(&f, first, second);
  for (uint32_t turn = 0; turn < N + 2; turn++) {
    for (uint32_t i = 0; i < N; i++)
      had[i] = host_device_accessible(f.device, f.address[i]);
    uint32_t at = turn % N;
    if (receive(&f, at, turn) == RP_OK && turn % 3 == 0) (void)rp_pool_release(f.pool, f.id[at]);
    for (uint32_t i = 0; i < N; i++)
      assert_true(!had[i] || host_device_accessible(f.device, f.address[i]));
  }
  uint64_t fired = fail_none(&f);
  end(&f);
  return fired;
}

static void two_failures_leave_no_address_without_memory(void **state) {
  (void)state;
  every_two(activation_failing_twice);
  every_two(fallback_failing_twice);
  every_two(step_failing_twice);
}

/* The driver refuses everything from some call on, and then no more: what was there is there again. */
static bool activation_refused_from(uint64_t position) {
  struct fixture f;
  start(&f);
  fill(&f);
  f.device->words_hold = true;
  fail_from(&f, position, 1000);
  rp_status status = activate(&f);
  bool fired = fail_none(&f) > 0;
  expect_bindings(&f, status ? RP_POOL_PRIVATE : RP_POOL_BOUND);
  assert_int_equal(rp_pool_restore(f.pool), RP_OK);
  check(&f);
  if (status) expect_words(&f);
  if (!fired) assert_int_equal(status, RP_OK);
  end(&f);
  return fired;
}

static void what_was_refused_for_long_is_mapped_again(void **state) {
  (void)state;
  uint64_t position = 1;
  while (activation_refused_from(position))
    position++;
  assert_true(position > 4 * (N - K));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(activation_shares_and_releases),
      cmocka_unit_test(activation_keeps_live_contents),
      cmocka_unit_test(activation_leaves_the_registered_alone),
      cmocka_unit_test(activation_refuses_nonsense),
      cmocka_unit_test(aliases_that_lie_are_found),
      cmocka_unit_test(activation_fails_at_every_call),
      cmocka_unit_test(fallback_fails_at_every_call),
      cmocka_unit_test(fallback_short_of_memory_says_so),
      cmocka_unit_test(planned_fails_at_every_call),
      cmocka_unit_test(lending_fails_at_every_call),
      cmocka_unit_test(freeing_fails_at_every_call),
      cmocka_unit_test(giving_back_ends_at_a_refusal),
      cmocka_unit_test(unpin_fails_at_every_call),
      cmocka_unit_test(two_failures_leave_no_address_without_memory),
      cmocka_unit_test(what_was_refused_for_long_is_mapped_again),
      cmocka_unit_test(destroy_tells_what_is_left),
      cmocka_unit_test(backends_are_checked),
  };
  return cmocka_run_group_tests_name("pool failures", tests, NULL, NULL);
}
