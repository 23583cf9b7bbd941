// The communicators' ids: through a pipe of the launcher, or through a file.
#include "rendezvous.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "device.h"
#include "rank.h"

void rp_write_whole(int fd, const void *data, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    ssize_t n = write(fd, (const char *)data + done, bytes - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) rp_die("cannot write: %s", strerror(errno));
    done += (size_t)n;
  }
}

static bool read_whole(int fd, void *data, size_t bytes) {
  size_t done = 0;
  while (done < bytes) {
    ssize_t n = read(fd, (char *)data + done, bytes - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    done += (size_t)n;
  }
  return done == bytes;
}

/** Through a pipe of the launcher: rank 0 writes one copy for every other rank. */
static void exchange_by_pipe(int fd, int rank, int ranks, void *ids, size_t bytes) {
  if (rank == 0)
    for (int i = 1; i < ranks; i++)
      rp_write_whole(fd, ids, bytes);
  else if (!read_whole(fd, ids, bytes))
    rp_die("rank 0 ended before it gave the communicator's id");
  close(fd);
}

/** Through a file: rank 0 renames it into place, the others look for it. */
static void exchange_by_file(const char *path, int rank, void *ids, size_t bytes) {
  if (rank == 0) {
    char temporary[4096];
    snprintf(temporary, sizeof temporary, "%s.%d", path, (int)getpid());
    int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0) rp_die("cannot write '%s': %s", temporary, strerror(errno));
    rp_write_whole(fd, ids, bytes);
    if (close(fd) != 0 || rename(temporary, path) != 0)
      rp_die("cannot write '%s': %s", path, strerror(errno));
    return;
  }
  enum { TRIES = 6000 };
  for (int i = 0; i < TRIES; i++) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
      bool whole = read_whole(fd, ids, bytes);
      close(fd);
      if (whole) return;
      rp_die("'%s' does not hold a communicator's id", path);
    }
    struct timespec pause = {.tv_nsec = 10000000};
    nanosleep(&pause, NULL);
  }
  rp_die("no communicator's id at '%s' after a minute", path);
}

void rp_exchange_ids(const struct rp_trainer_options *options, int rank, int ranks, ncclUniqueId *ids,
                     size_t count) {
  const char *fd = getenv(RP_TRAINER_ID_FD);
  for (size_t i = 0; i < count && rank == 0; i++) {
    ncclResult_t result = ncclGetUniqueId(&ids[i]);
    if (result != ncclSuccess) rp_die("ncclGetUniqueId: %s", ncclGetErrorString(result));
  }
  if (ranks == 1) return;
  if (options->rendezvous != NULL)
    exchange_by_file(options->rendezvous, rank, ids, count * sizeof *ids);
  else
    exchange_by_pipe(atoi(fd), rank, ranks, ids, count * sizeof *ids);
}
