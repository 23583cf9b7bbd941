/* Lifetimes of what a schedule receives, in one walk over every rank's list. */
#include "pool/lifetime.h"

#include <stdlib.h>
#include <string.h>

#include "pool/schedule_internal.h"

struct walk {
  const struct rp_schedule *schedule;
  struct rp_lifetime_options options;
  struct rp_received *items;
  size_t count;
  uint32_t *item_of; /* [2 * stages * microbatches] item + 1; activation, gradient */
};

static size_t slot_of(const struct walk *w, const struct rp_action *a, bool gradient) {
  return 2 * rp__pair(w->schedule, a->stage, a->microbatch) + gradient;
}

static void open_item(struct walk *w, const struct rp_action *a, bool gradient, uint64_t position) {
  if (gradient && w->options.forward_only) return;
  w->items[w->count] =
      (struct rp_received){.interval = {position, UINT64_MAX},
                           .stage = a->stage,
                           .microbatch = a->microbatch,
                           .direction = gradient ? RP_DIRECTION_GRADIENT : RP_DIRECTION_ACTIVATION};
  w->item_of[slot_of(w, a, gradient)] = (uint32_t)++w->count;
}

static void first_use(struct walk *w, const struct rp_action *a, bool gradient, uint64_t position) {
  uint32_t item = w->item_of[slot_of(w, a, gradient)];
  if (item && w->options.post_at_use) w->items[item - 1].interval.begin = position;
}

static void close_item(struct walk *w, const struct rp_action *a, bool gradient, uint64_t position) {
  uint32_t item = w->item_of[slot_of(w, a, gradient)];
  if (item) w->items[item - 1].interval.end = position;
}

static void read_item(struct walk *w, const struct rp_action *a, bool gradient) {
  uint32_t item = w->item_of[slot_of(w, a, gradient)];
  if (item) w->items[item - 1].readers++;
}

/* Every part of a backward reads the gradient, and what the forward has read. */
static void read_backward(struct walk *w, const struct rp_action *a) {
  if (w->options.forward_only) return;
  read_item(w, a, false);
  read_item(w, a, true);
}

static void visit(struct walk *w, const struct rp_action *a, uint64_t position) {
  bool backward = !w->options.forward_only;
  switch (a->kind) {
  case RP_ACTION_RECV_F:
    open_item(w, a, false, position);
    break;
  case RP_ACTION_RECV_B:
    open_item(w, a, true, position);
    break;
  case RP_ACTION_FORWARD:
    first_use(w, a, false, position);
    read_item(w, a, false);
    if (!backward) close_item(w, a, false, position);
    break;
  case RP_ACTION_BACKWARD_INPUT:
    first_use(w, a, true, position);
    read_backward(w, a);
    break;
  case RP_ACTION_BACKWARD:
    first_use(w, a, true, position);
    /* fall through */
  case RP_ACTION_BACKWARD_WEIGHT:
    if (!backward) break;
    read_backward(w, a);
    close_item(w, a, false, position);
    close_item(w, a, true, position);
    break;
  default:
    break;
  }
}

static void walk_rank(struct walk *w, int32_t rank) {
  const struct rp_rank_schedule *row = &w->schedule->rank[rank];
  size_t first = w->count;
  uint64_t position = 0;
  for (size_t i = 0, length; i < row->count; i += length, position++) {
    length = rp__unit_length(row, i);
    for (size_t j = i; j < i + length; j++)
      visit(w, &row->actions[j], position);
  }
  for (size_t i = first; i < w->count; i++) /* never read to the end: live until the step is over */
    if (w->items[i].interval.end == UINT64_MAX) w->items[i].interval.end = position;
}

/* Moves every post to that of the receive `receive_ahead` places before it in its channel: `lag` follows each
 * channel's list (`after`) at that distance. */
static rp_status move_ahead(struct walk *w) {
  size_t channels = 2 * (size_t)w->schedule->stages, count = w->count;
  uint32_t *after = malloc((count + 1) * sizeof(*after)), *lag = malloc(channels * sizeof(*lag));
  uint32_t *seen = calloc(channels, sizeof(*seen)), *last = malloc(channels * sizeof(*last));
  uint64_t *posts = malloc((count + 1) * sizeof(*posts));
  bool ok = after && lag && seen && last && posts;
  for (size_t i = 0; ok && i < count; i++) {
    struct rp_received *item = &w->items[i];
    size_t c = 2 * (size_t)item->stage + (item->direction == RP_DIRECTION_GRADIENT);
    posts[i] = item->interval.begin;
    if (seen[c])
      after[last[c]] = (uint32_t)i;
    else
      lag[c] = (uint32_t)i;
    last[c] = (uint32_t)i;
    if (seen[c]++ > w->options.receive_ahead) lag[c] = after[lag[c]];
    item->interval.begin = posts[lag[c]];
  }
  free(after);
  free(lag);
  free(seen);
  free(last);
  free(posts);
  return ok ? RP_OK : RP_ERROR_NO_MEMORY;
}

struct post {
  uint64_t begin;
  uint32_t item;
};

static int compare_posts(const void *left, const void *right) {
  const struct post *a = left, *b = right;
  if (a->begin != b->begin) return a->begin < b->begin ? -1 : 1;
  return (a->item > b->item) - (a->item < b->item);
}

/* Options that move posts can change their order on a rank, and slots are handed out in the order of posting.
 * What is posted together stays in the order of the schedule. */
static rp_status sort_by_post(struct rp_received_set *set) {
  size_t count = set->rank_begin[set->ranks];
  struct post *posts = malloc((count + 1) * sizeof(*posts));
  struct rp_received *sorted = malloc((count + 1) * sizeof(*sorted));
  if (!posts || !sorted) {
    free(posts);
    free(sorted);
    return RP_ERROR_NO_MEMORY;
  }
  for (size_t i = 0; i < count; i++)
    posts[i] = (struct post){set->items[i].interval.begin, (uint32_t)i};
  for (int32_t r = 0; r < set->ranks; r++)
    qsort(posts + set->rank_begin[r], set->rank_begin[r + 1] - set->rank_begin[r], sizeof(*posts),
          compare_posts);
  for (size_t i = 0; i < count; i++)
    sorted[i] = set->items[posts[i].item];
  free(posts);
  free(set->items);
  set->items = sorted;
  return RP_OK;
}

static size_t count_receives(const struct rp_schedule *s, bool *trains) {
  size_t receives = 0;
  for (int32_t r = 0; r < s->ranks; r++)
    for (size_t i = 0; i < s->rank[r].count; i++) {
      enum rp_action_kind kind = s->rank[r].actions[i].kind;
      receives += kind == RP_ACTION_RECV_F || kind == RP_ACTION_RECV_B;
      *trains |= kind == RP_ACTION_BACKWARD || kind == RP_ACTION_BACKWARD_INPUT;
    }
  return receives;
}

rp_status rp_schedule_lifetimes(const struct rp_schedule *schedule, const struct rp_lifetime_options *options,
                                struct rp_received_set *out) {
  if (!schedule->lowered) return RP_ERROR_STATE;
  struct walk w = {.schedule = schedule};
  if (options) w.options = *options;
  bool trains = false;
  size_t receives = count_receives(schedule, &trains);
  w.options.forward_only |= !trains;
  struct rp_received_set set = {.ranks = schedule->ranks};
  w.items = set.items = malloc((receives + 1) * sizeof(*set.items));
  set.rank_begin = calloc((size_t)schedule->ranks + 1, sizeof(*set.rank_begin));
  w.item_of = calloc(2 * (size_t)schedule->stages * (size_t)schedule->microbatches, sizeof(*w.item_of));
  rp_status status = set.items && set.rank_begin && w.item_of ? RP_OK : RP_ERROR_NO_MEMORY;
  for (int32_t r = 0; !status && r < schedule->ranks; r++) {
    walk_rank(&w, r);
    set.rank_begin[r + 1] = w.count;
  }
  if (!status && w.options.receive_ahead) status = move_ahead(&w);
  if (!status && (w.options.receive_ahead || w.options.post_at_use)) status = sort_by_post(&set);
  free(w.item_of);
  if (status)
    rp_received_set_fini(&set);
  else
    *out = set;
  return status;
}

void rp_received_set_fini(struct rp_received_set *set) {
  free(set->items);
  free(set->rank_begin);
  memset(set, 0, sizeof(*set));
}
