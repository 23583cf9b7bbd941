/* Writes reports with known content into a folder, through the product's own writer: what the schema test
 * validates and what the tests of `recvpool report` read. Usage: sample_report DIR RANK STYLE, STYLE one of
 * prealloc, gpipe, just_in_time, empty. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/report.h"

#define BUFFERS 4

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
                                        .address = 0x7f0000000000ull + i * 0x100000ull,
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
                             .slack = 1,
                             .min_bytes = 65536,
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

int main(int argc, char **argv) {
  static const struct rp_device_info device = {.name = "Simulated", .total_bytes = 1ull << 33};
  static const struct rp_comm_info comm = {
      .comm = 0xabc, .id_hash = 0x123456789abcdefull, .rank = 1, .ranks = 4};
  static const char *const warnings[] = {"RECVPOOL_SLACK='\xff' must be a whole number"};
  struct rp_channel channels[2];
  struct rp_lifetime lifetimes[2][BUFFERS];
  if (argc != 4) return 2;
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
  char name[512];
  rp_report_file_name(&report.process, name, sizeof name);
  rp_status status = rp_report_write(&report, argv[1], name);
  if (status != RP_OK) perror("rp_report_write");
  return status == RP_OK ? 0 : 1;
}
