/* Carries out decisions: memory first, then counters and states, so that a failure leaves both as they were.
 */
#include "pool/pool_internal.h"

static bool current(const struct rp_pool *pool, const struct rp_pool_decision *decision, uint32_t buffer) {
  return decision->generation == pool->generation && decision->buffer == buffer;
}

/* Memory held for a buffer, and whose it was: an untouched buffer of the size can be left without. */
struct source {
  uint32_t memory, lender;
};

/* The last allocated of them: probably the last to be received into. */
static rp_status lend(struct rp_pool *pool, uint32_t id, struct source *out) {
  for (uint32_t b = pool->buffer_count; b-- > 0;) {
    struct rp__pool_buffer *lender = rp__pool_get(pool, b);
    if (!lender || b == id || !rp__pool_convertible(pool, lender)) continue;
    if (lender->mapped_bytes != pool->buffers[id].mapped_bytes) continue;
    *out = (struct source){lender->memory, b};
    rp__memory_hold(pool, out->memory);
    rp_status status = rp__pool_unmap(pool, lender);
    if (status)
      rp__memory_drop(pool, out->memory);
    else
      lender->binding = RP_POOL_UNBOUND;
    return status;
  }
  return RP_ERROR_NO_MEMORY;
}

/* Memory for the buffer: new or lent, as the options say. */
static rp_status obtain(struct rp_pool *pool, uint32_t id, bool prefer_lent, struct source *out) {
  enum rp_pool_lend policy = pool->options.lend;
  bool keeps = pool->info.unstoppable && !pool->info.memory_short;
  if (prefer_lent && !keeps && policy == RP_POOL_LEND_FIRST && lend(pool, id, out) == RP_OK) return RP_OK;
  out->lender = RP_POOL_NONE;
  rp_status status = rp__memory_create(pool, RP_POOL_NONE, pool->buffers[id].mapped_bytes, &out->memory);
  if (status != RP_ERROR_NO_MEMORY || policy == RP_POOL_LEND_NEVER) return status;
  return lend(pool, id, out);
}

/* Maps it at the buffer, or gives it back to where it came from. */
static rp_status use_source(struct rp_pool *pool, uint32_t id, const struct source *source) {
  rp_status status = rp__pool_remap(pool, id, source->memory);
  bool lent = source->lender != RP_POOL_NONE;
  if (status && lent && rp__pool_remap(pool, source->lender, source->memory) == RP_OK)
    pool->buffers[source->lender].binding = RP_POOL_PRIVATE;
  if (!status) pool->info.lent += lent;
  rp__memory_drop(pool, source->memory);
  return status;
}

/* Memory of a slot that nothing is bound to yet: the buffer's own, if it has untouched memory. */
static rp_status bind_first(struct rp_pool *pool, uint32_t id, uint32_t class_id, uint32_t slot) {
  struct rp__pool_buffer *buffer = &pool->buffers[id];
  if (buffer->memory == RP_POOL_NONE) {
    struct source source;
    rp_status status = obtain(pool, id, true, &source);
    if (!status) status = use_source(pool, id, &source);
    if (status) return status;
  }
  rp__memory_assign(pool, buffer->memory, class_id, slot);
  return RP_OK;
}

/* Memory of its own for a receive whose slot is taken. */
static rp_status grow(struct rp_pool *pool, uint32_t id) {
  struct source source;
  rp_status status = obtain(pool, id, false, &source);
  if (!status) status = use_source(pool, id, &source);
  if (status) return status;
  rp__pool_leave_slot(pool, id, RP_POOL_PRIVATE);
  rp__memory_assign(pool, pool->buffers[id].memory, pool->buffers[id].class_id, RP_POOL_NONE);
  return RP_OK;
}

/* Binds an unbound or untouched buffer to a slot, once and for all. */
static rp_status bind(struct rp_pool *pool, uint32_t id, uint32_t class_id, uint32_t slot_id) {
  struct rp__pool_buffer *buffer = &pool->buffers[id];
  struct rp__pool_class *class = &pool->classes[class_id];
  uint32_t memory = class->slots[slot_id].memory;
  rp_status status =
      memory == RP_POOL_NONE ? bind_first(pool, id, class_id, slot_id) : rp__pool_remap(pool, id, memory);
  if (status) return status;
  rp__pool_set_class(pool, buffer, class_id);
  buffer->binding = RP_POOL_BOUND;
  buffer->slot = slot_id;
  class->next_slot = (slot_id + 1) % class->spec.slots;
  return RP_OK;
}

static enum rp_pool_reason reason_of(rp_status status) {
  return status == RP_ERROR_NO_MEMORY ? RP_POOL_OUT_OF_MEMORY : RP_POOL_BACKEND_FAILED;
}

/* Nothing could be bound: private memory will do, if that can be had. */
static rp_status bind_or_private(struct rp_pool *pool, uint32_t id, const struct rp_pool_decision *decision) {
  struct rp__pool_buffer *buffer = &pool->buffers[id];
  rp_status status = bind(pool, id, decision->class_id, decision->slot);
  if (!status) return RP_OK;
  if (buffer->lost) return status;
  rp_status second = RP_OK;
  if (buffer->binding == RP_POOL_UNBOUND) second = rp__pool_make_private(pool, id);
  if (second) return status;
  rp__pool_reason(pool, reason_of(status));
  return RP_OK;
}

/* Whose side the account is on when a buffer outside a class grows beside one. */
static void join_class(struct rp_pool *pool, uint32_t id, uint32_t class_id) {
  struct rp__pool_buffer *buffer = &pool->buffers[id];
  if (class_id == RP_POOL_NONE || buffer->class_id != RP_POOL_NONE) return;
  rp__pool_set_class(pool, buffer, class_id);
  if (buffer->memory != RP_POOL_NONE) rp__memory_assign(pool, buffer->memory, class_id, RP_POOL_NONE);
}

static rp_status act(struct rp_pool *pool, const struct rp_pool_decision *decision) {
  uint32_t id = decision->buffer;
  switch (decision->memory) {
  case RP_POOL_MEMORY_NONE:
    return RP_OK;
  case RP_POOL_MEMORY_BIND:
    return bind_or_private(pool, id, decision);
  case RP_POOL_MEMORY_GROW:
    return grow(pool, id);
  case RP_POOL_MEMORY_PRIVATE:
    return rp__pool_make_private(pool, id);
  case RP_POOL_MEMORY_PIN:
    pool->buffers[id].pinned = true;
    return RP_OK;
  }
  return RP_ERROR_INVALID;
}

/* After a failed action the pool may have changed (a buffer lost its mapping): older decisions are void. */
static rp_status act_and_count(struct rp_pool *pool, const struct rp_pool_decision *decision) {
  rp_status status = act(pool, decision);
  pool->generation++;
  if (status) {
    rp__pool_reason(pool, reason_of(status));
    return status;
  }
  rp__pool_reason(pool, decision->reason);
  rp__pool_conflict(pool, &decision->conflict);
  pool->info.fallback_pending |= decision->want_fallback;
  return RP_OK;
}

static void count_growth(struct rp_pool *pool, uint32_t id, uint32_t class_id) {
  pool->info.grown++;
  join_class(pool, id, class_id);
  if (class_id != RP_POOL_NONE) pool->classes[class_id].grown++;
}

/* The buffer's slot holds its data from now on. */
static void take_slot(struct rp_pool *pool, uint32_t id) {
  struct rp__pool_buffer *buffer = &pool->buffers[id];
  rp__pool_last_forget(pool, buffer->address); /* of an earlier receive */
  if (buffer->binding != RP_POOL_BOUND) return;
  rp__pool_slot_of(pool, buffer)->tenant = id;
  rp__pool_slot_of(pool, buffer)->turn++;
}

rp_status rp_pool_receive_commit(struct rp_pool *pool, const struct rp_pool_post *post,
                                 const struct rp_pool_decision *decision) {
  struct rp__pool_buffer *buffer = rp__pool_get(pool, post->buffer);
  if (!buffer) return RP_ERROR_NOT_FOUND;
  if (!current(pool, decision, post->buffer)) return RP_ERROR_STATE;
  if (decision->fallback_first) return RP_ERROR_BUSY;
  bool prevented = decision->conflict.prevented;
  bool grows = decision->memory == RP_POOL_MEMORY_GROW ||
               (prevented && decision->conflict.kind == RP_POOL_EARLY_REUSE) ||
               (prevented && decision->conflict.kind == RP_POOL_UNORDERED_REUSE && !decision->insert_wait);
  rp_status status = act_and_count(pool, decision);
  if (status) return status;
  if (grows) count_growth(pool, post->buffer, decision->class_id);
  rp__pool_touch(pool, buffer, &post->site);
  if (post->capturing) buffer->flags |= RP_POOL_FLAG_GRAPH;
  take_slot(pool, post->buffer);
  buffer->life = RP_POOL_POSTED;
  pool->info.receives++;
  pool->info.waits_inserted += decision->insert_wait;
  return RP_OK;
}

/* Too late to move it out: from now on the slot may hold what its user wrote. */
static void note_written(struct rp_pool *pool, uint32_t id, const struct rp_pool_access *access) {
  struct rp__pool_buffer *buffer = &pool->buffers[id];
  if (buffer->binding != RP_POOL_BOUND || access->mode == RP_POOL_READ) return;
  const struct rp__pool_slot *slot = rp__pool_slot_of(pool, buffer);
  if (slot->tenant != id) buffer->written_turn = slot->turn + 1;
}

rp_status rp_pool_access_commit(struct rp_pool *pool, const struct rp_pool_access *access,
                                const struct rp_pool_decision *decision) {
  struct rp__pool_buffer *buffer = rp__pool_get(pool, access->buffer);
  if (!buffer) return RP_ERROR_NOT_FOUND;
  if (!current(pool, decision, access->buffer)) return RP_ERROR_STATE;
  rp_status status = act_and_count(pool, decision);
  if (status) return status;
  rp__pool_touch(pool, buffer, &access->site);
  note_written(pool, access->buffer, access);
  if (access->capturing) buffer->flags |= RP_POOL_FLAG_GRAPH;
  if (buffer->life == RP_POOL_POSTED || decision->reopens) buffer->life = RP_POOL_LIVE;
  pool->info.accesses++;
  pool->info.reopened += decision->reopens;
  return RP_OK;
}

rp_status rp_pool_flag_commit(struct rp_pool *pool, uint32_t flag, const struct rp_pool_site *site,
                              const struct rp_pool_decision *decision) {
  struct rp__pool_buffer *buffer = rp__pool_get(pool, decision->buffer);
  if (!buffer) return RP_ERROR_NOT_FOUND;
  if (!current(pool, decision, decision->buffer)) return RP_ERROR_STATE;
  rp_status status = act_and_count(pool, decision);
  if (status) return status;
  rp__pool_touch(pool, buffer, site);
  buffer->flags |= flag;
  return RP_OK;
}

rp_status rp_pool_release(struct rp_pool *pool, uint32_t id) {
  struct rp__pool_buffer *buffer = rp__pool_get(pool, id);
  if (!buffer) return RP_ERROR_NOT_FOUND;
  if (buffer->life != RP_POOL_POSTED && buffer->life != RP_POOL_LIVE) return RP_ERROR_STATE;
  pool->generation++;
  buffer->life = RP_POOL_RELEASED;
  return RP_OK;
}

void rp_pool_step_end(struct rp_pool *pool) {
  pool->generation++;
  rp_pool_memory_news(pool);
  for (uint32_t b = 0; b < pool->buffer_count; b++)
    if (pool->buffers[b].in_use && pool->buffers[b].life == RP_POOL_RELEASED)
      pool->buffers[b].life = RP_POOL_DEAD;
}

/* The first receive left open, with a slot if one has; the conflict needs a name and an address. */
static uint32_t open_receive(const struct rp_pool *pool) {
  uint32_t open = RP_POOL_NONE;
  for (uint32_t b = 0; b < pool->buffer_count; b++) {
    const struct rp__pool_buffer *buffer = rp__pool_get(pool, b);
    if (!buffer || (buffer->life != RP_POOL_POSTED && buffer->life != RP_POOL_LIVE)) continue;
    if (buffer->binding == RP_POOL_BOUND) return b;
    if (open == RP_POOL_NONE) open = b;
  }
  return open;
}

void rp_pool_interrupt(struct rp_pool *pool, const struct rp_pool_site *site) {
  if (pool->info.frozen) return;
  pool->generation++;
  pool->info.frozen = true;
  rp_pool_request_fallback(pool, RP_POOL_STEP_INTERRUPTED);
  uint32_t open = open_receive(pool);
  if (open == RP_POOL_NONE) return;
  const struct rp__pool_buffer *buffer = &pool->buffers[open];
  struct rp_pool_conflict conflict = {.kind = RP_POOL_INTERRUPTED,
                                      .prevented = true,
                                      .class_id = buffer->class_id,
                                      .slot = buffer->slot,
                                      .earlier_buffer = open,
                                      .later_buffer = open,
                                      .earlier_address = buffer->address,
                                      .later_address = buffer->address,
                                      .earlier = buffer->last,
                                      .later = *site};
  rp__pool_conflict(pool, &conflict);
}
