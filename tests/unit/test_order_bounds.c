/* Where pool/order stops following: captures, streams and threads that come and go, bounds. And what it tells
 * a guard: frontiers and gaps. */
#include "tests/unit/order_cases.h"

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

static void the_legacy_stream_does_not_wait_for_a_destroyed_one(void **state) {
  (void)state;
  rp_order_token lost = use(BLOCKING_A), kept = use(FREE_A);
  record(FREE_A, EVENT);
  wait_for(BLOCKING_B, EVENT);
  rp_order_stream_destroy(order, BLOCKING_A);
  assert_false(ordered(lost, LEGACY));
  use(LEGACY);
  assert_false(ordered(lost, LEGACY));
  assert_true(ordered(kept, LEGACY));
  sync_stream(HOST, LEGACY);
  assert_false(known(lost, HOST));
}

static void a_capture_survives_the_end_of_its_stream(void **state) {
  (void)state;
  const struct rp_order_site a = at(FREE_A), b = at(FREE_B);
  rp_order_capture_begin(order, &a);
  rp_order_capture_begin(order, &b);
  record(FREE_A, EVENT);
  wait_for(FREE_C, EVENT);
  rp_order_stream_destroy(order, FREE_A);
  assert_int_equal(use(FREE_C), RP_ORDER_TOKEN_UNKNOWN);
  rp_order_capture_end(order, &b);
  assert_int_equal(use(FREE_C), RP_ORDER_TOKEN_UNKNOWN);
  rp_order_capture_end(order, &a);
  assert_int_not_equal(use(FREE_C), RP_ORDER_TOKEN_UNKNOWN);
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

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(captured_calls_make_no_order),
      CASE(two_captures_do_not_mix),
      CASE(foreign_events_draw_into_captures_too),
      CASE(the_latest_record_decides_whether_an_event_is_captured),
      CASE(captures_leave_no_events_behind),
      CASE(a_capture_whose_stream_does_not_fit_makes_no_order),
      CASE(captures_that_do_not_fit_make_no_order),
      CASE(destroying_a_stream_orders_nothing_and_its_handle_may_return),
      CASE(the_legacy_stream_does_not_wait_for_a_destroyed_one),
      CASE(a_capture_survives_the_end_of_its_stream),
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
