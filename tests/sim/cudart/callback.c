/* Owns the runtime's side of CUPTI's callbacks: they are raised through the simulated driver, which knows the
 * subscriber. A driver without that interface has no tools as far as this runtime is concerned. */
#include "runtime.h"

#include <cupti_runtime_cbid.h>
#include <generated_cuda_runtime_api_meta.h>
#include <pthread.h>
#include <string.h>

static struct {
  __typeof__(&rpsim_tools_runtime_enter) enter;
  __typeof__(&rpsim_tools_runtime_exit) exit;
  const struct rpsim_tools *table;
} tools;
static pthread_once_t tools_once = PTHREAD_ONCE_INIT;

static void tools_find(void) {
  void *enter = rt_driver_symbol("rpsim_tools_runtime_enter");
  void *exit = rt_driver_symbol("rpsim_tools_runtime_exit");
  if (!enter || !exit) return;
  memcpy(&tools.enter, &enter, sizeof enter);
  memcpy(&tools.exit, &exit, sizeof exit);
  void *get = rt_driver_symbol("rpsim_tools_get");
  __typeof__(&rpsim_tools_get) table_get = NULL;
  memcpy(&table_get, &get, sizeof get);
  if (table_get) tools.table = table_get();
}

const struct rpsim_tools *rt_tools(void) {
  pthread_once(&tools_once, tools_find);
  return tools.table;
}

/* The kernel that a launch names, as its callback's symbolName. */
static const char *launched_name(const struct rpsim_tools_call *traced) {
  switch (traced->cbid) {
  case CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_v7000:
  case CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_ptsz_v7000:
    return rt_kernel_name(((const cudaLaunchKernel_v7000_params *)traced->params)->func);
  case CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernelExC_v11060:
  case CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernelExC_ptsz_v11060:
    return rt_kernel_name(((const cudaLaunchKernelExC_v11060_params *)traced->params)->func);
  case CUPTI_RUNTIME_TRACE_CBID_cudaLaunchCooperativeKernel_v9000:
  case CUPTI_RUNTIME_TRACE_CBID_cudaLaunchCooperativeKernel_ptsz_v9000:
    return rt_kernel_name(((const cudaLaunchCooperativeKernel_v9000_params *)traced->params)->func);
  case CUPTI_RUNTIME_TRACE_CBID___cudaLaunchKernel_v13000:
  case CUPTI_RUNTIME_TRACE_CBID___cudaLaunchKernel_ptsz_v13000:
    return rt_kernel_name(*(const cudaKernel_t *)traced->params);
  default:
    return NULL;
  }
}

void rt_callback_enter(struct rt_call *call) {
  pthread_once(&tools_once, tools_find);
  if (!tools.enter) return;
  call->traced.symbol = launched_name(&call->traced);
  tools.enter(&call->traced);
}

/* A tool gets a copy of the result: writing to it changes nothing, as with the real runtime. */
void rt_callback_exit(struct rt_call *call, cudaError_t result) {
  if (tools.exit) tools.exit(&call->traced, &result);
}
