/* Threads that allocate, free, launch and receive at once: enforce_threads SECONDS [THREADS [BYTES]]. Each is
 * a pipeline stage of its own that sends to itself, and checks every byte that it reads. Ends with status 4
 * and a line where one is wrong, else prints how many steps all made. */
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BUFFERS 6
#define THREADS_MOST 64

static size_t bytes = (size_t)2 << 20;
static _Atomic uint64_t steps, wrong;
static atomic_bool stop;

static void check(int error, const char *what) {
  if (error == 0) return;
  printf("%s: error %d\n", what, error);
  exit(3);
}

struct stage {
  pthread_t thread;
  uint32_t number;
  ncclComm_t comm;
  cudaStream_t compute, transfers;
  cudaEvent_t ready, received;
  void *from, *into[BUFFERS];
  unsigned char *host; /* what was read of each buffer: its first and last byte */
};

static void *allocate(void) {
  void *memory = NULL;
  check(cudaMalloc(&memory, bytes), "cudaMalloc");
  return memory;
}

static void create(struct stage *s) {
  ncclUniqueId id;
  check(ncclGetUniqueId(&id), "ncclGetUniqueId");
  check(ncclCommInitRank(&s->comm, 1, id, 0), "ncclCommInitRank");
  check(cudaStreamCreateWithFlags(&s->compute, cudaStreamNonBlocking), "cudaStreamCreate");
  check(cudaStreamCreateWithFlags(&s->transfers, cudaStreamNonBlocking), "cudaStreamCreate");
  check(cudaEventCreateWithFlags(&s->ready, cudaEventDisableTiming), "cudaEventCreate");
  check(cudaEventCreateWithFlags(&s->received, cudaEventDisableTiming), "cudaEventCreate");
  check(cudaMallocHost((void **)&s->host, 2 * BUFFERS), "cudaMallocHost");
}

static void destroy(struct stage *s) {
  check(cudaStreamSynchronize(s->compute), "cudaStreamSynchronize");
  check(cudaFreeHost(s->host), "cudaFreeHost");
  check(cudaEventDestroy(s->ready), "cudaEventDestroy");
  check(cudaEventDestroy(s->received), "cudaEventDestroy");
  check(cudaStreamDestroy(s->transfers), "cudaStreamDestroy");
  check(cudaStreamDestroy(s->compute), "cudaStreamDestroy");
  check(ncclCommDestroy(s->comm), "ncclCommDestroy");
}

static void allocate_buffers(struct stage *s) {
  for (int i = 0; i < BUFFERS; i++)
    s->into[i] = allocate();
  s->from = allocate();
}

static void free_buffers(struct stage *s) {
  for (int i = 0; i < BUFFERS; i++)
    check(cudaFree(s->into[i]), "cudaFree");
  check(cudaFree(s->from), "cudaFree");
}

/* One message: filled on the compute stream, sent and received on the other, and read where it was filled. */
static void pass_message(struct stage *s, int i, unsigned char value) {
  check(cudaMemsetAsync(s->from, value, bytes, s->compute), "cudaMemsetAsync");
  check(cudaEventRecord(s->ready, s->compute), "cudaEventRecord");
  check(cudaStreamWaitEvent(s->transfers, s->ready, 0), "cudaStreamWaitEvent");
  check(ncclGroupStart(), "ncclGroupStart");
  check(ncclSend(s->from, bytes, ncclUint8, 0, s->comm, s->transfers), "ncclSend");
  check(ncclRecv(s->into[i], bytes, ncclUint8, 0, s->comm, s->transfers), "ncclRecv");
  check(ncclGroupEnd(), "ncclGroupEnd");
  check(cudaEventRecord(s->received, s->transfers), "cudaEventRecord");
  check(cudaStreamWaitEvent(s->compute, s->received, 0), "cudaStreamWaitEvent");
  check(cudaMemcpyAsync(s->host + 2 * i, s->into[i], 1, cudaMemcpyDeviceToHost, s->compute), "copy");
  check(cudaMemcpyAsync(s->host + 2 * i + 1, (char *)s->into[i] + bytes - 1, 1, cudaMemcpyDeviceToHost,
                        s->compute),
        "copy");
}

static unsigned char value_of(const struct stage *s, uint64_t step, int i) {
  return (unsigned char)(s->number * 31 + step * 7 + (uint64_t)i * 3 + 1);
}

static void run_step(struct stage *s, uint64_t step) {
  for (int i = 0; i < BUFFERS; i++)
    pass_message(s, i, value_of(s, step, i));
  check(cudaStreamSynchronize(s->compute), "cudaStreamSynchronize");
  for (int i = 0; i < BUFFERS; i++)
    if (s->host[2 * i] != value_of(s, step, i) || s->host[2 * i + 1] != value_of(s, step, i))
      atomic_fetch_add(&wrong, 1);
}

/* Memory of the same size that is no receive buffer: touched by a memset first, and freed again. */
static void use_scratch(struct stage *s) {
  void *scratch = allocate();
  check(cudaMemsetAsync(scratch, 7, bytes, s->compute), "cudaMemsetAsync");
  check(cudaFree(scratch), "cudaFree");
}

/* The work of a destroyed stream goes on. */
static void renew_stream(struct stage *s) {
  check(cudaStreamDestroy(s->transfers), "cudaStreamDestroy");
  check(cudaStreamCreateWithFlags(&s->transfers, cudaStreamNonBlocking), "cudaStreamCreate");
}

static void *run(void *argument) {
  struct stage *s = argument;
  check(cudaSetDevice(0), "cudaSetDevice");
  create(s);
  for (uint64_t step = 0; !atomic_load(&stop); step++) {
    if (step % 8 == 0) allocate_buffers(s);
    run_step(s, step);
    use_scratch(s);
    if (step % 4 == 2) renew_stream(s);
    if (step % 8 == 7) free_buffers(s);
    if (step % 8 == 7 || atomic_load(&stop)) atomic_fetch_add(&steps, 1 + step % 8);
    if (step % 8 != 7 && atomic_load(&stop)) {
      free_buffers(s);
      break;
    }
  }
  destroy(s);
  return NULL;
}

int main(int argc, char **argv) {
  static struct stage stages[THREADS_MOST];
  double seconds = argc > 1 ? atof(argv[1]) : 1;
  uint32_t threads = argc > 2 ? (uint32_t)atoi(argv[2]) : 8;
  if (argc > 3) bytes = (size_t)atoll(argv[3]);
  if (threads == 0 || threads > THREADS_MOST || bytes == 0) return 2;
  for (uint32_t i = 0; i < threads; i++) {
    stages[i].number = i;
    check(pthread_create(&stages[i].thread, NULL, run, &stages[i]), "pthread_create");
  }
  const struct timespec pause = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
  (void)nanosleep(&pause, NULL);
  atomic_store(&stop, true);
  for (uint32_t i = 0; i < threads; i++)
    (void)pthread_join(stages[i].thread, NULL);
  printf("%llu steps\n", (unsigned long long)atomic_load(&steps));
  if (atomic_load(&wrong) == 0) return 0;
  printf("%llu messages were wrong\n", (unsigned long long)atomic_load(&wrong));
  return 4;
}
