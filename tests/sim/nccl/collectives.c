/* Owns the public operations: their arguments are checked here and become tasks. */
#include "nccl_internal.h"

static bool reducible(ncclDataType_t type) {
  return type != ncclFloat8e4m3 && type != ncclFloat8e5m2;
}

static ncclResult_t refuse(const char *name, const char *what) {
  sim_set_error("%s: %s is not valid", name, what);
  return sim_group_error(ncclInvalidArgument);
}

/* Checks what all operations have in common and enqueues. */
static ncclResult_t submit(const char *name, const struct sim_task *task) {
  if (sim_comm_check(task->comm, name) != ncclSuccess) return sim_group_error(ncclInvalidArgument);
  bool reduces = task->function == SIM_ALL_REDUCE || task->function == SIM_REDUCE ||
                 task->function == SIM_REDUCE_SCATTER;
  bool roots = task->function != SIM_ALL_REDUCE && task->function != SIM_ALL_GATHER &&
               task->function != SIM_REDUCE_SCATTER;
  bool is_root = task->comm->rank == task->root;
  bool sends = task->function != SIM_RECV && (task->function != SIM_BROADCAST || is_root);
  bool receives = task->function != SIM_SEND && (task->function != SIM_REDUCE || is_root);
  if (sim_type_bytes(task->type) == 0) return refuse(name, "data type");
  if (roots && (task->root < 0 || task->root >= task->comm->nranks)) return refuse(name, "root or peer");
  if (reduces && (unsigned)task->op >= ncclNumOps) return refuse(name, "reduction");
  if (reduces && !reducible(task->type)) return refuse(name, "data type of the reduction");
  if (task->count > 0 && ((sends && !task->send) || (receives && !task->receive)))
    return refuse(name, "buffer");
  return sim_enqueue(task, name);
}

ncclResult_t pncclSend(const void *sendbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                       cudaStream_t stream) {
  return submit("ncclSend", &(struct sim_task){.function = SIM_SEND,
                                               .comm = comm,
                                               .stream = (CUstream)stream,
                                               .send = sendbuff,
                                               .count = count,
                                               .type = datatype,
                                               .root = peer});
}
SIM_PUBLIC(ncclSend);

ncclResult_t pncclRecv(void *recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                       cudaStream_t stream) {
  return submit("ncclRecv", &(struct sim_task){.function = SIM_RECV,
                                               .comm = comm,
                                               .stream = (CUstream)stream,
                                               .receive = recvbuff,
                                               .count = count,
                                               .type = datatype,
                                               .root = peer});
}
SIM_PUBLIC(ncclRecv);

ncclResult_t pncclAllReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                            ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return submit("ncclAllReduce", &(struct sim_task){.function = SIM_ALL_REDUCE,
                                                    .comm = comm,
                                                    .stream = (CUstream)stream,
                                                    .send = sendbuff,
                                                    .receive = recvbuff,
                                                    .count = count,
                                                    .type = datatype,
                                                    .op = op});
}
SIM_PUBLIC(ncclAllReduce);

ncclResult_t pncclReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                         ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
  return submit("ncclReduce", &(struct sim_task){.function = SIM_REDUCE,
                                                 .comm = comm,
                                                 .stream = (CUstream)stream,
                                                 .send = sendbuff,
                                                 .receive = recvbuff,
                                                 .count = count,
                                                 .type = datatype,
                                                 .op = op,
                                                 .root = root});
}
SIM_PUBLIC(ncclReduce);

ncclResult_t pncclReduceScatter(const void *sendbuff, void *recvbuff, size_t recvcount,
                                ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                                cudaStream_t stream) {
  return submit("ncclReduceScatter", &(struct sim_task){.function = SIM_REDUCE_SCATTER,
                                                        .comm = comm,
                                                        .stream = (CUstream)stream,
                                                        .send = sendbuff,
                                                        .receive = recvbuff,
                                                        .count = recvcount,
                                                        .type = datatype,
                                                        .op = op});
}
SIM_PUBLIC(ncclReduceScatter);

ncclResult_t pncclAllGather(const void *sendbuff, void *recvbuff, size_t sendcount, ncclDataType_t datatype,
                            ncclComm_t comm, cudaStream_t stream) {
  return submit("ncclAllGather", &(struct sim_task){.function = SIM_ALL_GATHER,
                                                    .comm = comm,
                                                    .stream = (CUstream)stream,
                                                    .send = sendbuff,
                                                    .receive = recvbuff,
                                                    .count = sendcount,
                                                    .type = datatype});
}
SIM_PUBLIC(ncclAllGather);

ncclResult_t pncclBroadcast(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                            int root, ncclComm_t comm, cudaStream_t stream) {
  return submit("ncclBroadcast", &(struct sim_task){.function = SIM_BROADCAST,
                                                    .comm = comm,
                                                    .stream = (CUstream)stream,
                                                    .send = sendbuff,
                                                    .receive = recvbuff,
                                                    .count = count,
                                                    .type = datatype,
                                                    .root = root});
}
SIM_PUBLIC(ncclBroadcast);

ncclResult_t pncclBcast(void *buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
                        cudaStream_t stream) {
  return pncclBroadcast(buff, buff, count, datatype, root, comm, stream);
}
SIM_PUBLIC(ncclBcast);

/* ---- made of sends and receives, in a group of their own ---- */

struct pieces {
  const void *send;
  void *receive;
  size_t count;
  ncclDataType_t type;
  ncclComm_t comm;
  cudaStream_t stream;
};

static void *piece(const void *base, int index, const struct pieces *p) {
  return (char *)(uintptr_t)base + (size_t)index * p->count * sim_type_bytes(p->type);
}

/* Sends piece `out` to and receives piece `in` from every rank that the flags name. */
static ncclResult_t all_peers(const struct pieces *p, int only_send_to, int only_receive_from,
                              bool strided_send, bool strided_receive) {
  ncclResult_t result = sim_comm_check(p->comm, "group of sends and receives");
  if (result != ncclSuccess) return sim_group_error(result);
  (void)sim_group_start();
  for (int peer = 0; peer < p->comm->nranks && result == ncclSuccess; peer++) {
    if (only_send_to < 0 || only_send_to == peer)
      result = pncclSend(strided_send ? piece(p->send, peer, p) : p->send, p->count, p->type, peer, p->comm,
                         p->stream);
    if (result == ncclSuccess && (only_receive_from < 0 || only_receive_from == peer))
      result = pncclRecv(strided_receive ? piece(p->receive, peer, p) : p->receive, p->count, p->type, peer,
                         p->comm, p->stream);
  }
  ncclResult_t end = sim_group_end();
  return result != ncclSuccess ? result : end;
}

#define NOBODY SIM_MAX_RANKS

ncclResult_t pncclAlltoAll(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                           ncclComm_t comm, cudaStream_t stream) {
  struct pieces p = {sendbuff, recvbuff, count, datatype, comm, stream};
  return all_peers(&p, -1, -1, true, true);
}
SIM_PUBLIC(ncclAlltoAll);

ncclResult_t pncclGather(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                         int root, ncclComm_t comm, cudaStream_t stream) {
  struct pieces p = {sendbuff, recvbuff, count, datatype, comm, stream};
  if (sim_comm_check(comm, "ncclGather") != ncclSuccess || root < 0 || root >= comm->nranks)
    return refuse("ncclGather", "communicator or root");
  return all_peers(&p, root, comm->rank == root ? -1 : NOBODY, false, true);
}
SIM_PUBLIC(ncclGather);

ncclResult_t pncclScatter(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                          int root, ncclComm_t comm, cudaStream_t stream) {
  struct pieces p = {sendbuff, recvbuff, count, datatype, comm, stream};
  if (sim_comm_check(comm, "ncclScatter") != ncclSuccess || root < 0 || root >= comm->nranks)
    return refuse("ncclScatter", "communicator or root");
  return all_peers(&p, comm->rank == root ? -1 : NOBODY, root, true, false);
}
SIM_PUBLIC(ncclScatter);
