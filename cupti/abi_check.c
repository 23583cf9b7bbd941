/* Proof that agent/abi.h matches the real headers. No code. */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <stddef.h>

#include "agent/abi.h"

_Static_assert(sizeof(struct rp_abi_dim3) == sizeof(dim3), "dim3");
_Static_assert(offsetof(struct rp_abi_dim3, z) == offsetof(dim3, z), "dim3");
_Static_assert(sizeof(struct rp_abi_pitched) == sizeof(struct cudaPitchedPtr) &&
                   offsetof(struct rp_abi_pitched, pitch) == offsetof(struct cudaPitchedPtr, pitch) &&
                   offsetof(struct rp_abi_pitched, rows) == offsetof(struct cudaPitchedPtr, ysize),
               "cudaPitchedPtr");
_Static_assert(sizeof(struct rp_abi_extent) == sizeof(struct cudaExtent) &&
                   offsetof(struct rp_abi_extent, depth) == offsetof(struct cudaExtent, depth),
               "cudaExtent");
_Static_assert(sizeof(struct rp_abi_ipc_event) == sizeof(cudaIpcEventHandle_t) &&
                   sizeof(struct rp_abi_ipc_event) == sizeof(CUipcEventHandle),
               "IPC event handles");
_Static_assert(sizeof(struct rp_abi_ipc_memory) == sizeof(cudaIpcMemHandle_t) &&
                   sizeof(struct rp_abi_ipc_memory) == sizeof(CUipcMemHandle),
               "IPC memory handles");
_Static_assert(RP_ABI_OTHER_CONTEXT == (int)cudaErrorDeviceUninitialized &&
                   RP_ABI_OTHER_CONTEXT == (int)CUDA_ERROR_INVALID_CONTEXT &&
                   RP_ABI_MAP_FAILED == (int)cudaErrorMapBufferObjectFailed &&
                   RP_ABI_MAP_FAILED == (int)CUDA_ERROR_MAP_FAILED,
               "errors of IPC");
_Static_assert(CU_EVENT_RECORD_EXTERNAL == 1 && cudaEventRecordExternal == 1 && CU_EVENT_WAIT_EXTERNAL == 1 &&
                   cudaEventWaitExternal == 1 && CU_STREAM_NON_BLOCKING == 1 && cudaStreamNonBlocking == 1,
               "flags");
_Static_assert(sizeof(enum cudaStreamCaptureMode) == sizeof(int), "enums are int");
_Static_assert(sizeof(struct rp_abi_unique_id) == sizeof(ncclUniqueId), "ncclUniqueId");
_Static_assert(_Alignof(struct rp_abi_unique_id) == _Alignof(ncclUniqueId), "ncclUniqueId");
_Static_assert(sizeof(struct rp_abi_pointer) >= sizeof(struct cudaPointerAttributes),
               "cudaPointerAttributes"); /* shorter before CUDA 13 */
_Static_assert(offsetof(struct rp_abi_pointer, device_pointer) ==
                       offsetof(struct cudaPointerAttributes, devicePointer) &&
                   sizeof(enum cudaMemoryType) == sizeof(int),
               "cudaPointerAttributes");
_Static_assert(RP_ABI_POINTER_CONTEXT == CU_POINTER_ATTRIBUTE_CONTEXT &&
                   RP_ABI_POINTER_DEVICE_POINTER == CU_POINTER_ATTRIBUTE_DEVICE_POINTER &&
                   RP_ABI_POINTER_BUFFER_ID == CU_POINTER_ATTRIBUTE_BUFFER_ID &&
                   RP_ABI_POINTER_RANGE_START == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR &&
                   RP_ABI_POINTER_RANGE_SIZE == CU_POINTER_ATTRIBUTE_RANGE_SIZE &&
                   RP_ABI_POINTER_MAPPING_SIZE == CU_POINTER_ATTRIBUTE_MAPPING_SIZE &&
                   RP_ABI_POINTER_MAPPING_BASE == CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR &&
                   RP_ABI_POINTER_BLOCK_ID == CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID,
               "CUpointer_attribute");
_Static_assert(RP_ABI_INVALID_VALUE == (int)cudaErrorInvalidValue &&
                   RP_ABI_INVALID_VALUE == (int)CUDA_ERROR_INVALID_VALUE &&
                   RP_ABI_OUT_OF_MEMORY == (int)cudaErrorMemoryAllocation &&
                   RP_ABI_OUT_OF_MEMORY == (int)CUDA_ERROR_OUT_OF_MEMORY &&
                   RP_ABI_NCCL_SYSTEM_ERROR == (int)ncclSystemError,
               "errors");
_Static_assert(RP_ABI_NCCL_IN_PROGRESS == ncclInProgress && RP_ABI_SUCCESS == ncclSuccess, "ncclResult_t");
_Static_assert(RP_ABI_SUCCESS == cudaSuccess, "cudaError_t");
_Static_assert(ncclInt8 == 0 && ncclUint8 == 1 && ncclInt32 == 2 && ncclUint32 == 3 && ncclInt64 == 4 &&
                   ncclUint64 == 5 && ncclFloat16 == 6 && ncclFloat32 == 7 && ncclFloat64 == 8 &&
                   ncclBfloat16 == 9,
               "order of ncclDataType_t");
_Static_assert(sizeof(cudaStream_t) == sizeof(void *) && sizeof(ncclComm_t) == sizeof(void *),
               "handles are pointers");
_Static_assert(sizeof(enum cudaMemcpyKind) == sizeof(int) && sizeof(ncclDataType_t) == sizeof(int),
               "enums are int");
