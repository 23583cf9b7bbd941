// Context, memory, times and results of the programs that measure. Owns the list of results.
#include "gpu_support.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

void rp_gpu_fail(const char *what, int code) {
  fprintf(stderr, "%s failed with %d\n", what, code);
  exit(1);
}

CUdevice rp_gpu_open(void) {
  CUdevice device;
  CUcontext context;
  RP_CHECK(cuInit(0));
  RP_CHECK(cuDeviceGet(&device, 0));
  RP_CHECK(cuDevicePrimaryCtxRetain(&context, device));
  RP_CHECK(cuCtxSetCurrent(context));
  return device;
}

uint64_t rp_gpu_used_bytes(void) {
  size_t free_bytes = 0, total_bytes = 0;
  RP_CHECK(cuMemGetInfo(&free_bytes, &total_bytes));
  return total_bytes - free_bytes;
}

double rp_gpu_now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static int compare(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

double rp_gpu_median(double *values, size_t count) {
  qsort(values, count, sizeof *values, compare);
  return count % 2 == 1 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

CUmemAllocationProp rp_gpu_properties(CUdevice device) {
  int shareable = 0;
  if (cuDeviceGetAttribute(&shareable, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
                           device) != CUDA_SUCCESS)
    shareable = 0;
  return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                               .requestedHandleTypes = shareable ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
                                                                 : CU_MEM_HANDLE_TYPE_NONE,
                               .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
}

size_t rp_gpu_granularity(const CUmemAllocationProp *properties) {
  size_t bytes = 0;
  RP_CHECK(cuMemGetAllocationGranularity(&bytes, properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  return bytes;
}

CUdeviceptr rp_gpu_map(CUmemGenericAllocationHandle handle, size_t bytes, CUdevice device) {
  CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
                            .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUdeviceptr address = 0;
  RP_CHECK(cuMemAddressReserve(&address, bytes, 0, 0, 0));
  RP_CHECK(cuMemMap(address, bytes, 0, handle, 0));
  RP_CHECK(cuMemSetAccess(address, bytes, &access, 1));
  return address;
}

void rp_gpu_unmap(CUdeviceptr address, size_t bytes) {
  RP_CHECK(cuMemUnmap(address, bytes));
  RP_CHECK(cuMemAddressFree(address, bytes));
}

// ---- results

static json_t *results;

static void add(const char *name, json_t *value, const char *unit) {
  if (results == NULL) results = json_array();
  json_t *entry = json_pack("{ss,so,ss}", "name", name, "value", value, "unit", unit);
  if (results == NULL || entry == NULL || json_array_append_new(results, entry) != 0)
    rp_gpu_fail("no memory for", 0);
}

void rp_gpu_number(const char *name, double value, const char *unit) {
  add(name, json_real(value), unit);
}

void rp_gpu_integer(const char *name, int64_t value, const char *unit) {
  add(name, json_integer(value), unit);
}

void rp_gpu_truth(const char *name, bool value) {
  add(name, json_boolean(value), "");
}

void rp_gpu_text(const char *name, const char *value) {
  add(name, json_string(value), "");
}

void rp_gpu_result(const char *name, CUresult result) {
  const char *text = NULL;
  if (cuGetErrorName(result, &text) != CUDA_SUCCESS || text == NULL) text = "an unknown error";
  rp_gpu_text(name, text);
}

int rp_gpu_print(void) {
  int status = json_dumpf(results, stdout, JSON_INDENT(1));
  putchar('\n');
  json_decref(results);
  return status == 0 && fflush(stdout) == 0 ? 0 : 1;
}
