/* Which modules use memory by calls that cannot be stopped. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include <dlfcn.h>

#include "agent/unstoppable.h"

static void files_are_told_apart(void **state) {
  (void)state;
  static const struct {
    const char *path;
    bool is;
  } files[] = {
      {LOOKS_UP, true},          /* finds the driver's launches by name */
      {OWN_RUNTIME, true},       /* has device code and a runtime of its own */
      {SHARED_RUNTIME, false},   /* has device code, and registers it with a shared one */
      {"/proc/self/exe", false}, /* looks functions up, but none of the driver's */
      {"/dev/null", false},      {"/", false}, {"/no/such/file", false},
  };
  for (size_t i = 0; i < sizeof files / sizeof files[0]; i++)
    if (rp_unstoppable_file(files[i].path) != files[i].is) fail_msg("%s: not %d", files[i].path, files[i].is);
}

/* Any part of a library is a file that somebody may have. */
static void torn_files_are_none(void **state) {
  (void)state;
  char path[] = "/tmp/recvpool-test-XXXXXX";
  int torn = mkstemp(path);
  FILE *whole = fopen(LOOKS_UP, "rb");
  assert_true(torn >= 0 && whole);
  static char data[1 << 20];
  size_t bytes = fread(data, 1, sizeof data, whole);
  fclose(whole);
  assert_true(bytes > 64);
  assert_int_equal(write(torn, data, bytes), (ssize_t)bytes);
  assert_true(rp_unstoppable_file(path));
  for (size_t left = bytes; left-- > 0;) {
    if (left % 97 && left > 128) continue;
    assert_int_equal(ftruncate(torn, (off_t)left), 0);
    (void)rp_unstoppable_file(path);
  }
  assert_false(rp_unstoppable_file(path));
  for (size_t at = 0; at < 64; at++) { /* every byte of the head says something */
    char odd = (char)~data[at];
    assert_int_equal(ftruncate(torn, 0), 0);
    assert_int_equal(pwrite(torn, data, bytes, 0), (ssize_t)bytes);
    assert_int_equal(pwrite(torn, &odd, 1, (off_t)at), 1);
    (void)rp_unstoppable_file(path);
  }
  close(torn);
  unlink(path);
}

/* One that comes later is found, and is not forgotten. */
static void late_modules_are_found(void **state) {
  (void)state;
  assert_false(rp_unstoppable_look());
  assert_false(rp_unstoppable_known());
  void *shared = dlopen(SHARED_RUNTIME, RTLD_LAZY);
  assert_non_null(shared);
  assert_false(rp_unstoppable_look());
  void *late = dlopen(LOOKS_UP, RTLD_LAZY);
  assert_non_null(late);
  assert_false(rp_unstoppable_known());
  assert_true(rp_unstoppable_look());
  dlclose(late);
  assert_true(rp_unstoppable_look());
  assert_true(rp_unstoppable_known());
  dlclose(shared);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(files_are_told_apart),
      cmocka_unit_test(torn_files_are_none),
      cmocka_unit_test(late_modules_are_found),
  };
  return cmocka_run_group_tests_name("unstoppable", tests, NULL, NULL);
}
