/* What is shown while observation goes on. */
#include "agent/attach.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "bpf/functions.h"

static void format_bytes(uint64_t bytes, char *out, size_t size) {
  static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = (double)bytes;
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < sizeof units / sizeof units[0]; unit++)
    value /= 1024;
  snprintf(out, size, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
}

/* What is shared already, or would be saved, as far as that is decided. */
static void format_gain(const struct rp_target *target, const struct rp_snapshot *snapshot, char *out,
                        size_t size) {
  char saved[32], all[32];
  uint64_t physical_bytes, buffer_bytes;
  size_t undecided = 0;
  for (size_t i = 0; i < snapshot->channel_count; i++)
    undecided += snapshot->channels[i].reason == RP_REASON_TOO_FEW_STEPS;
  format_bytes(snapshot->would_save_bytes, saved, sizeof saved);
  bool enforces = rp_attach_shares(target, &physical_bytes, &buffer_bytes);
  if (enforces && physical_bytes >= buffer_bytes) {
    snprintf(out, size, "the agent enforces and shares nothing yet");
  } else if (enforces) {
    format_bytes(physical_bytes, saved, sizeof saved);
    format_bytes(buffer_bytes, all, sizeof all);
    snprintf(out, size, "shared by the agent: %s held for %s", saved, all);
  } else if (undecided && undecided == snapshot->channel_count) {
    snprintf(out, size, "undecided yet");
  } else if (undecided) {
    snprintf(out, size, "would save %s so far (%zu of %zu channels undecided)", saved, undecided,
             snapshot->channel_count);
  } else {
    snprintf(out, size, "would save %s", saved);
  }
}

/* One line; the snapshot may be empty. */
static void show_line(const struct rp_observer *observer, const struct rp_target *target, double seconds) {
  struct rp_snapshot snapshot = {0};
  const struct rp_attach_process *process = target->user;
  char received[32], held[32], gain[128], rank[24] = "-";
  if (rp_tracker_snapshot(target->tracker, &snapshot) != RP_OK) return;
  uint64_t buffers = 0;
  for (size_t i = 0; i < snapshot.channel_count; i++)
    buffers += snapshot.channels[i].buffers;
  format_bytes(target->received_bytes, received, sizeof received);
  format_bytes(snapshot.held_bytes, held, sizeof held);
  format_gain(target, &snapshot, gain, sizeof gain);
  if (process && process->info.rank >= 0) snprintf(rank, sizeof rank, "%d", process->info.rank);
  printf("%8.1f s  rank %s  process %ld  %" PRIu64 " receives (%s), %" PRIu64 " sends, %" PRIu64
         " steps, %" PRIu64 " buffers of %s, %s%s\n",
         seconds, rank, (long)target->process.pid, target->receives, received, target->sends,
         snapshot.steps_complete, buffers, held, gain, target->ended_ns ? ", ended" : "");
  uint64_t lost = rp_observer_lost(observer, target);
  if (lost) printf("%10s process %ld lost %" PRIu64 " events\n", "", (long)target->process.pid, lost);
  rp_snapshot_fini(&snapshot);
}

void rp_attach_show(const struct rp_observer *observer, const struct rp_attach_arguments *arguments,
                    bool terminal, double seconds) {
  struct rp_read_set set;
  if (!terminal) {
    const struct rp_target *target;
    rp_attach_look_inside(observer);
    for (size_t i = 0; (target = rp_observer_target(observer, i)); i++)
      if (!target->ended_ns && (target->receives || target->sends)) show_line(observer, target, seconds);
    (void)fflush(stdout);
    return;
  }
  if (rp_attach_collect(observer, arguments, &set) != RP_OK) return;
  printf("\033[H\033[2J" /* home, clear */
         "observing for %.0f s with %zu probes; Ctrl-C ends it\n\n",
         seconds, rp_observer_probes(observer));
  rp_report_print(&set, stdout);
  (void)fflush(stdout);
  rp_read_fini(&set);
}

/* Small numbers are counts, large ones are addresses. */
#define ADDRESSES_FROM 1000000000u

void rp_attach_show_call(const struct rp_probe_record *record) {
  const struct rp_probe_function *function = rp_probe_function_at(record->function);
  unsigned count = rp_probe_function_arguments(record->function);
  printf("%u %s(", record->event.tid, function ? function->name : "?");
  for (unsigned i = 0; i < count; i++) {
    uint64_t value = record->event.companion[i];
    printf(value < ADDRESSES_FROM ? "%s%" PRIu64 : "%s0x%" PRIx64, i ? ", " : "", value);
  }
  printf(") = %d\n", record->status);
}
