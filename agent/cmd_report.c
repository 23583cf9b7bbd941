/* `recvpool report`: reads the reports named, shows them as a table or merges them into one document, and
 * makes files of them: a page, a trace, a plan. */
#include <errno.h>
#include <getopt.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/cmd_report_html.h"
#include "agent/cmd_report_output.h"
#include "agent/cmd_report_trace.h"
#include "agent/command.h"
#include "agent/config.h"
#include "agent/plan_command.h"

enum { OPTION_HTML = 256, OPTION_TRACE, OPTION_TRACE_LIFETIMES, OPTION_PLAN, OPTION_JOB, OPTION_COLOUR };

static const struct option options[] = {{"json", no_argument, NULL, 'j'},
                                        {"html", required_argument, NULL, OPTION_HTML},
                                        {"trace", required_argument, NULL, OPTION_TRACE},
                                        {"trace-lifetimes", required_argument, NULL, OPTION_TRACE_LIFETIMES},
                                        {"plan", required_argument, NULL, OPTION_PLAN},
                                        {"job", required_argument, NULL, OPTION_JOB},
                                        {"color", optional_argument, NULL, OPTION_COLOUR},
                                        {"help", no_argument, NULL, 'h'},
                                        {NULL, 0, NULL, 0}};

struct arguments {
  bool json, colour;
  const char *html, *trace, *plan;
  size_t trace_lifetimes;
  size_t job;       /**< number of the one that is asked for; 0: all, SIZE_MAX: the last */
  char *first_path; /**< what was read, for messages */
};

static int print_help(void) {
  char dir[4096];
  rp_config_default_report_dir(dir, sizeof dir);
  printf(
      "Usage: recvpool report [OPTION...] [FILE | DIR]...\n"
      "Shows the reports in FILEs and DIRs [%s]: per rank, direction and stage\n"
      "  N          receive buffers used in a step\n"
      "  D          most of them in use at once (least-most where steps differ)\n"
      "  K          buffers that a pool would hold: D plus slack, at most N\n"
      "  held       bytes allocated for them, needed at depth D, and what pooling would save\n"
      "Of a job that enforces, this is what would be if every receive buffer had memory of its own; what\n"
      "was measured follows, per class of buffers\n"
      "  grown      receives for which memory was added because no slot was free\n"
      "  unshared   bytes that one allocation per buffer would hold, physical what was held at most\n"
      "  saved      the difference as measured; ratio: physical over K slots, 1.00 is the least\n"
      "then what follows from it, and what to do next.\n"
      "A folder may hold several runs: processes that share an NCCL communicator are shown as one job,\n"
      "each with its number, in the order in which they began.\n\n"
      "  --job N              only job N, or the last one: --job last [all]\n"
      "  --json               one JSON document on stdout (share/recvpool/schema/job.schema.json)\n"
      "  --html FILE          also write a page that holds all of it and needs nothing else\n"
      "  --trace FILE         also write the last complete step as trace events, for ui.perfetto.dev; of\n"
      "                       several jobs, that of the last one with receives\n"
      "  --trace-lifetimes N  most receives in the trace; the oldest are left out, of all processes alike,\n"
      "                       and it says how many [%d]\n"
      "  --plan FILE          also write a plan for recvpool run --mode enforce --plan FILE; where there "
      "are\n"
      "                       several jobs, --job tells of which\n"
      "  --color[=WHEN]       mark what matters: always | never | auto, on a terminal unless NO_COLOR is "
      "set [auto]\n"
      "  --help               this text\n\n"
      "Files that are torn, foreign, too large or no files are named and skipped.\n"
      "Exit status: 0; 1 where something that was named cannot be used, there is no report, or something\n"
      "cannot be written; 2 for a wrong option.\n",
      dir, RP_TRACE_LIFETIMES);
  return fflush(stdout) == 0 ? 0 : RP_EXIT_FAILURE;
}

/* Reads everything named. Returns -1 to go on, else the exit status. */
static int read_all(struct rp_read_set *set, struct arguments *a, int count, char **paths) {
  char dir[4096];
  rp_config_default_report_dir(dir, sizeof dir);
  char *otherwise[] = {dir};
  rp_status status = RP_OK;
  if (count == 0) {
    count = 1;
    paths = otherwise;
  }
  a->first_path = strdup(paths[0]);
  for (int i = 0; i < count && status == RP_OK; i++)
    status = rp_read_add(set, paths[i]);
  if (status == RP_OK) status = rp_read_finish(set);
  if (status != RP_OK || !a->first_path) {
    rp_cmd_error("report", "%s", rp_status_text(status != RP_OK ? status : RP_ERROR_NO_MEMORY));
    return RP_EXIT_FAILURE;
  }
  if (set->count > 0) return -1;
  rp_cmd_error("report", "found no report in %s%s", paths[0], count > 1 ? " and the others" : "");
  return RP_EXIT_FAILURE;
}

/* Leaves the job that was asked for. Returns as above. */
static int choose_job(struct rp_read_set *set, const struct arguments *a) {
  size_t number = a->job == SIZE_MAX ? set->job_count : a->job;
  if (number > set->job_count) {
    rp_cmd_error("report", "there is no job %zu; there are %zu, numbered from 1", number, set->job_count);
    return RP_EXIT_FAILURE;
  }
  if (number == 0 || rp_read_choose_job(set, number - 1) == RP_OK) return -1;
  rp_cmd_error("report", "%s", rp_status_text(RP_ERROR_NO_MEMORY));
  return RP_EXIT_FAILURE;
}

/* ---- what it writes ---- */

static bool write_html(struct rp_read_set *set, const struct arguments *a, FILE *out) {
  (void)a;
  return rp__report_write_html(set, out);
}

/* Of several jobs one, for their clocks and ranks have nothing to do with one another: the last one with
 * something to see. */
static bool write_trace(struct rp_read_set *set, const struct arguments *a, FILE *out) {
  size_t job = rp__report_trace_job(set);
  if (set->job_count > 1)
    rp_cmd_error("report",
                 "the trace is of job %zu, the last one with receives of %zu jobs; --job N takes another",
                 rp_report_number(set, job), set->job_count);
  return rp__report_write_trace(set, job, a->trace_lifetimes, out);
}

static int write_file(struct rp_read_set *set, const struct arguments *a, const char *path, const char *what,
                      bool (*write)(struct rp_read_set *set, const struct arguments *a, FILE *out)) {
  struct rp__output output;
  if (!path) return 0;
  if (rp__output_begin(&output, path) && rp__output_end(&output, write(set, a, output.file))) {
    if (!a->json) printf("%s written to %s.\n", what, path);
    return 0;
  }
  rp_cmd_error("report", "cannot write %s: %s", path, strerror(errno));
  return RP_EXIT_FAILURE;
}

static int write_plan(struct rp_read_set *set, const struct arguments *a) {
  struct rp_plan_options plan_options = RP_PLAN_OPTIONS_INIT;
  struct rp_plan_observation observation;
  struct rp_plan *plan = NULL;
  char message[512] = "";
  if (!a->plan) return 0;
  plan_options.slack = RP_PLAN_DEFAULT_SLACK;
  rp_status status =
      rp_plan_from_set(set, a->first_path, 0, &plan_options, &plan, &observation, message, sizeof message);
  if (status) {
    rp_cmd_error("report", "no plan is written: %s", message[0] ? message : rp_status_text(status));
    return RP_EXIT_FAILURE;
  }
  const struct rp_plan_provenance provenance = {.kind = "report",
                                                .source = a->first_path,
                                                .replicas = 1,
                                                .world_size = observation.world_size,
                                                .recvpool = RECVPOOL_VERSION,
                                                .note = observation.note[0] ? observation.note : NULL};
  json_t *json = rp_plan_fits_file(plan) ? rp_plan_to_json(plan, &provenance) : NULL;
  errno = ENOMEM;
  bool written = json && rp_plan_write(json, a->plan) == RP_OK;
  if (!written) rp_cmd_error("report", "cannot write %s: %s", a->plan, strerror(errno));
  if (written && !a->json) printf("Plan written to %s.\n", a->plan);
  if (written && observation.caution) rp_cmd_error("report", "%s: %s", a->first_path, observation.caution);
  json_decref(json);
  rp_plan_destroy(plan);
  return written ? 0 : RP_EXIT_FAILURE;
}

/* The answer comes first; what is read again meanwhile may change sums, so it is last in a table. */
static int put_out(struct rp_read_set *set, const struct arguments *a) {
  int status = 0;
  if (a->json)
    status = rp_report_write_json(set, NULL, NULL, stdout) ? 0 : RP_EXIT_FAILURE;
  else
    rp_report_print(set, stdout);
  status |= write_file(set, a, a->html, "Page", write_html);
  status |= write_file(set, a, a->trace, "Trace", write_trace);
  status |= write_plan(set, a);
  if (fflush(stdout) != 0 || ferror(stdout)) {
    rp_cmd_error("report", "cannot write to stdout");
    status = RP_EXIT_FAILURE;
  }
  return status;
}

/* ---- options ---- */

static int take_lifetimes(const char *text, size_t *out) {
  char *end;
  errno = 0;
  unsigned long long value = strtoull(text, &end, 10);
  if (*text >= '0' && *text <= '9' && !*end && !errno && value <= INT32_MAX) {
    *out = (size_t)value;
    return -1;
  }
  rp_cmd_error("report", "--trace-lifetimes '%s': must be a whole number, 0 to %d", text, INT32_MAX);
  return RP_EXIT_USAGE;
}

static bool wants_colour(void) {
  const char *no = getenv("NO_COLOR"), *terminal = getenv("TERM");
  return isatty(STDOUT_FILENO) == 1 && (!no || !*no) && (!terminal || strcmp(terminal, "dumb") != 0);
}

static int take_job(const char *text, size_t *out) {
  char *end;
  errno = 0;
  unsigned long long value = strtoull(text, &end, 10);
  *out = SIZE_MAX;
  if (strcmp(text, "last") == 0) return -1;
  *out = (size_t)value;
  if (*text >= '0' && *text <= '9' && !*end && !errno && value > 0 && value <= INT32_MAX) return -1;
  rp_cmd_error("report", "--job '%s': must be the number of a job, from 1 on, or last", text);
  return RP_EXIT_USAGE;
}

static int take_colour(const char *when, bool *out) {
  *out = wants_colour();
  if (!when || strcmp(when, "always") == 0)
    *out = true;
  else if (strcmp(when, "never") == 0)
    *out = false;
  else if (strcmp(when, "auto") != 0) {
    rp_cmd_error("report", "--color '%s': must be auto, always or never", when);
    return RP_EXIT_USAGE;
  }
  return -1;
}

/* -1 to go on, else the exit status. */
static int take_options(struct arguments *a, int argc, char **argv) {
  for (;;) {
    int before = optind, status = -1;
    int option = getopt_long(argc, argv, ":h", options, NULL);
    if (option == -1) return -1;
    switch (option) {
    case 'j':
      a->json = true;
      break;
    case OPTION_HTML:
      a->html = optarg;
      break;
    case OPTION_TRACE:
      a->trace = optarg;
      break;
    case OPTION_TRACE_LIFETIMES:
      status = take_lifetimes(optarg, &a->trace_lifetimes);
      break;
    case OPTION_PLAN:
      a->plan = optarg;
      break;
    case OPTION_JOB:
      status = take_job(optarg, &a->job);
      break;
    case OPTION_COLOUR:
      status = take_colour(optarg, &a->colour);
      break;
    case 'h':
      return print_help();
    default:
      return rp_cmd_bad_option("report", option, argv, before);
    }
    if (status >= 0) return status;
  }
}

int rp_cmd_report(int argc, char **argv) {
  struct arguments a = {.trace_lifetimes = RP_TRACE_LIFETIMES, .colour = wants_colour()};
  int status = take_options(&a, argc, argv);
  if (status >= 0) return status;
  struct rp_read_set set = {.lean = true,
                            .colour = a.colour,
                            .keep_texts = a.json || a.html || a.trace || a.plan,
                            .progress = isatty(STDERR_FILENO) == 1};
  status = read_all(&set, &a, argc - optind, argv + optind);
  if (status < 0) status = choose_job(&set, &a);
  if (status < 0) {
    status = put_out(&set, &a);
    if (set.path_missing) status = RP_EXIT_FAILURE;
  }
  rp_read_fini(&set);
  free(a.first_path);
  return status;
}
