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
  cudaError_t error = cudaSuccess;
  call->driver = rt_driver;
  if (call->needs == RT_NEEDS_DRIVER || call->needs == RT_NEEDS_CONTEXT)
    error = rt_driver_get(per_thread, &rt_driver);
  rt_callback_enter(call);
  if (!error && call->needs == RT_NEEDS_CONTEXT) error = rt_context_ensure();
  return error;
}

static cudaError_t call_end(struct rt_call *call, cudaError_t result) {
  rt_callback_exit(call, result);
  rt_driver = call->driver;
  if (result && call->needs != RT_NEEDS_ERROR) rt_last_error = result;
  return result;
}

#define RT_UNPAREN(...) __VA_ARGS__
#define RT_TRACED(traced_name, params_)                                                                      \
  { .cbid = CUPTI_RUNTIME_TRACE_CBID_##traced_name, .name = #traced_name, .params = params_ }
#define RT_DEFINE(needs_, name_, exported, traced_name, per_thread, parameters, arguments)                   \
  RT_EXPORT cudaError_t exported parameters {                                                                \
    traced_name##_params params = {RT_UNPAREN arguments};                                                    \
    struct rt_call call = {.needs = RT_NEEDS_##needs_, .traced = RT_TRACED(traced_name, &params)};           \
    cudaError_t result = call_begin(&call, per_thread);                                                      \
    return call_end(&call, result ? result : impl_##name_ arguments);                                        \
  }
#define RT_CALL(needs, name, traced, parameters, arguments)                                                  \
  RT_DEFINE(needs, name, name, traced, false, parameters, arguments)
#define RT_TWIN(needs, name, suffix, traced, traced_twin, parameters, arguments)                             \
  RT_DEFINE(needs, name, name, traced, false, parameters, arguments)                                         \
  RT_DEFINE(needs, name, name##_##suffix, traced_twin, true, parameters, arguments)
#define RT_VOID(needs_, name_, traced_name)                                                                  \
  RT_EXPORT cudaError_t name_(void) {                                                                        \
    struct rt_call call = {.needs = RT_NEEDS_##needs_, .traced = RT_TRACED(traced_name, NULL)};              \
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
