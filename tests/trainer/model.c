// What the trainer and its reference share: initial parameters, data keys, checksums. Host only.
#include <math.h>

#include "kernel_bodies.h"
#include "stage.h"

size_t rp_stage_parameter_count(const struct rp_trainer_options *options) {
  size_t width = options->width, hidden_width = options->hidden_width;
  return 2 * width * hidden_width + width + hidden_width;
}

/** Fills `count` parameters with numbers in [-scale, scale). */
static float *fill(float *at, size_t count, float scale, uint64_t key) {
  for (size_t i = 0; i < count; i++)
    at[i] = scale * rp_random_unit(key, i);
  return at + count;
}

void rp_stage_initial_parameters(const struct rp_trainer_options *options, int32_t index, float *parameters) {
  size_t width = options->width, hidden_width = options->hidden_width;
  uint64_t key = rp_mix(rp_mix(options->seed) + (uint64_t)index);
  parameters = fill(parameters, hidden_width * width, 1.0f / sqrtf((float)width), rp_mix(key + 1));
  parameters = fill(parameters, hidden_width, 0.1f, rp_mix(key + 2));
  parameters = fill(parameters, width * hidden_width, 0.5f / sqrtf((float)hidden_width), rp_mix(key + 3));
  fill(parameters, width, 0.1f, rp_mix(key + 4));
}

uint64_t rp_data_base(const struct rp_trainer_options *options) {
  return rp_mix(options->seed ^ 0x64617461u);
}

float rp_loss_scale(const struct rp_trainer_options *options, int32_t microbatches) {
  return 2.0f / ((float)(options->rows * options->width) * (float)microbatches);
}

uint64_t rp_checksum(const void *data, size_t bytes) {
  const unsigned char *at = data;
  uint64_t sum = 0xcbf29ce484222325u;
  for (size_t i = 0; i < bytes; i++)
    sum = (sum ^ at[i]) * 0x100000001b3u;
  return sum;
}

uint64_t rp_checksum_add(uint64_t sum, uint64_t value) {
  return rp_mix(sum ^ rp_mix(value));
}
