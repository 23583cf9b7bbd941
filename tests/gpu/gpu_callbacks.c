/* What CUPTI's callbacks do and let do, where the documentation is silent. One question a process, since an
 * answer may be that it hangs:
 *
 *   gpu_callbacks init        what cuInit returns, and whether an injected library was loaded
 *   gpu_callbacks parameters  asks for a kernel's parameters inside the callback of its launch
 *   gpu_callbacks enter       changes an argument that is passed by value when a call begins
 *   gpu_callbacks exit        changes the address that a call gave when it ends
 *   gpu_callbacks sync        which calls tell that they waited
 *
 * Prints a list of {name, value, unit}. */
#include <cuda.h>
#include <cupti.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_kernels.h"
#include "gpu_support.h"

#define BYTES (4 * RP_MIB)

static struct {
  CUptiResult(CUPTIAPI *subscribe)(CUpti_SubscriberHandle *, CUpti_CallbackFunc, void *);
  CUptiResult(CUPTIAPI *enable_callback)(uint32_t, CUpti_SubscriberHandle, CUpti_CallbackDomain,
                                         CUpti_CallbackId);
  CUptiResult(CUPTIAPI *enable_domain)(uint32_t, CUpti_SubscriberHandle, CUpti_CallbackDomain);
} cupti;
static CUpti_SubscriberHandle subscriber;

static void subscribe(CUpti_CallbackFunc callback) {
  void *library = dlopen("libcupti.so.13", RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) library = dlopen("libcupti.so.12", RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) rp_gpu_fail("dlopen of libcupti", 0);
  *(void **)&cupti.subscribe = dlsym(library, "cuptiSubscribe");
  *(void **)&cupti.enable_callback = dlsym(library, "cuptiEnableCallback");
  *(void **)&cupti.enable_domain = dlsym(library, "cuptiEnableDomain");
  RP_CHECK(cupti.subscribe(&subscriber, callback, NULL));
}

static void enable(CUpti_CallbackId id) {
  RP_CHECK(cupti.enable_callback(1, subscriber, CUPTI_CB_DOMAIN_DRIVER_API, id));
}

/* ---- injection ---- */

static void init(void) {
  rp_gpu_result("cuInit", cuInit(0));
  rp_gpu_truth("the injected library was loaded", getenv("RP_GPU_INJECTED") != NULL);
}

/* ---- parameters ---- */

static int asked;
static CUresult parameter_result;
static size_t parameter_offset, parameter_bytes;

static void CUPTIAPI ask_parameters(void *user, CUpti_CallbackDomain domain, CUpti_CallbackId id,
                                    const void *data) {
  const CUpti_CallbackData *call = data;
  (void)user;
  (void)domain;
  (void)id;
  if (call->callbackSite != CUPTI_API_ENTER || asked++ != 0) return;
  const cuLaunchKernel_params *parameters = call->functionParams;
  parameter_result = cuFuncGetParamInfo(parameters->f, 4, &parameter_offset, &parameter_bytes);
}

static void parameters(void) {
  int n = 0, m = 0;
  CUdeviceptr p = 0;
  void *arguments[] = {&p, &p, &p, &p, &n, &m};
  CUfunction function = rp_gpu_kernel(RP_GPU_NOTHING);
  subscribe(ask_parameters);
  enable(CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel);
  RP_CHECK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL));
  RP_CHECK(cuCtxSynchronize());
  rp_gpu_integer("callbacks", asked, "");
  rp_gpu_result("cuFuncGetParamInfo inside one", parameter_result);
  rp_gpu_integer("offset of the fifth parameter", (int64_t)parameter_offset, "bytes");
  rp_gpu_integer("its size", (int64_t)parameter_bytes, "bytes");
}

/* ---- changing what a call takes or gives ---- */

static CUdeviceptr given;
#define WRONG ((CUdeviceptr)0x1234000)

static void CUPTIAPI change(void *user, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void *data) {
  const CUpti_CallbackData *call = data;
  (void)user;
  (void)domain;
  (void)id;
  cuMemAlloc_v2_params *allocation = (cuMemAlloc_v2_params *)call->functionParams;
  if (user == NULL && call->callbackSite == CUPTI_API_ENTER && given == 0) allocation->bytesize = 2 * BYTES;
  if (call->callbackSite == CUPTI_API_EXIT && given == WRONG) {
    given = *allocation->dptr;
    *allocation->dptr = WRONG;
  }
}

static void change_argument(void) {
  CUdeviceptr memory = 0, base = 0;
  size_t bytes = 0;
  subscribe(change);
  enable(CUPTI_DRIVER_TRACE_CBID_cuMemAlloc_v2);
  RP_CHECK(cuMemAlloc(&memory, BYTES));
  RP_CHECK(cuMemGetAddressRange(&base, &bytes, memory));
  rp_gpu_truth("a size changed when the call begins is what is allocated", bytes == 2 * BYTES);
  rp_gpu_integer("allocated", (int64_t)bytes, "bytes");
  rp_gpu_integer("asked for", (int64_t)BYTES, "bytes");
}

static void change_answer(void) {
  CUdeviceptr memory = 0;
  given = WRONG;
  subscribe(change);
  enable(CUPTI_DRIVER_TRACE_CBID_cuMemAlloc_v2);
  RP_CHECK(cuMemAlloc(&memory, BYTES));
  rp_gpu_truth("an address changed when the call ends is what the caller gets", memory == WRONG);
}

/* ---- waits ---- */

static int stream_waits, context_waits;

static void CUPTIAPI count_waits(void *user, CUpti_CallbackDomain domain, CUpti_CallbackId id,
                                 const void *data) {
  (void)user;
  (void)data;
  if (domain != CUPTI_CB_DOMAIN_SYNCHRONIZE) return;
  stream_waits += id == CUPTI_CBID_SYNCHRONIZE_STREAM_SYNCHRONIZED;
  context_waits += id == CUPTI_CBID_SYNCHRONIZE_CONTEXT_SYNCHRONIZED;
}

static void tell_waits(const char *call) {
  char text[64];
  snprintf(text, sizeof text, "%d of a stream, %d of the context", stream_waits, context_waits);
  rp_gpu_text(call, text);
  stream_waits = context_waits = 0;
}

static void sync_calls(void) {
  CUdeviceptr memory = 0, other = 0;
  CUevent event;
  void *pageable = calloc(1, BYTES);
  if (pageable == NULL) rp_gpu_fail("no memory for host", 0);
  RP_CHECK(cuMemAlloc(&memory, BYTES));
  RP_CHECK(cuMemAlloc(&other, BYTES));
  RP_CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  subscribe(count_waits);
  RP_CHECK(cupti.enable_domain(1, subscriber, CUPTI_CB_DOMAIN_SYNCHRONIZE));
  RP_CHECK(cuCtxSynchronize());
  tell_waits("cuCtxSynchronize");
  RP_CHECK(cuStreamSynchronize(NULL));
  tell_waits("cuStreamSynchronize");
  RP_CHECK(cuEventRecord(event, NULL));
  RP_CHECK(cuEventSynchronize(event));
  tell_waits("cuEventSynchronize");
  RP_CHECK(cuMemcpyHtoD(memory, pageable, BYTES));
  tell_waits("cuMemcpyHtoD, pageable");
  RP_CHECK(cuMemcpyDtoH(pageable, memory, BYTES));
  tell_waits("cuMemcpyDtoH, pageable");
  RP_CHECK(cuMemcpyDtoHAsync(pageable, memory, BYTES, NULL));
  tell_waits("cuMemcpyDtoHAsync, pageable");
  RP_CHECK(cuMemcpyDtoD(other, memory, BYTES));
  tell_waits("cuMemcpyDtoD");
  RP_CHECK(cuMemsetD8(memory, 0, BYTES));
  tell_waits("cuMemsetD8");
  RP_CHECK(cuMemFree(other));
  tell_waits("cuMemFree");
  RP_CHECK(cuMemFree(memory));
  free(pageable);
}

int main(int argc, char **argv) {
  const char *mode = argc == 2 ? argv[1] : "";
  if (!strcmp(mode, "init")) {
    init();
    return rp_gpu_print();
  }
  if (strcmp(mode, "parameters") != 0 && strcmp(mode, "enter") != 0 && strcmp(mode, "exit") != 0 &&
      strcmp(mode, "sync") != 0) {
    fprintf(stderr, "usage: gpu_callbacks init | parameters | enter | exit | sync\n");
    return 2;
  }
  (void)rp_gpu_open();
  if (!strcmp(mode, "parameters")) parameters();
  if (!strcmp(mode, "enter")) change_argument();
  if (!strcmp(mode, "exit")) change_answer();
  if (!strcmp(mode, "sync")) sync_calls();
  return rp_gpu_print();
}
