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
