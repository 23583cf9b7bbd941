/* The model process behind the tracker tests. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "tracker_model.h"

enum { CHECK = 1, FORWARD_1, FORWARD_2, WEIGHT_1, WEIGHT_2, INPUT_1, UPDATE };
enum { MAX_STAGES = 64, MAX_MICROBATCHES = 64 };

struct buffer {
  uint64_t address;
  bool posted;
  struct model_life life;
};

struct model {
  struct rp_tracker *tracker;
  const struct rp_schedule *schedule;
  const struct model_options *options;
  int32_t rank;
  uint64_t seq, operations, heap;
  uint64_t weight[MAX_STAGES][4];                  /* W1, W2, gradients of both */
  uint64_t scratch[MAX_STAGES * MAX_MICROBATCHES]; /* saved activations: free ones, last in first out */
  size_t scratch_count;
  uint64_t saved[MAX_STAGES][MAX_MICROBATCHES];
  struct buffer forward[MAX_STAGES][MAX_MICROBATCHES], backward[MAX_STAGES][MAX_MICROBATCHES];
  bool weight_half_done[MAX_STAGES][MAX_MICROBATCHES];
};

static void emit(struct model *model, struct rp_event event) {
  event.version = RP_EVENT_VERSION;
  event.source = RP_SOURCE_TRACE;
  event.seq = ++model->seq;
  event.time_ns = model->seq * 10;
  event.operations = model->operations;
  event.comm = event.comm ? event.comm : 0xc0;
  assert_int_equal(rp_tracker_event(model->tracker, &event), RP_OK);
}

static uint64_t allocate(struct model *model, uint64_t bytes) {
  uint64_t address = model->heap;
  model->heap += (bytes + 511) / 512 * 512;
  emit(model, (struct rp_event){.kind = RP_EVENT_ALLOC, .address = address, .bytes = bytes});
  return address;
}

/* A launch that names `buffer` and up to two companions. */
static void launch(struct model *model, struct buffer *buffer, uint64_t function, uint32_t offset,
                   uint64_t companion, uint64_t scratch) {
  model->operations++;
  if (!buffer || !buffer->posted) return;
  struct rp_event event = {.kind = RP_EVENT_KERNEL,
                           .address = buffer->address + 64,
                           .function = function,
                           .arg_offset = offset,
                           .stream = 7};
  if (companion) event.companion[event.companion_count++] = companion + 16;
  if (scratch) event.companion[event.companion_count++] = scratch;
  emit(model, event);
  if (!buffer->life.accesses) buffer->life.first_access_seq = model->seq;
  buffer->life.last_access_seq = model->seq;
  buffer->life.accesses++;
}

static void release(struct model *model, struct buffer *buffer) {
  if (!model->options->just_in_time || !buffer->posted || !buffer->address) return;
  emit(model, (struct rp_event){.kind = RP_EVENT_FREE, .address = buffer->address});
  buffer->address = 0;
}

static void forward(struct model *model, int32_t stage, int32_t mb) {
  struct buffer *x = &model->forward[stage][mb];
  uint64_t scratch = model->scratch[--model->scratch_count];
  model->saved[stage][mb] = scratch;
  launch(model, x, CHECK, 0, 0, 0);
  launch(model, x, FORWARD_1, 0, model->weight[stage][0], scratch);
  launch(model, x, FORWARD_2, 16, model->weight[stage][1], scratch);
}

static void backward_input(struct model *model, int32_t stage, int32_t mb) {
  struct buffer *x = &model->forward[stage][mb], *dy = &model->backward[stage][mb];
  launch(model, dy, CHECK, 0, 0, 0);
  if (model->options->recompute) {
    launch(model, x, CHECK, 0, 0, 0);
    launch(model, x, FORWARD_1, 0, model->weight[stage][0], 0);
  }
  launch(model, dy, INPUT_1, 0, model->weight[stage][1], model->saved[stage][mb]);
}

static void backward_weight(struct model *model, int32_t stage, int32_t mb) {
  struct buffer *x = &model->forward[stage][mb], *dy = &model->backward[stage][mb];
  launch(model, x, CHECK, 0, 0, 0);
  launch(model, dy, WEIGHT_2, 0, model->weight[stage][3], 0);
  launch(model, x, WEIGHT_1, 8, model->weight[stage][2], 0);
  release(model, x);
  release(model, dy);
  model->scratch[model->scratch_count++] = model->saved[stage][mb];
}

static int32_t peer_of(const struct model *model, const struct rp_action *action) {
  bool before = action->kind == RP_ACTION_RECV_F || action->kind == RP_ACTION_SEND_B;
  return model->schedule->stage_rank[action->stage + (before ? -1 : 1)];
}

static void receive(struct model *model, const struct rp_action *action) {
  struct buffer *buffer = action->kind == RP_ACTION_RECV_F
                              ? &model->forward[action->stage][action->microbatch]
                              : &model->backward[action->stage][action->microbatch];
  if (model->options->just_in_time) buffer->address = allocate(model, model->options->bytes);
  emit(model, (struct rp_event){.kind = RP_EVENT_RECV,
                                .address = buffer->address,
                                .bytes = model->options->bytes,
                                .peer = peer_of(model, action),
                                .stream = 9});
  buffer->posted = true;
  buffer->life = (struct model_life){.posted_seq = model->seq, .address = buffer->address};
}

static void send(struct model *model, const struct rp_action *action) {
  emit(model, (struct rp_event){.kind = RP_EVENT_SEND,
                                .address = 0x10,
                                .bytes = model->options->bytes,
                                .peer = peer_of(model, action),
                                .stream = 9});
}

static void act(struct model *model, const struct rp_action *action) {
  switch (action->kind) {
  case RP_ACTION_FORWARD:
    forward(model, action->stage, action->microbatch);
    break;
  case RP_ACTION_BACKWARD:
    backward_input(model, action->stage, action->microbatch);
    backward_weight(model, action->stage, action->microbatch);
    break;
  case RP_ACTION_BACKWARD_INPUT:
    backward_input(model, action->stage, action->microbatch);
    break;
  case RP_ACTION_BACKWARD_WEIGHT:
    backward_weight(model, action->stage, action->microbatch);
    break;
  case RP_ACTION_RECV_F:
  case RP_ACTION_RECV_B:
    receive(model, action);
    break;
  case RP_ACTION_SEND_F:
  case RP_ACTION_SEND_B:
    send(model, action);
    break;
  default:
    break;
  }
}

/* Whether the stage before (or after) lives on another rank, so that there is a receive. */
static bool receives(const struct model *model, int32_t stage, bool gradient) {
  int32_t other = stage + (gradient ? 1 : -1);
  return other >= 0 && other < model->schedule->stages && model->schedule->stage_rank[other] != model->rank;
}

static void prepare(struct model *model) {
  model->heap = 0x7f0000000000;
  for (int32_t s = 0; s < model->schedule->stages; s++)
    for (int w = 0; w < 4 && model->schedule->stage_rank[s] == model->rank; w++)
      model->weight[s][w] = allocate(model, 4096);
  /* Enough for every microbatch of every stage, all older than the first receive: the worst case for telling
   * weights. */
  for (int i = 0; i < model->schedule->microbatches * model->schedule->stages; i++)
    model->scratch[model->scratch_count++] = allocate(model, 4096);
  if (model->options->probes) {
    uint64_t probe = allocate(model, 512);
    emit(model, (struct rp_event){.kind = RP_EVENT_RECV, .address = probe, .bytes = 4, .peer = 3});
    emit(model, (struct rp_event){.kind = RP_EVENT_SEND, .address = probe, .bytes = 4, .peer = 3});
  }
  for (int32_t s = 0; s < model->schedule->stages && !model->options->just_in_time; s++) {
    if (model->schedule->stage_rank[s] != model->rank) continue;
    for (int32_t mb = 0; mb < model->schedule->microbatches && receives(model, s, false); mb++)
      model->forward[s][mb].address = allocate(model, model->options->bytes);
    for (int32_t mb = 0; mb < model->schedule->microbatches && receives(model, s, true); mb++)
      model->backward[s][mb].address = allocate(model, model->options->bytes);
  }
}

static uint32_t brute_force_depth(const struct model_channel *channel, int32_t microbatches) {
  uint32_t deepest = 0;
  for (int32_t i = 0; i < microbatches; i++) {
    uint32_t here = 0;
    for (int32_t j = 0; j < microbatches; j++)
      here += channel->life[j].posted_seq <= channel->life[i].posted_seq &&
              channel->life[j].last_access_seq >= channel->life[i].posted_seq;
    deepest = here > deepest ? here : deepest;
  }
  return deepest;
}

static void record(const struct model *model, struct model_result *result) {
  uint32_t ordinal = 0;
  for (int32_t s = 0; s < model->schedule->stages; s++) {
    if (model->schedule->stage_rank[s] != model->rank) continue;
    for (int gradient = 0; gradient < 2; gradient++) {
      if (!receives(model, s, gradient)) continue;
      struct model_channel *channel = &result->channels[result->channel_count++];
      channel->stage = s;
      channel->stage_ordinal = ordinal;
      channel->direction = gradient ? RP_DIRECTION_GRADIENT : RP_DIRECTION_ACTIVATION;
      channel->peer = model->schedule->stage_rank[s + (gradient ? 1 : -1)];
      for (int32_t mb = 0; mb < model->schedule->microbatches; mb++)
        channel->life[mb] = gradient ? model->backward[s][mb].life : model->forward[s][mb].life;
      channel->depth = brute_force_depth(channel, model->schedule->microbatches);
    }
    ordinal++;
  }
}

void model_run(struct rp_tracker *tracker, const struct rp_schedule *schedule, int32_t rank,
               const struct model_options *options, struct model_result *result) {
  struct model *model = calloc(1, sizeof *model);
  assert_non_null(model);
  *model = (struct model){.tracker = tracker, .schedule = schedule, .options = options, .rank = rank};
  prepare(model);
  for (uint32_t step = 0; step < options->steps; step++) {
    for (size_t i = 0; i < schedule->rank[rank].count; i++) {
      act(model, &schedule->rank[rank].actions[i]);
      if (options->warm_up && step == 0) model->operations++;
    }
    model->operations += 11; /* optimizer */
  }
  memset(result, 0, sizeof *result);
  record(model, result);
  rp_tracker_finish(tracker, ++model->seq * 10);
  free(model);
}
