/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The probes: one program at the entry and one at the return of every probed function, and three that follow
 * processes. A table that the loader fills in says how to read each function's arguments; the cookie of a
 * probe names its row. What is seen goes into one ring buffer, in the order in which the calls were made.
 *
 * Only user memory is read with helpers, and the kernel's own structs through pointers that the verifier
 * knows, so that the programs load where reading kernel memory is locked down. */
#include "bpf/calls.bpf.h"
#include "bpf/launches.bpf.h"
#include "bpf/state.bpf.h"

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
  call->returns = cookie & RP_PROBE_COOKIE_RETURNS;
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
  struct past nothing = {};
  if (class_ == RP_PROBE_LOADER)
    announce((uint32_t)(bpf_get_current_pid_tgid() >> 32), call.process->generation, RP_PROBE_WHAT_LOADER, 0,
             &nothing);
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
  for (int i = 0; i < RP_PROBE_REGISTERS; i++)
    record->event.companion[i] = frame->raw[i];
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
  if (active == RP_PROBE_OVER) return 0;
  if (child->pid != child->tgid || !bpf_map_lookup_elem(&processes, &from)) return 0;
  return take_in(tgid, RP_PROBE_WHAT_FORK, from);
}

/* A new program: what was known of the old one is over. */
SEC("tp_btf/sched_process_exec")
int BPF_PROG(rp_exec, struct task_struct *task) {
  uint32_t tgid = (uint32_t)task->tgid;
  struct rp_probe_process *known = bpf_map_lookup_elem(&processes, &tgid);
  if (tgid == own_tgid || active == RP_PROBE_OVER) return 0;
  if (mode == MODE_CGROUP && !in_cgroup()) return 0;
  if (mode == MODE_LISTED && !(follow_name ? has_name() : known != NULL_POINTER)) {
    if (!known) return 0;
    return end_process(tgid);
  }
  return take_in(tgid, RP_PROBE_WHAT_EXEC, 0);
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(rp_exit, struct task_struct *task) {
  uint32_t tgid = (uint32_t)task->tgid;
  if (active == RP_PROBE_OVER || task->signal->live.counter > 0) return 0; /* other threads go on */
  return end_process(tgid);
}

/* The kernel hands out some of the helpers only to programs under this licence. */
char rp_license[] SEC("license") = "GPL";
