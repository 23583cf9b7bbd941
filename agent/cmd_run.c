/* `recvpool run`: options become RECVPOOL_* variables, librecvpool.so becomes CUDA_INJECTION64_PATH, then the
 * command is started, and its reports are looked at when it has ended. Prints nothing on stdout: that belongs
 * to the command. */
#include "agent/command.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "agent/cmd_report_text.h"
#include "agent/cmd_run_verdict.h"
#include "agent/config.h"
#include "agent/enforce_plan.h"

#define LIBRARY "librecvpool.so"
#define HELP_COLUMN 43
#define INJECTION "CUDA_INJECTION64_PATH"

/* Every option but --help is a variable of the table under another name; those without a value set it to 1.
 */
static const struct option options[] = {
    {"mode", required_argument, NULL, 'm'},
    {"plan", required_argument, NULL, 'p'},
    {"plan-rank", required_argument, NULL, 'k'},
    {"buffer-bytes", required_argument, NULL, 'B'},
    {"slots", required_argument, NULL, 'S'},
    {"slack", required_argument, NULL, 's'},
    {"headroom", required_argument, NULL, 'H'},
    {"on-violation", required_argument, NULL, 'o'},
    {"strict", no_argument, NULL, 't'},
    {"report-dir", required_argument, NULL, 'r'},
    {"interval", required_argument, NULL, 'i'},
    {"min-bytes", required_argument, NULL, 'b'},
    {"cupti", required_argument, NULL, 'c'},
    {"verbose", no_argument, NULL, 'v'},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

static const struct option *find_option(int value) {
  const struct option *option = options;
  while (option->name && option->val != value)
    option++;
  return option;
}

/* "plan-rank" -> "RECVPOOL_PLAN_RANK". */
static const char *variable_of(int option, char *out, size_t out_size) {
  snprintf(out, out_size, "RECVPOOL_%s", find_option(option)->name);
  for (char *c = out; *c; c++)
    *c = *c == '-' ? '_' : (char)toupper((unsigned char)*c);
  return out;
}

static const struct rp_config_variable *row_of(int option) {
  const struct rp_config_variable *row = NULL;
  char name[64];
  variable_of(option, name, sizeof name);
  for (size_t i = 0; (row = rp_config_variable(i)) != NULL; i++)
    if (strcmp(row->name, name) == 0) break;
  return row;
}

static int print_help(void) {
  puts("Usage: recvpool run [OPTION...] -- COMMAND [ARGUMENT...]\n"
       "Runs COMMAND with the agent attached and ends with its exit status (128 + N if signal N\n"
       "ended it), or with 3 if it succeeded and --mode enforce reused memory unsafely.\n");
  for (const struct option *option = options; option->name; option++) {
    if (option->val == 'h') continue;
    const struct rp_config_variable *row = row_of(option->val);
    char shown[64];
    snprintf(shown, sizeof shown, "--%s%s%s", option->name, option->has_arg ? " " : "",
             option->has_arg ? row->values : "");
    printf("  %s%*s%s", shown, HELP_COLUMN - 2 - (int)strlen(shown), "", row->help);
    printf(option->has_arg ? " [%s]\n" : "\n", row->default_text);
  }
  printf("  --help%*sthis text\n", HELP_COLUMN - 8, "");
  return fflush(stdout) == 0 ? 0 : RP_EXIT_FAILURE;
}

int rp_cmd_bad_option(const char *subcommand, int answer, char **argv, int optind_before) {
  /* optind has moved past a long option, but not past a cluster of short ones */
  const char *text = argv[optind > optind_before ? optind - 1 : optind_before];
  const char *equals = strchr(text, '=');
  if (answer == ':')
    rp_cmd_error(subcommand, "option %s needs a value; recvpool %s --help tells which", text, subcommand);
  else if (optopt && equals) /* getopt_long knows the option: it is the value that it refuses */
    rp_cmd_error(subcommand, "option %.*s takes no value", (int)(equals - text), text);
  else
    rp_cmd_error(subcommand, "there is no option %s; recvpool %s --help lists them%s", text, subcommand,
                 strcmp(subcommand, "run") == 0 ? " (put -- before the command)" : "");
  return RP_EXIT_USAGE;
}

/* One option into `config` and the environment. Returns -1 to go on, else the exit status. */
static int take_option(struct rp_config *config, int option, const char *value) {
  char message[256], variable[64];
  variable_of(option, variable, sizeof variable);
  if (rp_config_set(config, variable, value, message, sizeof message) != RP_OK) {
    rp_cmd_error("run", "--%s %s, not '%s'", find_option(option)->name, message, value);
    return RP_EXIT_USAGE;
  }
  if (option == 'r') value = config->report_dir; /* absolute: the command may change its working directory */
  if (option == 'p') value = config->plan_path;
  if (setenv(variable, value, 1) == 0) return -1;
  rp_cmd_error("run", "cannot set %s: %s", variable, strerror(errno));
  return RP_EXIT_FAILURE;
}

/* Takes the options over what the environment says. Returns -1 to go on, else the exit status. */
static int take_options(int argc, char **argv, struct rp_config *config) {
  char warnings[16]; /* the agent will say it */
  rp_config_read_environment(config, warnings, sizeof warnings);
  for (;;) {
    int before = optind;
    int option = getopt_long(argc, argv, "+:h", options, NULL);
    if (option == -1) return -1;
    if (option == 'h') return print_help();
    if (option == '?' || option == ':') return rp_cmd_bad_option("run", option, argv, before);
    int status = take_option(config, option, optarg ? optarg : "1");
    if (status >= 0) return status;
  }
}

/* What is no folder never becomes one by itself; one that is not there yet is made by the job's processes. */
static bool can_be_folder(const char *path) {
  struct stat info;
  return stat(path, &info) == 0 ? S_ISDIR(info.st_mode) : errno != ENOTDIR;
}

/* What would make the job run otherwise than asked is said before it starts. Returns as above. */
static int check(const struct rp_config *config) {
  char message[PATH_MAX + 512];
  if (config->mode != RP_MODE_OFF && !can_be_folder(config->report_dir)) {
    rp_cmd_error("run", "--report-dir '%s': is no folder; name one for the reports", config->report_dir);
    return RP_EXIT_USAGE;
  }
  if (rp_config_check(config, true, message, sizeof message) == RP_OK &&
      (config->mode != RP_MODE_ENFORCE || rp_enforce_plan_check(config, message, sizeof message) == RP_OK))
    return -1;
  rp_cmd_error("run", "%s", message);
  return RP_EXIT_USAGE;
}

/* The library next to the command (build folder), relative to it (an install that was moved), or where it was
 * installed. */
rp_status rp_cmd_find_agent(char *out, size_t out_size) {
  char self[PATH_MAX];
  ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
  if (length > 0) {
    self[length] = '\0';
    char *slash = strrchr(self, '/');
    if (slash) *slash = '\0';
  } else {
    strcpy(self, ".");
  }
  static const char *const places[] = {"", "/../lib", "/../lib64", "/../" RECVPOOL_LIBDIR};
  for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
    char candidate[PATH_MAX + 128], real[PATH_MAX];
    snprintf(candidate, sizeof candidate, "%s%s/" LIBRARY, self, places[i]);
    if (!realpath(candidate, real)) continue;
    snprintf(out, out_size, "%s", real);
    return RP_OK;
  }
  snprintf(out, out_size, "%s", RECVPOOL_FULL_LIBDIR "/" LIBRARY);
  return access(out, R_OK) == 0 ? RP_OK : RP_ERROR_NOT_FOUND;
}

/* Returns -1 to go on, else the exit status. */
static int attach(void) {
  char library[PATH_MAX];
  const char *present = getenv(INJECTION);
  if (present && strcmp(present, "none") == 0) {
    rp_cmd_error("run", INJECTION " is 'none', which switches injection off: running without the agent");
    return -1;
  }
  if (rp_cmd_find_agent(library, sizeof library) != RP_OK) {
    rp_cmd_error("run", "cannot find " LIBRARY " beside the command, in ../lib or in " RECVPOOL_FULL_LIBDIR
                        "; build or install it");
    return RP_EXIT_FAILURE;
  }
  if (present && present[0] && strcmp(present, library) != 0)
    rp_cmd_error("run", "replacing " INJECTION "=%s: a process can have one injected library", present);
  if (setenv(INJECTION, library, 1) != 0) {
    rp_cmd_error("run", "cannot set " INJECTION ": %s", strerror(errno));
    return RP_EXIT_FAILURE;
  }
  return -1;
}

static bool is_attached(void) {
  const char *library = getenv(INJECTION);
  return library && strcmp(library, "none") != 0;
}

/* The word by which the reports of this run are known; without one they are just not looked at. */
static void name_run(struct rp_config *config) {
  uint64_t random;
  if (getrandom(&random, sizeof random, GRND_NONBLOCK) != sizeof random) return;
  snprintf(config->run, sizeof config->run, "%016llx", (unsigned long long)random);
  if (setenv("RECVPOOL_RUN", config->run, 1) != 0) config->run[0] = '\0';
}

static uint64_t monotonic_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* " DIR/A DIR/B and 3 more", as far as there is room. */
static void list_named(const struct rp__verdict *verdict, const char *dir, char *out, size_t out_size) {
  size_t used = 0, listed = 0;
  out[0] = '\0';
  while (listed < verdict->named_count) {
    size_t need = strlen(dir) + strlen(verdict->named[listed]) + 2;
    if (used + need + 32 >= out_size) break; /* for what follows the list */
    used += (size_t)snprintf(out + used, out_size - used, " %s/%s", dir, verdict->named[listed++]);
  }
  if (listed == 0)
    snprintf(out, out_size, " %s", dir);
  else if (listed < verdict->violating)
    snprintf(out + used, out_size - used, " and %zu more", verdict->violating - listed);
}

static void say_violations(const struct rp_config *config, const struct rp__verdict *verdict) {
  char reports[PATH_MAX + 1024];
  list_named(verdict, config->report_dir, reports, sizeof reports);
  rp_cmd_error("run", "memory was reused unsafely, %llu times in %zu process%s; see recvpool report%s",
               (unsigned long long)verdict->violations, verdict->violating,
               verdict->violating == 1 ? "" : "es", reports);
}

/* NULL: no signal has that number. */
static const char *signal_text(int number) {
  return number > 0 && number <= SIGRTMAX ? strsignal(number) : NULL;
}

/* A command that was ended leaves its reports as they were last written: nothing in the job catches signals
 * for that. */
static void say_end(const struct rp_config *config, const struct rp__verdict *verdict, int status,
                    int ended_by) {
  char end[128] = "", reports[PATH_MAX + 256] = "", until[160];
  bool as_signal = !ended_by && verdict->unfinished && status > 128 && signal_text(status - 128);
  if (ended_by)
    snprintf(end, sizeof end, "the command was ended by signal %d (%s)", ended_by, signal_text(ended_by));
  else if (as_signal) /* as shells and launchers pass it on */
    snprintf(end, sizeof end, "the command ended with status %d, as by signal %d (%s)", status, status - 128,
             signal_text(status - 128));
  if (verdict->unfinished)
    snprintf(reports, sizeof reports,
             "%s%zu of %zu processes left no final report, the last is from %s: recvpool report %s",
             end[0] ? "; " : "", verdict->unfinished, verdict->processes,
             rp__format_end(verdict->steps_least, verdict->steps_most, verdict->first_seconds,
                            verdict->last_seconds, until, sizeof until),
             config->report_dir);
  if (end[0] || reports[0]) rp_cmd_error("run", "%s%s", end, reports);
}

/* `status` is the command's; a failure of its own comes first. */
static int judge(const struct rp_config *config, uint64_t since_ns, int status, int ended_by) {
  struct rp__verdict verdict = {0};
  bool enforces = config->mode == RP_MODE_ENFORCE;
  if (config->run[0] && (enforces || status))
    rp__run_verdict(config->report_dir, config->run, since_ns, &verdict);
  if (status) say_end(config, &verdict, status, ended_by);
  if (enforces && verdict.violating) {
    say_violations(config, &verdict);
    if (!status) status = RP_EXIT_VIOLATIONS;
  }
  rp__run_verdict_fini(&verdict);
  return status;
}

int rp_cmd_run(int argc, char **argv) {
  static struct rp_config config;
  int status = take_options(argc, argv, &config);
  if (status >= 0) return status;
  if (optind >= argc) {
    rp_cmd_error("run", "there is no command to run; write it after --: recvpool run -- COMMAND");
    return RP_EXIT_USAGE;
  }
  status = check(&config);
  if (status < 0) status = attach();
  if (status >= 0) return status;
  config.run[0] = '\0';
  if (is_attached()) name_run(&config);
  uint64_t since_ns = monotonic_ns();
  int ended_by, ended = rp_cmd_spawn(argv + optind, &ended_by);
  return judge(&config, since_ns, ended, ended_by);
}
