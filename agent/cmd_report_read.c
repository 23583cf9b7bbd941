/* Reading reports: any number of files and folders; what is torn, foreign or of another version is skipped
 * and named. A folder can hold several runs; reports belong to one job when they share a communicator,
 * directly or through others. */
#include "agent/command.h"

#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "agent/report.h"

static rp_status skip(struct rp_read_set *set, const char *path, const char *reason) {
  if (!set->skipped) set->skipped = json_array();
  rp_cmd_error(set->subcommand ? set->subcommand : "report", "skipping %s: %s", path, reason);
  json_t *entry = json_pack("{s:s, s:s}", "path", path, "reason", reason);
  if (!entry) /* the path is not UTF-8 */
    entry = json_pack("{s:s, s:s}", "path", "(name is not UTF-8)", "reason", reason);
  return json_array_append_new(set->skipped, entry) == 0 ? RP_OK : RP_ERROR_NO_MEMORY;
}

/* Why `json` cannot be shown, or NULL. */
static const char *unusable(const json_t *json) {
  const char *schema = json_string_value(json_object_get(json, "schema"));
  const char *version = json_string_value(json_object_get(json, "schema_version"));
  if (!schema || strcmp(schema, RP_REPORT_SCHEMA) != 0) return "not a recvpool report";
  if (!version || strncmp(version, RP_REPORT_SCHEMA_VERSION, 2) != 0)
    return "a report of another version; this recvpool reads " RP_REPORT_SCHEMA_VERSION;
  if (!json_is_object(json_object_get(json, "process")) ||
      !json_is_array(json_object_get(json, "channels")) || !json_is_object(json_object_get(json, "totals")))
    return "a report with parts missing";
  return NULL;
}

/* Steals `json`. */
static rp_status keep(struct rp_read_set *set, const char *path, json_t *json) {
  struct rp_read_report *grown = realloc(set->reports, (set->count + 1) * sizeof *grown);
  char *name = strdup(path);
  if (grown) set->reports = grown;
  if (!grown || !name) {
    free(name);
    json_decref(json);
    return RP_ERROR_NO_MEMORY;
  }
  grown[set->count++] = (struct rp_read_report){.path = name, .json = json};
  return RP_OK;
}

static rp_status add_file(struct rp_read_set *set, const char *path) {
  json_error_t error;
  json_t *json = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
  if (!json) {
    char reason[JSON_ERROR_TEXT_LENGTH + 64];
    if (error.line < 0)
      snprintf(reason, sizeof reason, "cannot be read: %s", strerror(errno));
    else
      snprintf(reason, sizeof reason, "not whole JSON: line %d: %s", error.line, error.text);
    return skip(set, path, reason);
  }
  const char *reason = unusable(json);
  if (!reason) return keep(set, path, json);
  json_decref(json);
  return skip(set, path, reason);
}

static int is_report_name(const struct dirent *entry) {
  const char *dot = strrchr(entry->d_name, '.');
  return entry->d_name[0] != '.' && dot && strcmp(dot, ".json") == 0;
}

/* In a folder only plain files are read: a pipe would be waited for, and folders are not descended into. */
static rp_status add_entry(struct rp_read_set *set, const char *path) {
  struct stat info;
  if (stat(path, &info) == 0 && !S_ISREG(info.st_mode)) return skip(set, path, "not a regular file");
  return add_file(set, path);
}

static rp_status add_folder(struct rp_read_set *set, const char *dir) {
  struct dirent **entries = NULL;
  int count = scandir(dir, &entries, is_report_name, alphasort);
  if (count < 0) return skip(set, dir, strerror(errno));
  rp_status status = RP_OK;
  const char *slash = dir[0] && dir[strlen(dir) - 1] == '/' ? "" : "/";
  for (int i = 0; i < count; i++) {
    size_t size = strlen(dir) + strlen(entries[i]->d_name) + 2;
    char *path = malloc(size);
    if (path) snprintf(path, size, "%s%s%s", dir, slash, entries[i]->d_name);
    if (status == RP_OK) status = path ? add_entry(set, path) : RP_ERROR_NO_MEMORY;
    free(path);
    free(entries[i]);
  }
  free(entries);
  return status;
}

rp_status rp_read_add(struct rp_read_set *set, const char *path) {
  struct stat info;
  if (stat(path, &info) != 0) {
    int error = errno;
    set->path_missing = true;
    return skip(set, path, strerror(error));
  }
  return S_ISDIR(info.st_mode) ? add_folder(set, path) : add_file(set, path);
}

static json_int_t process_integer(const struct rp_read_report *report, const char *key,
                                  json_int_t otherwise) {
  const json_t *value = json_object_get(json_object_get(report->json, "process"), key);
  return json_is_integer(value) ? json_integer_value(value) : otherwise;
}

static double start_seconds(const struct rp_read_report *report) {
  return json_number_value(json_object_get(json_object_get(report->json, "process"), "start_unix_seconds"));
}

static double written_seconds(const struct rp_read_report *report) {
  return json_number_value(json_object_get(report->json, "written_unix_seconds"));
}

static bool same_process(const struct rp_read_report *a, const struct rp_read_report *b) {
  const json_t *x = json_object_get(a->json, "process"), *y = json_object_get(b->json, "process");
  static const char *const keys[] = {"host", "pid", "start_monotonic_ns"};
  for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
    if (!json_equal(json_object_get(x, keys[i]), json_object_get(y, keys[i]))) return false;
  return true;
}

static int by_job_and_rank(const void *a_pointer, const void *b_pointer) {
  const struct rp_read_report *a = a_pointer, *b = b_pointer;
  if (a->job != b->job) return a->job < b->job ? -1 : 1;
  json_int_t a_rank = process_integer(a, "rank", INT64_MAX), b_rank = process_integer(b, "rank", INT64_MAX);
  if (a_rank != b_rank) return a_rank < b_rank ? -1 : 1;
  return strcmp(a->path, b->path);
}

static int by_start(const void *a_pointer, const void *b_pointer) {
  double a = start_seconds(a_pointer), b = start_seconds(b_pointer);
  if (a != b) return a < b ? -1 : 1;
  return strcmp(((const struct rp_read_report *)a_pointer)->path,
                ((const struct rp_read_report *)b_pointer)->path);
}

static void merge_jobs(struct rp_read_set *set, size_t into, size_t from) {
  for (size_t i = 0; i < set->count; i++)
    if (set->reports[i].job == from) set->reports[i].job = into;
}

/* Joins the report to the job that `id` belongs to. `owner` maps ids to the report that showed them first. */
static rp_status join_by_id(struct rp_read_set *set, size_t index, json_t *owner, const char *id) {
  const json_t *first = json_object_get(owner, id);
  if (!first)
    return json_object_set_new(owner, id, json_integer((json_int_t)index)) == 0 ? RP_OK : RP_ERROR_NO_MEMORY;
  size_t into = set->reports[json_integer_value(first)].job, from = set->reports[index].job;
  if (into != from) merge_jobs(set, into < from ? into : from, into < from ? from : into);
  return RP_OK;
}

/* Joins the report to the jobs whose communicators it shares; those without a communicator stand together. */
static rp_status join_job(struct rp_read_set *set, size_t index, json_t *owner) {
  const json_t *communicators = json_object_get(set->reports[index].json, "communicators");
  rp_status status = RP_OK;
  size_t known = 0;
  for (size_t i = 0; i < json_array_size(communicators) && status == RP_OK; i++) {
    const char *id = json_string_value(json_object_get(json_array_get(communicators, i), "communicator_id"));
    if (!id) continue;
    known++;
    status = join_by_id(set, index, owner, id);
  }
  return known ? status : join_by_id(set, index, owner, "none");
}

/* Jobs are numbered from 0 in the order of their first process. */
static void number_jobs(struct rp_read_set *set) {
  for (size_t i = 0; i < set->count; i++) {
    bool numbered = set->reports[i].job < set->job_count;
    if (!numbered) merge_jobs(set, set->job_count++, set->reports[i].job);
  }
}

/* The report of the same process among the first `count`, which are sorted by start, or NULL. */
static struct rp_read_report *find_same(struct rp_read_report *reports, size_t count,
                                        const struct rp_read_report *as) {
  for (size_t i = count; i-- > 0 && start_seconds(&reports[i]) == start_seconds(as);)
    if (same_process(&reports[i], as)) return &reports[i];
  return NULL;
}

/* A file named twice, or named beside its folder, is one process and is counted once; of two states of it the
 * later one counts. The set is sorted by start. */
static void drop_repeated(struct rp_read_set *set) {
  size_t kept = 0;
  for (size_t i = 0; i < set->count; i++) {
    struct rp_read_report report = set->reports[i], *same = find_same(set->reports, kept, &report);
    if (!same) {
      set->reports[kept++] = report;
      continue;
    }
    if (written_seconds(&report) > written_seconds(same)) {
      struct rp_read_report earlier = *same;
      *same = report;
      report = earlier;
    }
    free(report.path);
    json_decref(report.json);
  }
  set->count = kept;
}

rp_status rp_read_finish(struct rp_read_set *set) {
  json_t *owner = json_object();
  if (!owner || (!set->skipped && !(set->skipped = json_array()))) {
    json_decref(owner);
    return RP_ERROR_NO_MEMORY;
  }
  if (set->count) qsort(set->reports, set->count, sizeof *set->reports, by_start);
  drop_repeated(set);
  rp_status status = RP_OK;
  for (size_t i = 0; i < set->count; i++)
    set->reports[i].job = set->count + i; /* above every final number */
  for (size_t i = 0; i < set->count && status == RP_OK; i++)
    status = join_job(set, i, owner);
  number_jobs(set);
  if (set->count) qsort(set->reports, set->count, sizeof *set->reports, by_job_and_rank);
  json_decref(owner);
  return status;
}

void rp_read_fini(struct rp_read_set *set) {
  for (size_t i = 0; i < set->count; i++) {
    free(set->reports[i].path);
    json_decref(set->reports[i].json);
  }
  free(set->reports);
  json_decref(set->skipped);
  memset(set, 0, sizeof *set);
}
