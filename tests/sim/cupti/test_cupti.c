/* The simulated CUPTI over the simulated driver: one subscriber, ENTER and EXIT with parameters and results,
 * domains, what a callback may call and threads. */
#include "../sim_test.h"

#include <cuda.h>
#include <cupti.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>

#include "../cuda/tools.h"
#include "../rpsim.h"

/* ---- a kernel, a context, a subscriber that notes what it sees ---- */

static void store_body(void *const *params, const struct rpsim_dims *dims) {
  (void)dims;
  int *to = *(int *const *)params[0];
  *to = *(const int *)params[1];
}

static const struct rpsim_param store_params[] = {{0, sizeof(void *)}, {sizeof(void *), sizeof(int)}};
static const struct rpsim_kernel kernels[] = {{"_Z5storePii", store_body, 2, store_params}};

static CUcontext context;
static uint32_t context_uid;

struct seen {
  CUpti_CallbackDomain domain;
  CUpti_CallbackId cbid;
  CUpti_ApiCallbackSite site;
  char name[48], symbol[48];
  uint32_t correlation_id, context_uid;
  uint64_t correlation_data; /* as found, before the callback changes it */
  int result;
  CUcontext context;
  CUstream stream;
  union {
    cuMemAlloc_v2_params alloc;
    cuLaunchKernel_params launch;
    cuMemcpyDtoH_v2_params copy;
    cuMemcpyAsync_ptsz_params copy_ptsz;
  } params;
};

static struct seen log_entries[256];
static size_t log_count;
/* Called by the callback after noting, if set. */
static void (*in_callback)(const struct seen *seen, const CUpti_CallbackData *data);

static void note_call(struct seen *seen, const CUpti_CallbackData *data, size_t params_bytes) {
  seen->site = data->callbackSite;
  snprintf(seen->name, sizeof seen->name, "%s", data->functionName);
  snprintf(seen->symbol, sizeof seen->symbol, "%s", data->symbolName ? data->symbolName : "");
  seen->correlation_id = data->correlationId;
  seen->context_uid = data->contextUid;
  seen->context = data->context;
  seen->correlation_data = *data->correlationData;
  seen->result = seen->site == CUPTI_API_EXIT ? *(const int *)data->functionReturnValue : -1;
  if (params_bytes) memcpy(&seen->params, data->functionParams, params_bytes);
}

static size_t params_bytes_of(CUpti_CallbackId cbid) {
  switch (cbid) {
  case CUPTI_DRIVER_TRACE_CBID_cuMemAlloc_v2:
    return sizeof(cuMemAlloc_v2_params);
  case CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel:
    return sizeof(cuLaunchKernel_params);
  case CUPTI_DRIVER_TRACE_CBID_cuMemcpyDtoH_v2:
    return sizeof(cuMemcpyDtoH_v2_params);
  case CUPTI_DRIVER_TRACE_CBID_cuMemcpyAsync_ptsz:
    return sizeof(cuMemcpyAsync_ptsz_params);
  default:
    return 0;
  }
}

static void callback(void *userdata, CUpti_CallbackDomain domain, CUpti_CallbackId cbid, const void *data) {
  assert_ptr_equal(userdata, &log_count);
  assert_true(log_count < sizeof log_entries / sizeof log_entries[0]);
  struct seen *seen = &log_entries[log_count++];
  memset(seen, 0, sizeof *seen);
  seen->domain = domain;
  seen->cbid = cbid;
  if (domain == CUPTI_CB_DOMAIN_DRIVER_API) note_call(seen, data, params_bytes_of(cbid));
  if (domain == CUPTI_CB_DOMAIN_RUNTIME_API) note_call(seen, data, 0);
  if (domain == CUPTI_CB_DOMAIN_RESOURCE) {
    seen->context = ((const CUpti_ResourceData *)data)->context;
    seen->stream = ((const CUpti_ResourceData *)data)->resourceHandle.stream;
  }
  if (domain == CUPTI_CB_DOMAIN_SYNCHRONIZE) {
    seen->context = ((const CUpti_SynchronizeData *)data)->context;
    seen->stream = ((const CUpti_SynchronizeData *)data)->stream;
  }
  if (in_callback) in_callback(seen, data);
}

static CUpti_SubscriberHandle subscriber;

static int start(void **state) {
  (void)state;
  if (rpsim_register_kernels(kernels, 1) != 0 || cuInit(0) != CUDA_SUCCESS) return -1;
  if (cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS || cuCtxSetCurrent(context) != CUDA_SUCCESS)
    return -1;
  return cuptiGetContextId(context, &context_uid) == CUPTI_SUCCESS ? 0 : -1;
}

static int subscribe(void **state) {
  (void)state;
  log_count = 0;
  in_callback = NULL;
  return cuptiSubscribe(&subscriber, callback, &log_count) == CUPTI_SUCCESS ? 0 : -1;
}

static int unsubscribe(void **state) {
  (void)state;
  in_callback = NULL;
  CUptiResult result = cuptiUnsubscribe(subscriber);
  return result == CUPTI_SUCCESS || result == CUPTI_ERROR_INVALID_PARAMETER ? 0 : -1;
}

static void enable(CUpti_CallbackDomain domain, CUpti_CallbackId cbid) {
  assert_int_equal(cuptiEnableCallback(1, subscriber, domain, cbid), CUPTI_SUCCESS);
}

static void enable_driver(CUpti_CallbackId cbid) {
  enable(CUPTI_CB_DOMAIN_DRIVER_API, cbid);
}

/* Checks that the two entries from `first` on are the ENTER and EXIT of one call. */
static void check_pair(size_t first, const char *name, int result) {
  assert_true(log_count >= first + 2);
  const struct seen *enter = &log_entries[first], *leave = &log_entries[first + 1];
  assert_int_equal(enter->site, CUPTI_API_ENTER);
  assert_int_equal(leave->site, CUPTI_API_EXIT);
  assert_string_equal(enter->name, name);
  assert_string_equal(leave->name, name);
  assert_int_equal(enter->correlation_id, leave->correlation_id);
  assert_int_equal(leave->result, result);
  assert_ptr_equal(enter->context, context);
  assert_int_equal(enter->context_uid, context_uid);
}

/* ---- subscribers ---- */

static void other_callback(void *userdata, CUpti_CallbackDomain domain, CUpti_CallbackId cbid,
                           const void *data) {
  (void)userdata, (void)domain, (void)cbid, (void)data;
  fail_msg("a refused subscriber was called");
}

static void test_one_subscriber(void **state) {
  (void)state;
  CUpti_SubscriberHandle other = NULL;
  assert_int_equal(cuptiSubscribe(&other, other_callback, NULL),
                   CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED);
  assert_null(other);
  assert_int_equal(cuptiGetLastError(), CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED);
  assert_int_equal(cuptiGetLastError(), CUPTI_SUCCESS);
  assert_int_equal(cuptiUnsubscribe(NULL), CUPTI_ERROR_INVALID_PARAMETER);
  assert_int_equal(cuptiUnsubscribe(subscriber), CUPTI_SUCCESS);
  assert_int_equal(cuptiUnsubscribe(subscriber), CUPTI_ERROR_INVALID_PARAMETER);
  assert_int_equal(cuptiSubscribe(&subscriber, callback, &log_count), CUPTI_SUCCESS);
}

static void test_one_subscriber_of_both_libraries(void **state) {
  (void)state;
  void *library = dlopen(CUPTI12_PATH, RTLD_NOW | RTLD_LOCAL);
  assert_non_null(library);
  CUptiResult (*subscribe12)(CUpti_SubscriberHandle *, CUpti_CallbackFunc, void *) =
      (CUptiResult(*)(CUpti_SubscriberHandle *, CUpti_CallbackFunc, void *))dlsym(library, "cuptiSubscribe");
  CUptiResult (*version12)(uint32_t *) = (CUptiResult(*)(uint32_t *))dlsym(library, "cuptiGetVersion");
  assert_true(subscribe12 != cuptiSubscribe);
  assert_null(dlsym(library, "cuptiSubscribe_v2"));
  uint32_t version;
  assert_int_equal(version12(&version), CUPTI_SUCCESS);
  assert_int_equal(version, 26);
  assert_int_equal(cuptiGetVersion(&version), CUPTI_SUCCESS);
  assert_int_equal(version, CUPTI_API_VERSION);

  CUpti_SubscriberHandle other;
  assert_int_equal(subscribe12(&other, other_callback, NULL), CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED);
  assert_int_equal(cuptiUnsubscribe(subscriber), CUPTI_SUCCESS);
  assert_int_equal(subscribe12(&subscriber, callback, &log_count), CUPTI_SUCCESS);
  assert_int_equal(cuptiSubscribe(&other, other_callback, NULL),
                   CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED);
}

static void test_old_subscriber_is_named(void **state) {
  (void)state;
  char old[CUPTI_OLD_SUBSCRIBER_NAME_MIN_LEN] = "";
  CUpti_SubscriberParams params = {.structSize = CUpti_SubscriberParams_STRUCT_SIZE,
                                   .subscriberName = "first"};
  assert_int_equal(cuptiUnsubscribe(subscriber), CUPTI_SUCCESS);
  assert_int_equal(cuptiSubscribe_v2(&subscriber, callback, &log_count, &params), CUPTI_SUCCESS);
  CUpti_SubscriberHandle other;
  params.subscriberName = "second";
  params.oldSubscriberName = old;
  params.oldSubscriberSize = sizeof old;
  assert_int_equal(cuptiSubscribe_v2(&other, other_callback, NULL, &params),
                   CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED);
  assert_string_equal(old, "CUPTI for first");
  params.structSize = 8;
  assert_int_equal(cuptiSubscribe_v2(&other, other_callback, NULL, &params), CUPTI_ERROR_INVALID_PARAMETER);
}

static void test_finalize_ends_everything(void **state) {
  (void)state;
  int value;
  enable_driver(CUPTI_DRIVER_TRACE_CBID_cuDriverGetVersion);
  cuDriverGetVersion(&value);
  assert_int_equal(log_count, 2);
  assert_int_equal(cuptiFinalize(), CUPTI_SUCCESS);
  cuDriverGetVersion(&value);
  assert_int_equal(log_count, 2);
  assert_int_equal(cuptiEnableCallback(1, subscriber, CUPTI_CB_DOMAIN_DRIVER_API, 1),
                   CUPTI_ERROR_INVALID_PARAMETER);
  assert_int_equal(cuptiSubscribe(&subscriber, callback, &log_count), CUPTI_SUCCESS);
  cuDriverGetVersion(&value); /* a new subscription starts with nothing enabled */
  assert_int_equal(log_count, 2);
}

static void test_subscribe_error_on_demand(void **state) {
  (void)state;
  char output[256];
  int status = sim_test_run("subscribe", "RPSIM_CUPTI_SUBSCRIBE_ERROR", "39", output, sizeof output);
  assert_true(WIFEXITED(status));
  assert_string_equal(output, "39\n");
}

/* ---- enabling ---- */

static void test_enabling(void **state) {
  (void)state;
  uint32_t on = 7;
  const CUpti_CallbackDomain driver = CUPTI_CB_DOMAIN_DRIVER_API;
  assert_int_equal(cuptiEnableCallback(1, subscriber, driver, CUPTI_DRIVER_TRACE_CBID_SIZE),
                   CUPTI_ERROR_INVALID_PARAMETER);
  assert_int_equal(cuptiEnableCallback(1, subscriber, driver, 0), CUPTI_ERROR_INVALID_PARAMETER);
  assert_int_equal(cuptiEnableCallback(1, subscriber, CUPTI_CB_DOMAIN_SIZE, 1),
                   CUPTI_ERROR_INVALID_PARAMETER);
  assert_int_equal(cuptiGetCallbackState(&on, subscriber, driver, CUPTI_DRIVER_TRACE_CBID_cuMemAlloc_v2),
                   CUPTI_SUCCESS);
  assert_int_equal(on, 0);
  assert_int_equal(cuptiEnableDomain(1, subscriber, driver), CUPTI_SUCCESS);
  assert_int_equal(cuptiGetCallbackState(&on, subscriber, driver, CUPTI_DRIVER_TRACE_CBID_cuMemAlloc_v2),
                   CUPTI_SUCCESS);
  assert_int_equal(on, 1);
  assert_int_equal(cuptiGetCallbackState(&on, subscriber, CUPTI_CB_DOMAIN_RESOURCE, 1), CUPTI_SUCCESS);
  assert_int_equal(on, 0);
  assert_int_equal(cuptiEnableAllDomains(1, subscriber), CUPTI_SUCCESS);
  assert_int_equal(cuptiGetCallbackState(&on, subscriber, CUPTI_CB_DOMAIN_RESOURCE, 1), CUPTI_SUCCESS);
  assert_int_equal(on, 1);
  assert_int_equal(cuptiEnableAllDomains(0, subscriber), CUPTI_SUCCESS);
  cuCtxSynchronize();
  assert_int_equal(log_count, 0);
}

static void enable_count(const struct seen *seen, const CUpti_CallbackData *data) {
  (void)data;
  if (seen->site == CUPTI_API_ENTER && seen->cbid == CUPTI_DRIVER_TRACE_CBID_cuDriverGetVersion)
    enable_driver(CUPTI_DRIVER_TRACE_CBID_cuDeviceGetCount);
}

static void test_enabling_from_a_callback(void **state) {
  (void)state;
  int value;
  enable_driver(CUPTI_DRIVER_TRACE_CBID_cuDriverGetVersion);
  in_callback = enable_count;
  cuDeviceGetCount(&value);
  assert_int_equal(log_count, 0);
  cuDriverGetVersion(&value);
  cuDeviceGetCount(&value);
  assert_int_equal(log_count, 4);
  check_pair(2, "cuDeviceGetCount", CUDA_SUCCESS);
}

static void test_names(void **state) {
  (void)state;
  const char *name = NULL;
  assert_int_equal(cuptiGetCallbackName(CUPTI_CB_DOMAIN_DRIVER_API, 442, &name), CUPTI_SUCCESS);
  assert_string_equal(name, "cuLaunchKernel_ptsz");
  assert_int_equal(cuptiGetCallbackName(CUPTI_CB_DOMAIN_RUNTIME_API, 20, &name), CUPTI_SUCCESS);
  assert_string_equal(name, "cudaMalloc_v3020");
  assert_int_equal(cuptiGetCallbackName(CUPTI_CB_DOMAIN_DRIVER_API, 9000, &name),
                   CUPTI_ERROR_INVALID_PARAMETER);
  assert_int_equal(cuptiGetCallbackName(CUPTI_CB_DOMAIN_RESOURCE, 1, &name), CUPTI_ERROR_INVALID_PARAMETER);
  assert_int_equal(cuptiGetResultString((CUptiResult)39, &name), CUPTI_SUCCESS);
  assert_string_equal(name, "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED");
}

/* ---- calls ---- */

static void test_allocation(void **state) {
  (void)state;
  CUdeviceptr where = 0;
  enable_driver(CUPTI_DRIVER_TRACE_CBID_cuMemAlloc_v2);
  assert_cuda(cuMemAlloc(&where, 4096));
  check_pair(0, "cuMemAlloc_v2", CUDA_SUCCESS);
  assert_int_equal(log_count, 2);
  assert_int_equal(log_entries[0].params.alloc.bytesize, 4096);
  assert_ptr_equal(log_entries[0].params.alloc.dptr, &where);
  assert_int_equal(cuMemAlloc(&where, SIZE_MAX / 2), CUDA_ERROR_OUT_OF_MEMORY);
  check_pair(2, "cuMemAlloc_v2", CUDA_ERROR_OUT_OF_MEMORY);
  assert_true(log_entries[2].correlation_id > log_entries[0].correlation_id);
  assert_cuda(cuMemFree(where));
  assert_int_equal(log_count, 4);
}

/* Keeps a mark in the slot that ENTER shares with EXIT. */
static void mark_correlation(const struct seen *seen, const CUpti_CallbackData *data) {
  if (seen->site == CUPTI_API_ENTER) *data->correlationData = 0x1234567890ULL + log_count;
}

static void test_launch_and_copy(void **state) {
  (void)state;
  CUdeviceptr where;
  CUmodule module;
  CUfunction function;
  int value = 17, back = 0;
  assert_cuda(cuMemAlloc(&where, sizeof back));
  assert_cuda(cuModuleLoadData(&module, "image"));
  assert_cuda(cuModuleGetFunction(&function, module, "_Z5storePii"));
  enable_driver(CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel);
  enable_driver(CUPTI_DRIVER_TRACE_CBID_cuMemcpyDtoH_v2);
  in_callback = mark_correlation;
  void *params[] = {&where, &value};
  assert_cuda(cuLaunchKernel(function, 3, 1, 1, 32, 1, 1, 0, NULL, params, NULL));
  assert_cuda(cuMemcpyDtoH(&back, where, sizeof back));
  assert_int_equal(back, 17);

  assert_int_equal(log_count, 4);
  check_pair(0, "cuLaunchKernel", CUDA_SUCCESS);
  assert_string_equal(log_entries[0].symbol, "_Z5storePii");
  assert_ptr_equal(log_entries[0].params.launch.f, function);
  assert_int_equal(log_entries[0].params.launch.gridDimX, 3);
  assert_ptr_equal(log_entries[0].params.launch.kernelParams, params);
  check_pair(2, "cuMemcpyDtoH_v2", CUDA_SUCCESS);
  assert_string_equal(log_entries[2].symbol, "");
  assert_ptr_equal(log_entries[2].params.copy.dstHost, &back);
  assert_int_equal(log_entries[2].params.copy.srcDevice, where);
  assert_int_equal(log_entries[2].params.copy.ByteCount, sizeof back);
  assert_int_equal(log_entries[0].correlation_data, 0);
  assert_int_equal(log_entries[1].correlation_data, 0x1234567890ULL + 1);
  assert_int_equal(log_entries[2].correlation_data, 0);
  assert_int_equal(log_entries[3].correlation_data, 0x1234567890ULL + 3);
  assert_cuda(cuMemFree(where));
  assert_cuda(cuModuleUnload(module));
}

static void test_per_thread_twin(void **state) {
  (void)state;
  CUdeviceptr where;
  int value = 5;
  CUresult (*copy)(CUdeviceptr, CUdeviceptr, size_t, CUstream);
  assert_cuda(cuGetProcAddress("cuMemcpyAsync", (void **)&copy, 13000,
                               CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, NULL));
  assert_cuda(cuMemAlloc(&where, sizeof value));
  enable_driver(CUPTI_DRIVER_TRACE_CBID_cuMemcpyAsync_ptsz);
  assert_cuda(copy(where, (CUdeviceptr)&value, sizeof value, NULL));
  assert_cuda(cuMemcpyAsync(where, (CUdeviceptr)&value, sizeof value, NULL)); /* not enabled */
  assert_int_equal(log_count, 2);
  check_pair(0, "cuMemcpyAsync_ptsz", CUDA_SUCCESS);
  assert_int_equal(log_entries[0].cbid, 418);
  assert_int_equal(log_entries[0].params.copy_ptsz.dst, where);
  assert_cuda(cuCtxSynchronize());
  assert_cuda(cuMemFree(where));
}

static void change_result(const struct seen *seen, const CUpti_CallbackData *data) {
  if (seen->site == CUPTI_API_EXIT) *(CUresult *)data->functionReturnValue = CUDA_ERROR_NOT_PERMITTED;
}

static void test_result_can_be_changed_at_exit(void **state) {
  (void)state;
  int value;
  enable_driver(CUPTI_DRIVER_TRACE_CBID_cuDriverGetVersion);
  in_callback = change_result;
  assert_int_equal(cuDriverGetVersion(&value), CUDA_ERROR_NOT_PERMITTED);
}

static void query_again(const struct seen *seen, const CUpti_CallbackData *data) {
  (void)data;
  int value;
  if (seen->cbid == CUPTI_DRIVER_TRACE_CBID_cuDeviceGetCount) assert_cuda(cuDriverGetVersion(&value));
}

static void test_calls_nest(void **state) {
  (void)state;
  int value;
  enable_driver(CUPTI_DRIVER_TRACE_CBID_cuDeviceGetCount);
  enable_driver(CUPTI_DRIVER_TRACE_CBID_cuDriverGetVersion);
  in_callback = query_again;
  assert_cuda(cuDeviceGetCount(&value));
  assert_int_equal(log_count, 6);
  assert_string_equal(log_entries[0].name, "cuDeviceGetCount");
  check_pair(1, "cuDriverGetVersion", CUDA_SUCCESS);
  assert_string_equal(log_entries[3].name, "cuDeviceGetCount");
  check_pair(4, "cuDriverGetVersion", CUDA_SUCCESS);
  assert_int_equal(log_entries[0].correlation_id, log_entries[3].correlation_id);
  assert_true(log_entries[1].correlation_id > log_entries[0].correlation_id);
}

static void synchronize(const struct seen *seen, const CUpti_CallbackData *data) {
  (void)data;
  if (seen->cbid == CUPTI_DRIVER_TRACE_CBID_cuMemAlloc_v2) assert_cuda(cuCtxSynchronize());
}

static void test_synchronizing_in_a_driver_callback(void **state) {
  (void)state;
  CUdeviceptr where;
  enable_driver(CUPTI_DRIVER_TRACE_CBID_cuMemAlloc_v2);
  in_callback = synchronize;
  assert_cuda(cuMemAlloc(&where, 16));
  assert_int_equal(log_count, 2);
  assert_cuda(cuMemFree(where));
}

/* ---- what ends the process ---- */

static void allocate(const struct seen *seen, const CUpti_CallbackData *data) {
  (void)seen, (void)data;
  CUdeviceptr where;
  cuMemAlloc(&where, 16);
}

static void synchronize_anywhere(const struct seen *seen, const CUpti_CallbackData *data) {
  (void)seen, (void)data;
  cuCtxSynchronize();
}

static int mode_forbidden(CUpti_CallbackDomain domain,
                          void (*act)(const struct seen *, const CUpti_CallbackData *)) {
  CUcontext made;
  if (start(NULL) != 0 || subscribe(NULL) != 0) return 1;
  in_callback = act;
  cuptiEnableDomain(1, subscriber, domain);
  cuCtxCreate(&made, NULL, 0, 0);
  return 0;
}

static void expect_abort(const char *mode, const char *wanted) {
  char output[512];
  int status = sim_test_run(mode, "RPSIM_FAIL", NULL, output, sizeof output);
  assert_true(WIFSIGNALED(status));
  assert_int_equal(WTERMSIG(status), SIGABRT);
  assert_string_equal(output, wanted);
}

static void test_changing_calls_abort(void **state) {
  (void)state;
  expect_abort(
      "allocate-in-driver",
      "rpsim: cuMemAlloc_v2 was called from inside a CUPTI callback, where only queries are allowed\n");
  expect_abort(
      "allocate-in-resource",
      "rpsim: cuMemAlloc_v2 was called from inside a CUPTI callback, where only queries are allowed\n");
  expect_abort(
      "synchronize-in-resource",
      "rpsim: cuCtxSynchronize was called from inside a CUPTI callback, where only queries are allowed\n");
}

/* ---- other domains ---- */

static void test_resources(void **state) {
  (void)state;
  CUcontext made;
  CUstream stream;
  assert_int_equal(cuptiEnableDomain(1, subscriber, CUPTI_CB_DOMAIN_RESOURCE), CUPTI_SUCCESS);
  assert_cuda(cuCtxCreate(&made, NULL, 0, 0));
  assert_int_equal(log_entries[0].cbid, CUPTI_CBID_RESOURCE_CONTEXT_CREATED);
  assert_ptr_equal(log_entries[0].context, made);
  size_t before = log_count;
  assert_cuda(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  assert_int_equal(log_count, before + 1);
  assert_int_equal(log_entries[before].cbid, CUPTI_CBID_RESOURCE_STREAM_CREATED);
  assert_ptr_equal(log_entries[before].stream, stream);
  assert_cuda(cuStreamDestroy(stream));
  assert_int_equal(log_entries[before + 1].cbid, CUPTI_CBID_RESOURCE_STREAM_DESTROY_STARTING);
  assert_cuda(cuCtxDestroy(made));
  assert_int_equal(log_entries[before + 2].cbid, CUPTI_CBID_RESOURCE_CONTEXT_DESTROY_STARTING);
  assert_ptr_equal(log_entries[before + 2].context, made);
}

static void test_synchronize_domain(void **state) {
  (void)state;
  CUstream stream;
  assert_cuda(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  assert_int_equal(cuptiEnableDomain(1, subscriber, CUPTI_CB_DOMAIN_SYNCHRONIZE), CUPTI_SUCCESS);
  assert_cuda(cuStreamSynchronize(stream));
  assert_cuda(cuCtxSynchronize());
  assert_int_equal(log_count, 2);
  assert_int_equal(log_entries[0].cbid, CUPTI_CBID_SYNCHRONIZE_STREAM_SYNCHRONIZED);
  assert_ptr_equal(log_entries[0].stream, stream);
  assert_int_equal(log_entries[1].cbid, CUPTI_CBID_SYNCHRONIZE_CONTEXT_SYNCHRONIZED);
  assert_ptr_equal(log_entries[1].context, context);
  assert_cuda(cuStreamDestroy(stream));
}

static void test_runtime_domain(void **state) {
  (void)state;
  int result = 2;
  struct rpsim_tools_call call = {.cbid = CUPTI_RUNTIME_TRACE_CBID_cudaMalloc_v3020,
                                  .name = "cudaMalloc_v3020"};
  rpsim_tools_runtime_enter(&call);
  rpsim_tools_runtime_exit(&call, &result);
  assert_int_equal(log_count, 0);
  enable(CUPTI_CB_DOMAIN_RUNTIME_API, CUPTI_RUNTIME_TRACE_CBID_cudaMalloc_v3020);
  in_callback = mark_correlation;
  rpsim_tools_runtime_enter(&call);
  rpsim_tools_runtime_exit(&call, &result);
  assert_int_equal(log_count, 2);
  check_pair(0, "cudaMalloc_v3020", 2);
  assert_int_equal(log_entries[1].correlation_data, 0x1234567890ULL + 1);
}

static void test_ids(void **state) {
  (void)state;
  CUstream stream;
  uint32_t id = 99, other = 99, device = 99;
  CUpti_ActivityThreadIdType type;
  assert_cuda(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  assert_int_equal(cuptiGetStreamId(context, stream, &id), CUPTI_SUCCESS);
  assert_int_equal(cuptiGetStreamIdEx(context, NULL, 0, &other), CUPTI_SUCCESS);
  assert_true(id != other);
  assert_int_equal(cuptiGetDeviceId(context, &device), CUPTI_SUCCESS);
  assert_int_equal(device, 0);
  assert_int_equal(cuptiGetContextId((CUcontext)&stream, &id), CUPTI_ERROR_INVALID_CONTEXT);
  assert_int_equal(cuptiGetThreadIdType(&type), CUPTI_SUCCESS);
  assert_int_equal(type, CUPTI_ACTIVITY_THREAD_ID_TYPE_DEFAULT);
  assert_cuda(cuStreamDestroy(stream));
  uint64_t first, second;
  assert_int_equal(cuptiGetTimestamp(&first), CUPTI_SUCCESS);
  assert_int_equal(cuptiGetTimestamp(&second), CUPTI_SUCCESS);
  assert_true(second >= first);
}

/* ---- in the injected library ---- */

static int mode_injected(void) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  return cuInit(0) == CUDA_SUCCESS ? 0 : 1;
}

static void test_subscribing_while_injected(void **state) {
  (void)state;
  char output[512];
  setenv("TEST_CUPTI", CUPTI13_PATH, 1);
  int status = sim_test_run("injected", "CUDA_INJECTION64_PATH", INJECTION_PATH, output, sizeof output);
  unsetenv("TEST_CUPTI");
  assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  /* cuInit had been entered before anybody could enable it, so its EXIT is not raised. */
  assert_string_equal(output, "injected\nsubscribe 0\nresource 5\n");
}

/* ---- threads ---- */

static _Atomic unsigned enters, exits;

static void count_calls(void *userdata, CUpti_CallbackDomain domain, CUpti_CallbackId cbid,
                        const void *data) {
  (void)userdata, (void)domain, (void)cbid;
  const CUpti_CallbackData *call = data;
  if (call->callbackSite == CUPTI_API_ENTER) {
    *call->correlationData = call->correlationId;
    enters++;
  } else if (*call->correlationData == call->correlationId) {
    exits++;
  }
}

static void *allocate_often(void *argument) {
  CUdeviceptr where;
  CUresult result = cuCtxSetCurrent(context);
  for (int i = 0; i < 200 && result == CUDA_SUCCESS; i++) {
    result = cuMemAlloc(&where, 4096);
    if (result == CUDA_SUCCESS) result = cuMemFree(where);
  }
  *(CUresult *)argument = result;
  return NULL;
}

static void test_calls_of_many_threads(void **state) {
  (void)state;
  pthread_t threads[8];
  CUresult results[8];
  assert_int_equal(cuptiUnsubscribe(subscriber), CUPTI_SUCCESS);
  assert_int_equal(cuptiSubscribe(&subscriber, count_calls, NULL), CUPTI_SUCCESS);
  enable_driver(CUPTI_DRIVER_TRACE_CBID_cuMemAlloc_v2);
  uint64_t before = rpsim_call_count("cuMemAlloc_v2");
  for (int i = 0; i < 8; i++)
    assert_int_equal(pthread_create(&threads[i], NULL, allocate_often, &results[i]), 0);
  for (int i = 0; i < 100; i++) { /* as the others run: these come and go */
    enable_driver(CUPTI_DRIVER_TRACE_CBID_cuMemFree_v2);
    assert_int_equal(
        cuptiEnableCallback(0, subscriber, CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_DRIVER_TRACE_CBID_cuMemFree_v2),
        CUPTI_SUCCESS);
  }
  for (int i = 0; i < 8; i++) {
    assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_int_equal(results[i], CUDA_SUCCESS);
  }
  assert_int_equal(rpsim_call_count("cuMemAlloc_v2"), before + 1600);
  assert_true(enters >= 1600);
  assert_true(exits >= 1600 && exits <= enters);
}

static int mode_subscribe(void) {
  CUpti_SubscriberHandle handle;
  printf("%d\n", (int)cuptiSubscribe(&handle, callback, &log_count));
  return 0;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, subscribe, unsubscribe)

int main(int argc, char **argv) {
  const char *mode = argc > 1 ? argv[1] : "";
  if (strcmp(mode, "subscribe") == 0) return mode_subscribe();
  if (strcmp(mode, "injected") == 0) return mode_injected();
  if (strcmp(mode, "allocate-in-driver") == 0) return mode_forbidden(CUPTI_CB_DOMAIN_DRIVER_API, allocate);
  if (strcmp(mode, "allocate-in-resource") == 0) return mode_forbidden(CUPTI_CB_DOMAIN_RESOURCE, allocate);
  if (strcmp(mode, "synchronize-in-resource") == 0)
    return mode_forbidden(CUPTI_CB_DOMAIN_RESOURCE, synchronize_anywhere);
  const struct CMUnitTest tests[] = {
      TEST(test_one_subscriber),
      TEST(test_one_subscriber_of_both_libraries),
      TEST(test_old_subscriber_is_named),
      TEST(test_finalize_ends_everything),
      TEST(test_subscribe_error_on_demand),
      TEST(test_enabling),
      TEST(test_enabling_from_a_callback),
      TEST(test_names),
      TEST(test_allocation),
      TEST(test_launch_and_copy),
      TEST(test_per_thread_twin),
      TEST(test_result_can_be_changed_at_exit),
      TEST(test_calls_nest),
      TEST(test_synchronizing_in_a_driver_callback),
      TEST(test_changing_calls_abort),
      TEST(test_resources),
      TEST(test_synchronize_domain),
      TEST(test_runtime_domain),
      TEST(test_ids),
      TEST(test_subscribing_while_injected),
      TEST(test_calls_of_many_threads),
  };
  return cmocka_run_group_tests(tests, start, NULL);
}
