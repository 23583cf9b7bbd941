/* Blocking of the signals that failed writes send. Owns nothing. */
#include "agent/signals_off.h"

#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <time.h>

void rp_signals_off(struct rp_signals_off *guard) {
  int saved = errno;
  sigset_t pending;
  sigemptyset(&guard->set);
  sigaddset(&guard->set, SIGPIPE);
  sigaddset(&guard->set, SIGXFSZ);
  sigemptyset(&pending);
  sigpending(&pending);
  guard->pipe_was_pending = sigismember(&pending, SIGPIPE) == 1;
  guard->size_was_pending = sigismember(&pending, SIGXFSZ) == 1;
  pthread_sigmask(SIG_BLOCK, &guard->set, &guard->before);
  errno = saved;
}

static void take_back(int number) {
  struct timespec now = {0, 0};
  sigset_t one;
  sigemptyset(&one);
  sigaddset(&one, number);
  while (sigtimedwait(&one, NULL, &now) > 0)
    continue;
}

void rp_signals_back(const struct rp_signals_off *guard) {
  int saved = errno;
  if (!guard->pipe_was_pending) take_back(SIGPIPE);
  if (!guard->size_was_pending) take_back(SIGXFSZ);
  pthread_sigmask(SIG_SETMASK, &guard->before, NULL);
  errno = saved;
}
