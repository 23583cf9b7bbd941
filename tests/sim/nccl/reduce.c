/* Owns the arithmetic of reductions. Operands are combined in rank order by every rank, so that all get the
 * same bits. */
#include "nccl_internal.h"

size_t sim_type_bytes(ncclDataType_t type) {
  static const uint8_t bytes[ncclNumTypes] = {
      [ncclInt8] = 1,    [ncclUint8] = 1,    [ncclInt32] = 4,      [ncclUint32] = 4,
      [ncclInt64] = 8,   [ncclUint64] = 8,   [ncclFloat16] = 2,    [ncclFloat32] = 4,
      [ncclFloat64] = 8, [ncclBfloat16] = 2, [ncclFloat8e4m3] = 1, [ncclFloat8e5m2] = 1,
  };
  return (unsigned)type < ncclNumTypes ? bytes[type] : 0;
}

#define REDUCE(name, element)                                                                                \
  static void reduce_##name(element *a, const element *b, size_t n, ncclRedOp_t op) {                        \
    for (size_t i = 0; i < n; i++)                                                                           \
      switch ((int)op) {                                                                                     \
      case ncclProd:                                                                                         \
        a[i] = (element)(a[i] * b[i]);                                                                       \
        break;                                                                                               \
      case ncclMax:                                                                                          \
        a[i] = a[i] > b[i] ? a[i] : b[i];                                                                    \
        break;                                                                                               \
      case ncclMin:                                                                                          \
        a[i] = a[i] < b[i] ? a[i] : b[i];                                                                    \
        break;                                                                                               \
      default:                                                                                               \
        a[i] = (element)(a[i] + b[i]);                                                                       \
      }                                                                                                      \
  }                                                                                                          \
  static void divide_##name(element *a, size_t n, int nranks) {                                              \
    for (size_t i = 0; i < n; i++)                                                                           \
      a[i] = (element)(a[i] / (element)nranks);                                                              \
  }

REDUCE(i8, int8_t)
REDUCE(u8, uint8_t)
REDUCE(i32, int32_t)
REDUCE(u32, uint32_t)
REDUCE(i64, int64_t)
REDUCE(u64, uint64_t)
REDUCE(f32, float)
REDUCE(f64, double)

void sim_reduce(void *accumulator, const void *operand, size_t count, ncclDataType_t type, ncclRedOp_t op) {
  switch (type) {
  case ncclInt8:
    reduce_i8(accumulator, operand, count, op);
    break;
  case ncclUint8:
    reduce_u8(accumulator, operand, count, op);
    break;
  case ncclInt32:
    reduce_i32(accumulator, operand, count, op);
    break;
  case ncclUint32:
    reduce_u32(accumulator, operand, count, op);
    break;
  case ncclInt64:
    reduce_i64(accumulator, operand, count, op);
    break;
  case ncclUint64:
    reduce_u64(accumulator, operand, count, op);
    break;
  case ncclFloat64:
    reduce_f64(accumulator, operand, count, op);
    break;
  default:
    reduce_f32(accumulator, operand, count, op);
  }
}

void sim_reduce_finish(void *accumulator, size_t count, ncclDataType_t type, ncclRedOp_t op, int nranks) {
  if (op != ncclAvg) return;
  switch (type) {
  case ncclInt8:
    divide_i8(accumulator, count, nranks);
    break;
  case ncclUint8:
    divide_u8(accumulator, count, nranks);
    break;
  case ncclInt32:
    divide_i32(accumulator, count, nranks);
    break;
  case ncclUint32:
    divide_u32(accumulator, count, nranks);
    break;
  case ncclInt64:
    divide_i64(accumulator, count, nranks);
    break;
  case ncclUint64:
    divide_u64(accumulator, count, nranks);
    break;
  case ncclFloat64:
    divide_f64(accumulator, count, nranks);
    break;
  default:
    divide_f32(accumulator, count, nranks);
  }
}
