/* Who made an access and whether the host knows that it is done: what has to be asked before memory is moved.
 */
#include "tests/unit/order_cases.h"

static struct rp_order_gap owner(rp_order_token token) {
  return rp_order_owner(order, token);
}

static void a_stream_is_named_while_it_lives(void **state) {
  (void)state;
  rp_order_token token = use(FREE_A);
  assert_int_equal(owner(token).fix, RP_ORDER_FIX_WAIT);
  assert_int_equal(owner(token).stream, FREE_A);
  assert_int_equal(owner(token).context, CONTEXT);
  assert_int_equal(owner(token).token, token);
  rp_order_stream_destroy(order, FREE_A);
  assert_int_equal(owner(token).fix, RP_ORDER_FIX_CONTEXT);
  assert_int_equal(owner(token).context, CONTEXT);
}

static void default_streams_of_threads_are_asked_by_context(void **state) {
  (void)state;
  rp_order_token token = access_at(by(HOST_2, PER_THREAD));
  assert_int_equal(owner(token).fix, RP_ORDER_FIX_CONTEXT);
  assert_int_equal(owner(use(LEGACY)).fix, RP_ORDER_FIX_WAIT);
}

static void nobody_answers_for_the_unknown(void **state) {
  (void)state;
  assert_int_equal(owner(RP_ORDER_TOKEN_UNKNOWN).fix, RP_ORDER_FIX_NONE);
  assert_int_equal(owner(access_at((struct rp_order_site){.thread = HOST})).fix, RP_ORDER_FIX_NONE);
  assert_false(rp_order_complete(order, RP_ORDER_TOKEN_UNKNOWN));
}

static void complete_is_what_some_thread_knows(void **state) {
  (void)state;
  rp_order_token first = use(FREE_A), second = use(FREE_B);
  assert_false(rp_order_complete(order, first));
  sync_stream(HOST_2, FREE_A);
  assert_true(rp_order_complete(order, first));
  assert_false(rp_order_complete(order, second));
  rp_order_thread_exit(order, HOST_2);
  assert_true(rp_order_complete(order, first)); /* still true */
  assert_false(rp_order_complete(order, use(FREE_A)));
  assert_true(rp_order_complete(order, rp_order_host_access(order, HOST)));
}

static void captures_are_told_or_flagged(void **state) {
  (void)state;
  struct rp_order_site site = at(FREE_A), flagged = at(FREE_B);
  flagged.flags = RP_ORDER_CAPTURED;
  assert_false(rp_order_capturing(order, &site));
  assert_true(rp_order_capturing(order, &flagged));
  rp_order_capture_begin(order, &site);
  assert_true(rp_order_capturing(order, &site));
  rp_order_capture_end(order, &site);
  assert_false(rp_order_capturing(order, &site));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(a_stream_is_named_while_it_lives), CASE(default_streams_of_threads_are_asked_by_context),
      CASE(nobody_answers_for_the_unknown),   CASE(complete_is_what_some_thread_knows),
      CASE(captures_are_told_or_flagged),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
