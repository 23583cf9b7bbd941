/* Waits, marks and what is kept per context, over the simulated driver. */
#include "device_fixture.h"

#include <pthread.h>

/* ---- waits ---- */

static CUdeviceptr new_word(uint64_t value) {
  CUdeviceptr address;
  assert_cuda(cuMemAlloc_v2(&address, sizeof value));
  assert_cuda(cuMemcpyHtoD_v2(address, &value, sizeof value));
  return address;
}

static uint64_t word_at(CUdeviceptr address) {
  uint64_t value;
  assert_cuda(cuMemcpyDtoH_v2(&value, address, sizeof value));
  return value;
}

static void a_wait_orders_two_streams(void **state) {
  (void)state;
  CUstream first = new_stream(), second = new_stream();
  CUdeviceptr source = new_word(1), middle = new_word(2), sink = new_word(3);
  _Atomic bool open = false;
  uint64_t event = 0, waits = 9;
  (void)rp_device_waited_ns(&waits);
  launch_gate(first, &open);
  launch_copy(first, middle, source);
  assert_int_equal(rp_device_stream_wait(id_of(context), id_of(first), id_of(second), true, &event), RP_OK);
  assert_true(event != 0);
  launch_copy(second, sink, middle);
  nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
  assert_int_equal(cuStreamQuery(second), CUDA_ERROR_NOT_READY);
  assert_int_equal(rp_device_waited_ns(&waits), 0);
  assert_int_equal(waits, 0);
  atomic_store(&open, true);
  assert_cuda(cuStreamSynchronize(second));
  assert_int_equal(word_at(sink), 1);
  assert_true(rp_device_waited_ns(&waits) >= 1000000); /* the stream may have come to its wait late */
  assert_int_equal(waits, 1);
  assert_int_equal(rp_device_waited_ns(&waits), 0);
  assert_int_equal(waits, 0);
  assert_cuda(cuStreamDestroy_v2(first));
  assert_cuda(cuStreamDestroy_v2(second));
}

static void default_streams_have_cudas_handles(void **state) {
  (void)state;
  CUstream stream = new_stream();
  _Atomic bool open = false;
  uint64_t event, mark;
  static const uint64_t handles[] = {RP_STREAM_LEGACY, RP_STREAM_PER_THREAD};
  for (size_t i = 0; i < 2; i++) {
    atomic_store(&open, false);
    launch_gate(stream, &open);
    assert_int_equal(rp_device_stream_wait(0, id_of(stream), handles[i], false, &event), RP_OK);
    assert_int_equal(rp_device_mark(0, handles[i], &mark), RP_OK);
    assert_int_equal(rp_device_mark_query(mark), RP_ERROR_BUSY);
    atomic_store(&open, true);
    assert_cuda(cuStreamSynchronize(i ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY));
    assert_int_equal(rp_device_mark_query(mark), RP_OK);
    rp_device_mark_drop(mark);
  }
  assert_int_equal(rp_device_stream_wait(0, 0, id_of(stream), false, &event), RP_ERROR_INVALID);
  assert_int_equal(rp_device_stream_wait(0, id_of(stream), 0, false, &event), RP_ERROR_INVALID);
  assert_int_equal(rp_device_mark(0, 0, &mark), RP_ERROR_INVALID);
  assert_cuda(cuStreamDestroy_v2(stream));
}

/* The event that a wait used is good for 4096 waits, and no more events are made than that. */
static void the_ring_of_events_goes_round(void **state) {
  (void)state;
  CUstream first = new_stream(), second = new_stream();
  uint64_t created = rpsim_call_count("cuEventCreate"), seen = 0, event, begin = 0;
  for (int i = 0; i < 3 * 4096; i++) {
    assert_int_equal(rp_device_stream_wait(0, id_of(first), id_of(second), false, &event), RP_OK);
    if (i == 4096) begin = event;
    if (i > 4096 && event == begin) {
      assert_int_equal(i, 2 * 4096);
      seen++;
    }
    if (i % 512 == 0) assert_cuda(cuStreamSynchronize(second));
  }
  assert_int_equal(seen, 1);
  assert_true(rpsim_call_count("cuEventCreate") - created <= 4096);
  assert_cuda(cuStreamDestroy_v2(first));
  assert_cuda(cuStreamDestroy_v2(second));
}

/* More timed waits under way than are kept: all are made, the rest are not timed, and none is lost later. */
static void too_many_timed_waits(void **state) {
  (void)state;
  CUstream first = new_stream(), second = new_stream();
  _Atomic bool open = false;
  uint64_t event, waits = 0, created = rpsim_call_count("cuEventCreate");
  launch_gate(first, &open);
  for (int i = 0; i < 1500; i++)
    assert_int_equal(rp_device_stream_wait(0, id_of(first), id_of(second), true, &event), RP_OK);
  atomic_store(&open, true);
  assert_cuda(cuStreamSynchronize(second));
  assert_true(rp_device_waited_ns(&waits) > 0);
  assert_int_equal(waits, 1024);
  assert_true(rpsim_call_count("cuEventCreate") - created <= 1500 + 2 * 1024);
  created = rpsim_call_count("cuEventCreate");
  for (int i = 0; i < 500; i++)
    assert_int_equal(rp_device_stream_wait(0, id_of(first), id_of(second), true, &event), RP_OK);
  assert_cuda(cuStreamSynchronize(second));
  (void)rp_device_waited_ns(&waits);
  assert_int_equal(waits, 500);
  assert_true(rpsim_call_count("cuEventCreate") - created <= 500); /* timing events are taken again */
  assert_cuda(cuStreamDestroy_v2(first));
  assert_cuda(cuStreamDestroy_v2(second));
}

/* ---- marks ---- */

static void marks_follow_the_stream(void **state) {
  (void)state;
  enum { MARKS = 100 };
  CUstream stream = new_stream();
  _Atomic bool open = false;
  uint64_t early, marks[MARKS], created;
  assert_int_equal(rp_device_mark(id_of(context), id_of(stream), &early), RP_OK);
  assert_cuda(cuStreamSynchronize(stream));
  launch_gate(stream, &open);
  for (int i = 0; i < MARKS; i++)
    assert_int_equal(rp_device_mark(id_of(context), id_of(stream), &marks[i]), RP_OK);
  assert_int_equal(rp_device_mark_query(early), RP_OK);
  assert_int_equal(rp_device_mark_query(marks[0]), RP_ERROR_BUSY);
  assert_int_equal(rp_device_mark_query(marks[MARKS - 1]), RP_ERROR_BUSY);
  atomic_store(&open, true);
  assert_cuda(cuStreamSynchronize(stream));
  for (int i = 0; i < MARKS; i++) {
    assert_int_equal(rp_device_mark_query(marks[i]), RP_OK);
    rp_device_mark_drop(marks[i]);
  }
  rp_device_mark_drop(early);
  rp_device_mark_drop(0);
  assert_int_equal(rp_device_mark_query(0), RP_ERROR_UNAVAILABLE);
  created = rpsim_call_count("cuEventCreate");
  for (int i = 0; i < 10 * MARKS; i++) {
    assert_int_equal(rp_device_mark(id_of(context), id_of(stream), &early), RP_OK);
    rp_device_mark_drop(early);
  }
  assert_int_equal(rpsim_call_count("cuEventCreate"), created); /* taken from the free list */
  assert_cuda(cuStreamDestroy_v2(stream));
}

static void *query_without_context(void *argument) {
  static rp_status status;
  status = rp_device_mark_query(*(uint64_t *)argument);
  return &status;
}

static void any_thread_may_ask(void **state) {
  (void)state;
  CUstream stream = new_stream();
  uint64_t mark;
  pthread_t thread;
  void *result;
  assert_int_equal(rp_device_mark(id_of(context), id_of(stream), &mark), RP_OK);
  assert_cuda(cuStreamSynchronize(stream));
  assert_int_equal(pthread_create(&thread, NULL, query_without_context, &mark), 0);
  assert_int_equal(pthread_join(thread, &result), 0);
  assert_int_equal(*(rp_status *)result, RP_OK);
  rp_device_mark_drop(mark);
  assert_cuda(cuStreamDestroy_v2(stream));
}

/* ---- capture ---- */

static void a_captured_stream_is_busy(void **state) {
  (void)state;
  CUstream captured = new_stream(), free_stream = new_stream(), blocking;
  uint64_t event = 5, mark = 5;
  CUgraph graph;
  assert_cuda(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
  CUstream which[] = {captured, blocking};
  for (int i = 0; i < 2; i++) {
    uint64_t stream = id_of(which[i]);
    assert_cuda(cuStreamBeginCapture_v2(which[i], CU_STREAM_CAPTURE_MODE_GLOBAL));
    assert_int_equal(rp_device_stream_wait(0, stream, id_of(free_stream), true, &event), RP_ERROR_BUSY);
    assert_int_equal(rp_device_stream_wait(0, id_of(free_stream), stream, true, &event), RP_ERROR_BUSY);
    assert_int_equal(rp_device_mark(0, stream, &mark), RP_ERROR_BUSY);
    rp_status legacy = i ? RP_ERROR_BUSY : RP_OK; /* a blocking stream's capture makes it unusable */
    assert_int_equal(rp_device_mark(0, RP_STREAM_LEGACY, &mark), legacy);
    if (legacy == RP_OK) rp_device_mark_drop(mark);
    assert_int_equal(rp_device_mark(0, id_of(free_stream), &mark), RP_OK);
    assert_cuda(cuStreamSynchronize(free_stream));
    assert_int_equal(rp_device_mark_query(mark), RP_OK); /* forbidden to a thread that captures, but for us */
    rp_device_mark_drop(mark);
    assert_cuda(cuStreamEndCapture(which[i], &graph)); /* the capture has not suffered */
    assert_cuda(cuGraphDestroy(graph));
  }
  assert_int_equal(event, 5);
  assert_cuda(cuStreamDestroy_v2(captured));
  assert_cuda(cuStreamDestroy_v2(blocking));
  assert_cuda(cuStreamDestroy_v2(free_stream));
}

/* ---- several contexts ---- */

static void streams_of_other_contexts(void **state) {
  (void)state;
  CUcontext other;
  CUstream mine = new_stream();
  assert_cuda(cuCtxCreate_v2(&other, 0, 0));
  CUstream theirs = new_stream();
  _Atomic bool open = false;
  uint64_t event, mark, waits;
  launch_gate(theirs, &open);
  assert_cuda(cuCtxSetCurrent(context));
  (void)rp_device_waited_ns(&waits);
  assert_int_equal(rp_device_stream_wait(id_of(other), id_of(theirs), id_of(mine), true, &event), RP_OK);
  assert_int_equal(rp_device_mark(id_of(other), id_of(theirs), &mark), RP_OK);
  assert_int_equal(rp_device_mark_query(mark), RP_ERROR_BUSY);
  assert_int_equal(rp_device_current_context(), id_of(context));
  assert_int_equal(cuStreamQuery(mine), CUDA_ERROR_NOT_READY);
  atomic_store(&open, true);
  assert_int_equal(rp_device_synchronize(id_of(other)), RP_OK);
  assert_int_equal(rp_device_mark_query(mark), RP_OK);
  assert_cuda(cuStreamSynchronize(mine));
  (void)rp_device_waited_ns(&waits);
  assert_int_equal(waits, 1);
  rp_device_context_forget(id_of(other), true);
  assert_int_equal(rp_device_mark_query(mark), RP_ERROR_UNAVAILABLE);
  rp_device_mark_drop(mark);
  assert_cuda(cuCtxDestroy_v2(other));
  assert_cuda(cuStreamDestroy_v2(mine));
}

/* Nobody told that the context ended: what is left of it is not taken for part of the next one. */
static void a_context_that_came_back(void **state) {
  (void)state;
  CUcontext again, before = NULL;
  uint64_t event, mark;
  assert_cuda(cuDevicePrimaryCtxRetain(&again, 1));
  assert_cuda(cuCtxPushCurrent_v2(again));
  CUstream stream = new_stream(), second = new_stream();
  for (int i = 0; i < 8; i++)
    assert_int_equal(rp_device_stream_wait(0, id_of(stream), id_of(second), true, &event), RP_OK);
  assert_int_equal(rp_device_mark(0, id_of(stream), &mark), RP_OK);
  assert_cuda(cuDevicePrimaryCtxReset_v2(1));
  assert_int_equal(rp_device_mark(0, id_of(stream), &mark), RP_ERROR_UNAVAILABLE);
  before = again;
  assert_cuda(cuDevicePrimaryCtxRetain(&again, 1));
  assert_ptr_equal(again, before); /* the same handle */
  assert_cuda(cuCtxSetCurrent(again));
  stream = new_stream();
  second = new_stream();
  for (int i = 0; i < 8; i++)
    assert_int_equal(rp_device_stream_wait(0, id_of(stream), id_of(second), true, &event), RP_OK);
  assert_int_equal(rp_device_mark_query(mark), RP_ERROR_UNAVAILABLE); /* of the first one */
  rp_device_mark_drop(mark);
  assert_int_equal(rp_device_mark(0, id_of(stream), &mark), RP_OK);
  assert_cuda(cuCtxSynchronize());
  assert_int_equal(rp_device_mark_query(mark), RP_OK);
  rp_device_mark_drop(mark);
  rp_device_context_forget(id_of(again), true);
  assert_cuda(cuDevicePrimaryCtxRelease_v2(1));
  assert_cuda(cuCtxPopCurrent_v2(&again));
}

static void more_contexts_than_fit(void **state) {
  (void)state;
  enum { MANY = 20 };
  CUcontext made[MANY], popped;
  uint64_t event, used = 0;
  for (int i = 0; i < MANY; i++) {
    assert_cuda(cuCtxCreate_v2(&made[i], 0, 0));
    CUstream stream = new_stream();
    rp_status status = rp_device_stream_wait(0, id_of(stream), id_of(stream), true, &event);
    assert_true(status == RP_OK || (status == RP_ERROR_LIMIT && used >= 15));
    used += status == RP_OK;
    assert_cuda(cuCtxPopCurrent_v2(&popped));
  }
  assert_in_range(used, 15, 16);
  for (int i = 0; i < MANY; i++) {
    rp_device_context_forget(id_of(made[i]), true);
    assert_cuda(cuCtxDestroy_v2(made[i]));
  }
  assert_int_equal(rp_device_current_context(), id_of(context));
}

/* Every event and stream of ours is given back. */
static void forgetting_gives_everything_back(void **state) {
  (void)state;
  CUcontext other, popped;
  uint64_t created = rpsim_call_count("cuEventCreate"), destroyed = rpsim_call_count("cuEventDestroy_v2");
  uint64_t event, mark, dropped, addresses[2];
  uint64_t streams_made = rpsim_call_count("cuStreamCreate");
  uint64_t streams_gone = rpsim_call_count("cuStreamDestroy_v2");
  assert_cuda(cuCtxCreate_v2(&other, 0, 0));
  CUstream stream = new_stream();
  for (int i = 0; i < 5; i++)
    assert_int_equal(rp_device_stream_wait(0, id_of(stream), id_of(stream), i % 2, &event), RP_OK);
  assert_int_equal(rp_device_mark(0, id_of(stream), &mark), RP_OK);
  assert_int_equal(rp_device_mark(0, id_of(stream), &dropped), RP_OK);
  rp_device_mark_drop(dropped);
  make_alias(addresses);
  assert_int_equal(backend.write_word(memory, addresses[0], 1), RP_OK);
  drop_alias(addresses);
  rp_device_context_forget(id_of(other), true);
  rp_device_context_forget(id_of(other), true);
  rp_device_mark_drop(mark);
  assert_int_equal(rpsim_call_count("cuEventCreate") - created,
                   rpsim_call_count("cuEventDestroy_v2") - destroyed);
  assert_cuda(cuStreamDestroy_v2(stream));
  assert_int_equal(rpsim_call_count("cuStreamCreate") - streams_made,
                   rpsim_call_count("cuStreamDestroy_v2") - streams_gone);
  assert_cuda(cuCtxPopCurrent_v2(&popped));
  assert_cuda(cuCtxDestroy_v2(other));
}

/* ---- threads ---- */

struct busy_thread {
  pthread_t thread;
  uint64_t failures;
};

static void *be_busy(void *argument) {
  struct busy_thread *mine = argument;
  CUstream first, second;
  if (cuCtxSetCurrent(context) != CUDA_SUCCESS) mine->failures++;
  mine->failures += cuStreamCreate(&first, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS;
  mine->failures += cuStreamCreate(&second, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS;
  for (int i = 0; i < 300; i++) {
    uint64_t event, mark = 0, waits;
    mine->failures += rp_device_stream_wait(0, id_of(first), id_of(second), i % 3 == 0, &event) != RP_OK;
    mine->failures += rp_device_mark(0, id_of(second), &mark) != RP_OK;
    rp_status status;
    while ((status = rp_device_mark_query(mark)) == RP_ERROR_BUSY)
      nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    mine->failures += status != RP_OK;
    rp_device_mark_drop(mark);
    if (i % 50 == 0) (void)rp_device_waited_ns(&waits);
  }
  cuStreamDestroy_v2(first);
  cuStreamDestroy_v2(second);
  return NULL;
}

static void many_threads_at_once(void **state) {
  (void)state;
  struct busy_thread threads[6] = {0};
  for (int i = 0; i < 6; i++)
    assert_int_equal(pthread_create(&threads[i].thread, NULL, be_busy, &threads[i]), 0);
  for (int i = 0; i < 6; i++) {
    assert_int_equal(pthread_join(threads[i].thread, NULL), 0);
    assert_int_equal(threads[i].failures, 0);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_wait_orders_two_streams),
      cmocka_unit_test(default_streams_have_cudas_handles),
      cmocka_unit_test(the_ring_of_events_goes_round),
      cmocka_unit_test(too_many_timed_waits),
      cmocka_unit_test(marks_follow_the_stream),
      cmocka_unit_test(any_thread_may_ask),
      cmocka_unit_test(a_captured_stream_is_busy),
      cmocka_unit_test(streams_of_other_contexts),
      cmocka_unit_test(a_context_that_came_back),
      cmocka_unit_test(more_contexts_than_fit),
      cmocka_unit_test(forgetting_gives_everything_back),
      cmocka_unit_test(many_threads_at_once),
  };
  return cmocka_run_group_tests(tests, start, stop);
}
