/* Buffers with memory of their own begin to share: in auto mode they become a class with K slots, as a
 * transaction; in planned mode one joins the class that the plan has for it. No memory is created on the way:
 * each slot is the memory of one of its buffers, so there is nothing to run out of. */
#include "pool/pool_internal.h"

#include <stdlib.h>
#include <string.h>

/* What has to be taken back is tried so often. */
#define UNDO_ATTEMPTS 3
#define PATTERN_ONE 0x5eedf00d0badcafeu
#define PATTERN_OTHER 0xa11a5e5fee1deadau

/* The alias check. */

static rp_status write_word(struct rp_pool *pool, uint64_t address, uint64_t word) {
  return rp__backend_result(pool, pool->backend.write_word(pool->backend.context, address, word));
}

static rp_status same_word(struct rp_pool *pool, uint64_t one, uint64_t other) {
  if (one == other) return RP_OK;
  rp__pool_reason(pool, RP_POOL_ALIAS_CHECK_FAILED);
  return RP_ERROR_UNAVAILABLE;
}

/* Writes through `from`, reads through `to`. */
static rp_status word_crosses(struct rp_pool *pool, uint64_t from, uint64_t to, uint64_t word) {
  uint64_t seen = ~word;
  rp_status status = write_word(pool, from, word);
  if (!status) status = rp__backend_result(pool, pool->backend.read_word(pool->backend.context, to, &seen));
  return status ? status : same_word(pool, seen, word);
}

static rp_status check_word(struct rp_pool *pool, uint64_t one, uint64_t other) {
  uint64_t before = 0;
  rp_status status = rp__backend_result(pool, pool->backend.read_word(pool->backend.context, one, &before));
  if (status) return status;
  status = word_crosses(pool, one, other, PATTERN_ONE);
  if (!status) status = word_crosses(pool, other, one, PATTERN_OTHER);
  rp_status restored = RP_ERROR_STATE; /* somebody's data: tried again */
  for (int i = 0; i < UNDO_ATTEMPTS && restored; i++)
    restored = write_word(pool, one, before);
  return status ? status : restored;
}

/* Contents in use are not touched, however briefly: a restore could fail. */
static rp_status compare_word(struct rp_pool *pool, uint64_t one, uint64_t other) {
  uint64_t a = 0, b = 1;
  rp_status status = rp__backend_result(pool, pool->backend.read_word(pool->backend.context, one, &a));
  if (!status) status = rp__backend_result(pool, pool->backend.read_word(pool->backend.context, other, &b));
  return status ? status : same_word(pool, a, b);
}

rp_status rp__alias_check(struct rp_pool *pool, uint64_t one, uint64_t other, uint64_t bytes, bool in_use) {
  rp_status (*check)(struct rp_pool *, uint64_t, uint64_t) = in_use ? compare_word : check_word;
  if (!pool->backend.write_word) return RP_OK;
  rp_status status = check(pool, one, other);
  uint64_t last = bytes - sizeof(uint64_t);
  return status ? status : check(pool, one + last, other + last);
}

/* Two buffers outside any class, one made to show the other's memory. */
static rp_status scratch_pair(struct rp_pool *pool, uint32_t one, uint32_t other) {
  const struct rp__pool_buffer *buffers = pool->buffers;
  rp_status status = rp__pool_remap(pool, other, buffers[one].memory);
  if (status) return status;
  return rp__alias_check(pool, buffers[one].address, buffers[other].address, pool->granularity, false);
}

rp_status rp__alias_check_scratch(struct rp_pool *pool) {
  uint32_t id[2] = {0, 0};
  uint64_t address[2];
  struct rp_pool_account account = pool->info.account;
  size_t made = 0;
  rp_status status = RP_OK;
  for (; made < 2 && !status; made += !status)
    status = rp_pool_allocate(pool, pool->granularity, &id[made], &address[made]);
  if (!status) status = scratch_pair(pool, id[0], id[1]);
  while (made--) {
    rp_status freed = rp_pool_free(pool, address[made]);
    for (int i = 0; i < UNDO_ATTEMPTS && freed; i++)
      freed = rp_pool_give_back(pool); /* refused once is no reason to do without a pool */
    if (!status) status = freed;
  }
  /* The scratch memory is no part of what the program holds or saves. */
  pool->info.account.physical_peak_bytes = account.physical_peak_bytes;
  pool->info.account.one_to_one_peak_bytes = account.one_to_one_peak_bytes;
  pool->info.account.requested_peak_bytes = account.requested_peak_bytes;
  pool->info.account.saved_peak_bytes = account.saved_peak_bytes;
  rp__account_settle(pool); /* unless some of it could not be given back */
  return status;
}

/* Moves. */

rp_status rp__pool_move(struct rp_pool *pool, struct rp__pool_moves *moves, uint32_t id, uint32_t memory) {
  uint32_t before = pool->buffers[id].memory;
  rp__memory_hold(pool, before);
  rp_status status = rp__pool_remap(pool, id, memory);
  if (status) {
    rp__memory_drop(pool, before);
    return status;
  }
  moves->list[moves->count++] = (struct rp__pool_move){id, before};
  return RP_OK;
}

void rp__pool_moves_undo(struct rp_pool *pool, struct rp__pool_moves *moves) {
  while (moves->count) {
    struct rp__pool_move move = moves->list[--moves->count];
    rp_status status = RP_ERROR_STATE;
    for (int i = 0; i < UNDO_ATTEMPTS && status && !pool->buffers[move.buffer].lost; i++)
      status = rp__pool_remap(pool, move.buffer, move.before);
    if (status) rp__pool_lose(pool, move.buffer, move.before);
    rp__memory_drop(pool, move.before);
  }
}

void rp__pool_moves_settle(struct rp_pool *pool, struct rp__pool_moves *moves) {
  while (moves->count)
    rp__memory_drop(pool, moves->list[--moves->count].before);
}

/* Activation. */

static bool open_lifetime(const struct rp__pool_buffer *buffer) {
  return buffer->life == RP_POOL_POSTED || buffer->life == RP_POOL_LIVE;
}

/* Who goes where; made before anything is changed. */
struct activation {
  uint32_t *buffers, *slots; /**< those that take part */
  size_t count;
  uint32_t *donors; /**< [spec.slots] whose memory becomes the slot's, or RP_POOL_NONE */
  size_t donor_count;
  struct rp__pool_moves moves;
};

static void activation_fini(struct activation *a) {
  free(a->buffers);
  free(a->slots);
  free(a->donors);
  free(a->moves.list);
}

static rp_status activation_init(struct activation *a, size_t count, uint32_t slots) {
  *a = (struct activation){.buffers = calloc(count + 1, sizeof *a->buffers),
                           .slots = calloc(count + 1, sizeof *a->slots),
                           .donors = calloc(slots, sizeof *a->donors),
                           .moves.list = calloc(count + 1, sizeof *a->moves.list)};
  if (!a->buffers || !a->slots || !a->donors || !a->moves.list) return RP_ERROR_NO_MEMORY;
  for (uint32_t s = 0; s < slots; s++)
    a->donors[s] = RP_POOL_NONE;
  return RP_OK;
}

/* May this buffer take part at all? Out of our sight: left alone, no error. */
static rp_status admit(const struct rp_pool *pool, const struct rp_pool_class_spec *spec, uint32_t id,
                       bool *left_alone) {
  const struct rp__pool_buffer *buffer = rp__pool_get(pool, id);
  if (!buffer) return RP_ERROR_NOT_FOUND;
  *left_alone = buffer->flags != 0;
  if (*left_alone) return RP_OK;
  if (buffer->binding != RP_POOL_PRIVATE) return RP_ERROR_STATE;
  if (buffer->lost) return RP_ERROR_UNAVAILABLE;
  uint64_t mapped = spec->mapped_bytes ? spec->mapped_bytes : rp__pool_round(pool, spec->receive_bytes);
  bool fits = buffer->mapped_bytes == mapped && buffer->bytes >= spec->receive_bytes;
  return fits ? RP_OK : RP_ERROR_INVALID;
}

/* Two in use at the boundary cannot share; one in use keeps its contents by giving the slot its memory. */
static rp_status choose_donor(const struct rp_pool *pool, struct activation *a, uint32_t id, uint32_t slot) {
  uint32_t *donor = &a->donors[slot];
  if (*donor == RP_POOL_NONE) {
    *donor = id;
    a->donor_count++;
  } else if (open_lifetime(&pool->buffers[id])) {
    if (open_lifetime(&pool->buffers[*donor])) return RP_ERROR_BUSY;
    *donor = id;
  }
  return RP_OK;
}

static int compare_ids(const void *one, const void *other) {
  uint32_t a = *(const uint32_t *)one, b = *(const uint32_t *)other;
  return (a > b) - (a < b);
}

/* `scratch` has room for all of them and is overwritten. */
static bool any_twice(const uint32_t *ids, size_t count, uint32_t *scratch) {
  if (count) memcpy(scratch, ids, count * sizeof *ids);
  qsort(scratch, count, sizeof *scratch, compare_ids);
  for (size_t i = 1; i < count; i++)
    if (scratch[i] == scratch[i - 1]) return true;
  return false;
}

static rp_status activation_build(const struct rp_pool *pool, const struct rp_pool_class_spec *spec,
                                  const uint32_t *buffers, const uint32_t *slot, size_t count,
                                  struct activation *a) {
  if (any_twice(buffers, count, a->buffers)) return RP_ERROR_INVALID;
  for (size_t i = 0; i < count; i++) {
    bool left_alone;
    if (slot[i] >= spec->slots) return RP_ERROR_INVALID;
    rp_status status = admit(pool, spec, buffers[i], &left_alone);
    if (status) return status;
    if (left_alone) continue;
    status = choose_donor(pool, a, buffers[i], slot[i]);
    if (status) return status;
    a->buffers[a->count] = buffers[i];
    a->slots[a->count++] = slot[i];
  }
  return a->count > a->donor_count ? RP_OK : RP_ERROR_STATE;
}

/* Maps everybody onto the donors' memory and looks whether one alias of each slot shows the other's words. */
static rp_status activation_map(struct rp_pool *pool, struct activation *a) {
  uint32_t checked = RP_POOL_NONE;
  for (size_t i = 0; i < a->count; i++) {
    uint32_t id = a->buffers[i], donor = a->donors[a->slots[i]];
    if (id == donor) continue;
    rp_status status = rp__pool_move(pool, &a->moves, id, pool->buffers[donor].memory);
    if (status) return status;
    if (checked == a->slots[i]) continue; /* neighbours of one slot: once is enough */
    checked = a->slots[i];
    status = rp__alias_check(pool, pool->buffers[donor].address, pool->buffers[id].address,
                             pool->buffers[id].mapped_bytes, open_lifetime(&pool->buffers[donor]));
    if (status) return status;
  }
  return RP_OK;
}

/* Everything is mapped: the states follow, which cannot fail. */
static void activation_settle(struct rp_pool *pool, struct activation *a, uint32_t class_id) {
  for (size_t i = 0; i < a->count; i++) {
    struct rp__pool_buffer *buffer = &pool->buffers[a->buffers[i]];
    uint32_t slot = a->slots[i];
    rp__pool_set_class(pool, buffer, class_id);
    buffer->binding = RP_POOL_BOUND;
    buffer->slot = slot;
    if (a->donors[slot] != a->buffers[i]) continue;
    rp__memory_assign(pool, buffer->memory, class_id, slot);
    pool->classes[class_id].slots[slot].tenant = a->buffers[i];
  }
  rp__pool_moves_settle(pool, &a->moves);
}

static rp_status activation_run(struct rp_pool *pool, const struct rp_pool_class_spec *spec,
                                struct activation *a, uint32_t *class_id) {
  uint32_t made;
  uint64_t alias_failures = pool->info.reasons[RP_POOL_ALIAS_CHECK_FAILED];
  rp_status status = rp__pool_class_add(pool, spec, &made);
  if (status) return status;
  status = activation_map(pool, a);
  if (status) {
    if (pool->info.reasons[RP_POOL_ALIAS_CHECK_FAILED] == alias_failures)
      rp__pool_reason(pool, status == RP_ERROR_NO_MEMORY ? RP_POOL_OUT_OF_MEMORY : RP_POOL_BACKEND_FAILED);
    rp__pool_moves_undo(pool, &a->moves);
    rp__pool_class_drop(pool, made);
    return status;
  }
  activation_settle(pool, a, made);
  pool->info.activations++;
  *class_id = made;
  return RP_OK;
}

rp_status rp_pool_activate(struct rp_pool *pool, const struct rp_pool_class_spec *spec,
                           const uint32_t *buffers, const uint32_t *slot, size_t count, bool capturing,
                           uint32_t *class_id) {
  struct activation a;
  if (capturing || pool->info.frozen || pool->info.fallback_pending) return RP_ERROR_BUSY;
  rp_status status = rp__pool_spec_check(pool, spec);
  if (status) return status;
  status = activation_init(&a, count, spec->slots);
  if (!status) status = activation_build(pool, spec, buffers, slot, count, &a);
  if (!status) {
    pool->generation++;
    status = activation_run(pool, spec, &a, class_id);
  }
  activation_fini(&a);
  if (status == RP_ERROR_STATE) rp__pool_reason(pool, RP_POOL_NOTHING_TO_SHARE);
  return status;
}

/* Joining a planned class. */

static bool may_join(const struct rp_pool *pool, const struct rp__pool_buffer *buffer, uint32_t class_id) {
  const struct rp__pool_class *class = &pool->classes[class_id];
  if (buffer->binding != RP_POOL_PRIVATE || buffer->class_id != RP_POOL_NONE || buffer->flags || buffer->lost)
    return false;
  if (!class->sharing || class->family == RP_POOL_NONE || open_lifetime(buffer)) return false;
  return buffer->mapped_bytes == class->mapped_bytes && buffer->bytes >= class->spec.receive_bytes;
}

rp_status rp_pool_join(struct rp_pool *pool, uint32_t id, uint32_t class_id, uint32_t slot_id) {
  struct rp__pool_buffer *buffer = rp__pool_get(pool, id);
  if (!buffer) return RP_ERROR_NOT_FOUND;
  if (class_id >= pool->class_count || slot_id >= pool->classes[class_id].spec.slots) return RP_ERROR_INVALID;
  if (pool->info.frozen || pool->info.fallback_pending) return RP_ERROR_BUSY;
  if (!may_join(pool, buffer, class_id)) return RP_ERROR_STATE;
  struct rp__pool_slot *slot = &pool->classes[class_id].slots[slot_id];
  bool first = slot->memory == RP_POOL_NONE;
  pool->generation++;
  rp_status status = first ? RP_OK : rp__pool_remap(pool, id, slot->memory);
  if (status) return status;
  rp__pool_set_class(pool, buffer, class_id);
  buffer->binding = RP_POOL_BOUND;
  buffer->slot = slot_id;
  if (first) {
    rp__memory_assign(pool, buffer->memory, class_id, slot_id);
    slot->tenant = id;
  }
  return RP_OK;
}
