/* What a receive, an access or a registration needs before it goes on: pure functions of the pool's state.
 * Nothing here changes anything. */
#include "pool/pool_internal.h"

/* A slot to take and whose data is in it. */
struct choice {
  uint32_t class_id, slot;
  bool taken; /**< by a tenant that is still in use */
};

static bool in_use(const struct rp__pool_buffer *buffer) {
  return buffer->life == RP_POOL_POSTED || buffer->life == RP_POOL_LIVE;
}

/* The slot's data may not be overwritten by another buffer's receive. */
static bool slot_taken(const struct rp_pool *pool, const struct rp__pool_slot *slot) {
  if (slot->tenant == RP_POOL_NONE) return false;
  const struct rp__pool_buffer *tenant = &pool->buffers[slot->tenant];
  return in_use(tenant) || tenant->pinned;
}

static void decision_init(const struct rp_pool *pool, uint32_t buffer, struct rp_pool_decision *out) {
  *out = (struct rp_pool_decision){.generation = pool->generation,
                                   .buffer = buffer,
                                   .class_id = pool->buffers[buffer].class_id,
                                   .slot = pool->buffers[buffer].slot,
                                   .tenant = RP_POOL_NONE};
}

/* Both sides: `earlier` is the buffer that was there first (may be the same one). */
static void set_conflict(const struct rp_pool *pool, struct rp_pool_decision *out,
                         enum rp_pool_conflict_kind kind, bool prevented, uint32_t earlier,
                         const struct rp_pool_site *site) {
  if (earlier == RP_POOL_NONE) earlier = out->buffer;
  out->conflict = (struct rp_pool_conflict){.kind = kind,
                                            .prevented = prevented,
                                            .class_id = out->class_id,
                                            .slot = out->slot,
                                            .earlier_buffer = earlier,
                                            .later_buffer = out->buffer,
                                            .earlier_address = pool->buffers[earlier].address,
                                            .later_address = pool->buffers[out->buffer].address,
                                            .earlier = pool->buffers[earlier].last,
                                            .later = *site};
}

/* The buffer leaves sharing: fresh memory, unless it has memory of its own already. */
static void set_memory(const struct rp_pool *pool, struct rp_pool_decision *out,
                       enum rp_pool_memory_action action, enum rp_pool_reason reason) {
  const struct rp__pool_buffer *buffer = &pool->buffers[out->buffer];
  out->reason = reason;
  out->memory = action;
  if (buffer->binding == RP_POOL_PRIVATE) out->memory = RP_POOL_MEMORY_NONE;
  out->remaps = out->memory != RP_POOL_MEMORY_NONE && out->memory != RP_POOL_MEMORY_PIN &&
                buffer->binding != RP_POOL_UNBOUND;
}

/* Class of the first receive of a buffer: the one named, else the only one of its size. */
static uint32_t class_for(const struct rp_pool *pool, const struct rp__pool_buffer *buffer,
                          const struct rp_pool_post *post) {
  uint32_t only = RP_POOL_NONE;
  for (uint32_t c = 0; c < pool->class_count; c++) {
    const struct rp__pool_class *class = &pool->classes[c];
    if (!class->sharing || class->family == RP_POOL_NONE || class->family != buffer->family) continue;
    if (c == post->class_id) return c;
    if (post->class_id != RP_POOL_NONE) continue;
    if (only != RP_POOL_NONE) return RP_POOL_NONE;
    only = c;
  }
  return only;
}

/* The plan's slot, else the next in order that nobody is using. */
static struct choice choose_slot(const struct rp_pool *pool, uint32_t class_id, uint32_t hint) {
  const struct rp__pool_class *class = &pool->classes[class_id];
  struct choice choice = {class_id, hint, false};
  if (hint < class->spec.slots) {
    choice.taken = slot_taken(pool, &class->slots[hint]);
    return choice;
  }
  for (uint32_t i = 0; i < class->spec.slots; i++) {
    choice.slot = (class->next_slot + i) % class->spec.slots;
    if (!slot_taken(pool, &class->slots[choice.slot])) return choice;
  }
  choice.slot = class->next_slot;
  choice.taken = true;
  return choice;
}

static bool size_matches(const struct rp_pool *pool, const struct rp__pool_buffer *buffer,
                         const struct rp_pool_post *post, uint32_t class_id) {
  return post->address == buffer->address && post->bytes == pool->classes[class_id].spec.receive_bytes;
}

/* Slot that the receive would use, if it shares one. */
static bool slot_for(const struct rp_pool *pool, const struct rp_pool_post *post, struct choice *choice,
                     enum rp_pool_reason *why_not) {
  const struct rp__pool_buffer *buffer = &pool->buffers[post->buffer];
  *why_not = RP_POOL_NO_REASON;
  if (buffer->binding == RP_POOL_BOUND) {
    const struct rp__pool_slot *slot = rp__pool_slot_of(pool, buffer);
    bool own = slot->tenant == post->buffer;
    *choice = (struct choice){buffer->class_id, buffer->slot, !own && slot_taken(pool, slot)};
    return true;
  }
  if (buffer->binding == RP_POOL_PRIVATE && !rp__pool_convertible(pool, buffer)) return false;
  uint32_t class_id = class_for(pool, buffer, post);
  if (class_id == RP_POOL_NONE)
    *why_not = RP_POOL_OTHER_CLASS;
  else if (!size_matches(pool, buffer, post, class_id))
    *why_not = RP_POOL_SIZE_NEVER_SEEN;
  else if (post->capturing)
    *why_not = RP_POOL_GRAPH_CAPTURED;
  if (*why_not) return false;
  *choice = choose_slot(pool, class_id, post->slot_hint);
  return true;
}

static uint32_t displaced(const struct rp_pool *pool, uint32_t buffer, const struct choice *choice) {
  uint32_t tenant = pool->classes[choice->class_id].slots[choice->slot].tenant;
  return tenant == buffer ? RP_POOL_NONE : tenant;
}

rp_status rp_pool_receive_displaces(const struct rp_pool *pool, const struct rp_pool_post *post,
                                    uint32_t *tenant) {
  struct choice choice;
  enum rp_pool_reason why_not;
  if (!rp__pool_get(pool, post->buffer)) return RP_ERROR_NOT_FOUND;
  *tenant = RP_POOL_NONE;
  if (slot_for(pool, post, &choice, &why_not) && !choice.taken)
    *tenant = displaced(pool, post->buffer, &choice);
  return RP_OK;
}

/* A receive into the wrong place or of the wrong size, with the class the buffer is bound to. */
static bool decide_mismatch(const struct rp_pool *pool, const struct rp_pool_post *post,
                            struct rp_pool_decision *out) {
  const struct rp__pool_buffer *buffer = &pool->buffers[post->buffer];
  uint64_t offset = post->address - buffer->address;
  bool inside = offset <= buffer->mapped_bytes && post->bytes <= buffer->mapped_bytes - offset;
  bool bound = buffer->binding == RP_POOL_BOUND && !buffer->pinned;
  if (inside && (!bound || size_matches(pool, buffer, post, buffer->class_id))) return false;
  set_conflict(pool, out, RP_POOL_SIZE_MISMATCH, inside, RP_POOL_NONE, &post->site);
  if (buffer->pinned) return true;
  bool tenant = bound && rp__pool_slot_of(pool, buffer)->tenant == post->buffer;
  set_memory(pool, out, tenant ? RP_POOL_MEMORY_PIN : RP_POOL_MEMORY_PRIVATE, RP_POOL_CONFLICT);
  return true;
}

/* The slot is free, or its tenant released: overwrite in order, or not at all. */
static void decide_take(const struct rp_pool *pool, const struct rp_pool_post *post,
                        const struct choice *choice, struct rp_pool_decision *out) {
  const struct rp__pool_buffer *buffer = &pool->buffers[post->buffer];
  uint32_t tenant = displaced(pool, post->buffer, choice);
  bool ordered = tenant == RP_POOL_NONE || post->order == RP_POOL_ORDER_YES;
  out->class_id = choice->class_id;
  out->slot = choice->slot;
  if (!ordered) set_conflict(pool, out, RP_POOL_UNORDERED_REUSE, true, tenant, &post->site);
  if (!ordered && (post->order == RP_POOL_ORDER_NEVER || post->capturing)) {
    set_memory(pool, out, RP_POOL_MEMORY_GROW, RP_POOL_CONFLICT);
    return;
  }
  out->tenant = tenant;
  out->insert_wait = !ordered;
  if (buffer->binding != RP_POOL_BOUND)
    out->memory = RP_POOL_MEMORY_BIND;
  else if (post->capturing)
    set_memory(pool, out, RP_POOL_MEMORY_PIN, RP_POOL_GRAPH_CAPTURED);
}

/* The slot's tenant is in use: nothing may be overwritten. */
static void decide_grow(const struct rp_pool *pool, const struct rp_pool_post *post,
                        const struct choice *choice, struct rp_pool_decision *out) {
  uint32_t tenant = pool->classes[choice->class_id].slots[choice->slot].tenant;
  out->class_id = choice->class_id;
  out->slot = choice->slot;
  if (in_use(&pool->buffers[tenant])) set_conflict(pool, out, RP_POOL_EARLY_REUSE, true, tenant, &post->site);
  set_memory(pool, out, RP_POOL_MEMORY_GROW, RP_POOL_MORE_IN_FLIGHT);
}

rp_status rp_pool_receive_decide(const struct rp_pool *pool, const struct rp_pool_post *post,
                                 struct rp_pool_decision *out) {
  const struct rp__pool_buffer *buffer = rp__pool_get(pool, post->buffer);
  struct choice choice;
  enum rp_pool_reason why_not;
  if (!buffer) return RP_ERROR_NOT_FOUND;
  decision_init(pool, post->buffer, out);
  if (pool->info.frozen) {
    out->fallback_first = true;
    return RP_OK;
  }
  if (decide_mismatch(pool, post, out)) return RP_OK;
  if (!slot_for(pool, post, &choice, &why_not)) {
    if (buffer->binding == RP_POOL_UNBOUND)
      set_memory(pool, out, RP_POOL_MEMORY_PRIVATE, why_not);
    else
      out->reason = why_not;
  } else if (choice.taken) {
    decide_grow(pool, post, &choice, out);
  } else {
    decide_take(pool, post, &choice, out);
  }
  return RP_OK;
}

/* Of a violation. */
static void policy(const struct rp_pool *pool, struct rp_pool_decision *out) {
  out->want_fallback = pool->options.on_stale == RP_POOL_ON_STALE_FALLBACK;
  out->abort = pool->options.on_stale == RP_POOL_ON_STALE_ABORT;
}

/* What uses the buffer, and what is known of it. A launch that is given an address may leave it alone. */
static bool surely_reads(const struct rp_pool_access *access) {
  return access->mode == RP_POOL_READ || (access->mode == RP_POOL_UNKNOWN_MODE && access->reads);
}

/* The buffer's data is still in the slot. */
static void decide_tenant_access(const struct rp_pool *pool, const struct rp_pool_access *access,
                                 struct rp_pool_decision *out) {
  const struct rp__pool_buffer *buffer = &pool->buffers[access->buffer];
  if (buffer->pinned) return;
  if (buffer->life == RP_POOL_DEAD) {
    bool proven = access->mode == RP_POOL_WRITE || surely_reads(access);
    set_conflict(pool, out, proven ? RP_POOL_FOREIGN_ACCESS : RP_POOL_UNCLEAR_ACCESS, true, RP_POOL_NONE,
                 &access->site);
    set_memory(pool, out, RP_POOL_MEMORY_PIN, RP_POOL_CONFLICT);
  } else if (access->capturing) {
    set_memory(pool, out, RP_POOL_MEMORY_PIN, RP_POOL_GRAPH_CAPTURED);
  }
}

/* Somebody else's data is in the slot, or nobody's. A read finds that, which no memory mends; a write would
 * overwrite it unless the buffer gets memory of its own first. What may be either gets that too: if it reads,
 * its data is gone all the same, and is kept from the next receive on. */
static void decide_displaced_access(const struct rp_pool *pool, const struct rp_pool_access *access,
                                    struct rp_pool_decision *out) {
  const struct rp__pool_buffer *buffer = &pool->buffers[access->buffer];
  const struct rp__pool_slot *slot = rp__pool_slot_of(pool, buffer);
  bool own = buffer->written_turn == slot->turn + 1; /* it may find what the buffer's user wrote */
  bool moves = access->interposed && (access->mode != RP_POOL_READ || access->capturing);
  if (surely_reads(access) && !own) {
    set_conflict(pool, out, RP_POOL_STALE_ACCESS, false, slot->tenant, &access->site);
    policy(pool, out);
  } else if (access->mode == RP_POOL_WRITE) {
    set_conflict(pool, out, RP_POOL_FOREIGN_ACCESS, access->interposed, slot->tenant, &access->site);
    if (!access->interposed) policy(pool, out);
  } else {
    bool suspect = access->learned && pool->options.on_stale != RP_POOL_ON_STALE_REPORT;
    set_conflict(pool, out, RP_POOL_UNCLEAR_ACCESS, moves, slot->tenant, &access->site);
    out->want_fallback = suspect || !access->interposed;
  }
  if (moves) set_memory(pool, out, RP_POOL_MEMORY_PRIVATE, RP_POOL_CONFLICT);
}

rp_status rp_pool_access_decide(const struct rp_pool *pool, const struct rp_pool_access *access,
                                struct rp_pool_decision *out) {
  const struct rp__pool_buffer *buffer = rp__pool_get(pool, access->buffer);
  if (!buffer) return RP_ERROR_NOT_FOUND;
  decision_init(pool, access->buffer, out);
  out->reopens = buffer->life == RP_POOL_RELEASED;
  if (buffer->binding == RP_POOL_UNBOUND) {
    set_memory(pool, out, access->interposed ? RP_POOL_MEMORY_PRIVATE : RP_POOL_MEMORY_NONE,
               RP_POOL_FIRST_TOUCH);
    if (access->interposed) return RP_OK;
    set_conflict(pool, out, RP_POOL_FOREIGN_ACCESS, false, RP_POOL_NONE, &access->site);
    policy(pool, out);
    out->want_fallback = true; /* whatever the policy: it has no memory */
  } else if (buffer->binding == RP_POOL_BOUND) {
    bool tenant = rp__pool_slot_of(pool, buffer)->tenant == access->buffer;
    if (tenant) decide_tenant_access(pool, access, out);
    if (!tenant) decide_displaced_access(pool, access, out);
    out->reopens = out->reopens && tenant;
  } else if (rp__pool_convertible(pool, buffer)) {
    out->reason = RP_POOL_FIRST_TOUCH;
  }
  return RP_OK;
}

rp_status rp_pool_flag_decide(const struct rp_pool *pool, uint32_t id, uint32_t flag, bool interposed,
                              const struct rp_pool_site *site, struct rp_pool_decision *out) {
  const struct rp__pool_buffer *buffer = rp__pool_get(pool, id);
  if (!buffer) return RP_ERROR_NOT_FOUND;
  if (flag != RP_POOL_FLAG_REGISTERED && flag != RP_POOL_FLAG_ESCAPED && flag != RP_POOL_FLAG_GRAPH)
    return RP_ERROR_INVALID;
  decision_init(pool, id, out);
  enum rp_pool_reason reason = flag == RP_POOL_FLAG_REGISTERED ? RP_POOL_REGISTERED
                               : flag == RP_POOL_FLAG_ESCAPED  ? RP_POOL_ESCAPED
                                                               : RP_POOL_GRAPH_CAPTURED;
  if (buffer->binding == RP_POOL_PRIVATE || buffer->pinned) return RP_OK;
  bool tenant = buffer->binding == RP_POOL_BOUND && rp__pool_slot_of(pool, buffer)->tenant == id;
  bool possible = tenant || interposed;
  if (possible)
    set_memory(pool, out, tenant ? RP_POOL_MEMORY_PIN : RP_POOL_MEMORY_PRIVATE, reason);
  else
    out->reason = reason;
  out->want_fallback = !possible;
  if (!possible || (buffer->binding == RP_POOL_BOUND && flag != RP_POOL_FLAG_GRAPH))
    set_conflict(pool, out, RP_POOL_ESCAPED_POINTER, possible, RP_POOL_NONE, site);
  return RP_OK;
}
