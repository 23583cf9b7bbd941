// The kernels of the programs that measure, for the driver and for the simulated device. Owns the loaded
// modules.
#include "gpu_kernels.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/sim/rpsim.h"

// The element that a thread begins with (%rd1), and how far the next one is (%rd2).
#define GRID_STRIDE                                                                                          \
  "  mov.u32 %r1, %ctaid.x;\n  mov.u32 %r2, %ntid.x;\n  mov.u32 %r3, %tid.x;\n  mov.u32 %r4, %nctaid.x;\n"   \
  "  mul.wide.u32 %rd1, %r1, %r2;\n  cvt.u64.u32 %rd3, %r3;\n  add.u64 %rd1, %rd1, %rd3;\n"                  \
  "  mul.wide.u32 %rd2, %r4, %r2;\n"
#define REGISTERS "  .reg .pred %p<4>;\n  .reg .b32 %r<12>;\n  .reg .b64 %rd<16>;\n"
// Takes the time in %rd8.
#define SPIN                                                                                                 \
  "  mov.u64 %rd9, %globaltimer;\n"                                                                          \
  "WAIT:\n  mov.u64 %rd10, %globaltimer;\n  sub.u64 %rd10, %rd10, %rd9;\n  setp.lt.u64 %p3, %rd10, %rd8;\n"  \
  "  @%p3 bra WAIT;\n"
#define FILL_LOOP                                                                                            \
  "LOOP:\n  setp.ge.u64 %p1, %rd1, %rd5;\n  @%p1 bra DONE;\n  shl.b64 %rd6, %rd1, 2;\n"                      \
  "  add.u64 %rd7, %rd4, %rd6;\n  st.global.u32 [%rd7], %r5;\n  add.u64 %rd1, %rd1, %rd2;\n  bra LOOP;\n"    \
  "DONE:\n  ret;\n}\n"
#define PROXY(name, fence)                                                                                   \
  ".visible .entry " name "(.param .u64 a, .param .u64 b, .param .u32 v, .param .u64 o)\n{\n" REGISTERS      \
  "  ld.param.u64 %rd4, [a];\n  ld.param.u64 %rd5, [b];\n  ld.param.u32 %r5, [v];\n"                         \
  "  ld.param.u64 %rd6, [o];\n  ld.volatile.global.u32 %r6, [%rd5];\n  st.global.u32 [%rd4], %r5;\n" fence   \
  "  ld.global.u32 %r7, [%rd5];\n  st.global.u32 [%rd6], %r7;\n  ret;\n}\n"

const char rp_gpu_ptx[] =
    ".version 7.5\n.target sm_75\n.address_size 64\n"
    ".visible .entry rp_gpu_fill(.param .u64 d, .param .u64 n, .param .u32 v)\n{\n" REGISTERS GRID_STRIDE
    "  ld.param.u64 %rd4, [d];\n  ld.param.u64 %rd5, [n];\n  ld.param.u32 %r5, [v];\n" FILL_LOOP
    ".visible .entry rp_gpu_check(.param .u64 d, .param .u64 n, .param .u32 v, .param .u64 w)\n{\n" REGISTERS
        GRID_STRIDE "  ld.param.u64 %rd4, [d];\n  ld.param.u64 %rd5, [n];\n  ld.param.u32 %r5, [v];\n"
    "  ld.param.u64 %rd8, [w];\n  mov.u32 %r7, 1;\n"
    "LOOP:\n  setp.ge.u64 %p1, %rd1, %rd5;\n  @%p1 bra DONE;\n  shl.b64 %rd6, %rd1, 2;\n"
    "  add.u64 %rd7, %rd4, %rd6;\n  ld.global.u32 %r6, [%rd7];\n  add.u64 %rd1, %rd1, %rd2;\n"
    "  setp.eq.u32 %p2, %r6, %r5;\n  @%p2 bra LOOP;\n  red.global.add.u32 [%rd8], %r7;\n  bra LOOP;\n"
    "DONE:\n  ret;\n}\n"
    ".visible .entry rp_gpu_copy(.param .u64 t, .param .u64 f, .param .u64 n)\n{\n" REGISTERS GRID_STRIDE
    "  ld.param.u64 %rd4, [t];\n  ld.param.u64 %rd5, [f];\n  ld.param.u64 %rd6, [n];\n"
    "LOOP:\n  setp.ge.u64 %p1, %rd1, %rd6;\n  @%p1 bra DONE;\n  shl.b64 %rd7, %rd1, 4;\n"
    "  add.u64 %rd8, %rd5, %rd7;\n  add.u64 %rd9, %rd4, %rd7;\n"
    "  ld.global.v4.u32 {%r5, %r6, %r7, %r8}, [%rd8];\n  st.global.v4.u32 [%rd9], {%r5, %r6, %r7, %r8};\n"
    "  add.u64 %rd1, %rd1, %rd2;\n  bra LOOP;\n"
    "DONE:\n  ret;\n}\n"
    ".visible .entry rp_gpu_spin(.param .u64 t)\n{\n" REGISTERS "  ld.param.u64 %rd8, [t];\n" SPIN
    "  ret;\n}\n" PROXY("rp_gpu_proxy", "")
        PROXY("rp_gpu_proxy_fenced",
              "  fence.proxy.alias;\n") ".visible .entry bench_kernel(.param .u64 a, .param .u64 b, .param "
                                        ".u64 c, .param .u64 d, .param .u32 n,"
                                        " .param .u32 m)\n{\n  ret;\n}\n";

const char rp_gpu_early_ptx[] =
    ".version 7.8\n.target sm_90\n.address_size 64\n"
    ".visible .entry rp_gpu_early_fill(.param .u64 d, .param .u64 n, .param .u32 v, .param .u64 "
    "t)\n{\n" REGISTERS GRID_STRIDE
    "  ld.param.u64 %rd4, [d];\n  ld.param.u64 %rd5, [n];\n  ld.param.u32 %r5, [v];\n"
    "  ld.param.u64 %rd8, [t];\n  griddepcontrol.launch_dependents;\n" SPIN FILL_LOOP;

// ---- on the simulated device

#define ARG(type, index) (*(type *)params[index])

static void fill(void *const *params, const struct rpsim_dims *dims) {
  (void)dims;
  for (uint64_t i = 0; i < ARG(uint64_t, 1); i++)
    ARG(uint32_t *, 0)[i] = ARG(uint32_t, 2);
}

static void check(void *const *params, const struct rpsim_dims *dims) {
  (void)dims;
  for (uint64_t i = 0; i < ARG(uint64_t, 1); i++)
    *ARG(uint32_t *, 3) += ARG(const uint32_t *, 0)[i] != ARG(uint32_t, 2);
}

static void copy(void *const *params, const struct rpsim_dims *dims) {
  (void)dims;
  memcpy(ARG(void *, 0), ARG(const void *, 1), ARG(uint64_t, 2) * 16);
}

static void spin(void *const *params, const struct rpsim_dims *dims) {
  (void)dims;
  struct timespec pause = {(time_t)(ARG(uint64_t, 0) / 1000000000u), (long)(ARG(uint64_t, 0) % 1000000000u)};
  nanosleep(&pause, NULL);
}

static void proxy(void *const *params, const struct rpsim_dims *dims) {
  (void)dims;
  *ARG(uint32_t *, 0) = ARG(uint32_t, 2);
  *ARG(uint32_t *, 3) = *ARG(volatile uint32_t *, 1);
}

static void nothing(void *const *params, const struct rpsim_dims *dims) {
  (void)params;
  (void)dims;
}

static const struct rpsim_param fill_params[] = {{0, 8}, {8, 8}, {16, 4}};
static const struct rpsim_param check_params[] = {{0, 8}, {8, 8}, {16, 4}, {24, 8}};
static const struct rpsim_param copy_params[] = {{0, 8}, {8, 8}, {16, 8}};
static const struct rpsim_param spin_params[] = {{0, 8}};
static const struct rpsim_param proxy_params[] = {{0, 8}, {8, 8}, {16, 4}, {24, 8}};
static const struct rpsim_param nothing_params[] = {{0, 8}, {8, 8}, {16, 8}, {24, 8}, {32, 4}, {36, 4}};
static const struct rpsim_kernel kernels[] = {
    {RP_GPU_FILL, fill, 3, fill_params},          {RP_GPU_CHECK, check, 4, check_params},
    {RP_GPU_COPY, copy, 3, copy_params},          {RP_GPU_SPIN, spin, 1, spin_params},
    {RP_GPU_PROXY, proxy, 4, proxy_params},       {RP_GPU_PROXY_FENCED, proxy, 4, proxy_params},
    {RP_GPU_NOTHING, nothing, 6, nothing_params},
};

// Not there on a real device.
#pragma weak rpsim_register_kernels

void rp_gpu_register(void) {
  if (rpsim_register_kernels) (void)rpsim_register_kernels(kernels, sizeof kernels / sizeof kernels[0]);
}

// ---- loading

static _Noreturn void fail(const char *what, CUresult result) {
  fprintf(stderr, "kernels: %s: driver error %d\n", what, (int)result);
  exit(1);
}

CUfunction rp_gpu_kernel(const char *name) {
  static CUmodule module;
  CUfunction function = NULL;
  CUresult result = CUDA_SUCCESS;
  if (module == NULL) {
    rp_gpu_register();
    result = cuModuleLoadData(&module, rp_gpu_ptx);
  }
  if (result != CUDA_SUCCESS) fail("cuModuleLoadData", result);
  result = cuModuleGetFunction(&function, module, name);
  if (result != CUDA_SUCCESS) fail(name, result);
  return function;
}

CUfunction rp_gpu_early_fill(void) {
  CUmodule module = NULL;
  CUfunction function = NULL;
  if (rpsim_register_kernels || cuModuleLoadData(&module, rp_gpu_early_ptx) != CUDA_SUCCESS) return NULL;
  return cuModuleGetFunction(&function, module, "rp_gpu_early_fill") == CUDA_SUCCESS ? function : NULL;
}
