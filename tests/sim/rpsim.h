/** @file rpsim.h
 * What a test program may ask of the simulated device beyond CUDA itself. Implemented by the simulated
 * libcuda.so.1; everything else is the real CUDA, CUPTI and NCCL interface.
 *
 * Environment: RPSIM_DEVICES (count, default 1), RPSIM_DEVICE_BYTES (capacity per device, default 8GiB),
 * RPSIM_SEED (jitter between streams; unset or 0 = none), RPSIM_FAIL (NAME:NTH[:ERROR], comma-separated: the
 * NTH call, from 1, of driver entry point NAME returns ERROR, default 2 = out of memory; NTH may be "N+" for
 * the Nth and every later one), RPSIM_ATTRIBUTES (NUMBER:VALUE, comma-separated: what cuDeviceGetAttribute
 * answers; VALUE "unknown" fails it, as an older driver does), RPSIM_LAUNCH_LOG (a folder: each process records
 * what ran on its streams in PID.log). Device pointers are host addresses, so kernels are plain host functions.
 *
 * A line of that record is "STREAM<tab>NAME<tab>BUFFER=HASH BUFFER=HASH ...": the mangled name of a kernel
 * and each receive buffer that an argument points into, with the hash of what it held just before. Buffers
 * are numbered in the order of their first receive; HASH is "unmapped" where there is no memory. Copies,
 * memsets and sends that touch receive buffers are recorded as "copy", "memset" and "send", receives as
 * "receive" with the buffer as BUFFER:BYTES. Lines of one stream are in the order in which the work ran.
 */
#ifndef RPSIM_H
#define RPSIM_H

#include <cuda.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RPSIM_EXPORT __attribute__((visibility("default")))

/** Grid of one launch, as given to cuLaunchKernel. */
struct rpsim_dims {
  unsigned grid[3], block[3], shared_bytes;
};

/** Body of a kernel: runs once per launch on its stream's thread; params[i] points at parameter i. */
typedef void (*rpsim_kernel_body)(void *const *params, const struct rpsim_dims *dims);

struct rpsim_param {
  size_t offset, size; /**< bytes, as cuFuncGetParamInfo answers */
};

/** A kernel: a host function with its name (mangled as CUPTI's symbolName would be) and parameter layout. */
struct rpsim_kernel {
  const char *name;
  rpsim_kernel_body body;
  size_t param_count;
  const struct rpsim_param *params;
};

/** Registers kernels by name, for cuModuleGetFunction, cuLibraryGetKernel and __cudaRegisterFunction. The
 * array and what it points to must live for ever. Registering a name again replaces it. Thread-safe; callable
 * before cuInit and from constructors. Returns 0, or -1 without memory. */
RPSIM_EXPORT int rpsim_register_kernels(const struct rpsim_kernel *kernels, size_t count);

/** Kernels that nobody registered but a loaded device binary has can be launched too; they do no arithmetic,
 * unless the source has a body for the name (else it answers NULL). It is asked once for each such kernel.
 * NULL: no source. */
typedef rpsim_kernel_body (*rpsim_body_source)(const char *name);
RPSIM_EXPORT void rpsim_set_body_source(rpsim_body_source source);
/** Inside a kernel body: the kernel that runs. NULL elsewhere. */
RPSIM_EXPORT const struct rpsim_kernel *rpsim_running_kernel(void);

/** Bytes of physical device memory now held on `device` (VMM handles and allocations; aliases count once). */
RPSIM_EXPORT uint64_t rpsim_physical_bytes(int device);
/** Highest value of rpsim_physical_bytes so far. */
RPSIM_EXPORT uint64_t rpsim_physical_peak_bytes(int device);
/** What is behind a device address at this moment. */
struct rpsim_backing {
  uint64_t block;      /**< id of the physical memory: equal for aliases, never used again */
  uint64_t begin, end; /**< the whole mapping or allocation, which starts at offset 0 of the block */
};
/** Fills `out`; 0, or -1 where nothing is (an address may be reserved and not mapped). No callback is raised.
 */
RPSIM_EXPORT int rpsim_backing_of(uint64_t address, struct rpsim_backing *out);
/** How often driver entry point `name` has been called in this process (outermost or nested). */
RPSIM_EXPORT uint64_t rpsim_call_count(const char *name);

/** For RPSIM_LAUNCH_LOG, made by the simulated NCCL: these addresses are a receive buffer from now on; the
 * running kernel is about to send from, or to receive into them. Without a record they do nothing.
 * Thread-safe. */
RPSIM_EXPORT void rpsim_log_receive(const void *address, size_t bytes);
RPSIM_EXPORT void rpsim_log_transfer(const void *address, size_t bytes, int receives);

/** The pattern fresh device memory is filled with, as 32-bit words. */
#define RPSIM_POISON_WORD 0x7fbadbadu

/** Driver version the simulated libcuda reports. */
#define RPSIM_DRIVER_VERSION 13000

#ifdef __cplusplus
}
#endif
#endif
