/* Kernels registered by name, and the table of handles: modules, libraries, functions and kernels. */
#include "api.h"
#include "image.h"

#include <stdlib.h>
#include <string.h>

/* ---- registered kernels ---- */

/* One name. Entries are only ever added, and never freed, so a launch reads them without a lock. */
struct sim_registered {
  const char *name;
  _Atomic(const struct rpsim_kernel *) kernel; /* the latest under this name */
  struct sim_registered *next;
};

static _Atomic(struct sim_registered *) registered;
static pthread_mutex_t register_lock = PTHREAD_MUTEX_INITIALIZER;

const struct sim_registered *sim_registered_find(const char *name) {
  struct sim_registered *entry = atomic_load_explicit(&registered, memory_order_acquire);
  while (entry && strcmp(entry->name, name) != 0)
    entry = entry->next;
  return entry;
}

/* Lock register_lock. */
static int register_kernel(const struct rpsim_kernel *kernel) {
  struct sim_registered *entry = (struct sim_registered *)sim_registered_find(kernel->name);
  if (entry) {
    atomic_store_explicit(&entry->kernel, kernel, memory_order_release);
    return 0;
  }
  entry = calloc(1, sizeof *entry);
  if (!entry) return -1;
  entry->name = kernel->name;
  atomic_init(&entry->kernel, kernel);
  entry->next = atomic_load_explicit(&registered, memory_order_relaxed);
  atomic_store_explicit(&registered, entry, memory_order_release);
  return 0;
}

int rpsim_register_kernels(const struct rpsim_kernel *kernels, size_t count) {
  int result = 0;
  pthread_mutex_lock(&register_lock);
  for (size_t i = 0; i < count && result == 0; i++)
    result = register_kernel(&kernels[i]);
  pthread_mutex_unlock(&register_lock);
  return result;
}

/* ---- kernels that only a device binary has ---- */

static _Atomic(rpsim_body_source) body_source;

void rpsim_set_body_source(rpsim_body_source source) {
  atomic_store_explicit(&body_source, source, memory_order_release);
}

static void no_arithmetic(void *const *params, const struct rpsim_dims *dims) {
  (void)params, (void)dims;
}

/* Never freed, as nothing that is registered is. */
static struct rpsim_kernel *kernel_from_image(const char *name, const void *image) {
  struct rpsim_param *params;
  size_t count;
  if (!image || !sim_image_kernel(image, name, &params, &count)) return NULL;
  struct rpsim_kernel *kernel = malloc(sizeof *kernel);
  char *copy = strdup(name);
  if (!kernel || !copy) {
    free(params), free(kernel), free(copy);
    return NULL;
  }
  rpsim_body_source source = atomic_load_explicit(&body_source, memory_order_acquire);
  rpsim_kernel_body body = source ? source(name) : NULL;
  *kernel = (struct rpsim_kernel){copy, body ? body : no_arithmetic, count, params};
  return kernel;
}

const struct sim_registered *sim_registered_get(const char *name, const void *image) {
  const struct sim_registered *found = sim_registered_find(name);
  if (found) return found;
  struct rpsim_kernel *kernel = kernel_from_image(name, image);
  if (!kernel) return NULL;
  pthread_mutex_lock(&register_lock);
  if (!sim_registered_find(name)) (void)register_kernel(kernel); /* else another thread was first */
  pthread_mutex_unlock(&register_lock);
  return sim_registered_find(name);
}

size_t sim_registered_list(const struct sim_registered **out, size_t count) {
  size_t total = 0;
  for (struct sim_registered *entry = atomic_load_explicit(&registered, memory_order_acquire); entry;
       entry = entry->next, total++)
    if (total < count) out[total] = entry;
  return total;
}

/* ---- handles ---- */

#define HANDLES_MAX 16384
/* In the zeroed data of the library, so that untouched slots cost no memory. Slots are reused, newest first.
 */
static struct sim_handle handles[HANDLES_MAX];
static uint32_t used_slots; /* slots that ever were in use; lock handle_lock */
static uint32_t last_id;    /* lock handle_lock */
static pthread_mutex_t handle_lock = PTHREAD_MUTEX_INITIALIZER;

static void reset_locks_in_child(void) {
  pthread_mutex_init(&handle_lock, NULL);
  pthread_mutex_init(&register_lock, NULL);
}

__attribute__((constructor)) static void watch_fork(void) {
  pthread_atfork(NULL, NULL, reset_locks_in_child);
}

struct sim_handle *sim_handle_of(const void *handle, enum sim_handle_kind kind) {
  uintptr_t first = (uintptr_t)handles, address = (uintptr_t)handle;
  if (address < first || address >= first + sizeof handles || (address - first) % sizeof handles[0] != 0)
    return NULL;
  struct sim_handle *found = &handles[(address - first) / sizeof handles[0]];
  return atomic_load_explicit(&found->kind, memory_order_acquire) == (int)kind ? found : NULL;
}

/* Lock handle_lock. */
static struct sim_handle *take_slot(void) {
  for (uint32_t i = 0; i < used_slots; i++)
    if (atomic_load_explicit(&handles[i].kind, memory_order_relaxed) == SIM_FREE) return &handles[i];
  return used_slots < HANDLES_MAX ? &handles[used_slots++] : NULL;
}

/* Lock handle_lock. */
static struct sim_handle *create(enum sim_handle_kind kind, struct sim_handle *owner,
                                 struct sim_context *context, const struct sim_registered *named) {
  struct sim_handle *handle = take_slot();
  if (!handle) return NULL;
  handle->id = ++last_id;
  handle->owner = owner;
  handle->context = context;
  handle->named = named;
  handle->image = NULL;
  handle->image_copy = NULL;
  atomic_store_explicit(&handle->dynamic_shared_bytes, 49152, memory_order_relaxed);
  atomic_store_explicit(&handle->carveout_percent, -1, memory_order_relaxed);
  atomic_store_explicit(&handle->kind, kind, memory_order_release);
  return handle;
}

struct sim_handle *sim_handle_create(enum sim_handle_kind kind, struct sim_handle *owner,
                                     struct sim_context *context, const struct sim_registered *named) {
  pthread_mutex_lock(&handle_lock);
  struct sim_handle *handle = create(kind, owner, context, named);
  pthread_mutex_unlock(&handle_lock);
  return handle;
}

struct sim_handle *sim_handle_get(enum sim_handle_kind kind, struct sim_handle *owner,
                                  struct sim_context *context, const struct sim_registered *named) {
  struct sim_handle *found = NULL;
  pthread_mutex_lock(&handle_lock);
  for (uint32_t i = 0; i < used_slots && !found; i++) {
    struct sim_handle *handle = &handles[i];
    if (atomic_load_explicit(&handle->kind, memory_order_relaxed) == (int)kind && handle->owner == owner &&
        handle->context == context && handle->named == named)
      found = handle;
  }
  if (!found) found = create(kind, owner, context, named);
  pthread_mutex_unlock(&handle_lock);
  return found;
}

/* Lock handle_lock. Ownership is three deep at most: library, module, function. */
static void destroy(struct sim_handle *handle) {
  free(handle->image_copy);
  handle->image_copy = NULL;
  atomic_store_explicit(&handle->kind, SIM_FREE, memory_order_release);
  for (uint32_t i = 0; i < used_slots; i++)
    if (handles[i].owner == handle &&
        atomic_load_explicit(&handles[i].kind, memory_order_relaxed) != SIM_FREE)
      destroy(&handles[i]);
}

void sim_handle_destroy(struct sim_handle *handle) {
  pthread_mutex_lock(&handle_lock);
  destroy(handle);
  pthread_mutex_unlock(&handle_lock);
}

void sim_handles_drop_context(struct sim_context *context) {
  pthread_mutex_lock(&handle_lock);
  for (uint32_t i = 0; i < used_slots; i++)
    if (atomic_load_explicit(&handles[i].kind, memory_order_relaxed) == SIM_MODULE &&
        handles[i].context == context)
      destroy(&handles[i]);
  pthread_mutex_unlock(&handle_lock);
}

const struct rpsim_kernel *sim_handle_kernel(const struct sim_handle *handle) {
  return atomic_load_explicit(&((struct sim_registered *)handle->named)->kernel, memory_order_acquire);
}

const struct rpsim_kernel *sim_kernel_of(CUfunction function) {
  struct sim_handle *handle = sim_handle_of(function, SIM_FUNCTION);
  if (!handle) handle = sim_handle_of(function, SIM_KERNEL);
  return handle ? sim_handle_kernel(handle) : NULL;
}
