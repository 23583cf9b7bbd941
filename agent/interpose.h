/** @file interpose.h
 * The call interposer: replaces entries of the global offset tables (JUMP_SLOT and GLOB_DAT) of loaded
 * modules by wrappers of ours. It never replaces dlsym or dlopen and never touches the modules that it is
 * told to skip.
 */
#ifndef RP_AGENT_INTERPOSE_H
#define RP_AGENT_INTERPOSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** One function to interpose. */
struct rp_hook {
  const char *name;
  void *replacement;
  void **real;        /**< receives the function that callers meant, before the first slot is changed */
  unsigned slots;     /**< patched so far */
  unsigned own_slots; /**< of these, in the module that defines the function */
  unsigned conflicts; /**< slots left alone since they mean another copy of the function */
};

/** What one scan did. */
struct rp_interpose_result {
  unsigned modules; /**< looked at */
  unsigned patched; /**< slots changed by this scan */
  unsigned failed;  /**< slots that could not be made writable */
};

/** Patches every loaded module that imports one of `hooks`. Modules whose file name begins with one of `skip`
 *  (NULL-terminated), and the module that contains this function, are left alone. Takes the loader's lock for
 * a moment per module, so call it neither from a callback nor where the loader might wait for the caller.
 * Serialised inside. */
void rp_interpose_scan(struct rp_hook *hooks, size_t count, const char *const *skip,
                       struct rp_interpose_result *result);

/** A number that changes whenever a module is loaded or unloaded. Cheap; allowed everywhere. */
uint64_t rp_interpose_module_changes(void);

/** Finds a loaded module by the beginning of its file name ("libcudart.so"): its path into `out`. */
bool rp_interpose_find_module(const char *prefix, char *out, size_t out_size);

/** What a slot's change costs: makes the slot's page writable if it is read-only after relocation, stores
 * with one aligned write, and restores the protection. */
bool rp_interpose_store(void **slot, void *value, bool read_only_after_relocation);

#endif
