/* The gate: one thread at a time changes memory or inserts waits, and gives the core lock up for each call of
 * the driver that this takes. Owns the flag and the condition, and what was asked for by those who may not
 * act themselves. */
#include "agent/enforce_internal.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "agent/agent.h"
#include "agent/log.h"
#include "agent/state.h"

static bool acting;          /* core lock */
static unsigned waiting;     /* core lock: threads in the condition */
static int cancel_state;     /* of who acts, before */
static pthread_cond_t acted; /* clock: monotonic */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static _Atomic bool abort_wanted;
static _Atomic int fallback_wanted;       /* enum rp_pool_reason, 0 = no */
static enum rp_pool_reason fallback_kept; /* core lock: the last one that was carried out */
static void (*last_words)(void);          /* set once, at the start */

static void prepare_condition(void) {
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_cond_init(&acted, &attributes);
  pthread_condattr_destroy(&attributes);
}

void rp_enforce_set_last_words(void (*write_report)(void)) {
  last_words = write_report;
}

/* ---- addresses that the driver gave away while somebody acted ---- */

/* What does not fit is taken for an address of ours that was freed, should it be freed: an error that the
 * driver would not give, so there is room for more than a thread can allocate meanwhile. */
#define REUSED_MOST 256
static struct { uint64_t address, bytes; } reused[REUSED_MOST]; /* core lock */
static size_t reused_count;                                     /* core lock */

static void tell_reused(uint64_t address, uint64_t bytes) {
  for (size_t i = 0; i < RP_ENFORCE_DEVICES; i++)
    if (rp__enforce.devices[i].guard) rp_guard_address_reused(rp__enforce.devices[i].guard, address, bytes);
}

void rp__gate_address_reused(uint64_t address, uint64_t bytes) {
  if (!acting) {
    tell_reused(address, bytes);
  } else if (reused_count < REUSED_MOST) {
    reused[reused_count].address = address;
    reused[reused_count++].bytes = bytes;
  }
}

/* ---- entering ---- */

/* Under the lock, nobody acts. */
static void carry_out_wishes(void) {
  int reason = atomic_exchange_explicit(&fallback_wanted, 0, memory_order_acq_rel);
  if (reason == 0) return;
  fallback_kept = (enum rp_pool_reason)reason;
  for (size_t i = 0; i < RP_ENFORCE_DEVICES; i++)
    if (rp__enforce.devices[i].guard)
      rp_guard_request_fallback(rp__enforce.devices[i].guard, (enum rp_pool_reason)reason);
}

/* Under the lock. A thread that is cancelled in the condition would keep the lock for ever. */
static bool wait_until_free(uint64_t nanoseconds) {
  struct timespec until;
  int before, error = 0;
  uint64_t now = rp_now_ns(), end = nanoseconds > UINT64_MAX - now ? UINT64_MAX : now + nanoseconds;
  until.tv_sec = (time_t)(end / 1000000000u);
  until.tv_nsec = (long)(end % 1000000000u);
  (void)pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
  waiting++;
  while (acting && error == 0)
    error = nanoseconds ? rp_agent_wait(&acted, &until) : rp_agent_wait(&acted, NULL);
  waiting--;
  (void)pthread_setcancelstate(before, &before);
  return !acting;
}

bool rp__gate_enter_within(uint64_t nanoseconds) {
  (void)pthread_once(&once, prepare_condition);
  if (!rp_agent_lock()) return false;
  if (acting && !wait_until_free(nanoseconds)) {
    rp_agent_unlock();
    return false;
  }
  if (atomic_load_explicit(&fallback_wanted, memory_order_relaxed)) carry_out_wishes();
  return true;
}

bool rp__gate_enter(void) {
  return rp__gate_enter_within(0);
}

static _Noreturn void end_process(void) {
  rp_warn_urgent(
      "a buffer was used in a way that RECVPOOL_ON_VIOLATION=abort does not allow: the process ends");
  rp_log_flush_urgent();
  if (last_words) last_words();
  abort();
}

void rp__gate_leave(void) {
  rp_agent_unlock();
  rp_log_flush_urgent();
  bool wanted = true;
  if (atomic_load_explicit(&abort_wanted, memory_order_relaxed) &&
      atomic_compare_exchange_strong(&abort_wanted, &wanted, false))
    end_process();
}

void rp__gate_want_abort(void) {
  atomic_store_explicit(&abort_wanted, true, memory_order_relaxed);
}

void rp__gate_act(void) {
  (void)pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
  rp_thread.busy = 1; /* what the driver tells of this thread's calls is no event of the program's */
  acting = true;
}

void rp__gate_acted(void) {
  int before = cancel_state;
  acting = false;
  rp_thread.busy = 0;
  for (size_t i = 0; i < RP_ENFORCE_DEVICES; i++)
    if (rp__enforce.devices[i].guard) rp_guard_pending_drain(rp__enforce.devices[i].guard);
  if (waiting) pthread_cond_broadcast(&acted);
  (void)pthread_setcancelstate(before, &before);
}

bool rp__gate_acting(void) {
  return acting;
}

enum rp_pool_reason rp__gate_fallback(void) {
  return fallback_kept;
}

void rp_enforce_request_fallback(enum rp_pool_reason reason) {
  atomic_store_explicit(&fallback_wanted, (int)reason, memory_order_release);
}
