/* From plan files to what the guard is told: right for every schedule and granularity, and every kind of
 * broken plan refused with one line. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "agent/enforce_plan.h"

struct shape {
  const char *name;
  int32_t ranks, chunks, microbatches;
  int granularity;
  uint64_t bytes[4];
  size_t tensors;
};

static const struct shape shapes[] = {
    {"1f1b", 4, 1, 8, RP_PLAN_STAGE, {4096}, 1},
    {"1f1b", 4, 1, 8, RP_PLAN_RANK, {4096}, 1},
    {"1f1b", 2, 1, 5, RP_PLAN_DIRECTION, {4096, 512, 4096}, 3},
    {"gpipe", 3, 1, 6, RP_PLAN_STAGE, {100}, 1},
    {"interleaved_1f1b", 4, 2, 8, RP_PLAN_STAGE, {4096}, 1},
    {"interleaved_1f1b", 4, 2, 8, RP_PLAN_DIRECTION, {64, 64}, 2},
    {"interleaved_1f1b", 2, 4, 4, RP_PLAN_RANK, {4096, 64, 64, 4096}, 4},
    {"looped_bfs", 2, 3, 7, RP_PLAN_DIRECTION, {4096}, 1},
};

static struct rp_plan *plan_of(const struct shape *s, uint32_t slack) {
  struct rp_plan_options options = RP_PLAN_OPTIONS_INIT;
  struct rp_plan *plan;
  options.tensor_bytes = s->bytes;
  options.tensor_count = s->tensors;
  options.slack = slack;
  options.granularity = s->granularity;
  assert_int_equal(
      rp_plan_create_named(s->name, s->ranks, s->chunks, s->microbatches, &options, &plan, NULL, 0), RP_OK);
  return plan;
}

static json_t *json_of(const struct shape *s, uint32_t slack) {
  struct rp_plan *plan = plan_of(s, slack);
  const struct rp_plan_provenance provenance = {
      .kind = "schedule", .source = s->name, .replicas = 1, .recvpool = "test"};
  json_t *json = rp_plan_to_json(plan, &provenance);
  rp_plan_destroy(plan);
  assert_non_null(json);
  return json;
}

static void read_json(json_t *json, struct rp_planned *out) {
  char message[256] = "", *text = json_dumps(json, 0);
  assert_non_null(text);
  rp_status status = rp_plan_parse(text, strlen(text), "plan", out, message, sizeof message);
  if (status) print_error("%s\n", message);
  assert_int_equal(status, RP_OK);
  free(text);
}

/* What must hold whatever made the plan: a slot has one tenant at a time. */
static void check_slots(const struct rp_guard_plan *plan) {
  for (size_t i = 0; i < plan->receive_count; i++) {
    const struct rp_guard_planned_receive *a = &plan->receives[i];
    assert_true(a->class_index < plan->class_count);
    assert_true(a->slot < plan->classes[a->class_index].slots);
    for (size_t j = 0; j < i; j++) {
      const struct rp_guard_planned_receive *b = &plan->receives[j];
      bool one_slot = a->class_index == b->class_index && a->slot == b->slot;
      assert_false(one_slot && a->begin <= b->end && b->begin <= a->end);
    }
  }
}

/* Rank `rank` against the plan in memory, which knows nothing of classes in files. */
static void check_rank(const struct shape *s, const struct rp_plan *plan, int32_t rank,
                       const struct rp_guard_plan *got) {
  size_t at = 0;
  uint32_t counted[64] = {0};
  for (size_t i = 0; i < plan->item_count; i++) {
    const struct rp_plan_item *item = &plan->items[i];
    if (item->rank != rank) continue;
    for (size_t t = 0; t < s->tensors; t++, at++) {
      assert_true(at < got->receive_count);
      const struct rp_guard_planned_receive *r = &got->receives[at];
      const struct rp_guard_planned_class *c = &got->classes[r->class_index];
      assert_int_equal(c->receive_bytes, s->bytes[t]);
      assert_int_equal(r->microbatch, item->microbatch);
      assert_int_equal(r->begin, item->interval.begin);
      assert_int_equal(r->end, item->interval.end);
      assert_int_equal(r->accesses, 0);
      /* stage s lives on rank s mod ranks in all these schedules */
      int32_t sender = item->stage + (item->direction == RP_DIRECTION_GRADIENT ? 1 : -1);
      assert_int_equal(r->source, sender % s->ranks);
      assert_int_equal(c->stage, s->granularity == RP_PLAN_STAGE ? item->stage : -1);
      assert_int_equal(c->direction, s->granularity == RP_PLAN_RANK ? 0 : item->direction);
      counted[r->class_index]++;
    }
  }
  assert_int_equal(at, got->receive_count);
  for (uint32_t i = 0; i < got->class_count; i++) {
    assert_int_equal(counted[i], got->classes[i].buffers);
    for (uint32_t j = 0; j < i; j++)
      assert_true(got->classes[i].label != got->classes[j].label);
  }
  check_slots(got);
}

static void every_schedule_and_granularity(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
    for (uint32_t slack = 0; slack < 3; slack++) {
      struct rp_plan *plan = plan_of(&shapes[i], slack);
      json_t *json = json_of(&shapes[i], slack);
      struct rp_planned planned;
      read_json(json, &planned);
      for (int32_t rank = 0; rank < shapes[i].ranks; rank++) {
        struct rp_guard_plan *got = NULL;
        char message[256] = "";
        rp_status status = rp__enforce_plan_build(&planned, (size_t)rank, &got, message, sizeof message);
        if (status) print_error("%s rank %d: %s\n", shapes[i].name, (int)rank, message);
        assert_int_equal(status, RP_OK);
        check_rank(&shapes[i], plan, rank, got);
        rp_enforce_plan_free(got);
      }
      rp_planned_fini(&planned);
      json_decref(json);
      rp_plan_destroy(plan);
    }
  }
}

/* A plan as it comes from reports: two sizes in one direction, senders numbered, accesses counted. */
static void a_plan_from_a_run(void **state) {
  (void)state;
  struct rp_plan_options options = RP_PLAN_OPTIONS_INIT;
  options.granularity = RP_PLAN_DIRECTION;
  options.slack = 1;
  struct rp_plan_item *items = calloc(12, sizeof *items);
  assert_non_null(items);
  for (uint32_t i = 0; i < 12; i++)
    items[i] = (struct rp_plan_item){.interval = {10 * i, 10 * i + 15},
                                     .bytes = i % 2 ? 4096 : 512,
                                     .stage = (int32_t)(i % 2),
                                     .microbatch = (int32_t)(i / 2),
                                     .direction = RP_DIRECTION_ACTIVATION,
                                     .source = i % 2,
                                     .accesses = 3 + i};
  struct rp_plan *plan;
  assert_int_equal(rp__plan_build(items, 12, 1, 2, 6, &options, &plan), RP_OK);
  const struct rp_plan_provenance provenance = {
      .kind = "report", .source = "/reports", .replicas = 1, .recvpool = "test"};
  json_t *json = rp_plan_to_json(plan, &provenance);
  struct rp_planned planned;
  read_json(json, &planned);
  struct rp_guard_plan *got = NULL;
  char message[256] = "";
  assert_int_equal(rp__enforce_plan_build(&planned, 0, &got, message, sizeof message), RP_OK);
  assert_int_equal(got->class_count, 2);
  assert_int_equal(got->receive_count, 12);
  for (uint32_t i = 0; i < 12; i++) {
    const struct rp_guard_planned_receive *r = &got->receives[i];
    assert_int_equal(got->classes[r->class_index].receive_bytes, i % 2 ? 4096 : 512);
    assert_int_equal(got->classes[r->class_index].buffers, 6);
    assert_int_equal(got->classes[r->class_index].slots, 2);
    assert_int_equal(r->source, i % 2);
    assert_int_equal(r->accesses, 3 + i);
    assert_int_equal(r->slot, i / 2 % 2);
  }
  check_slots(got);
  rp_enforce_plan_free(got);
  rp_planned_fini(&planned);
  json_decref(json);
  rp_plan_destroy(plan);
}

/* Slots of several sizes: written and read, but one handle per slot has one size. */
static void a_plan_of_mixed_sizes(void **state) {
  (void)state;
  struct rp_plan_options options = RP_PLAN_OPTIONS_INIT;
  options.granularity = RP_PLAN_RANK;
  options.mixed_sizes = 1;
  struct rp_plan_item *items = calloc(8, sizeof *items);
  assert_non_null(items);
  for (uint32_t i = 0; i < 8; i++)
    items[i] = (struct rp_plan_item){.interval = {10 * i, 10 * i + 5},
                                     .bytes = i % 2 ? 4096 : 512,
                                     .stage = (int32_t)(i % 2),
                                     .microbatch = (int32_t)(i / 2),
                                     .direction = RP_DIRECTION_ACTIVATION};
  struct rp_plan *plan;
  assert_int_equal(rp__plan_build(items, 8, 1, 2, 4, &options, &plan), RP_OK);
  const struct rp_plan_provenance provenance = {
      .kind = "report", .source = "/reports", .replicas = 1, .recvpool = "test"};
  json_t *json = rp_plan_to_json(plan, &provenance);
  struct rp_planned planned;
  read_json(json, &planned);
  assert_int_equal(planned.class_count, 1);
  assert_true(planned.classes[0].mixed);
  struct rp_guard_plan *got = NULL;
  char message[256] = "";
  assert_int_equal(rp__enforce_plan_build(&planned, 0, &got, message, sizeof message), RP_ERROR_INVALID);
  assert_non_null(strstr(message, "--mixed-sizes"));
  rp_planned_fini(&planned);
  json_decref(json);
  rp_plan_destroy(plan);
}

/* Where a plan can be damaged so that the reader takes it, and it still cannot be enforced. */
struct damage {
  const char *where; /* keys and indices with blanks between, "" = the document */
  const char *key;
  const char *value; /* JSON, NULL = remove */
  rp_status status;
  const char *says;
};

#define RECEIVES "ranks 1 receives"
static const struct damage damages[] = {
    {"", "ranks", NULL, RP_ERROR_NOT_FOUND, "no rank 1"},
    {"", "ranks", "{}", RP_ERROR_NOT_FOUND, "no rank 1"},
    {"", "ranks", "[]", RP_ERROR_NOT_FOUND, "no rank 1"},
    {"", "ranks", "[7, 8]", RP_ERROR_INVALID, "list of receives of rank 1"},
    {"ranks 1", "rank", "0", RP_ERROR_INVALID, "list of receives of rank 1"},
    {"ranks 1", "rank", "\"1\"", RP_ERROR_INVALID, "list of receives of rank 1"},
    {"ranks 1", "receives", "[]", RP_ERROR_INVALID, "list of receives of rank 1"},
    {RECEIVES, "stage", NULL, RP_ERROR_INVALID, "list of receives of rank 1"},
    {RECEIVES, "stage", "{}", RP_ERROR_INVALID, "list of receives of rank 1"},
    {RECEIVES, "begin", "[1]", RP_ERROR_INVALID, "list of receives of rank 1"},
    {RECEIVES, "end", NULL, RP_ERROR_INVALID, "list of receives of rank 1"},
    {RECEIVES, "bytes", "[1]", RP_ERROR_INVALID, "list of receives of rank 1"},
    {RECEIVES, "accesses", "7", RP_ERROR_INVALID, "list of receives of rank 1"},
    {RECEIVES " stage", "0", "-1", RP_ERROR_INVALID, "receive 0 of rank 1"},
    {RECEIVES " stage", "0", "65536", RP_ERROR_INVALID, "receive 0 of rank 1"},
    {RECEIVES " stage", "0", "0", RP_ERROR_INVALID, "receive 0 of rank 1 belongs to no class"},
    {RECEIVES " direction", "1", "\"up\"", RP_ERROR_INVALID, "receive 1 of rank 1"},
    {RECEIVES " direction", "1", "1", RP_ERROR_INVALID, "receive 1 of rank 1"},
    {RECEIVES " direction", "1", "\"unknown\"", RP_ERROR_INVALID, "receive 1 of rank 1 belongs to no class"},
    {RECEIVES " direction", "1", "\"gradient\"", RP_ERROR_INVALID, "does not fit what its class counts"},
    {RECEIVES " microbatch", "1", "16777216", RP_ERROR_INVALID, "receive 1 of rank 1"},
    {RECEIVES " microbatch", "1", "1.0", RP_ERROR_INVALID, "receive 1 of rank 1"},
    {RECEIVES " begin", "1", "1000000", RP_ERROR_INVALID, "receive 1 of rank 1"},
    {RECEIVES " end", "1", "-1", RP_ERROR_INVALID, "receive 1 of rank 1"},
    {RECEIVES " bytes", "2", "4095", RP_ERROR_INVALID, "receive 2 of rank 1 belongs to no class"},
    {RECEIVES " bytes", "2", "null", RP_ERROR_INVALID, "receive 2 of rank 1"},
    {RECEIVES " source", "2", "4294967295", RP_ERROR_INVALID, "receive 2 of rank 1"},
    {RECEIVES " accesses", "2", "4294967296", RP_ERROR_INVALID, "receive 2 of rank 1"},
    {RECEIVES, "source", NULL, RP_ERROR_VERSION, "does not say who sends"},
    {"classes 1", "rank", "0", RP_ERROR_INVALID, "belongs to no class"},
    {"classes 1", "rank", "2", RP_ERROR_INVALID, "belongs to no class"},
    {"classes 1", "buffer_bytes", "0", RP_ERROR_INVALID, "no size; make the plan again with --buffer-bytes"},
    {"classes 2", "direction", "\"activation\"", RP_ERROR_INVALID, "two classes of rank 1 are the same"},
    {"classes 1", "slot_bytes", "[4096, 4096, 512, 4096]", RP_ERROR_INVALID, "--mixed-sizes"},
    {"options", "tensor_bytes", "[4096, 4096]", RP_ERROR_INVALID, "does not fit what its class counts"},
    {"options", "tensor_bytes", "[4096, 0]", RP_ERROR_INVALID, "entry 1 is not a size"},
    {"options", "tensor_bytes", "[\"a\", 4096]", RP_ERROR_INVALID, "entry 0 is not a size"},
    {"options", "tensor_bytes", "[4096, 8]", RP_ERROR_INVALID, "belongs to no class"},
};

static json_t *find_node(json_t *json, const char *where) {
  char copy[128], *rest = copy;
  snprintf(copy, sizeof copy, "%s", where);
  for (char *word; (word = strsep(&rest, " ")) != NULL;) {
    if (!word[0]) continue;
    json = json_is_array(json) ? json_array_get(json, (size_t)atoi(word)) : json_object_get(json, word);
    assert_non_null(json);
  }
  return json;
}

static void damage_json(json_t *json, const struct damage *d) {
  json_t *target = find_node(json, d->where);
  json_t *value = d->value ? json_loads(d->value, JSON_DECODE_ANY, NULL) : NULL;
  assert_true(!d->value || value);
  if (json_is_array(target))
    assert_int_equal(json_array_set_new(target, (size_t)atoi(d->key), value), 0);
  else if (value)
    assert_int_equal(json_object_set_new(target, d->key, value), 0);
  else
    assert_int_equal(json_object_del(target, d->key), 0);
}

/* Four ranks, stage classes; rank 1 has the classes 1 (activation, 4 slots) and 2 (gradient). */
static const struct shape whole = {"1f1b", 4, 1, 8, RP_PLAN_STAGE, {4096}, 1};

static void broken_plans_are_refused(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof damages / sizeof damages[0]; i++) {
    const struct damage *d = &damages[i];
    json_t *json = json_of(&whole, 1);
    struct rp_planned planned;
    struct rp_guard_plan *got = NULL;
    char message[256] = "";
    damage_json(json, d);
    read_json(json, &planned);
    rp_status status = rp__enforce_plan_build(&planned, 1, &got, message, sizeof message);
    if (status != d->status || !strstr(message, d->says))
      print_error("%s %s %s: %d %s\n", d->where, d->key, d->value, (int)status, message);
    assert_int_equal(status, d->status);
    assert_non_null(strstr(message, d->says));
    assert_null(strchr(message, '\n'));
    assert_null(got);
    rp_planned_fini(&planned);
    json_decref(json);
  }
}

static void classes_that_count_otherwise(void **state) {
  (void)state;
  json_t *json = json_of(&whole, 1), *class = find_node(json, "classes 1");
  json_object_set_new(class, "buffers", json_integer(9));
  json_object_set_new(class, "rule", json_string("table"));
  json_array_append_new(json_object_get(class, "slot_of_microbatch"), json_integer(0));
  struct rp_planned planned;
  struct rp_guard_plan *got = NULL;
  char message[256] = "";
  read_json(json, &planned);
  assert_int_equal(rp__enforce_plan_build(&planned, 1, &got, message, sizeof message), RP_ERROR_INVALID);
  assert_non_null(strstr(message, "counts 9 buffers and the rank receives into 8"));
  rp_planned_fini(&planned);
  json_decref(json);
}

static void classes_that_overlap(void **state) {
  (void)state;
  json_t *json = json_of(&whole, 1), *class = find_node(json, "classes 2");
  json_object_set_new(class, "stage", json_null());
  json_object_set_new(class, "direction", json_string("activation"));
  struct rp_planned planned;
  struct rp_guard_plan *got = NULL;
  char message[256] = "";
  read_json(json, &planned);
  assert_int_equal(rp__enforce_plan_build(&planned, 1, &got, message, sizeof message), RP_ERROR_INVALID);
  assert_non_null(strstr(message, "receive 0 of rank 1 belongs to no class, or to several"));
  rp_planned_fini(&planned);
  json_decref(json);
}

static void more_receives_than_any_step_has(void **state) {
  (void)state;
  json_t *json = json_of(&whole, 1), *tensors = json_array();
  for (int i = 0; i < 4096; i++)
    json_array_append_new(tensors, json_integer(4096));
  json_object_set_new(json_object_get(json, "options"), "tensor_bytes", tensors);
  json_t *receives = find_node(json, RECEIVES);
  const char *name;
  json_t *column;
  json_object_foreach(receives, name, column) {
    while (json_array_size(column) < 300)
      json_array_append(column, json_array_get(column, 0));
  }
  struct rp_planned planned;
  struct rp_guard_plan *got = NULL;
  char message[256] = "";
  read_json(json, &planned);
  assert_int_equal(rp__enforce_plan_build(&planned, 1, &got, message, sizeof message), RP_ERROR_LIMIT);
  json_array_append_new(tensors, json_integer(4096));
  rp_planned_fini(&planned);
  read_json(json, &planned);
  assert_int_equal(rp__enforce_plan_build(&planned, 1, &got, message, sizeof message), RP_ERROR_INVALID);
  assert_non_null(strstr(message, "more tensors"));
  rp_planned_fini(&planned);
  json_decref(json);
}

/* ---- files, ranks, numbers ---- */

struct folder {
  char dir[64], path[128];
};

static int make_folder(void **state) {
  struct folder *f = calloc(1, sizeof *f);
  if (!f) return -1;
  strcpy(f->dir, "/tmp/recvpool-plan-XXXXXX");
  if (!mkdtemp(f->dir)) return -1;
  snprintf(f->path, sizeof f->path, "%s/plan\t.json", f->dir);
  json_t *json = json_of(&whole, 1);
  int failed = rp_plan_write(json, f->path) != RP_OK;
  json_decref(json);
  *state = f;
  return failed ? -1 : 0;
}

static int remove_folder(void **state) {
  struct folder *f = *state;
  unlink(f->path);
  rmdir(f->dir);
  free(f);
  return 0;
}

static void which_rank(void **state) {
  const struct folder *f = *state;
  static const struct {
    int32_t said;
    int rank, world;
    int expected; /* classes of the rank that was taken: 0 and 3 have one, 1 and 2 two; -1 refused */
    rp_status status;
    const char *says;
  } cases[] = {
      {-1, 0, 4, 1, RP_OK, ""},
      {-1, 1, 4, 2, RP_OK, ""},
      {1, -1, -1, 2, RP_OK, ""},
      {3, 1, 4, 1, RP_OK, ""},
      {1, 6, 8, 2, RP_OK, ""},
      {4, 0, 4, -1, RP_ERROR_INVALID, "plan_unusable: the plan has the ranks 0 to 3 and no rank 4"},
      {-1, -1, -1, -1, RP_ERROR_NOT_FOUND, "plan_rank_unknown: the launcher does not say"},
      {-1, 1, -1, -1, RP_ERROR_NOT_FOUND, "plan_rank_unknown: the launcher does not say"},
      {-1, -1, 4, -1, RP_ERROR_NOT_FOUND, "plan_rank_unknown: the launcher does not say"},
      {-1, 0, 8, -1, RP_ERROR_NOT_FOUND,
       "plan_rank_unknown: the plan is for a job of 4 ranks and this one has 8; make a plan for this one"},
      {-1, 0, 1, -1, RP_ERROR_NOT_FOUND,
       "plan_rank_unknown: the plan is for a job of 4 ranks and this one has 1;"},
      {-1, 5, 4, -1, RP_ERROR_INVALID, "no rank 5"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct rp_config config;
    struct rp_guard_plan *plan = NULL;
    char message[512] = "";
    rp_config_defaults(&config);
    snprintf(config.plan_path, sizeof config.plan_path, "%s", f->path);
    config.plan_rank = cases[i].said;
    rp_status status =
        rp_enforce_plan_load(&config, cases[i].rank, cases[i].world, &plan, message, sizeof message);
    assert_int_equal(status, cases[i].status);
    assert_non_null(strstr(message, cases[i].says));
    if (status == RP_OK) assert_int_equal(plan->class_count, cases[i].expected);
    if (status == RP_OK) assert_string_equal(message, "");
    rp_enforce_plan_free(plan);
  }
}

/* Reports of a part of the job: the plan has its ranks, and gaps. */
static void ranks_of_a_larger_job(void **state) {
  const struct folder *f = *state;
  struct rp_config config;
  struct rp_guard_plan *plan = NULL;
  char message[512] = "", path[128];
  json_t *json = json_of(&whole, 1);
  json_object_set_new(json_object_get(json, "provenance"), "world_size", json_integer(24));
  json_t *receives = find_node(json, "ranks 3 receives"), *column;
  const char *name;
  json_object_foreach(receives, name, column) json_array_clear(column);
  json_array_remove(json_object_get(json, "classes"), 5);
  snprintf(path, sizeof path, "%s/part.json", f->dir);
  assert_int_equal(rp_plan_write(json, path), RP_OK);
  json_decref(json);
  rp_config_defaults(&config);
  snprintf(config.plan_path, sizeof config.plan_path, "%s", path);
  uint64_t sizes[2] = {0};
  assert_int_equal(rp_enforce_plan_sizes(&config, sizes, 2), 1); /* of all ranks, without repeats */
  assert_true(sizes[0] > 0);
  assert_int_equal(rp_enforce_plan_sizes(&config, sizes, 0), 0);
  assert_int_equal(rp_enforce_plan_load(&config, 2, 24, &plan, message, sizeof message), RP_OK);
  assert_int_equal(plan->class_count, 2);
  rp_enforce_plan_free(plan);
  plan = NULL;
  static const struct {
    int rank, world;
    rp_status status;
    const char *says;
  } cases[] = {
      {2, 4, RP_ERROR_NOT_FOUND, "plan_rank_unknown: the plan is for a job of 24 ranks and this one has 4"},
      {3, 24, RP_ERROR_NOT_FOUND, "plan_has_nothing: the plan lists no receives of rank 3"},
      {4, 24, RP_ERROR_INVALID, "plan_unusable: the plan has the ranks 0 to 3 and no rank 4"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    assert_int_equal(
        rp_enforce_plan_load(&config, cases[i].rank, cases[i].world, &plan, message, sizeof message),
        cases[i].status);
    assert_ptr_equal(strstr(message, cases[i].says), message);
    assert_null(plan);
  }
  unlink(path);
}

static void files_that_are_no_plans(void **state) {
  const struct folder *f = *state;
  struct rp_config config;
  struct rp_guard_plan *plan = NULL;
  char message[512], fifo[128], longest[4096];
  rp_config_defaults(&config);
  config.plan_rank = 0;
  snprintf(fifo, sizeof fifo, "%s/fifo", f->dir);
  assert_int_equal(mkfifo(fifo, 0600), 0);
  memset(longest, 'x', sizeof longest - 1);
  longest[0] = '/';
  longest[sizeof longest - 1] = '\0';
  const struct {
    const char *path;
    rp_status status;
    const char *says;
  } cases[] = {
      {"/nowhere/plan.json", RP_ERROR_IO, "/nowhere/plan.json: cannot be read: No such file"},
      {f->dir, RP_ERROR_IO, "a plan must be a regular file"},
      {fifo, RP_ERROR_IO, "a plan must be a regular file"},
      {"/dev/null", RP_ERROR_IO, "a plan must be a regular file"},
      {"/proc/self/status", RP_ERROR_SYNTAX, "not whole JSON"},
      {longest, RP_ERROR_IO, "xxx: cannot be read: File name too long"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    snprintf(config.plan_path, sizeof config.plan_path, "%s", cases[i].path);
    rp_status status = rp_enforce_plan_load(&config, 0, 4, &plan, message, sizeof message);
    assert_int_equal(status, cases[i].status);
    assert_ptr_equal(strstr(message, "plan_unusable: "), message);
    assert_non_null(strstr(message, cases[i].says));
    assert_null(strchr(message, '\n'));
    assert_null(plan);
    char checked[8192];
    assert_int_equal(rp_enforce_plan_check(&config, checked, sizeof checked), status);
    assert_non_null(strstr(checked, cases[i].says));
  }
  unlink(fifo);
}

static void a_plan_is_checked_for_all_its_ranks(void **state) {
  const struct folder *f = *state;
  struct rp_config config;
  char message[512] = "", path[128];
  rp_config_defaults(&config);
  assert_int_equal(rp_enforce_plan_check(&config, message, sizeof message), RP_OK);
  snprintf(config.plan_path, sizeof config.plan_path, "%s", f->path);
  assert_int_equal(rp_enforce_plan_check(&config, message, sizeof message), RP_OK);
  config.plan_rank = 3;
  assert_int_equal(rp_enforce_plan_check(&config, message, sizeof message), RP_OK);
  assert_string_equal(message, "");
  config.plan_rank = 4;
  assert_int_equal(rp_enforce_plan_check(&config, message, sizeof message), RP_ERROR_INVALID);
  assert_non_null(strstr(message, "the plan has the ranks 0 to 3 and no rank 4"));
  config.plan_rank = -1;
  snprintf(path, sizeof path, "%s/other.json", f->dir);
  snprintf(config.plan_path, sizeof config.plan_path, "%s", path);
  json_t *json = json_of(&whole, 1);
  json_array_set_new(find_node(json, "ranks 3 receives stage"), 0, json_integer(0));
  assert_int_equal(rp_plan_write(json, path), RP_OK);
  assert_int_equal(rp_enforce_plan_check(&config, message, sizeof message), RP_ERROR_INVALID);
  assert_ptr_equal(strstr(message, path), message);
  assert_non_null(strstr(message, "receive 0 of rank 3"));
  json_object_set_new(json, "ranks", json_array());
  assert_int_equal(rp_plan_write(json, path), RP_OK);
  assert_int_equal(rp_enforce_plan_check(&config, message, sizeof message), RP_ERROR_INVALID);
  assert_non_null(strstr(message, "lists no ranks"));
  unlink(path);
  json_decref(json);
}

static void a_path_cannot_break_the_line(void **state) {
  const struct folder *f = *state;
  struct rp_config config;
  struct rp_guard_plan *plan = NULL;
  char message[512] = "";
  rp_config_defaults(&config);
  snprintf(config.plan_path, sizeof config.plan_path, "%s/no\nsuch\x1b[1m", f->dir);
  assert_int_equal(rp_enforce_plan_load(&config, 0, 4, &plan, message, sizeof message), RP_ERROR_IO);
  assert_non_null(strstr(message, "/no?such?[1m: cannot be read"));
}

static void numbers_of_the_user(void **state) {
  (void)state;
  struct rp_config config;
  struct rp_guard_plan *plan = (void *)1;
  char message[256] = "";
  rp_config_defaults(&config);
  assert_int_equal(rp_enforce_plan_load(&config, 0, 4, &plan, message, sizeof message), RP_OK);
  assert_null(plan);
  config.buffer_bytes = 10 << 20;
  assert_int_equal(rp_enforce_plan_load(&config, 0, 4, &plan, message, sizeof message), RP_OK);
  assert_null(plan);
  config.slots = 5;
  assert_int_equal(rp_enforce_plan_load(&config, -1, -1, &plan, message, sizeof message), RP_OK);
  assert_non_null(plan);
  assert_int_equal(plan->class_count, 1);
  assert_int_equal(plan->receive_count, 0);
  assert_null(plan->receives);
  assert_int_equal(plan->classes[0].receive_bytes, 10 << 20);
  assert_int_equal(plan->classes[0].slots, 5);
  assert_int_equal(plan->classes[0].buffers, 0);
  assert_int_equal(plan->classes[0].stage, -1);
  rp_enforce_plan_free(plan);
  rp_enforce_plan_free(NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_schedule_and_granularity),
      cmocka_unit_test(a_plan_from_a_run),
      cmocka_unit_test(a_plan_of_mixed_sizes),
      cmocka_unit_test(broken_plans_are_refused),
      cmocka_unit_test(classes_that_count_otherwise),
      cmocka_unit_test(classes_that_overlap),
      cmocka_unit_test(more_receives_than_any_step_has),
      cmocka_unit_test_setup_teardown(which_rank, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(ranks_of_a_larger_job, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(files_that_are_no_plans, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(a_plan_is_checked_for_all_its_ranks, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(a_path_cannot_break_the_line, make_folder, remove_folder),
      cmocka_unit_test(numbers_of_the_user),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
