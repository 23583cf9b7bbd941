// The trainer's kernels for the simulated device: each runs its shared body over all elements on the stream's
// thread, is registered with the simulator by name, and then with the runtime through the calls that nvcc
// generates.
#include "kernel_bodies.h"
#include "kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <vector_types.h>

#include "tests/sim/rpsim.h"

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))
#define ARG(type, index) (*(type *)params[index])

static void generate(void *const *params, const struct rpsim_dims *dims) {
  (void)dims;
  uint64_t key = rp_data_key(ARG(uint64_t, 2), *ARG(const uint32_t *, 1), ARG(uint32_t, 3), ARG(uint32_t, 4));
  for (uint32_t i = 0; i < ARG(uint32_t, 5); i++)
    rp_body_generate(i, ARG(float *, 0), key);
}

static void hidden(void *const *params, const struct rpsim_dims *dims) {
  (void)dims;
  const struct rp_hidden_args *a = params[0];
  for (size_t i = 0; i < (size_t)a->rows * a->hidden_width; i++)
    rp_body_hidden(i, a);
}

static void output(void *const *params, const struct rpsim_dims *dims) {
  (void)dims;
  for (size_t i = 0; i < (size_t)ARG(uint32_t, 5) * ARG(uint32_t, 6); i++)
    rp_body_output(i, ARG(float *, 0), ARG(float *, 1), ARG(float *, 2), ARG(float *, 3), ARG(float *, 4),
                   ARG(uint32_t, 6), ARG(uint32_t, 7));
}

static void loss(void *const *params, const struct rpsim_dims *dims) {
  (void)dims;
  rp_body_loss(ARG(float *, 0), ARG(float *, 1), ARG(float *, 2), ARG(uint32_t, 3));
}

static void loss_gradient(void *const *params, const struct rpsim_dims *dims) {
  (void)dims;
  for (uint32_t i = 0; i < ARG(uint32_t, 4); i++)
    rp_body_loss_gradient(i, ARG(float *, 0), ARG(float *, 1), ARG(float *, 2), ARG(float, 3));
}

static void hidden_gradient(void *const *params, const struct rpsim_dims *dims) {
  (void)dims;
  const struct rp_hidden_gradient_args *a = params[0];
  for (size_t i = 0; i < (size_t)a->rows * a->hidden_width; i++)
    rp_body_hidden_gradient(i, a);
}

static void input_gradient(void *const *params, const struct rpsim_dims *dims) {
  (void)dims;
  for (size_t i = 0; i < (size_t)ARG(uint32_t, 4) * ARG(uint32_t, 5); i++)
    rp_body_input_gradient(i, ARG(float *, 0), ARG(float *, 1), ARG(float *, 2), ARG(float *, 3),
                           ARG(uint32_t, 5), ARG(uint32_t, 6));
}

static void weight_gradient(void *const *params, const struct rpsim_dims *dims) {
  (void)dims;
  uint32_t rows = ARG(uint32_t, 4), out_width = ARG(uint32_t, 5), in_width = ARG(uint32_t, 6);
  for (size_t i = 0; i < (size_t)out_width * in_width + out_width; i++)
    rp_body_weight_gradient(i, ARG(float *, 0), ARG(float *, 1), ARG(float *, 2), ARG(float *, 3), rows,
                            out_width, in_width);
}

static void update(void *const *params, const struct rpsim_dims *dims) {
  (void)dims;
  for (uint32_t i = 0; i < ARG(uint32_t, 3); i++)
    rp_body_update(i, ARG(float *, 0), ARG(float *, 1), ARG(float, 2));
}

static void fill_pattern(void *const *params, const struct rpsim_dims *dims) {
  (void)dims;
  uint64_t message_bytes = ARG(uint64_t, 2), payload_bytes = ARG(uint64_t, 3);
  uint64_t words = rp_pattern_word_count(message_bytes, payload_bytes);
  uint64_t key = rp_pattern_key(*ARG(const uint32_t *, 1), params[4]);
  for (uint64_t i = 0; i < words; i++)
    rp_body_fill_pattern(i, ARG(unsigned char *, 0), message_bytes, payload_bytes, key);
}

static void check_pattern(void *const *params, const struct rpsim_dims *dims) {
  (void)dims;
  const unsigned char *message = ARG(const unsigned char *, 0);
  uint32_t pass = *ARG(const uint32_t *, 1);
  uint64_t message_bytes = ARG(uint64_t, 2), payload_bytes = ARG(uint64_t, 3);
  struct rp_pattern_error *error = ARG(struct rp_pattern_error *, 5);
  uint64_t words = rp_pattern_word_count(message_bytes, payload_bytes), key = rp_pattern_key(pass, params[4]);
  for (uint64_t i = 0; i < words; i++) {
    uint64_t expected = rp_pattern_word(key, i);
    uint64_t found = rp_pattern_found(i, message, message_bytes, payload_bytes, expected);
    if (found == expected || error->broken_words++ != 0) continue;
    error->first_offset_bytes = rp_pattern_offset(i, payload_bytes);
    error->found = found;
    error->expected = expected;
    error->mark = ARG(struct rp_pattern_mark, 4);
    error->mark.pass = pass;
  }
}

static void delay(void *const *params, const struct rpsim_dims *dims) {
  (void)dims;
  uint32_t microseconds = ARG(uint32_t, 0);
  struct timespec pause = {microseconds / 1000000, (long)(microseconds % 1000000) * 1000};
  nanosleep(&pause, NULL);
}

#define POINTER(at)                                                                                          \
  { at, 8 }
#define WORD(at)                                                                                             \
  { at, 4 }

static const struct rpsim_param generate_params[] = {POINTER(0), POINTER(8), POINTER(16),
                                                     WORD(24),   WORD(28),   WORD(32)};
static const struct rpsim_param hidden_params[] = {{0, sizeof(struct rp_hidden_args)}};
static const struct rpsim_param output_params[] = {POINTER(0),  POINTER(8), POINTER(16), POINTER(24),
                                                   POINTER(32), WORD(40),   WORD(44),    WORD(48)};
static const struct rpsim_param loss_params[] = {POINTER(0), POINTER(8), POINTER(16), WORD(24)};
static const struct rpsim_param loss_gradient_params[] = {POINTER(0), POINTER(8), POINTER(16), WORD(24),
                                                          WORD(28)};
static const struct rpsim_param hidden_gradient_params[] = {{0, sizeof(struct rp_hidden_gradient_args)}};
static const struct rpsim_param input_gradient_params[] = {POINTER(0), POINTER(8), POINTER(16), POINTER(24),
                                                           WORD(32),   WORD(36),   WORD(40)};
static const struct rpsim_param weight_gradient_params[] = {POINTER(0), POINTER(8), POINTER(16), POINTER(24),
                                                            WORD(32),   WORD(36),   WORD(40)};
static const struct rpsim_param update_params[] = {POINTER(0), POINTER(8), WORD(16), WORD(20)};
static const struct rpsim_param fill_params[] = {
    POINTER(0), POINTER(8), POINTER(16), POINTER(24), {32, sizeof(struct rp_pattern_mark)}};
static const struct rpsim_param check_params[] = {
    POINTER(0), POINTER(8), POINTER(16), POINTER(24), {32, sizeof(struct rp_pattern_mark)}, POINTER(48)};
static const struct rpsim_param delay_params[] = {WORD(0)};

#define KERNEL(body_, params_)                                                                               \
  { .body = (body_), .param_count = COUNT_OF(params_), .params = (params_) }

static struct rpsim_kernel kernels[RP_KERNEL_COUNT] = {
    [RP_KERNEL_GENERATE] = KERNEL(generate, generate_params),
    [RP_KERNEL_HIDDEN] = KERNEL(hidden, hidden_params),
    [RP_KERNEL_OUTPUT] = KERNEL(output, output_params),
    [RP_KERNEL_LOSS] = KERNEL(loss, loss_params),
    [RP_KERNEL_LOSS_GRADIENT] = KERNEL(loss_gradient, loss_gradient_params),
    [RP_KERNEL_HIDDEN_GRADIENT] = KERNEL(hidden_gradient, hidden_gradient_params),
    [RP_KERNEL_INPUT_GRADIENT] = KERNEL(input_gradient, input_gradient_params),
    [RP_KERNEL_WEIGHT_GRADIENT] = KERNEL(weight_gradient, weight_gradient_params),
    [RP_KERNEL_UPDATE] = KERNEL(update, update_params),
    [RP_KERNEL_FILL_PATTERN] = KERNEL(fill_pattern, fill_params),
    [RP_KERNEL_CHECK_PATTERN] = KERNEL(check_pattern, check_params),
    [RP_KERNEL_DELAY] = KERNEL(delay, delay_params),
};

/** Addresses that stand for the __global__ functions. */
static const char functions[RP_KERNEL_COUNT];

const void *rp_kernel_function(enum rp_kernel kernel) {
  return &functions[kernel];
}

// What nvcc's generated code calls; the toolkit declares them for C++ only.
void **__cudaRegisterFatBinary(void *wrapper);
void __cudaRegisterFatBinaryEnd(void **handle);
void __cudaRegisterFunction(void **handle, const char *host_function, char *device_function,
                            const char *device_name, int thread_limit, uint3 *thread_index,
                            uint3 *block_index, dim3 *block_dims, dim3 *grid_dims, int *warp_size);
void __cudaUnregisterFatBinary(void **handle);

static void **binary_handle;

static void unregister_kernels(void) {
  __cudaUnregisterFatBinary(binary_handle);
}

__attribute__((constructor)) static void register_kernels(void) {
  static struct {
    int magic, version;
    const void *data;
    void *file_name;
  } wrapper = {0x466243b1, 1, functions, NULL};
  for (int i = 0; i < RP_KERNEL_COUNT; i++)
    kernels[i].name = rp_kernel_name(i);
  if (rpsim_register_kernels(kernels, RP_KERNEL_COUNT) != 0) {
    fprintf(stderr, "trainer: cannot register kernels\n");
    exit(1);
  }
  binary_handle = __cudaRegisterFatBinary(&wrapper);
  for (int i = 0; i < RP_KERNEL_COUNT; i++)
    __cudaRegisterFunction(binary_handle, &functions[i], (char *)rp_kernel_name(i), rp_kernel_name(i), -1,
                           NULL, NULL, NULL, NULL, NULL);
  __cudaRegisterFatBinaryEnd(binary_handle);
  atexit(unregister_kernels);
}
