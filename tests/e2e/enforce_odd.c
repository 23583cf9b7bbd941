/* Programs of one rank that treat their receive buffers in uncommon ways, each correct: N messages a step,
 * each to itself and read once before the next. What was read is printed, and must not depend on who shares
 * memory with whom.
 *
 *   enforce_odd recycled | late_batch | halves | halves_later | nonblocking | brim | temporaries | table |
 * pooled
 */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/sim/rpsim.h"

#define CHECK(call)                                                                                          \
  do {                                                                                                       \
    int result_ = (int)(call);                                                                               \
    if (result_) {                                                                                           \
      fprintf(stderr, "%s: error %d\n", #call, result_);                                                     \
      exit(3);                                                                                               \
    }                                                                                                        \
  } while (0)

#define BUFFERS 6
#define STEPS 8
#define LATE 6 /* step in which something uncommon is done */
#define BYTES ((size_t)2 << 20)

static unsigned char *buffers[BUFFERS], *from, *sink;
static ncclComm_t comm;
static cudaStream_t receives, compute;
static cudaEvent_t received;
static CUfunction read_last, fill, by_table, slow;

static void read_body(void *const *p, const struct rpsim_dims *dims) {
  (void)dims;
  **(unsigned char **)p[1] = (*(const unsigned char **)p[0])[BYTES - 1];
}

static void fill_body(void *const *p, const struct rpsim_dims *dims) {
  (void)dims;
  memset(*(unsigned char **)p[0], *(int *)p[1], BYTES);
}

/* Reads through a pointer that lies in device memory: no argument names the buffer. */
static void read_by_table_body(void *const *p, const struct rpsim_dims *dims) {
  (void)dims;
  **(unsigned char **)p[1] = (**(const unsigned char ***)p[0])[BYTES - 1];
}

static void slow_body(void *const *p, const struct rpsim_dims *dims) {
  usleep(3000);
  read_body(p, dims);
}

static const struct rpsim_param two_pointers[] = {{0, 8}, {8, 8}}, pointer_and_value[] = {{0, 8}, {8, 4}};
static const struct rpsim_kernel kernels[] = {{"_Z9read_lastPKhPh", read_body, 2, two_pointers},
                                              {"_Z4fillPhi", fill_body, 2, pointer_and_value},
                                              {"_Z8by_tablePPKhPh", read_by_table_body, 2, two_pointers},
                                              {"_Z4slowPKhPh", slow_body, 2, two_pointers}};

static void read_into(const unsigned char *buffer, unsigned char *to) {
  void *params[] = {&buffer, &to};
  CHECK(cuLaunchKernel(read_last, 1, 1, 1, 1, 1, 1, 0, (CUstream)compute, params, NULL));
}

static void fill_with(unsigned char *buffer, int value) {
  void *params[] = {&buffer, &value};
  CHECK(cuLaunchKernel(fill, 1, 1, 1, 1, 1, 1, 0, (CUstream)compute, params, NULL));
}

static ncclComm_t make_comm(int blocking) {
  ncclUniqueId id;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclComm_t made;
  ncclResult_t state = ncclInProgress;
  config.blocking = blocking;
  CHECK(ncclGetUniqueId(&id));
  ncclResult_t result = ncclCommInitRankConfig(&made, 1, id, 0, &config);
  if (result != ncclInProgress) CHECK(result);
  while (state == ncclInProgress)
    CHECK(ncclCommGetAsyncError(made, &state));
  CHECK(state);
  return made;
}

static void start(int blocking) {
  CUmodule module;
  CHECK(cudaFree(NULL));
  CHECK(rpsim_register_kernels(kernels, 4));
  CHECK(cuModuleLoadData(&module, "image"));
  CHECK(cuModuleGetFunction(&read_last, module, kernels[0].name));
  CHECK(cuModuleGetFunction(&fill, module, kernels[1].name));
  CHECK(cuModuleGetFunction(&by_table, module, kernels[2].name));
  CHECK(cuModuleGetFunction(&slow, module, kernels[3].name));
  CHECK(cudaStreamCreateWithFlags(&receives, cudaStreamNonBlocking));
  CHECK(cudaStreamCreateWithFlags(&compute, cudaStreamNonBlocking));
  CHECK(cudaEventCreateWithFlags(&received, cudaEventDisableTiming));
  comm = make_comm(blocking);
  CHECK(cudaMalloc((void **)&from, 3 * BYTES));
  CHECK(cudaMalloc((void **)&sink, 3 * BYTES));
  for (int i = 0; i < BUFFERS; i++)
    CHECK(cudaMalloc((void **)&buffers[i], BYTES));
}

/* Returns when it is launched. */
static void transfer(unsigned char *into, int value, size_t bytes) {
  ncclResult_t state = ncclInProgress;
  CHECK(cudaMemsetAsync(from, value, bytes, receives));
  CHECK(ncclGroupStart());
  CHECK(ncclSend(from, bytes, ncclUint8, 0, comm, receives));
  CHECK(ncclRecv(into, bytes, ncclUint8, 0, comm, receives));
  ncclResult_t result = ncclGroupEnd();
  if (result != ncclInProgress) CHECK(result);
  while (result == ncclInProgress && state == ncclInProgress) {
    CHECK(ncclCommGetAsyncError(comm, &state));
    usleep(50); /* NCCL goes on by itself */
  }
}

static void wait_for_message(void) {
  CHECK(cudaEventRecord(received, receives));
  CHECK(cudaStreamWaitEvent(compute, received, 0));
}

static int byte_at(const unsigned char *at) {
  unsigned char byte = 0;
  CHECK(cudaMemcpyAsync(&byte, at, 1, cudaMemcpyDeviceToHost, compute));
  CHECK(cudaStreamSynchronize(compute));
  return byte;
}

/* Message `i` of a step arrives and is read. */
static void usual(int step, int i) {
  transfer(buffers[i], step * 16 + i, BYTES);
  wait_for_message();
  read_into(buffers[i], sink + i);
  CHECK(cudaDeviceSynchronize());
  printf("%d ", byte_at(sink + i));
}

/* An allocator gives a buffer whose message is done with to a temporary: a kernel writes it, and it is read.
 */
static void recycled(int step, int i) {
  usual(step, i);
  if (step != LATE || i != 4) return;
  fill_with(buffers[1], 200);
  usual(step, 5);
  read_into(buffers[1], sink + 8);
  printf("temporary %d ", byte_at(sink + 8));
}

/* The same in a program that takes all memory there is before, and ends at once where something fails. */
static void brim(int step, int i) {
  usual(step, i);
  if (step != LATE || i != 4) return;
  for (void *more; cudaMalloc(&more, BYTES / 4) == cudaSuccess;) /* too small for the pools */
    continue;
  (void)cudaGetLastError();
  unsigned char *buffer = buffers[1];
  int value = 200;
  void *params[] = {&buffer, &value};
  fflush(stdout);
  if (cuLaunchKernel(fill, 1, 1, 1, 1, 1, 1, 0, (CUstream)compute, params, NULL)) _Exit(7);
  usual(step, 5);
  read_into(buffers[1], sink + 8);
  printf("temporary %d ", byte_at(sink + 8));
}

/* Temporaries of the size of a message come from the driver's own pools and go there again. */
static void temporaries(int step, int i) {
  static cudaMemPool_t pool;
  unsigned char *one, *other;
  if (!pool) CHECK(cudaDeviceGetDefaultMemPool(&pool, 0));
  CHECK(cudaMallocAsync((void **)&one, BYTES, compute));
  CHECK(cudaMallocFromPoolAsync((void **)&other, BYTES, pool, compute));
  usual(step, i);
  fill_with(one, step + i);
  CHECK(cudaMemcpyAsync(other, one, BYTES, cudaMemcpyDeviceToDevice, compute));
  read_into(other, sink + 8);
  CHECK(cudaFreeAsync(one, compute));
  CHECK(cudaFreeAsync(other, compute));
  printf("%d ", byte_at(sink + 8));
}

/* The receive buffers themselves come from such a pool, for one step at a time. */
static void pooled(int step, int i) {
  static unsigned char *of_step[BUFFERS];
  for (int j = 0; i == 0 && j < BUFFERS; j++)
    CHECK(cudaMallocAsync((void **)&of_step[j], BYTES, receives));
  transfer(of_step[i], step * 16 + i, BYTES);
  wait_for_message();
  read_into(of_step[i], sink + i);
  printf("%d ", byte_at(sink + i));
  for (int j = 0; i == BUFFERS - 1 && j < BUFFERS; j++)
    CHECK(cudaFreeAsync(of_step[j], compute));
}

/* The host posts a whole step ahead of slow readers. */
static void ahead(int step, int i) {
  static cudaEvent_t read[BUFFERS];
  if (!read[i]) CHECK(cudaEventCreateWithFlags(&read[i], cudaEventDisableTiming));
  CHECK(cudaStreamWaitEvent(receives, read[i], 0)); /* the reader of the step before */
  transfer(buffers[i], step * 16 + i, BYTES);
  wait_for_message();
  unsigned char *to = sink + i;
  void *params[] = {&buffers[i], &to};
  CHECK(cuLaunchKernel(slow, 1, 1, 1, 1, 1, 1, 0, (CUstream)compute, params, NULL));
  CHECK(cudaEventRecord(read[i], compute));
  for (int j = 0; i == BUFFERS - 1 && j < BUFFERS; j++)
    printf("%d ", byte_at(sink + j));
}

/* The same, where a value in memory tells the receives that the reader is done, instead of an event. */
static void values(int step, int i) {
  static CUdeviceptr turns;
  void *room;
  if (!turns) {
    CHECK(cudaMalloc(&room, 256));
    CHECK(cudaMemset(room, 0, 256));
    turns = (CUdeviceptr)(uintptr_t)room;
  }
  CUdeviceptr turn = turns + 4 * (CUdeviceptr)i;
  CHECK(cuStreamWaitValue32((CUstream)receives, turn, (cuuint32_t)step, CU_STREAM_WAIT_VALUE_GEQ));
  transfer(buffers[i], step * 16 + i, BYTES);
  wait_for_message();
  read_into(buffers[i], sink + i);
  CHECK(cuStreamWriteValue32((CUstream)compute, turn, (cuuint32_t)step + 1, CU_STREAM_WRITE_VALUE_DEFAULT));
  for (int j = 0; i == BUFFERS - 1 && j < BUFFERS; j++)
    printf("%d ", byte_at(sink + j));
}

/* All messages of a step arrive, and are read through a table of pointers that lies in device memory. */
static void table(int step, int i) {
  static unsigned char **pointers;
  if (!pointers) CHECK(cudaMalloc((void **)&pointers, 256));
  transfer(buffers[i], step * 16 + i, BYTES);
  wait_for_message();
  for (int j = 0; i == BUFFERS - 1 && j < BUFFERS; j++) {
    unsigned char *to = sink + j;
    void *params[] = {&pointers, &to};
    CHECK(cudaMemcpyAsync(pointers, &buffers[j], sizeof(void *), cudaMemcpyHostToDevice, compute));
    CHECK(cuLaunchKernel(by_table, 1, 1, 1, 1, 1, 1, 0, (CUstream)compute, params, NULL));
    printf("%d ", byte_at(to));
  }
}

/* A copy out of a buffer whose message is done with, in a batch: correct where nothing is shared. */
static void late_batch(int step, int i) {
  usual(step, i);
  if (step != LATE || i != 4) return;
  CUdeviceptr to[] = {(CUdeviceptr)(uintptr_t)sink, (CUdeviceptr)(uintptr_t)(sink + BYTES)};
  CUdeviceptr source[] = {(CUdeviceptr)(uintptr_t)buffers[1], (CUdeviceptr)(uintptr_t)from};
  size_t bytes[] = {BYTES, BYTES}, first = 0;
  CUmemcpyAttributes attributes = {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
#if CUDA_VERSION >= 13000
  CHECK(cuMemcpyBatchAsync(to, source, bytes, 2, &attributes, &first, 1, (CUstream)compute));
#else
  size_t failed = 0;
  CHECK(cuMemcpyBatchAsync(to, source, bytes, 2, &attributes, &first, 1, &failed, (CUstream)compute));
#endif
  CHECK(cudaDeviceSynchronize());
}

/* Two messages in each buffer; the second half of it arrives with the first half of the next. */
static void halves(int step, int i) {
  if (i == 0) transfer(buffers[0], step * 16 + 100, BYTES / 2);
  transfer(buffers[i] + BYTES / 2, step * 16 + i, BYTES / 2);
  wait_for_message();
  read_into(buffers[i], sink + i);
  printf("%d %d ", byte_at(sink + i), byte_at(buffers[i]));
  if (i + 1 < BUFFERS) transfer(buffers[i + 1], step * 16 + i + 101, BYTES / 2);
}

/* ... first the first half of all, then the other one. */
static void halves_later(int step, int i) {
  for (int j = 0; i == 0 && j < BUFFERS; j++) {
    transfer(buffers[j], step * 16 + j + 50, BYTES / 2);
    wait_for_message();
    printf("%d ", byte_at(buffers[j]));
  }
  transfer(buffers[i] + BYTES / 2, step * 16 + i, BYTES / 2);
  wait_for_message();
  read_into(buffers[i], sink + i);
  printf("%d %d ", byte_at(sink + i), byte_at(buffers[i]));
}

int main(int argc, char **argv) {
  static const struct {
    const char *name;
    void (*message)(int step, int i);
    int blocking;
  } modes[] = {{"recycled", recycled, 1},
               {"late_batch", late_batch, 1},
               {"halves", halves, 1},
               {"halves_later", halves_later, 1},
               {"nonblocking", usual, 0},
               {"brim", brim, 1},
               {"temporaries", temporaries, 1},
               {"pooled", pooled, 1},
               {"table", table, 1},
               {"ahead", ahead, 1},
               {"values", values, 1}};
  for (size_t m = 0; argc == 2 && m < sizeof modes / sizeof *modes; m++) {
    if (strcmp(argv[1], modes[m].name) != 0) continue;
    start(modes[m].blocking);
    for (int step = 0; step < STEPS; step++)
      for (int i = 0; i < BUFFERS; i++)
        modes[m].message(step, i);
    printf("done\n");
    return 0;
  }
  fprintf(stderr, "usage: enforce_odd MODE, see the source\n");
  return 2;
}
