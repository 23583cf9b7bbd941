// The trainer's kernels as CUDA C: a grid-stride loop around each shared body, one thread per element.
#include "kernel_bodies.h"
#include "kernels.h"

#define FOR_ELEMENTS(i, count)                                                                               \
  for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < (count);                                \
       i += (size_t)gridDim.x * blockDim.x)

__global__ void rp_generate(float *out, const uint32_t *pass, uint64_t base, uint32_t microbatch,
                            uint32_t kind, uint32_t count) {
  uint64_t key = rp_data_key(base, *pass, microbatch, kind);
  FOR_ELEMENTS(i, count) rp_body_generate(i, out, key);
}

__global__ void rp_hidden(struct rp_hidden_args a) {
  FOR_ELEMENTS(i, (size_t)a.rows * a.hidden_width) rp_body_hidden(i, &a);
}

__global__ void rp_output(const float *hidden, const float *w2, const float *b2, const float *x, float *y,
                          uint32_t rows, uint32_t width, uint32_t hidden_width) {
  FOR_ELEMENTS(i, (size_t)rows * width) rp_body_output(i, hidden, w2, b2, x, y, width, hidden_width);
}

__global__ void rp_loss(const float *y, const float *target, float *loss, uint32_t count) {
  if (blockIdx.x == 0 && threadIdx.x == 0) rp_body_loss(y, target, loss, count);
}

__global__ void rp_loss_gradient(const float *y, const float *target, float *gradient, float scale,
                                 uint32_t count) {
  FOR_ELEMENTS(i, count) rp_body_loss_gradient(i, y, target, gradient, scale);
}

__global__ void rp_hidden_gradient(struct rp_hidden_gradient_args a) {
  FOR_ELEMENTS(i, (size_t)a.rows * a.hidden_width) rp_body_hidden_gradient(i, &a);
}

__global__ void rp_input_gradient(const float *hidden_gradient, const float *w1, const float *output_gradient,
                                  float *input_gradient, uint32_t rows, uint32_t width,
                                  uint32_t hidden_width) {
  FOR_ELEMENTS(i, (size_t)rows * width)
  rp_body_input_gradient(i, hidden_gradient, w1, output_gradient, input_gradient, width, hidden_width);
}

__global__ void rp_weight_gradient(const float *gradient, const float *activation, float *weight_gradient,
                                   float *bias_gradient, uint32_t rows, uint32_t out_width,
                                   uint32_t in_width) {
  FOR_ELEMENTS(i, (size_t)out_width * in_width + out_width)
  rp_body_weight_gradient(i, gradient, activation, weight_gradient, bias_gradient, rows, out_width, in_width);
}

__global__ void rp_update(float *parameters, float *gradients, float rate, uint32_t count) {
  FOR_ELEMENTS(i, count) rp_body_update(i, parameters, gradients, rate);
}

__global__ void rp_fill_pattern(unsigned char *message, const uint32_t *pass, uint64_t message_bytes,
                                uint64_t payload_bytes, struct rp_pattern_mark mark) {
  uint64_t key = rp_pattern_key(*pass, &mark);
  FOR_ELEMENTS(i, rp_pattern_word_count(message_bytes, payload_bytes))
  rp_body_fill_pattern(i, message, message_bytes, payload_bytes, key);
}

__global__ void rp_check_pattern(const unsigned char *message, const uint32_t *pass, uint64_t message_bytes,
                                 uint64_t payload_bytes, struct rp_pattern_mark mark,
                                 struct rp_pattern_error *error) {
  uint64_t key = rp_pattern_key(*pass, &mark);
  FOR_ELEMENTS(i, rp_pattern_word_count(message_bytes, payload_bytes)) {
    uint64_t expected = rp_pattern_word(key, i);
    uint64_t found = rp_pattern_found(i, message, message_bytes, payload_bytes, expected);
    if (found == expected) continue;
    if (atomicAdd((unsigned long long *)&error->broken_words, 1ull) != 0) continue;
    error->first_offset_bytes = rp_pattern_offset(i, payload_bytes);
    error->found = found;
    error->expected = expected;
    error->mark = mark;
    error->mark.pass = *pass;
  }
}

__global__ void rp_delay(uint32_t microseconds) {
  for (uint32_t i = 0; i < microseconds; i++)
    __nanosleep(1000);
}

extern "C" const void *rp_kernel_function(enum rp_kernel kernel) {
  static const void *const functions[RP_KERNEL_COUNT] = {
      (const void *)rp_generate,       (const void *)rp_hidden,          (const void *)rp_output,
      (const void *)rp_loss,           (const void *)rp_loss_gradient,   (const void *)rp_hidden_gradient,
      (const void *)rp_input_gradient, (const void *)rp_weight_gradient, (const void *)rp_update,
      (const void *)rp_fill_pattern,   (const void *)rp_check_pattern,   (const void *)rp_delay,
  };
  return functions[kernel];
}
