/* Long random walks over the whole interface of the pool, against a model that knows nothing of slots: it
 * sees only which physical memory is behind which address, and what was written through it. After every call
 * the pool is checked, and nobody's data may have been touched unless that was reported. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "host_backend.h"
#include "pool/pool.h"

#define MOST 40
#define SEEDS 400
#define STEPS 700
#define RECEIVE 8000u

/* One buffer as the program sees it. */
struct model_buffer {
  bool alive, touched, unbacked;
  bool open;  /* received and not released, whatever became of the contents */
  bool holds; /* received and not released: contents must be there */
  bool fixed; /* named by a graph or registered: its memory must stay */
  bool valid; /* contents are there, as far as the model knows */
  int memory;
  uint32_t class_id;
  uint64_t address, bytes, word, order;
};

struct model {
  struct host_device *device;
  struct rp_pool *pool;
  struct model_buffer b[MOST];
  int last_writer[HOST_MOST];      /* buffer + 1 whose receive last wrote to a memory ... */
  uint64_t last_handle[HOST_MOST]; /* ... while it had this handle */
  uint32_t classes, k, n;          /* planned; k and n are sums */
  uint64_t clock, one_to_one, requested, allocations;
  uint64_t seed, shared_receives, conflicts;
  bool failing;
  bool unstoppable, memory_short; /* what the pool was told */
  uint32_t calm;                  /* how seldom something odd happens, one in so many */
};

static uint64_t random_state;

static uint32_t below(uint32_t limit) { /* xorshift64* */
  random_state ^= random_state >> 12;
  random_state ^= random_state << 25;
  random_state ^= random_state >> 27;
  return (uint32_t)((random_state * 2685821657736338717u) >> 33) % limit;
}

#define EXPECT(m, condition)                                                                                 \
  do {                                                                                                       \
    if (!(condition))                                                                                        \
      fail_msg("seed %llu, step %llu: %s", (unsigned long long)(m)->seed, (unsigned long long)(m)->clock,    \
               #condition);                                                                                  \
  } while (0)

/* Whoever moved to other memory has lost its contents; who holds any must not have moved, but `self`. */
static void look(struct model *m, uint32_t self) {
  const char *broken = NULL;
  struct rp_pool_info info;
  if (rp_pool_check(m->pool, &broken))
    fail_msg("seed %llu, step %llu: %s", (unsigned long long)m->seed, (unsigned long long)m->clock,
             broken ? broken : "no memory for the check");
  rp_pool_info(m->pool, &info);
  EXPECT(m, info.account.physical_bytes == m->device->physical_bytes);
  EXPECT(m, info.account.one_to_one_bytes == m->one_to_one);
  EXPECT(m, info.account.requested_bytes == m->requested);
  EXPECT(m, m->device->misuse == 0);
  for (uint32_t i = 0; i < MOST; i++) {
    struct model_buffer *b = &m->b[i];
    if (!b->alive) continue;
    int memory = host_device_memory_at(m->device, b->address);
    EXPECT(m, memory >= 0 || !m->unstoppable || m->memory_short || m->failing);
    if (memory != b->memory) {
      EXPECT(m, i == self || !b->holds);
      EXPECT(m, !b->fixed);
      EXPECT(m, i == self || memory >= 0 || !b->touched || m->failing); /* what was used stays usable */
      b->valid = false;
      b->memory = memory;
    }
    if (!b->holds) continue;
    uint64_t seen = 0;
    EXPECT(m, host_device_load(m->device, b->address, &seen));
    EXPECT(m, seen == b->word);
  }
}

/* A write through a buffer's address: overwrites what all others with the same memory hold. Returns whether
 * one of them was in need of it. */
static bool write_through(struct model *m, uint32_t self) {
  bool destroyed = false;
  uint64_t word = m->seed << 32 | m->clock;
  if (!host_device_store(m->device, m->b[self].address, word)) return false;
  for (uint32_t i = 0; i < MOST; i++) {
    struct model_buffer *b = &m->b[i];
    if (!b->alive || i == self || b->memory != m->b[self].memory) continue;
    destroyed |= b->holds;
    b->holds = b->valid = false;
  }
  m->b[self].word = word;
  return destroyed;
}

static int pick(struct model *m) {
  for (int attempts = 0; attempts < 20; attempts++) {
    uint32_t i = below(MOST);
    if (m->b[i].alive) return (int)i;
  }
  return -1;
}

/* One that is in use if there is one, most of the time. */
static uint32_t pick_open(uint32_t otherwise, const struct model *m) {
  uint32_t first = below(MOST);
  for (uint32_t n = 0; n < MOST && below(32); n++) {
    uint32_t i = (first + n) % MOST;
    if (m->b[i].alive && m->b[i].open) return i;
  }
  return otherwise;
}

/* Are the last k buffers of the planned size still untouched? */
static bool burst_allows(const struct model *m) {
  uint64_t newest = UINT64_MAX;
  uint32_t granted = 0;
  for (uint32_t i = 0; i < MOST; i++)
    granted += m->b[i].alive && m->b[i].unbacked;
  if (granted + m->k >= m->n) return false;
  for (uint32_t seen = 0; seen < m->k; seen++) {
    const struct model_buffer *last = NULL;
    for (uint32_t i = 0; i < MOST; i++) {
      const struct model_buffer *b = &m->b[i];
      if (!b->alive || b->bytes > 8192 || b->bytes < RECEIVE || b->order >= newest) continue;
      if (!last || b->order > last->order) last = b;
    }
    if (!last || last->touched) return false;
    newest = last->order;
  }
  return true;
}

static void do_allocate(struct model *m) {
  static const uint64_t sizes[] = {RECEIVE, 8192, RECEIVE, 4096, 7000, 20000};
  uint64_t bytes = sizes[below(4) ? below(2) : below(6)], address = 0;
  uint32_t id = 0;
  bool allowed = bytes >= RECEIVE && bytes <= 8192 && burst_allows(m);
  rp_status status = rp_pool_allocate(m->pool, bytes, &id, &address);
  if (status) {
    EXPECT(m, status == RP_ERROR_LIMIT || m->failing);
    return;
  }
  EXPECT(m, id < MOST && !m->b[id].alive);
  m->one_to_one += (bytes + 4095) / 4096 * 4096;
  m->requested += bytes;
  m->b[id] = (struct model_buffer){.alive = true,
                                   .address = address,
                                   .bytes = bytes,
                                   .memory = host_device_memory_at(m->device, address),
                                   .class_id = below(m->classes + 1),
                                   .order = ++m->allocations};
  m->b[id].unbacked = m->b[id].memory < 0;
  if (m->b[id].class_id == m->classes) m->b[id].class_id = RP_POOL_NONE;
  EXPECT(m, !m->b[id].unbacked || allowed);
  for (int w = 0; w < HOST_MOST; w++)
    if (m->last_writer[w] == (int)id + 1) m->last_writer[w] = 0;
}

/* As a framework does before its first step. */
static void preallocate(struct model *m, uint32_t count) {
  while (count--)
    do_allocate(m);
}

static void do_free(struct model *m, uint32_t i) {
  rp_status status = rp_pool_free(m->pool, m->b[i].address);
  EXPECT(m, status == RP_OK || m->failing);
  EXPECT(m, status != RP_ERROR_NOT_FOUND);
  m->one_to_one -= (m->b[i].bytes + 4095) / 4096 * 4096;
  m->requested -= m->b[i].bytes;
  m->b[i] = (struct model_buffer){0};
  for (int w = 0; w < HOST_MOST; w++)
    if (m->last_writer[w] == (int)i + 1) m->last_writer[w] = 0;
  EXPECT(m, rp_pool_free(m->pool, 12345) == RP_ERROR_NOT_FOUND);
}

/* What the driver did not map again is there before anybody uses it, or nobody does. */
static bool restored(struct model *m) {
  rp_status status = rp_pool_restore(m->pool);
  EXPECT(m, status == RP_OK || m->failing);
  return status == RP_OK;
}

/* From now on the address is known elsewhere; unless it shares, which is a violation reported before. */
static void fix(struct model *m, uint32_t i, const struct rp_pool_decision *d) {
  struct rp_pool_buffer_info info;
  EXPECT(m, rp_pool_buffer(m->pool, i, &info) == RP_OK);
  bool own = info.binding == RP_POOL_PRIVATE || info.pinned;
  EXPECT(m, own || (d->conflict.kind && !d->conflict.prevented));
  m->b[i].memory = host_device_memory_at(m->device, m->b[i].address);
  m->b[i].fixed = own;
}

/* Whose data does the receive overwrite, and was that right? */
static void judge_receive(struct model *m, uint32_t i, const struct rp_pool_post *post,
                          const struct rp_pool_decision *d) {
  struct model_buffer *b = &m->b[i];
  b->memory = host_device_memory_at(m->device, b->address);
  EXPECT(m, host_device_accessible(m->device, b->address));
  uint64_t handle = m->device->memory[b->memory].handle;
  int before = m->last_handle[b->memory] == handle ? m->last_writer[b->memory] : 0;
  if (before && before != (int)i + 1) {
    uint32_t other = (uint32_t)before - 1;
    bool shares = m->b[other].alive && m->b[other].memory == b->memory;
    if (shares) {
      EXPECT(m, post->order == RP_POOL_ORDER_YES || d->insert_wait);
      EXPECT(m, d->tenant == other);
      m->shared_receives++;
    }
  }
  EXPECT(m, !write_through(m, i)); /* no holder was overwritten */
  m->last_writer[b->memory] = (int)i + 1;
  m->last_handle[b->memory] = handle;
  b->open = b->holds = b->valid = true;
}

/* Would a well-behaved program post this receive now? */
static bool fits(const struct model *m, uint32_t i) {
  uint32_t open = 0;
  for (uint32_t j = 0; j < MOST; j++) {
    if (!m->b[j].alive || !m->b[j].open) continue;
    if (j != i && m->b[j].memory == m->b[i].memory) return false;
    open++;
  }
  return m->b[i].touched || open < m->k;
}

static enum rp_pool_order random_order(const struct model *m) {
  if (below(3)) return RP_POOL_ORDER_YES;
  return below(m->calm) ? RP_POOL_ORDER_NO : (enum rp_pool_order)below(4);
}

static void do_receive(struct model *m, uint32_t i) {
  if (!fits(m, i) && below(m->calm)) return;
  struct rp_pool_post post = {.buffer = i,
                              .class_id = m->b[i].class_id,
                              .slot_hint = below(3) ? RP_POOL_NONE : below(m->k + 1),
                              .capturing = below(20 * m->calm) == 0,
                              .order = random_order(m),
                              .address = m->b[i].address,
                              .bytes = below(10 * m->calm) ? RECEIVE : 6000,
                              .site = {.seq = m->clock}};
  struct rp_pool_decision d;
  uint32_t tenant;
  if (!restored(m)) return;
  EXPECT(m, rp_pool_receive_decide(m->pool, &post, &d) == RP_OK);
  EXPECT(m, rp_pool_receive_displaces(m->pool, &post, &tenant) == RP_OK);
  if (d.conflict.kind == RP_POOL_EARLY_REUSE) EXPECT(m, m->b[d.conflict.earlier_buffer].open);
  if (d.insert_wait) EXPECT(m, d.tenant == tenant && post.order != RP_POOL_ORDER_YES);
  m->conflicts += d.conflict.kind != RP_POOL_NO_CONFLICT;
  rp_status status = rp_pool_receive_commit(m->pool, &post, &d);
  if (status) {
    EXPECT(m, d.fallback_first ? status == RP_ERROR_BUSY : m->failing);
    return;
  }
  EXPECT(m, rp_pool_receive_commit(m->pool, &post, &d) == RP_ERROR_STATE); /* out of date */
  m->b[i].touched = true;
  judge_receive(m, i, &post, &d);
  if (post.capturing) fix(m, i, &d);
}

/* What an access did. Data may be destroyed only where that is reported as a violation. */
static void judge_access(struct model *m, uint32_t i, const struct rp_pool_access *access, bool writes,
                         const struct rp_pool_decision *d) {
  struct model_buffer *b = &m->b[i];
  uint64_t seen = 0;
  b->touched = true;
  b->memory = host_device_memory_at(m->device, b->address);
  bool violation = d->conflict.kind && !d->conflict.prevented;
  bool there = host_device_load(m->device, b->address, &seen);
  EXPECT(m, there || !access->interposed || violation);
  if (b->holds) EXPECT(m, !violation && seen == b->word);
  b->open |= d->reopens;
  if (d->reopens && b->valid) {
    EXPECT(m, seen == b->word);
    b->holds = true;
  }
  if (d->memory == RP_POOL_MEMORY_PIN && b->valid) EXPECT(m, seen == b->word);
  if (!writes) return;
  bool destroyed = write_through(m, i);
  EXPECT(m, !destroyed || (violation && !access->interposed));
}

static void do_access(struct model *m, uint32_t i) {
  struct rp_pool_access access = {.buffer = i,
                                  .mode = (enum rp_pool_access_mode)below(3),
                                  .interposed = below(2 * m->calm) != 0,
                                  .learned = below(8) == 0,
                                  .capturing = below(20 * m->calm) == 0,
                                  .site = {.seq = m->clock}};
  if (!m->b[i].open && below(m->calm)) return;
  bool writes = access.mode == RP_POOL_WRITE || (access.mode == RP_POOL_UNKNOWN_MODE && below(3) == 0);
  struct rp_pool_decision d;
  if (!restored(m)) return;
  EXPECT(m, rp_pool_access_decide(m->pool, &access, &d) == RP_OK);
  if (!access.interposed) EXPECT(m, d.memory == RP_POOL_MEMORY_NONE || d.memory == RP_POOL_MEMORY_PIN);
  uint64_t before = m->device->calls;
  rp_status status = rp_pool_access_commit(m->pool, &access, &d);
  if (!access.interposed) EXPECT(m, m->device->calls == before);
  if (status)
    EXPECT(m, m->failing);
  else
    judge_access(m, i, &access, writes, &d);
  if (!status && access.capturing) fix(m, i, &d);
}

static void do_flag(struct model *m, uint32_t i) {
  struct rp_pool_site site = {.seq = m->clock};
  struct rp_pool_decision d;
  uint32_t flag = 1u << below(3);
  if (below(m->calm) || !restored(m)) return;
  if (rp_pool_flag_decide(m->pool, i, flag, below(4) != 0, &site, &d)) return;
  rp_status status = rp_pool_flag_commit(m->pool, flag, &site, &d);
  EXPECT(m, status == RP_OK || m->failing);
  if (status) return;
  m->b[i].touched = true;
  fix(m, i, &d);
}

static void do_activate(struct model *m) {
  uint32_t ids[MOST], slots[MOST], count = 0, k = 1 + below(4), made;
  struct rp_pool_class_spec spec = {.receive_bytes = RECEIVE, .slots = k};
  for (uint32_t i = 0; i < MOST; i++) {
    struct rp_pool_buffer_info info;
    if (!m->b[i].alive || m->b[i].bytes < RECEIVE || m->b[i].bytes > 8192 || below(3) == 0) continue;
    if (rp_pool_buffer(m->pool, i, &info) || info.binding != RP_POOL_PRIVATE) continue;
    ids[count] = i;
    slots[count++] = below(k);
  }
  rp_status status = rp_pool_activate(m->pool, &spec, ids, slots, count, below(10) == 0, &made);
  if (status) EXPECT(m, status == RP_ERROR_BUSY || status == RP_ERROR_STATE || m->failing);
}

/* After a broken step nobody holds anything. */
static void do_interrupt(struct model *m) {
  struct rp_pool_site site = {.seq = m->clock};
  rp_pool_interrupt(m->pool, &site);
  look(m, MOST);
  rp_status status = rp_pool_fallback(m->pool, false);
  EXPECT(m, status == RP_OK || m->failing || status == RP_ERROR_STATE);
  for (uint32_t i = 0; i < MOST; i++)
    m->b[i].holds = m->b[i].open = false;
}

/* The pool learns of calls that cannot be stopped, and of a device that has no more memory. */
static void do_tell(struct model *m) {
  if (below(2)) {
    rp_status status = rp_pool_unstoppable(m->pool);
    EXPECT(m, status == RP_OK || m->failing);
    m->unstoppable = true;
  } else if (below(4) == 0) {
    uint64_t before = m->device->physical_bytes, given = rp_pool_memory_short(m->pool);
    EXPECT(m, before - m->device->physical_bytes == given);
    m->memory_short |= m->unstoppable;
  }
}

static void do_rarely(struct model *m) {
  if (m->seed % 7 < 3 && below(4) == 0) do_tell(m);
  if (below(6 * m->calm) == 0) rp_pool_request_fallback(m->pool, RP_POOL_SWITCHED_OFF);
  if (below(8 * m->calm) == 0) do_interrupt(m);
  if (below(2)) {
    do_activate(m);
  } else {
    rp_status status = rp_pool_quiescent(m->pool, below(10) == 0);
    EXPECT(m, status == RP_OK || status == RP_ERROR_BUSY || status == RP_ERROR_STATE || m->failing);
  }
}

static void do_release(struct model *m, uint32_t i) {
  rp_status status = rp_pool_release(m->pool, i);
  EXPECT(m, status == (m->b[i].open ? RP_OK : RP_ERROR_STATE));
  m->b[i].open = m->b[i].holds = false;
}

static uint32_t one_call(struct model *m) {
  int i = pick(m);
  uint32_t what = below(100);
  if (i < 0 || what < 2)
    preallocate(m, 1 + below(12));
  else if (what < 12)
    do_allocate(m);
  else if (what < 16)
    do_free(m, (uint32_t)i);
  else if (what < 45)
    do_receive(m, (uint32_t)i);
  else if (what < 68)
    do_access(m, pick_open((uint32_t)i, m));
  else if (what < 90)
    do_release(m, pick_open((uint32_t)i, m));
  else if (what < 96)
    rp_pool_step_end(m->pool);
  else if (what < 97)
    do_flag(m, (uint32_t)i);
  else
    do_rarely(m);
  return i < 0 ? MOST : (uint32_t)i;
}

static void start(struct model *m, uint64_t seed) {
  struct rp_pool_options options = {.max_buffers = MOST,
                                    .lend = (enum rp_pool_lend)(seed / 3 % 3),
                                    .headroom_bytes = seed / 9 % 3 * 8192,
                                    .on_stale = (enum rp_pool_policy)(seed % 3)};
  random_state = seed * 0x9e3779b97f4a7c15u + 1;
  *m = (struct model){.seed = seed, .device = host_device_create(1u << 20)};
  assert_non_null(m->device);
  assert_int_equal(rp_pool_create(&m->device->backend, &options, &m->pool), RP_OK);
  for (uint32_t c = 0; c < seed % 3; c++) { /* 0: auto mode only */
    struct rp_pool_class_spec spec = {
        .receive_bytes = RECEIVE, .slots = 1 + below(3), .buffers = 4 + below(12)};
    assert_int_equal(rp_pool_plan_class(m->pool, &spec, &(uint32_t){0}), RP_OK);
    m->classes++;
    m->k += spec.slots;
    m->n += spec.buffers;
  }
  m->failing = seed % 4 == 3;
  m->calm = seed % 5 ? 20 : 2;
  if (m->failing) {
    m->device->random += seed;
    m->device->fail_one_in = 3 + below(30);
    if (below(2)) m->device->capacity_bytes = 8192 * (4 + below(20));
  }
  if (seed % 7 == 0) {
    assert_int_equal(rp_pool_unstoppable(m->pool), RP_OK);
    m->unstoppable = true;
  }
  preallocate(m, m->n ? m->n : 12);
}

static void end(struct model *m) {
  uint64_t left = 1;
  m->device->fail_one_in = 0;
  assert_int_equal(rp_pool_destroy(m->pool, &left), RP_OK);
  assert_int_equal(left, 0);
  assert_int_equal(host_device_ranges(m->device), 0);
  assert_int_equal(host_device_memories(m->device), 0);
  assert_int_equal(m->device->misuse, 0);
  host_device_destroy(m->device);
}

static void random_walks(void **state) {
  (void)state;
  static struct model m;
  uint64_t shared = 0, conflicts = 0, activations = 0, fallbacks = 0;
  for (uint64_t seed = 1; seed <= SEEDS; seed++) {
    struct rp_pool_info info;
    start(&m, seed);
    for (m.clock = 1; m.clock <= STEPS; m.clock++)
      look(&m, one_call(&m));
    rp_pool_info(m.pool, &info);
    shared += m.shared_receives;
    conflicts += m.conflicts;
    activations += info.activations;
    fallbacks += info.fallbacks;
    end(&m);
  }
  print_message("%llu receives into shared memory, %llu conflicts, %llu activations, %llu fallbacks\n",
                (unsigned long long)shared, (unsigned long long)conflicts, (unsigned long long)activations,
                (unsigned long long)fallbacks);
  /* The walks went where something can go wrong. */
  assert_true(shared > 10 * SEEDS);
  assert_true(conflicts > 10 * SEEDS);
  assert_true(activations > SEEDS / 4);
  assert_true(fallbacks > SEEDS / 4);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(random_walks)};
  return cmocka_run_group_tests_name("pool at random", tests, NULL, NULL);
}
