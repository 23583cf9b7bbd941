/* Descriptors for other processes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/descriptors.h"

/* A file that tells itself apart from others. */
static int file_of(char letter) {
  int ends[2];
  assert_int_equal(pipe(ends), 0);
  assert_int_equal(write(ends[1], &letter, 1), 1);
  assert_int_equal(close(ends[1]), 0);
  return ends[0];
}

static char letter_of(int fd) {
  char letter = 0;
  return fd >= 0 && read(fd, &letter, 1) == 1 ? letter : 0;
}

static void another_process_gets_it(void **state) {
  (void)state;
  struct rp_ticket first, second;
  assert_int_equal(rp_descriptor_offer(file_of('a'), &first), RP_OK);
  assert_int_equal(rp_descriptor_offer(file_of('b'), &second), RP_OK);
  assert_true(first.process == second.process && first.key != second.key);
  assert_true(rp_descriptor_is_own(&first));
  pid_t child = fork();
  if (child == 0) {
    int fd = rp_descriptor_fetch(&second);
    _exit(letter_of(fd) == 'b' && (fcntl(fd, F_GETFD) & FD_CLOEXEC) ? 0 : 1);
  }
  int status = -1;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_int_equal(status, 0);
  rp_descriptor_withdraw(&first);
  rp_descriptor_withdraw(&second);
}

static void nobody_gets_what_is_not_offered(void **state) {
  (void)state;
  struct rp_ticket ticket, wrong;
  assert_int_equal(rp_descriptor_offer(file_of('c'), &ticket), RP_OK);
  wrong = ticket;
  wrong.key ^= 1;
  assert_int_equal(rp_descriptor_fetch(&wrong), -1);
  wrong = ticket;
  wrong.process ^= 1;
  assert_int_equal(rp_descriptor_fetch(&wrong), -1);
  assert_false(rp_descriptor_is_own(&wrong));
  int fd = rp_descriptor_fetch(&ticket);
  assert_true(fd >= 0);
  rp_descriptor_withdraw(&ticket);
  assert_int_equal(rp_descriptor_fetch(&ticket), -1);
  rp_descriptor_withdraw(&ticket);      /* harmless */
  assert_int_equal(letter_of(fd), 'c'); /* who has it keeps it */
  assert_int_equal(close(fd), 0);
}

static int open_files(void) {
  int count = 0;
  for (int fd = 0; fd < 1024; fd++)
    count += fcntl(fd, F_GETFD) >= 0;
  return count;
}

/* Whoever asks in vain hears of it by the end of the connection, and those before are over by then: the
 * thread that answers takes one after the other. */
static void wait_for_the_other_side(void) {
  struct rp_ticket ticket;
  assert_int_equal(rp_descriptor_offer(file_of('d'), &ticket), RP_OK);
  struct rp_ticket wrong = ticket;
  wrong.key++;
  assert_int_equal(rp_descriptor_fetch(&wrong), -1);
  rp_descriptor_withdraw(&ticket);
}

static void *come_and_go(void *unused) {
  for (int i = 0; i < 50; i++) {
    struct rp_ticket ticket;
    int pair = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (rp_descriptor_offer(pair, &ticket) != RP_OK) return (void *)1;
    int fd = rp_descriptor_fetch(&ticket);
    if (fd < 0 || close(fd) != 0) return (void *)1;
    rp_descriptor_withdraw(&ticket);
  }
  return unused;
}

static void several_at_once_leave_nothing_open(void **state) {
  (void)state;
  pthread_t threads[4];
  void *failed = NULL;
  assert_null(come_and_go(NULL));
  wait_for_the_other_side();
  int before = open_files();
  for (int i = 0; i < 4; i++)
    assert_int_equal(pthread_create(&threads[i], NULL, come_and_go, NULL), 0);
  for (int i = 0; i < 4; i++) {
    assert_int_equal(pthread_join(threads[i], &failed), 0);
    assert_null(failed);
  }
  for (int i = 0; i < 200 && open_files() > before; i++)
    usleep(10000); /* the other side may still be closing its end */
  assert_int_equal(open_files(), before);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(another_process_gets_it),
      cmocka_unit_test(nobody_gets_what_is_not_offered),
      cmocka_unit_test(several_at_once_leave_nothing_open),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
