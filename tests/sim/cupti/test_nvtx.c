/* NVTX through the simulated CUPTI: the calls of the real NVTX headers, with NVTX_INJECTION64_PATH naming the
 * library, raise CUPTI's NVTX domain. */
#include "../sim_test.h"

#include <cupti.h>
#include <generated_nvtx_meta.h>
#include <nvtx3/nvToolsExt.h>

static char log_names[32][48]; /* functions, in the order in which they were raised */
static size_t log_count;
static char nvtx_text[64];
static int nvtx_level;

static void note_nvtx(void *userdata, CUpti_CallbackDomain domain, CUpti_CallbackId cbid, const void *data) {
  const CUpti_NvtxData *nvtx = data;
  (void)userdata;
  assert_int_equal(domain, CUPTI_CB_DOMAIN_NVTX);
  assert_true(log_count < sizeof log_names / sizeof log_names[0]);
  snprintf(log_names[log_count], sizeof log_names[0], "%s", nvtx->functionName);
  log_count++;
  if (cbid == CUPTI_CBID_NVTX_nvtxRangePushA) {
    snprintf(nvtx_text, sizeof nvtx_text, "%s",
             ((const nvtxRangePushA_params *)nvtx->functionParams)->message);
    nvtx_level = *(const int *)nvtx->functionReturnValue;
  }
  if (cbid == CUPTI_CBID_NVTX_nvtxDomainRangePushEx) {
    const nvtxDomainRangePushEx_params *params = nvtx->functionParams;
    snprintf(nvtx_text, sizeof nvtx_text, "%p %s", (void *)params->domain,
             params->core.eventAttrib->message.ascii);
  }
}

static void test_nvtx(void **state) {
  (void)state;
  CUpti_SubscriberHandle subscriber;
  assert_int_equal(cuInit(0), CUDA_SUCCESS);
  assert_int_equal(nvtxRangePushA("nobody listens"), 0);
  assert_int_equal(nvtxRangePop(), 0);
  assert_int_equal(cuptiSubscribe(&subscriber, note_nvtx, NULL), CUPTI_SUCCESS);
  assert_int_equal(cuptiEnableDomain(1, subscriber, CUPTI_CB_DOMAIN_NVTX), CUPTI_SUCCESS);
  assert_int_equal(nvtxRangePushA("forward 3"), 0);
  assert_string_equal(nvtx_text, "forward 3");
  assert_int_equal(nvtx_level, 0);
  assert_int_equal(nvtxRangePushA("inner"), 1);
  assert_int_equal(nvtxRangePop(), 1);
  assert_int_equal(nvtxRangePop(), 0);
  assert_int_equal(log_count, 4);
  assert_string_equal(log_names[3], "nvtxRangePop");

  nvtxRangeId_t range = nvtxRangeStartA("range");
  assert_true(range != nvtxRangeStartA("another"));
  nvtxRangeEnd(range);
  nvtxMarkA("mark");
  assert_string_equal(log_names[6], "nvtxRangeEnd");
  assert_string_equal(log_names[7], "nvtxMarkA");

  nvtxDomainHandle_t domain = nvtxDomainCreateA("recvpool");
  nvtxEventAttributes_t event = {.version = NVTX_VERSION,
                                 .size = NVTX_EVENT_ATTRIB_STRUCT_SIZE,
                                 .messageType = NVTX_MESSAGE_TYPE_ASCII,
                                 .message = {.ascii = "backward 5"}};
  assert_int_equal(nvtxDomainRangePushEx(domain, &event), 0);
  char wanted[64];
  snprintf(wanted, sizeof wanted, "%p backward 5", (void *)domain);
  assert_string_equal(nvtx_text, wanted);
  assert_int_equal(nvtxDomainRangePop(domain), 0);
  assert_int_equal(log_count, 11);
  assert_int_equal(cuptiUnsubscribe(subscriber), CUPTI_SUCCESS);
  nvtxMarkA("nobody listens");
  assert_int_equal(log_count, 11);
}

int main(void) {
  setenv("NVTX_INJECTION64_PATH", CUPTI13_PATH, 1); /* read at the first NVTX call */
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_nvtx)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
