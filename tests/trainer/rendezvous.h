/** @file rendezvous.h
 * How the ranks learn the communicators' ids from rank 0. Every function ends the process on failure.
 */
#ifndef RP_TRAINER_RENDEZVOUS_H
#define RP_TRAINER_RENDEZVOUS_H

#include <nccl.h>
#include <stddef.h>

#include "options.h"

/** Rank 0 makes `count` ids; all ranks have them afterwards. */
void rp_exchange_ids(const struct rp_trainer_options *options, int rank, int ranks, ncclUniqueId *ids,
                     size_t count);
/** Writes all of it. */
void rp_write_whole(int fd, const void *data, size_t bytes);

#endif
