/* Calls of pool/order between begin and end: what other calls do meanwhile, failures, lack of room, threads
 * that end inside of them, and what cannot be told at all. */
#include "tests/unit/order_cases.h"

static rp_order_call begin(enum rp_order_kind kind, struct rp_order_site site, uint64_t object) {
  rp_order_call call = rp_order_begin(order, kind, &site, object);
  assert_int_not_equal(call, 0);
  return call;
}
static void wait_whole(uint64_t stream, uint64_t event) {
  rp_order_end(order, begin(RP_ORDER_WAIT, by(HOST_2, stream), event));
}

/* ---- failures ---- */

static void a_call_that_fails_has_not_happened(void **state) {
  (void)state;
  rp_order_token first = use(FREE_A);
  record(FREE_A, EVENT);
  rp_order_token second = use(FREE_A);
  rp_order_cancel(order, begin(RP_ORDER_RECORD, at(FREE_A), EVENT));
  rp_order_cancel(order, begin(RP_ORDER_SYNC_STREAM, at(FREE_A), 0));
  assert_false(known(second, HOST));
  rp_order_cancel(order, begin(RP_ORDER_WAIT, at(FREE_B), EVENT));
  assert_false(ordered(first, FREE_B));
  wait_for(FREE_B, EVENT); /* the record before the one that failed still stands */
  assert_true(ordered(first, FREE_B));
  assert_false(ordered(second, FREE_B));
  rp_order_cancel(order, begin(RP_ORDER_WORK, at(FREE_A), 0));
  rp_order_cancel(order, begin(RP_ORDER_GRAPH_LAUNCH, at(FREE_C), 7));
  rp_order_token graph = rp_order_end_access(order, begin(RP_ORDER_GRAPH_LAUNCH, at(FREE_B), 7));
  assert_false(ordered(graph, FREE_C));
}

static void an_end_counts_once(void **state) {
  (void)state;
  rp_order_call call = begin(RP_ORDER_WORK, at(FREE_A), 0);
  rp_order_token token = rp_order_end_access(order, call);
  assert_true(ordered(token, FREE_A));
  assert_int_equal(rp_order_end_access(order, call), RP_ORDER_TOKEN_UNKNOWN);
  rp_order_cancel(order, call);
  rp_order_call next = begin(RP_ORDER_RECORD, at(FREE_A), EVENT); /* in the same place */
  rp_order_end(order, call);
  rp_order_end(order, next);
  wait_for(FREE_B, EVENT);
  assert_true(ordered(token, FREE_B));
  rp_order_end(order, 0);
  assert_int_equal(rp_order_end_copy(order, 0, RP_ORDER_COPY_DEVICE_TO_HOST, true), RP_ORDER_TOKEN_UNKNOWN);
  assert_null(rp_order_call_site(order, next));
}

/* ---- launch attributes ---- */

static void events_of_a_launch_end_with_it(void **state) {
  (void)state;
  rp_order_token before = use(FREE_A);
  rp_order_call launch = begin(RP_ORDER_WORK, at(FREE_A), 0);
  assert_true(rp_order_begin_with(order, launch, RP_ORDER_START_RECORD, EVENT));
  assert_true(rp_order_begin_with(order, launch, RP_ORDER_COMPLETION_RECORD, EVENT_2));
  wait_for(FREE_B, EVENT);
  assert_false(ordered(before, FREE_B));
  rp_order_token token = rp_order_end_access(order, launch);
  wait_for(FREE_B, EVENT);
  wait_for(FREE_C, EVENT_2);
  assert_true(ordered(before, FREE_B)); /* complete when the launch began */
  assert_false(ordered(token, FREE_B));
  assert_false(ordered(before, FREE_C));

  record(FREE_A, EVENT_2);
  launch = begin(RP_ORDER_WORK, at(FREE_B), 0);
  assert_true(rp_order_begin_with(order, launch, RP_ORDER_COMPLETION_RECORD, EVENT_2));
  rp_order_cancel(order, launch);
  wait_for(FREE_C, EVENT_2); /* as recorded before */
  assert_true(ordered(token, FREE_C));
  assert_false(rp_order_begin_with(order, launch, RP_ORDER_START_RECORD, EVENT));
}

/* ---- what ends meanwhile ---- */

static void a_stream_that_ends_meanwhile_takes_its_calls_along(void **state) {
  (void)state;
  rp_order_token token = use(FREE_A);
  rp_order_call work = begin(RP_ORDER_WORK, at(FREE_A), 0);
  rp_order_call record_call = begin(RP_ORDER_RECORD, at(FREE_A), EVENT);
  rp_order_call sync = begin(RP_ORDER_SYNC_STREAM, by(HOST_2, FREE_A), 0);
  rp_order_stream_destroy(order, FREE_A);
  rp_order_stream_create(order, CONTEXT, FREE_A, true);
  assert_int_equal(rp_order_end_access(order, work), RP_ORDER_TOKEN_UNKNOWN);
  rp_order_end(order, record_call);
  rp_order_end(order, sync); /* of what it had been given before */
  wait_for(FREE_B, EVENT);
  assert_false(ordered(token, FREE_B));
  assert_false(ordered(token, FREE_A));
  assert_true(known(token, HOST_2));
}

static void a_stream_never_told_that_ends_meanwhile_does_too(void **state) {
  (void)state;
  rp_order_call work = begin(RP_ORDER_WORK, at(0x777), 0);
  rp_order_stream_create(order, CONTEXT, 0x777, false); /* so the other one has ended */
  assert_int_equal(rp_order_end_access(order, work), RP_ORDER_TOKEN_UNKNOWN);
}

static void an_event_that_ends_meanwhile_orders_nothing(void **state) {
  (void)state;
  rp_order_token token = use(FREE_A);
  rp_order_call record_call = begin(RP_ORDER_RECORD, at(FREE_A), EVENT);
  rp_order_event_destroy(order, EVENT);
  rp_order_end(order, record_call);
  wait_for(FREE_B, EVENT);
  assert_false(ordered(token, FREE_B));
  record(FREE_A, EVENT);
  rp_order_call wait_call = begin(RP_ORDER_WAIT, by(HOST_2, FREE_B), EVENT);
  rp_order_call sync = begin(RP_ORDER_SYNC_EVENT, by(HOST_2, 0), EVENT);
  rp_order_event_destroy(order, EVENT);
  rp_order_end(order, wait_call);
  rp_order_end(order, sync);
  assert_false(ordered(token, FREE_B));
  assert_false(known(token, HOST_2));
}

static void a_graph_that_ends_meanwhile_is_not_remembered(void **state) {
  (void)state;
  rp_order_call launch = begin(RP_ORDER_GRAPH_LAUNCH, at(FREE_A), 7);
  rp_order_graph_destroy(order, 7);
  rp_order_token token = rp_order_end_access(order, launch);
  (void)rp_order_end_access(order, begin(RP_ORDER_GRAPH_LAUNCH, at(FREE_B), 7));
  assert_true(ordered(token, FREE_A));
  assert_false(ordered(token, FREE_B));
}

static void a_context_that_ends_meanwhile_takes_its_default_streams_along(void **state) {
  (void)state;
  rp_order_call work = begin(RP_ORDER_WORK, at(LEGACY), 0);
  rp_order_context_destroy(order, CONTEXT);
  assert_int_equal(rp_order_end_access(order, work), RP_ORDER_TOKEN_UNKNOWN);
}

/* ---- records that overlap ---- */

static void of_two_records_at_once_neither_is_trusted(void **state) {
  (void)state;
  rp_order_token a = use(FREE_A), b = use(FREE_B);
  rp_order_call one = begin(RP_ORDER_RECORD, at(FREE_A), EVENT);
  rp_order_call two = begin(RP_ORDER_RECORD, by(HOST_2, FREE_B), EVENT);
  rp_order_end(order, one);
  wait_whole(FREE_C, EVENT);
  rp_order_end(order, two);
  wait_whole(FREE_C, EVENT);
  assert_false(ordered(a, FREE_C));
  assert_false(ordered(b, FREE_C));
  record(FREE_A, EVENT); /* alone again */
  wait_for(FREE_C, EVENT);
  assert_true(ordered(a, FREE_C));
}

static void a_wait_and_a_record_at_once_make_no_order(void **state) {
  (void)state;
  rp_order_token a = use(FREE_A), b = use(FREE_B);
  record(FREE_A, EVENT);
  rp_order_call wait_call = begin(RP_ORDER_WAIT, at(FREE_C), EVENT);
  rp_order_end(order, begin(RP_ORDER_RECORD, by(HOST_2, FREE_B), EVENT));
  rp_order_end(order, wait_call);
  assert_false(ordered(a, FREE_C));
  assert_false(ordered(b, FREE_C));
  rp_order_call record_call = begin(RP_ORDER_RECORD, by(HOST_2, FREE_A), EVENT);
  wait_call = begin(RP_ORDER_WAIT, at(FREE_C), EVENT);
  rp_order_end(order, record_call);
  rp_order_end(order, wait_call);
  assert_false(ordered(a, FREE_C));
  assert_false(ordered(b, FREE_C));
}

static void work_of_others_is_not_recorded_or_known_too_early(void **state) {
  (void)state;
  rp_order_call record_call = begin(RP_ORDER_RECORD, at(FREE_A), EVENT);
  rp_order_call sync = begin(RP_ORDER_SYNC_STREAM, by(HOST_2, FREE_A), 0);
  rp_order_call context = begin(RP_ORDER_SYNC_CONTEXT, by(HOST, 0), 0);
  rp_order_token token = use(FREE_A);
  rp_order_end(order, record_call);
  rp_order_end(order, sync);
  rp_order_end(order, context);
  wait_for(FREE_B, EVENT);
  assert_false(ordered(token, FREE_B));
  assert_false(known(token, HOST));
  assert_false(known(token, HOST_2));
}

static void a_copy_knows_itself_only_if_nothing_came_between(void **state) {
  (void)state;
  rp_order_call copy = begin(RP_ORDER_WORK, at(FREE_A), 0);
  rp_order_token between = access_at(by(HOST_2, FREE_A));
  rp_order_token token = rp_order_end_copy(order, copy, RP_ORDER_COPY_DEVICE_TO_HOST, true);
  assert_false(known(between, HOST));
  assert_false(known(token, HOST)); /* said so, the one between would be known too */
  copy = begin(RP_ORDER_WORK, at(FREE_A), 0);
  token = rp_order_end_copy(order, copy, RP_ORDER_COPY_DEVICE_TO_HOST, true);
  assert_true(known(token, HOST));
  copy = begin(RP_ORDER_WORK, by(HOST_2, FREE_A), 0);
  assert_int_equal(rp_order_end_copy(order, copy, RP_ORDER_COPY_PINNED_TO_DEVICE, false),
                   RP_ORDER_TOKEN_UNKNOWN);
  assert_true(known(token, HOST_2));
}

/* ---- captures ---- */

static void what_overlaps_with_a_capture_is_captured(void **state) {
  (void)state;
  const struct rp_order_site a = at(FREE_A);
  rp_order_token real = use(FREE_A);
  rp_order_call early = begin(RP_ORDER_WORK, by(HOST_2, FREE_A), 0);
  rp_order_call record_call = begin(RP_ORDER_RECORD, by(HOST_2, FREE_A), EVENT);
  rp_order_call capture = begin(RP_ORDER_CAPTURE_BEGIN, a, 0);
  assert_false(ordered(real, FREE_A));
  assert_int_equal(use(FREE_A), RP_ORDER_TOKEN_UNKNOWN); /* perhaps it has begun */
  rp_order_end(order, capture);
  rp_order_call late = begin(RP_ORDER_WORK, by(HOST_2, FREE_A), 0);
  rp_order_end(order, begin(RP_ORDER_CAPTURE_END, a, 0));
  assert_int_equal(rp_order_end_access(order, early), RP_ORDER_TOKEN_UNKNOWN);
  assert_int_equal(rp_order_end_access(order, late), RP_ORDER_TOKEN_UNKNOWN);
  rp_order_end(order, record_call);
  wait_for(FREE_B, EVENT);
  assert_false(ordered(real, FREE_B));
  assert_true(ordered(real, FREE_A));
}

static void a_capture_that_fails_to_begin_leaves_all_as_it_was(void **state) {
  (void)state;
  rp_order_token real = use(FREE_A);
  rp_order_call capture = begin(RP_ORDER_CAPTURE_BEGIN, at(FREE_A), 0);
  assert_true(rp_order_captures(order));
  rp_order_cancel(order, capture);
  assert_false(rp_order_captures(order));
  assert_true(ordered(real, FREE_A));

  const struct rp_order_site a = at(FREE_A);
  rp_order_capture_begin(order, &a);
  capture = begin(RP_ORDER_CAPTURE_BEGIN, a, 0); /* it is captured already */
  record(FREE_A, EVENT);
  rp_order_cancel(order, capture);
  assert_int_equal(use(FREE_A), RP_ORDER_TOKEN_UNKNOWN);
  wait_for(FREE_B, EVENT);
  assert_int_equal(use(FREE_B), RP_ORDER_TOKEN_UNKNOWN); /* drawn into the older one */
  rp_order_capture_end(order, &a);
  assert_int_not_equal(use(FREE_A), RP_ORDER_TOKEN_UNKNOWN);
  assert_int_not_equal(use(FREE_B), RP_ORDER_TOKEN_UNKNOWN);
}

static void a_wait_that_may_draw_in_draws_in(void **state) {
  (void)state;
  const struct rp_order_site a = at(FREE_A);
  rp_order_capture_begin(order, &a);
  rp_order_call record_call = begin(RP_ORDER_RECORD, a, EVENT);
  rp_order_call early = begin(RP_ORDER_WAIT, by(HOST_2, FREE_B), EVENT); /* perhaps for that record */
  rp_order_end(order, record_call);
  rp_order_end(order, early);
  assert_int_equal(use(FREE_B), RP_ORDER_TOKEN_UNKNOWN);

  rp_order_call wait_call = begin(RP_ORDER_WAIT, by(HOST_2, FREE_C), EVENT_2);
  record(FREE_A, EVENT_2); /* captured, perhaps before the wait */
  rp_order_end(order, wait_call);
  assert_int_equal(use(FREE_C), RP_ORDER_TOKEN_UNKNOWN);
  rp_order_capture_end(order, &a);
  assert_int_not_equal(use(FREE_B), RP_ORDER_TOKEN_UNKNOWN);
  assert_int_not_equal(use(FREE_C), RP_ORDER_TOKEN_UNKNOWN);
}

static void an_untold_captured_record_makes_waits_draw_in(void **state) {
  (void)state;
  const struct rp_order_site a = at(FREE_A);
  rp_order_capture_unsure(order); /* no capture: nothing to be unsure of */
  wait_for(FREE_B, EVENT);
  assert_int_not_equal(use(FREE_B), RP_ORDER_TOKEN_UNKNOWN);
  rp_order_capture_begin(order, &a);
  rp_order_capture_unsure(order);
  wait_for(FREE_B, EVENT);
  assert_int_equal(use(FREE_B), RP_ORDER_TOKEN_UNKNOWN);
  rp_order_capture_end(order, &a);
  assert_int_not_equal(use(FREE_B), RP_ORDER_TOKEN_UNKNOWN);
}

static void a_capture_begun_again_while_the_last_one_ends_goes_on(void **state) {
  (void)state;
  const struct rp_order_site a = at(FREE_A);
  rp_order_capture_begin(order, &a);
  rp_order_call end_call = begin(RP_ORDER_CAPTURE_END, a, 0);
  rp_order_call again = begin(RP_ORDER_CAPTURE_BEGIN, by(HOST_2, FREE_A), 0);
  rp_order_end(order, again);
  rp_order_end(order, end_call);
  assert_int_equal(use(FREE_A), RP_ORDER_TOKEN_UNKNOWN);
  rp_order_capture_end(order, &a);
  assert_int_not_equal(use(FREE_A), RP_ORDER_TOKEN_UNKNOWN);
}

/* ---- threads, room, and what cannot be told ---- */

static void a_thread_that_ends_inside_calls_leaves_nothing(void **state) {
  (void)state;
  rp_order_token token = use(FREE_A);
  record(FREE_A, EVENT);
  rp_order_call record_call = begin(RP_ORDER_RECORD, by(HOST_2, FREE_A), EVENT);
  rp_order_call work = begin(RP_ORDER_WORK, by(HOST_2, FREE_A), 0);
  (void)begin(RP_ORDER_SYNC_STREAM, by(HOST_2, FREE_A), 0);
  rp_order_thread_exit(order, HOST_2);
  rp_order_end(order, record_call);
  assert_int_equal(rp_order_end_access(order, work), RP_ORDER_TOKEN_UNKNOWN);
  wait_for(FREE_B, EVENT); /* recorded again, or not */
  assert_false(ordered(token, FREE_B));
}

static void without_room_it_errs_to_no_order(void **state) {
  (void)state;
  restart(&(struct rp_order_limits){.calls = 2});
  tell_streams();
  rp_order_token token = use(FREE_A);
  record(FREE_A, EVENT);
  const struct rp_order_site a = at(FREE_A), b = at(FREE_B), c = at(FREE_C);
  rp_order_call one = begin(RP_ORDER_SYNC_STREAM, a, 0);
  assert_int_equal(rp_order_begin(order, RP_ORDER_SYNC_STREAM, &a, 0), 0); /* the rest is for others */
  rp_order_call two = begin(RP_ORDER_WORK, a, 0);
  assert_int_equal(rp_order_begin(order, RP_ORDER_WORK, &a, 0), 0);
  assert_false(rp_order_begin_with(order, two, RP_ORDER_START_RECORD, EVENT_2));
  assert_int_equal(rp_order_begin(order, RP_ORDER_CAPTURE_BEGIN, &c, 0), 0);
  assert_int_equal(use(FREE_C), RP_ORDER_TOKEN_UNKNOWN); /* for ever, for all that is known */
  assert_int_equal(rp_order_begin(order, RP_ORDER_RECORD, &b, EVENT), 0);
  wait_for(FREE_B, EVENT);
  record(FREE_A, EVENT_2);
  wait_for(FREE_B, EVENT_2);
  assert_false(ordered(token, FREE_B)); /* no event is trusted any more */
  rp_order_end(order, one);
  rp_order_end(order, two);
  assert_true(ordered(token, FREE_A));
  assert_true(known(token, HOST));
  assert_int_equal(rp_order_counts(order).calls_dropped, 4);
  struct rp_order *unused;
  assert_int_equal(rp_order_create(&(struct rp_order_limits){.calls = 1u << 30}, &unused), RP_ERROR_INVALID);
}

static void after_a_loss_nothing_is_ordered(void **state) {
  (void)state;
  struct rp_order_frontier frontier = {0};
  struct rp_order_gap gaps[RP_ORDER_FRONTIER + 1];
  const struct rp_order_site a = at(FREE_A);
  rp_order_token token = use(FREE_A);
  rp_order_frontier_add(order, &frontier, token);
  sync_stream(HOST, FREE_A);
  assert_true(known(token, HOST) && rp_order_complete(order, token));
  rp_order_lost(order);
  assert_false(known(token, HOST) || ordered(token, FREE_A) || rp_order_complete(order, token));
  assert_int_equal(rp_order_gaps(order, &frontier, &a, gaps), 1);
  assert_int_equal(gaps[0].fix, RP_ORDER_FIX_NONE);
  assert_true(rp_order_counts(order).lost);
}

static void an_access_of_the_past_comes_before_and_after_no_more_than_known(void **state) {
  (void)state;
  const struct rp_order_site a = at(BLOCKING_A);
  rp_order_token legacy = use(LEGACY);
  rp_order_token past = rp_order_access_past(order, &a);
  assert_true(ordered(past, BLOCKING_A));
  sync_stream(HOST, BLOCKING_A);
  assert_true(known(past, HOST));
  assert_false(known(legacy, HOST)); /* it may have been launched before that */
}

static void a_wait_of_the_past_orders_what_was_recorded_and_no_more(void **state) {
  (void)state;
  const struct rp_order_site a = at(BLOCKING_A);
  rp_order_token legacy = use(LEGACY), token = use(FREE_B);
  record(FREE_B, EVENT);
  rp_order_event_wait_past(order, &a, EVENT);
  rp_order_event_wait_past(order, &a, EVENT_2); /* never recorded */
  sync_stream(HOST, BLOCKING_A);
  assert_true(known(token, HOST));
  assert_false(known(legacy, HOST));
}

static void work_on_the_legacy_stream_is_wanted_when_it_can_learn(void **state) {
  (void)state;
  const struct rp_order_site legacy = at(LEGACY);
  assert_false(rp_order_has_accesses(order) || rp_order_legacy_learns(order));
  use(FREE_A);
  assert_true(rp_order_has_accesses(order));
  assert_false(rp_order_legacy_learns(order));
  rp_order_token token = use(BLOCKING_A);
  assert_true(rp_order_legacy_learns(order));
  rp_order_work(order, &legacy);
  assert_false(rp_order_legacy_learns(order));
  assert_true(ordered(token, BLOCKING_B));
  rp_order_context_destroy(order, CONTEXT);
  assert_false(rp_order_legacy_learns(order));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(a_call_that_fails_has_not_happened),
      CASE(an_end_counts_once),
      CASE(events_of_a_launch_end_with_it),
      CASE(a_stream_that_ends_meanwhile_takes_its_calls_along),
      CASE(a_stream_never_told_that_ends_meanwhile_does_too),
      CASE(an_event_that_ends_meanwhile_orders_nothing),
      CASE(a_graph_that_ends_meanwhile_is_not_remembered),
      CASE(a_context_that_ends_meanwhile_takes_its_default_streams_along),
      CASE(of_two_records_at_once_neither_is_trusted),
      CASE(a_wait_and_a_record_at_once_make_no_order),
      CASE(work_of_others_is_not_recorded_or_known_too_early),
      CASE(a_copy_knows_itself_only_if_nothing_came_between),
      CASE(what_overlaps_with_a_capture_is_captured),
      CASE(a_capture_that_fails_to_begin_leaves_all_as_it_was),
      CASE(a_wait_that_may_draw_in_draws_in),
      CASE(an_untold_captured_record_makes_waits_draw_in),
      CASE(a_capture_begun_again_while_the_last_one_ends_goes_on),
      CASE(a_thread_that_ends_inside_calls_leaves_nothing),
      CASE(without_room_it_errs_to_no_order),
      CASE(after_a_loss_nothing_is_ordered),
      CASE(an_access_of_the_past_comes_before_and_after_no_more_than_known),
      CASE(a_wait_of_the_past_orders_what_was_recorded_and_no_more),
      CASE(work_on_the_legacy_stream_is_wanted_when_it_can_learn),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
