/* A plan again from the receives that its file lists: what a comparison needs of a saved plan. */
#include <stdlib.h>
#include <string.h>

#include "agent/plan_command.h"

struct columns {
  const json_t *stage, *direction, *microbatch, *begin, *end;
  size_t count;
};

static bool take_columns(const json_t *rank, struct columns *out) {
  const json_t *r = json_object_get(rank, "receives");
  *out = (struct columns){json_object_get(r, "stage"),      json_object_get(r, "direction"),
                          json_object_get(r, "microbatch"), json_object_get(r, "begin"),
                          json_object_get(r, "end"),        0};
  out->count = json_array_size(out->stage);
  return json_is_array(out->stage) && json_array_size(out->direction) == out->count &&
         json_array_size(out->microbatch) == out->count && json_array_size(out->begin) == out->count &&
         json_array_size(out->end) == out->count;
}

static bool take_integer(const json_t *array, size_t index, json_int_t most, json_int_t *out) {
  const json_t *value = json_array_get(array, index);
  *out = json_integer_value(value);
  return json_is_integer(value) && *out >= 0 && *out <= most;
}

static bool take_item(const struct columns *c, size_t i, int32_t rank, struct rp_plan_item *out) {
  json_int_t stage, microbatch, begin, end;
  const char *direction = json_string_value(json_array_get(c->direction, i));
  if (!direction || !take_integer(c->stage, i, 65535, &stage) ||
      !take_integer(c->microbatch, i, (1 << 24) - 1, &microbatch) ||
      !take_integer(c->begin, i, INT64_MAX, &begin) || !take_integer(c->end, i, INT64_MAX, &end) ||
      end < begin)
    return false;
  enum rp_direction d = RP_DIRECTION_UNKNOWN;
  if (strcmp(direction, rp_direction_name(RP_DIRECTION_ACTIVATION)) == 0) d = RP_DIRECTION_ACTIVATION;
  if (strcmp(direction, rp_direction_name(RP_DIRECTION_GRADIENT)) == 0) d = RP_DIRECTION_GRADIENT;
  *out = (struct rp_plan_item){
      {(uint64_t)begin, (uint64_t)end}, 0, rank, (int32_t)stage, (int32_t)microbatch, d};
  return true;
}

static size_t count_items(const json_t *ranks) {
  size_t count = 0;
  for (size_t r = 0; r < json_array_size(ranks); r++) {
    struct columns c;
    if (!take_columns(json_array_get(ranks, r), &c)) return SIZE_MAX;
    count += c.count;
  }
  return count;
}

/* Fills `items`; the largest stage and microbatch + 1 come back through the pointers. False if a number is
 * wrong. */
static bool take_items(const json_t *ranks, struct rp_plan_item *items, int32_t *stages,
                       int32_t *microbatches) {
  static int32_t home[65536];
  memset(home, 0xff, sizeof(home));
  for (size_t r = 0; r < json_array_size(ranks); r++) {
    struct columns c;
    const json_t *rank = json_object_get(json_array_get(ranks, r), "rank");
    if (!json_is_integer(rank) || json_integer_value(rank) != (json_int_t)r) return false;
    take_columns(json_array_get(ranks, r), &c);
    for (size_t i = 0; i < c.count; i++, items++) {
      if (!take_item(&c, i, (int32_t)r, items)) return false;
      if (home[items->stage] >= 0 && home[items->stage] != (int32_t)r) return false;
      home[items->stage] = (int32_t)r;
      if (items->stage >= *stages) *stages = items->stage + 1;
      if (items->microbatch >= *microbatches) *microbatches = items->microbatch + 1;
    }
  }
  return true;
}

rp_status rp_plan_from_plan(const char *path, const struct rp_plan_options *options, struct rp_plan **out,
                            char *message, size_t message_size) {
  struct rp_planned planned;
  rp_status status = rp_plan_read(path, &planned, message, message_size);
  if (status) return status;
  const json_t *ranks = json_object_get(planned.json, "ranks");
  size_t count = count_items(ranks);
  int32_t stages = 0, microbatches = 0;
  struct rp_plan_item *items = count < UINT32_MAX ? malloc((count + 1) * sizeof(*items)) : NULL;
  bool good =
      items && count && json_array_size(ranks) <= 65536 && take_items(ranks, items, &stages, &microbatches);
  if (good && (uint64_t)stages * (uint64_t)microbatches <= (uint64_t)1 << 26) {
    status =
        rp__plan_build(items, count, (int32_t)json_array_size(ranks), stages, microbatches, options, out);
  } else {
    free(items);
    status = RP_ERROR_INVALID;
    snprintf(message, message_size, "%s: the lists of receives are missing or wrong; make the plan again",
             path);
  }
  rp_planned_fini(&planned);
  return status;
}
