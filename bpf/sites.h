/** @file sites.h
 * Where in a file the functions of the table begin: read from its symbol tables, with what the first bytes of
 * each say about probing it.
 */
#ifndef RP_BPF_SITES_H
#define RP_BPF_SITES_H

#include <stddef.h>
#include <stdint.h>

#include "recvpool/status.h"

/** One place to probe. */
struct rp_site {
  uint64_t offset; /**< in the file, of the instruction to probe */
  int function;    /**< row of the table */
};

/** A place that is left alone. */
struct rp_site_refusal {
  int function;
  const char *reason; /**< static text */
};

/** What a file offers. A zeroed one is empty. */
struct rp_sites {
  struct rp_site *sites; /**< by offset; each offset once, however many names it has */
  size_t count;
  struct rp_site_refusal *refused;
  size_t refused_count;
  char build_id[41]; /**< hexadecimal, "" if the file has none */
};

/** Reads the ELF file open as `fd` (its position is changed). RP_ERROR_NOT_FOUND: it defines none of the
 * functions; RP_ERROR_SYNTAX: no ELF file, or a damaged one; RP_ERROR_VERSION: of another machine;
 * RP_ERROR_NO_MEMORY. `out` is empty unless RP_OK is returned; release it with rp_sites_fini. */
rp_status rp_sites_read(int fd, struct rp_sites *out);
/** Frees what it owns and empties it. */
void rp_sites_fini(struct rp_sites *sites);

#endif
