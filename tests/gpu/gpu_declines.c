// An injected library that declines, to see what the driver makes of it.
#include <stdlib.h>

int InitializeInjection(void);
int InitializeInjection(void) {
  (void)setenv("RP_GPU_INJECTED", "1", 1);
  return 0;
}
