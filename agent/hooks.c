/* The hook tables as one: scanning and counting. */
#include "agent/hooks.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#include "agent/abi.h"
#include "agent/requests.h"
#include "agent/state.h"

/* Never touched: the driver and the tools' library call each other in ways that are no business of ours. */
static const char *const skip[] = {"libcuda.so", "libcupti.so", "librecvpool.so", NULL};

#define HOOKS_MAX 1024
static struct rp_hook all[HOOKS_MAX]; /* the tables of hooks_*.c, one after the other */
static size_t all_count;
static pthread_once_t joined = PTHREAD_ONCE_INIT;

static void join(void) {
  const struct {
    const struct rp_hook *hooks;
    size_t count;
  } tables[] = {
      {rp_hooks_nccl, rp_hooks_nccl_count},       {rp_hooks_collectives, rp_hooks_collectives_count},
      {rp_hooks_memory, rp_hooks_memory_count},   {rp_hooks_pointers, rp_hooks_pointers_count},
      {rp_hooks_context, rp_hooks_context_count}, {rp_hooks_work, rp_hooks_work_count},
      {rp_hooks_copies, rp_hooks_copies_count},   {rp_hooks_shapes, rp_hooks_shapes_count},
      {rp_hooks_graphs, rp_hooks_graphs_count},   {rp_hooks_entry, rp_hooks_entry_count},
      {rp_hooks_order, rp_hooks_order_count},
  };
  for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++)
    for (size_t j = 0; j < tables[i].count && all_count < HOOKS_MAX; j++)
      all[all_count++] = tables[i].hooks[j];
}

void rp_hooks_scan(struct rp_interpose_result *result) {
  (void)pthread_once(&joined, join);
  rp_interpose_scan(all, all_count, skip, result);
}

void rp_hooks_count(const char *prefix, unsigned *slots, unsigned *conflicts) {
  *slots = *conflicts = 0;
  for (size_t i = 0; i < all_count; i++) {
    if (strncmp(all[i].name, prefix, strlen(prefix)) != 0) continue;
    *slots += all[i].slots;
    *conflicts += all[i].conflicts;
  }
}

unsigned rp_hooks_callers(const char *name) {
  for (size_t i = 0; i < all_count; i++)
    if (strcmp(all[i].name, name) == 0) return all[i].slots - all[i].own_slots;
  return 0;
}

/* No lock: a scan on another thread keeps one while it waits for the loader, which this thread may be inside.
 * What callers are linked to is preferred, so that they are found to mean the same copy. */
void *rp_hooks_hand_out(const char *name, void *found) {
  struct rp_hook *hook = NULL;
  (void)pthread_once(&joined, join);
  for (size_t i = 0; i < all_count && !hook; i++)
    if (strcmp(all[i].name, name) == 0) hook = &all[i];
  if (!hook) return NULL;
  if (!__atomic_load_n(hook->real, __ATOMIC_ACQUIRE)) {
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD), *nobody = NULL;
    void *linked = driver ? dlsym(driver, name) : NULL;
    if (driver) (void)dlclose(driver);
    (void)__atomic_compare_exchange_n(hook->real, &nobody, linked ? linked : found, false, __ATOMIC_ACQ_REL,
                                      __ATOMIC_ACQUIRE);
  }
  return hook->replacement;
}

void rp_hook_look_for_modules(void) {
  if (rp_state_is_on()) rp_request_scan_and_wait();
}

/* ---- calls of the runtime's own ---- */

void *rp_hook_sibling(void *function, const char *name) {
  Dl_info info;
  void *handle = dladdr(function, &info) && info.dli_fname
                     ? dlopen(info.dli_fname, RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD)
                     : NULL;
  void *found = handle ? dlsym(handle, name) : NULL;
  if (handle) (void)dlclose(handle);
  return found;
}

static bool is_of(const char *path, const char *library) {
  const char *slash = strrchr(path, '/');
  return strncmp(slash ? slash + 1 : path, library, strlen(library)) == 0;
}

/* A program may hold the runtime inside another library, and then no other. */
const char *rp_hook_usurper(void *function, const char *name, const char *library) {
  Dl_info info;
  char path[4096];
  if (!function || !dladdr(function, &info) || !info.dli_fname || is_of(info.dli_fname, library)) return NULL;
  if (!rp_interpose_find_module(library, path, sizeof path)) return NULL;
  void *handle = dlopen(path, RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
  void *other = handle ? dlsym(handle, name) : NULL;
  if (handle) (void)dlclose(handle);
  return other && other != function ? info.dli_fname : NULL;
}

/* Freeing nothing is the documented way to ask for a context. */
void rp_hook_make_context(void *function) {
  if (rp_driver_current_device() >= 0) return;
  int (*release)(void *) = (int (*)(void *))rp_hook_sibling(function, "cudaFree");
  if (release) (void)release(NULL);
}

void rp_hook_forget_error(const char *name, void *function) {
  if (strncmp(name, "cuda", 4) != 0) return;
  int (*take)(void) = (int (*)(void))rp_hook_sibling(function, "cudaGetLastError");
  if (take) (void)take();
}

/* The runtime keeps its last error for itself: it is set by a call that fails in the same way. */
int rp_hook_fail(const char *name, void *function, int result) {
  int (*allocate)(void **, size_t) = NULL;
  void *memory = NULL;
  if (strncmp(name, "cuda", 4) == 0)
    allocate = (int (*)(void **, size_t))rp_hook_sibling(function, "cudaMalloc");
  if (!allocate) return result;
  uint8_t busy = rp_thread.busy;
  rp_thread.busy = 1;
  if (result == RP_ABI_OUT_OF_MEMORY) (void)allocate(&memory, SIZE_MAX / 2);
  if (result == RP_ABI_INVALID_VALUE) (void)allocate(NULL, 1);
  rp_thread.busy = busy;
  return result;
}
