/* Owns the process's order of streams, the ids of threads in it, and what is read of it without the core
 * lock. Tells the tracker's counters of records, waits and synchronisations too, so that all sides of one
 * call are in one place. */
#include "agent/ordering.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>

#include "agent/agent.h"
#include "agent/state.h"

static struct rp_order *order; /* core lock; set once */
static _Atomic bool started;

/* What is read without the lock. A thread that reads an old value had no way to know better: what made it
 * change was still going on. */
enum { HINT_ACCESSES = 1, HINT_CAPTURES = 2, HINT_LEGACY_LEARNS = 4 };
static _Atomic uint32_t hints;
/* A call that must not be left out came from inside the core lock: a signal handler, or an allocator that
 * calls CUDA. */
static _Atomic bool lost;

/* begun: the end is wanted, but the order has nothing to remember until then. No call of the order has this
 * number. */
#define BEGUN_PLAIN UINT64_C(1)

/* ---- threads ---- */

static _Atomic uint64_t threads_made;
static pthread_key_t thread_end_key;
static bool have_key;

static void at_thread_end(void *unused) {
  (void)unused;
  uint64_t ended = rp_thread.order_thread;
  rp_thread.order_thread = 0; /* what it still calls from destructors is another's */
  if (!ended || !rp_ordering_on() || !rp_agent_lock()) return;
  rp_order_thread_exit(order, ended);
  rp_agent_unlock();
}

uint64_t rp_ordering_thread(void) {
  if (rp_thread.order_thread == 0) {
    rp_thread.order_thread = atomic_fetch_add_explicit(&threads_made, 1, memory_order_relaxed) + 1;
    if (have_key) (void)pthread_setspecific(thread_end_key, &threads_made);
  }
  return rp_thread.order_thread;
}

/* ---- life ---- */

rp_status rp_ordering_start(void) {
  struct rp_order *created;
  rp_status status = rp_order_create(NULL, &created);
  if (status != RP_OK) return status;
  have_key = pthread_key_create(&thread_end_key, at_thread_end) == 0;
  order = created;
  atomic_store_explicit(&started, true, memory_order_release);
  return RP_OK;
}

bool rp_ordering_on(void) {
  if (!atomic_load_explicit(&started, memory_order_relaxed)) return false;
  int state = atomic_load_explicit(&rp_agent_state_value, memory_order_relaxed);
  return state == RP_STATE_ON || state == RP_STATE_PASSIVE;
}

struct rp_order *rp_ordering(void) {
  return order;
}

struct rp_order_counts rp_ordering_counts(void) {
  struct rp_order_counts counts = {0};
  if (!order || !rp_agent_lock()) return counts;
  counts = rp_order_counts(order);
  rp_agent_unlock();
  return counts;
}

uint64_t rp_ordering_bytes(void) {
  return order ? rp_order_bytes(order) : 0;
}

void rp_ordering_refresh(void) {
  if (!order) return;
  if (atomic_load_explicit(&lost, memory_order_relaxed)) rp_order_lost(order);
  uint32_t now = rp_order_captures(order) ? HINT_CAPTURES : 0;
  if (rp_order_has_accesses(order))
    now |= HINT_ACCESSES | (rp_order_legacy_learns(order) ? HINT_LEGACY_LEARNS : 0);
  if (now != atomic_load_explicit(&hints, memory_order_relaxed)) atomic_store(&hints, now);
}

static bool hint(uint32_t which) {
  return (atomic_load(&hints) & which) != 0;
}

/* The lock for something that must not be left out. */
static bool lock_or_lose(void) {
  if (rp_agent_lock()) return true;
  atomic_store_explicit(&lost, true, memory_order_relaxed); /* seen when this thread gives the lock back */
  return false;
}

/* ---- where ---- */

static bool is_default(uint64_t stream) {
  return stream == RP_STREAM_LEGACY || stream == RP_STREAM_PER_THREAD;
}

static struct rp_order_site site_at(uint64_t context, uint64_t stream, uint32_t event_flags) {
  const bool default_stream = is_default(stream);
  if (default_stream && !context) context = rp_driver_current_context();
  return (struct rp_order_site){.context = default_stream ? context : 0,
                                .stream = stream,
                                .thread = rp_ordering_thread(),
                                .flags = (event_flags & RP_EVENT_FLAG_PDL ? RP_ORDER_PROGRAMMATIC : 0) |
                                         (event_flags & RP_EVENT_FLAG_CAPTURED ? RP_ORDER_CAPTURED : 0)};
}

struct rp_order_site rp_ordering_site(uint64_t stream, uint32_t event_flags) {
  return site_at(0, stream, event_flags);
}

/* Captures that nobody told can be found out by asking; driver callbacks tell them all. */
static uint32_t untold_capture(uint64_t stream) {
  return !rp_cupti_active() && rp_driver_stream_capturing(stream) ? RP_EVENT_FLAG_CAPTURED : 0;
}

/* ---- work ---- */

void rp_ordering_want(void) {
  rp_thread.order_wanted = 1;
}

static bool work_matters(const struct rp_cuda_work *work, bool wanted) {
  if (wanted || work->outside || (work->event_flags & RP_LAUNCH_RECORDS)) return true;
  if (!hint(HINT_ACCESSES)) return false;
  if (work->kind != RP_CUDA_LAUNCH) return true;
  return work->stream == RP_STREAM_LEGACY && (rp_thread.order_learned || hint(HINT_LEGACY_LEARNS));
}

static bool next_event(const struct rp_cuda_work *work, unsigned *at, uint64_t *event, bool *begun) {
  return work->driver_config ? rp_driver_config_event(work->driver_config, at, event, begun)
                             : rp_runtime_config_event(work->runtime_config, at, event, begun);
}

/* Under the lock. An event that cannot be followed is never trusted again. */
static void begin_events(const struct rp_cuda_work *work, uint64_t call) {
  unsigned at = 0;
  uint64_t event;
  bool begun;
  while (next_event(work, &at, &event, &begun))
    if (!rp_order_begin_with(order, call, begun ? RP_ORDER_START_RECORD : RP_ORDER_COMPLETION_RECORD, event))
      rp_order_event_foreign(order, event);
}

static enum rp_order_copy copy_kind(const struct rp_cuda_work *work) {
  switch (rp_driver_copy_kind(work->to, work->from)) {
  case RP_CUDA_COPY_TO_HOST:
    return RP_ORDER_COPY_DEVICE_TO_HOST;
  case RP_CUDA_COPY_PINNED_TO_DEVICE:
    return RP_ORDER_COPY_PINNED_TO_DEVICE;
  case RP_CUDA_COPY_UNKNOWN:
    break;
  }
  return RP_ORDER_COPY_UNKNOWN;
}

static uint64_t begin_work(const struct rp_cuda_work *work) {
  const bool wanted = rp_thread.order_wanted != 0;
  rp_thread.order_wanted = 0;
  rp_thread.order_work = 0;
  if (!rp_ordering_on() || !work_matters(work, wanted)) return 0;
  const bool records = (work->event_flags & RP_LAUNCH_RECORDS) != 0;
  uint32_t flags = work->event_flags | untold_capture(work->stream);
  struct rp_order_site site = site_at(work->context, work->stream, flags);
  if (work->outside) site.flags |= RP_ORDER_OUTSIDE;
  rp_thread.order_copy = work->kind == RP_CUDA_COPY_SYNC ? (uint8_t)copy_kind(work) : RP_ORDER_COPY_UNKNOWN;
  if (records || work->outside ? !lock_or_lose() : !rp_agent_lock()) return 0;
  rp_order_call call = rp_order_begin(
      order, work->kind == RP_CUDA_GRAPH_LAUNCH ? RP_ORDER_GRAPH_LAUNCH : RP_ORDER_WORK, &site, work->graph);
  if (records) begin_events(work, call);
  rp_agent_unlock();
  rp_thread.order_work = call;
  if (work->stream == RP_STREAM_LEGACY) rp_thread.order_learned = 0;
  return call | (wanted ? RP_CUDA_WORK_WANTED : 0);
}

static void end_work(const struct rp_cuda_work *work, uint64_t begun, bool succeeded) {
  const rp_order_call call = begun & ~RP_CUDA_WORK_WANTED;
  rp_thread.order_work = 0;
  if (!begun || !rp_ordering_on()) return;
  const bool records = (work->event_flags & RP_LAUNCH_RECORDS) != 0, copies = work->kind == RP_CUDA_COPY_SYNC;
  const enum rp_order_copy copy = copies && succeeded ? copy_kind(work) : RP_ORDER_COPY_UNKNOWN;
  if (records || work->outside ? !lock_or_lose() : !rp_agent_lock()) return;
  if (!succeeded)
    rp_order_cancel(order, call);
  else if (copies)
    (void)rp_order_end_copy(order, call, copy, false);
  else if (work->kind == RP_CUDA_GRAPH_LAUNCH)
    (void)rp_order_end_access(order, call); /* of the executable's next launch */
  else
    rp_order_end(order, call);
  rp_agent_unlock();
  if (copies) rp_thread.order_learned = 1;
}

uint64_t rp_ordering_work_begin(const struct rp_cuda_work *work) {
  rp_thread.order_hooked++;
  return begin_work(work);
}

void rp_ordering_work_end(const struct rp_cuda_work *work, uint64_t begun, bool succeeded) {
  rp_thread.order_hooked--;
  end_work(work, begun, succeeded);
}

rp_order_token rp_ordering_access(const struct rp_order_site *site) {
  const rp_order_call call = rp_thread.order_work;
  const struct rp_order_site *begun = call ? rp_order_call_site(order, call) : NULL;
  /* A thread's first call of the runtime makes a context current: it began in none, and ends in one. */
  const bool same_context = !begun || begun->context || !is_default(site->stream) || !site->context;
  if (!begun || begun->stream != site->stream || !same_context) return rp_order_access_past(order, site);
  rp_thread.order_work = 0;
  if (rp_thread.order_copy == RP_ORDER_COPY_UNKNOWN) return rp_order_end_access(order, call);
  const enum rp_order_copy copy = (enum rp_order_copy)rp_thread.order_copy;
  rp_thread.order_copy = RP_ORDER_COPY_UNKNOWN;
  return rp_order_end_copy(order, call, copy, true);
}

uint64_t rp_ordering_seen_work_begin(const struct rp_cuda_work *work) {
  return rp_thread.order_hooked ? 0 : begin_work(work);
}

void rp_ordering_seen_work_resume(const struct rp_cuda_work *work, uint64_t begun) {
  rp_thread.order_work = begun & ~RP_CUDA_WORK_WANTED;
  rp_thread.order_copy =
      work->kind == RP_CUDA_COPY_SYNC ? (uint8_t)copy_kind(work) : (uint8_t)RP_ORDER_COPY_UNKNOWN;
}

void rp_ordering_seen_work_end(const struct rp_cuda_work *work, uint64_t begun, bool succeeded) {
  if (begun) end_work(work, begun, succeeded);
}

/* ---- calls that order ---- */

static enum rp_order_kind kind_of(const struct rp_cuda_order *call) {
  switch (call->kind) {
  case RP_CUDA_RECORD_CONTEXT:
    return RP_ORDER_UNFOLLOWED_RECORD;
  case RP_CUDA_WAIT:
    return RP_ORDER_WAIT;
  case RP_CUDA_SYNC_STREAM:
    return RP_ORDER_SYNC_STREAM;
  case RP_CUDA_SYNC_EVENT:
    return RP_ORDER_SYNC_EVENT;
  case RP_CUDA_SYNC_CONTEXT:
    return RP_ORDER_SYNC_CONTEXT;
  case RP_CUDA_CAPTURE_BEGIN:
    return RP_ORDER_CAPTURE_BEGIN;
  case RP_CUDA_CAPTURE_END:
    return RP_ORDER_CAPTURE_END;
  default:
    return RP_ORDER_RECORD;
  }
}

static bool is_sync(const struct rp_cuda_order *call) {
  return call->kind == RP_CUDA_SYNC_STREAM || call->kind == RP_CUDA_SYNC_EVENT ||
         call->kind == RP_CUDA_SYNC_CONTEXT;
}

static void count_event(const struct rp_cuda_order *call, enum rp_event_source source) {
  if (!rp_state_is_on()) return;
  struct rp_cuda_op op = {.stream = call->stream, .aux = call->object};
  if (call->kind == RP_CUDA_RECORD) {
    op.kind = RP_EVENT_EVENT_RECORD;
  } else if (call->kind == RP_CUDA_WAIT) {
    op.kind = RP_EVENT_STREAM_WAIT;
  } else {
    op.kind = RP_EVENT_HOST_SYNC;
    op.address = call->object;
    op.aux = call->kind == RP_CUDA_SYNC_CONTEXT ? 0 : call->kind == RP_CUDA_SYNC_STREAM ? 1 : 2;
  }
  rp_agent_op(&op, source);
}

static bool (*enter_gate)(void); /* set once, before the first hook is in place */

void rp_ordering_use_gate(bool (*enter)(void)) {
  enter_gate = enter;
}

/* What somebody is about to use, having found it in the order, is not destroyed before he has. Callbacks wait
 * for nobody. */
static bool lock_for_end(enum rp_event_source source) {
  if (source != RP_SOURCE_INTERPOSER || !enter_gate) return lock_or_lose();
  if (enter_gate()) return true;
  atomic_store_explicit(&lost, true, memory_order_relaxed);
  return false;
}

/* The end of a thing: before the call, for its handle may come back before the call returns. */
static void tell_destroyed(const struct rp_cuda_order *call, enum rp_event_source source) {
  if (!lock_for_end(source)) return;
  switch (call->kind) {
  case RP_CUDA_STREAM_DESTROY:
    rp_order_stream_destroy(order, call->stream);
    break;
  case RP_CUDA_EVENT_DESTROY:
    rp_order_event_destroy(order, call->object);
    break;
  case RP_CUDA_GRAPH_DESTROY:
    rp_order_graph_destroy(order, call->object);
    break;
  case RP_CUDA_CONTEXT_DESTROY:
    rp_order_context_destroy(order, call->context);
    break;
  default:
    break;
  }
  rp_agent_unlock();
}

static void tell_made(const struct rp_cuda_order *call) {
  uint64_t context = call->context ? call->context : rp_driver_current_context();
  if (call->flags & RP_CUDA_ORDER_ELSEWHERE) context = 0;
  if (!call->object || !lock_or_lose()) return;
  if (call->kind == RP_CUDA_STREAM_CREATE)
    rp_order_stream_create(order, context, call->object, (call->flags & RP_CUDA_ORDER_BLOCKING) != 0);
  else if (call->kind == RP_CUDA_EVENT_CREATE)
    rp_order_event_destroy(order, call->object); /* nothing is recorded in it */
  else
    rp_order_event_foreign(order, call->object);
  rp_agent_unlock();
}

/* Without which a promise could be false. */
static bool is_needed(const struct rp_cuda_order *call) {
  if (call->kind == RP_CUDA_WAIT) return hint(HINT_CAPTURES);
  return !is_sync(call) && call->kind != RP_CUDA_CAPTURE_END;
}

/* Whether the call can make order, or must not be left out. */
static bool can_matter(const struct rp_cuda_order *call) {
  if (call->kind == RP_CUDA_CAPTURE_BEGIN || call->kind == RP_CUDA_CAPTURE_END) return true;
  return hint(is_sync(call) ? HINT_ACCESSES : HINT_ACCESSES | HINT_CAPTURES);
}

static uint64_t begin_order(const struct rp_cuda_order *call) {
  const bool on_stream = call->stream != 0;
  const uint32_t flags = on_stream ? untold_capture(call->stream) : 0;
  struct rp_order_site site = on_stream ? site_at(call->context, call->stream, flags)
                                        : (struct rp_order_site){.thread = rp_ordering_thread()};
  if (call->kind == RP_CUDA_SYNC_CONTEXT)
    site.context = call->context ? call->context : rp_driver_current_context();
  if (is_needed(call) ? !lock_or_lose() : !rp_agent_lock()) return 0;
  rp_order_call begun = rp_order_begin(order, kind_of(call), &site, call->object);
  rp_agent_unlock();
  return begun;
}

static _Atomic uint64_t captures_begun;

uint64_t rp_ordering_captures_begun(void) {
  return atomic_load_explicit(&captures_begun, memory_order_acquire);
}

static uint64_t begin_call(const struct rp_cuda_order *call, enum rp_event_source source) {
  uint64_t begun = 0;
  if (call->kind == RP_CUDA_CAPTURE_BEGIN)
    atomic_fetch_add_explicit(&captures_begun, 1, memory_order_acq_rel);
  switch (call->kind) {
  case RP_CUDA_STREAM_DESTROY:
  case RP_CUDA_EVENT_DESTROY:
  case RP_CUDA_GRAPH_DESTROY:
  case RP_CUDA_CONTEXT_DESTROY:
    tell_destroyed(call, source);
    return 0;
  case RP_CUDA_ORDER_NOTHING:
    return 0;
  case RP_CUDA_STREAM_CREATE:
  case RP_CUDA_EVENT_CREATE:
    return BEGUN_PLAIN;
  case RP_CUDA_EVENT_FOREIGN:
    if (call->object) tell_made(call);
    return call->object ? 0 : BEGUN_PLAIN;
  default:
    break;
  }
  if (call->kind == RP_CUDA_RECORD || call->kind == RP_CUDA_WAIT) count_event(call, source);
  if (can_matter(call)) begun = begin_order(call);
  return begun ? begun : BEGUN_PLAIN;
}

/* A record that began when there was nothing to record, and perhaps ended when there was. */
static void end_plain_record(const struct rp_cuda_order *call) {
  if (!hint(HINT_ACCESSES | HINT_CAPTURES) || !lock_or_lose()) return;
  if (rp_order_captures(order)) {
    rp_order_event_unknown(order, call->object);
    rp_order_capture_unsure(order);
  } else {
    rp_order_event_foreign(order, call->object);
  }
  rp_agent_unlock();
}

static void end_order(const struct rp_cuda_order *call, uint64_t begun, bool succeeded) {
  if (is_needed(call) ? !lock_or_lose() : !rp_agent_lock()) return;
  if (succeeded)
    rp_order_end(order, begun);
  else
    rp_order_cancel(order, begun);
  rp_agent_unlock();
}

static void end_call(const struct rp_cuda_order *call, uint64_t begun, bool succeeded,
                     enum rp_event_source source) {
  const bool plain = begun == BEGUN_PLAIN;
  switch (call->kind) {
  case RP_CUDA_STREAM_CREATE:
  case RP_CUDA_EVENT_CREATE:
  case RP_CUDA_EVENT_FOREIGN:
    if (succeeded) tell_made(call);
    return;
  case RP_CUDA_RECORD:
  case RP_CUDA_RECORD_CONTEXT:
    if (plain && succeeded) end_plain_record(call);
    break;
  case RP_CUDA_CAPTURE_END: /* an invalid capture ends with an error */
    succeeded = succeeded || !rp_driver_stream_capturing(call->stream);
    break;
  default:
    break;
  }
  if (!plain) end_order(call, begun, succeeded);
  if (!is_sync(call) || !succeeded) return;
  rp_thread.order_learned = 1;
  if (!(call->flags & RP_CUDA_ORDER_QUERY)) count_event(call, source);
}

void rp_ordering_context_ends(uint64_t context) {
  const struct rp_cuda_order call = {.kind = RP_CUDA_CONTEXT_DESTROY,
                                     .context = context ? context : rp_driver_current_context()};
  if (rp_ordering_on() && call.context) tell_destroyed(&call, RP_SOURCE_INTERPOSER);
}

/* ---- the two sources ---- */

/* What two views of one call have in common. Nobody else's handle of that kind is at work meanwhile. */
static uint64_t object_of(const struct rp_cuda_order *call) {
  if (call->kind == RP_CUDA_CONTEXT_DESTROY) return call->context;
  return call->kind == RP_CUDA_STREAM_CREATE || call->kind == RP_CUDA_EVENT_CREATE ||
                 call->kind == RP_CUDA_EVENT_FOREIGN || call->kind == RP_CUDA_SYNC_CONTEXT
             ? 0
         : call->object ? call->object
                        : call->stream;
}

static bool told_already(const struct rp_cuda_order *call) {
  return rp_thread.order_kind == call->kind && rp_thread.order_object == object_of(call);
}

void rp_ordering_begin(struct rp_ordering_call *call) {
  const bool again = told_already(&call->call);
  call->begun = 0;
  call->outer_kind = rp_thread.order_kind;
  call->outer_object = rp_thread.order_object;
  rp_thread.order_kind = (uint8_t)call->call.kind;
  rp_thread.order_object = object_of(&call->call);
  if (again || rp_thread.busy || !rp_ordering_on()) return;
  uint64_t cost = rp_cost_begin();
  call->begun = begin_call(&call->call, RP_SOURCE_INTERPOSER);
  rp_cost_end(cost);
}

void rp_ordering_end(struct rp_ordering_call *call, bool succeeded) {
  rp_thread.order_kind = call->outer_kind;
  rp_thread.order_object = call->outer_object;
  if (call->begun && rp_ordering_on()) end_call(&call->call, call->begun, succeeded, RP_SOURCE_INTERPOSER);
}

uint64_t rp_ordering_seen_begin(const struct rp_cuda_order *call) {
  return told_already(call) || !rp_ordering_on() ? 0 : begin_call(call, RP_SOURCE_CUPTI);
}

void rp_ordering_seen_end(const struct rp_cuda_order *call, uint64_t begun, bool succeeded) {
  if (begun && rp_ordering_on()) end_call(call, begun, succeeded, RP_SOURCE_CUPTI);
}
