/* A module that calls the hooked functions; built in every way a linker binds them. */
#include "samples.h"

int caller_add(int a, int b) {
  return sample_add(a, b);
}

int caller_twice(int a) {
  return sample_twice(a);
}

int caller_untouched(int a) {
  return sample_untouched(a);
}
