/** @file engine.h
 * The entry points that the engine half of the simulated libcuda.so.1 answers: `impl_cuX` does what the
 * driver's cuX does, without callbacks. Arguments, results and thread-safety are cuX's. Handle 0 as a stream
 * means sim_default_stream.
 *
 * All of them fail with CUDA_ERROR_NOT_INITIALIZED in a fork's child, and with CUDA_ERROR_INVALID_CONTEXT
 * where the driver needs a current context and there is none.
 */
#ifndef RPSIM_ENGINE_H
#define RPSIM_ENGINE_H

#include "sim_internal.h"

/* ---- Memory ---- */
CUresult impl_cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize);
CUresult impl_cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pPitch, size_t WidthInBytes, size_t Height,
                                 unsigned int ElementSizeBytes);
CUresult impl_cuMemAllocManaged(CUdeviceptr *dptr, size_t bytesize, unsigned int flags);
CUresult impl_cuMemFree_v2(CUdeviceptr dptr);
CUresult impl_cuMemGetInfo_v2(size_t *free, size_t *total);
CUresult impl_cuMemGetAddressRange_v2(CUdeviceptr *pbase, size_t *psize, CUdeviceptr dptr);
CUresult impl_cuMemAllocAsync(CUdeviceptr *dptr, size_t bytesize, CUstream hStream);
CUresult impl_cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool,
                                      CUstream hStream);
CUresult impl_cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream);
CUresult impl_cuDeviceGetDefaultMemPool(CUmemoryPool *pool_out, CUdevice dev);
CUresult impl_cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice dev);
CUresult impl_cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool);
CUresult impl_cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *poolProps);
CUresult impl_cuMemPoolDestroy(CUmemoryPool pool);
CUresult impl_cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value);
CUresult impl_cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value);
CUresult impl_cuMemPoolTrimTo(CUmemoryPool pool, size_t minBytesToKeep);
CUresult impl_cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *map, size_t count);
CUresult impl_cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool memPool, CUmemLocation *location);
CUresult impl_cuMemAllocHost_v2(void **pp, size_t bytesize);
CUresult impl_cuMemHostAlloc(void **pp, size_t bytesize, unsigned int Flags);
CUresult impl_cuMemFreeHost(void *p);
CUresult impl_cuMemHostRegister_v2(void *p, size_t bytesize, unsigned int Flags);
CUresult impl_cuMemHostUnregister(void *p);
CUresult impl_cuMemHostGetDevicePointer_v2(CUdeviceptr *pdptr, void *p, unsigned int Flags);
CUresult impl_cuMemHostGetFlags(unsigned int *pFlags, void *p);
CUresult impl_cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr);
CUresult impl_cuPointerGetAttributes(unsigned int numAttributes, CUpointer_attribute *attributes, void **data,
                                     CUdeviceptr ptr);
CUresult impl_cuPointerSetAttribute(const void *value, CUpointer_attribute attribute, CUdeviceptr ptr);
CUresult impl_cuIpcGetMemHandle(CUipcMemHandle *pHandle, CUdeviceptr dptr);
CUresult impl_cuIpcOpenMemHandle_v2(CUdeviceptr *pdptr, CUipcMemHandle handle, unsigned int Flags);
CUresult impl_cuIpcCloseMemHandle(CUdeviceptr dptr);

/* ---- Virtual memory ---- */
CUresult impl_cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
                                            CUmemAllocationGranularity_flags option);
CUresult impl_cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr addr,
                                  unsigned long long flags);
CUresult impl_cuMemAddressFree(CUdeviceptr ptr, size_t size);
CUresult impl_cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                          unsigned long long flags);
CUresult impl_cuMemRelease(CUmemGenericAllocationHandle handle);
CUresult impl_cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                       unsigned long long flags);
CUresult impl_cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count);
CUresult impl_cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr ptr);
CUresult impl_cuMemUnmap(CUdeviceptr ptr, size_t size);
CUresult impl_cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr);
CUresult impl_cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop,
                                                     CUmemGenericAllocationHandle handle);
CUresult impl_cuMemExportToShareableHandle(void *shareableHandle, CUmemGenericAllocationHandle handle,
                                           CUmemAllocationHandleType handleType, unsigned long long flags);
CUresult impl_cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *osHandle,
                                             CUmemAllocationHandleType shHandleType);

/* ---- Streams ---- */
CUresult impl_cuStreamCreate(CUstream *phStream, unsigned int Flags);
CUresult impl_cuStreamCreateWithPriority(CUstream *phStream, unsigned int flags, int priority);
CUresult impl_cuStreamDestroy_v2(CUstream hStream);
CUresult impl_cuStreamQuery(CUstream hStream);
CUresult impl_cuStreamSynchronize(CUstream hStream);
CUresult impl_cuStreamWaitEvent(CUstream hStream, CUevent hEvent, unsigned int Flags);
CUresult impl_cuStreamGetFlags(CUstream hStream, unsigned int *flags);
CUresult impl_cuStreamGetPriority(CUstream hStream, int *priority);
CUresult impl_cuStreamGetId(CUstream hStream, unsigned long long *streamId);
CUresult impl_cuStreamGetCtx(CUstream hStream, CUcontext *pctx);
CUresult impl_cuStreamGetDevice(CUstream hStream, CUdevice *device);
CUresult impl_cuStreamAddCallback(CUstream hStream, CUstreamCallback callback, void *userData,
                                  unsigned int flags);
CUresult impl_cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags);
CUresult impl_cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr addr, cuuint64_t value, unsigned int flags);
CUresult impl_cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr addr, cuuint32_t value,
                                      unsigned int flags);
CUresult impl_cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr addr, cuuint64_t value,
                                      unsigned int flags);

/* ---- Events ---- */
CUresult impl_cuEventCreate(CUevent *phEvent, unsigned int Flags);
CUresult impl_cuEventRecord(CUevent hEvent, CUstream hStream);
CUresult impl_cuEventRecordWithFlags(CUevent hEvent, CUstream hStream, unsigned int flags);
CUresult impl_cuEventQuery(CUevent hEvent);
CUresult impl_cuEventSynchronize(CUevent hEvent);
CUresult impl_cuEventElapsedTime_v2(float *pMilliseconds, CUevent hStart, CUevent hEnd);
CUresult impl_cuEventDestroy_v2(CUevent hEvent);

/* ---- Copies and memsets ---- */
CUresult impl_cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount);
CUresult impl_cuMemcpyHtoD_v2(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount);
CUresult impl_cuMemcpyDtoH_v2(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount);
CUresult impl_cuMemcpyDtoD_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount);
CUresult impl_cuMemcpyPeer(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
                           CUcontext srcContext, size_t ByteCount);
CUresult impl_cuMemcpy2D_v2(const CUDA_MEMCPY2D *pCopy);
CUresult impl_cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *pCopy);
CUresult impl_cuMemcpy3D_v2(const CUDA_MEMCPY3D *pCopy);
CUresult impl_cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream);
CUresult impl_cuMemcpyPeerAsync(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
                                CUcontext srcContext, size_t ByteCount, CUstream hStream);
CUresult impl_cuMemcpyHtoDAsync_v2(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount,
                                   CUstream hStream);
CUresult impl_cuMemcpyDtoHAsync_v2(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream);
CUresult impl_cuMemcpyDtoDAsync_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount,
                                   CUstream hStream);
CUresult impl_cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *pCopy, CUstream hStream);
CUresult impl_cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *pCopy, CUstream hStream);
CUresult impl_cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER *pCopy);
CUresult impl_cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER *pCopy, CUstream hStream);
CUresult impl_cuMemcpyBatchAsync(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
                                 CUmemcpyAttributes *attrs, size_t *attrsIdxs, size_t numAttrs,
                                 size_t *failIdx, CUstream hStream);
CUresult impl_cuMemcpyBatchAsync_v2(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
                                    CUmemcpyAttributes *attrs, size_t *attrsIdxs, size_t numAttrs,
                                    CUstream hStream);
CUresult impl_cuMemsetD8_v2(CUdeviceptr dstDevice, unsigned char uc, size_t N);
CUresult impl_cuMemsetD16_v2(CUdeviceptr dstDevice, unsigned short us, size_t N);
CUresult impl_cuMemsetD32_v2(CUdeviceptr dstDevice, unsigned int ui, size_t N);
CUresult impl_cuMemsetD2D8_v2(CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc, size_t Width,
                              size_t Height);
CUresult impl_cuMemsetD2D16_v2(CUdeviceptr dstDevice, size_t dstPitch, unsigned short us, size_t Width,
                               size_t Height);
CUresult impl_cuMemsetD2D32_v2(CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui, size_t Width,
                               size_t Height);
CUresult impl_cuMemsetD8Async(CUdeviceptr dstDevice, unsigned char uc, size_t N, CUstream hStream);
CUresult impl_cuMemsetD16Async(CUdeviceptr dstDevice, unsigned short us, size_t N, CUstream hStream);
CUresult impl_cuMemsetD32Async(CUdeviceptr dstDevice, unsigned int ui, size_t N, CUstream hStream);
CUresult impl_cuMemsetD2D8Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc, size_t Width,
                                size_t Height, CUstream hStream);
CUresult impl_cuMemsetD2D16Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned short us, size_t Width,
                                 size_t Height, CUstream hStream);
CUresult impl_cuMemsetD2D32Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui, size_t Width,
                                 size_t Height, CUstream hStream);

/* ---- Launches ---- */
CUresult impl_cuLaunchKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                             unsigned int gridDimZ, unsigned int blockDimX, unsigned int blockDimY,
                             unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream,
                             void **kernelParams, void **extra);
CUresult impl_cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **kernelParams, void **extra);
CUresult impl_cuLaunchCooperativeKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                                        unsigned int gridDimZ, unsigned int blockDimX, unsigned int blockDimY,
                                        unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream,
                                        void **kernelParams);
CUresult impl_cuLaunchHostFunc(CUstream hStream, CUhostFn fn, void *userData);

/* ---- Capture and graphs ---- */
CUresult impl_cuStreamBeginCapture_v2(CUstream hStream, CUstreamCaptureMode mode);
CUresult impl_cuStreamEndCapture(CUstream hStream, CUgraph *phGraph);
CUresult impl_cuStreamIsCapturing(CUstream hStream, CUstreamCaptureStatus *captureStatus);
CUresult impl_cuStreamGetCaptureInfo_v2(CUstream hStream, CUstreamCaptureStatus *captureStatus_out,
                                        cuuint64_t *id_out, CUgraph *graph_out,
                                        const CUgraphNode **dependencies_out, size_t *numDependencies_out);
CUresult impl_cuStreamGetCaptureInfo_v3(CUstream hStream, CUstreamCaptureStatus *captureStatus_out,
                                        cuuint64_t *id_out, CUgraph *graph_out,
                                        const CUgraphNode **dependencies_out,
                                        const CUgraphEdgeData **edgeData_out, size_t *numDependencies_out);
CUresult impl_cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode);
CUresult impl_cuGraphAddKernelNode_v2(CUgraphNode *phGraphNode, CUgraph hGraph,
                                      const CUgraphNode *dependencies, size_t numDependencies,
                                      const CUDA_KERNEL_NODE_PARAMS *nodeParams);
CUresult impl_cuGraphAddMemcpyNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                                   size_t numDependencies, const CUDA_MEMCPY3D *copyParams, CUcontext ctx);
CUresult impl_cuGraphAddMemsetNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                                   size_t numDependencies, const CUDA_MEMSET_NODE_PARAMS *memsetParams,
                                   CUcontext ctx);
CUresult impl_cuGraphCreate(CUgraph *phGraph, unsigned int flags);
CUresult impl_cuGraphDestroy(CUgraph hGraph);
CUresult impl_cuGraphInstantiateWithFlags(CUgraphExec *phGraphExec, CUgraph hGraph, unsigned long long flags);
CUresult impl_cuGraphInstantiateWithParams(CUgraphExec *phGraphExec, CUgraph hGraph,
                                           CUDA_GRAPH_INSTANTIATE_PARAMS *instantiateParams);
CUresult impl_cuGraphUpload(CUgraphExec hGraphExec, CUstream hStream);
CUresult impl_cuGraphLaunch(CUgraphExec hGraphExec, CUstream hStream);
CUresult impl_cuGraphExecDestroy(CUgraphExec hGraphExec);
CUresult impl_cuGraphGetNodes(CUgraph hGraph, CUgraphNode *nodes, size_t *numNodes);
CUresult impl_cuGraphGetRootNodes(CUgraph hGraph, CUgraphNode *rootNodes, size_t *numRootNodes);
CUresult impl_cuGraphGetEdges_v2(CUgraph hGraph, CUgraphNode *from, CUgraphNode *to,
                                 CUgraphEdgeData *edgeData, size_t *numEdges);
CUresult impl_cuGraphAddChildGraphNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                                       const CUgraphNode *dependencies, size_t numDependencies,
                                       CUgraph childGraph);
CUresult impl_cuGraphChildGraphNodeGetGraph(CUgraphNode hNode, CUgraph *phGraph);
CUresult impl_cuGraphNodeGetType(CUgraphNode hNode, CUgraphNodeType *type);
CUresult impl_cuGraphKernelNodeGetParams_v2(CUgraphNode hNode, CUDA_KERNEL_NODE_PARAMS *nodeParams);

#endif
