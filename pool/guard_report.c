/* What the report says of a guard, copied. */
#include "pool/guard_internal.h"
#include "pool/tracker.h"

#include <stdlib.h>
#include <string.h>

static const struct rp__guard_class *class_of(const struct rp_guard *guard, uint32_t pool_class) {
  for (uint32_t c = 0; c < guard->class_count; c++)
    if (guard->classes[c].pool_class == pool_class) return &guard->classes[c];
  return NULL;
}

static rp_status copy_classes(const struct rp_guard *guard, uint32_t count, struct rp_guard_report *out) {
  out->classes = calloc(count + (size_t)1, sizeof *out->classes);
  if (!out->classes) return RP_ERROR_NO_MEMORY;
  for (uint32_t id = 0; id < count; id++) {
    struct rp_guard_class_report *copy = &out->classes[out->class_count];
    const struct rp__guard_class *known = class_of(guard, id);
    if (rp_pool_class(guard->pool, id, &copy->info) || !copy->info.spec.slots) continue;
    if (known) copy->info.spec.buffers = known->buffers;
    copy->id = id;
    copy->stage = known ? known->stage : -1;
    copy->direction = known ? known->direction : RP_DIRECTION_UNKNOWN;
    copy->depth = known ? known->depth : 0;
    copy->slack = known ? known->slack : 0;
    copy->peer = known && known->peer >= 0 ? known->peer : -1;
    copy->declined = known && rp__guard_is_declined(guard, known->receive_bytes);
    out->class_count++;
  }
  return RP_OK;
}

static rp_status copy_conflicts(const struct rp_guard *guard, struct rp_guard_report *out) {
  const struct rp_pool_conflict *kept = rp_pool_conflicts(guard->pool, &out->conflict_count);
  out->conflicts = calloc(out->conflict_count + 1, sizeof *out->conflicts);
  if (!out->conflicts) return RP_ERROR_NO_MEMORY;
  if (out->conflict_count) memcpy(out->conflicts, kept, out->conflict_count * sizeof *kept);
  return RP_OK;
}

static rp_status copy_bindings(const struct rp_guard *guard, struct rp_guard_report *out) {
  out->bindings = calloc(out->pool.bound + (size_t)1, sizeof *out->bindings);
  if (!out->bindings) return RP_ERROR_NO_MEMORY;
  for (uint32_t id = 0; id < guard->buffer_count && out->binding_count < out->pool.bound; id++) {
    struct rp_pool_buffer_info info;
    if (rp_pool_buffer(guard->pool, id, &info) || info.binding != RP_POOL_BOUND) continue;
    out->bindings[out->binding_count++] =
        (struct rp_guard_binding){.address = info.address, .class_id = info.class_id, .slot = info.slot};
  }
  return RP_OK;
}

static rp_status copy_last_bindings(const struct rp_guard *guard, struct rp_guard_report *out) {
  size_t count = rp_pool_last_bindings(guard->pool, NULL);
  out->last_bindings = calloc(count + 1, sizeof *out->last_bindings);
  if (!out->last_bindings) return RP_ERROR_NO_MEMORY;
  out->last_binding_count = rp_pool_last_bindings(guard->pool, out->last_bindings);
  return RP_OK;
}

/* Buffers that were allocated and received into once others had been freed; fewer may be an accident. */
#define LEAST_JUST_IN_TIME 4

/* Whether buffers ever held less than one handle each would have. */
static bool has_shared(const struct rp_pool_account *account) {
  return account->saved_peak_bytes > 0 || account->one_to_one_peak_bytes > account->physical_peak_bytes;
}

/* Classes had buffers and have none any more; other allocations stay with the guard as long as the program
 * keeps them. */
static bool members_are_gone(const struct rp_guard_report *out) {
  bool ever = false;
  for (size_t i = 0; i < out->class_count; i++) {
    if (out->classes[i].info.buffers) return false;
    ever |= out->classes[i].info.account.one_to_one_peak_bytes > 0;
  }
  return ever || !out->pool.buffers;
}

static const char rounding_text[] =
    "Rounded up to the pieces in which the device gives memory, the buffers "
    "would hold no less shared than by themselves: they are left to the driver.";
const char rp__guard_wrong_size[] =
    "No message was received into an allocation of the size that was named; name that of the receives "
    "(buffer-bytes), or none, and the sizes are found.";
static const char elsewhere_text[] =
    "Messages have the size that was given, but do not lie in allocations of that size: they share larger "
    "ones with other data (buffers of 10 MiB and more get allocations of their own from PyTorch, unless "
    "its segments are expandable), or their memory is allocated in a way that the agent does not see.";
/* No size of the plan gains anything. */
static bool say_declined(const struct rp_guard *guard, struct rp_guard_report *out) {
  if (!guard->plan.usable || !rp__guard_sizes_declined(guard)) return false;
  out->idle_reason = "rounding";
  out->idle_text = rounding_text;
  return true;
}

/* Nothing was in the way, and no step has come as far as sharing. */
static void say_nothing_begun(const struct rp_guard *guard, struct rp_guard_report *out) {
  const struct rp__guard_plan *plan = &guard->plan;
  if (plan->given && guard->unowned_receives && !out->pool.receives) {
    out->idle_reason = rp_pool_reason_name(RP_POOL_SIZE_NEVER_SEEN);
    out->idle_text =
        guard->elsewhere_receives ? elsewhere_text : rp_pool_reason_text(RP_POOL_SIZE_NEVER_SEEN);
  } else if (!plan->given && guard->rounding_receives && !out->pool.receives) {
    out->idle_reason = "rounding";
    out->idle_text = guard->rounding_told;
  } else if ((guard->options.only_bytes || plan->hints) && guard->unowned_receives && !out->pool.receives) {
    out->idle_reason = rp_pool_reason_name(RP_POOL_SIZE_NEVER_SEEN);
    out->idle_text = guard->elsewhere_receives ? elsewhere_text : rp__guard_wrong_size;
  } else if (!plan->given && guard->mixed_receives && !out->pool.receives) {
    out->idle_reason = rp_reason_name(RP_REASON_SHARED_ALLOCATION);
    out->idle_text = rp_reason_text(RP_REASON_SHARED_ALLOCATION);
  } else if (guard->step == 1 && guard->just_in_time_receives >= LEAST_JUST_IN_TIME) {
    out->idle_reason = rp_reason_name(RP_REASON_JUST_IN_TIME);
    out->idle_text = rp_reason_text(RP_REASON_JUST_IN_TIME);
  } else {
    out->idle_reason = rp_reason_name(RP_REASON_TOO_FEW_STEPS);
    out->idle_text = rp_reason_text(RP_REASON_TOO_FEW_STEPS);
  }
}

/* Why nothing is shared. */
static void say_why(const struct rp_guard *guard, struct rp_guard_report *out) {
  const struct rp__guard_plan *plan = &guard->plan;
  bool steady = guard->stable >= guard->options.watch_steps;
  if (out->active) {
    out->idle_reason = out->idle_text = "";
  } else if (guard->options.blind) {
    out->idle_reason = rp_reason_name(RP_REASON_NO_ACCESS_EVIDENCE);
    out->idle_text =
        "CUPTI reports nothing here, so a use of a buffer could go unseen: memory is not shared; let "
        "the agent have CUPTI.";
  } else if (plan->given && !plan->usable) {
    out->idle_reason = "plan_not_usable";
    out->idle_text = plan->problem;
  } else if (guard->off) {
    out->idle_reason = guard->idle_word;
    out->idle_text = guard->idle_text;
  } else if (say_declined(guard, out)) {
    return;
  } else if (has_shared(&out->pool.account) && members_are_gone(out)) {
    out->idle_reason = "freed";
    out->idle_text = "The buffers that shared memory have been freed.";
  } else if (guard->activations && guard->idle_word) {
    out->idle_reason = guard->idle_word;
    out->idle_text = guard->idle_text;
  } else if (guard->activations) {
    out->idle_reason = "no_longer";
    out->idle_text =
        "The buffers that shared memory have memory of their own again; the conflicts and reasons "
        "say why.";
  } else if (!plan->given && guard->step > guard->options.watch_steps && !steady) {
    out->idle_reason = rp_reason_name(RP_REASON_UNSTABLE_PATTERN);
    out->idle_text = rp_reason_text(RP_REASON_UNSTABLE_PATTERN);
  } else if (!plan->given && guard->partial_receives && guard->partial_receives == out->pool.receives) {
    out->idle_reason = rp_reason_name(RP_REASON_SHARED_ALLOCATION);
    out->idle_text = rp_reason_text(RP_REASON_SHARED_ALLOCATION);
  } else if (!plan->given && steady && guard->idle_word) {
    out->idle_reason = guard->idle_word;
    out->idle_text = guard->idle_text;
  } else if (plan->unproven) {
    out->idle_reason = "plan_unproven";
    out->idle_text =
        "Before the first receive there were fewer unused allocations of this size than the plan has "
        "buffers, or twice as many: it may be of another schedule, and memory is shared once two equal steps "
        "were seen.";
  } else if (guard->any_departed) {
    out->idle_reason = "plan_does_not_fit";
    out->idle_text = "The receives of this run do not come in the order that the plan lists, and which class "
                     "they belong to cannot be told; make the plan from a run of this schedule.";
  } else if (plan->given && out->pool.receives && !has_shared(&out->pool.account)) {
    out->idle_reason = "plan_saves_nothing";
    out->idle_text =
        "By the plan no two of the buffers that were received into share memory: as many messages "
        "are in use at once, or the plan is of another schedule than the run has, which recvpool "
        "plan --compare tells.";
  } else {
    say_nothing_begun(guard, out);
  }
}

static uint64_t guard_bytes(const struct rp_guard *guard) {
  return sizeof *guard + rp_pool_bytes(guard->pool) + guard->buffer_capacity * sizeof *guard->buffers +
         guard->class_count * sizeof *guard->classes +
         (guard->received.capacity + guard->received_before.capacity + guard->unready.capacity) *
             sizeof(struct rp__guard_entry) +
         guard->plan.template_count * sizeof *guard->plan.templates +
         guard->plan.item_count * sizeof *guard->plan.items +
         guard->plan.peer_count * sizeof *guard->plan.ring_of +
         guard->plan.size_count * sizeof *guard->plan.sizes + RP__GUARD_PENDING * sizeof *guard->pending;
}

static void copy_counters(const struct rp_guard *guard, struct rp_guard_report *out) {
  out->steps = guard->step - 1;
  out->activated_step = guard->activated_step;
  out->activated_ns = guard->activated_ns;
  out->activation_duration_ns = guard->activation_duration_ns;
  out->activations = guard->activations;
  out->activations_postponed = guard->postponements;
  out->slack = guard->options.slack_auto ? guard->slack_found : guard->options.slack;
  out->receives_waited = guard->receives_waited;
  out->waits_timed = guard->waits_timed;
  out->wait_ns = guard->wait_ns;
  out->double_frees = guard->double_frees;
  out->freed_forgotten = guard->freed_forgotten;
  out->pending_dropped = guard->pending_dropped;
  out->evidence_merged = guard->evidence_merged;
  out->unowned_receives = guard->unowned_receives;
  uint64_t rounding_most =
      guard->plan.given || guard->activations ? guard->rounding_peak_bytes : guard->rounding_before_bytes;
  out->rounding_peak_bytes = rp__guard_rounding_bytes(guard);
  if (rounding_most > out->rounding_peak_bytes) out->rounding_peak_bytes = rounding_most;
  out->boundary_failures = guard->boundary_failures;
  out->plan_departed = guard->any_departed;
  out->concealed = guard->concealed;
  out->order = rp_order_counts(guard->order);
  out->guard_bytes = guard_bytes(guard);
}

rp_status rp_guard_report(const struct rp_guard *guard, struct rp_guard_report *out) {
  *out = (struct rp_guard_report){.planned = guard->plan.given};
  rp_pool_info(guard->pool, &out->pool);
  out->active = out->pool.bound > 0;
  rp_status status = copy_classes(guard, out->pool.classes, out);
  if (!status) status = copy_bindings(guard, out);
  if (!status) status = copy_last_bindings(guard, out);
  if (!status) status = copy_conflicts(guard, out);
  if (status) {
    rp_guard_report_fini(out);
    return status;
  }
  copy_counters(guard, out);
  say_why(guard, out);
  return RP_OK;
}

void rp_guard_report_fini(struct rp_guard_report *report) {
  free(report->classes);
  free(report->bindings);
  free(report->last_bindings);
  free(report->conflicts);
  *report = (struct rp_guard_report){0};
}
