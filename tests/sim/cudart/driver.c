/* Owns the way to the driver: libcuda.so.1 found at run time, its entry points by cuGetProcAddress, cuInit.
 */
#include "runtime.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

_Thread_local const struct rt_driver *rt_driver;

static struct rt_driver tables[2]; /* legacy and per-thread default stream */
static void *library;
static bool loaded;
static pthread_once_t load_once = PTHREAD_ONCE_INIT;
static atomic_bool initialised;

static const struct {
  const char *name;
  size_t offset;
  int version;
} entries[] = {
#define RT_DRIVER(function, version) {#function, offsetof(struct rt_driver, function), version},
#include "driver.def"
#undef RT_DRIVER
};

typedef __typeof__(&cuGetProcAddress) get_proc_address;

static void table_fill(struct rt_driver *table, get_proc_address get, cuuint64_t flags) {
  for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
    void *found = NULL;
    CUdriverProcAddressQueryResult status;
    if (get(entries[i].name, &found, entries[i].version, flags, &status) != CUDA_SUCCESS) found = NULL;
    memcpy((char *)table + entries[i].offset, &found, sizeof found);
  }
}

static void load(void) {
  library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) return;
  void *symbol = dlsym(library, "cuGetProcAddress_v2");
  if (!symbol) return; /* older than this runtime */
  get_proc_address get;
  memcpy(&get, &symbol, sizeof get);
  table_fill(&tables[0], get, CU_GET_PROC_ADDRESS_LEGACY_STREAM);
  table_fill(&tables[1], get, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
  loaded = tables[0].cuInit && tables[0].cuCtxGetCurrent;
}

const struct rt_driver *rt_driver_loaded(void) {
  pthread_once(&load_once, load);
  return loaded ? &tables[0] : NULL;
}

void *rt_driver_symbol(const char *name) {
  return rt_driver_loaded() ? dlsym(library, name) : NULL;
}

/* No lock is held over cuInit: it loads the injected tool, which may come back here. */
cudaError_t rt_driver_get(bool per_thread, const struct rt_driver **driver) {
  if (!rt_driver_loaded()) return cudaErrorInsufficientDriver;
  if (!atomic_load_explicit(&initialised, memory_order_acquire)) {
    CUresult result = tables[0].cuInit(0);
    if (result != CUDA_SUCCESS) return rt_error(result);
    int version = 0;
    tables[0].cuDriverGetVersion(&version);
    if (version / 1000 < CUDART_VERSION / 1000) return cudaErrorInsufficientDriver;
    atomic_store_explicit(&initialised, true, memory_order_release);
  }
  *driver = &tables[per_thread];
  return cudaSuccess;
}

/* Since CUDA 10.1 both enumerations number the same errors alike; two exist only in the driver's. */
cudaError_t rt_error(CUresult result) {
  switch (result) {
  case CUDA_ERROR_CONTEXT_ALREADY_CURRENT:
    return cudaErrorInvalidValue;
  case CUDA_ERROR_KEY_ROTATION:
    return cudaErrorUnknown;
  default:
    return (cudaError_t)result;
  }
}

cudaError_t impl_cudaDriverGetVersion(int *version) {
  if (!version) return cudaErrorInvalidValue;
  const struct rt_driver *driver = rt_driver_loaded();
  *version = 0; /* the documented answer without a driver */
  return driver ? rt_error(driver->cuDriverGetVersion(version)) : cudaSuccess;
}

cudaError_t impl_cudaRuntimeGetVersion(int *version) {
  if (!version) return cudaErrorInvalidValue;
  *version = CUDART_VERSION;
  return cudaSuccess;
}

/* What the driver answers about the name goes to *status; the call itself then succeeds. */
cudaError_t impl_cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned int version,
                                                  unsigned long long flags,
                                                  enum cudaDriverEntryPointQueryResult *status) {
  if (!symbol || !function) return cudaErrorInvalidValue;
  if (flags == cudaEnableDefault)
    flags = rt_driver == &tables[1] ? cudaEnablePerThreadDefaultStream : cudaEnableLegacyStream;
  CUdriverProcAddressQueryResult answer = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  *function = NULL;
  cudaError_t error = RT(cuGetProcAddress, symbol, function, (int)version, flags, &answer);
  if (status) *status = (enum cudaDriverEntryPointQueryResult)answer;
  if (!error && !*function && !status) return cudaErrorSymbolNotFound;
  return error;
}

cudaError_t impl_cudaGetDriverEntryPoint(const char *symbol, void **function, unsigned long long flags,
                                         enum cudaDriverEntryPointQueryResult *status) {
  return impl_cudaGetDriverEntryPointByVersion(symbol, function, CUDART_VERSION, flags, status);
}
