/* Steps: which receives belong to one run of the schedule, and when a run is complete.
 *
 * Preallocated buffers tell steps by being received into again. Just-in-time buffers have no lasting address;
 * there the step is the period of the receives, told apart by channel family and by the device operations
 * between them. */
#include "pool/period.h"
#include "pool/tracker_internal.h"

#include <stdlib.h>
#include <string.h>

/** Receives to see before a period is believed while the process runs. */
#define ONLINE_RECEIVES 512u

struct rp_step *rp__step_get(const struct rp_tracker *tracker, uint64_t number) {
  for (size_t i = 0; i < RP_OPEN_STEPS; i++)
    if (tracker->steps[i].in_use && tracker->steps[i].number == number)
      return (struct rp_step *)&tracker->steps[i];
  return NULL;
}

static void clear_step(struct rp_step *step) {
  step->in_use = false;
  step->list.count = 0; /* capacity is kept for the next step */
  step->open = 0;
}

/* Takes lifetimes off the front of a list; buffers whose open lifetime is behind them follow. */
static void drop_front(struct rp_tracker *tracker, struct rp_step *step, size_t count) {
  struct rp_life_list *list = &step->list;
  memmove(list->lives, list->lives + count, (list->count - count) * sizeof *list->lives);
  list->count -= count;
  for (size_t i = 0; i < tracker->buffer_count; i++) {
    struct rp_buffer *buffer = &tracker->buffers[i];
    if (!buffer->in_use || !buffer->has_open || buffer->open_step != step->number) continue;
    if (buffer->open_index < count) {
      buffer->has_open = false;
      step->open--;
    } else {
      buffer->open_index -= count;
    }
  }
}

/* A buffer that steps before had used is no one-off, even if the last steps did without it: the number of
 * microbatches may change. */
static void close_regular(const struct rp_tracker *tracker, struct rp_life *life) {
  const struct rp_range *range = rp_address_map_find(&tracker->ranges, life->public.address);
  const struct rp_buffer *buffer = range ? &tracker->buffers[range->value] : NULL;
  if (life->closed || !buffer || buffer->serial != life->buffer_serial || buffer->receives < 2) return;
  bool accessed = life->public.accesses != 0, answered = !accessed && life->answered_seq;
  life->closed = true;
  life->public.release_evidence = answered ? RP_RELEASE_ANSWERING_SEND : RP_RELEASE_STEP_END;
  life->public.released_ns = accessed   ? life->public.last_access_ns
                             : answered ? life->answered_ns
                                        : life->public.posted_ns;
  life->public.released_seq = accessed   ? life->public.last_access_seq
                              : answered ? life->answered_seq
                                         : life->public.posted_seq;
}

/* Lifetimes of a step that count: one of a buffer that later steps never used again (metadata, a probe) does
 * not. */
static size_t remove_one_offs(struct rp_tracker *tracker, struct rp_step *step) {
  size_t kept = 0;
  for (size_t i = 0; i < step->list.count; i++) {
    close_regular(tracker, &step->list.lives[i]);
    if (step->list.lives[i].closed)
      step->list.lives[kept++] = step->list.lives[i];
    else
      tracker->events_ignored++;
  }
  for (size_t i = 0; i < tracker->buffer_count; i++)
    if (tracker->buffers[i].open_step == step->number) tracker->buffers[i].has_open = false;
  return kept;
}

static void complete_step(struct rp_tracker *tracker, struct rp_step *step) {
  size_t count = remove_one_offs(tracker, step);
  if (rp__channels_take_step(tracker, step->number, step->list.lives, count, false) == RP_OK)
    tracker->steps_complete++;
  else
    tracker->lifetimes_dropped += count;
  clear_step(step);
}

static struct rp_step *oldest_step(struct rp_tracker *tracker) {
  struct rp_step *oldest = NULL;
  for (size_t i = 0; i < RP_OPEN_STEPS; i++) {
    struct rp_step *step = &tracker->steps[i];
    if (step->in_use && (!oldest || step->number < oldest->number)) oldest = step;
  }
  return oldest;
}

static rp_status append(struct rp_tracker *tracker, struct rp_step *step, const struct rp_life *life) {
  struct rp_life_list *list = &step->list;
  if (list->count >= tracker->options.max_history) {
    size_t half = list->count / 2;
    tracker->lifetimes_dropped += half;
    tracker->period = 0;
    tracker->phase_lost = true;
    drop_front(tracker, step, half);
  }
  if (list->count == list->capacity) {
    size_t capacity = list->capacity ? 2 * list->capacity : 32;
    struct rp_life *grown = realloc(list->lives, capacity * sizeof *grown);
    if (!grown) return RP_ERROR_NO_MEMORY;
    list->lives = grown;
    list->capacity = capacity;
  }
  list->lives[list->count++] = *life;
  step->open++;
  return RP_OK;
}

rp_status rp__step_add(struct rp_tracker *tracker, uint64_t number, const struct rp_life *life,
                       size_t *index) {
  struct rp_step *step = rp__step_get(tracker, number);
  if (!step) {
    for (size_t i = 0; i < RP_OPEN_STEPS && !step; i++)
      if (!tracker->steps[i].in_use) step = &tracker->steps[i];
    if (!step) {
      step = oldest_step(tracker);
      complete_step(tracker, step);
    }
    step->in_use = true;
    step->number = number;
    if (number > tracker->current_step) tracker->current_step = number;
  }
  rp_status status = append(tracker, step, life);
  if (status == RP_OK) *index = step->list.count - 1;
  return status;
}

/* ---- just in time ---- */

static uint64_t family_symbol(const struct rp_life *life) {
  return rp__mix(rp__mix(rp__mix(1, life->comm), (uint64_t)(int64_t)life->peer), life->bytes);
}

uint64_t rp__life_symbol(const struct rp_life *life, const struct rp_life *before) {
  uint64_t gap = before ? life->operations - before->operations : 0;
  return rp__mix(family_symbol(life), gap + 1);
}

static size_t find_period(const struct rp_life_list *list, bool with_gaps,
                          const struct rp_period_rule *rule) {
  uint64_t *symbols = malloc((list->count + 1) * sizeof *symbols);
  if (!symbols) return 0;
  for (size_t i = 0; i < list->count; i++)
    symbols[i] = with_gaps ? rp__life_symbol(&list->lives[i], i ? &list->lives[i - 1] : NULL)
                           : family_symbol(&list->lives[i]);
  size_t period = rp_period_find(symbols, list->count, rule);
  free(symbols);
  return period;
}

size_t rp__jit_period(const struct rp_life_list *list, bool final) {
  struct rp_period_rule strict = {.repeats = final ? 2 : 3, .reject_constant = true};
  size_t period = find_period(list, true, &strict);
  if (period || !final) return period;
  struct rp_period_rule warm_up = {.repeats = 3, .skip_first = true, .reject_constant = true};
  period = find_period(list, true, &warm_up);
  return period ? period : find_period(list, false, &strict);
}

static void remember_template(struct rp_tracker *tracker, const struct rp_life_list *list) {
  free(tracker->template_symbols);
  tracker->template_symbols = malloc(tracker->period * sizeof *tracker->template_symbols);
  /* The second step is the better example: the first may have warmed something up. */
  const struct rp_life *lives = list->lives + (list->count >= 2 * tracker->period ? tracker->period : 0);
  for (size_t i = 1; tracker->template_symbols && i < tracker->period; i++)
    tracker->template_symbols[i] = rp__life_symbol(&lives[i], &lives[i - 1]);
}

static bool front_matches(const struct rp_tracker *tracker, const struct rp_life_list *list) {
  for (size_t i = 1; i < tracker->period && tracker->template_symbols; i++)
    if (rp__life_symbol(&list->lives[i], &list->lives[i - 1]) != tracker->template_symbols[i]) return false;
  return true;
}

static bool front_is_closed(const struct rp_life_list *list, size_t count) {
  for (size_t i = 0; i < count; i++)
    if (!list->lives[i].closed) return false;
  return true;
}

/* The pattern broke: what was learned is void, and where the next step begins is not known. */
static void unlearn(struct rp_tracker *tracker) {
  tracker->period = 0;
  tracker->phase_lost = true;
  tracker->next_period_attempt = 0;
  tracker->steps_complete = 0;
  rp__channels_fini(tracker);
}

/* Begins a step where the process did most between two receives: that is where the optimizer runs. */
static void find_phase(struct rp_tracker *tracker, struct rp_step *step) {
  const struct rp_life *lives = step->list.lives;
  size_t begin = 1;
  for (size_t i = 2; i <= tracker->period && i < step->list.count; i++)
    if (lives[i].operations - lives[i - 1].operations > lives[begin].operations - lives[begin - 1].operations)
      begin = i;
  tracker->phase_lost = false;
  drop_front(tracker, step, begin);
}

/* Hands over the steps at the front of the history that are complete. */
static void take_periods(struct rp_tracker *tracker, struct rp_step *step, bool final) {
  while (tracker->period && step->list.count >= tracker->period &&
         front_is_closed(&step->list, tracker->period)) {
    size_t period = tracker->period;
    if (!final && tracker->steps_complete && !front_matches(tracker, &step->list)) {
      unlearn(tracker);
      return;
    }
    if (rp__channels_take_step(tracker, tracker->steps_complete, step->list.lives, period, true) == RP_OK)
      tracker->steps_complete++;
    else
      tracker->lifetimes_dropped += period;
    drop_front(tracker, step, period);
  }
}

static void advance_just_in_time(struct rp_tracker *tracker, bool final) {
  struct rp_step *step = rp__step_get(tracker, tracker->current_step);
  if (!step) return;
  /* The steady part of a long step repeats too: online, look at more than one step's worth before believing
   * it. */
  size_t enough =
      tracker->options.max_history / 2 < ONLINE_RECEIVES ? tracker->options.max_history / 2 : ONLINE_RECEIVES;
  bool look = step->list.count >= enough && step->list.count >= tracker->next_period_attempt;
  if (!tracker->period && (final || look)) {
    tracker->period = rp__jit_period(&step->list, final);
    tracker->next_period_attempt = step->list.count + step->list.count / 4 + 4;
    if (tracker->period && tracker->phase_lost) find_phase(tracker, step);
    if (tracker->period) remember_template(tracker, &step->list);
  }
  take_periods(tracker, step, final);
}

/* ---- both ---- */

void rp__steps_advance(struct rp_tracker *tracker) {
  if (!tracker->any_received_again) {
    if (tracker->any_freed) advance_just_in_time(tracker, false);
    return;
  }
  struct rp_step *oldest;
  while ((oldest = oldest_step(tracker)) && oldest->number < tracker->current_step &&
         (oldest->open == 0 || oldest->number + 3 <= tracker->current_step))
    complete_step(tracker, oldest);
}

/* The last step counts if it has as many receives as the one before it. */
static bool last_step_is_whole(const struct rp_tracker *tracker, const struct rp_step *step) {
  size_t expected = 0;
  for (size_t i = 0; i < tracker->channel_count; i++)
    if (tracker->channels[i].seen_in_last_step) expected += tracker->channels[i].public.buffers;
  return expected == 0 || step->list.count >= expected;
}

void rp__steps_finish(struct rp_tracker *tracker) {
  if (!tracker->any_received_again && tracker->any_freed) {
    advance_just_in_time(tracker, true);
    return;
  }
  struct rp_step *oldest;
  while ((oldest = oldest_step(tracker))) {
    if (oldest->number == tracker->current_step && !last_step_is_whole(tracker, oldest))
      clear_step(oldest);
    else
      complete_step(tracker, oldest);
  }
}

/* False if something was received over other communicators as well, or nothing at all over this one. */
static bool end_lives(struct rp_tracker *tracker, uint64_t comm) {
  bool any = false, all = true;
  for (size_t i = 0; i < RP_OPEN_STEPS; i++)
    for (size_t k = 0; tracker->steps[i].in_use && k < tracker->steps[i].list.count; k++) {
      struct rp_life *life = &tracker->steps[i].list.lives[k];
      life->ended |= life->comm == comm;
      any |= life->comm == comm;
      all &= life->ended;
    }
  return any && all;
}

void rp__steps_comm_end(struct rp_tracker *tracker, uint64_t comm) {
  if (!tracker->any_received_again || !end_lives(tracker, comm)) return;
  rp__steps_finish(tracker);
  rp__channels_end(tracker);
  tracker->current_step++;
}

void rp__steps_restart(struct rp_tracker *tracker) {
  for (size_t i = 0; i < RP_OPEN_STEPS; i++)
    clear_step(&tracker->steps[i]);
  free(tracker->template_symbols);
  tracker->template_symbols = NULL;
  tracker->current_step = tracker->steps_complete = 0;
  tracker->period = tracker->next_period_attempt = 0;
  tracker->phase_lost = false;
}

void rp__steps_fini(struct rp_tracker *tracker) {
  for (size_t i = 0; i < RP_OPEN_STEPS; i++)
    free(tracker->steps[i].list.lives);
  free(tracker->template_symbols);
}
