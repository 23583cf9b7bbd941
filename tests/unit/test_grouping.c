/* Grouping evidence by itself: what may split receives into channels and what must not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "pool/grouping.h"

enum { OLD = 100 };

/* The start of allocation `serial`. */
static uint64_t weight(uint64_t serial) {
  return rp__companion_key(serial, 0);
}

/* A receive from `peer` read by kernels 10 * kind + {1, 2}, beside allocation `companion`, in allocation
 * `serial`. */
static struct rp_life life(int peer, int kind, uint64_t companion, uint64_t serial) {
  struct rp_life result = {.comm = 1,
                           .peer = peer,
                           .bytes = 4096,
                           .allocation_serial = serial,
                           .public = {.address = serial * 65536},
                           .signature_count = 2,
                           .signature = {(uint64_t)(10 * kind + 1), (uint64_t)(10 * kind + 2)}};
  result.companions = (struct rp_key_set){.count = 1, .key = {weight(companion)}};
  return result;
}

static struct rp_grouping group(const struct rp_life *lives, size_t count, bool just_in_time) {
  static struct rp_peer_order list[] = {{.comm = 1, .bytes = 4096, .peer = 0, .receive_first = true},
                                        {.comm = 1, .bytes = 4096, .peer = 2}};
  static const struct rp_peers peers = {.at = list, .count = 2};
  const struct rp_group_hints hints = {&peers, OLD, just_in_time};
  struct rp_grouping grouping;
  assert_int_equal(rp_group_lives(lives, count, &hints, &grouping), RP_OK);
  return grouping;
}

static void peers_tell_directions(void **state) {
  (void)state;
  struct rp_life lives[] = {life(0, 1, 1, 201), life(0, 1, 1, 202), life(2, 2, 1, 203), life(2, 2, 1, 204)};
  struct rp_grouping grouping = group(lives, 4, false);
  assert_int_equal(grouping.group_count, 2);
  assert_int_equal(grouping.groups[grouping.group_of[0]].direction, RP_DIRECTION_ACTIVATION);
  assert_int_equal(grouping.groups[grouping.group_of[2]].direction, RP_DIRECTION_GRADIENT);
  assert_int_equal(grouping.groups[0].stage_ordinal, grouping.groups[1].stage_ordinal);
  rp_grouping_fini(&grouping);
}

/* Two stages of one process receive from one peer; only the weights beside the buffers differ. */
static void weights_tell_stages(void **state) {
  (void)state;
  struct rp_life lives[8];
  for (size_t i = 0; i < 8; i++)
    lives[i] = life(0, 1, i % 4 < 2 ? 5 : 6, 200 + i);
  struct rp_grouping grouping = group(lives, 8, true);
  assert_int_equal(grouping.group_count, 2);
  for (size_t i = 0; i < 8; i++) {
    assert_int_equal(grouping.groups[grouping.group_of[i]].stage_ordinal, i % 4 < 2 ? 0 : 1);
    assert_int_equal(grouping.microbatch[i], i % 2 + i / 4 * 2);
  }
  rp_grouping_fini(&grouping);
}

static void scratch_does_not_tell_stages(void **state) {
  (void)state;
  struct rp_life lives[8];
  for (size_t i = 0; i < 8; i++)
    lives[i] = life(0, 1, 5 + i % 2, 200 + i); /* two scratch buffers in turn */
  struct rp_grouping grouping = group(lives, 8, true);
  assert_int_equal(grouping.group_count, 1);
  rp_grouping_fini(&grouping);
  for (size_t i = 0; i < 8; i++)
    lives[i] = life(0, 1, OLD + 1 + i / 4, 200 + i); /* younger than the first receive: no weights */
  grouping = group(lives, 8, true);
  assert_int_equal(grouping.group_count, 1);
  rp_grouping_fini(&grouping);
}

/* One buffer is read by a kernel more than the others (the last microbatch logs something): still one
 * channel. */
static void a_kernel_more_does_not_split(void **state) {
  (void)state;
  struct rp_life lives[4];
  for (size_t i = 0; i < 4; i++)
    lives[i] = life(0, 1, 5, 200 + i);
  lives[3].signature[lives[3].signature_count++] = 999;
  for (int jit = 0; jit < 2; jit++) {
    struct rp_grouping grouping = group(lives, 4, jit);
    assert_int_equal(grouping.group_count, 1);
    rp_grouping_fini(&grouping);
  }
}

/* Gradients are accumulated: the first one of a step is copied, the others are added. One channel, and not
 * both directions from one peer. */
static void another_first_microbatch_is_no_other_direction(void **state) {
  (void)state;
  struct rp_life lives[4];
  for (size_t i = 0; i < 4; i++)
    lives[i] = life(2, i ? 1 : 2, 5, 200 + i);
  struct rp_grouping grouping = group(lives, 4, false);
  assert_int_equal(grouping.group_count, 1);
  assert_int_equal(grouping.groups[0].direction, RP_DIRECTION_GRADIENT);
  rp_grouping_fini(&grouping);
}

/* A caching allocator serves the first buffers from older blocks, in whatever order it finds them. */
static void older_blocks_do_not_renumber(void **state) {
  (void)state;
  static const uint64_t serials[] = {207, 203, 205, 208, 209, 210},
                        backwards[] = {210, 209, 208, 205, 203, 207};
  for (int reversed = 0; reversed < 2; reversed++) {
    struct rp_life lives[6];
    for (size_t i = 0; i < 6; i++)
      lives[i] = life(0, 1, 5, reversed ? backwards[i] : serials[i]);
    struct rp_grouping grouping = group(lives, 6, false);
    assert_int_equal(grouping.group_count, 1);
    for (uint32_t i = 0; i < 6; i++)
      assert_int_equal(grouping.microbatch[i], reversed ? 5 - i : i);
    rp_grouping_fini(&grouping);
  }
}

/* All buffers of one peer lie in a row: that says nothing against their readers, of which the first gradient
 * has others. */
static void a_row_of_buffers_does_not_unite(void **state) {
  (void)state;
  struct rp_life lives[8];
  for (size_t i = 0; i < 8; i++)
    lives[i] = life(0, i < 4 ? 1 : i == 4 ? 2 : 3, 5, 200 + i);
  struct rp_grouping grouping = group(lives, 8, false);
  assert_int_equal(grouping.group_count, 2);
  for (size_t i = 0; i < 8; i++)
    assert_int_equal(grouping.groups[grouping.group_of[i]].direction,
                     i < 4 ? RP_DIRECTION_ACTIVATION : RP_DIRECTION_GRADIENT);
  rp_grouping_fini(&grouping);
}

/* A block of scratch memory, older or younger than the weights, which all gradients of the first stage and
 * all activations of the second happen to meet, is no reason to take the two for one stage. */
static void scratch_ties_no_other_stage(void **state) {
  (void)state;
  for (int older = 0; older < 2; older++) {
    struct rp_life lives[12];
    for (size_t i = 0; i < 12; i++) {
      lives[i] = life(i < 8 ? 0 : 2, i < 8 ? 1 : 2, i < 4 || i >= 8 ? 5 : 6, 200 + i);
      if (i >= 4) lives[i].companions.key[lives[i].companions.count++] = weight(older ? 4 : 7);
    }
    struct rp_grouping grouping = group(lives, 12, false);
    assert_int_equal(grouping.group_count, 3);
    for (size_t i = 0; i < 12; i++)
      assert_int_equal(grouping.groups[grouping.group_of[i]].stage_ordinal, i / 4 % 2);
    rp_grouping_fini(&grouping);
  }
}

/* By more weights than one, stages are told even where the order of receives says otherwise: the first stage
 * gets no gradient. */
static void more_weights_tell_more_than_order(void **state) {
  (void)state;
  struct rp_life lives[12];
  for (size_t i = 0; i < 12; i++) {
    lives[i] = life(i < 8 ? 0 : 2, i < 8 ? 1 : 2, i < 4 ? 5 : 6, 200 + i);
    if (i >= 4) lives[i].companions.key[lives[i].companions.count++] = weight(7);
    if (i < 4 || i >= 8) lives[i].companions.key[lives[i].companions.count++] = weight(8);
  }
  struct rp_grouping grouping = group(lives, 12, false);
  assert_int_equal(grouping.group_count, 3);
  for (size_t i = 0; i < 12; i++)
    assert_int_equal(grouping.groups[grouping.group_of[i]].stage_ordinal, i >= 4);
  rp_grouping_fini(&grouping);
}

/* Two stages receive all their activations one after the other, the second ones further on in the same row.
 */
static void weights_split_a_row_of_buffers(void **state) {
  (void)state;
  struct rp_life lives[8];
  for (size_t i = 0; i < 8; i++)
    lives[i] = life(0, 1, i < 4 ? 5 : 6, 200 + i);
  struct rp_grouping grouping = group(lives, 8, false);
  assert_int_equal(grouping.group_count, 2);
  for (size_t i = 0; i < 8; i++)
    assert_int_equal(grouping.groups[grouping.group_of[i]].stage_ordinal, i / 4);
  rp_grouping_fini(&grouping);
}

/* One allocation holds the weights of all stages, and scratch memory too (a caching allocator). */
static void tensors_of_one_allocation_are_told_apart(void **state) {
  (void)state;
  struct rp_life lives[8];
  for (size_t i = 0; i < 8; i++) {
    lives[i] = life(0, 1, 0, 200 + i);
    lives[i].companions = (struct rp_key_set){
        .count = 2,
        .key = {rp__companion_key(5, 4096 * (1 + i / 2 % 2)), rp__companion_key(5, 65536 + 512 * i)}};
  }
  struct rp_grouping grouping = group(lives, 8, true);
  assert_int_equal(grouping.group_count, 2);
  for (size_t i = 0; i < 8; i++)
    assert_int_equal(grouping.groups[grouping.group_of[i]].stage_ordinal, i / 2 % 2);
  rp_grouping_fini(&grouping);
}

/* Each microbatch's result is an element of an array that is older than the receives. */
static void results_in_one_array_are_no_weights(void **state) {
  (void)state;
  for (uint64_t element_bytes = 1; element_bytes <= 64; element_bytes *= 2) {
    struct rp_life lives[8];
    for (size_t i = 0; i < 8; i++) {
      lives[i] = life(0, 1, 0, 200 + i);
      lives[i].companions = (struct rp_key_set){.count = 1, .key = {rp__companion_key(5, element_bytes * i)}};
    }
    struct rp_grouping grouping = group(lives, 8, true);
    assert_int_equal(grouping.group_count, 1);
    rp_grouping_fini(&grouping);
  }
}

/* First rank of a pipeline with two stages per rank: both gradients come from one peer, the first stage reads
 * its own in another way and names no weights. */
static void the_first_stage_reads_gradients_differently(void **state) {
  (void)state;
  struct rp_life lives[12];
  for (size_t i = 0; i < 12; i++) {
    lives[i] = life(i < 4 ? 0 : 2, i < 4 ? 1 : i < 8 ? 2 : 3, 6, 200 + i);
    if (i >= 8)
      lives[i].companions.key[0] = rp__companion_key(7, 4096 * i); /* its part of the input, not a weight */
  }
  struct rp_grouping grouping = group(lives, 12, true);
  assert_int_equal(grouping.group_count, 3);
  assert_int_equal(grouping.groups[grouping.group_of[0]].direction, RP_DIRECTION_ACTIVATION);
  assert_int_equal(grouping.groups[grouping.group_of[4]].direction, RP_DIRECTION_GRADIENT);
  assert_int_equal(grouping.groups[grouping.group_of[8]].direction, RP_DIRECTION_GRADIENT);
  assert_int_equal(grouping.groups[grouping.group_of[0]].stage_ordinal, 1);
  assert_int_equal(grouping.groups[grouping.group_of[4]].stage_ordinal, 1);
  assert_int_equal(grouping.groups[grouping.group_of[8]].stage_ordinal, 0);
  rp_grouping_fini(&grouping);
}

/* An uneven split is not believed. */
static void uneven_readers_do_not_split(void **state) {
  (void)state;
  struct rp_life lives[] = {life(0, 1, 5, 201), life(0, 1, 5, 202), life(0, 1, 5, 203), life(0, 2, 5, 204)};
  struct rp_grouping grouping = group(lives, 4, false);
  assert_int_equal(grouping.group_count, 1);
  rp_grouping_fini(&grouping);
}

/* Elementwise stages: the same kernels read both directions, only the order of allocation and receipt tells.
 */
static void order_tells_without_readers(void **state) {
  (void)state;
  /* Received in this order; allocated as 201 202 (gradients of one stage), 203 204 and 205 206 of the next.
   */
  static const uint64_t serials[] = {203, 204, 205, 206, 201, 202};
  struct rp_life lives[6];
  for (size_t i = 0; i < 6; i++)
    lives[i] = life(0, i < 2 ? 1 : 2, 5, serials[i]);
  struct rp_grouping grouping = group(lives, 6, false);
  assert_int_equal(grouping.group_count, 3);
  for (size_t i = 0; i < 6; i++)
    assert_int_equal(grouping.group_of[i] == grouping.group_of[i ^ 1], true);
  assert_int_equal(grouping.groups[grouping.group_of[4]].stage_ordinal, 0);
  assert_int_equal(grouping.groups[grouping.group_of[0]].stage_ordinal, 1);
  rp_grouping_fini(&grouping);
  for (size_t i = 0; i < 6; i++)
    lives[i] = life(0, 1, 5, i < 3 ? 204 + i : 198 + i);
  grouping = group(lives, 6, false);
  assert_int_equal(grouping.group_count, 2);
  rp_grouping_fini(&grouping);
}

/* A workspace that every kernel names ties no stages together; the weights of stage 1 do. */
static void a_common_workspace_ties_no_stages(void **state) {
  (void)state;
  struct rp_life lives[] = {life(0, 1, 3, 203), life(0, 1, 3, 204), life(2, 2, 3, 205),
                            life(2, 2, 3, 206), life(2, 2, 3, 201), life(2, 2, 3, 202)};
  for (size_t i = 0; i < 6; i++)
    lives[i].companions.key[lives[i].companions.count++] = weight(i < 4 ? 6 : 5);
  struct rp_grouping grouping = group(lives, 6, false);
  assert_int_equal(grouping.group_count, 3);
  assert_int_equal(grouping.groups[grouping.group_of[0]].stage_ordinal, 1);
  assert_int_equal(grouping.groups[grouping.group_of[2]].stage_ordinal, 1);
  assert_int_equal(grouping.groups[grouping.group_of[4]].stage_ordinal, 0);
  rp_grouping_fini(&grouping);
}

/* A framework that allocates microbatch by microbatch, activation then gradient: short runs are no stages. */
static void allocation_by_microbatch_is_no_stage(void **state) {
  (void)state;
  for (int tensors = 1; tensors <= 2; tensors++) { /* of equal size at each boundary */
    struct rp_life lives[16];
    size_t half = 8, per = (size_t)tensors;
    for (size_t i = 0; i < 16; i++) {
      size_t of_direction = i % half, microbatch = of_direction / per;
      uint64_t serial = 200 + microbatch * 2 * per + (i < half ? 0 : per) + of_direction % per;
      lives[i] = life(i < half ? 0 : 2, i < half ? 1 : 2, 5, serial);
    }
    struct rp_grouping grouping = group(lives, 16, false);
    assert_int_equal(grouping.group_count, 2);
    rp_grouping_fini(&grouping);
  }
}

/* Every buffer has readers of its own: readers tell nothing, and thousands of them take no noticeable time.
 */
static void many_readers_tell_nothing(void **state) {
  (void)state;
  enum { MANY = 20000 };
  struct rp_life *lives = calloc(MANY, sizeof *lives);
  for (size_t i = 0; i < MANY; i++)
    lives[i] = life(i % 2 ? 2 : 0, (int)i, 5, 200 + (i * 7919) % MANY);
  struct rp_grouping grouping = group(lives, MANY, false);
  assert_int_equal(grouping.group_count, 2);
  rp_grouping_fini(&grouping);
  free(lives);
}

/* Whatever comes in, every life gets one group, and microbatch numbers in a group are 0 … size-1, each once.
 */
static void any_input_gives_a_partition(void **state) {
  (void)state;
  srand(9);
  for (int round = 0; round < 3000; round++) {
    struct rp_life lives[40];
    size_t count = (size_t)(rand() % 40);
    for (size_t i = 0; i < count; i++) {
      lives[i] = life(rand() % 3, rand() % 3, (uint64_t)(rand() % 4), (uint64_t)(rand() % 60));
      lives[i].signature_count = (uint16_t)(rand() % 3);
    }
    struct rp_grouping grouping = group(lives, count, rand() % 2);
    uint32_t sizes[40] = {0};
    bool taken[40][40] = {{false}};
    for (size_t i = 0; i < count; i++) {
      uint32_t g = grouping.group_of[i];
      assert_true(g < grouping.group_count && grouping.microbatch[i] < grouping.groups[g].size);
      assert_false(taken[g][grouping.microbatch[i]]);
      taken[g][grouping.microbatch[i]] = true;
      assert_int_equal(grouping.groups[g].peer, lives[i].peer);
      sizes[g]++;
    }
    for (size_t g = 0; g < grouping.group_count; g++)
      assert_int_equal(sizes[g], grouping.groups[g].size);
    rp_grouping_fini(&grouping);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(peers_tell_directions),
                                     cmocka_unit_test(another_first_microbatch_is_no_other_direction),
                                     cmocka_unit_test(older_blocks_do_not_renumber),
                                     cmocka_unit_test(a_row_of_buffers_does_not_unite),
                                     cmocka_unit_test(scratch_ties_no_other_stage),
                                     cmocka_unit_test(more_weights_tell_more_than_order),
                                     cmocka_unit_test(weights_split_a_row_of_buffers),
                                     cmocka_unit_test(tensors_of_one_allocation_are_told_apart),
                                     cmocka_unit_test(results_in_one_array_are_no_weights),
                                     cmocka_unit_test(the_first_stage_reads_gradients_differently),
                                     cmocka_unit_test(weights_tell_stages),
                                     cmocka_unit_test(scratch_does_not_tell_stages),
                                     cmocka_unit_test(a_kernel_more_does_not_split),
                                     cmocka_unit_test(uneven_readers_do_not_split),
                                     cmocka_unit_test(order_tells_without_readers),
                                     cmocka_unit_test(a_common_workspace_ties_no_stages),
                                     cmocka_unit_test(allocation_by_microbatch_is_no_stage),
                                     cmocka_unit_test(many_readers_tell_nothing),
                                     cmocka_unit_test(any_input_gives_a_partition)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
