/* The schedule as data: names of actions, rows under construction, memory, and errors. What schedules mean is
 * in schedule_generate.c, schedule_lower.c, schedule_check.c and schedule_parse.c. */
#include "pool/schedule_internal.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "pool/text.h"

static const struct {
  const char *token;
  bool microbatch, compute, transfer;
} kinds[] = {
    [RP_ACTION_FORWARD] = {"F", true, true, false},
    [RP_ACTION_BACKWARD] = {"B", true, true, false},
    [RP_ACTION_BACKWARD_INPUT] = {"I", true, true, false},
    [RP_ACTION_BACKWARD_WEIGHT] = {"W", true, true, false},
    [RP_ACTION_SEND_F] = {"SEND_F", true, false, true},
    [RP_ACTION_RECV_F] = {"RECV_F", true, false, true},
    [RP_ACTION_SEND_B] = {"SEND_B", true, false, true},
    [RP_ACTION_RECV_B] = {"RECV_B", true, false, true},
    [RP_ACTION_UNSHARD] = {"UNSHARD", false, false, false},
    [RP_ACTION_RESHARD] = {"RESHARD", false, false, false},
    [RP_ACTION_REDUCE_GRAD] = {"REDUCE_GRAD", false, false, false},
    [RP_ACTION_WAIT_SEND_F] = {"WAIT_SEND_F", true, false, false},
    [RP_ACTION_WAIT_SEND_B] = {"WAIT_SEND_B", true, false, false},
    [RP_ACTION_WAIT_REDUCE_GRAD] = {"WAIT_REDUCE_GRAD", false, false, false},
};

static bool known(enum rp_action_kind kind) {
  return (unsigned)kind < sizeof(kinds) / sizeof(kinds[0]) && kinds[kind].token;
}

const char *rp_action_kind_token(enum rp_action_kind kind) {
  return known(kind) ? kinds[kind].token : "?";
}
bool rp__kind_has_microbatch(enum rp_action_kind kind) {
  return known(kind) && kinds[kind].microbatch;
}
bool rp__kind_is_compute(enum rp_action_kind kind) {
  return known(kind) && kinds[kind].compute;
}
bool rp__kind_is_transfer(enum rp_action_kind kind) {
  return known(kind) && kinds[kind].transfer;
}

int rp_action_format(const struct rp_action *action, char *out, size_t out_size) {
  struct rp_text text;
  rp_text_init(&text, out, out_size);
  rp_text_number(&text, action->stage);
  rp_text_string(&text, rp_action_kind_token(action->kind));
  if (action->microbatch >= 0) rp_text_number(&text, action->microbatch);
  return (int)text.length;
}

static bool row_reserve(struct rp__row *row, size_t more) {
  if (row->failed) return false;
  if (row->capacity - row->count >= more) return true;
  size_t capacity = row->capacity ? row->capacity * 2 : 64;
  while (capacity - row->count < more)
    capacity *= 2;
  struct rp_action *actions = realloc(row->actions, capacity * sizeof(*actions));
  if (!actions) {
    row->failed = true;
    return false;
  }
  row->actions = actions;
  row->capacity = capacity;
  return true;
}

void rp__row_push(struct rp__row *row, enum rp_action_kind kind, int32_t stage, int32_t microbatch,
                  uint32_t group) {
  if (row_reserve(row, 1)) row->actions[row->count++] = (struct rp_action){kind, stage, microbatch, group};
}

void rp__row_append(struct rp__row *row, const struct rp_action *actions, size_t count) {
  if (!row_reserve(row, count)) return;
  memcpy(row->actions + row->count, actions, count * sizeof(*actions));
  row->count += count;
}

void rp__rows_free(struct rp__row *rows, int32_t ranks) {
  if (!rows) return;
  for (int32_t r = 0; r < ranks; r++)
    free(rows[r].actions);
  free(rows);
}

rp_status rp__schedule_take_rows(struct rp_schedule *schedule, struct rp__row *rows) {
  for (int32_t r = 0; r < schedule->ranks; r++) {
    if (rows[r].failed) {
      rp__rows_free(rows, schedule->ranks);
      return RP_ERROR_NO_MEMORY;
    }
  }
  for (int32_t r = 0; r < schedule->ranks; r++) {
    free(schedule->rank[r].actions);
    schedule->rank[r].actions = rows[r].actions;
    schedule->rank[r].count = rows[r].count;
  }
  free(rows);
  return RP_OK;
}

rp_status rp__schedule_init(struct rp_schedule *out, int32_t ranks, int32_t stages, int32_t microbatches) {
  struct rp_schedule schedule = {.ranks = ranks, .stages = stages, .microbatches = microbatches};
  schedule.stage_rank = malloc((size_t)stages * sizeof(int32_t));
  schedule.rank = calloc((size_t)ranks, sizeof(*schedule.rank));
  if (!schedule.stage_rank || !schedule.rank) {
    rp_schedule_fini(&schedule);
    return RP_ERROR_NO_MEMORY;
  }
  for (int32_t s = 0; s < stages; s++)
    schedule.stage_rank[s] = -1;
  *out = schedule;
  return RP_OK;
}

void rp_schedule_fini(struct rp_schedule *schedule) {
  for (int32_t r = 0; schedule->rank && r < schedule->ranks; r++)
    free(schedule->rank[r].actions);
  free(schedule->rank);
  free(schedule->stage_rank);
  memset(schedule, 0, sizeof(*schedule));
}

size_t rp__unit_length(const struct rp_rank_schedule *rank, size_t index) {
  size_t end = index + 1;
  uint32_t group = rank->actions[index].group;
  while (group && end < rank->count && rank->actions[end].group == group)
    end++;
  return end - index;
}

rp_status rp__schedule_fail(struct rp_schedule_error *error, rp_status status, size_t row, size_t column,
                            const struct rp_action *action, const char *format, ...) {
  if (!error) return status;
  error->row = row;
  error->column = column;
  error->token[0] = 0;
  if (action) rp_action_format(action, error->token, sizeof(error->token));
  struct rp_text text;
  va_list arguments;
  rp_text_init(&text, error->message, sizeof(error->message));
  va_start(arguments, format);
  rp_text_vformat(&text, format, arguments);
  va_end(arguments);
  return status;
}
