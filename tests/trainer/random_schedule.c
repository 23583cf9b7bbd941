// Random schedules that are correct by construction: everything a job does is put in one order in time, each
// transfer at a random place between what it needs and what needs it, and each rank gets its part of that.
// Then receives move ahead of computations, and neighbouring transfers join in groups.
#include "schedule_tools.h"

#include <stdlib.h>
#include <string.h>

/** Something that happens: a computation, or one side of a transfer. */
struct moment {
  uint64_t time, number; /**< both sides of a transfer have the same pair */
  int32_t rank;
  struct rp_action action;
};

struct draft {
  uint64_t random;
  struct rp_schedule *schedule;
  struct moment *moments;
  size_t count;
  uint64_t *computed[3]; /**< [stage * microbatches + microbatch] 1 + place: forward, input's and weights'
                            gradient */
  int32_t *in_flight, *limit; /**< [stages] forwards without a whole backward, and most of them */
  uint32_t split;             /**< 0: whole backwards, 1: input and weights apart, 2: either */
  uint32_t hurry;             /**< transfers: 0 right after the computation, 1 right before use, 2 anywhere */
  bool in_order;              /**< the first microbatch that is ready goes first */
};

enum { FORWARD, INPUT, WEIGHT };
#define TIME_SCALE (1u << 20) /* places for transfers between two computations */

uint64_t rp_random_next(uint64_t *state) {
  uint64_t x = *state += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

uint32_t rp_random_below(uint64_t *state, uint32_t limit) {
  return (uint32_t)((rp_random_next(state) >> 32) % limit);
}

static size_t pair(const struct draft *d, int32_t stage, int32_t microbatch) {
  return (size_t)stage * (size_t)d->schedule->microbatches + (size_t)microbatch;
}

// ---- stages on ranks

static void shuffle(uint64_t *random, int32_t *list, int32_t count) {
  for (int32_t i = count - 1; i > 0; i--) {
    int32_t j = (int32_t)rp_random_below(random, (uint32_t)i + 1), kept = list[i];
    list[i] = list[j];
    list[j] = kept;
  }
}

/** In a loop, as a V (there and back again), or anywhere. */
static void place_stages(struct draft *d) {
  struct rp_schedule *s = d->schedule;
  uint32_t shape = rp_random_below(&d->random, 3);
  for (int32_t i = 0; i < s->stages; i++) {
    int32_t place = i % s->ranks;
    s->stage_rank[i] = shape == 1 && (i / s->ranks) % 2 == 1 ? s->ranks - 1 - place : place;
  }
  if (shape == 2) shuffle(&d->random, s->stage_rank, s->stages);
}

// ---- computations

/** Whether stage `s` can compute `kind` of the microbatch now. */
static bool ready(const struct draft *d, int kind, int32_t s, int32_t m) {
  if (d->computed[kind][pair(d, s, m)] != 0) return false;
  switch (kind) {
  case FORWARD:
    return d->in_flight[s] < d->limit[s] && (s == 0 || d->computed[FORWARD][pair(d, s - 1, m)] != 0);
  case INPUT:
    return d->computed[FORWARD][pair(d, s, m)] != 0 &&
           (s == d->schedule->stages - 1 || d->computed[INPUT][pair(d, s + 1, m)] != 0);
  default:
    return d->computed[INPUT][pair(d, s, m)] != 0;
  }
}

static void compute(struct draft *d, int kind, int32_t s, int32_t m) {
  static const enum rp_action_kind kinds[] = {RP_ACTION_FORWARD, RP_ACTION_BACKWARD_INPUT,
                                              RP_ACTION_BACKWARD_WEIGHT};
  enum rp_action_kind action = kinds[kind];
  bool whole = kind == INPUT && (d->split == 0 || (d->split == 2 && rp_random_below(&d->random, 2) == 0));
  if (whole) action = RP_ACTION_BACKWARD;
  uint64_t place = d->count;
  d->moments[d->count++] = (struct moment){.time = place * TIME_SCALE,
                                           .rank = d->schedule->stage_rank[s],
                                           .action = {.kind = action, .stage = s, .microbatch = m}};
  d->computed[kind][pair(d, s, m)] = place + 1;
  if (whole) d->computed[WEIGHT][pair(d, s, m)] = place + 1;
  if (kind == FORWARD) d->in_flight[s]++;
  if (whole || kind == WEIGHT) d->in_flight[s]--;
}

/** Picks one of what can be computed and does it; false when all is done. */
static bool compute_one(struct draft *d) {
  const struct rp_schedule *s = d->schedule;
  uint32_t found = 0;
  int kind = 0;
  int32_t stage = 0, microbatch = 0;
  for (int k = FORWARD; k <= WEIGHT; k++)
    for (int32_t i = 0; i < s->stages; i++)
      for (int32_t m = 0; m < s->microbatches; m++) {
        if (!ready(d, k, i, m)) continue;
        if (rp_random_below(&d->random, ++found) == 0) {
          kind = k;
          stage = i;
          microbatch = m;
        }
        if (d->in_order) break;
      }
  if (found > 0) compute(d, kind, stage, microbatch);
  return found > 0;
}

// ---- transfers

/** A transfer between two stages, at one moment between two computations. */
static void transfer(struct draft *d, bool forward, int32_t to, int32_t m) {
  const struct rp_schedule *s = d->schedule;
  int32_t from = forward ? to - 1 : to + 1;
  if (s->stage_rank[from] == s->stage_rank[to]) return;
  int kind = forward ? FORWARD : INPUT;
  uint64_t earliest = d->computed[kind][pair(d, from, m)] - 1, latest = d->computed[kind][pair(d, to, m)] - 2;
  uint64_t place = earliest;
  if (d->hurry == 1) place = latest;
  if (d->hurry == 2) place += rp_random_below(&d->random, (uint32_t)(latest - earliest) + 1);
  struct moment moment = {.time = place * TIME_SCALE + 1 + rp_random_below(&d->random, TIME_SCALE - 1),
                          .number = d->count};
  moment.rank = s->stage_rank[from];
  moment.action = (struct rp_action){forward ? RP_ACTION_SEND_F : RP_ACTION_SEND_B, from, m, 0};
  d->moments[d->count++] = moment;
  moment.rank = s->stage_rank[to];
  moment.action = (struct rp_action){forward ? RP_ACTION_RECV_F : RP_ACTION_RECV_B, to, m, 0};
  d->moments[d->count++] = moment;
}

static void transfers(struct draft *d) {
  const struct rp_schedule *s = d->schedule;
  for (int32_t m = 0; m < s->microbatches; m++)
    for (int32_t i = 0; i < s->stages; i++) {
      if (i > 0) transfer(d, true, i, m);
      if (i + 1 < s->stages) transfer(d, false, i, m);
    }
}

static int compare_moments(const void *a, const void *b) {
  const struct moment *x = a, *y = b;
  if (x->time != y->time) return x->time < y->time ? -1 : 1;
  return x->number < y->number ? -1 : x->number > y->number;
}

/** Gives each rank its moments. */
static bool deal(struct draft *d) {
  struct rp_schedule *s = d->schedule;
  qsort(d->moments, d->count, sizeof *d->moments, compare_moments);
  for (int32_t r = 0; r < s->ranks; r++) {
    s->rank[r].actions = calloc(d->count + 1, sizeof *s->rank[r].actions);
    if (s->rank[r].actions == NULL) return false;
  }
  for (size_t i = 0; i < d->count; i++) {
    struct rp_rank_schedule *list = &s->rank[d->moments[i].rank];
    list->actions[list->count++] = d->moments[i].action;
  }
  return true;
}

// ---- posting ahead, and groups

static bool is_transfer(const struct rp_action *a) {
  return a->kind >= RP_ACTION_SEND_F && a->kind <= RP_ACTION_RECV_B;
}

/** Receives change places with the computations in front of them; never with each other or with sends. */
static void post_ahead(struct draft *d) {
  uint32_t most = rp_random_below(&d->random, 4);
  for (int32_t r = 0; r < d->schedule->ranks; r++) {
    struct rp_rank_schedule *list = &d->schedule->rank[r];
    for (size_t i = 1; i < list->count; i++) {
      if (list->actions[i].kind != RP_ACTION_RECV_F && list->actions[i].kind != RP_ACTION_RECV_B) continue;
      uint32_t places = rp_random_below(&d->random, most + 1);
      for (size_t at = i; places > 0 && at > 0 && !is_transfer(&list->actions[at - 1]); places--, at--) {
        struct rp_action receive = list->actions[at];
        list->actions[at] = list->actions[at - 1];
        list->actions[at - 1] = receive;
      }
    }
  }
}

/** Joins neighbouring transfers, and takes apart again what would not end. */
static void join_groups(struct draft *d) {
  uint32_t group = 0, one_in = 1 + rp_random_below(&d->random, 4);
  for (int32_t r = 0; r < d->schedule->ranks; r++) {
    struct rp_rank_schedule *list = &d->schedule->rank[r];
    for (size_t i = 1; i < list->count; i++) {
      struct rp_action *a = &list->actions[i], *before = a - 1;
      if (!is_transfer(a) || !is_transfer(before) || rp_random_below(&d->random, one_in) != 0) continue;
      uint32_t former = before->group;
      if (former == 0) before->group = ++group;
      a->group = before->group;
      if (rp_schedule_ends(d->schedule)) continue;
      before->group = former;
      a->group = 0;
    }
  }
}

// ---- all of it

static bool draft_init(struct draft *d, int32_t ranks, int32_t chunks, int32_t microbatches) {
  struct rp_schedule *s = d->schedule;
  if (ranks == 0) ranks = 2 + (int32_t)rp_random_below(&d->random, 3);
  if (chunks == 0) chunks = 1 + (int32_t)rp_random_below(&d->random, 3);
  if (microbatches == 0) microbatches = 1 + (int32_t)rp_random_below(&d->random, 12);
  *s = (struct rp_schedule){ranks, ranks * chunks, microbatches, true, NULL, NULL};
  size_t pairs = (size_t)s->stages * (size_t)microbatches;
  s->stage_rank = calloc((size_t)s->stages, sizeof *s->stage_rank);
  s->rank = calloc((size_t)ranks, sizeof *s->rank);
  d->moments = calloc(7 * pairs, sizeof *d->moments); // 3 computations, both sides of 2 transfers
  d->in_flight = calloc((size_t)s->stages, sizeof *d->in_flight);
  d->limit = calloc((size_t)s->stages, sizeof *d->limit);
  bool ok = s->stage_rank && s->rank && d->moments && d->in_flight && d->limit;
  for (int k = FORWARD; k <= WEIGHT; k++) {
    d->computed[k] = calloc(pairs, sizeof *d->computed[k]);
    ok &= d->computed[k] != NULL;
  }
  return ok;
}

static void draft_fini(struct draft *d) {
  for (int k = FORWARD; k <= WEIGHT; k++)
    free(d->computed[k]);
  free(d->moments);
  free(d->in_flight);
  free(d->limit);
}

bool rp_schedule_random(uint64_t seed, int32_t ranks, int32_t chunks, int32_t microbatches,
                        struct rp_schedule *out) {
  struct rp_schedule schedule;
  struct draft d = {.random = seed, .schedule = &schedule};
  bool ok = draft_init(&d, ranks, chunks, microbatches);
  if (ok) {
    place_stages(&d);
    d.split = rp_random_below(&d.random, 3);
    d.hurry = rp_random_below(&d.random, 3);
    d.in_order = rp_random_below(&d.random, 4) != 0;
    for (int32_t i = 0; i < schedule.stages; i++)
      d.limit[i] = 1 + (int32_t)rp_random_below(&d.random, (uint32_t)schedule.microbatches);
    while (compute_one(&d))
      continue;
    transfers(&d);
    ok = deal(&d);
  }
  if (ok) {
    post_ahead(&d);
    join_groups(&d);
    *out = schedule;
  } else {
    rp_schedule_fini(&schedule);
  }
  draft_fini(&d);
  return ok;
}
