/* The overview: a report's members by fixed lists, so that what is large, unknown or of another kind than the
 * schema says never reaches a page. */
#include "agent/overview.h"

#include <string.h>

#include "agent/cmd_report_text.h"

/* Conflicts shown of one device; the counts are whole. */
#define CONFLICTS_OF_DEVICE 32
/* Sentences shown of one job. */
#define NOTES_OF_JOB 64

enum kind { TEXT, INTEGER, NUMBER, BOOLEAN, OBJECT };

struct member {
  const char *name;
  enum kind kind;
};
#define MEMBERS(list) (list), sizeof(list) / sizeof(list)[0]

static const struct member process_members[] = {
    {"host", TEXT},          {"pid", INTEGER},        {"command", TEXT},
    {"rank", INTEGER},       {"world_size", INTEGER}, {"start_unix_seconds", NUMBER},
    {"local_rank", INTEGER},
};
static const struct member report_members[] = {
    {"id", INTEGER},
    {"mode", TEXT},
    {"state", TEXT},
    {"passive_reason", TEXT},
    {"written_unix_seconds", NUMBER},
};
static const struct member totals_members[] = {
    {"steps_complete", INTEGER},
    {"held_bytes", INTEGER},
    {"needed_bytes", INTEGER},
    {"would_save_bytes", INTEGER},
};
static const struct member channel_members[] = {
    {"communicator_id", TEXT},
    {"peer", INTEGER},
    {"device", INTEGER},
    {"direction", TEXT},
    {"stage_ordinal", INTEGER},
    {"buffer_bytes", INTEGER},
    {"buffers", INTEGER},
    {"depth", INTEGER},
    {"depth_min", INTEGER},
    {"depth_max", INTEGER},
    {"slots", INTEGER},
    {"transfers", INTEGER},
    {"steps_complete", INTEGER},
    {"allocation_style", TEXT},
    {"held_bytes", INTEGER},
    {"needed_bytes", INTEGER},
    {"would_save_bytes", INTEGER},
    {"estimate", BOOLEAN},
};
static const struct member because_members[] = {{"reason", TEXT}, {"text", TEXT}};
static const struct member decision_members[] = {{"poolable", BOOLEAN}, {"reason", TEXT}, {"text", TEXT}};
static const struct member lifetime_members[] = {
    {"step", INTEGER},
    {"microbatch", INTEGER},
    {"address", TEXT},
    {"accesses", INTEGER},
    {"posted_seconds", NUMBER},
    {"first_access_seconds", NUMBER},
    {"last_access_seconds", NUMBER},
    {"released_seconds", NUMBER},
    {"label", TEXT},
    {"last_access_kind", TEXT},
    {"last_access_kernel", TEXT},
};
static const struct member device_members[] = {
    {"device", INTEGER},           {"planned", BOOLEAN},
    {"active", BOOLEAN},           {"steps", INTEGER},
    {"slack_slots", INTEGER},      {"wait_seconds", NUMBER},
    {"physical_bytes", INTEGER},   {"physical_peak_bytes", INTEGER},
    {"one_to_one_bytes", INTEGER}, {"one_to_one_peak_bytes", INTEGER},
    {"saved_bytes", INTEGER},      {"saved_peak_bytes", INTEGER},
    {"buffers", INTEGER},          {"grown", INTEGER},
    {"waits_inserted", INTEGER},   {"fallbacks", INTEGER},
};
static const struct member class_members[] = {
    {"class", INTEGER},
    {"label", TEXT},
    {"stage", INTEGER},
    {"direction", TEXT},
    {"peer", INTEGER},
    {"receive_bytes", INTEGER},
    {"mapped_bytes", INTEGER},
    {"buffers", INTEGER},
    {"depth", INTEGER},
    {"slots", INTEGER},
    {"sharing", BOOLEAN},
    {"grown", INTEGER},
    {"physical_bytes", INTEGER},
    {"physical_peak_bytes", INTEGER},
    {"one_to_one_bytes", INTEGER},
    {"one_to_one_peak_bytes", INTEGER},
    {"requested_bytes", INTEGER},
    {"requested_peak_bytes", INTEGER},
    {"saved_bytes", INTEGER},
    {"saved_peak_bytes", INTEGER},
};
static const struct member binding_members[] = {{"address", TEXT}, {"slot", INTEGER}};
static const struct member conflict_members[] = {
    {"kind", TEXT}, {"prevented", BOOLEAN}, {"class", INTEGER}, {"slot", INTEGER}};
static const struct member side_members[] = {
    {"buffer", INTEGER}, {"address", TEXT}, {"microbatch", INTEGER}, {"step", INTEGER},
    {"stream", TEXT},    {"call", TEXT},    {"function", TEXT},
};
static const struct member switched_members[] = {
    {"file", TEXT}, {"seen_seconds", NUMBER}, {"took_effect_seconds", NUMBER}};

static bool is_kind(const json_t *value, enum kind kind) {
  switch (kind) {
  case TEXT:
    return json_is_string(value);
  case INTEGER:
    return json_is_integer(value);
  case NUMBER:
    return json_is_number(value);
  case BOOLEAN:
    return json_is_boolean(value);
  default:
    return json_is_object(value);
  }
}

/* Members of the right kind, into `out`; the others are null there. */
static void take(json_t *out, const json_t *from, const struct member *members, size_t count) {
  for (size_t i = 0; i < count; i++) {
    json_t *value = json_object_get(from, members[i].name);
    (void)json_object_set_new(out, members[i].name,
                              is_kind(value, members[i].kind) ? json_incref(value) : json_null());
  }
}

static json_t *taken(const json_t *from, const struct member *members, size_t count) {
  json_t *out = json_object();
  take(out, from, members, count);
  return out;
}

static json_t *taken_or_null(const json_t *from, const struct member *members, size_t count) {
  return json_is_object(from) ? taken(from, members, count) : json_null();
}

static json_t *taken_all(const json_t *array, const struct member *members, size_t count) {
  json_t *out = json_array();
  for (size_t i = 0; i < json_array_size(array); i++)
    if (json_is_object(json_array_get(array, i)))
      (void)json_array_append_new(out, taken(json_array_get(array, i), members, count));
  return out;
}

/* ---- channels ---- */

/* Own rank in the communicator of the channel, which tells pipeline stages apart; null where not known. */
static json_t *pipeline_rank(const json_t *report, const json_t *channel) {
  const char *handle = rp__text_of(channel, "communicator", "");
  size_t i;
  json_t *communicator;
  json_array_foreach(json_object_get(report, "communicators"), i, communicator) {
    json_t *rank = json_object_get(communicator, "rank");
    if (json_is_integer(rank) && *handle &&
        strcmp(rp__text_of(communicator, "communicator", ""), handle) == 0)
      return json_incref(rank);
  }
  return json_null();
}

static json_t *channels_of(const json_t *report, bool lifetimes) {
  json_t *out = json_array(), *channel;
  size_t i;
  json_array_foreach(json_object_get(report, "channels"), i, channel) {
    if (!json_is_object(channel)) continue;
    json_t *row = taken(channel, MEMBERS(channel_members));
    (void)json_object_set_new(row, "pipeline_rank", pipeline_rank(report, channel));
    (void)json_object_set_new(row, "decision",
                              taken_or_null(json_object_get(channel, "decision"), MEMBERS(decision_members)));
    if (lifetimes)
      (void)json_object_set_new(row, "lifetimes",
                                taken_all(json_object_get(channel, "lifetimes"), MEMBERS(lifetime_members)));
    (void)json_array_append_new(out, row);
  }
  return out;
}

/* ---- enforcing ---- */

static json_t *counts_of(const json_t *counts) {
  json_t *out = json_object(), *value;
  const char *kind;
  json_object_foreach((json_t *)counts, kind, value) if (json_is_integer(value))(void)
      json_object_set(out, kind, value);
  return out;
}

/* Violations first: they must not be pushed out by what was prevented. */
static json_t *conflicts_of(const json_t *kept) {
  json_t *out = json_array(), *conflict;
  for (int prevented = 0; prevented < 2; prevented++) {
    size_t i;
    json_array_foreach((json_t *)kept, i, conflict) {
      if (json_array_size(out) >= CONFLICTS_OF_DEVICE) break;
      if (json_is_true(json_object_get(conflict, "prevented")) != (prevented == 1)) continue;
      json_t *row = taken(conflict, MEMBERS(conflict_members));
      (void)json_object_set_new(row, "earlier",
                                taken_or_null(json_object_get(conflict, "earlier"), MEMBERS(side_members)));
      (void)json_object_set_new(row, "later",
                                taken_or_null(json_object_get(conflict, "later"), MEMBERS(side_members)));
      (void)json_array_append_new(out, row);
    }
  }
  return out;
}

static json_t *classes_of(const json_t *device) {
  json_t *out = json_array(), *class;
  size_t i;
  json_array_foreach(json_object_get(device, "classes"), i, class) {
    if (!json_is_object(class)) continue;
    json_t *row = taken(class, MEMBERS(class_members));
    (void)json_object_set_new(row, "bindings",
                              taken_all(json_object_get(class, "bindings"), MEMBERS(binding_members)));
    (void)json_object_set_new(row, "last_bindings",
                              taken_all(json_object_get(class, "last_bindings"), MEMBERS(binding_members)));
    (void)json_array_append_new(out, row);
  }
  return out;
}

static json_t *device_of(const json_t *device) {
  const json_t *conflicts = json_object_get(device, "conflicts");
  json_t *out = taken(device, MEMBERS(device_members)), *reasons = json_object();
  size_t i;
  json_t *reason;
  (void)json_object_set_new(out, "refused",
                            taken_or_null(json_object_get(device, "refused"), MEMBERS(because_members)));
  (void)json_object_set_new(out, "idle",
                            taken_or_null(json_object_get(device, "idle"), MEMBERS(because_members)));
  (void)json_object_set_new(out, "classes", classes_of(device));
  (void)json_object_set_new(out, "prevented", counts_of(json_object_get(conflicts, "prevented")));
  (void)json_object_set_new(out, "violated", counts_of(json_object_get(conflicts, "violated")));
  (void)json_object_set_new(out, "conflicts", conflicts_of(json_object_get(conflicts, "kept")));
  json_array_foreach(json_object_get(device, "reasons"), i, reason)(void) json_object_set_new(
      reasons, rp__text_of(reason, "reason", "?"), json_integer((json_int_t)rp__count_of(reason, "count")));
  (void)json_object_set_new(out, "reasons", reasons);
  return out;
}

static json_t *enforcement_of(const json_t *enforcement) {
  static const struct member members[] = {{"mode", TEXT}};
  if (!json_is_object(enforcement)) return json_null();
  json_t *out = taken(enforcement, MEMBERS(members)), *devices = json_array(), *device;
  size_t i;
  (void)json_object_set_new(out, "refused",
                            taken_or_null(json_object_get(enforcement, "refused"), MEMBERS(because_members)));
  (void)json_object_set_new(
      out, "switched_off",
      taken_or_null(json_object_get(enforcement, "switched_off"), MEMBERS(switched_members)));
  json_array_foreach(json_object_get(enforcement, "devices"), i, device) if (json_is_object(device))(void)
      json_array_append_new(devices, device_of(device));
  (void)json_object_set_new(out, "devices", devices);
  return out;
}

json_t *rp_overview_process(const json_t *report, bool lifetimes) {
  json_t *out = taken(report, MEMBERS(report_members));
  (void)json_object_set_new(out, "process",
                            taken(json_object_get(report, "process"), MEMBERS(process_members)));
  (void)json_object_set_new(out, "totals", taken(json_object_get(report, "totals"), MEMBERS(totals_members)));
  (void)json_object_set_new(out, "channels", channels_of(report, lifetimes));
  if (json_object_set_new(out, "enforcement", enforcement_of(json_object_get(report, "enforcement"))) == 0)
    return out;
  json_decref(out);
  return NULL;
}

/* ---- jobs ---- */

static size_t count_lifetimes(const json_t *report) {
  size_t i, sum = 0;
  json_t *channel;
  json_array_foreach(json_object_get(report, "channels"), i, channel) sum +=
      json_array_size(json_object_get(channel, "lifetimes"));
  return sum;
}

static json_t *notes_of(const struct rp_read_set *set, size_t job) {
  json_t *out = json_array(), *all = rp_report_notes(set, job), *count;
  const char *text;
  json_object_foreach(all, text, count) if (json_array_size(out) < NOTES_OF_JOB)(void)
      json_array_append_new(out, json_pack("{s:s, s:O}", "text", text, "processes", count));
  json_decref(all);
  return out;
}

/* What a job has besides its processes. */
static json_t *head_of(const struct rp_read_set *set, size_t job) {
  char conclusion[RP_REPORT_SENTENCE_BYTES], next[RP_REPORT_SENTENCE_BYTES], title[256];
  rp_report_conclude(set, job, conclusion, sizeof conclusion);
  rp_report_next_step(set, job, next, sizeof next);
  rp_report_title(set, job, title, sizeof title);
  return json_pack("{s:I, s:o, s:s, s:s, s:o, s:o}", "number", (json_int_t)rp_report_number(set, job),
                   "title", rp__json_text(title), "conclusion", conclusion, "next_step", next, "totals",
                   rp_report_totals_json(set, job), "notes", notes_of(set, job));
}

/* What nobody wrote: that there will be no other report. */
static json_t *process_of(const struct rp_read_report *read, const json_t *report, bool lifetimes) {
  json_t *row = rp_overview_process(report, lifetimes);
  if (read->ended && strcmp(rp__text_of(row, "state", ""), "running") == 0)
    (void)json_object_set_new(row, "state", json_string("ended"));
  return row;
}

/* ---- in memory, without lifetimes ---- */

static json_t *job_of(const struct rp_read_set *set, size_t job) {
  json_t *head = head_of(set, job), *processes = json_array();
  for (size_t i = set->job_first[job]; i < set->job_first[job + 1]; i++)
    (void)json_array_append_new(processes, process_of(&set->reports[i], set->reports[i].json, false));
  if (json_object_set_new(head, "processes", processes) == 0) return head;
  json_decref(head);
  return NULL;
}

json_t *rp_overview(const struct rp_read_set *set) {
  json_t *jobs = json_array();
  for (size_t job = 0; job < set->job_count; job++)
    (void)json_array_append_new(jobs, job_of(set, job));
  return json_pack("{s:s, s:s, s:o, s:o, s:O, s:I}", "schema", RP_OVERVIEW_SCHEMA, "schema_version",
                   RP_OVERVIEW_SCHEMA_VERSION, "jobs", jobs, "totals", rp_report_totals_json(set, SIZE_MAX),
                   "skipped", set->skipped, "processes_with_lifetimes", (json_int_t)0);
}

/* ---- piece by piece ---- */

struct budget {
  size_t left, processes;
};

static void write_process(struct rp_read_set *set, size_t index, struct budget *budget, bool first,
                          struct rp__stream *stream) {
  json_t *report = rp_read_load(set, index);
  if (!report) return;
  size_t lifetimes = count_lifetimes(report);
  bool fits = lifetimes > 0 && lifetimes <= budget->left;
  budget->left -= fits ? lifetimes : 0;
  budget->processes += fits ? 1 : 0;
  if (!first) rp__stream_raw(stream, ",\n");
  rp__stream_json(stream, process_of(&set->reports[index], report, fits));
  json_decref(report);
}

static void write_job(struct rp_read_set *set, size_t job, struct budget *budget, struct rp__stream *stream) {
  static const char *const members[] = {"number", "title", "conclusion", "next_step", "totals", "notes"};
  rp__stream_raw(stream, "{\"processes\":[\n");
  for (size_t i = set->job_first[job]; i < set->job_first[job + 1] && !stream->failed; i++)
    write_process(set, i, budget, i == set->job_first[job], stream);
  rp__stream_raw(stream, "]");
  json_t *head = head_of(set, job); /* after the processes, for it may be about what was read again */
  for (size_t i = 0; i < sizeof members / sizeof members[0]; i++)
    rp__stream_member(stream, false, members[i], json_incref(json_object_get(head, members[i])));
  rp__stream_raw(stream, "}");
  json_decref(head);
}

void rp_overview_write(struct rp_read_set *set, size_t lifetimes_most, struct rp__stream *stream) {
  struct budget budget = {.left = lifetimes_most};
  rp__stream_raw(stream, "{");
  rp__stream_member(stream, true, "schema", json_string(RP_OVERVIEW_SCHEMA));
  rp__stream_member(stream, false, "schema_version", json_string(RP_OVERVIEW_SCHEMA_VERSION));
  rp__stream_raw(stream, ",\n\"jobs\":[");
  for (size_t job = 0; job < set->job_count && !stream->failed; job++) {
    if (job) rp__stream_raw(stream, ",\n");
    write_job(set, job, &budget, stream);
  }
  rp__stream_raw(stream, "]");
  rp__stream_member(stream, false, "totals", rp_report_totals_json(set, SIZE_MAX));
  rp__stream_member(stream, false, "skipped", json_incref(set->skipped));
  rp__stream_member(stream, false, "processes_with_lifetimes", json_integer((json_int_t)budget.processes));
  rp__stream_raw(stream, "}");
}
