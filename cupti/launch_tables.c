/* Tables in the parameters of PyTorch's kernels (aten/src/ATen/native/cuda: Shape.cu, MultiTensorApply.cuh).
 */
#include "cupti/launch_tables.h"

#include <stdlib.h>
#include <string.h>

static bool add_row(struct rp_launch_table *table, size_t offset, size_t bytes, size_t size) {
  if (table->row_count == RP_TABLE_ROWS || offset > size || bytes > size - offset) return false;
  table->rows[table->row_count].offset = offset;
  table->rows[table->row_count++].bytes = bytes;
  return true;
}

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

static size_t align(size_t value, size_t to) {
  return (value + to - 1) / to * to;
}

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
  if (strstr(symbol, "CatArrayBatchedCopy")) return cat_table(grid, size, out);
  if (strstr(symbol, "multi_tensor_apply_kernel")) return apply_table(symbol, grid, data, size, out);
  return false;
}
