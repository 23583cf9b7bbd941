/* The call path shared by all wrappers: counters, failures on demand, gates, ENTER and EXIT callbacks, and
 * the rule that no state-changing CUDA call comes from inside a CUPTI callback. */
#include "api.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

_Thread_local CUstream sim_default_stream = CU_STREAM_LEGACY;
_Thread_local const char *sim_inside;
_Thread_local bool sim_inside_allows_sync;
_Atomic uint8_t sim_watch[CUPTI_DRIVER_TRACE_CBID_SIZE];
_Atomic uint64_t sim_call_counts[CUPTI_DRIVER_TRACE_CBID_SIZE];

void sim_call_forbidden(const char *symbol) {
  fprintf(stderr, "rpsim: %s was called from inside %s, where only queries are allowed\n", symbol,
          sim_inside);
  abort();
}

CUresult sim_call_gate(enum sim_gate gate) {
  if (atomic_load_explicit(&sim_state, memory_order_acquire) != SIM_READY) return CUDA_ERROR_NOT_INITIALIZED;
  if (gate != SIM_WORK) return CUDA_SUCCESS;
  struct sim_context *context = sim_context_current();
  return context ? sim_engine_sticky_error(context) : CUDA_SUCCESS;
}

/* ---- ENTER and EXIT ---- */

/* Name of the kernel that a launch is about; NULL for other calls. */
static const char *symbol_name(const struct sim_call *call) {
  CUfunction function = NULL;
  switch (call->cbid) {
  case CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel:
  case CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel_ptsz:
    function = ((const cuLaunchKernel_params *)call->params)->f;
    break;
  case CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx:
  case CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx_ptsz:
    function = ((const cuLaunchKernelEx_params *)call->params)->f;
    break;
  case CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel:
  case CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel_ptsz:
    function = ((const cuLaunchCooperativeKernel_params *)call->params)->f;
    break;
  default:
    return NULL;
  }
  const struct rpsim_kernel *kernel = sim_kernel_of(function);
  return kernel ? kernel->name : NULL;
}

static void raise_call(struct sim_call *call, CUpti_ApiCallbackSite site, CUresult *result) {
  struct sim_context *context = sim_context_current();
  CUpti_CallbackData data = {
      .callbackSite = site,
      .functionName = call->symbol,
      .functionParams = call->params,
      .functionReturnValue = result,
      .symbolName = symbol_name(call),
      .context = (CUcontext)context,
      .contextUid = context ? context->id : 0,
      .correlationData = &call->correlation_data,
      .correlationId = call->correlation_id,
  };
  sim_tools_raise(CUPTI_CB_DOMAIN_DRIVER_API, call->cbid, &data);
}

CUresult sim_call_enter_watched(struct sim_call *call, uint64_t nth) {
  unsigned watch = atomic_load_explicit(&sim_watch[call->cbid], memory_order_acquire);
  if (watch & SIM_WATCH_CALLBACK) {
    call->entered = true;
    call->correlation_id = sim_tools_next_correlation_id();
    raise_call(call, CUPTI_API_ENTER, NULL);
  }
  return watch & SIM_WATCH_FAIL ? sim_fail_for(call->cbid, nth) : CUDA_SUCCESS;
}

void sim_call_exit_watched(struct sim_call *call, CUresult *result) {
  raise_call(call, CUPTI_API_EXIT, result);
}

uint64_t rpsim_call_count(const char *name) {
  uint32_t cbid;
  return sim_entry_find(name, &cbid) ? atomic_load_explicit(&sim_call_counts[cbid], memory_order_relaxed) : 0;
}

/* ---- RPSIM_FAIL ---- */

struct fail_rule {
  uint32_t cbid;
  uint64_t first;
  bool onwards;
  CUresult error;
};

/* Written once, before any call: by the library's constructor. */
static struct fail_rule fail_rules[32];
static size_t fail_rule_count;

CUresult sim_fail_for(uint32_t cbid, uint64_t nth) {
  for (size_t i = 0; i < fail_rule_count; i++) {
    const struct fail_rule *rule = &fail_rules[i];
    if (rule->cbid == cbid && (nth == rule->first || (rule->onwards && nth > rule->first)))
      return rule->error;
  }
  return CUDA_SUCCESS;
}

_Noreturn static void fail_mistake(const char *rule, const char *why) {
  fprintf(stderr, "rpsim: RPSIM_FAIL: '%s': %s (the form is NAME:NTH[:ERROR], NTH is 1, 2 ... or '2+')\n",
          rule, why);
  _exit(2);
}

/* A decimal number of at least 1, ended by one of `ends` or the end of the text. */
static const char *fail_number(const char *rule, const char *text, const char *ends, uint64_t *number) {
  char *end;
  errno = 0;
  *number = strtoull(text, &end, 10);
  if (!isdigit((unsigned char)*text) || errno != 0 || *number == 0)
    fail_mistake(rule, "a number of at least 1 is missing");
  if (*end != '\0' && !strchr(ends, *end)) fail_mistake(rule, "text after the number");
  return end;
}

static void fail_add(char *rule) {
  char name[96];
  const char *colon = strchr(rule, ':');
  if (!colon || colon == rule) fail_mistake(rule, "no NAME and NTH");
  if ((size_t)(colon - rule) >= sizeof name) fail_mistake(rule, "the name is too long");
  snprintf(name, sizeof name, "%.*s", (int)(colon - rule), rule);

  struct fail_rule added = {.error = CUDA_ERROR_OUT_OF_MEMORY};
  if (!sim_entry_find(name, &added.cbid))
    fail_mistake(rule, "no such entry point; give the exported name, such as cuMemAlloc_v2");
  const char *rest = fail_number(rule, colon + 1, "+:", &added.first);
  added.onwards = *rest == '+';
  if (added.onwards) rest++;
  if (*rest == ':') {
    uint64_t error;
    rest = fail_number(rule, rest + 1, "", &error);
    added.error = (CUresult)error;
  }
  if (*rest != '\0') fail_mistake(rule, "text after the number");
  if (fail_rule_count == sizeof fail_rules / sizeof fail_rules[0]) fail_mistake(rule, "too many rules");
  fail_rules[fail_rule_count++] = added;
  atomic_fetch_or_explicit(&sim_watch[added.cbid], SIM_WATCH_FAIL, memory_order_relaxed);
}

void sim_fail_configure(const char *text) {
  if (!text || !*text) return;
  char *copy = strdup(text), *save = NULL;
  if (!copy) fail_mistake(text, "no memory to read it");
  for (char *rule = strtok_r(copy, ",", &save); rule; rule = strtok_r(NULL, ",", &save))
    fail_add(rule);
  free(copy);
}
