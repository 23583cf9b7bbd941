/* Cost of a guarded receive and of a guarded launch while buffers share slots, at 100, 1,000 and 10,000
 * tracked buffers, and of the step boundary at which sharing begins. The memory does not exist (shadow), so
 * that the guard is timed and nothing else. Prints one JSON object a line, nanoseconds. Asserts nothing. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "pool/guard.h"

#define BYTES (UINT64_C(4) << 20)
#define BASE UINT64_C(0x7000000000)
#define CONTEXT 0xc0
#define COMPUTE 0x1000
#define COMM 0x1001
#define AT_ONCE 16 /* messages in flight, and calls timed together */
#define STEPS 6

struct bench {
  struct rp_order *order;
  struct rp_guard *guard;
  struct rp_guard_channel *channels;
  size_t buffers;
  uint64_t seq;
  double receive_ns, access_ns, miss_ns, boundary_ns;
  uint64_t receives, accesses, misses;
};

static double now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static uint64_t address_of(size_t i) {
  return BASE + i * 2 * BYTES;
}

static void join(struct bench *bench, uint64_t from, uint64_t to) {
  const struct rp_order_site record = {CONTEXT, from, 1, 0}, wait = {CONTEXT, to, 1, 0};
  rp_order_event_record(bench->order, &record, 1 + bench->seq % 64, RP_ORDER_RECORD_STREAM);
  rp_order_event_wait(bench->order, &wait, 1 + bench->seq++ % 64);
}

static int receive(struct bench *bench, size_t i) {
  const struct rp_guard_receive receive = {.address = address_of(i),
                                           .bytes = BYTES,
                                           .comm = 5,
                                           .peer = 0,
                                           .site = {CONTEXT, COMM, 1, 0},
                                           .seq = ++bench->seq};
  struct rp_guard_action action;
  if (rp_guard_receive_prepare(bench->guard, &receive, &action)) return -1;
  if (action.boundary) {
    double begin = now_ns();
    if (rp_guard_boundary(bench->guard, bench->channels, bench->buffers, 1)) return -1;
    bench->boundary_ns = now_ns() - begin;
    if (rp_guard_receive_prepare(bench->guard, &receive, &action)) return -1;
  }
  rp_guard_receive_launched(bench->guard, &receive);
  return action.next == RP_GUARD_GO ? 0 : -1;
}

static void access_at(struct bench *bench, uint64_t address, uint64_t function) {
  const struct rp_guard_access access = {.address = address,
                                         .kind = RP_EVENT_KERNEL,
                                         .function = function,
                                         .site = {CONTEXT, COMPUTE, 1, 0},
                                         .seq = ++bench->seq};
  struct rp_guard_action action;
  if (rp_guard_access_prepare(bench->guard, &access, &action, NULL) == RP_OK)
    rp_guard_access_launched(bench->guard, &access, rp_order_access(bench->order, &access.site));
}

/* AT_ONCE messages come in, are read twice, and their slots are free for the next ones. */
static int window(struct bench *bench, size_t first, bool timed) {
  join(bench, COMPUTE, COMM);
  double begin = now_ns();
  for (size_t i = first; i < first + AT_ONCE; i++)
    if (receive(bench, i)) return -1;
  double received = now_ns();
  join(bench, COMM, COMPUTE);
  double joined = now_ns();
  for (size_t i = first; i < first + AT_ONCE; i++) {
    access_at(bench, address_of(i), 1);
    access_at(bench, address_of(i), 2);
  }
  double accessed = now_ns();
  for (size_t i = first; i < first + AT_ONCE; i++)
    access_at(bench, address_of(i) + BYTES + 64, 3); /* between two buffers */
  double missed = now_ns();
  if (!timed) return 0;
  bench->receive_ns += received - begin;
  bench->access_ns += accessed - joined;
  bench->miss_ns += missed - accessed;
  bench->receives += AT_ONCE;
  bench->accesses += 2 * (uint64_t)AT_ONCE;
  bench->misses += AT_ONCE;
  return 0;
}

static int run(struct bench *bench) {
  const struct rp_guard_options options = {.shadow = true};
  if (rp_order_create(NULL, &bench->order)) return -1;
  if (rp_guard_create(&options, NULL, bench->order, NULL, &bench->guard)) return -1;
  bench->channels = calloc(bench->buffers, sizeof *bench->channels);
  if (!bench->channels) return -1;
  for (size_t i = 0; i < bench->buffers; i++) {
    rp_guard_shadow_alloc(bench->guard, address_of(i), BYTES);
    bench->channels[i] = (struct rp_guard_channel){.address = address_of(i), .label = 1, .stage = 0};
  }
  for (int step = 0; step < STEPS; step++)
    for (size_t first = 0; first + AT_ONCE <= bench->buffers; first += AT_ONCE)
      if (window(bench, first, step >= 3)) return -1;
  return 0;
}

int main(void) {
  static const size_t buffers[] = {96, 992, 10000};
  int failed = 0;
  for (size_t i = 0; i < sizeof buffers / sizeof *buffers && !failed; i++) {
    struct bench bench = {.buffers = buffers[i]};
    struct rp_guard_report report = {0};
    failed = run(&bench) || rp_guard_report(bench.guard, &report) || !report.active;
    if (!failed)
      printf("{\"bench\": \"guard\", \"buffers\": %zu, \"receive_ns\": %.1f, \"launch_ns\": %.1f, "
             "\"launch_elsewhere_ns\": %.1f, \"activation_ns\": %.0f, \"guard_bytes\": %llu}\n",
             bench.buffers, bench.receive_ns / (double)bench.receives,
             bench.access_ns / (double)bench.accesses, bench.miss_ns / (double)bench.misses,
             bench.boundary_ns, (unsigned long long)report.guard_bytes);
    rp_guard_report_fini(&report);
    if (bench.guard) (void)rp_guard_destroy(bench.guard, NULL);
    rp_order_destroy(bench.order);
    free(bench.channels);
  }
  return failed;
}
