/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* What all probes share, for recvpool.bpf.c alone: configuration, maps, records, reading arguments, which
 * process is observed, and calls in flight. */
#ifndef RP_BPF_STATE_BPF_H
#define RP_BPF_STATE_BPF_H

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
volatile uint32_t active = RP_PROBE_NOT_YET;

/* ---- state ---- */

/* A call in flight. */
struct frame {
  uint64_t sp; /* at entry; 0: none */
  uint64_t ip;
  uint64_t function;
  uint64_t time_ns, operations; /* of a transfer: as it was posted */
  uint64_t argument[RP_PROBE_ARGUMENTS];
  uint64_t raw[RP_PROBE_REGISTERS]; /* as passed; only for a reader who asked for calls */
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
  bool returns; /* its return is seen too */
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

/* How a process, or the program that it was until now, ends: what it has lost, and calls in flight. */
struct past {
  uint64_t dropped, in_flight;
};

/* A record about a process itself; 0 where it found no room. */
static __noinline int announce(uint32_t tgid, uint64_t generation, uint32_t what, uint32_t parent,
                               const struct past *past) {
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
  record->event.bytes = past->dropped;
  record->event.operations = past->in_flight;
  record->event.time_ns = bpf_ktime_get_ns();
  bpf_ringbuf_submit(record, BPF_RB_FORCE_WAKEUP);
  return 1;
}

/* What the process lost is told by the record of its end; where that finds no room, by the state, which the
 * reader asks for and drops when it sees that the process is gone. */
static __noinline int end_process(uint32_t tgid) {
  struct rp_probe_process *process = bpf_map_lookup_elem(&processes, &tgid);
  if (!process) return 0;
  struct past past = {process->dropped, process->in_flight};
  if (announce(tgid, process->generation, RP_PROBE_WHAT_EXIT, 0, &past))
    bpf_map_delete_elem(&processes, &tgid);
  else
    process->ended = 1;
  return 0;
}

static __noinline int take_in(uint32_t tgid, uint32_t what, uint32_t parent) {
  struct rp_probe_process fresh = {}, *before = bpf_map_lookup_elem(&processes, &tgid);
  uint64_t generation = before ? before->generation : 0;
  struct past past = {before ? before->dropped : 0, before ? before->in_flight : 0};
  fresh.generation = bpf_ktime_get_ns();
  fresh.recv_low = fresh.alloc_low = ~0ull;
  if (bpf_map_update_elem(&processes, &tgid, &fresh, BPF_ANY)) return lose(RP_PROBE_FUNCTION_PROCESS);
  if (announce(tgid, fresh.generation, what, parent, &past)) return 0;
  struct rp_probe_process *now = bpf_map_lookup_elem(&processes, &tgid);
  if (!now) return 0;
  now->generation_before = generation;
  now->dropped_before = past.dropped;
  return 0;
}

/* State of the current process if it is one of those observed. */
static __always_inline struct rp_probe_process *current_process(void) {
  uint32_t tgid = (uint32_t)(bpf_get_current_pid_tgid() >> 32);
  if (active != RP_PROBE_NOW) return NULL_POINTER;
  struct rp_probe_process *process = bpf_map_lookup_elem(&processes, &tgid);
  if (process && process->ended) process = NULL_POINTER; /* another one of that id */
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
 * code. The same function elsewhere is one that hands its call on, as NCCL's names with a p are made for. */
static __always_inline bool enter_frame(const struct call *call, struct frame *frame) {
  uint64_t sp = PT_REGS_SP(call->regs);
  uint64_t ip = PT_REGS_IP(call->regs);
  if (frame->sp && sp < frame->sp && (frame->function != call->function || frame->ip != ip)) return false;
  frame->sp = sp;
  frame->ip = ip;
  frame->function = call->function;
  if (calls) {
    frame->raw[0] = PT_REGS_PARM1(call->regs);
    frame->raw[1] = PT_REGS_PARM2(call->regs);
    frame->raw[2] = PT_REGS_PARM3(call->regs);
    frame->raw[3] = PT_REGS_PARM4(call->regs);
    frame->raw[4] = PT_REGS_PARM5(call->regs);
    frame->raw[5] = call->regs->r9;
  }
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
  return (class_ >= RP_PROBE_ALLOC && class_ <= RP_PROBE_UNMAP) || class_ == RP_PROBE_RESERVE ||
         class_ == RP_PROBE_UNRESERVE;
}

static __always_inline bool is_nccl_class(uint32_t class_) {
  return class_ >= RP_PROBE_RECV && class_ <= RP_PROBE_BRACKET;
}

#endif
