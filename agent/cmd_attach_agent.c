/* The agent inside an observed process: finding and reading the report that it writes, and what follows from
 * it for ours. Where it shares memory there is nothing left to gain, whatever the receives alone say. */
#include "agent/attach.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/cmd_report_text.h"
#include "agent/report_input.h"

/* ---- its report ---- */

/* "HOST-PID-START.json": START, if the name is of the process; else 0. */
static uint64_t start_in_name(const char *name, pid_t pid) {
  char tail[64], *end;
  const char *last = strrchr(name, '-');
  if (!last || last == name || name[0] == '.') return 0;
  uint64_t start = strtoull(last + 1, &end, 10);
  if (strcmp(end, ".json") != 0) return 0;
  int length = snprintf(tail, sizeof tail, "-%ld", (long)pid);
  return last - name > length && strncmp(last - length, tail, (size_t)length) == 0 ? start : 0;
}

/* The folder lies below the process's own root, which is kept open: the process may be gone by then. */
static DIR *open_folder(const struct rp_attach_process *process) {
  if (process->root < 0 || process->agent_dir[0] != '/') return NULL;
  int folder = openat(process->root, process->agent_dir + 1, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR *out = folder >= 0 ? fdopendir(folder) : NULL;
  if (folder >= 0 && !out) (void)close(folder);
  return out;
}

/* Reads the newest report that was begun from `from_ns` on and before the process ended. */
static bool read_newest(const struct rp_target *target, uint64_t from_ns, struct rp_input *out) {
  DIR *folder = open_folder(target->user);
  char name[NAME_MAX + 1] = "", reason[RP_INPUT_REASON];
  uint64_t newest = 0;
  if (!folder) return false;
  for (const struct dirent *entry; (entry = readdir(folder));) {
    uint64_t start = start_in_name(entry->d_name, target->process.inner_pid);
    bool others = start < from_ns || (target->ended_ns && start > target->ended_ns);
    if (start <= newest || others) continue;
    newest = start;
    snprintf(name, sizeof name, "%s", entry->d_name);
  }
  bool read = newest && rp_input_read(dirfd(folder), name, false, out, reason);
  (void)closedir(folder);
  return read;
}

json_t *rp__attach_read_claim(const struct rp_target *target) {
  struct rp_input input;
  if (!read_newest(target, target->started_ns, &input)) return NULL;
  json_t *json = json_loadb(input.text, input.bytes, 0, NULL);
  free(input.text);
  return json;
}

/* ---- whether it shares ---- */

/* An id is used again; with the time of the start it names one process for good. */
static bool is_of(const json_t *report, const struct rp_target *target) {
  const struct rp_attach_process *process = target->user;
  const json_t *own = json_object_get(report, "process");
  const char *boot_id = rp__text_of(own, "boot_id", "");
  return boot_id[0] && strcmp(boot_id, process->info.incarnation.boot_id) == 0 &&
         target->process.start_ticks && rp__count_of(own, "start_ticks") == target->process.start_ticks;
}

/* Its report is no more than one of a file in a folder: what is none that a reader would take is left alone.
 */
static void look_inside(const struct rp_target *target) {
  struct rp_attach_process *process = target->user;
  struct rp_input input;
  char reason[RP_INPUT_REASON];
  /* who joined late can tell by the process's birth which program's report it is, but for those of before */
  if (!read_newest(target, target->joined_late ? 1 : target->started_ns, &input)) return;
  json_t *report = rp_input_is_same(&input.info, &process->inside_info)
                       ? NULL
                       : rp_input_parse(input.text, input.bytes, reason);
  free(input.text);
  if (report && is_of(report, target)) {
    json_decref(process->inside);
    process->inside = json_pack("{s:O?, s:O?}", "enforcement", json_object_get(report, "enforcement"),
                                "written_monotonic_ns", json_object_get(report, "written_monotonic_ns"));
    process->inside_info = input.info;
  }
  json_decref(report);
}

void rp_attach_look_inside(const struct rp_observer *observer) {
  const struct rp_target *target;
  for (size_t i = 0; (target = rp_observer_target(observer, i)); i++)
    if (target->user && target->agent.end) look_inside(target);
}

/* What the agent says of enforcing, where it was asked to; else NULL. */
static json_t *claimed(const struct rp_target *target) {
  const struct rp_attach_process *process = target->user;
  json_t *enforcement = process ? json_object_get(process->inside, "enforcement") : NULL;
  bool enforces = strcmp(rp__text_of(enforcement, "mode", ""), "enforce") == 0;
  return enforces && json_is_object(json_object_get(enforcement, "totals")) ? enforcement : NULL;
}

/* Where it has said nothing: it made memory for less than all of the addresses that it reserved. */
static bool seen_sharing(const struct rp_target *target) {
  const struct rp_attach_process *process = target->user;
  const struct rp_target_agent *agent = &target->agent;
  return process && !process->inside && agent->physical_peak_bytes &&
         agent->reserved_peak_bytes > agent->physical_peak_bytes;
}

bool rp_attach_shares(const struct rp_target *target, uint64_t *physical_bytes, uint64_t *buffer_bytes) {
  const json_t *totals = json_object_get(claimed(target), "totals");
  if (!totals && !seen_sharing(target)) return false;
  *physical_bytes = totals ? rp__count_of(totals, "physical_bytes") : target->agent.physical_bytes;
  *buffer_bytes = totals ? rp__count_of(totals, "one_to_one_bytes") : target->agent.reserved_bytes;
  return true;
}

/* ---- in our report ---- */

/* Sums, by the calls that reached the driver; what else there is to say only the agent knows. */
static json_t *enforcement_as_seen(const struct rp_target_agent *agent) {
  const json_int_t held = (json_int_t)agent->physical_bytes, most = (json_int_t)agent->physical_peak_bytes,
                   all = (json_int_t)agent->reserved_bytes, all_most = (json_int_t)agent->reserved_peak_bytes;
  json_t *totals =
      json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:i, s:i, s:i, s:i, s:i, s:i}", "physical_bytes",
                held, "physical_peak_bytes", most, "one_to_one_bytes", all, "one_to_one_peak_bytes", all_most,
                "requested_bytes", all, "requested_peak_bytes", all_most, "saved_bytes", all - held,
                "saved_peak_bytes", all_most - most, "minimum_bytes", 0, "prevented", 0, "violations", 0,
                "double_frees", 0, "rounding_peak_bytes", 0, "headroom_peak_bytes", 0);
  return json_pack("{s:s, s:n, s:n, s:{s:i, s:i, s:i, s:i}, s:o, s:[]}", "mode", "enforce", "refused",
                   "switched_off", "milestones", "placed", 0, "failed", 0, "waits", 0, "waits_for_all", 0,
                   "totals", totals, "devices");
}

static void add_warning(json_t *report, const char *text) {
  (void)json_array_append_new(json_object_get(report, "warnings"), rp__json_text(text));
}

void rp_attach_add_inside(const struct rp_target *target, json_t *report) {
  char text[512];
  const struct rp_attach_process *process = target->user;
  json_t *enforcement = claimed(target);
  if (!target->agent.end || !process) return;
  if (enforcement) {
    uint64_t written_ns = rp__count_of(process->inside, "written_monotonic_ns"), now_ns = rp__attach_now_ns();
    (void)json_object_set(report, "enforcement", enforcement);
    snprintf(text, sizeof text,
             "an agent in the process enforces: what is said of sharing is from its own report, %.0f s old",
             now_ns > written_ns ? (double)(now_ns - written_ns) / 1e9 : 0.0);
  } else if (seen_sharing(target)) {
    (void)json_object_set_new(report, "enforcement", enforcement_as_seen(&target->agent));
    snprintf(text, sizeof text,
             "memory is shared by the agent in the process, as the calls that reach the driver show; what it "
             "prevented or noticed too late its report would tell, which is not to be found in %.200s",
             process->agent_dir);
  } else if (!process->inside) {
    snprintf(
        text, sizeof text,
        "the agent is in the process, and its report is not to be found in %.200s: whether memory is shared "
        "already is not known",
        process->agent_dir);
  } else {
    return;
  }
  add_warning(report, text);
}
