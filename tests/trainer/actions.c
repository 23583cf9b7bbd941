// The actions of a rank: transfers in groups, forwards, and backwards on a thread of their own if so wished.
#include "actions.h"

#include <stdlib.h>

#include "mistakes.h"
#include "schedule_tools.h"

static struct rp_stage *stage_of(struct rp_rank *rank, int32_t index) {
  for (int32_t i = 0; i < rank->stage_count; i++)
    if (rank->stages[i].index == index) return &rank->stages[i];
  rp_die("stage %d is not on this rank", index);
}

// ---- streams of a random run

/** Another compute stream for what comes next, after all that is on the one in use. */
static void change_compute_stream(struct rp_rank *rank) {
  struct rp_worker *w = &rank->worker;
  if (rank->stream_count < 2) return;
  cudaStream_t next = rank->streams[rp_random_below(&rank->random, rank->stream_count)];
  if (next == w->compute) return;
  if (rp_random_below(&rank->random, 4) == 0) {
    rp_device_synchronize(w->compute);
  } else {
    rp_device_record(rank->handover, w->compute);
    rp_device_wait(next, rank->handover);
  }
  w->compute = next;
}

static void change_comm_stream(struct rp_rank *rank) {
  if (rank->comm_streams < 2) return;
  rp_transfers_use_stream(rank->worker.transfers, (int)rp_random_below(&rank->random, rank->comm_streams));
}

// ---- transfers

static bool is_transfer(const struct rp_action *action) {
  return action->kind >= RP_ACTION_SEND_F && action->kind <= RP_ACTION_RECV_B;
}

/** The buffer that a receive lands in: the preallocated one, a new one, or one that was something else
 * before.
 */
static struct rp_buffer *receive_buffer(struct rp_rank *rank, struct rp_stage *stage, int32_t microbatch,
                                        int direction) {
  struct rp_worker *w = &rank->worker;
  switch (w->options->allocation) {
  case RP_ALLOCATION_JUST_IN_TIME:
    return rp_buffer_new_receive(rp_trainer_message_bytes(w->options), rp_trainer_buffer_bytes(w->options),
                                 RP_HOME_JUST_IN_TIME, NULL);
  case RP_ALLOCATION_CACHED:
    return rp_stage_new_message(w);
  default:
    rp_buffer_hold(stage->receive[direction][microbatch]);
    return stage->receive[direction][microbatch];
  }
}

static void prepare_transfer(struct rp_rank *rank, const struct rp_action *action,
                             struct rp_transfer *transfer) {
  struct rp_stage *stage = stage_of(rank, action->stage);
  struct rp_microbatch *m = &stage->microbatches[action->microbatch];
  bool send = action->kind == RP_ACTION_SEND_F || action->kind == RP_ACTION_SEND_B;
  bool forward = action->kind == RP_ACTION_SEND_F || action->kind == RP_ACTION_RECV_F;
  int direction = forward ? RP_ACTIVATION : RP_GRADIENT;
  int32_t other = action->stage + (forward == send ? 1 : -1);
  *transfer =
      (struct rp_transfer){.send = send,
                           .back = !forward,
                           .bytes = rp_mistake_message_bytes(&rank->worker, action->microbatch, direction),
                           .peer = rank->program->stage_rank[other]};
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
                                                .bytes = transfer->bytes};
}

static void remember_work(struct rp_rank *rank, const struct rp_action *action, struct rp_work *work) {
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

static bool any_receive(const struct rp_action *actions, size_t count) {
  for (size_t i = 0; i < count; i++)
    if (actions[i].kind == RP_ACTION_RECV_F || actions[i].kind == RP_ACTION_RECV_B) return true;
  return false;
}

/** Posts `count` neighbouring transfers as one group, with the waits of torch's hand-written schedules: GPipe
 * waits for its forward sends before the first backward; 1F1B for a lone send before the next one, and for
 * the rest at once. */
static void post_group(struct rp_rank *rank, const struct rp_phase *phase, const struct rp_action *actions,
                       size_t count) {
  struct rp_worker *w = &rank->worker;
  bool receives = any_receive(actions, count), hand_written = rp_phase_is_1f1b(phase);
  change_comm_stream(rank);
  if (hand_written && !receives) rp_work_wait(w->transfers, rank->last_send, false);
  for (size_t i = 0; i < count; i++)
    prepare_transfer(rank, &actions[i], &rank->posted[i]);
  struct rp_work *work = rp_transfers_post(w->transfers, rank->posted, count);
  for (size_t i = 0; i < count; i++) {
    remember_work(rank, &actions[i], work);
    if (!rank->posted[i].send) rp_mistake_posted(w, &rank->posted[i].receive);
  }
  if (hand_written && receives) rp_work_wait(w->transfers, work, w->options->break_wait);
  if (hand_written && !receives) rank->last_send = work;
}

// ---- backwards

static void run_backward(struct rp_rank *rank, const struct rp_action *action) {
  bool input = action->kind != RP_ACTION_BACKWARD_WEIGHT, weight = action->kind != RP_ACTION_BACKWARD_INPUT;
  rp_stage_backward(&rank->worker, stage_of(rank, action->stage), action->microbatch, input, weight);
}

static void *backward_main(void *argument) {
  struct rp_backward_thread *b = argument;
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

void rp_backward_start(struct rp_rank *rank) {
  struct rp_backward_thread *b = &rank->backward;
  b->rank = rank;
  pthread_mutex_init(&b->lock, NULL);
  pthread_cond_init(&b->changed, NULL);
  if (pthread_create(&b->thread, NULL, backward_main, b) != 0) rp_die("cannot start the backward thread");
}

/** Hands an action over and waits until it is done. */
static void backward_run(struct rp_backward_thread *b, const struct rp_action *action) {
  pthread_mutex_lock(&b->lock);
  b->action = action;
  pthread_cond_broadcast(&b->changed);
  while (b->action != NULL)
    pthread_cond_wait(&b->changed, &b->lock);
  pthread_mutex_unlock(&b->lock);
}

void rp_backward_stop(struct rp_rank *rank) {
  struct rp_backward_thread *b = &rank->backward;
  pthread_mutex_lock(&b->lock);
  b->stop = true;
  pthread_cond_broadcast(&b->changed);
  pthread_mutex_unlock(&b->lock);
  pthread_join(b->thread, NULL);
  pthread_mutex_destroy(&b->lock);
  pthread_cond_destroy(&b->changed);
}

// ---- the list

static void wait_for_send(struct rp_rank *rank, const struct rp_action *action) {
  int direction = action->kind == RP_ACTION_WAIT_SEND_F ? RP_ACTIVATION : RP_GRADIENT;
  rp_work_wait(rank->worker.transfers,
               stage_of(rank, action->stage)->microbatches[action->microbatch].sent[direction], false);
}

static void run_action(struct rp_rank *rank, const struct rp_action *action) {
  struct rp_worker *w = &rank->worker;
  change_compute_stream(rank);
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
  case RP_ACTION_WAIT_SEND_B:
    wait_for_send(rank, action);
    break;
  default:
    break; // weights are neither sharded nor reduced here
  }
}

/** GPipe waits for all its forward sends between the two halves of a step. */
static void wait_between_halves(struct rp_rank *rank, const struct rp_phase *phase,
                                const struct rp_action *action) {
  bool backward = action->kind == RP_ACTION_RECV_B || action->kind == RP_ACTION_BACKWARD;
  if (!backward || rank->forwards_done || !rp_phase_is_gpipe(phase)) return;
  rank->forwards_done = true;
  rp_transfers_wait_all(rank->worker.transfers);
}

/** Room for all transfers of a list in one group. */
static void reserve_transfers(struct rp_rank *rank, size_t count) {
  if (count <= rank->posted_capacity) return;
  free(rank->posted);
  rank->posted = calloc(count, sizeof *rank->posted);
  if (rank->posted == NULL) rp_die("no memory");
  rank->posted_capacity = count;
}

void rp_actions_run(struct rp_rank *rank, const struct rp_phase *phase, const struct rp_rank_schedule *list,
                    size_t count) {
  reserve_transfers(rank, list->count);
  for (size_t i = 0, end; i < count; i = end) {
    const struct rp_action *action = &list->actions[i];
    end = i + 1;
    wait_between_halves(rank, phase, action);
    if (!is_transfer(action)) {
      run_action(rank, action);
      continue;
    }
    while (action->group != 0 && end < list->count && list->actions[end].group == action->group)
      end++;
    post_group(rank, phase, action, end - i);
  }
}
