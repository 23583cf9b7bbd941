/* What enforcing did, for people: what is shared and what that saved, what was prevented, what was not, and
 * in observe mode what enforcing would have prevented. */
#include "agent/cmd_report_text.h"

#include <stdio.h>
#include <string.h>

#include "agent/cmd_report_digest.h"
#include "pool/pool.h"
#include "pool/tracker.h"

/* Shown of one report: an agent writes of fewer devices, and of a few classes. */
#define MOST_DEVICES 64
#define MOST_CLASSES 1024
/* Violations shown in full per device; the others are in the report. */
#define SHOWN_VIOLATIONS 5

static const json_t *enforcement_of(const json_t *report) {
  return json_object_get(report, "enforcement");
}

static bool is_shadow(const json_t *enforcement) {
  return strcmp(rp__text_of(enforcement, "mode", ""), "enforce") != 0;
}

static bool held_less(const json_t *account) {
  return rp__count_of(account, "one_to_one_peak_bytes") > rp__count_of(account, "physical_peak_bytes");
}

/* Whether buffers share memory, or did before the program gave them back. The device's peak may be from
 * before the first of them did. */
static bool has_shared(const json_t *device) {
  size_t c;
  json_t *class;
  if (json_is_object(json_object_get(device, "activation")) ||
      json_is_true(json_object_get(device, "active")) || held_less(device))
    return true;
  json_array_foreach(json_object_get(device, "classes"), c, class) if (held_less(class)) return true;
  return false;
}

/* Uses that waiting alone does not make safe. */
static uint64_t serious_in(const json_t *counts) {
  const char *kind;
  json_t *value;
  uint64_t sum = 0;
  json_object_foreach((json_t *)counts, kind,
                      value) if (json_integer_value(value) > 0 && strcmp(kind, "unordered_reuse") != 0) sum =
      rp__add(sum, (uint64_t)json_integer_value(value));
  return sum;
}

static bool has_reason(const json_t *device, const char *word) {
  size_t i;
  json_t *reason;
  json_array_foreach(json_object_get(device, "reasons"), i,
                     reason) if (strcmp(rp__text_of(reason, "reason", ""), word) == 0) return true;
  return false;
}

/* Some of the device's buffers share memory now. */
static bool is_sharing(const json_t *device) {
  return json_is_true(json_object_get(device, "active"));
}

/* What was to get memory of its own and has not. */
static bool lacks_room(const json_t *device) {
  return json_is_true(json_object_get(device, "fallback_pending")) && rp__count_of(device, "fallbacks") &&
         has_reason(device, rp_pool_reason_name(RP_POOL_OUT_OF_MEMORY));
}

static bool any_device(const json_t *enforcement, bool (*is)(const json_t *device)) {
  size_t d;
  json_t *device;
  json_array_foreach(json_object_get(enforcement, "devices"), d, device) if (is(device)) return true;
  return false;
}

/* Told to stop sharing, and did not, or only when the buffers were freed. */
static void add_switched_off(const json_t *enforcement, struct rp__enforced *out) {
  const json_t *off = json_object_get(enforcement, "switched_off");
  out->switched_off = json_is_object(off);
  out->not_yet_off = out->switched_off && !json_is_number(json_object_get(off, "took_effect_seconds"));
  out->no_room = out->not_yet_off && any_device(enforcement, lacks_room);
}

static void add_devices(const json_t *enforcement, bool shadow, struct rp__enforced *out) {
  size_t d;
  json_t *device;
  json_array_foreach(json_object_get(enforcement, "devices"), d, device) {
    const json_t *conflicts = json_object_get(device, "conflicts");
    if (shadow) {
      out->would_prevent = rp__add(out->would_prevent, serious_in(json_object_get(conflicts, "prevented")));
      out->would_miss = rp__add(out->would_miss, serious_in(json_object_get(conflicts, "violated")));
      continue;
    }
    if (has_shared(device)) out->sharing = 1;
    out->serious = rp__add(out->serious, serious_in(json_object_get(conflicts, "prevented")));
    out->unclear = rp__add(out->unclear, rp__count_of(json_object_get(conflicts, "unclear"), "count"));
    out->misfits |= json_is_true(json_object_get(device, "planned")) &&
                    (has_reason(device, rp_pool_reason_name(RP_POOL_SIZE_NEVER_SEEN)) ||
                     has_reason(device, rp_pool_reason_name(RP_POOL_OTHER_CLASS)));
  }
}

/* What the program asked for; reports of older versions have it rounded to the device's granularity. */
static uint64_t stock_of(const json_t *account) {
  const char *key =
      json_object_get(account, "requested_peak_bytes") ? "requested_peak_bytes" : "one_to_one_peak_bytes";
  return rp__count_of(account, key);
}

/* No more than what lies between the two peaks: what was saved for a moment only, while memory was still
 * being made or before sharing was switched off, is nothing that a job can count on. */
static int64_t saved_of(const json_t *account) {
  int64_t saved = (int64_t)rp__count_of(account, "saved_peak_bytes");
  int64_t lasting = (int64_t)stock_of(account) - (int64_t)rp__count_of(account, "physical_peak_bytes");
  return saved < lasting ? saved : lasting;
}

/* Of all that the agent has memory for, at any time: classes count from when their buffers share. Where only
 * sums are told, they are taken for it. */
static void add_peaks(const json_t *enforcement, struct rp__enforced *out) {
  size_t d;
  json_t *device;
  json_array_foreach(json_object_get(enforcement, "devices"), d, device) {
    uint64_t held = rp__count_of(device, "physical_peak_bytes");
    out->held_peak_bytes = rp__add(out->held_peak_bytes, held);
    out->lowered_peak_bytes =
        rp__add_signed(out->lowered_peak_bytes, (int64_t)stock_of(device) - (int64_t)held);
  }
  if (out->untold) out->lowered_peak_bytes = out->saved_peak_bytes;
}

void rp__enforced_of(const json_t *report, struct rp__enforced *out) {
  const json_t *enforcement = enforcement_of(report), *totals = json_object_get(enforcement, "totals");
  const struct {
    const char *key;
    uint64_t *sum;
  } sums[] = {
      {"physical_peak_bytes", &out->physical_peak_bytes},
      {"one_to_one_peak_bytes", &out->one_to_one_peak_bytes},
      {"rounding_peak_bytes", &out->rounding_peak_bytes},
      {"headroom_peak_bytes", &out->headroom_peak_bytes},
      {"minimum_bytes", &out->minimum_bytes},
      {"prevented", &out->prevented},
      {"violations", &out->violations},
      {"double_frees", &out->double_frees},
  };
  *out = (struct rp__enforced){0};
  if (!json_is_object(enforcement)) return;
  add_devices(enforcement, is_shadow(enforcement), out);
  if (is_shadow(enforcement)) return;
  out->processes = 1;
  out->untold = json_array_size(json_object_get(enforcement, "devices")) == 0 && held_less(totals);
  out->sharing |= out->untold;
  out->bystanders = !out->sharing && json_array_size(json_object_get(report, "channels")) == 0 &&
                    !json_is_integer(json_object_get(json_object_get(report, "process"), "rank"));
  add_switched_off(enforcement, out);
  for (size_t k = 0; k < sizeof sums / sizeof sums[0]; k++)
    *sums[k].sum = rp__count_of(totals, sums[k].key);
  out->one_to_one_peak_bytes = stock_of(totals);
  out->saved_peak_bytes =
      rp__add_signed(saved_of(totals), -(int64_t)rp__add(out->rounding_peak_bytes, out->headroom_peak_bytes));
  add_peaks(enforcement, out);
}

/* ---- what is shared ---- */

#define COLUMNS "%-5s %-22s %6s %-11s %5s %5s %5s %5s %5s %11s %11s %11s %11s %7s\n"

static const char *format_ratio(uint64_t physical, uint64_t minimum, char *out, size_t out_size) {
  if (minimum)
    snprintf(out, out_size, "%.2f", (double)physical / (double)minimum);
  else
    snprintf(out, out_size, "-");
  return out;
}

static void print_class(FILE *out, const char *rank, const char *process, const json_t *device,
                        const json_t *class) {
  char ordinal[24], direction[32], stage[24], peer[24], buffers[24], slots[24], grown[24], size[32],
      stock[32], physical[32], saved[32], ratio[32];
  uint64_t held = rp__count_of(class, "physical_peak_bytes");
  fprintf(out, COLUMNS, rank, process, rp__format_integer(device, "device", ordinal, sizeof ordinal),
          rp__plain_text(rp__text_of(class, "direction", "unknown"), direction, sizeof direction),
          rp__format_integer(class, "stage", stage, sizeof stage),
          rp__format_integer(class, "peer", peer, sizeof peer),
          rp__format_integer(class, "buffers", buffers, sizeof buffers),
          rp__format_integer(class, "slots", slots, sizeof slots),
          rp__format_integer(class, "grown", grown, sizeof grown),
          rp__format_bytes(rp__count_of(class, "receive_bytes"), size, sizeof size),
          rp__format_bytes(stock_of(class), stock, sizeof stock),
          rp__format_bytes(held, physical, sizeof physical),
          rp__format_signed_bytes(saved_of(class), saved, sizeof saved),
          format_ratio(held, rp__count_of(class, "minimum_bytes"), ratio, sizeof ratio));
}

/* A class of the plan may never have been received into: there is nothing to tell of it. */
static bool has_buffers(const json_t *class) {
  return rp__count_of(class, "one_to_one_peak_bytes") > 0;
}

/* What the device holds besides: rounding of buffers in no class, memory kept back. */
static void print_besides(FILE *out, const char *rank, const char *process, const json_t *device,
                          const char *key, const char *word) {
  char ordinal[24], physical[32], saved[32];
  uint64_t bytes = rp__count_of(device, key);
  if (!bytes) return;
  fprintf(out, COLUMNS, rank, process, rp__format_integer(device, "device", ordinal, sizeof ordinal), word,
          "-", "-", "-", "-", "-", "-", "-", rp__format_bytes(bytes, physical, sizeof physical),
          rp__format_signed_bytes(-(int64_t)bytes, saved, sizeof saved), "-");
}

void rp__print_shared(const json_t *report, FILE *out) {
  const json_t *enforcement = enforcement_of(report);
  char rank[64], process[64];
  size_t d, c;
  json_t *device, *class;
  if (!json_is_object(enforcement) || is_shadow(enforcement)) return;
  rp__format_process(report, rank, process, sizeof rank);
  json_array_foreach(json_object_get(enforcement, "devices"), d, device) {
    if (d >= MOST_DEVICES) break;
    json_array_foreach(json_object_get(device, "classes"), c, class) {
      if (c >= MOST_CLASSES) break;
      if (has_buffers(class)) print_class(out, rank, process, device, class);
    }
    print_besides(out, rank, process, device, "rounding_peak_bytes", "(rounding)");
    print_besides(out, rank, process, device, "headroom_peak_bytes", "(headroom)");
  }
}

static void print_sums(FILE *out, const struct rp__enforced *sum) {
  char stock[32], physical[32], saved[32], ratio[32];
  fprintf(out, COLUMNS, "total", "", "", "", "", "", "", "", "", "",
          rp__format_bytes(sum->one_to_one_peak_bytes, stock, sizeof stock),
          rp__format_bytes(
              rp__add(rp__add(sum->physical_peak_bytes, sum->rounding_peak_bytes), sum->headroom_peak_bytes),
              physical, sizeof physical),
          rp__format_signed_bytes(sum->saved_peak_bytes, saved, sizeof saved),
          format_ratio(sum->physical_peak_bytes, sum->minimum_bytes, ratio, sizeof ratio));
}

/* ---- what happened ---- */

/* "rank 1, host:123, device 0" once per line; `device` may be NULL. */
static void begin_line(FILE *out, const json_t *report, const json_t *device) {
  char rank[64], process[64], ordinal[24];
  rp__format_process(report, rank, process, sizeof rank);
  if (device)
    fprintf(out, "rank %s, %s, device %s: ", rank, process,
            rp__format_integer(device, "device", ordinal, sizeof ordinal));
  else
    fprintf(out, "rank %s, %s: ", rank, process);
}

static void print_because(FILE *out, const json_t *report, const json_t *device, const char *what,
                          const json_t *because) {
  char word[64], text[1024];
  if (!json_is_object(because)) return;
  begin_line(out, report, device);
  fprintf(out, "%s: %s (%s)\n", what, rp__plain_text(rp__text_of(because, "text", "?"), text, sizeof text),
          rp__plain_text(rp__text_of(because, "reason", "?"), word, sizeof word));
}

/* Why nothing is shared. Buffers that are made for each receive never show two equal steps: where all
 * channels agree on something better, that is why. */
static const json_t *idle_of(const json_t *report, const json_t *device) {
  const json_t *idle = json_object_get(device, "idle"), *common = NULL;
  const char *too_few = rp_reason_name(RP_REASON_TOO_FEW_STEPS);
  size_t c;
  json_t *channel;
  if (strcmp(rp__text_of(idle, "reason", ""), too_few) != 0) return idle;
  json_array_foreach(json_object_get(report, "channels"), c, channel) {
    const json_t *decision = json_object_get(channel, "decision");
    const char *reason = rp__text_of(decision, "reason", "");
    if (json_is_true(json_object_get(decision, "poolable"))) return idle;
    if (common && strcmp(rp__text_of(common, "reason", ""), reason) != 0) return idle;
    common = decision;
  }
  return json_is_object(common) ? common : idle;
}

/* A plan shares from the first step, which takes no time to set up; but where calls could not be stopped,
 * each buffer had memory of its own before its first receive, and the table has what was held since. */
static void print_planned(FILE *out, const json_t *device) {
  char held[32];
  fputs("shared from the first step on", out);
  if (has_reason(device, "calls_unstoppable"))
    fprintf(out, ", each buffer from its first receive on (until then %s were held at most)",
            rp__format_bytes(rp__count_of(device, "physical_peak_bytes"), held, sizeof held));
  fputs("; ", out);
}

static void print_activation(FILE *out, const json_t *report, const json_t *device) {
  const json_t *activation = json_object_get(device, "activation");
  char took[32], waited[32];
  if (!has_shared(device)) return;
  double set_up = json_number_value(json_object_get(activation, "duration_seconds"));
  double waiting = json_number_value(json_object_get(device, "wait_seconds"));
  begin_line(out, report, device);
  if (json_is_object(activation))
    fprintf(out, "shared from step %llu on, set up in %s; ",
            (unsigned long long)rp__count_of(activation, "step"),
            rp__format_seconds(set_up, took, sizeof took));
  else
    print_planned(out, device);
  fprintf(out, "%llu waits inserted, %s waited; slack %llu\n",
          (unsigned long long)rp__count_of(device, "waits_inserted"),
          rp__format_seconds(waiting, waited, sizeof waited),
          (unsigned long long)rp__count_of(device, "slack_slots"));
}

/* Not after the program has given its buffers back: then there is nothing to share any more. */
static void print_idle(FILE *out, const json_t *report, const json_t *device) {
  bool given_back = rp__count_of(device, "buffers") == 0 && has_shared(device);
  if (!given_back && !json_is_object(json_object_get(device, "refused")))
    print_because(out, report, device, "nothing is shared", idle_of(report, device));
}

/* "1 early_reuse, 3 unordered_reuse" without the kind `except` (NULL: all); false if all are zero. */
static bool format_counts(const json_t *counts, const char *except, char *out, size_t out_size) {
  const char *kind;
  json_t *value;
  size_t used = 0;
  out[0] = '\0';
  json_object_foreach((json_t *)counts, kind, value) {
    if (json_integer_value(value) <= 0 || used + 1 >= out_size || (except && strcmp(kind, except) == 0))
      continue;
    int wrote = snprintf(out + used, out_size - used, "%s%lld %s", used ? ", " : "",
                         (long long)json_integer_value(value), kind);
    used += wrote > 0 ? (size_t)wrote : 0;
  }
  rp_cmd_plain(out);
  return out[0] != '\0';
}

static void print_unused_classes(FILE *out, const json_t *report, const json_t *device) {
  size_t c, unused = 0, count = json_array_size(json_object_get(device, "classes"));
  json_t *class;
  json_array_foreach(json_object_get(device, "classes"), c, class) unused +=
      !has_buffers(class) && !json_is_true(json_object_get(class, "left_to_driver"));
  if (!unused || !json_is_true(json_object_get(device, "planned"))) return;
  begin_line(out, report, device);
  fprintf(out,
          "the run receives nothing of %zu of the plan's %zu classes, or not into allocations of their own\n",
          unused, count);
}

/* Reasons for all buffers at once: how often they came up says nothing. */
static const struct {
  enum rp_pool_reason reason;
  const char *text; /**< NULL: they get memory of their own */
} for_all[] = {
    {RP_POOL_ALIAS_CHECK_FAILED, "no memory is shared"},
    {RP_POOL_STEP_INTERRUPTED, NULL},
    {RP_POOL_SWITCHED_OFF, NULL},
    {RP_POOL_RECEIVE_NOT_GATED, NULL},
    {RP_POOL_CALLS_UNSTOPPABLE, "each buffer has memory of its own until its first receive"},
    {RP_POOL_MEMORY_SHORT, "buffers that nothing had used gave their memory up"},
    {RP_POOL_NOTHING_TO_SHARE, "too few buffers were left to share memory"},
};

/* What a reason for all buffers led to; NULL: it is one for some. */
static const char *text_for_all(const json_t *device, const char *reason) {
  bool pending = json_is_true(json_object_get(device, "fallback_pending"));
  for (size_t i = 0; i < sizeof for_all / sizeof for_all[0]; i++)
    if (strcmp(reason, rp_pool_reason_name(for_all[i].reason)) == 0)
      return for_all[i].text ? for_all[i].text
             : pending       ? "all buffers were to get memory of their own"
                             : "all buffers got memory of their own";
  return NULL;
}

/* A call of the driver failed: what was asked for memory has none of its own. */
static const char *text_of_failure(const char *reason) {
  if (strcmp(reason, rp_pool_reason_name(RP_POOL_OUT_OF_MEMORY)) == 0) return "the device had no memory";
  if (strcmp(reason, rp_pool_reason_name(RP_POOL_BACKEND_FAILED)) == 0) return "the driver refused memory";
  return NULL;
}

/* What the program uses for something else is no receive buffer. */
static void print_others(FILE *out, const json_t *report, const json_t *device) {
  const char *first_touch = rp_pool_reason_name(RP_POOL_FIRST_TOUCH);
  size_t i;
  json_t *reason;
  json_array_foreach(json_object_get(device, "reasons"), i, reason) {
    if (strcmp(rp__text_of(reason, "reason", ""), first_touch) != 0 || !rp__count_of(reason, "count"))
      continue;
    begin_line(out, report, device);
    fprintf(out, "%llu other allocations of these sizes have memory of their own (%s)\n",
            (unsigned long long)rp__count_of(reason, "count"), first_touch);
  }
}

static const char *format_times(uint64_t count, char *out, size_t out_size) {
  if (count == 1)
    snprintf(out, out_size, "once");
  else
    snprintf(out, out_size, "%llu times", (unsigned long long)count);
  return out;
}

static void print_reason_for_all(FILE *out, const json_t *report, const json_t *device,
                                 const json_t *reason) {
  uint64_t count = rp__count_of(reason, "count");
  char word[64], often[32];
  rp__plain_text(rp__text_of(reason, "reason", "?"), word, sizeof word);
  const char *all = text_for_all(device, word), *failure = text_of_failure(word);
  if (!count || (!all && !failure)) return;
  begin_line(out, report, device);
  if (all)
    fprintf(out, "%s (%s)\n", all, word);
  else
    fprintf(out, "%s %s (%s)\n", failure, format_times(count, often, sizeof often), word);
}

/* Counted by use: a buffer may be meant more than once. */
static bool is_of_some(const json_t *device, const char *word, uint64_t count) {
  return count && strcmp(word, rp_pool_reason_name(RP_POOL_FIRST_TOUCH)) != 0 &&
         !text_for_all(device, word) && !text_of_failure(word);
}

static uint64_t count_of_some(const json_t *device) {
  uint64_t sum = 0;
  size_t i;
  json_t *reason;
  json_array_foreach(json_object_get(device, "reasons"), i, reason) {
    uint64_t count = rp__count_of(reason, "count");
    if (is_of_some(device, rp__text_of(reason, "reason", "?"), count)) sum = rp__add(sum, count);
  }
  return sum;
}

/* The sentences are among the notes, once for all processes. */
static void print_reasons(FILE *out, const json_t *report, const json_t *device) {
  bool begun = false;
  size_t i;
  json_t *reason;
  char word[64], often[32];
  const char *what =
      count_of_some(device) == 1 ? "a buffer got memory of its own " : "buffers got memory of their own ";
  json_array_foreach(json_object_get(device, "reasons"), i, reason) {
    uint64_t count = rp__count_of(reason, "count");
    rp__plain_text(rp__text_of(reason, "reason", "?"), word, sizeof word);
    if (!is_of_some(device, word, count)) continue;
    if (!begun) begin_line(out, report, device);
    fprintf(out, "%s%s (%s)", begun ? ", " : what, format_times(count, often, sizeof often), word);
    begun = true;
  }
  if (begun) fputc('\n', out);
  json_array_foreach(json_object_get(device, "reasons"), i, reason)
      print_reason_for_all(out, report, device, reason);
}

static void format_side(const json_t *side, char *out, size_t out_size) {
  char microbatch[24], buffer[24];
  const char *function = json_string_value(json_object_get(side, "function"));
  snprintf(out, out_size, "%.20s%s%.120s of microbatch %s in step %llu, buffer %s at %.20s, stream %.20s",
           rp__text_of(side, "call", "?"), function ? " " : "", function ? function : "",
           rp__format_integer(side, "microbatch", microbatch, sizeof microbatch),
           (unsigned long long)rp__count_of(side, "step"),
           rp__format_integer(side, "buffer", buffer, sizeof buffer), rp__text_of(side, "address", "?"),
           rp__text_of(side, "stream", "?"));
  rp_cmd_plain(out);
}

static void print_both_sides(FILE *out, const json_t *conflict) {
  char kind[64], slot[24], earlier[512], later[512];
  format_side(json_object_get(conflict, "earlier"), earlier, sizeof earlier);
  format_side(json_object_get(conflict, "later"), later, sizeof later);
  fprintf(out, "  %s, slot %s: %s; then %s\n",
          rp__plain_text(rp__text_of(conflict, "kind", "?"), kind, sizeof kind),
          rp__format_integer(conflict, "slot", slot, sizeof slot), earlier, later);
}

static void print_violations(FILE *out, const json_t *conflicts) {
  size_t i, shown = 0, more = 0;
  json_t *conflict;
  json_array_foreach(json_object_get(conflicts, "kept"), i, conflict) {
    if (json_is_true(json_object_get(conflict, "prevented"))) continue;
    if (shown++ < SHOWN_VIOLATIONS)
      print_both_sides(out, conflict);
    else
      more++;
  }
  if (more) fprintf(out, "  and %zu more, in the report\n", more);
}

static bool is_prevented(const json_t *conflict, const char *kind) {
  return json_is_true(json_object_get(conflict, "prevented")) &&
         strcmp(rp__text_of(conflict, "kind", ""), kind) == 0;
}

static const char unordered[] = "unordered_reuse";

/* Both sides of the first `unordered`, or of the first of each other kind. */
static void print_first_prevented(FILE *out, const json_t *conflicts, bool of_unordered) {
  const json_t *kept = json_object_get(conflicts, "kept");
  size_t i;
  json_t *conflict;
  json_array_foreach(kept, i, conflict) {
    const char *kind = rp__text_of(conflict, "kind", "");
    size_t before = 0;
    while (before < i && !is_prevented(json_array_get(kept, before), kind))
      before++;
    if (before == i && is_prevented(conflict, kind) && (strcmp(kind, unordered) == 0) == of_unordered)
      print_both_sides(out, conflict);
  }
}

/* Receives that were made to wait, and those that could not be: they got memory of their own instead. */
static void print_waits(FILE *out, const json_t *report, const json_t *device, bool shadow) {
  const json_t *conflicts = json_object_get(device, "conflicts"), *counted;
  uint64_t all = rp__count_of(json_object_get(conflicts, "prevented"), unordered), waited = all;
  counted = json_object_get(device, "receives_waited");
  if (!shadow && json_is_integer(counted) && rp__count_of(device, "receives_waited") < all)
    waited = rp__count_of(device, "receives_waited");
  if (waited) {
    begin_line(out, report, device);
    fprintf(out, "%s %llu use%s wait for the one before (%s)\n", shadow ? "enforcing would have let" : "let",
            (unsigned long long)waited, waited == 1 ? "" : "s", unordered);
  }
  if (waited == all) return;
  begin_line(out, report, device);
  fprintf(out, "prevented %llu %s by memory of its own, where no wait could be inserted\n",
          (unsigned long long)(all - waited), unordered);
  print_first_prevented(out, conflicts, true);
}

/* A wait inserted is nothing to be alarmed about: most programs need some once their buffers share memory. */
static void print_prevented(FILE *out, const json_t *report, const json_t *device, bool shadow) {
  const json_t *conflicts = json_object_get(device, "conflicts");
  const json_t *prevented = json_object_get(conflicts, "prevented");
  char counts[512];
  if (format_counts(prevented, unordered, counts, sizeof counts)) {
    begin_line(out, report, device);
    fprintf(out, "%s %s\n", shadow ? "enforcing would have prevented" : "prevented", counts);
    print_first_prevented(out, conflicts, false);
  }
  print_waits(out, report, device, shadow);
}

/* Neither prevented nor a violation: nobody can tell. */
static void print_unclear(FILE *out, const json_t *report, const json_t *device, bool shadow) {
  const json_t *unclear = json_object_get(json_object_get(device, "conflicts"), "unclear");
  uint64_t count = rp__count_of(unclear, "count"), late = rp__count_of(unclear, "too_late");
  const json_t *first = json_array_get(json_object_get(unclear, "kept"), 0);
  if (!count) return;
  begin_line(out, report, device);
  fprintf(
      out,
      "%llu %s given a buffer whose data was gone; %s may have used it for something new, for which it %s "
      "memory of its own",
      (unsigned long long)count, count == 1 ? "launch was" : "launches were", count == 1 ? "it" : "they",
      shadow ? "would have got" : "got");
  if (late) fprintf(out, " (%llu times too late)", (unsigned long long)late);
  fputs(", or read what was not there any more (unclear_access)\n", out);
  if (first) print_both_sides(out, first);
}

static void print_conflicts(FILE *out, const json_t *report, const json_t *device, bool shadow) {
  const json_t *conflicts = json_object_get(device, "conflicts");
  char counts[512];
  uint64_t freed_twice = rp__count_of(conflicts, "double_frees");
  print_prevented(out, report, device, shadow);
  if (format_counts(json_object_get(conflicts, "violated"), NULL, counts, sizeof counts)) {
    begin_line(out, report, device);
    fprintf(out, "%s %s\n", shadow ? "enforcing would have noticed too late" : "VIOLATIONS:", counts);
    print_violations(out, conflicts);
  }
  print_unclear(out, report, device, shadow);
  if (!freed_twice) return;
  begin_line(out, report, device);
  fprintf(out, freed_twice == 1 ? "%llu address was freed twice\n" : "%llu addresses were freed twice\n",
          (unsigned long long)freed_twice);
}

static const char *how_long_shared(const json_t *enforcement) {
  bool no_room = any_device(enforcement, lacks_room);
  if (any_device(enforcement, is_sharing))
    return no_room ? "still sharing when this was written: the device has no room for all buffers"
                   : "still sharing when this was written";
  return no_room ? "shared until the buffers were freed: the device had no room for all of them"
                 : "shared until the buffers were freed";
}

static void print_switched_off(FILE *out, const json_t *report, const json_t *enforcement) {
  const json_t *off = json_object_get(enforcement, "switched_off");
  char file[512], seen[32], effect[32];
  const json_t *took = json_object_get(off, "took_effect_seconds");
  if (!json_is_object(off)) return;
  begin_line(out, report, NULL);
  fprintf(out, "switched off by %s after %s, ",
          rp__plain_text(rp__text_of(off, "file", "?"), file, sizeof file),
          rp__format_seconds(json_number_value(json_object_get(off, "seen_seconds")), seen, sizeof seen));
  if (json_is_number(took))
    fprintf(out, "nothing shared after %s\n",
            rp__format_seconds(json_number_value(took), effect, sizeof effect));
  else
    fprintf(out, "%s\n", how_long_shared(enforcement));
}

void rp__print_happened(const json_t *report, FILE *out) {
  const json_t *enforcement = enforcement_of(report);
  bool shadow = is_shadow(enforcement);
  size_t d;
  json_t *device;
  if (!json_is_object(enforcement)) return;
  print_because(out, report, NULL, "nothing is enforced", json_object_get(enforcement, "refused"));
  print_switched_off(out, report, enforcement);
  json_array_foreach(json_object_get(enforcement, "devices"), d, device) {
    if (d >= MOST_DEVICES) break;
    if (!shadow) {
      print_because(out, report, device, "left to the driver", json_object_get(device, "refused"));
      print_activation(out, report, device);
      print_idle(out, report, device);
      print_unused_classes(out, report, device);
      print_others(out, report, device);
      print_reasons(out, report, device);
    }
    print_conflicts(out, report, device, shadow);
  }
}

/* ---- what is to be done about ---- */

static char *copy_plain(const char *text) {
  char *copy = strdup(text);
  if (copy) rp_cmd_plain(copy);
  return copy;
}

/* The first that was not prevented, of what was kept or else of what was counted. */
char *rp__violation_of(const json_t *report) {
  char rank[64], process[64], text[256], slot[24], ordinal[24], counts[128];
  const json_t *enforcement = enforcement_of(report);
  size_t d, i;
  json_t *device, *conflict;
  if (!json_is_object(enforcement) || is_shadow(enforcement)) return NULL;
  rp__format_process(report, rank, process, sizeof rank);
  json_array_foreach(json_object_get(enforcement, "devices"), d, device) {
    const json_t *conflicts = json_object_get(device, "conflicts");
    json_array_foreach(json_object_get(conflicts, "kept"), i, conflict) {
      if (json_is_true(json_object_get(conflict, "prevented"))) continue;
      snprintf(text, sizeof text, "%.40s in slot %s of device %s on rank %s (%.64s)",
               rp__text_of(conflict, "kind", "?"), rp__format_integer(conflict, "slot", slot, sizeof slot),
               rp__format_integer(device, "device", ordinal, sizeof ordinal), rank, process);
      return copy_plain(text);
    }
    if (!format_counts(json_object_get(conflicts, "violated"), NULL, counts, sizeof counts)) continue;
    snprintf(text, sizeof text, "%.100s on rank %s (%.64s)", counts, rank, process);
    return copy_plain(text);
  }
  return NULL;
}

/* "no_pattern: No step was like the one before." of the first device that says so. A process that shared has
 * nothing to name: that its buffers are freed is how it ends. */
char *rp__unshared_of(const json_t *report) {
  const json_t *enforcement = enforcement_of(report), *because = json_object_get(enforcement, "refused");
  size_t d;
  json_t *device;
  char text[300];
  if (!json_is_object(enforcement) || is_shadow(enforcement)) return NULL;
  json_array_foreach(json_object_get(enforcement, "devices"), d, device) {
    if (has_shared(device)) return NULL;
    if (json_is_object(because)) continue;
    because = json_object_get(device, "refused");
    if (!json_is_object(because)) because = idle_of(report, device);
  }
  if (!json_is_object(because) || strcmp(rp__text_of(because, "reason", ""), "freed") == 0) return NULL;
  snprintf(text, sizeof text, "%.64s: %.200s", rp__text_of(because, "reason", "?"),
           rp__text_of(because, "text", "?"));
  return copy_plain(text);
}

/* ---- a job ---- */

/* Lines of one report into text, where the set is not lean. */
static void put_part(const char *kept, const json_t *report, void (*print)(const json_t *, FILE *),
                     FILE *out) {
  if (kept)
    fputs(kept, out);
  else if (report)
    print(report, out);
}

static bool has_classes(const struct rp_read_report *report) {
  size_t d, c;
  json_t *device, *class;
  if (report->digest->shared) return report->digest->shared[0] != '\0';
  const json_t *enforcement = enforcement_of(report->json);
  if (!json_is_object(enforcement) || is_shadow(enforcement)) return false;
  json_array_foreach(json_object_get(enforcement, "devices"), d, device)
      json_array_foreach(json_object_get(device, "classes"), c, class) if (has_buffers(class)) return true;
  json_array_foreach(json_object_get(enforcement, "devices"), d,
                     device) if (rp__count_of(device, "rounding_peak_bytes") > 0) return true;
  return false;
}

void rp__enforced_print(const struct rp_read_set *set, size_t job, FILE *out) {
  struct rp__enforced sum;
  size_t first, end, printed = 0;
  rp__job_range(set, job, &first, &end);
  rp__enforced_sum(set, job, &sum);
  for (size_t i = first; i < end; i++) {
    const struct rp_read_report *report = &set->reports[i];
    if (!has_classes(report)) continue;
    if (printed++ == 0)
      fprintf(out, "\n" COLUMNS, "rank", "process", "device", "direction", "stage", "peer", "N", "K", "grown",
              "buffer", "unshared", "physical", "saved", "ratio");
    put_part(report->digest->shared, report->json, rp__print_shared, out);
  }
  if (printed) print_sums(out, &sum);
  for (size_t i = first; i < end; i++)
    put_part(set->reports[i].digest->happened, set->reports[i].json, rp__print_happened, out);
}
