/* Copies that a struct describes, copies from and to arrays and symbols, several at a time, and single words;
 * see hooks_work.c. Rare in training; but memory that a plan left unbacked must have some before any of them
 * touches it. */
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "agent/abi.h"
#include "agent/agent.h"
#include "agent/enforce.h"
#include "agent/hooks.h"
#include "agent/hooks_work.h"
#include "agent/ordering.h"
#include "agent/state.h"

typedef bool shape_reader(const void *copy, struct rp_cuda_op *out);

static uint64_t word(const void *pointer) {
  return (uint64_t)(uintptr_t)pointer;
}

static uint64_t span(uint64_t pitch, uint64_t width, uint64_t rows) {
  return width && rows ? (rows - 1) * pitch + width : 0;
}

static void take_shape(struct rp_hook_work *call, shape_reader *read, const void *copy, bool waits,
                       uint64_t stream) {
  struct rp_cuda_op op;
  if (!read(copy, &op)) return;
  op.stream = stream;
  rp__take_op(call, &op, waits);
}

/* A read or a write of device memory, by a copy whose other side is none. */
static void take_read(struct rp_hook_work *call, bool waits, uint64_t from, uint64_t bytes, uint64_t stream) {
  const struct rp_cuda_op op = {
      .kind = RP_EVENT_COPY_READ, .source = from, .source_bytes = bytes, .stream = stream};
  rp__take_op(call, &op, waits);
}

static void take_write(struct rp_hook_work *call, bool waits, uint64_t to, uint64_t bytes, uint64_t stream) {
  const struct rp_cuda_op op = {.kind = RP_EVENT_COPY_READ, .address = to, .bytes = bytes, .stream = stream};
  rp__take_op(call, &op, waits);
}

static void take_set(struct rp_hook_work *call, uint64_t to, uint64_t bytes, uint64_t stream) {
  const struct rp_cuda_op op = {.kind = RP_EVENT_MEMSET, .address = to, .bytes = bytes, .stream = stream};
  rp__take_op(call, &op, false);
}

/* A wait for a word, which somebody outside of all streams may write. */
static void take_wait(struct rp_hook_work *call, uint64_t from, uint64_t bytes, uint64_t stream) {
  const struct rp_cuda_op op = {
      .kind = RP_EVENT_COPY_READ, .source = from, .source_bytes = bytes, .stream = stream};
  const struct rp_cuda_work order = {.stream = stream, .outside = true};
  if (!rp_hook_work_tells(call)) return;
  call->hit = rp_agent_copy(&op, &call->work);
  rp__work_begin(call, &order);
}

/* ---- described by a struct ---- */

#define SHAPED(name, reader, per_thread)                                                                     \
  RP_HOOK_WORK(name, (const void *copy), (copy),                                                             \
               take_shape(&call, reader, copy, true, rp_hook_stream(NULL, per_thread)))
#define SHAPED_ASYNC(name, reader, per_thread)                                                               \
  RP_HOOK_WORK(name, (const void *copy, void *stream), (copy, stream),                                       \
               take_shape(&call, reader, copy, false, rp_hook_stream(stream, per_thread)))

SHAPED(cudaMemcpy3D, rp_shape_runtime_copy_3d, 0)
SHAPED(cudaMemcpy3D_ptds, rp_shape_runtime_copy_3d, 1)
SHAPED_ASYNC(cudaMemcpy3DAsync, rp_shape_runtime_copy_3d, 0)
SHAPED_ASYNC(cudaMemcpy3DAsync_ptsz, rp_shape_runtime_copy_3d, 1)
SHAPED(cudaMemcpy3DPeer, rp_shape_runtime_copy_3d_peer, 0)
SHAPED(cudaMemcpy3DPeer_ptds, rp_shape_runtime_copy_3d_peer, 1)
SHAPED_ASYNC(cudaMemcpy3DPeerAsync, rp_shape_runtime_copy_3d_peer, 0)
SHAPED_ASYNC(cudaMemcpy3DPeerAsync_ptsz, rp_shape_runtime_copy_3d_peer, 1)
SHAPED(cuMemcpy2D_v2, rp_shape_copy_2d, 0)
SHAPED(cuMemcpy2D_v2_ptds, rp_shape_copy_2d, 1)
SHAPED(cuMemcpy2DUnaligned_v2, rp_shape_copy_2d, 0)
SHAPED(cuMemcpy2DUnaligned_v2_ptds, rp_shape_copy_2d, 1)
SHAPED_ASYNC(cuMemcpy2DAsync_v2, rp_shape_copy_2d, 0)
SHAPED_ASYNC(cuMemcpy2DAsync_v2_ptsz, rp_shape_copy_2d, 1)
SHAPED(cuMemcpy3D_v2, rp_shape_copy_3d, 0)
SHAPED(cuMemcpy3D_v2_ptds, rp_shape_copy_3d, 1)
SHAPED_ASYNC(cuMemcpy3DAsync_v2, rp_shape_copy_3d, 0)
SHAPED_ASYNC(cuMemcpy3DAsync_v2_ptsz, rp_shape_copy_3d, 1)
SHAPED(cuMemcpy3DPeer, rp_shape_copy_3d_peer, 0)
SHAPED(cuMemcpy3DPeer_ptds, rp_shape_copy_3d_peer, 1)
SHAPED_ASYNC(cuMemcpy3DPeerAsync, rp_shape_copy_3d_peer, 0)
SHAPED_ASYNC(cuMemcpy3DPeerAsync_ptsz, rp_shape_copy_3d_peer, 1)

/* ---- between devices ---- */

static void take_peer(struct rp_hook_work *call, bool waits, uint64_t to, uint64_t from, uint64_t bytes,
                      uint64_t stream) {
  const struct rp_cuda_op op = {.kind = RP_EVENT_COPY_READ,
                                .address = to,
                                .bytes = bytes,
                                .source = from,
                                .source_bytes = bytes,
                                .stream = stream};
  rp__take_op(call, &op, waits);
}

#define PEER(name, per_thread)                                                                               \
  RP_HOOK_WORK(name, (uint64_t to, void *to_context, uint64_t from, void *from_context, size_t bytes),       \
               (to, to_context, from, from_context, bytes),                                                  \
               take_peer(&call, true, to, from, bytes, rp_hook_stream(NULL, per_thread)))
#define PEER_ASYNC(name, per_thread)                                                                         \
  RP_HOOK_WORK(                                                                                              \
      name, (uint64_t to, void *to_context, uint64_t from, void *from_context, size_t bytes, void *stream),  \
      (to, to_context, from, from_context, bytes, stream),                                                   \
      take_peer(&call, false, to, from, bytes, rp_hook_stream(stream, per_thread)))

PEER(cuMemcpyPeer, 0)
PEER(cuMemcpyPeer_ptds, 1)
PEER_ASYNC(cuMemcpyPeerAsync, 0)
PEER_ASYNC(cuMemcpyPeerAsync_ptsz, 1)

/* ---- arrays and symbols: memory that is no buffer ---- */

#define TO_ARRAY(name, per_thread)                                                                           \
  RP_HOOK_WORK(name, (void *to, size_t x, size_t y, const void *from, size_t bytes, int kind),               \
               (to, x, y, from, bytes, kind),                                                                \
               take_read(&call, true, word(from), bytes, rp_hook_stream(NULL, per_thread)))
#define TO_ARRAY_ASYNC(name, per_thread)                                                                     \
  RP_HOOK_WORK(name, (void *to, size_t x, size_t y, const void *from, size_t bytes, int kind, void *stream), \
               (to, x, y, from, bytes, kind, stream),                                                        \
               take_read(&call, false, word(from), bytes, rp_hook_stream(stream, per_thread)))
#define FROM_ARRAY(name, per_thread)                                                                         \
  RP_HOOK_WORK(name, (void *to, const void *from, size_t x, size_t y, size_t bytes, int kind),               \
               (to, from, x, y, bytes, kind),                                                                \
               take_write(&call, true, word(to), bytes, rp_hook_stream(NULL, per_thread)))
#define FROM_ARRAY_ASYNC(name, per_thread)                                                                   \
  RP_HOOK_WORK(name, (void *to, const void *from, size_t x, size_t y, size_t bytes, int kind, void *stream), \
               (to, from, x, y, bytes, kind, stream),                                                        \
               take_write(&call, false, word(to), bytes, rp_hook_stream(stream, per_thread)))
#define TO_ARRAY_2D(name, per_thread)                                                                        \
  RP_HOOK_WORK(                                                                                              \
      name,                                                                                                  \
      (void *to, size_t x, size_t y, const void *from, size_t pitch, size_t width, size_t height, int kind), \
      (to, x, y, from, pitch, width, height, kind),                                                          \
      take_read(&call, true, word(from), span(pitch, width, height), rp_hook_stream(NULL, per_thread)))
#define TO_ARRAY_2D_ASYNC(name, per_thread)                                                                  \
  RP_HOOK_WORK(                                                                                              \
      name,                                                                                                  \
      (void *to, size_t x, size_t y, const void *from, size_t pitch, size_t width, size_t height, int kind,  \
       void *stream),                                                                                        \
      (to, x, y, from, pitch, width, height, kind, stream),                                                  \
      take_read(&call, false, word(from), span(pitch, width, height), rp_hook_stream(stream, per_thread)))
#define FROM_ARRAY_2D(name, per_thread)                                                                      \
  RP_HOOK_WORK(                                                                                              \
      name,                                                                                                  \
      (void *to, size_t pitch, const void *from, size_t x, size_t y, size_t width, size_t height, int kind), \
      (to, pitch, from, x, y, width, height, kind),                                                          \
      take_write(&call, true, word(to), span(pitch, width, height), rp_hook_stream(NULL, per_thread)))
#define FROM_ARRAY_2D_ASYNC(name, per_thread)                                                                \
  RP_HOOK_WORK(                                                                                              \
      name,                                                                                                  \
      (void *to, size_t pitch, const void *from, size_t x, size_t y, size_t width, size_t height, int kind,  \
       void *stream),                                                                                        \
      (to, pitch, from, x, y, width, height, kind, stream),                                                  \
      take_write(&call, false, word(to), span(pitch, width, height), rp_hook_stream(stream, per_thread)))
#define TO_SYMBOL(name, per_thread)                                                                          \
  RP_HOOK_WORK(name, (const void *symbol, const void *from, size_t bytes, size_t offset, int kind),          \
               (symbol, from, bytes, offset, kind),                                                          \
               take_read(&call, true, word(from), bytes, rp_hook_stream(NULL, per_thread)))
#define TO_SYMBOL_ASYNC(name, per_thread)                                                                    \
  RP_HOOK_WORK(name,                                                                                         \
               (const void *symbol, const void *from, size_t bytes, size_t offset, int kind, void *stream),  \
               (symbol, from, bytes, offset, kind, stream),                                                  \
               take_read(&call, false, word(from), bytes, rp_hook_stream(stream, per_thread)))
#define FROM_SYMBOL(name, per_thread)                                                                        \
  RP_HOOK_WORK(name, (void *to, const void *symbol, size_t bytes, size_t offset, int kind),                  \
               (to, symbol, bytes, offset, kind),                                                            \
               take_write(&call, true, word(to), bytes, rp_hook_stream(NULL, per_thread)))
#define FROM_SYMBOL_ASYNC(name, per_thread)                                                                  \
  RP_HOOK_WORK(name, (void *to, const void *symbol, size_t bytes, size_t offset, int kind, void *stream),    \
               (to, symbol, bytes, offset, kind, stream),                                                    \
               take_write(&call, false, word(to), bytes, rp_hook_stream(stream, per_thread)))
#define DRIVER_TO_ARRAY(name, per_thread)                                                                    \
  RP_HOOK_WORK(name, (void *to, size_t offset, uint64_t from, size_t bytes), (to, offset, from, bytes),      \
               take_read(&call, true, from, bytes, rp_hook_stream(NULL, per_thread)))
#define DRIVER_FROM_ARRAY(name, per_thread)                                                                  \
  RP_HOOK_WORK(name, (uint64_t to, void *from, size_t offset, size_t bytes), (to, from, offset, bytes),      \
               take_write(&call, true, to, bytes, rp_hook_stream(NULL, per_thread)))

TO_ARRAY(cudaMemcpyToArray, 0)
TO_ARRAY(cudaMemcpyToArray_ptds, 1)
TO_ARRAY_ASYNC(cudaMemcpyToArrayAsync, 0)
TO_ARRAY_ASYNC(cudaMemcpyToArrayAsync_ptsz, 1)
FROM_ARRAY(cudaMemcpyFromArray, 0)
FROM_ARRAY(cudaMemcpyFromArray_ptds, 1)
FROM_ARRAY_ASYNC(cudaMemcpyFromArrayAsync, 0)
FROM_ARRAY_ASYNC(cudaMemcpyFromArrayAsync_ptsz, 1)
TO_ARRAY_2D(cudaMemcpy2DToArray, 0)
TO_ARRAY_2D(cudaMemcpy2DToArray_ptds, 1)
TO_ARRAY_2D_ASYNC(cudaMemcpy2DToArrayAsync, 0)
TO_ARRAY_2D_ASYNC(cudaMemcpy2DToArrayAsync_ptsz, 1)
FROM_ARRAY_2D(cudaMemcpy2DFromArray, 0)
FROM_ARRAY_2D(cudaMemcpy2DFromArray_ptds, 1)
FROM_ARRAY_2D_ASYNC(cudaMemcpy2DFromArrayAsync, 0)
FROM_ARRAY_2D_ASYNC(cudaMemcpy2DFromArrayAsync_ptsz, 1)
TO_SYMBOL(cudaMemcpyToSymbol, 0)
TO_SYMBOL(cudaMemcpyToSymbol_ptds, 1)
TO_SYMBOL_ASYNC(cudaMemcpyToSymbolAsync, 0)
TO_SYMBOL_ASYNC(cudaMemcpyToSymbolAsync_ptsz, 1)
FROM_SYMBOL(cudaMemcpyFromSymbol, 0)
FROM_SYMBOL(cudaMemcpyFromSymbol_ptds, 1)
FROM_SYMBOL_ASYNC(cudaMemcpyFromSymbolAsync, 0)
FROM_SYMBOL_ASYNC(cudaMemcpyFromSymbolAsync_ptsz, 1)
DRIVER_TO_ARRAY(cuMemcpyDtoA_v2, 0)
DRIVER_TO_ARRAY(cuMemcpyDtoA_v2_ptds, 1)
DRIVER_FROM_ARRAY(cuMemcpyAtoD_v2, 0)
DRIVER_FROM_ARRAY(cuMemcpyAtoD_v2_ptds, 1)

/* ---- memsets of boxes ---- */

/* From the begin of the first row to the end of the last. */
static uint64_t box_bytes(const struct rp_abi_pitched *box, const struct rp_abi_extent *extent) {
  if (!extent->depth || !extent->height) return 0;
  return span(box->pitch, extent->width, (extent->depth - 1) * box->rows + extent->height);
}

#define SET_3D(name, per_thread)                                                                             \
  RP_HOOK_WORK(                                                                                              \
      name, (struct rp_abi_pitched box, int value, struct rp_abi_extent extent), (box, value, extent),       \
      take_set(&call, word(box.memory), box_bytes(&box, &extent), rp_hook_stream(NULL, per_thread)))
#define SET_3D_ASYNC(name, per_thread)                                                                       \
  RP_HOOK_WORK(                                                                                              \
      name, (struct rp_abi_pitched box, int value, struct rp_abi_extent extent, void *stream),               \
      (box, value, extent, stream),                                                                          \
      take_set(&call, word(box.memory), box_bytes(&box, &extent), rp_hook_stream(stream, per_thread)))
#define DRIVER_SET_2D(name, type, per_thread)                                                                \
  RP_HOOK_WORK(                                                                                              \
      name, (uint64_t to, size_t pitch, type value, size_t width, size_t height),                            \
      (to, pitch, value, width, height),                                                                     \
      take_set(&call, to, span(pitch, width * sizeof value, height), rp_hook_stream(NULL, per_thread)))
#define DRIVER_SET_2D_ASYNC(name, type, per_thread)                                                          \
  RP_HOOK_WORK(                                                                                              \
      name, (uint64_t to, size_t pitch, type value, size_t width, size_t height, void *stream),              \
      (to, pitch, value, width, height, stream),                                                             \
      take_set(&call, to, span(pitch, width * sizeof value, height), rp_hook_stream(stream, per_thread)))

SET_3D(cudaMemset3D, 0)
SET_3D(cudaMemset3D_ptds, 1)
SET_3D_ASYNC(cudaMemset3DAsync, 0)
SET_3D_ASYNC(cudaMemset3DAsync_ptsz, 1)
DRIVER_SET_2D(cuMemsetD2D8_v2, unsigned char, 0)
DRIVER_SET_2D(cuMemsetD2D8_v2_ptds, unsigned char, 1)
DRIVER_SET_2D(cuMemsetD2D16_v2, unsigned short, 0)
DRIVER_SET_2D(cuMemsetD2D16_v2_ptds, unsigned short, 1)
DRIVER_SET_2D(cuMemsetD2D32_v2, unsigned, 0)
DRIVER_SET_2D(cuMemsetD2D32_v2_ptds, unsigned, 1)
DRIVER_SET_2D_ASYNC(cuMemsetD2D8Async, unsigned char, 0)
DRIVER_SET_2D_ASYNC(cuMemsetD2D8Async_ptsz, unsigned char, 1)
DRIVER_SET_2D_ASYNC(cuMemsetD2D16Async, unsigned short, 0)
DRIVER_SET_2D_ASYNC(cuMemsetD2D16Async_ptsz, unsigned short, 1)
DRIVER_SET_2D_ASYNC(cuMemsetD2D32Async, unsigned, 0)
DRIVER_SET_2D_ASYNC(cuMemsetD2D32Async_ptsz, unsigned, 1)

/* ---- single words ---- */

#define WRITE_VALUE(name, type, per_thread)                                                                  \
  RP_HOOK_WORK(name, (void *stream, uint64_t to, type value, unsigned flags), (stream, to, value, flags),    \
               take_set(&call, to, sizeof value, rp_hook_stream(stream, per_thread)))
#define WAIT_VALUE(name, type, per_thread)                                                                   \
  RP_HOOK_WORK(name, (void *stream, uint64_t from, type value, unsigned flags),                              \
               (stream, from, value, flags),                                                                 \
               take_wait(&call, from, sizeof value, rp_hook_stream(stream, per_thread)))

WRITE_VALUE(cuStreamWriteValue32, uint32_t, 0)
WRITE_VALUE(cuStreamWriteValue32_ptsz, uint32_t, 1)
WRITE_VALUE(cuStreamWriteValue32_v2, uint32_t, 0)
WRITE_VALUE(cuStreamWriteValue32_v2_ptsz, uint32_t, 1)
WRITE_VALUE(cuStreamWriteValue64, uint64_t, 0)
WRITE_VALUE(cuStreamWriteValue64_ptsz, uint64_t, 1)
WRITE_VALUE(cuStreamWriteValue64_v2, uint64_t, 0)
WRITE_VALUE(cuStreamWriteValue64_v2_ptsz, uint64_t, 1)
WAIT_VALUE(cuStreamWaitValue32, uint32_t, 0)
WAIT_VALUE(cuStreamWaitValue32_ptsz, uint32_t, 1)
WAIT_VALUE(cuStreamWaitValue32_v2, uint32_t, 0)
WAIT_VALUE(cuStreamWaitValue32_v2_ptsz, uint32_t, 1)
WAIT_VALUE(cuStreamWaitValue64, uint64_t, 0)
WAIT_VALUE(cuStreamWaitValue64_ptsz, uint64_t, 1)
WAIT_VALUE(cuStreamWaitValue64_v2, uint64_t, 0)
WAIT_VALUE(cuStreamWaitValue64_v2_ptsz, uint64_t, 1)

/* ---- several in one call ---- */

/* The calls with more ranges than one piece of work has: each operation is asked about alone. Copies are told
 * by CUPTI then, as ever; single words, and without CUPTI the order, by nobody else. */
#define TOLD_MOST 16
struct several {
  bool on, asks, refused, words, ordered;
  size_t hits;
  uint64_t begun;
  struct rp_cuda_work order;
  struct rp_work works[TOLD_MOST]; /* the first hits */
};

static bool several_begin(struct several *call, uint64_t stream, bool words) {
  call->on = rp_call_begin(RP_CALL_WORK);
  call->asks = rp_enforce_on() && rp_call_is_programs(RP_CALL_WORK);
  call->refused = call->ordered = false;
  call->words = words;
  call->hits = 0;
  call->order = (struct rp_cuda_work){.stream = stream, .outside = words};
  return call->asks;
}

/* The ranges are known: the call is about to be made. */
static void several_order(struct several *call) {
  if (call->asks) rp_thread.asked = !call->refused;
  call->ordered = (call->words && call->hits) || ((call->on || call->asks) && !rp_cupti_active());
  if (!call->ordered) return;
  if (call->hits) rp_ordering_want();
  call->begun = rp_ordering_work_begin(&call->order);
}

static void add_use(struct rp_work *work, enum rp_event_kind kind, uint64_t address, uint64_t bytes) {
  if (!address || !bytes || !rp_agent_watched(address, address + bytes)) return;
  work->uses[work->use_count++] =
      (struct rp_use){.address = address,
                      .bytes = bytes,
                      .mode = kind == RP_EVENT_COPY_READ ? RP_POOL_READ : RP_POOL_WRITE,
                      .kind = kind};
}

static void several_take(struct several *call, const struct rp_cuda_op *op) {
  struct rp_work work = {.use_count = 0};
  if (call->refused) return;
  add_use(&work, RP_EVENT_COPY_READ, op->source, op->source_bytes);
  add_use(&work, op->kind == RP_EVENT_MEMSET ? RP_EVENT_MEMSET : RP_EVENT_COPY_WRITE, op->address, op->bytes);
  if (work.use_count == 0) return;
  work.site = rp_agent_site(call->order.stream);
  work.time_ns = rp_now_ns();
  call->refused = !rp_enforce_work_before(&work);
  if (call->refused || !work.hit) return;
  if (call->hits < TOLD_MOST) call->works[call->hits] = work;
  call->hits++;
}

/* Beyond the first hits nothing is told: they are no evidence, and were asked about. */
static void several_end(struct several *call, int result) {
  const struct rp_work hit = {.hit = true, .site = rp_agent_site(call->order.stream)};
  bool succeeded = !call->refused && result == RP_ABI_SUCCESS;
  if (call->asks) rp_thread.asked = 0;
  for (size_t i = 0; call->asks && i < call->hits; i++)
    rp_enforce_work_after(i < TOLD_MOST ? &call->works[i] : &hit, call->words && succeeded && i < TOLD_MOST);
  if (call->ordered) rp_ordering_work_end(&call->order, call->begun, succeeded);
  rp_call_end(RP_CALL_WORK);
}

#define SEVERAL(name, parameters, arguments, on_stream, words, take)                                         \
  RP_HOOK(int, name, parameters) {                                                                           \
    struct several call;                                                                                     \
    if (several_begin(&call, (on_stream), (words))) take;                                                    \
    several_order(&call);                                                                                    \
    int result = call.refused ? rp_hook_fail(#name, (void *)real_##name, RP_ABI_OUT_OF_MEMORY)               \
                              : real_##name arguments;                                                       \
    several_end(&call, result);                                                                              \
    return result;                                                                                           \
  }

static void take_list(struct several *call, const uint64_t *to, const uint64_t *from, const size_t *bytes,
                      size_t count) {
  for (size_t i = 0; to && from && bytes && i < count; i++)
    several_take(call, &(struct rp_cuda_op){.kind = RP_EVENT_COPY_READ,
                                            .address = to[i],
                                            .bytes = bytes[i],
                                            .source = from[i],
                                            .source_bytes = bytes[i]});
}

static void take_boxes(struct several *call, const void *list, size_t count) {
  struct rp_cuda_op op;
  for (size_t i = 0; i < count && rp_shape_copy_3d_batch(list, i, &op); i++)
    several_take(call, &op);
}

static void take_words(struct several *call, const void *list, unsigned count) {
  struct rp_cuda_op op;
  for (unsigned i = 0; list && i < count; i++)
    if (rp_shape_memory_op(list, i, &op)) several_take(call, &op);
}

#define COPY_BATCH(name, per_thread)                                                                         \
  SEVERAL(name,                                                                                              \
          (uint64_t * to, uint64_t * from, size_t * bytes, size_t count, void *attributes, size_t *indices,  \
           size_t attribute_count, void *stream),                                                            \
          (to, from, bytes, count, attributes, indices, attribute_count, stream),                            \
          rp_hook_stream(stream, per_thread), false, take_list(&call, to, from, bytes, count))
#define COPY_BATCH_FAILING(name, per_thread)                                                                 \
  SEVERAL(name,                                                                                              \
          (uint64_t * to, uint64_t * from, size_t * bytes, size_t count, void *attributes, size_t *indices,  \
           size_t attribute_count, size_t *failed, void *stream),                                            \
          (to, from, bytes, count, attributes, indices, attribute_count, failed, stream),                    \
          rp_hook_stream(stream, per_thread), false, take_list(&call, to, from, bytes, count))
#define BOX_BATCH(name, per_thread)                                                                          \
  SEVERAL(name, (size_t count, void *list, unsigned long long flags, void *stream),                          \
          (count, list, flags, stream), rp_hook_stream(stream, per_thread), false,                           \
          take_boxes(&call, list, count))
#define BOX_BATCH_FAILING(name, per_thread)                                                                  \
  SEVERAL(name, (size_t count, void *list, size_t *failed, unsigned long long flags, void *stream),          \
          (count, list, failed, flags, stream), rp_hook_stream(stream, per_thread), false,                   \
          take_boxes(&call, list, count))
#define WORD_BATCH(name, per_thread)                                                                         \
  SEVERAL(name, (void *stream, unsigned count, void *list, unsigned flags), (stream, count, list, flags),    \
          rp_hook_stream(stream, per_thread), true, take_words(&call, list, count))

/* CUDA 12's call of that name has an argument more, in front of the stream; what is passed on is that many in
 * either case, of which CUDA 13's reads all but the last. */
static bool has_failed_index(void *function) {
  static _Atomic int version;
  int found = atomic_load_explicit(&version, memory_order_relaxed);
  if (found == 0) {
    int (*ask)(int *) = (int (*)(int *))rp_hook_sibling(function, "cudaRuntimeGetVersion");
    if (!ask || ask(&found) != RP_ABI_SUCCESS || found <= 0) found = 13000;
    atomic_store_explicit(&version, found, memory_order_relaxed);
  }
  return found < 13000;
}

static uint64_t one_of(void *function, void *with, void *without, int per_thread) {
  return rp_hook_stream(has_failed_index(function) ? with : without, per_thread);
}

#define RUNTIME_COPY_BATCH(name, per_thread)                                                                 \
  SEVERAL(name,                                                                                              \
          (uint64_t * to, uint64_t * from, size_t * bytes, size_t count, void *attributes, size_t *indices,  \
           size_t attribute_count, void *eighth, void *ninth),                                               \
          (to, from, bytes, count, attributes, indices, attribute_count, eighth, ninth),                     \
          one_of((void *)real_##name, ninth, eighth, per_thread), false,                                     \
          take_list(&call, to, from, bytes, count))
#define RUNTIME_BOX_BATCH(name, per_thread)                                                                  \
  SEVERAL(name, (size_t count, void *list, void *third, void *fourth, void *fifth),                          \
          (count, list, third, fourth, fifth), one_of((void *)real_##name, fifth, fourth, per_thread),       \
          false, take_boxes(&call, list, count))

RUNTIME_COPY_BATCH(cudaMemcpyBatchAsync, 0)
RUNTIME_COPY_BATCH(cudaMemcpyBatchAsync_ptsz, 1)
RUNTIME_BOX_BATCH(cudaMemcpy3DBatchAsync, 0)
RUNTIME_BOX_BATCH(cudaMemcpy3DBatchAsync_ptsz, 1)
COPY_BATCH_FAILING(cuMemcpyBatchAsync, 0)
COPY_BATCH_FAILING(cuMemcpyBatchAsync_ptsz, 1)
COPY_BATCH(cuMemcpyBatchAsync_v2, 0)
COPY_BATCH(cuMemcpyBatchAsync_v2_ptsz, 1)
BOX_BATCH_FAILING(cuMemcpy3DBatchAsync, 0)
BOX_BATCH_FAILING(cuMemcpy3DBatchAsync_ptsz, 1)
BOX_BATCH(cuMemcpy3DBatchAsync_v2, 0)
BOX_BATCH(cuMemcpy3DBatchAsync_v2_ptsz, 1)
WORD_BATCH(cuStreamBatchMemOp, 0)
WORD_BATCH(cuStreamBatchMemOp_ptsz, 1)
WORD_BATCH(cuStreamBatchMemOp_v2, 0)
WORD_BATCH(cuStreamBatchMemOp_v2_ptsz, 1)

const struct rp_hook rp_hooks_shapes[] = {
    RP_HOOK_ENTRY(cudaMemcpy3D),
    RP_HOOK_ENTRY(cudaMemcpy3D_ptds),
    RP_HOOK_ENTRY(cudaMemcpy3DAsync),
    RP_HOOK_ENTRY(cudaMemcpy3DAsync_ptsz),
    RP_HOOK_ENTRY(cudaMemcpy3DPeer),
    RP_HOOK_ENTRY(cudaMemcpy3DPeer_ptds),
    RP_HOOK_ENTRY(cudaMemcpy3DPeerAsync),
    RP_HOOK_ENTRY(cudaMemcpy3DPeerAsync_ptsz),
    RP_HOOK_ENTRY(cuMemcpy2D_v2),
    RP_HOOK_ENTRY(cuMemcpy2D_v2_ptds),
    RP_HOOK_ENTRY(cuMemcpy2DUnaligned_v2),
    RP_HOOK_ENTRY(cuMemcpy2DUnaligned_v2_ptds),
    RP_HOOK_ENTRY(cuMemcpy2DAsync_v2),
    RP_HOOK_ENTRY(cuMemcpy2DAsync_v2_ptsz),
    RP_HOOK_ENTRY(cuMemcpy3D_v2),
    RP_HOOK_ENTRY(cuMemcpy3D_v2_ptds),
    RP_HOOK_ENTRY(cuMemcpy3DAsync_v2),
    RP_HOOK_ENTRY(cuMemcpy3DAsync_v2_ptsz),
    RP_HOOK_ENTRY(cuMemcpy3DPeer),
    RP_HOOK_ENTRY(cuMemcpy3DPeer_ptds),
    RP_HOOK_ENTRY(cuMemcpy3DPeerAsync),
    RP_HOOK_ENTRY(cuMemcpy3DPeerAsync_ptsz),
    RP_HOOK_ENTRY(cuMemcpyPeer),
    RP_HOOK_ENTRY(cuMemcpyPeer_ptds),
    RP_HOOK_ENTRY(cuMemcpyPeerAsync),
    RP_HOOK_ENTRY(cuMemcpyPeerAsync_ptsz),
    RP_HOOK_ENTRY(cudaMemcpyToArray),
    RP_HOOK_ENTRY(cudaMemcpyToArray_ptds),
    RP_HOOK_ENTRY(cudaMemcpyToArrayAsync),
    RP_HOOK_ENTRY(cudaMemcpyToArrayAsync_ptsz),
    RP_HOOK_ENTRY(cudaMemcpyFromArray),
    RP_HOOK_ENTRY(cudaMemcpyFromArray_ptds),
    RP_HOOK_ENTRY(cudaMemcpyFromArrayAsync),
    RP_HOOK_ENTRY(cudaMemcpyFromArrayAsync_ptsz),
    RP_HOOK_ENTRY(cudaMemcpy2DToArray),
    RP_HOOK_ENTRY(cudaMemcpy2DToArray_ptds),
    RP_HOOK_ENTRY(cudaMemcpy2DToArrayAsync),
    RP_HOOK_ENTRY(cudaMemcpy2DToArrayAsync_ptsz),
    RP_HOOK_ENTRY(cudaMemcpy2DFromArray),
    RP_HOOK_ENTRY(cudaMemcpy2DFromArray_ptds),
    RP_HOOK_ENTRY(cudaMemcpy2DFromArrayAsync),
    RP_HOOK_ENTRY(cudaMemcpy2DFromArrayAsync_ptsz),
    RP_HOOK_ENTRY(cudaMemcpyToSymbol),
    RP_HOOK_ENTRY(cudaMemcpyToSymbol_ptds),
    RP_HOOK_ENTRY(cudaMemcpyToSymbolAsync),
    RP_HOOK_ENTRY(cudaMemcpyToSymbolAsync_ptsz),
    RP_HOOK_ENTRY(cudaMemcpyFromSymbol),
    RP_HOOK_ENTRY(cudaMemcpyFromSymbol_ptds),
    RP_HOOK_ENTRY(cudaMemcpyFromSymbolAsync),
    RP_HOOK_ENTRY(cudaMemcpyFromSymbolAsync_ptsz),
    RP_HOOK_ENTRY(cuMemcpyDtoA_v2),
    RP_HOOK_ENTRY(cuMemcpyDtoA_v2_ptds),
    RP_HOOK_ENTRY(cuMemcpyAtoD_v2),
    RP_HOOK_ENTRY(cuMemcpyAtoD_v2_ptds),
    RP_HOOK_ENTRY(cudaMemset3D),
    RP_HOOK_ENTRY(cudaMemset3D_ptds),
    RP_HOOK_ENTRY(cudaMemset3DAsync),
    RP_HOOK_ENTRY(cudaMemset3DAsync_ptsz),
    RP_HOOK_ENTRY(cuMemsetD2D8_v2),
    RP_HOOK_ENTRY(cuMemsetD2D8_v2_ptds),
    RP_HOOK_ENTRY(cuMemsetD2D16_v2),
    RP_HOOK_ENTRY(cuMemsetD2D16_v2_ptds),
    RP_HOOK_ENTRY(cuMemsetD2D32_v2),
    RP_HOOK_ENTRY(cuMemsetD2D32_v2_ptds),
    RP_HOOK_ENTRY(cuMemsetD2D8Async),
    RP_HOOK_ENTRY(cuMemsetD2D8Async_ptsz),
    RP_HOOK_ENTRY(cuMemsetD2D16Async),
    RP_HOOK_ENTRY(cuMemsetD2D16Async_ptsz),
    RP_HOOK_ENTRY(cuMemsetD2D32Async),
    RP_HOOK_ENTRY(cuMemsetD2D32Async_ptsz),
    RP_HOOK_ENTRY(cuStreamWriteValue32),
    RP_HOOK_ENTRY(cuStreamWriteValue32_ptsz),
    RP_HOOK_ENTRY(cuStreamWriteValue32_v2),
    RP_HOOK_ENTRY(cuStreamWriteValue32_v2_ptsz),
    RP_HOOK_ENTRY(cuStreamWriteValue64),
    RP_HOOK_ENTRY(cuStreamWriteValue64_ptsz),
    RP_HOOK_ENTRY(cuStreamWriteValue64_v2),
    RP_HOOK_ENTRY(cuStreamWriteValue64_v2_ptsz),
    RP_HOOK_ENTRY(cuStreamWaitValue32),
    RP_HOOK_ENTRY(cuStreamWaitValue32_ptsz),
    RP_HOOK_ENTRY(cuStreamWaitValue32_v2),
    RP_HOOK_ENTRY(cuStreamWaitValue32_v2_ptsz),
    RP_HOOK_ENTRY(cuStreamWaitValue64),
    RP_HOOK_ENTRY(cuStreamWaitValue64_ptsz),
    RP_HOOK_ENTRY(cuStreamWaitValue64_v2),
    RP_HOOK_ENTRY(cuStreamWaitValue64_v2_ptsz),
    RP_HOOK_ENTRY(cudaMemcpyBatchAsync),
    RP_HOOK_ENTRY(cudaMemcpyBatchAsync_ptsz),
    RP_HOOK_ENTRY(cudaMemcpy3DBatchAsync),
    RP_HOOK_ENTRY(cudaMemcpy3DBatchAsync_ptsz),
    RP_HOOK_ENTRY(cuMemcpyBatchAsync),
    RP_HOOK_ENTRY(cuMemcpyBatchAsync_ptsz),
    RP_HOOK_ENTRY(cuMemcpyBatchAsync_v2),
    RP_HOOK_ENTRY(cuMemcpyBatchAsync_v2_ptsz),
    RP_HOOK_ENTRY(cuMemcpy3DBatchAsync),
    RP_HOOK_ENTRY(cuMemcpy3DBatchAsync_ptsz),
    RP_HOOK_ENTRY(cuMemcpy3DBatchAsync_v2),
    RP_HOOK_ENTRY(cuMemcpy3DBatchAsync_v2_ptsz),
    RP_HOOK_ENTRY(cuStreamBatchMemOp),
    RP_HOOK_ENTRY(cuStreamBatchMemOp_ptsz),
    RP_HOOK_ENTRY(cuStreamBatchMemOp_v2),
    RP_HOOK_ENTRY(cuStreamBatchMemOp_v2_ptsz),
};
const size_t rp_hooks_shapes_count = sizeof rp_hooks_shapes / sizeof rp_hooks_shapes[0];
