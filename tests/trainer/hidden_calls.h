/** @file hidden_calls.h
 * A library of its own whose driver calls nobody can interpose: it looks every entry point up with
 * cuGetProcAddress, as a library with a static runtime does. Each call returns the driver's error number, 0
 * for none.
 */
#ifndef RP_TRAINER_HIDDEN_CALLS_H
#define RP_TRAINER_HIDDEN_CALLS_H

#include <stddef.h>

/** Looks the entry points up; the process must have the driver loaded. -1: the driver cannot be found. Again
 * is fine. */
int rp_hidden_open(void);
/** Fills memory with one byte, on a stream. */
int rp_hidden_set(void *memory, unsigned char value, size_t bytes, void *stream);
/** Launches `function` (a CUfunction) with so many blocks and threads. */
int rp_hidden_launch(void *function, unsigned blocks, unsigned threads, void **arguments, void *stream);

#endif
