/* From a target to the report that the injected library would write, as far as it can be known from outside;
 * and what the observer itself did. */
#include "agent/config.h"
#include "agent/attach.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "bpf/functions.h"

#define WARNINGS 16
#define WARNING_TEXT 512
#define QUIET_NS 10000000000ull /* silence worth a remark */

struct warnings {
  char text[WARNINGS][WARNING_TEXT];
  const char *list[WARNINGS];
  size_t count;
};

__attribute__((format(printf, 2, 3))) static void warn(struct warnings *warnings, const char *format, ...) {
  va_list arguments;
  if (warnings->count == WARNINGS) return;
  char *text = warnings->text[warnings->count];
  va_start(arguments, format);
  vsnprintf(text, WARNING_TEXT, format, arguments);
  va_end(arguments);
  warnings->list[warnings->count++] = text;
}

uint64_t rp__attach_now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* ---- one process ---- */

static void warn_of_libraries(struct warnings *warnings, const struct rp_libraries *libraries,
                              const struct rp_target *target) {
  const struct rp_library *closed = NULL;
  size_t closed_count = 0;
  for (size_t i = 0; i < target->library_count; i++) {
    const struct rp_library *library = &libraries->files[target->library[i]];
    if (library->state == RP_LIBRARY_REFUSED && !library->layers && !library->sites.refused_count) {
      closed = library;
      closed_count++;
    }
    if (library->reason[0] && library->state != RP_LIBRARY_ALIAS &&
        (library->layers || library->sites.refused_count))
      warn(warnings, "%s: %s", library->path, library->reason);
  }
  if (closed && !target->unreadable)
    warn(warnings, "%zu mapped file%s could not be looked at; %s %s", closed_count,
         closed_count == 1 ? "" : "s", closed->path, closed->reason);
}

static bool has_layer(const struct rp_libraries *libraries, const struct rp_target *target,
                      enum rp_probe_layer layer) {
  for (size_t i = 0; i < target->library_count; i++)
    if (libraries->files[target->library[i]].layers >> layer & 1) return true;
  return false;
}

/* An id from inside a container names another process out here, or none. */
static void warn_of_missing_nccl(struct warnings *warnings, const struct rp_target *target) {
  struct rp_process *list = NULL;
  size_t count = 0;
  warn(warnings, "the process has mapped no library with NCCL's functions (or they are hidden and stripped)");
  (void)rp_process_list(&list, &count);
  for (size_t i = 0; i < count; i++)
    if (list[i].pid != target->process.pid && list[i].inner_pid == target->process.pid &&
        list[i].inner_pid != list[i].pid)
      warn(warnings, "process %ld (%s) is the one with id %ld inside a container", (long)list[i].pid,
           list[i].name, (long)target->process.pid);
  free(list);
}

static void collect_warnings(struct warnings *warnings, const struct rp_observer *observer,
                             const struct rp_target *target, uint64_t lost) {
  const struct rp_libraries *libraries = rp_observer_libraries(observer);
  const struct rp_attach_process *process = target->user;
  bool quiet =
      !target->receives && !target->sends; /* one that was gone too soon can have called all the same */
  if (lost)
    warn(warnings, "%llu events found no room in the buffer: the numbers are too small (--buffer gives more)",
         (unsigned long long)lost);
  if (target->unreadable)
    warn(warnings, "what the process has mapped cannot be looked at (CAP_SYS_PTRACE)");
  else if (quiet && !has_layer(libraries, target, RP_PROBE_NCCL))
    warn_of_missing_nccl(warnings, target);
  else if (!target->sequence && rp__attach_now_ns() - target->started_ns > QUIET_NS)
    warn(warnings, "no call was seen in %.0f s", (double)(rp__attach_now_ns() - target->started_ns) / 1e9);
  else if (target->joined_late)
    warn(warnings,
         "the process ran before it was observed: allocations made before are not known, and which "
         "peer sends activations is told by %s",
         process && process->info.rank >= 0 ? "the order of ranks" : "the longest pause between transfers");
  if (target->late_library && !target->joined_late)
    warn(warnings, "%s was loaded before its probes were in place: its first calls may be missing",
         libraries->files[target->late_library - 1].path);
  if (target->failed_receives || target->failed_sends)
    warn(warnings, "%llu receives and %llu sends failed, or their group did: they are not counted",
         (unsigned long long)target->failed_receives, (unsigned long long)target->failed_sends);
  if (process && process->differences) warn(warnings, "cross-check failed: %s", process->difference);
  if (target->process.inner_pid != target->process.pid)
    warn(warnings, "inside its container the process has id %ld", (long)target->process.inner_pid);
  if (target->out_of_memory) warn(warnings, "memory ran out: some events are missing");
  warn_of_libraries(warnings, libraries, target);
}

static void fill_evidence(struct rp_report *report, const struct rp_target *target) {
  report->evidence_count = 1;
  report->evidence[0] = (struct rp_evidence){.name = "uprobes", .active = true};
  snprintf(report->evidence[0].reason, sizeof report->evidence[0].reason, "%s",
           target->launches
               ? "nothing outside tells how many parameters a kernel has: now and then an access is seen "
                 "that is none"
               : "kernel launches are not followed (--launches): release is known from answering sends only");
}

static double wall_clock(void) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static struct rp_comm_info *list_comms(const struct rp_target *target) {
  struct rp_comm_info *comms = calloc(target->comm_count + 1, sizeof *comms);
  for (size_t i = 0; comms && i < target->comm_count; i++) {
    const struct rp_target_comm *comm = &target->comms[i];
    comms[i] = (struct rp_comm_info){comm->comm, comm->id_hash, comm->rank, comm->ranks};
  }
  return comms;
}

/* Everything but the snapshot. */
static void fill(struct rp_report *report, const struct rp_observer *observer, const struct rp_target *target,
                 const struct rp_attach_arguments *arguments, struct warnings *warnings) {
  static struct rp_config config; /* too large for the stack */
  const struct rp_attach_process *process = target->user;
  uint64_t lost = rp_observer_lost(observer, target);
  rp_config_defaults(&config);
  config.slack = arguments->observer.slack;
  config.min_bytes = arguments->observer.min_bytes;
  collect_warnings(warnings, observer, target, lost);
  report->mode = "observe";
  report->state = target->ended_ns ? "finished" : "running";
  report->passive_reason = "";
  report->process = process->info;
  rp_attach_versions(rp_observer_libraries(observer), target, &report->versions);
  fill_evidence(report, target);
  report->config = &config;
  report->cost.events_lost = lost;
  report->cost.callbacks = target->sequence;
  report->cost.callback_hits = target->launches_seen;
  report->cost.agent_bytes = report->snapshot.tracker_bytes;
  report->warnings = warnings->list;
  report->warning_count = warnings->count;
  report->written_monotonic_ns = rp__attach_now_ns();
  report->written_unix_seconds = wall_clock();
}

/* Makes the report of a target and hands it to `use`. */
static rp_status with_report(const struct rp_observer *observer, const struct rp_target *target,
                             const struct rp_attach_arguments *arguments,
                             rp_status (*use)(const struct rp_report *report, void *context), void *context) {
  struct rp_report *report = calloc(1, sizeof *report);
  struct warnings *warnings = calloc(1, sizeof *warnings);
  struct rp_comm_info *comms = list_comms(target);
  rp_status status = report && warnings && comms && target->user ? RP_OK : RP_ERROR_NO_MEMORY;
  if (status == RP_OK) status = rp_tracker_snapshot(target->tracker, &report->snapshot);
  if (status == RP_OK) {
    fill(report, observer, target, arguments, warnings);
    report->comms = comms;
    report->comm_count = target->comm_count;
    status = use(report, context);
    rp_snapshot_fini(&report->snapshot);
  }
  free(report);
  free(warnings);
  free(comms);
  return status;
}

static rp_status to_json(const struct rp_report *report, void *context) {
  json_t **out = context;
  *out = rp_report_to_json(report);
  return *out ? RP_OK : RP_ERROR_NO_MEMORY;
}

json_t *rp_attach_report(const struct rp_observer *observer, const struct rp_target *target,
                         const struct rp_attach_arguments *arguments) {
  json_t *json = NULL;
  if (with_report(observer, target, arguments, to_json, &json) != RP_OK) return NULL;
  rp_attach_add_inside(target, json);
  return json;
}

static rp_status write_one(const struct rp_observer *observer, const struct rp_target *target,
                           const struct rp_attach_arguments *arguments) {
  char name[512];
  const struct rp_attach_process *process = target->user;
  json_t *json = rp_attach_report(observer, target, arguments);
  if (!json) return RP_ERROR_NO_MEMORY;
  rp_report_file_name(&process->info, name, sizeof name);
  rp_status status = rp_report_write_document(json, arguments->report_dir, name);
  int saved = errno;
  json_decref(json);
  errno = saved;
  return status;
}

/* ---- all of them ---- */

/* A process that was named is always worth a line; helpers that do nothing with a device are not. */
static bool is_worth_reporting(const struct rp_target *target, const struct rp_attach_arguments *arguments) {
  for (size_t i = 0; i < arguments->observer.pid_count; i++)
    if (arguments->pids[i] == target->process.pid) return true;
  return target->receives || target->sends;
}

static rp_status add_report(struct rp_read_set *set, json_t *json, pid_t pid) {
  char name[32];
  struct rp_read_report *grown = realloc(set->reports, (set->count + 1) * sizeof *grown);
  if (grown) set->reports = grown;
  snprintf(name, sizeof name, "process %ld", (long)pid);
  char *path = strdup(name);
  if (!grown || !path || !json) {
    free(path);
    json_decref(json);
    return RP_ERROR_NO_MEMORY;
  }
  set->reports[set->count++] = (struct rp_read_report){.path = path, .json = json};
  return RP_OK;
}

rp_status rp_attach_collect(const struct rp_observer *observer, const struct rp_attach_arguments *arguments,
                            struct rp_read_set *set) {
  const struct rp_target *target;
  bool any = false;
  rp_status status = RP_OK;
  *set = (struct rp_read_set){.subcommand = "attach"};
  rp_attach_look_inside(observer);
  for (size_t i = 0; (target = rp_observer_target(observer, i)); i++)
    any |= target->receives || target->sends;
  for (size_t i = 0; status == RP_OK && (target = rp_observer_target(observer, i)); i++) {
    if (any ? !target->receives && !target->sends : !is_worth_reporting(target, arguments)) continue;
    status = add_report(set, rp_attach_report(observer, target, arguments), target->process.pid);
  }
  if (status == RP_OK) status = rp_read_finish(set);
  if (status != RP_OK) rp_read_fini(set);
  return status;
}

size_t rp_attach_worth_writing(const struct rp_observer *observer) {
  const struct rp_target *target;
  size_t count = 0;
  for (size_t i = 0; (target = rp_observer_target(observer, i)); i++)
    count += target->receives || target->sends;
  return count;
}

rp_status rp_attach_write(const struct rp_observer *observer, const struct rp_attach_arguments *arguments) {
  const struct rp_target *target;
  rp_status status = RP_OK;
  rp_attach_look_inside(observer);
  for (size_t i = 0; (target = rp_observer_target(observer, i)); i++) {
    if (!target->receives && !target->sends) continue;
    rp_status wrote = write_one(observer, target, arguments);
    if (wrote != RP_OK) status = wrote;
  }
  return status;
}

/* ---- the observer ---- */

static json_t *functions_json(const struct rp_observer *observer) {
  json_t *list = json_array();
  for (size_t i = 0; i < RP_PROBE_FUNCTIONS; i++) {
    const struct rp_probe_function *function = rp_probe_function_at(i);
    struct rp_observer_count count;
    rp_observer_counts(observer, i, &count);
    if (!count.calls && !count.dropped) continue;
    json_array_append_new(list, json_pack("{s:s, s:I, s:I, s:I, s:o, s:I}", "function",
                                          function ? function->name : "(processes)", "calls",
                                          (json_int_t)count.calls, "returns", (json_int_t)count.returns,
                                          "failed", (json_int_t)count.failed, "last_failure",
                                          count.failed ? json_integer(count.last_failure) : json_null(),
                                          "dropped", (json_int_t)count.dropped));
  }
  return list;
}

static json_t *libraries_json(const struct rp_observer *observer) {
  static const char *const states[] = {"plain", "probed", "alias", "refused", "released"};
  const struct rp_libraries *libraries = rp_observer_libraries(observer);
  json_t *list = json_array();
  for (size_t i = 0; i < libraries->count; i++) {
    const struct rp_library *library = &libraries->files[i];
    if (library->state == RP_LIBRARY_PLAIN || library->vacant) continue;
    json_t *path = json_string(library->path);
    json_array_append_new(
        list, json_pack("{s:o, s:s, s:I, s:o}", "path", path ? path : json_string("(not UTF-8)"), "state",
                        states[library->state], "functions", (json_int_t)library->sites.count, "reason",
                        library->reason[0] ? json_string(library->reason) : json_null()));
  }
  return list;
}

static json_t *dropped_json(const struct rp_observer *observer) {
  json_t *list = json_array();
  size_t cpus = 1;
  for (size_t cpu = 0; cpu < cpus; cpu++)
    json_array_append_new(list, json_integer((json_int_t)rp_observer_dropped_on(observer, cpu, &cpus)));
  return list;
}

static json_t *checks_json(const struct rp_observer *observer) {
  const struct rp_target *target;
  uint64_t compared = 0, differences = 0;
  for (size_t i = 0; (target = rp_observer_target(observer, i)); i++) {
    const struct rp_attach_process *process = target->user;
    compared += process ? process->compared : 0;
    differences += process ? process->differences : 0;
  }
  return json_pack("{s:I, s:I}", "compared", (json_int_t)compared, "differences", (json_int_t)differences);
}

json_t *rp_attach_observer_json(const struct rp_observer *observer) {
  struct rusage usage;
  double seconds = 0;
  if (getrusage(RUSAGE_SELF, &usage) == 0)
    seconds = (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
              (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
  return json_pack("{s:s, s:I, s:I, s:f, s:I, s:I, s:o, s:o, s:o, s:o}", "links",
                   rp_observer_links(observer) == RP_LINK_MULTI ? "uprobe_multi" : "perf_event",
                   "buffer_bytes", (json_int_t)rp_observer_ring_bytes(observer), "records",
                   (json_int_t)rp_observer_records(observer), "processor_seconds", seconds,
                   "processes_forgotten", (json_int_t)rp_observer_forgotten(observer), "libraries_released",
                   (json_int_t)rp_observer_libraries(observer)->released, "functions",
                   functions_json(observer), "libraries", libraries_json(observer), "dropped_by_cpu",
                   dropped_json(observer), "cross_checks", checks_json(observer));
}
