/* Reads plans back, and believes nothing: every number is checked before anyone sizes memory by it. */
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/plan_file.h"

struct reader {
  const char *name;
  char *message;
  size_t message_size;
};

__attribute__((format(printf, 3, 4))) static rp_status refuse(const struct reader *r, rp_status status,
                                                              const char *format, ...) {
  if (!r->message_size) return status;
  int used = snprintf(r->message, r->message_size, "%s: ", r->name);
  if (used < 0 || (size_t)used >= r->message_size) return status;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(r->message + used, r->message_size - (size_t)used, format, arguments);
  va_end(arguments);
  for (char *c = r->message; *c; c++) /* a path or a parser's text must not break the line */
    if ((unsigned char)*c < 0x20) *c = '?';
  return status;
}

/* An integer member within bounds; false if it is missing or outside. */
static bool take(const json_t *object, const char *key, json_int_t least, json_int_t most, json_int_t *out) {
  const json_t *value = json_object_get(object, key);
  if (!json_is_integer(value)) return false;
  *out = json_integer_value(value);
  return *out >= least && *out <= most;
}

static rp_status check_header(const struct reader *r, const json_t *root) {
  const char *schema = json_string_value(json_object_get(root, "schema"));
  const char *version = json_string_value(json_object_get(root, "schema_version"));
  if (!schema || strcmp(schema, RP_PLAN_SCHEMA) != 0)
    return refuse(r, RP_ERROR_INVALID, "%s%.40s%s is not a plan; make one with `recvpool plan --output`",
                  schema ? "a document of schema '" : "this", schema ? schema : "", schema ? "'" : "");
  if (!version || strncmp(version, "1.", 2) != 0)
    return refuse(r, RP_ERROR_VERSION,
                  "plan version '%.20s' is not one this recvpool reads (1.x); make the plan again",
                  version ? version : "");
  if (!json_is_array(json_object_get(root, "classes")))
    return refuse(r, RP_ERROR_INVALID, "the plan has no array 'classes'; make the plan again");
  return RP_OK;
}

/* null means several stages or both directions; anything else must be right. */
static bool take_scope(const json_t *json, struct rp_planned_class *c) {
  const json_t *stage = json_object_get(json, "stage"), *direction = json_object_get(json, "direction");
  json_int_t number = -1;
  if (!stage || (!json_is_null(stage) && !take(json, "stage", 0, INT32_MAX, &number))) return false;
  c->stage = (int32_t)number;
  if (!direction || (!json_is_null(direction) && !json_is_string(direction))) return false;
  if (json_is_null(direction)) return true;
  for (int d = RP_DIRECTION_UNKNOWN; d <= RP_DIRECTION_GRADIENT; d++) {
    if (strcmp(json_string_value(direction), rp_direction_name((enum rp_direction)d)) != 0) continue;
    c->direction = (enum rp_direction)d;
    return true;
  }
  return false;
}

static rp_status take_slots(const struct reader *r, size_t index, const json_t *json,
                            struct rp_planned_class *c) {
  const json_t *list = json_object_get(json, "slot_of_microbatch");
  size_t sets = c->buffers / c->tensors;
  if (!json_is_array(list) || json_array_size(list) != sets)
    return refuse(r, RP_ERROR_INVALID, "class %zu: slot_of_microbatch must list %zu slots", index, sets);
  c->slot = malloc((sets + 1) * sizeof(*c->slot));
  if (!c->slot) return refuse(r, RP_ERROR_NO_MEMORY, "not enough memory to read the plan");
  for (size_t i = 0; i < sets; i++) {
    json_int_t slot =
        json_is_integer(json_array_get(list, i)) ? json_integer_value(json_array_get(list, i)) : -1;
    if (slot < 0 || slot >= c->slots / c->tensors)
      return refuse(r, RP_ERROR_INVALID, "class %zu: entry %zu of slot_of_microbatch is not a slot below %u",
                    index, i, c->slots / c->tensors);
    c->slot[i] = (uint32_t)slot;
    if (c->ring && c->slot[i] != i % (c->slots / c->tensors))
      return refuse(r, RP_ERROR_INVALID, "class %zu: rule is ring, but entry %zu of slot_of_microbatch is %u",
                    index, i, c->slot[i]);
  }
  return RP_OK;
}

/* null, or the size of each slot: none larger than the largest buffer, and one as large as that. */
static rp_status take_slot_bytes(const struct reader *r, size_t index, const json_t *json,
                                 struct rp_planned_class *c) {
  const json_t *list = json_object_get(json, "slot_bytes");
  json_int_t largest = 0;
  if (json_is_null(list)) return RP_OK;
  if (!json_is_array(list) || json_array_size(list) != c->slots)
    return refuse(r, RP_ERROR_INVALID, "class %zu: slot_bytes must be null or list %u sizes", index,
                  c->slots);
  for (size_t i = 0; i < c->slots; i++) {
    const json_t *value = json_array_get(list, i);
    json_int_t bytes = json_is_integer(value) ? json_integer_value(value) : 0;
    if (bytes < 1 || (uint64_t)bytes > c->buffer_bytes)
      return refuse(r, RP_ERROR_INVALID,
                    "class %zu: entry %zu of slot_bytes is not a size up to buffer_bytes", index, i);
    if (bytes > largest) largest = bytes;
  }
  if ((uint64_t)largest != c->buffer_bytes)
    return refuse(r, RP_ERROR_INVALID, "class %zu: no slot of slot_bytes holds a buffer of buffer_bytes",
                  index);
  c->mixed = true;
  return RP_OK;
}

static rp_status take_class(const struct reader *r, size_t index, const json_t *json,
                            struct rp_planned_class *c) {
  json_int_t rank, bytes, tensors, buffers, depth, slots;
  const char *rule = json_string_value(json_object_get(json, "rule"));
  *c = (struct rp_planned_class){.stage = -1};
  if (!json_is_object(json)) return refuse(r, RP_ERROR_INVALID, "class %zu is not an object", index);
  if (!take(json, "rank", 0, INT32_MAX, &rank) || !take_scope(json, c))
    return refuse(r, RP_ERROR_INVALID, "class %zu: rank, stage or direction is missing or wrong", index);
  if (!take(json, "buffer_bytes", 0, LLONG_MAX, &bytes) ||
      !take(json, "tensors_per_microbatch", 1, RP_PLAN_MOST_TENSORS, &tensors))
    return refuse(r, RP_ERROR_INVALID,
                  "class %zu: buffer_bytes or tensors_per_microbatch is missing or wrong", index);
  if (!take(json, "buffers", 1, RP_PLAN_MOST_BUFFERS, &buffers) || !take(json, "depth", 1, buffers, &depth) ||
      !take(json, "slots", depth, buffers, &slots))
    return refuse(r, RP_ERROR_INVALID, "class %zu: it must be 1 <= depth <= slots <= buffers", index);
  if (buffers % tensors || depth % tensors || slots % tensors)
    return refuse(r, RP_ERROR_INVALID,
                  "class %zu: buffers, depth and slots must be multiples of tensors_per_microbatch", index);
  if (!rule || (strcmp(rule, "ring") != 0 && strcmp(rule, "table") != 0))
    return refuse(r, RP_ERROR_INVALID, "class %zu: rule must be 'ring' or 'table'", index);
  c->rank = (int32_t)rank;
  c->buffer_bytes = (uint64_t)bytes;
  c->tensors = (uint32_t)tensors;
  c->buffers = (uint32_t)buffers;
  c->depth = (uint32_t)depth;
  c->slots = (uint32_t)slots;
  c->ring = strcmp(rule, "ring") == 0;
  rp_status status = take_slot_bytes(r, index, json, c);
  return status ? status : take_slots(r, index, json, c);
}

static rp_status take_plan(const struct reader *r, json_t *root, struct rp_planned *out) {
  rp_status status = check_header(r, root);
  if (status) return status;
  const json_t *list = json_object_get(root, "classes");
  struct rp_planned planned = {.classes = calloc(json_array_size(list) + 1, sizeof(*planned.classes))};
  if (!planned.classes) return refuse(r, RP_ERROR_NO_MEMORY, "not enough memory to read the plan");
  for (size_t i = 0; !status && i < json_array_size(list); i++, planned.class_count++)
    status = take_class(r, i, json_array_get(list, i), &planned.classes[i]);
  if (status) {
    rp_planned_fini(&planned);
    return status;
  }
  planned.json = json_incref(root);
  *out = planned;
  return RP_OK;
}

static rp_status take_document(const struct reader *r, json_t *root, const json_error_t *error,
                               struct rp_planned *out) {
  if (!root) return refuse(r, RP_ERROR_SYNTAX, "not whole JSON: line %d: %s", error->line, error->text);
  rp_status status = take_plan(r, root, out);
  json_decref(root);
  return status;
}

rp_status rp_plan_parse(const char *text, size_t length, const char *name, struct rp_planned *out,
                        char *message, size_t message_size) {
  const struct reader r = {name, message, message_size};
  json_error_t error;
  json_t *root = json_loadb(text, length, JSON_REJECT_DUPLICATES, &error);
  return take_document(&r, root, &error, out);
}

rp_status rp_plan_read(const char *path, struct rp_planned *out, char *message, size_t message_size) {
  const struct reader r = {path, message, message_size};
  json_error_t error;
  errno = 0;
  json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
  if (!root && error.line < 0) return refuse(&r, RP_ERROR_IO, "cannot be read: %s", strerror(errno));
  return take_document(&r, root, &error, out);
}

void rp_planned_fini(struct rp_planned *planned) {
  for (size_t i = 0; planned->classes && i < planned->class_count; i++)
    free(planned->classes[i].slot);
  free(planned->classes);
  json_decref(planned->json);
  memset(planned, 0, sizeof(*planned));
}
