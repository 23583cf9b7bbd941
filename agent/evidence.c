/* Evidence sources, library versions, devices. Only queries that need no device context are made. */
#include "agent/evidence.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/agent.h"
#include "agent/hooks.h"
#include "agent/nccl_profiler.h"
#include "cupti/cuda_side.h"

static char cupti_reason[256];

void rp_evidence_set_cupti_reason(const char *reason) {
  snprintf(cupti_reason, sizeof cupti_reason, "%s", reason);
}

static void read_interposer(struct rp_evidence *out) {
  unsigned total, conflicts, unused;
  out->name = "interposer";
  rp_hooks_count("", &total, &unused);
  rp_hooks_count("ncclRecv", &unused, &conflicts);
  bool sees_transfers = rp_hooks_callers("ncclRecv") > 0 || rp_hooks_callers("pncclRecv") > 0 ||
                        rp_agent_interposed_transfers() > 0;
  out->active = total > 0;
  if (total == 0)
    snprintf(out->reason, sizeof out->reason,
             "no loaded module imports a CUDA or NCCL function that can be hooked");
  else if (conflicts > 0)
    snprintf(out->reason, sizeof out->reason, "%u callers use another copy of NCCL and were left alone",
             conflicts);
  else if (!sees_transfers)
    snprintf(out->reason, sizeof out->reason,
             "no loaded module imports ncclRecv: NCCL is not used, linked statically, or found by dlsym");
}

static void read_cupti(struct rp_evidence *out) {
  out->name = "cupti";
  out->active = rp_cupti_active();
  if (out->active && rp_launch_unreadable() > 0)
    snprintf(out->reason, sizeof out->reason, "%llu launches had parameters that could not be read",
             (unsigned long long)rp_launch_unreadable());
  else if (!out->active)
    snprintf(out->reason, sizeof out->reason, "%s", cupti_reason[0] ? cupti_reason : "not started");
}

static void read_profiler(struct rp_evidence *out) {
  uint64_t unmatched, matched;
  out->name = "nccl_profiler";
  out->active = rp_profiler_active(out->reason, sizeof out->reason);
  rp_agent_profiler_counts(&unmatched, &matched);
  if (out->active && unmatched > 0)
    snprintf(out->reason, sizeof out->reason,
             "%llu transfers were seen by the plugin alone, after their launch",
             (unsigned long long)unmatched);
}

size_t rp_evidence_read(struct rp_evidence *out) {
  memset(out, 0, RP_EVIDENCE_SOURCES * sizeof *out);
  read_interposer(&out[0]);
  read_cupti(&out[1]);
  read_profiler(&out[2]);
  out[3].name = "nvtx";
  out[3].active = rp_cupti_nvtx(out[3].reason, sizeof out[3].reason);
  out[4].name = "uprobes";
  snprintf(out[4].reason, sizeof out[4].reason, "the injected library uses none");
  return RP_EVIDENCE_SOURCES;
}

/* A version function `int f(int *)` of a library that is loaded already. */
static int ask_version(const char *path, const char *function) {
  int version = 0;
  void *handle = path[0] ? dlopen(path, RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD) : NULL;
  if (!handle) return 0;
  int (*ask)(int *) = (int (*)(int *))dlsym(handle, function);
  if (ask && ask(&version) != 0) version = 0;
  (void)dlclose(handle);
  return version;
}

/* Where a library really lies, without links. */
static void settle_path(char *path, size_t size) {
  char real[PATH_MAX];
  if (path[0] && realpath(path, real) && strlen(real) < size) memcpy(path, real, strlen(real) + 1);
}

void rp_evidence_versions(struct rp_versions *out, bool driver_ready) {
  memset(out, 0, sizeof *out);
  snprintf(out->cuda_driver_path, sizeof out->cuda_driver_path, "%s", rp_driver_path());
  if (driver_ready) out->cuda_driver = rp_driver_version();
  snprintf(out->cupti_path, sizeof out->cupti_path, "%s", rp_cupti_path());
  out->cupti = rp_cupti_version();
  if (rp_interpose_find_module("libcudart.so", out->cuda_runtime_path, sizeof out->cuda_runtime_path) &&
      driver_ready)
    out->cuda_runtime = ask_version(out->cuda_runtime_path, "cudaRuntimeGetVersion");
  if (rp_interpose_find_module("libnccl.so", out->nccl_path, sizeof out->nccl_path))
    out->nccl = ask_version(out->nccl_path, "ncclGetVersion");
  settle_path(out->cuda_driver_path, sizeof out->cuda_driver_path);
  settle_path(out->cuda_runtime_path, sizeof out->cuda_runtime_path);
  settle_path(out->cupti_path, sizeof out->cupti_path);
  settle_path(out->nccl_path, sizeof out->nccl_path);
}

size_t rp_evidence_devices(struct rp_device_info *out, size_t capacity) {
  int count = rp_driver_device_count();
  size_t filled = 0;
  for (int i = 0; i < count && filled < capacity; i++) {
    struct rp_device_info *info = &out[filled];
    memset(info, 0, sizeof *info);
    info->ordinal = i;
    if (rp_driver_device_info(i, info->name, sizeof info->name, &info->total_bytes) == RP_OK) filled++;
  }
  return filled;
}
