/* The NCCL profiler plugin: the table of each version is driven by hand as NCCL of that version does, with
 * descriptors laid out byte by byte. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "agent/agent.h"
#include "agent/nccl_profiler.h"
#include "agent/state.h"

#define BYTES (1u << 20)

struct table {
  const char *name;
  void *init;
  int (*start_event)(void *context, void **handle, void *descriptor);
  int (*stop_event)(void *handle);
  int (*record_state)(void *handle, int state, void *arguments);
  int (*finalize)(void *context);
};
extern struct table ncclProfiler_v1, ncclProfiler_v2, ncclProfiler_v3, ncclProfiler_v4, ncclProfiler_v5,
    ncclProfiler_v6;

/* Offsets of the descriptor's members, as measured on NCCL's own headers. */
struct layout {
  struct table *table;
  int version;
  size_t function, buffer, datatype, count, peer, size;
};
static const struct layout layouts[] = {
    {&ncclProfiler_v1, 1, 40, 48, 56, 64, 72, 120}, {&ncclProfiler_v2, 2, 40, 48, 56, 64, 72, 128},
    {&ncclProfiler_v3, 3, 40, 48, 56, 64, 72, 120}, {&ncclProfiler_v4, 4, 24, 32, 40, 48, 56, 104},
    {&ncclProfiler_v5, 5, 24, 32, 40, 48, 56, 112}, {&ncclProfiler_v6, 6, 24, 32, 40, 48, 56, 112},
};

static void put(unsigned char *descriptor, size_t offset, const void *value, size_t bytes) {
  memcpy(descriptor + offset, value, bytes);
}

/* What NCCL would pass; everything not set is rubbish, so that reading a wrong place shows. */
static void describe(const struct layout *layout, unsigned char *descriptor, uint64_t type, bool receive,
                     uint64_t buffer, int32_t peer) {
  memset(descriptor, 0xee, layout->size);
  int32_t rank = 3;
  size_t count = BYTES / 4;
  put(descriptor, 16, &rank, sizeof rank);
  put(descriptor, layout->buffer, &buffer, sizeof buffer);
  put(descriptor, layout->count, &count, sizeof count);
  put(descriptor, layout->peer, &peer, sizeof peer);
  if (layout->version >= 5)
    put(descriptor, 0, &type, 8);
  else
    descriptor[0] = (unsigned char)type;
  if (layout->version == 1) {
    descriptor[layout->function] = receive ? 7 : 6;
    descriptor[layout->datatype] = 7; /* ncclFloat32 */
  } else {
    const char *function = receive ? "Recv" : "Send", *datatype = "ncclFloat32";
    put(descriptor, layout->function, &function, sizeof function);
    put(descriptor, layout->datatype, &datatype, sizeof datatype);
  }
}

static void *init(const struct layout *layout, int *mask) {
  void *context = NULL;
  int result;
  if (layout->version <= 3)
    result = ((int (*)(void **, int *))layout->table->init)(&context, mask);
  else if (layout->version == 4)
    result = ((int (*)(void **, int *, const char *, uint64_t, int, int, int, void *))layout->table->init)(
        &context, mask, "comm", 0xabcdu, 1, 4, 3, NULL);
  else
    result = ((int (*)(void **, uint64_t, int *, const char *, int, int, int, void *))layout->table->init)(
        &context, 0xabcdu, mask, "comm", 1, 4, 3, NULL);
  assert_int_equal(result, 0);
  assert_non_null(context);
  return context;
}

static void transfer(const struct layout *layout, void *context, bool receive, uint64_t buffer) {
  unsigned char descriptor[128];
  void *handle = NULL;
  describe(layout, descriptor, 4, receive, buffer, 2);
  assert_int_equal(layout->table->start_event(context, &handle, descriptor), 0);
  assert_non_null(handle);
  assert_int_equal(layout->table->record_state(handle, 0, NULL), 0);
  assert_int_equal(layout->table->stop_event(handle), 0);
  assert_int_equal(layout->table->record_state(handle, 1, NULL), 0); /* after its end, as some releases do */
}

struct counts {
  uint64_t receives, sends, from_profiler, unmatched, matched;
  size_t comms;
  struct rp_comm_info last_comm;
};

static struct counts read_counts(void) {
  struct rp_snapshot snapshot;
  struct rp_agent_cost cost;
  struct rp_comm_info comms[64];
  struct counts out = {0};
  assert_int_equal(rp_agent_collect(&snapshot, &cost, comms, 64, &out.comms), RP_OK);
  out.receives = snapshot.events[RP_EVENT_RECV];
  out.sends = snapshot.events[RP_EVENT_SEND];
  out.from_profiler = snapshot.events_by_source[RP_SOURCE_NCCL_PROFILER];
  if (out.comms) out.last_comm = comms[out.comms - 1];
  rp_agent_profiler_counts(&out.unmatched, &out.matched);
  rp_snapshot_fini(&snapshot);
  return out;
}

static int start_agent(void **state) {
  (void)state;
  static struct rp_config config = {.min_bytes = 1, .slack = 2};
  rp_state_watch_fork();
  if (rp_agent_start(&config) != RP_OK) return -1;
  rp_state_set(RP_STATE_ON);
  return 0;
}

/* Where nobody announced them, the plugin's transfers are events of their own, with their communicator. */
static void every_version_reports_what_only_it_saw(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
    const struct layout *layout = &layouts[i];
    struct counts before = read_counts();
    int mask = 0;
    void *context = init(layout, &mask);
    assert_int_equal(mask & 4, 4);
    assert_int_equal(mask & ~(4 | 1), 0); /* nothing that costs more */
    transfer(layout, context, true, 0x10000000);
    transfer(layout, context, false, 0x20000000);
    struct counts after = read_counts();
    assert_int_equal(after.receives, before.receives + 1);
    assert_int_equal(after.sends, before.sends + 1);
    assert_int_equal(after.unmatched, before.unmatched + 2);
    assert_int_equal(after.comms, i + 1);
    assert_int_equal(after.last_comm.rank, 3);
    assert_int_equal(after.last_comm.id_hash, layout->version >= 4 ? 0xabcdu : 0xeeeeeeeeeeeeeeeeu);
  }
}

/* What an interposed call announced counts once. */
static void announced_transfers_count_once(void **state) {
  const struct rp_order_site at = {.stream = RP_STREAM_LEGACY, .thread = 1};
  (void)state;
  for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
    int mask = 0;
    void *context = init(&layouts[i], &mask);
    struct counts before = read_counts();
    for (int n = 0; n < 3; n++) {
      rp_agent_transfer(true, 0x77, 2, 0x30000000, BYTES, &at, NULL, NULL);
      rp_agent_transfer(false, 0x77, 2, 0x30000000, BYTES, &at, NULL, NULL);
    }
    for (int n = 0; n < 3; n++) {
      transfer(&layouts[i], context, false, 0x30000000);
      transfer(&layouts[i], context, true, 0x30000000);
    }
    struct counts after = read_counts();
    assert_int_equal(after.receives, before.receives + 3);
    assert_int_equal(after.sends, before.sends + 3);
    assert_int_equal(after.from_profiler, before.from_profiler);
    assert_int_equal(after.matched, before.matched + 6);
    transfer(&layouts[i], context, true, 0x30000000); /* one more than was announced */
    assert_int_equal(read_counts().receives, before.receives + 4);
    assert_int_equal(layouts[i].table->finalize(context), 0);
  }
}

static void other_events_are_not_transfers(void **state) {
  (void)state;
  static const uint64_t types[] = {1, 2, 8, 16, 32, 64, 128};
  for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
    int mask = 0;
    void *context = init(&layouts[i], &mask), *handle = NULL;
    struct counts before = read_counts();
    for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) {
      unsigned char descriptor[128];
      describe(&layouts[i], descriptor, types[t], true, 0x40000000, 1);
      assert_int_equal(layouts[i].table->start_event(context, &handle, descriptor), 0);
      assert_non_null(handle); /* a group without a handle would have no children */
    }
    assert_int_equal(layouts[i].table->start_event(context, &handle, NULL), 0);
    assert_int_equal(layouts[i].table->start_event(context, NULL, NULL), 0);
    assert_int_equal(read_counts().receives, before.receives);
    assert_int_equal(layouts[i].table->finalize(context), 0);
    assert_int_equal(layouts[i].table->finalize(NULL), 0);
  }
}

/* More communicators than the plugin has places for, and places that are used again. */
static void communicators_come_and_go(void **state) {
  (void)state;
  void *contexts[300];
  int mask = 0;
  for (int round = 0; round < 2; round++) {
    for (int i = 0; i < 300; i++)
      contexts[i] = init(&layouts[5], &mask);
    for (int i = 0; i < 300; i++)
      assert_int_equal(layouts[5].table->finalize(contexts[i]), 0);
  }
  struct counts before = read_counts();
  transfer(&layouts[5], contexts[0], true, 0x50000000); /* a context that was ended */
  assert_int_equal(read_counts().receives, before.receives + 1);
}

static void asks_for_nothing_when_passive(void **state) {
  (void)state;
  struct counts before = read_counts();
  rp_state_set(RP_STATE_PASSIVE);
  int mask = -1;
  void *context = init(&layouts[4], &mask);
  assert_int_equal(mask, 0);
  transfer(&layouts[4], context, true, 0x60000000);
  assert_int_equal(read_counts().receives, before.receives);
  rp_state_set(RP_STATE_ON);
}

static void says_whether_it_is_in_use(void **state) {
  (void)state;
  char reason[256] = "";
  assert_true(rp_profiler_active(reason, sizeof reason));
  assert_string_equal(reason, "");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_version_reports_what_only_it_saw),
      cmocka_unit_test(announced_transfers_count_once),
      cmocka_unit_test(other_events_are_not_transfers),
      cmocka_unit_test(communicators_come_and_go),
      cmocka_unit_test(asks_for_nothing_when_passive),
      cmocka_unit_test(says_whether_it_is_in_use),
  };
  return cmocka_run_group_tests(tests, start_agent, NULL);
}
