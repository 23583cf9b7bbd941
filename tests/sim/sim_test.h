/** @file sim_test.h
 * For the tests of the simulated libraries: running the test program itself again in another mode, with its
 * own environment, because the libraries read theirs when they are loaded.
 */
#ifndef RPSIM_SIM_TEST_H
#define RPSIM_SIM_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

/** Runs this program with the argument `mode`, with `variable`=`value` in its environment (or without the
 * variable if the value is NULL). Its stdout and stderr go to `output`, cut to fit. Returns the wait status.
 */
static inline int sim_test_run(const char *mode, const char *variable, const char *value, char *output,
                               size_t output_bytes) {
  int ends[2];
  assert_int_equal(pipe(ends), 0);
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    dup2(ends[1], STDOUT_FILENO);
    dup2(ends[1], STDERR_FILENO);
    close(ends[0]);
    close(ends[1]);
    if (value)
      setenv(variable, value, 1);
    else
      unsetenv(variable);
    execl("/proc/self/exe", "test", mode, (char *)NULL);
    _exit(126);
  }
  close(ends[1]);
  size_t used = 0;
  ssize_t got;
  char dropped[256];
  while ((got = used + 1 < output_bytes ? read(ends[0], output + used, output_bytes - used - 1)
                                        : read(ends[0], dropped, sizeof dropped)) > 0)
    if (used + 1 < output_bytes) used += (size_t)got;
  output[used] = '\0';
  close(ends[0]);
  int status;
  assert_int_equal(waitpid(child, &status, 0), child);
  return status;
}

#define assert_cuda(call) assert_int_equal(call, CUDA_SUCCESS)

#endif
