/* How long reading, checking and planning a schedule file takes, for files of doubling size.
 *
 *   bench_plan            one line per size: actions, nanoseconds per action of each part, seconds in all,
 * bytes per action bench_plan write FILE ACTIONS   writes a file of about that many actions, for the Python
 * version of the same calculation
 */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "pool/plan.h"
#include "pool/schedule.h"

#define RANKS 64
#define CHUNKS 4
#define ACTIONS_PER_PAIR 6 /* F, B and four transfers */

static double now_seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* A lowered interleaved schedule of about `actions` actions as text. */
static char *make_text(long actions, size_t *length) {
  struct rp_schedule s;
  char *text = NULL;
  int32_t microbatches = (int32_t)(actions / ACTIONS_PER_PAIR / (RANKS * CHUNKS) / RANKS * RANKS);
  if (microbatches < RANKS) microbatches = RANKS;
  if (rp_schedule_generate("interleaved_1f1b", RANKS, CHUNKS, microbatches, &s, NULL)) return NULL;
  if (rp_schedule_print(&s, &text, length)) text = NULL;
  rp_schedule_fini(&s);
  return text;
}

static size_t count_actions(const struct rp_schedule *s) {
  size_t count = 0;
  for (int32_t r = 0; r < s->ranks; r++)
    count += s->rank[r].count;
  return count;
}

static int measure(long wanted) {
  size_t length;
  char *text = make_text(wanted, &length);
  if (!text) return 1;
  struct rp_schedule s;
  struct rp_plan_options options = RP_PLAN_OPTIONS_INIT;
  struct rp_plan *plan;
  malloc_trim(0);
  size_t before = mallinfo2().uordblks + mallinfo2().hblkhd;
  double t[4] = {now_seconds()};
  if (rp_schedule_parse(text, length, &s, NULL)) return 1;
  t[1] = now_seconds();
  if (rp_schedule_check(&s, NULL)) return 1;
  t[2] = now_seconds();
  if (rp__plan_from_schedule(&s, &options, &plan)) return 1;
  t[3] = now_seconds();
  size_t held = mallinfo2().uordblks + mallinfo2().hblkhd - before;
  double n = (double)count_actions(&s);
  printf(
      "%9.0f actions  read %5.0f  check %5.0f  plan %5.0f ns/action  in all %.3f s  held %.0f bytes/action\n",
      n, (t[1] - t[0]) / n * 1e9, (t[2] - t[1]) / n * 1e9, (t[3] - t[2]) / n * 1e9, t[3] - t[0],
      (double)held / n);
  rp_plan_destroy(plan);
  rp_schedule_fini(&s);
  free(text);
  return 0;
}

static int write_file(const char *path, long actions) {
  size_t length;
  char *text = make_text(actions, &length);
  FILE *file = text ? fopen(path, "wb") : NULL;
  int failed = !file || fwrite(text, 1, length, file) != length;
  if (file && fclose(file) != 0) failed = 1;
  free(text);
  return failed;
}

int main(int argc, char **argv) {
  if (argc == 4 && strcmp(argv[1], "write") == 0) return write_file(argv[2], atol(argv[3]));
  for (long actions = 125000; actions <= 2000000; actions *= 2)
    if (measure(actions)) return 1;
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  printf("peak %ld MiB\n", usage.ru_maxrss / 1024);
  return 0;
}
