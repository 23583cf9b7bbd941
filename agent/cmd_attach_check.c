/* The cross-check: where the agent is in an observed process, what it says in its report is held against what
 * the probes counted. The two share no code on the way: the agent's numbers come from its own bookkeeping,
 * these from the calls that reached the driver and NCCL. */
#include "agent/attach.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "agent/cmd_report_text.h"

/* A probe that another thread is in the middle of holds back the records behind its own for a moment. */
#define RECORD_AGE_NS 200000000u
/* The last report of a process can be put in its place a moment after its end. */
#define LAST_REPORT_NS 200000000u

/* ---- comparing ---- */

static void differ(struct rp_attach_process *process, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static void differ(struct rp_attach_process *process, const char *format, ...) {
  va_list arguments;
  process->differences++;
  va_start(arguments, format);
  vsnprintf(process->difference, sizeof process->difference, format, arguments);
  va_end(arguments);
}

/* Whether the agent held that at any time from `from_ns` to `to_ns`; `known`: as far back is remembered. */
static bool held(const struct rp_target_agent *agent, uint64_t from_ns, uint64_t to_ns,
                 uint64_t physical_bytes, uint64_t reserved_bytes, bool *known) {
  size_t first = agent->moment_count > RP_TARGET_MOMENTS ? agent->moment_count - RP_TARGET_MOMENTS : 0;
  bool found = false;
  *known = first == 0;
  /* before the first change nothing was held */
  if (first == 0 && (agent->moment_count == 0 || agent->moments[0].time_ns > from_ns))
    found = physical_bytes == 0 && reserved_bytes == 0;
  for (size_t i = first; i < agent->moment_count; i++) {
    const struct rp_target_moment *moment = &agent->moments[i % RP_TARGET_MOMENTS];
    uint64_t until =
        i + 1 < agent->moment_count ? agent->moments[(i + 1) % RP_TARGET_MOMENTS].time_ns : UINT64_MAX;
    if (moment->time_ns > to_ns) break;
    *known |= moment->time_ns <= from_ns;
    if (until < from_ns) continue;
    found |= moment->physical_bytes == physical_bytes && moment->reserved_bytes == reserved_bytes;
  }
  return found;
}

/* The report tells of a moment after it was begun and before it was read. In the middle of a change the
 * agent's books and its calls need not agree yet: only what the next report says too, or the last one, is
 * held against it. */
static void compare_memory(const struct rp_target *target, const json_t *report, uint64_t begun_ns,
                           bool finished) {
  struct rp_attach_process *process = target->user;
  const json_t *enforcement = json_object_get(report, "enforcement"), *device;
  uint64_t physical = 0, one_to_one = 0;
  bool known;
  size_t index;
  const char *mode = json_string_value(json_object_get(enforcement, "mode"));
  if (!mode || strcmp(mode, "enforce") != 0) return;
  json_array_foreach(json_object_get(enforcement, "devices"), index, device) {
    physical += rp__count_of(device, "physical_bytes");
    one_to_one += rp__count_of(device, "one_to_one_bytes");
  }
  bool same = held(&target->agent, begun_ns, process->read_ns, physical, one_to_one, &known);
  if (!known) return;
  process->compared++;
  bool doubtful = process->doubtful;
  process->doubtful = !same;
  if (!same && (finished || doubtful))
    differ(process,
           "the agent says that receive buffers of %" PRIu64 " bytes hold %" PRIu64
           " bytes of device memory; the probes see %" PRIu64 " and %" PRIu64,
           one_to_one, physical, target->agent.reserved_bytes, target->agent.physical_bytes);
}

static void compare_transfers(const struct rp_target *target, const json_t *report) {
  struct rp_attach_process *process = target->user;
  const json_t *kinds = json_object_get(json_object_get(report, "events"), "by_kind");
  uint64_t receives = rp__count_of(kinds, "recv"), sends = rp__count_of(kinds, "send");
  process->transfers_compared = true;
  if (rp__count_of(kinds, "graph_launch"))
    return;                      /* it also counts those that a graph makes, where nothing is called */
  if (target->in_flight) return; /* which the agent may have counted */
  process->compared++;
  /* the agent counts calls, before they are made */
  uint64_t received = target->receives + target->failed_receives + target->open_receives,
           sent = target->sends + target->failed_sends + target->open_sends;
  if (receives != received || sends != sent)
    differ(process,
           "the agent says that it saw %" PRIu64 " receives and %" PRIu64 " sends; the probes saw %" PRIu64
           " and %" PRIu64,
           receives, sends, received, sent);
}

/* Whether the probes have told all that they saw up to the moment of which the report tells. */
static bool all_is_told(const struct rp_target *target, uint64_t written_ns, bool stopped) {
  const struct rp_attach_process *process = target->user;
  if (target->ended_ns) return true;
  return !stopped && process->read_ns >= written_ns + RECORD_AGE_NS;
}

static void compare(const struct rp_observer *observer, const struct rp_target *target, bool stopped) {
  struct rp_attach_process *process = target->user;
  const json_t *report = process->claim;
  uint64_t written_ns = rp__count_of(report, "written_monotonic_ns");
  const char *state = json_string_value(json_object_get(report, "state"));
  bool finished = state && strcmp(state, "finished") == 0;
  /* The last report may be there long before its process is gone: then only its transfers are left to
   * compare. */
  bool whole = finished && target->ended_ns, again = written_ns == process->compared_ns;
  if (again && (!whole || process->transfers_compared)) return;
  if (!all_is_told(target, written_ns, stopped)) return;
  if (rp_observer_lost(observer, target) || target->out_of_memory)
    return; /* the probes' own count is short */
  process->compared_ns = written_ns;
  if (!again) compare_memory(target, report, written_ns, finished);
  if (whole) compare_transfers(target, report);
}

static void read_claims(const struct rp_observer *observer) {
  const struct rp_target *target;
  for (size_t i = 0; (target = rp_observer_target(observer, i)); i++) {
    struct rp_attach_process *process = target->user;
    /* what came before somebody joined, or before the probes, is not known to them */
    bool whole = !target->joined_late && !target->late_library;
    if (!process || !target->agent.end || !whole || process->checked_after_end) continue;
    process->checked_after_end = target->ended_ns && rp__attach_now_ns() > target->ended_ns + LAST_REPORT_NS;
    process->claim = rp__attach_read_claim(target);
    process->read_ns = rp__attach_now_ns();
  }
}

void rp_attach_check(struct rp_observer *observer, bool stopped) {
  const struct rp_target *target;
  read_claims(observer);
  if (!stopped) (void)rp_observer_poll(observer, 0);
  for (size_t i = 0; (target = rp_observer_target(observer, i)); i++) {
    struct rp_attach_process *process = target->user;
    if (!process || !process->claim) continue;
    compare(observer, target, stopped);
    json_decref(process->claim);
    process->claim = NULL;
  }
}
