/* The tracker against the model process's own record, over schedules, allocation styles and sizes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tracker_model.h"

static const struct rp_channel *find(const struct rp_snapshot *snapshot,
                                     const struct model_channel *expected) {
  for (size_t i = 0; i < snapshot->channel_count; i++) {
    const struct rp_channel *channel = &snapshot->channels[i];
    if (channel->direction == expected->direction && channel->peer == expected->peer &&
        channel->stage_ordinal == expected->stage_ordinal)
      return channel;
  }
  return NULL;
}

static void compare_channel(const struct rp_channel *channel, const struct model_channel *expected,
                            const struct rp_schedule *schedule, const struct model_options *options) {
  uint32_t microbatches = (uint32_t)schedule->microbatches;
  assert_int_equal(channel->buffers, microbatches);
  assert_int_equal(channel->buffer_bytes, options->bytes);
  assert_int_equal(channel->depth, expected->depth);
  assert_int_equal(channel->steps_complete, options->steps);
  assert_int_equal(channel->transfers, microbatches * options->steps);
  assert_int_equal(channel->style, options->just_in_time ? RP_STYLE_JUST_IN_TIME : RP_STYLE_PREALLOCATED);
  assert_int_equal(channel->lifetime_count, microbatches);
  for (uint32_t mb = 0; mb < microbatches; mb++) {
    const struct rp_lifetime *life = &channel->lifetimes[mb];
    const struct model_life *truth = &expected->life[mb];
    assert_int_equal(life->microbatch, mb);
    assert_int_equal(life->step, options->steps - 1);
    assert_int_equal(life->posted_seq, truth->posted_seq);
    assert_int_equal(life->first_access_seq, truth->first_access_seq);
    assert_int_equal(life->last_access_seq, truth->last_access_seq);
    assert_int_equal(life->accesses, truth->accesses);
    assert_int_equal(life->address, truth->address);
    assert_true(life->released_seq >= life->last_access_seq);
    assert_int_equal(life->release_evidence,
                     options->just_in_time ? RP_RELEASE_FREED : RP_RELEASE_LEARNED_ACCESSES);
  }
}

static void run_case(const struct rp_schedule *schedule, const char *name,
                     const struct model_options *options) {
  for (int32_t rank = 0; rank < schedule->ranks; rank++) {
    struct rp_tracker_options tracker_options = {.min_bytes = 1024, .slack = 2};
    struct rp_tracker *tracker = rp_tracker_create(&tracker_options, NULL);
    assert_non_null(tracker);
    struct model_result *result = calloc(1, sizeof *result);
    assert_non_null(result);
    model_run(tracker, schedule, rank, options, result);
    struct rp_snapshot snapshot;
    assert_int_equal(rp_tracker_snapshot(tracker, &snapshot), RP_OK);
    if (snapshot.channel_count != result->channel_count)
      fail_msg("%s, %d ranks, %d microbatches, rank %d, jit %d, recompute %d: %zu channels, %zu expected",
               name, schedule->ranks, schedule->microbatches, rank, options->just_in_time, options->recompute,
               snapshot.channel_count, result->channel_count);
    for (size_t i = 0; i < result->channel_count; i++) {
      const struct rp_channel *channel = find(&snapshot, &result->channels[i]);
      if (!channel)
        fail_msg("%s, %d ranks, %d microbatches, rank %d, jit %d: no channel for stage %d %s", name,
                 schedule->ranks, schedule->microbatches, rank, options->just_in_time,
                 result->channels[i].stage, rp_direction_name(result->channels[i].direction));
      compare_channel(channel, &result->channels[i], schedule, options);
    }
    rp_snapshot_fini(&snapshot);
    rp_tracker_destroy(tracker);
    free(result);
  }
}

static void run_matrix(const char *name, int32_t chunks, int32_t most_ranks) {
  for (int32_t ranks = 2; ranks <= most_ranks; ranks *= 2)
    for (int32_t microbatches = 2; microbatches <= 16; microbatches *= 2) {
      struct rp_schedule schedule;
      struct rp_schedule_error error = {0};
      if (rp_schedule_generate(name, ranks, chunks, microbatches, &schedule, &error))
        fail_msg("%s: %s", name, error.message);
      for (int variant = 0; variant < 16; variant++) {
        struct model_options options = {.just_in_time = variant & 1,
                                        .recompute = variant & 2,
                                        .warm_up = variant & 4,
                                        .probes = variant & 8,
                                        .steps = variant & 4 ? 4 : 3,
                                        .bytes = 4096};
        run_case(&schedule, name, &options);
      }
      rp_schedule_fini(&schedule);
    }
}

static void gpipe(void **state) {
  (void)state;
  run_matrix("gpipe", 1, 8);
}
static void one_forward_one_backward(void **state) {
  (void)state;
  run_matrix("1f1b", 1, 8);
}
static void interleaved(void **state) {
  (void)state;
  run_matrix("interleaved_1f1b", 2, 8);
  run_matrix("interleaved_1f1b", 4, 4);
}

/* Preallocated buffers keep their microbatch although looped_bfs receives gradients in reverse. */
static void looped_bfs_preallocated(void **state) {
  (void)state;
  for (int32_t ranks = 2; ranks <= 4; ranks *= 2) {
    struct rp_schedule schedule;
    assert_int_equal(rp_schedule_generate("looped_bfs", ranks, 2, 8, &schedule, NULL), RP_OK);
    struct model_options options = {.steps = 3, .bytes = 4096};
    run_case(&schedule, "looped_bfs", &options);
    rp_schedule_fini(&schedule);
  }
}

/* Backward split in two: the weight half reads both received tensors again. */
static void split_backward(void **state) {
  (void)state;
  static const char text[] = "0F0,0F1,0F2,,,0I0,0W0,0I1,0W1,0I2,0W2\r\n"
                             ",1F0,1I0,1F1,1I1,1W0,1F2,1I2,1W1,1W2,\r\n";
  struct rp_schedule schedule;
  struct rp_schedule_error error = {0};
  if (rp_schedule_parse(text, sizeof text - 1, &schedule, &error) || rp_schedule_lower(&schedule, &error))
    fail_msg("%s", error.message);
  for (int jit = 0; jit < 2; jit++) {
    struct model_options options = {.just_in_time = jit, .steps = 3, .bytes = 4096};
    run_case(&schedule, "split", &options);
  }
  rp_schedule_fini(&schedule);
}

/* Steps are handed over while the run goes on, and memory does not grow with their number. */
static void memory_is_flat_over_many_steps(void **state) {
  (void)state;
  struct rp_schedule schedule;
  assert_int_equal(rp_schedule_generate("interleaved_1f1b", 4, 2, 8, &schedule, NULL), RP_OK);
  for (int jit = 0; jit < 2; jit++) {
    uint64_t bytes[2];
    for (int longer = 0; longer < 2; longer++) {
      struct model_options options = {.just_in_time = jit, .steps = longer ? 1000 : 20, .bytes = 4096};
      struct rp_tracker_options tracker_options = {.min_bytes = 1, .slack = 2};
      struct rp_tracker *tracker = rp_tracker_create(&tracker_options, NULL);
      struct model_result *result = calloc(1, sizeof *result);
      model_run(tracker, &schedule, 1, &options, result);
      struct rp_snapshot snapshot;
      assert_int_equal(rp_tracker_snapshot(tracker, &snapshot), RP_OK);
      assert_int_equal(snapshot.steps_complete, options.steps);
      assert_int_equal(snapshot.lifetimes_dropped, 0);
      bytes[longer] = snapshot.tracker_bytes;
      rp_snapshot_fini(&snapshot);
      rp_tracker_destroy(tracker);
      free(result);
    }
    assert_int_equal(bytes[0], bytes[1]);
  }
  rp_schedule_fini(&schedule);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(gpipe),          cmocka_unit_test(one_forward_one_backward),
      cmocka_unit_test(interleaved),    cmocka_unit_test(looped_bfs_preallocated),
      cmocka_unit_test(split_backward), cmocka_unit_test(memory_is_flat_over_many_steps)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
