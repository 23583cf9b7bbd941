/* Plans for people: the table, the timeline of slots, and where a run departs from its plan. */
#include <stdlib.h>
#include <string.h>

#include "agent/pieces.h"
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

/* The classes of one plan class: one for each tensor, since NCCL receives them one by one. */
static size_t take_classes(const struct rp_plan *plan, const struct rp_plan_class *c,
                           struct rp_pieces_class *out) {
  const struct rp_plan_options *o = &plan->options;
  size_t count = o->tensor_count > 1 ? o->tensor_count : 1;
  for (size_t t = 0; t < count; t++) {
    uint64_t bytes = count > 1 ? o->tensor_bytes[t] : c->buffer_bytes;
    out[t] =
        (struct rp_pieces_class){.buffer_bytes = bytes, .held_bytes = bytes * c->buffers, .left = c->slots};
  }
  return count;
}

/* What enforcing the plan would save in whole pieces, rank by rank; UINT64_MAX without memory. */
static uint64_t whole_saving(const struct rp_plan *plan, uint64_t piece_bytes) {
  size_t tensors = plan->options.tensor_count > 1 ? plan->options.tensor_count : 1;
  struct rp_pieces_class *classes = malloc((plan->class_count * tensors + 1) * sizeof *classes);
  uint64_t sum = 0;
  if (!classes) return UINT64_MAX;
  for (size_t i = 0; i < plan->class_count;) {
    int32_t rank = plan->classes[i].rank;
    size_t count = 0;
    for (; i < plan->class_count && plan->classes[i].rank == rank; i++)
      count += take_classes(plan, &plan->classes[i], classes + count);
    sum += rp_pieces_saving(classes, count, piece_bytes);
  }
  free(classes);
  return sum;
}

/* Where rounding up to pieces changes what is saved, as the report of a run says it too. Slots for several
 * sizes are on paper only. */
static void print_pieces(const struct rp_plan *plan, const struct rp_plan_totals *t, uint64_t replicas,
                         uint64_t piece_bytes, FILE *out) {
  char piece[32], saved[32];
  uint64_t whole = plan->options.mixed_sizes
                       ? UINT64_MAX
                       : whole_saving(plan, piece_bytes ? piece_bytes : RP_USUAL_PIECE_BYTES);
  if (whole >= t->bytes_stock - t->bytes_pooled) return;
  format_bytes(piece_bytes ? piece_bytes : RP_USUAL_PIECE_BYTES, piece, sizeof(piece));
  format_bytes(whole * replicas, saved, sizeof(saved));
  fprintf(out, "The device gives memory in pieces of %s%s: enforcing would save %s%s.\n", piece,
          piece_bytes ? "" : " (the usual size, not measured here)", whole ? "at most " : "",
          whole ? saved : "nothing");
}

/* What the other granularities would need, and the sums. */
static void print_totals(const struct rp_plan *plan, int32_t replicas, bool sizes, uint64_t piece_bytes,
                         FILE *out) {
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
  print_pieces(plan, &t, n, piece_bytes, out);
}

void rp_plan_print(const struct rp_plan *plan, const struct rp_plan_provenance *provenance, int32_t stage,
                   uint64_t piece_bytes, FILE *out) {
  struct rp_plan_totals t;
  rp_plan_totals_get(plan, &t);
  bool sizes = t.bytes_stock > 0;
  fprintf(out, "%s: %d rank%s, %d stage%s, %d microbatch%s\n\n", provenance->source, (int)plan->ranks,
          plan->ranks == 1 ? "" : "s", (int)plan->stages, plan->stages == 1 ? "" : "s",
          (int)plan->microbatches, plan->microbatches == 1 ? "" : "es");
  if (plan->pool_count == 0) {
    fputs("Nothing is received: no stage has a neighbour on another rank.\n", out);
    return;
  }
  fprintf(out, "%4s %5s %-10s %8s %5s %5s %8s %s%s\n", "rank", "stage", "direction", "N", "D", "K",
          "existing", "rule", sizes ? "        stock      pooled       saved" : "");
  for (size_t i = 0; i < plan->pool_count; i++)
    if (stage < 0 || plan->pools[i].stage == stage) print_pool(&plan->pools[i], sizes, out);
  const char *reason;
  if (strcmp(provenance->kind, "schedule") == 0 &&
      rp_schedule_supports_pool(provenance->source, &reason) >= 0)
    fprintf(out, "\n%s: %s.\n", provenance->source, reason);
  print_totals(plan, provenance->replicas, sizes, piece_bytes, out);
  if (plan->options.granularity != RP_PLAN_STAGE)
    fputs("Each row stands for its stage and direction alone; what rows share is in this sum only.\n", out);
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

/* Pools in the order in which they first receive, rank after rank. Stages of a run have no names, so pools of
 * one rank and direction are matched by this order. */
struct lanes {
  const struct rp_plan_pool **at;
  size_t count;
  size_t next_pool, next_item; /* first of the rank that is compared */
};

static bool lanes_init(struct lanes *l, const struct rp_plan *plan) {
  size_t keys = 2 * (size_t)plan->stages;
  const struct rp_plan_pool **pool_of = calloc(keys + 1, sizeof(*pool_of));
  *l = (struct lanes){.at = calloc(plan->pool_count + 1, sizeof(*l->at))};
  bool ok = l->at && pool_of;
  for (size_t p = 0; ok && p < plan->pool_count; p++)
    pool_of[2 * plan->pools[p].stage + (plan->pools[p].direction == RP_PLAN_GRADIENT)] = &plan->pools[p];
  for (size_t i = 0; ok && i < plan->item_count; i++) {
    const struct rp_plan_item *item = &plan->items[i];
    const struct rp_plan_pool **pool = &pool_of[2 * item->stage + (item->direction == RP_DIRECTION_GRADIENT)];
    if (*pool) l->at[l->count++] = *pool;
    *pool = NULL;
  }
  free(pool_of);
  return ok;
}

/* The next pool of a rank and direction from `*at` on, or NULL. */
static const struct rp_plan_pool *next_lane(const struct lanes *l, size_t *at, int32_t rank, int direction) {
  while (*at < l->count && l->at[*at]->rank == rank) {
    const struct rp_plan_pool *pool = l->at[(*at)++];
    if (pool->direction == direction) return pool;
  }
  return NULL;
}

static size_t compare_pool(const struct rp_plan_pool *a, const struct rp_plan_pool *b, FILE *out) {
  const char *word = rp_direction_name((enum rp_direction)(a ? a : b)->direction);
  if (!b) {
    fprintf(out, "rank %d: the plan receives %ss of stage %d, the run does not\n", (int)a->rank, word,
            (int)a->stage);
    return 1;
  }
  if (!a) {
    fprintf(out, "rank %d: the run receives %ss that the plan does not have (%u per step)\n", (int)b->rank,
            b->direction ? word : "buffer", b->buffers);
    return 1;
  }
  const unsigned values[2][2] = {{a->buffers, b->buffers}, {a->depth, b->depth}};
  size_t departures = 0;
  for (size_t v = 0; v < 2; v++) {
    if (values[v][0] == values[v][1]) continue;
    fprintf(out, "rank %d, stage %d, %s: %c is %u in the plan and %u in the run\n", (int)a->rank,
            (int)a->stage, word, "ND"[v], values[v][0], values[v][1]);
    departures++;
  }
  if (!a->buffer_bytes || !b->buffer_bytes || a->buffer_bytes == b->buffer_bytes) return departures;
  fprintf(out, "rank %d, stage %d, %s: a buffer has %llu bytes in the plan and %llu in the run\n",
          (int)a->rank, (int)a->stage, word, (unsigned long long)a->buffer_bytes,
          (unsigned long long)b->buffer_bytes);
  return departures + 1;
}

static size_t compare_pools(const struct lanes *plan, const struct lanes *run, int32_t rank, int direction,
                            FILE *out) {
  size_t departures = 0, in_plan = plan->next_pool, in_run = run->next_pool;
  for (;;) {
    const struct rp_plan_pool *a = next_lane(plan, &in_plan, rank, direction);
    const struct rp_plan_pool *b = next_lane(run, &in_run, rank, direction);
    if (!a && !b) return departures;
    departures += compare_pool(a, b, out);
  }
}

/* The first receive of a rank that comes in another order. */
static size_t compare_order(const struct rp_plan *plan, const struct rp_plan *run, size_t a, size_t b,
                            int32_t rank, bool by_receipt, FILE *out) {
  for (size_t n = 1; a < plan->item_count && b < run->item_count; a++, b++, n++) {
    const struct rp_plan_item *x = &plan->items[a], *y = &run->items[b];
    if (x->rank != rank || y->rank != rank) return 0;
    if (x->direction == y->direction && (by_receipt || x->microbatch == y->microbatch)) continue;
    fprintf(out, "rank %d: receive %zu of a step is %s %d in the plan and %s %d in the run\n", (int)rank, n,
            rp_direction_name(x->direction), (int)x->microbatch, rp_direction_name(y->direction),
            (int)y->microbatch);
    return 1;
  }
  return 0;
}

static bool has_rank(const struct lanes *l, int32_t rank) {
  return l->next_pool < l->count && l->at[l->next_pool]->rank == rank;
}

/* Behind everything of `rank`. */
static void skip_rank(struct lanes *l, const struct rp_plan *plan, int32_t rank) {
  while (l->next_pool < l->count && l->at[l->next_pool]->rank <= rank)
    l->next_pool++;
  while (l->next_item < plan->item_count && plan->items[l->next_item].rank <= rank)
    l->next_item++;
}

static size_t compare_ranks(const struct rp_plan *plan, const struct rp_plan *run, struct lanes lanes[2],
                            bool by_receipt, FILE *out) {
  size_t departures = 0;
  int32_t ranks = plan->ranks < run->ranks ? plan->ranks : run->ranks;
  for (int32_t r = 0; r < ranks; r++) {
    if (has_rank(&lanes[0], r) && !has_rank(&lanes[1], r)) {
      fprintf(out, "rank %d: the run shows no receives; is its report there?\n", (int)r);
      departures++;
    } else {
      for (int d = RP_DIRECTION_UNKNOWN; d <= RP_DIRECTION_GRADIENT; d++)
        departures += compare_pools(&lanes[0], &lanes[1], r, d, out);
      departures += compare_order(plan, run, lanes[0].next_item, lanes[1].next_item, r, by_receipt, out);
    }
    skip_rank(&lanes[0], plan, r);
    skip_rank(&lanes[1], run, r);
  }
  return departures;
}

size_t rp_plan_print_departures(const struct rp_plan *plan, const struct rp_plan *run, bool by_receipt,
                                FILE *out) {
  size_t departures = 0;
  struct lanes lanes[2] = {{0}};
  if (lanes_init(&lanes[0], plan) && lanes_init(&lanes[1], run)) {
    if (plan->ranks != run->ranks)
      fprintf(out, "the plan has %d ranks and the run %d\n", (int)plan->ranks, (int)run->ranks);
    departures = (plan->ranks != run->ranks) + compare_ranks(plan, run, lanes, by_receipt, out);
  } else {
    departures = SIZE_MAX;
  }
  free(lanes[0].at);
  free(lanes[1].at);
  if (departures) return departures;
  fprintf(out, "the run follows the plan: same buffers, depths and order of receives on every rank%s\n",
          by_receipt ? " (whose microbatches it shows by order of receipt only)" : "");
  return 0;
}
