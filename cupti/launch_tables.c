/* What is filled in the parameters of PyTorch's kernels (aten/src/ATen/native/cuda: CUDALoops.cuh,
 * Reduce.cuh, Shape.cu, MultiTensorApply.cuh; aten/src/ATen/cuda/detail/OffsetCalculator.cuh). */
#include "cupti/launch_tables.h"

#include <stdlib.h>
#include <string.h>

static bool add_row(struct rp_launch_table *table, size_t offset, size_t bytes, size_t size) {
  if (table->row_count == RP_TABLE_ROWS || offset > size || bytes > size - offset) return false;
  table->rows[table->row_count].offset = offset;
  table->rows[table->row_count++].bytes = bytes;
  return true;
}

static size_t align(size_t value, size_t to) {
  return (value + to - 1) / to * to;
}

/* ---- loops over tensors of any shape ---- */

#define DIMENSIONS_MAX 25
#define OPERANDS_MAX 8
/* More than any of their functors has. */
#define FUNCTOR_BYTES_MAX 96

/* An OffsetCalculator for so many tensors: dimensions, 12 bytes to divide by each, a stride for each and each
 * tensor. */
static size_t calculator_bytes(size_t operands) {
  return 4 + DIMENSIONS_MAX * (12 + 4 * operands);
}

/* A closure of elementwise_kernel: OffsetCalculator, addresses, functor. */
static bool loop_table(const unsigned char *data, size_t size, struct rp_launch_table *out) {
  int32_t dimensions;
  memcpy(&dimensions, data, sizeof dimensions);
  if (dimensions < 0 || dimensions > DIMENSIONS_MAX) return false;
  for (size_t operands = 1; operands <= OPERANDS_MAX; operands++) {
    size_t head = align(calculator_bytes(operands), 8), least = head + 8 * operands;
    if (size >= least && size < least + FUNCTOR_BYTES_MAX) return add_row(out, head, size - head, size);
  }
  return false;
}

/* Where OffsetCalculators are parameters of their own, there are no addresses in them. */
static bool is_calculator(size_t size) {
  for (size_t operands = 1; operands <= OPERANDS_MAX; operands++)
    if (size == calculator_bytes(operands)) return true;
  return false;
}

/** The end of a ReduceOp; the second destination is there only with two outputs. */
struct reduce_tail {
  uint64_t source, destinations[2], accumulator, block_buffer, semaphores;
  int64_t base_index;
  uint8_t accumulate, is_final;
  int32_t outputs;
};
_Static_assert(sizeof(struct reduce_tail) == 64, "as on the device");

static bool reduce_table(const unsigned char *data, size_t size, struct rp_launch_table *out) {
  struct reduce_tail tail;
  size_t at = size - sizeof tail;
  memcpy(&tail, data + at, sizeof tail);
  if (tail.outputs == 2) return add_row(out, at, offsetof(struct reduce_tail, base_index), size);
  return tail.outputs == 1 && add_row(out, at, offsetof(struct reduce_tail, destinations) + 8, size) &&
         add_row(out, at + offsetof(struct reduce_tail, accumulator), 24, size);
}

/* ---- lists of tensors ---- */

/* CatArrInputTensorMetadata begins with the addresses of the inputs; the grid is as high as there are inputs.
 */
static bool cat_table(const uint32_t grid[3], size_t size, struct rp_launch_table *out) {
  return grid[1] && add_row(out, 0, 8 * (size_t)grid[1], size);
}

/** What the metadata of a multi-tensor kernel are made of. */
struct apply_layout {
  size_t depth, tensors; /**< rows of addresses, and how many each has */
  size_t blocks;         /**< capacity of the table of blocks */
  size_t index_bytes;    /**< of one entry of it */
  size_t between_bytes;  /**< per tensor, between the sizes and the table of blocks */
  bool state_steps;      /**< these are one more row of addresses */
  bool start_tensor;     /**< there is a counter at the end */
};

static size_t offset_of_blocks(const struct apply_layout *layout) {
  return layout->tensors * (8 * layout->depth + 8 + layout->between_bytes);
}

static size_t bytes_of(const struct apply_layout *layout) {
  size_t bytes = offset_of_blocks(layout) + layout->blocks * layout->index_bytes;
  bytes = align(bytes, 4) + 4 * layout->blocks + (layout->start_tensor ? 4 : 0);
  return align(bytes, 8);
}

/* The first number among the template arguments, as they are mangled; 0 if there is none. */
static size_t depth_of(const char *arguments) {
  const char *number = strstr(arguments, "Li");
  long depth = number ? strtol(number + 2, NULL, 10) : 0;
  return depth >= 1 && depth <= 5 ? (size_t)depth : 0;
}

/* The capacities of the releases for 4 KiB and for 32 KiB of parameters, the struct's size tells which:
 * tensors per depth, in a list of scalars too. */
static const struct capacity {
  size_t tensors[5], with_scalars[5], blocks, index_bytes;
} capacities[] = {{{110, 64, 48, 36, 30}, {96, 64, 48, 36, 30}, 320, 1},
                  {{770, 448, 336, 252, 210}, {672, 448, 336, 252, 210}, 2240, 2}};

static bool layout_fits(struct apply_layout *layout, const struct capacity *capacity, bool scalars,
                        size_t size) {
  static const size_t scalar_bytes[] = {1, 2, 4, 8, 16};
  layout->tensors = (scalars ? capacity->with_scalars : capacity->tensors)[layout->depth - 1];
  layout->blocks = capacity->blocks;
  layout->index_bytes = capacity->index_bytes;
  if (!scalars) return bytes_of(layout) == size;
  for (size_t i = 0; i < sizeof scalar_bytes / sizeof scalar_bytes[0]; i++) {
    layout->between_bytes = scalar_bytes[i];
    if (bytes_of(layout) == size) return true;
  }
  return false;
}

/* What stands behind `name` in the symbol, or NULL. */
static const char *behind(const char *symbol, const char *name) {
  const char *found = strstr(symbol, name);
  return found ? found + strlen(name) : NULL;
}

static bool find_layout(const char *symbol, size_t size, struct apply_layout *out) {
  const char *fused = behind(symbol, "32FusedOptimizerTensorListMetadata");
  const char *scalars = fused ? NULL : behind(symbol, "28TensorListScalarListMetadata");
  const char *arguments = fused ? fused : scalars ? scalars : behind(symbol, "18TensorListMetadata");
  if (!arguments) return false;
  *out = (struct apply_layout){.depth = depth_of(arguments),
                               .state_steps = fused != NULL,
                               .between_bytes = fused ? 8 : 0,
                               .start_tensor = !scalars};
  for (size_t i = 0; out->depth && i < sizeof capacities / sizeof capacities[0]; i++)
    if (layout_fits(out, &capacities[i], scalars != NULL, size)) return true;
  return false;
}

/* Blocks are handed out tensor by tensor, so the last one's tensor is the last tensor. */
static bool apply_table(const char *symbol, const uint32_t grid[3], const unsigned char *data, size_t size,
                        struct rp_launch_table *out) {
  struct apply_layout layout;
  if (!find_layout(symbol, size, &layout) || !grid[0] || grid[0] > layout.blocks) return false;
  const unsigned char *last = data + offset_of_blocks(&layout) + (grid[0] - 1) * layout.index_bytes;
  size_t tensors = (layout.index_bytes == 1 ? *last : (size_t)last[0] | (size_t)last[1] << 8) + 1;
  if (tensors > layout.tensors) return false;
  for (size_t row = 0; row < layout.depth; row++)
    if (!add_row(out, 8 * row * layout.tensors, 8 * tensors, size)) return false;
  return !layout.state_steps || add_row(out, 8 * (layout.depth + 1) * layout.tensors, 8 * tensors, size);
}

bool rp_launch_table(const char *symbol, const uint32_t grid[3], const unsigned char *data, size_t size,
                     struct rp_launch_table *out) {
  out->row_count = 0;
  if (size < RP_TABLE_BYTES_MIN || !symbol) return false;
  if (strstr(symbol, "18elementwise_kernelILi") && strstr(symbol, "gpu_kernel_impl"))
    return loop_table(data, size, out);
  if (strstr(symbol, "unrolled_elementwise_kernelI")) return is_calculator(size);
  if (strstr(symbol, "13reduce_kernelILi") && strstr(symbol, "8ReduceOpI"))
    return reduce_table(data, size, out);
  if (strstr(symbol, "CatArrayBatchedCopy")) return cat_table(grid, size, out);
  if (strstr(symbol, "multi_tensor_apply_kernel")) return apply_table(symbol, grid, data, size, out);
  return false;
}
