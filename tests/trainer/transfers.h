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
  struct rp_buffer *buffer; /**< a send takes over one user of it */
  size_t bytes;
  struct rp_truth_receive receive; /**< of a receive: what to note */
  bool unrecorded;                 /**< a receive that is no part of the schedule */
  bool back;                       /**< of a gradient */
  int peer;
};

/** Joins the communicator, and with `two` splits one off it for gradients. `compute` says at any time which
 * stream's work transfers come after. */
struct rp_transfers *rp_transfers_create(const ncclUniqueId *id, int ranks, int rank, bool two,
                                         const cudaStream_t *compute, struct rp_buffers *buffers,
                                         struct rp_truth *truth);
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
/** Uses the first or the second of two streams from now on, after all that is on the other one. */
void rp_transfers_use_stream(struct rp_transfers *transfers, int which);
/** The mistake of waiting for what is sent only, and not for what else the compute stream does. */
void rp_transfers_be_lax(struct rp_transfers *transfers, bool lax);
/** Waits until all ranks are here. From then on until rp_transfers_reconnect, errors of the communicator do
 * not matter. */
void rp_transfers_doom(struct rp_transfers *transfers);
/** Aborts the communicator, gives up what the step sent, and joins another one. */
void rp_transfers_reconnect(struct rp_transfers *transfers, const ncclUniqueId *id, int ranks, int rank);
cudaStream_t rp_transfers_stream(const struct rp_transfers *transfers);
ncclComm_t rp_transfers_communicator(const struct rp_transfers *transfers);
void rp_transfers_destroy(struct rp_transfers *transfers);

#endif
