/* Milestones of pool/order after they were placed: they are waited for, and come to mean nothing. How they
 * are placed is one of the rules in order_ops.c. */
#include "pool/order_internal.h"

void rp_order_milestone_drop(struct rp_order *order, uint64_t number) {
  if (number - 1 < order->limits.milestones) order->milestone[number - 1].component = RP_ORDER_NO_SLOT;
}

void rp_order_milestone_wait(struct rp_order *order, const struct rp_order_site *site, uint64_t number) {
  const struct rp_order_milestone *milestone = rp_order_find_milestone(order, number);
  if (!milestone || rp_order_capturing(order, site)) return;
  struct rp_order_stream *stream = rp_order_get_stream(order, site);
  if (stream) rp_order_stream_join(order, stream, milestone->clock);
}

void rp_order_milestone_sync(struct rp_order *order, uint64_t thread, uint64_t number) {
  const struct rp_order_milestone *milestone = rp_order_find_milestone(order, number);
  if (milestone) rp_order_thread_learns(order, thread, milestone->clock);
}
