// A library in front of NCCL and CUDA, as tools that count or trace calls are: each call is handed on to the
// mock that lies beside it, NCCL's under the names with a p.
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default"), noinline))

typedef int function(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);

static function *behind(const char *name) {
  char path[4096];
  Dl_info own;
  function *found = NULL;
  if (dladdr((void *)(uintptr_t)behind, &own) == 0) abort();
  const char *slash = strrchr(own.dli_fname, '/');
  int folder = slash ? (int)(slash - own.dli_fname) + 1 : 0;
  snprintf(path, sizeof path, "%.*slibattach_mock.so", folder, own.dli_fname);
  void *library = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
  if (library) *(void **)&found = dlsym(library, name);
  if (!found) abort();
  return found;
}

#define FORWARD(name, to)                                                                                    \
  EXPORT function name;                                                                                      \
  int name(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f) {                         \
    static function *target;                                                                                 \
    if (!target) target = behind(#to);                                                                       \
    return target(a, b, c, d, e, f);                                                                         \
  }
FORWARD(ncclRecv, pncclRecv)
FORWARD(ncclSend, pncclSend)
FORWARD(cudaMalloc, cudaMalloc)
FORWARD(cudaFree, cudaFree)
/* For a file with the agent's name: what it makes of its own accord. */
FORWARD(agent_create, cuMemCreate)
FORWARD(agent_reserve, cuMemAddressReserve)
