/* Entry points of the driver that the program asks for by name. Where buffers share memory it gets the
 * wrapper of a function that has one, as if it had been linked: what is called through such a pointer would
 * not be seen before it is made. A version of a function that is not known here is left alone. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "agent/abi.h"
#include "agent/enforce.h"
#include "agent/hooks.h"
#include "agent/state.h"

/* Newest version of CUDA whose functions are known to take the arguments that the wrappers have. */
#define VERSION_KNOWN 13000
#define PER_THREAD 2u /* CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, and the runtime's */

/* Functions whose second version came later than the first one that is wrapped. All others have had it since
 * CUDA 3.2. */
static const struct {
  const char *base;
  int since;
} second_versions[] = {
    {"cuGetProcAddress", 12000},
    {"cuIpcOpenMemHandle", 11000},
    {"cuMemcpyBatchAsync", 13000},
    {"cuMemcpy3DBatchAsync", 13000},
    {"cuStreamWaitValue32", 11070},
    {"cuStreamWaitValue64", 11070},
    {"cuStreamWriteValue32", 11070},
    {"cuStreamWriteValue64", 11070},
    {"cuStreamBatchMemOp", 11070},
    {"cuCtxDestroy", 4000},
    {"cuStreamDestroy", 4000},
    {"cuEventDestroy", 4000},
    {"cuDevicePrimaryCtxRelease", 11000},
    {"cuDevicePrimaryCtxReset", 11000},
    {"cuStreamBeginCapture", 10010},
    {"cuGraphAddKernelNode", 12000},
    {"cuGraphKernelNodeSetParams", 12000},
    {"cuGraphExecKernelNodeSetParams", 12000},
    {"cuGraphAddNode", 12030},
    {"cuCtxSynchronize", 13000},
};

static int second_since(const char *base) {
  for (size_t i = 0; i < sizeof second_versions / sizeof second_versions[0]; i++)
    if (strcmp(second_versions[i].base, base) == 0) return second_versions[i].since;
  return 3020;
}

/* The wrapper of base + version + suffix, NULL if there is none. */
static void *wrapper(const char *base, const char *version, const char *suffix, void *found) {
  char name[96];
  int length = snprintf(name, sizeof name, "%s%s%s", base, version, suffix);
  return length > 0 && (size_t)length < sizeof name ? rp_hooks_hand_out(name, found) : NULL;
}

/* What the program gets instead of `found`, the driver's answer for `version`. */
static void *instead_of(void *found, const char *base, int version, bool per_thread) {
  static const char *const suffixes[] = {"_ptsz", "_ptds", ""};
  const char *number = version >= second_since(base) ? "_v2" : "";
  for (size_t i = per_thread ? 0 : 2; i < sizeof suffixes / sizeof suffixes[0]; i++) {
    void *own = wrapper(base, number, suffixes[i], found);
    if (!own && second_since(base) == 3020) own = wrapper(base, "", suffixes[i], found); /* has but one */
    if (own) return own;
  }
  return found;
}

static bool wanted(const char *symbol, void *const *function) {
  return symbol && function && *function && rp_enforce_on();
}

/* ---- the driver's ---- */

RP_HOOK(int, cuGetProcAddress, (const char *symbol, void **function, int version, uint64_t flags)) {
  int result = real_cuGetProcAddress(symbol, function, version, flags);
  void *known = NULL;
  if (result != RP_ABI_SUCCESS || !wanted(symbol, function)) return result;
  if (version > VERSION_KNOWN &&
      (real_cuGetProcAddress(symbol, &known, VERSION_KNOWN, flags) != RP_ABI_SUCCESS || known != *function))
    return result;
  *function = instead_of(*function, symbol, version, flags & PER_THREAD);
  return result;
}

RP_HOOK(int, cuGetProcAddress_v2,
        (const char *symbol, void **function, int version, uint64_t flags, int *status)) {
  int result = real_cuGetProcAddress_v2(symbol, function, version, flags, status);
  void *known = NULL;
  if (result != RP_ABI_SUCCESS || !wanted(symbol, function)) return result;
  if (version > VERSION_KNOWN &&
      (real_cuGetProcAddress_v2(symbol, &known, VERSION_KNOWN, flags, NULL) != RP_ABI_SUCCESS ||
       known != *function))
    return result;
  *function = instead_of(*function, symbol, version, flags & PER_THREAD);
  return result;
}

/* ---- the runtime's ---- */

typedef int get_by_version(const char *symbol, void **function, unsigned version, unsigned long long flags,
                           int *status);

/* Whether the runtime's answer is that of a version that is known. */
static bool is_known(void *hooked, const char *symbol, const void *found, unsigned version,
                     unsigned long long flags) {
  get_by_version *get;
  void *known = NULL;
  int status;
  if (version <= VERSION_KNOWN) return true;
  get = (get_by_version *)rp_hook_sibling(hooked, "cudaGetDriverEntryPointByVersion");
  return get && get(symbol, &known, VERSION_KNOWN, flags, &status) == RP_ABI_SUCCESS && known == found;
}

static unsigned runtime_version(void *hooked) {
  int version = 0;
  int (*ask)(int *) = (int (*)(int *))rp_hook_sibling(hooked, "cudaRuntimeGetVersion");
  return ask && ask(&version) == RP_ABI_SUCCESS ? (unsigned)version : VERSION_KNOWN + 1u;
}

/* The runtime's default is that of who asks: `flags` are then those that say so. */
static unsigned long long plain_flags(unsigned long long flags, bool per_thread) {
  return flags ? flags : per_thread ? PER_THREAD : 1;
}

static void replace(void *hooked, const char *symbol, void **function, unsigned version,
                    unsigned long long flags) {
  if (is_known(hooked, symbol, *function, version, flags))
    *function = instead_of(*function, symbol, (int)version, flags & PER_THREAD);
}

#define ENTRY(name, per_thread)                                                                              \
  RP_HOOK(int, name, (const char *symbol, void **function, unsigned long long flags, int *status)) {         \
    int result = real_##name(symbol, function, flags, status);                                               \
    if (result == RP_ABI_SUCCESS && wanted(symbol, function))                                                \
      replace((void *)real_##name, symbol, function, runtime_version((void *)real_##name),                   \
              plain_flags(flags, per_thread));                                                               \
    return result;                                                                                           \
  }
#define ENTRY_BY_VERSION(name, per_thread)                                                                   \
  RP_HOOK(int, name,                                                                                         \
          (const char *symbol, void **function, unsigned version, unsigned long long flags, int *status)) {  \
    int result = real_##name(symbol, function, version, flags, status);                                      \
    if (result == RP_ABI_SUCCESS && wanted(symbol, function))                                                \
      replace((void *)real_##name, symbol, function, version, plain_flags(flags, per_thread));               \
    return result;                                                                                           \
  }
ENTRY(cudaGetDriverEntryPoint, false)
ENTRY(cudaGetDriverEntryPoint_ptsz, true)
ENTRY_BY_VERSION(cudaGetDriverEntryPointByVersion, false)
ENTRY_BY_VERSION(cudaGetDriverEntryPointByVersion_ptsz, true)

const struct rp_hook rp_hooks_entry[] = {
    RP_HOOK_ENTRY(cuGetProcAddress),
    RP_HOOK_ENTRY(cuGetProcAddress_v2),
    RP_HOOK_ENTRY(cudaGetDriverEntryPoint),
    RP_HOOK_ENTRY(cudaGetDriverEntryPoint_ptsz),
    RP_HOOK_ENTRY(cudaGetDriverEntryPointByVersion),
    RP_HOOK_ENTRY(cudaGetDriverEntryPointByVersion_ptsz),
};
const size_t rp_hooks_entry_count = sizeof rp_hooks_entry / sizeof rp_hooks_entry[0];
