/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Launches, copies and memsets: which receive buffers they name. For recvpool.bpf.c alone. */
#ifndef RP_BPF_LAUNCHES_BPF_H
#define RP_BPF_LAUNCHES_BPF_H

#include "bpf/state.bpf.h"

static __always_inline void look_at(struct thread *thread, const struct rp_probe_process *process,
                                    uint64_t value, uint32_t place) {
  bool hit = value >= process->recv_low && value < process->recv_high;
  if (!hit && (value < process->alloc_low || value >= process->alloc_high)) return;
  uint32_t count = thread->launch.count;
  thread->hits += hit;
  if (count >= RP_PROBE_WORDS) {
    thread->launch.lost++;
    return;
  }
  thread->launch.word[count] = value;
  thread->launch.place[count] = (uint16_t)place;
  thread->launch.count = count + 1;
}

/* Nothing tells how large a parameter is. The code that the compiler makes for a launch keeps the parameters,
 * structs too, on the stack: there one reaches at most to where the next one, or the array, begins. Elsewhere
 * it is taken for a word, unless it is the only one. */
#define STACK_REACH (64u << 10)

static __always_inline bool is_on_stack(const struct thread *thread, uint64_t at) {
  return at - thread->launch_sp < STACK_REACH;
}

static __always_inline uint64_t room_until(uint64_t at, uint64_t other, uint64_t room) {
  return other > at && other - at < room ? other - at : room;
}

__noinline int rp_look_at_parameter(struct thread *thread, struct rp_probe_process *process, uint32_t index) {
  if (!thread || !process || index >= RP_PROBE_PARAMETERS) return 0;
  uint64_t at = thread->pointer[index], room = sizeof thread->buffer;
  if (index + 1 < RP_PROBE_PARAMETERS) room = room_until(at, thread->pointer[index + 1], room);
  if (index > 0 && index <= RP_PROBE_PARAMETERS) room = room_until(at, thread->pointer[index - 1], room);
  room = room_until(at, thread->launch_array, room);
  if (!is_on_stack(thread, at) && (index > 0 || thread->pointer[1] >= USER_LOW)) room = 8;
  if (bpf_probe_read_user(thread->buffer, sizeof thread->buffer, (const void *)at)) {
    room = 8;
    if (bpf_probe_read_user(thread->buffer, 8, (const void *)at)) return 0;
  }
  for (uint32_t i = 0; i < RP_PROBE_PARAMETER_WORDS; i++) {
    if (i && 8 * i + 8 > room) break;
    look_at(thread, process, thread->buffer[i], index * RP_PROBE_PARAMETER_WORDS + i);
  }
  return 1;
}

/* Nothing tells how many parameters a kernel has: they are followed up to the first that cannot be a pointer,
 * and no further than to where a parameter lies behind the array. */
static __always_inline uint32_t look_at_parameters(struct thread *thread, struct rp_probe_process *process,
                                                   uint64_t params) {
  thread->hits = 0;
  __builtin_memset(thread->pointer, 0, sizeof thread->pointer);
  if (bpf_probe_read_user(thread->pointer, sizeof thread->pointer, (const void *)params) &&
      bpf_probe_read_user(thread->pointer, sizeof thread->pointer / 4, (const void *)params))
    return 0;
  uint64_t end = params + sizeof thread->pointer;
  for (uint32_t i = 0; i < RP_PROBE_PARAMETERS; i++) {
    uint64_t at = thread->pointer[i];
    if (at < USER_LOW || at >= USER_HIGH || params + 8 * i >= end) break;
    if (at > params && at < end) end = at;
    if (!rp_look_at_parameter(thread, process, i)) break;
  }
  return thread->hits;
}

/* The runtime hands its parameters on to the driver: the same launch once more. */
static __always_inline bool seen_above(const struct call *call, uint64_t params) {
  struct thread *thread = call->thread;
  if (call->shape->layer == RP_PROBE_RUNTIME) {
    thread->launch_params = params;
    return false;
  }
  bool seen = params && thread->launch_params == params;
  thread->launch_params = 0;
  return seen;
}

static __noinline int enter_launch(struct call *call) {
  struct thread *thread = call->thread;
  struct rp_probe_process *process = call->process;
  const volatile struct rp_probe_shape *shape = call->shape;
  if (inside_nccl(call)) return 0; /* what NCCL accesses comes from its API */
  uint64_t params = argument(call->regs, shape->params);
  if (seen_above(call, params)) return 0;
  add(&process->operations, 1);
  if (!process->recv_high || !params) return 0;
  thread->launch.count = thread->launch.lost = 0;
  thread->launch_sp = PT_REGS_SP(call->regs);
  thread->launch_array = params;
  if (!look_at_parameters(thread, process, params)) return 0;
  struct rp_probe_record *record = &thread->launch.head;
  __builtin_memset(record, 0, sizeof *record);
  fill(record, call, RP_PROBE_WHAT_LAUNCH, RP_EVENT_KERNEL);
  record->event.operations--; /* begun before this one */
  record->event.function = argument(call->regs, shape->function);
  uint64_t stream = shape->config ? user_word(argument(call->regs, shape->config) + 32)
                                  : argument(call->regs, shape->stream);
  record->event.stream = stream_of(call, stream);
  add(&process->events[RP_EVENT_KERNEL], 1);
  if (bpf_ringbuf_output(&ring, &thread->launch, sizeof thread->launch, wake_flags())) {
    lose(call->function);
    add(&process->dropped, 1);
  }
  return 0;
}

static __always_inline bool names_receive(const struct rp_probe_process *process, uint64_t begin,
                                          uint64_t bytes) {
  return bytes && begin < process->recv_high && begin + bytes > process->recv_low;
}

static __always_inline void access(const struct call *call, uint32_t kind, uint64_t address, uint64_t bytes,
                                   uint64_t stream, uint32_t flags) {
  struct rp_probe_record *record = begin(call, RP_PROBE_WHAT_EVENT, kind);
  if (!record) return;
  record->event.flags = (uint16_t)flags;
  record->event.address = address;
  record->event.bytes = bytes;
  record->event.stream = stream;
  record->event.operations--;
  submit(record);
}

/* The destination of a copy or memset, and the source of a copy. */
static __noinline int enter_copy(struct call *call) {
  struct thread *thread = call->thread;
  const volatile struct rp_probe_shape *shape = call->shape;
  uint64_t to = argument(call->regs, shape->address), from = argument(call->regs, shape->source);
  uint64_t bytes = argument(call->regs, shape->bytes) << (shape->unit_log2 & 7);
  if (shape->height) bytes = argument(call->regs, shape->pitch) * argument(call->regs, shape->height);
  if (inside_nccl(call)) return 0;
  bool above = shape->layer == RP_PROBE_RUNTIME;
  if (!above && to == thread->copy_to && from == thread->copy_from && to) {
    thread->copy_to = 0;
    return 0;
  }
  thread->copy_to = above ? to : 0;
  thread->copy_from = from;
  add(&call->process->operations, 1);
  uint64_t stream = stream_of(call, argument(call->regs, shape->stream));
  bool reads = shape->source && names_receive(call->process, from, bytes);
  if (reads) access(call, RP_EVENT_COPY_READ, from, bytes, stream, 0);
  if (names_receive(call->process, to, bytes))
    access(call, shape->class_ == RP_PROBE_MEMSET ? RP_EVENT_MEMSET : RP_EVENT_COPY_WRITE, to, bytes, stream,
           reads ? RP_EVENT_FLAG_INPLACE : 0);
  return 0;
}

#endif
