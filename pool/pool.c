/* Buffers, classes and families of a pool: creation and destruction, allocation by the untouched-burst rule,
 * free. */
#include "pool/pool_internal.h"

#include <stdlib.h>
#include <string.h>

#define DEFAULT_BUFFERS 65536
#define DEFAULT_CONFLICTS 256
/* A driver that refused to take something back is asked this often when the pool ends. */
#define DESTROY_ATTEMPTS 3
/* News of memory that came back, for which a try in vain waits at the most. */
#define MOST_PATIENCE 64

static bool backend_complete(const struct rp_backend *backend) {
  return backend->granularity && backend->reserve && backend->unreserve && backend->create &&
         backend->release && backend->map && backend->unmap && backend->set_access &&
         !backend->write_word == !backend->read_word;
}

rp_status rp_pool_create(const struct rp_backend *backend, const struct rp_pool_options *options,
                         struct rp_pool **out) {
  uint64_t granularity = 0;
  if (!backend || !out) return RP_ERROR_INVALID;
  if (backend->version != RP_BACKEND_VERSION) return RP_ERROR_VERSION;
  if (!backend_complete(backend)) return RP_ERROR_INVALID;
  rp_status status = backend->granularity(backend->context, &granularity);
  if (status) return status;
  if (!granularity) return RP_ERROR_INVALID;
  struct rp_pool *pool = calloc(1, sizeof *pool);
  if (!pool) return RP_ERROR_NO_MEMORY;
  pool->backend = *backend;
  pool->granularity = granularity;
  if (options) pool->options = *options;
  if (!pool->options.max_buffers) pool->options.max_buffers = DEFAULT_BUFFERS;
  if (!pool->options.max_conflicts) pool->options.max_conflicts = DEFAULT_CONFLICTS;
  pool->buffers_free = pool->memories_free = RP_POOL_NONE;
  *out = pool;
  return RP_OK;
}

rp_status rp_pool_destroy(struct rp_pool *pool, uint64_t *left_bytes) {
  if (left_bytes) *left_bytes = 0;
  if (!pool) return RP_OK;
  rp_status status = RP_OK;
  for (uint32_t b = 0; b < pool->buffer_count; b++)
    if (pool->buffers[b].in_use && !pool->buffers[b].freed)
      (void)rp_pool_free(pool, pool->buffers[b].address);
  for (int attempt = 0; attempt < DESTROY_ATTEMPTS; attempt++) {
    status = rp__pool_cleanup(pool);
    if (!status) break;
  }
  if (left_bytes) *left_bytes = pool->info.account.physical_bytes;
  while (pool->class_count)
    rp__pool_class_drop(pool, pool->class_count - 1);
  rp_address_map_fini(&pool->addresses);
  rp__pool_last_fini(pool);
  rp__headroom_fini(pool);
  free(pool->classes);
  free(pool->families);
  free(pool->buffers);
  free(pool->memories);
  free(pool->conflicts);
  free(pool);
  return status;
}

struct rp__pool_buffer *rp__pool_get(const struct rp_pool *pool, uint32_t buffer) {
  if (buffer >= pool->buffer_count || !pool->buffers[buffer].in_use || pool->buffers[buffer].freed)
    return NULL;
  return &pool->buffers[buffer];
}

struct rp__pool_slot *rp__pool_slot_of(const struct rp_pool *pool, const struct rp__pool_buffer *buffer) {
  return &pool->classes[buffer->class_id].slots[buffer->slot];
}

uint64_t rp__pool_end(const struct rp_pool *pool, const struct rp__pool_buffer *buffer) {
  return buffer->address + (pool->options.exact_ranges ? buffer->bytes : buffer->mapped_bytes);
}

uint64_t rp__pool_round(const struct rp_pool *pool, uint64_t bytes) {
  uint64_t over = bytes % pool->granularity;
  uint64_t pad = over ? pool->granularity - over : 0;
  return bytes > (uint64_t)INT64_MAX - pad ? 0 : bytes + pad;
}

void rp__pool_reason(struct rp_pool *pool, enum rp_pool_reason reason) {
  if (reason != RP_POOL_NO_REASON) pool->info.reasons[reason]++;
}

void rp__pool_conflict(struct rp_pool *pool, const struct rp_pool_conflict *conflict) {
  if (conflict->kind == RP_POOL_NO_CONFLICT) return;
  uint64_t *counters = conflict->prevented ? pool->info.prevented : pool->info.violated;
  if (conflict->kind == RP_POOL_UNCLEAR_ACCESS) {
    pool->info.unclear_late += !conflict->prevented;
    if (pool->info.unclear++ >= RP_POOL_UNCLEAR_KEPT) return;
  } else {
    counters[conflict->kind]++;
  }
  if (!pool->conflicts) pool->conflicts = calloc(pool->options.max_conflicts, sizeof *pool->conflicts);
  if (pool->conflicts && pool->conflict_count < pool->options.max_conflicts)
    pool->conflicts[pool->conflict_count++] = *conflict;
}

/* Classes. */

rp_status rp__pool_spec_check(const struct rp_pool *pool, const struct rp_pool_class_spec *spec) {
  uint64_t rounded = rp__pool_round(pool, spec->receive_bytes);
  if (!spec->receive_bytes || !spec->slots || !rounded) return RP_ERROR_INVALID;
  if (spec->mapped_bytes && (spec->mapped_bytes < rounded || spec->mapped_bytes % pool->granularity))
    return RP_ERROR_INVALID;
  return spec->slots > pool->options.max_buffers ? RP_ERROR_LIMIT : RP_OK;
}

/* Nothing belongs to it and nothing will: stages that are rebuilt for ever do not fill the table. */
static bool class_spent(const struct rp__pool_class *class) {
  return class->family == RP_POOL_NONE && !class->members && !class->account.physical_bytes;
}

/* Entry for a new class: a spent one, or the next at the end, which then has no slots; RP_POOL_NONE without
 * memory. */
static uint32_t class_entry(struct rp_pool *pool) {
  for (uint32_t c = 0; c < pool->class_count; c++)
    if (class_spent(&pool->classes[c])) return c;
  struct rp__pool_class *grown =
      realloc(pool->classes, (pool->class_count + (size_t)1) * sizeof *pool->classes);
  if (!grown) return RP_POOL_NONE;
  pool->classes = grown;
  grown[pool->class_count] = (struct rp__pool_class){.family = RP_POOL_NONE};
  return pool->class_count;
}

rp_status rp__pool_class_add(struct rp_pool *pool, const struct rp_pool_class_spec *spec,
                             uint32_t *class_id) {
  uint64_t mapped_bytes = spec->mapped_bytes ? spec->mapped_bytes : rp__pool_round(pool, spec->receive_bytes);
  uint32_t id = class_entry(pool);
  if (id == RP_POOL_NONE) return RP_ERROR_NO_MEMORY;
  struct rp__pool_slot *slots = calloc(spec->slots, sizeof *slots);
  if (!slots) return RP_ERROR_NO_MEMORY;
  for (uint32_t s = 0; s < spec->slots; s++)
    slots[s].memory = slots[s].tenant = RP_POOL_NONE;
  free(pool->classes[id].slots);
  rp__pool_last_forget_class(pool, id);
  pool->classes[id] = (struct rp__pool_class){
      .spec = *spec, .mapped_bytes = mapped_bytes, .family = RP_POOL_NONE, .sharing = true, .slots = slots};
  *class_id = id;
  if (id == pool->class_count) pool->class_count++;
  return RP_OK;
}

void rp__pool_class_drop(struct rp_pool *pool, uint32_t class_id) {
  free(pool->classes[class_id].slots);
  pool->classes[class_id] = (struct rp__pool_class){.family = RP_POOL_NONE};
  if (class_id + 1 == pool->class_count) pool->class_count--;
}

static uint32_t family_find(const struct rp_pool *pool, uint64_t mapped_bytes) {
  for (uint32_t f = 0; f < pool->family_count; f++)
    if (pool->families[f].mapped_bytes == mapped_bytes) return f;
  return RP_POOL_NONE;
}

/* Family of a planned size, made if there is none. */
static rp_status family_add(struct rp_pool *pool, uint64_t mapped_bytes, uint32_t *family) {
  *family = family_find(pool, mapped_bytes);
  if (*family != RP_POOL_NONE) return RP_OK;
  struct rp__pool_family *grown =
      realloc(pool->families, (pool->family_count + (size_t)1) * sizeof *pool->families);
  if (!grown) return RP_ERROR_NO_MEMORY;
  pool->families = grown;
  *family = pool->family_count++;
  pool->families[*family] = (struct rp__pool_family){
      .mapped_bytes = mapped_bytes, .least_bytes = UINT64_MAX, .newest = RP_POOL_NONE, .sharing = true};
  return RP_OK;
}

/* What the family's numbers are with one more class. */
static void family_count(struct rp__pool_family *family, const struct rp_pool_class_spec *spec) {
  bool known = spec->buffers && (family->buffers || !family->slots);
  family->buffers = known ? family->buffers + spec->buffers : 0;
  family->slots += spec->slots;
  if (spec->receive_bytes < family->least_bytes) family->least_bytes = spec->receive_bytes;
}

rp_status rp_pool_plan_class(struct rp_pool *pool, const struct rp_pool_class_spec *spec,
                             uint32_t *class_id) {
  uint32_t family;
  rp_status status = rp__pool_spec_check(pool, spec);
  if (status) return status;
  if (spec->mapped_bytes && spec->mapped_bytes != rp__pool_round(pool, spec->receive_bytes))
    return RP_ERROR_INVALID;
  if (!pool->alias_checked) {
    status = rp__alias_check_scratch(pool);
    if (status) {
      if (!pool->info.reasons[RP_POOL_ALIAS_CHECK_FAILED]) rp__pool_reason(pool, RP_POOL_BACKEND_FAILED);
      return status;
    }
    pool->alias_checked = true;
  }
  status = family_add(pool, rp__pool_round(pool, spec->receive_bytes), &family);
  if (status) return status;
  status = rp__pool_class_add(pool, spec, class_id);
  if (status) return status;
  pool->generation++;
  pool->classes[*class_id].family = family;
  family_count(&pool->families[family], spec);
  return RP_OK;
}

/* Buffers. */

static rp_status buffer_entry(struct rp_pool *pool, uint32_t *buffer) {
  if (pool->buffers_free != RP_POOL_NONE) {
    *buffer = pool->buffers_free;
    pool->buffers_free = pool->buffers[*buffer].slot;
    return RP_OK;
  }
  if (pool->buffer_count == pool->options.max_buffers) return RP_ERROR_LIMIT;
  if (pool->buffer_count == pool->buffer_capacity) {
    uint32_t capacity = pool->buffer_capacity ? 2 * pool->buffer_capacity : 64;
    struct rp__pool_buffer *grown = realloc(pool->buffers, capacity * sizeof *grown);
    if (!grown) return RP_ERROR_NO_MEMORY;
    pool->buffers = grown;
    pool->buffer_capacity = capacity;
  }
  *buffer = pool->buffer_count++;
  return RP_OK;
}

static void buffer_entry_free(struct rp_pool *pool, uint32_t buffer) {
  pool->buffers[buffer] = (struct rp__pool_buffer){.slot = pool->buffers_free};
  pool->buffers_free = buffer;
}

bool rp__pool_convertible(const struct rp_pool *pool, const struct rp__pool_buffer *buffer) {
  return buffer->binding == RP_POOL_PRIVATE && !buffer->touched && buffer->family != RP_POOL_NONE &&
         pool->families[buffer->family].sharing;
}

void rp__pool_touch(struct rp_pool *pool, struct rp__pool_buffer *buffer, const struct rp_pool_site *site) {
  buffer->touched = true;
  if (site) buffer->last = *site;
  if (buffer->family != RP_POOL_NONE) pool->families[buffer->family].untouched_run = 0;
}

/* Planned family that an allocation belongs to, by size alone. */
static uint32_t family_of(const struct rp_pool *pool, uint64_t bytes, uint64_t mapped_bytes) {
  uint32_t family = family_find(pool, mapped_bytes);
  return family == RP_POOL_NONE || bytes < pool->families[family].least_bytes ? RP_POOL_NONE : family;
}

/* The untouched-burst rule: no memory is needed only behind K allocations of the size in a row with nothing
 * of that size touched since, as a preallocation does and a forward pass never does; and no more than the
 * plan has buffers for. Whether the buffer goes without is another question: see allocate_memory. */
static bool is_of_burst(const struct rp_pool *pool, const struct rp__pool_family *family) {
  if (!family->sharing || pool->info.frozen || pool->info.fallback_pending) return false;
  if (family->untouched_run < family->slots) return false; /* so the first K are backed, too */
  return !family->buffers || family->granted + (uint64_t)family->slots < family->buffers;
}

static void family_note(struct rp_pool *pool, uint32_t id) {
  const struct rp__pool_buffer *buffer = &pool->buffers[id];
  if (buffer->family == RP_POOL_NONE) {
    if (pool->family_count) rp__pool_reason(pool, RP_POOL_SIZE_NEVER_SEEN);
    return;
  }
  struct rp__pool_family *family = &pool->families[buffer->family];
  family->members++;
  family->granted += buffer->granted;
  family->newest = id;
  family->untouched_run++;
  if (family->buffers && family->members > family->buffers) rp__pool_reason(pool, RP_POOL_MORE_BUFFERS);
}

/* Gone for the program: nobody needs its mapping any more. */
static void set_freed(struct rp_pool *pool, struct rp__pool_buffer *buffer) {
  pool->lost_count -= buffer->lost;
  buffer->lost = false;
  buffer->freed = true;
}

/* Gives back what a failed allocation had; what cannot be given back now stays as a freed buffer. */
static void allocate_undo(struct rp_pool *pool, uint32_t id) {
  struct rp__pool_buffer *buffer = &pool->buffers[id];
  (void)rp_address_map_remove(&pool->addresses, buffer->address, NULL);
  set_freed(pool, buffer);
  (void)rp__pool_cleanup(pool);
}

/* A buffer that the burst rule would have left without memory gives back what it has. */
static void give_up(struct rp_pool *pool, uint32_t id) {
  struct rp__pool_buffer *buffer = rp__pool_get(pool, id);
  if (!buffer || !buffer->granted || !rp__pool_convertible(pool, buffer)) return;
  if (rp__pool_unmap(pool, buffer) == RP_OK) buffer->binding = RP_POOL_UNBOUND;
}

/* What is kept back is not for new buffers: without the pool there would be none for them. */
static rp_status make_new(struct rp_pool *pool, uint32_t id) {
  uint32_t memory;
  rp_status status = rp__memory_press(pool, RP_POOL_NONE, pool->buffers[id].mapped_bytes, &memory);
  return status ? status : rp__pool_give_private(pool, id, memory);
}

/* Memory for a new buffer. A call that nobody can stop ends the program at an address without. So where there
 * are such calls, only what would have ended it without the pool is a reason to leave memory out: that there
 * is none. Then the newest buffer of the size still has some, and passes on what the one before had: what is
 * allocated alone, and not in a burst, is often what a library is about to write. */
static rp_status allocate_memory(struct rp_pool *pool, uint32_t id) {
  const struct rp__pool_buffer *buffer = &pool->buffers[id];
  if (!buffer->granted) return make_new(pool, id);
  if (!pool->info.unstoppable) return RP_OK;
  uint32_t before = pool->families[buffer->family].newest;
  if (pool->info.memory_short) give_up(pool, before);
  rp_status status = make_new(pool, id);
  if (pool->info.memory_short) give_up(pool, before); /* it may have become so on the way */
  return status == RP_ERROR_NO_MEMORY ? RP_OK : status;
}

rp_status rp_pool_allocate(struct rp_pool *pool, uint64_t bytes, uint32_t *out, uint64_t *address) {
  uint64_t mapped_bytes = bytes ? rp__pool_round(pool, bytes) : 0, begin = 0;
  uint32_t id;
  if (!mapped_bytes) return RP_ERROR_INVALID;
  rp_status status = buffer_entry(pool, &id);
  if (status) return status;
  pool->generation++;
  status = rp__backend_result(pool, pool->backend.reserve(pool->backend.context, mapped_bytes, &begin));
  if (status) {
    buffer_entry_free(pool, id);
    return status;
  }
  uint32_t family = family_of(pool, bytes, mapped_bytes);
  bool granted = family != RP_POOL_NONE && is_of_burst(pool, &pool->families[family]);
  pool->buffers[id] = (struct rp__pool_buffer){.address = begin,
                                               .bytes = bytes,
                                               .mapped_bytes = mapped_bytes,
                                               .memory = RP_POOL_NONE,
                                               .stray = RP_POOL_NONE,
                                               .family = family,
                                               .class_id = RP_POOL_NONE,
                                               .slot = RP_POOL_NONE,
                                               .in_use = true,
                                               .granted = granted};
  status = rp_address_map_add(&pool->addresses, begin, rp__pool_end(pool, &pool->buffers[id]), id);
  if (!status) status = allocate_memory(pool, id);
  if (status) {
    allocate_undo(pool, id);
    return status;
  }
  rp__account_buffer(pool, &pool->buffers[id], 1);
  if (pool->buffers[id].binding == RP_POOL_UNBOUND) rp__headroom_fill(pool, mapped_bytes);
  family_note(pool, id);
  *out = id;
  *address = begin;
  return RP_OK;
}

/* Memory for all that have none; none of the others gives theirs up for it. */
static rp_status back_all(struct rp_pool *pool) {
  for (uint32_t b = 0; b < pool->buffer_count; b++) {
    const struct rp__pool_buffer *buffer = rp__pool_get(pool, b);
    uint32_t memory;
    if (!buffer || buffer->binding != RP_POOL_UNBOUND) continue;
    pool->generation++;
    rp_status status = rp__memory_try(pool, buffer->class_id, buffer->mapped_bytes, &memory);
    if (!status) status = rp__pool_give_private(pool, b, memory);
    if (status) return status;
  }
  return RP_OK;
}

static void set_memory_short(struct rp_pool *pool) {
  if (!pool->info.memory_short && pool->family_count) rp__pool_reason(pool, RP_POOL_MEMORY_SHORT);
  pool->info.memory_short = true;
}

static uint32_t patience(const struct rp_pool *pool) {
  return pool->memory_patience ? pool->memory_patience : 1;
}

void rp_pool_memory_news(struct rp_pool *pool) {
  if (pool->info.memory_short && pool->memory_news < MOST_PATIENCE) pool->memory_news++;
}

bool rp_pool_memory_due(const struct rp_pool *pool) {
  return pool->info.memory_short && pool->memory_news >= patience(pool);
}

rp_status rp_pool_unstoppable(struct rp_pool *pool) {
  if (!pool->info.unstoppable) rp__pool_reason(pool, RP_POOL_CALLS_UNSTOPPABLE);
  pool->info.unstoppable = true;
  if (pool->info.memory_short && !rp_pool_memory_due(pool)) return RP_OK;
  bool again = pool->info.memory_short;
  rp_status status = back_all(pool);
  pool->memory_news = 0;
  if (status == RP_ERROR_NO_MEMORY) set_memory_short(pool);
  if (status && again && patience(pool) < MOST_PATIENCE) pool->memory_patience = 2 * patience(pool);
  if (!status) pool->info.memory_short = false;
  if (!status) pool->memory_patience = 0;
  return status;
}

static bool is_newest(const struct rp_pool *pool, uint32_t id) {
  const struct rp__pool_buffer *buffer = rp__pool_get(pool, id);
  return buffer && buffer->family != RP_POOL_NONE && pool->families[buffer->family].newest == id;
}

uint64_t rp_pool_memory_short(struct rp_pool *pool) {
  uint64_t before = pool->info.account.physical_bytes;
  if (!pool->info.unstoppable) return 0; /* nobody has more than he needs */
  set_memory_short(pool);
  pool->generation++;
  for (int newest = 0; newest < 2 && pool->info.account.physical_bytes == before; newest++)
    for (uint32_t b = 0; b < pool->buffer_count; b++)
      if (is_newest(pool, b) == (bool)newest) give_up(pool, b);
  return before - pool->info.account.physical_bytes;
}

static void family_forget(struct rp_pool *pool, const struct rp__pool_buffer *buffer) {
  if (buffer->family == RP_POOL_NONE) return;
  struct rp__pool_family *family = &pool->families[buffer->family];
  family->members--;
  if (family->newest == (uint32_t)(buffer - pool->buffers)) family->newest = RP_POOL_NONE;
  family->granted -= buffer->granted;
  if (!buffer->touched && family->untouched_run) family->untouched_run--;
}

/* Unmaps and unreserves a freed buffer; its entry becomes free when the driver took all of it back. */
static rp_status free_finish(struct rp_pool *pool, uint32_t id) {
  struct rp__pool_buffer *buffer = &pool->buffers[id];
  rp_status status = rp__pool_unmap(pool, buffer);
  if (!status)
    status = rp__backend_result(
        pool, pool->backend.unreserve(pool->backend.context, buffer->address, buffer->mapped_bytes));
  if (!status)
    buffer_entry_free(pool, id);
  else
    pool->refused = true;
  return status;
}

rp_status rp_pool_give_back(struct rp_pool *pool) {
  if (!pool->refused) return RP_OK;
  pool->generation++;
  for (uint32_t b = 0; b < pool->buffer_count; b++) {
    if (!pool->buffers[b].in_use || !pool->buffers[b].freed) continue;
    rp_status status = free_finish(pool, b);
    if (status) return status;
  }
  pool->refused = false;
  return rp__memory_retry(pool);
}

rp_status rp_pool_free(struct rp_pool *pool, uint64_t address) {
  struct rp_range range;
  uint64_t failures = pool->info.backend_failures;
  const struct rp_range *found = rp_address_map_find(&pool->addresses, address);
  if (!found || found->begin != address) return RP_ERROR_NOT_FOUND;
  pool->generation++;
  (void)rp_address_map_remove(&pool->addresses, address, &range);
  uint32_t id = (uint32_t)range.value;
  struct rp__pool_buffer *buffer = &pool->buffers[id];
  family_forget(pool, buffer);
  rp__pool_leave_slot(pool, id, RP_POOL_GONE);
  rp__account_buffer(pool, buffer, -1);
  if (buffer->class_id != RP_POOL_NONE) pool->classes[buffer->class_id].members--;
  buffer->class_id = RP_POOL_NONE;
  set_freed(pool, buffer);
  rp_pool_memory_news(pool);
  rp_status status = free_finish(pool, id);
  rp__headroom_trim(pool);
  if (!status && pool->info.backend_failures != failures) return RP_ERROR_UNAVAILABLE; /* of the handle */
  return status;
}

rp_status rp_pool_restore(struct rp_pool *pool) {
  rp_status first = RP_OK;
  if (!pool->lost_count) return RP_OK;
  pool->generation++;
  for (uint32_t b = 0; b < pool->buffer_count; b++) {
    if (!rp__pool_get(pool, b) || !pool->buffers[b].lost) continue;
    rp_status status = rp__pool_attach(pool, b);
    if (!first) first = status;
  }
  return first;
}

rp_status rp__pool_cleanup(struct rp_pool *pool) {
  rp_status first = rp_pool_restore(pool);
  for (uint32_t b = 0; b < pool->buffer_count; b++) {
    if (!pool->buffers[b].in_use || !pool->buffers[b].freed) continue;
    rp_status status = free_finish(pool, b);
    if (!first) first = status;
  }
  rp_status status = rp__memory_retry(pool);
  return first ? first : status;
}
