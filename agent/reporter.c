/* The report thread. Owns the report's file, and the scans for new modules: they call the loader, which must
 * not happen in callbacks and had better not happen under the locks of the program. */
#include "agent/reporter.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <dirent.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "agent/agent.h"
#include "agent/enforce.h"
#include "agent/evidence.h"
#include "agent/hooks.h"
#include "agent/identity.h"
#include "agent/log.h"
#include "agent/report.h"
#include "agent/requests.h"
#include "agent/state.h"
#include "agent/switch_off.h"
#include "agent/unstoppable.h"

#define WAKE_NS 200000000u          /* looks around this often */
#define FIRST_RECEIVE_NS 500000000u /* a report is due this long after the first receive */
#define STACK_BYTES (512u << 10)
#define LEARN_STEPS 3 /* with the pool on, before CUPTI is given back */
#define COMMS_REPORTED 256
#define DEVICES_REPORTED 16

static struct rp_config config;
static struct rp_process_info process;
static char file_name[512];

static pthread_mutex_t write_lock =
    PTHREAD_MUTEX_INITIALIZER;  /* one writer of the file at a time; outermost */
static struct rp_report report; /* write_lock, as all below */
static struct rp_enforce_report enforced;
static struct rp_switched_off switched_off;
static struct rp_device_info devices[DEVICES_REPORTED];
static size_t device_count;
static struct rp_comm_info comms[COMMS_REPORTED];
static const char *warnings[RP_LOG_WARNINGS];
static struct rp_versions versions;
static bool versions_complete;

/* ---- the report ---- */

/* Libraries come late (NCCL above all): ask until all four are found. */
static void refresh_versions(void) {
  bool ready = rp_request_driver_ready();
  if (versions_complete) return;
  rp_evidence_versions(&versions, ready);
  versions_complete = versions.cuda_driver && versions.cuda_runtime && versions.cupti && versions.nccl;
  if (ready && device_count == 0) device_count = rp_evidence_devices(devices, DEVICES_REPORTED);
}

static double wall_clock(void) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* A device that was to stop and has not yet. */
static bool pending(const struct rp_enforce_report *enforce) {
  for (size_t i = 0; i < enforce->device_count; i++)
    if (enforce->devices[i].guard.pool.fallback_pending) return true;
  return false;
}

static bool sharing(const struct rp_enforce_report *enforce) {
  for (size_t i = 0; i < enforce->device_count; i++)
    if (enforce->devices[i].guard.active) return true;
  return false;
}

/* Under write_lock. A device that is used for the first time after the switch was seen must hear of it too.
 * Buffers that were freed before they got memory of their own have not been switched off. */
static void follow_switch(const struct rp_enforce_report *enforce) {
  static bool shared_since; /* since the switch was seen */
  if (!switched_off.seen_ns) return;
  if (!sharing(enforce)) {
    if (shared_since && pending(enforce)) return;
    if (!switched_off.effect_ns) switched_off.effect_ns = rp_now_ns();
    shared_since = false;
  } else if (switched_off.effect_ns) {
    switched_off.effect_ns = 0;
    rp_enforce_request_fallback(RP_POOL_SWITCHED_OFF);
    shared_since = true;
  } else {
    shared_since = true;
  }
}

/* Owned by `enforced`, until rp_enforce_report_fini. */
static void collect_enforced(void) {
  report.enforce = rp_enforce_collect(&enforced) ? &enforced : NULL;
  if (!report.enforce) return;
  if (!enforced.refused[0]) snprintf(enforced.refused, sizeof enforced.refused, "%s", config.problem);
  follow_switch(&enforced);
  report.switched_off = switched_off;
}

static rp_status fill_report(const char *state) {
  size_t comm_count = 0;
  memset(&report, 0, sizeof report);
  report.written_monotonic_ns = rp_now_ns(); /* nothing in it is older */
  report.written_unix_seconds = wall_clock();
  report.refusals_seen = true;
  rp_hooks_refused(&report.allocations_refused, &report.refused_bytes);
  rp_status status = rp_agent_collect(&report.snapshot, &report.cost, comms, COMMS_REPORTED, &comm_count);
  if (status != RP_OK) return status;
  report.mode = rp_mode_name(config.mode);
  report.state = state;
  report.passive_reason = "";
  report.process = process;
  report.versions = versions;
  report.evidence_count = rp_evidence_read(report.evidence);
  report.devices = devices;
  report.device_count = device_count;
  report.comms = comms;
  report.comm_count = comm_count;
  report.config = &config;
  report.warnings = warnings;
  report.warning_count = rp_log_warnings(warnings, RP_LOG_WARNINGS);
  report.function_name = rp_agent_function_name;
  collect_enforced();
  return RP_OK;
}

static void write_report(const char *state) {
  if (!rp_state_is_own_process()) return;
  pthread_mutex_lock(&write_lock);
  if (strcmp(state, "finished") != 0) refresh_versions(); /* at exit libraries may be gone */
  rp_status status = fill_report(state);
  if (status == RP_OK) {
    status = rp_report_write(&report, config.report_dir, file_name);
    if (status != RP_OK)
      rp_warn("the report cannot be written to %s: %s", config.report_dir, strerror(errno));
    rp_snapshot_fini(&report.snapshot);
    rp_enforce_report_fini(&enforced);
  } else {
    rp_warn("no report could be made: %s", rp_status_text(status));
  }
  pthread_mutex_unlock(&write_lock);
  rp_log_flush();
  rp_log_flush_urgent();
}

/* ---- the kill switch ---- */

/* Whether it was seen now; what is not believed is said once. */
static bool switch_is_seen(void) {
  static bool refusal_said;
  char file[sizeof switched_off.file], why[512];
  enum rp_switch_off found =
      rp_switch_off_look(config.report_dir, file_name, file, sizeof file, why, sizeof why);
  if (found == RP_SWITCH_OFF_REFUSED && !refusal_said) {
    refusal_said = true;
    rp_warn("%s", why);
  }
  if (found != RP_SWITCH_OFF_YES) return false;
  rp_enforce_request_fallback(RP_POOL_SWITCHED_OFF);
  pthread_mutex_lock(&write_lock);
  switched_off.seen_ns = rp_now_ns();
  snprintf(switched_off.file, sizeof switched_off.file, "%s", file);
  pthread_mutex_unlock(&write_lock);
  rp_verbose("switched off by %s: buffers get memory of their own at the next step", file);
  return true;
}

/* Whether it has taken effect now. */
static bool switch_took_effect(void) {
  pthread_mutex_lock(&write_lock);
  if (rp_enforce_collect(&enforced)) follow_switch(&enforced);
  bool effect = switched_off.effect_ns != 0;
  rp_enforce_report_fini(&enforced);
  pthread_mutex_unlock(&write_lock);
  return effect;
}

/* At each wake-up, while there is anything to switch off. True: the report has news. */
static bool look_for_switch(void) {
  if (config.mode != RP_MODE_ENFORCE) return false;
  if (!switched_off.seen_ns) return switch_is_seen();
  return !switched_off.effect_ns && switch_took_effect();
}

/* ---- modules ---- */

static void scan_if_changed(void) {
  struct rp_interpose_result result;
  uint64_t number = rp_request_scan_due();
  if (number == 0) return;
  uint64_t changes = rp_interpose_module_changes();
  rp_hooks_scan(&result);
  rp_request_scan_done(number, changes);
  if (result.patched) rp_verbose("%u call slots patched in newly loaded modules", result.patched);
  if (result.failed) rp_warn("%u call slots are read-only and were not patched", result.failed);
}

/* ---- the thread ---- */

/* RECVPOOL_CUPTI=learn: others may have the subscription once the pool is on and the pattern has held. Not where
 * some uses can only be seen through it: no message would be known to be done with. */
static void give_cupti_back(void) {
  uint64_t steps;
  if (config.cupti != RP_CUPTI_LEARN || !rp_cupti_active()) return;
  if (!rp_enforce_active(&steps) || steps < LEARN_STEPS) return;
  if (rp_unstoppable_known()) {
    rp_warn("learn: CUPTI is kept, since a library uses memory by calls that are seen through it only");
    return;
  }
  rp_cupti_stop();
  rp_evidence_set_cupti_reason("given back as the pool is on (learn): the guard sees interposed calls only");
}

/* Versions and devices are asked for while the process runs: at its end the driver may be gone. */
static void look_around(void) {
  scan_if_changed();
  give_cupti_back();
  pthread_mutex_lock(&write_lock);
  refresh_versions();
  pthread_mutex_unlock(&write_lock);
}

/* Whether the main thread has ended and this one is all that keeps the process alive. */
static bool alone(void) {
  char stat[512] = "";
  int file = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  ssize_t got = read(file, stat, sizeof stat - 1);
  (void)close(file);
  const char *end_of_name = got > 0 ? strrchr(stat, ')') : NULL;
  if (!end_of_name || strncmp(end_of_name, ") Z", 3) != 0) return false;
  DIR *tasks = opendir("/proc/self/task");
  if (!tasks) return false;
  unsigned others = 0;
  for (const struct dirent *entry = readdir(tasks); entry; entry = readdir(tasks))
    if (entry->d_name[0] != '.' && atoi(entry->d_name) != getpid() &&
        atoi(entry->d_name) != (int)rp_thread_id())
      others++;
  (void)closedir(tasks);
  return others == 0;
}

static bool report_is_due(uint64_t last_ns, bool *first_receive_reported) {
  uint64_t now = rp_now_ns(), first = rp_agent_first_receive_ns();
  if (first && !*first_receive_reported && now - first >= FIRST_RECEIVE_NS) {
    *first_receive_reported = true;
    return true;
  }
  return now - last_ns >= (uint64_t)(config.interval_seconds * 1e9);
}

/* A job may run for weeks after it, and nobody may look at its report before its end. */
static void warn_of_violations(uint64_t count) {
  rp_warn_urgent("%" PRIu64
                 " unsafe use%s of shared memory came too late to be prevented, and results since then are "
                 "suspect; %s; see %s/%s",
                 count, count == 1 ? "" : "s",
                 config.on_violation == RP_POOL_ON_STALE_FALLBACK
                     ? "each buffer gets memory of its own at the next step"
                     : "sharing goes on, since RECVPOOL_ON_VIOLATION=report",
                 config.report_dir, file_name);
  rp_log_flush_urgent();
}

/* What came too late to prevent has to be on disk before it brings the job down. */
static bool has_new_violations(void) {
  static uint64_t told; /* of one thread: the report's, or the last one of a program without that */
  uint64_t now = config.mode == RP_MODE_ENFORCE ? rp_enforce_violations() : 0;
  bool more = now > told;
  if (more && !told && config.on_violation != RP_POOL_ON_STALE_ABORT) warn_of_violations(now);
  told = now;
  return more;
}

static void write_last_report(void) {
  rp_agent_finish();
  (void)has_new_violations();
  write_report("finished");
}

static void *run(void *unused) {
  uint64_t pause_ns = WAKE_NS;
  if (config.interval_seconds * 1e9 < (double)pause_ns) pause_ns = (uint64_t)(config.interval_seconds * 1e9);
  bool first_receive_reported = false, left_alone = false;
  rp_thread.busy = 1; /* what this thread calls is the agent's own */
  write_report("running");
  uint64_t last_ns = rp_now_ns();
  while (rp_request_sleep(pause_ns)) {
    look_around();
    bool news = look_for_switch();
    news |= has_new_violations();
    if (report_is_due(last_ns, &first_receive_reported) || news) {
      write_report("running");
      last_ns = rp_now_ns();
    }
    left_alone = alone();
    if (left_alone) break; /* the last thread to end takes the process with it, as it would without us */
  }
  if (!left_alone) write_last_report();
  rp_request_thread_ended();
  return unused;
}

rp_status rp_reporter_start(const struct rp_config *with) {
  config = *with;
  rp_identity_read(&process);
  rp_report_file_name(&process, file_name, sizeof file_name);
  rp_request_thread_begins();
  int error = rp_thread_start(run, STACK_BYTES, "recvpool");
  if (error == 0) return RP_OK;
  rp_request_thread_ended();
  rp_warn("the report thread could not be started: %s", strerror(error));
  return RP_ERROR_UNAVAILABLE;
}

/* The thread writes the last report where there is one, and the end of the program waits for it: exit may be
 * called from a signal handler, which can have interrupted anything, malloc and this library included. */
void rp_reporter_finish(void) {
  bool had_thread;
  int cancel_state;
  if (!rp_request_stop(&had_thread)) return; /* inside a lock that the thread needs: its last file stands */
  (void)pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
  if (!had_thread) write_last_report();
  (void)pthread_setcancelstate(cancel_state, &cancel_state);
}
