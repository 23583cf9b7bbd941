/** @file kernels.h
 * The trainer's kernels as things to launch. Implemented by kernels_host.c (simulated device) and kernels.cu
 * (nvcc).
 */
#ifndef RP_TRAINER_KERNELS_H
#define RP_TRAINER_KERNELS_H

#include "kernel_types.h"

#ifdef __cplusplus
extern "C" {
#endif

/** What cudaLaunchKernel takes for `kernel`. */
const void *rp_kernel_function(enum rp_kernel kernel);
/** Its mangled name, as CUPTI's symbolName has it; static storage. */
const char *rp_kernel_name(enum rp_kernel kernel);

#ifdef __cplusplus
}
#endif
#endif
