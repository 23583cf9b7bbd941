/* Owns the exported entry points of the simulated runtime and the thread's last error. */
#include "runtime.h"

#include <cupti_runtime_cbid.h>
#include <generated_cuda_runtime_api_meta.h>

#include "registration.h"

/* The compiler's own calls have ids but no params structs in the header; these are in the order of their
 * prototypes. */
typedef struct {
  cudaKernel_t kernel;
  dim3 gridDim, blockDim;
  void **args;
  size_t sharedMem;
  cudaStream_t stream;
} __cudaLaunchKernel_v13000_params, __cudaLaunchKernel_ptsz_v13000_params;
typedef struct {
  cudaKernel_t *kernel;
  const void *hostFun;
} __cudaGetKernel_v13000_params;

_Thread_local cudaError_t rt_last_error;

/* The context is ensured after ENTER, so that a tool sees the driver calls beneath the runtime call that
 * caused them. */
static cudaError_t call_begin(struct rt_call *call, bool per_thread) {
  call->driver = rt_driver;
  if (call->needs == RT_NEEDS_DRIVER || call->needs == RT_NEEDS_CONTEXT)
    call->result = rt_driver_get(per_thread, &rt_driver);
  rt_callback_enter(call);
  if (!call->result && call->needs == RT_NEEDS_CONTEXT) call->result = rt_context_ensure();
  return call->result;
}

static cudaError_t call_end(struct rt_call *call, cudaError_t result) {
  call->result = result;
  rt_callback_exit(call);
  rt_driver = call->driver;
  if (result && call->needs != RT_NEEDS_ERROR) rt_last_error = result;
  return result;
}

#define RT_UNPAREN(...) __VA_ARGS__
#define RT_DEFINE(needs_, name_, exported, traced, per_thread, parameters, arguments)                        \
  RT_EXPORT cudaError_t exported parameters {                                                                \
    traced##_params params = {RT_UNPAREN arguments};                                                         \
    struct rt_call call = {.needs = RT_NEEDS_##needs_,                                                       \
                           .id = CUPTI_RUNTIME_TRACE_CBID_##traced,                                          \
                           .name = #exported,                                                                \
                           .params = &params};                                                               \
    cudaError_t result = call_begin(&call, per_thread);                                                      \
    return call_end(&call, result ? result : impl_##name_ arguments);                                        \
  }
#define RT_CALL(needs, name, traced, parameters, arguments)                                                  \
  RT_DEFINE(needs, name, name, traced, false, parameters, arguments)
#define RT_TWIN(needs, name, suffix, traced, traced_twin, parameters, arguments)                             \
  RT_DEFINE(needs, name, name, traced, false, parameters, arguments)                                         \
  RT_DEFINE(needs, name, name##_##suffix, traced_twin, true, parameters, arguments)
#define RT_VOID(needs_, name_, traced)                                                                       \
  RT_EXPORT cudaError_t name_(void) {                                                                        \
    struct rt_call call = {                                                                                  \
        .needs = RT_NEEDS_##needs_, .id = CUPTI_RUNTIME_TRACE_CBID_##traced, .name = #name_};                \
    cudaError_t result = call_begin(&call, false);                                                           \
    return call_end(&call, result ? result : impl_##name_());                                                \
  }
#include "entry.def"

cudaError_t impl_cudaGetLastError(void) {
  cudaError_t error = rt_last_error;
  rt_last_error = cudaSuccess;
  return error;
}

cudaError_t impl_cudaPeekAtLastError(void) {
  return rt_last_error;
}
