/** @file detacher.h
 * Takes probes out on a thread of its own: the kernel lets one wait for tens of milliseconds, or, with perf
 * events, for seconds.
 */
#ifndef RP_BPF_DETACHER_H
#define RP_BPF_DETACHER_H

#include <stdbool.h>
#include <stddef.h>

#include "bpf/links.h"

struct rp_detacher;

/** Starts the thread; NULL where there can be none. */
struct rp_detacher *rp_detacher_create(void);
/** Takes the probes over and empties `links`. Without a detacher (NULL), or memory, they are taken out at
 * once, and false is returned: rp_detacher_done will not tell of `tag`. */
bool rp_detacher_take(struct rp_detacher *detacher, struct rp_links *links, size_t tag);
/** Tag of probes that are out by now; false if there is none that was not told of. NULL is allowed. */
bool rp_detacher_done(struct rp_detacher *detacher, size_t *tag);
/** Waits until all are out and frees it; NULL is allowed. */
void rp_detacher_destroy(struct rp_detacher *detacher);

#endif
