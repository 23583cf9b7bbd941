/* A plan again from the receives that its file lists: what a comparison needs of a saved plan. */
#include <stdlib.h>
#include <string.h>

#include "agent/plan_command.h"

struct items {
  struct rp_plan_item *list;
  size_t count;
  int32_t stages, microbatches; /* the largest of each, + 1 */
  int32_t *home;                /* [65536] rank of each stage, -1 = not seen */
};

static rp_status take_rank(struct items *items, const struct rp_planned_receive *receives, size_t count,
                           int32_t rank, char *message, size_t message_size) {
  struct rp_plan_item *grown = realloc(items->list, (items->count + count + 1) * sizeof(*grown));
  if (!grown) return RP_ERROR_NO_MEMORY;
  items->list = grown;
  for (size_t i = 0; i < count; i++) {
    const struct rp_planned_receive *r = &receives[i];
    if (items->home[r->stage] >= 0 && items->home[r->stage] != rank) {
      snprintf(message, message_size, "stage %d receives on ranks %d and %d; make the plan again",
               (int)r->stage, (int)items->home[r->stage], (int)rank);
      return RP_ERROR_INVALID;
    }
    items->home[r->stage] = rank;
    if (r->stage >= items->stages) items->stages = r->stage + 1;
    if (r->microbatch >= items->microbatches) items->microbatches = r->microbatch + 1;
    items->list[items->count++] = (struct rp_plan_item){.interval = {r->begin, r->end},
                                                        .rank = rank,
                                                        .stage = r->stage,
                                                        .bytes = r->bytes,
                                                        .microbatch = r->microbatch,
                                                        .direction = r->direction};
  }
  return RP_OK;
}

static rp_status take_ranks(struct items *items, const struct rp_planned *planned, char *message,
                            size_t message_size) {
  size_t ranks = rp_planned_rank_count(planned);
  rp_status status = RP_OK;
  if (ranks == 0 || ranks > RP_PLAN_MOST_RANKS) {
    snprintf(message, message_size, "the lists of receives are missing or wrong; make the plan again");
    return RP_ERROR_INVALID;
  }
  for (size_t r = 0; !status && r < ranks; r++) {
    struct rp_planned_receive *receives;
    size_t count;
    status = rp_planned_receives(planned, r, &receives, &count, message, message_size);
    if (status) break;
    status = take_rank(items, receives, count, (int32_t)r, message, message_size);
    free(receives);
  }
  if (status) return status;
  if (items->count && items->count < UINT32_MAX &&
      (uint64_t)items->stages * (uint64_t)items->microbatches <= RP_PLAN_MOST_PAIRS)
    return RP_OK;
  snprintf(message, message_size, "it lists %s receives; make the plan again",
           items->count ? "more than any plan has" : "no");
  return RP_ERROR_INVALID;
}

rp_status rp_plan_from_plan(const char *path, const char *text, size_t length,
                            const struct rp_plan_options *options, struct rp_plan **out, char *message,
                            size_t message_size) {
  struct rp_planned planned;
  rp_status status = rp_plan_parse(text, length, path, &planned, message, message_size);
  if (status) return status;
  char what[256] = "";
  struct items items = {.home = malloc((RP_PLAN_MOST_STAGE + 1) * sizeof(*items.home))};
  if (items.home) memset(items.home, 0xff, (RP_PLAN_MOST_STAGE + 1) * sizeof(*items.home));
  status = items.home ? take_ranks(&items, &planned, what, sizeof(what)) : RP_ERROR_NO_MEMORY;
  if (!status)
    status = rp__plan_build(items.list, items.count, (int32_t)rp_planned_rank_count(&planned), items.stages,
                            items.microbatches, options, out);
  else
    free(items.list);
  if (status) snprintf(message, message_size, "%s: %s", path, what[0] ? what : rp_status_text(status));
  free(items.home);
  rp_planned_fini(&planned);
  return status;
}
