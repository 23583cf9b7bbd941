/* State of the library, fork, and what each thread carries: call depths and cost counters. Owns the fixed
 * registry of thread counters; no cache line is written by two threads as long as there are no more threads
 * than lines. */
#include "agent/state.h"

#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define THREADS_COUNTED 1024
/* One in this many callbacks is timed. */
#define TIMED_EVERY 64

_Atomic int rp_agent_state_value = RP_STATE_OFF;
_Thread_local struct rp_thread rp_thread __attribute__((tls_model("initial-exec")));

static struct rp_thread_counts counts[THREADS_COUNTED];
static _Atomic uint32_t counts_high; /* lines ever taken */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t thread_end_key;
static bool have_key;
static pid_t own_pid;

enum rp_agent_state rp_state_get(void) {
  return (enum rp_agent_state)atomic_load_explicit(&rp_agent_state_value, memory_order_acquire);
}

void rp_state_set(enum rp_agent_state state) {
  int now = atomic_load_explicit(&rp_agent_state_value, memory_order_acquire);
  while (now != RP_STATE_CHILD &&
         !atomic_compare_exchange_weak_explicit(&rp_agent_state_value, &now, (int)state, memory_order_acq_rel,
                                                memory_order_acquire)) {
  }
}

static void in_child(void) {
  atomic_store_explicit(&rp_agent_state_value, RP_STATE_CHILD, memory_order_release);
}

static void at_thread_end(void *line) {
  struct rp_thread_counts *mine = line;
  rp_thread.counts = NULL;
  atomic_store_explicit(&mine->taken, false, memory_order_release);
}

static void prepare(void) {
  own_pid = getpid();
  have_key = pthread_key_create(&thread_end_key, at_thread_end) == 0;
  (void)pthread_atfork(NULL, NULL, in_child);
}

void rp_state_watch_fork(void) {
  (void)pthread_once(&once, prepare);
}

bool rp_state_is_own_process(void) {
  return own_pid == getpid() && rp_state_get() != RP_STATE_CHILD;
}

static void raise_high(uint32_t to) {
  uint32_t now = atomic_load_explicit(&counts_high, memory_order_relaxed);
  while (now < to && !atomic_compare_exchange_weak_explicit(&counts_high, &now, to, memory_order_release,
                                                            memory_order_relaxed)) {
  }
}

static __attribute__((noinline)) struct rp_thread_counts *take_line(void) {
  for (uint32_t i = 0; i < THREADS_COUNTED - 1; i++) {
    bool free_line = false;
    if (!atomic_compare_exchange_strong_explicit(&counts[i].taken, &free_line, true, memory_order_acq_rel,
                                                 memory_order_relaxed))
      continue;
    raise_high(i + 1);
    rp_thread.counts = &counts[i];
    if (have_key) (void)pthread_setspecific(thread_end_key, &counts[i]);
    return &counts[i];
  }
  raise_high(THREADS_COUNTED);
  return rp_thread.counts =
             &counts[THREADS_COUNTED - 1]; /* shared: a few counts may get lost, nothing else */
}

struct rp_thread_counts *rp_thread_counts(void) {
  struct rp_thread_counts *mine = rp_thread.counts;
  return mine ? mine : take_line();
}

uint32_t rp_thread_id(void) {
  if (rp_thread.tid == 0) rp_thread.tid = (uint32_t)syscall(SYS_gettid);
  return rp_thread.tid;
}

uint64_t rp_thread_counts_sum(size_t offset) {
  uint64_t sum = 0;
  uint32_t high = atomic_load_explicit(&counts_high, memory_order_acquire);
  for (uint32_t i = 0; i < high; i++)
    sum += atomic_load_explicit((const _Atomic uint64_t *)((const char *)&counts[i] + offset),
                                memory_order_relaxed);
  return sum;
}

uint64_t rp_now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t rp_cost_begin(void) {
  struct rp_thread_counts *mine = rp_thread_counts();
  uint64_t number = atomic_load_explicit(&mine->callbacks, memory_order_relaxed);
  atomic_store_explicit(&mine->callbacks, number + 1, memory_order_relaxed);
  return number % TIMED_EVERY == 0 ? rp_now_ns() : 0;
}

void rp_cost_end(uint64_t started_ns) {
  if (started_ns == 0) return;
  struct rp_thread_counts *mine = rp_thread_counts();
  rp_count(&mine->timed, 1);
  rp_count(&mine->timed_ns, rp_now_ns() - started_ns);
}

int rp_thread_start(void *(*run)(void *), size_t stack_bytes, const char *name) {
  pthread_t thread;
  pthread_attr_t attributes;
  sigset_t all, before;
  sigfillset(&all);
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, stack_bytes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int error = pthread_create(&thread, &attributes, run, NULL);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  pthread_attr_destroy(&attributes);
  if (error == 0 && name) (void)pthread_setname_np(thread, name);
  return error;
}
