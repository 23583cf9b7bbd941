/* Do writes by one address of a piece of memory show at its other addresses?
 *
 *   gpu_coherence order MIB ROUNDS   ordered by stream, event, graph, copies, fills: they must
 *   gpu_coherence kernel             inside one kernel, which is undefined without a fence
 *   gpu_coherence early MIB ROUNDS   into a kernel that begins before the writer ended (programmatic
 * dependent launch) gpu_coherence nccl MIB           a transfer to oneself from one slot into another, in a
 * group and in a graph
 *
 * Prints a list of {name, value, unit}; numbers of words that were wrong. */
#include <cuda.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_kernels.h"
#include "gpu_support.h"

/* Two addresses of the same memory, and other memory of that size. */
struct memory {
  CUdevice device;
  size_t bytes;
  CUmemGenericAllocationHandle handle;
  CUdeviceptr first, second, apart, wrong;
};

static struct memory memory_create(CUdevice device, size_t bytes) {
  CUmemAllocationProp properties = rp_gpu_properties(device);
  struct memory m = {.device = device, .bytes = bytes};
  RP_CHECK(cuMemCreate(&m.handle, bytes, &properties, 0));
  m.first = rp_gpu_map(m.handle, bytes, device);
  m.second = rp_gpu_map(m.handle, bytes, device);
  RP_CHECK(cuMemAlloc(&m.apart, bytes));
  RP_CHECK(cuMemAlloc(&m.wrong, sizeof(uint32_t)));
  RP_CHECK(cuMemsetD32(m.wrong, 0, 1));
  return m;
}

static void memory_destroy(struct memory *m) {
  RP_CHECK(cuCtxSynchronize());
  rp_gpu_unmap(m->first, m->bytes);
  rp_gpu_unmap(m->second, m->bytes);
  RP_CHECK(cuMemRelease(m->handle));
  RP_CHECK(cuMemFree(m->apart));
  RP_CHECK(cuMemFree(m->wrong));
}

static void launch(const char *kernel, CUstream stream, void **arguments) {
  RP_CHECK(cuLaunchKernel(rp_gpu_kernel(kernel), 512, 1, 1, 256, 1, 1, 0, stream, arguments, NULL));
}

static void fill(const struct memory *m, CUdeviceptr address, uint32_t value, CUstream stream) {
  uint64_t words = m->bytes / 4;
  void *arguments[] = {&address, &words, &value};
  launch(RP_GPU_FILL, stream, arguments);
}

static void check(struct memory *m, CUdeviceptr address, uint32_t value, CUstream stream) {
  uint64_t words = m->bytes / 4;
  void *arguments[] = {&address, &words, &value, &m->wrong};
  launch(RP_GPU_CHECK, stream, arguments);
}

/* Words that were wrong since the last time. */
static uint32_t take_wrong(struct memory *m) {
  uint32_t wrong = 0;
  RP_CHECK(cuCtxSynchronize());
  RP_CHECK(cuMemcpyDtoH(&wrong, m->wrong, sizeof wrong));
  RP_CHECK(cuMemsetD32(m->wrong, 0, 1));
  RP_CHECK(cuCtxSynchronize());
  return wrong;
}

/* ---- ordered ---- */

static void by_stream(struct memory *m, uint32_t rounds, CUstream stream) {
  for (uint32_t i = 0; i < rounds; i++) {
    fill(m, m->first, 2 * i + 1, stream);
    check(m, m->second, 2 * i + 1, stream);
    fill(m, m->second, 2 * i + 2, stream);
    check(m, m->first, 2 * i + 2, stream);
  }
  rp_gpu_integer("kernel to kernel, by stream", take_wrong(m), "words");
}

static void by_event(struct memory *m, uint32_t rounds, CUstream stream, CUstream other) {
  CUevent there, back;
  RP_CHECK(cuEventCreate(&there, CU_EVENT_DISABLE_TIMING));
  RP_CHECK(cuEventCreate(&back, CU_EVENT_DISABLE_TIMING));
  for (uint32_t i = 0; i < rounds; i++) {
    fill(m, m->first, i + 1, stream);
    RP_CHECK(cuEventRecord(there, stream));
    RP_CHECK(cuStreamWaitEvent(other, there, 0));
    check(m, m->second, i + 1, other);
    RP_CHECK(cuEventRecord(back, other));
    RP_CHECK(cuStreamWaitEvent(stream, back, 0));
  }
  rp_gpu_integer("kernel to kernel, by event", take_wrong(m), "words");
  RP_CHECK(cuEventDestroy(there));
  RP_CHECK(cuEventDestroy(back));
}

static void by_copy(struct memory *m, uint32_t rounds, CUstream stream) {
  for (uint32_t i = 0; i < rounds; i++) {
    fill(m, m->apart, i + 1, stream);
    RP_CHECK(cuMemcpyDtoDAsync(m->first, m->apart, m->bytes, stream));
    check(m, m->second, i + 1, stream);
    RP_CHECK(cuMemsetD32Async(m->second, i + 7, m->bytes / 4, stream));
    check(m, m->first, i + 7, stream);
    fill(m, m->first, i + 9, stream);
    RP_CHECK(cuMemcpyDtoDAsync(m->apart, m->second, m->bytes, stream));
    check(m, m->apart, i + 9, stream);
  }
  rp_gpu_integer("copies and fills to kernels and back", take_wrong(m), "words");
}

static void by_graph(struct memory *m, uint32_t rounds, CUstream stream) {
  CUgraph graph = NULL;
  CUgraphExec executable = NULL;
  RP_CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  fill(m, m->first, 3, stream);
  check(m, m->second, 3, stream);
  fill(m, m->second, 4, stream);
  check(m, m->first, 4, stream);
  RP_CHECK(cuStreamEndCapture(stream, &graph));
  RP_CHECK(cuGraphInstantiate(&executable, graph, 0));
  for (uint32_t i = 0; i < rounds; i++)
    RP_CHECK(cuGraphLaunch(executable, stream));
  rp_gpu_integer("kernel to kernel, in a graph", take_wrong(m), "words");
  RP_CHECK(cuGraphExecDestroy(executable));
  RP_CHECK(cuGraphDestroy(graph));
}

static void order(CUdevice device, size_t bytes, uint32_t rounds) {
  struct memory m = memory_create(device, bytes);
  CUstream stream, other;
  RP_CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  RP_CHECK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  RP_CHECK(cuCtxSynchronize());
  by_stream(&m, rounds, stream);
  by_event(&m, rounds, stream, other);
  by_copy(&m, rounds, stream);
  by_graph(&m, rounds, stream);
  fill(&m, m.first, 5, stream); /* that a wrong word would be counted */
  check(&m, m.second, 6, stream);
  rp_gpu_integer("counted where all words are wrong", take_wrong(&m), "words");
  rp_gpu_integer("words there are", (int64_t)(bytes / 4), "words");
  memory_destroy(&m);
}

/* ---- not ordered ---- */

static uint32_t in_one_kernel(struct memory *m, const char *kernel, uint32_t value) {
  uint32_t found = 0;
  void *arguments[] = {&m->first, &m->second, &value, &m->apart};
  RP_CHECK(cuMemsetD32(m->first, 0, 1));
  RP_CHECK(cuLaunchKernel(rp_gpu_kernel(kernel), 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL));
  RP_CHECK(cuCtxSynchronize());
  RP_CHECK(cuMemcpyDtoH(&found, m->apart, sizeof found));
  return found;
}

static void kernel(CUdevice device) {
  enum { ROUNDS = 50 };
  struct memory m = memory_create(device, 2 * RP_MIB);
  int stale = 0, fenced = 0;
  for (uint32_t i = 1; i <= ROUNDS; i++) {
    stale += in_one_kernel(&m, RP_GPU_PROXY, i) != i;
    fenced += in_one_kernel(&m, RP_GPU_PROXY_FENCED, i) != i;
  }
  rp_gpu_integer("stale reads of 50, without a fence", stale, "reads");
  rp_gpu_integer("stale reads of 50, with fence.proxy.alias", fenced, "reads");
  memory_destroy(&m);
}

/* The check is launched so that it may begin when the fill lets it, not when that has ended. */
static void check_early(struct memory *m, CUdeviceptr address, uint32_t value, CUstream stream) {
  uint64_t words = m->bytes / 4;
  void *arguments[] = {&address, &words, &value, &m->wrong};
  CUlaunchAttribute attribute = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                                 .value.programmaticStreamSerializationAllowed = 1};
  CUlaunchConfig config = {.gridDimX = 64,
                           .gridDimY = 1,
                           .gridDimZ = 1,
                           .blockDimX = 256,
                           .blockDimY = 1,
                           .blockDimZ = 1,
                           .hStream = stream,
                           .attrs = &attribute,
                           .numAttrs = 1};
  RP_CHECK(cuLaunchKernelEx(&config, rp_gpu_kernel(RP_GPU_CHECK), arguments, NULL));
}

static void early(CUdevice device, size_t bytes, uint32_t rounds) {
  CUfunction early_fill = rp_gpu_early_fill();
  struct memory m = memory_create(device, bytes);
  uint64_t words = bytes / 4, wrong = 0, pause_ns = 20000;
  CUstream stream;
  if (early_fill == NULL) {
    rp_gpu_text("launches that begin early", "not on this device");
    memory_destroy(&m);
    return;
  }
  RP_CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  for (uint32_t i = 1; i <= rounds; i++) {
    void *arguments[] = {&m.first, &words, &i, &pause_ns};
    RP_CHECK(cuLaunchKernel(early_fill, 64, 1, 1, 256, 1, 1, 0, stream, arguments, NULL));
    check_early(&m, m.second, i, stream);
    wrong += take_wrong(&m) != 0;
  }
  rp_gpu_integer("rounds that read too early", (int64_t)wrong, "rounds");
  rp_gpu_integer("rounds", rounds, "rounds");
  memory_destroy(&m);
}

/* ---- transfers ---- */

static void transfer(struct memory *m, CUdeviceptr into, ncclComm_t comm, CUstream stream) {
  RP_CHECK(ncclGroupStart());
  RP_CHECK(ncclSend((const void *)m->second, m->bytes, ncclUint8, 0, comm, stream));
  RP_CHECK(ncclRecv((void *)into, m->bytes, ncclUint8, 0, comm, stream));
  RP_CHECK(ncclGroupEnd());
}

static void nccl(CUdevice device, size_t bytes) {
  struct memory from = memory_create(device, bytes), to = memory_create(device, bytes);
  ncclUniqueId id;
  ncclComm_t comm;
  CUstream stream;
  CUgraph graph = NULL;
  CUgraphExec executable = NULL;
  RP_CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  RP_CHECK(ncclGetUniqueId(&id));
  RP_CHECK(ncclCommInitRank(&comm, 1, id, 0));
  fill(&from, from.first, 11, stream);
  transfer(&from, to.first, comm, stream);
  check(&to, to.second, 11, stream);
  rp_gpu_integer("a group from one slot into another", take_wrong(&to), "words");
  RP_CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  transfer(&from, to.first, comm, stream);
  RP_CHECK(cuStreamEndCapture(stream, &graph));
  RP_CHECK(cuGraphInstantiate(&executable, graph, 0));
  for (uint32_t i = 20; i < 25; i++) {
    fill(&from, from.first, i, stream);
    RP_CHECK(cuGraphLaunch(executable, stream));
    check(&to, to.second, i, stream);
  }
  rp_gpu_integer("the same in a graph", take_wrong(&to), "words");
  RP_CHECK(cuGraphExecDestroy(executable));
  RP_CHECK(cuGraphDestroy(graph));
  RP_CHECK(ncclCommDestroy(comm));
  memory_destroy(&from);
  memory_destroy(&to);
}

static int usage(void) {
  fprintf(stderr, "usage: gpu_coherence order MIB ROUNDS | kernel | early MIB ROUNDS | nccl MIB\n");
  return 2;
}

int main(int argc, char **argv) {
  size_t bytes = argc > 2 ? strtoul(argv[2], NULL, 10) * RP_MIB : 0;
  uint32_t rounds = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 0;
  if (argc < 2 || (bytes == 0 && strcmp(argv[1], "kernel") != 0)) return usage();
  CUdevice device = rp_gpu_open();
  if (!strcmp(argv[1], "order"))
    order(device, bytes, rounds);
  else if (!strcmp(argv[1], "kernel"))
    kernel(device);
  else if (!strcmp(argv[1], "early"))
    early(device, bytes, rounds);
  else if (!strcmp(argv[1], "nccl"))
    nccl(device, bytes);
  else
    return usage();
  return rp_gpu_print();
}
