/* Reading a report that anybody may have written. Nothing is waited for (a pipe), nothing is read that is no
 * file, and what a file can take of memory is known before it is taken. */
#include "agent/report_input.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/report.h"

#define MIB (1u << 20)

static bool refuse(char *reason, const char *text) {
  snprintf(reason, RP_INPUT_REASON, "%s", text);
  return false;
}

static bool refuse_error(char *reason) {
  snprintf(reason, RP_INPUT_REASON, "cannot be read: %s", strerror(errno));
  return false;
}

/* O_NONBLOCK: opening a pipe must not wait for a writer. */
static int open_file(int dir, const char *name, bool follow, struct stat *info, char *reason) {
  int file = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | (follow ? 0 : O_NOFOLLOW));
  if (file < 0) {
    if (errno == ELOOP && !follow)
      (void)refuse(reason, "a symbolic link");
    else if (errno == ENXIO) /* a socket, or a device without anything behind it */
      (void)refuse(reason, "not a regular file");
    else
      (void)refuse_error(reason);
    return -1;
  }
  bool usable = false;
  if (fstat(file, info) != 0)
    (void)refuse_error(reason);
  else if (!S_ISREG(info->st_mode))
    (void)refuse(reason, "not a regular file");
  else if (info->st_size == 0)
    (void)refuse(reason, "empty");
  else if (info->st_size > (off_t)RP_INPUT_BYTES)
    snprintf(reason, RP_INPUT_REASON, "too large: %lld MiB, and a report has at most %u",
             (long long)(info->st_size / MIB), RP_INPUT_BYTES / MIB);
  else
    usable = true;
  if (usable) return file;
  (void)close(file);
  return -1;
}

/* Bytes read of `size`, or -1 with errno. */
static ssize_t read_all(int file, char *text, size_t size) {
  size_t done = 0;
  while (done < size) {
    ssize_t got = read(file, text + done, size - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return -1;
    if (got == 0) break;
    done += (size_t)got;
  }
  return (ssize_t)done;
}

bool rp_input_read(int dir, const char *name, bool follow, struct rp_input *out, char *reason) {
  *out = (struct rp_input){0};
  int file = open_file(dir, name, follow, &out->info, reason);
  if (file < 0) return false;
  size_t size = (size_t)out->info.st_size;
  char *text = malloc(size + 1);
  ssize_t got = text ? read_all(file, text, size + 1) : -1; /* one more than there should be */
  bool whole = got == (ssize_t)size;
  if (!text)
    (void)refuse(reason, "no memory");
  else if (got < 0)
    (void)refuse_error(reason);
  else if (!whole)
    (void)refuse(reason, "changed while it was read");
  (void)close(file);
  if (!whole) {
    free(text);
    return false;
  }
  text[size] = '\0';
  out->text = text;
  out->bytes = size;
  return true;
}

/* Every value but the first follows one of these; those in texts are counted too, which only makes it
 * stricter. */
static bool has_too_many_values(const char *text, size_t bytes) {
  size_t values = 0;
  for (size_t i = 0; i < bytes; i++)
    values += text[i] == ',' || text[i] == '[' || text[i] == '{';
  return values > RP_INPUT_VALUES;
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

json_t *rp_input_parse(const char *text, size_t bytes, char *reason) {
  json_error_t error;
  if (has_too_many_values(text, bytes)) {
    snprintf(reason, RP_INPUT_REASON, "too many values: a report has at most %u", RP_INPUT_VALUES);
    return NULL;
  }
  json_t *json = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
  if (!json) {
    snprintf(reason, RP_INPUT_REASON, "not whole JSON: line %d: %.160s", error.line, error.text);
    return NULL;
  }
  const char *why = unusable(json);
  if (!why) return json;
  (void)refuse(reason, why);
  json_decref(json);
  return NULL;
}

bool rp_input_is_report_name(const char *name) {
  const char *dot = strrchr(name, '.');
  return name[0] != '.' && dot && strcmp(dot, ".json") == 0;
}

bool rp_input_process_is_gone(const json_t *report) {
  const char *state = json_string_value(json_object_get(report, "state"));
  const json_t *process = json_object_get(report, "process");
  const char *boot_id = json_string_value(json_object_get(process, "boot_id"));
  json_int_t pid = json_integer_value(json_object_get(process, "pid"));
  struct rp_incarnation of = {
      .pid_namespace = (uint64_t)json_integer_value(json_object_get(process, "pid_namespace")),
      .start_ticks = (uint64_t)json_integer_value(json_object_get(process, "start_ticks"))};
  if (!state || strcmp(state, "running") != 0 || !boot_id || pid <= 0 || pid > INT32_MAX) return false;
  snprintf(of.boot_id, sizeof of.boot_id, "%s", boot_id);
  return rp_incarnation_is_gone((pid_t)pid, &of);
}

/* ---- two reports of one process ---- */

static bool is_from_outside(const json_t *report) {
  size_t i;
  json_t *source;
  json_array_foreach(json_object_get(report, "evidence"), i, source) {
    const char *name = json_string_value(json_object_get(source, "name"));
    if (name && strcmp(name, "uprobes") == 0 && json_is_true(json_object_get(source, "active"))) return true;
  }
  return false;
}

static char *key_of(const char *what, const json_t *process, const char *first, const char *second) {
  const char *boot_id = json_string_value(json_object_get(process, "boot_id"));
  const json_t *ticks = json_object_get(process, "start_ticks");
  if (!boot_id || !json_is_integer(ticks) || !json_is_integer(json_object_get(process, first))) return NULL;
  json_t *key = json_pack("[s, s, O, O, O?]", what, boot_id, ticks, json_object_get(process, first),
                          json_object_get(process, second));
  char *text = key ? json_dumps(key, JSON_COMPACT) : NULL;
  json_decref(key);
  return text;
}

void rp_input_identify(const json_t *report, struct rp_input_identity *out) {
  const json_t *process = json_object_get(report, "process");
  *out = (struct rp_input_identity){
      .by_pid = key_of("pid", process, "pid", "pid_namespace"),
      .by_rank = key_of("rank", process, "rank", "command"),
      .pid_namespace = json_integer_value(json_object_get(process, "pid_namespace")),
      .outside = is_from_outside(report),
  };
}

void rp_input_identity_fini(struct rp_input_identity *identity) {
  free(identity->by_pid);
  free(identity->by_rank);
  *identity = (struct rp_input_identity){0};
}

void rp_input_note_own(json_t *own, const struct rp_input_identity *identity, size_t index) {
  const char *const keys[] = {identity->by_pid, identity->by_rank};
  for (size_t i = 0; !identity->outside && i < 2; i++)
    if (keys[i])
      (void)json_object_set_new_nocheck(own, keys[i],
                                        json_pack("[I, I]", (json_int_t)index, identity->pid_namespace));
}

size_t rp_input_find_own(const json_t *own, const struct rp_input_identity *identity) {
  if (!identity->outside) return SIZE_MAX;
  const json_t *found = identity->by_pid ? json_object_get(own, identity->by_pid) : NULL;
  if (!found && identity->by_rank) {
    found = json_object_get(own, identity->by_rank);
    /* in one namespace the ids would be the same */
    if (json_integer_value(json_array_get(found, 1)) == identity->pid_namespace) found = NULL;
  }
  return found ? (size_t)json_integer_value(json_array_get(found, 0)) : SIZE_MAX;
}

bool rp_input_is_same(const struct stat *a, const struct stat *b) {
  return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
         a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec &&
         a->st_ctim.tv_sec == b->st_ctim.tv_sec && a->st_ctim.tv_nsec == b->st_ctim.tv_nsec;
}
