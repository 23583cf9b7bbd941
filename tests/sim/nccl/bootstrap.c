/* Owns the rendezvous of ranks: a thread behind every unique id that introduces the ranks to one another, and
 * the two sockets (data, control) between each pair of ranks. Addresses are abstract UNIX names chosen by the
 * kernel. */
#include "nccl_internal.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define ID_MAGIC 0x72707369646e6331ULL
#define CHANNELS 2u /* data, control */

struct address {
  uint32_t bytes;
  struct sockaddr_un name;
};

/* Content of a unique id: abstract names are short, so that the address fits. */
struct id_content {
  uint64_t magic, hash;
  uint32_t name_bytes;
  char name[64];
};
_Static_assert(sizeof(struct id_content) <= NCCL_UNIQUE_ID_BYTES, "an id holds a rendezvous address");

struct join {
  uint64_t hash;
  int32_t nranks, rank;
  struct address address;
};
struct answer {
  int32_t result; /* ncclResult_t */
  struct address addresses[SIM_MAX_RANKS];
};
struct hello {
  uint64_t hash;
  uint32_t rank, channel;
};

static int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int64_t sim_deadline_ns(void) {
  const char *text = getenv("RPSIM_NCCL_TIMEOUT_SECONDS");
  long seconds = text ? strtol(text, NULL, 10) : 0;
  if (seconds < 1 || seconds > 86400) seconds = 60;
  return now_ns() + seconds * 1000000000;
}

/* Waits until fd is ready. The deadline may be INT64_MAX: for ever. */
static ncclResult_t wait_ready(int fd, short events, int64_t deadline_ns) {
  for (;;) {
    int64_t left_ms = deadline_ns == INT64_MAX ? -1 : (deadline_ns - now_ns() + 999999) / 1000000;
    if (deadline_ns != INT64_MAX && left_ms <= 0) {
      sim_set_error("timed out waiting for the other ranks");
      return ncclSystemError;
    }
    struct pollfd p = {.fd = fd, .events = events};
    int n = poll(&p, 1, left_ms > 1000000 ? 1000000 : (int)left_ms);
    if (n > 0) return ncclSuccess;
    if (n < 0 && errno != EINTR) return ncclSystemError;
  }
}

ncclResult_t sim_send_all(int fd, const void *data, size_t bytes, int64_t deadline_ns) {
  for (size_t done = 0; done < bytes;) {
    ssize_t n = send(fd, (const char *)data + done, bytes - done, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0) {
      done += (size_t)n;
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return ncclRemoteError;
    ncclResult_t result = wait_ready(fd, POLLOUT, deadline_ns);
    if (result != ncclSuccess) return result;
  }
  return ncclSuccess;
}

ncclResult_t sim_receive_all(int fd, void *data, size_t bytes, int64_t deadline_ns) {
  for (size_t done = 0; done < bytes;) {
    ssize_t n = recv(fd, (char *)data + done, bytes - done, MSG_DONTWAIT);
    if (n > 0) {
      done += (size_t)n;
      continue;
    }
    if (n == 0 || (errno != EAGAIN && errno != EINTR)) return ncclRemoteError;
    ncclResult_t result = wait_ready(fd, POLLIN, deadline_ns);
    if (result != ncclSuccess) return result;
  }
  return ncclSuccess;
}

static int open_socket(void) {
  return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
}

/* A listening socket under a fresh abstract name; -1 on failure. */
static int listen_anywhere(struct address *address) {
  int fd = open_socket();
  struct sockaddr_un any = {.sun_family = AF_UNIX};
  socklen_t bytes = sizeof address->name;
  memset(address, 0, sizeof *address);
  if (fd < 0) return -1;
  if (bind(fd, (struct sockaddr *)&any, sizeof any.sun_family) != 0 || listen(fd, 2 * SIM_MAX_RANKS) != 0 ||
      getsockname(fd, (struct sockaddr *)&address->name, &bytes) != 0) {
    close(fd);
    return -1;
  }
  address->bytes = bytes;
  return fd;
}

static int connect_to(const struct address *address) {
  int fd = open_socket();
  if (fd < 0) return -1;
  if (address->bytes > sizeof address->name ||
      connect(fd, (const struct sockaddr *)&address->name, address->bytes) != 0) {
    close(fd);
    return -1;
  }
  return fd;
}

static ncclResult_t accept_before(int listener, int64_t deadline_ns, int *out) {
  for (;;) {
    ncclResult_t result = wait_ready(listener, POLLIN, deadline_ns);
    if (result != ncclSuccess) return result;
    *out = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (*out >= 0) return ncclSuccess;
    if (errno != EINTR && errno != ECONNABORTED) return ncclSystemError;
  }
}

/* ---- the thread behind a unique id ---- */

struct root {
  int listener;
  uint64_t hash;
};

struct gathering {
  int nranks, joined;
  int fds[SIM_MAX_RANKS];
  struct answer answer;
};

/* Takes one rank in. A rank that contradicts the others makes the whole rendezvous fail. */
static ncclResult_t take_in(struct gathering *g, const struct join *join, int fd) {
  if (g->nranks == 0) g->nranks = join->nranks;
  bool ok = join->nranks == g->nranks && join->rank >= 0 && join->rank < g->nranks && g->fds[join->rank] < 0;
  if (!ok) {
    struct answer no = {.result = ncclInvalidUsage};
    (void)sim_send_all(fd, &no, sizeof no, sim_deadline_ns());
    close(fd);
    return ncclInvalidUsage;
  }
  g->fds[join->rank] = fd;
  g->answer.addresses[join->rank] = join->address;
  g->joined++;
  return ncclSuccess;
}

static ncclResult_t gather(const struct root *root, struct gathering *g) {
  int64_t deadline_ns = INT64_MAX; /* an id may wait for its first rank as long as it likes */
  while (g->nranks == 0 || g->joined < g->nranks) {
    int fd = -1;
    ncclResult_t result = accept_before(root->listener, deadline_ns, &fd);
    if (result != ncclSuccess) return result;
    if (deadline_ns == INT64_MAX) deadline_ns = sim_deadline_ns();
    struct join join;
    if (sim_receive_all(fd, &join, sizeof join, deadline_ns) != ncclSuccess || join.hash != root->hash) {
      close(fd);
      continue;
    }
    result = take_in(g, &join, fd);
    if (result != ncclSuccess) return result;
  }
  return ncclSuccess;
}

static void *root_main(void *argument) {
  struct root *root = argument;
  struct gathering g = {0};
  memset(g.fds, -1, sizeof g.fds);
  g.answer.result = (int32_t)gather(root, &g);
  for (int i = 0; i < SIM_MAX_RANKS; i++) {
    if (g.fds[i] < 0) continue;
    (void)sim_send_all(g.fds[i], &g.answer, sizeof g.answer, sim_deadline_ns());
    close(g.fds[i]);
  }
  close(root->listener);
  free(root);
  return NULL;
}

static int start_root(struct root *root) {
  pthread_t thread;
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  int error = pthread_create(&thread, NULL, root_main, root);
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  if (error == 0) pthread_detach(thread);
  return error;
}

ncclResult_t sim_rendezvous_create(ncclUniqueId *id) {
  struct address address;
  struct root *root = calloc(1, sizeof *root);
  if (!root) return ncclSystemError;
  root->listener = listen_anywhere(&address);
  size_t name_bytes = root->listener < 0 ? 0 : address.bytes - offsetof(struct sockaddr_un, sun_path);
  struct id_content content = {.magic = ID_MAGIC, .name_bytes = (uint32_t)name_bytes};
  bool ok = root->listener >= 0 && name_bytes <= sizeof content.name &&
            getrandom(&content.hash, sizeof content.hash, 0) == (ssize_t)sizeof content.hash;
  root->hash = content.hash;
  if (!ok || start_root(root) != 0) {
    sim_set_error("cannot open a rendezvous: %s", strerror(errno));
    if (root->listener >= 0) close(root->listener);
    free(root);
    return ncclSystemError;
  }
  memcpy(content.name, address.name.sun_path, name_bytes);
  memset(id, 0, sizeof *id);
  memcpy(id->internal, &content, sizeof content);
  return ncclSuccess;
}

/* ---- a rank's side ---- */

static ncclResult_t introduce(ncclComm_t comm, const struct id_content *content, const struct address *own,
                              struct answer *answer, int64_t deadline_ns) {
  struct address root = {.bytes = (uint32_t)offsetof(struct sockaddr_un, sun_path) + content->name_bytes,
                         .name = {.sun_family = AF_UNIX}};
  memcpy(root.name.sun_path, content->name, content->name_bytes);
  int fd = connect_to(&root);
  if (fd < 0) {
    sim_set_error("nobody answers at the address of the unique id");
    return ncclSystemError;
  }
  struct join join = {content->hash, comm->nranks, comm->rank, *own};
  ncclResult_t result = sim_send_all(fd, &join, sizeof join, deadline_ns);
  if (result == ncclSuccess) result = sim_receive_all(fd, answer, sizeof *answer, deadline_ns);
  close(fd);
  if (result != ncclSuccess) {
    sim_set_error("the rendezvous ended before all %d ranks came", comm->nranks);
    return ncclSystemError;
  }
  if (answer->result == ncclInvalidUsage)
    sim_set_error("ranks disagree about their number, or two are rank %d", comm->rank);
  return (ncclResult_t)answer->result;
}

static ncclResult_t connect_lower(ncclComm_t comm, const struct answer *answer, int64_t deadline_ns) {
  for (int peer = 0; peer < comm->rank; peer++) {
    int *const fds[CHANNELS] = {&comm->peers[peer].data_fd, &comm->peers[peer].control_fd};
    for (uint32_t channel = 0; channel < CHANNELS; channel++) {
      struct hello hello = {comm->hash, (uint32_t)comm->rank, channel};
      *fds[channel] = connect_to(&answer->addresses[peer]);
      if (*fds[channel] < 0 ||
          sim_send_all(*fds[channel], &hello, sizeof hello, deadline_ns) != ncclSuccess) {
        sim_set_error("cannot reach rank %d", peer);
        return ncclSystemError;
      }
    }
  }
  return ncclSuccess;
}

static ncclResult_t accept_higher(ncclComm_t comm, int listener, int64_t deadline_ns) {
  int missing = (comm->nranks - 1 - comm->rank) * (int)CHANNELS;
  while (missing > 0) {
    int fd = -1;
    struct hello hello;
    ncclResult_t result = accept_before(listener, deadline_ns, &fd);
    if (result != ncclSuccess) return result;
    result = sim_receive_all(fd, &hello, sizeof hello, deadline_ns);
    int *slot = NULL;
    if (result == ncclSuccess && hello.hash == comm->hash && hello.rank > (uint32_t)comm->rank &&
        hello.rank < (uint32_t)comm->nranks)
      slot = hello.channel == 0 ? &comm->peers[hello.rank].data_fd : &comm->peers[hello.rank].control_fd;
    if (!slot || *slot >= 0) {
      close(fd);
      continue;
    }
    *slot = fd;
    missing--;
  }
  return ncclSuccess;
}

ncclResult_t sim_rendezvous_join(ncclComm_t comm, const ncclUniqueId *id) {
  struct id_content content;
  memcpy(&content, id->internal, sizeof content);
  if (content.magic != ID_MAGIC || content.name_bytes == 0 || content.name_bytes > sizeof content.name) {
    sim_set_error("not a unique id");
    return ncclInvalidArgument;
  }
  int64_t deadline_ns = sim_deadline_ns();
  struct address own;
  struct answer *answer = calloc(1, sizeof *answer);
  int listener = listen_anywhere(&own);
  comm->hash = content.hash;
  ncclResult_t result = answer && listener >= 0 ? ncclSuccess : ncclSystemError;
  if (result == ncclSuccess) result = introduce(comm, &content, &own, answer, deadline_ns);
  if (result == ncclSuccess) result = connect_lower(comm, answer, deadline_ns);
  if (result == ncclSuccess) result = accept_higher(comm, listener, deadline_ns);
  if (listener >= 0) close(listener);
  free(answer);
  return result;
}
