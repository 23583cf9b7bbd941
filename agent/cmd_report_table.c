/* Reports as a table for people: one row per rank, direction and stage, totals, notes, and what follows from
 * it all. */
#include "agent/cmd_report_text.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "agent/cmd_report_digest.h"
#include "agent/pieces.h"
#include "pool/tracker.h"

/* Sentences of one report; beyond them they repeat. */
#define MOST_NOTES 64

static const char *reason_of(const json_t *channel) {
  return rp__text_of(json_object_get(channel, "decision"), "reason", "");
}

/* What enforcing would save of a report's channels, in whole pieces, if those share that can. Without memory
 * for the list it is what the channels say. */
static uint64_t whole_saving(const json_t *channels, uint64_t piece_bytes, uint64_t otherwise) {
  struct rp_pieces_class *classes = malloc((json_array_size(channels) + 1) * sizeof *classes);
  const json_t *channel;
  size_t i, count = 0;
  if (!classes) return otherwise;
  json_array_foreach(channels, i, channel) {
    if (!rp__count_of(channel, "held_bytes")) continue; /* its buffers are those of another channel now */
    bool shares = rp__count_of(channel, "would_save_bytes") > 0;
    classes[count++] = (struct rp_pieces_class){.buffer_bytes = rp__count_of(channel, "buffer_bytes"),
                                          .held_bytes = rp__count_of(channel, "held_bytes"),
                                          .left = rp__count_of(channel, shares ? "slots" : "buffers")};
  }
  uint64_t saving = rp_pieces_saving(classes, count, piece_bytes);
  free(classes);
  return saving;
}

/* Of the first device whose memory was managed; 0: of none. */
static uint64_t measured_piece(const json_t *report) {
  const json_t *devices = json_object_get(json_object_get(report, "enforcement"), "devices"), *device;
  size_t d;
  json_array_foreach(devices, d, device) {
    uint64_t bytes = rp__count_of(json_object_get(device, "memory"), "granularity_bytes");
    if (bytes) return bytes;
  }
  return 0;
}

/* Whether the depth of the channel was measured, and what follows from it: otherwise there is no number. */
static bool is_measured(const char *reason) {
  return strcmp(reason, rp_reason_name(RP_REASON_TOO_FEW_STEPS)) != 0 &&
         strcmp(reason, rp_reason_name(RP_REASON_NO_ACCESS_EVIDENCE)) != 0;
}

/* Bit of a decision; 0 where a newer agent has a word that is not known here. */
static uint32_t reason_bit(const char *word) {
  for (uint32_t reason = 0; reason < RP_REASON_COUNT; reason++)
    if (strcmp(word, rp_reason_name((enum rp_reason)reason)) == 0) return UINT32_C(1) << reason;
  return 0;
}

/* More messages in use at once in one step than another had buffers: what counted as a step was none, as
 * where a cache hands out its blocks anew, or steps differ. No depth of the buffers follows from that. */
static bool is_unsteady(const json_t *channel) {
  return rp__count_of(channel, "depth_max") > rp__count_of(channel, "buffers");
}

static void summarise(struct rp__summary *summary, const json_t *channel) {
  const char *reason = reason_of(channel);
  bool activation = strcmp(rp__text_of(channel, "direction", ""), "activation") == 0;
  summary->channels++;
  summary->unsteady += is_unsteady(channel) && is_measured(reason);
  summary->reasons |= reason_bit(reason);
  summary->held_bytes = rp__add(summary->held_bytes, rp__count_of(channel, "held_bytes"));
  summary->saved_bytes = rp__add(summary->saved_bytes, rp__count_of(channel, "would_save_bytes"));
  summary->estimate |= json_is_true(json_object_get(channel, "estimate"));
  if (strcmp(reason, rp_reason_name(RP_REASON_JUST_IN_TIME)) == 0) {
    summary->just_in_time++;
  } else if (strcmp(reason, rp_reason_name(RP_REASON_UNBOUNDED_DEPTH)) == 0) {
    summary->unbounded++;
    *(activation ? &summary->activations_unbounded : &summary->gradients_unbounded) = true;
  } else if (strcmp(reason, rp_reason_name(RP_REASON_TOO_FEW_STEPS)) == 0) {
    summary->too_few++;
    summary->undecided_bytes = rp__add(summary->undecided_bytes, rp__count_of(channel, "held_bytes"));
  } else if (strcmp(reason, rp_reason_name(RP_REASON_NO_ACCESS_EVIDENCE)) == 0) {
    summary->unseen++;
    summary->other++;
  } else if (strcmp(reason, rp_reason_name(RP_REASON_SHARED_ALLOCATION)) == 0) {
    summary->unreachable_bytes =
        rp__add(summary->unreachable_bytes, rp__count_of(channel, "unreachable_bytes"));
    summary->other++;
  } else if (strcmp(reason, rp_reason_name(RP_REASON_POOLABLE)) != 0 &&
             strcmp(reason, rp_reason_name(RP_REASON_WITHIN_SLACK)) != 0) {
    summary->other++;
  }
}

/* Of what is decided. */
static void conclude_saving(const struct rp__summary *summary, char *out, size_t out_size) {
  char saved[32], held[32], undecided[96] = "";
  rp__format_bytes(summary->saved_bytes, saved, sizeof saved);
  rp__format_bytes(summary->held_bytes - summary->undecided_bytes, held, sizeof held);
  if (summary->too_few)
    snprintf(undecided, sizeof undecided, "; undecided on %zu of %zu channels, with too few steps seen",
             summary->too_few, summary->channels);
  const char *rest = "";
  if (summary->activations_unbounded && summary->gradients_unbounded)
    rest = "; where D = N there is nothing to save";
  else if (summary->activations_unbounded)
    rest = "; on activations with D = N there is nothing to save: all of them are in use at once";
  else if (summary->gradients_unbounded)
    rest = "; on gradients with D = N there is nothing to save: all of them are in use at once";
  snprintf(out, out_size, "pooling would save %s%s of the %s held for receive buffers%s%s.",
           summary->estimate ? "about " : "", saved, held, rest, undecided);
  if (summary->whole_saved_bytes == summary->saved_bytes) return;
  size_t used = strlen(out) - 1; /* without the full stop */
  rp__format_bytes(summary->whole_saved_bytes, saved, sizeof saved);
  rp__format_bytes(summary->piece_bytes ? summary->piece_bytes : RP_USUAL_PIECE_BYTES, held, sizeof held);
  snprintf(out + used, out_size - used,
           "; enforcing would save %s%s, since the device gives memory in pieces of %s%s.",
           summary->whole_saved_bytes ? "at most " : "", summary->whole_saved_bytes ? saved : "nothing", held,
           summary->piece_bytes ? "" : " (the usual size, not measured here)");
}

uint64_t rp__small_receives(const json_t *report) {
  const json_t *events = json_object_get(report, "events"), *dropped = json_object_get(events, "dropped");
  uint64_t seen = rp__count_of(json_object_get(events, "by_kind"), "recv");
  bool lost = rp__count_of(dropped, "lifetimes") || rp__count_of(dropped, "events");
  return lost || json_array_size(json_object_get(report, "channels")) ||
                 rp__count_of(events, "ignored") < seen
             ? 0
             : seen;
}

/* From outside only what is done meanwhile is seen, and a passive agent sees nothing. */
static bool sees_all(const json_t *report) {
  const json_t *source;
  size_t i;
  json_array_foreach(json_object_get(report, "evidence"), i,
                     source) if (json_is_true(json_object_get(source, "active")) &&
                                 strcmp(rp__text_of(source, "name", ""), "uprobes") == 0) return false;
  return !json_is_string(json_object_get(report, "passive_reason"));
}

bool rp__is_helper(const json_t *report) {
  const json_t *events = json_object_get(report, "events");
  return json_array_size(json_object_get(report, "communicators")) == 0 &&
         json_array_size(json_object_get(report, "channels")) == 0 &&
         rp__count_of(json_object_get(events, "by_kind"), "recv") == 0 && sees_all(report);
}

void rp__summary_of(const json_t *report, struct rp__summary *out) {
  size_t c, i;
  json_t *channel, *source;
  const json_t *refused = json_object_get(report, "allocations_refused");
  *out = (struct rp__summary){.small_receives = rp__small_receives(report),
                              .piece_bytes = measured_piece(report),
                              .allocations_refused = rp__count_of(refused, "count"),
                              .refused_bytes = rp__count_of(refused, "last_bytes")};
  json_array_foreach(json_object_get(report, "evidence"), i, source) out->outside |=
      json_is_true(json_object_get(source, "active")) &&
      strcmp(rp__text_of(source, "name", ""), "uprobes") == 0;
  uint64_t piece_bytes = out->piece_bytes ? out->piece_bytes : RP_USUAL_PIECE_BYTES;
  json_array_foreach(json_object_get(report, "channels"), c, channel) summarise(out, channel);
  out->whole_saved_bytes = whole_saving(json_object_get(report, "channels"), piece_bytes, out->saved_bytes);
  if (out->whole_saved_bytes > out->saved_bytes) out->whole_saved_bytes = out->saved_bytes;
}

/* What a job has to have room for: before it was shared more may have been held. Appended. */
static void conclude_peak(const struct rp__enforced *sum, char *out, size_t out_size) {
  char held[32], lowered[32];
  size_t used = strlen(out) - 1; /* without the full stop */
  bool others = sum->held_peak_bytes > rp__add(sum->one_to_one_peak_bytes, sum->rounding_peak_bytes);
  const char *with = others ? ", with other allocations of such sizes" : "";
  if (sum->saved_peak_bytes <= 0 || sum->lowered_peak_bytes >= sum->saved_peak_bytes) return;
  rp__format_bytes(sum->held_peak_bytes, held, sizeof held);
  if (sum->lowered_peak_bytes > 0)
    snprintf(out + used, out_size - used, ", but lowered the peak by %s only: %s were held at most%s.",
             rp__format_bytes((uint64_t)sum->lowered_peak_bytes, lowered, sizeof lowered), held, with);
  else if (sum->lowered_peak_bytes < 0)
    snprintf(out + used, out_size - used,
             ", but raised the peak by %s, since sizes are rounded up: %s were held at most%s.",
             rp__format_bytes(-(uint64_t)sum->lowered_peak_bytes, lowered, sizeof lowered), held, with);
  else
    snprintf(out + used, out_size - used, ", but did not lower the peak: %s were held at most%s.", held,
             with);
}

/* What is measured comes before what is computed; false where nothing was shared. */
static bool conclude_enforced(const struct rp_read_set *set, size_t job, char *out, size_t out_size) {
  struct rp__enforced sum;
  char saved[32], stock[32], violations[64] = "";
  rp__enforced_sum(set, job, &sum);
  if (!sum.saved_peak_bytes && !sum.violations && !sum.rounding_peak_bytes) return false;
  if (sum.violations)
    snprintf(violations, sizeof violations, ", with %llu VIOLATION%s", (unsigned long long)sum.violations,
             sum.violations == 1 ? "" : "S");
  rp__format_bytes(sum.one_to_one_peak_bytes, stock, sizeof stock);
  if (sum.saved_peak_bytes == 0 && sum.rounding_peak_bytes)
    snprintf(out, out_size,
             "sharing saved nothing of the %s that these receive buffers would hold: other allocations are "
             "rounded up by as much%s.",
             stock, violations);
  else if (sum.saved_peak_bytes >= 0)
    snprintf(out, out_size, "sharing saved %s of the %s that these receive buffers would hold%s.",
             rp__format_bytes((uint64_t)sum.saved_peak_bytes, saved, sizeof saved), stock, violations);
  else
    snprintf(out, out_size,
             "enforcing holds %s more than the job would without it, since sizes are rounded up%s%s.",
             rp__format_bytes(-(uint64_t)sum.saved_peak_bytes, saved, sizeof saved),
             sum.headroom_peak_bytes ? " and memory is kept back" : "", violations);
  conclude_peak(&sum, out, out_size);
  return true;
}

static void conclude_observed(const struct rp_read_set *set, size_t job, char *out, size_t out_size) {
  struct rp__summary summary;
  rp__summary_sum(set, job, &summary);
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

/* What sharing could have, were it not for its neighbours; appended. */
static void conclude_unreachable(const struct rp_read_set *set, size_t job, char *out, size_t out_size) {
  struct rp__summary summary;
  char bytes[32];
  size_t used = strlen(out) - 1; /* without the full stop */
  rp__summary_sum(set, job, &summary);
  if (!summary.unreachable_bytes) return;
  rp__format_bytes(summary.unreachable_bytes, bytes, sizeof bytes);
  snprintf(out + used, out_size - used, "; %s are out of reach, in allocations that hold other data too.",
           bytes);
}

const char *rp__format_off(const struct rp__enforced *sum, char *out, size_t out_size) {
  int used =
      snprintf(out, out_size, "%zu of %zu processes", sum->switched_off - sum->not_yet_off, sum->processes);
  if (sum->not_yet_off && used > 0 && (size_t)used < out_size)
    snprintf(out + used, out_size - (size_t)used, ", and %zu went on sharing%s", sum->not_yet_off,
             sum->no_room == sum->not_yet_off ? ": the device has no room for their buffers"
             : sum->no_room                   ? ": the device has no room for the buffers of some"
                                              : "");
  return out;
}

void rp_report_conclude(const struct rp_read_set *set, size_t job, char *out, size_t out_size) {
  struct rp__enforced sum;
  if (!conclude_enforced(set, job, out, out_size)) conclude_observed(set, job, out, out_size);
  conclude_unreachable(set, job, out, out_size);
  rp__enforced_sum(set, job, &sum);
  size_t used = strlen(out) - 1; /* without the full stop */
  if (sum.switched_off) {
    char off[160];
    snprintf(out + used, out_size - used, "; sharing was switched off (switched_off) in %s.",
             rp__format_off(&sum, off, sizeof off));
  }
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
/* Channels shown of one report; a process has a few. */
#define MOST_ROWS 1024
#define ROW COLUMNS "  %s\n"

static void leave_open(char *out) {
  strcpy(out, "-");
}

static void print_channel(FILE *out, const char *rank, const char *process, const json_t *channel,
                          const json_t *stages) {
  char direction[32], reason[64], stage[24], peer[24], buffers[24], depth[48], slots[24], size[32], held[32],
      needed[32], saved[32];
  const json_t *from = json_object_get(channel, "peer");
  rp__format_stage(channel, stages, stage, sizeof stage);
  snprintf(peer, sizeof peer, json_is_integer(from) ? "%lld" : "-", (long long)json_integer_value(from));
  snprintf(buffers, sizeof buffers, "%llu", (unsigned long long)rp__count_of(channel, "buffers"));
  snprintf(slots, sizeof slots, "%llu", (unsigned long long)rp__count_of(channel, "slots"));
  format_depth(channel, depth, sizeof depth);
  rp__format_bytes(rp__count_of(channel, "buffer_bytes"), size, sizeof size);
  rp__format_bytes(rp__count_of(channel, "held_bytes"), held, sizeof held);
  rp__format_bytes(rp__count_of(channel, "needed_bytes"), needed, sizeof needed);
  rp__format_bytes(rp__count_of(channel, "would_save_bytes"), saved, sizeof saved);
  if (!is_measured(reason_of(channel)) || is_unsteady(channel)) {
    char *const numbers[] = {depth, slots, needed, saved};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
      leave_open(numbers[i]);
  }
  fprintf(out, ROW, rank, process,
          rp__plain_text(rp__text_of(channel, "direction", "unknown"), direction, sizeof direction), stage,
          peer, buffers, depth, slots, size, held, needed, saved,
          rp__plain_text(reason_of(channel), reason, sizeof reason));
}

static void print_no_channel(FILE *out, const char *rank, const char *process, const json_t *report) {
  char least[32];
  uint64_t small = rp__small_receives(report);
  rp__format_bytes(rp__count_of(json_object_get(report, "configuration"), "min_bytes"), least, sizeof least);
  fprintf(out, "%-5s %-22s ", rank, process);
  if (small)
    fprintf(out, "no receives of %s or more, %llu smaller ones (--min-bytes)\n", least,
            (unsigned long long)small);
  else if (rp__is_helper(report) && strcmp(rank, "-") == 0)
    fputs("no communicator seen: a launcher or a helper process\n", out);
  else
    fputs("no receives seen\n", out);
}

void rp__print_rows(const json_t *report, FILE *out) {
  char rank[64], process[64];
  const json_t *channels = json_object_get(report, "channels");
  size_t count = json_array_size(channels);
  json_t *stages = rp__planned_stages(report);
  rp__format_process(report, rank, process, sizeof rank);
  for (size_t c = 0; c < count && c < MOST_ROWS; c++)
    print_channel(out, rank, process, json_array_get(channels, c), stages);
  json_decref(stages);
  if (count > MOST_ROWS) fprintf(out, "%-5s %-22s and %zu more channels\n", rank, process, count - MOST_ROWS);
  if (count == 0) print_no_channel(out, rank, process, report);
}

void rp__decisions_print(const struct rp__summary *summary, FILE *out) {
  for (uint32_t reason = 0; reason < RP_REASON_COUNT; reason++)
    if (summary->reasons & UINT32_C(1) << reason)
      fprintf(out, "%s: %s\n", rp_reason_name((enum rp_reason)reason),
              rp_reason_text((enum rp_reason)reason));
  if (summary->unsteady)
    fputs("D left open: more messages were in use at once in one step than another had buffers.\n", out);
}

static void print_job(FILE *out, const struct rp_read_set *set, size_t job) {
  char held[32], needed[32], saved[32];
  struct rp__enforced sum;
  struct rp__summary summary;
  uint64_t held_bytes = 0, needed_bytes = 0, saved_bytes = 0;
  size_t first, end;
  if (set->jobs_found > 1) rp__job_heading_print(set, job, out);
  rp__enforced_sum(set, job, &sum);
  if (sum.processes) fputs("if every receive buffer had memory of its own:\n", out);
  fprintf(out, ROW, "rank", "process", "direction", "stage", "peer", "N", "D", "K", "buffer", "held",
          "needed", "would save", "decision");
  rp__job_range(set, job, &first, &end);
  for (size_t i = first; i < end; i++) {
    const struct rp_read_digest *digest = set->reports[i].digest;
    if (digest->rows)
      fputs(digest->rows, out);
    else if (set->reports[i].json)
      rp__print_rows(set->reports[i].json, out);
    held_bytes = rp__add(held_bytes, digest->held_bytes);
    needed_bytes = rp__add(needed_bytes, digest->needed_bytes);
    saved_bytes = rp__add(saved_bytes, digest->would_save_bytes);
  }
  rp__format_bytes(held_bytes, held, sizeof held);
  rp__format_bytes(needed_bytes, needed, sizeof needed);
  rp__format_bytes(saved_bytes, saved, sizeof saved);
  rp__summary_sum(set, job, &summary);
  size_t open = summary.too_few + summary.unseen + summary.unsteady;
  if (open) leave_open(needed); /* of some of what is held it is not known */
  if (open && open == summary.channels) leave_open(saved);
  fprintf(out, COLUMNS "\n", "total", "", "", "", "", "", "", "", "", held, needed, saved);
  rp__decisions_print(&summary, out);
}

/* A sentence, cut to size; of one report there are only so many. */
static void add_note(json_t *notes, const char *text) {
  char line[1024];
  if (!text || json_array_size(notes) >= MOST_NOTES) return;
  snprintf(line, sizeof line, "%s", text);
  (void)json_array_append_new(notes, rp__json_text(line));
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
  add_note(notes, text);
}

/* What kept buffers from sharing. */
static void note_reasons(json_t *notes, const json_t *device) {
  size_t i;
  json_t *reason;
  char text[1024];
  json_array_foreach(json_object_get(device, "reasons"), i, reason) {
    snprintf(text, sizeof text, "%s: %s", rp__text_of(reason, "reason", "?"),
             rp__text_of(reason, "text", "?"));
    add_note(notes, text);
  }
}

json_t *rp__notes_of(const json_t *report) {
  json_t *notes = json_array(), *entry;
  const char *passive = json_string_value(json_object_get(report, "passive_reason"));
  size_t i;
  json_array_foreach(json_object_get(report, "evidence"), i, entry) note_evidence(notes, entry);
  json_array_foreach(json_object_get(report, "warnings"), i, entry) add_note(notes, json_string_value(entry));
  json_array_foreach(json_object_get(json_object_get(report, "enforcement"), "devices"), i, entry)
      note_reasons(notes, entry);
  if (passive) {
    char text[512];
    snprintf(text, sizeof text, "the agent did nothing: %s", passive);
    add_note(notes, text);
  }
  return notes;
}

/* Bold, and red where the job has violations; the words alone say as much. */
static void print_conclusion(FILE *out, const struct rp_read_set *set, size_t job) {
  char conclusion[RP_REPORT_SENTENCE_BYTES], next[RP_REPORT_SENTENCE_BYTES];
  struct rp__enforced sum;
  rp_report_conclude(set, job, conclusion, sizeof conclusion);
  rp_report_next_step(set, job, next, sizeof next);
  rp__enforced_sum(set, job, &sum);
  const char *begin = !set->colour     ? ""
                      : sum.violations ? "\033[1;31m"
                                       : "\033[1m",
             *end = set->colour ? "\033[0m" : "";
  fprintf(out, "%s=> %s%s\n   %s\n\n", begin, conclusion, end, next);
}

void rp_report_print(const struct rp_read_set *set, FILE *out) {
  for (size_t job = 0; job < set->job_count; job++) {
    print_job(out, set, job);
    rp__enforced_print(set, job, out);
    print_conclusion(out, set, job);
    if (rp__notes_print(set, job, out) && job + 1 < set->job_count) fputc('\n', out);
  }
}
