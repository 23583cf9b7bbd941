/* NCCL: transfers, groups, communicators and registrations, told before the call. While one of these is in
 * the call stack, what NCCL itself launches and copies is not an access of the program. */
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>

#include "agent/abi.h"
#include "agent/agent.h"
#include "agent/enforce.h"
#include "agent/hooks.h"
#include "agent/state.h"

#define HANDLE(pointer) ((uint64_t)(uintptr_t)(pointer))

/* FNV-1a, the same on every rank. */
static uint64_t hash_bytes(uint64_t hash, const void *data, size_t bytes) {
  const unsigned char *at = data;
  for (size_t i = 0; i < bytes; i++)
    hash = (hash ^ at[i]) * 0x100000001b3u;
  return hash ? hash : 1;
}
#define HASH_START 0xcbf29ce484222325u

static enum rp_enforce_outcome outcome_of(int result) {
  return result == RP_ABI_SUCCESS            ? RP_ENFORCE_CALL_LAUNCHED
         : result == RP_ABI_NCCL_IN_PROGRESS ? RP_ENFORCE_CALL_GOES_ON
                                             : RP_ENFORCE_CALL_FAILED;
}

/* Whether buffers share memory, whatever else is off. */
static bool asks(void) {
  return rp_enforce_on() && rp_call_is_programs(RP_CALL_NCCL);
}

/* ---- transfers ---- */

static void tell_transfer(struct rp_enforce_transfer *transfer) {
  rp_agent_transfer(transfer->receive, transfer->comm, transfer->peer, transfer->address, transfer->bytes,
                    &transfer->site, &transfer->seq, &transfer->time_ns);
}

/* False: the call must not be made. */
static bool begin_transfer(struct rp_enforce_transfer *transfer, bool tells, const void *stream) {
  uint64_t started = rp_cost_begin();
  if (tells) rp_hook_look_for_modules();
  transfer->site = rp_agent_site(rp_hook_stream(stream, 0));
  if (tells) tell_transfer(transfer);
  bool allowed = rp_enforce_transfer_before(transfer);
  rp_cost_end(started);
  return allowed;
}

#define TRANSFER(name, pointer, is_receive)                                                                  \
  RP_HOOK(int, name, (pointer buffer, size_t count, int type, int peer, void *comm, void *stream)) {         \
    struct rp_enforce_transfer transfer = {.receive = (is_receive),                                          \
                                           .mode = RP_POOL_READ,                                             \
                                           .peer = peer,                                                     \
                                           .comm = HANDLE(comm),                                             \
                                           .address = HANDLE(buffer),                                        \
                                           .bytes = (uint64_t)count * rp_abi_nccl_type_bytes(type)};         \
    bool tells = rp_call_begin(RP_CALL_NCCL), refused = false;                                               \
    if (tells || asks()) refused = !begin_transfer(&transfer, tells, stream);                                \
    int result = refused ? RP_ABI_NCCL_SYSTEM_ERROR : real_##name(buffer, count, type, peer, comm, stream);  \
    if (!refused) rp_enforce_transfer_after(&transfer, outcome_of(result));                                  \
    rp_call_end(RP_CALL_NCCL);                                                                               \
    return result;                                                                                           \
  }
TRANSFER(ncclRecv, void *, true)
TRANSFER(pncclRecv, void *, true)
TRANSFER(ncclSend, const void *, false)
TRANSFER(pncclSend, const void *, false)

/* ---- groups ---- */

static void tell_group(bool start) {
  uint64_t started = rp_cost_begin();
  rp_agent_group(start);
  rp_cost_end(started);
}

static void begin_group(bool tells) {
  if (rp_thread.group_depth++ != 0) return;
  if (tells) tell_group(true);
  rp_enforce_group_begin();
}

/* Whether this end, about to be called, is that of the outermost group. */
static bool end_group(bool tells) {
  if (rp_thread.group_depth == 0 || --rp_thread.group_depth != 0) return false;
  if (tells) tell_group(false);
  return true;
}

#define GROUP(name, start)                                                                                   \
  RP_HOOK(int, name, (void)) {                                                                               \
    bool tells = rp_call_begin(RP_CALL_NCCL), outermost = false;                                             \
    if (!rp_call_is_programs(RP_CALL_NCCL))                                                                  \
      outermost = false; /* its own */                                                                       \
    else if (start)                                                                                          \
      begin_group(tells);                                                                                    \
    else                                                                                                     \
      outermost = end_group(tells);                                                                          \
    int result = real_##name();                                                                              \
    if (outermost) rp_enforce_group_end(outcome_of(result));                                                 \
    rp_call_end(RP_CALL_NCCL);                                                                               \
    return result;                                                                                           \
  }
GROUP(ncclGroupStart, 1)
GROUP(pncclGroupStart, 1)
GROUP(ncclGroupEnd, 0)
GROUP(pncclGroupEnd, 0)

/* Ends the group without launching any of it; NCCL takes it for a plain end where there is nowhere to write
 * to. */
#define SIMULATE(name)                                                                                       \
  RP_HOOK(int, name, (void *info)) {                                                                         \
    bool tells = rp_call_begin(RP_CALL_NCCL);                                                                \
    bool outermost = rp_call_is_programs(RP_CALL_NCCL) && end_group(tells);                                  \
    int result = real_##name(info);                                                                          \
    if (outermost) rp_enforce_group_end(info ? RP_ENFORCE_CALL_FAILED : outcome_of(result));                 \
    rp_call_end(RP_CALL_NCCL);                                                                               \
    return result;                                                                                           \
  }
SIMULATE(ncclGroupSimulateEnd)
SIMULATE(pncclGroupSimulateEnd)

/* ---- communicators ---- */

static bool succeeded(int result) {
  return result == RP_ABI_SUCCESS || result == RP_ABI_NCCL_IN_PROGRESS;
}

static void tell_comm(void *const *comm, int rank, int ranks, uint64_t hash) {
  if (comm && *comm) rp_agent_comm_init(HANDLE(*comm), rank, ranks, hash);
}

static uint64_t id_hash(const struct rp_abi_unique_id *id) {
  return hash_bytes(HASH_START, id->internal, sizeof id->internal);
}

#define COMM_HOOK(name, parameters, arguments, tell)                                                         \
  RP_HOOK(int, name, parameters) {                                                                           \
    bool ours = rp_call_begin(RP_CALL_NCCL);                                                                 \
    if (ours) rp_hook_look_for_modules();                                                                    \
    int result = real_##name arguments;                                                                      \
    if (ours && succeeded(result)) tell;                                                                     \
    rp_call_end(RP_CALL_NCCL);                                                                               \
    return result;                                                                                           \
  }

#define INIT_RANK(name)                                                                                      \
  COMM_HOOK(name, (void **comm, int ranks, struct rp_abi_unique_id id, int rank), (comm, ranks, id, rank),   \
            tell_comm(comm, rank, ranks, id_hash(&id)))
#define INIT_RANK_CONFIG(name)                                                                               \
  COMM_HOOK(name, (void **comm, int ranks, struct rp_abi_unique_id id, int rank, void *config),              \
            (comm, ranks, id, rank, config), tell_comm(comm, rank, ranks, id_hash(&id)))
#define INIT_SCALABLE(name)                                                                                  \
  COMM_HOOK(name, (void **comm, int ranks, int rank, int ids, struct rp_abi_unique_id *id, void *config),    \
            (comm, ranks, rank, ids, id, config),                                                            \
            tell_comm(comm, rank, ranks, id &&ids > 0 ? id_hash(id) : 0))
INIT_RANK(ncclCommInitRank)
INIT_RANK(pncclCommInitRank)
INIT_RANK_CONFIG(ncclCommInitRankConfig)
INIT_RANK_CONFIG(pncclCommInitRankConfig)
INIT_SCALABLE(ncclCommInitRankScalable)
INIT_SCALABLE(pncclCommInitRankScalable)

/* All ranks live in this process; nothing names the communicator, so its first handle does. */
static void tell_all(void *const *comms, int count) {
  for (int i = 0; comms && i < count; i++)
    tell_comm(&comms[i], i, count, hash_bytes(HASH_START, comms, sizeof comms[0]));
}
COMM_HOOK(ncclCommInitAll, (void **comms, int count, const int *devices), (comms, count, devices),
          tell_all(comms, count))
COMM_HOOK(pncclCommInitAll, (void **comms, int count, const int *devices), (comms, count, devices),
          tell_all(comms, count))

typedef int ask_comm(const void *comm, int *answer);

/* A query of the library that `function` lives in; -1 where it cannot be told (yet). */
static int ask(void *function, const char *name, const void *comm) {
  Dl_info info;
  int answer = -1;
  void *handle = dladdr(function, &info) && info.dli_fname
                     ? dlopen(info.dli_fname, RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD)
                     : NULL;
  if (!handle) return -1;
  ask_comm *query = (ask_comm *)dlsym(handle, name);
  if (query && query(comm, &answer) != RP_ABI_SUCCESS) answer = -1;
  (void)dlclose(handle);
  return answer;
}

/* How often each communicator was split. Beyond PARENTS communicators every split counts as the first. */
#define PARENTS 64
static struct {
  const void *comm;
  uint32_t splits;
} parents[PARENTS]; /* parents_lock */
static pthread_mutex_t parents_lock = PTHREAD_MUTEX_INITIALIZER;

/* How often `parent` was split before; counts this one. */
static uint32_t splits_of(const void *parent) {
  uint32_t splits = 0, place = PARENTS;
  if (!rp_lock(&parents_lock)) return 0;
  for (uint32_t i = 0; i < PARENTS; i++)
    if (!parents[i].comm) place = i;
  for (uint32_t i = 0; i < PARENTS; i++)
    if (parents[i].comm == parent) place = i;
  if (place < PARENTS) {
    parents[place].comm = parent;
    splits = parents[place].splits++;
  }
  rp_unlock(&parents_lock);
  return splits;
}

/* The handle of a destroyed communicator is given to another one, on each rank at another time. */
static void forget_splits(const void *parent) {
  if (!rp_lock(&parents_lock)) return;
  for (uint32_t i = 0; i < PARENTS; i++)
    if (parents[i].comm == parent) {
      parents[i].comm = NULL;
      parents[i].splits = 0;
    }
  rp_unlock(&parents_lock);
}

/* Every rank of the parent calls split, in the same order: parent, colour and how often it was split tell
 * which. */
static void tell_split(int result, void *function, const void *parent, int colour, void *const *comm) {

  if (!comm || !*comm) return; /* this rank takes no part */
  uint64_t parent_hash = rp_agent_comm_hash(HANDLE(parent));
  uint64_t hash = hash_bytes(parent_hash ? parent_hash : HASH_START, &colour, sizeof colour);
  uint32_t number = splits_of(parent);
  hash = hash_bytes(hash, &number, sizeof number);
  bool settled = result == RP_ABI_SUCCESS && rp_thread.group_depth == 0;
  tell_comm(comm, settled ? ask(function, "ncclCommUserRank", *comm) : -1,
            settled ? ask(function, "ncclCommCount", *comm) : -1, hash);
}

#define SPLIT(name)                                                                                          \
  COMM_HOOK(name, (void *parent, int colour, int key, void **comm, void *config),                            \
            (parent, colour, key, comm, config),                                                             \
            tell_split(result, (void *)real_##name, parent, colour, comm))
SPLIT(ncclCommSplit)
SPLIT(pncclCommSplit)

#define COMM_END(name, aborted)                                                                              \
  RP_HOOK(int, name, (void *comm)) {                                                                         \
    bool tells = rp_call_begin(RP_CALL_NCCL);                                                                \
    if (tells && comm) {                                                                                     \
      forget_splits(comm);                                                                                   \
      rp_agent_comm_destroy(HANDLE(comm), aborted);                                                          \
    }                                                                                                        \
    if ((aborted) && comm && (tells || asks())) rp_enforce_interrupt();                                      \
    int result = real_##name(comm);                                                                          \
    if (rp_call_is_programs(RP_CALL_NCCL)) rp_enforce_comm_settled(HANDLE(comm), !(aborted));                \
    rp_call_end(RP_CALL_NCCL);                                                                               \
    return result;                                                                                           \
  }
COMM_END(ncclCommDestroy, false)
COMM_END(pncclCommDestroy, false)
COMM_END(ncclCommAbort, true)
COMM_END(pncclCommAbort, true)

/* How a communicator that does not block says that it has launched what it was given. */
#define ASYNC_ERROR(name)                                                                                    \
  RP_HOOK(int, name, (void *comm, int *state)) {                                                             \
    (void)rp_call_begin(RP_CALL_NCCL);                                                                       \
    int result = real_##name(comm, state);                                                                   \
    bool settled = result == RP_ABI_SUCCESS && state && *state != RP_ABI_NCCL_IN_PROGRESS;                   \
    if (settled && rp_call_is_programs(RP_CALL_NCCL))                                                        \
      rp_enforce_comm_settled(HANDLE(comm), *state == RP_ABI_SUCCESS);                                       \
    rp_call_end(RP_CALL_NCCL);                                                                               \
    return result;                                                                                           \
  }
ASYNC_ERROR(ncclCommGetAsyncError)
ASYNC_ERROR(pncclCommGetAsyncError)

/* ---- registrations: NCCL may keep what lies behind an address ---- */

static bool register_range(const void *buffer, size_t bytes) {
  bool watches = rp_enforce_watches() && rp_call_is_programs(RP_CALL_NCCL);
  return !watches || rp_enforce_flag(HANDLE(buffer), bytes, RP_POOL_FLAG_REGISTERED, RP_EVENT_NONE);
}

#define REGISTER(name, parameters, arguments)                                                                \
  RP_HOOK(int, name, parameters) {                                                                           \
    (void)rp_call_begin(RP_CALL_NCCL);                                                                       \
    int result = register_range(buffer, bytes) ? real_##name arguments : RP_ABI_NCCL_SYSTEM_ERROR;           \
    rp_call_end(RP_CALL_NCCL);                                                                               \
    return result;                                                                                           \
  }
REGISTER(ncclCommRegister, (void *comm, void *buffer, size_t bytes, void **handle),
         (comm, buffer, bytes, handle))
REGISTER(pncclCommRegister, (void *comm, void *buffer, size_t bytes, void **handle),
         (comm, buffer, bytes, handle))
REGISTER(ncclCommWindowRegister, (void *comm, void *buffer, size_t bytes, void **window, int flags),
         (comm, buffer, bytes, window, flags))
REGISTER(pncclCommWindowRegister, (void *comm, void *buffer, size_t bytes, void **window, int flags),
         (comm, buffer, bytes, window, flags))

/* ---- calls that only have to be known as NCCL's ---- */

#define BRACKET(name, parameters, arguments)                                                                 \
  RP_HOOK(int, name, parameters) {                                                                           \
    (void)rp_call_begin(RP_CALL_NCCL);                                                                       \
    int result = real_##name arguments;                                                                      \
    rp_call_end(RP_CALL_NCCL);                                                                               \
    return result;                                                                                           \
  }
BRACKET(ncclCommFinalize, (void *comm), (comm))
BRACKET(pncclCommFinalize, (void *comm), (comm))
BRACKET(ncclCommDeregister, (void *comm, void *handle), (comm, handle))
BRACKET(pncclCommDeregister, (void *comm, void *handle), (comm, handle))
const struct rp_hook rp_hooks_nccl[] = {
    RP_HOOK_ENTRY(ncclRecv),
    RP_HOOK_ENTRY(pncclRecv),
    RP_HOOK_ENTRY(ncclSend),
    RP_HOOK_ENTRY(pncclSend),
    RP_HOOK_ENTRY(ncclGroupStart),
    RP_HOOK_ENTRY(pncclGroupStart),
    RP_HOOK_ENTRY(ncclGroupEnd),
    RP_HOOK_ENTRY(pncclGroupEnd),
    RP_HOOK_ENTRY(ncclGroupSimulateEnd),
    RP_HOOK_ENTRY(pncclGroupSimulateEnd),
    RP_HOOK_ENTRY(ncclCommInitRank),
    RP_HOOK_ENTRY(pncclCommInitRank),
    RP_HOOK_ENTRY(ncclCommInitRankConfig),
    RP_HOOK_ENTRY(pncclCommInitRankConfig),
    RP_HOOK_ENTRY(ncclCommInitRankScalable),
    RP_HOOK_ENTRY(pncclCommInitRankScalable),
    RP_HOOK_ENTRY(ncclCommInitAll),
    RP_HOOK_ENTRY(pncclCommInitAll),
    RP_HOOK_ENTRY(ncclCommSplit),
    RP_HOOK_ENTRY(pncclCommSplit),
    RP_HOOK_ENTRY(ncclCommDestroy),
    RP_HOOK_ENTRY(pncclCommDestroy),
    RP_HOOK_ENTRY(ncclCommAbort),
    RP_HOOK_ENTRY(pncclCommAbort),
    RP_HOOK_ENTRY(ncclCommGetAsyncError),
    RP_HOOK_ENTRY(pncclCommGetAsyncError),
    RP_HOOK_ENTRY(ncclCommFinalize),
    RP_HOOK_ENTRY(pncclCommFinalize),
    RP_HOOK_ENTRY(ncclCommRegister),
    RP_HOOK_ENTRY(pncclCommRegister),
    RP_HOOK_ENTRY(ncclCommWindowRegister),
    RP_HOOK_ENTRY(pncclCommWindowRegister),
    RP_HOOK_ENTRY(ncclCommDeregister),
    RP_HOOK_ENTRY(pncclCommDeregister),
};
const size_t rp_hooks_nccl_count = sizeof rp_hooks_nccl / sizeof rp_hooks_nccl[0];
