/* Work that waits for something outside of all streams: which waits between streams could be one for it. */
#include "tests/unit/order_cases.h"

#include <stdint.h>

static rp_order_token outside(uint64_t stream) {
  struct rp_order_site site = at(stream);
  site.flags = RP_ORDER_OUTSIDE;
  return access_at(site);
}

/* May a wait of `to` for all that `from` has been given so far never end? */
static bool stalls(uint64_t from, uint64_t to) {
  const struct rp_order_gap gap = {
      .fix = RP_ORDER_FIX_WAIT, .context = CONTEXT, .stream = from, .thread = HOST};
  const struct rp_order_site site = at(to);
  return rp_order_may_stall(order, &gap, &site);
}

static void work_outside_is_found_on_its_stream(void **state) {
  (void)state;
  (void)use(FREE_A);
  assert_false(stalls(FREE_A, FREE_B));
  (void)outside(FREE_A);
  assert_true(stalls(FREE_A, FREE_B));
  assert_false(stalls(FREE_C, FREE_B));
  (void)use(FREE_A);
  assert_true(stalls(FREE_A, FREE_B));
  sync_stream(HOST_2, FREE_A);
  assert_false(stalls(FREE_A, FREE_B));
}

static void work_outside_is_found_through_events(void **state) {
  (void)state;
  (void)use(FREE_C);
  (void)outside(FREE_A);
  record(FREE_A, EVENT);
  wait_for(FREE_B, EVENT);
  assert_true(stalls(FREE_B, FREE_C));
  wait_for(FREE_C, EVENT); /* the program's own wait, which is there without us */
  assert_false(stalls(FREE_B, FREE_C));
  assert_false(stalls(FREE_A, FREE_C));
  (void)outside(FREE_A);
  assert_true(stalls(FREE_A, FREE_C));
  assert_false(stalls(FREE_B, FREE_C));
}

static void default_streams_wait_for_it_too(void **state) {
  (void)state;
  (void)use(LEGACY);
  (void)outside(BLOCKING_A);
  assert_true(stalls(LEGACY, FREE_A));
  sync_stream(HOST, BLOCKING_A);
  assert_false(stalls(LEGACY, FREE_A));
  (void)use(BLOCKING_B);
  (void)outside(LEGACY);
  assert_true(stalls(BLOCKING_B, FREE_A));
  assert_false(stalls(FREE_B, FREE_A));
}

static void a_call_that_goes_on_may_be_anywhere(void **state) {
  (void)state;
  struct rp_order_site site = at(FREE_A);
  site.flags = RP_ORDER_OUTSIDE;
  (void)use(FREE_B);
  rp_order_call call = rp_order_begin(order, RP_ORDER_WORK, &site, 0);
  assert_true(stalls(FREE_B, FREE_C));
  rp_order_end(order, call);
  assert_false(stalls(FREE_B, FREE_C));
  assert_true(stalls(FREE_A, FREE_C));
}

static void a_graph_may_hold_it(void **state) {
  (void)state;
  struct rp_order_site site = at(FREE_A);
  (void)use(FREE_B);
  (void)rp_order_graph_launch(order, &site, 7);
  assert_false(stalls(FREE_A, FREE_B));
  site.flags = RP_ORDER_OUTSIDE | RP_ORDER_CAPTURED;
  (void)access_at(site);
  assert_false(stalls(FREE_A, FREE_B)); /* not launched */
  site.flags = 0;
  (void)rp_order_graph_launch(order, &site, 7);
  assert_true(stalls(FREE_A, FREE_B));
}

static void what_does_not_fit_may_be_anywhere(void **state) {
  (void)state;
  restart(&(struct rp_order_limits){.components = 1});
  (void)use(FREE_A);
  assert_false(stalls(FREE_A, FREE_B));
  (void)outside(FREE_B); /* no place left for it */
  assert_true(stalls(FREE_A, FREE_B));
}

/* ---- against sets ---- */

#define STREAMS 3
#define EVENTS 4
#define OPERATIONS 40

static uint64_t random_state;

static uint32_t below(uint32_t limit) {
  random_state = random_state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(random_state >> 33) % limit;
}

struct sets {
  uint64_t stream[STREAMS], event[EVENTS], known; /* bits: work that waits outside */
  unsigned made;
};

static void do_one(struct sets *sets) {
  uint32_t s = below(STREAMS), e = below(EVENTS);
  switch (below(6)) {
  case 0:
    (void)outside(FREE_A + s);
    sets->stream[s] |= UINT64_C(1) << sets->made++;
    break;
  case 1:
    (void)use(FREE_A + s);
    break;
  case 2:
    record(FREE_A + s, EVENT + e);
    sets->event[e] = sets->stream[s];
    break;
  case 3:
  case 4:
    wait_for(FREE_A + s, EVENT + e);
    sets->stream[s] |= sets->event[e];
    break;
  default:
    if (below(4)) break;
    sync_stream(HOST_2, FREE_A + s);
    sets->known |= sets->stream[s];
  }
}

/* Never "no" where the sets say that it would be a wait for such work. "Yes" too often only where work that
 * is not complete is there. */
static void random_programs(void **state) {
  (void)state;
  unsigned exact = 0, asked = 0;
  for (uint64_t seed = 1; seed <= 400; seed++) {
    struct sets sets = {0};
    random_state = seed;
    restart(NULL);
    tell_streams();
    for (int n = 0; n < OPERATIONS; n++) {
      do_one(&sets);
      for (unsigned from = 0; from < STREAMS; from++)
        for (unsigned to = 0; to < STREAMS; to++) {
          bool truth = (sets.stream[from] & ~sets.known & ~sets.stream[to]) != 0;
          bool said = stalls(FREE_A + from, FREE_A + to);
          if (truth) assert_true(said);
          if (!(sets.stream[from] & ~sets.known)) assert_false(said);
          exact += truth == said;
          asked++;
        }
    }
  }
  assert_true(exact > asked - asked / 20);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(work_outside_is_found_on_its_stream),
      CASE(work_outside_is_found_through_events),
      CASE(default_streams_wait_for_it_too),
      CASE(a_call_that_goes_on_may_be_anywhere),
      CASE(a_graph_may_hold_it),
      CASE(what_does_not_fit_may_be_anywhere),
      CASE(random_programs),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
