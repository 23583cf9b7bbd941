/** @file mappings.h
 * The files that a process has mapped to run code from.
 */
#ifndef RP_BPF_MAPPINGS_H
#define RP_BPF_MAPPINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "recvpool/status.h"

/** One file; several mappings of it count once. */
struct rp_mapping {
  uint64_t begin, end; /**< of its first executable mapping */
  uint64_t device;     /**< as stat would tell it (makedev) */
  uint64_t inode;
  bool deleted;
  char *path; /**< as the process sees it, without escapes and without " (deleted)" */
};

struct rp_mappings {
  struct rp_mapping *files;
  size_t count, capacity;
};

/** Reads /proc/PID/maps. RP_ERROR_NOT_FOUND: there is no such process; RP_ERROR_UNAVAILABLE: no right to read
 * it; RP_ERROR_NO_MEMORY. Release with rp_mappings_fini. */
rp_status rp_mappings_read(pid_t pid, struct rp_mappings *out);
/** The same from text in the kernel's format. */
rp_status rp_mappings_parse(FILE *text, struct rp_mappings *out);
/** Frees what it owns and empties it. */
void rp_mappings_fini(struct rp_mappings *mappings);

/** Tells about the file itself (see rp_mapping_open); false where it cannot be reached. */
bool rp_mapping_stat(pid_t pid, const struct rp_mapping *mapping, struct stat *out);

/** Opens the file itself, also where it was deleted or lies in another mount namespace: through map_files, or
 * else by its path below the process's root if that still is the same file. A file descriptor, or -1 with
 * `reason` in words. */
int rp_mapping_open(pid_t pid, const struct rp_mapping *mapping, char *reason, size_t reason_size);

#endif
