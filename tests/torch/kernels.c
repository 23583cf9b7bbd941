/* Arithmetic for some kernels of PyTorch on the simulated device, recognised by their mangled names: filling,
 * adding and multiplying float and int64 tensors, and sums and maxima of whole ones. Other kernels that go
 * element by element make every output a fixed function of their inputs, so that what a buffer holds shows
 * what it was computed from. All other kernels do nothing. To be preloaded.
 *
 * Layouts: elementwise kernels take (int count, functor, array of pointers: the output, then the inputs), see
 * aten/src/ATen/native/cuda/CUDALoops.cuh; reduce_kernel takes a ReduceOp, see Reduce.cuh. */
#include "../sim/rpsim.h"

#include <stdbool.h>
#include <string.h>

enum operation { FILL, ADD, ADD_SELF, MULTIPLY, MULTIPLY_SCALAR, MIX, REDUCE_SUM, REDUCE_MAX };
enum type { FLOAT, INT64 };

struct known {
  const char *family, *functor; /* both are in the name */
  enum operation operation;
  enum type type;
};

/* The first that fits. */
static const struct known known_kernels[] = {
    {"elementwise_kernelILi", "11FillFunctorIfE", FILL, FLOAT},
    {"elementwise_kernelILi", "11FillFunctorIlE", FILL, INT64},
    {"elementwise_kernelILi", "15CUDAFunctor_addIfE", ADD, FLOAT},
    {"elementwise_kernelILi", "15CUDAFunctor_addIlE", ADD, INT64},
    {"elementwise_kernelILi", "21CUDAFunctorOnSelf_addIfE", ADD_SELF, FLOAT},
    {"elementwise_kernelILi", "21CUDAFunctorOnSelf_addIlE", ADD_SELF, INT64},
    {"elementwise_kernelILi", "13BinaryFunctorIfffNS0_15binary_internal10MulFunctorIfE", MULTIPLY, FLOAT},
    {"elementwise_kernelILi", "UnaryFunctorIfffNS0_15binary_internal10MulFunctorIfE", MULTIPLY_SCALAR, FLOAT},
    {"vectorized_elementwise_kernelILi", "", MIX, FLOAT},
    {"unrolled_elementwise_kernelI", "", MIX, FLOAT},
    {"reduce_kernelILi", "8ReduceOpIfNS0_14func_wrapper_tIfZNS0_11sum_functorIfff", REDUCE_SUM, FLOAT},
    {"reduce_kernelILi", "8ReduceOpIlNS0_14func_wrapper_tIlZNS0_11sum_functorIlll", REDUCE_SUM, INT64},
    {"reduce_kernelILi", "8ReduceOpIlNS0_14func_wrapper_tIlNS0_13MaxNanFunctorIlE", REDUCE_MAX, INT64},
};

static const struct known *find(const char *name) {
  for (size_t i = 0; i < sizeof known_kernels / sizeof known_kernels[0]; i++)
    if (strstr(name, known_kernels[i].family) && strstr(name, known_kernels[i].functor))
      return &known_kernels[i];
  return NULL;
}

/* ---- elementwise ---- */

static void add_float(float *out, const float *a, const float *b, float alpha, int count) {
  for (int i = 0; i < count; i++)
    out[i] = a[i] + alpha * b[i];
}

static void add_int64(int64_t *out, const int64_t *a, const int64_t *b, int64_t alpha, int count) {
  for (int i = 0; i < count; i++)
    out[i] = a[i] + alpha * b[i];
}

/* out = a * (scale_b ? b : 1) + shift: the forms with one number in the place of a tensor. */
static void linear_float(float *out, const float *a, const float *b, float scale, float shift, int count) {
  for (int i = 0; i < count; i++)
    out[i] = a[i] * (b ? b[i] : scale) + shift;
}

static void fill(void *out, const void *value, size_t bytes, int count) {
  for (int i = 0; i < count; i++)
    memcpy((char *)out + (size_t)i * bytes, value, bytes);
}

/* Any function that tells its inputs apart will do; elements are taken for 4 bytes, where the name does not
 * say else. */
static void mix(void *const *data, size_t inputs, const char *name, int count) {
  bool half = strstr(name, "BFloat16") || strstr(name, "4Half");
  size_t bytes = (size_t)count * (half ? 2 : 4);
  for (size_t i = 0; i + 4 <= bytes; i += 4) {
    uint32_t hash = 0x9e3779b9u, word;
    for (size_t input = 0; input < inputs; input++) {
      memcpy(&word, (const char *)data[1 + input] + i, 4);
      hash = (hash ^ word) * 0x85ebca6bu;
    }
    hash = (hash ^ hash >> 13) & 0x3fffffffu; /* a float below 2, and no NaN */
    memcpy((char *)data[0] + i, &hash, 4);
  }
}

static void run_elementwise(const struct known *known, const struct rpsim_kernel *kernel,
                            void *const *params) {
  int count = *(const int *)params[0];
  void *data[16];
  size_t pointers = kernel->params[2].size / sizeof data[0];
  if (pointers < 1 || pointers > 16) return;
  memcpy(data, params[2], pointers * sizeof data[0]);
  const float *floats = params[1];
  const int64_t *longs = params[1];
  bool is_float = known->type == FLOAT;
  switch (known->operation) {
  case FILL:
    fill(data[0], params[1], is_float ? 4 : 8, count);
    break;
  case ADD:
    if (is_float)
      add_float(data[0], data[1], data[2], floats[0], count);
    else
      add_int64(data[0], data[1], data[2], longs[0], count);
    break;
  case ADD_SELF:
    if (is_float)
      linear_float(data[0], data[1], NULL, 1, floats[0] * floats[1], count);
    else
      for (int i = 0; i < count; i++)
        ((int64_t *)data[0])[i] = ((const int64_t *)data[1])[i] + longs[0] * longs[1];
    break;
  case MULTIPLY:
    linear_float(data[0], data[1], data[2], 1, 0, count);
    break;
  case MULTIPLY_SCALAR: /* behind an empty functor */
    linear_float(data[0], data[1], NULL, floats[1], 0, count);
    break;
  default:
    mix(data, pointers - 1, kernel->name, count);
  }
}

/* ---- reductions of contiguous tensors to one element ---- */

/* The end of a ReduceOp. */
struct reduce_tail {
  const void *source;
  void *destinations[2];
  void *partial, *block;
  int *semaphores;
  int64_t base_index;
  bool accumulate, final;
  int outputs;
};

/* The start of its configuration, behind the functor and the identity, each as large as an element. */
struct reduce_config {
  int element_bytes, inputs, outputs;
};

static void run_reduce(const struct known *known, const struct rpsim_kernel *kernel, void *const *params) {
  struct reduce_tail tail;
  struct reduce_config config;
  size_t element = known->type == FLOAT ? 4 : 8;
  memcpy(&tail, (const char *)params[0] + kernel->params[0].size - sizeof tail, sizeof tail);
  memcpy(&config, (const char *)params[0] + 2 * element, sizeof config);
  if (config.outputs != 1 || config.inputs < 1) return;
  if (known->type == FLOAT) {
    double sum = 0;
    for (int i = 0; i < config.inputs; i++)
      sum += ((const float *)tail.source)[i];
    *(float *)tail.destinations[0] = (float)sum;
    return;
  }
  const int64_t *values = tail.source;
  int64_t result = values[0];
  for (int i = 1; i < config.inputs; i++) {
    if (known->operation == REDUCE_SUM)
      result += values[i];
    else if (values[i] > result)
      result = values[i];
  }
  *(int64_t *)tail.destinations[0] = result;
}

/* ---- registration ---- */

static void run(void *const *params, const struct rpsim_dims *dims) {
  const struct rpsim_kernel *kernel = rpsim_running_kernel();
  const struct known *known = find(kernel->name);
  (void)dims;
  if (known->operation >= REDUCE_SUM && kernel->params[0].size > sizeof(struct reduce_tail))
    run_reduce(known, kernel, params);
  else if (known->operation < REDUCE_SUM && kernel->param_count >= 3)
    run_elementwise(known, kernel, params);
}

static rpsim_kernel_body source(const char *name) {
  return find(name) ? run : NULL;
}

__attribute__((constructor)) static void provide(void) {
  rpsim_set_body_source(source);
}
