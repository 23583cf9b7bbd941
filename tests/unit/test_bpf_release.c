/* Over the kernel: the probes of a file go once nobody who is observed has it mapped. Needs root. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <dirent.h>
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bpf/observer.h"

#define WAIT_MS 60000 /* only ends a test that hangs */
#define ROUND_MS 20

static char folder[] = "/tmp/recvpool-test-XXXXXX";
static char library[64];

/* A child with the library mapped, or without; it ends with this program. */
static pid_t start(bool with_library) {
  int ends[2];
  char ready = 0;
  assert_int_equal(pipe(ends), 0);
  pid_t child = fork();
  if (child == 0) {
    if (with_library && !dlopen(library, RTLD_NOW)) _exit(1);
    if (write(ends[1], "", 1) != 1) _exit(1);
    (void)close(ends[1]);
    (void)alarm(120);
    for (;;)
      (void)pause();
  }
  (void)close(ends[1]);
  assert_int_equal(read(ends[0], &ready, 1), 1);
  (void)close(ends[0]);
  return child;
}

static void stop(pid_t child) {
  (void)kill(child, SIGKILL);
  assert_int_equal(waitpid(child, NULL, 0), child);
}

static int count_links(void) {
  int count = 0;
  DIR *open_dir = opendir("/proc/self/fd");
  char path[300], target[64];
  for (const struct dirent *entry; (entry = readdir(open_dir));) {
    snprintf(path, sizeof path, "/proc/self/fd/%s", entry->d_name);
    ssize_t length = readlink(path, target, sizeof target - 1);
    target[length > 0 ? length : 0] = '\0';
    count += strstr(target, "bpf_link") || strstr(target, "perf_event");
  }
  closedir(open_dir);
  return count;
}

static const struct rp_library *find(const struct rp_observer *observer) {
  const struct rp_libraries *set = rp_observer_libraries(observer);
  for (size_t i = 0; i < set->count; i++)
    if (set->files[i].path && strcmp(set->files[i].path, library) == 0) return &set->files[i];
  return NULL;
}

static bool is_in(const struct rp_observer *observer, enum rp_library_state state) {
  return find(observer) && find(observer)->state == state && !find(observer)->detaching;
}

static void wait_for(struct rp_observer *observer, enum rp_library_state state) {
  for (int ms = 0; ms < WAIT_MS && !is_in(observer, state); ms += ROUND_MS)
    assert_true(rp_observer_poll(observer, ROUND_MS));
  assert_true(is_in(observer, state));
}

static void released(enum rp_link_kind links) {
  pid_t stays = start(false), goes = start(true);
  const pid_t pids[] = {stays, goes};
  const struct rp_observer_options options = {
      .pids = pids, .pid_count = 2, .slack = 2, .min_bytes = 1, .links = links, .keep_ns = 1};
  struct rp_observer *observer;
  char message[1024];
  rp_status status = rp_observer_open(&options, &observer, message, sizeof message, NULL);
  if (status == RP_ERROR_UNAVAILABLE) {
    print_message("skipped: %s\n", message);
    stop(stays);
    stop(goes);
    skip();
  }
  assert_int_equal(status, RP_OK);
  wait_for(observer, RP_LIBRARY_PROBED);
  int before = count_links();
  stop(goes);
  wait_for(observer, RP_LIBRARY_RELEASED);
  assert_int_equal(rp_observer_libraries(observer)->released, 1);
  assert_true(count_links() < before);
  stop(stays);
  while (rp_observer_poll(observer, ROUND_MS))
    continue;
  assert_true(rp_observer_probes(observer) > 0); /* the loader's, for who comes next */
  rp_observer_close(observer);
}

static void by_one_link_for_all(void **state) {
  (void)state;
  released(RP_LINK_AUTO);
}

static void by_one_event_each(void **state) {
  (void)state;
  released(RP_LINK_PERF);
}

static int make_library(void **state) {
  char command[256];
  (void)state;
  if (!mkdtemp(folder)) return -1;
  snprintf(library, sizeof library, "%s/lib.so", folder);
  snprintf(command, sizeof command, "cp %s %s", MOCK, library);
  return system(command);
}

static int remove_library(void **state) {
  char command[64];
  (void)state;
  snprintf(command, sizeof command, "rm -rf %s", folder);
  return system(command);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(by_one_link_for_all),
                                     cmocka_unit_test(by_one_event_each)};
  if (geteuid() != 0) {
    puts("skipped: observing needs root");
    return 77;
  }
  return cmocka_run_group_tests(tests, make_library, remove_library);
}
