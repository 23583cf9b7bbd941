/** @file host_backend.h
 * Physical memory for tests of the pool: shared host memory, so that two addresses of one handle really
 * alias. As strict as the driver, limited in capacity, and any call can be made to fail.
 */
#ifndef RP_TESTS_UNIT_HOST_BACKEND_H
#define RP_TESTS_UNIT_HOST_BACKEND_H

#include <stdbool.h>
#include <stddef.h>

#include "pool/backend.h"

#define HOST_GRANULARITY 4096u
#define HOST_MOST 4096
/** First word of fresh memory. */
#define HOST_POISON 0xa5a5a5a5a5a5a5a5u

enum host_call {
  HOST_RESERVE,
  HOST_UNRESERVE,
  HOST_CREATE,
  HOST_RELEASE,
  HOST_MAP,
  HOST_UNMAP,
  HOST_SET_ACCESS,
  HOST_WRITE,
  HOST_READ,
  HOST_CALLS
};

struct host_device {
  struct rp_backend backend; /**< context is this device */
  uint64_t capacity_bytes, physical_bytes, physical_peak_bytes;
  uint64_t calls, calls_of[HOST_CALLS];
  uint64_t fail_at;     /**< the call of this number fails, counted from 1; 0 = none */
  uint64_t fail_count;  /**< and this many after it */
  uint64_t fail_second; /**< and the call of this number; 0 = none */
  bool words_hold;      /**< reading and writing words does not fail then */
  uint32_t fail_one_in; /**< at random; 0 = never */
  uint64_t random;
  uint64_t failures;                 /**< made on purpose */
  uint64_t misuse;                   /**< calls that no driver would take; a test expects 0 */
  size_t memories_used, ranges_used; /**< entries beyond these were never used */
  bool words_lie;                    /**< what is written through one address is not read through another */
  struct host_memory {
    uint64_t handle, bytes;
    int file;
    uint32_t mapped;
    bool in_use, released;
  } memory[HOST_MOST];
  struct host_range {
    uint64_t address, bytes;
    uint32_t memory; /**< index + 1; 0 = nothing mapped */
    bool in_use, access;
  } range[HOST_MOST];
};

/** Heap object; NULL without memory. */
struct host_device *host_device_create(uint64_t capacity_bytes);
void host_device_destroy(struct host_device *device);
/** Reserved ranges, and handles whose memory still exists. */
size_t host_device_ranges(const struct host_device *device);
size_t host_device_memories(const struct host_device *device);
/** Can `address` be read and written? */
bool host_device_accessible(const struct host_device *device, uint64_t address);
/** Which memory is mapped at `address`, as an index; -1 if none. */
int host_device_memory_at(const struct host_device *device, uint64_t address);
/** What a kernel would do; false if the address has no access. */
bool host_device_load(const struct host_device *device, uint64_t address, uint64_t *word);
bool host_device_store(const struct host_device *device, uint64_t address, uint64_t word);

#endif
