/** @file tools.h
 * The private interface of the simulated libcuda.so.1 towards the simulated CUPTI and runtime, as the real
 * driver has one towards its tools. Exported under the names below; CUPTI looks them up by dlsym, so that a
 * process has one subscriber whichever of its libcupti copies asked.
 */
#ifndef RPSIM_TOOLS_H
#define RPSIM_TOOLS_H

#include "../rpsim.h"

#include <cupti_callbacks.h>
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/** A call of the runtime (or of NVTX) as the tools see it. Zero it, fill in the first four, and keep it from
 * ENTER to EXIT. */
struct rpsim_tools_call {
  CUpti_CallbackId cbid;
  const char *name;   /**< such as "cudaMalloc_v3020"; must live for ever */
  const void *params; /**< struct of generated_cuda_runtime_api_meta.h, or NULL */
  const char *symbol; /**< kernel name, for launches; else NULL */
  bool entered;       /**< the rest belongs to the simulator */
  uint32_t correlation_id;
  uint64_t correlation_data;
};

/** ENTER of a runtime call: raises the runtime domain's callback if it is enabled. An atomic load when it is
 * not. */
RPSIM_EXPORT void rpsim_tools_runtime_enter(struct rpsim_tools_call *call);
/** EXIT of the same call. `result` points at the cudaError_t about to be returned. */
RPSIM_EXPORT void rpsim_tools_runtime_exit(struct rpsim_tools_call *call, void *result);

/** What the simulated CUPTI asks of the driver. Each answers what the CUPTI function of that name answers. */
struct rpsim_tools {
  /** `name` may be NULL. On MULTIPLE_SUBSCRIBERS the other subscriber's name is put into old_name, if that is
   * given. */
  CUptiResult (*subscribe)(CUpti_SubscriberHandle *subscriber, CUpti_CallbackFunc callback, void *userdata,
                           const char *name, char *old_name, size_t old_name_bytes);
  CUptiResult (*unsubscribe)(CUpti_SubscriberHandle subscriber);
  CUptiResult (*enable)(uint32_t enable, CUpti_SubscriberHandle subscriber, CUpti_CallbackDomain domain,
                        CUpti_CallbackId cbid);
  CUptiResult (*enable_domain)(uint32_t enable, CUpti_SubscriberHandle subscriber,
                               CUpti_CallbackDomain domain);
  CUptiResult (*state)(uint32_t *enable, CUpti_SubscriberHandle subscriber, CUpti_CallbackDomain domain,
                       CUpti_CallbackId cbid);
  /** Ends the subscription, whoever holds it. */
  void (*finalize)(void);
  /** Raises an NVTX callback if it is enabled. */
  void (*nvtx)(CUpti_CallbackId cbid, const CUpti_NvtxData *data);
  /** False if the context, or the stream of it, is not known. Stream id: as cuStreamGetId, without callbacks.
   */
  bool (*context_id)(CUcontext context, uint32_t *id, int *device);
  bool (*stream_id)(CUcontext context, CUstream stream, bool per_thread, uint32_t *id);
  bool (*initialised)(void);
};

/** The table; it lives for ever. */
RPSIM_EXPORT const struct rpsim_tools *rpsim_tools_get(void);

#ifdef __cplusplus
}
#endif
#endif
