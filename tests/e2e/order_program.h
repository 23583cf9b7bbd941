/* Shared by order_program*.c: the device, the kernel's notes, and what is asked of the probe. */
#ifndef ORDER_PROGRAM_H
#define ORDER_PROGRAM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "tests/e2e/order_calls.h"
#include "tests/e2e/order_probe.h"

#define NOTE_CHECKS 64
#define NOTE_LAUNCHES 64 /* of one executable graph, remembered at a time */

/* What was promised of one access, and what the device found. A graph's kernel has one note for all of its
 * launches; then `done` counts them. */
struct note {
  _Atomic uint32_t done;
  struct note_launch {
    uint32_t count;
    struct {
      struct note *note;
      uint32_t done; /* at least that many when this one starts */
    } must[NOTE_CHECKS];
  } launches[NOTE_LAUNCHES];
};

extern const struct order_calls *calls;
extern const struct order_probe *probe;
extern void *watched, *plain; /* buffers: accesses of the first get tokens */
extern _Atomic long broken_promises;

void check(int result, const char *what);
uint64_t draw(uint64_t *state, uint64_t bound);
/** Stream handle as the order knows it. */
uint64_t order_stream(void *stream);
void wait_a_little(uint64_t nanoseconds);

/** Lockstep, against every execution of the model. Returns the number of promises. */
long model_mode(uint64_t seed, int programs);
/** Threads on the loose, against what the device did. */
long free_mode(uint64_t seed, int rounds);
/** Edges that NCCL makes: how many of them are promised. */
long nccl_mode(void);

/** Single situations. Runtime only. */
long odd_mode(void);

#endif
