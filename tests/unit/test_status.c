/* Every status has a text of its own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <string.h>

#include "recvpool/status.h"

static void every_status_has_its_own_text(void **state) {
  (void)state;
  for (int a = RP_ERROR_INTERNAL; a <= RP_OK; a++) {
    assert_string_not_equal(rp_status_text(a), "unknown status");
    for (int b = a + 1; b <= RP_OK; b++)
      assert_string_not_equal(rp_status_text(a), rp_status_text(b));
  }
  assert_string_equal(rp_status_text(RP_ERROR_INTERNAL - 1), "unknown status");
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(every_status_has_its_own_text)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
