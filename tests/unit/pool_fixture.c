/* Helpers of the pool's tests. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "pool_fixture.h"

void check(struct fixture *f) {
  const char *broken = NULL;
  struct rp_pool_info info;
  if (rp_pool_check(f->pool, &broken)) fail_msg("%s", broken ? broken : "no memory for the check");
  rp_pool_info(f->pool, &info);
  assert_int_equal(info.account.physical_bytes, f->device->physical_bytes);
  assert_int_equal(f->device->misuse, 0);
}

struct fixture start(const struct rp_pool_options *options) {
  struct fixture f = {.device = host_device_create(1u << 20), .class_id = RP_POOL_NONE};
  assert_non_null(f.device);
  assert_int_equal(rp_pool_create(&f.device->backend, options, &f.pool), RP_OK);
  return f;
}

void end(struct fixture *f) {
  uint64_t left = 1;
  check(f);
  assert_int_equal(rp_pool_destroy(f->pool, &left), RP_OK);
  assert_int_equal(left, 0);
  assert_int_equal(f->device->physical_bytes, 0);
  assert_int_equal(host_device_ranges(f->device), 0);
  assert_int_equal(host_device_memories(f->device), 0);
  host_device_destroy(f->device);
}

void plan(struct fixture *f, uint32_t slots, uint32_t buffers) {
  struct rp_pool_class_spec spec = {.label = 7, .receive_bytes = BYTES, .slots = slots, .buffers = buffers};
  assert_int_equal(rp_pool_plan_class(f->pool, &spec, &f->class_id), RP_OK);
  check(f);
}

void allocate(struct fixture *f, size_t first, size_t count) {
  for (size_t i = first; i < first + count; i++) {
    assert_int_equal(rp_pool_allocate(f->pool, BYTES, &f->id[i], &f->address[i]), RP_OK);
    check(f);
  }
}

struct rp_pool_buffer_info look(struct fixture *f, size_t i) {
  struct rp_pool_buffer_info info;
  assert_int_equal(rp_pool_buffer(f->pool, f->id[i], &info), RP_OK);
  return info;
}

struct rp_pool_info counters(struct fixture *f) {
  struct rp_pool_info info;
  rp_pool_info(f->pool, &info);
  return info;
}

rp_status post_of(struct fixture *f, size_t i, uint32_t class_id, struct rp_pool_post extra) {
  extra.class_id = class_id;
  extra.buffer = f->id[i];
  if (!extra.address) extra.address = f->address[i];
  if (!extra.bytes) extra.bytes = BYTES;
  extra.slot_hint = RP_POOL_NONE;
  extra.site.microbatch = (uint32_t)i;
  extra.site.stream = 100 + i;
  rp_status status = rp_pool_receive_decide(f->pool, &extra, &f->decision);
  if (!status) status = rp_pool_receive_commit(f->pool, &extra, &f->decision);
  check(f);
  return status;
}

rp_status post(struct fixture *f, size_t i, struct rp_pool_post extra) {
  return post_of(f, i, RP_POOL_NONE, extra);
}

/* A receive in order behind whatever was there, which writes `word`. */
void receive(struct fixture *f, size_t i, uint64_t word) {
  assert_int_equal(post(f, i, (struct rp_pool_post){.order = RP_POOL_ORDER_YES}), RP_OK);
  assert_true(host_device_store(f->device, f->address[i], word));
}

rp_status use(struct fixture *f, size_t i, struct rp_pool_access access) {
  access.buffer = f->id[i];
  access.site.function = 55;
  access.site.stream = 200 + i;
  rp_status status = rp_pool_access_decide(f->pool, &access, &f->decision);
  if (!status) status = rp_pool_access_commit(f->pool, &access, &f->decision);
  check(f);
  return status;
}

void read_back(struct fixture *f, size_t i, uint64_t word) {
  uint64_t seen = 0;
  assert_int_equal(use(f, i, (struct rp_pool_access){.mode = RP_POOL_READ, .interposed = true}), RP_OK);
  assert_true(host_device_load(f->device, f->address[i], &seen));
  assert_int_equal(seen, word);
}

void release(struct fixture *f, size_t i) {
  assert_int_equal(rp_pool_release(f->pool, f->id[i]), RP_OK);
  check(f);
}

void cycle(struct fixture *f, size_t i, uint64_t word) {
  receive(f, i, word);
  read_back(f, i, word);
  release(f, i);
}

void expect_conflict(struct fixture *f, enum rp_pool_conflict_kind kind, bool prevented, size_t earlier,
                     size_t later) {
  size_t count;
  const struct rp_pool_conflict *kept = rp_pool_conflicts(f->pool, &count);
  assert_true(count > 0);
  const struct rp_pool_conflict *last = &kept[count - 1];
  assert_int_equal(last->kind, kind);
  assert_int_equal(last->prevented, prevented);
  assert_int_equal(last->earlier_address, f->address[earlier]);
  assert_int_equal(last->later_address, f->address[later]);
  if (kind != RP_POOL_UNCLEAR_ACCESS) /* counted by itself */
    assert_int_equal((prevented ? counters(f).prevented : counters(f).violated)[kind], 1);
}
