/* The tools side of the simulated driver: the one subscriber of the process, which callbacks it enabled, and
 * raising them. The simulated CUPTI and runtime come in through tools.h. */
#include "api.h"
#include "tools.h"

#include <cupti_nvtx_cbid.h>
#include <cupti_runtime_cbid.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct CUpti_Subscriber_st {
  CUpti_CallbackFunc callback;
  void *userdata;
  char name[CUPTI_OLD_SUBSCRIBER_NAME_MIN_LEN];
  struct CUpti_Subscriber_st
      *previous; /* of all that ever were: another thread may still be inside a callback */
};

static pthread_mutex_t subscriber_lock = PTHREAD_MUTEX_INITIALIZER;
static struct CUpti_Subscriber_st *all_subscribers; /* lock subscriber_lock */
static _Atomic(struct CUpti_Subscriber_st *) subscriber;
static _Atomic uint32_t last_correlation_id;

static void reset_lock_in_child(void) {
  pthread_mutex_init(&subscriber_lock, NULL);
}

__attribute__((constructor)) static void watch_fork(void) {
  pthread_atfork(NULL, NULL, reset_lock_in_child);
}

#define ENABLED_MAX ((int)CUPTI_DRIVER_TRACE_CBID_SIZE)
/* By domain and id. The driver domain's are mirrored in sim_watch for the wrappers. */
static _Atomic uint8_t enabled[CUPTI_CB_DOMAIN_SIZE][ENABLED_MAX];

static const uint32_t domain_sizes[CUPTI_CB_DOMAIN_SIZE] = {
    [CUPTI_CB_DOMAIN_DRIVER_API] = CUPTI_DRIVER_TRACE_CBID_SIZE,
    [CUPTI_CB_DOMAIN_RUNTIME_API] = CUPTI_RUNTIME_TRACE_CBID_SIZE,
    [CUPTI_CB_DOMAIN_RESOURCE] = CUPTI_CBID_RESOURCE_SIZE,
    [CUPTI_CB_DOMAIN_SYNCHRONIZE] = CUPTI_CBID_SYNCHRONIZE_SIZE,
    [CUPTI_CB_DOMAIN_NVTX] = CUPTI_CBID_NVTX_SIZE,
    [CUPTI_CB_DOMAIN_STATE] = CUPTI_CBID_STATE_SIZE,
};
_Static_assert((int)CUPTI_RUNTIME_TRACE_CBID_SIZE <= ENABLED_MAX, "one array size serves all domains");

/* ---- raising ---- */

bool sim_tools_enabled(CUpti_CallbackDomain domain, uint32_t cbid) {
  return cbid < (uint32_t)ENABLED_MAX && atomic_load_explicit(&enabled[domain][cbid], memory_order_relaxed);
}

uint32_t sim_tools_next_correlation_id(void) {
  return atomic_fetch_add_explicit(&last_correlation_id, 1, memory_order_relaxed) + 1;
}

void sim_tools_raise(CUpti_CallbackDomain domain, uint32_t cbid, const void *data) {
  if (!sim_tools_enabled(domain, cbid)) return;
  struct CUpti_Subscriber_st *to = atomic_load_explicit(&subscriber, memory_order_acquire);
  if (!to) return;
  const char *outer = sim_inside;
  bool outer_allows_sync = sim_inside_allows_sync;
  CUstream outer_stream = sim_default_stream;
  sim_inside = "a CUPTI callback";
  sim_inside_allows_sync = domain == CUPTI_CB_DOMAIN_DRIVER_API || domain == CUPTI_CB_DOMAIN_RUNTIME_API;
  to->callback(to->userdata, domain, cbid, data);
  sim_inside = outer;
  sim_inside_allows_sync = outer_allows_sync;
  sim_default_stream = outer_stream;
}

void sim_resource_callback(CUpti_CallbackIdResource id, struct sim_context *context, CUstream stream,
                           void *descriptor) {
  CUpti_ResourceData data = {
      .context = (CUcontext)context, .resourceHandle.stream = stream, .resourceDescriptor = descriptor};
  sim_tools_raise(CUPTI_CB_DOMAIN_RESOURCE, id, &data);
}

void sim_synchronize_callback(CUpti_CallbackIdSync id, struct sim_context *context, CUstream stream) {
  CUpti_SynchronizeData data = {.context = (CUcontext)context, .stream = stream};
  sim_tools_raise(CUPTI_CB_DOMAIN_SYNCHRONIZE, id, &data);
}

static void raise_runtime(struct rpsim_tools_call *call, CUpti_ApiCallbackSite site, void *result) {
  struct sim_context *context = sim_context_current();
  CUpti_CallbackData data = {
      .callbackSite = site,
      .functionName = call->name,
      .functionParams = call->params,
      .functionReturnValue = result,
      .symbolName = call->symbol,
      .context = (CUcontext)context,
      .contextUid = context ? context->id : 0,
      .correlationData = &call->correlation_data,
      .correlationId = call->correlation_id,
  };
  sim_tools_raise(CUPTI_CB_DOMAIN_RUNTIME_API, call->cbid, &data);
}

void rpsim_tools_runtime_enter(struct rpsim_tools_call *call) {
  call->entered = sim_tools_enabled(CUPTI_CB_DOMAIN_RUNTIME_API, call->cbid);
  if (!call->entered) return;
  call->correlation_id = sim_tools_next_correlation_id();
  call->correlation_data = 0;
  raise_runtime(call, CUPTI_API_ENTER, NULL);
}

void rpsim_tools_runtime_exit(struct rpsim_tools_call *call, void *result) {
  if (call->entered) raise_runtime(call, CUPTI_API_EXIT, result);
}

static void tools_nvtx(CUpti_CallbackId cbid, const CUpti_NvtxData *data) {
  sim_tools_raise(CUPTI_CB_DOMAIN_NVTX, cbid, data);
}

/* ---- subscribing ---- */

static CUptiResult tools_subscribe(CUpti_SubscriberHandle *out, CUpti_CallbackFunc callback, void *userdata,
                                   const char *name, char *old_name, size_t old_name_bytes) {
  if (!out || !callback) return CUPTI_ERROR_INVALID_PARAMETER;
  struct CUpti_Subscriber_st *made = calloc(1, sizeof *made);
  if (!made) return CUPTI_ERROR_OUT_OF_MEMORY;
  made->callback = callback;
  made->userdata = userdata;
  snprintf(made->name, sizeof made->name, "CUPTI for %.53s", name ? name : "an unnamed tool");

  pthread_mutex_lock(&subscriber_lock);
  struct CUpti_Subscriber_st *holder = atomic_load_explicit(&subscriber, memory_order_relaxed);
  if (holder) {
    if (old_name && old_name_bytes > 0) snprintf(old_name, old_name_bytes, "%s", holder->name);
    free(made);
  } else {
    made->previous = all_subscribers;
    all_subscribers = made;
    atomic_store_explicit(&subscriber, made, memory_order_release);
    *out = made;
  }
  pthread_mutex_unlock(&subscriber_lock);
  return holder ? CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED : CUPTI_SUCCESS;
}

/* Sets one callback's state; ids were checked. */
static void set_enabled(CUpti_CallbackDomain domain, CUpti_CallbackId cbid, bool on) {
  atomic_store_explicit(&enabled[domain][cbid], on, memory_order_release);
  if (domain != CUPTI_CB_DOMAIN_DRIVER_API) return;
  if (on)
    atomic_fetch_or_explicit(&sim_watch[cbid], SIM_WATCH_CALLBACK, memory_order_release);
  else
    atomic_fetch_and_explicit(&sim_watch[cbid], (uint8_t)~SIM_WATCH_CALLBACK, memory_order_release);
}

static void set_domain(CUpti_CallbackDomain domain, bool on) {
  for (uint32_t cbid = 1; cbid < domain_sizes[domain]; cbid++)
    set_enabled(domain, cbid, on);
}

/* Ends the subscription. Lock subscriber_lock. */
static void end_subscription(void) {
  atomic_store_explicit(&subscriber, NULL, memory_order_release);
  for (int domain = 1; domain < CUPTI_CB_DOMAIN_SIZE; domain++)
    set_domain(domain, false);
}

static bool is_subscriber(CUpti_SubscriberHandle handle) {
  return handle && handle == atomic_load_explicit(&subscriber, memory_order_acquire);
}

static CUptiResult tools_unsubscribe(CUpti_SubscriberHandle handle) {
  pthread_mutex_lock(&subscriber_lock);
  bool held = is_subscriber(handle);
  if (held) end_subscription();
  pthread_mutex_unlock(&subscriber_lock);
  return held ? CUPTI_SUCCESS : CUPTI_ERROR_INVALID_PARAMETER;
}

static void tools_finalize(void) {
  pthread_mutex_lock(&subscriber_lock);
  end_subscription();
  pthread_mutex_unlock(&subscriber_lock);
}

static bool known_domain(CUpti_CallbackDomain domain) {
  return domain > CUPTI_CB_DOMAIN_INVALID && domain < CUPTI_CB_DOMAIN_SIZE;
}

static bool known_callback(CUpti_CallbackDomain domain, CUpti_CallbackId cbid) {
  return known_domain(domain) && cbid > 0 && cbid < domain_sizes[domain];
}

static CUptiResult tools_enable(uint32_t enable, CUpti_SubscriberHandle handle, CUpti_CallbackDomain domain,
                                CUpti_CallbackId cbid) {
  if (!known_callback(domain, cbid) || !is_subscriber(handle)) return CUPTI_ERROR_INVALID_PARAMETER;
  set_enabled(domain, cbid, enable != 0);
  return CUPTI_SUCCESS;
}

static CUptiResult tools_enable_domain(uint32_t enable, CUpti_SubscriberHandle handle,
                                       CUpti_CallbackDomain domain) {
  if (!known_domain(domain) || !is_subscriber(handle)) return CUPTI_ERROR_INVALID_PARAMETER;
  set_domain(domain, enable != 0);
  return CUPTI_SUCCESS;
}

static CUptiResult tools_state(uint32_t *enable, CUpti_SubscriberHandle handle, CUpti_CallbackDomain domain,
                               CUpti_CallbackId cbid) {
  if (!enable || !known_callback(domain, cbid) || !is_subscriber(handle))
    return CUPTI_ERROR_INVALID_PARAMETER;
  *enable = sim_tools_enabled(domain, cbid);
  return CUPTI_SUCCESS;
}

/* ---- ids ---- */

static bool tools_context_id(CUcontext handle, uint32_t *id, int *device) {
  struct sim_context *context = handle ? sim_context_of(handle) : sim_context_current();
  if (!context) return false;
  *id = context->id;
  *device = context->device;
  return true;
}

static bool tools_stream_id(CUcontext handle, CUstream stream, bool per_thread, uint32_t *id) {
  struct sim_context *context = handle ? sim_context_of(handle) : sim_context_current();
  if (!context) return false;
  struct sim_context *outer = sim_context_current();
  CUstream outer_stream = sim_default_stream;
  unsigned long long wide = 0;
  sim_context_set_current(context);
  sim_default_stream = per_thread ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
  CUresult result = impl_cuStreamGetId(stream, &wide);
  sim_default_stream = outer_stream;
  sim_context_set_current(outer);
  *id = (uint32_t)wide;
  return result == CUDA_SUCCESS;
}

static bool tools_initialised(void) {
  return atomic_load_explicit(&sim_state, memory_order_acquire) == SIM_READY;
}

const struct rpsim_tools *rpsim_tools_get(void) {
  static const struct rpsim_tools tools = {
      .subscribe = tools_subscribe,
      .unsubscribe = tools_unsubscribe,
      .enable = tools_enable,
      .enable_domain = tools_enable_domain,
      .state = tools_state,
      .finalize = tools_finalize,
      .nvtx = tools_nvtx,
      .context_id = tools_context_id,
      .stream_id = tools_stream_id,
      .initialised = tools_initialised,
  };
  return &tools;
}
