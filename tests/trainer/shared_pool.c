// Receive buffers over shared memory, by the plan. Owns the addresses and handles.
#include "shared_pool.h"

#include <cuda.h>
#include <stdlib.h>

#include "device.h"
#include "pool/plan.h"

#ifdef RP_TRAINER_LINKS_DRIVER

struct rp_shared_pool {
  const struct rp_schedule *schedule;
  int32_t rank;
  struct rp_plan *plan;
  size_t mapped_bytes;
  CUmemGenericAllocationHandle *handles; /**< [2 * stages * microbatches] by slot, 0 = not made */
  CUdeviceptr *addresses;                /**< [2 * stages * microbatches] by microbatch, 0 = none */
};

static void check(CUresult result, const char *call) {
  if (result != CUDA_SUCCESS) rp_die("--unguarded-pool: %s: driver error %d", call, (int)result);
}

static size_t index_of(const struct rp_shared_pool *pool, int32_t stage, int direction, int32_t number) {
  return ((size_t)stage * 2 + (size_t)direction) * (size_t)pool->schedule->microbatches + (size_t)number;
}

static CUmemAllocationProp properties(void) {
  CUdevice device;
  check(cuCtxGetDevice(&device), "cuCtxGetDevice");
  return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                               .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
}

static void map(struct rp_shared_pool *pool, int32_t stage, int direction, int32_t microbatch) {
  CUmemAllocationProp wanted = properties();
  CUmemAccessDesc access = {.location = wanted.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  uint32_t slot = 0;
  enum rp_plan_direction planned = direction == 0 ? RP_PLAN_ACTIVATION : RP_PLAN_GRADIENT;
  if (rp_plan_slot(pool->plan, stage, planned, microbatch, &slot) != RP_OK) return; // nobody sends it
  CUmemGenericAllocationHandle *handle = &pool->handles[index_of(pool, stage, direction, (int32_t)slot)];
  CUdeviceptr *address = &pool->addresses[index_of(pool, stage, direction, microbatch)];
  if (*handle == 0) check(cuMemCreate(handle, pool->mapped_bytes, &wanted, 0), "cuMemCreate");
  check(cuMemAddressReserve(address, pool->mapped_bytes, 0, 0, 0), "cuMemAddressReserve");
  check(cuMemMap(*address, pool->mapped_bytes, 0, *handle, 0), "cuMemMap");
  check(cuMemSetAccess(*address, pool->mapped_bytes, &access, 1), "cuMemSetAccess");
}

struct rp_shared_pool *rp_shared_pool_create(const struct rp_trainer_options *options,
                                             const struct rp_schedule *schedule, int rank) {
  if (!options->unguarded_pool) return NULL;
  struct rp_shared_pool *pool = calloc(1, sizeof *pool);
  if (pool == NULL) rp_die("no memory");
  pool->schedule = schedule;
  pool->rank = rank;
  size_t buffers = 2 * (size_t)schedule->stages * (size_t)schedule->microbatches, granularity = 0;
  pool->handles = calloc(buffers, sizeof *pool->handles);
  pool->addresses = calloc(buffers, sizeof *pool->addresses);
  if (pool->handles == NULL || pool->addresses == NULL) rp_die("no memory");
  struct rp_plan_options plan = RP_PLAN_OPTIONS_INIT;
  rp_status status = rp__plan_from_schedule(schedule, &plan, &pool->plan);
  if (status != RP_OK) rp_die("--unguarded-pool: %s", rp_status_text(status));
  CUmemAllocationProp wanted = properties();
  check(cuMemGetAllocationGranularity(&granularity, &wanted, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
        "cuMemGetAllocationGranularity");
  pool->mapped_bytes = (rp_trainer_buffer_bytes(options) + granularity - 1) / granularity * granularity;
  for (int32_t s = 0; s < schedule->stages; s++)
    for (int direction = 0; direction < 2 && schedule->stage_rank[s] == rank; direction++)
      for (int32_t m = 0; m < schedule->microbatches; m++)
        map(pool, s, direction, m);
  return pool;
}

void rp_shared_pool_destroy(struct rp_shared_pool *pool) {
  if (pool == NULL) return;
  size_t buffers = 2 * (size_t)pool->schedule->stages * (size_t)pool->schedule->microbatches;
  for (size_t i = 0; i < buffers; i++) {
    if (pool->addresses[i] == 0) continue;
    check(cuMemUnmap(pool->addresses[i], pool->mapped_bytes), "cuMemUnmap");
    check(cuMemAddressFree(pool->addresses[i], pool->mapped_bytes), "cuMemAddressFree");
  }
  for (size_t i = 0; i < buffers; i++)
    if (pool->handles[i] != 0) check(cuMemRelease(pool->handles[i]), "cuMemRelease");
  rp_plan_destroy(pool->plan);
  free(pool->handles);
  free(pool->addresses);
  free(pool);
}

void *rp_shared_pool_memory(const struct rp_shared_pool *pool, int32_t stage, int direction,
                            int32_t microbatch) {
  return pool == NULL ? NULL
                      : (void *)(uintptr_t)pool->addresses[index_of(pool, stage, direction, microbatch)];
}

#else

struct rp_shared_pool *rp_shared_pool_create(const struct rp_trainer_options *options,
                                             const struct rp_schedule *schedule, int rank) {
  (void)schedule;
  (void)rank;
  if (options->unguarded_pool) rp_die("--unguarded-pool is for the simulated device");
  return NULL;
}

void rp_shared_pool_destroy(struct rp_shared_pool *pool) {
  (void)pool;
}

void *rp_shared_pool_memory(const struct rp_shared_pool *pool, int32_t stage, int direction,
                            int32_t microbatch) {
  (void)pool;
  (void)stage;
  (void)direction;
  (void)microbatch;
  return NULL;
}

#endif
