/* What the report says of enforcing, copied out under the lock. */
#include "agent/enforce.h"

#include <stdio.h>
#include <string.h>

#include "agent/agent.h"
#include "agent/enforce_internal.h"

/* The report thread waits no longer than this for somebody who acts; its next report says more. */
#define COLLECT_WAIT_NS UINT64_C(1000000000)

uint64_t rp_enforce_violations(void) {
  uint64_t violations = 0;
  if (!rp__gate_enter_within(COLLECT_WAIT_NS)) return 0;
  for (int i = 0; i < RP_ENFORCE_DEVICES; i++)
    if (rp__enforce.devices[i].guard) violations += rp_guard_violations(rp__enforce.devices[i].guard);
  rp_agent_unlock(); /* the report does not end the process */
  return violations;
}

/* Inside the gate. Steps since buffers began to share; false: they do not. */
static bool sharing_steps(const struct rp_guard *guard, uint64_t *steps) {
  struct rp_guard_report report;
  if (rp_guard_report(guard, &report) != RP_OK) return false;
  bool active = report.active;
  *steps = report.steps - report.activated_step;
  rp_guard_report_fini(&report);
  return active;
}

bool rp_enforce_active(uint64_t *steps) {
  bool active = false;
  if (rp__enforce.shadow || !rp__gate_enter_within(COLLECT_WAIT_NS)) return false;
  *steps = UINT64_MAX;
  for (int i = 0; i < RP_ENFORCE_DEVICES; i++) {
    uint64_t of_device;
    const struct rp_guard *guard = rp__enforce.devices[i].guard;
    if (!guard || !sharing_steps(guard, &of_device)) continue;
    active = true;
    if (of_device < *steps) *steps = of_device;
  }
  rp_agent_unlock();
  return active;
}

static const char other_context[] = "other_context: the program allocates in a context of its own making; "
                                    "only memory of the device's primary "
                                    "context, the one that the CUDA runtime uses, is shared";

/* Inside the gate. */
static rp_status collect_device(const struct rp__device *device, struct rp_enforce_device *out) {
  out->ordinal = (int)(device - rp__enforce.devices);
  bool elsewhere = !device->guard && device->other_context && !device->refused[0];
  (void)snprintf(out->refused, sizeof out->refused, "%s", elsewhere ? other_context : device->refused);
  if (device->memory) rp_device_memory_info(device->memory, &out->memory);
  return device->guard ? rp_guard_report(device->guard, &out->guard) : RP_OK;
}

bool rp_enforce_collect(struct rp_enforce_report *out) {
  memset(out, 0, sizeof *out);
  if (!rp__gate_enter_within(COLLECT_WAIT_NS)) return false;
  rp_status status = RP_OK;
  out->shadow = rp__enforce.shadow;
  out->milestones = rp__milestone_counts;
  (void)snprintf(out->refused, sizeof out->refused, "%s", rp__enforce.unsaid ? "" : rp__enforce.refused);
  for (int i = 0; i < RP_ENFORCE_DEVICES && status == RP_OK; i++)
    if (rp__enforce.devices[i].tried || rp__enforce.devices[i].other_context)
      status = collect_device(&rp__enforce.devices[i], &out->devices[out->device_count++]);
  rp_agent_unlock(); /* the report does not end the process */
  if (status != RP_OK) rp_enforce_report_fini(out);
  return status == RP_OK;
}

void rp_enforce_report_fini(struct rp_enforce_report *report) {
  for (size_t i = 0; i < report->device_count; i++)
    rp_guard_report_fini(&report->devices[i].guard);
  memset(report, 0, sizeof *report);
}
