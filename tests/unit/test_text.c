/* Bounded text against snprintf: every size of the buffer, and every directive. */
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "pool/text.h"

/* A buffer of `size` bytes between two guards. */
#define GUARD 0x5a

static void assert_same(const char *expected, size_t size, const char *buffer, size_t length) {
  char cut[128];
  snprintf(cut, size < sizeof(cut) ? size : sizeof(cut), "%s", expected);
  assert_int_equal(length, strlen(expected));
  if (size) assert_string_equal(buffer, cut);
}

static void test_cut_at_every_size(void **state) {
  (void)state;
  const char *expected = "row 3, column -17: \\x00\\xff0F1 is 100%";
  for (size_t size = 0; size <= strlen(expected) + 3; size++) {
    char buffer[128];
    memset(buffer, GUARD, sizeof(buffer));
    struct rp_text text;
    rp_text_init(&text, buffer + 1, size);
    rp_text_string(&text, "row ");
    rp_text_number(&text, 3);
    rp_text_format(&text, ", column %d: ", -17);
    rp_text_escaped(&text, 0);
    rp_text_escaped(&text, 0xff);
    rp_text_bytes(&text, "0F1junk", 3);
    rp_text_format(&text, " is %u%%", 100u);
    assert_same(expected, size, buffer + 1, text.length);
    assert_int_equal(buffer[0], GUARD);
    assert_int_equal(buffer[1 + size], GUARD);
  }
}

static void test_numbers(void **state) {
  (void)state;
  const int64_t numbers[] = {0, 1, -1, 9, 10, -10, 1234567890123, INT64_MAX, INT64_MIN, INT32_MIN};
  for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
    char got[64], expected[64];
    struct rp_text text;
    rp_text_init(&text, got, sizeof(got));
    rp_text_number(&text, numbers[i]);
    snprintf(expected, sizeof(expected), "%lld", (long long)numbers[i]);
    assert_string_equal(got, expected);
  }
}

static void test_directives(void **state) {
  (void)state;
  const char unended[] = {'a', 'b', 'c'};
  char got[160], expected[160];
  struct rp_text text;
  rp_text_init(&text, got, sizeof(got));
  rp_text_format(&text, "%s|%.*s|%.*s|%.*s|%d|%d|%u|%zu|%%", "", 2, "xyz", 3, unended, -1, "no", INT_MIN, 7,
                 UINT_MAX, SIZE_MAX);
  snprintf(expected, sizeof(expected), "%s|%.*s|%.*s||%d|%d|%u|%zu|%%", "", 2, "xyz", 3, unended, INT_MIN, 7,
           UINT_MAX, SIZE_MAX);
  assert_string_equal(got, expected);
  rp_text_init(&text, got, sizeof(got));
  rp_text_format(&text, "a %ld b %s", 5L, "never read");
  assert_string_equal(got, "a %?");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_cut_at_every_size),
      cmocka_unit_test(test_numbers),
      cmocka_unit_test(test_directives),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
