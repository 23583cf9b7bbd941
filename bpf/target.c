/* From the records of one process to its tracker: gives events their place in the process's order, tells
 * which words of a launch are receive buffers and which are weights, and keeps communicators and physical
 * memory. */
#include "bpf/target.h"

#include <stdlib.h>
#include <string.h>

#define COMMS_MAX 4096

static void range_added(void *context, uint64_t begin, uint64_t end) {
  struct rp_target *target = context;
  if (rp_address_map_add(&target->ranges, begin, end, 0) == RP_ERROR_NO_MEMORY) target->out_of_memory = true;
}

static void range_removed(void *context, uint64_t begin, uint64_t end) {
  struct rp_target *target = context;
  (void)end;
  (void)rp_address_map_remove(&target->ranges, begin, NULL);
}

struct rp_target *rp_target_create(const struct rp_process *process, uint64_t generation, uint64_t now_ns,
                                   const struct rp_tracker_options *options, bool launches) {
  struct rp_target *target = calloc(1, sizeof *target);
  if (!target) return NULL;
  const struct rp_tracker_sink sink = {target, range_added, range_removed};
  target->tracker = rp_tracker_create(options, &sink);
  if (!target->tracker) {
    free(target);
    return NULL;
  }
  target->process = *process;
  target->generation = generation;
  target->started_ns = now_ns;
  target->launches = launches;
  return target;
}

void rp_target_destroy(struct rp_target *target) {
  if (!target) return;
  rp_tracker_destroy(target->tracker);
  rp_address_map_fini(&target->ranges);
  rp_address_map_fini(&target->handles);
  rp_address_map_fini(&target->reserved);
  free(target->held);
  free(target->comms);
  free(target);
}

bool rp_target_map_library(struct rp_target *target, size_t index) {
  for (size_t i = 0; i < target->library_count; i++)
    if (target->library[i] == index) return false;
  if (target->library_count == RP_TARGET_LIBRARIES) return false;
  target->library[target->library_count++] = (uint32_t)index;
  return true;
}

void rp_target_finish(struct rp_target *target, uint64_t now_ns) {
  if (target->ended_ns) return;
  rp_target_settle(target);
  target->ended_ns = now_ns;
  rp_tracker_finish(target->tracker, now_ns);
}

/* ---- events ---- */

/* Where launches are not seen, what tells the steps of just-in-time buffers apart is the sends between them.
 */
static void hand_over(struct rp_target *target, struct rp_event *event) {
  event->seq = ++target->sequence;
  if (!target->launches) event->operations = target->sends;
  if (rp_tracker_event(target->tracker, event) != RP_OK) target->events_refused++;
}

/* ---- transfers ---- */

static void count_transfer(const struct rp_event *event, uint64_t *sends, uint64_t *receives) {
  *(event->kind == RP_EVENT_SEND ? sends : receives) += 1;
}

static void make_transfer(struct rp_target *target, struct rp_event *event) {
  hand_over(target, event);
  count_transfer(event, &target->sends, &target->receives);
  *(event->kind == RP_EVENT_SEND ? &target->sent_bytes : &target->received_bytes) += event->bytes;
}

/* False where there is no room. */
static bool hold(struct rp_target *target, const struct rp_event *event) {
  if (target->held_count == target->held_capacity) {
    size_t capacity = target->held_capacity ? 2 * target->held_capacity : 16;
    struct rp_event *grown =
        capacity <= RP_TARGET_HELD ? realloc(target->held, capacity * sizeof *grown) : NULL;
    if (!grown) return false;
    target->held = grown;
    target->held_capacity = capacity;
  }
  target->held[target->held_count++] = *event;
  return true;
}

/* The thread's group has ended: NCCL makes all of its transfers, or none. */
static void end_group(struct rp_target *target, uint32_t tid, bool failed) {
  size_t left = 0;
  for (size_t i = 0; i < target->held_count; i++) {
    struct rp_event event = target->held[i];
    if (event.tid != tid)
      target->held[left++] = event;
    else if (failed)
      count_transfer(&event, &target->failed_sends, &target->failed_receives);
    else
      make_transfer(target, &event);
  }
  target->held_count = left;
}

void rp_target_settle(struct rp_target *target) {
  for (size_t i = 0; i < target->held_count; i++)
    count_transfer(&target->held[i], &target->open_sends, &target->open_receives);
  target->held_count = 0;
}

/* ---- communicators ---- */

static struct rp_target_comm *find_comm(struct rp_target *target, uint64_t comm) {
  for (size_t i = 0; i < target->comm_count; i++)
    if (target->comms[i].comm == comm) return &target->comms[i];
  return NULL;
}

static struct rp_target_comm *new_comm(struct rp_target *target) {
  for (size_t i = 0; target->comm_count >= COMMS_MAX && i < target->comm_count; i++)
    if (target->comms[i].ended) return &target->comms[i];
  if (target->comm_count >= COMMS_MAX) return NULL;
  if (target->comm_count == target->comm_capacity) {
    size_t capacity = target->comm_capacity ? 2 * target->comm_capacity : 8;
    struct rp_target_comm *grown = realloc(target->comms, capacity * sizeof *grown);
    if (!grown) return NULL;
    target->comms = grown;
    target->comm_capacity = capacity;
  }
  return &target->comms[target->comm_count++];
}

static void note_comm(struct rp_target *target, const struct rp_event *event) {
  struct rp_target_comm *comm = find_comm(target, event->comm);
  if (!comm) comm = new_comm(target);
  if (!comm) {
    target->out_of_memory = true;
    return;
  }
  *comm = (struct rp_target_comm){.comm = event->comm,
                                  .id_hash = event->aux,
                                  .rank = event->peer,
                                  .ranks = event->bytes ? (int32_t)event->bytes : -1};
}

/* A communicator that was made before observation began is known from its first transfer on. */
static void meet_comm(struct rp_target *target, uint64_t comm) {
  if (comm && !find_comm(target, comm)) note_comm(target, &(struct rp_event){.comm = comm, .peer = -1});
}

static uint64_t hash_bytes(uint64_t hash, const void *data, size_t bytes) {
  const unsigned char *at = data;
  for (size_t i = 0; i < bytes; i++)
    hash = (hash ^ at[i]) * 0x100000001b3u;
  return hash ? hash : 1;
}

/* Every rank splits the parent in the same order: parent, colour and how often it was split tell which
 * communicator comes out. The injected library makes the same hash. */
static uint64_t split_hash(struct rp_target *target, uint64_t parent_handle, int32_t colour) {
  meet_comm(target, parent_handle);
  struct rp_target_comm *parent = find_comm(target, parent_handle);
  uint64_t hash = parent && parent->id_hash ? parent->id_hash : 0xcbf29ce484222325u;
  uint32_t number = parent ? parent->splits++ : 0;
  hash = hash_bytes(hash, &colour, sizeof colour);
  return hash_bytes(hash, &number, sizeof number);
}

static void end_comm(struct rp_target *target, uint64_t handle) {
  struct rp_target_comm *comm = find_comm(target, handle);
  if (!comm) return;
  comm->ended = true;
  comm->splits = 0;
}

/* ---- physical memory ---- */

static void note_moment(struct rp_target_agent *agent, uint64_t time_ns) {
  if (agent->physical_bytes > agent->physical_peak_bytes) agent->physical_peak_bytes = agent->physical_bytes;
  if (agent->reserved_bytes > agent->reserved_peak_bytes) agent->reserved_peak_bytes = agent->reserved_bytes;
  agent->moments[agent->moment_count++ % RP_TARGET_MOMENTS] =
      (struct rp_target_moment){time_ns, agent->physical_bytes, agent->reserved_bytes};
}

static bool is_agents(const struct rp_target *target, uint64_t caller) {
  return caller >= target->agent.begin && caller < target->agent.end;
}

static bool forget_handle(struct rp_target *target, const struct rp_event *event) {
  struct rp_range forgotten;
  if (rp_address_map_remove(&target->handles, event->aux, &forgotten) != RP_OK) return false;
  uint64_t bytes = forgotten.value >> 1;
  target->physical.released_bytes += bytes;
  target->physical.live_bytes -= bytes;
  if (forgotten.value & 1) {
    target->agent.physical_bytes -= bytes;
    note_moment(&target->agent, event->time_ns);
  }
  return true;
}

static void take_create(struct rp_target *target, const struct rp_event *event) {
  struct rp_target_physical *physical = &target->physical;
  bool agents = is_agents(target, event->function);
  (void)forget_handle(target, event); /* its release was not seen */
  if (rp_address_map_add(&target->handles, event->aux, event->aux + 1, event->bytes << 1 | agents) != RP_OK) {
    target->out_of_memory = true;
    return;
  }
  physical->created_bytes += event->bytes;
  physical->live_bytes += event->bytes;
  if (physical->live_bytes > physical->peak_bytes) physical->peak_bytes = physical->live_bytes;
  if (!agents) return;
  target->agent.physical_bytes += event->bytes;
  note_moment(&target->agent, event->time_ns);
}

static void take_release(struct rp_target *target, const struct rp_event *event) {
  if (!forget_handle(target, event)) target->physical.unknown_releases++;
}

static void take_unreserve(struct rp_target *target, const struct rp_event *event) {
  struct rp_range forgotten;
  if (rp_address_map_remove(&target->reserved, event->aux, &forgotten) != RP_OK) return;
  target->agent.reserved_bytes -= forgotten.end - forgotten.begin;
  note_moment(&target->agent, event->time_ns);
}

static void take_reserve(struct rp_target *target, const struct rp_event *event) {
  if (!is_agents(target, event->function)) return;
  take_unreserve(target, event);
  if (rp_address_map_add(&target->reserved, event->aux, event->aux + event->bytes, 0) != RP_OK) {
    target->out_of_memory = true;
    return;
  }
  target->agent.reserved_bytes += event->bytes;
  note_moment(&target->agent, event->time_ns);
}

/* ---- launches ---- */

static bool is_receive_buffer(const struct rp_target *target, uint64_t address) {
  return rp_address_map_find(&target->ranges, address) != NULL;
}

static bool named_before(const struct rp_probe_launch *launch, uint32_t index) {
  for (uint32_t i = 0; i < index; i++)
    if (launch->word[i] == launch->word[index]) return true;
  return false;
}

static void add_companions(struct rp_target *target, const struct rp_probe_launch *launch,
                           struct rp_event *event) {
  for (uint32_t i = 0; i < launch->count; i++) {
    uint64_t value = launch->word[i];
    if (value == event->address || rp_tracker_allocation_at(target->tracker, value, NULL, NULL) != RP_OK)
      continue;
    if (event->companion_count < RP_EVENT_COMPANIONS)
      event->companion[event->companion_count++] = value;
    else
      event->companions_dropped++;
  }
}

static void take_launch(struct rp_target *target, const struct rp_probe_launch *launch) {
  bool any = false;
  if (launch->count > RP_PROBE_WORDS) return;
  target->words_lost += launch->lost;
  for (uint32_t i = 0; i < launch->count; i++) {
    if (!is_receive_buffer(target, launch->word[i]) || named_before(launch, i)) continue;
    struct rp_event event = launch->head.event;
    event.address = launch->word[i];
    event.arg_offset = 8u * launch->place[i];
    if (any) event.flags |= RP_EVENT_FLAG_INPLACE;
    add_companions(target, launch, &event);
    hand_over(target, &event);
    any = true;
  }
  target->launches_seen += any;
}

/* ---- all ---- */

/* Attaching makes a pause of its own. */
#define SETTLING_NS 200000000u
/* Where pauses tell nothing, looking for one that does comes to an end. */
#define STALLS_MAX 3u

/* Whoever joins in the middle of a step cannot tell from one call to the next where steps begin, and so not
 * which peer comes before and which after: the first call of a step tells. Between two steps the optimizer
 * runs and no transfer is posted; observation begins anew after the longest pause, until two steps have gone
 * by without a longer one. A pause more than twice as long as all in the step after it was a stall (a
 * debugger, a checkpoint, a slow peer), and may have been anywhere: then the longest since tells. */
static void look_for_step(struct rp_target *target, const struct rp_event *event) {
  bool later = target->last_call_ns && event->time_ns > target->last_call_ns; /* threads' calls overlap */
  uint64_t pause_ns = later ? event->time_ns - target->last_call_ns : 0;
  uint64_t since_ns = target->longest_since_ns;
  struct rp_snapshot snapshot;
  if (later || !target->last_call_ns) target->last_call_ns = event->time_ns;
  if (event->time_ns < target->started_ns + SETTLING_NS) return;
  if (pause_ns > since_ns) target->longest_since_ns = pause_ns;
  bool longer = pause_ns > target->longest_pause_ns;
  bool stalled = target->stalls < STALLS_MAX && target->longest_pause_ns / 2 > target->longest_since_ns &&
                 pause_ns > since_ns - since_ns / 4;
  if ((!longer && !stalled) || rp_tracker_snapshot(target->tracker, &snapshot) != RP_OK) return;
  if (longer ? snapshot.steps_complete < 2 : snapshot.steps_complete > 0) {
    target->longest_pause_ns = pause_ns;
    target->longest_since_ns = 0;
    target->stalls += !longer;
    rp_tracker_restart(target->tracker);
  }
  rp_snapshot_fini(&snapshot);
}

static bool is_transfer_call(const struct rp_event *event) {
  return event->kind >= RP_EVENT_RECV && event->kind <= RP_EVENT_GROUP_END;
}

static void take_event(struct rp_target *target, const struct rp_probe_record *record) {
  struct rp_event event = {0};
  memcpy(&event, &record->event, offsetof(struct rp_event, companion)); /* all that a short record has */
  switch (event.kind) {
  case RP_EVENT_COMM_INIT:
    if (record->what == RP_PROBE_WHAT_SPLIT) {
      event.aux = split_hash(target, event.function, (int32_t)event.aux);
      event.function = 0;
    }
    note_comm(target, &event);
    break;
  case RP_EVENT_COMM_DESTROY:
    end_comm(target, event.comm);
    break;
  case RP_EVENT_RECV:
  case RP_EVENT_SEND:
    meet_comm(target, event.comm);
    break;
  }
  bool copies = event.kind >= RP_EVENT_COPY_READ && event.kind <= RP_EVENT_MEMSET;
  if (copies && !rp_address_map_overlap(&target->ranges, event.address, event.address + event.bytes)) return;
  if (target->joined_late && is_transfer_call(&event)) look_for_step(target, &event);
  if (event.kind == RP_EVENT_GROUP_START || event.kind == RP_EVENT_GROUP_END)
    end_group(target, event.tid, event.kind == RP_EVENT_GROUP_END && record->status);
  if (event.kind != RP_EVENT_RECV && event.kind != RP_EVENT_SEND)
    hand_over(target, &event);
  else if (!record->status || !hold(target, &event))
    make_transfer(target, &event);
}

void rp_target_take(struct rp_target *target, const struct rp_probe_record *record) {
  switch (record->what) {
  case RP_PROBE_WHAT_LAUNCH:
    take_launch(target, (const struct rp_probe_launch *)record);
    break;
  case RP_PROBE_WHAT_FAILED:
    count_transfer(&record->event, &target->failed_sends, &target->failed_receives);
    break;
  case RP_PROBE_WHAT_CREATE:
    take_create(target, &record->event);
    break;
  case RP_PROBE_WHAT_RELEASE:
    take_release(target, &record->event);
    break;
  case RP_PROBE_WHAT_RESERVE:
    take_reserve(target, &record->event);
    break;
  case RP_PROBE_WHAT_UNRESERVE:
    take_unreserve(target, &record->event);
    break;
  default:
    take_event(target, record);
    break;
  }
}
