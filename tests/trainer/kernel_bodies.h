/** @file kernel_bodies.h
 * What each kernel does for one element of its output; the one place where the trainer's arithmetic is
 * written. Every sum has a fixed order and is compiled without fused multiply-add, so results do not depend
 * on the launch geometry.
 */
#ifndef RP_TRAINER_KERNEL_BODIES_H
#define RP_TRAINER_KERNEL_BODIES_H

#include <stddef.h>
#include <stdint.h>

#include "kernel_types.h"

#ifdef __CUDACC__
#define RP_BODY static __host__ __device__ __forceinline__
#else
#define RP_BODY static inline
#endif

/** A 64-bit hash (the finaliser of splitmix64). */
RP_BODY uint64_t rp_mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

/** A number in [-1, 1) with 24 bits, from a key and an index. */
RP_BODY float rp_random_unit(uint64_t key, uint64_t index) {
  uint64_t bits = rp_mix(key ^ rp_mix(index)) >> 40;
  return (float)bits * (1.0f / 8388608.0f) - 1.0f;
}

/** Key of the input (kind 0) or target (kind 1) of a microbatch; `base` is that of the run. */
RP_BODY uint64_t rp_data_key(uint64_t base, uint32_t pass, uint32_t microbatch, uint32_t kind) {
  uint64_t which = ((uint64_t)pass << 32 | microbatch) * 2 + kind;
  return rp_mix(base ^ which);
}

RP_BODY void rp_body_generate(size_t i, float *out, uint64_t key) {
  out[i] = rp_random_unit(key, i);
}

RP_BODY void rp_body_hidden(size_t i, const struct rp_hidden_args *a) {
  size_t row = i / a->hidden_width, unit = i % a->hidden_width;
  float sum = a->b1[unit];
  for (uint32_t k = 0; k < a->width; k++)
    sum += a->w1[unit * a->width + k] * a->x[row * a->width + k];
  a->hidden[i] = sum > 0.0f ? sum : 0.0f;
}

RP_BODY void rp_body_output(size_t i, const float *hidden, const float *w2, const float *b2, const float *x,
                            float *y, uint32_t width, uint32_t hidden_width) {
  size_t row = i / width, unit = i % width;
  float sum = b2[unit];
  for (uint32_t j = 0; j < hidden_width; j++)
    sum += w2[unit * hidden_width + j] * hidden[row * hidden_width + j];
  y[i] = sum + x[i];
}

/** Runs as one thread: the sum has one order. */
RP_BODY void rp_body_loss(const float *y, const float *target, float *loss, uint32_t count) {
  float sum = 0.0f;
  for (uint32_t i = 0; i < count; i++) {
    float difference = y[i] - target[i];
    sum += difference * difference;
  }
  *loss = sum / (float)count;
}

RP_BODY void rp_body_loss_gradient(size_t i, const float *y, const float *target, float *gradient,
                                   float scale) {
  gradient[i] = (y[i] - target[i]) * scale;
}

RP_BODY void rp_body_hidden_gradient(size_t i, const struct rp_hidden_gradient_args *a) {
  size_t row = i / a->hidden_width, unit = i % a->hidden_width;
  float sum = 0.0f;
  for (uint32_t k = 0; k < a->width; k++)
    sum += a->w2[k * a->hidden_width + unit] * a->output_gradient[row * a->width + k];
  a->hidden_gradient[i] = a->hidden[i] > 0.0f ? sum : 0.0f;
}

RP_BODY void rp_body_input_gradient(size_t i, const float *hidden_gradient, const float *w1,
                                    const float *output_gradient, float *input_gradient, uint32_t width,
                                    uint32_t hidden_width) {
  size_t row = i / width, unit = i % width;
  float sum = output_gradient[i];
  for (uint32_t j = 0; j < hidden_width; j++)
    sum += w1[j * width + unit] * hidden_gradient[row * hidden_width + j];
  input_gradient[i] = sum;
}

/** Elements 0 .. out*in-1 are the weights, the next `out` the bias. */
RP_BODY void rp_body_weight_gradient(size_t i, const float *gradient, const float *activation,
                                     float *weight_gradient, float *bias_gradient, uint32_t rows,
                                     uint32_t out_width, uint32_t in_width) {
  size_t weights = (size_t)out_width * in_width;
  float sum = 0.0f;
  if (i < weights) {
    size_t out = i / in_width, in = i % in_width;
    for (uint32_t row = 0; row < rows; row++)
      sum += gradient[row * out_width + out] * activation[row * in_width + in];
    weight_gradient[i] += sum;
  } else {
    for (uint32_t row = 0; row < rows; row++)
      sum += gradient[row * out_width + (i - weights)];
    bias_gradient[i - weights] += sum;
  }
}

RP_BODY void rp_body_update(size_t i, float *parameters, float *gradients, float rate) {
  parameters[i] -= rate * gradients[i];
  gradients[i] = 0.0f;
}

RP_BODY uint64_t rp_pattern_key(uint32_t pass, const struct rp_pattern_mark *mark) {
  uint64_t who = ((uint64_t)pass << 32) | mark->microbatch;
  return rp_mix(rp_mix(who) ^ (((uint64_t)mark->stage << 1) | mark->direction));
}

/** The eight bytes that belong at word `word` of the message, unless the payload is there. */
RP_BODY uint64_t rp_pattern_word(uint64_t key, uint64_t word) {
  uint64_t x = (key + word) * 0xd6e8feb86659fd93ull;
  return x ^ (x >> 32);
}

/** Number of pattern words of a message; the last may be cut short by its end. The payload is a multiple of 8
 * bytes. */
RP_BODY uint64_t rp_pattern_word_count(uint64_t message_bytes, uint64_t payload_bytes) {
  return (message_bytes - payload_bytes + 7) / 8;
}

/** Offset in the message of pattern word i: the header's words come first, then the filler's. */
RP_BODY uint64_t rp_pattern_offset(uint64_t i, uint64_t payload_bytes) {
  uint64_t offset = i * 8;
  return offset < RP_MESSAGE_HEADER_BYTES ? offset : offset + payload_bytes;
}

RP_BODY void rp_body_fill_pattern(size_t i, unsigned char *message, uint64_t message_bytes,
                                  uint64_t payload_bytes, uint64_t key) {
  uint64_t offset = rp_pattern_offset(i, payload_bytes), value = rp_pattern_word(key, i);
  if (offset + 8 <= message_bytes) {
    *(uint64_t *)(message + offset) = value;
    return;
  }
  for (uint64_t byte = 0; offset + byte < message_bytes; byte++)
    message[offset + byte] = (unsigned char)(value >> (8 * byte));
}

/** The value found at pattern word i, completed with the expected one past the message's end. */
RP_BODY uint64_t rp_pattern_found(size_t i, const unsigned char *message, uint64_t message_bytes,
                                  uint64_t payload_bytes, uint64_t expected) {
  uint64_t offset = rp_pattern_offset(i, payload_bytes);
  if (offset + 8 <= message_bytes) return *(const uint64_t *)(message + offset);
  uint64_t value = expected;
  for (uint64_t byte = 0; offset + byte < message_bytes; byte++) {
    value &= ~(0xffull << (8 * byte));
    value |= (uint64_t)message[offset + byte] << (8 * byte);
  }
  return value;
}
#endif
