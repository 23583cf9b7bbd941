/* Tables in launch parameters: which part of them is filled. Sizes are those in the binaries of PyTorch 2.11
 * and 2.15. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <string.h>

#include "cupti/launch_tables.h"

#define APPLY "_ZN2at6native52_GLOBAL__N__f9d4_25multi_tensor_apply_kernelINS1_"
#define CAT                                                                                                  \
  "_ZN2at6native40_GLOBAL__N__0f1a8107_8_Shape_cu_49f7391c19CatArrayBatchedCopyINS1_10OpaqueTypeILj4EEE"

static unsigned char data[32768];
static struct rp_launch_table table;

static void cat_has_as_many_inputs_as_the_grid_is_high(void **state) {
  (void)state;
  assert_true(rp_launch_table(CAT, (uint32_t[]){7, 3, 1}, data, 2720, &table));
  assert_int_equal(table.row_count, 1);
  assert_int_equal(table.rows[0].offset, 0);
  assert_int_equal(table.rows[0].bytes, 24);
  assert_false(
      rp_launch_table(CAT, (uint32_t[]){0, 0, 0}, data, 2720, &table)); /* not known: all of it counts */
  assert_false(rp_launch_table(CAT, (uint32_t[]){7, 1000, 1}, data, 2720, &table));
}

struct apply_case {
  const char *name;
  size_t size, blocks_at;           /* of the struct; where its table of blocks begins */
  size_t index_bytes, rows, stride; /* stride: of the rows of addresses */
};

static void multi_tensor_tables_end_with_the_last_block(void **state) {
  (void)state;
  static const struct apply_case cases[] = {
      {"18TensorListMetadataILi1EEE", 3368, 16 * 110, 1, 1, 880},
      {"18TensorListMetadataILi2EEE", 3144, 24 * 64, 1, 2, 512},
      {"18TensorListMetadataILi3EEE", 3144, 32 * 48, 1, 3, 384},
      {"18TensorListMetadataILi4EEE", 3048, 40 * 36, 1, 4, 288},
      {"32FusedOptimizerTensorListMetadataILi3EEE", 3528, 40 * 48, 1, 4, 384},
      {"32FusedOptimizerTensorListMetadataILi4EEE", 3336, 48 * 36, 1, 5, 288},
      {"32FusedOptimizerTensorListMetadataILi5EEE", 3288, 56 * 30, 1, 6, 240},
      {"28TensorListScalarListMetadataIfLi1EEE", 3520, 20 * 96, 1, 1, 768},
      {"28TensorListScalarListMetadataIdLi2EEE", 3648, 32 * 64, 1, 2, 512},
      {"28TensorListScalarListMetadataIaLi4EEE", 3080, 41 * 36, 1, 4, 288},
      {"18TensorListMetadataILi1EEE", 25768, 16 * 770, 2, 1, 6160},
      {"18TensorListMetadataILi2EEE", 24200, 24 * 448, 2, 2, 3584},
      {"32FusedOptimizerTensorListMetadataILi4EEE", 25544, 48 * 252, 2, 5, 2016},
      {"28TensorListScalarListMetadataIfLi3EEE", 25536, 36 * 336, 2, 3, 2688},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char name[256] = APPLY;
    strcat(name, cases[i].name);
    memset(data, 0xff, sizeof data);
    memset(data + cases[i].blocks_at, 0, 3 * cases[i].index_bytes);
    data[cases[i].blocks_at + 2 * cases[i].index_bytes] = 1; /* two tensors: of two blocks and of one */
    assert_true(rp_launch_table(name, (uint32_t[]){3, 1, 1}, data, cases[i].size, &table));
    assert_int_equal(table.row_count, cases[i].rows);
    bool fused = strstr(name, "Fused") != NULL;
    for (size_t row = 0; row < table.row_count; row++) {
      size_t place = fused && row == table.row_count - 1 ? row + 1 : row; /* between them are the sizes */
      assert_int_equal(table.rows[row].offset, place * cases[i].stride);
      assert_int_equal(table.rows[row].bytes, 16);
    }
    assert_false(rp_launch_table(name, (uint32_t[]){0, 0, 0}, data, cases[i].size, &table));
    assert_false(
        rp_launch_table(name, (uint32_t[]){5, 1, 1}, data, cases[i].size, &table)); /* tensor 255 or more */
  }
}

#define LOOP                                                                                                 \
  "_ZN2at6native18elementwise_kernelILi128ELi2EZNS0_22gpu_kernel_impl_nocastINS0_15CUDAFunctor_addIfEEEEvRN"
#define REDUCE                                                                                               \
  "_ZN2at6native13reduce_kernelILi512ELi1ENS0_8ReduceOpIfNS0_14func_wrapper_tIfZNS0_11sum_functorIfffE"
#define UNROLLED "_ZN2at6native27unrolled_elementwise_kernelIN"

/* Behind the shapes are the addresses of the output and the inputs. */
static void loops_have_their_addresses_behind_the_shapes(void **state) {
  (void)state;
  static const struct { size_t size, head; } cases[] = {{536, 504}, {648, 608}, {752, 704}, {432, 408}};
  const uint32_t grid[] = {1, 1, 1};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    memset(data, 0, sizeof data);
    data[0] = 2; /* dimensions */
    assert_true(rp_launch_table(LOOP, grid, data, cases[i].size, &table));
    assert_int_equal(table.row_count, 1);
    assert_int_equal(table.rows[0].offset, cases[i].head);
    assert_int_equal(table.rows[0].bytes, cases[i].size - cases[i].head);
    data[0] = 26;
    assert_false(rp_launch_table(LOOP, grid, data, cases[i].size, &table));
  }
  assert_true(rp_launch_table(UNROLLED, grid, data, 504, &table));
  assert_int_equal(table.row_count, 0);
  assert_false(rp_launch_table(UNROLLED, grid, data, 512, &table));
}

static void reductions_have_their_addresses_at_the_end(void **state) {
  (void)state;
  const uint32_t grid[] = {1, 1, 1};
  memset(data, 0, sizeof data);
  data[1048 - 4] = 1; /* outputs */
  assert_true(rp_launch_table(REDUCE, grid, data, 1048, &table));
  assert_int_equal(table.row_count, 2);
  assert_int_equal(table.rows[0].offset, 984);
  assert_int_equal(table.rows[0].bytes, 16);
  assert_int_equal(table.rows[1].offset, 1008);
  assert_int_equal(table.rows[1].bytes, 24);
  data[1064 - 4] = 2;
  assert_true(rp_launch_table(REDUCE, grid, data, 1064, &table));
  assert_int_equal(table.row_count, 1);
  assert_int_equal(table.rows[0].offset, 1000);
  assert_int_equal(table.rows[0].bytes, 48);
  data[1064 - 4] = 3;
  assert_false(rp_launch_table(REDUCE, grid, data, 1064, &table));
}

static void what_is_not_known_counts_as_a_whole(void **state) {
  (void)state;
  const uint32_t grid[] = {3, 3, 1};
  assert_false(rp_launch_table(NULL, grid, data, 2720, &table));
  assert_false(rp_launch_table("_Z6kernelPf", grid, data, 2720, &table));
  assert_false(rp_launch_table(CAT, grid, data, 255, &table));
  assert_false(
      rp_launch_table(APPLY "18TensorListMetadataILi1EEE", grid, data, 3376, &table)); /* another size */
  assert_false(rp_launch_table(APPLY "18TensorListMetadataILi9EEE", grid, data, 3368, &table));
  assert_false(rp_launch_table(APPLY "12OtherMetadata", grid, data, 3368, &table));
  assert_false(rp_launch_table(APPLY "18TensorListMetadata", grid, data, 3368, &table));
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(cat_has_as_many_inputs_as_the_grid_is_high),
                                     cmocka_unit_test(multi_tensor_tables_end_with_the_last_block),
                                     cmocka_unit_test(loops_have_their_addresses_behind_the_shapes),
                                     cmocka_unit_test(reductions_have_their_addresses_at_the_end),
                                     cmocka_unit_test(what_is_not_known_counts_as_a_whole)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
