/* CUPTI callbacks to plain operations: launches, copies, memsets and memory. Owns the table of driver
 * callback ids: which are taken, at which side of the call, and what their parameter structs mean. Nothing
 * here calls CUDA. */
#include "cupti/callbacks.h"

#include <cuda.h>
#include <string.h>

#include "cupti/callbacks_internal.h"

static void tell(const struct rp_taken *call, enum rp_event_kind kind, uint64_t address, uint64_t bytes,
                 uint64_t stream, uint64_t aux) {
  const struct rp_cuda_op op = {
      .kind = kind, .address = address, .bytes = bytes, .stream = stream, .aux = aux};
  call->sink->op(&op);
}

/* Work that is no launch. */
static void tell_work(const struct rp_taken *call, const struct rp_cuda_op *op) {
  call->work->stream = op->stream;
  *call->matters = true;
  if (call->phase == RP_BEGINS)
    call->sink->op(op);
  else if (call->phase == RP_DONE)
    call->sink->op_done(op);
}

static void tell_copy(const struct rp_taken *call, uint64_t to, uint64_t from, uint64_t to_bytes,
                      uint64_t from_bytes, CUstream stream) {
  const struct rp_cuda_op op = {.kind = RP_EVENT_COPY_READ,
                                .address = to,
                                .bytes = to_bytes,
                                .source = from,
                                .source_bytes = from_bytes,
                                .stream = rp_normal_stream(stream, call->per_thread)};
  tell_work(call, &op);
}

/* A copy of the synchronous family: addresses of both sides, the host's too. */
static void is_sync_copy(const struct rp_taken *call, uint64_t to, uint64_t from) {
  call->work->kind = RP_CUDA_COPY_SYNC;
  call->work->to = to;
  call->work->from = from;
}

static void tell_memset(const struct rp_taken *call, uint64_t to, uint64_t bytes, CUstream stream) {
  const struct rp_cuda_op op = {.kind = RP_EVENT_MEMSET,
                                .address = to,
                                .bytes = bytes,
                                .stream = rp_normal_stream(stream, call->per_thread)};
  tell_work(call, &op);
}

/* ---- launches ---- */

static void take_launch(const struct rp_taken *call, const struct rp_cuda_launch *given) {
  struct rp_cuda_launch launch = *given;
  struct rp_launch_words words;
  launch.symbol = call->data->symbolName;
  call->work->stream = launch.stream;
  call->work->event_flags = launch.event_flags;
  *call->matters = launch.stream == RP_STREAM_LEGACY || (launch.event_flags & RP_LAUNCH_RECORDS);
  if (call->phase == RP_ENDS || (call->phase == RP_BEGINS && !call->sink->launch_begun())) return;
  if (!rp_launch_scan(&launch, &call->sink->filter, &words)) return;
  *call->matters = true;
  if (call->phase == RP_BEGINS)
    call->sink->launch_hit(&launch, &words);
  else
    call->sink->launch_done(&launch, &words);
}

static void on_launch(const struct rp_taken *call) {
  const cuLaunchKernel_params *p = call->params;
  take_launch(call, &(struct rp_cuda_launch){.function = (uint64_t)(uintptr_t)p->f,
                                             .stream = rp_normal_stream(p->hStream, call->per_thread),
                                             .params = p->kernelParams,
                                             .extra = p->extra,
                                             .grid = {p->gridDimX, p->gridDimY, p->gridDimZ}});
}

static void on_launch_ex(const struct rp_taken *call) {
  const cuLaunchKernelEx_params *p = call->params;
  struct rp_cuda_launch launch = {
      .function = (uint64_t)(uintptr_t)p->f, .params = p->kernelParams, .extra = p->extra};
  CUstream stream = (CUstream)(uintptr_t)rp_driver_config_stream(p->config, &launch.event_flags);
  launch.stream = rp_normal_stream(stream, call->per_thread);
  rp_driver_config_grid(p->config, launch.grid);
  call->work->driver_config = p->config;
  take_launch(call, &launch);
}

static void on_launch_cooperative(const struct rp_taken *call) {
  const cuLaunchCooperativeKernel_params *p = call->params;
  take_launch(call, &(struct rp_cuda_launch){.function = (uint64_t)(uintptr_t)p->f,
                                             .stream = rp_normal_stream(p->hStream, call->per_thread),
                                             .params = p->kernelParams,
                                             .grid = {p->gridDimX, p->gridDimY, p->gridDimZ}});
}

static void on_graph_launch(const struct rp_taken *call) {
  const cuGraphLaunch_params *p = call->params;
  const struct rp_cuda_op op = {.kind = RP_EVENT_GRAPH_LAUNCH,
                                .stream = rp_normal_stream(p->hStream, call->per_thread),
                                .aux = (uint64_t)(uintptr_t)p->hGraph};
  call->work->kind = RP_CUDA_GRAPH_LAUNCH;
  call->work->graph = op.aux;
  tell_work(call, &op);
}

/* Host functions, callbacks, and waits for values in memory: the parameters of all begin with the stream. */
static void on_outside(const struct rp_taken *call) {
  const cuLaunchHostFunc_params *p = call->params;
  call->work->outside = true;
  call->work->stream = rp_normal_stream(p->hStream, call->per_thread);
  *call->matters = true;
}

/* ---- allocations: told after the call, and only if it succeeded ---- */

static void tell_alloc(const struct rp_taken *call, const CUdeviceptr *address, uint64_t bytes,
                       enum rp_alloc_api api) {
  if (address && *address) tell(call, RP_EVENT_ALLOC, *address, bytes, 0, api);
}

static void on_alloc(const struct rp_taken *call) {
  const cuMemAlloc_v2_params *p = call->params;
  tell_alloc(call, p->dptr, p->bytesize, RP_ALLOC_MALLOC);
}

static void on_alloc_pitch(const struct rp_taken *call) {
  const cuMemAllocPitch_v2_params *p = call->params;
  if (p->pPitch) tell_alloc(call, p->dptr, *p->pPitch * p->Height, RP_ALLOC_MALLOC);
}

static void on_alloc_managed(const struct rp_taken *call) {
  const cuMemAllocManaged_params *p = call->params;
  tell_alloc(call, p->dptr, p->bytesize, RP_ALLOC_MANAGED);
}

static void on_alloc_async(const struct rp_taken *call) {
  const cuMemAllocAsync_params *p = call->params;
  tell_alloc(call, p->dptr, p->bytesize, RP_ALLOC_ASYNC);
}

static void on_alloc_from_pool(const struct rp_taken *call) {
  const cuMemAllocFromPoolAsync_params *p = call->params;
  tell_alloc(call, p->dptr, p->bytesize, RP_ALLOC_ASYNC);
}

static void on_map(const struct rp_taken *call) {
  const cuMemMap_params *p = call->params;
  tell(call, RP_EVENT_ALLOC, p->ptr, p->size, 0, RP_ALLOC_VMM);
}

static void on_free(const struct rp_taken *call) {
  const cuMemFree_v2_params *p = call->params;
  if (p->dptr) tell(call, RP_EVENT_FREE, p->dptr, 0, 0, RP_ALLOC_MALLOC);
}

static void on_free_async(const struct rp_taken *call) {
  const cuMemFreeAsync_params *p = call->params;
  if (p->dptr)
    tell(call, RP_EVENT_FREE, p->dptr, 0, rp_normal_stream(p->hStream, call->per_thread), RP_ALLOC_ASYNC);
}

static void on_unmap(const struct rp_taken *call) {
  const cuMemUnmap_params *p = call->params;
  tell(call, RP_EVENT_FREE, p->ptr, p->size, 0, RP_ALLOC_VMM);
}

/* ---- copies ---- */

static void on_copy_async(const struct rp_taken *call) {
  const cuMemcpyAsync_params *p = call->params;
  tell_copy(call, p->dst, p->src, p->ByteCount, p->ByteCount, p->hStream);
}

static void on_copy_htod_async(const struct rp_taken *call) {
  const cuMemcpyHtoDAsync_v2_params *p = call->params;
  tell_copy(call, p->dstDevice, 0, p->ByteCount, 0, p->hStream);
}

static void on_copy_dtoh_async(const struct rp_taken *call) {
  const cuMemcpyDtoHAsync_v2_params *p = call->params;
  tell_copy(call, 0, p->srcDevice, 0, p->ByteCount, p->hStream);
}

static void on_copy_dtod_async(const struct rp_taken *call) {
  const cuMemcpyDtoDAsync_v2_params *p = call->params;
  tell_copy(call, p->dstDevice, p->srcDevice, p->ByteCount, p->ByteCount, p->hStream);
}

static void on_copy_peer_async(const struct rp_taken *call) {
  const cuMemcpyPeerAsync_params *p = call->params;
  tell_copy(call, p->dstDevice, p->srcDevice, p->ByteCount, p->ByteCount, p->hStream);
}

static void on_copy(const struct rp_taken *call) {
  const cuMemcpy_params *p = call->params;
  is_sync_copy(call, p->dst, p->src);
  tell_copy(call, p->dst, p->src, p->ByteCount, p->ByteCount, NULL);
}

static void on_copy_htod(const struct rp_taken *call) {
  const cuMemcpyHtoD_v2_params *p = call->params;
  is_sync_copy(call, p->dstDevice, (uintptr_t)p->srcHost);
  tell_copy(call, p->dstDevice, 0, p->ByteCount, 0, NULL);
}

static void on_copy_dtoh(const struct rp_taken *call) {
  const cuMemcpyDtoH_v2_params *p = call->params;
  is_sync_copy(call, (uintptr_t)p->dstHost, p->srcDevice);
  tell_copy(call, 0, p->srcDevice, 0, p->ByteCount, NULL);
}

static void on_copy_dtod(const struct rp_taken *call) {
  const cuMemcpyDtoD_v2_params *p = call->params;
  is_sync_copy(call, p->dstDevice, p->srcDevice);
  tell_copy(call, p->dstDevice, p->srcDevice, p->ByteCount, p->ByteCount, NULL);
}

static void on_copy_peer(const struct rp_taken *call) {
  const cuMemcpyPeer_params *p = call->params;
  is_sync_copy(call, p->dstDevice, p->srcDevice);
  tell_copy(call, p->dstDevice, p->srcDevice, p->ByteCount, p->ByteCount, NULL);
}

/* Bytes from the first to behind the last byte of a pitched box. */
static uint64_t span(uint64_t pitch, uint64_t width, uint64_t rows) {
  return rows == 0 || width == 0 ? 0 : (rows - 1) * (pitch ? pitch : width) + width;
}

/* A copy that a struct describes; `shape` reads it. */
static void take_shape(const struct rp_taken *call, bool (*shape)(const void *, struct rp_cuda_op *),
                       const void *copy, CUstream stream, bool waits) {
  struct rp_cuda_op op;
  if (!shape(copy, &op)) return;
  if (waits) is_sync_copy(call, op.address, op.source);
  tell_copy(call, op.address, op.source, op.bytes, op.source_bytes, stream);
}

#define SHAPED(handler, shape, type, stream, waits)                                                          \
  static void handler(const struct rp_taken *call) {                                                         \
    const type *p = call->params;                                                                            \
    take_shape(call, shape, p->pCopy, stream, waits);                                                        \
  }
SHAPED(on_copy_2d_async, rp_shape_copy_2d, cuMemcpy2DAsync_v2_params, p->hStream, false)
SHAPED(on_copy_2d, rp_shape_copy_2d, cuMemcpy2D_v2_params, NULL, true)
SHAPED(on_copy_3d_async, rp_shape_copy_3d, cuMemcpy3DAsync_v2_params, p->hStream, false)
SHAPED(on_copy_3d, rp_shape_copy_3d, cuMemcpy3D_v2_params, NULL, true)
SHAPED(on_copy_3d_peer_async, rp_shape_copy_3d_peer, cuMemcpy3DPeerAsync_params, p->hStream, false)
SHAPED(on_copy_3d_peer, rp_shape_copy_3d_peer, cuMemcpy3DPeer_params, NULL, true)
#undef SHAPED

static void take_copy_3d_batch(const struct rp_taken *call, const void *list, size_t count, CUstream stream) {
  struct rp_cuda_op op;
  for (size_t i = 0; i < count && rp_shape_copy_3d_batch(list, i, &op); i++)
    tell_copy(call, op.address, op.source, op.bytes, op.source_bytes, stream);
}

static void on_copy_3d_batch(const struct rp_taken *call) {
  const cuMemcpy3DBatchAsync_params *p = call->params;
  take_copy_3d_batch(call, p->opList, p->numOps, p->hStream);
}

static void on_copy_3d_batch_v2(const struct rp_taken *call) {
  const cuMemcpy3DBatchAsync_v2_params *p = call->params;
  take_copy_3d_batch(call, p->opList, p->numOps, p->hStream);
}

static void on_copy_batch(const struct rp_taken *call) {
  const cuMemcpyBatchAsync_params *p = call->params;
  for (size_t i = 0; p->dsts && p->srcs && p->sizes && i < p->count; i++)
    tell_copy(call, p->dsts[i], p->srcs[i], p->sizes[i], p->sizes[i], p->hStream);
}

static void on_copy_batch_v2(const struct rp_taken *call) {
  const cuMemcpyBatchAsync_v2_params *p = call->params;
  for (size_t i = 0; p->dsts && p->srcs && p->sizes && i < p->count; i++)
    tell_copy(call, p->dsts[i], p->srcs[i], p->sizes[i], p->sizes[i], p->hStream);
}

/* ---- memsets: one handler per element size and shape ---- */

#define MEMSET_HANDLERS(bits)                                                                                \
  static void on_memset_##bits##_async(const struct rp_taken *call) {                                        \
    const cuMemsetD##bits##Async_params *p = call->params;                                                   \
    tell_memset(call, p->dstDevice, p->N *(bits / 8), p->hStream);                                           \
  }                                                                                                          \
  static void on_memset_##bits(const struct rp_taken *call) {                                                \
    const cuMemsetD##bits##_v2_params *p = call->params;                                                     \
    tell_memset(call, p->dstDevice, p->N *(bits / 8), NULL);                                                 \
  }                                                                                                          \
  static void on_memset_2d_##bits##_async(const struct rp_taken *call) {                                     \
    const cuMemsetD2D##bits##Async_params *p = call->params;                                                 \
    tell_memset(call, p->dstDevice, span(p->dstPitch, p->Width *(bits / 8), p->Height), p->hStream);         \
  }                                                                                                          \
  static void on_memset_2d_##bits(const struct rp_taken *call) {                                             \
    const cuMemsetD2D##bits##_v2_params *p = call->params;                                                   \
    tell_memset(call, p->dstDevice, span(p->dstPitch, p->Width *(bits / 8), p->Height), NULL);               \
  }
MEMSET_HANDLERS(8)
MEMSET_HANDLERS(16)
MEMSET_HANDLERS(32)
#undef MEMSET_HANDLERS

/* ---- code ---- */

static void on_library_unload(const struct rp_taken *call) {
  (void)call;
  rp_launch_invalidate();
}

/* ---- the table ---- */

#define PLAIN RP_PLAIN
#define TWINS RP_TWINS
#define BEFORE RP_BEFORE
#define AFTER_SUCCESS RP_AFTER_SUCCESS
#define WORK RP_WORK

static const struct rp_wanted wanted[] = {
    TWINS(cuLaunchKernel, _ptsz, WORK, on_launch),
    TWINS(cuLaunchKernelEx, _ptsz, WORK, on_launch_ex),
    TWINS(cuLaunchCooperativeKernel, _ptsz, WORK, on_launch_cooperative),
    TWINS(cuGraphLaunch, _ptsz, WORK, on_graph_launch),
    TWINS(cuLaunchHostFunc, _ptsz, WORK, on_outside),
    TWINS(cuStreamAddCallback, _ptsz, WORK, on_outside),
    TWINS(cuStreamWaitValue32, _ptsz, WORK, on_outside),
    TWINS(cuStreamWaitValue64, _ptsz, WORK, on_outside),
    TWINS(cuStreamBatchMemOp, _ptsz, WORK, on_outside),
    TWINS(cuStreamWaitValue32_v2, _ptsz, WORK, on_outside),
    TWINS(cuStreamWaitValue64_v2, _ptsz, WORK, on_outside),
    TWINS(cuStreamBatchMemOp_v2, _ptsz, WORK, on_outside),
    PLAIN(cuMemAlloc_v2, AFTER_SUCCESS, on_alloc),
    PLAIN(cuMemAllocPitch_v2, AFTER_SUCCESS, on_alloc_pitch),
    PLAIN(cuMemAllocManaged, AFTER_SUCCESS, on_alloc_managed),
    TWINS(cuMemAllocAsync, _ptsz, AFTER_SUCCESS, on_alloc_async),
    TWINS(cuMemAllocFromPoolAsync, _ptsz, AFTER_SUCCESS, on_alloc_from_pool),
    PLAIN(cuMemMap, AFTER_SUCCESS, on_map),
    PLAIN(cuMemFree_v2, BEFORE, on_free),
    TWINS(cuMemFreeAsync, _ptsz, BEFORE, on_free_async),
    PLAIN(cuMemUnmap, BEFORE, on_unmap),
    TWINS(cuMemcpyAsync, _ptsz, WORK, on_copy_async),
    TWINS(cuMemcpyHtoDAsync_v2, _ptsz, WORK, on_copy_htod_async),
    TWINS(cuMemcpyDtoHAsync_v2, _ptsz, WORK, on_copy_dtoh_async),
    TWINS(cuMemcpyDtoDAsync_v2, _ptsz, WORK, on_copy_dtod_async),
    TWINS(cuMemcpyPeerAsync, _ptsz, WORK, on_copy_peer_async),
    TWINS(cuMemcpy2DAsync_v2, _ptsz, WORK, on_copy_2d_async),
    TWINS(cuMemcpy3DAsync_v2, _ptsz, WORK, on_copy_3d_async),
    TWINS(cuMemcpy3D_v2, _ptds, WORK, on_copy_3d),
    TWINS(cuMemcpy3DPeerAsync, _ptsz, WORK, on_copy_3d_peer_async),
    TWINS(cuMemcpy3DPeer, _ptds, WORK, on_copy_3d_peer),
    TWINS(cuMemcpy3DBatchAsync, _ptsz, WORK, on_copy_3d_batch),
    TWINS(cuMemcpy3DBatchAsync_v2, _ptsz, WORK, on_copy_3d_batch_v2),
    TWINS(cuMemcpy, _ptds, WORK, on_copy),
    TWINS(cuMemcpyHtoD_v2, _ptds, WORK, on_copy_htod),
    TWINS(cuMemcpyDtoH_v2, _ptds, WORK, on_copy_dtoh),
    TWINS(cuMemcpyDtoD_v2, _ptds, WORK, on_copy_dtod),
    TWINS(cuMemcpyPeer, _ptds, WORK, on_copy_peer),
    TWINS(cuMemcpy2D_v2, _ptds, WORK, on_copy_2d),
    PLAIN(cuMemcpy2DUnaligned_v2, WORK, on_copy_2d),
    TWINS(cuMemcpyBatchAsync, _ptsz, WORK, on_copy_batch),
    TWINS(cuMemcpyBatchAsync_v2, _ptsz, WORK, on_copy_batch_v2),
    TWINS(cuMemsetD8Async, _ptsz, WORK, on_memset_8_async),
    TWINS(cuMemsetD16Async, _ptsz, WORK, on_memset_16_async),
    TWINS(cuMemsetD32Async, _ptsz, WORK, on_memset_32_async),
    TWINS(cuMemsetD2D8Async, _ptsz, WORK, on_memset_2d_8_async),
    TWINS(cuMemsetD2D16Async, _ptsz, WORK, on_memset_2d_16_async),
    TWINS(cuMemsetD2D32Async, _ptsz, WORK, on_memset_2d_32_async),
    TWINS(cuMemsetD8_v2, _ptds, WORK, on_memset_8),
    TWINS(cuMemsetD16_v2, _ptds, WORK, on_memset_16),
    TWINS(cuMemsetD32_v2, _ptds, WORK, on_memset_32),
    TWINS(cuMemsetD2D8_v2, _ptds, WORK, on_memset_2d_8),
    TWINS(cuMemsetD2D16_v2, _ptds, WORK, on_memset_2d_16),
    TWINS(cuMemsetD2D32_v2, _ptds, WORK, on_memset_2d_32),
    PLAIN(cuLibraryUnload, BEFORE, on_library_unload),
};

#define WANTED_COUNT (sizeof wanted / sizeof wanted[0])

/* What is wanted of each callback id; filled before the first is enabled, read-only afterwards. */
static const struct rp_wanted *by_id[1024];
_Static_assert((size_t)CUPTI_DRIVER_TRACE_CBID_SIZE < sizeof by_id / sizeof by_id[0],
               "ids of these headers fit the table");

static void fill(const struct rp_wanted *table, size_t count) {
  for (size_t i = 0; i < count; i++)
    by_id[table[i].id] = &table[i];
}

void rp_callbacks_enable(void (*enable)(void *context, CUpti_CallbackDomain domain, CUpti_CallbackId id),
                         void *context, bool nvtx) {
  fill(wanted, WANTED_COUNT);
  fill(rp_wanted_order, rp_wanted_order_count);
  for (size_t id = 0; id < sizeof by_id / sizeof by_id[0]; id++)
    if (by_id[id]) enable(context, CUPTI_CB_DOMAIN_DRIVER_API, (CUpti_CallbackId)id);
  enable(context, CUPTI_CB_DOMAIN_RESOURCE, CUPTI_CBID_RESOURCE_CU_INIT_FINISHED);
  enable(context, CUPTI_CB_DOMAIN_RESOURCE, CUPTI_CBID_RESOURCE_CONTEXT_CREATED);
  enable(context, CUPTI_CB_DOMAIN_RESOURCE, CUPTI_CBID_RESOURCE_CONTEXT_DESTROY_STARTING);
  enable(context, CUPTI_CB_DOMAIN_RESOURCE, CUPTI_CBID_RESOURCE_MODULE_LOADED);
  enable(context, CUPTI_CB_DOMAIN_RESOURCE, CUPTI_CBID_RESOURCE_MODULE_UNLOAD_STARTING);
  if (!nvtx) return;
  enable(context, CUPTI_CB_DOMAIN_NVTX, CUPTI_CBID_NVTX_nvtxRangePushA);
  enable(context, CUPTI_CB_DOMAIN_NVTX, CUPTI_CBID_NVTX_nvtxRangePushEx);
  enable(context, CUPTI_CB_DOMAIN_NVTX, CUPTI_CBID_NVTX_nvtxRangePop);
  enable(context, CUPTI_CB_DOMAIN_NVTX, CUPTI_CBID_NVTX_nvtxDomainRangePushEx);
  enable(context, CUPTI_CB_DOMAIN_NVTX, CUPTI_CBID_NVTX_nvtxDomainRangePop);
}

static uint64_t context_of(const CUpti_CallbackData *data) {
  return (uint64_t)(uintptr_t)data->context;
}

/* What has to be known when the call ends goes from its begin to there in the call's own 64 bits. */
static void begin_work(const struct rp_wanted *want, struct rp_taken *call) {
  bool matters = false;
  struct rp_cuda_work work = {.context = context_of(call->data)};
  call->work = &work;
  call->matters = &matters;
  want->handle(call);
  if (matters) *call->data->correlationData = call->sink->work_begin(&work);
}

static void end_work(const struct rp_wanted *want, struct rp_taken *call, bool succeeded) {
  bool matters;
  struct rp_cuda_work work = {.context = context_of(call->data)};
  const uint64_t begun = *call->data->correlationData;
  call->work = &work;
  call->matters = &matters;
  call->phase = RP_ENDS;
  want->handle(call);
  if (succeeded && (begun & RP_CUDA_WORK_WANTED)) {
    call->sink->work_resume(&work, begun);
    call->phase = RP_DONE;
    want->handle(call);
  }
  call->sink->work_end(&work, begun, succeeded);
}

static void begin_order(const struct rp_wanted *want, struct rp_taken *call) {
  struct rp_cuda_order order = {.context = context_of(call->data)};
  if (want->order(call, &order)) *call->data->correlationData = call->sink->order_begin(&order);
}

static void end_order(const struct rp_wanted *want, struct rp_taken *call, bool succeeded) {
  struct rp_cuda_order order = {.context = context_of(call->data)};
  call->phase = RP_ENDS;
  if (want->order(call, &order)) call->sink->order_end(&order, *call->data->correlationData, succeeded);
}

/* cuCtxSynchronize has no parameters. */
static bool has_params(const struct rp_wanted *want, const CUpti_CallbackData *data) {
  return data->functionParams || want->id == RP_CBID(cuCtxSynchronize);
}

static void take_enter(const struct rp_cuda_sink *sink, const struct rp_wanted *want,
                       const CUpti_CallbackData *data) {
  const bool two_sides = want->side == RP_WORK || want->side == RP_ORDER;
  if (two_sides) *data->correlationData = 0;
  if (want->side == RP_AFTER_SUCCESS || !has_params(want, data) || !sink->enter()) return;
  struct rp_taken call = {
      .sink = sink, .data = data, .params = data->functionParams, .per_thread = want->per_thread};
  if (want->side == RP_WORK)
    begin_work(want, &call);
  else if (want->side == RP_ORDER)
    begin_order(want, &call);
  else
    want->handle(&call);
  sink->leave();
}

static void take_exit(const struct rp_cuda_sink *sink, const struct rp_wanted *want,
                      const CUpti_CallbackData *data) {
  const bool two_sides = want->side == RP_WORK || want->side == RP_ORDER;
  const CUresult *result = data->functionReturnValue;
  const bool succeeded = result && *result == CUDA_SUCCESS;
  if (want->side == RP_BEFORE || (two_sides ? *data->correlationData == 0 : !succeeded)) return;
  if (!has_params(want, data) || !sink->enter()) return;
  struct rp_taken call = {
      .sink = sink, .data = data, .params = data->functionParams, .per_thread = want->per_thread};
  if (want->side == RP_WORK)
    end_work(want, &call, succeeded);
  else if (want->side == RP_ORDER)
    end_order(want, &call, succeeded);
  else
    want->handle(&call);
  sink->leave();
}

static void take_driver(const struct rp_cuda_sink *sink, CUpti_CallbackId id,
                        const CUpti_CallbackData *data) {
  const struct rp_wanted *want = id < sizeof by_id / sizeof by_id[0] ? by_id[id] : NULL;
  if (!want) return;
  if (data->callbackSite == CUPTI_API_ENTER)
    take_enter(sink, want, data);
  else
    take_exit(sink, want, data);
}

static void context_ends(const struct rp_cuda_sink *sink, const CUpti_ResourceData *data) {
  const struct rp_cuda_order order = {.kind = RP_CUDA_CONTEXT_DESTROY,
                                      .context = (uint64_t)(uintptr_t)data->context};
  if (!sink->enter()) return;
  (void)sink->order_begin(&order);
  sink->leave();
}

static void take_resource(const struct rp_cuda_sink *sink, CUpti_CallbackId id, const void *data) {
  switch (id) {
  case CUPTI_CBID_RESOURCE_CU_INIT_FINISHED:
  case CUPTI_CBID_RESOURCE_CONTEXT_CREATED:
    sink->initialised();
    break;
  case CUPTI_CBID_RESOURCE_CONTEXT_DESTROY_STARTING:
    context_ends(sink, data);
    break;
  case CUPTI_CBID_RESOURCE_MODULE_LOADED:
    sink->code_loaded();
    break;
  case CUPTI_CBID_RESOURCE_MODULE_UNLOAD_STARTING:
    rp_launch_invalidate();
    break;
  default:
    break;
  }
}

void CUPTIAPI rp_callbacks_take(void *userdata, CUpti_CallbackDomain domain, CUpti_CallbackId id,
                                const void *data) {
  const struct rp_cuda_sink *sink = userdata;
  if (!data || rp_driver_in_query()) return;
  if (domain == CUPTI_CB_DOMAIN_DRIVER_API)
    take_driver(sink, id, data);
  else if (domain == CUPTI_CB_DOMAIN_RESOURCE)
    take_resource(sink, id, data);
  else if (domain == CUPTI_CB_DOMAIN_NVTX)
    rp_callbacks_take_nvtx(sink, id, data);
}
