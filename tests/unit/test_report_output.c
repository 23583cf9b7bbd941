/* A file that is whole or not there: also where a signal ends the process that writes it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/cmd_report_output.h"

static char folder[] = "/tmp/recvpool-test-XXXXXX";
static char path[64];

static int make_folder(void **state) {
  (void)state;
  strcpy(folder + sizeof folder - 7, "XXXXXX");
  if (!mkdtemp(folder)) return -1;
  snprintf(path, sizeof path, "%s/file", folder);
  return 0;
}

static int remove_folder(void **state) {
  (void)state;
  char command[128];
  snprintf(command, sizeof command, "rm -rf %s", folder);
  return system(command);
}

static size_t count_entries(void) {
  size_t count = 0;
  DIR *open_dir = opendir(folder);
  assert_non_null(open_dir);
  while (readdir(open_dir))
    count++;
  closedir(open_dir);
  return count - 2; /* . and .. */
}

/* What a child did that began to write and then was sent `signals`, the first with a handler `own`. */
static int ended_by(const int *signals, size_t count, void (*own)(int)) {
  pid_t child = fork();
  if (child == 0) {
    struct rp__output output;
    for (size_t i = 0; i < count; i++)
      (void)signal(signals[i], SIG_DFL);
    if (!rp__output_begin(&output, path)) _exit(90);
    fputs("begun", output.file);
    if (count_entries() != 1) _exit(91);
    if (own) (void)signal(signals[0], own);
    for (size_t i = 0; i < count; i++)
      (void)raise(signals[i]);
    _exit(rp__output_end(&output, true) ? 0 : 92);
  }
  int status;
  assert_int_equal(waitpid(child, &status, 0), child);
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

static void test_written(void **state) {
  (void)state;
  assert_int_equal(ended_by(NULL, 0, NULL), 0);
  assert_int_equal(access(path, F_OK), 0);
  assert_int_equal(count_entries(), 1);
}

static void test_a_signal_leaves_nothing(void **state) {
  (void)state;
  static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
  for (size_t i = 0; i < 3; i++) {
    assert_int_equal(ended_by(&signals[i], 1, NULL), -signals[i]);
    assert_int_equal(count_entries(), 0);
  }
}

/* Under nohup a hang-up is ignored, and stays so. */
static void test_what_is_ignored_stays_ignored(void **state) {
  (void)state;
  static const int signals[] = {SIGHUP};
  assert_int_equal(ended_by(signals, 1, SIG_IGN), 0);
  assert_int_equal(access(path, F_OK), 0);
}

static void test_the_second_signal(void **state) {
  (void)state;
  static const int signals[] = {SIGINT, SIGINT};
  assert_int_equal(ended_by(signals, 2, rp__output_give_up_on), -SIGINT);
  assert_int_equal(count_entries(), 0);
  assert_int_equal(ended_by(signals, 1, rp__output_give_up_on), 0);
  assert_int_equal(count_entries(), 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_written, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(test_a_signal_leaves_nothing, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(test_what_is_ignored_stays_ignored, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(test_the_second_signal, make_folder, remove_folder),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
