/* Launch arguments: which words are found, in which form they may come. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdatomic.h>
#include <string.h>

#include "cupti/cuda_side.h"

#define KEY_END ((void *)0)
#define KEY_POINTER ((void *)1)
#define KEY_SIZE ((void *)2)

static _Atomic uint64_t low = 0x7000, high = 0x9000;

/* Two buffers with a hole between them. */
static bool overlaps(uint64_t begin, uint64_t end) {
  return (begin < 0x7800 && end > 0x7000) || (begin < 0x9000 && end > 0x8800);
}

static const struct rp_scan_filter filter = {&low, &high, overlaps};
static struct rp_launch_words words;

static int reset(void **state) {
  (void)state;
  memset(&words, 0xa5, sizeof words);
  return 0;
}

static void finds_plain_pointers(void **state) {
  (void)state;
  uint64_t weights = 0x123450, input = 0x7010, output = 0x8ff8;
  int32_t count = 0x7010; /* 4 bytes: no address, whatever it says */
  void *params[] = {&weights, &input, &count, &output};
  const struct rp_param_layout layout[] = {{0, 8}, {8, 8}, {16, 4}, {24, 8}};
  assert_true(rp_launch_collect(layout, 4, params, NULL, &filter, NULL, &words));
  assert_int_equal(words.count, 3);
  assert_int_equal(words.dropped, 0);
  const struct rp_launch_word expected[] = {{0x123450, 0, false}, {0x7010, 8, true}, {0x8ff8, 24, true}};
  for (size_t i = 0; i < 3; i++) {
    assert_int_equal(words.words[i].value, expected[i].value);
    assert_int_equal(words.words[i].offset, expected[i].offset);
    assert_int_equal(words.words[i].hit, expected[i].hit);
  }
}

static void misses_what_is_in_no_buffer(void **state) {
  (void)state;
  uint64_t hole = 0x7800, below = 0x6fff, above = 0x9000;
  void *params[] = {&hole, &below, &above};
  const struct rp_param_layout layout[] = {{0, 8}, {8, 8}, {16, 8}};
  size_t before = words.count;
  assert_false(rp_launch_collect(layout, 3, params, NULL, &filter, NULL, &words));
  assert_int_equal(words.count, before); /* untouched */
}

static void finds_pointers_inside_structs(void **state) {
  (void)state;
  struct {
    int32_t shape[2];
    uint64_t data[3];
    char flag;
  } pack = {{1, 2}, {0x5555550, 0x7100, 0x8900}, 1};
  void *params[] = {&pack};
  const struct rp_param_layout layout[] = {{0, sizeof pack}};
  assert_true(rp_launch_collect(layout, 1, params, NULL, &filter, NULL, &words));
  assert_true(words.words[2].hit && words.words[2].value == 0x7100 && words.words[2].offset == 16);
  assert_true(words.words[3].hit && words.words[3].value == 0x8900 && words.words[3].offset == 24);
}

/* A parameter that does not begin at a multiple of 8 is read at the aligned words of the parameter space. */
static void aligns_to_the_parameter_space(void **state) {
  (void)state;
  unsigned char bytes[20];
  uint64_t value = 0x7020;
  memset(bytes, 0, sizeof bytes);
  memcpy(bytes + 4, &value, 8);
  void *params[] = {bytes};
  const struct rp_param_layout layout[] = {{12, sizeof bytes}};
  assert_true(rp_launch_collect(layout, 1, params, NULL, &filter, NULL, &words));
  assert_int_equal(words.words[0].offset, 16);
  const struct rp_param_layout shifted[] = {{8, sizeof bytes}};
  assert_false(rp_launch_collect(shifted, 1, params, NULL, &filter, NULL, &words));
}

static void tolerates_missing_parameters(void **state) {
  (void)state;
  uint64_t input = 0x7010;
  void *params[] = {NULL, &input};
  const struct rp_param_layout layout[] = {{0, 8}, {8, 8}};
  assert_true(rp_launch_collect(layout, 2, params, NULL, &filter, NULL, &words));
  assert_int_equal(words.count, 1);
  assert_false(rp_launch_collect(NULL, 0, params, NULL, &filter, NULL, &words));
  assert_false(rp_launch_collect(layout, 2, NULL, NULL, &filter, NULL, &words));
}

static void reads_the_packed_buffer(void **state) {
  (void)state;
  uint64_t packed[] = {1, 0x7008, 0x424242420};
  size_t bytes = sizeof packed;
  void *in_order[] = {KEY_POINTER, packed, KEY_SIZE, &bytes, KEY_END};
  void *swapped[] = {KEY_SIZE, &bytes, KEY_POINTER, packed, KEY_END};
  void **lists[] = {in_order, swapped};
  for (int i = 0; i < 2; i++) {
    assert_true(rp_launch_collect(NULL, 0, NULL, lists[i], &filter, NULL, &words));
    assert_int_equal(words.count, 2); /* 1 is too small for an address */
    assert_int_equal(words.words[0].value, 0x7008);
    assert_int_equal(words.words[0].offset, 8);
    assert_int_equal(words.words[1].value, 0x424242420);
  }
  bytes = 15; /* the second word is cut off */
  assert_false(rp_launch_collect(NULL, 0, NULL, in_order, &filter, NULL, &words));
  bytes = 16;
  assert_true(rp_launch_collect(NULL, 0, NULL, in_order, &filter, NULL, &words));
}

static void tolerates_odd_packed_buffers(void **state) {
  (void)state;
  uint64_t packed[] = {0x7008};
  size_t bytes = sizeof packed, none = 0;
  const unsigned char *found;
  size_t found_bytes;
  void *empty[] = {KEY_END};
  void *only_size[] = {KEY_SIZE, &bytes, KEY_END};
  void *only_pointer[] = {KEY_POINTER, packed, KEY_END};
  void *no_pointer[] = {KEY_POINTER, NULL, KEY_SIZE, &bytes, KEY_END};
  void *no_size[] = {KEY_POINTER, packed, KEY_SIZE, NULL, KEY_END};
  void *zero[] = {KEY_POINTER, packed, KEY_SIZE, &none, KEY_END};
  void *unknown_key[] = {(void *)77, packed, KEY_POINTER, packed, KEY_SIZE, &bytes, KEY_END};
  void **lists[] = {NULL, empty, only_size, only_pointer, no_pointer, no_size, zero, unknown_key};
  for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++)
    assert_false(rp_launch_extra(lists[i], &found, &found_bytes));
  void *endless[20];
  for (size_t i = 0; i < 20; i += 2) {
    endless[i] = KEY_POINTER;
    endless[i + 1] = packed;
  }
  assert_false(rp_launch_extra(endless, &found, &found_bytes));
}

static void counts_what_does_not_fit(void **state) {
  (void)state;
  uint64_t packed[RP_LAUNCH_WORDS + 10];
  size_t bytes = sizeof packed;
  for (size_t i = 0; i < RP_LAUNCH_WORDS + 10; i++)
    packed[i] = 0x100000 + i;
  packed[3] = 0x7000;
  void *extra[] = {KEY_POINTER, packed, KEY_SIZE, &bytes, KEY_END};
  assert_true(rp_launch_collect(NULL, 0, NULL, extra, &filter, NULL, &words));
  assert_int_equal(words.count, RP_LAUNCH_WORDS);
  assert_int_equal(words.dropped, 10);
}

/* Structs of the largest kind are full of other words; the buffer among them is found wherever it stands. */
static void finds_a_buffer_behind_more_words_than_fit(void **state) {
  (void)state;
  static uint64_t pack[512];
  void *params[] = {pack};
  const struct rp_param_layout layout[] = {{0, sizeof pack}};
  for (size_t at = 0; at < 511; at += 73) {
    for (size_t i = 0; i < 512; i++)
      pack[i] = 0x555500000000 + i;
    pack[at] = 0x7100;
    pack[511] = 0x8900;
    assert_true(rp_launch_collect(layout, 1, params, NULL, &filter, NULL, &words));
    unsigned hits = 0;
    for (size_t i = 0; i < words.count; i++) {
      hits += words.words[i].hit;
      if (words.words[i].hit) assert_int_equal(words.words[i].value, pack[words.words[i].offset / 8]);
    }
    assert_int_equal(hits, 2);
    assert_int_equal(words.count + words.dropped, 512);
  }
}

static void knows_nccl_by_name(void **state) {
  (void)state;
  assert_true(rp_launch_is_nccl("_Z22ncclDevKernel_SendRecv19ncclDevKernelArgs4KILi0EE"));
  assert_true(rp_launch_is_nccl("ncclKernel_AllReduce_RING_LL_Sum_float"));
  assert_false(rp_launch_is_nccl("linear_forward"));
  assert_false(rp_launch_is_nccl(NULL));
}

static void judges_drivers_by_their_name(void **state) {
  (void)state;
  assert_int_equal(rp_driver_major_from_path("/usr/lib/libcuda.so.580.65.06"), 13);
  assert_int_equal(rp_driver_major_from_path("/usr/lib/libcuda.so.550.54.15"), 12);
  assert_int_equal(rp_driver_major_from_path("libcuda.so.470.1"), 11);
  assert_int_equal(rp_driver_major_from_path("/nowhere/libcuda.so.1"), 0);
  assert_int_equal(rp_driver_major_from_path(""), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup(finds_plain_pointers, reset),
      cmocka_unit_test_setup(misses_what_is_in_no_buffer, reset),
      cmocka_unit_test_setup(finds_pointers_inside_structs, reset),
      cmocka_unit_test_setup(aligns_to_the_parameter_space, reset),
      cmocka_unit_test_setup(tolerates_missing_parameters, reset),
      cmocka_unit_test_setup(reads_the_packed_buffer, reset),
      cmocka_unit_test_setup(tolerates_odd_packed_buffers, reset),
      cmocka_unit_test_setup(counts_what_does_not_fit, reset),
      cmocka_unit_test_setup(finds_a_buffer_behind_more_words_than_fit, reset),
      cmocka_unit_test(knows_nccl_by_name),
      cmocka_unit_test(judges_drivers_by_their_name),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
