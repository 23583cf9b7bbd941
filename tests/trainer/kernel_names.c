// Mangled names of the trainer's kernels, the same for the host and the CUDA build.
#include "kernels.h"

const char *rp_kernel_name(enum rp_kernel kernel) {
  static const char *const names[RP_KERNEL_COUNT] = {
      [RP_KERNEL_GENERATE] = "_Z11rp_generatePfPKjmjjj",
      [RP_KERNEL_HIDDEN] = "_Z9rp_hidden14rp_hidden_args",
      [RP_KERNEL_OUTPUT] = "_Z9rp_outputPKfS0_S0_S0_Pfjjj",
      [RP_KERNEL_LOSS] = "_Z7rp_lossPKfS0_Pfj",
      [RP_KERNEL_LOSS_GRADIENT] = "_Z16rp_loss_gradientPKfS0_Pffj",
      [RP_KERNEL_HIDDEN_GRADIENT] = "_Z18rp_hidden_gradient23rp_hidden_gradient_args",
      [RP_KERNEL_INPUT_GRADIENT] = "_Z17rp_input_gradientPKfS0_S0_Pfjjj",
      [RP_KERNEL_WEIGHT_GRADIENT] = "_Z18rp_weight_gradientPKfS0_PfS1_jjj",
      [RP_KERNEL_UPDATE] = "_Z9rp_updatePfS_fj",
      [RP_KERNEL_FILL_PATTERN] = "_Z15rp_fill_patternPhPKjmm15rp_pattern_mark",
      [RP_KERNEL_CHECK_PATTERN] = "_Z16rp_check_patternPKhPKjmm15rp_pattern_markP16rp_pattern_error",
      [RP_KERNEL_DELAY] = "_Z8rp_delayj",
  };
  return names[kernel];
}
