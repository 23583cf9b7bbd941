/** @file callbacks.h
 * What the CUPTI callback does, and which callback ids it wants.
 */
#ifndef RP_CUPTI_CALLBACKS_H
#define RP_CUPTI_CALLBACKS_H

#include <cupti.h>

#include "cupti/cuda_side.h"

/** Calls `enable` once for every callback id that recvpool takes; its result is not looked at (an id that
 * this CUPTI does not have is simply not taken). `nvtx` adds the NVTX domain. */
void rp_callbacks_enable(void (*enable)(void *context, CUpti_CallbackDomain domain, CUpti_CallbackId id),
                         void *context, bool nvtx);

/** The subscriber's callback; `userdata` is the const struct rp_cuda_sink. */
void CUPTIAPI rp_callbacks_take(void *userdata, CUpti_CallbackDomain domain, CUpti_CallbackId id,
                                const void *data);

/** The same for the NVTX domain. */
void rp_callbacks_take_nvtx(const struct rp_cuda_sink *sink, CUpti_CallbackId id, const CUpti_NvtxData *data);

#endif
