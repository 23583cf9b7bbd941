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

static rp_status backend_create(struct rp_pool *pool, uint64_t bytes, uint64_t *handle) {
  return rp__backend_result(pool, pool->backend.create(pool->backend.context, bytes, handle));
}

rp_status rp__memory_try(struct rp_pool *pool, uint32_t class_id, uint64_t bytes, uint32_t *memory) {
  uint32_t entry;
  uint64_t handle = 0;
  rp_status status = memory_entry(pool, &entry);
  if (status) return status;
  status = backend_create(pool, bytes, &handle);
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

rp_status rp__memory_press(struct rp_pool *pool, uint32_t class_id, uint64_t bytes, uint32_t *memory) {
  rp_status status = rp__memory_try(pool, class_id, bytes, memory);
  if (status == RP_ERROR_NO_MEMORY && rp_pool_memory_short(pool) > 0)
    status = rp__memory_try(pool, class_id, bytes, memory);
  return status;
}

rp_status rp__memory_create(struct rp_pool *pool, uint32_t class_id, uint64_t bytes, uint32_t *memory) {
  const struct rp_pool_account *account = &pool->info.account;
  bool full = account->physical_bytes + bytes > account->one_to_one_bytes; /* no more than without sharing */
  uint32_t kept = full ? rp__headroom_use(pool, bytes) : RP_POOL_NONE;
  rp_status status = kept == RP_POOL_NONE ? rp__memory_press(pool, class_id, bytes, memory) : RP_OK;
  if (status) kept = rp__headroom_use(pool, bytes);
  if (kept == RP_POOL_NONE) return status;
  rp__memory_assign(pool, kept, class_id, RP_POOL_NONE);
  *memory = kept;
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
  if (rp__headroom_keep(pool, memory)) {
    rp__memory_assign(pool, memory, RP_POOL_NONE, RP_POOL_NONE);
    entry->references = 1;
    return;
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

/* What must not stay half done is tried so often before it is left for later. */
#define ATTEMPTS 3

/* Maps and gives access. On failure nothing is mapped, unless `stuck`: mapped, without access. */
static rp_status attach(struct rp_pool *pool, const struct rp__pool_buffer *buffer, uint32_t memory,
                        bool *stuck) {
  const struct rp_backend *backend = &pool->backend;
  *stuck = false;
  rp_status status =
      rp__backend_result(pool, backend->map(backend->context, buffer->address, buffer->mapped_bytes,
                                            pool->memories[memory].handle));
  if (status) return status;
  for (int i = 0; i < ATTEMPTS; i++) { /* forward or back, whichever the driver lets us */
    status = rp__backend_result(pool,
                                backend->set_access(backend->context, buffer->address, buffer->mapped_bytes));
    if (!status || !backend_unmap(pool, buffer)) return status;
  }
  *stuck = true;
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
  if (binding == RP_POOL_UNBOUND || binding == RP_POOL_GONE) buffer->life = RP_POOL_DEAD;
}

static void set_lost(struct rp_pool *pool, struct rp__pool_buffer *buffer, bool lost) {
  pool->lost_count += (uint32_t)lost - (uint32_t)buffer->lost;
  buffer->lost = lost;
}

void rp__pool_lose(struct rp_pool *pool, uint32_t id, uint32_t memory) {
  struct rp__pool_buffer *buffer = &pool->buffers[id];
  uint32_t before = buffer->memory;
  bool mapped = before != RP_POOL_NONE && !buffer->concealed;
  set_lost(pool, buffer, true);
  buffer->concealed = true;
  if (!mapped && memory == before) return;
  rp__memory_hold(pool, memory);
  buffer->memory = memory;
  if (mapped)
    buffer->stray = before; /* with its reference */
  else
    rp__memory_drop(pool, before);
}

/* Takes what should not be mapped at a lost buffer away. */
static rp_status clear_stray(struct rp_pool *pool, struct rp__pool_buffer *buffer) {
  uint32_t stray = buffer->stray;
  if (stray == RP_POOL_NONE) return RP_OK;
  rp_status status = backend_unmap(pool, buffer);
  if (status) return status;
  buffer->stray = RP_POOL_NONE;
  rp__memory_drop(pool, stray);
  return RP_OK;
}

/* The buffer's memory is mapped there now. */
static void shown(struct rp_pool *pool, struct rp__pool_buffer *buffer) {
  buffer->concealed = false;
  set_lost(pool, buffer, false);
}

/* Mapped without access, and stuck there. */
static void keep_stray(struct rp_pool *pool, uint32_t id, uint32_t memory) {
  struct rp__pool_buffer *buffer = &pool->buffers[id];
  rp__memory_hold(pool, memory);
  buffer->stray = memory;
  buffer->concealed = buffer->memory != RP_POOL_NONE;
  set_lost(pool, buffer, true);
}

/* Maps `memory`, or what was there before; either will do rather than nothing. */
static rp_status exchange(struct rp_pool *pool, uint32_t id, uint32_t memory) {
  struct rp__pool_buffer *buffer = &pool->buffers[id];
  const uint32_t before = buffer->memory;
  rp_status first = RP_OK;
  buffer->concealed = true; /* nothing is mapped */
  for (int i = 0; i < 2 * ATTEMPTS; i++) {
    uint32_t tried = i % 2 ? before : memory;
    bool stuck;
    rp_status status = attach(pool, buffer, tried, &stuck);
    if (!first) first = status;
    if (stuck) keep_stray(pool, id, tried);
    if (stuck) return first;
    if (status) continue;
    if (tried == memory) return RP_OK;
    shown(pool, buffer);
    return first;
  }
  set_lost(pool, buffer, true);
  return first;
}

rp_status rp__pool_remap(struct rp_pool *pool, uint32_t id, uint32_t memory) {
  struct rp__pool_buffer *buffer = &pool->buffers[id];
  uint32_t before = buffer->memory;
  bool stuck = false, mapped = before != RP_POOL_NONE && !buffer->concealed;
  rp_status status = mapped ? backend_unmap(pool, buffer) : clear_stray(pool, buffer);
  if (status) return status;
  status = mapped ? exchange(pool, id, memory) : attach(pool, buffer, memory, &stuck);
  if (stuck) keep_stray(pool, id, memory);
  if (status) return status;
  rp__memory_hold(pool, memory);
  buffer->memory = memory;
  shown(pool, buffer);
  rp__memory_drop(pool, before);
  return RP_OK;
}

rp_status rp__pool_attach(struct rp_pool *pool, uint32_t id) {
  struct rp__pool_buffer *buffer = &pool->buffers[id];
  bool stuck = false;
  rp_status status = clear_stray(pool, buffer);
  if (!status && buffer->memory != RP_POOL_NONE) status = attach(pool, buffer, buffer->memory, &stuck);
  if (stuck) keep_stray(pool, id, buffer->memory);
  if (!status) shown(pool, buffer);
  return status;
}

rp_status rp__pool_detach(struct rp_pool *pool, uint32_t id) {
  struct rp__pool_buffer *buffer = &pool->buffers[id];
  rp_status status = backend_unmap(pool, buffer);
  if (!status) buffer->concealed = true;
  return status;
}

rp_status rp__pool_unmap(struct rp_pool *pool, struct rp__pool_buffer *buffer) {
  if (buffer->memory == RP_POOL_NONE && buffer->stray == RP_POOL_NONE) return RP_OK;
  bool hidden = buffer->concealed || buffer->stray != RP_POOL_NONE;
  rp_status status = hidden ? clear_stray(pool, buffer) : backend_unmap(pool, buffer);
  if (status) return status;
  uint32_t before = buffer->memory;
  buffer->memory = RP_POOL_NONE;
  shown(pool, buffer);
  rp__memory_drop(pool, before);
  return RP_OK;
}

rp_status rp__pool_give_private(struct rp_pool *pool, uint32_t id, uint32_t memory) {
  rp_status status = rp__pool_remap(pool, id, memory);
  if (!status) rp__pool_leave_slot(pool, id, RP_POOL_PRIVATE);
  rp__memory_drop(pool, memory); /* the buffer's own reference, if it has one, keeps it */
  return status;
}

rp_status rp__pool_make_private(struct rp_pool *pool, uint32_t id) {
  const struct rp__pool_buffer *buffer = &pool->buffers[id];
  uint32_t memory;
  rp_status status = rp__memory_create(pool, buffer->class_id, buffer->mapped_bytes, &memory);
  return status ? status : rp__pool_give_private(pool, id, memory);
}
