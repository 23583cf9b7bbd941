/* order_program odd: single situations in which it is easy to promise too much, each with its neighbour in
 * which something has to be promised. */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/e2e/order_program.h"

static long kept;

static void expect(bool promised, bool expected, const char *what) {
  if (promised && expected) kept++;
  if (promised == expected) return;
  printf("%s: %s promised\n", what, promised ? "wrongly" : "not");
  broken_promises++;
}

static rp_order_token use(cudaStream_t stream) {
  const struct order_launch launch = {.stream = stream, .buffer = watched};
  check(order_calls_runtime.launch(&launch), "launch");
  return probe->take();
}

static bool before(rp_order_token token, cudaStream_t stream) {
  bool answer;
  probe->before(&token, 1, order_stream(stream), false, &answer);
  return answer;
}

static bool known(rp_order_token token) {
  bool answer;
  probe->known(&token, 1, &answer);
  return answer;
}

static cudaStream_t new_stream(void) {
  cudaStream_t stream;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "create stream");
  return stream;
}

static cudaEvent_t new_event(unsigned flags) {
  cudaEvent_t event;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | flags), "create event");
  return event;
}

/* Does an access on one stream become ordered before another stream by this event? */
static bool orders(cudaEvent_t event) {
  cudaStream_t one = new_stream(), other = new_stream();
  rp_order_token token = use(one);
  check(cudaEventRecord(event, one), "record");
  check(cudaStreamWaitEvent(other, event, 0), "wait");
  const bool answer = before(token, other);
  check(cudaStreamDestroy(one), "destroy stream");
  check(cudaStreamDestroy(other), "destroy stream");
  return answer;
}

/* ---- events that others record ---- */

static void events_recorded_by_graphs(void) {
  cudaEvent_t event = new_event(0);
  cudaStream_t stream = new_stream();
  cudaGraph_t graph;
  expect(orders(event), true, "plain event");
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), "begin capture");
  check(cudaEventRecordWithFlags(event, stream, cudaEventRecordExternal), "external record");
  check(cudaStreamWaitEvent(stream, event, cudaEventWaitExternal), "external wait");
  check(cudaStreamEndCapture(stream, &graph), "end capture");
  expect(orders(event), false, "event that a graph records");
  check(cudaEventDestroy(event), "destroy event");
  expect(orders(new_event(0)), true, "event with a handle used before");
}

static void events_of_other_processes(void) {
  cudaIpcEventHandle_t handle;
  cudaEvent_t event = new_event(cudaEventInterprocess), opened = NULL;
  expect(orders(event), true, "event that nobody else has");
  const bool exported = cudaIpcGetEventHandle(&handle, event) == cudaSuccess;
  expect(orders(event), false, "event given to another process");
  if (!exported || cudaIpcOpenEventHandle(&opened, handle) != cudaSuccess) return;
  expect(orders(opened), false, "event of another process");
}

/* ---- handles that come back ---- */

static void events_that_come_back(void) {
  cudaStream_t one = new_stream(), other = new_stream();
  cudaEvent_t event = new_event(0), again = NULL;
  rp_order_token token = use(one);
  check(cudaEventRecord(event, one), "record");
  check(cudaEventDestroy(event), "destroy event");
  for (int i = 0; i < 100 && again != event; i++)
    again = new_event(0);
  check(cudaStreamWaitEvent(other, again, 0), "wait");
  expect(before(token, other), false, "event created again");
}

static void streams_that_come_back(void) {
  cudaStream_t one = new_stream(), again = NULL;
  rp_order_token token = use(one);
  check(cudaStreamDestroy(one), "destroy stream");
  for (int i = 0; i < 100 && again != one; i++)
    again = new_stream();
  expect(before(token, again), false, "stream created again");
  check(cudaDeviceSynchronize(), "synchronise");
  expect(known(token), true, "destroyed stream of a synchronised device");
}

static void *use_own_stream(void *token) {
  check(cudaSetDevice(0), "set device");
  *(rp_order_token *)token = use(cudaStreamPerThread);
  return NULL;
}

static void *ask_own_stream(void *token) {
  check(cudaSetDevice(0), "set device");
  expect(before(*(rp_order_token *)token, cudaStreamPerThread), false, "default stream of a later thread");
  expect(before(*(rp_order_token *)token, cudaStreamLegacy), false, "legacy stream after a thread has ended");
  *(rp_order_token *)token = use(cudaStreamPerThread);
  expect(before(*(rp_order_token *)token, cudaStreamPerThread), true, "default stream of the same thread");
  return NULL;
}

static void threads_that_come_back(void) {
  for (int i = 0; i < 20; i++) {
    pthread_t thread;
    rp_order_token token;
    check(pthread_create(&thread, NULL, use_own_stream, &token), "pthread_create");
    pthread_join(thread, NULL);
    check(pthread_create(&thread, NULL, ask_own_stream, &token), "pthread_create");
    pthread_join(thread, NULL);
  }
}

/* ---- what the host knows ---- */

static _Atomic bool let_go;

static void hold(void *unused) {
  (void)unused;
  while (!let_go)
    wait_a_little(50000);
}

static void questions_that_are_answered_not_yet(void) {
  cudaStream_t stream = new_stream();
  cudaEvent_t event = new_event(0);
  let_go = false;
  check(cudaLaunchHostFunc(stream, hold, NULL), "host function");
  rp_order_token token = use(stream);
  check(cudaEventRecord(event, stream), "record");
  expect(cudaStreamQuery(stream) == cudaSuccess || known(token), false, "stream that is busy");
  expect(cudaEventQuery(event) == cudaSuccess || known(token), false, "event that is to come");
  let_go = true;
  while (cudaEventQuery(event) != cudaSuccess)
    wait_a_little(50000);
  expect(known(token), true, "event that has come");
}

static void copies(void) {
  char plain_memory[64];
  void *pinned, *managed, *device;
  check(cudaMallocHost(&pinned, 64), "allocate");
  check(cudaMallocManaged(&managed, 64, cudaMemAttachGlobal), "allocate");
  check(cudaMalloc(&device, 64), "allocate");
  const struct {
    const char *what;
    void *to, *from;
    enum cudaMemcpyKind kind;
    bool waits;
  } cases[] = {
      {"copy to plain memory", plain_memory, device, cudaMemcpyDeviceToHost, true},
      {"copy to plain memory, by address", plain_memory, device, cudaMemcpyDefault, true},
      {"copy to pinned memory", pinned, device, cudaMemcpyDeviceToHost, true},
      {"copy from pinned memory", device, pinned, cudaMemcpyHostToDevice, true},
      {"copy from plain memory", device, plain_memory, cudaMemcpyHostToDevice, false},
      {"copy within the device", device, watched, cudaMemcpyDeviceToDevice, false},
      {"copy to managed memory", managed, device, cudaMemcpyDefault, false},
  };
  memset(plain_memory, 0, sizeof plain_memory);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    rp_order_token token = use(cudaStreamLegacy);
    const rp_order_token own = calls->default_is_legacy ? token : use(cudaStreamPerThread);
    check(cudaMemcpy(cases[i].to, cases[i].from, 64, cases[i].kind), cases[i].what);
    (void)probe->take();
    expect(known(own), cases[i].waits, cases[i].what);
    check(cudaDeviceSynchronize(), "synchronise");
  }
}

/* ---- calls that cannot be interposed ---- */

static void calls_by_address(void) {
  const char *cupti = getenv("RECVPOOL_CUPTI");
  const bool seen = !cupti || strcmp(cupti, "off") != 0;
  CUresult (*record)(CUevent, CUstream) = NULL, (*wait)(CUstream, CUevent, unsigned) = NULL;
  void *found;
  CUdriverProcAddressQueryResult status;
  check(cuGetProcAddress("cuEventRecord", &found, 12000, 0, &status), "find");
  memcpy(&record, &found, sizeof record);
  check(cuGetProcAddress("cuStreamWaitEvent", &found, 12000, 0, &status), "find");
  memcpy(&wait, &found, sizeof wait);
  cudaStream_t one = new_stream(), other = new_stream(), third = new_stream();
  cudaEvent_t event = new_event(0);
  rp_order_token first = use(one);
  check(record(event, one), "record");
  rp_order_token second = use(one);
  check(wait(other, event, 0), "wait");
  expect(before(first, other), seen, "record and wait by address");
  expect(before(second, other), false, "record and wait by address, before");
  check(cudaEventRecord(event, one), "record");
  check(wait(third, event, 0), "wait");
  expect(before(second, third), seen, "wait by address");
}

/* ---- contexts ---- */

static void devices_are_apart(void) {
  int count = 0;
  check(cudaGetDeviceCount(&count), "count devices");
  if (count < 2) return;
  rp_order_token token = use(cudaStreamLegacy);
  check(cudaSetDevice(1), "set device");
  expect(before(token, cudaStreamLegacy), false, "legacy stream of another device");
  check(cudaDeviceSynchronize(), "synchronise");
  expect(known(token), false, "synchronised other device");
  check(cudaSetDevice(0), "set device");
  expect(before(token, cudaStreamLegacy), true, "legacy stream of the device");
}

static void contexts_that_end(void) {
  cudaStream_t stream = new_stream();
  rp_order_token token = use(stream), legacy = use(cudaStreamLegacy);
  check(cudaDeviceReset(), "reset");
  check(cudaSetDevice(0), "set device");
  expect(before(token, new_stream()), false, "stream of a new context");
  (void)legacy;
  cudaStream_t one = new_stream();
  const struct order_launch launch = {.stream = one, .buffer = NULL};
  check(order_calls_runtime.launch(&launch), "launch");
  check(cudaStreamSynchronize(one), "synchronise");
}

long odd_mode(void) {
  events_recorded_by_graphs();
  events_of_other_processes();
  events_that_come_back();
  streams_that_come_back();
  threads_that_come_back();
  questions_that_are_answered_not_yet();
  copies();
  calls_by_address();
  devices_are_apart();
  contexts_that_end();
  return kept;
}
