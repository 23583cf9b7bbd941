/* The table of probed functions: the one place that says what is observed. Arguments are counted from 1, as
 * in the headers of CUDA 13 and NCCL 2.28. */
#include "bpf/functions.h"

#include <string.h>

#define LEGACY .null_stream = 1
#define PER_THREAD .null_stream = 2

#define RUNTIME(class, ...) .shape = {.class_ = (class), .layer = RP_PROBE_RUNTIME, __VA_ARGS__}
#define DRIVER(class, ...) .shape = {.class_ = (class), .layer = RP_PROBE_DRIVER, __VA_ARGS__}
#define NCCL(symbol, class, ...)                                                                             \
  .name = "nccl" #symbol, .alias = "pnccl" #symbol, .returns = true,                                         \
  .shape = {.class_ = (class), .layer = RP_PROBE_NCCL, __VA_ARGS__}

static const struct rp_probe_function functions[] = {
    /* device memory through the runtime */
    {"cudaMalloc", RUNTIME(RP_PROBE_ALLOC, .out = 1, .bytes = 2), .returns = true},
    {"cudaMallocPitch", RUNTIME(RP_PROBE_ALLOC, .out = 1, .pitch = 2, .bytes = 3, .height = 4),
     .returns = true},
    {"cudaMallocManaged", RUNTIME(RP_PROBE_ALLOC, .out = 1, .bytes = 2, .api = RP_ALLOC_MANAGED),
     .returns = true},
    {"cudaMallocAsync", RUNTIME(RP_PROBE_ALLOC, .out = 1, .bytes = 2, .api = RP_ALLOC_ASYNC),
     .returns = true},
    {"cudaMallocAsync_ptsz", RUNTIME(RP_PROBE_ALLOC, .out = 1, .bytes = 2, .api = RP_ALLOC_ASYNC),
     .returns = true},
    {"cudaMallocFromPoolAsync", RUNTIME(RP_PROBE_ALLOC, .out = 1, .bytes = 2, .api = RP_ALLOC_ASYNC),
     .returns = true},
    {"cudaMallocFromPoolAsync_ptsz", RUNTIME(RP_PROBE_ALLOC, .out = 1, .bytes = 2, .api = RP_ALLOC_ASYNC),
     .returns = true},
    {"cudaFree", RUNTIME(RP_PROBE_FREE, .address = 1), .returns = true},
    {"cudaFreeAsync", RUNTIME(RP_PROBE_FREE, .address = 1, .stream = 2, LEGACY, .api = RP_ALLOC_ASYNC),
     .returns = true},
    {"cudaFreeAsync_ptsz",
     RUNTIME(RP_PROBE_FREE, .address = 1, .stream = 2, PER_THREAD, .api = RP_ALLOC_ASYNC), .returns = true},

    /* device memory through the driver */
    {"cuMemAlloc_v2", DRIVER(RP_PROBE_ALLOC, .out = 1, .bytes = 2), .returns = true},
    {"cuMemAllocPitch_v2", DRIVER(RP_PROBE_ALLOC, .out = 1, .pitch = 2, .bytes = 3, .height = 4),
     .returns = true},
    {"cuMemAllocManaged", DRIVER(RP_PROBE_ALLOC, .out = 1, .bytes = 2, .api = RP_ALLOC_MANAGED),
     .returns = true},
    {"cuMemAllocAsync", DRIVER(RP_PROBE_ALLOC, .out = 1, .bytes = 2, .api = RP_ALLOC_ASYNC), .returns = true},
    {"cuMemAllocAsync_ptsz", DRIVER(RP_PROBE_ALLOC, .out = 1, .bytes = 2, .api = RP_ALLOC_ASYNC),
     .returns = true},
    {"cuMemAllocFromPoolAsync", DRIVER(RP_PROBE_ALLOC, .out = 1, .bytes = 2, .api = RP_ALLOC_ASYNC),
     .returns = true},
    {"cuMemAllocFromPoolAsync_ptsz", DRIVER(RP_PROBE_ALLOC, .out = 1, .bytes = 2, .api = RP_ALLOC_ASYNC),
     .returns = true},
    {"cuMemFree_v2", DRIVER(RP_PROBE_FREE, .address = 1), .returns = true},
    {"cuMemFreeAsync", DRIVER(RP_PROBE_FREE, .address = 1, .stream = 2, LEGACY, .api = RP_ALLOC_ASYNC),
     .returns = true},
    {"cuMemFreeAsync_ptsz",
     DRIVER(RP_PROBE_FREE, .address = 1, .stream = 2, PER_THREAD, .api = RP_ALLOC_ASYNC), .returns = true},
    {"cuMemCreate", DRIVER(RP_PROBE_CREATE, .out = 1, .bytes = 2), .returns = true},
    {"cuMemRelease", DRIVER(RP_PROBE_RELEASE, .address = 1), .returns = true},
    {"cuMemAddressReserve", DRIVER(RP_PROBE_RESERVE, .out = 1, .bytes = 2), .returns = true},
    {"cuMemAddressFree", DRIVER(RP_PROBE_UNRESERVE, .address = 1, .bytes = 2), .returns = true},
    {"cuMemMap", DRIVER(RP_PROBE_MAP, .address = 1, .bytes = 2, .api = RP_ALLOC_VMM), .returns = true},
    {"cuMemUnmap", DRIVER(RP_PROBE_UNMAP, .address = 1, .bytes = 2, .api = RP_ALLOC_VMM), .returns = true},

    /* NCCL */
    {NCCL(Recv, RP_PROBE_RECV, LEGACY)},
    {NCCL(Send, RP_PROBE_SEND, LEGACY)},
    {NCCL(GroupStart, RP_PROBE_GROUP_START)},
    {NCCL(GroupEnd, RP_PROBE_GROUP_END)},
    {NCCL(GroupSimulateEnd, RP_PROBE_GROUP_END, .address = 1)}, /* launches nothing, unless that is NULL */
    {NCCL(CommInitRank, RP_PROBE_COMM_INIT, .out = 1, .ranks = 2, .id_on_stack = 1, .rank = 3)},
    {NCCL(CommInitRankConfig, RP_PROBE_COMM_INIT, .out = 1, .ranks = 2, .id_on_stack = 1, .rank = 3)},
    {NCCL(CommInitRankScalable, RP_PROBE_COMM_INIT, .out = 1, .ranks = 2, .rank = 3, .id = 5)},
    {NCCL(CommInitAll, RP_PROBE_COMM_INIT_ALL, .out = 1, .ranks = 2)},
    {NCCL(CommSplit, RP_PROBE_COMM_SPLIT, .source = 1, .function = 2, .out = 4)},
    {NCCL(CommDestroy, RP_PROBE_COMM_DESTROY)},
    {NCCL(CommAbort, RP_PROBE_COMM_ABORT)},
    {NCCL(CommFinalize, RP_PROBE_BRACKET)},

    /* calls inside of which NCCL launches for itself */
    {NCCL(AllReduce, RP_PROBE_BRACKET), .need = RP_PROBE_WITH_LAUNCHES},
    {NCCL(ReduceScatter, RP_PROBE_BRACKET), .need = RP_PROBE_WITH_LAUNCHES},
    {NCCL(AllGather, RP_PROBE_BRACKET), .need = RP_PROBE_WITH_LAUNCHES},
    {NCCL(Broadcast, RP_PROBE_BRACKET), .need = RP_PROBE_WITH_LAUNCHES},
    {NCCL(Reduce, RP_PROBE_BRACKET), .need = RP_PROBE_WITH_LAUNCHES},
    {NCCL(AlltoAll, RP_PROBE_BRACKET), .need = RP_PROBE_WITH_LAUNCHES},
    {NCCL(Gather, RP_PROBE_BRACKET), .need = RP_PROBE_WITH_LAUNCHES},
    {NCCL(Scatter, RP_PROBE_BRACKET), .need = RP_PROBE_WITH_LAUNCHES},

/* launches; grid and block take four registers, so the parameters are the sixth argument */
#define LAUNCH .need = RP_PROBE_WITH_LAUNCHES
    {"cudaLaunchKernel", RUNTIME(RP_PROBE_LAUNCH, .function = 1, .params = 6, .stream = 8, LEGACY), LAUNCH},
    {"cudaLaunchKernel_ptsz", RUNTIME(RP_PROBE_LAUNCH, .function = 1, .params = 6, .stream = 8, PER_THREAD),
     LAUNCH},
    {"__cudaLaunchKernel", RUNTIME(RP_PROBE_LAUNCH, .function = 1, .params = 6, .stream = 8, LEGACY), LAUNCH},
    {"__cudaLaunchKernel_ptsz", RUNTIME(RP_PROBE_LAUNCH, .function = 1, .params = 6, .stream = 8, PER_THREAD),
     LAUNCH},
    {"cudaLaunchCooperativeKernel", RUNTIME(RP_PROBE_LAUNCH, .function = 1, .params = 6, .stream = 8, LEGACY),
     LAUNCH},
    {"cudaLaunchCooperativeKernel_ptsz",
     RUNTIME(RP_PROBE_LAUNCH, .function = 1, .params = 6, .stream = 8, PER_THREAD), LAUNCH},
    {"cudaLaunchKernelExC", RUNTIME(RP_PROBE_LAUNCH, .config = 1, .function = 2, .params = 3, LEGACY),
     LAUNCH},
    {"cudaLaunchKernelExC_ptsz",
     RUNTIME(RP_PROBE_LAUNCH, .config = 1, .function = 2, .params = 3, PER_THREAD), LAUNCH},
    {"cuLaunchKernel", DRIVER(RP_PROBE_LAUNCH, .function = 1, .stream = 9, .params = 10, LEGACY), LAUNCH},
    {"cuLaunchKernel_ptsz", DRIVER(RP_PROBE_LAUNCH, .function = 1, .stream = 9, .params = 10, PER_THREAD),
     LAUNCH},
    {"cuLaunchCooperativeKernel", DRIVER(RP_PROBE_LAUNCH, .function = 1, .stream = 9, .params = 10, LEGACY),
     LAUNCH},
    {"cuLaunchCooperativeKernel_ptsz",
     DRIVER(RP_PROBE_LAUNCH, .function = 1, .stream = 9, .params = 10, PER_THREAD), LAUNCH},
    {"cuLaunchKernelEx", DRIVER(RP_PROBE_LAUNCH, .config = 1, .function = 2, .params = 3, LEGACY), LAUNCH},
    {"cuLaunchKernelEx_ptsz", DRIVER(RP_PROBE_LAUNCH, .config = 1, .function = 2, .params = 3, PER_THREAD),
     LAUNCH},

/* copies and memsets */
#define RUNTIME_COPY(name, ...)                                                                              \
  { name, RUNTIME(RP_PROBE_COPY, .address = 1, .source = 2, .bytes = 3, __VA_ARGS__), LAUNCH }
#define DRIVER_COPY(name, ...)                                                                               \
  { name, DRIVER(RP_PROBE_COPY, .address = 1, .source = 2, .bytes = 3, __VA_ARGS__), LAUNCH }
    RUNTIME_COPY("cudaMemcpy", LEGACY),
    RUNTIME_COPY("cudaMemcpy_ptds", PER_THREAD),
    RUNTIME_COPY("cudaMemcpyAsync", .stream = 5, LEGACY),
    RUNTIME_COPY("cudaMemcpyAsync_ptsz", .stream = 5, PER_THREAD),
    DRIVER_COPY("cuMemcpy", LEGACY),
    DRIVER_COPY("cuMemcpyAsync", .stream = 4, LEGACY),
    DRIVER_COPY("cuMemcpyAsync_ptsz", .stream = 4, PER_THREAD),
    DRIVER_COPY("cuMemcpyHtoD_v2", LEGACY),
    DRIVER_COPY("cuMemcpyDtoH_v2", LEGACY),
    DRIVER_COPY("cuMemcpyDtoD_v2", LEGACY),
    DRIVER_COPY("cuMemcpyHtoDAsync_v2", .stream = 4, LEGACY),
    DRIVER_COPY("cuMemcpyHtoDAsync_v2_ptsz", .stream = 4, PER_THREAD),
    DRIVER_COPY("cuMemcpyDtoHAsync_v2", .stream = 4, LEGACY),
    DRIVER_COPY("cuMemcpyDtoHAsync_v2_ptsz", .stream = 4, PER_THREAD),
    DRIVER_COPY("cuMemcpyDtoDAsync_v2", .stream = 4, LEGACY),
    DRIVER_COPY("cuMemcpyDtoDAsync_v2_ptsz", .stream = 4, PER_THREAD),
    {"cudaMemcpy2DAsync",
     RUNTIME(RP_PROBE_COPY, .address = 1, .source = 3, .pitch = 4, .height = 6, .stream = 8, LEGACY), LAUNCH},
    {"cudaMemcpy2DAsync_ptsz",
     RUNTIME(RP_PROBE_COPY, .address = 1, .source = 3, .pitch = 4, .height = 6, .stream = 8, PER_THREAD),
     LAUNCH},
    {"cudaMemcpyPeerAsync",
     RUNTIME(RP_PROBE_COPY, .address = 1, .source = 3, .bytes = 5, .stream = 6, LEGACY), LAUNCH},
#define RUNTIME_SET(name, ...)                                                                               \
  { name, RUNTIME(RP_PROBE_MEMSET, .address = 1, .bytes = 3, __VA_ARGS__), LAUNCH }
#define DRIVER_SET(name, ...)                                                                                \
  { name, DRIVER(RP_PROBE_MEMSET, .address = 1, .bytes = 3, __VA_ARGS__), LAUNCH }
    RUNTIME_SET("cudaMemset", LEGACY),
    RUNTIME_SET("cudaMemset_ptds", PER_THREAD),
    RUNTIME_SET("cudaMemsetAsync", .stream = 4, LEGACY),
    RUNTIME_SET("cudaMemsetAsync_ptsz", .stream = 4, PER_THREAD),
    DRIVER_SET("cuMemsetD8Async", .stream = 4, LEGACY),
    DRIVER_SET("cuMemsetD16Async", .stream = 4, .unit_log2 = 1, LEGACY),
    DRIVER_SET("cuMemsetD32Async", .stream = 4, .unit_log2 = 2, LEGACY),

    /* the dynamic loader calls it before and after it changes the list of loaded libraries */
    {"_dl_debug_state", .shape = {.class_ = RP_PROBE_LOADER, .layer = RP_PROBE_SYSTEM}},
};
#define FUNCTION_COUNT (sizeof functions / sizeof functions[0])

_Static_assert(FUNCTION_COUNT < RP_PROBE_FUNCTION_PROCESS, "the table must fit the kernel's side");

size_t rp_probe_function_count(void) {
  return FUNCTION_COUNT;
}

const struct rp_probe_function *rp_probe_function_at(size_t index) {
  return index < FUNCTION_COUNT ? &functions[index] : NULL;
}

/* Libraries have tens of thousands of symbols; few begin like ours. */
static bool worth_comparing(const char *symbol) {
  return strncmp(symbol, "cu", 2) == 0 || strncmp(symbol, "__cu", 4) == 0 ||
         strncmp(symbol, "nccl", 4) == 0 || strncmp(symbol, "pnccl", 5) == 0 ||
         strncmp(symbol, "_dl_", 4) == 0;
}

int rp_probe_function_find(const char *symbol) {
  if (!worth_comparing(symbol)) return -1;
  for (size_t i = 0; i < FUNCTION_COUNT; i++)
    if (strcmp(symbol, functions[i].name) == 0 ||
        (functions[i].alias && strcmp(symbol, functions[i].alias) == 0))
      return (int)i;
  return -1;
}

unsigned rp_probe_function_arguments(size_t index) {
  const struct rp_probe_function *function = rp_probe_function_at(index);
  if (!function) return 0;
  const struct rp_probe_shape *shape = &function->shape;
  const uint8_t numbers[] = {shape->out,    shape->address, shape->bytes,   shape->pitch,
                             shape->height, shape->stream,  shape->source,  shape->ranks,
                             shape->rank,   shape->id,      shape->function};
  unsigned most = 0;
  for (size_t i = 0; i < sizeof numbers; i++)
    if (numbers[i] > most) most = numbers[i];
  if (shape->class_ == RP_PROBE_RECV || shape->class_ == RP_PROBE_SEND) most = RP_PROBE_REGISTERS;
  if (shape->class_ == RP_PROBE_COMM_DESTROY || shape->class_ == RP_PROBE_COMM_ABORT) most = 1;
  return most < RP_PROBE_REGISTERS ? most : RP_PROBE_REGISTERS;
}

const char *rp_probe_layer_name(enum rp_probe_layer layer) {
  static const char *const names[] = {"runtime", "driver", "nccl", "system"};
  return (unsigned)layer < sizeof names / sizeof names[0] ? names[layer] : "unknown";
}
