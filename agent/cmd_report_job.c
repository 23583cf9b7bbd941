/* The job document: the reports of a set, grouped by job, with sums and what follows from them. It is written
 * report by report; sums come after the reports that they are of. */
#include "agent/cmd_report_digest.h"
#include "agent/cmd_report_output.h"
#include "agent/cmd_report_text.h"

#define SCHEMA "recvpool.job"
#define SCHEMA_VERSION "1.5"

/* null where no process was asked to enforce. */
static json_t *enforced_json(const struct rp_read_set *set, size_t job) {
  struct rp__enforced sum;
  rp__enforced_sum(set, job, &sum);
  if (!sum.processes) return json_null();
  return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "processes", (json_int_t)sum.processes,
                   "rounding_peak_bytes", (json_int_t)sum.rounding_peak_bytes, "physical_peak_bytes",
                   (json_int_t)sum.physical_peak_bytes, "one_to_one_peak_bytes",
                   (json_int_t)sum.one_to_one_peak_bytes, "saved_peak_bytes",
                   (json_int_t)sum.saved_peak_bytes, "minimum_bytes", (json_int_t)sum.minimum_bytes,
                   "prevented", (json_int_t)sum.prevented, "violations", (json_int_t)sum.violations,
                   "double_frees", (json_int_t)sum.double_frees);
}

json_t *rp_report_totals_json(const struct rp_read_set *set, size_t job) {
  uint64_t held_bytes = 0, needed_bytes = 0, saved_bytes = 0;
  size_t first, end;
  rp__job_range(set, job, &first, &end);
  for (size_t i = first; i < end; i++) {
    const struct rp_read_digest *digest = set->reports[i].digest;
    held_bytes = rp__add(held_bytes, digest->held_bytes);
    needed_bytes = rp__add(needed_bytes, digest->needed_bytes);
    saved_bytes = rp__add(saved_bytes, digest->would_save_bytes);
  }
  return json_pack("{s:I, s:I, s:I, s:o}", "held_bytes", (json_int_t)held_bytes, "needed_bytes",
                   (json_int_t)needed_bytes, "would_save_bytes", (json_int_t)saved_bytes, "enforcement",
                   enforced_json(set, job));
}

static void write_job(struct rp_read_set *set, size_t job, struct rp__stream *stream) {
  char conclusion[RP_REPORT_SENTENCE_BYTES], next[RP_REPORT_SENTENCE_BYTES], title[256];
  size_t first, end, written = 0;
  rp__job_range(set, job, &first, &end);
  rp__stream_raw(stream, job ? ",\n{\"processes\":[\n" : "\n{\"processes\":[\n");
  for (size_t i = first; i < end && !stream->failed; i++) {
    json_t *report = rp_read_load(set, i);
    if (!report) continue;
    if (written++) rp__stream_raw(stream, ",\n");
    rp__stream_json(stream, report);
  }
  rp_report_conclude(set, job, conclusion, sizeof conclusion);
  rp_report_next_step(set, job, next, sizeof next);
  rp_report_title(set, job, title, sizeof title);
  rp__stream_raw(stream, "]");
  rp__stream_member(stream, false, "number", json_integer((json_int_t)rp_report_number(set, job)));
  rp__stream_member(stream, false, "title", rp__json_text(title));
  rp__stream_member(stream, false, "totals", rp_report_totals_json(set, job));
  rp__stream_member(stream, false, "conclusion", json_string(conclusion));
  rp__stream_member(stream, false, "next_step", json_string(next));
  rp__stream_member(stream, false, "ended_processes", json_integer((json_int_t)rp_report_ended(set, job)));
  rp__stream_raw(stream, "}");
}

bool rp_report_write_json(struct rp_read_set *set, const char *extra_name, json_t *extra, FILE *out) {
  struct rp__stream stream = {.file = out};
  rp__stream_raw(&stream, "{");
  rp__stream_member(&stream, true, "schema", json_string(SCHEMA));
  rp__stream_member(&stream, false, "schema_version", json_string(SCHEMA_VERSION));
  rp__stream_raw(&stream, ",\n\"jobs\":[");
  for (size_t job = 0; job < set->job_count && !stream.failed; job++)
    write_job(set, job, &stream);
  rp__stream_raw(&stream, "]");
  rp__stream_member(&stream, false, "skipped", json_incref(set->skipped));
  rp__stream_member(&stream, false, "totals", rp_report_totals_json(set, SIZE_MAX));
  if (extra_name)
    rp__stream_member(&stream, false, extra_name, extra);
  else
    json_decref(extra);
  rp__stream_raw(&stream, "}\n");
  return rp__stream_end(&stream);
}
