/* The simulated CUPTI in a process without the simulated driver: the answers measured of the real library
 * without a driver. */
#include "../sim_test.h"

#include <cupti.h>

static void callback(void *userdata, CUpti_CallbackDomain domain, CUpti_CallbackId cbid, const void *data) {
  (void)userdata, (void)domain, (void)cbid, (void)data;
}

static void test_no_driver(void **state) {
  (void)state;
  CUpti_SubscriberHandle subscriber = NULL;
  CUpti_DomainTable table;
  size_t count;
  uint32_t version = 0, id;
  const char *name = NULL;
  assert_int_equal(cuptiSubscribe(&subscriber, callback, NULL), CUPTI_ERROR_UNKNOWN);
  assert_int_equal(cuptiSubscribe_v2(&subscriber, callback, NULL, NULL), CUPTI_ERROR_UNKNOWN);
  assert_null(subscriber);
  assert_int_equal(cuptiUnsubscribe(subscriber), CUPTI_ERROR_UNKNOWN);
  assert_int_equal(cuptiEnableCallback(1, subscriber, CUPTI_CB_DOMAIN_DRIVER_API, 1),
                   CUPTI_ERROR_INVALID_PARAMETER);
  assert_int_equal(cuptiSupportedDomains(&count, &table), CUPTI_ERROR_UNKNOWN);
  assert_int_equal(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL), CUPTI_ERROR_UNKNOWN);
  assert_int_equal(cuptiGetContextId(NULL, &id), CUPTI_ERROR_UNKNOWN);
  assert_int_equal(cuptiFinalize(), CUPTI_SUCCESS);
  assert_int_equal(cuptiGetVersion(&version), CUPTI_SUCCESS);
  assert_int_equal(version, CUPTI_API_VERSION);
  assert_int_equal(cuptiGetCallbackName(CUPTI_CB_DOMAIN_DRIVER_API, 1, &name), CUPTI_SUCCESS);
  assert_string_equal(name, "cuInit");
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_no_driver)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
