/* Random programs of a pipeline stage, correct by themselves, on a device that does its work as late as it
 * may and over memory that really aliases. Whatever the guard lets happen, every message must be there when
 * it is read; and programs that do the same thing in every step, in order, must never hear of a conflict. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "guard_program.h"
#include "lazy_device.h"

#define SEEDS 1500
#define STREAMS 4 /* 0 and 1 receive, 2 and 3 compute */
#define FIRST_STREAM 100u
#define MILESTONES 16

static uint64_t random_state;

static uint32_t below(uint32_t limit) { /* xorshift64* */
  random_state ^= random_state >> 12;
  random_state ^= random_state << 25;
  random_state ^= random_state >> 27;
  return (uint32_t)((random_state * 2685821657736338717u) >> 33) % limit;
}

/* One use of a message: which class and microbatch, and by what. */
struct use {
  struct guard_op op;
  int stream;
  bool callback; /* seen only when it is too late */
};

struct buffer {
  uint64_t address, word;
  size_t event; /* behind its receive */
  int receive_stream;
  bool used_on[STREAMS];  /* since its receive */
  bool received, skipped; /* in this step; refused: its uses are left out */
  uint32_t left;          /* uses of this step still to come */
};

struct world {
  uint64_t seed;
  bool planned, strict_order, shadow_like; /* strict_order: each receive is behind all work so far */
  struct host_device *memory;
  struct lazy_device *device;
  struct rp_order *order;
  struct rp_guard *guard;
  struct guard_program program;
  struct use uses[PROGRAM_MOST];
  struct buffer buffers[MOST];
  struct rp_guard_channel channels[MOST];
  size_t channel_count, events;
  uint64_t seq, words, refused;
  bool eager, strict, odd, blind; /* odd: two threads; blind: some streams are not known */
  uint64_t thread;
  uint32_t milestones, next_milestone; /* how many there may be, 0: none; the one to be placed next */
  size_t milestone_event[MILESTONES];  /* by number - 1 */
  uint64_t by_milestone, by_tail;      /* waits of streams and of the host */
};

static struct rp_order_site site_of(const struct world *w, int stream) {
  return (struct rp_order_site){7, FIRST_STREAM + (uint64_t)stream, w->thread, 0};
}

/* Of work that nobody knows the stream of, now and then. */
static struct rp_order_site work_site(const struct world *w, int stream) {
  struct rp_order_site site = site_of(w, stream);
  if (w->blind && !below(12)) site.stream = RP_ORDER_STREAM_UNKNOWN;
  return site;
}

static size_t record(struct world *w, int stream) {
  struct rp_order_site site = site_of(w, stream);
  lazy_record(w->device, stream, ++w->events);
  rp_order_event_record(w->order, &site, w->events, RP_ORDER_RECORD_STREAM);
  return w->events;
}

static void wait_for(struct world *w, int stream, size_t event) {
  struct rp_order_site site = site_of(w, stream);
  lazy_wait(w->device, stream, event);
  rp_order_event_wait(w->order, &site, event);
}

static void host_sync(struct world *w, int stream) {
  struct rp_order_site site = site_of(w, stream);
  lazy_sync(w->device, stream);
  rp_order_sync_stream(w->order, &site);
}

/* Behind a use of a buffer that shares memory, but for some. */
static void place_milestone(struct world *w, const struct rp_order_site *site) {
  if (!w->milestones || !below(8) || site->stream == RP_ORDER_STREAM_UNKNOWN) return;
  uint32_t number = ++w->next_milestone;
  w->next_milestone %= w->milestones;
  rp_order_milestone_drop(w->order, number);
  rp_order_call call = rp_order_begin(w->order, RP_ORDER_MILESTONE, site, number);
  lazy_record(w->device, (int)(site->stream - FIRST_STREAM), ++w->events);
  w->milestone_event[number - 1] = w->events;
  rp_order_end(w->order, call);
}

static void wait_for_milestone(struct world *w, int stream, uint64_t number) {
  struct rp_order_site site = site_of(w, stream);
  lazy_wait(w->device, stream, w->milestone_event[number - 1]);
  rp_order_milestone_wait(w->order, &site, number);
  w->by_milestone++;
}

static void host_sync_milestone(struct world *w, uint64_t number) {
  lazy_sync_event(w->device, w->milestone_event[number - 1]);
  rp_order_milestone_sync(w->order, w->thread, number);
  w->by_milestone++;
}

static void look(struct world *w) {
  const char *broken = NULL;
  if (rp_guard_check(w->guard, &broken))
    fail_msg("seed %llu: %s", (unsigned long long)w->seed, broken ? broken : "no memory");
  assert_int_equal(w->memory->misuse, 0);
  if (w->device->wrong)
    fail_msg("seed %llu, call %llu: %s", (unsigned long long)w->seed, (unsigned long long)w->seq,
             w->device->first_wrong);
  while (w->eager && below(3))
    lazy_run_some(w->device, below(1u << 20));
}

/* ---- what the injected library does ---- */

static void make_idle(struct world *w, const struct rp_guard_action *action) {
  for (size_t i = 0; i < action->idle_count; i++) {
    const struct rp_order_gap *gap = &action->idle[i];
    assert_int_not_equal(gap->fix, RP_ORDER_FIX_NONE);
    if (gap->milestone) {
      host_sync_milestone(w, gap->milestone);
    } else if (gap->fix == RP_ORDER_FIX_CONTEXT) {
      lazy_sync_all(w->device);
      rp_order_sync_context(w->order, w->thread, 7);
    } else {
      host_sync(w, (int)(gap->stream - FIRST_STREAM));
    }
    w->by_tail += !gap->milestone;
  }
  rp_guard_idle_reached(w->guard, action);
}

static bool boundary(struct world *w, const struct rp_guard_action *action) {
  if (!action->boundary) return false;
  if (!below(6)) {
    rp_guard_boundary_postpone(w->guard);
    return true;
  }
  make_idle(w, action);
  (void)rp_guard_boundary(w->guard, w->channels, w->channel_count, 1);
  return true;
}

static bool let_receive(struct world *w, struct rp_guard_receive *receive, int stream) {
  struct rp_guard_action action;
  rp_status status;
  do
    status = rp_guard_receive_prepare(w->guard, receive, &action);
  while (!status && boundary(w, &action));
  if (status || action.next == RP_GUARD_REFUSE) return false;
  if (action.next == RP_GUARD_GO) return true;
  for (size_t i = 0; i < action.wait_count; i++) {
    if (action.waits[i].milestone)
      wait_for_milestone(w, stream, action.waits[i].milestone);
    else
      wait_for(w, stream, record(w, (int)(action.waits[i].stream - FIRST_STREAM)));
    w->by_tail += !action.waits[i].milestone;
  }
  make_idle(w, &action);
  return rp_guard_receive_commit(w->guard, receive, &action) == RP_OK;
}

/* False: there is no memory to let it go on safely. */
static bool let_access(struct world *w, const struct use *use, struct rp_guard_access *access, bool *shared) {
  *shared = false;
  struct rp_guard_action action;
  if (use->callback) {
    rp_guard_access_seen(w->guard, access, rp_order_access(w->order, &access->site), NULL);
    return true;
  }
  rp_status prepared = rp_guard_access_prepare(w->guard, access, &action, NULL);
  if (prepared == RP_ERROR_STATE && w->memory->failures) return false; /* a mapping that got lost */
  assert_int_equal(prepared, RP_OK);
  if (action.next == RP_GUARD_ACT) {
    make_idle(w, &action);
    rp_status status = rp_guard_access_commit(w->guard, access, &action);
    if (status == RP_ERROR_NO_MEMORY || (status && w->memory->failures)) return false;
    assert_int_equal(status, RP_OK);
  }
  assert_int_not_equal(action.next, RP_GUARD_REFUSE);
  *shared = rp_guard_access_launched(w->guard, access, rp_order_access(w->order, &access->site));
  return true;
}

/* Released buffers lose their mapping, whether the device was waited for or not. */
static void be_strict(struct world *w) {
  struct rp_order_site site = site_of(w, 2);
  struct rp_guard_action action;
  if (!w->strict || below(4) || !rp_guard_strict_pending(w->guard)) return;
  rp_guard_strict_prepare(w->guard, &site, &action);
  if (below(2)) make_idle(w, &action);
  (void)rp_guard_strict_commit(w->guard);
  look(w);
}

/* Registered or exported: from now on its memory is its own. */
static void let_escape(struct world *w, uint32_t flag) {
  const struct rp_pool_site site = {.seq = ++w->seq};
  uint64_t address = w->buffers[guard_program_buffer(below(2), below(w->program.microbatches))].address;
  struct rp_guard_action action;
  if (!address || rp_guard_flag_prepare(w->guard, address, flag, &site, &action)) return;
  if (action.next == RP_GUARD_ACT) {
    make_idle(w, &action);
    (void)rp_guard_flag_commit(w->guard, address, flag, &site, &action);
  }
  look(w);
}

/* ---- the program ---- */

/* Behind all that still uses the buffer, as the program itself must see to. */
static void after_its_uses(struct world *w, struct buffer *buffer, int stream) {
  for (int s = 0; s < STREAMS; s++) {
    bool all = w->strict_order && s >= 2;
    if ((!buffer->used_on[s] && !all) || s == stream) continue;
    if (!all && !below(5))
      host_sync(w, s);
    else
      wait_for(w, stream, record(w, s));
  }
}

static void do_receive(struct world *w, const struct use *use) {
  struct buffer *buffer = &w->buffers[guard_program_buffer(use->op.class, use->op.microbatch)];
  struct rp_guard_receive receive = {.address = buffer->address,
                                     .bytes = BYTES,
                                     .comm = 50,
                                     .peer = use->op.class ? DOWNSTREAM : UPSTREAM,
                                     .site = work_site(w, use->stream),
                                     .seq = ++w->seq,
                                     .group = below(3) ? 0 : w->seq};
  buffer->received = true;
  buffer->skipped = true;
  if (!buffer->address) return; /* the allocation failed */
  after_its_uses(w, buffer, use->stream);
  buffer->skipped = !let_receive(w, &receive, use->stream);
  w->refused += buffer->skipped;
  look(w);
  if (buffer->skipped) return;
  bool shared = rp_guard_receive_launched(w->guard, &receive);
  rp_guard_sent(w->guard, 50, use->op.class ? UPSTREAM : DOWNSTREAM, BYTES);
  memset(buffer->used_on, 0, sizeof buffer->used_on);
  buffer->word = ++w->words << 8;
  buffer->used_on[use->stream] = true;
  buffer->receive_stream = use->stream;
  lazy_write(w->device, use->stream, buffer->address, buffer->word);
  if (shared) place_milestone(w, &receive.site);
  buffer->event = record(w, use->stream);
}

static void do_access(struct world *w, const struct use *use) {
  struct buffer *buffer = &w->buffers[guard_program_buffer(use->op.class, use->op.microbatch)];
  if (!buffer->received || buffer->skipped) return;
  struct rp_guard_access access = {.address = buffer->address,
                                   .kind = RP_EVENT_KERNEL,
                                   .function = use->op.function,
                                   .site = work_site(w, use->stream),
                                   .seq = ++w->seq,
                                   .mode = below(2) ? RP_POOL_READ : RP_POOL_UNKNOWN_MODE};
  if (use->stream != buffer->receive_stream) wait_for(w, use->stream, buffer->event);
  bool shared;
  assert_true(let_access(w, use, &access, &shared));
  lazy_read(w->device, use->stream, buffer->address, buffer->word);
  if (shared) place_milestone(w, &access.site);
  buffer->used_on[use->stream] = true;
  look(w);
}

/* An allocator hands a block out again that the step is done with: written, then read. */
static void recycle(struct world *w) {
  struct buffer *buffer = &w->buffers[guard_program_buffer(below(2), below(w->program.microbatches))];
  if (buffer->left || !buffer->address) return;
  struct use use = {.stream = 2 + (int)below(2)};
  struct rp_guard_access access = {.address = buffer->address,
                                   .kind = RP_EVENT_MEMSET,
                                   .function = 99,
                                   .site = work_site(w, use.stream),
                                   .seq = ++w->seq,
                                   .mode = RP_POOL_WRITE};
  after_its_uses(w, buffer, use.stream);
  bool shared;
  if (!let_access(w, &use, &access, &shared)) return;
  uint64_t word = ++w->words << 8;
  lazy_write(w->device, use.stream, buffer->address, word);
  if (shared) place_milestone(w, &access.site);
  buffer->used_on[use.stream] = true;
  look(w);
  access.mode = RP_POOL_UNKNOWN_MODE;
  access.function = 98;
  assert_true(let_access(w, &use, &access, &shared));
  lazy_read(w->device, use.stream, buffer->address, word);
  if (shared) place_milestone(w, &access.site);
  look(w);
}

/* Runs the uses in their order; `keep`: of a step that does less, one in so many is left out. */
static void run_step(struct world *w, uint32_t microbatches, uint32_t leave_out, uint32_t recycle_one_in) {
  size_t ends = leave_out && !below(8) ? below((uint32_t)w->program.count) : w->program.count;
  for (size_t i = 0; i < MOST; i++) {
    w->buffers[i].received = false;
    w->buffers[i].left = 0;
  }
  for (size_t i = 0; i < w->program.count; i++)
    w->buffers[guard_program_buffer(w->uses[i].op.class, w->uses[i].op.microbatch)].left++;
  for (size_t i = 0; i < ends; i++) {
    const struct use *use = &w->uses[i];
    if (w->odd) w->thread = 1 + below(2);
    be_strict(w);
    if (recycle_one_in && !below(recycle_one_in)) recycle(w);
    w->buffers[guard_program_buffer(use->op.class, use->op.microbatch)].left--;
    if (use->op.microbatch >= microbatches) continue;
    if (use->op.receive)
      do_receive(w, use);
    else if (!leave_out || below(leave_out))
      do_access(w, use);
  }
  if (ends < w->program.count) rp_guard_interrupt(w->guard, NULL);
}

/* ---- making one up ---- */

/* A random order of receives and uses in which every use is behind its receive. */
static void make_program(struct world *w) {
  uint32_t microbatches = 2 + below(9), depth = 1 + below(microbatches);
  w->program = guard_program_1f1b(microbatches, depth);
  for (size_t i = 0; i < w->program.count; i++) {
    const struct guard_op *op = &w->program.ops[i];
    w->uses[i].op = *op;
    w->uses[i].stream = op->receive ? (int)op->class : 2 + (w->strict_order ? 0 : (int)below(2));
    w->uses[i].callback = !op->receive && !below(4);
  }
}

/* Neighbours change places where that leaves each message's receive before its uses. */
static void shuffle(struct world *w, uint32_t swaps) {
  while (swaps--) {
    size_t i = below((uint32_t)w->program.count - 1);
    struct use *one = &w->uses[i], *other = &w->uses[i + 1];
    bool same = one->op.class == other->op.class && one->op.microbatch == other->op.microbatch;
    if (same && one->op.receive) continue;
    struct use kept = *one;
    *one = *other;
    *other = kept;
  }
  for (size_t i = 0; i < w->program.count; i++)
    w->program.ops[i] = w->uses[i].op;
}

static void start(struct world *w, uint64_t seed, bool strict_order) {
  struct guard_plan plan;
  random_state = seed * 0x9e3779b97f4a7c15u + 1;
  for (int i = 0; i < 8; i++)
    (void)below(2);
  *w = (struct world){.seed = seed, .strict_order = strict_order, .device = w->device};
  w->planned = below(2);
  w->eager = below(2);
  w->strict = !below(3);
  w->odd = !strict_order && !below(3);
  w->blind = !strict_order && !below(4);
  w->thread = 1;
  w->milestones = below(3) ? 2 + below(MILESTONES - 1) : 0;
  make_program(w);
  shuffle(w, below(60));
  w->memory = host_device_create(UINT64_C(1) << 30);
  lazy_init(w->device, w->memory);
  struct rp_order_limits limits = {
      .components = w->blind ? 3 : 0, .events = w->blind ? 16 : 0, .milestones = MILESTONES};
  assert_int_equal(rp_order_create(&limits, &w->order), RP_OK);
  for (int s = 0; s < STREAMS; s++)
    rp_order_stream_create(w->order, 7, FIRST_STREAM + (uint64_t)s, false);
  struct rp_guard_options options = {.slack = below(3),
                                     .slack_auto = !below(4),
                                     .every_touch_seen = true,
                                     .sends_told = true,
                                     .strict = w->strict,
                                     .on_violation = RP_POOL_ON_STALE_REPORT};
  if (w->planned) guard_program_plan(&w->program, options.slack, &plan);
  assert_int_equal(
      rp_guard_create(&options, &w->memory->backend, w->order, w->planned ? &plan.plan : NULL, &w->guard),
      RP_OK);
}

static void allocate(struct world *w) {
  w->channel_count = 0;
  for (uint32_t class = 0; class < 2; class ++)
    for (uint32_t m = 0; m < w->program.microbatches; m++) {
      struct buffer *buffer = &w->buffers[guard_program_buffer(class, m)];
      *buffer = (struct buffer){0};
      if (rp_guard_allocate(w->guard, BYTES, &buffer->address)) continue;
      w->channels[w->channel_count++] =
          (struct rp_guard_channel){buffer->address, 11 + class, 3, 1 + class, m};
    }
  look(w);
}

static void release(struct world *w) {
  for (size_t i = 0; i < MOST; i++) {
    bool idle = false;
    if (!w->buffers[i].address) continue;
    assert_int_equal(rp_guard_free_prepare(w->guard, w->buffers[i].address, NULL, &idle), RP_OK);
    if (idle) lazy_sync_all(w->device);
    rp_status status = rp_guard_free(w->guard, w->buffers[i].address);
    assert_true(status == RP_OK || w->memory->fail_at);
    w->buffers[i].address = 0;
  }
  rp_order_sync_context(w->order, w->thread, 7);
  look(w);
}

static void finish(struct world *w) {
  uint64_t left = 1;
  while (below(50))
    lazy_run_some(w->device, below(1u << 20));
  lazy_sync_all(w->device);
  look(w);
  assert_int_equal(rp_guard_destroy(w->guard, &left), RP_OK);
  assert_int_equal(left, 0);
  assert_int_equal(host_device_memories(w->memory), 0);
  rp_order_destroy(w->order);
  host_device_destroy(w->memory);
}

/* The same in every step, each receive behind all work: no conflict, no growth, K slots and no more. */
static void correct_programs_hear_nothing(void **state) {
  struct world *w = *state;
  uint64_t shared = 0;
  for (uint64_t seed = 1; seed <= SEEDS; seed++) {
    struct rp_guard_report report;
    start(w, seed, true);
    allocate(w);
    for (int step = 0; step < 6; step++)
      run_step(w, w->program.microbatches, 0, 0);
    assert_int_equal(rp_guard_report(w->guard, &report), RP_OK);
    if (report.conflict_count || report.pool.grown || report.receives_waited)
      fail_msg("seed %llu: %zu conflicts, first %s, %llu grown, %llu waits", (unsigned long long)seed,
               report.conflict_count,
               report.conflict_count ? rp_pool_conflict_name(report.conflicts[0].kind) : "none",
               (unsigned long long)report.pool.grown, (unsigned long long)report.receives_waited);
    assert_int_equal(w->refused, 0);
    shared += report.pool.account.saved_bytes > 0;
    rp_guard_report_fini(&report);
    finish(w);
  }
  print_message("%llu of %d programs shared memory\n", (unsigned long long)shared, SEEDS);
  assert_true(shared > SEEDS / 2);
}

/* Steps that do less, in another order, with recycled blocks, stages built again: nothing is lost. */
static void nothing_is_overwritten(void **state) {
  struct world *w = *state;
  uint64_t prevented[RP_POOL_CONFLICT_COUNT] = {0}, waits = 0, refused = 0, by_milestone = 0, by_tail = 0;
  for (uint64_t seed = 1; seed <= SEEDS; seed++) {
    struct rp_guard_report report;
    start(w, seed, false);
    allocate(w);
    bool recycles = below(2), scarce = !below(5);
    for (int step = 0; step < 12; step++) {
      bool whole = step < 4 || below(2);
      run_step(w, whole ? w->program.microbatches : 1 + below(w->program.microbatches),
               whole ? 0 : 1 + below(6), step > 3 && recycles ? 1 + below(30) : 0);
      if (step > 3 && !below(4)) shuffle(w, below(40));
      if (step == 5 && scarce) w->memory->capacity_bytes = w->memory->physical_bytes + MAPPED;
      if (step > 3 && !below(12)) let_escape(w, below(2) ? RP_POOL_FLAG_REGISTERED : RP_POOL_FLAG_ESCAPED);
      if (step > 5 && !below(24)) rp_guard_request_fallback(w->guard, RP_POOL_SWITCHED_OFF);
      if (!scarce && !below(12)) {
        release(w);
        allocate(w);
      }
    }
    assert_int_equal(rp_guard_report(w->guard, &report), RP_OK);
    if (rp_guard_violations(w->guard))
      fail_msg("seed %llu: %s", (unsigned long long)seed, rp_pool_conflict_name(report.conflicts[0].kind));
    for (int kind = 0; kind < RP_POOL_CONFLICT_COUNT; kind++)
      prevented[kind] += report.pool.prevented[kind];
    waits += report.receives_waited;
    refused += w->refused;
    by_milestone += w->by_milestone;
    by_tail += w->milestones ? w->by_tail : 0;
    rp_guard_report_fini(&report);
    finish(w);
  }
  print_message("%llu waits for milestones, %llu for tails where there were some\n",
                (unsigned long long)by_milestone, (unsigned long long)by_tail);
  assert_true(by_milestone > SEEDS && by_tail > SEEDS);
  print_message("prevented: %llu early, %llu unordered (%llu by waits), %llu foreign; %llu refused\n",
                (unsigned long long)prevented[RP_POOL_EARLY_REUSE],
                (unsigned long long)prevented[RP_POOL_UNORDERED_REUSE], (unsigned long long)waits,
                (unsigned long long)prevented[RP_POOL_FOREIGN_ACCESS], (unsigned long long)refused);
  assert_true(prevented[RP_POOL_EARLY_REUSE] && prevented[RP_POOL_UNORDERED_REUSE] && waits && refused &&
              prevented[RP_POOL_FOREIGN_ACCESS]);
}

/* One call of the backend fails, or two in a row, whichever they are: at worst a receive cannot go on. */
static void every_call_can_fail(void **state) {
  struct world *w = *state;
  uint64_t positions = 0, refused = 0;
  for (uint64_t seed = 1; seed <= 6; seed++)
    for (uint64_t run = 2, at = 1; run; at += 1 + at / 60) {
      struct rp_guard_report report;
      start(w, seed, false);
      w->memory->fail_at = w->memory->calls + at;
      w->memory->fail_count = seed % 2;
      allocate(w);
      for (int step = 0; step < 8; step++) {
        run_step(w, w->program.microbatches, step > 4 ? 4 : 0, step > 3 ? 20 : 0);
        if (step == 5) rp_guard_request_fallback(w->guard, RP_POOL_SWITCHED_OFF);
      }
      release(w);
      assert_int_equal(rp_guard_report(w->guard, &report), RP_OK);
      assert_int_equal(rp_guard_violations(w->guard), 0);
      rp_guard_report_fini(&report);
      positions += w->memory->failures != 0;
      refused += w->refused;
      if (!w->memory->failures) run = 0; /* behind the last call */
      finish(w);
    }
  print_message("%llu positions, %llu receives refused\n", (unsigned long long)positions,
                (unsigned long long)refused);
  assert_true(positions > 300);
}

static int setup(void **state) {
  struct world *w = calloc(1, sizeof *w);
  if (w) w->device = malloc(sizeof *w->device);
  *state = w;
  return w && w->device ? 0 : -1;
}

static int teardown(void **state) {
  free(((struct world *)*state)->device);
  free(*state);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(correct_programs_hear_nothing, setup, teardown),
      cmocka_unit_test_setup_teardown(nothing_is_overwritten, setup, teardown),
      cmocka_unit_test_setup_teardown(every_call_can_fail, setup, teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
