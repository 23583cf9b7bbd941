/* Requests to the library's one thread. Owns the lock and the conditions that it sleeps on and others wait
 * for it with. */
#include "agent/requests.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "agent/interpose.h"
#include "agent/state.h"

#define SCAN_WAIT_NS 100000000u  /* an interposed call waits no longer than this for a scan */
#define STOP_WAIT_NS 2000000000u /* the end waits no longer than this for the thread */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wake, progress;
static bool running, stop, wanted;           /* lock */
static uint64_t scans_begun, scans_complete; /* lock */
static _Atomic bool driver_ready;
static _Atomic uint64_t scanned_changes;   /* state of the module list that is patched */
static _Atomic uint64_t requested_changes; /* state somebody asked for */

static struct timespec from_now(uint64_t nanoseconds) {
  struct timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  uint64_t total = (uint64_t)at.tv_nsec + nanoseconds;
  at.tv_sec += (time_t)(total / 1000000000u);
  at.tv_nsec = (long)(total % 1000000000u);
  return at;
}

/* ---- modules ---- */

void rp_request_modules_scanned(uint64_t changes) {
  atomic_store_explicit(&scanned_changes, changes, memory_order_release);
  atomic_store_explicit(&requested_changes, changes, memory_order_release);
}

/* True for the first caller that notices a change. */
static bool request_scan(uint64_t changes) {
  if (changes == atomic_load_explicit(&scanned_changes, memory_order_acquire)) return false;
  uint64_t before = atomic_exchange_explicit(&requested_changes, changes, memory_order_acq_rel);
  if (before == changes) return false;
  if (!rp_lock(&lock)) return false; /* the thread looks by itself before long */
  wanted = true;
  pthread_cond_signal(&wake);
  rp_unlock(&lock);
  return true;
}

void rp_request_scan(void) {
  (void)request_scan(rp_interpose_module_changes());
}

void rp_request_scan_and_wait(void) {
  int saved = errno;
  uint64_t changes = rp_interpose_module_changes();
  if (!request_scan(changes)) return;
  struct timespec until = from_now(SCAN_WAIT_NS);
  int cancel_state;
  if (!rp_lock(&lock)) return;
  /* the thread may have been cancelled; it shall not end here, where it would keep the lock for ever */
  (void)pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
  uint64_t enough = scans_begun + 1; /* a scan that is under way may have passed the new module already */
  while (running && !stop && scans_complete < enough &&
         atomic_load_explicit(&scanned_changes, memory_order_acquire) != changes)
    if (pthread_cond_timedwait(&progress, &lock, &until) != 0) break;
  rp_unlock(&lock);
  (void)pthread_setcancelstate(cancel_state, &cancel_state);
  errno = saved;
}

uint64_t rp_request_scan_due(void) {
  uint64_t changes = rp_interpose_module_changes();
  if (changes == atomic_load_explicit(&scanned_changes, memory_order_acquire)) return 0;
  pthread_mutex_lock(&lock);
  uint64_t number = ++scans_begun;
  pthread_mutex_unlock(&lock);
  return number;
}

/* Pinning a module changes nothing in the loader's count, so the state seen before the scan is the one
 * patched. */
void rp_request_scan_done(uint64_t number, uint64_t changes) {
  atomic_store_explicit(&scanned_changes, changes, memory_order_release);
  pthread_mutex_lock(&lock);
  scans_complete = number;
  pthread_cond_broadcast(&progress);
  pthread_mutex_unlock(&lock);
}

/* ---- the driver ---- */

void rp_request_driver_initialised(void) {
  if (atomic_load_explicit(&driver_ready, memory_order_relaxed) || !rp_lock(&lock)) return;
  atomic_store_explicit(&driver_ready, true, memory_order_release);
  wanted = true;
  pthread_cond_signal(&wake);
  rp_unlock(&lock);
}

bool rp_request_driver_ready(void) {
  return atomic_load_explicit(&driver_ready, memory_order_acquire);
}

/* ---- the thread ---- */

void rp_request_thread_begins(void) {
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_cond_init(&wake, &attributes);
  pthread_cond_init(&progress, &attributes);
  pthread_condattr_destroy(&attributes);
  running = true;
}

void rp_request_thread_ended(void) {
  pthread_mutex_lock(&lock);
  running = false;
  pthread_cond_broadcast(&progress);
  pthread_mutex_unlock(&lock);
}

bool rp_request_sleep(uint64_t nanoseconds) {
  struct timespec until = from_now(nanoseconds);
  pthread_mutex_lock(&lock);
  if (!stop && !wanted) (void)pthread_cond_timedwait(&wake, &lock, &until);
  wanted = false;
  bool stopping = stop;
  pthread_mutex_unlock(&lock);
  return !stopping;
}

bool rp_request_stop(bool *had_thread) {
  struct timespec until = from_now(STOP_WAIT_NS);
  int cancel_state;
  if (!rp_lock(&lock)) return false;
  (void)pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
  *had_thread = running;
  stop = true;
  pthread_cond_broadcast(&wake);
  while (running)
    if (pthread_cond_timedwait(&progress, &lock, &until) != 0) break;
  rp_unlock(&lock);
  (void)pthread_setcancelstate(cancel_state, &cancel_state);
  return true;
}
