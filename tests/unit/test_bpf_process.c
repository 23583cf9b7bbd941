/* /proc: mappings as the kernel writes them, processes and their tree, rights and the sentences about them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bpf/mappings.h"
#include "bpf/process.h"
#include "bpf/rights.h"

/* ---- mappings ---- */

static void parse(const char *text, struct rp_mappings *out) {
  FILE *file = text[0] ? fmemopen((void *)(uintptr_t)text, strlen(text), "r") : fopen("/dev/null", "r");
  assert_non_null(file);
  assert_int_equal(rp_mappings_parse(file, out), RP_OK);
  (void)fclose(file);
}

static void lines_of_maps(void **state) {
  (void)state;
  static const struct {
    const char *line, *path;
    bool deleted;
  } cases[] = {
      {"7f00-7f10 r-xp 00001000 fe:01 77 /lib/a.so\n", "/lib/a.so", false},
      {"7f00-7f10 r-xp 00001000 fe:01 77                         /lib/a b.so\n", "/lib/a b.so", false},
      {"7f00-7f10 r-xp 00001000 fe:01 77 /lib/a.so (deleted)\n", "/lib/a.so", true},
      {"7f00-7f10 r-xp 00001000 fe:01 77 /lib/a (deleted).so\n", "/lib/a (deleted).so", false},
      {"7f00-7f10 r-xs 00001000 fe:01 77 /lib/a\\012b\\134\\040.so\n", "/lib/a\nb\\ .so", false},
      {"7f00-7f10 r-xp 00001000 fe:01 77 /lib/a\\01x\\9.so\n", "/lib/a\\01x\\9.so", false},
      {"7f00-7f10 rwxp 00001000 fe:01 77 /lib/a.so", "/lib/a.so", false},
      {"7f00-7f10 r--p 00001000 fe:01 77 /lib/a.so\n", NULL, false},
      {"7f00-7f10 r-xp 00000000 00:00 0 \n", NULL, false},
      {"7f00-7f10 r-xp 00000000 00:00 0 [vdso]\n", NULL, false},
      {"7f00-7f10 r-xp 00000000 00:05 12 anon_inode:[x]\n", NULL, false},
      {"ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]\n", NULL, false},
      {"nonsense\n", NULL, false},
      {"7f00-7f10 r-xp\n", NULL, false},
      {"\n", NULL, false},
      {"", NULL, false},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct rp_mappings maps;
    parse(cases[i].line, &maps);
    assert_int_equal(maps.count, cases[i].path ? 1 : 0);
    if (cases[i].path) {
      assert_string_equal(maps.files[0].path, cases[i].path);
      assert_int_equal(maps.files[0].deleted, cases[i].deleted);
      assert_int_equal(maps.files[0].begin, 0x7f00);
      assert_int_equal(maps.files[0].end, 0x7f10);
      assert_int_equal(maps.files[0].inode, 77);
      assert_int_equal(maps.files[0].device, makedev(0xfe, 1));
    }
    rp_mappings_fini(&maps);
  }
}

static void one_file_counts_once(void **state) {
  (void)state;
  struct rp_mappings maps;
  parse("1000-2000 r-xp 0 fe:01 1 /a\n3000-4000 r-xp 0 fe:01 1 /a\n5000-6000 r-xp 0 fe:01 2 /a\n"
        "7000-8000 r-xp 0 fe:02 1 /a\n",
        &maps);
  assert_int_equal(maps.count, 3);
  assert_int_equal(maps.files[0].begin, 0x1000);
  rp_mappings_fini(&maps);
}

static void long_names_are_no_trouble(void **state) {
  (void)state;
  enum { SIZE = 70000 };
  static const char head[] = "1000-2000 r-xp 0 fe:01 1 /";
  static char text[sizeof head + SIZE + 1];
  memcpy(text, head, sizeof head - 1);
  memset(text + sizeof head - 1, 'x', SIZE);
  text[sizeof head - 1 + SIZE] = '\n';
  struct rp_mappings maps;
  parse(text, &maps);
  assert_int_equal(maps.count, 1);
  assert_int_equal(strlen(maps.files[0].path), SIZE + 1);
  rp_mappings_fini(&maps);
}

static void own_mappings_can_be_opened(void **state) {
  (void)state;
  struct rp_mappings maps;
  char reason[256];
  assert_int_equal(rp_mappings_read(getpid(), &maps), RP_OK);
  assert_true(maps.count >= 3);
  for (size_t i = 0; i < maps.count; i++) {
    int fd = rp_mapping_open(getpid(), &maps.files[i], reason, sizeof reason);
    assert_true(fd >= 0);
    (void)close(fd);
  }
  maps.files[0].begin += 1; /* nothing is mapped just there */
  maps.files[0].inode = 1;
  assert_int_equal(rp_mapping_open(getpid(), &maps.files[0], reason, sizeof reason), -1);
  assert_true(reason[0]);
  rp_mappings_fini(&maps);
  assert_int_equal(rp_mappings_read(0x7ffffffe, &maps), RP_ERROR_NOT_FOUND);
}

/* ---- processes ---- */

static void own_process(void **state) {
  (void)state;
  struct rp_process own, other;
  assert_int_equal(prctl(PR_SET_NAME, "a) R (b ) 7"), 0);
  assert_int_equal(rp_process_read(getpid(), &own), RP_OK);
  assert_string_equal(own.name, "a) R (b ) 7");
  assert_int_equal(own.parent, getppid());
  assert_int_equal(own.inner_pid, getpid());
  assert_false(own.kernel_thread);
  assert_false(own.zombie);
  assert_true(own.start_ticks > 0);
  assert_true(rp_process_is_alive(&own));
  own.start_ticks--; /* an earlier process with the same id */
  assert_false(rp_process_is_alive(&own));
  assert_int_equal(rp_process_read(0x7ffffffe, &other), RP_ERROR_NOT_FOUND);
  assert_int_equal(rp_process_read(0, &other), RP_ERROR_NOT_FOUND);
  assert_int_equal(rp_process_read(-1, &other), RP_ERROR_NOT_FOUND);
}

static void a_zombie_is_dead(void **state) {
  (void)state;
  struct rp_process process;
  pid_t child = fork();
  if (child == 0) _exit(0);
  siginfo_t info;
  assert_int_equal(waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT), 0);
  assert_int_equal(rp_process_read(child, &process), RP_OK);
  assert_true(process.zombie);
  assert_false(rp_process_is_alive(&process));
  assert_int_equal(waitpid(child, NULL, 0), child);
}

static void the_list_holds_us(void **state) {
  (void)state;
  struct rp_process *list;
  size_t count, found = 0;
  assert_int_equal(rp_process_list(&list, &count), RP_OK);
  for (size_t i = 0; i < count; i++) {
    found += list[i].pid == getpid();
    if (i) assert_true(list[i - 1].pid < list[i].pid);
  }
  assert_int_equal(found, 1);
  free(list);
}

static void trees(void **state) {
  (void)state;
  /* 5 is the child of 9, whose id is larger: ids can have wrapped */
  const struct rp_process list[] = {{.pid = 1, .parent = 0}, {.pid = 2, .parent = 1},
                                    {.pid = 4, .parent = 5}, {.pid = 5, .parent = 9},
                                    {.pid = 9, .parent = 2}, {.pid = 11, .parent = 1}};
  bool selected[6] = {[1] = true};
  rp_process_select_tree(list, 6, selected);
  const bool expected[6] = {false, true, true, true, true, false};
  assert_memory_equal(selected, expected, sizeof expected);
  rp_process_select_tree(list, 0, selected);
}

/* ---- rights ---- */

#define BIT(capability) (1ull << (capability))
#define ENOUGH (BIT(RP_CAP_BPF) | BIT(RP_CAP_PERFMON))

static struct rp_rights rights_with(uint64_t capabilities) {
  return (struct rp_rights){.capabilities = capabilities,
                            .kernel_major = 6,
                            .kernel_minor = 18,
                            .kernel = "6.18.0",
                            .btf = true,
                            .lockdown = RP_LOCKDOWN_NONE,
                            .multi_links = true,
                            .initial_pid_namespace = true};
}

static void what_is_missing_is_named(void **state) {
  (void)state;
  static const struct {
    uint64_t capabilities;
    bool perf_links;
    const char *says;
  } cases[] = {
      {ENOUGH, false, ""},
      {BIT(RP_CAP_SYS_ADMIN), false, ""},
      {BIT(RP_CAP_SYS_ADMIN), true, ""},
      {0, false, "CAP_BPF and CAP_PERFMON missing"},
      {BIT(RP_CAP_BPF), false, "CAP_PERFMON missing"},
      {BIT(RP_CAP_PERFMON), false, "CAP_BPF missing"},
      {ENOUGH, true, "CAP_SYS_ADMIN is missing"},
      {BIT(RP_CAP_SYS_PTRACE), true, "cap_sys_admin for probes through perf events"},
  };
  char text[512];
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    const struct rp_rights rights = rights_with(cases[i].capabilities);
    rp_rights_missing(&rights, cases[i].perf_links, text, sizeof text);
    if (cases[i].says[0])
      assert_non_null(strstr(text, cases[i].says));
    else
      assert_string_equal(text, "");
  }
}

static void kernels(void **state) {
  (void)state;
  static const struct {
    int major, minor;
    bool btf, perf_links;
    const char *says;
  } cases[] = {{5, 15, true, false, ""},
               {5, 14, true, false, "5.15 or later"},
               {4, 19, true, false, "5.15 or later"},
               {5, 15, false, false, "vmlinux"},
               {6, 0, true, true, ""}, /* perf events wanted no more then */
               {6, 6, true, true, "CAP_SYS_ADMIN"}};
  char text[512];
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct rp_rights rights = rights_with(ENOUGH);
    rights.kernel_major = cases[i].major;
    rights.kernel_minor = cases[i].minor;
    rights.btf = cases[i].btf;
    rp_rights_missing(&rights, cases[i].perf_links, text, sizeof text);
    assert_non_null(strstr(text, cases[i].says));
    if (!cases[i].says[0]) assert_string_equal(text, "");
  }
}

static void failures_to_load(void **state) {
  (void)state;
  static const struct {
    int error;
    uint64_t capabilities;
    enum rp_lockdown lockdown;
    bool seccomp;
    const char *says;
  } cases[] = {
      {EPERM, 0, RP_LOCKDOWN_NONE, false, "CAP_BPF"},
      {EPERM, ENOUGH, RP_LOCKDOWN_CONFIDENTIALITY, false, "locked down (confidentiality mode)"},
      {EPERM, ENOUGH, RP_LOCKDOWN_NONE, true, "seccomp filter"},
      {EPERM, ENOUGH, RP_LOCKDOWN_NONE, false, "security policy"},
      {EINVAL, ENOUGH, RP_LOCKDOWN_UNKNOWN, false, "where it is locked down"},
      {EINVAL, ENOUGH, RP_LOCKDOWN_NONE, false, "Invalid argument"},
      {ESRCH, ENOUGH, RP_LOCKDOWN_NONE, false, "description of its types"},
      {ENOMEM, ENOUGH, RP_LOCKDOWN_NONE, false, "Cannot allocate memory"},
  };
  char text[512];
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct rp_rights rights = rights_with(cases[i].capabilities);
    rights.lockdown = cases[i].lockdown;
    rights.seccomp_filter = cases[i].seccomp;
    rp_rights_explain_load(&rights, cases[i].error, text, sizeof text);
    assert_non_null(strstr(text, cases[i].says));
  }
}

static void failures_to_attach(void **state) {
  (void)state;
  char text[512];
  struct rp_rights rights = rights_with(ENOUGH);
  rp_rights_explain_attach(&rights, EACCES, true, text, sizeof text);
  assert_non_null(strstr(text, "CAP_SYS_ADMIN is missing"));
  rp_rights_explain_attach(&rights, EACCES, false, text, sizeof text);
  assert_non_null(strstr(text, "security policy"));
  rights.seccomp_filter = true;
  rp_rights_explain_attach(&rights, EPERM, false, text, sizeof text);
  assert_non_null(strstr(text, "seccomp"));
  rp_rights_explain_attach(&rights, EMFILE, false, text, sizeof text);
  assert_non_null(strstr(text, "ulimit"));
  rp_rights_explain_attach(&rights, EINVAL, false, text, sizeof text);
  assert_string_equal(text, strerror(EINVAL));
}

static void lockdown_files(void **state) {
  (void)state;
  assert_int_equal(rp_lockdown_parse("[none] integrity confidentiality\n"), RP_LOCKDOWN_NONE);
  assert_int_equal(rp_lockdown_parse("none [integrity] confidentiality\n"), RP_LOCKDOWN_INTEGRITY);
  assert_int_equal(rp_lockdown_parse("none integrity [confidentiality]\n"), RP_LOCKDOWN_CONFIDENTIALITY);
  assert_int_equal(rp_lockdown_parse(""), RP_LOCKDOWN_UNKNOWN);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(lines_of_maps),
      cmocka_unit_test(one_file_counts_once),
      cmocka_unit_test(long_names_are_no_trouble),
      cmocka_unit_test(own_mappings_can_be_opened),
      cmocka_unit_test(own_process),
      cmocka_unit_test(a_zombie_is_dead),
      cmocka_unit_test(the_list_holds_us),
      cmocka_unit_test(trees),
      cmocka_unit_test(what_is_missing_is_named),
      cmocka_unit_test(kernels),
      cmocka_unit_test(failures_to_load),
      cmocka_unit_test(failures_to_attach),
      cmocka_unit_test(lockdown_files),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
