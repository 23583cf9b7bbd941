/* The interposer on small modules: lazily bound, bound at load with full RELRO, without a PLT, loaded late.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "agent/interpose.h"
#include "interpose/samples.h"

static int (*real_add)(int, int);
static int (*real_twice)(int);
static int added, doubled;

static int hook_add(int a, int b) {
  added++;
  return real_add(a, b) + 10000;
}

static int hook_twice(int a) {
  doubled++;
  return real_twice(a) + 10000;
}

static struct rp_hook hooks[] = {
    {.name = "sample_add", .replacement = (void *)hook_add, .real = (void **)&real_add},
    {.name = "sample_twice", .replacement = (void *)hook_twice, .real = (void **)&real_twice},
};

/* Name beginnings of the modules that a test does not mean. */
static const char *const others[] = {"libcmocka", "libc.so", NULL};

static struct rp_interpose_result scan(void) {
  struct rp_interpose_result result;
  rp_interpose_scan(hooks, 2, others, &result);
  return result;
}

struct caller {
  void *handle;
  int (*add)(int, int);
  int (*twice)(int);
  int (*untouched)(int);
};

static struct caller load(const char *path) {
  struct caller caller = {.handle = dlopen(path, RTLD_LAZY | RTLD_LOCAL)};
  if (!caller.handle) fail_msg("%s", dlerror());
  *(void **)&caller.add = dlsym(caller.handle, "caller_add");
  *(void **)&caller.twice = dlsym(caller.handle, "caller_twice");
  *(void **)&caller.untouched = dlsym(caller.handle, "caller_untouched");
  return caller;
}

static int forget(void **state) {
  (void)state;
  real_add = NULL;
  real_twice = NULL;
  added = doubled = 0;
  for (int i = 0; i < 2; i++)
    hooks[i].slots = hooks[i].conflicts = 0;
  return 0;
}

/* Protection of the page that holds `at`, as the kernel sees it: "r--p", "rw-p" … */
static void protection_of(const void *at, char *out) {
  char line[512];
  FILE *maps = fopen("/proc/self/maps", "r");
  assert_non_null(maps);
  out[0] = '\0';
  while (fgets(line, sizeof line, maps)) {
    unsigned long begin, end;
    char flags[8];
    if (sscanf(line, "%lx-%lx %7s", &begin, &end, flags) == 3 && (uintptr_t)at >= begin &&
        (uintptr_t)at < end)
      snprintf(out, 8, "%s", flags);
  }
  fclose(maps);
}

static void check_patched(const char *path, bool call_first) {
  struct caller caller = load(path);
  if (call_first) assert_int_equal(caller.add(1, 2), 3); /* binds a lazy slot before the scan */
  assert_int_equal(scan().failed, 0);
  assert_int_equal(hooks[0].slots, 1);
  assert_int_equal(hooks[1].slots, 1);
  for (int i = 1; i <= 3; i++) {
    assert_int_equal(caller.add(i, 2), i + 2 + 10000);
    assert_int_equal(caller.twice(i), 2 * i + 10000);
  }
  assert_int_equal(added, 3);
  assert_int_equal(doubled, 3);
  assert_int_equal(caller.untouched(1), 1001);
  assert_int_equal(scan().patched, 0); /* once is enough */
  assert_int_equal(hooks[0].conflicts, 0);
  dlclose(caller.handle);
}

static void patches_lazily_bound_calls(void **state) {
  (void)state;
  check_patched(CALLER_LAZY, false);
}

static void patches_calls_that_were_bound_already(void **state) {
  (void)state;
  check_patched(CALLER_LAZY_COPY, true);
}

static void patches_full_relro(void **state) {
  (void)state;
  check_patched(CALLER_RELRO, false);
}

static void patches_calls_without_a_plt(void **state) {
  (void)state;
  check_patched(CALLER_NO_PLT, false);
}

static void notices_modules_loaded_later(void **state) {
  (void)state;
  uint64_t before = rp_interpose_module_changes();
  assert_int_equal(rp_interpose_module_changes(), before);
  (void)scan();
  assert_int_equal(rp_interpose_module_changes(), before); /* looking changes nothing */
  struct caller caller = load(CALLER_LATE);
  assert_int_not_equal(rp_interpose_module_changes(), before);
  assert_int_equal(caller.add(1, 1), 2);
  assert_int_equal(scan().patched, 2);
  assert_int_equal(caller.add(1, 1), 10002);
  dlclose(caller.handle);
}

static void leaves_skipped_modules_alone(void **state) {
  (void)state;
  static const char *const skip[] = {"libcaller_", NULL};
  struct rp_interpose_result result;
  struct caller caller = load(CALLER_RELRO_COPY);
  rp_interpose_scan(hooks, 2, skip, &result);
  assert_int_equal(hooks[0].slots, 0);
  assert_int_equal(caller.add(1, 1), 2);
  dlclose(caller.handle);
}

/* A hook that already stands for one copy of a function must not be put in front of another copy. */
static void leaves_a_second_copy_alone(void **state) {
  (void)state;
  int dummy = 0;
  Dl_info info;
  assert_true(dladdr((void *)leaves_a_second_copy_alone, &info) != 0);
  real_add = (int (*)(int, int))(void *)info.dli_fbase; /* something that is mapped, but is not sample_add */
  struct caller caller = load(CALLER_OTHER);
  (void)scan();
  assert_int_equal(hooks[0].conflicts, 1);
  assert_int_equal(hooks[0].slots, 0);
  assert_int_equal(caller.add(1, 1), 2);
  assert_int_equal(added + dummy, 0);
  dlclose(caller.handle);
}

static void restores_the_protection(void **state) {
  (void)state;
  static void *const constant_page[4096]
      __attribute__((aligned(4096), section(".data.rel.ro"))) = {(void *)hook_add};
  char flags[8];
  void **slot = (void **)(uintptr_t)&constant_page[512];
  protection_of(slot, flags);
  assert_string_equal(flags, "r--p");
  assert_true(rp_interpose_store(slot, (void *)hook_twice, true));
  assert_ptr_equal(*(void *volatile *)slot, (void *)hook_twice);
  protection_of(slot, flags);
  assert_string_equal(flags, "r--p");
}

static void finds_modules_by_name(void **state) {
  (void)state;
  char path[512] = "unchanged";
  assert_true(rp_interpose_find_module("libcmocka.so", path, sizeof path));
  assert_non_null(strstr(path, "/libcmocka.so"));
  assert_false(rp_interpose_find_module("libnosuchthing.so", path, sizeof path));
  char small[4] = "abc";
  assert_false(rp_interpose_find_module("libcmocka.so", small, sizeof small));
  assert_string_equal(small, "abc");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup(patches_lazily_bound_calls, forget),
      cmocka_unit_test_setup(patches_calls_that_were_bound_already, forget),
      cmocka_unit_test_setup(patches_full_relro, forget),
      cmocka_unit_test_setup(patches_calls_without_a_plt, forget),
      cmocka_unit_test_setup(notices_modules_loaded_later, forget),
      cmocka_unit_test_setup(leaves_skipped_modules_alone, forget),
      cmocka_unit_test_setup(leaves_a_second_copy_alone, forget),
      cmocka_unit_test(restores_the_protection),
      cmocka_unit_test(finds_modules_by_name),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
