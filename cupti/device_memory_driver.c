/* The driver's entry points that act. Owns their table, found in the mapped libcuda.so.1, the last error of
 * each thread, and the brackets around our own calls. */
#include "cupti/device_memory_internal.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include "cupti/internal.h"

const struct rp__device_names rp__device_names = {
#define NAME(member, function, name, older) .member = #function,
    RP__DEVICE_ENTRIES(NAME)
#undef NAME
};

static pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER;
static struct rp__device_driver table;
static _Atomic bool opened;

/* Last error of the thread: a literal, so that it may be read at any time. */
static _Thread_local struct {
  const char *call;
  int result;
  bool missing;
  char text[128];
} last;

static void fill(void *library) {
#define FIND(member, function, name, older)                                                                  \
  *(void **)&table.member = dlsym(library, name);                                                            \
  if (!table.member) *(void **)&table.member = dlsym(library, older);
  RP__DEVICE_ENTRIES(FIND)
#undef FIND
}

const struct rp__device_driver *rp__device_driver(void) {
  if (atomic_load_explicit(&opened, memory_order_acquire)) return &table;
  pthread_mutex_lock(&open_lock);
  if (!atomic_load_explicit(&opened, memory_order_relaxed)) {
    void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
    if (library) {
      fill(library);
      atomic_store_explicit(&opened, true, memory_order_release);
    }
  }
  pthread_mutex_unlock(&open_lock);
  return atomic_load_explicit(&opened, memory_order_acquire) ? &table : NULL;
}

/* ---- errors ---- */

/* Captures forbid what would be allowed otherwise: later, it works. */
static bool is_capture_error(CUresult result) {
  return result >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && result <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
}

rp_status rp__device_result(const char *call, CUresult result) {
  if (result == CUDA_SUCCESS) return RP_OK;
  last.call = call;
  last.result = (int)result;
  last.missing = false;
  if (result == CUDA_ERROR_OUT_OF_MEMORY) return RP_ERROR_NO_MEMORY;
  if (result == CUDA_ERROR_NOT_READY || is_capture_error(result)) return RP_ERROR_BUSY;
  return RP_ERROR_UNAVAILABLE;
}

rp_status rp__device_missing(const char *call) {
  last.call = call;
  last.missing = true;
  return RP_ERROR_UNAVAILABLE;
}

const char *rp_device_memory_error(void) {
  const struct rp__device_driver *driver = rp__device_driver();
  const char *name = NULL;
  if (!last.call) return "";
  if (last.missing) {
    snprintf(last.text, sizeof last.text, "this driver has no %s", last.call);
    return last.text;
  }
  if (!driver || !driver->error_name || driver->error_name((CUresult)last.result, &name) != CUDA_SUCCESS)
    name = NULL;
  snprintf(last.text, sizeof last.text, "%s: %s (%d)", last.call, name ? name : "error", last.result);
  return last.text;
}

/* ---- brackets ---- */

void rp__device_enter(const struct rp__device_driver *driver, struct rp__device_scope *scope) {
  rp_query_begin();
  scope->mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  scope->relaxed =
      driver->exchange_capture_mode && driver->exchange_capture_mode(&scope->mode) == CUDA_SUCCESS;
}

void rp__device_leave(const struct rp__device_driver *driver, const struct rp__device_scope *scope) {
  CUstreamCaptureMode mode = scope->mode;
  if (scope->relaxed) driver->exchange_capture_mode(&mode);
  rp_query_end();
}

CUcontext rp__device_current(const struct rp__device_driver *driver) {
  CUcontext context = NULL;
  if (!driver->context_current || driver->context_current(&context) != CUDA_SUCCESS) return NULL;
  return context;
}

rp_status rp__device_switch(const struct rp__device_driver *driver, CUcontext context, bool *switched) {
  CUcontext current = rp__device_current(driver);
  *switched = false;
  if (!context || context == current)
    return current ? RP_OK : rp__device_result(rp__device_names.context_current, CUDA_ERROR_INVALID_CONTEXT);
  rp_status status = RP__DEVICE_CALL(driver, context_push, context);
  *switched = status == RP_OK;
  return status;
}

void rp__device_unswitch(const struct rp__device_driver *driver, bool switched) {
  CUcontext popped;
  if (switched && driver->context_pop) driver->context_pop(&popped);
}

uint64_t rp_device_current_context(void) {
  const struct rp__device_driver *driver = rp__device_driver();
  if (!driver) return 0;
  rp_query_begin();
  uint64_t context = (uint64_t)(uintptr_t)rp__device_current(driver);
  rp_query_end();
  return context;
}

int rp_device_of_context(uint64_t context) {
  const struct rp__device_driver *driver = rp__device_driver();
  struct rp__device_scope scope;
  CUdevice device = -1;
  bool switched = false;
  if (!driver || !context || !driver->context_device) return -1;
  rp__device_enter(driver, &scope);
  if (rp__device_switch(driver, (CUcontext)(uintptr_t)context, &switched) == RP_OK) {
    if (driver->context_device(&device) != CUDA_SUCCESS) device = -1;
    rp__device_unswitch(driver, switched);
  }
  rp__device_leave(driver, &scope);
  return device;
}

bool rp_device_primary_alive(int device) {
  const struct rp__device_driver *driver = rp__device_driver();
  unsigned flags;
  int active = 1;
  if (!driver || !driver->primary_state) return true;
  rp_query_begin();
  if (driver->primary_state(device, &flags, &active) != CUDA_SUCCESS) active = 1;
  rp_query_end();
  return active != 0;
}

/* The driver only tells the primary context to who retains it; one in use is not made by that. */
bool rp_device_is_primary(int device, uint64_t context) {
  const struct rp__device_driver *driver = rp__device_driver();
  struct rp__device_scope scope;
  CUcontext primary = NULL;
  if (!context || !driver || !driver->primary_retain || !driver->primary_release) return false;
  if (!rp_device_primary_alive(device)) return false;
  rp__device_enter(driver, &scope);
  bool retained = driver->primary_retain(&primary, device) == CUDA_SUCCESS;
  if (retained) driver->primary_release(device);
  rp__device_leave(driver, &scope);
  return retained && (uint64_t)(uintptr_t)primary == context;
}
