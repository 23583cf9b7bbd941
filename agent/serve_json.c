/* The API's documents, from copies of what the store holds. */
#include <stdlib.h>
#include <string.h>

#include "agent/cmd_report_text.h"
#include "agent/command.h"
#include "agent/overview.h"
#include "agent/report.h"
#include "agent/serve.h"

/* A process that says it runs but has not written for this many of its intervals is stale. */
#define STALE_SECONDS 60.0

struct rows {
  json_t **list;
  size_t count, capacity;
  double now;
};

static void put_copy(json_t *row, const json_t *from, const char *key) {
  json_t *value = json_object_get(from, key);
  if (value) (void)json_object_set_new(row, key, json_deep_copy(value));
}

static const char *condition(const struct rp_serve_process *process, double now) {
  if (process->finished) return "finished";
  if (process->ended) return "ended";
  return now - process->written_unix_seconds > STALE_SECONDS ? "stale" : "running";
}

static void add_row(void *context, const struct rp_serve_process *process) {
  struct rows *rows = context;
  const json_t *who = json_object_get(process->summary, "process");
  static const char *const identity[] = {"host",       "pid",     "rank",
                                         "world_size", "command", "start_unix_seconds"};
  json_t *row =
      json_pack("{s:I, s:s}", "id", (json_int_t)process->id, "state", condition(process, rows->now));
  if (!row) return;
  for (size_t i = 0; i < sizeof identity / sizeof identity[0]; i++)
    put_copy(row, who, identity[i]);
  put_copy(row, process->summary, "mode");
  put_copy(row, process->summary, "passive_reason");
  put_copy(row, process->summary, "written_unix_seconds");
  put_copy(row, process->summary, "totals");
  if (rows->count == rows->capacity) {
    size_t capacity = rows->capacity ? 2 * rows->capacity : 64;
    json_t **grown = realloc(rows->list, capacity * sizeof *grown);
    if (!grown) {
      json_decref(row);
      return;
    }
    rows->list = grown;
    rows->capacity = capacity;
  }
  rows->list[rows->count++] = row;
}

/* What is missing, or no number, comes last. */
static int by_integer(const json_t *a, const json_t *b, const char *key) {
  const json_t *x = json_object_get(a, key), *y = json_object_get(b, key);
  bool x_is = json_is_integer(x), y_is = json_is_integer(y);
  if (!x_is || !y_is) return (int)y_is - (int)x_is;
  json_int_t p = json_integer_value(x), q = json_integer_value(y);
  return p == q ? 0 : p < q ? -1 : 1;
}

static int by_place(const void *a_pointer, const void *b_pointer) {
  const json_t *a = *(json_t *const *)a_pointer, *b = *(json_t *const *)b_pointer;
  const char *x = json_string_value(json_object_get(a, "host"));
  const char *y = json_string_value(json_object_get(b, "host"));
  int order = strcmp(x ? x : "", y ? y : "");
  if (!order) order = by_integer(a, b, "rank");
  if (!order) order = by_integer(a, b, "pid");
  return order ? order : by_integer(a, b, "id");
}

static json_t *sorted(struct rows *rows) {
  json_t *array = json_array();
  if (rows->count) qsort(rows->list, rows->count, sizeof(json_t *), by_place);
  for (size_t i = 0; i < rows->count; i++)
    (void)json_array_append_new(array, rows->list[i]);
  free(rows->list);
  return array;
}

json_t *rp_serve_processes_json(struct rp_serve_store *store) {
  struct rows rows = {.now = rp_serve_now()};
  struct rp_serve_counts counts = rp_serve_store_counts(store);
  rp_serve_store_each(store, add_row, &rows);
  return json_pack("{s:s, s:s, s:f, s:o, s:o, s:I, s:I}", "schema", "recvpool.processes", "schema_version",
                   "1.1", "now_unix_seconds", rows.now, "processes", sorted(&rows), "skipped",
                   rp_serve_store_skipped(store), "skipped_count", (json_int_t)counts.skipped,
                   "dropped_count", (json_int_t)counts.dropped);
}

static void add_report(void *context, const struct rp_serve_process *process) {
  struct rp_read_set *set = context;
  struct rp_read_report *grown = realloc(set->reports, (set->count + 1) * sizeof *grown);
  char *name = strdup(process->name);
  if (grown) set->reports = grown;
  if (!grown || !name) {
    free(name);
    return;
  }
  /* shared, not copied: a summary never changes, and references are counted atomically */
  set->reports[set->count++] =
      (struct rp_read_report){.path = name, .json = json_incref(process->summary), .ended = process->ended};
}

/* What a page says where there is nothing to show. */
static void put_folder(json_t *jobs, struct rp_serve_store *store) {
  int error = rp_serve_store_counts(store).error;
  char problem[128];
  (void)json_object_set_new(jobs, "report_dir", rp__json_text(rp_serve_store_dir(store)));
  (void)json_object_set_new(jobs, "report_dir_problem",
                            error ? json_string(rp_serve_folder_problem(error, problem, sizeof problem))
                                  : json_null());
}

json_t *rp_serve_jobs_json(struct rp_serve_store *store) {
  struct rp_read_set set = {.skipped = rp_serve_store_skipped(store), .subcommand = "serve"};
  json_t *jobs = NULL;
  rp_serve_store_each(store, add_report, &set);
  if (rp_read_finish(&set) == RP_OK) jobs = rp_overview(&set);
  if (jobs) {
    (void)json_object_set_new(jobs, "now_unix_seconds", json_real(rp_serve_now()));
    put_folder(jobs, store);
  }
  rp_read_fini(&set);
  return jobs;
}
