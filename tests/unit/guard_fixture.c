/* Helpers of the guard's tests. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "guard_fixture.h"

void guard_verify(struct guard_fixture *f) {
  const char *broken = NULL;
  if (rp_guard_check(f->guard, &broken)) fail_msg("%s", broken ? broken : "no memory for the check");
  assert_int_equal(f->device->misuse, 0);
}

static void watch(void *context, uint64_t begin, uint64_t end) {
  assert_true(begin < end);
  ((struct guard_fixture *)context)->watched++;
}

static void unwatch(void *context, uint64_t begin, uint64_t end) {
  assert_true(begin < end);
  ((struct guard_fixture *)context)->watched--;
}

struct guard_fixture guard_start(const struct rp_guard_options *options, const struct rp_guard_plan *plan) {
  struct guard_fixture f = {.device = host_device_create(1u << 21), .event = 1000};
  assert_non_null(f.device);
  assert_int_equal(rp_order_create(NULL, &f.order), RP_OK);
  for (uint64_t stream = COMPUTE; stream <= OTHER; stream++)
    rp_order_stream_create(f.order, CONTEXT, stream, false);
  assert_int_equal(rp_guard_create(options, &f.device->backend, f.order, plan, &f.guard), RP_OK);
  guard_verify(&f);
  return f;
}

void guard_end(struct guard_fixture *f) {
  uint64_t left = 1;
  guard_verify(f);
  assert_int_equal(rp_guard_destroy(f->guard, &left), RP_OK);
  assert_int_equal(left, 0);
  assert_int_equal(f->device->physical_bytes, 0);
  assert_int_equal(host_device_ranges(f->device), 0);
  rp_order_destroy(f->order);
  host_device_destroy(f->device);
}

static bool same_members(void *context, uint64_t comm, uint64_t other) {
  assert_int_not_equal(comm, other);
  return ((const struct guard_fixture *)context)->members_told;
}

void guard_alloc(struct guard_fixture *f, size_t first, size_t count) {
  const struct rp_guard_sink sink = {f, watch, unwatch, same_members};
  rp_guard_set_sink(f->guard, &sink);
  for (size_t i = first; i < first + count; i++) {
    assert_true(rp_guard_wants(f->guard, BYTES));
    if (f->shadow) {
      f->address[i] = 0x7000000000 + 16384 * i;
      rp_guard_shadow_alloc(f->guard, f->address[i], BYTES);
      continue;
    }
    assert_int_equal(rp_guard_allocate(f->guard, BYTES, &f->address[i]), RP_OK);
    guard_verify(f);
  }
}

void guard_channel(struct guard_fixture *f, size_t i, uint64_t label, uint32_t direction,
                   uint32_t microbatch) {
  f->channels[f->channel_count++] = (struct rp_guard_channel){f->address[i], label, 3, direction, microbatch};
}

void guard_order(struct guard_fixture *f, uint64_t from, uint64_t to) {
  const struct rp_order_site record = {.context = CONTEXT, .stream = from, .thread = THREAD};
  const struct rp_order_site wait = {.context = CONTEXT, .stream = to, .thread = THREAD};
  rp_order_event_record(f->order, &record, ++f->event, RP_ORDER_RECORD_STREAM);
  rp_order_event_wait(f->order, &wait, f->event);
}

static void make_idle(struct guard_fixture *f) {
  for (size_t i = 0; i < f->action.idle_count; i++) {
    const struct rp_order_gap *gap = &f->action.idle[i];
    const struct rp_order_site site = {.context = gap->context, .stream = gap->stream, .thread = THREAD};
    f->idles++;
    assert_int_not_equal(gap->fix, RP_ORDER_FIX_NONE);
    if (gap->fix == RP_ORDER_FIX_CONTEXT) {
      rp_order_sync_context(f->order, THREAD, gap->context);
      continue;
    }
    rp_order_event_record(f->order, &site, ++f->event, RP_ORDER_RECORD_STREAM);
    rp_order_sync_event(f->order, THREAD, f->event);
  }
  rp_guard_idle_reached(f->guard, &f->action);
}

static void make_waits(struct guard_fixture *f, uint64_t stream) {
  for (size_t i = 0; i < f->action.wait_count; i++, f->waits++)
    guard_order(f, f->action.waits[i].stream, stream);
}

/* True: prepare again. */
static bool at_boundary(struct guard_fixture *f) {
  if (!f->action.boundary) return false;
  f->boundaries++;
  if (f->busy) {
    rp_guard_boundary_postpone(f->guard);
    return true;
  }
  make_idle(f);
  (void)rp_guard_boundary(f->guard, f->channels, f->channel_count, 5000 + f->seq);
  rp_guard_boundary_took(f->guard, 17);
  guard_verify(f);
  return true;
}

rp_status guard_try_receive(struct guard_fixture *f, size_t i, struct rp_guard_receive receive) {
  receive.seq = ++f->seq;
  if (!receive.address) receive.address = f->address[i];
  if (!receive.bytes) receive.bytes = BYTES;
  if (!receive.comm) receive.comm = 50;
  if (!receive.site.stream) receive.site = (struct rp_order_site){CONTEXT, COMM, THREAD, 0};
  rp_status status;
  do
    status = rp_guard_receive_prepare(f->guard, &receive, &f->action);
  while (!status && at_boundary(f));
  if (status) return status;
  if (f->action.next == RP_GUARD_REFUSE) return RP_ERROR_STATE;
  if (f->action.next == RP_GUARD_ACT) {
    make_waits(f, receive.site.stream);
    make_idle(f);
    status = rp_guard_receive_commit(f->guard, &receive, &f->action);
  }
  guard_verify(f);
  if (status) return status;
  if (!receive.group) rp_guard_receive_launched(f->guard, &receive);
  guard_verify(f);
  f->word[i] = 7000 + f->seq;
  if (receive.address == f->address[i]) (void)host_device_store(f->device, f->address[i], f->word[i]);
  return RP_OK;
}

void guard_receive(struct guard_fixture *f, size_t i, int32_t peer, bool ordered) {
  if (ordered) guard_order(f, COMPUTE, COMM);
  assert_int_equal(guard_try_receive(f, i, (struct rp_guard_receive){.peer = peer}), RP_OK);
}

rp_status guard_try_access(struct guard_fixture *f, size_t i, struct rp_guard_access access) {
  access.seq = ++f->seq;
  if (!access.address) access.address = f->address[i];
  if (!access.kind) access.kind = RP_EVENT_KERNEL;
  if (!access.site.stream) access.site = (struct rp_order_site){CONTEXT, COMPUTE, THREAD, 0};
  rp_status status = rp_guard_access_prepare(f->guard, &access, &f->action, NULL);
  if (status) return status;
  if (f->action.next == RP_GUARD_REFUSE) return RP_ERROR_STATE;
  if (f->action.next == RP_GUARD_ACT) {
    make_idle(f);
    status = rp_guard_access_commit(f->guard, &access, &f->action);
  }
  if (!status) rp_guard_access_launched(f->guard, &access, rp_order_access(f->order, &access.site));
  guard_verify(f);
  return status;
}

void guard_kernel(struct guard_fixture *f, size_t i, uint64_t function) {
  guard_order(f, COMM, COMPUTE);
  assert_int_equal(guard_try_access(f, i, (struct rp_guard_access){.function = function, .place = 1}), RP_OK);
}

void guard_read(struct guard_fixture *f, size_t i, uint64_t function) {
  uint64_t seen = 0;
  guard_kernel(f, i, function);
  if (f->shadow) return;
  assert_true(host_device_load(f->device, f->address[i], &seen));
  assert_int_equal(seen, f->word[i]);
}

struct rp_guard_report guard_look(struct guard_fixture *f) {
  struct rp_guard_report report;
  assert_int_equal(rp_guard_report(f->guard, &report), RP_OK);
  return report;
}

void guard_expect_idle(struct guard_fixture *f, const char *reason) {
  struct rp_guard_report report = guard_look(f);
  assert_false(report.active);
  assert_string_equal(report.idle_reason, reason);
  assert_true(strlen(report.idle_text) > 10);
  assert_int_equal(report.conflict_count, 0);
  rp_guard_report_fini(&report);
}

void guard_step(struct guard_fixture *f, size_t first, size_t count, size_t depth) {
  for (size_t n = 0; n < count + depth - 1; n++) {
    if (n < count) {
      guard_receive(f, first + n, UPSTREAM, true);
      guard_read(f, first + n, 1);
    }
    if (n + 1 < depth) continue;
    guard_read(f, first + n + 1 - depth, 2);
    rp_guard_sent(f->guard, 50, UPSTREAM, BYTES);
  }
}
