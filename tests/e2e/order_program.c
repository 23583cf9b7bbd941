/* Programs of stream operations whose order the injected library has to get right:
 *
 *   order_program runtime|driver model|free|odd|nccl SEED COUNT
 *
 * model: small random programs, call by call, by threads that take turns. What the order says is compared
 * with all executions that CUDA allows (tests/unit/order_model.c): it must say exactly that. free: threads
 * call as they like, captures, graphs, ends of streams and failing calls included. Each promise is written
 * down before a launch, and the launched kernel looks whether it was kept.
 *
 * odd: situations in which it is easy to promise too much. nccl: the edges that NCCL makes.
 *
 * Prints "promises N broken N"; ends with 1 if one was broken. Run under the library with the probe. */
#include "tests/e2e/order_program.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/sim/rpsim.h"

#define BUFFER_BYTES ((size_t)1 << 20)

const struct order_calls *calls;
const struct order_probe *probe;
void *watched, *plain;
_Atomic long broken_promises;

void check(int result, const char *what) {
  if (result == 0) return;
  fprintf(stderr, "order_program: %s failed with %d\n", what, result);
  exit(2);
}

uint64_t draw(uint64_t *state, uint64_t bound) {
  *state ^= *state << 13;
  *state ^= *state >> 7;
  *state ^= *state << 17;
  return (*state >> 20) % bound;
}

void wait_a_little(uint64_t nanoseconds) {
  const struct timespec time = {.tv_nsec = (long)nanoseconds};
  (void)nanosleep(&time, NULL);
}

uint64_t order_stream(void *stream) {
  if (stream == calls->legacy) return RP_ORDER_STREAM_LEGACY;
  if (stream == calls->per_thread) return RP_ORDER_STREAM_PER_THREAD;
  return (uint64_t)(uintptr_t)stream;
}

/* ---- the kernel: were the promises made of it kept? ---- */

static void body(void *const *params, const struct rpsim_dims *dims) {
  struct note *note = *(struct note **)params[1];
  (void)dims;
  if (!note) return;
  const uint32_t number = atomic_load(&note->done);
  const struct note_launch *launch = &note->launches[number % NOTE_LAUNCHES];
  for (uint32_t i = 0; i < launch->count; i++)
    if (atomic_load(&launch->must[i].note->done) < launch->must[i].done)
      atomic_fetch_add(&broken_promises, 1);
  wait_a_little(20000);
  atomic_store(&note->done, number + 1);
}

static const struct rpsim_param layout[] = {{0, 8}, {8, 8}};
static const struct rpsim_kernel kernel = {ORDER_KERNEL, body, 2, layout};

__attribute__((constructor)) static void register_body(void) {
  rpsim_register_kernels(&kernel, 1);
}

/* ---- main ---- */

static const struct order_probe *find_probe(void) {
  const char *path = getenv("CUDA_INJECTION64_PATH");
  void *library = path ? dlopen(path, RTLD_NOW | RTLD_NOLOAD) : NULL;
  const struct order_probe *(*get)(void) = NULL;
  void *symbol = library ? dlsym(library, "order_probe") : NULL;
  memcpy(&get, &symbol, sizeof get);
  if (get) return get();
  fprintf(stderr, "order_program: runs under the library with the probe only\n");
  exit(2);
}

int main(int argc, char **argv) {
  if (argc != 5) {
    fprintf(stderr, "usage: order_program runtime|driver model|free|odd|nccl SEED COUNT\n");
    return 2;
  }
  calls = strcmp(argv[1], "driver") ? &order_calls_runtime : &order_calls_driver;
  check(calls->set_up(), "set up");
  check(calls->allocate(&plain, BUFFER_BYTES), "allocate");
  check(calls->allocate(&watched, BUFFER_BYTES), "allocate");
  probe = find_probe();
  probe->start((uint64_t)(uintptr_t)watched, (uint64_t)(uintptr_t)watched + BUFFER_BYTES);
  const uint64_t seed = strtoull(argv[3], NULL, 10);
  const int count = atoi(argv[4]);
  long promises = !strcmp(argv[2], "model")  ? model_mode(seed, count)
                  : !strcmp(argv[2], "free") ? free_mode(seed, count)
                  : !strcmp(argv[2], "odd")  ? odd_mode()
                                             : nccl_mode();
  struct rp_order_counts counts;
  probe->counts(&counts);
  printf("promises %ld broken %ld operations %llu captured %llu lost %d dropped %llu\n", promises,
         atomic_load(&broken_promises), (unsigned long long)counts.operations,
         (unsigned long long)counts.captured, counts.lost, (unsigned long long)counts.calls_dropped);
  fflush(stdout);
  return broken_promises != 0;
}
