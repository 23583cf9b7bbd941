/** @file hooks_work.h
 * What the wrappers of launches, copies and memsets share.
 */
#ifndef RP_AGENT_HOOKS_WORK_H
#define RP_AGENT_HOOKS_WORK_H

#include <stdbool.h>
#include <stdint.h>

#include "agent/abi.h"
#include "agent/enforce.h"
#include "agent/hooks.h"
#include "agent/state.h"
#include "agent/work.h"
#include "cupti/cuda_side.h"

/** One interposed call, on its stack. Most calls name no receive buffer and use none of it but the flags. */
struct rp_hook_work {
  bool asks;    /**< enforce: the guards are asked here, and CUPTI's view of the call is left aside */
  bool tells;   /**< what it does is told here: it is asked about, or there is no CUPTI */
  bool hit;     /**< it names a receive buffer */
  bool refused; /**< it must not be made */
  uint64_t begun;
  struct rp_cuda_work order;
  struct rp_work work;
  struct rp_launch_words words;
};

/** The call is about to be made, and is told here. */
void rp__work_begin(struct rp_hook_work *call, const struct rp_cuda_work *order);
/** It was made, or refused. */
void rp__work_end(struct rp_hook_work *call, bool succeeded);

/** The call is a copy or a memset; `waits`: of the synchronous family, with both addresses. */
void rp__take_op(struct rp_hook_work *call, const struct rp_cuda_op *op, bool waits);

/** Whether anything has to be done about the call. */
static inline bool rp_hook_work_begin(struct rp_hook_work *call) {
  bool on = rp_call_begin(RP_CALL_WORK);
  call->asks = rp_enforce_on() && rp_call_is_programs(RP_CALL_WORK);
  call->tells = call->hit = call->refused = false;
  if (call->asks) rp_enforce_settle();
  return on || call->asks;
}

static inline void rp_hook_work_end(struct rp_hook_work *call, int result) {
  if (call->tells) rp__work_end(call, !call->refused && result == RP_ABI_SUCCESS);
  rp_call_end(RP_CALL_WORK);
}

/** Whether the call is to be told here. */
static inline bool rp_hook_work_tells(const struct rp_hook_work *call) {
  return call->asks || !rp_cupti_active();
}

/** A wrapper of which `take` does what is to be done before the call. */
#define RP_HOOK_WORK(name, parameters, arguments, take)                                                      \
  RP_HOOK(int, name, parameters) {                                                                           \
    struct rp_hook_work call;                                                                                \
    if (rp_hook_work_begin(&call)) take;                                                                     \
    int result = call.refused ? rp_hook_fail(#name, (void *)real_##name, RP_ABI_OUT_OF_MEMORY)               \
                              : real_##name arguments;                                                       \
    rp_hook_work_end(&call, result);                                                                         \
    return result;                                                                                           \
  }

#endif
