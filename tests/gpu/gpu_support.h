/** @file gpu_support.h
 * What every program that measures on a GPU needs: a context, memory with several addresses, times, and a
 * list of results as JSON on standard output. All of it is for one thread, and ends the process with a line
 * when a call fails.
 */
#ifndef RP_GPU_SUPPORT_H
#define RP_GPU_SUPPORT_H

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RP_MIB ((size_t)1 << 20)

/** Ends the process with a line. */
_Noreturn void rp_gpu_fail(const char *what, int code);
/** Ends the process when a call returns anything but 0. */
#define RP_CHECK(call)                                                                                       \
  do {                                                                                                       \
    int rp_code_ = (int)(call);                                                                              \
    if (rp_code_ != 0) rp_gpu_fail(#call, rp_code_);                                                         \
  } while (0)

/** Initialises the driver, and makes the primary context of device 0 current. */
CUdevice rp_gpu_open(void);
/** Bytes that the device has in use, by all processes. */
uint64_t rp_gpu_used_bytes(void);

// ---- time

/** CLOCK_MONOTONIC, nanoseconds. */
double rp_gpu_now_ns(void);
/** The middle of `count` values, which it sorts. */
double rp_gpu_median(double *values, size_t count);

// ---- memory with several addresses

/** Properties as the agent's slots have them where nothing more is asked for. */
CUmemAllocationProp rp_gpu_properties(CUdevice device);
size_t rp_gpu_granularity(const CUmemAllocationProp *properties);
/** Reserves an address and maps the whole handle there, with access. */
CUdeviceptr rp_gpu_map(CUmemGenericAllocationHandle handle, size_t bytes, CUdevice device);
void rp_gpu_unmap(CUdeviceptr address, size_t bytes);

// ---- results

/** Each adds one; names and units are short texts that live on. */
void rp_gpu_number(const char *name, double value, const char *unit);
void rp_gpu_integer(const char *name, int64_t value, const char *unit);
void rp_gpu_truth(const char *name, bool value);
void rp_gpu_text(const char *name, const char *value);
/** A driver result, by its name. */
void rp_gpu_result(const char *name, CUresult result);
/** Prints all of them; the process's exit status. */
int rp_gpu_print(void);

#endif
