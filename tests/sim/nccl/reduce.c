/* Owns the arithmetic of reductions. Operands are combined in rank order by every rank, so that all get the
 * same bits. */
#include "nccl_internal.h"

#include <math.h>
#include <string.h>

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

/* 16-bit floats are widened, combined and rounded to nearest even, element by element. */
static float from_bfloat16(uint16_t bits) {
  uint32_t wide = (uint32_t)bits << 16;
  float value;
  memcpy(&value, &wide, sizeof value);
  return value;
}

static uint16_t to_bfloat16(float value) {
  uint32_t wide;
  memcpy(&wide, &value, sizeof wide);
  if (value != value) return (uint16_t)(wide >> 16 | 0x40);
  return (uint16_t)((wide + 0x7fff + (wide >> 16 & 1)) >> 16);
}

static float from_float16(uint16_t bits) {
  int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  float value = exponent == 0    ? ldexpf((float)mantissa, -24)
                : exponent == 31 ? (mantissa ? NAN : INFINITY)
                                 : ldexpf((float)(mantissa + 1024), exponent - 25);
  return bits & 0x8000 ? -value : value;
}

static uint16_t to_float16(float value) {
  uint16_t sign = signbit(value) ? 0x8000 : 0;
  float size = fabsf(value);
  if (size != size) return sign | 0x7e00;
  if (size >= 65520.0f) return sign | 0x7c00; /* rounds to infinity */
  if (size < 0x1p-14f) return sign | (uint16_t)lrintf(size * 0x1p24f);
  int exponent;
  float mantissa = frexpf(size, &exponent); /* in [0.5, 1) */
  /* A mantissa that rounds up to 2048 carries into the exponent, as it should. */
  return sign | (uint16_t)(((exponent + 13) << 10) + (int)lrintf(mantissa * 2048.0f));
}

static float widen(uint16_t bits, ncclDataType_t type) {
  return type == ncclBfloat16 ? from_bfloat16(bits) : from_float16(bits);
}

static uint16_t narrow(float value, ncclDataType_t type) {
  return type == ncclBfloat16 ? to_bfloat16(value) : to_float16(value);
}

static void reduce_16(uint16_t *a, const uint16_t *b, size_t n, ncclDataType_t type, ncclRedOp_t op) {
  for (size_t i = 0; i < n; i++) {
    float x = widen(a[i], type), y = widen(b[i], type);
    reduce_f32(&x, &y, 1, op);
    a[i] = narrow(x, type);
  }
}

static void divide_16(uint16_t *a, size_t n, ncclDataType_t type, int nranks) {
  for (size_t i = 0; i < n; i++)
    a[i] = narrow(widen(a[i], type) / (float)nranks, type);
}

void sim_reduce(void *accumulator, const void *operand, size_t count, ncclDataType_t type, ncclRedOp_t op) {
  switch (type) {
  case ncclInt8:
    reduce_i8(accumulator, operand, count, op);
    break;
  case ncclFloat16:
  case ncclBfloat16:
    reduce_16(accumulator, operand, count, type, op);
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
  case ncclFloat16:
  case ncclBfloat16:
    divide_16(accumulator, count, type, nranks);
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
