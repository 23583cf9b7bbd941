/** @file device.h
 * The trainer's dealings with CUDA: failing loudly, and what both the runtime and the driver have a call for:
 * memory, copies, launches, events. Every function here ends the process with one line on stderr when a call
 * fails, unless it says otherwise.
 */
#ifndef RP_TRAINER_DEVICE_H
#define RP_TRAINER_DEVICE_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels.h"

/** Ends the process after a message, with status 1. */
_Noreturn void rp_die(const char *format, ...) __attribute__((format(printf, 1, 2)));

/** Ends the process if a runtime call did not succeed. */
#define RP_CUDA(call)                                                                                        \
  do {                                                                                                       \
    cudaError_t rp_result_ = (call);                                                                         \
    if (rp_result_ != cudaSuccess)                                                                           \
      rp_die("%s: %s (%s)", #call, cudaGetErrorString(rp_result_), cudaGetErrorName(rp_result_));            \
  } while (0)

/** Chooses the device for the calling thread; with `driver_api`, everything below goes through the driver
 * from now on. */
void rp_device_init(int local_rank, bool driver_api);
/** Makes the device current on another thread. */
void rp_device_attach_thread(void);

void *rp_device_alloc(size_t bytes);
/** Frees memory; NULL is allowed. The caller sees to it that no work uses it. */
void rp_device_free(void *memory);
/** Frees memory; the error number that came of it, 0 for none. */
int rp_device_try_free(void *memory);
/** Asks for a handle that another process could open; the error number that came of it, 0 for none. */
int rp_device_export(void *memory);

/** Asynchronous copies and fills, ordered on `stream`. */
void rp_device_upload(void *device, const void *host, size_t bytes, cudaStream_t stream);
void rp_device_download(void *host, const void *device, size_t bytes, cudaStream_t stream);
void rp_device_set(void *device, unsigned char value, size_t bytes, cudaStream_t stream);

/** Launches `kernel` over `elements` elements. */
void rp_device_launch(enum rp_kernel kernel, size_t elements, void **arguments, cudaStream_t stream);
/** Launches the kernel that does nothing for a while. */
void rp_device_delay(uint32_t microseconds, cudaStream_t stream);
/** The driver's handle of a kernel. */
cudaFunction_t rp_device_function(enum rp_kernel kernel);
/** Blocks and threads of a launch over `elements` elements. */
void rp_device_grid(size_t elements, dim3 *grid, dim3 *block);

/** An event without timing. */
cudaEvent_t rp_device_event(void);
void rp_device_record(cudaEvent_t event, cudaStream_t stream);
/** Later work of `stream` waits for the event. */
void rp_device_wait(cudaStream_t stream, cudaEvent_t event);
void rp_device_synchronize(cudaStream_t stream);

/** Highest number of bytes held on the device: exact on the simulator, else from samples of the free memory.
 */
uint64_t rp_device_peak_bytes(void);
/** Number of bytes held on the device now: exact on the simulator, else what is not free. */
uint64_t rp_device_held_bytes(void);
/** Takes a sample for the highest number. */
void rp_device_sample_memory(void);

/** CLOCK_MONOTONIC. */
uint64_t rp_now_ns(void);

#endif
