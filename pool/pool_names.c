/* Fixed words for JSON and sentences for people. */
#include "pool/pool.h"

#define WORD(table, value) ((size_t)(value) < sizeof(table) / sizeof *(table) ? (table)[value] : "unknown")

const char *rp_pool_binding_name(enum rp_pool_binding binding) {
  static const char *const words[] = {"unbound", "bound", "private", "gone"};
  return WORD(words, binding);
}

const char *rp_pool_life_name(enum rp_pool_life life) {
  static const char *const words[] = {"dead", "posted", "live", "released"};
  return WORD(words, life);
}

const char *rp_pool_conflict_name(enum rp_pool_conflict_kind kind) {
  static const char *const words[] = {"none",         "early_reuse",   "unordered_reuse", "foreign_access",
                                      "stale_access", "size_mismatch", "escaped_pointer", "interrupted_step",
                                      "double_free",  "unclear_access"};
  return WORD(words, kind);
}

static const struct {
  const char *word, *sentence;
} reasons[RP_POOL_REASON_COUNT] = {
    [RP_POOL_NO_REASON] = {"none", "Nothing kept a buffer from sharing."},
    [RP_POOL_SIZE_NEVER_SEEN] =
        {"size_never_seen", "An allocation or receive has a size that the plan does not contain; make the "
                            "plan with the sizes of this run."},
    [RP_POOL_MORE_BUFFERS] = {"more_buffers",
                              "There are more allocations of a planned size than the plan counts; those have "
                              "memory of their own."},
    [RP_POOL_MORE_IN_FLIGHT] =
        {"more_in_flight",
         "When a receive was posted, no slot was known to be done with: all were in use, or their "
         "messages were not read as in the steps before; plan more slots or add slack."},
    [RP_POOL_FIRST_TOUCH] =
        {"first_touch", "Allocations of a planned size that something other than a receive used first are no "
                        "receive buffers: they have memory of their own, as they should."},
    [RP_POOL_OTHER_CLASS] =
        {"other_class", "A receive belongs to no planned class of its size, or to more than one; make the "
                        "plan from a run of this job."},
    [RP_POOL_CONFLICT] =
        {"conflict", "The guard gave a buffer memory of its own to keep reuse safe; see the conflicts of the "
                     "process (recvpool report --json has all that were kept)."},
    [RP_POOL_GRAPH_CAPTURED] = {"graph_captured",
                                "A captured graph names the buffer, so it keeps memory of its own."},
    [RP_POOL_REGISTERED] =
        {"registered", "The buffer is registered with the communication library, so it keeps memory of its "
                       "own; NCCL_LOCAL_REGISTER=0 avoids that."},
    [RP_POOL_ESCAPED] = {"escaped",
                         "The buffer was exported to another process, so it keeps memory of its own."},
    [RP_POOL_OUT_OF_MEMORY] = {"out_of_memory", "The device had no memory for what was asked of it."},
    [RP_POOL_BACKEND_FAILED] = {"backend_failed", "The driver refused to map or unmap memory."},
    [RP_POOL_ALIAS_CHECK_FAILED] = {"alias_check_failed",
                                    "A word written through one address was not seen through another, so "
                                    "memory is not shared on this device."},
    [RP_POOL_NOTHING_TO_SHARE] =
        {"nothing_to_share", "Too few buffers are left to share a slot once those are taken out that are "
                             "registered, exported or in a graph."},
    [RP_POOL_STEP_INTERRUPTED] =
        {"step_interrupted", "A step was broken off with receives open, so all buffers got memory of their "
                             "own before the next one."},
    [RP_POOL_SWITCHED_OFF] = {"switched_off",
                              "The pool was switched off by recvpool disable, or a file that says so."},
    [RP_POOL_RECEIVE_NOT_GATED] =
        {"receive_not_gated",
         "A receive was seen only after it had been launched, when nothing could be done "
         "before it; use a build with the shared libnccl."},
    [RP_POOL_CALLS_UNSTOPPABLE] =
        {"calls_unstoppable",
         "A library of the process (cuBLAS, for one) uses memory by calls that can be seen but not "
         "stopped, so buffers have memory of their own until their first receive."},
    [RP_POOL_MEMORY_SHORT] =
        {"memory_short",
         "The device ran out of memory, so buffers that nothing had used gave theirs up before their "
         "first receive."},
};

const char *rp_pool_reason_name(enum rp_pool_reason reason) {
  return (size_t)reason < RP_POOL_REASON_COUNT ? reasons[reason].word : "unknown";
}

const char *rp_pool_reason_text(enum rp_pool_reason reason) {
  return (size_t)reason < RP_POOL_REASON_COUNT ? reasons[reason].sentence : "Unknown reason.";
}
