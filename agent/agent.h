/** @file agent.h
 * The core of the injected library: everything seen becomes an event here, and goes to the tracker under one
 * mutex.
 *
 *   CUPTI callback ---+                                        +-> range filter (what is a receive buffer)
 *   interposed call --+--> rp_agent_* --> event --> tracker ---+
 *   NCCL profiler ----+                                        +-> snapshot --> report
 *
 * The mutex is taken for posts, allocations and hits only, is never held across a CUDA, NCCL or loader call,
 * and is the innermost lock of the library.
 */
#ifndef RP_AGENT_AGENT_H
#define RP_AGENT_AGENT_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "agent/config.h"
#include "agent/report.h"
#include "agent/work.h"
#include "cupti/cuda_side.h"
#include "recvpool/event.h"

/** Takes the core lock: it also protects the process's order of streams (agent/ordering.h) and the guards.
 * False, and nothing is taken, where this thread is inside it already. Nothing of CUDA, NCCL or the loader
 * may be called until rp_agent_unlock. */
bool rp_agent_lock(void);
void rp_agent_unlock(void);
/** Under the core lock: gives it up, waits for the condition (until `until` on the condition's clock, NULL:
 * for ever) and takes it again. Answers as pthread_cond_timedwait. */
int rp_agent_wait(pthread_cond_t *condition, const struct timespec *until);

/** Told under the core lock of what the guards have to know; see agent/enforce.h. Functions may be NULL. */
struct rp_agent_listener {
  /** An operation that nobody asked a guard about before it went on. */
  void (*seen)(const struct rp_work *work);
  /** The program's own memory came (bytes not 0) or goes. */
  void (*memory)(uint64_t address, uint64_t bytes, int device);
  /** A receive that no interposed call announced. */
  void (*ungated_receive)(uint64_t address);
  /** The process has a communicator, its first or another. */
  void (*communicator)(void);
};
/** Before anything is emitted. Copied. */
void rp_agent_set_listener(const struct rp_agent_listener *listener);

/** Where this thread is, on `stream`. Asks the driver: outside of the core lock. */
struct rp_order_site rp_agent_site(uint64_t stream);
/** The same where RP_EVENT_FLAG_PDL and RP_EVENT_FLAG_CAPTURED are known. */
struct rp_order_site rp_agent_site_of(uint64_t stream, uint32_t event_flags);

/** Under the core lock: the allocation that contains `address`; zeros where none is known. */
void rp_agent_allocation_of(uint64_t address, uint64_t *begin, uint64_t *bytes);
/** Under the core lock: whether an allocation begins at `address`. */
bool rp_agent_allocation_known(uint64_t address);
/** Under the core lock: memory that an interposed call gave the program (RP_EVENT_ALLOC) or takes back
 * (RP_EVENT_FREE). */
void rp_agent_note_memory(enum rp_event_kind kind, uint64_t address, uint64_t bytes, int device);
/** Under the core lock: which channel the buffers of the last complete steps belong to. Freed by the caller;
 * NULL and 0 where nothing is known. RP_ERROR_NO_MEMORY. */
rp_status rp_agent_channels(struct rp_guard_channel **channels, size_t *count);
/** A range to be looked for in launches, besides the receive buffers that the tracker found; and no more.
 * Takes the core lock unless this thread has it. */
void rp_agent_watch(uint64_t begin, uint64_t end);
void rp_agent_unwatch(uint64_t begin, uint64_t end);
/** Whether something in [begin, end) is looked for. Takes no lock. */
bool rp_agent_watched(uint64_t begin, uint64_t end);

/** Creates the tracker. Before anything is emitted. RP_ERROR_NO_MEMORY. */
rp_status rp_agent_start(const struct rp_config *config);
/** No event is taken any more; what is open is closed. */
void rp_agent_finish(void);
/** The sink that CUPTI callbacks go to. */
const struct rp_cuda_sink *rp_agent_sink(void);

/** A call at the driver boundary that `source` saw; ignored where the other source reports it. */
void rp_agent_op(const struct rp_cuda_op *op, enum rp_event_source source);
/** A launch that an interposed call is about to make. True: it names a receive buffer, and `work` and `words`
 * (which it refers to) say what; the caller asks the guards, or tells them with rp_agent_seen. */
bool rp_agent_launch(const struct rp_cuda_launch *launch, struct rp_launch_words *words,
                     struct rp_work *work);
/** The same for a copy or a memset. */
bool rp_agent_copy(const struct rp_cuda_op *op, struct rp_work *work);
/** The same for the launch of a graph. */
bool rp_agent_graph(const struct rp_cuda_op *op, struct rp_work *work);
/** After success and before rp_ordering_work_end: tells the guards of work that they were not asked about. */
void rp_agent_seen(const struct rp_work *work);

/** A receive (or send) is about to be posted at `site`. Its place in the host's order and its time are filled
 * in (both may be NULL). */
void rp_agent_transfer(bool receive, uint64_t comm, int32_t peer, uint64_t address, uint64_t bytes,
                       const struct rp_order_site *site, uint64_t *seq, uint64_t *time_ns);
/** Outermost group begin or end of this thread. */
void rp_agent_group(bool start);
/** A communicator exists: own rank, number of ranks, hash of its unique id (0 if unknown). */
void rp_agent_comm_init(uint64_t comm, int32_t rank, int32_t ranks, uint64_t id_hash);
/** A communicator goes away. */
void rp_agent_comm_destroy(uint64_t comm, bool aborted);
/** How many ranks a communicator has; 1 where that is not known. */
uint64_t rp_agent_comm_ranks(const void *comm);
/** Hash of a communicator's id, 0 if it is not known. */
uint64_t rp_agent_comm_hash(uint64_t comm);
/** Under the lock: whether two communicators surely have the same processes under the same ranks. Nothing
 * says who is in one: both have as many, of which this one has the same rank. Of two that can be a
 * coincidence, where the job (`world_size`, -1: not known) has more. */
bool rp_agent_same_members(uint64_t comm, uint64_t other, int world_size);

/** The profiler plugin saw a transfer, after its launch. It counts only if no interposed call announced it;
 * then the communicator is introduced first. */
void rp_agent_profiled_transfer(bool receive, const struct rp_comm_info *comm, int32_t peer, uint64_t address,
                                uint64_t bytes);
/** From now on posts are remembered until the plugin confirms them. */
void rp_agent_expect_profiler(void);

/** Text of a function id; "" if it has none. For reports. */
const char *rp_agent_function_name(void *context, uint64_t function);

/** What the report needs of the agent, in one go. Release snapshot with rp_snapshot_fini; `comms` holds
 * `capacity`. */
rp_status rp_agent_collect(struct rp_snapshot *snapshot, struct rp_agent_cost *cost,
                           struct rp_comm_info *comms, size_t capacity, size_t *comm_count);
/** CLOCK_MONOTONIC of the first receive, 0 if there was none. */
uint64_t rp_agent_first_receive_ns(void);
/** Transfers that interposed calls announced. */
uint64_t rp_agent_interposed_transfers(void);
/** Transfers that only the profiler saw, and those that both did. */
void rp_agent_profiler_counts(uint64_t *unmatched, uint64_t *matched);

#endif
