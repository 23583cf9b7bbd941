/* Ops run when somebody needs them: after the one before them in their stream, and the one they wait for. */
#include "lazy_device.h"

#include <string.h>

void lazy_init(struct lazy_device *device, struct host_device *memory) {
  device->memory = memory;
  device->count = 0;
  device->wrong = 0;
  device->first_wrong = NULL;
  for (int s = 0; s < LAZY_STREAMS; s++)
    device->last[s] = -1;
  for (int e = 0; e < LAZY_EVENTS; e++)
    device->event[e] = -1;
}

static void wrong(struct lazy_device *device, const char *what) {
  if (!device->wrong++) device->first_wrong = what;
}

static void perform(struct lazy_device *device, struct lazy_op *op) {
  uint64_t seen = 0;
  op->done = true;
  if (op->write && !host_device_store(device->memory, op->address, op->word))
    wrong(device, "a write to memory that is not there");
  if (!op->read) return;
  if (!host_device_load(device->memory, op->address, &seen))
    wrong(device, "a read of memory that is not there");
  else if (seen != op->word)
    wrong(device, "a read of somebody else's data");
}

static void need(struct lazy_device *device, int index) {
  if (index < 0 || device->ops[index].done) return;
  struct lazy_op *op = &device->ops[index];
  need(device, op->before);
  need(device, op->waits_for);
  perform(device, op);
}

static struct lazy_op *add(struct lazy_device *device, int stream) {
  if (device->count == LAZY_OPS) { /* forget the past */
    lazy_sync_all(device);
    lazy_init(device, device->memory);
  }
  struct lazy_op *op = &device->ops[device->count];
  *op = (struct lazy_op){.before = device->last[stream], .waits_for = -1};
  device->last[stream] = (int)device->count++;
  return op;
}

void lazy_write(struct lazy_device *device, int stream, uint64_t address, uint64_t word) {
  struct lazy_op *op = add(device, stream);
  op->address = address;
  op->word = word;
  op->write = true;
}

void lazy_read(struct lazy_device *device, int stream, uint64_t address, uint64_t word) {
  struct lazy_op *op = add(device, stream);
  op->address = address;
  op->word = word;
  op->read = true;
}

void lazy_record(struct lazy_device *device, int stream, size_t event) {
  device->event[event % LAZY_EVENTS] = device->last[stream];
}

void lazy_wait(struct lazy_device *device, int stream, size_t event) {
  int waits_for = device->event[event % LAZY_EVENTS];
  add(device, stream)->waits_for = waits_for;
}

void lazy_sync_event(struct lazy_device *device, size_t event) {
  need(device, device->event[event % LAZY_EVENTS]);
}

void lazy_sync(struct lazy_device *device, int stream) {
  need(device, device->last[stream]);
}

void lazy_sync_all(struct lazy_device *device) {
  for (int s = 0; s < LAZY_STREAMS; s++)
    lazy_sync(device, s);
}

void lazy_run_some(struct lazy_device *device, uint32_t random) {
  int stream = (int)(random % LAZY_STREAMS), next = device->last[stream];
  while (next >= 0 && !device->ops[next].done && device->ops[next].before >= 0 &&
         !device->ops[device->ops[next].before].done && random / LAZY_STREAMS % 7)
    next = device->ops[next].before;
  need(device, next);
}
