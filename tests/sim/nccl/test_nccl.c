/* The simulated libnccl.so.2, seen by processes that use it as an application does. */
#define _GNU_SOURCE 1
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#pragma GCC diagnostic ignored "-Wstrict-prototypes" /* two declarations in nccl.h */
#include <nccl.h>

#include "test_rank.h"

#define MAX_RANKS 8
#define OUTPUT_BYTES 16384

/* ---- running ranks ---- */

struct job {
  int count;
  pid_t pids[MAX_RANKS];
  int outputs[MAX_RANKS]; /* what each rank prints */
  int statuses[MAX_RANKS];
};

static void start_rank(struct job *job, const char *scenario, int rank, const char *id) {
  char rank_text[16], count_text[16];
  snprintf(rank_text, sizeof rank_text, "%d", rank);
  snprintf(count_text, sizeof count_text, "%d", job->count);
  job->outputs[rank] = memfd_create("output", 0);
  assert_true(job->outputs[rank] >= 0);
  job->pids[rank] = fork();
  assert_true(job->pids[rank] >= 0);
  if (job->pids[rank] > 0) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL); /* a rank that hangs does not outlive the test */
  dup2(job->outputs[rank], STDOUT_FILENO);
  execl("/proc/self/exe", "test_nccl", "rank", scenario, rank_text, count_text, id, (char *)NULL);
  _exit(127);
}

/* Runs the scenario in `count` processes, started from the last rank to the first. */
static void run(struct job *job, const char *scenario, int count) {
  ncclUniqueId id;
  char text[2 * sizeof id + 1];
  assert_int_equal(ncclGetUniqueId(&id), ncclSuccess);
  for (size_t i = 0; i < sizeof id; i++)
    snprintf(text + 2 * i, 3, "%02x", (unsigned char)id.internal[i]);
  memset(job, 0, sizeof *job);
  job->count = count;
  for (int rank = count - 1; rank >= 0; rank--)
    start_rank(job, scenario, rank, text);
  for (int rank = 0; rank < count; rank++)
    assert_int_equal(waitpid(job->pids[rank], &job->statuses[rank], 0), job->pids[rank]);
}

static void finish(struct job *job) {
  for (int rank = 0; rank < job->count; rank++)
    close(job->outputs[rank]);
}

static bool succeeded(int status) {
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void expect_all_succeed(const char *scenario, int count) {
  struct job job;
  run(&job, scenario, count);
  finish(&job);
  for (int rank = 0; rank < count; rank++)
    assert_true(succeeded(job.statuses[rank]));
}

static void read_output(const struct job *job, int rank, char *buffer) {
  ssize_t bytes = pread(job->outputs[rank], buffer, OUTPUT_BYTES - 1, 0);
  assert_true(bytes >= 0);
  buffer[bytes] = 0;
}

#define SCENARIO(name, ranks)                                                                                \
  static void name(void **state) {                                                                           \
    (void)state;                                                                                             \
    expect_all_succeed(#name, ranks);                                                                        \
  }

SCENARIO(ring, 3)
SCENARIO(dense_group, 4)
SCENARIO(pair_order, 2)
SCENARIO(self_send, 2)
SCENARIO(size_mismatch, 2)
SCENARIO(collectives, 3)
SCENARIO(split, 5)
SCENARIO(user_errors, 2)
SCENARIO(twins, 2)
SCENARIO(disagree, 2)
SCENARIO(abort_wakes, 2)
SCENARIO(early_leaver, 3)

static void graph_replay(void **state) {
  (void)state;
  if (!dlsym(RTLD_DEFAULT, "cuGraphLaunch")) skip(); /* a driver without graphs */
  expect_all_succeed("graph_replay", 2);
}

static void eight_ranks(void **state) {
  (void)state;
  expect_all_succeed("self_send", 8);
}

static void ranks_of_one_process(void **state) {
  (void)state;
  setenv("RPSIM_DEVICES", "2", 1);
  expect_all_succeed("init_all", 1);
  unsetenv("RPSIM_DEVICES");
}

static void missing_rank_times_out(void **state) {
  (void)state;
  setenv("RPSIM_NCCL_TIMEOUT_SECONDS", "1", 1);
  expect_all_succeed("lonely", 1);
  unsetenv("RPSIM_NCCL_TIMEOUT_SECONDS");
}

static void dead_peer_ends_every_wait(void **state) {
  (void)state;
  struct job job;
  run(&job, "dead_peer", 4);
  finish(&job);
  for (int rank = 0; rank < 4; rank++)
    assert_true(rank != 1 ? succeeded(job.statuses[rank])
                          : WIFSIGNALED(job.statuses[1]) && WTERMSIG(job.statuses[1]) == SIGKILL);
}

static void access_outside_memory_is_an_error_of_the_device(void **state) {
  (void)state;
  expect_all_succeed("bad_address", 2);
}

/* ---- jitter ---- */

static bool any_rank_saw_wrong_data(const char *scenario) {
  struct job job;
  bool wrong = false;
  run(&job, scenario, 2);
  finish(&job);
  for (int rank = 0; rank < 2; rank++) {
    assert_true(WIFEXITED(job.statuses[rank]));
    int status = WEXITSTATUS(job.statuses[rank]);
    assert_true(status == 0 || status == RANK_SAW_WRONG_DATA);
    wrong |= status == RANK_SAW_WRONG_DATA;
  }
  return wrong;
}

static void missing_wait_is_seen_under_jitter(void **state) {
  (void)state;
  bool seen = false;
  for (int seed = 1; seed <= 5; seed++) {
    char text[16];
    snprintf(text, sizeof text, "%d", seed);
    setenv("RPSIM_SEED", text, 1);
    assert_false(any_rank_saw_wrong_data("stream_order_waited"));
    setenv("TSAN_OPTIONS", "report_bugs=0", 1); /* here the race is the point */
    seen |= any_rank_saw_wrong_data("stream_order_missing");
    unsetenv("TSAN_OPTIONS");
  }
  unsetenv("RPSIM_SEED");
  assert_true(seen);
}

static void expect_right_under_jitter(const char *scenario) {
  for (int seed = 1; seed <= 3; seed++) {
    char text[16];
    snprintf(text, sizeof text, "%d", seed);
    setenv("RPSIM_SEED", text, 1);
    expect_all_succeed(scenario, 2);
  }
  unsetenv("RPSIM_SEED");
}

static void two_streams(void **state) {
  (void)state;
  expect_right_under_jitter("two_streams");
}

static void crossed_streams(void **state) {
  (void)state;
  expect_right_under_jitter("crossed_streams");
}

/* ---- names ---- */

static void both_names_are_one_function(void **state) {
  (void)state;
  int version = 0;
  assert_ptr_equal(ncclSend, pncclSend);
  assert_ptr_equal(ncclRecv, pncclRecv);
  assert_ptr_equal(ncclGroupEnd, pncclGroupEnd);
  assert_int_equal(ncclGetVersion(&version), ncclSuccess);
  assert_int_equal(version, 22809);
  for (int a = ncclSuccess; a <= ncclInProgress; a++)
    assert_string_not_equal(ncclGetErrorString(a), ncclGetErrorString(ncclNumResults));
}

/* ---- profiler plugins ---- */

struct expected {
  char text[OUTPUT_BYTES];
  size_t length;
};

__attribute__((format(printf, 2, 3))) static void expect(struct expected *e, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  e->length += (size_t)vsnprintf(e->text + e->length, sizeof e->text - e->length, format, arguments);
  va_end(arguments);
}

static void expect_p2p(struct expected *e, int version, int handle, int parent, const char *function,
                       const char *buffer) {
  if (version == 1)
    expect(e,
           "start #%d type=4 parent=#%d rank=0 name=pipe func=%d buff=%s type=7 count=10 peer=1 launches=1\n",
           handle, parent, strcmp(function, "Send") == 0 ? 6 : 7, buffer);
  else
    expect(e,
           "start #%d type=4 parent=#%d rank=0 func=%s buff=%s type=ncclFloat32 count=10 peer=1 launches=1\n",
           handle, parent, function, buffer);
}

/* Versions 1 to 4: one group event, with its operations, after each launch. */
static void expect_old(struct expected *e, int version, const char *out, const char *in) {
  if (version < 4)
    expect(e, "init v%d launches=0\n", version);
  else
    expect(e, "init v4 name=pipe hash=1 nodes=1 nranks=2 rank=0 log=1 launches=0\n");
  expect(e, "start #1 type=1 parent=context rank=0 launches=1\n");
  expect_p2p(e, version, 2, 1, "Send", out);
  expect_p2p(e, version, 3, 1, "Recv", in);
  expect(e, "stop #2 launches=1\nstop #3 launches=1\nstop #1 launches=1\n");
  expect(e, "start #4 type=1 parent=context rank=0 launches=2\nstart #5 type=2 launches=2\n");
  expect(e, "stop #5 launches=2\nstop #4 launches=2\nfinalize context launches=2\nunloaded\ndestroyed\n");
}

/* Versions 5 and 6: API events before the launch as well. */
static void expect_new(struct expected *e, const char *out, const char *in, const char *stream) {
  expect(e, "init v5 name=pipe hash=1 nodes=1 nranks=2 rank=0 log=1 launches=0\n");
  expect(e, "start #1 type=256 parent=context rank=0 launches=0\nstate #1 23 launches=0\n");
  expect(e, "start #2 type=1024 parent=#1 rank=0 func=Send count=10 type=ncclFloat32 stream=%s launches=0\n",
         stream);
  expect(e, "stop #2 launches=0\n");
  expect(e, "start #3 type=1024 parent=#1 rank=0 func=Recv count=10 type=ncclFloat32 stream=%s launches=0\n",
         stream);
  expect(e, "stop #3 launches=0\nstate #1 24 launches=0\n");
  expect(e, "start #4 type=2048 parent=#1 stream=%s launches=0\nstop #4 launches=1\n", stream);
  expect(e, "start #5 type=1 parent=context rank=0 launches=1\n");
  expect_p2p(e, 5, 6, 2, "Send", out);
  expect(e, "  group=#5 channels=1\n");
  expect_p2p(e, 5, 7, 3, "Recv", in);
  expect(e, "  group=#5 channels=1\nstop #6 launches=1\nstop #7 launches=1\nstop #5 launches=1\nstop #1 "
            "launches=1\n");
  expect(e, "start #8 type=256 parent=context rank=0 launches=1\nstate #8 23 launches=1\n");
  expect(e, "start #9 type=512 launches=1\nstop #9 launches=1\nstate #8 24 launches=1\n");
  expect(e, "start #10 type=2048 parent=#8 stream=%s launches=1\nstop #10 launches=2\n", stream);
  expect(e, "start #11 type=1 parent=context rank=0 launches=2\nstart #12 type=2 launches=2\nstop #12 "
            "launches=2\n");
  expect(e, "stop #11 launches=2\nstop #8 launches=2\nfinalize context launches=2\nunloaded\ndestroyed\n");
}

/* Runs the profiled scenario and gives what rank 0 printed, without the line of its buffers, which is taken
 * apart. */
static void run_profiled(char *printed, char *out, char *in, char *stream) {
  struct job job;
  char whole[OUTPUT_BYTES], line[256];
  run(&job, "profiled", 2);
  assert_true(succeeded(job.statuses[0]) && succeeded(job.statuses[1]));
  read_output(&job, 0, whole);
  finish(&job);
  char *buffers = strstr(whole, "buffers "), *rest = buffers ? strchr(buffers, '\n') : NULL;
  assert_non_null(rest);
  assert_int_equal(sscanf(buffers, "buffers %31s %31s stream %31s", out, in, stream), 3);
  snprintf(line, sizeof line, "%.*s", (int)(buffers - whole), whole);
  snprintf(printed, OUTPUT_BYTES, "%s%s", line, rest + 1);
}

static void plugin_of_every_version(void **state) {
  (void)state;
  setenv("NCCL_PROFILER_PLUGIN", TEST_PLUGIN, 1);
  for (int version = 1; version <= 7; version++) {
    char printed[OUTPUT_BYTES], out[32], in[32], stream[32], text[16];
    struct expected e = {.length = 0};
    snprintf(text, sizeof text, "%d", version);
    if (version < 7)
      setenv("RPSIM_NCCL_PROFILER_MAX", text, 1);
    else
      unsetenv("RPSIM_NCCL_PROFILER_MAX"); /* the default: version 5 */
    run_profiled(printed, out, in, stream);
    if (version < 5)
      expect_old(&e, version, out, in);
    else
      expect_new(&e, out, in, stream);
    assert_string_equal(printed, e.text);
  }
  unsetenv("NCCL_PROFILER_PLUGIN");
}

static void plugin_can_be_absent(void **state) {
  (void)state;
  static const char *const values[] = {"none", "/no/such/plugin.so", "nothing"};
  char printed[OUTPUT_BYTES], out[32], in[32], stream[32];
  for (size_t i = 0; i < 3; i++) {
    setenv("NCCL_PROFILER_PLUGIN", values[i], 1);
    run_profiled(printed, out, in, stream);
    assert_string_equal(printed, "destroyed\n");
  }
  unsetenv("NCCL_PROFILER_PLUGIN");
  run_profiled(printed, out, in, stream);
  assert_string_equal(printed, "destroyed\n");
}

/* P2P alone brings its parents; a refusing plugin is asked nothing more. */
static void plugin_mask_and_refusal(void **state) {
  (void)state;
  char printed[OUTPUT_BYTES], out[32], in[32], stream[32];
  setenv("NCCL_PROFILER_PLUGIN", TEST_PLUGIN, 1);
  setenv("TEST_PLUGIN_MASK", "4", 1);
  run_profiled(printed, out, in, stream);
  assert_non_null(strstr(printed, "type=256 "));
  assert_non_null(strstr(printed, "type=1024 "));
  assert_non_null(strstr(printed, "type=4 "));
  assert_null(strstr(printed, "type=2048 "));
  assert_null(strstr(printed, "type=512 "));
  setenv("TEST_PLUGIN_MASK", "0", 1);
  run_profiled(printed, out, in, stream);
  assert_null(strstr(printed, "start"));
  unsetenv("TEST_PLUGIN_MASK");
  setenv("TEST_PLUGIN_REFUSES", "1", 1);
  run_profiled(printed, out, in, stream);
  assert_null(strstr(printed, "start"));
  assert_null(strstr(printed, "finalize"));
  unsetenv("TEST_PLUGIN_REFUSES");
  unsetenv("NCCL_PROFILER_PLUGIN");
}

static void plugin_hears_of_every_graph_launch(void **state) {
  (void)state;
  struct job job;
  char printed[OUTPUT_BYTES];
  if (!dlsym(RTLD_DEFAULT, "cuGraphLaunch")) skip();
  setenv("NCCL_PROFILER_PLUGIN", TEST_PLUGIN, 1);
  run(&job, "graph_replay", 2);
  unsetenv("NCCL_PROFILER_PLUGIN");
  assert_true(succeeded(job.statuses[0]) && succeeded(job.statuses[1]));
  read_output(&job, 1, printed);
  finish(&job);
  int transfers = 0;
  for (const char *at = printed; (at = strstr(at, "type=4 ")); at++)
    transfers++;
  assert_int_equal(transfers, 4);
}

int main(int argc, char **argv) {
  if (argc == 6 && strcmp(argv[1], "rank") == 0)
    return rank_main(argv[2], atoi(argv[3]), atoi(argv[4]), argv[5]);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(both_names_are_one_function),
      cmocka_unit_test(ring),
      cmocka_unit_test(dense_group),
      cmocka_unit_test(pair_order),
      cmocka_unit_test(self_send),
      cmocka_unit_test(eight_ranks),
      cmocka_unit_test(size_mismatch),
      cmocka_unit_test(collectives),
      cmocka_unit_test(split),
      cmocka_unit_test(ranks_of_one_process),
      cmocka_unit_test(user_errors),
      cmocka_unit_test(missing_rank_times_out),
      cmocka_unit_test(twins),
      cmocka_unit_test(disagree),
      cmocka_unit_test(abort_wakes),
      cmocka_unit_test(dead_peer_ends_every_wait),
      cmocka_unit_test(early_leaver),
      cmocka_unit_test(access_outside_memory_is_an_error_of_the_device),
      cmocka_unit_test(missing_wait_is_seen_under_jitter),
      cmocka_unit_test(two_streams),
      cmocka_unit_test(crossed_streams),
      cmocka_unit_test(graph_replay),
      cmocka_unit_test(plugin_of_every_version),
      cmocka_unit_test(plugin_can_be_absent),
      cmocka_unit_test(plugin_mask_and_refusal),
      cmocka_unit_test(plugin_hears_of_every_graph_launch),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
