/* Programs in which work that nobody has to wait for stands behind the uses of buffers that share memory, and
 * does not end before the program has gone on, or the other rank has: enforce_hangs MODE. Each is correct
 * with memory of its own for each buffer, and prints what it read. */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nccl.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/sim/rpsim.h"

#define BUFFERS 8
#define STEPS 8
#define ODD_STEP 6 /* buffers share memory by then */
#define BYTES ((size_t)2 << 20)
#define PATIENCE_SECONDS 60 /* beyond it nothing moves any more */

static void check(int error, const char *what) {
  if (error == 0) return;
  printf("%s: error %d\n", what, error);
  fflush(stdout);
  _Exit(3);
}
#define CHECK(call) check((int)(call), #call)

static void stuck(int number) {
  static const char text[] = "stuck\n";
  (void)number;
  (void)!write(STDOUT_FILENO, text, sizeof text - 1);
  _exit(9);
}

/* ---- what all modes have ---- */

static char *buffers[BUFFERS], *from, *sink;
static ncclComm_t comm;
static cudaStream_t receives, compute;
static cudaEvent_t received, done[BUFFERS];
static CUfunction read_last;
static __typeof__(cuLaunchKernel) *launch; /* NULL: as the program is linked to it */

static void read_last_body(void *const *params, const struct rpsim_dims *dims) {
  (void)dims;
  **(unsigned char *const *)params[1] = (*(unsigned char *const *)params[0])[BYTES - 1];
}
static const struct rpsim_param two_pointers[] = {{0, 8}, {8, 8}};
static const struct rpsim_kernel kernels[] = {{"_Z4readPKhPh", read_last_body, 2, two_pointers}};

static cudaStream_t new_stream(void) {
  cudaStream_t stream;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}

static cudaEvent_t new_event(void) {
  cudaEvent_t event;
  CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  return event;
}

static void start(void) {
  CUmodule module;
  CHECK(cudaFree(NULL));
  CHECK(rpsim_register_kernels(kernels, 1));
  CHECK(cuModuleLoadData(&module, "image"));
  CHECK(cuModuleGetFunction(&read_last, module, "_Z4readPKhPh"));
  receives = new_stream();
  compute = new_stream();
  received = new_event();
  for (int i = 0; i < BUFFERS; i++) {
    CHECK(cudaMalloc((void **)&buffers[i], BYTES));
    done[i] = new_event();
  }
  CHECK(cudaMalloc((void **)&from, 3 * BYTES));
  CHECK(cudaMalloc((void **)&sink, 3 * BYTES));
  CHECK(cudaMemset(sink, 0, 3 * BYTES));
}

static void start_alone(void) {
  ncclUniqueId id;
  start();
  CHECK(ncclGetUniqueId(&id));
  CHECK(ncclCommInitRank(&comm, 1, id, 0));
}

static void read_on(cudaStream_t stream, const char *buffer, int place) {
  char *to = sink + place;
  void *params[] = {&buffer, &to};
  if (launch)
    CHECK(launch(read_last, 1, 1, 1, 1, 1, 1, 0, (CUstream)stream, params, NULL));
  else
    CHECK(cuLaunchKernel(read_last, 1, 1, 1, 1, 1, 1, 0, (CUstream)stream, params, NULL));
}

/* From itself. */
static void receive(int i, int value) {
  CHECK(cudaMemsetAsync(from, value, BYTES, receives));
  CHECK(ncclGroupStart());
  CHECK(ncclSend(from, BYTES, ncclUint8, 0, comm, receives));
  CHECK(ncclRecv(buffers[i], BYTES, ncclUint8, 0, comm, receives));
  CHECK(ncclGroupEnd());
  CHECK(cudaEventRecord(received, receives));
}

static int byte_at(const char *at, cudaStream_t stream) {
  unsigned char byte = 0;
  CHECK(cudaMemcpyAsync(&byte, at, 1, cudaMemcpyDeviceToHost, stream));
  CHECK(cudaStreamSynchronize(stream));
  return byte;
}

static void print_sink(int count) {
  CHECK(cudaDeviceSynchronize());
  for (int i = 0; i < count; i++)
    printf("%d ", byte_at(sink + i, compute));
  printf("\n");
  fflush(stdout);
}

static sem_t go;

static void wait_for_host(void *unused) {
  (void)unused;
  (void)sem_wait(&go);
}

/* The host function goes on once the host has come that far. */
static void hold(cudaStream_t stream) {
  CHECK(cudaLaunchHostFunc(stream, wait_for_host, NULL));
}

/* ---- modes ---- */

/* Nothing waits for the host but a host function, and that until two more messages have been posted. */
static void grow(void) {
  start_alone();
  for (int s = 0; s < STEPS; s++)
    for (int i = 0; i < BUFFERS; i++) {
      CHECK(cudaStreamWaitEvent(receives, done[i], 0)); /* the reader of the step before */
      receive(i, s * 16 + i);
      CHECK(cudaStreamWaitEvent(compute, received, 0));
      if (s == ODD_STEP && i == 2) hold(compute);
      read_on(compute, buffers[i], s * BUFFERS + i);
      CHECK(cudaEventRecord(done[i], compute));
      if (s == ODD_STEP && i == 5) sem_post(&go);
    }
  print_sink(STEPS * BUFFERS);
}

/* The same, where the readers are launched by a library with a runtime of its own. */
static void grow_unseen(void) {
  void *driver = dlopen("libcuda.so.1", RTLD_LAZY);
  *(void **)&launch = driver ? dlsym(driver, "cuLaunchKernel") : NULL;
  if (!launch) exit(2);
  grow();
}

/* How many events were recorded, by whomever. */
static void records(void) {
  grow();
  printf("%llu records\n", (unsigned long long)rpsim_call_count("cuEventRecord"));
}

/* A buffer whose slot has been taken over is used for something else while the compute stream waits. */
static void scratch(void) {
  start_alone();
  for (int s = 0; s < STEPS; s++)
    for (int i = 0; i < BUFFERS; i++) {
      CHECK(cudaStreamWaitEvent(receives, done[i], 0));
      receive(i, s * 16 + i);
      CHECK(cudaStreamWaitEvent(compute, received, 0));
      read_on(compute, buffers[i], s * BUFFERS + i);
      if (s == ODD_STEP && i == BUFFERS - 1) {
        hold(compute);
        CHECK(cudaMemsetAsync(buffers[1], 99, BYTES, compute)); /* behind its reader, in stream order */
        sem_post(&go);
        printf("scratch %d\n", byte_at(buffers[1], compute));
      }
      CHECK(cudaEventRecord(done[i], compute));
    }
  print_sink(STEPS * BUFFERS);
}

/* The reader is the last work of a stream that is destroyed behind a host function that waits. */
static void gone_stream(void) {
  start_alone();
  for (int s = 0; s < STEPS; s++)
    for (int i = 0; i < BUFFERS; i++) {
      bool odd = s == ODD_STEP && i == 2;
      cudaStream_t reader = odd ? new_stream() : compute;
      CHECK(cudaStreamWaitEvent(receives, done[i], 0));
      receive(i, s * 16 + i);
      CHECK(cudaStreamWaitEvent(reader, received, 0));
      read_on(reader, buffers[i], s * BUFFERS + i);
      CHECK(cudaEventRecord(done[i], reader));
      if (odd) {
        hold(reader);
        CHECK(cudaStreamDestroy(reader));
      }
      if (s == ODD_STEP && i == 5) sem_post(&go);
    }
  print_sink(STEPS * BUFFERS);
}

/* ---- a thread that reads on its own default stream ---- */

struct reader {
  sem_t ask, answer;
  int buffer, place, held;
};

static void *read_there(void *argument) {
  struct reader *reader = argument;
  for (int n = 0; n < STEPS * BUFFERS; n++) {
    (void)sem_wait(&reader->ask);
    CHECK(cudaStreamWaitEvent(cudaStreamPerThread, received, 0));
    read_on(cudaStreamPerThread, buffers[reader->buffer], reader->place);
    CHECK(cudaEventRecord(done[reader->buffer], cudaStreamPerThread));
    if (n == reader->held) hold(cudaStreamPerThread);
    (void)sem_post(&reader->answer);
  }
  return NULL;
}

static void other_thread(void) {
  struct reader reader = {.held = ODD_STEP * BUFFERS + 2};
  pthread_t thread;
  start_alone();
  (void)sem_init(&reader.ask, 0, 0);
  (void)sem_init(&reader.answer, 0, 0);
  CHECK(pthread_create(&thread, NULL, read_there, &reader));
  for (int s = 0; s < STEPS; s++)
    for (int i = 0; i < BUFFERS; i++) {
      CHECK(cudaStreamWaitEvent(receives, done[i], 0));
      receive(i, s * 16 + i);
      reader.buffer = i;
      reader.place = s * BUFFERS + i;
      (void)sem_post(&reader.ask);
      (void)sem_wait(&reader.answer);
      if (s == ODD_STEP && i == 5) sem_post(&go);
    }
  (void)pthread_join(thread, NULL);
  print_sink(STEPS * BUFFERS);
}

/* ---- two ranks ---- */

#define SMALL_BYTES 4096
static ncclComm_t second;
static cudaStream_t aside;
static char *small;

/* The second communicator has a stream of its own. */
static void start_pair(int rank, const int way[2]) {
  ncclUniqueId id[2];
  start();
  for (int i = 0; rank == 0 && i < 2; i++)
    CHECK(ncclGetUniqueId(&id[i]));
  ssize_t moved = rank == 0 ? write(way[1], id, sizeof id) : read(way[0], id, sizeof id);
  if (moved != (ssize_t)sizeof id) exit(2);
  CHECK(ncclCommInitRank(&comm, 2, id[0], rank));
  CHECK(ncclCommInitRank(&second, 2, id[1], rank));
  CHECK(cudaMalloc((void **)&small, SMALL_BYTES));
  CHECK(cudaMemset(small, 0, SMALL_BYTES));
  aside = new_stream();
}

static void send_step(int number) {
  for (int i = 0; i < BUFFERS; i++) {
    CHECK(cudaMemsetAsync(from, number * 16 + i, BYTES, receives));
    CHECK(ncclSend(from, BYTES, ncclUint8, 0, comm, receives));
  }
  CHECK(cudaStreamSynchronize(receives)); /* all have been delivered */
  CHECK(ncclSend(small, SMALL_BYTES, ncclUint8, 0, second, aside));
  for (int i = 0; i < BUFFERS; i++)
    CHECK(ncclRecv(sink, BYTES, ncclUint8, 0, comm, receives));
  CHECK(cudaStreamSynchronize(receives));
}

/* Two streams read in turn; the first of them then has to wait for the small message. */
static void receive_step(cudaStream_t other) {
  cudaEvent_t there = done[0];
  CHECK(ncclRecv(small, SMALL_BYTES, ncclUint8, 1, second, aside));
  CHECK(cudaEventRecord(there, aside));
  for (int i = 0; i < BUFFERS; i++) {
    cudaStream_t reader = i % 2 ? other : compute;
    CHECK(ncclRecv(buffers[i], BYTES, ncclUint8, 1, comm, receives));
    CHECK(cudaEventRecord(received, receives));
    CHECK(cudaStreamWaitEvent(reader, received, 0));
    read_on(reader, buffers[i], i);
    if (i != BUFFERS - 2) continue;
    CHECK(cudaStreamWaitEvent(compute, there, 0));
    CHECK(cudaMemcpyAsync(sink + 100, small, 1, cudaMemcpyDeviceToDevice, compute));
  }
  CHECK(cudaEventRecord(done[1], compute));
  CHECK(cudaStreamWaitEvent(receives, done[1], 0));
  CHECK(cudaEventRecord(done[2], other));
  CHECK(cudaStreamWaitEvent(receives, done[2], 0));
  for (int i = 0; i < BUFFERS; i++)
    CHECK(ncclSend(from, BYTES, ncclUint8, 1, comm, receives));
  CHECK(cudaStreamSynchronize(receives));
  print_sink(BUFFERS);
}

static void other_rank(void) {
  int way[2], status = 0;
  if (pipe(way)) exit(2);
  pid_t child = fork();
  int rank = child == 0;
  (void)alarm(PATIENCE_SECONDS);
  (void)setenv("RANK", rank ? "1" : "0", 1);
  start_pair(rank, way);
  cudaStream_t other = new_stream();
  for (int s = 0; s < STEPS; s++) {
    if (rank == 0)
      receive_step(other);
    else
      send_step(s);
  }
  if (rank == 1) return;
  (void)waitpid(child, &status, 0);
  printf("%d\n", status);
}

int main(int argc, char **argv) {
  static const struct {
    const char *name;
    void (*run)(void);
  } modes[] = {{"grow", grow},
               {"grow_unseen", grow_unseen},
               {"records", records},
               {"scratch", scratch},
               {"gone_stream", gone_stream},
               {"other_thread", other_thread},
               {"other_rank", other_rank}};
  (void)signal(SIGALRM, stuck);
  (void)alarm(PATIENCE_SECONDS);
  (void)sem_init(&go, 0, 0);
  for (size_t i = 0; argc == 2 && i < sizeof modes / sizeof modes[0]; i++)
    if (strcmp(argv[1], modes[i].name) == 0) {
      modes[i].run();
      return 0;
    }
  fprintf(stderr, "enforce_hangs: no such mode\n");
  return 2;
}
