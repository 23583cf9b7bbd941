/** @file hooks.h
 * The wrappers that the interposer puts in place, and what they share.
 */
#ifndef RP_AGENT_HOOKS_H
#define RP_AGENT_HOOKS_H

#include <stddef.h>
#include <stdint.h>

#include "agent/interpose.h"
#include "cupti/cuda_side.h"

/** Patches all loaded modules. Serialised; see rp_interpose_scan. */
void rp_hooks_scan(struct rp_interpose_result *result);
/** Slots patched for names that begin with `prefix`, and slots left alone as they mean a second copy. Numbers
 * for a report: a scan on another thread may be changing them. */
/** Allocations of the program that failed since the device had no memory, and how large the last of them was.
 * Thread-safe. */
void rp_hooks_refused(uint64_t *count, uint64_t *last_bytes);
void rp_hooks_count(const char *prefix, unsigned *slots, unsigned *conflicts);
/** Slots of the one function `name` in modules other than the one that defines it. */
unsigned rp_hooks_callers(const char *name);

/** The wrapper of the driver's function `name`, for a program that was told its address (`found`) and has not
 * been linked to it; NULL: there is none. */
void *rp_hooks_hand_out(const char *name, void *found);

/* ---- shared by hooks_*.c ---- */

extern const struct rp_hook rp_hooks_nccl[], rp_hooks_collectives[], rp_hooks_memory[], rp_hooks_pointers[],
    rp_hooks_context[], rp_hooks_work[], rp_hooks_copies[], rp_hooks_shapes[], rp_hooks_entry[],
    rp_hooks_graphs[], rp_hooks_order[];
extern const size_t rp_hooks_nccl_count, rp_hooks_collectives_count, rp_hooks_memory_count,
    rp_hooks_pointers_count, rp_hooks_context_count, rp_hooks_work_count, rp_hooks_copies_count,
    rp_hooks_shapes_count, rp_hooks_entry_count, rp_hooks_graphs_count, rp_hooks_order_count;

/** Defines `real_NAME` and the head of `hook_NAME`. The pointer is atomic: a scan on another thread may set
 * it just before a slot leads here for the first time. */
#define RP_HOOK(result, name, parameters)                                                                    \
  static result(*_Atomic real_##name) parameters;                                                            \
  static result hook_##name parameters
/** Entry of a hook table. */
#define RP_HOOK_ENTRY(hooked)                                                                                \
  { .name = #hooked, .replacement = (void *)hook_##hooked, .real = (void **)&real_##hooked }

/** Stream handle as events carry it. */
static inline uint64_t rp_hook_stream(const void *stream, int per_thread) {
  if (stream) return (uint64_t)(uintptr_t)stream;
  return per_thread ? RP_STREAM_PER_THREAD : RP_STREAM_LEGACY;
}

/** Path of the module that `function` belongs to where that is not the library whose file name begins with
 * `library`, though that one is loaded and has a `name` too: somebody else answers for it. NULL: nobody does.
 */
const char *rp_hook_usurper(void *function, const char *name, const char *library);
/** `name` of the copy of the runtime that `function` belongs to; NULL if it has none. Calls the loader. */
void *rp_hook_sibling(void *function, const char *name);
/** The runtime makes its context when it is first needed: sees to it that there is one. `function` is of the
 * runtime. */
void rp_hook_make_context(void *function);
/** A call that is refused here: `result`, which where the function `name` is the runtime's is also its last
 * error afterwards (RP_ABI_OUT_OF_MEMORY, RP_ABI_INVALID_VALUE). */
int rp_hook_fail(const char *name, void *function, int result);

/** Takes the runtime's last error away, where the function `name` is the runtime's. */
void rp_hook_forget_error(const char *name, void *function);

/** An interposed call that is rare enough to look whether modules were loaded since the last scan. */
void rp_hook_look_for_modules(void);

#endif
