/** @file names.h
 * Names of kernels and labels by id: a fixed table, nothing allocated. The owner serialises rp_names_note;
 * lookups are free of locks.
 */
#ifndef RP_AGENT_NAMES_H
#define RP_AGENT_NAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** Whether `id` has a name that was noted in `generation`. */
bool rp_names_known(uint64_t id, uint32_t generation);
/** Copies `name` (cut to 255 bytes) for `id`; a newer name replaces the older one. Dropped when the table is
 * full. */
void rp_names_note(uint64_t id, uint32_t generation, const char *name);
/** Name of `id`, "" if unknown. The text lives for ever. */
const char *rp_names_get(uint64_t id);
/** Host memory that names hold. */
size_t rp_names_bytes(void);

#endif
