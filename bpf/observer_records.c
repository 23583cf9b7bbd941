/* From records to targets, and looking after processes and what they have mapped. */
#include "bpf/observer_internal.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <bpf/bpf.h>
#include <bpf/libbpf.h>

#include "bpf/functions.h"
#include "recvpool.skel.h"

#define AGENT "librecvpool.so"
#define MS 1000000ull
/* Looks at a process's mappings after it started or loaded something, and then at ease: its loader may be one
 * that tells nothing. */
static const uint64_t scan_pauses_ns[] = {10 * MS, 40 * MS, 150 * MS, 500 * MS, 2000 * MS};
#define SCAN_PAUSES (sizeof scan_pauses_ns / sizeof scan_pauses_ns[0])
#define SCAN_AT_EASE_NS (10000 * MS)
/* A file whose probes are just being taken out is looked at again after so long. */
#define DEFERRED_NS (20 * MS)

/* ---- targets ---- */

static uint32_t *bucket_of(struct rp_observer *observer, uint32_t pid) {
  return &observer->buckets[pid & (RP_OBSERVER_BUCKETS - 1)];
}

struct rp_observed *rp__observer_find(struct rp_observer *observer, uint32_t pid) {
  for (uint32_t at = *bucket_of(observer, pid); at; at = observer->observed[at - 1].next)
    if ((uint32_t)observer->observed[at - 1].target->process.pid == pid) return &observer->observed[at - 1];
  return NULL;
}

static void unlist(struct rp_observer *observer, struct rp_observed *observed) {
  uint32_t index = (uint32_t)(observed - observer->observed) + 1;
  uint32_t *at = bucket_of(observer, (uint32_t)observed->target->process.pid);
  while (*at && *at != index)
    at = &observer->observed[*at - 1].next;
  if (*at) *at = observed->next;
  observed->listed = false;
  observer->running--;
}

static void list(struct rp_observer *observer, struct rp_observed *observed) {
  uint32_t *bucket = bucket_of(observer, (uint32_t)observed->target->process.pid);
  observed->next = *bucket;
  *bucket = (uint32_t)(observed - observer->observed) + 1;
  observed->listed = true;
  observer->running++;
}

/* Whether the report would have anything to say of it. */
static bool did_something(const struct rp_target *target) {
  return target->sequence || target->physical.created_bytes;
}

/* Drops entry `index`; those behind it move. */
static void drop(struct rp_observer *observer, size_t index) {
  struct rp_target *target = observer->observed[index].target;
  if (observer->options.freed) observer->options.freed(observer->options.context, target);
  rp_target_destroy(target);
  memmove(&observer->observed[index], &observer->observed[index + 1],
          (--observer->count - index) * sizeof observer->observed[0]);
  memset(observer->buckets, 0, sizeof observer->buckets);
  observer->running = 0;
  for (size_t i = 0; i < observer->count; i++)
    if (observer->observed[i].listed) list(observer, &observer->observed[i]);
}

/* Finished processes that did nothing are forgotten at once, and the oldest others when there are too many.
 */
static void make_room(struct rp_observer *observer) {
  size_t finished = observer->count - observer->running;
  for (size_t i = 0; finished > RP_OBSERVER_FINISHED / 2 && i < observer->count;) {
    bool idle = !observer->observed[i].listed && !did_something(observer->observed[i].target);
    if (!idle) {
      i++;
      continue;
    }
    drop(observer, i);
    finished--;
  }
  for (size_t i = 0; finished >= RP_OBSERVER_FINISHED && i < observer->count; i++) {
    if (observer->observed[i].listed) continue;
    drop(observer, i);
    observer->forgotten++;
    break;
  }
}

struct rp_observed *rp__observer_begin(struct rp_observer *observer, pid_t pid, uint64_t generation,
                                       uint64_t now_ns, bool joined_late) {
  const struct rp_tracker_options options = {.min_bytes = observer->options.min_bytes,
                                             .slack = observer->options.slack};
  struct rp_process process;
  make_room(observer);
  if (observer->count == observer->capacity) {
    size_t capacity = observer->capacity ? 2 * observer->capacity : 16;
    struct rp_observed *grown = realloc(observer->observed, capacity * sizeof *grown);
    if (!grown) return NULL;
    observer->observed = grown;
    observer->capacity = capacity;
  }
  (void)rp_process_read(pid, &process); /* one that is gone already has its id at least */
  struct rp_target *target =
      rp_target_create(&process, generation, now_ns, &options, observer->options.launches);
  if (!target) return NULL;
  target->joined_late = joined_late;
  struct rp_observed *observed = &observer->observed[observer->count++];
  *observed = (struct rp_observed){.target = target, .scan_ns = now_ns};
  list(observer, observed);
  observer->met++;
  if (observer->options.started) observer->options.started(observer->options.context, target);
  return observed;
}

void rp__observer_end(struct rp_observer *observer, struct rp_observed *observed, uint64_t now_ns,
                      const struct rp_probe_record *last) {
  if (!observed->listed) return;
  observed->lost_at_end = last ? last->event.bytes + observed->target->events_refused
                               : rp_observer_lost(observer, observed->target);
  observed->target->in_flight = !last || last->event.operations;
  unlist(observer, observed);
  rp_target_finish(observed->target, now_ns);
}

/* ---- records ---- */

static void take_process_record(struct rp_observer *observer, const struct rp_probe_record *record) {
  struct rp_observed *observed = rp__observer_find(observer, record->event.pid);
  uint64_t now_ns = record->event.time_ns;
  switch (record->what) {
  case RP_PROBE_WHAT_LOADER:
    if (!observed) return;
    observed->scan_ns = now_ns;
    observed->scans = 0;
    observed->loader_probed = observed->loader_told = true;
    return;
  case RP_PROBE_WHAT_EXIT:
    if (observed) rp__observer_end(observer, observed, now_ns, record);
    return;
  default:
    if (observed && observed->target->generation == record->generation) return;
    if (observed) rp__observer_end(observer, observed, now_ns, record);
    (void)rp__observer_begin(observer, (pid_t)record->event.pid, record->generation, now_ns,
                             record->what == RP_PROBE_WHAT_SEEN);
    return;
  }
}

/* The target that the record belongs to. Its beginning may have found no room in the buffer. */
static struct rp_target *target_of(struct rp_observer *observer, const struct rp_probe_record *record) {
  struct rp_observed *observed = rp__observer_find(observer, record->event.pid);
  if (observed && observed->target->generation == record->generation) return observed->target;
  if (observed && observed->target->generation > record->generation) return NULL; /* of its predecessor */
  if (observed) rp__observer_end(observer, observed, record->event.time_ns, NULL);
  observed =
      rp__observer_begin(observer, (pid_t)record->event.pid, record->generation, record->event.time_ns, true);
  return observed ? observed->target : NULL;
}

static void scan_one(struct rp_observer *observer, struct rp_observed *observed, uint64_t now_ns);

/* Whose memory it is tells the caller's address: what was loaded just before is looked at first. */
static void look_for_caller(struct rp_observer *observer, const struct rp_probe_record *record) {
  if (record->what != RP_PROBE_WHAT_CREATE && record->what != RP_PROBE_WHAT_RESERVE) return;
  struct rp_observed *observed = rp__observer_find(observer, record->event.pid);
  if (observed && observed->loader_told) scan_one(observer, observed, rp__observer_now_ns());
}

int rp__observer_record(void *context, void *data, size_t size) {
  struct rp_observer *observer = context;
  const struct rp_probe_record *record = data;
  observer->records++;
  if (size < RP_PROBE_SHORT_RECORD) return 0;
  if (record->what == RP_PROBE_WHAT_ALIAS) {
    rp_libraries_join(&observer->libraries, (size_t)record->event.function, (size_t)record->event.aux);
    return 0;
  }
  if (record->function == RP_PROBE_FUNCTION_PROCESS) {
    take_process_record(observer, record);
    return 0;
  }
  struct rp_target *target = target_of(observer, record);
  look_for_caller(observer, record);
  if (record->what == RP_PROBE_WHAT_CALL) {
    if (observer->options.call) observer->options.call(observer->options.context, record);
  } else if (target && (record->what != RP_PROBE_WHAT_LAUNCH || size >= sizeof(struct rp_probe_launch))) {
    rp_target_take(target, record);
  }
  return 0;
}

/* ---- mappings ---- */

struct looking {
  const struct rp_libraries *libraries;
  struct rp_target *target;
  uint64_t since_ns; /* what is new was mapped after this */
};

/* Calls may have gone by unseen where a library was mapped before its probes were in place. */
static void note_library(void *context, size_t index) {
  const struct looking *looking = context;
  const struct rp_library *library = &looking->libraries->files[index];
  if (!rp_target_map_library(looking->target, index) || looking->target->late_library) return;
  if (library->state == RP_LIBRARY_PROBED && library->layers & ~(1u << RP_PROBE_SYSTEM) &&
      library->probed_ns > looking->since_ns)
    looking->target->late_library = index + 1;
}

static void scan_one(struct rp_observer *observer, struct rp_observed *observed, uint64_t now_ns) {
  struct rp_target *target = observed->target;
  struct rp_scan_range agent = {.name = AGENT};
  struct looking looking = {&observer->libraries, target,
                            observed->scanned_ns ? observed->scanned_ns : target->started_ns};
  observed->scanned_ns = rp__observer_now_ns();
  observed->loader_told = false;
  rp_status status =
      rp_libraries_scan(&observer->libraries, &target->process, note_library, &looking, &agent);
  if (agent.end) target->agent.begin = agent.begin, target->agent.end = agent.end;
  target->unreadable = status == RP_ERROR_UNAVAILABLE;
  bool settled = observed->scans >= SCAN_PAUSES;
  uint64_t pause = settled ? SCAN_AT_EASE_NS : scan_pauses_ns[observed->scans];
  observed->scans += !settled;
  observed->scan_ns = now_ns + (observer->libraries.deferred ? DEFERRED_NS : pause);
  observer->libraries.deferred = false;
}

uint64_t rp__observer_scan(struct rp_observer *observer, uint64_t now_ns) {
  uint64_t next = UINT64_MAX;
  for (size_t i = 0; i < observer->count; i++) {
    struct rp_observed *observed = &observer->observed[i];
    if (!observed->listed) continue;
    if (observed->scan_ns <= now_ns) scan_one(observer, observed, now_ns);
    if (observed->scan_ns < next) next = observed->scan_ns;
  }
  return next;
}

/* A process that is gone has told so, unless that found no room: what it told is taken first, for what it
 * lost is known there or in the kernel's state, never in both. That may move the targets. */
static void end_if_untold(struct rp_observer *observer, uint32_t pid, uint64_t generation, uint64_t now_ns) {
  (void)ring_buffer__consume(observer->ring);
  struct rp_observed *observed = rp__observer_find(observer, pid);
  if (!observed || observed->target->generation != generation) return;
  rp__observer_end(observer, observed, now_ns, NULL);
  (void)bpf_map_delete_elem(bpf_map__fd(observer->programs->maps.processes), &pid);
}

/* Since when all that are observed have been looked at; 0: not all can be, or were. */
static uint64_t all_seen_ns(const struct rp_observer *observer, uint64_t now_ns) {
  const struct rp_libraries *libraries = &observer->libraries;
  bool full = libraries->probed >= libraries->probed_most;
  uint64_t seen_ns = now_ns;
  for (size_t i = 0; i < observer->count; i++) {
    const struct rp_observed *observed = &observer->observed[i];
    if (!observed->listed || (observed->target->unreadable && full)) continue;
    if (observed->target->unreadable) return 0;
    if (observed->scanned_ns < seen_ns) seen_ns = observed->scanned_ns;
  }
  return seen_ns;
}

/* Reports of those that are kept name the files by their place. */
static void note_references(struct rp_observer *observer) {
  struct rp_libraries *libraries = &observer->libraries;
  for (size_t i = 0; i < libraries->count; i++)
    libraries->files[i].referenced = false;
  for (size_t i = 0; i < observer->count; i++) {
    const struct rp_target *target = observer->observed[i].target;
    for (size_t k = 0; k < target->library_count; k++)
      libraries->files[target->library[k]].referenced = true;
    if (target->late_library) libraries->files[target->late_library - 1].referenced = true;
  }
}

void rp__observer_look(struct rp_observer *observer, uint64_t now_ns) {
  char message[128];
  (void)rp__observer_scan(observer, now_ns);
  note_references(observer);
  rp_libraries_tidy(&observer->libraries, now_ns, all_seen_ns(observer, now_ns));
  for (size_t i = 0; i < observer->count; i++) {
    const struct rp_observed *observed = &observer->observed[i];
    const struct rp_target *target = observed->target;
    if (!observed->listed || rp_process_is_alive(&target->process)) continue;
    end_if_untold(observer, (uint32_t)target->process.pid, target->generation, now_ns);
  }
  if (observer->options.name || observer->options.cgroup)
    (void)rp__observer_choose(observer, false, message, sizeof message);
}
