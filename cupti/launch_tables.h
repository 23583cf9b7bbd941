/** @file launch_tables.h
 * Kernels of PyTorch that take tables as parameters, of which only a part is filled: the rest is what was on
 * the stack, old addresses of receive buffers too. No CUDA in here.
 */
#ifndef RP_CUPTI_LAUNCH_TABLES_H
#define RP_CUPTI_LAUNCH_TABLES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** Parameters up to this size are no tables. */
#define RP_TABLE_BYTES_MIN 1024u
#define RP_TABLE_ROWS 8

/** The filled parts of one parameter. */
struct rp_launch_table {
  size_t row_count;
  struct rp_table_row {
    size_t offset, bytes; /**< within the parameter */
  } rows[RP_TABLE_ROWS];
};

/** The filled parts of a parameter of `size` bytes at `data`, given to kernel `symbol` (mangled) in a launch
 * of `grid` blocks (x, y, z). False: no table that is known, all of it counts. */
bool rp_launch_table(const char *symbol, const uint32_t grid[3], const unsigned char *data, size_t size,
                     struct rp_launch_table *out);

#endif
