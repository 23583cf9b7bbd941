/* pool/order against every execution of small random programs: for each pair of operations it must say
 * "ordered" exactly when the first has ended in all executions before the second begins. order_model.c says
 * which liberties the device takes; there is no construct beyond these in which the two may differ. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>

#include "pool/order.h"
#include "tests/unit/order_model.h"

#define PROGRAMS 6000
#define CONTEXT 0xc0
#define OTHER_CONTEXT 0xc1

static const struct model_stream world[] = {
    {RP_ORDER_STREAM_LEGACY, CONTEXT, 0, false, true},
    {RP_ORDER_STREAM_PER_THREAD, CONTEXT, 1, true, false},
    {RP_ORDER_STREAM_PER_THREAD, CONTEXT, 2, true, false},
    {0x10, CONTEXT, 0, true, false},
    {0x11, CONTEXT, 0, true, false},
    {0x12, CONTEXT, 0, false, false},
    {0x13, CONTEXT, 0, false, false},
    {RP_ORDER_STREAM_LEGACY, OTHER_CONTEXT, 0, false, true},
    {0x20, OTHER_CONTEXT, 0, true, false},
};
#define WORLD ((int)(sizeof world / sizeof *world))

/* ---- programs ---- */

static uint64_t random_state;

static int pick(int bound) {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return (int)((random_state >> 20) % (uint64_t)bound);
}

/* Operations are what is asked about, records and waits what connects them: those come more often. */
static enum model_kind pick_kind(void) {
  static const enum model_kind often[] = {MODEL_LAUNCH,       MODEL_LAUNCH, MODEL_LAUNCH,
                                          MODEL_RECORD,       MODEL_RECORD, MODEL_WAIT,
                                          MODEL_PROGRAMMATIC, MODEL_WAIT,   MODEL_GRAPH};
  const int count = (int)(sizeof often / sizeof *often), drawn = pick(count + MODEL_KINDS);
  return drawn < count ? often[drawn] : (enum model_kind)(drawn - count);
}

static void make_program(struct model_program *program, uint64_t seed) {
  random_state = seed * UINT64_C(0x9E3779B97F4A7C15) + 1;
  int streams[4], stream_count = 2 + pick(3), threads = 1 + pick(3);
  for (int i = 0; i < stream_count; i++)
    streams[i] = pick(WORLD);
  program->streams = world;
  program->count = 5 + pick(7);
  for (int i = 0; i < program->count; i++) {
    struct model_call *call = &program->calls[i];
    call->kind = pick_kind();
    call->stream = streams[pick(stream_count)];
    call->object = pick(2);
    call->thread = 1 + (uint64_t)pick(threads);
    call->context = world[call->stream].context;
    if (world[call->stream].thread) call->thread = world[call->stream].thread; /* others cannot name it */
  }
}

/* ---- the same program, told to pool/order ---- */

struct verdict {
  bool ordered[MODEL_CALLS][MODEL_CALLS], known[MODEL_CALLS][MODEL_CALLS];
  rp_order_token tokens[MODEL_CALLS];
  bool no_place; /* a milestone on a stream that nothing was known of */
};

/* Records of a program are told as milestones: which objects are one now. */
static bool milestones, is_milestone[2];

static struct rp_order *new_order(const struct rp_order_limits *limits) {
  struct rp_order *order = NULL;
  assert_int_equal(rp_order_create(limits, &order), RP_OK);
  for (int i = 0; i < WORLD; i++)
    rp_order_stream_create(order, world[i].context, world[i].handle, world[i].blocking);
  return order;
}

static struct rp_order_site site_of(const struct model_call *call) {
  return (struct rp_order_site){.context = call->context,
                                .stream = world[call->stream].handle,
                                .thread = call->thread,
                                .flags = call->kind == MODEL_PROGRAMMATIC ? RP_ORDER_PROGRAMMATIC : 0};
}

static void tell_milestone(struct rp_order *order, const struct rp_order_site *site, int object) {
  const uint64_t number = 1 + (uint64_t)object;
  struct rp_order_site at = *site;
  at.flags = 0;
  rp_order_milestone_drop(order, number);
  rp_order_end(order, rp_order_begin(order, RP_ORDER_MILESTONE, &at, number));
  rp_order_event_destroy(order, 0xe0 + (uint64_t)object);
  is_milestone[object] = true;
}

static rp_order_token tell(struct rp_order *order, const struct model_call *call) {
  const struct rp_order_site site = site_of(call);
  const uint64_t object = 0xe0 + (uint64_t)call->object;
  rp_order_token token = RP_ORDER_TOKEN_UNKNOWN;
  switch (call->kind) {
  case MODEL_LAUNCH:
  case MODEL_PROGRAMMATIC:
    return rp_order_access(order, &site);
  case MODEL_LAUNCH_EVENT:
  case MODEL_LAUNCH_COMPLETION:
    token = rp_order_access(order, &site);
    is_milestone[call->object] = false;
    rp_order_event_record(order, &site, object,
                          call->kind == MODEL_LAUNCH_EVENT ? RP_ORDER_RECORD_PROGRAMMATIC
                                                           : RP_ORDER_RECORD_LAUNCHED);
    return token;
  case MODEL_GRAPH:
    return rp_order_graph_launch(order, &site, object);
  case MODEL_WORK:
    rp_order_work(order, &site);
    break;
  case MODEL_COPY_WAITS:
    return rp_order_copy_sync(order, &site, RP_ORDER_COPY_DEVICE_TO_HOST);
  case MODEL_COPY_RETURNS:
    return rp_order_copy_sync(order, &site, RP_ORDER_COPY_PAGEABLE_TO_DEVICE);
  case MODEL_RECORD:
    if (milestones)
      tell_milestone(order, &site, call->object);
    else
      rp_order_event_record(order, &site, object, RP_ORDER_RECORD_STREAM);
    break;
  case MODEL_WAIT:
    if (is_milestone[call->object])
      rp_order_milestone_wait(order, &site, 1 + (uint64_t)call->object);
    else
      rp_order_event_wait(order, &site, object);
    break;
  case MODEL_SYNC_STREAM:
    rp_order_sync_stream(order, &site);
    break;
  case MODEL_SYNC_EVENT:
    if (is_milestone[call->object])
      rp_order_milestone_sync(order, call->thread, 1 + (uint64_t)call->object);
    else
      rp_order_sync_event(order, call->thread, object);
    break;
  case MODEL_SYNC_CONTEXT:
    rp_order_sync_context(order, call->thread, call->context);
    break;
  case MODEL_DESTROY:
    rp_order_stream_destroy(order, site.stream);
    rp_order_stream_create(order, site.context, site.stream, world[call->stream].blocking);
    break;
  case MODEL_FREE:
  case MODEL_KINDS:
    break;
  }
  return token;
}

/* Asks before each call whether what came earlier is ordered before it, and after it what its thread knows.
 */
static void run(struct rp_order *order, const struct model_program *program, struct verdict *verdict) {
  bool has_access[WORLD] = {false};
  is_milestone[0] = is_milestone[1] = false;
  for (int i = 0; i < program->count; i++) {
    const struct model_call *call = &program->calls[i];
    const struct rp_order_site site = site_of(call);
    for (int j = 0; j < i; j++)
      verdict->ordered[j][i] = rp_order_before(order, verdict->tokens[j], &site);
    verdict->tokens[i] = tell(order, call);
    for (int j = 0; j < i; j++)
      verdict->known[j][i] = rp_order_before_host(order, verdict->tokens[j], call->thread);
    verdict->no_place |= call->kind == MODEL_RECORD && !has_access[call->stream];
    has_access[call->stream] |= verdict->tokens[i] != RP_ORDER_TOKEN_UNKNOWN;
    if (call->kind == MODEL_DESTROY) has_access[call->stream] = false;
  }
}

/* ---- comparison ---- */

static const char *const kind_names[MODEL_KINDS] = {
    "launch", "programmatic", "launch+event", "launch+completion", "graph",      "work",         "copy waits",
    "copy",   "record",       "wait",         "sync stream",       "sync event", "sync context", "free",
    "destroy"};

static void fail_with(const struct model_program *program, uint64_t seed, const char *what, int a, int b,
                      bool model) {
  for (int i = 0; i < program->count; i++) {
    const struct model_call *call = &program->calls[i];
    print_message("%2d thread %d stream %d %s %d\n", i, (int)call->thread, call->stream,
                  kind_names[call->kind], call->object);
  }
  fail_msg("program %llu: %s(%d, %d) is %d in the model", (unsigned long long)seed, what, a, b, model);
}

/* Only what has a token can be asked about, and graphs take theirs in their stream's order as any other. */
static bool is_access(const struct model_call *call) {
  return model_is_operation(call->kind) && call->kind != MODEL_WORK;
}

struct tally {
  long ordered, unordered, known, unknown, states, too_large, exact;
};

static void count(struct tally *tally, bool ordered, bool known) {
  *(ordered ? &tally->ordered : &tally->unordered) += 1;
  *(known ? &tally->known : &tally->unknown) += 1;
}

/* `exact`: the verdicts agree; otherwise (bounds too small) "ordered" must still be true. */
static void compare(const struct model_program *program, uint64_t seed, const struct model_answer *answer,
                    const struct verdict *verdict, bool exact, struct tally *tally) {
  for (int a = 0; a < program->count; a++) {
    for (int b = a + 1; b < program->count && is_access(&program->calls[a]); b++) {
      const bool ordered = answer->ordered[a][b], known = answer->known[a][b];
      const bool operation = model_is_operation(program->calls[b].kind);
      /* The question does not say which graph is to be launched, and so misses its previous launch. */
      const bool as_asked = exact && program->calls[b].kind != MODEL_GRAPH;
      if (operation && (as_asked ? verdict->ordered[a][b] != ordered : verdict->ordered[a][b] && !ordered))
        fail_with(program, seed, "ordered", a, b, ordered);
      if (exact ? verdict->known[a][b] != known : verdict->known[a][b] && !known)
        fail_with(program, seed, "known", a, b, known);
      if (operation)
        count(tally, exact ? ordered : verdict->ordered[a][b], exact ? known : verdict->known[a][b]);
    }
  }
}

static struct tally compare_many(const struct rp_order_limits *limits, uint64_t first, uint64_t last,
                                 bool exact) {
  struct tally tally = {0};
  for (uint64_t seed = first; seed < last; seed++) {
    struct model_program program;
    struct model_answer answer;
    struct verdict verdict = {0};
    make_program(&program, seed);
    if (!model_solve(&program, &answer)) {
      tally.too_large++;
      continue;
    }
    tally.states += answer.states;
    struct rp_order *order = new_order(limits);
    run(order, &program, &verdict);
    rp_order_destroy(order);
    compare(&program, seed, &answer, &verdict, exact && !(milestones && verdict.no_place), &tally);
    tally.exact += !verdict.no_place;
  }
  return tally;
}

static void exactly_the_unordered_pairs_are_found(void **state) {
  (void)state;
  struct tally tally =
      compare_many(&(struct rp_order_limits){.events = 8, .components = 16, .streams = 16, .graphs = 4}, 1,
                   PROGRAMS + 1, true);
  print_message("ordered %ld, unordered %ld, known %ld, unknown %ld, states %ld, too large %ld\n",
                tally.ordered, tally.unordered, tally.known, tally.unknown, tally.states, tally.too_large);
  assert_true(tally.ordered > PROGRAMS && tally.unordered > PROGRAMS && tally.known > PROGRAMS / 10);
  assert_true(tally.too_large < PROGRAMS / 10);
}

/* Milestones are records by another name. Where they find no place they make no order. */
static void milestones_order_what_records_order(void **state) {
  (void)state;
  milestones = true;
  struct tally tally = compare_many(&(struct rp_order_limits){.events = 8, .components = 16, .milestones = 2},
                                    1, PROGRAMS + 1, true);
  milestones = false;
  print_message("ordered %ld, unordered %ld, programs in which all had a place %ld\n", tally.ordered,
                tally.unordered, tally.exact);
  assert_true(tally.ordered > PROGRAMS && tally.exact > PROGRAMS / 4);
}

static void small_bounds_never_promise_too_much(void **state) {
  (void)state;
  const struct rp_order_limits limits[] = {
      {.events = 1, .graphs = 1, .streams = 16},
      {.components = 2, .threads = 1, .events = 8, .streams = 16},
      {.streams = 7, .contexts = 1, .events = 8},
  };
  for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
    struct tally tally = compare_many(&limits[i], 1, PROGRAMS / 10, false);
    assert_true(tally.ordered > PROGRAMS / 100); /* it still promises something */
  }
}

/* ---- gaps ---- */

/* Runs the program and closes all gaps before `target` but the one to leave out. True when all is then
 * ordered. */
static bool close_gaps(const struct model_program *program, const struct rp_order_site *target, int leave_out,
                       int *gap_count) {
  struct rp_order *order = new_order(&(struct rp_order_limits){.events = 8, .components = 16, .streams = 16});
  struct verdict verdict = {0};
  struct rp_order_frontier frontier = {0};
  struct rp_order_gap gaps[RP_ORDER_FRONTIER + 1];
  run(order, program, &verdict);
  for (int i = 0; i < program->count; i++)
    if (is_access(&program->calls[i])) rp_order_frontier_add(order, &frontier, verdict.tokens[i]);
  *gap_count = (int)rp_order_gaps(order, &frontier, target, gaps);
  assert_int_equal(*gap_count == 0, rp_order_frontier_before(order, &frontier, target));
  for (int i = 0; i < *gap_count; i++) {
    if (i == leave_out) continue;
    const struct rp_order_site from = {
        .context = gaps[i].context, .stream = gaps[i].stream, .thread = target->thread};
    assert_int_not_equal(gaps[i].fix, RP_ORDER_FIX_NONE);
    if (gaps[i].fix == RP_ORDER_FIX_WAIT) {
      rp_order_event_record(order, &from, 0xee, RP_ORDER_RECORD_STREAM);
      rp_order_event_wait(order, target, 0xee);
    } else {
      rp_order_sync_context(order, target->thread, gaps[i].context);
    }
  }
  bool closed = rp_order_frontier_before(order, &frontier, target);
  rp_order_destroy(order);
  return closed;
}

static void gaps_are_what_is_missing_and_no_more(void **state) {
  (void)state;
  long several = 0, not_needed = 0;
  for (uint64_t seed = 1; seed <= PROGRAMS / 4; seed++) {
    struct model_program program;
    int gap_count;
    make_program(&program, seed);
    const struct rp_order_site target = {.context = CONTEXT, .stream = 0x12, .thread = 1 + seed % 2};
    assert_true(close_gaps(&program, &target, -1, &gap_count));
    several += gap_count > 1;
    for (int i = 0; i < gap_count; i++) {
      int same;
      /* A wait on a default stream, or a context, orders more than was asked of it; others leave a gap open.
       */
      not_needed += close_gaps(&program, &target, i, &same);
    }
  }
  print_message("programs with several gaps %ld, gaps closed by another's side effect %ld\n", several,
                not_needed);
  assert_true(several > PROGRAMS / 50);
  assert_int_equal(not_needed, 0);
}

/* ---- gaps with milestones ---- */

/* What a program has done, with a milestone behind each access, or but for some. */
struct marked {
  struct rp_order *order;
  rp_order_token tokens[MODEL_CALLS];
  bool behind[MODEL_CALLS][MODEL_CALLS]; /* [a][b]: access b was before what came right behind a */
  int placed;
};

static void run_marked(struct marked *marked, const struct model_program *program, bool all) {
  marked->order =
      new_order(&(struct rp_order_limits){.events = 8, .components = 16, .milestones = MODEL_CALLS});
  for (int i = 0; i < program->count; i++) {
    const struct model_call *call = &program->calls[i];
    struct rp_order_site site = site_of(call);
    marked->tokens[i] = tell(marked->order, call);
    if (marked->tokens[i] == RP_ORDER_TOKEN_UNKNOWN) continue;
    site.flags = 0;
    for (int b = 0; b <= i; b++)
      marked->behind[i][b] = rp_order_before(marked->order, marked->tokens[b], &site);
    if (!all && pick(2)) continue;
    rp_order_end(marked->order,
                 rp_order_begin(marked->order, RP_ORDER_MILESTONE, &site, 1 + (uint64_t)marked->placed++));
  }
}

static void close_gap(struct rp_order *order, const struct rp_order_site *target,
                      const struct rp_order_gap *gap) {
  const struct rp_order_site from = {
      .context = gap->context, .stream = gap->stream, .thread = target->thread};
  assert_int_not_equal(gap->fix, RP_ORDER_FIX_NONE);
  if (gap->milestone) {
    rp_order_milestone_wait(order, target, gap->milestone);
  } else if (gap->fix == RP_ORDER_FIX_WAIT) {
    rp_order_event_record(order, &from, 0xee, RP_ORDER_RECORD_STREAM);
    rp_order_event_wait(order, target, 0xee);
  } else {
    rp_order_sync_context(order, target->thread, gap->context);
  }
}

static bool is_destroyed(const struct model_program *program, int call) {
  for (int i = call + 1; i < program->count; i++)
    if (program->calls[i].kind == MODEL_DESTROY && program->calls[i].stream == program->calls[call].stream)
      return true;
  return false;
}

/* One access is waited for: it is in order then, and with a milestone behind every access nothing else is
 * but what came before the access itself. */
static void a_wait_is_for_the_access_alone(void **state) {
  (void)state;
  long closed = 0, left_alone = 0, by_milestone = 0;
  for (uint64_t seed = 1; seed <= PROGRAMS; seed++) {
    struct model_program program;
    struct marked marked = {0};
    struct rp_order_frontier frontier = {0};
    struct rp_order_gap gaps[RP_ORDER_FRONTIER + 1];
    bool before[MODEL_CALLS], all = seed % 3 != 0;
    make_program(&program, seed);
    run_marked(&marked, &program, all);
    const struct rp_order_site target = {.context = CONTEXT, .stream = 0x12, .thread = 1 + seed % 2};
    int a = pick(program.count);
    for (int b = 0; b < program.count; b++)
      before[b] = rp_order_before(marked.order, marked.tokens[b], &target);
    if (marked.tokens[a] != RP_ORDER_TOKEN_UNKNOWN && !before[a] && !is_destroyed(&program, a)) {
      rp_order_frontier_add(marked.order, &frontier, marked.tokens[a]);
      assert_int_equal(rp_order_gaps(marked.order, &frontier, &target, gaps), 1);
      assert_int_equal(gaps[0].token, marked.tokens[a]);
      if (all) assert_true(gaps[0].milestone != 0 && gaps[0].fix == RP_ORDER_FIX_WAIT);
      close_gap(marked.order, &target, &gaps[0]);
      assert_true(rp_order_frontier_before(marked.order, &frontier, &target));
      by_milestone += gaps[0].milestone != 0;
      closed++;
      for (int b = 0; all && b < program.count; b++) {
        bool now = rp_order_before(marked.order, marked.tokens[b], &target);
        if (now != (before[b] || marked.behind[a][b])) fail_with(&program, seed, "before", b, a, now);
        left_alone += !now && b > a;
      }
    }
    rp_order_destroy(marked.order);
  }
  print_message("%ld waits, %ld for milestones; %ld later accesses left alone\n", closed, by_milestone,
                left_alone);
  assert_true(closed > PROGRAMS / 4 && left_alone > PROGRAMS / 2 && by_milestone < closed);
}

/* All accesses, as many of them with a milestone as chance has it: no more waits than needed. */
static bool close_marked(const struct model_program *program, uint64_t seed,
                         const struct rp_order_site *target, int leave_out, int *gap_count) {
  struct marked marked = {0};
  struct rp_order_frontier frontier = {0};
  struct rp_order_gap gaps[RP_ORDER_FRONTIER + 1];
  random_state = seed * UINT64_C(0x2545F4914F6CDD1D) + 1;
  run_marked(&marked, program, false);
  for (int i = 0; i < program->count; i++)
    if (is_access(&program->calls[i])) rp_order_frontier_add(marked.order, &frontier, marked.tokens[i]);
  *gap_count = (int)rp_order_gaps(marked.order, &frontier, target, gaps);
  assert_int_equal(*gap_count == 0, rp_order_frontier_before(marked.order, &frontier, target));
  for (int i = 0; i < *gap_count; i++)
    if (i != leave_out) close_gap(marked.order, target, &gaps[i]);
  bool closed = rp_order_frontier_before(marked.order, &frontier, target);
  rp_order_destroy(marked.order);
  return closed;
}

static void gaps_with_milestones_are_what_is_missing(void **state) {
  (void)state;
  long several = 0, not_needed = 0;
  for (uint64_t seed = 1; seed <= PROGRAMS / 4; seed++) {
    struct model_program program;
    int gap_count, same;
    make_program(&program, seed);
    const struct rp_order_site target = {.context = CONTEXT, .stream = 0x12, .thread = 1 + seed % 2};
    assert_true(close_marked(&program, seed, &target, -1, &gap_count));
    several += gap_count > 1;
    for (int i = 0; i < gap_count; i++)
      not_needed += close_marked(&program, seed, &target, i, &same);
  }
  print_message("programs with several gaps %ld, waits not needed %ld\n", several, not_needed);
  assert_true(several > PROGRAMS / 50);
  assert_int_equal(not_needed, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(exactly_the_unordered_pairs_are_found),
      cmocka_unit_test(milestones_order_what_records_order),
      cmocka_unit_test(a_wait_is_for_the_access_alone),
      cmocka_unit_test(gaps_with_milestones_are_what_is_missing),
      cmocka_unit_test(small_bounds_never_promise_too_much),
      cmocka_unit_test(gaps_are_what_is_missing_and_no_more),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
