/** @file transfers.h
 * Point-to-point transfers the way ProcessGroupNCCL makes them: one communicator, a stream of its own, an
 * event before each group that orders it after the compute stream, an event after it that consumers wait for.
 */
#ifndef RP_TRAINER_TRANSFERS_H
#define RP_TRAINER_TRANSFERS_H

#include <cuda_runtime_api.h>
#include <nccl.h>

#include "message.h"
#include "truth.h"

struct rp_transfers;
struct rp_work; /**< one posted group; lives until the end of the step */

struct rp_transfer {
  bool send;
  struct rp_buffer *buffer;        /**< a send takes over one user of it */
  struct rp_truth_receive receive; /**< of a receive: what to note */
  int peer;
};

/** Joins the communicator. `compute` is the stream whose work transfers come after. */
struct rp_transfers *rp_transfers_create(const ncclUniqueId *id, int ranks, int rank, cudaStream_t compute,
                                         struct rp_buffers *buffers, struct rp_truth *truth);
/** Sends one element to both neighbours and receives theirs, and waits for it. */
void rp_transfers_probe(struct rp_transfers *transfers, int ranks, int rank);
/** Posts transfers as one NCCL group; receives get their `lifetime` in their buffer. */
struct rp_work *rp_transfers_post(struct rp_transfers *transfers, const struct rp_transfer *list,
                                  size_t count);
/** Makes later work of the compute stream wait for the group, and gives up what it sent. NULL and a second
 * wait are allowed. With `broken` the wait itself is left out. */
void rp_work_wait(struct rp_transfers *transfers, struct rp_work *work, bool broken);
/** Waits for every group of the step that nobody has waited for. */
void rp_transfers_wait_all(struct rp_transfers *transfers);
/** Blocks until the comm stream is idle and forgets the step's groups. Ends the process on an asynchronous
 * error. */
void rp_transfers_end_step(struct rp_transfers *transfers);
ncclComm_t rp_transfers_communicator(const struct rp_transfers *transfers);
void rp_transfers_destroy(struct rp_transfers *transfers);

#endif
