/* The kill switch is believed only where nobody but the job's user and root can have put it there. Part of it
 * needs root, to make files of other users. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/switch_off.h"

#define REPORT "host-12-345.json"
#define OWN "host-12-345.disable"
#define SOMEBODY 65534

static char folder[64], own[128], all[128];

static int make_folder(void **state) {
  (void)state;
  strcpy(folder, "/tmp/recvpool-off-XXXXXX");
  if (!mkdtemp(folder)) return -1;
  snprintf(own, sizeof own, "%s/" OWN, folder);
  snprintf(all, sizeof all, "%s/disable", folder);
  return 0;
}

static int remove_folder(void **state) {
  (void)state;
  char command[128];
  snprintf(command, sizeof command, "rm -rf %s", folder);
  return system(command);
}

static void touch(const char *path) {
  int file = open(path, O_CREAT | O_WRONLY, 0600);
  assert_true(file >= 0);
  close(file);
}

/* Looks, and compares; `says` is part of the reason. */
static void expect(enum rp_switch_off expected, const char *name, const char *says) {
  char file[64] = "", why[256] = "";
  enum rp_switch_off got = rp_switch_off_look(folder, REPORT, file, sizeof file, why, sizeof why);
  if (got != expected || !strstr(why, says)) print_error("%d '%s' '%s'\n", (int)got, file, why);
  assert_int_equal(got, expected);
  assert_string_equal(file, name);
  assert_non_null(strstr(why, says));
  assert_null(strchr(why, '\n'));
}

static void names(void **state) {
  (void)state;
  static const char *const cases[][2] = {
      {"a-1-2.json", "a-1-2.disable"}, {"a.b-1-2.json", "a.b-1-2.disable"}, {"plain", "plain.disable"}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char out[64];
    rp_switch_off_name(cases[i][0], out, sizeof out);
    assert_string_equal(out, cases[i][1]);
  }
}

static void a_file_of_the_user(void **state) {
  (void)state;
  expect(RP_SWITCH_OFF_NO, "", "");
  touch(own);
  expect(RP_SWITCH_OFF_YES, OWN, "");
  unlink(own);
  expect(RP_SWITCH_OFF_NO, "", "");
  touch(all);
  expect(RP_SWITCH_OFF_YES, "disable", "");
  touch(own);
  expect(RP_SWITCH_OFF_YES, OWN, "");
}

static void no_folder(void **state) {
  (void)state;
  char file[64] = "", why[64] = "";
  assert_int_equal(rp_switch_off_look("/nowhere", REPORT, file, sizeof file, why, sizeof why),
                   RP_SWITCH_OFF_NO);
  assert_int_equal(rp_switch_off_look("/dev/null", REPORT, file, sizeof file, why, sizeof why),
                   RP_SWITCH_OFF_NO);
}

static void of_another_process(void **state) {
  (void)state;
  char other[128];
  snprintf(other, sizeof other, "%s/host-12-346.disable", folder);
  touch(other);
  expect(RP_SWITCH_OFF_NO, "", "");
}

static void what_is_no_plain_file(void **state) {
  (void)state;
  assert_int_equal(symlink("/etc/passwd", own), 0);
  expect(RP_SWITCH_OFF_REFUSED, OWN, "it is a link");
  unlink(own);
  assert_int_equal(symlink("nowhere", own), 0);
  expect(RP_SWITCH_OFF_REFUSED, OWN, "it is a link");
  touch(all); /* the other one counts all the same */
  expect(RP_SWITCH_OFF_YES, "disable", OWN);
  unlink(all);
  unlink(own);
  assert_int_equal(mkfifo(own, 0600), 0);
  expect(RP_SWITCH_OFF_REFUSED, OWN, "no plain file");
  unlink(own);
  assert_int_equal(mkdir(own, 0700), 0);
  expect(RP_SWITCH_OFF_REFUSED, OWN, "no plain file");
}

/* Somebody who may write in the folder can give any file of ours this name. */
static void another_name_of_another_file(void **state) {
  (void)state;
  char report[128];
  snprintf(report, sizeof report, "%s/" REPORT, folder);
  touch(report);
  assert_int_equal(link(report, own), 0);
  expect(RP_SWITCH_OFF_REFUSED, OWN, "further names");
}

static void a_folder_that_others_may_write(void **state) {
  (void)state;
  touch(own);
  static const struct {
    mode_t mode;
    enum rp_switch_off expected;
  } cases[] = {{0700, RP_SWITCH_OFF_YES},     {0755, RP_SWITCH_OFF_YES},     {0775, RP_SWITCH_OFF_REFUSED},
               {0757, RP_SWITCH_OFF_REFUSED}, {0777, RP_SWITCH_OFF_REFUSED}, {01777, RP_SWITCH_OFF_YES}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    assert_int_equal(chmod(folder, cases[i].mode), 0);
    expect(cases[i].expected, OWN, cases[i].expected == RP_SWITCH_OFF_YES ? "" : "others can rename");
  }
}

/* ---- with other users ---- */

static void needs_root(void) {
  if (geteuid() == 0) return;
  print_message("skipped: only root can make files of other users\n");
  skip();
}

static void of_another_user(void **state) {
  (void)state;
  needs_root();
  touch(own);
  assert_int_equal(chown(own, SOMEBODY, SOMEBODY), 0);
  expect(RP_SWITCH_OFF_REFUSED, OWN, "neither to the user of the job nor to root");
  assert_int_equal(chmod(own, 0666), 0);
  expect(RP_SWITCH_OFF_REFUSED, OWN, "neither to the user of the job nor to root");
  assert_int_equal(chown(own, 0, 0), 0);
  expect(RP_SWITCH_OFF_YES, OWN, "");
  assert_int_equal(chown(folder, SOMEBODY, SOMEBODY), 0);
  expect(RP_SWITCH_OFF_REFUSED, OWN, "folder belongs to another user");
}

static void a_job_of_a_user(void **state) {
  (void)state;
  needs_root();
  assert_int_equal(chown(folder, SOMEBODY, SOMEBODY), 0);
  touch(own); /* root's, and not readable */
  assert_int_equal(seteuid(SOMEBODY), 0);
  expect(RP_SWITCH_OFF_YES, OWN, "");
  assert_int_equal(seteuid(0), 0);
  assert_int_equal(chown(own, SOMEBODY, SOMEBODY), 0);
  assert_int_equal(seteuid(SOMEBODY), 0);
  expect(RP_SWITCH_OFF_YES, OWN, "");
  assert_int_equal(seteuid(0), 0);
  assert_int_equal(chown(own, 12345, 12345), 0);
  assert_int_equal(seteuid(SOMEBODY), 0);
  expect(RP_SWITCH_OFF_REFUSED, OWN, "neither to the user of the job nor to root");
  assert_int_equal(seteuid(0), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(names),
      cmocka_unit_test_setup_teardown(a_file_of_the_user, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(no_folder, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(of_another_process, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(what_is_no_plain_file, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(another_name_of_another_file, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(a_folder_that_others_may_write, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(of_another_user, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(a_job_of_a_user, make_folder, remove_folder),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
