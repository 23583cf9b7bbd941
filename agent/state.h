/** @file state.h
 * The one atomic state of the injected library, and what each thread carries.
 */
#ifndef RP_AGENT_STATE_H
#define RP_AGENT_STATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum rp_agent_state {
  RP_STATE_OFF = 0,      /**< not attached, or switched off */
  RP_STATE_STARTING = 1, /**< inside InitializeInjection */
  RP_STATE_ON = 2,
  RP_STATE_PASSIVE = 3, /**< gave up or finished: every call passes through */
  RP_STATE_CHILD = 4    /**< a forked child: touches nothing of its parent's */
};

extern _Atomic int rp_agent_state_value;

/** Whether events are taken. One relaxed load. */
static inline bool rp_state_is_on(void) {
  return atomic_load_explicit(&rp_agent_state_value, memory_order_relaxed) == RP_STATE_ON;
}

/** Current state. */
enum rp_agent_state rp_state_get(void);
/** Enters `state`; a child stays a child. */
void rp_state_set(enum rp_agent_state state);
/** Registers the fork handler, once per process. */
void rp_state_watch_fork(void);
/** True in the process that attached; false in any child of it, however it was made. */
bool rp_state_is_own_process(void);

/** Kinds of interposed calls that can be in a thread's call stack. */
enum rp_call_kind { RP_CALL_NCCL = 0, RP_CALL_ALLOC = 1, RP_CALL_WORK = 2, RP_CALL_KINDS = 3 };

/** Counters of one thread; written by it alone, read by the report. Kept after the thread ends, then reused.
 */
struct rp_thread_counts {
  _Alignas(64) _Atomic uint64_t operations;
  _Atomic uint64_t callbacks;
  _Atomic uint64_t hits;
  _Atomic uint64_t timed;
  _Atomic uint64_t timed_ns;
  _Atomic bool taken;
};

/** A thread's own bytes. */
struct rp_thread {
  struct rp_thread_counts *counts; /**< NULL until first used */
  uint64_t callback_started_ns;    /**< of the callback being timed, else 0 */
  uint64_t order_thread; /**< id for the order of streams, 0 until first used; see agent/ordering.h */
  uint64_t order_work;   /**< work that this thread has begun, 0 = none */
  uint64_t order_object; /**< object and kind of the order-making call that is interposed, kind 0 = none */
  uint8_t order_kind;
  uint8_t order_copy;   /**< enum rp_order_copy of order_work */
  uint8_t order_hooked; /**< interposed calls in the call stack that tell their work themselves */
  uint8_t order_wanted; /**< the next work's token will be asked for */
  uint8_t
      order_learned; /**< the thread has waited for something since it last told work on a legacy stream */
  uint64_t work_seq, work_time_ns; /**< of the first event of the work that this thread told last */
  uint64_t group;                  /**< number of the open NCCL group, unique in the process; 0 = none */
  uint64_t owed_token,
      owed_stream, /**< access that was only seen, with no milestone behind it yet; 0 = none */
      owed_context;
  struct rp_enforce_group *transfers; /**< of the open group, posted and not launched; see agent/enforce.h */
  uint32_t tid;
  uint32_t in_flight;   /**< calls that a guard was asked about and that are not made yet */
  uint16_t group_depth; /**< ncclGroupStart without its end */
  uint8_t busy;         /**< inside a callback of ours, or inside a CUDA call that the agent makes */
  uint8_t locked;       /**< inside rp_lock */
  uint8_t handled;      /**< an interposed call has dealt with the operation that it is about to make */
  uint8_t asked;        /**< one has asked the guards about all operations that it is about to make */
  uint8_t depth[RP_CALL_KINDS]; /**< interposed calls of each kind in the call stack */
};

extern _Thread_local struct rp_thread rp_thread __attribute__((tls_model("initial-exec")));

/** The calling thread's counters; the last ones are shared when there are too many threads. Never NULL. */
struct rp_thread_counts *rp_thread_counts(void);
/** Kernel's id of the calling thread. */
uint32_t rp_thread_id(void);

/** Adds to a counter that only this thread writes (or one of the shared ones). */
static inline void rp_count(_Atomic uint64_t *counter, uint64_t by) {
  atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + by,
                        memory_order_relaxed);
}

/** Sum of one counter over all threads that ever were: pass its offset in struct rp_thread_counts. */
uint64_t rp_thread_counts_sum(size_t offset);

/** An interposed call begins. True if it is the outermost of its kind and not part of an NCCL call: the
 * caller reports it. Always answered by rp_call_end. */
static inline bool rp_call_begin(enum rp_call_kind kind) {
  bool outermost = rp_thread.depth[kind]++ == 0;
  return outermost && rp_state_is_on() && !rp_thread.busy;
}
static inline void rp_call_end(enum rp_call_kind kind) {
  rp_thread.depth[kind]--;
}
/** After rp_call_begin, whatever the state of the library is: the call is the program's own, made neither by
 * another interposed call of its kind, nor by NCCL (unless it is one of NCCL's), nor by the agent. */
static inline bool rp_call_is_programs(enum rp_call_kind kind) {
  return rp_thread.depth[kind] == 1 && !rp_thread.busy &&
         (kind == RP_CALL_NCCL || rp_thread.depth[RP_CALL_NCCL] == 0);
}

/** Inside a callback: does the work that it tells of come from a call that is interposed, so that enforcing asks
 * before it is made? */
static inline bool rp_call_is_stoppable(void) {
  return rp_thread.depth[RP_CALL_WORK] > 0 && rp_thread.depth[RP_CALL_NCCL] == 0;
}

/** Takes a lock of the library, unless this thread is inside one already: a signal handler of the program, or
 * an allocator of it that calls CUDA, can get here from there and would wait for itself. Then false, and the
 * caller goes without. */
static inline bool rp_lock(pthread_mutex_t *lock) {
  if (rp_thread.locked) return false;
  rp_thread.locked = 1;
  atomic_signal_fence(memory_order_seq_cst); /* a signal between here and the lock finds the flag set */
  pthread_mutex_lock(lock);
  return true;
}
/** Gives back what rp_lock took. */
static inline void rp_unlock(pthread_mutex_t *lock) {
  pthread_mutex_unlock(lock);
  atomic_signal_fence(memory_order_seq_cst);
  rp_thread.locked = 0;
}

/** Starts a detached thread of the library with `run(NULL)`, in which no signal of the program is handled.
 * `name` may be NULL: it keeps the program's. 0, or what pthread_create says. */
int rp_thread_start(void *(*run)(void *), size_t stack_bytes, const char *name);

/** Counts one callback or interposed call; its start time if it is one of those that are timed, else 0. */
uint64_t rp_cost_begin(void);
/** Ends the timed part begun with rp_cost_begin. */
void rp_cost_end(uint64_t started_ns);
/** CLOCK_MONOTONIC. */
uint64_t rp_now_ns(void);

#endif
