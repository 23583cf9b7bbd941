/* The job document: the reports of a set, grouped by job, with sums and what follows from them. */
#include "agent/cmd_report_text.h"
#include "agent/config.h"
#include "agent/report.h"

/* null where no process was asked to enforce. */
static json_t *enforced_json(const struct rp_read_set *set, size_t job) {
  struct rp__enforced sum;
  rp__enforced_sum(set, job, &sum);
  if (!sum.processes) return json_null();
  return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "processes", (json_int_t)sum.processes,
                   "physical_peak_bytes", (json_int_t)sum.physical_peak_bytes, "one_to_one_peak_bytes",
                   (json_int_t)sum.one_to_one_peak_bytes, "saved_peak_bytes",
                   (json_int_t)sum.saved_peak_bytes, "minimum_bytes", (json_int_t)sum.minimum_bytes,
                   "prevented", (json_int_t)sum.prevented, "violations", (json_int_t)sum.violations,
                   "double_frees", (json_int_t)sum.double_frees);
}

json_t *rp_report_totals_json(const struct rp_read_set *set, size_t job) {
  return json_pack("{s:I, s:I, s:I, s:o}", "held_bytes", (json_int_t)rp_report_total(set, job, "held_bytes"),
                   "needed_bytes", (json_int_t)rp_report_total(set, job, "needed_bytes"), "would_save_bytes",
                   (json_int_t)rp_report_total(set, job, "would_save_bytes"), "enforcement",
                   enforced_json(set, job));
}

static json_t *job_json(const struct rp_read_set *set, size_t job) {
  char conclusion[512];
  rp_report_conclude(set, job, conclusion, sizeof conclusion);
  json_t *processes = json_array();
  for (size_t i = 0; i < set->count; i++)
    if (set->reports[i].job == job) json_array_append(processes, set->reports[i].json);
  return json_pack("{s:o, s:o, s:s}", "processes", processes, "totals", rp_report_totals_json(set, job),
                   "conclusion", conclusion);
}

json_t *rp_report_jobs_json(const struct rp_read_set *set) {
  json_t *jobs = json_array();
  for (size_t job = 0; job < set->job_count; job++)
    json_array_append_new(jobs, job_json(set, job));
  return json_pack("{s:s, s:s, s:o, s:O, s:o}", "schema", "recvpool.job", "schema_version",
                   RP_REPORT_SCHEMA_VERSION, "jobs", jobs, "skipped", set->skipped, "totals",
                   rp_report_totals_json(set, SIZE_MAX));
}
