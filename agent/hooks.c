/* The hook tables as one: scanning and counting. */
#include "agent/hooks.h"

#include <pthread.h>
#include <string.h>

#include "agent/reporter.h"
#include "agent/state.h"

/* Never touched: the driver and the tools' library call each other in ways that are no business of ours. */
static const char *const skip[] = {"libcuda.so", "libcupti.so", "librecvpool.so", NULL};

#define HOOKS_MAX 512
static struct rp_hook all[HOOKS_MAX]; /* the tables of hooks_*.c, one after the other */
static size_t all_count;
static pthread_once_t joined = PTHREAD_ONCE_INIT;

static void join(void) {
  const struct {
    const struct rp_hook *hooks;
    size_t count;
  } tables[] = {
      {rp_hooks_nccl, rp_hooks_nccl_count},       {rp_hooks_collectives, rp_hooks_collectives_count},
      {rp_hooks_memory, rp_hooks_memory_count},   {rp_hooks_pointers, rp_hooks_pointers_count},
      {rp_hooks_context, rp_hooks_context_count}, {rp_hooks_work, rp_hooks_work_count},
      {rp_hooks_copies, rp_hooks_copies_count},   {rp_hooks_order, rp_hooks_order_count},
  };
  for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++)
    for (size_t j = 0; j < tables[i].count && all_count < HOOKS_MAX; j++)
      all[all_count++] = tables[i].hooks[j];
}

void rp_hooks_scan(struct rp_interpose_result *result) {
  (void)pthread_once(&joined, join);
  rp_interpose_scan(all, all_count, skip, result);
}

void rp_hooks_count(const char *prefix, unsigned *slots, unsigned *conflicts) {
  *slots = *conflicts = 0;
  for (size_t i = 0; i < all_count; i++) {
    if (strncmp(all[i].name, prefix, strlen(prefix)) != 0) continue;
    *slots += all[i].slots;
    *conflicts += all[i].conflicts;
  }
}

unsigned rp_hooks_callers(const char *name) {
  for (size_t i = 0; i < all_count; i++)
    if (strcmp(all[i].name, name) == 0) return all[i].slots - all[i].own_slots;
  return 0;
}

void rp_hook_look_for_modules(void) {
  if (rp_state_is_on()) rp_reporter_wait_for_modules();
}
