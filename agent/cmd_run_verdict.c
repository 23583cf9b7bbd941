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

/* Violations that the report tells of, if it is one of this run and really enforced. */
static uint64_t violations_of(const json_t *report, const char *run) {
  const json_t *enforcement = json_object_get(report, "enforcement");
  const char *word = json_string_value(json_object_get(json_object_get(report, "configuration"), "run"));
  const char *mode = json_string_value(json_object_get(enforcement, "mode"));
  if (!word || strcmp(word, run) != 0 || !mode || strcmp(mode, "enforce") != 0) return 0;
  json_int_t count =
      json_integer_value(json_object_get(json_object_get(enforcement, "totals"), "violations"));
  return count > 0 ? (uint64_t)count : 0;
}

static void add_report(int folder, const char *dir, const char *name, const char *run,
                       struct rp__verdict *out) {
  json_t *report = load(folder, name);
  uint64_t violations = violations_of(report, run);
  json_decref(report);
  if (!violations) return;
  out->processes++;
  if (__builtin_add_overflow(out->violations, violations, &out->violations)) out->violations = UINT64_MAX;
  if (!out->path[0]) snprintf(out->path, sizeof out->path, "%s/%s", dir, name);
}

void rp__run_verdict(const char *dir, const char *run, uint64_t since_ns, struct rp__verdict *out) {
  memset(out, 0, sizeof *out);
  DIR *folder = opendir(dir);
  if (!folder) return; /* nothing was written */
  const struct dirent *entry;
  while ((entry = readdir(folder)) != NULL)
    if (attached_since(entry->d_name, since_ns)) add_report(dirfd(folder), dir, entry->d_name, run, out);
  (void)closedir(folder);
}
