/** @file ordering.h
 * Feeds the process's one happens-before order of streams (pool/order.h) from its CUDA calls.
 *
 *   interposed call --+--> begin --> the real call --> end --> pool/order, under the core lock
 *   driver callback --+
 *
 * A call that both see is told once: callbacks of the call that an interposed call of the same kind is making
 * are left aside. Calls made by NCCL and other libraries are edges like any other. It goes on when the rest
 * of the library has gone passive, for pools go on too; in a forked child it is off.
 *
 * Without driver callbacks only interposed calls are told. Edges that others make are missed then, and an
 * event that an interposed call recorded and another call records again is trusted for what it was.
 *
 * While no access has been told nothing can be ordered, and calls that could only carry order cost a load or
 * two. Otherwise each begin and each end takes the core lock once. Functions without another word may be
 * called by any thread, in callbacks too, outside of the core lock; they ask the driver questions at most.
 */
#ifndef RP_AGENT_ORDERING_H
#define RP_AGENT_ORDERING_H

#include <stdbool.h>
#include <stdint.h>

#include "cupti/cuda_side.h"
#include "pool/order.h"

/** Creates the order; before the first hook is in place. RP_ERROR_NO_MEMORY. */
rp_status rp_ordering_start(void);
/** Whether calls are told. */
bool rp_ordering_on(void);
/** The order, to be asked and told under the core lock only; NULL before rp_ordering_start. */
struct rp_order *rp_ordering(void);
/** `enter` takes the core lock once nobody uses what he found in the order (false: this thread is inside it
 * already). Interposed calls that end something go by it. Before the first hook is in place. */
void rp_ordering_use_gate(bool (*enter)(void));
/** What did not fit, for the report. All zero if it cannot be had. */
struct rp_order_counts rp_ordering_counts(void);
/** Host memory that the order holds. */
uint64_t rp_ordering_bytes(void);

/* ---- where a call is made ---- */

/** Id of the calling thread for the order: never another's, in all of the process's life. */
uint64_t rp_ordering_thread(void);
/** Stream captures that have begun in the process. Thread-safe. */
uint64_t rp_ordering_captures_begun(void);
/** Where the calling thread is, on `stream` (as in struct rp_cuda_op). `event_flags`: RP_EVENT_FLAG_PDL and
 * RP_EVENT_FLAG_CAPTURED, where they are known. */
struct rp_order_site rp_ordering_site(uint64_t stream, uint32_t event_flags);

/* ---- work ---- */

/** The work that this thread is about to begin has accesses that matter: its token will be asked for. Before
 * rp_ordering_work_begin (in callbacks: from launch_hit and op of the sink). */
void rp_ordering_want(void);
/** Inside an interposed call, before the real one: callbacks leave the work that it makes aside until
 * rp_ordering_work_end, which always follows. */
uint64_t rp_ordering_work_begin(const struct rp_cuda_work *work);
/** After it. */
void rp_ordering_work_end(const struct rp_cuda_work *work, uint64_t begun, bool succeeded);
/** Under the core lock, after success and before rp_ordering_work_end (in callbacks: from launch_done and
 * op_done of the sink): the token of the work that this thread has begun on the site's stream. Without such
 * work the site is told as an access that was launched some time ago: of a transfer, by NCCL. */
rp_order_token rp_ordering_access(const struct rp_order_site *site);

/* ---- calls that order ---- */

/** Inside an interposed call, before the real one. Always answered by rp_ordering_end. */
struct rp_ordering_call {
  struct rp_cuda_order call; /**< may be completed before rp_ordering_end */
  uint64_t begun;
  uint64_t outer_object; /**< of the interposed call that this one is made by */
  uint8_t outer_kind;
};
void rp_ordering_begin(struct rp_ordering_call *call);
void rp_ordering_end(struct rp_ordering_call *call, bool succeeded);

/** Before a context is destroyed, 0: the current one. */
void rp_ordering_context_ends(uint64_t context);

/** For the sink: the same for callbacks. */
uint64_t rp_ordering_seen_begin(const struct rp_cuda_order *call);
void rp_ordering_seen_end(const struct rp_cuda_order *call, uint64_t begun, bool succeeded);
uint64_t rp_ordering_seen_work_begin(const struct rp_cuda_work *work);
/** The work begun is the current one of this thread again; with RP_CUDA_WORK_WANTED in `begun`. */
void rp_ordering_seen_work_resume(const struct rp_cuda_work *work, uint64_t begun);
void rp_ordering_seen_work_end(const struct rp_cuda_work *work, uint64_t begun, bool succeeded);

/** Before the core lock is given back: keeps what is read without it up to date. */
void rp_ordering_refresh(void);

#endif
