/* Non-blocking communicators: a group returns before it is launched, and says when it has been. */
#include "../sim_test.h"

#pragma GCC diagnostic ignored "-Wstrict-prototypes" /* two declarations in nccl.h */
#define __CUDA_API_VERSION_INTERNAL 1
#include <cuda.h>
#include <nccl.h>
#include <stdbool.h>
#include <time.h>

#include "../rpsim.h"

#define WORDS 1024
#define assert_nccl(call) assert_int_equal(call, ncclSuccess)

static CUcontext context;
static CUstream stream;
static ncclComm_t comm, blocking_comm;
static CUdeviceptr from, to;

static ncclComm_t create(int blocking) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclUniqueId id;
  ncclComm_t made = NULL;
  config.blocking = blocking;
  if (ncclGetUniqueId(&id) || ncclCommInitRankConfig(&made, 1, id, 0, &config)) return NULL;
  return made;
}

static int start(void **state) {
  (void)state;
  if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context) ||
      cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) || cuMemAlloc_v2(&from, WORDS * 4) ||
      cuMemAlloc_v2(&to, WORDS * 4))
    return -1;
  comm = create(0);
  blocking_comm = create(1);
  return comm && blocking_comm ? 0 : -1;
}

static ncclResult_t post(ncclComm_t on) {
  ncclResult_t result = ncclGroupStart();
  if (!result) result = ncclSend((void *)(uintptr_t)from, WORDS, ncclUint32, 0, on, stream);
  if (!result || result == ncclInProgress)
    result = ncclRecv((void *)(uintptr_t)to, WORDS, ncclUint32, 0, on, stream);
  ncclResult_t end = ncclGroupEnd();
  return result && result != ncclInProgress ? result : end;
}

/* Until the group has been launched, for a bounded time. */
static ncclResult_t settle(void) {
  ncclResult_t result = ncclInProgress;
  for (int i = 0; i < 50000 && result == ncclInProgress; i++) {
    assert_nccl(ncclCommGetAsyncError(comm, &result));
    if (result == ncclInProgress) nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
  }
  return result;
}

static uint32_t received(void) {
  uint32_t word = 0;
  assert_cuda(cuMemcpyDtoH_v2(&word, to + 4 * (WORDS - 1), 4));
  return word;
}

static void a_group_settles_later(void **state) {
  (void)state;
  for (uint32_t round = 1; round <= 20; round++) {
    assert_cuda(cuMemsetD32_v2(from, round, WORDS));
    assert_int_equal(post(comm), ncclInProgress);
    assert_nccl(settle());
    assert_cuda(cuStreamSynchronize(stream));
    assert_int_equal(received(), round);
  }
}

static void kinds_do_not_mix(void **state) {
  (void)state;
  uint64_t launches = rpsim_call_count("cuLaunchKernelEx");
  assert_nccl(ncclGroupStart());
  assert_nccl(
      ncclAllReduce((void *)(uintptr_t)from, (void *)(uintptr_t)to, 1, ncclUint32, ncclSum, comm, stream));
  assert_nccl(ncclAllReduce((void *)(uintptr_t)from, (void *)(uintptr_t)to, 1, ncclUint32, ncclSum,
                            blocking_comm, stream));
  assert_int_equal(ncclGroupEnd(), ncclInvalidArgument);
  assert_int_equal(rpsim_call_count("cuLaunchKernelEx"), launches);
  assert_nccl(post(blocking_comm));
  assert_nccl(settle());
}

static void captured_groups_are_launched_at_once(void **state) {
  (void)state;
  CUgraph graph;
  size_t nodes = 0;
  assert_cuda(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  assert_nccl(post(comm));
  assert_cuda(cuStreamEndCapture(stream, &graph));
  assert_cuda(cuGraphGetNodes(graph, NULL, &nodes));
  assert_int_equal(nodes, 1);
  assert_cuda(cuGraphDestroy(graph));
}

/* Late launches: what uses the communicator or the stream as if the group were launched is wrong at times. */
static int mode_late(void) {
  unsigned refused = 0, missed = 0;
  CUevent event;
  if (start(NULL) || cuEventCreate(&event, CU_EVENT_DISABLE_TIMING)) return 2;
  for (uint32_t round = 1; round <= 60; round++) {
    if (cuMemsetD32_v2(from, round, WORDS)) return 3;
    if (post(comm) != ncclInProgress) return 4;
    if (round % 2) {
      ncclResult_t early = post(comm);
      if (early != ncclInProgress && early != ncclInvalidArgument) return 5;
      refused += early == ncclInvalidArgument;
    } else {
      if (cuEventRecord(event, stream) || cuEventSynchronize(event)) return 6;
      missed += received() != round; /* the event was before the launch */
    }
    if (settle() || cuStreamSynchronize(stream) || received() != round) return 7;
  }
  for (uint32_t round = 100; round < 110; round++) {
    if (cuMemsetD32_v2(from, round, WORDS) || post(comm) != ncclInProgress) return 9;
    if (ncclCommDestroy(comm) || cuStreamSynchronize(stream) || received() != round) return 10;
    comm = create(0); /* the end has waited for the launch */
  }
  return refused && missed ? 0 : 8;
}

static void what_does_not_wait_is_wrong(void **state) {
  (void)state;
  char output[1024];
  int status = sim_test_run("late", "RPSIM_SEED", "7", output, sizeof output);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) fail_msg("%d %s", status, output);
}

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], "late") == 0) return mode_late();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_group_settles_later),
      cmocka_unit_test(kinds_do_not_mix),
      cmocka_unit_test(captured_groups_are_launched_at_once),
      cmocka_unit_test(what_does_not_wait_is_wrong),
  };
  return cmocka_run_group_tests(tests, start, NULL);
}
