/* A library that links NCCL and is loaded late: sends itself four buffers a step, reads each, and prints what
 * came. */
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>

#define BUFFERS 4
#define BYTES ((size_t)256 << 10)

__attribute__((visibility("default"))) int late_module_exchange(int steps);

static unsigned char *device_buffer(void) {
  unsigned char *buffer = NULL;
  return cudaMalloc((void **)&buffer, BYTES) == cudaSuccess ? buffer : NULL;
}

static int exchange_one(ncclComm_t comm, cudaStream_t stream, unsigned char *from, unsigned char *into,
                        int value) {
  unsigned char got = 0;
  int bad = cudaMemsetAsync(from, value, BYTES, stream) != cudaSuccess || ncclGroupStart() != ncclSuccess ||
            ncclSend(from, BYTES, ncclUint8, 0, comm, stream) != ncclSuccess ||
            ncclRecv(into, BYTES, ncclUint8, 0, comm, stream) != ncclSuccess ||
            ncclGroupEnd() != ncclSuccess ||
            cudaMemcpyAsync(&got, into + BYTES - 1, 1, cudaMemcpyDeviceToHost, stream) != cudaSuccess ||
            cudaStreamSynchronize(stream) != cudaSuccess;
  printf("%d ", bad ? -1 : got);
  return bad;
}

int late_module_exchange(int steps) {
  ncclUniqueId id;
  ncclComm_t comm;
  cudaStream_t stream;
  unsigned char *from = device_buffer(), *into[BUFFERS];
  if (ncclGetUniqueId(&id) != ncclSuccess || ncclCommInitRank(&comm, 1, id, 0) != ncclSuccess ||
      cudaStreamCreate(&stream) != cudaSuccess)
    return 3;
  for (int i = 0; i < BUFFERS; i++)
    into[i] = device_buffer();
  int failures = 0;
  for (int step = 0; step < steps; step++)
    for (int i = 0; i < BUFFERS; i++)
      failures += exchange_one(comm, stream, from, into[i], step * BUFFERS + i + 1);
  printf("%d failures\n", failures);
  ncclCommDestroy(comm);
  return failures ? 3 : 0;
}
