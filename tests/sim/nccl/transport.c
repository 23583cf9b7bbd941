/* Owns the movement of bytes between ranks. One loop serves all transfers of a kernel, so that a group cannot
 * deadlock with itself; the sockets' buffers are the only ones, so that a send completes locally only as far
 * as they allow. */
#include "nccl_internal.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define STEP_BYTES                                                                                           \
  ((size_t)1 << 20) /* most that one system call moves, so that the other peers get their turn */

struct lane {
  struct sim_transfer *send, *receive, *last_send, *last_receive;
};

struct exchange {
  ncclComm_t comm;
  struct lane lanes[SIM_MAX_RANKS];
  size_t open; /* transfers not done yet */
};

static ncclResult_t peer_gone(ncclComm_t comm, int peer) {
  if (!atomic_load(&comm->aborted)) sim_set_error("rank %d is gone", peer);
  return ncclRemoteError;
}

/* Whether the peer said good-bye on its control socket before it closed. */
static bool peer_left(ncclComm_t comm, int peer) {
  struct sim_control control;
  ssize_t n = recv(comm->peers[peer].control_fd, &control, sizeof control, MSG_PEEK | MSG_DONTWAIT);
  return n == (ssize_t)sizeof control && control.kind == SIM_CONTROL_BYE;
}

static void append(struct sim_transfer **first, struct sim_transfer **last, struct sim_transfer *transfer) {
  if (*last)
    (*last)->next = transfer;
  else
    *first = transfer;
  *last = transfer;
}

static void prepare(struct exchange *x, struct sim_transfer *transfers, size_t count) {
  for (size_t i = 0; i < count; i++) {
    struct sim_transfer *t = &transfers[i];
    struct sim_peer *peer = &x->comm->peers[t->peer];
    struct lane *lane = &x->lanes[t->peer];
    t->next = NULL;
    t->frame_done = t->done = 0;
    memset(&t->frame, 0, sizeof t->frame);
    if (t->send) {
      t->frame = (struct sim_frame){t->kind, 0, peer->send_sequence++, t->bytes};
      append(&lane->send, &lane->last_send, t);
    } else {
      append(&lane->receive, &lane->last_receive, t);
    }
    x->open++;
  }
}

/* A message that does not fit its receive: the real library would hang or corrupt, this one says so. */
static ncclResult_t check_frame(ncclComm_t comm, const struct sim_transfer *t) {
  struct sim_peer *peer = &comm->peers[t->peer];
  if (t->frame.kind == t->kind && t->frame.bytes == t->bytes && t->frame.sequence == peer->receive_sequence) {
    peer->receive_sequence++;
    return ncclSuccess;
  }
  sim_set_error("rank %d expects %zu bytes from rank %d, which sent %llu (message %llu)", comm->rank,
                t->bytes, t->peer, (unsigned long long)t->frame.bytes, (unsigned long long)t->frame.sequence);
  return ncclInvalidUsage;
}

/* The kernel has touched all pages before, so this is memory that went away while the transfer ran. It is
 * touched again where the kernel holds nothing, so that the device answers as for any other kernel. */
static ncclResult_t fault(ncclComm_t comm, const struct sim_transfer *t) {
  comm->fault_data = t->data;
  comm->fault_bytes = t->bytes;
  comm->fault_write = !t->send;
  sim_set_error("%s buffer of %zu bytes is not accessible", t->send ? "send" : "receive", t->bytes);
  return ncclUnhandledCudaError;
}

/* Moves the send on. *blocked says that the socket is full. */
static ncclResult_t push(struct exchange *x, struct sim_transfer *t, bool *blocked) {
  size_t step = t->bytes - t->done < STEP_BYTES ? t->bytes - t->done : STEP_BYTES;
  struct iovec parts[2] = {{(char *)&t->frame + t->frame_done, sizeof t->frame - t->frame_done},
                           {t->data + t->done, step}};
  struct msghdr message = {.msg_iov = parts, .msg_iovlen = step > 0 ? 2 : 1};
  ssize_t n = sendmsg(x->comm->peers[t->peer].data_fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (n < 0) {
    *blocked = errno == EAGAIN;
    if (errno == EAGAIN || errno == EINTR) return ncclSuccess;
    return errno == EFAULT ? fault(x->comm, t) : peer_gone(x->comm, t->peer);
  }
  size_t header = (size_t)n < parts[0].iov_len ? (size_t)n : parts[0].iov_len;
  t->frame_done += header;
  t->done += (size_t)n - header;
  return ncclSuccess;
}

static ncclResult_t pull(struct exchange *x, struct sim_transfer *t, bool *blocked) {
  bool in_header = t->frame_done < sizeof t->frame;
  char *target = in_header ? (char *)&t->frame + t->frame_done : (char *)t->data + t->done;
  size_t left = in_header ? sizeof t->frame - t->frame_done : t->bytes - t->done;
  ssize_t n =
      recv(x->comm->peers[t->peer].data_fd, target, left < STEP_BYTES ? left : STEP_BYTES, MSG_DONTWAIT);
  if (n == 0) return peer_gone(x->comm, t->peer);
  if (n < 0) {
    *blocked = errno == EAGAIN;
    if (errno == EAGAIN || errno == EINTR) return ncclSuccess;
    return errno == EFAULT ? fault(x->comm, t) : peer_gone(x->comm, t->peer);
  }
  if (!in_header) {
    t->done += (size_t)n;
    return ncclSuccess;
  }
  t->frame_done += (size_t)n;
  return t->frame_done == sizeof t->frame ? check_frame(x->comm, t) : ncclSuccess;
}

static bool complete(const struct sim_transfer *t) {
  return t->frame_done == sizeof t->frame && t->done == t->bytes;
}

/* Moves one lane as far as it goes without waiting, but gives way to other peers after one message's step. */
static ncclResult_t advance(struct exchange *x, struct sim_transfer **head, bool *moved) {
  bool blocked = false;
  while (*head && !blocked) {
    ncclResult_t result = (*head)->send ? push(x, *head, &blocked) : pull(x, *head, &blocked);
    if (result != ncclSuccess) return result;
    if (!blocked) *moved = true;
    if (!complete(*head)) {
      if (!blocked && (*head)->frame_done == sizeof(*head)->frame && (*head)->done > 0) break;
      continue;
    }
    *head = (*head)->next;
    x->open--;
  }
  return ncclSuccess;
}

static ncclResult_t advance_all(struct exchange *x, bool *moved) {
  for (int peer = 0; peer < x->comm->nranks; peer++) {
    struct lane *lane = &x->lanes[peer];
    ncclResult_t result = advance(x, &lane->receive, moved);
    if (result == ncclSuccess) result = advance(x, &lane->send, moved);
    if (result != ncclSuccess) return result;
  }
  return ncclSuccess;
}

/* A peer has closed its socket: an error unless it left in good order and nothing is wanted from it. */
static ncclResult_t hung_up(struct exchange *x, int peer) {
  struct lane *lane = &x->lanes[peer];
  if (lane->receive) return ncclSuccess; /* what it sent before is read first */
  if (lane->send || !peer_left(x->comm, peer)) return peer_gone(x->comm, peer);
  x->comm->peers[peer].departed = true;
  return ncclSuccess;
}

static ncclResult_t wait_for_any(struct exchange *x) {
  struct pollfd fds[SIM_MAX_RANKS + 1];
  ncclComm_t comm = x->comm;
  fds[comm->nranks] = (struct pollfd){.fd = comm->wake_fd, .events = POLLIN};
  for (int peer = 0; peer < comm->nranks; peer++) {
    struct lane *lane = &x->lanes[peer];
    short events = (short)((lane->receive ? POLLIN : 0) | (lane->send ? POLLOUT : 0) | POLLRDHUP);
    bool watched =
        comm->peers[peer].data_fd >= 0 && !(comm->peers[peer].departed && !lane->receive && !lane->send);
    fds[peer] = (struct pollfd){.fd = watched ? comm->peers[peer].data_fd : -1, .events = events};
  }
  if (poll(fds, (nfds_t)comm->nranks + 1, -1) < 0 && errno != EINTR) return ncclSystemError;
  for (int peer = 0; peer < comm->nranks; peer++) {
    if (!(fds[peer].revents & (POLLRDHUP | POLLHUP | POLLERR))) continue;
    ncclResult_t result = hung_up(x, peer);
    if (result != ncclSuccess) return result;
  }
  return ncclSuccess;
}

ncclResult_t sim_exchange(ncclComm_t comm, struct sim_transfer *transfers, size_t count) {
  struct exchange x = {.comm = comm};
  ncclResult_t result = (ncclResult_t)atomic_load(&comm->async_error);
  if (result != ncclSuccess || atomic_load(&comm->aborted)) return ncclInternalError;
  prepare(&x, transfers, count);
  while (x.open > 0 && result == ncclSuccess) {
    bool moved = false;
    result = advance_all(&x, &moved);
    if (result == ncclSuccess && x.open > 0 && !moved) result = wait_for_any(&x);
    if (atomic_load(&comm->aborted)) return ncclInternalError;
  }
  if (result != ncclSuccess) sim_comm_fail(comm, result);
  return result;
}

void sim_check_peers(ncclComm_t comm) {
  for (int peer = 0; peer < comm->nranks; peer++) {
    char byte;
    if (comm->peers[peer].data_fd < 0 || atomic_load(&comm->aborted)) continue;
    ssize_t n = recv(comm->peers[peer].data_fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    bool closed = n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
    if (closed && !peer_left(comm, peer)) sim_comm_fail(comm, peer_gone(comm, peer));
  }
}
