/* Receives in one process, from itself: what needs no second rank. Each step receives every microbatch into a
 * buffer of its own, and reads it when `depth` - 1 more have been received. All that was received is checked.
 *
 *   gpu_transfers [--buffers N] [--depth D] [--steps T] [--bytes B] [--leave-free BYTES]
 *
 * --leave-free: takes the device's memory first, but for so much. Prints a list of {name, value, unit}; ends
 * with status 4, after a line on standard error, when the device runs out of memory. */
#include <argp.h>
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_kernels.h"
#include "gpu_support.h"

#define OUT_OF_MEMORY 4

struct options {
  uint32_t buffers, depth, steps;
  size_t bytes, leave_free_bytes;
};

static const struct argp_option option_table[] = {
    {"buffers", 'n', "COUNT", 0, "receive buffers (default 8)", 0},
    {"depth", 'd', "COUNT", 0, "most of them in use at once (default 1)", 0},
    {"steps", 't', "COUNT", 0, "steps (default 6)", 0},
    {"bytes", 'b', "BYTES", 0, "of a buffer (default 2097152)", 0},
    {"leave-free", 'l', "BYTES", 0, "take the rest of the device's memory first", 0},
    {0},
};

static error_t parse(int key, char *text, struct argp_state *state) {
  struct options *o = state->input;
  char *end = NULL;
  unsigned long value = text != NULL ? strtoul(text, &end, 10) : 1;
  if (text != NULL && (value == 0 || *end != '\0')) argp_error(state, "'%s' is no number from 1 on", text);
  switch (key) {
  case 'n':
    o->buffers = (uint32_t)value;
    return 0;
  case 'd':
    o->depth = (uint32_t)value;
    return 0;
  case 't':
    o->steps = (uint32_t)value;
    return 0;
  case 'b':
    o->bytes = value;
    return 0;
  case 'l':
    o->leave_free_bytes = value;
    return 0;
  case ARGP_KEY_END:
    if (o->depth > o->buffers || o->bytes % 4 != 0)
      argp_error(state, "more depth than buffers, or bytes that are no words");
    return 0;
  default:
    return ARGP_ERR_UNKNOWN;
  }
}

struct job {
  const struct options *options;
  ncclComm_t comm;
  cudaStream_t stream;
  CUfunction fill, check;
  void *from, *ballast;
  void **buffers;
  uint32_t *wrong; /* device */
};

static void *allocate(size_t bytes) {
  void *memory = NULL;
  cudaError_t result = cudaMalloc(&memory, bytes);
  if (result == cudaErrorMemoryAllocation) {
    fprintf(stderr, "gpu_transfers: out of memory (%s)\n", cudaGetErrorName(result));
    exit(OUT_OF_MEMORY);
  }
  RP_CHECK(result);
  return memory;
}

static size_t free_bytes(void) {
  size_t free = 0, total = 0;
  RP_CHECK(cudaMemGetInfo(&free, &total));
  return free;
}

/* In a piece whose size is that of nothing else. */
static void take_memory(struct job *job, size_t leave_bytes) {
  size_t free = free_bytes(), piece = 2 * RP_MIB;
  if (leave_bytes == 0 || free <= leave_bytes) return;
  job->ballast = allocate((free - leave_bytes) / piece * piece);
  rp_gpu_integer("left free", (int64_t)free_bytes(), "bytes");
}

static void create(struct job *job) {
  const struct options *o = job->options;
  ncclUniqueId id;
  (void)rp_gpu_open();
  RP_CHECK(cudaSetDevice(0));
  RP_CHECK(ncclGetUniqueId(&id));
  RP_CHECK(ncclCommInitRank(&job->comm, 1, id, 0));
  RP_CHECK(cudaStreamCreateWithFlags(&job->stream, cudaStreamNonBlocking));
  job->fill = rp_gpu_kernel(RP_GPU_FILL);
  job->check = rp_gpu_kernel(RP_GPU_CHECK);
  job->from = allocate(2 * o->bytes);
  job->wrong = allocate(sizeof *job->wrong);
  RP_CHECK(cudaMemsetAsync(job->wrong, 0, sizeof *job->wrong, job->stream));
  RP_CHECK(cudaStreamSynchronize(job->stream));
  job->buffers = calloc(o->buffers, sizeof *job->buffers);
  if (job->buffers == NULL) rp_gpu_fail("no memory for buffers", 0);
  /* NCCL takes memory of its own at the first transfer: it has to be there before the rest is taken. */
  RP_CHECK(ncclGroupStart());
  RP_CHECK(ncclSend(job->from, 4, ncclUint8, 0, job->comm, job->stream));
  RP_CHECK(ncclRecv((char *)job->from + 4, 4, ncclUint8, 0, job->comm, job->stream));
  RP_CHECK(ncclGroupEnd());
  RP_CHECK(cudaStreamSynchronize(job->stream));
  take_memory(job, o->leave_free_bytes);
  for (uint32_t i = 0; i < o->buffers; i++)
    job->buffers[i] = allocate(o->bytes);
}

static void launch(const struct job *job, CUfunction function, void **arguments) {
  RP_CHECK(cuLaunchKernel(function, 256, 1, 1, 128, 1, 1, 0, job->stream, arguments, NULL));
}

static void receive(const struct job *job, uint32_t microbatch, uint32_t value) {
  uint64_t words = job->options->bytes / 4;
  void *arguments[] = {(void *)&job->from, &words, &value};
  launch(job, job->fill, arguments);
  RP_CHECK(ncclGroupStart());
  RP_CHECK(ncclSend(job->from, job->options->bytes, ncclUint8, 0, job->comm, job->stream));
  RP_CHECK(ncclRecv(job->buffers[microbatch], job->options->bytes, ncclUint8, 0, job->comm, job->stream));
  RP_CHECK(ncclGroupEnd());
}

static void use(const struct job *job, uint32_t microbatch, uint32_t value) {
  uint64_t words = job->options->bytes / 4;
  void *arguments[] = {&job->buffers[microbatch], &words, &value, (void *)&job->wrong};
  launch(job, job->check, arguments);
}

static void run_step(const struct job *job, uint32_t step) {
  const struct options *o = job->options;
  for (uint32_t i = 0; i < o->buffers + o->depth - 1; i++) {
    uint32_t value = step * 1000 + i;
    if (i < o->buffers) receive(job, i, value);
    if (i + 1 >= o->depth) use(job, i + 1 - o->depth, value + 1 - o->depth);
  }
  RP_CHECK(cudaStreamSynchronize(job->stream));
}

static void destroy(struct job *job) {
  for (uint32_t i = 0; i < job->options->buffers; i++)
    RP_CHECK(cudaFree(job->buffers[i]));
  RP_CHECK(cudaFree(job->from));
  RP_CHECK(cudaFree(job->wrong));
  if (job->ballast != NULL) RP_CHECK(cudaFree(job->ballast));
  RP_CHECK(ncclCommDestroy(job->comm));
  RP_CHECK(cudaStreamDestroy(job->stream));
  free(job->buffers);
}

int main(int argc, char **argv) {
  struct options options = {.buffers = 8, .depth = 1, .steps = 6, .bytes = 2 * RP_MIB};
  const struct argp parser = {option_table, parse, NULL, "Receives from itself.", NULL, NULL, NULL};
  struct job job = {.options = &options};
  uint32_t wrong = 0;
  argp_parse(&parser, argc, argv, 0, NULL, &options);
  create(&job);
  rp_gpu_integer("in use before the first step", (int64_t)rp_gpu_used_bytes(), "bytes");
  double begin = 0;
  for (uint32_t step = 0; step < options.steps; step++) {
    if (step == 1) begin = rp_gpu_now_ns();
    run_step(&job, step);
  }
  if (options.steps > 1)
    rp_gpu_number("a step after the first", (rp_gpu_now_ns() - begin) / 1e6 / (options.steps - 1), "ms");
  rp_gpu_integer("in use after the last step", (int64_t)rp_gpu_used_bytes(), "bytes");
  RP_CHECK(cudaMemcpy(&wrong, job.wrong, sizeof wrong, cudaMemcpyDeviceToHost));
  rp_gpu_integer("words that were wrong", wrong, "words");
  destroy(&job);
  return rp_gpu_print();
}
