// Changing lowered schedules: copies, receives posted earlier, and whether the result still comes to its end.
#include "schedule_tools.h"

#include <stdlib.h>
#include <string.h>

static bool is_send(const struct rp_action *a) {
  return a->kind == RP_ACTION_SEND_F || a->kind == RP_ACTION_SEND_B;
}

static bool is_transfer(const struct rp_action *a) {
  return a->kind >= RP_ACTION_SEND_F && a->kind <= RP_ACTION_RECV_B;
}

static bool is_forward_transfer(const struct rp_action *a) {
  return a->kind == RP_ACTION_SEND_F || a->kind == RP_ACTION_RECV_F;
}

static bool is_compute(const struct rp_action *a) {
  return a->kind >= RP_ACTION_FORWARD && a->kind <= RP_ACTION_BACKWARD_WEIGHT;
}

// ---- does it end?

enum { SENT, RECEIVED, SIDES };

struct simulation {
  const struct rp_schedule *schedule;
  /** [direction][side][stage * microbatches + microbatch], stage being the receiving one: the end of a
   * transfer has been reached; ready to move data once both are. */
  bool *reached[2][SIDES];
  size_t *compute, *groups; /**< [ranks] place of the next computation and of the next group of transfers */
};

/** Entry of a transfer's own side, or of the other one. */
static bool *end_of(const struct simulation *m, const struct rp_action *a, bool other) {
  bool forward = is_forward_transfer(a), send = is_send(a);
  int32_t stage = send ? a->stage + (forward ? 1 : -1) : a->stage;
  int side = send != other ? SENT : RECEIVED;
  return &m->reached[!forward][side]
                    [(size_t)stage * (size_t)m->schedule->microbatches + (size_t)a->microbatch];
}

static size_t group_end(const struct rp_rank_schedule *list, size_t begin) {
  size_t end = begin + 1;
  uint32_t group = list->actions[begin].group;
  while (group != 0 && end < list->count && list->actions[end].group == group)
    end++;
  return end;
}

/** Whether both sides of all transfers of the group at `begin` are there. */
static bool group_done(const struct simulation *m, const struct rp_rank_schedule *list, size_t begin) {
  for (size_t i = begin, end = group_end(list, begin); i < end; i++)
    if (!*end_of(m, &list->actions[i], false) || !*end_of(m, &list->actions[i], true)) return false;
  return true;
}

/** Begin of the group in front of `limit` that has this transfer; SIZE_MAX if there is none. */
static size_t group_with(const struct rp_rank_schedule *list, size_t limit, enum rp_action_kind kind,
                         const struct rp_action *of) {
  for (size_t i = limit; i-- > 0;) {
    const struct rp_action *a = &list->actions[i];
    if (a->kind != kind || a->stage != of->stage || a->microbatch != of->microbatch) continue;
    while (a->group != 0 && i > 0 && list->actions[i - 1].group == a->group)
      i--;
    return i;
  }
  return SIZE_MAX;
}

/** Whether the computation at `at` has what it needs from other ranks. */
static bool fed(const struct simulation *m, const struct rp_rank_schedule *list, size_t at) {
  const struct rp_action *a = &list->actions[at];
  enum rp_action_kind kind = a->kind == RP_ACTION_FORWARD       ? RP_ACTION_RECV_F
                             : a->kind == RP_ACTION_WAIT_SEND_F ? RP_ACTION_SEND_F
                             : a->kind == RP_ACTION_WAIT_SEND_B ? RP_ACTION_SEND_B
                                                                : RP_ACTION_RECV_B;
  size_t group = group_with(list, at, kind, a);
  return group == SIZE_MAX || group_done(m, list, group);
}

/** One rank goes as far as it can; returns whether it moved. */
static bool advance(struct simulation *m, int32_t r) {
  const struct rp_rank_schedule *list = &m->schedule->rank[r];
  size_t *compute = &m->compute[r], *groups = &m->groups[r];
  bool moved = false;
  while (*compute < list->count && (is_transfer(&list->actions[*compute]) || fed(m, list, *compute))) {
    ++*compute;
    moved = true;
  }
  while (*groups < list->count) {
    if (!is_transfer(&list->actions[*groups])) {
      ++*groups;
      continue;
    }
    if (*groups > *compute) break;
    size_t end = group_end(list, *groups);
    for (size_t i = *groups; i < end; i++) {
      moved |= !*end_of(m, &list->actions[i], false);
      *end_of(m, &list->actions[i], false) = true;
    }
    if (!group_done(m, list, *groups)) break;
    *groups = end;
    moved = true;
  }
  return moved;
}

static bool simulation_init(struct simulation *m) {
  const struct rp_schedule *s = m->schedule;
  bool ok = true;
  for (int i = 0; i < 2 * SIDES; i++) {
    m->reached[i / SIDES][i % SIDES] = calloc((size_t)s->stages * (size_t)s->microbatches, sizeof(bool));
    ok &= m->reached[i / SIDES][i % SIDES] != NULL;
  }
  m->compute = calloc((size_t)s->ranks, sizeof *m->compute);
  m->groups = calloc((size_t)s->ranks, sizeof *m->groups);
  return ok && m->compute != NULL && m->groups != NULL;
}

bool rp_schedule_ends(const struct rp_schedule *schedule) {
  struct simulation m = {.schedule = schedule};
  bool ends = simulation_init(&m);
  for (bool moved = ends; moved;) {
    moved = false;
    for (int32_t r = 0; r < schedule->ranks; r++)
      moved |= advance(&m, r);
  }
  for (int32_t r = 0; ends && r < schedule->ranks; r++)
    ends = m.compute[r] == schedule->rank[r].count && m.groups[r] == schedule->rank[r].count;
  for (int i = 0; i < 2 * SIDES; i++)
    free(m.reached[i / SIDES][i % SIDES]);
  free(m.compute);
  free(m.groups);
  return ends;
}

// ---- copies

static bool copy_where(const struct rp_schedule *from, struct rp_schedule *to,
                       bool (*wanted)(const struct rp_action *)) {
  size_t stages = (size_t)from->stages, ranks = (size_t)from->ranks;
  struct rp_schedule copy = *from;
  copy.stage_rank = calloc(stages, sizeof *copy.stage_rank);
  copy.rank = calloc(ranks, sizeof *copy.rank);
  bool ok = copy.stage_rank != NULL && copy.rank != NULL;
  if (ok) memcpy(copy.stage_rank, from->stage_rank, stages * sizeof *copy.stage_rank);
  for (size_t r = 0; ok && r < ranks; r++) {
    const struct rp_rank_schedule *list = &from->rank[r];
    copy.rank[r].actions = calloc(list->count + 1, sizeof *list->actions);
    ok = copy.rank[r].actions != NULL;
    for (size_t i = 0; ok && i < list->count; i++)
      if (wanted(&list->actions[i])) copy.rank[r].actions[copy.rank[r].count++] = list->actions[i];
  }
  if (ok)
    *to = copy;
  else
    rp_schedule_fini(&copy);
  return ok;
}

static bool any(const struct rp_action *a) {
  (void)a;
  return true;
}

static bool forward_only(const struct rp_action *a) {
  return a->kind == RP_ACTION_FORWARD || a->kind == RP_ACTION_WAIT_SEND_F || is_forward_transfer(a);
}

bool rp_schedule_copy(const struct rp_schedule *from, struct rp_schedule *to) {
  return copy_where(from, to, any);
}

bool rp_schedule_forwards(const struct rp_schedule *from, struct rp_schedule *to) {
  return copy_where(from, to, forward_only);
}

// ---- receives earlier

bool rp_schedule_hoist(struct rp_rank_schedule *list, size_t index) {
  size_t to = index;
  while (to > 0 && !is_compute(&list->actions[to - 1]))
    to--;
  if (to == 0) return false;
  struct rp_action receive = list->actions[index];
  receive.group = 0;
  memmove(&list->actions[to], &list->actions[to - 1], (index - to + 1) * sizeof receive);
  list->actions[to - 1] = receive;
  return true;
}

bool rp_schedule_post_early(struct rp_schedule *schedule) {
  bool moved = false;
  for (int32_t r = 0; r < schedule->ranks; r++)
    for (size_t i = 0; i < schedule->rank[r].count; i++)
      if (schedule->rank[r].actions[i].kind == RP_ACTION_RECV_F)
        moved |= rp_schedule_hoist(&schedule->rank[r], i);
  return moved && rp_schedule_check(schedule, NULL) == RP_OK &&
         rp_schedule_check_one_channel(schedule, NULL) == RP_OK && rp_schedule_ends(schedule);
}
