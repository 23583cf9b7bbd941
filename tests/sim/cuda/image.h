/** @file image.h
 * Device binaries as programs carry them: fat binaries (several ELF images, plain or compressed with zstd)
 * and single ELF images. What is in them says which kernels exist and how their parameters lie.
 */
#ifndef RPSIM_IMAGE_H
#define RPSIM_IMAGE_H

#include "../rpsim.h"

#include <stdbool.h>

/** Bytes of the device binary that starts at `image`, 0 if it is none (as the images of tests, which hold
 * nothing). Reads no further than what it has recognised. */
size_t sim_image_bytes(const void *image);

/** Looks up a kernel by its mangled name. True: *params is its layout, in order and to be freed by the caller
 * (NULL if it has no parameters), and *count their number. False: no such kernel, no device binary, or no
 * memory. `image` is at least sim_image_bytes long. Thread-safe. */
bool sim_image_kernel(const void *image, const char *name, struct rpsim_param **params, size_t *count);

#endif
