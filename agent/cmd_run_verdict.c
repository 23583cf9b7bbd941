/* Finds the reports of one run in a folder that may hold those of any number of others. The name of a report
 * says when its process attached, so older ones are not even opened; what is opened belongs to the run only
 * if it carries the run's own random word. */
#include "agent/cmd_run_verdict.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/cmd_report_text.h"
#include "agent/report_input.h"

/* HOST-PID-STARTNS.json */
static bool attached_since(const char *name, uint64_t since_ns) {
  const char *dash = strrchr(name, '-');
  char *end;
  if (name[0] == '.' || !dash || dash[1] < '0' || dash[1] > '9') return false;
  errno = 0;
  unsigned long long start_ns = strtoull(dash + 1, &end, 10);
  return errno == 0 && strcmp(end, ".json") == 0 && start_ns >= since_ns;
}

/* A link or a pipe is no report: the agent renames a plain file into its place. */
static json_t *load(int folder, const char *name) {
  struct stat info;
  int file = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (file < 0) return NULL;
  json_t *json = fstat(file, &info) == 0 && S_ISREG(info.st_mode) ? json_loadfd(file, 0, NULL) : NULL;
  (void)close(file);
  return json;
}

static bool is_of_run(const json_t *report, const char *run) {
  return strcmp(rp__text_of(json_object_get(report, "configuration"), "run", ""), run) == 0;
}

/* Violations that the report tells of, if it really enforced. */
static uint64_t violations_of(const json_t *report) {
  const json_t *enforcement = json_object_get(report, "enforcement");
  if (strcmp(rp__text_of(enforcement, "mode", ""), "enforce") != 0) return 0;
  return rp__count_of(json_object_get(enforcement, "totals"), "violations");
}

static void add_violations(struct rp__verdict *out, uint64_t violations, const char *name) {
  if (!violations) return;
  out->violating++;
  out->violations = rp__add(out->violations, violations);
  if (out->named_count == RP_VERDICT_NAMED) return;
  char *copy = strdup(name);
  if (copy) out->named[out->named_count++] = copy;
}

static void add_end(struct rp__verdict *out, const json_t *report) {
  uint64_t steps = rp__count_of(json_object_get(report, "totals"), "steps_complete");
  double written = json_number_value(json_object_get(report, "written_unix_seconds"));
  bool first = out->unfinished++ == 0;
  if (first || steps < out->steps_least) out->steps_least = steps;
  if (first || steps > out->steps_most) out->steps_most = steps;
  if (first || written < out->first_seconds) out->first_seconds = written;
  if (first || written > out->last_seconds) out->last_seconds = written;
}

static void add_report(int folder, const char *name, const char *run, struct rp__verdict *out) {
  json_t *report = load(folder, name);
  if (is_of_run(report, run)) {
    out->processes++;
    add_violations(out, violations_of(report), name);
    if (strcmp(rp__text_of(report, "state", ""), "finished") != 0) add_end(out, report);
  }
  json_decref(report);
}

static int is_report(const struct dirent *entry) {
  return rp_input_is_report_name(entry->d_name);
}

void rp__run_verdict(const char *dir, const char *run, uint64_t since_ns, struct rp__verdict *out) {
  memset(out, 0, sizeof *out);
  struct dirent **entries = NULL;
  int folder = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return; /* nothing was written */
  int count = scandir(dir, &entries, is_report, alphasort);
  for (int i = 0; i < count; i++) {
    if (attached_since(entries[i]->d_name, since_ns)) add_report(folder, entries[i]->d_name, run, out);
    free(entries[i]);
  }
  free(entries);
  (void)close(folder);
}

void rp__run_verdict_fini(struct rp__verdict *verdict) {
  for (size_t i = 0; i < verdict->named_count; i++)
    free(verdict->named[i]);
}
