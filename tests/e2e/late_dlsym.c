/* A program that finds NCCL by dlopen and dlsym after CUDA has started, so that its calls cannot be
 * interposed: sends itself two buffers and prints what came. */
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nccl.h>
#include <stdio.h>

#define BYTES ((size_t)256 << 10)

static struct {
  ncclResult_t (*unique_id)(ncclUniqueId *);
  ncclResult_t (*init)(ncclComm_t *, int, ncclUniqueId, int);
  ncclResult_t (*destroy)(ncclComm_t);
  ncclResult_t (*group_start)(void);
  ncclResult_t (*group_end)(void);
  ncclResult_t (*send)(const void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t);
  ncclResult_t (*recv)(void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t);
} nccl;

static int load(void) {
  void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (!library) return -1;
  *(void **)&nccl.unique_id = dlsym(library, "ncclGetUniqueId");
  *(void **)&nccl.init = dlsym(library, "ncclCommInitRank");
  *(void **)&nccl.destroy = dlsym(library, "ncclCommDestroy");
  *(void **)&nccl.group_start = dlsym(library, "ncclGroupStart");
  *(void **)&nccl.group_end = dlsym(library, "ncclGroupEnd");
  *(void **)&nccl.send = dlsym(library, "ncclSend");
  *(void **)&nccl.recv = dlsym(library, "ncclRecv");
  return nccl.unique_id && nccl.init && nccl.destroy && nccl.group_start && nccl.group_end && nccl.send &&
                 nccl.recv
             ? 0
             : -1;
}

static int exchange(ncclComm_t comm, unsigned char *from, unsigned char *into, int value) {
  unsigned char got = 0;
  int bad = cudaMemset(from, value, BYTES) != cudaSuccess || nccl.group_start() != ncclSuccess ||
            nccl.send(from, BYTES, ncclUint8, 0, comm, NULL) != ncclSuccess ||
            nccl.recv(into, BYTES, ncclUint8, 0, comm, NULL) != ncclSuccess ||
            nccl.group_end() != ncclSuccess ||
            cudaMemcpy(&got, into + BYTES - 1, 1, cudaMemcpyDeviceToHost) != cudaSuccess;
  printf("%d\n", bad ? -1 : got);
  return bad;
}

int main(void) {
  unsigned char *memory;
  ncclUniqueId id;
  ncclComm_t comm;
  if (cudaMalloc((void **)&memory, 3 * BYTES) != cudaSuccess || load() != 0) return 3;
  if (nccl.unique_id(&id) != ncclSuccess || nccl.init(&comm, 1, id, 0) != ncclSuccess) return 3;
  int failures = 0;
  for (int i = 0; i < 6; i++)
    failures += exchange(comm, memory, memory + (size_t)(1 + i % 2) * BYTES, i + 1);
  nccl.destroy(comm);
  return failures;
}
