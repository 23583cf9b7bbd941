/** @file labels.h
 * Which annotated range (NVTX) each host thread is in: names for people, never evidence.
 */
#ifndef RP_POOL_LABELS_H
#define RP_POOL_LABELS_H

#include <stdint.h>

/** Threads that may be inside ranges at once, and nested ranges named per thread. What does not fit is
 * counted. */
#define RP_LABEL_THREADS 64
#define RP_LABEL_DEPTH 16

/** Open ranges of one thread. Deeper ones than RP_LABEL_DEPTH count, so that pops stay in step, but have no
 * name. */
struct rp_label_stack {
  uint32_t tid;
  uint32_t depth; /**< 0: this entry is free */
  uint64_t label[RP_LABEL_DEPTH];
};

/** All threads that are inside a range. Zero-initialised is empty; owns nothing. */
struct rp_labels {
  struct rp_label_stack stacks[RP_LABEL_THREADS];
  uint64_t dropped; /**< ranges without a place */
};

/** Thread `tid` enters the range named `label`. */
void rp_labels_push(struct rp_labels *labels, uint32_t tid, uint64_t label);
/** Thread `tid` leaves its innermost range; one that is in none is let be (it entered before we listened). */
void rp_labels_pop(struct rp_labels *labels, uint32_t tid);
/** Innermost named range of thread `tid`, 0 if it is in none. */
uint64_t rp_labels_current(const struct rp_labels *labels, uint32_t tid);

#endif
