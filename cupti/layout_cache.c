/* Parameter layouts by function handle. Owns a fixed open-addressing table of pointers to immutable layouts,
 * and the arena they live in. Readers take no lock; writers publish with one compare-and-swap. An unload only
 * raises the generation: layouts of an older one are asked for anew; memory is never given back, so that
 * readers need no care. */
#include "cupti/layout_cache.h"

#include <stdatomic.h>
#include <string.h>

#include "cupti/internal.h"

#define TABLE_SLOTS 8192 /* power of two */
#define PROBES 16
#define ARENA_BYTES (4u << 20)

static _Atomic(const struct rp_layout *) table[TABLE_SLOTS];
static _Alignas(16) unsigned char arena[ARENA_BYTES]; /* zero pages until used */
static _Atomic size_t arena_used;
static _Atomic uint32_t generation_now = 1;
static _Atomic uint64_t unreadable;

static size_t layout_bytes(uint32_t count) {
  return offsetof(struct rp_layout, params) + count * sizeof(struct rp_param_layout);
}

static size_t slot_of(uint64_t function, size_t probe) {
  uint64_t hash = function * 0x9e3779b97f4a7c15u;
  return (size_t)((hash >> 40) + probe) & (TABLE_SLOTS - 1);
}

/* Asks the driver; both kinds of handle occur. Count stays 0 for a kernel without parameters, which is an
 * answer. */
static bool ask_driver(uint64_t function, struct rp_layout *out) {
  if (rp_driver_open() != RP_OK) return false;
  bool as_kernel = rp_driver.func_get_param_info == NULL;
  size_t offset, size;
  uint32_t count = 0;
  bool known = false;
  rp_query_begin();
  while (count < RP_LAYOUT_PARAMS) {
    CUresult result = CUDA_ERROR_NOT_SUPPORTED;
    if (!as_kernel)
      result = rp_driver.func_get_param_info((CUfunction)(uintptr_t)function, count, &offset, &size);
    else if (rp_driver.kernel_get_param_info)
      result = rp_driver.kernel_get_param_info((CUkernel)(uintptr_t)function, count, &offset, &size);
    if (result == CUDA_ERROR_INVALID_HANDLE && !as_kernel && count == 0) {
      as_kernel = true;
      continue;
    }
    known = known || result == CUDA_SUCCESS || result == CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS) break;
    out->params[count++] = (struct rp_param_layout){.offset = (uint32_t)offset, .size = (uint32_t)size};
  }
  rp_query_end();
  out->count = count;
  return known;
}

static uint32_t generation_of(const struct rp_layout *layout) {
  return atomic_load_explicit(&layout->generation, memory_order_acquire);
}

static const struct rp_layout *find(uint64_t function, uint32_t generation) {
  for (size_t probe = 0; probe < PROBES; probe++) {
    const struct rp_layout *layout =
        atomic_load_explicit(&table[slot_of(function, probe)], memory_order_acquire);
    if (!layout) return NULL;
    if (layout->function == function && generation_of(layout) == generation) return layout;
  }
  return NULL;
}

/* The entry of an older generation that says the same as `layout`, now of this one; NULL if there is none. An
 * unload makes every entry outdated, few of them wrong: without this each would cost new memory. */
static const struct rp_layout *renew(const struct rp_layout *layout) {
  for (size_t probe = 0; probe < PROBES; probe++) {
    struct rp_layout *old = (struct rp_layout *)atomic_load_explicit(&table[slot_of(layout->function, probe)],
                                                                     memory_order_acquire);
    if (!old) return NULL;
    if (old->function != layout->function || old->count != layout->count ||
        memcmp(old->params, layout->params, layout->count * sizeof layout->params[0]) != 0)
      continue;
    atomic_store_explicit(&old->generation, generation_of(layout), memory_order_release);
    return old;
  }
  return NULL;
}

static const struct rp_layout *copy_to_arena(const struct rp_layout *layout) {
  size_t bytes = (layout_bytes(layout->count) + 15u) & ~(size_t)15u;
  if (atomic_load_explicit(&arena_used, memory_order_relaxed) + bytes > ARENA_BYTES) return NULL;
  size_t at = atomic_fetch_add_explicit(&arena_used, bytes, memory_order_relaxed);
  if (at + bytes > ARENA_BYTES) return NULL;
  return memcpy(arena + at, layout, layout_bytes(layout->count));
}

/* Puts it into the first free or outdated slot; when all probes are taken it is simply not kept. */
static void publish(const struct rp_layout *layout) {
  for (size_t probe = 0; probe < PROBES; probe++) {
    _Atomic(const struct rp_layout *) *slot = &table[slot_of(layout->function, probe)];
    const struct rp_layout *old = atomic_load_explicit(slot, memory_order_acquire);
    if (old && generation_of(old) == generation_of(layout)) continue;
    if (atomic_compare_exchange_strong_explicit(slot, &old, layout, memory_order_release,
                                                memory_order_relaxed))
      return;
  }
}

static __attribute__((noinline)) const struct rp_layout *ask_and_keep(uint64_t function, uint32_t generation,
                                                                      struct rp_layout *scratch) {
  scratch->function = function;
  atomic_store_explicit(&scratch->generation, generation, memory_order_relaxed);
  if (!ask_driver(function, scratch)) {
    atomic_fetch_add_explicit(&unreadable, 1, memory_order_relaxed);
    return NULL;
  }
  const struct rp_layout *renewed = renew(scratch);
  if (renewed) return renewed;
  const struct rp_layout *kept = copy_to_arena(scratch);
  if (kept) publish(kept);
  return scratch;
}

const struct rp_layout *rp_layout_get(uint64_t function, struct rp_layout *scratch) {
  uint32_t generation = atomic_load_explicit(&generation_now, memory_order_acquire);
  const struct rp_layout *layout = find(function, generation);
  return layout ? layout : ask_and_keep(function, generation, scratch);
}

void rp_launch_learn(uint64_t function) {
  struct rp_layout scratch;
  (void)rp_layout_get(function, &scratch);
}

void rp_launch_invalidate(void) {
  atomic_fetch_add_explicit(&generation_now, 1, memory_order_acq_rel);
}

uint32_t rp_launch_generation(void) {
  return atomic_load_explicit(&generation_now, memory_order_acquire);
}

uint64_t rp_launch_unreadable(void) {
  return atomic_load_explicit(&unreadable, memory_order_relaxed);
}

uint64_t rp_launch_cache_bytes(void) {
  return sizeof table + atomic_load_explicit(&arena_used, memory_order_relaxed);
}
