/** @file enforce_plan.h
 * What a process is told before its first step, for the guard: a plan file, or sizes and slots of the user.
 *
 *   plan file, rank ---+
 *                      +--> struct rp_guard_plan
 *   bytes, slots ------+
 */
#ifndef RP_AGENT_ENFORCE_PLAN_H
#define RP_AGENT_ENFORCE_PLAN_H

#include <stddef.h>

#include "agent/config.h"
#include "agent/plan_file.h"
#include "pool/guard.h"
#include "recvpool/status.h"

/** The word of a process that does not know which rank of the plan it is. */
#define RP_PLAN_RANK_UNKNOWN "plan_rank_unknown"

/** Builds what `config` asks for. `rank` and `world_size` are those of the process, -1 where not known.
 * RP_OK with *out NULL: nothing was given, the guard finds out by itself. On failure *out is untouched and
 * `message` holds one line "word: sentence" that says what is wrong and the mend: plan_rank_unknown
 * or plan_has_nothing (RP_ERROR_NOT_FOUND), or plan_unusable (as rp_plan_read, and RP_ERROR_NO_MEMORY). Free
 * with rp_enforce_plan_free. Reads a file; no thread needs to be kept away. */
rp_status rp_enforce_plan_load(const struct rp_config *config, int rank, int world_size,
                               struct rp_guard_plan **out, char *message, size_t message_size);
/** The sizes of all ranks' receives in the plan file of `config`, without repeats; at most `most`. Returns
 * how many there are, 0 where the file cannot be read. Reads it again. */
size_t rp_enforce_plan_sizes(const struct rp_config *config, uint64_t *out, size_t most);
/** NULL is allowed. */
void rp_enforce_plan_free(struct rp_guard_plan *plan);

/** Whether the plan file can be enforced at all, for every rank in it, and has the rank that `config` names.
 * `message` is a sentence that names the file. RP_OK where `config` has no plan. */
rp_status rp_enforce_plan_check(const struct rp_config *config, char *message, size_t message_size);

/** Rank `rank` of a plan that was read, for the guard; `message` names no file. For tests and fuzzing. As
 * rp_planned_receives, and RP_ERROR_LIMIT: more receives than any step has. */
rp_status rp__enforce_plan_build(const struct rp_planned *planned, size_t rank, struct rp_guard_plan **out,
                                 char *message, size_t message_size);

#endif
