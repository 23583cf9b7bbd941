/* The named schedules. GPipe and 1F1B come with the transfers and NCCL groups of torch's hand-written
 * classes; interleaved 1F1B and looped BFS are ordered here and lowered like any other schedule. */
#include "pool/schedule_internal.h"

#include <stdlib.h>
#include <string.h>

enum order { ORDER_GPIPE, ORDER_1F1B, ORDER_INTERLEAVED, ORDER_LOOPED_BFS, ORDER_NONE };

static const char *const order_names[] = {"gpipe", "1f1b", "interleaved_1f1b", "looped_bfs"};

static enum order order_of(const char *name) {
  for (int i = 0; name && i < ORDER_NONE; i++)
    if (strcmp(name, order_names[i]) == 0) return (enum order)i;
  return ORDER_NONE;
}

static int32_t min32(int32_t a, int32_t b) {
  return a < b ? a : b;
}

/* Microbatches per round of an interleaved schedule; 0 if they do not divide. */
static int32_t round_size(int32_t ranks, int32_t microbatches) {
  int32_t rounds = microbatches / ranks > 1 ? microbatches / ranks : 1;
  return microbatches % rounds ? 0 : microbatches / rounds;
}

static rp_status check_numbers(enum order order, const char *name, int32_t ranks, int32_t chunks,
                               int32_t microbatches, struct rp_schedule_error *error) {
  if (order == ORDER_NONE)
    return rp__schedule_fail(
        error, RP_ERROR_NOT_FOUND, SIZE_MAX, SIZE_MAX, NULL,
        "no schedule is named '%.*s'; known are gpipe, 1f1b, interleaved_1f1b and looped_bfs", 60,
        name ? name : "");
  if (ranks < 1 || chunks < 1 || microbatches < 1)
    return rp__schedule_fail(error, RP_ERROR_SCHEDULE, SIZE_MAX, SIZE_MAX, NULL,
                             "%d ranks, %d stages per rank and %d microbatches: each must be at least 1",
                             ranks, chunks, microbatches);
  if ((int64_t)ranks * chunks > RP__MAX_STAGES || microbatches > RP__MAX_MICROBATCHES ||
      (uint64_t)ranks * (uint64_t)chunks * (uint64_t)microbatches > RP__MAX_PAIRS)
    return rp__schedule_fail(
        error, RP_ERROR_SCHEDULE, SIZE_MAX, SIZE_MAX, NULL,
        "%d ranks x %d stages x %d microbatches is more than this program takes; use smaller "
        "numbers",
        ranks, chunks, microbatches);
  if (chunks > 1 && (order == ORDER_GPIPE || order == ORDER_1F1B))
    return rp__schedule_fail(error, RP_ERROR_SCHEDULE, SIZE_MAX, SIZE_MAX, NULL,
                             "%s has one stage per rank, not %d; use interleaved_1f1b or looped_bfs", name,
                             chunks);
  if (order == ORDER_INTERLEAVED && !round_size(ranks, microbatches))
    return rp__schedule_fail(error, RP_ERROR_SCHEDULE, SIZE_MAX, SIZE_MAX, NULL,
                             "interleaved_1f1b needs microbatches that divide into %d rounds, %d do not",
                             microbatches / ranks, microbatches);
  return RP_OK;
}

/* --- hand-written classes --- */

/* One stage of a hand-written schedule: leaves out the transfers that its place in the pipeline does not
 * have. */
struct stage_writer {
  struct rp__row *row;
  int32_t stage, last;
  uint32_t groups; /* handed out so far */
};

static bool has_transfer(const struct stage_writer *w, enum rp_action_kind kind) {
  bool before = kind == RP_ACTION_RECV_F || kind == RP_ACTION_SEND_B;
  return before ? w->stage > 0 : w->stage < w->last;
}

static void put(struct stage_writer *w, enum rp_action_kind kind, int32_t microbatch) {
  if (!rp__kind_is_transfer(kind) || has_transfer(w, kind))
    rp__row_push(w->row, kind, w->stage, microbatch, 0);
}

/* Two transfers in one NCCL group; alone if the other does not exist. */
static void put_pair(struct stage_writer *w, enum rp_action_kind first, int32_t first_mb,
                     enum rp_action_kind second, int32_t second_mb) {
  if (!has_transfer(w, first) || !has_transfer(w, second)) {
    put(w, first, first_mb);
    put(w, second, second_mb);
    return;
  }
  uint32_t group = ++w->groups;
  rp__row_push(w->row, first, w->stage, first_mb, group);
  rp__row_push(w->row, second, w->stage, second_mb, group);
}

static void write_gpipe(struct stage_writer *w, int32_t microbatches) {
  for (int32_t k = 0; k < microbatches; k++) {
    put(w, RP_ACTION_RECV_F, k);
    put(w, RP_ACTION_FORWARD, k);
    put(w, RP_ACTION_SEND_F, k);
  }
  for (int32_t k = 0; k < microbatches; k++) {
    put(w, RP_ACTION_RECV_B, k);
    put(w, RP_ACTION_BACKWARD, k);
    put(w, RP_ACTION_SEND_B, k);
  }
}

static void write_1f1b(struct stage_writer *w, int32_t microbatches) {
  int32_t warmup = min32(microbatches, w->last + 1 - w->stage), forward, backward = 0;
  for (forward = 0; forward < warmup; forward++) {
    put(w, RP_ACTION_RECV_F, forward);
    put(w, RP_ACTION_FORWARD, forward);
    if (forward < warmup - 1)
      put(w, RP_ACTION_SEND_F, forward); /* the last one goes with the first gradient */
  }
  for (;; forward++) {
    put_pair(w, RP_ACTION_SEND_F, forward - 1, RP_ACTION_RECV_B, backward);
    put(w, RP_ACTION_BACKWARD, backward);
    if (forward == microbatches) break;
    put_pair(w, RP_ACTION_SEND_B, backward++, RP_ACTION_RECV_F, forward);
    put(w, RP_ACTION_FORWARD, forward);
  }
  put(w, RP_ACTION_SEND_B, backward);
  while (++backward < microbatches) {
    put(w, RP_ACTION_RECV_B, backward);
    put(w, RP_ACTION_BACKWARD, backward);
    put(w, RP_ACTION_SEND_B, backward);
  }
}

/* --- compute-only orders --- */

struct looped {
  struct rp__row *row;
  int32_t rank, ranks, chunks, microbatches;
};

static void compute(const struct looped *l, enum rp_action_kind kind, int32_t chunk, int32_t microbatch) {
  rp__row_push(l->row, kind, chunk * l->ranks + l->rank, microbatch, 0);
}

/* The k-th forward of an interleaved rank: rounds of m microbatches, each through all chunks. */
static void interleaved_forward(const struct looped *l, int32_t m, int32_t k) {
  int32_t chunk = k / m % l->chunks;
  compute(l, RP_ACTION_FORWARD, chunk, k / (m * l->chunks) * m + k % m);
}

static void interleaved_backward(const struct looped *l, int32_t m, int32_t j) {
  int32_t chunk = l->chunks - 1 - j / m % l->chunks;
  compute(l, RP_ACTION_BACKWARD, chunk, j / (m * l->chunks) * m + j % m);
}

static void order_interleaved(const struct looped *l) {
  int32_t m = round_size(l->ranks, l->microbatches), total = l->microbatches * l->chunks;
  int32_t warmup = min32(total, (l->chunks - 1) * m + 2 * (l->ranks - 1 - l->rank));
  for (int32_t k = 0; k < warmup; k++)
    interleaved_forward(l, m, k);
  for (int32_t j = 0; j < total; j++) {
    if (warmup + j < total) interleaved_forward(l, m, warmup + j);
    interleaved_backward(l, m, j);
  }
}

static void order_looped_bfs(const struct looped *l) {
  for (int32_t c = 0; c < l->chunks; c++)
    for (int32_t k = 0; k < l->microbatches; k++)
      compute(l, RP_ACTION_FORWARD, c, k);
  for (int32_t c = l->chunks - 1; c >= 0; c--)
    for (int32_t k = l->microbatches - 1; k >= 0; k--)
      compute(l, RP_ACTION_BACKWARD, c, k);
}

static void order_1f1b(const struct looped *l) {
  int32_t warmup = min32(l->microbatches, l->ranks - l->rank);
  for (int32_t k = 0; k < warmup; k++)
    compute(l, RP_ACTION_FORWARD, 0, k);
  for (int32_t k = 0; k < l->microbatches; k++) {
    compute(l, RP_ACTION_BACKWARD, 0, k);
    if (warmup + k < l->microbatches) compute(l, RP_ACTION_FORWARD, 0, warmup + k);
  }
}

static void order_gpipe(const struct looped *l) {
  for (int32_t k = 0; k < l->microbatches; k++)
    compute(l, RP_ACTION_FORWARD, 0, k);
  for (int32_t k = 0; k < l->microbatches; k++)
    compute(l, RP_ACTION_BACKWARD, 0, k);
}

/* --- entry points --- */

static void fill_row(enum order order, bool lowered, const struct looped *l) {
  struct stage_writer w = {.row = l->row, .stage = l->rank, .last = l->ranks - 1};
  switch (order) {
  case ORDER_GPIPE:
    lowered ? write_gpipe(&w, l->microbatches) : order_gpipe(l);
    break;
  case ORDER_1F1B:
    lowered ? write_1f1b(&w, l->microbatches) : order_1f1b(l);
    break;
  case ORDER_INTERLEAVED:
    order_interleaved(l);
    break;
  case ORDER_LOOPED_BFS:
    order_looped_bfs(l);
    break;
  case ORDER_NONE:
    break;
  }
}

static rp_status build(enum order order, bool lowered, int32_t ranks, int32_t chunks, int32_t microbatches,
                       struct rp_schedule *out) {
  struct rp_schedule schedule;
  rp_status status = rp__schedule_init(&schedule, ranks, ranks * chunks, microbatches);
  if (status) return status;
  struct rp__row *rows = calloc((size_t)ranks, sizeof(*rows));
  if (!rows) {
    rp_schedule_fini(&schedule);
    return RP_ERROR_NO_MEMORY;
  }
  for (int32_t r = 0; r < ranks; r++)
    fill_row(order, lowered, &(struct looped){&rows[r], r, ranks, chunks, microbatches});
  for (int32_t s = 0; s < schedule.stages; s++)
    schedule.stage_rank[s] = s % ranks;
  schedule.lowered = lowered;
  status = rp__schedule_take_rows(&schedule, rows);
  if (status)
    rp_schedule_fini(&schedule);
  else
    *out = schedule;
  return status;
}

rp_status rp__schedule_compute_order(const char *name, int32_t ranks, int32_t chunks, int32_t microbatches,
                                     struct rp_schedule *out, struct rp_schedule_error *error) {
  enum order order = order_of(name);
  rp_status status = check_numbers(order, name, ranks, chunks, microbatches, error);
  return status ? status : build(order, false, ranks, chunks, microbatches, out);
}

rp_status rp_schedule_generate(const char *name, int32_t ranks, int32_t chunks, int32_t microbatches,
                               struct rp_schedule *out, struct rp_schedule_error *error) {
  enum order order = order_of(name);
  rp_status status = check_numbers(order, name, ranks, chunks, microbatches, error);
  if (status) return status;
  bool written = order == ORDER_GPIPE || order == ORDER_1F1B;
  struct rp_schedule schedule;
  status = build(order, written, ranks, chunks, microbatches, &schedule);
  if (status) return status;
  status = rp_schedule_lower(&schedule, error);
  if (status)
    rp_schedule_fini(&schedule);
  else
    *out = schedule;
  return status;
}
