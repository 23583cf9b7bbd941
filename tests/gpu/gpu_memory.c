/* What virtual memory management costs and does on this device:
 *
 *   gpu_memory info                    the device and the driver
 *   gpu_memory costs SMALL_MIB...      create, map, set-access, unmap, release, for these sizes
 *   gpu_memory pool BUFFERS SLOTS MIB  a whole pool: addresses for all buffers over the slots, in one go
 *   gpu_memory unmap MIB               does unmapping wait for a kernel that has nothing to do with it?
 *   gpu_memory bandwidth MIB           a kernel's copy on plain memory and on memory with two addresses
 *   gpu_memory attributes MIB          what the driver says of memory with two addresses
 *   gpu_memory kernels all|early       the text of the kernels, on any machine
 *
 * Prints a list of {name, value, unit}. Times are medians. */
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_kernels.h"
#include "gpu_support.h"

#define ROUNDS 21
#define US 1e3 /* nanoseconds */

static void info(CUdevice device) {
  char name[256] = "", capability[32];
  size_t total = 0;
  int major = 0, minor = 0, driver = 0, vmm = 0;
  CUmemAllocationProp properties = rp_gpu_properties(device);
  RP_CHECK(cuDeviceGetName(name, (int)sizeof name, device));
  RP_CHECK(cuDeviceTotalMem(&total, device));
  RP_CHECK(cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device));
  RP_CHECK(cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device));
  RP_CHECK(cuDeviceGetAttribute(&vmm, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device));
  RP_CHECK(cuDriverGetVersion(&driver));
  snprintf(capability, sizeof capability, "%d.%d", major, minor);
  rp_gpu_text("device", name);
  rp_gpu_integer("device_bytes", (int64_t)total, "bytes");
  rp_gpu_text("compute_capability", capability);
  rp_gpu_integer("driver", driver, "");
  rp_gpu_truth("virtual memory management", vmm != 0);
  rp_gpu_integer("granularity", (int64_t)rp_gpu_granularity(&properties), "bytes");
  rp_gpu_integer("in use", (int64_t)rp_gpu_used_bytes(), "bytes");
}

/* ---- costs ---- */

enum cost { CREATE, RESERVE, MAP, ACCESS, UNMAP, ADDRESS_FREE, RELEASE, COSTS };
static const char *const cost_names[COSTS] = {"create", "reserve",      "map",    "set access",
                                              "unmap",  "address free", "release"};

/* One round at one size: nanoseconds of each call. */
static void time_once(CUdevice device, size_t bytes, double *ns) {
  CUmemAllocationProp properties = rp_gpu_properties(device);
  CUmemAccessDesc access = {.location = properties.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr address = 0;
  double at[COSTS + 1];
  at[CREATE] = rp_gpu_now_ns();
  RP_CHECK(cuMemCreate(&handle, bytes, &properties, 0));
  at[RESERVE] = rp_gpu_now_ns();
  RP_CHECK(cuMemAddressReserve(&address, bytes, 0, 0, 0));
  at[MAP] = rp_gpu_now_ns();
  RP_CHECK(cuMemMap(address, bytes, 0, handle, 0));
  at[ACCESS] = rp_gpu_now_ns();
  RP_CHECK(cuMemSetAccess(address, bytes, &access, 1));
  at[UNMAP] = rp_gpu_now_ns();
  RP_CHECK(cuMemUnmap(address, bytes));
  at[ADDRESS_FREE] = rp_gpu_now_ns();
  RP_CHECK(cuMemAddressFree(address, bytes));
  at[RELEASE] = rp_gpu_now_ns();
  RP_CHECK(cuMemRelease(handle));
  at[COSTS] = rp_gpu_now_ns();
  for (int i = 0; i < COSTS; i++)
    ns[i] = at[i + 1] - at[i];
}

static double time_plain_allocation(size_t bytes) {
  double ns[ROUNDS];
  for (int i = 0; i < ROUNDS; i++) {
    CUdeviceptr memory = 0;
    double begin = rp_gpu_now_ns();
    RP_CHECK(cuMemAlloc(&memory, bytes));
    ns[i] = rp_gpu_now_ns() - begin;
    RP_CHECK(cuMemFree(memory));
  }
  return rp_gpu_median(ns, ROUNDS);
}

static void costs(CUdevice device, int count, char **sizes) {
  for (int s = 0; s < count; s++) {
    size_t bytes = strtoul(sizes[s], NULL, 10) * RP_MIB;
    double ns[COSTS][ROUNDS], one[COSTS];
    char name[64];
    for (int round = -1; round < ROUNDS; round++) { /* the first one warms up */
      time_once(device, bytes, one);
      for (int i = 0; i < COSTS && round >= 0; i++)
        ns[i][round] = one[i];
    }
    for (int i = 0; i < COSTS; i++) {
      snprintf(name, sizeof name, "%s %s MiB", cost_names[i], sizes[s]);
      rp_gpu_number(name, rp_gpu_median(ns[i], ROUNDS) / US, "us");
    }
    snprintf(name, sizeof name, "cuMemAlloc %s MiB", sizes[s]);
    rp_gpu_number(name, time_plain_allocation(bytes) / US, "us");
  }
}

/* ---- a pool ---- */

static void pool(CUdevice device, size_t buffers, size_t slots, size_t bytes) {
  CUmemAllocationProp properties = rp_gpu_properties(device);
  CUmemGenericAllocationHandle *handles = calloc(slots, sizeof *handles);
  CUdeviceptr *addresses = calloc(buffers, sizeof *addresses);
  if (handles == NULL || addresses == NULL) rp_gpu_fail("no memory for the pool", 0);
  uint64_t before = rp_gpu_used_bytes();
  double begin = rp_gpu_now_ns();
  for (size_t i = 0; i < slots; i++)
    RP_CHECK(cuMemCreate(&handles[i], bytes, &properties, 0));
  double created = rp_gpu_now_ns();
  for (size_t i = 0; i < buffers; i++)
    addresses[i] = rp_gpu_map(handles[i % slots], bytes, device);
  double mapped = rp_gpu_now_ns();
  uint64_t used = rp_gpu_used_bytes() - before;
  double measured = rp_gpu_now_ns();
  for (size_t i = 0; i < buffers; i++)
    rp_gpu_unmap(addresses[i], bytes);
  for (size_t i = 0; i < slots; i++)
    RP_CHECK(cuMemRelease(handles[i]));
  double ended = rp_gpu_now_ns();
  rp_gpu_number("create the slots", (created - begin) / 1e6, "ms");
  rp_gpu_number("map all buffers", (mapped - created) / 1e6, "ms");
  rp_gpu_number("unmap and release", (ended - measured) / 1e6, "ms");
  rp_gpu_integer("in use for it", (int64_t)used, "bytes");
  rp_gpu_integer("size of the slots", (int64_t)(slots * bytes), "bytes");
  rp_gpu_integer("left after it", (int64_t)(rp_gpu_used_bytes() - before), "bytes");
  free(handles);
  free(addresses);
}

/* ---- does unmapping wait ---- */

static void spin(CUstream stream, uint64_t ns) {
  void *arguments[] = {&ns};
  RP_CHECK(cuLaunchKernel(rp_gpu_kernel(RP_GPU_SPIN), 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL));
}

static void unmap(CUdevice device, size_t bytes) {
  const uint64_t spin_ns = 200000000;
  CUmemAllocationProp properties = rp_gpu_properties(device);
  CUmemGenericAllocationHandle handle = 0;
  CUstream stream;
  double alone[ROUNDS];
  RP_CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  RP_CHECK(cuMemCreate(&handle, bytes, &properties, 0));
  for (int i = 0; i < ROUNDS; i++) {
    CUdeviceptr address = rp_gpu_map(handle, bytes, device);
    double begin = rp_gpu_now_ns();
    RP_CHECK(cuMemUnmap(address, bytes));
    alone[i] = rp_gpu_now_ns() - begin;
    RP_CHECK(cuMemAddressFree(address, bytes));
  }
  spin(stream, 1000); /* compiles it */
  RP_CHECK(cuStreamSynchronize(stream));
  CUdeviceptr address = rp_gpu_map(handle, bytes, device);
  spin(stream, spin_ns);
  double begin = rp_gpu_now_ns();
  RP_CHECK(cuMemUnmap(address, bytes));
  double unmapped = rp_gpu_now_ns();
  bool running = cuStreamQuery(stream) == CUDA_ERROR_NOT_READY;
  RP_CHECK(cuMemAddressFree(address, bytes));
  CUdeviceptr other = rp_gpu_map(handle, bytes, device);
  double mapped = rp_gpu_now_ns();
  bool still_running = cuStreamQuery(stream) == CUDA_ERROR_NOT_READY;
  RP_CHECK(cuStreamSynchronize(stream));
  rp_gpu_number("unmap alone", rp_gpu_median(alone, ROUNDS) / US, "us");
  rp_gpu_number("unmap beside a kernel of 200 ms", (unmapped - begin) / US, "us");
  rp_gpu_truth("the kernel still ran after it", running);
  rp_gpu_number("address free and map after that", (mapped - unmapped) / US, "us");
  rp_gpu_truth("the kernel still ran after those", still_running);
  rp_gpu_unmap(other, bytes);
  RP_CHECK(cuMemRelease(handle));
}

/* ---- bandwidth ---- */

/* Median milliseconds of a copy by a kernel, from CUDA events. */
static double time_copy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  CUfunction copy = rp_gpu_kernel(RP_GPU_COPY);
  uint64_t quads = bytes / 16;
  void *arguments[] = {&to, &from, &quads};
  double ms[ROUNDS];
  CUevent begin, end;
  RP_CHECK(cuEventCreate(&begin, CU_EVENT_DEFAULT));
  RP_CHECK(cuEventCreate(&end, CU_EVENT_DEFAULT));
  for (int round = -3; round < ROUNDS; round++) { /* the first ones warm up */
    float elapsed = 0;
    RP_CHECK(cuEventRecord(begin, NULL));
    RP_CHECK(cuLaunchKernel(copy, 2048, 1, 1, 256, 1, 1, 0, NULL, arguments, NULL));
    RP_CHECK(cuEventRecord(end, NULL));
    RP_CHECK(cuEventSynchronize(end));
    RP_CHECK(cuEventElapsedTime(&elapsed, begin, end));
    if (round >= 0) ms[round] = elapsed;
  }
  RP_CHECK(cuEventDestroy(begin));
  RP_CHECK(cuEventDestroy(end));
  return rp_gpu_median(ms, ROUNDS);
}

static void bandwidth(CUdevice device, size_t bytes) {
  CUmemAllocationProp properties = rp_gpu_properties(device);
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr plain_from = 0, plain_to = 0;
  RP_CHECK(cuMemAlloc(&plain_from, bytes));
  RP_CHECK(cuMemAlloc(&plain_to, bytes));
  RP_CHECK(cuMemsetD8(plain_from, 1, bytes));
  double plain = time_copy(plain_to, plain_from, bytes);
  RP_CHECK(cuMemCreate(&handle, bytes, &properties, 0));
  CUdeviceptr first = rp_gpu_map(handle, bytes, device);
  double single = time_copy(first, plain_from, bytes);
  CUdeviceptr second = rp_gpu_map(handle, bytes, device);
  double read = time_copy(plain_to, second, bytes), write = time_copy(first, plain_from, bytes);
  double again = time_copy(plain_to, plain_from, bytes);
  rp_gpu_number("plain memory", 2 * (double)bytes / plain / 1e6, "GB/s");
  rp_gpu_number("mapped memory, one address, over plain", plain / single, "");
  rp_gpu_number("reading memory with two addresses, over plain", plain / read, "");
  rp_gpu_number("writing memory with two addresses, over plain", plain / write, "");
  rp_gpu_number("plain memory again, over plain", plain / again, "");
  rp_gpu_unmap(first, bytes);
  rp_gpu_unmap(second, bytes);
  RP_CHECK(cuMemRelease(handle));
  RP_CHECK(cuMemFree(plain_from));
  RP_CHECK(cuMemFree(plain_to));
}

/* ---- attributes ---- */

static uint64_t block_of(CUdeviceptr address) {
  uint64_t block = 0;
  RP_CHECK(cuPointerGetAttribute(&block, CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, address));
  return block;
}

static void ask_pointer(CUdeviceptr address, size_t bytes) {
  CUcontext context = NULL;
  CUdeviceptr base = 0, start = 0;
  size_t size = 0, range = 0;
  unsigned type = 0, sync = 1;
  CUresult result = cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, address);
  rp_gpu_result("CONTEXT", result);
  rp_gpu_truth("CONTEXT is NULL", context == NULL);
  RP_CHECK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address));
  rp_gpu_truth("MEMORY_TYPE is device", type == CU_MEMORYTYPE_DEVICE);
  RP_CHECK(cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, address + bytes / 2));
  RP_CHECK(cuPointerGetAttribute(&range, CU_POINTER_ATTRIBUTE_RANGE_SIZE, address + bytes / 2));
  rp_gpu_truth("RANGE is the reservation", start == address && range == bytes);
  RP_CHECK(cuMemGetAddressRange(&base, &size, address + bytes / 2));
  rp_gpu_truth("cuMemGetAddressRange is the mapping", base == address && size == bytes);
  rp_gpu_result("setting SYNC_MEMOPS",
                cuPointerSetAttribute(&sync, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, address));
  CUipcMemHandle exported;
  rp_gpu_result("cuIpcGetMemHandle", cuIpcGetMemHandle(&exported, address));
}

/* Maps less than the handle has, which the documentation allows and nobody is known to do. */
static void map_prefix(CUdevice device, CUmemGenericAllocationHandle handle, size_t bytes, size_t prefix) {
  CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
                            .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUdeviceptr address = 0;
  RP_CHECK(cuMemAddressReserve(&address, bytes, 0, 0, 0));
  CUresult result = cuMemMap(address, prefix, 0, handle, 0);
  rp_gpu_result("mapping a prefix of a handle", result);
  if (result == CUDA_SUCCESS) {
    rp_gpu_result("access to that prefix", cuMemSetAccess(address, prefix, &access, 1));
    RP_CHECK(cuMemUnmap(address, prefix));
  }
  result = cuMemMap(address, prefix, prefix, handle, 0);
  rp_gpu_result("mapping from an offset", result);
  if (result == CUDA_SUCCESS) RP_CHECK(cuMemUnmap(address, prefix));
  RP_CHECK(cuMemAddressFree(address, bytes));
}

static void attributes(CUdevice device, size_t bytes) {
  CUmemAllocationProp properties = rp_gpu_properties(device);
  CUmemGenericAllocationHandle handle = 0, other = 0;
  size_t granularity = rp_gpu_granularity(&properties);
  uint64_t before = rp_gpu_used_bytes();
  RP_CHECK(cuMemCreate(&handle, bytes, &properties, 0));
  uint64_t created = rp_gpu_used_bytes();
  CUdeviceptr first = rp_gpu_map(handle, bytes, device), second = rp_gpu_map(handle, bytes, device);
  CUdeviceptr third = rp_gpu_map(handle, bytes, device);
  uint64_t mapped = rp_gpu_used_bytes();
  RP_CHECK(cuMemCreate(&other, bytes, &properties, 0));
  CUdeviceptr apart = rp_gpu_map(other, bytes, device);
  rp_gpu_truth("MEMORY_BLOCK_ID is equal at both addresses", block_of(first) == block_of(second));
  rp_gpu_truth("MEMORY_BLOCK_ID differs for other memory", block_of(first) != block_of(apart));
  rp_gpu_integer("in use for one handle", (int64_t)(created - before), "bytes");
  rp_gpu_integer("in use for three addresses of it", (int64_t)(mapped - created), "bytes");
  ask_pointer(first, bytes);
  CUmemGenericAllocationHandle retained = 0;
  RP_CHECK(cuMemRetainAllocationHandle(&retained, (void *)(uintptr_t)(second + bytes - 1)));
  rp_gpu_truth("cuMemRetainAllocationHandle gives the same handle", retained == handle);
  RP_CHECK(cuMemRelease(retained));
  map_prefix(device, handle, bytes, granularity);
  RP_CHECK(cuMemRelease(handle)); /* stays while it is mapped */
  rp_gpu_unmap(first, bytes);
  rp_gpu_unmap(second, bytes);
  rp_gpu_unmap(third, bytes);
  rp_gpu_unmap(apart, bytes);
  RP_CHECK(cuMemRelease(other));
  rp_gpu_integer("left after it", (int64_t)(rp_gpu_used_bytes() - before), "bytes");
}

static int usage(void) {
  fprintf(stderr,
          "usage: gpu_memory info | costs MIB... | pool BUFFERS SLOTS MIB | unmap MIB | bandwidth MIB | "
          "attributes MIB | kernels all|early\n");
  return 2;
}

int main(int argc, char **argv) {
  if (argc == 3 && !strcmp(argv[1], "kernels"))
    return fputs(strcmp(argv[2], "early") ? rp_gpu_ptx : rp_gpu_early_ptx, stdout) < 0;
  if (argc < 2) return usage();
  const char *mode = argv[1];
  size_t mib = argc > 2 ? strtoul(argv[argc - 1], NULL, 10) * RP_MIB : 0;
  if (strcmp(mode, "info") != 0 && mib == 0) return usage();
  CUdevice device = rp_gpu_open();
  if (!strcmp(mode, "info"))
    info(device);
  else if (!strcmp(mode, "costs"))
    costs(device, argc - 2, argv + 2);
  else if (!strcmp(mode, "pool") && argc == 5)
    pool(device, strtoul(argv[2], NULL, 10), strtoul(argv[3], NULL, 10), mib);
  else if (!strcmp(mode, "unmap"))
    unmap(device, mib);
  else if (!strcmp(mode, "bandwidth"))
    bandwidth(device, mib);
  else if (!strcmp(mode, "attributes"))
    attributes(device, mib);
  else
    return usage();
  return rp_gpu_print();
}
