/* Fuzzes the plan reader: what it accepts must be consistent. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "agent/plan_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int condition) {
  if (!condition) abort();
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
  rp_planned_fini(&planned);
  return 0;
}
