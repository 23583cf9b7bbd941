/* Initialisation of the simulated driver: its environment, cuInit, the injected library, the version, fork.
 */
#include "api.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

_Atomic int sim_state = SIM_UNINITIALISED;

static pthread_mutex_t init_lock = PTHREAD_MUTEX_INITIALIZER;
static bool injected; /* lock init_lock */

/* From the environment, written by the constructor. */
static int device_count = 1;
static uint64_t device_capacity_bytes = UINT64_C(8) << 30;
static int driver_version = RPSIM_DRIVER_VERSION;

/* ---- environment ---- */

_Noreturn static void environment_mistake(const char *name, const char *text, const char *form) {
  fprintf(stderr, "rpsim: %s: '%s' is not %s\n", name, text, form);
  _exit(2);
}

/* A whole number up to `limit`, optionally with KiB, MiB or GiB behind it. */
static bool parse_number(const char *text, uint64_t limit, bool units, uint64_t *value) {
  static const struct {
    const char *name;
    unsigned shift;
  } unit[] = {{"", 0}, {"KiB", 10}, {"MiB", 20}, {"GiB", 30}};
  char *end;
  errno = 0;
  uint64_t number = strtoull(text, &end, 10);
  if (errno != 0 || end == text || *text == '-') return false;
  for (size_t i = 0; i < (units ? 4 : 1); i++) {
    if (strcmp(end, unit[i].name) != 0) continue;
    if (number > limit >> unit[i].shift) return false;
    *value = number << unit[i].shift;
    return true;
  }
  return false;
}

static uint64_t environment_number(const char *name, uint64_t absent, uint64_t limit, bool units,
                                   const char *form) {
  const char *text = getenv(name);
  uint64_t value = absent;
  if (text && *text && !parse_number(text, limit, units, &value)) environment_mistake(name, text, form);
  return value;
}

static void after_fork_child(void) {
  pthread_mutex_init(&init_lock, NULL);
  if (atomic_load(&sim_state) == SIM_UNINITIALISED) return;
  atomic_store(&sim_state, SIM_FORKED);
  sim_engine_after_fork_child();
}

__attribute__((constructor)) static void configure(void) {
  device_count = (int)environment_number("RPSIM_DEVICES", 1, SIM_DEVICES_MAX, false, "a number up to 16");
  device_capacity_bytes = environment_number("RPSIM_DEVICE_BYTES", device_capacity_bytes, UINT64_MAX, true,
                                             "a number of bytes, KiB, MiB or GiB");
  driver_version = (int)environment_number("RPSIM_DRIVER_VERSION_OVERRIDE", RPSIM_DRIVER_VERSION, 99990,
                                           false, "a CUDA version such as 12080");
  sim_fail_configure(getenv("RPSIM_FAIL"));
  sim_attributes_configure(getenv("RPSIM_ATTRIBUTES"));
  pthread_atfork(NULL, NULL, after_fork_child);
}

int sim_device_count(void) {
  return device_count;
}

uint64_t sim_device_capacity_bytes(int device) {
  return sim_device_valid(device) ? device_capacity_bytes : 0;
}

bool sim_device_valid(CUdevice device) {
  return device >= 0 && device < device_count;
}

int sim_driver_version(void) {
  return driver_version;
}

/* ---- cuInit and the injected library ---- */

/* Loads CUDA_INJECTION64_PATH and calls its entry, once per process. A library that cannot be used is
 * ignored. */
static void inject(void) {
  const char *path = getenv("CUDA_INJECTION64_PATH");
  if (injected || !path || !*path || strcmp(path, "none") == 0) return;
  injected = true;
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  int (*entry)(void) = library ? (int (*)(void))dlsym(library, "InitializeInjection") : NULL;
  if (!entry) {
    if (getenv("RPSIM_VERBOSE")) fprintf(stderr, "rpsim: not injected: %s\n", dlerror());
    return;
  }
  const char *outer = sim_inside;
  sim_inside = "InitializeInjection";
  (void)entry();
  sim_inside = outer;
}

/* The first cuInit. Lock init_lock. */
static CUresult initialise(void) {
  atomic_store(&sim_state, SIM_INITIALISING);
  inject();
  if (device_count == 0) {
    atomic_store(&sim_state, SIM_UNINITIALISED);
    return CUDA_ERROR_NO_DEVICE;
  }
  atomic_store_explicit(&sim_state, SIM_READY, memory_order_release);
  sim_resource_callback(CUPTI_CBID_RESOURCE_CU_INIT_FINISHED, NULL, NULL, NULL);
  return CUDA_SUCCESS;
}

CUresult impl_cuInit(unsigned int Flags) {
  if (Flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (atomic_load_explicit(&sim_state, memory_order_acquire) == SIM_READY) return CUDA_SUCCESS;
  pthread_mutex_lock(&init_lock);
  CUresult result = CUDA_SUCCESS;
  int state = atomic_load(&sim_state);
  if (state == SIM_FORKED)
    result = CUDA_ERROR_NOT_INITIALIZED;
  else if (state == SIM_UNINITIALISED)
    result = initialise();
  pthread_mutex_unlock(&init_lock);
  return result;
}

CUresult impl_cuDriverGetVersion(int *driverVersion) {
  if (!driverVersion) return CUDA_ERROR_INVALID_VALUE;
  *driverVersion = driver_version;
  return CUDA_SUCCESS;
}

CUresult impl_cuGetExportTable(const void **ppExportTable, const CUuuid *pExportTableId) {
  if (!ppExportTable || !pExportTableId) return CUDA_ERROR_INVALID_VALUE;
  *ppExportTable = NULL;
  return CUDA_ERROR_NOT_SUPPORTED; /* the driver's private tables have no public description */
}
