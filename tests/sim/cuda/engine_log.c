/* Owns the record of launches: which work ran on which stream, and what the receive buffers that it names
 * held at that moment. Off unless RPSIM_LAUNCH_LOG is set; see rpsim.h for the form. */
#include "engine_log.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct buffer {
  struct sim_span span;
  size_t number; /* the same for the same span, in order of the first receive */
  bool live;     /* false once another receive took part of its addresses */
};

static const char *folder; /* NULL: no record */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t lock =
    PTHREAD_MUTEX_INITIALIZER; /* over all below; inside memory_lock and engine_lock */
static struct buffer *buffers;
static size_t buffer_count, buffer_capacity;
static uintptr_t lowest = UINTPTR_MAX, highest; /* around all of them */
static FILE *file;
static pid_t file_owner;
static _Thread_local uint64_t running_stream;

static void configure(void) {
  const char *text = getenv("RPSIM_LAUNCH_LOG");
  if (text && *text) folder = text;
}

bool sim_log_wanted(void) {
  pthread_once(&once, configure);
  return folder != NULL;
}

void sim_log_stream(uint64_t id) {
  running_stream = id;
}

/* ---- receive buffers ---- */

static bool overlap(const struct sim_span *a, const struct sim_span *b) {
  return a->base < b->base + b->size_bytes && b->base < a->base + a->size_bytes;
}

/* Under lock: the place of this span, NULL if it is new. */
static struct buffer *find(const struct sim_span *span) {
  for (size_t i = 0; i < buffer_count; i++)
    if (buffers[i].span.base == span->base && buffers[i].span.size_bytes == span->size_bytes)
      return &buffers[i];
  return NULL;
}

/* Numbers are given on the host, where their order is the program's; a buffer is live from its first receive
 * on the device on. */
void rpsim_log_receive(const void *address, size_t bytes) {
  struct sim_span span = {(uintptr_t)address, bytes};
  if (!sim_log_wanted() || !bytes) return;
  pthread_mutex_lock(&lock);
  if (!find(&span)) {
    if (buffer_count == buffer_capacity) {
      buffer_capacity = buffer_capacity ? 2 * buffer_capacity : 256;
      buffers = realloc(buffers, buffer_capacity * sizeof *buffers);
      if (!buffers) abort();
    }
    buffers[buffer_count] = (struct buffer){span, buffer_count, false};
    buffer_count++;
    if (span.base < lowest) lowest = span.base;
    if (span.base + bytes > highest) highest = span.base + bytes;
  }
  pthread_mutex_unlock(&lock);
}

/* Under lock: this buffer takes the addresses of those that it overlaps. */
static void make_live(const struct sim_span *span) {
  struct buffer *buffer = find(span);
  for (size_t i = 0; i < buffer_count; i++)
    if (&buffers[i] != buffer && overlap(&buffers[i].span, span)) buffers[i].live = false;
  if (buffer) buffer->live = true;
}

/* The live buffer that the span touches first, from *at on. */
static bool next_buffer(const struct sim_span *span, size_t *at, struct buffer *found) {
  for (; *at < buffer_count; ++*at) {
    if (!buffers[*at].live || !overlap(&buffers[*at].span, span)) continue;
    *found = buffers[(*at)++];
    return true;
  }
  return false;
}

/* ---- contents ---- */

struct hashing {
  struct sim_span span;
  uint64_t result;
};

static void hash_span(void *argument) {
  struct hashing *hashing = argument;
  const unsigned char *at = (const unsigned char *)hashing->span.base;
  uint64_t hash = 0xcbf29ce484222325u, word;
  size_t bytes = hashing->span.size_bytes;
  for (; bytes >= sizeof word; at += sizeof word, bytes -= sizeof word) {
    memcpy(&word, at, sizeof word);
    hash = (hash ^ word) * 0x9fb21c651e98df25u;
    hash ^= hash >> 32;
  }
  for (; bytes; at++, bytes--)
    hash = (hash ^ *at) * 0x100000001b3u;
  hashing->result = hash;
}

/* ---- lines ---- */

/* A line as it grows; one that is too long is cut with "...". */
struct line {
  char text[4096];
  size_t used;
};

static void line_start(struct line *line, const char *name) {
  int length =
      snprintf(line->text, sizeof line->text - 64, "%llu\t%s\t", (unsigned long long)running_stream, name);
  line->used = (size_t)length < sizeof line->text - 64 ? (size_t)length : sizeof line->text - 65;
}

static void line_buffer(struct line *line, const struct buffer *buffer, bool with_contents) {
  struct hashing hashing = {.span = buffer->span};
  char text[64];
  if (!with_contents)
    snprintf(text, sizeof text, "%zu:%llu ", buffer->number, (unsigned long long)buffer->span.size_bytes);
  else if (sim_fault_guard(hash_span, &hashing))
    snprintf(text, sizeof text, "%zu=%016llx ", buffer->number, (unsigned long long)hashing.result);
  else
    snprintf(text, sizeof text, "%zu=unmapped ", buffer->number);
  if (line->used + strlen(text) + 8 > sizeof line->text) snprintf(text, sizeof text, "...");
  if (line->used + strlen(text) + 2 > sizeof line->text) return;
  memcpy(line->text + line->used, text, strlen(text));
  line->used += strlen(text);
}

/* Under lock. A fork's child has a file of its own. */
static FILE *open_file(void) {
  if (file && file_owner == getpid()) return file;
  char path[4096];
  snprintf(path, sizeof path, "%s/%d.log", folder, (int)getpid());
  file = fopen(path, "ae");
  file_owner = getpid();
  if (file) setvbuf(file, NULL, _IOLBF, 1 << 16);
  return file;
}

/* Under lock. */
static void line_write(struct line *line) {
  line->text[line->used++] = '\n';
  FILE *out = open_file();
  if (!out || fwrite(line->text, 1, line->used, out) != line->used) {
    fprintf(stderr, "rpsim: RPSIM_LAUNCH_LOG: cannot write to %s\n", folder);
    folder = NULL;
  }
}

static void line_span(struct line *line, const struct sim_span *span, bool with_contents) {
  struct buffer buffer;
  for (size_t at = 0; next_buffer(span, &at, &buffer);)
    line_buffer(line, &buffer, with_contents);
}

/* ---- what ran ---- */

void sim_log_launch(const struct rpsim_kernel *kernel, const unsigned char *packed, size_t bytes) {
  struct line line;
  line_start(&line, kernel->name);
  pthread_mutex_lock(&lock);
  for (size_t i = 0; i + sizeof(uintptr_t) <= bytes; i += sizeof(uintptr_t)) {
    struct sim_span word = {0, 1};
    memcpy(&word.base, packed + i, sizeof word.base);
    if (word.base >= lowest && word.base < highest) line_span(&line, &word, true);
  }
  line_write(&line);
  pthread_mutex_unlock(&lock);
}

void sim_log_spans(const char *name, const struct sim_span *spans, size_t count) {
  struct line line;
  line_start(&line, name);
  size_t empty = line.used;
  pthread_mutex_lock(&lock);
  for (size_t i = 0; i < count; i++)
    line_span(&line, &spans[i], true);
  if (line.used > empty) line_write(&line);
  pthread_mutex_unlock(&lock);
}

void rpsim_log_transfer(const void *address, size_t bytes, int receives) {
  struct sim_span span = {(uintptr_t)address, bytes};
  struct line line;
  if (!sim_log_wanted() || !bytes) return;
  line_start(&line, receives ? "receive" : "send");
  size_t empty = line.used;
  pthread_mutex_lock(&lock);
  if (receives) make_live(&span);
  line_span(&line, &span, !receives);
  if (line.used > empty) line_write(&line);
  pthread_mutex_unlock(&lock);
}
