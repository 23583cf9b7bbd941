/* `recvpool attach`: observes processes that run already, from outside, by uprobes. */
#include "agent/attach.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "agent/cmd_report_digest.h"
#include "agent/cmd_report_output.h"
#include "agent/cmd_report_trace.h"
#include "agent/config.h"

#define TERMINAL_INTERVAL_SECONDS 1.0
#define LINE_INTERVAL_SECONDS 5.0
#define CHECK_INTERVAL_SECONDS 1.0
#define POLL_MS 100

static const struct option options[] = {
    {"pid", required_argument, NULL, 'p'},
    {"comm", required_argument, NULL, 'c'},
    {"cgroup", required_argument, NULL, 'g'},
    {"all", no_argument, NULL, 'a'},
    {"duration", required_argument, NULL, 'd'},
    {"json", no_argument, NULL, 'j'},
    {"interval", required_argument, NULL, 'i'},
    {"report-dir", required_argument, NULL, 'r'},
    {"launches", no_argument, NULL, 'l'},
    {"min-bytes", required_argument, NULL, 'b'},
    {"slack", required_argument, NULL, 's'},
    {"buffer", required_argument, NULL, 'B'},
    {"links", required_argument, NULL, 'L'},
    {"calls", no_argument, NULL, 'C'},
    {"trace", required_argument, NULL, 't'},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

static int print_help(void) {
  fputs("Usage: recvpool attach (--pid PID... | --comm NAME | --cgroup DIR | --all) [OPTION...]\n"
        "Observes the receive buffers of processes that run already, without touching them, until they end,\n"
        "the time is over or Ctrl-C, and then reports as `recvpool report` does.\n\n"
        "  --pid PID          this process and its descendants; several with commas or by repeating it\n"
        "  --comm NAME        processes of this name, also those that start later\n"
        "  --cgroup DIR       processes in this folder of the cgroup2 hierarchy, and below\n"
        "  --all              every process on this machine\n"
        "  --duration TIME    end after 30s, 5m, 1h ... [until the processes end]\n"
        "  --json             nothing but one JSON document on stdout, as from recvpool report --json\n"
        "  --report-dir DIR   also write one report per process there\n"
        "  --trace FILE       also write the last complete step as trace events, for ui.perfetto.dev\n"
        "  --launches         follow what kernels and copies read: exact where NCCL's calls alone give an\n"
        "                     estimate, for a microsecond more per launch\n"
        "  --interval TIME    how often to show how things stand [1s on a terminal, else 5s]\n"
        "  --min-bytes BYTES  smaller receives are not looked at [64KiB]\n"
        "  --slack COUNT      slots beyond D [2]\n"
        "  --buffer BYTES     events that wait to be looked at [16MiB]\n"
        "  --links KIND       multi | perf | auto: how probes are attached [auto]\n"
        "  --calls            show every call with its arguments and status\n"
        "  --help             this text\n\n"
        "Needs CAP_BPF, CAP_PERFMON and, for processes of others, CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH\n"
        "(kernels before 6.6: CAP_SYS_ADMIN). recvpool doctor says what is missing.\n",
        stdout);
  return fflush(stdout) == 0 ? 0 : RP_EXIT_FAILURE;
}

/* ---- options ---- */

/* "30", "30s", "500ms", "5m", "1h". */
static bool parse_seconds(const char *text, double *out) {
  static const struct {
    const char *unit;
    double seconds;
  } units[] = {{"", 1}, {"s", 1}, {"ms", 1e-3}, {"m", 60}, {"h", 3600}};
  char *end;
  double value = strtod(text, &end);
  if (end == text || !isfinite(value) || value <= 0) return false;
  for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
    if (strcmp(end, units[i].unit) == 0) {
      *out = value * units[i].seconds;
      return *out <= 1e9;
    }
  return false;
}

static bool add_pids(struct rp_attach_arguments *a, const char *text) {
  for (;;) {
    char *end;
    errno = 0;
    long pid = strtol(text, &end, 10);
    if (errno || end == text || pid <= 0 || pid > INT_MAX || (*end && *end != ',') ||
        a->observer.pid_count == RP_ATTACH_PIDS)
      return false;
    a->pids[a->observer.pid_count++] = (pid_t)pid;
    if (!*end) return true;
    text = end + 1;
  }
}

static bool set_links(struct rp_attach_arguments *a, const char *text) {
  static const char *const names[] = {"auto", "multi", "perf"};
  for (int i = 0; i < 3; i++)
    if (strcmp(text, names[i]) == 0) {
      a->observer.links = (enum rp_link_kind)i;
      return true;
    }
  return false;
}

/* By the table of the agent's variables, so that both take the same values. */
static bool set_variable(struct rp_config *config, const char *variable, const char *value, char *message,
                         size_t size) {
  return rp_config_set(config, variable, value, message, size) == RP_OK;
}

/* What is enough is found by waiting for memory, which only happens where it is shared. */
static bool set_slack(struct rp_config *config, const char *value, char *message, size_t size) {
  bool known = set_variable(config, "RECVPOOL_SLACK", value, message, size);
  if (!known || config->slack_auto)
    snprintf(message, size,
             "must be 0 to 1024; what is enough, a run finds: recvpool run --mode enforce --slack auto");
  return known && !config->slack_auto;
}

static bool set_option(struct rp_attach_arguments *a, struct rp_config *config, int option, const char *value,
                       char *message, size_t size) {
  switch (option) {
  case 'p':
    snprintf(message, size, "must be process ids with commas between them, at most %d", RP_ATTACH_PIDS);
    return add_pids(a, value);
  case 'c':
    a->observer.name = value;
    snprintf(message, size, "must be a name of 1 to 15 characters, as ps -o comm shows it");
    return value[0] && strlen(value) <= 15;
  case 'g':
    a->observer.cgroup = value;
    return true;
  case 't':
    snprintf(message, size, "must be the path of a file");
    a->trace = value;
    return value[0] != '\0';
  case 'd':
    snprintf(message, size, "must be a time such as 30s, 500ms or 5m");
    return parse_seconds(value, &a->duration_seconds);
  case 'i':
    snprintf(message, size, "must be a time such as 30s, 500ms or 5m");
    return parse_seconds(value, &a->interval_seconds);
  case 'B':
    snprintf(message, size, "must be a size from 4KiB to 1GiB");
    return rp_parse_bytes(value, &a->observer.ring_bytes) == RP_OK && a->observer.ring_bytes >= 4096 &&
           a->observer.ring_bytes <= (1u << 30);
  case 'L':
    snprintf(message, size, "must be auto, multi or perf");
    return set_links(a, value);
  case 'b':
    return set_variable(config, "RECVPOOL_MIN_BYTES", value, message, size);
  case 's':
    return set_slack(config, value, message, size);
  default:
    return set_variable(config, "RECVPOOL_REPORT_DIR", value, message, size);
  }
}

static const char *name_of(int option) {
  const struct option *named = options;
  while (named->val != option)
    named++;
  return named->name;
}

static int check(const struct rp_attach_arguments *a, int argc, char **argv) {
  const struct rp_observer_options *o = &a->observer;
  int ways = (o->pid_count > 0) + (o->name != NULL) + (o->cgroup != NULL) + o->all;
  if (optind < argc) {
    rp_cmd_error("attach", "there is an argument too many: '%s'", argv[optind]);
    return RP_EXIT_USAGE;
  }
  if (ways == 1) return -1;
  rp_cmd_error("attach", ways ? "only one of --pid, --comm, --cgroup and --all can be given"
                              : "say which processes: --pid, --comm, --cgroup or --all");
  return RP_EXIT_USAGE;
}

/* Returns -1 to go on, else the exit status. */
static int take_options(struct rp_attach_arguments *a, int argc, char **argv) {
  struct rp_config config;
  char message[256];
  rp_config_defaults(&config);
  for (;;) {
    int before = optind;
    int option = getopt_long(argc, argv, ":h", options, NULL);
    if (option == -1) break;
    if (option == 'h') return print_help();
    if (option == '?' || option == ':') return rp_cmd_bad_option("attach", option, argv, before);
    bool *flag = option == 'a'   ? &a->observer.all
                 : option == 'j' ? &a->json
                 : option == 'l' ? &a->observer.launches
                 : option == 'C' ? &a->observer.calls
                                 : NULL;
    if (flag) {
      *flag = true;
      continue;
    }
    if (!set_option(a, &config, option, optarg, message, sizeof message)) {
      rp_cmd_error("attach", "--%s %s, not '%s'", name_of(option), message, optarg);
      return RP_EXIT_USAGE;
    }
    if (option == 'r') snprintf(a->report_dir, sizeof a->report_dir, "%s", config.report_dir);
  }
  a->observer.min_bytes = config.min_bytes;
  a->observer.slack = config.slack;
  a->observer.pids = a->pids;
  return check(a, argc, argv);
}

/* ---- the loop ---- */

static volatile sig_atomic_t interrupted;

/* A second Ctrl-C ends the command at once, without the file that it was writing: the kernel takes the probes
 * out then, too. */
static void on_signal(int signal_number) {
  interrupted = signal_number;
  rp__output_give_up_on(signal_number);
}

/* Under nohup a hang-up stays ignored. */
static void catch_signals(void) {
  struct sigaction action = {.sa_handler = on_signal}, before;
  sigaction(SIGINT, &action, NULL);
  sigaction(SIGTERM, &action, NULL);
  if (sigaction(SIGHUP, NULL, &before) != 0 || before.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, NULL);
  signal(SIGPIPE, SIG_IGN);
}

static double now_seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static int write_files(const struct rp_observer *observer, const struct rp_attach_arguments *a) {
  static bool said;
  if (!a->report_dir[0] || rp_attach_write(observer, a) == RP_OK) return 0;
  if (!said)
    rp_cmd_error("attach", "the reports cannot be written to %s: %s", a->report_dir, strerror(errno));
  said = true;
  return RP_EXIT_FAILURE;
}

static void observe(struct rp_observer *observer, const struct rp_attach_arguments *a) {
  bool terminal = isatty(STDOUT_FILENO);
  double interval = a->interval_seconds > 0 ? a->interval_seconds
                    : terminal              ? TERMINAL_INTERVAL_SECONDS
                                            : LINE_INTERVAL_SECONDS;
  double begin = now_seconds(), shown = begin, checked = begin;
  while (!interrupted) {
    bool more = rp_observer_poll(observer, POLL_MS);
    double now = now_seconds();
    if (!more || (a->duration_seconds > 0 && now - begin >= a->duration_seconds)) break;
    if (now - checked >= CHECK_INTERVAL_SECONDS) {
      rp_attach_check(observer, false);
      checked = now;
    }
    if (now - shown < interval) continue;
    (void)write_files(observer, a);
    if (!a->json && !a->observer.calls) rp_attach_show(observer, a, terminal, now - begin);
    if (fflush(stdout) != 0 || ferror(stdout)) break; /* nobody reads it any more */
    shown = now;
  }
}

static void started(void *context, struct rp_target *target) {
  (void)context;
  const struct rp_attach_process *process = target->user = rp_attach_identify(target);
  if (process && target->joined_late && process->info.rank >= 0)
    rp_tracker_assume_rank(target->tracker, process->info.rank);
}

static void freed(void *context, struct rp_target *target) {
  (void)context;
  rp_attach_forget(target->user);
}

static void call(void *context, const struct rp_probe_record *record) {
  (void)context;
  rp_attach_show_call(record);
}

static void announce(const struct rp_observer *observer, const struct rp_attach_arguments *a) {
  const struct rp_libraries *libraries = rp_observer_libraries(observer);
  size_t targets = 0;
  while (rp_observer_target(observer, targets))
    targets++;
  rp_cmd_error("attach", "observing %zu process%s: %zu probes in %zu files", targets,
               targets == 1 ? "" : "es", rp_observer_probes(observer), libraries->probed);
  if (targets == 0 && a->duration_seconds <= 0)
    rp_cmd_error("attach", "waiting for %s %s; Ctrl-C ends it",
                 a->observer.name ? "a process called" : "a process in",
                 a->observer.name ? a->observer.name : a->observer.cgroup);
}

static int print_json(const struct rp_observer *observer, struct rp_read_set *set) {
  json_t *own = rp_attach_observer_json(observer);
  return own && rp_report_write_json(set, "observer", own, stdout) ? 0 : RP_EXIT_FAILURE;
}

/* What was written where: beside a JSON document on stderr, as how many processes are observed is. */
static void say_written(const struct rp_attach_arguments *a, const char *what, const char *path,
                        const char *rest) {
  if (a->json)
    rp_cmd_error("attach", "%s %s%s", what, path, rest);
  else
    printf("%s %s%s.\n", what, path, rest);
}

static int write_trace(struct rp_read_set *set, const struct rp_attach_arguments *a,
                       struct rp__output *trace) {
  size_t lifetimes = 0;
  if (!a->trace) return 0;
  for (size_t i = 0; i < set->count; i++)
    lifetimes += set->reports[i].digest->lifetimes;
  if (!rp__output_end(trace, rp__report_write_trace(set, SIZE_MAX, RP_TRACE_LIFETIMES, trace->file))) {
    rp_cmd_error("attach", "cannot write %s: %s", a->trace, strerror(errno));
    return RP_EXIT_FAILURE;
  }
  say_written(a, "Trace written to", a->trace,
              lifetimes ? "" : ", without anything in it: no step was seen from its beginning to its end");
  return 0;
}

static void say_reports(const struct rp_observer *observer, const struct rp_attach_arguments *a) {
  size_t count = rp_attach_worth_writing(observer);
  char rest[64];
  snprintf(rest, sizeof rest, ": %zu", count);
  if (count)
    say_written(a, "Reports written to", a->report_dir, rest);
  else
    say_written(a, "No report written to", a->report_dir, ": no process posted a receive or a send");
}

/* Nobody was there to be observed. */
static int say_nobody(const struct rp_attach_arguments *a, const char *when) {
  const struct rp_observer_options *o = &a->observer;
  if (o->name)
    rp_cmd_error("attach", "no process was called '%s'%s (ps -eo pid,comm lists the names)", o->name, when);
  else
    rp_cmd_error("attach", "no process was in %s%s", o->cgroup ? o->cgroup : "/proc", when);
  return RP_EXIT_FAILURE;
}

/* The answer. */
static int print(const struct rp_observer *observer, const struct rp_attach_arguments *a,
                 struct rp_read_set *set) {
  bool nobody = rp_observer_met(observer) == 0;
  int status = nobody ? say_nobody(a, " in all that time") : 0;
  if (a->json)
    status |= print_json(observer, set);
  else if (set->count)
    rp_report_print(set, stdout);
  else if (!nobody)
    printf("no process that was observed posted a receive or a send%s\n",
           a->observer.name ? "; processes that it starts under other names are observed by --pid only" : "");
  return status;
}

static int report(struct rp_observer *observer, const struct rp_attach_arguments *a,
                  struct rp__output *trace) {
  struct rp_read_set set;
  const struct rp_target *target;
  int status = 0;
  clearerr(stdout); /* the signal may have come in the middle of a line; what is lasting shows again below */
  rp_attach_check(observer, true);
  for (size_t i = 0; (target = rp_observer_target(observer, i)); i++) {
    const struct rp_attach_process *process = target->user;
    if (!process || !process->differences) continue;
    rp_cmd_error("attach", "process %ld: cross-check failed: %s", (long)target->process.pid,
                 process->difference);
    status = RP_EXIT_FAILURE;
  }
  rp_status collected = rp_attach_collect(observer, a, &set);
  if (collected != RP_OK) {
    rp_cmd_error("attach", "%s", rp_status_text(collected));
    if (a->trace) (void)rp__output_end(trace, false);
    return RP_EXIT_FAILURE;
  }
  int wrote = write_files(observer, a); /* before a reader of stdout can keep this waiting */
  status |= wrote | print(observer, a, &set);
  if (a->report_dir[0] && wrote == 0) say_reports(observer, a);
  status |= write_trace(&set, a, trace);
  if (fflush(stdout) != 0 || ferror(stdout)) {
    rp_cmd_error("attach", "cannot write to stdout");
    status = RP_EXIT_FAILURE;
  }
  rp_read_fini(&set);
  return status;
}

/* From an observer that observes to its end. What cannot be written is known before anything is observed. */
static int run(struct rp_observer *observer, const struct rp_attach_arguments *a) {
  struct rp__output trace;
  if (a->trace && !rp__output_begin(&trace, a->trace)) {
    rp_cmd_error("attach", "cannot write %s: %s", a->trace, strerror(errno));
    return RP_EXIT_FAILURE;
  }
  catch_signals();
  announce(observer, a);
  observe(observer, a);
  rp_attach_check(observer, false);
  rp_observer_stop(observer);
  return report(observer, a, &trace);
}

/* Each observed process and each library takes some. */
static void raise_file_limit(void) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &limit);
}

int rp_cmd_attach(int argc, char **argv) {
  struct rp_attach_arguments *a = calloc(1, sizeof *a);
  struct rp_observer *observer;
  char message[1024], *log;
  if (!a) return RP_EXIT_FAILURE;
  int status = take_options(a, argc, argv);
  if (status < 0) {
    raise_file_limit();
    a->observer.started = started;
    a->observer.freed = freed;
    a->observer.call = call;
    rp_status opened = rp_observer_open(&a->observer, &observer, message, sizeof message, &log);
    if (opened != RP_OK) {
      rp_cmd_error("attach", "%s", message);
      if (log) fputs(log, stderr);
      free(log);
      status = opened == RP_ERROR_UNAVAILABLE ? RP_EXIT_UNAVAILABLE : RP_EXIT_FAILURE;
    } else {
      status = run(observer, a);
      rp_observer_close(observer);
    }
  }
  free(a);
  return status;
}
