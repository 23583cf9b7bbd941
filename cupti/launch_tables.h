/** @file launch_tables.h
 * Parameters of PyTorch's kernels that are filled only in part: lists of tensors, and shapes of up to 25
 * dimensions. The rest is what was on the stack, which often is the parameters of an earlier launch with its
 * addresses of receive buffers. No CUDA in here.
 */
#ifndef RP_CUPTI_LAUNCH_TABLES_H
#define RP_CUPTI_LAUNCH_TABLES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** Smaller parameters are filled as a whole. */
#define RP_TABLE_BYTES_MIN 256u
#define RP_TABLE_ROWS 8

/** The filled parts of one parameter that may hold addresses; none is an answer too. */
struct rp_launch_table {
  size_t row_count;
  struct rp_table_row {
    size_t offset, bytes; /**< within the parameter */
  } rows[RP_TABLE_ROWS];
};

/** The filled parts of a parameter of `size` bytes at `data`, given to kernel `symbol` (mangled) in a launch
 * of `grid` blocks (x, y, z). False: not one that is known, all of it counts. */
bool rp_launch_table(const char *symbol, const uint32_t grid[3], const unsigned char *data, size_t size,
                     struct rp_launch_table *out);

#endif
