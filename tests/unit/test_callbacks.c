/* Copies and memsets as CUPTI tells them: which bytes of device memory each reads and writes, and on which
 * stream. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <cuda.h>
#include <string.h>

#include "cupti/callbacks.h"

#define MOST_OPS 4
#define TO 0x10000u
#define FROM 0x20000u
#define STREAM 0x77u

static struct rp_cuda_op ops[MOST_OPS];
static size_t op_count;
static struct rp_cuda_work begun;

static bool enter(void) {
  return true;
}

static void leave(void) {}

static void op(const struct rp_cuda_op *told) {
  assert_true(op_count < MOST_OPS);
  ops[op_count++] = *told;
}

static uint64_t work_begin(const struct rp_cuda_work *work) {
  begun = *work;
  return 0;
}

static const struct rp_cuda_sink sink = {.enter = enter, .leave = leave, .op = op, .work_begin = work_begin};

static bool enabled[CUPTI_DRIVER_TRACE_CBID_SIZE];

static void enable(void *context, CUpti_CallbackDomain domain, CUpti_CallbackId id) {
  (void)context;
  if (domain == CUPTI_CB_DOMAIN_DRIVER_API) enabled[id] = true;
}

static void tell(CUpti_CallbackId id, const void *params) {
  uint64_t own = 0;
  const CUpti_CallbackData data = {
      .callbackSite = CUPTI_API_ENTER, .functionParams = params, .correlationData = &own};
  op_count = 0;
  memset(&begun, 0, sizeof begun);
  if (!enabled[id]) fail_msg("callback %u is not asked for", (unsigned)id);
  rp_callbacks_take((void *)(uintptr_t)&sink, CUPTI_CB_DOMAIN_DRIVER_API, id, &data);
}

static void expect(size_t i, uint64_t to, uint64_t to_bytes, uint64_t from, uint64_t from_bytes,
                   uint64_t stream) {
  assert_true(i < op_count);
  assert_int_equal(ops[i].bytes, to_bytes);
  if (to_bytes) assert_int_equal(ops[i].address, to);
  assert_int_equal(ops[i].source_bytes, from_bytes);
  if (from_bytes) assert_int_equal(ops[i].source, from);
  assert_int_equal(ops[i].stream, stream);
}

/* A box of 3 layers of 4 rows of 16 bytes, in memory with rows of 64 bytes and layers of 8 rows. */
#define ROW 64u
#define ROWS 8u
#define BOX_BYTES ((2 * ROWS + 4 - 1) * ROW + 16)
#define DESCRIBE                                                                                             \
  .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = TO, .dstPitch = ROW, .dstHeight = ROWS,                \
  .dstXInBytes = 8, .dstY = 1, .dstZ = 2, .srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = FROM,          \
  .srcPitch = ROW, .srcHeight = ROWS, .WidthInBytes = 16, .Height = 4, .Depth = 3
#define BOX_TO (TO + (2 * ROWS + 1) * ROW + 8)

static void test_boxes(void **state) {
  (void)state;
  const CUDA_MEMCPY3D copy = {DESCRIBE};
  const CUDA_MEMCPY3D_PEER peer = {DESCRIBE};
  const cuMemcpy3D_v2_params sync = {&copy};
  const cuMemcpy3DPeer_params sync_peer = {&peer};
  const cuMemcpy3DAsync_v2_params async = {&copy, (CUstream)STREAM};
  const cuMemcpy3DPeerAsync_params async_peer = {&peer, (CUstream)STREAM};
  const struct {
    CUpti_CallbackId id;
    const void *params;
    uint64_t stream;
    bool sync;
  } cases[] = {
      {CUPTI_DRIVER_TRACE_CBID_cuMemcpy3D_v2, &sync, RP_STREAM_LEGACY, true},
      {CUPTI_DRIVER_TRACE_CBID_cuMemcpy3D_v2_ptds, &sync, RP_STREAM_PER_THREAD, true},
      {CUPTI_DRIVER_TRACE_CBID_cuMemcpy3DPeer, &sync_peer, RP_STREAM_LEGACY, true},
      {CUPTI_DRIVER_TRACE_CBID_cuMemcpy3DPeer_ptds, &sync_peer, RP_STREAM_PER_THREAD, true},
      {CUPTI_DRIVER_TRACE_CBID_cuMemcpy3DAsync_v2, &async, STREAM, false},
      {CUPTI_DRIVER_TRACE_CBID_cuMemcpy3DPeerAsync, &async_peer, STREAM, false},
      {CUPTI_DRIVER_TRACE_CBID_cuMemcpy3DPeerAsync_ptsz, &async_peer, STREAM, false},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    tell(cases[i].id, cases[i].params);
    assert_int_equal(op_count, 1);
    expect(0, BOX_TO, BOX_BYTES, FROM, BOX_BYTES, cases[i].stream);
    assert_int_equal(begun.kind == RP_CUDA_COPY_SYNC, cases[i].sync);
  }
}

static void test_box_of_the_host(void **state) {
  (void)state;
  char host[64];
  CUDA_MEMCPY3D copy = {DESCRIBE};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = host;
  copy.dstHeight = copy.dstPitch = 0; /* tightly packed */
  copy.dstY = copy.dstZ = copy.dstXInBytes = 0;
  const cuMemcpy3D_v2_params params = {&copy};
  tell(CUPTI_DRIVER_TRACE_CBID_cuMemcpy3D_v2, &params);
  expect(0, TO, 3 * 4 * 16, (uintptr_t)host, BOX_BYTES, RP_STREAM_LEGACY); /* no buffer lies there */
  assert_int_equal(begun.from, (uintptr_t)host);
  const cuMemcpy3D_v2_params nothing = {NULL};
  tell(CUPTI_DRIVER_TRACE_CBID_cuMemcpy3D_v2, &nothing);
  assert_int_equal(op_count, 0);
}

static void test_batches(void **state) {
  (void)state;
  CUDA_MEMCPY3D_BATCH_OP list[2] = {{.extent = {16, 4, 3}}, {.extent = {16, 1, 1}}};
  for (int i = 0; i < 2; i++) {
    list[i].dst.type = list[i].src.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
    list[i].dst.op.ptr.ptr = TO + (CUdeviceptr)i * 0x1000;
    list[i].src.op.ptr.ptr = FROM;
  }
  list[0].dst.op.ptr.rowLength = ROW;
  list[0].dst.op.ptr.layerHeight = ROWS;
  list[1].src.type = CU_MEMCPY_OPERAND_TYPE_ARRAY;
  const cuMemcpy3DBatchAsync_params first = {.numOps = 2, .opList = list, .hStream = (CUstream)STREAM};
  const cuMemcpy3DBatchAsync_v2_params second = {.numOps = 2, .opList = list, .hStream = (CUstream)STREAM};
  for (int version = 1; version <= 2; version++) {
    if (version == 1)
      tell(CUPTI_DRIVER_TRACE_CBID_cuMemcpy3DBatchAsync, &first);
    else
      tell(CUPTI_DRIVER_TRACE_CBID_cuMemcpy3DBatchAsync_v2, &second);
    assert_int_equal(op_count, 2);
    expect(0, TO, BOX_BYTES, FROM, 3 * 4 * 16, STREAM);
    expect(1, TO + 0x1000, 16, 0, 0, STREAM);
  }
}

/* cuda.h renames some calls to their newest version: a table that follows it would lose the older ones. */
static void test_older_versions_too(void **state) {
  (void)state;
  static const CUpti_CallbackId older[] = {
      CUPTI_DRIVER_TRACE_CBID_cuMemcpyBatchAsync,   CUPTI_DRIVER_TRACE_CBID_cuMemcpyBatchAsync_v2,
      CUPTI_DRIVER_TRACE_CBID_cuMemcpy3DBatchAsync, CUPTI_DRIVER_TRACE_CBID_cuMemcpy3DBatchAsync_v2,
      CUPTI_DRIVER_TRACE_CBID_cuStreamBeginCapture, CUPTI_DRIVER_TRACE_CBID_cuStreamBeginCapture_v2,
      CUPTI_DRIVER_TRACE_CBID_cuCtxSynchronize,
  };
  for (size_t i = 0; i < sizeof older / sizeof older[0]; i++)
    if (!enabled[older[i]]) fail_msg("callback %u is not asked for", (unsigned)older[i]);
}

static void test_lines(void **state) {
  (void)state;
  const cuMemcpyDtoDAsync_v2_params copy = {TO, FROM, 100, (CUstream)STREAM};
  const cuMemcpyHtoD_v2_params up = {TO, (void *)0x5000, 100};
  const cuMemsetD32Async_params set = {TO, 7, 25, NULL};
  tell(CUPTI_DRIVER_TRACE_CBID_cuMemcpyDtoDAsync_v2, &copy);
  expect(0, TO, 100, FROM, 100, STREAM);
  tell(CUPTI_DRIVER_TRACE_CBID_cuMemcpyHtoD_v2, &up);
  expect(0, TO, 100, 0, 0, RP_STREAM_LEGACY);
  assert_int_equal(begun.kind, RP_CUDA_COPY_SYNC);
  tell(CUPTI_DRIVER_TRACE_CBID_cuMemsetD32Async_ptsz, &set);
  expect(0, TO, 100, 0, 0, RP_STREAM_PER_THREAD);
  assert_int_equal(ops[0].kind, RP_EVENT_MEMSET);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_boxes), cmocka_unit_test(test_box_of_the_host),    cmocka_unit_test(test_batches),
      cmocka_unit_test(test_lines), cmocka_unit_test(test_older_versions_too),
  };
  rp_callbacks_enable(enable, NULL, false);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
