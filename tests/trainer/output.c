// The lines on standard output, the same for trainer and reference.
#include <inttypes.h>
#include <stdio.h>

#include "rank.h"
#include "stage.h"

void rp_loss_print(int32_t step, bool evaluation, float loss) {
  printf(evaluation ? "evaluation after step %" PRId32 " loss %.9g %a\n" : "step %" PRId32 " loss %.9g %a\n",
         step, (double)loss, (double)loss);
  fflush(stdout);
}

void rp_rank_print(int rank, const struct rp_rank_result *result, const struct rp_stage_result *stages) {
  uint64_t sum = 0;
  for (uint64_t i = 0; i < result->stage_count; i++)
    sum = rp_checksum_add(sum, stages[i].checksum);
  printf("rank %d parameters %016" PRIx64 " peak_device_bytes %" PRIu64 "\n", rank, sum,
         result->peak_device_bytes);
}
