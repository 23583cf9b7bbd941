/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The probes: one program at the entry and one at the return of every probed function, and three that follow
 * processes. A table that the loader fills in says how to read each function's arguments; the cookie of a
 * probe names its row. What is seen goes into one ring buffer, in the order in which the calls were made.
 *
 * Only user memory is read with helpers, and the kernel's own structs through pointers that the verifier
 * knows, so that the programs load where reading kernel memory is locked down. */
#define __TARGET_ARCH_x86 1
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
typedef int int32_t;
typedef long long int64_t;

#include <linux/bpf.h>
#include <asm/ptrace.h>
#include <stdbool.h>

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "bpf/probe.h"

#define NULL_POINTER ((void *)0)
#define USER_LOW 4096ull
#define USER_HIGH (1ull << 47)
#define ID_BYTES 128

/* What is needed of the kernel's types; the loader moves the offsets to those of the running kernel. */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
typedef struct {
  int counter;
} atomic_t;
struct signal_struct {
  atomic_t live;
};
struct task_struct {
  int pid, tgid;
  struct signal_struct *signal;
};
#pragma clang attribute pop

/* ---- configuration, set before loading ---- */

enum rp_probe_mode { MODE_LISTED = 0, MODE_CGROUP = 1, MODE_ALL = 2 };

const volatile struct rp_probe_shape shapes[RP_PROBE_FUNCTIONS];
const volatile uint32_t mode = MODE_LISTED;
const volatile uint64_t cgroup_id = 0;
const volatile int32_t cgroup_level = 0;
const volatile uint32_t own_tgid = 0;
const volatile uint64_t min_bytes = 65536;
const volatile uint64_t wake_bytes = 1 << 20; /* the reader is woken when this much waits */
const volatile bool launches = false;         /* follow what launches name */
const volatile bool calls = false;            /* a record of every call */
const volatile bool follow_name = false;      /* a process is observed while its name is the one below */
const volatile char name[16];

/* Probes come and go one library after the other; what is seen begins and ends at one moment. */
volatile uint32_t active = 0;

/* ---- state ---- */

/* A call in flight. */
struct frame {
  uint64_t sp; /* at entry; 0: none */
  uint64_t function;
  uint64_t argument[RP_PROBE_ARGUMENTS];
};

/* Per thread, freed with it. */
struct thread {
  struct frame memory, nccl;
  uint64_t last_ip, last_sp, last_library;
  uint64_t launch_params; /* of a runtime launch whose driver launch is still to come */
  uint64_t launch_sp, launch_array;
  uint64_t copy_to, copy_from; /* the same of a copy */
  uint32_t group_depth;
  uint32_t hits;                         /* words of a launch that may be in a receive buffer */
  uint64_t pointer[RP_PROBE_PARAMETERS]; /* scratch of a launch */
  uint64_t buffer[RP_PROBE_PARAMETER_WORDS];
  struct rp_probe_launch launch;
};

struct {
  __uint(type, BPF_MAP_TYPE_TASK_STORAGE);
  __uint(map_flags, BPF_F_NO_PREALLOC);
  __type(key, int);
  __type(value, struct thread);
} threads SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(map_flags, BPF_F_NO_PREALLOC);
  __uint(max_entries, 65536);
  __type(key, uint32_t);
  __type(value, struct rp_probe_process);
} processes SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
  __uint(max_entries, RP_PROBE_FUNCTIONS);
  __type(key, uint32_t);
  __type(value, struct rp_probe_count);
} counts SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_RINGBUF);
  __uint(max_entries, 16 << 20);
} ring SEC(".maps");

/* A call that is being looked at. */
struct call {
  struct pt_regs *regs;
  const volatile struct rp_probe_shape *shape;
  struct rp_probe_process *process;
  struct thread *thread;
  uint32_t function;
};

/* ---- counting and records ---- */

static __always_inline struct rp_probe_count *count_of(uint32_t function) {
  uint32_t key = function & (RP_PROBE_FUNCTIONS - 1);
  return bpf_map_lookup_elem(&counts, &key);
}

/* Uprobe programs can be preempted, so even what belongs to one CPU is added to atomically. */
static __always_inline void add(uint64_t *counter, uint64_t by) {
  __sync_fetch_and_add(counter, by);
}

static __noinline int lose(uint32_t function) {
  struct rp_probe_count *count = count_of(function);
  if (count) add(&count->dropped, 1);
  return 0;
}

/* The reader sleeps between its rounds; it is woken early when much waits, and once rather than at every
 * record beyond that. */
static __always_inline uint64_t wake_flags(void) {
  uint64_t waiting = bpf_ringbuf_query(&ring, BPF_RB_AVAIL_DATA);
  return waiting >= wake_bytes && waiting < wake_bytes + 8 * sizeof(struct rp_probe_record)
             ? BPF_RB_FORCE_WAKEUP
             : BPF_RB_NO_WAKEUP;
}

static __always_inline void fill(struct rp_probe_record *record, const struct call *call, uint32_t what,
                                 uint32_t kind) {
  uint64_t id = bpf_get_current_pid_tgid();
  record->what = (uint16_t)what;
  record->function = (uint16_t)call->function;
  record->status = 0;
  record->generation = call->process->generation;
  record->event.version = RP_EVENT_VERSION;
  record->event.kind = (uint16_t)kind;
  record->event.source = RP_SOURCE_UPROBE;
  record->event.pid = (uint32_t)(id >> 32);
  record->event.tid = (uint32_t)id;
  record->event.time_ns = bpf_ktime_get_ns();
  record->event.operations = call->process->operations;
  record->event.peer = -1;
  record->event.device = -1;
}

/* Room for a record without companions, filled in as far as it is the same for all; NULL (and counted) where
 * there is none. */
static __always_inline struct rp_probe_record *begin(const struct call *call, uint32_t what, uint32_t kind) {
  struct rp_probe_record *record = bpf_ringbuf_reserve(&ring, RP_PROBE_SHORT_RECORD, 0);
  if (kind < RP_EVENT_KIND_COUNT) add(&call->process->events[kind], 1);
  if (!record) {
    lose(call->function);
    add(&call->process->dropped, 1);
    return NULL_POINTER;
  }
  __builtin_memset(record, 0, RP_PROBE_SHORT_RECORD);
  fill(record, call, what, kind);
  return record;
}

static __always_inline void submit(struct rp_probe_record *record) {
  bpf_ringbuf_submit(record, wake_flags());
}

/* ---- arguments ---- */

static __noinline uint64_t stack_word(struct pt_regs *regs, uint32_t index) {
  uint64_t value = 0;
  uint64_t at = PT_REGS_SP(regs) + 8 + 8 * (uint64_t)index;
  bpf_probe_read_user(&value, sizeof value, (const void *)at);
  return value;
}

static __noinline uint64_t argument(struct pt_regs *regs, uint32_t number) {
  switch (number) {
  case 0:
    return 0;
  case 1:
    return PT_REGS_PARM1(regs);
  case 2:
    return PT_REGS_PARM2(regs);
  case 3:
    return PT_REGS_PARM3(regs);
  case 4:
    return PT_REGS_PARM4(regs);
  case 5:
    return PT_REGS_PARM5(regs);
  case 6:
    return regs->r9;
  default:
    return stack_word(regs, number - 7);
  }
}

static __always_inline uint64_t user_word(uint64_t at) {
  uint64_t value = 0;
  bpf_probe_read_user(&value, sizeof value, (const void *)at);
  return value;
}

/* The default streams have fixed handles in events: 1 the legacy one, 2 the thread's own. */
static __always_inline uint64_t stream_of(const struct call *call, uint64_t stream) {
  return stream ? stream : call->shape->null_stream;
}

/* FNV-1a over a communicator's id, the same on every rank; 0 stands for "not known". */
static __noinline uint64_t hash_id(uint64_t at) {
  unsigned char id[ID_BYTES];
  uint64_t hash = 0xcbf29ce484222325ull;
  if (bpf_probe_read_user(id, sizeof id, (const void *)at)) return 0;
  for (int i = 0; i < ID_BYTES; i++)
    hash = (hash ^ id[i]) * 0x100000001b3ull;
  return hash ? hash : 1;
}

/* ---- which process ---- */

static __always_inline bool in_cgroup(void) {
  return bpf_get_current_ancestor_cgroup_id(cgroup_level) == cgroup_id;
}

/* A record about a process itself. `dropped`: what the process that it was until now has lost. */
static __noinline int announce(uint32_t tgid, uint64_t generation, uint32_t what, uint32_t parent,
                               uint64_t dropped) {
  struct rp_probe_record *record = bpf_ringbuf_reserve(&ring, RP_PROBE_SHORT_RECORD, 0);
  if (!record) return lose(RP_PROBE_FUNCTION_PROCESS);
  __builtin_memset(record, 0, RP_PROBE_SHORT_RECORD);
  record->what = (uint16_t)what;
  record->function = RP_PROBE_FUNCTION_PROCESS;
  record->generation = generation;
  record->event.version = RP_EVENT_VERSION;
  record->event.source = RP_SOURCE_UPROBE;
  record->event.pid = tgid;
  record->event.aux = parent;
  record->event.bytes = dropped;
  record->event.time_ns = bpf_ktime_get_ns();
  bpf_ringbuf_submit(record, BPF_RB_FORCE_WAKEUP);
  return 0;
}

static __noinline int take_in(uint32_t tgid, uint32_t what, uint32_t parent) {
  struct rp_probe_process fresh = {}, *before = bpf_map_lookup_elem(&processes, &tgid);
  uint64_t dropped = before ? before->dropped : 0;
  fresh.generation = bpf_ktime_get_ns();
  fresh.recv_low = fresh.alloc_low = ~0ull;
  if (bpf_map_update_elem(&processes, &tgid, &fresh, BPF_ANY)) return lose(RP_PROBE_FUNCTION_PROCESS);
  return announce(tgid, fresh.generation, what, parent, dropped);
}

/* State of the current process if it is one of those observed. */
static __always_inline struct rp_probe_process *current_process(void) {
  uint32_t tgid = (uint32_t)(bpf_get_current_pid_tgid() >> 32);
  if (!active) return NULL_POINTER;
  struct rp_probe_process *process = bpf_map_lookup_elem(&processes, &tgid);
  if (mode == MODE_LISTED) return process;
  if (tgid == own_tgid || (mode == MODE_CGROUP && !in_cgroup())) return NULL_POINTER;
  if (process) return process;
  take_in(tgid, RP_PROBE_WHAT_SEEN, 0);
  return bpf_map_lookup_elem(&processes, &tgid);
}

/* ---- bounds of what is of interest ---- */

/* A lost race leaves the other thread's bound in place; a few more tries settle it. */
static __noinline int widen(uint64_t *low, uint64_t *high, uint64_t begin, uint64_t end) {
  if (!low || !high) return 0;
  for (int i = 0; i < 4; i++) {
    uint64_t now = *low;
    if (begin >= now || __sync_val_compare_and_swap(low, now, begin) == now) break;
  }
  for (int i = 0; i < 4; i++) {
    uint64_t now = *high;
    if (end <= now || __sync_val_compare_and_swap(high, now, end) == now) break;
  }
  return 0;
}

/* ---- calls in flight ---- */

/* Marks the call as in flight, unless it is nested in another of its layer. A frame that lies below this
 * call's was left without a return (longjmp, an exception, an unprobed return), and so was one of the same
 * function. */
static __always_inline bool enter_frame(const struct call *call, struct frame *frame) {
  uint64_t sp = PT_REGS_SP(call->regs);
  if (frame->sp && sp < frame->sp && frame->function != call->function) return false;
  frame->sp = sp;
  frame->function = call->function;
  return true;
}

static __always_inline bool leave_frame(const struct call *call, struct frame *frame) {
  if (!frame->sp || frame->function != call->function || frame->sp + 8 != PT_REGS_SP(call->regs))
    return false;
  frame->sp = 0;
  return true;
}

static __always_inline bool inside_nccl(const struct call *call) {
  return call->thread->nccl.sp && PT_REGS_SP(call->regs) < call->thread->nccl.sp;
}

static __always_inline bool is_memory_class(uint32_t class_) {
  return class_ >= RP_PROBE_ALLOC && class_ <= RP_PROBE_UNMAP;
}

static __always_inline bool is_nccl_class(uint32_t class_) {
  return class_ >= RP_PROBE_RECV && class_ <= RP_PROBE_BRACKET;
}

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
  else
    frame->argument[5] = 0;
  if ((shape->class_ == RP_PROBE_FREE || shape->class_ == RP_PROBE_UNMAP) && frame->argument[1])
    memory_event(call, RP_EVENT_FREE, frame->argument[1], frame->argument[2], frame->argument[5]);
  return 0;
}

static __always_inline void handle_event(const struct call *call, uint32_t what, uint64_t handle,
                                         uint64_t bytes) {
  struct rp_probe_record *record = begin(call, what, RP_EVENT_NONE);
  if (!record) return;
  record->event.aux = handle;
  record->event.bytes = bytes;
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
    handle_event(call, RP_PROBE_WHAT_CREATE, user_word(frame->argument[0]), frame->argument[2]);
    break;
  case RP_PROBE_RELEASE:
    handle_event(call, RP_PROBE_WHAT_RELEASE, frame->argument[1], 0);
    break;
  }
  return 0;
}

/* ---- NCCL ---- */

static __always_inline uint64_t element_bytes(uint32_t type) {
  /* ncclDataType_t 0 to 11, four bits each */
  return type < 12 ? 0x112842884411ull >> (4 * type) & 15 : 0;
}

static __always_inline void transfer(const struct call *call, uint32_t kind) {
  uint64_t address = PT_REGS_PARM1(call->regs);
  uint64_t bytes = PT_REGS_PARM2(call->regs) * element_bytes((uint32_t)PT_REGS_PARM3(call->regs));
  if (kind == RP_EVENT_RECV && bytes >= min_bytes && address + bytes > address)
    widen(&call->process->recv_low, &call->process->recv_high, address, address + bytes);
  struct rp_probe_record *record = begin(call, RP_PROBE_WHAT_EVENT, kind);
  if (!record) return;
  record->event.address = address;
  record->event.bytes = bytes;
  record->event.peer = (int32_t)PT_REGS_PARM4(call->regs);
  record->event.comm = PT_REGS_PARM5(call->regs);
  record->event.stream = stream_of(call, call->regs->r9);
  submit(record);
}

static __always_inline void plain_event(const struct call *call, uint32_t kind, uint64_t comm, uint64_t aux) {
  struct rp_probe_record *record = begin(call, RP_PROBE_WHAT_EVENT, kind);
  if (!record) return;
  record->event.comm = comm;
  record->event.aux = aux;
  submit(record);
}

static __always_inline void group(const struct call *call) {
  uint32_t *depth = &call->thread->group_depth;
  if (call->shape->class_ == RP_PROBE_GROUP_START) {
    if ((*depth)++ == 0) plain_event(call, RP_EVENT_GROUP_START, 0, 0);
  } else if (*depth > 0 && --*depth == 0) {
    plain_event(call, RP_EVENT_GROUP_END, 0, 0);
  }
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
    transfer(call, RP_EVENT_RECV);
    break;
  case RP_PROBE_SEND:
    transfer(call, RP_EVENT_SEND);
    break;
  case RP_PROBE_GROUP_START:
  case RP_PROBE_GROUP_END:
    group(call);
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
  if (status && status != NCCL_IN_PROGRESS) return 0;
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

/* ---- launches and copies ---- */

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

/* ---- entry and return ---- */

/* Two probes of one file, reached by two paths, fire one after the other with nothing run in between. */
static __always_inline bool is_duplicate(const struct call *call, uint64_t library) {
  struct thread *thread = call->thread;
  uint64_t ip = PT_REGS_IP(call->regs), sp = PT_REGS_SP(call->regs);
  bool again = ip == thread->last_ip && sp == thread->last_sp && library != thread->last_library;
  if (again) {
    struct rp_probe_record *record = begin(call, RP_PROBE_WHAT_ALIAS, RP_EVENT_NONE);
    if (record) {
      record->event.function = thread->last_library;
      record->event.aux = library;
      submit(record);
    }
    return true;
  }
  thread->last_ip = ip;
  thread->last_sp = sp;
  thread->last_library = library;
  return false;
}

static __always_inline bool open_call(struct call *call, struct pt_regs *ctx, uint64_t cookie) {
  call->regs = ctx;
  call->function = (uint32_t)cookie & (RP_PROBE_FUNCTIONS - 1);
  call->shape = &shapes[call->function];
  call->process = current_process();
  if (!call->process) return false;
  call->thread = bpf_task_storage_get(&threads, bpf_get_current_task_btf(), NULL_POINTER,
                                      BPF_LOCAL_STORAGE_GET_F_CREATE);
  if (call->thread) return true;
  lose(call->function);
  add(&call->process->dropped, 1);
  return false;
}

SEC("uprobe")
int rp_enter(struct pt_regs *ctx) {
  struct call call;
  uint64_t cookie = bpf_get_attach_cookie(ctx);
  if (!open_call(&call, ctx, cookie) || is_duplicate(&call, cookie >> 16)) return 0;
  struct rp_probe_count *count = count_of(call.function);
  if (count) add(&count->calls, 1);
  uint32_t class_ = call.shape->class_;
  if (is_memory_class(class_)) return enter_memory(&call);
  if (is_nccl_class(class_)) return enter_nccl(&call);
  if (class_ == RP_PROBE_LAUNCH) return enter_launch(&call);
  if (class_ == RP_PROBE_COPY || class_ == RP_PROBE_MEMSET) return enter_copy(&call);
  if (class_ == RP_PROBE_LOADER)
    announce((uint32_t)(bpf_get_current_pid_tgid() >> 32), call.process->generation, RP_PROBE_WHAT_LOADER, 0,
             0);
  return 0;
}

/* The whole call, for a reader who asked for calls. */
static __always_inline void tell_call(const struct call *call, const struct frame *frame, int32_t status) {
  struct rp_probe_record *record = bpf_ringbuf_reserve(&ring, sizeof *record, 0);
  if (!record) {
    lose(call->function);
    return;
  }
  __builtin_memset(record, 0, sizeof *record);
  fill(record, call, RP_PROBE_WHAT_CALL, RP_EVENT_NONE);
  record->status = status;
  for (int i = 0; i < RP_PROBE_ARGUMENTS; i++)
    record->event.companion[i] = frame->argument[i];
  submit(record);
}

SEC("uprobe")
int rp_leave(struct pt_regs *ctx) {
  struct call call;
  if (!open_call(&call, ctx, bpf_get_attach_cookie(ctx))) return 0;
  bool nccl = is_nccl_class(call.shape->class_);
  struct frame *frame = nccl ? &call.thread->nccl : &call.thread->memory;
  if (!leave_frame(&call, frame)) return 0;
  int32_t status = (int32_t)PT_REGS_RC(ctx);
  struct rp_probe_count *count = count_of(call.function);
  if (count) {
    add(&count->returns, 1);
    if (status) {
      add(&count->failed, 1);
      count->last_failure = status;
    }
  }
  if (nccl)
    leave_nccl(&call, status);
  else
    leave_memory(&call, status);
  if (calls) tell_call(&call, frame, status);
  return 0;
}

/* ---- processes ---- */

static __always_inline bool has_name(void) {
  char now[16] = {};
  if (bpf_get_current_comm(now, sizeof now)) return false;
  for (int i = 0; i < 16; i++) {
    if (now[i] != name[i]) return false;
    if (!now[i]) break;
  }
  return true;
}

SEC("tp_btf/sched_process_fork")
int BPF_PROG(rp_fork, struct task_struct *parent, struct task_struct *child) {
  uint32_t from = (uint32_t)parent->tgid, tgid = (uint32_t)child->tgid;
  if (mode != MODE_LISTED || child->pid != child->tgid || !bpf_map_lookup_elem(&processes, &from)) return 0;
  return take_in(tgid, RP_PROBE_WHAT_FORK, from);
}

/* A new program: what was known of the old one is over. */
SEC("tp_btf/sched_process_exec")
int BPF_PROG(rp_exec, struct task_struct *task) {
  uint32_t tgid = (uint32_t)task->tgid;
  struct rp_probe_process *known = bpf_map_lookup_elem(&processes, &tgid);
  if (tgid == own_tgid) return 0;
  if (mode == MODE_CGROUP && !in_cgroup()) return 0;
  if (mode == MODE_LISTED && !(follow_name ? has_name() : known != NULL_POINTER)) {
    if (!known) return 0;
    announce(tgid, known->generation, RP_PROBE_WHAT_EXIT, 0, known->dropped);
    bpf_map_delete_elem(&processes, &tgid);
    return 0;
  }
  return take_in(tgid, RP_PROBE_WHAT_EXEC, 0);
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(rp_exit, struct task_struct *task) {
  uint32_t tgid = (uint32_t)task->tgid;
  struct rp_probe_process *process = bpf_map_lookup_elem(&processes, &tgid);
  if (!process || task->signal->live.counter > 0) return 0; /* other threads go on */
  announce(tgid, process->generation, RP_PROBE_WHAT_EXIT, 0, process->dropped);
  bpf_map_delete_elem(&processes, &tgid);
  return 0;
}

/* The kernel hands out some of the helpers only to programs under this licence. */
char rp_license[] SEC("license") = "GPL";
