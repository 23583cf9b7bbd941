/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Memory and NCCL: what their calls tell at entry and at return. For recvpool.bpf.c alone. */
#ifndef RP_BPF_CALLS_BPF_H
#define RP_BPF_CALLS_BPF_H

#include "bpf/state.bpf.h"

/* ---- memory ---- */

static __always_inline void memory_event(const struct call *call, uint32_t kind, uint64_t address,
                                         uint64_t bytes, uint64_t stream) {
  struct rp_probe_record *record = begin(call, RP_PROBE_WHAT_EVENT, kind);
  if (!record) return;
  record->event.address = address;
  record->event.bytes = bytes;
  record->event.stream = stream;
  record->event.aux = call->shape->api;
  submit(record);
}

static __noinline int enter_memory(struct call *call) {
  struct frame *frame = &call->thread->memory;
  const volatile struct rp_probe_shape *shape = call->shape;
  if (!enter_frame(call, frame)) return 0;
  frame->argument[0] = argument(call->regs, shape->out);
  frame->argument[1] = argument(call->regs, shape->address);
  frame->argument[2] = argument(call->regs, shape->bytes);
  frame->argument[3] = argument(call->regs, shape->pitch);
  frame->argument[4] = argument(call->regs, shape->height);
  if (shape->stream)
    frame->argument[5] = stream_of(call, argument(call->regs, shape->stream));
  else if (shape->class_ == RP_PROBE_CREATE || shape->class_ == RP_PROBE_RESERVE)
    frame->argument[5] = user_word(PT_REGS_SP(call->regs)); /* who calls */
  else
    frame->argument[5] = 0;
  if ((shape->class_ == RP_PROBE_FREE || shape->class_ == RP_PROBE_UNMAP) && frame->argument[1])
    memory_event(call, RP_EVENT_FREE, frame->argument[1], frame->argument[2], frame->argument[5]);
  return 0;
}

static __always_inline void handle_event(const struct call *call, uint32_t what, uint64_t handle,
                                         uint64_t bytes, uint64_t caller) {
  struct rp_probe_record *record = begin(call, what, RP_EVENT_NONE);
  if (!record) return;
  record->event.aux = handle;
  record->event.bytes = bytes;
  record->event.function = caller;
  submit(record);
}

/* An allocation that succeeded; of a pitched one only now is the size known. */
static __always_inline void allocated(const struct call *call, const struct frame *frame) {
  uint64_t address = call->shape->class_ == RP_PROBE_MAP ? frame->argument[1] : user_word(frame->argument[0]);
  uint64_t bytes = frame->argument[2];
  if (call->shape->pitch)
    bytes = (frame->argument[3] ? user_word(frame->argument[3]) : bytes) * frame->argument[4];
  if (!address || !bytes) return;
  widen(&call->process->alloc_low, &call->process->alloc_high, address, address + bytes);
  memory_event(call, RP_EVENT_ALLOC, address, bytes, 0);
}

static __noinline int leave_memory(struct call *call, int32_t status) {
  const struct frame *frame = &call->thread->memory;
  if (status) return 0;
  switch (call->shape->class_) {
  case RP_PROBE_ALLOC:
  case RP_PROBE_MAP:
    allocated(call, frame);
    break;
  case RP_PROBE_CREATE:
    handle_event(call, RP_PROBE_WHAT_CREATE, user_word(frame->argument[0]), frame->argument[2],
                 frame->argument[5]);
    break;
  case RP_PROBE_RELEASE:
    handle_event(call, RP_PROBE_WHAT_RELEASE, frame->argument[1], 0, 0);
    break;
  case RP_PROBE_RESERVE:
    handle_event(call, RP_PROBE_WHAT_RESERVE, user_word(frame->argument[0]), frame->argument[2],
                 frame->argument[5]);
    break;
  case RP_PROBE_UNRESERVE:
    handle_event(call, RP_PROBE_WHAT_UNRESERVE, frame->argument[1], 0, 0);
    break;
  }
  return 0;
}

/* ---- NCCL ---- */

static __always_inline uint64_t element_bytes(uint32_t type) {
  /* ncclDataType_t 0 to 11, four bits each */
  return type < 12 ? 0x112842884411ull >> (4 * type) & 15 : 0;
}

/* A transfer as the call has it. */
static __always_inline void read_transfer(const struct call *call, uint64_t *argument) {
  uint64_t type = PT_REGS_PARM3(call->regs);
  argument[0] = PT_REGS_PARM1(call->regs);
  argument[1] = PT_REGS_PARM2(call->regs) * element_bytes((uint32_t)type);
  argument[2] = PT_REGS_PARM4(call->regs);
  argument[3] = PT_REGS_PARM5(call->regs);
  argument[4] = stream_of(call, call->regs->r9);
}

static __always_inline struct rp_probe_record *transfer(const struct call *call, uint32_t what, uint32_t kind,
                                                        const uint64_t *argument) {
  uint64_t address = argument[0], bytes = argument[1];
  if (what == RP_PROBE_WHAT_EVENT && kind == RP_EVENT_RECV && bytes >= min_bytes && address + bytes > address)
    widen(&call->process->recv_low, &call->process->recv_high, address, address + bytes);
  struct rp_probe_record *record = begin(call, what, kind);
  if (!record) return NULL_POINTER;
  record->event.address = address;
  record->event.bytes = bytes;
  record->event.peer = (int32_t)argument[2];
  record->event.comm = argument[3];
  record->event.stream = argument[4];
  return record;
}

/* Where the return is not seen, it is taken to happen. */
static __always_inline void enter_transfer(const struct call *call, struct frame *frame, uint32_t kind) {
  read_transfer(call, frame->argument);
  frame->time_ns = bpf_ktime_get_ns();
  frame->operations = call->process->operations;
  if (call->returns) {
    add(&call->process->in_flight, 1);
    return;
  }
  struct rp_probe_record *record = transfer(call, RP_PROBE_WHAT_EVENT, kind, frame->argument);
  if (record) submit(record);
}

/* Told as of when it was posted. Within a group its end decides. */
static __always_inline void leave_transfer(const struct call *call, uint32_t kind, bool failed) {
  const struct frame *frame = &call->thread->nccl;
  if (call->process->in_flight) add(&call->process->in_flight, ~0ull);
  struct rp_probe_record *record =
      transfer(call, failed ? RP_PROBE_WHAT_FAILED : RP_PROBE_WHAT_EVENT, kind, frame->argument);
  if (!record) return;
  record->event.time_ns = frame->time_ns;
  record->event.operations = frame->operations;
  record->status = call->thread->group_depth > 0;
  submit(record);
}

static __always_inline void plain_event(const struct call *call, uint32_t kind, uint64_t comm, uint64_t aux) {
  struct rp_probe_record *record = begin(call, RP_PROBE_WHAT_EVENT, kind);
  if (!record) return;
  record->event.comm = comm;
  record->event.aux = aux;
  submit(record);
}

/* Whether what is in the group happens is known when the call of its end returns: argument 0 says that this
 * is the outermost one, 1 that nothing is launched in any case. */
static __always_inline void group(const struct call *call, struct frame *frame) {
  uint32_t *depth = &call->thread->group_depth;
  if (call->shape->class_ == RP_PROBE_GROUP_START) {
    if ((*depth)++ == 0) plain_event(call, RP_EVENT_GROUP_START, 0, 0);
    return;
  }
  frame->argument[0] = *depth > 0 && --*depth == 0;
  frame->argument[1] = argument(call->regs, call->shape->address) != 0;
  frame->time_ns = bpf_ktime_get_ns();
  if (frame->argument[0] && !call->returns) plain_event(call, RP_EVENT_GROUP_END, 0, 0);
}

static __always_inline void leave_group(const struct call *call, bool failed) {
  const struct frame *frame = &call->thread->nccl;
  if (!frame->argument[0]) return;
  struct rp_probe_record *record = begin(call, RP_PROBE_WHAT_EVENT, RP_EVENT_GROUP_END);
  if (!record) return;
  record->event.time_ns = frame->time_ns;
  record->status = failed || frame->argument[1];
  submit(record);
}

/* What a new communicator is made from is gone by the time it exists. */
static __always_inline void remember_comm(const struct call *call, struct frame *frame) {
  const volatile struct rp_probe_shape *shape = call->shape;
  frame->argument[0] = argument(call->regs, shape->out);
  frame->argument[1] = argument(call->regs, shape->ranks);
  frame->argument[2] = shape->rank ? argument(call->regs, shape->rank) : ~0ull;
  frame->argument[3] = argument(call->regs, shape->source);
  frame->argument[4] = argument(call->regs, shape->function);
  if (shape->id_on_stack)
    frame->argument[5] = hash_id(PT_REGS_SP(call->regs) + 8);
  else if (shape->id)
    frame->argument[5] = hash_id(argument(call->regs, shape->id));
  else
    frame->argument[5] = 0;
}

static __noinline int enter_nccl(struct call *call) {
  struct frame *frame = &call->thread->nccl;
  if (!enter_frame(call, frame)) return 0;
  switch (call->shape->class_) {
  case RP_PROBE_RECV:
    enter_transfer(call, frame, RP_EVENT_RECV);
    break;
  case RP_PROBE_SEND:
    enter_transfer(call, frame, RP_EVENT_SEND);
    break;
  case RP_PROBE_GROUP_START:
  case RP_PROBE_GROUP_END:
    group(call, frame);
    break;
  case RP_PROBE_COMM_INIT:
  case RP_PROBE_COMM_INIT_ALL:
  case RP_PROBE_COMM_SPLIT:
    remember_comm(call, frame);
    break;
  case RP_PROBE_COMM_DESTROY:
  case RP_PROBE_COMM_ABORT:
    if (PT_REGS_PARM1(call->regs))
      plain_event(call, RP_EVENT_COMM_DESTROY, PT_REGS_PARM1(call->regs),
                  call->shape->class_ == RP_PROBE_COMM_ABORT);
    break;
  }
  return 0;
}

static __always_inline void comm_exists(const struct call *call, uint32_t what, uint64_t comm, uint64_t rank,
                                        uint64_t ranks, uint64_t hash, uint64_t parent) {
  struct rp_probe_record *record = comm ? begin(call, what, RP_EVENT_COMM_INIT) : NULL_POINTER;
  if (!record) return;
  record->event.comm = comm;
  record->event.peer = (int32_t)rank;
  record->event.bytes = ranks;
  record->event.aux = hash;
  record->event.function = parent;
  submit(record);
}

static __noinline int leave_init_all(struct call *call) {
  const struct frame *frame = &call->thread->nccl;
  uint64_t count = frame->argument[1];
  /* nothing names such a communicator, so its first handle does */
  uint64_t hash = 0xcbf29ce484222325ull, first = user_word(frame->argument[0]);
  for (int i = 0; i < 8; i++)
    hash = (hash ^ (first >> (8 * i) & 255)) * 0x100000001b3ull;
  for (uint32_t i = 0; i < RP_PROBE_COMMS; i++) {
    if (i >= count) break;
    comm_exists(call, RP_PROBE_WHAT_EVENT, user_word(frame->argument[0] + 8 * i), i, count, hash, 0);
  }
  return 0;
}

#define NCCL_IN_PROGRESS 7 /* a communicator that does not block goes on by itself */

static __noinline int leave_nccl(struct call *call, int32_t status) {
  const struct frame *frame = &call->thread->nccl;
  bool failed = status && status != NCCL_IN_PROGRESS;
  switch (call->shape->class_) {
  case RP_PROBE_RECV:
    leave_transfer(call, RP_EVENT_RECV, failed);
    return 0;
  case RP_PROBE_SEND:
    leave_transfer(call, RP_EVENT_SEND, failed);
    return 0;
  case RP_PROBE_GROUP_END:
    leave_group(call, failed);
    return 0;
  }
  if (failed) return 0;
  switch (call->shape->class_) {
  case RP_PROBE_COMM_INIT:
    comm_exists(call, RP_PROBE_WHAT_EVENT, user_word(frame->argument[0]), (uint32_t)frame->argument[2],
                (uint32_t)frame->argument[1], frame->argument[5], 0);
    break;
  case RP_PROBE_COMM_INIT_ALL:
    leave_init_all(call);
    break;
  case RP_PROBE_COMM_SPLIT: /* the loader knows the parent's hash */
    comm_exists(call, RP_PROBE_WHAT_SPLIT, user_word(frame->argument[0]), ~0ull, 0,
                (uint32_t)frame->argument[4], frame->argument[3]);
    break;
  }
  return 0;
}

#endif
