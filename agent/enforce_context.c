/* Waiting for all work of a context, but not for ever: the driver only offers to block, so a thread does
 * that, and is left behind where the device hangs. Owns that thread, one at a time. */
#include "agent/enforce_internal.h"

#include <pthread.h>
#include <time.h>

#include "agent/state.h"

#define STACK_BYTES (128u << 10)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* innermost; no call of the driver under it */
static pthread_cond_t changed;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool taken;       /* lock: somebody asks, or the thread of somebody who gave up still waits */
static bool finished;    /* lock: the thread has its answer */
static bool left_behind; /* lock: nobody wants it any more */
static uint64_t context; /* lock */
static rp_status answer; /* lock */

static void prepare(void) {
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_cond_init(&changed, &attributes);
  pthread_condattr_destroy(&attributes);
}

static void *wait_there(void *unused) {
  rp_thread.busy = 1; /* what this thread calls is the agent's own */
  pthread_mutex_lock(&lock);
  uint64_t of = context;
  pthread_mutex_unlock(&lock);
  rp_status status = rp_device_synchronize(of);
  pthread_mutex_lock(&lock);
  answer = status;
  finished = true;
  if (left_behind) taken = false;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
  return unused;
}

/* Under the lock: starts the thread, once there is none. */
static rp_status begin(uint64_t of, const struct timespec *until) {
  int error = 0;
  while (taken && error == 0)
    error = pthread_cond_timedwait(&changed, &lock, until);
  if (taken) return RP_ERROR_BUSY;
  finished = left_behind = false;
  context = of;
  if (rp_thread_start(wait_there, STACK_BYTES, NULL) != 0) return RP_ERROR_UNAVAILABLE;
  taken = true;
  return RP_OK;
}

/* Under the lock: the answer of the thread that was begun. */
static rp_status wait_for_answer(const struct timespec *until) {
  int error = 0;
  while (!finished && error == 0)
    error = pthread_cond_timedwait(&changed, &lock, until);
  left_behind = !finished;
  if (left_behind) return RP_ERROR_BUSY;
  taken = false;
  pthread_cond_broadcast(&changed);
  return answer;
}

rp_status rp__context_wait(uint64_t of, uint64_t until_ns) {
  const struct timespec until = {(time_t)(until_ns / 1000000000u), (long)(until_ns % 1000000000u)};
  int cancel_state;
  (void)pthread_once(&once, prepare);
  (void)pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
  pthread_mutex_lock(&lock);
  rp_status status = begin(of, &until);
  if (status == RP_OK) status = wait_for_answer(&until);
  pthread_mutex_unlock(&lock);
  (void)pthread_setcancelstate(cancel_state, &cancel_state);
  return status;
}
