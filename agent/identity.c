/* Identity of the process, for the report. */
#include "agent/identity.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "agent/launchers.h"
#include "agent/state.h"

static const char *own_variable(void *context, const char *name) {
  (void)context;
  return getenv(name);
}

void rp_identity_rank(struct rp_process_info *out) {
  rp_launcher_rank(own_variable, NULL, out);
}

/* Arguments joined by blanks. */
static void read_command(char *out, size_t size) {
  out[0] = '\0';
  int file = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
  if (file < 0) return;
  size_t used = 0;
  while (used < size - 1) {
    ssize_t got = read(file, out + used, size - 1 - used);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    used += (size_t)got;
  }
  (void)close(file);
  while (used > 0 && out[used - 1] == '\0')
    used--;
  for (size_t i = 0; i < used; i++)
    if (out[i] == '\0') out[i] = ' ';
  out[used] = '\0';
}

void rp_identity_read(struct rp_process_info *out) {
  struct timespec now;
  memset(out, 0, sizeof *out);
  if (gethostname(out->host, sizeof out->host - 1) != 0) snprintf(out->host, sizeof out->host, "localhost");
  out->pid = getpid();
  read_command(out->command, sizeof out->command);
  rp_identity_rank(out);
  clock_gettime(CLOCK_REALTIME, &now);
  out->start_time_unix_seconds = (double)now.tv_sec + (double)now.tv_nsec / 1e9;
  out->start_monotonic_ns = rp_now_ns();
  rp_incarnation_own(&out->incarnation);
}
