/* Owns the kernels of the runtime's tests and the gate that holds one back. */
#include "test_support.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

/* Never called; only their addresses matter, and they have to differ. */
static volatile int symbols_touched;
void symbol_fill(void) {
  symbols_touched = 1;
}
void symbol_add(void) {
  symbols_touched = 2;
}
void symbol_gate(void) {
  symbols_touched = 3;
}
void symbol_absent(void) {
  symbols_touched = 4;
}

struct gate {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  bool reached, open;
};

struct gate *gate_new(void) {
  struct gate *gate = calloc(1, sizeof *gate);
  assert_non_null(gate);
  pthread_mutex_init(&gate->lock, NULL);
  pthread_cond_init(&gate->changed, NULL);
  return gate;
}

void gate_await(struct gate *gate) {
  pthread_mutex_lock(&gate->lock);
  while (!gate->reached)
    pthread_cond_wait(&gate->changed, &gate->lock);
  pthread_mutex_unlock(&gate->lock);
}

void gate_open(struct gate *gate) {
  pthread_mutex_lock(&gate->lock);
  gate->open = true;
  pthread_cond_broadcast(&gate->changed);
  pthread_mutex_unlock(&gate->lock);
}

void gate_free(struct gate *gate) {
  pthread_cond_destroy(&gate->changed);
  pthread_mutex_destroy(&gate->lock);
  free(gate);
}

static void kernel_gate(void *const *params, const struct rpsim_dims *dims) {
  (void)dims;
  struct gate *gate = *(struct gate **)params[0];
  pthread_mutex_lock(&gate->lock);
  gate->reached = true;
  pthread_cond_broadcast(&gate->changed);
  while (!gate->open)
    pthread_cond_wait(&gate->changed, &gate->lock);
  pthread_mutex_unlock(&gate->lock);
}

static void kernel_fill(void *const *params, const struct rpsim_dims *dims) {
  (void)dims;
  uint32_t *words = *(uint32_t **)params[0], value = *(uint32_t *)params[1];
  for (uint64_t i = 0, count = *(uint64_t *)params[2]; i < count; i++)
    words[i] = value;
}

static void kernel_add(void *const *params, const struct rpsim_dims *dims) {
  (void)dims;
  uint32_t *words = *(uint32_t **)params[0], addend = *(uint32_t *)params[1];
  for (uint64_t i = 0, count = *(uint64_t *)params[2]; i < count; i++)
    words[i] += addend;
}

static const struct rpsim_param words_params[] = {{0, 8}, {8, 4}, {16, 8}};
static const struct rpsim_param gate_params[] = {{0, 8}};
static const struct rpsim_kernel kernels[] = {
    {"_Z4fillPjjm", kernel_fill, 3, words_params},
    {"_Z3addPjjm", kernel_add, 3, words_params},
    {"_Z4gatePv", kernel_gate, 1, gate_params},
};

void support_register(void) {
  static const unsigned long long image[4];
  static struct rt_fat_binary wrapper = {RT_FAT_BINARY_MAGIC, RT_FAT_BINARY_VERSION, image, NULL};
  const struct {
    void (*symbol)(void);
    const char *name;
  } functions[] = {{symbol_fill, kernels[0].name},
                   {symbol_add, kernels[1].name},
                   {symbol_gate, kernels[2].name},
                   {symbol_absent, "_Z6absentv"}};
  rpsim_register_kernels(kernels, sizeof kernels / sizeof *kernels);
  void **binary = __cudaRegisterFatBinary(&wrapper);
  for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
    __cudaRegisterFunction(binary, (const char *)functions[i].symbol, NULL, functions[i].name, -1, NULL, NULL,
                           NULL, NULL, NULL);
  __cudaRegisterFatBinaryEnd(binary);
}

static const dim3 one = {1, 1, 1};

cudaError_t launch_gate(struct gate *gate, cudaStream_t stream) {
  void *args[] = {&gate};
  return cudaLaunchKernel((const void *)symbol_gate, one, one, args, 0, stream);
}

cudaError_t launch_fill(uint32_t *words, uint32_t value, uint64_t count, cudaStream_t stream) {
  void *args[] = {&words, &value, &count};
  return cudaLaunchKernel((const void *)symbol_fill, one, one, args, 0, stream);
}

cudaError_t launch_add(uint32_t *words, uint32_t addend, uint64_t count, cudaStream_t stream) {
  void *args[] = {&words, &addend, &count};
  return cudaLaunchKernel((const void *)symbol_add, one, one, args, 0, stream);
}

uint32_t *device_words(uint64_t count) {
  void *words = NULL;
  assert_cuda(cudaMalloc(&words, count * sizeof(uint32_t)));
  assert_non_null(words);
  return words;
}

void assert_device_words(const uint32_t *words, uint32_t value, uint64_t count) {
  uint32_t *copy = calloc(count, sizeof *copy);
  assert_non_null(copy);
  assert_cuda(cudaDeviceSynchronize());
  assert_cuda(cudaMemcpy(copy, words, count * sizeof *copy, cudaMemcpyDeviceToHost));
  for (uint64_t i = 0; i < count; i++)
    assert_int_equal(copy[i], value);
  free(copy);
}
