/* `recvpool report`: reads the reports named, shows them as a table or merges them into one JSON document. */
#include "agent/cmd_report_text.h"

#include <getopt.h>
#include <stdbool.h>
#include <string.h>

#include "agent/config.h"
#include "agent/report.h"

static const struct option options[] = {
    {"json", no_argument, NULL, 'j'}, {"help", no_argument, NULL, 'h'}, {NULL, 0, NULL, 0}};

static int print_help(void) {
  char dir[4096];
  rp_config_default_report_dir(dir, sizeof dir);
  printf("Usage: recvpool report [--json] [FILE | DIR]...\n"
         "Shows the reports in FILEs and DIRs [%s]: per rank, direction and stage\n"
         "  N          receive buffers used in a step\n"
         "  D          most of them in use at once (least-most where steps differ)\n"
         "  K          buffers that a pool would hold: D plus slack, at most N\n"
         "  held       bytes allocated for them, needed at depth D, and what pooling would save\n"
         "and where memory is shared, per class of buffers\n"
         "  grown      receives for which memory was added because no slot was free\n"
         "  unshared   bytes that one allocation per buffer would hold, physical what was held at most\n"
         "  saved      the difference as measured; ratio: physical over K slots, 1.00 is the least\n"
         "A folder may hold several runs: processes that share an NCCL communicator are shown as one job.\n\n"
         "  --json     one JSON document on stdout (share/recvpool/schema/job.schema.json)\n"
         "  --help     this text\n",
         dir);
  return fflush(stdout) == 0 ? 0 : RP_EXIT_FAILURE;
}

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

static json_t *totals_json(const struct rp_read_set *set, size_t job) {
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
  return json_pack("{s:o, s:o, s:s}", "processes", processes, "totals", totals_json(set, job), "conclusion",
                   conclusion);
}

static int print_json(const struct rp_read_set *set) {
  json_t *jobs = json_array();
  for (size_t job = 0; job < set->job_count; job++)
    json_array_append_new(jobs, job_json(set, job));
  json_t *root = json_pack("{s:s, s:s, s:o, s:O, s:o}", "schema", "recvpool.job", "schema_version",
                           RP_REPORT_SCHEMA_VERSION, "jobs", jobs, "skipped", set->skipped, "totals",
                           totals_json(set, SIZE_MAX));
  int failed = !root || json_dumpf(root, stdout, JSON_INDENT(1)) != 0 || putchar('\n') == EOF;
  json_decref(root);
  return failed ? RP_EXIT_FAILURE : 0;
}

/* Reads everything named. Returns -1 to go on, else the exit status. */
static int read_all(struct rp_read_set *set, int count, char **paths) {
  char dir[4096];
  rp_config_default_report_dir(dir, sizeof dir);
  char *otherwise[] = {dir};
  rp_status status = RP_OK;
  if (count == 0) {
    count = 1;
    paths = otherwise;
  }
  for (int i = 0; i < count && status == RP_OK; i++)
    status = rp_read_add(set, paths[i]);
  if (status == RP_OK) status = rp_read_finish(set);
  if (status != RP_OK) {
    rp_cmd_error("report", "%s", rp_status_text(status));
    return RP_EXIT_FAILURE;
  }
  if (set->count > 0) return -1;
  rp_cmd_error("report", "found no report in %s%s", paths[0], count > 1 ? " and the others" : "");
  return RP_EXIT_FAILURE;
}

int rp_cmd_report(int argc, char **argv) {
  bool json = false;
  for (;;) {
    int before = optind;
    int option = getopt_long(argc, argv, ":h", options, NULL);
    if (option == -1) break;
    if (option == 'h') return print_help();
    if (option != 'j') return rp_cmd_bad_option("report", option, argv, before);
    json = true;
  }
  struct rp_read_set set = {0};
  int status = read_all(&set, argc - optind, argv + optind);
  if (status < 0) {
    status = set.path_missing ? RP_EXIT_FAILURE : 0;
    if (json)
      status = print_json(&set);
    else
      rp_report_print(&set, stdout);
    if (fflush(stdout) != 0 || ferror(stdout)) {
      rp_cmd_error("report", "cannot write to stdout");
      status = RP_EXIT_FAILURE;
    }
  }
  rp_read_fini(&set);
  return status;
}
