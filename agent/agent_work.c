/* Launches, copies, memsets and what orders them: from CUPTI callbacks and from interposed calls, each
 * operation once. Everything here returns at once where no receive buffer is named. */
#include "agent/agent_internal.h"

#include <stddef.h>

#include "agent/names.h"
#include "agent/ordering.h"
#include "agent/reporter.h"
#include "agent/state.h"

/* ---- launches ---- */

/* NCCL's own launches and copies are none of the program's: its accesses come from its API. */
static bool begins(void) {
  if (rp_thread.depth[RP_CALL_NCCL]) return false;
  rp_count(&rp_thread_counts()->operations, 1);
  return !rp_filter_is_empty(&rp__filter);
}

/* What an interposed call has dealt with is counted and reported already. */
bool rp__launch_begun(void) {
  return rp_state_is_on() && !rp_thread.handled && begins();
}

/* Under the lock: the other device addresses of the launch that lie in known allocations, in parameter order.
 */
static void add_companions(struct rp_event *event, const struct rp_launch_words *words) {
  for (size_t i = 0; i < words->count; i++) {
    uint64_t value = words->words[i].value;
    if (value == event->address || !rp__is_allocation(value)) continue;
    if (event->companion_count < RP_EVENT_COMPANIONS)
      event->companion[event->companion_count++] = value;
    else
      event->companions_dropped++;
  }
}

static bool named_before(const struct rp_launch_words *words, size_t i) {
  for (size_t j = 0; j < i; j++)
    if (words->words[j].hit && words->words[j].value == words->words[i].value) return true;
  return false;
}

static void note_name(uint64_t function, const char *symbol) {
  uint32_t generation = rp_launch_generation();
  if (rp_names_known(function, generation)) return;
  char name[256];
  if (!symbol && rp_driver_function_name(function, name, sizeof name)) symbol = name;
  if (!symbol || !rp_agent_lock()) return;
  rp_names_note(function, generation, symbol);
  rp_agent_unlock();
}

/* Where the work is, and what of its events is the same for all. */
static struct rp_event begin_work(struct rp_work *work, enum rp_event_kind kind, enum rp_event_source source,
                                  uint64_t stream) {
  struct rp_event event = rp__new_event(kind, source);
  *work = (struct rp_work){.site = rp_agent_site(stream)};
  event.stream = stream;
  event.flags = rp__capture_flag(&work->site);
  event.device = rp_driver_current_device();
  event.operations = rp__operations_begun() - 1; /* begun before this one */
  rp_count(&rp_thread_counts()->hits, 1);
  rp_ordering_want();
  return event;
}

/* Under the lock. */
static void hand_work_over(struct rp_event *event, struct rp_work *work) {
  rp__hand_over(event);
  event->flags |= RP_EVENT_FLAG_INPLACE;
  if (work->seq) return;
  work->seq = rp_thread.work_seq = event->seq;
  work->time_ns = rp_thread.work_time_ns = event->time_ns;
}

void rp_agent_seen(const struct rp_work *work) {
  if (!rp__listener.seen || !rp_agent_lock()) return;
  rp__listener.seen(work);
  rp_agent_unlock();
}

/* What a callback has told before the call, now that the call has succeeded. */
static void seen_again(struct rp_work *work) {
  work->seq = rp_thread.work_seq;
  work->time_ns = rp_thread.work_time_ns;
  rp_agent_seen(work);
}

static void take_hit(const struct rp_cuda_launch *launch, const struct rp_launch_words *words,
                     enum rp_event_source source, struct rp_work *work) {
  struct rp_event base = begin_work(work, RP_EVENT_KERNEL, source, launch->stream);
  base.flags |= (uint16_t)launch->event_flags;
  base.function = work->function = launch->function;
  work->words = words;
  if (launch->event_flags & RP_EVENT_FLAG_PDL) work->site.flags |= RP_ORDER_PROGRAMMATIC;
  note_name(launch->function, launch->symbol);
  if (!rp__lock_events()) return;
  for (size_t i = 0; i < words->count; i++) {
    if (!words->words[i].hit || named_before(words, i)) continue;
    struct rp_event event = base;
    event.address = words->words[i].value;
    event.arg_offset = words->words[i].offset;
    add_companions(&event, words);
    hand_work_over(&event, work);
    base.flags = event.flags;
  }
  rp_agent_unlock();
}

/* NCCL may launch from a thread of its own (communicators that do not block), where the call stack does not
 * tell; its inlined work names the buffers of the transfer. */
static bool is_nccl_kernel(const struct rp_cuda_launch *launch) {
  char name[256];
  if (launch->symbol) return rp_launch_is_nccl(launch->symbol);
  return rp_driver_function_name(launch->function, name, sizeof name) && rp_launch_is_nccl(name);
}

void rp__launch_hit(const struct rp_cuda_launch *launch, const struct rp_launch_words *words) {
  struct rp_work work;
  if (!is_nccl_kernel(launch)) take_hit(launch, words, RP_SOURCE_CUPTI, &work);
}

void rp__launch_done(const struct rp_cuda_launch *launch, const struct rp_launch_words *words) {
  const uint32_t flags = launch->event_flags & RP_EVENT_FLAG_PDL;
  struct rp_work work = {
      .site = rp_agent_site_of(launch->stream, flags), .function = launch->function, .words = words};
  seen_again(&work);
}

bool rp_agent_launch(const struct rp_cuda_launch *launch, struct rp_launch_words *words,
                     struct rp_work *work) {
  if (!begins() || !rp_launch_scan(launch, &rp_agent_sink()->filter, words) || is_nccl_kernel(launch))
    return false;
  take_hit(launch, words, RP_SOURCE_INTERPOSER, work);
  return true;
}

/* ---- copies and memsets ---- */

static void add_use(struct rp_work *work, enum rp_event_kind kind, uint64_t address, uint64_t bytes) {
  if (bytes == 0 || !rp_filter_overlaps(&rp__filter, address, address + bytes)) return;
  work->uses[work->use_count++] =
      (struct rp_use){.address = address,
                      .bytes = bytes,
                      .mode = kind == RP_EVENT_COPY_READ ? RP_POOL_READ : RP_POOL_WRITE,
                      .kind = kind};
}

/* What the operation does to receive buffers. */
static void find_uses(const struct rp_cuda_op *op, struct rp_work *work) {
  work->use_count = 0;
  if (op->kind == RP_EVENT_MEMSET) {
    add_use(work, RP_EVENT_MEMSET, op->address, op->bytes);
    return;
  }
  add_use(work, RP_EVENT_COPY_READ, op->source, op->source_bytes);
  add_use(work, RP_EVENT_COPY_WRITE, op->address, op->bytes);
}

static bool take_copy(const struct rp_cuda_op *op, enum rp_event_source source, struct rp_work *work) {
  struct rp_work found = {.use_count = 0};
  if (!begins()) return false;
  find_uses(op, &found);
  if (found.use_count == 0) return false;
  struct rp_event event = begin_work(work, op->kind, source, op->stream);
  if (!rp__lock_events()) return false;
  for (size_t i = 0; i < found.use_count; i++) {
    work->uses[work->use_count++] = found.uses[i];
    event.kind = (uint16_t)found.uses[i].kind;
    event.address = found.uses[i].address;
    event.bytes = found.uses[i].bytes;
    hand_work_over(&event, work);
  }
  rp_agent_unlock();
  return true;
}

bool rp_agent_copy(const struct rp_cuda_op *op, struct rp_work *work) {
  return take_copy(op, RP_SOURCE_INTERPOSER, work);
}

void rp__op_done(const struct rp_cuda_op *op) {
  struct rp_work work = {.site = rp_agent_site_of(op->stream, 0)};
  if (op->kind == RP_EVENT_GRAPH_LAUNCH)
    work.graph = op->aux;
  else
    find_uses(op, &work);
  if (work.graph || work.use_count) seen_again(&work);
}

/* ---- everything else ---- */

static void take_plain(const struct rp_cuda_op *op, enum rp_event_source source) {
  struct rp_event event = rp__new_event(op->kind, source);
  event.address = op->address;
  event.bytes = op->bytes;
  event.stream = op->stream;
  event.aux = op->aux;
  rp__emit(&event);
}

static void take_memory(const struct rp_cuda_op *op, enum rp_event_source source) {
  struct rp_event event = rp__new_event(op->kind, source);
  event.address = op->address;
  event.bytes = op->bytes;
  event.stream = op->stream;
  event.aux = op->aux;
  event.device = rp_driver_current_device();
  event.operations = rp__operations_begun();
  if (!rp__lock_events()) return;
  rp__hand_over(&event);
  if (rp__listener.memory && (op->kind == RP_EVENT_FREE || op->aux == RP_ALLOC_MALLOC))
    rp__listener.memory(op->address, op->kind == RP_EVENT_FREE ? 0 : op->bytes, event.device);
  rp_agent_unlock();
}

static void take_allocation(const struct rp_cuda_op *op, enum rp_event_source source) {
  if (source == RP_SOURCE_CUPTI && rp_thread.depth[RP_CALL_ALLOC]) return; /* the interposer reports it */
  if (source == RP_SOURCE_CUPTI)
    rp_reporter_look_for_modules();
  else if (op->kind == RP_EVENT_ALLOC)
    rp_reporter_driver_initialised(); /* without CUPTI nobody else says so */
  take_memory(op, source);
}

/* Records, waits and the like are counted only where there are receive buffers to order. */
static void take_order(const struct rp_cuda_op *op, enum rp_event_source source) {
  if (!rp_filter_is_empty(&rp__filter)) take_plain(op, source);
}

static bool take_graph(const struct rp_cuda_op *op, enum rp_event_source source, struct rp_work *work) {
  if (rp_filter_is_empty(&rp__filter)) return false;
  *work = (struct rp_work){.site = rp_agent_site_of(op->stream, 0), .graph = op->aux};
  struct rp_event event = rp__new_event(op->kind, source);
  event.stream = op->stream;
  event.aux = op->aux;
  event.device = rp_driver_current_device();
  event.operations = rp__operations_begun();
  rp_ordering_want();
  if (!rp__lock_events()) return false;
  hand_work_over(&event, work);
  rp_agent_unlock();
  return true;
}

bool rp_agent_graph(const struct rp_cuda_op *op, struct rp_work *work) {
  return take_graph(op, RP_SOURCE_INTERPOSER, work);
}

void rp_agent_op(const struct rp_cuda_op *op, enum rp_event_source source) {
  struct rp_work work;
  switch (op->kind) {
  case RP_EVENT_COPY_READ:
  case RP_EVENT_COPY_WRITE:
  case RP_EVENT_MEMSET:
    (void)take_copy(op, source, &work);
    break;
  case RP_EVENT_ALLOC:
  case RP_EVENT_FREE:
    take_allocation(op, source);
    break;
  case RP_EVENT_GRAPH_LAUNCH:
    (void)take_graph(op, source, &work);
    break;
  default:
    take_order(op, source);
    break;
  }
}

void rp__op_from_cupti(const struct rp_cuda_op *op) {
  if (!rp_state_is_on()) return;
  bool work =
      op->kind == RP_EVENT_COPY_READ || op->kind == RP_EVENT_COPY_WRITE || op->kind == RP_EVENT_MEMSET;
  if (!work || !rp_thread.handled) rp_agent_op(op, RP_SOURCE_CUPTI);
}
