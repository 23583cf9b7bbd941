// One stage: weights, forward and backward of a microbatch. Every launch goes through launch(), which keeps
// the record of who reads a received buffer.
#include "stage.h"

#include <stdlib.h>

#include "kernel_bodies.h"
#include "lookalike.h"
#include "mistakes.h"
#include "shared_pool.h"

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

struct rp_buffer *rp_stage_new_message(struct rp_worker *worker) {
  struct rp_buffer *buffer = rp_buffer_get_scratch(worker->buffers, rp_trainer_buffer_bytes(worker->options));
  buffer->bytes = rp_trainer_message_bytes(worker->options);
  return buffer;
}

static void drop(struct rp_worker *worker, struct rp_buffer **buffer) {
  rp_buffer_release(worker->buffers, *buffer, worker->compute);
  *buffer = NULL;
}

void rp_stage_init(struct rp_worker *worker, struct rp_stage *stage, int32_t index, int32_t ordinal,
                   int32_t stages, const float *parameters) {
  size_t count = rp_stage_parameter_count(worker->options), bytes = count * sizeof(float);
  float *initial = calloc(count, sizeof(float));
  *stage = (struct rp_stage){.index = index,
                             .ordinal = ordinal,
                             .first = index == 0,
                             .last = index == stages - 1,
                             .identity = index == worker->options->identity};
  stage->microbatches = calloc((size_t)worker->most_microbatches, sizeof *stage->microbatches);
  if (initial == NULL || stage->microbatches == NULL) rp_die("no memory");
  stage->parameters = rp_device_alloc(bytes);
  stage->gradients = rp_device_alloc(bytes);
  rp_device_upload(stage->gradients, initial, bytes, worker->compute);
  rp_device_synchronize(worker->compute);
  rp_stage_initial_parameters(worker->options, index, initial);
  rp_device_upload(stage->parameters, parameters != NULL ? parameters : initial, bytes, worker->compute);
  rp_device_synchronize(worker->compute);
  free(initial);
}

void rp_stage_fini(struct rp_worker *worker, struct rp_stage *stage) {
  for (int direction = 0; direction < RP_DIRECTIONS; direction++) {
    for (int32_t i = 0; stage->receive[direction] != NULL && i < worker->most_microbatches; i++)
      rp_buffer_destroy(stage->receive[direction][i]);
    free(stage->receive[direction]);
  }
  rp_device_free(stage->parameters);
  rp_device_free(stage->gradients);
  free(stage->microbatches);
}

void rp_stage_parameters(struct rp_worker *worker, const struct rp_stage *stage, float *parameters) {
  size_t bytes = rp_stage_parameter_count(worker->options) * sizeof(float);
  rp_device_download(parameters, stage->parameters, bytes, worker->compute);
  rp_device_synchronize(worker->compute);
}

static struct rp_buffer *new_receive(struct rp_worker *worker, const struct rp_stage *stage, int direction,
                                     int32_t microbatch) {
  size_t bytes = rp_trainer_message_bytes(worker->options), all = rp_trainer_buffer_bytes(worker->options);
  void *memory = rp_shared_pool_memory(worker->shared, stage->index, direction, microbatch);
  return rp_buffer_new_receive(bytes, all, memory != NULL ? RP_HOME_SHARED : RP_HOME_PREALLOCATED, memory);
}

void rp_stage_preallocate(struct rp_worker *worker, struct rp_stage *stage) {
  const bool needed[RP_DIRECTIONS] = {!stage->first, !stage->last};
  for (int direction = 0; direction < RP_DIRECTIONS; direction++) {
    struct rp_buffer ***list = &stage->receive[direction];
    if (!needed[direction]) continue;
    bool begin = *list == NULL;
    if (begin) *list = calloc((size_t)worker->most_microbatches, sizeof **list);
    if (*list == NULL) rp_die("no memory");
    for (int32_t i = 0; i < worker->microbatches; i++) {
      if (begin && i == worker->microbatches / 2) rp_lookalikes_add(worker, RP_LOOKALIKE_BETWEEN);
      if ((*list)[i] == NULL) (*list)[i] = new_receive(worker, stage, direction, i);
    }
  }
}

/** Writes header and filler of a computed message. */
static void fill_pattern(struct rp_worker *worker, struct rp_buffer *buffer, int32_t stage,
                         int32_t microbatch, uint32_t direction) {
  uint64_t message_bytes = buffer->bytes, payload_bytes = rp_trainer_payload_bytes(worker->options);
  struct rp_pattern_mark mark = {0, (uint32_t)microbatch, direction, (uint32_t)stage};
  void *arguments[] = {&buffer->memory, &worker->pass_word, &message_bytes, &payload_bytes, &mark};
  launch(worker, RP_KERNEL_FILL_PATTERN, rp_pattern_word_count(message_bytes, payload_bytes), arguments,
         NULL);
  rp_mistake_message_complete(worker, buffer);
}

/** The stage that a message was made for: an identity stage passes it on as it is. */
static int32_t made_for(const struct rp_worker *worker, const struct rp_stage *stage, int direction) {
  int32_t before = direction == RP_ACTIVATION ? stage->index - 1 : stage->index + 1;
  return before == worker->options->identity ? before : stage->index;
}

void rp_stage_check(struct rp_worker *worker, const struct rp_stage *stage, const struct rp_buffer *buffer,
                    int32_t microbatch, int direction, cudaStream_t stream, struct rp_pattern_error *error) {
  uint64_t message_bytes = buffer->bytes, payload_bytes = rp_trainer_payload_bytes(worker->options);
  struct rp_pattern_mark mark = {0, (uint32_t)microbatch, (uint32_t)direction,
                                 (uint32_t)made_for(worker, stage, direction)};
  void *arguments[] = {
      (void *)&buffer->memory, &worker->pass_word, &message_bytes, &payload_bytes, &mark, &error};
  launch_on(worker, stream, RP_KERNEL_CHECK_PATTERN, rp_pattern_word_count(message_bytes, payload_bytes),
            arguments, buffer);
}

/** Verifies header and filler of a message where the framework would read it. */
static void check_pattern(struct rp_worker *worker, struct rp_stage *stage, int32_t microbatch,
                          int direction) {
  rp_stage_check(worker, stage, stage->microbatches[microbatch].in[direction], microbatch, direction,
                 worker->compute, worker->pattern_error);
}

/** Fills in the input (kind 0) or target (kind 1) of a microbatch. */
static void generate(struct rp_worker *worker, float *out, int32_t microbatch, uint32_t kind) {
  uint32_t count = worker->options->rows * worker->options->width;
  uint64_t base = rp_data_base(worker->options);
  void *arguments[] = {&out, &worker->pass_word, &base, &microbatch, &kind, &count};
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

/** Nobody needs the microbatch any more. */
static void finish(struct rp_worker *worker, struct rp_microbatch *m) {
  rp_lookalikes_check(worker, &m->lookalike);
  drop(worker, &m->hidden);
  drop(worker, &m->hidden_gradient);
  drop(worker, &m->output_gradient);
  drop(worker, &m->output);
  drop(worker, &m->in[RP_GRADIENT]);
  drop(worker, &m->in[RP_ACTIVATION]);
}

void rp_stage_forget(struct rp_worker *worker, struct rp_stage *stage) {
  for (int32_t i = 0; i < worker->most_microbatches; i++) {
    struct rp_microbatch *m = &stage->microbatches[i];
    finish(worker, m);
    drop(worker, &m->out[RP_ACTIVATION]);
    drop(worker, &m->out[RP_GRADIENT]);
  }
  rp_device_set(stage->gradients, 0, rp_stage_parameter_count(worker->options) * sizeof(float),
                worker->compute);
}

/** Hands a message to the neighbour on the same rank, or keeps it for a send. */
static void hand_over(struct rp_stage *stage, struct rp_stage *neighbour, int32_t microbatch, int direction,
                      struct rp_buffer *message) {
  if (neighbour != NULL)
    neighbour->microbatches[microbatch].in[direction] = message;
  else
    stage->microbatches[microbatch].out[direction] = message;
}

/** An identity stage's forward or backward. */
static void pass_on(struct rp_worker *worker, struct rp_stage *stage, int32_t microbatch, int direction) {
  struct rp_microbatch *m = &stage->microbatches[microbatch];
  rp_work_wait(worker->transfers, m->received[direction], worker->options->break_wait);
  rp_buffer_hold(m->in[direction]);
  hand_over(stage, direction == RP_ACTIVATION ? stage->next : stage->previous, microbatch, direction,
            m->in[direction]);
}

static void compute_forward(struct rp_worker *worker, struct rp_stage *stage, int32_t microbatch) {
  struct rp_microbatch *m = &stage->microbatches[microbatch];
  if (stage->first) {
    m->in[RP_ACTIVATION] = rp_stage_new_message(worker);
    generate(worker, rp_buffer_payload(m->in[RP_ACTIVATION]), microbatch, 0);
  } else {
    rp_work_wait(worker->transfers, m->received[RP_ACTIVATION], worker->options->break_wait);
    check_pattern(worker, stage, microbatch, RP_ACTIVATION);
  }
  struct rp_buffer *out = rp_stage_new_message(worker);
  m->hidden = rp_buffer_get_scratch(worker->buffers, activation_bytes(worker));
  run_layers(worker, stage, m->in[RP_ACTIVATION], m->hidden, rp_buffer_payload(out));
  if (worker->options->recompute) drop(worker, &m->hidden);
  if (stage->last) {
    m->output = out;
    run_loss(worker, microbatch, out);
    return;
  }
  fill_pattern(worker, out, stage->index + 1, microbatch, RP_ACTIVATION);
  hand_over(stage, stage->next, microbatch, RP_ACTIVATION, out);
}

void rp_stage_forward(struct rp_worker *worker, struct rp_stage *stage, int32_t microbatch) {
  struct rp_microbatch *m = &stage->microbatches[microbatch];
  if (stage->identity)
    pass_on(worker, stage, microbatch, RP_ACTIVATION);
  else
    compute_forward(worker, stage, microbatch);
  if (worker->evaluation)
    finish(worker, m);
  else
    m->lookalike = rp_lookalikes_activation(worker);
}

/** Recomputation: the forward's kernels again, from the stage's input. */
static void restore_hidden(struct rp_worker *worker, struct rp_stage *stage, struct rp_microbatch *m) {
  if (m->hidden != NULL) return;
  struct rp_buffer *y = rp_stage_new_message(worker);
  m->hidden = rp_buffer_get_scratch(worker->buffers, activation_bytes(worker));
  run_layers(worker, stage, m->in[RP_ACTIVATION], m->hidden, rp_buffer_payload(y));
  drop(worker, &y);
}

/** The last stage's own gradient: that of the loss. */
static void run_loss_gradient(struct rp_worker *worker, struct rp_microbatch *m, int32_t microbatch) {
  uint32_t count = worker->options->rows * worker->options->width;
  size_t bytes = rp_trainer_payload_bytes(worker->options);
  struct rp_buffer *target = rp_buffer_get_scratch(worker->buffers, bytes);
  float *y = rp_buffer_payload(m->output), scale = rp_loss_scale(worker->options, worker->microbatches);
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
  struct rp_buffer *out = rp_stage_new_message(worker);
  float *dy = output_gradient_of(stage, m), *dx = rp_buffer_payload(out);
  void *arguments[] = {&m->hidden_gradient->memory, &w.w1, &dy, &dx, (void *)&o->rows, (void *)&o->width,
                       (void *)&o->hidden_width};
  launch(worker, RP_KERNEL_INPUT_GRADIENT, (size_t)o->rows * o->width, arguments, m->in[RP_GRADIENT]);
  fill_pattern(worker, out, stage->index - 1, microbatch, RP_GRADIENT);
  hand_over(stage, stage->previous, microbatch, RP_GRADIENT, out);
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

static void compute_backward(struct rp_worker *worker, struct rp_stage *stage, int32_t microbatch, bool input,
                             bool weight) {
  struct rp_microbatch *m = &stage->microbatches[microbatch];
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
  rp_mistake_before_weights(worker);
  run_weight_gradients(worker, stage, m);
}

void rp_stage_backward(struct rp_worker *worker, struct rp_stage *stage, int32_t microbatch, bool input,
                       bool weight) {
  rp_mistake_before_backward(worker, stage, microbatch);
  if (!stage->identity)
    compute_backward(worker, stage, microbatch, input, weight);
  else if (input)
    pass_on(worker, stage, microbatch, RP_GRADIENT);
  if (!weight) return;
  rp_mistake_after_backward(worker, stage, microbatch);
  finish(worker, &stage->microbatches[microbatch]);
}

void rp_stage_update(struct rp_worker *worker, struct rp_stage *stage) {
  uint32_t count = (uint32_t)rp_stage_parameter_count(worker->options);
  float rate = RP_LEARNING_RATE;
  void *arguments[] = {&stage->parameters, &stage->gradients, &rate, &count};
  launch(worker, RP_KERNEL_UPDATE, count, arguments, NULL);
}
