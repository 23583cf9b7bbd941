/* Stacks of open ranges, one per thread that is inside any. */
#include "pool/labels.h"

#include <stddef.h>

static const struct rp_label_stack *stack_of(const struct rp_labels *labels, uint32_t tid) {
  for (size_t i = 0; i < RP_LABEL_THREADS; i++)
    if (labels->stacks[i].depth && labels->stacks[i].tid == tid) return &labels->stacks[i];
  return NULL;
}

static struct rp_label_stack *free_stack(struct rp_labels *labels, uint32_t tid) {
  for (size_t i = 0; i < RP_LABEL_THREADS; i++) {
    if (labels->stacks[i].depth) continue;
    labels->stacks[i].tid = tid;
    return &labels->stacks[i];
  }
  return NULL;
}

void rp_labels_push(struct rp_labels *labels, uint32_t tid, uint64_t label) {
  struct rp_label_stack *stack = (struct rp_label_stack *)stack_of(labels, tid);
  if (!stack) stack = free_stack(labels, tid);
  if (!stack || stack->depth == UINT32_MAX) {
    labels->dropped++;
    return;
  }
  if (stack->depth < RP_LABEL_DEPTH)
    stack->label[stack->depth] = label;
  else
    labels->dropped++;
  stack->depth++;
}

void rp_labels_pop(struct rp_labels *labels, uint32_t tid) {
  struct rp_label_stack *stack = (struct rp_label_stack *)stack_of(labels, tid);
  if (stack) stack->depth--;
}

uint64_t rp_labels_current(const struct rp_labels *labels, uint32_t tid) {
  const struct rp_label_stack *stack = stack_of(labels, tid);
  if (!stack) return 0;
  return stack->label[(stack->depth < RP_LABEL_DEPTH ? stack->depth : RP_LABEL_DEPTH) - 1];
}
