/** @file enforce.h
 * Enforcing: the program's receive buffers live in pools, and nothing reaches the device that would reuse
 * memory too early. One guard for each device. In observe mode the guards are shadows: they see the same
 * events, change nothing, and the report says what enforcing would have done.
 *
 *   hook --> gate --> guard: prepare --+-- go ---------------------------------> the real call --> launched
 *                       ^              +-- act: waits, idle streams, memory --+
 *                       +-----------------------------------------------------+
 *   callback (too late to act) --> guard: seen, or pending while somebody acts
 *
 * The gate is a flag under the core lock (agent/agent.h). Who acts gives the lock up, calls CUDA, and takes
 * it again; interposed calls that need a guard wait for him meanwhile, callbacks never do. Nobody waits for
 * the device while he acts: what has to be idle first is polled for with the gate open.
 *
 * All of this goes on working when the rest of the library has gone passive, as long as there is a pool, and
 * passes everything through in a forked child.
 */
#ifndef RP_AGENT_ENFORCE_H
#define RP_AGENT_ENFORCE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "agent/config.h"
#include "agent/report.h"
#include "agent/state.h"
#include "agent/work.h"
#include "cupti/cuda_side.h"
#include "pool/guard.h"

/* ---- life ---- */

/** After rp_agent_start, before the first hook is in place. `plan` (NULL: none) is kept, it must live for
 * ever. `plan_problem`: why there is none although one was asked for ("" or NULL: no problem). In observe
 * mode only shadows are made. RP_ERROR_NO_MEMORY. */
rp_status rp_enforce_start(const struct rp_config *config, const struct rp_guard_plan *plan,
                           const char *plan_problem);

extern _Atomic bool rp_enforce_on_value;
/** Whether pools may exist: interposed calls go through the gate. One relaxed load, false in observe mode. */
static inline bool rp_enforce_on(void) {
  return atomic_load_explicit(&rp_enforce_on_value, memory_order_relaxed) && rp_state_get() != RP_STATE_CHILD;
}

/** The same, or observe mode, where the report tells what could not have been shared: for rare calls. */
static inline bool rp_enforce_watches(void) {
  return rp_enforce_on() || rp_state_is_on();
}

/** Back to one allocation per buffer at the next quiescent point. From any thread but a callback's. */
void rp_enforce_request_fallback(enum rp_pool_reason reason);
/** Violations so far, of all devices. */
uint64_t rp_enforce_violations(void);
/** Copies out what the guards know; free with rp_enforce_report_fini. False: somebody has been acting for too
 * long (the report goes without), or there is no memory. */
bool rp_enforce_collect(struct rp_enforce_report *out);
void rp_enforce_report_fini(struct rp_enforce_report *report);
/** Whether buffers share memory on some device, and for how many steps they have. For RECVPOOL_CUPTI=learn.
 */
bool rp_enforce_active(uint64_t *steps);
/** Called with the sentence to report when the policy is to end the process: writes the last report. */
void rp_enforce_set_last_words(void (*write_report)(void));

/* ---- memory: from interposed calls of the program, rp_enforce_on() ---- */

/** Whether an allocation of that size may be one for a pool. Cheap. */
bool rp_enforce_may_want(uint64_t bytes);
/** False: the driver's own allocation is to be used. A context must be current. */
bool rp_enforce_allocate(uint64_t bytes, uint64_t *address);

/** The driver had no memory for the program. True: buffers that nothing has used gave some back, so the call
 * may be made again. */
bool rp_enforce_memory_short(void);

/** The program's `function` is that of another library, at `path`, which has to see all memory: none of the
 * process is shared, with that reason. */
void rp_enforce_stand_aside(const char *function, const char *path);

enum rp_enforce_freed {
  RP_ENFORCE_NOT_OURS = 0,
  RP_ENFORCE_FREED,
  RP_ENFORCE_FREED_TWICE, /**< the program is told what the driver would tell it */
};
/** Waits for the device as cudaFree does, then frees. */
enum rp_enforce_freed rp_enforce_free(uint64_t address, uint64_t stream);

extern _Atomic bool rp__enforce_late;
void rp__enforce_free_late(void);
/** Frees what the program gave to the driver by calls that are not interposed: the driver does not know it.
 */
static inline void rp_enforce_free_late(void) {
  if (atomic_load_explicit(&rp__enforce_late, memory_order_relaxed)) rp__enforce_free_late();
}

/** A buffer of ours, for pointer queries. */
struct rp_enforce_buffer {
  uint64_t begin, bytes, context;
  bool backed;
  uint64_t sibling; /**< some address of ours that has memory, 0 if there is none */
};
bool rp_enforce_find(uint64_t address, struct rp_enforce_buffer *out);
/** Gives the buffer at `address` memory if it has none. */
void rp_enforce_touch(uint64_t address);
/** A range is about to be registered or exported (RP_POOL_FLAG_*). False: refuse. Also in observe mode, where
 * nothing is refused. */
bool rp_enforce_flag(uint64_t address, uint64_t bytes, uint32_t flag, uint32_t kind);

#define RP_ENFORCE_HANDLE_BYTES 64 /**< of a cudaIpcMemHandle_t */
enum rp_enforce_exported {
  RP_ENFORCE_EXPORT_NOT_OURS = 0,
  RP_ENFORCE_EXPORTED,
  RP_ENFORCE_EXPORT_REFUSED, /**< ours, and no other process can have it; a warning says so */
};
/** Fills in a handle of ours for another process, where `address` is in a buffer of ours, which then keeps
 * its memory for itself. Allocations of its size are the driver's own from then on. */
enum rp_enforce_exported rp_enforce_export(uint64_t address, void *handle);
/** Whether a handle (for another process) is one of ours. */
bool rp_enforce_is_export(const void *handle);
/** False: the handle is the driver's. Else it is ours, of another process's rp_enforce_export, and *result is
 * what the program is told. A context must be current. Also where nothing is enforced. */
bool rp_enforce_import(const void *handle, uint64_t *address, int *result);
/** The same for an address of rp_enforce_import. */
bool rp_enforce_import_end(uint64_t address, int *result);

/** The context, and all memory that came with it, is about to end; 0: the current one. */
void rp_enforce_context_ends(uint64_t context);
/** The same for the primary context of a device: about to end, or perhaps ended already. */
void rp_enforce_primary_ends(int device, bool ended);
/** The current device may read what is on `owner` from now on. */
void rp_enforce_peer(int owner);

/* ---- NCCL: from interposed calls of the program, also in observe mode ---- */

/** A receive, a send, or a range that a collective reads or writes. */
struct rp_enforce_transfer {
  bool receive;
  enum rp_pool_access_mode mode; /**< where it is no receive */
  int32_t peer;
  uint64_t comm, address, bytes;
  struct rp_order_site site;
  uint64_t seq, time_ns; /**< of its event */
  bool hit;              /**< set by rp_enforce_transfer_before: a guard knows the buffer */
};
/** What became of a call. */
enum rp_enforce_outcome {
  RP_ENFORCE_CALL_FAILED = 0,
  RP_ENFORCE_CALL_LAUNCHED,
  RP_ENFORCE_CALL_GOES_ON, /**< a communicator that does not block: NCCL launches it by itself */
};
/** Before the call. False: it must not be made. */
bool rp_enforce_transfer_before(struct rp_enforce_transfer *transfer);
/** After it; remembered until the end of the group where one is open. */
void rp_enforce_transfer_after(const struct rp_enforce_transfer *transfer, enum rp_enforce_outcome outcome);
/** Outermost begin and end of a group of this thread. */
void rp_enforce_group_begin(void);
void rp_enforce_group_end(enum rp_enforce_outcome outcome);
/** NCCL has said of a communicator that all is launched that went on (else: that it failed, or is no more).
 * Cheap where nothing goes on. */
void rp_enforce_comm_settled(uint64_t comm, bool launched);
/** A communicator is about to be aborted. */
void rp_enforce_interrupt(void);

void rp__enforce_settle(void);
/** At the begin of an interposed call that may put something on a stream: if the thread has just used a
 * shared buffer in a way that no interposed call showed, a milestone is placed behind that. One load if not.
 */
static inline void rp_enforce_settle(void) {
  if (rp_thread.owed_token && !rp_thread.busy) rp__enforce_settle();
}

/* ---- work: from interposed calls of the program, rp_enforce_on() ---- */

/** Before the call. False: it must not be made. */
bool rp_enforce_work_before(struct rp_work *work);
/** After it; not needed after a false. */
void rp_enforce_work_after(const struct rp_work *work, bool succeeded);

#endif
