/* Reading reports: any number of files and folders; what is torn, foreign or of another version is skipped
 * and named. Files are read by several threads where there are many, each report is digested at once, and of
 * a lean set only the digest stays. */
#include "agent/command.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "agent/cmd_report_digest.h"
#include "agent/cmd_report_group.h"
#include "agent/report_input.h"

/* A thread is worth its start for so many files; more than MOST_THREADS wait for the disk, and each holds a
 * report. */
#define FILES_PER_THREAD 64
#define MOST_THREADS 8
/* Texts kept, so that a job of usual size is shown as of one moment; beyond them files are read again. */
#define TEXTS_BYTES ((size_t)64 << 20)
#define PROGRESS_NS 200000000
#define PROGRESS_FROM 256

/* ---- what is to be read ---- */

static rp_status skip(struct rp_read_set *set, const char *path, const char *reason) {
  if (!set->skipped) set->skipped = json_array();
  rp_cmd_error(set->subcommand ? set->subcommand : "report", "skipping %s: %s", path, reason);
  json_t *entry = json_pack("{s:s, s:s}", "path", path, "reason", reason);
  if (!entry) /* the path is not UTF-8 */
    entry = json_pack("{s:s, s:s}", "path", "(name is not UTF-8)", "reason", reason);
  return json_array_append_new(set->skipped, entry) == 0 ? RP_OK : RP_ERROR_NO_MEMORY;
}

/* Takes `path` over. */
static rp_status add_path(struct rp_read_set *set, char *path, bool named) {
  size_t count = set->count;
  if (path && (count & (count - 1)) == 0) { /* room for twice as many at powers of two */
    struct rp_read_report *grown = realloc(set->reports, (count ? 2 * count : 1) * sizeof *grown);
    if (grown) set->reports = grown;
    if (!grown) {
      free(path);
      path = NULL;
    }
  }
  if (!path) return RP_ERROR_NO_MEMORY;
  set->reports[set->count++] = (struct rp_read_report){.path = path, .named = named};
  return RP_OK;
}

static int is_report_entry(const struct dirent *entry) {
  return rp_input_is_report_name(entry->d_name);
}

static rp_status add_folder(struct rp_read_set *set, const char *dir) {
  struct dirent **entries = NULL;
  int count = scandir(dir, &entries, is_report_entry, alphasort);
  if (count < 0) {
    set->path_missing = true;
    return skip(set, dir, strerror(errno));
  }
  rp_status status = RP_OK;
  const char *slash = dir[0] && dir[strlen(dir) - 1] == '/' ? "" : "/";
  for (int i = 0; i < count; i++) {
    size_t size = strlen(dir) + strlen(entries[i]->d_name) + 2;
    char *path = malloc(size);
    if (path) snprintf(path, size, "%s%s%s", dir, slash, entries[i]->d_name);
    if (status == RP_OK)
      status = add_path(set, path, false);
    else
      free(path);
    free(entries[i]);
  }
  free(entries);
  return status;
}

rp_status rp_read_add(struct rp_read_set *set, const char *path) {
  struct stat info;
  if (stat(path, &info) == 0)
    return S_ISDIR(info.st_mode) ? add_folder(set, path) : add_path(set, strdup(path), true);
  int error = errno;
  set->path_missing = true;
  return skip(set, path, strerror(error));
}

/* ---- reading it ---- */

struct reading {
  struct rp_read_set *set;
  char (*reasons)[RP_INPUT_REASON]; /* by report; empty where it was read */
  atomic_size_t next, done;
  atomic_size_t texts_left; /* bytes that may still be kept */
};

static bool take_room(atomic_size_t *left, size_t bytes) {
  size_t before = atomic_load(left);
  while (before >= bytes)
    if (atomic_compare_exchange_weak(left, &before, before - bytes)) return true;
  return false;
}

static json_t *read_report(const struct rp_read_report *report, struct rp_input *input, char *reason) {
  if (!rp_input_read(AT_FDCWD, report->path, report->named, input, reason)) return NULL;
  return rp_input_parse(input->text, input->bytes, reason);
}

/* Its process is gone, and has left nothing later. */
static bool has_ended(const struct rp_read_report *report, const json_t *json, const struct stat *read) {
  struct stat now;
  return rp_input_process_is_gone(json) && stat(report->path, &now) == 0 && rp_input_is_same(read, &now);
}

/* Reads and digests one file; on failure there is a reason. */
static void read_one(struct reading *reading, struct rp_read_report *report, char *reason) {
  const struct rp_read_set *set = reading->set;
  struct rp_input input;
  json_t *json = read_report(report, &input, reason);
  if (json) report->digest = rp__digest_create(json, set->lean);
  report->ended = json && has_ended(report, json, &input.info);
  if (json && !report->digest) snprintf(reason, RP_INPUT_REASON, "no memory");
  if (report->digest && set->lean && set->keep_texts && take_room(&reading->texts_left, input.bytes)) {
    report->text = input.text;
    report->text_bytes = input.bytes;
  } else {
    free(input.text);
  }
  if (report->digest && !set->lean)
    report->json = json;
  else
    json_decref(json);
}

static void show_progress(struct reading *reading, uint64_t *shown_ns) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  uint64_t now_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
  if (now_ns - *shown_ns < PROGRESS_NS) return;
  if (*shown_ns)
    fprintf(stderr, "\rread %zu of %zu reports", atomic_load(&reading->done), reading->set->count);
  *shown_ns = now_ns;
}

static void read_some(struct reading *reading, bool progress) {
  uint64_t shown_ns = 0;
  for (;;) {
    size_t i = atomic_fetch_add(&reading->next, 1);
    if (i >= reading->set->count) return;
    read_one(reading, &reading->set->reports[i], reading->reasons[i]);
    atomic_fetch_add(&reading->done, 1);
    if (progress) show_progress(reading, &shown_ns);
  }
}

static void *run_reader(void *argument) {
  read_some(argument, false);
  return NULL;
}

/* The calling thread reads as well, so there is no need for others where they cannot be had. */
static void read_all(struct reading *reading) {
  pthread_t threads[MOST_THREADS];
  long processors = sysconf(_SC_NPROCESSORS_ONLN);
  size_t wanted = reading->set->count / FILES_PER_THREAD, started = 0;
  if (processors > 0 && wanted > (size_t)processors) wanted = (size_t)processors;
  if (wanted > MOST_THREADS) wanted = MOST_THREADS;
  json_object_seed(0); /* not from several threads at once */
  bool progress = reading->set->progress && reading->set->count >= PROGRESS_FROM;
  while (started + 1 < wanted && pthread_create(&threads[started], NULL, run_reader, reading) == 0)
    started++;
  read_some(reading, progress);
  for (size_t i = 0; i < started; i++)
    (void)pthread_join(threads[i], NULL);
  if (progress) fputs("\r\033[K", stderr);
}

/* Takes out what could not be read, and says so in the order of the files. */
static rp_status drop_unread(struct rp_read_set *set, char (*reasons)[RP_INPUT_REASON]) {
  size_t kept = 0;
  rp_status status = RP_OK;
  for (size_t i = 0; i < set->count; i++) {
    struct rp_read_report *report = &set->reports[i];
    if (report->digest) {
      set->reports[kept++] = *report;
      continue;
    }
    rp_status skipped = skip(set, report->path, reasons[i][0] ? reasons[i] : "no memory");
    if (status == RP_OK) status = skipped;
    set->path_missing |= report->named;
    rp__report_fini(report);
  }
  set->count = kept;
  return status;
}

/* Reports that the caller put in as JSON are only digested. */
static rp_status digest_given(struct rp_read_set *set) {
  for (size_t i = 0; i < set->count; i++)
    if (!set->reports[i].digest && !(set->reports[i].digest = rp__digest_create(set->reports[i].json, false)))
      return RP_ERROR_NO_MEMORY;
  return RP_OK;
}

rp_status rp_read_finish(struct rp_read_set *set) {
  rp_status status = RP_OK;
  if (!set->skipped && !(set->skipped = json_array())) return RP_ERROR_NO_MEMORY;
  if (set->count && set->reports[0].json) {
    status = digest_given(set);
  } else if (set->count) {
    struct reading reading = {.set = set, .reasons = calloc(set->count, sizeof *reading.reasons)};
    if (!reading.reasons) return RP_ERROR_NO_MEMORY;
    atomic_init(&reading.texts_left, TEXTS_BYTES);
    read_all(&reading);
    status = drop_unread(set, reading.reasons);
    free(reading.reasons);
  }
  return status == RP_OK ? rp__group(set) : status;
}

json_t *rp_read_load(struct rp_read_set *set, size_t index) {
  struct rp_read_report *report = &set->reports[index];
  char reason[RP_INPUT_REASON] = "no memory";
  if (report->json) return json_incref(report->json);
  if (report->text) return json_loadb(report->text, report->text_bytes, 0, NULL);
  struct rp_input input;
  json_t *json = read_report(report, &input, reason);
  free(input.text);
  if (json && rp__digest_is_of(report->digest, json)) return json;
  struct rp_read_digest *fresh = json ? rp__digest_create(json, true) : NULL;
  bool same = fresh && strcmp(fresh->process, report->digest->process) == 0;
  if (json && !same) snprintf(reason, sizeof reason, "now the report of another process");
  if (!same) {
    (void)skip(set, report->path, reason);
    rp__digest_destroy(fresh);
    json_decref(json);
    rp__digest_empty(report->digest);
    return NULL;
  }
  rp__digest_destroy(report->digest);
  report->digest = fresh;
  return json;
}

void rp_read_fini(struct rp_read_set *set) {
  for (size_t i = 0; i < set->count; i++)
    rp__report_fini(&set->reports[i]);
  free(set->reports);
  free(set->job_first);
  json_decref(set->skipped);
  memset(set, 0, sizeof *set);
}
