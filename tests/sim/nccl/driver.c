/* Owns the way to the CUDA driver: dlopen and cuGetProcAddress, as a runtime linked statically into NCCL
 * would. */
#include "nccl_internal.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#define ENTRY(member, symbol)                                                                                \
  { symbol, offsetof(struct sim_driver, member), true }
#define OPTIONAL(member, symbol)                                                                             \
  { symbol, offsetof(struct sim_driver, member), false } /* NULL without it */

static const struct {
  const char *symbol;
  size_t offset;
  bool required;
} entries[] = {
    ENTRY(init, "cuInit"),
    ENTRY(device_get_count, "cuDeviceGetCount"),
    ENTRY(primary_retain, "cuDevicePrimaryCtxRetain"),
    ENTRY(context_get_current, "cuCtxGetCurrent"),
    ENTRY(context_set_current, "cuCtxSetCurrent"),
    ENTRY(context_get_device, "cuCtxGetDevice"),
    ENTRY(mem_alloc, "cuMemAlloc"),
    ENTRY(mem_free, "cuMemFree"),
    ENTRY(copy_to_device, "cuMemcpyHtoD"),
    ENTRY(stream_create, "cuStreamCreate"),
    ENTRY(stream_destroy, "cuStreamDestroy"),
    ENTRY(stream_synchronize, "cuStreamSynchronize"),
    ENTRY(stream_wait_event, "cuStreamWaitEvent"),
    OPTIONAL(stream_capture_status, "cuStreamIsCapturing"),
    ENTRY(event_create, "cuEventCreate"),
    ENTRY(event_destroy, "cuEventDestroy"),
    ENTRY(event_record, "cuEventRecord"),
    OPTIONAL(launch_host_func, "cuLaunchHostFunc"),
    ENTRY(library_load, "cuLibraryLoadData"),
    ENTRY(library_get_kernel, "cuLibraryGetKernel"),
    ENTRY(kernel_get_function, "cuKernelGetFunction"),
    ENTRY(launch_kernel, "cuLaunchKernelEx"),
    OPTIONAL(granularity, "cuMemGetAllocationGranularity"),
    OPTIONAL(address_reserve, "cuMemAddressReserve"),
    OPTIONAL(address_free, "cuMemAddressFree"),
    OPTIONAL(create, "cuMemCreate"),
    OPTIONAL(release, "cuMemRelease"),
    OPTIONAL(map, "cuMemMap"),
    OPTIONAL(unmap, "cuMemUnmap"),
    OPTIONAL(set_access, "cuMemSetAccess"),
};

/* Newer versions of the same names have other prototypes than those of struct sim_driver. */
#define PROTOTYPES_VERSION 12000

static struct sim_driver driver;
static bool driver_ready;
static pthread_once_t driver_once = PTHREAD_ONCE_INIT;

typedef CUresult (*get_proc_address)(const char *, void **, int, cuuint64_t,
                                     CUdriverProcAddressQueryResult *);

static bool resolve(get_proc_address get) {
  for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
    void *function = NULL;
    CUdriverProcAddressQueryResult status;
    CUresult result =
        get(entries[i].symbol, &function, PROTOTYPES_VERSION, CU_GET_PROC_ADDRESS_DEFAULT, &status);
    if (result != CUDA_SUCCESS) function = NULL;
    if (!function && entries[i].required) {
      sim_set_error("the driver has no %s", entries[i].symbol);
      return false;
    }
    memcpy((char *)&driver + entries[i].offset, &function, sizeof function);
  }
  return true;
}

static void load(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  if (!library) {
    sim_set_error("no CUDA driver: %s", dlerror());
    return;
  }
  get_proc_address get;
  void *symbol = dlsym(library, "cuGetProcAddress_v2");
  memcpy(&get, &symbol, sizeof get);
  symbol = dlsym(library, "rpsim_register_kernels");
  memcpy(&driver.register_kernels, &symbol, sizeof driver.register_kernels);
  symbol = dlsym(library, "rpsim_log_receive");
  memcpy(&driver.log_receive, &symbol, sizeof driver.log_receive);
  symbol = dlsym(library, "rpsim_log_transfer");
  memcpy(&driver.log_transfer, &symbol, sizeof driver.log_transfer);
  symbol = dlsym(library, "rpsim_backing_of");
  memcpy(&driver.backing_of, &symbol, sizeof driver.backing_of);
  if (!get || !driver.register_kernels || !driver.log_receive || !driver.log_transfer || !driver.backing_of) {
    sim_set_error("libcuda.so.1 is not the simulated driver");
    return;
  }
  if (!resolve(get) || driver.register_kernels(sim_kernels, SIM_KERNEL_COUNT) != 0) return;
  CUresult result = driver.init(0);
  if (result != CUDA_SUCCESS) sim_set_error("cuInit: CUDA error %d", (int)result);
  driver_ready = result == CUDA_SUCCESS;
}

const struct sim_driver *sim_driver(void) {
  pthread_once(&driver_once, load);
  return driver_ready ? &driver : NULL;
}

ncclResult_t sim_cuda_result(CUresult result, const char *what) {
  if (result == CUDA_SUCCESS) return ncclSuccess;
  sim_set_error("%s: CUDA error %d", what, (int)result);
  return ncclUnhandledCudaError;
}

bool sim_stream_captured(CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const struct sim_driver *found = sim_driver();
  if (found->stream_capture_status) (void)found->stream_capture_status(stream, &status);
  return status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
}
