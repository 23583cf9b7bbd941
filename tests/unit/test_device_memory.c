/* Physical memory over the simulated driver. What depends on how the driver was started
 * (RPSIM_ATTRIBUTES, RPSIM_FAIL) runs in this program started again in another mode. */
#include "device_fixture.h"

#include <pthread.h>

#define POISON (UINT64_C(0x7fbadbad) << 32 | 0x7fbadbad)

/* ---- memory ---- */

static void words_go_through_aliases(void **state) {
  (void)state;
  uint64_t addresses[2], seen = 0, bytes = 0, before = rpsim_physical_bytes(0);
  assert_int_equal(backend.granularity(memory, &bytes), RP_OK);
  assert_int_equal(bytes, GRANULE);
  make_alias(addresses);
  assert_int_equal(rpsim_physical_bytes(0) - before, GRANULE);
  assert_int_equal(backend.read_word(memory, addresses[1] + 64, &seen), RP_OK);
  assert_true(seen == POISON);
  assert_int_equal(backend.write_word(memory, addresses[0] + 64, 0x1122334455667788), RP_OK);
  assert_int_equal(backend.read_word(memory, addresses[1] + 64, &seen), RP_OK);
  assert_true(seen == 0x1122334455667788);
  drop_alias(addresses);
  assert_int_equal(rpsim_physical_bytes(0), before);
}

/* The simulated driver fails a call that the program's own capture forbids, unless the thread said that it
 * does not care; and no call of ours ends up in the graph. */
static void works_while_the_program_captures(void **state) {
  (void)state;
  uint64_t addresses[2], seen = 0;
  CUstream stream = new_stream();
  CUgraph graph;
  size_t nodes = 99;
  assert_cuda(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  make_alias(addresses);
  assert_int_equal(backend.write_word(memory, addresses[0], 7), RP_OK);
  assert_int_equal(backend.read_word(memory, addresses[1], &seen), RP_OK);
  assert_int_equal(seen, 7);
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  assert_cuda(cuThreadExchangeStreamCaptureMode(&mode));
  assert_int_equal(mode, CU_STREAM_CAPTURE_MODE_GLOBAL); /* as before */
  assert_cuda(cuStreamEndCapture(stream, &graph));
  assert_cuda(cuGraphGetNodes(graph, NULL, &nodes));
  assert_int_equal(nodes, 0);
  assert_cuda(cuGraphDestroy(graph));
  drop_alias(addresses);
  assert_cuda(cuStreamDestroy_v2(stream));
}

static void every_error_is_told(void **state) {
  (void)state;
  uint64_t address = 0, handle = 0, other = 77;
  struct rp_device_memory_info before, after;
  rp_device_memory_info(memory, &before);
  assert_int_equal(backend.create(memory, GRANULE + 1, &other), RP_ERROR_UNAVAILABLE);
  assert_string_equal(rp_device_memory_error(), "cuMemCreate: CUDA_ERROR_INVALID_VALUE (1)");
  assert_int_equal(backend.create(memory, UINT64_C(1) << 44, &other), RP_ERROR_NO_MEMORY);
  assert_string_equal(rp_device_memory_error(), "cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY (2)");
  assert_int_equal(other, 77); /* untouched */
  assert_int_equal(backend.reserve(memory, GRANULE, &address), RP_OK);
  assert_int_equal(backend.create(memory, GRANULE, &handle), RP_OK);
  assert_int_equal(backend.set_access(memory, address, GRANULE), RP_ERROR_UNAVAILABLE);
  assert_int_equal(backend.unmap(memory, address, GRANULE), RP_ERROR_UNAVAILABLE);
  assert_int_equal(backend.map(memory, address, GRANULE, handle + 8), RP_ERROR_UNAVAILABLE);
  assert_int_equal(backend.map(memory, address, GRANULE, handle), RP_OK); /* the failure left no trace */
  assert_int_equal(backend.map(memory, address, GRANULE, handle), RP_ERROR_EXISTS);
  assert_int_equal(backend.unreserve(memory, address, GRANULE), RP_ERROR_UNAVAILABLE);
  assert_int_equal(backend.unmap(memory, address, GRANULE), RP_OK);
  assert_int_equal(backend.unreserve(memory, address, GRANULE), RP_OK);
  assert_int_equal(backend.release(memory, handle), RP_OK);
  assert_int_equal(backend.release(memory, handle), RP_ERROR_UNAVAILABLE);
  rp_device_memory_info(memory, &after);
  assert_int_equal(after.calls - before.calls, 13); /* the map that we refused was no call */
  assert_int_equal(after.failures - before.failures, 7);
}

static void times_are_counted(void **state) {
  (void)state;
  uint64_t addresses[2];
  struct rp_device_memory_info before, after;
  rp_device_memory_info(memory, &before);
  make_alias(addresses);
  drop_alias(addresses);
  rp_device_memory_info(memory, &after);
  assert_true(after.create_ns > before.create_ns);
  assert_true(after.map_ns > before.map_ns);
  assert_true(after.unmap_ns > before.unmap_ns);
  assert_true(after.calls - before.calls == 12); /* create, release, twice: reserve map access unmap free */
  assert_true(after.posix_fd && !after.rdma && !after.fabric);
}

/* ---- contexts ---- */

static void *words_without_context(void *argument) {
  const uint64_t *addresses = argument;
  static rp_status status;
  uint64_t seen = 0;
  CUcontext current = NULL;
  status = backend.write_word(memory, addresses[0], 91);
  if (status == RP_OK) status = backend.read_word(memory, addresses[1], &seen);
  if (status == RP_OK && seen != 91) status = RP_ERROR_INTERNAL;
  if (rp_device_current_context() != 0) status = RP_ERROR_STATE;
  if (cuCtxGetCurrent(&current) != CUDA_SUCCESS || current) status = RP_ERROR_STATE; /* left as it was */
  return &status;
}

static void words_need_no_current_context(void **state) {
  (void)state;
  uint64_t addresses[2];
  pthread_t thread;
  void *result;
  make_alias(addresses);
  assert_int_equal(rp_device_current_context(), id_of(context));
  assert_int_equal(pthread_create(&thread, NULL, words_without_context, addresses), 0);
  assert_int_equal(pthread_join(thread, &result), 0);
  assert_int_equal(*(rp_status *)result, RP_OK);
  drop_alias(addresses);
}

/* The primary context that words are copied in is not kept: it ends with the program's own reference. */
static void no_context_is_kept(void **state) {
  unsigned flags;
  int active = 1;
  assert_int_equal(stop(state), 0);
  assert_cuda(cuDevicePrimaryCtxGetState(0, &flags, &active));
  assert_int_equal(active, 0);
  assert_int_equal(start(state), 0);
}

/* ---- peers ---- */

static bool has_access(uint64_t address, int device) {
  unsigned long long flags = 0;
  const CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
  assert_cuda(cuMemGetAccess(&flags, &location, address));
  return flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
}

static void peers_get_what_is_and_what_comes(void **state) {
  (void)state;
  uint64_t before[2], after[2], handle, bare;
  struct rp_device_memory_info info;
  make_alias(before);
  assert_int_equal(backend.create(memory, GRANULE, &handle), RP_OK);
  assert_int_equal(backend.reserve(memory, GRANULE, &bare), RP_OK);
  assert_int_equal(backend.map(memory, bare, GRANULE, handle), RP_OK); /* no access yet: stays so */
  assert_true(has_access(before[0], 0) && !has_access(before[0], 1));
  assert_int_equal(rp_device_memory_add_peer(memory, 0), RP_OK); /* itself */
  assert_int_equal(rp_device_memory_add_peer(memory, 1), RP_OK);
  assert_int_equal(rp_device_memory_add_peer(memory, 1), RP_OK);
  assert_int_equal(rp_device_memory_add_peer(memory, 7), RP_ERROR_UNAVAILABLE);
  rp_device_memory_info(memory, &info);
  assert_int_equal(info.peers, 1);
  make_alias(after);
  for (int i = 0; i < 2; i++)
    assert_true(has_access(before[i], 1) && has_access(before[i], 0) && has_access(after[i], 1));
  assert_true(!has_access(bare, 0) && !has_access(bare, 1));
  assert_int_equal(backend.unmap(memory, bare, GRANULE), RP_OK);
  assert_int_equal(backend.unreserve(memory, bare, GRANULE), RP_OK);
  assert_int_equal(backend.release(memory, handle), RP_OK);
  drop_alias(before);
  drop_alias(after);
}

/* ---- other drivers: this program again, in a mode ---- */

static void runs_in(const char *mode, const char *variable, const char *value) {
  char output[4096];
  int status = sim_test_run(mode, variable, value, output, sizeof output);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) fail_msg("%s with %s: %s", mode, value, output);
}

static void what_the_device_can(void **state) {
  (void)state;
  runs_in("plain", "RPSIM_ATTRIBUTES", NULL);
  runs_in("rdma", "RPSIM_ATTRIBUTES", "110:1");
  runs_in("fabric", "RPSIM_ATTRIBUTES", "128:1");
  runs_in("none", "RPSIM_ATTRIBUTES", "103:0");
  runs_in("no-vmm", "RPSIM_ATTRIBUTES", "102:0");
  runs_in("no-vmm", "RPSIM_ATTRIBUTES", "102:unknown");
  runs_in("plain", "RPSIM_ATTRIBUTES", "110:unknown,128:unknown"); /* an older driver */
}

/* Fabric handles are named by the device, and then refused when one is made, or when asked for granularity.
 */
static void fabric_that_is_refused(void **state) {
  (void)state;
  assert_int_equal(setenv("RPSIM_ATTRIBUTES", "128:1", 1), 0);
  runs_in("plain", "RPSIM_FAIL", "cuMemCreate:1:800");
  runs_in("plain", "RPSIM_FAIL", "cuMemGetAllocationGranularity:1:801");
  runs_in("fabric", "RPSIM_FAIL", "cuMemCreate:1"); /* no memory says nothing about fabric */
  unsetenv("RPSIM_ATTRIBUTES");
}

static void every_call_can_fail(void **state) {
  (void)state;
  static const char *const calls[] = {
      "cuMemAddressReserve:1",
      "cuMemAddressReserve:2",
      "cuMemCreate:1",
      "cuMemMap:1",
      "cuMemMap:2",
      "cuMemSetAccess:1",
      "cuMemSetAccess:2",
      "cuMemUnmap:1",
      "cuMemUnmap:2",
      "cuMemRelease:1",
      "cuMemAddressFree:1",
      "cuMemAddressFree:2",
      "cuMemcpyHtoDAsync_v2:1",
      "cuMemcpyDtoHAsync_v2:1",
      "cuStreamCreate:1:1",
      "cuEventCreate:1:1",
  };
  for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
    runs_in("failing", "RPSIM_FAIL", calls[i]);
    char other[64];
    snprintf(other, sizeof other, "%s", calls[i]);
    if (!strstr(strchr(calls[i], ':') + 1, ":")) snprintf(other, sizeof other, "%s:1", calls[i]);
    runs_in("failing", "RPSIM_FAIL", other);
  }
}

/* Uses everything once; exactly one call may fail, and says so. Nothing leaks that was not refused. */
static int mode_failing(void) {
  unsigned failed = 0;
  uint64_t addresses[2] = {0}, handle = 0, seen = 0, event = 0;
  CUstream stream;
  bool mapped[2] = {false}, words = true;
  if (cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS &&
      cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS)
    return 2;
  rp_status made = backend.create(memory, GRANULE, &handle);
  failed += made != RP_OK;
  for (int i = 0; i < 2; i++) {
    rp_status status = backend.reserve(memory, GRANULE, &addresses[i]);
    failed += status != RP_OK;
    if (status || made) {
      words = false;
      continue;
    }
    status = backend.map(memory, addresses[i], GRANULE, handle);
    mapped[i] = status == RP_OK;
    if (status == RP_OK) status = backend.set_access(memory, addresses[i], GRANULE);
    failed += status != RP_OK;
    words = words && status == RP_OK;
  }
  if (words) {
    rp_status wrote = backend.write_word(memory, addresses[0], 5);
    rp_status read = backend.read_word(memory, addresses[1], &seen);
    failed += (wrote != RP_OK) + (read != RP_OK);
    if (!wrote && !read && seen != 5) return 3;
  }
  failed += rp_device_stream_wait(0, id_of(stream), id_of(stream), true, &event) != RP_OK;
  for (int i = 0; i < 2; i++) {
    rp_status status = mapped[i] ? backend.unmap(memory, addresses[i], GRANULE) : RP_OK;
    failed += status != RP_OK;
    if (status && backend.unmap(memory, addresses[i], GRANULE) != RP_OK) return 4; /* the second try works */
    status = addresses[i] ? backend.unreserve(memory, addresses[i], GRANULE) : RP_OK;
    failed += status != RP_OK;
    if (status && backend.unreserve(memory, addresses[i], GRANULE) != RP_OK) return 5;
  }
  rp_status status = handle ? backend.release(memory, handle) : RP_OK;
  failed += status != RP_OK;
  if (status && backend.release(memory, handle) != RP_OK) return 6;
  if (rpsim_physical_bytes(0) != 0) return 7;
  struct rp_device_memory_info info;
  rp_device_memory_info(memory, &info);
  const char *rule = getenv("RPSIM_FAIL");
  bool ours = strncmp(rule, "cuStream", 8) != 0; /* the program's own stream took that one */
  bool wait = strncmp(rule, "cuEvent", 7) == 0;
  if (failed != ours || info.failures != (ours && !wait) || (ours && !*rp_device_memory_error())) return 8;
  return 0;
}

static int mode_properties(const char *mode) {
  uint64_t handle;
  CUmemAllocationProp properties;
  struct rp_device_memory_info info;
  bool rdma = strcmp(mode, "rdma") == 0, fabric = strcmp(mode, "fabric") == 0;
  unsigned types = strcmp(mode, "none") == 0 ? 0
                   : fabric ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_FABRIC
                            : CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  rp_device_memory_info(memory, &info);
  if (rpsim_physical_bytes(0) != 0) return 2; /* what was tried is given back */
  if (backend.create(memory, GRANULE, &handle) != RP_OK) return 3;
  if (cuMemGetAllocationPropertiesFromHandle(&properties, handle) != CUDA_SUCCESS) return 4;
  if ((unsigned)properties.requestedHandleTypes != types) return 5;
  if (properties.allocFlags.gpuDirectRDMACapable != rdma) return 6;
  if (info.rdma != rdma || info.fabric != fabric || info.posix_fd != (types != 0)) return 7;
  return backend.release(memory, handle) == RP_OK ? 0 : 8;
}

static int mode_no_vmm(void) {
  char reason[128] = "";
  if (cuInit(0) != CUDA_SUCCESS) return 2;
  if (rp_device_memory_open(0, &memory, reason, sizeof reason) != RP_ERROR_UNAVAILABLE) return 3;
  return strstr(reason, "no virtual memory management") ? 0 : 4;
}

/* No context anywhere: memory can be had, words cannot be copied, and no context comes of it. */
static int mode_no_context(void) {
  char reason[128] = "";
  uint64_t address = 0, handle = 0, seen;
  unsigned flags;
  int active = 1;
  if (cuInit(0) != CUDA_SUCCESS) return 2;
  if (rp_device_memory_open(0, &memory, reason, sizeof reason) != RP_OK) return 3;
  rp_device_memory_backend(memory, &backend);
  if (backend.create(memory, GRANULE, &handle) || backend.reserve(memory, GRANULE, &address) ||
      backend.map(memory, address, GRANULE, handle) || backend.set_access(memory, address, GRANULE))
    return 4;
  if (backend.write_word(memory, address, 1) != RP_ERROR_UNAVAILABLE) return 5;
  if (backend.read_word(memory, address, &seen) != RP_ERROR_UNAVAILABLE) return 6;
  if (cuDevicePrimaryCtxGetState(0, &flags, &active) != CUDA_SUCCESS || active) return 7;
  if (rp_device_stream_wait(0, 1, 1, false, &seen) != RP_ERROR_UNAVAILABLE) return 8;
  return rp_device_synchronize(0) == RP_ERROR_UNAVAILABLE ? 0 : 9;
}

static void without_a_context(void **state) {
  (void)state;
  runs_in("no-context", "RPSIM_ATTRIBUTES", NULL);
}

static int run_mode(const char *mode) {
  if (strcmp(mode, "no-vmm") == 0) return mode_no_vmm();
  if (strcmp(mode, "no-context") == 0) return mode_no_context();
  if (start(NULL) != 0) return 10;
  int result = strcmp(mode, "failing") == 0 ? mode_failing() : mode_properties(mode);
  if (result) fprintf(stderr, "mode %s: %d (%s)\n", mode, result, rp_device_memory_error());
  return result;
}

int main(int argc, char **argv) {
  if (argc > 1) return run_mode(argv[1]);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(words_go_through_aliases),
      cmocka_unit_test(works_while_the_program_captures),
      cmocka_unit_test(every_error_is_told),
      cmocka_unit_test(times_are_counted),
      cmocka_unit_test(words_need_no_current_context),
      cmocka_unit_test(no_context_is_kept),
      cmocka_unit_test(peers_get_what_is_and_what_comes),
      cmocka_unit_test(what_the_device_can),
      cmocka_unit_test(fabric_that_is_refused),
      cmocka_unit_test(every_call_can_fail),
      cmocka_unit_test(without_a_context),
  };
  setenv("RPSIM_DEVICES", "2", 0);
  return cmocka_run_group_tests(tests, start, stop);
}
