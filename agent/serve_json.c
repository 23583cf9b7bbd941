/* The API's documents, from copies of what the store holds. */
#include <stdlib.h>
#include <string.h>

#include "agent/command.h"
#include "agent/overview.h"
#include "agent/report.h"
#include "agent/serve.h"

/* A process that says it runs but has not written for this many of its intervals is stale. */
#define STALE_SECONDS 60.0

struct rows {
  json_t *array;
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
  (void)json_array_append_new(rows->array, row);
}

json_t *rp_serve_processes_json(struct rp_serve_store *store) {
  struct rows rows = {json_array(), rp_serve_now()};
  struct rp_serve_counts counts = rp_serve_store_counts(store);
  rp_serve_store_each(store, add_row, &rows);
  return json_pack("{s:s, s:s, s:f, s:o, s:o, s:I, s:I}", "schema", "recvpool.processes", "schema_version",
                   "1.1", "now_unix_seconds", rows.now, "processes", rows.array, "skipped",
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

json_t *rp_serve_jobs_json(struct rp_serve_store *store) {
  struct rp_read_set set = {.skipped = rp_serve_store_skipped(store), .subcommand = "serve"};
  json_t *jobs = NULL;
  rp_serve_store_each(store, add_report, &set);
  if (rp_read_finish(&set) == RP_OK) jobs = rp_overview(&set);
  if (jobs) (void)json_object_set_new(jobs, "now_unix_seconds", json_real(rp_serve_now()));
  rp_read_fini(&set);
  return jobs;
}
