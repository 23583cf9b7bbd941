/** @file links.h
 * Putting probes into one file and taking them out again: one multi-uprobe link for all entries and one for
 * all returns where the kernel has them, else one perf event each.
 */
#ifndef RP_BPF_LINKS_H
#define RP_BPF_LINKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bpf/sites.h"
#include "recvpool/status.h"

struct bpf_program;
struct bpf_link;

enum rp_link_kind {
  RP_LINK_AUTO = 0,
  RP_LINK_MULTI = 1, /**< kernel 6.6 and later; CAP_BPF and CAP_PERFMON are enough */
  RP_LINK_PERF = 2   /**< any kernel; newer ones ask for CAP_SYS_ADMIN */
};

/** What is to be put where. */
struct rp_link_request {
  enum rp_link_kind kind; /**< not RP_LINK_AUTO */
  struct bpf_program *enter, *leave;
  int file;         /**< open descriptor of the file */
  uint32_t library; /**< number that records carry, below 2^16 */
  bool returns;     /**< whether returns may be probed */
  bool launches;    /**< whether functions only needed for launches are probed */
};

/** The probes of one file. A zeroed one is empty. */
struct rp_links {
  int multi[2]; /**< link descriptors plus one; 0: none */
  struct bpf_link **perf;
  size_t perf_count;
  size_t probes; /**< entries and returns */
};

/** Whether the kernel has multi-uprobe links and lets this process make them. */
bool rp_links_have_multi(void);
/** The attach type that a program must be loaded with for links of this kind. */
int rp_links_attach_type(enum rp_link_kind kind);
/** Attaches; entries last, so that no call is seen to begin whose end is not. All or nothing: a negative
 * errno on failure. */
int rp_links_attach(const struct rp_link_request *request, const struct rp_sites *sites,
                    struct rp_links *out);
/** Detaches, entries first where they go one by one. An empty one is allowed. */
void rp_links_detach(struct rp_links *links);

#endif
