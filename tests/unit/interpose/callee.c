/* The library whose functions are hooked. */
#include "samples.h"

int sample_add(int a, int b) {
  return a + b;
}

int sample_untouched(int a) {
  return a + 1000;
}

/* An IFUNC: the symbol's value is the resolver, the function is what it returns. */
static int double_it(int a) {
  return 2 * a;
}

typedef int one_int(int);

one_int *resolve_twice(void);
one_int *resolve_twice(void) {
  return double_it;
}

int sample_twice(int a) __attribute__((ifunc("resolve_twice")));
