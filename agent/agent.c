/* The core: one mutex around the tracker, the range filter that it feeds, communicators, and the rule that an
 * operation seen by two sources counts once. Lock order: this mutex is taken last and nothing is called under
 * it but the tracker. */
#include "agent/agent.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/agent_internal.h"
#include "agent/identity.h"
#include "agent/names.h"
#include "agent/ordering.h"
#include "agent/posts.h"
#include "agent/range_filter.h"
#include "agent/requests.h"
#include "agent/state.h"

#define COMMS_MAX 256

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct rp_tracker *tracker;           /* lock */
static uint64_t next_seq;                    /* lock */
static uint64_t events_lost;                 /* lock */
static struct rp_comm_info comms[COMMS_MAX]; /* lock */
static size_t comm_count;                    /* lock */
static bool comm_ended[COMMS_MAX];           /* lock */
static struct rp_post_table posts;           /* lock */
static bool profiler_expected;               /* lock */
static uint64_t unmatched, matched;          /* lock */
static uint64_t interposed_transfers;        /* lock */
struct rp_range_filter rp__filter;           /* written under lock, read by anybody */
static _Atomic uint64_t first_receive_ns;
static _Atomic uint64_t nested_lost;   /* events from inside the lock, see rp_lock */
static uint32_t own_pid;               /* set once, before any event */
struct rp_agent_listener rp__listener; /* set once, before any event */

/* False (and an event less) where this thread is inside the lock already. */
bool rp__lock_events(void) {
  bool taken = rp_lock(&lock);
  if (!taken) atomic_fetch_add_explicit(&nested_lost, 1, memory_order_relaxed);
  return taken;
}

bool rp_agent_lock(void) {
  return rp_lock(&lock);
}

void rp_agent_unlock(void) {
  rp_ordering_refresh();
  rp_unlock(&lock);
}

int rp_agent_wait(pthread_cond_t *condition, const struct timespec *until) {
  return until ? pthread_cond_timedwait(condition, &lock, until) : pthread_cond_wait(condition, &lock);
}

/* ---- events ---- */

static void range_added(void *context, uint64_t begin, uint64_t end) {
  (void)context;
  rp_filter_add(&rp__filter, begin, end);
}

static void range_removed(void *context, uint64_t begin, uint64_t end) {
  (void)context;
  rp_filter_remove(&rp__filter, begin, end);
}

uint64_t rp__operations_begun(void) {
  return rp_thread_counts_sum(offsetof(struct rp_thread_counts, operations));
}

struct rp_event rp__new_event(enum rp_event_kind kind, enum rp_event_source source) {
  return (struct rp_event){.version = RP_EVENT_VERSION,
                           .kind = (uint16_t)kind,
                           .source = (uint16_t)source,
                           .pid = own_pid,
                           .tid = rp_thread_id(),
                           .peer = -1,
                           .device = -1};
}

/* Under the lock: gives the event its place and hands it over. */
void rp__hand_over(struct rp_event *event) {
  if (!tracker) return;
  event->seq = ++next_seq;
  event->time_ns = rp_now_ns();
  if (rp_tracker_event(tracker, event) != RP_OK) events_lost++;
}

void rp__emit(struct rp_event *event) {
  event->device = rp_driver_current_device();
  event->operations = rp__operations_begun();
  if (!rp__lock_events()) return;
  rp__hand_over(event);
  rp_agent_unlock();
}

uint16_t rp__capture_flag(const struct rp_order_site *site) {
  return site->flags & RP_ORDER_CAPTURED ? RP_EVENT_FLAG_CAPTURED : 0;
}

struct rp_order_site rp_agent_site_of(uint64_t stream, uint32_t event_flags) {
  struct rp_order_site site = rp_ordering_site(stream, event_flags);
  site.context = rp_driver_current_context();
  return site;
}

struct rp_order_site rp_agent_site(uint64_t stream) {
  return rp_agent_site_of(stream, rp_driver_stream_capturing(stream) ? RP_EVENT_FLAG_CAPTURED : 0);
}

void rp_agent_set_listener(const struct rp_agent_listener *to) {
  rp__listener = *to;
}

void rp_agent_allocation_of(uint64_t address, uint64_t *begin, uint64_t *bytes) {
  if (!tracker || rp_tracker_allocation_at(tracker, address, begin, bytes) != RP_OK) *begin = *bytes = 0;
}

bool rp_agent_allocation_known(uint64_t address) {
  uint64_t begin;
  return tracker && rp_tracker_allocation_at(tracker, address, &begin, NULL) == RP_OK && begin == address;
}

rp_status rp_agent_channels(struct rp_guard_channel **channels, size_t *count) {
  struct rp_snapshot snapshot;
  *channels = NULL;
  *count = 0;
  if (!tracker) return RP_OK;
  rp_status status = rp_tracker_snapshot(tracker, &snapshot);
  if (status != RP_OK) return status;
  status = rp__channels_of(&snapshot, channels, count);
  rp_snapshot_fini(&snapshot);
  return status;
}

void rp_agent_note_memory(enum rp_event_kind kind, uint64_t address, uint64_t bytes, int device) {
  struct rp_event event = rp__new_event(kind, RP_SOURCE_INTERPOSER);
  event.address = address;
  event.bytes = bytes;
  event.device = device;
  event.operations = rp__operations_begun();
  rp__hand_over(&event);
}

bool rp__is_allocation(uint64_t address) {
  return rp_tracker_allocation_at(tracker, address, NULL, NULL) == RP_OK;
}

/* ---- for the guards ---- */

void rp_agent_watch(uint64_t begin, uint64_t end) {
  bool taken = rp_lock(&lock);
  rp_filter_add(&rp__filter, begin, end);
  if (taken) rp_agent_unlock();
}

void rp_agent_unwatch(uint64_t begin, uint64_t end) {
  bool taken = rp_lock(&lock);
  rp_filter_remove(&rp__filter, begin, end);
  if (taken) rp_agent_unlock();
}

/* ---- NCCL ---- */

static void note_first_receive(void) {
  uint64_t none = 0;
  if (atomic_load_explicit(&first_receive_ns, memory_order_relaxed) == 0)
    (void)atomic_compare_exchange_strong_explicit(&first_receive_ns, &none, rp_now_ns(), memory_order_relaxed,
                                                  memory_order_relaxed);
}

void rp_agent_transfer(bool receive, uint64_t comm, int32_t peer, uint64_t address, uint64_t bytes,
                       const struct rp_order_site *site, uint64_t *seq, uint64_t *time_ns) {
  struct rp_event event = rp__new_event(receive ? RP_EVENT_RECV : RP_EVENT_SEND, RP_SOURCE_INTERPOSER);
  event.comm = comm;
  event.peer = peer;
  event.address = address;
  event.bytes = bytes;
  event.stream = site->stream;
  event.flags = rp__capture_flag(site);
  event.device = rp_driver_current_device();
  event.operations = rp__operations_begun();
  if (!rp__lock_events()) return;
  interposed_transfers++;
  if (profiler_expected) rp_posts_add(&posts, receive, peer, address);
  if (rp__listener.communicator) rp__listener.communicator(); /* it may have been made before we saw calls */
  rp__hand_over(&event);
  rp_agent_unlock();
  if (seq) *seq = event.seq;
  if (time_ns) *time_ns = event.time_ns;
  if (receive) note_first_receive();
}

void rp_agent_group(bool start) {
  struct rp_event event =
      rp__new_event(start ? RP_EVENT_GROUP_START : RP_EVENT_GROUP_END, RP_SOURCE_INTERPOSER);
  rp__emit(&event);
}

static struct rp_comm_info *find_comm(uint64_t comm) {
  for (size_t i = 0; i < comm_count; i++)
    if (comms[i].comm == comm) return &comms[i];
  return NULL;
}

/* Under the lock: a new entry, or that of a communicator that was destroyed; NULL where all are in use. */
static struct rp_comm_info *comm_place(void) {
  if (comm_count < COMMS_MAX) return &comms[comm_count++];
  for (size_t i = 0; i < COMMS_MAX; i++)
    if (comm_ended[i]) return &comms[i];
  return NULL;
}

/* Under the lock. A destroyed communicator stays listed, for the report names it, while there is room. */
static void remember_comm(const struct rp_comm_info *info) {
  struct rp_comm_info *place = find_comm(info->comm);
  if (!place) place = comm_place();
  if (!place) return;
  *place = *info;
  comm_ended[place - comms] = false;
}

static void introduce_comm(const struct rp_comm_info *info, enum rp_event_source source) {
  struct rp_event event = rp__new_event(RP_EVENT_COMM_INIT, source);
  event.comm = info->comm;
  event.peer = info->rank;
  event.bytes = (uint64_t)(info->ranks < 0 ? 0 : info->ranks);
  event.aux = info->id_hash;
  event.device = rp_driver_current_device();
  event.operations = rp__operations_begun();
  if (!rp__lock_events()) return;
  remember_comm(info);
  if (rp__listener.communicator) rp__listener.communicator();
  rp__hand_over(&event);
  rp_agent_unlock();
}

void rp_agent_comm_init(uint64_t comm, int32_t rank, int32_t ranks, uint64_t id_hash) {
  const struct rp_comm_info info = {.comm = comm, .id_hash = id_hash, .rank = rank, .ranks = ranks};
  introduce_comm(&info, RP_SOURCE_INTERPOSER);
}

void rp_agent_comm_destroy(uint64_t comm, bool aborted) {
  struct rp_event event = rp__new_event(RP_EVENT_COMM_DESTROY, RP_SOURCE_INTERPOSER);
  event.comm = comm;
  event.aux = aborted;
  event.device = rp_driver_current_device();
  event.operations = rp__operations_begun();
  if (!rp__lock_events()) return;
  const struct rp_comm_info *info = find_comm(comm);
  if (info) comm_ended[info - comms] = true;
  rp__hand_over(&event);
  rp_agent_unlock();
}

uint64_t rp_agent_comm_hash(uint64_t comm) {
  if (!rp_lock(&lock)) return 0;
  const struct rp_comm_info *info = find_comm(comm);
  uint64_t hash = info ? info->id_hash : 0;
  rp_agent_unlock();
  return hash;
}

bool rp_agent_same_members(uint64_t comm, uint64_t other, int world_size) {
  const struct rp_comm_info *one = find_comm(comm), *two = find_comm(other);
  if (!one || !two || one->rank < 0 || one->rank != two->rank || one->ranks != two->ranks) return false;
  return one->ranks > 2 || one->ranks == world_size;
}

uint64_t rp_agent_comm_ranks(const void *comm) {
  if (!rp_lock(&lock)) return 1;
  const struct rp_comm_info *info = find_comm((uint64_t)(uintptr_t)comm);
  uint64_t ranks = info && info->ranks > 0 ? (uint64_t)info->ranks : 1;
  rp_agent_unlock();
  return ranks;
}

void rp_agent_expect_profiler(void) {
  if (!rp_lock(&lock)) return;
  profiler_expected = true;
  rp_agent_unlock();
}

/* Whether an interposed call announced this transfer; counts either way. */
static bool announced(bool receive, int32_t peer, uint64_t address, bool *new_comm, uint64_t comm) {
  *new_comm = false;
  if (!rp__lock_events()) return true; /* not known, so not counted twice */
  bool found = rp_posts_take(&posts, receive, peer, address);
  if (found)
    matched++;
  else
    unmatched++;
  *new_comm = !found && !find_comm(comm);
  rp_agent_unlock();
  return found;
}

void rp_agent_profiled_transfer(bool receive, const struct rp_comm_info *comm, int32_t peer, uint64_t address,
                                uint64_t bytes) {
  bool new_comm;
  if (announced(receive, peer, address, &new_comm, comm->comm)) return;
  if (new_comm) introduce_comm(comm, RP_SOURCE_NCCL_PROFILER);
  struct rp_event event = rp__new_event(receive ? RP_EVENT_RECV : RP_EVENT_SEND, RP_SOURCE_NCCL_PROFILER);
  event.flags = RP_EVENT_FLAG_AFTER;
  event.comm = comm->comm;
  event.peer = peer;
  event.address = address;
  event.bytes = bytes;
  event.device = rp_driver_current_device();
  event.operations = rp__operations_begun();
  if (!rp__lock_events()) return;
  rp__hand_over(&event);
  if (receive && rp__listener.ungated_receive) rp__listener.ungated_receive(address);
  rp_agent_unlock();
  if (receive) note_first_receive();
}

/* ---- sink ---- */

/* The order of streams is followed on when events are not taken any more. */
static bool enter_callback(void) {
  if (rp_thread.busy || !(rp_state_is_on() || rp_ordering_on())) return false;
  rp_thread.busy = 1;
  rp_thread.callback_started_ns = rp_cost_begin();
  return true;
}

static void leave_callback(void) {
  rp_cost_end(rp_thread.callback_started_ns);
  rp_thread.busy = 0;
}

bool rp_agent_watched(uint64_t begin, uint64_t end) {
  return rp_filter_overlaps(&rp__filter, begin, end);
}

static void take_label(const char *text) {
  if (!rp_state_is_on()) return;
  struct rp_event event = rp__new_event(RP_EVENT_LABEL, RP_SOURCE_CUPTI);
  uint64_t id = 0xcbf29ce484222325u;
  for (const char *c = text; c && *c; c++)
    id = (id ^ (unsigned char)*c) * 0x100000001b3u;
  event.function = text ? id : 0;
  event.aux = text != NULL;
  event.operations = rp__operations_begun();
  if (!rp__lock_events()) return;
  if (text && !rp_names_known(id, 0)) rp_names_note(id, 0, text);
  rp__hand_over(&event);
  rp_agent_unlock();
}

static const struct rp_cuda_sink sink = {
    .filter = {.low = &rp__filter.low, .high = &rp__filter.high, .overlaps = rp_agent_watched},
    .enter = enter_callback,
    .leave = leave_callback,
    .launch_begun = rp__launch_begun,
    .launch_hit = rp__launch_hit,
    .op = rp__op_from_cupti,
    .work_begin = rp_ordering_seen_work_begin,
    .work_resume = rp_ordering_seen_work_resume,
    .launch_done = rp__launch_done,
    .op_done = rp__op_done,
    .work_end = rp_ordering_seen_work_end,
    .order_begin = rp_ordering_seen_begin,
    .order_end = rp_ordering_seen_end,
    .initialised = rp_request_driver_initialised,
    .code_loaded = rp_request_scan,
    .label = take_label,
};

const struct rp_cuda_sink *rp_agent_sink(void) {
  return &sink;
}

/* ---- life ---- */

rp_status rp_agent_start(const struct rp_config *config) {
  struct rp_process_info process;
  rp_identity_rank(&process);
  const struct rp_tracker_options options = {
      .min_bytes = config->min_bytes, .slack = config->slack, .world_size = process.world_size};
  const struct rp_tracker_sink to_filter = {.range_added = range_added, .range_removed = range_removed};
  own_pid = (uint32_t)getpid();
  rp_status status = rp_ordering_start();
  struct rp_tracker *created = status == RP_OK ? rp_tracker_create(&options, &to_filter) : NULL;
  if (!created) return RP_ERROR_NO_MEMORY;
  if (!rp_lock(&lock)) {
    rp_tracker_destroy(created);
    return RP_ERROR_STATE;
  }
  tracker = created;
  rp_agent_unlock();
  return RP_OK;
}

void rp_agent_finish(void) {
  if (!rp_lock(&lock)) return;
  if (tracker) rp_tracker_finish(tracker, rp_now_ns());
  rp_agent_unlock();
}

const char *rp_agent_function_name(void *context, uint64_t function) {
  (void)context;
  return rp_names_get(function);
}

static void fill_cost(struct rp_agent_cost *cost, const struct rp_snapshot *snapshot) {
  cost->callbacks = rp_thread_counts_sum(offsetof(struct rp_thread_counts, callbacks));
  cost->callback_hits = rp_thread_counts_sum(offsetof(struct rp_thread_counts, hits));
  cost->callbacks_timed = rp_thread_counts_sum(offsetof(struct rp_thread_counts, timed));
  uint64_t timed_ns = rp_thread_counts_sum(offsetof(struct rp_thread_counts, timed_ns));
  double each = cost->callbacks_timed ? (double)timed_ns / (double)cost->callbacks_timed : 0;
  cost->callback_time_ns = (uint64_t)(each * (double)cost->callbacks);
  cost->agent_bytes = snapshot->tracker_bytes + rp_launch_cache_bytes() + rp_names_bytes() +
                      rp_ordering_bytes() + sizeof comms + sizeof posts +
                      3 * sizeof(uint64_t) * atomic_load_explicit(&rp__filter.count, memory_order_relaxed);
}

rp_status rp_agent_collect(struct rp_snapshot *snapshot, struct rp_agent_cost *cost,
                           struct rp_comm_info *out_comms, size_t capacity, size_t *out_count) {
  memset(snapshot, 0, sizeof *snapshot);
  memset(cost, 0, sizeof *cost);
  *out_count = 0;
  if (!rp_lock(&lock)) return RP_ERROR_STATE;
  rp_status status = tracker ? rp_tracker_snapshot(tracker, snapshot) : RP_ERROR_STATE;
  *out_count = comm_count < capacity ? comm_count : capacity;
  memcpy(out_comms, comms, *out_count * sizeof comms[0]);
  cost->events_lost = events_lost + atomic_load_explicit(&nested_lost, memory_order_relaxed);
  rp_agent_unlock();
  fill_cost(cost, snapshot);
  return status;
}

uint64_t rp_agent_first_receive_ns(void) {
  return atomic_load_explicit(&first_receive_ns, memory_order_relaxed);
}

uint64_t rp_agent_interposed_transfers(void) {
  if (!rp_lock(&lock)) return 0;
  uint64_t count = interposed_transfers;
  rp_agent_unlock();
  return count;
}

void rp_agent_profiler_counts(uint64_t *out_unmatched, uint64_t *out_matched) {
  *out_unmatched = *out_matched = 0;
  if (!rp_lock(&lock)) return;
  *out_unmatched = unmatched;
  *out_matched = matched;
  rp_agent_unlock();
}
