/* `recvpool doctor`: what works on this machine, what does not, and the mend. */
#include "agent/doctor.h"

#include <getopt.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/command.h"
#include "agent/config.h"

static const struct option options[] = {
    {"json", no_argument, NULL, 'j'},
    {"timeout", required_argument, NULL, 't'},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

/* Initialising a driver takes seconds for each device that nobody else holds open. */
#define ANSWER_SECONDS 60u
#define MOST_SECONDS 3600u

struct rp_doctor_finding *rp_doctor_add(struct rp_doctor *doctor, const char *name,
                                        enum rp_doctor_status status, bool for_attach, const char *format,
                                        ...) {
  size_t place = doctor->count < RP_DOCTOR_FINDINGS ? doctor->count++ : RP_DOCTOR_FINDINGS - 1;
  struct rp_doctor_finding *finding = &doctor->findings[place];
  *finding = (struct rp_doctor_finding){.name = name, .status = status, .for_attach = for_attach};
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(finding->text, sizeof finding->text, format, arguments);
  va_end(arguments);
  rp_cmd_plain(finding->text);
  return finding;
}

void rp_doctor_mend(struct rp_doctor_finding *finding, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(finding->mend, sizeof finding->mend, format, arguments);
  va_end(arguments);
}

/* ---- recvpool's own ---- */

static void check_agent(struct rp_doctor *doctor) {
  char library[PATH_MAX];
  if (rp_cmd_find_agent(library, sizeof library) == RP_OK)
    rp_doctor_add(doctor, "agent", RP_DOCTOR_OK, false, "%s", library);
  else
    rp_doctor_mend(rp_doctor_add(doctor, "agent", RP_DOCTOR_FAILURE, false,
                                 "librecvpool.so is neither beside the command nor where it was installed"),
                   "build or install it again");
}

/* The folder, or the first one above it that is there. */
static void check_reports(struct rp_doctor *doctor) {
  char dir[4096], at[4096], *slash;
  const char *named = getenv("RECVPOOL_REPORT_DIR");
  if (named && named[0])
    snprintf(dir, sizeof dir, "%s", named);
  else
    rp_config_default_report_dir(dir, sizeof dir);
  snprintf(at, sizeof at, "%s", dir);
  while (access(at, F_OK) != 0 && (slash = strrchr(at, '/')) && slash != at)
    *slash = '\0';
  if (access(at, W_OK | X_OK) == 0)
    rp_doctor_add(doctor, "reports", RP_DOCTOR_OK, false, "reports go to %s", dir);
  else
    rp_doctor_mend(rp_doctor_add(doctor, "reports", RP_DOCTOR_WARNING, false,
                                 "reports would go to %s, which cannot be written", dir),
                   "name a folder with --report-dir");
}

#ifdef RECVPOOL_ATTACH_MISSING
void rp_doctor_kernel(struct rp_doctor *doctor) {
  rp_doctor_mend(rp_doctor_add(doctor, "attach", RP_DOCTOR_FAILURE, true,
                               "this recvpool was built without attach: " RECVPOOL_ATTACH_MISSING
                               " not found"),
                 "install clang, bpftool, libbpf-dev and libelf-dev and build again");
}
#endif

/* ---- output ---- */

static bool works(const struct rp_doctor *doctor, bool attach) {
  for (size_t i = 0; i < doctor->count; i++)
    if (doctor->findings[i].for_attach == attach && doctor->findings[i].status == RP_DOCTOR_FAILURE)
      return false;
  return true;
}

static const char *status_name(enum rp_doctor_status status) {
  static const char *const names[] = {"ok", "note", "warning", "failure"};
  return names[status];
}

static void print_half(const struct rp_doctor *doctor, bool attach) {
  for (size_t i = 0; i < doctor->count; i++) {
    const struct rp_doctor_finding *finding = &doctor->findings[i];
    if (finding->for_attach != attach) continue;
    printf("  %-8s %-22s %s\n", status_name(finding->status), finding->name, finding->text);
    if (finding->mend[0]) printf("  %-8s %-22s -> %s\n", "", "", finding->mend);
  }
}

static void print(const struct rp_doctor *doctor) {
  puts("recvpool run (the agent inside a CUDA program):");
  print_half(doctor, false);
  puts("recvpool attach (from outside):");
  print_half(doctor, true);
  printf("=> run: %s; attach: %s\n", works(doctor, false) ? "works here" : "cannot work here",
         works(doctor, true) ? "works here" : "cannot work here");
}

/* A path may be no text; the sentence around it is. */
static json_t *text_json(const char *text) {
  json_t *json = json_string(text);
  char *plain = json ? NULL : strdup(text);
  if (!plain) return json;
  for (char *c = plain; *c; c++)
    if ((unsigned char)*c >= 0x80) *c = '?';
  json = json_string(plain);
  free(plain);
  return json;
}

static int print_json(const struct rp_doctor *doctor) {
  json_t *list = json_array();
  for (size_t i = 0; i < doctor->count; i++) {
    const struct rp_doctor_finding *finding = &doctor->findings[i];
    json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:o, s:o}", "name", finding->name, "concerns",
                                          finding->for_attach ? "attach" : "run", "status",
                                          status_name(finding->status), "text", text_json(finding->text),
                                          "mend", finding->mend[0] ? text_json(finding->mend) : json_null()));
  }
  json_t *root = json_pack("{s:s, s:s, s:s, s:o, s:b, s:b}", "schema", "recvpool.doctor", "schema_version",
                           "1.0", "recvpool", RECVPOOL_VERSION, "findings", list, "run_works",
                           works(doctor, false), "attach_works", works(doctor, true));
  int failed = !root || json_dumpf(root, stdout, JSON_INDENT(1)) != 0 || putchar('\n') == EOF;
  json_decref(root);
  return failed ? RP_EXIT_FAILURE : 0;
}

static int print_help(void) {
  puts("Usage: recvpool doctor [--json]\n"
       "Says what works on this machine and what does not: driver, CUPTI, NCCL, rights, kernel, and the "
       "mend.\n"
       "Ends with status 0 where both `recvpool run` and `recvpool attach` can work, 4 where one cannot.\n\n"
       "  --json             one JSON document on stdout\n"
       "  --timeout SECONDS  how long a library may take to answer [60]\n"
       "  --help             this text");
  return fflush(stdout) == 0 ? 0 : RP_EXIT_FAILURE;
}

static bool take_seconds(const char *text, unsigned *out) {
  char *end;
  unsigned long seconds = strtoul(text, &end, 10);
  if (text[0] < '0' || text[0] > '9' || *end || seconds < 1 || seconds > MOST_SECONDS) {
    rp_cmd_error("doctor", "--timeout must be 1 to %u seconds, not '%s'", MOST_SECONDS, text);
    return false;
  }
  *out = (unsigned)seconds;
  return true;
}

int rp_cmd_doctor(int argc, char **argv) {
  bool json = false;
  unsigned seconds = ANSWER_SECONDS;
  for (;;) {
    int before = optind;
    int option = getopt_long(argc, argv, ":h", options, NULL);
    if (option == -1) break;
    if (option == 'h') return print_help();
    if (option != 'j' && option != 't') return rp_cmd_bad_option("doctor", option, argv, before);
    json |= option == 'j';
    if (option == 't' && !take_seconds(optarg, &seconds)) return RP_EXIT_USAGE;
  }
  if (optind < argc) {
    rp_cmd_error("doctor", "there is an argument too many: '%s'", argv[optind]);
    return RP_EXIT_USAGE;
  }
  struct rp_doctor *doctor = calloc(1, sizeof *doctor);
  if (!doctor) return RP_EXIT_FAILURE;
  doctor->seconds = seconds;
  check_agent(doctor);
  check_reports(doctor);
  rp_doctor_cuda(doctor);
  rp_doctor_kernel(doctor);
  int status = json ? print_json(doctor) : (print(doctor), 0);
  if (fflush(stdout) != 0 || ferror(stdout)) status = RP_EXIT_FAILURE;
  if (status == 0 && !(works(doctor, false) && works(doctor, true))) status = RP_EXIT_UNAVAILABLE;
  free(doctor);
  return status;
}
