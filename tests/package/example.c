/* How a framework sizes its receive buffers with recvpool: plans 1F1B for one stage and prints the slot of
 * each microbatch. */
#include <inttypes.h>
#include <stdio.h>

#include <recvpool/plan.h>

int main(void) {
  const uint64_t tensor_bytes = 8u << 20;
  struct rp_plan_options options = RP_PLAN_OPTIONS_INIT;
  options.tensor_bytes = &tensor_bytes;
  options.tensor_count = 1;
  options.slack = 1;

  struct rp_plan *plan;
  char message[256];
  if (rp_plan_create_named("1f1b", 4, 1, 8, &options, &plan, message, sizeof message) != RP_OK) {
    fprintf(stderr, "%s\n", message);
    return 1;
  }
  struct rp_plan_pool pool;
  for (size_t i = 0; rp_plan_pool_get(plan, i, &pool) == RP_OK; i++) {
    if (pool.stage != 1) continue;
    printf("%s: %u buffers in %u slots, %" PRIu64 " bytes saved:",
           pool.direction == RP_PLAN_GRADIENT ? "gradient" : "activation", pool.buffers, pool.slots,
           pool.bytes_stock - pool.bytes_pooled);
    uint32_t slot;
    for (int32_t k = 0; rp_plan_slot(plan, 1, (enum rp_plan_direction)pool.direction, k, &slot) == RP_OK; k++)
      printf(" %u", slot);
    printf("\n");
  }
  rp_plan_destroy(plan);
  return 0;
}
