/** @file test_support.h
 * Kernels and helpers shared by the tests of the simulated runtime. Includes the runtime's header with both
 * spellings of the default stream.
 */
#ifndef RPSIM_CUDART_TEST_SUPPORT_H
#define RPSIM_CUDART_TEST_SUPPORT_H

#include "../rpsim.h"
#define __CUDA_API_VERSION_INTERNAL 1
#include "registration.h"
#undef __CUDA_API_VERSION_INTERNAL

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#define assert_cuda(call) assert_int_equal(call, cudaSuccess)

/** Host symbols of the kernels, as the compiler's host functions would be. */
void symbol_fill(void);   /**< (uint32_t *words, uint32_t value, uint64_t count) */
void symbol_add(void);    /**< (uint32_t *words, uint32_t addend, uint64_t count) */
void symbol_gate(void);   /**< (struct gate *gate): waits until gate_open */
void symbol_absent(void); /**< registered under a name that no device code has */

/** Registers kernels and symbols; to be called once, before anything else. */
void support_register(void);

/** A kernel that waits for the host, so that "not finished yet" can be tested without a clock. */
struct gate;
struct gate *gate_new(void);
/** Returns when the kernel runs. */
void gate_await(struct gate *gate);
/** Lets the kernel end. The gate must be freed only after that. */
void gate_open(struct gate *gate);
void gate_free(struct gate *gate);

/** Launches a kernel of one block by its host symbol; the last two on words of device memory. */
cudaError_t launch_gate(struct gate *gate, cudaStream_t stream);
cudaError_t launch_fill(uint32_t *words, uint32_t value, uint64_t count, cudaStream_t stream);
cudaError_t launch_add(uint32_t *words, uint32_t addend, uint64_t count, cudaStream_t stream);

/** Device memory of `count` words, or a failed test. */
uint32_t *device_words(uint64_t count);
/** Asserts that all words of device memory have `value`, after a device synchronisation. */
void assert_device_words(const uint32_t *words, uint32_t value, uint64_t count);

#endif
