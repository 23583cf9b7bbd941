/* Plan files: what is written is read back, and everything else is refused with one line. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "agent/plan_file.h"

static json_t *make_plan(const char *name, int32_t ranks, int32_t chunks, int granularity) {
  const uint64_t bytes[] = {4096, 512, 4096};
  struct rp_plan_options options = RP_PLAN_OPTIONS_INIT;
  options.tensor_bytes = bytes;
  options.tensor_count = 3;
  options.slack = 1;
  options.granularity = granularity;
  struct rp_plan *plan;
  assert_int_equal(rp_plan_create_named(name, ranks, chunks, 8, &options, &plan, NULL, 0), RP_OK);
  const struct rp_plan_provenance provenance = {
      .kind = "schedule", .source = name, .replicas = 1, .recvpool = "test"};
  json_t *json = rp_plan_to_json(plan, &provenance);
  rp_plan_destroy(plan);
  assert_non_null(json);
  return json;
}

static rp_status parse(json_t *json, struct rp_planned *out, char *message, size_t size) {
  char *text = json_dumps(json, 0);
  assert_non_null(text);
  rp_status status = rp_plan_parse(text, strlen(text), "plan.json", out, message, size);
  free(text);
  return status;
}

static void test_read_back(void **state) {
  (void)state;
  json_t *json = make_plan("1f1b", 4, 1, RP_PLAN_STAGE);
  struct rp_planned planned;
  char message[256] = "";
  rp_status status = parse(json, &planned, message, sizeof(message));
  if (status) print_error("%s\n", message);
  assert_int_equal(status, RP_OK);
  assert_int_equal(planned.class_count, 12); /* 6 pools, two sizes */
  const struct rp_planned_class *c = &planned.classes[2];
  assert_int_equal(c->rank, 1);
  assert_int_equal(c->stage, 1);
  assert_int_equal(c->direction, RP_DIRECTION_ACTIVATION);
  assert_int_equal(c->buffer_bytes, 4096);
  assert_int_equal(c->tensors, 2);
  assert_int_equal(c->buffers, 16);
  assert_int_equal(c->depth, 6);
  assert_int_equal(c->slots, 8);
  assert_true(c->ring);
  for (uint32_t k = 0; k < 8; k++)
    assert_int_equal(c->slot[k], k % 4);
  assert_true(json_equal(planned.json, json));
  rp_planned_fini(&planned);
  json_decref(json);
}

static void test_several_stages(void **state) {
  (void)state;
  for (int g = 0; g < RP_PLAN_GRANULARITY_COUNT; g++) {
    json_t *json = make_plan("interleaved_1f1b", 4, 2, g);
    struct rp_planned planned;
    char message[256] = "";
    assert_int_equal(parse(json, &planned, message, sizeof(message)), RP_OK);
    assert_int_equal(planned.classes[0].stage, g == RP_PLAN_STAGE ? 0 : -1);
    if (g == RP_PLAN_RANK) assert_int_equal(planned.classes[0].direction, RP_DIRECTION_UNKNOWN);
    rp_planned_fini(&planned);
    json_decref(json);
  }
}

static void test_unknown_fields_are_kept(void **state) {
  (void)state;
  json_t *json = make_plan("gpipe", 2, 1, RP_PLAN_STAGE);
  json_object_set_new(json, "schema_version", json_string("1.7"));
  json_object_set_new(json, "invented_later", json_integer(5));
  json_object_set_new(json_array_get(json_object_get(json, "classes"), 0), "also", json_true());
  struct rp_planned planned;
  char message[256] = "";
  assert_int_equal(parse(json, &planned, message, sizeof(message)), RP_OK);
  assert_true(json_equal(planned.json, json));
  rp_planned_fini(&planned);
  json_decref(json);
}

struct damage {
  const char *pointer; /* "" = the document, else a key of class 0 */
  const char *key;
  const char *value; /* JSON, NULL = remove */
  rp_status status;
  const char *says;
};

static const struct damage damages[] = {
    {"", "schema", "\"prometheus\"", RP_ERROR_INVALID, "schema 'prometheus' is not a plan"},
    {"", "schema", NULL, RP_ERROR_INVALID, "this is not a plan"},
    {"", "schema", "7", RP_ERROR_INVALID, "is not a plan"},
    {"", "schema_version", "\"2.0\"", RP_ERROR_VERSION, "version '2.0'"},
    {"", "schema_version", "\"10.0\"", RP_ERROR_VERSION, "version '10.0'"},
    {"", "schema_version", NULL, RP_ERROR_VERSION, "make the plan again"},
    {"", "classes", NULL, RP_ERROR_INVALID, "no array 'classes'"},
    {"", "classes", "{}", RP_ERROR_INVALID, "no array 'classes'"},
    {"", "classes", "[3]", RP_ERROR_INVALID, "class 0 is not an object"},
    {"0", "rank", "-1", RP_ERROR_INVALID, "rank, stage or direction"},
    {"0", "rank", "1.5", RP_ERROR_INVALID, "rank, stage or direction"},
    {"0", "stage", NULL, RP_ERROR_INVALID, "rank, stage or direction"},
    {"0", "stage", "-1", RP_ERROR_INVALID, "rank, stage or direction"},
    {"0", "direction", "\"sideways\"", RP_ERROR_INVALID, "rank, stage or direction"},
    {"0", "direction", NULL, RP_ERROR_INVALID, "rank, stage or direction"},
    {"0", "buffer_bytes", "-5", RP_ERROR_INVALID, "buffer_bytes"},
    {"0", "tensors_per_microbatch", "0", RP_ERROR_INVALID, "tensors_per_microbatch"},
    {"0", "tensors_per_microbatch", "5", RP_ERROR_INVALID, "multiples"},
    {"0", "buffers", "0", RP_ERROR_INVALID, "depth <= slots <= buffers"},
    {"0", "buffers", "99999999999999", RP_ERROR_INVALID, "depth <= slots <= buffers"},
    {"0", "depth", "0", RP_ERROR_INVALID, "depth <= slots <= buffers"},
    {"0", "slots", "0", RP_ERROR_INVALID, "depth <= slots <= buffers"},
    {"0", "slots", "1000", RP_ERROR_INVALID, "depth <= slots <= buffers"},
    {"0", "rule", "\"random\"", RP_ERROR_INVALID, "'ring' or 'table'"},
    {"0", "rule", NULL, RP_ERROR_INVALID, "'ring' or 'table'"},
    {"0", "buffers", "2147483648", RP_ERROR_INVALID, "depth <= slots <= buffers"},
    {"0", "slot_bytes", NULL, RP_ERROR_INVALID, "slot_bytes must be null or list 4 sizes"},
    {"0", "slot_bytes", "7", RP_ERROR_INVALID, "slot_bytes must be null or list 4 sizes"},
    {"0", "slot_bytes", "[4096]", RP_ERROR_INVALID, "slot_bytes must be null or list 4 sizes"},
    {"0", "slot_bytes", "[4096, 1, 0, 4096]", RP_ERROR_INVALID, "entry 2 of slot_bytes"},
    {"0", "slot_bytes", "[4096, 1, \"1\", 4096]", RP_ERROR_INVALID, "entry 2 of slot_bytes"},
    {"0", "slot_bytes", "[4096, 4097, 1, 1]", RP_ERROR_INVALID, "entry 1 of slot_bytes"},
    {"0", "slot_bytes", "[4095, 1, 1, 1]", RP_ERROR_INVALID, "no slot of slot_bytes holds a buffer"},
    {"0", "slot_of_microbatch", "[0]", RP_ERROR_INVALID, "must list 8 slots"},
    {"0", "slot_of_microbatch", "[0,1,0,1,0,1,0,9]", RP_ERROR_INVALID, "entry 7"},
    {"0", "slot_of_microbatch", "[0,1,0,1,0,1,0,-1]", RP_ERROR_INVALID, "entry 7"},
    {"0", "slot_of_microbatch", "[0,1,0,1,0,1,0,\"1\"]", RP_ERROR_INVALID, "entry 7"},
    {"0", "slot_of_microbatch", "[0,1,0,1,0,1,1,0]", RP_ERROR_INVALID, "rule is ring"},
};

static void test_damaged(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof(damages) / sizeof(damages[0]); i++) {
    const struct damage *d = &damages[i];
    json_t *json = make_plan("1f1b", 2, 1, RP_PLAN_STAGE), *target = json;
    if (d->pointer[0]) target = json_array_get(json_object_get(json, "classes"), 0);
    if (d->value)
      json_object_set_new(target, d->key, json_loads(d->value, JSON_DECODE_ANY, NULL));
    else
      json_object_del(target, d->key);
    struct rp_planned planned = {0};
    char message[256] = "";
    rp_status status = parse(json, &planned, message, sizeof(message));
    if (status != d->status || !strstr(message, d->says))
      print_error("%s %s: %s\n", d->key, d->value, message);
    assert_int_equal(status, d->status);
    assert_non_null(strstr(message, d->says));
    assert_ptr_equal(strstr(message, "plan.json: "), message);
    assert_null(strchr(message, '\n'));
    assert_null(planned.classes);
    json_decref(json);
  }
}

/* What cannot be read back is not written. */
static void test_bounds(void **state) {
  (void)state;
  const uint64_t bytes[] = {8, 16, 8};
  struct rp_plan_class class = {.buffers = (1u << 30) - 1};
  struct rp_plan plan = {.classes = &class, .class_count = 1};
  plan.options.tensor_bytes = bytes;
  assert_true(rp_plan_fits_file(&plan));
  plan.options.tensor_count = 3;
  assert_true(rp_plan_fits_file(&plan));
  class.buffers = 1u << 30;
  assert_false(rp_plan_fits_file(&plan));
  plan.options.tensor_count = 2; /* two sizes: two classes of as many */
  assert_true(rp_plan_fits_file(&plan));
  plan.options.tensor_count = 0;
  class.buffers = 1u << 31;
  assert_false(rp_plan_fits_file(&plan));
}

static void test_not_json(void **state) {
  (void)state;
  static const char *const texts[] = {
      "", "{", "[]", "7", "\"x\"", "0F0,0B0", "{\"schema\":1,\"schema\":2}", "\xff\xfe"};
  for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
    struct rp_planned planned = {0};
    char message[256] = "";
    rp_status status = rp_plan_parse(texts[i], strlen(texts[i]), "a\nb", &planned, message, sizeof(message));
    assert_true(status == RP_ERROR_SYNTAX || status == RP_ERROR_INVALID);
    assert_ptr_equal(strstr(message, "a?b: "), message); /* always one line */
    assert_int_equal(rp_plan_parse(texts[i], strlen(texts[i]), "x", &planned, NULL, 0), status);
  }
}

static void test_files(void **state) {
  (void)state;
  char path[] = "/tmp/recvpool-plan-XXXXXX", message[256] = "";
  int fd = mkstemp(path);
  assert_true(fd >= 0);
  close(fd);
  json_t *json = make_plan("looped_bfs", 2, 2, RP_PLAN_RANK);
  assert_int_equal(rp_plan_write(json, path), RP_OK);
  struct rp_planned planned;
  assert_int_equal(rp_plan_read(path, &planned, message, sizeof(message)), RP_OK);
  assert_true(json_equal(planned.json, json));
  rp_planned_fini(&planned);
  unlink(path);
  assert_int_equal(rp_plan_read(path, &planned, message, sizeof(message)), RP_ERROR_IO);
  assert_non_null(strstr(message, "No such file"));
  assert_int_equal(rp_plan_write(json, "/proc/nowhere/plan"), RP_ERROR_IO);
  json_decref(json);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_read_back),
      cmocka_unit_test(test_several_stages),
      cmocka_unit_test(test_unknown_fields_are_kept),
      cmocka_unit_test(test_damaged),
      cmocka_unit_test(test_bounds),
      cmocka_unit_test(test_not_json),
      cmocka_unit_test(test_files),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
