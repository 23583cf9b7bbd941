// One stage: weights, forward and backward of a microbatch. Every launch goes through launch(), which keeps
// the record of who reads a received buffer.
#include "stage.h"

#include <stdlib.h>

#include "kernel_bodies.h"
#include "mistakes.h"

/** Parameters of a stage by name. */
struct weights {
  float *w1, *b1, *w2, *b2;
};

static struct weights weights_at(const struct rp_worker *worker, float *base) {
  size_t width = worker->options->width, hidden_width = worker->options->hidden_width;
  struct weights w = {.w1 = base};
  w.b1 = w.w1 + width * hidden_width;
  w.w2 = w.b1 + hidden_width;
  w.b2 = w.w2 + width * hidden_width;
  return w;
}

/** Launches a kernel; `reads` (or NULL) is the message that it reads and that may have been received. */
static void launch_on(struct rp_worker *worker, cudaStream_t stream, enum rp_kernel kernel, size_t elements,
                      void **arguments, const struct rp_buffer *reads) {
  uint64_t before_ns = rp_now_ns();
  rp_device_launch(kernel, elements, arguments, stream);
  if (reads != NULL && reads->lifetime >= 0)
    rp_truth_access(worker->truth, reads->lifetime, rp_kernel_name(kernel), before_ns, rp_now_ns());
}

static void launch(struct rp_worker *worker, enum rp_kernel kernel, size_t elements, void **arguments,
                   const struct rp_buffer *reads) {
  launch_on(worker, worker->compute, kernel, elements, arguments, reads);
}

static size_t activation_bytes(const struct rp_worker *worker) {
  return (size_t)worker->options->rows * worker->options->hidden_width * sizeof(float);
}

static struct rp_buffer *get_message(struct rp_worker *worker) {
  struct rp_buffer *buffer =
      rp_buffer_get_scratch(worker->buffers, rp_trainer_message_bytes(worker->options));
  buffer->lifetime = -1;
  return buffer;
}

static void drop(struct rp_worker *worker, struct rp_buffer **buffer) {
  rp_buffer_release(worker->buffers, *buffer, worker->compute);
  *buffer = NULL;
}

void rp_stage_init(struct rp_worker *worker, struct rp_stage *stage, int32_t index, int32_t ordinal,
                   int32_t stages) {
  size_t count = rp_stage_parameter_count(worker->options), bytes = count * sizeof(float);
  float *host = calloc(count, sizeof(float));
  stage->index = index;
  stage->ordinal = ordinal;
  stage->first = index == 0;
  stage->last = index == stages - 1;
  stage->microbatches = calloc((size_t)worker->options->microbatches, sizeof *stage->microbatches);
  if (host == NULL || stage->microbatches == NULL) rp_die("no memory");
  stage->parameters = rp_device_alloc(bytes);
  stage->gradients = rp_device_alloc(bytes);
  rp_device_upload(stage->gradients, host, bytes, worker->compute);
  RP_CUDA(cudaStreamSynchronize(worker->compute));
  rp_stage_initial_parameters(worker->options, index, host);
  rp_device_upload(stage->parameters, host, bytes, worker->compute);
  RP_CUDA(cudaStreamSynchronize(worker->compute));
  free(host);
}

void rp_stage_fini(struct rp_worker *worker, struct rp_stage *stage) {
  for (int direction = 0; direction < RP_DIRECTIONS; direction++) {
    for (int32_t i = 0; stage->receive[direction] != NULL && i < worker->options->microbatches; i++)
      rp_buffer_destroy(stage->receive[direction][i]);
    free(stage->receive[direction]);
  }
  rp_device_free(stage->parameters);
  rp_device_free(stage->gradients);
  free(stage->microbatches);
}

void rp_stage_preallocate(struct rp_worker *worker, struct rp_stage *stage) {
  size_t count = (size_t)worker->options->microbatches, bytes = rp_trainer_message_bytes(worker->options);
  const bool needed[RP_DIRECTIONS] = {!stage->first, !stage->last};
  for (int direction = 0; direction < RP_DIRECTIONS; direction++) {
    if (!needed[direction]) continue;
    stage->receive[direction] = calloc(count, sizeof(struct rp_buffer *));
    if (stage->receive[direction] == NULL) rp_die("no memory");
    for (size_t i = 0; i < count; i++)
      stage->receive[direction][i] = rp_buffer_new_receive(bytes, RP_HOME_PREALLOCATED);
  }
}

/** Writes header and filler of a computed message. */
static void fill_pattern(struct rp_worker *worker, struct rp_buffer *buffer, int32_t stage,
                         int32_t microbatch, uint32_t direction) {
  uint64_t message_bytes = buffer->bytes, payload_bytes = rp_trainer_payload_bytes(worker->options);
  buffer->mark =
      (struct rp_pattern_mark){(uint32_t)worker->step, (uint32_t)microbatch, direction, (uint32_t)stage};
  void *arguments[] = {&buffer->memory, &message_bytes, &payload_bytes, &buffer->mark};
  launch(worker, RP_KERNEL_FILL_PATTERN, rp_pattern_word_count(message_bytes, payload_bytes), arguments,
         NULL);
}

void rp_stage_check(struct rp_worker *worker, const struct rp_stage *stage, const struct rp_buffer *buffer,
                    int32_t microbatch, int direction, cudaStream_t stream, struct rp_pattern_error *error) {
  uint64_t message_bytes = buffer->bytes, payload_bytes = rp_trainer_payload_bytes(worker->options);
  struct rp_pattern_mark mark = {(uint32_t)worker->step, (uint32_t)microbatch, (uint32_t)direction,
                                 (uint32_t)stage->index};
  void *arguments[] = {(void *)&buffer->memory, &message_bytes, &payload_bytes, &mark, &error};
  launch_on(worker, stream, RP_KERNEL_CHECK_PATTERN, rp_pattern_word_count(message_bytes, payload_bytes),
            arguments, buffer);
}

/** Verifies header and filler of a message where the framework would read it. */
static void check_pattern(struct rp_worker *worker, struct rp_stage *stage, int32_t microbatch,
                          int direction) {
  rp_stage_check(worker, stage, stage->microbatches[microbatch].in[direction], microbatch, direction,
                 worker->compute, worker->pattern_error);
}

static void generate(struct rp_worker *worker, float *out, int32_t microbatch, int kind) {
  uint32_t count = worker->options->rows * worker->options->width;
  uint64_t key = rp_data_key(worker->options, worker->step, microbatch, kind);
  void *arguments[] = {&out, &key, &count};
  launch(worker, RP_KERNEL_GENERATE, count, arguments, NULL);
}

/** Runs both layers from the stage's input into `hidden` and `y`. */
static void run_layers(struct rp_worker *worker, struct rp_stage *stage, const struct rp_buffer *in,
                       struct rp_buffer *hidden, float *y) {
  const struct rp_trainer_options *o = worker->options;
  struct weights w = weights_at(worker, stage->parameters);
  const float *x = rp_buffer_payload(in);
  struct rp_hidden_args args = {x, w.w1, w.b1, (float *)hidden->memory, o->rows, o->width, o->hidden_width,
                                0};
  void *hidden_arguments[] = {&args};
  launch(worker, RP_KERNEL_HIDDEN, (size_t)o->rows * o->hidden_width, hidden_arguments, in);
  void *output_arguments[] = {
      &hidden->memory, &w.w2, &w.b2, &x, &y, (void *)&o->rows, (void *)&o->width, (void *)&o->hidden_width};
  launch(worker, RP_KERNEL_OUTPUT, (size_t)o->rows * o->width, output_arguments, in);
}

static void run_loss(struct rp_worker *worker, int32_t microbatch, const struct rp_buffer *output) {
  uint32_t count = worker->options->rows * worker->options->width;
  struct rp_buffer *target =
      rp_buffer_get_scratch(worker->buffers, rp_trainer_payload_bytes(worker->options));
  float *loss = worker->losses + microbatch, *y = rp_buffer_payload(output);
  generate(worker, (float *)target->memory, microbatch, 1);
  void *arguments[] = {&y, &target->memory, &loss, &count};
  launch(worker, RP_KERNEL_LOSS, 1, arguments, NULL);
  drop(worker, &target);
}

void rp_stage_forward(struct rp_worker *worker, struct rp_stage *stage, int32_t microbatch) {
  struct rp_microbatch *m = &stage->microbatches[microbatch];
  if (stage->first) {
    m->in[RP_ACTIVATION] = get_message(worker);
    generate(worker, rp_buffer_payload(m->in[RP_ACTIVATION]), microbatch, 0);
  } else {
    rp_work_wait(worker->transfers, m->received[RP_ACTIVATION], worker->options->break_wait);
    check_pattern(worker, stage, microbatch, RP_ACTIVATION);
  }
  struct rp_buffer *out = get_message(worker);
  m->hidden = rp_buffer_get_scratch(worker->buffers, activation_bytes(worker));
  run_layers(worker, stage, m->in[RP_ACTIVATION], m->hidden, rp_buffer_payload(out));
  if (worker->options->recompute) drop(worker, &m->hidden);
  if (stage->last) {
    m->output = out;
    run_loss(worker, microbatch, out);
    return;
  }
  fill_pattern(worker, out, stage->index + 1, microbatch, RP_ACTIVATION);
  if (stage->next != NULL)
    stage->next->microbatches[microbatch].in[RP_ACTIVATION] = out;
  else
    m->out[RP_ACTIVATION] = out;
}

/** Recomputation: the forward's kernels again, from the stage's input. */
static void restore_hidden(struct rp_worker *worker, struct rp_stage *stage, struct rp_microbatch *m) {
  if (m->hidden != NULL) return;
  struct rp_buffer *y = get_message(worker);
  m->hidden = rp_buffer_get_scratch(worker->buffers, activation_bytes(worker));
  run_layers(worker, stage, m->in[RP_ACTIVATION], m->hidden, rp_buffer_payload(y));
  drop(worker, &y);
}

/** The last stage's own gradient: that of the loss. */
static void run_loss_gradient(struct rp_worker *worker, struct rp_microbatch *m, int32_t microbatch) {
  uint32_t count = worker->options->rows * worker->options->width;
  size_t bytes = rp_trainer_payload_bytes(worker->options);
  struct rp_buffer *target = rp_buffer_get_scratch(worker->buffers, bytes);
  float *y = rp_buffer_payload(m->output), scale = rp_loss_scale(worker->options);
  m->output_gradient = rp_buffer_get_scratch(worker->buffers, bytes);
  generate(worker, (float *)target->memory, microbatch, 1);
  void *arguments[] = {&y, &target->memory, &m->output_gradient->memory, &scale, &count};
  launch(worker, RP_KERNEL_LOSS_GRADIENT, count, arguments, NULL);
  drop(worker, &target);
}

static float *output_gradient_of(const struct rp_stage *stage, const struct rp_microbatch *m) {
  return stage->last ? (float *)m->output_gradient->memory : rp_buffer_payload(m->in[RP_GRADIENT]);
}

static void run_hidden_gradient(struct rp_worker *worker, struct rp_stage *stage, struct rp_microbatch *m) {
  const struct rp_trainer_options *o = worker->options;
  struct weights w = weights_at(worker, stage->parameters);
  m->hidden_gradient = rp_buffer_get_scratch(worker->buffers, activation_bytes(worker));
  struct rp_hidden_gradient_args args = {o->rows,
                                         o->width,
                                         o->hidden_width,
                                         0,
                                         output_gradient_of(stage, m),
                                         w.w2,
                                         (float *)m->hidden->memory,
                                         (float *)m->hidden_gradient->memory};
  void *arguments[] = {&args};
  launch(worker, RP_KERNEL_HIDDEN_GRADIENT, (size_t)o->rows * o->hidden_width, arguments, m->in[RP_GRADIENT]);
}

/** Gradient of the stage's input, as the message for the stage before it. */
static void run_input_gradient(struct rp_worker *worker, struct rp_stage *stage, int32_t microbatch) {
  const struct rp_trainer_options *o = worker->options;
  struct rp_microbatch *m = &stage->microbatches[microbatch];
  struct weights w = weights_at(worker, stage->parameters);
  struct rp_buffer *out = get_message(worker);
  float *dy = output_gradient_of(stage, m), *dx = rp_buffer_payload(out);
  void *arguments[] = {&m->hidden_gradient->memory, &w.w1, &dy, &dx, (void *)&o->rows, (void *)&o->width,
                       (void *)&o->hidden_width};
  launch(worker, RP_KERNEL_INPUT_GRADIENT, (size_t)o->rows * o->width, arguments, m->in[RP_GRADIENT]);
  fill_pattern(worker, out, stage->index - 1, microbatch, RP_GRADIENT);
  if (stage->previous != NULL)
    stage->previous->microbatches[microbatch].in[RP_GRADIENT] = out;
  else
    m->out[RP_GRADIENT] = out;
}

/** One layer's weight gradient: `gradient` of its output times its input `activation`. */
static void add_weight_gradient(struct rp_worker *worker, float *gradient, const float *activation,
                                float *weight, float *bias, uint32_t out_width, uint32_t in_width,
                                const struct rp_buffer *reads) {
  const struct rp_trainer_options *o = worker->options;
  void *arguments[] = {&gradient,        (void *)&activation, &weight,  &bias,
                       (void *)&o->rows, &out_width,          &in_width};
  launch(worker, RP_KERNEL_WEIGHT_GRADIENT, (size_t)out_width * in_width + out_width, arguments, reads);
}

static void run_weight_gradients(struct rp_worker *worker, struct rp_stage *stage, struct rp_microbatch *m) {
  const struct rp_trainer_options *o = worker->options;
  struct weights g = weights_at(worker, stage->gradients);
  add_weight_gradient(worker, output_gradient_of(stage, m), (float *)m->hidden->memory, g.w2, g.b2, o->width,
                      o->hidden_width, m->in[RP_GRADIENT]);
  add_weight_gradient(worker, (float *)m->hidden_gradient->memory, rp_buffer_payload(m->in[RP_ACTIVATION]),
                      g.w1, g.b1, o->hidden_width, o->width, m->in[RP_ACTIVATION]);
}

/** Nobody needs the microbatch any more. */
static void finish(struct rp_worker *worker, struct rp_microbatch *m) {
  drop(worker, &m->hidden);
  drop(worker, &m->hidden_gradient);
  drop(worker, &m->output_gradient);
  drop(worker, &m->output);
  drop(worker, &m->in[RP_GRADIENT]);
  drop(worker, &m->in[RP_ACTIVATION]);
}

void rp_stage_backward(struct rp_worker *worker, struct rp_stage *stage, int32_t microbatch, bool input,
                       bool weight) {
  struct rp_microbatch *m = &stage->microbatches[microbatch];
  rp_mistake_before_backward(worker, stage, microbatch);
  if (stage->first && !weight) return; // as in torch: the first stage leaves everything to W
  if (!stage->last) {
    rp_work_wait(worker->transfers, m->received[RP_GRADIENT], worker->options->break_wait);
    check_pattern(worker, stage, microbatch, RP_GRADIENT);
  }
  if (!stage->first && (weight || worker->options->recompute))
    check_pattern(worker, stage, microbatch, RP_ACTIVATION);
  restore_hidden(worker, stage, m);
  if (m->hidden_gradient == NULL) {
    if (stage->last) run_loss_gradient(worker, m, microbatch);
    run_hidden_gradient(worker, stage, m);
  }
  if (input && !stage->first) run_input_gradient(worker, stage, microbatch);
  if (!weight) return;
  run_weight_gradients(worker, stage, m);
  rp_mistake_after_backward(worker, stage, microbatch);
  finish(worker, m);
}

void rp_stage_update(struct rp_worker *worker, struct rp_stage *stage) {
  uint32_t count = (uint32_t)rp_stage_parameter_count(worker->options);
  float rate = RP_LEARNING_RATE;
  void *arguments[] = {&stage->parameters, &stage->gradients, &rate, &count};
  launch(worker, RP_KERNEL_UPDATE, count, arguments, NULL);
}
