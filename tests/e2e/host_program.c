/* Programs that the agent may meet, one per mode: host_program MODE. Each prints a few lines that must not
 * depend on whether the agent is attached. */
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define BYTES ((size_t)1 << 20)
#define THREADS 8

static void check(cudaError_t error, const char *what) {
  if (error == cudaSuccess) return;
  printf("%s: error %d\n", what, (int)error);
  exit(3);
}

/* Allocates, fills, copies there and back, and sums up: real work whose result would show a disturbance. */
static uint64_t work(int seed, cudaStream_t stream) {
  unsigned char *device, *host = malloc(BYTES);
  uint64_t sum = 0;
  if (!host) exit(3);
  check(cudaMalloc((void **)&device, 2 * BYTES), "cudaMalloc");
  for (int round = 0; round < 20; round++) {
    check(cudaMemsetAsync(device, seed + round, BYTES, stream), "cudaMemsetAsync");
    check(cudaMemcpyAsync(device + BYTES, device, BYTES, cudaMemcpyDeviceToDevice, stream),
          "cudaMemcpyAsync");
    check(cudaMemcpyAsync(host, device + BYTES, BYTES, cudaMemcpyDeviceToHost, stream), "cudaMemcpyAsync");
    check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    for (size_t i = 0; i < BYTES; i += 4096)
      sum = sum * 31 + host[i];
  }
  check(cudaFree(device), "cudaFree");
  free(host);
  return sum;
}

static void print_work(const char *who, int seed) {
  printf("%s %llu\n", who, (unsigned long long)work(seed, NULL));
  fflush(stdout);
}

static int mode_no_cuda(void) {
  puts("no CUDA at all");
  return 0;
}

static int mode_no_nccl(void) {
  print_work("sum", 1);
  return 4;
}

/* A child after CUDA may do anything but CUDA; the agent must stay out of its way, however the child ends. */
static int mode_fork(void) {
  print_work("parent before", 1);
  for (int how = 0; how < 2; how++) {
    pid_t child = fork();
    if (child == 0) {
      printf("child %d\n", how);
      fflush(stdout);
      if (how) _exit(10 + how);
      exit(10);
    }
    int status = 0;
    waitpid(child, &status, 0);
    printf("child ended with %d\n", WEXITSTATUS(status));
  }
  print_work("parent after", 2);
  return 0;
}

static int mode_fork_first(void) {
  pid_t child = fork();
  if (child == 0) {
    print_work("child", 1);
    exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  print_work("parent", 2);
  return WEXITSTATUS(status);
}

static int mode_exec(char **argv) {
  print_work("before", 1);
  execl(argv[0], argv[0], "no_nccl", (char *)NULL);
  return 3;
}

/* A launcher that uses CUDA itself, as one that counts devices does, and starts what comes after the mode. */
static int mode_launch(char **argv) {
  if (!argv[2]) return 2;
  check(cudaFree(NULL), "cudaFree");
  pid_t child = fork();
  if (child == 0) {
    execvp(argv[2], argv + 2);
    _exit(127);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

static void *thread_main(void *seed_pointer) {
  cudaStream_t stream;
  uint64_t *slot = seed_pointer;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  *slot = work((int)*slot, stream);
  check(cudaStreamDestroy(stream), "cudaStreamDestroy");
  return NULL;
}

static int mode_threads(void) {
  pthread_t threads[THREADS];
  uint64_t slots[THREADS];
  for (int i = 0; i < THREADS; i++) {
    slots[i] = (uint64_t)i;
    if (pthread_create(&threads[i], NULL, thread_main, &slots[i]) != 0) return 3;
  }
  for (int i = 0; i < THREADS; i++) {
    pthread_join(threads[i], NULL);
    printf("thread %d %llu\n", i, (unsigned long long)slots[i]);
  }
  return 0;
}

static void *outlive_main(void *main_thread) {
  pthread_join(*(pthread_t *)main_thread, NULL);
  print_work("after main", 3);
  exit(0); /* the driver has threads of its own, which would keep the process alive */
}

static int mode_thread_outlives_main(void) {
  static pthread_t main_thread;
  pthread_t thread;
  main_thread = pthread_self();
  print_work("main", 1);
  if (pthread_create(&thread, NULL, outlive_main, &main_thread) != 0) return 3;
  pthread_exit(NULL);
}

/* NCCL that arrives with a library loaded after CUDA has started, as in Python programs. */
static int mode_late_module(void) {
  print_work("before", 1);
  void *module = dlopen(LATE_MODULE, RTLD_NOW | RTLD_LOCAL);
  if (!module) {
    printf("%s\n", dlerror());
    return 3;
  }
  int (*exchange)(int steps);
  *(void **)&exchange = dlsym(module, "late_module_exchange");
  return exchange ? exchange(4) : 3;
}

static int mode_quick_exit(void) {
  print_work("sum", 1);
  _exit(6);
}

static int mode_abort(void) {
  print_work("sum", 1);
  abort();
}

int main(int argc, char **argv) {
  const char *mode = argc > 1 ? argv[1] : "";
  static const struct {
    const char *name;
    int (*run)(void);
  } modes[] = {
      {"no_cuda", mode_no_cuda},
      {"no_nccl", mode_no_nccl},
      {"fork", mode_fork},
      {"fork_first", mode_fork_first},
      {"threads", mode_threads},
      {"thread_outlives_main", mode_thread_outlives_main},
      {"late_module", mode_late_module},
      {"quick_exit", mode_quick_exit},
      {"abort", mode_abort},
  };
  if (strcmp(mode, "exec") == 0) return mode_exec(argv);
  if (strcmp(mode, "launch") == 0) return mode_launch(argv);
  for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++)
    if (strcmp(mode, modes[i].name) == 0) return modes[i].run();
  return 2;
}
