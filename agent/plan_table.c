/* Plans for people: the table, the timeline of slots, and where a run departs from its plan. */
#include <stdlib.h>
#include <string.h>

#include "agent/plan_command.h"

static void format_bytes(uint64_t bytes, char *out, size_t out_size) {
  static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = (double)bytes;
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < sizeof units / sizeof units[0]; unit++)
    value /= 1024;
  snprintf(out, out_size, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
}

/* --- table --- */

static void print_bytes(FILE *out, uint64_t stock, uint64_t pooled) {
  const uint64_t values[] = {stock, pooled, stock - pooled};
  for (size_t i = 0; i < 3; i++) {
    char text[32];
    format_bytes(values[i], text, sizeof(text));
    fprintf(out, " %11s", text);
  }
}

static void print_pool(const struct rp_plan_pool *p, bool sizes, FILE *out) {
  char existing[16] = "-";
  if (p->existing_slots) snprintf(existing, sizeof(existing), "%u", p->existing_slots);
  fprintf(out, "%4d %5d %-10s %8u %5u %5u %8s %*s", (int)p->rank, (int)p->stage,
          rp_direction_name((enum rp_direction)p->direction), p->buffers, p->depth, p->slots, existing,
          sizes ? -5 : 0,
          p->slots == p->buffers ? "-"
          : p->ring              ? "ring"
                                 : "table");
  if (sizes) print_bytes(out, p->bytes_stock, p->bytes_pooled);
  fputc('\n', out);
}

/* What the other granularities would need, and the sums. */
static void print_totals(const struct rp_plan *plan, int32_t replicas, bool sizes, FILE *out) {
  uint64_t slots[RP_PLAN_GRANULARITY_COUNT] = {0};
  struct rp_plan_totals t;
  rp_plan_totals_get(plan, &t);
  for (int32_t r = 0; r < plan->ranks; r++)
    for (int g = 0; g < RP_PLAN_GRANULARITY_COUNT; g++)
      slots[g] += plan->rank[r].slots[g];
  fprintf(out,
          "\nSlots without slack: %llu shared by stage, %llu by direction, %llu by rank, for %llu buffers.\n",
          (unsigned long long)slots[0], (unsigned long long)slots[1], (unsigned long long)slots[2],
          (unsigned long long)t.buffers);
  fprintf(out, "With slack %u and granularity %s: %llu slots", plan->options.slack,
          rp_plan_granularity_name(plan->options.granularity), (unsigned long long)t.slots);
  if (!sizes) {
    fputs(".\nGive --buffer-bytes or --tensor to see bytes.\n", out);
    return;
  }
  char text[3][32];
  uint64_t n = (uint64_t)replicas;
  format_bytes(t.bytes_stock * n, text[0], sizeof(text[0]));
  format_bytes(t.bytes_pooled * n, text[1], sizeof(text[1]));
  format_bytes((t.bytes_stock - t.bytes_pooled) * n, text[2], sizeof(text[2]));
  fprintf(out, "; the job needs %s instead of %s and saves %s", text[1], text[0], text[2]);
  if (replicas > 1) fprintf(out, " (%d replicas)", (int)replicas);
  fputs(".\n", out);
}

void rp_plan_print(const struct rp_plan *plan, const struct rp_plan_provenance *provenance, int32_t stage,
                   FILE *out) {
  struct rp_plan_totals t;
  rp_plan_totals_get(plan, &t);
  bool sizes = t.bytes_stock > 0;
  fprintf(out, "%s: %d ranks, %d stages, %d microbatches\n\n", provenance->source, (int)plan->ranks,
          (int)plan->stages, (int)plan->microbatches);
  fprintf(out, "%4s %5s %-10s %8s %5s %5s %8s %s%s\n", "rank", "stage", "direction", "N", "D", "K",
          "existing", "rule", sizes ? "        stock      pooled       saved" : "");
  for (size_t i = 0; i < plan->pool_count; i++)
    if (stage < 0 || plan->pools[i].stage == stage) print_pool(&plan->pools[i], sizes, out);
  const char *reason;
  if (strcmp(provenance->kind, "schedule") == 0 &&
      rp_schedule_supports_pool(provenance->source, &reason) >= 0)
    fprintf(out, "\n%s: %s.\n", provenance->source, reason);
  print_totals(plan, provenance->replicas, sizes, out);
  if (provenance->note) fprintf(out, "%s\n", provenance->note);
}

/* --- timeline --- */

static void print_tenant(const struct rp_plan *plan, const struct rp_plan_class *c, const uint32_t *tenant,
                         FILE *out) {
  char text[40] = ".";
  if (tenant) {
    const struct rp_plan_item *item = &plan->items[*tenant];
    if (c->stage >= 0)
      snprintf(text, sizeof(text), "%d", (int)item->microbatch);
    else
      snprintf(text, sizeof(text), "%d%s%d", (int)item->stage,
               item->direction == RP_DIRECTION_GRADIENT ? "g" : "a", (int)item->microbatch);
  }
  fprintf(out, " %*s", c->stage >= 0 ? 4 : 7, text);
}

/* One line per receive of the class: the tenants of all slots just after it was posted. */
static void print_class_timeline(const struct rp_plan *plan, const struct rp_plan_class *c,
                                 const uint32_t **tenants, FILE *out) {
  fprintf(out, "\nrank %d", (int)c->rank);
  if (c->stage >= 0) fprintf(out, ", stage %d", (int)c->stage);
  fprintf(out, ", %s: %u slots, tenants by microbatch\n%9s",
          c->direction ? rp_direction_name(c->direction) : "all", c->slots, "position");
  for (uint32_t k = 0; k < c->slots; k++)
    fprintf(out, " %*u", c->stage >= 0 ? 4 : 7, k);
  fputc('\n', out);
  memset(tenants, 0, c->slots * sizeof(*tenants));
  for (size_t i = c->first; i < c->first + c->buffers; i++) {
    uint64_t now = plan->items[plan->members[i]].interval.begin;
    tenants[plan->slots[i]] = &plan->members[i];
    fprintf(out, "%9llu", (unsigned long long)now);
    for (uint32_t k = 0; k < c->slots; k++) {
      if (tenants[k] && plan->items[*tenants[k]].interval.end < now) tenants[k] = NULL;
      print_tenant(plan, c, tenants[k], out);
    }
    fputc('\n', out);
  }
}

static bool concerns(const struct rp_plan *plan, const struct rp_plan_class *c, int32_t stage) {
  bool found = stage < 0;
  for (size_t i = c->first; !found && i < c->first + c->buffers; i++)
    found = plan->items[plan->members[i]].stage == stage;
  return found;
}

void rp_plan_print_timeline(const struct rp_plan *plan, int32_t stage, FILE *out) {
  const uint32_t **tenants = malloc((plan->item_count + 1) * sizeof(*tenants));
  for (size_t i = 0; tenants && i < plan->class_count; i++)
    if (concerns(plan, &plan->classes[i], stage)) print_class_timeline(plan, &plan->classes[i], tenants, out);
  free(tenants);
}

/* --- departures --- */

/* The pools of one rank and direction in the order in which they first receive; `n`-th of them or NULL.
 * Stages of a run have no names, so pools are matched by this order. */
static const struct rp_plan_pool *nth_pool(const struct rp_plan *plan, int32_t rank, int direction,
                                           size_t n) {
  size_t found = 0;
  int32_t seen[64];
  for (size_t i = 0; i < plan->item_count; i++) {
    const struct rp_plan_item *item = &plan->items[i];
    bool known = item->rank != rank || (int)item->direction != direction;
    for (size_t j = 0; j < found && !known; j++)
      known = seen[j] == item->stage;
    if (known) continue;
    if (found == n) {
      for (size_t p = 0; p < plan->pool_count; p++)
        if (plan->pools[p].stage == item->stage && plan->pools[p].direction == direction)
          return &plan->pools[p];
      return NULL;
    }
    if (found == sizeof(seen) / sizeof(seen[0])) return NULL;
    seen[found++] = item->stage;
  }
  return NULL;
}

static size_t compare_pools(const struct rp_plan *plan, const struct rp_plan *run, int32_t rank,
                            int direction, FILE *out) {
  size_t departures = 0;
  for (size_t n = 0;; n++) {
    const struct rp_plan_pool *a = nth_pool(plan, rank, direction, n), *b = nth_pool(run, rank, direction, n);
    const char *word = rp_direction_name((enum rp_direction)direction);
    if (!a && !b) return departures;
    if (!b) {
      fprintf(out, "rank %d: the plan receives %ss of stage %d, the run does not\n", (int)rank, word,
              (int)a->stage);
      departures++;
    } else if (!a) {
      fprintf(out, "rank %d: the run receives %ss that the plan does not have (%u per step)\n", (int)rank,
              word, b->buffers);
      departures++;
    } else {
      const unsigned values[2][2] = {{a->buffers, b->buffers}, {a->depth, b->depth}};
      static const char *const names[] = {"N", "D"};
      for (size_t v = 0; v < 2; v++) {
        if (values[v][0] == values[v][1]) continue;
        fprintf(out, "rank %d, stage %d, %s: %s is %u in the plan and %u in the run\n", (int)rank,
                (int)a->stage, word, names[v], values[v][0], values[v][1]);
        departures++;
      }
    }
  }
}

static size_t first_item(const struct rp_plan *plan, int32_t rank) {
  size_t i = 0;
  while (i < plan->item_count && plan->items[i].rank < rank)
    i++;
  return i;
}

/* The first receive of a rank that comes in another order. */
static size_t compare_order(const struct rp_plan *plan, const struct rp_plan *run, int32_t rank, FILE *out) {
  size_t a = first_item(plan, rank), b = first_item(run, rank);
  for (size_t n = 1; a < plan->item_count && b < run->item_count; a++, b++, n++) {
    const struct rp_plan_item *x = &plan->items[a], *y = &run->items[b];
    if (x->rank != rank || y->rank != rank) return 0;
    if (x->direction == y->direction && x->microbatch == y->microbatch) continue;
    fprintf(out, "rank %d: receive %zu of a step is %s %d in the plan and %s %d in the run\n", (int)rank, n,
            rp_direction_name(x->direction), (int)x->microbatch, rp_direction_name(y->direction),
            (int)y->microbatch);
    return 1;
  }
  return 0;
}

size_t rp_plan_print_departures(const struct rp_plan *plan, const struct rp_plan *run, FILE *out) {
  size_t departures = 0;
  if (plan->ranks != run->ranks) {
    fprintf(out, "the plan has %d ranks and the run %d\n", (int)plan->ranks, (int)run->ranks);
    departures++;
  }
  int32_t ranks = plan->ranks < run->ranks ? plan->ranks : run->ranks;
  for (int32_t r = 0; r < ranks; r++) {
    for (int d = RP_PLAN_ACTIVATION; d <= RP_PLAN_GRADIENT; d++)
      departures += compare_pools(plan, run, r, d, out);
    departures += compare_order(plan, run, r, out);
  }
  if (!departures)
    fputs("the run follows the plan: same buffers, depths and order of receives on every rank\n", out);
  return departures;
}
