/* Every invariant of a pool, recomputed from nothing and compared with what is kept. */
#include "pool/pool_internal.h"

#include <stdlib.h>
#include <string.h>

/* What is counted on the walk. */
struct walk {
  const struct rp_pool *pool;
  const char *broken;
  uint32_t *references;        /**< [memories] buffers mapped */
  uint32_t *owners;            /**< [memories] private buffers */
  uint32_t *slot_bound;        /**< [memories] bound buffers */
  uint64_t *physical;          /**< [classes + 1], the last for the total */
  uint64_t *one_to_one;        /**< [classes + 1] */
  uint64_t *requested;         /**< [classes + 1] */
  uint32_t *of_class;          /**< [classes + 1] buffers on its account */
  uint32_t *members, *granted; /**< [families] */
  uint32_t lost;
};

#define MUST(walk, condition, text)                                                                          \
  do {                                                                                                       \
    if (!(condition) && !(walk)->broken) (walk)->broken = (text);                                            \
  } while (0)

static void check_bound(struct walk *w, uint32_t id, const struct rp__pool_buffer *b) {
  const struct rp_pool *pool = w->pool;
  bool placed = b->class_id < pool->class_count && b->slot < pool->classes[b->class_id].spec.slots;
  MUST(w, placed, "a bound buffer has a class and a slot");
  if (!placed) return;
  const struct rp__pool_slot *slot = rp__pool_slot_of(pool, b);
  bool open = b->life == RP_POOL_POSTED || b->life == RP_POOL_LIVE;
  MUST(w, b->memory != RP_POOL_NONE && slot->memory == b->memory, "a bound buffer shows its slot's memory");
  MUST(w, !open || slot->tenant == id, "a buffer in use is its slot's tenant");
  MUST(w, !b->pinned || slot->tenant == id, "a pinned buffer is its slot's tenant");
  MUST(w, b->mapped_bytes == pool->classes[b->class_id].mapped_bytes, "a slot has its class's size");
  if (b->memory != RP_POOL_NONE) w->slot_bound[b->memory]++;
}

static void check_binding(struct walk *w, uint32_t id, const struct rp__pool_buffer *b) {
  bool dead = b->life == RP_POOL_DEAD;
  if (b->binding != RP_POOL_BOUND)
    MUST(w, b->slot == RP_POOL_NONE && !b->pinned, "only a bound buffer has a slot");
  switch (b->binding) {
  case RP_POOL_UNBOUND:
    MUST(w, b->memory == RP_POOL_NONE, "an unbound buffer has no memory");
    MUST(w, dead, "an unbound buffer holds no data");
    break;
  case RP_POOL_BOUND:
    check_bound(w, id, b);
    break;
  case RP_POOL_PRIVATE:
    MUST(w, b->memory != RP_POOL_NONE, "a private buffer has memory");
    if (b->memory == RP_POOL_NONE) break;
    w->owners[b->memory]++;
    MUST(w, w->pool->memories[b->memory].slot == RP_POOL_NONE, "private memory is no slot's");
    MUST(w, w->pool->memories[b->memory].class_id == b->class_id,
         "private memory is on its buffer's account");
    break;
  case RP_POOL_GONE:
    MUST(w, b->freed, "only what was freed is gone");
    break;
  default:
    MUST(w, false, "a binding is one of four");
  }
}

static void check_buffer(struct walk *w, uint32_t id, const struct rp__pool_buffer *b) {
  const struct rp_pool *pool = w->pool;
  bool memory =
      b->memory == RP_POOL_NONE || (b->memory < pool->memory_count && pool->memories[b->memory].in_use);
  MUST(w, memory, "a mapped memory exists");
  if (!memory) return;
  if (b->memory != RP_POOL_NONE) {
    w->references[b->memory]++;
    MUST(w, pool->memories[b->memory].bytes == b->mapped_bytes, "a handle is mapped whole");
    MUST(w, !pool->memories[b->memory].doomed, "memory that is mapped is not given up");
  }
  if (b->stray != RP_POOL_NONE) {
    w->references[b->stray]++;
    MUST(w, pool->memories[b->stray].in_use && !pool->memories[b->stray].doomed, "a stray memory exists");
    MUST(w, b->freed || b->lost, "only a lost buffer shows stray memory");
  }
  if (b->freed) return;
  w->lost += b->lost;
  MUST(w, !b->lost || b->concealed || b->memory == RP_POOL_NONE, "a lost buffer is not mapped");
  const struct rp_range *range = rp_address_map_find(&pool->addresses, b->address);
  MUST(w, range && range->begin == b->address && range->end == rp__pool_end(pool, b) && range->value == id,
       "a buffer is found by its address");
  MUST(w, b->life <= RP_POOL_RELEASED, "a life is one of four");
  MUST(w, b->mapped_bytes % pool->granularity == 0 && b->mapped_bytes >= b->bytes, "sizes are whole");
  MUST(w,
       !b->concealed || (b->memory != RP_POOL_NONE && !b->pinned &&
                         (b->binding == RP_POOL_BOUND || b->binding == RP_POOL_PRIVATE)),
       "a concealed buffer holds memory");
  check_binding(w, id, b);
  w->one_to_one[pool->class_count] += b->mapped_bytes;
  w->requested[pool->class_count] += b->bytes;
  if (b->class_id < pool->class_count) {
    w->one_to_one[b->class_id] += b->mapped_bytes;
    w->requested[b->class_id] += b->bytes;
    w->of_class[b->class_id]++;
  }
  if (b->family >= pool->family_count) return;
  w->members[b->family]++;
  w->granted[b->family] += b->granted;
}

static void check_memory(struct walk *w, uint32_t m) {
  const struct rp__memory *memory = &w->pool->memories[m];
  if (!memory->in_use) return;
  MUST(w, memory->references == w->references[m], "references are the mapped buffers");
  MUST(w, memory->references > 0 || memory->doomed, "memory lives only while it is mapped");
  MUST(w, w->owners[m] <= 1 && (!w->owners[m] || !w->slot_bound[m]), "private memory is not shared");
  w->physical[w->pool->class_count] += memory->bytes;
  if (memory->class_id < w->pool->class_count) w->physical[memory->class_id] += memory->bytes;
}

static void check_slots(struct walk *w, uint32_t class_id) {
  const struct rp_pool *pool = w->pool;
  const struct rp__pool_class *class = &pool->classes[class_id];
  for (uint32_t s = 0; s < class->spec.slots; s++) {
    const struct rp__pool_slot *slot = &class->slots[s];
    if (slot->memory != RP_POOL_NONE) {
      const struct rp__memory *memory = &pool->memories[slot->memory];
      MUST(w,
           slot->memory < pool->memory_count && memory->in_use && memory->class_id == class_id &&
               memory->slot == s,
           "a slot's memory knows its slot");
    }
    if (slot->tenant == RP_POOL_NONE) continue;
    const struct rp__pool_buffer *tenant = rp__pool_get(pool, slot->tenant);
    MUST(w, tenant && tenant->binding == RP_POOL_BOUND && tenant->class_id == class_id && tenant->slot == s,
         "a tenant is bound to its slot");
  }
  MUST(w, class->next_slot < class->spec.slots || !class->spec.slots, "the next slot exists");
  MUST(w, class->members == w->of_class[class_id], "members of a class are the buffers on its account");
}

static void check_account(struct walk *w, const struct rp_pool_account *account, uint32_t index) {
  MUST(w, account->physical_bytes == w->physical[index], "physical bytes are the sum of the handles");
  MUST(w, account->one_to_one_bytes == w->one_to_one[index], "one-to-one bytes are the sum of the buffers");
  MUST(w, account->requested_bytes == w->requested[index], "requested bytes are the sum of the buffers");
  MUST(w, account->saved_bytes == (int64_t)(account->requested_bytes - account->physical_bytes),
       "saved bytes are the difference");
  MUST(w, account->physical_peak_bytes >= account->physical_bytes, "the peak is no less than now");
  MUST(w, account->saved_peak_bytes >= account->saved_bytes, "the peak of saved is no less than now");
}

static void check_headroom(struct walk *w) {
  uint64_t bytes = 0;
  for (uint32_t h = 0; h < w->pool->headroom_count; h++) {
    const struct rp__headroom *room = &w->pool->headroom[h];
    for (uint32_t i = 0; i < room->count; i++) {
      const struct rp__memory *memory = &w->pool->memories[room->memory[i]];
      bool free = memory->in_use && memory->class_id == RP_POOL_NONE && memory->slot == RP_POOL_NONE;
      MUST(w, free && memory->bytes == room->bytes, "what is kept back is free and of its size");
      w->references[room->memory[i]]++;
      w->owners[room->memory[i]]++;
      bytes += room->bytes;
    }
  }
  MUST(w, bytes == w->pool->info.headroom_bytes, "what is kept back is counted");
}

static void check_families(struct walk *w) {
  for (uint32_t f = 0; f < w->pool->family_count; f++) {
    const struct rp__pool_family *family = &w->pool->families[f];
    MUST(w, family->members == w->members[f], "members of a size are the buffers of it");
    MUST(w, family->granted == w->granted[f], "unbacked grants are counted");
    MUST(w, !family->buffers || !family->granted || family->granted + family->slots <= family->buffers,
         "no more is left unbacked than the plan counts");
  }
}

static void walk_fini(struct walk *w) {
  free(w->references);
  free(w->owners);
  free(w->slot_bound);
  free(w->physical);
  free(w->one_to_one);
  free(w->requested);
  free(w->of_class);
  free(w->members);
  free(w->granted);
}

static bool walk_init(struct walk *w, const struct rp_pool *pool) {
  size_t memories = pool->memory_count + (size_t)1, classes = pool->class_count + (size_t)1;
  size_t families = pool->family_count + (size_t)1;
  *w = (struct walk){.pool = pool,
                     .references = calloc(memories, sizeof *w->references),
                     .owners = calloc(memories, sizeof *w->owners),
                     .slot_bound = calloc(memories, sizeof *w->slot_bound),
                     .physical = calloc(classes, sizeof *w->physical),
                     .one_to_one = calloc(classes, sizeof *w->one_to_one),
                     .requested = calloc(classes, sizeof *w->requested),
                     .of_class = calloc(classes, sizeof *w->of_class),
                     .members = calloc(families, sizeof *w->members),
                     .granted = calloc(families, sizeof *w->granted)};
  return w->references && w->owners && w->slot_bound && w->physical && w->one_to_one && w->requested &&
         w->of_class && w->members && w->granted;
}

rp_status rp_pool_check(const struct rp_pool *pool, const char **broken) {
  struct walk w;
  if (broken) *broken = NULL;
  if (!walk_init(&w, pool)) {
    walk_fini(&w);
    return RP_ERROR_NO_MEMORY;
  }
  size_t alive = 0;
  for (uint32_t b = 0; b < pool->buffer_count; b++) {
    if (!pool->buffers[b].in_use) continue;
    alive += !pool->buffers[b].freed;
    check_buffer(&w, b, &pool->buffers[b]);
  }
  MUST(&w, w.lost == pool->lost_count, "lost buffers are counted");
  MUST(&w, alive == pool->addresses.count, "every address belongs to a buffer");
  check_headroom(&w);
  for (uint32_t m = 0; m < pool->memory_count; m++)
    check_memory(&w, m);
  for (uint32_t c = 0; c < pool->class_count; c++) {
    check_slots(&w, c);
    check_account(&w, &pool->classes[c].account, c);
  }
  check_account(&w, &pool->info.account, pool->class_count);
  check_families(&w);
  walk_fini(&w);
  if (broken) *broken = w.broken;
  return w.broken ? RP_ERROR_INTERNAL : RP_OK;
}
