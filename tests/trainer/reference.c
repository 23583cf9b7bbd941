// The trainer's reference: the same model trained in one process, one microbatch after the other, without
// CUDA, NCCL, streams or buffers that are reused. Its arithmetic is written here once more, as plain loops
// with the same order of summation, so that a mistake in a kernel shows as well as one in the pipeline.
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernel_bodies.h"
#include "rank.h"
#include "stage.h"

/** Parameters (or gradients) of one stage by name. */
struct layer {
  float *all, *w1, *b1, *w2, *b2;
};

struct reference {
  const struct rp_trainer_options *o;
  const struct rp_program *program;
  const struct rp_schedule *schedule;   /**< of the step */
  struct layer *parameters, *gradients; /**< per stage */
  float **x;  /**< [stage * microbatches + microbatch]; one row of stages more: outputs */
  float **dy; /**< gradient of a stage's output, same index */
  size_t B, D, H;
};

static void *zeroed(size_t count, size_t size) {
  void *memory = calloc(count, size);
  if (memory == NULL) {
    fprintf(stderr, "reference: no memory\n");
    exit(1);
  }
  return memory;
}

static struct layer layer_create(const struct rp_trainer_options *o) {
  struct layer l = {.all = zeroed(rp_stage_parameter_count(o), sizeof(float))};
  l.w1 = l.all;
  l.b1 = l.w1 + (size_t)o->width * o->hidden_width;
  l.w2 = l.b1 + o->hidden_width;
  l.b2 = l.w2 + (size_t)o->width * o->hidden_width;
  return l;
}

static void hidden_of(const struct reference *r, const struct layer *l, const float *x, float *h) {
  for (size_t b = 0; b < r->B; b++)
    for (size_t j = 0; j < r->H; j++) {
      float sum = l->b1[j];
      for (size_t k = 0; k < r->D; k++)
        sum += l->w1[j * r->D + k] * x[b * r->D + k];
      h[b * r->H + j] = sum > 0.0f ? sum : 0.0f;
    }
}

static void forward(const struct reference *r, int32_t stage, const float *x, float *y) {
  const struct layer *l = &r->parameters[stage];
  if (stage == r->o->identity) {
    memcpy(y, x, r->B * r->D * sizeof(float));
    return;
  }
  float *h = zeroed(r->B * r->H, sizeof(float));
  hidden_of(r, l, x, h);
  for (size_t b = 0; b < r->B; b++)
    for (size_t k = 0; k < r->D; k++) {
      float sum = l->b2[k];
      for (size_t j = 0; j < r->H; j++)
        sum += l->w2[k * r->H + j] * h[b * r->H + j];
      y[b * r->D + k] = sum + x[b * r->D + k];
    }
  free(h);
}

static void add_outer(size_t rows, size_t out_width, size_t in_width, const float *d, const float *a,
                      float *gw, float *gb) {
  for (size_t o = 0; o < out_width; o++) {
    float bias = 0.0f;
    for (size_t i = 0; i < in_width; i++) {
      float sum = 0.0f;
      for (size_t b = 0; b < rows; b++)
        sum += d[b * out_width + o] * a[b * in_width + i];
      gw[o * in_width + i] += sum;
    }
    for (size_t b = 0; b < rows; b++)
      bias += d[b * out_width + o];
    gb[o] += bias;
  }
}

/** Accumulates the stage's gradients and gives that of its input. */
static void backward(const struct reference *r, int32_t stage, const float *x, const float *dy, float *dx) {
  const struct layer *l = &r->parameters[stage], *g = &r->gradients[stage];
  if (stage == r->o->identity) {
    memcpy(dx, dy, r->B * r->D * sizeof(float));
    return;
  }
  float *h = zeroed(r->B * r->H, sizeof(float)), *dh = zeroed(r->B * r->H, sizeof(float));
  hidden_of(r, l, x, h);
  for (size_t b = 0; b < r->B; b++) {
    for (size_t j = 0; j < r->H; j++) {
      float sum = 0.0f;
      for (size_t k = 0; k < r->D; k++)
        sum += l->w2[k * r->H + j] * dy[b * r->D + k];
      dh[b * r->H + j] = h[b * r->H + j] > 0.0f ? sum : 0.0f;
    }
    for (size_t k = 0; k < r->D && dx != NULL; k++) {
      float sum = dy[b * r->D + k];
      for (size_t j = 0; j < r->H; j++)
        sum += l->w1[j * r->D + k] * dh[b * r->H + j];
      dx[b * r->D + k] = sum;
    }
  }
  add_outer(r->B, r->D, r->H, dy, h, g->w2, g->b2);
  add_outer(r->B, r->H, r->D, dh, x, g->w1, g->b1);
  free(h);
  free(dh);
}

/** Forward of all microbatches, and the gradient of the loss at the model's output. */
static float forward_all(struct reference *r, uint32_t pass) {
  int32_t count = r->schedule->microbatches, stages = r->schedule->stages;
  size_t elements = r->B * r->D;
  float *target = zeroed(elements, sizeof(float)), total = 0.0f, scale = rp_loss_scale(r->o, count);
  uint64_t base = rp_data_base(r->o);
  for (int32_t m = 0; m < count; m++) {
    for (size_t i = 0; i < elements; i++) {
      r->x[m][i] = rp_random_unit(rp_data_key(base, pass, (uint32_t)m, 0), i);
      target[i] = rp_random_unit(rp_data_key(base, pass, (uint32_t)m, 1), i);
    }
    for (int32_t s = 0; s < stages; s++)
      forward(r, s, r->x[s * count + m], r->x[(s + 1) * count + m]);
    const float *y = r->x[stages * count + m];
    float *dy = r->dy[(stages - 1) * count + m], sum = 0.0f;
    for (size_t i = 0; i < elements; i++) {
      sum += (y[i] - target[i]) * (y[i] - target[i]);
      dy[i] = (y[i] - target[i]) * scale;
    }
    total += sum / (float)elements;
  }
  free(target);
  return total / (float)count;
}

/** Backward, stage by stage from the last; each stage adds up its microbatches in the order its schedule has
 * them. */
static void backward_all(struct reference *r) {
  const struct rp_schedule *schedule = r->schedule;
  int32_t count = schedule->microbatches;
  for (int32_t s = schedule->stages - 1; s >= 0; s--) {
    const struct rp_rank_schedule *list = &schedule->rank[schedule->stage_rank[s]];
    for (size_t i = 0; i < list->count; i++) {
      const struct rp_action *a = &list->actions[i];
      if (a->stage != s || (a->kind != RP_ACTION_BACKWARD && a->kind != RP_ACTION_BACKWARD_WEIGHT)) continue;
      backward(r, s, r->x[s * count + a->microbatch], r->dy[s * count + a->microbatch],
               s > 0 ? r->dy[(s - 1) * count + a->microbatch] : NULL);
    }
  }
}

static void update(struct reference *r) {
  size_t count = rp_stage_parameter_count(r->o);
  for (int32_t s = 0; s < r->program->stages; s++)
    for (size_t i = 0; i < count; i++) {
      r->parameters[s].all[i] -= RP_LEARNING_RATE * r->gradients[s].all[i];
      r->gradients[s].all[i] = 0.0f;
    }
}

static void print_parameters(const struct reference *r) {
  const struct rp_program *program = r->program;
  struct rp_stage_result *stages = zeroed((size_t)program->stages, sizeof *stages);
  uint64_t sum = 0;
  for (int32_t rank = 0; rank < program->ranks; rank++) {
    struct rp_rank_result result = {0};
    for (int32_t s = 0; s < program->stages; s++)
      if (program->stage_rank[s] == rank)
        stages[result.stage_count++] = (struct rp_stage_result){
            s, rp_checksum(r->parameters[s].all, rp_stage_parameter_count(r->o) * sizeof(float))};
    rp_rank_print(rank, &result, stages);
  }
  for (int32_t s = 0; s < program->stages; s++)
    sum = rp_checksum_add(sum,
                          rp_checksum(r->parameters[s].all, rp_stage_parameter_count(r->o) * sizeof(float)));
  printf("parameters %016" PRIx64 "\n", sum);
  free(stages);
}

/** After the step; -1: before the first. */
static void evaluate(struct reference *r, int32_t step) {
  int32_t of = step < 0 ? 0 : step;
  r->schedule = &rp_program_phase(r->program, of)->schedule;
  for (int32_t passes = rp_program_evaluations(r->o, step); passes > 0; passes--)
    rp_loss_print(of, true, forward_all(r, (uint32_t)of | RP_PASS_EVALUATION));
}

static void run(struct reference *r) {
  size_t stages = (size_t)r->program->stages, count = (size_t)r->program->most_microbatches;
  size_t arrays = (stages + 1) * count, elements = r->B * r->D;
  r->parameters = zeroed(stages, sizeof(struct layer));
  r->gradients = zeroed(stages, sizeof(struct layer));
  r->x = zeroed(arrays, sizeof(float *));
  r->dy = zeroed(arrays, sizeof(float *));
  for (size_t i = 0; i < arrays; i++) {
    r->x[i] = zeroed(elements, sizeof(float));
    r->dy[i] = zeroed(elements, sizeof(float));
  }
  for (size_t s = 0; s < stages; s++) {
    r->parameters[s] = layer_create(r->o);
    r->gradients[s] = layer_create(r->o);
    rp_stage_initial_parameters(r->o, (int32_t)s, r->parameters[s].all);
  }
  evaluate(r, -1);
  for (int32_t step = 0; step < r->o->steps; step++) {
    r->schedule = &rp_program_phase(r->program, step)->schedule;
    rp_loss_print(step, false, forward_all(r, (uint32_t)step));
    backward_all(r);
    update(r);
    evaluate(r, step);
  }
  print_parameters(r);
  for (size_t i = 0; i < arrays; i++) {
    free(r->x[i]);
    free(r->dy[i]);
  }
  for (size_t s = 0; s < stages; s++) {
    free(r->parameters[s].all);
    free(r->gradients[s].all);
  }
  free(r->x);
  free(r->dy);
  free(r->parameters);
  free(r->gradients);
}

int main(int argc, char **argv) {
  struct rp_trainer_options options;
  struct rp_program program;
  rp_trainer_options_parse(argc, argv, &options);
  if (rp_program_create(&options, &program) != 0) return 2;
  struct reference r = {
      .o = &options, .program = &program, .B = options.rows, .D = options.width, .H = options.hidden_width};
  run(&r);
  rp_program_fini(&program);
  rp_trainer_options_fini(&options);
  return 0;
}
