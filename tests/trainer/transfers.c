// Point-to-point transfers. Owns the communicator, its stream, and the events of the groups of a step.
#include "transfers.h"

#include <nvtx3/nvToolsExt.h>
#include <stdio.h>
#include <stdlib.h>

#include "device.h"
#include "stage.h"

#define RP_NCCL(call)                                                                                        \
  do {                                                                                                       \
    ncclResult_t rp_result_ = (call);                                                                        \
    if (rp_result_ != ncclSuccess) rp_die("%s: %s", #call, ncclGetErrorString(rp_result_));                  \
  } while (0)

struct rp_work {
  cudaEvent_t end;
  bool waited;
  struct rp_buffer **sent; /**< one user each, until waited */
  size_t sent_count;
  struct rp_work *next; /**< in the step's list, or in the list of reusable ones */
};

struct rp_transfers {
  ncclComm_t communicator;
  cudaStream_t stream, compute;
  cudaEvent_t ready; /**< recorded on the compute stream again before each group */
  struct rp_buffers *buffers;
  struct rp_truth *truth;
  struct rp_work *first, **last; /**< groups of the step in order */
  struct rp_work *idle;
};

struct rp_transfers *rp_transfers_create(const ncclUniqueId *id, int ranks, int rank, cudaStream_t compute,
                                         struct rp_buffers *buffers, struct rp_truth *truth) {
  struct rp_transfers *t = calloc(1, sizeof *t);
  if (t == NULL) rp_die("no memory");
  t->compute = compute;
  t->buffers = buffers;
  t->truth = truth;
  t->last = &t->first;
  RP_NCCL(ncclCommInitRank(&t->communicator, ranks, *id, rank));
  RP_CUDA(cudaStreamCreateWithFlags(&t->stream, cudaStreamNonBlocking));
  RP_CUDA(cudaEventCreateWithFlags(&t->ready, cudaEventDisableTiming));
  return t;
}

ncclComm_t rp_transfers_communicator(const struct rp_transfers *transfers) {
  return transfers->communicator;
}

void rp_transfers_probe(struct rp_transfers *t, int ranks, int rank) {
  float *elements = rp_device_alloc(4 * sizeof(float));
  RP_NCCL(ncclGroupStart());
  for (int side = 0; side < 2; side++) {
    int peer = side == 0 ? rank - 1 : rank + 1;
    if (peer < 0 || peer >= ranks) continue;
    RP_NCCL(ncclRecv(elements + side, 1, ncclFloat32, peer, t->communicator, t->stream));
    RP_NCCL(ncclSend(elements + 2 + side, 1, ncclFloat32, peer, t->communicator, t->stream));
  }
  RP_NCCL(ncclGroupEnd());
  RP_CUDA(cudaStreamSynchronize(t->stream));
  rp_device_free(elements);
}

static struct rp_work *get_work(struct rp_transfers *t, size_t count) {
  struct rp_work *work = t->idle;
  if (work != NULL) {
    t->idle = work->next;
  } else {
    work = calloc(1, sizeof *work);
    if (work == NULL) rp_die("no memory");
    RP_CUDA(cudaEventCreateWithFlags(&work->end, cudaEventDisableTiming));
  }
  work->waited = false;
  work->next = NULL;
  work->sent_count = 0;
  work->sent = calloc(count, sizeof(struct rp_buffer *));
  if (work->sent == NULL) rp_die("no memory");
  *t->last = work;
  t->last = &work->next;
  return work;
}

/** Names the receive for NVTX as torch names its actions; without a tool that listens this does nothing. */
static void push_range(const struct rp_truth_receive *receive) {
  char name[64];
  snprintf(name, sizeof name, "PP:%dRECV_%c%d", receive->stage,
           receive->direction == RP_ACTIVATION ? 'F' : 'B', receive->microbatch);
  nvtxRangePushA(name);
}

struct rp_work *rp_transfers_post(struct rp_transfers *t, const struct rp_transfer *list, size_t count) {
  struct rp_work *work = get_work(t, count);
  uint64_t *before_ns = calloc(count, sizeof *before_ns);
  if (before_ns == NULL) rp_die("no memory");
  RP_CUDA(cudaEventRecord(t->ready, t->compute));
  RP_CUDA(cudaStreamWaitEvent(t->stream, t->ready, 0));
  RP_NCCL(ncclGroupStart());
  for (size_t i = 0; i < count; i++) {
    const struct rp_transfer *op = &list[i];
    before_ns[i] = rp_now_ns();
    if (op->send) {
      RP_NCCL(
          ncclSend(op->buffer->memory, op->buffer->bytes, ncclUint8, op->peer, t->communicator, t->stream));
      work->sent[work->sent_count++] = op->buffer;
    } else {
      push_range(&op->receive);
      RP_NCCL(
          ncclRecv(op->buffer->memory, op->buffer->bytes, ncclUint8, op->peer, t->communicator, t->stream));
      nvtxRangePop();
    }
  }
  RP_NCCL(ncclGroupEnd());
  RP_CUDA(cudaEventRecord(work->end, t->stream));
  uint64_t after_ns = rp_now_ns();
  for (size_t i = 0; i < count; i++)
    if (!list[i].send)
      list[i].buffer->lifetime = rp_truth_post(t->truth, &list[i].receive, before_ns[i], after_ns);
  free(before_ns);
  return work;
}

void rp_work_wait(struct rp_transfers *t, struct rp_work *work, bool broken) {
  if (work == NULL || work->waited) return;
  work->waited = true;
  if (!broken) RP_CUDA(cudaStreamWaitEvent(t->compute, work->end, 0));
  for (size_t i = 0; i < work->sent_count; i++)
    rp_buffer_release(t->buffers, work->sent[i], t->compute);
  free(work->sent);
  work->sent = NULL;
}

void rp_transfers_wait_all(struct rp_transfers *t) {
  for (struct rp_work *work = t->first; work != NULL; work = work->next)
    rp_work_wait(t, work, false);
}

void rp_transfers_end_step(struct rp_transfers *t) {
  ncclResult_t error = ncclSuccess;
  RP_CUDA(cudaStreamSynchronize(t->stream));
  RP_NCCL(ncclCommGetAsyncError(t->communicator, &error));
  if (error != ncclSuccess) rp_die("asynchronous NCCL error: %s", ncclGetErrorString(error));
  *t->last = t->idle;
  t->idle = t->first;
  t->first = NULL;
  t->last = &t->first;
}

void rp_transfers_destroy(struct rp_transfers *t) {
  while (t->idle != NULL) {
    struct rp_work *next = t->idle->next;
    RP_CUDA(cudaEventDestroy(t->idle->end));
    free(t->idle);
    t->idle = next;
  }
  RP_NCCL(ncclCommDestroy(t->communicator));
  RP_CUDA(cudaEventDestroy(t->ready));
  RP_CUDA(cudaStreamDestroy(t->stream));
  free(t);
}
