/** @file internal.h
 * Shared by the files of cupti/ only: the driver's function table.
 */
#ifndef RP_CUPTI_INTERNAL_H
#define RP_CUPTI_INTERNAL_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

#include "cupti/cuda_side.h"

/** Entry points of the mapped driver; each may be NULL and is checked where it is used. */
struct rp_driver_table {
  CUresult(CUDAAPI *driver_get_version)(int *);
  CUresult(CUDAAPI *ctx_get_device)(CUdevice *);
  CUresult(CUDAAPI *ctx_get_current)(CUcontext *);
  CUresult(CUDAAPI *pointer_get_attributes)(unsigned, CUpointer_attribute *, void **, CUdeviceptr);
  CUresult(CUDAAPI *device_get_count)(int *);
  CUresult(CUDAAPI *device_get)(CUdevice *, int);
  CUresult(CUDAAPI *device_get_name)(char *, int, CUdevice);
  CUresult(CUDAAPI *device_total_mem)(size_t *, CUdevice);
  CUresult(CUDAAPI *func_get_param_info)(CUfunction, size_t, size_t *, size_t *);
  CUresult(CUDAAPI *kernel_get_param_info)(CUkernel, size_t, size_t *, size_t *);
  CUresult(CUDAAPI *func_get_name)(const char **, CUfunction);
  CUresult(CUDAAPI *kernel_get_name)(const char **, CUkernel);
  CUresult(CUDAAPI *stream_is_capturing)(CUstream, CUstreamCaptureStatus *);
};

extern struct rp_driver_table rp_driver;

/** Bracket a query: callbacks raised inside are the agent's own. */
void rp_query_begin(void);
void rp_query_end(void);

#endif
