/* Reports as a table for people: one row per rank, direction and stage, totals, notes, and what follows from
 * it all. */
#include "agent/cmd_report_text.h"

#include <stdbool.h>
#include <string.h>
#include <time.h>

#include "pool/tracker.h"

/* What the channels of a set say together, for the conclusion. */
struct summary {
  size_t channels, poolable, just_in_time, unbounded, within_slack, too_few, other;
  uint64_t held_bytes, needed_bytes, saved_bytes, small_receives;
  bool activations_unbounded, gradients_unbounded, estimate;
};

static const char *reason_of(const json_t *channel) {
  return rp__text_of(json_object_get(channel, "decision"), "reason", "");
}

uint64_t rp_report_total(const struct rp_read_set *set, size_t job, const char *key) {
  uint64_t sum = 0;
  for (size_t i = 0; i < set->count; i++)
    if (rp__in_job(set, i, job))
      sum = rp__add(sum, rp__count_of(json_object_get(set->reports[i].json, "totals"), key));
  return sum;
}

static void summarise(struct summary *summary, const json_t *channel) {
  const char *reason = reason_of(channel);
  bool activation = strcmp(rp__text_of(channel, "direction", ""), "activation") == 0;
  summary->channels++;
  summary->held_bytes += rp__count_of(channel, "held_bytes");
  summary->needed_bytes += rp__count_of(channel, "needed_bytes");
  summary->saved_bytes += rp__count_of(channel, "would_save_bytes");
  summary->estimate |= json_is_true(json_object_get(channel, "estimate"));
  if (strcmp(reason, rp_reason_name(RP_REASON_POOLABLE)) == 0) {
    summary->poolable++;
  } else if (strcmp(reason, rp_reason_name(RP_REASON_JUST_IN_TIME)) == 0) {
    summary->just_in_time++;
  } else if (strcmp(reason, rp_reason_name(RP_REASON_UNBOUNDED_DEPTH)) == 0) {
    summary->unbounded++;
    *(activation ? &summary->activations_unbounded : &summary->gradients_unbounded) = true;
  } else if (strcmp(reason, rp_reason_name(RP_REASON_WITHIN_SLACK)) == 0) {
    summary->within_slack++;
  } else if (strcmp(reason, rp_reason_name(RP_REASON_TOO_FEW_STEPS)) == 0) {
    summary->too_few++;
  } else {
    summary->other++;
  }
}

static void conclude_saving(const struct summary *summary, char *out, size_t out_size) {
  char saved[32], held[32];
  rp__format_bytes(summary->saved_bytes, saved, sizeof saved);
  rp__format_bytes(summary->held_bytes, held, sizeof held);
  const char *rest = "";
  if (summary->activations_unbounded && summary->gradients_unbounded)
    rest = "; where D = N there is nothing to save";
  else if (summary->activations_unbounded)
    rest = "; on activations with D = N there is nothing to save: all of them are in use at once";
  else if (summary->gradients_unbounded)
    rest = "; on gradients with D = N there is nothing to save: all of them are in use at once";
  snprintf(out, out_size, "pooling would save %s%s of the %s held for receive buffers%s.",
           summary->estimate ? "about " : "", saved, held, rest);
}

/* How many receives were seen, where all of them are below the threshold; else 0. */
static uint64_t small_receives(const json_t *report) {
  const json_t *events = json_object_get(report, "events"), *dropped = json_object_get(events, "dropped");
  uint64_t seen = rp__count_of(json_object_get(events, "by_kind"), "recv");
  bool lost = rp__count_of(dropped, "lifetimes") || rp__count_of(dropped, "events");
  return lost || json_array_size(json_object_get(report, "channels")) ||
                 rp__count_of(events, "ignored") < seen
             ? 0
             : seen;
}

/* What is measured comes before what is computed; false where nothing was shared. */
static bool conclude_enforced(const struct rp_read_set *set, size_t job, char *out, size_t out_size) {
  struct rp__enforced sum;
  char saved[32], stock[32], violations[64] = "";
  rp__enforced_sum(set, job, &sum);
  if (!sum.saved_peak_bytes && !sum.violations) return false;
  if (sum.violations)
    snprintf(violations, sizeof violations, ", with %llu VIOLATION%s", (unsigned long long)sum.violations,
             sum.violations == 1 ? "" : "S");
  snprintf(out, out_size, "sharing saved %s of the %s that receive buffers would hold%s.",
           rp__format_bytes(sum.saved_peak_bytes, saved, sizeof saved),
           rp__format_bytes(sum.one_to_one_peak_bytes, stock, sizeof stock), violations);
  return true;
}

void rp_report_conclude(const struct rp_read_set *set, size_t job, char *out, size_t out_size) {
  struct summary summary = {0};
  if (conclude_enforced(set, job, out, out_size)) return;
  for (size_t i = 0; i < set->count; i++) {
    const json_t *channels = json_object_get(set->reports[i].json, "channels");
    for (size_t c = 0; rp__in_job(set, i, job) && c < json_array_size(channels); c++)
      summarise(&summary, json_array_get(channels, c));
    if (rp__in_job(set, i, job)) summary.small_receives += small_receives(set->reports[i].json);
  }
  if (summary.channels == 0 && summary.small_receives > 0)
    snprintf(out, out_size,
             "only receives below --min-bytes were seen, so there is nothing to say about pooling.");
  else if (summary.channels == 0)
    snprintf(out, out_size, "no receives were seen, so there is nothing to say about pooling.");
  else if (summary.saved_bytes > 0)
    conclude_saving(&summary, out, out_size);
  else if (summary.just_in_time == summary.channels)
    snprintf(out, out_size,
             "nothing to pool: receive buffers are allocated just before the receive and freed after their "
             "last use.");
  else if (summary.too_few > 0)
    snprintf(out, out_size, "undecided: fewer than two complete steps were seen on some channels.");
  else if (summary.unbounded == summary.channels)
    snprintf(out, out_size, "nothing to save: every receive buffer is in use at once (D = N).");
  else if (summary.other == 0)
    snprintf(out, out_size,
             "nothing to save: the buffers in use at once, with slack, reach the number held.");
  else
    snprintf(out, out_size, "nothing can be pooled; the decision column says why.");
}

static void format_depth(const json_t *channel, char *out, size_t out_size) {
  uint64_t depth = rp__count_of(channel, "depth"), least = rp__count_of(channel, "depth_min"),
           most = rp__count_of(channel, "depth_max");
  if (least != most)
    snprintf(out, out_size, "%llu-%llu", (unsigned long long)least, (unsigned long long)most);
  else
    snprintf(out, out_size, "%llu", (unsigned long long)depth);
}

#define COLUMNS "%-5s %-22s %-11s %5s %5s %5s %5s %5s %11s %11s %11s %11s"
#define ROW COLUMNS "  %s\n"

static void print_channel(FILE *out, const char *rank, const char *process, const json_t *channel) {
  char direction[32], reason[64], stage[24], peer[24], buffers[24], depth[48], slots[24], size[32], held[32],
      needed[32], saved[32];
  const json_t *from = json_object_get(channel, "peer");
  snprintf(stage, sizeof stage, "%llu", (unsigned long long)rp__count_of(channel, "stage_ordinal"));
  snprintf(peer, sizeof peer, json_is_integer(from) ? "%lld" : "-", (long long)json_integer_value(from));
  snprintf(buffers, sizeof buffers, "%llu", (unsigned long long)rp__count_of(channel, "buffers"));
  snprintf(slots, sizeof slots, "%llu", (unsigned long long)rp__count_of(channel, "slots"));
  format_depth(channel, depth, sizeof depth);
  rp__format_bytes(rp__count_of(channel, "buffer_bytes"), size, sizeof size);
  rp__format_bytes(rp__count_of(channel, "held_bytes"), held, sizeof held);
  rp__format_bytes(rp__count_of(channel, "needed_bytes"), needed, sizeof needed);
  rp__format_bytes(rp__count_of(channel, "would_save_bytes"), saved, sizeof saved);
  fprintf(out, ROW, rank, process,
          rp__plain_text(rp__text_of(channel, "direction", "unknown"), direction, sizeof direction), stage,
          peer, buffers, depth, slots, size, held, needed, saved,
          rp__plain_text(reason_of(channel), reason, sizeof reason));
}

static void print_no_channel(FILE *out, const char *rank, const char *process, const json_t *report) {
  char least[32];
  uint64_t small = small_receives(report);
  rp__format_bytes(rp__count_of(json_object_get(report, "configuration"), "min_bytes"), least, sizeof least);
  fprintf(out, "%-5s %-22s ", rank, process);
  if (small)
    fprintf(out, "no receives of %s or more, %llu smaller ones (--min-bytes)\n", least,
            (unsigned long long)small);
  else
    fputs("no receives seen\n", out);
}

static void print_report(FILE *out, const json_t *report) {
  char rank[64], process[64];
  const json_t *channels = json_object_get(report, "channels");
  rp__format_process(report, rank, process, sizeof rank);
  for (size_t c = 0; c < json_array_size(channels); c++)
    print_channel(out, rank, process, json_array_get(channels, c));
  if (json_array_size(channels) == 0) print_no_channel(out, rank, process, report);
}

static void print_job(FILE *out, const struct rp_read_set *set, size_t job) {
  size_t processes = 0;
  double first = 0;
  for (size_t i = 0; i < set->count; i++) {
    if (!rp__in_job(set, i, job)) continue;
    double start = json_number_value(
        json_object_get(json_object_get(set->reports[i].json, "process"), "start_unix_seconds"));
    if (processes++ == 0 || start < first) first = start;
  }
  char when[32] = "?";
  time_t seconds = first > 0 && first < 1e12 ? (time_t)first : 0;
  struct tm broken;
  if (gmtime_r(&seconds, &broken)) strftime(when, sizeof when, "%Y-%m-%d %H:%M:%SZ", &broken);
  if (set->job_count > 1)
    fprintf(out, "job %zu: %zu process%s from %s\n", job + 1, processes, processes == 1 ? "" : "es", when);
  fprintf(out, ROW, "rank", "process", "direction", "stage", "peer", "N", "D", "K", "buffer", "held",
          "needed", "would save", "decision");
  for (size_t i = 0; i < set->count; i++)
    if (rp__in_job(set, i, job)) print_report(out, set->reports[i].json);
  char held[32], needed[32], saved[32];
  rp__format_bytes(rp_report_total(set, job, "held_bytes"), held, sizeof held);
  rp__format_bytes(rp_report_total(set, job, "needed_bytes"), needed, sizeof needed);
  rp__format_bytes(rp_report_total(set, job, "would_save_bytes"), saved, sizeof saved);
  fprintf(out, COLUMNS "\n", "total", "", "", "", "", "", "", "", "", held, needed, saved);
}

/* Counts one line among those said before; lines that many processes say are printed once. */
static void count_note(void *notes, const char *text) {
  if (!text) return;
  json_int_t before = json_integer_value(json_object_get(notes, text));
  json_object_set_new(notes, text, json_integer(before + 1));
}

/* The sources without which numbers are missing; the others only add labels and cross-checks. */
static bool is_needed_source(const char *name) {
  return strcmp(name, "interposer") == 0 || strcmp(name, "cupti") == 0;
}

static void note_evidence(json_t *notes, const json_t *source) {
  const char *name = rp__text_of(source, "name", ""), *reason = rp__text_of(source, "reason", "");
  bool active = json_is_true(json_object_get(source, "active"));
  bool limits = active && reason[0] && strcmp(name, "uprobes") == 0; /* where they are all there is */
  if (!limits && (!is_needed_source(name) || (active && !reason[0]))) return;
  char text[512];
  snprintf(text, sizeof text, "%s evidence from %s: %s", active ? "limited" : "no", name,
           reason[0] ? reason : "?");
  count_note(notes, text);
}

static void collect_notes(json_t *notes, const json_t *report) {
  size_t index;
  json_t *entry;
  json_array_foreach(json_object_get(report, "evidence"), index, entry) note_evidence(notes, entry);
  json_array_foreach(json_object_get(report, "warnings"), index, entry)
      count_note(notes, json_string_value(entry));
  rp__enforced_notes(report, count_note, notes);
  const char *passive = json_string_value(json_object_get(report, "passive_reason"));
  if (passive) {
    char text[512];
    snprintf(text, sizeof text, "the agent did nothing: %s", passive);
    count_note(notes, text);
  }
}

json_t *rp_report_notes(const struct rp_read_set *set, size_t job) {
  json_t *notes = json_object();
  for (size_t i = 0; i < set->count; i++)
    if (rp__in_job(set, i, job)) collect_notes(notes, set->reports[i].json);
  return notes;
}

static void print_notes(FILE *out, const struct rp_read_set *set) {
  json_t *notes = rp_report_notes(set, SIZE_MAX);
  const char *text;
  json_t *count;
  json_object_foreach(notes, text, count) {
    long long times = json_integer_value(count);
    char line[1024];
    fprintf(out, "note: %s", rp__plain_text(text, line, sizeof line));
    fprintf(out, times > 1 ? " (%lld processes)\n" : "\n", times);
  }
  json_decref(notes);
}

void rp_report_print(const struct rp_read_set *set, FILE *out) {
  char conclusion[512];
  for (size_t job = 0; job < set->job_count; job++) {
    print_job(out, set, job);
    rp__enforced_print(set, job, out);
    rp_report_conclude(set, job, conclusion, sizeof conclusion);
    fprintf(out, "=> %s\n\n", conclusion);
  }
  print_notes(out, set);
}
