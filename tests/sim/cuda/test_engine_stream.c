/* Streams and events: order, default streams, what an event captures, launches and their parameters, copies,
 * host functions, sticky errors, jitter. Order is shown with gates, never with time. */
#include "test_engine_host.h"
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static CUstream new_stream(unsigned flags) {
  CUstream stream;
  assert_cuda(impl_cuStreamCreate(&stream, flags));
  return stream;
}

static CUevent new_event(unsigned flags) {
  CUevent event;
  assert_cuda(impl_cuEventCreate(&event, flags));
  return event;
}

static CUdeviceptr new_words(size_t count) {
  CUdeviceptr address;
  assert_cuda(impl_cuMemAlloc_v2(&address, count * 4));
  assert_cuda(impl_cuMemsetD32_v2(address, 0, count));
  return address;
}

static void legacy_stream_orders_blocking_streams(void **state) {
  (void)state;
  struct host_gate *gate = host_gate_new();
  CUstream blocking = new_stream(CU_STREAM_DEFAULT), later = new_stream(CU_STREAM_DEFAULT);
  CUstream free_stream = new_stream(CU_STREAM_NON_BLOCKING);
  CUdeviceptr words = new_words(4);
  assert_cuda(host_block(blocking, gate));
  assert_cuda(host_write(blocking, words, 1));
  assert_cuda(host_copy(CU_STREAM_LEGACY, words, words + 4)); /* waits for `blocking` */
  assert_cuda(host_copy(later, words + 4, words + 8));        /* waits for legacy */
  assert_cuda(host_write(free_stream, words + 12, 9));        /* waits for nobody */
  assert_cuda(impl_cuStreamSynchronize(free_stream));
  assert_int_equal(impl_cuStreamQuery(blocking), CUDA_ERROR_NOT_READY);
  assert_int_equal(impl_cuStreamQuery(CU_STREAM_LEGACY), CUDA_ERROR_NOT_READY);
  assert_int_equal(impl_cuStreamQuery(later), CUDA_ERROR_NOT_READY);
  assert_cuda(impl_cuStreamQuery(free_stream));
  host_gate_open(gate);
  assert_int_equal(host_word(words + 8), 1);
  assert_int_equal(host_word(words + 12), 9);
  assert_cuda(impl_cuStreamQuery(CU_STREAM_LEGACY));
  assert_cuda(impl_cuMemFree_v2(words));
  assert_cuda(impl_cuStreamDestroy_v2(blocking));
  assert_cuda(impl_cuStreamDestroy_v2(later));
  assert_cuda(impl_cuStreamDestroy_v2(free_stream));
}

static void *block_own_default_stream(void *argument) {
  sim_context_set_current(host_context());
  sim_default_stream = CU_STREAM_PER_THREAD;
  struct host_gate *gate = argument;
  assert_cuda(host_block(NULL, gate));
  host_gate_await(gate);
  return NULL;
}

static void each_thread_has_its_default_stream(void **state) {
  (void)state;
  struct host_gate *gate = host_gate_new();
  CUdeviceptr word = new_words(1);
  pthread_t thread;
  pthread_create(&thread, NULL, block_own_default_stream, gate);
  pthread_join(thread, NULL); /* its stream lives on until its work is done */
  sim_default_stream = CU_STREAM_PER_THREAD;
  unsigned long long mine, named, legacy;
  assert_cuda(impl_cuStreamGetId(NULL, &mine));
  assert_cuda(impl_cuStreamGetId(CU_STREAM_PER_THREAD, &named));
  assert_cuda(impl_cuStreamGetId(CU_STREAM_LEGACY, &legacy));
  assert_true(mine == named && mine != legacy);
  assert_cuda(host_write(NULL, word, 3)); /* not held up by the other thread's stream */
  assert_cuda(impl_cuStreamSynchronize(NULL));
  sim_default_stream = CU_STREAM_LEGACY;
  assert_int_equal(impl_cuStreamQuery(NULL), CUDA_ERROR_NOT_READY); /* but legacy waits for it */
  host_gate_open(gate);
  assert_int_equal(host_word(word), 3);
  assert_cuda(impl_cuMemFree_v2(word));
}

static void events_capture_the_work_at_the_time_of_the_call(void **state) {
  (void)state;
  struct host_gate *first = host_gate_new(), *second = host_gate_new();
  CUstream producer = new_stream(CU_STREAM_NON_BLOCKING), consumer = new_stream(CU_STREAM_NON_BLOCKING);
  CUevent event = new_event(CU_EVENT_DISABLE_TIMING);
  CUdeviceptr words = new_words(3);
  assert_cuda(impl_cuStreamWaitEvent(consumer, event, 0)); /* never recorded: nothing */
  assert_cuda(impl_cuEventQuery(event));
  assert_cuda(impl_cuStreamSynchronize(consumer));
  assert_cuda(host_block(producer, first));
  assert_cuda(host_write(producer, words, 1));
  assert_cuda(impl_cuEventRecord(event, producer));
  assert_cuda(impl_cuStreamWaitEvent(consumer, event, 0)); /* the first recording */
  assert_cuda(host_copy(consumer, words, words + 4));
  assert_cuda(host_block(producer, second));
  assert_cuda(impl_cuEventRecord(event, producer)); /* overwrites it for whoever asks from now on */
  host_gate_open(first);
  assert_cuda(impl_cuStreamSynchronize(consumer)); /* not held up by `second` */
  assert_int_equal(impl_cuEventQuery(event), CUDA_ERROR_NOT_READY);
  assert_cuda(impl_cuEventDestroy_v2(event)); /* pending: legal */
  assert_int_equal(impl_cuEventQuery(event), CUDA_ERROR_INVALID_HANDLE);
  host_gate_open(second);
  assert_int_equal(host_word(words + 4), 1);
  assert_cuda(impl_cuMemFree_v2(words));
  assert_cuda(impl_cuStreamDestroy_v2(producer));
  assert_cuda(impl_cuStreamDestroy_v2(consumer));
}

static void event_times_need_two_reached_timed_events(void **state) {
  (void)state;
  CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
  CUevent start = new_event(0), end = new_event(0), untimed = new_event(CU_EVENT_DISABLE_TIMING);
  struct host_gate *gate = host_gate_new();
  float milliseconds = -1;
  uint32_t addend = 1, sleep_us = 2000;
  CUdeviceptr word = new_words(1);
  assert_int_equal(impl_cuEventElapsedTime_v2(&milliseconds, start, end), CUDA_ERROR_INVALID_HANDLE);
  assert_cuda(impl_cuEventRecord(start, stream));
  assert_cuda(impl_cuEventRecord(untimed, stream));
  assert_cuda(host_launch(&host_slow_add, stream, (void *[]){&word, &addend, &sleep_us}));
  assert_cuda(host_block(stream, gate));
  assert_cuda(impl_cuEventRecord(end, stream));
  assert_int_equal(impl_cuEventElapsedTime_v2(&milliseconds, start, end), CUDA_ERROR_NOT_READY);
  host_gate_open(gate);
  assert_cuda(impl_cuEventSynchronize(end));
  assert_cuda(impl_cuEventElapsedTime_v2(&milliseconds, start, end));
  assert_true(milliseconds >= 2.0f);
  assert_int_equal(impl_cuEventElapsedTime_v2(&milliseconds, untimed, end), CUDA_ERROR_INVALID_HANDLE);
  assert_int_equal(impl_cuEventCreate(&start, CU_EVENT_INTERPROCESS), CUDA_ERROR_INVALID_VALUE);
  assert_cuda(impl_cuEventDestroy_v2(end));
  assert_cuda(impl_cuMemFree_v2(word));
  assert_cuda(impl_cuStreamDestroy_v2(stream));
}

static void events_and_streams_end_with_their_context(void **state) {
  (void)state;
  struct sim_context other = {.device = 0};
  CUevent mine = new_event(0), theirs, unused;
  float milliseconds;
  assert_cuda(sim_engine_context_create(&other));
  sim_context_set_current(&other);
  CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
  theirs = new_event(0);
  unused = new_event(0);
  assert_cuda(impl_cuEventRecord(theirs, stream));
  sim_context_set_current(host_context());
  assert_cuda(impl_cuEventRecord(mine, NULL));
  sim_engine_context_destroy(&other);
  assert_int_equal(impl_cuEventQuery(theirs), CUDA_ERROR_INVALID_HANDLE);
  assert_int_equal(impl_cuEventQuery(unused), CUDA_ERROR_INVALID_HANDLE);
  assert_int_equal(impl_cuEventElapsedTime_v2(&milliseconds, theirs, theirs), CUDA_ERROR_INVALID_HANDLE);
  assert_int_equal(impl_cuStreamWaitEvent(NULL, theirs, 0), CUDA_ERROR_INVALID_HANDLE);
  assert_int_equal(impl_cuEventDestroy_v2(theirs), CUDA_ERROR_INVALID_HANDLE);
  assert_int_equal(impl_cuStreamSynchronize(stream), CUDA_ERROR_INVALID_HANDLE);
  assert_cuda(impl_cuEventSynchronize(mine));
  assert_cuda(impl_cuEventDestroy_v2(mine));
}

static void a_destroyed_stream_finishes_its_work(void **state) {
  (void)state;
  struct host_gate *gate = host_gate_new();
  CUstream stream = new_stream(CU_STREAM_NON_BLOCKING), never_used = new_stream(CU_STREAM_DEFAULT);
  CUdeviceptr word = new_words(1);
  assert_cuda(host_block(stream, gate));
  assert_cuda(host_write(stream, word, 8));
  assert_cuda(impl_cuStreamDestroy_v2(stream));
  assert_cuda(impl_cuStreamDestroy_v2(never_used));
  assert_int_equal(impl_cuStreamQuery(stream), CUDA_ERROR_INVALID_HANDLE);
  assert_int_equal(host_write(stream, word, 9), CUDA_ERROR_INVALID_HANDLE);
  assert_int_equal(impl_cuStreamDestroy_v2(stream), CUDA_ERROR_INVALID_HANDLE);
  host_gate_open(gate);
  assert_int_equal(host_word(word), 8);
  assert_cuda(impl_cuMemFree_v2(word));
}

static void streams_tell_what_they_are(void **state) {
  (void)state;
  CUstream stream;
  unsigned flags;
  int priority;
  CUcontext context;
  CUdevice device = -1;
  unsigned before = host_resource_count(CUPTI_CBID_RESOURCE_STREAM_CREATED);
  assert_cuda(impl_cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, -99));
  assert_int_equal(host_resource_count(CUPTI_CBID_RESOURCE_STREAM_CREATED), before + 1);
  assert_cuda(impl_cuStreamGetFlags(stream, &flags));
  assert_cuda(impl_cuStreamGetPriority(stream, &priority));
  assert_cuda(impl_cuStreamGetCtx(stream, &context));
  assert_cuda(impl_cuStreamGetDevice(stream, &device));
  assert_int_equal(flags, CU_STREAM_NON_BLOCKING);
  assert_int_equal(priority, -5);
  assert_ptr_equal(context, host_context());
  assert_int_equal(device, 0);
  assert_int_equal(impl_cuStreamCreate(&stream, 8), CUDA_ERROR_INVALID_VALUE);
  assert_cuda(impl_cuStreamDestroy_v2(stream));
}

/* ---- launches ---- */

static void parameters_are_copied_when_the_call_is_made(void **state) {
  (void)state;
  struct host_gate *gate = host_gate_new();
  CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
  CUdeviceptr words = new_words(2);
  struct {
    CUdeviceptr destination;
    uint32_t value;
  } packed = {words + 4, 22};
  size_t packed_bytes = 12;
  void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &packed_bytes,
                   CU_LAUNCH_PARAM_END};
  CUdeviceptr destination = words;
  uint32_t value = 11;
  void *params[] = {&destination, &value};
  CUfunction kernel = HOST_FUNCTION(host_write_word);
  assert_cuda(host_block(stream, gate));
  assert_cuda(impl_cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
  assert_cuda(impl_cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, NULL, extra));
  destination = 0, value = 0, packed.destination = 0, packed.value = 0;
  assert_int_equal(impl_cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, params, extra),
                   CUDA_ERROR_INVALID_VALUE);
  packed_bytes = 8;
  assert_int_equal(impl_cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, NULL, extra),
                   CUDA_ERROR_INVALID_VALUE);
  assert_int_equal(impl_cuLaunchKernel(kernel, 0, 1, 1, 1, 1, 1, 0, stream, params, NULL),
                   CUDA_ERROR_INVALID_VALUE);
  assert_int_equal(impl_cuLaunchKernel(kernel, 1, 1, 1, 64, 64, 1, 0, stream, params, NULL),
                   CUDA_ERROR_INVALID_VALUE);
  assert_int_equal(impl_cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL),
                   CUDA_ERROR_INVALID_HANDLE);
  host_gate_open(gate);
  assert_int_equal(host_word(words), 11);
  assert_int_equal(host_word(words + 4), 22);
  assert_cuda(impl_cuMemFree_v2(words));
  assert_cuda(impl_cuStreamDestroy_v2(stream));
}

static void launch_attributes_record_events(void **state) {
  (void)state;
  struct host_gate *gate = host_gate_new();
  CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
  CUevent started = new_event(CU_EVENT_DISABLE_TIMING), ended = new_event(CU_EVENT_DISABLE_TIMING);
  CUlaunchAttribute attributes[] = {{.id = CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT},
                                    {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT},
                                    {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION}};
  attributes[0].value.launchCompletionEvent.event = started;
  attributes[1].value.programmaticEvent.event = ended;
  attributes[2].value.programmaticStreamSerializationAllowed = 1;
  CUlaunchConfig config = {.gridDimX = 1,
                           .gridDimY = 1,
                           .gridDimZ = 1,
                           .blockDimX = 1,
                           .blockDimY = 1,
                           .blockDimZ = 1,
                           .hStream = stream,
                           .attrs = attributes,
                           .numAttrs = 3};
  assert_cuda(impl_cuLaunchKernelEx(&config, HOST_FUNCTION(host_wait_gate), (void *[]){&gate}, NULL));
  assert_cuda(impl_cuEventSynchronize(started)); /* while the kernel still runs */
  assert_int_equal(impl_cuEventQuery(ended), CUDA_ERROR_NOT_READY);
  host_gate_open(gate);
  assert_cuda(impl_cuEventSynchronize(ended));
  assert_cuda(impl_cuEventDestroy_v2(started));
  assert_cuda(impl_cuEventDestroy_v2(ended));
  assert_cuda(impl_cuStreamDestroy_v2(stream));
}

struct host_call {
  CUdeviceptr address;
  uint32_t seen;
  CUresult nested;
};

static void look(void *argument) {
  struct host_call *call = argument;
  call->seen = *(uint32_t *)call->address;
  call->nested = impl_cuStreamSynchronize(NULL);
}

static void look_with_status(CUstream stream, CUresult status, void *argument) {
  (void)stream;
  assert_int_equal(status, CUDA_SUCCESS);
  look(argument);
}

static void host_functions_run_in_order_and_may_not_call_back(void **state) {
  (void)state;
  CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
  CUdeviceptr word = new_words(1);
  struct host_call first = {.address = word}, second = {.address = word};
  assert_cuda(host_write(stream, word, 1));
  assert_cuda(impl_cuLaunchHostFunc(stream, look, &first));
  assert_cuda(host_write(stream, word, 2));
  assert_cuda(impl_cuStreamAddCallback(stream, look_with_status, &second, 0));
  assert_cuda(impl_cuStreamSynchronize(stream));
  assert_int_equal(first.seen, 1);
  assert_int_equal(second.seen, 2);
  assert_int_equal(first.nested, CUDA_ERROR_NOT_PERMITTED);
  assert_int_equal(impl_cuLaunchHostFunc(stream, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
  assert_cuda(impl_cuMemFree_v2(word));
  assert_cuda(impl_cuStreamDestroy_v2(stream));
}

static void streams_wait_for_values(void **state) {
  (void)state;
  CUstream waiting = new_stream(CU_STREAM_NON_BLOCKING), writing = new_stream(CU_STREAM_NON_BLOCKING);
  CUdeviceptr words = new_words(4);
  assert_cuda(impl_cuStreamWaitValue32_v2(waiting, words, 5, CU_STREAM_WAIT_VALUE_GEQ));
  assert_cuda(impl_cuStreamWaitValue64_v2(waiting, words + 8, 1ull << 40, CU_STREAM_WAIT_VALUE_EQ));
  assert_cuda(host_copy(waiting, words, words + 4));
  assert_int_equal(impl_cuStreamQuery(waiting), CUDA_ERROR_NOT_READY);
  assert_cuda(impl_cuStreamWriteValue32_v2(writing, words, 6, 0));
  assert_cuda(impl_cuStreamWriteValue64_v2(writing, words + 8, 1ull << 40, 0));
  assert_cuda(impl_cuStreamSynchronize(waiting));
  assert_int_equal(host_word(words + 4), 6);
  assert_int_equal(impl_cuStreamWaitValue64_v2(waiting, words + 4, 0, 0), CUDA_ERROR_INVALID_VALUE);
  assert_cuda(impl_cuMemFree_v2(words));
  assert_cuda(impl_cuStreamDestroy_v2(waiting));
  assert_cuda(impl_cuStreamDestroy_v2(writing));
}

/* ---- copies ---- */

static void a_pageable_source_is_read_at_the_call_a_pinned_one_later(void **state) {
  (void)state;
  struct host_gate *gate = host_gate_new();
  CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
  CUdeviceptr words = new_words(2);
  uint32_t pageable = 5, result[2], *pinned;
  assert_cuda(impl_cuMemAllocHost_v2((void **)&pinned, 4));
  *pinned = 5;
  assert_cuda(host_block(stream, gate));
  assert_cuda(impl_cuMemcpyHtoDAsync_v2(words, &pageable, 4, stream));
  assert_cuda(impl_cuMemcpyAsync(words + 4, (CUdeviceptr)pinned, 4, stream));
  pageable = *pinned = 6;
  host_gate_open(gate);
  assert_cuda(impl_cuMemcpyDtoHAsync_v2(result, words, 8, stream)); /* pageable: done when it returns */
  assert_int_equal(result[0], 5);
  assert_int_equal(result[1], 6);
  assert_cuda(impl_cuMemFreeHost(pinned));
  assert_cuda(impl_cuMemFree_v2(words));
  assert_cuda(impl_cuStreamDestroy_v2(stream));
}

static void boxes_are_copied_and_set_row_by_row(void **state) {
  (void)state;
  uint32_t source[6] = {1, 2, 3, 4, 5, 6}, result[8];
  CUdeviceptr device = new_words(8); /* two rows of four */
  CUDA_MEMCPY2D in = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                      .srcHost = source,
                      .srcPitch = 12,
                      .srcXInBytes = 4,
                      .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                      .dstDevice = device,
                      .dstPitch = 16,
                      .dstXInBytes = 8,
                      .WidthInBytes = 8,
                      .Height = 2};
  assert_cuda(impl_cuMemcpy2D_v2(&in));
  assert_cuda(impl_cuMemsetD2D16_v2(device, 16, 0x0707, 2, 2));
  assert_cuda(impl_cuMemcpyDtoH_v2(result, device, 32));
  const uint32_t expected[8] = {0x07070707, 0, 2, 3, 0x07070707, 0, 5, 6};
  assert_memory_equal(result, expected, sizeof(expected));
  CUDA_MEMCPY3D out = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                       .srcDevice = device,
                       .srcPitch = 8,
                       .srcHeight = 2,
                       .dstMemoryType = CU_MEMORYTYPE_HOST,
                       .dstHost = result,
                       .dstPitch = 8,
                       .dstHeight = 1,
                       .WidthInBytes = 8,
                       .Height = 1,
                       .Depth = 2};
  assert_cuda(impl_cuMemcpy3D_v2(&out));
  assert_int_equal(result[2], 0x07070707);
  assert_int_equal(result[0], 0x07070707);
  in.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  assert_int_equal(impl_cuMemcpy2D_v2(&in), CUDA_ERROR_INVALID_VALUE);
  assert_int_equal(impl_cuMemcpyDtoH_v2(result, device, 33), CUDA_ERROR_INVALID_VALUE);
  assert_cuda(impl_cuMemFree_v2(device));
}

/* ---- errors ---- */

static void an_illegal_access_sticks_and_the_process_lives(void **state) {
  (void)state;
  CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
  CUdeviceptr word = new_words(1), gone = new_words(1);
  assert_cuda(impl_cuMemFree_v2(gone));
  assert_cuda(host_write(stream, gone, 1));
  assert_cuda(host_write(stream, word, 2)); /* never runs */
  assert_int_equal(impl_cuStreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
  assert_int_equal(impl_cuStreamQuery(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
  assert_int_equal(sim_engine_context_synchronize(host_context()), CUDA_ERROR_ILLEGAL_ADDRESS);
  assert_int_equal(sim_engine_sticky_error(host_context()), CUDA_ERROR_ILLEGAL_ADDRESS);
  assert_int_equal(*(uint32_t *)word, 0);
  host_teardown(state);
  host_setup(state);
  assert_cuda(sim_engine_sticky_error(host_context())); /* it was the context's */
}

static void a_copy_beyond_memory_sticks(void **state) {
  (void)state;
  CUdeviceptr gone = new_words(1), here = new_words(1);
  uint32_t word = 0;
  assert_cuda(impl_cuMemFree_v2(gone));
  assert_int_equal(impl_cuMemcpyAsync(here, gone, 4, NULL),
                   CUDA_SUCCESS); /* unknown source: not read on this thread */
  assert_int_equal(impl_cuMemcpyDtoH_v2(&word, here, 4), CUDA_ERROR_ILLEGAL_ADDRESS);
}

/* ---- jitter ---- */

/* A producer and a consumer on two streams; returns what the consumer saw. */
static uint32_t handover(uint64_t seed, bool wait) {
  sim_engine_set_seed(seed);
  CUstream producer = new_stream(CU_STREAM_NON_BLOCKING), consumer = new_stream(CU_STREAM_NON_BLOCKING);
  CUevent written = new_event(CU_EVENT_DISABLE_TIMING);
  CUdeviceptr words = new_words(2);
  assert_cuda(host_write(producer, words, 1));
  assert_cuda(impl_cuEventRecord(written, producer));
  if (wait) assert_cuda(impl_cuStreamWaitEvent(consumer, written, 0));
  assert_cuda(host_copy(consumer, words, words + 4));
  uint32_t seen = host_word(words + 4);
  assert_cuda(impl_cuMemFree_v2(words));
  assert_cuda(impl_cuEventDestroy_v2(written));
  assert_cuda(impl_cuStreamDestroy_v2(producer));
  assert_cuda(impl_cuStreamDestroy_v2(consumer));
  sim_engine_set_seed(0);
  return seen;
}

static void delays_follow_from_the_seed_and_the_order_of_streams(void **state) {
  (void)state;
  uint64_t none = sim_jitter_start(0, 1), one = sim_jitter_start(5, 1), same = sim_jitter_start(5, 1);
  uint64_t other = sim_jitter_start(5, 2);
  unsigned delayed = 0, different = 0;
  for (int i = 0; i < 1000; i++) {
    uint32_t delay_ns = sim_jitter_next_ns(&one);
    assert_int_equal(sim_jitter_next_ns(&none), 0);
    assert_int_equal(sim_jitter_next_ns(&same), delay_ns);
    assert_true(delay_ns < 200000);
    delayed += delay_ns > 0;
    different += sim_jitter_next_ns(&other) != delay_ns;
  }
  assert_in_range(delayed, 400, 600);
  assert_in_range(different, 600, 1000);
}

static void jitter_reveals_a_missing_wait(void **state) {
  (void)state;
  unsigned wrong = 0;
  for (uint64_t seed = 1; seed <= 60; seed++) {
    assert_int_equal(handover(seed, true), 1);
#ifndef __SANITIZE_THREAD__ /* the missing wait is a data race, on purpose */
    wrong += handover(seed, false) != 1;
  }
  assert_true(wrong > 0);
#else
  }
  (void)wrong;
#endif
}

/* ---- fork ---- */

static void a_child_is_told_that_there_is_no_device(void **state) {
  (void)state;
  CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
  CUdeviceptr word = new_words(1);
  assert_cuda(host_write(stream, word, 4));
  assert_cuda(impl_cuStreamSynchronize(stream));
  pid_t child = fork();
  if (child == 0) {
    sim_engine_after_fork_child();
    CUdeviceptr address;
    bool good = impl_cuMemAlloc_v2(&address, 4) == CUDA_ERROR_NOT_INITIALIZED &&
                impl_cuStreamSynchronize(stream) == CUDA_ERROR_NOT_INITIALIZED &&
                host_write(stream, word, 5) == CUDA_ERROR_NOT_INITIALIZED &&
                impl_cuEventDestroy_v2(NULL) == CUDA_ERROR_NOT_INITIALIZED;
    _exit(good ? 0 : 1);
  }
  int status = -1;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_int_equal(status, 0);
  assert_int_equal(host_word(word), 4);
  assert_cuda(impl_cuMemFree_v2(word));
  assert_cuda(impl_cuStreamDestroy_v2(stream));
}

#define IN_CONTEXT(test) cmocka_unit_test_setup_teardown(test, host_setup, host_teardown)

int main(void) {
  const struct CMUnitTest tests[] = {
      IN_CONTEXT(legacy_stream_orders_blocking_streams),
      IN_CONTEXT(each_thread_has_its_default_stream),
      IN_CONTEXT(events_capture_the_work_at_the_time_of_the_call),
      IN_CONTEXT(event_times_need_two_reached_timed_events),
      IN_CONTEXT(events_and_streams_end_with_their_context),
      IN_CONTEXT(a_destroyed_stream_finishes_its_work),
      IN_CONTEXT(streams_tell_what_they_are),
      IN_CONTEXT(parameters_are_copied_when_the_call_is_made),
      IN_CONTEXT(launch_attributes_record_events),
      IN_CONTEXT(host_functions_run_in_order_and_may_not_call_back),
      IN_CONTEXT(streams_wait_for_values),
      IN_CONTEXT(a_pageable_source_is_read_at_the_call_a_pinned_one_later),
      IN_CONTEXT(boxes_are_copied_and_set_row_by_row),
      IN_CONTEXT(an_illegal_access_sticks_and_the_process_lives),
      IN_CONTEXT(a_copy_beyond_memory_sticks),
      IN_CONTEXT(delays_follow_from_the_seed_and_the_order_of_streams),
      IN_CONTEXT(jitter_reveals_a_missing_wait),
      IN_CONTEXT(a_child_is_told_that_there_is_no_device),
  };
  return cmocka_run_group_tests_name("simulated streams", tests, NULL, NULL);
}
