/** @file backend.h
 * Where the pool gets physical memory: a table of functions over whatever manages the device's address space.
 * CUDA's virtual memory management implements it in production, shared host memory in the unit tests.
 *
 * The rules are the driver's: a handle is always mapped whole at offset 0, onto a reserved range that nothing
 * is mapped at; a mapping gives no access until set_access; a mapping is unmapped whole; a handle may be
 * mapped at several addresses at once, and its memory lives until it is released and unmapped everywhere.
 */
#ifndef RP_POOL_BACKEND_H
#define RP_POOL_BACKEND_H

#include <stdint.h>

#include "recvpool/status.h"

#define RP_BACKEND_VERSION 1

/** One device's physical memory. Every function returns RP_OK or why it changed nothing; sizes are multiples
 * of the granularity; none is called from inside a driver callback by the pool. Out-parameters are untouched
 * on failure. */
struct rp_backend {
  uint32_t version; /**< RP_BACKEND_VERSION */
  void *context;    /**< first argument of all of them */
  /** Smallest unit of a handle in bytes, for the properties that create() uses; never 0. */
  rp_status (*granularity)(void *context, uint64_t *bytes);
  rp_status (*reserve)(void *context, uint64_t bytes, uint64_t *address);
  /** Exactly one reserved range, with nothing mapped. */
  rp_status (*unreserve)(void *context, uint64_t address, uint64_t bytes);
  rp_status (*create)(void *context, uint64_t bytes, uint64_t *handle);
  rp_status (*release)(void *context, uint64_t handle);
  rp_status (*map)(void *context, uint64_t address, uint64_t bytes, uint64_t handle);
  rp_status (*unmap)(void *context, uint64_t address, uint64_t bytes);
  rp_status (*set_access)(void *context, uint64_t address, uint64_t bytes);
  /** One 8-byte word of mapped memory, complete on the device when the call returns. Both may be NULL, then
   * aliasing is not checked before it is used. */
  rp_status (*write_word)(void *context, uint64_t address, uint64_t word);
  rp_status (*read_word)(void *context, uint64_t address, uint64_t *word);
};

#endif
