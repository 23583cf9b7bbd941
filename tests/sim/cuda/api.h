/** @file api.h
 * Inside the api half of the simulated libcuda.so.1: what the exported wrappers (api_wrappers.c, made from
 * api.def) share with the files that answer them. Calls are numbered by their CUPTI driver callback id
 * throughout.
 */
#ifndef RPSIM_API_H
#define RPSIM_API_H

#include "sim_internal.h"

#include <cudaProfiler.h>
#include <cupti_driver_cbid.h>
#include <generated_cuda_meta.h>
#include <pthread.h>
#include <stdatomic.h>

#define SIM_EXPORT __attribute__((visibility("default")))
#define SIM_DEVICES_MAX 16

/** Who may make a call from inside a CUPTI callback; see api.def. */
enum sim_access { SIM_QUERY, SIM_SYNC, SIM_CHANGE };
/** What a call needs before its body runs; see api.def. */
enum sim_gate { SIM_ANY, SIM_INIT, SIM_WORK };

/** A row of the table of entry points. */
struct sim_entry {
  const char *symbol, *base; /**< exported name; name given to cuGetProcAddress */
  int since;                 /**< CUDA version, as 1000 * major + 10 * minor */
  uint32_t cbid;
  void *function;
  void *per_thread; /**< twin for the per-thread default stream, or NULL */
};
extern const struct sim_entry sim_entries[];
extern const size_t sim_entry_count;

/** One call of an entry point, alive from ENTER to EXIT. */
struct sim_call {
  uint32_t cbid;
  const char *symbol;
  const void *params; /**< the struct of generated_cuda_meta.h, or NULL where that has none */
  bool entered;       /**< ENTER was raised, so EXIT is due */
  uint32_t correlation_id;
  uint64_t correlation_data;
};

/* ---- call path (api_call.c) ---- */

#define SIM_WATCH_CALLBACK 1u /**< somebody enabled the callback of this id */
#define SIM_WATCH_FAIL 2u     /**< RPSIM_FAIL names it */
/** By callback id; zero means that the wrapper has nothing to do but count. */
extern _Atomic uint8_t sim_watch[CUPTI_DRIVER_TRACE_CBID_SIZE];
extern _Atomic uint64_t sim_call_counts[CUPTI_DRIVER_TRACE_CBID_SIZE];
/** Where this thread is, when it is where CUDA calls are restricted: "a CUPTI callback" …; NULL elsewhere. */
extern _Thread_local const char *sim_inside;
/** True when the innermost restriction is a driver or runtime callback, from which the sync calls are
 * allowed. */
extern _Thread_local bool sim_inside_allows_sync;

/** Aborts the process: `symbol` was called from a place where it is not allowed. */
_Noreturn void sim_call_forbidden(const char *symbol);
/** RPSIM_FAIL and ENTER for a watched call, the `nth` of its id. The error to return instead of running the
 * body. */
CUresult sim_call_enter_watched(struct sim_call *call, uint64_t nth);
/** EXIT, through which a tool may change *result. */
void sim_call_exit_watched(struct sim_call *call, CUresult *result);
/** Not initialised, forked, or (SIM_WORK) the sticky error of the current context. */
CUresult sim_call_gate(enum sim_gate gate);
/** Reads RPSIM_FAIL; a mistake in it ends the process with status 2. */
void sim_fail_configure(const char *text);
/** Reads RPSIM_ATTRIBUTES; a mistake in it ends the process. NULL: none. */
void sim_attributes_configure(const char *text);
/** The error that RPSIM_FAIL wants for the `nth` call of `cbid`, or CUDA_SUCCESS. */
CUresult sim_fail_for(uint32_t cbid, uint64_t nth);
/** Table row with exactly this symbol, twins included, or NULL. `*cbid` gets the id of that very symbol. */
const struct sim_entry *sim_entry_find(const char *symbol, uint32_t *cbid);

static inline CUresult sim_call_begin(struct sim_call *call, enum sim_access access, enum sim_gate gate) {
  uint64_t nth = atomic_fetch_add_explicit(&sim_call_counts[call->cbid], 1, memory_order_relaxed) + 1;
  if (access != SIM_QUERY && __builtin_expect(sim_inside != NULL, 0) &&
      !(access == SIM_SYNC && sim_inside_allows_sync))
    sim_call_forbidden(call->symbol);
  if (__builtin_expect(atomic_load_explicit(&sim_watch[call->cbid], memory_order_relaxed) != 0, 0)) {
    CUresult failed = sim_call_enter_watched(call, nth);
    if (failed != CUDA_SUCCESS) return failed;
  }
  return gate == SIM_ANY ? CUDA_SUCCESS : sim_call_gate(gate);
}

static inline CUresult sim_call_end(struct sim_call *call, CUresult result) {
  if (__builtin_expect(call->entered, 0)) sim_call_exit_watched(call, &result);
  return result;
}

/* ---- initialisation (api_init.c) ---- */

enum sim_state { SIM_UNINITIALISED, SIM_INITIALISING, SIM_READY, SIM_FORKED };
extern _Atomic int sim_state;
/** Version that cuDriverGetVersion answers, as 1000 * major + 10 * minor. */
int sim_driver_version(void);
/** True if `device` is one. */
bool sim_device_valid(CUdevice device);

/* ---- contexts (api_context.c) ---- */

/** The context behind a handle if it is alive, else NULL. */
struct sim_context *sim_context_of(CUcontext handle);
/** The retained primary context of a device, or NULL. */
struct sim_context *sim_context_primary(CUdevice device);

/* ---- kernels and handles (api_kernels.c, api_module.c) ---- */

enum sim_handle_kind { SIM_FREE, SIM_MODULE, SIM_LIBRARY, SIM_FUNCTION, SIM_KERNEL };

struct sim_registered; /**< a name and the kernel now behind it */

/** What CUmodule, CUlibrary, CUfunction and CUkernel point at; a slot of one table, so that any value can be
 * checked. */
struct sim_handle {
  _Atomic int kind; /**< enum sim_handle_kind */
  uint32_t id;
  struct sim_handle *owner;    /**< module of a function, library of a kernel or of a library's module */
  struct sim_context *context; /**< of a module */
  const struct sim_registered *named; /**< of a function or a kernel */
  _Atomic int dynamic_shared_bytes;   /**< CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES */
  _Atomic int carveout_percent;       /**< CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT */
  const void *image; /**< device binary of a module or a library, or NULL; see image.h */
  void *image_copy;  /**< where it is a copy, which goes with the handle */
};

/** `handle` if it is one of that kind and alive, else NULL. Any value may be passed. */
struct sim_handle *sim_handle_of(const void *handle, enum sim_handle_kind kind);
/** A new handle, or NULL when the table is full. */
struct sim_handle *sim_handle_create(enum sim_handle_kind kind, struct sim_handle *owner,
                                     struct sim_context *context, const struct sim_registered *named);
/** Frees a handle and everything that it owns. */
void sim_handle_destroy(struct sim_handle *handle);
/** Frees the modules of a context that ends, and their functions. */
void sim_handles_drop_context(struct sim_context *context);
/** The handle with exactly these, made if need be; NULL when the table is full. */
struct sim_handle *sim_handle_get(enum sim_handle_kind kind, struct sim_handle *owner,
                                  struct sim_context *context, const struct sim_registered *named);
/** The registered kernel of that name, or NULL. */
const struct sim_registered *sim_registered_find(const char *name);
/** The same, and a kernel that only `image` (may be NULL) has is registered from it. NULL without memory too. */
const struct sim_registered *sim_registered_get(const char *name, const void *image);
/** What is now registered under the name of a function or kernel handle. */
const struct rpsim_kernel *sim_handle_kernel(const struct sim_handle *handle);
/** Number of registered kernels; the first `count` of them into `out`. */
size_t sim_registered_list(const struct sim_registered **out, size_t count);

/* ---- tools interface (api_tools.c) ---- */

/** Calls the subscriber, if this callback is enabled. */
void sim_tools_raise(CUpti_CallbackDomain domain, uint32_t cbid, const void *data);
/** True if this callback is enabled. */
bool sim_tools_enabled(CUpti_CallbackDomain domain, uint32_t cbid);
uint32_t sim_tools_next_correlation_id(void);

/* ---- bodies, from api.def ---- */
#define ENTRY(access, gate, name, base, since, declaration, arguments) CUresult impl_##name declaration;
#include "api.def"

#endif
