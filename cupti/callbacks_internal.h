/** @file callbacks_internal.h
 * Shared by callbacks*.c only: one driver call as a callback sees it, and the tables of what is taken.
 */
#ifndef RP_CUPTI_CALLBACKS_INTERNAL_H
#define RP_CUPTI_CALLBACKS_INTERNAL_H

#include <cuda.h>

#include "cupti/callbacks.h"

enum rp_phase {
  RP_BEGINS = 0, /**< before the call */
  RP_DONE,       /**< it has succeeded: accesses are told again, now with their order */
  RP_ENDS        /**< it has ended: nothing is told by the handler itself */
};

/** One callback that is taken. */
struct rp_taken {
  const struct rp_cuda_sink *sink;
  const CUpti_CallbackData *data;
  const void *params;
  bool per_thread;
  enum rp_phase phase;
  struct rp_cuda_work *work; /**< filled in by handlers of work, in every phase */
  bool *matters;             /**< set by these where the order of streams wants the work */
};

enum rp_side {
  RP_BEFORE,
  RP_AFTER_SUCCESS,
  RP_WORK, /**< before the call, and after it where it was wanted */
  RP_ORDER /**< before and after it, by `order` */
};

/** One callback id. */
struct rp_wanted {
  uint16_t id;
  uint8_t side; /**< enum rp_side */
  bool per_thread;
  void (*handle)(const struct rp_taken *call);
  /** Says what the call orders; false: nothing. Asked before the call and after it. */
  bool (*order)(const struct rp_taken *call, struct rp_cuda_order *out);
};

/* Names are pasted at once: cuda.h defines some of them as macros for their newest version. */
#define RP_CBID(name) CUPTI_DRIVER_TRACE_CBID_##name
#define RP_PLAIN(name, side, handle)                                                                         \
  { CUPTI_DRIVER_TRACE_CBID_##name, side, false, handle, NULL }
/** A call that takes a stream, and its twin for the per-thread default stream. */
#define RP_TWINS(name, suffix, side, handle)                                                                 \
  {CUPTI_DRIVER_TRACE_CBID_##name, side, false, handle, NULL}, {                                             \
    CUPTI_DRIVER_TRACE_CBID_##name##suffix, side, true, handle, NULL                                         \
  }

extern const struct rp_wanted rp_wanted_order[];
extern const size_t rp_wanted_order_count;

/** Stream handle as events carry it: 0 means the legacy stream, or the thread's own under _ptds/_ptsz. */
static inline uint64_t rp_normal_stream(CUstream stream, bool per_thread) {
  if (stream) return (uint64_t)(uintptr_t)stream;
  return per_thread ? RP_STREAM_PER_THREAD : RP_STREAM_LEGACY;
}

#endif
