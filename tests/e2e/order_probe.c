/* The injected library with a window to its order of streams, for tests only. With ORDER_PROBE_PAUSE_US every
 * taking of the core lock may be preceded by a pause of up to that many microseconds: between a call and the
 * telling of it other threads' calls get their chance. */
#include "tests/e2e/order_probe.h"

#include <stdlib.h>
#include <time.h>

#include "agent/agent.h"
#include "agent/ordering.h"
#include "agent/state.h"

#define EXPORT __attribute__((visibility("default")))

static _Thread_local rp_order_token last;
static _Thread_local uint64_t random_state;
static uint64_t pause_us; /* set before threads are made */

bool __real_rp_agent_lock(void);
bool __wrap_rp_agent_lock(void);

static void pause_somewhat(void) {
  if (!random_state) random_state = rp_ordering_thread() * 0x9e3779b97f4a7c15u + 1;
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  if (random_state >> 32 & 3) return;
  const struct timespec time = {.tv_nsec = (long)((random_state >> 40) % (pause_us * 1000))};
  (void)nanosleep(&time, NULL);
}

bool __wrap_rp_agent_lock(void) {
  if (pause_us && !rp_thread.locked) pause_somewhat();
  return __real_rp_agent_lock();
}

/* Under the core lock, in place of the guards. */
static void seen(const struct rp_work *work) {
  last = rp_ordering_access(&work->site);
}

static void start(uint64_t begin, uint64_t end) {
  static const struct rp_agent_listener listener = {.seen = seen};
  const char *text = getenv("ORDER_PROBE_PAUSE_US");
  pause_us = text ? strtoull(text, NULL, 10) : 0;
  rp_agent_set_listener(&listener);
  rp_agent_watch(begin, end);
}

static rp_order_token take(void) {
  rp_order_token token = last;
  last = RP_ORDER_TOKEN_UNKNOWN;
  return token;
}

static void before(const rp_order_token *tokens, size_t count, uint64_t stream, bool programmatic,
                   bool *answers) {
  const struct rp_order_site site = rp_ordering_site(stream, programmatic ? RP_EVENT_FLAG_PDL : 0);
  const bool locked = rp_agent_lock();
  for (size_t i = 0; i < count; i++)
    answers[i] = locked && tokens[i] && rp_order_before(rp_ordering(), tokens[i], &site);
  if (locked) rp_agent_unlock();
}

static void known(const rp_order_token *tokens, size_t count, bool *answers) {
  const bool locked = rp_agent_lock();
  for (size_t i = 0; i < count; i++)
    answers[i] = locked && tokens[i] && rp_order_before_host(rp_ordering(), tokens[i], rp_ordering_thread());
  if (locked) rp_agent_unlock();
}

static void counts(struct rp_order_counts *out) {
  *out = rp_ordering_counts();
}

EXPORT const struct order_probe *order_probe(void) {
  static const struct order_probe probe = {start, take, before, known, counts};
  return &probe;
}
