/* What a rank does in each scenario of the test of the simulated NCCL. Talks to the driver as an application
 * would. */
#include "test_rank.h"

#pragma GCC diagnostic ignored "-Wstrict-prototypes" /* two declarations in nccl.h */
#include <nccl.h>
#include <cuda.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../rpsim.h"

static int my_rank, rank_count;
static ncclUniqueId unique_id;
static CUcontext context;
static CUstream stream;
static ncclComm_t comm;

#define CHECK(condition)                                                                                     \
  do {                                                                                                       \
    if (!(condition)) {                                                                                      \
      fprintf(stderr, "rank %d: %s:%d: %s (%s)\n", my_rank, __FILE__, __LINE__, #condition,                  \
              ncclGetLastError(NULL));                                                                       \
      exit(1);                                                                                               \
    }                                                                                                        \
  } while (0)
#define CUDA(call) CHECK((call) == CUDA_SUCCESS)
#define NCCL(call) CHECK((call) == ncclSuccess)

/* ---- helpers ---- */

static void device_begin(void) {
  CUDA(cuInit(0));
  CUDA(cuDevicePrimaryCtxRetain(&context, 0));
  CUDA(cuCtxSetCurrent(context));
  CUDA(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
}

static void begin(void) {
  device_begin();
  NCCL(ncclCommInitRank(&comm, rank_count, unique_id, my_rank));
}

static void end(void) {
  NCCL(ncclCommDestroy(comm));
}

/* Device memory of at least one byte; device pointers are host addresses. */
static uint8_t *allocate(size_t bytes) {
  CUdeviceptr address = 0;
  CUDA(cuMemAlloc(&address, bytes ? bytes : 1));
  return (uint8_t *)(uintptr_t)address;
}

static void release(void *memory) {
  CUDA(cuMemFree((CUdeviceptr)(uintptr_t)memory));
}

static void synchronize(void) {
  CUDA(cuStreamSynchronize(stream));
}

static uint8_t pattern(size_t at, unsigned seed) {
  return (uint8_t)((at * 31 + (at >> 8) * 7 + (at >> 16) * 13 + seed * 101) & 0xff);
}

static void fill(uint8_t *data, size_t bytes, unsigned seed) {
  for (size_t i = 0; i < bytes; i++)
    data[i] = pattern(i, seed);
}

static bool holds(const uint8_t *data, size_t bytes, unsigned seed) {
  for (size_t i = 0; i < bytes; i++)
    if (data[i] != pattern(i, seed)) return false;
  return true;
}

static ncclResult_t async_error(void) {
  ncclResult_t error = ncclSuccess;
  NCCL(ncclCommGetAsyncError(comm, &error));
  return error;
}

/* All ranks have come here: the all-reduce of one element, as frameworks do it. */
static void barrier(void) {
  int32_t *one = (int32_t *)allocate(sizeof *one);
  *one = 1;
  NCCL(ncclAllReduce(one, one, 1, ncclInt32, ncclSum, comm, stream));
  synchronize();
  CHECK(*one == rank_count);
  release(one);
}

/* ---- kernels of the application ---- */

static void fill_body(void *const *params, const struct rpsim_dims *dims) {
  (void)dims;
  uint8_t *data;
  uint64_t bytes, seed;
  memcpy(&data, params[0], sizeof data);
  memcpy(&bytes, params[1], sizeof bytes);
  memcpy(&seed, params[2], sizeof seed);
  fill(data, bytes, (unsigned)seed);
}

static void copy_body(void *const *params, const struct rpsim_dims *dims) {
  (void)dims;
  uint8_t *to, *from;
  uint64_t bytes;
  memcpy(&to, params[0], sizeof to);
  memcpy(&from, params[1], sizeof from);
  memcpy(&bytes, params[2], sizeof bytes);
  memcpy(to, from, bytes);
}

static const struct rpsim_param three_words[] = {{0, 8}, {8, 8}, {16, 8}};
static const struct rpsim_kernel kernels[] = {{"test_fill", fill_body, 3, three_words},
                                              {"test_copy", copy_body, 3, three_words}};

static CUfunction kernel_function(const char *name) {
  static CUmodule module;
  static const uint32_t image[16] = {0xba55ed50};
  CUfunction function = NULL;
  if (!module) {
    CHECK(rpsim_register_kernels(kernels, sizeof kernels / sizeof *kernels) == 0);
    CUDA(cuModuleLoadData(&module, image));
  }
  CUDA(cuModuleGetFunction(&function, module, name));
  return function;
}

static void launch(const char *name, CUstream on, void *a, uint64_t b, uint64_t c) {
  void *params[] = {&a, &b, &c};
  CUDA(cuLaunchKernel(kernel_function(name), 1, 1, 1, 1, 1, 1, 0, on, params, NULL));
}

/* ---- point to point ---- */

static void ring_of(size_t bytes) {
  int next = (my_rank + 1) % rank_count, previous = (my_rank + rank_count - 1) % rank_count;
  uint8_t *out = allocate(bytes), *in = allocate(bytes);
  fill(out, bytes, (unsigned)my_rank);
  NCCL(ncclGroupStart());
  NCCL(ncclSend(out, bytes, ncclUint8, next, comm, (cudaStream_t)stream));
  NCCL(ncclRecv(in, bytes, ncclUint8, previous, comm, (cudaStream_t)stream));
  NCCL(ncclGroupEnd());
  synchronize();
  CHECK(async_error() == ncclSuccess);
  CHECK(holds(in, bytes, (unsigned)previous));
  release(out);
  release(in);
}

static void ring(void) {
  static const size_t sizes[] = {0, 1, 3, 4097, ((size_t)1 << 20) + 1, (size_t)64 << 20};
  begin();
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
    ring_of(sizes[i]);
  end();
}

/* Every rank sends to and receives from every other, several times, in one group: more than the buffers hold.
 */
static void dense_group(void) {
  enum { ROUNDS = 3 };
  const size_t bytes = ((size_t)1 << 20) + 7;
  uint8_t *out[ROUNDS], *in[ROUNDS][8];
  begin();
  uint64_t launches = rpsim_call_count("cuLaunchKernelEx");
  NCCL(ncclGroupStart());
  for (int round = 0; round < ROUNDS; round++) {
    fill(out[round] = allocate(bytes), bytes, (unsigned)(10 * round + my_rank));
    for (int peer = 0; peer < rank_count; peer++) {
      if (peer == my_rank) continue;
      NCCL(ncclGroupStart());
      NCCL(ncclSend(out[round], bytes, ncclUint8, peer, comm, stream));
      NCCL(ncclRecv(in[round][peer] = allocate(bytes), bytes, ncclUint8, peer, comm, stream));
      NCCL(ncclGroupEnd());
    }
  }
  CHECK(rpsim_call_count("cuLaunchKernelEx") == launches);
  NCCL(ncclGroupEnd());
  CHECK(rpsim_call_count("cuLaunchKernelEx") == launches + 1);
  synchronize();
  for (int round = 0; round < ROUNDS; round++)
    for (int peer = 0; peer < rank_count; peer++)
      CHECK(peer == my_rank || holds(in[round][peer], bytes, (unsigned)(10 * round + peer)));
  end();
}

/* Messages of one pair arrive in the order they were sent, whatever their sizes. */
static void pair_order(void) {
  static const size_t sizes[] = {5, 300000, 0, 5, 1, 300000};
  enum { N = sizeof sizes / sizeof *sizes };
  uint8_t *data[N];
  begin();
  for (int i = 0; i < N; i++) {
    data[i] = allocate(sizes[i]);
    if (my_rank == 0) fill(data[i], sizes[i], (unsigned)i);
    NCCL(my_rank == 0 ? ncclSend(data[i], sizes[i], ncclUint8, 1, comm, stream)
                      : ncclRecv(data[i], sizes[i], ncclUint8, 0, comm, stream));
  }
  synchronize();
  for (int i = 0; i < N; i++)
    CHECK(holds(data[i], sizes[i], (unsigned)i));
  end();
}

static void self_send(void) {
  const size_t bytes = 100001;
  begin();
  uint8_t *a = allocate(bytes), *b = allocate(bytes), *c = allocate(bytes), *d = allocate(bytes);
  fill(a, bytes, 1);
  fill(c, bytes, 2);
  NCCL(ncclGroupStart());
  NCCL(ncclRecv(b, bytes, ncclUint8, my_rank, comm, stream));
  NCCL(ncclSend(a, bytes, ncclUint8, my_rank, comm, stream));
  NCCL(ncclSend(c, bytes, ncclUint8, my_rank, comm, stream));
  NCCL(ncclRecv(d, bytes, ncclUint8, my_rank, comm, stream));
  NCCL(ncclGroupEnd());
  synchronize();
  CHECK(holds(b, bytes, 1) && holds(d, bytes, 2));
  CHECK(ncclSend(a, bytes, ncclUint8, my_rank, comm, stream) == ncclInvalidUsage);
  CHECK(ncclRecv(a, bytes, ncclUint8, my_rank, comm, stream) == ncclInvalidUsage);
  barrier();
  end();
}

static void size_mismatch(void) {
  begin();
  uint8_t *data = allocate(1000);
  NCCL(my_rank == 0 ? ncclSend(data, 1000, ncclUint8, 1, comm, stream)
                    : ncclRecv(data, 999, ncclUint8, 0, comm, stream));
  synchronize();
  if (my_rank == 1) {
    CHECK(async_error() == ncclInvalidUsage);
    CHECK(ncclRecv(data, 999, ncclUint8, 0, comm, stream) == ncclInvalidUsage);
  }
  NCCL(ncclCommAbort(comm));
}

/* ---- collectives ---- */

static void reductions(void) {
  const size_t n = 200003;
  float *out = (float *)allocate(n * 4), *in = (float *)allocate(n * 4);
  static const struct {
    ncclRedOp_t op;
  } operations[] = {{ncclSum}, {ncclProd}, {ncclMax}, {ncclMin}, {ncclAvg}};
  for (size_t k = 0; k < 5; k++) {
    for (size_t i = 0; i < n; i++)
      out[i] = (float)(i % 5 + 1 + (size_t)my_rank);
    NCCL(ncclAllReduce(out, in, n, ncclFloat32, operations[k].op, comm, stream));
    synchronize();
    for (size_t i = 0; i < n; i++) {
      float first = (float)(i % 5 + 1), sum = 0, product = 1;
      for (int r = 0; r < rank_count; r++) {
        sum += first + (float)r;
        product *= first + (float)r;
      }
      float last = first + (float)(rank_count - 1);
      float expected[] = {sum, product, last, first, sum / (float)rank_count};
      CHECK(in[i] == expected[k]);
    }
  }
  release(out);
  release(in);
}

#define REDUCE_TYPE(element, type)                                                                           \
  do {                                                                                                       \
    element *data = (element *)allocate(3 * sizeof(element));                                                \
    for (int i = 0; i < 3; i++)                                                                              \
      data[i] = (element)(i + my_rank);                                                                      \
    NCCL(ncclAllReduce(data, data, 3, type, ncclSum, comm, stream));                                         \
    synchronize();                                                                                           \
    for (int i = 0; i < 3; i++)                                                                              \
      CHECK(data[i] == (element)(i * rank_count + rank_count * (rank_count - 1) / 2));                       \
    release(data);                                                                                           \
  } while (0)

static void reduce_types(void) {
  REDUCE_TYPE(int8_t, ncclInt8);
  REDUCE_TYPE(uint8_t, ncclUint8);
  REDUCE_TYPE(int32_t, ncclInt32);
  REDUCE_TYPE(uint32_t, ncclUint32);
  REDUCE_TYPE(int64_t, ncclInt64);
  REDUCE_TYPE(uint64_t, ncclUint64);
  REDUCE_TYPE(double, ncclFloat64);
}

/* Values that both 16-bit formats hold exactly, in their bits. */
static void reduce_halves(void) {
  uint16_t *data = (uint16_t *)allocate(4);
  static const struct {
    ncclDataType_t type;
    uint16_t half, two, three_halves, six;
  } formats[] = {{ncclFloat16, 0x3800, 0x4000, 0x3e00, 0x4600},
                 {ncclBfloat16, 0x3f00, 0x4000, 0x3fc0, 0x40c0}};
  CHECK(rank_count == 3);
  for (int i = 0; i < 2; i++) {
    data[0] = formats[i].half;
    data[1] = formats[i].two;
    NCCL(ncclAllReduce(data, data, 2, formats[i].type, ncclSum, comm, stream));
    synchronize();
    CHECK(data[0] == formats[i].three_halves && data[1] == formats[i].six);
    NCCL(ncclAllReduce(data, data, 2, formats[i].type, ncclAvg, comm, stream));
    synchronize();
    CHECK(data[0] == formats[i].three_halves && data[1] == formats[i].six);
  }
  release(data);
}

static void rooted(void) {
  const size_t n = 100001;
  int root = rank_count - 1;
  uint8_t *data = allocate(n), *all = allocate(n * (size_t)rank_count);
  fill(data, n, (unsigned)my_rank);
  NCCL(ncclBroadcast(data, all, n, ncclUint8, root, comm, stream));
  synchronize();
  CHECK(holds(all, n, (unsigned)root));
  NCCL(ncclBcast(data, n, ncclUint8, 0, comm, stream));
  synchronize();
  CHECK(holds(data, n, 0));
  int64_t *number = (int64_t *)data, *sum = (int64_t *)all;
  *number = my_rank + 1;
  *sum = -1;
  NCCL(ncclReduce(number, sum, 1, ncclInt64, ncclSum, root, comm, stream));
  synchronize();
  CHECK(*sum == (my_rank == root ? rank_count * (rank_count + 1) / 2 : -1));
  fill(data, n, (unsigned)my_rank);
  NCCL(ncclGather(data, all, n, ncclUint8, root, comm, stream));
  synchronize();
  for (int r = 0; r < rank_count && my_rank == root; r++)
    CHECK(holds(all + (size_t)r * n, n, (unsigned)r));
  for (int r = 0; r < rank_count; r++)
    fill(all + (size_t)r * n, n, (unsigned)(r + my_rank));
  NCCL(ncclScatter(all, data, n, ncclUint8, root, comm, stream));
  synchronize();
  CHECK(holds(data, n, (unsigned)(root + my_rank)));
  release(data);
  release(all);
}

static void many_to_many(void) {
  const size_t n = 70001;
  uint8_t *all = allocate(n * (size_t)rank_count), *to = allocate(n * (size_t)rank_count);
  uint8_t *own = all + (size_t)my_rank * n; /* in place */
  fill(own, n, (unsigned)my_rank);
  NCCL(ncclAllGather(own, all, n, ncclUint8, comm, stream));
  synchronize();
  for (int r = 0; r < rank_count; r++)
    CHECK(holds(all + (size_t)r * n, n, (unsigned)r));
  for (int r = 0; r < rank_count; r++)
    fill(all + (size_t)r * n, n, (unsigned)(10 * my_rank + r));
  NCCL(ncclAlltoAll(all, to, n, ncclUint8, comm, stream));
  synchronize();
  for (int r = 0; r < rank_count; r++)
    CHECK(holds(to + (size_t)r * n, n, (unsigned)(10 * r + my_rank)));
  int32_t *numbers = (int32_t *)all, *block = (int32_t *)to;
  for (int i = 0; i < 2 * rank_count; i++)
    numbers[i] = i + my_rank;
  NCCL(ncclReduceScatter(numbers, block, 2, ncclInt32, ncclSum, comm, stream));
  synchronize();
  for (int i = 0; i < 2; i++)
    CHECK(block[i] == (2 * my_rank + i) * rank_count + rank_count * (rank_count - 1) / 2);
  release(all);
  release(to);
}

static void collectives(void) {
  begin();
  reductions();
  reduce_types();
  reduce_halves();
  rooted();
  many_to_many();
  end();
}

/* ---- communicators ---- */

static void split(void) {
  begin();
  ncclComm_t whole = comm, half = NULL, none = comm;
  int rank = -1, count = 0;
  NCCL(ncclCommSplit(whole, my_rank % 2, -my_rank, &half, NULL));
  NCCL(ncclCommUserRank(half, &rank));
  NCCL(ncclCommCount(half, &count));
  CHECK(count == (rank_count + 1 - my_rank % 2) / 2);
  CHECK(rank == count - 1 - my_rank / 2); /* the key turns the order round */
  int64_t *value = (int64_t *)allocate(8);
  *value = my_rank;
  NCCL(ncclAllReduce(value, value, 1, ncclInt64, ncclSum, half, stream));
  synchronize();
  CHECK(*value == (my_rank % 2) * count + count * (count - 1));
  NCCL(ncclCommSplit(whole, my_rank == 0 ? NCCL_SPLIT_NOCOLOR : 5, 0, &none, NULL));
  CHECK((none == NULL) == (my_rank == 0));
  if (none) NCCL(ncclCommDestroy(none));
  NCCL(ncclCommDestroy(half));
  barrier();
  end();
}

/* Two ranks in one process, driven by one thread. */
static void init_all(void) {
  ncclComm_t comms[2];
  CUstream streams[2];
  CUcontext contexts[2];
  float *data[2];
  CUDA(cuInit(0));
  NCCL(ncclCommInitAll(comms, 2, NULL));
  for (int i = 0; i < 2; i++) {
    int device = -1;
    CUDA(cuDevicePrimaryCtxRetain(&contexts[i], i));
    CUDA(cuCtxSetCurrent(contexts[i]));
    CUDA(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
    data[i] = (float *)allocate(4);
    data[i][0] = (float)(i + 1);
    NCCL(ncclCommCuDevice(comms[i], &device));
    CHECK(device == i);
  }
  NCCL(ncclGroupStart());
  for (int i = 0; i < 2; i++)
    NCCL(ncclAllReduce(data[i], data[i], 1, ncclFloat32, ncclSum, comms[i], streams[i]));
  NCCL(ncclGroupEnd());
  for (int i = 0; i < 2; i++) {
    CUDA(cuCtxSetCurrent(contexts[i]));
    CUDA(cuStreamSynchronize(streams[i]));
    CHECK(data[i][0] == 3);
  }
  for (int i = 0; i < 2; i++)
    NCCL(ncclCommDestroy(comms[i]));
  CHECK(ncclCommInitAll(comms, 3, NULL) == ncclInvalidArgument);
  CHECK(ncclCommInitAll(comms, 2, (const int[]){1, 1}) == ncclInvalidUsage);
}

static void user_errors(void) {
  device_begin();
  CHECK(ncclCommInitRank(&comm, 0, unique_id, 0) == ncclInvalidArgument);
  CHECK(ncclCommInitRank(&comm, 2, unique_id, 2) == ncclInvalidArgument);
  CHECK(ncclCommInitRank(NULL, 1, unique_id, 0) == ncclInvalidArgument);
  ncclUniqueId nonsense;
  memset(&nonsense, 7, sizeof nonsense);
  CHECK(ncclCommInitRank(&comm, 1, nonsense, 0) == ncclInvalidArgument);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.magic = 1;
  CHECK(ncclCommInitRankConfig(&comm, 1, unique_id, 0, &config) == ncclInvalidArgument);
  struct {
    ncclConfig_t known;
    int newer[4];
  } config_of_newer = {NCCL_CONFIG_INITIALIZER, {0}};
  config_of_newer.known.size = sizeof config_of_newer;
  config_of_newer.known.blocking = 1;
  config_of_newer.known.commName = "named";
  NCCL(ncclCommInitRankConfig(&comm, rank_count, unique_id, my_rank, &config_of_newer.known));
  uint8_t *data = allocate(8);
  CHECK(ncclSend(data, 1, ncclUint8, rank_count, comm, stream) == ncclInvalidArgument);
  CHECK(ncclRecv(data, 1, ncclUint8, -1, comm, stream) == ncclInvalidArgument);
  CHECK(ncclRecv(NULL, 1, ncclUint8, 0, comm, stream) == ncclInvalidArgument);
  CHECK(ncclRecv(data, 1, ncclNumTypes, 0, comm, stream) == ncclInvalidArgument);
  CHECK(ncclSend(data, 1, ncclUint8, 0, NULL, stream) == ncclInvalidArgument);
  CHECK(ncclAllReduce(data, data, 1, ncclUint8, (ncclRedOp_t)77, comm, stream) == ncclInvalidArgument);
  CHECK(ncclGroupEnd() == ncclInvalidUsage);
  uint64_t launches = rpsim_call_count("cuLaunchKernelEx");
  NCCL(ncclGroupStart());
  NCCL(ncclAllReduce(data, data, 1, ncclUint8, ncclSum, comm, stream));
  CHECK(ncclSend(data, 1, ncclUint8, rank_count, comm, stream) == ncclInvalidArgument);
  CHECK(ncclGroupEnd() == ncclInvalidArgument);
  CHECK(rpsim_call_count("cuLaunchKernelEx") == launches); /* nothing of a failed group is launched */
  void *handle = NULL, *memory = NULL;
  NCCL(ncclCommRegister(comm, data, 8, &handle));
  NCCL(ncclCommDeregister(comm, handle));
  CHECK(ncclCommShrink(comm, NULL, 0, NULL, NULL, 0) == ncclInvalidUsage);
  NCCL(ncclMemAlloc(&memory, 1000));
  memset(memory, 1, 1000);
  NCCL(ncclMemFree(memory));
  CHECK(ncclMemFree(data) == ncclInvalidArgument);
  barrier();
  NCCL(ncclCommFinalize(comm));
  CHECK(ncclSend(data, 1, ncclUint8, 0, comm, stream) == ncclInvalidUsage);
  end();
}

static void expect_init(ncclResult_t expected, int count, int rank) {
  device_begin();
  CHECK(ncclCommInitRank(&comm, count, unique_id, rank) == expected);
}

static void lonely(void) {
  expect_init(ncclSystemError, 2, my_rank);
}

static void twins(void) {
  expect_init(ncclInvalidUsage, 2, 0);
}

static void disagree(void) {
  expect_init(ncclInvalidUsage, 2 + my_rank, my_rank);
}

/* ---- ends ---- */

static void abort_wakes(void) {
  begin();
  uint8_t *data = allocate(8);
  barrier();
  if (my_rank == 0) {
    memset(data, 9, 8);
    NCCL(ncclRecv(data, 8, ncclUint8, 1, comm, stream));
    CHECK(cuStreamQuery(stream) == CUDA_ERROR_NOT_READY);
    NCCL(ncclCommAbort(comm));
    synchronize();
    CHECK(data[0] == 9 && data[7] == 9);
    return;
  }
  NCCL(ncclRecv(data, 8, ncclUint8, 0, comm, stream)); /* ends because rank 0 goes */
  synchronize();
  CHECK(async_error() == ncclRemoteError);
  NCCL(ncclCommAbort(comm));
}

static void dead_peer(void) {
  begin();
  uint8_t *data = allocate(8);
  /* All others are past their last message to rank 1 when it dies. */
  for (int rank = 0; rank < rank_count && my_rank == 1; rank++)
    if (rank != 1) NCCL(ncclRecv(data, 8, ncclUint8, rank, comm, stream));
  if (my_rank != 1) NCCL(ncclSend(data, 8, ncclUint8, 1, comm, stream));
  synchronize();
  if (my_rank == 1) kill(getpid(), SIGKILL);
  /* Rank 3 waits for the dead one, 0 and 2 for one another. */
  static const int peers[] = {2, -1, 0, 1};
  NCCL(ncclRecv(data, 8, ncclUint8, peers[my_rank], comm, stream));
  synchronize();
  CHECK(async_error() == ncclRemoteError);
  CHECK(ncclSend(data, 8, ncclUint8, 0, comm, stream) == ncclRemoteError);
  NCCL(ncclCommAbort(comm));
}

/* Rank 0 ends early and without destroying anything; the others go on without it. */
static void early_leaver(void) {
  begin();
  barrier();
  if (my_rank == 0) exit(0);
  uint8_t *data = allocate(1000);
  for (int round = 0; round < 50; round++) {
    int first = my_rank == 1;
    NCCL(first ? ncclSend(data, 1000, ncclUint8, 2, comm, stream)
               : ncclRecv(data, 1000, ncclUint8, 1, comm, stream));
    NCCL(first ? ncclRecv(data, 1000, ncclUint8, 2, comm, stream)
               : ncclSend(data, 1000, ncclUint8, 1, comm, stream));
  }
  synchronize();
  CHECK(async_error() == ncclSuccess);
  end();
}

static void bad_address(void) {
  begin();
  barrier();
  uint8_t *data = allocate((size_t)4 << 20);
  release(data);
  ncclResult_t result = my_rank == 0 ? ncclRecv(data, 4096, ncclUint8, 1, comm, stream)
                                     : ncclSend(data, 4096, ncclUint8, 0, comm, stream);
  CHECK(result == ncclSuccess || result == ncclUnhandledCudaError); /* the kernel may have faulted by then */
  CHECK(cuStreamSynchronize(stream) == CUDA_ERROR_ILLEGAL_ADDRESS);
}

/* ---- streams ---- */

static void stream_order(bool wait) {
  const size_t bytes = (size_t)1 << 16;
  CUstream compute;
  CUevent filled;
  begin();
  CUDA(cuStreamCreate(&compute, CU_STREAM_NON_BLOCKING));
  CUDA(cuEventCreate(&filled, CU_EVENT_DISABLE_TIMING));
  uint8_t *data = allocate(bytes);
  bool right = true;
  for (unsigned round = 0; round < 20; round++) {
    if (my_rank == 0) {
      launch("test_fill", compute, data, bytes, round);
      CUDA(cuEventRecord(filled, compute));
      if (wait) CUDA(cuStreamWaitEvent(stream, filled, 0));
      NCCL(ncclSend(data, bytes, ncclUint8, 1, comm, stream));
    } else {
      NCCL(ncclRecv(data, bytes, ncclUint8, 0, comm, stream));
    }
    synchronize();
    CUDA(cuStreamSynchronize(compute));
    if (my_rank == 1) right &= holds(data, bytes, round);
  }
  end();
  if (!right) exit(RANK_SAW_WRONG_DATA);
}

static void stream_order_waited(void) {
  stream_order(true);
}

static void stream_order_missing(void) {
  stream_order(false);
}

/* A group over two streams: one kernel, which both streams wait for and which waits for both. */
static void two_streams(void) {
  const size_t bytes = 50001;
  CUstream other;
  begin();
  CUDA(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  uint8_t *out[2] = {allocate(bytes), allocate(bytes)}, *in[2] = {allocate(bytes), allocate(bytes)};
  uint8_t *copy[2] = {allocate(bytes), allocate(bytes)};
  CUstream streams[2] = {stream, other};
  for (unsigned round = 0; round < 20; round++) {
    uint64_t launches = rpsim_call_count("cuLaunchKernelEx");
    for (int i = 0; i < 2; i++)
      launch("test_fill", streams[i], out[i], bytes, 2 * round + (unsigned)i);
    NCCL(ncclGroupStart());
    for (int i = 0; i < 2; i++) {
      NCCL(ncclSend(out[i], bytes, ncclUint8, 1 - my_rank, comm, streams[i]));
      NCCL(ncclRecv(in[i], bytes, ncclUint8, 1 - my_rank, comm, streams[1 - i]));
    }
    NCCL(ncclGroupEnd());
    CHECK(rpsim_call_count("cuLaunchKernelEx") == launches + 1);
    for (int i = 0; i < 2; i++)
      launch("test_copy", streams[i], copy[i], (uint64_t)(uintptr_t)in[i], bytes);
    for (int i = 0; i < 2; i++)
      CUDA(cuStreamSynchronize(streams[i]));
    for (int i = 0; i < 2; i++)
      CHECK(holds(copy[i], bytes, 2 * round + (unsigned)i));
  }
  end();
}

/* Two streams of the application on one communicator: its kernels run in the order of the calls on every
 * rank. */
static void crossed_streams(void) {
  CUstream other;
  begin();
  CUDA(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  uint8_t *a = allocate(1000), *b = allocate(2000);
  for (unsigned round = 0; round < 30; round++) {
    if (my_rank == 0) {
      fill(a, 1000, round);
      fill(b, 2000, round + 1);
      NCCL(ncclSend(a, 1000, ncclUint8, 1, comm, stream));
      NCCL(ncclSend(b, 2000, ncclUint8, 1, comm, other));
    } else {
      NCCL(ncclRecv(a, 1000, ncclUint8, 0, comm, stream));
      NCCL(ncclRecv(b, 2000, ncclUint8, 0, comm, other));
    }
    synchronize();
    CUDA(cuStreamSynchronize(other));
    CHECK(async_error() == ncclSuccess);
    CHECK(my_rank == 0 || (holds(a, 1000, round) && holds(b, 2000, round + 1)));
  }
  end();
}

/* Found at run time, as an application does that also runs on drivers without graphs. */
static void *driver_entry(const char *name) {
  void *function = NULL;
  CUdriverProcAddressQueryResult status;
  CUDA(cuGetProcAddress(name, &function, CUDA_VERSION, CU_GET_PROC_ADDRESS_DEFAULT, &status));
  return function;
}

static CUgraphExec captured_transfer(uint8_t *data, size_t bytes) {
  CUresult (*begin_capture)(CUstream, CUstreamCaptureMode) = driver_entry("cuStreamBeginCapture");
  CUresult (*end_capture)(CUstream, CUgraph *) = driver_entry("cuStreamEndCapture");
  CUresult (*instantiate)(CUgraphExec *, CUgraph, unsigned long long) =
      driver_entry("cuGraphInstantiateWithFlags");
  CUgraph graph;
  CUgraphExec exec;
  CUDA(begin_capture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  NCCL(my_rank == 0 ? ncclSend(data, bytes, ncclUint8, 1, comm, stream)
                    : ncclRecv(data, bytes, ncclUint8, 0, comm, stream));
  CUDA(end_capture(stream, &graph));
  CUDA(instantiate(&exec, graph, 0));
  return exec;
}

/* With a profiler plugin, its events come at every launch of the graph; see test_nccl.c. */
static void graph_replay(void) {
  const size_t bytes = 3001;
  begin();
  CUresult (*graph_launch)(CUgraphExec, CUstream) = driver_entry("cuGraphLaunch");
  uint8_t *data = allocate(bytes);
  CUgraphExec exec = captured_transfer(data, bytes);
  for (unsigned round = 0; round < 4; round++) {
    if (my_rank == 0) fill(data, bytes, round);
    CUDA(graph_launch(exec, stream));
    synchronize();
    CHECK(my_rank == 0 || holds(data, bytes, round));
    barrier();
  }
  end();
}

/* What a profiler plugin is to see: a group of send and receive, one all-reduce; see test_nccl.c. */
static void profiled(void) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.commName = "pipe";
  device_begin();
  NCCL(ncclCommInitRankConfig(&comm, rank_count, unique_id, my_rank, &config));
  float *out = (float *)allocate(40), *in = (float *)allocate(40);
  fprintf(stdout, "buffers %p %p stream %p\n", (void *)out, (void *)in, (void *)stream);
  fflush(stdout);
  int peer = 1 - my_rank;
  NCCL(ncclGroupStart());
  NCCL(ncclSend(out, 10, ncclFloat32, peer, comm, stream));
  NCCL(ncclRecv(in, 10, ncclFloat32, peer, comm, stream));
  NCCL(ncclGroupEnd());
  NCCL(ncclAllReduce(out, in, 10, ncclFloat32, ncclSum, comm, stream));
  synchronize();
  end();
  printf("destroyed\n");
}

int rank_main(const char *scenario, int rank, int nranks, const char *id_text) {
  static const struct {
    const char *name;
    void (*run)(void);
  } scenarios[] = {
      {"ring", ring},
      {"dense_group", dense_group},
      {"pair_order", pair_order},
      {"self_send", self_send},
      {"size_mismatch", size_mismatch},
      {"collectives", collectives},
      {"split", split},
      {"init_all", init_all},
      {"user_errors", user_errors},
      {"lonely", lonely},
      {"twins", twins},
      {"disagree", disagree},
      {"abort_wakes", abort_wakes},
      {"dead_peer", dead_peer},
      {"early_leaver", early_leaver},
      {"bad_address", bad_address},
      {"stream_order_waited", stream_order_waited},
      {"stream_order_missing", stream_order_missing},
      {"two_streams", two_streams},
      {"crossed_streams", crossed_streams},
      {"graph_replay", graph_replay},
      {"profiled", profiled},
  };
  my_rank = rank;
  rank_count = nranks;
  for (size_t i = 0; i < sizeof unique_id.internal && id_text[2 * i]; i++) {
    unsigned byte = 0;
    CHECK(sscanf(id_text + 2 * i, "%2x", &byte) == 1);
    unique_id.internal[i] = (char)byte;
  }
  for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++) {
    if (strcmp(scenarios[i].name, scenario) != 0) continue;
    scenarios[i].run();
    return 0;
  }
  fprintf(stderr, "no scenario %s\n", scenario);
  return 2;
}
