/* Owns memory pools: one default pool per device and those a program makes. A pool is a name with attributes;
 * memory goes back to the device as soon as it is freed. */
#include "engine_internal.h"
#include <stdlib.h>

#define ATTRIBUTE_COUNT (CU_MEMPOOL_ATTR_USED_MEM_HIGH + 1)

struct pool {
  struct pool *next; /* pools a program made */
  int device;
  uint64_t attributes[ATTRIBUTE_COUNT];
};

static pthread_mutex_t pool_lock = PTHREAD_MUTEX_INITIALIZER;
static struct pool default_pools[SIM_MAX_DEVICES];
static struct pool *current_pools[SIM_MAX_DEVICES];
static struct pool *made_pools;

static void init_pool(struct pool *pool, int device) {
  pool->device = device;
  pool->attributes[CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES] = 1;
  pool->attributes[CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC] = 1;
  pool->attributes[CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES] = 1;
}

static struct pool *default_pool_locked(int device) {
  struct pool *pool = &default_pools[device];
  if (!pool->attributes[CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC] && !current_pools[device]) {
    init_pool(pool, device);
    current_pools[device] = pool;
  }
  return pool;
}

static bool is_pool_locked(const struct pool *pool) {
  for (int device = 0; device < SIM_MAX_DEVICES; device++)
    if (pool == &default_pools[device]) return true;
  for (const struct pool *made = made_pools; made; made = made->next)
    if (made == pool) return true;
  return false;
}

/* Checks process, device and pointer of the three calls about a device's pool. */
static CUresult check_device(const void *pointer, CUdevice device) {
  CUresult result = sim_engine_enter_process();
  if (result != CUDA_SUCCESS) return result;
  if (!pointer) return CUDA_ERROR_INVALID_VALUE;
  return device >= 0 && device < sim_device_count() && device < SIM_MAX_DEVICES ? CUDA_SUCCESS
                                                                                : CUDA_ERROR_INVALID_DEVICE;
}

CUresult impl_cuDeviceGetDefaultMemPool(CUmemoryPool *pool_out, CUdevice dev) {
  CUresult result = check_device(pool_out, dev);
  if (result != CUDA_SUCCESS) return result;
  pthread_mutex_lock(&pool_lock);
  *pool_out = (CUmemoryPool)default_pool_locked(dev);
  pthread_mutex_unlock(&pool_lock);
  return CUDA_SUCCESS;
}

CUresult impl_cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice dev) {
  CUresult result = check_device(pool, dev);
  if (result != CUDA_SUCCESS) return result;
  pthread_mutex_lock(&pool_lock);
  default_pool_locked(dev);
  *pool = (CUmemoryPool)current_pools[dev];
  pthread_mutex_unlock(&pool_lock);
  return CUDA_SUCCESS;
}

CUresult impl_cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool) {
  CUresult result = check_device(pool, dev);
  if (result != CUDA_SUCCESS) return result;
  pthread_mutex_lock(&pool_lock);
  default_pool_locked(dev);
  struct pool *chosen = (struct pool *)pool;
  bool good = is_pool_locked(chosen) && chosen->device == dev;
  if (good) current_pools[dev] = chosen;
  pthread_mutex_unlock(&pool_lock);
  return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult impl_cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *poolProps) {
  if (!pool || !poolProps || poolProps->allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
      poolProps->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
    return CUDA_ERROR_INVALID_VALUE;
  CUresult result = check_device(pool, poolProps->location.id);
  if (result != CUDA_SUCCESS) return result;
  struct pool *made = calloc(1, sizeof(*made));
  if (!made) return CUDA_ERROR_OUT_OF_MEMORY;
  init_pool(made, poolProps->location.id);
  pthread_mutex_lock(&pool_lock);
  made->next = made_pools;
  made_pools = made;
  pthread_mutex_unlock(&pool_lock);
  *pool = (CUmemoryPool)made;
  return CUDA_SUCCESS;
}

CUresult impl_cuMemPoolDestroy(CUmemoryPool pool) {
  CUresult result = sim_engine_enter_process();
  if (result != CUDA_SUCCESS) return result;
  pthread_mutex_lock(&pool_lock);
  struct pool **link = &made_pools, *found;
  while (*link && *link != (struct pool *)pool)
    link = &(*link)->next;
  found = *link;
  if (found) {
    *link = found->next;
    if (current_pools[found->device] == found) current_pools[found->device] = &default_pools[found->device];
  }
  pthread_mutex_unlock(&pool_lock);
  free(found);
  return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static bool is_flag(CUmemPool_attribute attribute) {
  return attribute <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES;
}

static CUresult check_attribute(CUmemPool_attribute attribute, const void *value) {
  CUresult result = sim_engine_enter_process();
  if (result != CUDA_SUCCESS) return result;
  bool known = attribute >= CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES && attribute < ATTRIBUTE_COUNT;
  return known && value ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult impl_cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value) {
  CUresult result = check_attribute(attr, value);
  if (result != CUDA_SUCCESS) return result;
  pthread_mutex_lock(&pool_lock);
  struct pool *found = (struct pool *)pool;
  bool high = attr == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH || attr == CU_MEMPOOL_ATTR_USED_MEM_HIGH;
  bool current = attr == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT || attr == CU_MEMPOOL_ATTR_USED_MEM_CURRENT;
  if (!is_pool_locked(found) || current || (high && *(cuuint64_t *)value != 0))
    result = CUDA_ERROR_INVALID_VALUE;
  else
    found->attributes[attr] = is_flag(attr) ? (uint64_t)(*(int *)value != 0) : *(cuuint64_t *)value;
  pthread_mutex_unlock(&pool_lock);
  return result;
}

CUresult impl_cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value) {
  CUresult result = check_attribute(attr, value);
  if (result != CUDA_SUCCESS) return result;
  pthread_mutex_lock(&pool_lock);
  const struct pool *found = (struct pool *)pool;
  if (!is_pool_locked(found))
    result = CUDA_ERROR_INVALID_VALUE;
  else if (is_flag(attr))
    *(int *)value = (int)found->attributes[attr];
  else
    *(cuuint64_t *)value = found->attributes[attr];
  pthread_mutex_unlock(&pool_lock);
  return result;
}

/* The four byte counts of a pool move together: it holds nothing back. */
void sim_pool_account(CUmemoryPool pool, uint64_t bytes, bool freed) {
  pthread_mutex_lock(&pool_lock);
  struct pool *found = (struct pool *)pool;
  if (is_pool_locked(found)) {
    uint64_t *attributes = found->attributes;
    uint64_t used = attributes[CU_MEMPOOL_ATTR_USED_MEM_CURRENT];
    used = freed ? used - bytes : used + bytes;
    attributes[CU_MEMPOOL_ATTR_USED_MEM_CURRENT] = attributes[CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT] = used;
    if (used > attributes[CU_MEMPOOL_ATTR_USED_MEM_HIGH])
      attributes[CU_MEMPOOL_ATTR_USED_MEM_HIGH] = attributes[CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH] = used;
  }
  pthread_mutex_unlock(&pool_lock);
}

bool sim_pool_device(CUmemoryPool pool, int *device) {
  pthread_mutex_lock(&pool_lock);
  const struct pool *found = (struct pool *)pool;
  bool good = is_pool_locked(found);
  if (good) *device = found->device;
  pthread_mutex_unlock(&pool_lock);
  return good;
}

CUresult impl_cuMemPoolTrimTo(CUmemoryPool pool, size_t minBytesToKeep) {
  (void)minBytesToKeep; /* nothing is held back */
  int device;
  CUresult result = sim_engine_enter_process();
  if (result != CUDA_SUCCESS) return result;
  return sim_pool_device(pool, &device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult impl_cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *map, size_t count) {
  int device;
  CUresult result = sim_engine_enter_process();
  if (result != CUDA_SUCCESS) return result;
  return map && count && sim_pool_device(pool, &device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult impl_cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool memPool, CUmemLocation *location) {
  int device;
  CUresult result = sim_engine_enter_process();
  if (result != CUDA_SUCCESS) return result;
  if (!flags || !location || !sim_pool_device(memPool, &device)) return CUDA_ERROR_INVALID_VALUE;
  *flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return CUDA_SUCCESS;
}
