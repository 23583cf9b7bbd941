/* The recvpool command: picks the subcommand. */
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "agent/command.h"
#include "agent/config.h"

static const struct {
  const char *name;
  int (*run)(int argc, char **argv);
  const char *help;
} subcommands[] = {
    {"run", rp_cmd_run, "run a training command with the agent attached"},
    {"report", rp_cmd_report, "show what the reports of a job say"},
    {"disable", rp_cmd_disable, "end the sharing of memory in a running process"},
#ifdef RECVPOOL_HAVE_SERVE
    {"serve", rp_cmd_serve, "show reports in a browser, and as metrics for Prometheus"},
#endif
    {"doctor", rp_cmd_doctor, "say what works on this machine, and the mend for what does not"},
    {"attach", rp_cmd_attach, "observe processes that run already, from outside"},
#ifdef RECVPOOL_HAVE_PLAN
    {"plan", rp_cmd_plan, "plan pools from a schedule, without running anything"},
#endif
};
#define SUBCOMMAND_COUNT (sizeof subcommands / sizeof subcommands[0])

static void print_help(FILE *out) {
  fprintf(out,
          "Usage: recvpool SUBCOMMAND [OPTION...]\n"
          "Measures the receive buffers of pipeline-parallel training and what pooling them would save,\n"
          "and shares their memory where it is asked to.\n\n");
  for (size_t i = 0; i < SUBCOMMAND_COUNT; i++)
    fprintf(out, "  %-8s %s\n", subcommands[i].name, subcommands[i].help);
  fprintf(
      out,
      "\n  recvpool SUBCOMMAND --help tells the options of one; recvpool --version tells the version.\n"
      "\nVariables, for attaching without `recvpool run` (CUDA_INJECTION64_PATH=/path/to/librecvpool.so):\n");
  const struct rp_config_variable *row;
  for (size_t i = 0; (row = rp_config_variable(i)) != NULL; i++)
    fprintf(out, "  %-20s %s [%s]\n  %20s %s\n", row->name, row->values, row->default_text, "", row->help);
}

void rp_cmd_plain(char *text) {
  for (unsigned char *c = (unsigned char *)text; *c; c++) {
    bool latin = c[0] == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0;
    if (latin) c[1] = '?';
    if (latin || *c < 0x20 || *c == 0x7f) *c = '?';
  }
}

void rp_cmd_error(const char *subcommand, const char *format, ...) {
  char text[2 * PATH_MAX];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  rp_cmd_plain(text);
  fprintf(stderr, "recvpool %s: %s\n", subcommand, text);
}

/* Where a standard stream is closed, the next file to be opened would take its place, and what is said would
 * be written into that. What stands there instead can be neither read nor written, and is closed for whatever
 * is started from here. */
static void keep_standard_places(void) {
  for (int place = STDIN_FILENO; place <= STDERR_FILENO; place++)
    if (fcntl(place, F_GETFD) < 0) (void)open("/dev/null", O_PATH | O_CLOEXEC);
}

int main(int argc, char **argv) {
  keep_standard_places();
  const char *name = argc > 1 ? argv[1] : "";
  for (size_t i = 0; i < SUBCOMMAND_COUNT; i++)
    if (strcmp(name, subcommands[i].name) == 0) return subcommands[i].run(argc - 1, argv + 1);
  if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
    print_help(stdout);
    return fflush(stdout) == 0 ? 0 : RP_EXIT_FAILURE;
  }
  if (strcmp(name, "--version") == 0) {
    puts("recvpool " RECVPOOL_VERSION);
    return fflush(stdout) == 0 ? 0 : RP_EXIT_FAILURE;
  }
  if (argc > 1)
    fprintf(stderr, "recvpool: there is no %s '%s'; recvpool --help lists the subcommands\n",
            name[0] == '-' ? "option" : "subcommand", name);
  else
    fputs("recvpool: a subcommand is needed; recvpool --help lists them\n", stderr);
  return RP_EXIT_USAGE;
}
