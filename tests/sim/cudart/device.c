/* Owns what can be asked about devices in the simulated runtime. */
#include "runtime.h"

#include <string.h>

_Static_assert((int)cudaDevAttrMaxThreadsPerBlock == (int)CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK &&
                   (int)cudaDevAttrMemoryPoolsSupported == (int)CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED,
               "attributes are numbered alike");

cudaError_t impl_cudaGetDeviceCount(int *count) {
  return count ? RT(cuDeviceGetCount, count) : cudaErrorInvalidValue;
}

cudaError_t impl_cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
  return value ? RT(cuDeviceGetAttribute, value, (CUdevice_attribute)attribute, device)
               : cudaErrorInvalidValue;
}

cudaError_t impl_cudaDeviceGetPCIBusId(char *id, int length, int device) {
  return RT(cuDeviceGetPCIBusId, id, length, device);
}

cudaError_t impl_cudaDeviceGetByPCIBusId(int *device, const char *id) {
  return RT(cuDeviceGetByPCIBusId, device, id);
}

cudaError_t impl_cudaDeviceCanAccessPeer(int *can, int device, int peer) {
  return RT(cuDeviceCanAccessPeer, can, device, peer);
}

cudaError_t impl_cudaDeviceGetP2PAttribute(int *value, enum cudaDeviceP2PAttr attribute, int from, int to) {
  return RT(cuDeviceGetP2PAttribute, value, (CUdevice_P2PAttribute)attribute, from, to);
}

/* Properties that are one attribute each; what a device does not answer stays 0. */
#define PROPERTY(field, attribute)                                                                           \
  {                                                                                                          \
    offsetof(struct cudaDeviceProp, field), sizeof(((struct cudaDeviceProp *)0)->field),                     \
        CU_DEVICE_ATTRIBUTE_##attribute                                                                      \
  }
static const struct {
  size_t offset, size;
  CUdevice_attribute attribute;
} properties[] = {
    PROPERTY(sharedMemPerBlock, MAX_SHARED_MEMORY_PER_BLOCK),
    PROPERTY(regsPerBlock, MAX_REGISTERS_PER_BLOCK),
    PROPERTY(warpSize, WARP_SIZE),
    PROPERTY(memPitch, MAX_PITCH),
    PROPERTY(maxThreadsPerBlock, MAX_THREADS_PER_BLOCK),
    PROPERTY(maxThreadsDim[0], MAX_BLOCK_DIM_X),
    PROPERTY(maxThreadsDim[1], MAX_BLOCK_DIM_Y),
    PROPERTY(maxThreadsDim[2], MAX_BLOCK_DIM_Z),
    PROPERTY(maxGridSize[0], MAX_GRID_DIM_X),
    PROPERTY(maxGridSize[1], MAX_GRID_DIM_Y),
    PROPERTY(maxGridSize[2], MAX_GRID_DIM_Z),
    PROPERTY(totalConstMem, TOTAL_CONSTANT_MEMORY),
    PROPERTY(major, COMPUTE_CAPABILITY_MAJOR),
    PROPERTY(minor, COMPUTE_CAPABILITY_MINOR),
    PROPERTY(textureAlignment, TEXTURE_ALIGNMENT),
    PROPERTY(texturePitchAlignment, TEXTURE_PITCH_ALIGNMENT),
    PROPERTY(multiProcessorCount, MULTIPROCESSOR_COUNT),
    PROPERTY(integrated, INTEGRATED),
    PROPERTY(canMapHostMemory, CAN_MAP_HOST_MEMORY),
    PROPERTY(surfaceAlignment, SURFACE_ALIGNMENT),
    PROPERTY(concurrentKernels, CONCURRENT_KERNELS),
    PROPERTY(ECCEnabled, ECC_ENABLED),
    PROPERTY(pciBusID, PCI_BUS_ID),
    PROPERTY(pciDeviceID, PCI_DEVICE_ID),
    PROPERTY(pciDomainID, PCI_DOMAIN_ID),
    PROPERTY(tccDriver, TCC_DRIVER),
    PROPERTY(asyncEngineCount, ASYNC_ENGINE_COUNT),
    PROPERTY(unifiedAddressing, UNIFIED_ADDRESSING),
    PROPERTY(memoryBusWidth, GLOBAL_MEMORY_BUS_WIDTH),
    PROPERTY(l2CacheSize, L2_CACHE_SIZE),
    PROPERTY(persistingL2CacheMaxSize, MAX_PERSISTING_L2_CACHE_SIZE),
    PROPERTY(maxThreadsPerMultiProcessor, MAX_THREADS_PER_MULTIPROCESSOR),
    PROPERTY(streamPrioritiesSupported, STREAM_PRIORITIES_SUPPORTED),
    PROPERTY(globalL1CacheSupported, GLOBAL_L1_CACHE_SUPPORTED),
    PROPERTY(localL1CacheSupported, LOCAL_L1_CACHE_SUPPORTED),
    PROPERTY(sharedMemPerMultiprocessor, MAX_SHARED_MEMORY_PER_MULTIPROCESSOR),
    PROPERTY(regsPerMultiprocessor, MAX_REGISTERS_PER_MULTIPROCESSOR),
    PROPERTY(managedMemory, MANAGED_MEMORY),
    PROPERTY(isMultiGpuBoard, MULTI_GPU_BOARD),
    PROPERTY(multiGpuBoardGroupID, MULTI_GPU_BOARD_GROUP_ID),
    PROPERTY(hostNativeAtomicSupported, HOST_NATIVE_ATOMIC_SUPPORTED),
    PROPERTY(pageableMemoryAccess, PAGEABLE_MEMORY_ACCESS),
    PROPERTY(concurrentManagedAccess, CONCURRENT_MANAGED_ACCESS),
    PROPERTY(computePreemptionSupported, COMPUTE_PREEMPTION_SUPPORTED),
    PROPERTY(canUseHostPointerForRegisteredMem, CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM),
    PROPERTY(cooperativeLaunch, COOPERATIVE_LAUNCH),
    PROPERTY(sharedMemPerBlockOptin, MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
    PROPERTY(pageableMemoryAccessUsesHostPageTables, PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES),
    PROPERTY(directManagedMemAccessFromHost, DIRECT_MANAGED_MEM_ACCESS_FROM_HOST),
    PROPERTY(maxBlocksPerMultiProcessor, MAX_BLOCKS_PER_MULTIPROCESSOR),
    PROPERTY(accessPolicyMaxWindowSize, MAX_ACCESS_POLICY_WINDOW_SIZE),
    PROPERTY(reservedSharedMemPerBlock, RESERVED_SHARED_MEMORY_PER_BLOCK),
    PROPERTY(hostRegisterSupported, HOST_REGISTER_SUPPORTED),
    PROPERTY(hostRegisterReadOnlySupported, READ_ONLY_HOST_REGISTER_SUPPORTED),
    PROPERTY(memoryPoolsSupported, MEMORY_POOLS_SUPPORTED),
    PROPERTY(gpuDirectRDMASupported, GPU_DIRECT_RDMA_SUPPORTED),
    PROPERTY(gpuDirectRDMAFlushWritesOptions, GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS),
    PROPERTY(gpuDirectRDMAWritesOrdering, GPU_DIRECT_RDMA_WRITES_ORDERING),
    PROPERTY(memoryPoolSupportedHandleTypes, MEMPOOL_SUPPORTED_HANDLE_TYPES),
    PROPERTY(ipcEventSupported, IPC_EVENT_SUPPORTED),
    PROPERTY(clusterLaunch, CLUSTER_LAUNCH),
    PROPERTY(unifiedFunctionPointers, UNIFIED_FUNCTION_POINTERS),
    PROPERTY(deviceNumaConfig, NUMA_CONFIG),
    PROPERTY(deviceNumaId, NUMA_ID),
    PROPERTY(mpsEnabled, MPS_ENABLED),
    PROPERTY(hostNumaId, HOST_NUMA_ID),
};
#undef PROPERTY

cudaError_t impl_cudaGetDeviceProperties(struct cudaDeviceProp *found, int device) {
  CUuuid uuid;
  CUdevice checked;
  if (!found) return cudaErrorInvalidValue;
  cudaError_t error = RT(cuDeviceGet, &checked, device);
  if (error) return error;
  memset(found, 0, sizeof *found);
  error = RT(cuDeviceGetName, found->name, sizeof found->name, checked);
  if (!error) error = RT(cuDeviceTotalMem, &found->totalGlobalMem, checked);
  if (!error && RT(cuDeviceGetUuid, &uuid, checked) == cudaSuccess)
    memcpy(&found->uuid, &uuid, sizeof found->uuid);
  for (size_t i = 0; !error && i < sizeof properties / sizeof *properties; i++) {
    int value = 0;
    if (RT(cuDeviceGetAttribute, &value, properties[i].attribute, checked) != cudaSuccess) continue;
    size_t wide = (size_t)value;
    const void *source = properties[i].size == sizeof wide ? (const void *)&wide : (const void *)&value;
    memcpy((char *)found + properties[i].offset, source, properties[i].size);
  }
  return error;
}
