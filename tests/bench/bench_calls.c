/* Times single calls of this process, attached or not: launches that miss or hit a receive buffer, transfers,
 * event records and stream waits. The launches have an empty grid, so the driver refuses them right after its
 * callbacks and nothing but the call is timed; those of `use` are made, and do nothing.
 *
 *   bench_calls launch|use|transfer|record|wait miss|hit none|empty|resource COUNT
 *
 * Records and waits: `hit` when a receive buffer has been used before, so that there is something to order.
 * `empty` subscribes an empty CUPTI callback for launches: the floor under any observer; `resource` one for
 * resources and waits only. Prints nanoseconds per call, the smallest mean of ten batches. Runs on the
 * simulated device and on a real one. */
#include <cuda.h>
#include <cupti.h>
#include <dlfcn.h>
#include <nccl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/gpu/gpu_kernels.h"

#define BUFFER_BYTES (1u << 20)
#define BATCHES 10

static void fail(const char *what, int code) {
  fprintf(stderr, "bench_calls: %s failed with %d\n", what, code);
  exit(1);
}

#define CHECK(call)                                                                                          \
  do {                                                                                                       \
    int result_ = (int)(call);                                                                               \
    if (result_) fail(#call, result_);                                                                       \
  } while (0)

static double now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static void CUPTIAPI empty_callback(void *user, CUpti_CallbackDomain domain, CUpti_CallbackId id,
                                    const void *data) {
  (void)user;
  (void)domain;
  (void)id;
  (void)data;
}

static void subscribe_empty(bool launches) {
  void *cupti = dlopen("libcupti.so.13", RTLD_NOW | RTLD_LOCAL);
  if (!cupti) fail("dlopen(libcupti.so.13)", 0);
  CUptiResult (*subscribe)(CUpti_SubscriberHandle *, CUpti_CallbackFunc, void *) =
      (CUptiResult(*)(CUpti_SubscriberHandle *, CUpti_CallbackFunc, void *))dlsym(cupti, "cuptiSubscribe");
  CUptiResult (*enable)(uint32_t, CUpti_SubscriberHandle, CUpti_CallbackDomain, CUpti_CallbackId) =
      (CUptiResult(*)(uint32_t, CUpti_SubscriberHandle, CUpti_CallbackDomain, CUpti_CallbackId))dlsym(
          cupti, "cuptiEnableCallback");
  CUptiResult (*enable_domain)(uint32_t, CUpti_SubscriberHandle, CUpti_CallbackDomain) =
      (CUptiResult(*)(uint32_t, CUpti_SubscriberHandle, CUpti_CallbackDomain))dlsym(cupti,
                                                                                    "cuptiEnableDomain");
  CUpti_SubscriberHandle subscriber;
  CHECK(subscribe(&subscriber, empty_callback, NULL));
  if (launches) {
    CHECK(enable(1, subscriber, CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel));
    return;
  }
  CHECK(enable_domain(1, subscriber, CUPTI_CB_DOMAIN_RESOURCE));
  CHECK(enable_domain(1, subscriber, CUPTI_CB_DOMAIN_SYNCHRONIZE));
}

static double time_launches(CUfunction function, CUdeviceptr pointer, CUdeviceptr other, long count) {
  int n = 3, m = 4;
  void *params[] = {&other, &other, &pointer, &other, &n, &m};
  double best = 1e300;
  for (int batch = 0; batch < BATCHES; batch++) {
    double begin = now_ns();
    for (long i = 0; i < count; i++)
      if (cuLaunchKernel(function, 0, 1, 1, 1, 1, 1, 0, NULL, params, NULL) == CUDA_SUCCESS)
        fail("a launch of nothing succeeded", 0);
    double each = (now_ns() - begin) / (double)count;
    best = each < best ? each : best;
  }
  return best;
}

static void transfer(ncclComm_t comm, CUdeviceptr from, CUdeviceptr to) {
  CHECK(ncclGroupStart());
  CHECK(ncclSend((void *)from, BUFFER_BYTES, ncclUint8, 0, comm, NULL));
  CHECK(ncclRecv((void *)to, BUFFER_BYTES, ncclUint8, 0, comm, NULL));
  CHECK(ncclGroupEnd());
}

static double time_uses(CUfunction function, CUdeviceptr pointer, CUdeviceptr other, long count) {
  int n = 3, m = 4;
  void *params[] = {&other, &other, &pointer, &other, &n, &m};
  double best = 1e300;
  for (int batch = 0; batch < BATCHES; batch++) {
    double begin = now_ns();
    for (long i = 0; i < count; i++)
      CHECK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    double each = (now_ns() - begin) / (double)count;
    CHECK(cuCtxSynchronize());
    best = each < best ? each : best;
  }
  return best;
}

static double time_transfers(ncclComm_t comm, CUdeviceptr from, CUdeviceptr to, long count) {
  double best = 1e300;
  for (int batch = 0; batch < BATCHES; batch++) {
    double begin = now_ns();
    for (long i = 0; i < count; i++)
      transfer(comm, from, to);
    CHECK(cuCtxSynchronize());
    double each = (now_ns() - begin) / (double)count;
    best = each < best ? each : best;
  }
  return best;
}

static double time_records(CUstream from, CUevent event, long count) {
  double best = 1e300;
  for (int batch = 0; batch < BATCHES; batch++) {
    double begin = now_ns();
    for (long i = 0; i < count; i++)
      CHECK(cuEventRecord(event, from));
    double each = (now_ns() - begin) / (double)count;
    CHECK(cuCtxSynchronize());
    best = each < best ? each : best;
  }
  return best;
}

static double time_waits(CUstream to, CUevent event, long count) {
  double best = 1e300;
  for (int batch = 0; batch < BATCHES; batch++) {
    double begin = now_ns();
    for (long i = 0; i < count; i++)
      CHECK(cuStreamWaitEvent(to, event, 0));
    double each = (now_ns() - begin) / (double)count;
    CHECK(cuCtxSynchronize());
    best = each < best ? each : best;
  }
  return best;
}

/* Eight streams have work that is to be ordered, if `used` is a receive buffer. */
static double time_order(bool waits, CUdeviceptr used, long count) {
  CUstream streams[8];
  CUevent event;
  CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  for (int i = 0; i < 8; i++) {
    CHECK(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
    CHECK(cuMemsetD8Async(used, 0, 64, streams[i]));
    CHECK(cuEventRecord(event, streams[i]));
    CHECK(cuStreamWaitEvent(streams[0], event, 0));
  }
  return waits ? time_waits(streams[0], event, count) : time_records(streams[0], event, count);
}

int main(int argc, char **argv) {
  if (argc != 5) {
    fprintf(stderr,
            "usage: bench_calls launch|use|transfer|record|wait miss|hit none|empty|resource COUNT\n");
    return 2;
  }
  rp_gpu_register();
  CUdevice device;
  CUcontext context;
  CHECK(cuInit(0));
  CHECK(cuDeviceGet(&device, 0));
  CHECK(cuDevicePrimaryCtxRetain(&context, device));
  CHECK(cuCtxSetCurrent(context));
  CUdeviceptr source, received, plain;
  CHECK(cuMemAlloc(&plain, BUFFER_BYTES));
  CHECK(cuMemAlloc(&received, BUFFER_BYTES));
  CHECK(cuMemAlloc(&source, BUFFER_BYTES));
  CHECK(cuMemsetD8(plain, 0, 64)); /* what nothing has used yet may still be a receive buffer */
  ncclUniqueId id;
  ncclComm_t comm;
  CHECK(ncclGetUniqueId(&id));
  CHECK(ncclCommInitRank(&comm, 1, id, 0));
  const bool hit = !strcmp(argv[2], "hit"), order = !strcmp(argv[1], "record") || !strcmp(argv[1], "wait");
  if (hit || !order) transfer(comm, source, received);
  CHECK(cuCtxSynchronize());
  CUlibrary library;
  CUkernel handle;
  CUfunction function;
  CHECK(cuLibraryLoadData(&library, rp_gpu_ptx, NULL, NULL, 0, NULL, NULL, 0));
  CHECK(cuLibraryGetKernel(&handle, library, RP_GPU_NOTHING));
  CHECK(cuKernelGetFunction(&function, handle));
  if (strcmp(argv[3], "none") != 0) subscribe_empty(!strcmp(argv[3], "empty"));
  long count = strtol(argv[4], NULL, 10);
  CUdeviceptr pointer = hit ? received : plain;
  double each = order                       ? time_order(!strcmp(argv[1], "wait"), pointer, count)
                : !strcmp(argv[1], "use")   ? time_uses(function, pointer, plain, count)
                : strcmp(argv[1], "launch") ? time_transfers(comm, source, received, count)
                                            : time_launches(function, pointer, plain, count);
  printf("%.1f\n", each);
  CHECK(ncclCommDestroy(comm));
  return 0;
}
