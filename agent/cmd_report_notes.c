/* Sentences about a job, below its table: what its reports say, and what only all of them together tell. */
#include <stdlib.h>
#include <string.h>

#include "agent/cmd_report_digest.h"
#include "agent/cmd_report_text.h"

size_t rp_report_ended(const struct rp_read_set *set, size_t job) {
  size_t first, end, count = 0;
  rp__job_range(set, job, &first, &end);
  for (size_t i = first; i < end; i++)
    count += set->reports[i].ended;
  return count;
}

static void count_note(json_t *notes, const char *text, json_int_t more) {
  json_int_t before = json_integer_value(json_object_get(notes, text));
  (void)json_object_set_new(notes, text, json_integer(before + more));
}

/* ---- processes that were killed ---- */

/* What is known of processes without a final report: until when. */
struct ends {
  uint64_t steps_least, steps_most;
  double first_seconds, last_seconds;
};

/* Processes named in one note; the others are counted. */
#define MOST_NAMED 8

static void take_end(struct ends *ends, const struct rp_read_digest *digest, bool first) {
  if (first || digest->steps_complete < ends->steps_least) ends->steps_least = digest->steps_complete;
  if (first || digest->steps_complete > ends->steps_most) ends->steps_most = digest->steps_complete;
  if (first || digest->written_unix_seconds < ends->first_seconds)
    ends->first_seconds = digest->written_unix_seconds;
  if (first || digest->written_unix_seconds > ends->last_seconds)
    ends->last_seconds = digest->written_unix_seconds;
}

const char *rp__format_end(uint64_t steps_least, uint64_t steps_most, double first_seconds,
                           double last_seconds, char *out, size_t out_size) {
  char steps[64], first[32], last[32];
  snprintf(steps, sizeof steps, steps_least == steps_most ? "%llu" : "%llu to %llu",
           (unsigned long long)steps_least, (unsigned long long)steps_most);
  rp__format_time(first_seconds, first, sizeof first);
  rp__format_time(last_seconds, last, sizeof last);
  snprintf(out, out_size, "after %s step%s, at %s%s%s", steps, steps_most == 1 ? "" : "s", first,
           strcmp(first, last) == 0 ? "" : " to ", strcmp(first, last) == 0 ? "" : last);
  return out;
}

static void add_name(const char *name, char *names, size_t size) {
  size_t used = strlen(names);
  snprintf(names + used, size - used, "%s%.80s", used ? ", " : "", name);
}

/* Of those that the agent reported, or of those that attach did until it was told to stop. */
static void note_ended(json_t *notes, const struct rp_read_set *set, size_t job, bool outside) {
  struct ends ends = {0};
  size_t first, last, count = 0;
  char text[1024], until[160], names[700] = "";
  rp__job_range(set, job, &first, &last);
  for (size_t i = first; i < last; i++) {
    const struct rp_read_digest *digest = set->reports[i].digest;
    if (!set->reports[i].ended || digest->summary.outside != outside) continue;
    if (count < MOST_NAMED) add_name(digest->name, names, sizeof names);
    take_end(&ends, digest, count++ == 0);
  }
  if (!count) return;
  if (count > MOST_NAMED) {
    size_t used = strlen(names);
    snprintf(names + used, sizeof names - used, " and %zu more", count - MOST_NAMED);
  }
  rp__format_end(ends.steps_least, ends.steps_most, ends.first_seconds, ends.last_seconds, until,
                 sizeof until);
  if (outside)
    snprintf(text, sizeof text, "observed from outside: %s; the last time %s; what %s did later is not known",
             names, until, count == 1 ? "it" : "they");
  else
    snprintf(text, sizeof text,
             "ended without a final report, as by a signal: %s; %s from %s; what %s did later is not known",
             names, count == 1 ? "the last one is" : "the last ones are", until, count == 1 ? "it" : "they");
  count_note(notes, text, (json_int_t)count);
}

/* ---- processes that took each other's rank of a plan ---- */

/* Two that send to each other cannot be one rank of a pipeline; two that do not may be replicas. */
static bool has_peer_of_its_rank(const struct rp_read_set *set, size_t index, const json_t *owners) {
  const struct rp_read_digest *digest = set->reports[index].digest;
  const json_t *place;
  size_t i;
  json_array_foreach(digest->plan_peers, i, place) {
    const json_t *owner = json_object_get(owners, json_string_value(place));
    size_t other = owner ? (size_t)json_integer_value(owner) : index;
    if (other != index && set->reports[other].digest->plan_rank == digest->plan_rank) return true;
  }
  return false;
}

static void note_plan_ranks(json_t *notes, const struct rp_read_set *set, size_t job) {
  json_t *owners = json_object(); /* of places in communicators */
  const json_t *place;
  size_t first, end, k;
  char text[512];
  rp__job_range(set, job, &first, &end);
  for (size_t i = first; i < end; i++)
    json_array_foreach(set->reports[i].digest->plan_places, k, place)(void)
        json_object_set_new(owners, json_string_value(place), json_integer((json_int_t)i));
  for (size_t i = first; i < end; i++) {
    if (!has_peer_of_its_rank(set, i, owners)) continue;
    snprintf(text, sizeof text,
             "took rank %lld of the plan, as did a process that it receives from: --plan-rank is for one "
             "process; have the launcher set RECVPOOL_PLAN_RANK for each",
             (long long)set->reports[i].digest->plan_rank);
    count_note(notes, text, 1);
  }
  json_decref(owners);
}

/* ---- runs that nothing tells apart ---- */

/* A rank that two processes have, with no communicator known of either, is that of two runs: what they hold
 * was not held at once. */
static void note_equal_ranks(json_t *notes, const struct rp_read_set *set, size_t job) {
  size_t first, end, equal = 0;
  rp__job_range(set, job, &first, &end);
  json_t *ranks = json_object();
  for (size_t i = first; i < end; i++) {
    const struct rp_read_digest *digest = set->reports[i].digest;
    char key[24];
    if (digest->rank == INT64_MAX || digest->helper || json_array_size(digest->communicators)) continue;
    snprintf(key, sizeof key, "%lld", (long long)digest->rank);
    equal += json_object_get(ranks, key) != NULL;
    json_object_set_new(ranks, key, json_true());
  }
  json_decref(ranks);
  if (equal)
    count_note(
        notes,
        "has a rank that another process has: these are probably several runs, and their bytes do not add up",
        (json_int_t)equal);
}

/* ---- all of them ---- */

/* A report says it once for each device, and is one process. */
static void count_notes_of(json_t *notes, const json_t *of_report) {
  json_t *once = json_object(), *note;
  size_t k;
  json_array_foreach(of_report, k, note) {
    if (json_object_get(once, json_string_value(note))) continue;
    json_object_set_new(once, json_string_value(note), json_true());
    count_note(notes, json_string_value(note), 1);
  }
  json_decref(once);
}

/* Lines that many processes say are said once. */
json_t *rp_report_notes(const struct rp_read_set *set, size_t job) {
  json_t *notes = json_object();
  size_t first, end;
  rp__job_range(set, job, &first, &end);
  note_ended(notes, set, job, false);
  note_ended(notes, set, job, true);
  note_plan_ranks(notes, set, job);
  note_equal_ranks(notes, set, job);
  for (size_t i = first; i < end; i++)
    count_notes_of(notes, set->reports[i].digest->notes);
  return notes;
}

size_t rp__notes_print(const struct rp_read_set *set, size_t job, FILE *out) {
  json_t *notes = rp_report_notes(set, job);
  const char *text;
  json_t *count;
  size_t printed = json_object_size(notes);
  json_object_foreach(notes, text, count) {
    long long times = json_integer_value(count);
    char line[1024];
    fprintf(out, "note: %s", rp__plain_text(text, line, sizeof line));
    fprintf(out, times > 1 ? " (%lld processes)\n" : "\n", times);
  }
  json_decref(notes);
  return printed;
}
