/* Programs that make life hard for whatever is attached to them, one per mode: hard_program MODE. Each prints
 * a few lines and ends with a status that must not depend on whether the agent is attached. */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nccl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/sim/rpsim.h"

#define BUFFERS 8
#define BYTES ((size_t)64 << 10)
#ifdef HARD_PROGRAM_SANITIZED
#define DEEPBIND 0 /* sanitizers refuse it */
#else
#define DEEPBIND RTLD_DEEPBIND
#endif

static void check(int error, const char *what) {
  if (error == 0) return;
  printf("%s: error %d\n", what, error);
  exit(3);
}

/* ---- an allocator that notices who calls ---- */

static atomic_bool armed;
static void (*on_agent_allocation)(void);

#ifndef HARD_PROGRAM_SANITIZED
extern void *__libc_realloc(void *memory, size_t bytes);

static bool called_by_agent(void *address) {
  Dl_info info;
  return dladdr(address, &info) && info.dli_fname && strstr(info.dli_fname, "librecvpool");
}

__attribute__((visibility("default"))) void *realloc(void *memory, size_t bytes) {
  if (atomic_load(&armed) && called_by_agent(__builtin_return_address(0)) && atomic_exchange(&armed, false))
    on_agent_allocation();
  return __libc_realloc(memory, bytes);
}
#endif

/* ---- a stage that sends to itself ---- */

struct stage {
  ncclComm_t comm;
  cudaStream_t stream;
  unsigned char *from, *into[BUFFERS], *sink;
};

static unsigned char *device_buffer(void) {
  unsigned char *buffer = NULL;
  check(cudaMalloc((void **)&buffer, BYTES), "cudaMalloc");
  return buffer;
}

static void stage_create(struct stage *stage) {
  ncclUniqueId id;
  check(ncclGetUniqueId(&id), "ncclGetUniqueId");
  check(ncclCommInitRank(&stage->comm, 1, id, 0), "ncclCommInitRank");
  check(cudaStreamCreateWithFlags(&stage->stream, cudaStreamNonBlocking), "cudaStreamCreate");
  stage->from = device_buffer();
  stage->sink = device_buffer();
  for (int i = 0; i < BUFFERS; i++)
    stage->into[i] = device_buffer();
}

static void exchange(const struct stage *stage, int i) {
  check(ncclGroupStart(), "ncclGroupStart");
  check(ncclSend(stage->from, BYTES, ncclUint8, 0, stage->comm, stage->stream), "ncclSend");
  check(ncclRecv(stage->into[i], BYTES, ncclUint8, 0, stage->comm, stage->stream), "ncclRecv");
  check(ncclGroupEnd(), "ncclGroupEnd");
}

static void read_buffer(const struct stage *stage, int i) {
  check(cudaMemcpyAsync(stage->sink, stage->into[i], BYTES, cudaMemcpyDeviceToDevice, stage->stream),
        "cudaMemcpyAsync");
}

static void run_step(const struct stage *stage, int value) {
  for (int i = 0; i < BUFFERS; i++) {
    check(cudaMemsetAsync(stage->from, value + i, BYTES, stage->stream), "cudaMemsetAsync");
    exchange(stage, i);
    read_buffer(stage, i);
  }
}

static void print_sink(const char *what, const struct stage *stage) {
  unsigned char got = 0;
  check(cudaMemcpyAsync(&got, stage->sink + BYTES - 1, 1, cudaMemcpyDeviceToHost, stage->stream), "copy");
  check(cudaStreamSynchronize(stage->stream), "cudaStreamSynchronize");
  printf("%s %d\n", what, got);
  fflush(stdout);
}

/* ---- modes ---- */

static void leave_with_7(int number) {
  (void)number;
  exit(7);
}

static void raise_usr1(void) {
  raise(SIGUSR1);
}

/* exit from a signal handler, as many a SIGTERM handler does, wherever the signal strikes. */
static int mode_exit_in_handler(void) {
  struct stage stage;
  signal(SIGUSR1, leave_with_7);
  stage_create(&stage);
  print_sink("stage", &stage);
  on_agent_allocation = raise_usr1;
  atomic_store(&armed, true);
  for (int i = 0; i < 1000; i++)
    (void)device_buffer();
  return 7;
}

static void allocate_and_free(void) {
  void *memory;
  if (cudaMalloc(&memory, BYTES) == cudaSuccess) cudaFree(memory);
}

/* An allocator that takes pages from CUDA, as pinned-memory allocators do. */
static int mode_cuda_in_allocator(void) {
  struct stage stage;
  stage_create(&stage);
  on_agent_allocation = allocate_and_free;
  atomic_store(&armed, true);
  for (int step = 0; step < 5; step++)
    run_step(&stage, step);
  print_sink("done", &stage);
  return 0;
}

/* Warm-up, a step captured into a graph, many replays, and eager steps again. */
static int mode_graph(void) {
  struct stage stage;
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  stage_create(&stage);
  for (int step = 0; step < 4; step++)
    run_step(&stage, step);
  print_sink("eager", &stage);
  check(cudaStreamBeginCapture(stage.stream, cudaStreamCaptureModeThreadLocal), "begin capture");
  run_step(&stage, 50);
  check(cudaStreamEndCapture(stage.stream, &graph), "end capture");
  check(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
  for (int replay = 0; replay < 100; replay++)
    check(cudaGraphLaunch(executable, stage.stream), "cudaGraphLaunch");
  print_sink("replayed", &stage);
  for (int step = 0; step < 4; step++)
    run_step(&stage, 100 + step);
  print_sink("eager again", &stage);
  return 0;
}

static void copy_body(void *const *params, const struct rpsim_dims *dims) {
  (void)dims;
  memcpy(*(void **)params[0], *(void **)params[1], *(size_t *)params[2]);
}

static const struct rpsim_param copy_params[] = {{0, 8}, {8, 8}, {16, 8}};
static const struct rpsim_kernel copy_kernels[] = {
    {"_Z22ncclDevKernel_SendRecvPKc", copy_body, 3, copy_params},
    {"_Z4readPKc", copy_body, 3, copy_params},
};

static CUfunction function_named(const char *name) {
  static CUmodule module;
  CUfunction function = NULL;
  if (!module) check(cuModuleLoadData(&module, "image"), "cuModuleLoadData");
  check(cuModuleGetFunction(&function, module, name), "cuModuleGetFunction");
  return function;
}

struct launch {
  CUfunction function;
  const struct stage *stage;
  int buffer;
};

static void *launch_main(void *context) {
  const struct launch *launch = context;
  void *to = launch->stage->sink, *from = launch->stage->into[launch->buffer];
  struct {
    void *to, *from;
    size_t bytes;
  } packed = {to, from, BYTES};
  size_t packed_bytes = sizeof packed;
  void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &packed_bytes,
                   CU_LAUNCH_PARAM_END};
  check(cudaSetDevice(0), "cudaSetDevice");
  check(cuLaunchKernel(launch->function, 1, 1, 1, 1, 1, 1, 0, (CUstream)launch->stage->stream, NULL, extra),
        "cuLaunchKernel");
  return NULL;
}

/* NCCL's work launched by a thread of NCCL's own, after the group has ended: it names the buffers, and is
 * still no use of what was received. The last microbatch's kernel names every buffer. */
static int mode_nccl_thread(void) {
  struct stage stage;
  check(rpsim_register_kernels(copy_kernels, 2), "register");
  stage_create(&stage);
  CUfunction nccl = function_named(copy_kernels[0].name), reader = function_named(copy_kernels[1].name);
  for (int step = 0; step < 4; step++) {
    for (int i = 0; i < BUFFERS; i++) {
      struct launch launch = {reader, &stage, i};
      exchange(&stage, i);
      (void)launch_main(&launch);
    }
    for (int i = 0; i < BUFFERS; i++) {
      struct launch launch = {nccl, &stage, i};
      pthread_t thread;
      check(pthread_create(&thread, NULL, launch_main, &launch), "pthread_create");
      pthread_join(thread, NULL);
    }
  }
  print_sink("done", &stage);
  return 0;
}

/* Another module loaded and unloaded before every launch, as autotuners do. */
static void launch_between_unloads(int rounds) {
  struct stage stage;
  check(rpsim_register_kernels(copy_kernels, 2), "register");
  stage_create(&stage);
  exchange(&stage, 0);
  struct launch launch = {function_named(copy_kernels[1].name), &stage, 0};
  void *to = stage.sink, *from = stage.into[0];
  size_t bytes = BYTES;
  void *params[] = {&to, &from, &bytes};
  for (int i = 0; i < rounds; i++) {
    CUmodule other;
    check(cuModuleLoadData(&other, "image"), "cuModuleLoadData");
    check(cuModuleUnload(other), "cuModuleUnload");
    check(cuLaunchKernel(launch.function, 1, 1, 1, 1, 1, 1, 0, (CUstream)stage.stream, params, NULL),
          "cuLaunchKernel");
  }
  print_sink("done", &stage);
}

static int mode_few_unloads(void) {
  launch_between_unloads(100);
  return 0;
}

static int mode_many_unloads(void) {
  launch_between_unloads(3000);
  return 0;
}

static void *short_life(void *stage) {
  read_buffer(stage, 0);
  return NULL;
}

/* Thousands of threads that live for one call. */
static int mode_thread_storm(void) {
  struct stage stage;
  stage_create(&stage);
  run_step(&stage, 1);
  for (int round = 0; round < 40; round++) {
    pthread_t threads[64];
    for (int i = 0; i < 64; i++)
      check(pthread_create(&threads[i], NULL, short_life, &stage), "pthread_create");
    for (int i = 0; i < 64; i++)
      pthread_join(threads[i], NULL);
  }
  print_sink("done", &stage);
  return 0;
}

static atomic_bool stop_workers;

static void *allocate_until_stopped(void *unused) {
  while (!atomic_load(&stop_workers))
    allocate_and_free();
  return unused;
}

/* Children made and ended in every way while other threads are inside CUDA calls. */
static int mode_fork_storm(void) {
  pthread_t workers[4];
  struct stage stage;
  stage_create(&stage);
  for (int i = 0; i < 4; i++)
    check(pthread_create(&workers[i], NULL, allocate_until_stopped, NULL), "pthread_create");
  int sum = 0;
  for (int i = 0; i < 60; i++) {
    pid_t child = i % 3 == 2 ? vfork() : fork();
    if (child == 0) {
      if (i % 3 == 0) _exit(i);
      execl("/bin/sh", "sh", "-c", "exit 1", (char *)NULL);
      _exit(99);
    }
    int status = 0;
    waitpid(child, &status, 0);
    sum += WEXITSTATUS(status);
  }
  atomic_store(&stop_workers, true);
  for (int i = 0; i < 4; i++)
    pthread_join(workers[i], NULL);
  printf("children said %d\n", sum);
  return 0;
}

static void allocate_at_exit(void) {
  allocate_and_free();
  puts("exit handler");
}

static void __attribute__((destructor)) allocate_in_destructor(void) {
  if (getenv("HARD_PROGRAM_DESTRUCTOR")) allocate_and_free();
}

static void *exit_main(void *unused) {
  if (!unused) exit(9);
  return unused;
}

/* exit from another thread, while threads are in CUDA calls and exit handlers and destructors make more. */
static int mode_exit_elsewhere(void) {
  struct stage stage;
  pthread_t thread;
  setenv("HARD_PROGRAM_DESTRUCTOR", "1", 1);
  atexit(allocate_at_exit);
  stage_create(&stage);
  run_step(&stage, 1);
  print_sink("stage", &stage);
  for (int i = 0; i < 4; i++)
    check(pthread_create(&thread, NULL, allocate_until_stopped, NULL), "pthread_create");
  check(pthread_create(&thread, NULL, exit_main, NULL), "pthread_create");
  pthread_join(thread, NULL);
  return 3;
}

static void *reload(void *unused) {
  for (int i = 0; i < 60; i++) {
    void *module = dlopen(LATE_MODULE, RTLD_LAZY | RTLD_LOCAL | (i % 2 ? DEEPBIND : 0));
    if (module) dlclose(module);
  }
  return unused;
}

/* Modules come and go while others work. */
static int mode_reload(void) {
  struct stage stage;
  pthread_t threads[3];
  stage_create(&stage);
  for (int i = 0; i < 2; i++)
    check(pthread_create(&threads[i], NULL, reload, NULL), "pthread_create");
  check(pthread_create(&threads[2], NULL, allocate_until_stopped, NULL), "pthread_create");
  for (int step = 0; step < 20; step++)
    run_step(&stage, step);
  for (int i = 0; i < 2; i++)
    pthread_join(threads[i], NULL);
  atomic_store(&stop_workers, true);
  pthread_join(threads[2], NULL);
  print_sink("done", &stage);
  return 0;
}

static void tick(int number) {
  (void)number;
}

/* A sampling profiler's timer, an environment that changes all the time, and every descriptor closed again
 * and again. */
static int mode_busy_process(void) {
  struct stage stage;
  struct itimerval often = {{0, 500}, {0, 500}};
  struct sigaction action = {.sa_handler = tick, .sa_flags = SA_RESTART};
  sigaction(SIGPROF, &action, NULL);
  stage_create(&stage);
  setitimer(ITIMER_PROF, &often, NULL);
  for (int step = 0; step < 200; step++) {
    char text[32];
    snprintf(text, sizeof text, "%d", step);
    setenv("HARD_PROGRAM_STEP", text, 1);
    run_step(&stage, step);
  }
  print_sink("done", &stage);
  return 0;
}

static ncclComm_t split_of(ncclComm_t parent) {
  ncclComm_t comm = NULL;
  check(ncclCommSplit(parent, 0, 0, &comm, NULL), "ncclCommSplit");
  return comm;
}

static void send_to_self(const void *from, void *to, size_t bytes, ncclComm_t comm, cudaStream_t stream) {
  check(ncclGroupStart(), "ncclGroupStart");
  check(ncclGroupStart(), "ncclGroupStart");
  check(ncclSend(from, bytes, ncclUint8, 0, comm, stream), "ncclSend");
  check(ncclGroupEnd(), "ncclGroupEnd");
  check(ncclRecv(to, bytes, ncclUint8, 0, comm, stream), "ncclRecv");
  check(ncclGroupEnd(), "ncclGroupEnd");
}

/* Communicators made, split, destroyed and aborted for ever; transfers of nothing, into the middle of
 * buffers, over each other, and on from where they were received; memory that comes and goes at the same
 * address. */
static int mode_odd_transfers(void) {
  struct stage stage;
  stage_create(&stage);
  for (int round = 0; round < 300; round++) {
    ncclComm_t split = split_of(stage.comm);
    unsigned char *passing;
    check(cudaMallocAsync((void **)&passing, 4 * BYTES, stage.stream), "cudaMallocAsync");
    check(cudaMemsetAsync(stage.from, round, BYTES, stage.stream), "cudaMemsetAsync");
    send_to_self(stage.from, passing, 0, split, stage.stream);
    send_to_self(stage.from, passing + 100, BYTES, split, stage.stream);
    send_to_self(passing + 100, passing + 2 * BYTES, BYTES, stage.comm, stage.stream);
    send_to_self(passing + 2 * BYTES, passing + 2 * BYTES + 64, BYTES / 2, split, stage.stream);
    send_to_self(passing + 2 * BYTES, stage.into[round % BUFFERS], BYTES - (size_t)(round % 3), stage.comm,
                 stage.stream);
    check(cudaMemcpyAsync(stage.sink, stage.into[round % BUFFERS], BYTES - 2, cudaMemcpyDeviceToDevice,
                          stage.stream),
          "cudaMemcpyAsync");
    check(cudaFreeAsync(passing, stage.stream), "cudaFreeAsync");
    check(cudaStreamSynchronize(stage.stream), "cudaStreamSynchronize");
    check(round % 2 ? ncclCommDestroy(split) : ncclCommAbort(split), "end of communicator");
  }
  unsigned char got[2];
  check(cudaMemcpy(got, stage.sink, 2, cudaMemcpyDeviceToHost), "cudaMemcpy");
  printf("%d %d\n", got[0], got[1]);
  return 0;
}

struct cancelled {
  atomic_bool ready, go;
};

static void *allocate_when_cancelled(void *context) {
  struct cancelled *shared = context;
  int old;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
  atomic_store(&shared->ready, true);
  while (!atomic_load(&shared->go))
    sched_yield();
  pthread_setcancelstate(old, &old);
  allocate_and_free();
  pthread_testcancel();
  return NULL;
}

/* Threads that are cancelled, each about to allocate just after a module was loaded. */
static int mode_cancel(void) {
  int cancelled = 0;
  allocate_and_free();
  for (int round = 0; round < 20; round++) {
    void *result = NULL;
    struct cancelled shared = {0};
    pthread_t thread;
    check(pthread_create(&thread, NULL, allocate_when_cancelled, &shared), "pthread_create");
    while (!atomic_load(&shared.ready))
      sched_yield();
    pthread_cancel(thread);
    void *module = dlopen(LATE_MODULE, RTLD_LAZY | RTLD_LOCAL);
    atomic_store(&shared.go, true);
    pthread_join(thread, &result);
    cancelled += result == PTHREAD_CANCELED;
    if (module) dlclose(module);
    allocate_and_free();
  }
  printf("%d threads cancelled\n", cancelled);
  return 0;
}

/* The working folder goes away. */
static int mode_lost_folder(void) {
  struct stage stage;
  char folder[] = "/tmp/recvpool-hard-XXXXXX";
  if (!mkdtemp(folder) || chdir(folder) || rmdir(folder)) return 3;
  stage_create(&stage);
  run_step(&stage, 1);
  print_sink("done", &stage);
  return 0;
}

int main(int argc, char **argv) {
  const char *mode = argc > 1 ? argv[1] : "";
  static const struct {
    const char *name;
    int (*run)(void);
  } modes[] = {
      {"exit_in_handler", mode_exit_in_handler},
      {"cuda_in_allocator", mode_cuda_in_allocator},
      {"graph", mode_graph},
      {"nccl_thread", mode_nccl_thread},
      {"few_unloads", mode_few_unloads},
      {"many_unloads", mode_many_unloads},
      {"thread_storm", mode_thread_storm},
      {"fork_storm", mode_fork_storm},
      {"exit_elsewhere", mode_exit_elsewhere},
      {"reload", mode_reload},
      {"busy_process", mode_busy_process},
      {"cancel", mode_cancel},
      {"lost_folder", mode_lost_folder},
      {"odd_transfers", mode_odd_transfers},
  };
  for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++)
    if (strcmp(mode, modes[i].name) == 0) return modes[i].run();
  return 2;
}
