/* Fuzzes the schedule reader and everything behind it: whatever is accepted must be checked, lowered,
 * written, read back to the same text and planned without a conflict. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "pool/plan.h"
#include "pool/schedule.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int condition) {
  if (!condition) abort();
}

/* Accepted text comes back as it went out. */
static void round_trip(const struct rp_schedule *s) {
  char *first, *second;
  size_t first_length, second_length;
  struct rp_schedule again;
  if (rp_schedule_print(s, &first, &first_length)) return;
  require(rp_schedule_parse(first, first_length, &again, NULL) == RP_OK);
  require(again.lowered == s->lowered && again.stages == s->stages && again.microbatches == s->microbatches);
  require(rp_schedule_print(&again, &second, &second_length) == RP_OK);
  require(first_length == second_length && memcmp(first, second, first_length) == 0);
  rp_schedule_fini(&again);
  free(first);
  free(second);
}

static void plan(const struct rp_schedule *s, int granularity) {
  struct rp_plan_options options = RP_PLAN_OPTIONS_INIT;
  struct rp_plan *made;
  options.granularity = granularity;
  if (rp__plan_from_schedule(s, &options, &made)) return;
  for (size_t i = 0; i < made->class_count; i++) {
    const struct rp_plan_class *c = &made->classes[i];
    require(c->slots == c->depth && c->depth <= c->buffers);
    for (size_t a = c->first; a < c->first + c->buffers; a++)
      for (size_t b = a + 1; b < c->first + c->buffers && b < a + 64; b++) {
        struct rp_interval x = made->items[made->members[a]].interval,
                           y = made->items[made->members[b]].interval;
        require(made->slots[a] != made->slots[b] || x.end < y.begin || y.end < x.begin);
      }
  }
  rp_plan_destroy(made);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct rp_schedule s;
  struct rp_schedule_error error = {0};
  if (rp_schedule_parse((const char *)data, size, &s, &error)) {
    require(error.message[0] && !strchr(error.message, '\n') && !strchr(error.token, '\n'));
    return 0;
  }
  if (rp_schedule_check(&s, &error) == RP_OK) {
    round_trip(&s);
    rp_status status = rp_schedule_lower_as(&s, (enum rp_lowering)(size % 3), &error);
    if (!status) require(rp_schedule_check(&s, &error) == RP_OK);
    if (!status) plan(&s, (int)(size % RP_PLAN_GRANULARITY_COUNT));
  } else {
    require(error.message[0] && !strchr(error.message, '\n'));
  }
  rp_schedule_fini(&s);
  return 0;
}
