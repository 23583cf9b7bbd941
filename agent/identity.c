/* Identity of the process, for the report. */
#include "agent/identity.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "agent/state.h"

static int number_of(const char *name) {
  const char *text = getenv(name);
  if (!text || !*text) return -1;
  char *end;
  errno = 0;
  long value = strtol(text, &end, 10);
  return errno || *end || value < 0 || value > INT_MAX ? -1 : (int)value;
}

void rp_identity_rank(struct rp_process_info *out) {
  static const struct {
    const char *source, *rank, *world, *local;
  } launchers[] = {
      {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK"},
      {"slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"},
      {"mpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
      {"mpi", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"},
      {"mpi", "PMIX_RANK", "PMIX_SIZE", "PMIX_LOCAL_RANK"},
  };
  out->rank = out->world_size = out->local_rank = -1;
  out->rank_source[0] = '\0';
  for (size_t i = 0; i < sizeof launchers / sizeof launchers[0]; i++) {
    int rank = number_of(launchers[i].rank);
    if (rank < 0) continue;
    out->rank = rank;
    out->world_size = number_of(launchers[i].world);
    out->local_rank = number_of(launchers[i].local);
    snprintf(out->rank_source, sizeof out->rank_source, "%s", launchers[i].source);
    return;
  }
}

/* Arguments joined by blanks. */
static void read_command(char *out, size_t size) {
  out[0] = '\0';
  int file = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
  if (file < 0) return;
  size_t used = 0;
  while (used < size - 1) {
    ssize_t got = read(file, out + used, size - 1 - used);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    used += (size_t)got;
  }
  (void)close(file);
  while (used > 0 && out[used - 1] == '\0')
    used--;
  for (size_t i = 0; i < used; i++)
    if (out[i] == '\0') out[i] = ' ';
  out[used] = '\0';
}

void rp_identity_read(struct rp_process_info *out) {
  struct timespec now;
  memset(out, 0, sizeof *out);
  if (gethostname(out->host, sizeof out->host - 1) != 0) snprintf(out->host, sizeof out->host, "localhost");
  out->pid = getpid();
  read_command(out->command, sizeof out->command);
  rp_identity_rank(out);
  clock_gettime(CLOCK_REALTIME, &now);
  out->start_time_unix_seconds = (double)now.tv_sec + (double)now.tv_nsec / 1e9;
  out->start_monotonic_ns = rp_now_ns();
}
