/* Invariants of the guard, and of its pool. */
#include "pool/guard_internal.h"

#define MUST(condition, text)                                                                                \
  do {                                                                                                       \
    if (!(condition)) return (text);                                                                         \
  } while (0)

static bool waits_for_a_touch(const struct rp_pool_buffer_info *info) {
  return info->binding == RP_POOL_UNBOUND || info->convertible;
}

static const char *check_buffer(const struct rp_guard *guard, uint32_t id) {
  const struct rp__guard_buffer *buffer = &guard->buffers[id];
  struct rp_pool_buffer_info info;
  MUST(rp_pool_buffer(guard->pool, id, &info) == RP_OK, "a buffer of the guard is one of the pool");
  MUST(info.address == buffer->address && info.bytes == buffer->bytes, "both say the same of it");
  MUST(buffer->watched || !buffer->receives, "receive buffers are watched");
  MUST(buffer->watched || !waits_for_a_touch(&info), "memory that may be lent is watched");
  MUST(buffer->now.used <= RP__GUARD_KEYS && buffer->learned.used <= RP__GUARD_KEYS, "sets have bounds");
  MUST(buffer->frontier.count <= RP_ORDER_FRONTIER, "frontiers have bounds");
  MUST(buffer->serial <= guard->serial && buffer->step <= guard->step, "nothing is from the future");
  bool open = info.life == RP_POOL_POSTED || info.life == RP_POOL_LIVE;
  MUST(buffer->receives || !open || info.binding == RP_POOL_PRIVATE, "what is in use was received");
  return NULL;
}

rp_status rp_guard_check(const struct rp_guard *guard, const char **broken) {
  const char *first = NULL;
  struct rp_pool_info info;
  rp_status status = rp_pool_check(guard->pool, &first);
  if (status == RP_ERROR_NO_MEMORY) return status;
  uint32_t alive = 0;
  for (uint32_t id = 0; id < guard->buffer_count && !first; id++) {
    if (!guard->buffers[id].in_use) continue;
    alive++;
    first = check_buffer(guard, id);
  }
  rp_pool_info(guard->pool, &info);
  if (!first && alive != info.buffers) first = "the guard and the pool have the same buffers";
  if (!first && guard->pending_count > RP__GUARD_PENDING) first = "the queue has bounds";
  if (broken) *broken = first;
  return first ? RP_ERROR_INTERNAL : RP_OK;
}
