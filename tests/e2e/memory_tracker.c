/* A library that a user preloads to see what is allocated, as profilers of memory do: it stands between the
 * program and the runtime, and must see every allocation that is freed. */
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>

#define KNOWN_MOST 4096

int cudaMalloc(void **out, size_t bytes);
int cudaFree(void *address);
int memory_tracker_live(void);
int memory_tracker_unknown(void);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *known[KNOWN_MOST];
static size_t known_count;
static int unknown;

int cudaMalloc(void **out, size_t bytes) {
  static int (*next)(void **, size_t);
  if (!next) *(void **)&next = dlsym(RTLD_NEXT, "cudaMalloc");
  int result = next(out, bytes);
  pthread_mutex_lock(&lock);
  if (result == 0 && known_count < KNOWN_MOST) known[known_count++] = *out;
  pthread_mutex_unlock(&lock);
  return result;
}

int cudaFree(void *address) {
  static int (*next)(void *);
  if (!next) *(void **)&next = dlsym(RTLD_NEXT, "cudaFree");
  pthread_mutex_lock(&lock);
  size_t at = 0;
  while (at < known_count && known[at] != address)
    at++;
  if (at < known_count)
    known[at] = known[--known_count];
  else
    unknown += address != NULL;
  pthread_mutex_unlock(&lock);
  return next(address);
}

int memory_tracker_live(void) {
  pthread_mutex_lock(&lock);
  int count = (int)known_count;
  pthread_mutex_unlock(&lock);
  return count;
}

int memory_tracker_unknown(void) {
  pthread_mutex_lock(&lock);
  int count = unknown;
  pthread_mutex_unlock(&lock);
  return count;
}
