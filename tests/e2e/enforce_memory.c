/* What a program may do with its memory besides training: sharing it with other processes, contexts of its
 * own, calls that are rarely used. enforce_memory MODE prints what it sees, and must see the same whether or
 * not its buffers come from a pool. */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nccl.h>
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
    if (i == 5) export_one(buffers[i]);
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

/* ---- modes ---- */

int main(int argc, char **argv) {
  static const struct {
    const char *name;
    void (*run)(void);
  } modes[] = {
      {"other", other},
      {"export_first", export_first},
      {"export_late", export_late},
      {"export_learned", export_learned},
      {"contexts", contexts},
  };
  program = argv[0];
  for (size_t i = 0; argc == 2 && i < sizeof modes / sizeof modes[0]; i++)
    if (strcmp(argv[1], modes[i].name) == 0) {
      modes[i].run();
      printf("done\n");
      return 0;
    }
  fprintf(stderr, "enforce_memory: no such mode\n");
  return 2;
}
