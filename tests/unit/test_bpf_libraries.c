/* Files that nobody has mapped any more are given up: their probes, in their own time, and then their places.
 * The probes themselves are stand-ins; what is mapped is real. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "bpf/libraries.h"

#define FILES 4
#define SECOND 1000000000u
#define LATER_NS (RP_LIBRARIES_KEEP_NS + SECOND)

static char folder[] = "/tmp/recvpool-test-XXXXXX";
static void *mapped[FILES];
static struct rp_libraries set;
static size_t noted[16], noted_count;

/* ---- stand-ins ---- */

static int attached, detached; /* detached: also of another thread */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static sem_t *gate; /* what takes probes out waits for it, where there is one */

int rp_links_attach(const struct rp_link_request *request, const struct rp_sites *sites,
                    struct rp_links *out) {
  (void)request;
  *out = (struct rp_links){.probes = sites->count};
  attached++;
  return 0;
}

void rp_links_detach(struct rp_links *links) {
  if (!links->probes) return;
  if (gate) (void)sem_wait(gate);
  pthread_mutex_lock(&lock);
  detached++;
  pthread_mutex_unlock(&lock);
  *links = (struct rp_links){0};
}

void rp_rights_explain_attach(const struct rp_rights *rights, int error, bool perf_links, char *out,
                              size_t out_size) {
  (void)rights, (void)error, (void)perf_links;
  snprintf(out, out_size, "refused");
}

/* ---- a process's files ---- */

static uint64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * SECOND + (uint64_t)time.tv_nsec;
}

static void path_of(int file, char *out, size_t size) {
  snprintf(out, size, "%s/lib%d.so", folder, file);
}

static void map(int file) {
  char path[64];
  path_of(file, path, sizeof path);
  int descriptor = open(path, O_RDONLY | O_CLOEXEC);
  assert_true(descriptor >= 0);
  mapped[file] = mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, descriptor, 0);
  assert_true(mapped[file] != MAP_FAILED);
  close(descriptor);
}

static void unmap(int file) {
  assert_int_equal(munmap(mapped[file], 4096), 0);
  mapped[file] = NULL;
}

static void note(void *context, size_t index) {
  (void)context;
  if (noted_count < 16) noted[noted_count++] = index;
}

/* Looks at this process; since when. */
static uint64_t scan(void) {
  struct rp_process own;
  uint64_t since_ns = now();
  assert_int_equal(rp_process_read(getpid(), &own), RP_OK);
  noted_count = 0;
  assert_int_equal(rp_libraries_scan(&set, &own, note, NULL, NULL), RP_OK);
  return since_ns;
}

/* Of the test's files; a place that was left has none. */
static struct rp_library *find(int file) {
  char path[64];
  path_of(file, path, sizeof path);
  for (size_t i = 0; i < set.count; i++)
    if (set.files[i].path && strcmp(set.files[i].path, path) == 0) return &set.files[i];
  return NULL;
}

/* As if so much time had gone by since the last look, at which all had been looked at. */
static void tidy_later(uint64_t seen_ns, uint64_t later_ns) {
  rp_libraries_tidy(&set, now() + later_ns, seen_ns);
}

static int begin(void **state) {
  (void)state;
  static const struct rp_rights rights = {.kernel_major = 6, .kernel_minor = 6};
  const struct rp_link_request request = {.kind = RP_LINK_MULTI};
  char command[256];
  strcpy(folder + sizeof folder - 7, "XXXXXX");
  if (!mkdtemp(folder)) return -1;
  for (int i = 0; i < FILES; i++) {
    snprintf(command, sizeof command, "cp %s %s/lib%d.so", MOCK, folder, i);
    if (system(command) != 0) return -1;
  }
  gate = NULL;
  if (rp_libraries_init(&set, &request, &rights) != RP_OK) return -1;
  scan(); /* what else there is */
  attached = detached = 0;
  return 0;
}

static int end(void **state) {
  (void)state;
  char command[64];
  for (int i = 0; i < FILES; i++)
    if (mapped[i]) unmap(i);
  rp_libraries_fini(&set);
  snprintf(command, sizeof command, "rm -rf %s", folder);
  return system(command);
}

static void settle(void) {
  rp_libraries_settle(&set);
  pthread_mutex_lock(&lock);
  pthread_mutex_unlock(&lock);
}

/* ---- tests ---- */

static void what_nobody_has_is_given_up(void **state) {
  (void)state;
  size_t others = set.probed;
  map(0);
  map(1);
  scan();
  assert_int_equal(set.probed, others + 2);
  unmap(0);
  uint64_t seen_ns = scan();
  tidy_later(seen_ns, 0); /* somebody may be about to start */
  assert_int_equal(set.released, 0);
  tidy_later(seen_ns, LATER_NS);
  assert_int_equal(set.released, 1);
  assert_int_equal(set.probed, others + 1);
  settle();
  assert_int_equal(detached, 1);
  assert_int_equal(find(0)->state, RP_LIBRARY_RELEASED);
  assert_int_equal(find(1)->state, RP_LIBRARY_PROBED);
}

static void what_may_be_mapped_is_not(void **state) {
  (void)state;
  map(0);
  uint64_t seen_ns = scan();
  tidy_later(seen_ns, LATER_NS); /* it is */
  unmap(0);
  tidy_later(seen_ns, LATER_NS); /* nobody has looked since */
  scan();
  tidy_later(0, LATER_NS); /* not all could be looked at */
  assert_int_equal(set.released, 0);
  find(0)->kept = true;
  tidy_later(scan(), LATER_NS);
  assert_int_equal(set.released, 0);
}

static void who_comes_back_is_probed_again(void **state) {
  (void)state;
  map(0);
  scan();
  size_t index = (size_t)(find(0) - set.files);
  unmap(0);
  tidy_later(scan(), LATER_NS);
  settle();
  map(0);
  scan();
  assert_int_equal(find(0) - set.files, index);
  assert_int_equal(find(0)->state, RP_LIBRARY_PROBED);
  assert_int_equal(attached, 2);
  assert_int_equal(detached, 1);
  assert_int_equal(set.released, 1);
}

/* The loop goes on while probes are being taken out; a file is not probed anew before they are. */
static void taking_probes_out_is_not_waited_for(void **state) {
  (void)state;
  sem_t closed;
  assert_int_equal(sem_init(&closed, 0, 0), 0);
  map(0);
  map(1);
  scan();
  unmap(0);
  unmap(1);
  uint64_t seen_ns = scan();
  gate = &closed;
  tidy_later(seen_ns, LATER_NS);
  assert_int_equal(set.released, 2);
  map(0);
  scan();
  assert_true(set.deferred);
  assert_int_equal(attached, 2);
  assert_int_equal(find(0)->state, RP_LIBRARY_RELEASED);
  sem_post(&closed);
  sem_post(&closed);
  settle();
  set.deferred = false;
  scan();
  assert_false(set.deferred);
  assert_int_equal(find(0)->state, RP_LIBRARY_PROBED);
  assert_int_equal(detached, 2);
  gate = NULL;
  sem_destroy(&closed);
}

static void places_are_used_again(void **state) {
  (void)state;
  map(0);
  scan();
  size_t index = (size_t)(find(0) - set.files), count = set.count;
  unmap(0);
  uint64_t seen_ns = scan();
  tidy_later(seen_ns, LATER_NS);
  settle();
  find(0)->referenced = true; /* a report names it */
  tidy_later(seen_ns, LATER_NS);
  assert_non_null(find(0));
  find(0)->referenced = false;
  tidy_later(seen_ns, LATER_NS);
  assert_null(find(0));
  map(1);
  scan();
  assert_int_equal(find(1) - set.files, index);
  assert_int_equal(set.count, count);
  assert_int_equal(find(1)->state, RP_LIBRARY_PROBED);
  map(0);
  scan(); /* and the one that was there has another */
  assert_int_equal(find(0)->state, RP_LIBRARY_PROBED);
  assert_true(find(0) - set.files != (ptrdiff_t)index);
}

static void a_full_table_makes_room(void **state) {
  (void)state;
  set.probed_most = set.probed + 2;
  map(0);
  map(1);
  scan();
  map(2);
  scan();
  assert_int_equal(find(2)->state, RP_LIBRARY_REFUSED);
  assert_string_equal(find(2)->reason, "too many libraries are probed already");
  unmap(0);
  tidy_later(scan(), 0); /* long before it would be given up */
  scan();
  assert_int_equal(set.released, 1);
  assert_int_equal(find(0)->state, RP_LIBRARY_RELEASED);
  assert_int_equal(find(2)->state, RP_LIBRARY_PROBED);
  assert_string_equal(find(2)->reason, "");
  assert_int_equal(set.probed, set.probed_most);
}

/* However often one is refused: there may be room the next time. */
static void who_was_refused_is_not_forgotten(void **state) {
  (void)state;
  set.probed_most = set.probed + 1;
  map(0);
  scan();
  map(1);
  for (int i = 0; i < 20; i++)
    scan();
  assert_int_equal(find(1)->state, RP_LIBRARY_REFUSED);
  unmap(0);
  tidy_later(scan(), 0);
  scan();
  assert_int_equal(find(1)->state, RP_LIBRARY_PROBED);
}

static void an_alias_keeps_the_other_one(void **state) {
  (void)state;
  map(0);
  map(1);
  scan();
  size_t first = (size_t)(find(0) - set.files);
  rp_libraries_join(&set, first, (size_t)(find(1) - set.files));
  assert_int_equal(find(1)->state, RP_LIBRARY_ALIAS);
  unmap(0);
  tidy_later(scan(), LATER_NS); /* by the other path it is mapped */
  assert_int_equal(set.released, 0);
  unmap(1);
  tidy_later(scan(), LATER_NS);
  assert_int_equal(set.released, 1);
  settle();
  map(1);
  scan();
  assert_int_equal(find(1)->state, RP_LIBRARY_PROBED); /* for itself */
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(what_nobody_has_is_given_up, begin, end),
      cmocka_unit_test_setup_teardown(what_may_be_mapped_is_not, begin, end),
      cmocka_unit_test_setup_teardown(who_comes_back_is_probed_again, begin, end),
      cmocka_unit_test_setup_teardown(taking_probes_out_is_not_waited_for, begin, end),
      cmocka_unit_test_setup_teardown(places_are_used_again, begin, end),
      cmocka_unit_test_setup_teardown(a_full_table_makes_room, begin, end),
      cmocka_unit_test_setup_teardown(who_was_refused_is_not_forgotten, begin, end),
      cmocka_unit_test_setup_teardown(an_alias_keeps_the_other_one, begin, end),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
