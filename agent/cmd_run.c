/* `recvpool run`: options become RECVPOOL_* variables, librecvpool.so becomes CUDA_INJECTION64_PATH, then the
 * command is started. Prints nothing on stdout: that belongs to the command. */
#include "agent/command.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/config.h"

#define LIBRARY "librecvpool.so"
#define INJECTION "CUDA_INJECTION64_PATH"

/* Every option but --help and --verbose is a variable of the table under another name. */
static const struct option options[] = {
    {"mode", required_argument, NULL, 'm'},
    {"report-dir", required_argument, NULL, 'r'},
    {"interval", required_argument, NULL, 'i'},
    {"min-bytes", required_argument, NULL, 'b'},
    {"slack", required_argument, NULL, 's'},
    {"cupti", required_argument, NULL, 'c'},
    {"verbose", no_argument, NULL, 'v'},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

static const char *variable_of(int option) {
  switch (option) {
  case 'm':
    return "RECVPOOL_MODE";
  case 'r':
    return "RECVPOOL_REPORT_DIR";
  case 'i':
    return "RECVPOOL_INTERVAL";
  case 'b':
    return "RECVPOOL_MIN_BYTES";
  case 's':
    return "RECVPOOL_SLACK";
  case 'c':
    return "RECVPOOL_CUPTI";
  default:
    return "RECVPOOL_VERBOSE";
  }
}

static const struct rp_config_variable *row_of(int option) {
  const struct rp_config_variable *row = NULL;
  for (size_t i = 0; (row = rp_config_variable(i)) != NULL; i++)
    if (strcmp(row->name, variable_of(option)) == 0) break;
  return row;
}

static int print_help(void) {
  puts(
      "Usage: recvpool run [OPTION...] -- COMMAND [ARGUMENT...]\n"
      "Runs COMMAND with the agent attached and ends with its exit status (128 + N if signal N ended it).\n");
  for (const struct option *option = options; option->name; option++) {
    if (option->val == 'h') continue;
    const struct rp_config_variable *row = row_of(option->val);
    char shown[64];
    snprintf(shown, sizeof shown, "--%s%s%s", option->name, option->has_arg ? " " : "",
             option->has_arg ? row->values : "");
    if (option->has_arg)
      printf("  %-32s %s [%s]\n", shown, row->help, row->default_text);
    else
      printf("  %-32s %s\n", shown, row->help);
  }
  puts("  --help                           this text");
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
    rp_cmd_error(subcommand,
                 "there is no option %s; recvpool %s --help lists them (put -- before the command)", text,
                 subcommand);
  return RP_EXIT_USAGE;
}

/* Takes the options into the environment. Returns -1 to go on, else the exit status. */
static int take_options(int argc, char **argv) {
  struct rp_config config;
  rp_config_defaults(&config);
  for (;;) {
    int before = optind;
    int option = getopt_long(argc, argv, "+:h", options, NULL);
    if (option == -1) return -1;
    if (option == 'h') return print_help();
    if (option == '?' || option == ':') return rp_cmd_bad_option("run", option, argv, before);
    const char *value = option == 'v' ? "1" : optarg;
    char message[256];
    if (rp_config_set(&config, variable_of(option), value, message, sizeof message) != RP_OK) {
      const struct option *named = options;
      while (named->val != option)
        named++;
      rp_cmd_error("run", "--%s %s, not '%s'", named->name, message, value);
      return RP_EXIT_USAGE;
    }
    if (option == 'r') value = config.report_dir; /* absolute: the command may change its working directory */
    if (setenv(variable_of(option), value, 1) != 0) {
      rp_cmd_error("run", "cannot set %s: %s", variable_of(option), strerror(errno));
      return RP_EXIT_FAILURE;
    }
  }
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

int rp_cmd_run(int argc, char **argv) {
  int status = take_options(argc, argv);
  if (status >= 0) return status;
  if (optind >= argc) {
    rp_cmd_error("run", "there is no command to run; write it after --: recvpool run -- COMMAND");
    return RP_EXIT_USAGE;
  }
  status = attach();
  return status >= 0 ? status : rp_cmd_spawn(argv + optind);
}
