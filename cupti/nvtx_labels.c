/* NVTX ranges, where a framework emits them and has routed them to CUPTI itself: text of each push, and pops.
 */
#include <cupti.h>
#include <generated_nvtx_meta.h>

#include "cupti/callbacks.h"

/* Text of an attribute record; only 8-bit text is taken. */
static const char *text_of(const nvtxEventAttributes_t *attributes) {
  if (!attributes || attributes->messageType != NVTX_MESSAGE_TYPE_ASCII) return NULL;
  return attributes->message.ascii;
}

static const char *pushed_text(CUpti_CallbackId id, const void *params) {
  switch (id) {
  case CUPTI_CBID_NVTX_nvtxRangePushA:
    return ((const nvtxRangePushA_params *)params)->message;
  case CUPTI_CBID_NVTX_nvtxRangePushEx:
    return text_of(((const nvtxRangePushEx_params *)params)->eventAttrib);
  case CUPTI_CBID_NVTX_nvtxDomainRangePushEx:
    return text_of(((const nvtxDomainRangePushEx_params *)params)->core.eventAttrib);
  default:
    return NULL;
  }
}

void rp_callbacks_take_nvtx(const struct rp_cuda_sink *sink, CUpti_CallbackId id,
                            const CUpti_NvtxData *data) {
  bool pop = id == CUPTI_CBID_NVTX_nvtxRangePop || id == CUPTI_CBID_NVTX_nvtxDomainRangePop;
  const char *text = pop || !data->functionParams ? NULL : pushed_text(id, data->functionParams);
  if (!pop && !text) text = ""; /* a push that a pop will answer, without text that can be read */
  if (!sink->enter()) return;
  sink->label(text);
  sink->leave();
}
