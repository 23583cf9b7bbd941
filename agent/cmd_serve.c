/* `recvpool serve`: options, and waiting for the signal that ends it. */
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/command.h"
#include "agent/config.h"
#include "agent/serve.h"

enum { OPTION_LISTEN = 256, OPTION_DIR, OPTION_REMOTE, OPTION_KEEP, OPTION_WEB, OPTION_HOST };

static const struct option options[] = {{"listen", required_argument, NULL, OPTION_LISTEN},
                                        {"host-name", required_argument, NULL, OPTION_HOST},
                                        {"report-dir", required_argument, NULL, OPTION_DIR},
                                        {"allow-remote", no_argument, NULL, OPTION_REMOTE},
                                        {"keep", required_argument, NULL, OPTION_KEEP},
                                        {"web-dir", required_argument, NULL, OPTION_WEB},
                                        {"help", no_argument, NULL, 'h'},
                                        {NULL, 0, NULL, 0}};

#define LISTEN_DEFAULT "127.0.0.1:9750"
#define KEEP_DEFAULT_SECONDS 600

static int print_help(const char *dir) {
  printf(
      "Usage: recvpool serve [OPTION...]\n"
      "Serves the reports of a folder until it is interrupted:\n"
      "  /                      page for people\n"
      "  /api/v1/processes      one row per process; /api/v1/processes/ID is its whole report\n"
      "  /api/v1/job            the jobs they form, with totals\n"
      "  /metrics               for Prometheus, also as OpenMetrics\n"
      "  /healthz               200 while the folder can be read\n\n"
      "  --listen ADDRESS:PORT  where [" LISTEN_DEFAULT "]; port 0: any free one\n"
      "  --allow-remote         needed for an address that other machines can reach\n"
      "  --host-name NAME       also answer requests for this name or address, as a browser or Prometheus\n"
      "                         has it; may be given more than once. Known without it: localhost, loopback\n"
      "                         addresses, the address listened at, and every address if it listens at all\n"
      "  --report-dir DIR       folder [%s]\n"
      "  --keep SECONDS         processes are shown this long after their last report [%d]\n"
      "  --web-dir DIR          other files for the page\n"
      "  --help                 this text\n\n"
      "Exit status: 0 when it is interrupted; 1 where it cannot listen or serve; 2 for a wrong option, also\n"
      "a DIR that is no folder. One that is not there yet, or not readable, is said and waited for.\n",
      dir, KEEP_DEFAULT_SECONDS);
  return fflush(stdout) == 0 ? 0 : RP_EXIT_FAILURE;
}

static bool parse_seconds(const char *text, uint64_t *out) {
  char *end;
  errno = 0;
  unsigned long long value = strtoull(text, &end, 10);
  if (*text < '0' || *text > '9' || *end || errno || value > INT32_MAX) return false;
  *out = value;
  return true;
}

/* -1 to go on, else the exit status. */
static int take_host_name(struct rp_serve_options *with, const char *name) {
  if (!rp__serve_is_host_name(name)) {
    rp_cmd_error("serve", "--host-name '%s': must be a name or an address, without port", name);
    return RP_EXIT_USAGE;
  }
  if (with->host_name_count == RP_SERVE_HOST_NAMES) {
    rp_cmd_error("serve", "--host-name '%s': there can be %d at most", name, RP_SERVE_HOST_NAMES);
    return RP_EXIT_USAGE;
  }
  with->host_names[with->host_name_count++] = name;
  return -1;
}

/* What is no folder never becomes one by itself. -1 to go on, else the exit status. */
static int check_folder(const char *dir) {
  if (rp_serve_folder_error(dir) != ENOTDIR) return -1;
  rp_cmd_error("serve", "--report-dir '%s': is no folder; name the one that the job reports to", dir);
  return RP_EXIT_USAGE;
}

/* A service may be started before the job that makes the folder, and rights can be given later. */
static void warn_of_folder(const char *dir) {
  char problem[128];
  int error = rp_serve_folder_error(dir);
  if (error)
    rp_cmd_error("serve", "'%s': %s; nothing is shown until it can be read (is --report-dir right?)", dir,
                 rp_serve_folder_problem(error, problem, sizeof problem));
}

static int serve(const struct rp_serve_options *with) {
  struct rp_serve_store *store = NULL;
  struct rp_serve_http *http = NULL;
  char message[PATH_MAX + 256];
  sigset_t wanted;
  int number = 0;
  sigemptyset(&wanted);
  sigaddset(&wanted, SIGINT);
  sigaddset(&wanted, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &wanted, NULL); /* before there are threads */
  (void)signal(SIGPIPE, SIG_IGN);
  rp_status status = rp_serve_store_start(with, &store);
  if (status) {
    rp_cmd_error("serve", "%s", rp_status_text(status));
    return RP_EXIT_FAILURE;
  }
  status = rp_serve_http_start(with, store, &http, message, sizeof message);
  if (status) {
    rp_cmd_error("serve", "%s", message);
    rp_serve_store_stop(store);
    return status == RP_ERROR_INVALID ? RP_EXIT_USAGE : RP_EXIT_FAILURE;
  }
  if (message[0]) rp_cmd_error("serve", "%s", message);
  warn_of_folder(with->report_dir);
  printf("recvpool serve: reports of %s at %s\n", with->report_dir, rp_serve_http_url(http));
  (void)fflush(stdout);
  (void)sigwait(&wanted, &number);
  rp_serve_http_stop(http);
  rp_serve_store_stop(store);
  return 0;
}

int rp_cmd_serve(int argc, char **argv) {
  char dir[4096];
  rp_config_default_report_dir(dir, sizeof dir);
  struct rp_serve_options with = {
      .listen = LISTEN_DEFAULT, .report_dir = dir, .keep_seconds = KEEP_DEFAULT_SECONDS};
  for (;;) {
    int before = optind;
    int option = getopt_long(argc, argv, ":h", options, NULL);
    if (option == -1) break;
    switch (option) {
    case OPTION_LISTEN:
      with.listen = optarg;
      break;
    case OPTION_HOST:
      if (take_host_name(&with, optarg) < 0) break;
      return RP_EXIT_USAGE;
    case OPTION_DIR:
      with.report_dir = optarg;
      break;
    case OPTION_REMOTE:
      with.allow_remote = true;
      break;
    case OPTION_WEB:
      with.web_dir = optarg;
      break;
    case OPTION_KEEP:
      if (parse_seconds(optarg, &with.keep_seconds)) break;
      rp_cmd_error("serve", "--keep '%s': must be whole seconds, 0 to %d", optarg, INT32_MAX);
      return RP_EXIT_USAGE;
    case 'h':
      return print_help(dir);
    default:
      return rp_cmd_bad_option("serve", option, argv, before);
    }
  }
  if (optind < argc) {
    rp_cmd_error("serve", "'%s': takes no argument; a folder is named by --report-dir", argv[optind]);
    return RP_EXIT_USAGE;
  }
  int status = check_folder(with.report_dir);
  return status < 0 ? serve(&with) : status;
}
