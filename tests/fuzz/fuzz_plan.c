/* Fuzzes the plan reader: what it accepts must be consistent. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "agent/enforce_plan.h"
#include "agent/plan_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int condition) {
  if (!condition) abort();
}

/* What the guard would be told of a rank. */
static void enforce(const struct rp_planned *planned, size_t rank) {
  struct rp_guard_plan *plan = NULL;
  char message[256] = "";
  if (rp__enforce_plan_build(planned, rank, &plan, message, sizeof message)) {
    require(message[0] && !strchr(message, '\n') && !plan);
    return;
  }
  uint64_t buffers = 0;
  for (uint32_t i = 0; i < plan->class_count; i++) {
    require(plan->classes[i].receive_bytes > 0 && plan->classes[i].slots >= 1);
    buffers += plan->classes[i].buffers;
  }
  require(buffers == plan->receive_count);
  for (size_t i = 0; i < plan->receive_count; i++) {
    const struct rp_guard_planned_receive *r = &plan->receives[i];
    require(r->class_index < plan->class_count && r->slot < plan->classes[r->class_index].slots);
    require(r->begin <= r->end && r->source != UINT32_MAX);
  }
  rp_enforce_plan_free(plan);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct rp_planned planned;
  char message[256] = "";
  if (rp_plan_parse((const char *)data, size, "fuzz", &planned, message, sizeof message)) {
    require(message[0] && !strchr(message, '\n'));
    return 0;
  }
  for (size_t i = 0; i < planned.class_count; i++) {
    const struct rp_planned_class *c = &planned.classes[i];
    require(c->depth >= 1 && c->depth <= c->slots && c->slots <= c->buffers && c->tensors >= 1);
    for (uint32_t k = 0; k < c->buffers / c->tensors; k++)
      require(c->slot[k] < c->slots / c->tensors);
  }
  for (size_t rank = 0; rank < rp_planned_rank_count(&planned) && rank < 4; rank++)
    enforce(&planned, rank);
  rp_planned_fini(&planned);
  return 0;
}
