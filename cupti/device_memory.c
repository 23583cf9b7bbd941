/* The pool's physical memory on a real device: CUDA's virtual memory management behind the backend table.
 * Owns the properties that handles carry, the list of what is mapped (so that a later peer gets access too),
 * and the counters. */
#include "cupti/device_memory.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "cupti/device_memory_internal.h"
#include "pool/address_map.h"

struct rp_device_memory {
  const struct rp__device_driver *driver;
  int ordinal;
  CUdevice device;
  CUmemAllocationProp properties;
  _Atomic uint64_t granularity_bytes;
  _Atomic bool fabric;
  CUmemAccessDesc *access; /* the device itself, then its peers; room for every device */
  _Atomic unsigned access_count;
  struct rp_address_map mapped; /* value: whether access was given */
  _Atomic uint64_t calls, failures, create_ns, map_ns, unmap_ns;
};

/* ---- counting ---- */

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void add(_Atomic uint64_t *counter, uint64_t by) {
  atomic_fetch_add_explicit(counter, by, memory_order_relaxed);
}

static rp_status counted(struct rp_device_memory *memory, rp_status status) {
  add(&memory->calls, 1);
  if (status) add(&memory->failures, 1);
  return status;
}

/* One driver call of `memory`, bracketed, counted, and its time added to `spent` (a member). */
#define TIMED(memory, status, spent, member, ...)                                                            \
  do {                                                                                                       \
    struct rp__device_scope scope_;                                                                          \
    rp__device_enter((memory)->driver, &scope_);                                                             \
    uint64_t begun_ = now_ns();                                                                              \
    (status) = counted((memory), RP__DEVICE_CALL((memory)->driver, member, __VA_ARGS__));                    \
    add(&(memory)->spent, now_ns() - begun_);                                                                \
    rp__device_leave((memory)->driver, &scope_);                                                             \
  } while (0)

/* ---- properties ---- */

static bool has(const struct rp_device_memory *memory, CUdevice_attribute attribute) {
  int value = 0;
  return memory->driver->device_attribute &&
         memory->driver->device_attribute(&value, attribute, memory->device) == CUDA_SUCCESS && value != 0;
}

static rp_status ask_granularity(struct rp_device_memory *memory) {
  size_t bytes = 0;
  rp_status status = counted(memory, RP__DEVICE_CALL(memory->driver, mem_granularity, &bytes,
                                                     &memory->properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  if (status) return status;
  if (bytes == 0) return rp__device_result(rp__device_names.mem_granularity, CUDA_ERROR_INVALID_VALUE);
  atomic_store(&memory->granularity_bytes, bytes);
  return RP_OK;
}

static void set_fabric(struct rp_device_memory *memory, bool fabric) {
  unsigned types = (unsigned)memory->properties.requestedHandleTypes;
  types = fabric ? types | CU_MEM_HANDLE_TYPE_FABRIC : types & ~(unsigned)CU_MEM_HANDLE_TYPE_FABRIC;
  memory->properties.requestedHandleTypes = (CUmemAllocationHandleType)types;
  atomic_store(&memory->fabric, fabric);
}

/* A device may name fabric handles and then refuse to make one (no fabric manager): found out with the
 * smallest handle there is, before the pool learns a granularity. */
static void try_fabric(struct rp_device_memory *memory) {
  CUmemGenericAllocationHandle handle;
  rp_status status = ask_granularity(memory);
  if (status == RP_OK)
    status =
        counted(memory, RP__DEVICE_CALL(memory->driver, mem_create, &handle,
                                        atomic_load(&memory->granularity_bytes), &memory->properties, 0));
  if (status == RP_OK)
    counted(memory, RP__DEVICE_CALL(memory->driver, mem_release, handle));
  else if (status != RP_ERROR_NO_MEMORY)
    set_fabric(memory, false);
}

/* The same as NCCL gives its own memory, so that registering and exporting a pooled buffer works as before.
 */
static rp_status find_properties(struct rp_device_memory *memory, const char **why) {
  *why = "the device has no virtual memory management";
  if (!has(memory, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)) return RP_ERROR_UNAVAILABLE;
  memory->properties = (CUmemAllocationProp){
      .type = CU_MEM_ALLOCATION_TYPE_PINNED,
      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = memory->ordinal},
  };
  if (has(memory, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED))
    memory->properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  if (has(memory, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED))
    memory->properties.allocFlags.gpuDirectRDMACapable = 1;
  if (has(memory, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED)) {
    set_fabric(memory, true);
    try_fabric(memory);
  }
  *why = NULL;
  return ask_granularity(memory);
}

/* ---- open ---- */

static bool complete(const struct rp__device_driver *driver) {
  return driver->mem_address_reserve && driver->mem_address_free && driver->mem_create &&
         driver->mem_release && driver->mem_map && driver->mem_unmap && driver->mem_set_access &&
         driver->mem_granularity && driver->device_get && driver->device_count && driver->context_current;
}

static rp_status look_up(struct rp_device_memory *memory, const char **why) {
  int count = 0;
  *why = NULL;
  rp_status status = RP__DEVICE_CALL(memory->driver, device_count, &count);
  if (status == RP_OK) status = RP__DEVICE_CALL(memory->driver, device_get, &memory->device, memory->ordinal);
  if (status) return status;
  memory->access = calloc((size_t)count, sizeof *memory->access);
  if (!memory->access) {
    *why = "no host memory";
    return RP_ERROR_NO_MEMORY;
  }
  memory->access[0] = (CUmemAccessDesc){
      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = memory->ordinal},
      .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
  };
  atomic_store(&memory->access_count, 1);
  return find_properties(memory, why);
}

rp_status rp_device_memory_open(int device, struct rp_device_memory **out, char *reason, size_t reason_size) {
  const struct rp__device_driver *driver = rp__device_driver();
  const char *why = NULL;
  struct rp__device_scope scope;
  if (!driver || !complete(driver)) {
    snprintf(reason, reason_size, "%s",
             driver ? "the driver has no virtual memory management" : "no CUDA driver is loaded");
    return RP_ERROR_UNAVAILABLE;
  }
  struct rp_device_memory *memory = calloc(1, sizeof *memory);
  if (!memory) {
    snprintf(reason, reason_size, "no host memory");
    return RP_ERROR_NO_MEMORY;
  }
  memory->driver = driver;
  memory->ordinal = device;
  rp__device_enter(driver, &scope);
  rp_status status = look_up(memory, &why);
  rp__device_leave(driver, &scope);
  if (status) {
    snprintf(reason, reason_size, "%s", why ? why : rp_device_memory_error());
    rp_device_memory_close(memory);
    return status == RP_ERROR_NO_MEMORY ? status : RP_ERROR_UNAVAILABLE;
  }
  *out = memory;
  return RP_OK;
}

void rp_device_memory_close(struct rp_device_memory *memory) {
  if (!memory) return;
  rp_address_map_fini(&memory->mapped);
  free(memory->access);
  free(memory);
}

void rp_device_memory_info(const struct rp_device_memory *memory, struct rp_device_memory_info *out) {
  unsigned types = (unsigned)memory->properties.requestedHandleTypes;
  *out = (struct rp_device_memory_info){
      .device = memory->ordinal,
      .granularity_bytes = atomic_load(&memory->granularity_bytes),
      .rdma = memory->properties.allocFlags.gpuDirectRDMACapable != 0,
      .posix_fd = (types & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0,
      .fabric = atomic_load(&memory->fabric),
      .peers = atomic_load(&memory->access_count) - 1,
      .calls = atomic_load(&memory->calls),
      .failures = atomic_load(&memory->failures),
      .create_ns = atomic_load(&memory->create_ns),
      .map_ns = atomic_load(&memory->map_ns),
      .unmap_ns = atomic_load(&memory->unmap_ns),
  };
}

/* ---- peers ---- */

static bool is_accessible_to(const struct rp_device_memory *memory, int device) {
  for (unsigned i = 0; i < atomic_load(&memory->access_count); i++)
    if (memory->access[i].location.id == device) return true;
  return false;
}

static rp_status give_peer(struct rp_device_memory *memory, const CUmemAccessDesc *peer) {
  rp_status status = RP_OK;
  for (size_t i = 0; i < memory->mapped.count && status == RP_OK; i++) {
    const struct rp_range *range = &memory->mapped.ranges[i];
    if (!range->value) continue;
    TIMED(memory, status, map_ns, mem_set_access, range->begin, range->end - range->begin, peer, 1);
  }
  return status;
}

rp_status rp_device_memory_add_peer(struct rp_device_memory *memory, int peer) {
  CUdevice device;
  int can = 0;
  struct rp__device_scope scope;
  if (is_accessible_to(memory, peer)) return RP_OK;
  rp__device_enter(memory->driver, &scope);
  rp_status status = RP__DEVICE_CALL(memory->driver, device_get, &device, peer);
  if (status == RP_OK)
    status = RP__DEVICE_CALL(memory->driver, device_can_access_peer, &can, device, memory->device);
  if (status == RP_OK && !can)
    status = rp__device_result(rp__device_names.device_can_access_peer, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
  rp__device_leave(memory->driver, &scope);
  if (status) return status;
  const CUmemAccessDesc access = {
      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = peer},
      .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
  };
  status = give_peer(memory, &access);
  if (status) return status;
  unsigned count = atomic_load(&memory->access_count);
  memory->access[count] = access;
  atomic_store(&memory->access_count, count + 1);
  return RP_OK;
}

/* ---- the backend ---- */

static rp_status granularity(void *context, uint64_t *bytes) {
  struct rp_device_memory *memory = context;
  *bytes = atomic_load(&memory->granularity_bytes);
  return RP_OK;
}

static rp_status reserve(void *context, uint64_t bytes, uint64_t *address) {
  struct rp_device_memory *memory = context;
  CUdeviceptr at = 0;
  rp_status status;
  TIMED(memory, status, map_ns, mem_address_reserve, &at, bytes, atomic_load(&memory->granularity_bytes), 0,
        0);
  if (status == RP_OK) *address = at;
  return status;
}

static rp_status unreserve(void *context, uint64_t address, uint64_t bytes) {
  struct rp_device_memory *memory = context;
  rp_status status;
  TIMED(memory, status, unmap_ns, mem_address_free, address, bytes);
  return status;
}

static rp_status create(void *context, uint64_t bytes, uint64_t *handle) {
  struct rp_device_memory *memory = context;
  CUmemGenericAllocationHandle made = 0;
  rp_status status;
  TIMED(memory, status, create_ns, mem_create, &made, bytes, &memory->properties, 0);
  if (status == RP_OK) *handle = made;
  return status;
}

static rp_status release(void *context, uint64_t handle) {
  struct rp_device_memory *memory = context;
  rp_status status;
  TIMED(memory, status, unmap_ns, mem_release, handle);
  return status;
}

/* The list is extended first: what cannot be remembered is not mapped. */
static rp_status map(void *context, uint64_t address, uint64_t bytes, uint64_t handle) {
  struct rp_device_memory *memory = context;
  rp_status status = rp_address_map_add(&memory->mapped, address, address + bytes, 0);
  if (status) return status;
  TIMED(memory, status, map_ns, mem_map, address, bytes, 0, handle, 0);
  if (status) rp_address_map_remove(&memory->mapped, address, NULL);
  return status;
}

static rp_status unmap(void *context, uint64_t address, uint64_t bytes) {
  struct rp_device_memory *memory = context;
  rp_status status;
  TIMED(memory, status, unmap_ns, mem_unmap, address, bytes);
  if (status == RP_OK) rp_address_map_remove(&memory->mapped, address, NULL);
  return status;
}

static rp_status set_access(void *context, uint64_t address, uint64_t bytes) {
  struct rp_device_memory *memory = context;
  rp_status status;
  TIMED(memory, status, map_ns, mem_set_access, address, bytes, memory->access,
        atomic_load(&memory->access_count));
  struct rp_range *range = status == RP_OK ? rp_address_map_find(&memory->mapped, address) : NULL;
  if (range) range->value = 1;
  return status;
}

/* ---- words ---- */

/* A context of this device to copy in, made current: the thread's own, or the primary one where the program
 * has made it already. None is made for this. */
struct word_context {
  CUcontext context;
  bool switched, retained;
};

static rp_status take_context(const struct rp_device_memory *memory, struct word_context *taken) {
  const struct rp__device_driver *driver = memory->driver;
  unsigned flags;
  int active = 0;
  CUdevice device = -1;
  *taken = (struct word_context){.context = rp__device_current(driver)};
  if (taken->context && driver->context_device && driver->context_device(&device) == CUDA_SUCCESS &&
      device == memory->device)
    return RP_OK;
  rp_status status = RP__DEVICE_CALL(driver, primary_state, memory->device, &flags, &active);
  if (status) return status;
  if (!active) return rp__device_result(rp__device_names.primary_state, CUDA_ERROR_INVALID_CONTEXT);
  status = RP__DEVICE_CALL(driver, primary_retain, &taken->context, memory->device);
  taken->retained = status == RP_OK;
  return status ? status : rp__device_switch(driver, taken->context, &taken->switched);
}

static void drop_context(const struct rp_device_memory *memory, const struct word_context *taken) {
  rp__device_unswitch(memory->driver, taken->switched);
  if (taken->retained && memory->driver->primary_release) memory->driver->primary_release(memory->device);
}

static rp_status copy_word(const struct rp__device_driver *driver, CUstream stream, uint64_t address,
                           uint64_t *word, bool write) {
  rp_status status = write ? RP__DEVICE_CALL(driver, copy_to_device, address, word, sizeof *word, stream)
                           : RP__DEVICE_CALL(driver, copy_to_host, word, address, sizeof *word, stream);
  /* Also after a failure: nothing may still be using `word` when this returns. */
  rp_status done = RP__DEVICE_CALL(driver, stream_synchronize, stream);
  return status ? status : done;
}

static rp_status word(struct rp_device_memory *memory, uint64_t address, uint64_t *value, bool write) {
  const struct rp__device_driver *driver = memory->driver;
  struct rp__device_scope scope;
  struct word_context taken;
  struct rp__device_context *mine = NULL;
  CUstream stream = NULL;
  rp__device_enter(driver, &scope);
  rp_status status = take_context(memory, &taken);
  if (status == RP_OK) status = rp__device_context_get(driver, taken.context, &mine);
  if (status == RP_OK) status = rp__device_words_get(driver, mine, &stream);
  if (stream) status = counted(memory, copy_word(driver, stream, address, value, write));
  if (stream) rp__device_words_put(driver, mine, stream);
  if (mine) rp__device_context_put(mine);
  drop_context(memory, &taken);
  rp__device_leave(driver, &scope);
  return status;
}

static rp_status write_word(void *context, uint64_t address, uint64_t value) {
  return word(context, address, &value, true);
}

static rp_status read_word(void *context, uint64_t address, uint64_t *value) {
  uint64_t seen = 0;
  rp_status status = word(context, address, &seen, false);
  if (status == RP_OK) *value = seen;
  return status;
}

void rp_device_memory_backend(struct rp_device_memory *memory, struct rp_backend *out) {
  *out = (struct rp_backend){
      .version = RP_BACKEND_VERSION,
      .context = memory,
      .granularity = granularity,
      .reserve = reserve,
      .unreserve = unreserve,
      .create = create,
      .release = release,
      .map = map,
      .unmap = unmap,
      .set_access = set_access,
      .write_word = write_word,
      .read_word = read_word,
  };
}
