/* Steps of a pipeline stage for the guard's tests. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "guard_program.h"
#include "pool/slots.h"

static void add(struct guard_program *p, bool receive, uint32_t class, uint32_t microbatch,
                uint64_t function) {
  assert_true(p->count < PROGRAM_MOST);
  p->ops[p->count++] = (struct guard_op){receive, class, microbatch, function};
}

static void forward(struct guard_program *p, uint32_t microbatch) {
  add(p, true, 0, microbatch, 0);
  add(p, false, 0, microbatch, 11);
  add(p, false, 0, microbatch, 12);
}

static void backward(struct guard_program *p, uint32_t microbatch) {
  add(p, true, 1, microbatch, 0);
  add(p, false, 1, microbatch, 21);
  add(p, false, 0, microbatch, 22);
  add(p, false, 1, microbatch, 23);
}

struct guard_program guard_program_1f1b(uint32_t microbatches, uint32_t depth) {
  struct guard_program p = {.microbatches = microbatches};
  for (uint32_t n = 0; n < microbatches + depth - 1; n++) {
    if (n < microbatches) forward(&p, n);
    if (n + 1 >= depth) backward(&p, n + 1 - depth);
  }
  return p;
}

struct guard_program guard_program_evaluation(uint32_t microbatches) {
  struct guard_program p = {.microbatches = microbatches};
  for (uint32_t n = 0; n < microbatches; n++)
    forward(&p, n);
  return p;
}

size_t guard_program_buffer(uint32_t class, uint32_t microbatch) {
  return class * (MOST / 2) + microbatch;
}

void guard_program_alloc(struct guard_fixture *f, const struct guard_program *program) {
  guard_alloc(f, 0, program->microbatches);
  guard_alloc(f, MOST / 2, program->microbatches);
}

void guard_program_label(struct guard_fixture *f, const struct guard_program *program) {
  f->channel_count = 0;
  for (uint32_t class = 0; class < 2; class ++)
    for (uint32_t m = 0; m < program->microbatches; m++)
      guard_channel(f, guard_program_buffer(class, m), 11 + class, 1 + class, m);
}

void guard_program_run(struct guard_fixture *f, const struct guard_program *program) {
  for (size_t i = 0; i < program->count; i++) {
    const struct guard_op *op = &program->ops[i];
    size_t buffer = guard_program_buffer(op->class, op->microbatch);
    if (op->receive) {
      uint64_t comm = op->class && f->back ? f->back : 50;
      struct rp_guard_receive receive = {.peer = op->class ? DOWNSTREAM : UPSTREAM, .comm = comm};
      guard_order(f, COMPUTE, COMM);
      assert_int_equal(guard_try_receive(f, buffer, receive), RP_OK);
      rp_guard_sent(f->guard, comm, op->class ? UPSTREAM : DOWNSTREAM, f->sizes_untold ? 0 : BYTES);
    } else {
      guard_read(f, buffer, op->function);
    }
  }
}

/* Interval of the message received by op `at`, and how often it is read. */
static struct rp_interval life_of(const struct guard_program *program, size_t at, uint32_t *accesses) {
  struct rp_interval life = {at, at};
  *accesses = 0;
  for (size_t i = at + 1; i < program->count; i++) {
    const struct guard_op *op = &program->ops[i], *receive = &program->ops[at];
    if (op->receive || op->class != receive->class || op->microbatch != receive->microbatch) continue;
    life.end = i;
    ++*accesses;
  }
  return life;
}

static void plan_class(const struct guard_program *program, uint32_t class, uint32_t slack,
                       struct guard_plan *out) {
  struct rp_interval lives[PROGRAM_MOST];
  uint32_t slot[PROGRAM_MOST], accesses, n = 0;
  struct rp_slots slots;
  for (size_t i = 0; i < program->count; i++)
    if (program->ops[i].receive && program->ops[i].class == class)
      lives[n++] = life_of(program, i, &accesses);
  assert_int_equal(rp_slots_assign(lives, n, slack, slot, &slots), RP_OK);
  out->classes[class] = (struct rp_guard_planned_class){.label = 11 + class,
                                                        .receive_bytes = BYTES,
                                                        .slots = slots.count ? slots.count : 1,
                                                        .buffers = n,
                                                        .stage = 3,
                                                        .direction = 1 + class};
  n = 0;
  for (size_t i = 0; i < out->plan.receive_count; i++)
    if (out->receives[i].class_index == class) out->receives[i].slot = slot[n++];
}

void guard_program_plan(const struct guard_program *program, uint32_t slack, struct guard_plan *out) {
  *out = (struct guard_plan){.plan = {.classes = out->classes, .class_count = 2, .receives = out->receives}};
  for (size_t i = 0; i < program->count; i++) {
    const struct guard_op *op = &program->ops[i];
    if (!op->receive) continue;
    struct rp_guard_planned_receive *item = &out->receives[out->plan.receive_count++];
    struct rp_interval life = life_of(program, i, &item->accesses);
    item->class_index = op->class;
    item->microbatch = op->microbatch;
    item->source = op->class;
    item->begin = life.begin;
    item->end = life.end;
  }
  plan_class(program, 0, slack, out);
  plan_class(program, 1, slack, out);
}

void guard_program_steps(struct guard_fixture *f, const struct guard_program *program, int steps) {
  for (int step = 0; step < steps; step++)
    guard_program_run(f, program);
}

void guard_program_start(struct guard_fixture *f, const struct guard_program *planned, uint32_t slack,
                         const struct guard_program *program, struct guard_plan *plan) {
  static const struct rp_guard_options seeing = {.every_touch_seen = true};
  guard_program_plan(planned, slack, plan);
  *f = guard_start(&seeing, &plan->plan);
  guard_program_alloc(f, program);
}
