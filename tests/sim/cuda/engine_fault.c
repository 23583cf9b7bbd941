/* Owns the SIGSEGV and SIGBUS handler: on a stream thread an access to memory that is not there ends the
 * running operation; everywhere else the handler that was there before gets the signal. */
#include "engine_internal.h"
#include <setjmp.h>
#include <signal.h>

static _Thread_local sigjmp_buf *volatile escape;
static _Thread_local volatile sig_atomic_t passing_on;
static struct sigaction previous_segv, previous_bus;
static pthread_mutex_t handler_lock = PTHREAD_MUTEX_INITIALIZER;

static void pass_on(int number, siginfo_t *info, void *frame) {
  const struct sigaction *previous = number == SIGBUS ? &previous_bus : &previous_segv;
  bool again = passing_on; /* a handler that was set after ours and calls what it found */
  passing_on = 1;
  if (again) {
    signal(number, SIG_DFL);
  } else if (previous->sa_flags & SA_SIGINFO) {
    previous->sa_sigaction(number, info, frame);
  } else if (previous->sa_handler != SIG_DFL && previous->sa_handler != SIG_IGN) {
    previous->sa_handler(number);
  } else {
    /* Returning runs the instruction again, now under the default action: the core shows the real place. */
    signal(number, SIG_DFL);
  }
  passing_on = again;
}

static void on_fault(int number, siginfo_t *info, void *frame) {
  if (escape) siglongjmp(*escape, 1);
  pass_on(number, info, frame);
}

/* Sets our handler for one signal unless it is there. The program may have set its own since the last
 * operation. */
static void install_handler(int number, struct sigaction *previous) {
  struct sigaction now;
  if (sigaction(number, NULL, &now) == 0 && (now.sa_flags & SA_SIGINFO) && now.sa_sigaction == on_fault)
    return;
  struct sigaction ours = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK};
  sigemptyset(&ours.sa_mask);
  pthread_mutex_lock(&handler_lock);
  if (sigaction(number, &ours, &now) == 0 && now.sa_sigaction != on_fault) *previous = now;
  pthread_mutex_unlock(&handler_lock);
}

bool sim_fault_guard(void (*fn)(void *), void *argument) {
  install_handler(SIGSEGV, &previous_segv);
  install_handler(SIGBUS, &previous_bus);
  sigjmp_buf here, *outer = escape;
  if (sigsetjmp(here, 1)) {
    escape = outer;
    return false;
  }
  escape = &here;
  fn(argument);
  escape = outer;
  return true;
}
