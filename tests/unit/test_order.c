/* The semantics of CUDA streams that pool/order follows, one case each. Every case names both sides: what is
 * ordered, and the neighbour that is not. */
#include "tests/unit/order_cases.h"

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
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
