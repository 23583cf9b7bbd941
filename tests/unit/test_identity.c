/* Rank of the process from the environment that its launcher left. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/identity.h"

static const char *const variables[] = {
    "RANK",         "WORLD_SIZE",    "LOCAL_RANK",           "SLURM_PROCID",
    "SLURM_NTASKS", "SLURM_LOCALID", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
    "PMI_RANK",     "PMI_SIZE",      "MPI_LOCALRANKID",      "OMPI_COMM_WORLD_LOCAL_RANK",
    "PMIX_RANK",    "PMIX_SIZE",     "PMIX_LOCAL_RANK",
};

static int forget(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++)
    unsetenv(variables[i]);
  return 0;
}

static void check(const char *source, int rank, int world, int local) {
  struct rp_process_info info;
  rp_identity_rank(&info);
  assert_string_equal(info.rank_source, source);
  assert_int_equal(info.rank, rank);
  assert_int_equal(info.world_size, world);
  assert_int_equal(info.local_rank, local);
}

static void reads_every_launcher(void **state) {
  check("", -1, -1, -1);
  setenv("PMI_RANK", "1", 1);
  setenv("PMI_SIZE", "2", 1);
  check("mpi", 1, 2, -1);
  forget(state);
  setenv("OMPI_COMM_WORLD_RANK", "5", 1);
  setenv("OMPI_COMM_WORLD_SIZE", "8", 1);
  setenv("OMPI_COMM_WORLD_LOCAL_RANK", "1", 1);
  check("mpi", 5, 8, 1);
  setenv("SLURM_PROCID", "6", 1);
  setenv("SLURM_NTASKS", "16", 1);
  setenv("SLURM_LOCALID", "2", 1);
  check("slurm", 6, 16, 2);
  setenv("RANK", "0", 1); /* torchrun inside Slurm: the inner launcher counts */
  setenv("WORLD_SIZE", "4", 1);
  setenv("LOCAL_RANK", "0", 1);
  check("torchrun", 0, 4, 0);
}

static void ignores_what_is_no_rank(void **state) {
  (void)state;
  static const char *const nonsense[] = {"", "x", "-1", "3x", "99999999999999999999", " "};
  for (size_t i = 0; i < sizeof nonsense / sizeof nonsense[0]; i++) {
    setenv("RANK", nonsense[i], 1);
    check("", -1, -1, -1);
  }
  setenv("RANK", "2", 1);
  setenv("WORLD_SIZE", "many", 1);
  check("torchrun", 2, -1, -1);
}

static void knows_itself(void **state) {
  (void)state;
  struct rp_process_info info;
  rp_identity_read(&info);
  assert_int_equal(info.pid, getpid());
  assert_true(info.host[0] != '\0');
  assert_non_null(strstr(info.command, "test_identity"));
  assert_true(info.start_time_unix_seconds > 1e9 && info.start_monotonic_ns > 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup(reads_every_launcher, forget),
      cmocka_unit_test_setup(ignores_what_is_no_rank, forget),
      cmocka_unit_test_setup(knows_itself, forget),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
