/* The report file: replaced as a whole or not at all, nothing left behind, and the program is never harmed by
 * it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/report.h"

static char folder[] = "/tmp/recvpool-test-XXXXXX";
static char reports[64];

static struct rp_report make_report(const char *state) {
  return (struct rp_report){
      .mode = "observe", .state = state, .process = {.host = "h", .pid = 5, .rank = -1}};
}

static int make_folder(void **state) {
  (void)state;
  strcpy(folder + sizeof folder - 7, "XXXXXX");
  if (!mkdtemp(folder)) return -1;
  snprintf(reports, sizeof reports, "%s/a/b", folder);
  return 0;
}

static int remove_folder(void **state) {
  (void)state;
  char command[128];
  snprintf(command, sizeof command, "rm -rf %s", folder);
  return system(command);
}

static size_t count_entries(const char *dir) {
  size_t count = 0;
  DIR *open_dir = opendir(dir);
  if (!open_dir) return 0;
  while (readdir(open_dir))
    count++;
  closedir(open_dir);
  return count - 2; /* . and .. */
}

static const char *read_state(const char *name, char *out, size_t size) {
  char path[128];
  snprintf(path, sizeof path, "%s/%s", reports, name);
  json_t *json = json_load_file(path, 0, NULL);
  const char *text = json_string_value(json_object_get(json, "state"));
  snprintf(out, size, "%s", text ? text : "(none)");
  json_decref(json);
  return out;
}

static void writes_and_replaces(void **state) {
  (void)state;
  char text[32];
  struct rp_report first = make_report("running"), second = make_report("finished");
  assert_int_equal(rp_report_write(&first, reports, "x.json"), RP_OK);
  assert_string_equal(read_state("x.json", text, sizeof text), "running");
  assert_int_equal(rp_report_write(&second, reports, "x.json"), RP_OK);
  assert_string_equal(read_state("x.json", text, sizeof text), "finished");
  assert_int_equal(count_entries(reports), 1);
}

static void folder_that_is_a_file(void **state) {
  (void)state;
  char path[128];
  snprintf(path, sizeof path, "%s/a", folder);
  fclose(fopen(path, "w"));
  struct rp_report report = make_report("running");
  errno = 0;
  assert_int_equal(rp_report_write(&report, reports, "x.json"), RP_ERROR_IO);
  assert_int_equal(errno, ENOTDIR);
  assert_int_equal(rp_report_write(&report, "", "x.json"), RP_ERROR_IO);
  assert_int_equal(rp_report_write(&report, "/proc/none", "x.json"), RP_ERROR_IO);
}

/* The file size limit stands for a full disk: the write fails half way, and with a signal on top. */
static void full_disk_keeps_the_old_file(void **state) {
  (void)state;
  struct rlimit before, small = {.rlim_cur = 100};
  struct rp_report first = make_report("running"), second = make_report("finished");
  char text[32];
  assert_int_equal(rp_report_write(&first, reports, "x.json"), RP_OK);
  assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
  small.rlim_max = before.rlim_max;
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
  rp_status status = rp_report_write(&second, reports, "x.json");
  int error = errno;
  setrlimit(RLIMIT_FSIZE, &before);
  assert_int_equal(status, RP_ERROR_IO);
  assert_int_equal(error, EFBIG);
  assert_string_equal(read_state("x.json", text, sizeof text), "running");
  assert_int_equal(count_entries(reports), 1);
  sigset_t mask;
  pthread_sigmask(SIG_BLOCK, NULL, &mask);
  assert_int_equal(sigismember(&mask, SIGXFSZ), 0);
}

static void rename_failure_leaves_nothing(void **state) {
  (void)state;
  char target[128];
  struct rp_report report = make_report("running");
  assert_int_equal(rp_report_write(&report, reports, "first.json"), RP_OK);
  snprintf(target, sizeof target, "%s/x.json", reports);
  assert_int_equal(mkdir(target, 0755), 0);
  assert_int_equal(rp_report_write(&report, reports, "x.json"), RP_ERROR_IO);
  assert_int_equal(count_entries(reports), 2);
}

static void leftover_temporary_file_is_no_obstacle(void **state) {
  (void)state;
  char path[128], victim[128], text[32];
  struct rp_report report = make_report("finished");
  assert_int_equal(rp_report_write(&report, reports, "first.json"), RP_OK);
  snprintf(path, sizeof path, "%s/.x.json.tmp", reports);
  snprintf(victim, sizeof victim, "%s/victim", folder);
  assert_int_equal(symlink(victim, path), 0);
  assert_int_equal(rp_report_write(&report, reports, "x.json"), RP_OK);
  assert_string_equal(read_state("x.json", text, sizeof text), "finished");
  assert_int_not_equal(access(victim, F_OK), 0); /* the link was not followed */
}

static void names(void **state) {
  (void)state;
  char name[512];
  struct rp_process_info process = {.host = "../n ode\xc3\xa9", .pid = 7, .start_monotonic_ns = 99};
  rp_report_file_name(&process, name, sizeof name);
  assert_string_equal(name, "_._n_ode__-7-99.json");
  process.host[0] = '\0';
  rp_report_file_name(&process, name, sizeof name);
  assert_string_equal(name, "host-7-99.json");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(writes_and_replaces, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(folder_that_is_a_file, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(full_disk_keeps_the_old_file, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(rename_failure_leaves_nothing, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(leftover_temporary_file_is_no_obstacle, make_folder, remove_folder),
      cmocka_unit_test(names),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
