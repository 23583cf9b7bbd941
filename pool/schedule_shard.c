/* Where torch gathers (UNSHARD) and frees (RESHARD) the parameters of a stage: before each action the next
 * few stages of the rank's own order are gathered, and what is not among them is freed. */
#include "pool/schedule_internal.h"

#include <stdlib.h>
#include <string.h>

#define MAX_ACTIVE_STAGES 3

/* --- look-ahead --- */

/* For every unit of a row, the stages that it and the units after it compute on, nearest first, until there
 * are MAX_ACTIVE_STAGES; a unit counts whole. Built from the back with a move-to-front list, so the cost is
 * linear. */
struct lookahead {
  int32_t *stages; /* lists of all units, the last unit's first */
  size_t written, capacity;
  size_t *end; /* [units] end of each list in `stages`, last unit first */
  size_t units;
};

struct recency {
  int32_t *before, *after; /* [stages + 1]; index `head` is the head of the ring */
  size_t *unit;            /* [stages] nearest unit that computes on the stage */
  int32_t head;
};

static void move_to_front(struct recency *list, int32_t stage, size_t unit) {
  if (list->after[stage] >= 0) {
    list->after[list->before[stage]] = list->after[stage];
    list->before[list->after[stage]] = list->before[stage];
  }
  int32_t first = list->after[list->head];
  list->after[list->head] = list->before[first] = stage;
  list->before[stage] = list->head;
  list->after[stage] = first;
  list->unit[stage] = unit;
}

static bool append_stage(struct lookahead *out, int32_t stage) {
  if (out->written == out->capacity) {
    size_t capacity = out->capacity ? out->capacity * 2 : 256;
    int32_t *stages = realloc(out->stages, capacity * sizeof(*stages));
    if (!stages) return false;
    out->stages = stages;
    out->capacity = capacity;
  }
  out->stages[out->written++] = stage;
  return true;
}

static bool write_nearest(const struct recency *list, struct lookahead *out) {
  size_t count = 0, last_unit = SIZE_MAX;
  for (int32_t s = list->after[list->head]; s != list->head; s = list->after[s], count++) {
    if (count >= MAX_ACTIVE_STAGES && list->unit[s] != last_unit) break;
    if (!append_stage(out, s)) return false;
    last_unit = list->unit[s];
  }
  return true;
}

static bool fill_lookahead(const struct rp_rank_schedule *row, struct recency *list, struct lookahead *out) {
  for (size_t end = row->count, begin; end > 0; end = begin) {
    begin = end - 1;
    uint32_t group = row->actions[begin].group;
    while (group && begin > 0 && row->actions[begin - 1].group == group)
      begin--;
    for (size_t i = end; i-- > begin;)
      move_to_front(list, row->actions[i].stage, begin);
    if (!write_nearest(list, out)) return false;
    out->end[out->units++] = out->written;
  }
  return true;
}

static bool lookahead_init(const struct rp_schedule *schedule, const struct rp_rank_schedule *row,
                           struct lookahead *out) {
  size_t stages = (size_t)schedule->stages;
  struct recency list = {.head = schedule->stages};
  list.before = malloc((stages + 1) * sizeof(int32_t));
  list.after = malloc((stages + 1) * sizeof(int32_t));
  list.unit = malloc(stages * sizeof(size_t));
  out->end = malloc((row->count + 1) * sizeof(size_t));
  bool ok = list.before && list.after && list.unit && out->end;
  if (ok) {
    memset(list.after, 0xff, stages * sizeof(int32_t));
    list.before[list.head] = list.after[list.head] = list.head;
    ok = fill_lookahead(row, &list, out);
  }
  free(list.before);
  free(list.after);
  free(list.unit);
  return ok;
}

/* --- the pass --- */

struct shard {
  struct rp__row *to;
  int32_t *active; /* [stages] gathered stages, oldest first */
  size_t active_count;
  size_t *wanted; /* [stages] unit + 1 that last wanted the stage */
  bool *gathered; /* [stages] */
};

static void evict_unwanted(struct shard *p, size_t now) {
  size_t kept = 0;
  for (size_t i = 0; i < p->active_count; i++) {
    int32_t stage = p->active[i];
    if (p->wanted[stage] == now) {
      p->active[kept++] = stage;
      continue;
    }
    p->gathered[stage] = false;
    rp__row_push(p->to, RP_ACTION_RESHARD, stage, -1, 0);
  }
  p->active_count = kept;
}

static void before_unit(struct shard *p, const int32_t *next, size_t count, size_t now) {
  for (size_t i = 0; i < count; i++)
    p->wanted[next[i]] = now;
  evict_unwanted(p, now);
  for (size_t i = 0; i < count; i++) {
    if (p->gathered[next[i]]) continue;
    p->gathered[next[i]] = true;
    p->active[p->active_count++] = next[i];
    rp__row_push(p->to, RP_ACTION_UNSHARD, next[i], -1, 0);
  }
}

static void shard_row(struct shard *p, const struct rp_rank_schedule *row, const struct lookahead *ahead) {
  size_t now = 0;
  for (size_t i = 0, length; i < row->count && !p->to->failed; i += length) {
    size_t list = ahead->units - 1 - now, begin = list ? ahead->end[list - 1] : 0;
    before_unit(p, ahead->stages + begin, ahead->end[list] - begin, ++now);
    length = rp__unit_length(row, i);
    rp__row_append(p->to, row->actions + i, length);
  }
  evict_unwanted(p, now + 1);
}

void rp__add_unshard_reshard(const struct rp_schedule *schedule, int32_t rank, struct rp__row *to) {
  const struct rp_rank_schedule *row = &schedule->rank[rank];
  struct lookahead ahead = {0};
  struct shard p = {.to = to};
  p.active = malloc((size_t)schedule->stages * sizeof(*p.active));
  p.wanted = calloc((size_t)schedule->stages, sizeof(*p.wanted));
  p.gathered = calloc((size_t)schedule->stages, sizeof(*p.gathered));
  if (p.wanted && p.gathered && p.active && lookahead_init(schedule, row, &ahead))
    shard_row(&p, row, &ahead);
  else
    to->failed = true;
  free(p.wanted);
  free(p.gathered);
  free(p.active);
  free(ahead.stages);
  free(ahead.end);
}
