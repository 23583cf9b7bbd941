/* What the cases of test_order*.c share: an order with a few streams told, and short names for the calls. */
#ifndef ORDER_CASES_H
#define ORDER_CASES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "pool/order.h"

#define CONTEXT 0xc0
#define OTHER_CONTEXT 0xc1
#define LEGACY RP_ORDER_STREAM_LEGACY
#define PER_THREAD RP_ORDER_STREAM_PER_THREAD
enum { BLOCKING_A = 0x10, BLOCKING_B, FREE_A, FREE_B, FREE_C, ELSEWHERE };
enum { EVENT = 0xe0, EVENT_2, EVENT_3 };
enum { HOST = 1, HOST_2 };

static struct rp_order *order; /* of the case that runs */

static inline struct rp_order_site at(uint64_t stream) {
  return (struct rp_order_site){.context = CONTEXT, .stream = stream, .thread = HOST};
}
static inline struct rp_order_site by(uint64_t thread, uint64_t stream) {
  return (struct rp_order_site){.context = CONTEXT, .stream = stream, .thread = thread};
}
static inline struct rp_order_site programmatic(uint64_t stream) {
  struct rp_order_site site = at(stream);
  site.flags = RP_ORDER_PROGRAMMATIC;
  return site;
}
static inline rp_order_token access_at(struct rp_order_site site) {
  return rp_order_access(order, &site);
}
static inline rp_order_token use(uint64_t stream) {
  return access_at(at(stream));
}
static inline void record(uint64_t stream, uint64_t event) {
  const struct rp_order_site site = at(stream);
  rp_order_event_record(order, &site, event, RP_ORDER_RECORD_STREAM);
}
static inline void wait_for(uint64_t stream, uint64_t event) {
  const struct rp_order_site site = at(stream);
  rp_order_event_wait(order, &site, event);
}
static inline void sync_stream(uint64_t thread, uint64_t stream) {
  const struct rp_order_site site = by(thread, stream);
  rp_order_sync_stream(order, &site);
}
static inline bool ordered_at(rp_order_token token, struct rp_order_site site) {
  return rp_order_before(order, token, &site);
}
static inline bool ordered(rp_order_token token, uint64_t stream) {
  return ordered_at(token, at(stream));
}
static inline bool known(rp_order_token token, uint64_t thread) {
  return rp_order_before_host(order, token, thread);
}

static inline void tell_streams(void) {
  rp_order_stream_create(order, CONTEXT, BLOCKING_A, true);
  rp_order_stream_create(order, CONTEXT, BLOCKING_B, true);
  rp_order_stream_create(order, CONTEXT, FREE_A, false);
  rp_order_stream_create(order, CONTEXT, FREE_B, false);
  rp_order_stream_create(order, CONTEXT, FREE_C, false);
  rp_order_stream_create(order, OTHER_CONTEXT, ELSEWHERE, true);
}
static inline int set_up(void **state) {
  (void)state;
  if (rp_order_create(NULL, &order)) return -1;
  tell_streams();
  return 0;
}
static inline int tear_down(void **state) {
  (void)state;
  rp_order_destroy(order);
  return 0;
}
static inline void restart(const struct rp_order_limits *limits) {
  rp_order_destroy(order);
  assert_int_equal(rp_order_create(limits, &order), RP_OK);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

#endif
