/* Owns the SIGSEGV and SIGBUS handler: on a stream thread an access to memory that is not there ends the
 * running operation; everywhere else the handler that was there before gets the signal. */
#include "engine_internal.h"
#include <setjmp.h>
#include <signal.h>

static _Thread_local sigjmp_buf *volatile escape;
static struct sigaction previous_segv, previous_bus;
static pthread_once_t handler_once = PTHREAD_ONCE_INIT;

static void pass_on(int number, siginfo_t *info, void *frame) {
  const struct sigaction *previous = number == SIGBUS ? &previous_bus : &previous_segv;
  if (previous->sa_flags & SA_SIGINFO) {
    previous->sa_sigaction(number, info, frame);
  } else if (previous->sa_handler != SIG_DFL && previous->sa_handler != SIG_IGN) {
    previous->sa_handler(number);
  } else {
    /* Returning runs the instruction again, now under the default action: the core shows the real place. */
    signal(number, SIG_DFL);
  }
}

static void on_fault(int number, siginfo_t *info, void *frame) {
  if (escape) siglongjmp(*escape, 1);
  pass_on(number, info, frame);
}

static void install_handler(void) {
  struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK};
  sigemptyset(&action.sa_mask);
  sigaction(SIGSEGV, &action, &previous_segv);
  sigaction(SIGBUS, &action, &previous_bus);
}

bool sim_fault_guard(void (*fn)(void *), void *argument) {
  pthread_once(&handler_once, install_handler);
  sigjmp_buf here;
  if (sigsetjmp(here, 1)) {
    escape = NULL;
    return false;
  }
  escape = &here;
  fn(argument);
  escape = NULL;
  return true;
}
