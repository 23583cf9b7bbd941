/* What a terminal shows while a large schedule is planned: how large it is, and for how long that has gone
 * on. Owns a thread that wakes once a second, and takes the line back at the end. */
#include <inttypes.h>
#include <pthread.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "agent/plan_command.h"

/* Smaller ones take less than a second or two. */
#define MANY_PASSES ((uint64_t)1 << 19)
#define LARGE_FILE_BYTES ((uint64_t)4 << 20)

static struct {
  pthread_mutex_t lock;
  pthread_cond_t wake;
  pthread_t thread;
  bool running, stop; /* stop: lock */
  char what[64];
} ticker = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void show(unsigned seconds) {
  fprintf(stderr, "\rplanning %s", ticker.what);
  if (seconds) fprintf(stderr, ", %u s", seconds);
  (void)fflush(stderr);
}

static void *tick(void *unused) {
  struct timespec until;
  clock_gettime(CLOCK_MONOTONIC, &until);
  pthread_mutex_lock(&ticker.lock);
  for (unsigned seconds = 0; !ticker.stop;) {
    until.tv_sec++;
    while (!ticker.stop && pthread_cond_timedwait(&ticker.wake, &ticker.lock, &until) == 0) {
    }
    if (!ticker.stop) show(++seconds);
  }
  pthread_mutex_unlock(&ticker.lock);
  return unused;
}

/* Whether it is worth saying; `ticker.what` is what to say. */
static bool is_large(const struct rp_plan_arguments *a) {
  struct stat info;
  if (a->schedule) {
    uint64_t passes = 2 * (uint64_t)a->stages * (uint64_t)a->microbatches;
    snprintf(ticker.what, sizeof ticker.what, "%" PRIu64 " forward and backward passes", passes);
    return passes >= MANY_PASSES;
  }
  if (!a->lowered || stat(a->lowered, &info) != 0 || !S_ISREG(info.st_mode)) return false;
  snprintf(ticker.what, sizeof ticker.what, "a file of %" PRIu64 " MiB", (uint64_t)info.st_size >> 20);
  return (uint64_t)info.st_size >= LARGE_FILE_BYTES;
}

void rp_plan_ticker_start(const struct rp_plan_arguments *a) {
  pthread_condattr_t monotonic;
  if (isatty(STDERR_FILENO) != 1 || !is_large(a)) return;
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_cond_init(&ticker.wake, &monotonic);
  pthread_condattr_destroy(&monotonic);
  show(0);
  ticker.running = pthread_create(&ticker.thread, NULL, tick, NULL) == 0;
  if (!ticker.running) fputs("\r\033[K", stderr);
}

void rp_plan_ticker_stop(void) {
  if (!ticker.running) return;
  pthread_mutex_lock(&ticker.lock);
  ticker.stop = true;
  pthread_cond_signal(&ticker.wake);
  pthread_mutex_unlock(&ticker.lock);
  (void)pthread_join(ticker.thread, NULL);
  ticker.running = false;
  fputs("\r\033[K", stderr);
}
