// One rank: sets up device, communicator and stages, walks its list of actions once per step, reports.
#include "rank.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "mistakes.h"
#include "stage.h"

/** A host thread for backward actions, as autograd has one. The main thread waits for each action. */
struct backward_thread {
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  const struct rp_action *action; /**< lock: what to do, NULL when done */
  bool stop;                      /**< lock */
  struct rank *rank;
};

struct rank {
  struct rp_worker worker;
  const struct rp_schedule *schedule;
  struct rp_schedule late; /**< of the mistake early_reuse: what it turns into */
  int index;
  struct rp_stage *stages;
  int32_t stage_count;
  struct backward_thread backward;
  struct rp_work *last_send;  /**< of hand-written 1F1B: the latest group of sends only */
  bool forwards_done;         /**< of hand-written GPipe: the backward half of the step has begun */
  struct rp_transfer *posted; /**< scratch for one group */
};

static struct rp_stage *stage_of(struct rank *rank, int32_t index) {
  for (int32_t i = 0; i < rank->stage_count; i++)
    if (rank->stages[i].index == index) return &rank->stages[i];
  rp_die("stage %d is not on this rank", index);
}

// ---- the communicator's id

static void write_whole(int fd, const void *data, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    ssize_t n = write(fd, (const char *)data + done, bytes - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) rp_die("cannot write: %s", strerror(errno));
    done += (size_t)n;
  }
}

static bool read_whole(int fd, void *data, size_t bytes) {
  size_t done = 0;
  while (done < bytes) {
    ssize_t n = read(fd, (char *)data + done, bytes - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    done += (size_t)n;
  }
  return done == bytes;
}

/** Through a pipe of the launcher: rank 0 writes one copy for every other rank. */
static void exchange_id_by_pipe(int fd, int rank, int ranks, ncclUniqueId *id) {
  if (rank == 0)
    for (int i = 1; i < ranks; i++)
      write_whole(fd, id, sizeof *id);
  else if (!read_whole(fd, id, sizeof *id))
    rp_die("rank 0 ended before it gave the communicator's id");
  close(fd);
}

/** Through a file: rank 0 renames it into place, the others look for it. */
static void exchange_id_by_file(const char *path, int rank, ncclUniqueId *id) {
  if (rank == 0) {
    char temporary[4096];
    snprintf(temporary, sizeof temporary, "%s.%d", path, (int)getpid());
    int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0) rp_die("cannot write '%s': %s", temporary, strerror(errno));
    write_whole(fd, id, sizeof *id);
    if (close(fd) != 0 || rename(temporary, path) != 0)
      rp_die("cannot write '%s': %s", path, strerror(errno));
    return;
  }
  enum { TRIES = 6000 };
  for (int i = 0; i < TRIES; i++) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
      bool whole = read_whole(fd, id, sizeof *id);
      close(fd);
      if (whole) return;
      rp_die("'%s' does not hold a communicator's id", path);
    }
    struct timespec pause = {.tv_nsec = 10000000};
    nanosleep(&pause, NULL);
  }
  rp_die("no communicator's id at '%s' after a minute", path);
}

static void exchange_id(const struct rp_trainer_options *options, int rank, int ranks, ncclUniqueId *id) {
  const char *fd = getenv(RP_TRAINER_ID_FD);
  if (rank == 0) {
    ncclResult_t result = ncclGetUniqueId(id);
    if (result != ncclSuccess) rp_die("ncclGetUniqueId: %s", ncclGetErrorString(result));
  }
  if (ranks == 1) return;
  if (options->rendezvous != NULL)
    exchange_id_by_file(options->rendezvous, rank, id);
  else
    exchange_id_by_pipe(atoi(fd), rank, ranks, id);
}

// ---- transfers

static bool is_transfer(const struct rp_action *action) {
  return action->kind >= RP_ACTION_SEND_F && action->kind <= RP_ACTION_RECV_B;
}

/** The buffer that a receive lands in: the preallocated one, or a new one. */
static struct rp_buffer *receive_buffer(struct rank *rank, struct rp_stage *stage, int32_t microbatch,
                                        int direction) {
  struct rp_worker *w = &rank->worker;
  if (w->options->just_in_time)
    return rp_buffer_new_receive(rp_trainer_message_bytes(w->options), RP_HOME_JUST_IN_TIME);
  struct rp_buffer *buffer = stage->receive[direction][microbatch];
  rp_buffer_hold(buffer);
  return buffer;
}

static void prepare_transfer(struct rank *rank, const struct rp_action *action,
                             struct rp_transfer *transfer) {
  struct rp_stage *stage = stage_of(rank, action->stage);
  struct rp_microbatch *m = &stage->microbatches[action->microbatch];
  bool send = action->kind == RP_ACTION_SEND_F || action->kind == RP_ACTION_SEND_B;
  bool forward = action->kind == RP_ACTION_SEND_F || action->kind == RP_ACTION_RECV_F;
  int direction = forward ? RP_ACTIVATION : RP_GRADIENT;
  int32_t other = action->stage + (forward == send ? 1 : -1);
  *transfer = (struct rp_transfer){.send = send, .peer = rank->schedule->stage_rank[other]};
  if (send) {
    transfer->buffer = m->out[direction];
    m->out[direction] = NULL;
    if (transfer->buffer == NULL) rp_die("the schedule sends what is not computed yet");
    return;
  }
  transfer->buffer = m->in[direction] = receive_buffer(rank, stage, action->microbatch, direction);
  transfer->receive = (struct rp_truth_receive){.stage = stage->index,
                                                .stage_ordinal = stage->ordinal,
                                                .microbatch = action->microbatch,
                                                .direction = direction,
                                                .peer = transfer->peer,
                                                .address = (uintptr_t)transfer->buffer->memory,
                                                .bytes = transfer->buffer->bytes};
}

static void remember_work(struct rank *rank, const struct rp_action *action, struct rp_work *work) {
  struct rp_microbatch *m = &stage_of(rank, action->stage)->microbatches[action->microbatch];
  switch (action->kind) {
  case RP_ACTION_SEND_F:
    m->sent[RP_ACTIVATION] = work;
    break;
  case RP_ACTION_SEND_B:
    m->sent[RP_GRADIENT] = work;
    break;
  case RP_ACTION_RECV_F:
    m->received[RP_ACTIVATION] = work;
    break;
  case RP_ACTION_RECV_B:
    m->received[RP_GRADIENT] = work;
    break;
  default:
    break;
  }
}

/** Posts `count` neighbouring transfers as one group, with the waits of torch's hand-written schedules: GPipe
 * waits for its forward sends before the first backward; 1F1B for a lone send before the next one, and for
 * the rest at once. */
static void post_group(struct rank *rank, const struct rp_action *actions, size_t count) {
  struct rp_worker *w = &rank->worker;
  bool receives = false;
  for (size_t i = 0; i < count; i++)
    receives |= actions[i].kind == RP_ACTION_RECV_F || actions[i].kind == RP_ACTION_RECV_B;
  bool hand_written = rp_trainer_is_1f1b(w->options);
  if (hand_written && !receives) rp_work_wait(w->transfers, rank->last_send, false);
  for (size_t i = 0; i < count; i++)
    prepare_transfer(rank, &actions[i], &rank->posted[i]);
  struct rp_work *work = rp_transfers_post(w->transfers, rank->posted, count);
  for (size_t i = 0; i < count; i++)
    remember_work(rank, &actions[i], work);
  if (hand_written && receives) rp_work_wait(w->transfers, work, w->options->break_wait);
  if (hand_written && !receives) rank->last_send = work;
}

// ---- actions

static void run_backward(struct rank *rank, const struct rp_action *action) {
  bool input = action->kind != RP_ACTION_BACKWARD_WEIGHT, weight = action->kind != RP_ACTION_BACKWARD_INPUT;
  rp_stage_backward(&rank->worker, stage_of(rank, action->stage), action->microbatch, input, weight);
}

static void *backward_main(void *argument) {
  struct backward_thread *b = argument;
  rp_device_attach_thread();
  pthread_mutex_lock(&b->lock);
  while (!b->stop) {
    if (b->action != NULL) {
      run_backward(b->rank, b->action);
      b->action = NULL;
      pthread_cond_broadcast(&b->changed);
    }
    if (!b->stop) pthread_cond_wait(&b->changed, &b->lock);
  }
  pthread_mutex_unlock(&b->lock);
  return NULL;
}

static void backward_start(struct rank *rank) {
  struct backward_thread *b = &rank->backward;
  b->rank = rank;
  pthread_mutex_init(&b->lock, NULL);
  pthread_cond_init(&b->changed, NULL);
  if (pthread_create(&b->thread, NULL, backward_main, b) != 0) rp_die("cannot start the backward thread");
}

/** Hands an action over and waits until it is done. */
static void backward_run(struct backward_thread *b, const struct rp_action *action) {
  pthread_mutex_lock(&b->lock);
  b->action = action;
  pthread_cond_broadcast(&b->changed);
  while (b->action != NULL)
    pthread_cond_wait(&b->changed, &b->lock);
  pthread_mutex_unlock(&b->lock);
}

static void backward_stop(struct backward_thread *b) {
  pthread_mutex_lock(&b->lock);
  b->stop = true;
  pthread_cond_broadcast(&b->changed);
  pthread_mutex_unlock(&b->lock);
  pthread_join(b->thread, NULL);
  pthread_mutex_destroy(&b->lock);
  pthread_cond_destroy(&b->changed);
}

static void run_action(struct rank *rank, const struct rp_action *action) {
  struct rp_worker *w = &rank->worker;
  switch (action->kind) {
  case RP_ACTION_FORWARD:
    rp_stage_forward(w, stage_of(rank, action->stage), action->microbatch);
    break;
  case RP_ACTION_BACKWARD:
  case RP_ACTION_BACKWARD_INPUT:
  case RP_ACTION_BACKWARD_WEIGHT:
    if (w->options->backward_thread)
      backward_run(&rank->backward, action);
    else
      run_backward(rank, action);
    break;
  case RP_ACTION_WAIT_SEND_F:
  case RP_ACTION_WAIT_SEND_B: {
    int direction = action->kind == RP_ACTION_WAIT_SEND_F ? RP_ACTIVATION : RP_GRADIENT;
    rp_work_wait(w->transfers,
                 stage_of(rank, action->stage)->microbatches[action->microbatch].sent[direction], false);
    break;
  }
  default:
    break; // weights are neither sharded nor reduced here
  }
}

/** GPipe waits for all its forward sends between the two halves of a step. */
static void wait_between_halves(struct rank *rank, const struct rp_action *action) {
  bool backward = action->kind == RP_ACTION_RECV_B || action->kind == RP_ACTION_BACKWARD;
  if (!backward || rank->forwards_done || !rp_trainer_is_gpipe(rank->worker.options)) return;
  rank->forwards_done = true;
  rp_transfers_wait_all(rank->worker.transfers);
}

static void run_actions(struct rank *rank) {
  bool late = rp_mistake_now(&rank->worker, RP_MISTAKE_EARLY_REUSE);
  const struct rp_rank_schedule *list = &(late ? &rank->late : rank->schedule)->rank[rank->index];
  for (size_t i = 0, end; i < list->count; i = end) {
    const struct rp_action *action = &list->actions[i];
    end = i + 1;
    wait_between_halves(rank, action);
    if (!is_transfer(action)) {
      run_action(rank, action);
      continue;
    }
    while (action->group != 0 && end < list->count && list->actions[end].group == action->group)
      end++;
    post_group(rank, action, end - i);
  }
}

// ---- steps

static void forget_step(struct rank *rank) {
  size_t bytes = (size_t)rank->schedule->microbatches * sizeof(struct rp_microbatch);
  for (int32_t i = 0; i < rank->stage_count; i++)
    memset(rank->stages[i].microbatches, 0, bytes);
  rank->last_send = NULL;
  rank->forwards_done = false;
}

/** Reports a broken pattern; returns whether there was one. */
static bool pattern_broken(const struct rp_pattern_error *e, int rank) {
  if (e->broken_words == 0) return false;
  fprintf(
      stderr,
      "trainer: rank %d: broken pattern: %llu words of the %s of microbatch %u at stage %u in step %u, first "
      "at byte %llu: found %016llx instead of %016llx\n",
      rank, (unsigned long long)e->broken_words, e->mark.direction == 0 ? "activation" : "gradient",
      e->mark.microbatch, e->mark.stage, e->mark.step, (unsigned long long)e->first_offset_bytes,
      (unsigned long long)e->found, (unsigned long long)e->expected);
  return true;
}

/** Waits for the step, prints its loss where that is known, and returns whether every pattern was whole. */
static bool end_step(struct rank *rank, float *losses) {
  struct rp_worker *w = &rank->worker;
  struct rp_pattern_error error, side_error;
  bool has_loss = false;
  for (int32_t i = 0; i < rank->stage_count; i++)
    rp_mistake_end_actions(w, &rank->stages[i]);
  rp_transfers_wait_all(w->transfers);
  for (int32_t i = 0; i < rank->stage_count; i++) {
    rp_stage_update(w, &rank->stages[i]);
    has_loss |= rank->stages[i].last;
  }
  if (has_loss)
    rp_device_download(losses, w->losses, (size_t)w->options->microbatches * sizeof(float), w->compute);
  rp_device_download(&error, w->pattern_error, sizeof error, w->compute);
  RP_CUDA(cudaStreamSynchronize(w->compute));
  rp_mistake_result(w, &side_error);
  rp_transfers_end_step(w->transfers);
  rp_device_sample_memory();
  rp_truth_end_step(w->truth, w->step);
  if (has_loss) {
    float sum = 0.0f;
    for (int32_t i = 0; i < w->options->microbatches; i++)
      sum += losses[i];
    rp_loss_print(w->step, sum / (float)w->options->microbatches);
  }
  return !pattern_broken(&error, rank->index) && !pattern_broken(&side_error, rank->index);
}

static bool train(struct rank *rank) {
  struct rp_worker *w = &rank->worker;
  float *losses = calloc((size_t)w->options->microbatches, sizeof *losses);
  bool whole = true;
  if (losses == NULL) rp_die("no memory");
  for (w->step = 0; whole && w->step < w->options->steps; w->step++) {
    forget_step(rank);
    for (int32_t i = 0; w->step == 0 && !w->options->just_in_time && i < rank->stage_count; i++)
      rp_stage_preallocate(w, &rank->stages[i]);
    run_actions(rank);
    whole = end_step(rank, losses);
  }
  free(losses);
  return whole;
}

// ---- life of a rank

static void create_stages(struct rank *rank) {
  const struct rp_schedule *schedule = rank->schedule;
  for (int32_t s = 0; s < schedule->stages; s++)
    rank->stage_count += schedule->stage_rank[s] == rank->index;
  rank->stages = calloc((size_t)rank->stage_count + 1, sizeof *rank->stages);
  rank->posted = calloc(schedule->rank[rank->index].count + 1, sizeof *rank->posted);
  if (rank->stages == NULL || rank->posted == NULL) rp_die("no memory");
  for (int32_t s = 0, ordinal = 0; s < schedule->stages; s++) {
    if (schedule->stage_rank[s] != rank->index) continue;
    struct rp_stage *stage = &rank->stages[ordinal];
    rp_stage_init(&rank->worker, stage, s, ordinal++, schedule->stages);
    if (ordinal >= 2 && stage[-1].index == s - 1) {
      stage->previous = stage - 1;
      stage[-1].next = stage;
    }
  }
}

static void set_up(struct rank *rank, const struct rp_trainer_options *options, int local_rank) {
  struct rp_worker *w = &rank->worker;
  ncclUniqueId id;
  size_t loss_bytes = (size_t)options->microbatches * sizeof(float);
  struct rp_pattern_error clean = {0};
  w->options = options;
  rp_device_init(local_rank, options->driver_api);
  if (options->own_stream) RP_CUDA(cudaStreamCreateWithFlags(&w->compute, cudaStreamNonBlocking));
  w->truth = rp_truth_create(options, rank->index);
  w->buffers = rp_buffers_create();
  exchange_id(options, rank->index, rank->schedule->ranks, &id);
  w->transfers =
      rp_transfers_create(&id, rank->schedule->ranks, rank->index, w->compute, w->buffers, w->truth);
  if (options->probe) rp_transfers_probe(w->transfers, rank->schedule->ranks, rank->index);
  w->losses = rp_device_alloc(loss_bytes);
  w->pattern_error = rp_device_alloc(sizeof clean);
  rp_device_upload(w->pattern_error, &clean, sizeof clean, w->compute);
  RP_CUDA(cudaStreamSynchronize(w->compute));
  create_stages(rank);
  w->mistakes = rp_mistakes_create(w);
  if (options->mistake == RP_MISTAKE_EARLY_REUSE &&
      rp_schedule_generate("gpipe", rank->schedule->ranks, 1, rank->schedule->microbatches, &rank->late,
                           NULL) != RP_OK)
    rp_die("cannot make the schedule of the mistake");
  if (options->backward_thread) backward_start(rank);
}

static void tear_down(struct rank *rank) {
  struct rp_worker *w = &rank->worker;
  ncclComm_t communicator = rp_transfers_communicator(w->transfers);
  if (w->options->backward_thread) backward_stop(&rank->backward);
  for (int32_t i = 0; i < rank->stage_count; i++)
    rp_stage_fini(w, &rank->stages[i]);
  rp_mistakes_destroy(w->mistakes);
  if (w->options->mistake == RP_MISTAKE_EARLY_REUSE) rp_schedule_fini(&rank->late);
  rp_device_free(w->losses);
  rp_device_free(w->pattern_error);
  rp_transfers_destroy(w->transfers);
  rp_truth_destroy(w->truth, communicator);
  rp_buffers_destroy(w->buffers);
  if (w->options->own_stream) RP_CUDA(cudaStreamDestroy(w->compute));
  free(rank->stages);
  free(rank->posted);
}

/** Checksums of the final parameters, to the launcher if there is one, else to standard output. */
static void report(struct rank *rank) {
  struct rp_worker *w = &rank->worker;
  size_t bytes = rp_stage_parameter_count(w->options) * sizeof(float);
  void *host = malloc(bytes);
  struct rp_stage_result *stages = calloc((size_t)rank->stage_count + 1, sizeof *stages);
  if (host == NULL || stages == NULL) rp_die("no memory");
  for (int32_t i = 0; i < rank->stage_count; i++) {
    rp_device_download(host, rank->stages[i].parameters, bytes, w->compute);
    RP_CUDA(cudaStreamSynchronize(w->compute));
    stages[i] = (struct rp_stage_result){rank->stages[i].index, rp_checksum(host, bytes)};
  }
  struct rp_rank_result result = {rp_device_peak_bytes(), (uint64_t)rank->stage_count};
  const char *fd = getenv(RP_TRAINER_RESULT_FD);
  if (fd != NULL) {
    write_whole(atoi(fd), &result, sizeof result);
    write_whole(atoi(fd), stages, (size_t)rank->stage_count * sizeof *stages);
  } else {
    rp_rank_print(rank->index, &result, stages);
  }
  free(stages);
  free(host);
}

int rp_rank_run(const struct rp_trainer_options *options, const struct rp_schedule *schedule, int rank_index,
                int local_rank) {
  struct rank rank = {.schedule = schedule, .index = rank_index};
  set_up(&rank, options, local_rank);
  bool whole = train(&rank);
  if (!whole) exit(RP_TRAINER_BROKEN_PATTERN); // the others cannot go on: no orderly end to wait for
  report(&rank);
  tear_down(&rank);
  return 0;
}
