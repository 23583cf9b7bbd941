/* Copies and memsets; see hooks_work.c. */
#include <stddef.h>
#include <stdint.h>

#include "agent/abi.h"
#include "agent/agent.h"
#include "agent/enforce.h"
#include "agent/hooks.h"
#include "agent/hooks_work.h"
#include "agent/state.h"

void rp__take_op(struct rp_hook_work *call, const struct rp_cuda_op *op, bool waits) {
  if (!rp_hook_work_tells(call)) return;
  const struct rp_cuda_work order = {.kind = waits ? RP_CUDA_COPY_SYNC : RP_CUDA_LAUNCH,
                                     .stream = op->stream,
                                     .to = op->address,
                                     .from = op->source};
  uint64_t started = rp_cost_begin();
  call->hit = rp_agent_copy(op, &call->work);
  rp__work_begin(call, &order);
  rp_cost_end(started);
}

static void take_copy(struct rp_hook_work *call, bool waits, const void *to, uint64_t to_bytes,
                      const void *from, uint64_t from_bytes, uint64_t stream) {
  const struct rp_cuda_op op = {.kind = RP_EVENT_COPY_READ,
                                .address = (uint64_t)(uintptr_t)to,
                                .bytes = to_bytes,
                                .source = (uint64_t)(uintptr_t)from,
                                .source_bytes = from_bytes,
                                .stream = stream};
  rp__take_op(call, &op, waits);
}

static void take_memset(struct rp_hook_work *call, const void *to, uint64_t bytes, uint64_t stream) {
  const struct rp_cuda_op op = {
      .kind = RP_EVENT_MEMSET, .address = (uint64_t)(uintptr_t)to, .bytes = bytes, .stream = stream};
  rp__take_op(call, &op, false);
}

static uint64_t span(uint64_t pitch, uint64_t width, uint64_t height) {
  return width && height ? (height - 1) * pitch + width : 0;
}

/* ---- copies ---- */

#define COPY(name, per_thread)                                                                               \
  RP_HOOK_WORK(name, (void *to, const void *from, size_t bytes, int kind), (to, from, bytes, kind),          \
               take_copy(&call, true, to, bytes, from, bytes, rp_hook_stream(NULL, per_thread)))
#define COPY_ASYNC(name, per_thread)                                                                         \
  RP_HOOK_WORK(name, (void *to, const void *from, size_t bytes, int kind, void *stream),                     \
               (to, from, bytes, kind, stream),                                                              \
               take_copy(&call, false, to, bytes, from, bytes, rp_hook_stream(stream, per_thread)))
#define COPY_2D_ASYNC(name, per_thread)                                                                      \
  RP_HOOK_WORK(name,                                                                                         \
               (void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height, \
                int kind, void *stream),                                                                     \
               (to, to_pitch, from, from_pitch, width, height, kind, stream),                                \
               take_copy(&call, false, to, span(to_pitch, width, height), from,                              \
                         span(from_pitch, width, height), rp_hook_stream(stream, per_thread)))
#define COPY_2D(name, per_thread)                                                                            \
  RP_HOOK_WORK(name,                                                                                         \
               (void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height, \
                int kind),                                                                                   \
               (to, to_pitch, from, from_pitch, width, height, kind),                                        \
               take_copy(&call, true, to, span(to_pitch, width, height), from,                               \
                         span(from_pitch, width, height), rp_hook_stream(NULL, per_thread)))
#define COPY_PEER(name)                                                                                      \
  RP_HOOK_WORK(name, (void *to, int to_device, const void *from, int from_device, size_t bytes),             \
               (to, to_device, from, from_device, bytes),                                                    \
               take_copy(&call, false, to, bytes, from, bytes, RP_STREAM_LEGACY))
#define COPY_PEER_ASYNC(name, per_thread)                                                                    \
  RP_HOOK_WORK(name,                                                                                         \
               (void *to, int to_device, const void *from, int from_device, size_t bytes, void *stream),     \
               (to, to_device, from, from_device, bytes, stream),                                            \
               take_copy(&call, false, to, bytes, from, bytes, rp_hook_stream(stream, per_thread)))
#define DRIVER_COPY(name, per_thread)                                                                        \
  RP_HOOK_WORK(name, (uint64_t to, uint64_t from, size_t bytes), (to, from, bytes),                          \
               take_copy(&call, true, (void *)(uintptr_t)to, bytes, (void *)(uintptr_t)from, bytes,          \
                         rp_hook_stream(NULL, per_thread)))
#define DRIVER_COPY_ASYNC(name, per_thread)                                                                  \
  RP_HOOK_WORK(name, (uint64_t to, uint64_t from, size_t bytes, void *stream), (to, from, bytes, stream),    \
               take_copy(&call, false, (void *)(uintptr_t)to, bytes, (void *)(uintptr_t)from, bytes,         \
                         rp_hook_stream(stream, per_thread)))

COPY(cudaMemcpy, 0)
COPY(cudaMemcpy_ptds, 1)
COPY_ASYNC(cudaMemcpyAsync, 0)
COPY_ASYNC(cudaMemcpyAsync_ptsz, 1)
COPY_2D_ASYNC(cudaMemcpy2DAsync, 0)
COPY_2D_ASYNC(cudaMemcpy2DAsync_ptsz, 1)
COPY_2D(cudaMemcpy2D, 0)
COPY_2D(cudaMemcpy2D_ptds, 1)
COPY_PEER(cudaMemcpyPeer)
COPY_PEER_ASYNC(cudaMemcpyPeerAsync, 0)
DRIVER_COPY(cuMemcpy, 0)
DRIVER_COPY(cuMemcpyHtoD_v2, 0)
DRIVER_COPY(cuMemcpyDtoH_v2, 0)
DRIVER_COPY(cuMemcpyDtoD_v2, 0)
DRIVER_COPY(cuMemcpy_ptds, 1)
DRIVER_COPY(cuMemcpyHtoD_v2_ptds, 1)
DRIVER_COPY(cuMemcpyDtoH_v2_ptds, 1)
DRIVER_COPY(cuMemcpyDtoD_v2_ptds, 1)
DRIVER_COPY_ASYNC(cuMemcpyAsync, 0)
DRIVER_COPY_ASYNC(cuMemcpyAsync_ptsz, 1)
DRIVER_COPY_ASYNC(cuMemcpyHtoDAsync_v2, 0)
DRIVER_COPY_ASYNC(cuMemcpyHtoDAsync_v2_ptsz, 1)
DRIVER_COPY_ASYNC(cuMemcpyDtoHAsync_v2, 0)
DRIVER_COPY_ASYNC(cuMemcpyDtoHAsync_v2_ptsz, 1)
DRIVER_COPY_ASYNC(cuMemcpyDtoDAsync_v2, 0)
DRIVER_COPY_ASYNC(cuMemcpyDtoDAsync_v2_ptsz, 1)

/* ---- memsets ---- */

#define SET(name, per_thread)                                                                                \
  RP_HOOK_WORK(name, (void *to, int value, size_t bytes), (to, value, bytes),                                \
               take_memset(&call, to, bytes, rp_hook_stream(NULL, per_thread)))
#define SET_ASYNC(name, per_thread)                                                                          \
  RP_HOOK_WORK(name, (void *to, int value, size_t bytes, void *stream), (to, value, bytes, stream),          \
               take_memset(&call, to, bytes, rp_hook_stream(stream, per_thread)))
#define DRIVER_SET_ASYNC(name, type, per_thread)                                                             \
  RP_HOOK_WORK(name, (uint64_t to, type value, size_t elements, void *stream),                               \
               (to, value, elements, stream),                                                                \
               take_memset(&call, (void *)(uintptr_t)to, elements * sizeof value,                            \
                           rp_hook_stream(stream, per_thread)))

#define SET_2D(name, per_thread)                                                                             \
  RP_HOOK_WORK(name, (void *to, size_t pitch, int value, size_t width, size_t height),                       \
               (to, pitch, value, width, height),                                                            \
               take_memset(&call, to, span(pitch, width, height), rp_hook_stream(NULL, per_thread)))
#define SET_2D_ASYNC(name, per_thread)                                                                       \
  RP_HOOK_WORK(name, (void *to, size_t pitch, int value, size_t width, size_t height, void *stream),         \
               (to, pitch, value, width, height, stream),                                                    \
               take_memset(&call, to, span(pitch, width, height), rp_hook_stream(stream, per_thread)))
#define DRIVER_SET(name, type, per_thread)                                                                   \
  RP_HOOK_WORK(                                                                                              \
      name, (uint64_t to, type value, size_t elements), (to, value, elements),                               \
      take_memset(&call, (void *)(uintptr_t)to, elements * sizeof value, rp_hook_stream(NULL, per_thread)))

SET(cudaMemset, 0)
SET(cudaMemset_ptds, 1)
SET_ASYNC(cudaMemsetAsync, 0)
SET_ASYNC(cudaMemsetAsync_ptsz, 1)
SET_2D(cudaMemset2D, 0)
SET_2D(cudaMemset2D_ptds, 1)
SET_2D_ASYNC(cudaMemset2DAsync, 0)
SET_2D_ASYNC(cudaMemset2DAsync_ptsz, 1)
DRIVER_SET(cuMemsetD8_v2, unsigned char, 0)
DRIVER_SET(cuMemsetD8_v2_ptds, unsigned char, 1)
DRIVER_SET_ASYNC(cuMemsetD8Async, unsigned char, 0)
DRIVER_SET_ASYNC(cuMemsetD8Async_ptsz, unsigned char, 1)
DRIVER_SET(cuMemsetD16_v2, unsigned short, 0)
DRIVER_SET(cuMemsetD16_v2_ptds, unsigned short, 1)
DRIVER_SET_ASYNC(cuMemsetD16Async, unsigned short, 0)
DRIVER_SET_ASYNC(cuMemsetD16Async_ptsz, unsigned short, 1)
DRIVER_SET(cuMemsetD32_v2, unsigned, 0)
DRIVER_SET(cuMemsetD32_v2_ptds, unsigned, 1)
DRIVER_SET_ASYNC(cuMemsetD32Async, unsigned, 0)
DRIVER_SET_ASYNC(cuMemsetD32Async_ptsz, unsigned, 1)

const struct rp_hook rp_hooks_copies[] = {
    RP_HOOK_ENTRY(cudaMemcpy),
    RP_HOOK_ENTRY(cudaMemcpy_ptds),
    RP_HOOK_ENTRY(cudaMemcpyAsync),
    RP_HOOK_ENTRY(cudaMemcpyAsync_ptsz),
    RP_HOOK_ENTRY(cudaMemcpy2DAsync),
    RP_HOOK_ENTRY(cudaMemcpy2DAsync_ptsz),
    RP_HOOK_ENTRY(cudaMemcpy2D),
    RP_HOOK_ENTRY(cudaMemcpy2D_ptds),
    RP_HOOK_ENTRY(cudaMemcpyPeer),
    RP_HOOK_ENTRY(cudaMemcpyPeerAsync),
    RP_HOOK_ENTRY(cuMemcpy),
    RP_HOOK_ENTRY(cuMemcpyHtoD_v2),
    RP_HOOK_ENTRY(cuMemcpyDtoH_v2),
    RP_HOOK_ENTRY(cuMemcpyDtoD_v2),
    RP_HOOK_ENTRY(cuMemcpy_ptds),
    RP_HOOK_ENTRY(cuMemcpyHtoD_v2_ptds),
    RP_HOOK_ENTRY(cuMemcpyDtoH_v2_ptds),
    RP_HOOK_ENTRY(cuMemcpyDtoD_v2_ptds),
    RP_HOOK_ENTRY(cuMemcpyAsync),
    RP_HOOK_ENTRY(cuMemcpyAsync_ptsz),
    RP_HOOK_ENTRY(cuMemcpyHtoDAsync_v2),
    RP_HOOK_ENTRY(cuMemcpyHtoDAsync_v2_ptsz),
    RP_HOOK_ENTRY(cuMemcpyDtoHAsync_v2),
    RP_HOOK_ENTRY(cuMemcpyDtoHAsync_v2_ptsz),
    RP_HOOK_ENTRY(cuMemcpyDtoDAsync_v2),
    RP_HOOK_ENTRY(cuMemcpyDtoDAsync_v2_ptsz),
    RP_HOOK_ENTRY(cudaMemset),
    RP_HOOK_ENTRY(cudaMemset_ptds),
    RP_HOOK_ENTRY(cudaMemsetAsync),
    RP_HOOK_ENTRY(cudaMemsetAsync_ptsz),
    RP_HOOK_ENTRY(cudaMemset2D),
    RP_HOOK_ENTRY(cudaMemset2D_ptds),
    RP_HOOK_ENTRY(cudaMemset2DAsync),
    RP_HOOK_ENTRY(cudaMemset2DAsync_ptsz),
    RP_HOOK_ENTRY(cuMemsetD8_v2),
    RP_HOOK_ENTRY(cuMemsetD8_v2_ptds),
    RP_HOOK_ENTRY(cuMemsetD8Async),
    RP_HOOK_ENTRY(cuMemsetD8Async_ptsz),
    RP_HOOK_ENTRY(cuMemsetD16_v2),
    RP_HOOK_ENTRY(cuMemsetD16_v2_ptds),
    RP_HOOK_ENTRY(cuMemsetD16Async),
    RP_HOOK_ENTRY(cuMemsetD16Async_ptsz),
    RP_HOOK_ENTRY(cuMemsetD32_v2),
    RP_HOOK_ENTRY(cuMemsetD32_v2_ptds),
    RP_HOOK_ENTRY(cuMemsetD32Async),
    RP_HOOK_ENTRY(cuMemsetD32Async_ptsz),
};
const size_t rp_hooks_copies_count = sizeof rp_hooks_copies / sizeof rp_hooks_copies[0];
