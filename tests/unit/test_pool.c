/* The pool by hand: allocation by the untouched-burst rule, binding, every guard decision, activation,
 * fallback and the account, on memory that really aliases. */
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

#define BYTES 8000u /* of one receive */
#define MAPPED 8192u
#define MOST 16

struct fixture {
  struct host_device *device;
  struct rp_pool *pool;
  uint32_t class_id;
  uint32_t id[MOST];
  uint64_t address[MOST];
  struct rp_pool_decision decision; /* the last one */
};

static void check(struct fixture *f) {
  const char *broken = NULL;
  struct rp_pool_info info;
  if (rp_pool_check(f->pool, &broken)) fail_msg("%s", broken ? broken : "no memory for the check");
  rp_pool_info(f->pool, &info);
  assert_int_equal(info.account.physical_bytes, f->device->physical_bytes);
  assert_int_equal(f->device->misuse, 0);
}

static struct fixture start(const struct rp_pool_options *options) {
  struct fixture f = {.device = host_device_create(1u << 20), .class_id = RP_POOL_NONE};
  assert_non_null(f.device);
  assert_int_equal(rp_pool_create(&f.device->backend, options, &f.pool), RP_OK);
  return f;
}

static void end(struct fixture *f) {
  uint64_t left = 1;
  check(f);
  assert_int_equal(rp_pool_destroy(f->pool, &left), RP_OK);
  assert_int_equal(left, 0);
  assert_int_equal(f->device->physical_bytes, 0);
  assert_int_equal(host_device_ranges(f->device), 0);
  assert_int_equal(host_device_memories(f->device), 0);
  host_device_destroy(f->device);
}

static void plan(struct fixture *f, uint32_t slots, uint32_t buffers) {
  struct rp_pool_class_spec spec = {.label = 7, .receive_bytes = BYTES, .slots = slots, .buffers = buffers};
  assert_int_equal(rp_pool_plan_class(f->pool, &spec, &f->class_id), RP_OK);
  check(f);
}

static void allocate(struct fixture *f, size_t first, size_t count) {
  for (size_t i = first; i < first + count; i++) {
    assert_int_equal(rp_pool_allocate(f->pool, BYTES, &f->id[i], &f->address[i]), RP_OK);
    check(f);
  }
}

static struct rp_pool_buffer_info look(struct fixture *f, size_t i) {
  struct rp_pool_buffer_info info;
  assert_int_equal(rp_pool_buffer(f->pool, f->id[i], &info), RP_OK);
  return info;
}

static struct rp_pool_info counters(struct fixture *f) {
  struct rp_pool_info info;
  rp_pool_info(f->pool, &info);
  return info;
}

static rp_status post(struct fixture *f, size_t i, struct rp_pool_post extra) {
  extra.buffer = f->id[i];
  if (!extra.address) extra.address = f->address[i];
  if (!extra.bytes) extra.bytes = BYTES;
  if (!extra.class_id) extra.class_id = RP_POOL_NONE;
  extra.slot_hint = RP_POOL_NONE;
  extra.site.microbatch = (uint32_t)i;
  extra.site.stream = 100 + i;
  rp_status status = rp_pool_receive_decide(f->pool, &extra, &f->decision);
  if (!status) status = rp_pool_receive_commit(f->pool, &extra, &f->decision);
  check(f);
  return status;
}

/* A receive in order behind whatever was there, which writes `word`. */
static void receive(struct fixture *f, size_t i, uint64_t word) {
  assert_int_equal(post(f, i, (struct rp_pool_post){.order = RP_POOL_ORDER_YES}), RP_OK);
  assert_true(host_device_store(f->device, f->address[i], word));
}

static rp_status use(struct fixture *f, size_t i, struct rp_pool_access access) {
  access.buffer = f->id[i];
  access.site.function = 55;
  access.site.stream = 200 + i;
  rp_status status = rp_pool_access_decide(f->pool, &access, &f->decision);
  if (!status) status = rp_pool_access_commit(f->pool, &access, &f->decision);
  check(f);
  return status;
}

static void read_back(struct fixture *f, size_t i, uint64_t word) {
  uint64_t seen = 0;
  assert_int_equal(use(f, i, (struct rp_pool_access){.mode = RP_POOL_READ, .interposed = true}), RP_OK);
  assert_true(host_device_load(f->device, f->address[i], &seen));
  assert_int_equal(seen, word);
}

static void release(struct fixture *f, size_t i) {
  assert_int_equal(rp_pool_release(f->pool, f->id[i]), RP_OK);
  check(f);
}

static void cycle(struct fixture *f, size_t i, uint64_t word) {
  receive(f, i, word);
  read_back(f, i, word);
  release(f, i);
}

static void expect_conflict(struct fixture *f, enum rp_pool_conflict_kind kind, bool prevented,
                            size_t earlier, size_t later) {
  size_t count;
  const struct rp_pool_conflict *kept = rp_pool_conflicts(f->pool, &count);
  assert_true(count > 0);
  const struct rp_pool_conflict *last = &kept[count - 1];
  assert_int_equal(last->kind, kind);
  assert_int_equal(last->prevented, prevented);
  assert_int_equal(last->earlier_address, f->address[earlier]);
  assert_int_equal(last->later_address, f->address[later]);
  assert_int_equal((prevented ? counters(f).prevented : counters(f).violated)[kind], 1);
}

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
  assert_int_equal(info.account.saved_bytes, 6 * MAPPED);
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

static void stale_read_follows_the_policy(void **state) {
  (void)state;
  for (int policy = RP_POOL_ON_STALE_FALLBACK; policy <= RP_POOL_ON_STALE_ABORT; policy++) {
    struct rp_pool_options options = {.on_stale = (enum rp_pool_policy)policy};
    struct fixture f = start(&options);
    plan(&f, 1, 2);
    allocate(&f, 0, 2);
    cycle(&f, 0, 1);
    receive(&f, 1, 2);
    assert_int_equal(use(&f, 0, (struct rp_pool_access){.interposed = true}), RP_OK);
    expect_conflict(&f, RP_POOL_STALE_ACCESS, false, 1, 0);
    assert_int_equal(f.decision.abort, policy == RP_POOL_ON_STALE_ABORT);
    assert_int_equal(counters(&f).fallback_pending, policy == RP_POOL_ON_STALE_FALLBACK);
    read_back(&f, 1, 2);
    assert_int_equal(rp_pool_quiescent(f.pool, false), RP_OK);
    if (policy == RP_POOL_ON_STALE_FALLBACK) assert_int_equal(counters(&f).bound, 0);
    end(&f);
  }
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
  assert_int_equal(info.account.saved_bytes, 0);
  for (size_t i = 0; i < 3; i++)
    receive(&f, i, i + 5);
  for (size_t i = 0; i < 3; i++)
    read_back(&f, i, i + 5);
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

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(planned_takes_k_allocations),
      cmocka_unit_test(planned_in_any_order),
      cmocka_unit_test(weights_and_activations_of_the_same_size),
      cmocka_unit_test(plan_counts_bound_the_burst),
      cmocka_unit_test(first_touch_binds_private_memory),
      cmocka_unit_test(early_reuse_grows),
      cmocka_unit_test(bound_buffer_grows_too),
      cmocka_unit_test(unordered_reuse_waits_or_grows),
      cmocka_unit_test(late_access_of_the_tenant_reopens),
      cmocka_unit_test(foreign_write_goes_private),
      cmocka_unit_test(foreign_access_of_a_dead_tenant_pins),
      cmocka_unit_test(pinned_buffer_leaves_the_slot_to_the_others),
      cmocka_unit_test(stale_read_follows_the_policy),
      cmocka_unit_test(wrong_sizes_go_private),
      cmocka_unit_test(escaped_pointers_do_not_share),
      cmocka_unit_test(registered_in_a_callback_keeps_the_slot),
      cmocka_unit_test(pin_beside_a_registered_one_stays),
      cmocka_unit_test(captured_receives_keep_their_memory),
      cmocka_unit_test(interrupted_step_freezes),
      cmocka_unit_test(lives_change_in_order_only),
  };
  return cmocka_run_group_tests_name("pool", tests, NULL, NULL);
}
