/* Evidence of release. A lifetime goes from a receive to the next one into the same buffer; what touched the
 * buffer in between is what the next lifetime is expected to do again, and when it has, the message is
 * released.
 *
 * Only training steps teach, those in which each message was answered: an evaluation must not make the
 * forward pass of the training after it look like the last reader. `learned` is the last lifetime of such a
 * step, and what others did beyond that since; once the buffer shares a slot, the largest ever, key by key.
 */
#include "pool/guard_internal.h"

uint64_t rp__guard_key(const struct rp_guard_access *access) {
  uint64_t key = (access->function ^ (uint64_t)access->kind << 56) * 0xff51afd7ed558ccdu; /* MurmurHash3 */
  key ^= key >> 33;
  return key ? key : 1;
}

/* What tells the uses of a buffer by launches apart: the function, and which of its parameters. 0: unknown.
 */
static uint64_t use_key(const struct rp_guard_access *access) {
  if (!access->function || !access->place) return 0;
  return rp__guard_key(access) ^ (uint64_t)access->place * 0xc4ceb9fe1a85ec53u; /* MurmurHash3 */
}

/* Place of the key, or of those that found none; `used` when there is room for a new one. */
static uint32_t set_find(const struct rp__access_set *set, uint64_t key) {
  for (uint32_t i = 0; i < set->used; i++)
    if (set->key[i] == key) return i;
  return set->used;
}

/* The last place has key 0 and takes all that came after the others were full. */
static uint32_t set_place(struct rp__access_set *set, uint64_t key) {
  uint32_t i = set_find(set, key);
  if (i < set->used) return i;
  if (i >= RP__GUARD_KEYS - 1) {
    i = RP__GUARD_KEYS - 1;
    key = 0;
  }
  if (i == set->used) {
    set->key[i] = key;
    set->used++;
  }
  return i;
}

static void set_add(struct rp__access_set *set, uint64_t key, uint32_t count) {
  set->count[set_place(set, key)] += count;
  set->total += count;
}

static uint32_t set_count(const struct rp__access_set *set, uint64_t key) {
  uint32_t i = set_find(set, key);
  return i < set->used ? set->count[i] : 0;
}

/* Merged keys may hide in the last place of one set and have a place of their own in the other: they do not
 * match, which keeps the buffer in use. */
static bool set_covers(const struct rp__access_set *set, const struct rp__access_set *other) {
  for (uint32_t i = 0; i < other->used; i++)
    if (set_count(set, other->key[i]) < other->count[i]) return false;
  return true;
}

static void set_raise(struct rp__access_set *set, const struct rp__access_set *other) {
  for (uint32_t i = 0; i < other->used; i++) {
    uint32_t have = set_count(set, other->key[i]);
    if (have < other->count[i]) set_add(set, other->key[i], other->count[i] - have);
  }
}

bool rp__guard_is_learned(const struct rp__guard_buffer *buffer, uint64_t key) {
  return set_count(&buffer->learned, key) > 0;
}

bool rp__guard_is_reader(const struct rp__guard_buffer *buffer, const struct rp_guard_access *access) {
  return buffer->reader && use_key(access) == buffer->reader;
}

/* The first use of a message can only be to read it: who writes first has thrown it away, which nobody does
 * twice. */
static void learn_reader(struct rp__guard_buffer *buffer) {
  bool again = buffer->first_key == buffer->first_key_before;
  buffer->reader = again ? buffer->first_key : 0;
  buffer->first_key_before = buffer->first_key;
  buffer->first_key = 0;
}

void rp__guard_lifetime_end(struct rp_guard *guard, uint32_t id) {
  struct rp__guard_buffer *buffer = &guard->buffers[id];
  buffer->post_before = buffer->post;
  buffer->last_before = buffer->last;
  if (buffer->receives) {
    bool shares = rp__guard_info(guard, id).binding == RP_POOL_BOUND;
    if (buffer->trained && !shares) buffer->learned = (struct rp__access_set){0};
    set_raise(&buffer->learned, &buffer->now);
    buffer->lifetimes += buffer->trained || !shares; /* what shares nothing may err */
  }
  if (buffer->receives) learn_reader(buffer);
  buffer->trained = false;
  buffer->now = (struct rp__access_set){0};
}

/* All that reads the message has been launched, by what earlier lifetimes did. */
static bool done(const struct rp_guard *guard, const struct rp__guard_buffer *buffer) {
  if (!buffer->lifetimes || !buffer->learned.total || buffer->doubted_step == guard->step) return false;
  return buffer->now.total >= buffer->needed && set_covers(&buffer->now, &buffer->learned);
}

void rp__guard_frontier_unknown(struct rp_guard *guard, struct rp__guard_buffer *buffer) {
  buffer->frontier.unknown = true;
  buffer->serial = ++guard->serial;
}

/* Released by the access that completes what was learned. One after that opens the lifetime again, and then
 * nobody knows how many more will come: it stays open. */
void rp__guard_touch(struct rp_guard *guard, uint32_t id, const struct rp_guard_access *access,
                     rp_order_token token) {
  struct rp__guard_buffer *buffer = &guard->buffers[id];
  if (access->group && buffer->waiting) buffer->waiting--;
  buffer->touched_step = guard->step;
  if (!buffer->receives)
    return; /* shares nothing, and a receive comes after all this by the program's doing */
  rp_order_frontier_add(guard->order, &buffer->frontier, token);
  buffer->serial = ++guard->serial;
  bool was_done = done(guard, buffer);
  uint64_t key = rp__guard_key(access);
  set_add(&buffer->now, key, 1);
  guard->evidence_merged += set_find(&buffer->now, key) == buffer->now.used;
  buffer->last = ++guard->clock;
  if (!buffer->first) buffer->first = buffer->last, buffer->first_key = use_key(access);
  buffer->again |= guard->sent_message > buffer->first;
  guard->read_again |= buffer->step == guard->step && guard->sent > buffer->first;
  rp__guard_plan_touched(guard, buffer);
  if (was_done || buffer->waiting || !done(guard, buffer)) return;
  if (rp_pool_release(guard->pool, id) == RP_OK && guard->options.strict) guard->strict_pending = true;
}
