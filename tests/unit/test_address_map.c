/* The address map against a plain array that answers every question by looking at all ranges. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdlib.h>

#include "pool/address_map.h"

#define SPACE 200

static void map_equals_brute_force(void **state) {
  (void)state;
  srand(11);
  for (int round = 0; round < 200; round++) {
    struct rp_address_map map = {0};
    uint64_t owner[SPACE] = {0}; /* value of the range that covers each address, 0 = none */
    uint64_t begin_of[SPACE];
    for (uint64_t step = 1; step < 150; step++) {
      uint64_t begin = (uint64_t)(rand() % SPACE), end = begin + (uint64_t)(rand() % 9);
      end = end > SPACE ? SPACE : end;
      if (rand() % 3) {
        uint64_t taken = 0;
        for (uint64_t a = begin; a < end; a++)
          taken |= owner[a];
        rp_status expected = end <= begin ? RP_ERROR_INVALID : taken ? RP_ERROR_EXISTS : RP_OK;
        assert_int_equal(rp_address_map_overlap(&map, begin, end) != NULL, taken != 0 && end > begin);
        assert_int_equal(rp_address_map_add(&map, begin, end, step), expected);
        for (uint64_t a = begin; expected == RP_OK && a < end; a++)
          owner[a] = step, begin_of[a] = begin;
      } else {
        struct rp_range range = {0};
        rp_status expected = owner[begin] && begin_of[begin] == begin ? RP_OK : RP_ERROR_NOT_FOUND;
        assert_int_equal(rp_address_map_remove(&map, begin, &range), expected);
        for (uint64_t a = range.begin; a < range.end; a++)
          owner[a] = 0;
      }
      for (uint64_t a = 0; a < SPACE; a++) {
        struct rp_range *found = rp_address_map_find(&map, a);
        assert_int_equal(found ? found->value : 0, owner[a]);
      }
    }
    rp_address_map_fini(&map);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(map_equals_brute_force)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
