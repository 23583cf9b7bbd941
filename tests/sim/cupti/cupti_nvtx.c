/* NVTX: fills the function tables of the NVTX headers, so that their calls raise CUPTI's NVTX domain.
 * Wide-character variants and names of CUDA objects are left alone. */
#define NVTX_NO_IMPL
#include "cupti_sim.h"

#include <generated_nvtx_meta.h>
#include <stdatomic.h>
#include <stdlib.h>

static _Atomic uint64_t last_id; /* of ranges, domains and strings: each value is handed out once */
static _Thread_local int depth;  /* of this thread's pushed ranges, over all domains */

static void raise_nvtx(CUpti_CallbackId cbid, const char *name, const void *params, const void *result) {
  const struct rpsim_tools *tools = sim_tools();
  CUpti_NvtxData data = {.functionName = name, .functionParams = params, .functionReturnValue = result};
  if (tools) tools->nvtx(cbid, &data);
}

/* Raises the callback of one NVTX function; the parameters follow in the order of its params struct. */
#define RAISE(function, result, ...)                                                                         \
  raise_nvtx(CUPTI_CBID_NVTX_##function, #function, &(function##_params){__VA_ARGS__}, result)

static uint64_t next_id(void) {
  return atomic_fetch_add_explicit(&last_id, 1, memory_order_relaxed) + 1;
}

/* ---- default domain ---- */

static void NVTX_API mark_ex(const nvtxEventAttributes_t *attributes) {
  RAISE(nvtxMarkEx, NULL, attributes);
}

static void NVTX_API mark_a(const char *message) {
  RAISE(nvtxMarkA, NULL, message);
}

static nvtxRangeId_t NVTX_API range_start_ex(const nvtxEventAttributes_t *attributes) {
  nvtxRangeId_t id = next_id();
  RAISE(nvtxRangeStartEx, &id, attributes);
  return id;
}

static nvtxRangeId_t NVTX_API range_start_a(const char *message) {
  nvtxRangeId_t id = next_id();
  RAISE(nvtxRangeStartA, &id, message);
  return id;
}

static void NVTX_API range_end(nvtxRangeId_t id) {
  RAISE(nvtxRangeEnd, NULL, id);
}

static int NVTX_API range_push_ex(const nvtxEventAttributes_t *attributes) {
  int level = depth++;
  RAISE(nvtxRangePushEx, &level, attributes);
  return level;
}

static int NVTX_API range_push_a(const char *message) {
  int level = depth++;
  RAISE(nvtxRangePushA, &level, message);
  return level;
}

/* The level of the range that ends, or a negative value if there is none. */
static int pop(void) {
  return depth > 0 ? --depth : -1;
}

static int NVTX_API range_pop(void) {
  int level = pop();
  RAISE(nvtxRangePop, &level, NULL);
  return level;
}

static void NVTX_API name_category_a(uint32_t category, const char *name) {
  RAISE(nvtxNameCategoryA, NULL, category, name);
}

static void NVTX_API name_os_thread_a(uint32_t thread, const char *name) {
  RAISE(nvtxNameOsThreadA, NULL, thread, name);
}

/* ---- domains ---- */

static void NVTX_API domain_mark_ex(nvtxDomainHandle_t domain, const nvtxEventAttributes_t *attributes) {
  RAISE(nvtxDomainMarkEx, NULL, domain, {attributes});
}

static nvtxRangeId_t NVTX_API domain_range_start_ex(nvtxDomainHandle_t domain,
                                                    const nvtxEventAttributes_t *attributes) {
  nvtxRangeId_t id = next_id();
  RAISE(nvtxDomainRangeStartEx, &id, domain, {attributes});
  return id;
}

static void NVTX_API domain_range_end(nvtxDomainHandle_t domain, nvtxRangeId_t id) {
  RAISE(nvtxDomainRangeEnd, NULL, domain, {id});
}

static int NVTX_API domain_range_push_ex(nvtxDomainHandle_t domain, const nvtxEventAttributes_t *attributes) {
  int level = depth++;
  RAISE(nvtxDomainRangePushEx, &level, domain, {attributes});
  return level;
}

static int NVTX_API domain_range_pop(nvtxDomainHandle_t domain) {
  int level = pop();
  RAISE(nvtxDomainRangePop, &level, domain);
  return level;
}

/* Handles are numbers in pointers: NVTX never looks behind them. */
static nvtxStringHandle_t NVTX_API domain_register_string_a(nvtxDomainHandle_t domain, const char *string) {
  nvtxStringHandle_t handle = (nvtxStringHandle_t)(uintptr_t)next_id();
  RAISE(nvtxDomainRegisterStringA, &handle, domain, string);
  return handle;
}

static nvtxDomainHandle_t NVTX_API domain_create_a(const char *name) {
  nvtxDomainHandle_t handle = (nvtxDomainHandle_t)(uintptr_t)next_id();
  RAISE(nvtxDomainCreateA, &handle, name);
  return handle;
}

static void NVTX_API domain_destroy(nvtxDomainHandle_t domain) {
  RAISE(nvtxDomainDestroy, NULL, domain);
}

/* ---- the tables ---- */

struct slot {
  unsigned id;
  NvtxFunctionPointer function;
};
#define SLOT(id, function)                                                                                   \
  { id, (NvtxFunctionPointer)function }

static const struct slot core[] = {
    SLOT(NVTX_CBID_CORE_MarkEx, mark_ex),
    SLOT(NVTX_CBID_CORE_MarkA, mark_a),
    SLOT(NVTX_CBID_CORE_RangeStartEx, range_start_ex),
    SLOT(NVTX_CBID_CORE_RangeStartA, range_start_a),
    SLOT(NVTX_CBID_CORE_RangeEnd, range_end),
    SLOT(NVTX_CBID_CORE_RangePushEx, range_push_ex),
    SLOT(NVTX_CBID_CORE_RangePushA, range_push_a),
    SLOT(NVTX_CBID_CORE_RangePop, range_pop),
    SLOT(NVTX_CBID_CORE_NameCategoryA, name_category_a),
    SLOT(NVTX_CBID_CORE_NameOsThreadA, name_os_thread_a),
};
static const struct slot core2[] = {
    SLOT(NVTX_CBID_CORE2_DomainMarkEx, domain_mark_ex),
    SLOT(NVTX_CBID_CORE2_DomainRangeStartEx, domain_range_start_ex),
    SLOT(NVTX_CBID_CORE2_DomainRangeEnd, domain_range_end),
    SLOT(NVTX_CBID_CORE2_DomainRangePushEx, domain_range_push_ex),
    SLOT(NVTX_CBID_CORE2_DomainRangePop, domain_range_pop),
    SLOT(NVTX_CBID_CORE2_DomainRegisterStringA, domain_register_string_a),
    SLOT(NVTX_CBID_CORE2_DomainCreateA, domain_create_a),
    SLOT(NVTX_CBID_CORE2_DomainDestroy, domain_destroy),
};

static int fill(const NvtxExportTableCallbacks *callbacks, NvtxCallbackModule module,
                const struct slot *slots, size_t count) {
  NvtxFunctionTable table = NULL;
  unsigned size = 0;
  if (!callbacks->GetModuleFunctionTable(module, &table, &size) || !table) return 0;
  for (size_t i = 0; i < count; i++)
    if (slots[i].id < size && table[slots[i].id]) *table[slots[i].id] = slots[i].function;
  return 1;
}

/* 1 if NVTX's calls will be raised, else 0. */
static int attach(NvtxGetExportTableFunc_t get_export_table) {
  if (!get_export_table) return 0;
  const NvtxExportTableCallbacks *callbacks = get_export_table(NVTX_ETID_CALLBACKS);
  if (!callbacks || callbacks->struct_size < sizeof *callbacks) return 0;
  return fill(callbacks, NVTX_CB_MODULE_CORE, core, sizeof core / sizeof core[0]) &&
         fill(callbacks, NVTX_CB_MODULE_CORE2, core2, sizeof core2 / sizeof core2[0]);
}

/* No header declares these: NVTX finds the first two by dlsym, and a tool's own injection calls the others.
 */
SIM_EXPORT int InitializeInjectionNvtx(void *get_export_table);
SIM_EXPORT int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_export_table);
SIM_EXPORT CUptiResult CUPTIAPI cuptiNvtxInitialize(void *get_export_table);
SIM_EXPORT CUptiResult CUPTIAPI cuptiNvtxInitialize2(void *get_export_table);

int InitializeInjectionNvtx(void *get_export_table) {
  return attach((NvtxGetExportTableFunc_t)get_export_table);
}

int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_export_table) {
  return attach(get_export_table);
}

CUptiResult CUPTIAPI cuptiNvtxInitialize(void *get_export_table) {
  return attach((NvtxGetExportTableFunc_t)get_export_table) ? CUPTI_SUCCESS
                                                            : sim_answer(CUPTI_ERROR_INVALID_PARAMETER);
}

CUptiResult CUPTIAPI cuptiNvtxInitialize2(void *get_export_table) {
  return cuptiNvtxInitialize(get_export_table);
}
