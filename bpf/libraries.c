/* The set of files: a hash table by device and inode over an array whose indices are what records carry. */
#include "bpf/libraries.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "bpf/functions.h"

#define BUCKETS 4096u           /* power of two */
#define TRIES 3u                /* a file that could not be opened or probed gets further chances */
#define SAME_FOR_NS 1000000000u /* so long a number is taken for the same file */

/* Kernels that made a probed return a system call that seccomp filters did not know. */
static bool kills_filtered(const struct rp_rights *rights) {
  return rights->kernel_major == 6 && rights->kernel_minor >= 11 && rights->kernel_minor <= 13;
}

rp_status rp_libraries_init(struct rp_libraries *set, const struct rp_link_request *request,
                            const struct rp_rights *rights) {
  *set = (struct rp_libraries){.request = *request, .rights = rights};
  set->probed_most = RP_LIBRARIES_PROBED;
  set->keep_ns = RP_LIBRARIES_KEEP_NS;
  set->avoid_returns_under_seccomp = kills_filtered(rights);
  set->watches = inotify_init1(IN_NONBLOCK | IN_CLOEXEC) + 1;
  set->buckets = calloc(BUCKETS, sizeof *set->buckets);
  return set->buckets ? RP_OK : RP_ERROR_NO_MEMORY;
}

static void forget(struct rp_library *library) {
  rp_links_detach(&library->links);
  rp_sites_fini(&library->sites);
  free(library->path);
}

void rp_libraries_settle(struct rp_libraries *set) {
  rp_detacher_destroy(set->detacher);
  set->detacher = NULL;
  for (size_t i = 0; i < set->count; i++)
    set->files[i].detaching = false;
}

void rp_libraries_fini(struct rp_libraries *set) {
  rp_libraries_settle(set);
  for (size_t i = 0; i < set->count; i++)
    forget(&set->files[i]);
  free(set->files);
  free(set->buckets);
  if (set->watches) (void)close(set->watches - 1);
  *set = (struct rp_libraries){0};
}

static uint32_t *bucket_of(struct rp_libraries *set, uint64_t device, uint64_t inode) {
  uint64_t hash = (inode ^ device << 32) * 0x9e3779b97f4a7c15u;
  return &set->buckets[hash >> 40 & (BUCKETS - 1)];
}

static struct rp_library *find(struct rp_libraries *set, const struct rp_mapping *mapping) {
  for (uint32_t at = *bucket_of(set, mapping->device, mapping->inode); at; at = set->files[at - 1].next) {
    struct rp_library *library = &set->files[at - 1];
    if (library->inode == mapping->inode && library->device == mapping->device) return library;
  }
  return NULL;
}

/* A place that was left, or a new one; NULL without memory. */
static struct rp_library *new_place(struct rp_libraries *set) {
  for (size_t i = 0; set->vacant && i < set->count; i++)
    if (set->files[i].vacant) return &set->files[i];
  if (set->count == set->capacity) {
    size_t capacity = set->capacity ? 2 * set->capacity : 64;
    struct rp_library *grown = realloc(set->files, capacity * sizeof *grown);
    if (!grown) return NULL;
    set->files = grown;
    set->capacity = capacity;
  }
  set->files[set->count] = (struct rp_library){.vacant = true, .watch = -1};
  set->vacant++;
  return &set->files[set->count++];
}

static struct rp_library *add(struct rp_libraries *set, const struct rp_mapping *mapping) {
  struct rp_library *library = new_place(set);
  char *path = library ? strdup(mapping->path) : NULL;
  if (!path) return NULL;
  uint32_t *bucket = bucket_of(set, mapping->device, mapping->inode);
  *library = (struct rp_library){
      .device = mapping->device, .inode = mapping->inode, .path = path, .watch = -1, .next = *bucket};
  *bucket = (uint32_t)(library - set->files) + 1;
  set->vacant--;
  return library;
}

/* Leaves the place to another file. */
static void vacate(struct rp_libraries *set, size_t index) {
  struct rp_library *library = &set->files[index];
  uint32_t *at = bucket_of(set, library->device, library->inode);
  while (*at && *at != index + 1)
    at = &set->files[*at - 1].next;
  if (*at) *at = library->next;
  forget(library);
  *library = (struct rp_library){.vacant = true, .watch = -1};
  set->vacant++;
}

static void refuse(struct rp_library *library, const char *reason) {
  library->state = RP_LIBRARY_REFUSED;
  snprintf(library->reason, sizeof library->reason, "%s", reason);
}

static void note_layers(struct rp_library *library) {
  for (size_t i = 0; i < library->sites.count; i++)
    library->layers |= 1u << rp_probe_function_at((size_t)library->sites.sites[i].function)->shape.layer;
}

static void note_refusals(struct rp_library *library) {
  const struct rp_sites *sites = &library->sites;
  if (sites->refused_count == 0) return;
  snprintf(library->reason, sizeof library->reason, "%s%s is left alone: %s",
           rp_probe_function_at((size_t)sites->refused[0].function)->name,
           sites->refused_count > 1 ? " (and others)" : "", sites->refused[0].reason);
  if (sites->count == 0) library->state = RP_LIBRARY_REFUSED;
}

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* ---- files that change ---- */

static void watch(const struct rp_libraries *set, struct rp_library *library, int file) {
  char path[64];
  snprintf(path, sizeof path, "/proc/self/fd/%d", file);
  library->watch = set->watches ? inotify_add_watch(set->watches - 1, path, IN_MODIFY) : -1;
}

static void unwatch(const struct rp_libraries *set, struct rp_library *library) {
  if (library->watch >= 0) (void)inotify_rm_watch(set->watches - 1, library->watch);
  library->watch = -1;
}

static void written_to(struct rp_libraries *set, int descriptor) {
  for (size_t i = 0; i < set->count; i++) {
    struct rp_library *library = &set->files[i];
    if (library->state != RP_LIBRARY_PROBED || library->watch != descriptor) continue;
    rp_links_detach(&library->links);
    unwatch(set, library);
    set->probed--;
    refuse(library, "was written to while it was observed");
    library->tries = 0;
  }
}

void rp_libraries_take_changes(struct rp_libraries *set) {
  _Alignas(struct inotify_event) char events[4096];
  ssize_t got;
  while (set->watches && (got = read(set->watches - 1, events, sizeof events)) > 0)
    for (ssize_t at = 0; at < got;) {
      const struct inotify_event *event = (const struct inotify_event *)(const void *)(events + at);
      if (event->mask & IN_MODIFY) written_to(set, event->wd);
      at += (ssize_t)(sizeof *event + event->len);
    }
}

/* ---- giving up ---- */

static void take_out(struct rp_libraries *set, size_t index) {
  struct rp_library *library = &set->files[index];
  if (!set->detacher) set->detacher = rp_detacher_create();
  library->detaching = rp_detacher_take(set->detacher, &library->links, index);
}

static void release(struct rp_libraries *set, size_t index) {
  struct rp_library *library = &set->files[index];
  unwatch(set, library);
  take_out(set, index);
  library->state = RP_LIBRARY_RELEASED;
  library->tries = 0;
  set->probed--;
  set->released++;
  for (size_t i = 0; i < set->count; i++) /* they stand for themselves again */
    if (set->files[i].state == RP_LIBRARY_ALIAS && set->files[i].alias_of == index) {
      set->files[i].state = RP_LIBRARY_RELEASED;
      set->files[i].tries = 0;
    }
}

static bool is_unused(const struct rp_libraries *set, const struct rp_library *library) {
  return !library->vacant && !library->kept && !library->detaching && library->used_ns < set->seen_ns;
}

/* Makes room for one more file: the one that nobody has mapped for longest goes at once. */
static void make_room(struct rp_libraries *set) {
  size_t oldest = SIZE_MAX;
  for (size_t i = 0; i < set->count; i++)
    if (set->files[i].state == RP_LIBRARY_PROBED && is_unused(set, &set->files[i]) &&
        (oldest == SIZE_MAX || set->files[i].used_ns < set->files[oldest].used_ns))
      oldest = i;
  if (oldest != SIZE_MAX) release(set, oldest);
}

void rp_libraries_tidy(struct rp_libraries *set, uint64_t time_ns, uint64_t seen_ns) {
  size_t done;
  while (rp_detacher_done(set->detacher, &done))
    set->files[done].detaching = false;
  set->seen_ns = seen_ns;
  for (size_t i = 0; i < set->count; i++) {
    const struct rp_library *library = &set->files[i];
    if (!is_unused(set, library) || time_ns - library->used_ns < set->keep_ns) continue;
    if (library->state == RP_LIBRARY_PROBED)
      release(set, i);
    else if (!library->referenced)
      vacate(set, i);
  }
}

/* A file that is deleted leaves its number to the next one; one with probes is held by them. */
static bool is_another(struct rp_library *library, const struct rp_mapping *mapping, pid_t pid) {
  struct stat info;
  uint64_t now = now_ns();
  if (library->state == RP_LIBRARY_PROBED || now - library->looked_ns < SAME_FOR_NS) return false;
  library->looked_ns = now;
  return rp_mapping_stat(pid, mapping, &info) &&
         (info.st_ctim.tv_sec != library->changed.tv_sec || info.st_ctim.tv_nsec != library->changed.tv_nsec);
}

/* ---- looking at one ---- */

static void attach(struct rp_libraries *set, struct rp_library *library, int file,
                   const struct rp_process *process) {
  char reason[192];
  struct rp_link_request request = set->request;
  request.file = file;
  request.library = (uint32_t)(library - set->files);
  request.returns = !(set->avoid_returns_under_seccomp && process->seccomp_filter);
  if (set->probed >= set->probed_most) make_room(set);
  library->no_room = set->probed >= set->probed_most;
  if (library->no_room || request.library > UINT16_MAX) {
    refuse(library, "too many libraries are probed already");
    return;
  }
  watch(set, library, file);
  int result = rp_links_attach(&request, &library->sites, &library->links);
  if (result == 0) {
    library->state = RP_LIBRARY_PROBED;
    library->probed_ns = now_ns();
    set->probed++;
    if (!request.returns)
      snprintf(library->reason, sizeof library->reason,
               "only entries are probed: kernel %s kills programs with a seccomp filter at probed returns",
               set->rights->kernel);
    return;
  }
  unwatch(set, library);
  rp_rights_explain_attach(set->rights, -result, request.kind == RP_LINK_PERF, reason, sizeof reason);
  refuse(library, reason);
  set->attach_failures++;
}

static void examine(struct rp_libraries *set, struct rp_library *library, const struct rp_mapping *mapping,
                    const struct rp_process *process) {
  char reason[192];
  struct stat info;
  library->tries++;
  library->looked_ns = now_ns();
  library->changed = rp_mapping_stat(process->pid, mapping, &info) ? info.st_ctim : (struct timespec){0};
  library->reason[0] = '\0';
  library->state = RP_LIBRARY_PLAIN;
  library->layers = 0;
  library->no_room = false;
  rp_sites_fini(&library->sites);
  int file = rp_mapping_open(process->pid, mapping, reason, sizeof reason);
  if (file < 0) {
    refuse(library, reason);
    return;
  }
  if (fstat(file, &info) == 0) library->size_bytes = (uint64_t)info.st_size;
  rp_status status = rp_sites_read(file, &library->sites);
  if (status == RP_OK) {
    note_layers(library);
    note_refusals(library);
    if (library->sites.count) attach(set, library, file, process);
  } else if (status != RP_ERROR_NOT_FOUND && status != RP_ERROR_SYNTAX) {
    refuse(library,
           status == RP_ERROR_VERSION ? "is not for this kind of processor" : rp_status_text(status));
  }
  (void)close(file);
}

static void note_range(struct rp_scan_range *range, const struct rp_mapping *mapping) {
  const char *slash = strrchr(mapping->path, '/');
  if (strcmp(slash ? slash + 1 : mapping->path, range->name) != 0) return;
  range->begin = mapping->begin;
  range->end = mapping->end;
}

static void begin_anew(struct rp_library *library, const char *path) {
  char *copy = strdup(path);
  library->tries = 0;
  if (!copy) return; /* it goes on under the other's name */
  free(library->path);
  library->path = copy;
}

rp_status rp_libraries_scan(struct rp_libraries *set, const struct rp_process *process,
                            void (*taken)(void *context, size_t index), void *context,
                            struct rp_scan_range *range) {
  struct rp_mappings mappings;
  struct rp_process speaker = *process;
  size_t closed = 0;
  uint64_t begun_ns = now_ns();
  speaker.pid = rp_process_speaker(process->pid);
  rp_status status = rp_mappings_read(speaker.pid, &mappings);
  if (status != RP_OK) return status;
  for (size_t i = 0; i < mappings.count && status == RP_OK; i++) {
    struct rp_library *library = find(set, &mappings.files[i]);
    if (!library) library = add(set, &mappings.files[i]);
    if (!library) {
      status = RP_ERROR_NO_MEMORY;
      break;
    }
    library->used_ns = begun_ns;
    if (library->state == RP_LIBRARY_ALIAS) set->files[library->alias_of].used_ns = begun_ns;
    if (library->state == RP_LIBRARY_RELEASED && library->detaching) {
      set->deferred = true; /* what is probed there now would be taken for the old code */
      continue;
    }
    if (library->state == RP_LIBRARY_RELEASED) begin_anew(library, mappings.files[i].path);
    if (library->tries && is_another(library, &mappings.files[i], speaker.pid))
      begin_anew(library, mappings.files[i].path);
    if (library->tries == 0 ||
        (library->state == RP_LIBRARY_REFUSED && (library->tries < TRIES || library->no_room)))
      examine(set, library, &mappings.files[i], &speaker);
    if (range) note_range(range, &mappings.files[i]);
    closed += library->state == RP_LIBRARY_REFUSED && library->sites.refused_count == 0;
    if (taken && library->state != RP_LIBRARY_PLAIN) taken(context, (size_t)(library - set->files));
  }
  bool all_closed = mappings.count > 0 && closed == mappings.count;
  rp_mappings_fini(&mappings);
  return status == RP_OK && all_closed ? RP_ERROR_UNAVAILABLE : status;
}

/* What a path through an overlay leads to has the content of what lies below it. */
void rp_libraries_join(struct rp_libraries *set, size_t first, size_t second) {
  if (first >= set->count || second >= set->count || first == second) return;
  struct rp_library *keep = &set->files[first], *drop = &set->files[second];
  if (keep->state != RP_LIBRARY_PROBED || drop->state != RP_LIBRARY_PROBED ||
      keep->size_bytes != drop->size_bytes || strcmp(keep->sites.build_id, drop->sites.build_id) != 0)
    return;
  take_out(set, second);
  set->probed--;
  drop->state = RP_LIBRARY_ALIAS;
  drop->alias_of = first;
  snprintf(drop->reason, sizeof drop->reason, "is the same file as %.200s", keep->path);
}
