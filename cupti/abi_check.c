/* Proof that agent/abi.h matches the real headers. No code. */
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <stddef.h>

#include "agent/abi.h"

_Static_assert(sizeof(struct rp_abi_dim3) == sizeof(dim3), "dim3");
_Static_assert(offsetof(struct rp_abi_dim3, z) == offsetof(dim3, z), "dim3");
_Static_assert(sizeof(struct rp_abi_unique_id) == sizeof(ncclUniqueId), "ncclUniqueId");
_Static_assert(_Alignof(struct rp_abi_unique_id) == _Alignof(ncclUniqueId), "ncclUniqueId");
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
