/** @file hidden_library.h
 * The functions of hidden_calls.h, from a library that is loaded when they are first needed.
 */
#ifndef RP_TRAINER_HIDDEN_LIBRARY_H
#define RP_TRAINER_HIDDEN_LIBRARY_H

#include "hidden_calls.h"

/** Before the others. -1: the library or the driver cannot be found. */
int rp_hidden_library_open(void);
int rp_hidden_library_set(void *memory, unsigned char value, size_t bytes, void *stream);
int rp_hidden_library_launch(void *function, unsigned blocks, unsigned threads, void **arguments,
                             void *stream);

#endif
