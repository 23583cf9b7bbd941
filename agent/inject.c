/* Entry of the injected library. The driver calls InitializeInjection inside the process's first cuInit;
 * nothing here calls CUDA, and whatever fails, the answer is 1 and the program runs as if it had not been
 * attached. A program with more rights than its user (set-uid) always does. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/auxv.h>

#include "agent/agent.h"
#include "agent/config.h"
#include "agent/enforce.h"
#include "agent/enforce_plan.h"
#include "agent/evidence.h"
#include "agent/hooks.h"
#include "agent/identity.h"
#include "agent/log.h"
#include "agent/nccl_profiler.h"
#include "agent/reporter.h"
#include "agent/state.h"
#include "cupti/cuda_side.h"

__attribute__((visibility("default"))) int InitializeInjection(void);

static void at_exit(void) {
  if (rp_state_get() != RP_STATE_ON || !rp_state_is_own_process()) return;
  int saved = errno;
  rp_state_set(RP_STATE_PASSIVE);
  rp_reporter_finish();
  errno = saved;
}

static void start_cupti(const struct rp_config *config) {
  char reason[256] = "", runtime[512] = "";
  if (config->cupti == RP_CUPTI_OFF) {
    rp_evidence_set_cupti_reason("switched off by RECVPOOL_CUPTI");
    return;
  }
  (void)rp_interpose_find_module("libcudart.so", runtime, sizeof runtime);
  if (rp_cupti_start(rp_agent_sink(), runtime, reason, sizeof reason) == RP_OK) return;
  rp_evidence_set_cupti_reason(reason);
  rp_warn("%s; launches are seen through interposed calls only", reason);
}

static void patch_modules(void) {
  struct rp_interpose_result result;
  uint64_t changes = rp_interpose_module_changes();
  rp_hooks_scan(&result);
  rp_reporter_modules_scanned(changes);
  rp_verbose("%u call slots patched in %u modules", result.patched, result.modules);
  if (result.failed) rp_warn("%u call slots are read-only and were not patched", result.failed);
}

static void die_with_report(void) {
  rp_state_set(RP_STATE_PASSIVE);
  rp_reporter_finish();
}

/* Guards in enforce mode, shadows of them in observe mode. Without them the rest goes on. */
static void start_enforce(const struct rp_config *config) {
  static struct rp_process_info process; /* too large for a stack that is not ours */
  struct rp_guard_plan *plan = NULL;
  char problem[512] = "";
  if (config->mode == RP_MODE_ENFORCE) {
    rp_identity_rank(&process);
    (void)rp_enforce_plan_load(config, process.rank, process.world_size, &plan, problem, sizeof problem);
  }
  rp_enforce_set_last_words(die_with_report);
  rp_status status = rp_enforce_start(config, plan, problem);
  if (status != RP_OK) rp_warn("no guards: %s", rp_status_text(status));
}

/* Everything that may fail is behind this; on failure the library stays passive. */
static void attach(void) {
  static struct rp_config config; /* too large for a stack that is not ours */
  char warnings[RP_LOG_TEXT];
  rp_config_from_environment(&config, warnings, sizeof warnings);
  if (config.mode == RP_MODE_OFF) {
    rp_state_set(RP_STATE_OFF);
    return;
  }
  rp_log_set_verbose(config.verbose);
  if (warnings[0]) rp_warn("%s", warnings);
  rp_state_watch_fork();
  rp_status status = rp_agent_start(&config);
  if (status != RP_OK) {
    rp_warn("not attached: %s", rp_status_text(status));
    rp_log_flush();
    rp_state_set(RP_STATE_PASSIVE);
    return;
  }
  (void)rp_driver_open();
  rp_profiler_announce();
  start_cupti(&config);
  start_enforce(&config);
  patch_modules();
  rp_state_set(RP_STATE_ON);
  (void)atexit(at_exit);
  if (rp_reporter_start(&config) != RP_OK) rp_log_flush();
}

int InitializeInjection(void) {
  static _Atomic bool begun;
  int saved = errno;
  if (getauxval(AT_SECURE) == 0 && !atomic_exchange(&begun, true)) {
    int cancel_state;
    rp_state_set(RP_STATE_STARTING);
    (void)pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state); /* reads files, takes locks */
    attach();
    (void)pthread_setcancelstate(cancel_state, &cancel_state);
  }
  errno = saved;
  return 1;
}
