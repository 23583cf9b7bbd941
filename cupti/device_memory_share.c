/* Memory for other processes: mapped memory as a file descriptor, and another process's descriptor as memory.
 * Owns the list of what was imported. */
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include "cupti/device_memory_internal.h"

struct import {
  struct import *next;
  uint64_t name[2]; /* of the memory, told by who imports it */
  uint64_t address, bytes;
  uint32_t uses;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* never held across a call of the driver */
static struct import *imports;                           /* lock */

/* ---- out ---- */

/* The handle comes from the mapping, so that it is the one that is behind the address now. */
static rp_status export_mapping(const struct rp__device_driver *driver, uint64_t address, int *fd) {
  CUmemGenericAllocationHandle handle = 0;
  int made = -1;
  rp_status status = RP__DEVICE_CALL(driver, mem_retain, &handle, (void *)(uintptr_t)address);
  if (status) return status;
  status = RP__DEVICE_CALL(driver, mem_export, &made, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  (void)RP__DEVICE_CALL(driver, mem_release, handle);
  if (status == RP_OK) *fd = made;
  return status;
}

rp_status rp_device_memory_export(uint64_t address, int *fd) {
  const struct rp__device_driver *driver = rp__device_driver();
  struct rp__device_scope scope;
  if (!driver) return RP_ERROR_UNAVAILABLE;
  rp__device_enter(driver, &scope);
  rp_status status = export_mapping(driver, address, fd);
  rp__device_leave(driver, &scope);
  return status;
}

/* ---- in ---- */

/* One more use of what is imported already; its address, 0: it is not. */
static uint64_t use_again(const uint64_t name[2]) {
  uint64_t address = 0;
  pthread_mutex_lock(&lock);
  for (struct import *at = imports; at && !address; at = at->next)
    if (at->name[0] == name[0] && at->name[1] == name[1]) {
      at->uses++;
      address = at->address;
    }
  pthread_mutex_unlock(&lock);
  return address;
}

static void remember(struct import *import) {
  pthread_mutex_lock(&lock);
  import->next = imports;
  imports = import;
  pthread_mutex_unlock(&lock);
}

static rp_status map_import(const struct rp__device_driver *driver, CUmemGenericAllocationHandle handle,
                            struct import *import) {
  CUdevice device;
  CUdeviceptr address = 0;
  rp_status status = RP__DEVICE_CALL(driver, context_device, &device);
  if (status == RP_OK)
    status = RP__DEVICE_CALL(driver, mem_address_reserve, &address, import->bytes, 0, 0, 0);
  if (status) return status;
  const CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
                                  .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  status = RP__DEVICE_CALL(driver, mem_map, address, import->bytes, 0, handle, 0);
  bool mapped = status == RP_OK;
  if (mapped) status = RP__DEVICE_CALL(driver, mem_set_access, address, import->bytes, &access, 1);
  if (status == RP_OK) {
    import->address = address;
    return RP_OK;
  }
  if (mapped) (void)RP__DEVICE_CALL(driver, mem_unmap, address, import->bytes);
  (void)RP__DEVICE_CALL(driver, mem_address_free, address, import->bytes);
  return status;
}

/* The mapping keeps the memory: handle and descriptor are needed no longer. */
static rp_status import_descriptor(const struct rp__device_driver *driver, int fd, struct import *import) {
  CUmemGenericAllocationHandle handle = 0;
  rp_status status = RP__DEVICE_CALL(driver, mem_import, &handle, (void *)(intptr_t)fd,
                                     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  if (status) return status;
  status = map_import(driver, handle, import);
  (void)RP__DEVICE_CALL(driver, mem_release, handle);
  return status;
}

rp_status rp_device_memory_import(const uint64_t name[2], int (*fetch)(const void *from), const void *from,
                                  uint64_t bytes, uint64_t *address) {
  const struct rp__device_driver *driver = rp__device_driver();
  struct rp__device_scope scope;
  if (!driver) return RP_ERROR_UNAVAILABLE;
  *address = use_again(name);
  if (*address) return RP_OK;
  struct import *import = calloc(1, sizeof *import);
  if (!import) return RP_ERROR_NO_MEMORY;
  *import = (struct import){.name = {name[0], name[1]}, .bytes = bytes, .uses = 1};
  int fd = fetch(from);
  rp_status status = RP_ERROR_UNAVAILABLE;
  rp__device_enter(driver, &scope);
  if (fd >= 0) status = import_descriptor(driver, fd, import);
  rp__device_leave(driver, &scope);
  if (fd >= 0) close(fd);
  if (status) {
    free(import);
    return status;
  }
  *address = import->address;
  remember(import);
  return RP_OK;
}

/* One use less. RP_OK: it was the last, and *out is out of the list. */
static rp_status use_no_more(uint64_t address, struct import **out) {
  rp_status status = RP_ERROR_NOT_FOUND;
  pthread_mutex_lock(&lock);
  for (struct import **at = &imports; *at && status == RP_ERROR_NOT_FOUND; at = &(*at)->next) {
    struct import *found = *at;
    if (found->address != address) continue;
    status = --found->uses == 0 ? RP_OK : RP_ERROR_BUSY;
    if (status == RP_OK) {
      *out = found;
      *at = found->next;
      break;
    }
  }
  pthread_mutex_unlock(&lock);
  return status;
}

rp_status rp_device_memory_import_end(uint64_t address) {
  const struct rp__device_driver *driver = rp__device_driver();
  struct rp__device_scope scope;
  struct import *import = NULL;
  rp_status status = use_no_more(address, &import);
  if (status == RP_ERROR_BUSY) return RP_OK;
  if (status || !driver) return RP_ERROR_NOT_FOUND;
  rp__device_enter(driver, &scope);
  if (driver->context_synchronize) (void)driver->context_synchronize(); /* as the driver's own call does */
  status = RP__DEVICE_CALL(driver, mem_unmap, import->address, import->bytes);
  if (status == RP_OK) status = RP__DEVICE_CALL(driver, mem_address_free, import->address, import->bytes);
  rp__device_leave(driver, &scope);
  free(import);
  return status;
}
