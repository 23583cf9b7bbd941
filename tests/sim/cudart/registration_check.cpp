/* Holds registration.h against the compiler's own prototypes: a difference does not compile. Gives no code.
 */
#include <cuda_runtime.h>
#define __NV_MODULE_ID rpsim
#define __CUDA_INCLUDE_COMPILER_INTERNAL_HEADERS__
#define __CUDA_INTERNAL_COMPILATION__
#define __COMMON_FUNCTIONS_H__ /* the device side, not wanted */
#include <crt/host_runtime.h>
#include "registration.h"

#if __has_include(<fatbinary_section.h>) /* part of nvcc, which the headers' wheels lack */
#include <cstddef>
#include <fatbinary_section.h>
static_assert(sizeof(rt_fat_binary) == sizeof(__fatBinC_Wrapper_t), "size");
static_assert(offsetof(rt_fat_binary, magic) == offsetof(__fatBinC_Wrapper_t, magic), "magic");
static_assert(offsetof(rt_fat_binary, data) == offsetof(__fatBinC_Wrapper_t, data), "data");
static_assert(RT_FAT_BINARY_MAGIC == FATBINC_MAGIC && RT_FAT_BINARY_VERSION == FATBINC_VERSION, "constants");
#endif
