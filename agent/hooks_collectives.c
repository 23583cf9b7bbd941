/* NCCL's collectives: none of them receives what a pipeline stage waits for, but what they read and write can
 * lie in a buffer that shares memory, or has none yet. */
#include <stddef.h>
#include <stdint.h>

#include "agent/abi.h"
#include "agent/agent.h"
#include "agent/enforce.h"
#include "agent/hooks.h"
#include "agent/state.h"

#define HANDLE(pointer) ((uint64_t)(uintptr_t)(pointer))

/* What one call reads, and what it writes. */
struct collective {
  struct rp_enforce_transfer uses[2];
  size_t count;
};

static void add_use(struct collective *call, enum rp_pool_access_mode mode, const void *buffer,
                    uint64_t bytes) {
  uint64_t address = HANDLE(buffer);
  if (!address || !bytes || !rp_agent_watched(address, address + bytes)) return;
  call->uses[call->count++] =
      (struct rp_enforce_transfer){.mode = mode, .peer = -1, .address = address, .bytes = bytes};
}

/* False: the call must not be made. `read` and `written` count elements. */
static bool begin(struct collective *call, const void *from, uint64_t read, void *to, uint64_t written,
                  int type, const void *comm, const void *stream) {
  bool tells = rp_call_begin(RP_CALL_NCCL), allowed = true;
  unsigned element_bytes = rp_abi_nccl_type_bytes(type);
  call->count = 0;
  if (!tells && !(rp_enforce_on() && rp_call_is_programs(RP_CALL_NCCL))) return true;
  add_use(call, RP_POOL_READ, from, read * element_bytes);
  add_use(call, RP_POOL_WRITE, to, written * element_bytes);
  for (size_t i = 0; i < call->count && allowed; i++) {
    call->uses[i].comm = HANDLE(comm);
    call->uses[i].site = rp_agent_site(rp_hook_stream(stream, 0));
    call->uses[i].time_ns = rp_now_ns();
    allowed = rp_enforce_transfer_before(&call->uses[i]);
    if (!allowed) call->count = i;
  }
  return allowed;
}

static void end(struct collective *call, int result) {
  for (size_t i = 0; i < call->count; i++)
    rp_enforce_transfer_after(&call->uses[i], result == RP_ABI_SUCCESS            ? RP_ENFORCE_CALL_LAUNCHED
                                              : result == RP_ABI_NCCL_IN_PROGRESS ? RP_ENFORCE_CALL_GOES_ON
                                                                                  : RP_ENFORCE_CALL_FAILED);
  rp_call_end(RP_CALL_NCCL);
}

#define COLLECTIVE(name, parameters, arguments, from, read, to, written)                                     \
  RP_HOOK(int, name, parameters) {                                                                           \
    struct collective call;                                                                                  \
    bool allowed = begin(&call, (from), (read), (to), (written), type, comm, stream);                        \
    int result = allowed ? real_##name arguments : RP_ABI_NCCL_SYSTEM_ERROR;                                 \
    end(&call, result);                                                                                      \
    return result;                                                                                           \
  }
#define BOTH(make, name) make(nccl##name) make(pnccl##name)

#define ALL_REDUCE(name)                                                                                     \
  COLLECTIVE(name,                                                                                           \
             (const void *from, void *to, size_t count, int type, int operation, void *comm, void *stream),  \
             (from, to, count, type, operation, comm, stream), from, count, to, count)
#define REDUCE(name)                                                                                         \
  COLLECTIVE(name,                                                                                           \
             (const void *from, void *to, size_t count, int type, int operation, int root, void *comm,       \
              void *stream),                                                                                 \
             (from, to, count, type, operation, root, comm, stream), from, count, to, count)
#define REDUCE_SCATTER(name)                                                                                 \
  COLLECTIVE(                                                                                                \
      name, (const void *from, void *to, size_t count, int type, int operation, void *comm, void *stream),   \
      (from, to, count, type, operation, comm, stream), from, count *rp_agent_comm_ranks(comm), to, count)
#define ALL_GATHER(name)                                                                                     \
  COLLECTIVE(name, (const void *from, void *to, size_t count, int type, void *comm, void *stream),           \
             (from, to, count, type, comm, stream), from, count, to, count *rp_agent_comm_ranks(comm))
#define ALL_TO_ALL(name)                                                                                     \
  COLLECTIVE(name, (const void *from, void *to, size_t count, int type, void *comm, void *stream),           \
             (from, to, count, type, comm, stream), from, count *rp_agent_comm_ranks(comm), to,              \
             count *rp_agent_comm_ranks(comm))
#define ROOTED(name, read, written)                                                                          \
  COLLECTIVE(name, (const void *from, void *to, size_t count, int type, int root, void *comm, void *stream), \
             (from, to, count, type, root, comm, stream), from, read, to, written)
#define BROADCAST(name) ROOTED(name, count, count)
#define GATHER(name) ROOTED(name, count, count *rp_agent_comm_ranks(comm))
#define SCATTER(name) ROOTED(name, count *rp_agent_comm_ranks(comm), count)
#define BCAST(name)                                                                                          \
  COLLECTIVE(name, (void *buffer, size_t count, int type, int root, void *comm, void *stream),               \
             (buffer, count, type, root, comm, stream), NULL, 0, buffer, count)

BOTH(ALL_REDUCE, AllReduce)
BOTH(REDUCE, Reduce)
BOTH(REDUCE_SCATTER, ReduceScatter)
BOTH(ALL_GATHER, AllGather)
BOTH(ALL_TO_ALL, AlltoAll)
BOTH(BROADCAST, Broadcast)
BOTH(GATHER, Gather)
BOTH(SCATTER, Scatter)
BOTH(BCAST, Bcast)

#define ENTRIES(name) RP_HOOK_ENTRY(nccl##name), RP_HOOK_ENTRY(pnccl##name)
const struct rp_hook rp_hooks_collectives[] = {
    ENTRIES(AllReduce), ENTRIES(Reduce), ENTRIES(ReduceScatter), ENTRIES(AllGather), ENTRIES(AlltoAll),
    ENTRIES(Broadcast), ENTRIES(Gather), ENTRIES(Scatter),       ENTRIES(Bcast),
};
const size_t rp_hooks_collectives_count = sizeof rp_hooks_collectives / sizeof rp_hooks_collectives[0];
