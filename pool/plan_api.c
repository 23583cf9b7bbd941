/* The public face of plans (recvpool/plan.h). */
#include "pool/plan.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "pool/schedule_internal.h"
#include "pool/text.h"

static const char *const granularity_names[RP_PLAN_GRANULARITY_COUNT] = {"stage", "direction", "rank"};

const char *rp_plan_granularity_name(int granularity) {
  return granularity >= 0 && granularity < RP_PLAN_GRANULARITY_COUNT ? granularity_names[granularity] : "?";
}

int rp_plan_granularity_of(const char *name) {
  for (int g = 0; g < RP_PLAN_GRANULARITY_COUNT; g++)
    if (strcmp(name, granularity_names[g]) == 0) return g;
  return -1;
}

/* What is wrong with options, or NULL. */
static const char *wrong_option(const struct rp_plan_options *options) {
  if (options->size != sizeof(*options))
    return "the options have another size than this library's; start from RP_PLAN_OPTIONS_INIT";
  if (options->torch_version != 0 && options->torch_version < 206)
    return "torch_version must be 0 or at least 206, which stands for torch 2.6";
  if (options->granularity < 0 || options->granularity >= RP_PLAN_GRANULARITY_COUNT)
    return "granularity must be RP_PLAN_STAGE, RP_PLAN_DIRECTION or RP_PLAN_RANK";
  if (options->tensor_count && !options->tensor_bytes)
    return "tensor_bytes is NULL; set it, or tensor_count to 0";
  return NULL;
}

rp_status rp__plan_options_check(const struct rp_plan_options *options, uint64_t *buffer_bytes) {
  uint64_t sum = 0;
  if (wrong_option(options)) return RP_ERROR_INVALID;
  for (size_t i = 0; i < options->tensor_count; i++)
    if (__builtin_add_overflow(sum, options->tensor_bytes[i], &sum)) return RP_ERROR_LIMIT;
  *buffer_bytes = sum;
  return RP_OK;
}

static rp_status tell(rp_status status, char *message, size_t size, const struct rp_schedule_error *error) {
  struct rp_text text;
  if (!message || !size) return status;
  rp_text_init(&text, message, size);
  if (status == RP_ERROR_LIMIT || !error->message[0]) {
    rp_text_string(&text, status == RP_ERROR_LIMIT ? "the sizes are too large to add up in 64 bits"
                                                   : rp_status_text(status));
    return status;
  }
  if (error->row != SIZE_MAX) rp_text_format(&text, "row %zu", error->row + 1);
  if (error->row != SIZE_MAX && error->column != SIZE_MAX)
    rp_text_format(&text, ", column %zu", error->column + 1);
  if (error->row != SIZE_MAX) rp_text_string(&text, ": ");
  if (error->token[0]) rp_text_format(&text, "%s: ", error->token);
  rp_text_string(&text, error->message);
  return status;
}

/* Checks the options of a caller before anything else is done. */
static rp_status check_options(const struct rp_plan_options *options, char *message, size_t size) {
  struct rp_schedule_error error = {.row = SIZE_MAX, .column = SIZE_MAX};
  struct rp_text text;
  uint64_t bytes;
  rp_status status = rp__plan_options_check(options, &bytes);
  const char *wrong = wrong_option(options);
  rp_text_init(&text, error.message, sizeof(error.message));
  if (wrong) rp_text_string(&text, wrong);
  return status ? tell(status, message, size, &error) : RP_OK;
}

static const struct rp_plan_options default_options = RP_PLAN_OPTIONS_INIT;

static enum rp_lowering lowering_of(const struct rp_plan_options *options) {
  if (options->torch_version == 0) return RP_LOWERING_TORCH_2_10;
  if (options->torch_version < 210) return RP_LOWERING_TORCH_2_6;
  return options->torch_version < 215 ? RP_LOWERING_TORCH_2_10 : RP_LOWERING_TORCH_2_15;
}

/* Plans `schedule` and frees it. */
static rp_status plan_and_free(struct rp_schedule *schedule, const struct rp_plan_options *options,
                               const char *source, struct rp_plan **out, char *message, size_t size) {
  struct rp_schedule_error error = {0};
  struct rp_plan *plan = NULL;
  rp_status status = rp_schedule_check(schedule, &error);
  if (!status && !schedule->lowered) status = rp_schedule_lower_as(schedule, lowering_of(options), &error);
  if (!status) status = rp__plan_from_schedule(schedule, options, &plan);
  rp_schedule_fini(schedule);
  if (!status && !(plan->source = strdup(source))) {
    rp_plan_destroy(plan);
    status = RP_ERROR_NO_MEMORY;
  }
  if (status) return tell(status, message, size, &error);
  *out = plan;
  return RP_OK;
}

rp_status rp_plan_create_named(const char *name, int32_t ranks, int32_t chunks, int32_t microbatches,
                               const struct rp_plan_options *options, struct rp_plan **plan, char *message,
                               size_t message_size) {
  struct rp_schedule schedule;
  struct rp_schedule_error error = {0};
  if (!options) options = &default_options;
  rp_status status = check_options(options, message, message_size);
  if (status) return status;
  bool written =
      name && (strcmp(name, "gpipe") == 0 || strcmp(name, "1f1b") == 0); /* with transfers of its own */
  status = written ? rp_schedule_generate(name, ranks, chunks, microbatches, &schedule, &error)
                   : rp__schedule_compute_order(name, ranks, chunks, microbatches, &schedule, &error);
  if (status) return tell(status, message, message_size, &error);
  status = plan_and_free(&schedule, options, name, plan, message, message_size);
  for (size_t i = 0; !status && strcmp(name, "1f1b") == 0 && i < (*plan)->pool_count; i++) {
    struct rp_plan_pool *pool = &(*plan)->pools[i];
    int32_t slack = options->slack > INT32_MAX ? INT32_MAX : (int32_t)options->slack;
    rp_ring_size_1f1b(ranks, pool->stage, microbatches, slack, &pool->existing_slots);
  }
  return status;
}

rp_status rp_plan_create_csv(const char *text, size_t length, const struct rp_plan_options *options,
                             struct rp_plan **plan, char *message, size_t message_size) {
  struct rp_schedule schedule;
  struct rp_schedule_error error = {0};
  if (!options) options = &default_options;
  rp_status status = check_options(options, message, message_size);
  if (status) return status;
  status = rp_schedule_parse(text, length, &schedule, &error);
  if (status) return tell(status, message, message_size, &error);
  return plan_and_free(&schedule, options, "schedule file", plan, message, message_size);
}

void rp_plan_destroy(struct rp_plan *plan) {
  if (!plan) return;
  for (size_t i = 0; i < plan->class_count; i++)
    free(plan->classes[i].slot_bytes);
  free((void *)plan->options.tensor_bytes);
  free(plan->source);
  free(plan->items);
  free(plan->members);
  free(plan->slots);
  free(plan->classes);
  free(plan->pools);
  free(plan->rank);
  free(plan->lookup);
  free(plan);
}

size_t rp_plan_rank_count(const struct rp_plan *plan) {
  return (size_t)plan->ranks;
}
size_t rp_plan_pool_count(const struct rp_plan *plan) {
  return plan->pool_count;
}

rp_status rp_plan_rank_get(const struct rp_plan *plan, size_t index, struct rp_plan_rank *out) {
  if (index >= (size_t)plan->ranks) return RP_ERROR_NOT_FOUND;
  *out = plan->rank[index];
  return RP_OK;
}

rp_status rp_plan_pool_get(const struct rp_plan *plan, size_t index, struct rp_plan_pool *out) {
  if (index >= plan->pool_count) return RP_ERROR_NOT_FOUND;
  *out = plan->pools[index];
  return RP_OK;
}

void rp_plan_totals_get(const struct rp_plan *plan, struct rp_plan_totals *out) {
  *out = (struct rp_plan_totals){0};
  for (size_t i = 0; i < plan->class_count; i++) {
    out->buffers += plan->classes[i].buffers;
    out->slots += plan->classes[i].slots;
    out->bytes_stock += plan->classes[i].bytes_stock;
    out->bytes_pooled += plan->classes[i].bytes_pooled;
  }
}

rp_status rp_plan_slot(const struct rp_plan *plan, int32_t stage, enum rp_plan_direction direction,
                       int32_t microbatch, uint32_t *slot) {
  if (stage < 0 || stage >= plan->stages || microbatch < 0 || microbatch >= plan->microbatches ||
      (direction != RP_PLAN_ACTIVATION && direction != RP_PLAN_GRADIENT))
    return RP_ERROR_NOT_FOUND;
  size_t pair = (size_t)stage * (size_t)plan->microbatches + (size_t)microbatch;
  uint32_t found = plan->lookup[2 * pair + (direction == RP_PLAN_GRADIENT)];
  if (!found) return RP_ERROR_NOT_FOUND;
  *slot = found - 1;
  return RP_OK;
}

/* --- which schedules can pool --- */

static const struct {
  const char *name; /* lower case, without underscores */
  int pools;
  const char *reason;
} schedules[] = {
    {"gpipe", RP_POOL_GRADIENTS,
     "every activation is kept until the backwards begin, so all of them are live at once; gradients are "
     "used one by "
     "one"},
    {"1f1b", RP_POOL_ACTIVATIONS | RP_POOL_GRADIENTS,
     "a stage has at most as many microbatches in flight as there are stages from it to the end"},
    {"interleaved1f1b", RP_POOL_ACTIVATIONS | RP_POOL_GRADIENTS,
     "microbatches in flight are bounded by the warm-up, which does not grow with their number"},
    {"loopedbfs", RP_POOL_GRADIENTS,
     "every activation is kept until the backwards begin, so all of them are live at once; gradients pool "
     "except on "
     "the last rank"},
    {"interleavedzerobubble", RP_POOL_ACTIVATIONS | RP_POOL_GRADIENTS,
     "in flight is bounded; buffers are live until the weight part of the backward, and slots account for "
     "that"},
    {"zbvzerobubble", RP_POOL_ACTIVATIONS | RP_POOL_GRADIENTS,
     "in flight is bounded; buffers are live until the weight part of the backward, and slots account for "
     "that"},
    {"dualpipev", RP_POOL_ACTIVATIONS | RP_POOL_GRADIENTS,
     "in flight is bounded; buffers are live until the weight part of the backward, and slots account for "
     "that"},
};

int rp_schedule_supports_pool(const char *name, const char **reason) {
  char plain[32];
  size_t length = 0;
  for (const char *c = name ? name : ""; *c && length < sizeof(plain) - 1; c++)
    if (*c != '_') plain[length++] = (char)tolower((unsigned char)*c);
  plain[length] = 0;
  const char *key = strncmp(plain, "schedule", 8) == 0 ? plain + 8 : plain;
  for (size_t i = 0; i < sizeof(schedules) / sizeof(schedules[0]); i++) {
    if (strcmp(key, schedules[i].name) != 0) continue;
    if (reason) *reason = schedules[i].reason;
    return schedules[i].pools;
  }
  if (reason) *reason = "this schedule is not known by name; plan it from its schedule file";
  return RP_ERROR_NOT_FOUND;
}
