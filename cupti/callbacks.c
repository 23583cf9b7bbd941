/* CUPTI callbacks to plain operations. Owns the table of driver callback ids: which are taken, at which side
 * of the call, and what their parameter structs mean. Nothing here calls CUDA. */
#include "cupti/callbacks.h"

#include <cuda.h>
#include <string.h>

/* Stream handle as events carry it: 0 means the legacy stream, or the thread's own under _ptds/_ptsz. */
static uint64_t normal_stream(CUstream stream, bool per_thread) {
  if (stream) return (uint64_t)(uintptr_t)stream;
  return per_thread ? RP_STREAM_PER_THREAD : RP_STREAM_LEGACY;
}

struct taken {
  const struct rp_cuda_sink *sink;
  const CUpti_CallbackData *data;
  const void *params;
  bool per_thread;
};

typedef void handler(const struct taken *call);

static void tell(const struct taken *call, enum rp_event_kind kind, uint64_t address, uint64_t bytes,
                 uint64_t stream, uint64_t aux) {
  const struct rp_cuda_op op = {
      .kind = kind, .address = address, .bytes = bytes, .stream = stream, .aux = aux};
  call->sink->op(&op);
}

static void tell_copy(const struct taken *call, uint64_t to, uint64_t from, uint64_t to_bytes,
                      uint64_t from_bytes, CUstream stream) {
  const struct rp_cuda_op op = {.kind = RP_EVENT_COPY_READ,
                                .address = to,
                                .bytes = to_bytes,
                                .source = from,
                                .source_bytes = from_bytes,
                                .stream = normal_stream(stream, call->per_thread)};
  call->sink->op(&op);
}

/* ---- launches ---- */

static void take_launch(const struct taken *call, CUfunction function, uint64_t stream, uint32_t flags,
                        void **params, void **extra) {
  if (!call->sink->launch_begun()) return;
  const struct rp_cuda_launch launch = {.function = (uint64_t)(uintptr_t)function,
                                        .stream = stream,
                                        .event_flags = flags,
                                        .symbol = call->data->symbolName,
                                        .params = params,
                                        .extra = extra};
  struct rp_launch_words words;
  if (rp_launch_scan(&launch, &call->sink->filter, &words)) call->sink->launch_hit(&launch, &words);
}

static void on_launch(const struct taken *call) {
  const cuLaunchKernel_params *p = call->params;
  take_launch(call, p->f, normal_stream(p->hStream, call->per_thread), 0, p->kernelParams, p->extra);
}

static void on_launch_ex(const struct taken *call) {
  const cuLaunchKernelEx_params *p = call->params;
  uint32_t flags = 0;
  CUstream stream = (CUstream)(uintptr_t)rp_driver_config_stream(p->config, &flags);
  take_launch(call, p->f, normal_stream(stream, call->per_thread), flags, p->kernelParams, p->extra);
}

static void on_launch_cooperative(const struct taken *call) {
  const cuLaunchCooperativeKernel_params *p = call->params;
  take_launch(call, p->f, normal_stream(p->hStream, call->per_thread), 0, p->kernelParams, NULL);
}

static void on_graph_launch(const struct taken *call) {
  const cuGraphLaunch_params *p = call->params;
  tell(call, RP_EVENT_GRAPH_LAUNCH, 0, 0, normal_stream(p->hStream, call->per_thread),
       (uint64_t)(uintptr_t)p->hGraph);
}

/* ---- allocations: told after the call, and only if it succeeded ---- */

static void tell_alloc(const struct taken *call, const CUdeviceptr *address, uint64_t bytes,
                       enum rp_alloc_api api) {
  if (address && *address) tell(call, RP_EVENT_ALLOC, *address, bytes, 0, api);
}

static void on_alloc(const struct taken *call) {
  const cuMemAlloc_v2_params *p = call->params;
  tell_alloc(call, p->dptr, p->bytesize, RP_ALLOC_MALLOC);
}

static void on_alloc_pitch(const struct taken *call) {
  const cuMemAllocPitch_v2_params *p = call->params;
  if (p->pPitch) tell_alloc(call, p->dptr, *p->pPitch * p->Height, RP_ALLOC_MALLOC);
}

static void on_alloc_managed(const struct taken *call) {
  const cuMemAllocManaged_params *p = call->params;
  tell_alloc(call, p->dptr, p->bytesize, RP_ALLOC_MANAGED);
}

static void on_alloc_async(const struct taken *call) {
  const cuMemAllocAsync_params *p = call->params;
  tell_alloc(call, p->dptr, p->bytesize, RP_ALLOC_ASYNC);
}

static void on_alloc_from_pool(const struct taken *call) {
  const cuMemAllocFromPoolAsync_params *p = call->params;
  tell_alloc(call, p->dptr, p->bytesize, RP_ALLOC_ASYNC);
}

static void on_map(const struct taken *call) {
  const cuMemMap_params *p = call->params;
  tell(call, RP_EVENT_ALLOC, p->ptr, p->size, 0, RP_ALLOC_VMM);
}

static void on_free(const struct taken *call) {
  const cuMemFree_v2_params *p = call->params;
  if (p->dptr) tell(call, RP_EVENT_FREE, p->dptr, 0, 0, RP_ALLOC_MALLOC);
}

static void on_free_async(const struct taken *call) {
  const cuMemFreeAsync_params *p = call->params;
  if (p->dptr)
    tell(call, RP_EVENT_FREE, p->dptr, 0, normal_stream(p->hStream, call->per_thread), RP_ALLOC_ASYNC);
}

static void on_unmap(const struct taken *call) {
  const cuMemUnmap_params *p = call->params;
  tell(call, RP_EVENT_FREE, p->ptr, p->size, 0, RP_ALLOC_VMM);
}

/* ---- copies ---- */

static void on_copy_async(const struct taken *call) {
  const cuMemcpyAsync_params *p = call->params;
  tell_copy(call, p->dst, p->src, p->ByteCount, p->ByteCount, p->hStream);
}

static void on_copy_htod_async(const struct taken *call) {
  const cuMemcpyHtoDAsync_v2_params *p = call->params;
  tell_copy(call, p->dstDevice, 0, p->ByteCount, 0, p->hStream);
}

static void on_copy_dtoh_async(const struct taken *call) {
  const cuMemcpyDtoHAsync_v2_params *p = call->params;
  tell_copy(call, 0, p->srcDevice, 0, p->ByteCount, p->hStream);
}

static void on_copy_dtod_async(const struct taken *call) {
  const cuMemcpyDtoDAsync_v2_params *p = call->params;
  tell_copy(call, p->dstDevice, p->srcDevice, p->ByteCount, p->ByteCount, p->hStream);
}

static void on_copy_peer_async(const struct taken *call) {
  const cuMemcpyPeerAsync_params *p = call->params;
  tell_copy(call, p->dstDevice, p->srcDevice, p->ByteCount, p->ByteCount, p->hStream);
}

static void on_copy(const struct taken *call) {
  const cuMemcpy_params *p = call->params;
  tell_copy(call, p->dst, p->src, p->ByteCount, p->ByteCount, NULL);
}

static void on_copy_htod(const struct taken *call) {
  const cuMemcpyHtoD_v2_params *p = call->params;
  tell_copy(call, p->dstDevice, 0, p->ByteCount, 0, NULL);
}

static void on_copy_dtoh(const struct taken *call) {
  const cuMemcpyDtoH_v2_params *p = call->params;
  tell_copy(call, 0, p->srcDevice, 0, p->ByteCount, NULL);
}

static void on_copy_dtod(const struct taken *call) {
  const cuMemcpyDtoD_v2_params *p = call->params;
  tell_copy(call, p->dstDevice, p->srcDevice, p->ByteCount, p->ByteCount, NULL);
}

static void on_copy_peer(const struct taken *call) {
  const cuMemcpyPeer_params *p = call->params;
  tell_copy(call, p->dstDevice, p->srcDevice, p->ByteCount, p->ByteCount, NULL);
}

/* Bytes from the first to behind the last byte of a pitched box. */
static uint64_t span(uint64_t pitch, uint64_t width, uint64_t rows) {
  return rows == 0 || width == 0 ? 0 : (rows - 1) * (pitch ? pitch : width) + width;
}

static bool device_side(CUmemorytype type) {
  return type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_UNIFIED;
}

static void take_copy_2d(const struct taken *call, const CUDA_MEMCPY2D *c, CUstream stream) {
  if (!c) return;
  bool to_device = device_side(c->dstMemoryType), from_device = device_side(c->srcMemoryType);
  uint64_t to =
      c->dstMemoryType == CU_MEMORYTYPE_UNIFIED && !c->dstDevice ? (uintptr_t)c->dstHost : c->dstDevice;
  uint64_t from =
      c->srcMemoryType == CU_MEMORYTYPE_UNIFIED && !c->srcDevice ? (uintptr_t)c->srcHost : c->srcDevice;
  tell_copy(call, to_device ? to + c->dstY * c->dstPitch + c->dstXInBytes : 0,
            from_device ? from + c->srcY * c->srcPitch + c->srcXInBytes : 0,
            to_device ? span(c->dstPitch, c->WidthInBytes, c->Height) : 0,
            from_device ? span(c->srcPitch, c->WidthInBytes, c->Height) : 0, stream);
}

static void on_copy_2d_async(const struct taken *call) {
  const cuMemcpy2DAsync_v2_params *p = call->params;
  take_copy_2d(call, p->pCopy, p->hStream);
}

static void on_copy_2d(const struct taken *call) {
  const cuMemcpy2D_v2_params *p = call->params;
  take_copy_2d(call, p->pCopy, NULL);
}

static void take_copy_3d(const struct taken *call, const CUDA_MEMCPY3D *c, CUstream stream) {
  if (!c) return;
  uint64_t to_rows = c->Depth ? (c->Depth - 1) * (c->dstHeight ? c->dstHeight : c->Height) + c->Height : 0;
  uint64_t from_rows = c->Depth ? (c->Depth - 1) * (c->srcHeight ? c->srcHeight : c->Height) + c->Height : 0;
  bool to_device = device_side(c->dstMemoryType), from_device = device_side(c->srcMemoryType);
  uint64_t to_skip = (c->dstZ * c->dstHeight + c->dstY) * c->dstPitch + c->dstXInBytes;
  uint64_t from_skip = (c->srcZ * c->srcHeight + c->srcY) * c->srcPitch + c->srcXInBytes;
  tell_copy(call, to_device ? c->dstDevice + to_skip : 0, from_device ? c->srcDevice + from_skip : 0,
            to_device ? span(c->dstPitch, c->WidthInBytes, to_rows) : 0,
            from_device ? span(c->srcPitch, c->WidthInBytes, from_rows) : 0, stream);
}

static void on_copy_3d_async(const struct taken *call) {
  const cuMemcpy3DAsync_v2_params *p = call->params;
  take_copy_3d(call, p->pCopy, p->hStream);
}

static void on_copy_batch(const struct taken *call) {
  const cuMemcpyBatchAsync_params *p = call->params;
  for (size_t i = 0; p->dsts && p->srcs && p->sizes && i < p->count; i++)
    tell_copy(call, p->dsts[i], p->srcs[i], p->sizes[i], p->sizes[i], p->hStream);
}

static void on_copy_batch_v2(const struct taken *call) {
  const cuMemcpyBatchAsync_v2_params *p = call->params;
  for (size_t i = 0; p->dsts && p->srcs && p->sizes && i < p->count; i++)
    tell_copy(call, p->dsts[i], p->srcs[i], p->sizes[i], p->sizes[i], p->hStream);
}

/* ---- memsets: one handler per element size and shape ---- */

#define MEMSET_HANDLERS(bits)                                                                                \
  static void on_memset_##bits##_async(const struct taken *call) {                                           \
    const cuMemsetD##bits##Async_params *p = call->params;                                                   \
    tell(call, RP_EVENT_MEMSET, p->dstDevice, p->N *(bits / 8), normal_stream(p->hStream, call->per_thread), \
         0);                                                                                                 \
  }                                                                                                          \
  static void on_memset_##bits(const struct taken *call) {                                                   \
    const cuMemsetD##bits##_v2_params *p = call->params;                                                     \
    tell(call, RP_EVENT_MEMSET, p->dstDevice, p->N *(bits / 8), normal_stream(NULL, call->per_thread), 0);   \
  }                                                                                                          \
  static void on_memset_2d_##bits##_async(const struct taken *call) {                                        \
    const cuMemsetD2D##bits##Async_params *p = call->params;                                                 \
    tell(call, RP_EVENT_MEMSET, p->dstDevice, span(p->dstPitch, p->Width *(bits / 8), p->Height),            \
         normal_stream(p->hStream, call->per_thread), 0);                                                    \
  }                                                                                                          \
  static void on_memset_2d_##bits(const struct taken *call) {                                                \
    const cuMemsetD2D##bits##_v2_params *p = call->params;                                                   \
    tell(call, RP_EVENT_MEMSET, p->dstDevice, span(p->dstPitch, p->Width *(bits / 8), p->Height),            \
         normal_stream(NULL, call->per_thread), 0);                                                          \
  }
MEMSET_HANDLERS(8)
MEMSET_HANDLERS(16)
MEMSET_HANDLERS(32)
#undef MEMSET_HANDLERS

/* ---- order ---- */

static void on_event_record(const struct taken *call) {
  const cuEventRecord_params *p = call->params; /* cuEventRecordWithFlags begins with the same members */
  tell(call, RP_EVENT_EVENT_RECORD, 0, 0, normal_stream(p->hStream, call->per_thread),
       (uint64_t)(uintptr_t)p->hEvent);
}

static void on_stream_wait(const struct taken *call) {
  const cuStreamWaitEvent_params *p = call->params;
  tell(call, RP_EVENT_STREAM_WAIT, 0, 0, normal_stream(p->hStream, call->per_thread),
       (uint64_t)(uintptr_t)p->hEvent);
}

static void on_context_sync(const struct taken *call) {
  tell(call, RP_EVENT_HOST_SYNC, 0, 0, 0, 0);
}

static void on_stream_sync(const struct taken *call) {
  const cuStreamSynchronize_params *p = call->params;
  tell(call, RP_EVENT_HOST_SYNC, 0, 0, normal_stream(p->hStream, call->per_thread), 1);
}

static void on_event_sync(const struct taken *call) {
  const cuEventSynchronize_params *p = call->params;
  tell(call, RP_EVENT_HOST_SYNC, (uint64_t)(uintptr_t)p->hEvent, 0, 0, 2);
}

static void on_library_unload(const struct taken *call) {
  (void)call;
  rp_launch_invalidate();
}

/* ---- the table ---- */

enum side { BEFORE, AFTER_SUCCESS };

struct wanted {
  uint16_t id;
  uint8_t side; /* enum side */
  bool per_thread;
  handler *handle;
};

#define ID(name) CUPTI_DRIVER_TRACE_CBID_##name
#define PLAIN(name, side, handle)                                                                            \
  { ID(name), side, false, handle }
/* A call that takes a stream, and its twin for the per-thread default stream. */
#define TWINS(name, suffix, side, handle)                                                                    \
  {ID(name), side, false, handle}, {                                                                         \
    ID(name##suffix), side, true, handle                                                                     \
  }

static const struct wanted wanted[] = {
    TWINS(cuLaunchKernel, _ptsz, BEFORE, on_launch),
    TWINS(cuLaunchKernelEx, _ptsz, BEFORE, on_launch_ex),
    TWINS(cuLaunchCooperativeKernel, _ptsz, BEFORE, on_launch_cooperative),
    TWINS(cuGraphLaunch, _ptsz, BEFORE, on_graph_launch),
    PLAIN(cuMemAlloc_v2, AFTER_SUCCESS, on_alloc),
    PLAIN(cuMemAllocPitch_v2, AFTER_SUCCESS, on_alloc_pitch),
    PLAIN(cuMemAllocManaged, AFTER_SUCCESS, on_alloc_managed),
    TWINS(cuMemAllocAsync, _ptsz, AFTER_SUCCESS, on_alloc_async),
    TWINS(cuMemAllocFromPoolAsync, _ptsz, AFTER_SUCCESS, on_alloc_from_pool),
    PLAIN(cuMemMap, AFTER_SUCCESS, on_map),
    PLAIN(cuMemFree_v2, BEFORE, on_free),
    TWINS(cuMemFreeAsync, _ptsz, BEFORE, on_free_async),
    PLAIN(cuMemUnmap, BEFORE, on_unmap),
    TWINS(cuMemcpyAsync, _ptsz, BEFORE, on_copy_async),
    TWINS(cuMemcpyHtoDAsync_v2, _ptsz, BEFORE, on_copy_htod_async),
    TWINS(cuMemcpyDtoHAsync_v2, _ptsz, BEFORE, on_copy_dtoh_async),
    TWINS(cuMemcpyDtoDAsync_v2, _ptsz, BEFORE, on_copy_dtod_async),
    TWINS(cuMemcpyPeerAsync, _ptsz, BEFORE, on_copy_peer_async),
    TWINS(cuMemcpy2DAsync_v2, _ptsz, BEFORE, on_copy_2d_async),
    TWINS(cuMemcpy3DAsync_v2, _ptsz, BEFORE, on_copy_3d_async),
    TWINS(cuMemcpy, _ptds, BEFORE, on_copy),
    TWINS(cuMemcpyHtoD_v2, _ptds, BEFORE, on_copy_htod),
    TWINS(cuMemcpyDtoH_v2, _ptds, BEFORE, on_copy_dtoh),
    TWINS(cuMemcpyDtoD_v2, _ptds, BEFORE, on_copy_dtod),
    TWINS(cuMemcpyPeer, _ptds, BEFORE, on_copy_peer),
    TWINS(cuMemcpy2D_v2, _ptds, BEFORE, on_copy_2d),
    PLAIN(cuMemcpy2DUnaligned_v2, BEFORE, on_copy_2d),
    TWINS(cuMemcpyBatchAsync, _ptsz, BEFORE, on_copy_batch),
    TWINS(cuMemcpyBatchAsync_v2, _ptsz, BEFORE, on_copy_batch_v2),
    TWINS(cuMemsetD8Async, _ptsz, BEFORE, on_memset_8_async),
    TWINS(cuMemsetD16Async, _ptsz, BEFORE, on_memset_16_async),
    TWINS(cuMemsetD32Async, _ptsz, BEFORE, on_memset_32_async),
    TWINS(cuMemsetD2D8Async, _ptsz, BEFORE, on_memset_2d_8_async),
    TWINS(cuMemsetD2D16Async, _ptsz, BEFORE, on_memset_2d_16_async),
    TWINS(cuMemsetD2D32Async, _ptsz, BEFORE, on_memset_2d_32_async),
    TWINS(cuMemsetD8_v2, _ptds, BEFORE, on_memset_8),
    TWINS(cuMemsetD16_v2, _ptds, BEFORE, on_memset_16),
    TWINS(cuMemsetD32_v2, _ptds, BEFORE, on_memset_32),
    TWINS(cuMemsetD2D8_v2, _ptds, BEFORE, on_memset_2d_8),
    TWINS(cuMemsetD2D16_v2, _ptds, BEFORE, on_memset_2d_16),
    TWINS(cuMemsetD2D32_v2, _ptds, BEFORE, on_memset_2d_32),
    TWINS(cuEventRecord, _ptsz, BEFORE, on_event_record),
    TWINS(cuEventRecordWithFlags, _ptsz, BEFORE, on_event_record),
    TWINS(cuStreamWaitEvent, _ptsz, BEFORE, on_stream_wait),
    PLAIN(cuCtxSynchronize, AFTER_SUCCESS, on_context_sync),
    PLAIN(cuCtxSynchronize_v2, AFTER_SUCCESS, on_context_sync),
    TWINS(cuStreamSynchronize, _ptsz, AFTER_SUCCESS, on_stream_sync),
    PLAIN(cuEventSynchronize, AFTER_SUCCESS, on_event_sync),
    PLAIN(cuLibraryUnload, BEFORE, on_library_unload),
};

#define WANTED_COUNT (sizeof wanted / sizeof wanted[0])

/* Position in `wanted` plus one, by callback id; filled before the first id is enabled, read-only afterwards.
 */
static uint8_t position[1024];
_Static_assert(WANTED_COUNT < 255, "positions fit one byte");
_Static_assert(CUPTI_DRIVER_TRACE_CBID_SIZE < sizeof position, "ids of these headers fit the table");

void rp_callbacks_enable(void (*enable)(void *context, CUpti_CallbackDomain domain, CUpti_CallbackId id),
                         void *context, bool nvtx) {
  for (size_t i = 0; i < WANTED_COUNT; i++)
    position[wanted[i].id] = (uint8_t)(i + 1);
  for (size_t i = 0; i < WANTED_COUNT; i++)
    enable(context, CUPTI_CB_DOMAIN_DRIVER_API, wanted[i].id);
  enable(context, CUPTI_CB_DOMAIN_RESOURCE, CUPTI_CBID_RESOURCE_CU_INIT_FINISHED);
  enable(context, CUPTI_CB_DOMAIN_RESOURCE, CUPTI_CBID_RESOURCE_CONTEXT_CREATED);
  enable(context, CUPTI_CB_DOMAIN_RESOURCE, CUPTI_CBID_RESOURCE_MODULE_LOADED);
  enable(context, CUPTI_CB_DOMAIN_RESOURCE, CUPTI_CBID_RESOURCE_MODULE_UNLOAD_STARTING);
  if (!nvtx) return;
  enable(context, CUPTI_CB_DOMAIN_NVTX, CUPTI_CBID_NVTX_nvtxRangePushA);
  enable(context, CUPTI_CB_DOMAIN_NVTX, CUPTI_CBID_NVTX_nvtxRangePushEx);
  enable(context, CUPTI_CB_DOMAIN_NVTX, CUPTI_CBID_NVTX_nvtxRangePop);
  enable(context, CUPTI_CB_DOMAIN_NVTX, CUPTI_CBID_NVTX_nvtxDomainRangePushEx);
  enable(context, CUPTI_CB_DOMAIN_NVTX, CUPTI_CBID_NVTX_nvtxDomainRangePop);
}

static void take_driver(const struct rp_cuda_sink *sink, CUpti_CallbackId id,
                        const CUpti_CallbackData *data) {
  if (id >= sizeof position || position[id] == 0) return;
  const struct wanted *want = &wanted[position[id] - 1];
  bool entering = data->callbackSite == CUPTI_API_ENTER;
  if (entering != (want->side == BEFORE)) return;
  if (!entering &&
      (!data->functionReturnValue || *(const CUresult *)data->functionReturnValue != CUDA_SUCCESS))
    return;
  if (!data->functionParams && want->handle != on_context_sync) return;
  if (!sink->enter()) return;
  const struct taken call = {sink, data, data->functionParams, want->per_thread};
  want->handle(&call);
  sink->leave();
}

static void take_resource(const struct rp_cuda_sink *sink, CUpti_CallbackId id) {
  switch (id) {
  case CUPTI_CBID_RESOURCE_CU_INIT_FINISHED:
  case CUPTI_CBID_RESOURCE_CONTEXT_CREATED:
    sink->initialised();
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
    take_resource(sink, id);
  else if (domain == CUPTI_CB_DOMAIN_NVTX)
    rp_callbacks_take_nvtx(sink, id, data);
}
