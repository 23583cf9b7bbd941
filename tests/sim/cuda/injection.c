/* A smallest tool for CUDA_INJECTION64_PATH: says so each time it is initialised. */
#include <stdio.h>

__attribute__((visibility("default"))) int InitializeInjection(void);

int InitializeInjection(void) {
  puts("injected");
  fflush(stdout);
  return 0; /* the driver takes no notice */
}
