/* What the test build of the injected library answers beyond the real one: which promises the order of
 * streams makes at this moment. */
#ifndef ORDER_PROBE_H
#define ORDER_PROBE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pool/order.h"

struct order_probe {
  /** Before any work: accesses of [begin, end) get tokens from now on. */
  void (*start)(uint64_t begin, uint64_t end);
  /** Token of the access that this thread made last, and none the next time; 0: there is none. */
  rp_order_token (*take)(void);
  /** Whether each access has completed when a call made now on `stream` (as in events) begins. */
  void (*before)(const rp_order_token *tokens, size_t count, uint64_t stream, bool programmatic,
                 bool *answers);
  /** Whether this thread knows of each that it has completed. */
  void (*known)(const rp_order_token *tokens, size_t count, bool *answers);
  void (*counts)(struct rp_order_counts *counts);
};

/** Exported under this name. */
const struct order_probe *order_probe(void);

#endif
