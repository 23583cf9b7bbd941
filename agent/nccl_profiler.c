/* The NCCL profiler plugin, versions 1 to 6. It asks for groups and point-to-point operations only and keeps
 * no state per event: every handle it gives out is the same, is never freed, and means nothing when it comes
 * back, however late.
 *
 * NCCL calls it after the launch, so what it says is a cross-check; it becomes an event only where no
 * interposed call announced the transfer. */
#include "agent/nccl_profiler.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/abi.h"
#include "agent/agent.h"
#include "agent/log.h"
#include "agent/state.h"

#define EXPORT __attribute__((visibility("default")))
#define EVENT_P2P 4
#define FUNCTION_SEND 6 /* ncclFunc_t, which version 1 passes as a number */
#define FUNCTION_RECV 7
#define CONTEXTS 256
#define FIRST_COMM_ID 0x7263000000000000u /* no address, so it cannot be the handle of a communicator */
/* NCCL copies the variable into a buffer of this size. */
#define PLUGIN_PATH_MAX 255

/* ---- the descriptors, as NCCL lays them out ---- */

/* Versions 1 to 3. In version 1 `function` and `type` are 8-bit numbers, in 2 and 3 pointers to names. */
struct descriptor_v1 {
  uint8_t type;
  void *parent;
  int rank;
  const char *name;
  uint64_t comm_hash;
  union {
    uint8_t number;
    const char *name;
  } function;
  void *buffer;
  union {
    uint8_t number;
    const char *name;
  } datatype;
  size_t count;
  int peer;
};

/* Version 4; 5 and 6 differ in the width of `type`, which the padding hides on little-endian machines. */
struct descriptor_v4 {
  uint8_t type;
  void *parent;
  int rank;
  const char *function;
  void *buffer;
  const char *datatype;
  size_t count;
  int peer;
  uint8_t channels;
};

struct descriptor_v5 {
  uint64_t type;
  void *parent;
  int rank;
  const char *function;
  void *buffer;
  const char *datatype;
  size_t count;
  int peer;
  uint8_t channels;
  void *parent_group;
};

#define AT(type, member, offset) _Static_assert(offsetof(struct type, member) == (offset), #type "." #member)
AT(descriptor_v1, parent, 8);
AT(descriptor_v1, rank, 16);
AT(descriptor_v1, comm_hash, 32);
AT(descriptor_v1, function, 40);
AT(descriptor_v1, buffer, 48);
AT(descriptor_v1, datatype, 56);
AT(descriptor_v1, count, 64);
AT(descriptor_v1, peer, 72);
AT(descriptor_v4, parent, 8);
AT(descriptor_v4, rank, 16);
AT(descriptor_v4, function, 24);
AT(descriptor_v4, buffer, 32);
AT(descriptor_v4, datatype, 40);
AT(descriptor_v4, count, 48);
AT(descriptor_v4, peer, 56);
AT(descriptor_v4, channels, 60);
AT(descriptor_v5, parent, 8);
AT(descriptor_v5, rank, 16);
AT(descriptor_v5, function, 24);
AT(descriptor_v5, buffer, 32);
AT(descriptor_v5, datatype, 40);
AT(descriptor_v5, count, 48);
AT(descriptor_v5, peer, 56);
AT(descriptor_v5, channels, 60);
AT(descriptor_v5, parent_group, 64);

/* ---- communicators as the plugin knows them ---- */

struct context {
  _Atomic bool taken;
  _Atomic uint64_t id; /* what events call the communicator: places are used again, ids are not */
  _Atomic uint64_t hash;
  _Atomic int32_t rank, ranks;
};

static struct context contexts[CONTEXTS];
static struct context spare; /* for more communicators than there are contexts */
static _Atomic bool loaded;
static _Atomic bool user_has_plugin;
static _Atomic bool path_too_long;
static char event_handle; /* its address is what every event is called */

static struct context *new_context(uint64_t hash, int rank, int ranks) {
  static _Atomic uint64_t made;
  struct context *context = &spare;
  for (size_t i = 0; i < CONTEXTS; i++) {
    bool free_slot = false;
    if (!atomic_compare_exchange_strong(&contexts[i].taken, &free_slot, true)) continue;
    context = &contexts[i];
    break;
  }
  atomic_store(&context->id, FIRST_COMM_ID + atomic_fetch_add(&made, 1));
  atomic_store(&context->hash, hash);
  atomic_store(&context->rank, rank);
  atomic_store(&context->ranks, ranks);
  return context;
}

static int start(void **context, int *mask, uint64_t hash, int rank, int ranks) {
  if (!context || !mask) return RP_ABI_SUCCESS;
  *context = new_context(hash, rank, ranks);
  __atomic_store_n(mask, rp_state_is_on() ? EVENT_P2P : 0,
                   __ATOMIC_RELAXED); /* NCCL reads it at every call */
  if (rp_state_is_on()) {
    atomic_store(&loaded, true);
    rp_agent_expect_profiler();
  }
  return RP_ABI_SUCCESS;
}

static int finalize(void *context) {
  struct context *mine = context;
  if (mine && mine != &spare) atomic_store(&mine->taken, false);
  return RP_ABI_SUCCESS;
}

static int stop_event(void *handle) {
  (void)handle;
  return RP_ABI_SUCCESS;
}

static int record_state(void *handle, int state, void *arguments) {
  (void)handle;
  (void)state;
  (void)arguments;
  return RP_ABI_SUCCESS;
}

/* ---- transfers ---- */

struct transfer {
  bool receive, known;
  int peer, rank;
  uint64_t address, count, hash;
  unsigned element_bytes;
};

static unsigned bytes_of_name(const char *name) {
  static const struct {
    const char *name;
    unsigned bytes;
  } types[] = {{"ncclInt8", 1},    {"ncclUint8", 1},    {"ncclInt32", 4},      {"ncclUint32", 4},
               {"ncclInt64", 8},   {"ncclUint64", 8},   {"ncclFloat16", 2},    {"ncclFloat32", 4},
               {"ncclFloat64", 8}, {"ncclBfloat16", 2}, {"ncclFloat8e4m3", 1}, {"ncclFloat8e5m2", 1}};
  for (size_t i = 0; name && i < sizeof types / sizeof types[0]; i++)
    if (strcmp(types[i].name, name) == 0) return types[i].bytes;
  return 1; /* NCCL has no name for it: its one unnamed type is 8 bits wide */
}

static void name_function(struct transfer *transfer, const char *name) {
  transfer->receive = name && strcmp(name, "Recv") == 0;
  transfer->known = transfer->receive || (name && strcmp(name, "Send") == 0);
}

static void tell(const struct context *context, const struct transfer *transfer) {
  if (!transfer->known || !context) return;
  uint64_t hash = atomic_load(&context->hash);
  int rank = atomic_load(&context->rank);
  const struct rp_comm_info comm = {.comm = atomic_load(&context->id),
                                    .id_hash = hash ? hash : transfer->hash,
                                    .rank = rank >= 0 ? rank : transfer->rank,
                                    .ranks = atomic_load(&context->ranks)};
  uint64_t started = rp_cost_begin();
  rp_agent_profiled_transfer(transfer->receive, &comm, transfer->peer, transfer->address,
                             transfer->count * transfer->element_bytes);
  rp_cost_end(started);
}

static bool wants(void **handle, const void *descriptor, uint64_t type) {
  if (handle) *handle = &event_handle; /* a group needs one too, or NCCL starts no children */
  return descriptor && type == EVENT_P2P && rp_state_is_on();
}

static int start_event_v1(void *context, void **handle, void *descriptor) {
  const struct descriptor_v1 *d = descriptor;
  if (!wants(handle, d, d ? d->type : 0)) return RP_ABI_SUCCESS;
  struct transfer transfer = {.peer = d->peer,
                              .rank = d->rank,
                              .address = (uint64_t)(uintptr_t)d->buffer,
                              .count = d->count,
                              .hash = d->comm_hash,
                              .element_bytes = rp_abi_nccl_type_bytes(d->datatype.number)};
  transfer.receive = d->function.number == FUNCTION_RECV;
  transfer.known = transfer.receive || d->function.number == FUNCTION_SEND;
  tell(context, &transfer);
  return RP_ABI_SUCCESS;
}

static int start_event_v2(void *context, void **handle, void *descriptor) {
  const struct descriptor_v1 *d = descriptor;
  if (!wants(handle, d, d ? d->type : 0)) return RP_ABI_SUCCESS;
  struct transfer transfer = {.peer = d->peer,
                              .rank = d->rank,
                              .address = (uint64_t)(uintptr_t)d->buffer,
                              .count = d->count,
                              .hash = d->comm_hash,
                              .element_bytes = bytes_of_name(d->datatype.name)};
  name_function(&transfer, d->function.name);
  tell(context, &transfer);
  return RP_ABI_SUCCESS;
}

static int start_event_v4(void *context, void **handle, void *descriptor) {
  const struct descriptor_v4 *d = descriptor;
  if (!wants(handle, d, d ? d->type : 0)) return RP_ABI_SUCCESS;
  struct transfer transfer = {.peer = d->peer,
                              .rank = d->rank,
                              .address = (uint64_t)(uintptr_t)d->buffer,
                              .count = d->count,
                              .element_bytes = bytes_of_name(d->datatype)};
  name_function(&transfer, d->function);
  tell(context, &transfer);
  return RP_ABI_SUCCESS;
}

static int start_event_v5(void *context, void **handle, void *descriptor) {
  const struct descriptor_v5 *d = descriptor;
  if (!wants(handle, d, d ? d->type : 0)) return RP_ABI_SUCCESS;
  struct transfer transfer = {.peer = d->peer,
                              .rank = d->rank,
                              .address = (uint64_t)(uintptr_t)d->buffer,
                              .count = d->count,
                              .element_bytes = bytes_of_name(d->datatype)};
  name_function(&transfer, d->function);
  tell(context, &transfer);
  return RP_ABI_SUCCESS;
}

/* ---- the exported tables ---- */

static int init_v1(void **context, int *mask) {
  return start(context, mask, 0, -1, -1);
}

static int init_v4(void **context, int *mask, const char *name, uint64_t hash, int nodes, int ranks, int rank,
                   void *log) {
  (void)name;
  (void)nodes;
  (void)log;
  return start(context, mask, hash, rank, ranks);
}

static int init_v5(void **context, uint64_t id, int *mask, const char *name, int nodes, int ranks, int rank,
                   void *log) {
  (void)name;
  (void)nodes;
  (void)log;
  return start(context, mask, id, rank, ranks);
}

#define TABLE(version, init_type, init_function, start_function)                                             \
  struct table_v##version {                                                                                  \
    const char *name;                                                                                        \
    int(*init) init_type;                                                                                    \
    int (*start_event)(void *context, void **handle, void *descriptor);                                      \
    int (*stop_event)(void *handle);                                                                         \
    int (*record_state)(void *handle, int state, void *arguments);                                           \
    int (*finalize)(void *context);                                                                          \
  };                                                                                                         \
  extern EXPORT struct table_v##version ncclProfiler_v##version;                                             \
  struct table_v##version ncclProfiler_v##version = {"recvpool", init_function, start_function,              \
                                                     stop_event, record_state,  finalize}

#define INIT_V1 (void **, int *)
#define INIT_V4 (void **, int *, const char *, uint64_t, int, int, int, void *)
#define INIT_V5 (void **, uint64_t, int *, const char *, int, int, int, void *)
TABLE(1, INIT_V1, init_v1, start_event_v1);
TABLE(2, INIT_V1, init_v1, start_event_v2);
TABLE(3, INIT_V1, init_v1, start_event_v2);
TABLE(4, INIT_V4, init_v4, start_event_v4);
TABLE(5, INIT_V5, init_v5, start_event_v5);
TABLE(6, INIT_V5, init_v5, start_event_v5);

/* ---- being loaded ---- */

void rp_profiler_announce(void) {
  const char *set = getenv("NCCL_PROFILER_PLUGIN");
  Dl_info info;
  if (!dladdr((void *)&rp_profiler_announce, &info) || !info.dli_fname) return;
  if (set && *set && strcmp(set, info.dli_fname) != 0) {
    atomic_store(&user_has_plugin, true);
    return;
  }
  if (strlen(info.dli_fname) >= PLUGIN_PATH_MAX) {
    atomic_store(&path_too_long, true);
    return;
  }
  if (setenv("NCCL_PROFILER_PLUGIN", info.dli_fname, 0) != 0)
    rp_warn("NCCL_PROFILER_PLUGIN could not be set");
}

bool rp_profiler_active(char *reason, size_t reason_size) {
  if (atomic_load(&loaded)) {
    reason[0] = '\0';
    return true;
  }
  const char *why = "no NCCL communicator has loaded the plugin (NCCL 2.23 or newer does)";
  if (atomic_load(&user_has_plugin))
    why = "NCCL_PROFILER_PLUGIN names another plugin";
  else if (atomic_load(&path_too_long))
    why = "the path of librecvpool.so is too long for NCCL_PROFILER_PLUGIN";
  snprintf(reason, reason_size, "%s", why);
  return false;
}
