/* Older symbols of calls that have a newer one: the same call with the newer one's missing arguments filled
 * in. */
#include "api.h"

CUresult impl_cuCtxCreate(CUcontext *pctx, unsigned int flags, CUdevice dev) {
  return impl_cuCtxCreate_v2(pctx, flags, dev);
}

CUresult impl_cuStreamDestroy(CUstream hStream) {
  return impl_cuStreamDestroy_v2(hStream);
}

CUresult impl_cuEventDestroy(CUevent hEvent) {
  return impl_cuEventDestroy_v2(hEvent);
}

CUresult impl_cuEventElapsedTime(float *pMilliseconds, CUevent hStart, CUevent hEnd) {
  return impl_cuEventElapsedTime_v2(pMilliseconds, hStart, hEnd);
}

CUresult impl_cuMemHostRegister(void *p, size_t bytesize, unsigned int Flags) {
  return impl_cuMemHostRegister_v2(p, bytesize, Flags);
}

CUresult impl_cuStreamGetCtx_v2(CUstream hStream, CUcontext *pCtx, CUgreenCtx *pGreenCtx) {
  if (pGreenCtx) *pGreenCtx = NULL;
  return impl_cuStreamGetCtx(hStream, pCtx);
}

CUresult impl_cuStreamWaitValue32(CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags) {
  return impl_cuStreamWaitValue32_v2(stream, addr, value, flags);
}

CUresult impl_cuStreamWaitValue64(CUstream stream, CUdeviceptr addr, cuuint64_t value, unsigned int flags) {
  return impl_cuStreamWaitValue64_v2(stream, addr, value, flags);
}

CUresult impl_cuStreamWriteValue32(CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags) {
  return impl_cuStreamWriteValue32_v2(stream, addr, value, flags);
}

CUresult impl_cuStreamWriteValue64(CUstream stream, CUdeviceptr addr, cuuint64_t value, unsigned int flags) {
  return impl_cuStreamWriteValue64_v2(stream, addr, value, flags);
}

CUresult impl_cuStreamBeginCapture(CUstream hStream) {
  return impl_cuStreamBeginCapture_v2(hStream, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

CUresult impl_cuStreamGetCaptureInfo(CUstream hStream, CUstreamCaptureStatus *captureStatus_out,
                                     cuuint64_t *id_out) {
  return impl_cuStreamGetCaptureInfo_v2(hStream, captureStatus_out, id_out, NULL, NULL, NULL);
}

/* The first two forms report where instantiation failed; there is nothing to report here. */
CUresult impl_cuGraphInstantiate(CUgraphExec *phGraphExec, CUgraph hGraph, CUgraphNode *phErrorNode,
                                 char *logBuffer, size_t bufferSize) {
  if (phErrorNode) *phErrorNode = NULL;
  if (logBuffer && bufferSize > 0) logBuffer[0] = '\0';
  return impl_cuGraphInstantiateWithFlags(phGraphExec, hGraph, 0);
}

CUresult impl_cuGraphInstantiate_v2(CUgraphExec *phGraphExec, CUgraph hGraph, CUgraphNode *phErrorNode,
                                    char *logBuffer, size_t bufferSize) {
  return impl_cuGraphInstantiate(phGraphExec, hGraph, phErrorNode, logBuffer, bufferSize);
}
