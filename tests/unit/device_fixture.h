/** @file device_fixture.h
 * For the tests of cupti/device_memory: the simulated driver with a primary context and two kernels, and
 * device memory opened on its first device.
 */
#ifndef RP_TESTS_DEVICE_FIXTURE_H
#define RP_TESTS_DEVICE_FIXTURE_H

#include "../sim/sim_test.h"

#define __CUDA_API_VERSION_INTERNAL 1
#include <cuda.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>

#include "../sim/rpsim.h"
#include "cupti/cuda_side.h"
#include "cupti/device_memory.h"

#define GRANULE ((uint64_t)2 << 20)

extern CUcontext context; /**< primary, current */
extern struct rp_device_memory *memory;
extern struct rp_backend backend;

/** Setup and teardown of a group. */
int start(void **state);
int stop(void **state);

/** A kernel that waits until *open. */
void launch_gate(CUstream stream, _Atomic bool *open);
/** A kernel that copies 8 bytes. */
void launch_copy(CUstream stream, CUdeviceptr to, CUdeviceptr from);
CUstream new_stream(void);
uint64_t id_of(const void *handle);

/** One handle at two addresses, with access; and its end. */
void make_alias(uint64_t addresses[2]);
void drop_alias(const uint64_t addresses[2]);

#endif
