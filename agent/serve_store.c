/* The store: one thread looks at the report folder and reads what changed since the last look. Owns the
 * processes it found and the list of files it could not use. Nothing of a file
 * is trusted beyond that it is a report, and none is read twice that has not changed. */
#include "agent/serve.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "agent/report_input.h"

#define LOOK_SECONDS 1
/* Files named in `skipped`; more are only counted. */
#define SKIPPED_KEPT 256
/* Files that are remembered as of no use; beyond them they are read again at each look. */
#define UNKEPT_MOST 65536

struct rp_serve_store {
  pthread_mutex_t lock;
  pthread_cond_t wake;
  pthread_t thread;
  bool stop;                          /* lock */
  struct rp_serve_process *processes; /* lock; by id */
  size_t count, capacity;             /* lock */
  struct rp_serve_counts counts;      /* lock */
  json_t *skipped;                    /* lock */
  uint64_t next_id;                   /* the thread's own, as all below */
  char *dir;
  uint64_t keep_seconds;
  json_t *index; /* of processes, by name */
  json_t *
      unkept; /* files of no use that the last look saw, by name: [stamp, reason; null where it is too old] */
};

/* What a look finds. */
struct look {
  int dir;
  uint64_t number, skipped_count;
  json_t *skipped, *unkept;
};

double rp_serve_now(void) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* ---- reading one file ---- */

/* Lifetimes are most of a report; they are served from its text. */
static void drop_lifetimes(json_t *report) {
  size_t i;
  json_t *channel;
  json_array_foreach(json_object_get(report, "channels"), i, channel) json_object_del(channel, "lifetimes");
}

/* Fills summary, text and what follows from them. */
static bool parse(struct rp_serve_process *process, char *reason) {
  json_t *json = rp_input_parse(process->text, process->text_bytes, reason);
  if (!json) return false;
  const char *state = json_string_value(json_object_get(json, "state"));
  process->finished = state && strcmp(state, "finished") == 0;
  process->written_unix_seconds = json_number_value(json_object_get(json, "written_unix_seconds"));
  drop_lifetimes(json);
  rp_input_identify(json, &process->identity);
  process->summary = json;
  return true;
}

static void process_fini(struct rp_serve_process *process) {
  free(process->name);
  free(process->text);
  json_decref(process->summary);
  rp_input_identity_fini(&process->identity);
}

static uint64_t mtime_of(const struct stat *info) {
  return (uint64_t)info->st_mtim.tv_sec * 1000000000u + (uint64_t)info->st_mtim.tv_nsec;
}

/* Reads `name` into `out`. False with the reason. */
static bool load(int dir, const char *name, struct rp_serve_process *out, char *reason) {
  struct rp_input input;
  if (!rp_input_read(dir, name, false, &input, reason)) return false;
  *out = (struct rp_serve_process){.name = strdup(name),
                                   .text = input.text,
                                   .text_bytes = input.bytes,
                                   .mtime_ns = mtime_of(&input.info),
                                   .inode = input.info.st_ino,
                                   .size_bytes = (uint64_t)input.info.st_size};
  if (!out->name) snprintf(reason, RP_INPUT_REASON, "no memory");
  if (out->name && parse(out, reason)) return true;
  process_fini(out);
  return false;
}

/* ---- a look at the folder ---- */

/* By name; only the thread calls it, and only the thread changes the list. */
static struct rp_serve_process *find(const struct rp_serve_store *store, const char *name) {
  const json_t *index = json_object_get(store->index, name);
  return index ? &store->processes[json_integer_value(index)] : NULL;
}

static bool put_in_index(struct rp_serve_store *store, const char *name, size_t index) {
  return json_object_set_new_nocheck(store->index, name, json_integer((json_int_t)index)) == 0;
}

static bool unchanged(int dir, const struct rp_serve_process *process) {
  struct stat info;
  return fstatat(dir, process->name, &info, AT_SYMLINK_NOFOLLOW) == 0 &&
         mtime_of(&info) == process->mtime_ns && info.st_ino == process->inode &&
         (uint64_t)info.st_size == process->size_bytes;
}

static bool make_room(struct rp_serve_store *store) {
  if (store->count < store->capacity) return true;
  size_t capacity = store->capacity ? 2 * store->capacity : 64;
  struct rp_serve_process *grown = realloc(store->processes, capacity * sizeof *grown);
  if (!grown) return false;
  store->processes = grown;
  store->capacity = capacity;
  return true;
}

static void keep(struct rp_serve_store *store, struct rp_serve_process *fresh, uint64_t look) {
  struct rp_serve_process *known = find(store, fresh->name);
  fresh->looked = look;
  fresh->id = known ? known->id : store->next_id + 1;
  fresh->second = known ? known->second : fresh->identity.outside; /* until the look is over */
  (void)json_object_set_new(fresh->summary, "id", json_integer((json_int_t)fresh->id));
  pthread_mutex_lock(&store->lock);
  if (known) {
    process_fini(known);
    *known = *fresh;
  } else if (store->count < RP_SERVE_PROCESSES && make_room(store) &&
             put_in_index(store, fresh->name, store->count)) {
    store->next_id = fresh->id;
    store->processes[store->count++] = *fresh;
  } else {
    store->counts.dropped++;
    process_fini(fresh);
  }
  pthread_mutex_unlock(&store->lock);
}

static bool aged_out(const struct rp_serve_store *store, const struct rp_serve_process *process) {
  return rp_serve_now() - process->written_unix_seconds > (double)store->keep_seconds;
}

/* Tells one content of a file from another; NULL where the file is gone. */
static json_t *stamp_of(int dir, const char *name) {
  struct stat info;
  if (fstatat(dir, name, &info, AT_SYMLINK_NOFOLLOW) != 0) return NULL;
  return json_pack("[I, I, I, I, I]", (json_int_t)mtime_of(&info), (json_int_t)info.st_ctim.tv_sec,
                   (json_int_t)info.st_ctim.tv_nsec, (json_int_t)info.st_ino, (json_int_t)info.st_size);
}

static void name_skipped(struct look *look, const char *name, const char *reason) {
  if (json_array_size(look->skipped) >= SKIPPED_KEPT) return;
  json_t *entry = json_pack("{s:s, s:s}", "name", name, "reason", reason);
  (void)json_array_append_new(
      look->skipped, entry ? entry : json_pack("{s:s, s:s}", "name", "(not UTF-8)", "reason", reason));
}

/* Notes that `name` is of no use: for `reason`, or because it is too old. Takes `stamp` over. */
static void leave_out(struct look *look, const char *name, const char *reason, json_t *stamp) {
  if (stamp && json_object_size(look->unkept) < UNKEPT_MOST)
    (void)json_object_set_new(look->unkept, name, json_pack("[O, s?]", stamp, reason));
  json_decref(stamp);
  if (!reason) return;
  look->skipped_count++;
  name_skipped(look, name, reason);
}

/* Whether the last look left it out as it is now. */
static bool is_as_left_out(const struct rp_serve_store *store, struct look *look, const char *name,
                           json_t *stamp) {
  json_t *known = json_object_get(store->unkept, name);
  if (!known || !stamp || !json_equal(json_array_get(known, 0), stamp)) return false;
  leave_out(look, name, json_string_value(json_array_get(known, 1)), json_incref(stamp));
  return true;
}

static void read_file(struct rp_serve_store *store, struct look *look, const char *name,
                      struct rp_serve_process *known, json_t *stamp) {
  struct rp_serve_process fresh;
  char reason[RP_INPUT_REASON];
  if (!load(look->dir, name, &fresh, reason)) {
    bool torn = strcmp(reason, "changed while it was read") == 0;
    if (known && torn) known->looked = look->number; /* next time */
    leave_out(look, name, reason, torn ? NULL : json_incref(stamp));
  } else if (aged_out(store, &fresh)) {
    process_fini(&fresh);
    leave_out(look, name, NULL, json_incref(stamp));
  } else {
    keep(store, &fresh, look->number);
  }
}

static void note_end(struct rp_serve_store *store, struct rp_serve_process *process) {
  pthread_mutex_lock(&store->lock);
  process->ended = true;
  pthread_mutex_unlock(&store->lock);
}

/* What there is no room for is not even read: it would be read again at each look. */
static void count_dropped(struct rp_serve_store *store) {
  pthread_mutex_lock(&store->lock);
  store->counts.dropped++;
  pthread_mutex_unlock(&store->lock);
}

static void look_at(struct rp_serve_store *store, struct look *look, const char *name) {
  struct rp_serve_process *known = find(store, name);
  bool gone =
      known && !known->ended && rp_input_process_is_gone(known->summary); /* before its file is seen */
  if (known && unchanged(look->dir, known)) {
    if (gone) note_end(store, known);
    known->looked = aged_out(store, known) ? 0 : look->number;
    return;
  }
  json_t *stamp = stamp_of(look->dir, name); /* of before it is read: what changes meanwhile is read again */
  if (!is_as_left_out(store, look, name, stamp)) {
    if (!known && store->count >= RP_SERVE_PROCESSES)
      count_dropped(store);
    else
      read_file(store, look, name, known, stamp);
  }
  json_decref(stamp);
}

/* Forgets those that the look did not see. */
static void sweep(struct rp_serve_store *store, uint64_t look) {
  size_t kept = 0;
  pthread_mutex_lock(&store->lock);
  for (size_t i = 0; i < store->count; i++) {
    struct rp_serve_process process = store->processes[i];
    if (process.looked != look) {
      (void)json_object_del(store->index, process.name);
      process_fini(&process);
      continue;
    }
    (void)json_integer_set(json_object_get(store->index, process.name), (json_int_t)kept);
    store->processes[kept++] = process;
  }
  store->count = kept;
  pthread_mutex_unlock(&store->lock);
}

/* What attach wrote of a process whose agent has written, too, is read and does not count. It is named, but
 * it is no file that cannot be used. */
static void mark_seconds(struct rp_serve_store *store, struct look *look) {
  json_t *own = json_object();
  for (size_t i = 0; i < store->count; i++)
    rp_input_note_own(own, &store->processes[i].identity, i);
  pthread_mutex_lock(&store->lock);
  for (size_t i = 0; i < store->count; i++)
    store->processes[i].second = rp_input_find_own(own, &store->processes[i].identity) != SIZE_MAX;
  pthread_mutex_unlock(&store->lock);
  for (size_t i = 0; i < store->count; i++)
    if (store->processes[i].second) name_skipped(look, store->processes[i].name, RP_INPUT_SECOND);
  json_decref(own);
}

static void look(struct rp_serve_store *store) {
  DIR *dir = opendir(store->dir);
  int error = dir ? 0 : errno;
  struct look look = {.dir = dir ? dirfd(dir) : -1,
                      .number = store->counts.looks + 1,
                      .skipped = json_array(),
                      .unkept = json_object()};
  pthread_mutex_lock(&store->lock);
  store->counts.dropped = 0;
  pthread_mutex_unlock(&store->lock);
  for (const struct dirent *entry = dir ? readdir(dir) : NULL; entry; entry = readdir(dir))
    if (rp_input_is_report_name(entry->d_name)) look_at(store, &look, entry->d_name);
  sweep(store, look.number);
  mark_seconds(store, &look);
  json_decref(store->unkept);
  store->unkept = look.unkept;
  pthread_mutex_lock(&store->lock);
  json_decref(store->skipped);
  store->skipped = look.skipped;
  store->counts.skipped = look.skipped_count;
  store->counts.error = error;
  store->counts.looks = look.number;
  store->counts.last_look_unix_seconds = rp_serve_now();
  pthread_mutex_unlock(&store->lock);
  if (dir) (void)closedir(dir);
}

static void *run(void *argument) {
  struct rp_serve_store *store = argument;
  bool stop = false;
  while (!stop) {
    struct timespec until;
    look(store);
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += LOOK_SECONDS;
    pthread_mutex_lock(&store->lock);
    while (!store->stop && pthread_cond_timedwait(&store->wake, &store->lock, &until) == 0) {
    }
    stop = store->stop;
    pthread_mutex_unlock(&store->lock);
  }
  return NULL;
}

/* ---- life ---- */

static void store_free(struct rp_serve_store *store) {
  for (size_t i = 0; i < store->count; i++)
    process_fini(&store->processes[i]);
  free(store->processes);
  json_decref(store->skipped);
  json_decref(store->index);
  json_decref(store->unkept);
  pthread_cond_destroy(&store->wake);
  pthread_mutex_destroy(&store->lock);
  free(store->dir);
  free(store);
}

rp_status rp_serve_store_start(const struct rp_serve_options *options, struct rp_serve_store **out) {
  struct rp_serve_store *store = calloc(1, sizeof *store);
  pthread_condattr_t monotonic;
  if (!store) return RP_ERROR_NO_MEMORY;
  pthread_mutex_init(&store->lock, NULL);
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_cond_init(&store->wake, &monotonic);
  pthread_condattr_destroy(&monotonic);
  store->dir = strdup(options->report_dir);
  store->counts.error = rp_serve_folder_error(options->report_dir); /* until the first look */
  store->keep_seconds = options->keep_seconds;
  store->index = json_object();
  if (!store->dir || !store->index || pthread_create(&store->thread, NULL, run, store) != 0) {
    store_free(store);
    return RP_ERROR_NO_MEMORY;
  }
  *out = store;
  return RP_OK;
}

void rp_serve_store_stop(struct rp_serve_store *store) {
  if (!store) return;
  pthread_mutex_lock(&store->lock);
  store->stop = true;
  pthread_cond_signal(&store->wake);
  pthread_mutex_unlock(&store->lock);
  pthread_join(store->thread, NULL);
  store_free(store);
}

/* ---- asking ---- */

void rp_serve_store_each(struct rp_serve_store *store,
                         void (*visit)(void *context, const struct rp_serve_process *process),
                         void *context) {
  pthread_mutex_lock(&store->lock);
  for (size_t i = 0; i < store->count; i++)
    if (!store->processes[i].second) visit(context, &store->processes[i]);
  pthread_mutex_unlock(&store->lock);
}

char *rp_serve_store_text(struct rp_serve_store *store, uint64_t id, size_t *bytes) {
  char *text = NULL;
  pthread_mutex_lock(&store->lock);
  for (size_t i = 0; i < store->count && !text; i++) {
    const struct rp_serve_process *process = &store->processes[i];
    if (process->id != id) continue;
    text = malloc(process->text_bytes);
    if (!text) break;
    memcpy(text, process->text, process->text_bytes);
    *bytes = process->text_bytes;
  }
  pthread_mutex_unlock(&store->lock);
  return text;
}

struct rp_serve_counts rp_serve_store_counts(struct rp_serve_store *store) {
  pthread_mutex_lock(&store->lock);
  struct rp_serve_counts counts = store->counts;
  pthread_mutex_unlock(&store->lock);
  return counts;
}

const char *rp_serve_store_dir(const struct rp_serve_store *store) {
  return store->dir;
}

int rp_serve_folder_error(const char *dir) {
  int folder = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NONBLOCK);
  if (folder < 0) return errno;
  (void)close(folder);
  return 0;
}

const char *rp_serve_folder_problem(int error, char *out, size_t out_size) {
  const char *text = error == ENOENT    ? "there is no such folder"
                     : error == ENOTDIR ? "it is no folder"
                                        : strerror(error);
  snprintf(out, out_size, "%s", text);
  return out;
}

json_t *rp_serve_store_skipped(struct rp_serve_store *store) {
  pthread_mutex_lock(&store->lock);
  json_t *copy = store->skipped ? json_deep_copy(store->skipped) : json_array();
  pthread_mutex_unlock(&store->lock);
  return copy;
}
