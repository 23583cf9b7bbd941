/* `recvpool disable`: puts the kill switch of one process into its report folder. What the process would not
 * believe, or could do nothing with, is refused here with the reason. */
#include "agent/command.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/config.h"
#include "agent/report.h"
#include "agent/switch_off.h"

static const struct option options[] = {
    {"report-dir", required_argument, NULL, 'r'}, {"help", no_argument, NULL, 'h'}, {NULL, 0, NULL, 0}};

static int print_help(void) {
  puts("Usage: recvpool disable [--report-dir DIR] PID\n"
       "Ends the sharing of memory in process PID of this machine, which runs in mode enforce: at its next "
       "step\n"
       "each receive buffer has memory of its own again. The job goes on.\n\n"
       "  --report-dir DIR  where the process writes its report [RECVPOOL_REPORT_DIR, else the default of "
       "run]\n"
       "  --help            this text\n\n"
       "The same by hand: a file HOST-PID-START.disable beside the report HOST-PID-START.json, or one named\n"
       "'disable' for all processes that write there. It must belong to the user of the job or to root.");
  return fflush(stdout) == 0 ? 0 : RP_EXIT_FAILURE;
}

/* The newest report of the process: a folder may hold those of earlier processes with the same number. */
struct found {
  char name[NAME_MAX + 1];
  uint64_t start_ns;
  bool any;
};

/* `prefix`: "HOST-PID-". */
static void consider(struct found *found, const char *prefix, const char *name) {
  size_t length = strlen(prefix);
  char *end;
  if (strncmp(name, prefix, length) != 0 || name[length] < '0' || name[length] > '9') return;
  errno = 0;
  unsigned long long start_ns = strtoull(name + length, &end, 10);
  if (errno || strcmp(end, ".json") != 0 || (found->any && start_ns <= found->start_ns)) return;
  found->any = true;
  found->start_ns = start_ns;
  snprintf(found->name, sizeof found->name, "%s", name);
}

static int find_report(const char *dir, pid_t pid, struct found *found) {
  struct rp_process_info process = {.pid = pid};
  char prefix[512];
  DIR *folder = opendir(dir);
  if (!folder) {
    rp_cmd_error("disable", "cannot read the report folder %s: %s; name it with --report-dir", dir,
                 strerror(errno));
    return RP_EXIT_FAILURE;
  }
  if (gethostname(process.host, sizeof process.host - 1) != 0) strcpy(process.host, "localhost");
  rp_report_file_name(&process, prefix, sizeof prefix);
  prefix[strlen(prefix) - strlen("0.json")] = '\0'; /* its start is 0 */
  *found = (struct found){.any = false};
  const struct dirent *entry;
  while ((entry = readdir(folder)) != NULL)
    consider(found, prefix, entry->d_name);
  (void)closedir(folder);
  if (found->any) return 0;
  if (kill(pid, 0) != 0 && errno == ESRCH)
    rp_cmd_error("disable", "there is no process %ld", (long)pid);
  else
    rp_cmd_error(
        "disable",
        "process %ld has no agent: %s holds no report of it; name the folder of the job with --report-dir",
        (long)pid, dir);
  return RP_EXIT_FAILURE;
}

/* Why the switch would change nothing, or NULL. */
static const char *pointless(const json_t *report, pid_t pid) {
  const char *schema = json_string_value(json_object_get(report, "schema"));
  const char *mode = json_string_value(json_object_get(report, "mode"));
  const char *state = json_string_value(json_object_get(report, "state"));
  if (!schema || strcmp(schema, RP_REPORT_SCHEMA) != 0) return "its report cannot be read";
  if (!mode || strcmp(mode, "enforce") != 0) return "it does not run in mode enforce, so it shares no memory";
  if (state && strcmp(state, "finished") == 0) return "it has finished";
  if (kill(pid, 0) != 0 && errno == ESRCH) return "it has ended";
  return NULL;
}

static int check_report(const char *path, pid_t pid) {
  struct stat info;
  json_t *report = json_load_file(path, 0, NULL);
  const char *why = pointless(report, pid);
  json_decref(report);
  if (why) {
    rp_cmd_error("disable", "nothing to do for process %ld: %s", (long)pid, why);
    return RP_EXIT_FAILURE;
  }
  if (geteuid() == 0 || stat(path, &info) != 0 || info.st_uid == geteuid()) return 0;
  rp_cmd_error("disable", "process %ld belongs to user %lu and obeys only that user and root", (long)pid,
               (unsigned long)info.st_uid);
  return RP_EXIT_FAILURE;
}

static int put_switch(const char *dir, const char *report_name, pid_t pid) {
  char name[NAME_MAX + 1], path[PATH_MAX + NAME_MAX + 2], why[256];
  rp_switch_off_name(report_name, name, sizeof name);
  snprintf(path, sizeof path, "%s/%s", dir, name);
  int file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
  if (file < 0 && errno != EEXIST) {
    rp_cmd_error("disable", "cannot create %s: %s", path, strerror(errno));
    return RP_EXIT_FAILURE;
  }
  bool made = file >= 0;
  if (made) (void)close(file);
  enum rp_switch_off seen = rp_switch_off_look(dir, report_name, name, sizeof name, why, sizeof why);
  if (seen == RP_SWITCH_OFF_YES) {
    printf("Process %ld is told to give each receive buffer memory of its own; recvpool report %s/%s shows "
           "when it "
           "has.\n",
           (long)pid, dir, report_name);
    return 0;
  }
  if (made) (void)unlink(path);
  rp_cmd_error("disable", "%s", seen == RP_SWITCH_OFF_REFUSED ? why : "the file was taken away at once");
  return RP_EXIT_FAILURE;
}

static int disable(const char *dir, pid_t pid) {
  struct found found;
  char path[PATH_MAX + NAME_MAX + 2];
  int status = find_report(dir, pid, &found);
  if (status) return status;
  snprintf(path, sizeof path, "%s/%s", dir, found.name);
  status = check_report(path, pid);
  return status ? status : put_switch(dir, found.name, pid);
}

static bool take_pid(const char *text, pid_t *out) {
  char *end;
  errno = 0;
  long value = strtol(text, &end, 10);
  *out = (pid_t)value;
  return text[0] >= '1' && text[0] <= '9' && errno == 0 && *end == '\0' && value <= INT_MAX;
}

int rp_cmd_disable(int argc, char **argv) {
  static struct rp_config config;
  char ignored[16], message[256];
  pid_t pid;
  rp_config_read_environment(&config, ignored, sizeof ignored);
  for (;;) {
    int before = optind;
    int option = getopt_long(argc, argv, ":h", options, NULL);
    if (option == -1) break;
    if (option == 'h') return print_help();
    if (option != 'r') return rp_cmd_bad_option("disable", option, argv, before);
    if (rp_config_set(&config, "RECVPOOL_REPORT_DIR", optarg, message, sizeof message) == RP_OK) continue;
    rp_cmd_error("disable", "--report-dir %s, not '%s'", message, optarg);
    return RP_EXIT_USAGE;
  }
  if (argc - optind != 1 || !take_pid(argv[optind], &pid)) {
    rp_cmd_error("disable", "one process number is needed: recvpool disable [--report-dir DIR] PID");
    return RP_EXIT_USAGE;
  }
  int status = disable(config.report_dir, pid);
  if (fflush(stdout) == 0) return status;
  rp_cmd_error("disable", "cannot write to stdout");
  return RP_EXIT_FAILURE;
}
