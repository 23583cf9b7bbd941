/* The hook tables as one: scanning and counting. */
#include "agent/hooks.h"

#include <string.h>

#include "agent/reporter.h"
#include "agent/state.h"

/* Never touched: the driver and the tools' library call each other in ways that are no business of ours. */
static const char *const skip[] = {"libcuda.so", "libcupti.so", "librecvpool.so", NULL};

struct table {
  struct rp_hook *hooks;
  const size_t *count;
};

static const struct table tables[] = {
    {rp_hooks_nccl, &rp_hooks_nccl_count},
    {rp_hooks_memory, &rp_hooks_memory_count},
    {rp_hooks_work, &rp_hooks_work_count},
    {rp_hooks_order, &rp_hooks_order_count},
};
#define TABLES (sizeof tables / sizeof tables[0])

void rp_hooks_scan(struct rp_interpose_result *result) {
  memset(result, 0, sizeof *result);
  for (size_t i = 0; i < TABLES; i++) {
    struct rp_interpose_result one;
    rp_interpose_scan(tables[i].hooks, *tables[i].count, skip, &one);
    result->patched += one.patched;
    result->failed += one.failed;
    result->modules = one.modules;
  }
}

void rp_hooks_count(const char *prefix, unsigned *slots, unsigned *conflicts) {
  *slots = *conflicts = 0;
  for (size_t i = 0; i < TABLES; i++)
    for (size_t j = 0; j < *tables[i].count; j++) {
      const struct rp_hook *hook = &tables[i].hooks[j];
      if (strncmp(hook->name, prefix, strlen(prefix)) != 0) continue;
      *slots += hook->slots;
      *conflicts += hook->conflicts;
    }
}

void *rp_hooks_real(const char *name) {
  for (size_t i = 0; i < TABLES; i++)
    for (size_t j = 0; j < *tables[i].count; j++)
      if (strcmp(tables[i].hooks[j].name, name) == 0)
        return __atomic_load_n(tables[i].hooks[j].real, __ATOMIC_ACQUIRE);
  return NULL;
}

void rp_hook_look_for_modules(void) {
  if (rp_state_is_on()) rp_reporter_wait_for_modules();
}
