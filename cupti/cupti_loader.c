/* Finds libcupti, subscribes and enables. Owns the subscription. Order of search: a copy that is mapped
 * already; the version of the mapped runtime, beside it and in the places a toolkit or a wheel keeps CUPTI;
 * the loader's path. Never one that is newer than the driver, and never visible to others (RTLD_LOCAL): a
 * global libcupti would switch NVTX on. */
#include <cupti.h>
#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cupti/callbacks.h"
#include "cupti/cuda_side.h"

/* cuptiSubscribe_v2's parameters with the member that CUDA 13.2 added; structSize says how much of it is
 * meant. */
struct subscriber_params {
  size_t struct_size;
  const char *name;
  char *old_name;
  size_t old_size;
  uint8_t allow_multiple;
};
#define PARAMS_13_0 offsetof(struct subscriber_params, allow_multiple)
#define PARAMS_13_2 (offsetof(struct subscriber_params, allow_multiple) + sizeof(uint8_t))
#define CUPTI_13_3 130300
#define CUPTI_OLD_NAME_BYTES 128

static struct {
  CUptiResult(CUPTIAPI *get_version)(uint32_t *);
  CUptiResult(CUPTIAPI *subscribe)(CUpti_SubscriberHandle *, CUpti_CallbackFunc, void *);
  CUptiResult(CUPTIAPI *subscribe_v2)(CUpti_SubscriberHandle *, CUpti_CallbackFunc, void *,
                                      struct subscriber_params *);
  CUptiResult(CUPTIAPI *unsubscribe)(CUpti_SubscriberHandle);
  CUptiResult(CUPTIAPI *enable_callback)(uint32_t, CUpti_SubscriberHandle, CUpti_CallbackDomain,
                                         CUpti_CallbackId);
  CUptiResult(CUPTIAPI *result_string)(CUptiResult, const char **);
} cupti;

static CUpti_SubscriberHandle subscriber;
static _Atomic bool active;
static bool nvtx_taken;
static int version;
static char path[PATH_MAX];

static int major_of_name(const char *file) {
  const char *at = strstr(file, ".so.");
  return at ? (int)strtol(at + 4, NULL, 10) : 0;
}

static void *open_mapped(void) {
  static const char *const names[] = {"libcupti.so.13", "libcupti.so.12", "libcupti.so"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    void *handle = dlopen(names[i], RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
    if (handle) return handle;
  }
  return NULL;
}

/* Beside the mapped runtime, in the layouts of the toolkit and of the wheels. */
static void *open_beside_runtime(const char *runtime_path, int major) {
  static const char *const folders[] = {"", "../extras/CUPTI/lib64/", "../../../extras/CUPTI/lib64/",
                                        "../../cuda_cupti/lib/", "../../cu13/lib/"};
  const char *slash = strrchr(runtime_path, '/');
  if (!slash) return NULL;
  for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++) {
    char file[PATH_MAX];
    int length = snprintf(file, sizeof file, "%.*s/%slibcupti.so.%d", (int)(slash - runtime_path),
                          runtime_path, folders[i], major);
    if (length < 0 || (size_t)length >= sizeof file) continue;
    void *handle = dlopen(file, RTLD_LAZY | RTLD_LOCAL);
    if (handle) return handle;
  }
  return NULL;
}

static void *open_any(const char *runtime_path) {
  void *handle = open_mapped();
  if (handle) return handle;
  int runtime_major = major_of_name(runtime_path);
  int driver_major = rp_driver_major_from_path(rp_driver_path());
  for (int major = 13; major >= 12; major--) {
    if (driver_major && major > driver_major) continue;
    if (runtime_major && major != runtime_major) continue;
    handle = open_beside_runtime(runtime_path, major);
    if (handle) return handle;
    char name[32];
    snprintf(name, sizeof name, "libcupti.so.%d", major);
    handle = dlopen(name, RTLD_LAZY | RTLD_LOCAL);
    if (handle) return handle;
  }
  return NULL;
}

static void fill_table(void *handle) {
  struct link_map *map = NULL;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map && map->l_name)
    snprintf(path, sizeof path, "%s", map->l_name);
  *(void **)&cupti.get_version = dlsym(handle, "cuptiGetVersion");
  *(void **)&cupti.subscribe = dlsym(handle, "cuptiSubscribe");
  *(void **)&cupti.subscribe_v2 = dlsym(handle, "cuptiSubscribe_v2");
  *(void **)&cupti.unsubscribe = dlsym(handle, "cuptiUnsubscribe");
  *(void **)&cupti.enable_callback = dlsym(handle, "cuptiEnableCallback");
  *(void **)&cupti.result_string = dlsym(handle, "cuptiGetResultString");
  uint32_t number = 0;
  if (cupti.get_version && cupti.get_version(&number) == CUPTI_SUCCESS) version = (int)number;
}

static CUptiResult subscribe_v2(const struct rp_cuda_sink *sink, bool allow_multiple, char *old_name,
                                size_t old_size) {
  struct subscriber_params params = {.struct_size = allow_multiple ? PARAMS_13_2 : PARAMS_13_0,
                                     .name = "recvpool",
                                     .old_name = old_name,
                                     .old_size = old_size,
                                     .allow_multiple = allow_multiple};
  return cupti.subscribe_v2(&subscriber, rp_callbacks_take, (void *)(uintptr_t)sink, &params);
}

/* Newest way first; a way that this CUPTI or driver does not take falls back to the one before it. */
static CUptiResult subscribe(const struct rp_cuda_sink *sink, char *old_name, size_t old_size) {
  CUptiResult result = CUPTI_ERROR_NOT_SUPPORTED;
  if (cupti.subscribe_v2 && version >= CUPTI_13_3) result = subscribe_v2(sink, true, old_name, old_size);
  if (result != CUPTI_SUCCESS && cupti.subscribe_v2) result = subscribe_v2(sink, false, old_name, old_size);
  bool held = result == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
  if (result != CUPTI_SUCCESS && !held && cupti.subscribe)
    result = cupti.subscribe(&subscriber, rp_callbacks_take, (void *)(uintptr_t)sink);
  return result;
}

static rp_status explain(CUptiResult result, const char *old_name, char *reason, size_t reason_size) {
  if (result == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED || result == CUPTI_ERROR_MAX_LIMIT_REACHED) {
    snprintf(reason, reason_size, "CUPTI is held by another tool (%s)",
             old_name[0] ? old_name : "name unknown");
    return RP_ERROR_BUSY;
  }
  const char *text = NULL;
  if (cupti.result_string) (void)cupti.result_string(result, &text);
  snprintf(reason, reason_size, "CUPTI subscription failed: %s (%d)", text ? text : "unknown error",
           (int)result);
  return RP_ERROR_UNAVAILABLE;
}

static void enable_one(void *context, CUpti_CallbackDomain domain, CUpti_CallbackId id) {
  size_t *enabled = context;
  if (cupti.enable_callback(1, subscriber, domain, id) == CUPTI_SUCCESS) (*enabled)++;
}

/* NVTX reaches CUPTI only where the user asked for that; recvpool never switches it on. */
static bool nvtx_is_routed(void) {
  const char *injection = getenv("NVTX_INJECTION64_PATH");
  return injection && strstr(injection, "libcupti") != NULL;
}

rp_status rp_cupti_start(const struct rp_cuda_sink *sink, const char *runtime_path, char *reason,
                         size_t reason_size) {
  (void)rp_driver_open();
  void *handle = open_any(runtime_path);
  if (!handle) {
    snprintf(reason, reason_size, "libcupti was not found beside the CUDA runtime nor on the loader's path");
    return RP_ERROR_UNAVAILABLE;
  }
  fill_table(handle);
  if (!cupti.enable_callback || (!cupti.subscribe && !cupti.subscribe_v2)) {
    snprintf(reason, reason_size, "libcupti lacks the callback interface");
    return RP_ERROR_UNAVAILABLE;
  }
  char old_name[CUPTI_OLD_NAME_BYTES] = "";
  CUptiResult result = subscribe(sink, old_name, sizeof old_name);
  if (result != CUPTI_SUCCESS) return explain(result, old_name, reason, reason_size);
  size_t enabled = 0;
  nvtx_taken = nvtx_is_routed();
  rp_callbacks_enable(enable_one, &enabled, nvtx_taken);
  if (enabled == 0) {
    if (cupti.unsubscribe) (void)cupti.unsubscribe(subscriber);
    snprintf(reason, reason_size, "CUPTI accepts none of the callbacks");
    return RP_ERROR_UNAVAILABLE;
  }
  atomic_store_explicit(&active, true, memory_order_release);
  return RP_OK;
}

void rp_cupti_stop(void) {
  if (atomic_exchange_explicit(&active, false, memory_order_acq_rel) && cupti.unsubscribe)
    (void)cupti.unsubscribe(subscriber);
}

bool rp_cupti_active(void) {
  return atomic_load_explicit(&active, memory_order_relaxed);
}

int rp_cupti_version(void) {
  return version;
}

const char *rp_cupti_path(void) {
  return path;
}

bool rp_cupti_nvtx(char *reason, size_t reason_size) {
  if (nvtx_taken && rp_cupti_active()) return true;
  snprintf(reason, reason_size, "%s",
           nvtx_taken ? "CUPTI is not subscribed" : "NVTX is not routed to CUPTI in this process");
  return false;
}
