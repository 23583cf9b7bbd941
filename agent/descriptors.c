/* Descriptors for other processes. Owns the list of offers, the socket and the thread that answers. */
#include "agent/descriptors.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "agent/state.h"

#define STACK_BYTES (128u << 10)
#define WAITING_MOST 64 /* of others that want to be answered */

struct offer {
  struct offer *next;
  uint64_t key;
  int fd;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* innermost; held for the list only */
static struct offer *offers;                             /* lock */
static uint64_t process;                                 /* lock: 0 = no socket yet */
static int listening = -1;                               /* lock, written once */

/* ---- the name of the socket ---- */

/* The first byte is zero: the name is in no file system, and goes with the socket. */
static socklen_t name_of(uint64_t id, struct sockaddr_un *out) {
  memset(out, 0, sizeof *out);
  out->sun_family = AF_UNIX;
  int length =
      snprintf(out->sun_path + 1, sizeof out->sun_path - 1, "recvpool-%016llx", (unsigned long long)id);
  return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

static bool random_word(uint64_t *out) {
  return getrandom(out, sizeof *out, 0) == (ssize_t)sizeof *out && *out != 0;
}

static bool same_user(int fd) {
  struct ucred peer;
  socklen_t size = sizeof peer;
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
         (peer.uid == geteuid() || peer.uid == 0);
}

static void wait_no_longer_than(int fd, time_t seconds) {
  const struct timeval most = {.tv_sec = seconds};
  (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
  (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof most);
}

/* ---- answering ---- */

/* A message of one byte, with the descriptor. */
union control {
  char bytes[CMSG_SPACE(sizeof(int))];
  struct cmsghdr align;
};

static void send_descriptor(int to, int fd) {
  char byte = 1;
  union control control;
  memset(&control, 0, sizeof control);
  struct iovec part = {&byte, 1};
  struct msghdr message = {.msg_iov = &part,
                           .msg_iovlen = 1,
                           .msg_control = control.bytes,
                           .msg_controllen = sizeof control.bytes};
  struct cmsghdr *header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof fd);
  memcpy(CMSG_DATA(header), &fd, sizeof fd);
  (void)sendmsg(to, &message, MSG_NOSIGNAL);
}

/* A copy of the offered descriptor, so that it may be withdrawn meanwhile; -1: there is none. */
static int copy_of(uint64_t key) {
  int fd = -1;
  pthread_mutex_lock(&lock);
  for (const struct offer *offer = offers; offer && fd < 0; offer = offer->next)
    if (offer->key == key) fd = fcntl(offer->fd, F_DUPFD_CLOEXEC, 0);
  pthread_mutex_unlock(&lock);
  return fd;
}

static void answer(int to) {
  uint64_t key = 0;
  wait_no_longer_than(to, 2);
  if (!same_user(to) || recv(to, &key, sizeof key, 0) != (ssize_t)sizeof key) return;
  int fd = copy_of(key);
  if (fd < 0) return;
  send_descriptor(to, fd);
  close(fd);
}

/* Ends with the process only. */
static void *serve(void *unused) {
  rp_thread.busy = 1; /* what it calls is the agent's own */
  for (;;) {
    int to = accept4(listening, NULL, NULL, SOCK_CLOEXEC);
    if (to >= 0) {
      answer(to);
      close(to);
    } else if (errno == EBADF || errno == EINVAL || errno == ENOTSOCK) {
      return unused; /* the program has closed what it did not open */
    } else if (errno != EINTR && errno != ECONNABORTED) {
      const struct timespec pause = {.tv_nsec = 10000000}; /* out of descriptors: it may pass */
      (void)nanosleep(&pause, NULL);
    }
  }
}

/* Under the lock. */
static bool begin(void) {
  struct sockaddr_un name;
  uint64_t id;
  if (process) return true;
  if (!random_word(&id)) return false;
  socklen_t size = name_of(id, &name);
  listening = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (listening < 0) return false;
  if (bind(listening, (const struct sockaddr *)&name, size) != 0 || listen(listening, WAITING_MOST) != 0 ||
      rp_thread_start(serve, STACK_BYTES, NULL) != 0) {
    close(listening);
    listening = -1;
    return false;
  }
  process = id;
  return true;
}

/* ---- offers ---- */

rp_status rp_descriptor_offer(int fd, struct rp_ticket *ticket) {
  struct offer *offer = malloc(sizeof *offer);
  if (!offer) return RP_ERROR_NO_MEMORY;
  offer->fd = fd;
  (void)fcntl(fd, F_SETFD, FD_CLOEXEC); /* a child that kept it would keep the memory */
  if (!random_word(&offer->key)) {
    free(offer);
    return RP_ERROR_UNAVAILABLE;
  }
  pthread_mutex_lock(&lock);
  bool good = begin();
  if (good) {
    *ticket = (struct rp_ticket){.process = process, .key = offer->key};
    offer->next = offers;
    offers = offer;
  }
  pthread_mutex_unlock(&lock);
  if (!good) free(offer);
  return good ? RP_OK : RP_ERROR_UNAVAILABLE;
}

void rp_descriptor_withdraw(const struct rp_ticket *ticket) {
  struct offer *found = NULL;
  pthread_mutex_lock(&lock);
  for (struct offer **at = &offers; *at && !found; at = found ? at : &(*at)->next)
    if ((*at)->key == ticket->key) {
      found = *at;
      *at = found->next;
    }
  pthread_mutex_unlock(&lock);
  if (found) close(found->fd);
  free(found);
}

int rp_descriptor_is_own(const struct rp_ticket *ticket) {
  pthread_mutex_lock(&lock);
  bool own = process && ticket->process == process;
  pthread_mutex_unlock(&lock);
  return own;
}

/* ---- fetching ---- */

static int receive_descriptor(int from) {
  char byte;
  union control control;
  struct iovec part = {&byte, 1};
  struct msghdr message = {.msg_iov = &part,
                           .msg_iovlen = 1,
                           .msg_control = control.bytes,
                           .msg_controllen = sizeof control.bytes};
  int fd = -1;
  if (recvmsg(from, &message, MSG_CMSG_CLOEXEC) != 1) return -1;
  const struct cmsghdr *header = CMSG_FIRSTHDR(&message);
  if (header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS &&
      header->cmsg_len == CMSG_LEN(sizeof fd))
    memcpy(&fd, CMSG_DATA(header), sizeof fd);
  return fd;
}

int rp_descriptor_fetch(const struct rp_ticket *ticket) {
  struct sockaddr_un name;
  socklen_t size = name_of(ticket->process, &name);
  int fd = -1, to = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (to < 0) return -1;
  wait_no_longer_than(to, 2);
  if (connect(to, (const struct sockaddr *)&name, size) == 0 && same_user(to) &&
      send(to, &ticket->key, sizeof ticket->key, MSG_NOSIGNAL) == (ssize_t)sizeof ticket->key)
    fd = receive_descriptor(to);
  close(to);
  return fd;
}
