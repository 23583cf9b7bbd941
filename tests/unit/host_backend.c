/* memfd per handle, PROT_NONE reservations, MAP_FIXED mappings. */
#define _GNU_SOURCE /* memfd_create */
#include "host_backend.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* Should this call fail now? */
static bool fails(struct host_device *device, enum host_call call) {
  device->calls++;
  device->calls_of[call]++;
  bool failing = device->fail_at && device->calls >= device->fail_at &&
                 device->calls <= device->fail_at + device->fail_count;
  failing |= device->fail_second && device->calls == device->fail_second;
  if (device->fail_one_in) {
    device->random ^= device->random << 13;
    device->random ^= device->random >> 7;
    device->random ^= device->random << 17;
    failing |= device->random % device->fail_one_in == 0;
  }
  if (device->words_hold && (call == HOST_WRITE || call == HOST_READ)) failing = false;
  device->failures += failing;
  return failing;
}

static rp_status misused(struct host_device *device) {
  device->misuse++;
  return RP_ERROR_INVALID;
}

static struct host_range *range_at(const struct host_device *device, uint64_t address) {
  for (size_t i = 0; i < device->ranges_used; i++) {
    const struct host_range *r = &device->range[i];
    if (r->in_use && r->address <= address && address < r->address + r->bytes) return (struct host_range *)r;
  }
  return NULL;
}

/* The whole range, as every mapping call names it. */
static struct host_range *range_whole(struct host_device *device, uint64_t address, uint64_t bytes) {
  struct host_range *r = range_at(device, address);
  return r && r->address == address && r->bytes == bytes ? r : NULL;
}

static struct host_memory *memory_of(struct host_device *device, uint64_t handle) {
  for (size_t i = 0; i < device->memories_used; i++)
    if (device->memory[i].in_use && device->memory[i].handle == handle) return &device->memory[i];
  return NULL;
}

static void memory_settle(struct host_device *device, struct host_memory *memory) {
  if (!memory->released || memory->mapped) return;
  close(memory->file);
  device->physical_bytes -= memory->bytes;
  memory->in_use = false;
}

static rp_status host_granularity(void *context, uint64_t *bytes) {
  (void)context;
  *bytes = HOST_GRANULARITY;
  return RP_OK;
}

static rp_status host_reserve(void *context, uint64_t bytes, uint64_t *address) {
  struct host_device *device = context;
  if (fails(device, HOST_RESERVE)) return RP_ERROR_NO_MEMORY;
  if (!bytes || bytes % HOST_GRANULARITY) return misused(device);
  for (size_t i = 0; i < HOST_MOST; i++) {
    if (device->range[i].in_use) continue;
    void *begin = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (begin == MAP_FAILED) return RP_ERROR_NO_MEMORY;
    device->range[i] = (struct host_range){.address = (uintptr_t)begin, .bytes = bytes, .in_use = true};
    if (i >= device->ranges_used) device->ranges_used = i + 1;
    *address = (uintptr_t)begin;
    return RP_OK;
  }
  return RP_ERROR_NO_MEMORY;
}

static rp_status host_unreserve(void *context, uint64_t address, uint64_t bytes) {
  struct host_device *device = context;
  struct host_range *r = range_whole(device, address, bytes);
  if (fails(device, HOST_UNRESERVE)) return RP_ERROR_UNAVAILABLE;
  if (!r || r->memory) return misused(device);
  munmap((void *)(uintptr_t)address, bytes);
  r->in_use = false;
  return RP_OK;
}

static bool fill(int file, uint64_t bytes) {
  static const uint64_t poison[HOST_GRANULARITY / 8] = {[0 ... HOST_GRANULARITY / 8 - 1] = HOST_POISON};
  for (uint64_t at = 0; at < bytes; at += HOST_GRANULARITY)
    if (pwrite(file, poison, HOST_GRANULARITY, (off_t)at) != (ssize_t)HOST_GRANULARITY) return false;
  return true;
}

static rp_status host_create(void *context, uint64_t bytes, uint64_t *handle) {
  struct host_device *device = context;
  static uint64_t last_handle = 1000;
  if (fails(device, HOST_CREATE)) return RP_ERROR_NO_MEMORY;
  if (!bytes || bytes % HOST_GRANULARITY) return misused(device);
  if (device->physical_bytes + bytes > device->capacity_bytes) return RP_ERROR_NO_MEMORY;
  for (size_t i = 0; i < HOST_MOST; i++) {
    if (device->memory[i].in_use) continue;
    int file = memfd_create("slot", MFD_CLOEXEC);
    if (file < 0 || !fill(file, bytes)) return RP_ERROR_NO_MEMORY;
    device->memory[i] =
        (struct host_memory){.handle = ++last_handle, .bytes = bytes, .file = file, .in_use = true};
    device->physical_bytes += bytes;
    if (device->physical_bytes > device->physical_peak_bytes)
      device->physical_peak_bytes = device->physical_bytes;
    if (i >= device->memories_used) device->memories_used = i + 1;
    *handle = last_handle;
    return RP_OK;
  }
  return RP_ERROR_NO_MEMORY;
}

static rp_status host_release(void *context, uint64_t handle) {
  struct host_device *device = context;
  struct host_memory *memory = memory_of(device, handle);
  if (fails(device, HOST_RELEASE)) return RP_ERROR_UNAVAILABLE;
  if (!memory || memory->released) return misused(device);
  memory->released = true;
  memory_settle(device, memory);
  return RP_OK;
}

static rp_status host_map(void *context, uint64_t address, uint64_t bytes, uint64_t handle) {
  struct host_device *device = context;
  struct host_range *r = range_whole(device, address, bytes);
  struct host_memory *memory = memory_of(device, handle);
  if (fails(device, HOST_MAP)) return RP_ERROR_UNAVAILABLE;
  if (!r || r->memory || !memory || memory->released || memory->bytes != bytes) return misused(device);
  void *at = mmap((void *)(uintptr_t)address, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, memory->file, 0);
  if (at == MAP_FAILED) return RP_ERROR_NO_MEMORY;
  r->memory = (uint32_t)(memory - device->memory) + 1;
  r->access = false;
  memory->mapped++;
  return RP_OK;
}

static rp_status host_unmap(void *context, uint64_t address, uint64_t bytes) {
  struct host_device *device = context;
  struct host_range *r = range_whole(device, address, bytes);
  if (fails(device, HOST_UNMAP)) return RP_ERROR_UNAVAILABLE;
  if (!r || !r->memory) return misused(device);
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  if (mmap((void *)(uintptr_t)address, bytes, PROT_NONE, flags, -1, 0) == MAP_FAILED)
    return RP_ERROR_NO_MEMORY;
  struct host_memory *memory = &device->memory[r->memory - 1];
  memory->mapped--;
  memory_settle(device, memory);
  r->memory = 0;
  r->access = false;
  return RP_OK;
}

static rp_status host_set_access(void *context, uint64_t address, uint64_t bytes) {
  struct host_device *device = context;
  struct host_range *r = range_whole(device, address, bytes);
  if (fails(device, HOST_SET_ACCESS)) return RP_ERROR_UNAVAILABLE;
  if (!r || !r->memory) return misused(device);
  if (mprotect((void *)(uintptr_t)address, bytes, PROT_READ | PROT_WRITE)) return RP_ERROR_NO_MEMORY;
  r->access = true;
  return RP_OK;
}

bool host_device_accessible(const struct host_device *device, uint64_t address) {
  const struct host_range *r = range_at(device, address);
  return r && r->memory && r->access && address + 8 <= r->address + r->bytes;
}

int host_device_memory_at(const struct host_device *device, uint64_t address) {
  const struct host_range *r = range_at(device, address);
  return r ? (int)r->memory - 1 : -1;
}

bool host_device_load(const struct host_device *device, uint64_t address, uint64_t *word) {
  if (!host_device_accessible(device, address)) return false;
  *word = *(volatile uint64_t *)(uintptr_t)address;
  return true;
}

bool host_device_store(const struct host_device *device, uint64_t address, uint64_t word) {
  if (!host_device_accessible(device, address)) return false;
  *(volatile uint64_t *)(uintptr_t)address = word;
  return true;
}

static rp_status host_write(void *context, uint64_t address, uint64_t word) {
  struct host_device *device = context;
  if (fails(device, HOST_WRITE)) return RP_ERROR_IO;
  return host_device_store(device, address, word) ? RP_OK : misused(device);
}

static rp_status host_read(void *context, uint64_t address, uint64_t *word) {
  struct host_device *device = context;
  if (fails(device, HOST_READ)) return RP_ERROR_IO;
  if (!host_device_load(device, address, word)) return misused(device);
  if (device->words_lie) *word ^= 1;
  return RP_OK;
}

struct host_device *host_device_create(uint64_t capacity_bytes) {
  struct host_device *device = calloc(1, sizeof *device);
  if (!device) return NULL;
  device->capacity_bytes = capacity_bytes;
  device->random = 88172645463325252u;
  device->backend = (struct rp_backend){.version = RP_BACKEND_VERSION,
                                        .context = device,
                                        .granularity = host_granularity,
                                        .reserve = host_reserve,
                                        .unreserve = host_unreserve,
                                        .create = host_create,
                                        .release = host_release,
                                        .map = host_map,
                                        .unmap = host_unmap,
                                        .set_access = host_set_access,
                                        .write_word = host_write,
                                        .read_word = host_read};
  return device;
}

void host_device_destroy(struct host_device *device) {
  if (!device) return;
  for (size_t i = 0; i < HOST_MOST; i++) {
    if (device->range[i].in_use) munmap((void *)(uintptr_t)device->range[i].address, device->range[i].bytes);
    if (device->memory[i].in_use) close(device->memory[i].file);
  }
  free(device);
}

size_t host_device_ranges(const struct host_device *device) {
  size_t count = 0;
  for (size_t i = 0; i < HOST_MOST; i++)
    count += device->range[i].in_use;
  return count;
}

size_t host_device_memories(const struct host_device *device) {
  size_t count = 0;
  for (size_t i = 0; i < HOST_MOST; i++)
    count += device->memory[i].in_use;
  return count;
}
