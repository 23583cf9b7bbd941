/* What copies and graph nodes that a struct describes use, against every byte that they use, one by one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "cupti/cuda_side.h"

#define BASE UINT64_C(0x7f0000000000)

/* One side of a box, and the extent. */
struct side {
  uint64_t pitch, rows, x, y, z;
};
struct extent {
  uint64_t width, height, depth;
};

static uint64_t any(uint64_t most) {
  return (uint64_t)rand() % (most + 1);
}

static struct side any_side(const struct extent *extent) {
  struct side side = {.x = any(5), .y = any(3), .z = any(2)};
  side.pitch = side.x + extent->width + any(7);
  side.rows = side.y + extent->height + any(4);
  return side;
}

/* Begin and bytes of all that is touched, row by row. */
static void touched(uint64_t base, const struct side *side, const struct extent *extent, uint64_t *begin,
                    uint64_t *bytes) {
  uint64_t low = UINT64_MAX, high = 0;
  for (uint64_t z = 0; z < extent->depth; z++)
    for (uint64_t y = 0; y < extent->height; y++) {
      uint64_t row = base + ((side->z + z) * side->rows + side->y + y) * side->pitch + side->x;
      if (extent->width && row < low) low = row;
      if (extent->width && row + extent->width > high) high = row + extent->width;
    }
  *begin = low;
  *bytes = high > low ? high - low : 0;
}

static void check_op(const struct rp_cuda_op *op, const struct side *to, const struct side *from,
                     const struct extent *extent) {
  uint64_t begin, bytes;
  touched(BASE, to, extent, &begin, &bytes);
  assert_int_equal(op->bytes, bytes);
  if (bytes) assert_int_equal(op->address, begin);
  touched(2 * BASE, from, extent, &begin, &bytes);
  assert_int_equal(op->source_bytes, bytes);
  if (bytes) assert_int_equal(op->source, begin);
  assert_int_equal(op->kind, RP_EVENT_COPY_READ);
}

static void check_driver(const struct side *to, const struct side *from, const struct extent *extent) {
  struct rp_cuda_op op;
#define COMMON                                                                                               \
  .srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = 2 * BASE, .srcPitch = from->pitch,                     \
  .srcXInBytes = from->x, .srcY = from->y, .dstMemoryType = CU_MEMORYTYPE_UNIFIED, .dstDevice = BASE,        \
  .dstPitch = to->pitch, .dstXInBytes = to->x, .dstY = to->y, .WidthInBytes = extent->width,                 \
  .Height = extent->height
  const CUDA_MEMCPY3D box = {COMMON,        .srcHeight = from->rows, .srcZ = from->z, .dstHeight = to->rows,
                             .dstZ = to->z, .Depth = extent->depth};
  const CUDA_MEMCPY3D_PEER peer = {COMMON,          .srcHeight = from->rows,
                                   .srcZ = from->z, .dstHeight = to->rows,
                                   .dstZ = to->z,   .Depth = extent->depth};
  assert_true(rp_shape_copy_3d(&box, &op));
  check_op(&op, to, from, extent);
  assert_true(rp_shape_copy_3d_peer(&peer, &op));
  check_op(&op, to, from, extent);
  const CUDA_MEMCPY2D flat = {COMMON};
  const struct side flat_to = {to->pitch, 0, to->x, to->y, 0},
                    flat_from = {from->pitch, 0, from->x, from->y, 0};
  const struct extent one = {extent->width, extent->height, 1};
  assert_true(rp_shape_copy_2d(&flat, &op));
  check_op(&op, &flat_to, &flat_from, &one);
}

static struct cudaPitchedPtr pitched(uint64_t base, const struct side *side) {
  return (struct cudaPitchedPtr){(void *)(uintptr_t)base, side->pitch, side->pitch, side->rows};
}

static void check_runtime(const struct side *to, const struct side *from, const struct extent *extent) {
  struct rp_cuda_op op;
#define RUNTIME                                                                                              \
  .srcPtr = pitched(2 * BASE, from), .srcPos = {from->x, from->y, from->z}, .dstPtr = pitched(BASE, to),     \
  .dstPos = {to->x, to->y, to->z}, .extent = {                                                               \
    extent->width,                                                                                           \
    extent->height,                                                                                          \
    extent->depth                                                                                            \
  }
  const struct cudaMemcpy3DParms box = {RUNTIME};
  const struct cudaMemcpy3DPeerParms peer = {RUNTIME};
  assert_true(rp_shape_runtime_copy_3d(&box, &op));
  check_op(&op, to, from, extent);
  assert_true(rp_shape_runtime_copy_3d_peer(&peer, &op));
  check_op(&op, to, from, extent);
}

static void boxes_are_what_they_touch(void **state) {
  (void)state;
  srand(7);
  for (int i = 0; i < 20000; i++) {
    const struct extent extent = {any(9), any(5), any(3)};
    const struct side to = any_side(&extent), from = any_side(&extent);
    check_driver(&to, &from, &extent);
    check_runtime(&to, &from, &extent);
  }
}

/* Whole rows, whatever an element of the array is. */
static void a_side_beside_an_array(void **state) {
  (void)state;
  struct rp_cuda_op op;
  const struct cudaMemcpy3DParms copy = {.srcArray = (cudaArray_t)(uintptr_t)8,
                                         .dstPtr = {(void *)(uintptr_t)BASE, 256, 256, 4},
                                         .dstPos = {16, 1, 0},
                                         .extent = {3, 2, 1}};
  assert_true(rp_shape_runtime_copy_3d(&copy, &op));
  assert_int_equal(op.source_bytes, 0);
  assert_int_equal(op.address, BASE + 256 + 16);
  assert_int_equal(op.bytes, 256 + 240);
}

static void hosts_arrays_and_nothing(void **state) {
  (void)state;
  struct rp_cuda_op op;
  char host[4];
  const CUDA_MEMCPY3D copy = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                              .srcHost = host,
                              .dstMemoryType = CU_MEMORYTYPE_ARRAY,
                              .WidthInBytes = 4,
                              .Height = 1,
                              .Depth = 1};
  assert_true(rp_shape_copy_3d(&copy, &op));
  assert_int_equal(op.source, (uintptr_t)host);
  assert_int_equal(op.source_bytes, 4);
  assert_int_equal(op.bytes, 0);
  assert_false(rp_shape_copy_3d(NULL, &op));
  assert_false(rp_shape_copy_2d(NULL, &op));
  assert_false(rp_shape_runtime_copy_3d(NULL, &op));
  assert_false(rp_shape_copy_3d_batch(NULL, 0, &op));
  assert_false(rp_shape_memory_op(NULL, 0, &op));
}

static void lists(void **state) {
  (void)state;
  struct rp_cuda_op op;
  CUDA_MEMCPY3D_BATCH_OP copies[2] = {{.src.type = CU_MEMCPY_OPERAND_TYPE_ARRAY},
                                      {.src.type = CU_MEMCPY_OPERAND_TYPE_POINTER,
                                       .src.op.ptr = {.ptr = 2 * BASE, .rowLength = 64, .layerHeight = 2},
                                       .dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER,
                                       .dst.op.ptr = {.ptr = BASE},
                                       .extent = {32, 2, 3}}};
  assert_true(rp_shape_copy_3d_batch(copies, 1, &op));
  assert_int_equal(op.source, 2 * BASE);
  assert_int_equal(op.source_bytes, 5 * 64 + 32);
  assert_int_equal(op.address, BASE);
  assert_int_equal(op.bytes, 6 * 32);
  CUstreamBatchMemOpParams words[3] = {0};
  words[0].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
  words[0].writeValue.address = BASE;
  words[1].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
  words[1].waitValue.address = 2 * BASE;
  words[2].operation = CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES;
  assert_true(rp_shape_memory_op(words, 0, &op));
  assert_int_equal(op.kind, RP_EVENT_MEMSET);
  assert_int_equal(op.address, BASE);
  assert_int_equal(op.bytes, 8);
  assert_true(rp_shape_memory_op(words, 1, &op));
  assert_int_equal(op.source, 2 * BASE);
  assert_int_equal(op.source_bytes, 4);
  assert_false(rp_shape_memory_op(words, 2, &op));
}

/* ---- nodes ---- */

static void kernels_of_nodes(void **state) {
  (void)state;
  struct rp_node_use use;
  void *params[1], *extra[1];
  const CUDA_KERNEL_NODE_PARAMS second = {.kern = (CUkernel)(uintptr_t)32, .kernelParams = params};
  const struct cudaKernelNodeParams runtime = {.func = (void *)(uintptr_t)48, .extra = extra};
  CUgraphNodeParams node = {.type = CU_GRAPH_NODE_TYPE_KERNEL};
  struct cudaGraphNodeParams runtime_node = {.type = cudaGraphNodeTypeKernel};
  assert_true(rp_node_driver_kernel(&second, true, &use));
  assert_int_equal(use.launch.function, 32);
  assert_ptr_equal(use.launch.params, params);
  assert_true(rp_node_driver_kernel(&second, false, &use)); /* shorter: there is no kernel to read */
  assert_int_equal(use.launch.function, 0);
  assert_true(rp_node_runtime_kernel(&runtime, &use));
  assert_true(use.by_symbol);
  assert_int_equal(use.launch.function, 48);
  assert_ptr_equal(use.launch.extra, extra);
  node.kernel.func = (CUfunction)(uintptr_t)64;
  node.kernel.kernelParams = params;
  assert_true(rp_node_driver(&node, &use));
  assert_int_equal(use.launch.function, 64);
  assert_ptr_equal(use.launch.params, params);
  runtime_node.kernel.func = (void *)(uintptr_t)80;
  runtime_node.kernel.kernelParams = params;
  assert_true(rp_node_runtime(&runtime_node, &use));
  assert_int_equal(use.launch.function, 80);
  assert_ptr_equal(use.launch.params, params);
}

static void memory_of_nodes(void **state) {
  (void)state;
  struct rp_node_use use;
  CUgraphNodeParams node = {.type = CU_GRAPH_NODE_TYPE_MEMSET};
  node.memset =
      (CUDA_MEMSET_NODE_PARAMS_v2){.dst = BASE, .pitch = 100, .elementSize = 4, .width = 10, .height = 3};
  assert_true(rp_node_driver(&node, &use));
  assert_int_equal(use.op.address, BASE);
  assert_int_equal(use.op.bytes, 240);
  assert_int_equal(use.launch.function, 0);
  struct cudaGraphNodeParams runtime = {.type = cudaGraphNodeTypeMemcpy};
  runtime.memcpy.copyParams = (struct cudaMemcpy3DParms){.srcPtr = {(void *)(uintptr_t)BASE, 8, 8, 1},
                                                         .dstPtr = {(void *)(uintptr_t)(2 * BASE), 8, 8, 1},
                                                         .extent = {8, 1, 1}};
  assert_true(rp_node_runtime(&runtime, &use));
  assert_int_equal(use.op.source, BASE);
  assert_int_equal(use.op.address, 2 * BASE);
  assert_int_equal(use.op.bytes, 8);
  node.type = CU_GRAPH_NODE_TYPE_HOST;
  assert_false(rp_node_driver(&node, &use));
  assert_false(rp_node_driver(NULL, &use));
  assert_false(rp_node_runtime(NULL, &use));
  assert_false(rp_node_driver_memset(NULL, &use));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(boxes_are_what_they_touch), cmocka_unit_test(a_side_beside_an_array),
      cmocka_unit_test(hosts_arrays_and_nothing),  cmocka_unit_test(lists),
      cmocka_unit_test(kernels_of_nodes),          cmocka_unit_test(memory_of_nodes),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
