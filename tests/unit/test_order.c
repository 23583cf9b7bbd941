/* The semantics of CUDA streams that pool/order follows, one case each. Every case names both sides: what is
 * ordered, and the neighbour that is not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "pool/order.h"

#define CONTEXT 0xc0
#define OTHER_CONTEXT 0xc1
#define LEGACY RP_ORDER_STREAM_LEGACY
#define PER_THREAD RP_ORDER_STREAM_PER_THREAD
enum { BLOCKING_A = 0x10, BLOCKING_B, FREE_A, FREE_B, FREE_C, ELSEWHERE };
enum { EVENT = 0xe0, EVENT_2, EVENT_3 };
enum { HOST = 1, HOST_2 };

static struct rp_order *order;

static struct rp_order_site at(uint64_t stream) {
  return (struct rp_order_site){.context = CONTEXT, .stream = stream, .thread = HOST};
}
static struct rp_order_site by(uint64_t thread, uint64_t stream) {
  return (struct rp_order_site){.context = CONTEXT, .stream = stream, .thread = thread};
}
static struct rp_order_site programmatic(uint64_t stream) {
  struct rp_order_site site = at(stream);
  site.flags = RP_ORDER_PROGRAMMATIC;
  return site;
}
static rp_order_token access_at(struct rp_order_site site) {
  return rp_order_access(order, &site);
}
static rp_order_token use(uint64_t stream) {
  return access_at(at(stream));
}
static void record(uint64_t stream, uint64_t event) {
  const struct rp_order_site site = at(stream);
  rp_order_event_record(order, &site, event, RP_ORDER_RECORD_STREAM);
}
static void wait_for(uint64_t stream, uint64_t event) {
  const struct rp_order_site site = at(stream);
  rp_order_event_wait(order, &site, event);
}
static void sync_stream(uint64_t thread, uint64_t stream) {
  const struct rp_order_site site = by(thread, stream);
  rp_order_sync_stream(order, &site);
}
static bool ordered_at(rp_order_token token, struct rp_order_site site) {
  return rp_order_before(order, token, &site);
}
static bool ordered(rp_order_token token, uint64_t stream) {
  return ordered_at(token, at(stream));
}
static bool known(rp_order_token token, uint64_t thread) {
  return rp_order_before_host(order, token, thread);
}

static void tell_streams(void) {
  rp_order_stream_create(order, CONTEXT, BLOCKING_A, true);
  rp_order_stream_create(order, CONTEXT, BLOCKING_B, true);
  rp_order_stream_create(order, CONTEXT, FREE_A, false);
  rp_order_stream_create(order, CONTEXT, FREE_B, false);
  rp_order_stream_create(order, CONTEXT, FREE_C, false);
  rp_order_stream_create(order, OTHER_CONTEXT, ELSEWHERE, true);
}
static int set_up(void **state) {
  (void)state;
  if (rp_order_create(NULL, &order)) return -1;
  tell_streams();
  return 0;
}
static int tear_down(void **state) {
  (void)state;
  rp_order_destroy(order);
  return 0;
}
static void restart(const struct rp_order_limits *limits) {
  rp_order_destroy(order);
  assert_int_equal(rp_order_create(limits, &order), RP_OK);
}

/* ---- streams and events ---- */

static void a_stream_is_ordered_in_itself_only(void **state) {
  (void)state;
  rp_order_token token = use(FREE_A);
  assert_true(ordered(token, FREE_A));
  assert_true(ordered_at(token, by(HOST_2, FREE_A)));
  assert_false(ordered(token, FREE_B));
  assert_false(known(token, HOST));
  assert_false(ordered(RP_ORDER_TOKEN_UNKNOWN, FREE_A));
}

static void a_wait_orders_what_was_recorded_and_no_more(void **state) {
  (void)state;
  rp_order_token before = use(FREE_A);
  record(FREE_A, EVENT);
  rp_order_token after = use(FREE_A);
  assert_false(ordered(before, FREE_B));
  wait_for(FREE_B, EVENT);
  assert_true(ordered(before, FREE_B));
  assert_false(ordered(after, FREE_B));
  assert_false(ordered(before, FREE_C));
  assert_false(known(before, HOST));
}

static void a_record_replaces_and_a_wait_uses_the_latest(void **state) {
  (void)state;
  rp_order_token first = use(FREE_A);
  record(FREE_A, EVENT);
  wait_for(FREE_B, EVENT);
  rp_order_token second = use(FREE_A);
  record(FREE_A, EVENT);
  assert_false(ordered(second, FREE_B)); /* it waited for the record before */
  wait_for(FREE_C, EVENT);
  assert_true(ordered(second, FREE_C));
  record(FREE_B, EVENT); /* from another stream, which knows first only */
  wait_for(BLOCKING_A, EVENT);
  assert_true(ordered(first, BLOCKING_A));
  assert_false(ordered(second, BLOCKING_A));
}

static void an_event_that_says_nothing_makes_no_order(void **state) {
  (void)state;
  rp_order_token token = use(FREE_A);
  wait_for(FREE_B, EVENT); /* never recorded */
  record(FREE_A, EVENT);
  record(FREE_A, EVENT_2);
  assert_false(ordered(token, FREE_B)); /* recorded after the wait */
  rp_order_event_destroy(order, EVENT);
  rp_order_event_unknown(order, EVENT_2);
  wait_for(FREE_B, EVENT);
  wait_for(FREE_B, EVENT_2);
  assert_false(ordered(token, FREE_B));
}

static void a_record_on_a_stream_that_knows_nothing_replaces_too(void **state) {
  (void)state;
  rp_order_token token = use(FREE_A);
  record(FREE_A, EVENT);
  record(0x999, EVENT); /* a stream nobody has told about */
  wait_for(FREE_B, EVENT);
  assert_false(ordered(token, FREE_B));
}

static void order_is_transitive(void **state) {
  (void)state;
  rp_order_token token = use(FREE_A);
  record(FREE_A, EVENT);
  wait_for(FREE_B, EVENT);
  record(FREE_B, EVENT_2);
  wait_for(FREE_C, EVENT_2);
  assert_true(ordered(token, FREE_C));
}

static void foreign_events_make_no_order_until_destroyed(void **state) {
  (void)state;
  rp_order_token token = use(FREE_A);
  record(FREE_A, EVENT);
  rp_order_event_foreign(order, EVENT);
  rp_order_sync_event(order, HOST, EVENT);
  assert_false(known(token, HOST));
  record(FREE_A, EVENT);
  wait_for(FREE_B, EVENT);
  rp_order_sync_event(order, HOST, EVENT);
  rp_order_event_unknown(order, EVENT); /* stays foreign */
  record(FREE_A, EVENT);
  wait_for(FREE_B, EVENT);
  assert_false(ordered(token, FREE_B));
  rp_order_event_destroy(order, EVENT);
  record(FREE_A, EVENT);
  wait_for(FREE_B, EVENT);
  assert_true(ordered(token, FREE_B));
}

/* ---- default streams ---- */

static void the_legacy_stream_and_blocking_streams_wait_for_each_other(void **state) {
  (void)state;
  rp_order_token blocking = use(BLOCKING_A), nonblocking = use(FREE_A);
  assert_true(ordered(blocking, LEGACY));
  assert_false(ordered(nonblocking, LEGACY));
  assert_false(ordered(blocking, BLOCKING_B)); /* not without something on the legacy stream */
  rp_order_token legacy = use(LEGACY);
  assert_true(ordered(legacy, BLOCKING_B));
  assert_true(ordered(blocking, BLOCKING_B));
  assert_false(ordered(legacy, FREE_A));
  assert_false(ordered(nonblocking, BLOCKING_B));
  rp_order_token later = use(BLOCKING_B);
  assert_false(ordered(later, BLOCKING_A));
}

static void work_without_access_on_the_legacy_stream_is_a_barrier(void **state) {
  (void)state;
  rp_order_token token = use(BLOCKING_A);
  const struct rp_order_site legacy = at(LEGACY);
  rp_order_work(order, &legacy);
  assert_true(ordered(token, BLOCKING_B));
  assert_false(ordered(token, FREE_A));
}

static void records_and_waits_on_the_legacy_stream_are_barriers(void **state) {
  (void)state;
  rp_order_token token = use(BLOCKING_A), nonblocking = use(FREE_A);
  record(LEGACY, EVENT);
  wait_for(FREE_B, EVENT);
  assert_true(ordered(token, FREE_B));
  assert_true(ordered(token, BLOCKING_B));
  record(FREE_A, EVENT_2);
  wait_for(LEGACY, EVENT_2);
  assert_true(ordered(nonblocking, BLOCKING_B));
  rp_order_token second = use(BLOCKING_A);
  wait_for(LEGACY, EVENT_3); /* never recorded: nothing happens */
  assert_false(ordered(second, BLOCKING_B));
  wait_for(LEGACY, EVENT_2);
  assert_true(ordered(second, BLOCKING_B));
}

static void per_thread_streams_are_blocking_and_one_for_each_thread(void **state) {
  (void)state;
  rp_order_token mine = use(PER_THREAD);
  assert_true(ordered(mine, PER_THREAD));
  assert_false(ordered_at(mine, by(HOST_2, PER_THREAD)));
  assert_true(ordered(mine, LEGACY));
  rp_order_token legacy = use(LEGACY);
  assert_true(ordered_at(legacy, by(HOST_2, PER_THREAD))); /* although that one has done nothing yet */
  assert_true(ordered_at(mine, by(HOST_2, PER_THREAD)));
  access_at(by(HOST_2, PER_THREAD));
  assert_false(ordered_at(use(FREE_A), by(HOST_2, PER_THREAD)));
}

static void default_streams_belong_to_a_context(void **state) {
  (void)state;
  struct rp_order_site other = {.context = OTHER_CONTEXT, .stream = LEGACY, .thread = HOST};
  rp_order_token blocking = use(BLOCKING_A), elsewhere = use(ELSEWHERE);
  assert_false(ordered_at(blocking, other));
  assert_true(ordered_at(elsewhere, other));
  rp_order_token legacy = access_at(other);
  assert_false(ordered(legacy, BLOCKING_A));
  assert_false(ordered(legacy, LEGACY));
  assert_true(ordered(legacy, ELSEWHERE));
  other.context = 0; /* whose default stream is not known */
  assert_int_equal(access_at(other), RP_ORDER_TOKEN_UNKNOWN);
  assert_false(ordered_at(elsewhere, other));
}

static void streams_never_told_are_non_blocking(void **state) {
  (void)state;
  rp_order_token token = use(0x999);
  assert_true(ordered(token, 0x999));
  use(LEGACY);
  assert_false(ordered(token, LEGACY));
  rp_order_sync_context(order, HOST, CONTEXT); /* may be of another */
  assert_false(known(token, HOST));
  assert_int_equal(use(RP_ORDER_STREAM_UNKNOWN), RP_ORDER_TOKEN_UNKNOWN);
}

/* ---- the host ---- */

static void host_synchronisation_orders_what_the_thread_does_next(void **state) {
  (void)state;
  rp_order_token first = use(FREE_A);
  sync_stream(HOST, FREE_A);
  rp_order_token second = use(FREE_A);
  assert_true(known(first, HOST));
  assert_false(known(second, HOST));
  assert_true(ordered(first, FREE_B));
  assert_true(ordered(first, LEGACY));
  assert_false(ordered(second, FREE_B));
  assert_false(ordered_at(first, by(HOST_2, FREE_B)));
  access_at(at(FREE_B)); /* takes what the thread knows along */
  assert_true(ordered_at(first, by(HOST_2, FREE_B)));
  assert_false(known(first, HOST_2));
}

static void event_synchronisation_covers_the_record(void **state) {
  (void)state;
  rp_order_token first = use(FREE_A);
  record(FREE_A, EVENT);
  rp_order_token second = use(FREE_A);
  rp_order_sync_event(order, HOST, EVENT);
  assert_true(ordered(first, FREE_B));
  assert_false(ordered(second, FREE_B));
  rp_order_sync_event(order, HOST, EVENT_2);
  assert_false(ordered(second, FREE_B));
}

static void context_synchronisation_covers_all_streams_of_it(void **state) {
  (void)state;
  const uint64_t streams[] = {BLOCKING_A, FREE_A, LEGACY, PER_THREAD};
  rp_order_token tokens[4];
  for (int i = 0; i < 4; i++)
    tokens[i] = use(streams[i]);
  rp_order_token elsewhere = use(ELSEWHERE);
  rp_order_sync_context(order, HOST_2, CONTEXT);
  for (int i = 0; i < 4; i++) {
    assert_true(known(tokens[i], HOST_2));
    assert_false(known(tokens[i], HOST));
  }
  assert_false(known(elsewhere, HOST_2));
}

static void synchronising_the_legacy_stream_covers_blocking_streams(void **state) {
  (void)state;
  rp_order_token blocking = use(BLOCKING_A), nonblocking = use(FREE_A);
  sync_stream(HOST, LEGACY); /* also where it has done nothing itself */
  assert_true(known(blocking, HOST));
  assert_false(known(nonblocking, HOST));
  rp_order_token legacy = use(LEGACY);
  sync_stream(HOST, BLOCKING_A); /* has not done anything after it */
  assert_false(known(legacy, HOST));
}

static void a_wait_is_part_of_its_stream(void **state) {
  (void)state;
  rp_order_token token = use(FREE_A);
  record(FREE_A, EVENT);
  wait_for(FREE_B, EVENT);
  sync_stream(HOST, FREE_B);
  assert_true(known(token, HOST));
}

static void threads_are_ordered_only_through_streams(void **state) {
  (void)state;
  rp_order_token token = use(FREE_A);
  sync_stream(HOST, FREE_A);
  assert_false(ordered_at(token, by(HOST_2, FREE_B)));
  record(FREE_C, EVENT); /* after what the thread knows */
  struct rp_order_site second = by(HOST_2, FREE_B);
  rp_order_event_wait(order, &second, EVENT);
  assert_true(ordered_at(token, second));
}

static void synchronous_copies_wait_by_kind(void **state) {
  (void)state;
  const struct {
    enum rp_order_copy kind;
    bool waits;
  } kinds[] = {{RP_ORDER_COPY_UNKNOWN, false},         {RP_ORDER_COPY_PAGEABLE_TO_DEVICE, false},
               {RP_ORDER_COPY_PINNED_TO_DEVICE, true}, {RP_ORDER_COPY_DEVICE_TO_HOST, true},
               {RP_ORDER_COPY_HOST_TO_HOST, true},     {RP_ORDER_COPY_DEVICE_TO_DEVICE, false}};
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
    const struct rp_order_site legacy = at(LEGACY);
    rp_order_token before = use(BLOCKING_A), free_stream = use(FREE_A);
    rp_order_token copy = rp_order_copy_sync(order, &legacy, kinds[i].kind);
    assert_int_equal(known(copy, HOST), kinds[i].waits);
    assert_int_equal(known(before, HOST), kinds[i].waits);
    assert_true(ordered(before, BLOCKING_B));
    assert_false(known(free_stream, HOST));
  }
  const struct rp_order_site flagged = programmatic(FREE_B); /* means nothing for a copy */
  rp_order_token before = use(FREE_B);
  rp_order_copy_sync(order, &flagged, RP_ORDER_COPY_DEVICE_TO_DEVICE);
  assert_true(ordered_at(before, flagged));
}

static void host_accesses_come_before_what_the_thread_does_next(void **state) {
  (void)state;
  rp_order_token token = rp_order_host_access(order, HOST);
  assert_true(known(token, HOST));
  assert_true(ordered(token, FREE_A));
  assert_false(ordered_at(token, by(HOST_2, FREE_A)));
  use(FREE_A);
  assert_true(ordered_at(token, by(HOST_2, FREE_A)));
  rp_order_token second = rp_order_host_access(order, HOST);
  use(FREE_A);
  assert_true(ordered_at(second, by(HOST_2, FREE_A)));
}

/* ---- launch attributes, graphs ---- */

static void a_programmatic_launch_is_not_after_the_one_before_it(void **state) {
  (void)state;
  rp_order_token first = use(FREE_A), second = use(FREE_A);
  assert_true(ordered_at(first, programmatic(FREE_A))); /* second began after first */
  assert_false(ordered_at(second, programmatic(FREE_A)));
  rp_order_token third = access_at(programmatic(FREE_A));
  assert_false(ordered_at(second, programmatic(FREE_A))); /* third may have begun before second ended */
  assert_false(ordered_at(third, programmatic(FREE_A)));
  assert_true(ordered(second, FREE_A)); /* an ordinary launch is after all of them */
  assert_true(ordered(third, FREE_A));
  record(FREE_A, EVENT);
  wait_for(FREE_B, EVENT);
  assert_true(ordered(second, FREE_B));
  use(FREE_A);
  assert_true(ordered_at(third, programmatic(FREE_A)));
}

static void a_programmatic_launch_ignores_waits_and_barriers(void **state) {
  (void)state;
  rp_order_token other = use(FREE_B), blocking = use(BLOCKING_B);
  use(BLOCKING_A);
  record(FREE_B, EVENT);
  wait_for(BLOCKING_A, EVENT);
  rp_order_token legacy = use(LEGACY);
  assert_false(ordered_at(other, programmatic(BLOCKING_A)));
  assert_false(ordered_at(legacy, programmatic(BLOCKING_A)));
  assert_false(ordered_at(blocking, programmatic(LEGACY)) && ordered_at(legacy, programmatic(LEGACY)));
  assert_true(ordered(other, BLOCKING_A));
  sync_stream(HOST, LEGACY); /* what the host knows it cannot ignore */
  assert_true(ordered_at(legacy, programmatic(BLOCKING_A)));
  access_at(programmatic(BLOCKING_A));
  assert_true(ordered_at(
      legacy,
      (struct rp_order_site){.stream = BLOCKING_A, .thread = HOST_2, .flags = RP_ORDER_PROGRAMMATIC}));
}

static void a_programmatic_launch_on_the_legacy_stream_is_no_barrier(void **state) {
  (void)state;
  use(LEGACY);
  rp_order_token token = use(BLOCKING_A);
  rp_order_token launch = access_at(programmatic(LEGACY));
  assert_false(ordered(token, BLOCKING_B));
  assert_true(ordered(launch, BLOCKING_B));
}

static void events_of_launch_attributes_say_little(void **state) {
  (void)state;
  const struct rp_order_site site = at(FREE_A);
  rp_order_token first = use(FREE_A), second = use(FREE_A);
  rp_order_event_record(order, &site, EVENT, RP_ORDER_RECORD_PROGRAMMATIC);
  wait_for(FREE_B, EVENT);
  assert_true(ordered(first, FREE_B));
  assert_false(ordered(second, FREE_B));
  record(FREE_A, EVENT);
  rp_order_event_record(order, &site, EVENT, RP_ORDER_RECORD_LAUNCHED); /* replaces what was there */
  wait_for(FREE_C, EVENT);
  assert_false(ordered(first, FREE_C));
}

static void programmatic_events_know_no_more_than_the_launch(void **state) {
  (void)state;
  const struct rp_order_site site = at(BLOCKING_A);
  rp_order_token other = use(FREE_B);
  use(BLOCKING_A);
  rp_order_token legacy = use(LEGACY);
  record(FREE_B, EVENT);
  wait_for(BLOCKING_A, EVENT);
  access_at(programmatic(BLOCKING_A)); /* does not wait for either */
  rp_order_event_record(order, &site, EVENT_2, RP_ORDER_RECORD_PROGRAMMATIC);
  wait_for(FREE_C, EVENT_2);
  assert_false(ordered(other, FREE_C));
  assert_false(ordered(legacy, FREE_C));
  rp_order_token later = use(LEGACY);
  access_at(programmatic(BLOCKING_A));
  rp_order_event_record(order, &site, EVENT_2,
                        RP_ORDER_RECORD_PROGRAMMATIC); /* no barrier as an ordinary one */
  sync_stream(HOST, BLOCKING_A);
  assert_false(known(later, HOST));
}

static void graph_launches_are_ordered_by_stream_and_executable(void **state) {
  (void)state;
  const struct rp_order_site a = at(FREE_A), b = at(FREE_B), c = at(FREE_C);
  rp_order_token before = use(FREE_A);
  rp_order_token first = rp_order_graph_launch(order, &a, 0x60);
  assert_true(ordered(before, FREE_A));
  rp_order_graph_launch(order, &b, 0x60);
  assert_true(ordered(first, FREE_B));
  assert_true(ordered(before, FREE_B));
  rp_order_graph_launch(order, &c, 0x61); /* another executable */
  assert_false(ordered(first, FREE_C));
  rp_order_graph_destroy(order, 0x60); /* the handle comes back as another graph */
  rp_order_graph_launch(order, &c, 0x60);
  assert_false(ordered(first, FREE_C));
}

/* ---- capture ---- */

static void captured_calls_make_no_order(void **state) {
  (void)state;
  const struct rp_order_site a = at(FREE_A), b = at(FREE_B);
  rp_order_token real = use(FREE_A), real_b = use(FREE_B);
  rp_order_capture_begin(order, &a);
  assert_int_equal(use(FREE_A), RP_ORDER_TOKEN_UNKNOWN);
  assert_false(ordered(real, FREE_A));
  record(FREE_A, EVENT);
  wait_for(FREE_B, EVENT); /* draws it in */
  assert_int_equal(use(FREE_B), RP_ORDER_TOKEN_UNKNOWN);
  record(FREE_B, EVENT_2);
  wait_for(FREE_A, EVENT_2);
  rp_order_capture_end(order, &a);
  assert_false(ordered(real, FREE_B));
  assert_false(ordered(real_b, FREE_A));
  assert_true(ordered(real, FREE_A));
  wait_for(FREE_C, EVENT);
  wait_for(FREE_C, EVENT_2);
  assert_false(ordered(real, FREE_C));
  assert_true(ordered(use(FREE_B), FREE_B));
  struct rp_order_site flagged = b;
  flagged.flags = RP_ORDER_CAPTURED;
  assert_int_equal(access_at(flagged), RP_ORDER_TOKEN_UNKNOWN);
  assert_false(ordered_at(real_b, flagged));
}

static void two_captures_do_not_mix(void **state) {
  (void)state;
  const struct rp_order_site a = at(FREE_A), b = at(FREE_B);
  rp_order_capture_begin(order, &a);
  rp_order_capture_begin(order, &b);
  record(FREE_A, EVENT);
  record(FREE_B, EVENT_2);
  wait_for(FREE_C, EVENT);
  rp_order_capture_end(order, &b);
  assert_int_equal(use(FREE_C), RP_ORDER_TOKEN_UNKNOWN);
  assert_int_not_equal(use(FREE_B), RP_ORDER_TOKEN_UNKNOWN);
  rp_order_capture_end(order, &a);
  assert_int_not_equal(use(FREE_C), RP_ORDER_TOKEN_UNKNOWN);
}

static void foreign_events_draw_into_captures_too(void **state) {
  (void)state;
  const struct rp_order_site a = at(FREE_A);
  rp_order_event_foreign(order, EVENT);
  rp_order_capture_begin(order, &a);
  record(FREE_A, EVENT);
  wait_for(FREE_B, EVENT);
  assert_int_equal(use(FREE_B), RP_ORDER_TOKEN_UNKNOWN);
  rp_order_capture_end(order, &a);
  rp_order_token token = use(FREE_B);
  assert_int_not_equal(token, RP_ORDER_TOKEN_UNKNOWN);
  record(FREE_B, EVENT); /* still foreign */
  wait_for(FREE_A, EVENT);
  assert_false(ordered(token, FREE_A));
}

static void the_latest_record_decides_whether_an_event_is_captured(void **state) {
  (void)state;
  const struct rp_order_site a = at(FREE_A);
  rp_order_capture_begin(order, &a);
  record(FREE_A, EVENT);
  record(FREE_A, EVENT_2);
  record(FREE_A, EVENT_3);
  rp_order_token token = use(FREE_B);
  record(FREE_B, EVENT); /* a real one */
  wait_for(FREE_C, EVENT);
  assert_true(ordered(token, FREE_C));
  rp_order_event_destroy(order, EVENT_2);
  rp_order_event_foreign(order, EVENT_2);
  wait_for(FREE_C, EVENT_2); /* another event at the same handle, not captured */
  assert_true(ordered(token, FREE_C));
  struct rp_order_site flagged = at(FREE_B);
  flagged.flags = RP_ORDER_CAPTURED;
  rp_order_event_record(order, &flagged, EVENT, RP_ORDER_RECORD_STREAM); /* captured, by the caller's word */
  wait_for(BLOCKING_A, EVENT);
  assert_false(ordered(token, BLOCKING_A));
}

static void captures_leave_no_events_behind(void **state) {
  (void)state;
  restart(&(struct rp_order_limits){.events = 1});
  const struct rp_order_site a = at(FREE_A);
  rp_order_capture_begin(order, &a);
  record(FREE_A, EVENT);
  record(FREE_B, EVENT_2); /* does not drive out what says that EVENT is captured */
  wait_for(FREE_C, EVENT);
  assert_int_equal(use(FREE_C), RP_ORDER_TOKEN_UNKNOWN);
  rp_order_capture_end(order, &a);
  rp_order_token token = use(FREE_B);
  record(FREE_B, EVENT_2);
  wait_for(FREE_C, EVENT_2);
  assert_true(ordered(token, FREE_C));
}

static void a_capture_whose_stream_does_not_fit_makes_no_order(void **state) {
  (void)state;
  restart(&(struct rp_order_limits){.streams = 2});
  rp_order_token token = use(FREE_A);
  use(FREE_B);
  const struct rp_order_site origin = at(FREE_C);
  rp_order_capture_begin(order, &origin);
  record(FREE_C, EVENT);
  wait_for(FREE_A, EVENT); /* really captured from here on */
  record(FREE_A, EVENT_2);
  wait_for(FREE_B, EVENT_2);
  rp_order_capture_end(order, &origin);
  assert_false(ordered(token, FREE_B));
  const struct rp_order_site second = at(FREE_B); /* one that fits: what is not known is not captured */
  rp_order_capture_begin(order, &second);
  wait_for(FREE_A, EVENT_3);
  assert_int_not_equal(use(FREE_A), RP_ORDER_TOKEN_UNKNOWN);
}

static void captures_that_do_not_fit_make_no_order(void **state) {
  (void)state;
  restart(&(struct rp_order_limits){.streams = 3, .events = 1});
  rp_order_token token = use(FREE_A);
  use(FREE_B);
  const struct rp_order_site origin = at(FREE_C);
  rp_order_event_foreign(order, EVENT_3); /* takes the only place for events */
  rp_order_capture_begin(order, &origin);
  record(FREE_C, EVENT);   /* does not fit */
  wait_for(FREE_A, EVENT); /* really captured from here on */
  assert_int_equal(use(FREE_A), RP_ORDER_TOKEN_UNKNOWN);
  rp_order_event_destroy(order, EVENT_3);
  record(FREE_A, EVENT_2); /* captured */
  wait_for(FREE_B, EVENT_2);
  rp_order_capture_end(order, &origin);
  assert_false(ordered(token, FREE_B));
  assert_int_not_equal(use(FREE_A), RP_ORDER_TOKEN_UNKNOWN);
}

/* ---- coming and going, bounds ---- */

static void destroying_a_stream_orders_nothing_and_its_handle_may_return(void **state) {
  (void)state;
  rp_order_token token = use(FREE_A);
  rp_order_stream_destroy(order, FREE_A);
  assert_false(ordered(token, FREE_A));
  assert_false(known(token, HOST));
  rp_order_stream_create(order, CONTEXT, FREE_A, false);
  assert_false(ordered(token, FREE_A));
  use(FREE_A);
  assert_false(ordered(token, FREE_A));
  rp_order_token second = use(FREE_A);
  rp_order_stream_create(order, CONTEXT, FREE_A, false); /* its end was not told */
  assert_false(ordered(second, FREE_A));
  rp_order_sync_context(order, HOST, CONTEXT); /* its work is still the context's */
  assert_true(known(token, HOST));
  assert_true(known(second, HOST));
}

static void threads_and_contexts_take_their_default_streams_along(void **state) {
  (void)state;
  rp_order_token token = use(PER_THREAD), named = use(FREE_A);
  sync_stream(HOST, FREE_A);
  rp_order_thread_exit(order, HOST);
  assert_false(ordered(token, PER_THREAD)); /* the id belongs to another thread now */
  assert_false(known(named, HOST));
  rp_order_token legacy = use(LEGACY);
  use(BLOCKING_A);
  rp_order_context_destroy(order, CONTEXT);
  assert_false(ordered(legacy, LEGACY));
  assert_false(ordered(named, FREE_A));
}

static void a_place_taken_again_remembers_nothing(void **state) {
  (void)state;
  restart(&(struct rp_order_limits){.contexts = 1, .threads = 1, .streams = 2});
  rp_order_stream_create(order, CONTEXT, BLOCKING_A, true);
  rp_order_token token = use(BLOCKING_A);
  sync_stream(HOST, BLOCKING_A);
  rp_order_thread_exit(order, HOST);
  rp_order_host_access(order, HOST_2);
  assert_false(known(token, HOST_2));
  rp_order_context_destroy(order, CONTEXT);
  const struct rp_order_site other = {.context = OTHER_CONTEXT, .stream = LEGACY, .thread = HOST};
  rp_order_stream_create(order, OTHER_CONTEXT, ELSEWHERE, true);
  assert_false(ordered_at(token, other));
  rp_order_sync_context(order, HOST_2, OTHER_CONTEXT);
  assert_false(known(token, HOST_2));
  for (int i = 0; i < 5; i++) /* and is free again also where the end was not told */
    rp_order_stream_create(order, OTHER_CONTEXT, ELSEWHERE, true);
  assert_int_not_equal(access_at(other), RP_ORDER_TOKEN_UNKNOWN);
}

static void components_are_taken_again_without_false_order(void **state) {
  (void)state;
  restart(&(struct rp_order_limits){.components = 2});
  tell_streams();
  rp_order_token old = use(FREE_A);
  use(FREE_B);
  assert_int_equal(use(FREE_C), RP_ORDER_TOKEN_UNKNOWN); /* no component left */
  assert_int_equal(rp_order_counts(order).components_dropped, 1);
  struct rp_order_frontier frontier = {0};
  rp_order_frontier_add(order, &frontier, old);
  rp_order_stream_destroy(order, FREE_A);
  assert_false(rp_order_stale(order, old));
  rp_order_token fresh = use(FREE_C);
  assert_int_not_equal(fresh, RP_ORDER_TOKEN_UNKNOWN);
  assert_true(rp_order_stale(order, old));
  assert_false(ordered(old, FREE_C)); /* although the component is the stream's own, and further on */
  assert_true(ordered(fresh, FREE_C));
  rp_order_frontier_add(order, &frontier, fresh); /* must not hide the stale one */
  assert_false(rp_order_frontier_before(order, &frontier, &(struct rp_order_site){.stream = FREE_C}));
  assert_int_equal(rp_order_counts(order).components_recycled, 1);
}

static void what_does_not_fit_has_no_order_and_is_counted(void **state) {
  (void)state;
  restart(&(struct rp_order_limits){.streams = 2, .threads = 1, .events = 2, .graphs = 1, .contexts = 1});
  rp_order_stream_create(order, CONTEXT, FREE_A, false);
  rp_order_token token = use(FREE_A);
  use(FREE_B);
  assert_int_equal(use(FREE_C), RP_ORDER_TOKEN_UNKNOWN);
  record(FREE_A, EVENT);
  record(FREE_A, EVENT_2);
  record(FREE_A, EVENT_3);
  wait_for(FREE_B, EVENT); /* made room */
  assert_false(ordered(token, FREE_B));
  wait_for(FREE_B, EVENT_3);
  assert_true(ordered(token, FREE_B));
  sync_stream(HOST, FREE_A);
  sync_stream(HOST_2, FREE_A);
  assert_true(known(token, HOST));
  assert_false(known(token, HOST_2));
  const struct rp_order_site a = at(FREE_A), b = at(FREE_B);
  rp_order_token graph = rp_order_graph_launch(order, &a, 1);
  rp_order_graph_launch(order, &a, 2);
  rp_order_graph_launch(order, &b, 1);
  assert_false(ordered(graph, FREE_B));
  rp_order_stream_destroy(order, FREE_B);
  rp_order_stream_create(order, OTHER_CONTEXT, ELSEWHERE, true);
  const struct rp_order_counts counts = rp_order_counts(order);
  assert_int_equal(counts.streams_dropped, 1);
  assert_int_equal(counts.threads_dropped, 1);
  assert_int_equal(counts.events_evicted, 1);
  assert_int_equal(counts.graphs_evicted, 2);
  assert_int_equal(counts.contexts_dropped, 1);
}

static void a_foreign_event_that_does_not_fit_taints_all(void **state) {
  (void)state;
  restart(&(struct rp_order_limits){.events = 1});
  rp_order_token token = use(FREE_A);
  rp_order_event_foreign(order, EVENT);
  record(FREE_A, EVENT_2); /* does not drive it out */
  record(FREE_A, EVENT);
  wait_for(FREE_B, EVENT);
  assert_false(ordered(token, FREE_B));
  rp_order_event_foreign(order, EVENT_2);
  rp_order_event_destroy(order, EVENT);
  record(FREE_A, EVENT_2);
  wait_for(FREE_B, EVENT_2);
  rp_order_sync_event(order, HOST, EVENT_2);
  assert_false(ordered(token, FREE_B));
}

static void limits_are_checked(void **state) {
  (void)state;
  struct rp_order *none = NULL;
  assert_int_equal(rp_order_create(&(struct rp_order_limits){.components = 65536}, &none), RP_ERROR_INVALID);
  assert_int_equal(rp_order_create(&(struct rp_order_limits){.events = 1u << 21}, &none), RP_ERROR_INVALID);
  assert_null(none);
  rp_order_destroy(NULL);
  const size_t bytes = rp_order_bytes(order);
  for (uint64_t i = 0; i < 20000; i++) { /* far more of everything than fits */
    const struct rp_order_site site = {.context = i % 100 + 1, .stream = i, .thread = i % 1000};
    rp_order_access(order, &site);
    rp_order_event_record(order, &site, i, RP_ORDER_RECORD_STREAM);
    rp_order_graph_launch(order, &site, i);
    rp_order_sync_stream(order, &site);
  }
  assert_int_equal(rp_order_bytes(order), bytes);
  assert_true(rp_order_counts(order).streams_dropped > 0);
}

/* ---- frontier and gaps ---- */

static void a_frontier_keeps_the_latest_of_each_stream(void **state) {
  (void)state;
  struct rp_order_frontier frontier = {0};
  const struct rp_order_site b = at(FREE_B);
  assert_true(rp_order_frontier_before(order, &frontier, &b));
  for (int i = 0; i < 100; i++)
    rp_order_frontier_add(order, &frontier, use(FREE_A));
  record(FREE_A, EVENT);
  rp_order_token last = use(FREE_A);
  rp_order_frontier_add(order, &frontier, last);
  assert_int_equal(frontier.count, 1);
  assert_true(frontier.latest[0] == last);
  wait_for(FREE_B, EVENT);
  assert_false(rp_order_frontier_before(order, &frontier, &b));
  record(FREE_A, EVENT);
  wait_for(FREE_B, EVENT);
  assert_true(rp_order_frontier_before(order, &frontier, &b));
  for (uint64_t stream = 0x100; stream < 0x100 + RP_ORDER_FRONTIER; stream++)
    rp_order_frontier_add(order, &frontier, use(stream));
  assert_true(frontier.unknown); /* one stream too many */
}

static void gaps_name_the_fewest_waits(void **state) {
  (void)state;
  struct rp_order_gap gaps[RP_ORDER_FRONTIER + 1];
  struct rp_order_frontier frontier = {0};
  const struct rp_order_site target = at(FREE_C);
  rp_order_frontier_add(order, &frontier, use(FREE_A));
  record(FREE_A, EVENT);
  wait_for(FREE_B, EVENT);
  rp_order_frontier_add(order, &frontier, use(FREE_B));
  rp_order_frontier_add(order, &frontier, use(FREE_C));
  assert_int_equal(rp_order_gaps(order, &frontier, &target, gaps), 1); /* FREE_B stands for FREE_A */
  assert_int_equal(gaps[0].fix, RP_ORDER_FIX_WAIT);
  assert_int_equal(gaps[0].stream, FREE_B);
  assert_int_equal(gaps[0].context, CONTEXT);
  rp_order_frontier_add(order, &frontier, use(FREE_A)); /* no longer */
  assert_int_equal(rp_order_gaps(order, &frontier, &target, gaps), 2);
  for (int i = 0; i < 2; i++) {
    record(gaps[i].stream, EVENT_2);
    wait_for(FREE_C, EVENT_2);
  }
  assert_true(rp_order_frontier_before(order, &frontier, &target));
  assert_int_equal(rp_order_gaps(order, &frontier, &target, gaps), 0);
}

static void gaps_say_where_a_wait_cannot_help(void **state) {
  (void)state;
  struct rp_order_gap gaps[RP_ORDER_FRONTIER + 1];
  const struct rp_order_site target = at(FREE_C);
  struct rp_order_frontier gone = {0}, thread = {0}, host = {0}, unknown = {.unknown = true};
  rp_order_frontier_add(order, &gone, use(FREE_A));
  rp_order_stream_destroy(order, FREE_A);
  assert_int_equal(rp_order_gaps(order, &gone, &target, gaps), 1);
  assert_int_equal(gaps[0].fix, RP_ORDER_FIX_CONTEXT);
  rp_order_frontier_add(order, &thread, access_at(by(HOST_2, PER_THREAD)));
  assert_int_equal(rp_order_gaps(order, &thread, &target, gaps), 1);
  assert_int_equal(gaps[0].fix, RP_ORDER_FIX_CONTEXT);
  assert_int_equal(gaps[0].thread, HOST_2);
  const struct rp_order_site same_thread = by(HOST_2, FREE_C);
  assert_int_equal(rp_order_gaps(order, &thread, &same_thread, gaps), 1);
  assert_int_equal(gaps[0].fix, RP_ORDER_FIX_WAIT);
  rp_order_sync_context(order, HOST, CONTEXT);
  assert_int_equal(rp_order_gaps(order, &gone, &target, gaps), 0);
  assert_int_equal(rp_order_gaps(order, &thread, &target, gaps), 0);
  rp_order_frontier_add(order, &host, rp_order_host_access(order, HOST_2));
  assert_int_equal(rp_order_gaps(order, &host, &target, gaps), 1);
  assert_int_equal(gaps[0].fix, RP_ORDER_FIX_NONE);
  assert_int_equal(rp_order_gaps(order, &unknown, &target, gaps), 1);
  assert_int_equal(gaps[0].fix, RP_ORDER_FIX_NONE);
  struct rp_order_frontier lost = {0};
  rp_order_frontier_add(order, &lost, use(FREE_B));
  rp_order_capture_begin(order, &target);
  assert_int_equal(rp_order_gaps(order, &lost, &target, gaps), 1);
  assert_int_equal(gaps[0].fix, RP_ORDER_FIX_NONE);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(a_stream_is_ordered_in_itself_only),
      CASE(a_wait_orders_what_was_recorded_and_no_more),
      CASE(a_record_replaces_and_a_wait_uses_the_latest),
      CASE(an_event_that_says_nothing_makes_no_order),
      CASE(a_record_on_a_stream_that_knows_nothing_replaces_too),
      CASE(order_is_transitive),
      CASE(foreign_events_make_no_order_until_destroyed),
      CASE(the_legacy_stream_and_blocking_streams_wait_for_each_other),
      CASE(work_without_access_on_the_legacy_stream_is_a_barrier),
      CASE(records_and_waits_on_the_legacy_stream_are_barriers),
      CASE(per_thread_streams_are_blocking_and_one_for_each_thread),
      CASE(default_streams_belong_to_a_context),
      CASE(streams_never_told_are_non_blocking),
      CASE(host_synchronisation_orders_what_the_thread_does_next),
      CASE(event_synchronisation_covers_the_record),
      CASE(context_synchronisation_covers_all_streams_of_it),
      CASE(synchronising_the_legacy_stream_covers_blocking_streams),
      CASE(a_wait_is_part_of_its_stream),
      CASE(threads_are_ordered_only_through_streams),
      CASE(synchronous_copies_wait_by_kind),
      CASE(host_accesses_come_before_what_the_thread_does_next),
      CASE(a_programmatic_launch_is_not_after_the_one_before_it),
      CASE(a_programmatic_launch_ignores_waits_and_barriers),
      CASE(a_programmatic_launch_on_the_legacy_stream_is_no_barrier),
      CASE(events_of_launch_attributes_say_little),
      CASE(programmatic_events_know_no_more_than_the_launch),
      CASE(graph_launches_are_ordered_by_stream_and_executable),
      CASE(captured_calls_make_no_order),
      CASE(two_captures_do_not_mix),
      CASE(foreign_events_draw_into_captures_too),
      CASE(the_latest_record_decides_whether_an_event_is_captured),
      CASE(captures_leave_no_events_behind),
      CASE(a_capture_whose_stream_does_not_fit_makes_no_order),
      CASE(captures_that_do_not_fit_make_no_order),
      CASE(destroying_a_stream_orders_nothing_and_its_handle_may_return),
      CASE(threads_and_contexts_take_their_default_streams_along),
      CASE(a_place_taken_again_remembers_nothing),
      CASE(components_are_taken_again_without_false_order),
      CASE(what_does_not_fit_has_no_order_and_is_counted),
      CASE(a_foreign_event_that_does_not_fit_taints_all),
      CASE(limits_are_checked),
      CASE(a_frontier_keeps_the_latest_of_each_stream),
      CASE(gaps_name_the_fewest_waits),
      CASE(gaps_say_where_a_wait_cannot_help),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
