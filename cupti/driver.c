/* The driver: the mapped copy of libcuda.so.1, and the few queries that are asked of it. Owns the table of
 * its function pointers and the thread-local guard that marks the agent's own queries. */
#include "cupti/cuda_side.h"

#include <cuda.h>
#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cupti/internal.h"

struct rp_driver_table rp_driver;

static pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic bool opened;
static char driver_path[PATH_MAX];
static _Thread_local uint8_t query_depth __attribute__((tls_model("initial-exec")));

static void remember_path(void *handle) {
  struct link_map *map = NULL;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map && map->l_name)
    snprintf(driver_path, sizeof driver_path, "%s", map->l_name);
}

static void fill_table(void *handle) {
  *(void **)&rp_driver.driver_get_version = dlsym(handle, "cuDriverGetVersion");
  *(void **)&rp_driver.ctx_get_device = dlsym(handle, "cuCtxGetDevice");
  *(void **)&rp_driver.ctx_get_current = dlsym(handle, "cuCtxGetCurrent");
  *(void **)&rp_driver.pointer_get_attributes = dlsym(handle, "cuPointerGetAttributes");
  *(void **)&rp_driver.device_get_count = dlsym(handle, "cuDeviceGetCount");
  *(void **)&rp_driver.device_get = dlsym(handle, "cuDeviceGet");
  *(void **)&rp_driver.device_get_name = dlsym(handle, "cuDeviceGetName");
  *(void **)&rp_driver.device_total_mem = dlsym(handle, "cuDeviceTotalMem_v2");
  *(void **)&rp_driver.func_get_param_info = dlsym(handle, "cuFuncGetParamInfo");
  *(void **)&rp_driver.kernel_get_param_info = dlsym(handle, "cuKernelGetParamInfo");
  *(void **)&rp_driver.func_get_name = dlsym(handle, "cuFuncGetName");
  *(void **)&rp_driver.kernel_get_name = dlsym(handle, "cuKernelGetName");
  *(void **)&rp_driver.stream_is_capturing = dlsym(handle, "cuStreamIsCapturing");
}

rp_status rp_driver_open(void) {
  if (atomic_load_explicit(&opened, memory_order_acquire)) return RP_OK;
  pthread_mutex_lock(&open_lock);
  if (!atomic_load_explicit(&opened, memory_order_relaxed)) {
    void *handle = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
    if (handle) {
      remember_path(handle);
      fill_table(handle);
      atomic_store_explicit(&opened, true, memory_order_release);
    }
  }
  pthread_mutex_unlock(&open_lock);
  return atomic_load_explicit(&opened, memory_order_acquire) ? RP_OK : RP_ERROR_UNAVAILABLE;
}

/* Queries never go looking for the driver: rp_driver_open was called at attach, from within the driver. */
static bool ready(void) {
  return atomic_load_explicit(&opened, memory_order_acquire);
}

const char *rp_driver_path(void) {
  return ready() ? driver_path : "";
}

int rp_driver_major_from_path(const char *path) {
  char real[PATH_MAX];
  const char *name = realpath(path, real) ? real : path;
  const char *slash = strrchr(name, '/');
  name = slash ? slash + 1 : name;
  static const char prefix[] = "libcuda.so.";
  if (strncmp(name, prefix, sizeof prefix - 1) != 0) return 0;
  long branch = strtol(name + sizeof prefix - 1, NULL, 10);
  if (branch >= 580) return 13;
  if (branch >= 525) return 12;
  return branch >= 450 ? 11 : 0; /* "libcuda.so.1" itself tells nothing */
}

bool rp_driver_in_query(void) {
  return query_depth != 0;
}

void rp_query_begin(void) {
  query_depth++;
}

void rp_query_end(void) {
  query_depth--;
}

int rp_driver_version(void) {
  int version = 0;
  if (!ready() || !rp_driver.driver_get_version) return 0;
  rp_query_begin();
  if (rp_driver.driver_get_version(&version) != CUDA_SUCCESS) version = 0;
  rp_query_end();
  return version;
}

int rp_driver_current_device(void) {
  CUdevice device = -1;
  if (!ready() || !rp_driver.ctx_get_device) return -1;
  rp_query_begin();
  if (rp_driver.ctx_get_device(&device) != CUDA_SUCCESS) device = -1;
  rp_query_end();
  return device;
}

uint64_t rp_driver_current_context(void) {
  CUcontext context = NULL;
  if (!ready() || !rp_driver.ctx_get_current) return 0;
  rp_query_begin();
  if (rp_driver.ctx_get_current(&context) != CUDA_SUCCESS) context = NULL;
  rp_query_end();
  return (uint64_t)(uintptr_t)context;
}

/* CU_MEMORYTYPE_*, 0 for memory that the driver does not know: plain memory of the host. */
static bool plain_memory(uint64_t address, unsigned *type) {
  CUpointer_attribute wanted[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED};
  uint64_t managed = 0; /* wider than any driver writes */
  *type = 0;
  void *out[] = {type, &managed};
  return rp_driver.pointer_get_attributes(2, wanted, out, (CUdeviceptr)address) == CUDA_SUCCESS && !managed;
}

enum rp_cuda_copy rp_driver_copy_kind(uint64_t to, uint64_t from) {
  unsigned to_type, from_type;
  if (!ready() || !rp_driver.pointer_get_attributes) return RP_CUDA_COPY_UNKNOWN;
  rp_query_begin();
  bool known = plain_memory(to, &to_type) && plain_memory(from, &from_type);
  rp_query_end();
  if (!known) return RP_CUDA_COPY_UNKNOWN;
  if (from_type == CU_MEMORYTYPE_DEVICE && to_type != CU_MEMORYTYPE_DEVICE) return RP_CUDA_COPY_TO_HOST;
  if (from_type == CU_MEMORYTYPE_HOST && to_type == CU_MEMORYTYPE_DEVICE)
    return RP_CUDA_COPY_PINNED_TO_DEVICE;
  return RP_CUDA_COPY_UNKNOWN;
}

bool rp_driver_stream_capturing(uint64_t stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (!ready() || !rp_driver.stream_is_capturing) return false;
  rp_query_begin();
  CUresult result = rp_driver.stream_is_capturing((CUstream)(uintptr_t)stream, &status);
  rp_query_end();
  return result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

int rp_driver_device_count(void) {
  int count = 0;
  if (!ready() || !rp_driver.device_get_count) return 0;
  rp_query_begin();
  if (rp_driver.device_get_count(&count) != CUDA_SUCCESS) count = 0;
  rp_query_end();
  return count;
}

rp_status rp_driver_device_info(int ordinal, char *name, size_t name_size, uint64_t *total_bytes) {
  if (!ready() || !rp_driver.device_get || name_size == 0) return RP_ERROR_UNAVAILABLE;
  CUdevice device;
  size_t bytes = 0;
  rp_query_begin();
  CUresult result = rp_driver.device_get(&device, ordinal);
  name[0] = '\0';
  if (result == CUDA_SUCCESS && rp_driver.device_get_name)
    result = rp_driver.device_get_name(name, (int)name_size, device);
  if (result == CUDA_SUCCESS && rp_driver.device_total_mem)
    result = rp_driver.device_total_mem(&bytes, device);
  rp_query_end();
  if (result != CUDA_SUCCESS) return RP_ERROR_UNAVAILABLE;
  *total_bytes = bytes;
  return RP_OK;
}

bool rp_driver_function_name(uint64_t function, char *out, size_t out_size) {
  const char *name = NULL;
  CUresult result = CUDA_ERROR_NOT_FOUND;
  if (!ready()) return false;
  rp_query_begin();
  if (rp_driver.func_get_name) result = rp_driver.func_get_name(&name, (CUfunction)(uintptr_t)function);
  if ((result != CUDA_SUCCESS || !name) && rp_driver.kernel_get_name)
    result = rp_driver.kernel_get_name(&name, (CUkernel)(uintptr_t)function);
  rp_query_end();
  if (result != CUDA_SUCCESS || !name) return false;
  snprintf(out, out_size, "%s", name);
  return true;
}
