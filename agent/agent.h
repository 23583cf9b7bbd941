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

/** Creates the tracker. Before anything is emitted. RP_ERROR_NO_MEMORY. */
rp_status rp_agent_start(const struct rp_config *config);
/** No event is taken any more; what is open is closed. */
void rp_agent_finish(void);
/** The sink that CUPTI callbacks go to. */
const struct rp_cuda_sink *rp_agent_sink(void);

/** A call at the driver boundary that `source` saw; ignored where the other source reports it. */
void rp_agent_op(const struct rp_cuda_op *op, enum rp_event_source source);
/** A launch that the interposer saw while there is no CUPTI. */
void rp_agent_launch(const struct rp_cuda_launch *launch);

/** A receive (or send) is about to be posted. */
void rp_agent_transfer(bool receive, uint64_t comm, int32_t peer, uint64_t address, uint64_t bytes,
                       uint64_t stream);
/** Outermost group begin or end of this thread. */
void rp_agent_group(bool start);
/** A communicator exists: own rank, number of ranks, hash of its unique id (0 if unknown). */
void rp_agent_comm_init(uint64_t comm, int32_t rank, int32_t ranks, uint64_t id_hash);
/** A communicator goes away. */
void rp_agent_comm_destroy(uint64_t comm, bool aborted);
/** Hash of a communicator's id, 0 if it is not known. */
uint64_t rp_agent_comm_hash(uint64_t comm);

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
