/** @file test_engine_host.h
 * Stands in for the api half when the engine is tested by itself: one device, contexts, kernels that are
 * their own handles. Callbacks are counted.
 */
#ifndef RPSIM_TEST_ENGINE_HOST_H
#define RPSIM_TEST_ENGINE_HOST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine_internal.h"

#define HOST_DEVICE_BYTES (256ull << 20)

/** Makes a context and makes it current; destroys it again. Both fit cmocka's setup and teardown. */
int host_setup(void **state);
int host_teardown(void **state);
struct sim_context *host_context(void);
/** How often the engine raised a callback of the resource domain. */
unsigned host_resource_count(CUpti_CallbackIdResource id);
/** Node, graph or exec of the last such callback. */
CUpti_GraphData host_last_graph_data(CUpti_CallbackIdResource id);

/** A kernel as the handle the engine takes. */
#define HOST_FUNCTION(kernel) ((CUfunction)(uintptr_t) & (kernel))

#define assert_cuda(call) assert_int_equal((call), CUDA_SUCCESS)

/** Kernel that copies one word: (source, destination). */
extern const struct rpsim_kernel host_copy_word;
/** Kernel that writes a word: (destination, value). */
extern const struct rpsim_kernel host_write_word;
/** Kernel that adds to a word after it has slept: (destination, addend, sleep in us). */
extern const struct rpsim_kernel host_slow_add;
/** Kernel that waits until a gate is opened: (struct host_gate *). */
extern const struct rpsim_kernel host_wait_gate;

struct host_gate {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  bool entered, open;
};
/** A closed gate; teardown opens all, so that a failed test ends. At most HOST_GATES a test. */
#define HOST_GATES 8
struct host_gate *host_gate_new(void);
void host_gate_open(struct host_gate *gate);
/** Waits until a kernel stands at the gate. */
void host_gate_await(struct host_gate *gate);

CUresult host_launch(const struct rpsim_kernel *kernel, CUstream stream, void **params);
CUresult host_copy(CUstream stream, CUdeviceptr source, CUdeviceptr destination);
CUresult host_write(CUstream stream, CUdeviceptr destination, uint32_t value);
CUresult host_block(CUstream stream, struct host_gate *gate);
/** The word at a device address, read once all work is done. */
uint32_t host_word(CUdeviceptr address);

#endif
