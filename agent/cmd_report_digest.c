/* Digests of reports, and sums over them. A report comes from a file: what it can make a digest hold is
 * bounded. */
#include "agent/cmd_report_digest.h"

#include <stdlib.h>
#include <string.h>

#include "agent/cmd_report_text.h"

/* Kept of one report. A job has tens of communicators, a report a few sentences. */
#define MOST_COMMUNICATORS 4096
#define COMMUNICATOR_BYTES 64
#define HOST_BYTES 255
#define COMMAND_BYTES 255
/* Places in communicators, of one report that has a rank of a plan. */
#define MOST_PLACES 1024

static char *process_key(const json_t *process, const char *host) {
  json_t *key = json_pack("[o, O?, O?]", rp__json_text(host), json_object_get(process, "pid"),
                          json_object_get(process, "start_monotonic_ns"));
  char *text = key ? json_dumps(key, JSON_COMPACT) : NULL;
  json_decref(key);
  return text;
}

static json_t *communicators_of(const json_t *report) {
  json_t *out = json_array(), *communicator;
  size_t i;
  json_array_foreach(json_object_get(report, "communicators"), i, communicator) {
    json_t *id = json_object_get(communicator, "communicator_id");
    if (json_is_string(id) && json_string_length(id) <= COMMUNICATOR_BYTES &&
        json_array_size(out) < MOST_COMMUNICATORS)
      (void)json_array_append(out, id);
  }
  return out;
}

static void take_lifetimes(struct rp_read_digest *digest, const json_t *report) {
  size_t c, i;
  json_t *channel, *life;
  json_array_foreach(json_object_get(report, "channels"), c, channel) {
    json_array_foreach(json_object_get(channel, "lifetimes"), i, life) {
      int64_t posted = (int64_t)rp__count_of(life, "posted_monotonic_ns");
      if (!posted) continue;
      digest->lifetimes++;
      if (!digest->first_post_ns || posted < digest->first_post_ns) digest->first_post_ns = posted;
    }
  }
}

static char *printed(void (*print)(const json_t *report, FILE *out), const json_t *report) {
  char *text = NULL;
  size_t size = 0;
  FILE *out = open_memstream(&text, &size);
  if (!out) return NULL;
  print(report, out);
  if (fclose(out) == 0) return text;
  free(text);
  return NULL;
}

static void add_place(json_t *places, const json_t *of, const char *rank_key) {
  char place[COMMUNICATOR_BYTES + 32];
  const json_t *rank = json_object_get(of, rank_key), *id = json_object_get(of, "communicator_id");
  if (!json_is_integer(rank) || !json_is_string(id) || json_string_length(id) > COMMUNICATOR_BYTES) return;
  snprintf(place, sizeof place, "%s/%lld", json_string_value(id), (long long)json_integer_value(rank));
  if (json_array_size(places) < MOST_PLACES) (void)json_array_append_new(places, rp__json_text(place));
}

static void take_plan_rank(struct rp_read_digest *digest, const json_t *report) {
  const json_t *rank = json_object_get(json_object_get(report, "configuration"), "plan_rank"), *entry;
  size_t i;
  digest->plan_rank = -1;
  if (!json_is_integer(rank) || json_integer_value(rank) < 0 || !digest->enforced.processes) return;
  digest->plan_rank = json_integer_value(rank);
  digest->plan_places = json_array();
  digest->plan_peers = json_array();
  json_array_foreach(json_object_get(report, "communicators"), i, entry)
      add_place(digest->plan_places, entry, "rank");
  json_array_foreach(json_object_get(report, "channels"), i, entry)
      add_place(digest->plan_peers, entry, "peer");
}

static void name_process(const json_t *report, char *out, size_t out_size) {
  char rank[64], process[64];
  rp__format_process(report, rank, process, sizeof rank);
  if (json_is_integer(json_object_get(json_object_get(report, "process"), "rank")))
    snprintf(out, out_size, "rank %s (%s)", rank, process);
  else
    snprintf(out, out_size, "%s", process);
}

static void take_identity(struct rp_read_digest *digest, const json_t *report) {
  const char *run = rp__text_of(json_object_get(report, "configuration"), "run", "");
  const json_t *process = json_object_get(report, "process"), *rank = json_object_get(process, "rank");
  digest->host = strndup(rp__text_of(process, "host", ""), HOST_BYTES);
  digest->command = strndup(rp__text_of(process, "command", ""), COMMAND_BYTES);
  digest->process = digest->host ? process_key(process, digest->host) : NULL;
  digest->rank = json_is_integer(rank) ? json_integer_value(rank) : INT64_MAX;
  name_process(report, digest->name, sizeof digest->name);
  digest->world_size = (int64_t)rp__count_of(process, "world_size");
  digest->start_unix_seconds = json_number_value(json_object_get(process, "start_unix_seconds"));
  digest->written_unix_seconds = json_number_value(json_object_get(report, "written_unix_seconds"));
  digest->start_monotonic_ns = (int64_t)rp__count_of(process, "start_monotonic_ns");
  rp_input_identify(report, &digest->identity);
  take_lifetimes(digest, report);
  digest->communicators = communicators_of(report);
  digest->helper = rp__is_helper(report);
  digest->finished = strcmp(rp__text_of(report, "state", ""), "finished") == 0;
  if (strlen(run) < sizeof digest->run) snprintf(digest->run, sizeof digest->run, "%s", run);
}

struct rp_read_digest *rp__digest_create(const json_t *report, bool tables) {
  struct rp_read_digest *digest = calloc(1, sizeof *digest);
  const json_t *totals = json_object_get(report, "totals");
  if (!digest) return NULL;
  take_identity(digest, report);
  digest->notes = rp__notes_of(report);
  digest->held_bytes = rp__count_of(totals, "held_bytes");
  digest->needed_bytes = rp__count_of(totals, "needed_bytes");
  digest->would_save_bytes = rp__count_of(totals, "would_save_bytes");
  digest->steps_complete = rp__count_of(totals, "steps_complete");
  rp__summary_of(report, &digest->summary);
  rp__enforced_of(report, &digest->enforced);
  take_plan_rank(digest, report);
  digest->violation = rp__violation_of(report);
  digest->unshared = rp__unshared_of(report);
  bool whole = digest->process && digest->command && digest->communicators && digest->notes;
  if (tables) {
    digest->rows = printed(rp__print_rows, report);
    digest->shared = printed(rp__print_shared, report);
    digest->happened = printed(rp__print_happened, report);
    whole = whole && digest->rows && digest->shared && digest->happened;
  }
  if (whole) return digest;
  rp__digest_destroy(digest);
  return NULL;
}

bool rp__digest_is_of(const struct rp_read_digest *digest, const json_t *report) {
  char *process = process_key(json_object_get(report, "process"), digest->host);
  const char *host = rp__text_of(json_object_get(report, "process"), "host", "");
  bool same =
      process && strcmp(process, digest->process) == 0 && strncmp(host, digest->host, HOST_BYTES) == 0 &&
      json_number_value(json_object_get(report, "written_unix_seconds")) == digest->written_unix_seconds;
  free(process);
  return same;
}

void rp__digest_empty(struct rp_read_digest *digest) {
  char *const texts[] = {digest->violation, digest->unshared, digest->rows, digest->shared, digest->happened};
  for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
    free(texts[i]);
  digest->violation = digest->unshared = digest->rows = digest->shared = digest->happened = NULL;
  digest->held_bytes = digest->needed_bytes = digest->would_save_bytes = 0;
  digest->summary = (struct rp__summary){0};
  digest->enforced = (struct rp__enforced){0};
  (void)json_array_clear(digest->notes);
}

void rp__digest_destroy(struct rp_read_digest *digest) {
  if (!digest) return;
  rp__digest_empty(digest);
  free(digest->process);
  free(digest->host);
  free(digest->command);
  json_decref(digest->plan_places);
  json_decref(digest->plan_peers);
  rp_input_identity_fini(&digest->identity);
  json_decref(digest->communicators);
  json_decref(digest->notes);
  free(digest);
}

void rp__report_fini(struct rp_read_report *report) {
  free(report->path);
  free(report->text);
  json_decref(report->json);
  rp__digest_destroy(report->digest);
}

void rp__job_range(const struct rp_read_set *set, size_t job, size_t *first, size_t *end) {
  bool all = job == SIZE_MAX;
  *first = all ? 0 : set->job_first[job];
  *end = all ? set->count : set->job_first[job + 1];
}

void rp__summary_sum(const struct rp_read_set *set, size_t job, struct rp__summary *out) {
  size_t first, end;
  bool measured = false; /* by all of them so far */
  rp__job_range(set, job, &first, &end);
  *out = (struct rp__summary){0};
  for (size_t i = first; i < end; i++) {
    const struct rp__summary *part = &set->reports[i].digest->summary;
    out->channels += part->channels;
    out->just_in_time += part->just_in_time;
    out->unbounded += part->unbounded;
    out->too_few += part->too_few;
    out->other += part->other;
    out->unseen += part->unseen;
    out->unsteady += part->unsteady;
    out->reasons |= part->reasons;
    out->held_bytes = rp__add(out->held_bytes, part->held_bytes);
    out->allocations_refused = rp__add(out->allocations_refused, part->allocations_refused);
    if (part->refused_bytes > out->refused_bytes) out->refused_bytes = part->refused_bytes;
    out->undecided_bytes = rp__add(out->undecided_bytes, part->undecided_bytes);
    out->saved_bytes = rp__add(out->saved_bytes, part->saved_bytes);
    out->whole_saved_bytes = rp__add(out->whole_saved_bytes, part->whole_saved_bytes);
    out->unreachable_bytes = rp__add(out->unreachable_bytes, part->unreachable_bytes);
    if (part->channels && (!measured || !part->piece_bytes))
      out->piece_bytes = measured ? 0 : part->piece_bytes;
    measured |= part->channels > 0;
    out->small_receives = rp__add(out->small_receives, part->small_receives);
    out->activations_unbounded |= part->activations_unbounded;
    out->gradients_unbounded |= part->gradients_unbounded;
    out->estimate |= part->estimate;
    out->outside |= part->outside;
  }
}

void rp__enforced_sum(const struct rp_read_set *set, size_t job, struct rp__enforced *out) {
  size_t first, end;
  rp__job_range(set, job, &first, &end);
  *out = (struct rp__enforced){0};
  for (size_t i = first; i < end; i++) {
    const struct rp__enforced *part = &set->reports[i].digest->enforced;
    out->processes += part->processes;
    out->bystanders += part->bystanders;
    out->sharing += part->sharing;
    out->untold += part->untold;
    out->switched_off += part->switched_off;
    out->not_yet_off += part->not_yet_off;
    out->no_room += part->no_room;
    out->physical_peak_bytes = rp__add(out->physical_peak_bytes, part->physical_peak_bytes);
    out->one_to_one_peak_bytes = rp__add(out->one_to_one_peak_bytes, part->one_to_one_peak_bytes);
    out->saved_peak_bytes = rp__add_signed(out->saved_peak_bytes, part->saved_peak_bytes);
    out->held_peak_bytes = rp__add(out->held_peak_bytes, part->held_peak_bytes);
    out->lowered_peak_bytes = rp__add_signed(out->lowered_peak_bytes, part->lowered_peak_bytes);
    out->rounding_peak_bytes = rp__add(out->rounding_peak_bytes, part->rounding_peak_bytes);
    out->headroom_peak_bytes = rp__add(out->headroom_peak_bytes, part->headroom_peak_bytes);
    out->minimum_bytes = rp__add(out->minimum_bytes, part->minimum_bytes);
    out->prevented = rp__add(out->prevented, part->prevented);
    out->serious = rp__add(out->serious, part->serious);
    out->unclear = rp__add(out->unclear, part->unclear);
    out->misfits |= part->misfits;
    out->violations = rp__add(out->violations, part->violations);
    out->double_frees = rp__add(out->double_frees, part->double_frees);
    out->would_miss = rp__add(out->would_miss, part->would_miss);
    out->would_prevent = rp__add(out->would_prevent, part->would_prevent);
  }
}
