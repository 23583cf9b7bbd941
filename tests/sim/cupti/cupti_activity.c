/* CUPTI's activity interface: it can be switched on, and delivers no records. */
#include "cupti_sim.h"

#include <stdatomic.h>

static _Atomic int thread_id_type = CUPTI_ACTIVITY_THREAD_ID_TYPE_DEFAULT;

/* Success if there is a driver to record. */
static CUptiResult accepted(void) {
  return sim_answer(sim_tools() ? CUPTI_SUCCESS : CUPTI_ERROR_UNKNOWN);
}

static CUptiResult accepted_kind(CUpti_ActivityKind kind) {
  if (kind <= CUPTI_ACTIVITY_KIND_INVALID || kind >= CUPTI_ACTIVITY_KIND_COUNT)
    return sim_answer(CUPTI_ERROR_INVALID_KIND);
  return accepted();
}

SIM_EXPORT CUptiResult CUPTIAPI cuptiActivityEnable(CUpti_ActivityKind kind) {
  return accepted_kind(kind);
}

SIM_EXPORT CUptiResult CUPTIAPI cuptiActivityDisable(CUpti_ActivityKind kind) {
  return accepted_kind(kind);
}

SIM_EXPORT CUptiResult CUPTIAPI cuptiActivityEnableContext(CUcontext context, CUpti_ActivityKind kind) {
  return context ? accepted_kind(kind) : sim_answer(CUPTI_ERROR_INVALID_CONTEXT);
}

SIM_EXPORT CUptiResult CUPTIAPI cuptiActivityDisableContext(CUcontext context, CUpti_ActivityKind kind) {
  return context ? accepted_kind(kind) : sim_answer(CUPTI_ERROR_INVALID_CONTEXT);
}

SIM_EXPORT CUptiResult CUPTIAPI
cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc funcBufferRequested,
                               CUpti_BuffersCallbackCompleteFunc funcBufferCompleted) {
  if (!funcBufferRequested || !funcBufferCompleted) return sim_answer(CUPTI_ERROR_INVALID_PARAMETER);
  return accepted();
}

SIM_EXPORT CUptiResult CUPTIAPI cuptiActivityFlushAll(uint32_t flag) {
  (void)flag;
  return accepted();
}

SIM_EXPORT CUptiResult CUPTIAPI cuptiActivityFlushPeriod(uint32_t time) {
  (void)time;
  return accepted();
}

SIM_EXPORT CUptiResult CUPTIAPI cuptiActivityGetNextRecord(uint8_t *buffer, size_t validBufferSizeBytes,
                                                           CUpti_Activity **record) {
  if (!buffer || !record) return sim_answer(CUPTI_ERROR_INVALID_PARAMETER);
  (void)validBufferSizeBytes;
  return sim_answer(CUPTI_ERROR_MAX_LIMIT_REACHED); /* the end of the records */
}

SIM_EXPORT CUptiResult CUPTIAPI cuptiActivityGetNumDroppedRecords(CUcontext context, uint32_t streamId,
                                                                  size_t *dropped) {
  (void)context;
  (void)streamId;
  if (!dropped) return sim_answer(CUPTI_ERROR_INVALID_PARAMETER);
  *dropped = 0;
  return accepted();
}

SIM_EXPORT CUptiResult CUPTIAPI cuptiGetThreadIdType(CUpti_ActivityThreadIdType *type) {
  if (!type) return sim_answer(CUPTI_ERROR_INVALID_PARAMETER);
  *type = (CUpti_ActivityThreadIdType)atomic_load(&thread_id_type);
  return CUPTI_SUCCESS;
}

SIM_EXPORT CUptiResult CUPTIAPI cuptiSetThreadIdType(CUpti_ActivityThreadIdType type) {
  if (type < CUPTI_ACTIVITY_THREAD_ID_TYPE_DEFAULT || type >= CUPTI_ACTIVITY_THREAD_ID_TYPE_SIZE)
    return sim_answer(CUPTI_ERROR_NOT_SUPPORTED);
  atomic_store(&thread_id_type, (int)type);
  return CUPTI_SUCCESS;
}
