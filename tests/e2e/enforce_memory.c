/* What a program may do with its memory besides training: sharing it with other processes, contexts of its
 * own, calls that are rarely used. enforce_memory MODE prints what it sees, and must see the same whether or
 * not its buffers come from a pool. */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nccl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/sim/rpsim.h"

#define BUFFERS 8
#define BYTES ((size_t)2 << 20)

static void check(int error, const char *what) {
  if (error == 0) return;
  printf("%s: error %d\n", what, error);
  exit(3);
}
#define CHECK(call) check((int)(call), #call)

static const char *program;
static void *buffers[BUFFERS];
static ncclComm_t comm;
static cudaStream_t stream;
static char *from;

/* The first of them comes before anything is hooked, and so from the driver. */
static void allocate_all(void) {
  for (int i = 0; i < BUFFERS; i++)
    CHECK(cudaMalloc(&buffers[i], BYTES));
}

static void free_all(void) {
  for (int i = 0; i < BUFFERS; i++)
    CHECK(cudaFree(buffers[i]));
}

static void start(void) {
  ncclUniqueId id;
  CHECK(ncclGetUniqueId(&id));
  CHECK(ncclCommInitRank(&comm, 1, id, 0));
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CHECK(cudaMalloc((void **)&from, 2 * BYTES));
}

static void receive(void *into, int value) {
  CHECK(cudaMemsetAsync(from, value, BYTES, stream));
  CHECK(ncclGroupStart());
  CHECK(ncclSend(from, BYTES, ncclUint8, 0, comm, stream));
  CHECK(ncclRecv(into, BYTES, ncclUint8, 0, comm, stream));
  CHECK(ncclGroupEnd());
}

static int last_byte(const void *buffer) {
  unsigned char byte = 0;
  CHECK(cudaMemcpyAsync(&byte, (const char *)buffer + BYTES - 1, 1, cudaMemcpyDeviceToHost, stream));
  CHECK(cudaStreamSynchronize(stream));
  return byte;
}

static void step(int value) {
  for (int i = 0; i < BUFFERS; i++) {
    receive(buffers[i], value + i);
    printf("%d ", last_byte(buffers[i]));
  }
  printf("\n");
}

static void train(int steps) {
  for (int i = 0; i < steps; i++)
    step(i * 10 + 1);
}

static void finish(void) {
  free_all();
  CHECK(cudaFree(from));
  printf("left %llu\n", (unsigned long long)rpsim_physical_bytes(0) >> 21);
}

/* What every mode does besides its own. */
static void plain(void) {
  allocate_all();
  start();
  train(4);
  finish();
}

/* ---- other processes ---- */

/* Runs this program as the other process, which gets the handle on its input. */
static void show_to_other(const cudaIpcMemHandle_t *handle) {
  int way[2];
  CHECK(pipe(way));
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    (void)dup2(way[0], STDIN_FILENO);
    (void)execl(program, program, "other", (char *)NULL);
    _exit(9);
  }
  if (write(way[1], handle, sizeof *handle) != (ssize_t)sizeof *handle) exit(3);
  int status = 0;
  (void)waitpid(child, &status, 0);
  (void)close(way[0]);
  (void)close(way[1]);
  printf("other ended with %d\n", WEXITSTATUS(status));
}

/* Reads the last byte of another process's memory and changes it; the same handle twice is one mapping. */
static void other(void) {
  cudaIpcMemHandle_t handle;
  unsigned char byte = 0;
  void *memory = NULL, *again = NULL;
  if (read(STDIN_FILENO, &handle, sizeof handle) != (ssize_t)sizeof handle) exit(3);
  CHECK(cudaFree(NULL));
  int opened = cudaIpcOpenMemHandle(&memory, handle, cudaIpcMemLazyEnablePeerAccess);
  printf("other opens %d\n", opened);
  if (opened) exit(4);
  CHECK(cudaMemcpy(&byte, (char *)memory + BYTES - 1, 1, cudaMemcpyDeviceToHost));
  printf("other reads %d\n", byte);
  CHECK(cudaMemset((char *)memory + BYTES - 1, byte + 1, 1));
  CHECK(cudaDeviceSynchronize());
  if (cudaIpcOpenMemHandle(&again, handle, cudaIpcMemLazyEnablePeerAccess) == cudaSuccess && again == memory)
    CHECK(cudaIpcCloseMemHandle(again));
  CHECK(cudaIpcCloseMemHandle(memory));
  printf("other closes again %d\n", cudaIpcCloseMemHandle(memory) != cudaSuccess);
}

static void export_one(void *buffer) {
  cudaIpcMemHandle_t handle, again;
  void *memory = NULL;
  memset(&handle, 0, sizeof handle);
  memset(&again, 0, sizeof again);
  int exported = cudaIpcGetMemHandle(&handle, buffer);
  printf("export %d\n", exported);
  if (exported) return;
  CHECK(cudaIpcGetMemHandle(&again, buffer));
  printf("same %d own %d\n", memcmp(&handle, &again, sizeof handle) == 0,
         cudaIpcOpenMemHandle(&memory, handle, cudaIpcMemLazyEnablePeerAccess));
  show_to_other(&handle);
  printf("now %d\n", last_byte(buffer));
}

/* Before anything was received. */
static void export_first(void) {
  allocate_all();
  start();
  CHECK(cudaMemset(buffers[2], 42, BYTES));
  export_one(buffers[2]);
  train(5);
  finish();
}

/* When the buffers share memory: what another process writes to one must not come out of another. */
static void export_late(void) {
  allocate_all();
  start();
  train(4);
  for (int i = 0; i < BUFFERS; i++) {
    receive(buffers[i], 60 + i);
    if (i == 5) {
      CHECK(cudaStreamSynchronize(stream)); /* the other process does not know our streams */
      export_one(buffers[i]);
    }
    printf("%d ", last_byte(buffers[i]));
  }
  printf("\n");
  export_one(buffers[5]);
  train(3);
  finish();
}

/* What is allocated after the first export has a handle of the driver's own. */
static void export_learned(void) {
  void *later = NULL;
  unsigned capable = 2;
  cudaIpcMemHandle_t handle;
  allocate_all();
  start();
  CHECK(cudaIpcGetMemHandle(&handle, buffers[3]));
  CHECK(cudaMalloc(&later, BYTES));
  CHECK(cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, (CUdeviceptr)later));
  printf("later capable %u\n", capable);
  CHECK(cudaFree(later));
  free_all();
}

/* ---- contexts ---- */

/* Memory of a context goes with it. */
static void contexts(void) {
  CUcontext primary = NULL, own = NULL, of = NULL;
  CUdeviceptr memory = 0;
  uint64_t first = 0;
  allocate_all();
  start();
  CHECK(cuCtxGetCurrent(&primary));
  for (int i = 0; i < 20; i++) {
#if CUDA_VERSION >= 13000
    CHECK(cuCtxCreate(&own, NULL, 0, 0));
#else
    CHECK(cuCtxCreate(&own, 0, 0));
#endif
    CHECK(cuMemAlloc(&memory, 3 * BYTES));
    CHECK(cuPointerGetAttribute(&of, CU_POINTER_ATTRIBUTE_CONTEXT, memory));
    if (of != own) printf("memory of another context\n");
    CHECK(cuCtxDestroy(own));
    CHECK(cuCtxSetCurrent(primary));
    if (i == 0) first = rpsim_physical_bytes(0);
  }
  CHECK(cuPointerGetAttribute(&of, CU_POINTER_ATTRIBUTE_CONTEXT, (CUdeviceptr)buffers[0]));
  printf("grown %lld primary %d\n", (long long)(rpsim_physical_bytes(0) - first), of == primary);
  train(4);
  finish();
}

/* ---- first touches, each by another call ---- */

static unsigned char *host;

static void touch_3d(void *buffer) {
  struct cudaMemcpy3DParms copy = {.srcPtr = make_cudaPitchedPtr(host, 4096, 4096, BYTES / 4096),
                                   .dstPtr = make_cudaPitchedPtr(buffer, 4096, 4096, BYTES / 4096),
                                   .extent = make_cudaExtent(4096, BYTES / 4096, 1),
                                   .kind = cudaMemcpyHostToDevice};
  CHECK(cudaMemcpy3D(&copy));
}

static void touch_3d_async(void *buffer) {
  struct cudaMemcpy3DParms copy = {.srcPtr = make_cudaPitchedPtr(host, 4096, 4096, BYTES / 4096),
                                   .dstPtr = make_cudaPitchedPtr(buffer, 4096, 4096, BYTES / 4096),
                                   .extent = make_cudaExtent(4096, BYTES / 4096, 1),
                                   .kind = cudaMemcpyHostToDevice};
  CHECK(cudaMemcpy3DAsync(&copy, stream));
}

static void touch_3d_peer(void *buffer) {
  struct cudaMemcpy3DPeerParms copy = {.srcPtr = make_cudaPitchedPtr(from, BYTES, BYTES, 1),
                                       .dstPtr = make_cudaPitchedPtr(buffer, BYTES, BYTES, 1),
                                       .extent = make_cudaExtent(BYTES, 1, 1)};
  CHECK(cudaMemcpy3DPeer(&copy));
}

static void touch_driver_3d(void *buffer) {
  CUDA_MEMCPY3D copy = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                        .srcHost = host,
                        .srcPitch = BYTES,
                        .srcHeight = 1,
                        .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                        .dstDevice = (CUdeviceptr)buffer,
                        .dstPitch = BYTES,
                        .dstHeight = 1,
                        .WidthInBytes = BYTES,
                        .Height = 1,
                        .Depth = 1};
  CHECK(cuMemcpy3D(&copy));
}

static void touch_driver_2d(void *buffer) {
  CUDA_MEMCPY2D copy = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                        .srcHost = host,
                        .srcPitch = 4096,
                        .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                        .dstDevice = (CUdeviceptr)buffer,
                        .dstPitch = 4096,
                        .WidthInBytes = 4096,
                        .Height = BYTES / 4096};
  CHECK(cuMemcpy2DAsync(&copy, stream));
}

static void touch_peer(void *buffer) {
  CUcontext context;
  CHECK(cuCtxGetCurrent(&context));
  CHECK(cuMemcpyPeer((CUdeviceptr)buffer, context, (CUdeviceptr)from, context, BYTES));
}

static void touch_peer_async(void *buffer) {
  CUcontext context;
  CHECK(cuCtxGetCurrent(&context));
  CHECK(cuMemcpyPeerAsync((CUdeviceptr)buffer, context, (CUdeviceptr)from, context, BYTES, stream));
}

static void touch_runtime_peer(void *buffer) {
  CHECK(cudaMemcpyPeer(buffer, 0, from, 0, BYTES));
}

static void touch_2d_set(void *buffer) {
  CHECK(cudaMemset2DAsync(buffer, 4096, 9, 4096, BYTES / 4096, stream));
}

static void touch_driver_2d_set(void *buffer) {
  CHECK(cuMemsetD2D32((CUdeviceptr)buffer, 4096, 0x09090909, 1024, BYTES / 4096));
}

static void touch_value(void *buffer) {
  CHECK(cuStreamWriteValue32(stream, (CUdeviceptr)buffer + BYTES - 4, 0x09090909, 0));
}

/* First of all where nothing was received yet; what an earlier step left there is not to be read. */
static void touch_wait(void *buffer) {
  static int calls;
  if (calls++ >= BUFFERS) CHECK(cudaMemsetAsync(buffer, 8, BYTES, stream));
  CHECK(cuStreamWaitValue32(stream, (CUdeviceptr)buffer, 0, CU_STREAM_WAIT_VALUE_GEQ));
  CHECK(cudaMemsetAsync(buffer, 9, BYTES, stream));
}

static void touch_batch(void *buffer) {
  CUdeviceptr to[2] = {(CUdeviceptr)buffer, (CUdeviceptr)buffer + BYTES / 2};
  CUdeviceptr source[2] = {(CUdeviceptr)from, (CUdeviceptr)from};
  size_t bytes[2] = {BYTES / 2, BYTES / 2}, first = 0;
  CUmemcpyAttributes attributes = {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
#if CUDA_VERSION >= 13000
  CHECK(cuMemcpyBatchAsync(to, source, bytes, 2, &attributes, &first, 1, stream));
#else
  size_t failed;
  CHECK(cuMemcpyBatchAsync(to, source, bytes, 2, &attributes, &first, 1, &failed, stream));
#endif
}

/* Found by name, from the driver and from the runtime. */
static void touch_by_driver_name(void *buffer) {
  CUresult (*set)(CUdeviceptr, unsigned char, size_t) = NULL;
  CUdriverProcAddressQueryResult found;
  CHECK(cuGetProcAddress("cuMemsetD8", (void **)&set, 12000, CU_GET_PROC_ADDRESS_DEFAULT, &found));
  CHECK(set((CUdeviceptr)buffer, 9, BYTES));
}

static void touch_by_runtime_name(void *buffer) {
  CUresult (*set)(CUdeviceptr, unsigned char, size_t, CUstream) = NULL;
  enum cudaDriverEntryPointQueryResult found;
  CHECK(cudaGetDriverEntryPointByVersion("cuMemsetD8Async", (void **)&set, 12000,
                                         cudaEnablePerThreadDefaultStream, &found));
  CHECK(set((CUdeviceptr)buffer, 9, BYTES, stream));
}

static const struct touch {
  const char *name;
  void (*touch)(void *buffer);
} touches[] = {
    {"cudaMemcpy3D", touch_3d},
    {"cudaMemcpy3DAsync", touch_3d_async},
    {"cudaMemcpy3DPeer", touch_3d_peer},
    {"cuMemcpy3D", touch_driver_3d},
    {"cuMemcpy2DAsync", touch_driver_2d},
    {"cuMemcpyPeer", touch_peer},
    {"cuMemcpyPeerAsync", touch_peer_async},
    {"cudaMemcpyPeer", touch_runtime_peer},
    {"cudaMemset2DAsync", touch_2d_set},
    {"cuMemsetD2D32", touch_driver_2d_set},
    {"cuStreamWriteValue32", touch_value},
    {"cuStreamWaitValue32", touch_wait},
    {"cuMemcpyBatchAsync", touch_batch},
    {"cuGetProcAddress", touch_by_driver_name},
    {"cudaGetDriverEntryPointByVersion", touch_by_runtime_name},
};

/* All buffers are allocated, then used by that call before anything else, then received into. */
static void touch(const struct touch *by) {
  host = malloc(BYTES);
  if (!host) exit(3);
  memset(host, 9, BYTES);
  allocate_all();
  start();
  CHECK(cudaMemset(from, 9, BYTES));
  for (int i = 0; i < BUFFERS; i++) {
    by->touch(buffers[i]);
    printf("%d ", last_byte(buffers[i]));
  }
  printf("\n");
  train(4);
  by->touch(buffers[5]);
  printf("%d\n", last_byte(buffers[5]));
  train(2);
  finish();
  free(host);
}

/* ---- allocating and freeing by entry points ---- */

static void by_name(void) {
  CUresult (*allocate)(CUdeviceptr *, size_t) = NULL, (*release)(CUdeviceptr) = NULL;
  CUdriverProcAddressQueryResult found;
  allocate_all();
  start();
  train(4);
  CHECK(cuGetProcAddress("cuMemFree", (void **)&release, 12000, CU_GET_PROC_ADDRESS_DEFAULT, &found));
  CHECK(cuGetProcAddress("cuMemAlloc", (void **)&allocate, 12000, CU_GET_PROC_ADDRESS_DEFAULT, &found));
  for (int i = 0; i < BUFFERS; i++)
    CHECK(release((CUdeviceptr)buffers[i]));
  for (int i = 0; i < BUFFERS; i++)
    CHECK(allocate((CUdeviceptr *)&buffers[i], BYTES));
  train(4);
  finish();
}

/* By a call that nothing can be put in front of: it may fail, but the memory comes back. */
static void by_dlsym(void) {
  int (*release)(void *) = (int (*)(void *))dlsym(RTLD_DEFAULT, "cudaFree");
  allocate_all();
  start();
  train(4);
  for (int i = 0; i < BUFFERS; i++)
    (void)release(buffers[i]);
  allocate_all();
  for (int i = 0; i < BUFFERS; i++)
    CHECK(release(buffers[i]));
  CHECK(cudaFree(from));
  printf("left %llu\n", (unsigned long long)rpsim_physical_bytes(0) >> 21);
}

/* What a library between the program and the runtime has seen, where there is one. */
static void tracked(void) {
  int (*live)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "memory_tracker_live");
  int (*unknown)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "memory_tracker_unknown");
  if (!live || !unknown) exit(2);
  allocate_all();
  start();
  train(4);
  printf("live %d\n", live());
  free_all();
  printf("live %d unknown %d\n", live(), unknown());
}

/* ---- groups that are not launched ---- */

static pthread_barrier_t meeting;

static void *simulate(void *unused) {
  ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
  CHECK(ncclGroupStart());
  CHECK(ncclSend(from, BYTES, ncclUint8, 0, comm, stream));
  CHECK(ncclRecv(buffers[3], BYTES, ncclUint8, 0, comm, stream));
  CHECK(ncclGroupSimulateEnd(&info));
  (void)pthread_barrier_wait(&meeting);
  (void)pthread_barrier_wait(&meeting);
  return unused;
}

/* By a thread that does nothing else: nobody may wait for its calls to be made. */
static void simulated_group(void) {
  pthread_t thread;
  allocate_all();
  start();
  train(1);
  (void)pthread_barrier_init(&meeting, NULL, 2);
  CHECK(pthread_create(&thread, NULL, simulate, NULL));
  (void)pthread_barrier_wait(&meeting);
  train(6);
  (void)pthread_barrier_wait(&meeting);
  CHECK(pthread_join(thread, NULL));
  finish();
}

/* ---- errors ---- */

static void errors(void) {
  void *memory = NULL;
  allocate_all();
  start();
  train(4);
  printf("%d %d ", cudaGetLastError(), cudaMalloc(&memory, (size_t)1 << 50));
  printf("last %d then %d\n", cudaGetLastError(), cudaGetLastError());
  CHECK(cudaFree(buffers[3]));
  printf("again %d ", cudaFree(buffers[3]));
  printf("last %d then %d\n", cudaGetLastError(), cudaGetLastError());
  printf("null %d last %d\n", cudaMalloc(NULL, BYTES), cudaGetLastError());
  printf("odd %d last %d\n", cudaFree((char *)buffers[4] + 64), cudaGetLastError());
  CHECK(cudaMalloc(&buffers[3], BYTES));
  train(2);
  finish();
}

/* The runtime's last error is that of the call, also where the driver was never asked. */
static void refused(void) {
  allocate_all();
  start();
  for (int i = 0; i < BUFFERS; i++) {
    int error = cudaMemsetAsync(buffers[i], 9, BYTES, stream);
    printf("%d last %d\n", error, cudaGetLastError());
  }
}

/* ---- attributes ---- */

/* Every number that is the same for memory of cudaMalloc; ids have to differ and nothing else is said of
 * them. */
static void attributes(void) {
  static const CUpointer_attribute same[] = {
      CU_POINTER_ATTRIBUTE_MEMORY_TYPE,    CU_POINTER_ATTRIBUTE_SYNC_MEMOPS,
      CU_POINTER_ATTRIBUTE_IS_MANAGED,     CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
      CU_POINTER_ATTRIBUTE_RANGE_SIZE,     CU_POINTER_ATTRIBUTE_MAPPED,
      CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, CU_POINTER_ATTRIBUTE_MAPPING_SIZE,
      CU_POINTER_ATTRIBUTE_ACCESS_FLAGS,
  };
  allocate_all();
  start();
  for (int round = 0; round < 2; round++) {
    uint64_t ids[BUFFERS], equal = 0;
    for (int i = 0; i < BUFFERS; i++) {
      CUdeviceptr begin = 0, mapping = 0;
      for (size_t a = 0; a < sizeof same / sizeof same[0]; a++) {
        uint64_t value = 0;
        int error = (int)cuPointerGetAttribute(&value, same[a], (CUdeviceptr)buffers[i] + 4096);
        printf("%d:%d:%llu ", (int)same[a], error, (unsigned long long)value);
      }
      CHECK(
          cuPointerGetAttribute(&begin, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, (CUdeviceptr)buffers[i] + 8));
      CHECK(cuPointerGetAttribute(&mapping, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR,
                                  (CUdeviceptr)buffers[i] + 8));
      CHECK(cuPointerGetAttribute(&ids[i], CU_POINTER_ATTRIBUTE_BUFFER_ID, (CUdeviceptr)buffers[i]));
      printf("begin %d mapping %d\n", begin == (CUdeviceptr)buffers[i], mapping == (CUdeviceptr)buffers[i]);
      for (int j = 0; j < i; j++)
        equal += ids[j] == ids[i];
    }
    printf("equal ids %llu\n", (unsigned long long)equal);
    train(4);
  }
  finish();
}

/* ---- graphs that are built by hand ---- */

static CUcontext current(void) {
  CUcontext context = NULL;
  CHECK(cuCtxGetCurrent(&context));
  return context;
}

static char *collected;

/* Copies the last byte of the buffer to its place among the collected ones. */
static void add_copy(CUgraph graph, int i) {
  CUgraphNode node;
  CUDA_MEMCPY3D copy = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                        .srcDevice = (CUdeviceptr)buffers[i] + BYTES - 1,
                        .srcPitch = 1,
                        .srcHeight = 1,
                        .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                        .dstDevice = (CUdeviceptr)collected + (size_t)i,
                        .dstPitch = 1,
                        .dstHeight = 1,
                        .WidthInBytes = 1,
                        .Height = 1,
                        .Depth = 1};
  CHECK(cuGraphAddMemcpyNode(&node, graph, NULL, 0, &copy, current()));
}

static void last_byte_kernel(void *const *params, const struct rpsim_dims *dims) {
  (void)dims;
  const char *buffer = *(const char **)params[0];
  char *to = *(char **)params[1];
  *to = buffer[BYTES - 1];
}
static const struct rpsim_param kernel_params[] = {{0, 8}, {8, 8}};
static const struct rpsim_kernel kernels[] = {{"_Z4lastPKcPc", last_byte_kernel, 2, kernel_params}};

static void add_kernel(CUgraph graph, int i) {
  static CUfunction function;
  CUmodule module;
  CUgraphNode node;
  void *to = collected + i, *params[] = {&buffers[i], &to};
  if (!function) {
    CHECK(rpsim_register_kernels(kernels, 1));
    CHECK(cuModuleLoadData(&module, "image"));
    CHECK(cuModuleGetFunction(&function, module, "_Z4lastPKcPc"));
  }
  CUDA_KERNEL_NODE_PARAMS launch = {.func = function,
                                    .gridDimX = 1,
                                    .gridDimY = 1,
                                    .gridDimZ = 1,
                                    .blockDimX = 1,
                                    .blockDimY = 1,
                                    .blockDimZ = 1,
                                    .kernelParams = params};
  CHECK(cuGraphAddKernelNode(&node, graph, NULL, 0, &launch));
}

/* Each step receives into every buffer and reads it at once; the graph reads all of them again at the end. */
static void read_by_graph(void (*add)(CUgraph graph, int i), int built_at) {
  CUgraph graph = NULL;
  CUgraphExec ready = NULL;
  unsigned char bytes[BUFFERS];
  allocate_all();
  start();
  CHECK(cudaMalloc((void **)&collected, 4096));
  for (int i = 0; i < 8; i++) {
    if (i == built_at) {
      CHECK(cuGraphCreate(&graph, 0));
      for (int j = 0; j < BUFFERS; j++)
        add(graph, j);
      CHECK(cuGraphInstantiate(&ready, graph, 0));
    }
    step(i * 10 + 1);
    if (!ready) continue;
    CHECK(cuGraphLaunch(ready, stream));
    CHECK(cudaMemcpyAsync(bytes, collected, sizeof bytes, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamSynchronize(stream));
    for (int j = 0; j < BUFFERS; j++)
      printf("%d ", bytes[j]);
    printf("by the graph\n");
  }
  CHECK(cudaFree(collected));
  finish();
}

static void graph_copy_first(void) {
  read_by_graph(add_copy, 0);
}

static void graph_copy_late(void) {
  read_by_graph(add_copy, 5);
}

static void graph_kernel_first(void) {
  read_by_graph(add_kernel, 0);
}

static void graph_kernel_late(void) {
  read_by_graph(add_kernel, 5);
}

/* A graph writes one buffer while others are received into. */
static void graph_set(void) {
  CUgraph graph = NULL;
  CUgraphExec ready = NULL;
  cudaGraphNode_t node;
  allocate_all();
  start();
  struct cudaMemsetParams set = {
      .dst = buffers[2], .value = 77, .elementSize = 1, .width = BYTES, .height = 1};
  CHECK(cuGraphCreate(&graph, 0));
  CHECK(cudaGraphAddMemsetNode(&node, graph, NULL, 0, &set));
  CHECK(cuGraphInstantiate(&ready, graph, 0));
  for (int i = 0; i < 8; i++) {
    for (int j = 0; j < BUFFERS; j++) {
      receive(buffers[j], i * 10 + j);
      if (j > 2 && i > 3) CHECK(cuGraphLaunch(ready, stream));
      printf("%d ", last_byte(buffers[j]));
    }
    printf("and %d\n", last_byte(buffers[2]));
  }
  finish();
}

/* ---- modes ---- */

int main(int argc, char **argv) {
  static const struct {
    const char *name;
    void (*run)(void);
  } modes[] = {
      {"plain", plain},
      {"other", other},
      {"export_first", export_first},
      {"export_late", export_late},
      {"export_learned", export_learned},
      {"contexts", contexts},
      {"by_name", by_name},
      {"by_dlsym", by_dlsym},
      {"tracked", tracked},
      {"simulated_group", simulated_group},
      {"errors", errors},
      {"refused", refused},
      {"attributes", attributes},
      {"graph_copy_first", graph_copy_first},
      {"graph_copy_late", graph_copy_late},
      {"graph_kernel_first", graph_kernel_first},
      {"graph_kernel_late", graph_kernel_late},
      {"graph_set", graph_set},
  };
  program = argv[0];
  for (size_t i = 0; argc == 2 && i < sizeof modes / sizeof modes[0]; i++)
    if (strcmp(argv[1], modes[i].name) == 0) {
      modes[i].run();
      printf("done\n");
      return 0;
    }
  for (size_t i = 0; argc == 2 && i < sizeof touches / sizeof touches[0]; i++)
    if (strcmp(argv[1], touches[i].name) == 0) {
      touch(&touches[i]);
      printf("done\n");
      return 0;
    }
  fprintf(stderr, "enforce_memory: no such mode\n");
  return 2;
}
