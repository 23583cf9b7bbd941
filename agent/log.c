/* Warnings and verbose lines. Owns the fixed list of warnings of this process. */
#include "agent/log.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "agent/signals_off.h"

#define VERBOSE_LINES_MAX 1000

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char warnings[RP_LOG_WARNINGS][RP_LOG_TEXT]; /* lock; entries below `count` never change */
static size_t count;                                /* lock */
static bool printed;                                /* lock */
static bool urgent[RP_LOG_WARNINGS];                /* lock; to be printed by themselves */
static bool said[RP_LOG_WARNINGS];                  /* lock; and that was done */
static _Atomic bool any_urgent;
static _Atomic bool verbose_on;
static _Atomic unsigned verbose_lines;

void rp_log_set_verbose(bool verbose) {
  atomic_store_explicit(&verbose_on, verbose, memory_order_relaxed);
}

/* What a reader has no room for now is dropped, so that nobody waits for it; a line is never repeated. */
static void put(const char *text, size_t bytes) {
  struct rp_signals_off guard;
  rp_signals_off(&guard);
  while (bytes > 0) {
    struct pollfd room = {.fd = STDERR_FILENO, .events = POLLOUT};
    if (poll(&room, 1, 0) <= 0 || !(room.revents & POLLOUT)) break;
    ssize_t written = write(STDERR_FILENO, text, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) break;
    text += written;
    bytes -= (size_t)written;
  }
  rp_signals_back(&guard);
}

static void add(const char *text, bool at_once) {
  pthread_mutex_lock(&lock);
  bool known = false;
  for (size_t i = 0; i < count && !known; i++)
    known = strcmp(warnings[i], text) == 0;
  if (!known && count < RP_LOG_WARNINGS) {
    snprintf(warnings[count], sizeof warnings[count], "%s", text);
    urgent[count] = at_once;
    if (at_once) atomic_store_explicit(&any_urgent, true, memory_order_relaxed);
    count++;
  }
  pthread_mutex_unlock(&lock);
}

static void warn(bool at_once, const char *format, va_list arguments) {
  int saved = errno;
  char text[RP_LOG_TEXT];
  vsnprintf(text, sizeof text, format, arguments);
  for (char *c = text; *c; c++)
    if (*c == '\n' || *c == '\r') *c = ' ';
  add(text, at_once);
  errno = saved;
}

void rp_warn(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  warn(false, format, arguments);
  va_end(arguments);
}

void rp_warn_urgent(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  warn(true, format, arguments);
  va_end(arguments);
}

/* The next one, which is urgent no more; 0: there is none. */
static size_t take_urgent(char *line, size_t size) {
  int length = 0;
  pthread_mutex_lock(&lock);
  for (size_t i = 0; i < count && !length; i++) {
    if (!urgent[i]) continue;
    urgent[i] = false;
    said[i] = true;
    length = snprintf(line, size, "recvpool: %s", warnings[i]);
  }
  pthread_mutex_unlock(&lock);
  return length > 0 ? (size_t)length : 0;
}

void rp_log_flush_urgent(void) {
  if (!atomic_load_explicit(&any_urgent, memory_order_relaxed)) return;
  atomic_store_explicit(&any_urgent, false, memory_order_relaxed);
  int saved = errno;
  char line[PIPE_BUF];
  for (size_t length; (length = take_urgent(line, sizeof line - 1)) > 0;) {
    if (length > sizeof line - 2) length = sizeof line - 2;
    line[length++] = '\n';
    put(line, length);
  }
  errno = saved;
}

void rp_log_flush(void) {
  int saved = errno;
  char line[PIPE_BUF]; /* one write of this size is not mixed with others */
  size_t used = 0;
  pthread_mutex_lock(&lock);
  bool print = !printed;
  for (size_t i = 0; print && i < count; i++) {
    if (said[i]) continue;
    urgent[i] = false;
    int length =
        snprintf(line + used, sizeof line - used - 1, "%s%s", used ? "; " : "recvpool: ", warnings[i]);
    if (length < 0) break;
    used += (size_t)length;
    if (used >= sizeof line - 2) {
      used = sizeof line - 2;
      break;
    }
  }
  if (used) printed = true;
  pthread_mutex_unlock(&lock);
  if (used) {
    line[used++] = '\n';
    put(line, used);
  }
  errno = saved;
}

void rp_verbose(const char *format, ...) {
  if (!atomic_load_explicit(&verbose_on, memory_order_relaxed)) return;
  if (atomic_fetch_add_explicit(&verbose_lines, 1, memory_order_relaxed) >= VERBOSE_LINES_MAX) return;
  int saved = errno;
  char line[512];
  int used = snprintf(line, sizeof line, "recvpool[%d]: ", (int)getpid());
  va_list arguments;
  va_start(arguments, format);
  int more = vsnprintf(line + used, sizeof line - (size_t)used - 1, format, arguments);
  va_end(arguments);
  size_t bytes = (size_t)used + (more > 0 ? (size_t)more : 0);
  if (bytes > sizeof line - 2) bytes = sizeof line - 2;
  line[bytes++] = '\n';
  put(line, bytes);
  errno = saved;
}

size_t rp_log_warnings(const char **out, size_t capacity) {
  pthread_mutex_lock(&lock);
  size_t copied = count < capacity ? count : capacity;
  for (size_t i = 0; i < copied; i++)
    out[i] = warnings[i];
  pthread_mutex_unlock(&lock);
  return copied;
}
