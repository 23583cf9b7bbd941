/** @file gpu_kernels.h
 * Kernels of the programs that measure on a GPU, as text that the driver compiles (PTX), with host bodies for
 * the simulated device. The same program runs on both: it asks for a kernel by name.
 */
#ifndef RP_GPU_KERNELS_H
#define RP_GPU_KERNELS_H

#include <cuda.h>

/** `(u32 *data, u64 words, u32 value)`: fills. */
#define RP_GPU_FILL "rp_gpu_fill"
/** `(const u32 *data, u64 words, u32 value, u32 *wrong)`: counts words that are something else. */
#define RP_GPU_CHECK "rp_gpu_check"
/** `(u32 *to, const u32 *from, u64 quads)`: copies, four words at a time. */
#define RP_GPU_COPY "rp_gpu_copy"
/** `(u64 ns)`: one thread that takes this long. */
#define RP_GPU_SPIN "rp_gpu_spin"
/** `(u32 *first, const u32 *second, u32 value, u32 *out)`: one thread writes by one address, then reads by
 * the other. */
#define RP_GPU_PROXY "rp_gpu_proxy"
/** The same with the fence that PTX has for it in between. */
#define RP_GPU_PROXY_FENCED "rp_gpu_proxy_fenced"
/** `(p, p, p, p, u32, u32)`: does nothing; an ordinary list of parameters. */
#define RP_GPU_NOTHING "bench_kernel"

/** The text, for those who load it in a way of their own; and that of rp_gpu_early_fill. */
extern const char rp_gpu_ptx[], rp_gpu_early_ptx[];
/** Lets the simulated device have the kernels too; does nothing on another. To be called before loading. */
void rp_gpu_register(void);
/** Loads the kernels into the current context, once, and gives one of them. Ends the process when that fails.
 */
CUfunction rp_gpu_kernel(const char *name);
/** The same for kernels of devices from compute capability 9.0 on, NULL on another or on the simulated one:
 * `(u32 *data, u64 words, u32 value, u64 ns)` lets the next launch in the stream begin, takes its time and
 * fills. */
CUfunction rp_gpu_early_fill(void);

#endif
