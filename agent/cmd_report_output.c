/* Files that are whole or not there, and JSON that is never whole in memory. */
#include "agent/cmd_report_output.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- files ---- */

/* Name of the file that is not whole yet. Read by a signal handler. */
static _Atomic(char *) unfinished;

static void give_up(int signal_number) {
  char *name = atomic_load(&unfinished);
  if (name) (void)unlink(name);
  (void)signal(signal_number, SIG_DFL);
  (void)raise(signal_number); /* when this returns */
}

void rp__output_give_up_on(int signal_number) {
  struct sigaction action = {.sa_handler = give_up};
  (void)sigaction(signal_number, &action, NULL);
}

/* Where nobody has asked for anything else. */
static void watch_signals(void) {
  static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
  struct sigaction now;
  for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++)
    if (sigaction(signals[i], NULL, &now) == 0 && now.sa_handler == SIG_DFL)
      rp__output_give_up_on(signals[i]);
}

/* In the same folder; the name is short, so that it fits wherever `path` does. */
static char *temporary_beside(const char *path) {
  const char *slash = strrchr(path, '/');
  int folder = slash ? (int)(slash - path) + 1 : 0;
  size_t size = (size_t)folder + 48;
  char *name = malloc(size);
  if (name) snprintf(name, size, "%.*s.recvpool-report-%ld.tmp", folder, path, (long)getpid());
  return name;
}

/* Whether PATH is something to write into, and not a file to be replaced. */
static bool is_device(const char *path) {
  struct stat info;
  return stat(path, &info) == 0 && !S_ISREG(info.st_mode);
}

bool rp__output_begin(struct rp__output *output, const char *path) {
  *output = (struct rp__output){0};
  if (is_device(path)) {
    output->file = fopen(path, "we");
    return output->file != NULL;
  }
  struct stat info;
  bool link = lstat(path, &info) == 0 && S_ISLNK(info.st_mode);
  output->path = link ? realpath(path, NULL) : strdup(path);
  if (output->path) output->temporary = temporary_beside(output->path);
  if (output->temporary) {
    atomic_store(&unfinished, output->temporary);
    watch_signals();
    output->file = fopen(output->temporary, "wxe");
  }
  if (output->file) return true;
  int error = errno;
  atomic_store(&unfinished, NULL);
  free(output->temporary);
  free(output->path);
  *output = (struct rp__output){0};
  errno = error;
  return false;
}

/* Pipes and devices cannot be synced, and need not be. */
static bool sync_file(FILE *file) {
  return fsync(fileno(file)) == 0 || errno == EINVAL || errno == ENOTSUP || errno == EROFS;
}

bool rp__output_end(struct rp__output *output, bool ok) {
  int error = errno; /* of what failed before, if something did */
  bool whole = ok && fflush(output->file) == 0 && sync_file(output->file);
  if (ok && !whole) error = errno;
  if (fclose(output->file) != 0 && whole) {
    whole = false;
    error = errno;
  }
  if (whole && output->temporary && rename(output->temporary, output->path) != 0) {
    whole = false;
    error = errno;
  }
  if (!whole && output->temporary) (void)unlink(output->temporary);
  atomic_store(&unfinished, NULL);
  free(output->temporary);
  free(output->path);
  errno = error;
  return whole;
}

/* ---- JSON ---- */

static void note_failure(struct rp__stream *stream, int error) {
  if (!stream->failed) stream->error = error;
  stream->failed = true;
}

bool rp__stream_end(struct rp__stream *stream) {
  if (!stream->failed && ferror(stream->file)) note_failure(stream, EIO);
  errno = stream->error ? stream->error : ENOMEM;
  return !stream->failed;
}

void rp__stream_raw(struct rp__stream *stream, const char *text) {
  if (!stream->failed && fputs(text, stream->file) == EOF) note_failure(stream, errno);
}

/* These characters are only ever inside of texts, where their numbers mean the same; a page cannot take them
 * for markup. */
static void put_escaped(struct rp__stream *stream, const char *text) {
  for (const char *rest = text; *rest && !stream->failed;) {
    size_t plain = strcspn(rest, "<>&");
    if (fwrite(rest, 1, plain, stream->file) != plain) note_failure(stream, errno);
    rest += plain;
    if (*rest && fprintf(stream->file, "\\u%04x", (unsigned)*rest++) < 0) note_failure(stream, errno);
  }
}

void rp__stream_json(struct rp__stream *stream, json_t *value) {
  size_t flags = JSON_COMPACT | JSON_ENCODE_ANY | (stream->markup ? JSON_ENSURE_ASCII : 0) | stream->flags;
  char *text = value && !stream->failed ? json_dumps(value, flags) : NULL;
  json_decref(value);
  if (!text)
    note_failure(stream, ENOMEM);
  else if (stream->markup)
    put_escaped(stream, text);
  else
    rp__stream_raw(stream, text);
  free(text);
}

void rp__stream_member(struct rp__stream *stream, bool first, const char *name, json_t *value) {
  rp__stream_raw(stream, first ? "\"" : ",\n\"");
  rp__stream_raw(stream, name);
  rp__stream_raw(stream, "\":");
  rp__stream_json(stream, value);
}
