/* Physical memory of the pool: handles with reference counts, mapping with undo, and the exact account. The
 * only file besides pool.c that changes what is mapped. */
#include "pool/pool_internal.h"

#include <stdlib.h>

rp_status rp__backend_result(struct rp_pool *pool, rp_status status) {
  pool->info.backend_calls++;
  if (status) pool->info.backend_failures++;
  return status;
}

static void account_settle(struct rp_pool_account *account) {
  if (account->physical_bytes > account->physical_peak_bytes)
    account->physical_peak_bytes = account->physical_bytes;
  if (account->one_to_one_bytes > account->one_to_one_peak_bytes)
    account->one_to_one_peak_bytes = account->one_to_one_bytes;
  if (account->requested_bytes > account->requested_peak_bytes)
    account->requested_peak_bytes = account->requested_bytes;
  account->saved_bytes = (int64_t)(account->requested_bytes - account->physical_bytes);
  if (account->saved_bytes > account->saved_peak_bytes) account->saved_peak_bytes = account->saved_bytes;
}

static void account_physical(struct rp_pool_account *account, int64_t bytes) {
  account->physical_bytes += (uint64_t)bytes;
  account_settle(account);
}

/* On a class's account and on the total. */
static void count_physical(struct rp_pool *pool, uint32_t class_id, int64_t bytes) {
  account_physical(&pool->info.account, bytes);
  if (class_id != RP_POOL_NONE) account_physical(&pool->classes[class_id].account, bytes);
}

static void account_buffer(struct rp_pool_account *account, const struct rp__pool_buffer *buffer, int sign) {
  account->one_to_one_bytes += (uint64_t)sign * buffer->mapped_bytes;
  account->requested_bytes += (uint64_t)sign * buffer->bytes;
  account_settle(account);
}

void rp__account_buffer(struct rp_pool *pool, const struct rp__pool_buffer *buffer, int sign) {
  account_buffer(&pool->info.account, buffer, sign);
  if (buffer->class_id != RP_POOL_NONE)
    account_buffer(&pool->classes[buffer->class_id].account, buffer, sign);
}

void rp__account_settle(struct rp_pool *pool) {
  account_settle(&pool->info.account);
}

void rp__pool_set_class(struct rp_pool *pool, struct rp__pool_buffer *buffer, uint32_t class_id) {
  if (buffer->class_id == class_id) return;
  rp__account_buffer(pool, buffer, -1);
  if (buffer->class_id != RP_POOL_NONE) pool->classes[buffer->class_id].members--;
  buffer->class_id = class_id;
  if (class_id != RP_POOL_NONE) pool->classes[class_id].members++;
  rp__account_buffer(pool, buffer, 1);
}

/* A free entry of the table, taken off its list. */
static rp_status memory_entry(struct rp_pool *pool, uint32_t *memory) {
  if (pool->memories_free != RP_POOL_NONE) {
    *memory = pool->memories_free;
    pool->memories_free = (uint32_t)pool->memories[*memory].handle;
    return RP_OK;
  }
  if (pool->memory_count == pool->memory_capacity) {
    uint32_t capacity = pool->memory_capacity ? 2 * pool->memory_capacity : 64;
    struct rp__memory *grown = realloc(pool->memories, capacity * sizeof *grown);
    if (!grown) return RP_ERROR_NO_MEMORY;
    pool->memories = grown;
    pool->memory_capacity = capacity;
  }
  *memory = pool->memory_count++;
  return RP_OK;
}

static void memory_entry_free(struct rp_pool *pool, uint32_t memory) {
  pool->memories[memory] = (struct rp__memory){.handle = pool->memories_free};
  pool->memories_free = memory;
}

rp_status rp__memory_create(struct rp_pool *pool, uint32_t class_id, uint64_t bytes, uint32_t *memory) {
  uint32_t entry;
  uint64_t handle = 0;
  rp_status status = memory_entry(pool, &entry);
  if (status) return status;
  status = rp__backend_result(pool, pool->backend.create(pool->backend.context, bytes, &handle));
  if (status) {
    memory_entry_free(pool, entry);
    return status;
  }
  pool->memories[entry] = (struct rp__memory){.handle = handle,
                                              .bytes = bytes,
                                              .references = 1,
                                              .class_id = class_id,
                                              .slot = RP_POOL_NONE,
                                              .in_use = true};
  count_physical(pool, class_id, (int64_t)bytes);
  *memory = entry;
  return RP_OK;
}

void rp__memory_hold(struct rp_pool *pool, uint32_t memory) {
  pool->memories[memory].references++;
}

static rp_status memory_release(struct rp_pool *pool, uint32_t memory) {
  struct rp__memory *entry = &pool->memories[memory];
  rp_status status = rp__backend_result(pool, pool->backend.release(pool->backend.context, entry->handle));
  if (status) {
    entry->doomed = true;
    pool->refused = true;
    return status;
  }
  count_physical(pool, entry->class_id, -(int64_t)entry->bytes);
  memory_entry_free(pool, memory);
  return RP_OK;
}

void rp__memory_drop(struct rp_pool *pool, uint32_t memory) {
  if (memory == RP_POOL_NONE) return;
  struct rp__memory *entry = &pool->memories[memory];
  if (--entry->references) return;
  if (entry->slot != RP_POOL_NONE) {
    struct rp__pool_slot *slot = &pool->classes[entry->class_id].slots[entry->slot];
    slot->memory = slot->tenant = RP_POOL_NONE;
    entry->slot = RP_POOL_NONE;
  }
  (void)memory_release(pool, memory); /* if it fails it is doomed, and counted until it succeeds */
}

void rp__memory_assign(struct rp_pool *pool, uint32_t memory, uint32_t class_id, uint32_t slot) {
  struct rp__memory *entry = &pool->memories[memory];
  int64_t bytes = (int64_t)entry->bytes;
  if (entry->slot != RP_POOL_NONE) pool->classes[entry->class_id].slots[entry->slot].memory = RP_POOL_NONE;
  if (entry->class_id != class_id) {
    if (entry->class_id != RP_POOL_NONE) account_physical(&pool->classes[entry->class_id].account, -bytes);
    entry->class_id = class_id;
    if (class_id != RP_POOL_NONE) account_physical(&pool->classes[class_id].account, bytes);
  }
  entry->slot = slot;
  if (slot != RP_POOL_NONE) pool->classes[class_id].slots[slot].memory = memory;
}

rp_status rp__memory_retry(struct rp_pool *pool) {
  rp_status first = RP_OK;
  for (uint32_t m = 0; m < pool->memory_count; m++) {
    if (!pool->memories[m].in_use || !pool->memories[m].doomed) continue;
    rp_status status = memory_release(pool, m);
    if (!first) first = status;
  }
  return first;
}

static rp_status backend_unmap(struct rp_pool *pool, const struct rp__pool_buffer *buffer) {
  return rp__backend_result(
      pool, pool->backend.unmap(pool->backend.context, buffer->address, buffer->mapped_bytes));
}

/* Maps and gives access. On failure nothing is mapped, unless `stuck`: mapped, without access. */
static rp_status attach(struct rp_pool *pool, const struct rp__pool_buffer *buffer, uint32_t memory,
                        bool *stuck) {
  const struct rp_backend *backend = &pool->backend;
  *stuck = false;
  rp_status status =
      rp__backend_result(pool, backend->map(backend->context, buffer->address, buffer->mapped_bytes,
                                            pool->memories[memory].handle));
  if (status) return status;
  status =
      rp__backend_result(pool, backend->set_access(backend->context, buffer->address, buffer->mapped_bytes));
  if (status) *stuck = backend_unmap(pool, buffer) != RP_OK;
  return status;
}

void rp__pool_leave_slot(struct rp_pool *pool, uint32_t id, enum rp_pool_binding binding) {
  struct rp__pool_buffer *buffer = &pool->buffers[id];
  if (buffer->slot != RP_POOL_NONE) {
    struct rp__pool_slot *slot = rp__pool_slot_of(pool, buffer);
    if (slot->tenant == id) slot->tenant = RP_POOL_NONE;
    rp__pool_last_note(pool, buffer);
  }
  buffer->slot = RP_POOL_NONE;
  buffer->written_turn = 0;
  buffer->pinned = false;
  buffer->binding = binding;
  if (binding == RP_POOL_UNBOUND) buffer->concealed = false;
  if (binding == RP_POOL_UNBOUND || binding == RP_POOL_LOST) buffer->life = RP_POOL_DEAD;
}

/* The mapping before could not be restored: what is mapped now, if anything, is `memory`. */
static void give_up(struct rp_pool *pool, uint32_t id, uint32_t memory) {
  struct rp__pool_buffer *buffer = &pool->buffers[id];
  uint32_t before = buffer->memory;
  rp__pool_leave_slot(pool, id, memory == RP_POOL_NONE ? RP_POOL_UNBOUND : RP_POOL_LOST);
  buffer->concealed = false; /* lost: something is mapped that should not be */
  if (memory == before) return;
  buffer->memory = memory;
  if (memory != RP_POOL_NONE) rp__memory_hold(pool, memory);
  rp__memory_drop(pool, before);
}

rp_status rp__pool_remap(struct rp_pool *pool, uint32_t id, uint32_t memory) {
  struct rp__pool_buffer *buffer = &pool->buffers[id];
  uint32_t before = buffer->memory;
  bool stuck = false, mapped = before != RP_POOL_NONE && !buffer->concealed;
  rp_status status = mapped ? backend_unmap(pool, buffer) : RP_OK;
  if (status) return status;
  status = attach(pool, buffer, memory, &stuck);
  if (!status) {
    rp__memory_hold(pool, memory);
    buffer->memory = memory;
    buffer->concealed = false;
    rp__memory_drop(pool, before);
    return RP_OK;
  }
  if (stuck)
    give_up(pool, id, memory);
  else if (mapped && attach(pool, buffer, before, &stuck))
    give_up(pool, id, stuck ? before : RP_POOL_NONE);
  return status;
}

rp_status rp__pool_attach(struct rp_pool *pool, uint32_t id) {
  struct rp__pool_buffer *buffer = &pool->buffers[id];
  bool stuck = false;
  rp_status status = attach(pool, buffer, buffer->memory, &stuck);
  if (stuck) give_up(pool, id, buffer->memory);
  if (!status) buffer->concealed = false;
  return status;
}

rp_status rp__pool_detach(struct rp_pool *pool, uint32_t id) {
  struct rp__pool_buffer *buffer = &pool->buffers[id];
  rp_status status = backend_unmap(pool, buffer);
  if (!status) buffer->concealed = true;
  return status;
}

rp_status rp__pool_unmap(struct rp_pool *pool, struct rp__pool_buffer *buffer) {
  if (buffer->memory == RP_POOL_NONE) return RP_OK;
  rp_status status = buffer->concealed ? RP_OK : backend_unmap(pool, buffer);
  if (status) return status;
  uint32_t before = buffer->memory;
  buffer->memory = RP_POOL_NONE;
  buffer->concealed = false;
  rp__memory_drop(pool, before);
  return RP_OK;
}

rp_status rp__pool_make_private(struct rp_pool *pool, uint32_t id) {
  struct rp__pool_buffer *buffer = &pool->buffers[id];
  uint32_t memory;
  rp_status status = rp__memory_create(pool, buffer->class_id, buffer->mapped_bytes, &memory);
  if (status) return status;
  status = rp__pool_remap(pool, id, memory);
  if (!status) rp__pool_leave_slot(pool, id, RP_POOL_PRIVATE);
  rp__memory_drop(pool, memory); /* the buffer's own reference, if it has one, keeps it */
  return status;
}
