/* Memory: what the program allocates and frees, asks about and gives away. */
#include "agent/enforce.h"

#include <string.h>

#include "agent/agent.h"
#include "agent/enforce_internal.h"
#include "agent/ordering.h"
#include "agent/hooks.h"
#include "agent/state.h"
#include "agent/unstoppable.h"

/* ---- allocating ---- */

bool rp_enforce_may_want(uint64_t bytes) {
  return bytes >= rp__enforce.config.min_bytes && !rp__export_seen(bytes);
}

/* Whether receives come by here: only then may memory be left unbacked until one does. */
static bool receives_are_gated(struct rp__device *device) {
  unsigned slots, conflicts, other_conflicts;
  rp_hooks_count("ncclRecv", &slots, &conflicts);
  rp_hooks_count("pncclRecv", &slots, &other_conflicts);
  if (conflicts + other_conflicts > 0) {
    rp__refuse(device, "two_nccl_copies: receives go to two copies of NCCL, and only those of one are seen "
                       "before they are made; load one copy only");
    return false;
  }
  if (rp_hooks_callers("ncclRecv") + rp_hooks_callers("pncclRecv") > 0) return true;
  rp__refuse(device, "receive_not_interposable: no loaded module imports ncclRecv when the buffers are "
                     "allocated (NCCL is linked statically, found by dlsym, or loaded later); use a build "
                     "with the shared libnccl");
  return false;
}

void rp__keep_backed(void) {
  if (!rp_unstoppable_known() || rp__enforce.shadow) return;
  for (int i = 0; i < RP_ENFORCE_DEVICES; i++) {
    struct rp__device *device = &rp__enforce.devices[i];
    if (!device->guard || !device->planned) continue;
    if (device->unstoppable && !rp_guard_memory_due(device->guard)) continue;
    device->unstoppable = true;
    rp__gate_act();
    (void)rp_guard_unstoppable(device->guard); /* what gets no memory now has none without the pool either */
    rp__gate_acted();
  }
}

bool rp_enforce_memory_short(void) {
  uint64_t freed_bytes = 0;
  if (!rp_unstoppable_known() || !rp__gate_enter()) return false;
  for (int i = 0; i < RP_ENFORCE_DEVICES; i++) {
    struct rp__device *device = &rp__enforce.devices[i];
    if (!device->guard || !device->planned) continue;
    rp__gate_act();
    freed_bytes += rp_guard_memory_short(device->guard);
    rp__gate_acted();
  }
  rp__gate_leave();
  return freed_bytes > 0;
}

/* Inside the gate. A guard that was made with a plan follows it as long as all that it needs is there. */
static struct rp__device *device_for(int ordinal, uint64_t bytes) {
  struct rp__device *device = rp__device_get(ordinal);
  if (!device || !rp_guard_wants(device->guard, bytes)) return NULL;
  if (!device->planned) return device;
  return rp__plan() && receives_are_gated(device) ? device : NULL;
}

/* Memory of the driver's virtual memory management belongs to no context, and does not end with one: only
 * what is allocated in the primary context, of which there is one per device and of whose end we are told,
 * may come from there. */
bool rp_enforce_allocate(uint64_t bytes, uint64_t *address) {
  int ordinal = rp_driver_current_device();
  uint64_t context = rp_device_current_context();
  bool primary = ordinal >= 0 && rp_device_is_primary(ordinal, context);
  if (rp__enforce.plan) (void)rp_unstoppable_look();
  if (ordinal < 0 || !rp__gate_enter()) return false;
  if (!primary && ordinal < RP_ENFORCE_DEVICES) rp__enforce.devices[ordinal].other_context = true;
  struct rp__device *device = primary ? device_for(ordinal, bytes) : NULL;
  rp_status status = RP_ERROR_UNAVAILABLE;
  if (device) {
    rp__keep_backed();
    rp__gate_act();
    if (device->context == 0) device->context = context;
    rp_guard_captures(device->guard, rp_ordering_captures_begun());
    status = rp_guard_allocate(device->guard, bytes, address);
    rp__gate_acted();
    if (status == RP_OK) rp_agent_note_memory(RP_EVENT_ALLOC, *address, bytes, ordinal);
  }
  rp__gate_leave();
  return status == RP_OK;
}

void rp_enforce_stand_aside(const char *function, const char *path) {
  const char *slash = strrchr(path, '/');
  if (!rp__gate_enter()) return;
  rp__refuse(NULL,
             "allocator_interposed: %s is that of %.80s, which has to see every allocation; run the job "
             "without it",
             function, slash ? slash + 1 : path);
  rp__gate_leave();
}

/* ---- freeing ---- */

static rp_status prepare_free(uint64_t address, const struct rp_pool_site *site, struct rp__device **device,
                              bool *needs_idle) {
  rp_status found = RP_ERROR_NOT_FOUND;
  for (int i = 0; i < RP_ENFORCE_DEVICES && found == RP_ERROR_NOT_FOUND; i++) {
    *device = &rp__enforce.devices[i];
    if ((*device)->guard) found = rp_guard_free_prepare((*device)->guard, address, site, needs_idle);
  }
  return found;
}

/* As cudaFree does: blocks until the device is done, with the gate open. */
static rp_status wait_for_device(const struct rp__device *device) {
  uint64_t context = rp_device_current_context();
  uint8_t busy = rp_thread.busy;
  rp_thread.busy = 1;
  rp_status status = rp_device_synchronize(device->context);
  if (status == RP_OK && context && context != device->context) status = rp_device_synchronize(context);
  rp_thread.busy = busy;
  return status;
}

/* Inside the gate. */
static void free_now(struct rp__device *device, uint64_t address) {
  rp_agent_note_memory(RP_EVENT_FREE, address, 0, device->ordinal);
  rp__export_end(address);
  rp__gate_act();
  rp__note_waited(device);
  (void)rp_guard_free(device->guard, address);
  rp__gate_acted();
}

enum rp_enforce_freed rp_enforce_free(uint64_t address, uint64_t stream) {
  const struct rp_pool_site site = {.kind = RP_EVENT_FREE, .stream = stream};
  struct rp__device *device;
  for (bool waited = false;; waited = true) {
    bool needs_idle = false;
    if (!rp__gate_enter()) return RP_ENFORCE_NOT_OURS;
    if (!rp__device_of(address) && rp_agent_allocation_known(address)) { /* address of ours, used again */
      rp__gate_leave();
      return RP_ENFORCE_NOT_OURS;
    }
    rp_status found = prepare_free(address, &site, &device, &needs_idle);
    if (found == RP_OK && (waited || !needs_idle)) free_now(device, address);
    rp__gate_leave();
    if (found == RP_ERROR_STATE) return RP_ENFORCE_FREED_TWICE;
    if (found != RP_OK) return RP_ENFORCE_NOT_OURS;
    if (waited || !needs_idle) return RP_ENFORCE_FREED;
    if (wait_for_device(device) != RP_OK) return RP_ENFORCE_NOT_OURS; /* the driver says what is wrong */
  }
}

/* Buffers whose memory the program gave to the driver. What does not fit is kept until the context ends. */
#define LATE_MOST 256
_Atomic bool rp__enforce_late;
static uint64_t late[LATE_MOST]; /* core lock */
static size_t late_count;        /* core lock */

void rp__freed_elsewhere(uint64_t address) {
  const struct rp__device *device = rp__device_of(address);
  uint64_t begin = 0;
  if (!device || !rp_guard_owns(device->guard, address, &begin, NULL, NULL) || begin != address) return;
  for (size_t i = 0; i < late_count; i++)
    if (late[i] == address) return;
  if (late_count < LATE_MOST) late[late_count++] = address;
  atomic_store_explicit(&rp__enforce_late, true, memory_order_relaxed);
}

/* Who frees by such calls gets no more memory that he could not free. */
void rp__enforce_free_late(void) {
  uint64_t addresses[LATE_MOST];
  if (!rp__gate_enter()) return;
  size_t count = late_count;
  memcpy(addresses, late, count * sizeof late[0]);
  late_count = 0;
  atomic_store_explicit(&rp__enforce_late, false, memory_order_relaxed);
  rp__refuse(
      NULL, "freed_elsewhere: shared memory was freed by a call that cannot be hooked (found by dlsym, or of "
            "a library with a runtime of its own), which fails; no more is given out");
  rp__gate_leave();
  for (size_t i = 0; i < count; i++)
    (void)rp_enforce_free(addresses[i], 0);
}

/* ---- questions ---- */

bool rp_enforce_find(uint64_t address, struct rp_enforce_buffer *out) {
  if (!rp__gate_enter()) return false;
  struct rp__device *device = rp__device_of(address);
  if (device) {
    (void)rp_guard_owns(device->guard, address, &out->begin, &out->bytes, &out->backed);
    out->context = device->context;
    out->sibling = rp_guard_backed_example(device->guard);
  }
  rp__gate_leave();
  return device != NULL;
}

void rp_enforce_touch(uint64_t address) {
  const struct rp_guard_access access = {.address = address,
                                         .mode = RP_POOL_UNKNOWN_MODE,
                                         .kind = RP_EVENT_NONE,
                                         .site = rp_agent_site(RP_ORDER_STREAM_LEGACY),
                                         .time_ns = rp_now_ns()};
  bool hit = false;
  if (!rp__gate_enter()) return;
  (void)rp__ask_access(&access, &hit);
  rp__gate_leave();
}

/* ---- what gets away ---- */

struct flagging {
  uint64_t address;
  uint32_t flag;
  struct rp_pool_site site;
};

static rp_status prepare_flag(struct rp_guard *guard, void *what, struct rp_guard_action *action) {
  const struct flagging *f = what;
  return rp_guard_flag_prepare(guard, f->address, f->flag, &f->site, action);
}

static rp_status commit_flag(struct rp_guard *guard, void *what, const struct rp_guard_action *action) {
  const struct flagging *f = what;
  return rp_guard_flag_commit(guard, f->address, f->flag, &f->site, action);
}

bool rp_enforce_flag(uint64_t address, uint64_t bytes, uint32_t flag, uint32_t kind) {
  struct flagging what = {.address = address, .flag = flag, .site = {.kind = kind}};
  const struct rp__question question = {.prepare = prepare_flag,
                                        .commit = commit_flag,
                                        .what = &what,
                                        .site = rp_agent_site(RP_ORDER_STREAM_LEGACY)};
  uint64_t end = bytes > UINT64_MAX - address ? UINT64_MAX : address + bytes;
  bool allowed = true;
  if (!rp__gate_enter()) return true;
  while (allowed && what.address < end) {
    struct rp__device *device = rp__device_of(what.address);
    uint64_t begin, size;
    if (!device || !rp_guard_owns(device->guard, what.address, &begin, &size, NULL)) break;
    allowed = rp__ask(device, &question);
    what.address = begin + size;
  }
  rp__gate_leave();
  return allowed || rp__enforce.shadow;
}

/* ---- contexts and peers ---- */

/* Inside the gate. */
static void release_all(struct rp__device *device, bool alive) {
  rp__exports_end(device);
  rp__gate_act();
  rp_guard_release_all(device->guard);
  rp_agent_unlock();
  rp_device_context_forget(device->context, alive);
  (void)rp_agent_lock();
  device->context = 0;
  rp__gate_acted();
}

static void wait_for_context(uint64_t context) {
  uint8_t busy = rp_thread.busy;
  rp_thread.busy = 1;
  (void)rp_device_synchronize(context);
  rp_thread.busy = busy;
}

void rp_enforce_context_ends(uint64_t context) {
  if (context == 0) context = rp_device_current_context();
  if (context == 0) return;
  wait_for_context(context);
  if (!rp__gate_enter()) return;
  for (int i = 0; i < RP_ENFORCE_DEVICES; i++)
    if (rp__enforce.devices[i].guard && rp__enforce.devices[i].context == context)
      release_all(&rp__enforce.devices[i], true);
  rp__gate_leave();
}

void rp_enforce_primary_ends(int ordinal, bool ended) {
  if (ordinal < 0 || ordinal >= RP_ENFORCE_DEVICES || (ended && rp_device_primary_alive(ordinal))) return;
  struct rp__device *device = &rp__enforce.devices[ordinal];
  if (!rp__gate_enter()) return;
  uint64_t context = device->guard ? device->context : 0;
  rp__gate_leave();
  if (context == 0) return;
  if (!ended) wait_for_context(context);
  if (!rp__gate_enter()) return;
  if (device->context == context) release_all(device, !ended);
  rp__gate_leave();
}

void rp_enforce_peer(int owner) {
  int ordinal = rp_driver_current_device();
  if (owner < 0 || owner >= RP_ENFORCE_DEVICES || ordinal < 0 || ordinal >= RP_ENFORCE_DEVICES) return;
  if (!rp__gate_enter()) return;
  struct rp__device *device = &rp__enforce.devices[owner];
  device->peers |= 1u << ordinal;
  if (device->guard) {
    rp__gate_act();
    rp_agent_unlock();
    (void)rp_device_memory_add_peer(device->memory, ordinal);
    (void)rp_agent_lock();
    rp__gate_acted();
  }
  rp__gate_leave();
}
