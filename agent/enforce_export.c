/* Memory of a pool that goes to another process. The driver's handles for that (cudaIpcGetMemHandle) are only
 * for memory of cudaMalloc; ours is handed over by a handle that looks alike, which this library takes in the
 * other process. Owns what was exported, and the sizes that later allocations leave to the driver. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/abi.h"
#include "agent/agent.h"
#include "agent/descriptors.h"
#include "agent/enforce.h"
#include "agent/enforce_internal.h"
#include "agent/log.h"

#define HANDLE_MAGIC UINT64_C(0x314370497652e7f1)

/* What a handle says. */
struct handle {
  uint64_t magic;
  struct rp_ticket ticket;
  uint64_t mapped_bytes;
  unsigned char zero[RP_ENFORCE_HANDLE_BYTES - 4 * sizeof(uint64_t)];
};
_Static_assert(sizeof(struct handle) == RP_ENFORCE_HANDLE_BYTES, "a handle holds it");

struct exported {
  struct exported *next;
  uint64_t begin;
  struct handle handle;
};
static struct exported *exports; /* core lock */

/* ---- sizes ---- */

/* Who exports one buffer exports the others of its size, and the other process may be without this library.
 */
#define SIZES_MOST 32
static _Atomic uint64_t sizes[SIZES_MOST];
static _Atomic unsigned size_count; /* beyond the most: every size */

bool rp__export_seen(uint64_t bytes) {
  unsigned count = atomic_load_explicit(&size_count, memory_order_acquire);
  if (count > SIZES_MOST) return true;
  for (unsigned i = 0; i < count; i++)
    if (atomic_load_explicit(&sizes[i], memory_order_relaxed) == bytes) return true;
  return false;
}

/* Under the core lock. */
static void note_size(uint64_t bytes) {
  unsigned count = atomic_load_explicit(&size_count, memory_order_relaxed);
  if (rp__export_seen(bytes)) return;
  if (count < SIZES_MOST) atomic_store_explicit(&sizes[count], bytes, memory_order_relaxed);
  atomic_store_explicit(&size_count, count + 1, memory_order_release);
}

/* ---- out ---- */

static struct exported *find_export(uint64_t begin) {
  struct exported *at = exports;
  while (at && at->begin != begin)
    at = at->next;
  return at;
}

/* Under the core lock. */
void rp__export_end(uint64_t begin) {
  for (struct exported **at = &exports; *at; at = &(*at)->next) {
    struct exported *found = *at;
    if (found->begin != begin) continue;
    *at = found->next;
    rp_descriptor_withdraw(&found->handle.ticket);
    free(found);
    return;
  }
}

/* Under the core lock. */
void rp__exports_end(const struct rp__device *device) {
  struct exported *next;
  for (struct exported *at = exports; at; at = next) {
    next = at->next;
    if (rp__device_of(at->begin) == device) rp__export_end(at->begin);
  }
}

/* Of the driver: whole units. */
static uint64_t mapped_bytes(const struct rp_enforce_buffer *buffer) {
  struct rp_device_memory_info info = {.granularity_bytes = 1};
  if (!rp__gate_enter()) return 0;
  const struct rp__device *device = rp__device_of(buffer->begin);
  if (device) rp_device_memory_info(device->memory, &info);
  rp__gate_leave();
  return (buffer->bytes + info.granularity_bytes - 1) / info.granularity_bytes * info.granularity_bytes;
}

static bool make_handle(const struct rp_enforce_buffer *buffer, struct handle *out) {
  int fd = -1;
  *out = (struct handle){.magic = HANDLE_MAGIC, .mapped_bytes = mapped_bytes(buffer)};
  if (out->mapped_bytes == 0 || rp_device_memory_export(buffer->begin, &fd) != RP_OK) return false;
  if (rp_descriptor_offer(fd, &out->ticket) == RP_OK) return true;
  close(fd);
  return false;
}

/* Keeps the handle for the next time. Without memory the offer stays until the process ends. */
static bool remember(uint64_t begin, const struct handle *handle) {
  struct exported *export = malloc(sizeof *export);
  if (!export || !rp__gate_enter()) {
    free(export);
    return false;
  }
  *export = (struct exported){.next = exports, .begin = begin, .handle = *handle};
  exports = export;
  rp__gate_leave();
  return true;
}

static bool known(const struct rp_enforce_buffer *buffer, struct handle *out) {
  if (!rp__gate_enter()) return false;
  const struct exported *found = find_export(buffer->begin);
  if (found) *out = found->handle;
  note_size(buffer->bytes);
  rp__gate_leave();
  return found != NULL;
}

enum rp_enforce_exported rp_enforce_export(uint64_t address, void *handle) {
  struct rp_enforce_buffer buffer;
  struct handle made;
  if (!rp_enforce_find(address, &buffer)) return RP_ENFORCE_EXPORT_NOT_OURS;
  bool had = known(&buffer, &made);
  if (!rp_enforce_flag(buffer.begin, 1, RP_POOL_FLAG_ESCAPED, RP_EVENT_NONE))
    return RP_ENFORCE_EXPORT_REFUSED;
  if (!buffer.backed) rp_enforce_touch(buffer.begin);
  if (!had && !make_handle(&buffer, &made)) {
    rp_warn(
        "memory of a pool cannot be exported to another process here: allocations of %llu bytes are left to "
        "the driver from now on; a job that exports them needs --buffer-bytes with the size of the receives",
        (unsigned long long)buffer.bytes);
    return RP_ENFORCE_EXPORT_REFUSED;
  }
  if (!had) (void)remember(buffer.begin, &made);
  memcpy(handle, &made, sizeof made);
  return RP_ENFORCE_EXPORTED;
}

/* ---- in ---- */

static int fetch(const void *ticket) {
  return rp_descriptor_fetch(ticket);
}

bool rp_enforce_is_export(const void *handle) {
  uint64_t magic;
  memcpy(&magic, handle, sizeof magic);
  return magic == HANDLE_MAGIC;
}

bool rp_enforce_import(const void *handle, uint64_t *address, int *result) {
  struct handle given;
  if (!rp_enforce_is_export(handle)) return false;
  memcpy(&given, handle, sizeof given);
  *result = RP_ABI_OTHER_CONTEXT;
  if (rp_descriptor_is_own(&given.ticket)) return true; /* of this process: not for that */
  const uint64_t name[2] = {given.ticket.process, given.ticket.key};
  rp_status status = rp_device_memory_import(name, fetch, &given.ticket, given.mapped_bytes, address);
  *result = status == RP_OK                ? RP_ABI_SUCCESS
            : status == RP_ERROR_NO_MEMORY ? RP_ABI_OUT_OF_MEMORY
                                           : RP_ABI_MAP_FAILED;
  return true;
}

bool rp_enforce_import_end(uint64_t address, int *result) {
  rp_status status = rp_device_memory_import_end(address);
  *result = status == RP_OK ? RP_ABI_SUCCESS : RP_ABI_MAP_FAILED;
  return status != RP_ERROR_NOT_FOUND;
}
