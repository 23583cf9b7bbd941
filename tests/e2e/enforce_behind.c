/* A host that runs far ahead of its device: every step ends with a kernel that takes long, and nothing waits
 * for it before the last step. Prints the last byte of each message of each step. */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/sim/rpsim.h"

#define BUFFERS 6
#define STEPS 7
#define BYTES ((size_t)2 << 20)
#define STEP_MICROSECONDS 2600000 /* of the device */

static void check(int error, const char *what) {
  if (error == 0) return;
  printf("%s: error %d\n", what, error);
  exit(3);
}
#define CHECK(call) check((int)(call), #call)

static void take_long(void *const *params, const struct rpsim_dims *dims) {
  (void)params, (void)dims;
  (void)usleep(STEP_MICROSECONDS);
}
static const struct rpsim_param no_params[1];
static const struct rpsim_kernel kernels[] = {{"_Z9take_longv", take_long, 0, no_params}};

static void *buffers[BUFFERS];
static unsigned char *seen;
static ncclComm_t comm;
static cudaStream_t stream;
static char *from;
static CUfunction slow;

static void prepare(void) {
  ncclUniqueId id;
  CUmodule module;
  for (int i = 0; i < BUFFERS; i++)
    CHECK(cudaMalloc(&buffers[i], BYTES));
  CHECK(ncclGetUniqueId(&id));
  CHECK(ncclCommInitRank(&comm, 1, id, 0));
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CHECK(cudaMalloc((void **)&from, 2 * BYTES));
  CHECK(cudaMallocHost((void **)&seen, (size_t)STEPS * BUFFERS));
  CHECK(rpsim_register_kernels(kernels, 1));
  CHECK(cuModuleLoadData(&module, "image"));
  CHECK(cuModuleGetFunction(&slow, module, "_Z9take_longv"));
}

static void step(int number) {
  for (int i = 0; i < BUFFERS; i++) {
    CHECK(cudaMemsetAsync(from, 10 * number + i, BYTES, stream));
    CHECK(ncclGroupStart());
    CHECK(ncclSend(from, BYTES, ncclUint8, 0, comm, stream));
    CHECK(ncclRecv(buffers[i], BYTES, ncclUint8, 0, comm, stream));
    CHECK(ncclGroupEnd());
    CHECK(cudaMemcpyAsync(&seen[number * BUFFERS + i], (const char *)buffers[i] + BYTES - 1, 1,
                          cudaMemcpyDeviceToHost, stream));
  }
  CHECK(cuLaunchKernel(slow, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
}

int main(void) {
  prepare();
  for (int i = 0; i < STEPS; i++)
    step(i);
  CHECK(cudaStreamSynchronize(stream));
  for (int i = 0; i < STEPS * BUFFERS; i++)
    printf("%d%c", seen[i], i % BUFFERS == BUFFERS - 1 ? '\n' : ' ');
  for (int i = 0; i < BUFFERS; i++)
    CHECK(cudaFree(buffers[i]));
  return 0;
}
