/** @file lazy_device.h
 * Streams of a device that does its work as late as it is allowed to, or in any other order that streams,
 * events and the host's waits permit: what a test's program or its guard failed to order goes wrong here.
 */
#ifndef RP_TESTS_UNIT_LAZY_DEVICE_H
#define RP_TESTS_UNIT_LAZY_DEVICE_H

#include "host_backend.h"

#define LAZY_STREAMS 6
#define LAZY_EVENTS 4096
#define LAZY_OPS 65536

struct lazy_op {
  uint64_t address, word;
  int before, waits_for; /* ops, or -1 */
  bool write, read, done;
};

struct lazy_device {
  struct host_device *memory;
  struct lazy_op ops[LAZY_OPS];
  size_t count;
  int last[LAZY_STREAMS], event[LAZY_EVENTS];
  uint64_t wrong;          /* reads that did not see their word, accesses of memory that is not there */
  const char *first_wrong; /* what went wrong first */
};

void lazy_init(struct lazy_device *device, struct host_device *memory);
void lazy_write(struct lazy_device *device, int stream, uint64_t address, uint64_t word);
void lazy_read(struct lazy_device *device, int stream, uint64_t address, uint64_t word);
void lazy_record(struct lazy_device *device, int stream, size_t event);
void lazy_wait(struct lazy_device *device, int stream, size_t event);
/** The host waits. */
void lazy_sync_event(struct lazy_device *device, size_t event);
void lazy_sync(struct lazy_device *device, int stream);
void lazy_sync_all(struct lazy_device *device);
/** Something that could run, runs: the choice is `random`'s. */
void lazy_run_some(struct lazy_device *device, uint32_t random);

#endif
