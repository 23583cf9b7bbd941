// A driver, or another library that `recvpool doctor` asks, that does as ODD says when it is called: print,
// crash, end the process, not answer, or leave a child behind that keeps the output open.
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

static int behave(const char *function) {
  const char *how = getenv("ODD"), *where = getenv("ODD_FUNCTION");
  if (!how || (where && strcmp(where, function) != 0)) return 0;
  if (strcmp(how, "print") == 0) printf("\n{\"hello\": \"from %s\"}\nmore\n", function);
  if (strcmp(how, "much") == 0)
    for (int i = 0; i < 100000; i++)
      fprintf(stderr, "line %d\n", i);
  if (strcmp(how, "crash") == 0) {
    (void)signal(SIGSEGV, SIG_DFL); // a sanitizer would catch it
    (void)raise(SIGSEGV);
  }
  if (strcmp(how, "exit") == 0) exit(7);
  if (strcmp(how, "hang") == 0)
    for (;;)
      (void)pause();
  if (strcmp(how, "leave") == 0 && fork() == 0) {
    (void)sleep(20);
    _exit(0);
  }
  return 0;
}

#define VERSION(name, version)                                                                               \
  EXPORT int name(int *out);                                                                                 \
  EXPORT int name(int *out) {                                                                                \
    *out = (version);                                                                                        \
    return behave(#name);                                                                                    \
  }
VERSION(cuDriverGetVersion, 13000)
VERSION(cuDeviceGetCount, 1)
VERSION(cudaRuntimeGetVersion, 13000)
VERSION(cuptiGetVersion, 130001)
VERSION(ncclGetVersion, 22809)
EXPORT int cuInit(unsigned flags);
EXPORT int cuInit(unsigned flags) {
  (void)flags;
  return behave("cuInit");
}
