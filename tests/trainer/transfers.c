// Point-to-point transfers. Owns the communicator, its streams, and the events of the groups of a step.
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
  ncclComm_t communicator, back; /**< `back`, for gradients, may be the same */
  cudaStream_t stream, other;    /**< `other` is NULL until it is wanted */
  int which;
  const cudaStream_t *compute;
  cudaEvent_t ready; /**< recorded on the compute stream again before each group */
  bool lax, doomed;
  struct rp_buffers *buffers;
  struct rp_truth *truth;
  struct rp_work *first, **last; /**< groups of the step in order */
  struct rp_work *idle;
};

struct rp_transfers *rp_transfers_create(const ncclUniqueId *id, int ranks, int rank, bool two,
                                         const cudaStream_t *compute, struct rp_buffers *buffers,
                                         struct rp_truth *truth) {
  struct rp_transfers *t = calloc(1, sizeof *t);
  if (t == NULL) rp_die("no memory");
  t->compute = compute;
  t->buffers = buffers;
  t->truth = truth;
  t->last = &t->first;
  RP_NCCL(ncclCommInitRank(&t->communicator, ranks, *id, rank));
  t->back = t->communicator;
  if (two) RP_NCCL(ncclCommSplit(t->communicator, 0, rank, &t->back, NULL));
  RP_CUDA(cudaStreamCreateWithFlags(&t->stream, cudaStreamNonBlocking));
  t->ready = rp_device_event();
  return t;
}

ncclComm_t rp_transfers_communicator(const struct rp_transfers *transfers) {
  return transfers->communicator;
}

cudaStream_t rp_transfers_stream(const struct rp_transfers *transfers) {
  return transfers->stream;
}

void rp_transfers_be_lax(struct rp_transfers *t, bool lax) {
  t->lax = lax;
}

void rp_transfers_use_stream(struct rp_transfers *t, int which) {
  if (which == t->which) return;
  cudaStream_t before = t->stream;
  if (t->other == NULL) RP_CUDA(cudaStreamCreateWithFlags(&t->other, cudaStreamNonBlocking));
  t->stream = t->other;
  t->other = before;
  t->which = which;
  rp_device_record(t->ready, before);
  rp_device_wait(t->stream, t->ready);
}

/** Ends the process, unless the communicator is about to be aborted anyway. */
static void check_nccl(const struct rp_transfers *t, ncclResult_t result, const char *call) {
  if (result != ncclSuccess && !t->doomed) rp_die("%s: %s", call, ncclGetErrorString(result));
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
  rp_device_synchronize(t->stream);
  rp_device_free(elements);
}

static struct rp_work *get_work(struct rp_transfers *t, size_t count) {
  struct rp_work *work = t->idle;
  if (work != NULL) {
    t->idle = work->next;
  } else {
    work = calloc(1, sizeof *work);
    if (work == NULL) rp_die("no memory");
    work->end = rp_device_event();
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

/** Orders the group after the compute stream; a lax one only after what it sends, where that is known. */
static void wait_for_compute(struct rp_transfers *t, const struct rp_transfer *list, size_t count) {
  bool lax = t->lax;
  for (size_t i = 0; i < count; i++)
    lax &= !list[i].send || list[i].buffer->ready != NULL;
  for (size_t i = 0; lax && i < count; i++)
    if (list[i].send) rp_device_wait(t->stream, list[i].buffer->ready);
  if (lax) return;
  rp_device_record(t->ready, *t->compute);
  rp_device_wait(t->stream, t->ready);
}

static void post_one(struct rp_transfers *t, const struct rp_transfer *op) {
  void *memory = op->buffer->memory;
  ncclComm_t communicator = op->back ? t->back : t->communicator;
  if (op->send) {
    check_nccl(t, ncclSend(memory, op->bytes, ncclUint8, op->peer, communicator, t->stream), "ncclSend");
    return;
  }
  if (!op->unrecorded) push_range(&op->receive);
  check_nccl(t, ncclRecv(memory, op->bytes, ncclUint8, op->peer, communicator, t->stream), "ncclRecv");
  if (!op->unrecorded) nvtxRangePop();
}

/** Notes what the group did: receives, and sends out of what was received. */
static void note(struct rp_transfers *t, const struct rp_transfer *list, size_t count,
                 const uint64_t *before_ns) {
  uint64_t after_ns = rp_now_ns();
  for (size_t i = 0; i < count; i++) {
    struct rp_buffer *buffer = list[i].buffer;
    if (list[i].unrecorded) continue;
    if (!list[i].send)
      buffer->lifetime = rp_truth_post(t->truth, &list[i].receive, before_ns[i], after_ns);
    else if (buffer->lifetime >= 0)
      rp_truth_access(t->truth, buffer->lifetime, "ncclSend", before_ns[i], after_ns);
  }
}

struct rp_work *rp_transfers_post(struct rp_transfers *t, const struct rp_transfer *list, size_t count) {
  struct rp_work *work = get_work(t, count);
  uint64_t *before_ns = calloc(count, sizeof *before_ns);
  if (before_ns == NULL) rp_die("no memory");
  wait_for_compute(t, list, count);
  check_nccl(t, ncclGroupStart(), "ncclGroupStart");
  for (size_t n = 0; n < 2 * count; n++) { /* both sides take the communicators in the same order */
    size_t i = n % count;
    bool second = list[i].back && t->back != t->communicator;
    if (second != (n >= count)) continue;
    before_ns[i] = rp_now_ns();
    post_one(t, &list[i]);
    if (list[i].send) work->sent[work->sent_count++] = list[i].buffer;
  }
  check_nccl(t, ncclGroupEnd(), "ncclGroupEnd");
  rp_device_record(work->end, t->stream);
  note(t, list, count, before_ns);
  free(before_ns);
  return work;
}

/** Gives up what the group sent. */
static void drop_sent(struct rp_transfers *t, struct rp_work *work) {
  for (size_t i = 0; i < work->sent_count && work->sent != NULL; i++)
    rp_buffer_release(t->buffers, work->sent[i], *t->compute);
  free(work->sent);
  work->sent = NULL;
}

void rp_work_wait(struct rp_transfers *t, struct rp_work *work, bool broken) {
  if (work == NULL || work->waited) return;
  work->waited = true;
  if (!broken) rp_device_wait(*t->compute, work->end);
  drop_sent(t, work);
}

void rp_transfers_wait_all(struct rp_transfers *t) {
  for (struct rp_work *work = t->first; work != NULL; work = work->next)
    rp_work_wait(t, work, false);
}

/** The step's groups can be used again. */
static void forget_groups(struct rp_transfers *t) {
  *t->last = t->idle;
  t->idle = t->first;
  t->first = NULL;
  t->last = &t->first;
}

void rp_transfers_end_step(struct rp_transfers *t) {
  ncclResult_t error = ncclSuccess;
  rp_device_synchronize(t->stream);
  RP_NCCL(ncclCommGetAsyncError(t->communicator, &error));
  if (error != ncclSuccess) rp_die("asynchronous NCCL error: %s", ncclGetErrorString(error));
  forget_groups(t);
}

void rp_transfers_doom(struct rp_transfers *t) {
  float *element = rp_device_alloc(sizeof *element);
  RP_NCCL(ncclAllReduce(element, element, 1, ncclFloat32, ncclMax, t->communicator, t->stream));
  rp_device_synchronize(t->stream);
  rp_device_free(element);
  t->doomed = true;
}

void rp_transfers_reconnect(struct rp_transfers *t, const ncclUniqueId *id, int ranks, int rank) {
  RP_NCCL(ncclCommAbort(t->communicator));
  RP_CUDA(cudaDeviceSynchronize());
  for (struct rp_work *work = t->first; work != NULL; work = work->next)
    drop_sent(t, work);
  forget_groups(t);
  RP_NCCL(ncclCommInitRank(&t->communicator, ranks, *id, rank));
  t->back = t->communicator;
  t->doomed = false;
}

void rp_transfers_destroy(struct rp_transfers *t) {
  while (t->idle != NULL) {
    struct rp_work *next = t->idle->next;
    RP_CUDA(cudaEventDestroy(t->idle->end));
    free(t->idle);
    t->idle = next;
  }
  if (t->back != t->communicator) RP_NCCL(ncclCommDestroy(t->back));
  RP_NCCL(ncclCommDestroy(t->communicator));
  RP_CUDA(cudaEventDestroy(t->ready));
  RP_CUDA(cudaStreamDestroy(t->stream));
  if (t->other != NULL) RP_CUDA(cudaStreamDestroy(t->other));
  free(t);
}
