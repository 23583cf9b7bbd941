/** @file test_rank.h
 * Between the test program and the processes it starts as ranks. A rank is the same program, run as
 * `test_nccl rank SCENARIO RANK NRANKS ID`; it ends with 0 when everything it checks holds.
 */
#ifndef RPSIM_NCCL_TEST_RANK_H
#define RPSIM_NCCL_TEST_RANK_H

/** Exit status of a rank that saw data which a missing wait left wrong. */
#define RANK_SAW_WRONG_DATA 3

/** Runs one rank. Never returns on a failed check. Returns the exit status. */
int rank_main(const char *scenario, int rank, int nranks, const char *id_text);

#endif
