// Seeded mistakes. Owns the side stream that reads on the wrong stream are on, and the record of what they
// find.
#include "mistakes.h"

#include <stdlib.h>

#include "hidden_library.h"

/** Long enough for a receive to come in between, on a busy machine too. */
#define DELAY_MICROSECONDS 3000u

struct rp_mistakes {
  cudaStream_t side;
  cudaEvent_t ready;              /**< orders the side stream after the compute stream, never the other way */
  struct rp_pattern_error *error; /**< device, for the side stream */
  void *registration;             /**< of the registered buffer */
};

struct rp_mistakes *rp_mistakes_create(const struct rp_worker *worker) {
  struct rp_pattern_error clean = {0};
  if (worker->options->mistake == RP_MISTAKE_NONE) return NULL;
  struct rp_mistakes *mistakes = calloc(1, sizeof *mistakes);
  if (mistakes == NULL) rp_die("no memory");
  RP_CUDA(cudaStreamCreateWithFlags(&mistakes->side, cudaStreamNonBlocking));
  mistakes->ready = rp_device_event();
  mistakes->error = rp_device_alloc(sizeof clean);
  rp_device_upload(mistakes->error, &clean, sizeof clean, mistakes->side);
  rp_device_synchronize(mistakes->side);
  if (worker->options->mistake == RP_MISTAKE_UNSEEN_WRITE && rp_hidden_library_open() != 0)
    rp_die("--mistake unseen-write: the library finds no driver");
  return mistakes;
}

void rp_mistakes_destroy(struct rp_worker *worker, struct rp_mistakes *mistakes) {
  if (mistakes == NULL) return;
  if (mistakes->registration != NULL)
    (void)ncclCommDeregister(rp_transfers_communicator(worker->transfers), mistakes->registration);
  rp_device_free(mistakes->error);
  RP_CUDA(cudaEventDestroy(mistakes->ready));
  RP_CUDA(cudaStreamDestroy(mistakes->side));
  free(mistakes);
}

bool rp_mistake_now(const struct rp_worker *worker, enum rp_mistake kind) {
  return worker->options->mistake == kind && worker->step >= worker->options->mistake_step;
}

bool rp_mistake_first(const struct rp_worker *worker, enum rp_mistake kind) {
  return worker->options->mistake == kind && worker->step == worker->options->mistake_step;
}

/** A line about one receive buffer of a stage. */
static void note(struct rp_worker *worker, const struct rp_stage *stage, int direction, int32_t microbatch,
                 struct rp_truth_mistake line) {
  const struct rp_buffer *buffer = stage->receive[direction][microbatch];
  line.kind = worker->options->mistake;
  line.pass = worker->pass;
  line.stage = stage->index;
  line.direction = direction;
  line.microbatch = microbatch;
  line.address = (uintptr_t)buffer->memory;
  line.bytes = buffer->bytes;
  rp_truth_mistake(worker->truth, &line);
}

// ---- one buffer, once

/** The buffer that happens to be registered, exported or freed twice. NULL: this rank receives nothing. */
static struct rp_buffer **victim(const struct rp_worker *worker, struct rp_stage *stages, int32_t count,
                                 struct rp_stage **stage, int *direction, int32_t *microbatch) {
  *microbatch = worker->microbatches > 1;
  for (int32_t i = 0; i < count; i++)
    for (*direction = 0; *direction < RP_DIRECTIONS; ++*direction) {
      *stage = &stages[i];
      struct rp_buffer **list = stages[i].receive[*direction];
      if (list != NULL && list[*microbatch]->lifetime >= 0) return &list[*microbatch];
    }
  return NULL;
}

void rp_mistake_begin_step(struct rp_worker *worker, struct rp_stage *stages, int32_t count) {
  bool registers = rp_mistake_first(worker, RP_MISTAKE_REGISTER);
  struct rp_stage *stage;
  int direction;
  int32_t microbatch;
  if (!registers && !rp_mistake_first(worker, RP_MISTAKE_EXPORT)) return;
  struct rp_buffer **buffer = victim(worker, stages, count, &stage, &direction, &microbatch);
  if (buffer == NULL) return;
  struct rp_truth_mistake line = {.call = registers ? "ncclCommRegister" : "cudaIpcGetMemHandle"};
  if (registers)
    line.result = (int)ncclCommRegister(rp_transfers_communicator(worker->transfers), (*buffer)->memory,
                                        (*buffer)->capacity, &worker->mistakes->registration);
  else
    line.result = rp_device_export((*buffer)->memory);
  note(worker, stage, direction, microbatch, line);
}

void rp_mistake_end_step(struct rp_worker *worker, struct rp_stage *stages, int32_t count) {
  struct rp_stage *stage;
  int direction;
  int32_t microbatch;
  if (!rp_mistake_first(worker, RP_MISTAKE_DOUBLE_FREE)) return;
  struct rp_buffer **buffer = victim(worker, stages, count, &stage, &direction, &microbatch);
  if (buffer == NULL || (*buffer)->home == RP_HOME_SHARED) return;
  struct rp_truth_mistake line = {.call = "cudaFree"};
  rp_device_free((*buffer)->memory);
  line.result = rp_device_try_free((*buffer)->memory);
  note(worker, stage, direction, microbatch, line);
  (*buffer)->memory = rp_device_alloc((*buffer)->capacity);
}

// ---- order

void rp_mistake_message_complete(struct rp_worker *worker, struct rp_buffer *message) {
  if (worker->options->mistake != RP_MISTAKE_MISSING_WAIT) return;
  if (message->ready == NULL) message->ready = rp_device_event();
  rp_device_record(message->ready, worker->compute);
}

void rp_mistake_before_weights(struct rp_worker *worker) {
  if (rp_mistake_now(worker, RP_MISTAKE_MISSING_WAIT)) rp_device_delay(DELAY_MICROSECONDS, worker->compute);
}

void rp_mistake_after_backward(struct rp_worker *worker, struct rp_stage *stage, int32_t microbatch) {
  const struct rp_buffer *buffer = stage->microbatches[microbatch].in[RP_ACTIVATION];
  if (worker->options->mistake != RP_MISTAKE_WRONG_STREAM || buffer->lifetime < 0) return;
  struct rp_mistakes *mistakes = worker->mistakes;
  bool now = rp_mistake_now(worker, RP_MISTAKE_WRONG_STREAM);
  rp_device_record(mistakes->ready, worker->compute);
  rp_device_wait(mistakes->side, mistakes->ready);
  if (now) rp_device_delay(DELAY_MICROSECONDS, mistakes->side);
  rp_stage_check(worker, stage, buffer, microbatch, RP_ACTIVATION, mistakes->side, mistakes->error);
  if (!now) { // until then as it should be
    rp_device_record(mistakes->ready, mistakes->side);
    rp_device_wait(worker->compute, mistakes->ready);
    return;
  }
  note(worker, stage, RP_ACTIVATION, microbatch,
       (struct rp_truth_mistake){
           .earlier = true, .stream = mistakes->side, .call = rp_kernel_name(RP_KERNEL_CHECK_PATTERN)});
}

void rp_mistake_posted(struct rp_worker *worker, const struct rp_truth_receive *receive) {
  struct rp_truth_mistake line = {.kind = worker->options->mistake,
                                  .pass = worker->pass,
                                  .stage = receive->stage,
                                  .direction = receive->direction,
                                  .microbatch = receive->microbatch,
                                  .address = receive->address,
                                  .bytes = receive->bytes,
                                  .stream = rp_transfers_stream(worker->transfers),
                                  .call = "ncclRecv"};
  bool activation = receive->direction == RP_ACTIVATION;
  bool longer = receive->bytes > rp_trainer_message_bytes(worker->options);
  if (rp_mistake_now(worker, RP_MISTAKE_MISSING_WAIT) ||
      (rp_mistake_now(worker, RP_MISTAKE_EARLY_POST) && activation) ||
      (rp_mistake_now(worker, RP_MISTAKE_OVERSIZE) && longer))
    rp_truth_mistake(worker->truth, &line);
}

// ---- what is touched

void rp_mistake_before_backward(struct rp_worker *worker, struct rp_stage *stage, int32_t microbatch) {
  struct rp_buffer **buffers = stage->receive[RP_ACTIVATION];
  bool seen = rp_mistake_now(worker, RP_MISTAKE_FOREIGN_WRITE);
  if (!seen && !rp_mistake_now(worker, RP_MISTAKE_UNSEEN_WRITE)) return;
  if (microbatch != worker->microbatches - 1 || buffers == NULL) return;
  for (int32_t i = 0; i < worker->microbatches; i++) {
    struct rp_buffer *buffer = buffers[i];
    if (buffer->users != 0 || buffer->lifetime < 0) continue;
    int result = 0;
    if (seen)
      rp_device_set(buffer->memory, 0xee, buffer->bytes, worker->compute);
    else
      result = rp_hidden_library_set(buffer->memory, 0xee, buffer->bytes, worker->compute);
    note(worker, stage, RP_ACTIVATION, i,
         (struct rp_truth_mistake){.stream = worker->compute, .call = "memset", .result = result});
  }
}

size_t rp_mistake_message_bytes(const struct rp_worker *worker, int32_t microbatch, int direction) {
  bool longer = rp_mistake_now(worker, RP_MISTAKE_OVERSIZE) && direction == RP_ACTIVATION &&
                microbatch == (worker->microbatches > 1);
  return longer ? rp_trainer_buffer_bytes(worker->options) : rp_trainer_message_bytes(worker->options);
}

static void late_read(struct rp_worker *worker, struct rp_stage *stage) {
  struct rp_buffer **buffers = stage->receive[RP_ACTIVATION];
  if (buffers == NULL || buffers[0]->lifetime < 0) return;
  rp_stage_check(worker, stage, buffers[0], 0, RP_ACTIVATION, worker->compute, worker->pattern_error);
  note(worker, stage, RP_ACTIVATION, 0,
       (struct rp_truth_mistake){.stream = worker->compute, .call = rp_kernel_name(RP_KERNEL_CHECK_PATTERN)});
}

/** Sends the activations back where they came from; who gets them checks them. */
static void late_send(struct rp_worker *worker, struct rp_stage *stages, int32_t count,
                      const int32_t *stage_rank) {
  struct rp_transfer *list = calloc(2 * (size_t)count + 1, sizeof *list);
  size_t n = 0, sends;
  if (list == NULL) rp_die("no memory");
  for (int32_t i = 0; i < count; i++) {
    struct rp_stage *stage = &stages[i];
    if (stage->first || stage->previous != NULL) continue;
    rp_buffer_hold(stage->receive[RP_ACTIVATION][0]);
    list[n++] = (struct rp_transfer){.send = true,
                                     .buffer = stage->receive[RP_ACTIVATION][0],
                                     .bytes = rp_trainer_message_bytes(worker->options),
                                     .peer = stage_rank[stage->index - 1]};
    note(worker, stage, RP_ACTIVATION, 0,
         (struct rp_truth_mistake){.stream = rp_transfers_stream(worker->transfers), .call = "ncclSend"});
  }
  sends = n;
  for (int32_t i = 0; i < count; i++)
    if (!stages[i].last && stages[i].next == NULL)
      list[n++] = (struct rp_transfer){.buffer = rp_stage_new_message(worker),
                                       .bytes = rp_trainer_message_bytes(worker->options),
                                       .peer = stage_rank[stages[i].index + 1],
                                       .unrecorded = true};
  if (n > 0) rp_work_wait(worker->transfers, rp_transfers_post(worker->transfers, list, n), false);
  for (int32_t i = 0; i < count; i++) {
    if (stages[i].last || stages[i].next != NULL) continue;
    struct rp_stage owner = {.index = stages[i].index + 1};
    struct rp_buffer *buffer = list[sends++].buffer;
    rp_stage_check(worker, &owner, buffer, 0, RP_ACTIVATION, worker->compute, worker->pattern_error);
    rp_buffer_release(worker->buffers, buffer, worker->compute);
  }
  free(list);
}

void rp_mistake_end_actions(struct rp_worker *worker, struct rp_stage *stages, int32_t count,
                            const int32_t *stage_rank) {
  for (int32_t i = 0; i < count && rp_mistake_now(worker, RP_MISTAKE_LATE_READ); i++)
    late_read(worker, &stages[i]);
  if (rp_mistake_now(worker, RP_MISTAKE_LATE_SEND)) late_send(worker, stages, count, stage_rank);
}

void rp_mistake_result(struct rp_worker *worker, struct rp_pattern_error *error) {
  struct rp_mistakes *mistakes = worker->mistakes;
  *error = (struct rp_pattern_error){0};
  if (mistakes == NULL) return;
  rp_device_download(error, mistakes->error, sizeof *error, mistakes->side);
  rp_device_synchronize(mistakes->side);
}
