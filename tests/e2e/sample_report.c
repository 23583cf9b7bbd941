/* Writes reports with known content into a folder, through the product's own writer: what the schema test
 * validates and what the tests of `recvpool report` and `recvpool run` read. Usage: sample_report DIR RANK
 * STYLE [now], STYLE one of prealloc, gpipe, just_in_time, empty, enforced, freed, violated, shadow, refused;
 * "now": with this process's id and the time, as an agent would. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "agent/report.h"

#define BUFFERS 4
#define BUFFER_ADDRESS(i) (0x7f0000000000ull + (i)*0x100000ull)

/* Whether the lifetimes overlap. */
enum spread { FAR, NEAR };

static const char *kernel_name(void *context, uint64_t function) {
  (void)context;
  return function == 7 ? "_Z8backwardPf" : "";
}

static void fill_lifetimes(struct rp_lifetime *lifetimes, enum spread spread) {
  for (uint32_t i = 0; i < BUFFERS; i++) {
    uint64_t begin = 1000 + 100ull * i, end = spread == FAR ? 2000 + 100ull * i : begin + 50;
    lifetimes[i] = (struct rp_lifetime){.step = 3,
                                        .microbatch = i,
                                        .accesses = 2,
                                        .address = BUFFER_ADDRESS(i),
                                        .posted_ns = begin,
                                        .first_access_ns = begin + 10,
                                        .last_access_ns = end,
                                        .released_ns = end + 1,
                                        .posted_seq = begin,
                                        .first_access_seq = begin + 10,
                                        .last_access_seq = end,
                                        .released_seq = end + 1,
                                        .post_stream = 1,
                                        .last_access_stream = 0x5555,
                                        .last_access_function = 7,
                                        .last_access_kind = RP_ACCESS_KERNEL,
                                        .release_evidence = RP_RELEASE_LEARNED_ACCESSES};
  }
}

static struct rp_channel make_channel(enum rp_direction direction, uint32_t depth, enum rp_reason reason,
                                      enum rp_allocation_style style, struct rp_lifetime *lifetimes) {
  uint64_t bytes = 1 << 20;
  uint32_t slots = depth + 1 < BUFFERS ? depth + 1 : BUFFERS;
  return (struct rp_channel){.comm = 0xabc,
                             .peer = direction == RP_DIRECTION_ACTIVATION ? 0 : 2,
                             .device = 0,
                             .direction = direction,
                             .buffer_bytes = bytes,
                             .buffers = BUFFERS,
                             .depth = depth,
                             .depth_min = depth,
                             .depth_max = depth,
                             .slots = slots,
                             .transfers = 16,
                             .bytes_transferred = 16 * bytes,
                             .steps_complete = 4,
                             .style = style,
                             .reason = reason,
                             .held_bytes = (style == RP_STYLE_JUST_IN_TIME ? depth : BUFFERS) * bytes,
                             .needed_bytes = depth * bytes,
                             .would_save_bytes = reason == RP_REASON_POOLABLE ? (BUFFERS - slots) * bytes : 0,
                             .lifetimes = lifetimes,
                             .lifetime_count = BUFFERS};
}

static void add_channels(struct rp_report *report, const char *style, struct rp_channel *channels,
                         struct rp_lifetime (*lifetimes)[BUFFERS]) {
  struct rp_snapshot *snapshot = &report->snapshot;
  fill_lifetimes(lifetimes[0], strcmp(style, "gpipe") == 0 ? FAR : NEAR);
  fill_lifetimes(lifetimes[1], NEAR);
  enum rp_reason activation = RP_REASON_POOLABLE, gradient = RP_REASON_POOLABLE;
  enum rp_allocation_style how = RP_STYLE_PREALLOCATED;
  if (strcmp(style, "gpipe") == 0) activation = RP_REASON_UNBOUNDED_DEPTH;
  if (strcmp(style, "just_in_time") == 0) {
    activation = gradient = RP_REASON_JUST_IN_TIME;
    how = RP_STYLE_JUST_IN_TIME;
  }
  channels[0] = make_channel(RP_DIRECTION_ACTIVATION, activation == RP_REASON_UNBOUNDED_DEPTH ? BUFFERS : 1,
                             activation, how, lifetimes[0]);
  channels[1] = make_channel(RP_DIRECTION_GRADIENT, 1, gradient, how, lifetimes[1]);
  snapshot->channels = channels;
  snapshot->channel_count = 2;
  snapshot->steps_complete = 4;
  for (size_t i = 0; i < 2; i++) {
    snapshot->held_bytes += channels[i].held_bytes;
    snapshot->needed_bytes += channels[i].needed_bytes;
    snapshot->would_save_bytes += channels[i].would_save_bytes;
  }
}

static struct rp_report make_report(int rank) {
  struct rp_report report = {.mode = "observe",
                             .state = "finished",
                             .passive_reason = "",
                             .process = {.host = "node/one",
                                         .pid = 1000 + rank,
                                         .rank = rank,
                                         .world_size = 4,
                                         .local_rank = -1,
                                         .rank_source = "torchrun",
                                         .start_time_unix_seconds = 1700000000.25,
                                         .start_monotonic_ns = 900},
                             .evidence_count = 2,
                             .cost = {.callbacks = UINT64_MAX, .callback_time_ns = 1500},
                             .written_monotonic_ns = 5000,
                             .written_unix_seconds = 1700000001.5,
                             .function_name = kernel_name};
  /* good UTF-8, a stray byte, an overlong form, a surrogate, a control byte, a truncated sequence at the end
   */
  strcpy(report.process.command, "train \xc3\xa9 \xff \xc0\xaf \xed\xa0\x80 \x1b[0m \xe2\x82");
  report.versions.nccl = 22809;
  strcpy(report.versions.nccl_path, "/opt/lib\xfe/libnccl.so.2");
  report.evidence[0] = (struct rp_evidence){.name = "interposer", .active = true};
  report.evidence[1] = (struct rp_evidence){.name = "cupti", .reason = "held by \xf0\x9f\x90\xa2 another"};
  return report;
}

/* ---- enforcing ---- */

static struct rp_guard_class_report enforced_class(enum rp_direction direction, uint32_t slots,
                                                   uint64_t grown) {
  uint64_t bytes = 1 << 20, mapped = 2 << 20;
  uint64_t physical = (slots + grown) * mapped, stock = BUFFERS * mapped;
  return (struct rp_guard_class_report){
      .info = {.spec = {.label = direction, .receive_bytes = bytes, .slots = slots, .buffers = BUFFERS},
               .sharing = true,
               .mapped_bytes = mapped,
               .buffers = BUFFERS,
               .bound = BUFFERS - (uint32_t)grown,
               .private_buffers = (uint32_t)grown,
               .slots_backed = slots,
               .grown = grown,
               .account = {.physical_bytes = physical,
                           .physical_peak_bytes = physical,
                           .one_to_one_bytes = stock,
                           .one_to_one_peak_bytes = stock,
                           .requested_bytes = stock,
                           .requested_peak_bytes = stock,
                           .saved_bytes = (int64_t)(stock - physical),
                           .saved_peak_bytes = (int64_t)(stock - physical)}},
      .stage = 1,
      .direction = direction,
      .depth = slots - 1,
      .slack = 1,
      .peer = direction == RP_DIRECTION_ACTIVATION ? 0 : 2};
}

/* Whose peaks were at once. */
static struct rp_pool_account both(const struct rp_pool_account *a, const struct rp_pool_account *b) {
  return (struct rp_pool_account){.physical_bytes = a->physical_bytes + b->physical_bytes,
                                  .physical_peak_bytes = a->physical_peak_bytes + b->physical_peak_bytes,
                                  .one_to_one_bytes = a->one_to_one_bytes + b->one_to_one_bytes,
                                  .one_to_one_peak_bytes =
                                      a->one_to_one_peak_bytes + b->one_to_one_peak_bytes,
                                  .requested_bytes = a->requested_bytes + b->requested_bytes,
                                  .requested_peak_bytes = a->requested_peak_bytes + b->requested_peak_bytes,
                                  .saved_peak_bytes = a->saved_peak_bytes + b->saved_peak_bytes};
}

static void fill_guard(struct rp_guard_report *guard, struct rp_guard_class_report *classes) {
  static struct rp_guard_binding bindings[BUFFERS];
  classes[0] = enforced_class(RP_DIRECTION_ACTIVATION, 2, 1);
  classes[1] = enforced_class(RP_DIRECTION_GRADIENT, 2, 0);
  classes[1].id = 1;
  for (uint32_t i = 0; i < BUFFERS; i++) /* the last activation has memory of its own */
    bindings[i] = (struct rp_guard_binding){BUFFER_ADDRESS(i), i == BUFFERS - 1 ? 1 : 0, i % 2};
  *guard = (struct rp_guard_report){.planned = true,
                                    .active = true,
                                    .idle_reason = "",
                                    .idle_text = "",
                                    .classes = classes,
                                    .class_count = 2,
                                    .bindings = bindings,
                                    .binding_count = BUFFERS,
                                    .steps = 4,
                                    .activated_step = 2,
                                    .activated_ns = 2900,
                                    .activation_duration_ns = 1500000,
                                    .activations_postponed = 1,
                                    .slack = 1,
                                    .receives_waited = 3,
                                    .wait_ns = 250000,
                                    .pending_dropped = 5,
                                    .order = {.operations = 100, .events_evicted = 7},
                                    .guard_bytes = 4096};
  guard->pool = (struct rp_pool_info){.buffers = 2 * BUFFERS,
                                      .bound = 2 * BUFFERS - 1,
                                      .private_buffers = 1,
                                      .receives = 32,
                                      .accesses = 64,
                                      .waits_inserted = 3,
                                      .grown = 1,
                                      .activations = 1,
                                      .backend_calls = 50,
                                      .backend_failures = 2};
  guard->pool.account = both(&classes[0].info.account, &classes[1].info.account);
  guard->pool.account.saved_bytes = -1;
  guard->pool.prevented[RP_POOL_EARLY_REUSE] = 1;
  guard->pool.prevented[RP_POOL_UNORDERED_REUSE] = 3;
  guard->pool.reasons[RP_POOL_MORE_IN_FLIGHT] = 1;
}

/* An early reuse that was prevented, and a kernel that read what had been overwritten. */
static void add_conflicts(struct rp_guard_report *guard, struct rp_pool_conflict *conflicts, bool violated) {
  const struct rp_pool_site receive = {
      .microbatch = 3, .kind = RP_EVENT_RECV, .step = 2, .seq = 41, .stream = 0x77};
  const struct rp_pool_site reader = {
      .microbatch = 1, .kind = RP_EVENT_KERNEL, .step = 2, .seq = 44, .stream = 0x5555, .function = 7};
  conflicts[0] = (struct rp_pool_conflict){.kind = RP_POOL_EARLY_REUSE,
                                           .prevented = true,
                                           .class_id = 0,
                                           .slot = 1,
                                           .earlier_buffer = 1,
                                           .later_buffer = 3,
                                           .earlier_address = 0x7f0000100000,
                                           .later_address = 0x7f0000300000,
                                           .earlier = reader,
                                           .later = receive};
  conflicts[1] = conflicts[0];
  conflicts[1].kind = RP_POOL_STALE_ACCESS;
  conflicts[1].prevented = false;
  conflicts[1].earlier_buffer = 3;
  conflicts[1].earlier_address = 0x7f0000300000;
  conflicts[1].earlier = receive;
  conflicts[1].later_buffer = 1;
  conflicts[1].later_address = 0x7f0000100000;
  conflicts[1].later = reader;
  guard->conflicts = conflicts;
  guard->conflict_count = violated ? 2 : 1;
  if (!violated) return;
  guard->pool.violated[RP_POOL_STALE_ACCESS] = 1;
  guard->double_frees = 1;
}

/* What is left at the end of a run that freed its buffers; of one of them it is no longer known. */
static void free_buffers(struct rp_guard_report *guard) {
  static struct rp_pool_last_binding last[BUFFERS - 1];
  for (size_t i = 0; i < BUFFERS - 1; i++)
    last[i] = (struct rp_pool_last_binding){guard->bindings[i].address, guard->bindings[i].class_id,
                                            guard->bindings[i].slot};
  guard->last_bindings = last;
  guard->last_binding_count = BUFFERS - 1;
  guard->binding_count = 0;
  guard->active = false;
  guard->idle_reason = "freed";
  guard->idle_text = "The buffers that shared memory have been freed.";
  guard->pool.last_bindings_dropped = 1;
  guard->pool.buffers = guard->pool.bound = guard->pool.private_buffers = 0;
}

static void add_enforcing(struct rp_report *report, const char *style, struct rp_enforce_report *enforce) {
  static struct rp_guard_class_report classes[2];
  static struct rp_pool_conflict conflicts[2];
  struct rp_enforce_device *device = &enforce->devices[0];
  report->enforce = enforce;
  enforce->shadow = strcmp(style, "shadow") == 0;
  if (!enforce->shadow) report->mode = "enforce";
  if (strcmp(style, "refused") == 0) {
    strcpy(enforce->refused, "plan_rank_unknown: set RECVPOOL_PLAN_RANK");
    return;
  }
  enforce->device_count = 2;
  enforce->milestones =
      (struct rp_milestone_counts){.placed = 70, .failed = 1, .waits = 5, .waits_for_all = 2};
  fill_guard(&device->guard, classes);
  add_conflicts(&device->guard, conflicts, strcmp(style, "violated") == 0);
  if (enforce->shadow) device->guard.planned = false;
  if (strcmp(style, "freed") == 0) free_buffers(&device->guard);
  if (!enforce->shadow)
    device->memory = (struct rp_device_memory_info){.granularity_bytes = 2 << 20,
                                                    .rdma = true,
                                                    .posix_fd = true,
                                                    .peers = 1,
                                                    .calls = 60,
                                                    .failures = 2,
                                                    .create_ns = 1000,
                                                    .map_ns = 2000,
                                                    .unmap_ns = 3000};
  enforce->devices[1].ordinal = 1;
  enforce->devices[1].guard.idle_reason = "no_pattern";
  enforce->devices[1].guard.idle_text = "No step was like the one before.";
  if (strcmp(style, "violated") == 0)
    strcpy(enforce->devices[1].refused, "the driver has no virtual memory management");
}

/* As the agent does it: own id and the time. */
static void make_it_now(struct rp_report *report) {
  struct timespec wall, monotonic;
  clock_gettime(CLOCK_REALTIME, &wall);
  clock_gettime(CLOCK_MONOTONIC, &monotonic);
  static struct rp_config config;
  char warnings[16];
  rp_config_from_environment(&config, warnings, sizeof warnings);
  report->config = &config;
  report->process.pid = getpid();
  (void)gethostname(report->process.host, sizeof report->process.host - 1);
  report->process.start_time_unix_seconds = (double)wall.tv_sec + (double)wall.tv_nsec / 1e9;
  report->process.start_monotonic_ns = (uint64_t)monotonic.tv_sec * 1000000000u + (uint64_t)monotonic.tv_nsec;
  report->written_unix_seconds = report->process.start_time_unix_seconds;
  report->written_monotonic_ns = report->process.start_monotonic_ns;
}

static bool enforces(const char *style) {
  static const char *const styles[] = {"enforced", "freed", "violated", "shadow", "refused"};
  for (size_t i = 0; i < sizeof styles / sizeof styles[0]; i++)
    if (strcmp(style, styles[i]) == 0) return true;
  return false;
}

int main(int argc, char **argv) {
  static const struct rp_device_info device = {.name = "Simulated", .total_bytes = 1ull << 33};
  static const struct rp_comm_info comm = {
      .comm = 0xabc, .id_hash = 0x123456789abcdefull, .rank = 1, .ranks = 4};
  static const char *const warnings[] = {"RECVPOOL_SLACK='\xff' must be a whole number"};
  struct rp_channel channels[2];
  struct rp_lifetime lifetimes[2][BUFFERS];
  if (argc != 4 && argc != 5) return 2;
  struct rp_report report = make_report(atoi(argv[2]));
  if (strcmp(argv[3], "empty") == 0) {
    report.state = "running";
    report.passive_reason = "no CUPTI";
    report.process.rank = report.process.world_size = -1;
    report.process.rank_source[0] = '\0';
  } else {
    report.devices = &device;
    report.comms = &comm;
    report.device_count = report.comm_count = 1;
    report.warnings = warnings;
    report.warning_count = 1;
    add_channels(&report, argv[3], channels, lifetimes);
  }
  static struct rp_enforce_report enforce;
  if (enforces(argv[3])) add_enforcing(&report, argv[3], &enforce);
  if (strcmp(argv[3], "violated") == 0)
    report.switched_off = (struct rp_switched_off){3000, 4000, "node_one-1001-900.disable"};
  if (argc == 5) make_it_now(&report);
  char name[512];
  rp_report_file_name(&report.process, name, sizeof name);
  rp_status status = rp_report_write(&report, argv[1], name);
  if (status != RP_OK) perror("rp_report_write");
  return status == RP_OK ? 0 : 1;
}
