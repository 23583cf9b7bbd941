/* From a plan file, or what the user said of sizes and slots, to what the guard of one process is told. The
 * file is somebody's input: whatever it holds, nothing is sized by it before it is checked. */
#include "agent/enforce_plan.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "agent/plan_file.h"

/* As many receives as no step of one rank has: the guard keeps all of them in memory. */
#define MOST_RECEIVES ((size_t)1 << 20)
#define MOST_TENSORS ((size_t)4096) /* of one microbatch */
#define MOST_FILE_BYTES ((off_t)1 << 30)
#define SHOWN_PATH_BYTES 160

/* A one-line message under construction; control characters of paths and files are taken out at the end. */
struct line {
  char *text;
  size_t size;
};

__attribute__((format(printf, 3, 4))) static rp_status say(const struct line *line, rp_status status,
                                                           const char *format, ...) {
  va_list arguments;
  if (!line->size) return status;
  va_start(arguments, format);
  vsnprintf(line->text, line->size, format, arguments);
  va_end(arguments);
  for (char *c = line->text; *c; c++)
    if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
  return status;
}

/* --- one rank of a plan file --- */

/* A class of this rank, with how many of its microbatches have been placed. */
struct own_class {
  const struct rp_planned_class *planned;
  uint32_t index, placed;
};

struct builder {
  const struct rp_planned *planned;
  size_t rank;
  struct line line;
  struct own_class *own; /* sorted by stage, direction, bytes */
  size_t own_count;
  uint64_t
      *tensor_bytes; /* of one microbatch, in the order of receiving; NULL: one tensor, size as received */
  uint32_t *tensor_place; /* [tensors] among those of its size */
  size_t tensor_count;
  struct rp_guard_planned_class *classes;
  struct rp_guard_planned_receive *receives;
  size_t receive_count;
};

static int compare_classes(const void *left, const void *right) {
  const struct rp_planned_class *a = ((const struct own_class *)left)->planned;
  const struct rp_planned_class *b = ((const struct own_class *)right)->planned;
  if (a->stage != b->stage) return a->stage < b->stage ? -1 : 1;
  if (a->direction != b->direction) return a->direction < b->direction ? -1 : 1;
  return (a->buffer_bytes > b->buffer_bytes) - (a->buffer_bytes < b->buffer_bytes);
}

static rp_status check_class(const struct builder *b, size_t index, const struct rp_planned_class *c) {
  if (c->buffer_bytes == 0)
    return say(&b->line, RP_ERROR_INVALID,
               "class %zu has no size; make the plan again with --buffer-bytes or --tensor", index);
  if (c->mixed)
    return say(
        &b->line, RP_ERROR_INVALID,
        "class %zu has slots of several sizes, which a process cannot share; make the plan again without "
        "--mixed-sizes",
        index);
  return RP_OK;
}

static rp_status take_own_classes(struct builder *b) {
  const struct rp_planned *planned = b->planned;
  b->own = malloc((planned->class_count + 1) * sizeof *b->own);
  b->classes = calloc(planned->class_count + 1, sizeof *b->classes);
  if (!b->own || !b->classes) return RP_ERROR_NO_MEMORY;
  for (size_t i = 0; i < planned->class_count; i++) {
    const struct rp_planned_class *c = &planned->classes[i];
    if ((size_t)c->rank != b->rank) continue;
    rp_status status = check_class(b, i, c);
    if (status) return status;
    uint32_t index = (uint32_t)b->own_count;
    b->own[b->own_count++] = (struct own_class){.planned = c, .index = index};
    b->classes[index] = (struct rp_guard_planned_class){.label = index + 1,
                                                        .receive_bytes = c->buffer_bytes,
                                                        .slots = c->slots,
                                                        .buffers = c->buffers,
                                                        .stage = c->stage,
                                                        .direction = (uint32_t)c->direction};
  }
  qsort(b->own, b->own_count, sizeof *b->own, compare_classes);
  for (size_t i = 1; i < b->own_count; i++)
    if (compare_classes(&b->own[i - 1], &b->own[i]) == 0)
      return say(&b->line, RP_ERROR_INVALID, "two classes of rank %zu are the same; make the plan again",
                 b->rank);
  return RP_OK;
}

/* The sizes of a microbatch that passes several tensors. */
static rp_status take_tensors(struct builder *b) {
  const json_t *list = json_object_get(json_object_get(b->planned->json, "options"), "tensor_bytes");
  size_t count = json_array_size(list);
  if (count < 2) return RP_OK;
  if (count > MOST_TENSORS)
    return say(&b->line, RP_ERROR_INVALID, "options.tensor_bytes lists more tensors than a plan can have");
  b->tensor_bytes = malloc(count * sizeof *b->tensor_bytes);
  b->tensor_place = calloc(count, sizeof *b->tensor_place);
  if (!b->tensor_bytes || !b->tensor_place) return RP_ERROR_NO_MEMORY;
  b->tensor_count = count;
  for (size_t i = 0; i < count; i++) {
    json_int_t bytes = json_integer_value(json_array_get(list, i));
    if (bytes <= 0)
      return say(&b->line, RP_ERROR_INVALID,
                 "options.tensor_bytes: entry %zu is not a size; make the plan again", i);
    b->tensor_bytes[i] = (uint64_t)bytes;
  }
  return RP_OK;
}

static struct own_class *find_scope(const struct builder *b, int32_t stage, enum rp_direction direction,
                                    uint64_t bytes) {
  const struct rp_planned_class wanted = {.stage = stage, .direction = direction, .buffer_bytes = bytes};
  const struct own_class key = {.planned = &wanted};
  return bsearch(&key, b->own, b->own_count, sizeof *b->own, compare_classes);
}

/* The one class that buffers of this receive belong to; NULL where there is none or more than one. */
static struct own_class *find_class(const struct builder *b, const struct rp_planned_receive *r,
                                    uint64_t bytes) {
  struct own_class *found[] = {find_scope(b, r->stage, r->direction, bytes),
                               find_scope(b, -1, r->direction, bytes),
                               find_scope(b, -1, RP_DIRECTION_UNKNOWN, bytes)};
  if (found[2] == found[1]) found[2] = NULL;
  struct own_class *only = NULL;
  for (size_t i = 0; i < sizeof found / sizeof found[0]; i++) {
    if (found[i] && only) return NULL;
    if (found[i]) only = found[i];
  }
  return only;
}

/* One tensor: the `place`-th of its size in the microbatch, `last` when it completes the microbatch. */
static rp_status place_tensor(struct builder *b, size_t number, const struct rp_planned_receive *r,
                              uint64_t bytes, uint32_t place, uint32_t same_size) {
  struct own_class *own = find_class(b, r, bytes);
  if (!own)
    return say(&b->line, RP_ERROR_INVALID,
               "receive %zu of rank %zu belongs to no class, or to several; make the plan again", number,
               b->rank);
  const struct rp_planned_class *c = own->planned;
  if (c->tensors != same_size || own->placed >= c->buffers / c->tensors)
    return say(&b->line, RP_ERROR_INVALID,
               "receive %zu of rank %zu does not fit what its class counts; make the plan again", number,
               b->rank);
  b->receives[b->receive_count++] =
      (struct rp_guard_planned_receive){.class_index = own->index,
                                        .slot = c->slot[own->placed] * c->tensors + place,
                                        .microbatch = (uint32_t)r->microbatch,
                                        .source = r->source,
                                        .begin = r->begin,
                                        .end = r->end,
                                        .accesses = r->accesses,
                                        .readers = r->readers,
                                        .stage = r->stage,
                                        .direction = (uint32_t)r->direction};
  if (place + 1 == same_size) own->placed++;
  return RP_OK;
}

/* How many tensors have the size of tensor `t`; the places of all are counted on the way. */
static uint32_t count_same_size(const struct builder *b, size_t t, uint32_t *place) {
  uint32_t same = 0;
  *place = 0;
  for (size_t i = 0; i < b->tensor_count; i++) {
    if (b->tensor_bytes[i] != b->tensor_bytes[t]) continue;
    if (i < t) ++*place;
    same++;
  }
  return same;
}

static rp_status place_receive(struct builder *b, size_t number, const struct rp_planned_receive *r,
                               const uint32_t *same_size) {
  if (r->source == UINT32_MAX)
    return say(&b->line, RP_ERROR_VERSION,
               "the plan does not say who sends what, as version 1.0 did not; make the plan again");
  if (!b->tensor_count) {
    uint64_t bytes = r->bytes;
    return place_tensor(b, number, r, bytes, 0, 1);
  }
  rp_status status = RP_OK;
  for (size_t t = 0; !status && t < b->tensor_count; t++)
    status = place_tensor(b, number, r, b->tensor_bytes[t], b->tensor_place[t], same_size[t]);
  return status;
}

static rp_status place_all(struct builder *b, const struct rp_planned_receive *list, size_t count) {
  size_t tensors = b->tensor_count ? b->tensor_count : 1;
  if (count > MOST_RECEIVES / tensors)
    return say(&b->line, RP_ERROR_LIMIT, "rank %zu receives more than %zu tensors in a step", b->rank,
               MOST_RECEIVES);
  uint32_t *same_size = malloc(tensors * sizeof *same_size);
  b->receives = malloc((count * tensors + 1) * sizeof *b->receives);
  rp_status status = b->receives && same_size ? RP_OK : RP_ERROR_NO_MEMORY;
  for (size_t t = 0; !status && t < b->tensor_count; t++)
    same_size[t] = count_same_size(b, t, &b->tensor_place[t]);
  for (size_t i = 0; !status && i < count; i++)
    status = place_receive(b, i, &list[i], same_size);
  free(same_size);
  for (size_t i = 0; !status && i < b->own_count; i++)
    if (b->own[i].placed != b->own[i].planned->buffers / b->own[i].planned->tensors)
      status = say(&b->line, RP_ERROR_INVALID,
                   "a class of rank %zu counts %u buffers and the rank receives into %u; make the plan again",
                   b->rank, b->own[i].planned->buffers, b->own[i].placed * b->own[i].planned->tensors);
  return status;
}

static rp_status build(struct builder *b) {
  struct rp_planned_receive *list = NULL;
  size_t count = 0;
  rp_status status = rp_planned_receives(b->planned, b->rank, &list, &count, b->line.text, b->line.size);
  if (!status) status = take_own_classes(b);
  if (!status) status = take_tensors(b);
  if (!status) status = place_all(b, list, count);
  free(list);
  return status;
}

rp_status rp__enforce_plan_build(const struct rp_planned *planned, size_t rank, struct rp_guard_plan **out,
                                 char *message, size_t message_size) {
  struct builder b = {.planned = planned, .rank = rank, .line = {message, message_size}};
  if (message_size) message[0] = '\0';
  rp_status status = build(&b);
  struct rp_guard_plan *plan = status ? NULL : malloc(sizeof *plan);
  if (!status && !plan) status = RP_ERROR_NO_MEMORY;
  if (status == RP_ERROR_NO_MEMORY) (void)say(&b.line, status, "not enough memory to read the plan");
  free(b.own);
  free(b.tensor_bytes);
  free(b.tensor_place);
  if (status) {
    free(b.classes);
    free(b.receives);
    return status;
  }
  *plan = (struct rp_guard_plan){.classes = b.classes,
                                 .class_count = (uint32_t)b.own_count,
                                 .receives = b.receives,
                                 .receive_count = b.receive_count};
  *out = plan;
  return RP_OK;
}

void rp_enforce_plan_free(struct rp_guard_plan *plan) {
  if (!plan) return;
  free((void *)plan->classes);
  free((void *)plan->receives);
  free(plan);
}

/* --- which rank --- */

/* Of how many ranks the job must be for its ranks to be those of the plan. */
static size_t ranks_of_job(const struct rp_planned *planned) {
  const json_t *world = json_object_get(json_object_get(planned->json, "provenance"), "world_size");
  return json_is_integer(world) && json_integer_value(world) > 0 ? (size_t)json_integer_value(world)
                                                                 : rp_planned_rank_count(planned);
}

static rp_status choose_rank(const struct rp_config *config, int rank, int world_size,
                             const struct rp_planned *planned, size_t *out, const struct line *line) {
  size_t ranks = rp_planned_rank_count(planned), job = ranks_of_job(planned);
  int said = config->plan_rank >= 0                         ? config->plan_rank
             : world_size >= 0 && (size_t)world_size == job ? rank
                                                            : -1;
  if (said >= 0 && (size_t)said < ranks) {
    *out = (size_t)said;
    return RP_OK;
  }
  if (said >= 0)
    return say(line, RP_ERROR_INVALID, "plan_unusable: the plan has the ranks 0 to %zu and no rank %d",
               ranks - 1, said);
  if (rank < 0 || world_size < 0)
    return say(line, RP_ERROR_NOT_FOUND,
               RP_PLAN_RANK_UNKNOWN
               ": the launcher does not say which rank this process is; set RECVPOOL_PLAN_RANK "
               "to its rank in the plan, 0 to %zu",
               ranks - 1);
  return say(
      line, RP_ERROR_NOT_FOUND,
      RP_PLAN_RANK_UNKNOWN
      ": the plan is for a job of %zu ranks and this one has %d; make a plan for this one, "
      "or, "
      "where it holds several pipelines, set RECVPOOL_PLAN_RANK to this process's rank in the plan, 0 to %zu",
      job, world_size, ranks - 1);
}

/* --- what the process is told --- */

/* The end of a long path tells more than its begin. */
static const char *shown_path(const char *path) {
  size_t length = strlen(path);
  return length > SHOWN_PATH_BYTES ? path + (length - SHOWN_PATH_BYTES) : path;
}

/* A pipe would be waited for inside somebody's program, and can be read only once. */
static rp_status read_plan(const char *path, struct rp_planned *out, char *message, size_t message_size) {
  const struct line line = {message, message_size};
  struct stat info;
  if (stat(path, &info) != 0) return say(&line, RP_ERROR_IO, "%s: cannot be read: %s", path, strerror(errno));
  if (!S_ISREG(info.st_mode)) return say(&line, RP_ERROR_IO, "%s: a plan must be a regular file", path);
  if (info.st_size > MOST_FILE_BYTES) return say(&line, RP_ERROR_LIMIT, "%s: larger than any plan", path);
  return rp_plan_read(path, out, message, message_size);
}

/* Nothing to share, and nothing to guard either. */
static rp_status nothing_for(size_t rank, struct rp_guard_plan **out, const struct line *line) {
  rp_enforce_plan_free(*out);
  *out = NULL;
  return say(line, RP_ERROR_NOT_FOUND, "plan_has_nothing: the plan lists no receives of rank %zu", rank);
}

static rp_status load_file(const struct rp_config *config, int rank, int world_size,
                           struct rp_guard_plan **out, const struct line *line) {
  struct rp_planned planned;
  char what[256] = "", read_message[256 + sizeof config->plan_path];
  rp_status status = read_plan(config->plan_path, &planned, read_message, sizeof read_message);
  if (status) {
    const char *after = read_message + strlen(config->plan_path);
    return say(line, status, "plan_unusable: %s%s", shown_path(config->plan_path), after);
  }
  size_t chosen = 0, ranks = rp_planned_rank_count(&planned);
  if (ranks == 0)
    status = say(line, RP_ERROR_INVALID, "plan_unusable: %s: the plan lists no ranks; make the plan again",
                 shown_path(config->plan_path));
  if (!status) status = choose_rank(config, rank, world_size, &planned, &chosen, line);
  if (!status) {
    status = rp__enforce_plan_build(&planned, chosen, out, what, sizeof what);
    if (status)
      (void)say(line, status, "plan_unusable: %s: %s", shown_path(config->plan_path), what);
    else if ((*out)->class_count == 0)
      status = nothing_for(chosen, out, line);
  }
  rp_planned_fini(&planned);
  return status;
}

static rp_status from_numbers(const struct rp_config *config, struct rp_guard_plan **out,
                              const struct line *line) {
  struct rp_guard_plan *plan = calloc(1, sizeof *plan);
  struct rp_guard_planned_class *class = calloc(1, sizeof *class);
  if (!plan || !class) {
    free(plan);
    free(class);
    return say(line, RP_ERROR_NO_MEMORY, "plan_unusable: not enough memory");
  }
  *class = (struct rp_guard_planned_class){
      .label = 1, .receive_bytes = config->buffer_bytes, .slots = config->slots, .stage = -1};
  plan->classes = class;
  plan->class_count = 1;
  *out = plan;
  return RP_OK;
}

rp_status rp_enforce_plan_load(const struct rp_config *config, int rank, int world_size,
                               struct rp_guard_plan **out, char *message, size_t message_size) {
  const struct line line = {message, message_size};
  if (config->plan_path[0]) return load_file(config, rank, world_size, out, &line);
  if (config->buffer_bytes && config->slots) return from_numbers(config, out, &line);
  *out = NULL;
  return RP_OK;
}

size_t rp_enforce_plan_sizes(const struct rp_config *config, uint64_t *out, size_t most) {
  struct rp_planned planned;
  char message[256];
  size_t count = 0;
  if (!config->plan_path[0] || read_plan(config->plan_path, &planned, message, sizeof message)) return 0;
  for (size_t i = 0; i < planned.class_count && count < most; i++) {
    size_t known = 0;
    while (known < count && out[known] != planned.classes[i].buffer_bytes)
      known++;
    if (known == count && planned.classes[i].buffer_bytes) out[count++] = planned.classes[i].buffer_bytes;
  }
  rp_planned_fini(&planned);
  return count;
}

rp_status rp_enforce_plan_check(const struct rp_config *config, char *message, size_t message_size) {
  const struct line line = {message, message_size};
  const char *path = config->plan_path;
  struct rp_planned planned;
  char what[256];
  if (!path[0]) return RP_OK;
  rp_status status = read_plan(path, &planned, message, message_size);
  if (status) return status;
  size_t ranks = rp_planned_rank_count(&planned);
  if (ranks == 0)
    status = say(&line, RP_ERROR_INVALID, "%s: the plan lists no ranks; make the plan again", path);
  else if (config->plan_rank >= 0 && (size_t)config->plan_rank >= ranks)
    status = say(&line, RP_ERROR_INVALID, "%s: the plan has the ranks 0 to %zu and no rank %d", path,
                 ranks - 1, (int)config->plan_rank);
  for (size_t r = 0; !status && r < ranks; r++) {
    struct rp_guard_plan *plan = NULL;
    status = rp__enforce_plan_build(&planned, r, &plan, what, sizeof what);
    if (status) (void)say(&line, status, "%s: %s", path, what);
    rp_enforce_plan_free(plan);
  }
  rp_planned_fini(&planned);
  return status;
}
