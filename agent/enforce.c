/* The guards: one for each device, made when the device's first candidate is allocated (enforce) or its first
 * event arrives (observe). Owns the table of devices and what is known from the start on. */
#include "agent/enforce.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/agent.h"
#include "agent/enforce_internal.h"
#include "agent/enforce_plan.h"
#include "agent/identity.h"
#include "agent/log.h"
#include "agent/ordering.h"

_Atomic bool rp_enforce_on_value;
struct rp__enforce rp__enforce;

/* ---- reasons ---- */

void rp__refuse(struct rp__device *device, const char *format, ...) {
  char *into = device ? device->refused : rp__enforce.refused;
  size_t size = device ? sizeof device->refused : sizeof rp__enforce.refused;
  if (into[0]) return;
  va_list arguments;
  va_start(arguments, format);
  (void)vsnprintf(into, size, format, arguments);
  va_end(arguments);
  rp_warn("enforce: %s", into);
}

/* Launchers load the agent too, and are no rank of any plan: they are told nothing. */
static void refuse_quietly(const char *problem) {
  struct rp__enforce *e = &rp__enforce;
  (void)snprintf(e->refused, sizeof e->refused, "%s", problem);
  e->plan_size_count = rp_enforce_plan_sizes(&e->config, e->plan_sizes, RP_ENFORCE_PLAN_SIZES);
  e->unsaid = true;
}

void rp__say_refusal(void) {
  if (!rp__enforce.unsaid) return;
  rp__enforce.unsaid = false;
  rp_warn_urgent("enforce: %s", rp__enforce.refused); /* the process's one line may be out by now */
}

/* Frameworks round sizes up to 2 MiB. */
void rp__note_planned_size(uint64_t bytes) {
  for (size_t i = 0; rp__enforce.unsaid && i < rp__enforce.plan_size_count; i++)
    if (bytes >= rp__enforce.plan_sizes[i] && bytes - rp__enforce.plan_sizes[i] < (UINT64_C(2) << 20))
      rp__say_refusal();
}

/* ---- the guards' view ---- */

static void watch(void *context, uint64_t begin, uint64_t end) {
  (void)context;
  rp_agent_watch(begin, end);
}

static void unwatch(void *context, uint64_t begin, uint64_t end) {
  (void)context;
  rp_agent_unwatch(begin, end);
}

static bool same_members(void *context, uint64_t comm, uint64_t other) {
  (void)context;
  return rp_agent_same_members(comm, other, rp__enforce.world_size);
}

static void fill_options(struct rp_guard_options *options) {
  const struct rp_config *config = &rp__enforce.config;
  *options = (struct rp_guard_options){
      .shadow = rp__enforce.shadow,
      .strict = config->strict && !rp__enforce.shadow,
      .unguarded = rp__enforce.unguarded,
      .blind = !rp_cupti_active() && !rp__enforce.shadow,
      .every_touch_seen = rp_cupti_active() && config->cupti == RP_CUPTI_ALWAYS,
      .slack = config->slack,
      .slack_auto = config->slack_auto,
      .headroom_bytes = rp__enforce.shadow ? 0 : config->headroom_bytes,
      .only_bytes = config->buffer_bytes,
      .on_violation = config->on_violation,
      .sends_told = true,
  };
}

/* A plan leaves memory out where nothing has touched the memory before it. Who cannot see every touch may not
 * do that: then buffers share only once they were watched. */
const struct rp_guard_plan *rp__plan(void) {
  if (!rp__enforce.plan || rp_cupti_active()) return rp__enforce.plan;
  if (rp__enforce.config.cupti != RP_CUPTI_LEARN)
    rp_warn(
        "enforce: without CUPTI nothing is shared, by a plan or without: calls of libraries with a runtime of "
        "their own are not seen");
  return NULL;
}

/* While acting, or for a shadow. */
static rp_status create_guard(struct rp__device *device, struct rp_guard **out) {
  const struct rp_guard_sink sink = {.watch = watch, .unwatch = unwatch, .same_members = same_members};
  struct rp_guard_options options;
  struct rp_backend backend;
  fill_options(&options);
  const struct rp_guard_plan *plan = rp__plan();
  device->planned = plan != NULL;
  if (device->memory) rp__backend(device, &backend);
  rp_status status =
      rp_guard_create(&options, device->memory ? &backend : NULL, rp__enforce.order, plan, out);
  if (status != RP_OK) return status;
  rp_guard_set_sink(*out, &sink);
  if (rp__gate_fallback() != RP_POOL_NO_REASON) rp_guard_request_fallback(*out, rp__gate_fallback());
  return RP_OK;
}

/* While acting, without the lock. */
static rp_status open_memory(struct rp__device *device, char *reason, size_t size) {
  rp_status status = rp_device_memory_open(device->ordinal, &device->memory, reason, size);
  if (status != RP_OK) return status;
  device->context = rp_device_current_context();
  rp_device_memory_backend(device->memory, &device->driver);
  for (int peer = 0; peer < RP_ENFORCE_DEVICES; peer++)
    if (device->peers >> peer & 1u) (void)rp_device_memory_add_peer(device->memory, peer);
  return RP_OK;
}

/* With a plan, memory is made to be tried out. */
static void refuse_guard(struct rp__device *device, rp_status status) {
  struct rp_device_memory_info info;
  rp_device_memory_info(device->memory, &info);
  if (status == RP_ERROR_NO_MEMORY && info.failures)
    rp__refuse(device, "no_device_memory: the device had no memory left to try sharing it with: %s",
               rp_device_memory_error());
  else
    rp__refuse(device, "guard_failed: the guard could not be made: %s", rp_status_text(status));
}

/* Acts. */
static void open_device(struct rp__device *device) {
  char reason[200] = "";
  struct rp_guard *guard = NULL;
  rp__gate_act();
  rp_agent_unlock();
  rp_status opened = open_memory(device, reason, sizeof reason);
  (void)rp_agent_lock();
  rp_status status = opened == RP_OK ? create_guard(device, &guard) : opened;
  rp__gate_acted();
  device->guard = guard;
  if (opened != RP_OK)
    rp__refuse(device, "no_virtual_memory: %s", reason[0] ? reason : rp_status_text(opened));
  else if (status != RP_OK)
    refuse_guard(device, status);
}

struct rp__device *rp__device_get(int ordinal) {
  if (ordinal < 0 || ordinal >= RP_ENFORCE_DEVICES || rp__enforce.refused[0]) return NULL;
  struct rp__device *device = &rp__enforce.devices[ordinal];
  if (!device->tried) {
    device->tried = true;
    device->ordinal = ordinal;
    if (rp__enforce.shadow)
      (void)create_guard(device, &device->guard);
    else
      open_device(device);
  }
  return device->guard ? device : NULL;
}

struct rp__device *rp__device_of(uint64_t address) {
  for (int i = 0; i < RP_ENFORCE_DEVICES; i++) {
    struct rp__device *device = &rp__enforce.devices[i];
    if (device->guard && rp_guard_owns(device->guard, address, NULL, NULL, NULL)) return device;
  }
  return NULL;
}

/* ---- life ---- */

static const struct rp_agent_listener listener = {
    .seen = rp__seen,
    .memory = rp__other_memory,
    .ungated_receive = rp__ungated_receive,
    .communicator = rp__say_refusal,
};

static int world_size(void) {
  struct rp_process_info process;
  rp_identity_rank(&process);
  return process.world_size;
}

rp_status rp_enforce_start(const struct rp_config *config, const struct rp_guard_plan *plan,
                           const char *plan_problem) {
  const char *unguarded = getenv("RECVPOOL_TEST_UNGUARDED");
  rp__enforce.config = *config;
  rp__enforce.plan = plan;
  rp__enforce.shadow = config->mode != RP_MODE_ENFORCE;
  rp__enforce.unguarded = unguarded && strcmp(unguarded, "1") == 0;
  rp__enforce.world_size = world_size();
  rp__enforce.order = rp_ordering();
  if (!rp__enforce.order) return RP_ERROR_NO_MEMORY;
  if (!rp__enforce.shadow && plan_problem && plan_problem[0]) {
    if (strncmp(plan_problem, RP_PLAN_RANK_UNKNOWN ":", sizeof RP_PLAN_RANK_UNKNOWN) == 0)
      refuse_quietly(plan_problem);
    else
      rp__refuse(NULL, "%s", plan_problem);
  }
  rp_agent_set_listener(&listener);
  if (!rp__enforce.shadow) rp_ordering_use_gate(rp__gate_enter);
  atomic_store_explicit(&rp_enforce_on_value, !rp__enforce.shadow && !rp__enforce.refused[0],
                        memory_order_release);
  return RP_OK;
}
