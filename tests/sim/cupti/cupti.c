/* The simulated CUPTI: subscriptions, callbacks, ids and time. State is the driver's (tools.h), so that
 * libcupti.so.12 and .13 in one process see the same subscriber. Without a driver the answers are those
 * measured of the real library. */
#include "cupti_sim.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

static _Thread_local CUptiResult last_error;

const struct rpsim_tools *sim_tools(void) {
  static _Atomic(const struct rpsim_tools *) found;
  const struct rpsim_tools *tools = atomic_load_explicit(&found, memory_order_acquire);
  if (tools) return tools;
  void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (!driver) driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  const struct rpsim_tools *(*get)(void) =
      driver ? (const struct rpsim_tools *(*)(void))dlsym(driver, "rpsim_tools_get") : NULL;
  if (!get) return NULL;
  tools = get();
  atomic_store_explicit(&found, tools, memory_order_release);
  return tools;
}

CUptiResult sim_answer(CUptiResult result) {
  if (result != CUPTI_SUCCESS) last_error = result;
  return result;
}

SIM_EXPORT CUptiResult CUPTIAPI cuptiGetLastError(void) {
  CUptiResult result = last_error;
  last_error = CUPTI_SUCCESS;
  return result;
}

SIM_EXPORT CUptiResult CUPTIAPI cuptiGetVersion(uint32_t *version) {
  if (!version) return sim_answer(CUPTI_ERROR_INVALID_PARAMETER);
  *version = RPSIM_CUPTI_MAJOR >= 13 ? 130001 : 26;
  return CUPTI_SUCCESS;
}

/* ---- subscriptions ---- */

/* RPSIM_CUPTI_SUBSCRIBE_ERROR: the error that subscribing shall answer, or CUPTI_SUCCESS. */
static CUptiResult subscribe_error(void) {
  const char *text = getenv("RPSIM_CUPTI_SUBSCRIBE_ERROR");
  return text ? (CUptiResult)strtoul(text, NULL, 10) : CUPTI_SUCCESS;
}

static CUptiResult subscribe(CUpti_SubscriberHandle *subscriber, CUpti_CallbackFunc callback, void *userdata,
                             const CUpti_SubscriberParams *params) {
  const struct rpsim_tools *tools = sim_tools();
  if (!tools) return sim_answer(CUPTI_ERROR_UNKNOWN);
  CUptiResult wanted = subscribe_error();
  if (wanted != CUPTI_SUCCESS) return sim_answer(wanted);
  return sim_answer(tools->subscribe(subscriber, callback, userdata, params ? params->subscriberName : NULL,
                                     params ? params->oldSubscriberName : NULL,
                                     params ? params->oldSubscriberSize : 0));
}

SIM_EXPORT CUptiResult CUPTIAPI cuptiSubscribe(CUpti_SubscriberHandle *subscriber,
                                               CUpti_CallbackFunc callback, void *userdata) {
  return subscribe(subscriber, callback, userdata, NULL);
}

#if RPSIM_CUPTI_MAJOR >= 13
SIM_EXPORT CUptiResult CUPTIAPI cuptiSubscribe_v2(CUpti_SubscriberHandle *subscriber,
                                                  CUpti_CallbackFunc callback, void *userdata,
                                                  CUpti_SubscriberParams *pParams) {
  if (pParams && pParams->structSize < CUpti_SubscriberParams_STRUCT_SIZE)
    return sim_answer(CUPTI_ERROR_INVALID_PARAMETER);
  return subscribe(subscriber, callback, userdata, pParams);
}
#endif

SIM_EXPORT CUptiResult CUPTIAPI cuptiUnsubscribe(CUpti_SubscriberHandle subscriber) {
  const struct rpsim_tools *tools = sim_tools();
  return sim_answer(tools ? tools->unsubscribe(subscriber) : CUPTI_ERROR_UNKNOWN);
}

SIM_EXPORT CUptiResult CUPTIAPI cuptiFinalize(void) {
  const struct rpsim_tools *tools = sim_tools();
  if (tools) tools->finalize();
  return CUPTI_SUCCESS;
}

/* ---- callbacks ---- */

SIM_EXPORT CUptiResult CUPTIAPI cuptiSupportedDomains(size_t *domainCount, CUpti_DomainTable *domainTable) {
  static CUpti_CallbackDomain domains[] = {CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_CB_DOMAIN_RUNTIME_API,
                                           CUPTI_CB_DOMAIN_RESOURCE,   CUPTI_CB_DOMAIN_SYNCHRONIZE,
                                           CUPTI_CB_DOMAIN_NVTX,       CUPTI_CB_DOMAIN_STATE};
  if (!domainCount || !domainTable) return sim_answer(CUPTI_ERROR_INVALID_PARAMETER);
  if (!sim_tools()) return sim_answer(CUPTI_ERROR_UNKNOWN);
  *domainCount = sizeof domains / sizeof domains[0];
  *domainTable = domains;
  return CUPTI_SUCCESS;
}

SIM_EXPORT CUptiResult CUPTIAPI cuptiGetCallbackState(uint32_t *enable, CUpti_SubscriberHandle subscriber,
                                                      CUpti_CallbackDomain domain, CUpti_CallbackId cbid) {
  const struct rpsim_tools *tools = sim_tools();
  return sim_answer(tools ? tools->state(enable, subscriber, domain, cbid) : CUPTI_ERROR_INVALID_PARAMETER);
}

SIM_EXPORT CUptiResult CUPTIAPI cuptiEnableCallback(uint32_t enable, CUpti_SubscriberHandle subscriber,
                                                    CUpti_CallbackDomain domain, CUpti_CallbackId cbid) {
  const struct rpsim_tools *tools = sim_tools();
  return sim_answer(tools ? tools->enable(enable, subscriber, domain, cbid) : CUPTI_ERROR_INVALID_PARAMETER);
}

SIM_EXPORT CUptiResult CUPTIAPI cuptiEnableDomain(uint32_t enable, CUpti_SubscriberHandle subscriber,
                                                  CUpti_CallbackDomain domain) {
  const struct rpsim_tools *tools = sim_tools();
  return sim_answer(tools ? tools->enable_domain(enable, subscriber, domain) : CUPTI_ERROR_INVALID_PARAMETER);
}

SIM_EXPORT CUptiResult CUPTIAPI cuptiEnableAllDomains(uint32_t enable, CUpti_SubscriberHandle subscriber) {
  const struct rpsim_tools *tools = sim_tools();
  CUptiResult result = tools ? CUPTI_SUCCESS : CUPTI_ERROR_INVALID_PARAMETER;
  for (int domain = CUPTI_CB_DOMAIN_INVALID + 1; domain < CUPTI_CB_DOMAIN_SIZE && result == CUPTI_SUCCESS;
       domain++)
    result = tools->enable_domain(enable, subscriber, (CUpti_CallbackDomain)domain);
  return sim_answer(result);
}

/* ---- ids and time ---- */

SIM_EXPORT CUptiResult CUPTIAPI cuptiGetTimestamp(uint64_t *timestamp) {
  if (!timestamp) return sim_answer(CUPTI_ERROR_INVALID_PARAMETER);
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  *timestamp = (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
  return CUPTI_SUCCESS;
}

/* Why ids cannot be asked for now, or CUPTI_SUCCESS. */
static CUptiResult ids_unavailable(const struct rpsim_tools *tools) {
  if (!tools) return CUPTI_ERROR_UNKNOWN;
  return tools->initialised() ? CUPTI_SUCCESS : CUPTI_ERROR_NOT_INITIALIZED;
}

SIM_EXPORT CUptiResult CUPTIAPI cuptiGetContextId(CUcontext context, uint32_t *contextId) {
  const struct rpsim_tools *tools = sim_tools();
  CUptiResult result = ids_unavailable(tools);
  int device;
  if (result == CUPTI_SUCCESS && !contextId) result = CUPTI_ERROR_INVALID_PARAMETER;
  if (result == CUPTI_SUCCESS && !tools->context_id(context, contextId, &device))
    result = CUPTI_ERROR_INVALID_CONTEXT;
  return sim_answer(result);
}

SIM_EXPORT CUptiResult CUPTIAPI cuptiGetDeviceId(CUcontext context, uint32_t *deviceId) {
  const struct rpsim_tools *tools = sim_tools();
  CUptiResult result = ids_unavailable(tools);
  uint32_t id;
  int device;
  if (result == CUPTI_SUCCESS && !deviceId) result = CUPTI_ERROR_INVALID_PARAMETER;
  if (result == CUPTI_SUCCESS && !tools->context_id(context, &id, &device))
    result = CUPTI_ERROR_INVALID_CONTEXT;
  if (result == CUPTI_SUCCESS) *deviceId = (uint32_t)device;
  return sim_answer(result);
}

SIM_EXPORT CUptiResult CUPTIAPI cuptiGetStreamIdEx(CUcontext context, CUstream stream,
                                                   uint8_t perThreadStream, uint32_t *streamId) {
  const struct rpsim_tools *tools = sim_tools();
  CUptiResult result = ids_unavailable(tools);
  if (result == CUPTI_SUCCESS && !streamId) result = CUPTI_ERROR_INVALID_PARAMETER;
  if (result == CUPTI_SUCCESS && !tools->stream_id(context, stream, perThreadStream != 0, streamId))
    result = CUPTI_ERROR_INVALID_STREAM;
  return sim_answer(result);
}

SIM_EXPORT CUptiResult CUPTIAPI cuptiGetStreamId(CUcontext context, CUstream stream, uint32_t *streamId) {
  return cuptiGetStreamIdEx(context, stream, 0, streamId);
}
