/* Names by id. Owns a fixed table and the arena of its texts; texts are written once and never moved. */
#include "agent/names.h"

#include <stdatomic.h>
#include <string.h>

#define SLOTS 8192 /* power of two */
#define PROBES 32
#define ARENA_BYTES (2u << 20)
#define NAME_BYTES 256

struct entry {
  _Atomic uint64_t id; /* 0 = free */
  _Atomic uint32_t generation;
  _Atomic(const char *) name;
};

static struct entry entries[SLOTS];
static char arena[ARENA_BYTES]; /* owner */
static _Atomic size_t used;     /* written by the owner */

static struct entry *find(uint64_t id, bool or_free) {
  uint64_t hash = id * 0x9e3779b97f4a7c15u;
  for (size_t probe = 0; probe < PROBES; probe++) {
    struct entry *entry = &entries[((hash >> 40) + probe) & (SLOTS - 1)];
    uint64_t held = atomic_load_explicit(&entry->id, memory_order_acquire);
    if (held == id) return entry;
    if (held == 0) return or_free ? entry : NULL;
  }
  return NULL;
}

bool rp_names_known(uint64_t id, uint32_t generation) {
  struct entry *entry = find(id, false);
  return entry && atomic_load_explicit(&entry->generation, memory_order_acquire) == generation;
}

static const char *copy(const char *name) {
  size_t length = strnlen(name, NAME_BYTES - 1);
  if (used + length + 1 > ARENA_BYTES) return NULL;
  char *at = arena + used;
  memcpy(at, name, length);
  at[length] = '\0';
  used += length + 1;
  return at;
}

void rp_names_note(uint64_t id, uint32_t generation, const char *name) {
  struct entry *entry = id ? find(id, true) : NULL;
  if (!entry) return;
  const char *old = atomic_load_explicit(&entry->name, memory_order_relaxed);
  const char *text = old && strncmp(old, name, NAME_BYTES - 1) == 0 ? old : copy(name);
  if (!text) return;
  atomic_store_explicit(&entry->name, text, memory_order_release);
  atomic_store_explicit(&entry->generation, generation, memory_order_release);
  atomic_store_explicit(&entry->id, id, memory_order_release);
}

const char *rp_names_get(uint64_t id) {
  struct entry *entry = id ? find(id, false) : NULL;
  const char *name = entry ? atomic_load_explicit(&entry->name, memory_order_acquire) : NULL;
  return name ? name : "";
}

size_t rp_names_bytes(void) {
  return sizeof entries + used;
}
