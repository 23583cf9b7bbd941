/* Milestones: which one stands for an access, what a wait for it orders and what not, and when there is none.
 */
#include "tests/unit/order_cases.h"

static void place_at(struct rp_order_site site, uint64_t number) {
  rp_order_milestone_drop(order, number);
  rp_order_end(order, rp_order_begin(order, RP_ORDER_MILESTONE, &site, number));
}

static void place(uint64_t stream, uint64_t number) {
  place_at(at(stream), number);
}

/* The one gap between the access and what follows at the site. */
static struct rp_order_gap gap_at(rp_order_token token, struct rp_order_site site) {
  struct rp_order_frontier frontier = {0};
  struct rp_order_gap gaps[RP_ORDER_FRONTIER + 1];
  rp_order_frontier_add(order, &frontier, token);
  assert_int_equal(rp_order_gaps(order, &frontier, &site, gaps), 1);
  return gaps[0];
}

static void wait_at(uint64_t stream, uint64_t number) {
  const struct rp_order_site site = at(stream);
  rp_order_milestone_wait(order, &site, number);
}

static void what_comes_behind_is_not_waited_for(void **state) {
  (void)state;
  rp_order_token first = use(FREE_A);
  place(FREE_A, 1);
  rp_order_token later = use(FREE_A);
  place(FREE_A, 2);
  assert_int_equal(gap_at(first, at(FREE_B)).milestone, 1);
  assert_int_equal(gap_at(later, at(FREE_B)).milestone, 2);
  wait_at(FREE_B, 1);
  assert_true(ordered(first, FREE_B));
  assert_false(ordered(later, FREE_B));
  wait_at(FREE_B, 2);
  assert_true(ordered(later, FREE_B));
}

static void the_next_one_stands_in(void **state) {
  (void)state;
  rp_order_token first = use(FREE_A), second = use(FREE_A);
  place(FREE_A, 7);
  rp_order_token third = use(FREE_A);
  place(FREE_A, 3);
  assert_int_equal(gap_at(first, at(FREE_B)).milestone, 7);
  assert_int_equal(gap_at(second, at(FREE_B)).milestone, 7);
  rp_order_milestone_drop(order, 7);
  assert_int_equal(gap_at(first, at(FREE_B)).milestone, 3);
  assert_int_equal(gap_at(third, at(FREE_B)).milestone, 3);
  wait_at(FREE_B, 7); /* means nothing any more */
  assert_false(ordered(first, FREE_B));
  rp_order_milestone_drop(order, 3);
  struct rp_order_gap gap = gap_at(first, at(FREE_B));
  assert_int_equal(gap.milestone, 0);
  assert_int_equal(gap.fix, RP_ORDER_FIX_WAIT);
  assert_int_equal(gap.stream, FREE_A);
}

static void one_behind_others_stands_for_them(void **state) {
  (void)state;
  struct rp_order_frontier frontier = {0};
  struct rp_order_gap gaps[RP_ORDER_FRONTIER + 1];
  const struct rp_order_site target = at(FREE_C);
  rp_order_frontier_add(order, &frontier, use(FREE_A));
  place(FREE_A, 1);
  record(FREE_A, EVENT);
  wait_for(FREE_B, EVENT);
  rp_order_frontier_add(order, &frontier, use(FREE_B));
  place(FREE_B, 2);
  assert_int_equal(rp_order_gaps(order, &frontier, &target, gaps), 1);
  assert_int_equal(gaps[0].milestone, 2);
  assert_true(rp_order_gap_covers(order, &gaps[0], frontier.latest[0]));
  rp_order_frontier_add(order, &frontier, use(FREE_A)); /* that one is not */
  assert_int_equal(rp_order_gaps(order, &frontier, &target, gaps), 2);
  for (int i = 0; i < 2; i++)
    if (gaps[i].stream == FREE_A) assert_int_equal(gaps[i].milestone, 0);
}

static void streams_that_cannot_be_asked_have_theirs(void **state) {
  (void)state;
  rp_order_token gone = use(FREE_A), thread = access_at(by(HOST_2, PER_THREAD));
  assert_int_equal(gap_at(thread, at(FREE_B)).fix, RP_ORDER_FIX_CONTEXT);
  place(FREE_A, 1);
  place_at(by(HOST_2, PER_THREAD), 2);
  rp_order_stream_destroy(order, FREE_A);
  struct rp_order_gap gap = gap_at(gone, at(FREE_B));
  assert_int_equal(gap.fix, RP_ORDER_FIX_WAIT);
  assert_int_equal(gap.milestone, 1);
  gap = gap_at(thread, at(FREE_B));
  assert_int_equal(gap.fix, RP_ORDER_FIX_WAIT);
  assert_int_equal(gap.milestone, 2);
  assert_int_equal(rp_order_owner(order, thread).milestone, 2);
  wait_at(FREE_B, 2);
  assert_true(ordered(thread, FREE_B));
}

static void the_end_of_a_context_takes_them_along(void **state) {
  (void)state;
  rp_order_token mine = use(FREE_A), theirs = access_at((struct rp_order_site){
                                         .context = OTHER_CONTEXT, .stream = ELSEWHERE, .thread = HOST});
  place(FREE_A, 1);
  place(ELSEWHERE, 2);
  assert_int_equal(gap_at(theirs, at(FREE_B)).milestone, 2);
  rp_order_context_destroy(order, OTHER_CONTEXT);
  assert_int_equal(gap_at(theirs, at(FREE_B)).milestone, 0);
  assert_int_equal(gap_at(mine, at(FREE_B)).milestone, 1);
}

static void a_component_with_another_owner_has_none(void **state) {
  (void)state;
  restart(&(struct rp_order_limits){.components = 1});
  tell_streams();
  (void)use(FREE_A);
  place(FREE_A, 1);
  rp_order_stream_destroy(order, FREE_A);
  rp_order_token now = use(FREE_B);
  assert_int_equal(gap_at(now, at(FREE_C)).milestone, 0);
  wait_at(FREE_C, 1);
  assert_false(ordered(now, FREE_C));
}

static void the_host_knows_what_it_reached(void **state) {
  (void)state;
  rp_order_token first = use(FREE_A);
  place(FREE_A, 1);
  rp_order_token later = use(FREE_A);
  assert_int_equal(rp_order_owner(order, first).milestone, 1);
  assert_int_equal(rp_order_owner(order, later).milestone, 0);
  assert_false(rp_order_complete(order, first));
  rp_order_milestone_sync(order, HOST_2, 1);
  assert_true(rp_order_complete(order, first));
  assert_true(known(first, HOST_2));
  assert_false(known(first, HOST));
  assert_false(rp_order_complete(order, later));
}

/* A record that fails, is made on a captured stream, or is still being made, is none. */
static void one_that_is_not_placed_is_none(void **state) {
  (void)state;
  const struct rp_order_site site = at(FREE_A);
  rp_order_token token = use(FREE_A);
  rp_order_call call = rp_order_begin(order, RP_ORDER_MILESTONE, &site, 1);
  assert_int_equal(gap_at(token, at(FREE_B)).milestone, 0);
  rp_order_cancel(order, call);
  assert_int_equal(gap_at(token, at(FREE_B)).milestone, 0);
  call = rp_order_begin(order, RP_ORDER_MILESTONE, &site, 1);
  rp_order_capture_begin(order, &site);
  rp_order_capture_end(order, &site);
  rp_order_end(order, call);
  assert_int_equal(gap_at(token, at(FREE_B)).milestone, 0);
  rp_order_capture_begin(order, &site);
  place(FREE_A, 1);
  rp_order_capture_end(order, &site);
  assert_int_equal(gap_at(token, at(FREE_B)).milestone, 0);
  place(FREE_A, 1);
  assert_int_equal(gap_at(token, at(FREE_B)).milestone, 1);
  call = rp_order_begin(order, RP_ORDER_MILESTONE, &site, 2);
  (void)use(FREE_A); /* by another thread, perhaps behind the record: not before it as far as is known */
  token = use(FREE_A);
  rp_order_end(order, call);
  assert_int_equal(gap_at(token, at(FREE_B)).milestone, 0);
  place(FREE_A, 0); /* no number */
  place(FREE_A, RP_ORDER_MILESTONES + 1);
  assert_int_equal(gap_at(token, at(FREE_B)).milestone, 0);
}

/* On a captured stream nobody can wait. */
static void a_captured_stream_learns_nothing(void **state) {
  (void)state;
  const struct rp_order_site site = at(FREE_B);
  rp_order_token token = use(FREE_A);
  place(FREE_A, 1);
  rp_order_capture_begin(order, &site);
  wait_at(FREE_B, 1);
  assert_int_equal(gap_at(token, site).fix, RP_ORDER_FIX_NONE);
  rp_order_capture_end(order, &site);
  assert_false(ordered(token, FREE_B));
}

static rp_order_token outside(uint64_t stream) {
  struct rp_order_site site = at(stream);
  site.flags = RP_ORDER_OUTSIDE;
  return access_at(site);
}

static bool stalls(rp_order_token token) {
  const struct rp_order_site site = at(FREE_B);
  const struct rp_order_gap gap = gap_at(token, site);
  return rp_order_may_stall(order, &gap, &site);
}

static void work_outside_counts_where_it_comes_before(void **state) {
  (void)state;
  rp_order_token before = use(FREE_A);
  place(FREE_A, 1);
  (void)outside(FREE_A);
  rp_order_token behind = use(FREE_A);
  place(FREE_A, 2);
  assert_false(stalls(before));
  assert_true(stalls(behind));
  rp_order_milestone_drop(order, 1);
  assert_true(stalls(before)); /* the next one is behind it */
  sync_stream(HOST_2, FREE_A);
  assert_false(stalls(before));
}

static void work_outside_that_is_being_launched_may_be_before_it(void **state) {
  (void)state;
  struct rp_order_site site = at(FREE_A);
  const struct rp_order_site here = at(FREE_A);
  site.flags = RP_ORDER_OUTSIDE;
  rp_order_token token = use(FREE_A);
  place(FREE_A, 1);
  rp_order_call launch = rp_order_begin(order, RP_ORDER_WORK, &site, 0);
  assert_false(stalls(token)); /* it was placed before */
  place(FREE_A, 1);
  assert_true(stalls(token));
  rp_order_call call = rp_order_begin(order, RP_ORDER_MILESTONE, &here, 2);
  rp_order_cancel(order, launch);
  rp_order_milestone_drop(order, 1);
  rp_order_end(order, call);
  assert_true(stalls(token));
  rp_order_milestone_drop(order, 2);
  call = rp_order_begin(order, RP_ORDER_MILESTONE, &here, 2);
  launch = rp_order_begin(order, RP_ORDER_WORK, &site, 0);
  rp_order_cancel(order, launch);
  rp_order_end(order, call);
  assert_true(stalls(token));
  place(FREE_A, 2);
  assert_false(stalls(token));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(what_comes_behind_is_not_waited_for),
      CASE(the_next_one_stands_in),
      CASE(one_behind_others_stands_for_them),
      CASE(streams_that_cannot_be_asked_have_theirs),
      CASE(the_end_of_a_context_takes_them_along),
      CASE(a_component_with_another_owner_has_none),
      CASE(the_host_knows_what_it_reached),
      CASE(one_that_is_not_placed_is_none),
      CASE(a_captured_stream_learns_nothing),
      CASE(work_outside_counts_where_it_comes_before),
      CASE(work_outside_that_is_being_launched_may_be_before_it),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
