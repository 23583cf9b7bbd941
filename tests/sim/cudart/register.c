/* Owns what programs register: device binaries, and the host symbols of their kernels and variables.
 * Registering makes no driver call, since it happens before main; a binary is loaded when a symbol of it is
 * first used. */
#include "runtime.h"
#include "registration.h"

#include <pthread.h>
#include <stdlib.h>

enum symbol_kind { SYMBOL_KERNEL, SYMBOL_VARIABLE, SYMBOL_HANDLE };

struct binary {
  const void *image;
  CUlibrary library;      /* NULL until loaded */
  struct symbol *symbols; /* its own */
};

/* A host address that launches and copies may name. Handles that were given out stand for themselves. */
struct symbol {
  struct symbol *next, *sibling; /* in its bucket, in its binary */
  const void *address;
  enum symbol_kind kind;
  const char *name;
  struct binary *binary;
  CUkernel kernel; /* NULL until looked up */
};

enum { BUCKETS = 4096 }; /* PyTorch registers tens of thousands of kernels */
static struct symbol *buckets[BUCKETS];
/* Over the table and the binaries' and symbols' cached handles; never held over a driver call, which may call
 * out. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct symbol **bucket_of(const void *address) {
  return &buckets[((uintptr_t)address >> 4) % BUCKETS];
}

static struct symbol *symbol_find(const void *address, enum symbol_kind kind) {
  for (struct symbol *symbol = *bucket_of(address); symbol; symbol = symbol->next)
    if (symbol->address == address && symbol->kind == kind) return symbol;
  return NULL;
}

/* 0, or -1 without memory. */
static int symbol_add(const void *address, enum symbol_kind kind, const char *name, struct binary *binary) {
  struct symbol *symbol = malloc(sizeof *symbol);
  if (!symbol) return -1;
  pthread_mutex_lock(&lock);
  struct symbol **bucket = bucket_of(address);
  *symbol = (struct symbol){*bucket, binary ? binary->symbols : NULL, address, kind, name, binary, NULL};
  *bucket = symbol;
  if (binary) binary->symbols = symbol;
  pthread_mutex_unlock(&lock);
  return 0;
}

/* Two threads may both load a binary; the first to publish its library wins. */
static cudaError_t binary_load(struct binary *binary, CUlibrary *library) {
  pthread_mutex_lock(&lock);
  *library = binary->library;
  pthread_mutex_unlock(&lock);
  if (*library) return cudaSuccess;
  CUlibrary loaded;
  CUlibraryOption preserved[] = {CU_LIBRARY_BINARY_IS_PRESERVED}; /* as long as it is registered */
  void *yes[] = {(void *)1};
  cudaError_t error = RT(cuLibraryLoadData, &loaded, binary->image, NULL, NULL, 0, preserved, yes, 1);
  if (error) return error;
  pthread_mutex_lock(&lock);
  bool first = !binary->library;
  if (first) binary->library = loaded;
  *library = binary->library;
  pthread_mutex_unlock(&lock);
  return first ? cudaSuccess : RT(cuLibraryUnload, loaded);
}

cudaError_t rt_kernel_find(const void *address, CUkernel *kernel) {
  pthread_mutex_lock(&lock);
  struct symbol *symbol = symbol_find(address, SYMBOL_KERNEL);
  bool is_handle = !symbol && symbol_find(address, SYMBOL_HANDLE);
  struct binary *binary = symbol ? symbol->binary : NULL;
  const char *name = symbol ? symbol->name : NULL;
  *kernel = symbol ? symbol->kernel : (CUkernel)(uintptr_t)address;
  pthread_mutex_unlock(&lock);
  if (!symbol) return is_handle ? cudaSuccess : cudaErrorInvalidDeviceFunction;
  if (*kernel) return cudaSuccess;
  CUlibrary library;
  cudaError_t error = binary_load(binary, &library);
  if (!error) error = RT(cuLibraryGetKernel, kernel, library, name);
  if (error == cudaErrorSymbolNotFound) return cudaErrorInvalidDeviceFunction;
  if (error) return error;
  pthread_mutex_lock(&lock);
  symbol->kernel = *kernel;
  pthread_mutex_unlock(&lock);
  return cudaSuccess;
}

const char *rt_kernel_name(const void *address) {
  pthread_mutex_lock(&lock);
  struct symbol *symbol = symbol_find(address, SYMBOL_KERNEL);
  if (!symbol) symbol = symbol_find(address, SYMBOL_HANDLE);
  const char *name = symbol ? symbol->name : NULL;
  pthread_mutex_unlock(&lock);
  return name;
}

cudaError_t rt_kernel_remember(const void *handle, const void *address) {
  pthread_mutex_lock(&lock);
  bool known = symbol_find(handle, SYMBOL_HANDLE) != NULL;
  struct symbol *symbol = symbol_find(address, SYMBOL_KERNEL);
  const char *name = symbol ? symbol->name : NULL;
  struct binary *binary = symbol ? symbol->binary : NULL;
  pthread_mutex_unlock(&lock);
  return known || !symbol_add(handle, SYMBOL_HANDLE, name, binary) ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t rt_variable_find(const void *address, CUdeviceptr *found, size_t *bytes) {
  pthread_mutex_lock(&lock);
  struct symbol *symbol = symbol_find(address, SYMBOL_VARIABLE);
  pthread_mutex_unlock(&lock);
  if (!symbol) return cudaErrorInvalidSymbol;
  CUlibrary library;
  cudaError_t error = binary_load(symbol->binary, &library);
  if (!error) error = RT(cuLibraryGetGlobal, found, bytes, library, symbol->name);
  return error == cudaErrorSymbolNotFound ? cudaErrorInvalidSymbol : error;
}

RT_EXPORT void **__cudaRegisterFatBinary(void *wrapper) {
  struct binary *binary = calloc(1, sizeof *binary);
  if (!binary) return NULL;
  const struct rt_fat_binary *fat = wrapper;
  binary->image = fat && fat->magic == RT_FAT_BINARY_MAGIC && fat->data ? (const void *)fat->data : wrapper;
  if (!binary->image) binary->image = "";
  return (void **)binary;
}

RT_EXPORT void __cudaRegisterFatBinaryEnd(void **handle) {
  (void)handle; /* loading is lazy */
}

static void symbols_remove(struct binary *binary) {
  while (binary->symbols) {
    struct symbol *symbol = binary->symbols, **at = bucket_of(symbol->address);
    while (*at != symbol)
      at = &(*at)->next;
    *at = symbol->next;
    binary->symbols = symbol->sibling;
    free(symbol);
  }
}

RT_EXPORT void __cudaUnregisterFatBinary(void **handle) {
  struct binary *binary = (struct binary *)handle;
  if (!binary) return;
  pthread_mutex_lock(&lock);
  symbols_remove(binary);
  pthread_mutex_unlock(&lock);
  const struct rt_driver *driver = binary->library ? rt_driver_loaded() : NULL;
  if (driver && driver->cuLibraryUnload) driver->cuLibraryUnload(binary->library);
  free(binary);
}

RT_EXPORT char __cudaInitModule(void **handle) {
  const struct rt_driver *around = rt_driver;
  CUlibrary library;
  if (!handle) return 0;
  cudaError_t error = rt_driver_get(false, &rt_driver);
  if (!error) error = rt_context_ensure();
  if (!error) error = binary_load((struct binary *)handle, &library);
  rt_driver = around;
  return error == cudaSuccess;
}

RT_EXPORT void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name,
                                      int thread_limit, uint3 *tid, uint3 *bid, dim3 *block, dim3 *grid,
                                      int *warp_size) {
  (void)device, (void)thread_limit, (void)tid, (void)bid, (void)block, (void)grid, (void)warp_size;
  if (handle) symbol_add(host, SYMBOL_KERNEL, name, (struct binary *)handle);
}

RT_EXPORT void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int external,
                                 size_t bytes, int constant, int global) {
  (void)device, (void)external, (void)bytes, (void)constant, (void)global;
  if (handle) symbol_add(host, SYMBOL_VARIABLE, name, (struct binary *)handle);
}
