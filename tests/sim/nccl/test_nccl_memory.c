/* Two addresses on one physical memory, through kernels, copies and transfers; what happens when what backs
 * an address changes under work that runs, or under what NCCL has registered. Nothing of recvpool is in here:
 * this is what pooling has to live with. What ends a process or its device runs in this program started
 * again. */
#include "../sim_test.h"

#pragma GCC diagnostic ignored "-Wstrict-prototypes" /* two declarations in nccl.h */
#define __CUDA_API_VERSION_INTERNAL 1
#include <cuda.h>
#include <nccl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>

#include "../rpsim.h"

#define GRANULE ((size_t)2 << 20)
#define BYTES ((size_t)64 << 10) /* of a mapping that are used */
#define WORDS (BYTES / 4)

/* ---- kernels: wait for the test; fill slowly from the first word to the last; compare ---- */

static void gate_body(void *const *params, const struct rpsim_dims *dims) {
  (void)dims;
  _Atomic int *gate = *(_Atomic int *const *)params[0];
  atomic_fetch_or(gate, 1); /* somebody is here */
  while (!(atomic_load(gate) & 2))
    nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
}

static void fill_body(void *const *params, const struct rpsim_dims *dims) {
  (void)dims;
  uint32_t *data = *(uint32_t *const *)params[0];
  uint64_t value = *(const uint64_t *)params[1];
  for (size_t i = 0; i < WORDS; i++)
    data[i] = (uint32_t)value;
}

static void gated_fill_body(void *const *params, const struct rpsim_dims *dims) {
  gate_body(params + 2, dims);
  fill_body(params, dims);
}

static const struct rpsim_param three_words[] = {{0, 8}, {8, 8}, {16, 8}};
static const struct rpsim_kernel kernels[] = {{"gate", gate_body, 1, three_words},
                                              {"fill", fill_body, 2, three_words},
                                              {"gated_fill", gated_fill_body, 3, three_words}};

static void launch(const char *name, CUstream stream, const void *a, uint64_t b, const void *c) {
  static const uint32_t image[16] = {0xba55ed50};
  CUmodule module;
  CUfunction function;
  const void *first = strcmp(name, "gate") == 0 ? c : a;
  void *params[] = {&first, &b, &c};
  assert_cuda(cuModuleLoadData(&module, image));
  assert_cuda(cuModuleGetFunction(&function, module, name));
  assert_cuda(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
}

static void await(_Atomic int *gate) {
  while (!(atomic_load(gate) & 1))
    nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
}

/* ---- fixture: one rank by itself ---- */

static CUcontext context;
static ncclComm_t comm;
static CUstream stream, other;

static int start(void **state) {
  (void)state;
  if (rpsim_register_kernels(kernels, 3) || cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) ||
      cuCtxSetCurrent(context))
    return -1;
  if (cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) || cuStreamCreate(&other, CU_STREAM_NON_BLOCKING))
    return -1;
  ncclUniqueId id;
  if (ncclGetUniqueId(&id) || ncclCommInitRank(&comm, 1, id, 0)) return -1;
  return 0;
}

static int stop(void **state) {
  (void)state;
  return ncclCommDestroy(comm) == ncclSuccess ? 0 : -1;
}

static CUmemGenericAllocationHandle create(void) {
  const CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                          .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
  CUmemGenericAllocationHandle handle;
  assert_cuda(cuMemCreate(&handle, GRANULE, &properties, 0));
  return handle;
}

static CUdeviceptr reserve(void) {
  CUdeviceptr address;
  assert_cuda(cuMemAddressReserve(&address, GRANULE, 0, 0, 0));
  return address;
}

static void map(CUdeviceptr address, CUmemGenericAllocationHandle handle) {
  const CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  assert_cuda(cuMemMap(address, GRANULE, 0, handle, 0));
  assert_cuda(cuMemSetAccess(address, GRANULE, &access, 1));
}

static void rebind(CUdeviceptr address, CUmemGenericAllocationHandle handle) {
  assert_cuda(cuMemUnmap(address, GRANULE));
  map(address, handle);
}

static void drop(CUdeviceptr address) {
  assert_cuda(cuMemUnmap(address, GRANULE));
  assert_cuda(cuMemAddressFree(address, GRANULE));
}

/* Two addresses on one handle, which lives as long as they are mapped. */
static void make_alias(CUdeviceptr addresses[2]) {
  CUmemGenericAllocationHandle handle = create();
  for (int i = 0; i < 2; i++)
    map(addresses[i] = reserve(), handle);
  assert_cuda(cuMemRelease(handle));
}

/* The word that all of the used memory is filled with; 0 if it is not one. */
static uint32_t filled_with(CUdeviceptr address) {
  uint32_t *copy = malloc(BYTES), value;
  assert_non_null(copy);
  assert_cuda(cuMemcpyDtoH_v2(copy, address, BYTES));
  value = copy[0];
  for (size_t i = 0; i < WORDS; i++)
    if (copy[i] != value) value = 0;
  free(copy);
  return value;
}

static void *pointer(CUdeviceptr address) {
  return (void *)(uintptr_t)address;
}

/* A transfer from `from` to `to` by this rank to itself. */
static void transfer(CUdeviceptr to, CUdeviceptr from, CUstream on) {
  assert_int_equal(ncclGroupStart(), ncclSuccess);
  assert_int_equal(ncclSend(pointer(from), BYTES, ncclUint8, 0, comm, on), ncclSuccess);
  assert_int_equal(ncclRecv(pointer(to), BYTES, ncclUint8, 0, comm, on), ncclSuccess);
  assert_int_equal(ncclGroupEnd(), ncclSuccess);
}

static void wait_for(CUstream waiting, CUstream before) {
  CUevent event;
  assert_cuda(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  assert_cuda(cuEventRecord(event, before));
  assert_cuda(cuStreamWaitEvent(waiting, event, 0));
  assert_cuda(cuEventDestroy_v2(event));
}

/* ---- aliases ---- */

/* Each writes through one address and is read through the other: kernel, memset, copy, transfer. */
static void everything_goes_through_aliases(void **state) {
  (void)state;
  CUdeviceptr alias[2], source, sink;
  struct rpsim_backing one, two;
  uint64_t before = rpsim_physical_bytes(0);
  make_alias(alias);
  assert_int_equal(rpsim_physical_bytes(0) - before, GRANULE);
  assert_int_equal(rpsim_backing_of(alias[0] + 5, &one), 0);
  assert_int_equal(rpsim_backing_of(alias[1] + 5, &two), 0);
  assert_true(one.block == two.block && one.begin == alias[0] && two.end == alias[1] + GRANULE);
  assert_cuda(cuMemAlloc_v2(&source, BYTES));
  assert_cuda(cuMemAlloc_v2(&sink, BYTES));
  launch("fill", stream, pointer(alias[0]), 11, NULL);
  wait_for(other, stream);
  assert_cuda(cuMemcpyDtoDAsync_v2(sink, alias[1], BYTES, other));
  assert_cuda(cuStreamSynchronize(other));
  assert_int_equal(filled_with(sink), 11);
  assert_cuda(cuMemsetD32Async(alias[1], 12, WORDS, other));
  wait_for(stream, other);
  transfer(sink, alias[0], stream); /* reads */
  assert_cuda(cuStreamSynchronize(stream));
  assert_int_equal(filled_with(sink), 12);
  launch("fill", stream, pointer(source), 13, NULL);
  transfer(alias[0], source, stream); /* writes */
  wait_for(other, stream);
  assert_cuda(cuMemcpyDtoDAsync_v2(sink, alias[1], BYTES, other));
  assert_cuda(cuStreamSynchronize(other));
  assert_int_equal(filled_with(sink), 13);
  assert_cuda(cuMemFree_v2(source));
  assert_cuda(cuMemFree_v2(sink));
  assert_int_equal(cuMemFree_v2(alias[0]), CUDA_ERROR_INVALID_VALUE);
  drop(alias[0]);
  assert_int_equal(filled_with(alias[1]), 13); /* the other one still holds it */
  drop(alias[1]);
  assert_int_equal(rpsim_physical_bytes(0), before);
}

/* A transfer, and a kernel, use what backs their address when they run, not when they were launched. */
static void work_meets_what_backs_the_address_then(void **state) {
  (void)state;
  CUmemGenericAllocationHandle early = create(), late = create();
  CUdeviceptr address = reserve(), first = reserve(), second = reserve(), source;
  _Atomic int gate = 0;
  map(address, early);
  map(first, early);
  map(second, late);
  assert_cuda(cuMemsetD32_v2(first, 1, WORDS));
  assert_cuda(cuMemsetD32_v2(second, 2, WORDS));
  assert_cuda(cuMemAlloc_v2(&source, BYTES));
  assert_cuda(cuMemsetD32_v2(source, 3, WORDS));
  launch("gate", stream, NULL, 0, &gate);
  transfer(address, source, stream);
  await(&gate);
  rebind(address, late); /* does not wait for the stream */
  atomic_fetch_or(&gate, 2);
  assert_cuda(cuStreamSynchronize(stream));
  assert_int_equal(filled_with(first), 1);
  assert_int_equal(filled_with(second), 3);
  atomic_store(&gate, 0);
  launch("gated_fill", stream, pointer(address), 4, &gate); /* runs while it is moved away */
  await(&gate);
  rebind(address, early);
  atomic_fetch_or(&gate, 2);
  assert_cuda(cuStreamSynchronize(stream));
  assert_int_equal(filled_with(first), 4);
  assert_int_equal(filled_with(second), 3);
  assert_cuda(cuMemFree_v2(source));
  assert_cuda(cuMemRelease(early));
  assert_cuda(cuMemRelease(late));
  drop(address);
  drop(first);
  drop(second);
}

/* ---- order: with RPSIM_SEED, in a process of its own ---- */

/* A reader of one message through one address, and the receive of the next through the other. */
static int reuse(bool wait) {
  enum { ROUNDS = 12 };
  CUdeviceptr alias[2], source, out[ROUNDS];
  unsigned wrong = 0;
  make_alias(alias);
  assert_cuda(cuMemAlloc_v2(&source, BYTES));
  for (unsigned i = 0; i < ROUNDS; i++) {
    assert_cuda(cuMemAlloc_v2(&out[i], BYTES));
    launch("fill", stream, pointer(source), 100 + i, NULL);
    if (wait) wait_for(stream, other); /* the reader of the message before */
    transfer(alias[i % 2], source, stream);
    wait_for(other, stream);
    assert_cuda(cuMemcpyDtoDAsync_v2(out[i], alias[i % 2], BYTES, other));
  }
  assert_cuda(cuCtxSynchronize());
  for (unsigned i = 0; i < ROUNDS; i++)
    wrong += filled_with(out[i]) != 100 + i;
  return wrong ? 3 : 0;
}

static int mode_waiting(void) {
  return reuse(true);
}

static int mode_not_waiting(void) {
  return reuse(false);
}

static int status_of(const char *mode, const char *variable, const char *value, char *output, size_t bytes) {
  int status = sim_test_run(mode, variable, value, output, bytes);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static void reuse_needs_a_wait(void **state) {
  (void)state;
  char output[1024], seed[8];
  int wrong = 0;
  for (int i = 1; i <= 8; i++) {
    snprintf(seed, sizeof seed, "%d", i);
    assert_int_equal(status_of("waiting", "RPSIM_SEED", seed, output, sizeof output), 0);
#ifndef __SANITIZE_THREAD__ /* a data race, on purpose */
    wrong += status_of("not-waiting", "RPSIM_SEED", seed, output, sizeof output) == 3;
  }
  assert_true(wrong > 0);
#else
  }
  (void)wrong;
#endif
}

/* ---- memory that goes while it is used ---- */

/* Unmapping waits for nobody. The kernel that comes to the memory then ends the context. */
static int mode_unmap_under_kernel(void) {
  CUdeviceptr address = reserve();
  CUmemGenericAllocationHandle handle = create();
  _Atomic int gate = 0;
  map(address, handle);
  launch("gated_fill", stream, pointer(address), 1, &gate);
  await(&gate);
  if (cuMemUnmap(address, GRANULE) != CUDA_SUCCESS) return 2;
  if (cuStreamQuery(stream) != CUDA_ERROR_NOT_READY) return 3; /* it was still running */
  atomic_fetch_or(&gate, 2);
  if (cuStreamSynchronize(stream) != CUDA_ERROR_ILLEGAL_ADDRESS) return 4;
  if (cuStreamSynchronize(other) != CUDA_ERROR_ILLEGAL_ADDRESS) return 5; /* it stays */
  CUdeviceptr more;
  return cuMemAlloc_v2(&more, 16) == CUDA_ERROR_ILLEGAL_ADDRESS ? 0 : 6;
}

/* The same for a copy that has not begun, and for a host that waits for it. */
static int mode_unmap_before_copy(void) {
  CUdeviceptr address = reserve(), target;
  CUmemGenericAllocationHandle handle = create();
  _Atomic int gate = 0;
  map(address, handle);
  if (cuMemAlloc_v2(&target, BYTES)) return 2;
  launch("gate", stream, NULL, 0, &gate);
  if (cuMemcpyDtoDAsync_v2(target, address, BYTES, stream)) return 3;
  await(&gate);
  if (cuMemUnmap(address, GRANULE) != CUDA_SUCCESS) return 4;
  atomic_fetch_or(&gate, 2);
  return cuStreamSynchronize(stream) == CUDA_ERROR_ILLEGAL_ADDRESS ? 0 : 5;
}

/* A receive that waits for its peer when its memory goes: two ranks in this process, on two devices. That it
 * has begun is known from the one before it in its group: more has been sent than sockets hold. */
static int mode_unmap_under_receive(void) {
  ncclComm_t comms[2];
  CUcontext contexts[2];
  CUstream streams[2];
  CUdeviceptr address, source, first;
  if (ncclCommInitAll(comms, 2, NULL)) return 2;
  for (int i = 0; i < 2; i++)
    if (cuDevicePrimaryCtxRetain(&contexts[i], i) || cuCtxSetCurrent(contexts[i]) ||
        cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING))
      return 3;
  if (cuMemAlloc_v2(&source, GRANULE)) return 4;
  if (ncclSend(pointer(source), GRANULE, ncclUint8, 0, comms[1], streams[1])) return 4;
  cuCtxSetCurrent(contexts[0]);
  if (cuMemAlloc_v2(&first, GRANULE)) return 4;
  map(address = reserve(), create());
  if (ncclGroupStart() || ncclRecv(pointer(first), GRANULE, ncclUint8, 1, comms[0], streams[0]) ||
      ncclRecv(pointer(address), GRANULE, ncclUint8, 1, comms[0], streams[0]) || ncclGroupEnd())
    return 5;
  cuCtxSetCurrent(contexts[1]);
  if (cuStreamSynchronize(streams[1])) return 6;
  cuCtxSetCurrent(contexts[0]);
  if (cuStreamQuery(streams[0]) != CUDA_ERROR_NOT_READY) return 6;
  if (cuMemUnmap(address, GRANULE)) return 7;
  cuCtxSetCurrent(contexts[1]);
  if (ncclSend(pointer(source), GRANULE, ncclUint8, 0, comms[1], streams[1])) return 8;
  cuCtxSetCurrent(contexts[0]);
  if (cuStreamSynchronize(streams[0]) != CUDA_ERROR_ILLEGAL_ADDRESS) return 9;
  ncclResult_t error;
  if (ncclCommGetAsyncError(comms[0], &error) || error != ncclUnhandledCudaError) return 10;
  return 0;
}

static void memory_that_goes_while_it_is_used(void **state) {
  (void)state;
  static const char *const modes[] = {"unmap-under-kernel", "unmap-before-copy", "unmap-under-receive"};
  char output[1024];
  for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
    int status = status_of(modes[i], "RPSIM_DEVICES", "2", output, sizeof output);
    if (status != 0) fail_msg("%s: %d %s", modes[i], status, output);
  }
}

/* ---- what NCCL has registered ---- */

static CUdeviceptr source_of(uint32_t value) {
  CUdeviceptr source;
  assert_cuda(cuMemAlloc_v2(&source, BYTES));
  assert_cuda(cuMemsetD32_v2(source, value, WORDS));
  return source;
}

static void registered_memory_may_be_used(void **state) {
  (void)state;
  CUdeviceptr alias[2], bare = reserve(), source = source_of(5);
  CUmemGenericAllocationHandle handle = create();
  ncclWindow_t window;
  void *registered, *memory;
  make_alias(alias);
  assert_int_equal(ncclCommRegister(comm, pointer(bare), 16, &registered), ncclUnhandledCudaError);
  assert_int_equal(ncclCommRegister(comm, pointer(alias[0]), GRANULE, &registered), ncclSuccess);
  transfer(alias[0], source, stream);
  transfer(alias[1], source, stream); /* the other address is another registration, or none */
  assert_cuda(cuStreamSynchronize(stream));
  rebind(alias[1], handle); /* and may change */
  transfer(alias[1], source, stream);
  assert_cuda(cuStreamSynchronize(stream));
  assert_int_equal(ncclCommDeregister(comm, registered), ncclSuccess);
  assert_int_equal(ncclCommDeregister(comm, registered), ncclInvalidUsage);
  rebind(alias[0], handle); /* nobody remembers */
  transfer(alias[0], source, stream);
  assert_cuda(cuStreamSynchronize(stream));
  assert_int_equal(filled_with(alias[0]), 5);
  assert_int_equal(ncclMemAlloc(&memory, GRANULE), ncclSuccess);
  assert_int_equal(ncclCommWindowRegister(comm, memory, GRANULE, &window, NCCL_WIN_COLL_SYMMETRIC),
                   ncclSuccess);
  transfer((CUdeviceptr)(uintptr_t)memory, source, stream);
  assert_cuda(cuStreamSynchronize(stream));
  assert_int_equal(ncclCommWindowDeregister(comm, window), ncclSuccess);
  assert_int_equal(ncclMemFree(memory), ncclSuccess);
  assert_cuda(cuMemRelease(handle));
  assert_cuda(cuMemFree_v2(source));
  assert_cuda(cuMemAddressFree(bare, GRANULE));
  drop(alias[0]);
  drop(alias[1]);
}

static int mode_rebind_registered(void) {
  CUdeviceptr address = reserve(), source = source_of(5);
  void *registered;
  map(address, create());
  if (ncclCommRegister(comm, pointer(address + 4096), 4096, &registered)) return 2;
  transfer(address, source, stream);
  if (cuStreamSynchronize(stream)) return 3;
  rebind(address, create());
  transfer(source, address, stream); /* a send of it is as bad */
  (void)cuStreamSynchronize(stream);
  return 4;
}

static int mode_rebind_captured(void) {
  CUdeviceptr address = reserve(), source = source_of(5);
  CUgraph graph;
  CUgraphExec exec;
  map(address, create());
  if (cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)) return 2;
  transfer(address, source, stream);
  if (cuStreamEndCapture(stream, &graph) || cuGraphInstantiateWithFlags(&exec, graph, 0)) return 3;
  for (int i = 0; i < 3; i++)
    if (cuGraphLaunch(exec, stream) || cuStreamSynchronize(stream)) return 4;
  if (filled_with(address) != 5) return 5;
  rebind(address, create());
  if (cuGraphLaunch(exec, stream)) return 6;
  (void)cuStreamSynchronize(stream);
  return 7;
}

static int mode_group_of_aliases(void) {
  CUdeviceptr alias[2];
  make_alias(alias);
  transfer(alias[1], alias[0], stream);
  (void)cuStreamSynchronize(stream);
  return 2;
}

static void misuse_ends_the_process(void **state) {
  (void)state;
  static const struct {
    const char *mode, *says;
  } cases[] = {
      {"rebind-registered", "a transfer uses registered memory whose backing has changed"},
      {"rebind-captured", "a transfer uses registered memory whose backing has changed"},
      {"group-of-aliases", "one group uses the same memory through two addresses"},
  };
  char output[1024];
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    int status = status_of(cases[i].mode, "RPSIM_SEED", NULL, output, sizeof output);
    if (status != -SIGABRT || !strstr(output, cases[i].says))
      fail_msg("%s: %d %s", cases[i].mode, status, output);
  }
}

/* Parts of one memory that do not touch may be used through two addresses at once. */
static void parts_that_do_not_touch(void **state) {
  (void)state;
  CUdeviceptr alias[2];
  make_alias(alias);
  assert_cuda(cuMemsetD32_v2(alias[0], 7, WORDS));
  assert_int_equal(ncclGroupStart(), ncclSuccess);
  assert_int_equal(ncclSend(pointer(alias[0]), 4096, ncclUint8, 0, comm, stream), ncclSuccess);
  assert_int_equal(ncclRecv(pointer(alias[1] + 4096), 4096, ncclUint8, 0, comm, stream), ncclSuccess);
  assert_int_equal(ncclGroupEnd(), ncclSuccess);
  assert_cuda(cuStreamSynchronize(stream));
  assert_int_equal(filled_with(alias[1]), 7);
  drop(alias[0]);
  drop(alias[1]);
}

static int run_mode(const char *name) {
  static const struct {
    const char *name;
    int (*run)(void);
  } modes[] = {
      {"waiting", mode_waiting},
      {"not-waiting", mode_not_waiting},
      {"unmap-under-kernel", mode_unmap_under_kernel},
      {"unmap-before-copy", mode_unmap_before_copy},
      {"unmap-under-receive", mode_unmap_under_receive},
      {"rebind-registered", mode_rebind_registered},
      {"rebind-captured", mode_rebind_captured},
      {"group-of-aliases", mode_group_of_aliases},
  };
  if (start(NULL) != 0) return 99;
  for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
    if (strcmp(modes[i].name, name) == 0) return modes[i].run();
  return 98;
}

int main(int argc, char **argv) {
  if (argc > 1) return run_mode(argv[1]);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(everything_goes_through_aliases),
      cmocka_unit_test(work_meets_what_backs_the_address_then),
      cmocka_unit_test(reuse_needs_a_wait),
      cmocka_unit_test(memory_that_goes_while_it_is_used),
      cmocka_unit_test(registered_memory_may_be_used),
      cmocka_unit_test(misuse_ends_the_process),
      cmocka_unit_test(parts_that_do_not_touch),
  };
  return cmocka_run_group_tests(tests, start, stop);
}
