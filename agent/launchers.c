/* The variables of the launchers. */
#include "agent/launchers.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

static int number_of(rp_variable *variable, void *context, const char *name) {
  const char *text = variable(context, name);
  if (!text || !*text) return -1;
  char *end;
  errno = 0;
  long value = strtol(text, &end, 10);
  return errno || *end || value < 0 || value > INT_MAX ? -1 : (int)value;
}

void rp_launcher_rank(rp_variable *variable, void *context, struct rp_process_info *out) {
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
    int rank = number_of(variable, context, launchers[i].rank);
    if (rank < 0) continue;
    out->rank = rank;
    out->world_size = number_of(variable, context, launchers[i].world);
    out->local_rank = number_of(variable, context, launchers[i].local);
    snprintf(out->rank_source, sizeof out->rank_source, "%s", launchers[i].source);
    return;
  }
}
