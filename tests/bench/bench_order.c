/* Cost of pool/order for each operation and each question, at 10, 1,000 and 10,000 tracked accesses. Prints
 * one JSON object a line, nanoseconds a call, the smallest mean of some batches. Asserts nothing.
 *
 *   bench_order [streams]     default 8: how many streams the accesses lie on */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "pool/order.h"

#define BATCHES 7
#define BATCH 20000
#define CONTEXT 0xc0
#define FIRST_STREAM 0x1000
#define FIRST_EVENT 0x8000

struct bench {
  struct rp_order *order;
  rp_order_token *tokens;
  struct rp_order_frontier *frontiers; /* one for every access, as of a slot that it alone used */
  size_t accesses;
  uint64_t streams, found;
};

static double now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static struct rp_order_site site_of(const struct bench *bench, uint64_t i) {
  return (struct rp_order_site){
      .context = CONTEXT, .stream = FIRST_STREAM + i % bench->streams, .thread = 1 + i % 2};
}

static void record_and_wait(const struct bench *bench, uint64_t i) {
  const struct rp_order_site from = site_of(bench, i), to = site_of(bench, i + 1);
  rp_order_event_record(bench->order, &from, FIRST_EVENT + i % 64, RP_ORDER_RECORD_STREAM);
  rp_order_event_wait(bench->order, &to, FIRST_EVENT + i % 64);
}

/* One access in each slot, streams joined now and then, so that some questions are answered yes and some no.
 */
static int fill(struct bench *bench) {
  if (rp_order_create(NULL, &bench->order)) return -1;
  bench->tokens = calloc(bench->accesses, sizeof *bench->tokens);
  bench->frontiers = calloc(bench->accesses, sizeof *bench->frontiers);
  if (!bench->tokens || !bench->frontiers) return -1;
  for (uint64_t i = 0; i < bench->streams; i++)
    rp_order_stream_create(bench->order, CONTEXT, FIRST_STREAM + i, i % 2 == 0);
  for (uint64_t i = 0; i < bench->accesses; i++) {
    const struct rp_order_site site = site_of(bench, i);
    bench->tokens[i] = rp_order_access(bench->order, &site);
    rp_order_frontier_add(bench->order, &bench->frontiers[i], bench->tokens[i]);
    if (i % 7 == 0) record_and_wait(bench, i);
  }
  return 0;
}

/* ---- what is timed; i counts up ---- */

static void access_stream(struct bench *bench, uint64_t i) {
  const struct rp_order_site site = site_of(bench, i);
  bench->found += rp_order_access(bench->order, &site) & 1;
}
static void access_legacy(struct bench *bench, uint64_t i) {
  struct rp_order_site site = site_of(bench, i);
  if (i % 2)
    site.stream = RP_ORDER_STREAM_LEGACY; /* every other one, so that each is a barrier for the next */
  bench->found += rp_order_access(bench->order, &site) & 1;
}
static void record_wait(struct bench *bench, uint64_t i) {
  record_and_wait(bench, i);
}
static void sync_stream(struct bench *bench, uint64_t i) {
  const struct rp_order_site site = site_of(bench, i);
  rp_order_sync_stream(bench->order, &site);
}
static void query_token(struct bench *bench, uint64_t i) {
  const struct rp_order_site site = site_of(bench, i * 3 + 1);
  bench->found += rp_order_before(bench->order, bench->tokens[i * 7919 % bench->accesses], &site);
}
static void query_slot(struct bench *bench, uint64_t i) {
  const struct rp_order_site site = site_of(bench, i * 3 + 1);
  bench->found +=
      rp_order_frontier_before(bench->order, &bench->frontiers[i * 7919 % bench->accesses], &site);
}

static double time_ns(struct bench *bench, void (*what)(struct bench *, uint64_t)) {
  double best = 1e18;
  for (int batch = 0; batch < BATCHES; batch++) {
    double started = now_ns();
    for (uint64_t i = 0; i < BATCH; i++)
      what(bench, i);
    double each = (now_ns() - started) / BATCH;
    if (each < best) best = each;
  }
  return best;
}

int main(int argc, char **argv) {
  static const struct {
    const char *name;
    void (*what)(struct bench *, uint64_t);
  } timed[] = {{"question_token", query_token},  {"question_slot", query_slot},
               {"access", access_stream},        {"access_legacy_alternating", access_legacy},
               {"record_and_wait", record_wait}, {"synchronise_stream", sync_stream}};
  static const size_t accesses[] = {10, 1000, 10000};
  uint64_t streams = argc > 1 ? strtoull(argv[1], NULL, 10) : 8, found = 0;
  for (size_t i = 0; i < sizeof accesses / sizeof *accesses; i++) {
    struct bench bench = {.accesses = accesses[i], .streams = streams ? streams : 1};
    int failed = fill(&bench);
    for (size_t j = 0; !failed && j < sizeof timed / sizeof *timed; j++)
      printf("{\"bench\": \"order\", \"what\": \"%s\", \"accesses\": %zu, \"streams\": %llu, \"ns\": %.1f}\n",
             timed[j].name, accesses[i], (unsigned long long)bench.streams, time_ns(&bench, timed[j].what));
    if (!failed && i == 0)
      printf("{\"bench\": \"order\", \"what\": \"memory\", \"bytes\": %zu}\n", rp_order_bytes(bench.order));
    found += bench.found;
    rp_order_destroy(bench.order);
    free(bench.tokens);
    free(bench.frontiers);
    if (failed) return 1;
  }
  return found ? 0 : 1; /* looked at, so that no question is optimised away */
}
