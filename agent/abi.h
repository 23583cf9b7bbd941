/** @file abi.h
 * The few types that interposed CUDA and NCCL calls pass by value. The agent includes no CUDA header;
 * cupti/abi_check.c proves against the real ones that these have the same layout.
 */
#ifndef RP_AGENT_ABI_H
#define RP_AGENT_ABI_H

#include <stddef.h>

/** dim3 */
struct rp_abi_dim3 {
  unsigned x, y, z;
};

/** cudaPitchedPtr */
struct rp_abi_pitched {
  void *memory;
  size_t pitch, row_bytes, rows;
};

/** cudaExtent */
struct rp_abi_extent {
  size_t width, height, depth;
};

/** CUipcEventHandle, cudaIpcEventHandle_t */
struct rp_abi_ipc_event {
  char reserved[64];
};

/** CUipcMemHandle, cudaIpcMemHandle_t */
struct rp_abi_ipc_memory {
  char reserved[64];
};

/** ncclUniqueId */
struct rp_abi_unique_id {
  char internal[128];
};

/** cudaPointerAttributes */
struct rp_abi_pointer {
  int type, device;
  void *device_pointer, *host_pointer;
  long reserved[8];
};

/* CUpointer_attribute: those that say different things of our memory and of the driver's. */
#define RP_ABI_POINTER_CONTEXT 1
#define RP_ABI_POINTER_DEVICE_POINTER 3
#define RP_ABI_POINTER_BUFFER_ID 7
#define RP_ABI_POINTER_RANGE_START 11
#define RP_ABI_POINTER_RANGE_SIZE 12
#define RP_ABI_POINTER_MAPPING_SIZE 18
#define RP_ABI_POINTER_MAPPING_BASE 19
#define RP_ABI_POINTER_BLOCK_ID 20

#define RP_ABI_SUCCESS 0
#define RP_ABI_INVALID_VALUE 1   /**< cudaErrorInvalidValue, CUDA_ERROR_INVALID_VALUE */
#define RP_ABI_OUT_OF_MEMORY 2   /**< cudaErrorMemoryAllocation, CUDA_ERROR_OUT_OF_MEMORY */
#define RP_ABI_OTHER_CONTEXT 201 /**< cudaErrorDeviceUninitialized, CUDA_ERROR_INVALID_CONTEXT */
#define RP_ABI_MAP_FAILED 205    /**< cudaErrorMapBufferObjectFailed, CUDA_ERROR_MAP_FAILED */
#define RP_ABI_NCCL_SYSTEM_ERROR 2
#define RP_ABI_NCCL_IN_PROGRESS 7 /**< ncclInProgress: a non-blocking communicator goes on by itself */

/** Bytes of one element of ncclDataType_t `type`; 0 if unknown. */
static inline unsigned rp_abi_nccl_type_bytes(int type) {
  static const unsigned char bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return type >= 0 && (unsigned)type < sizeof bytes ? bytes[type] : 0;
}

#endif
