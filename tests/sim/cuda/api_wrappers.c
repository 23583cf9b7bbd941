/* The exported entry points of the simulated libcuda.so.1 and their table, all made from api.def. */
#include "api.h"

#include <string.h>

/* The argument list without its brackets, to fill the parameter struct with. */
#define SIM_UNBRACKET(...) __VA_ARGS__

#define SIM_WRAP(access, gate, exported, body, declaration, arguments, params_pointer, stream)               \
  SIM_EXPORT CUresult CUDAAPI exported declaration {                                                         \
    struct sim_call call = {                                                                                 \
        .cbid = CUPTI_DRIVER_TRACE_CBID_##exported, .symbol = #exported, .params = params_pointer};          \
    CUstream outer_stream = sim_default_stream;                                                              \
    CUresult result = sim_call_begin(&call, SIM_##access, SIM_##gate);                                       \
    if (result == CUDA_SUCCESS) {                                                                            \
      sim_default_stream = stream;                                                                           \
      result = impl_##body arguments;                                                                        \
      sim_default_stream = outer_stream;                                                                     \
    }                                                                                                        \
    return sim_call_end(&call, result);                                                                      \
  }

#define SIM_WRAP_PARAMS(access, gate, exported, body, declaration, arguments, stream)                        \
  SIM_WRAP(access, gate, exported, body, declaration, arguments,                                             \
           (&(exported##_params){SIM_UNBRACKET arguments}), stream)

#define ENTRY(access, gate, name, base, since, declaration, arguments)                                       \
  SIM_WRAP_PARAMS(access, gate, name, name, declaration, arguments, CU_STREAM_LEGACY)
#define ENTRY_BARE(access, gate, name, base, since, declaration, arguments)                                  \
  SIM_WRAP(access, gate, name, name, declaration, arguments, NULL, CU_STREAM_LEGACY)
#define ENTRY_PTDS(access, gate, name, base, since, declaration, arguments)                                  \
  SIM_WRAP_PARAMS(access, gate, name, name, declaration, arguments, CU_STREAM_LEGACY)                        \
  SIM_WRAP_PARAMS(access, gate, name##_ptds, name, declaration, arguments, CU_STREAM_PER_THREAD)
#define ENTRY_PTSZ(access, gate, name, base, since, declaration, arguments)                                  \
  SIM_WRAP_PARAMS(access, gate, name, name, declaration, arguments, CU_STREAM_LEGACY)                        \
  SIM_WRAP_PARAMS(access, gate, name##_ptsz, name, declaration, arguments, CU_STREAM_PER_THREAD)
#include "api.def"

#define SIM_ROW(symbol, base, since, twin)                                                                   \
  {#symbol, #base, since, CUPTI_DRIVER_TRACE_CBID_##symbol, (void *)symbol, twin},
#define ENTRY(access, gate, symbol, base, since, params, args) SIM_ROW(symbol, base, since, NULL)
#define ENTRY_PTDS(access, gate, symbol, base, since, params, args)                                          \
  SIM_ROW(symbol, base, since, (void *)symbol##_ptds)
#define ENTRY_PTSZ(access, gate, symbol, base, since, params, args)                                          \
  SIM_ROW(symbol, base, since, (void *)symbol##_ptsz)
#define ALIAS(base, since, symbol) SIM_ROW(symbol, base, since, NULL)
const struct sim_entry sim_entries[] = {
#include "api.def"
};
const size_t sim_entry_count = sizeof sim_entries / sizeof sim_entries[0];

/* Callback ids of the twins, by symbol: the table above has one row for both. */
static const struct {
  const char *symbol;
  uint32_t cbid;
} twin_ids[] = {
#define ENTRY(access, gate, symbol, base, since, params, args)
#define ENTRY_PTDS(access, gate, symbol, base, since, params, args)                                          \
  {#symbol "_ptds", CUPTI_DRIVER_TRACE_CBID_##symbol##_ptds},
#define ENTRY_PTSZ(access, gate, symbol, base, since, params, args)                                          \
  {#symbol "_ptsz", CUPTI_DRIVER_TRACE_CBID_##symbol##_ptsz},
#include "api.def"
};

static uint32_t twin_id(const char *symbol) {
  for (size_t i = 0; i < sizeof twin_ids / sizeof twin_ids[0]; i++)
    if (strcmp(twin_ids[i].symbol, symbol) == 0) return twin_ids[i].cbid;
  return CUPTI_DRIVER_TRACE_CBID_INVALID;
}

const struct sim_entry *sim_entry_find(const char *symbol, uint32_t *cbid) {
  size_t length = strlen(symbol);
  uint32_t twin = twin_id(symbol);
  if (twin != CUPTI_DRIVER_TRACE_CBID_INVALID) length -= strlen("_ptsz");
  for (size_t i = 0; i < sim_entry_count; i++) {
    const struct sim_entry *entry = &sim_entries[i];
    if (strlen(entry->symbol) != length || strncmp(entry->symbol, symbol, length) != 0) continue;
    *cbid = twin != CUPTI_DRIVER_TRACE_CBID_INVALID ? twin : entry->cbid;
    return entry;
  }
  return NULL;
}
