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

static int print_json(const struct rp_read_set *set) {
  json_t *root = rp_report_jobs_json(set);
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
