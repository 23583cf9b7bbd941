/* The lists of receives of a plan that was read, checked entry by entry. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/plan_file.h"

/* Columns of one rank; those that came with version 1.1 or 1.2 may be missing. */
struct columns {
  const json_t *stage, *direction, *microbatch, *begin, *end, *bytes, *source, *accesses, *readers;
};

/* False: the column is no array of `count` entries. */
static bool take_column(const json_t *receives, const char *name, bool required, size_t count,
                        const json_t **out) {
  *out = json_object_get(receives, name);
  if (!*out && !required) return true;
  return json_is_array(*out) && json_array_size(*out) == count;
}

static bool take_columns(const json_t *receives, size_t count, struct columns *c) {
  return take_column(receives, "stage", true, count, &c->stage) &&
         take_column(receives, "direction", true, count, &c->direction) &&
         take_column(receives, "microbatch", true, count, &c->microbatch) &&
         take_column(receives, "begin", true, count, &c->begin) &&
         take_column(receives, "end", true, count, &c->end) &&
         take_column(receives, "bytes", false, count, &c->bytes) &&
         take_column(receives, "source", false, count, &c->source) &&
         take_column(receives, "accesses", false, count, &c->accesses) &&
         take_column(receives, "readers", false, count, &c->readers);
}

/* `out` keeps its value where there is no such column. */
static bool take_number(const json_t *column, size_t index, uint64_t most, uint64_t *out) {
  if (!column) return true;
  const json_t *value = json_array_get(column, index);
  if (!json_is_integer(value) || json_integer_value(value) < 0) return false;
  *out = (uint64_t)json_integer_value(value);
  return *out <= most;
}

static bool take_direction(const json_t *column, size_t index, enum rp_direction *out) {
  const char *word = json_string_value(json_array_get(column, index));
  for (int d = RP_DIRECTION_UNKNOWN; word && d <= RP_DIRECTION_GRADIENT; d++) {
    if (strcmp(word, rp_direction_name((enum rp_direction)d)) != 0) continue;
    *out = (enum rp_direction)d;
    return true;
  }
  return false;
}

static bool take_receive(const struct columns *c, size_t i, struct rp_planned_receive *out) {
  uint64_t stage = 0, microbatch = 0, source = UINT32_MAX, accesses = 0, readers = 0;
  *out = (struct rp_planned_receive){0};
  if (!take_number(c->stage, i, RP_PLAN_MOST_STAGE, &stage) ||
      !take_direction(c->direction, i, &out->direction) ||
      !take_number(c->microbatch, i, RP_PLAN_MOST_MICROBATCH, &microbatch) ||
      !take_number(c->begin, i, INT64_MAX, &out->begin) || !take_number(c->end, i, INT64_MAX, &out->end) ||
      !take_number(c->bytes, i, INT64_MAX, &out->bytes) ||
      !take_number(c->source, i, UINT32_MAX - 1, &source) ||
      !take_number(c->accesses, i, UINT32_MAX, &accesses) ||
      !take_number(c->readers, i, UINT32_MAX, &readers))
    return false;
  out->stage = (int32_t)stage;
  out->microbatch = (int32_t)microbatch;
  out->source = (uint32_t)source;
  out->accesses = (uint32_t)accesses;
  out->readers = (uint32_t)readers;
  return out->end >= out->begin;
}

size_t rp_planned_rank_count(const struct rp_planned *planned) {
  return json_array_size(json_object_get(planned->json, "ranks"));
}

rp_status rp_planned_receives(const struct rp_planned *planned, size_t rank, struct rp_planned_receive **out,
                              size_t *out_count, char *message, size_t message_size) {
  const json_t *entry = json_array_get(json_object_get(planned->json, "ranks"), rank);
  const json_t *number = json_object_get(entry, "rank"), *receives = json_object_get(entry, "receives");
  size_t count = json_array_size(json_object_get(receives, "stage"));
  struct columns columns;
  if (!entry) {
    snprintf(message, message_size, "the plan has no rank %zu", rank);
    return RP_ERROR_NOT_FOUND;
  }
  if (!json_is_integer(number) || json_integer_value(number) != (json_int_t)rank ||
      !take_columns(receives, count, &columns)) {
    snprintf(message, message_size,
             "the list of receives of rank %zu is missing or wrong; make the plan again", rank);
    return RP_ERROR_INVALID;
  }
  struct rp_planned_receive *list = malloc((count + 1) * sizeof *list);
  if (!list) {
    snprintf(message, message_size, "not enough memory to read the plan");
    return RP_ERROR_NO_MEMORY;
  }
  for (size_t i = 0; i < count; i++) {
    if (take_receive(&columns, i, &list[i])) continue;
    snprintf(message, message_size, "receive %zu of rank %zu is missing or wrong; make the plan again", i,
             rank);
    free(list);
    return RP_ERROR_INVALID;
  }
  *out = list;
  *out_count = count;
  return RP_OK;
}
