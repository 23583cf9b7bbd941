/* Which process an id meant. */
#include "agent/incarnation.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Begin of a file of the kernel; "" where there is none. */
static void read_text(const char *path, char *out, size_t size) {
  out[0] = '\0';
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return;
  ssize_t got = read(file, out, size - 1);
  (void)close(file);
  out[got > 0 ? got : 0] = '\0';
}

/* State and start of a process; false where they cannot be read. The name before them can hold anything. */
static bool read_stat(const char *path, char *state, uint64_t *start_ticks) {
  char text[1024];
  read_text(path, text, sizeof text);
  const char *rest = strrchr(text, ')');
  return rest &&
         sscanf(rest, ") %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %" SCNu64,
                state, start_ticks) == 2;
}

static void read_boot_and_namespace(struct rp_incarnation *out) {
  struct stat info;
  read_text("/proc/sys/kernel/random/boot_id", out->boot_id, sizeof out->boot_id);
  out->boot_id[strcspn(out->boot_id, "\n")] = '\0';
  out->pid_namespace = stat("/proc/self/ns/pid", &info) == 0 ? info.st_ino : 0;
}

void rp_incarnation_own(struct rp_incarnation *out) {
  char state;
  read_boot_and_namespace(out);
  if (!read_stat("/proc/self/stat", &state, &out->start_ticks)) out->start_ticks = 0;
}

static struct rp_incarnation here; /* boot and namespace: they stay as they are */

static void read_here(void) {
  read_boot_and_namespace(&here);
}

/* kill() also tells where /proc hides the processes of others. */
static bool nobody_has(pid_t pid) {
  return kill(pid, 0) != 0 && errno == ESRCH;
}

bool rp_incarnation_is_gone(pid_t pid, const struct rp_incarnation *of) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  char path[64], state;
  uint64_t start_ticks;
  if (pid <= 0 || !of->boot_id[0] || !of->pid_namespace || !of->start_ticks) return false;
  (void)pthread_once(&once, read_here);
  if (strcmp(here.boot_id, of->boot_id) != 0 || here.pid_namespace != of->pid_namespace) return false;
  if (nobody_has(pid)) return true;
  snprintf(path, sizeof path, "/proc/%ld/stat", (long)pid);
  if (!read_stat(path, &state, &start_ticks)) return nobody_has(pid); /* perhaps it ends just now */
  return start_ticks != of->start_ticks || state == 'Z' || state == 'X';
}
