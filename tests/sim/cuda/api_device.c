/* Devices: names, ids, memory, attributes, peers. */
#include "api.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

CUresult impl_cuDeviceGet(CUdevice *device, int ordinal) {
  if (!device) return CUDA_ERROR_INVALID_VALUE;
  if (!sim_device_valid(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult impl_cuDeviceGetCount(int *count) {
  if (!count) return CUDA_ERROR_INVALID_VALUE;
  *count = sim_device_count();
  return CUDA_SUCCESS;
}

CUresult impl_cuDeviceGetName(char *name, int len, CUdevice dev) {
  if (!name || len <= 0) return CUDA_ERROR_INVALID_VALUE;
  if (!sim_device_valid(dev)) return CUDA_ERROR_INVALID_DEVICE;
  snprintf(name, (size_t)len, "Simulated GPU %d", dev);
  return CUDA_SUCCESS;
}

static CUresult device_uuid(CUuuid *uuid, CUdevice dev) {
  if (!uuid) return CUDA_ERROR_INVALID_VALUE;
  if (!sim_device_valid(dev)) return CUDA_ERROR_INVALID_DEVICE;
  memcpy(uuid->bytes, "rpsim-gpu-uuid\0", sizeof uuid->bytes);
  uuid->bytes[15] = (char)dev;
  return CUDA_SUCCESS;
}

CUresult impl_cuDeviceGetUuid(CUuuid *uuid, CUdevice dev) {
  return device_uuid(uuid, dev);
}

CUresult impl_cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice dev) {
  return device_uuid(uuid, dev);
}

CUresult impl_cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev) {
  if (!bytes) return CUDA_ERROR_INVALID_VALUE;
  if (!sim_device_valid(dev)) return CUDA_ERROR_INVALID_DEVICE;
  *bytes = sim_device_capacity_bytes(dev);
  return CUDA_SUCCESS;
}

CUresult impl_cuDeviceGetPCIBusId(char *pciBusId, int len, CUdevice dev) {
  if (!pciBusId || len <= 0) return CUDA_ERROR_INVALID_VALUE;
  if (!sim_device_valid(dev)) return CUDA_ERROR_INVALID_DEVICE;
  snprintf(pciBusId, (size_t)len, "0000:%02X:00.0", dev + 1);
  return CUDA_SUCCESS;
}

CUresult impl_cuDeviceGetByPCIBusId(CUdevice *dev, const char *pciBusId) {
  if (!dev || !pciBusId) return CUDA_ERROR_INVALID_VALUE;
  unsigned domain, bus, device;
  if (sscanf(pciBusId, "%x:%x:%x", &domain, &bus, &device) != 3) return CUDA_ERROR_INVALID_VALUE;
  if (domain != 0 || device != 0 || bus == 0 || !sim_device_valid((CUdevice)bus - 1))
    return CUDA_ERROR_INVALID_DEVICE;
  *dev = (CUdevice)bus - 1;
  return CUDA_SUCCESS;
}

/* What the simulated device is like: a data-centre GPU of compute capability 9.0. Attributes not named here
 * are 0. */
static const int attribute_values[CU_DEVICE_ATTRIBUTE_MAX] = {
    [CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK] = 1024,
    [CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X] = 1024,
    [CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y] = 1024,
    [CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z] = 64,
    [CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X] = 0x7fffffff,
    [CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y] = 65535,
    [CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z] = 65535,
    [CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK] = 49152,
    [CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY] = 65536,
    [CU_DEVICE_ATTRIBUTE_WARP_SIZE] = 32,
    [CU_DEVICE_ATTRIBUTE_MAX_PITCH] = 0x7fffffff,
    [CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK] = 65536,
    [CU_DEVICE_ATTRIBUTE_CLOCK_RATE] = 1980000,
    [CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT] = 512,
    [CU_DEVICE_ATTRIBUTE_GPU_OVERLAP] = 1,
    [CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT] = 132,
    [CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY] = 1,
    [CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT] = 512,
    [CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS] = 1,
    [CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE] = 2619000,
    [CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH] = 5120,
    [CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE] = 52428800,
    [CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR] = 2048,
    [CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT] = 3,
    [CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING] = 1,
    [CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT] = 32,
    [CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR] = 9,
    [CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR] = 0,
    [CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR] = 233472,
    [CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR] = 65536,
    [CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY] = 1,
    [CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO] = 2,
    [CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM] = 1,
    [CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH] = 1,
    [CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN] = 232448,
    [CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR_V1] = 1,
    [CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS] = 1,
    [CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR] = 32,
    [CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED] = 0,
    [CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK] = 1024,
    [CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES] = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
    [CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH] = 1,
    [CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS] = 1,
    [CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED] = 0,
};

/* RPSIM_ATTRIBUTES, written once by the library's constructor. */
struct override {
  bool set, unknown;
  int value;
};
static struct override overrides[CU_DEVICE_ATTRIBUTE_MAX];

_Noreturn static void attribute_mistake(const char *text) {
  fprintf(stderr,
          "rpsim: RPSIM_ATTRIBUTES: '%s' is not NUMBER:VALUE or NUMBER:unknown with the number of a device "
          "attribute\n",
          text);
  _exit(2);
}

static void override_attribute(const char *text) {
  char *end;
  long number = strtol(text, &end, 10);
  if (end == text || *end != ':' || number <= 0 || number >= CU_DEVICE_ATTRIBUTE_MAX) attribute_mistake(text);
  const char *value = end + 1;
  struct override *override = &overrides[number];
  override->set = true;
  override->unknown = strcmp(value, "unknown") == 0;
  if (override->unknown) return;
  override->value = (int)strtol(value, &end, 10);
  if (end == value || *end != '\0') attribute_mistake(text);
}

void sim_attributes_configure(const char *text) {
  char *copy = text ? strdup(text) : NULL, *save = NULL;
  if (!copy) return;
  for (char *one = strtok_r(copy, ",", &save); one; one = strtok_r(NULL, ",", &save))
    override_attribute(one);
  free(copy);
}

int sim_device_attribute(CUdevice_attribute attribute) {
  const struct override *override = &overrides[attribute];
  return override->set ? override->value : attribute_values[attribute];
}

CUresult impl_cuDeviceGetAttribute(int *pi, CUdevice_attribute attrib, CUdevice dev) {
  if (!pi || attrib <= 0 || attrib >= CU_DEVICE_ATTRIBUTE_MAX || overrides[attrib].unknown)
    return CUDA_ERROR_INVALID_VALUE;
  if (!sim_device_valid(dev)) return CUDA_ERROR_INVALID_DEVICE;
  *pi = attrib == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID ? dev + 1 : sim_device_attribute(attrib);
  return CUDA_SUCCESS;
}

CUresult impl_cuDeviceComputeCapability(int *major, int *minor, CUdevice dev) {
  if (!major || !minor) return CUDA_ERROR_INVALID_VALUE;
  if (!sim_device_valid(dev)) return CUDA_ERROR_INVALID_DEVICE;
  *major = attribute_values[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR];
  *minor = attribute_values[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR];
  return CUDA_SUCCESS;
}

CUresult impl_cuDeviceCanAccessPeer(int *canAccessPeer, CUdevice dev, CUdevice peerDev) {
  if (!canAccessPeer) return CUDA_ERROR_INVALID_VALUE;
  if (!sim_device_valid(dev) || !sim_device_valid(peerDev)) return CUDA_ERROR_INVALID_DEVICE;
  *canAccessPeer = dev != peerDev;
  return CUDA_SUCCESS;
}

CUresult impl_cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attrib, CUdevice srcDevice,
                                      CUdevice dstDevice) {
  if (!value) return CUDA_ERROR_INVALID_VALUE;
  if (!sim_device_valid(srcDevice) || !sim_device_valid(dstDevice)) return CUDA_ERROR_INVALID_DEVICE;
  if (srcDevice == dstDevice) return CUDA_ERROR_INVALID_VALUE;
  switch (attrib) {
  case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED:
  case CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK:
    *value = 1;
    return CUDA_SUCCESS;
  case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED:
  case CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED:
    *value = 0;
    return CUDA_SUCCESS;
  default:
    return CUDA_ERROR_INVALID_VALUE;
  }
}
