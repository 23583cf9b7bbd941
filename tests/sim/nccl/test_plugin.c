/* A profiler plugin for the test: exports all versions and prints what it is given, read at the offsets of
 * the real descriptors. Handles are numbers, printed as #n; "launches" counts the kernel launches so far. */
#define _GNU_SOURCE 1
#include <dlfcn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define CONTEXT ((void *)0x77)

static int handles, base_launches = -1;

static int launches(void) {
  uint64_t (*count)(const char *) = NULL;
  void *symbol = dlsym(RTLD_DEFAULT, "rpsim_call_count");
  memcpy(&count, &symbol, sizeof count);
  int now = count ? (int)count("cuLaunchKernelEx") : 0;
  if (base_launches < 0) base_launches = now;
  return now - base_launches;
}

__attribute__((format(printf, 1, 2))) static void say(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vprintf(format, arguments);
  va_end(arguments);
  printf(" launches=%d\n", launches());
  fflush(stdout);
}

static uint64_t word(const void *descriptor, size_t offset) {
  uint64_t value;
  memcpy(&value, (const char *)descriptor + offset, sizeof value);
  return value;
}

static int number(const void *descriptor, size_t offset) {
  int value;
  memcpy(&value, (const char *)descriptor + offset, sizeof value);
  return value;
}

static unsigned byte(const void *descriptor, size_t offset) {
  return ((const unsigned char *)descriptor)[offset];
}

static const char *text(const void *descriptor, size_t offset) {
  return (const char *)(uintptr_t)word(descriptor, offset);
}

static int is_context(uint64_t parent) {
  return parent == (uint64_t)(uintptr_t)CONTEXT;
}

/* A point-to-point descriptor whose names start at `at`. */
static void say_p2p(const void *d, int id, size_t at) {
  say("start #%d type=4 parent=#%d rank=%d func=%s buff=%p type=%s count=%d peer=%d", id, (int)word(d, 8),
      number(d, 16), text(d, at), (void *)(uintptr_t)word(d, at + 8), text(d, at + 16), (int)word(d, at + 24),
      number(d, at + 32));
}

static int start_old(void **handle, const void *d, int version) {
  int id = ++handles;
  *handle = (void *)(uintptr_t)id;
  if (byte(d, 0) == 1)
    say("start #%d type=1 parent=%s rank=%d", id, is_context(word(d, 8)) ? "context" : "?", number(d, 16));
  else if (byte(d, 0) == 4 && version == 1)
    say("start #%d type=4 parent=#%d rank=%d name=%s func=%u buff=%p type=%u count=%d peer=%d", id,
        (int)word(d, 8), number(d, 16), text(d, 24), byte(d, 40), (void *)(uintptr_t)word(d, 48), byte(d, 56),
        (int)word(d, 64), number(d, 72));
  else if (byte(d, 0) == 4)
    say_p2p(d, id, version < 4 ? 40 : 24);
  else
    say("start #%d type=%u", id, byte(d, 0));
  return 0;
}

static int start_new(void **handle, const void *d) {
  int id = ++handles;
  *handle = (void *)(uintptr_t)id;
  switch (word(d, 0)) {
  case 1:   /* Group */
  case 256: /* GroupApi */
    say("start #%d type=%d parent=%s rank=%d", id, (int)word(d, 0), is_context(word(d, 8)) ? "context" : "?",
        number(d, 16));
    break;
  case 4:
    say_p2p(d, id, 24);
    printf("  group=#%d channels=%u\n", (int)word(d, 64), byte(d, 60));
    break;
  case 1024: /* P2pApi */
    say("start #%d type=1024 parent=#%d rank=%d func=%s count=%d type=%s stream=%p", id, (int)word(d, 8),
        number(d, 16), text(d, 24), (int)word(d, 32), text(d, 40), (void *)(uintptr_t)word(d, 48));
    break;
  case 2048: /* KernelLaunch */
    say("start #%d type=2048 parent=#%d stream=%p", id, (int)word(d, 8), (void *)(uintptr_t)word(d, 24));
    break;
  default:
    say("start #%d type=%d", id, (int)word(d, 0));
  }
  return 0;
}

static int event_mask(void) {
  const char *value = getenv("TEST_PLUGIN_MASK");
  return value ? atoi(value) : 1 | 2 | 4 | 256 | 512 | 1024 | 2048;
}

static int begin(void **context, int *mask, const char *line) {
  *context = CONTEXT;
  *mask = event_mask();
  say("%s", line);
  return getenv("TEST_PLUGIN_REFUSES") ? 3 : 0;
}

static int init_v4(void **context, int *mask, const char *name, uint64_t hash, int nodes, int nranks,
                   int rank, void *log) {
  char line[128];
  snprintf(line, sizeof line, "init v4 name=%s hash=%d nodes=%d nranks=%d rank=%d log=%d", name, hash != 0,
           nodes, nranks, rank, log != NULL);
  return begin(context, mask, line);
}

static int init_new(void **context, uint64_t id, int *mask, const char *name, int nodes, int nranks, int rank,
                    void *log) {
  char line[128];
  snprintf(line, sizeof line, "init v5 name=%s hash=%d nodes=%d nranks=%d rank=%d log=%d", name, id != 0,
           nodes, nranks, rank, log != NULL);
  return begin(context, mask, line);
}

static int stop(void *handle) {
  say("stop #%d", (int)(uintptr_t)handle);
  return 0;
}

static int record(void *handle, int state, void *arguments) {
  (void)arguments;
  say("state #%d %d", (int)(uintptr_t)handle, state);
  return 0;
}

static int finalize(void *context) {
  say("finalize %s", context == CONTEXT ? "context" : "?");
  return 0;
}

#define OLD(version)                                                                                         \
  static int start_v##version(void *context, void **handle, void *d) {                                       \
    (void)context;                                                                                           \
    return start_old(handle, d, version);                                                                    \
  }
#define INIT_OLD(version)                                                                                    \
  static int init_v##version(void **context, int *mask) {                                                    \
    return begin(context, mask, "init v" #version);                                                          \
  }
OLD(1)
OLD(2)
OLD(3)
OLD(4)
INIT_OLD(1)
INIT_OLD(2)
INIT_OLD(3)

static int start_v5(void *context, void **handle, void *d) {
  (void)context;
  return start_new(handle, d);
}

#define TABLE(version, start_function, init_function, init_arguments)                                        \
  EXPORT const struct {                                                                                      \
    const char *name;                                                                                        \
    int(*init) init_arguments;                                                                               \
    int (*start)(void *, void **, void *);                                                                   \
    int (*stop)(void *);                                                                                     \
    int (*record)(void *, int, void *);                                                                      \
    int (*finalize)(void *);                                                                                 \
  } ncclProfiler_v##version = {"test", init_function, start_function, stop, record, finalize}

TABLE(1, start_v1, init_v1, (void **, int *));
TABLE(2, start_v2, init_v2, (void **, int *));
TABLE(3, start_v3, init_v3, (void **, int *));
TABLE(4, start_v4, init_v4, (void **, int *, const char *, uint64_t, int, int, int, void *));
TABLE(5, start_v5, init_new, (void **, uint64_t, int *, const char *, int, int, int, void *));
TABLE(6, start_v5, init_new, (void **, uint64_t, int *, const char *, int, int, int, void *));

__attribute__((destructor)) static void unloaded(void) {
  printf("unloaded\n");
  fflush(stdout);
}
