/* Slots against brute force: depth is the largest number of intervals at any position, no two tenants of a
 * slot overlap, and there are never more slots than depth plus slack. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "pool/slots.h"
#include "recvpool/plan.h"

#define CASES 10000
#define MOST 40

static uint64_t random_state;

static uint32_t random_below(uint32_t limit) { /* xorshift64* */
  random_state ^= random_state >> 12;
  random_state ^= random_state << 25;
  random_state ^= random_state >> 27;
  return (uint32_t)((random_state * 2685821657736338717u) >> 33) % limit;
}

static bool overlap(struct rp_interval a, struct rp_interval b) {
  return a.begin <= b.end && b.begin <= a.end;
}

/* Counts at every position, without any cleverness. */
static uint32_t brute_depth(const struct rp_interval *v, size_t count, uint64_t horizon) {
  uint32_t deepest = 0;
  for (uint64_t t = 0; t <= horizon; t++) {
    uint32_t live = 0;
    for (size_t i = 0; i < count; i++)
      live += v[i].begin <= t && t <= v[i].end;
    if (live > deepest) deepest = live;
  }
  return deepest;
}

static size_t random_intervals(struct rp_interval *v, uint64_t *horizon) {
  size_t count = random_below(MOST) + 1;
  uint32_t span = random_below(60) + 1, length = random_below(20) + 1;
  bool sorted = random_below(2), fifo = random_below(3) == 0;
  *horizon = 0;
  for (size_t i = 0; i < count; i++) {
    v[i].begin = sorted ? (i ? v[i - 1].begin + random_below(3) : 0) : random_below(span);
    v[i].end = v[i].begin + (fifo ? length : random_below(length));
    if (v[i].end > *horizon) *horizon = v[i].end;
  }
  return count;
}

static void assert_conflict_free(const struct rp_interval *v, const uint32_t *slot, size_t count,
                                 uint32_t slots) {
  for (size_t i = 0; i < count; i++) {
    assert_true(slot[i] < slots);
    for (size_t j = i + 1; j < count; j++)
      assert_false(slot[i] == slot[j] && overlap(v[i], v[j]));
  }
}

/* A ring by definition, to compare the detection with. */
static bool brute_ring(const struct rp_interval *v, size_t count, uint32_t slots) {
  size_t rank[MOST];
  for (size_t i = 0; i < count; i++) {
    rank[i] = 0;
    for (size_t j = 0; j < count; j++)
      rank[i] += v[j].begin < v[i].begin || (v[j].begin == v[i].begin && j < i);
  }
  for (size_t i = 0; i < count; i++)
    for (size_t j = i + 1; j < count; j++)
      if (rank[i] % slots == rank[j] % slots && overlap(v[i], v[j])) return false;
  return true;
}

static void test_against_brute_force(void **state) {
  (void)state;
  random_state = 20240921;
  uint32_t rings = 0, others = 0;
  for (int n = 0; n < CASES; n++) {
    struct rp_interval v[MOST];
    uint32_t slot[MOST], slack = random_below(4), depth;
    uint64_t horizon;
    size_t count = random_intervals(v, &horizon);
    struct rp_slots slots;
    assert_int_equal(rp_slots_assign(v, count, slack, slot, &slots), RP_OK);
    assert_int_equal(slots.depth, brute_depth(v, count, horizon));
    assert_int_equal(slots.count, slots.depth + slack < count ? slots.depth + slack : count);
    assert_conflict_free(v, slot, count, slots.count);
    assert_int_equal(slots.ring, brute_ring(v, count, slots.count));
    assert_int_equal(rp_interval_depth(v, count, &depth), RP_OK);
    assert_int_equal(depth, slots.depth);
    struct rp_slots numbers;
    assert_int_equal(rp_slots_assign(v, count, slack, NULL, &numbers), RP_OK);
    assert_int_equal(numbers.depth, slots.depth);
    assert_int_equal(numbers.count, slots.count);
    assert_int_equal(numbers.ring, slots.ring);
    slots.ring ? rings++ : others++;
  }
  assert_true(rings > 100 && others > 100); /* both ways are exercised */
}

static void test_sizes_against_brute_force(void **state) {
  (void)state;
  random_state = 77;
  for (int n = 0; n < CASES; n++) {
    struct rp_interval v[MOST];
    uint64_t bytes[MOST], slot_bytes[MOST], horizon, total = 0, largest = 0;
    uint32_t slot[MOST], kinds = random_below(4) + 1;
    size_t count = random_intervals(v, &horizon);
    for (size_t i = 0; i < count; i++) {
      bytes[i] = (uint64_t)(random_below(kinds) + 1) * 100;
      if (bytes[i] > largest) largest = bytes[i];
    }
    struct rp_slots slots;
    assert_int_equal(rp_slots_assign_sizes(v, bytes, count, slot, slot_bytes, &slots), RP_OK);
    assert_int_equal(slots.count, brute_depth(v, count, horizon));
    assert_conflict_free(v, slot, count, slots.count);
    for (size_t i = 0; i < count; i++)
      assert_true(slot_bytes[slot[i]] >= bytes[i]);
    for (uint32_t k = 0; k < slots.count; k++) {
      bool needed = false;
      for (size_t i = 0; i < count; i++)
        needed |= slot[i] == k && bytes[i] == slot_bytes[k];
      assert_true(needed); /* no slot is larger than its largest tenant */
      total += slot_bytes[k];
    }
    assert_true(total <= slots.count * largest);
    if (kinds == 1) assert_int_equal(total, slots.count * 100);
  }
}

/* A small tenant goes into a slot that is large enough rather than making a new one. */
static void test_sizes_share(void **state) {
  (void)state;
  const struct rp_interval v[] = {{0, 1}, {2, 5}, {3, 4}, {6, 7}};
  const uint64_t bytes[] = {100, 10, 10, 100};
  uint32_t slot[4];
  uint64_t slot_bytes[4];
  struct rp_slots slots;
  assert_int_equal(rp_slots_assign_sizes(v, bytes, 4, slot, slot_bytes, &slots), RP_OK);
  assert_int_equal(slots.count, 2);
  assert_int_equal(slot_bytes[0] + slot_bytes[1], 110);
  assert_int_equal(slot[0], slot[3]);
}

static void test_edges(void **state) {
  (void)state;
  struct rp_slots slots;
  assert_int_equal(rp_slots_assign(NULL, 0, 5, NULL, &slots), RP_OK);
  assert_int_equal(slots.count, 0);
  const struct rp_interval reversed = {4, 3};
  uint32_t slot;
  assert_int_equal(rp_slots_assign(&reversed, 1, 0, &slot, &slots), RP_ERROR_INVALID);
  const struct rp_interval touching[] = {{0, 3}, {3, 5}, {6, 6}};
  uint32_t s[3];
  assert_int_equal(rp_slots_assign(touching, 3, 0, s, &slots), RP_OK);
  assert_int_equal(slots.depth, 2); /* ends are included */
  assert_int_equal(rp_slots_assign(touching, 3, UINT32_MAX, s, &slots), RP_OK);
  assert_int_equal(slots.count, 3);
}

static void test_existing_ring(void **state) {
  (void)state;
  static const struct {
    int32_t stages, stage, microbatches, slack;
    uint32_t slots;
  } cases[] = {{8, 0, 64, 2, 10}, {8, 3, 64, 2, 7}, {8, 7, 64, 2, 3}, {8, 7, 64, 0, 2},
               {8, 0, 4, 2, 4},   {1, 0, 1, 0, 2},  {4, 1, 2, 9, 2}};
  uint32_t k;
  for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
    assert_int_equal(
        rp_ring_size_1f1b(cases[i].stages, cases[i].stage, cases[i].microbatches, cases[i].slack, &k), RP_OK);
    assert_int_equal(k, cases[i].slots);
  }
  assert_int_equal(rp_ring_size_1f1b(8, 0, 64, -1, &k), RP_ERROR_INVALID);
  assert_int_equal(rp_ring_size_1f1b(8, 8, 64, 0, &k), RP_ERROR_INVALID);
  assert_int_equal(rp_ring_size_1f1b(8, -1, 64, 0, &k), RP_ERROR_INVALID);
  assert_int_equal(rp_ring_size_1f1b(8, 0, 0, 0, &k), RP_ERROR_INVALID);
  assert_int_equal(rp_ring_size_1f1b(INT32_MAX, 0, INT32_MAX, INT32_MAX, &k), RP_OK);
  assert_int_equal(k, INT32_MAX);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_against_brute_force), cmocka_unit_test(test_sizes_against_brute_force),
      cmocka_unit_test(test_sizes_share),         cmocka_unit_test(test_edges),
      cmocka_unit_test(test_existing_ring),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
