/* Contexts: primary and created ones, each thread's stack of current contexts, flags, limits, peers. */
#include "api.h"

#include <stdlib.h>

/* The api half's part of a context. Memory of a destroyed one stays, so that a stale handle can be told from
 * a live one; a device's primary context is the same object each time. */
struct context {
  struct sim_context base; /* first: handles point here */
  _Atomic bool alive;
  unsigned flags;
  int retain_count; /* of a primary context */
  CUfunc_cache cache;
  CUsharedconfig shared_config;
  size_t limits[CU_LIMIT_MAX];
  uint32_t peers; /* bit per device whose memory it may use */
  struct context *next;
};

#define STACK_MAX 64
static _Thread_local struct context *current_stack[STACK_MAX];
static _Thread_local unsigned stack_depth;

static pthread_mutex_t context_lock =
    PTHREAD_MUTEX_INITIALIZER;       /* guards all below and fields without "_Atomic" */
static struct context *all_contexts; /* created ones, dead ones too */
static struct context primary_contexts[SIM_DEVICES_MAX];
static uint32_t last_context_id;
static unsigned primary_flags[SIM_DEVICES_MAX];

static void reset_lock_in_child(void) {
  pthread_mutex_init(&context_lock, NULL);
}

__attribute__((constructor)) static void watch_fork(void) {
  pthread_atfork(NULL, NULL, reset_lock_in_child);
}

/* ---- the current context ---- */

static struct context *top(void) {
  struct context *context = stack_depth ? current_stack[stack_depth - 1] : NULL;
  return context && atomic_load_explicit(&context->alive, memory_order_acquire) ? context : NULL;
}

struct sim_context *sim_context_current(void) {
  struct context *context = top();
  return context ? &context->base : NULL;
}

void sim_context_set_current(struct sim_context *context) {
  if (context && stack_depth == 0) stack_depth = 1;
  if (context)
    current_stack[stack_depth - 1] = (struct context *)context;
  else if (stack_depth)
    stack_depth--;
}

static struct context *find(CUcontext handle) {
  const void *wanted = handle;
  struct context *found = NULL;
  for (int i = 0; i < SIM_DEVICES_MAX; i++)
    if (wanted == &primary_contexts[i]) return &primary_contexts[i];
  pthread_mutex_lock(&context_lock);
  for (struct context *context = all_contexts; context && !found; context = context->next)
    if (context == wanted) found = context;
  pthread_mutex_unlock(&context_lock);
  return found;
}

static struct context *find_alive(CUcontext handle) {
  struct context *context = handle ? find(handle) : NULL;
  return context && atomic_load_explicit(&context->alive, memory_order_acquire) ? context : NULL;
}

struct sim_context *sim_context_of(CUcontext handle) {
  struct context *context = find_alive(handle);
  return context ? &context->base : NULL;
}

struct sim_context *sim_context_primary(CUdevice device) {
  struct context *context = &primary_contexts[device];
  return atomic_load_explicit(&context->alive, memory_order_acquire) ? &context->base : NULL;
}

static CUresult push(struct context *context) {
  if (stack_depth == STACK_MAX) return CUDA_ERROR_OUT_OF_MEMORY;
  current_stack[stack_depth++] = context;
  return CUDA_SUCCESS;
}

/* ---- life ---- */

/* Makes a context usable. Lock context_lock, except for the callback, which the caller raises. */
static CUresult bring_up(struct context *context, int device, bool primary, unsigned flags) {
  context->base.device = device;
  context->base.primary = primary;
  context->base.id = ++last_context_id;
  context->flags = flags;
  context->cache = CU_FUNC_CACHE_PREFER_NONE;
  context->shared_config = CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE;
  context->peers = 0;
  context->limits[CU_LIMIT_STACK_SIZE] = 1024;
  context->limits[CU_LIMIT_PRINTF_FIFO_SIZE] = 1048576;
  context->limits[CU_LIMIT_MALLOC_HEAP_SIZE] = 8388608;
  context->limits[CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH] = 2;
  context->limits[CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] = 2048;
  context->limits[CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = 64;
  CUresult result = sim_engine_context_create(&context->base);
  if (result == CUDA_SUCCESS) atomic_store_explicit(&context->alive, true, memory_order_release);
  return result;
}

/* Ends a live context: callback, then the engine's part once all work is done. No lock held. */
static void bring_down(struct context *context) {
  sim_resource_callback(CUPTI_CBID_RESOURCE_CONTEXT_DESTROY_STARTING, &context->base, NULL, NULL);
  atomic_store_explicit(&context->alive, false, memory_order_release);
  sim_handles_drop_context(&context->base);
  sim_engine_context_destroy(&context->base);
}

static void announce(struct context *context) {
  sim_resource_callback(CUPTI_CBID_RESOURCE_CONTEXT_CREATED, &context->base, NULL, NULL);
}

static CUresult create(CUcontext *out, unsigned flags, CUdevice device) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  if (!sim_device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
  struct context *context = calloc(1, sizeof *context);
  if (!context) return CUDA_ERROR_OUT_OF_MEMORY;
  pthread_mutex_lock(&context_lock);
  CUresult result = bring_up(context, device, false, flags);
  if (result == CUDA_SUCCESS) {
    context->next = all_contexts;
    all_contexts = context;
  }
  pthread_mutex_unlock(&context_lock);
  if (result != CUDA_SUCCESS) {
    free(context);
    return result;
  }
  result = push(context);
  if (result != CUDA_SUCCESS) return result;
  announce(context);
  *out = (CUcontext)&context->base;
  return CUDA_SUCCESS;
}

CUresult impl_cuCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice dev) {
  return create(pctx, flags, dev);
}

CUresult impl_cuCtxCreate_v3(CUcontext *pctx, CUexecAffinityParam *paramsArray, int numParams,
                             unsigned int flags, CUdevice dev) {
  if (paramsArray || numParams != 0) return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
  return create(pctx, flags, dev);
}

CUresult impl_cuCtxCreate_v4(CUcontext *pctx, CUctxCreateParams *ctxCreateParams, unsigned int flags,
                             CUdevice dev) {
  if (ctxCreateParams && (ctxCreateParams->execAffinityParams || ctxCreateParams->cigParams))
    return CUDA_ERROR_NOT_SUPPORTED;
  return create(pctx, flags, dev);
}

CUresult impl_cuCtxDestroy_v2(CUcontext ctx) {
  struct context *context = find_alive(ctx);
  if (!context || context->base.primary) return CUDA_ERROR_INVALID_CONTEXT;
  bring_down(context);
  if (stack_depth && current_stack[stack_depth - 1] == context) stack_depth--;
  return CUDA_SUCCESS;
}

CUresult impl_cuCtxDestroy(CUcontext ctx) {
  return impl_cuCtxDestroy_v2(ctx);
}

/* ---- primary contexts ---- */

CUresult impl_cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev) {
  if (!pctx) return CUDA_ERROR_INVALID_VALUE;
  if (!sim_device_valid(dev)) return CUDA_ERROR_INVALID_DEVICE;
  struct context *context = &primary_contexts[dev];
  CUresult result = CUDA_SUCCESS;
  pthread_mutex_lock(&context_lock);
  bool made = !atomic_load(&context->alive);
  if (made) result = bring_up(context, dev, true, primary_flags[dev]);
  if (result == CUDA_SUCCESS) context->retain_count++;
  pthread_mutex_unlock(&context_lock);
  if (result != CUDA_SUCCESS) return result;
  if (made) announce(context);
  *pctx = (CUcontext)&context->base;
  return CUDA_SUCCESS;
}

/* Drops one reference, or all; ends the context with the last. */
static CUresult drop_primary(CUdevice dev, bool all) {
  if (!sim_device_valid(dev)) return CUDA_ERROR_INVALID_DEVICE;
  struct context *context = &primary_contexts[dev];
  pthread_mutex_lock(&context_lock);
  bool was_retained = context->retain_count > 0;
  if (was_retained) context->retain_count = all ? 0 : context->retain_count - 1;
  bool last = was_retained && context->retain_count == 0;
  pthread_mutex_unlock(&context_lock);
  if (last) bring_down(context);
  return was_retained || all ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult impl_cuDevicePrimaryCtxRelease_v2(CUdevice dev) {
  return drop_primary(dev, false);
}

CUresult impl_cuDevicePrimaryCtxRelease(CUdevice dev) {
  return drop_primary(dev, false);
}

CUresult impl_cuDevicePrimaryCtxReset_v2(CUdevice dev) {
  return drop_primary(dev, true);
}

CUresult impl_cuDevicePrimaryCtxReset(CUdevice dev) {
  return drop_primary(dev, true);
}

CUresult impl_cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags, int *active) {
  if (!flags || !active) return CUDA_ERROR_INVALID_VALUE;
  if (!sim_device_valid(dev)) return CUDA_ERROR_INVALID_DEVICE;
  pthread_mutex_lock(&context_lock);
  *flags = primary_flags[dev];
  *active = atomic_load(&primary_contexts[dev].alive);
  pthread_mutex_unlock(&context_lock);
  return CUDA_SUCCESS;
}

CUresult impl_cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned int flags) {
  if (!sim_device_valid(dev)) return CUDA_ERROR_INVALID_DEVICE;
  if (flags & ~(unsigned)CU_CTX_FLAGS_MASK) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&context_lock);
  primary_flags[dev] = flags;
  primary_contexts[dev].flags = flags;
  pthread_mutex_unlock(&context_lock);
  return CUDA_SUCCESS;
}

CUresult impl_cuDevicePrimaryCtxSetFlags(CUdevice dev, unsigned int flags) {
  return impl_cuDevicePrimaryCtxSetFlags_v2(dev, flags);
}

/* ---- stack ---- */

CUresult impl_cuCtxPushCurrent_v2(CUcontext ctx) {
  struct context *context = find_alive(ctx);
  return context ? push(context) : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult impl_cuCtxPushCurrent(CUcontext ctx) {
  return impl_cuCtxPushCurrent_v2(ctx);
}

CUresult impl_cuCtxPopCurrent_v2(CUcontext *pctx) {
  if (stack_depth == 0) return CUDA_ERROR_INVALID_CONTEXT;
  struct context *context = current_stack[--stack_depth];
  if (pctx) *pctx = (CUcontext)&context->base;
  return CUDA_SUCCESS;
}

CUresult impl_cuCtxPopCurrent(CUcontext *pctx) {
  return impl_cuCtxPopCurrent_v2(pctx);
}

CUresult impl_cuCtxSetCurrent(CUcontext ctx) {
  struct context *context = NULL;
  if (ctx && !(context = find_alive(ctx))) return CUDA_ERROR_INVALID_CONTEXT;
  sim_context_set_current(context ? &context->base : NULL);
  return CUDA_SUCCESS;
}

CUresult impl_cuCtxGetCurrent(CUcontext *pctx) {
  if (!pctx) return CUDA_ERROR_INVALID_VALUE;
  *pctx = stack_depth ? (CUcontext)&current_stack[stack_depth - 1]->base : NULL;
  return CUDA_SUCCESS;
}

/* ---- properties of the current context ---- */

/* The context for a call about the current one, or its error. */
static CUresult need_current(struct context **context) {
  *context = top();
  if (*context) return CUDA_SUCCESS;
  return stack_depth ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult impl_cuCtxGetDevice(CUdevice *device) {
  struct context *context;
  CUresult result = need_current(&context);
  if (result != CUDA_SUCCESS) return result;
  if (!device) return CUDA_ERROR_INVALID_VALUE;
  *device = context->base.device;
  return CUDA_SUCCESS;
}

CUresult impl_cuCtxGetDevice_v2(CUdevice *device, CUcontext ctx) {
  struct context *context = ctx ? find_alive(ctx) : top();
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  if (!device) return CUDA_ERROR_INVALID_VALUE;
  *device = context->base.device;
  return CUDA_SUCCESS;
}

CUresult impl_cuCtxGetFlags(unsigned int *flags) {
  struct context *context;
  CUresult result = need_current(&context);
  if (result != CUDA_SUCCESS) return result;
  if (!flags) return CUDA_ERROR_INVALID_VALUE;
  *flags = context->flags;
  return CUDA_SUCCESS;
}

CUresult impl_cuCtxSetFlags(unsigned int flags) {
  struct context *context;
  CUresult result = need_current(&context);
  if (result != CUDA_SUCCESS) return result;
  if (flags & ~(unsigned)CU_CTX_FLAGS_MASK) return CUDA_ERROR_INVALID_VALUE;
  context->flags = flags;
  return CUDA_SUCCESS;
}

CUresult impl_cuCtxGetId(CUcontext ctx, unsigned long long *ctxId) {
  struct context *context = ctx ? find_alive(ctx) : top();
  if (!context) return ctx ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_ERROR_INVALID_CONTEXT;
  if (!ctxId) return CUDA_ERROR_INVALID_VALUE;
  *ctxId = context->base.id;
  return CUDA_SUCCESS;
}

static CUresult synchronize(struct context *context) {
  CUresult result = sim_engine_context_synchronize(&context->base);
  sim_synchronize_callback(CUPTI_CBID_SYNCHRONIZE_CONTEXT_SYNCHRONIZED, &context->base, NULL);
  return result;
}

CUresult impl_cuCtxSynchronize(void) {
  struct context *context;
  CUresult result = need_current(&context);
  return result == CUDA_SUCCESS ? synchronize(context) : result;
}

CUresult impl_cuCtxSynchronize_v2(CUcontext ctx) {
  struct context *context = ctx ? find_alive(ctx) : top();
  return context ? synchronize(context) : CUDA_ERROR_INVALID_CONTEXT;
}

static bool known_limit(CUlimit limit) {
  return limit >= 0 && limit < CU_LIMIT_MAX;
}

CUresult impl_cuCtxGetLimit(size_t *pvalue, CUlimit limit) {
  struct context *context;
  CUresult result = need_current(&context);
  if (result != CUDA_SUCCESS) return result;
  if (!pvalue) return CUDA_ERROR_INVALID_VALUE;
  if (!known_limit(limit)) return CUDA_ERROR_UNSUPPORTED_LIMIT;
  *pvalue = context->limits[limit];
  return CUDA_SUCCESS;
}

CUresult impl_cuCtxSetLimit(CUlimit limit, size_t value) {
  struct context *context;
  CUresult result = need_current(&context);
  if (result != CUDA_SUCCESS) return result;
  if (!known_limit(limit)) return CUDA_ERROR_UNSUPPORTED_LIMIT;
  context->limits[limit] = value;
  return CUDA_SUCCESS;
}

CUresult impl_cuCtxGetCacheConfig(CUfunc_cache *pconfig) {
  struct context *context;
  CUresult result = need_current(&context);
  if (result != CUDA_SUCCESS) return result;
  if (!pconfig) return CUDA_ERROR_INVALID_VALUE;
  *pconfig = context->cache;
  return CUDA_SUCCESS;
}

CUresult impl_cuCtxSetCacheConfig(CUfunc_cache config) {
  struct context *context;
  CUresult result = need_current(&context);
  if (result == CUDA_SUCCESS) context->cache = config;
  return result;
}

CUresult impl_cuCtxGetSharedMemConfig(CUsharedconfig *pConfig) {
  struct context *context;
  CUresult result = need_current(&context);
  if (result != CUDA_SUCCESS) return result;
  if (!pConfig) return CUDA_ERROR_INVALID_VALUE;
  *pConfig = context->shared_config;
  return CUDA_SUCCESS;
}

CUresult impl_cuCtxSetSharedMemConfig(CUsharedconfig config) {
  struct context *context;
  CUresult result = need_current(&context);
  if (result == CUDA_SUCCESS) context->shared_config = config;
  return result;
}

CUresult impl_cuCtxGetApiVersion(CUcontext ctx, unsigned int *version) {
  if (ctx ? !find_alive(ctx) : !top()) return CUDA_ERROR_INVALID_CONTEXT;
  if (!version) return CUDA_ERROR_INVALID_VALUE;
  *version = 3020;
  return CUDA_SUCCESS;
}

CUresult impl_cuCtxGetStreamPriorityRange(int *leastPriority, int *greatestPriority) {
  struct context *context;
  CUresult result = need_current(&context);
  if (result != CUDA_SUCCESS) return result;
  if (leastPriority) *leastPriority = 0;
  if (greatestPriority) *greatestPriority = -5;
  return CUDA_SUCCESS;
}

CUresult impl_cuCtxResetPersistingL2Cache(void) {
  struct context *context;
  return need_current(&context);
}

/* ---- peers ---- */

static CUresult peer_of(CUcontext handle, struct context **mine, uint32_t *bit) {
  CUresult result = need_current(mine);
  if (result != CUDA_SUCCESS) return result;
  struct context *peer = find_alive(handle);
  if (!peer || peer == *mine) return CUDA_ERROR_INVALID_CONTEXT;
  if (peer->base.device == (*mine)->base.device) return CUDA_ERROR_INVALID_DEVICE;
  *bit = UINT32_C(1) << peer->base.device;
  return CUDA_SUCCESS;
}

static CUresult set_peer(CUcontext handle, bool on) {
  struct context *mine;
  uint32_t bit;
  CUresult result = peer_of(handle, &mine, &bit);
  if (result != CUDA_SUCCESS) return result;
  pthread_mutex_lock(&context_lock);
  bool was_on = (mine->peers & bit) != 0;
  mine->peers = on ? mine->peers | bit : mine->peers & ~bit;
  pthread_mutex_unlock(&context_lock);
  if (was_on != on) return CUDA_SUCCESS;
  return on ? CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
}

CUresult impl_cuCtxEnablePeerAccess(CUcontext peerContext, unsigned int Flags) {
  return Flags != 0 ? CUDA_ERROR_INVALID_VALUE : set_peer(peerContext, true);
}

CUresult impl_cuCtxDisablePeerAccess(CUcontext peerContext) {
  return set_peer(peerContext, false);
}
