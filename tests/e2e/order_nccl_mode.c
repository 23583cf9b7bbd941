/* order_program nccl: NCCL orders the streams of a group with events of its own, by a runtime that nobody can
 * interpose. Where driver callbacks show that, the edges are promised. */
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <stdint.h>

#include "tests/e2e/order_program.h"

#define BYTES ((size_t)64 << 10)

static bool promised(rp_order_token token, void *stream) {
  bool answer;
  probe->before(&token, 1, order_stream(stream), false, &answer);
  return answer;
}

long nccl_mode(void) {
  ncclUniqueId id;
  ncclComm_t comm;
  void *one, *other;
  static struct note note, later;
  check(ncclGetUniqueId(&id), "ncclGetUniqueId");
  check(ncclCommInitRank(&comm, 1, id, 0), "ncclCommInitRank");
  check(calls->stream_create(&one, false, 1), "create stream");
  check(calls->stream_create(&other, false, 1), "create stream");
  struct order_launch launch = {.stream = one, .buffer = watched, .note = &note};
  check(calls->launch(&launch), "launch");
  const rp_order_token token = probe->take();
  long promises = promised(token, one); /* 1, with and without callbacks */
  if (promised(token, other)) broken_promises++;
  check(ncclGroupStart(), "ncclGroupStart");
  check(ncclRecv((char *)plain + BYTES, BYTES, ncclUint8, 0, comm, other), "ncclRecv");
  check(ncclSend(plain, BYTES, ncclUint8, 0, comm, one), "ncclSend");
  check(ncclGroupEnd(), "ncclGroupEnd");
  if (promised(token, other)) promises++;
  later.launches[0].count = promises > 1;
  later.launches[0].must[0].note = &note;
  later.launches[0].must[0].done = 1;
  launch = (struct order_launch){.stream = other, .buffer = watched, .note = &later};
  check(calls->launch(&launch), "launch");
  check(calls->context_sync(), "synchronise");
  check(ncclCommDestroy(comm), "ncclCommDestroy");
  return promises;
}
