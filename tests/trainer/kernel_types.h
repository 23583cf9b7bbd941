/** @file kernel_types.h
 * The trainer's kernels: their list, their parameter structs and the layout of a message. Shared by the host
 * build, the CUDA build and the code that launches them.
 */
#ifndef RP_TRAINER_KERNEL_TYPES_H
#define RP_TRAINER_KERNEL_TYPES_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Kernels, in the order of rp_kernel_name and rp_kernel_function. */
enum rp_kernel {
  RP_KERNEL_GENERATE,        /**< input or target of one microbatch */
  RP_KERNEL_HIDDEN,          /**< h = relu(W1 x + b1); struct of pointers */
  RP_KERNEL_OUTPUT,          /**< y = W2 h + b2 + x; plain pointers */
  RP_KERNEL_LOSS,            /**< mean squared error of one microbatch */
  RP_KERNEL_LOSS_GRADIENT,   /**< its gradient */
  RP_KERNEL_HIDDEN_GRADIENT, /**< dh = W2' dy where h > 0; struct of pointers */
  RP_KERNEL_INPUT_GRADIENT,  /**< dx = W1' dh + dy; plain pointers */
  RP_KERNEL_WEIGHT_GRADIENT, /**< gW += d a', gb += d; plain pointers */
  RP_KERNEL_UPDATE,          /**< p -= rate g, g = 0 */
  RP_KERNEL_FILL_PATTERN,    /**< header and filler of a message that will be sent */
  RP_KERNEL_CHECK_PATTERN,   /**< the same, verified */
  RP_KERNEL_DELAY,           /**< takes its time and touches nothing */
  RP_KERNEL_COUNT,
};

/** Bytes before the arithmetic payload of every message; a multiple of the alignment of float4. */
#define RP_MESSAGE_HEADER_BYTES 64u

/** Set in the pass number of an evaluation, which is otherwise that of the step before it. Kernels read the
 * pass from device memory, so that the graph of one step can be replayed as another. */
#define RP_PASS_EVALUATION 0x40000000u

/** Whose message it is, besides the pass. `stage` is the one that receives it, `direction` 0 for activations,
 * 1 for gradients. */
struct rp_pattern_mark {
  uint32_t pass, microbatch, direction, stage; /**< `pass` is filled in where the pattern is checked */
};

/** What the check kernel found since the record was last cleared; the place is that of the first broken word.
 */
struct rp_pattern_error {
  uint64_t broken_words;
  uint64_t first_offset_bytes;
  uint64_t found, expected;
  struct rp_pattern_mark mark;
};

struct rp_hidden_args {
  const float *x;
  const float *w1;
  const float *b1;
  float *hidden;
  uint32_t rows, width, hidden_width, reserved;
};

struct rp_hidden_gradient_args {
  uint32_t rows, width, hidden_width, reserved;
  const float *output_gradient;
  const float *w2;
  const float *hidden;
  float *hidden_gradient;
};

#ifdef __cplusplus
}
#endif
#endif
