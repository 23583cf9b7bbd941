/* Owns what stands in for the api half in the engine's tests, and their kernels. */
#include "test_engine_host.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CALLBACK_IDS 64

_Thread_local CUstream sim_default_stream = CU_STREAM_LEGACY;
static _Thread_local struct sim_context *current;
static struct sim_context *made;
static atomic_uint resource_counts[CALLBACK_IDS];
static CUpti_GraphData graph_data[CALLBACK_IDS];
static pthread_mutex_t graph_data_lock = PTHREAD_MUTEX_INITIALIZER;

struct sim_context *sim_context_current(void) {
  return current;
}

void sim_context_set_current(struct sim_context *context) {
  current = context;
}

int sim_device_count(void) {
  return 1;
}

uint64_t sim_device_capacity_bytes(int device) {
  return device == 0 ? HOST_DEVICE_BYTES : 0;
}

int sim_device_attribute(CUdevice_attribute attribute) {
  return attribute == CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED;
}

const struct rpsim_kernel *sim_kernel_of(CUfunction function) {
  return (const struct rpsim_kernel *)function;
}

void sim_resource_callback(CUpti_CallbackIdResource id, struct sim_context *context, CUstream stream,
                           void *descriptor) {
  (void)context;
  (void)stream;
  atomic_fetch_add(&resource_counts[id], 1);
  if (!descriptor) return;
  pthread_mutex_lock(&graph_data_lock);
  graph_data[id] = *(CUpti_GraphData *)descriptor;
  pthread_mutex_unlock(&graph_data_lock);
}

void sim_synchronize_callback(CUpti_CallbackIdSync id, struct sim_context *context, CUstream stream) {
  (void)id;
  (void)context;
  (void)stream;
}

unsigned host_resource_count(CUpti_CallbackIdResource id) {
  return atomic_load(&resource_counts[id]);
}

CUpti_GraphData host_last_graph_data(CUpti_CallbackIdResource id) {
  pthread_mutex_lock(&graph_data_lock);
  CUpti_GraphData data = graph_data[id];
  pthread_mutex_unlock(&graph_data_lock);
  return data;
}

static struct host_gate gates[HOST_GATES];
static size_t gate_count;

struct host_gate *host_gate_new(void) {
  struct host_gate *gate = &gates[gate_count++];
  *gate = (struct host_gate){PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false, false};
  return gate;
}

int host_setup(void **state) {
  (void)state;
  made = calloc(1, sizeof(*made));
  if (!made || sim_engine_context_create(made) != CUDA_SUCCESS) return -1;
  current = made;
  return 0;
}

int host_teardown(void **state) {
  (void)state;
  while (gate_count)
    host_gate_open(&gates[--gate_count]);
  sim_engine_context_destroy(made);
  free(made);
  made = current = NULL;
  return 0;
}

struct sim_context *host_context(void) {
  return made;
}

/* ---- kernels ---- */

static void copy_word(void *const *params, const struct rpsim_dims *dims) {
  (void)dims;
  **(uint32_t **)params[1] = **(uint32_t **)params[0];
}

static void write_word(void *const *params, const struct rpsim_dims *dims) {
  (void)dims;
  **(uint32_t **)params[0] = *(uint32_t *)params[1];
}

static void slow_add(void *const *params, const struct rpsim_dims *dims) {
  (void)dims;
  uint32_t *word = *(uint32_t **)params[0];
  uint32_t before = *word;
  struct timespec pause = {.tv_nsec = *(uint32_t *)params[2] * 1000l};
  nanosleep(&pause, NULL);
  *word = before + *(uint32_t *)params[1];
}

static void wait_gate(void *const *params, const struct rpsim_dims *dims) {
  (void)dims;
  struct host_gate *gate = *(struct host_gate **)params[0];
  pthread_mutex_lock(&gate->lock);
  gate->entered = true;
  pthread_cond_broadcast(&gate->changed);
  while (!gate->open)
    pthread_cond_wait(&gate->changed, &gate->lock);
  pthread_mutex_unlock(&gate->lock);
}

static const struct rpsim_param two_pointers[] = {{0, 8}, {8, 8}};
static const struct rpsim_param pointer_word[] = {{0, 8}, {8, 4}};
static const struct rpsim_param pointer_words[] = {{0, 8}, {8, 4}, {12, 4}};
const struct rpsim_kernel host_copy_word = {"copy_word", copy_word, 2, two_pointers};
const struct rpsim_kernel host_write_word = {"write_word", write_word, 2, pointer_word};
const struct rpsim_kernel host_slow_add = {"slow_add", slow_add, 3, pointer_words};
const struct rpsim_kernel host_wait_gate = {"wait_gate", wait_gate, 1, pointer_word};

void host_gate_open(struct host_gate *gate) {
  pthread_mutex_lock(&gate->lock);
  gate->open = true;
  pthread_cond_broadcast(&gate->changed);
  pthread_mutex_unlock(&gate->lock);
}

void host_gate_await(struct host_gate *gate) {
  pthread_mutex_lock(&gate->lock);
  while (!gate->entered)
    pthread_cond_wait(&gate->changed, &gate->lock);
  pthread_mutex_unlock(&gate->lock);
}

CUresult host_launch(const struct rpsim_kernel *kernel, CUstream stream, void **params) {
  return impl_cuLaunchKernel(HOST_FUNCTION(*kernel), 1, 1, 1, 32, 1, 1, 0, stream, params, NULL);
}

CUresult host_copy(CUstream stream, CUdeviceptr source, CUdeviceptr destination) {
  return host_launch(&host_copy_word, stream, (void *[]){&source, &destination});
}

CUresult host_write(CUstream stream, CUdeviceptr destination, uint32_t value) {
  return host_launch(&host_write_word, stream, (void *[]){&destination, &value});
}

CUresult host_block(CUstream stream, struct host_gate *gate) {
  return host_launch(&host_wait_gate, stream, (void *[]){&gate});
}

uint32_t host_word(CUdeviceptr address) {
  uint32_t word = 0;
  assert_cuda(sim_engine_context_synchronize(made));
  assert_cuda(impl_cuMemcpyDtoH_v2(&word, address, sizeof(word)));
  return word;
}
