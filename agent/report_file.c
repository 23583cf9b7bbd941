/* The report as a file: its name, and an atomic rewrite that leaves either the old file or the new one, never
 * a torn one. Runs on the program's own threads at exit, so it touches no signal disposition and nothing
 * outside its folder. */
#include "agent/report.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/signals_off.h"

void rp_report_file_name(const struct rp_process_info *process, char *out, size_t out_size) {
  char host[sizeof process->host];
  size_t length = 0;
  for (; process->host[length] && length < sizeof host - 1; length++) {
    char c = process->host[length];
    bool plain = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' ||
                 c == '-' || (c == '.' && length > 0); /* a leading dot would hide the file */
    host[length] = plain ? c : '_';
  }
  host[length] = '\0';
  snprintf(out, out_size, "%s-%ld-%" PRIu64 ".json", length ? host : "host", (long)process->pid,
           process->start_monotonic_ns);
}

/* mkdir -p. */
static int make_folder(const char *dir) {
  char path[PATH_MAX];
  size_t length = strlen(dir);
  if (length == 0 || length >= sizeof path) {
    errno = length ? ENAMETOOLONG : ENOENT;
    return -1;
  }
  memcpy(path, dir, length + 1);
  for (char *slash = path + 1; *slash; slash++) {
    if (*slash != '/') continue;
    *slash = '\0';
    mkdir(path, 0755); /* a failure shows in the last mkdir, or in the open that follows */
    *slash = '/';
  }
  return mkdir(path, 0755) == 0 || errno == EEXIST ? 0 : -1;
}

static int write_all(int fd, const char *data, size_t length) {
  while (length > 0) {
    ssize_t wrote = write(fd, data, length);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) {
      if (wrote == 0) errno = EIO;
      return -1;
    }
    data += wrote;
    length -= (size_t)wrote;
  }
  return 0;
}

static int write_and_close(int fd, const char *text, size_t length) {
  int failed = write_all(fd, text, length) != 0 || write_all(fd, "\n", 1) != 0;
  int saved = errno;
  if (close(fd) != 0 && !failed) { /* quotas and network file systems report late */
    failed = 1;
    saved = errno;
  }
  errno = saved;
  return failed ? -1 : 0;
}

/* The temporary name starts with a dot, and readers skip those: one left by SIGKILL is never taken for a
 * report. */
static int replace_file(const char *dir, const char *name, const char *text, size_t length) {
  char temporary[PATH_MAX], final[PATH_MAX];
  int a = snprintf(temporary, sizeof temporary, "%s/.%s.tmp", dir, name);
  int b = snprintf(final, sizeof final, "%s/%s", dir, name);
  if (a < 0 || b < 0 || (size_t)a >= sizeof temporary || (size_t)b >= sizeof final) {
    errno = ENAMETOOLONG;
    return -1;
  }
  unlink(temporary); /* of an earlier try that was killed; O_EXCL so that nobody's link is followed */
  int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (fd < 0) return -1;
  if (write_and_close(fd, text, length) == 0 && rename(temporary, final) == 0) return 0;
  int saved = errno;
  unlink(temporary);
  errno = saved;
  return -1;
}

rp_status rp_report_write(const struct rp_report *report, const char *dir, const char *name) {
  json_t *json = rp_report_to_json(report);
  rp_status status = json ? rp_report_write_document(json, dir, name) : RP_ERROR_NO_MEMORY;
  int saved = errno;
  json_decref(json);
  errno = saved;
  return status;
}

rp_status rp_report_write_document(const json_t *report, const char *dir, const char *name) {
  char *text = json_dumps(report, JSON_INDENT(1) | JSON_REAL_PRECISION(17));
  if (!text) return RP_ERROR_NO_MEMORY;
  struct rp_signals_off guard;
  rp_signals_off(&guard);
  rp_status status = RP_OK;
  if (make_folder(dir) != 0 || replace_file(dir, name, text, strlen(text)) != 0) status = RP_ERROR_IO;
  rp_signals_back(&guard);
  int saved = errno;
  free(text);
  errno = saved;
  return status;
}
