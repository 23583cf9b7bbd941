/* Loads the real CUDA runtime and NCCL by path, loads the agent and starts it as the driver would, and prints
 * what the program itself sees. Usage: real_libraries CUDART NCCL [AGENT]. On a machine without a driver
 * every call fails, and must fail the same with and without the agent. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>

static void *must_load(const char *path) {
  void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
  if (!library) printf("dlopen: %s\n", dlerror());
  return library;
}

int main(int argc, char **argv) {
  if (argc < 3) return 2;
  void *runtime = must_load(argv[1]), *nccl = must_load(argv[2]);
  if (!runtime || !nccl) return 3;
  if (argc > 3) {
    void *agent = dlopen(argv[3], RTLD_NOW | RTLD_LOCAL);
    if (!agent) printf("dlopen: %s\n", dlerror());
    int (*initialize)(void) = NULL;
    if (agent) *(void **)&initialize = dlsym(agent, "InitializeInjection");
    if (!initialize || initialize() != 1) return 4;
  }
  int (*allocate)(void **, size_t), (*version)(int *);
  const char *(*text)(int);
  *(void **)&allocate = dlsym(runtime, "cudaMalloc");
  *(void **)&text = dlsym(runtime, "cudaGetErrorName");
  *(void **)&version = dlsym(nccl, "ncclGetVersion");
  if (!allocate || !text || !version) return 3;
  void *memory = NULL;
  int error = allocate(&memory, 1 << 20), number = 0;
  printf("cudaMalloc: %d %s\n", error, text(error));
  version(&number);
  printf("NCCL %d\n", number);
  return error ? 5 : 0;
}
