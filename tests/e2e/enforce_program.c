/* What a program may do with its buffers besides training, one thing per mode: enforce_program MODE. It
 * prints what it sees, and must see the same whether or not its buffers come from a pool. Buffers are of a
 * size that the test plans, so that a pool gives address space only. */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nccl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/sim/cudart/registration.h"
#include "tests/sim/rpsim.h"

/* Asked by LeakSanitizer, which cannot look into a process that runs with another user's rights. */
__attribute__((visibility("default"))) int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void) {
  return getuid() != geteuid();
}

#define BUFFERS 8
#define BYTES ((size_t)2 << 20)

static void check(int error, const char *what) {
  if (error == 0) return;
  printf("%s: error %d\n", what, error);
  exit(3);
}

static void *allocate(void) {
  void *memory = NULL;
  check(cudaMalloc(&memory, BYTES), "cudaMalloc");
  return memory;
}

static void *buffers[BUFFERS];

static void allocate_all(void) {
  for (int i = 0; i < BUFFERS; i++)
    buffers[i] = allocate();
}

static void free_all(void) {
  for (int i = 0; i < BUFFERS; i++)
    check(cudaFree(buffers[i]), "cudaFree");
}

/* ---- transfers to oneself ---- */

struct stage {
  ncclComm_t comm;
  cudaStream_t stream;
  void *from;
};

static void stage_create(struct stage *s) {
  ncclUniqueId id;
  check(ncclGetUniqueId(&id), "ncclGetUniqueId");
  check(ncclCommInitRank(&s->comm, 1, id, 0), "ncclCommInitRank");
  check(cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking), "cudaStreamCreate");
  check(cudaMalloc(&s->from, 2 * BYTES), "cudaMalloc");
}

static void receive(const struct stage *s, void *into, int value) {
  check(cudaMemsetAsync(s->from, value, BYTES, s->stream), "cudaMemsetAsync");
  check(ncclGroupStart(), "ncclGroupStart");
  check(ncclSend(s->from, BYTES, ncclUint8, 0, s->comm, s->stream), "ncclSend");
  check(ncclRecv(into, BYTES, ncclUint8, 0, s->comm, s->stream), "ncclRecv");
  check(ncclGroupEnd(), "ncclGroupEnd");
}

static int last_byte(const void *buffer, cudaStream_t stream) {
  unsigned char byte = 0;
  check(cudaMemcpyAsync(&byte, (const char *)buffer + BYTES - 1, 1, cudaMemcpyDeviceToHost, stream), "copy");
  check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  return byte;
}

static void run_step(const struct stage *s, int value) {
  for (int i = 0; i < BUFFERS; i++) {
    receive(s, buffers[i], value + i);
    printf("%d ", last_byte(buffers[i], s->stream));
  }
  printf("\n");
}

static void train(int steps) {
  struct stage s;
  stage_create(&s);
  for (int step = 0; step < steps; step++)
    run_step(&s, step * 10 + 1);
}

/* ---- modes ---- */

static void ask_runtime(const char *buffer, size_t offset) {
  struct cudaPointerAttributes a;
  int error = cudaPointerGetAttributes(&a, buffer + offset);
  printf("runtime %d type %d device %d at %zd host %p\n", error, (int)a.type, a.device,
         (char *)a.devicePointer - buffer, a.hostPointer);
}

static void ask_driver(CUdeviceptr buffer, size_t offset) {
  CUcontext context = NULL, current = NULL;
  CUdeviceptr start = 0, base = 0, at = 0;
  size_t size = 0, range = 0;
  int mapped = -1, device = -1;
  unsigned type = 0;
  check(cuCtxGetCurrent(&current), "cuCtxGetCurrent");
  int errors = cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, buffer + offset);
  errors += cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, buffer + offset);
  errors += cuPointerGetAttribute(&mapped, CU_POINTER_ATTRIBUTE_MAPPED, buffer + offset);
  CUpointer_attribute wanted[] = {CU_POINTER_ATTRIBUTE_RANGE_SIZE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                  CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_POINTER};
  void *data[] = {&size, &device, &type, &at};
  errors += cuPointerGetAttributes(4, wanted, data, buffer + offset);
  int range_error = cuMemGetAddressRange(&base, &range, buffer + offset);
  printf("driver %d context %d start %d size %zu mapped %d device %d type %u at %zu range %d %d %zu\n",
         errors, context == current, start == buffer, size, mapped, device, type, (size_t)(at - buffer),
         range_error, base == buffer, range);
}

static void pointers(void) {
  allocate_all();
  for (int i = 0; i < BUFFERS; i++) {
    ask_runtime(buffers[i], 0);
    ask_runtime(buffers[i], BYTES / 2 + 8);
    ask_driver((CUdeviceptr)buffers[i], 0);
    ask_driver((CUdeviceptr)buffers[i], BYTES - 1);
  }
  train(2);
  ask_driver((CUdeviceptr)buffers[BUFFERS - 1], 4096);
  free_all();
}

static void double_free(void) {
  allocate_all();
  train(1);
  check(cudaFree(buffers[3]), "cudaFree");
  printf("again %d\n", (int)cudaFree(buffers[3]));
  printf("inside %d\n", (int)cudaFree((char *)buffers[4] + 512));
  buffers[3] = allocate();
  check(cudaMemset(buffers[3], 1, BYTES), "cudaMemset");
  free_all();
}

static void *free_there(void *unused) {
  (void)unused;
  free_all();
  return NULL;
}

static void other_thread(void) {
  pthread_t thread;
  allocate_all();
  train(2);
  check(pthread_create(&thread, NULL, free_there, NULL), "pthread_create");
  (void)pthread_join(thread, NULL);
  printf("freed\n");
}

/* Runs after everything that was registered later, so after the agent has finished. */
static bool free_at_end;
static __attribute__((destructor)) void at_end(void) {
  if (!free_at_end) return;
  free_all();
  printf("freed at the end\n");
}

static void leave(void) {
  allocate_all();
  train(2);
  free_at_end = true;
}

static void reset(void) {
  allocate_all();
  train(2);
  check(cudaDeviceReset(), "cudaDeviceReset");
  printf("stale %d\n", cudaFree(buffers[0]) != cudaSuccess);
  allocate_all();
  train(2);
  free_all();
}

static void fork_child(void) {
  allocate_all();
  train(2);
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) _exit(7);
  int status = 0;
  (void)waitpid(child, &status, 0);
  printf("child %d\n", WEXITSTATUS(status));
  train(2);
  free_all();
}

/* As a library with its own copy of the runtime does: no call that could be interposed. */
static void unseen_touch(void) {
  CUresult (*set)(CUdeviceptr, unsigned char, size_t, CUstream);
  void *driver = dlopen("libcuda.so.1", RTLD_LAZY);
  *(void **)&set = driver ? dlsym(driver, "cuMemsetD8Async") : NULL;
  if (!set) exit(3);
  for (int i = 0; i < BUFFERS; i++) {
    buffers[i] = allocate();
    check((int)set((CUdeviceptr)buffers[i], (unsigned char)(i + 1), BYTES, 0), "cuMemsetD8Async");
  }
  for (int i = 0; i < BUFFERS; i++)
    printf("%d ", last_byte(buffers[i], 0));
  printf("\n");
  train(3);
  free_all();
}

/* ---- launches as nvcc 13 compiles them ---- */

static char fill_symbol; /* stands for the __global__ function */

static void fill_kernel(void *const *params, const struct rpsim_dims *dims) {
  (void)dims;
  memset(*(void *const *)params[0], (int)*(const uint64_t *)params[1], BYTES);
}

static void register_fill(void) {
  static const struct rpsim_param params[] = {{0, 8}, {8, 8}};
  static const struct rpsim_kernel kernels[] = {{"_Z4fillPvm", fill_kernel, 2, params}};
  static struct rt_fat_binary binary = {RT_FAT_BINARY_MAGIC, RT_FAT_BINARY_VERSION,
                                        (const unsigned long long *)&fill_symbol, NULL};
  check(rpsim_register_kernels(kernels, 1), "rpsim_register_kernels");
  void **handle = __cudaRegisterFatBinary(&binary);
  __cudaRegisterFunction(handle, &fill_symbol, (char *)"_Z4fillPvm", "_Z4fillPvm", -1, NULL, NULL, NULL, NULL,
                         NULL);
  __cudaRegisterFatBinaryEnd(handle);
}

/* Kernels are the first to use buffers that have no memory yet. */
static void compiled_launch(void) {
  const dim3 one = {1, 1, 1};
  cudaKernel_t kernel;
  register_fill();
  check(__cudaGetKernel(&kernel, &fill_symbol), "__cudaGetKernel");
  allocate_all();
  for (uint64_t i = 0; i < BUFFERS; i++) {
    void *params[] = {&buffers[i], &i};
    check(__cudaLaunchKernel(kernel, one, one, params, 0, NULL), "__cudaLaunchKernel");
  }
  for (int i = 0; i < BUFFERS; i++)
    printf("%d ", last_byte(buffers[i], 0));
  printf("\n");
  train(3);
  free_all();
}

/* Weights of the very size, that come by a broadcast before anything else touches them. */
static void broadcast(void) {
  struct stage s;
  allocate_all();
  stage_create(&s);
  for (int i = 0; i < BUFFERS; i++) {
    check(cudaMemsetAsync(s.from, i + 40, BYTES, s.stream), "cudaMemsetAsync");
    check(ncclBroadcast(s.from, buffers[i], BYTES, ncclUint8, 0, s.comm, s.stream), "ncclBroadcast");
  }
  for (int i = 0; i < BUFFERS; i++)
    printf("%d ", last_byte(buffers[i], s.stream));
  printf("\n");
  free_all();
}

/* Prints nothing of the handle: memory of a pool has none. */
static void share(void) {
  cudaIpcMemHandle_t handle;
  allocate_all();
  train(3);
  (void)cudaIpcGetMemHandle(&handle, buffers[2]);
  train(3);
  free_all();
}

static void registered(void) {
  struct stage s;
  void *handle = NULL;
  allocate_all();
  stage_create(&s);
  check(ncclCommRegister(s.comm, buffers[1], BYTES, &handle), "ncclCommRegister");
  train(4);
  check(ncclCommDeregister(s.comm, handle), "ncclCommDeregister");
  free_all();
}

static void driver_api(void) {
  for (int i = 0; i < BUFFERS; i++) {
    CUdeviceptr address = 0;
    check(cudaFree(NULL), "cudaFree");
    check((int)cuMemAlloc(&address, BYTES), "cuMemAlloc");
    buffers[i] = (void *)address;
  }
  train(3);
  for (int i = 0; i < BUFFERS; i++)
    check((int)cuMemFree((CUdeviceptr)buffers[i]), "cuMemFree");
  printf("again %d\n", (int)cuMemFree((CUdeviceptr)buffers[0]));
}

/* What the current device may do with the buffer. */
static unsigned access_flags(const void *buffer) {
  unsigned flags = 0;
  check((int)cuPointerGetAttribute(&flags, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, (CUdeviceptr)buffer), "access");
  return flags;
}

/* Device 1 uses what was allocated on device 0, before it was allowed to and after. */
static void peers(void) {
  int devices = 0;
  check(cudaGetDeviceCount(&devices), "cudaGetDeviceCount");
  if (devices < 2) exit(2);
  allocate_all();
  train(3);
  check(cudaSetDevice(1), "cudaSetDevice");
  check(cudaDeviceEnablePeerAccess(0, 0), "cudaDeviceEnablePeerAccess");
  cudaStream_t stream;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  for (int i = 0; i < BUFFERS; i++) {
    check(cudaMemsetAsync(buffers[i], 70 + i, BYTES, stream), "cudaMemsetAsync");
    printf("%d ", last_byte(buffers[i], stream));
  }
  void *own = allocate();
  check(cudaMemcpyAsync(own, buffers[1], BYTES, cudaMemcpyDeviceToDevice, stream), "cudaMemcpyAsync");
  printf("%d %u\n", last_byte(own, stream), access_flags(buffers[1]));
  check(cudaFree(own), "cudaFree");
  check(cudaSetDevice(0), "cudaSetDevice");
  void *later = allocate();
  check(cudaSetDevice(1), "cudaSetDevice");
  check(cudaMemset(later, 5, BYTES), "cudaMemset");
  printf("%d %u\n", last_byte(later, stream), access_flags(later));
  check(cudaFree(later), "cudaFree");
  free_all();
}

/* The first use of another device comes late: once there is the file that GO names. */
static void second_device(void) {
  const struct timespec pause = {.tv_nsec = 5000000};
  const char *go = getenv("GO");
  if (!go) exit(2);
  for (int device = 0; device < 2; device++) {
    struct stage s;
    check(cudaSetDevice(device), "cudaSetDevice");
    check(cudaFree(NULL), "cudaFree");
    allocate_all();
    stage_create(&s);
    for (int step = 0; step < 6 || (device == 0 && access(go, F_OK) != 0); step++) {
      run_step(&s, step % 20 * 10 + 1);
      (void)nanosleep(&pause, NULL);
    }
    free_all();
  }
}

/* ---- work that waits for what is not on its stream ---- */

#define PATIENCE_SECONDS 60 /* beyond it nothing moves any more */

struct outside {
  struct stage stage;
  cudaStream_t compute;
  cudaEvent_t received;
  void *sink;
};

static void outside_create(struct outside *o) {
  check(cudaFree(NULL), "cudaFree"); /* what comes before the context is not the agent's */
  allocate_all();
  stage_create(&o->stage);
  check(cudaStreamCreateWithFlags(&o->compute, cudaStreamNonBlocking), "cudaStreamCreate");
  check(cudaEventCreateWithFlags(&o->received, cudaEventDisableTiming), "cudaEventCreate");
  check(cudaMalloc(&o->sink, 2 * BYTES), "cudaMalloc");
}

/* Receives on one stream and reads on the other. */
static void receive_and_read(const struct outside *o, int i, int value) {
  receive(&o->stage, buffers[i], value);
  check(cudaEventRecord(o->received, o->stage.stream), "cudaEventRecord");
  check(cudaStreamWaitEvent(o->compute, o->received, 0), "cudaStreamWaitEvent");
  check(cudaMemcpyAsync(o->sink, buffers[i], BYTES, cudaMemcpyDeviceToDevice, o->compute), "copy");
}

/* Until buffers share memory, and all that they did is known to be over. */
static void outside_train(const struct outside *o) {
  for (int n = 0; n < 5 * BUFFERS; n++) {
    receive_and_read(o, n % BUFFERS, n);
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
}

static void outside_end(const struct outside *o) {
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  printf("%d %d\n", last_byte(o->sink, o->compute), last_byte(buffers[1], o->compute));
  free_all();
}

static sem_t next_is_there;

static void wait_for_next(void *unused) {
  struct timespec until;
  (void)unused;
  (void)clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += PATIENCE_SECONDS;
  if (sem_timedwait(&next_is_there, &until) != 0) printf("stuck\n");
}

/* The reader's stream goes on once the next message is there, which nobody has ordered behind the reader. */
static void host_function(void) {
  struct outside o;
  outside_create(&o);
  outside_train(&o);
  (void)sem_init(&next_is_there, 0, 0);
  receive_and_read(&o, 0, 81);
  check(cudaLaunchHostFunc(o.compute, wait_for_next, NULL), "cudaLaunchHostFunc");
  receive(&o.stage, buffers[1], 82);
  check(cudaStreamSynchronize(o.stage.stream), "cudaStreamSynchronize");
  (void)sem_post(&next_is_there);
  outside_end(&o);
}

static bool done_in_time(cudaStream_t stream) {
  const struct timespec pause = {.tv_nsec = 2000000};
  for (int i = 0; i < PATIENCE_SECONDS * 500; i++) {
    if (cudaStreamQuery(stream) == cudaSuccess) return true;
    (void)nanosleep(&pause, NULL);
  }
  return false;
}

/* The same with a word in memory that the receives' stream writes. */
static void value_wait(void) {
  struct outside o;
  cudaStream_t help;
  outside_create(&o);
  CUdeviceptr word = (CUdeviceptr)o.sink + BYTES;
  check(cudaStreamCreateWithFlags(&help, cudaStreamNonBlocking), "cudaStreamCreate");
  check(cudaMemset((void *)word, 0, 4), "cudaMemset");
  outside_train(&o);
  receive_and_read(&o, 0, 81);
  check((int)cuStreamWaitValue32((CUstream)o.compute, word, 1, CU_STREAM_WAIT_VALUE_EQ),
        "cuStreamWaitValue32");
  receive(&o.stage, buffers[1], 82);
  check((int)cuStreamWriteValue32((CUstream)o.stage.stream, word, 1, 0), "cuStreamWriteValue32");
  if (!done_in_time(o.stage.stream)) {
    printf("stuck\n");
    check((int)cuStreamWriteValue32((CUstream)help, word, 1, 0), "cuStreamWriteValue32");
  }
  outside_end(&o);
}

struct reader {
  const struct outside *o;
  const void *buffer;
};

static void *read_there(void *argument) {
  const struct reader *reader = argument;
  check(cudaMemcpyAsync(reader->o->sink, reader->buffer, BYTES, cudaMemcpyDeviceToDevice, 0), "copy");
  return NULL;
}

/* Each message is read by a thread that has called nothing before, so no context is current there, on the
 * default stream; events order all of it. */
static void thread_first_call(void) {
  struct outside o;
  outside_create(&o);
  for (int n = 0; n < 8 * BUFFERS; n++) {
    struct reader reader = {&o, buffers[n % BUFFERS]};
    pthread_t thread;
    receive(&o.stage, buffers[n % BUFFERS], n);
    check(cudaEventRecord(o.received, o.stage.stream), "cudaEventRecord");
    check(cudaStreamWaitEvent(0, o.received, 0), "cudaStreamWaitEvent");
    check(pthread_create(&thread, NULL, read_there, &reader), "pthread_create");
    (void)pthread_join(thread, NULL);
    check(cudaEventRecord(o.received, 0), "cudaEventRecord");
    check(cudaStreamWaitEvent(o.stage.stream, o.received, 0), "cudaStreamWaitEvent");
    if (n < 3 * BUFFERS) check(cudaDeviceSynchronize(), "cudaDeviceSynchronize"); /* until memory is shared */
  }
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  printf("%d\n", last_byte(o.sink, o.compute));
  free_all();
}

int main(int argc, char **argv) {
  static const struct {
    const char *name;
    void (*run)(void);
  } modes[] = {{"pointers", pointers},
               {"double_free", double_free},
               {"other_thread", other_thread},
               {"leave", leave},
               {"reset", reset},
               {"fork", fork_child},
               {"unseen_touch", unseen_touch},
               {"compiled_launch", compiled_launch},
               {"broadcast", broadcast},
               {"share", share},
               {"registered", registered},
               {"driver_api", driver_api},
               {"peers", peers},
               {"second_device", second_device},
               {"host_function", host_function},
               {"value_wait", value_wait},
               {"thread_first_call", thread_first_call}};
  for (size_t i = 0; argc == 2 && i < sizeof modes / sizeof modes[0]; i++)
    if (strcmp(argv[1], modes[i].name) == 0) {
      modes[i].run();
      printf("done\n");
      return 0;
    }
  fprintf(stderr, "enforce_program: no such mode\n");
  return 2;
}
