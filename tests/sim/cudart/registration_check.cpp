/* Holds registration.h against the compiler's own prototypes: a difference does not compile. Gives no code. */
#include <cuda_runtime.h>
#define __NV_MODULE_ID rpsim
#define __CUDA_INCLUDE_COMPILER_INTERNAL_HEADERS__
#define __CUDA_INTERNAL_COMPILATION__
#define __COMMON_FUNCTIONS_H__ /* the device side, not wanted */
#include <crt/host_runtime.h>
#include "registration.h"
